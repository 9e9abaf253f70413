//! Reads a local socket: with a buffer where things are small, without a buffer where they are large.

use std::io;
use std::os::fd::AsFd;

use bytes::Bytes;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::local_end::LocalEnd;
use crate::pool::Pool;

/// The bytes from the local socket.
pub(crate) struct SocketReader<'a> {
    local_end: &'a LocalEnd,
    /// Returns whether the stream is of no more use.
    is_over: &'a dyn Fn() -> bool,
    buffer: Vec<u8>,
    filled: std::ops::Range<usize>,
    pub(crate) bytes: u64,
}

/// The reason why there is nothing more to read.
#[derive(Debug)]
pub(crate) enum ReadEnded {
    /// The local end has said all.
    Eof,
    /// The stream was torn down.
    Over,
    /// The socket broke.
    Broke(io::Error),
}

impl<'a> SocketReader<'a> {
    /// Makes a reader whose buffer has `buffer` bytes.
    pub(crate) fn new(local_end: &'a LocalEnd, is_over: &'a dyn Fn() -> bool, buffer: usize) -> SocketReader<'a> {
        SocketReader { local_end, is_over, buffer: vec![0; buffer], filled: 0..0, bytes: 0 }
    }

    /// Returns the buffered bytes.
    pub(crate) fn buffered(&self) -> &[u8] {
        &self.buffer[self.filled.clone()]
    }

    /// Drops the first buffered bytes.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.filled.start += bytes;
    }

    /// Takes the first buffered bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<u8> {
        let taken = self.buffered()[..bytes].to_vec();
        self.consume(bytes);
        taken
    }

    /// Returns whether reading would have to wait.
    pub(crate) fn is_dry(&self) -> bool {
        !matches!(poll(&mut [PollFd::new(self.local_end.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO), Ok(1..))
    }

    /// Buffers at least `least` bytes, which have to fit into the buffer.
    pub(crate) fn fill(&mut self, least: usize) -> Result<(), ReadEnded> {
        debug_assert!(least <= self.buffer.len());
        while self.filled.len() < least {
            if self.filled.start > 0 {
                self.buffer.copy_within(self.filled.clone(), 0);
                self.filled = 0..self.filled.len();
            }
            let end = self.filled.end;
            let mut buffer = std::mem::take(&mut self.buffer);
            let read = self.read(&mut buffer[end..]);
            self.buffer = buffer;
            self.filled.end += read?;
        }
        Ok(())
    }

    /// Fills `out`, first with what is buffered, then from the socket. What came before an end is buffered.
    pub(crate) fn read_exact(&mut self, out: &mut [u8]) -> Result<(), ReadEnded> {
        let mut done = self.filled.len().min(out.len());
        out[..done].copy_from_slice(&self.buffered()[..done]);
        self.consume(done);
        while done < out.len() {
            match self.read(&mut out[done..]) {
                Ok(bytes) => done += bytes,
                Err(ended) => {
                    self.buffer.resize(self.buffer.len().max(done), 0);
                    self.buffer[..done].copy_from_slice(&out[..done]);
                    self.filled = 0..done;
                    return Err(ended);
                }
            }
        }
        Ok(())
    }

    /// Reads so many bytes, as [`Self::read_exact`] does, into a buffer of the pool.
    pub(crate) fn read_bytes(&mut self, pool: &Pool, bytes: usize) -> Result<Bytes, ReadEnded> {
        let mut buffer = pool.take(bytes);
        self.read_exact(buffer.as_mut())?;
        Ok(buffer.freeze())
    }

    /// Reads so many bytes of a batch that a rail may write.
    pub(crate) fn read_for_rails(&mut self, pool: &Pool, bytes: usize) -> Result<Bytes, ReadEnded> {
        let mut buffer = pool.take_for_rails(bytes);
        self.read_exact(buffer.as_mut())?;
        Ok(buffer.freeze())
    }

    /// Reads at least a byte of what is buffered, or of what the socket has.
    pub(crate) fn read_some(&mut self, out: &mut [u8]) -> Result<usize, ReadEnded> {
        if self.filled.is_empty() {
            return self.read(out);
        }
        let bytes = self.filled.len().min(out.len());
        out[..bytes].copy_from_slice(&self.buffered()[..bytes]);
        self.consume(bytes);
        Ok(bytes)
    }

    /// Reads at least a byte.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, ReadEnded> {
        loop {
            self.wait()?;
            match self.local_end.read(out) {
                Ok(0) => return Err(ReadEnded::Eof),
                Ok(bytes) => {
                    self.bytes += bytes as u64;
                    return Ok(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ReadEnded::Broke(error)),
            }
        }
    }

    fn wait(&self) -> Result<(), ReadEnded> {
        // A socket that is not kept open is shut down to free its reader.
        if !self.local_end.is_kept_open() {
            return Ok(());
        }
        loop {
            match self.local_end.wait_for_bytes() {
                Ok(true) => return Ok(()),
                Ok(false) if (self.is_over)() => return Err(ReadEnded::Over),
                Ok(false) => {}
                Err(error) => return Err(ReadEnded::Broke(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn nothing_that_came_before_an_end_is_lost() {
        let sent: Vec<u8> = (0..100_000u32).map(|at| (at * 7 % 251) as u8).collect();
        // The ends are before the first byte of the last part, within that part, and in what was buffered with the part
        // before.
        for end in [40_000, 77_777, 10_010] {
            let (mut qemu, socket) = UnixStream::pair().unwrap();
            let local_end = LocalEnd::from(socket);
            let written = sent[..end].to_vec();
            let writing = std::thread::spawn(move || qemu.write_all(&written).unwrap());
            let mut reader = SocketReader::new(&local_end, &|| false, 64);
            let mut read = Vec::new();
            reader.fill(10).unwrap();
            read.extend(reader.take(3));
            let mut part = [0; 9_997];
            reader.read_exact(&mut part).unwrap();
            read.extend(part);
            let torn = loop {
                match reader.read_bytes(&Pool::default(), 30_000) {
                    Ok(bytes) => read.extend(bytes),
                    Err(ended) => break ended,
                }
            };
            assert!(matches!(torn, ReadEnded::Eof));
            read.extend(reader.take(reader.buffered().len()));
            assert!(read == sent[..end], "{end}: {} bytes", read.len());
            assert_eq!(reader.bytes, end as u64);
            writing.join().unwrap();
        }
    }
}
