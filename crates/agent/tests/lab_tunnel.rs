//! Tests a tunnel between two of the lab's hosts, through what networks do: real NICs, cuts, black holes. Needs root.
// Cores: 0.4

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use skein_agent::{
    AcceptorSettings, Addresses, Agent, AgentSettings, Allow, DialerSettings, Forward, NetworkProblem, Tunnel,
    TunnelSettings, WantedConnections,
};
use skein_identity::{ClusterCa, Validity};
use skein_lab_hosts::{Cut, Family, Lab, Spec};

/// Holds the Mb/s of a network link: little, so that the CPU is not what is measured.
const RATE: u32 = 200;
const LINK_BYTES_S: f64 = RATE as f64 * 1e6 / 8.0;

/// Returns a lock, so that there is one lab at a time: the tests measure.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

struct World {
    // These are dropped in this order: ends, then the hosts that they run in.
    tunnel: Tunnel,
    _agent: Agent,
    lab: Lab,
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    fn new(name: &str, spec: impl FnOnce(&str) -> Spec) -> World {
        World::prepared(name, spec, |_| {})
    }

    /// Makes a world whose hosts are changed before the ends start.
    fn prepared(name: &str, spec: impl FnOnce(&str) -> Spec, prepare: impl FnOnce(&Lab)) -> World {
        let turn = turn();
        let lab = Lab::up(spec(&format!("{name}{}", std::process::id()))).unwrap();
        prepare(&lab);
        let dir = tempfile::tempdir().unwrap();
        let ca = ClusterCa::create("test").unwrap();
        let allow = Allow::new(&[format!("{}/*", dir.path().display())]).unwrap();
        let agent = lab
            .enter("b", || {
                let acceptor = AcceptorSettings {
                    listen: "[::]:7070".parse().unwrap(),
                    addresses: Addresses::default(),
                    allow_plain_data: false,
                    outage: Duration::from_secs(60),
                };
                Agent::start(AgentSettings::tunnels(acceptor, allow), &ca.issue("b", Validity::days(1)).unwrap())
            })
            .unwrap()
            .unwrap();
        let forward = |name: &str| Forward {
            listen: dir.path().join(format!("{name}-in")),
            destination: dir.path().join(format!("{name}-out")).display().to_string(),
        };
        let to: IpAddr = lab.ip("b", 0).unwrap();
        let settings = TunnelSettings {
            dialer: DialerSettings {
                to: vec![SocketAddr::new(to, agent.port())],
                host: Some("b".into()),
                addresses: Addresses::default(),
                connections: WantedConnections::Fixed(2),
                tells_queues: false,
                plain_data: false,
                outage: Duration::from_secs(60),
            },
            forwards: vec![forward("bulk"), forward("echo")],
            socket_mode: 0o600,
            transport: Default::default(),
            packer: Vec::new(),
        };
        let tunnel =
            lab.enter("a", || Tunnel::start(settings, ca.issue("a", Validity::days(1)).unwrap())).unwrap().unwrap();
        World { tunnel, _agent: agent, lab, dir, _turn: turn }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn wait_for_paths(&self, paths: usize) {
        // This is far more than it takes: what is lost for its size is known after 2.5 s.
        let deadline = Instant::now() + Duration::from_secs(20);
        let whole = || {
            let snapshot = self.tunnel.snapshot().unwrap();
            snapshot.paths.iter().filter(|p| p.status.usable && p.status.data_connections == 2).count() == paths
        };
        while !whole() {
            assert!(Instant::now() < deadline, "{:?}", self.tunnel.snapshot());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the bytes that a's NICs have sent so far.
    fn sent(&self) -> Vec<u64> {
        let counters = self.lab.counters("a").unwrap();
        (0..counters.len()).map(|i| counters[&format!("nic{i}")].tx_bytes).collect()
    }

    /// Returns the rate of each of a's NICs over a while, as shares of a network link.
    fn shares(&self, time: Duration) -> Vec<f64> {
        let (before, since) = (self.sent(), Instant::now());
        thread::sleep(time);
        let (after, elapsed) = (self.sent(), since.elapsed().as_secs_f64());
        after.iter().zip(before).map(|(a, b)| (a - b) as f64 / elapsed / LINK_BYTES_S).collect()
    }
}

/// A stream of numbered words, checked at its other end.
struct Bulk {
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    /// The lock that keeps the other end from reading while the test holds it.
    reading: Arc<Mutex<()>>,
    stop: Arc<AtomicBool>,
    ends: Vec<thread::JoinHandle<()>>,
}

impl Bulk {
    fn start(world: &World) -> Bulk {
        let listener = UnixListener::bind(world.path("bulk-out")).unwrap();
        let mut out = UnixStream::connect(world.path("bulk-in")).unwrap();
        let (sent, received) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (reading, stop) = (Arc::new(Mutex::new(())), Arc::new(AtomicBool::new(false)));
        let (stopping, taken) = (stop.clone(), sent.clone());
        let sender = thread::spawn(move || {
            let mut word = 0u64;
            let mut block = vec![0; 1 << 17];
            while !stopping.load(Ordering::Relaxed) {
                for bytes in block.chunks_exact_mut(8) {
                    bytes.copy_from_slice(&word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
                    word += 1;
                }
                out.write_all(&block).unwrap();
                taken.store(word * 8, Ordering::Relaxed);
            }
        });
        let (count, gate) = (received.clone(), reading.clone());
        let receiver = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let (mut word, mut block) = (0u64, vec![0; 1 << 17]);
            while socket.read_exact(&mut block).is_ok() {
                let _turn = gate.lock().unwrap();
                for bytes in block.chunks_exact(8) {
                    let expected = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
                    assert!(bytes == expected, "word {word} differs");
                    word += 1;
                }
                count.store(word * 8, Ordering::Relaxed);
            }
        });
        Bulk { sent, received, reading, stop, ends: vec![sender, receiver] }
    }

    /// Waits until goodput is between `least` and `most` bytes/s for a second. How soon that is the bench measures
    /// (case `cut`). Here others may have the cores for a while.
    fn wait_for_rate(&self, least: f64, most: f64) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let (since, before) = (Instant::now(), self.received.load(Ordering::Relaxed));
            thread::sleep(Duration::from_secs(1));
            let rate = (self.received.load(Ordering::Relaxed) - before) as f64 / since.elapsed().as_secs_f64();
            if (least..=most).contains(&rate) {
                return;
            }
            assert!(Instant::now() < deadline, "{rate} bytes/s arrive instead of {least} to {most}");
        }
    }

    /// Ends the stream; every byte has to arrive.
    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ends.into_iter().for_each(|end| end.join().unwrap());
    }
}

/// A small stream whose other end answers.
struct Echo(UnixStream);

impl Echo {
    fn start(world: &World) -> Echo {
        let listener = UnixListener::bind(world.path("echo-out")).unwrap();
        thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut message = [0; 100];
            while socket.read_exact(&mut message).is_ok() {
                socket.write_all(&message).unwrap();
            }
        });
        let socket = UnixStream::connect(world.path("echo-in")).unwrap();
        // This is far more than it takes, and less than bulk would take to get out of the way: it never does.
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Echo(socket)
    }

    fn round_trips(&mut self, count: u8) {
        for n in 0..count {
            let mut answer = [0; 100];
            self.0.write_all(&[n; 100]).unwrap();
            self.0.read_exact(&mut answer).unwrap_or_else(|error| panic!("round trip {n}: {error}"));
            assert_eq!(answer, [n; 100]);
        }
    }
}

fn fills_all_links(world: &World, nics: usize) {
    let bulk = Bulk::start(world);
    // How soon and how long that is so the bench measures. Here others may have the cores for a while.
    let begin = Instant::now();
    while let shares = world.shares(Duration::from_secs(1))
        && !(shares.len() == nics && shares.iter().all(|share| *share > 0.85))
    {
        assert!(begin.elapsed() < Duration::from_secs(60), "{shares:?}");
    }
    bulk.finish();
}

#[test]
fn two_nics_are_filled() {
    let world = World::new("tp", |name| Spec::pairs(name, 2, Some(RATE)));
    world.wait_for_paths(2);
    fills_all_links(&world, 2);
}

#[test]
fn two_nics_of_one_subnet_are_filled() {
    let world = World::new("ts", |name| Spec::same_subnet(name, 2, Some(RATE)));
    world.wait_for_paths(4);
    fills_all_links(&world, 2);
}

#[test]
fn ipv6_and_jumbo_frames_serve_as_well() {
    let world = World::new("t6", |name| Spec::pairs(name, 2, Some(RATE)).family(Family::V6).mtu(9000));
    world.wait_for_paths(2);
    fills_all_links(&world, 2);
}

/// Runs commands of `ip`, a line each, in the namespace of a host, or of the switch.
fn ip(lab: &Lab, host: &str, commands: &str) {
    let namespace = format!("skein.{}.{host}", lab.spec().name);
    let mut ip = Command::new("ip").args(["-n", &namespace, "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    ip.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    assert!(ip.wait().unwrap().success(), "{namespace}: {commands}");
}

/// Sets the largest packet that the switch takes between the hosts' NICs `nic`. Larger packets are lost without a word.
fn switch_mtu(lab: &Lab, nic: usize, mtu: u32) {
    for device in [format!("seg.{nic}"), format!("a-{nic}"), format!("b-{nic}")] {
        ip(lab, "switch", &format!("link set {device} mtu {mtu}"));
    }
}

/// Joins hosts by a path of IPv4 and a path of IPv6, MTU 9000. A switch between them drops large packets on the first
/// path from the start, on the second in the middle.
#[test]
fn large_packets_that_are_lost_are_told_from_a_black_hole_and_done_without() {
    let spec = |name: &str| {
        let mut spec = Spec::pairs(name, 2, Some(RATE)).mtu(9000);
        for host in &mut spec.hosts {
            host.nics[0].addresses.retain(|address| address.ip.is_ipv4());
            host.nics[1].addresses.retain(|address| address.ip.is_ipv6());
        }
        spec
    };
    let world = World::prepared("tm", spec, |lab| {
        // Otherwise a veth passes what TCP leaves to the NIC to cut, however large.
        for (host, nic) in [("a", 0), ("a", 1), ("b", 0), ("b", 1)] {
            ip(lab, host, &format!("link set nic{nic} gso_max_segs 1"));
        }
        switch_mtu(lab, 0, 1500);
    });
    world.wait_for_paths(2);
    let lost = || -> Vec<(String, u32, u32)> {
        let faults = world.tunnel.snapshot().unwrap().problems;
        let lost = faults.into_iter().map(|fault| match fault {
            NetworkProblem::LargePacketsLost { nic, mtu, remote_mtu: 9000, passes, .. } => (nic, mtu, passes),
            other => panic!("{other:?}"),
        });
        lost.collect()
    };
    let of = |nic: &str| (nic.to_owned(), 9000, 1500);
    assert_eq!(lost(), [of("nic0")]);
    let bulk = Bulk::start(&world);
    // Bulk goes over both. Tests that have nothing else to see judge how much.
    let both_carry = || {
        let deadline = Instant::now() + Duration::from_secs(60);
        while let shares = world.shares(Duration::from_millis(500))
            && !shares.iter().all(|share| *share > 0.05)
        {
            assert!(Instant::now() < deadline, "{shares:?}");
        }
    };
    both_carry();
    // Nothing passes at all: that has nothing to do with sizes.
    world.lab.cut("b", 1, Cut::BlackHole).unwrap();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(lost(), [of("nic0")]);
    world.lab.heal("b", 1).unwrap();
    both_carry();
    // Another switch is put there.
    switch_mtu(&world.lab, 1, 1500);
    let deadline = Instant::now() + Duration::from_secs(60);
    while lost() != [of("nic0"), of("nic1")] {
        assert!(Instant::now() < deadline, "{:?}", lost());
        thread::sleep(Duration::from_millis(100));
    }
    both_carry();
    bulk.finish();
}

/// Has 16 pairs of NICs and one more, and networks of guests on each host that the other has no way to.
#[test]
fn of_too_many_nics_some_are_used_and_the_others_told() {
    let spec = |name: &str| Spec::pairs(name, 16, Some(RATE)).family(Family::V4);
    let world = World::prepared("tn", spec, |lab| {
        let end = |host: &str| format!("skein.{}.{host}", lab.spec().name);
        ip(lab, "a", &format!("link add more0 type veth peer name more0 netns {}", end("b")));
        for (number, host) in [(1, "a"), (2, "b")] {
            let mut commands = format!("addr add 10.99.0.{number}/24 dev more0\nlink set more0 up\n");
            for i in 0..100 {
                // A bridge has a carrier from the first port that is up.
                commands += &format!(
                    "link add br{i} type bridge\naddr add 10.{}.{i}.1/24 dev br{i}\nlink set br{i} up\n\
                     link add tap{i} type veth peer name guest{i}\nlink set tap{i} master br{i} up\n\
                     link set guest{i} up\n",
                    200 + number
                );
            }
            ip(lab, host, &commands);
        }
    });
    world.wait_for_paths(16);
    let snapshot = world.tunnel.snapshot().unwrap();
    let [NetworkProblem::NicsLeftOut { used: 16, unused }] = &snapshot.problems[..] else {
        panic!("{:?}", snapshot.problems)
    };
    assert_eq!(unused.iter().map(|nic| &nic.nic[..]).collect::<Vec<_>>(), ["more0"]);
    let bulk = Bulk::start(&world);
    let begin = Instant::now();
    while bulk.received.load(Ordering::Relaxed) < 32 << 20 {
        assert!(begin.elapsed() < Duration::from_secs(60), "bulk does not move");
        thread::sleep(Duration::from_millis(10));
    }
    bulk.finish();
}

fn survives(name: &str, cut: Cut) {
    let world = World::new(name, |name| Spec::pairs(name, 2, Some(RATE)));
    world.wait_for_paths(2);
    let bulk = Bulk::start(&world);
    bulk.wait_for_rate(1.5 * LINK_BYTES_S, f64::INFINITY);
    world.lab.cut("b", 0, cut).unwrap();
    bulk.wait_for_rate(0.9 * 0.95 * LINK_BYTES_S, 1.1 * LINK_BYTES_S);
    world.lab.heal("b", 0).unwrap();
    let healed = Instant::now();
    while let shares = world.shares(Duration::from_millis(500))
        && !shares.iter().all(|share| *share > 0.7)
    {
        assert!(healed.elapsed() < Duration::from_secs(60), "after healing: {shares:?}");
    }
    bulk.finish();
}

#[test]
fn a_lost_carrier_costs_a_moment() {
    survives("tc", Cut::Carrier);
}

#[test]
fn a_black_hole_costs_a_moment() {
    survives("th", Cut::BlackHole);
}

#[test]
fn a_one_way_black_hole_costs_a_moment() {
    survives("to", Cut::BlackHoleToHost);
}

#[test]
fn all_links_dark_cost_that_time() {
    let world = World::new("td", |name| Spec::pairs(name, 2, Some(RATE)));
    world.wait_for_paths(2);
    let bulk = Bulk::start(&world);
    thread::sleep(Duration::from_millis(500));
    for (nic, cut) in [(0, Cut::Carrier), (1, Cut::BlackHole)] {
        world.lab.cut("a", nic, cut).unwrap();
    }
    thread::sleep(Duration::from_secs(8));
    (0..2).for_each(|nic| world.lab.heal("a", nic).unwrap());
    bulk.wait_for_rate(0.85 * LINK_BYTES_S, f64::INFINITY);
    bulk.finish();
}

/// Checks that small streams get through at all. The benchmark, which has these cores for itself, judges how fast.
#[test]
fn small_streams_do_not_wait_behind_bulk() {
    let world = World::new("tl", |name| Spec::pairs(name, 2, Some(RATE)));
    world.wait_for_paths(2);
    let mut echo = Echo::start(&world);
    let bulk = Bulk::start(&world);
    let begin = Instant::now();
    // This holds while bulk fills the network links.
    let moved = |least: u64| bulk.received.load(Ordering::Relaxed) >= least;
    while !moved(1 << 20) {
        assert!(begin.elapsed() < Duration::from_secs(60), "bulk does not move");
        thread::sleep(Duration::from_millis(10));
    }
    while !moved(32 << 20) {
        assert!(begin.elapsed() < Duration::from_secs(60), "bulk does not move");
        echo.round_trips(10);
    }
    // This holds while nobody takes the bulk, and its window is full.
    let held = bulk.reading.lock().unwrap();
    let (mut sent, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_secs(1) {
        assert!(begin.elapsed() < Duration::from_secs(60), "bulk that nobody takes does not stop");
        thread::sleep(Duration::from_millis(50));
        let now = bulk.sent.load(Ordering::Relaxed);
        if now != sent {
            (sent, since) = (now, Instant::now());
        }
    }
    echo.round_trips(100);
    assert_eq!(bulk.sent.load(Ordering::Relaxed), sent, "it was not stopped");
    drop(held);
    bulk.finish();
}
