//! Which steps are possible.

use skein_handover::{Intent, Report, SourceOrder, SourcePhase, TargetOrder, Wait};

use super::state::{Agent, World};
use super::step::{
    End::{Source as S, Target as T},
    Step, Write,
};

const INTENTS: [Intent; 4] = [Intent::Prepare, Intent::Abort, Intent::Grant, Intent::Settle];

const REPORTS: [Report; 7] = [
    Report::Ready,
    Report::Completed,
    Report::Run,
    Report::Refusing,
    Report::Running,
    Report::Refused,
    Report::Settled,
];

impl World {
    /// Adds all steps that may happen next.
    ///
    /// Unless in every detail (`Budget::fine`), steps that lead to no new case are left out:
    /// - A source that loses contact or is cancelled acts as a source whose wait is over; a target whose wait is over
    ///   acts as a target that is cancelled. One of each is enough.
    /// - Whether an end is in doubt changes only what it tells people. This is checked where the budget has `doubt`.
    /// - An order is carried out, and a record reaches the disk, in the step in which they are asked for.
    pub fn steps(&self, steps: &mut Vec<Step>) {
        let budget = &self.budget;
        let fine = budget.fine;
        let doubt = budget.doubt || fine;
        if self.target != Agent::Down {
            let sent = INTENTS.into_iter().filter(|intent| self.intents & (1 << *intent as u8) != 0);
            steps.extend(sent.map(Step::Intent));
        }
        if let Agent::Busy(source) = &self.source {
            let wants = source.wants();
            let sent = REPORTS.into_iter().filter(|report| self.reports & (1 << *report as u16) != 0);
            steps.extend(sent.map(Step::Report));
            steps.extend([Step::SourceGuest, Step::MigrationFailed, Step::GuestChanged]);
            if doubt {
                steps.extend([Step::Contact(S, true), Step::Contact(S, false)]);
            }
            if budget.hold {
                // Also before the copy has begun, twice, and after the migration was called off or restarted.
                steps.extend([Step::Converged, Step::Switch, Step::HoldOver]);
            }
            if fine || source.phase() == SourcePhase::Begin {
                steps.push(Step::Cancel(S));
            }
            steps.extend(wants.wait.filter(|wait| doubt || *wait != Wait::Doubt).map(|wait| Step::Elapsed(S, wait)));
            steps.extend((!self.target_on).then_some(Step::Proof(S)));
            steps.extend(wants.order.filter(|_| fine).map(Step::SourceOrders));
            let order = if fine { self.source_orders } else { wants.order };
            steps.extend(order.map(Step::SourceOrder));
            steps.extend((order == Some(SourceOrder::CancelMigration)).then_some(Step::CancelStops));
            if let Some(record) = self.source_write() {
                steps.push(Step::SourceWritten(record, Write::Done));
                if budget.writes[0] > 0 {
                    steps.push(Step::SourceWritten(record, Write::Failed));
                    steps.push(Step::SourceWritten(record, Write::FailedButThere));
                }
                steps.extend(fine.then_some(Step::SourceWrites(record)));
                steps.extend((budget.crashes[0] > 0).then_some(Step::CrashAfterWriting(S)));
            }
            steps.extend((budget.crashes[0] > 0).then_some(Step::Crash(S)));
        }
        if let Agent::Busy(target) = &self.target {
            let wants = target.wants();
            let (guest, better) = self.target_guest();
            steps.push(Step::TargetGuest(guest));
            steps.extend(better.map(Step::TargetGuest));
            steps.push(Step::Cancel(T));
            if doubt {
                steps.extend([Step::Contact(T, true), Step::Contact(T, false)]);
                steps.extend(wants.wait.map(|wait| Step::Elapsed(T, wait)));
            }
            steps.extend((!self.source_on).then_some(Step::Proof(T)));
            steps.extend(wants.order.filter(|_| fine).map(Step::TargetOrders));
            let order = if fine { self.target_orders } else { wants.order };
            steps.extend(order.map(Step::TargetOrder));
            let may_refuse = order == Some(TargetOrder::Continue) && budget.failures[1] > 0;
            steps.extend(may_refuse.then_some(Step::CannotRun));
            if let Some(record) = self.target_write() {
                steps.push(Step::TargetWritten(record, Write::Done));
                if budget.writes[1] > 0 {
                    steps.push(Step::TargetWritten(record, Write::Failed));
                    steps.push(Step::TargetWritten(record, Write::FailedButThere));
                }
                steps.extend(fine.then_some(Step::TargetWrites(record)));
                if budget.crashes[1] > 0 {
                    steps.extend([Step::CrashAfterWriting(T), Step::CrashWhileRefusing]);
                }
            }
            steps.extend((budget.crashes[1] > 0).then_some(Step::Crash(T)));
        }
        steps.push(Step::NextMigration);
        steps.extend((budget.failures[0] > 0).then_some(Step::Halts));
        steps.extend([Step::MigrationGoesOn, Step::MigrationFails, Step::Loaded, Step::IncomingFails]);
        if budget.rails {
            steps.extend([Step::LateWrite, Step::RailsEnd]);
        }
        for (end, on) in [(S, self.source_on), (T, self.target_on)] {
            let i = end as usize;
            steps.push(Step::Restart(end));
            steps.extend((budget.kills[i] > 0).then_some(Step::QemuEnds(end)));
            steps.extend((on && budget.offs[i] > 0).then_some(Step::HostOff(end)));
            steps.extend((!on).then_some(Step::HostOn(end)));
        }
        steps.extend(self.error.map(|_| Step::Err));
    }
}
