//! An agent that plays back what it was given, and the program that talks to it.

// Each test program uses only a part of this module.
#![allow(dead_code)]

use std::io::{BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use skein_api::{
    Convergence, CopyProgress, Drive, FailureReason, LogEntry, LoggedEvent, Migration, MigrationEvent, MigrationId,
    MigrationPhase, Outcome, PATHS_CARRIED, PageCounts, PageFigures, PathView as MigrationPath, Reply, Report, Request,
    RequestLine, Role, SourcePhase, TargetPhase, VmState, VmView, read_line, write_line,
};
use skein_network::{RdmaCounters, SentAndReceived};

/// After this a wait is given up.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// What the agent does in answer to a request, one act after the other.
pub enum Act {
    Say(Reply),
    Raw(&'static [u8]),
    Wait(Duration),
    /// Waits until the test says so.
    Go(Receiver<()>),
    /// Stops listening for this time.
    Restart(Duration),
    /// Waits until the other end closes the connection.
    Hold,
}

pub fn say(reply: Reply) -> Vec<Act> {
    vec![Act::Say(reply)]
}

/// An agent that answers one request after the other, each with a script of its own.
pub struct Agent {
    dir: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<RequestLine>>>,
}

impl Agent {
    pub fn start(scripts: Vec<Vec<Act>>) -> Agent {
        let dir = tempfile::tempdir().unwrap();
        let (path, stop) = (dir.path().join("agent.sock"), Arc::new(AtomicBool::new(false)));
        let listener = listen(&path);
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || serve(listener, &path, scripts, &stopped));
        Agent { dir, stop, thread: Some(thread) }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir().join("agent.sock")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
        command.args(args).env("SKEIN_SOCKET", self.socket()).current_dir(self.dir()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::new(args, self.command(args).output().unwrap())
    }

    /// Returns what the agent was asked. All scripts must have been asked for.
    #[track_caller]
    pub fn asked(self) -> Vec<Request> {
        self.asked_lines().into_iter().map(|line| line.request).collect()
    }

    /// Returns the same with the whole line of each request.
    ///
    /// # Panics
    ///
    /// If a script was not asked for.
    #[track_caller]
    pub fn asked_lines(mut self) -> Vec<RequestLine> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(path: &Path) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

fn serve(listener: UnixListener, path: &Path, scripts: Vec<Vec<Act>>, stop: &AtomicBool) -> Vec<RequestLine> {
    let mut listener = Some(listener);
    let mut asked = Vec::new();
    for script in scripts {
        let end = Instant::now() + DEADLINE;
        let (request, mut stream) = loop {
            assert!(Instant::now() < end, "request number {} never came", asked.len() + 1);
            // A request that came before the program ended is in the queue by then.
            let last = stop.load(Ordering::Relaxed);
            match listener.as_ref().unwrap().accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).unwrap();
                    stream.set_read_timeout(Some(DEADLINE)).unwrap();
                    // A client that only looks which process listens asks nothing.
                    if let Ok(request) = read_line(&mut BufReader::new(stream.try_clone().unwrap())) {
                        break (request, stream);
                    }
                }
                Err(_) if last => return asked,
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        asked.push(request);
        for act in script {
            play(act, &mut stream, &mut listener, path);
        }
    }
    asked
}

/// Does one act. It does not matter if the client has gone.
fn play(act: Act, stream: &mut UnixStream, listener: &mut Option<UnixListener>, path: &Path) {
    match act {
        Act::Say(reply) => drop(write_line(stream, &reply)),
        Act::Raw(bytes) => drop(stream.write_all(bytes)),
        Act::Wait(time) => std::thread::sleep(time),
        Act::Go(go) => {
            // A test that failed says nothing more.
            let _ = go.recv_timeout(DEADLINE);
        }
        Act::Restart(time) => {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            drop(listener.take());
            std::fs::remove_file(path).unwrap();
            std::thread::sleep(time);
            *listener = Some(listen(path));
        }
        Act::Hold => drop(stream.read(&mut [0; 64])),
    }
}

/// A program that has ended.
pub struct Ran {
    args: String,
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn new(args: &[&str], output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        let args = args.join(" ");
        assert!(!err.contains("panicked"), "skein {args}: {err}");
        Ran { args, code: output.status.code().unwrap_or(-1), out, err }
    }

    #[track_caller]
    pub fn exits(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "skein {}\nout: {}\nerr: {}", self.args, self.out, self.err);
        self
    }

    #[track_caller]
    pub fn says(self, part: &str) -> Ran {
        assert!(self.out.contains(part), "skein {}: no {part:?} in\nout: {}\nerr: {}", self.args, self.out, self.err);
        self
    }

    #[track_caller]
    pub fn complains(self, part: &str) -> Ran {
        assert!(self.err.contains(part), "skein {}: no {part:?} in\nerr: {}\nout: {}", self.args, self.err, self.out);
        self
    }

    /// Compares standard output with `tests/snapshots/NAME.txt`. SKEIN_UPDATE_SNAPSHOTS=1 writes that file, to be
    /// reviewed.
    ///
    /// # Panics
    ///
    /// If they differ.
    #[track_caller]
    pub fn is(self, name: &str) -> Ran {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name).with_extension("txt");
        if std::env::var_os("SKEIN_UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, &self.out).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(self.out, expected, "skein {}, beside {}", self.args, path.display());
        self
    }
}

pub const ID: MigrationId = MigrationId(0x4f1c_a3b2_0d5e_6677);

pub fn vm(name: &str, state: VmState) -> VmView {
    let up = state != VmState::Stopped;
    VmView {
        name: name.into(),
        state,
        memory_bytes: 4 << 30,
        cpus: 2,
        pid: up.then_some(4711),
        qemu: up.then(|| "10.0.2".into()),
        machine: Some("pc-q35-10.0".into()),
        qmp: up.then(|| format!("/run/skein/vms/{name}/qmp").into()),
        console: up.then(|| format!("/run/skein/vms/{name}/console").into()),
        adopted: false,
        migration: None,
        drives: vec![Drive {
            name: "disk0".into(),
            image: Some("/srv/over.qcow2".into()),
            backing: vec!["/srv/base.qcow2".into()],
        }],
        definition: Some(format!("name = \"{name}\"\nmemory = \"4 GiB\"\ncpus = 2\n")),
        note: String::new(),
        reserved: None,
    }
}

pub fn copy(round: u64, remaining_mib: u64) -> CopyProgress {
    counted(round, remaining_mib, false)
}

fn counted(round: u64, remaining_mib: u64, compared: bool) -> CopyProgress {
    CopyProgress {
        total_bytes: 4 << 30,
        remaining_bytes: remaining_mib << 20,
        remaining_wire_bytes: (round == 1).then_some(remaining_mib << 18),
        transferred_bytes: (4 << 30) - (remaining_mib << 20),
        round,
        dirty_bytes_per_s: 21_000_000,
        bits_per_s: 1_883_000_000,
        converges: (remaining_mib > 0).then_some(Convergence::In { seconds: remaining_mib as f64 / 200.0 }),
        throttle_percent: 0,
        pages: Some(PageFigures {
            direct: Some(true),
            again_bytes: 60 << 20,
            counts: PageCounts {
                pages: 1 << 20,
                zero_pages: 200 << 10,
                packed_pages: 600 << 10,
                packed_bytes: 700 << 20,
                stored_pages: 224 << 10,
                other_bytes: 3 << 20,
                packing_us: 4_200_000,
                zstd_level: Some(1),
                compared_us: compared.then_some(11_200),
                repaired_pages: if compared { 512 } else { 0 },
                ..PageCounts::default()
            },
            ..PageFigures::default()
        }),
    }
}

/// Returns a migration of web1 from hosta, which answers, to hostb, after `elapsed_ms`.
pub fn migration(stage: Option<MigrationPhase>, elapsed_ms: u64) -> Migration {
    let path = |nic: &str, remote: &str, bits_per_s| MigrationPath {
        nic: nic.into(),
        remote: remote.into(),
        usable: true,
        sent_bytes: 1_200_000_000,
        rdma_connections: 0,
        rdma: None,
        bits_per_s,
        note: String::new(),
        connections: "2: a NIC has one queue".into(),
    };
    let copies = matches!(stage, Some(MigrationPhase::Source(phase)) if phase >= SourcePhase::Precopy);
    Migration {
        id: ID,
        vm: "web1".into(),
        role: Role::Source,
        source: "hosta".into(),
        target: "hostb".into(),
        stage,
        outcome: None,
        why: None,
        detail: String::new(),
        in_doubt: false,
        begun: "2026-11-22T03:41:07.120Z".into(),
        elapsed_ms,
        downtime_ms: None,
        copy: copies.then(|| copy(1, 2900)),
        paths: if copies {
            vec![path("eth0", "10.0.0.2", 940_000_000), path("eth1", "10.0.1.2", 943_000_000)]
        } else {
            vec![]
        },
        rate_limit: None,
        attempt: None,
        hold: None,
        events: vec![],
    }
}

pub fn at(phase: SourcePhase, elapsed_ms: u64) -> Migration {
    migration(Some(MigrationPhase::Source(phase)), elapsed_ms)
}

pub fn progress(migration: Migration) -> Act {
    Act::Say(Reply::Progress(Box::new(migration)))
}

pub fn last(migration: Migration) -> Act {
    Act::Say(Reply::Migration(Box::new(migration)))
}

pub fn over(outcome: Outcome) -> Migration {
    let moved = outcome == Outcome::Moved;
    Migration {
        outcome: Some(outcome),
        why: (!moved).then_some(FailureReason::TargetRefused),
        detail: if moved { String::new() } else { "no room for 4 GiB".into() },
        downtime_ms: moved.then_some(144),
        copy: Some(CopyProgress { remaining_bytes: 0, transferred_bytes: 5 << 30, round: 4, ..counted(4, 0, moved) }),
        ..migration(None, 7320)
    }
}

/// Returns a migration that had to go through QEMU, and of which nothing could be compressed.
pub fn indirect() -> Migration {
    let copied = copy(2, 100);
    let why = "the RAM of block 'pc.ram' is private to QEMU: start it with memory-backend-memfd,share=on";
    let counts = PageCounts { pages: 1 << 20, stored_pages: 1 << 20, packing_us: 90_000, ..PageCounts::default() };
    let pages = PageFigures {
        direct: Some(false),
        why_not_direct: format!("{why}\u{1b}[2J"),
        not_compared: "RAM block 'pc.ram' is not compared: its pages go through QEMU".into(),
        counts,
        ..copied.pages.clone().unwrap()
    };
    Migration { copy: Some(CopyProgress { pages: Some(pages), ..copied }), ..at(SourcePhase::Precopy, 5000) }
}

/// Returns a migration with a path over RDMA, by a device that counts priorities, one over soft-RoCE, which counts
/// packets, and one whose RDMA failed.
pub fn over_rdma() -> Migration {
    let both = |sent, received| SentAndReceived { sent, received };
    let mut priorities = vec![both(0, 0); 8];
    (priorities[3], priorities[5]) = (both(1_310_000_000, 0), both(12 << 10, 3 << 20));
    let mlx5 = RdmaCounters {
        device: "mlx5_0\u{1b}[2J".into(),
        bytes: Some(both(1_300_000_000, 3 << 20)),
        packets: Some(both(317_000, 4_200)),
        priorities,
    };
    let soft = RdmaCounters { device: "rxe0".into(), packets: Some(both(293_000, 0)), ..RdmaCounters::default() };
    let mut migration = at(SourcePhase::Precopy, 1530);
    let failed = MigrationPath {
        nic: "eth2".into(),
        remote: "10.0.2.2".into(),
        connections: "2: a NIC has one queue; no RDMA: cannot receive: no such device\u{1b}[31m".into(),
        ..migration.paths[0].clone()
    };
    for (path, rdma) in migration.paths.iter_mut().zip([mlx5, soft]) {
        (path.rdma_connections, path.rdma) = (1, Some(rdma));
    }
    migration.paths.push(failed);
    let counts = &mut migration.copy.as_mut().unwrap().pages.as_mut().unwrap().counts;
    (counts.stored_pages, counts.written_pages) = (160 << 10, 64 << 10);
    migration
}

pub fn in_doubt() -> Migration {
    Migration { in_doubt: true, ..at(SourcePhase::Grant, 7320) }
}

/// Returns log entries of all kinds.
pub fn events() -> Vec<LoggedEvent> {
    let handover = |event| LogEntry::Handover { event };
    let entries = [
        LogEntry::Begun { vm: "web1".into(), role: Role::Source, source: "hosta".into(), target: "hostb".into() },
        handover(MigrationEvent::Queued),
        handover(MigrationEvent::Phase { stage: MigrationPhase::Source(SourcePhase::Prepare) }),
        handover(MigrationEvent::Reported { report: Report::Ready, detail: String::new() }),
        LogEntry::Note { text: "4 multifd channels over 2 paths".into() },
        LogEntry::Note { text: format!("{PATHS_CARRIED}eth0 > 10.0.0.2 1.6 GiB, 1.5 GiB of that over RDMA") },
        LogEntry::Copied { copy: Box::new(copy(1, 2900)) },
        handover(MigrationEvent::Recovered),
        handover(MigrationEvent::WriteFailed),
        handover(MigrationEvent::InDoubt),
        handover(MigrationEvent::Reported { report: Report::Refused, detail: "QEMU ended: \u{1b}[31msignal 9".into() }),
        handover(MigrationEvent::CalledOff { why: FailureReason::Deadline, detail: "pre-copy took 10 min".into() }),
        handover(MigrationEvent::Phase { stage: MigrationPhase::Target(TargetPhase::Running) }),
        LogEntry::Downtime { ms: 144 },
        handover(MigrationEvent::Over { outcome: Outcome::Moved }),
    ];
    let time = |n: usize| format!("2026-11-22T03:41:{:02}.120Z", 7 + n);
    entries.into_iter().enumerate().map(|(n, event)| LoggedEvent { time: time(n), event }).collect()
}
