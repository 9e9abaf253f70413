//! The two halves of a connection, each for a thread of its own, and its end.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, SetSockOpt, recv, send, sockopt};
use nix::{libc, setsockopt_impl};
use socket2::SockRef;

use crate::pieces::{Patience, flags, send_pieces};
use crate::tls_record::{Seal, Unseal};

/// How long a writer waits for room before it looks whether its connection was given up.
pub(crate) const WRITE_WAIT: Duration = Duration::from_millis(250);

setsockopt_impl!(ReceiveLowWater, libc::SOL_SOCKET, libc::SO_RCVLOWAT, u32, sockopt::SetStruct<u32>);

/// A reader is woken when so many bytes are there (socket(7)).
#[derive(Clone, Copy)]
struct ReceiveLowWater;

/// The receiving half.
pub struct Reader {
    incoming: SocketBuffer,
    aborted: Arc<AtomicBool>,
    tls: Option<Box<Unseal>>,
}

impl Reader {
    pub(crate) fn new(socket: Arc<TcpStream>, aborted: Arc<AtomicBool>, tls: Option<Unseal>) -> Reader {
        let incoming = SocketBuffer { socket, low_water: 1, drained: false };
        Reader { incoming, aborted, tls: tls.map(Box::new) }
    }

    /// Fills `out` from the connection. [`io::ErrorKind::UnexpectedEof`]: the peer ended it in order;
    /// [`io::ErrorKind::ConnectionAborted`]: this end gave it up.
    pub fn read_exact(&mut self, out: &mut [u8]) -> io::Result<()> {
        let incoming = &mut self.incoming;
        let filled = match &mut self.tls {
            Some(tls) => tls.read_exact(out, |buffer, sure| incoming.read(buffer, sure)),
            None => incoming.read_exact(out),
        };
        filled.map_err(|error| match self.aborted.load(Ordering::SeqCst) {
            true => io::ErrorKind::ConnectionAborted.into(),
            false => error,
        })
    }
}

/// What arrives on the socket. Waking up costs more than reading, so a read waits until all that is sure to come
/// is there.
struct SocketBuffer {
    socket: Arc<TcpStream>,
    low_water: u32,
    /// The last read took all that was there.
    drained: bool,
}

impl SocketBuffer {
    /// Reads at least a byte, but for the end, of which `sure` are certain to come.
    fn read(&mut self, buffer: &mut [u8], sure: usize) -> io::Result<usize> {
        loop {
            if self.drained {
                self.wait(sure)?;
            }
            match recv(self.socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(n) => {
                    self.drained = n < buffer.len();
                    return Ok(n);
                }
                Err(nix::Error::EAGAIN) => self.drained = true,
                Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn read_exact(&mut self, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            let rest = &mut out[done..];
            let sure = rest.len();
            match self.read(rest, sure)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Sleeps until so many bytes are there, or the end.
    fn wait(&mut self, bytes: usize) -> io::Result<()> {
        // The kernel takes no more than half of what the socket may hold, and wakes when that is full.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if self.low_water != bytes {
            ReceiveLowWater.set(&self.socket, &bytes)?;
            self.low_water = bytes;
        }
        match poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The sending half.
pub struct Writer {
    socket: Arc<TcpStream>,
    aborted: Arc<AtomicBool>,
    seal: Option<Seal>,
    records: Vec<u8>,
    /// What was pushed and not yet taken by the socket: of `records` under TLS, else parts.
    unsent_records: Range<usize>,
    unsent_parts: VecDeque<Bytes>,
}

impl Writer {
    pub(crate) fn new(socket: Arc<TcpStream>, aborted: Arc<AtomicBool>, seal: Option<Seal>) -> Writer {
        let (records, unsent_records, unsent_parts) = Default::default();
        Writer { socket, aborted, seal, records, unsent_records, unsent_parts }
    }

    /// Takes the parts on, one after the other, to be sent by [`Self::flush`]. What was taken on before is sent.
    pub fn push(&mut self, parts: impl IntoIterator<Item = Bytes>) -> io::Result<()> {
        debug_assert!(self.unsent_records.is_empty() && self.unsent_parts.is_empty());
        self.unsent_parts.extend(parts.into_iter().filter(|part| !part.is_empty()));
        if let Some(seal) = &mut self.seal {
            let parts: Vec<&[u8]> = self.unsent_parts.iter().map(|part| &part[..]).collect();
            self.unsent_records = 0..seal.seal(&parts, &mut self.records)?.len();
            self.unsent_parts.clear();
        }
        Ok(())
    }

    /// Sends what was taken on: all of it, or with [`Patience::Try`] as much as the socket takes at once. Returns
    /// whether that was all.
    ///
    /// # Errors
    /// Those of the socket. With [`Patience::Wait`] also once the connection was given up.
    pub fn flush(&mut self, patience: Patience) -> io::Result<bool> {
        loop {
            let sent = if !self.unsent_records.is_empty() {
                let records = &self.records[self.unsent_records.clone()];
                let sent = send(self.socket.as_raw_fd(), records, flags(patience));
                sent.inspect(|bytes| self.unsent_records.start += bytes)
            } else if !self.unsent_parts.is_empty() {
                send_pieces(&self.socket, &mut self.unsent_parts, patience)
            } else {
                return Ok(true);
            };
            match sent {
                Ok(_) | Err(nix::Error::EINTR) => {}
                // No room for a while; whether to wait on is for whoever watches the path to say.
                Err(nix::Error::EAGAIN) if patience == Patience::Try => return Ok(false),
                Err(nix::Error::EAGAIN) if !self.aborted.load(Ordering::SeqCst) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The connection's key has protected enough: close it and dial another.
    pub fn key_is_used_up(&self) -> bool {
        self.seal.as_ref().is_some_and(Seal::is_worn)
    }

    /// Under TLS, [`Self::is_worn`] after so many more records: for tests, as a cipher's own limit is 2^23 records.
    #[doc(hidden)]
    pub fn retire_after(&mut self, records: u64) {
        if let Some(seal) = &mut self.seal {
            seal.retire_after(records);
        }
    }
}

/// Ends a connection from any thread: both halves return with an error.
#[derive(Clone, Debug)]
pub struct Shutdown {
    socket: Arc<TcpStream>,
    aborted: Arc<AtomicBool>,
}

impl Shutdown {
    pub(crate) fn new(socket: Arc<TcpStream>, aborted: Arc<AtomicBool>) -> Shutdown {
        Shutdown { socket, aborted }
    }

    /// Ends it in order: what was written is still delivered, then the peer sees the end. Not after [`Self::abort`].
    pub fn close(&self) {
        if !self.aborted.load(Ordering::SeqCst) {
            // Fails only if the connection is gone already.
            let _ = self.socket.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Gives it up: the peer sees a reset, if anything, and can tell it from the end of this process.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        let _ = SockRef::from(self.socket.as_ref()).set_linger(Some(Duration::ZERO));
        // Wakes the reader without telling the peer; the writer looks at the flag after `WRITE_WAIT` at the
        // latest. The reset goes out when both have let go of the socket.
        let _ = self.socket.shutdown(std::net::Shutdown::Read);
    }
}
