//! Sends buffers in a row through a socket, as far as the socket takes them.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};

use bytes::{Buf, Bytes};
use nix::sys::socket::{MsgFlags, sendmsg};

/// Bounds the pieces of one gathered write.
const PIECES_MAX: usize = 64;

/// What a call does if it would have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Returns after what can be done at once.
    Try,
    /// Waits.
    Wait,
}

/// Returns the flags that say how a write treats a full socket.
pub(crate) fn flags(patience: Patience) -> MsgFlags {
    match patience {
        Patience::Try => MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
        Patience::Wait => MsgFlags::MSG_NOSIGNAL,
    }
}

/// Sends what one gathered write takes of `pieces`, none of them empty, and drops it from them. Returns how many bytes
/// were sent.
///
/// # Errors
/// Those of the socket: [`nix::Error::EAGAIN`] if the socket is full, with [`Patience::Try`] or after the socket's own
/// time for writes.
pub fn send_pieces(socket: impl AsFd, pieces: &mut VecDeque<Bytes>, patience: Patience) -> nix::Result<usize> {
    let slices: Vec<IoSlice<'_>> = pieces.iter().take(PIECES_MAX).map(|piece| IoSlice::new(piece)).collect();
    let sent = sendmsg::<()>(socket.as_fd().as_raw_fd(), &slices, &[], flags(patience), None)?;
    let mut rest = sent;
    while let Some(front) = pieces.front_mut()
        && rest > 0
    {
        let of_front = rest.min(front.len());
        front.advance(of_front);
        rest -= of_front;
        if front.is_empty() {
            pieces.pop_front();
        }
    }
    Ok(sent)
}
