//! Something that is asked for until it is not wanted any more.

use std::time::Duration;

/// How long after a request that came to nothing the same is asked for again.
pub(super) const REPEAT_PERIOD: Duration = Duration::from_millis(500);

/// Something that is asked for until it is not wanted any more.
#[derive(Clone, Debug)]
pub(super) struct RepeatedWant<T> {
    what: Option<T>,
    /// When the same is asked for again; [`Duration::MAX`]: never.
    pub(super) again_at: Duration,
}

impl<T> Default for RepeatedWant<T> {
    fn default() -> Self {
        RepeatedWant { what: None, again_at: Duration::MAX }
    }
}

impl<T: PartialEq + Clone> RepeatedWant<T> {
    /// Returns what to ask for now, if that is due.
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
