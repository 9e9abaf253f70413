//! Converts migrations' phases, outcomes, reasons and events.

use skein_api as api;
use skein_handover::{
    FailureReason, MigrationEvent, MigrationId, MigrationPhase, Outcome, Report, Role, SourcePhase, TargetPhase,
};

use super::{ToApi, same_variants};

same_variants!(Role => api::Role { Source, Target });
same_variants!(Outcome => api::Outcome { Moved, CalledOff, Ended });
same_variants!(SourcePhase => api::SourcePhase {
    Begin, Prepare, Precopy, Held, Switchover, Grant, Release, Keep, Done,
});
same_variants!(TargetPhase => api::TargetPhase { Begin, Prepare, Ready, Completed, Run, Running, Refuse, Done });
same_variants!(Report => api::Report {
    Queued, Preparing, Ready, Completed, Run, Refusing, Running, Refused, Settled,
});
same_variants!(FailureReason => api::FailureReason {
    Cancelled, Deadline, ContactLost, MigrationFailed, GuestChanged, TargetRefused, QemuEnded, CannotRun, Journal,
    AgentRestarted, Proof, Aborted, NotUnderstood, NotHeld, HoldOver, Other,
});

impl ToApi for MigrationId {
    type Api = api::MigrationId;

    fn to_api(&self) -> api::MigrationId {
        api::MigrationId(self.0)
    }
}

/// Returns the migration that the API's id names.
pub(crate) fn migration_id(id: api::MigrationId) -> MigrationId {
    MigrationId(id.0)
}

/// Returns the role that the API names.
pub(crate) fn role(role: api::Role) -> Role {
    match role {
        api::Role::Source => Role::Source,
        api::Role::Target => Role::Target,
    }
}

impl ToApi for MigrationPhase {
    type Api = api::MigrationPhase;

    fn to_api(&self) -> api::MigrationPhase {
        match self {
            MigrationPhase::Queued => api::MigrationPhase::Queued,
            MigrationPhase::Source(phase) => api::MigrationPhase::Source(phase.to_api()),
            MigrationPhase::Target(phase) => api::MigrationPhase::Target(phase.to_api()),
        }
    }
}

impl ToApi for MigrationEvent {
    type Api = api::MigrationEvent;

    fn to_api(&self) -> api::MigrationEvent {
        use api::MigrationEvent as Event;
        match self {
            MigrationEvent::Queued => Event::Queued,
            MigrationEvent::Phase { stage } => Event::Phase { stage: stage.to_api() },
            MigrationEvent::Reported { report, detail } => {
                Event::Reported { report: report.to_api(), detail: detail.clone() }
            }
            MigrationEvent::CalledOff { why, detail } => Event::CalledOff { why: why.to_api(), detail: detail.clone() },
            MigrationEvent::InDoubt => Event::InDoubt,
            MigrationEvent::Recovered => Event::Recovered,
            MigrationEvent::WriteFailed => Event::WriteFailed,
            MigrationEvent::Over { outcome } => Event::Over { outcome: outcome.to_api() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_reason_are_the_same_for_the_other_host_and_for_commands() {
        for why in [
            FailureReason::Cancelled,
            FailureReason::Deadline,
            FailureReason::ContactLost,
            FailureReason::MigrationFailed,
            FailureReason::GuestChanged,
            FailureReason::TargetRefused,
            FailureReason::QemuEnded,
            FailureReason::CannotRun,
            FailureReason::Journal,
            FailureReason::AgentRestarted,
            FailureReason::Proof,
            FailureReason::Aborted,
            FailureReason::NotUnderstood,
            FailureReason::NotHeld,
            FailureReason::HoldOver,
            FailureReason::Other,
        ] {
            assert_eq!(why.to_api().words(), why.words());
        }
    }

    #[test]
    fn an_id_is_written_as_between_agents() {
        let id = MigrationId(0x7f);
        assert_eq!(serde_json::to_string(&id.to_api()).unwrap(), serde_json::to_string(&id).unwrap());
    }
}
