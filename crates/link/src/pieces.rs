//! Buffers in a row that go out through a socket, as far as it takes them.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};

use bytes::{Buf, Bytes};
use nix::sys::socket::{MsgFlags, sendmsg};

/// Pieces in one gathered write.
const PIECES_MAX: usize = 64;

/// How a write treats a socket that is full.
pub(crate) fn flags(wait: bool) -> MsgFlags {
    MsgFlags::MSG_NOSIGNAL | if wait { MsgFlags::empty() } else { MsgFlags::MSG_DONTWAIT }
}

/// Sends what one gathered write takes of `pieces`, none of them empty, and drops it from them. Returns the bytes.
///
/// Errors are the socket's: [`nix::Error::EAGAIN`] if it is full and not to be waited for.
pub fn send_pieces(socket: impl AsFd, pieces: &mut VecDeque<Bytes>, wait: bool) -> nix::Result<usize> {
    let slices: Vec<IoSlice<'_>> = pieces.iter().take(PIECES_MAX).map(|piece| IoSlice::new(piece)).collect();
    let sent = sendmsg::<()>(socket.as_fd().as_raw_fd(), &slices, &[], flags(wait), None)?;
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
