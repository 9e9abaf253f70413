//! Tests agents that talk to each other on the loopback interface: real sockets, real TLS, real processes, no
//! privileges.

mod world;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use skein_agent::{
    Answer, AskError, CONTROL_VERSIONS, ControlMessage, ControlVersions, OutgoingChannels, PeerEvent, Question,
};
use skein_dataplane::target::TargetPages;
use skein_handover::MigrationId;
use skein_identity::Identity;

use self::world::*;

/// Returns whether a connection ends without a word.
fn ends(mut socket: &UnixStream) -> bool {
    matches!(socket.read(&mut [0]), Ok(0)) || socket.write_all(b"x").is_err()
}

#[track_caller]
fn wait_until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(SECOND / 20);
    }
}

#[test]
fn two_agents_talk_as_long_as_one_wants_to() {
    let world = World::new();
    let (a, b) = world.pair();
    assert!(!a.peers.send("b", &message(1, "")), "nobody is there yet");
    a.peers.reach("b");
    a.peers.reach("b");
    let time = a.contact("b", true, PATIENCE);
    println!("in contact after {time:?}");
    b.contact("a", true, PATIENCE);
    assert!(a.peers.contact("b") && b.peers.contact("a"));
    for id in 0..100 {
        assert!(a.peers.send("b", &message(id, &"x".repeat(id as usize * 100))));
        assert!(b.peers.send("a", &message(id, "y")));
    }
    for id in 0..100 {
        b.message("a", message(id, &"x".repeat(id as usize * 100)));
        a.message("b", message(id, "y"));
    }
    // The message is longer than a line may be: it is refused, and nothing else is lost.
    assert!(!a.peers.send("b", &message(1, &"x".repeat(5 << 20))));
    assert!(a.peers.send("b", &message(1, &"x".repeat(3 << 20))));
    b.message("a", message(1, &"x".repeat(3 << 20)));
    assert_eq!(a.peers.snapshots().len(), 1);
    let begin = Instant::now();
    a.peers.leave("b");
    assert_eq!(a.events.recv_timeout(PATIENCE), Ok(PeerEvent::Contact("b".into(), false)));
    assert!(begin.elapsed() >= 4 * SECOND, "{:?}", begin.elapsed());
    b.contact("a", false, PATIENCE);
    assert!(!a.peers.send("b", &message(1, "")) && a.peers.snapshots().is_empty());
    let begin = Instant::now();
    drop((a, b));
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}

#[test]
fn sessions_that_both_dialled_are_one_contact() {
    let world = World::new();
    let (a, b) = world.pair();
    a.peers.reach("b");
    a.contact("b", true, PATIENCE);
    b.contact("a", true, PATIENCE);
    b.peers.reach("a");
    // Each control stream is told, as what was said in another may be lost.
    a.contact("b", true, PATIENCE);
    b.contact("a", true, PATIENCE);
    a.peers.leave("b");
    wait_until("one session ends", || (a.peers.snapshots().len(), b.peers.snapshots().len()) == (1, 1));
    assert!(a.is_quiet(2 * SECOND), "the other's session stays");
    assert!(a.peers.send("b", &message(1, "")));
    b.message("a", message(1, ""));
}

#[test]
fn questions_are_answered_or_it_is_said_why_not() {
    let world = World::new();
    let (a, b) = world.pair();
    let ask = |host: &str, file: &str| a.peers.ask(host, &question(file), Instant::now() + PATIENCE);
    let Answer::HostFacts(found) = ask("b", "br7").unwrap() else { panic!("another answer than was asked for") };
    assert_eq!((found.name.as_str(), found.bridges.contains("br7")), ("b", true));
    let leader = a.peers.ask("b", &Question::Leader, Instant::now() + PATIENCE).unwrap();
    assert!(matches!(leader, Answer::Leader { acknowledged: true }));
    let error = ask("b", "no").unwrap_err();
    assert!(matches!(error, AskError::Refused { .. }) && error.to_string().contains("not to a"), "{error}");
    assert!(matches!(ask("b", "panic"), Err(AskError::Refused { .. })));
    assert!(matches!(ask("a", ""), Err(AskError::Myself(_))));
    // Forty ask at once, a few are answered at a time, and the others wait for their turn.
    thread::scope(|scope| {
        let asked: Vec<_> = (0..40).map(|_| scope.spawn(|| ask("b", "tap"))).collect();
        for one in asked {
            one.join().unwrap().unwrap();
        }
    });
    let begin = Instant::now();
    let error = ask("nowhere.invalid", "").unwrap_err();
    assert!(matches!(error, AskError::Unreachable { .. }) && chain(&error).contains("hosts.toml"), "{error:?}");
    // Nobody listens there any more.
    b.peers.stop();
    let error = ask("b", "").unwrap_err();
    println!("{}", chain(&error));
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}

#[test]
fn another_host_at_the_address_is_refused() {
    let world = World::new();
    let (a, b) = world.pair();
    world.list(&[("c", b.peers.port())]);
    let error = chain(&a.peers.ask("c", &question(""), Instant::now() + PATIENCE).unwrap_err());
    assert!(error.contains("is b, not c"), "{error}");
}

#[test]
fn an_agent_that_was_stopped_and_started_again_is_found_again() {
    let world = World::new();
    let (a, mut b) = world.pair();
    a.peers.reach("b");
    a.contact("b", true, PATIENCE);
    for pause in [0, 300, 3000, 7000] {
        let port = b.peers.port();
        drop(b);
        let lost = a.contact("b", false, PATIENCE);
        thread::sleep(Duration::from_millis(pause));
        b = start(world.dir.path(), &world.identity("b"), port);
        let found = a.contact("b", true, PATIENCE);
        println!("stopped for {pause} ms: lost after {lost:?}, in contact {found:?} after its start");
        b.contact("a", true, PATIENCE);
    }
}

/// An agent in a process of its own: the test below, in this program.
struct Process {
    child: Child,
    port: u16,
}

const CHILD: &str = "SKEIN_TEST_PEER";

impl Process {
    /// Starts an agent. With a port of 0 it chooses a port; with a host it keeps a session with the host.
    fn start(world: &World, port: u16, reached: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "an_agent_of_its_own", "--nocapture"])
            .env(CHILD, format!("{}:{port}:{reached}", world.dir.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| line.unwrap().strip_prefix("port ")?.parse().ok()).unwrap();
        // The agent's output must not be in its way.
        thread::spawn(move || lines.for_each(drop));
        Process { child, port }
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "a process that other tests start"]
fn an_agent_of_its_own() {
    let Ok(place) = std::env::var(CHILD) else { return };
    let (place, reached) = place.rsplit_once(':').unwrap();
    let (dir, port) = place.rsplit_once(':').unwrap();
    let identity = Identity::load(&Path::new(dir).join("identity")).unwrap();
    let node = start(Path::new(dir), &identity, port.parse().unwrap());
    if !reached.is_empty() {
        node.peers.reach(reached);
    }
    println!("\nport {}", node.peers.port());
    // This lasts until the process is killed, or the test that started it is gone.
    thread::spawn(move || node.events.into_iter().for_each(drop));
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn an_agent_that_is_killed_or_stands_still_is_out_of_contact_until_it_is_back() {
    let world = World::new();
    world.identity("b").save(&world.path("identity")).unwrap();
    let mut b = Process::start(&world, 0, "");
    world.list(&[("b", b.port)]);
    let a = world.start("a");
    a.peers.reach("b");
    a.contact("b", true, PATIENCE);
    for pause in [0, 3000, 6000] {
        let port = b.port;
        b.signal("-KILL");
        drop(b);
        let lost = (pause > 0).then(|| a.contact("b", false, PATIENCE));
        thread::sleep(Duration::from_millis(pause));
        b = Process::start(&world, port, "");
        let begin = Instant::now();
        // An agent that is back at once may be met again before its loss is told.
        a.contact("b", true, PATIENCE);
        println!("killed: lost after {lost:?}, away for {pause} ms, found {:?} after its start", begin.elapsed());
    }
    b.signal("-STOP");
    let lost = a.contact("b", false, PATIENCE);
    thread::sleep(2 * SECOND);
    b.signal("-CONT");
    let found = a.contact("b", true, PATIENCE);
    println!("standing still: lost after {lost:?}, found after {found:?}");
    assert!(a.peers.ask("b", &question("tap"), Instant::now() + PATIENCE).is_ok());
}

/// The session that the killed agent dialled may outlive it for a minute, and looks well for a moment: a host that is
/// asked in that session does not answer.
#[test]
fn an_agent_that_was_killed_is_asked_as_soon_as_it_is_back() {
    let world = World::new();
    world.identity("b").save(&world.path("identity")).unwrap();
    let a = world.start("a");
    world.list(&[("a", a.peers.port())]);
    let b = Process::start(&world, 0, "a");
    a.contact("b", true, PATIENCE);
    world.list(&[("b", b.port)]);
    let port = b.port;
    drop(b);
    let _b = Process::start(&world, port, "");
    let begin = Instant::now();
    a.peers.ask("b", &question("tap"), begin + PATIENCE).unwrap();
    println!("answered after {:?}", begin.elapsed());
}

#[test]
fn a_tap_leads_to_a_landing() {
    let world = World::new();
    let (a, b) = world.pair();
    let id = MigrationId(0x17);
    let (tap_path, target) = (world.path("tap.sock"), world.path("target.sock"));
    b.peers.incoming_channels().open(id, "a", &target, TargetPages::new(None, None));
    let listener = UnixListener::bind(&target).unwrap();
    // Nobody has reached b before: the first connection waits for the session.
    let tap = OutgoingChannels::start(&tap_path, &a.peers, "b", id, pages(), &[]).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&tap_path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let mut sockets: Vec<UnixStream> = (0..8).map(|_| UnixStream::connect(&tap_path).unwrap()).collect();
    for (nth, socket) in sockets.iter_mut().enumerate().rev() {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(&[nth as u8]).unwrap();
    }
    let mut landed: Vec<UnixStream> = Vec::new();
    for nth in 0..8 {
        let (mut socket, _) = listener.accept().unwrap();
        let mut first = [99];
        socket.read_exact(&mut first).unwrap();
        assert_eq!(first, [nth], "in the order of the connections");
        landed.push(socket);
    }
    // Both ways carry megabytes, and an end.
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    for (near, far) in [(&sockets[0], &landed[0]), (&landed[0], &sockets[0])] {
        thread::scope(|scope| {
            scope.spawn(|| {
                { near }.write_all(&data).unwrap();
                near.shutdown(Shutdown::Write).unwrap();
            });
            let mut got = Vec::new();
            { far }.read_to_end(&mut got).unwrap();
            assert!(got == data);
        });
    }
    // Connections after the first are kept open for the source, whatever the target does.
    landed[1].shutdown(Shutdown::Both).unwrap();
    // This is longer than an unwanted session is kept: the outgoing channels keep the session.
    thread::sleep(Duration::from_millis(5500));
    sockets[2].write_all(b"still there").unwrap();
    let mut got = [0; 11];
    landed[2].read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still there");
    sockets[1].set_nonblocking(true).unwrap();
    assert_eq!(sockets[1].read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    sockets[1].set_nonblocking(false).unwrap();
    drop(tap);
    assert!(!tap_path.exists() && UnixStream::connect(&tap_path).is_err());
    assert!(sockets[1..].iter().all(ends) && ends(&landed[2]), "the tap's connections end with it");
}

#[test]
fn a_landing_is_for_one_migration_of_one_peer_while_it_is_open() {
    let world = World::new();
    let (a, b) = world.pair();
    let c = world.start("c");
    let (id, target) = (MigrationId(1), world.path("target.sock"));
    let listener = UnixListener::bind(&target).unwrap();
    listener.set_nonblocking(true).unwrap();
    let tap = |node: &Node, name: &str, id| {
        let path = world.path(name);
        let tap = OutgoingChannels::start(&path, &node.peers, "b", id, pages(), &[]).unwrap();
        let socket = UnixStream::connect(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        // A connection that is refused may end before these bytes are written.
        if let Err(error) = { &socket }.write_all(b"VMEQ") {
            assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        }
        (tap, socket)
    };
    // The ids are unknown, a stranger's, another's.
    let (_tap, socket) = tap(&a, "unknown", id);
    assert!(ends(&socket));
    b.peers.incoming_channels().open(id, "a", &target, TargetPages::new(None, None));
    let (_stranger, socket) = tap(&c, "stranger", id);
    assert!(ends(&socket));
    let (_other, socket) = tap(&a, "other", MigrationId(2));
    assert!(ends(&socket));
    thread::sleep(Duration::from_millis(200));
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "QEMU was not bothered");
    // This id is the right one.
    let (_right, socket) = tap(&a, "right", id);
    let begin = Instant::now();
    let (landed, _) = loop {
        match listener.accept() {
            Ok(landed) => break landed,
            Err(_) => assert!(begin.elapsed() < PATIENCE),
        }
        thread::sleep(Duration::from_millis(5));
    };
    landed.set_nonblocking(false).unwrap();
    let mut got = [0; 4];
    { &landed }.read_exact(&mut got).unwrap();
    b.peers.incoming_channels().close(id);
    assert!(ends(&landed) && ends(&socket), "its connections end with it");
    let (_late, socket) = tap(&a, "late", id);
    assert!(ends(&socket));
    // A stream leads nowhere but to open channels' paths and to sockets that are allowed.
    let live = world.session("a", &b);
    for target in ["skein:migration/x", "skein:", "/etc/shadow"] {
        assert!(ends(&open(live.live(), target)), "{target}");
    }
}

#[test]
fn who_talks_nonsense_loses_its_session_and_nobody_else_does() {
    let world = World::new();
    let (a, b) = world.pair();
    a.peers.reach("b");
    b.contact("a", true, PATIENCE);
    let hello = ControlMessage::hello(CONTROL_VERSIONS).line().unwrap();
    let other_version = ControlMessage::hello(ControlVersions { lowest: 7777, highest: 7777 }).line().unwrap();
    let endless = [hello.clone(), vec![b' '; 5 << 20]].concat();
    for (what, bytes) in [
        ("noise", b"\xff\xfe\0\n".to_vec()),
        ("another version", other_version),
        ("no greeting", b"{\"tell\":{\"number\":1,\"answer\":{\"Err\":\"\"}}}\n".to_vec()),
        ("a second greeting", [hello.clone(), hello.clone()].concat()),
        ("something unknown", [hello.clone(), b"{\"shutdown\":{}}\n".to_vec()].concat()),
        ("a line without end", endless),
    ] {
        let dialer = world.session("mallory", &b);
        let socket = open(dialer.live(), "skein:control");
        let _ = { &socket }.write_all(&bytes);
        let begin = Instant::now();
        while dialer.live().ended().is_none() {
            assert!(begin.elapsed() < PATIENCE, "{what}");
            thread::sleep(Duration::from_millis(10));
        }
    }
    wait_until("they are in contact", || a.peers.contact("b") && b.peers.contact("a"));
    assert!(a.peers.send("b", &message(1, "")));
    b.message("a", message(1, ""));
    // Nobody may claim to be this host itself, either.
    let dialer = world.session("b", &b);
    assert!(ends(&open(dialer.live(), "skein:control")));
    assert!(!b.peers.contact("b"));
}

#[test]
fn two_of_different_builds_are_told_that_they_do_not_understand_each_other() {
    let world = World::new();
    let b = world.start("b");
    // The line is of the same version, and has something in it that is not known here.
    let report = br#"{"handover":{"report":{"id":"0000000000000001","report":"Tomorrow"}}}"#;
    let words = "the agent of b does not understand a's messages: are both of one release?";
    let learns = || {
        let dialer = world.session("a", &b);
        let mut socket = open(dialer.live(), "skein:control");
        socket.write_all(&ControlMessage::hello(CONTROL_VERSIONS).line().unwrap()).unwrap();
        b.contact("a", true, PATIENCE);
        socket.write_all(&[&report[..], b"\n"].concat()).unwrap();
        b.wait(&PeerEvent::NotUnderstood("a".into(), words.into()), PATIENCE);
        let mut lines = BufReader::new(socket);
        std::iter::from_fn(|| ControlMessage::read(&mut lines).ok()).last() == Some(ControlMessage::NotUnderstood)
    };
    // The last word has 300 ms, in which a busy machine may not carry the word.
    assert!((0..20).any(|_| learns()), "a learns it, too");
    // This end is the one that is not understood.
    let dialer = world.session("c", &b);
    let mut socket = open(dialer.live(), "skein:control");
    let lines =
        [ControlMessage::hello(CONTROL_VERSIONS).line().unwrap(), ControlMessage::NotUnderstood.line().unwrap()]
            .concat();
    socket.write_all(&lines).unwrap();
    let words = "the agent of c does not understand b's messages: are both of one release?";
    b.wait(&PeerEvent::NotUnderstood("c".into(), words.into()), PATIENCE);
}

#[test]
fn who_does_not_listen_holds_up_nobody() {
    let world = World::new();
    let b = world.start("b");
    let dialer = world.session("deaf", &b);
    let mut first = open(dialer.live(), "skein:control");
    first.write_all(&ControlMessage::hello(CONTROL_VERSIONS).line().unwrap()).unwrap();
    b.contact("deaf", true, PATIENCE);
    let large = "x".repeat(100_000);
    let begin = Instant::now();
    let mut sent = 0;
    while b.peers.send("deaf", &message(sent, &large)) {
        sent += 1;
        assert!(sent < 1000, "queued without end");
    }
    println!("{sent} messages in {:?}", begin.elapsed());
    assert!(begin.elapsed() < PATIENCE);
    b.contact("deaf", false, PATIENCE);
    assert!(dialer.live().ended().is_none(), "the session may carry migrations");
    // The next control stream in the session is as good as new; a third replaces it.
    for _ in 0..2 {
        let mut socket = open(dialer.live(), "skein:control");
        socket.write_all(&ControlMessage::hello(CONTROL_VERSIONS).line().unwrap()).unwrap();
        b.contact("deaf", true, PATIENCE);
        assert!(b.peers.send("deaf", &message(7, "")));
        let mut lines = BufReader::new(socket);
        assert!(matches!(ControlMessage::read(&mut lines), Ok(ControlMessage::Hello { .. })));
        assert_eq!(ControlMessage::read(&mut lines).unwrap(), ControlMessage::handover(&message(7, "")));
        std::mem::forget(lines);
    }
}
