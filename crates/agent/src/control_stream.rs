//! The control stream between two agents: lines of JSON, both ways, in a stream of their session.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skein_api::{LineError, read_line_within};
use skein_dataplane::RunningSession;
use skein_handover::{Message, MigrationId};
use skein_inventory::Composition;
use skein_inventory::facts::{GuestFiles, HostFacts};
use thiserror::Error;
use tracing::warn;

use crate::migrations::Offer;

/// Version of what agents say to each other here. Agents of different versions do not talk.
pub const CONTROL_VERSION: u32 = 4;
/// Longest line: a large definition, or the facts of a host with thousands of VMs. One is held for each session.
pub const LINE_BYTES_MAX: u64 = 4 << 20;
/// Lines that wait to be written: what an agent says of a thousand migrations.
const QUEUE_LINES_MAX: usize = 4096;
/// And all their bytes, the longest line twice.
const QUEUE_BYTES_MAX: usize = 2 * LINE_BYTES_MAX as usize;
/// A peer's questions that are being answered at once.
const ANSWERING_MAX: usize = 4;
/// So long a last word has to get to the other end.
const LAST_WORD_TIME: Duration = Duration::from_millis(300);
/// An answer that takes longer is worth a line in the log: the asker may have given up by then.
const SLOW_ANSWER: Duration = Duration::from_secs(5);

/// What agents say to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlMessage {
    /// First, from either end.
    Hello {
        /// See [`CONTROL_VERSION`].
        version: u32,
        /// Of the program, for messages.
        release: String,
    },
    /// Of the migrations between the two.
    Handover(Message<Value>),
    /// Something worth telling of a migration between the two, for its log.
    Note {
        /// Of which.
        id: MigrationId,
        /// In words.
        text: String,
    },
    /// The last word: a message of the other end cannot be read here.
    NotUnderstood,
    /// A question, whose number is new on this stream.
    Ask {
        /// To tell the answer by.
        number: u64,
        /// What is asked.
        question: Question,
    },
    /// Its answer, or why there is none.
    #[serde(rename = "tell")]
    Answer {
        /// Of the question.
        number: u64,
        /// What is told.
        answer: Result<Answer, String>,
    },
}

/// What an agent may want to know of another. Nothing changes by a question, and one may be asked twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// What a check of a migration to the host has to know of it.
    HostFacts {
        /// The QEMU that is to run the guest; none: the host's own.
        qemu: Option<PathBuf>,
        /// The guest's files.
        files: GuestFiles,
    },
    /// What the guest that this migration takes away is composed of now. Its source compares with the same until the
    /// guest is stopped.
    Composition {
        /// The migration.
        migration: MigrationId,
    },
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Question::HostFacts`].
    HostFacts(Box<HostFacts>),
    /// To [`Question::Composition`].
    Composition(Box<Composition>),
}

/// A line that cannot be said.
#[derive(Debug, Error)]
#[error("a message to another agent would have {0} bytes; {LINE_BYTES_MAX} are possible")]
pub struct TooLong(usize);

impl ControlMessage {
    /// This end's first word.
    pub fn hello() -> ControlMessage {
        ControlMessage::Hello { version: CONTROL_VERSION, release: env!("CARGO_PKG_VERSION").into() }
    }

    /// What is said of a migration.
    pub fn handover(message: &Message<Arc<Offer>>) -> ControlMessage {
        let message = message.clone().try_map_offer(|offer| Ok::<_, Infallible>(offer.to_json()));
        let Ok(message) = message;
        ControlMessage::Handover(message)
    }

    /// Reads the next.
    pub fn read(from: &mut impl BufRead) -> Result<ControlMessage, LineError> {
        read_line_within(from, LINE_BYTES_MAX)
    }

    /// As a line.
    pub fn line(&self) -> Result<Vec<u8>, TooLong> {
        let mut line = serde_json::to_vec(self).expect("plain data always serialises");
        line.push(b'\n');
        if line.len() as u64 > LINE_BYTES_MAX { Err(TooLong(line.len())) } else { Ok(line) }
    }
}

/// A peer that does not keep to the rules: its session ends.
#[derive(Debug, Error)]
pub(crate) enum ControlStreamError {
    #[error("it sent something that is no message")]
    Line(#[source] LineError),
    #[error("it runs skein {release}, which speaks version {version} of the agents' protocol, not {CONTROL_VERSION}")]
    Version { version: u32, release: String },
    #[error("it began without saying hello, or said it twice")]
    Hello,
}

/// One end of a control stream. It is over when the stream or the session is, or when this end breaks it off.
pub(crate) struct ControlStream {
    pub(crate) live: Arc<RunningSession>,
    /// Later ones have greater numbers.
    pub(crate) number: u64,
    pub(crate) since: Instant,
    socket: UnixStream,
    outgoing: Outgoing,
    over: AtomicBool,
    questions: Mutex<Questions>,
    answering: AtomicUsize,
}

#[derive(Default)]
struct Questions {
    next: u64,
    asked: HashMap<u64, SyncSender<Result<Answer, String>>>,
    over: bool,
}

impl ControlStream {
    /// Greets the peer. Returns the end that is to be joined to the stream, too. What the peer says comes to `on`,
    /// first of all its greeting; `after` is called once, when the link is over. Both are called by the link's thread.
    pub(crate) fn start(
        live: &Arc<RunningSession>,
        number: u64,
        on: impl Fn(&Arc<ControlStream>, ControlMessage) + Send + 'static,
        after: impl FnOnce(&Arc<ControlStream>, Option<ControlStreamError>) + Send + 'static,
    ) -> io::Result<(Arc<ControlStream>, UnixStream)> {
        let (socket, far) = UnixStream::pair()?;
        let link = Arc::new(ControlStream {
            live: live.clone(),
            number,
            since: Instant::now(),
            socket,
            outgoing: Outgoing::default(),
            over: AtomicBool::new(false),
            questions: Mutex::default(),
            answering: AtomicUsize::new(0),
        });
        let hello = ControlMessage::hello().line().expect("a short line");
        link.outgoing.add(hello);
        let writer = link.clone();
        thread::Builder::new().name("control-out".into()).spawn(move || writer.write())?;
        let reader = link.clone();
        let work = move || {
            skein_host::raise_thread_priority();
            let fault = reader.read(&on).err();
            if matches!(fault, Some(ControlStreamError::Line(LineError::Malformed { .. }))) {
                // The other end would see its session close, and not why.
                reader.send(ControlMessage::NotUnderstood.line().expect("a short line"));
                thread::sleep(LAST_WORD_TIME);
            }
            reader.break_off();
            after(&reader, fault);
        };
        if let Err(error) = thread::Builder::new().name("control-in".into()).spawn(work) {
            link.break_off();
            return Err(error);
        }
        Ok((link, far))
    }

    pub(crate) fn peer(&self) -> &str {
        self.live.peer()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Ends it, whoever reads or writes.
    pub(crate) fn break_off(&self) {
        if !self.over.swap(true, Ordering::SeqCst) {
            let _ = self.socket.shutdown(Shutdown::Both);
            self.outgoing.close();
            // Whoever waits for an answer learns that none comes.
            let mut questions = self.questions();
            questions.over = true;
            questions.asked.clear();
        }
    }

    /// Has a line written. False: it is not, and the link is over.
    pub(crate) fn send(&self, line: Vec<u8>) -> bool {
        let added = self.outgoing.add(line);
        if !added {
            self.break_off();
        }
        added
    }

    /// Asks; the receiver gets the answer, or hangs up with the link. `None`: it is over.
    pub(crate) fn ask(&self, question: &Question) -> Option<(u64, Receiver<Result<Answer, String>>)> {
        let (sender, receiver) = sync_channel(1);
        let number = {
            let mut questions = self.questions();
            if questions.over {
                return None;
            }
            questions.next += 1;
            let number = questions.next;
            questions.asked.insert(number, sender);
            number
        };
        match (ControlMessage::Ask { number, question: question.clone() }).line() {
            Ok(line) => drop(self.send(line)),
            Err(error) => self.complete_question(number, Err(error.to_string())),
        }
        Some((number, receiver))
    }

    /// Nobody waits for that answer any more.
    pub(crate) fn forget(&self, number: u64) {
        self.questions().asked.remove(&number);
    }

    /// The peer answered.
    pub(crate) fn complete_question(&self, number: u64, answer: Result<Answer, String>) {
        if let Some(asker) = self.questions().asked.remove(&number) {
            let _ = asker.try_send(answer);
        }
    }

    /// Answers a question on a thread of its own.
    pub(crate) fn answer(
        self: &Arc<Self>,
        number: u64,
        find: impl FnOnce() -> Result<Answer, String> + Send + 'static,
    ) {
        if self.answering.fetch_add(1, Ordering::SeqCst) >= ANSWERING_MAX {
            self.answering.fetch_sub(1, Ordering::SeqCst);
            return self.tell(number, Err("too many questions at once".into()));
        }
        let link = self.clone();
        let work = move || {
            // Also when it panics, so that the asker waits for nothing.
            let begin = Instant::now();
            let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(find));
            if begin.elapsed() >= SLOW_ANSWER {
                warn!(peer = link.peer(), "its question took {} s to answer", begin.elapsed().as_secs());
            }
            link.answering.fetch_sub(1, Ordering::SeqCst);
            link.tell(
                number,
                answer.unwrap_or_else(|_| Err("the agent failed over this question: see its log".into())),
            );
        };
        if let Err(error) = thread::Builder::new().name("answer".into()).spawn(work) {
            self.answering.fetch_sub(1, Ordering::SeqCst);
            self.tell(number, Err(format!("no thread for the answer: {error}")));
        }
    }

    fn tell(&self, number: u64, answer: Result<Answer, String>) {
        let line = ControlMessage::Answer { number, answer }.line();
        let line = line.or_else(|error| ControlMessage::Answer { number, answer: Err(error.to_string()) }.line());
        self.send(line.expect("a short line"));
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().expect("no panic under this lock")
    }

    fn read(self: &Arc<Self>, on: &impl Fn(&Arc<ControlStream>, ControlMessage)) -> Result<(), ControlStreamError> {
        let mut lines = BufReader::new(&self.socket);
        let mut greeted = false;
        loop {
            let wire = match ControlMessage::read(&mut lines) {
                Ok(wire) => wire,
                Err(LineError::Closed | LineError::Io(_)) => return Ok(()),
                Err(error) => return Err(ControlStreamError::Line(error)),
            };
            match &wire {
                ControlMessage::Hello { version, release } if *version != CONTROL_VERSION => {
                    // Shown to people: short, and nothing that drives a terminal.
                    let release = release.chars().filter(|c| c.is_ascii_graphic()).take(40).collect();
                    return Err(ControlStreamError::Version { version: *version, release });
                }
                ControlMessage::Hello { .. } if greeted => return Err(ControlStreamError::Hello),
                ControlMessage::Hello { .. } => greeted = true,
                _ if !greeted => return Err(ControlStreamError::Hello),
                _ => {}
            }
            on(self, wire);
        }
    }

    fn write(&self) {
        skein_host::raise_thread_priority();
        while let Some(line) = self.outgoing.next() {
            // The socket is shut down when the session ends or the link is broken off.
            if (&self.socket).write_all(&line).is_err() {
                return self.break_off();
            }
        }
    }
}

/// Lines that wait to be written.
#[derive(Default)]
struct Outgoing {
    waiting: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    closed: bool,
}

impl Outgoing {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.waiting.lock().expect("no panic under this lock")
    }

    /// False: there is no room, or nobody writes any more.
    fn add(&self, line: Vec<u8>) -> bool {
        let mut waiting = self.lock();
        if waiting.closed || waiting.lines.len() >= QUEUE_LINES_MAX || waiting.bytes + line.len() > QUEUE_BYTES_MAX {
            return false;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line);
        self.changed.notify_one();
        true
    }

    fn close(&self) {
        let mut waiting = self.lock();
        *waiting = Lines { closed: true, ..Lines::default() };
        self.changed.notify_one();
    }

    fn next(&self) -> Option<Vec<u8>> {
        let idle = |waiting: &mut Lines| waiting.lines.is_empty() && !waiting.closed;
        let mut waiting = self.changed.wait_while(self.lock(), idle).expect("no panic under this lock");
        let line = waiting.lines.pop_front()?;
        waiting.bytes -= line.len();
        Some(line)
    }
}

/// How long a peer may take for its greeting.
pub(crate) const HELLO_TIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_said_is_read() {
        let question = Question::HostFacts {
            qemu: None,
            files: GuestFiles { opened: vec!["/a\n".into()], ..GuestFiles::default() },
        };
        let all = [
            ControlMessage::hello(),
            ControlMessage::Ask { number: 1, question },
            ControlMessage::Answer { number: 1, answer: Err("no\nway".into()) },
        ];
        let lines: Vec<u8> = all.iter().flat_map(|wire| wire.line().unwrap()).collect();
        let mut lines = &lines[..];
        for wire in all {
            assert_eq!(ControlMessage::read(&mut lines).unwrap(), wire);
        }
        assert!(matches!(ControlMessage::read(&mut lines), Err(LineError::Closed)));
    }

    #[test]
    fn lines_have_a_bound_at_either_end() {
        let long = ControlMessage::Answer { number: 1, answer: Err("x".repeat(LINE_BYTES_MAX as usize)) };
        assert!(long.line().is_err());
        let mut endless = BufReader::new(io::repeat(b' '));
        assert!(matches!(ControlMessage::read(&mut endless), Err(LineError::TooLong)));
    }

    #[test]
    fn a_full_queue_refuses_and_a_closed_one_ends() {
        let outgoing = Outgoing::default();
        assert!(outgoing.add(vec![0; QUEUE_BYTES_MAX]));
        assert!(!outgoing.add(vec![0]));
        assert_eq!(outgoing.next().unwrap().len(), QUEUE_BYTES_MAX);
        assert!((0..QUEUE_LINES_MAX).all(|_| outgoing.add(vec![0])));
        assert!(!outgoing.add(vec![0]));
        outgoing.close();
        assert!(outgoing.next().is_none() && !outgoing.add(vec![0]));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let mut bytes = &bytes[..];
            while !matches!(ControlMessage::read(&mut bytes), Err(LineError::Closed)) {}
        }

        #[test]
        fn damaged_lines_are_read_or_refused(at in 0usize..200, byte: u8, cut in 0usize..200) {
            let files = GuestFiles { opened: vec!["/a".into()], ..GuestFiles::default() };
            let question = Question::HostFacts { qemu: Some("/q".into()), files };
            let mut line = ControlMessage::Ask { number: u64::MAX, question }.line().unwrap();
            let len = line.len();
            line[at % len] = byte;
            line.truncate(len - cut % len);
            if let Ok(wire) = ControlMessage::read(&mut &line[..]) {
                let again = wire.line().unwrap();
                prop_assert_eq!(ControlMessage::read(&mut &again[..]).unwrap(), wire);
            }
        }
    }
}
