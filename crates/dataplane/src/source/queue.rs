//! What an intake has read and no path has had room for yet, in order.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use skein_pages::PAGE_BYTES;
use skein_pages::page_record::PAGE_RECORD_BYTES_MAX;

use super::packer_pool::PackJob;

/// What waits for its turn.
pub(crate) enum QueueEntry {
    /// Records that are as they will be.
    Ready(Vec<Bytes>),
    /// A batch that may be packed until its turn comes.
    Job(Arc<PackJob>),
    /// Nothing follows.
    End,
}

impl QueueEntry {
    /// Bytes that it holds, and at most has on the wire.
    fn bytes(&self) -> usize {
        match self {
            QueueEntry::Ready(parts) => parts.iter().map(Bytes::len).sum(),
            QueueEntry::Job(job) => job.batch.bytes().max(PAGE_BYTES),
            QueueEntry::End => 0,
        }
    }
}

/// The queue of one stream: between its intake and its feeder.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<QueueEntry>,
    bytes: usize,
    /// What was taken last may not have been handed on yet.
    submitting: bool,
    closed: bool,
}

impl Queue {
    /// Adds to its end, once less than `most` bytes wait. False: nobody takes anything from it any more.
    pub(crate) fn push(&self, queued: QueueEntry, most: usize) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.bytes >= most.max(1) {
            self.changed.wait(&mut state);
        }
        state.bytes += queued.bytes();
        state.waiting.push_back(queued);
        self.changed.notify_all();
        !state.closed
    }

    /// Nothing waits, and all that did was handed on: who has something may hand it on itself.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && !state.submitting && !state.closed
    }

    /// Waits for the first in it, and gives how many bytes it may become, and the job if it is one. What was taken
    /// before was handed on.
    pub(crate) fn wait(&self) -> (usize, Option<Arc<PackJob>>) {
        let mut state = self.state.lock();
        state.submitting = false;
        loop {
            if let Some(first) = state.waiting.front() {
                let job = match first {
                    QueueEntry::Job(job) => Some(job.clone()),
                    _ => None,
                };
                return (first.bytes().min(PAGE_RECORD_BYTES_MAX), job);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Takes the first.
    pub(crate) fn pop(&self) -> Option<QueueEntry> {
        let mut state = self.state.lock();
        let first = state.waiting.pop_front()?;
        state.bytes -= first.bytes();
        state.submitting = true;
        self.changed.notify_all();
        Some(first)
    }

    /// Nobody takes anything from it any more.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        *state = State { closed: true, ..State::default() };
        self.changed.notify_all();
    }
}
