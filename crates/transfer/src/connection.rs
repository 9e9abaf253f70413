//! The two threads of a connection.

use std::io;
use std::sync::Arc;

use parking_lot::Condvar;
use skein_core::frame::{Frame, HEADER_BYTES, Header, Kind};
use skein_core::session::Down;
use skein_core::{ConnectionId, Session, Transmit};
use skein_link::{Reader, Writer};
use tracing::{debug, warn};

use crate::live::Live;

/// Frames that go out together, if there are so many: they share a record, a write and a wake-up of the peer.
const BATCH_BYTES: u64 = 16 << 10;

/// Sends what the session has for the connection, until it is gone.
pub(crate) fn send(live: &Live, id: ConnectionId, mut writer: Writer, wake: &Condvar) {
    let mut batch = Vec::new();
    while wait_for_work(live, id, wake, &mut batch) {
        if let Err(error) = write(&mut writer, &batch) {
            debug!(session = %live.id, connection = id.0, "cannot send: {error}");
            return live.drop_connection(id, Down::Failed);
        }
        let last = batch.iter().any(|transmit| transmit.header.kind == Kind::Bye);
        if last || writer.is_worn() {
            return live.drop_connection(id, Down::Failed);
        }
        batch.clear();
    }
}

/// Waits for something to send and gathers it in `batch`. False: the connection is gone.
fn wait_for_work(live: &Live, id: ConnectionId, wake: &Condvar, batch: &mut Vec<Transmit>) -> bool {
    let mut state = live.lock();
    loop {
        if !state.connections.contains_key(&id) {
            return false;
        }
        if let Some(why) = state.core.ended() {
            batch.push(Session::bye(0, &why.to_string()));
            return true;
        }
        let now = live.now();
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && let Some(transmit) = state.core.poll_transmit(now, id)
        {
            bytes += transmit.header.frame_bytes();
            batch.push(transmit);
        }
        live.settle(&mut state);
        if !batch.is_empty() {
            return true;
        }
        match state.core.transmit_at(id) {
            Some(at) => drop(wake.wait_for(&mut state, at.saturating_sub(now))),
            None => wake.wait(&mut state),
        }
    }
}

fn write(writer: &mut Writer, batch: &[Transmit]) -> io::Result<()> {
    let headers: Vec<[u8; HEADER_BYTES]> = batch.iter().map(|transmit| transmit.header.encode()).collect();
    let mut parts = Vec::with_capacity(batch.iter().map(|transmit| 1 + transmit.payload.len()).sum());
    for (header, transmit) in headers.iter().zip(batch) {
        parts.push(&header[..]);
        parts.extend(transmit.payload.iter().map(|part| &part[..]));
    }
    writer.write_all(&parts)
}

/// Hands every frame that arrives to the session. Returns how the connection ended.
pub(crate) fn receive(live: &Arc<Live>, id: ConnectionId, mut reader: Reader) -> Down {
    loop {
        match receive_one(live, id, &mut reader) {
            Ok(true) => {}
            Ok(false) => return Down::Failed,
            Err(error) => {
                debug!(session = %live.id, connection = id.0, "cannot receive: {error}");
                return match error.kind() {
                    // A kernel resets the connections of a killed process where data waited for it. Those that the peer gave
                    // up are reset, too, but stalled here before.
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Down::ByPeer,
                    _ => Down::Failed,
                };
            }
        }
    }
}

/// False: the connection is to end.
fn receive_one(live: &Arc<Live>, id: ConnectionId, reader: &mut Reader) -> io::Result<bool> {
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header)?;
    let header = Header::decode(&header).map_err(invalid)?;
    // At most a chunk, by the header's own check.
    let mut payload = live.pool.take(header.len as usize);
    reader.read_exact(payload.as_mut())?;
    let frame = Frame::parse(header, payload.freeze()).map_err(invalid)?;
    live.with(|state, now| {
        if !state.connections.contains_key(&id) {
            return Ok(false);
        }
        if let Err(error) = state.core.handle_frame(now, id, &header, frame) {
            warn!(session = %live.id, peer = live.peer, "the peer broke the protocol: {error}");
        }
        Ok(state.core.ended().is_none())
    })
}

fn invalid(error: skein_core::frame::FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
