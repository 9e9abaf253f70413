//! Is the fake's network: what joins its hosts, and what fails.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use super::connection::{self, End, Wire};
use crate::link::{Caps, Connection, Memory, TrafficClass};
use crate::listen::ListeningNic;

/// Holds the capabilities that the fake promises unless a test asks for others: those of TCP.
pub const FAKE_CAPS: Caps = Caps {
    reliable: true,
    ordered: true,
    flow_controlled: true,
    one_sided: false,
    encrypted: true,
    memory: Memory::Any,
};

/// The hosts, and what joins them.
#[derive(Debug)]
pub struct FakeNetwork {
    pub(super) caps: Caps,
    seed: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    wires: Vec<(Path, Weak<Wire>)>,
    made: u64,
    pub(super) listening: Vec<Listening>,
    pub(super) next_port: u16,
    /// The addresses of NICs whose cable is unplugged.
    cut: BTreeSet<IpAddr>,
    /// The pairs of addresses between which nothing moves.
    stalled: BTreeSet<Path>,
    /// The largest packet between two addresses, in bytes. Larger packets are lost.
    pub(super) packet_bytes_max: BTreeMap<Path, u32>,
    /// The marks that ends were given.
    pub(super) marked: Vec<TrafficClass>,
}

/// An address at which a host listens.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) at: SocketAddr,
    pub(super) host: String,
    pub(super) nic: Option<ListeningNic>,
    pub(super) queue: Arc<AcceptQueue>,
}

/// The connections that wait to be taken.
#[derive(Debug, Default)]
pub(super) struct AcceptQueue {
    waiting: Mutex<VecDeque<Arrived>>,
    pub(super) changed: Condvar,
}

impl AcceptQueue {
    pub(super) fn lock(&self) -> MutexGuard<'_, VecDeque<Arrived>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that waits to be taken.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) end: Arc<End>,
    /// The host that dialled, if it has proven who it is.
    pub(super) peer: Option<String>,
    pub(super) nic: Option<ListeningNic>,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
}

/// Two addresses, the smaller first.
type Path = (IpAddr, IpAddr);

pub(super) fn path(a: IpAddr, b: IpAddr) -> Path {
    (a.min(b), a.max(b))
}

impl State {
    pub(super) fn is_stalled(&self, path: Path) -> bool {
        self.stalled.contains(&path) || [path.0, path.1].iter().any(|ip| self.cut.contains(ip))
    }

    /// Tells the connections whether anything moves on them.
    fn update_wires(&mut self) {
        self.wires.retain(|(_, wire)| wire.strong_count() > 0);
        for (path, wire) in &self.wires {
            if let Some(wire) = wire.upgrade() {
                wire.set_stalled(self.is_stalled(*path));
            }
        }
    }
}

impl FakeNetwork {
    /// Makes a network without hosts, whose connections promise `caps`.
    pub fn new(caps: Caps, seed: u64) -> Arc<FakeNetwork> {
        Arc::new(FakeNetwork { caps, seed, state: Mutex::default() })
    }

    /// Returns both ends of a new connection between two addresses, after the handshake.
    pub fn connect(&self, a: IpAddr, b: IpAddr) -> (Connection, Connection) {
        let wire = self.wire(a, b);
        let [here, there] = connection::ends(&wire);
        (connection::split(here, self.caps), connection::split(there, self.caps))
    }

    /// Stops everything between two addresses. No end is told, and dials fail.
    pub fn stall(&self, a: IpAddr, b: IpAddr) {
        let mut state = self.lock();
        state.stalled.insert(path(a, b));
        state.update_wires();
    }

    /// Lets go on what [`Self::stall`] stopped.
    pub fn resume(&self, a: IpAddr, b: IpAddr) {
        let mut state = self.lock();
        state.stalled.remove(&path(a, b));
        state.update_wires();
    }

    /// Unplugs the cable of the NIC that has an address.
    pub fn cut(&self, ip: IpAddr) {
        let mut state = self.lock();
        state.cut.insert(ip);
        state.update_wires();
    }

    /// Plugs the cable in again.
    pub fn mend(&self, ip: IpAddr) {
        let mut state = self.lock();
        state.cut.remove(&ip);
        state.update_wires();
    }

    /// Resets all connections between two addresses. Both ends see the reset.
    pub fn reset(&self, a: IpAddr, b: IpAddr) {
        let state = self.lock();
        for wire in state.wires.iter().filter(|(between, _)| *between == path(a, b)).filter_map(|(_, w)| w.upgrade()) {
            wire.reset();
        }
    }

    /// Kills the process that uses an address: its connections are closed there, and nobody listens.
    pub fn kill(&self, ip: IpAddr) {
        let mut state = self.lock();
        state.listening.retain(|listening| listening.at.ip() != ip);
        let ends = state.wires.iter().filter_map(|(_, wire)| wire.upgrade()).collect::<Vec<_>>();
        drop(state);
        ends.iter().for_each(|wire| wire.close_at(ip));
    }

    /// Loses packets of more than `bytes` bytes between two addresses from now on; `None`: all packets pass.
    pub fn lose_packets_above(&self, a: IpAddr, b: IpAddr, bytes: Option<u32>) {
        let limits = &mut self.lock().packet_bytes_max;
        match bytes {
            Some(bytes) => limits.insert(path(a, b), bytes),
            None => limits.remove(&path(a, b)),
        };
    }

    /// Returns the marks that ends of connections were given so far.
    pub fn marked(&self) -> Vec<TrafficClass> {
        self.lock().marked.clone()
    }

    /// Returns how many connections either end still holds.
    pub fn connections(&self, a: IpAddr, b: IpAddr) -> usize {
        let state = self.lock();
        state.wires.iter().filter(|(between, wire)| *between == path(a, b) && wire.strong_count() > 0).count()
    }

    pub(super) fn wire(&self, a: IpAddr, b: IpAddr) -> Arc<Wire> {
        let mut state = self.lock();
        state.made += 1;
        let wire = Arc::new(Wire::new([a, b], self.caps.ordered, self.seed.wrapping_add(state.made)));
        wire.set_stalled(state.is_stalled(path(a, b)));
        state.wires.push((path(a, b), Arc::downgrade(&wire)));
        wire
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
