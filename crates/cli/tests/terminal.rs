//! Tests what needs a terminal, with one of the kernel's own: consoles, bars, questions.

mod fake;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use fake::{Act, Agent, DEADLINE, Ran, at, in_doubt, last, over, progress, say, vm};
use nix::pty::{Winsize, openpty};
use nix::sys::termios::{LocalFlags, Termios, tcgetattr};
use skein_api::{Migration, Outcome, Reply, Request, SourcePhase, VmState, VmView};

/// A program on a terminal, and what it shows.
struct Terminal {
    child: Child,
    keys: File,
    /// The program's end of the terminal, kept open to read its settings.
    end: OwnedFd,
    /// The terminal's settings before the program started.
    at_first: Termios,
    output: Receiver<Vec<u8>>,
    shown: String,
}

impl Terminal {
    fn run(mut command: Command) -> Terminal {
        let size = Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let at_first = tcgetattr(pty.slave.as_fd()).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let child = command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let keys = File::from(pty.master);
        let (mut screen, (sender, output)) = (keys.try_clone().unwrap(), sync_channel(1024));
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut chunk) {
                if sender.send(chunk[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { child, keys, end: pty.slave, at_first, output, shown: String::new() }
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    #[track_caller]
    fn shows(&mut self, text: &str) {
        let end = Instant::now() + DEADLINE;
        while !self.shown.contains(text) {
            let left = end.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(_) => panic!("no {text:?} in {:?}", self.shown),
            }
        }
    }

    fn settings(&self) -> Termios {
        tcgetattr(self.end.as_fd()).unwrap()
    }

    #[track_caller]
    fn exits(&mut self, code: i32) {
        let end = Instant::now() + DEADLINE;
        loop {
            while let Ok(bytes) = self.output.try_recv() {
                self.shown += &String::from_utf8_lossy(&bytes);
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                assert_eq!(status.code(), Some(code), "{:?}", self.shown);
                return;
            }
            assert!(Instant::now() < end, "it does not end: {:?}", self.shown);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn with_console(path: &Path) -> Vec<Act> {
    say(Reply::Vm(Box::new(VmView { console: Some(path.into()), ..vm("web1", VmState::Running) })))
}

/// Makes a guest's console. Returns its path and the end at which the guest reads.
fn console(dir: &Path) -> (std::path::PathBuf, UnixListener) {
    let path = dir.join("console");
    let listener = UnixListener::bind(&path).unwrap();
    (path, listener)
}

fn accept(listener: &UnixListener) -> UnixStream {
    let (guest, _) = listener.accept().unwrap();
    guest.set_read_timeout(Some(DEADLINE)).unwrap();
    guest
}

fn reads(guest: &mut UnixStream, expected: &[u8]) {
    let mut read = vec![0; expected.len()];
    guest.read_exact(&mut read).unwrap();
    assert_eq!(read, expected);
}

#[test]
fn a_console_is_raw_until_it_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let (path, listener) = console(dir.path());
    let agent = Agent::start(vec![with_console(&path)]);
    let mut terminal = Terminal::run(agent.command(&["vm", "console", "web1"]));
    let before = LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG;
    assert!(terminal.at_first.local_flags.contains(before));
    let mut guest = accept(&listener);
    terminal.shows("Ctrl-] leaves");
    guest.write_all(b"login: ").unwrap();
    terminal.shows("login: ");
    assert!(!terminal.settings().local_flags.intersects(before), "raw: Ctrl-C is the guest's");
    terminal.types("root\r\x03\x1a");
    reads(&mut guest, b"root\r\x03\x1a");
    terminal.types("x\x1dnever sent");
    reads(&mut guest, b"x");
    terminal.exits(0);
    assert!(terminal.settings().local_flags.contains(before));
    let mut rest = Vec::new();
    guest.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"", "nothing after Ctrl-]");
}

#[test]
fn a_console_that_ends_or_a_signal_leaves_the_terminal_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (path, listener) = console(dir.path());
    let agent = Agent::start(vec![with_console(&path), with_console(&path)]);
    let cooked = LocalFlags::ICANON | LocalFlags::ECHO;
    for signal in [false, true] {
        let mut terminal = Terminal::run(agent.command(&["vm", "console", "web1"]));
        let mut guest = accept(&listener);
        guest.write_all(b"ready").unwrap();
        terminal.shows("ready");
        if signal {
            let pid = nix::unistd::Pid::from_raw(terminal.child.id() as i32);
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        } else {
            drop(guest);
        }
        terminal.shows(if signal { "Interrupted." } else { "The console closed: the VM was stopped or moved." });
        terminal.exits(0);
        assert!(terminal.settings().local_flags.contains(cooked));
    }
}

#[test]
fn a_guest_that_does_not_read_can_be_left() {
    let dir = tempfile::tempdir().unwrap();
    let (path, listener) = console(dir.path());
    let agent = Agent::start(vec![with_console(&path)]);
    let mut terminal = Terminal::run(agent.command(&["vm", "console", "web1"]));
    let _guest = accept(&listener);
    terminal.shows("Ctrl-] leaves");
    // This is more than the socket and the program hold. The bell says that some of it is lost.
    let mut keys = terminal.keys.try_clone().unwrap();
    let typist = std::thread::spawn(move || {
        for _ in 0..512 {
            keys.write_all(&[b'x'; 1024]).unwrap();
        }
        keys.write_all(b"\x1d").unwrap();
    });
    terminal.shows("\x07");
    typist.join().unwrap();
    terminal.exits(0);
}

#[test]
fn a_pipe_types_and_prints_until_the_guest_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    let (path, listener) = console(dir.path());
    let agent = Agent::start(vec![with_console(&path), with_console(&path)]);
    let (answered, answers) = sync_channel(2);
    let guest = std::thread::spawn(move || {
        let mut guest = accept(&listener);
        // Ctrl-] has no meaning in a pipe.
        reads(&mut guest, b"uptime\n\x1d");
        guest.write_all(b"up 3 days\n").unwrap();
        answered.send(()).unwrap();
        // A second time, with more than any buffer in between holds.
        let mut guest = accept(&listener);
        let mut read = vec![0; 1 << 20];
        guest.read_exact(&mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == b'y'));
        guest.write_all(b"all of it\n").unwrap();
        answered.send(()).unwrap();
        guest
    });
    let args = ["vm", "console", "web1", "--linger", "1"];
    for (typed, printed) in [(b"uptime\n\x1d".to_vec(), "up 3 days\n"), (vec![b'y'; 1 << 20], "all of it\n")] {
        let mut command = agent.command(&args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(&typed).unwrap();
        // Keeps the input open until the guest has answered: a guest that is late does not count as silent.
        answers.recv_timeout(DEADLINE).unwrap();
        drop(input);
        let ran = Ran::new(&args, child.wait_with_output().unwrap()).exits(0);
        assert_eq!(ran.out, printed);
    }
    guest.join().unwrap();
}

#[test]
fn what_has_no_console_says_so() {
    let agent = Agent::start(vec![
        say(Reply::Vm(Box::new(vm("off", VmState::Stopped)))),
        say(Reply::Vm(Box::new(VmView { adopted: true, console: None, ..vm("taken", VmState::Running) }))),
        with_console(Path::new("/no/such/console")),
    ]);
    agent.run(&["vm", "console", "off"]).exits(1).complains("off has no console here: it is stopped");
    agent
        .run(&["vm", "console", "taken"])
        .exits(1)
        .complains("taken was adopted: its console is where the command line");
    agent
        .run(&["vm", "console", "web1"])
        .exits(1)
        .complains("cannot connect to web1's console /no/such/console: No such file");
}

#[test]
fn a_migration_has_bars() {
    let mut lame = at(SourcePhase::Precopy, 2500);
    lame.paths[1].usable = false;
    // Has each message come a second after the last one was seen: indicatif allows 20 draws in a second, and a message
    // takes 16.
    let (go, seen): (Vec<_>, Vec<_>) = (0..4).map(|_| sync_channel::<()>(1)).unzip();
    let mut seen = seen.into_iter();
    let mut pause = || [Act::Go(seen.next().unwrap()), Act::Wait(Duration::from_secs(1))];
    let mut script = vec![progress(at(SourcePhase::Prepare, 20))];
    script.extend(pause());
    script.push(progress(at(SourcePhase::Precopy, 1530)));
    script.extend(pause());
    script.push(progress(lame));
    script.extend(pause());
    script.push(progress(Migration { paths: vec![], ..at(SourcePhase::Grant, 7290) }));
    script.extend(pause());
    script.push(last(over(Outcome::Moved)));
    let agent = Agent::start(vec![script]);
    // Ends before the agent, so that the agent does not wait for a test that has failed.
    let mut go = go.into_iter();
    let mut go_on = || go.next().unwrap().send(()).unwrap();
    let mut terminal = Terminal::run(agent.command(&["migrate", "web1", "--to", "hostb"]));
    terminal.shows("web1  hosta → hostb  preparing the target, 20 ms");
    go_on();
    terminal.shows("copying while it runs, 1.5 s");
    terminal.shows("] round 1, 2.8 GiB of 4 GiB left");
    terminal.shows("1.88 Gb/s, dirties 21 MB/s");
    terminal.shows("converges in about 15 s");
    terminal.shows("pages 39 % on the wire (20 % zero, 59 % compressed 3.4:1, 22 % as it is)");
    terminal.shows("] eth0 → 10.0.0.2  940 Mb/s");
    terminal.shows("] eth1 → 10.0.1.2  943 Mb/s");
    go_on();
    terminal.shows("] eth1 → 10.0.1.2  DOWN");
    go_on();
    terminal.shows("handing over");
    go_on();
    terminal.shows("web1 runs on hostb: moved in 7.3 s, stood still for 144 ms; 5 GiB copied in 4 rounds");
    terminal.exits(0);
}

#[test]
fn ctrl_c_leaves_the_migration_alone() {
    let agent = Agent::start(vec![vec![progress(at(SourcePhase::Precopy, 1530)), Act::Hold]]);
    let mut command = agent.command(&["migrate", "web1", "--to", "hostb"]);
    // Ctrl-C works only on the program's own terminal.
    let mut own = Command::new("setsid");
    own.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
    own.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command = own;
    let mut terminal = Terminal::run(command);
    terminal.shows("copying while it runs");
    terminal.types("\x03");
    terminal.shows("The migration of web1 goes on.");
    terminal.shows("skein migration cancel 4f1ca3b20d5e6677");
    terminal.exits(130);
    assert_eq!(agent.asked().len(), 1);
}

#[test]
fn a_doubt_is_resolved_by_the_other_hosts_name() {
    let agent =
        Agent::start(vec![vec![last(in_doubt())], vec![last(in_doubt())], vec![last(over(Outcome::CalledOff))]]);
    for (typed, code, says) in
        [("yes\n", 1, "that is not hostb: nothing was done"), ("hostb\n", 0, "web1 stays on hosta")]
    {
        let args = ["migration", "resolve", "web1", "--other-host-is-off"];
        let mut terminal = Terminal::run(agent.command(&args));
        terminal.shows("web1 will run on both hosts and destroy its own disks");
        terminal.shows("Then type its name: ");
        terminal.types(typed);
        terminal.shows(says);
        terminal.exits(code);
    }
    let asked = agent.asked();
    assert_eq!(asked.len(), 3);
    assert!(matches!(asked[2], Request::MigrationResolve { other_host_is_off: true, .. }));
}

#[test]
fn a_search_shows_how_far_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = "resources: [{name: memory, unit: bytes}]\nhosts: [{name: a, capacity: {memory: 9 GiB}}, \
                   {name: b, capacity: {memory: 9 GiB}}]\n\
                   guests: [{name: v, host: a, size: {memory: 5 GiB}}, {name: w, host: a, size: {memory: 5 GiB}}]\n";
    std::fs::write(dir.path().join("cluster.yaml"), cluster).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
    command.args(["placement", "solve", "--cluster", "cluster.yaml", "--seconds", "1000"]).current_dir(dir.path());
    let mut terminal = Terminal::run(command);
    terminal.shows("  valid  cost ");
    terminal.shows("  moves 1  (Ctrl-C ends it with this)");
    let pid = nix::unistd::Pid::from_raw(terminal.child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    terminal.shows("then: nothing is broken");
    terminal.exits(0);
}
