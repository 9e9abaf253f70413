//! Is a QMP client for one thread: a [`Monitor`] with the events that arrived on it.

use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::qmp::connect::connect;
use crate::qmp::error::QmpError;
use crate::qmp::events::{Events, MonitorEvent};
use crate::qmp::message::QmpEvent;
use crate::qmp::monitor::Monitor;

/// Bounds the events that are kept until the caller asks; when more come, the oldest are dropped.
pub const EVENTS_MAX: usize = 1024;

/// The blocking client of one QMP socket: a [`Monitor`], and the events that arrived on it since it was connected.
#[derive(Debug)]
pub struct Qmp {
    monitor: Monitor,
    events: Events,
}

impl Qmp {
    /// Connects and negotiates, all within `deadline`. The call waits for a socket that is not there yet.
    pub fn connect(path: &Path, deadline: Duration) -> Result<Self, QmpError> {
        connect(path, deadline, Self::negotiate)
    }

    /// Takes a connected socket: reads the greeting and leaves the negotiation mode, all within `deadline`.
    pub fn negotiate(stream: UnixStream, deadline: Duration) -> Result<Self, QmpError> {
        let (sink, events) = Events::new(EVENTS_MAX);
        Ok(Self { monitor: Monitor::open(stream, deadline, Some(Box::new(sink)))?, events })
    }

    /// Returns the oldest event not yet taken, and waits up to `wait` for one.
    pub fn next_event(&mut self, wait: Duration) -> Result<Option<QmpEvent>, QmpError> {
        match self.events.next(wait) {
            Some(MonitorEvent::Event(event)) => Ok(Some(event)),
            Some(MonitorEvent::Closed) => Err(self.monitor.why_closed()),
            None => Ok(None),
        }
    }

    /// Returns how many events were lost because nobody took them.
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

#[cfg(test)]
mod tests {
    use std::io::{self, BufRead, Write};

    use serde_json::{Value, json};

    use super::*;

    const GREETING: &str = concat!(
        r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian"}, "#,
        r#""capabilities": ["oob"]}}"#
    );

    /// Returns a QEMU that has said `greeting`, and then says for each line that it reads the next of `answers`, with
    /// the line's id for `$`.
    fn fake(greeting: &str, answers: &[&str]) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut out = theirs.try_clone().unwrap();
        writeln!(out, "{greeting}").unwrap();
        let answers: Vec<String> = answers.iter().map(|answer| answer.to_string()).collect();
        std::thread::spawn(move || {
            let mut requests = io::BufReader::new(theirs).lines();
            for answer in answers {
                let Some(Ok(request)) = requests.next() else { return };
                let id = serde_json::from_str::<Value>(&request).unwrap()["id"].to_string();
                writeln!(out, "{}", answer.replace('$', &id)).unwrap();
            }
            // The connection stays until the client goes.
            while let Some(Ok(_)) = requests.next() {}
        });
        ours
    }

    const OK: &str = r#"{"return": {}, "id": $}"#;
    /// Bounds the wait for what comes at once, also on a busy machine.
    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn answers_are_matched_and_events_kept() {
        let answers = [
            OK,
            "{\"event\": \"STOP\"}\n{\"return\": {\"a\": 1}, \"id\": $}",
            r#"{"error": {"class": "C", "desc": "d"}, "id": $}"#,
        ];
        let mut qmp = Qmp::negotiate(fake(GREETING, &answers), SOON).unwrap();
        assert_eq!(qmp.version().to_string(), "7.2.22");
        assert_eq!(qmp.query("one").unwrap(), json!({"a": 1}));
        assert_eq!(qmp.next_event(Duration::ZERO).unwrap().unwrap().name, "STOP");
        let refused = qmp.query("two").unwrap_err();
        assert!(matches!(&refused, QmpError::Refused { command, .. } if command == "two"), "{refused:?}");
        assert_eq!(qmp.next_event(Duration::from_millis(20)).unwrap(), None);
    }

    #[test]
    fn an_event_may_come_before_the_greeting() {
        let mut qmp = Qmp::negotiate(fake(&format!("{{\"event\": \"RESUME\"}}\n{GREETING}"), &[OK]), SOON).unwrap();
        assert_eq!(qmp.next_event(SOON).unwrap().unwrap().name, "RESUME");
    }

    #[test]
    fn answers_to_who_was_connected_before_are_nobodys() {
        let before = format!("{{\"return\": {{}}, \"id\": 1}}\n{GREETING}\n{{\"return\": \"old\", \"id\": 1}}");
        let qmp = Qmp::negotiate(fake(&before, &[OK, "{\"return\": \"own\", \"id\": $}"]), SOON).unwrap();
        assert_eq!(qmp.query("next").unwrap(), json!("own"));
        let complete = r#"{"error": {"class": "CommandNotFound", "desc": "negotiation is already complete"}, "id": $}"#;
        let qmp = Qmp::negotiate(fake(GREETING, &[complete, "{\"return\": 1, \"id\": $}"]), SOON).unwrap();
        assert_eq!(qmp.query("next").unwrap(), json!(1));
    }

    #[test]
    fn a_late_answer_is_not_taken_for_another() {
        let answers = [OK, "", "{\"return\": \"late\", \"id\": 2}\n{\"return\": \"right\", \"id\": $}"];
        let qmp = Qmp::negotiate(fake(GREETING, &answers), SOON).unwrap();
        let timeout = qmp.execute_within("slow", Value::Null, Duration::from_millis(500)).unwrap_err();
        assert_eq!(timeout.to_string(), "QEMU did not answer slow within 500 ms");
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
            // Gives words much time to come. Silence is to be seen soon.
            let within = Duration::from_millis(if said.starts_with("did not answer") { 500 } else { 60_000 });
            let error = Qmp::negotiate(fake(greeting, answers), within).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(matches!(Qmp::negotiate(ours, SOON), Err(QmpError::Closed)));
    }

    #[test]
    fn events_are_bounded() {
        let flood = format!("{}{OK}", "{\"event\": \"E\"}\n".repeat(EVENTS_MAX + 5));
        let mut qmp = Qmp::negotiate(fake(GREETING, &[OK, &flood]), SOON).unwrap();
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
