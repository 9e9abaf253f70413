//! A connection's two threads, and sending on it from others.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use skein_core::frame::{Frame, HEADER_BYTES, Header};
use skein_core::session::Down;
use skein_core::{ConnectionId, Session, Transmit};
use skein_link::{Reader, Writer};
use tracing::{debug, warn};

use crate::live::{Live, Urge};
use crate::stream;

/// Frames that go out together, if there are so many: they share a record, a write and a wake-up of the peer.
const BATCH_BYTES: u64 = 16 << 10;
/// Batches that a thread sends for others before it leaves the rest to the connection's own.
const BATCHES_MAX: usize = 4;

/// The sending half of a connection. Whoever has something for it sends that there and then, while it is in the
/// core's cache; the connection's own thread sends what the socket does not take at once.
pub(crate) struct Outlet {
    writer: Mutex<Writer>,
    pub(crate) wake: Condvar,
}

/// How far sending came.
enum Sent {
    /// The session has nothing more.
    All,
    /// The socket takes no more, or it is somebody else's turn.
    Some,
    /// The connection is over.
    Last,
}

impl Outlet {
    pub(crate) fn new(writer: Writer) -> Outlet {
        Outlet { writer: Mutex::new(writer), wake: Condvar::new() }
    }

    /// Sends what the session has for the connection without waiting for anything.
    pub(crate) fn send_now(&self, live: &Live, id: ConnectionId) {
        let sent = match self.writer.try_lock() {
            Some(mut writer) => pump(live, id, &mut writer, false),
            None => Ok(Sent::Some),
        };
        match sent {
            Ok(Sent::All) => {}
            Ok(Sent::Some | Sent::Last) => live.lock().urge_connection(id),
            Err(error) => fail(live, id, &error),
        }
    }
}

/// Sends what the session has for the connection, until it is gone.
pub(crate) fn send(live: &Live, id: ConnectionId, outlet: &Outlet) {
    while wait_for_work(live, id, outlet) {
        let sent = pump(live, id, &mut outlet.writer.lock(), true);
        match sent {
            Ok(Sent::All | Sent::Some) => {}
            Ok(Sent::Last) => return live.drop_connection(id, Down::Failed),
            Err(error) => return fail(live, id, &error),
        }
    }
}

fn fail(live: &Live, id: ConnectionId, error: &io::Error) {
    debug!(session = %live.id, connection = id.0, "cannot send: {error}");
    live.drop_connection(id, Down::Failed);
}

/// Waits until there may be something to send. False: the connection is gone.
fn wait_for_work(live: &Live, id: ConnectionId, outlet: &Outlet) -> bool {
    let mut state = live.lock();
    loop {
        let over = state.core.ended().is_some();
        let Some(handle) = state.connections.get_mut(&id) else { return false };
        if std::mem::take(&mut handle.due) || over {
            return true;
        }
        let now = live.now();
        match state.core.transmit_at(id) {
            Some(at) if at <= now => return true,
            Some(at) => drop(outlet.wake.wait_for(&mut state, at - now)),
            None => outlet.wake.wait(&mut state),
        }
    }
}

/// Sends what the session has for the connection; frames go out in the order in which they are polled, so the writer
/// is the caller's all the while.
fn pump(live: &Live, id: ConnectionId, writer: &mut Writer, wait: bool) -> io::Result<Sent> {
    let mut batch = Vec::new();
    if !writer.flush(wait)? {
        return Ok(Sent::Some);
    }
    for _ in 0..if wait { usize::MAX } else { BATCHES_MAX } {
        let over = {
            let mut state = live.lock();
            let over = state.core.ended().map(ToString::to_string);
            match &over {
                Some(_) if !wait => return Ok(Sent::Some),
                Some(why) => batch.push(Session::bye(0, why)),
                None => poll(live, &mut state.core, id, &mut batch),
            }
            live.settle(&mut state, Urge::Threads);
            over.is_some()
        };
        if batch.is_empty() {
            return Ok(Sent::All);
        }
        let parts = batch.drain(..).flat_map(|Transmit { header, payload }| {
            std::iter::once(Bytes::copy_from_slice(&header.encode())).chain(payload)
        });
        writer.push(parts)?;
        if !writer.flush(wait)? {
            return Ok(Sent::Some);
        }
        if over || writer.is_worn() {
            return Ok(Sent::Last);
        }
    }
    Ok(Sent::Some)
}

fn poll(live: &Live, core: &mut Session, id: ConnectionId, batch: &mut Vec<Transmit>) {
    let now = live.now();
    let mut bytes = 0;
    while bytes < BATCH_BYTES
        && let Some(transmit) = core.poll_transmit(now, id)
    {
        bytes += transmit.header.frame_bytes();
        batch.push(transmit);
    }
}

/// Hands every frame that arrives to the session, and what it completes to its stream's socket. Returns how the
/// connection ended.
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
    let mut readable = None;
    {
        let mut state = live.lock();
        if !state.connections.contains_key(&id) {
            return Ok(false);
        }
        if let Err(error) = state.core.handle_frame(live.now(), id, &header, frame) {
            warn!(session = %live.id, peer = live.peer, "the peer broke the protocol: {error}");
        }
        live.settle(&mut state, Urge::Egress(&mut readable));
        if state.core.ended().is_some() {
            return Ok(false);
        }
    }
    if let Some((stream, egress)) = readable {
        stream::deliver_now(live, stream, &egress);
    }
    Ok(true)
}

fn invalid(error: skein_core::frame::FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
