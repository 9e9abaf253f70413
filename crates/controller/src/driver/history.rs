//! What the store still has of the past, and what of that is to be forgotten.

use std::collections::VecDeque;
use std::time::Duration;

use skein_store::{Change, Revision, WatchBatch};

/// How much history is kept at most, about. What is changed often is forgotten earlier than the time says.
const BYTES_MAX: usize = 64 << 20;
/// How many bytes a store needs beside a change's key and value, about.
const CHANGE_BYTES: usize = 256;

/// The revisions of a store that are not forgotten yet.
#[derive(Debug, Default)]
pub(super) struct History {
    revisions: VecDeque<Past>,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Past {
    /// When it was the newest.
    at: Duration,
    revision: Revision,
    bytes: usize,
}

impl History {
    /// Adds the newest revision.
    pub fn push(&mut self, now: Duration, batch: &WatchBatch) {
        let sizes = batch.events.iter().map(|event| match &event.change {
            Change::Put(entry) => event.key.as_str().len() + entry.value.as_bytes().len() + CHANGE_BYTES,
            Change::Deleted => event.key.as_str().len() + CHANGE_BYTES,
        });
        let bytes = sizes.sum();
        self.bytes += bytes;
        self.revisions.push_back(Past { at: now, revision: batch.revision, bytes });
    }

    /// Returns whether there is so much of it that some is to be forgotten now.
    pub fn is_full(&self) -> bool {
        self.bytes > BYTES_MAX
    }

    /// Takes away what is older than `kept`, and all above the half of what may be there if it is full. Returns the
    /// last revision that was taken away.
    pub fn forget(&mut self, now: Duration, kept: Duration) -> Option<Revision> {
        let bytes_kept = if self.is_full() { BYTES_MAX / 2 } else { BYTES_MAX };
        let mut through = None;
        while let Some(past) = self.revisions.front().copied()
            && (now.saturating_sub(past.at) > kept || self.bytes > bytes_kept)
        {
            through = Some(past.revision);
            self.bytes -= past.bytes;
            self.revisions.pop_front();
        }
        through
    }
}

#[cfg(test)]
mod tests {
    use skein_store::{Key, WatchEvent};

    use super::*;

    #[test]
    fn history_is_bounded_by_time_and_by_size() {
        let at = Duration::from_secs;
        let batch = |revision: u64| {
            let deleted = WatchEvent { key: Key::new(&"a".repeat(200)).unwrap(), change: Change::Deleted };
            WatchBatch { revision: Revision(revision), events: vec![deleted; 1000] }
        };
        let mut history = History::default();
        (1..=10).for_each(|revision| history.push(at(revision), &batch(revision)));
        assert!(!history.is_full());
        assert_eq!(history.forget(at(605), at(600)), Some(Revision(4)));
        assert_eq!(history.forget(at(605), at(600)), None);
        let mut next = 11;
        while !history.is_full() {
            history.push(at(605), &batch(next));
            next += 1;
        }
        // Far less than the time says, and not all of it.
        let through = history.forget(at(605), at(600)).unwrap();
        assert!(through.0 > 10 && through.0 < next - 1 && !history.is_full(), "{through:?} of {next}");
        assert_eq!(history.bytes, history.revisions.iter().map(|past| past.bytes).sum::<usize>());
    }
}
