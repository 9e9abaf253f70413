//! Gives unix sockets between an agent and a QEMU more room than the system's default.
//!
//! A unix socket holds what its writer has written and its reader has not read yet, up to the *writer's* `SO_SNDBUF`
//! (`sock_alloc_send_pskb` in net/core/sock.c). The default, 208 KiB, is less than a packet of multifd, so QEMU sleeps
//! and is woken several times for each packet. QEMU has no option for this, so the agent sets the option on QEMU's own
//! socket.

use std::fs;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nix::sys::socket::sockopt::{PeerCredentials, SndBuf, SndBufForce};
use nix::sys::socket::{getsockopt, setsockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use tracing::debug;

/// Says how many bytes a socket between an agent and a QEMU may hold. The kernel doubles what it is told, for its own
/// bookkeeping.
const BUFFER_BYTES: usize = 512 << 10;

/// Lets this end's writes run further ahead of the other end's reads. Where the system refuses, the socket is as good
/// as before.
pub(crate) fn widen(socket: &impl AsFd) {
    if let Err(error) = try_widen(socket) {
        debug!("this end of a QEMU's socket has a buffer of the usual size: {error}");
    }
}

/// Lets the writes of an accepted connection's other end run further ahead of this end's reads. Where that fails, the
/// connection is as good as before.
pub(crate) fn widen_peer(connection: &UnixStream) {
    if let Err(error) = try_widen_peer(connection) {
        debug!("the other end of {connection:?} has a buffer of the usual size: {error}");
    }
}

fn try_widen(socket: &impl AsFd) -> io::Result<()> {
    // Whoever gave all sockets of the host more has it so.
    if getsockopt(&socket.as_fd(), SndBuf)? >= 2 * BUFFER_BYTES {
        return Ok(());
    }
    // Without the capability (CAP_NET_ADMIN) the system's limit holds (net.core.wmem_max).
    setsockopt(&socket.as_fd(), SndBufForce, &BUFFER_BYTES)
        .or_else(|_| setsockopt(&socket.as_fd(), SndBuf, &BUFFER_BYTES))
        .map_err(io::Error::from)
}

/// The other end is found among the files of the process that connected: a socket whose other end has this one's name.
/// Another connection of that process to the same name may be widened as well, which does no harm.
///
/// # Errors
/// The process has ended, or is in another namespace, or this process may not reach its files (ptrace(2), "Ptrace
/// access mode checking").
fn try_widen_peer(connection: &UnixStream) -> io::Result<()> {
    let peer = getsockopt(connection, PeerCredentials)?.pid();
    let pid = Pid::from_raw(peer).ok_or_else(|| io::Error::other("its process is in another PID namespace"))?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let name = connection.local_addr()?;
    let path = name.as_pathname();
    let mut found = false;
    for file in fs::read_dir(format!("/proc/{peer}/fd"))? {
        let file = file?;
        let is_socket = |to: PathBuf| to.as_os_str().as_bytes().starts_with(b"socket:");
        let number = file.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        let Some(number) = number.filter(|_| fs::read_link(file.path()).is_ok_and(is_socket)) else { continue };
        // A file that was closed meanwhile is not the one.
        let Ok(socket) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
        let socket = UnixStream::from(socket);
        if path.is_some() && socket.peer_addr().is_ok_and(|peer| peer.as_pathname() == path) {
            try_widen(&socket)?;
            found = true;
        }
    }
    if found { Ok(()) } else { Err(io::Error::other("none of its process's sockets is its other end")) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Returns how many bytes a socket takes that nobody reads.
    fn room(mut writer: &UnixStream) -> usize {
        writer.set_nonblocking(true).unwrap();
        let mut taken = 0;
        while let Ok(bytes) = writer.write(&[7; 4096]) {
            taken += bytes;
        }
        taken
    }

    #[test]
    fn the_other_ends_writes_have_more_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let connect = || (UnixStream::connect(&path).unwrap(), listener.accept().unwrap().0);
        // A socket of another name, which is among the same process's files, stays as it is.
        let (other, _other_end) = UnixStream::pair().unwrap();
        let usual = {
            let (writer, _reader) = connect();
            room(&writer)
        };
        let (writer, reader) = connect();
        try_widen_peer(&reader).unwrap();
        let wide = room(&writer);
        assert!(wide > usual + usual / 2, "{wide} bytes, where {usual} are usual");
        assert!(room(&other) <= usual);
        try_widen(&other).unwrap();
        assert!(getsockopt(&other, SndBuf).unwrap() > getsockopt(&reader, SndBuf).unwrap());
        // No socket loses what it has.
        setsockopt(&other, SndBufForce, &(4 * BUFFER_BYTES))
            .or_else(|_| setsockopt(&other, SndBuf, &BUFFER_BYTES))
            .unwrap();
        let before = getsockopt(&other, SndBuf).unwrap();
        try_widen(&other).unwrap();
        assert_eq!(getsockopt(&other, SndBuf).unwrap(), before);
    }

    #[test]
    fn a_connection_without_its_other_end_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let gone = UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        drop(gone);
        assert!(try_widen_peer(&accepted).is_err());
    }
}
