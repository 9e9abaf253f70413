//! Tests sessions over rails of libfabric's TCP provider, which needs no device: real sockets, real TLS.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skein_fabric::{HostRails, Rails, test_process};
use skein_host::WantedConnections;
use skein_identity::{ClusterCa, Validity};

use crate::StreamContent;
use crate::{
    Acceptor, AcceptorSettings, Addresses, Dialer, DialerSettings, IncomingStream, LocalEnd, PathSnapshot,
    RunningSession,
};

const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: usize = 20_000_000;

/// A session on the loopback interface.
struct Joined {
    dialer: Arc<Dialer>,
    acceptor: Acceptor,
    accepting: Arc<RunningSession>,
    streams: Receiver<IncomingStream>,
}

impl Joined {
    fn new([here, there]: [Option<Arc<dyn Rails>>; 2]) -> Joined {
        let addresses = |rails| Addresses { nics: vec!["lo".into()], rails, ..Addresses::default() };
        let ca = ClusterCa::create("test").unwrap();
        let [a, b] = ["a", "b"].map(|host| ca.issue(host, Validity::days(1)).unwrap());
        let (sender, sessions) = mpsc::sync_channel(1);
        let accepting = AcceptorSettings {
            listen: "127.0.0.1:0".parse().unwrap(),
            addresses: addresses(there),
            allow_plain_data: false,
            outage: PATIENCE,
        };
        let on_session = move |live, streams| sender.send((live, streams)).expect("the test waits");
        let acceptor = Acceptor::start(accepting, &b, Box::new(on_session)).unwrap();
        let dialling = DialerSettings {
            to: vec![([127, 0, 0, 1], acceptor.port()).into()],
            host: Some("b".into()),
            addresses: addresses(here),
            connections: WantedConnections::Fixed(2),
            tells_queues: false,
            plain_data: false,
            outage: PATIENCE,
        };
        let (dialer, _) = Dialer::start(dialling, &a).unwrap();
        let (accepting, streams) = sessions.recv_timeout(PATIENCE).unwrap();
        Joined { dialer, acceptor, accepting, streams }
    }

    /// Waits until data goes over TCP by two connections, or by one over RDMA. Returns how many that are at each end.
    fn connections(&self) -> [usize; 2] {
        let begun = Instant::now();
        loop {
            let ends = [self.dialer.live(), &self.accepting].map(|live| live.snapshot().paths);
            let kinds = |path: &PathSnapshot| (path.status.data_connections, path.rdma_connections);
            if ends.iter().all(|paths| paths.len() == 1 && [(2, 0), (1, 1)].contains(&kinds(&paths[0]))) {
                return ends.map(|paths| paths[0].rdma_connections);
            }
            assert!(begun.elapsed() < PATIENCE, "{ends:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until this many data connections go over RDMA at both ends, and no more than both are there.
    fn wait_for_rdma(&self, count: usize) {
        let begun = Instant::now();
        while self.connections() != [count; 2] {
            assert!(begun.elapsed() < PATIENCE, "{:?} over RDMA, not {count}", self.connections());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends bytes there and back on a stream.
    fn echo(&self) {
        self.echo_and(|| {});
    }

    /// Sends bytes there and back on a stream, and does something when half of them went.
    fn echo_and(&self, half_way: impl FnOnce()) {
        let (mut here, joined) = UnixStream::pair().unwrap();
        self.dialer.live().open("there", LocalEnd::from(joined), StreamContent::Bytes).unwrap();
        let incoming = self.streams.recv_timeout(PATIENCE).unwrap();
        let (mut there, joined) = UnixStream::pair().unwrap();
        self.accepting.join_socket(incoming.stream, joined, StreamContent::Bytes);
        let back = thread::spawn(move || {
            let mut data = Vec::new();
            there.read_to_end(&mut data).unwrap();
            there.write_all(&data).unwrap();
        });
        let data: Vec<u8> = (0..BYTES as u32).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect();
        let (first, rest) = data.split_at(BYTES / 2);
        here.write_all(first).unwrap();
        half_way();
        here.write_all(rest).unwrap();
        here.shutdown(std::net::Shutdown::Write).unwrap();
        let mut echoed = Vec::new();
        here.read_to_end(&mut echoed).unwrap();
        assert!(echoed == data);
        back.join().unwrap();
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.dialer.stop("the test is over");
        self.acceptor.stop("the test is over");
    }
}

/// Is no test, but what the processes of rails are.
#[test]
fn a_role() {
    test_process::serve_if_asked();
}

/// Returns the rails of a provider, whose processes are this very test program, marked by `mark`.
fn marked(provider: &str, mark: &str) -> Option<Arc<dyn Rails>> {
    Some(Arc::new(HostRails::of_providers(test_process::words(module_path!(), mark), vec![provider.into()])))
}

fn over(provider: &str) -> Option<Arc<dyn Rails>> {
    marked(provider, "")
}

#[test]
fn data_goes_over_rails_where_both_ends_have_one() {
    let joined = Joined::new([over("tcp;ofi_rxm"), over("tcp;ofi_rxm")]);
    assert_eq!(joined.connections(), [0, 0], "nothing is carried yet");
    joined.echo();
    joined.wait_for_rdma(1);
    joined.echo();
    joined.wait_for_rdma(1);
}

#[test]
fn data_leaves_rails_while_somebody_holds_them_off_and_comes_early_when_wanted() {
    let joined = Joined::new([over("tcp;ofi_rxm"), over("tcp;ofi_rxm")]);
    joined.dialer.come_to_rails(Instant::now() + PATIENCE);
    joined.wait_for_rdma(1);
    let held_off = joined.dialer.live().hold_rails_off();
    joined.wait_for_rdma(0);
    joined.echo();
    assert_eq!(joined.connections(), [0, 0]);
    drop(held_off);
    joined.wait_for_rdma(1);
    joined.echo();
}

#[test]
fn data_goes_over_tcp_where_an_end_has_no_rail() {
    let host = |rails: HostRails| Some(Arc::new(rails) as Arc<dyn Rails>);
    let of_devices = host(HostRails::of_devices(Vec::<OsString>::new()));
    let no_program = host(HostRails::of_providers(vec!["/no/such/program".into()], vec!["tcp;ofi_rxm".into()]));
    let rail = || over("tcp;ofi_rxm");
    for (ends, why) in [
        ([rail(), None], Some("b has none there")),
        ([None, rail()], None),
        ([rail(), over("no such provider")], Some("b has none there")),
        ([over("no such provider"), rail()], Some("this host's NIC has none that can be used")),
        ([of_devices, rail()], Some("this host's NIC has no RDMA device")),
        ([rail(), no_program.clone()], Some("b has none there")),
        ([no_program, rail()], Some("the process of the rail cannot be started")),
    ] {
        let joined = Joined::new(ends);
        assert_eq!(joined.connections(), [0, 0]);
        joined.dialer.come_to_rails(Instant::now() + PATIENCE);
        joined.echo();
        assert_eq!(joined.connections(), [0, 0]);
        let [path] = &joined.dialer.paths()[..] else { panic!("there is one path") };
        let told = path.no_rdma.as_deref();
        assert!(told.is_some() == why.is_some() && told.unwrap_or("").contains(why.unwrap_or("")), "{told:?}");
    }
}

/// A library that crashes or hangs while a guest moves: nothing is lost, and the rest goes over TCP.
#[test]
fn data_goes_on_over_tcp_when_the_process_of_a_rail_dies_or_hangs() {
    for (signal, mark) in [(Signal::SIGKILL, "killed"), (Signal::SIGSTOP, "stopped")] {
        let joined = Joined::new([marked("tcp;ofi_rxm", mark), marked("tcp;ofi_rxm", mark)]);
        joined.echo();
        joined.wait_for_rdma(1);
        let since = Instant::now();
        let rails = loop {
            // A thread that ends leaves its children to another, whose list may have been read before.
            let rails = test_process::rails(mark);
            if rails.len() == 2 {
                break rails;
            }
            assert!(since.elapsed() < PATIENCE, "{rails:?}: a process for each end");
            thread::sleep(Duration::from_millis(10));
        };
        joined.echo_and(|| rails.iter().for_each(|rail| kill(Pid::from_raw(*rail), signal).unwrap()));
        assert_eq!(joined.connections(), [0, 0], "{mark}");
        drop(joined);
        let since = Instant::now();
        while !test_process::rails(mark).is_empty() {
            assert!(since.elapsed() < PATIENCE, "{mark} processes are left behind");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
