//! Is the process of a rail as its agent has it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tracing::warn;

use super::words::{Channel, Request};
use crate::fabric::FabricError;

/// How long a process that is killed has to end: the kernel lets go of guests' memory first, which takes tens of ms for
/// a GiB.
const KILL_TIME: Duration = Duration::from_secs(15);
/// How long a process that nobody needs any more has to end by itself.
const END_TIME: Duration = Duration::from_secs(3);
/// How often who waits for the end looks.
const END_CHECK: Duration = Duration::from_millis(10);
/// What the library is told. Its default number of peers asks soft-RoCE for longer queues than that has; a program that
/// asks for its release 1.17 gets no writes by the oldest EFA devices unless it says so; and of psm2, which Debian's
/// links, nobody wants files that tell of a crash.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("FI_UNIVERSE_SIZE", "16"),
    ("FI_EFA_USE_DEVICE_RDMA", "1"),
    ("HFI_NO_BACKTRACE", "1"),
    ("IPATH_NO_BACKTRACE", "1"),
];

/// A process that serves endpoints. It ends when this and all of them are dropped.
pub struct RailProcess {
    channel: Channel,
    /// `None`: the process has ended.
    child: Mutex<Option<Child>>,
}

impl RailProcess {
    /// Starts a process. `words` are a program that calls [`crate::serve_rail`], and its arguments.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(words: &[OsString]) -> Result<Arc<RailProcess>, FabricError> {
        let (program, arguments) =
            words.split_first().ok_or_else(|| cannot_start(&io::ErrorKind::InvalidInput.into()))?;
        let (channel, other) = Channel::pair().map_err(|error| cannot_start(&error))?;
        let mut command = Command::new(program);
        command.args(arguments).envs(ENVIRONMENT).stdin(other).stdout(Stdio::null());
        // A Ctrl-C in the agent's terminal is not meant for the process.
        let child = command.process_group(0).spawn().map_err(|error| cannot_start(&error))?;
        // From here on the process alone has the other end.
        drop(command);
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let process = Arc::new(RailProcess { channel, child: Mutex::new(Some(child)) });
        // On Linux before 5.3 who needs the process next finds that it has ended.
        if let Ok(pidfd) = pidfd {
            let process = Arc::downgrade(&process);
            let _ = thread::Builder::new().name("rail-reaper".into()).spawn(move || reap(&pidfd, &process));
        }
        Ok(process)
    }

    /// Has the process serve an endpoint. Returns this end of the connection to that.
    ///
    /// # Errors
    /// The process has ended or hangs.
    pub(super) fn connect(&self) -> Result<Channel, FabricError> {
        let failed = |why: String| FabricError::Process(why);
        let (channel, other) = Channel::pair().map_err(|error| failed(format!("cannot be reached: {error}")))?;
        // When this returns, the process alone has the other end.
        match self.channel.send(&Request::Serve, Some(other.as_fd())) {
            Ok(true) => Ok(channel),
            Ok(false) => Err(failed("does not answer".into())),
            Err(_) => Err(failed("has ended".into())),
        }
    }

    /// Kills the process: all its endpoints are closed then. One that has ended has closed all that it had, as the
    /// kernel sees to that.
    ///
    /// # Errors
    /// The process does not end.
    pub(super) fn kill(&self) -> Result<(), FabricError> {
        let mut child = self.child.lock();
        let Some(running) = child.as_mut() else { return Ok(()) };
        let _ = running.kill();
        if !has_ended(running, KILL_TIME) {
            return Err(FabricError::Process("does not end, and may still write".into()));
        }
        *child = None;
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn id(&self) -> u32 {
        self.child.lock().as_ref().map_or(0, Child::id)
    }
}

impl Drop for RailProcess {
    fn drop(&mut self) {
        let Some(mut child) = self.child.get_mut().take() else { return };
        self.channel.end();
        let end = move || {
            if !has_ended(&mut child, END_TIME) {
                let _ = child.kill();
                let _ = child.wait();
            }
        };
        let _ = thread::Builder::new().name("rail-end".into()).spawn(end);
    }
}

/// Waits until a process ends, and says so where nobody has ended that.
fn reap(pidfd: &OwnedFd, process: &Weak<RailProcess>) {
    while poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) == Err(Errno::EINTR) {}
    let Some(process) = process.upgrade() else { return };
    let mut child = process.child.lock();
    if let Some(Ok(Some(status))) = child.as_mut().map(Child::try_wait) {
        warn!("a rail's process has ended by itself ({status}): another is started when the rail is needed");
        *child = None;
    }
}

/// Waits until a process has ended, for so long. Returns whether that is so.
fn has_ended(child: &mut Child, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(END_CHECK);
    }
    true
}

fn cannot_start(error: &io::Error) -> FabricError {
    FabricError::Process(format!("cannot be started: {error}"))
}
