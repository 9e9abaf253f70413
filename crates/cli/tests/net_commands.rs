//! Tests the commands that tell what paths carry, and whether by RDMA: the program itself, its output and its exit
//! status, with an agent that plays back answers.

mod fake;

use fake::{Agent, last, over_rdma, say};
use skein_api::{
    FindingKind, MeasuredRate, Migration, Probe, ProbeFinding, ProbedEnd, ProbedPath, Reply, Request, RoundTrip,
    Together, UsedCpu, Verdict,
};
use skein_network::{Interface, InterfaceAddress, RdmaPort};

fn probe(mbit: u64) -> Probe {
    let end = |nic: &str, host: u8| ProbedEnd {
        nic: nic.into(),
        address: format!("10.0.0.{host}"),
        speed_mbit: Some(1000),
        mtu: 9000,
        half_duplex: false,
        dcb: Vec::new(),
    };
    let rate = MeasuredRate { bits_per_s: mbit * 1_000_000, spread_bits_per_s: 1_000_000 };
    let path = ProbedPath {
        local: end("eth0", 1),
        remote: end("eth0", 2),
        round_trip: Some(RoundTrip { least_us: 90, median_us: 110 }),
        passes_bytes: Some(1500),
        lost_bytes: Some(1514),
        out: Some(rate),
        back: Some(rate),
        duplex_out: Some(rate),
        duplex_back: Some(rate),
        together_out_bits_per_s: Some(rate.bits_per_s),
        together_back_bits_per_s: Some(rate.bits_per_s),
        repeated_out_ppm: Some(1200),
        ..ProbedPath::default()
    };
    let spare = ProbedPath {
        local: end("eth1", 3),
        remote: end("eth1", 4),
        carries: "a spare: another network is preferred".into(),
        round_trip: Some(RoundTrip { least_us: 90, median_us: 110 }),
        passes_bytes: Some(9000),
        ..ProbedPath::default()
    };
    let cpu = |ms_per_gb| UsedCpu { ms_per_gb, host_percent: 40, agent_percent: 60 };
    let together = Together {
        out: rate,
        back: rate,
        sends: cpu(420),
        other_receives: cpu(510),
        receives: cpu(500),
        other_sends: cpu(430),
    };
    let finding = ProbeFinding {
        kind: FindingKind::LargePacketsLost,
        nics: vec!["eth0".into()],
        what: "packets of 1514 bytes are lost\u{1b}[2J".into(),
        cure: "set the MTU of both NICs to 1500".into(),
        gain: "at most 5.1 %".into(),
    };
    Probe {
        from: "hosta".into(),
        to: "hostb".into(),
        busy_hosts: vec![],
        // In the future, so that the text has no age.
        unix_s: 32_503_680_000,
        took_ms: 3200,
        paths: vec![path, spare],
        left_out: vec![],
        together: Some(together),
        note: String::new(),
        verdict: Verdict { auto: "memory goes over eth0".into(), findings: vec![finding] },
    }
}

#[test]
fn paths_are_probed_kept_and_compared() {
    let step = || say(Reply::ProbeStep { words: "eth0: 940 Mb/s out".into() });
    let done = |mbit| step().into_iter().chain(say(Reply::Probe(Box::new(probe(mbit))))).collect();
    let agent = Agent::start(vec![
        done(940),
        done(940),
        done(1500),
        done(945),
        say(Reply::Probes { probes: vec![probe(940)] }),
        say(Reply::Probes { probes: vec![probe(940)] }),
        say(Reply::Probes { probes: vec![probe(940)] }),
        say(Reply::Probes { probes: vec![] }),
    ]);
    let to = ["net", "probe", "--to", "hostb"];
    agent.run(&to).exits(3).is("net-probe").complains("eth0: 940 Mb/s out");
    let json = agent.run(&[&to[..], &["--json", "--before", "before.json"]].concat()).exits(3);
    assert_eq!(serde_json::from_str::<Probe>(&json.out).unwrap(), probe(940));
    let compare = [&to[..], &["--compare", "before.json"]].concat();
    agent.run(&compare).exits(3).says("eth0 > eth0 10.0.0.2: alone out: 940 Mb/s before, 1.50 Gb/s now (+60 %)\n");
    agent.run(&compare).exits(3).says("  nothing has changed beyond noise\n");
    agent.run(&["net", "probe", "--last"]).exits(0).is("net-probe");
    let json = agent.run(&["net", "probe", "--last", "--to", "hostb", "--json"]).exits(0);
    assert_eq!(serde_json::from_str::<Vec<Probe>>(&json.out).unwrap(), [probe(940)]);
    agent.run(&["net", "probe", "--last", "--to", "hostz"]).exits(1).complains("nothing was measured to hostz");
    agent.run(&["net", "probe", "--last"]).exits(0).says("nothing was measured yet");
    agent.run(&["net", "probe"]).exits(2);
    agent.run(&["net", "probe", "--to", "hostc", "--compare", "before.json"]).exits(1).complains("of the way to hostb");
    std::fs::write(agent.dir().join("bad.json"), "{}").unwrap();
    agent.run(&["net", "probe", "--to", "hostb", "--compare", "bad.json"]).exits(1).complains("--before");
    let ask = Request::NetProbe { to: "hostb".into() };
    let asked = [vec![ask; 4], vec![Request::NetProbes; 4]].concat();
    assert_eq!(agent.asked(), asked);
}

/// Returns a result beside a migration, with nothing wrong.
fn without_rates() -> Probe {
    let mut probe = probe(940);
    for path in &mut probe.paths {
        (path.out, path.back, path.duplex_out, path.duplex_back) = (None, None, None, None);
        (path.together_out_bits_per_s, path.together_back_bits_per_s, path.lost_bytes) = (None, None, None);
    }
    probe.verdict.findings.clear();
    Probe { together: None, note: "a migration is under way".into(), ..probe }
}

#[test]
fn a_result_without_rates_says_so_when_it_is_to_be_compared() {
    let done = |probe: Probe| say(Reply::Probe(Box::new(probe)));
    let mut half = probe(940);
    half.verdict.findings.clear();
    (half.paths[0].back, half.paths[0].out.as_mut().unwrap().spread_bits_per_s) = (None, 940_000_000);
    let agent = Agent::start(vec![done(without_rates()), done(half.clone()), done(half), done(without_rates())]);
    let run = |more: &[&str]| agent.run(&[&["net", "probe", "--to", "hostb"], more].concat());
    let none = "no rates (a migration is under way)";
    run(&["--before", "none.json"]).exits(0).complains(&format!("warning: none.json has {none}"));
    let text = run(&["--compare", "none.json"]).exits(0);
    let text = text.says(&format!("  there are no rates to compare: the measurement before has {none}\n"));
    // What is known of one direction is shown, and how sure that is.
    text.says("    alone       940 Mb/s (unsure: too little was counted) out, back not known\n");
    let json = run(&["--compare", "none.json", "--json"]).exits(0).complains("warning: there are no rates to compare");
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["differences"], serde_json::json!([]));
    std::fs::write(agent.dir().join("rates.json"), serde_json::to_string(&probe(940)).unwrap()).unwrap();
    run(&["--compare", "rates.json"]).exits(0).says(&format!("this measurement has {none}\n"));
}

/// Returns the interfaces of a host with bonds and bridges.
fn interfaces() -> Vec<Interface> {
    let recording = include_str!("../../network/tests/recordings/bond-vlan-bridge.json");
    let recording: skein_network::Recording = serde_json::from_str(recording).unwrap();
    skein_network::read(&recording).unwrap()
}

#[test]
fn a_host_that_is_in_no_network_of_this_one_is_told_so() {
    let mut interfaces = interfaces();
    for address in interfaces.iter_mut().flat_map(|of| &mut of.nic.addresses).filter(|of| of.ip.is_ipv4()) {
        // This host is in no network of everybody's own hosts.
        *address = InterfaceAddress { ip: "127.99.0.7".parse().unwrap(), prefix_len: 30, ..*address };
    }
    let network = || say(Reply::Network { interfaces: interfaces.clone() });
    let agent = Agent::start(vec![
        network(),
        say(Reply::Probes { probes: vec![] }),
        network(),
        say(Reply::Probes { probes: vec![probe(940)] }),
        network(),
    ]);
    let show = ["net", "show", "--to", "hostb"];
    let text = agent.run(&show).exits(0);
    let text = text.says("this host and hostb have no network in common");
    let text = text.says("hostb: bond0, vmbr7: in no network of this host\n");
    text.says("what passes there was not measured: skein net probe --to hostb\n");
    agent.run(&show).exits(0).says("to hostb, measured now: 940 Mb/s out, 940 Mb/s back, 1 problem");
    let json = agent.run(&[&show[..], &["--json"]].concat()).exits(0);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (&json["joins"], &json["remote_only"]),
        (&serde_json::json!([]), &serde_json::json!(["bond0", "vmbr7"]))
    );
    agent.run(&["net", "show", "hostb", "--to", "hostc"]).exits(2);
}

/// Returns a result with a path over RDMA, one whose RDMA failed, and one that was not to use RDMA.
fn with_rdma() -> Probe {
    let mut probe = probe(940);
    probe.verdict.findings.clear();
    let mut neither = probe.paths[1].clone();
    neither.local.nic = "eth2".into();
    (probe.paths[0].over_rdma, probe.paths[0].lost_bytes) = (true, None);
    probe.paths[1].carries.clear();
    probe.paths[1].no_rdma = "hostb has none there\u{1b}[2J".into();
    probe.paths.push(neither);
    probe
}

#[test]
fn a_probe_says_which_paths_go_over_rdma_and_why_others_do_not() {
    let agent = Agent::start(vec![
        say(Reply::Probe(Box::new(with_rdma()))),
        say(Reply::Probes { probes: vec![with_rdma()] }),
        say(Reply::Probe(Box::new(with_rdma()))),
    ]);
    let to = ["net", "probe", "--to", "hostb"];
    let text = agent.run(&to).exits(0).says("    data        goes over RDMA\n");
    let text = text.says("    data        goes over TCP; no RDMA: hostb has none there\u{fffd}[2J\n");
    // A path that was not to use RDMA says nothing of it.
    assert_eq!(text.out.matches("    data  ").count(), 2, "{}", text.out);
    text.is("net-probe-rdma");
    agent.run(&["net", "probe", "--last"]).exits(0).is("net-probe-rdma");
    let json = agent.run(&[&to[..], &["--json"]].concat()).exits(0);
    assert_eq!(serde_json::from_str::<Probe>(&json.out).unwrap(), with_rdma());
}

#[test]
fn another_hosts_rdma_devices_are_shown() {
    let port = |device: &str, active| RdmaPort {
        device: device.into(),
        port: 1,
        active,
        link_layer: "Ethernet".into(),
        rate: "100 Gb/sec (4X EDR)".into(),
        nic: None,
    };
    let mut interfaces = interfaces();
    let nic = interfaces.iter_mut().find(|of| of.nic.name == "eth0").unwrap();
    nic.rdma = vec![port("mlx5_0\u{1b}[2J", true), port("mlx5_1", false)];
    let agent = Agent::start(vec![say(Reply::Network { interfaces })]);
    let text = agent.run(&["net", "show", "hostb"]).exits(0);
    let text = text.says("  mlx5_0\u{fffd}[2J port 1, Ethernet, 100 Gb/sec (4X EDR), active; mlx5_1 port 1, Ethernet,");
    let text = text.says(" mlx5_1 port 1, Ethernet, 100 Gb/sec (4X EDR), NOT ACTIVE\n");
    assert_eq!(text.out.matches("mlx5_1").count(), 1, "{}", text.out);
    assert_eq!(agent.asked(), [Request::NetShow { name: "hostb".into() }]);
}

#[test]
fn a_migration_over_rdma_is_shown_with_what_the_devices_counted() {
    let agent = Agent::start(vec![vec![last(over_rdma())], vec![last(over_rdma())]]);
    let text = agent.run(&["migration", "show", "4f1c"]).exits(0);
    let text = text.says("eth0 → 10.0.0.2  940 Mb/s, 1.1 GiB sent, RDMA\n");
    let text = text.says("  mlx5_0\u{fffd}[2J: 1.2 GiB sent, 3 MiB received; priority 3: 1.2 GiB sent, 0 KiB received");
    let text = text.says("; priority 3: 1.2 GiB sent, 0 KiB received; priority 5: 12 KiB sent, 3 MiB received\n");
    let text = text.says("eth1 → 10.0.1.2  943 Mb/s, 1.1 GiB sent, RDMA\n");
    let text = text.says("  rxe0: 293000 packets sent, 0 received\n");
    let text = text.says("eth2 → 10.0.2.2  940 Mb/s, 1.1 GiB sent\n");
    let text = text.says("  2: a NIC has one queue; no RDMA: cannot receive: no such device\u{fffd}[31m\n");
    let text = text.says("  256 MiB straight into the guest's RAM (RDMA), not encrypted\n");
    text.is("migration-show-rdma");
    let json = agent.run(&["migration", "show", "4f1c", "--json"]).exits(0);
    assert_eq!(serde_json::from_str::<Migration>(&json.out).unwrap(), over_rdma());
}
