//! Tests whole sessions over the fake link: a dialer and an acceptor, each at a host of its own.

mod endings;
mod failures;
mod networks;
mod opening;
mod probing;
mod streams;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use skein_host::{CoreList, InterfaceAddress, Nic, NicError, WantedConnections};
use skein_link::fake::{FAKE_CAPS, FakeHost, FakeNetwork};
use skein_link::{Caps, Security};
use skein_session::Ended;
use skein_session::address::NicAddress;

use crate::acceptor::AcceptingHost;
use crate::dialer::DialingHost;
use crate::host_nics::{Carriers, HostNics};
use crate::{Acceptor, AcceptorSettings, Addresses, Dialer, DialerSettings, IncomingStream, RunningSession};
use crate::{LocalEnd, StreamContent};

/// Bounds every wait of a test.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bounds the wait for an end that comes at once, on a busy machine, too. A session, whose time passes slowly in tests,
/// waits longer for a peer that is gone.
const AT_ONCE: Duration = Duration::from_secs(15);
/// Says how many data connections each path has.
const DATA_CONNECTIONS: usize = 2;
/// Says how many queues each NIC has.
const QUEUES: u32 = 8;

impl HostNics for FakeHost {
    fn carriers(&self, nics: &[String]) -> Vec<Carriers> {
        nics.iter().map(|_| Carriers { queues: Some(QUEUES), bond: None }).collect()
    }

    fn has_rdma(&self, _: &str) -> bool {
        false
    }

    fn near_cores(&self, _: &str) -> Option<CoreList> {
        None
    }

    fn nics(&self) -> Result<Vec<Nic>, NicError> {
        let nics = FakeHost::nics(self).into_iter().map(|nic| Nic {
            name: nic.name,
            index: nic.index,
            mtu: nic.mtu,
            admin_up: true,
            carrier: true,
            speed_mbit: Some(10_000),
            rx_queues: 1,
            addresses: vec![InterfaceAddress { ip: nic.ip, prefix_len: 24, usable: true }],
            ..Nic::default()
        });
        Ok(nics.collect())
    }

    fn keep_apart(&self, _: &[NicAddress]) {}
}

/// Returns the address of host a (1) or b (2) on a path.
fn ip(path: u8, host: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, path, host).into()
}

/// Two hosts.
struct Hosts {
    network: Arc<FakeNetwork>,
    a: Arc<FakeHost>,
    b: Arc<FakeHost>,
}

impl Hosts {
    /// Makes two hosts with a NIC each on each path.
    fn new(paths: u8, caps: Caps) -> Hosts {
        let network = FakeNetwork::new(caps, 7);
        let names: Vec<String> = (0..paths).map(|path| format!("eth{path}")).collect();
        let nics = |host| names.iter().zip(0..).map(|(name, path)| (&name[..], ip(path, host))).collect::<Vec<_>>();
        let (a, b) = (network.host("a", &nics(1)), network.host("b", &nics(2)));
        Hosts { network, a, b }
    }

    fn cut(&self, path: u8) {
        self.network.cut(ip(path, 1));
    }

    fn mend(&self, path: u8) {
        self.network.mend(ip(path, 1));
    }

    fn stall(&self, path: u8) {
        self.network.stall(ip(path, 1), ip(path, 2));
    }

    fn resume(&self, path: u8) {
        self.network.resume(ip(path, 1), ip(path, 2));
    }
}

/// A session between two hosts, with all its connections.
struct Joined {
    hosts: Hosts,
    dialer: Arc<Dialer>,
    /// Accepts connections as long as it is there.
    acceptor: Acceptor,
    accepting: Arc<RunningSession>,
    /// The streams that each end's peer opens: at a, at b.
    streams: [Mutex<Receiver<IncomingStream>>; 2],
}

impl Joined {
    fn new(paths: u8, caps: Caps) -> Joined {
        Joined::with_outage(paths, caps, Duration::from_secs(60))
    }

    fn with_outage(paths: u8, caps: Caps, outage: Duration) -> Joined {
        let joined = Joined::begin(paths, caps, outage, [Addresses::default(), Addresses::default()]);
        wait_until("all paths are up", || joined.is_whole(paths));
        joined
    }

    /// Begins a session of a, which dials, with b. `addresses` say which of their addresses they use.
    fn begin(paths: u8, caps: Caps, outage: Duration, addresses: [Addresses; 2]) -> Joined {
        let fixed = WantedConnections::Fixed(DATA_CONNECTIONS as u8);
        Joined::begin_with(paths, caps, outage, addresses, fixed)
    }

    /// Begins as [`Self::begin`] does, with another number of connections. Nobody tells the queues at b by itself.
    fn begin_with(
        paths: u8,
        caps: Caps,
        outage: Duration,
        addresses: [Addresses; 2],
        connections: WantedConnections,
    ) -> Joined {
        let [of_a, of_b] = addresses;
        let hosts = Hosts::new(paths, caps);
        let (sender, sessions) = mpsc::sync_channel(1);
        let on_session = move |live, streams| sender.send((live, streams)).expect("the test waits");
        let listen = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let settings = AcceptorSettings { listen, addresses: of_b, allow_plain_data: false, outage };
        let host = AcceptingHost { nics: hosts.b.clone(), rails: None, listeners: Box::new(hosts.b.listeners()) };
        let acceptor = Acceptor::start_at(host, settings, Box::new(on_session)).unwrap();
        let settings = DialerSettings {
            to: vec![SocketAddr::new(ip(0, 2), acceptor.port())],
            host: Some("b".into()),
            addresses: of_a,
            connections,
            tells_queues: true,
            plain_data: false,
            outage,
        };
        let link = Arc::new(hosts.a.link(Security::Encrypted));
        let host = DialingHost { nics: hosts.a.clone(), rails: None, control: link.clone(), data: link };
        let (dialer, at_a) = Dialer::start_from(host, settings).unwrap();
        let (accepting, at_b) = sessions.recv_timeout(PATIENCE).unwrap();
        Joined { hosts, dialer, acceptor, accepting, streams: [at_a.into(), at_b.into()] }
    }

    /// Returns the sessions at a and at b.
    fn ends(&self) -> [&Arc<RunningSession>; 2] {
        [self.dialer.live(), &self.accepting]
    }

    /// Returns whether both ends have all connections of so many paths.
    fn is_whole(&self, paths: u8) -> bool {
        self.ends().iter().all(|live| {
            let up = live.snapshot().paths;
            let is_up = |status: &skein_session::PathStatus| {
                status.usable && status.has_control_connection && status.data_connections == DATA_CONNECTIONS
            };
            up.len() == usize::from(paths) && up.iter().all(|path| is_up(&path.status))
        })
    }

    /// Opens a stream from the end `from`. Returns the programs' sockets at a and at b.
    fn connect(&self, from: usize) -> [UnixStream; 2] {
        let (here, joined) = UnixStream::pair().unwrap();
        self.ends()[from].open("there", LocalEnd::from(joined), StreamContent::Bytes).unwrap();
        let incoming = self.streams[1 - from].lock().unwrap().recv_timeout(PATIENCE).unwrap();
        assert_eq!(incoming.destination, "there");
        let (there, joined) = UnixStream::pair().unwrap();
        self.ends()[1 - from].join_socket(incoming.stream, joined, StreamContent::Bytes);
        for socket in [&here, &there] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        if from == 0 { [here, there] } else { [there, here] }
    }

    /// Returns the bytes that the sessions sent on each path, from either end.
    fn sent_bytes(&self) -> BTreeMap<IpAddr, u64> {
        let mut sent = BTreeMap::new();
        for path in self.dialer.live().snapshot().paths {
            *sent.entry(path.info.local.ip()).or_default() += path.status.sent_bytes;
        }
        sent
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        // Goodbyes wait for what is stalled.
        for path in 0..3 {
            self.hosts.mend(path);
            self.hosts.resume(path);
        }
        self.dialer.stop("the test is over");
        self.acceptor.stop("the test is over");
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until neither end has a path. Time runs ahead where a path is left: elsewhere the session would end.
fn wait_for_loss(joined: &Joined) {
    wait_until("no path is left", || {
        let ends = joined.ends().into_iter();
        let left: Vec<&Arc<RunningSession>> = ends.filter(|live| !live.snapshot().paths.is_empty()).collect();
        left.iter().for_each(|live| live.skip(Duration::from_millis(500)));
        thread::sleep(Duration::from_millis(20));
        left.is_empty()
    });
}

/// Waits for a session's end. Returns the reason, and how long the end took.
fn ended(live: &RunningSession) -> (Ended, Duration) {
    let begun = Instant::now();
    wait_until("the session ends", || live.ended().is_some());
    (live.ended().expect("just seen"), begun.elapsed())
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect()
}

/// Writes `data` on a thread of its own, and then ends the direction.
fn write(socket: &UnixStream, data: &[u8]) -> JoinHandle<()> {
    let (mut socket, data) = (socket.try_clone().unwrap(), data.to_vec());
    thread::spawn(move || {
        socket.write_all(&data).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
    })
}

/// Writes until the other end is gone.
fn write_on(socket: &UnixStream) -> JoinHandle<()> {
    let mut socket = socket.try_clone().unwrap();
    thread::spawn(move || while socket.write_all(&[7; 100_000]).is_ok() {})
}

/// Reads to the end.
fn read(socket: &UnixStream) -> Vec<u8> {
    let mut data = Vec::new();
    { socket }.read_to_end(&mut data).unwrap();
    data
}

/// Returns the capabilities of a link with an order, and of a link without.
fn links() -> [Caps; 2] {
    [FAKE_CAPS, Caps { ordered: false, ..FAKE_CAPS }]
}
