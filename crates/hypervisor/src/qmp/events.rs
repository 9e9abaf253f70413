//! Is what a subscriber receives of a QEMU, and the bounded queue that events wait in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::qmp::message::QmpEvent;

/// What a subscriber receives.
#[derive(Debug, Clone, PartialEq)]
pub enum MonitorEvent {
    /// An event of QEMU.
    Event(QmpEvent),
    /// The connection is over: QEMU ended, or another client took its place. Nothing follows.
    Closed,
}

/// A subscriber's events: a bounded queue that drops its oldest.
#[derive(Debug)]
pub struct Events(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    capacity: usize,
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<QmpEvent>,
    closed: bool,
    dropped: u64,
}

impl Events {
    pub(crate) fn new(capacity: usize) -> (impl FnMut(MonitorEvent) -> bool + Send + 'static, Self) {
        let queue = Arc::new(Queue { capacity, waiting: Mutex::default(), arrived: Condvar::new() });
        let of_sink = Arc::downgrade(&queue);
        let sink = move |event| {
            // The subscriber may have gone.
            let Some(queue) = of_sink.upgrade() else { return false };
            let mut waiting = queue.waiting.lock();
            match event {
                MonitorEvent::Closed => waiting.closed = true,
                MonitorEvent::Event(event) => {
                    if waiting.events.len() >= queue.capacity {
                        waiting.events.pop_front();
                        waiting.dropped += 1;
                    }
                    waiting.events.push_back(event);
                }
            }
            queue.arrived.notify_all();
            true
        };
        (sink, Self(queue))
    }

    /// Returns the oldest event not yet taken, and waits up to `wait` for one. After the last it always returns
    /// [`MonitorEvent::Closed`] if the connection is over.
    pub fn next(&self, wait: Duration) -> Option<MonitorEvent> {
        let end = Instant::now() + wait;
        let mut waiting = self.0.waiting.lock();
        loop {
            if let Some(event) = waiting.events.pop_front() {
                return Some(MonitorEvent::Event(event));
            }
            if waiting.closed {
                return Some(MonitorEvent::Closed);
            }
            if self.0.arrived.wait_until(&mut waiting, end).timed_out() && waiting.events.is_empty() && !waiting.closed
            {
                return None;
            }
        }
    }

    /// Returns how many events were lost because they were not taken in time.
    pub fn dropped(&self) -> u64 {
        self.0.waiting.lock().dropped
    }
}
