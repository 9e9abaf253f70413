//! Keeps the hosts of the fake: their NICs, their dials, and where they listen.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connection::{self, End};
use super::network::{AcceptQueue, Arrived, FakeNetwork, Listening, path};
use crate::link::{
    Caps, Connection, Dial, DialError, Link, LinkError, LocalAddress, PacketProbe, Pending, Shutdown, TrafficClass,
};
use crate::listen::{Incoming, ListenError, Listeners, ListeningNic, Security};

/// Holds the first byte of an end that shakes hands as if under TLS: the type of TLS' handshake records (RFC 8446,
/// section 5.1).
const ENCRYPTED: u8 = 22;
/// Bounds how many connections wait to be taken.
const BACKLOG: usize = 128;
/// Says how many bytes of a packet are no payload.
const HEADER_BYTES: u32 = 40;

/// A NIC of a fake host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeNic {
    /// The NIC's number.
    pub index: u32,
    /// The NIC's name.
    pub name: String,
    /// The NIC's address.
    pub ip: IpAddr,
    /// The NIC's largest packet, in bytes.
    pub mtu: u32,
}

/// A host of the fake.
#[derive(Debug)]
pub struct FakeHost {
    network: Arc<FakeNetwork>,
    name: String,
    nics: Mutex<Vec<FakeNic>>,
}

impl FakeNetwork {
    /// Adds a host with NICs, by name and address. Their packets have 1500 bytes.
    pub fn host(self: &Arc<Self>, name: &str, nics: &[(&str, IpAddr)]) -> Arc<FakeHost> {
        let nic = |(index, (name, ip)): (u32, &(&str, IpAddr))| FakeNic {
            index,
            name: (*name).to_owned(),
            ip: *ip,
            mtu: 1500,
        };
        let nics = Mutex::new((1..).zip(nics).map(nic).collect());
        Arc::new(FakeHost { network: self.clone(), name: name.to_owned(), nics })
    }
}

impl FakeHost {
    /// Returns the host's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the host's NICs.
    pub fn nics(&self) -> Vec<FakeNic> {
        self.lock().clone()
    }

    /// Gives the host other NICs.
    pub fn set_nics(&self, nics: Vec<FakeNic>) {
        *self.lock() = nics;
    }

    /// Returns the link by which the host dials.
    pub fn link(self: &Arc<Self>, security: Security) -> FakeLink {
        FakeLink { host: self.clone(), security }
    }

    /// Returns the host's listeners, which listen nowhere yet.
    pub fn listeners(self: &Arc<Self>) -> FakeListeners {
        FakeListeners { host: self.clone(), queue: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<FakeNic>> {
        self.nics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mtu(&self, ip: IpAddr) -> Option<u32> {
        self.lock().iter().find(|nic| nic.ip == ip).map(|nic| nic.mtu)
    }
}

fn caps(network: &FakeNetwork, security: Security) -> Caps {
    Caps { encrypted: security == Security::Encrypted, ..network.caps }
}

/// The link by which a host of the fake dials.
#[derive(Clone, Debug)]
pub struct FakeLink {
    host: Arc<FakeHost>,
    security: Security,
}

impl FakeLink {
    fn dial_as(&self, dial: &Dial, security: Security, patience: Duration) -> Result<FakePending, LinkError> {
        let network = &self.host.network;
        let to = dial.to;
        let refused = |kind: io::ErrorKind| DialError::Remote { to, source: kind.into() };
        let from = match &dial.from {
            Some(LocalAddress { ip, nic, .. }) => {
                let gone =
                    || DialError::Local { ip: *ip, nic: nic.clone(), source: io::ErrorKind::AddrNotAvailable.into() };
                self.host.mtu(*ip).map(|_| *ip).ok_or_else(gone)?
            }
            None => self.source_of(to).ok_or_else(|| refused(io::ErrorKind::NetworkUnreachable))?,
        };
        let (host, nic, queue) = {
            let state = network.lock();
            if state.is_stalled(path(from, to.ip())) {
                return Err(refused(io::ErrorKind::HostUnreachable).into());
            }
            let listening = state.listening.iter().find(|listening| listening.at == to);
            let listening = listening.ok_or_else(|| refused(io::ErrorKind::ConnectionRefused))?;
            (listening.host.clone(), listening.nic.clone(), listening.queue.clone())
        };
        let [here, there] = connection::ends(&network.wire(from, to.ip()));
        if security == Security::Encrypted {
            here.greet(&[ENCRYPTED])?;
        }
        let peer = (security == Security::Encrypted).then(|| self.host.name.clone());
        let caps = caps(network, security);
        let mut waiting = queue.lock();
        if waiting.len() >= BACKLOG {
            return Err(refused(io::ErrorKind::ConnectionRefused).into());
        }
        let remote = SocketAddr::new(from, 0);
        waiting.push_back(Arrived { end: there, peer, nic, local: to, remote });
        queue.changed.notify_all();
        let peer = (security == Security::Encrypted).then_some(host);
        let network = network.clone();
        Ok(FakePending { network, end: here, caps, peer, patience, deadline: Instant::now() + patience })
    }
}

impl Link for FakeLink {
    fn caps(&self) -> Caps {
        caps(&self.host.network, self.security)
    }

    /// Returns the host's address in the same /24 network or, for an IPv6 address, the first.
    fn source_of(&self, to: SocketAddr) -> Option<IpAddr> {
        let near = |ip: IpAddr| match (ip, to.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => a.octets()[..3] == b.octets()[..3],
            _ => false,
        };
        let nics = self.host.lock();
        nics.iter().find(|nic| near(nic.ip)).or(nics.first()).map(|nic| nic.ip)
    }

    fn dial(&self, dial: &Dial) -> Result<Box<dyn Pending>, LinkError> {
        Ok(Box::new(self.dial_as(dial, self.security, dial.handshake_time)?))
    }

    fn probe(
        &self,
        dial: &Dial,
        probe: &dyn Fn(usize) -> Vec<u8>,
        answer_time: Duration,
    ) -> Result<PacketProbe, LinkError> {
        let mut pending = self.dial_as(dial, Security::Plain, answer_time)?;
        let from = dial.from.as_ref().map(|from| from.ip).or_else(|| self.source_of(dial.to));
        let mtu = from.and_then(|ip| self.host.mtu(ip)).unwrap_or(1500);
        let packet_bytes = dial.packet_bytes.unwrap_or(mtu).min(mtu);
        let limit = from.and_then(|ip| {
            let limits = &self.host.network.lock().packet_bytes_max;
            limits.get(&path(ip, dial.to.ip())).copied()
        });
        if limit.is_some_and(|limit| packet_bytes > limit) {
            return Ok(PacketProbe::Lost);
        }
        let mut sent = probe((packet_bytes - HEADER_BYTES) as usize);
        let begun = Instant::now();
        pending.send(&sent)?;
        match pending.receive(&mut sent) {
            Ok(()) => Ok(PacketProbe::Whole { round_trip: begun.elapsed() }),
            Err(LinkError::Late(_)) => Ok(PacketProbe::Unanswered),
            Err(error) => Err(error),
        }
    }
}

/// A connection of the fake during its handshake.
struct FakePending {
    network: Arc<FakeNetwork>,
    end: Arc<End>,
    caps: Caps,
    peer: Option<String>,
    patience: Duration,
    deadline: Instant,
}

impl Pending for FakePending {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn peer(&self) -> Option<&str> {
        self.peer.as_deref()
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        Ok(self.end.greet(bytes)?)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), LinkError> {
        match self.end.hear(buffer, self.deadline)? {
            true => Ok(()),
            false => Err(LinkError::Late(self.patience)),
        }
    }

    fn mark(&mut self, class: TrafficClass) -> io::Result<()> {
        self.network.lock().marked.push(class);
        Ok(())
    }

    fn split(self: Box<Self>) -> Result<Connection, LinkError> {
        Ok(connection::split(self.end, self.caps))
    }
}

/// The listeners of a host of the fake.
#[derive(Debug)]
pub struct FakeListeners {
    host: Arc<FakeHost>,
    queue: Arc<AcceptQueue>,
}

impl FakeListeners {
    fn is_own(&self, listening: &Listening) -> bool {
        Arc::ptr_eq(&listening.queue, &self.queue)
    }
}

impl Listeners for FakeListeners {
    fn listen(&self, address: SocketAddr, nic: Option<ListeningNic>) -> Result<u16, ListenError> {
        let nics = self.host.nics();
        let wanted = |own: &&FakeNic| match &nic {
            Some(nic) => own.index == nic.index,
            None => address.ip().is_unspecified() || own.ip == address.ip(),
        };
        let mut state = self.host.network.lock();
        let port = if address.port() == 0 { state.next_port.max(40_000) } else { address.port() };
        state.next_port = state.next_port.max(port) + 1;
        for own in nics.iter().filter(wanted) {
            let at = SocketAddr::new(own.ip, port);
            if state.listening.iter().any(|listening| listening.at == at) {
                let source = io::ErrorKind::AddrInUse.into();
                return Err(ListenError { address, nic: nic.map(|nic| nic.name), source });
            }
            let (host, queue) = (self.host.name.clone(), self.queue.clone());
            state.listening.push(Listening { at, host, nic: nic.clone(), queue });
        }
        Ok(port)
    }

    fn retain(&self, keep: &dyn Fn(&ListeningNic) -> bool) {
        self.host
            .network
            .lock()
            .listening
            .retain(|listening| !self.is_own(listening) || listening.nic.as_ref().is_none_or(keep));
    }

    fn nics(&self) -> BTreeSet<u32> {
        let state = self.host.network.lock();
        let own = state.listening.iter().filter(|listening| self.is_own(listening));
        own.filter_map(|listening| Some(listening.nic.as_ref()?.index)).collect()
    }

    fn accept(&self, patience: Duration) -> io::Result<Vec<io::Result<Box<dyn Incoming>>>> {
        let waiting = self.queue.lock();
        let waited = self.queue.changed.wait_timeout_while(waiting, patience, |waiting| waiting.is_empty());
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let network = &self.host.network;
        let incoming = |arrived| Ok(Box::new(FakeIncoming { arrived, network: network.clone() }) as Box<dyn Incoming>);
        let taken = waiting.drain(..).map(incoming);
        Ok(taken.collect())
    }

    fn close(&self) {
        self.host.network.lock().listening.retain(|listening| !self.is_own(listening));
        self.queue.lock().clear();
    }
}

impl Drop for FakeListeners {
    fn drop(&mut self) {
        self.close();
    }
}

struct FakeIncoming {
    arrived: Arrived,
    network: Arc<FakeNetwork>,
}

impl Incoming for FakeIncoming {
    fn nic(&self) -> Option<&str> {
        self.arrived.nic.as_ref().map(|nic| &nic.name[..])
    }

    fn local(&self) -> io::Result<SocketAddr> {
        Ok(self.arrived.local)
    }

    fn remote(&self) -> SocketAddr {
        self.arrived.remote
    }

    fn first_byte(&self, patience: Duration) -> Option<u8> {
        self.arrived.end.first_byte(Instant::now() + patience)
    }

    fn shutdown(&self) -> Box<dyn Shutdown> {
        self.arrived.end.shutdown()
    }

    fn open(self: Box<Self>, security: Security, patience: Duration) -> Result<Box<dyn Pending>, LinkError> {
        let caps = caps(&self.network, security);
        let Arrived { end, peer, .. } = self.arrived;
        let mut pending =
            FakePending { network: self.network, end, caps, peer, patience, deadline: Instant::now() + patience };
        if security == Security::Encrypted {
            let mut first = [0];
            pending.receive(&mut first)?;
            if first != [ENCRYPTED] {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the other end does not encrypt").into());
            }
        }
        Ok(Box::new(pending))
    }
}
