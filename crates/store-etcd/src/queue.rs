//! What a watch has seen and its caller has not taken yet.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use skein_store::{WatchBatch, WatchError};
use tokio::sync::Notify;

/// How many batches wait at most. etcd keeps what is not taken.
const BATCHES_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    ready: Condvar,
    room: Notify,
}

#[derive(Default)]
struct State {
    batches: VecDeque<WatchBatch>,
    ended: Option<WatchError>,
}

impl Queue {
    /// Adds a batch, once there is room.
    pub async fn add(&self, batch: WatchBatch) {
        loop {
            // Room that is made after the look at it is not missed.
            let room = self.room.notified();
            {
                let mut state = self.state.lock();
                if state.batches.len() < BATCHES_MAX {
                    state.batches.push_back(batch);
                    self.ready.notify_one();
                    return;
                }
            }
            room.await;
        }
    }

    /// Nothing comes any more.
    pub fn end(&self, error: WatchError) {
        self.state.lock().ended = Some(error);
        self.ready.notify_one();
    }

    /// Takes the next batch, or waits for it.
    pub fn next(&self, wait: Duration) -> Result<Option<WatchBatch>, WatchError> {
        let deadline = Instant::now() + wait;
        let mut state = self.state.lock();
        loop {
            if let Some(batch) = state.batches.pop_front() {
                self.room.notify_one();
                return Ok(Some(batch));
            }
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            if self.ready.wait_until(&mut state, deadline).timed_out() && state.batches.is_empty() {
                return state.ended.clone().map_or(Ok(None), Err);
            }
        }
    }
}
