//! Starts QEMUs that outlive their starter, and waits for their first answer.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::config::Config;
use crate::process::Process;
use crate::process::error::Error;
use crate::process::log::Log;
use crate::qmp::error::QmpError;
use crate::qmp::monitor::Monitor;

/// Bounds the wait for a killed process, which is gone in milliseconds, after its RAM was freed: about a second for
/// some hundred GB.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// Starts a QEMU that lives on when this process ends, and returns it at once. So what is to be remembered of it can be
/// written down before anything is asked of it. [`connect_started`] comes next.
///
/// The QEMU has a session and a process group of its own, no standard input, none of this process's descriptors, and
/// its output goes to the end of `log`. `command` is as for [`Qemu::start`](crate::Qemu::start).
///
/// The QEMU is a child until this process ends: keep the [`Process`] and wait for its end, or it stays a zombie.
pub fn spawn_detached(
    config: &Config,
    log: &Path,
    command: impl FnOnce(&Path) -> Command,
) -> Result<(Process, Log), Error> {
    let mut command = command(&config.program());
    command.args(config.arguments());
    spawn_command_detached(command, &config.qmp, log)
}

/// Starts a command line as it is, which has QMP listen on `qmp`, like [`spawn_detached`].
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
    match Process::of_child(&child) {
        Ok(process) => Ok((process, log)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(Error::Process(error))
        }
    }
}

/// Waits up to `deadline` until a QEMU from [`spawn_detached`] answers. A QEMU that does not answer is killed.
pub fn connect_started(process: &Process, log: &Log, qmp: &Path, deadline: Duration) -> Result<Monitor, Error> {
    let alive = || match process.wait_exit(Duration::ZERO).map_err(Error::Process)? {
        None => Ok(()),
        Some(exit) => Err(Error::Ended { status: exit.to_string(), stderr: log.tail() }),
    };
    let end = Instant::now() + deadline;
    first_connection(|wait| Monitor::connect(qmp, wait), alive, || log.tail(), end)
        .inspect_err(|error| {
            // A QEMU that ended by itself was not killed: the caller is to get its words.
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

/// Connects to a new QEMU's control socket, as long as the QEMU lives and until `end`. `alive` fails if the QEMU has
/// ended; `said` returns what it wrote.
pub(crate) fn first_connection<T>(
    connect: impl Fn(Duration) -> Result<T, QmpError>,
    mut alive: impl FnMut() -> Result<(), Error>,
    said: impl Fn() -> String,
    end: Instant,
) -> Result<T, Error> {
    loop {
        alive()?;
        let left = end.saturating_duration_since(Instant::now());
        match connect(left.min(Duration::from_millis(100))) {
            Ok(connected) => return Ok(connected),
            Err(QmpError::Connect { .. } | QmpError::Timeout { .. } | QmpError::Closed) if !left.is_zero() => {}
            Err(source) => return Err(Error::Qmp { stderr: said(), source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use super::*;

    #[test]
    fn one_that_starts_and_never_answers_is_killed_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let (qmp, path) = (dir.path().join("qmp"), dir.path().join("log"));
        let mut command = Command::new("sh");
        command.args(["-c", "echo stuck; exec sleep 60"]);
        let (process, log) = spawn_command_detached(command, &qmp, &path).unwrap();
        // Waits for the shell's word, which may take longer on a busy machine than the deadline below.
        let end = Instant::now() + Duration::from_secs(50);
        while log.tail() != "stuck" {
            assert!(Instant::now() < end, "{}", log.tail());
            std::thread::sleep(Duration::from_millis(5));
        }
        // A QEMU that has not come to its main loop does so, too: it listens, and does not accept.
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
}
