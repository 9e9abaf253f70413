//! Is a stream's local end: a socket with a program of this host behind it.

use std::any::Any;
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;

/// Says how often, in milliseconds, a reader of a socket that is kept open checks whether its stream was torn down.
const RESET_CHECK_PERIOD_MS: u8 = 200;
/// Says how often a writer of a TCP socket checks that. A TCP socket cannot be shut down for it without its program
/// seeing an end that no one meant.
const WRITE_CHECK_PERIOD: Duration = Duration::from_millis(200);
/// Says how many bytes are read at once of bytes that are dropped.
const DRAINED_BYTES: usize = 64 << 10;
/// Holds the send buffer of a unix socket: two full packets of multifd (1344 + 524288 bytes each).
const SOCKET_BYTES: usize = 1 << 20;

/// What becomes of a local unix socket when its stream is torn down. A TCP socket is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnReset {
    /// The socket is shut down, so that its program learns of the end.
    ShutDown,
    /// The socket stays open, and what its program writes is read and dropped, until the program closes its end or the
    /// caller shuts the socket down.
    KeepOpen,
}

/// The socket that a stream leads to at this host.
#[derive(Clone, Debug)]
pub struct LocalEnd {
    socket: LocalSocket,
}

#[derive(Clone, Debug)]
enum LocalSocket {
    Unix(Arc<UnixStream>, OnReset),
    Tcp(Arc<TcpEnd>),
}

/// A TCP socket, whose program sees of the stream what it would see on a wire.
///
/// The socket lingers for no time from the beginning. So whatever closes it before both directions are done, the end of
/// this process as well, resets the connection; only [`LocalEnd::close`] has it end in peace.
#[derive(Debug)]
struct TcpEnd {
    socket: TcpStream,
    /// Whether the stream was torn down.
    is_torn: AtomicBool,
    /// Whether the program was told the end of what comes to it.
    is_finished: AtomicBool,
    /// What is kept as long as the stream.
    _kept: Box<dyn Any + Send + Sync>,
}

impl From<UnixStream> for LocalEnd {
    /// Makes a local end whose socket is shut down with its stream.
    fn from(socket: UnixStream) -> LocalEnd {
        LocalEnd::unix(socket.into(), OnReset::ShutDown)
    }
}

impl LocalEnd {
    /// Makes a local end of a unix socket.
    pub fn unix(socket: Arc<UnixStream>, on_reset: OnReset) -> LocalEnd {
        LocalEnd { socket: LocalSocket::Unix(socket, on_reset) }
    }

    /// Makes a local end of a TCP socket, which is reset if the stream is torn down, and if it is never joined to one.
    /// `kept` is dropped when the stream is over.
    ///
    /// # Errors
    /// The socket is broken already.
    pub fn tcp(socket: TcpStream, kept: impl Any + Send + Sync) -> io::Result<LocalEnd> {
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(WRITE_CHECK_PERIOD))?;
        SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
        let (is_torn, is_finished) = (AtomicBool::new(false), AtomicBool::new(false));
        let end = TcpEnd { socket, is_torn, is_finished, _kept: Box::new(kept) };
        Ok(LocalEnd { socket: LocalSocket::Tcp(Arc::new(end)) })
    }

    /// Returns whether a broken socket is told to the other end as it is: what was said, and then a reset.
    pub(crate) fn resets(&self) -> bool {
        matches!(self.socket, LocalSocket::Tcp(_))
    }

    /// Returns whether the socket stays open when its stream is torn down.
    pub(crate) fn is_kept_open(&self) -> bool {
        matches!(self.socket, LocalSocket::Unix(_, OnReset::KeepOpen))
    }

    /// Lets writes run further ahead of the other end's reads. The kernel grants what it does (net.core.wmem_max), and
    /// knows best for TCP. A large buffer wakes two threads less often for each packet of multifd.
    pub(crate) fn widen(&self) {
        if let LocalSocket::Unix(socket, _) = &self.socket {
            let _ = SockRef::from(&**socket).set_send_buffer_size(SOCKET_BYTES);
        }
    }

    /// Reads what the socket has; 0 at its end.
    ///
    /// # Errors
    /// The socket broke.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.socket {
            LocalSocket::Unix(socket, _) => { &**socket }.read(buffer),
            LocalSocket::Tcp(end) => {
                let bytes = { &end.socket }.read(buffer)?;
                if bytes == 0 && !buffer.is_empty() && end.was_reset() {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                Ok(bytes)
            }
        }
    }

    /// Waits until the socket has bytes or an end. Returns false if it has neither yet; the caller then checks whether
    /// the stream was torn down. Only a socket that is kept open needs that: another socket is shut down, which ends
    /// the wait.
    ///
    /// # Errors
    /// The socket broke.
    pub(crate) fn wait_for_bytes(&self) -> io::Result<bool> {
        let patience = match self.is_kept_open() {
            true => PollTimeout::from(RESET_CHECK_PERIOD_MS),
            false => PollTimeout::NONE,
        };
        loop {
            match poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], patience) {
                Ok(ready) => return Ok(ready > 0),
                Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads and drops what comes from a socket that is kept open, until its end. The end of the stream must not stop
    /// the socket's program.
    pub(crate) fn drain(&self) {
        if !self.is_kept_open() {
            return;
        }
        let mut buffer = vec![0; DRAINED_BYTES];
        while self.read(&mut buffer).is_ok_and(|n| n > 0) {}
    }

    /// Tells the program that nothing more comes to it, unless the socket is kept open.
    pub(crate) fn finish(&self) {
        match &self.socket {
            LocalSocket::Unix(_, OnReset::KeepOpen) => {}
            LocalSocket::Unix(socket, OnReset::ShutDown) => drop(socket.shutdown(Shutdown::Write)),
            LocalSocket::Tcp(end) => {
                end.is_finished.store(true, Ordering::SeqCst);
                let _ = end.socket.shutdown(Shutdown::Write);
            }
        }
    }

    /// Shuts the socket down, unless it is kept open. This frees a thread that reads or writes the socket. A TCP socket
    /// is reset when the last thread is done with it.
    pub(crate) fn tear_down(&self) {
        match &self.socket {
            LocalSocket::Unix(_, OnReset::KeepOpen) => {}
            LocalSocket::Unix(socket, OnReset::ShutDown) => drop(socket.shutdown(Shutdown::Both)),
            LocalSocket::Tcp(end) => {
                end.is_torn.store(true, Ordering::SeqCst);
                // This frees its reader, and says nothing to its program. Its writer frees itself.
                let _ = end.socket.shutdown(Shutdown::Read);
            }
        }
    }

    /// Returns whether a TCP socket was reset, which its reader may not see: it reads nothing while the stream takes
    /// nothing.
    pub(crate) fn is_broken(&self) -> bool {
        let LocalSocket::Tcp(end) = &self.socket else { return false };
        let mut polled = [PollFd::new(self.as_fd(), PollFlags::empty())];
        let has_error = matches!(poll(&mut polled, PollTimeout::ZERO), Ok(1..))
            && polled[0].revents().is_some_and(|seen| seen.contains(PollFlags::POLLERR));
        has_error || end.was_reset()
    }

    /// Lets the socket end in peace, as both directions are done.
    pub(crate) fn close(&self) {
        if let LocalSocket::Tcp(end) = &self.socket
            && !end.is_torn.load(Ordering::SeqCst)
        {
            let _ = SockRef::from(&end.socket).set_linger(None);
        }
    }
}

impl AsFd for LocalEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            LocalSocket::Unix(socket, _) => socket.as_fd(),
            LocalSocket::Tcp(end) => end.socket.as_fd(),
        }
    }
}

impl TcpEnd {
    /// Returns whether an end of what the socket brings is a reset that another call was told of. A connection that was
    /// reset has no other end any more (`inet_getname` in net/ipv4/af_inet.c), and neither has one that is done.
    fn was_reset(&self) -> bool {
        !self.is_torn.load(Ordering::SeqCst)
            && !self.is_finished.load(Ordering::SeqCst)
            && self.socket.peer_addr().is_err()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Returns a program's socket, and the local end that is joined to it.
    fn joined(kept: impl Any + Send + Sync) -> (TcpStream, LocalEnd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let patience = Duration::from_secs(20);
        let program = TcpStream::connect_timeout(&listener.local_addr().unwrap(), patience).unwrap();
        program.set_read_timeout(Some(patience)).unwrap();
        (program, LocalEnd::tcp(listener.accept().unwrap().0, kept).unwrap())
    }

    fn next(mut program: &TcpStream) -> Result<usize, io::ErrorKind> {
        program.read(&mut [0; 10]).map_err(|error| error.kind())
    }

    #[test]
    fn a_tcp_socket_that_does_not_end_in_peace_is_reset() {
        let (program, end) = joined(());
        let mut writer = TcpStream::from(end.as_fd().try_clone_to_owned().unwrap());
        writer.write_all(b"abc").unwrap();
        drop(writer);
        end.tear_down();
        assert_eq!(end.read(&mut [0]).unwrap(), 0, "its reader is free");
        end.close();
        drop(end);
        assert_eq!(next(&program), Ok(3), "what came before is there");
        assert_eq!(next(&program), Err(io::ErrorKind::ConnectionReset));
    }

    #[test]
    fn a_tcp_socket_whose_directions_are_done_ends_in_peace() {
        let (program, end) = joined(());
        let mut writer = TcpStream::from(end.as_fd().try_clone_to_owned().unwrap());
        writer.write_all(&[7; 200_000]).unwrap();
        drop(writer);
        program.shutdown(Shutdown::Write).unwrap();
        assert_eq!(end.read(&mut [0; 10]).unwrap(), 0);
        assert!(!end.is_broken());
        end.finish();
        assert!(!end.is_broken());
        end.close();
        drop(end);
        let mut all = Vec::new();
        { &program }.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 200_000);
    }

    #[test]
    fn an_end_after_a_reset_is_no_end() {
        let (program, end) = joined(());
        SockRef::from(&program).set_linger(Some(Duration::ZERO)).unwrap();
        drop(program);
        // The reset may wait for a kernel's thread on a busy machine.
        let deadline = Instant::now() + Duration::from_secs(20);
        while !end.is_broken() {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(1));
        }
        let seen = || end.read(&mut [0; 10]).map_err(|error| error.kind());
        assert_eq!([seen(), seen()], [Err(io::ErrorKind::ConnectionReset); 2]);
    }

    #[test]
    fn what_is_kept_goes_with_the_last_user() {
        let kept = Arc::new(());
        let (_program, end) = joined(kept.clone());
        let other = end.clone();
        drop(end);
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(other);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
