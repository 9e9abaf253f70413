//! Two sessions and the network between them in virtual time.
//!
//! Everything happens in the order of one heap of timed actions; ties go by the order of scheduling,
//! and whatever is random comes from one [`Rng`]. So one seed is one exact run.
//!
//! The drivers of both ends keep to the documented contract and do nothing more, so that a wake-up
//! that the session owes and forgets is a wait without end here, too: a connection is polled after
//! [`Event::Transmit`](skein_session::Event::Transmit) until it has nothing or its socket is full, and at
//! [`Session::transmit_at`] as it was when the poll came back empty; `handle_timeout` is called every 20 ms; a stream
//! is read after [`Event::Readable`](skein_session::Event::Readable) until `Pending`, and written to again after
//! [`Event::Writable`](skein_session::Event::Writable). Who opens, writes and reads streams are the [`Applications`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use bytes::Bytes;
use skein_session::address::NicAddress;
use skein_session::{ConnectionEnd, Ended, Footprint, Role, Session, Settings, StreamId};

use crate::parts::{Fault, PathSpec, PathState, SimConnection};
use crate::rng::Rng;
pub use crate::time::{ACCEPTOR, ConnIx, DIALER, ENDS, End, MS, PathIx, S, Time, US};

/// Everything that is fixed before a run.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub settings: Settings,
    /// What both clocks show when the run begins.
    pub epoch: Duration,
    pub paths: Vec<PathSpec>,
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
    /// From 200 ms on, credits repeat the first, or what a stream begins with.
    LostCredits,
    /// One data frame carries the bytes of another place.
    StaleRange,
    /// One in twenty `Event::Transmit` is lost.
    LostWakeups,
    /// One in twenty `Event::Readable` is lost.
    LostReadable,
    /// A stream's end is told too early.
    EarlyFin,
    /// One sent frame in twenty stays in memory after it was acknowledged.
    LeakedFrame,
}

/// What opens streams and uses them.
pub trait Applications: Sized {
    /// What they do at a time that they choose.
    type Do;
    /// It is time for that.
    fn act(world: &mut World<Self>, action: Self::Do);
    /// The peer opened a stream.
    fn opened(world: &mut World<Self>, end: End, id: StreamId, target: &str);
    /// As the session's event.
    fn readable(world: &mut World<Self>, end: End, id: StreamId);
    /// As the session's event.
    fn writable(world: &mut World<Self>, end: End, id: StreamId);
    /// The session of an end is over.
    fn ended(_world: &mut World<Self>, _end: End) {}
    /// The process of an end runs again.
    fn resumed(world: &mut World<Self>, end: End);
    /// Streams that there may be at once, for the bounds of memory.
    fn streams_max(&self) -> u64;
}

pub(crate) enum Do<D> {
    App(D),
    Tick(End),
    Poll(End, ConnIx),
    PollAt(End, ConnIx, Duration),
    Served(PathIx, End),
    Arrive(ConnIx, End),
    Broken(ConnIx, End, ConnectionEnd),
    PeerReset(ConnIx, End),
    Refused(ConnIx),
    Dial(PathIx),
    DialTimeout(ConnIx),
    Fault(usize),
    Heal(usize),
}

struct Scheduled<D>(Time, u64, Do<D>);

impl<D> PartialEq for Scheduled<D> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl<D> Eq for Scheduled<D> {}
impl<D> PartialOrd for Scheduled<D> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<D> Ord for Scheduled<D> {
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
    pub announced: Vec<NicAddress>,
    pub peer_addresses: Vec<NicAddress>,
    /// [`World::actions`] when memory was last looked at.
    pub(crate) checked_at: u64,
    /// Worst of each field that was seen.
    pub worst: Footprint,
    pub stalls: u32,
    pub closes: u32,
}

/// What bounded waiting means: set by the scenario, checked by its runner.
pub struct World<A: Applications> {
    pub config: Config,
    pub apps: A,
    pub now: Time,
    pub rng: Rng,
    pub ends: [EndState; 2],
    pub paths: Vec<PathState>,
    pub conns: Vec<SimConnection>,
    pub failure: Option<String>,
    /// The accepting end took the other for dead, where it could not know better.
    pub given_up: bool,
    pub actions: u64,
    /// For [`Sabotage`]: what was said first, by whom of what; whether the one lie was told.
    pub(crate) said_first: BTreeMap<(End, u8, u32), u64>,
    pub(crate) lied: bool,
    pub(crate) leaked: Vec<Bytes>,
    seq: u64,
    heap: BinaryHeap<Reverse<Scheduled<A::Do>>>,
    /// Lines of what happens begin with this; none: nothing is shown.
    pub trace: Option<String>,
}

macro_rules! trace {
    ($world:expr, $($arg:tt)*) => {
        if let Some(prefix) = &$world.trace {
            eprintln!("{:>12.6} {prefix}{}", $world.now as f64 / 1e9, format_args!($($arg)*));
        }
    };
}
pub(crate) use trace;

impl<A: Applications> World<A> {
    pub fn new(config: Config, apps: A) -> World<A> {
        World::starting_at(0, config, apps)
    }

    /// A world that begins when others are that old.
    pub fn starting_at(now: Time, config: Config, apps: A) -> World<A> {
        let end = |role| EndState {
            session: Session::new(config.epoch + Duration::from_nanos(now), role, config.settings),
            paused: 0,
            dead: false,
            ended: None,
            ended_at: 0,
            announced: Vec::new(),
            peer_addresses: Vec::new(),
            checked_at: 0,
            worst: Footprint::default(),
            stalls: 0,
            closes: 0,
        };
        let mut world = World {
            now,
            rng: Rng::new(config.seed ^ 0x5eed),
            ends: [end(Role::Dialer), end(Role::Acceptor)],
            paths: config.paths.iter().map(|spec| PathState::new(*spec)).collect(),
            conns: Vec::new(),
            failure: None,
            given_up: false,
            actions: 0,
            said_first: BTreeMap::new(),
            lied: false,
            leaked: Vec::new(),
            seq: 0,
            heap: BinaryHeap::new(),
            trace: None,
            config,
            apps,
        };
        for path in 0..world.paths.len() {
            let at = world.paths[path].spec.up_at;
            world.at(now.max(at), Do::Dial(path));
        }
        for end in ENDS {
            let first = world.rng.below(20 * MS);
            world.after(first, Do::Tick(end));
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

    pub(crate) fn at(&mut self, at: Time, action: Do<A::Do>) {
        self.seq += 1;
        self.heap.push(Reverse(Scheduled(at.max(self.now), self.seq, action)));
    }

    pub(crate) fn after(&mut self, delay: Time, action: Do<A::Do>) {
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
    pub fn run(&mut self, until: Time, stop: impl Fn(&Self) -> bool) {
        while self.failure.is_none() && !stop(self) {
            match self.next_at() {
                Some(next) if next <= until => self.step(),
                _ => {
                    self.now = until;
                    return;
                }
            }
        }
    }

    /// When the next thing happens.
    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(next)| next.0)
    }

    /// Lets the next thing happen.
    pub fn step(&mut self) {
        let Some(Reverse(Scheduled(at, _, action))) = self.heap.pop() else { return };
        self.now = at;
        self.actions += 1;
        match action {
            Do::App(action) => A::act(self, action),
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
            Do::Fault(fault) => self.fault(fault),
            Do::Heal(fault) => self.heal(fault),
        }
    }
}
