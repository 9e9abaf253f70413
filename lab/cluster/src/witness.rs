//! Records which QEMU ran a guest when, by QEMU's own word: the witness has a monitor of its own in every QEMU.
//!
//! A guest's QEMU is started with a second QMP socket, at the same path wherever it runs. Whichever QEMU binds it last
//! is the latest. QEMU says `RESUME` before a vCPU runs and `STOP` after the last one stopped, both with the host's
//! time, which in the lab is one clock. So the times in which a guest ran are known exactly, however late they are
//! read, and two that overlap mean that the guest ran twice. A QEMU that is killed closes its socket when its last
//! thread is gone.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use parking_lot::Mutex;
use skein_hypervisor::{MigrationStatus, Monitor, MonitorEvent, Process, ProcessId, QmpError};
use skein_lab_guest::{Beats, WorkloadClient};

/// How often it is checked whether there is a new QEMU: a small part of the time that a QEMU takes to start.
const QEMU_SCAN_PERIOD: Duration = Duration::from_millis(5);
/// A new QEMU answers within this time, or never.
const CONNECT_TIME: Duration = Duration::from_secs(20);

/// A time in which a guest ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The process number of the QEMU.
    pub pid: u32,
    /// The name of the host.
    pub host: String,
    /// When it began, in the time since the epoch: no vCPU ran earlier.
    pub from: Duration,
    /// When it ended, in the time since the epoch: no vCPU ran later. `None`: the guest still runs.
    pub until: Option<Duration>,
}

/// Two runs of a guest that overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Double {
    /// The guest.
    pub vm: String,
    /// The run that began first.
    pub first: Run,
    /// The run that overlaps it.
    pub second: Run,
}

/// A QEMU that the witness knows.
pub struct Seen {
    pub(crate) process: ProcessId,
    pub(crate) host: String,
    pub(crate) monitor: Monitor,
    pub(crate) control: Mutex<Option<WorkloadClient>>,
    pub(crate) beats: Option<Beats>,
    life: Arc<Mutex<Life>>,
}

#[derive(Default)]
struct Life {
    /// The begin and end of each run.
    runs: Vec<(Duration, Option<Duration>)>,
    over: bool,
}

impl Life {
    fn resume(&mut self, at: Duration) {
        if self.runs.last().is_none_or(|(_, until)| until.is_some()) {
            self.runs.push((at, None));
        }
    }

    fn stop(&mut self, at: Duration) {
        if let Some((_, until @ None)) = self.runs.last_mut() {
            *until = Some(at);
        }
    }
}

impl Seen {
    /// Returns the QEMU's process.
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Returns the name of the QEMU's host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the witness's own monitor of the QEMU.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Returns the channel to the workload in the guest. It is `None` if the guest has no such port.
    pub fn workload(&self) -> &Mutex<Option<WorkloadClient>> {
        &self.control
    }

    /// Returns the workload's heartbeat from this QEMU.
    pub fn beats(&self) -> Option<&Beats> {
        self.beats.as_ref()
    }

    /// Returns when the QEMU first ran the guest, in the time since the epoch.
    pub fn first_ran(&self) -> Option<Duration> {
        self.life.lock().runs.first().map(|(from, _)| *from)
    }

    /// Returns whether the QEMU runs the guest, by what it said last. A thread reads what QEMUs say: a guest that was
    /// stopped just now may still seem to run. A QEMU that has ended runs nothing.
    pub fn runs(&self) -> bool {
        self.life.lock().runs.last().is_some_and(|(_, until)| until.is_none()) && self.lives()
    }

    /// Returns whether the QEMU's process runs, as the kernel says.
    fn lives(&self) -> bool {
        Process::attach(self.process).is_ok_and(|process| process.is_some())
    }

    /// Returns whether the QEMU has ended.
    pub fn is_over(&self) -> bool {
        self.life.lock().over
    }

    /// Kills the QEMU.
    pub fn kill(&self) {
        if let Ok(Some(process)) = Process::attach(self.process) {
            process.kill(Duration::from_secs(10)).expect("QEMU can be killed");
        }
    }
}

/// The inode and time of a socket's file, by which the socket is known to be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    changed: Duration,
}

impl Stamp {
    /// Returns the stamp of the file at `path`, if there is one.
    fn of(path: &Path) -> Option<Stamp> {
        let found = fs::symlink_metadata(path).ok()?;
        let changed = Duration::new(found.ctime() as u64, found.ctime_nsec() as u32);
        Some(Stamp { inode: found.ino(), changed })
    }
}

/// Where a guest's sockets are.
#[derive(Clone, Debug)]
struct Watched {
    dir: PathBuf,
    /// That of the witness's socket.
    stamp: Option<Stamp>,
    seen: Vec<Arc<Seen>>,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "QEMU {} on {}", self.process.pid, self.host)
    }
}

#[derive(Default)]
struct Shared {
    vms: Mutex<BTreeMap<String, Watched>>,
    /// The hosts' names, by the inode of their network namespace.
    hosts: BTreeMap<u64, String>,
    stopping: AtomicBool,
}

/// Watches guests until it is dropped.
pub struct Witness {
    shared: Arc<Shared>,
    looking: Option<JoinHandle<()>>,
}

/// Returns the path of the witness's socket of a guest whose sockets are in `dir`.
fn socket(dir: &Path, vm: &str, what: &str) -> PathBuf {
    dir.join(format!("{vm}.{what}"))
}

/// Returns the arguments of a QEMU whose guest the witness is to see. `dir` is as in [`Witness::watch`].
pub fn arguments(dir: &Path, vm: &str) -> [String; 2] {
    ["-qmp".into(), format!("unix:{},server=on,wait=off", socket(dir, vm, "witness").display())]
}

/// Returns the same as lines of a file for `-readconfig`, for a QEMU whose `-qmp` would be taken for that of its agent.
pub fn configuration(dir: &Path, vm: &str) -> String {
    let path = socket(dir, vm, "witness");
    let chardev = format!("backend = \"socket\"\npath = \"{}\"\nserver = \"on\"\nwait = \"off\"\n", path.display());
    format!("[chardev \"witness\"]\n{chardev}\n[mon \"witness\"]\nmode = \"control\"\nchardev = \"witness\"\n")
}

/// Returns the file to which a guest's console is written, in whatever QEMU the guest is.
pub fn console(dir: &Path, vm: &str) -> PathBuf {
    socket(dir, vm, "console")
}

/// Returns the sockets of the lab's workload, on which QEMU is to listen.
pub fn workload_sockets(dir: &Path, vm: &str) -> [PathBuf; 2] {
    [socket(dir, vm, "control"), socket(dir, vm, "beat")]
}

impl Witness {
    /// Makes a witness that sees QEMUs in these network namespaces: the file of each, and the name of the host.
    pub fn new(hosts: impl IntoIterator<Item = (PathBuf, String)>) -> Witness {
        let inode = |path: &Path| fs::metadata(path).expect("the host's network namespace is there").ino();
        let hosts = hosts.into_iter().map(|(path, host)| (inode(&path), host)).collect();
        let shared = Arc::new(Shared { hosts, ..Shared::default() });
        let own = shared.clone();
        let look = move || {
            while !own.stopping.load(Ordering::SeqCst) {
                own.look();
                thread::sleep(QEMU_SCAN_PERIOD);
            }
        };
        let looking = thread::Builder::new().name("witness".into()).spawn(look).expect("a thread can be started");
        Witness { shared, looking: Some(looking) }
    }

    /// Watches the QEMUs of a guest from now on. They have to be started with [`arguments`].
    pub fn watch(&self, dir: &Path, vm: &str) {
        let watched = || Watched { dir: dir.to_owned(), stamp: None, seen: Vec::new() };
        self.shared.vms.lock().entry(vm.to_owned()).or_insert_with(watched);
    }

    /// Returns the guests that ran twice at a time, each with the first two runs that overlap.
    pub fn doubles(&self) -> Vec<Double> {
        let vms: Vec<String> = self.shared.vms.lock().keys().cloned().collect();
        vms.iter().filter_map(|vm| double(vm, &self.runs(vm))).collect()
    }

    /// Returns all times in which a guest ran, the earliest first.
    pub fn runs(&self, vm: &str) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for seen in self.seen(vm) {
            let (pid, host) = (seen.process.pid, &seen.host);
            let life = seen.life.lock();
            runs.extend(life.runs.iter().map(|(from, until)| Run {
                pid,
                host: host.clone(),
                from: *from,
                until: *until,
            }));
        }
        runs.sort_by_key(|run| run.from);
        runs
    }

    /// Returns the QEMUs of a guest, the latest last, including those that ended.
    pub fn seen(&self, vm: &str) -> Vec<Arc<Seen>> {
        self.shared.vms.lock().get(vm).map(|watched| watched.seen.clone()).unwrap_or_default()
    }

    /// Returns whether a process is watched as the guest's QEMU.
    pub fn knows(&self, vm: &str, pid: u32) -> bool {
        self.seen(vm).iter().any(|seen| seen.process.pid == pid)
    }

    /// Returns what every living QEMU of a guest says of its migration. `Err`: the QEMU does not answer.
    pub fn migrations(&self, vm: &str) -> Vec<(String, Result<MigrationStatus, QmpError>)> {
        let living = self.seen(vm).into_iter().filter(|seen| !seen.is_over());
        let ask = |seen: Arc<Seen>| (format!("{seen:?}"), seen.monitor.migration().map(|info| info.status));
        living.map(ask).collect()
    }

    /// Asks QEMUs whether they run, and returns the answers that contradict their events. If there are any, the witness
    /// cannot be relied on.
    pub fn contradictions(&self) -> Vec<String> {
        let vms: Vec<String> = self.shared.vms.lock().keys().cloned().collect();
        let mut found = Vec::new();
        for seen in vms.iter().flat_map(|vm| self.seen(vm)).filter(|seen| !seen.is_over()) {
            let before = seen.runs();
            let Ok(runs) = seen.monitor.is_running() else { continue };
            // If the state changed just now, its event came first.
            if before == seen.runs() && runs != before {
                found.push(format!("{seen:?} told that it runs: {before}; asked, it says: {runs}"));
            }
        }
        found
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let _ = self.looking.take().map(JoinHandle::join);
        // Closes the sockets and monitors that it holds.
        self.shared.vms.lock().clear();
    }
}

/// Returns the first two runs that overlap.
fn double(vm: &str, runs: &[Run]) -> Option<Double> {
    let mut last: Option<&Run> = None;
    for run in runs {
        if let Some(last) = last
            && last.until.is_none_or(|until| until > run.from)
        {
            return Some(Double { vm: vm.to_owned(), first: last.clone(), second: run.clone() });
        }
        last = Some(run);
    }
    None
}

impl Shared {
    fn look(self: &Arc<Self>) {
        for (vm, watched) in self.vms.lock().iter_mut() {
            let path = socket(&watched.dir, vm, "witness");
            let Some(stamp) = Stamp::of(&path) else { continue };
            if watched.stamp.replace(stamp) == Some(stamp) {
                continue;
            }
            let (own, vm, dir) = (self.clone(), vm.clone(), watched.dir.clone());
            // In a thread of its own, so that a QEMU that is slow to start delays nothing else.
            thread::Builder::new()
                .name("witness".into())
                .spawn(move || own.join(&vm, &dir, stamp))
                .expect("a thread can be started");
        }
    }

    /// Connects to a QEMU whose socket has this stamp.
    fn join(&self, vm: &str, dir: &Path, stamp: Stamp) {
        // A QEMU that ends before it answers never ran anything.
        let path = socket(dir, vm, "witness");
        let Ok(monitor) = Monitor::connect(&path, CONNECT_TIME) else { return };
        // The stamp may be of a QEMU that just ended, and the monitor of the one after it: that one has a stamp of its
        // own, and did not run before.
        if Stamp::of(&path) != Some(stamp) {
            return;
        }
        let Ok(Some(pid)) = monitor.peer_pid() else { return };
        let Ok(Some(process)) = ProcessId::of(pid) else { return };
        let life = Arc::new(Mutex::new(Life::default()));
        let of_sink = life.clone();
        monitor.forward(move |event| {
            let mut life = of_sink.lock();
            match event {
                MonitorEvent::Event(event) if event.name == "RESUME" => life.resume(event.time),
                MonitorEvent::Event(event) if event.name == "STOP" => life.stop(event.time),
                MonitorEvent::Event(_) => {}
                MonitorEvent::Closed => {
                    life.stop(now());
                    life.over = true;
                }
            }
            true
        });
        // The QEMU may have said `RESUME` before the witness listened. If it runs, it may have run since its socket was
        // there.
        if let Ok(true) = monitor.is_running() {
            life.lock().resume(stamp.changed);
        }
        let connected = |path: &Path| {
            let stream = UnixStream::connect(path).ok()?;
            let peer = getsockopt(&stream, PeerCredentials).ok()?;
            (peer.pid() as u32 == pid).then_some(stream)
        };
        let [control, beat] = workload_sockets(dir, vm);
        let control = Mutex::new(connected(&control).map(WorkloadClient::new));
        let beats = connected(&beat).and_then(|stream| Beats::collect(stream).ok());
        let inode = fs::metadata(format!("/proc/{pid}/ns/net")).map_or(0, |netns| netns.ino());
        let host = self.hosts.get(&inode).cloned().unwrap_or_else(|| "?".into());
        let seen = Arc::new(Seen { process, host, monitor, control, beats, life });
        if let Some(watched) = self.vms.lock().get_mut(vm)
            && !watched.seen.iter().any(|other| other.process == process)
        {
            watched.seen.push(seen);
        }
    }
}

/// Returns the time since the epoch.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn run(pid: u32, from: u64, until: Option<u64>) -> Run {
        let ms = Duration::from_millis;
        Run { pid, host: "a".into(), from: ms(from), until: until.map(ms) }
    }

    #[test]
    fn overlaps_are_found() {
        let one_after_the_other = [run(1, 0, Some(10)), run(2, 10, Some(20)), run(1, 25, None)];
        assert_eq!(double("v", &one_after_the_other), None);
        for (first, second) in [
            (run(1, 0, Some(11)), run(2, 10, Some(20))),
            (run(1, 0, None), run(2, 10, Some(20))),
            (run(1, 0, Some(30)), run(2, 10, None)),
        ] {
            let found = double("v", &[first.clone(), second.clone()]).unwrap();
            assert_eq!((found.first, found.second), (first, second));
        }
    }

    /// Answers as a QEMU whose guest runs, to one monitor.
    fn plays_qemu(listener: &UnixListener) {
        let (mut stream, _) = listener.accept().unwrap();
        let greeting = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 10}}, "capabilities": []}}"#;
        writeln!(stream, "{greeting}").unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            let asked: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
            let answer = serde_json::json!({
                "return": { "status": "running", "running": true, "singlestep": false }, "id": asked["id"],
            });
            writeln!(stream, "{answer}").unwrap();
        }
    }

    #[test]
    fn a_qemu_did_not_run_before_it_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = socket(dir.path(), "v", "witness");
        let stamps: Vec<Stamp> = (0..2)
            .map(|_| {
                let _ = fs::remove_file(&path);
                let listener = UnixListener::bind(&path).unwrap();
                let stamp = Stamp::of(&path).unwrap();
                thread::spawn(move || (0..2).for_each(|_| plays_qemu(&listener)));
                thread::sleep(Duration::from_millis(20));
                stamp
            })
            .collect();
        let witness = Witness::new([]);
        // Nothing looks by itself: the guest is not watched yet.
        let own = &witness.shared;
        own.vms.lock().insert("v".into(), Watched { dir: dir.path().into(), stamp: Some(stamps[1]), seen: Vec::new() });
        own.join("v", dir.path(), stamps[0]);
        assert_eq!(witness.runs("v"), []);
        own.join("v", dir.path(), stamps[1]);
        assert_eq!(witness.runs("v").iter().map(|run| run.from).collect::<Vec<_>>(), [stamps[1].changed]);
    }

    #[test]
    fn a_life_has_runs() {
        let ms = Duration::from_millis;
        let mut life = Life::default();
        life.stop(ms(1));
        life.resume(ms(2));
        life.resume(ms(3));
        life.stop(ms(4));
        life.stop(ms(5));
        life.resume(ms(6));
        assert_eq!(life.runs, [(ms(2), Some(ms(4))), (ms(6), None)]);
    }
}
