//! Is an endpoint as its agent has it: the process of a rail serves it.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{any, io};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

use super::rail_process::RailProcess;
use super::words::{Channel, Operation, Reply, Request, Word};
use crate::fabric::{Abilities, Access, Begun, Completion, Endpoint, FabricError, Region, RemoteMemory, Slice};
use crate::memory::SharedMemory;

/// How many operations other than receives are under way at most.
const OPERATIONS_MAX: usize = 512;
/// How long the process has to start, to load the library and to open a device. A test's program may start slowly on a
/// busy machine.
const OPEN_TIME: Duration = Duration::from_secs(if cfg!(any(test, feature = "fake")) { 60 } else { 10 });
/// How long the process has for any other answer: to lock memory, for instance.
const ANSWER_TIME: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 10 });
/// How long the process has to come to rest.
const REST_TIME: Duration = Duration::from_millis(500);
/// How long the process has to close the endpoint.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// How often who waits for an answer looks whether another thread has received that.
const ANSWER_CHECK: Duration = Duration::from_millis(5);
/// How often the process is asked whether it lives, and how long it has for that answer: a library that hangs answers
/// nothing. In tests a busy machine may keep the process waiting.
const PING_PERIOD: Duration = Duration::from_secs(1);
const HANG_TIME: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 5 });
/// How long the process has to let go of an endpoint that is dropped, and of one that is closed: nothing can be written
/// by that any more, and to let go of a guest's memory takes tens of ms for a GiB. The process has others' endpoints,
/// so it is not killed for that lightly.
const END_TIME: Duration = Duration::from_secs(3);
const LET_GO_TIME: Duration = Duration::from_secs(300);

/// An endpoint that the process of a rail serves.
pub(crate) struct ProcessEndpoint {
    link: Arc<Link>,
    process: Arc<RailProcess>,
    abilities: Abilities,
    name: Vec<u8>,
    next_region: AtomicU32,
    under_way: AtomicUsize,
    is_closed: AtomicBool,
    /// What is written at one end ends a wait at the other.
    waker: (UnixStream, UnixStream),
}

/// The connection to what serves the endpoint, which regions keep as well.
struct Link {
    channel: Channel,
    inbox: Mutex<Inbox>,
    /// Held by who asks for something: one at a time.
    asks: Mutex<()>,
}

/// What the process has said.
#[derive(Default)]
struct Inbox {
    happened: VecDeque<Completion>,
    reply: Option<Result<Reply, FabricError>>,
    /// Why the endpoint is of no use any more.
    over: Option<FabricError>,
    /// Whether the process says nothing any more. One whose endpoint is over still closes that.
    is_silent: bool,
    /// When the process was asked last whether it lives, and whether it has said anything since.
    pinged: Option<(Instant, bool)>,
}

impl Inbox {
    fn fall_silent(&mut self, why: FabricError) {
        self.is_silent = true;
        self.over.get_or_insert(why);
    }
}

impl Link {
    /// Takes in what the process has said.
    fn hear(&self, inbox: &mut Inbox) {
        while !inbox.is_silent {
            match self.channel.receive() {
                Ok(Some((word, _))) => {
                    inbox.pinged = inbox.pinged.map(|(at, _)| (at, true));
                    match word {
                        Word::Happened(happened) => inbox.happened.extend(happened),
                        Word::Reply(reply) => inbox.reply = Some(reply),
                        Word::Alive => {}
                        Word::Over(why) => drop(inbox.over.get_or_insert(why)),
                    }
                }
                Ok(None) => return,
                Err(error) => inbox.fall_silent(gone(&error)),
            }
        }
    }

    /// Asks from time to time whether the process lives, and gives it up if it does not say so.
    fn ping(&self, inbox: &mut Inbox) {
        let now = Instant::now();
        match inbox.pinged {
            Some((at, false)) if now - at >= HANG_TIME => inbox.fall_silent(hangs()),
            Some((_, false)) => {}
            Some((at, true)) if now - at < PING_PERIOD => {}
            // Where there is no room for the question, the process has enough to answer.
            _ => inbox.pinged = self.channel.send(&Request::Ping, None).ok().map(|_| (now, false)),
        }
    }

    /// Says something that has no answer. Returns whether there was room.
    fn say(&self, request: &Request) -> Result<bool, FabricError> {
        self.channel.send(request, None).map_err(|error| self.why_over(gone(&error)))
    }

    /// Returns why the rail is over, as the process said, or else as it looks.
    fn why_over(&self, looks: FabricError) -> FabricError {
        let mut inbox = self.inbox.lock();
        self.hear(&mut inbox);
        inbox.over.clone().unwrap_or(looks)
    }

    /// Asks for something, and waits for the answer.
    fn ask(&self, request: &Request, memory: Option<&SharedMemory>, patience: Duration) -> Result<Reply, FabricError> {
        let _asks = self.asks.lock();
        let deadline = Instant::now() + patience;
        let file = memory.map(SharedMemory::file);
        while !self.channel.send(request, file).map_err(|error| self.why_over(gone(&error)))? {
            self.pause(deadline)?;
        }
        loop {
            let mut inbox = self.inbox.lock();
            self.hear(&mut inbox);
            if let Some(reply) = inbox.reply.take() {
                return reply;
            }
            if inbox.is_silent {
                return Err(inbox.over.clone().unwrap_or_else(hangs));
            }
            drop(inbox);
            self.pause(deadline)?;
        }
    }

    fn pause(&self, deadline: Instant) -> Result<(), FabricError> {
        if Instant::now() >= deadline {
            // What it answers later is not taken for the answer to another question.
            let mut inbox = self.inbox.lock();
            inbox.reply = None;
            inbox.fall_silent(hangs());
            return Err(inbox.over.clone().unwrap_or_else(hangs));
        }
        let patience = PollTimeout::try_from(ANSWER_CHECK).unwrap_or(PollTimeout::ZERO);
        let _ = poll(&mut [PollFd::new(self.channel.as_fd(), PollFlags::POLLIN)], patience);
        Ok(())
    }
}

fn hangs() -> FabricError {
    FabricError::Process("does not answer".into())
}

fn gone(error: &io::Error) -> FabricError {
    FabricError::Process(match error.kind() {
        io::ErrorKind::InvalidData => "says what makes no sense".into(),
        _ => "has ended".into(),
    })
}

impl ProcessEndpoint {
    /// Opens an endpoint at a local address, of the first of the providers that has a rail there; `None`: none has.
    ///
    /// # Errors
    /// The process has ended or has no library, or the rail cannot be opened.
    pub(crate) fn open(
        process: &Arc<RailProcess>,
        providers: &[String],
        at: IpAddr,
    ) -> Result<Option<ProcessEndpoint>, FabricError> {
        let channel = process.connect()?;
        let waker = UnixStream::pair().and_then(|pair| {
            pair.0.set_nonblocking(true)?;
            pair.1.set_nonblocking(true)?;
            Ok(pair)
        });
        let mut endpoint = ProcessEndpoint {
            link: Arc::new(Link { channel, inbox: Mutex::default(), asks: Mutex::new(()) }),
            process: process.clone(),
            abilities: Abilities::default(),
            name: Vec::new(),
            next_region: AtomicU32::new(0),
            under_way: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            waker: waker.map_err(|error| FabricError::Process(format!("cannot be heard: {error}")))?,
        };
        match endpoint.link.ask(&Request::Open { providers: providers.to_vec(), at }, None, OPEN_TIME)? {
            Reply::Opened { abilities, name } => {
                (endpoint.abilities, endpoint.name) = (abilities, name);
                Ok(Some(endpoint))
            }
            Reply::NoRail => Ok(None),
            _ => Err(nonsense()),
        }
    }

    fn begin(&self, operation: Operation, at: &Slice, token: u64) -> Result<Begun, FabricError> {
        let region = at.region().as_any().downcast_ref::<ProcessRegion>();
        let Some(region) = region.filter(|region| Arc::ptr_eq(&region.link, &self.link)) else {
            return Err(FabricError::Misbehaves("memory that another rail has registered".into()));
        };
        let is_counted = operation != Operation::Receive;
        if is_counted && self.under_way.load(Ordering::Relaxed) >= OPERATIONS_MAX {
            return Ok(Begun::Busy);
        }
        let (offset, bytes) = (at.range().start as u64, at.bytes() as u64);
        if !self.link.say(&Request::Begin { operation, region: region.id, offset, bytes, token })? {
            return Ok(Begun::Busy);
        }
        if is_counted {
            self.under_way.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Begun::Yes)
    }
}

fn nonsense() -> FabricError {
    FabricError::Process("says what makes no sense".into())
}

impl Endpoint for ProcessEndpoint {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn name(&self) -> &[u8] {
        &self.name
    }

    fn connect(&self, name: &[u8]) -> Result<(), FabricError> {
        self.link.ask(&Request::Connect { name: name.to_vec() }, None, ANSWER_TIME).map(drop)
    }

    fn register(&self, memory: &SharedMemory, access: Access, key: u64) -> Result<Arc<dyn Region>, FabricError> {
        let id = self.next_region.fetch_add(1, Ordering::Relaxed);
        let (offset, bytes) = (memory.offset(), memory.bytes());
        let request = Request::Register { region: id, offset, bytes: bytes as u64, access, key };
        match self.link.ask(&request, Some(memory), ANSWER_TIME)? {
            Reply::Registered(remote) => Ok(Arc::new(ProcessRegion { id, bytes, remote, link: self.link.clone() })),
            _ => Err(nonsense()),
        }
    }

    fn receive(&self, into: &Slice, token: u64) -> Result<Begun, FabricError> {
        self.begin(Operation::Receive, into, token)
    }

    fn send(&self, from: &Slice, token: u64) -> Result<Begun, FabricError> {
        self.begin(Operation::Send, from, token)
    }

    fn write(&self, from: &Slice, to: RemoteMemory, immediate: Option<u32>, token: u64) -> Result<Begun, FabricError> {
        self.begin(Operation::Write { to, immediate }, from, token)
    }

    fn read(&self, into: &Slice, from: RemoteMemory, token: u64) -> Result<Begun, FabricError> {
        self.begin(Operation::Read { from }, into, token)
    }

    fn poll(&self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let mut inbox = self.link.inbox.lock();
        self.link.hear(&mut inbox);
        self.link.ping(&mut inbox);
        let ends = |completion: &&Completion| matches!(completion, Completion::Done { .. } | Completion::Failed { .. });
        // A receive that failed counts, too; but then the connection is of no use any more.
        let ended = inbox.happened.iter().filter(ends).count();
        let _ = self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(ended)));
        completions.extend(inbox.happened.drain(..));
        match &inbox.over {
            Some(why) if completions.is_empty() => Err(why.clone()),
            _ => Ok(()),
        }
    }

    fn wait(&self, patience: Duration) {
        let patience = PollTimeout::try_from(patience.min(Duration::from_secs(3600))).unwrap_or(PollTimeout::MAX);
        let mut ends = [self.waker.1.as_fd(), self.link.channel.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let _ = poll(&mut ends, patience);
        let mut woken = [0; 64];
        while matches!((&self.waker.1).read(&mut woken), Ok(count) if count == woken.len()) {}
    }

    fn wake(&self) {
        // A full pipe wakes as well.
        let _ = (&self.waker.0).write(&[1]);
    }

    fn rest(&self) {
        // A process that does not answer takes nothing either.
        let _ = self.link.ask(&Request::Rest, None, REST_TIME);
    }

    fn close(&self) -> Result<(), FabricError> {
        if matches!(self.link.ask(&Request::Close, None, CLOSE_TIME), Ok(Reply::Done)) {
            self.is_closed.store(true, Ordering::Relaxed);
            return Ok(());
        }
        self.process.kill()
    }
}

impl Drop for ProcessEndpoint {
    fn drop(&mut self) {
        // Regions may keep the socket.
        self.link.channel.end();
        let (link, process) = (self.link.clone(), self.process.clone());
        let patience = if self.is_closed.load(Ordering::Relaxed) { LET_GO_TIME } else { END_TIME };
        let _ =
            thread::Builder::new().name("endpoint-end".into()).spawn(move || end(&link.channel, &process, patience));
    }
}

/// Waits until the process has let go of an endpoint, and kills the process if it does not: its library hangs.
fn end(channel: &Channel, process: &RailProcess, patience: Duration) {
    if !channel.has_ended(patience) {
        let _ = process.kill();
    }
}

/// Memory that the process has registered.
struct ProcessRegion {
    id: u32,
    bytes: usize,
    remote: RemoteMemory,
    link: Arc<Link>,
}

impl Region for ProcessRegion {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn remote(&self) -> RemoteMemory {
        self.remote
    }

    fn as_any(&self) -> &dyn any::Any {
        self
    }
}

impl Drop for ProcessRegion {
    fn drop(&mut self) {
        // A process that does not hear this keeps the memory until it ends.
        let _ = self.link.channel.send(&Request::Forget { region: self.id }, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A late answer to what is given up must not pass for that to a question which a guest's memory depends on.
    #[test]
    fn an_answer_that_comes_too_late_answers_nothing() {
        let (channel, other) = Channel::pair().unwrap();
        let (link, process) = (Link { channel, inbox: Mutex::default(), asks: Mutex::new(()) }, Channel::of(other));
        let patience = Duration::from_millis(20);
        assert_eq!(link.ask(&Request::Rest, None, patience), Err(hangs()));
        assert!(process.send(&Word::Reply(Ok(Reply::Done)), None).unwrap());
        assert_eq!(link.ask(&Request::Close, None, patience), Err(hangs()));
    }
}
