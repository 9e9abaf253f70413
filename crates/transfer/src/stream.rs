//! The two threads of a stream: from its local socket into the session, and back.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Condvar;
use skein_core::limits::CHUNK_BYTES_MAX;
use skein_core::{Received, StreamId};
use tracing::{debug, info};

use crate::ResetCode;
use crate::live::Live;

/// A shorter read is copied into memory of its size, so that the pooled buffer can be read into again.
const SHORT_READ: usize = CHUNK_BYTES_MAX / 4;
/// Least room for which a read is worth while.
const ROOM_MIN: usize = CHUNK_BYTES_MAX / 8;
/// Bytes written to the local socket between two reports of progress.
const EGRESS_BYTES: usize = 1 << 20;
/// Pieces in one gathered write.
const EGRESS_PIECES: usize = 64;
/// What a local end said before it broke may take this long to reach the peer.
const LAST_WORDS_TIME: Duration = Duration::from_secs(5);

/// Reads the local socket into the session until its end.
pub(crate) fn ingest(live: &Live, id: StreamId, socket: &UnixStream, writable: &Condvar) {
    let mut buffer = live.pool.take(CHUNK_BYTES_MAX);
    loop {
        let Some(room) = wait_for_room(live, id, writable) else { return };
        let room = room.min(CHUNK_BYTES_MAX);
        let read = { socket }.read(&mut buffer.as_mut()[..room]);
        let data = match read {
            Ok(0) => return live.with(|state, _| state.core.finish(id)),
            Ok(n) if n < SHORT_READ => Bytes::copy_from_slice(&buffer.as_ref()[..n]),
            Ok(n) => {
                let mut full = std::mem::replace(&mut buffer, live.pool.take(CHUNK_BYTES_MAX));
                full.truncate(n);
                full.freeze()
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return broken(live, id, &error),
        };
        live.with(|state, now| state.core.send(now, id, data));
    }
}

/// Waits until the session takes more. `None`: never again.
fn wait_for_room(live: &Live, id: StreamId, writable: &Condvar) -> Option<usize> {
    let mut state = live.lock();
    loop {
        if state.core.is_reset(id) {
            return None;
        }
        match state.core.send_capacity(id) {
            room if room >= ROOM_MIN => return Some(room),
            _ => writable.wait(&mut state),
        }
    }
}

/// Writes what arrives to the local socket, until the peer's end; returns when `ingest` is over, too.
pub(crate) fn egress(live: &Live, id: StreamId, socket: &UnixStream, readable: &Condvar, ingest: JoinHandle<()>) {
    let mut pieces = Vec::new();
    loop {
        match wait_for_data(live, id, readable, &mut pieces) {
            Received::Data(_) => {
                let bytes: usize = pieces.iter().map(Bytes::len).sum();
                if let Err(error) = write_all(socket, &pieces) {
                    // What it wrote before it closed is still being read.
                    let _ = ingest.join();
                    broken(live, id, &error);
                    let _ = socket.shutdown(Shutdown::Both);
                    return;
                }
                pieces.clear();
                live.with(|state, _| state.core.consumed(id, bytes as u64));
            }
            Received::Reset(_, reason) => {
                info!(session = %live.id, stream = id.0, "stream torn down: {reason}");
                let _ = socket.shutdown(Shutdown::Both);
                break;
            }
            Received::Finished | Received::Pending => {
                // Half a close: the other direction may go on.
                let _ = socket.shutdown(Shutdown::Write);
                break;
            }
        }
    }
    let _ = ingest.join();
}

/// Waits for bytes and gathers them in `pieces`, or for the end.
fn wait_for_data(live: &Live, id: StreamId, readable: &Condvar, pieces: &mut Vec<Bytes>) -> Received {
    let mut state = live.lock();
    loop {
        let mut gathered = 0;
        while gathered < EGRESS_BYTES && pieces.len() < EGRESS_PIECES {
            match state.core.receive(id) {
                Received::Data(piece) => {
                    gathered += piece.len();
                    pieces.push(piece);
                }
                Received::Pending => break,
                end if pieces.is_empty() => {
                    live.settle(&mut state);
                    return end;
                }
                _ => break,
            }
        }
        if !pieces.is_empty() {
            return Received::Data(Bytes::new());
        }
        readable.wait(&mut state);
    }
}

fn write_all(mut socket: &UnixStream, pieces: &[Bytes]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        match socket.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut rest, n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The local end is gone: so is the stream, once the peer has what the local end said before.
fn broken(live: &Live, id: StreamId, error: &io::Error) {
    debug!(session = %live.id, stream = id.0, "local socket: {error}");
    live.with(|state, _| state.core.finish(id));
    live.wait_delivered(id, LAST_WORDS_TIME);
    live.reset(id, ResetCode::SocketClosed, &format!("its local socket broke: {error}"));
}
