//! What paths and connections are made of.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use skein_session::frame::HEADER_BYTES;
use skein_session::{ConnectionKind, PathId};

use crate::time::{ConnIx, End, PathIx, Time};

#[derive(Clone, Copy, Debug)]
pub struct PathSpec {
    /// Bytes per second, by the end that sends.
    pub rate: [f64; 2],
    /// One way.
    pub latency: Time,
    pub jitter: Time,
    /// Bytes that the NIC's queue holds.
    pub queue: u64,
    /// Bytes that a connection's socket holds.
    pub socket: u64,
    pub data_connections: usize,
    pub up_at: Time,
}

impl PathSpec {
    /// A path of so many bytes per second both ways, as a LAN has it.
    pub fn lan(rate: f64) -> PathSpec {
        PathSpec {
            rate: [rate; 2],
            latency: 50_000,
            jitter: 20_000,
            queue: 256 << 10,
            socket: 512 << 10,
            data_connections: 3,
            up_at: 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Nothing that is sent in these directions arrives.
    Hole { path: PathIx, dirs: [bool; 2], lasts: Time },
    /// The path is dark, and the ends' connections fail after these times.
    Cut { path: PathIx, dies_after: [Time; 2], lasts: Time },
    /// The path is dark, and one end knows it from its NIC.
    Carrier { path: PathIx, end: End, lasts: Time },
    /// Every path is dark.
    Dark { lasts: Time },
    /// One end's process does not run.
    Pause { end: End, lasts: Time },
    /// The path gets slower.
    Slow { path: PathIx, share: f64, lasts: Time },
    /// One connection fails, at these times at the ends.
    Kill { pick: u64, after: [Time; 2] },
    /// An end gets other addresses.
    Announce { end: End, number: u8 },
}

impl Fault {
    pub fn lasts(&self) -> Time {
        match *self {
            Fault::Cut { lasts, dies_after, .. } => lasts.max(dies_after[0]).max(dies_after[1]),
            Fault::Hole { lasts, .. }
            | Fault::Carrier { lasts, .. }
            | Fault::Dark { lasts }
            | Fault::Pause { lasts, .. }
            | Fault::Slow { lasts, .. } => lasts,
            Fault::Kill { after, .. } => after[0].max(after[1]),
            Fault::Announce { .. } => 0,
        }
    }
}

pub struct PathState {
    pub spec: PathSpec,
    pub links: [SimCable; 2],
    /// The number that the dialling end calls it by at the moment.
    pub id: PathId,
    pub control: Option<ConnIx>,
    pub data: Vec<ConnIx>,
}

impl PathState {
    pub fn new(spec: PathSpec) -> PathState {
        PathState { spec, links: Default::default(), id: PathId(u32::MAX), control: None, data: Vec::new() }
    }
}

/// One direction of a path.
#[derive(Default)]
pub struct SimCable {
    /// Connections with bytes that the queue has no room for yet.
    pub(crate) turn: VecDeque<ConnIx>,
    pub(crate) queue: VecDeque<Segment>,
    pub(crate) queued: u64,
    pub(crate) on_wire: Option<Segment>,
    /// So many faults swallow what it carries, the first since then.
    pub(crate) holes: u32,
    pub(crate) since: Time,
    /// Faults that slow it down.
    pub(crate) slow: Vec<f64>,
}

/// Bytes of one connection in a path's queue.
pub(crate) struct Segment {
    pub(crate) conn: ConnIx,
    pub(crate) bytes: u64,
    /// Packets that end in it.
    pub(crate) packets: Vec<Packet>,
}

#[derive(Debug)]
pub struct Packet {
    pub bytes: u64,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    Hello,
    Welcome,
    Refuse,
    Frame([u8; HEADER_BYTES], Vec<Bytes>),
    /// The sender closed the connection.
    Fin,
}

pub struct SimConnection {
    pub path: PathIx,
    pub path_id: PathId,
    pub kind: ConnectionKind,
    pub sides: [Side; 2],
    pub flows: [Flow; 2],
}

/// What one end of a connection has sent.
#[derive(Default)]
pub struct Flow {
    /// Bytes in its socket: the peer's process has not read them.
    pub buffered: u64,
    /// Read by the peer, but that word is lost in a black hole of the other direction.
    pub(crate) unfreed: u64,
    pub(crate) waiting: VecDeque<Packet>,
    /// Bytes of the first that are in the path's queue already.
    pub(crate) head: u64,
    pub(crate) in_turn: bool,
    pub(crate) arrivals: VecDeque<(Time, Packet)>,
    pub not_before: Time,
    /// Nothing more arrives.
    pub(crate) dead: bool,
}

impl Flow {
    /// Bytes wait that nobody will see any more.
    pub fn kill(&mut self) {
        self.dead = true;
        self.waiting.clear();
        self.arrivals.clear();
    }
}

/// One end of a connection.
#[derive(Default)]
pub struct Side {
    pub(crate) state: State,
    /// The session has, or may have, something to send on it.
    pub(crate) wants: bool,
    /// A thread is about to poll.
    pub(crate) scheduled: bool,
    /// The [`transmit_at`](skein_session::Session::transmit_at) of the last poll that came back empty.
    pub(crate) armed: Option<Duration>,
    pub inbox: VecDeque<Packet>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// Shakes hands.
    #[default]
    New,
    Up,
    Closed,
}

impl Side {
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }
}
