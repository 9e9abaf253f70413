//! Is the two halves of a connection over a socket, each for a thread of its own, and the connection's end.

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

use crate::link::{BufferSource, LinkEnd, Message, Position, Reader, Shutdown, Writer};
use crate::pieces::{Patience, flags, send_pieces};
use crate::tls_record::{Seal, Unseal, cut_off};

/// Says how long a writer waits for room before it looks whether its connection was given up.
pub(super) const WRITE_WAIT: Duration = Duration::from_millis(250);

setsockopt_impl!(ReceiveLowWater, libc::SOL_SOCKET, libc::SO_RCVLOWAT, u32, sockopt::SetStruct<u32>);

/// The option by which a reader is woken only when so many bytes are there (socket(7)).
#[derive(Clone, Copy)]
struct ReceiveLowWater;

/// A socket that the halves of its connection share, and what ends the connection.
#[derive(Debug)]
pub(super) struct SharedSocket {
    pub(super) socket: TcpStream,
    aborted: AtomicBool,
    /// Whether this end ended the connection in order.
    closed: AtomicBool,
}

impl From<TcpStream> for SharedSocket {
    fn from(socket: TcpStream) -> SharedSocket {
        SharedSocket { socket, aborted: AtomicBool::new(false), closed: AtomicBool::new(false) }
    }
}

impl SharedSocket {
    fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// Returns what an error of a read or a write says of the connection.
    fn end(&self, error: io::Error) -> LinkEnd {
        match error.kind() {
            _ if self.is_aborted() => LinkEnd::GivenUp,
            io::ErrorKind::UnexpectedEof => LinkEnd::Closed,
            // The reader of an end that ends the connection itself may be within a message.
            io::ErrorKind::ConnectionAborted if self.closed.load(Ordering::SeqCst) => LinkEnd::Closed,
            // The kernel ends a connection so for a process that was killed while it sent.
            io::ErrorKind::ConnectionAborted => LinkEnd::Reset,
            // Which of the two halves learns of a reset is chance. A half that writes after that finds a broken pipe.
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => LinkEnd::Reset,
            _ => LinkEnd::Failed(error),
        }
    }

    /// Returns whether to write on after a write, which may have failed. False: the socket is full.
    fn goes_on(&self, error: Option<nix::Error>, patience: Patience) -> Result<bool, LinkEnd> {
        match error {
            None | Some(nix::Error::EINTR) => Ok(true),
            Some(nix::Error::EAGAIN) if patience == Patience::Try => Ok(false),
            // There is no room for a while. Whether to wait on is decided by what watches the path.
            Some(nix::Error::EAGAIN) if !self.is_aborted() => Ok(true),
            Some(error) => Err(self.end(error.into())),
        }
    }
}

/// Ends a connection over a socket.
pub(super) struct SocketShutdown(pub(super) Arc<SharedSocket>);

impl SocketShutdown {
    fn shut(&self, how: std::net::Shutdown) {
        if !self.0.is_aborted() {
            // The call fails only if the connection is gone already.
            let _ = self.0.socket.shutdown(how);
        }
    }
}

impl Shutdown for SocketShutdown {
    fn finish(&self) {
        self.shut(std::net::Shutdown::Write);
    }

    fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        self.shut(std::net::Shutdown::Both);
    }

    /// TCP sends a reset once. So the reset does not reach a peer behind a path that is cut, even when the path is
    /// back.
    fn abort(&self) {
        self.0.aborted.store(true, Ordering::SeqCst);
        let _ = SockRef::from(&self.0.socket).set_linger(Some(Duration::ZERO));
        // Wakes the reader without telling the peer; the writer looks at the flag after `WRITE_WAIT` at the latest. The
        // reset goes out when both halves have let go of the socket.
        let _ = self.0.socket.shutdown(std::net::Shutdown::Read);
    }
}

/// The bytes that arrive on the socket. Waking up costs more than reading, so a read waits until all that is sure to
/// come is there.
pub(super) struct SocketBuffer {
    shared: Arc<SharedSocket>,
    low_water: u32,
    /// Whether the last read took all that was there.
    drained: bool,
}

impl SocketBuffer {
    pub(super) fn new(shared: Arc<SharedSocket>) -> SocketBuffer {
        SocketBuffer { shared, low_water: 1, drained: false }
    }

    /// Reads at least a byte, unless the connection ended. `sure` bytes are certain to come.
    fn read(&mut self, buffer: &mut [u8], sure: usize) -> io::Result<usize> {
        loop {
            if self.drained {
                self.wait(sure)?;
            }
            match recv(self.shared.socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
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
                0 if done > 0 => return Err(cut_off()),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Sleeps until so many bytes are there, or until the end.
    fn wait(&mut self, bytes: usize) -> io::Result<()> {
        // The kernel takes no more than half of what the socket may hold, and wakes the reader when that is full.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let socket = &self.shared.socket;
        if self.low_water != bytes {
            ReceiveLowWater.set(socket, &bytes)?;
            self.low_water = bytes;
        }
        match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns what an error is of a read that has to find the rest of a message.
fn within_message(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { cut_off() } else { error }
}

/// The receiving half of a connection without TLS.
pub(super) struct PlainReader(pub(super) SocketBuffer);

impl PlainReader {
    fn read_exact(&mut self, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(out)
    }
}

impl Reader for PlainReader {
    fn read_head(&mut self, head: &mut [u8]) -> Result<Position, LinkEnd> {
        self.read_exact(head).map(|()| Position::Next).map_err(|error| self.0.shared.end(error))
    }

    fn read_body(&mut self, bytes: usize, buffers: &dyn BufferSource) -> Result<Bytes, LinkEnd> {
        buffers.filled(bytes, &mut |buffer| {
            self.read_exact(buffer).map_err(|error| self.0.shared.end(within_message(error)))
        })
    }
}

/// The receiving half of a connection under TLS.
pub(super) struct TlsReader {
    pub(super) incoming: SocketBuffer,
    pub(super) unseal: Unseal,
}

impl TlsReader {
    fn read_exact(&mut self, out: &mut [u8]) -> io::Result<()> {
        let TlsReader { incoming, unseal } = self;
        unseal.read_exact(out, |buffer, sure| incoming.read(buffer, sure))
    }
}

impl Reader for TlsReader {
    fn read_head(&mut self, head: &mut [u8]) -> Result<Position, LinkEnd> {
        self.read_exact(head).map(|()| Position::Next).map_err(|error| self.incoming.shared.end(error))
    }

    fn read_body(&mut self, bytes: usize, buffers: &dyn BufferSource) -> Result<Bytes, LinkEnd> {
        buffers.filled(bytes, &mut |buffer| {
            self.read_exact(buffer).map_err(|error| self.incoming.shared.end(within_message(error)))
        })
    }
}

/// The sending half of a connection without TLS.
pub(super) struct PlainWriter {
    shared: Arc<SharedSocket>,
    /// What was taken on and the socket has not taken yet.
    unsent: VecDeque<Bytes>,
}

impl PlainWriter {
    pub(super) fn new(shared: Arc<SharedSocket>) -> PlainWriter {
        PlainWriter { shared, unsent: VecDeque::new() }
    }
}

impl Writer for PlainWriter {
    fn push(&mut self, messages: &mut Vec<Message>) -> Result<(), LinkEnd> {
        debug_assert!(self.unsent.is_empty());
        self.unsent.extend(messages.drain(..).flat_map(Message::into_parts));
        Ok(())
    }

    fn flush(&mut self, patience: Patience) -> Result<bool, LinkEnd> {
        while !self.unsent.is_empty() {
            let sent = send_pieces(&self.shared.socket, &mut self.unsent, patience);
            if !self.shared.goes_on(sent.err(), patience)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The sending half of a connection under TLS.
pub(super) struct TlsWriter {
    shared: Arc<SharedSocket>,
    seal: Seal,
    records: Vec<u8>,
    /// The part of the records that the socket has not taken yet.
    unsent: Range<usize>,
}

impl TlsWriter {
    pub(super) fn new(shared: Arc<SharedSocket>, seal: Seal) -> TlsWriter {
        TlsWriter { shared, seal, records: Vec::new(), unsent: 0..0 }
    }
}

impl Writer for TlsWriter {
    fn push(&mut self, messages: &mut Vec<Message>) -> Result<(), LinkEnd> {
        debug_assert!(self.unsent.is_empty());
        let parts = messages.iter().flat_map(|message| std::iter::once(&message.head).chain(&message.body));
        let parts: Vec<&[u8]> = parts.filter(|part| !part.is_empty()).map(|part| &part[..]).collect();
        self.unsent = 0..self.seal.seal(&parts, &mut self.records).map_err(LinkEnd::Failed)?.len();
        messages.clear();
        Ok(())
    }

    fn flush(&mut self, patience: Patience) -> Result<bool, LinkEnd> {
        while !self.unsent.is_empty() {
            let records = &self.records[self.unsent.clone()];
            let sent = send(self.shared.socket.as_raw_fd(), records, flags(patience));
            self.unsent.start += sent.unwrap_or(0);
            if !self.shared.goes_on(sent.err(), patience)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn key_is_used_up(&self) -> bool {
        self.seal.is_worn()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::tls_record::pairs;

    const HEAD_BYTES: usize = 4;

    struct OwnBuffers;

    impl BufferSource for OwnBuffers {
        fn filled(
            &self,
            bytes: usize,
            fill: &mut dyn FnMut(&mut [u8]) -> Result<(), LinkEnd>,
        ) -> Result<Bytes, LinkEnd> {
            let mut buffer = vec![0; bytes];
            fill(&mut buffer)?;
            Ok(buffer.into())
        }
    }

    /// Returns the sockets of both ends of a connection.
    fn sockets() -> (TcpStream, Arc<SharedSocket>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect_timeout(&listener.local_addr().unwrap(), Duration::from_secs(20)).unwrap();
        (peer, Arc::new(listener.accept().unwrap().0.into()))
    }

    /// Returns how many messages of four bytes and `body` are read before the end, and the end.
    fn read_all(reader: &mut dyn Reader, body: usize) -> (usize, LinkEnd) {
        let mut count = 0;
        loop {
            let read = reader.read_head(&mut [0; HEAD_BYTES]).and_then(|_| reader.read_body(body, &OwnBuffers));
            match read {
                Ok(_) => count += 1,
                Err(end) => return (count, end),
            }
        }
    }

    /// A peer that ends within a message, or within a record, has not ended in order, whatever TCP says.
    #[test]
    fn an_end_within_a_message_is_no_end_in_order() {
        let body = 5000;
        let message = vec![7; HEAD_BYTES + body];
        let ends = |wire: &[u8], whole: usize, reader: &dyn Fn(SocketBuffer) -> Box<dyn Reader>| {
            for (cut, is_closed) in [(0, true), (1, false), (HEAD_BYTES, false), (whole - 1, false), (whole, true)] {
                let (mut peer, shared) = sockets();
                peer.write_all(&wire[..cut]).unwrap();
                drop(peer);
                let (count, end) = read_all(&mut *reader(SocketBuffer::new(shared)), body);
                assert_eq!((count, matches!(end, LinkEnd::Closed)), (cut / whole, is_closed), "{cut}: {end:?}");
                assert!(is_closed || matches!(end, LinkEnd::Reset), "{cut}: {end:?}");
            }
        };
        ends(&message, message.len(), &|incoming| Box::new(PlainReader(incoming)));
        for nth in [0, 1] {
            let mut wire = Vec::new();
            let (head, rest) = message.split_at(HEAD_BYTES);
            let wire = pairs().into_iter().nth(nth).unwrap().0.seal(&[head, rest], &mut wire).unwrap().to_vec();
            let reader = |incoming| -> Box<dyn Reader> {
                let [aes, aegis] = pairs();
                Box::new(TlsReader { incoming, unseal: if nth == 0 { aes.1 } else { aegis.1 } })
            };
            ends(&wire, wire.len(), &reader);
            // The head's record is whole, and the body's is missing.
            let (mut peer, shared) = sockets();
            let head_record = 5 + usize::from(u16::from_be_bytes([wire[3], wire[4]]));
            peer.write_all(&wire[..head_record]).unwrap();
            drop(peer);
            let (count, end) = read_all(&mut *reader(SocketBuffer::new(shared)), body);
            assert!(matches!((count, &end), (0, LinkEnd::Reset)), "{count}: {end:?}");
        }
    }

    #[test]
    fn an_end_that_closes_within_a_message_finds_its_own_end() {
        let (mut peer, shared) = sockets();
        peer.write_all(&[7; HEAD_BYTES + 10]).unwrap();
        let mut reader = PlainReader(SocketBuffer::new(shared.clone()));
        reader.read_head(&mut [0; HEAD_BYTES]).unwrap();
        SocketShutdown(shared).close();
        assert!(matches!(reader.read_body(100, &OwnBuffers), Err(LinkEnd::Closed)));
    }
}
