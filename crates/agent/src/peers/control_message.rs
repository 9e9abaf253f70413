//! Is what two agents say to each other: lines of JSON.
//!
//! Two versions of the protocol read each other's lines by these rules (docs/releases.md):
//!
//! - The first line of each end is [`ControlMessage::Hello`], whose fields stay. Both speak the newest version that
//!   both know, and say nothing that the version does not have.
//! - A field that is not known is passed over, but in an offer, which is done in full or refused.
//! - A message of a kind that is not known is passed over if its sender speaks a newer version, too.
//! - A question that is not known is answered with an error.
//! - What else cannot be read ends the session: the two agents do not understand each other.

use std::convert::Infallible;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skein_api::{LineError, parse_line, read_bytes_within};
use skein_handover::{Message, MigrationId};
use skein_inventory::Composition;
use skein_inventory::facts::{GuestFiles, HostFacts};
use skein_network::Interface;
use thiserror::Error;

use super::version::ControlVersions;
use crate::migrations::Offer;

/// Bounds a line: a large definition, or the facts of a host with thousands of VMs. Each session holds at most one
/// line.
pub const LINE_BYTES_MAX: u64 = 4 << 20;

/// A message of an agent to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlMessage {
    /// The first message of either end.
    Hello {
        /// The newest version that the agent speaks.
        version: u32,
        /// The oldest version that the agent speaks; `None`: the same.
        #[serde(default)]
        lowest: Option<u32>,
        /// The release of the program, for messages to people.
        release: String,
    },
    /// A message about the migrations between the two.
    Handover(Message<Value>),
    /// A fact about a migration between the two, for its log.
    Note {
        /// The migration.
        id: MigrationId,
        /// The fact in words.
        text: String,
    },
    /// The last message: a message of the other end cannot be read here.
    NotUnderstood,
    /// A question, whose number is new on this stream.
    Ask {
        /// The number by which the answer is known.
        number: u64,
        /// A [`Question`].
        question: Value,
    },
    /// An answer, or the reason why there is none.
    #[serde(rename = "tell")]
    Answer {
        /// The number of the question.
        number: u64,
        /// An [`Answer`].
        answer: Result<Value, String>,
    },
}

/// Names the kinds of [`ControlMessage`], as they are written.
const KINDS: [&str; 6] = ["hello", "handover", "note", "not-understood", "ask", "tell"];

/// A question of an agent to another. Nothing changes by a question, so it may be asked twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Which facts of the host does a check of a migration to the host need?
    HostFacts {
        /// The QEMU that is to run the guest; `None`: the host's own.
        qemu: Option<PathBuf>,
        /// The guest's files.
        files: GuestFiles,
    },
    /// What is the guest that this migration takes away composed of now? Its source compares with the same until the
    /// guest is stopped.
    Composition {
        /// The migration.
        migration: MigrationId,
    },
    /// Has a leader acknowledged a report of the host lately? A host without a leader asks others, before it feeds its
    /// watchdog (docs/failover.md). An agent of an older release answers with an error, which says nothing.
    Leader,
    /// Which network interfaces has the host?
    Network,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The answer to [`Question::HostFacts`].
    HostFacts(Box<HostFacts>),
    /// The answer to [`Question::Composition`].
    Composition(Box<Composition>),
    /// The answer to [`Question::Leader`].
    Leader {
        /// Whether a leader has.
        acknowledged: bool,
    },
    /// The answer to [`Question::Network`].
    Network(Vec<Interface>),
}

/// The error for a line that is too long.
#[derive(Debug, Error)]
#[error("a message to another agent would have {0} bytes; {LINE_BYTES_MAX} are possible")]
pub struct TooLong(usize);

/// A received line.
#[derive(Debug)]
pub(crate) enum Heard {
    Message(ControlMessage),
    /// The line is a message of another kind than this version knows.
    UnknownKind(LineError),
}

impl ControlMessage {
    /// Returns an agent's first message.
    pub fn hello(versions: ControlVersions) -> ControlMessage {
        let ControlVersions { lowest, highest } = versions;
        let release = env!("CARGO_PKG_VERSION").into();
        ControlMessage::Hello { version: highest, lowest: Some(lowest), release }
    }

    /// Returns a message about a migration.
    pub fn handover(message: &Message<Arc<Offer>>) -> ControlMessage {
        let Ok(message) = message.clone().try_map_offer(|offer| Ok::<_, Infallible>(offer.to_json()));
        ControlMessage::Handover(message)
    }

    /// Returns a question.
    pub fn ask(number: u64, question: &Question) -> ControlMessage {
        ControlMessage::Ask { number, question: to_value(question) }
    }

    /// Returns an answer, or the reason why there is none.
    pub fn answer(number: u64, answer: Result<Answer, String>) -> ControlMessage {
        ControlMessage::Answer { number, answer: answer.map(|answer| to_value(&answer)) }
    }

    /// Reads the next line.
    ///
    /// # Errors
    ///
    /// The stream ended, the line is too long, or is no message that this version knows.
    pub fn read(from: &mut impl BufRead) -> Result<ControlMessage, LineError> {
        match ControlMessage::hear(from)? {
            Heard::Message(message) => Ok(message),
            Heard::UnknownKind(error) => Err(error),
        }
    }

    /// Reads the next line, which may be of an unknown kind.
    pub(crate) fn hear(from: &mut impl BufRead) -> Result<Heard, LineError> {
        let line = read_bytes_within(from, LINE_BYTES_MAX)?;
        match parse_line(&line) {
            Ok(message) => Ok(Heard::Message(message)),
            Err(error) if kind(&line).is_some_and(|kind| !KINDS.contains(&kind.as_str())) => {
                Ok(Heard::UnknownKind(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the message as a line.
    ///
    /// # Errors
    ///
    /// The line would be too long.
    pub fn line(&self) -> Result<Vec<u8>, TooLong> {
        let mut line = serde_json::to_vec(self).expect("plain data always serialises");
        line.push(b'\n');
        if line.len() as u64 > LINE_BYTES_MAX { Err(TooLong(line.len())) } else { Ok(line) }
    }
}

fn to_value(plain: &impl Serialize) -> Value {
    serde_json::to_value(plain).expect("plain data always serialises")
}

/// Returns the kind that a line says: a name alone, or the only key of an object.
fn kind(line: &[u8]) -> Option<String> {
    match serde_json::from_slice(line).ok()? {
        Value::String(kind) => Some(kind),
        Value::Object(fields) if fields.len() == 1 => fields.keys().next().cloned(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, BufReader};

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::peers::CONTROL_VERSIONS;

    fn question() -> Question {
        Question::HostFacts {
            qemu: Some("/q".into()),
            files: GuestFiles { opened: vec!["/a\n".into()], ..GuestFiles::default() },
        }
    }

    fn all() -> [ControlMessage; 6] {
        let (detail, last_words) = (String::new(), String::new());
        let report = skein_handover::Report::Ready;
        let message = Message::Report { id: MigrationId(1), report, why: None, detail, last_words };
        [
            ControlMessage::hello(CONTROL_VERSIONS),
            ControlMessage::Handover(message),
            ControlMessage::Note { id: MigrationId(1), text: "x".into() },
            ControlMessage::NotUnderstood,
            ControlMessage::ask(1, &question()),
            ControlMessage::answer(1, Err("no\nway".into())),
        ]
    }

    #[test]
    fn what_is_said_is_read() {
        let lines: Vec<u8> = all().iter().flat_map(|message| message.line().unwrap()).collect();
        let mut lines = &lines[..];
        for message in all() {
            assert_eq!(ControlMessage::read(&mut lines).unwrap(), message);
        }
        assert!(matches!(ControlMessage::read(&mut lines), Err(LineError::Closed)));
    }

    #[test]
    fn each_kind_is_known_by_its_name() {
        let kinds = all().map(|message| kind(&message.line().unwrap()).unwrap());
        assert_eq!(kinds, KINDS);
    }

    #[test]
    fn what_a_newer_version_says_is_known_or_passed_over_or_an_error() {
        let hear = |line: Value| ControlMessage::hear(&mut format!("{line}\n").as_bytes());
        // The line has fields that are not known.
        let hello = json!({"hello": {"version": 9, "lowest": 8, "release": "0.9.0", "cluster": "x"}});
        assert!(matches!(hear(hello), Ok(Heard::Message(ControlMessage::Hello { version: 9, lowest: Some(8), .. }))));
        let report = json!({"handover": {"report": {
            "id": "0000000000000001", "report": "Ready", "why": null, "detail": "", "said": "", "since_ms": 3,
        }}});
        assert!(matches!(hear(report), Ok(Heard::Message(ControlMessage::Handover(_)))));
        // The kinds are not known.
        for unknown in [json!({"lease": {"until": 3}}), json!("goodbye"), json!({"handover-2": []})] {
            assert!(matches!(hear(unknown.clone()), Ok(Heard::UnknownKind(_))), "{unknown}");
        }
        // These lines are neither.
        for odd in [
            json!({"handover": {"report": {"id": "0000000000000001", "report": "Tomorrow"}}}),
            json!({"handover": {"plan": {"id": "0000000000000001"}}}),
            json!({"note": {}, "lease": {}}),
            json!({"ask": {"number": -1, "question": {}}}),
            json!([]),
            json!(7),
            json!({}),
        ] {
            assert!(matches!(hear(odd.clone()), Err(LineError::Malformed { .. })), "{odd}");
        }
    }

    #[test]
    fn lines_have_a_bound_at_either_end() {
        let long = ControlMessage::answer(1, Err("x".repeat(LINE_BYTES_MAX as usize)));
        assert!(long.line().is_err());
        let mut endless = BufReader::new(io::repeat(b' '));
        assert!(matches!(ControlMessage::read(&mut endless), Err(LineError::TooLong)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let mut bytes = &bytes[..];
            while !matches!(ControlMessage::read(&mut bytes), Err(LineError::Closed)) {}
        }

        #[test]
        fn damaged_lines_are_read_or_refused(at in 0usize..200, byte: u8, cut in 0usize..200) {
            let mut line = ControlMessage::ask(u64::MAX, &question()).line().unwrap();
            let len = line.len();
            line[at % len] = byte;
            line.truncate(len - cut % len);
            if let Ok(message) = ControlMessage::read(&mut &line[..]) {
                let again = message.line().unwrap();
                prop_assert_eq!(ControlMessage::read(&mut &again[..]).unwrap(), message);
            }
        }
    }
}
