//! Carries lines over TLS, for a thread that waits for both directions and for other threads at once.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustls::{ClientConfig, ClientConnection};
use serde::Serialize;
use skein_api::{LINE_BYTES_MAX, LineError, write_line};

use super::errors::LinkError;
use crate::waker::Waker;

/// Bounds what is read before what was read is looked at.
const READ_BYTES: usize = 64 << 10;
/// Bounds what waits to be sent while more is read: whoever does not read its replies is not read.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// A connected socket.
pub(crate) trait Socket: Read + Write + AsFd + Send {
    /// Makes reads and writes return at once.
    fn make_nonblocking(&self) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn make_nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

impl Socket for UnixStream {
    fn make_nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

/// A TLS connection that carries lines.
pub(crate) struct Wire {
    socket: Box<dyn Socket>,
    tls: ClientConnection,
    /// What was read and is not a whole line yet, or was not taken.
    input: Vec<u8>,
    /// How much of the input is known to have no end of a line.
    scanned: usize,
    /// What is to be sent, from `sent` on.
    output: Vec<u8>,
    sent: usize,
    /// When something was sent last, or there was nothing to send.
    progress: Instant,
}

impl Wire {
    /// # Errors
    ///
    /// TLS cannot be begun, or the socket has an option less than others.
    pub(crate) fn new(socket: Box<dyn Socket>, config: Arc<ClientConfig>) -> Result<Wire, LinkError> {
        socket.make_nonblocking().map_err(LinkError::Io)?;
        let tls = ClientConnection::new(config, skein_identity::controller_name()).map_err(LinkError::Tls)?;
        let (input, output) = (Vec::new(), Vec::new());
        Ok(Wire { socket, tls, input, scanned: 0, output, sent: 0, progress: Instant::now() })
    }

    /// Shakes hands. Returns the controller's name. `is_over` cuts the wait short.
    ///
    /// # Errors
    ///
    /// The other end is no controller of the cluster, or does not answer within `patience`.
    pub(crate) fn shake_hands(
        &mut self,
        patience: Duration,
        waker: &Waker,
        is_over: &dyn Fn() -> bool,
    ) -> Result<String, LinkError> {
        let end = Instant::now() + patience;
        while self.tls.is_handshaking() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || is_over() {
                return Err(LinkError::Silent(patience));
            }
            self.step(left, waker)?;
        }
        skein_identity::check_controller(&self.tls).map_err(LinkError::Peer)
    }

    /// Adds a line to what is to be sent.
    ///
    /// # Errors
    ///
    /// The line is longer than the other end reads. Nothing is added then.
    pub(crate) fn queue(&mut self, line: &impl Serialize) -> Result<(), LinkError> {
        let before = self.output.len();
        if self.unsent() == 0 {
            self.progress = Instant::now();
        }
        write_line(&mut self.output, line).map_err(LinkError::Io)?;
        if (self.output.len() - before) as u64 > LINE_BYTES_MAX {
            self.output.truncate(before);
            return Err(LinkError::Line(LineError::TooLong));
        }
        Ok(())
    }

    /// Returns how many bytes are to be sent.
    pub(crate) fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Returns for how long there is something to send and nothing of it was taken.
    pub(crate) fn stalled_for(&self) -> Duration {
        if self.unsent() == 0 && !self.tls.wants_write() { Duration::ZERO } else { self.progress.elapsed() }
    }

    /// Waits for `patience`, until something can be sent or is there to be read, or the waker is woken. Then sends and
    /// reads.
    ///
    /// # Errors
    ///
    /// The connection is over.
    pub(crate) fn step(&mut self, patience: Duration, waker: &Waker) -> Result<(), LinkError> {
        let reads = self.unsent() <= UNSENT_BYTES_MAX;
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::POLLIN, reads);
        wanted.set(PollFlags::POLLOUT, self.tls.wants_write() || self.unsent() > 0);
        let timeout = PollTimeout::try_from(patience.as_millis() as i64 + 1).unwrap_or(PollTimeout::MAX);
        let socket = self.socket.as_fd();
        let mut polled = [PollFd::new(socket, wanted), PollFd::new(waker.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(LinkError::Io(error.into())),
        }
        waker.clear();
        self.send()?;
        if reads {
            self.receive()?;
            // An answer of TLS itself.
            self.send()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), LinkError> {
        loop {
            if !self.tls.is_handshaking() && self.unsent() > 0 {
                self.sent += self.tls.writer().write(&self.output[self.sent..]).map_err(LinkError::Io)?;
                if self.unsent() == 0 {
                    self.output.clear();
                    self.sent = 0;
                }
            }
            if !self.tls.wants_write() {
                return Ok(());
            }
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(_) => self.progress = Instant::now(),
                Err(error) if is_passing(&error) => return Ok(()),
                Err(error) => return Err(LinkError::Io(error)),
            }
        }
    }

    fn receive(&mut self) -> Result<(), LinkError> {
        let before = self.input.len();
        while self.input.len() - before < READ_BYTES {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(_) => {}
                Err(error) if is_passing(&error) => break,
                Err(error) => return Err(LinkError::Io(error)),
            }
            let processed = self.tls.process_new_packets();
            if let Err(error) = processed {
                // The other end learns why, if it reads.
                let _ = self.tls.write_tls(&mut self.socket);
                return Err(LinkError::Tls(error));
            }
            match self.tls.reader().read_to_end(&mut self.input) {
                Err(error) if !is_passing(&error) => return Err(LinkError::Io(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the next line that was read; `None`: there is no whole one yet.
    ///
    /// # Errors
    ///
    /// A line is too long.
    pub(crate) fn next_line(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        let Some(end) = self.input[self.scanned..].iter().position(|byte| *byte == b'\n') else {
            self.scanned = self.input.len();
            if self.input.len() as u64 > LINE_BYTES_MAX {
                return Err(LinkError::Line(LineError::TooLong));
            }
            return Ok(None);
        };
        let rest = self.input.split_off(self.scanned + end + 1);
        self.scanned = 0;
        Ok(Some(std::mem::replace(&mut self.input, rest)))
    }
}

/// Returns whether an error means that nothing is there now.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
