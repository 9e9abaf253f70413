//! Does what managers want, and tells them what happened.

use skein_handover::{
    FailureReason, MigrationEvent, MigrationId, MigrationLimits, MigrationPhase, MigrationSummary, Order, Outcome,
    Role, SourcePhase, TargetOrder, WriteResult,
};

use super::index::{HostIx, number};
use super::offer::{Action, Input, Manager};
use super::plant::Plant;
use super::qemu::{Qemu, State};
use super::schedule::{Do, ForAgent};
use super::state::{Cluster, trace};
use super::wish::Wish;
use crate::world::{MS, S, Time};

/// How often an agent looks at its sessions.
const LOOK_PERIOD: Time = 100 * MS;
/// How many actions a manager may want at once, besides some for each migration.
const ACTIONS_MAX: usize = 64;

impl Cluster {
    /// Schedules something for a host's agent, if the agent is still the same process then.
    pub(super) fn for_agent(&mut self, host: HostIx, delay: Time, what: ForAgent) {
        let incarnation = self.agents[host].incarnation;
        self.after(delay, Do::Agent(host, incarnation, what));
    }

    /// Lets something happen to an agent's process, once the process runs.
    pub(super) fn agent_acts(&mut self, host: HostIx, incarnation: u32, what: ForAgent) {
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
                let now = agent.clock(self.now);
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
                if self.agents[host].order_count(id) == orders {
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

    /// Tells the manager what happened, and does what the manager wants.
    pub(super) fn input(&mut self, host: HostIx, input: Input) {
        let agent = &mut self.agents[host];
        let now = agent.clock(self.now);
        if let Some(manager) = &mut agent.manager {
            manager.handle(now, input);
            self.perform(host);
        }
    }

    /// Does what the manager wants.
    pub(super) fn perform(&mut self, host: HostIx) {
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

    /// Checks that a manager has no more migrations at once than it may have.
    fn check_limits(&mut self, host: HostIx) {
        let MigrationLimits { outgoing, incoming, .. } = self.hosts[host].limits;
        let Some(manager) = self.agents[host].manager.as_ref().filter(|_| !self.agents[host].took_up) else { return };
        for (role, most) in [(Role::Source, outgoing), (Role::Target, incoming)] {
            let busy = |summary: &MigrationSummary| {
                summary.role == role && summary.stage != MigrationPhase::Queued && summary.outcome.is_none()
            };
            // A migration that is called off gives its slot back at once, and may end only later.
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
                    // The orders of one migration are performed one after the other.
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

    /// Checks a manager's event, and counts it.
    fn note_event(&mut self, host: HostIx, id: MigrationId, event: &MigrationEvent) {
        match event {
            MigrationEvent::InDoubt => {
                self.stats.in_doubt += 1;
                if self.plant == Some(Plant::DoubleResume) {
                    // The bug: waiting long enough is taken for a proof.
                    if let Some(qemu) = self.hosts[host].sources.get(&id).copied()
                        && self.qemus[qemu].alive
                        && self.qemus[qemu].state == State::Completed
                    {
                        self.guest_runs(qemu);
                    }
                }
            }
            MigrationEvent::Phase { stage: MigrationPhase::Source(SourcePhase::Switchover) } => {
                let unasked = |wish: &Wish| wish.id == Some(id) && wish.switch_after.is_some() && !wish.switched;
                if self.wishes.iter().any(unasked) {
                    self.fail(format!("h{host} has the guest of {id} switch, which is held"));
                }
            }
            MigrationEvent::CalledOff {
                why: FailureReason::Cancelled | FailureReason::Aborted | FailureReason::TargetRefused,
                ..
            } => {}
            MigrationEvent::CalledOff { why, detail } if self.calm => {
                self.fail(format!("in calm h{host} calls {id} off: {why:?} {detail}"));
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
                    // A guest that was kept, and whose agent and QEMU ended before that was settled.
                    Some(Outcome::CalledOff) if *outcome == Outcome::Ended => {}
                    // A guest that ran at the target, which could not be written before both ends were gone.
                    Some(Outcome::Moved) if *outcome == Outcome::Ended && self.is_lost(host, id) => {}
                    Some(before) => self.fail(format!("h{host} says that {id} {outcome:?}, after {before:?}")),
                }
                // Nobody can know whether a QEMU had run that was killed as it was told to run.
                let ran = |qemu: &Qemu| qemu.incoming == Some(id) && (qemu.ran || self.vms[qemu.vm].lost);
                let ran = self.qemus.iter().any(ran);
                if *outcome == Outcome::Moved && !ran {
                    self.fail(format!("h{host} says that {id} was moved, which never ran at the target"));
                }
            }
            _ => {}
        }
    }

    /// Returns whether the guest of a migration was killed.
    fn is_lost(&self, host: HostIx, id: MigrationId) -> bool {
        self.hosts[host].sources.get(&id).is_some_and(|qemu| self.vms[self.qemus[*qemu].vm].lost)
    }

    /// Begins the first write to the journal that waits.
    fn begin_write(&mut self, host: HostIx) {
        let most = if self.hosts[host].disk.slow > 0 { 2 * S } else { *self.rng.pick(&[MS, 5 * MS, 30 * MS]) };
        let takes = 100_000 + self.rng.below(most);
        self.for_agent(host, takes, ForAgent::Written);
    }

    /// Ends a write to the journal, and tells the manager how it ended.
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
}
