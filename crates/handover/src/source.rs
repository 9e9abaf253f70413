//! The state machine of the source.

use serde::{Deserialize, Serialize};

use crate::words::{FailureReason, Intent, Report, Wait};

/// The phase of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourcePhase {
    /// The beginning of the migration is being written to disk.
    Begin,
    /// The target's QEMU is started.
    Prepare,
    /// Pages are copied while the guest runs.
    Precopy,
    /// The guest is held: it would switch within its downtime limit, and is kept fresh until somebody says so.
    Held,
    /// The guest is stopped; the rest of it is copied.
    Switchover,
    /// The guest is the target's, once that is on disk. **From here on the source never resumes the guest by itself.**
    Grant,
    /// The target has the guest: this end's QEMU ends.
    Release,
    /// The migration is called off: the guest goes on here.
    Keep,
    /// Nothing is left to do.
    Done,
}

/// The records on the source's disk, in this order. `Grant` may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SourceRecord {
    /// There is a migration. After a crash the target has to be told that it is off.
    Begin,
    /// The target may run the guest.
    Grant,
    /// The guest is this end's, unless the target ran it because of a proof.
    Keep,
    /// The target runs the guest.
    Release,
    /// The target will not ask again.
    Settled,
}

/// The state of the source's QEMU, as QEMU reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceGuest {
    /// QEMU was not asked yet.
    Unknown,
    /// The guest runs; no migration is under way.
    Running,
    /// The guest runs and is copied.
    Migrating,
    /// The guest is stopped before the switchover, and QEMU waits for `migrate-continue`.
    PreSwitchover,
    /// The guest is stopped, and the rest of it is copied.
    Device,
    /// The whole guest is copied; QEMU does not resume it by itself any more.
    Completed,
    /// The guest is stopped by a migration that is over.
    Stopped,
    /// The guest stands still, by itself or by somebody's will, and no migration is under way. The machine does not
    /// resume it, because a migration did not stop it.
    Halted,
    /// The process has ended.
    Gone,
}

/// Something that happened to a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceInput {
    /// The target reports where it stands.
    Report(Report),
    /// QEMU reports its state.
    Guest(SourceGuest),
    /// QEMU reports that the migration failed or was cancelled.
    MigrationFailed,
    /// The guest was stopped, or changed so that the target's QEMU no longer fits.
    GuestChanged,
    /// This record is on disk.
    Written(SourceRecord),
    /// This record may or may not be on disk.
    WriteFailed(SourceRecord),
    /// The target can be reached, or not.
    Contact(bool),
    /// This wait is over.
    Elapsed(Wait),
    /// The copy is as far as it has to be for a hold: the guest would switch within its downtime limit.
    Converged,
    /// The hold is over: the guest may switch. A person says so, or the window of the hold has opened.
    Switch,
    /// The hold is over, and nothing had the guest switch in time.
    HoldOver,
    /// A person wants the migration called off.
    Cancel,
    /// One of the two agents cannot read the other's messages.
    NotUnderstood,
    /// A person vouches that the target's host is off.
    Proof,
}

/// What the source's QEMU has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SourceOrder {
    /// Start to migrate (`migrate`). The hypervisor of a held migration does not go to the switchover by itself.
    Migrate,
    /// Let a migration that was held go to the switchover as any other.
    Switch,
    /// Go on to the switchover (`migrate-continue`).
    Continue,
    /// Stop migrating (`migrate_cancel`).
    CancelMigration,
    /// Run the guest (`cont`).
    Resume,
    /// End the process.
    Quit,
}

/// What a source wants. Each want stands until something changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourceWants {
    /// The record that has to be on disk.
    pub write: Option<SourceRecord>,
    /// The intent that has to be told to the target.
    pub intent: Option<Intent>,
    /// The order that QEMU has to carry out.
    pub order: Option<SourceOrder>,
    /// The wait after which the machine has to be told that it has lasted too long.
    pub wait: Option<Wait>,
}

/// How a migration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The guest runs on the target.
    Moved,
    /// The guest runs on the source.
    #[serde(rename = "kept")]
    CalledOff,
    /// The guest ended with the QEMU that ran it.
    Ended,
}

/// Whether something is left to do for the guest at this end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    UnderWay,
    Over,
}

/// Whether the guest may go to the switchover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Hold {
    /// The migration is not held.
    No,
    /// The migration is held, or is to be as soon as its copy has converged.
    Until(Freshness),
    /// The hold is over: the guest may switch.
    Over,
}

/// Whether the copy of a migration that is to be held has converged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Freshness {
    Converges,
    Converged,
}

/// The source of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceHandover {
    phase: SourcePhase,
    /// The last record that is on disk.
    written: Option<SourceRecord>,
    hold: Hold,
    guest: SourceGuest,
    report: Option<Report>,
    contact: bool,
    why: Option<FailureReason>,
    /// QEMU once reported that the whole guest is copied: what the target has is the guest as it stopped.
    completed: bool,
    /// A grant may be on disk or on its way: only the target's report counts from then on.
    granted: bool,
    /// How the migration ended, once that is certain. The guest may be in its next migration then.
    over: Option<Outcome>,
    /// Whether another migration of the guest began after this one.
    followed: bool,
    /// Whether the target was given time to confirm the end.
    waited: bool,
    in_doubt: bool,
}

impl SourceHandover {
    /// Returns the machine of a new migration.
    pub fn new() -> SourceHandover {
        SourceHandover {
            phase: SourcePhase::Begin,
            written: None,
            hold: Hold::No,
            guest: SourceGuest::Unknown,
            report: None,
            contact: true,
            why: None,
            completed: false,
            granted: false,
            over: None,
            followed: false,
            waited: false,
            in_doubt: false,
        }
    }

    /// Returns the machine of a new migration that is held. Nothing of a hold is on disk: a migration that was not
    /// granted is called off by an agent that starts again, held or not.
    pub fn held() -> SourceHandover {
        SourceHandover { hold: Hold::Until(Freshness::Converges), ..SourceHandover::new() }
    }

    /// Returns the machine of a migration that was under way when the agent ended, from the last record on disk.
    pub fn recover(written: SourceRecord) -> SourceHandover {
        let (phase, granted) = match written {
            SourceRecord::Begin => (SourcePhase::Keep, false),
            SourceRecord::Grant => (SourcePhase::Grant, true),
            SourceRecord::Release => (SourcePhase::Release, false),
            SourceRecord::Keep => (SourcePhase::Keep, false),
            SourceRecord::Settled => (SourcePhase::Done, false),
        };
        let why = (phase == SourcePhase::Keep).then_some(FailureReason::AgentRestarted);
        let over = (phase == SourcePhase::Release).then_some(Outcome::Moved);
        SourceHandover { phase, written: Some(written), granted, over, why, ..SourceHandover::new() }
    }

    /// As [`Self::recover`], for a migration after which another migration of the guest was begun. That one was begun
    /// only when this one was over.
    pub fn recover_followed(written: SourceRecord) -> SourceHandover {
        SourceHandover { followed: true, ..SourceHandover::recover(written) }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, input: SourceInput) {
        match input {
            SourceInput::Report(report) => self.report = self.report.max(Some(report)),
            SourceInput::Guest(guest) => {
                self.guest = guest;
                self.completed |= guest == SourceGuest::Completed;
            }
            SourceInput::MigrationFailed => self.call_off(FailureReason::MigrationFailed),
            SourceInput::GuestChanged => self.call_off(FailureReason::GuestChanged),
            SourceInput::Written(record) => {
                self.written = self.written.max(Some(record));
                self.granted |= record == SourceRecord::Grant;
            }
            SourceInput::WriteFailed(SourceRecord::Begin) if self.phase == SourcePhase::Begin => {
                self.why = Some(FailureReason::Journal);
                self.phase = SourcePhase::Done;
            }
            SourceInput::WriteFailed(SourceRecord::Grant) if self.phase == SourcePhase::Grant => {
                // The grant was not sent, but after a crash it may be found on disk, and be sent then. The guest goes
                // on here once that is ruled out, at either end.
                self.granted = true;
                self.why = Some(FailureReason::Journal);
                self.phase = SourcePhase::Keep;
            }
            // The record is still wanted, so it is written again.
            SourceInput::WriteFailed(_) => {}
            SourceInput::Contact(contact) => {
                self.contact = contact;
            }
            SourceInput::Elapsed(wait) if self.wants().wait == Some(wait) => match wait {
                Wait::Abort => self.waited = true,
                Wait::Hold => self.call_off(FailureReason::HoldOver),
                Wait::Doubt => self.in_doubt = true,
                _ => {
                    self.call_off(FailureReason::Deadline);
                    // In doubt if calling off is not this end's decision any more.
                    self.in_doubt = self.phase != SourcePhase::Keep;
                }
            },
            SourceInput::Elapsed(_) => {}
            SourceInput::Converged | SourceInput::Switch | SourceInput::HoldOver => self.handle_hold(input),
            SourceInput::Cancel => self.call_off(FailureReason::Cancelled),
            SourceInput::NotUnderstood => self.call_off(FailureReason::NotUnderstood),
            SourceInput::Proof if matches!(self.phase, SourcePhase::Grant | SourcePhase::Keep) => {
                self.granted |= self.phase == SourcePhase::Grant;
                self.why = Some(FailureReason::Proof);
                self.phase = SourcePhase::Keep;
            }
            SourceInput::Proof => {}
        }
        while let Some(next) = self.run() {
            self.phase = next;
        }
        self.over = self.over.or(match (self.phase, self.guest) {
            (SourcePhase::Release, _) => Some(Outcome::Moved),
            (SourcePhase::Keep, _) if self.followed => Some(Outcome::CalledOff),
            (SourcePhase::Keep | SourcePhase::Done, SourceGuest::Running) => Some(Outcome::CalledOff),
            (SourcePhase::Keep | SourcePhase::Done, SourceGuest::Halted) if self.may_resume() => {
                Some(Outcome::CalledOff)
            }
            (SourcePhase::Keep | SourcePhase::Done, SourceGuest::Gone) if !self.may_run_there() => Some(Outcome::Ended),
            _ => None,
        });
        if self.over == Some(Outcome::Ended) && self.why == Some(FailureReason::TargetRefused) {
            // The migration stream broke as this end's QEMU ended; the target only noticed first.
            self.why = Some(FailureReason::QemuEnded);
        }
        self.in_doubt &= self.over.is_none() && self.wants().order != Some(SourceOrder::Resume);
    }

    /// Takes in what happened to a hold. A hold that is over does not begin again.
    fn handle_hold(&mut self, input: SourceInput) {
        let converges = self.hold == Hold::Until(Freshness::Converges);
        match input {
            SourceInput::Converged if converges && self.phase == SourcePhase::Precopy => {
                self.hold = Hold::Until(Freshness::Converged);
            }
            SourceInput::Switch if self.is_to_be_held() => self.hold = Hold::Over,
            // A guest that is stopped for its switchover is moved.
            SourceInput::HoldOver if self.phase <= SourcePhase::Held => self.call_off(FailureReason::HoldOver),
            _ => {}
        }
    }

    /// Returns the next phase, if what the current phase needs has happened.
    fn run(&mut self) -> Option<SourcePhase> {
        use SourceGuest as Guest;
        self.look_for_failure();
        let (go_on, next) = match self.phase {
            SourcePhase::Begin if self.why.is_some() => (self.is_written(SourceRecord::Begin), SourcePhase::Keep),
            SourcePhase::Begin => (self.is_written(SourceRecord::Begin), SourcePhase::Prepare),
            SourcePhase::Prepare => (self.report >= Some(Report::Ready), SourcePhase::Precopy),
            SourcePhase::Precopy | SourcePhase::Held if self.is_stopped_or_copied() => (true, SourcePhase::Switchover),
            SourcePhase::Precopy => (self.hold == Hold::Until(Freshness::Converged), SourcePhase::Held),
            SourcePhase::Held => (self.hold == Hold::Over, SourcePhase::Precopy),
            SourcePhase::Switchover => (self.completed && self.report == Some(Report::Completed), SourcePhase::Grant),
            SourcePhase::Grant => match self.report {
                Some(Report::Running) => (self.granted, SourcePhase::Release),
                Some(Report::Refused) => (self.granted, SourcePhase::Keep),
                // The guest was resumed before a crash, and that was not written to disk.
                _ => (self.guest == Guest::Running && !self.completed, SourcePhase::Keep),
            },
            // If the guest ran at the target while nothing runs here, it was moved, however that came about.
            SourcePhase::Keep if self.ran_there() && self.is_left_here() => (true, SourcePhase::Release),
            SourcePhase::Release | SourcePhase::Keep => (self.is_written(SourceRecord::Settled), SourcePhase::Done),
            SourcePhase::Done => (false, SourcePhase::Done),
        };
        go_on.then_some(next)
    }

    /// Returns what the machine wants in its current phase.
    pub fn wants(&self) -> SourceWants {
        let mut wants = SourceWants::default();
        match self.phase {
            SourcePhase::Begin => wants.write = Some(SourceRecord::Begin),
            SourcePhase::Prepare => {
                wants.intent = Some(Intent::Prepare);
                wants.wait = (self.report != Some(Report::Queued)).then_some(Wait::Prepare);
            }
            SourcePhase::Precopy => {
                wants.intent = Some(Intent::Prepare);
                wants.order = match self.guest {
                    SourceGuest::Running => Some(SourceOrder::Migrate),
                    SourceGuest::Migrating if self.hold == Hold::Over => Some(SourceOrder::Switch),
                    _ => None,
                };
                wants.wait = Some(Wait::Precopy);
            }
            SourcePhase::Held => {
                wants.intent = Some(Intent::Prepare);
                wants.wait = Some(Wait::Hold);
            }
            SourcePhase::Switchover => {
                wants.intent = Some(Intent::Prepare);
                wants.order = (self.guest == SourceGuest::PreSwitchover).then_some(SourceOrder::Continue);
                wants.wait = (!self.in_doubt).then_some(Wait::Switchover);
            }
            SourcePhase::Grant if !self.is_written(SourceRecord::Grant) => wants.write = Some(SourceRecord::Grant),
            SourcePhase::Grant => {
                wants.intent = Some(Intent::Grant);
                wants.wait = (!self.in_doubt).then_some(Wait::Doubt);
            }
            SourcePhase::Release => {
                let ending = if self.guest == SourceGuest::Gone { Ending::Over } else { Ending::UnderWay };
                wants.order = (ending == Ending::UnderWay).then_some(SourceOrder::Quit);
                (wants.write, wants.intent) = self.last_steps(SourceRecord::Release, ending);
            }
            SourcePhase::Keep => {
                wants.order = self.order_to_keep();
                // Because of a proof the guest may have gone on here after it had run there.
                let ran_there_too = self.over.is_some() && self.report == Some(Report::Running);
                if self.is_called_off_there() || ran_there_too {
                    let ending = if self.outcome().is_some() { Ending::Over } else { Ending::UnderWay };
                    (wants.write, wants.intent) = self.last_steps(SourceRecord::Keep, ending);
                } else {
                    wants.write = (!self.is_written(SourceRecord::Keep)).then_some(SourceRecord::Keep);
                    wants.intent = Some(Intent::Abort);
                    let wait = if self.granted { Wait::Doubt } else { Wait::Abort };
                    wants.wait = (!self.in_doubt && !self.waited).then_some(wait);
                }
            }
            SourcePhase::Done => {}
        }
        wants
    }

    /// Returns the phase.
    pub fn phase(&self) -> SourcePhase {
        self.phase
    }

    /// Returns whether the migration is held, or is to be: the guest may not go to the switchover yet.
    pub fn is_to_be_held(&self) -> bool {
        matches!(self.hold, Hold::Until(_))
    }

    /// Returns why the migration was called off. `None`: it was not.
    pub fn why(&self) -> Option<FailureReason> {
        self.why
    }

    /// Takes in that a person called the migration off at the target. The channels that end with it may have been seen
    /// before the target's report.
    pub(crate) fn note_cancelled_there(&mut self) {
        if self.why == Some(FailureReason::MigrationFailed) {
            self.why = Some(FailureReason::TargetRefused);
        }
    }

    /// Returns whether the guest is paused and this end can do nothing about it: an alarm.
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Returns how the migration ended, as soon as that is certain. Only tidying up remains then.
    pub fn outcome(&self) -> Option<Outcome> {
        self.over
    }

    fn is_written(&self, record: SourceRecord) -> bool {
        self.written >= Some(record)
    }

    fn ran_there(&self) -> bool {
        self.report == Some(Report::Running) || self.written == Some(SourceRecord::Release)
    }

    /// Returns whether the guest is gone here, or is stopped and nothing resumes it. Once `Keep` is on disk, resuming
    /// may be under way.
    fn is_left_here(&self) -> bool {
        let is_stopped = matches!(self.guest, SourceGuest::Completed | SourceGuest::Stopped | SourceGuest::Halted);
        let is_left = self.guest == SourceGuest::Gone || (is_stopped && !self.is_written(SourceRecord::Keep));
        is_left && self.over.is_none()
    }

    /// Returns whether the target may run the guest because of a proof that a person gave while this agent did not run.
    fn may_run_there(&self) -> bool {
        self.why == Some(FailureReason::AgentRestarted) && !self.is_called_off_there()
    }

    fn is_called_off_there(&self) -> bool {
        matches!(self.report, Some(Report::Refused | Report::Settled))
    }

    fn is_stopped_or_copied(&self) -> bool {
        matches!(self.guest, SourceGuest::PreSwitchover | SourceGuest::Device | SourceGuest::Completed)
    }

    fn look_for_failure(&mut self) {
        let begun = SourcePhase::Prepare <= self.phase && self.phase <= SourcePhase::Switchover;
        if begun && self.report >= Some(Report::Refusing) {
            self.call_off(FailureReason::TargetRefused);
        }
        if begun && self.guest == SourceGuest::Gone {
            self.call_off(FailureReason::QemuEnded);
        }
        if begun && self.guest == SourceGuest::Halted {
            self.call_off(FailureReason::GuestChanged);
        }
        // Nobody has said that the guest may be moved.
        if begun && self.is_to_be_held() && self.is_stopped_or_copied() {
            self.call_off(FailureReason::NotHeld);
        }
        if self.phase == SourcePhase::Switchover && !self.contact {
            self.call_off(FailureReason::ContactLost);
        }
    }

    /// Calls the migration off, if that is this end's decision.
    fn call_off(&mut self, why: FailureReason) {
        // If only the target has the guest, nothing can be kept here.
        let has_refused = self.report >= Some(Report::Refusing);
        let only_there = self.completed && self.guest == SourceGuest::Gone && !has_refused;
        if self.phase < SourcePhase::Grant && !only_there {
            self.why = Some(why);
            // First it must be known what the disk says: if a beginning is found there, its end must be written, too.
            if self.phase != SourcePhase::Begin {
                self.phase = SourcePhase::Keep;
            }
        }
    }

    /// Returns whether the guest may go on here. The target's QEMU has to go first. A target that was never granted
    /// anything may be left behind when it cannot be reached, because it never runs the guest. After a grant that was
    /// not sent, or not to a host that is on, `Keep` on this end's disk says that the grant never will be sent.
    fn may_resume(&self) -> bool {
        match self.granted {
            true => self.is_called_off_there() || self.is_written(SourceRecord::Keep),
            false => self.is_called_off_there() || self.waited || !self.contact,
        }
    }

    fn order_to_keep(&self) -> Option<SourceOrder> {
        match self.guest {
            // What QEMU does now belongs to another migration.
            _ if self.over.is_some() => None,
            SourceGuest::Migrating | SourceGuest::PreSwitchover | SourceGuest::Device => {
                Some(SourceOrder::CancelMigration)
            }
            SourceGuest::Completed | SourceGuest::Stopped if self.may_resume() => Some(SourceOrder::Resume),
            _ => None,
        }
    }

    /// Returns what to write and what to tell the target in the last steps: the outcome is written, the target forgets
    /// the migration, then this end does.
    fn last_steps(&self, end: SourceRecord, ending: Ending) -> (Option<SourceRecord>, Option<Intent>) {
        match (self.report, ending) {
            _ if !self.is_written(end) => (Some(end), None),
            (Some(Report::Settled), Ending::Over) => (Some(SourceRecord::Settled), None),
            (_, Ending::Over) => (None, Some(Intent::Settle)),
            (_, Ending::UnderWay) => (None, None),
        }
    }
}

impl Default for SourceHandover {
    fn default() -> SourceHandover {
        SourceHandover::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(inputs: &[SourceInput]) -> SourceHandover {
        fed(SourceHandover::new(), inputs)
    }

    fn fed(mut source: SourceHandover, inputs: &[SourceInput]) -> SourceHandover {
        inputs.iter().for_each(|input| source.handle(*input));
        source
    }

    use SourceGuest::*;
    use SourceInput::{Cancel, Contact, Elapsed, Guest, Proof, Written};

    fn report_input(report: Report) -> SourceInput {
        SourceInput::Report(report)
    }

    /// Returns a source whose guest was moved, and which has granted it to the target.
    fn granted() -> SourceHandover {
        let all = [
            Guest(Running),
            Written(SourceRecord::Begin),
            report_input(Report::Ready),
            Guest(Migrating),
            Guest(PreSwitchover),
            Guest(Device),
            Guest(Completed),
            report_input(Report::Completed),
            Written(SourceRecord::Grant),
        ];
        source(&all)
    }

    #[test]
    fn what_was_moved_stays_moved_until_the_end() {
        let rest = [
            report_input(Report::Running),
            Written(SourceRecord::Release),
            Guest(Gone),
            report_input(Report::Settled),
            Written(SourceRecord::Settled),
        ];
        let source = fed(granted(), &rest);
        assert_eq!((source.phase(), source.outcome()), (SourcePhase::Done, Some(Outcome::Moved)));
    }

    /// Returns a source whose guest is held.
    fn held() -> SourceHandover {
        let all = [
            Guest(Running),
            Written(SourceRecord::Begin),
            report_input(Report::Ready),
            Guest(Migrating),
            SourceInput::Converged,
        ];
        fed(SourceHandover::held(), &all)
    }

    #[test]
    fn a_held_guest_switches_when_somebody_says_so_and_not_before() {
        let source = held();
        assert_eq!((source.phase(), source.wants().order), (SourcePhase::Held, None));
        assert_eq!(source.wants().wait, Some(Wait::Hold));
        let stopped = fed(source.clone(), &[Guest(PreSwitchover)]);
        assert_eq!((stopped.phase(), stopped.why()), (SourcePhase::Keep, Some(FailureReason::NotHeld)));
        let switched = fed(source, &[SourceInput::Switch]);
        assert_eq!((switched.phase(), switched.wants().order), (SourcePhase::Precopy, Some(SourceOrder::Switch)));
        assert_eq!(switched.wants().wait, Some(Wait::Precopy));
        // Twice, and whatever the copy says of itself.
        let again = fed(switched, &[SourceInput::Switch, SourceInput::Converged]);
        assert_eq!((again.phase(), again.wants().order), (SourcePhase::Precopy, Some(SourceOrder::Switch)));
        let stopped = fed(again, &[Guest(PreSwitchover)]);
        assert_eq!((stopped.phase(), stopped.wants().order), (SourcePhase::Switchover, Some(SourceOrder::Continue)));
        let late = fed(stopped, &[SourceInput::HoldOver]);
        assert_eq!(late.phase(), SourcePhase::Switchover, "a guest that is stopped is moved");
    }

    #[test]
    fn a_migration_that_is_switched_before_it_is_held_is_like_any_other() {
        let begun = fed(SourceHandover::held(), &[Guest(Running), SourceInput::Switch]);
        let all = [Written(SourceRecord::Begin), report_input(Report::Ready), Guest(Migrating), Guest(PreSwitchover)];
        assert_eq!(fed(begun, &all).phase(), SourcePhase::Switchover);
        let plain = source(&[Guest(Running), Written(SourceRecord::Begin), report_input(Report::Ready)]);
        let plain = fed(plain, &[Guest(Migrating), SourceInput::Converged, SourceInput::Switch]);
        assert_eq!((plain.phase(), plain.wants().order), (SourcePhase::Precopy, None));
    }

    #[test]
    fn every_hold_ends() {
        for (input, why) in [
            (Elapsed(Wait::Hold), FailureReason::HoldOver),
            (SourceInput::HoldOver, FailureReason::HoldOver),
            (Cancel, FailureReason::Cancelled),
            (report_input(Report::Refusing), FailureReason::TargetRefused),
            (SourceInput::MigrationFailed, FailureReason::MigrationFailed),
        ] {
            let source = fed(held(), &[input]);
            assert_eq!((source.phase(), source.why()), (SourcePhase::Keep, Some(why)), "{input:?}");
            let late = fed(source, &[SourceInput::Switch]);
            assert_eq!((late.phase(), late.why()), (SourcePhase::Keep, Some(why)), "a late word changes nothing");
        }
        // A hold outlives a loss of contact, as a copy does.
        assert_eq!(fed(held(), &[Contact(false)]).phase(), SourcePhase::Held);
        // What an agent that starts again finds is no hold.
        let back = fed(SourceHandover::recover(SourceRecord::Begin), &[SourceInput::Switch]);
        assert_eq!((back.phase(), back.why()), (SourcePhase::Keep, Some(FailureReason::AgentRestarted)));
    }

    #[test]
    fn a_guest_that_somebody_stopped_stays_stopped() {
        let begun = [Guest(Running), Written(SourceRecord::Begin), report_input(Report::Ready), Guest(Migrating)];
        let changed = source(&[&begun[..], &[SourceInput::GuestChanged]].concat());
        assert_eq!((changed.phase(), changed.why()), (SourcePhase::Keep, Some(FailureReason::GuestChanged)));
        assert_eq!(changed.wants().order, Some(SourceOrder::CancelMigration));
        let halted = fed(changed, &[Guest(Halted), Written(SourceRecord::Keep)]);
        assert_eq!(
            (halted.wants().order, halted.outcome()),
            (None, None),
            "the target may still be told that it is off"
        );
        let over = fed(halted, &[report_input(Report::Refused)]);
        assert_eq!((over.wants().order, over.outcome()), (None, Some(Outcome::CalledOff)));
        // Known only from the guest's state, before anything was copied.
        let prepared = source(&[&begun[..2], &[Guest(Halted)]].concat());
        assert_eq!((prepared.phase(), prepared.why()), (SourcePhase::Keep, Some(FailureReason::GuestChanged)));
    }

    #[test]
    fn one_that_is_over_leaves_the_guest_to_the_next() {
        // The guest was kept, the target cannot be told, and the guest is moved elsewhere meanwhile.
        let kept = [Guest(Running), Written(SourceRecord::Begin), Contact(false), Cancel];
        let source = source(&kept);
        assert_eq!(source.outcome(), Some(Outcome::CalledOff));
        for guest in [Migrating, PreSwitchover, Device, Completed, Stopped, Gone] {
            let source = fed(source.clone(), &[Guest(guest), Elapsed(Wait::Abort), report_input(Report::Refused)]);
            assert_eq!((source.wants().order, source.outcome()), (None, Some(Outcome::CalledOff)), "{guest:?}");
        }
        // The same after a crash.
        for written in [SourceRecord::Begin, SourceRecord::Grant, SourceRecord::Keep] {
            let rest = [Contact(false), Guest(Completed), report_input(Report::Refused), Written(SourceRecord::Keep)];
            assert_eq!(fed(SourceHandover::recover_followed(written), &rest).wants().order, None, "{written:?}");
        }
    }

    #[test]
    fn what_is_cancelled_while_it_is_written_down_is_ended_in_writing() {
        let source = source(&[Guest(Running), Cancel]);
        assert_eq!(source.wants().write, Some(SourceRecord::Begin));
        assert_eq!(fed(source.clone(), &[Written(SourceRecord::Begin)]).phase(), SourcePhase::Keep);
        let failed = fed(source, &[SourceInput::WriteFailed(SourceRecord::Begin)]);
        assert_eq!((failed.phase(), failed.outcome()), (SourcePhase::Done, Some(Outcome::CalledOff)));
    }

    #[test]
    fn a_guest_that_both_ends_lost_has_ended() {
        let all =
            [Guest(Running), Written(SourceRecord::Begin), report_input(Report::Ready), Guest(Completed), Guest(Gone)];
        let alone = source(&all);
        assert_eq!(fed(alone.clone(), &[Cancel]).phase(), SourcePhase::Switchover, "the target has it");
        let source = fed(alone, &[report_input(Report::Refused)]);
        assert_eq!((source.phase(), source.outcome()), (SourcePhase::Keep, Some(Outcome::Ended)));
    }

    #[test]
    fn a_guest_that_the_target_may_run_by_a_proof_has_not_ended() {
        let back = fed(SourceHandover::recover(SourceRecord::Begin), &[Guest(Gone)]);
        assert_eq!(back.outcome(), None);
        assert_eq!(fed(back.clone(), &[report_input(Report::Running)]).outcome(), Some(Outcome::Moved));
        assert_eq!(fed(back.clone(), &[report_input(Report::Refused)]).outcome(), Some(Outcome::Ended));
        assert_eq!(fed(back, &[Proof]).outcome(), Some(Outcome::Ended));
    }

    #[test]
    fn what_the_target_ran_by_a_proof_is_moved_in_writing() {
        let back = fed(SourceHandover::recover(SourceRecord::Keep), &[Guest(Gone), report_input(Report::Running)]);
        assert_eq!(back.wants().write, Some(SourceRecord::Release));
    }

    #[test]
    fn what_is_being_resumed_after_a_proof_is_not_ended_by_a_late_word() {
        let source = fed(granted(), &[Proof, Written(SourceRecord::Keep), report_input(Report::Running)]);
        assert_eq!((source.phase(), source.wants().order), (SourcePhase::Keep, Some(SourceOrder::Resume)));
    }

    #[test]
    fn a_source_in_doubt_waits_for_a_word_whatever_becomes_of_contact() {
        for contact in [vec![], vec![Contact(false)], vec![Contact(false), Contact(true)]] {
            let begun = fed(granted(), &[contact.clone(), vec![Elapsed(Wait::Doubt)], contact].concat());
            for rest in [vec![Cancel], vec![SourceInput::MigrationFailed], vec![Guest(Completed)], vec![Guest(Stopped)]]
            {
                let source = fed(begun.clone(), &rest);
                assert_eq!((source.phase(), source.wants().order), (SourcePhase::Grant, None), "{rest:?}");
                assert!(source.is_in_doubt());
            }
        }
    }

    #[test]
    fn a_source_that_can_resume_is_not_in_doubt() {
        let failed = fed(granted(), &[Elapsed(Wait::Doubt), Proof]);
        assert!(failed.is_in_doubt());
        let source = fed(failed, &[Written(SourceRecord::Keep)]);
        assert_eq!((source.is_in_doubt(), source.wants().order), (false, Some(SourceOrder::Resume)));
    }

    #[test]
    fn a_target_that_ran_it_and_came_back_is_settled_after_a_proof() {
        let rest = [Proof, Written(SourceRecord::Keep), Guest(Running), report_input(Report::Running)];
        let source = fed(granted(), &rest);
        assert_eq!((source.wants().intent, source.outcome()), (Some(Intent::Settle), Some(Outcome::CalledOff)));
        // Nor has the guest ended here when the agent starts again and has not asked its QEMU yet.
        let source = fed(SourceHandover::recover(SourceRecord::Keep), &[report_input(Report::Running)]);
        assert_eq!((source.phase(), source.wants().order), (SourcePhase::Keep, None));
    }
}
