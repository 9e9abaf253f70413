//! Writes a stream's bytes to its local socket, in order, as the stream's decoder returns them.

use std::io;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use skein_link::{Patience, send_pieces};
use skein_session::{Received, StreamId};
use tracing::{info, warn};

use crate::ResetCode;
use crate::decode::Progress;
use crate::error_chain::error_chain;
use crate::local_end::LocalEnd;
use crate::running_session::{Egress, LAST_WORDS_TIME, RunningSession, Undelivered};

/// Says how often a TCP socket is checked for a reset that neither of its threads sees.
const BROKEN_CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Says after how long a thread that ends is first checked for its end.
const END_CHECK_PERIOD: Duration = Duration::from_millis(5);
/// Bounds the bytes that are written to the local socket between two reports of progress.
const EGRESS_BYTES: usize = 1 << 20;

/// Writes what has arrived on a stream, as much as its socket takes without waiting. A receiver calls this for what it
/// has just completed, while that is in the core's cache. The stream's own thread writes what the socket does not take
/// at once.
pub(crate) fn deliver_now(live: &RunningSession, id: StreamId, egress: &Egress) {
    let done = match egress.undelivered.try_lock() {
        Some(mut leaving) => {
            matches!(deliver(live, id, egress, &mut leaving, Patience::Try), Ok(DeliveryProgress::All))
        }
        None => false,
    };
    if !done {
        live.lock().wake_egress(id);
    }
}

/// How far delivering has come.
enum DeliveryProgress {
    /// Nothing more has arrived.
    All,
    /// The socket takes no more, or the stream waits for others.
    Some,
    /// The stream has ended.
    End,
}

/// Writes what has arrived.
fn deliver(
    live: &RunningSession,
    id: StreamId,
    egress: &Egress,
    leaving: &mut Undelivered,
    patience: Patience,
) -> io::Result<DeliveryProgress> {
    loop {
        if !leaving.write(&egress.local_end, patience)? {
            return Ok(DeliveryProgress::Some);
        }
        if !leaving.decode(live, id, patience)? {
            return Ok(DeliveryProgress::Some);
        }
        if !leaving.pieces.is_empty() {
            continue;
        }
        let mut state = live.lock();
        let mut gathered = 0;
        while gathered < EGRESS_BYTES && leaving.end.is_none() {
            match state.core.receive(id) {
                Received::Data(piece) => {
                    gathered += piece.len();
                    leaving.take(piece);
                }
                Received::Pending => break,
                end => leaving.end = Some(end),
            }
        }
        state.core.consumed(id, std::mem::take(&mut leaving.consumed));
        live.dispatch(&mut state);
        if gathered == 0 {
            return Ok(if leaving.end.is_none() { DeliveryProgress::All } else { DeliveryProgress::End });
        }
    }
}

impl Undelivered {
    /// Takes the next bytes of the stream. The peer may send as many more once they are consumed. Bytes for the socket
    /// are consumed when they are written. Bytes for a decoder are consumed at once, because a record bounds what a
    /// decoder holds, and a record may be longer than the stream's window.
    fn take(&mut self, piece: Bytes) {
        match &mut self.decoder {
            None => self.pieces.push_back(piece),
            Some(decoder) => {
                self.consumed += piece.len() as u64;
                decoder.push(piece);
            }
        }
    }

    /// Lets the decoder make what is to be written from what was received. Returns false if it cannot yet.
    fn decode(&mut self, live: &RunningSession, id: StreamId, patience: Patience) -> io::Result<bool> {
        let Some(decoder) = &mut self.decoder else { return Ok(true) };
        let mut answers = Vec::new();
        let progress = decoder.step(&mut self.pieces, &mut answers, patience);
        if !answers.is_empty() {
            // A QEMU that has closed its end waits for no answer.
            live.with(|state, now| {
                if state.core.may_send(id) {
                    state.core.send_parts(now, id, answers);
                }
            });
        }
        match progress {
            Ok(progress) => Ok(progress == Progress::Done),
            Err(error) => {
                let why = error_chain(&*error);
                warn!(session = %live.id, peer = live.peer, stream = id.0, "{why}");
                live.reset(id, ResetCode::Unsound, &why);
                Err(io::Error::other(why))
            }
        }
    }

    /// Writes the pieces. Returns false if the socket takes no more.
    fn write(&mut self, local_end: &LocalEnd, patience: Patience) -> io::Result<bool> {
        while !self.pieces.is_empty() {
            match send_pieces(local_end, &mut self.pieces, patience) {
                Ok(bytes) => {
                    self.consumed += if self.decoder.is_none() { bytes as u64 } else { 0 };
                    self.written += bytes as u64;
                }
                Err(nix::Error::EINTR) => {}
                // A socket with a time for writes is tried again, unless the stream was torn down meanwhile.
                Err(nix::Error::EAGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

/// Writes what arrives to the local socket, until the peer's end. Returns when `ingest` is over, too.
pub(crate) fn egress(live: &RunningSession, id: StreamId, egress: &Egress, ingest: JoinHandle<u64>) {
    let mut ended = "both ends are done".to_owned();
    let (bytes_from_peer, broke) = loop {
        if !wait_for_data(live, id, egress) {
            break (egress.undelivered.lock().written, Some(io::ErrorKind::ConnectionReset.into()));
        }
        let mut leaving = egress.undelivered.lock();
        let delivered = loop {
            match deliver(live, id, egress, &mut leaving, Patience::Wait) {
                // The stream waits for others. The wait ends if the stream is torn down.
                Ok(DeliveryProgress::Some) if !live.lock().core.is_reset(id) => {}
                delivered => break delivered,
            }
        };
        match (delivered, leaving.end.take()) {
            (Err(error), _) => break (leaving.written, Some(error)),
            (_, Some(Received::Reset(_, reason))) => {
                if let Some(decoder) = &mut leaving.decoder {
                    decoder.torn_down(&reason);
                }
                ended = reason;
                egress.local_end.tear_down();
            }
            // Half of the stream is closed; the other direction may go on.
            (_, Some(_)) => egress.local_end.finish(),
            (Ok(DeliveryProgress::Some), None) => {
                ended = "torn down".into();
                egress.local_end.tear_down();
            }
            (_, None) => continue,
        }
        break (leaving.written, None);
    };
    // What a local end wrote before it closed is still being read.
    let broke = broke.or_else(|| wait_for_ingest(live, id, egress, &ingest));
    if let Some(error) = broke.as_ref().filter(|_| egress.local_end.resets()) {
        // What a TCP socket still had when it was reset is read, unless nobody takes it.
        wait_until(LAST_WORDS_TIME, || ingest.is_finished());
        live.reset_for_broken_socket(id, &egress.local_end, error);
    }
    let bytes_to_peer = ingest.join().unwrap_or_default();
    if let Some(error) = broke {
        live.reset_for_broken_socket(id, &egress.local_end, &error);
        egress.local_end.tear_down();
        ended = format!("its local socket broke: {error}");
    } else if let Received::Reset(_, reason) = live.with(|state, _| state.core.receive(id)) {
        // The reset came after the peer had said all that it had to say.
        ended = reason;
    } else {
        egress.local_end.close();
    }
    info!(
        session = %live.id, peer = live.peer, stream = id.0, bytes_to_peer, bytes_from_peer, "connection over: {ended}"
    );
}

/// Waits until there may be something to receive. Returns false if the local socket was reset meanwhile.
fn wait_for_data(live: &RunningSession, id: StreamId, egress: &Egress) -> bool {
    let mut state = live.lock();
    while let Some(handle) = state.streams.get_mut(&id)
        && !std::mem::take(&mut handle.has_work)
    {
        if !egress.local_end.resets() {
            egress.wake.wait(&mut state);
        } else if egress.wake.wait_for(&mut state, BROKEN_CHECK_PERIOD).timed_out() && egress.local_end.is_broken() {
            return false;
        }
    }
    true
}

/// Waits until a TCP socket that nothing more goes to has said all. Returns the error if the socket is reset before,
/// and what it has said is not taken.
fn wait_for_ingest(
    live: &RunningSession,
    id: StreamId,
    egress: &Egress,
    ingest: &JoinHandle<u64>,
) -> Option<io::Error> {
    while egress.local_end.resets() && !ingest.is_finished() && !live.lock().core.is_reset(id) {
        if !wait_until(BROKEN_CHECK_PERIOD, || ingest.is_finished()) && egress.local_end.is_broken() {
            return Some(io::ErrorKind::ConnectionReset.into());
        }
    }
    None
}

/// Waits until something is so, for at most `patience`. Returns whether it is.
fn wait_until(patience: Duration, is_so: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    let mut pause = END_CHECK_PERIOD;
    while !is_so() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(patience / 4);
    }
    true
}
