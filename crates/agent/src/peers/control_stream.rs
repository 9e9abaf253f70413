//! Is one end of the control stream between two agents: lines of JSON, both ways, in a stream of their session.

use std::collections::HashMap;
use std::io::{self, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use skein_api::LineError;
use skein_dataplane::RunningSession;
use thiserror::Error;
use tracing::{debug, warn};

use super::control_message::{Answer, ControlMessage, Heard, Question};
use super::outgoing_lines::OutgoingLines;
use super::version::ControlVersions;

/// Bounds the time that a peer takes for its greeting.
pub(super) const HELLO_TIME: Duration = Duration::from_secs(10);
/// Bounds a peer's questions that are being answered at once. This end asks no more at once either.
const ANSWERING_MAX: usize = 4;
/// Says how long a last message has to get to the other end.
const LAST_WORD_TIME: Duration = Duration::from_millis(300);
/// Says how long an answer takes that is worth a line in the log: the asker may have given up by then.
const SLOW_ANSWER: Duration = Duration::from_secs(5);
/// Bounds the name of a release that people are shown.
const RELEASE_CHARS_MAX: usize = 40;

/// The reason why a control stream ends: the peer does not keep to the rules, and its session ends, too.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum ControlStreamError {
    #[error("it sent something that is no message")]
    Line(#[source] LineError),
    #[error(
        "it runs skein {release}, which speaks {theirs} of the agents' protocol; {own_release} on {us} speaks {ours}: \
         upgrade skein on {outdated}"
    )]
    Version {
        us: String,
        own_release: &'static str,
        ours: ControlVersions,
        release: String,
        theirs: ControlVersions,
        /// The host whose Skein is older.
        outdated: String,
    },
    #[error("it began without saying hello, or said it twice")]
    Hello,
}

/// What a peer said of itself.
pub(super) struct Greeting {
    /// The versions that the peer speaks.
    pub(super) versions: ControlVersions,
    /// The version that both speak from now on.
    pub(super) version: u32,
    /// The release of the peer's program, printable.
    pub(super) release: String,
}

/// The two ends of a control stream, as this end knows them before anything is said.
pub(super) struct Ends {
    /// The session of the control stream.
    pub(super) session: Arc<RunningSession>,
    /// The name of this host.
    pub(super) us: String,
    /// The versions that this end speaks.
    pub(super) versions: ControlVersions,
    /// The stream's number. Later control streams have greater numbers.
    pub(super) number: u64,
}

/// One end of a control stream. The end is over when the stream or the session is, or when this end breaks it off.
pub(super) struct ControlStream {
    ends: Ends,
    pub(super) since: Instant,
    socket: UnixStream,
    outgoing: OutgoingLines,
    over: AtomicBool,
    greeting: OnceLock<Greeting>,
    questions: Mutex<Questions>,
    answering: AtomicUsize,
}

/// What became of a question.
pub(super) enum Asking {
    /// The question has this number. The receiver gets the answer, or hangs up with the stream.
    Now(u64, Receiver<Result<Value, String>>),
    /// As many questions are under way as the peer answers at once.
    Later,
    /// The stream is over.
    Over,
}

#[derive(Default)]
struct Questions {
    next: u64,
    asked: HashMap<u64, SyncSender<Result<Value, String>>>,
    over: bool,
}

impl ControlStream {
    /// Greets the peer. Also returns the end that is to be joined to the stream. `on` gets what the peer says, first of
    /// all its greeting; `after` is called once, when the stream is over. The stream's thread calls both.
    pub(super) fn start(
        ends: Ends,
        on: impl Fn(&Arc<ControlStream>, ControlMessage) + Send + 'static,
        after: impl FnOnce(&Arc<ControlStream>, Option<ControlStreamError>) + Send + 'static,
    ) -> io::Result<(Arc<ControlStream>, UnixStream)> {
        let (socket, far) = UnixStream::pair()?;
        let hello = ControlMessage::hello(ends.versions).line().expect("a short line");
        let stream = Arc::new(ControlStream {
            ends,
            since: Instant::now(),
            socket,
            outgoing: OutgoingLines::default(),
            over: AtomicBool::new(false),
            greeting: OnceLock::new(),
            questions: Mutex::default(),
            answering: AtomicUsize::new(0),
        });
        stream.outgoing.add(hello);
        let writer = stream.clone();
        thread::Builder::new().name("control-out".into()).spawn(move || writer.write())?;
        let reader = stream.clone();
        let work = move || {
            skein_host::raise_thread_priority();
            let error = reader.read(&on).err();
            if matches!(error, Some(ControlStreamError::Line(LineError::Malformed { .. }))) {
                // Without this the other end would see its session close, and not why.
                reader.send(ControlMessage::NotUnderstood.line().expect("a short line"));
                thread::sleep(LAST_WORD_TIME);
            }
            reader.break_off();
            after(&reader, error);
        };
        if let Err(error) = thread::Builder::new().name("control-in".into()).spawn(work) {
            stream.break_off();
            return Err(error);
        }
        Ok((stream, far))
    }

    pub(super) fn session(&self) -> &Arc<RunningSession> {
        &self.ends.session
    }

    pub(super) fn number(&self) -> u64 {
        self.ends.number
    }

    pub(super) fn peer(&self) -> &str {
        self.ends.session.peer()
    }

    /// Returns what the peer said of itself, once it has.
    pub(super) fn greeting(&self) -> Option<&Greeting> {
        self.greeting.get()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Ends the stream, whatever thread reads or writes.
    pub(super) fn break_off(&self) {
        if !self.over.swap(true, Ordering::SeqCst) {
            let _ = self.socket.shutdown(Shutdown::Both);
            self.outgoing.close();
            // A thread that waits for an answer learns that none comes.
            let mut questions = self.questions.lock();
            questions.over = true;
            questions.asked.clear();
        }
    }

    /// Has a line written. Returns false if it is not written, and the stream is over.
    pub(super) fn send(&self, line: Vec<u8>) -> bool {
        let added = self.outgoing.add(line);
        if !added {
            self.break_off();
        }
        added
    }

    /// Asks a question, if the peer may be asked another now.
    pub(super) fn ask(&self, question: &Question) -> Asking {
        let (sender, receiver) = sync_channel(1);
        let number = {
            let mut questions = self.questions.lock();
            if questions.over {
                return Asking::Over;
            }
            if questions.asked.len() >= ANSWERING_MAX {
                return Asking::Later;
            }
            questions.next += 1;
            let number = questions.next;
            questions.asked.insert(number, sender);
            number
        };
        match ControlMessage::ask(number, question).line() {
            Ok(line) => drop(self.send(line)),
            Err(error) => self.complete_question(number, Err(error.to_string())),
        }
        Asking::Now(number, receiver)
    }

    /// Notes that nobody waits for that answer any more.
    pub(super) fn forget(&self, number: u64) {
        self.questions.lock().asked.remove(&number);
    }

    /// Notes the peer's answer.
    pub(super) fn complete_question(&self, number: u64, answer: Result<Value, String>) {
        if let Some(asker) = self.questions.lock().asked.remove(&number) {
            let _ = asker.try_send(answer);
        }
    }

    /// Answers a question on a thread of its own.
    pub(super) fn answer(
        self: &Arc<Self>,
        number: u64,
        find: impl FnOnce() -> Result<Answer, String> + Send + 'static,
    ) {
        if self.answering.fetch_add(1, Ordering::SeqCst) >= ANSWERING_MAX {
            self.answering.fetch_sub(1, Ordering::SeqCst);
            return self.tell(number, Err("too many questions at once".into()));
        }
        let stream = self.clone();
        let work = move || {
            // This holds if it panics, too, so that the asker waits for nothing.
            let begin = Instant::now();
            let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(find));
            if begin.elapsed() >= SLOW_ANSWER {
                warn!(peer = stream.peer(), "its question took {} s to answer", begin.elapsed().as_secs());
            }
            stream.answering.fetch_sub(1, Ordering::SeqCst);
            stream.tell(
                number,
                answer.unwrap_or_else(|_| Err("the agent failed over this question: see its log".into())),
            );
        };
        if let Err(error) = thread::Builder::new().name("answer".into()).spawn(work) {
            self.answering.fetch_sub(1, Ordering::SeqCst);
            self.tell(number, Err(format!("no thread for the answer: {error}")));
        }
    }

    pub(super) fn tell(&self, number: u64, answer: Result<Answer, String>) {
        let line = ControlMessage::answer(number, answer).line();
        let line = line.or_else(|error| ControlMessage::answer(number, Err(error.to_string())).line());
        self.send(line.expect("a short line"));
    }

    fn read(self: &Arc<Self>, on: &impl Fn(&Arc<ControlStream>, ControlMessage)) -> Result<(), ControlStreamError> {
        let mut lines = BufReader::new(&self.socket);
        loop {
            let heard = match ControlMessage::hear(&mut lines) {
                Ok(heard) => heard,
                Err(LineError::Closed | LineError::Io(_)) => return Ok(()),
                Err(error) => return Err(ControlStreamError::Line(error)),
            };
            match (heard, self.greeting()) {
                (Heard::Message(message @ ControlMessage::Hello { .. }), None) => {
                    self.greet(&message)?;
                    on(self, message);
                }
                (_, None) | (Heard::Message(ControlMessage::Hello { .. }), Some(_)) => {
                    return Err(ControlStreamError::Hello);
                }
                (Heard::Message(message), Some(_)) => on(self, message),
                (Heard::UnknownKind(error), Some(greeting)) => {
                    if greeting.versions.highest <= self.ends.versions.highest {
                        return Err(ControlStreamError::Line(error));
                    }
                    let release = &greeting.release;
                    debug!(peer = self.peer(), "what its newer skein {release} says is passed over: {error}");
                }
            }
        }
    }

    /// Takes a peer's greeting.
    fn greet(&self, message: &ControlMessage) -> Result<(), ControlStreamError> {
        let ControlMessage::Hello { version, lowest, release } = message else { return Err(ControlStreamError::Hello) };
        // People are shown the release: it has to be short, without anything that drives a terminal.
        let release: String = release.chars().filter(|c| c.is_ascii_graphic()).take(RELEASE_CHARS_MAX).collect();
        let theirs = ControlVersions { lowest: lowest.unwrap_or(*version), highest: *version };
        let ours = self.ends.versions;
        let Some(version) = ours.common(theirs) else {
            let us = self.ends.us.clone();
            let outdated = if theirs.highest < ours.highest { self.peer().to_owned() } else { us.clone() };
            let own_release = env!("CARGO_PKG_VERSION");
            return Err(ControlStreamError::Version { us, own_release, ours, release, theirs, outdated });
        };
        self.greeting.set(Greeting { versions: theirs, version, release }).map_err(|_| ControlStreamError::Hello)
    }

    fn write(&self) {
        skein_host::raise_thread_priority();
        while let Some(line) = self.outgoing.next() {
            // The socket is shut down when the session ends or the stream is broken off.
            if (&self.socket).write_all(&line).is_err() {
                return self.break_off();
            }
        }
    }
}
