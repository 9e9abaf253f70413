//! Tests `skein agent` and `skein tunnel` as processes that are killed: the other one reports it soon, and the same
//! commands work again.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use skein_identity::{ClusterCa, Validity};

/// A process that is killed when the test is over, at the latest.
struct Skein(Child);

impl Skein {
    /// Starts a process and waits for the line that says that it is ready.
    fn start(args: &[&str]) -> (Skein, String) {
        let (skein, ready) = Skein::first_line(args);
        assert!(ready.starts_with("ready"), "{args:?}: {ready}");
        (skein, ready)
    }

    /// Starts a process and waits for its first line, which is empty if the process ends without a word.
    fn first_line(args: &[&str]) -> (Skein, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_skein"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("skein starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it can be heard");
        (Skein(child), line)
    }
}

impl Drop for Skein {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().expect("a directory");
        let ca = ClusterCa::create("test").expect("a CA");
        for host in ["a", "b"] {
            let identity = ca.issue(host, Validity::days(1)).expect("an identity");
            identity.save(&dir.path().join(host)).expect("it is saved");
        }
        World { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Starts the agent. Returns it with its address.
    fn agent(&self) -> (Skein, String) {
        let (identity, allow) = (self.text("b"), self.text("*"));
        let (agent, ready) = Skein::start(&[
            "agent",
            "--tunnels-only",
            "--identity",
            &identity,
            "--nic",
            "lo",
            "--listen",
            "127.0.0.1:0",
            "--allow",
            &allow,
        ]);
        (agent, format!("127.0.0.1:{}", ready.trim().rsplit(' ').next().expect("a port")))
    }

    fn tunnel(&self, to: &str) -> Skein {
        let (identity, forward) = (self.text("a"), format!("{}={}", self.text("in"), self.text("out")));
        let args: &[&str] = &["tunnel", "--identity", &identity, "--nic", "lo", "--to", to, "-L", &forward];
        // Tries again: a handshake has five seconds, which are too few on a busy machine, and then the tunnel ends.
        let mut started = (0..3).map(|_| Skein::first_line(args));
        started.find(|(_, line)| line.starts_with("ready")).expect("one of three tunnels is ready").0
    }

    /// Makes a connection through the tunnel. Returns both ends.
    fn connect(&self, listener: &UnixListener) -> (UnixStream, UnixStream) {
        let mut here = UnixStream::connect(self.path("in")).expect("the tunnel listens");
        here.write_all(b"x").expect("it takes bytes");
        let (mut there, _) = listener.accept().expect("it arrives");
        there.read_exact(&mut [0]).expect("with its byte");
        (here, there)
    }
}

fn ends_soon(socket: &UnixStream) {
    socket.set_read_timeout(Some(Duration::from_secs(90))).expect("a time");
    let since = Instant::now();
    let read = { socket }.read(&mut [0]);
    assert!(!matches!(&read, Ok(1..)) && since.elapsed() < Duration::from_secs(60), "{read:?} {:?}", since.elapsed());
}

fn listen(path: &Path) -> UnixListener {
    UnixListener::bind(path).expect("the target listens")
}

#[test]
fn a_killed_agent_ends_what_it_carried_and_the_tunnel_finds_its_successor() {
    let world = World::new();
    let target = listen(&world.path("out"));
    let (agent, address) = world.agent();
    let _tunnel = world.tunnel(&address);
    let (here, there) = world.connect(&target);
    drop(agent);
    ends_soon(&there);
    ends_soon(&here);
    // A new connection fails at once, not late.
    ends_soon(&UnixStream::connect(world.path("in")).expect("the tunnel listens on"));
}

#[test]
fn a_killed_tunnel_ends_what_it_carried_and_can_be_started_again() {
    let world = World::new();
    let target = listen(&world.path("out"));
    let (_agent, address) = world.agent();
    let tunnel = world.tunnel(&address);
    let (here, there) = world.connect(&target);
    drop(tunnel);
    ends_soon(&here);
    ends_soon(&there);
    assert!(world.path("in").exists(), "a killed process cannot clean up");
    let _tunnel = world.tunnel(&address);
    world.connect(&target);
}

#[test]
fn a_signal_ends_both_in_order() {
    let world = World::new();
    let target = listen(&world.path("out"));
    let (mut agent, address) = world.agent();
    let mut tunnel = world.tunnel(&address);
    let (_here, there) = world.connect(&target);
    for skein in [&mut tunnel, &mut agent] {
        let pid = nix::unistd::Pid::from_raw(skein.0.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = loop {
            match skein.0.try_wait().expect("it is ours") {
                Some(status) => break status,
                None => assert!(Instant::now() < deadline, "it does not end"),
            }
            thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{status}");
    }
    ends_soon(&there);
    assert!(!world.path("in").exists(), "nothing is left behind");
}
