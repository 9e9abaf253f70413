//! An agent's edges: what its manager wants is done, and what happens is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use skein_handover::{
    MigrationEvent, MigrationId, MigrationLimits, MigrationPhase, MigrationSummary, NewMigration, Order, Outcome,
    Record, Role, SourceGuest, SourceInput, SourceOrder, TargetGuest, TargetInput, TargetOrder, WriteResult,
};

use super::fault::Fault;
use super::offer::{Action, Input, Manager};
use super::qemu::{Qemu, State, shown};
use super::scenario::Wish;
use super::{Cluster, Do, ForAgent, HostIx, Plant, QemuIx, trace};
use crate::world::{MS, S, Time};

/// How often an agent looks at its sessions.
const LOOK_PERIOD: Time = 100 * MS;
/// Actions that may wait at once: some for each migration.
const ACTIONS_MAX: usize = 64;

/// What outlives an agent.
pub struct SimHost {
    pub disk: super::disk::Disk,
    pub off: bool,
    /// Which QEMU is the source of a migration: a file in the directory for what runs.
    pub sources: BTreeMap<MigrationId, QemuIx>,
    pub limits: MigrationLimits,
}

/// An agent's process.
#[derive(Default)]
pub struct SimAgent {
    pub incarnation: u32,
    /// None: it does not run.
    pub manager: Option<Manager>,
    /// What its clock shows more than the run's.
    pub epoch: Duration,
    /// It is stopped that often over, by these faults.
    pub paused: u32,
    pub paused_by: BTreeSet<usize>,
    /// What has to wait until it runs again.
    pub deferred: VecDeque<ForAgent>,
    /// What goes wrong when it has done so many things more.
    pub trap: Option<(u32, Fault)>,
    /// It took up migrations when it began: all at once, whatever the limits are.
    took_up: bool,
    writes: VecDeque<Vec<Record>>,
    busy: BTreeSet<(MigrationId, Order)>,
    /// When the last order of a migration is done, and how many were given.
    orders: BTreeMap<MigrationId, (Time, u32)>,
    pub wanted: BTreeSet<HostIx>,
    pub contact: BTreeMap<HostIx, bool>,
    /// QEMUs that this process started, and those that it told to run.
    started: BTreeSet<QemuIx>,
    continued: BTreeSet<QemuIx>,
    timeout_at: Option<Duration>,
}

impl SimAgent {
    pub fn is_idle(&self) -> bool {
        self.manager.is_some() && self.paused == 0 && self.writes.is_empty() && self.busy.is_empty()
    }

    /// How many orders of a migration were given.
    fn orders(&self, id: MigrationId) -> u32 {
        self.orders.get(&id).map_or(0, |(_, count)| *count)
    }

    pub fn is_writing(&self, record: &Record) -> bool {
        self.writes.iter().flatten().any(|other| other == record)
    }

    /// What an agent without migrations should not have.
    pub fn leftover(&self) -> Option<String> {
        (!self.wanted.is_empty()).then(|| format!("reaching for {:?}", self.wanted))
    }

    pub fn shown(&self) -> String {
        format!(
            "paused {}, writes {:?}, busy {:?}, reaches for {:?}, contact {:?}",
            self.paused, self.writes, self.busy, self.wanted, self.contact
        )
    }
}

pub fn name(host: HostIx) -> String {
    format!("h{host}")
}

fn number(name: &str) -> HostIx {
    name[1..].parse().expect("named by `name`")
}

fn as_source(qemu: &Qemu) -> SourceGuest {
    match qemu.state {
        _ if !qemu.alive => SourceGuest::Gone,
        State::Starting | State::Incoming | State::Loaded => SourceGuest::Stopped,
        State::Running => SourceGuest::Running,
        State::Migrating => SourceGuest::Migrating,
        State::PreSwitchover => SourceGuest::PreSwitchover,
        State::Device => SourceGuest::Device,
        State::Completed => SourceGuest::Completed,
    }
}

impl Cluster {
    pub(crate) fn for_agent(&mut self, host: HostIx, delay: Time, what: ForAgent) {
        let incarnation = self.agents[host].incarnation;
        self.after(delay, Do::Agent(host, incarnation, what));
    }

    pub(crate) fn agent_acts(&mut self, host: HostIx, incarnation: u32, what: ForAgent) {
        let agent = &mut self.agents[host];
        if agent.incarnation != incarnation || agent.manager.is_none() {
            return;
        }
        if agent.paused > 0 {
            agent.deferred.push_back(what);
            return;
        }
        match what {
            ForAgent::Timeout => {
                agent.timeout_at = None;
                let now = agent.epoch + Duration::from_nanos(self.now);
                agent.manager.as_mut().expect("it runs").handle_timeout(now);
                self.perform(host);
            }
            ForAgent::Look => {
                self.for_agent(host, LOOK_PERIOD, ForAgent::Look);
                self.look(host);
                self.check_stopped();
            }
            ForAgent::Written => self.written(host),
            ForAgent::Order(id, order) => self.order(host, id, order),
            ForAgent::Tell(input, id, orders) => {
                if self.agents[host].orders(id) == orders {
                    self.input(host, input);
                }
            }
            ForAgent::Query(id) => self.query(host, id),
            ForAgent::CloseStreams(qemu, epoch) => {
                if self.qemus[qemu].epoch == epoch {
                    self.close_streams(qemu);
                }
            }
        }
    }

    /// Tells the manager what happened, and does what it wants.
    pub(crate) fn input(&mut self, host: HostIx, input: Input) {
        let agent = &mut self.agents[host];
        let now = agent.epoch + Duration::from_nanos(self.now);
        if let Some(manager) = &mut agent.manager {
            manager.handle(now, input);
            self.perform(host);
        }
    }

    pub(crate) fn perform(&mut self, host: HostIx) {
        let mut count = 0;
        while let Some(action) = self.agents[host].manager.as_mut().and_then(Manager::poll_action) {
            count += 1;
            self.step_on_trap(host, &action);
            if self.agents[host].manager.is_none() {
                return;
            }
            self.do_action(host, action);
        }
        let entries = self.agents[host].manager.as_ref().map_or(0, |manager| manager.summaries().len());
        if count > ACTIONS_MAX + 8 * entries || entries > self.wishes.len() + 1 {
            self.fail(format!("the manager of h{host} has {entries} migrations and wants {count} things at once"));
        }
        self.check_limits(host);
        let agent = &mut self.agents[host];
        let Some(next) = agent.manager.as_ref().and_then(Manager::next_timeout) else { return };
        if agent.timeout_at.is_none_or(|at| next < at) {
            agent.timeout_at = Some(next);
            let at = next.saturating_sub(agent.epoch).as_nanos() as Time;
            let late = self.rng.below(2 * MS);
            let incarnation = self.agents[host].incarnation;
            self.at(at.max(self.now) + late, Do::Agent(host, incarnation, ForAgent::Timeout));
        }
    }

    fn check_limits(&mut self, host: HostIx) {
        let MigrationLimits { outgoing, incoming, .. } = self.hosts[host].limits;
        let Some(manager) = self.agents[host].manager.as_ref().filter(|_| !self.agents[host].took_up) else { return };
        for (role, most) in [(Role::Source, outgoing), (Role::Target, incoming)] {
            let busy = |summary: &MigrationSummary| {
                summary.role == role && summary.stage != MigrationPhase::Queued && summary.outcome.is_none()
            };
            // Those that are called off give their place back at once, and some of them end only later.
            let number = manager.summaries().iter().filter(|s| busy(s) && s.why.is_none()).count();
            if number > most {
                return self.fail(format!("h{host} is the {role:?} of {number} migrations at once, of at most {most}"));
            }
        }
    }

    fn do_action(&mut self, host: HostIx, action: Action) {
        match action {
            Action::Write(records) => {
                trace!(self, "h{host} writes {records:?}");
                let idle = self.agents[host].writes.is_empty();
                self.agents[host].writes.push_back(records);
                if self.agents[host].writes.len() > self.wishes.len() + 2 {
                    self.fail(format!("h{host} has too much to write: {}", self.agents[host].shown()));
                }
                if idle {
                    self.begin_write(host);
                }
            }
            Action::Send(peer, message) => {
                trace!(self, "h{host} tells {peer}: {message:?}");
                self.send(host, number(&peer), &message);
            }
            Action::Order(id, order) => {
                if self.agents[host].busy.insert((id, order)) {
                    trace!(self, "h{host} orders {id}: {order:?}");
                    let delay = match order {
                        Order::Target(TargetOrder::Start) => 20 * MS + self.rng.below(200 * MS),
                        _ => self.monitor_time(),
                    };
                    // Orders of one migration come one after the other.
                    let (last, count) = self.agents[host].orders.get(&id).copied().unwrap_or_default();
                    let at = (self.now + delay).max(last + 1);
                    self.agents[host].orders.insert(id, (at, count + 1));
                    self.for_agent(host, at - self.now, ForAgent::Order(id, order));
                }
            }
            Action::Reach(peer, true) => {
                self.agents[host].wanted.insert(number(&peer));
                self.look(host);
            }
            Action::Reach(peer, false) => {
                self.agents[host].wanted.remove(&number(&peer));
                self.hang_up(host, number(&peer));
            }
            Action::Event(id, event) => {
                trace!(self, "h{host} {id}: {event:?}");
                self.note_event(host, id, &event);
            }
            Action::Forget(id) => self.forget(host, id),
        }
    }

    fn note_event(&mut self, host: HostIx, id: MigrationId, event: &MigrationEvent) {
        match event {
            MigrationEvent::InDoubt => {
                self.stats.in_doubt += 1;
                if self.plant == Some(Plant::DoubleResume) {
                    // As if waiting long enough were a proof.
                    if let Some(qemu) = self.hosts[host].sources.get(&id).copied()
                        && self.qemus[qemu].alive
                        && self.qemus[qemu].state == State::Completed
                    {
                        self.guest_runs(qemu);
                    }
                }
            }
            MigrationEvent::CalledOff { why, detail } if self.calm => {
                use skein_handover::FailureReason;
                if !matches!(why, FailureReason::Cancelled | FailureReason::Aborted | FailureReason::TargetRefused) {
                    self.fail(format!("in calm h{host} calls {id} off: {why:?} {detail}"));
                }
            }
            MigrationEvent::Over { outcome } if self.hosts[host].sources.contains_key(&id) => {
                let what = match outcome {
                    Outcome::Moved => "moved",
                    Outcome::CalledOff => "kept",
                    Outcome::Ended => "ended",
                };
                match self.outcomes.insert(id, *outcome) {
                    None => *self.stats.outcomes.entry(what).or_default() += 1,
                    Some(before) if before == *outcome => {}
                    // One that was kept, and not settled before its agent and its QEMU ended.
                    Some(Outcome::CalledOff) if *outcome == Outcome::Ended => {}
                    // It ran there, that could not be written, and then both were gone.
                    Some(Outcome::Moved) if *outcome == Outcome::Ended && self.is_lost(host, id) => {}
                    Some(before) => self.fail(format!("h{host} says that {id} {outcome:?}, after {before:?}")),
                }
                // Whether one that was killed as it was told to run had run nobody can know.
                let ran = |qemu: &Qemu| qemu.incoming == Some(id) && (qemu.ran || self.vms[qemu.vm].lost);
                let ran = self.qemus.iter().any(ran);
                if *outcome == Outcome::Moved && !ran {
                    self.fail(format!("h{host} says that {id} was moved, which never ran at the target"));
                }
            }
            _ => {}
        }
    }

    fn is_lost(&self, host: HostIx, id: MigrationId) -> bool {
        self.hosts[host].sources.get(&id).is_some_and(|qemu| self.vms[self.qemus[*qemu].vm].lost)
    }

    // ---- the journal ----

    fn begin_write(&mut self, host: HostIx) {
        let most = if self.hosts[host].disk.slow > 0 { 2 * S } else { *self.rng.pick(&[MS, 5 * MS, 30 * MS]) };
        let takes = 100_000 + self.rng.below(most);
        self.for_agent(host, takes, ForAgent::Written);
    }

    fn written(&mut self, host: HostIx) {
        let records = self.agents[host].writes.pop_front().expect("one is being written");
        let on_disk = self.hosts[host].disk.write(&records, &mut self.rng);
        if !self.agents[host].writes.is_empty() {
            self.begin_write(host);
        }
        trace!(self, "h{host} has written {records:?}: {on_disk}");
        let result = if on_disk { WriteResult::OnDisk } else { WriteResult::Unknown };
        if let Some(input) = Input::written(&records, result) {
            self.input(host, input);
        }
    }

    // ---- QEMU ----

    fn monitor_time(&mut self) -> Time {
        100_000 + self.rng.below(3 * MS)
    }

    pub(crate) fn target_qemu(&self, host: HostIx, id: MigrationId) -> Option<QemuIx> {
        (0..self.qemus.len()).rev().find(|ix| self.qemus[*ix].host == host && self.qemus[*ix].incoming == Some(id))
    }

    fn order(&mut self, host: HostIx, id: MigrationId, order: Order) {
        self.agents[host].busy.remove(&(id, order));
        trace!(self, "h{host} performs {id}: {order:?}");
        match order {
            Order::Source(order) => {
                let qemu = self.hosts[host].sources.get(&id).copied().filter(|ix| self.qemus[*ix].alive);
                if let Some(qemu) = qemu {
                    self.order_source(host, id, qemu, order);
                }
            }
            Order::Target(TargetOrder::Start) => {
                if self.target_qemu(host, id).is_none() {
                    let vm = self.agents[host].manager.as_ref().and_then(|m| m.summary(id)).map(|s| number(&s.vm));
                    let Some(vm) = vm else { return };
                    let pages = self.vms[vm].image.len();
                    let qemu = self.qemus.len();
                    self.qemus.push(Qemu::new(host, vm, Some(id), vec![0; pages]));
                    self.agents[host].started.insert(qemu);
                    trace!(self, "h{host} starts {} for {id}", shown(qemu));
                    let delay = 10 * MS + self.rng.below(100 * MS);
                    self.schedule_step(qemu, delay);
                    return; // it says itself when it is there
                }
            }
            Order::Target(TargetOrder::Continue) => {
                // To a monitor that is gone nothing can be said.
                if let Some(qemu) = self.target_qemu(host, id).filter(|qemu| self.qemus[*qemu].alive) {
                    self.input(host, Input::Target(id, TargetInput::Continuing));
                    // The agent may have been killed doing what came of that.
                    if self.agents[host].manager.is_some() {
                        self.agents[host].continued.insert(qemu);
                        if self.qemus[qemu].state == State::Loaded {
                            self.guest_runs(qemu);
                        }
                    }
                }
            }
            Order::Target(TargetOrder::Kill) => {
                if let Some(qemu) = self.target_qemu(host, id).filter(|ix| self.qemus[*ix].alive) {
                    if self.qemus[qemu].ran {
                        return self.fail(format!("h{host} kills {}, which ran the guest", shown(qemu)));
                    }
                    self.qemu_dies(qemu);
                }
            }
        }
        if self.agents[host].manager.is_some() {
            self.query(host, id);
        }
    }

    fn order_source(&mut self, host: HostIx, id: MigrationId, ix: QemuIx, order: SourceOrder) {
        let state = self.qemus[ix].state;
        match order {
            SourceOrder::Migrate if state == State::Running => {
                let peer = self.agents[host].manager.as_ref().and_then(|m| m.summary(id)).map(|s| number(&s.peer));
                let Some(peer) = peer else { return };
                let channels = *self.rng.pick(&[1, 3, 5]);
                // Those that it came over.
                self.close_streams(ix);
                self.qemus[ix].begin(channels);
                self.qemus[ix].outgoing = Some(id);
                if self.open_streams(host, peer, id, ix) {
                    self.schedule_step(ix, MS);
                } else {
                    self.qemu_broke(ix);
                }
            }
            SourceOrder::Continue if state == State::PreSwitchover => {
                self.qemus[ix].state = State::Device;
                self.schedule_step(ix, 200_000);
            }
            SourceOrder::CancelMigration => {
                let epoch = self.qemus[ix].epoch;
                self.qemu_fails(ix, epoch);
            }
            SourceOrder::Resume if state == State::Completed => self.guest_runs(ix),
            SourceOrder::Quit => {
                if self.qemus[ix].runs() {
                    return self.fail(format!("h{host} ends {}, which runs the guest", shown(ix)));
                }
                self.qemu_dies(ix);
            }
            _ => {}
        }
    }

    /// One of the connections of a source's QEMU broke.
    pub(crate) fn qemu_broke(&mut self, ix: QemuIx) {
        if self.qemus[ix].outgoing.is_some() && !std::mem::replace(&mut self.qemus[ix].broken, true) {
            self.schedule_step(ix, 100_000);
        }
    }

    /// When the agent hears what the monitor says now.
    fn monitor_delay(&mut self, ix: QemuIx) -> Time {
        let at = (self.now + 50_000 + self.rng.below(2 * MS)).max(self.qemus[ix].monitor_at + 1);
        self.qemus[ix].monitor_at = at;
        at - self.now
    }

    /// A QEMU's event: its agent, if there is one, hears of it.
    pub(crate) fn qemu_says(&mut self, ix: QemuIx) {
        let host = self.qemus[ix].host;
        trace!(self, "{} on h{host}: {:?}, alive {}", shown(ix), self.qemus[ix].state, self.qemus[ix].alive);
        let mut ids: Vec<MigrationId> = self.qemus[ix].outgoing.into_iter().collect();
        ids.extend(self.hosts[host].sources.iter().filter(|(_, qemu)| **qemu == ix).map(|(id, _)| *id));
        ids.extend(self.qemus[ix].incoming);
        ids.dedup();
        for id in ids {
            if let Some(input) = self.how_it_is(host, id, ix) {
                let delay = self.monitor_delay(ix);
                let orders = self.agents[host].orders(id);
                self.for_agent(host, delay, ForAgent::Tell(input, id, orders));
            }
        }
    }

    pub(crate) fn migration_failed(&mut self, ix: QemuIx) {
        if let Some(id) = self.qemus[ix].outgoing {
            let host = self.qemus[ix].host;
            let delay = self.monitor_delay(ix);
            let orders = self.agents[host].orders(id);
            let input = Input::Source(id, SourceInput::MigrationFailed);
            self.for_agent(host, delay, ForAgent::Tell(input, id, orders));
        }
        self.qemu_says(ix);
    }

    fn how_it_is(&self, host: HostIx, id: MigrationId, ix: QemuIx) -> Option<Input> {
        let qemu = &self.qemus[ix];
        if qemu.incoming != Some(id) {
            return Some(Input::Source(id, SourceInput::Guest(as_source(qemu))));
        }
        let agent = &self.agents[host];
        let guest = match qemu.state {
            _ if !qemu.alive && agent.started.contains(&ix) && !agent.continued.contains(&ix) => TargetGuest::GoneUnrun,
            _ if !qemu.alive => TargetGuest::Gone,
            State::Starting => return None,
            State::Incoming => TargetGuest::Waiting,
            State::Loaded => TargetGuest::Loaded,
            // It may be the source of the next one already.
            _ => TargetGuest::Running,
        };
        Some(Input::Target(id, TargetInput::Guest(guest)))
    }

    fn query(&mut self, host: HostIx, id: MigrationId) {
        let Some(summary) = self.agents[host].manager.as_ref().and_then(|manager| manager.summary(id)) else { return };
        let qemu = match summary.role {
            Role::Source => self.hosts[host].sources.get(&id).copied(),
            Role::Target => self.target_qemu(host, id),
        };
        let input = match (qemu, summary.role) {
            (Some(qemu), _) => match self.how_it_is(host, id, qemu) {
                Some(input) => {
                    let delay = self.monitor_delay(qemu);
                    let orders = self.agents[host].orders(id);
                    return self.for_agent(host, delay, ForAgent::Tell(input, id, orders));
                }
                None => return self.for_agent(host, 20 * MS, ForAgent::Query(id)),
            },
            (None, Role::Source) => Input::Source(id, SourceInput::Guest(SourceGuest::Gone)),
            (None, Role::Target) => Input::Target(id, TargetInput::Guest(TargetGuest::Gone)),
        };
        self.input(host, input);
    }

    fn forget(&mut self, host: HostIx, id: MigrationId) {
        self.agents[host].orders.remove(&id);
        if let Some(qemu) = self.hosts[host].sources.remove(&id)
            && self.qemus[qemu].outgoing == Some(id)
        {
            self.close_streams(qemu);
            self.qemus[qemu].outgoing = None;
            self.qemus[qemu].channels.clear();
        }
        if let Some(qemu) = self.target_qemu(host, id).filter(|ix| self.qemus[*ix].outgoing.is_none()) {
            self.close_streams(qemu);
        }
    }

    // ---- life and death ----

    /// The agent's process begins.
    pub(crate) fn restart(&mut self, host: HostIx) {
        if self.hosts[host].off || self.agents[host].manager.is_some() {
            return;
        }
        let epoch = Duration::from_nanos(self.rng.below(1000 * S));
        let now = epoch + Duration::from_nanos(self.now);
        let limits = self.hosts[host].limits;
        let manager = Manager::new(now, limits, self.hosts[host].disk.open());
        trace!(self, "h{host} begins with {} migrations", manager.summaries().len());
        let incarnation = self.agents[host].incarnation + 1;
        let ids: Vec<MigrationId> = manager.summaries().iter().map(|summary| summary.id).collect();
        // What was begun and never written down is nobody's; and what was thought not to be written may be.
        self.hosts[host].sources.retain(|id, _| ids.contains(id));
        for summary in manager.summaries().into_iter().filter(|summary| summary.role == Role::Source) {
            let vm = number(&summary.vm);
            let runs = (0..self.qemus.len())
                .find(|ix| self.qemus[*ix].vm == vm && self.qemus[*ix].host == host && self.qemus[*ix].runs());
            if let Some(qemu) = runs {
                self.hosts[host].sources.entry(summary.id).or_insert(qemu);
            }
        }
        self.agents[host] =
            SimAgent { incarnation, manager: Some(manager), epoch, took_up: !ids.is_empty(), ..SimAgent::default() };
        self.last_kill = self.now;
        self.listen_again(host);
        for id in ids {
            let delay = MS + self.rng.below(50 * MS);
            self.for_agent(host, delay, ForAgent::Query(id));
        }
        self.for_agent(host, 0, ForAgent::Look);
        self.perform(host);
    }

    /// The agent's process is killed; begun again after that time.
    pub(crate) fn crash(&mut self, host: HostIx, restart: Option<Time>) {
        if self.agents[host].manager.is_none() {
            return;
        }
        trace!(self, "h{host} is killed");
        if let Some(records) = self.agents[host].writes.front().cloned() {
            self.hosts[host].disk.tear(&records, &mut self.rng);
        }
        if self.plant == Some(Plant::ForgottenJournal) {
            self.hosts[host].disk.forget(2);
        }
        let incarnation = self.agents[host].incarnation;
        self.agents[host] = SimAgent { incarnation, ..SimAgent::default() };
        self.last_kill = self.now;
        self.drop_sessions(host);
        if let Some(after) = restart {
            self.after(after, Do::Restart(host));
        }
    }

    pub(crate) fn pause(&mut self, host: HostIx) {
        self.agents[host].paused += 1;
        self.pause_sessions(host, true);
    }

    pub(crate) fn resume(&mut self, host: HostIx) {
        self.agents[host].paused -= 1;
        self.pause_sessions(host, false);
        if self.agents[host].paused == 0 {
            let incarnation = self.agents[host].incarnation;
            for what in std::mem::take(&mut self.agents[host].deferred) {
                self.after(0, Do::Agent(host, incarnation, what));
            }
        }
    }

    // ---- people ----

    /// Somebody wants a VM moved, once that is possible.
    pub(crate) fn wish(&mut self, ix: usize) {
        let Wish { vm, to, priority, cancel_after, done, tries, .. } = self.wishes[ix].clone();
        if done {
            if let (Some(id), Some(host)) = (self.wishes[ix].id, self.wishes[ix].from) {
                self.cancel(host, id);
            }
            return;
        }
        let holder = self.vms[vm].holder;
        let from = self.qemus[holder].host;
        let possible = self.qemus[holder].alive
            && self.qemus[holder].state == State::Running
            && self.agents[from].manager.is_some()
            && self.agents[from].paused == 0
            && from != to;
        let id = MigrationId(self.rng.next());
        let new = NewMigration {
            id,
            vm: format!("v{vm}"),
            peer: name(to),
            priority,
            offer: "a definition".into(),
            deadline: None,
        };
        let agent = &mut self.agents[from];
        let now = agent.epoch + Duration::from_nanos(self.now);
        if possible && agent.manager.as_mut().is_some_and(|manager| manager.start(now, new).is_ok()) {
            trace!(self, "somebody wants vm{vm} moved from h{from} to h{to}: {id}");
            self.hosts[from].sources.insert(id, holder);
            let wish = &mut self.wishes[ix];
            (wish.done, wish.id, wish.from) = (true, Some(id), Some(from));
            self.perform(from);
            if let Some(after) = cancel_after {
                self.after(after, Do::Wish(ix));
            }
        } else if tries == 0 || self.vms[vm].lost || from == to {
            self.wishes[ix].done = true;
        } else {
            self.wishes[ix].tries -= 1;
            self.after(200 * MS, Do::Wish(ix));
        }
    }

    pub(crate) fn cancel(&mut self, host: HostIx, id: MigrationId) {
        let agent = &mut self.agents[host];
        if agent.paused > 0 {
            return;
        }
        let now = agent.epoch + Duration::from_nanos(self.now);
        if agent.manager.as_mut().is_some_and(|manager| manager.cancel(now, id)) {
            trace!(self, "somebody cancels {id} at h{host}");
            self.perform(host);
        }
    }

    /// Somebody looks at alarms, and vouches for hosts that are off.
    pub(crate) fn operator(&mut self) {
        self.after(200 * MS, Do::Operator);
        for host in 0..self.agents.len() {
            let Some(manager) = &self.agents[host].manager else { continue };
            if self.agents[host].paused > 0 {
                continue;
            }
            for summary in manager.summaries() {
                if summary.in_doubt && self.hosts[number(&summary.peer)].off && self.rng.percent(40) {
                    trace!(self, "somebody vouches at h{host} that {} is off", summary.peer);
                    *self.stats.faults.entry("proof").or_default() += 1;
                    self.vms[number(&summary.vm)].vouched = true;
                    if let MigrationPhase::Source(_) = summary.stage {
                        self.input(host, Input::Source(summary.id, SourceInput::Proof));
                    } else {
                        self.input(host, Input::Target(summary.id, TargetInput::Proof));
                    }
                }
            }
        }
    }
}
