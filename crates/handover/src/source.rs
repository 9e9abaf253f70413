//! The source's machine.

use serde::{Deserialize, Serialize};

use crate::words::{FailureReason, Intent, Report, Wait};

/// Where the source stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourcePhase {
    /// The migration is being written down.
    Begin,
    /// The target's QEMU is started.
    Prepare,
    /// Pages are copied while the guest runs.
    Precopy,
    /// The guest is stopped; the rest is copied.
    Switchover,
    /// The guest is the target's, once that is on disk. **From here on the source never resumes by itself.**
    Grant,
    /// The target has it: this end's QEMU ends.
    Release,
    /// Called off: the guest goes on here.
    Keep,
    /// Nothing is left to do.
    Done,
}

/// What the source's disk says, in this order; `Grant` may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SourceRecord {
    /// There is a migration: after a crash the target is to be told that it is off.
    Begin,
    /// The target may run the guest.
    Grant,
    /// It is this end's, unless the target ran it all the same, by a proof.
    Keep,
    /// The target runs it.
    Release,
    /// The target will not ask again.
    Settled,
}

/// The source's QEMU, by its own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceGuest {
    /// Not asked yet.
    Unknown,
    /// The guest runs; no migration is under way.
    Running,
    /// The guest runs and is copied.
    Migrating,
    /// The guest is stopped before the switchover, and QEMU waits for `migrate-continue`.
    PreSwitchover,
    /// The guest is stopped, the rest is copied.
    Device,
    /// All is copied; QEMU does not resume by itself any more.
    Completed,
    /// The guest is stopped by a migration that is over.
    Stopped,
    /// The guest stands still, by itself or by somebody's will, and no migration is under way. What made it stand still
    /// is not this machine's to undo: it stays as it is.
    Halted,
    /// The process has ended.
    Gone,
}

/// What happens to a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceInput {
    /// The target says where it stands.
    Report(Report),
    /// The QEMU says how it is.
    Guest(SourceGuest),
    /// The QEMU says that the migration failed or was cancelled.
    MigrationFailed,
    /// The guest was stopped, or is another than the target's QEMU was started for.
    GuestChanged,
    /// This record is on disk.
    Written(SourceRecord),
    /// This record may or may not be on disk.
    WriteFailed(SourceRecord),
    /// Whether the target can be reached.
    Contact(bool),
    /// This wait is over.
    Elapsed(Wait),
    /// Somebody wants it called off.
    Cancel,
    /// One of the two agents cannot read what the other one says.
    NotUnderstood,
    /// Somebody vouches that the target's host is off.
    Proof,
}

/// What the source's QEMU is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SourceOrder {
    /// Start to migrate (`migrate`).
    Migrate,
    /// Go on to the switchover (`migrate-continue`).
    Continue,
    /// Stop migrating (`migrate_cancel`).
    CancelMigration,
    /// Run the guest (`cont`).
    Resume,
    /// End.
    Quit,
}

/// What a source wants done. Each stands until something changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourceWants {
    /// This on disk.
    pub write: Option<SourceRecord>,
    /// This told to the target.
    pub intent: Option<Intent>,
    /// This done by QEMU.
    pub order: Option<SourceOrder>,
    /// To be told when this has lasted too long.
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

/// Whether something is left to be done for the guest at this end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    UnderWay,
    Over,
}

/// The source of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceHandover {
    phase: SourcePhase,
    /// The last record that is on disk.
    written: Option<SourceRecord>,
    guest: SourceGuest,
    report: Option<Report>,
    contact: bool,
    why: Option<FailureReason>,
    /// The QEMU once said that all is copied: what the target has is the guest as it stopped.
    completed: bool,
    /// A grant may be on disk or on its way: only the target's word counts.
    granted: bool,
    /// How it ended, once that is certain. The guest may be in the next migration then.
    over: Option<Outcome>,
    /// Another migration of the guest began after this one.
    followed: bool,
    /// The target was given time to confirm the end.
    waited: bool,
    in_doubt: bool,
}

impl SourceHandover {
    /// A migration that begins.
    pub fn new() -> SourceHandover {
        SourceHandover {
            phase: SourcePhase::Begin,
            written: None,
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

    /// A migration that was under way when the agent ended, from the last record on disk.
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

    /// The same of one that was followed by another migration of the guest, which was begun only when this one was
    /// over.
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
                // It was not sent, but may be found on disk after a crash, and be sent then. The guest goes on here
                // once that is ruled out, at either end.
                self.granted = true;
                self.why = Some(FailureReason::Journal);
                self.phase = SourcePhase::Keep;
            }
            // Still wanted: it is written again.
            SourceInput::WriteFailed(_) => {}
            SourceInput::Contact(contact) => {
                self.contact = contact;
            }
            SourceInput::Elapsed(wait) if self.wants().wait == Some(wait) => match wait {
                Wait::Abort => self.waited = true,
                Wait::Doubt => self.in_doubt = true,
                _ => {
                    self.call_off(FailureReason::Deadline);
                    // Where that is not this end's to say.
                    self.in_doubt = self.phase != SourcePhase::Keep;
                }
            },
            SourceInput::Elapsed(_) => {}
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
            // Its stream broke as this end's QEMU ended; the target was the first to say so.
            self.why = Some(FailureReason::QemuEnded);
        }
        self.in_doubt &= self.over.is_none() && self.wants().order != Some(SourceOrder::Resume);
    }

    /// The way of a migration: each phase, and what it needs to go on.
    fn run(&mut self) -> Option<SourcePhase> {
        use SourceGuest as Guest;
        self.look_for_failure();
        let (go_on, next) = match self.phase {
            SourcePhase::Begin if self.why.is_some() => (self.is_written(SourceRecord::Begin), SourcePhase::Keep),
            SourcePhase::Begin => (self.is_written(SourceRecord::Begin), SourcePhase::Prepare),
            SourcePhase::Prepare => (self.report >= Some(Report::Ready), SourcePhase::Precopy),
            SourcePhase::Precopy => (self.is_stopped_or_copied(), SourcePhase::Switchover),
            SourcePhase::Switchover => (self.completed && self.report == Some(Report::Completed), SourcePhase::Grant),
            SourcePhase::Grant => match self.report {
                Some(Report::Running) => (self.granted, SourcePhase::Release),
                Some(Report::Refused) => (self.granted, SourcePhase::Keep),
                // It was resumed before a crash, and that was not written down any more.
                _ => (self.guest == Guest::Running && !self.completed, SourcePhase::Keep),
            },
            // What ran there while nothing runs here was moved, however that came about.
            SourcePhase::Keep if self.ran_there() && self.is_left_here() => (true, SourcePhase::Release),
            SourcePhase::Release | SourcePhase::Keep => (self.is_written(SourceRecord::Settled), SourcePhase::Done),
            SourcePhase::Done => (false, SourcePhase::Done),
        };
        go_on.then_some(next)
    }

    /// What may be wanted in each phase.
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
                wants.order = (self.guest == SourceGuest::Running).then_some(SourceOrder::Migrate);
                wants.wait = Some(Wait::Precopy);
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
                // By a proof it may have gone on here after it had run there.
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

    /// Where it stands.
    pub fn phase(&self) -> SourcePhase {
        self.phase
    }

    /// Why it was called off, if it was.
    pub fn why(&self) -> Option<FailureReason> {
        self.why
    }

    /// The guest is paused, and this end can do nothing about it: an alarm.
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// How it ended, as soon as that is certain. What remains is tidying up.
    pub fn outcome(&self) -> Option<Outcome> {
        self.over
    }

    fn is_written(&self, record: SourceRecord) -> bool {
        self.written >= Some(record)
    }

    fn ran_there(&self) -> bool {
        self.report == Some(Report::Running) || self.written == Some(SourceRecord::Release)
    }

    /// The guest is gone here, or stopped and nothing resumes it: once `Keep` is on disk that may be under way.
    fn is_left_here(&self) -> bool {
        let is_stopped = matches!(self.guest, SourceGuest::Completed | SourceGuest::Stopped | SourceGuest::Halted);
        let is_left = self.guest == SourceGuest::Gone || (is_stopped && !self.is_written(SourceRecord::Keep));
        is_left && self.over.is_none()
    }

    /// While this agent did not run, somebody may have vouched for that to the target, which then ran the guest.
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
        if self.phase == SourcePhase::Switchover && !self.contact {
            self.call_off(FailureReason::ContactLost);
        }
    }

    /// Calls it off, where that is this end's to say.
    fn call_off(&mut self, why: FailureReason) {
        // The target alone has the guest: nothing can be kept here.
        let has_refused = self.report >= Some(Report::Refusing);
        let only_there = self.completed && self.guest == SourceGuest::Gone && !has_refused;
        if self.phase < SourcePhase::Grant && !only_there {
            self.why = Some(why);
            // First it has to be known what the disk says: of a beginning that is found there somebody must know the
            // end.
            if self.phase != SourcePhase::Begin {
                self.phase = SourcePhase::Keep;
            }
        }
    }

    /// The target's QEMU goes first, then the guest here goes on. A target that was never granted anything may be left
    /// behind when it cannot be reached: it never runs the guest. After a grant that was not sent, or not to a host
    /// that is on, it is this end's disk that says that it never will be.
    fn may_resume(&self) -> bool {
        match self.granted {
            true => self.is_called_off_there() || self.is_written(SourceRecord::Keep),
            false => self.is_called_off_there() || self.waited || !self.contact,
        }
    }

    fn order_to_keep(&self) -> Option<SourceOrder> {
        match self.guest {
            // What QEMU does now is another migration's.
            _ if self.over.is_some() => None,
            SourceGuest::Migrating | SourceGuest::PreSwitchover | SourceGuest::Device => {
                Some(SourceOrder::CancelMigration)
            }
            SourceGuest::Completed | SourceGuest::Stopped if self.may_resume() => Some(SourceOrder::Resume),
            _ => None,
        }
    }

    /// Returns what to write and what to tell the target in the last steps: how it ended is written, the target
    /// forgets, this end does.
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

    /// A guest that was moved and that the target has told to run.
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
        // Seen by how it is only, before anything was copied.
        let prepared = source(&[&begun[..2], &[Guest(Halted)]].concat());
        assert_eq!((prepared.phase(), prepared.why()), (SourcePhase::Keep, Some(FailureReason::GuestChanged)));
    }

    #[test]
    fn one_that_is_over_leaves_the_guest_to_the_next() {
        // It was kept, the target cannot be told, and the guest is moved elsewhere meanwhile.
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
        // Nor is the guest here ended, when the agent begins again and has not asked its QEMU yet.
        let source = fed(SourceHandover::recover(SourceRecord::Keep), &[report_input(Report::Running)]);
        assert_eq!((source.phase(), source.wants().order), (SourcePhase::Keep, None));
    }
}
