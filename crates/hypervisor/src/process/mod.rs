//! Starts QEMU processes, finds them again by pid and start time or by their QMP socket, and ends them.

pub(crate) mod child;
pub mod error;
pub mod log;
pub mod program;
pub mod qemu;
pub mod start;

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use serde::{Deserialize, Serialize};

use crate::qmp::monitor::Monitor;

/// A process for good. Pids are used again; a pid with its start time is not, as long as the host runs. A record that
/// outlives a boot of the host has to keep `/proc/sys/kernel/random/boot_id` with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// The process's number.
    pub pid: u32,
    /// When the process started: proc_pid_stat(5), field 22, in clock ticks since the host's boot.
    pub started: u64,
}

impl ProcessId {
    /// Returns the process that runs under this pid now; `None` if none does.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => match start_time(&stat) {
                Some(started) => Ok(Some(Self { pid, started })),
                None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat says {stat:?}"))),
            },
            // ESRCH: the process ended between open and read.
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
    /// The process ended by itself, with this status.
    Status(i32),
    /// The process was ended by this signal.
    Signal(i32),
    /// The process is gone; only its parent could know more.
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

/// A running process, held by its pidfd: what is done to it never hits another process. Dropping this does nothing to
/// the process.
#[derive(Debug)]
pub struct Process {
    id: ProcessId,
    pidfd: OwnedFd,
    killed: AtomicBool,
}

impl Process {
    /// Takes hold of a process; `None` if the process has ended.
    pub fn attach(id: ProcessId) -> io::Result<Option<Self>> {
        let Some(pidfd) = open(id.pid)? else { return Ok(None) };
        let process = Self { id, pidfd, killed: AtomicBool::new(false) };
        // The descriptor holds the process meanwhile: if these agree, and the process has not ended since, it is the
        // right one.
        Ok((ProcessId::of(id.pid)? == Some(id) && process.is_alive()?).then_some(process))
    }

    /// Returns the QEMU at the other end of a QMP connection. Another program may have started the QEMU. `None`: the
    /// QEMU ended, or is not visible from this pid namespace. See [`Monitor::peer_pid`].
    pub fn of_monitor(monitor: &Monitor) -> io::Result<Option<Self>> {
        let pid = monitor.peer_pid().map_err(io::Error::other)?;
        match pid.map(ProcessId::of).transpose()?.flatten() {
            Some(id) => Self::attach(id),
            None => Ok(None),
        }
    }

    /// Takes hold of a child that nobody has waited for. The child may have ended already; its words and status are
    /// wanted.
    fn of_child(child: &Child) -> io::Result<Self> {
        let ended = || io::Error::other("it ended at once and somebody else waited for it");
        // A child keeps its pid until this process reaps it, so this is the child.
        let id = ProcessId::of(child.id())?.ok_or_else(ended)?;
        let pidfd = open(id.pid)?.ok_or_else(ended)?;
        Ok(Self { id, pidfd, killed: AtomicBool::new(false) })
    }

    /// Returns the process's identity.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Returns whether the process runs; a process that ended and was not waited for does not.
    pub fn is_alive(&self) -> io::Result<bool> {
        Ok(!self.ended_within(Duration::ZERO)?)
    }

    /// Waits up to `deadline` for the process's end; `None` if it runs on. A child is reaped.
    pub fn wait_exit(&self, deadline: Duration) -> io::Result<Option<Exit>> {
        Ok(if self.ended_within(deadline)? { Some(self.reap()?) } else { None })
    }

    /// Kills the process (SIGKILL) and waits up to `deadline` until it is gone; `None` if it is not: the kernel holds
    /// it, for instance in a read from storage that does not answer.
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

    /// Returns whether [`Process::kill`] killed the process, or told it to end.
    pub fn was_killed(&self) -> bool {
        self.killed.load(Ordering::SeqCst)
    }

    /// Waits for the end. A pidfd is readable when its process has ended.
    fn ended_within(&self, wait: Duration) -> io::Result<bool> {
        let end = Instant::now() + wait;
        loop {
            // The time is rounded up, or the last wait would be a busy wait.
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
            // The process is not this process's child, or was reaped before.
            Ok(_) | Err(Errno::ECHILD) => Ok(Exit::Unknown),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Returns a pidfd of the process that runs under this pid now, or has ended and was not waited for.
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What is about to happen has happened by then, also on a busy machine.
    const SOON: Duration = Duration::from_secs(60);

    fn child(script: &str) -> (std::process::Child, Process) {
        let child = Command::new("sh").args(["-c", script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
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
        let (mut child, process) = child("read line; exit 3");
        assert!(process.is_alive().unwrap());
        assert_eq!(process.wait_exit(Duration::from_millis(5)).unwrap(), None);
        // The end of its input ends it.
        drop(child.stdin.take());
        assert_eq!(process.wait_exit(SOON).unwrap(), Some(Exit::Status(3)));
        assert_eq!(ProcessId::of(process.id().pid).unwrap(), None, "a zombie would still be there");
        assert_eq!(process.kill(Duration::ZERO).unwrap(), Some(Exit::Unknown), "killing the dead is no error");
        assert!(Process::attach(process.id()).unwrap().is_none());
    }

    #[test]
    fn a_killed_one_is_gone() {
        let (_child, process) = child("exec sleep 60");
        assert_eq!(process.kill(SOON).unwrap(), Some(Exit::Signal(libc::SIGKILL)));
        assert!(!process.is_alive().unwrap());
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
}
