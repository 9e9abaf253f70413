//! The two threads of a stream: from its local socket into the session, and back.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};
use skein_core::limits::CHUNK_BYTES_MAX;
use skein_core::{Received, StreamId};
use skein_link::send_pieces;
use tracing::{debug, info};

use crate::ResetCode;
use crate::live::{Live, Urge};

/// A shorter read is copied into memory of its size, so that the pooled buffer can be read into again.
const SHORT_READ: usize = CHUNK_BYTES_MAX / 4;
/// Bytes written to the local socket between two reports of progress.
const EGRESS_BYTES: usize = 1 << 20;
/// Who waits for room asks again after this, whatever happens.
const ROOM_WAIT: Duration = Duration::from_secs(1);
/// Who reads a held socket looks so many milliseconds later whether its stream was torn down.
const HELD_WAIT: u8 = 200;
/// What a local end said before it broke may take this long to reach the peer.
const LAST_WORDS_TIME: Duration = Duration::from_secs(5);

/// Reads the local socket into the session until its end. Returns the number of bytes.
pub(crate) fn ingest(live: &Live, id: StreamId, egress: &Egress, writable: &Condvar) -> u64 {
    let socket = &*egress.socket;
    let mut bytes = 0;
    let mut buffer = live.pool.take(CHUNK_BYTES_MAX);
    loop {
        // First bytes, then room for them: who asks for room and has no use for it holds up others.
        match wait_for_bytes(socket, egress.held) {
            Ok(true) => {}
            Ok(false) if live.lock().core.is_reset(id) => break,
            Ok(false) => continue,
            Err(error) => {
                broken(live, id, &error);
                return bytes;
            }
        }
        let Some(room) = wait_for_room(live, id, writable) else { break };
        let read = { socket }.read(&mut buffer.as_mut()[..room]);
        let data = match read {
            Ok(0) => {
                live.with(|state, _| state.core.finish(id));
                return bytes;
            }
            Ok(n) if n < SHORT_READ => Bytes::copy_from_slice(&buffer.as_ref()[..n]),
            Ok(n) => {
                let mut full = std::mem::replace(&mut buffer, live.pool.take(CHUNK_BYTES_MAX));
                full.truncate(n);
                full.freeze()
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                broken(live, id, &error);
                return bytes;
            }
        };
        bytes += data.len() as u64;
        hand_over(live, id, data);
    }
    // Torn down. Whoever writes to a held socket must not be stopped by that.
    while egress.held && { socket }.read(buffer.as_mut()).is_ok_and(|n| n > 0) {}
    bytes
}

/// Hands bytes to the session, and sends them if a connection waits for some.
fn hand_over(live: &Live, id: StreamId, data: Bytes) {
    let mut free = None;
    {
        let mut state = live.lock();
        state.core.send(live.now(), id, data);
        live.settle(&mut state, Urge::Connection(&mut free));
    }
    if let Some((connection, outlet)) = free {
        outlet.send_now(live, connection);
    }
}

/// False: not yet. Nobody shuts a held socket down to free who waits for it.
fn wait_for_bytes(socket: &UnixStream, held: bool) -> io::Result<bool> {
    let patience = if held { PollTimeout::from(HELD_WAIT) } else { PollTimeout::NONE };
    loop {
        match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], patience) {
            Ok(ready) => return Ok(ready > 0),
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until the session takes more. `None`: never again.
fn wait_for_room(live: &Live, id: StreamId, writable: &Condvar) -> Option<usize> {
    let mut state = live.lock();
    loop {
        if state.core.is_reset(id) {
            return None;
        }
        let room = state.core.send_capacity(live.now(), id);
        live.settle(&mut state, Urge::Threads);
        if room > 0 {
            return Some(room);
        }
        writable.wait_for(&mut state, ROOM_WAIT);
    }
}

/// Where a stream's bytes leave: its local socket. Whoever receives what completes them writes them there and then,
/// while they are in the core's cache; the stream's own thread writes what the socket does not take at once.
pub(crate) struct Egress {
    socket: Arc<UnixStream>,
    /// The local end is not told that the stream was torn down: what it writes then is read and dropped.
    held: bool,
    leaving: Mutex<Leaving>,
    pub(crate) wake: Condvar,
}

/// What was received and is not yet written.
#[derive(Default)]
struct Leaving {
    pieces: VecDeque<Bytes>,
    /// Written, and not yet reported.
    written: u64,
    /// Written, since the stream began.
    total: u64,
    /// What comes after the pieces: nothing more.
    end: Option<Received>,
}

impl Egress {
    pub(crate) fn new(socket: Arc<UnixStream>, held: bool) -> Egress {
        Egress { socket, held, leaving: Mutex::default(), wake: Condvar::new() }
    }

    /// Frees an ingest that reads or an egress that writes.
    pub(crate) fn shut_down(&self) {
        self.shut(Shutdown::Both);
    }

    fn shut(&self, how: Shutdown) {
        if !self.held {
            let _ = self.socket.shutdown(how);
        }
    }
}

/// Writes what has arrived on a stream, as much as its socket takes without waiting.
pub(crate) fn deliver_now(live: &Live, id: StreamId, egress: &Egress) {
    let done = match egress.leaving.try_lock() {
        Some(mut leaving) => matches!(deliver(live, id, &egress.socket, &mut leaving, false), Ok(true)),
        None => false,
    };
    if !done {
        live.lock().urge_egress(id);
    }
}

/// Writes what has arrived. False: the socket takes no more, or the end has come.
fn deliver(live: &Live, id: StreamId, socket: &UnixStream, leaving: &mut Leaving, wait: bool) -> io::Result<bool> {
    loop {
        if !write(socket, leaving, wait)? {
            return Ok(false);
        }
        let mut state = live.lock();
        state.core.consumed(id, std::mem::take(&mut leaving.written));
        let mut gathered = 0;
        while gathered < EGRESS_BYTES && leaving.end.is_none() {
            match state.core.receive(id) {
                Received::Data(piece) => {
                    gathered += piece.len();
                    leaving.pieces.push_back(piece);
                }
                Received::Pending => break,
                end => leaving.end = Some(end),
            }
        }
        live.settle(&mut state, Urge::Threads);
        if leaving.pieces.is_empty() {
            return Ok(leaving.end.is_none());
        }
    }
}

/// Writes the pieces. False: the socket takes no more.
fn write(socket: &UnixStream, leaving: &mut Leaving, wait: bool) -> io::Result<bool> {
    while !leaving.pieces.is_empty() {
        match send_pieces(socket, &mut leaving.pieces, wait) {
            Ok(bytes) => {
                leaving.written += bytes as u64;
                leaving.total += bytes as u64;
            }
            Err(nix::Error::EINTR) => {}
            Err(nix::Error::EAGAIN) if !wait => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// Writes what arrives to the local socket, until the peer's end; returns when `ingest` is over, too.
pub(crate) fn egress(live: &Live, id: StreamId, egress: &Egress, ingest: JoinHandle<u64>) {
    let socket = &egress.socket;
    let mut ended = "both ends are done".to_owned();
    let (bytes_from_peer, broke) = loop {
        wait_for_data(live, id, egress);
        let mut leaving = egress.leaving.lock();
        let result = deliver(live, id, socket, &mut leaving, true);
        match leaving.end.take() {
            _ if result.is_err() => break (leaving.total, result.err()),
            None => continue,
            Some(Received::Reset(_, reason)) => {
                ended = reason;
                egress.shut_down();
            }
            // Half a close: the other direction may go on.
            Some(_) => egress.shut(Shutdown::Write),
        }
        break (leaving.total, None);
    };
    // What a local end wrote before it closed is still being read.
    let bytes_to_peer = ingest.join().unwrap_or_default();
    if let Some(error) = broke {
        broken(live, id, &error);
        egress.shut_down();
        ended = format!("its local socket broke: {error}");
    } else if let Received::Reset(_, reason) = live.with(|state, _| state.core.receive(id)) {
        // After the peer had said all that it had to say.
        ended = reason;
    }
    info!(session = %live.id, peer = live.peer, stream = id.0, bytes_to_peer, bytes_from_peer, "connection over: {ended}");
}

/// Waits until there may be something to receive.
fn wait_for_data(live: &Live, id: StreamId, egress: &Egress) {
    let mut state = live.lock();
    while let Some(handle) = state.streams.get_mut(&id)
        && !std::mem::take(&mut handle.due)
    {
        egress.wake.wait(&mut state);
    }
}

/// The local end is gone: so is the stream, once the peer has what the local end said before.
fn broken(live: &Live, id: StreamId, error: &io::Error) {
    debug!(session = %live.id, stream = id.0, "local socket: {error}");
    live.with(|state, _| state.core.finish(id));
    live.wait_delivered(id, LAST_WORDS_TIME);
    live.reset(id, ResetCode::SocketClosed, &format!("its local socket broke: {error}"));
}
