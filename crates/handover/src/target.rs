//! The state machine of the target.

use serde::{Deserialize, Serialize};

use crate::source::Outcome;
use crate::words::{FailureReason, Intent, Report, Wait};

/// The phase of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetPhase {
    /// The beginning of the migration is being written to disk.
    Begin,
    /// The QEMU that is to take the guest starts.
    Prepare,
    /// QEMU waits for the guest, or receives it.
    Ready,
    /// QEMU has the whole guest, paused. The source decides whether the guest may run.
    Completed,
    /// The guest is this end's: it runs once that is on disk. **From here on the target alone decides.**
    Run,
    /// The guest runs, or ran and ended.
    Running,
    /// The migration is called off: QEMU ends, and never ran the guest.
    Refuse,
    /// Nothing is left to do.
    Done,
}

/// The records on the target's disk, in this order. `Run` may be left out, and may be followed by `Refused`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TargetRecord {
    /// There may be a QEMU that waits for a guest.
    Begin,
    /// The guest runs here.
    Run,
    /// The guest never ran here, and never will.
    Refused,
    /// The source will not ask again.
    Settled,
}

/// The state of the target's QEMU, as QEMU reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetGuest {
    /// QEMU was not asked yet.
    Unknown,
    /// There is no QEMU, and there was none.
    Absent,
    /// QEMU waits for the guest, or receives it.
    Waiting,
    /// QEMU has the whole guest, which is paused.
    Loaded,
    /// The guest runs.
    Running,
    /// QEMU could not take the guest.
    Failed,
    /// The process has ended, and the guest certainly never ran in it.
    GoneUnrun,
    /// The process has ended; the guest may have run in it.
    Gone,
}

/// Something that happened to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TargetInput {
    /// The source says what it wants.
    Intent(Intent),
    /// QEMU reports its state.
    Guest(TargetGuest),
    /// `cont` is about to be sent to QEMU.
    Continuing,
    /// QEMU answered that it cannot run the guest, which is still paused.
    CannotRun,
    /// This record is on disk.
    Written(TargetRecord),
    /// This record may or may not be on disk.
    WriteFailed(TargetRecord),
    /// The source can be reached, or not.
    Contact(bool),
    /// This wait is over.
    Elapsed(Wait),
    /// A person wants the migration called off.
    Cancel,
    /// One of the two agents cannot read the other's messages.
    NotUnderstood,
    /// A person vouches that the source's host is off.
    Proof,
}

/// What the target's QEMU has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TargetOrder {
    /// Start, paused, and wait for the guest.
    Start,
    /// Run the guest (`cont`), after [`TargetInput::Continuing`].
    Continue,
    /// End the process at once (SIGKILL: what QEMU holds of disks must not be written).
    Kill,
}

/// What a target wants. Each want stands until something changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TargetWants {
    /// The record that has to be on disk.
    pub write: Option<TargetRecord>,
    /// The report for the source, sent whenever the source asks and whenever the report changes.
    pub report: Option<Report>,
    /// The order that QEMU has to carry out.
    pub order: Option<TargetOrder>,
    /// The wait after which the machine has to be told that it has lasted too long.
    pub wait: Option<Wait>,
}

/// The target of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetHandover {
    phase: TargetPhase,
    /// The last record that is on disk.
    written: Option<TargetRecord>,
    guest: TargetGuest,
    granted: bool,
    contact: bool,
    /// Whether the guest may have run.
    continued: bool,
    /// Whether the agent was restarted: the connections over which the guest came are broken then.
    restarted: bool,
    /// Whether the source will not ask again.
    settle: bool,
    why: Option<FailureReason>,
    in_doubt: bool,
}

impl TargetHandover {
    /// Returns the machine of a migration about which this end knows nothing. The first intent decides what becomes of
    /// it.
    pub fn new() -> TargetHandover {
        TargetHandover {
            phase: TargetPhase::Begin,
            written: None,
            guest: TargetGuest::Absent,
            granted: false,
            contact: true,
            continued: false,
            restarted: false,
            settle: false,
            why: None,
            in_doubt: false,
        }
    }

    /// Returns the machine of a migration that was under way when the agent ended, from the last record on disk.
    pub fn recover(written: TargetRecord) -> TargetHandover {
        let phase = match written {
            TargetRecord::Begin => TargetPhase::Ready,
            TargetRecord::Run => TargetPhase::Run,
            TargetRecord::Refused => TargetPhase::Refuse,
            TargetRecord::Settled => TargetPhase::Done,
        };
        TargetHandover {
            phase,
            written: Some(written),
            guest: TargetGuest::Unknown,
            continued: written == TargetRecord::Run,
            restarted: true,
            why: (written == TargetRecord::Refused).then_some(FailureReason::AgentRestarted),
            ..TargetHandover::new()
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, input: TargetInput) {
        match input {
            TargetInput::Intent(intent) => self.heed(intent),
            TargetInput::Guest(guest) => {
                self.guest = guest;
                self.continued |= guest == TargetGuest::Running;
            }
            TargetInput::Continuing => self.continued = true,
            // QEMU answered, and the guest is paused: so the guest never ran.
            TargetInput::CannotRun if self.phase == TargetPhase::Run => self.refuse(FailureReason::CannotRun),
            TargetInput::CannotRun => {}
            TargetInput::Written(record) => self.written = self.written.max(Some(record)),
            TargetInput::WriteFailed(TargetRecord::Begin) => self.refuse_before_grant(FailureReason::Journal),
            // The record is still wanted: it is written again, and nothing is promised before.
            TargetInput::WriteFailed(_) => {}
            TargetInput::Contact(contact) => self.contact = contact,
            TargetInput::Elapsed(wait) if self.wants().wait == Some(wait) => match wait {
                Wait::Doubt => self.in_doubt = true,
                _ => self.refuse_before_grant(FailureReason::Deadline),
            },
            TargetInput::Elapsed(_) => {}
            TargetInput::Cancel => self.refuse_before_grant(FailureReason::Cancelled),
            TargetInput::NotUnderstood => self.refuse_before_grant(FailureReason::NotUnderstood),
            TargetInput::Proof => self.granted |= self.phase == TargetPhase::Completed,
        }
        while let Some(next) = self.run() {
            self.phase = next;
            self.in_doubt = false;
        }
    }

    /// Returns the next phase, if what the current phase needs has happened.
    fn run(&mut self) -> Option<TargetPhase> {
        use TargetGuest as Guest;
        self.look_for_failure();
        let (go_on, next) = match self.phase {
            TargetPhase::Begin => (self.is_written(TargetRecord::Begin), TargetPhase::Prepare),
            TargetPhase::Prepare => (matches!(self.guest, Guest::Waiting | Guest::Loaded), TargetPhase::Ready),
            TargetPhase::Ready => (self.guest == Guest::Loaded, TargetPhase::Completed),
            TargetPhase::Completed => (self.granted, TargetPhase::Run),
            TargetPhase::Run => (self.has_run(), TargetPhase::Running),
            TargetPhase::Running | TargetPhase::Refuse => (self.is_written(TargetRecord::Settled), TargetPhase::Done),
            TargetPhase::Done => (false, TargetPhase::Done),
        };
        go_on.then_some(next)
    }

    /// Returns what the machine wants in its current phase.
    pub fn wants(&self) -> TargetWants {
        let mut wants = TargetWants::default();
        let want = |record| (!self.is_written(record)).then_some(record);
        match self.phase {
            TargetPhase::Begin => {
                wants.write = want(TargetRecord::Begin);
                wants.report = Some(Report::Preparing);
            }
            TargetPhase::Prepare => {
                wants.order = (self.guest == TargetGuest::Absent).then_some(TargetOrder::Start);
                wants.report = Some(Report::Preparing);
                wants.wait = Some(Wait::Prepare);
            }
            TargetPhase::Ready => {
                wants.report = (!self.restarted).then_some(Report::Ready);
                // A QEMU that an earlier agent left may never answer: it may hang since its start.
                let is_unheard = self.restarted && self.guest == TargetGuest::Unknown;
                wants.wait = (!self.contact || is_unheard).then_some(Wait::Abandoned);
            }
            TargetPhase::Completed => {
                wants.report = Some(Report::Completed);
                wants.wait = (!self.in_doubt).then_some(Wait::Doubt);
            }
            TargetPhase::Run => {
                wants.write = want(TargetRecord::Run);
                let may_run = wants.write.is_none() && self.guest == TargetGuest::Loaded;
                wants.order = may_run.then_some(TargetOrder::Continue);
                wants.report = Some(Report::Run);
                wants.wait = (!self.in_doubt).then_some(Wait::Doubt);
            }
            TargetPhase::Running => {
                wants.write = self.settle.then_some(TargetRecord::Settled);
                wants.report = Some(Report::Running);
            }
            TargetPhase::Refuse => {
                wants.write = want(TargetRecord::Refused);
                // Once `Run` is on disk, a QEMU that is gone would be taken for one that ran the guest.
                let may_kill = !self.is_gone() && self.written != Some(TargetRecord::Run);
                wants.order = may_kill.then_some(TargetOrder::Kill);
                let is_refused = self.is_gone() && wants.write.is_none();
                wants.report = Some(if is_refused { Report::Refused } else { Report::Refusing });
                wants.write = wants.write.or((is_refused && self.settle).then_some(TargetRecord::Settled));
            }
            TargetPhase::Done => wants.report = Some(Report::Settled),
        }
        wants
    }

    /// Returns the phase.
    pub fn phase(&self) -> TargetPhase {
        self.phase
    }

    /// Returns why the migration was called off. `None`: it was not.
    pub fn why(&self) -> Option<FailureReason> {
        self.why
    }

    /// Returns whether the guest is paused and this end can do nothing about it: an alarm.
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Returns how the migration ended, as soon as that is certain. Only tidying up remains then.
    pub fn outcome(&self) -> Option<Outcome> {
        match self.phase {
            TargetPhase::Running => Some(Outcome::Moved),
            TargetPhase::Refuse if self.is_gone() => Some(Outcome::CalledOff),
            TargetPhase::Done if self.why.is_some() => Some(Outcome::CalledOff),
            TargetPhase::Done if self.written.is_some() => Some(Outcome::Moved),
            _ => None,
        }
    }

    fn heed(&mut self, intent: Intent) {
        match intent {
            Intent::Prepare => {}
            Intent::Abort => self.refuse_before_grant(FailureReason::Aborted),
            Intent::Grant => {
                self.granted = true;
                if self.phase < TargetPhase::Ready {
                    // Nothing of the guest is here, and nothing was before a crash.
                    self.refuse(FailureReason::QemuEnded);
                }
            }
            // This end does not know the migration: it was settled before.
            Intent::Settle if self.phase == TargetPhase::Begin => self.phase = TargetPhase::Done,
            // The migration is not begun again by a message that came late.
            Intent::Settle => {
                self.settle = true;
                self.refuse_before_grant(FailureReason::Aborted);
            }
        }
    }

    fn look_for_failure(&mut self) {
        use TargetGuest as Guest;
        let is_lost = matches!(self.guest, Guest::Failed | Guest::Gone | Guest::GoneUnrun);
        match self.phase {
            TargetPhase::Prepare | TargetPhase::Ready | TargetPhase::Completed if is_lost => {
                self.refuse(FailureReason::QemuEnded);
            }
            TargetPhase::Ready if self.restarted && self.guest == Guest::Waiting => {
                self.refuse(FailureReason::AgentRestarted)
            }
            TargetPhase::Run if self.guest == Guest::GoneUnrun || (is_lost && !self.continued) => {
                self.refuse(FailureReason::QemuEnded);
            }
            _ => {}
        }
    }

    fn refuse_before_grant(&mut self, why: FailureReason) {
        if self.phase < TargetPhase::Run {
            self.refuse(why);
        }
    }

    fn refuse(&mut self, why: FailureReason) {
        self.why = Some(why);
        self.phase = TargetPhase::Refuse;
        self.in_doubt = false;
    }

    fn has_run(&self) -> bool {
        self.guest == TargetGuest::Running || (self.continued && self.guest == TargetGuest::Gone)
    }

    fn is_gone(&self) -> bool {
        matches!(self.guest, TargetGuest::Absent | TargetGuest::Gone | TargetGuest::GoneUnrun)
    }

    fn is_written(&self, record: TargetRecord) -> bool {
        match record {
            // A later refusal takes `Run` back.
            TargetRecord::Run => self.written == Some(TargetRecord::Run),
            _ => self.written >= Some(record),
        }
    }
}

impl Default for TargetHandover {
    fn default() -> TargetHandover {
        TargetHandover::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TargetGuest::{Gone, Loaded, Waiting};
    use TargetInput::{Cancel, Elapsed, Guest, Written};

    fn target(inputs: &[TargetInput]) -> TargetHandover {
        let mut target = TargetHandover::new();
        inputs.iter().for_each(|input| target.handle(*input));
        target
    }

    #[test]
    fn what_came_late_ends_when_the_source_is_asked() {
        let begun = [TargetInput::Intent(Intent::Prepare), Written(TargetRecord::Begin), Guest(Waiting)];
        let settled = [TargetInput::Intent(Intent::Settle), Guest(Gone), Written(TargetRecord::Refused)];
        let target = target(&[begun, settled].concat());
        assert_eq!((target.phase(), target.wants().write), (TargetPhase::Refuse, Some(TargetRecord::Settled)));
    }

    #[test]
    fn a_qemu_that_may_have_run_is_killed_only_once_it_is_refused_in_writing() {
        let begun = [TargetInput::Intent(Intent::Prepare), Written(TargetRecord::Begin), Guest(Loaded)];
        let granted = [TargetInput::Intent(Intent::Grant), Written(TargetRecord::Run), TargetInput::CannotRun];
        let mut target = target(&[begun, granted].concat());
        // A crash now would find `Run` on disk and the QEMU gone: the QEMU would be taken for one that ran the guest
        // and ended.
        assert_eq!((target.wants().write, target.wants().order), (Some(TargetRecord::Refused), None));
        target.handle(Written(TargetRecord::Refused));
        assert_eq!(target.wants().order, Some(TargetOrder::Kill));
    }

    #[test]
    fn a_qemu_that_never_answers_after_a_restart_is_given_up_unless_it_may_have_run() {
        let mut target = TargetHandover::recover(TargetRecord::Begin);
        target.handle(TargetInput::Contact(true));
        target.handle(Elapsed(Wait::Abandoned));
        target.handle(Written(TargetRecord::Refused));
        assert_eq!((target.phase(), target.wants().order), (TargetPhase::Refuse, Some(TargetOrder::Kill)));
        for heard in [Waiting, Loaded] {
            let mut target = TargetHandover::recover(TargetRecord::Begin);
            [TargetInput::Contact(true), Guest(heard)].into_iter().for_each(|input| target.handle(input));
            assert_ne!(target.wants().wait, Some(Wait::Abandoned), "{heard:?}");
        }
        let mut target = TargetHandover::recover(TargetRecord::Run);
        for wait in [Wait::Abandoned, Wait::Prepare, Wait::Doubt] {
            target.handle(Elapsed(wait));
            assert_eq!((target.phase(), target.wants().order), (TargetPhase::Run, None), "its guest may run");
        }
    }

    #[test]
    fn one_that_is_called_off_is_not_in_doubt() {
        let all = [Written(TargetRecord::Begin), Guest(Loaded), Elapsed(Wait::Doubt)];
        assert!(target(&all).is_in_doubt());
        assert!(!target(&[all.as_slice(), &[Cancel]].concat()).is_in_doubt());
    }
}
