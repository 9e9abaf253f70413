//! Is a stream that ends in this program: its bytes are made and counted here, without a socket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Condvar;
use skein_session::{OpenError, Received, StreamId, Width};

use crate::ResetCode;
use crate::connection::submit;
use crate::running_session::{RunningSession, StreamHandle};

/// Bounds a wait before the session is asked again, whatever happens.
const CAPACITY_WAIT: Duration = Duration::from_millis(100);

/// A stream of this program. Dropping it tears the stream down, unless both directions are done.
pub struct Flow {
    live: Arc<RunningSession>,
    id: StreamId,
    writable: Arc<Condvar>,
}

/// What a flow brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowInput {
    /// The next bytes.
    Bytes(Bytes),
    /// Nothing came in time.
    Nothing,
    /// The peer is done sending.
    End,
    /// The stream was torn down, for a reason.
    Reset(String),
}

impl RunningSession {
    /// Opens a stream to `destination` at the peer. Its bulk uses what `width` says.
    ///
    /// # Errors
    /// The session takes no more streams.
    pub fn open_flow(self: &Arc<Self>, destination: &str, width: Width) -> Result<Flow, OpenError> {
        let id = self.with(|state, _| {
            let id = state.core.open(destination)?;
            state.streams.insert(id, StreamHandle::new(destination));
            Ok::<_, OpenError>(id)
        })?;
        Ok(self.take_flow(id, width))
    }

    /// Takes a stream that the peer opened. What is sent here uses what `width` says.
    pub fn take_flow(self: &Arc<Self>, id: StreamId, width: Width) -> Flow {
        let writable = self.with(|state, _| {
            state.core.confine(id, width);
            state.streams.get(&id).map(|handle| handle.writable.clone())
        });
        Flow { live: self.clone(), id, writable: writable.unwrap_or_default() }
    }
}

impl Flow {
    /// Sends bulk once the session has room for all of it, at most 256 KiB. Returns whether it had, before the deadline
    /// and before the stream was torn down.
    pub fn send(&self, bytes: Bytes, deadline: Instant) -> bool {
        let mut state = self.live.lock();
        loop {
            if !state.core.may_send(self.id) {
                return false;
            }
            let takes = state.core.takes(self.live.now(), self.id, bytes.len());
            self.live.dispatch(&mut state);
            if takes {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.writable.wait_for(&mut state, left.min(CAPACITY_WAIT));
        }
        drop(state);
        submit(&self.live, self.id, [bytes]);
        true
    }

    /// Sends a few bytes, which never wait for bulk.
    pub fn send_small(&self, bytes: Bytes) {
        self.live.with(|state, now| {
            if state.core.may_send(self.id) {
                state.core.send_parts(now, self.id, [bytes]);
            }
        });
    }

    /// Says that nothing more is sent.
    pub fn finish(&self) {
        self.live.with(|state, _| state.core.finish(self.id));
    }

    /// Returns what comes next, within `patience`.
    pub fn receive(&self, patience: Duration) -> FlowInput {
        self.live.wait_readable(self.id, patience);
        self.live.with(|state, _| match state.core.receive(self.id) {
            Received::Data(bytes) => {
                state.core.consumed(self.id, bytes.len() as u64);
                FlowInput::Bytes(bytes)
            }
            Received::Pending => FlowInput::Nothing,
            Received::Finished => FlowInput::End,
            Received::Reset(_, reason) => FlowInput::Reset(reason),
        })
    }

    /// Tears the stream down, and tells the peer why.
    pub fn refuse(&self, code: ResetCode, reason: &str) {
        self.live.reset(self.id, code, reason);
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // What says all that it had to say, and has heard all, is over already.
        let is_over = self.live.with(|state, _| {
            let heard = matches!(state.core.receive(self.id), Received::Finished | Received::Reset(..));
            heard && !state.core.may_send(self.id)
        });
        match is_over {
            true => drop(self.live.lock().streams.remove(&self.id)),
            false => self.live.reset(self.id, ResetCode::Done, "nothing more is wanted of it"),
        }
    }
}
