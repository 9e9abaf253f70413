//! TCP and unix sockets, with deadlines for all that is read and written.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{self, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::net::Shutdown;

use crate::ScrapeAddress;

/// What scrapers connect to.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens. A unix socket that nobody listens at any more is replaced.
    pub(crate) fn bind(address: &ScrapeAddress) -> io::Result<Listener> {
        match address {
            ScrapeAddress::Tcp(address) => TcpListener::bind(address).map(Listener::Tcp),
            ScrapeAddress::Unix(path) => {
                remove_stale(path);
                let listener = UnixListener::bind(path)?;
                // Who may reach the directory may read: a scraper is another user's program.
                fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
                Ok(Listener::Unix(listener, path.clone()))
            }
        }
    }

    /// Waits for a connection; with an error once [`Listener::stop`] was called.
    pub(crate) fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(socket, _)| Socket::Tcp(socket)),
            Listener::Unix(listener, _) => listener.accept().map(|(socket, _)| Socket::Unix(socket)),
        }
    }

    /// Ends the wait for connections, once.
    pub(crate) fn stop(&self) {
        // On Linux this ends accept(2), also one that another thread waits in.
        let _ = rustix::net::shutdown(self.as_fd(), Shutdown::Both);
        if let Listener::Unix(_, path) = self {
            // The next one would remove it, too.
            let _ = fs::remove_file(path);
        }
    }

    /// Returns where it listens, with the port that the system chose if the address had none.
    pub(crate) fn address(&self) -> io::Result<ScrapeAddress> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map(ScrapeAddress::Tcp),
            Listener::Unix(_, path) => Ok(ScrapeAddress::Unix(path.clone())),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

fn remove_stale(path: &Path) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|of| of.file_type().is_socket());
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(|error| refused(&error)) {
        // What stays in the way is said by bind(2).
        let _ = fs::remove_file(path);
    }
}

/// A scraper's connection.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(crate) fn try_clone(&self) -> io::Result<Socket> {
        match self {
            Socket::Tcp(socket) => socket.try_clone().map(Socket::Tcp),
            Socket::Unix(socket) => socket.try_clone().map(Socket::Unix),
        }
    }

    /// Ends the connection for reading and writing, also where another thread waits.
    pub(crate) fn cut(&self) {
        let _ = match self {
            Socket::Tcp(socket) => socket.shutdown(net::Shutdown::Both),
            Socket::Unix(socket) => socket.shutdown(net::Shutdown::Both),
        };
    }

    /// Says that nothing more is sent.
    pub(crate) fn finish(&self) {
        let _ = match self {
            Socket::Tcp(socket) => socket.shutdown(net::Shutdown::Write),
            Socket::Unix(socket) => socket.shutdown(net::Shutdown::Write),
        };
    }

    /// Reads what is there, by `until` at the latest. Returns the bytes read; 0: the end.
    pub(crate) fn read_until(&mut self, into: &mut [u8], until: Instant) -> io::Result<usize> {
        let left = left(until)?;
        match self {
            Socket::Tcp(socket) => socket.set_read_timeout(left).and_then(|()| socket.read(into)),
            Socket::Unix(socket) => socket.set_read_timeout(left).and_then(|()| socket.read(into)),
        }
    }

    /// Writes all bytes, by `until` at the latest, however little the other end reads at a time.
    pub(crate) fn write_until(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let left = left(until)?;
            let written = match self {
                Socket::Tcp(socket) => socket.set_write_timeout(left).and_then(|()| socket.write(bytes)),
                Socket::Unix(socket) => socket.set_write_timeout(left).and_then(|()| socket.write(bytes)),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn left(until: Instant) -> io::Result<Option<std::time::Duration>> {
    let left = until.saturating_duration_since(Instant::now());
    // A timeout of zero means none.
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
}
