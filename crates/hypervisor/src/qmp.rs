//! The QEMU Machine Protocol over a unix socket: greeting, capabilities, commands with matched answers, events.
//!
//! <https://www.qemu.org/docs/master/interop/qmp-spec.html>

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, socket};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::monitor::{Events, Monitor, MonitorEvent};

/// The longest answer that is read. QEMU's own limit for what it reads is 64 MiB; its longest answer
/// (`query-qmp-schema`) is about 200 KiB.
pub const LINE_BYTES_MAX: usize = 4 << 20;
/// Events kept until someone asks; when more come, the oldest are dropped.
pub const EVENTS_MAX: usize = 1024;
/// How long a command may take if nothing else is said. Commands are quick, but QEMU's main loop may be
/// held up by a switchover, and the host by other guests.
pub const COMMAND_DEADLINE: Duration = Duration::from_secs(20);

/// What can go wrong between here and QEMU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// The socket cannot be reached.
    #[error("connecting to the QMP socket {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The connection broke.
    #[error("talking to QEMU")]
    Io(#[source] io::Error),
    /// QEMU closed the connection: it ended, or another client took its place.
    #[error("QEMU closed the QMP connection")]
    Closed,
    /// No answer in time.
    #[error("QEMU did not answer {what} within {} ms", after.as_millis())]
    Timeout {
        /// What was asked.
        what: String,
        /// The time it had.
        after: Duration,
    },
    /// An answer longer than [`LINE_BYTES_MAX`].
    #[error("QEMU sent a line of more than {LINE_BYTES_MAX} bytes; is this a QMP socket?")]
    TooLong,
    /// Something that is not QMP.
    #[error("not QMP: {reason}: {excerpt}; is this a QMP socket?")]
    Malformed {
        /// What is wrong.
        reason: String,
        /// Its beginning.
        excerpt: String,
    },
    /// QEMU says no.
    #[error("{command}: {description}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's error class: `GenericError`, `CommandNotFound`, `DeviceNotFound`...
        class: String,
        /// QEMU's words.
        description: String,
    },
}

/// QEMU's version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QemuVersion {
    /// 10 of 10.0.2.
    pub major: u32,
    /// 0 of 10.0.2.
    pub minor: u32,
    /// 2 of 10.0.2.
    pub micro: u32,
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct QmpEvent {
    /// `STOP`, `RESUME`, `MIGRATION`, `SHUTDOWN`...
    pub name: String,
    /// What belongs to it; null if nothing does.
    pub data: Value,
    /// By QEMU's clock, since the epoch.
    pub time: Duration,
}

/// One line from QEMU.
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
    // `"return": null` is an answer; only its absence is not.
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

    /// The next line without its end, if one is complete.
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

/// The blocking client of one QMP socket: a [`Monitor`], and the events that arrived on it since it was connected.
#[derive(Debug)]
pub struct Qmp {
    monitor: Monitor,
    events: Events,
}

impl Qmp {
    /// Connects and negotiates, all within `deadline`. Waits for a socket that is not there yet.
    pub fn connect(path: &Path, deadline: Duration) -> Result<Self, QmpError> {
        connect(path, deadline, Self::negotiate)
    }

    /// Takes a connected socket: reads the greeting and leaves the negotiation mode, all within `deadline`.
    pub fn negotiate(stream: UnixStream, deadline: Duration) -> Result<Self, QmpError> {
        let (sink, events) = Events::new(EVENTS_MAX);
        Ok(Self { monitor: Monitor::open(stream, deadline, Some(Box::new(sink)))?, events })
    }

    /// The oldest event not yet taken, waiting up to `wait` for one.
    pub fn next_event(&mut self, wait: Duration) -> Result<Option<QmpEvent>, QmpError> {
        match self.events.next(wait) {
            Some(MonitorEvent::Event(event)) => Ok(Some(event)),
            Some(MonitorEvent::Closed) => Err(self.monitor.why_closed()),
            None => Ok(None),
        }
    }

    /// Events lost because nobody took them.
    pub fn events_dropped(&self) -> u64 {
        self.events.dropped()
    }
}

impl Deref for Qmp {
    type Target = Monitor;

    fn deref(&self) -> &Monitor {
        &self.monitor
    }
}

/// Connects to `path`, waiting for a socket that is not there yet, and gives what `negotiate` makes of it; all within `deadline`.
pub(crate) fn connect<T>(
    path: &Path,
    deadline: Duration,
    negotiate: impl FnOnce(UnixStream, Duration) -> Result<T, QmpError>,
) -> Result<T, QmpError> {
    let end = Instant::now() + deadline;
    loop {
        match connect_within(path, end.saturating_duration_since(Instant::now())) {
            Ok(stream) => return negotiate(stream, end.saturating_duration_since(Instant::now())),
            Err(error) if would_block(&error) => {
                return Err(QmpError::Timeout { what: "with a connection".into(), after: deadline });
            }
            Err(source) if Instant::now() >= end => return Err(QmpError::Connect { path: path.into(), source }),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(source) => return Err(QmpError::Connect { path: path.into(), source }),
        }
    }
}

/// Connects to a unix socket within `deadline`. Error: [`io::ErrorKind::WouldBlock`] if nobody took the connection by then.
///
/// The standard library's connect has no deadline: it sleeps for as long as the listener's queue is full (`unix_stream_connect` of the
/// kernel's net/unix/af_unix.c), which in a QEMU that has not come to its main loop is after two connections.
pub fn connect_within(path: &Path, deadline: Duration) -> io::Result<UnixStream> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let stream = UnixStream::from(socket);
    // A timeout of zero would mean none.
    stream.set_write_timeout(Some(deadline.max(Duration::from_millis(1))))?;
    nix::sys::socket::connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    stream.set_write_timeout(None)?;
    Ok(stream)
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

    /// The next message, or none if `end` comes first. Without `end`: until the socket is shut down.
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

/// Time until `end`, if any is left (a timeout of zero would mean none).
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
    use std::io::{BufRead, Write};

    const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian"}, "capabilities": ["oob"]}}"#;

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
                r#"{"timestamp": {"seconds": -1, "microseconds": -1}, "event": "MIGRATION", "data": {"status": "setup"}}"#,
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
            let wanted: Vec<_> = whole.split_terminator('\n').map(|l| l.strip_suffix('\r').unwrap_or(l).as_bytes().to_vec()).collect();
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

    /// A QEMU that says `greeting`, then for each line it reads the next of `answers`, with `$` for the id it was given.
    fn fake(greeting: &str, answers: &[&str]) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let greeting = greeting.to_owned();
        let answers: Vec<String> = answers.iter().map(|answer| answer.to_string()).collect();
        std::thread::spawn(move || {
            let mut out = theirs.try_clone().unwrap();
            writeln!(out, "{greeting}").unwrap();
            let mut requests = io::BufReader::new(theirs).lines();
            for answer in answers {
                let Some(Ok(request)) = requests.next() else { return };
                let id = serde_json::from_str::<Value>(&request).unwrap()["id"].to_string();
                writeln!(out, "{}", answer.replace('$', &id)).unwrap();
            }
            // Keep the connection until the client goes.
            while let Some(Ok(_)) = requests.next() {}
        });
        ours
    }

    const OK: &str = r#"{"return": {}, "id": $}"#;
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn answers_are_matched_and_events_kept() {
        let answers = [
            OK,
            "{\"event\": \"STOP\"}\n{\"return\": {\"a\": 1}, \"id\": $}",
            r#"{"error": {"class": "C", "desc": "d"}, "id": $}"#,
        ];
        let mut qmp = Qmp::negotiate(fake(GREETING, &answers), SECOND).unwrap();
        assert_eq!(qmp.version().to_string(), "7.2.22");
        assert_eq!(qmp.query("one").unwrap(), json!({"a": 1}));
        assert_eq!(qmp.next_event(Duration::ZERO).unwrap().unwrap().name, "STOP");
        let refused = qmp.query("two").unwrap_err();
        assert!(matches!(&refused, QmpError::Refused { command, .. } if command == "two"), "{refused:?}");
        assert_eq!(qmp.next_event(Duration::from_millis(20)).unwrap(), None);
    }

    #[test]
    fn an_event_may_come_before_the_greeting() {
        let mut qmp = Qmp::negotiate(fake(&format!("{{\"event\": \"RESUME\"}}\n{GREETING}"), &[OK]), SECOND).unwrap();
        assert_eq!(qmp.next_event(SECOND).unwrap().unwrap().name, "RESUME");
    }

    #[test]
    fn answers_to_who_was_connected_before_are_nobodys() {
        let before = format!("{{\"return\": {{}}, \"id\": 1}}\n{GREETING}\n{{\"return\": \"old\", \"id\": 1}}");
        let qmp = Qmp::negotiate(fake(&before, &[OK, "{\"return\": \"own\", \"id\": $}"]), SECOND).unwrap();
        assert_eq!(qmp.query("next").unwrap(), json!("own"));
        let complete = r#"{"error": {"class": "CommandNotFound", "desc": "negotiation is already complete"}, "id": $}"#;
        let qmp = Qmp::negotiate(fake(GREETING, &[complete, "{\"return\": 1, \"id\": $}"]), SECOND).unwrap();
        assert_eq!(qmp.query("next").unwrap(), json!(1));
    }

    #[test]
    fn a_late_answer_is_not_taken_for_another() {
        let answers = [OK, "", "{\"return\": \"late\", \"id\": 2}\n{\"return\": \"right\", \"id\": $}"];
        let qmp = Qmp::negotiate(fake(GREETING, &answers), SECOND).unwrap();
        let timeout = qmp.execute_within("slow", Value::Null, Duration::from_millis(30)).unwrap_err();
        assert_eq!(timeout.to_string(), "QEMU did not answer slow within 30 ms");
        assert_eq!(qmp.query("next").unwrap(), json!("right"));
    }

    #[test]
    fn bad_peers_give_clear_errors() {
        let wrong = r#"{"return": {}, "id": 9223372036854775807}"#;
        for (greeting, answers, said) in [
            ("220 mail ESMTP", &[][..], "is this a QMP socket?"),
            (r#"{"return": {}}"#, &[], "did not answer with a greeting"),
            (GREETING, &[wrong], "an answer to nothing that was asked"),
            (GREETING, &["garbage"], "is this a QMP socket?"),
            (GREETING, &[], "did not answer qmp_capabilities"),
            ("", &[], "did not answer with a greeting"),
        ] {
            let error = Qmp::negotiate(fake(greeting, answers), Duration::from_millis(100)).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(matches!(Qmp::negotiate(ours, SECOND), Err(QmpError::Closed)));
    }

    #[test]
    fn events_are_bounded() {
        let flood = format!("{}{OK}", "{\"event\": \"E\"}\n".repeat(EVENTS_MAX + 5));
        let mut qmp = Qmp::negotiate(fake(GREETING, &[OK, &flood]), SECOND).unwrap();
        qmp.query("one").unwrap();
        assert_eq!(qmp.events_dropped(), 5);
        let kept = std::iter::from_fn(|| qmp.next_event(Duration::ZERO).unwrap()).count();
        assert_eq!(kept, EVENTS_MAX);
    }

    #[test]
    fn a_missing_socket_is_waited_for_and_then_named() {
        let error = Qmp::connect(Path::new("/nonexistent/qmp"), Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.to_string(), "connecting to the QMP socket /nonexistent/qmp");
    }
}
