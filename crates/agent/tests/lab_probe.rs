//! Tests what is measured between two of the lab's hosts: what the lab made is found, and nothing that is not there.
//! Needs root.
// Timeout: 400 s
// QEMU: 10
// Cores: 1

mod two_agents;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use skein_agent::{Addresses, DialerSettings, Forward, Tunnel, TunnelSettings, WantedConnections};
use skein_api::{FindingKind, Probe, ProbedPath, Reply, Request, VmOrigin};
use skein_client::Client;
use skein_lab_hosts::{Family, Lab, Spec};

use self::two_agents::{PATIENCE, TwoAgents};

const RATE_MBIT: u32 = 100;

struct World(TwoAgents);

impl World {
    fn new(name: &str, spec: impl FnOnce(&str) -> Spec, prepare: impl FnOnce(&Lab)) -> World {
        World(TwoAgents::new(&spec(&format!("{name}{}", std::process::id())), prepare, "0.0.0.0:7070"))
    }

    fn client(&self) -> &Client {
        self.0.client("a")
    }

    /// Opens a tunnel from `in` at a to `out` at b, where somebody listens.
    fn tunnel(&self) -> (Tunnel, UnixListener) {
        let path = |name: &str| self.0.dir.path().join(name);
        let listener = UnixListener::bind(path("out")).unwrap();
        let settings = TunnelSettings {
            dialer: DialerSettings {
                to: vec![SocketAddr::new(self.0.lab.ip("b", 0).unwrap(), 7070)],
                host: Some("b".into()),
                addresses: Addresses::default(),
                connections: WantedConnections::Fixed(1),
                tells_queues: false,
                plain_data: false,
                outage: Duration::from_secs(60),
            },
            forwards: vec![Forward { listen: path("in"), destination: path("out").display().to_string() }],
            socket_mode: 0o600,
            transport: Default::default(),
            packer: Vec::new(),
        };
        let tunnel = self.0.lab.enter("a", || Tunnel::start(settings, self.0.identities[0].clone())).unwrap().unwrap();
        (tunnel, listener)
    }

    /// Returns the bytes that each NIC of a has sent so far.
    fn sent(&self) -> BTreeMap<String, u64> {
        self.0.lab.counters("a").unwrap().into_iter().map(|(name, counters)| (name, counters.tx_bytes)).collect()
    }

    /// Measures from a to b. Returns what came of it, and what was said meanwhile and when.
    fn probe(&self) -> (Probe, Vec<(String, Duration)>) {
        let begun = Instant::now();
        let mut conversation = self.client().ask(&Request::NetProbe { to: "b".into() }).unwrap();
        let mut words = Vec::new();
        loop {
            match conversation.next(PATIENCE).unwrap().expect("it does not stop") {
                Reply::ProbeStep { words: said } => words.push((said, begun.elapsed())),
                Reply::Probe(probe) => {
                    println!("{words:?}\n{}", serde_json::to_string_pretty(&probe).unwrap());
                    return (*probe, words);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Measures until there are so many paths, with rates within 15 % of what they are to be. On a busy machine there
    /// may be no core for a moment, so that a path is late or slow.
    fn probe_with_rates(&self, paths: usize, of_path: impl Fn(&ProbedPath) -> f64) -> Probe {
        let deadline = Instant::now() + 3 * PATIENCE;
        loop {
            let (probe, _) = self.probe();
            let is_near = |path: &ProbedPath| {
                let rates = [path.out, path.back].map(|rate| rate.map_or(0.0, |rate| rate.bits_per_s as f64));
                rates.iter().all(|rate| (rate / of_path(path) - 1.0).abs() <= 0.15)
            };
            if probe.paths.len() == paths && probe.together.is_some() && probe.paths.iter().all(is_near) {
                return probe;
            }
            assert!(Instant::now() < deadline, "paths or rates are others");
        }
    }
}

fn kinds(probe: &Probe, nic: &str) -> Vec<FindingKind> {
    let of = probe.verdict.findings.iter().filter(|finding| finding.nics.iter().any(|name| name == nic));
    of.map(|finding| finding.kind).collect()
}

/// One of two paths has a switch that drops what both NICs' MTU allows.
#[test]
fn a_lying_mtu_is_named_and_rates_are_right() {
    let spec = |name: &str| Spec::pairs(name, 2, Some(RATE_MBIT)).family(Family::V4).mtu(9000);
    let world = World::new("pm", spec, |lab| {
        for host in ["a", "b"] {
            // Otherwise a veth passes what TCP leaves to the NIC to cut, however large.
            lab.in_host(host, "ip", "link set nic0 gso_max_segs 1\nlink set nic1 gso_max_segs 1").unwrap();
        }
        lab.in_switch("ip", "link set seg.0 mtu 1500\nlink set a-0 mtu 1500\nlink set b-0 mtu 1500").unwrap();
    });
    let before = world.sent();
    let (probe, words) = world.probe();
    // The first has made a session as well. No link has sent more than 2 % of what it sends in a minute.
    for ((name, after), before) in world.sent().into_iter().zip(before.values()) {
        let share = (after - before) as f64 * 8.0 / (60.0 * f64::from(RATE_MBIT) * 1e6);
        eprintln!("{name} of a sent {:.2} % of a minute, in {} ms", share * 100.0, probe.took_ms);
        assert!(share <= 0.02, "{name}: {share}");
    }
    let is_named = |words: &[(String, Duration)]| {
        words.iter().any(|(words, _)| words.starts_with("nic0: packets of 1500 bytes pass"))
    };
    let deadline = Instant::now() + PATIENCE;
    let mut named = is_named(&words);
    while !named {
        assert!(Instant::now() < deadline, "nobody names the switch that drops large packets");
        named = is_named(&world.probe().1);
    }
    let probe = world.probe_with_rates(2, |path| {
        let packet = if path.local.nic == "nic0" { 1448.0 / 1514.0 } else { 8948.0 / 9014.0 };
        f64::from(RATE_MBIT) * 1e6 * packet
    });
    eprintln!("it took {} ms", probe.took_ms);
    let of = |nic: &str| probe.paths.iter().find(|path| path.local.nic == nic).unwrap();
    assert_eq!((of("nic1").passes_bytes, of("nic1").lost_bytes), (Some(9000), None));
    assert_eq!(of("nic0").passes_bytes, Some(1500));
    assert!(of("nic0").lost_bytes.is_some_and(|lost| lost <= 1520), "{:?}", of("nic0").lost_bytes);
    assert!(kinds(&probe, "nic0").contains(&FindingKind::LargePacketsLost));
    assert!(!kinds(&probe, "nic1").contains(&FindingKind::LargePacketsLost));
    assert!(!kinds(&probe, "nic0").contains(&FindingKind::SharedBottleneck));
    let all = probe.together.unwrap();
    assert!(all.out.bits_per_s > 150_000_000 && all.sends.ms_per_gb > 0 && all.other_receives.ms_per_gb > 0, "{all:?}");
    assert!(probe.verdict.auto.contains("nic0, nic1 at once"), "{}", probe.verdict.auto);
    // The result is kept, and forecasts know it: NICs of namespaces all say 10 Gb/s.
    let Reply::Probes { probes } = world.client().call(&Request::NetProbes, PATIENCE).unwrap() else { panic!() };
    // If it tells rates; otherwise those of before stay.
    assert!(probes == [probe.clone()] || !probe.tells_rates(), "{probes:?}");
    start(&world);
    let Reply::Check(check) = world.client().call(&check(), PATIENCE).unwrap() else { panic!() };
    let probes = world.client().call(&Request::NetProbes, PATIENCE).unwrap();
    let Reply::Probes { probes } = probes else { panic!() };
    // Where other programs held the cores, forecasts do without.
    let is_known = probes.iter().any(Probe::tells_rates);
    let why = check.forecast.map(|forecast| forecast.why).unwrap_or_default();
    assert!(why.contains(" Mb/s on the wire over 2 paths") || !is_known, "{why}");
    // While something else is carried rates are left alone.
    let tunnel = world.tunnel();
    let near = UnixStream::connect(world.0.dir.path().join("in")).unwrap();
    let (far, _) = tunnel.1.accept().unwrap();
    let (probe, _) = world.probe();
    assert!(probe.note.contains("tunnel") && probe.together.is_none(), "{}", probe.note);
    assert!(probe.paths.iter().all(|path| path.round_trip.is_some() && path.out.is_none()));
    // Beside it one probe after the other waits.
    let deadline = Instant::now() + PATIENCE;
    while !world.probe().1.iter().any(|(words, _)| words.contains("this one waits")) {
        assert!(Instant::now() < deadline, "none waits");
    }
    drop((near, far));
    let deadline = Instant::now() + PATIENCE;
    while world.probe().0.together.is_none() {
        assert!(Instant::now() < deadline, "the connection is over");
    }
}

fn check() -> Request {
    Request::Check { vm: "vm".into(), to: "b".into(), options: Default::default() }
}

/// Starts a VM called `vm`: a BIOS without anything to boot.
fn start(world: &World) {
    let text = "name = 'vm'\nmemory = '128 MiB'\ncpus = 1\naccel = 'tcg'\n".to_owned();
    let from = VmOrigin::Definition { file: "vm.toml".into(), text };
    let reply = world.client().call(&Request::VmStart { from, options: Default::default() }, PATIENCE).unwrap();
    assert!(matches!(reply, Reply::Vm(_)), "{reply:?}");
}

/// Two NICs of each host, and between the hosts' switches one cable.
#[test]
fn a_shared_bottleneck_is_found() {
    let world = World::new(
        "ps",
        |name| Spec::same_subnet(name, 2, None).family(Family::V4),
        |lab| {
            lab.in_switch(
                "ip",
                "link add far mtu 1500 up type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
             link add up0 type veth peer name up1\nlink set up0 master seg.lan up\nlink set up1 master far up\n\
             link set b-0 master far\nlink set b-1 master far\n",
            )
            .unwrap();
            let shape =
                |device| format!("qdisc add dev {device} root tbf rate {RATE_MBIT}mbit burst 131072 limit 262144\n");
            lab.in_switch("tc", &(shape("up0") + &shape("up1"))).unwrap();
        },
    );
    let deadline = Instant::now() + 3 * PATIENCE;
    loop {
        // Each NIC reaches each.
        let probe = world.probe_with_rates(4, |_| f64::from(RATE_MBIT) * 1e6 * 1448.0 / 1514.0);
        eprintln!("{} ms, {:?}", probe.took_ms, probe.verdict);
        let found = probe.verdict.findings.iter().find(|finding| finding.kind == FindingKind::SharedBottleneck);
        if let Some(found) = found {
            assert_eq!(found.nics, ["nic0", "nic1"]);
            // Drivers of these NICs claim 10 Gb/s, which counts for nothing.
            assert!(!kinds(&probe, "nic0").contains(&FindingKind::BelowSpeed));
            break;
        }
        // Other programs may have left no core, which is said.
        if Instant::now() >= deadline && !probe.busy_hosts.is_empty() {
            assert!(kinds(&probe, "nic0").contains(&FindingKind::CoresBusy), "{:?}", probe.verdict);
            break;
        }
        // Others had the cores in some part of the probe.
        assert!(!probe.busy_hosts.is_empty() && Instant::now() < deadline, "{:?}", probe.verdict);
    }
}

/// The way to b ends in the middle.
#[test]
fn a_host_that_stops_answering_gives_no_result() {
    let world = World::new("pd", |name| Spec::pairs(name, 1, Some(RATE_MBIT)).family(Family::V4), |_| {});
    let deadline = Instant::now() + 2 * PATIENCE;
    loop {
        let Reply::Probes { probes: before } = world.client().call(&Request::NetProbes, PATIENCE).unwrap() else {
            panic!()
        };
        let mut conversation = world.client().ask(&Request::NetProbe { to: "b".into() }).unwrap();
        loop {
            let said = conversation.next(PATIENCE).unwrap();
            if matches!(said, Some(Reply::ProbeStep { words }) if words.contains(" out,")) {
                break;
            }
        }
        world.0.lab.in_switch("ip", "link set seg.0 down").unwrap();
        let ended = conversation.next(PATIENCE);
        let Reply::Probes { probes } = world.client().call(&Request::NetProbes, PATIENCE).unwrap() else { panic!() };
        match ended {
            Err(error) => {
                assert!(error.to_string().contains("b stopped answering"), "{error}");
                assert_eq!(probes, before, "what was measured of it is not kept");
                return;
            }
            // On a busy machine all was measured before the switch was off.
            Ok(reply) => {
                assert!(Instant::now() < deadline, "{reply:?}");
                world.0.lab.in_switch("ip", "link set seg.0 up").unwrap();
            }
        }
    }
}

/// One of two paths ends in the middle. A migration network's own address is no NIC.
#[test]
fn a_path_that_goes_down_is_told_and_gives_no_sums() {
    let world = World::new(
        "pg",
        |name| Spec::pairs(name, 2, Some(RATE_MBIT)).family(Family::V4),
        |lab| {
            lab.in_host("a", "ip", "addr add 10.9.9.1/32 dev lo").unwrap();
            lab.in_host("b", "ip", "addr add 10.9.9.2/32 dev lo").unwrap();
        },
    );
    let deadline = Instant::now() + 2 * PATIENCE;
    loop {
        let mut conversation = world.client().ask(&Request::NetProbe { to: "b".into() }).unwrap();
        let mut is_cut = false;
        let probe = loop {
            match conversation.next(PATIENCE).unwrap() {
                Some(Reply::ProbeStep { words }) if words.starts_with("nic1: ") => {
                    world.0.lab.in_switch("ip", "link set seg.1 down").unwrap();
                    is_cut = true;
                }
                Some(Reply::ProbeStep { .. }) => {}
                Some(Reply::Probe(probe)) => break probe,
                other => panic!("{other:?}"),
            }
        };
        println!("{}", serde_json::to_string_pretty(&probe).unwrap());
        assert!(is_cut);
        let nics: Vec<&str> = probe.paths.iter().map(|path| &path.local.nic[..]).collect();
        assert_eq!(nics, ["nic0", "nic1"]);
        assert!(!kinds(&probe, "nic0").contains(&FindingKind::PathDown));
        let most = 4 * u64::from(RATE_MBIT) * 1_000_000;
        assert!(
            probe.together.is_none_or(|all| all.out.bits_per_s.max(all.back.bits_per_s) < most),
            "{:?}",
            probe.together
        );
        if kinds(&probe, "nic1").contains(&FindingKind::PathDown) {
            return;
        }
        // On a busy machine all was measured before the path was down.
        assert!(Instant::now() < deadline, "{:?}", probe.verdict);
        world.0.lab.in_switch("ip", "link set seg.1 up").unwrap();
    }
}

#[test]
fn one_probe_at_a_time_and_none_of_itself() {
    let world = World::new("po", |name| Spec::pairs(name, 1, Some(RATE_MBIT)).family(Family::V4), |_| {});
    let of_itself = world.client().call(&Request::NetProbe { to: "a".into() }, PATIENCE).unwrap_err().to_string();
    assert!(of_itself.contains("a is this host"), "{of_itself}");
    let nobody = world.client().call(&Request::NetProbe { to: "nobody".into() }, PATIENCE).unwrap_err().to_string();
    assert!(nobody.contains("nobody"), "{nobody}");
    let mut first = world.client().ask(&Request::NetProbe { to: "b".into() }).unwrap();
    let told = first.next(PATIENCE).unwrap();
    assert!(matches!(told, Some(Reply::ProbeStep { .. } | Reply::Probe(_))), "{told:?}");
    if matches!(told, Some(Reply::ProbeStep { .. })) {
        let second = world.client().call(&Request::NetProbe { to: "b".into() }, PATIENCE);
        let back = world.0.client("b").call(&Request::NetProbe { to: "a".into() }, PATIENCE);
        for refused in [second, back] {
            // The first may be over by now.
            let words = refused.err().map_or_else(String::new, |error| error.to_string());
            assert!(words.is_empty() || words.contains("probe"), "{words}");
        }
    }
    // A host that is done leaves the turn to others, both ways, and needs no seconds for that.
    let mut is_done = matches!(told, Some(Reply::Probe(_)));
    while !is_done {
        is_done = matches!(first.next(PATIENCE).unwrap(), Some(Reply::Probe(_)));
    }
    let done = Instant::now();
    let back = Request::NetProbe { to: "a".into() };
    while let Err(error) = world.0.client("b").call(&back, PATIENCE) {
        assert!(done.elapsed() < Duration::from_secs(3) && error.to_string().contains("under way"), "{error}");
        std::thread::sleep(Duration::from_millis(200));
    }
    // Whoever hangs up leaves nothing behind: of a whole probe 10 MB would be sent.
    let sent = || world.sent().values().sum::<u64>();
    let before = sent();
    let first = world.client().ask(&Request::NetProbe { to: "b".into() }).unwrap();
    drop(first);
    std::thread::sleep(Duration::from_secs(4));
    assert!(sent() - before < 3_000_000, "{} bytes", sent() - before);
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = world.client().call(&Request::NetProbe { to: "b".into() }, PATIENCE) {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
