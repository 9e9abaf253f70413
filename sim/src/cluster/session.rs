//! Sessions between agents, and the network below them.

use std::collections::{BTreeMap, VecDeque};

use skein_session::{Role, Session, Settings, StreamId};

use super::index::{HostIx, QemuIx};
use crate::network::PathSpec;
use crate::world::{Applications, End, Time, World};

/// The destination of the control stream.
pub const CONTROL: &str = "skein:control";

/// The network, which outlives sessions.
#[derive(Default)]
pub struct Wire {
    /// For each pair of hosts, the lesser first, the path on each NIC. The first end of a path is the lesser host's.
    pub paths: BTreeMap<(HostIx, HostIx), Vec<PathSpec>>,
    /// How many faults swallow what goes from one host to another over a NIC.
    pub holes: BTreeMap<(HostIx, HostIx, usize), u32>,
    /// Faults that slow a pair's NIC.
    pub slow: Vec<(HostIx, HostIx, usize, f64)>,
    /// The longest time that a driver's thread takes to run once the thread is woken.
    pub thread_delay: Time,
}

impl Wire {
    /// Returns how many NICs each host has.
    pub fn nics(&self) -> usize {
        self.paths.values().next().map_or(0, Vec::len)
    }
}

/// A session between two agents.
pub struct AgentSession {
    pub world: World<Relay>,
    /// The dialling and the accepting agent.
    pub agents: [HostIx; 2],
    /// This end's agent has ended the session, or is no more.
    pub gone: [bool; 2],
    /// Each end's control stream.
    pub control: [Option<ControlStream>; 2],
    /// The streams of each end that carry channels of QEMUs.
    pub streams: [BTreeMap<StreamId, (QemuIx, usize)>; 2],
    /// The dialling agent has had contact by this session.
    pub established: bool,
    pub begun_at: Time,
}

impl AgentSession {
    /// Returns whether that end can send a message.
    pub fn works(&self, end: End) -> bool {
        !self.gone[end]
            && self.control[end].is_some()
            && self.world.ends[end].session.status().paths.iter().any(|path| path.usable)
    }
}

/// One end of a control stream.
pub struct ControlStream {
    pub stream: StreamId,
    /// The bytes of a message that has not arrived whole.
    pub inbox: Vec<u8>,
}

impl ControlStream {
    pub fn new(stream: StreamId) -> ControlStream {
        ControlStream { stream, inbox: Vec::new() }
    }
}

/// Hands a session's events to the cluster.
#[derive(Default)]
pub struct Relay {
    pub events: VecDeque<(End, SessionEvent)>,
    pub streams_max: u64,
}

/// What happened to one end of a session.
pub enum SessionEvent {
    Opened(StreamId, String),
    Readable(StreamId),
    Writable(StreamId),
    Ended,
    Resumed,
}

impl Applications for Relay {
    type Do = ();

    fn act(_world: &mut World<Relay>, _action: ()) {}

    fn opened(world: &mut World<Relay>, end: End, id: StreamId, target: &str) {
        world.apps.events.push_back((end, SessionEvent::Opened(id, target.to_owned())));
    }

    fn readable(world: &mut World<Relay>, end: End, id: StreamId) {
        world.apps.events.push_back((end, SessionEvent::Readable(id)));
    }

    fn writable(world: &mut World<Relay>, end: End, id: StreamId) {
        world.apps.events.push_back((end, SessionEvent::Writable(id)));
    }

    fn ended(world: &mut World<Relay>, end: End) {
        world.apps.events.push_back((end, SessionEvent::Ended));
    }

    fn resumed(world: &mut World<Relay>, end: End) {
        world.apps.events.push_back((end, SessionEvent::Resumed));
    }

    fn streams_max(&self) -> u64 {
        self.streams_max
    }
}

/// Kills the process of an end: its memory is gone.
pub fn kill(world: &mut World<Relay>, end: End) {
    world.die(end);
    let role = [Role::Dialer, Role::Acceptor][end];
    let mut session = Session::new(world.clock(), role, Settings::default());
    session.close();
    while session.poll_event().is_some() {}
    world.ends[end].session = session;
}
