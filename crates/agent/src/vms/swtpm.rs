//! The TPM of a guest: swtpm, which runs beside QEMU and ends with it.
//!
//! It belongs to no agent, as QEMU does not: it goes to the background by itself, and ends when QEMU's connection does
//! (`--terminate`). One that QEMU never came to is told to end.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use skein_machine::definition::{Tpm, TpmVersion};

use super::{VmError, io_error, wait_until};

/// The program, found in PATH.
pub(crate) const PROGRAM: &str = "swtpm";
/// It ends, or begins to listen, within this on a busy host.
const TIME: Duration = Duration::from_secs(10);
/// `CMD_SHUTDOWN` of swtpm's tpm_ioctl.h, as it goes over the control channel: big endian.
const SHUTDOWN: [u8; 4] = 3_u32.to_be_bytes();

/// The version that is installed here; none: there is none.
pub(crate) fn version() -> Option<String> {
    let output = Command::new(PROGRAM).arg("--version").stdin(Stdio::null()).output().ok()?;
    // TPM emulator version 0.7.1, Copyright...
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(said.split("version ").nth(1)?.split(',').next()?.trim().to_owned()).filter(|version| !version.is_empty())
}

/// Starts the TPM with its state in `state`; its socket and log are in `dir`. It listens when this returns.
pub(super) fn start(tpm: Tpm, state: &Path, dir: &Path) -> Result<(), VmError> {
    let socket = dir.join("tpm");
    end(dir);
    let mut command = Command::new(PROGRAM);
    command.args(["socket", "--daemon", "--terminate"]);
    if tpm.version == TpmVersion::V2_0 {
        command.arg("--tpm2");
    }
    let option = |prefix: &str, path: &Path, rest: &str| {
        let mut value = std::ffi::OsString::from(prefix);
        value.push(path);
        value.push(rest);
        value
    };
    command.arg("--tpmstate").arg(option("dir=", state, ",mode=0600"));
    command.arg("--ctrl").arg(option("type=unixio,path=", &socket, ",mode=0600"));
    command.arg("--log").arg(option("file=", &dir.join("swtpm.log"), ",level=1"));
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let output = match output {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(VmError::NoSwtpm),
        output => output.map_err(io_error("starting swtpm"))?,
    };
    if !output.status.success() {
        let log = std::fs::read_to_string(dir.join("swtpm.log")).unwrap_or_default();
        let said = format!("{} {log}", String::from_utf8_lossy(&output.stderr));
        return Err(io_error(format!("swtpm ended with {}", output.status))(io::Error::other(said.trim().to_owned())));
    }
    Ok(())
}

/// Ends what there is of a TPM whose QEMU is gone, or never came.
pub(super) fn end(dir: &Path) {
    let socket = dir.join("tpm");
    let is_gone = || match UnixStream::connect(&socket) {
        Ok(mut connection) => {
            let _ = connection.set_read_timeout(Some(TIME));
            // Its answer, or its end.
            let _ = connection.write_all(&SHUTDOWN).and_then(|()| connection.read(&mut [0; 4]));
            false
        }
        Err(_) => true,
    };
    wait_until(TIME, is_gone);
    let _ = std::fs::remove_file(&socket);
}
