//! Connects to a QMP socket, within a deadline.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, socket};

use crate::qmp::error::QmpError;
use crate::qmp::message::would_block;

/// Connects to `path`, waiting for a socket that is not there yet, and returns what `negotiate` makes of it; all within
/// `deadline`.
pub(crate) fn connect<T>(
    path: &Path,
    deadline: Duration,
    negotiate: impl FnOnce(UnixStream, Duration) -> Result<T, QmpError>,
) -> Result<T, QmpError> {
    let end = Instant::now() + deadline;
    loop {
        match connect_within(path, end.saturating_duration_since(Instant::now())) {
            Ok(stream) => return negotiate(stream, end.saturating_duration_since(Instant::now())),
            Err(error) if would_block(&error) => {
                return Err(QmpError::Timeout { what: "with a connection".into(), after: deadline });
            }
            Err(source) if Instant::now() >= end => return Err(QmpError::Connect { path: path.into(), source }),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(source) => return Err(QmpError::Connect { path: path.into(), source }),
        }
    }
}

/// Connects to a unix socket within `deadline`.
///
/// The standard library's connect has no deadline: it sleeps for as long as the listener's queue is full
/// (`unix_stream_connect` of the kernel's net/unix/af_unix.c), which in a QEMU that has not come to its main loop is
/// after two connections.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if nobody took the connection by then.
pub fn connect_within(path: &Path, deadline: Duration) -> io::Result<UnixStream> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let stream = UnixStream::from(socket);
    // A timeout of zero would mean none.
    stream.set_write_timeout(Some(deadline.max(Duration::from_millis(1))))?;
    nix::sys::socket::connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    stream.set_write_timeout(None)?;
    Ok(stream)
}
