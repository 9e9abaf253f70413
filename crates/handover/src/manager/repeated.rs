//! A want that is asked for again until it is no longer there.

use std::time::Duration;

/// How long after a request without effect the same request is made again.
pub(super) const REPEAT_PERIOD: Duration = Duration::from_millis(500);

/// A want that is asked for again until it is no longer there.
#[derive(Clone, Debug)]
pub(super) struct RepeatedWant<T> {
    what: Option<T>,
    /// When the same is asked for again. [`Duration::MAX`]: never.
    pub(super) again_at: Duration,
}

impl<T> Default for RepeatedWant<T> {
    fn default() -> Self {
        RepeatedWant { what: None, again_at: Duration::MAX }
    }
}

impl<T: PartialEq + Clone> RepeatedWant<T> {
    /// Returns what to ask for now. `None`: nothing is wanted, or the repetition is not yet due.
    pub(super) fn want(&mut self, now: Duration, what: Option<T>) -> Option<T> {
        if what.is_none() {
            *self = RepeatedWant::default();
            return None;
        }
        if self.what == what && now < self.again_at {
            return None;
        }
        self.what = what.clone();
        self.again_at = now + REPEAT_PERIOD;
        what
    }
}
