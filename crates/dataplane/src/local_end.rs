//! Is a stream's local end: a unix socket with a program of this host behind it.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Says how often, in milliseconds, a reader of a socket that is kept open checks whether its stream was torn down.
const RESET_CHECK_PERIOD_MS: u8 = 200;
/// Says how many bytes are read at once of bytes that are dropped.
const DRAINED_BYTES: usize = 64 << 10;

/// What becomes of a local socket when its stream is torn down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnReset {
    /// The socket is shut down, so that its program learns of the end.
    ShutDown,
    /// The socket stays open, and what its program writes is read and dropped, until the program closes its end or the
    /// caller shuts the socket down.
    KeepOpen,
}

/// The unix socket that a stream leads to at this host.
#[derive(Clone, Debug)]
pub struct LocalEnd {
    /// The socket.
    pub socket: Arc<UnixStream>,
    /// What becomes of the socket when the stream is torn down.
    pub on_reset: OnReset,
}

impl From<UnixStream> for LocalEnd {
    /// Makes a local end whose socket is shut down with its stream.
    fn from(socket: UnixStream) -> LocalEnd {
        LocalEnd { socket: socket.into(), on_reset: OnReset::ShutDown }
    }
}

impl LocalEnd {
    /// Waits until the socket has bytes or an end. Returns false if it has neither yet; the caller then checks whether
    /// the stream was torn down. Only a socket that is kept open needs that: another socket is shut down, which ends
    /// the wait.
    ///
    /// # Errors
    /// The socket broke.
    pub(crate) fn wait_for_bytes(&self) -> io::Result<bool> {
        let patience = match self.on_reset {
            OnReset::KeepOpen => PollTimeout::from(RESET_CHECK_PERIOD_MS),
            OnReset::ShutDown => PollTimeout::NONE,
        };
        loop {
            match poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], patience) {
                Ok(ready) => return Ok(ready > 0),
                Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads and drops what comes from a socket that is kept open, until its end. The end of the stream must not stop
    /// the socket's program.
    pub(crate) fn drain(&self) {
        if self.on_reset == OnReset::ShutDown {
            return;
        }
        let mut buffer = vec![0; DRAINED_BYTES];
        while { &*self.socket }.read(&mut buffer).is_ok_and(|n| n > 0) {}
    }

    /// Shuts the socket down, unless it is kept open. This frees a thread that reads or writes the socket.
    pub(crate) fn shut(&self, how: Shutdown) {
        if self.on_reset == OnReset::ShutDown {
            let _ = self.socket.shutdown(how);
        }
    }
}
