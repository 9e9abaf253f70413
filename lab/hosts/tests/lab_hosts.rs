//! Tests the lab with real namespaces. Needs root and iproute2.
// Cores: 0.2

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use skein_host::{Sampler, SamplerOptions};
use skein_lab_hosts::{Cut, Family, Lab, LabError, Layout, Spec};
use socket2::{Domain, Protocol, Socket, Type};

/// Returns a name that no other test, of this run or another, uses.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Sends as fast as TCP does from one host's NIC to another's, bound to both ends' devices. Returns the goodput
/// received in Mb/s once it has settled.
fn goodput_mbit(lab: &Lab, from: (&str, usize), to: (&str, usize)) -> f64 {
    let address = lab.ip(to.0, to.1).unwrap();
    let listener = lab.enter(to.0, || TcpListener::bind((address, 0)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    received_mbit(connect(lab, from, target).unwrap(), &listener)
}

/// Returns what `listener` receives from `sender`, which is connected to it, in Mb/s.
fn received_mbit(mut sender: TcpStream, listener: &TcpListener) -> f64 {
    let (settle, measure) = (Duration::from_millis(300), Duration::from_millis(700));
    let start = Instant::now();
    let sending = thread::spawn(move || {
        let block = vec![0x5a; 256 << 10];
        // The sender ends by itself: over MPTCP it would wait a minute for a receiver that has gone.
        while start.elapsed() < settle + measure && sender.write_all(&block).is_ok() {}
    });
    let (mut receiver, _) = listener.accept().unwrap();
    let mut buffer = vec![0; 256 << 10];
    let mut counted = (0, start);
    let mut bytes = 0;
    while start.elapsed() < settle + measure {
        bytes += receiver.read(&mut buffer).unwrap() as u64;
        if start.elapsed() < settle {
            counted = (bytes, Instant::now());
        }
    }
    let mbit = (bytes - counted.0) as f64 * 8e-6 / counted.1.elapsed().as_secs_f64();
    while receiver.read(&mut buffer).is_ok_and(|n| n > 0) {}
    sending.join().unwrap();
    mbit
}

/// Measures up to ten times until the rate is reached. A busy machine may slow a link down, but nothing may make it
/// faster than it was set.
fn holds(expected: f64, what: &str, measure: impl Fn() -> f64) {
    let mut best = 0.0;
    for _ in 0..10 {
        let measured = measure();
        println!("{what}: {measured:.0} of {expected} Mb/s");
        assert!(measured <= 1.02 * expected, "{what}: {measured:.0} Mb/s, but it was set to {expected}");
        best = measured.max(best);
        if best >= 0.9 * expected {
            return;
        }
    }
    panic!("{what}: at most {best:.0} Mb/s instead of {expected}");
}

/// Connects from a NIC's address *and* device: in one subnet the address alone does not choose the NIC.
fn connect(lab: &Lab, from: (&str, usize), to: SocketAddr) -> io::Result<TcpStream> {
    let address = lab.ip(from.0, from.1).unwrap();
    lab.enter(from.0, || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.bind_device(Some(format!("nic{}", from.1).as_bytes()))?;
        socket.bind(&SocketAddr::new(address, 0).into())?;
        socket.connect_timeout(&to.into(), Duration::from_secs(2))?;
        Ok(socket.into())
    })
    .unwrap()
}

/// Returns whether a datagram gets from one NIC to another and its answer back, on a busy machine within seconds.
fn reaches(lab: &Lab, from: (&str, usize), to: (&str, usize)) -> bool {
    echo(lab, from, to, Duration::from_secs(10)).is_some()
}

/// Returns whether no datagram and answer get through for half a second.
fn is_cut(lab: &Lab, from: (&str, usize), to: (&str, usize)) -> bool {
    echo(lab, from, to, Duration::from_millis(500)).is_none()
}

fn echo(lab: &Lab, from: (&str, usize), to: (&str, usize), patience: Duration) -> Option<Duration> {
    let bind = |host: &'static str, ip: IpAddr| lab.enter(host, move || UdpSocket::bind((ip, 0)).unwrap()).unwrap();
    let (here, there) = (lab.ip(from.0, from.1).unwrap(), lab.ip(to.0, to.1).unwrap());
    let (client, server) = (bind(host(from.0), here), bind(host(to.0), there));
    client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    server.set_nonblocking(true).unwrap();
    let start = Instant::now();
    let mut buffer = [0; 16];
    while start.elapsed() < patience {
        // A NIC without carrier or neighbour may refuse at once.
        let _ = client.send_to(b"ping", server.local_addr().unwrap());
        thread::sleep(Duration::from_millis(1));
        if let Ok((length, peer)) = server.recv_from(&mut buffer) {
            let _ = server.send_to(&buffer[..length], peer);
        }
        if client.recv_from(&mut buffer).is_ok_and(|(length, _)| &buffer[..length] == b"ping") {
            return Some(start.elapsed());
        }
    }
    None
}

fn host(name: &str) -> &'static str {
    if name == "a" { "a" } else { "b" }
}

fn carrier(lab: &Lab, host: &str, nic: usize) -> bool {
    let nics = lab.enter(host, skein_host::nics).unwrap().unwrap();
    nics.iter().find(|n| n.name == format!("nic{nic}")).unwrap().carrier
}

#[test]
fn rates_hold_in_each_direction_and_at_once() {
    let lab = Lab::up(Spec::pairs(&name(), 2, None).rates(&[Some(1000), Some(250)])).unwrap();
    holds(1000.0, "a to b, nic0", || goodput_mbit(&lab, ("a", 0), ("b", 0)));
    holds(1000.0, "b to a, nic0", || goodput_mbit(&lab, ("b", 0), ("a", 0)));
    holds(1250.0, "both at once", || {
        thread::scope(|scope| {
            let slow = scope.spawn(|| goodput_mbit(&lab, ("a", 1), ("b", 1)));
            goodput_mbit(&lab, ("a", 0), ("b", 0)) + slow.join().unwrap()
        })
    });
    lab.rate("b", 1, Some(100)).unwrap();
    holds(100.0, "changed at the receiver's end", || goodput_mbit(&lab, ("a", 1), ("b", 1)));
    lab.rate("b", 1, None).unwrap();
    lab.rate("a", 1, None).unwrap();
    let free = goodput_mbit(&lab, ("a", 1), ("b", 1));
    println!("unlimited: {free:.0} Mb/s");
    assert!(free > 2000.0, "{free}");
    assert_eq!(lab.nics("b").unwrap()[1].rate_mbit, None);
}

/// Uses IPv6: with IPv4 and the kernel's defaults any NIC of `b` answers ARP for the addresses of all, so that both
/// streams may arrive on one.
#[test]
fn two_nics_of_one_subnet_are_two_links() {
    let lab = Lab::up(Spec::same_subnet(&name(), 2, Some(200)).family(Family::V6)).unwrap();
    let one = |nic| goodput_mbit(&lab, ("a", nic), ("b", nic));
    holds(200.0, "one alone", || one(0));
    holds(400.0, "both", || {
        thread::scope(|scope| {
            let other = scope.spawn(|| one(1));
            one(0) + other.join().unwrap()
        })
    });
    // Both directions of a NIC are full at once.
    holds(400.0, "both ways", || {
        thread::scope(|scope| {
            let other = scope.spawn(|| goodput_mbit(&lab, ("b", 0), ("a", 0)));
            one(0) + other.join().unwrap()
        })
    });
}

#[test]
fn multipath_tcp_uses_both_nics() {
    for spec in [Spec::pairs(&name(), 2, Some(300)), Spec::same_subnet(&name(), 2, Some(300))] {
        let lab = Lab::up(spec.family(Family::V4)).unwrap();
        match lab.mptcp("a", "b") {
            Err(LabError::NoMptcp) => return println!("skipped: no MPTCP here"),
            other => other.unwrap(),
        }
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).unwrap();
        let wildcard = SocketAddr::from(([0; 4], 0)).into();
        holds(600.0, "both NICs", || {
            let listener = lab.enter("b", socket).unwrap();
            listener.bind(&wildcard).and_then(|()| listener.listen(1)).unwrap();
            let listener = TcpListener::from(listener);
            let target = SocketAddr::new(lab.ip("b", 0).unwrap(), listener.local_addr().unwrap().port());
            let sender = lab.enter("a", socket).unwrap();
            sender.connect_timeout(&target.into(), Duration::from_secs(2)).unwrap();
            received_mbit(sender.into(), &listener)
        });
        for (nic, counters) in lab.counters("b").unwrap() {
            let mbit = counters.rx_bytes as f64 * 8e-6;
            assert!(mbit > 200.0, "{nic} received {mbit:.0} Mb");
        }
        lab.mptcp("b", "a").unwrap();
        lab.mptcp_off("a").unwrap();
        lab.mptcp_off("b").unwrap();
    }
}

#[test]
fn cuts_and_healing() {
    // One link is shaped and one is not: both ways of making a black hole have to work.
    let lab = Lab::up(Spec::pairs(&name(), 2, None).rates(&[Some(1000), None])).unwrap();
    for nic in [0, 1] {
        let (a, b) = (("a", nic), ("b", nic));
        assert!(reaches(&lab, a, b) && carrier(&lab, "a", nic) && carrier(&lab, "b", nic));
        for cut in [Cut::Carrier, Cut::BlackHole, Cut::BlackHoleToHost, Cut::BlackHoleFromHost] {
            lab.cut("a", nic, cut).unwrap();
            assert_eq!(lab.nics("a").unwrap()[nic].cut, Some(cut));
            assert_eq!(carrier(&lab, "a", nic), cut != Cut::Carrier, "{cut:?}");
            assert!(carrier(&lab, "b", nic), "the other end's own link is whole");
            assert!(is_cut(&lab, a, b), "nic{nic} {cut:?}");
            assert!(reaches(&lab, ("a", 1 - nic), ("b", 1 - nic)), "the other link is not touched");
            lab.heal("a", nic).unwrap();
            let back = echo(&lab, a, b, Duration::from_secs(3)).expect("healed");
            println!("nic{nic} {cut:?}: back after {back:?}");
            assert_eq!(lab.nics("a").unwrap()[nic].cut, None);
        }
    }
    holds(1000.0, "healed", || goodput_mbit(&lab, ("a", 0), ("b", 0)));
}

#[test]
fn one_way_black_holes_pass_the_other_way() {
    let lab = Lab::up(Spec::pairs(&name(), 1, None)).unwrap();
    // Neighbours are known before, or nothing would be sent at all.
    assert!(reaches(&lab, ("a", 0), ("b", 0)));
    for (cut, to_host, from_host) in [(Cut::BlackHoleToHost, false, true), (Cut::BlackHoleFromHost, true, false)] {
        lab.cut("a", 0, cut).unwrap();
        assert_eq!(arrives(&lab, "b", "a"), to_host, "{cut:?}");
        assert_eq!(arrives(&lab, "a", "b"), from_host, "{cut:?}");
        lab.heal("a", 0).unwrap();
        assert!(reaches(&lab, ("a", 0), ("b", 0)));
    }
}

fn arrives(lab: &Lab, from: &str, to: &str) -> bool {
    let ip = lab.ip(to, 0).unwrap();
    let server = lab.enter(to, || UdpSocket::bind((ip, 0)).unwrap()).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let client = lab.enter(from, || UdpSocket::bind(("0.0.0.0", 0)).unwrap()).unwrap();
    client.send_to(b"x", server.local_addr().unwrap()).unwrap();
    server.recv(&mut [0; 4]).is_ok()
}

#[test]
fn ipv6_jumbo_frames_and_more_hosts() {
    let spec = Spec::new(&name(), 3, 1, Layout::Pairs).mtu(9000).family(Family::V6);
    let lab = Lab::up(spec).unwrap();
    assert!(lab.ip("c", 0).unwrap().is_ipv6());
    for other in ["b", "c"] {
        // 8952 bytes of payload, 40 of the IPv6 header and 8 of the ICMPv6 header are 9000; the don't-fragment bit
        // refuses one more. A packet that fits may be answered late on a busy machine. One that does not fit is refused
        // at once.
        for (payload, [count, wait], fits) in [("8952", ["-c3", "-W5"], true), ("8953", ["-c1", "-W1"], false)] {
            let mut ping = lab.command("a", "ping").unwrap();
            ping.args(["-6", count, wait, "-M", "do", "-s", payload]).arg(lab.ip(other, 0).unwrap().to_string());
            let status = ping.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
            assert_eq!(status.success(), fits, "{payload} bytes to {other}");
        }
    }
    let nics = lab.enter("a", skein_host::nics).unwrap().unwrap();
    let nic = nics.iter().find(|n| n.name == "nic0").unwrap();
    assert_eq!((nic.mtu, nic.mac, nic.kind.as_deref()), (9000, Some([2, 0x77, 0, 0, 1, 0]), Some("veth")));
    assert!(nic.addresses.iter().all(|a| a.usable), "{nic:?}");
    assert_eq!(nic.speed_mbit, None);
}

#[test]
fn a_sampler_sees_a_hosts_traffic() {
    let lab = Lab::up(Spec::pairs(&name(), 2, Some(200))).unwrap();
    let options = SamplerOptions { netns: Some(lab.netns("b").unwrap()), ..SamplerOptions::default() };
    let sampler = Sampler::start(options).unwrap();
    let sent = goodput_mbit(&lab, ("a", 1), ("b", 1));
    // This is more work for a core than the kernel's clock could miss.
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {}
    let rates = sampler.stop().rates();
    let received = |nic: &str| rates.iter().map(|r| r.nics_mbit[nic].0).fold(0.0, f64::max);
    let (idle, busy) = (received("nic0"), received("nic1"));
    // How fast the link is, other tests ask. The fastest sample is about as fast as the whole, or faster.
    assert!(sent > 10.0 && busy >= 0.9 * sent && idle < 1.0, "nic0 {idle:.1}, nic1 {busy:.1}, sent {sent:.1} Mb/s");
    assert!(rates.len() >= 5, "{} samples", rates.len());
    assert!(rates.iter().any(|r| r.cores.values().any(|share| *share > 0.0)));
}

#[test]
fn nics_that_come_and_go_are_no_error() {
    let lab = Lab::up(Spec::pairs(&name(), 1, None)).unwrap();
    let busy = AtomicBool::new(true);
    let counts: BTreeSet<usize> = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            lab.enter("a", || {
                let read = || skein_host::nics().expect("whatever else happens").len();
                std::iter::from_fn(|| busy.load(Ordering::Relaxed).then(read)).collect()
            })
            .unwrap()
        });
        for _ in 0..20 {
            for change in ["link add x0 type veth peer name x1", "link del x0"] {
                let mut ip = lab.command("a", "ip").unwrap();
                assert!(ip.args(change.split(' ')).status().unwrap().success(), "{change}");
            }
        }
        busy.store(false, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(counts.contains(&2) && counts.contains(&4), "lo and nic0, at times x0 and x1: {counts:?}");
}

#[test]
fn hosts_are_clean_and_use_debians_defaults() {
    let lab = Lab::up(Spec::pairs(&name(), 1, Some(100))).unwrap();
    let read = |file: &str| lab.enter("a", || std::fs::read_to_string(file).unwrap().trim().to_owned()).unwrap();
    assert_eq!(read("/proc/sys/net/ipv4/tcp_congestion_control"), "cubic");
    let output = lab.command("a", "tc").unwrap().args(["qdisc", "show", "dev", "nic0"]).output().unwrap();
    let qdiscs = String::from_utf8(output.stdout).unwrap();
    assert!(!qdiscs.contains("tbf") && !qdiscs.contains("ingress"), "{qdiscs}");
}

#[test]
fn nothing_is_left_behind() {
    let name = name();
    let lab = Lab::up(Spec::pairs(&name, 8, Some(1000))).unwrap();
    let netns = lab.netns("a").unwrap();
    let mut child = lab.command("a", "sleep").unwrap().arg("60").spawn().unwrap();
    assert!(netns.exists() && skein_lab_hosts::labs().contains(&name));
    drop(lab);
    assert!(!netns.exists() && !skein_lab_hosts::labs().contains(&name));
    assert!(!child.wait().unwrap().success(), "it was killed");
    assert!(matches!(Lab::attach(&name), Err(LabError::NoLab { .. })));
    assert!(!skein_lab_hosts::down(&name).unwrap(), "down again does nothing");
}

#[test]
fn a_killed_runs_lab_is_replaced() {
    let name = name();
    let mut killed = Lab::up(Spec::pairs(&name, 3, None)).unwrap();
    killed.keep();
    drop(killed);
    let mut stale = Lab::attach(&name).unwrap().command("b", "sleep").unwrap().arg("60").spawn().unwrap();
    let lab = Lab::up(Spec::pairs(&name, 1, None)).unwrap();
    assert!(!stale.wait().unwrap().success(), "what ran in it was killed");
    assert_eq!(lab.counters("a").unwrap().len(), 1);
    assert!(reaches(&lab, ("a", 0), ("b", 0)));
}

#[test]
fn another_program_sees_and_changes_it() {
    let lab = Lab::up(Spec::pairs(&name(), 1, Some(1000))).unwrap();
    let other = Lab::attach(&lab.spec().name).unwrap();
    other.rate("a", 0, Some(50)).unwrap();
    other.cut("a", 0, Cut::BlackHole).unwrap();
    drop(other);
    let nic = &lab.nics("a").unwrap()[0];
    assert_eq!((nic.rate_mbit, nic.cut), (Some(50), Some(Cut::BlackHole)));
    lab.heal("a", 0).unwrap();
    holds(50.0, "the other's rate, healed here", || goodput_mbit(&lab, ("a", 0), ("b", 0)));
}

#[test]
fn clear_errors() {
    let lab = Lab::up(Spec::pairs(&name(), 2, None)).unwrap();
    let text = |error: LabError| error.to_string();
    assert!(text(lab.cut("z", 0, Cut::Carrier).unwrap_err()).contains("its hosts are a, b"));
    assert!(text(lab.heal("a", 2).unwrap_err()).contains("its NICs are 0 to 1"));
    assert!(matches!(lab.rate("a", 0, Some(0)), Err(LabError::Rate(_))));
    assert!(matches!(lab.command("switch", "true"), Err(LabError::NoHost { .. })));
    assert!(matches!(Lab::up(Spec::pairs("No Good", 1, None)), Err(LabError::Spec(_))));
    assert!(matches!(Lab::attach("../x"), Err(LabError::Spec(_))));
}

/// Tests what a program that is killed leaves: its lab is removed when the next one is built, but a lab that was kept
/// is not.
#[test]
fn labs_of_killed_programs_are_removed() {
    const PROGRAM: &str = "SKEIN_TEST_LABS";
    if let Ok(names) = std::env::var(PROGRAM) {
        let (orphan, kept) = names.split_once(' ').unwrap();
        let _orphan = Lab::up(Spec::pairs(orphan, 1, None)).unwrap();
        Lab::up(Spec::pairs(kept, 1, None)).unwrap().keep();
        // No destructor runs.
        std::process::abort();
    }
    let (orphan, kept) = (name(), name());
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "labs_of_killed_programs_are_removed"]).env(PROGRAM, format!("{orphan} {kept}"));
    assert_eq!(program.output().unwrap().status.signal(), Some(nix::libc::SIGABRT));
    assert!(skein_lab_hosts::labs().contains(&kept));
    let _next = Lab::up(Spec::pairs(&name(), 1, None)).unwrap();
    let labs = skein_lab_hosts::labs();
    assert!(!labs.contains(&orphan) && labs.contains(&kept), "{labs:?}");
    Lab::attach(&kept).unwrap().down().unwrap();
}
