//! Is the queue of lines for another agent.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

use super::control_message::LINE_BYTES_MAX;

/// Bounds the lines that wait to be written: what an agent says of a thousand migrations.
const QUEUE_LINES_MAX: usize = 4096;
/// Bounds all their bytes: the longest line twice.
const QUEUE_BYTES_MAX: usize = 2 * LINE_BYTES_MAX as usize;

/// The lines that wait to be written.
#[derive(Default)]
pub(super) struct OutgoingLines {
    waiting: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    closed: bool,
}

impl OutgoingLines {
    /// Adds a line. Returns false if there is no room, or nobody writes any more.
    pub(super) fn add(&self, line: Vec<u8>) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.closed || waiting.lines.len() >= QUEUE_LINES_MAX || waiting.bytes + line.len() > QUEUE_BYTES_MAX {
            return false;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line);
        self.changed.notify_one();
        true
    }

    /// Forgets the waiting lines, and takes no line any more.
    pub(super) fn close(&self) {
        *self.waiting.lock() = Lines { closed: true, ..Lines::default() };
        self.changed.notify_one();
    }

    /// Waits for the next line, until the lines are closed.
    pub(super) fn next(&self) -> Option<Vec<u8>> {
        let mut waiting = self.waiting.lock();
        self.changed.wait_while(&mut waiting, |waiting| waiting.lines.is_empty() && !waiting.closed);
        let line = waiting.lines.pop_front()?;
        waiting.bytes -= line.len();
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_refuses_and_a_closed_one_ends() {
        let outgoing = OutgoingLines::default();
        assert!(outgoing.add(vec![0; QUEUE_BYTES_MAX]));
        assert!(!outgoing.add(vec![0]));
        assert_eq!(outgoing.next().unwrap().len(), QUEUE_BYTES_MAX);
        assert!((0..QUEUE_LINES_MAX).all(|_| outgoing.add(vec![0])));
        assert!(!outgoing.add(vec![0]));
        outgoing.close();
        assert!(outgoing.next().is_none() && !outgoing.add(vec![0]));
    }
}
