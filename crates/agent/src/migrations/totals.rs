//! Counts what happened in migrations since the agent was started, for metrics: by the same events that logs get, and
//! by what sources tell of their copies.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skein_api::{CopyProgress, FailureReason, MigrationEvent, MigrationPhase, Outcome, Role};
use skein_handover::MigrationId;
use skein_metrics::{Family, Histogram, Samples, agent};

use crate::events::AgentEvent;

/// The totals of all migrations of this host.
pub(crate) struct MigrationTotals {
    counts: Mutex<Counts>,
    durations: [Histogram; 2],
    downtimes: Histogram,
}

#[derive(Default)]
struct Counts {
    events: BTreeMap<&'static str, u64>,
    phases: BTreeMap<Phase, PhaseTotal>,
    /// The phases of the migrations that are not over, and since when.
    now: BTreeMap<MigrationId, (Phase, Instant)>,
    ended: BTreeMap<(&'static str, &'static str), u64>,
    called_off: BTreeMap<(&'static str, &'static str), u64>,
    /// What sources last told of the copies that are under way …
    copies: BTreeMap<MigrationId, Copied>,
    /// … and the sum over all copies.
    copied: Copied,
}

/// An end of a migration, and its phase, in words.
type Phase = (&'static str, &'static str);

#[derive(Clone, Copy, Default)]
struct PhaseTotal {
    begun: u64,
    spent: Duration,
}

/// What a copy has taken so far: bytes, but for the CPU time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Copied {
    /// In the order of the label's values.
    sent: [u64; 5],
    /// In the order of [`agent::PAGE_KINDS`].
    pages: [u64; 6],
    again: u64,
    repaired: u64,
    missed: u64,
    late: u64,
    packing_us: u64,
}

/// What is told as 0 before it has happened.
static COUNTED: [&Family; 5] =
    [&agent::MIGRATION_EVENTS, &agent::PHASES_BEGUN, &agent::PHASE_SECONDS, &agent::ENDED, &agent::CALLED_OFF];
const SENT_KINDS: [&str; 5] = ["packed", "stored", "delta", "written", "other"];

impl Copied {
    fn of(copy: &CopyProgress) -> Option<Copied> {
        let pages = copy.pages.as_ref()?;
        let of = &pages.counts;
        Some(Copied {
            sent: [of.packed_bytes, of.stored_bytes(), of.delta_bytes, of.written_bytes(), of.other_bytes],
            pages: [
                of.zero_bytes(),
                of.unpacked_bytes().saturating_sub(of.packed_delta_bytes),
                of.stored_bytes(),
                of.written_bytes(),
                of.unchanged_bytes(),
                of.changed_bytes(),
            ],
            again: pages.again_bytes,
            repaired: of.repaired_bytes(),
            missed: of.missed_bytes(),
            late: of.late_bytes(),
            packing_us: of.packing_us,
        })
    }

    fn numbers(&mut self) -> impl Iterator<Item = &mut u64> {
        let others = [&mut self.again, &mut self.repaired, &mut self.missed, &mut self.late, &mut self.packing_us];
        self.sent.iter_mut().chain(&mut self.pages).chain(others)
    }

    /// Adds what has come since `before`. A number that went back counts as nothing.
    fn add(&mut self, mut now: Copied, mut before: Copied) {
        for ((sum, now), before) in self.numbers().zip(now.numbers()).zip(before.numbers()) {
            *sum = sum.saturating_add(now.saturating_sub(*before));
        }
    }
}

impl MigrationTotals {
    pub(super) fn new() -> MigrationTotals {
        MigrationTotals {
            counts: Mutex::default(),
            durations: [(); 2].map(|()| Histogram::of(&agent::DURATION)),
            downtimes: Histogram::of(&agent::DOWNTIME),
        }
    }

    /// Counts an event, by the name that it was declared with. `role` is `None` of a migration that is not known.
    pub(super) fn event(&self, id: MigrationId, role: Option<Role>, name: &'static str, event: &AgentEvent) {
        let mut counts = self.counts.lock();
        *counts.events.entry(name).or_default() += 1;
        let (AgentEvent::Handover(event), Some(role)) = (event, role.map(role_word)) else { return };
        match event {
            MigrationEvent::Queued => counts.begin(id, (role, MigrationPhase::Queued.words().0), Instant::now()),
            MigrationEvent::Phase { stage } => counts.begin(id, (role, stage.words().0), Instant::now()),
            MigrationEvent::CalledOff { why, .. } => {
                *counts.called_off.entry((role, reason_word(*why))).or_default() += 1;
            }
            MigrationEvent::Over { outcome } => {
                *counts.ended.entry((role, outcome_word(*outcome))).or_default() += 1;
                counts.leave(id, Instant::now());
            }
            MigrationEvent::Reported { .. }
            | MigrationEvent::InDoubt
            | MigrationEvent::Recovered
            | MigrationEvent::WriteFailed => {}
        }
    }

    /// Counts what a copy has taken since it was last told.
    pub(super) fn progress(&self, id: MigrationId, copy: &CopyProgress) {
        if let Some(now) = Copied::of(copy) {
            let mut counts = self.counts.lock();
            let before = counts.copies.insert(id, now).unwrap_or_default();
            counts.copied.add(now, before);
        }
    }

    /// Counts how long a guest stood still.
    pub(super) fn downtime(&self, ms: u64) {
        self.downtimes.observe(ms as f64 / 1e3);
    }

    /// Counts how long a migration took that moved its guest.
    pub(super) fn moved(&self, role: Role, elapsed_ms: u64) {
        self.durations[usize::from(role == Role::Target)].observe(elapsed_ms as f64 / 1e3);
    }

    /// Forgets a migration of which nothing more is told.
    pub(super) fn forget(&self, id: MigrationId) {
        let mut counts = self.counts.lock();
        counts.leave(id, Instant::now());
        counts.copies.remove(&id);
    }

    /// Tells all totals.
    pub(crate) fn collect(&self, samples: &mut Samples) {
        self.counts.lock().collect(samples, Instant::now());
        for (role, durations) in [Role::Source, Role::Target].into_iter().zip(&self.durations) {
            samples.counts(&agent::DURATION, &[role_word(role)], durations);
        }
        samples.counts(&agent::DOWNTIME, &[], &self.downtimes);
    }
}

impl Counts {
    fn begin(&mut self, id: MigrationId, phase: Phase, now: Instant) {
        self.leave(id, now);
        self.phases.entry(phase).or_default().begun += 1;
        self.now.insert(id, (phase, now));
    }

    fn leave(&mut self, id: MigrationId, now: Instant) {
        if let Some((phase, since)) = self.now.remove(&id) {
            self.phases.entry(phase).or_default().spent += now.saturating_duration_since(since);
        }
    }

    fn collect(&self, samples: &mut Samples, now: Instant) {
        COUNTED.iter().for_each(|family| samples.begin(family));
        for (event, count) in &self.events {
            samples.set(&agent::MIGRATION_EVENTS, &[event], *count);
        }
        for ((role, phase), total) in &self.phases {
            samples.set(&agent::PHASES_BEGUN, &[role, phase], total.begun);
            samples.add(&agent::PHASE_SECONDS, &[role, phase], total.spent.as_secs_f64());
        }
        for ((role, phase), since) in self.now.values() {
            let spent = now.saturating_duration_since(*since).as_secs_f64();
            samples.add(&agent::PHASE_SECONDS, &[role, phase], spent);
        }
        for ((role, outcome), count) in &self.ended {
            samples.set(&agent::ENDED, &[role, outcome], *count);
        }
        for ((role, reason), count) in &self.called_off {
            samples.set(&agent::CALLED_OFF, &[role, reason], *count);
        }
        let Copied { sent, pages, again, repaired, missed, late, packing_us } = self.copied;
        for (kind, bytes) in SENT_KINDS.iter().zip(sent) {
            samples.set(&agent::SENT, &[kind], bytes);
        }
        for (kind, bytes) in agent::PAGE_KINDS.iter().zip(pages) {
            samples.set(&agent::PAGES, &[kind], bytes);
        }
        samples.set(&agent::AGAIN, &[], again);
        samples.set(&agent::REPAIRED, &[], repaired);
        samples.set(&agent::MISSED, &[], missed);
        samples.set(&agent::LATE, &[], late);
        samples.set(&agent::PACKER_CPU, &[], packing_us as f64 / 1e6);
    }
}

/// Returns an end of a migration as a label has it.
pub(crate) fn role_word(role: Role) -> &'static str {
    match role {
        Role::Source => "source",
        Role::Target => "target",
    }
}

fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Moved => "moved",
        Outcome::CalledOff => "kept",
        Outcome::Ended => "ended",
    }
}

fn reason_word(reason: FailureReason) -> &'static str {
    match reason {
        FailureReason::Cancelled => "cancelled",
        FailureReason::Deadline => "deadline",
        FailureReason::ContactLost => "contact-lost",
        FailureReason::MigrationFailed => "migration-failed",
        FailureReason::GuestChanged => "guest-changed",
        FailureReason::TargetRefused => "target-refused",
        FailureReason::QemuEnded => "qemu-ended",
        FailureReason::CannotRun => "cannot-run",
        FailureReason::Journal => "journal",
        FailureReason::AgentRestarted => "agent-restarted",
        FailureReason::Proof => "proof",
        FailureReason::Aborted => "aborted",
        FailureReason::NotUnderstood => "not-understood",
        FailureReason::NotHeld => "not-held",
        FailureReason::HoldOver => "hold-over",
        FailureReason::Other => "other",
    }
}

#[cfg(test)]
mod tests {
    use skein_api::{PageCounts, PageFigures, SourcePhase, TargetPhase};

    use super::*;

    const ID: MigrationId = MigrationId(7);

    fn copy(counts: PageCounts) -> CopyProgress {
        CopyProgress {
            total_bytes: 1,
            remaining_bytes: 1,
            remaining_wire_bytes: None,
            transferred_bytes: 0,
            round: 1,
            dirty_bytes_per_s: 0,
            bits_per_s: 0,
            converges: None,
            throttle_percent: 0,
            pages: Some(PageFigures { counts, ..PageFigures::default() }),
        }
    }

    fn text(totals: &MigrationTotals) -> String {
        let mut samples = Samples::default();
        totals.collect(&mut samples);
        samples.into_text()
    }

    #[test]
    fn the_words_are_those_that_are_declared() {
        for reason in agent::REASONS {
            let read: FailureReason = serde_json::from_value((*reason).into()).unwrap();
            assert_eq!(reason_word(read), *reason);
        }
        for outcome in [Outcome::Moved, Outcome::CalledOff, Outcome::Ended] {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome_word(outcome));
        }
        use {SourcePhase as S, TargetPhase as T};
        let source = [S::Begin, S::Prepare, S::Precopy, S::Held, S::Switchover, S::Grant, S::Release, S::Keep, S::Done];
        let target = [T::Begin, T::Prepare, T::Ready, T::Completed, T::Run, T::Running, T::Refuse, T::Done];
        let phases = source.map(MigrationPhase::Source).into_iter().chain(target.map(MigrationPhase::Target));
        for phase in phases.chain([MigrationPhase::Queued]) {
            assert!(agent::PHASES.contains(&phase.words().0), "{phase:?}");
        }
    }

    #[test]
    fn bytes_of_all_copies_add_up_and_never_go_back() {
        let totals = MigrationTotals::new();
        let counts = PageCounts { stored_pages: 2, packed_bytes: 100, zero_pages: 5, ..PageCounts::default() };
        totals.progress(ID, &copy(counts));
        totals.progress(ID, &copy(PageCounts { stored_pages: 3, ..counts }));
        totals.progress(MigrationId(8), &copy(counts));
        totals.progress(MigrationId(8), &copy(PageCounts::default()));
        totals.forget(ID);
        let text = text(&totals);
        for line in [
            "skein_migration_sent_bytes_total{kind=\"stored\"} 20480",
            "skein_migration_sent_bytes_total{kind=\"packed\"} 200",
            "skein_migration_page_bytes_total{kind=\"zero\"} 40960",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line} is not in {text}");
        }
    }

    #[test]
    fn phases_and_ends_are_counted_by_the_events_that_the_logs_get() {
        let (totals, begun) = (MigrationTotals::new(), Instant::now());
        let tell = |event: MigrationEvent| {
            let event = AgentEvent::Handover(event);
            totals.event(ID, Some(Role::Source), event.declaration().name, &event);
        };
        tell(MigrationEvent::Queued);
        tell(MigrationEvent::Phase { stage: MigrationPhase::Source(SourcePhase::Precopy) });
        std::thread::sleep(Duration::from_millis(30));
        tell(MigrationEvent::CalledOff { why: FailureReason::Deadline, detail: "a text".into() });
        tell(MigrationEvent::Over { outcome: Outcome::CalledOff });
        totals.event(MigrationId(9), None, "told", &AgentEvent::Told { text: "a text".into() });
        totals.downtime(120);
        let text = text(&totals);
        for line in [
            "skein_migration_phases_total{role=\"source\",phase=\"precopy\"} 1",
            "skein_migrations_called_off_total{role=\"source\",reason=\"deadline\"} 1",
            "skein_migrations_ended_total{role=\"source\",outcome=\"kept\"} 1",
            // What has not happened yet is told, too: else no rule would see the first one.
            "skein_migrations_ended_total{role=\"target\",outcome=\"moved\"} 0",
            "skein_migrations_called_off_total{role=\"source\",reason=\"contact-lost\"} 0",
            "skein_migration_phase_seconds_total{role=\"target\",phase=\"ready\"} 0",
            "skein_migration_events_total{event=\"in-doubt\"} 0",
            "skein_migration_events_total{event=\"told\"} 1",
            "skein_migration_downtime_seconds_bucket{le=\"0.15\"} 1",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line} is not in {text}");
        }
        assert!(!text.contains("a text"));
        let spent = text.lines().find_map(|line| {
            line.strip_prefix("skein_migration_phase_seconds_total{role=\"source\",phase=\"precopy\"} ")
        });
        let most = begun.elapsed().as_secs_f64();
        assert!((0.03..=most).contains(&spent.unwrap().parse::<f64>().unwrap()), "{spent:?} of {most}");
        assert!(totals.counts.lock().now.is_empty());
    }
}
