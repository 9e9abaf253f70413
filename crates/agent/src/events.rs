//! Declares what happens to an agent's migrations, once: the name, the level, the line in the agent's log, and the
//! entry in the migration's event log. [`MigrationViews::emit`](crate::migrations::MigrationViews::emit) brings an
//! event to each of them, and to `MigrationTotals`, which counts events for metrics.

use skein_api::{LogEntry, MigrationEvent};
use skein_handover::MigrationId;
use tracing::Level;

/// An event of a migration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AgentEvent {
    /// The handover made a step.
    Handover(MigrationEvent),
    /// The migration was asked for, by this offer.
    Offered {
        /// The offer in words.
        offer: String,
    },
    /// The migration is another attempt.
    Retried {
        /// The attempt's number, from 2 on.
        number: u32,
        /// The attempts that are allowed.
        of: u32,
        /// The migration of the attempt before.
        before: MigrationId,
    },
    /// Another attempt is to follow.
    AttemptFollows {
        /// The number of that attempt.
        number: u32,
        /// The attempts that are allowed.
        of: u32,
    },
    /// A person has the copy begin again with other options.
    Restarts {
        /// What changes, in words.
        how: String,
    },
    /// An attempt was not begun.
    AttemptNotBegun {
        /// The number of that attempt.
        number: u32,
        /// The attempts that are allowed.
        of: u32,
        /// The reason, in words.
        why: String,
        /// Whether another attempt is to follow.
        follows: bool,
    },
    /// A person says that the other host is off.
    OtherHostProvenOff,
    /// A guest of this host or of the other host was killed, or the other end tells another fact.
    Told {
        /// The fact in words.
        text: String,
    },
    /// The source found a fact about a copy: how pages go, whether the copy converges, what was done for that.
    CopyNoted {
        /// The fact in words.
        text: String,
    },
    /// The guest here differs from the guest at the source in a way that does not matter to the guest.
    MinorDifference {
        /// The difference in words.
        text: String,
    },
    /// The target found a fact about its QEMU; the source's agent is told, too.
    TargetNoted {
        /// The fact in words.
        text: String,
    },
    /// A guest that is held, or is to be, may switch from now on.
    HoldEnds {
        /// Why it may.
        why: String,
    },
    /// The migration is called off because the agent ends.
    AgentStops,
    /// The migration's QEMU lives on for now.
    QemuNotKilled {
        /// The reason, as the system or the process says it.
        error: String,
    },
    /// No thread works on the migration for now.
    NotWorkedOn {
        /// The reason, as the system says it.
        error: String,
    },
}

/// The name of an event, and the texts in both logs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Declaration {
    /// The event's name, which stays.
    pub(crate) name: &'static str,
    pub(crate) level: Level,
    /// The line in the agent's log; `None`: no line.
    pub(crate) line: Option<String>,
    /// The entry in the migration's event log; `None`: no entry.
    pub(crate) entry: Option<LogEntry>,
}

impl Declaration {
    fn new(name: &'static str, level: Level) -> Declaration {
        Declaration { name, level, line: None, entry: None }
    }

    fn line(self, line: impl Into<String>) -> Declaration {
        Declaration { line: Some(line.into()), ..self }
    }

    fn note(self, text: impl Into<String>) -> Declaration {
        Declaration { entry: Some(LogEntry::Note { text: text.into() }), ..self }
    }
}

impl AgentEvent {
    /// Returns the event's declaration.
    pub(crate) fn declaration(&self) -> Declaration {
        let info = |name| Declaration::new(name, Level::INFO);
        let warn = |name| Declaration::new(name, Level::WARN);
        match self {
            AgentEvent::Handover(event) => {
                Declaration { entry: Some(LogEntry::Handover { event: event.clone() }), ..handover(event) }
            }
            AgentEvent::Offered { offer } => info("offered").note(offer),
            AgentEvent::Retried { number, of, before } => {
                info("retried").note(format!("attempt {number} of {of}, after migration {before}"))
            }
            AgentEvent::AttemptFollows { number, of } => {
                let text = format!("came to nothing; attempt {number} of {of} follows");
                info("attempt-follows").line(&text).note(&text)
            }
            AgentEvent::Restarts { how } => {
                let text = format!("somebody has it begin again: {how}");
                info("restarts").line(&text).note(&text)
            }
            AgentEvent::AttemptNotBegun { number, of, why, follows } => {
                let then = if *follows { "another one follows" } else { "no further attempt is made" };
                let text = format!("attempt {number} of {of} was not begun, {then}: {why}");
                info("attempt-not-begun").line(&text).note(&text)
            }
            AgentEvent::OtherHostProvenOff => {
                let text = "somebody vouches that the other host is off";
                warn("other-host-proven-off").line(text).note(text)
            }
            AgentEvent::Told { text } => info("told").note(text),
            AgentEvent::CopyNoted { text } => info("copy-noted").line(text).note(text),
            AgentEvent::MinorDifference { text } => info("minor-difference").note(text),
            AgentEvent::TargetNoted { text } => info("target-noted").note(text),
            AgentEvent::HoldEnds { why } => {
                let text = format!("the guest may switch: {why}");
                info("hold-ends").line(&text).note(&text)
            }
            AgentEvent::AgentStops => info("agent-stops").line("called off, as the agent stops"),
            AgentEvent::QemuNotKilled { error } => {
                warn("qemu-not-killed").line(format!("QEMU cannot be killed: {error}"))
            }
            AgentEvent::NotWorkedOn { error } => {
                warn("not-worked-on").line(format!("cannot be worked on now: {error}"))
            }
        }
    }
}

fn handover(event: &MigrationEvent) -> Declaration {
    let info = |name| Declaration::new(name, Level::INFO);
    match event {
        MigrationEvent::Queued => info("queued"),
        MigrationEvent::Phase { stage } => info("phase").line(format!("migration: {}", stage.words().1)),
        MigrationEvent::Reported { .. } => info("reported"),
        MigrationEvent::CalledOff { why, detail } if detail.is_empty() => {
            info("called-off").line(format!("called off: {}", why.words()))
        }
        MigrationEvent::CalledOff { why, detail } => {
            info("called-off").line(format!("called off: {}: {detail}", why.words()))
        }
        MigrationEvent::InDoubt => Declaration::new("in-doubt", Level::ERROR).line(
            "IN DOUBT: its guest is paused, and only the other host knows whether it may run: bring that host or the \
             network back, or see `skein migration resolve --help`",
        ),
        MigrationEvent::Recovered => info("recovered"),
        MigrationEvent::WriteFailed => info("write-failed"),
        MigrationEvent::Over { outcome } => info("over").line(format!("migration is over: {}", outcome.words())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use skein_api::{FailureReason, MigrationPhase, Outcome, Report, SourcePhase};

    use super::*;

    #[test]
    fn each_event_has_a_name_of_its_own_and_is_said_somewhere() {
        let (detail, why) = (String::new(), FailureReason::TargetRefused);
        let error = || "no room".to_owned();
        let handover = [
            MigrationEvent::Queued,
            MigrationEvent::Phase { stage: MigrationPhase::Source(SourcePhase::Precopy) },
            MigrationEvent::Reported { report: Report::Ready, detail: detail.clone() },
            MigrationEvent::CalledOff { why, detail: detail.clone() },
            MigrationEvent::InDoubt,
            MigrationEvent::Recovered,
            MigrationEvent::WriteFailed,
            MigrationEvent::Over { outcome: Outcome::Moved },
        ];
        let others = [
            AgentEvent::Offered { offer: "one stream".into() },
            AgentEvent::Retried { number: 2, of: 3, before: MigrationId(1) },
            AgentEvent::AttemptFollows { number: 2, of: 3 },
            AgentEvent::AttemptNotBegun { number: 2, of: 3, why: error(), follows: true },
            AgentEvent::OtherHostProvenOff,
            AgentEvent::Told { text: "the kernel killed guest db1".into() },
            AgentEvent::CopyNoted { text: "built on what hosta kept".into() },
            AgentEvent::MinorDifference { text: "not moved: the clock's drift".into() },
            AgentEvent::TargetNoted { text: "QEMU's last words: no room".into() },
            AgentEvent::HoldEnds { why: "somebody says so".into() },
            AgentEvent::Restarts { how: "its guest is held".into() },
            AgentEvent::AgentStops,
            AgentEvent::QemuNotKilled { error: error() },
            AgentEvent::NotWorkedOn { error: error() },
        ];
        let all: Vec<AgentEvent> = handover.into_iter().map(AgentEvent::Handover).chain(others).collect();
        let mut names = BTreeSet::new();
        for event in &all {
            let Declaration { name, line, entry, .. } = event.declaration();
            assert!(names.insert(name), "{name} is two events");
            assert!(line.is_some() || entry.is_some(), "{event:?}");
        }
        // Metrics count all of them.
        assert_eq!(names, skein_metrics::agent::EVENTS.iter().copied().collect());
    }

    #[test]
    fn a_reason_is_said_with_its_words() {
        let line = |detail: &str| {
            let (why, detail) = (FailureReason::TargetRefused, detail.to_owned());
            AgentEvent::Handover(MigrationEvent::CalledOff { why, detail }).declaration().line.unwrap()
        };
        let words = FailureReason::TargetRefused.words();
        assert_eq!(line(""), format!("called off: {words}"));
        assert_eq!(line("no room"), format!("called off: {words}: no room"));
        let doubt = AgentEvent::Handover(MigrationEvent::InDoubt).declaration();
        assert_eq!((doubt.level, doubt.entry.is_some()), (Level::ERROR, true));
    }
}
