//! Wakes a thread that waits for a socket.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Wakes the one thread that polls it.
pub(crate) struct Waker {
    polled: UnixStream,
    woken: UnixStream,
}

impl Waker {
    /// # Errors
    ///
    /// The process has too many files open.
    pub(crate) fn new() -> io::Result<Waker> {
        let (polled, woken) = UnixStream::pair()?;
        polled.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        Ok(Waker { polled, woken })
    }

    /// Wakes the thread, now or when it polls next.
    pub(crate) fn wake(&self) {
        // A socket that is full wakes, too.
        let _ = (&self.woken).write(&[0]);
    }

    /// Takes back what woke the thread.
    pub(crate) fn clear(&self) {
        let mut bytes = [0; 64];
        while (&self.polled).read(&mut bytes).is_ok_and(|read| read > 0) {}
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.polled.as_fd()
    }
}
