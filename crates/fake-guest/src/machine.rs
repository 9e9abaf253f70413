//! Is what a guest and what runs it do in virtual time.
//!
//! ```text
//! source:  none ─▶ setup ─▶ active ─▶ pre-switchover ─▶ device ─▶ completed
//!                    └─────────┴────────────┴──────────────┴─▶ cancelling ─▶ cancelled, failed
//! target:  none ─▶ setup ─▶ completed, failed
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use skein_hypervisor::{
    CopyState, EventSink, GuestEvent, Hold, MigrationState, MigrationStatus, RunState, StopCause, Throttling,
};
use skein_inventory::Composition;
use skein_inventory::QemuVersion;

use crate::copy::{Copy, Rates};

/// Says how long connecting and allocating takes.
const SETUP_TIME: Duration = Duration::from_millis(10);
/// Says after how long a cancelled migration says that it is cancelled.
const CANCEL_TIME: Duration = Duration::from_millis(5);
/// Says how long the devices take to move, beside what is left of the RAM.
const DEVICE_TIME: Duration = Duration::from_millis(10);
/// Bounds the time of a round from below.
const ROUND_TIME_MIN: Duration = Duration::from_millis(1);

/// The parameters of a guest, and of the link that the guest is copied over.
#[derive(Debug, Clone, PartialEq)]
pub struct GuestParameters {
    /// The version of the QEMU that the guest pretends to have.
    pub version: QemuVersion,
    /// The bytes of RAM.
    pub ram_bytes: u64,
    /// The bytes of pages that the guest writes a second, while it is not throttled.
    pub writes_bytes_per_s: u64,
    /// The bytes that the guest writes to, over and over.
    pub hot_bytes: u64,
    /// The bytes of pages that the link takes a second.
    pub link_bytes_per_s: u64,
    /// The name that the guest was started with.
    pub name: String,
    /// The reasons why the guest cannot be migrated, by its hypervisor's word.
    pub blocked_reasons: Vec<String>,
    /// The guest's composition.
    pub composition: Composition,
    /// The abilities of what runs the guest.
    pub abilities: Abilities,
    /// The oddities of QEMU's versions that happen.
    pub oddities: Oddities,
}

impl Default for GuestParameters {
    /// Returns an idle guest of 1 GiB on a link of 8 Gb/s, under QEMU 10.0.
    fn default() -> Self {
        GuestParameters {
            version: QemuVersion { major: 10, minor: 0, micro: 2 },
            ram_bytes: 1 << 30,
            writes_bytes_per_s: 0,
            hot_bytes: 1 << 30,
            link_bytes_per_s: 1_000_000_000,
            name: String::new(),
            blocked_reasons: Vec::new(),
            composition: Composition { machine: "pc-q35-10.0".into(), ..Composition::default() },
            abilities: Abilities::default(),
            oddities: Oddities::default(),
        }
    }
}

/// The abilities that only some hypervisors have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// Whether the hypervisor takes when to switch over.
    pub steers: bool,
    /// Whether the hypervisor throttles a guest.
    pub throttles: bool,
    /// Whether the hypervisor measures what a guest writes.
    pub samples: bool,
    /// Whether the hypervisor holds a guest of which nothing is left to copy (QEMU from 8.1 on).
    pub holds: bool,
}

impl Default for Abilities {
    fn default() -> Self {
        Abilities { steers: true, throttles: true, samples: true, holds: true }
    }
}

/// The things that QEMU does at times: see [`skein_hypervisor::migration`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Oddities {
    /// Whether a cancel in the moment of the pause wakes nobody: the guest stays stopped, cancelling, until
    /// `continue_cancelling` (7.2).
    pub cancel_misses_pause: bool,
    /// Whether a cancelled migration says that it failed.
    pub cancelled_says_failed: bool,
    /// Whether a cancelled migration is cancelling for ever, though the guest runs (7.2, 2 of 48).
    pub cancels_for_ever: bool,
    /// Whether a migration that failed or was cancelled is never let go of.
    pub never_lets_go: bool,
    /// How long a migration that failed or was cancelled is held, if it is let go of.
    pub lets_go_after: Duration,
    /// Whether a cancel before the switchover ends as failed with the guest stopped (7.2, 1 of 94).
    pub cancel_leaves_stopped: bool,
    /// Whether a cancel in the switchover comes too late: the migration is completed all the same.
    pub cancel_is_late: bool,
}

/// What a guest is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The guest is in the middle of nothing that ends by itself.
    Rest,
    Setup {
        until: Duration,
    },
    Active,
    Device {
        until: Option<Duration>,
    },
    Cancelling {
        until: Option<Duration>,
    },
}

/// A measurement of a dirty rate.
#[derive(Debug, Clone, Copy)]
struct Measure {
    until: Duration,
    bytes_per_s: u64,
}

/// A guest, and what runs the guest.
pub(crate) struct Machine {
    pub(crate) parameters: GuestParameters,
    now: Duration,
    phase: Phase,
    pub(crate) run_state: RunState,
    /// The guest's state before the migration stopped it.
    state_before: RunState,
    status: MigrationStatus,
    error: Option<String>,
    copy: Option<Copy>,
    downtime_limit_ms: u64,
    /// The bytes that may be left at the switchover, if a caller has set them.
    switchover_bytes: Option<u64>,
    /// Whether the word is waited for that the guest may switch.
    waits_for_word: bool,
    /// The most bytes a second, if a caller has set a limit.
    rate_limit: Option<u64>,
    throttling: Throttling,
    throttle_wanted: u8,
    throttle: u8,
    measure: Option<Measure>,
    /// The time until which a migration that is over is held.
    holds_until: Option<Duration>,
    /// Whether the other end is gone.
    target_is_gone: bool,
    sinks: Vec<EventSink>,
    /// The events on their way.
    told: VecDeque<(Duration, GuestEvent)>,
    pub(crate) event_delay: Duration,
    pub(crate) loses_events: bool,
    pub(crate) is_closed: bool,
    pub(crate) is_alive: bool,
}

impl Machine {
    pub(crate) fn new(parameters: GuestParameters, now: Duration, run_state: RunState) -> Machine {
        Machine {
            parameters,
            now,
            phase: Phase::Rest,
            state_before: run_state.clone(),
            run_state,
            status: MigrationStatus::None,
            error: None,
            copy: None,
            downtime_limit_ms: 300,
            switchover_bytes: None,
            waits_for_word: false,
            rate_limit: None,
            throttling: Throttling::Forbidden,
            throttle_wanted: 0,
            throttle: 0,
            measure: None,
            holds_until: None,
            target_is_gone: false,
            sinks: Vec::new(),
            told: VecDeque::new(),
            event_delay: Duration::ZERO,
            loses_events: false,
            is_closed: false,
            is_alive: true,
        }
    }

    fn rates(&self) -> Rates {
        let lives = 1.0 - f64::from(self.throttle) / 100.0;
        let runs = matches!(self.run_state, RunState::Running);
        let writes = if runs { self.parameters.writes_bytes_per_s as f64 * lives } else { 0.0 };
        let link = self
            .rate_limit
            .map_or(self.parameters.link_bytes_per_s, |limit| limit.min(self.parameters.link_bytes_per_s));
        Rates { link: link as f64, writes, hot: self.parameters.hot_bytes as f64 }
    }

    /// Returns the bytes that may be left at the switchover.
    fn threshold(&self) -> f64 {
        let own = self.parameters.link_bytes_per_s as f64 * self.downtime_limit_ms as f64 / 1000.0;
        self.switchover_bytes.map_or(own, |bytes| bytes as f64)
    }

    /// Lives until `now`.
    pub(crate) fn live(&mut self, now: Duration) {
        while let Some(next) = self.next_change().filter(|next| *next <= now) {
            self.pass(next);
            self.change();
        }
        self.pass(now);
        self.deliver();
    }

    /// Lets time pass in which nothing changes but what is sent.
    fn pass(&mut self, to: Duration) {
        let time = to.saturating_sub(self.now);
        let rates = self.rates();
        if let (Phase::Active, Some(copy)) = (self.phase, &mut self.copy) {
            copy.send(time, &rates);
        }
        self.now = self.now.max(to);
    }

    /// Returns when something changes by itself.
    fn next_change(&self) -> Option<Duration> {
        match self.phase {
            Phase::Rest => None,
            Phase::Setup { until } => Some(until),
            Phase::Active => {
                let copy = self.copy.as_ref()?;
                let over =
                    copy.round_over_in(&self.rates(), self.threshold().min(self.parameters.ram_bytes as f64 - 1.0));
                let shortest = ROUND_TIME_MIN.saturating_sub(Duration::from_secs_f64(copy.lasted));
                Some(self.now + over?.max(shortest))
            }
            Phase::Device { until } | Phase::Cancelling { until } => until,
        }
    }

    fn change(&mut self) {
        match self.phase {
            Phase::Rest => {}
            Phase::Setup { .. } => {
                self.copy = Some(Copy::new(self.parameters.ram_bytes as f64));
                self.go(Phase::Active, MigrationStatus::Active);
            }
            Phase::Active => self.end_round(),
            Phase::Device { .. } => {
                if self.target_is_gone {
                    return self.fail_in_switchover("the target is gone");
                }
                if let Some(copy) = &mut self.copy {
                    copy.sent += copy.remaining;
                    copy.remaining = 0.0;
                }
                self.run_state = RunState::PostMigrate;
                self.go(Phase::Rest, MigrationStatus::Completed);
            }
            Phase::Cancelling { .. } => self.end_cancel(),
        }
    }

    fn end_round(&mut self) {
        let threshold = self.threshold();
        let Some(copy) = &mut self.copy else { return };
        copy.next_round();
        if copy.remaining <= threshold && !self.waits_for_word {
            self.state_before = std::mem::replace(&mut self.run_state, RunState::FinishMigrate);
            if self.state_before == RunState::Running {
                self.tell(GuestEvent::Stopped);
            }
            return self.go(Phase::Rest, MigrationStatus::PreSwitchover);
        }
        if self.throttling == Throttling::Allowed {
            self.throttle = self.throttle_wanted.max(1);
        }
    }

    fn end_cancel(&mut self) {
        let oddities = self.parameters.oddities;
        self.throttle = 0;
        self.let_go();
        match oddities.cancelled_says_failed {
            true => self.fail("the channels were cut"),
            false => self.go(Phase::Rest, MigrationStatus::Cancelled),
        }
    }

    /// Sets from when on a migration that is over is not held any more.
    fn let_go(&mut self) {
        let oddities = self.parameters.oddities;
        self.holds_until =
            if oddities.never_lets_go { Some(Duration::MAX) } else { Some(self.now + oddities.lets_go_after) };
    }

    fn go(&mut self, phase: Phase, status: MigrationStatus) {
        (self.phase, self.status) = (phase, status);
        self.tell(GuestEvent::Migration(status));
    }

    fn fail(&mut self, why: &str) {
        self.error = Some(why.to_owned());
        self.throttle = 0;
        self.let_go();
        self.go(Phase::Rest, MigrationStatus::Failed);
    }

    /// Fails a migration in the switchover. QEMU runs the guest by itself then.
    fn fail_in_switchover(&mut self, why: &str) {
        self.fail(why);
        self.run_again();
    }

    fn run_again(&mut self) {
        self.run_state = self.state_before.clone();
        if self.run_state == RunState::Running {
            self.tell(GuestEvent::Resumed);
        }
    }

    pub(crate) fn tell(&mut self, event: GuestEvent) {
        self.told.push_back((self.now + self.event_delay, event));
    }

    fn deliver(&mut self) {
        while self.told.front().is_some_and(|(due, _)| *due <= self.now) {
            let Some((_, event)) = self.told.pop_front() else { return };
            if !self.loses_events {
                self.sinks.retain_mut(|sink| sink(event.clone()));
            }
        }
    }

    pub(crate) fn listen(&mut self, mut sink: EventSink) {
        if self.is_closed {
            sink(GuestEvent::Closed);
        } else {
            self.sinks.push(sink);
        }
    }

    // What the guest is asked and told.

    pub(crate) fn state(&self) -> MigrationState {
        let copy = self.copy.map(|copy| CopyState {
            total_bytes: self.parameters.ram_bytes,
            remaining_bytes: copy.remaining as u64,
            transferred_bytes: copy.sent as u64,
            sent_page_bytes: copy.sent as u64,
            round: copy.round,
            dirty_bytes_per_s: copy.dirty_rate as u64,
            socket_mbit_per_s: self.parameters.link_bytes_per_s as f64 * 8.0 / 1e6,
        });
        let throttle_percent = (self.throttle > 0).then_some(self.throttle);
        MigrationState { status: self.status, throttle_percent, copy, error: self.error.clone() }
    }

    pub(crate) fn holds(&self) -> bool {
        let is_under_way = !matches!(self.phase, Phase::Rest) || self.status == MigrationStatus::PreSwitchover;
        is_under_way || self.holds_until.is_some_and(|until| until > self.now)
    }

    /// Returns whether nothing is answered: in the switchover QEMU holds its lock until what it writes is read.
    pub(crate) fn is_deaf(&self) -> bool {
        matches!(self.phase, Phase::Device { until: None })
    }

    pub(crate) fn begin_outgoing(&mut self, limit_ms: u64, throttling: Throttling, hold: Hold) -> Result<(), String> {
        if self.holds() {
            return Err("duplicate yank instance".into());
        }
        (self.copy, self.error, self.holds_until, self.switchover_bytes) = (None, None, None, None);
        self.rate_limit = None;
        (self.throttle, self.throttle_wanted, self.throttling) = (0, 0, throttling);
        self.waits_for_word = hold == Hold::Held && self.parameters.abilities.holds;
        self.target_is_gone = false;
        self.downtime_limit_ms = limit_ms;
        self.go(Phase::Setup { until: self.now + SETUP_TIME }, MigrationStatus::Setup);
        Ok(())
    }

    pub(crate) fn begin_incoming(&mut self) -> Result<(), String> {
        if self.run_state != RunState::InMigrate {
            return Err("the guest does not wait for a migration".into());
        }
        self.go(Phase::Rest, MigrationStatus::Setup);
        Ok(())
    }

    pub(crate) fn continue_migration(&mut self) -> Result<(), String> {
        match self.status {
            MigrationStatus::PreSwitchover => {
                let left = self.copy.map_or(0.0, |copy| copy.remaining);
                let link = self.parameters.link_bytes_per_s as f64;
                let until = (link > 0.0).then(|| self.now + DEVICE_TIME + Duration::from_secs_f64(left / link));
                self.go(Phase::Device { until }, MigrationStatus::Device);
                Ok(())
            }
            // A caller that had no answer may repeat the command.
            MigrationStatus::Device | MigrationStatus::Completed => Ok(()),
            _ => Err("Migration not in expected state".into()),
        }
    }

    pub(crate) fn continue_cancelling(&mut self) -> Result<(), String> {
        if self.status != MigrationStatus::Cancelling {
            return Err("Migration not in expected state".into());
        }
        if self.run_state == RunState::FinishMigrate {
            self.run_again();
            self.phase = Phase::Cancelling { until: Some(self.now + CANCEL_TIME) };
        }
        Ok(())
    }

    pub(crate) fn cancel(&mut self) {
        let oddities = self.parameters.oddities;
        let until = Some(self.now + CANCEL_TIME).filter(|_| !oddities.cancels_for_ever);
        match self.status {
            MigrationStatus::Setup | MigrationStatus::Active => {
                self.go(Phase::Cancelling { until }, MigrationStatus::Cancelling);
            }
            MigrationStatus::PreSwitchover if oddities.cancel_misses_pause => {
                self.go(Phase::Cancelling { until: None }, MigrationStatus::Cancelling);
            }
            MigrationStatus::PreSwitchover if oddities.cancel_leaves_stopped => {
                self.run_state = RunState::PostMigrate;
                self.fail("cancelled");
            }
            MigrationStatus::Device if oddities.cancel_is_late => {}
            MigrationStatus::PreSwitchover | MigrationStatus::Device => {
                self.go(Phase::Cancelling { until }, MigrationStatus::Cancelling);
                self.run_again();
            }
            _ => {}
        }
    }

    pub(crate) fn resume(&mut self) -> Result<(), String> {
        if self.run_state == RunState::FinishMigrate {
            return Err("the migration is not finalized yet".into());
        }
        if self.run_state != RunState::Running {
            self.run_state = RunState::Running;
            self.tell(GuestEvent::Resumed);
        }
        Ok(())
    }

    pub(crate) fn set_switchover(&mut self, bytes: u64) {
        self.switchover_bytes = Some(bytes);
    }

    pub(crate) fn limit_rate(&mut self, bytes_per_s: Option<u64>) {
        self.rate_limit = bytes_per_s;
    }

    pub(crate) fn let_switch(&mut self) {
        self.waits_for_word = false;
    }

    pub(crate) fn set_throttle(&mut self, percent: u8) {
        self.throttle_wanted = percent;
    }

    pub(crate) fn forget_settings(&mut self) {
        (self.switchover_bytes, self.rate_limit, self.throttle_wanted) = (None, None, 0);
    }

    pub(crate) fn measure(&mut self, time: Duration) -> Result<(), String> {
        if self.measure.is_some_and(|measure| measure.until > self.now) {
            return Err("the dirty rate is being measured already".into());
        }
        let seconds = time.as_secs_f64();
        let bytes_per_s = (self.rates().dirtied(seconds) / seconds) as u64;
        self.measure = Some(Measure { until: self.now + time, bytes_per_s });
        Ok(())
    }

    pub(crate) fn dirty_rate(&self) -> Option<u64> {
        self.measure.filter(|measure| measure.until <= self.now).map(|measure| measure.bytes_per_s)
    }

    // What happens to the guest.

    /// Ends everything: what runs the guest was killed, or ended.
    pub(crate) fn end(&mut self) {
        (self.is_alive, self.phase) = (false, Phase::Rest);
        self.close();
    }

    pub(crate) fn close(&mut self) {
        // Events that were sent arrive, up to the end.
        self.told.iter_mut().for_each(|(due, _)| *due = self.now);
        self.deliver();
        self.is_closed = true;
        if !self.loses_events {
            for sink in &mut self.sinks {
                sink(GuestEvent::Closed);
            }
        }
        self.sinks.clear();
    }

    pub(crate) fn stop(&mut self, state: RunState, cause: Option<StopCause>) {
        cause.into_iter().for_each(|cause| self.tell(GuestEvent::Stopping(cause)));
        self.tell(if state == RunState::Suspended { GuestEvent::Asleep } else { GuestEvent::Stopped });
        match self.run_state {
            RunState::FinishMigrate => self.state_before = state,
            _ => self.run_state = state,
        }
    }

    pub(crate) fn lose_target(&mut self, why: &str) {
        self.target_is_gone = true;
        match self.phase {
            Phase::Setup { .. } | Phase::Active => self.fail(why),
            Phase::Device { .. } => self.fail_in_switchover(why),
            Phase::Cancelling { .. } => self.phase = Phase::Cancelling { until: Some(self.now) },
            Phase::Rest => {}
        }
        if self.parameters.oddities.cancels_for_ever && self.status == MigrationStatus::Cancelling {
            self.phase = Phase::Cancelling { until: None };
        }
    }

    pub(crate) fn arrive(&mut self, state: RunState) {
        self.run_state = state;
        self.go(Phase::Rest, MigrationStatus::Completed);
    }

    pub(crate) fn fail_to_arrive(&mut self, why: &str) {
        self.fail(why);
    }

    pub(crate) fn set_link(&mut self, bytes_per_s: u64) {
        self.parameters.link_bytes_per_s = bytes_per_s;
        if let Phase::Device { until } = &mut self.phase {
            let left = self.copy.map_or(0.0, |copy| copy.remaining);
            let link = bytes_per_s as f64;
            *until = (link > 0.0).then(|| self.now + DEVICE_TIME + Duration::from_secs_f64(left / link));
        }
    }
}
