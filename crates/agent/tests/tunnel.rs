//! Tests a tunnel and an agent on the loopback interface: real sockets, real TLS, no privileges.

mod noise;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use skein_agent::{
    AcceptorSettings, Addresses, Agent, AgentError, AgentSettings, Allow, DialerSettings, Forward, Tunnel, TunnelError,
    TunnelSettings, WantedConnections,
};
use skein_identity::{ClusterCa, Identity, Validity};

use self::noise::noise;

/// The time within which anything happens, on a busy machine, too.
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    dir: tempfile::TempDir,
    ca: ClusterCa,
    agent: Agent,
}

fn loopback() -> Addresses {
    Addresses { nics: vec!["lo".into()], ..Addresses::default() }
}

impl World {
    fn new() -> World {
        World::with(false)
    }

    fn with(allow_plain_data: bool) -> World {
        let dir = tempfile::tempdir().unwrap();
        let ca = ClusterCa::create("test").unwrap();
        let acceptor = AcceptorSettings {
            listen: "127.0.0.1:0".parse().unwrap(),
            addresses: loopback(),
            allow_plain_data,
            outage: Duration::from_secs(60),
        };
        let allow = Allow::new(&[format!("{}/*", dir.path().display())]).unwrap();
        let identity = ca.issue("b", Validity::days(1)).unwrap();
        let agent = Agent::start(AgentSettings::tunnels(acceptor, allow), &identity).unwrap();
        World { dir, ca, agent }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn settings(&self, target: &Path) -> TunnelSettings {
        TunnelSettings {
            dialer: DialerSettings {
                to: vec![SocketAddr::from(([127, 0, 0, 1], self.agent.port()))],
                host: Some("b".into()),
                addresses: loopback(),
                connections: WantedConnections::Fixed(2),
                tells_queues: false,
                plain_data: false,
                outage: Duration::from_secs(60),
            },
            forwards: vec![Forward { listen: self.path("in.sock"), destination: target.display().to_string() }],
            socket_mode: 0o600,
            transport: Default::default(),
            packer: Vec::new(),
        }
    }

    fn identity(&self) -> Identity {
        self.ca.issue("a", Validity::days(1)).unwrap()
    }

    fn tunnel(&self, target: &Path) -> Tunnel {
        self.tunnel_with(&self.settings(target))
    }

    /// Starts a tunnel, again and again while a busy machine does not shake hands in time.
    fn tunnel_with(&self, settings: &TunnelSettings) -> Tunnel {
        let end = Instant::now() + PATIENCE;
        loop {
            match Tunnel::start(settings.clone(), self.identity()) {
                Ok(tunnel) => return tunnel,
                Err(error) => assert!(Instant::now() < end, "{}", chain(&error)),
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn connect(&self) -> UnixStream {
        let socket = UnixStream::connect(self.path("in.sock")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Starts a server at the target that sends back what it gets, and closes after the end of it.
    fn echo(&self) -> PathBuf {
        let path = self.path("out.sock");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            for socket in listener.incoming() {
                thread::spawn(move || {
                    let mut socket = socket.unwrap();
                    let mut back = socket.try_clone().unwrap();
                    let _ = std::io::copy(&mut socket, &mut back);
                    let _ = back.shutdown(Shutdown::Write);
                });
            }
        });
        path
    }
}

fn send_and_receive(socket: UnixStream, data: Vec<u8>) {
    let mut out = socket.try_clone().unwrap();
    let sent = data.clone();
    let sending = thread::spawn(move || {
        out.write_all(&sent).unwrap();
        out.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    { &socket }.read_to_end(&mut back).unwrap();
    sending.join().unwrap();
    assert!(back == data, "{} bytes went out, {} came back", data.len(), back.len());
}

/// Returns what a local program sees of a connection that was not carried: its end.
fn ends(mut socket: UnixStream) -> bool {
    matches!(socket.read(&mut [0]), Ok(0)) || socket.write_all(b"x").is_err()
}

#[test]
fn bytes_come_back_as_they_went() {
    for plain in [false, true] {
        let world = World::with(plain);
        let target = world.echo();
        let mut settings = world.settings(&target);
        settings.dialer.plain_data = plain;
        let _tunnel = world.tunnel_with(&settings);
        for len in [0, 1, 5, 70_000, 20_000_000] {
            send_and_receive(world.connect(), noise(len, len as u64 + 1));
        }
    }
}

#[test]
fn many_connections_at_once() {
    let world = World::new();
    let target = world.echo();
    let _tunnel = world.tunnel(&target);
    let all: Vec<_> = (0..100)
        .map(|i| {
            let socket = world.connect();
            thread::spawn(move || send_and_receive(socket, noise(i * 3000, i as u64 + 1)))
        })
        .collect();
    all.into_iter().for_each(|one| one.join().unwrap());
}

#[test]
fn connections_reach_the_target_in_their_order() {
    let world = World::new();
    let path = world.path("out.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let _tunnel = world.tunnel(&path);
    // The first says nothing for a while, as QEMU's main channel does while multifd channels come up.
    let mut sockets: Vec<UnixStream> = (0..8).map(|_| world.connect()).collect();
    for (i, socket) in sockets.iter_mut().enumerate().skip(1) {
        socket.write_all(&[i as u8]).unwrap();
    }
    thread::sleep(Duration::from_millis(100));
    sockets[0].write_all(&[0]).unwrap();
    for i in 0..8 {
        let mut first = [99];
        listener.accept().unwrap().0.read_exact(&mut first).unwrap();
        assert_eq!(first, [i]);
    }
}

#[test]
fn a_server_that_speaks_first_is_heard() {
    let world = World::new();
    let path = world.path("out.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || listener.accept().unwrap().0.write_all(b"NBDMAGIC").unwrap());
    let _tunnel = world.tunnel(&path);
    let mut greeting = [0; 8];
    world.connect().read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
}

#[test]
fn a_target_that_is_not_there_or_not_allowed_ends_the_connection() {
    let world = World::new();
    {
        let _tunnel = world.tunnel(Path::new("/etc/shadow"));
        assert!(ends(world.connect()));
    }
    let _tunnel = world.tunnel(&world.path("nobody.sock"));
    let since = Instant::now();
    assert!(ends(world.connect()));
    assert!(since.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_target_that_dies_ends_the_connection() {
    let world = World::new();
    let path = world.path("out.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let _tunnel = world.tunnel(&path);
    let mut socket = world.connect();
    socket.write_all(b"hello").unwrap();
    drop(listener.accept().unwrap());
    let end = Instant::now() + PATIENCE;
    let error = loop {
        match socket.write_all(&[0; 10]) {
            Ok(()) => assert!(Instant::now() < end, "the connection goes on"),
            Err(error) => break error,
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
}

#[test]
fn strangers_get_nothing_and_are_told_why() {
    let world = World::new();
    let target = world.path("out.sock");
    let start = |identity: Identity| Tunnel::start(world.settings(&target), identity).err().unwrap();
    let other = ClusterCa::create("other").unwrap().issue("a", Validity::days(1)).unwrap();
    let error = chain(&start(other));
    assert!(error.contains("another CA") || error.contains("not of this cluster"), "{error}");
    assert!(!world.path("in.sock").exists(), "nothing is left behind");
}

fn chain(error: &TunnelError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

#[test]
fn another_member_than_the_expected_is_refused() {
    let world = World::new();
    let mut settings = world.settings(&world.path("out.sock"));
    settings.dialer.host = Some("c".into());
    let error = chain(&Tunnel::start(settings, world.identity()).err().unwrap());
    assert!(error.contains("is b, not c"), "{error}");
}

#[test]
fn unencrypted_data_needs_the_agents_consent() {
    let world = World::new();
    let mut settings = world.settings(&world.path("out.sock"));
    settings.dialer.plain_data = true;
    let error = chain(&Tunnel::start(settings, world.identity()).err().unwrap());
    assert!(error.contains("--allow-plain-data"), "{error}");
}

#[test]
fn garbage_and_idle_connections_hinder_nobody() {
    let world = World::new();
    let target = world.echo();
    let agent = SocketAddr::from(([127, 0, 0, 1], world.agent.port()));
    let garbage: Vec<TcpStream> = (0..100)
        .map(|i| {
            let mut socket = TcpStream::connect_timeout(&agent, Duration::from_secs(5)).unwrap();
            // Half of them say nothing at all.
            if i % 2 == 0 {
                let _ = socket.write_all(&noise(2000, i + 1));
            }
            socket
        })
        .collect();
    let _tunnel = world.tunnel(&target);
    send_and_receive(world.connect(), noise(1_000_000, 3));
    drop(garbage);
}

#[test]
fn after_the_agent_was_restarted_the_tunnel_connects_again() {
    let mut world = World::new();
    let target = world.echo();
    let tunnel = world.tunnel(&target);
    send_and_receive(world.connect(), noise(100_000, 1));
    let open = world.connect();
    { &open }.write_all(b"x").unwrap();
    { &open }.read_exact(&mut [0]).unwrap();
    let acceptor = AcceptorSettings {
        listen: SocketAddr::from(([127, 0, 0, 1], world.agent.port())),
        addresses: loopback(),
        allow_plain_data: false,
        outage: Duration::from_secs(60),
    };
    world.agent.stop();
    let allow = Allow::new(&[format!("{}/*", world.dir.path().display())]).unwrap();
    let identity = world.ca.issue("b", Validity::days(1)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    world.agent = loop {
        let settings = AgentSettings::tunnels(acceptor.clone(), allow.clone());
        match Agent::start(settings, &identity) {
            Ok(agent) => break agent,
            Err(AgentError::Listen(error)) => assert!(Instant::now() < deadline && error.is_in_use(), "{error}"),
            Err(error) => panic!("{error}"),
        }
        thread::sleep(Duration::from_millis(50));
    };
    // The open connections have ended; what comes now is carried.
    let mut rest = Vec::new();
    let _ = { &open }.read_to_end(&mut rest);
    // A connection may end a moment before its session does, and with it what came in that moment.
    let deadline = Instant::now() + PATIENCE;
    while tunnel.snapshot().is_some() {
        assert!(Instant::now() < deadline, "the session outlives its agent");
        thread::sleep(Duration::from_millis(5));
    }
    send_and_receive(world.connect(), noise(100_000, 2));
    drop(tunnel);
    assert!(!world.path("in.sock").exists());
}

#[test]
fn nobody_connects_for_a_tunnel_that_is_gone() {
    let world = World::new();
    let path = world.path("out.sock");
    let tunnel = world.tunnel(&path);
    let waiting: Vec<UnixStream> = (0..4).map(|_| world.connect()).collect();
    waiting.iter().for_each(|mut socket| socket.write_all(b"QEVM").unwrap());
    thread::sleep(Duration::from_millis(200));
    drop((tunnel, waiting));
    // An incoming QEMU would exit at the first stray connection.
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    thread::sleep(Duration::from_millis(500));
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn an_early_answer_arrives_whole() {
    let world = World::new();
    let path = world.path("out.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let answer = noise(1 << 20, 9);
    let said = answer.clone();
    // The server answers and closes without having read what still comes.
    thread::spawn(move || listener.accept().unwrap().0.write_all(&said).unwrap());
    let _tunnel = world.tunnel(&path);
    let socket = world.connect();
    let mut out = socket.try_clone().unwrap();
    let sending = thread::spawn(move || while out.write_all(&[0; 100_000]).is_ok() {});
    let mut heard = Vec::new();
    let _ = { &socket }.read_to_end(&mut heard);
    assert!(heard == answer, "{} of {} bytes", heard.len(), answer.len());
    sending.join().unwrap();
}
