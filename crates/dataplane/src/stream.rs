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
use skein_link::send_pieces;
use skein_pages::page_record::{self, BYTES_MAX};
use skein_session::{Received, Session, StreamId};
use tracing::{debug, info, warn};

use crate::ResetCode;
use crate::running_session::{Dispatch, RunningSession, StreamContent};
use crate::source::TargetMessages;
use crate::target::{PageWriter, Step};

/// A shorter read is copied into memory of its size, so that the pooled buffer can be read into again.
const SHORT_READ: usize = BYTES_MAX / 4;
/// Bytes written to the local socket between two reports of progress.
const EGRESS_BYTES: usize = 1 << 20;
/// Who waits for room asks again after this, whatever happens.
const CAPACITY_WAIT: Duration = Duration::from_secs(1);
/// Who reads a held socket looks so many milliseconds later whether its stream was torn down.
const RESET_CHECK_PERIOD_MS: u8 = 200;
/// What a local end said before it broke may take this long to reach the peer.
const LAST_WORDS_TIME: Duration = Duration::from_secs(5);

/// Reads the local socket into the session until its end. Returns the number of bytes. `in_records`: what is read goes
/// in records, since others go on the stream, too.
pub(crate) fn ingest(
    live: &RunningSession,
    id: StreamId,
    egress: &Egress,
    writable: &Condvar,
    in_records: bool,
) -> u64 {
    let socket = &*egress.socket;
    let mut bytes = 0;
    let mut buffer = live.pool.take(BYTES_MAX);
    loop {
        // First bytes, then room for them: who asks for room and has no use for it holds up others.
        match wait_for_bytes(socket, egress.held) {
            Ok(true) => {}
            Ok(false) if live.lock().core.is_reset(id) => break,
            Ok(false) => continue,
            Err(error) => {
                reset_for_broken_socket(live, id, &error);
                return bytes;
            }
        }
        let room = |core: &mut Session, now| Some(core.send_capacity(now, id)).filter(|room| *room > 0);
        let Some(room) = wait_for_capacity(live, id, writable, room) else { break };
        let read = { socket }.read(&mut buffer.as_mut()[..room.min(BYTES_MAX)]);
        let data = match read {
            Ok(0) => {
                live.with(|state, _| state.core.finish(id));
                return bytes;
            }
            Ok(n) if n < SHORT_READ => Bytes::copy_from_slice(&buffer.as_ref()[..n]),
            Ok(n) => {
                let mut full = std::mem::replace(&mut buffer, live.pool.take(BYTES_MAX));
                full.truncate(n);
                full.freeze()
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                reset_for_broken_socket(live, id, &error);
                return bytes;
            }
        };
        bytes += data.len() as u64;
        let head = in_records.then(|| page_record::bytes_head(data.len()));
        submit(live, id, head.into_iter().chain([data]));
    }
    egress.drain_held();
    bytes
}

/// Hands bytes to the session, all at once, and sends them if a connection waits for some.
pub(crate) fn submit(live: &RunningSession, id: StreamId, parts: impl IntoIterator<Item = Bytes>) {
    let mut free = None;
    {
        let mut state = live.lock();
        state.core.send_parts(live.now(), id, parts);
        live.dispatch(&mut state, Dispatch::Connection(&mut free));
    }
    if let Some((connection, outlet)) = free {
        outlet.send_now(live, connection);
    }
}

/// False: not yet. Nobody shuts a held socket down to free who waits for it.
pub(crate) fn wait_for_bytes(socket: &UnixStream, held: bool) -> io::Result<bool> {
    let patience = if held { PollTimeout::from(RESET_CHECK_PERIOD_MS) } else { PollTimeout::NONE };
    loop {
        match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], patience) {
            Ok(ready) => return Ok(ready > 0),
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until the session takes more, as `room` tells. `None`: never again.
pub(crate) fn wait_for_capacity<T>(
    live: &RunningSession,
    id: StreamId,
    writable: &Condvar,
    mut room: impl FnMut(&mut Session, Duration) -> Option<T>,
) -> Option<T> {
    let mut state = live.lock();
    loop {
        if state.core.is_reset(id) {
            return None;
        }
        let found = room(&mut state.core, live.now());
        live.dispatch(&mut state, Dispatch::Threads);
        if found.is_some() {
            return found;
        }
        writable.wait_for(&mut state, CAPACITY_WAIT);
    }
}

/// Where a stream's bytes leave: its local socket. Whoever receives what completes them writes them there and then,
/// while they are in the core's cache; the stream's own thread writes what the socket does not take at once.
pub(crate) struct Egress {
    socket: Arc<UnixStream>,
    /// The local end is not told that the stream was torn down: what it writes then is read and dropped.
    held: bool,
    undelivered: Mutex<Undelivered>,
    pub(crate) wake: Condvar,
}

/// What was received and is not yet written.
#[derive(Default)]
struct Undelivered {
    pieces: VecDeque<Bytes>,
    /// Written, and not yet reported.
    written: u64,
    /// Written, since the stream began.
    total: u64,
    /// What comes after the pieces: nothing more.
    end: Option<Received>,
    decoding: Decoding,
}

/// How what is received becomes what is written.
#[derive(Default)]
enum Decoding {
    /// It is the same.
    #[default]
    Same,
    /// The target's words at the source.
    Answers(TargetMessages),
    /// Pages at the target.
    Placer(Box<PageWriter>),
}

impl Egress {
    pub(crate) fn new(id: StreamId, socket: Arc<UnixStream>, content: &StreamContent, held: bool) -> Egress {
        let apart = match content {
            StreamContent::Bytes => Decoding::Same,
            StreamContent::Source(source) => Decoding::Answers(TargetMessages::new(source.clone(), id)),
            StreamContent::Target(target) => Decoding::Placer(Box::new(PageWriter::new(target.clone(), id))),
        };
        Egress {
            socket,
            held,
            undelivered: Mutex::new(Undelivered { decoding: apart, ..Undelivered::default() }),
            wake: Condvar::new(),
        }
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// The stream was torn down. Whoever writes to a held socket must not be stopped by that.
    pub(crate) fn drain_held(&self) {
        let mut buffer = [0; SHORT_READ];
        while self.held && { &*self.socket }.read(&mut buffer).is_ok_and(|n| n > 0) {}
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
pub(crate) fn deliver_now(live: &RunningSession, id: StreamId, egress: &Egress) {
    let done = match egress.undelivered.try_lock() {
        Some(mut leaving) => {
            matches!(deliver(live, id, &egress.socket, &mut leaving, false), Ok(DeliveryProgress::All))
        }
        None => false,
    };
    if !done {
        live.lock().wake_egress(id);
    }
}

/// How far delivering came.
enum DeliveryProgress {
    /// Nothing more has arrived.
    All,
    /// The socket takes no more, or the stream waits for others.
    Some,
    /// The end has come.
    End,
}

/// Writes what has arrived.
fn deliver(
    live: &RunningSession,
    id: StreamId,
    socket: &UnixStream,
    leaving: &mut Undelivered,
    wait: bool,
) -> io::Result<DeliveryProgress> {
    loop {
        if !write(socket, leaving, wait)? {
            return Ok(DeliveryProgress::Some);
        }
        if !leaving.decode(live, id, wait)? {
            return Ok(DeliveryProgress::Some);
        }
        if !leaving.pieces.is_empty() {
            continue;
        }
        let mut state = live.lock();
        state.core.consumed(id, std::mem::take(&mut leaving.written));
        let mut gathered = 0;
        while gathered < EGRESS_BYTES && leaving.end.is_none() {
            match state.core.receive(id) {
                Received::Data(piece) => {
                    gathered += piece.len();
                    match &mut leaving.decoding {
                        Decoding::Same => leaving.pieces.push_back(piece),
                        // What it holds is bounded by the longest record, so that it may be longer than a window.
                        Decoding::Answers(answers) => {
                            state.core.consumed(id, piece.len() as u64);
                            answers.push(piece);
                        }
                        Decoding::Placer(placer) => {
                            state.core.consumed(id, piece.len() as u64);
                            placer.push(piece);
                        }
                    }
                }
                Received::Pending => break,
                end => leaving.end = Some(end),
            }
        }
        live.dispatch(&mut state, Dispatch::Threads);
        if gathered == 0 {
            return Ok(if leaving.end.is_none() { DeliveryProgress::All } else { DeliveryProgress::End });
        }
    }
}

impl Undelivered {
    /// What was received becomes what is to be written. False: not yet.
    fn decode(&mut self, live: &RunningSession, id: StreamId, wait: bool) -> io::Result<bool> {
        let mut answers = Vec::new();
        let step = match &mut self.decoding {
            Decoding::Same => return Ok(true),
            Decoding::Answers(answers) => answers.step(&mut self.pieces).map(|()| Step::Done),
            Decoding::Placer(placer) => placer.step(&mut self.pieces, &mut answers, wait),
        };
        if !answers.is_empty() {
            // What a QEMU that has closed its end would have been answered nobody waits for.
            live.with(|state, now| {
                if state.core.may_send(id) {
                    state.core.send_parts(now, id, answers);
                }
            });
        }
        match step {
            Ok(Step::Done) => Ok(true),
            Ok(Step::Waits) => Ok(false),
            Err(why) => {
                warn!(session = %live.id, peer = live.peer, stream = id.0, "{why}");
                live.reset(id, ResetCode::Unsound, &why);
                Err(io::Error::other(why))
            }
        }
    }
}

/// Writes the pieces. False: the socket takes no more.
fn write(socket: &UnixStream, leaving: &mut Undelivered, wait: bool) -> io::Result<bool> {
    while !leaving.pieces.is_empty() {
        match send_pieces(socket, &mut leaving.pieces, wait) {
            Ok(bytes) => {
                // What was taken apart was told of before.
                leaving.written += if matches!(leaving.decoding, Decoding::Same) { bytes as u64 } else { 0 };
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
pub(crate) fn egress(live: &RunningSession, id: StreamId, egress: &Egress, ingest: JoinHandle<u64>) {
    let socket = &egress.socket;
    let mut ended = "both ends are done".to_owned();
    let (bytes_from_peer, broke) = loop {
        wait_for_data(live, id, egress);
        let mut leaving = egress.undelivered.lock();
        let delivered = loop {
            match deliver(live, id, socket, &mut leaving, true) {
                // The stream waits for others; that ends if it is torn down.
                Ok(DeliveryProgress::Some) if !live.lock().core.is_reset(id) => {}
                delivered => break delivered,
            }
        };
        match (delivered, leaving.end.take()) {
            (Err(error), _) => break (leaving.total, Some(error)),
            (_, Some(Received::Reset(_, reason))) => {
                if let Decoding::Answers(answers) = &leaving.decoding {
                    answers.torn_down(&reason);
                }
                ended = reason;
                egress.shut_down();
            }
            // Half a close: the other direction may go on.
            (_, Some(_)) => egress.shut(Shutdown::Write),
            (Ok(DeliveryProgress::Some), None) => {
                ended = "torn down".into();
                egress.shut_down();
            }
            (_, None) => continue,
        }
        break (leaving.total, None);
    };
    // What a local end wrote before it closed is still being read.
    let bytes_to_peer = ingest.join().unwrap_or_default();
    if let Some(error) = broke {
        reset_for_broken_socket(live, id, &error);
        egress.shut_down();
        ended = format!("its local socket broke: {error}");
    } else if let Received::Reset(_, reason) = live.with(|state, _| state.core.receive(id)) {
        // After the peer had said all that it had to say.
        ended = reason;
    }
    info!(session = %live.id, peer = live.peer, stream = id.0, bytes_to_peer, bytes_from_peer, "connection over: \
        {ended}");
}

/// Waits until there may be something to receive.
fn wait_for_data(live: &RunningSession, id: StreamId, egress: &Egress) {
    let mut state = live.lock();
    while let Some(handle) = state.streams.get_mut(&id)
        && !std::mem::take(&mut handle.has_work)
    {
        egress.wake.wait(&mut state);
    }
}

/// The local end is gone: so is the stream, once the peer has what the local end said before.
pub(crate) fn reset_for_broken_socket(live: &RunningSession, id: StreamId, error: &io::Error) {
    debug!(session = %live.id, stream = id.0, "local socket: {error}");
    live.with(|state, _| state.core.finish(id));
    live.wait_delivered(id, LAST_WORDS_TIME);
    live.reset(id, ResetCode::SocketClosed, &format!("its local socket broke: {error}"));
}
