//! What the checks ask of a state.

use skein_handover::{Outcome, SourceHandover, SourceOrder, SourcePhase, TargetHandover, TargetPhase};

use super::state::{Agent, SourceQemu, TargetQemu, World};

impl World {
    /// Returns whether another migration of the guest was begun.
    pub fn is_followed(&self) -> bool {
        self.followed
    }

    /// Returns at how many ends the guest runs.
    pub fn running(&self) -> usize {
        let at_target = self.target_qemu == TargetQemu::Running || self.moved_in;
        usize::from(self.source_runs()) + usize::from(at_target)
    }

    pub fn target_runs(&self) -> bool {
        self.target_qemu == TargetQemu::Running || self.moved_in
    }

    /// Returns whether the guest stands still at the source for another reason than a migration.
    pub fn is_halted(&self) -> bool {
        self.source_qemu == SourceQemu::Halted
    }

    pub fn rolled_back(&self) -> bool {
        self.rolled_back
    }

    pub fn is_written_late(&self) -> bool {
        self.written_late
    }

    pub fn keeps_its_word(&self) -> bool {
        !self.broke_word
    }

    pub fn is_of_one_mind(&self) -> bool {
        !self.changed_its_mind
    }

    /// Returns whether a QEMU did something that its agent does not know yet, and so cannot take into account.
    pub fn doubts_with_reason(&self) -> bool {
        let source_ok = self
            .source
            .machine()
            .filter(|source| source.is_in_doubt())
            .is_none_or(|source| !self.source_runs() && !matches!(source.wants().order, Some(SourceOrder::Resume)));
        let target_ok = self
            .target
            .machine()
            .filter(|target| target.is_in_doubt())
            .is_none_or(|target| matches!(target.phase(), TargetPhase::Completed | TargetPhase::Run));
        source_ok && target_ok
    }

    /// Returns whether a guest that is held goes to its switchover only once somebody has said so.
    pub fn holds(&self) -> bool {
        let goes = |source: &SourceHandover| {
            matches!(source.phase(), SourcePhase::Switchover | SourcePhase::Grant | SourcePhase::Release)
        };
        !self.budget.hold || self.switched || !self.source.machine().is_some_and(goes)
    }

    /// Returns whether the guest is held, and nobody has said yet that it may switch.
    pub fn is_held(&self) -> bool {
        self.source.machine().is_some_and(SourceHandover::is_to_be_held)
    }

    pub fn hosts_are_on(&self) -> bool {
        self.source_on && self.target_on
    }

    pub fn was_killed(&self) -> bool {
        self.killed
    }

    pub fn was_disturbed(&self) -> bool {
        self.disturbed
    }

    /// Returns whether the source's agent does not know the migration, and so has no session for it.
    pub fn source_is_over(&self) -> bool {
        self.source == Agent::Idle
    }

    /// Returns why something is left to do. `None`: the world is at rest.
    pub fn unrest(&self) -> Option<String> {
        let late = |target: &TargetHandover| {
            self.came_late && self.source == Agent::Idle && target.outcome() == Some(Outcome::CalledOff)
        };
        match (&self.source, &self.target) {
            (Agent::Down, _) | (_, Agent::Down) => Some("an agent is down".into()),
            (Agent::Busy(source), _) => Some(format!("the source still wants {:?}", source.wants())),
            (_, Agent::Busy(target)) if !late(target) => Some(format!("the target still wants {:?}", target.wants())),
            _ if !matches!(self.target_qemu, TargetQemu::Absent | TargetQemu::Gone) => {
                Some("a QEMU is left at the target".into())
            }
            _ => None,
        }
    }

    pub fn outcome(&self) -> Option<Outcome> {
        self.source.machine().and_then(SourceHandover::outcome)
    }
}
