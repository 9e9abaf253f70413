//! Runs the TPM of a guest: swtpm, which runs beside QEMU and ends with it.
//!
//! Like QEMU, swtpm belongs to no agent: it goes to the background by itself, and ends when QEMU's connection does
//! (`--terminate`). An swtpm that QEMU never came to is told to end.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use skein_hypervisor::connect_within;
use skein_inventory::definition::{Tpm, TpmVersion};
use tracing::warn;

use super::error::{VmError, io_error};
use super::search;
use crate::clock::wait_until;

/// Names the program, found in PATH.
pub(crate) const PROGRAM: &str = "swtpm";
/// Bounds the time in which swtpm ends, or begins to listen, on a busy host.
const START_OR_END_TIME: Duration = Duration::from_secs(10);
/// Holds `CMD_SHUTDOWN` of swtpm's tpm_ioctl.h, as it goes over the control channel: big endian.
const SHUTDOWN_COMMAND: [u8; 4] = 3_u32.to_be_bytes();

/// Returns the version that is installed here; `None`: none is.
pub(crate) fn version() -> Option<String> {
    let output = Command::new(PROGRAM).arg("--version").stdin(Stdio::null()).output().ok()?;
    // The output is: TPM emulator version 0.7.1, Copyright...
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(said.split("version ").nth(1)?.split(',').next()?.trim().to_owned()).filter(|version| !version.is_empty())
}

/// Starts the TPM with its state in `state`; its socket and log are in `dir`. The TPM listens when this returns.
pub(super) fn start(tpm: Tpm, state: &Path, dir: &Path) -> Result<(), VmError> {
    let socket = dir.join("tpm");
    end(dir);
    let mut command = Command::new(PROGRAM);
    command.args(["socket", "--daemon", "--terminate"]);
    if tpm.version == TpmVersion::V2_0 {
        command.arg("--tpm2");
    }
    command.arg("--tpmstate").arg(option("dir=", state, ",mode=0600"));
    command.arg("--ctrl").arg(control_option(&socket));
    command.arg("--log").arg(option("file=", &dir.join("swtpm.log"), ",level=1"));
    let log = dir.join("swtpm.log");
    // The errors do not go into a pipe: a wait for the pipe's end would be a wait for the daemon.
    let errors = OpenOptions::new().create(true).append(true).mode(0o600).open(&log);
    let errors = errors.map_err(io_error(log.display().to_string()))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
    let mut child = match command.spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(VmError::NoSwtpm),
        child => child.map_err(io_error("starting swtpm"))?,
    };
    // The TPM's state may be on storage that does not answer.
    let mut exit = Ok(None);
    wait_until(START_OR_END_TIME, || {
        exit = child.try_wait();
        !matches!(exit, Ok(None))
    });
    let why = match exit.map_err(io_error("waiting for swtpm"))? {
        Some(status) if status.success() => return Ok(()),
        Some(status) => format!("swtpm ended with {status}"),
        None => {
            let _ = child.kill();
            let _ = child.wait();
            format!("swtpm did not listen within {} s", START_OR_END_TIME.as_secs())
        }
    };
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    Err(io_error(why)(io::Error::other(said.trim().to_owned())))
}

/// Ends a TPM whose QEMU is gone, or never came. A TPM that does not react is killed.
pub(super) fn end(dir: &Path) {
    end_within(dir, START_OR_END_TIME);
}

fn end_within(dir: &Path, time: Duration) {
    let socket = dir.join("tpm");
    let end = Instant::now() + time;
    let left = || end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let is_gone = || match connect_within(&socket, left()) {
        Ok(mut connection) => {
            let _ = connection.set_read_timeout(Some(left()));
            // This reads the TPM's answer, or its end.
            let _ = connection.write_all(&SHUTDOWN_COMMAND).and_then(|()| connection.read(&mut [0; 4]));
            false
        }
        // The TPM is there, and does not accept.
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    };
    if !wait_until(time, is_gone) {
        for process in search::with_argument(control_option(&socket).as_bytes()) {
            warn!(pid = process.id().pid, "swtpm does not end as it is told to, and is killed");
            if let Err(error) = process.kill(START_OR_END_TIME) {
                warn!(pid = process.id().pid, "it cannot be killed: {error}");
            }
        }
    }
    let _ = std::fs::remove_file(&socket);
}

/// Returns the value of `--ctrl`.
fn control_option(socket: &Path) -> OsString {
    option("type=unixio,path=", socket, ",mode=0600")
}

fn option(prefix: &str, path: &Path, rest: &str) -> OsString {
    let mut value = OsString::from(prefix);
    value.push(path);
    value.push(rest);
    value
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn one_that_does_not_hear_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("tpm");
        // The listener accepts nothing, and reads nothing.
        let listener = UnixListener::bind(&socket).unwrap();
        let mut deaf = Command::new("sh");
        deaf.args(["-c", "read line", "sh"]).arg(control_option(&socket)).stdin(Stdio::piped());
        let mut deaf = deaf.spawn().unwrap();
        wait_until(START_OR_END_TIME, || !search::with_argument(control_option(&socket).as_bytes()).is_empty());
        end_within(dir.path(), Duration::from_millis(300));
        assert!(search::with_argument(control_option(&socket).as_bytes()).is_empty() && !socket.exists());
        // The process was waited for.
        assert!(deaf.try_wait().is_err());
        drop(listener);
    }
}
