//! What a step does.

use skein_handover::{
    Intent, Outcome, Report, SourceInput, SourcePhase, SourceRecord, TargetHandover, TargetInput, TargetPhase,
    TargetRecord,
};

use super::faults::Budget;
use super::state::{Agent, Rails, SourceQemu, TargetQemu, World};
use super::step::{
    End::{self, Source as S, Target as T},
    Step,
};

impl World {
    /// Returns the world after a step. `None`: the step makes no difference.
    pub fn after(&self, step: Step) -> Option<World> {
        let mut next = self.clone();
        next.take(step)?;
        next.note();
        (next != *self).then_some(next)
    }

    /// Takes a step, if the step is possible.
    pub fn go(&mut self, step: Step) {
        if let Some(next) = self.after(step) {
            *self = next;
        }
    }

    fn take(&mut self, step: Step) -> Option<()> {
        match step {
            Step::Intent(intent) => self.heed(intent)?,
            Step::Report(report) => self.tell_source(SourceInput::Report(report))?,
            Step::Contact(end, contact) => {
                self.tell(end, SourceInput::Contact(contact), TargetInput::Contact(contact))?;
                self.disturbed |= !contact;
            }
            Step::SourceGuest => self.ask_source_guest()?,
            Step::TargetGuest(guest) => self.ask_target_guest(guest)?,
            Step::MigrationFailed => self.tell_migration_failed()?,
            Step::Converged => {
                matches!(self.source_qemu, SourceQemu::Migrating).then_some(())?;
                self.tell_source(SourceInput::Converged)?;
            }
            Step::Switch => {
                self.tell_source(SourceInput::Switch)?;
                self.switched = true;
            }
            Step::HoldOver => {
                self.tell_source(SourceInput::HoldOver)?;
                self.disturbed = true;
            }
            Step::Elapsed(end, wait) => {
                self.tell(end, SourceInput::Elapsed(wait), TargetInput::Elapsed(wait))?;
                self.disturbed = true;
            }
            Step::Cancel(end) => {
                self.tell(end, SourceInput::Cancel, TargetInput::Cancel)?;
                self.disturbed = true;
            }
            Step::Proof(end) => {
                self.proved[end as usize] = true;
                self.tell(end, SourceInput::Proof, TargetInput::Proof)?;
            }
            Step::SourceWrites(record) => {
                self.source_writes.is_none().then_some(())?;
                self.source_writes = Some(record);
            }
            Step::TargetWrites(record) => {
                self.target_writes.is_none().then_some(())?;
                self.target_writes = Some(record);
            }
            Step::SourceWritten(record, write) => self.source_written(record, write)?,
            Step::TargetWritten(record, write) => self.target_written(record, write)?,
            Step::SourceOrders(order) => self.order_source(order)?,
            Step::TargetOrders(order) => self.order_target(order)?,
            Step::SourceOrder(order) => self.carry_out_source(order)?,
            Step::CancelStops => self.cancel_stops(),
            Step::TargetOrder(order) => self.carry_out_target(order)?,
            Step::CannotRun => self.refuse_continue()?,
            Step::Halts => self.halt()?,
            Step::GuestChanged => {
                matches!(self.source_qemu, SourceQemu::Halted | SourceQemu::HaltedMigrating).then_some(())?;
                self.tell_source(SourceInput::GuestChanged)?;
            }
            Step::MigrationGoesOn => self.migration_goes_on()?,
            Step::MigrationFails => self.migration_fails()?,
            Step::Loaded => {
                (self.all_sent && self.target_qemu == TargetQemu::Waiting).then_some(())?;
                self.fence()?;
                self.target_qemu = TargetQemu::Loaded;
            }
            Step::LateWrite => {
                matches!(self.rails, Rails::Open | Rails::Left).then_some(())?;
                self.written_late |= matches!(self.target_qemu, TargetQemu::Loaded | TargetQemu::Running);
            }
            Step::RailsEnd => {
                (self.rails == Rails::Left).then_some(())?;
                self.rails = Rails::Ended;
            }
            Step::IncomingFails => self.incoming_fails()?,
            Step::NextMigration => self.migrate_again()?,
            Step::QemuEnds(end) => {
                self.spend(|budget| &mut budget.kills[end as usize])?;
                self.end_qemu(end)?;
            }
            Step::Crash(end) => {
                self.spend(|budget| &mut budget.crashes[end as usize])?;
                self.crash(end);
            }
            Step::CrashAfterWriting(end) => self.crash_after_writing(end)?,
            Step::CrashWhileRefusing => self.crash_while_refusing()?,
            Step::Restart(end) => self.restart(end)?,
            Step::HostOff(end) => self.host_off(end)?,
            Step::HostOn(S) => self.source_on = true,
            Step::HostOn(T) => self.target_on = true,
            Step::Err => self.err()?,
        }
        Some(())
    }

    /// Hands an intent to the target.
    fn heed(&mut self, intent: Intent) -> Option<()> {
        match &mut self.target {
            Agent::Down => return None,
            Agent::Busy(target) => target.handle(TargetInput::Intent(intent)),
            // The migration was settled before.
            Agent::Idle if intent == Intent::Settle => self.reports |= 1 << Report::Settled as u16,
            Agent::Idle => {
                let mut target = TargetHandover::new();
                target.handle(TargetInput::Intent(intent));
                self.watched = true;
                self.target = Agent::Busy(target);
            }
        }
        Some(())
    }

    /// Does what follows by itself: messages count as sent, outcomes as announced, and what is settled is forgotten, on
    /// disk, too.
    fn note(&mut self) {
        if let Some(source) = self.source.machine() {
            let outcome = source.outcome();
            self.intents |= source.wants().intent.map_or(0, |intent| 1 << intent as u8);
            // After a crash a source may also announce that the guest has ended since. A proof may reverse the outcome
            // either way.
            self.changed_its_mind |= self.said_moved && outcome == Some(Outcome::CalledOff) && !self.proved[0];
            self.changed_its_mind |= self.said_kept && outcome == Some(Outcome::Moved) && self.proved == [false; 2];
            self.changed_its_mind |= outcome == Some(Outcome::Ended) && self.running() > 0;
            self.said_moved |= outcome == Some(Outcome::Moved);
            self.said_kept |= outcome == Some(Outcome::CalledOff);
            if source.phase() == SourcePhase::Done {
                self.source = Agent::Idle;
            }
        }
        if let Some(target) = self.target.machine() {
            // Reports below `Ready` have no effect on the source.
            let report = target.wants().report.filter(|report| *report >= Report::Ready);
            self.reports |= report.map_or(0, |report| 1 << report as u16);
            if target.phase() == TargetPhase::Done {
                self.target = Agent::Idle;
            }
        }
        if self.source_disk == Some(SourceRecord::Settled) && self.source == Agent::Idle {
            self.source_disk = None;
        }
        if self.target_disk == Some(TargetRecord::Settled) && self.target == Agent::Idle {
            self.target_disk = None;
            self.moved_in |= self.target_qemu == TargetQemu::Running;
            if self.target_qemu != TargetQemu::Waiting && self.target_qemu != TargetQemu::Loaded {
                self.target_qemu = TargetQemu::Absent;
            }
            self.came_late = true;
            // What was sent was sent to the QEMU that was there.
            self.all_sent = false;
        }
    }

    /// Takes a fault out of the budget. `None`: there is none left.
    pub(super) fn spend(&mut self, of: impl Fn(&mut Budget) -> &mut u8) -> Option<()> {
        let left = of(&mut self.budget);
        *left = left.checked_sub(1)?;
        self.disturbed = true;
        Some(())
    }

    /// Gives an input to one end. `None`: its agent is down or does not know the migration.
    fn tell(&mut self, end: End, source: SourceInput, target: TargetInput) -> Option<()> {
        match end {
            S => self.tell_source(source),
            T => self.tell_target(target),
        }
    }

    pub(super) fn tell_source(&mut self, input: SourceInput) -> Option<()> {
        match &mut self.source {
            Agent::Busy(source) => source.handle(input),
            _ => return None,
        }
        Some(())
    }

    pub(super) fn tell_target(&mut self, input: TargetInput) -> Option<()> {
        match &mut self.target {
            Agent::Busy(target) => target.handle(input),
            _ => return None,
        }
        Some(())
    }
}
