//! Makes refusals: what is wrong, and what to do about it.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use skein_api::Refusal;
use skein_hypervisor::ConnectError;

use crate::error_chain;
use crate::peers::AskError;
use crate::vms::VmError;

/// Bounds the bytes of words from outside in a refusal.
pub(super) const WORDS_BYTES_MAX: usize = 300;

/// A reply or a refusal.
pub(crate) type Answered<T> = Result<T, Box<Refusal>>;

/// Makes a refusal.
pub(super) fn refusal(message: impl Into<String>, cure: impl Into<String>) -> Refusal {
    Refusal { message: message.into(), cure: cure.into() }
}

impl From<VmError> for Box<Refusal> {
    fn from(error: VmError) -> Box<Refusal> {
        Box::new(refusal(error_chain(&error), error.cure()))
    }
}

/// Returns what to do about a host that did not answer.
pub(super) fn unreached(host: &str, error: &AskError) -> String {
    let nobody_listens = matches!(error, AskError::Unreachable { source, .. } if source.is_refused());
    let first = if nobody_listens { format!("is skein-agent running on {host}? Else ") } else { String::new() };
    format!("{first}see `skein host show {host}`, and `skein doctor` on both hosts")
}

/// Checks that there is a socket that a QEMU may listen on.
pub(super) fn is_socket(path: &Path) -> Answered<()> {
    let shown = path.display();
    let cure = "give the path of its QMP socket: PATH in QEMU's -qmp unix:PATH,server=on,wait=off";
    let what = match fs::metadata(path).map(|found| found.file_type()) {
        Ok(kind) if kind.is_socket() => return Ok(()),
        Ok(kind) if kind.is_dir() => format!("{shown} is a directory, and no socket"),
        Ok(kind) if kind.is_file() => format!("{shown} is a regular file, and no socket"),
        Ok(_) => format!("{shown} is no socket"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => format!("there is no {shown}"),
        Err(error) => format!("{shown} cannot be looked at: {error}"),
    };
    Err(Box::new(refusal(what, cure)))
}

/// Returns why a QEMU was not adopted; if there was no connection, no other program has the socket.
pub(super) fn unadopted(path: &Path, error: VmError) -> Box<Refusal> {
    match &error {
        VmError::Connect { source: ConnectError::Unreachable { source, .. }, .. } => {
            let shown = path.display();
            Box::new(match source.kind() {
                io::ErrorKind::ConnectionRefused => {
                    refusal(format!("nobody listens on {shown}"), "is its QEMU still running?")
                }
                _ => refusal(format!("cannot connect to {shown}: {source}"), "may root connect to it?"),
            })
        }
        _ => error.into(),
    }
}
