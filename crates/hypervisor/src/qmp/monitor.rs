//! Is a QMP client for several threads. A thread reads the socket, gives answers to the threads that wait for them, and
//! events to subscribers.
//!
//! QEMU answers in order (out-of-band execution is not negotiated): a slow command delays those after it. It reads at
//! most eight commands ahead.

use std::collections::HashMap;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use parking_lot::Mutex;
use serde_json::{Value, json};
use skein_inventory::QemuVersion;

use crate::qmp::connect::connect;
use crate::qmp::error::QmpError;
use crate::qmp::events::{Events, MonitorEvent};
use crate::qmp::message::{Messages, QmpMessage, excerpt, remaining, would_block};

/// Bounds the time of a command unless the caller has another bound. Commands are quick, but a switchover may hold up
/// QEMU's main loop, and other guests the host.
pub const COMMAND_DEADLINE: Duration = Duration::from_secs(20);

/// Takes events in the reading thread, so it must not block. It returns `false` to get no more.
type Sink = Box<dyn FnMut(MonitorEvent) -> bool + Send>;

/// A QMP connection, which several threads may use at once. Clones are the same connection, which is closed with the
/// last.
#[derive(Debug, Clone)]
pub struct Monitor(Arc<QmpConnection>, Duration);

#[derive(Debug)]
struct QmpConnection {
    /// The socket, locked while a command is written.
    writer: Mutex<UnixStream>,
    /// The same socket, to shut it down without a lock.
    stream: UnixStream,
    shared: Arc<Shared>,
    version: QemuVersion,
}

impl Drop for QmpConnection {
    fn drop(&mut self) {
        // This ends the reading thread.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// What the reading thread shares with the connection. It does not keep the connection itself.
#[derive(Debug)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    next_id: u64,
    /// The threads that wait, each by the id of its command: at most as many as there are threads.
    waiting: HashMap<u64, SyncSender<Answer>>,
    sinks: Vec<Sink>,
    closed: bool,
    /// The reason why the connection is over, for the first caller that asks.
    reason: Option<QmpError>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("State").field("waiting", &self.waiting.len()).field("closed", &self.closed).finish()
    }
}

/// QEMU's answer: a value, or its class of error and its words.
type Answer = Result<Value, (String, String)>;

/// Returns the id of a connection's first command. No earlier connection had this id, whose answers may still come.
fn first_id() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // QEMU has ids as signed numbers of 64 bits. A thousand commands in each millisecond since would be too many.
    (now.as_millis() as u64 & (u64::MAX >> 12)) << 10 | 1
}

impl Monitor {
    /// Connects and negotiates, all within `deadline`. The call waits for a socket that is not there yet. QEMU serves
    /// one client a socket at a time: if another client is connected, no greeting comes in time.
    pub fn connect(path: &Path, deadline: Duration) -> Result<Self, QmpError> {
        connect(path, deadline, Self::negotiate)
    }

    /// Takes a connected socket: reads the greeting and leaves the negotiation mode, all within `deadline`.
    pub fn negotiate(stream: UnixStream, deadline: Duration) -> Result<Self, QmpError> {
        Self::open(stream, deadline, None)
    }

    /// Opens as [`Monitor::negotiate`] does, with a subscriber that misses nothing.
    pub(crate) fn open(stream: UnixStream, deadline: Duration, sink: Option<Sink>) -> Result<Self, QmpError> {
        let end = Instant::now() + deadline;
        let duplicate = || stream.try_clone().map_err(QmpError::Io);
        let (writer, mut messages) = (duplicate()?, Messages::new(duplicate()?));
        let mut sinks = Vec::from_iter(sink);
        let version = loop {
            match messages.next(Some(end))? {
                Some(QmpMessage::Greeting(version)) => break version,
                // An event while QEMU accepts the connection may come before the greeting.
                Some(QmpMessage::Event(event)) => sinks.retain_mut(|sink| sink(MonitorEvent::Event(event.clone()))),
                // QEMU sends an answer to the client that is connected by then, and the client before has gone.
                Some(QmpMessage::Return { .. } | QmpMessage::Error { .. }) => {}
                None => return Err(QmpError::Timeout { what: "with a greeting".into(), after: deadline }),
            }
        };
        let state = State { next_id: first_id(), sinks, ..State::default() };
        let shared = Arc::new(Shared(Mutex::new(state)));
        let of_reader = Arc::clone(&shared);
        let read = move || {
            skein_host::raise_thread_priority();
            of_reader.read(messages);
        };
        std::thread::Builder::new().name("qmp".into()).spawn(read).map_err(QmpError::Io)?;
        let connection = QmpConnection { writer: Mutex::new(writer), stream, shared, version };
        let monitor = Self(Arc::new(connection), COMMAND_DEADLINE);
        match monitor.execute_within("qmp_capabilities", Value::Null, end.saturating_duration_since(Instant::now())) {
            Ok(_) => Ok(monitor),
            // "Capabilities negotiation is already complete": the client that was connected before sent the same
            // command (QEMU's monitor/qmp.c).
            Err(QmpError::Refused { class, .. }) if class == "CommandNotFound" => Ok(monitor),
            Err(error) => Err(error),
        }
    }

    /// Returns the same connection, for a caller that waits no longer than `patience` for the answer to a command,
    /// instead of [`COMMAND_DEADLINE`].
    pub fn with_patience(&self, patience: Duration) -> Self {
        Self(self.0.clone(), patience)
    }

    /// Returns QEMU's version, from its greeting.
    pub fn version(&self) -> &QemuVersion {
        &self.0.version
    }

    /// Returns the process at the other end, by the kernel's word: the process that made the socket listen. That is
    /// QEMU, unless a manager (libvirt) made the socket for it. `None`: the process is not visible from this process's
    /// pid namespace.
    pub fn peer_pid(&self) -> Result<Option<u32>, QmpError> {
        let peer = getsockopt(&self.0.stream, PeerCredentials).map_err(|errno| QmpError::Io(errno.into()))?;
        Ok(u32::try_from(peer.pid()).ok().filter(|&pid| pid != 0))
    }

    /// Executes a command without arguments and returns its answer.
    pub fn query(&self, command: &str) -> Result<Value, QmpError> {
        self.execute(command, Value::Null)
    }

    /// Executes a command and returns its answer, within [`COMMAND_DEADLINE`] or this connection's patience.
    /// `arguments` is an object, or null for none.
    pub fn execute(&self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        self.execute_within(command, arguments, self.1)
    }

    /// Executes a command and returns its answer, within `deadline`. An answer that comes later is ignored: the command
    /// may be executed all the same. Returns [`QmpError::Closed`] at once when the connection breaks.
    pub fn execute_within(&self, command: &str, arguments: Value, deadline: Duration) -> Result<Value, QmpError> {
        let end = Instant::now() + deadline;
        let timeout = || QmpError::Timeout { what: command.into(), after: deadline };
        let (id, answer) = self.send(command, arguments, end).map_err(|error| error.unwrap_or_else(timeout))?;
        self.wait_for(command, id, &answer, end, deadline)
    }

    /// Executes commands and returns their answers, in their order. All commands are sent before the first answer is
    /// waited for, so they take about as long as one. The others are executed whatever becomes of one.
    pub fn execute_all<'a>(
        &self,
        commands: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Result<Vec<Result<Value, QmpError>>, QmpError> {
        let (end, deadline) = (Instant::now() + self.1, self.1);
        let mut sent = Vec::new();
        for (command, arguments) in commands {
            let timeout = || QmpError::Timeout { what: command.into(), after: deadline };
            let (id, answer) = self.send(command, arguments, end).map_err(|error| error.unwrap_or_else(timeout))?;
            sent.push((command, id, answer));
        }
        Ok(sent.iter().map(|(command, id, answer)| self.wait_for(command, *id, answer, end, deadline)).collect())
    }

    fn wait_for(
        &self,
        command: &str,
        id: u64,
        answer: &Receiver<Answer>,
        end: Instant,
        deadline: Duration,
    ) -> Result<Value, QmpError> {
        let timeout = || QmpError::Timeout { what: command.into(), after: deadline };
        match answer.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err((class, description))) => Err(QmpError::Refused { command: command.into(), class, description }),
            Err(RecvTimeoutError::Timeout) => {
                self.0.shared.0.lock().waiting.remove(&id);
                Err(timeout())
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.why_closed()),
        }
    }

    /// Writes a command. The error is `None` if `end` came first.
    fn send(&self, command: &str, arguments: Value, end: Instant) -> Result<(u64, Receiver<Answer>), Option<QmpError>> {
        let mut writer = self.0.writer.try_lock_until(end).ok_or(None)?;
        let wait = remaining(end).ok_or(None)?;
        writer.set_write_timeout(Some(wait)).map_err(|error| Some(QmpError::Io(error)))?;
        let (sender, answer) = sync_channel(1);
        let id = {
            let mut state = self.0.shared.0.lock();
            if state.closed {
                drop(state);
                return Err(Some(self.why_closed()));
            }
            let id = state.next_id;
            state.next_id += 1;
            state.waiting.insert(id, sender);
            id
        };
        let mut request = json!({ "execute": command, "id": id });
        if !arguments.is_null() {
            request["arguments"] = arguments;
        }
        writer.write_all(format!("{request}\n").as_bytes()).map_err(|error| {
            // Half a command cannot be taken back: the connection is over. QEMU reads slowly only if its main loop is
            // held up, and then the socket still takes a thousand commands.
            let _ = self.0.stream.shutdown(Shutdown::Both);
            self.0.shared.0.lock().waiting.remove(&id);
            match error.kind() {
                _ if would_block(&error) => None,
                std::io::ErrorKind::BrokenPipe => Some(self.why_closed()),
                _ => Some(QmpError::Io(error)),
            }
        })?;
        Ok((id, answer))
    }

    /// Subscribes to events from now on. Up to `capacity` events wait to be taken, then the oldest are dropped. What
    /// happened before is not told: subscribe first, then ask for the state.
    pub fn subscribe(&self, capacity: usize) -> Events {
        let (sink, events) = Events::new(capacity);
        self.forward(sink);
        events
    }

    /// Gives events from now on to `sink`, in the thread that reads the socket. This is for a caller that joins events
    /// with other things in a queue of its own. `sink` must not block or use the monitor, and returns `false` to get no
    /// more.
    pub fn forward(&self, mut sink: impl FnMut(MonitorEvent) -> bool + Send + 'static) {
        let mut state = self.0.shared.0.lock();
        if state.closed {
            sink(MonitorEvent::Closed);
        } else {
            state.sinks.push(Box::new(sink));
        }
    }

    /// Returns whether the connection is over.
    pub fn is_closed(&self) -> bool {
        self.0.shared.0.lock().closed
    }

    /// Closes the connection, for all clones.
    pub fn close(&self) {
        let _ = self.0.stream.shutdown(Shutdown::Both);
    }

    /// Returns why the connection is over: the reason once, then [`QmpError::Closed`].
    pub(crate) fn why_closed(&self) -> QmpError {
        self.0.shared.0.lock().reason.take().unwrap_or(QmpError::Closed)
    }
}

impl Shared {
    /// Reads until the socket ends.
    fn read(&self, mut messages: Messages) {
        let reason = loop {
            let message = match messages.next(None) {
                Ok(Some(message)) => message,
                Ok(None) => continue,
                Err(reason) => break reason,
            };
            let mut state = self.0.lock();
            let (id, answer) = match message {
                QmpMessage::Event(event) => {
                    state.sinks.retain_mut(|sink| sink(MonitorEvent::Event(event.clone())));
                    continue;
                }
                QmpMessage::Return { id: Some(id), value } => (id, Ok(value)),
                QmpMessage::Error { id: Some(id), class, description } => (id, Err((class, description))),
                // QEMU answers without an id only what it could not parse.
                other => break unexpected_answer(&other),
            };
            match state.waiting.remove(&id) {
                // This never blocks: there is room for the one answer. If nobody waits any more, the answer is late.
                Some(waiter) => drop(waiter.try_send(answer)),
                // The answer is late: its command's deadline had passed.
                None if id < state.next_id => {}
                None => break unexpected_answer(&answer),
            }
        };
        let mut state = self.0.lock();
        state.closed = true;
        state.reason = Some(reason);
        for mut sink in std::mem::take(&mut state.sinks) {
            sink(MonitorEvent::Closed);
        }
        // This wakes the waiting threads.
        state.waiting.clear();
    }
}

fn unexpected_answer(answer: &impl std::fmt::Debug) -> QmpError {
    let excerpt = excerpt(format!("{answer:?}").as_bytes());
    QmpError::Malformed { reason: "an answer to nothing that was asked".into(), excerpt }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qmp::fake::fake;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn answers_go_to_who_asked_in_whatever_order() {
        let mut held = Vec::new();
        let monitor = fake(move |command, id, out| {
            held.push((command.to_owned(), id));
            if held.len() == 8 {
                for (command, id) in held.drain(..).rev() {
                    writeln!(out, "{}", json!({ "return": command, "id": id })).unwrap();
                }
            }
        });
        std::thread::scope(|scope| {
            for number in 0..8 {
                let monitor = monitor.clone();
                scope.spawn(move || {
                    let command = format!("c{number}");
                    assert_eq!(monitor.query(&command).unwrap(), json!(command));
                });
            }
        });
    }

    #[test]
    fn all_are_sent_before_the_first_is_answered() {
        let mut held = Vec::new();
        // The first command is answered when the last is there.
        let monitor = fake(move |command, id, out| {
            held.push((command.to_owned(), id));
            if held.len() == 3 {
                for (command, id) in held.drain(..).rev() {
                    let answer = match command.as_str() {
                        "bad" => json!({ "error": { "class": "GenericError", "desc": "no" }, "id": id }),
                        _ => json!({ "return": command, "id": id }),
                    };
                    writeln!(out, "{answer}").unwrap();
                }
            }
        });
        let answers = monitor.execute_all([("a", Value::Null), ("bad", Value::Null), ("c", Value::Null)]).unwrap();
        assert_eq!((answers[0].as_ref().unwrap(), answers[2].as_ref().unwrap()), (&json!("a"), &json!("c")));
        assert!(matches!(&answers[1], Err(QmpError::Refused { command, .. }) if command == "bad"));
    }

    #[test]
    fn all_waiters_end_at_once_when_it_breaks() {
        let mut heard = 0;
        let monitor = fake(move |_, _, out| {
            heard += 1;
            if heard == 3 {
                out.shutdown(Shutdown::Both).unwrap();
            }
        });
        let events = monitor.subscribe(4);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert!(matches!(monitor.query("wait"), Err(QmpError::Closed))));
            }
        });
        assert!(begin.elapsed() < 60 * SECOND);
        assert_eq!(events.next(SECOND), Some(MonitorEvent::Closed));
        assert_eq!(events.next(Duration::ZERO), Some(MonitorEvent::Closed));
        assert!(monitor.is_closed());
        assert!(matches!(monitor.query("more"), Err(QmpError::Closed)));
        assert_eq!(
            monitor.subscribe(1).next(Duration::ZERO),
            Some(MonitorEvent::Closed),
            "a late subscriber hears it too"
        );
    }

    #[test]
    fn a_subscriber_that_does_not_read_blocks_nobody_and_loses_the_oldest() {
        let monitor = fake(|_, id, out| {
            for number in 0..100 {
                writeln!(out, "{}", json!({ "event": format!("E{number}") })).unwrap();
            }
            writeln!(out, "{}", json!({ "return": {}, "id": id })).unwrap();
        });
        let (idle, gone) = (monitor.subscribe(3), monitor.subscribe(3));
        drop(gone);
        monitor.query("flood").unwrap();
        let kept: Vec<_> = std::iter::from_fn(|| idle.next(Duration::ZERO)).collect();
        let name = |event: &MonitorEvent| match event {
            MonitorEvent::Event(event) => event.name.clone(),
            MonitorEvent::Closed => "closed".into(),
        };
        assert_eq!(kept.iter().map(name).collect::<Vec<_>>(), ["E97", "E98", "E99"]);
        assert_eq!(idle.dropped(), 97);
    }

    #[test]
    fn deadlines_hold_and_a_late_answer_is_ignored() {
        let mut late = None;
        let monitor = fake(move |command, id, out| match command {
            "slow" => late = Some(id),
            _ => {
                // The deadline may have passed before "slow" was written.
                if let Some(late) = late.take() {
                    writeln!(out, "{}", json!({ "return": "late", "id": late })).unwrap();
                }
                writeln!(out, "{}", json!({ "return": "right", "id": id })).unwrap();
            }
        });
        let error = monitor.execute_within("slow", Value::Null, Duration::from_millis(500)).unwrap_err();
        assert_eq!(error.to_string(), "QEMU did not answer slow within 500 ms");
        assert_eq!(monitor.query("next").unwrap(), json!("right"));
    }

    #[test]
    fn the_last_clone_closes() {
        let monitor = fake(|_, _, _| {});
        let events = monitor.subscribe(1);
        let other = monitor.clone();
        drop(monitor);
        assert_eq!(events.next(Duration::from_millis(20)), None);
        drop(other);
        assert_eq!(events.next(SECOND), Some(MonitorEvent::Closed));
    }
}
