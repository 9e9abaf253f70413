//! Two sessions, a network and their applications in virtual time.
//!
//! Everything happens in the order of one heap of timed actions; ties go by the order of scheduling,
//! and whatever is random comes from one [`Rng`]. So one seed is one exact run.
//!
//! The drivers of both ends keep to the documented contract and do nothing more, so that a wake-up
//! that the session owes and forgets is a wait without end here, too: a connection is polled after
//! [`Event::Transmit`] until it has nothing or its socket is full, and at [`Session::transmit_at`] as
//! it was when the poll came back empty; `handle_timeout` is called every 20 ms; a stream is read
//! after [`Event::Readable`] until `Pending`, and written to again after [`Event::Writable`].
//!
//! | module | what it simulates |
//! |---|---|
//! | [`network`] | paths, TCP-like connections, faults |
//! | [`driver`] | what polls a session, carries its frames, dials |
//! | [`app`] | streams: who writes and reads how, and whether it came out right |
//! | [`scenario`] | a run, from a seed |

#![allow(dead_code)] // each test file uses its part
#![allow(clippy::disallowed_methods)] // SKEIN_TRACE

pub mod app;
pub mod driver;
pub mod network;
pub mod rng;
pub mod scenario;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use skein_core::handshake::Address;
use skein_core::session::{Down, Ended, Footprint};
use skein_core::{Role, Session, Settings, StreamId};

use app::{App, StreamSpec};
use network::{Conn, Fault, PathSpec, PathState};
use rng::Rng;

/// Nanoseconds since the run began.
pub type Time = u64;
pub const US: Time = 1_000;
pub const MS: Time = 1_000_000;
pub const S: Time = 1_000_000_000;

/// One of the two ends; also the direction that it sends in.
pub type End = usize;
pub const DIALER: End = 0;
pub const ACCEPTOR: End = 1;
pub const ENDS: [End; 2] = [DIALER, ACCEPTOR];

pub type ConnIx = usize;
pub type PathIx = usize;
pub type StreamIx = usize;

/// Everything that is fixed before a run.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub settings: Settings,
    /// What both clocks show when the run begins.
    pub epoch: Duration,
    pub paths: Vec<PathSpec>,
    pub streams: Vec<StreamSpec>,
    pub faults: Vec<(Time, Fault)>,
    /// Longest that a driver's thread takes to run once it is woken.
    pub thread_delay: Time,
    /// A path that was lost comes back under a new number.
    pub new_path_ids: bool,
    /// Nothing may stall, be closed or be sent twice.
    pub calm: bool,
    /// A lie that the checkers must find; see [`Sabotage`].
    pub sabotage: Option<Sabotage>,
}

/// Faults of the session itself, as seen from outside: to show that the checkers find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// From 200 ms on, acknowledgements repeat what the first said.
    LostAcks,
    /// From 200 ms on, credits repeat the initial one.
    LostCredits,
    /// One data frame carries the bytes of another place.
    StaleRange,
    /// One in twenty `Event::Transmit` is lost.
    LostWakeups,
    /// One in twenty `Event::Readable` is lost.
    LostReadable,
    /// A stream's end is told too early.
    EarlyFin,
}

#[derive(Debug)]
enum Do {
    Tick(End),
    Poll(End, ConnIx),
    PollAt(End, ConnIx, Duration),
    Served(PathIx, End),
    Arrive(ConnIx, End),
    Broken(ConnIx, End, Down),
    PeerReset(ConnIx, End),
    Refused(ConnIx),
    Dial(PathIx),
    DialTimeout(ConnIx),
    Open(StreamIx),
    Write(End, StreamIx),
    Finish(End, StreamIx),
    Read(End, StreamIx),
    Consume(End, StreamIx, u64),
    Reset(End, StreamIx),
    Fault(usize),
    Heal(usize),
}

struct Scheduled(Time, u64, Do);

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// One end: its session and what its process knows.
pub struct EndState {
    pub session: Session,
    /// Its process is stopped that often over.
    pub paused: u32,
    pub dead: bool,
    pub ended: Option<Ended>,
    pub ended_at: Time,
    pub ids: BTreeMap<StreamId, StreamIx>,
    pub apps: BTreeMap<StreamIx, App>,
    pub announced: Vec<Address>,
    pub peer_addresses: Vec<Address>,
    /// [`World::actions`] when memory was last looked at.
    checked_at: u64,
    /// Worst of each field that was seen.
    pub worst: Footprint,
    pub stalls: u32,
    pub closes: u32,
}

/// What bounded waiting means: set by the scenario, checked by its runner.
pub struct World {
    pub config: Config,
    pub now: Time,
    pub rng: Rng,
    pub ends: [EndState; 2],
    pub paths: Vec<PathState>,
    pub conns: Vec<Conn>,
    /// Ends of streams that are not over for their application.
    pub unfinished: usize,
    pub failure: Option<String>,
    /// The accepting end took the other for dead, where it could not know better.
    pub given_up: bool,
    /// Bytes that each end's applications received, by 10 ms.
    pub received: [Vec<u64>; 2],
    pub actions: u64,
    /// For [`Sabotage`]: what was said first, by whom of what; whether the one lie was told.
    said_first: BTreeMap<(End, u8, u32), u64>,
    lied: bool,
    seq: u64,
    heap: BinaryHeap<Reverse<Scheduled>>,
    trace: bool,
}

macro_rules! trace {
    ($world:expr, $($arg:tt)*) => {
        if $world.trace {
            eprintln!("{:>12.6} {}", $world.now as f64 / 1e9, format_args!($($arg)*));
        }
    };
}
pub(crate) use trace;

impl World {
    pub fn new(config: Config) -> World {
        let end = |role| EndState {
            session: Session::new(config.epoch, role, config.settings),
            paused: 0,
            dead: false,
            ended: None,
            ended_at: 0,
            ids: BTreeMap::new(),
            apps: BTreeMap::new(),
            announced: Vec::new(),
            peer_addresses: Vec::new(),
            checked_at: 0,
            worst: Footprint::default(),
            stalls: 0,
            closes: 0,
        };
        let mut world = World {
            now: 0,
            rng: Rng::new(config.seed ^ 0x5eed),
            ends: [end(Role::Dialer), end(Role::Acceptor)],
            paths: config.paths.iter().map(|spec| PathState::new(*spec)).collect(),
            conns: Vec::new(),
            unfinished: config.streams.len() * 2,
            failure: None,
            given_up: false,
            received: [Vec::new(), Vec::new()],
            actions: 0,
            said_first: BTreeMap::new(),
            lied: false,
            seq: 0,
            heap: BinaryHeap::new(),
            trace: std::env::var_os("SKEIN_TRACE").is_some(),
            config,
        };
        for path in 0..world.paths.len() {
            let at = world.paths[path].spec.up_at;
            world.at(at, Do::Dial(path));
        }
        for end in ENDS {
            let first = world.rng.below(20 * MS);
            world.at(first, Do::Tick(end));
        }
        for stream in 0..world.config.streams.len() {
            let spec = &world.config.streams[stream];
            let (open_at, reset) = (spec.open_at, spec.reset);
            world.at(open_at, Do::Open(stream));
            if let Some((end, at)) = reset {
                world.at(at, Do::Reset(end, stream));
            }
        }
        for fault in 0..world.config.faults.len() {
            let at = world.config.faults[fault].0;
            world.at(at, Do::Fault(fault));
        }
        world
    }

    /// The time that sessions are given.
    pub fn clock(&self) -> Duration {
        self.config.epoch + Duration::from_nanos(self.now)
    }

    fn at(&mut self, at: Time, action: Do) {
        self.seq += 1;
        self.heap.push(Reverse(Scheduled(at.max(self.now), self.seq, action)));
    }

    fn after(&mut self, delay: Time, action: Do) {
        self.at(self.now + delay, action);
    }

    pub fn fail(&mut self, why: impl Into<String>) {
        if self.failure.is_none() {
            let why = why.into();
            trace!(self, "FAILURE {why}");
            self.failure = Some(format!("at {:.6} s: {why}", self.now as f64 / 1e9));
        }
    }

    /// Lets time pass until `until`, until `stop`, or until something is wrong.
    pub fn run(&mut self, until: Time, stop: impl Fn(&World) -> bool) {
        while self.failure.is_none() && !stop(self) {
            match self.heap.peek() {
                Some(Reverse(next)) if next.0 <= until => {}
                _ => {
                    self.now = until;
                    return;
                }
            }
            let Reverse(Scheduled(at, _, action)) = self.heap.pop().expect("just peeked");
            self.now = at;
            self.actions += 1;
            self.act(action);
        }
    }

    fn act(&mut self, action: Do) {
        match action {
            Do::Tick(end) => self.tick(end),
            Do::Poll(end, conn) => self.poll(end, conn),
            Do::PollAt(end, conn, at) => self.poll_at(end, conn, at),
            Do::Served(path, dir) => self.served(path, dir),
            Do::Arrive(conn, dir) => self.arrive(conn, dir),
            Do::Broken(conn, end, how) => self.broken(conn, end, how),
            Do::PeerReset(conn, end) => self.peer_reset(conn, end),
            Do::Refused(conn) => self.refused(conn),
            Do::Dial(path) => self.dial(path),
            Do::DialTimeout(conn) => self.dial_timeout(conn),
            Do::Open(stream) => self.open(stream),
            Do::Write(end, stream) => self.write(end, stream),
            Do::Finish(end, stream) => self.finish(end, stream),
            Do::Read(end, stream) => self.read(end, stream),
            Do::Consume(end, stream, bytes) => self.consume(end, stream, bytes),
            Do::Reset(end, stream) => self.reset(end, stream),
            Do::Fault(fault) => self.fault(fault),
            Do::Heal(fault) => self.heal(fault),
        }
    }
}
