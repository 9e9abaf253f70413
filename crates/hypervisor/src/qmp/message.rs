//! Reads the lines of a QMP socket: greeting, answers, events.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use skein_inventory::QemuVersion;

use crate::qmp::error::{LINE_BYTES_MAX, QmpError};

/// An event of QEMU.
#[derive(Debug, Clone, PartialEq)]
pub struct QmpEvent {
    /// The event's name: `STOP`, `RESUME`, `MIGRATION`, `SHUTDOWN`...
    pub name: String,
    /// The event's data; null if there is none.
    pub data: Value,
    /// The event's time by QEMU's clock, since the epoch.
    pub time: Duration,
}

/// A line from QEMU.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum QmpMessage {
    Greeting(QemuVersion),
    Return { id: Option<u64>, value: Value },
    Error { id: Option<u64>, class: String, description: String },
    Event(QmpEvent),
}

fn parse(line: &[u8]) -> Result<QmpMessage, QmpError> {
    #[derive(Deserialize)]
    struct Line {
        #[serde(rename = "QMP")]
        greeting: Option<Greeting>,
        #[serde(rename = "return", default, deserialize_with = "present")]
        value: Option<Value>,
        error: Option<Refusal>,
        event: Option<String>,
        #[serde(default)]
        data: Value,
        timestamp: Option<Timestamp>,
        id: Option<Value>,
    }
    #[derive(Deserialize)]
    struct Greeting {
        version: Versions,
    }
    #[derive(Deserialize)]
    struct Versions {
        qemu: QemuVersion,
    }
    #[derive(Deserialize)]
    struct Refusal {
        class: String,
        desc: String,
    }
    #[derive(Deserialize)]
    struct Timestamp {
        // QEMU writes -1 in both if its clock failed.
        seconds: i64,
        microseconds: i64,
    }
    // `"return": null` is an answer; a missing `return` is not.
    fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
        Value::deserialize(from).map(Some)
    }

    let malformed = |reason: String| QmpError::Malformed { reason, excerpt: excerpt(line) };
    let line: Line = serde_json::from_slice(line).map_err(|e| malformed(e.to_string()))?;
    let id = line.id.as_ref().and_then(Value::as_u64);
    match line {
        Line { value: Some(value), error: None, event: None, greeting: None, .. } => {
            Ok(QmpMessage::Return { id, value })
        }
        Line { error: Some(Refusal { class, desc }), value: None, event: None, greeting: None, .. } => {
            Ok(QmpMessage::Error { id, class, description: desc })
        }
        Line { event: Some(name), data, timestamp, value: None, error: None, greeting: None, .. } => {
            let time = timestamp.map_or(Duration::ZERO, |t| {
                Duration::from_secs(t.seconds.try_into().unwrap_or(0))
                    .saturating_add(Duration::from_micros(t.microseconds.try_into().unwrap_or(0)))
            });
            Ok(QmpMessage::Event(QmpEvent { name, data, time }))
        }
        Line { greeting: Some(greeting), value: None, error: None, event: None, .. } => {
            Ok(QmpMessage::Greeting(greeting.version.qemu))
        }
        _ => Err(malformed("neither one greeting, answer nor event".into())),
    }
}

pub(crate) fn excerpt(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(80)]);
    format!("{text:?}")
}

/// Cuts a stream of bytes into lines of bounded length.
#[derive(Debug, Default)]
struct Lines {
    bytes: VecDeque<u8>,
    /// How many bytes are known to hold no newline.
    searched: usize,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Returns the next line without its end, if a line is complete.
    fn next(&mut self) -> Result<Option<Vec<u8>>, QmpError> {
        let end = self.bytes.range(self.searched..).position(|&byte| byte == b'\n').map(|at| at + self.searched);
        if end.unwrap_or(self.bytes.len()) > LINE_BYTES_MAX {
            return Err(QmpError::TooLong);
        }
        let Some(end) = end else {
            self.searched = self.bytes.len();
            return Ok(None);
        };
        let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
        self.searched = 0;
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(Some(line))
    }
}

/// The messages of a socket, in order.
#[derive(Debug)]
pub(crate) struct Messages {
    stream: UnixStream,
    lines: Lines,
}

impl Messages {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, lines: Lines::default() }
    }

    /// Returns the next message, or `None` if `end` comes first. Without `end`: until the socket is shut down.
    pub(crate) fn next(&mut self, end: Option<Instant>) -> Result<Option<QmpMessage>, QmpError> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(line) = self.lines.next()? {
                if line.is_empty() {
                    continue;
                }
                return parse(&line).map(Some);
            }
            let wait = match end {
                None => None,
                Some(end) => match remaining(end) {
                    None => return Ok(None),
                    wait => wait,
                },
            };
            self.stream.set_read_timeout(wait).map_err(QmpError::Io)?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(QmpError::Closed),
                Ok(count) => self.lines.push(&buffer[..count]),
                Err(error) if would_block(&error) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(QmpError::Closed),
                Err(error) => return Err(QmpError::Io(error)),
            }
        }
    }
}

/// Returns the time until `end`, if any is left (a timeout of zero would mean none).
pub(crate) fn remaining(end: Instant) -> Option<Duration> {
    Some(end.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

pub(crate) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const GREETING: &str = concat!(
        r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian"}, "#,
        r#""capabilities": ["oob"]}}"#
    );

    #[test]
    fn messages() {
        let event = |name: &str, data, ms| {
            QmpMessage::Event(QmpEvent { name: name.into(), data, time: Duration::from_millis(ms) })
        };
        for (line, wanted) in [
            (GREETING, QmpMessage::Greeting(QemuVersion { major: 7, minor: 2, micro: 22 })),
            (r#"{"return": {}, "id": 4}"#, QmpMessage::Return { id: Some(4), value: json!({}) }),
            (r#"{"return": null, "id": 4}"#, QmpMessage::Return { id: Some(4), value: Value::Null }),
            (r#"{"return": [], "id": "x"}"#, QmpMessage::Return { id: None, value: json!([]) }),
            (
                r#"{"error": {"class": "GenericError", "desc": "no"}, "id": 1}"#,
                QmpMessage::Error { id: Some(1), class: "GenericError".into(), description: "no".into() },
            ),
            (
                r#"{"timestamp": {"seconds": 2, "microseconds": 5000}, "event": "STOP"}"#,
                event("STOP", Value::Null, 2005),
            ),
            (
                concat!(
                    r#"{"timestamp": {"seconds": -1, "microseconds": -1}, "#,
                    r#""event": "MIGRATION", "data": {"status": "setup"}}"#
                ),
                event("MIGRATION", json!({"status": "setup"}), 0),
            ),
        ] {
            assert_eq!(parse(line.as_bytes()).unwrap(), wanted, "{line}");
        }
    }

    #[test]
    fn not_messages() {
        for line in [
            "",
            "SSH-2.0-OpenSSH_9.2",
            "{}",
            "[]",
            "3",
            r#"{"return": {}, "error": {"class": "a", "desc": "b"}}"#,
            r#"{"error": {"class": "a"}}"#,
            r#"{"QMP": {"version": {"qemu": {"major": -1, "minor": 0, "micro": 0}}}}"#,
            r#"{"event": 5}"#,
            r#"{"event": "STOP""#,
        ] {
            assert!(matches!(parse(line.as_bytes()), Err(QmpError::Malformed { .. })), "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(line: Vec<u8>) {
            let _ = parse(&line);
        }

        /// However the stream is cut up, the lines are the same.
        #[test]
        fn lines_do_not_depend_on_reads(text in "[a\n\r]{0,60}", cuts in prop::collection::vec(1usize..9, 60)) {
            let mut lines = Lines::default();
            let (mut got, mut rest) = (Vec::new(), text.as_bytes());
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                lines.push(now);
                rest = later;
                while let Some(line) = lines.next().unwrap() {
                    got.push(line);
                }
            }
            let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
            let lines = whole.split_terminator('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
            let wanted: Vec<_> = lines.map(|line| line.as_bytes().to_vec()).collect();
            prop_assert_eq!(got, wanted);
        }
    }

    #[test]
    fn long_lines_are_refused() {
        for end in ["", "\n"] {
            let mut lines = Lines::default();
            lines.push(&vec![b'a'; LINE_BYTES_MAX + 1]);
            lines.push(end.as_bytes());
            assert!(matches!(lines.next(), Err(QmpError::TooLong)));
        }
    }
}
