//! QEMU processes that outlive whoever started them: found again by pid and start time, or by their QMP socket.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use serde::{Deserialize, Serialize};

use crate::monitor::Monitor;
use crate::qemu::{Config, Error, STDERR_BYTES_MAX, first_connection, words};
use crate::qmp::QmpError;

/// A process for good: pids are used again, a pid with its start time is not, as long as the host runs. Whoever keeps it
/// over a boot of the host keeps `/proc/sys/kernel/random/boot_id` with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it started: proc_pid_stat(5), field 22, in clock ticks since the host's boot.
    pub started: u64,
}

impl ProcessId {
    /// What runs under this pid now; none if nothing does.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => match start_time(&stat) {
                Some(started) => Ok(Some(Self { pid, started })),
                None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat says {stat:?}"))),
            },
            // ESRCH: it ended between open and read.
            Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn start_time(stat: &str) -> Option<u64> {
    // The name, field 2, is in parentheses and may hold anything; field 3 follows it.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// How a process ended, as far as can be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exit {
    /// By itself, with this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// It is gone; only its parent could know more.
    Unknown,
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Status(status) => write!(f, "exit status: {status}"),
            Self::Signal(signal) => write!(f, "signal: {signal}"),
            Self::Unknown => f.write_str("a status that is not known"),
        }
    }
}

/// A running process, held by its pidfd: what is done to it never hits another. Dropping it does nothing to the process.
#[derive(Debug)]
pub struct Process {
    id: ProcessId,
    pidfd: OwnedFd,
    killed: AtomicBool,
}

impl Process {
    /// Takes hold of a process; none if it has ended.
    pub fn attach(id: ProcessId) -> io::Result<Option<Self>> {
        let Some(pidfd) = open(id.pid)? else { return Ok(None) };
        let process = Self { id, pidfd, killed: AtomicBool::new(false) };
        // Asked while the descriptor holds the process: if these agree, and it has not ended since, it is the one.
        Ok((ProcessId::of(id.pid)? == Some(id) && process.is_alive()?).then_some(process))
    }

    /// The QEMU at the other end of a QMP connection, which someone else may have started.
    /// None: it ended, or is not visible from this pid namespace. See [`Monitor::peer_pid`].
    pub fn of_monitor(monitor: &Monitor) -> io::Result<Option<Self>> {
        let pid = monitor.peer_pid().map_err(io::Error::other)?;
        match pid.map(ProcessId::of).transpose()?.flatten() {
            Some(id) => Self::attach(id),
            None => Ok(None),
        }
    }

    /// Which it is.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Whether it runs; one that ended and was not waited for does not.
    pub fn is_alive(&self) -> io::Result<bool> {
        Ok(!self.ended_within(Duration::ZERO)?)
    }

    /// Waits up to `deadline` for its end; none if it runs on. A child is reaped.
    pub fn wait_exit(&self, deadline: Duration) -> io::Result<Option<Exit>> {
        Ok(if self.ended_within(deadline)? { Some(self.reap()?) } else { None })
    }

    /// Kills it (SIGKILL) and waits up to `deadline` until it is gone; none if it is not: the kernel holds it, for
    /// instance in a read from storage that does not answer.
    pub fn kill(&self, deadline: Duration) -> io::Result<Option<Exit>> {
        self.killed.store(true, Ordering::SeqCst);
        let signal = libc::SIGKILL;
        // SAFETY: pidfd_send_signal(2) with an open pidfd and no siginfo reads no memory of ours.
        let result = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.pidfd.as_raw_fd(), signal, std::ptr::null::<()>(), 0)
        };
        match Errno::result(result) {
            Ok(_) | Err(Errno::ESRCH) => self.wait_exit(deadline),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether it was killed, or told to be, by [`Process::kill`].
    pub fn was_killed(&self) -> bool {
        self.killed.load(Ordering::SeqCst)
    }

    /// A pidfd is readable when its process has ended.
    fn ended_within(&self, wait: Duration) -> io::Result<bool> {
        let end = Instant::now() + wait;
        loop {
            // Rounded up, or the last wait would be a busy one.
            let left = end.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
            let mut fds = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Ok(0) if Instant::now() >= end => return Ok(false),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn reap(&self) -> io::Result<Exit> {
        match waitid(Id::PIDFd(self.pidfd.as_fd()), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG) {
            Ok(WaitStatus::Exited(_, status)) => Ok(Exit::Status(status)),
            Ok(WaitStatus::Signaled(_, signal, _)) => Ok(Exit::Signal(signal as i32)),
            // Somebody else's child, or reaped before.
            Ok(_) | Err(Errno::ECHILD) => Ok(Exit::Unknown),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// A pidfd of whatever runs under this pid now, or has ended and was not waited for.
fn open(pid: u32) -> io::Result<Option<OwnedFd>> {
    let Ok(pid @ 1..) = libc::pid_t::try_from(pid) else { return Ok(None) };
    // SAFETY: pidfd_open(2) takes two integers and gives a new descriptor or an error.
    match Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }) {
        // SAFETY: the kernel has just given it to us.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd as i32) })),
        Err(Errno::ESRCH) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Where a process writes its output: appended to a file, of which its own words are those after `begin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    path: PathBuf,
    begin: u64,
}

impl Log {
    fn open(path: &Path) -> io::Result<(Self, File)> {
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let begin = file.seek(SeekFrom::End(0))?;
        Ok((Self { path: path.into(), begin }, file))
    }

    /// What this process wrote last, 16 KiB at most; none: nothing, or its log is gone.
    pub fn last_words(&self) -> Option<String> {
        let bytes = tail(&self.path, self.begin).ok()?;
        let said = String::from_utf8_lossy(&bytes).trim().to_owned();
        (!said.is_empty()).then_some(said)
    }

    /// The end of what this process wrote: 16 KiB at most.
    pub fn tail(&self) -> String {
        tail(&self.path, self.begin)
            .map_or_else(|error| format!("its log cannot be read: {error}"), |bytes| words(&bytes))
    }
}

fn tail(path: &Path, begin: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(begin.max(end.saturating_sub(STDERR_BYTES_MAX as u64))))?;
    let mut bytes = Vec::new();
    file.take(STDERR_BYTES_MAX as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Starts a QEMU that lives on when this process ends, and gives it at once: what is to be remembered of it can be
/// written down before anything is asked of it. [`connect_started`] comes next.
///
/// It has a session and a process group of its own, no standard input, none of this process's descriptors, and its output
/// goes to the end of `log`. `command` as for [`Qemu::start`](crate::Qemu::start).
///
/// It is a child until this process ends: keep the [`Process`] and wait for its end, or it stays a zombie.
pub fn spawn_detached(
    config: &Config,
    log: &Path,
    command: impl FnOnce(&Path) -> Command,
) -> Result<(Process, Log), Error> {
    let mut command = command(&config.program());
    command.args(config.arguments());
    spawn_command_detached(command, &config.qmp, log)
}

/// As [`spawn_detached`], of a command line as it is, that has QMP listen on `qmp`.
pub fn spawn_command_detached(mut command: Command, qmp: &Path, log: &Path) -> Result<(Process, Log), Error> {
    let program = PathBuf::from(command.get_program());
    let (log, file) = Log::open(log).map_err(|source| Error::Log { path: log.into(), source })?;
    let errors = file.try_clone().map_err(Error::Process)?;
    command.stdin(Stdio::null()).stdout(file).stderr(errors);
    // SAFETY: between fork and exec, only async-signal-safe calls: setsid(2) and close_range(2), which take integers.
    // Descriptors are marked, not closed: the standard library still reports a failed exec through one.
    unsafe {
        command.pre_exec(|| {
            Errno::result(libc::setsid())?;
            Errno::result(libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC))?;
            Ok(())
        });
    }
    // A socket left over by an earlier QEMU would be connected to in place of the new one's.
    let _ = std::fs::remove_file(qmp);
    let mut child = command.spawn().map_err(|source| Error::Start { program, source })?;
    // Our child keeps its pid until we reap it, so this is it.
    let attach = || -> io::Result<Process> {
        let ended = || io::Error::other("it ended at once and somebody else waited for it");
        let id = ProcessId::of(child.id())?.ok_or_else(ended)?;
        // Also of one that has ended already: its words and status are wanted.
        let pidfd = open(id.pid)?.ok_or_else(ended)?;
        Ok(Process { id, pidfd, killed: AtomicBool::new(false) })
    };
    match attach() {
        Ok(process) => Ok((process, log)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(Error::Process(error))
        }
    }
}

/// Waits up to `deadline` until a QEMU from [`spawn_detached`] answers. It is killed if it does not.
pub fn connect_started(process: &Process, log: &Log, qmp: &Path, deadline: Duration) -> Result<Monitor, Error> {
    let alive = || match process.wait_exit(Duration::ZERO).map_err(Error::Process)? {
        None => Ok(()),
        Some(exit) => Err(Error::Ended { status: exit.to_string(), stderr: log.tail() }),
    };
    let end = Instant::now() + deadline;
    first_connection(|wait| Monitor::connect(qmp, wait), alive, || log.tail(), end)
        .inspect_err(|error| {
            // One that ended by itself was not killed: whoever asks is to hear its words.
            if !matches!(error, Error::Ended { .. }) {
                let _ = process.kill(KILL_DEADLINE);
            }
        })
        .map_err(|error| match error {
            Error::Qmp { stderr, source: QmpError::Connect { .. } | QmpError::Timeout { .. } } => {
                Error::Silent { after: deadline, stderr }
            }
            other => other,
        })
}

/// A killed process is gone in milliseconds, after its RAM was freed: about a second for some hundred GB.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn child(script: &str) -> (std::process::Child, Process) {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let process = Process::attach(ProcessId::of(child.id()).unwrap().unwrap()).unwrap().unwrap();
        (child, process)
    }

    #[test]
    fn start_times() {
        let fields = (4..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(start_time(&format!("1 (a) b) c) S {fields}\n")), Some(22));
        for other in ["", "1 (x", "1 (x)", "1 (x) S 1 2 3"] {
            assert_eq!(start_time(other), None);
        }
        let own = ProcessId::of(std::process::id()).unwrap().unwrap();
        assert!(own.started > 0);
        assert_eq!(serde_json::from_str::<ProcessId>(&serde_json::to_string(&own).unwrap()).unwrap(), own);
    }

    #[test]
    fn an_end_is_seen_and_the_child_reaped() {
        let (_child, process) = child("sleep 0.1; exit 3");
        assert!(process.is_alive().unwrap());
        assert_eq!(process.wait_exit(Duration::from_millis(5)).unwrap(), None);
        assert_eq!(process.wait_exit(Duration::from_secs(5)).unwrap(), Some(Exit::Status(3)));
        assert_eq!(ProcessId::of(process.id().pid).unwrap(), None, "a zombie would still be there");
        assert_eq!(process.kill(Duration::ZERO).unwrap(), Some(Exit::Unknown), "killing the dead is no error");
        assert!(Process::attach(process.id()).unwrap().is_none());
    }

    #[test]
    fn a_killed_one_is_gone() {
        let (_child, process) = child("exec sleep 60");
        assert_eq!(process.kill(Duration::from_secs(5)).unwrap(), Some(Exit::Signal(libc::SIGKILL)));
        assert!(!process.is_alive().unwrap());
    }

    #[test]
    fn one_that_starts_and_never_answers_is_killed_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let (qmp, path) = (dir.path().join("qmp"), dir.path().join("log"));
        let mut command = Command::new("sh");
        command.args(["-c", "echo stuck; exec sleep 60"]);
        let (process, log) = spawn_command_detached(command, &qmp, &path).unwrap();
        // As a QEMU's that has not come to its main loop: it listens, and does not accept.
        let listener = listening(&qmp);
        let since = Instant::now();
        let error = connect_started(&process, &log, &qmp, Duration::from_millis(1500)).unwrap_err();
        let told = error.to_string();
        assert!(
            matches!(error, Error::Silent { .. }) && told.contains("within 1 s") && told.contains("stuck"),
            "{told}"
        );
        assert!(!process.is_alive().unwrap() && since.elapsed() < Duration::from_secs(30));
        drop(listener);
    }

    fn listening(path: &Path) -> OwnedFd {
        use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
        let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(socket.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        listen(&socket, Backlog::new(1).unwrap()).unwrap();
        socket
    }

    #[test]
    fn a_stranger_with_the_same_pid_is_not_taken() {
        let own = ProcessId::of(std::process::id()).unwrap().unwrap();
        assert!(Process::attach(own).unwrap().is_some());
        assert!(Process::attach(ProcessId { started: own.started - 1, ..own }).unwrap().is_none());
        for pid in [0, u32::MAX] {
            assert!(Process::attach(ProcessId { pid, started: 1 }).unwrap().is_none());
        }
    }

    #[test]
    fn a_log_gives_its_own_end() {
        let path = std::env::temp_dir().join(format!("skein-log-test-{}", std::process::id()));
        std::fs::write(&path, "an earlier QEMU\n").unwrap();
        let (log, mut file) = Log::open(&path).unwrap();
        assert_eq!((log.tail().as_str(), log.last_words()), ("it wrote nothing", None));
        io::Write::write_all(&mut file, b"boom\n").unwrap();
        assert_eq!((log.tail().as_str(), log.last_words().as_deref()), ("boom", Some("boom")));
        io::Write::write_all(&mut file, &[b'x'; 2 * STDERR_BYTES_MAX]).unwrap();
        assert_eq!(log.tail().len(), STDERR_BYTES_MAX);
        std::fs::remove_file(&path).unwrap();
        assert!(log.tail().contains("cannot be read"));
    }
}
