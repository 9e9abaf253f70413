//! Is listening unix sockets whose files go with them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use thiserror::Error;
use tracing::info;

/// Says how long a listener waits before it checks whether it should stop.
pub(crate) const ACCEPT_WAIT: Duration = Duration::from_millis(100);
/// Bounds the waiting connections of a listener: QEMU opens up to 255 multifd channels at once.
const BACKLOG: i32 = 256;
/// Bounds the path of a unix socket (`sockaddr_un`, without the closing zero).
pub(crate) const PATH_BYTES_MAX: usize = 107;

/// The reason why a socket cannot be listened on.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum SocketError {
    #[error("{} is in use by a running program: stop it, or choose another path", .0.display())]
    InUse(PathBuf),
    #[error("{} exists and is not a socket: remove it, or choose another path", .0.display())]
    NotASocket(PathBuf),
    #[error("cannot listen on {}", .path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A listening unix socket whose file goes with it.
pub(crate) struct OwnSocket {
    socket: Socket,
    path: PathBuf,
    /// The device and inode of the file, to tell the file from another under the same name.
    file: Option<(u64, u64)>,
}

impl OwnSocket {
    /// Listens, in place of what an earlier run left.
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<OwnSocket, SocketError> {
        clear_way(path)?;
        let listen = |source| SocketError::Listen { path: path.to_owned(), source };
        let bind = || -> io::Result<Socket> {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&SockAddr::unix(path)?)?;
            // Nobody can connect before `listen`, so nobody gets in before this.
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            socket.listen(BACKLOG)?;
            socket.set_read_timeout(Some(ACCEPT_WAIT))?;
            Ok(socket)
        };
        let socket = bind().map_err(listen)?;
        Ok(OwnSocket { socket, path: path.to_owned(), file: file_id(path) })
    }

    /// Returns the path of the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless another socket has the path by now.
    pub(crate) fn remove(&self) {
        if self.file.is_some() && file_id(&self.path) == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Returns the next connection; `None` if none comes within [`ACCEPT_WAIT`].
    pub(crate) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.socket.accept() {
            Ok((socket, _)) => {
                socket.set_read_timeout(None)?;
                Ok(Some(UnixStream::from(OwnedFd::from(socket))))
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl AsFd for OwnSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        self.remove();
    }
}

fn file_id(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Removes what an earlier run left, and nothing else.
///
/// A datagram socket asks whether a program has the socket: the kernel finds the other end by the file's inode,
/// whatever its name and network namespace, and refuses for the wrong type (`EPROTOTYPE`) before the other end learns
/// of it (`unix_find_bsd` in net/unix/af_unix.c). A real connection would make an incoming QEMU exit.
fn clear_way(path: &Path) -> Result<(), SocketError> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.to_owned()));
    }
    let asked = Socket::new(Domain::UNIX, Type::DGRAM, None)
        .and_then(|socket| socket.connect(&SockAddr::unix(path)?))
        .map_err(|error| error.kind());
    if asked != Err(io::ErrorKind::ConnectionRefused) {
        return Err(SocketError::InUse(path.to_owned()));
    }
    info!("{}: left by an earlier run, removed", path.display());
    fs::remove_file(path).map_err(|source| SocketError::Listen { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_left_socket_goes_and_a_used_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let first = OwnSocket::bind(&path, 0o600).unwrap();
        assert!(matches!(OwnSocket::bind(&path, 0o600), Err(SocketError::InUse(_))));
        let by_another_name = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &by_another_name).unwrap();
        let by_another_name = by_another_name.join("a.sock");
        assert!(matches!(OwnSocket::bind(&by_another_name, 0o600), Err(SocketError::InUse(_))));
        // A kill would leave the file so.
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("b.sock")).unwrap());
        let end = Instant::now() + Duration::from_secs(60);
        // A child of another test may have the listener open until the child is another program.
        while let Err(error) = OwnSocket::bind(&dir.path().join("b.sock"), 0o600) {
            assert!(matches!(error, SocketError::InUse(_)) && Instant::now() < end, "{error}");
            thread::sleep(Duration::from_millis(10));
        }
        fs::write(dir.path().join("c"), "data").unwrap();
        assert!(matches!(OwnSocket::bind(&dir.path().join("c"), 0o600), Err(SocketError::NotASocket(_))));
        // Another socket's file under the same name stays.
        fs::remove_file(&path).unwrap();
        let second = OwnSocket::bind(&path, 0o600).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
