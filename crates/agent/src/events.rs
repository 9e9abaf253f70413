//! What happens to an agent's migrations, declared once: the name, the level, the line in the agent's log, and the
//! entry in the migration's event log. [`MigrationViews::emit`](crate::migrations::MigrationViews::emit) brings an
//! event to each of them. A metric is to count events by their names.

use skein_api::{LogEntry, MigrationEvent};
use skein_handover::MigrationId;
use tracing::Level;

/// Something that happens to a migration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AgentEvent {
    /// The handover went on.
    Handover(MigrationEvent),
    /// It is asked for like this.
    Offered {
        /// In words.
        offer: String,
    },
    /// It is another attempt.
    Retried {
        /// From 2 on.
        number: u32,
        /// Attempts that are allowed.
        of: u32,
        /// The migration before it.
        before: MigrationId,
    },
    /// Another attempt is to follow.
    AttemptFollows {
        /// Of that attempt.
        number: u32,
        /// Attempts that are allowed.
        of: u32,
    },
    /// An attempt was not begun.
    AttemptNotBegun {
        /// Of that attempt.
        number: u32,
        /// Attempts that are allowed.
        of: u32,
        /// The reason, in words.
        why: String,
        /// Whether another attempt is to follow.
        follows: bool,
    },
    /// Somebody says that the other host is off.
    OtherHostProvenOff,
    /// A guest of this host or the other one was killed, or the other end tells something else.
    Told {
        /// In words.
        text: String,
    },
    /// What the source finds out about a copy: how pages go, whether it converges, what was done for that.
    CopyNoted {
        /// In words.
        text: String,
    },
    /// A difference between the guest here and at the source, which does not matter to the guest.
    MinorDifference {
        /// In words.
        text: String,
    },
    /// What the target finds out about its QEMU; the source's agent is told, too.
    TargetNoted {
        /// In words.
        text: String,
    },
    /// It is called off since the agent ends.
    AgentStops,
    /// Its QEMU lives on for now.
    QemuNotKilled {
        /// The reason, as the system or the process says it.
        error: String,
    },
    /// Nobody works on it for now.
    NotWorkedOn {
        /// The reason, as the system says it.
        error: String,
    },
}

/// What is said of an event, and where.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Declaration {
    /// Its name, which stays.
    pub(crate) name: &'static str,
    pub(crate) level: Level,
    /// In the agent's log; none: nothing.
    pub(crate) line: Option<String>,
    /// In the migration's event log; none: nothing.
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
    /// Returns what is said of it.
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

    use skein_api::{FailureReason, MigrationPhase, Outcome, SourcePhase};

    use super::*;

    #[test]
    fn each_event_has_a_name_of_its_own_and_is_said_somewhere() {
        let (detail, why) = (String::new(), FailureReason::TargetRefused);
        let error = || "no room".to_owned();
        let handover = [
            MigrationEvent::Queued,
            MigrationEvent::Phase { stage: MigrationPhase::Source(SourcePhase::Precopy) },
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
