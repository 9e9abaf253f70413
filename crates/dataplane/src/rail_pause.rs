//! Says for how long a path does without RDMA after RDMA could not be used.

use std::time::{Duration, Instant};

/// The pause after the first failure; each further failure doubles the pause.
const FAILED_FIRST: Duration = Duration::from_secs(30);
/// The longest pause, and the pause of a path without a rail.
const LONGEST: Duration = Duration::from_secs(300);

/// The time for which a path does without RDMA.
#[derive(Debug)]
pub(crate) struct RailPause {
    until: Option<Instant>,
    after_failure: Duration,
    /// When RDMA was begun last, if it has not failed since.
    begun: Option<Instant>,
}

impl Default for RailPause {
    fn default() -> RailPause {
        RailPause { until: None, after_failure: FAILED_FIRST, begun: None }
    }
}

impl RailPause {
    /// Returns whether RDMA is not to be tried now.
    pub(crate) fn lasts(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Begins a pause, as an end has no rail there.
    pub(crate) fn begin_without_rail(&mut self, now: Instant) {
        self.until = Some(now + LONGEST);
    }

    /// Takes in that the path has come to RDMA.
    pub(crate) fn note_begun(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    /// Begins a pause, as a rail could not be opened, or failed. What was lost once may pass next time. After RDMA has
    /// lasted for as long as the longest pause, the next one is the first again.
    pub(crate) fn begin_after_failure(&mut self, now: Instant) {
        if self.begun.take().is_some_and(|begun| now.saturating_duration_since(begun) >= LONGEST) {
            self.after_failure = FAILED_FIRST;
        }
        self.until = Some(now + self.after_failure);
        self.after_failure = (2 * self.after_failure).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_each_failure() {
        let begin = Instant::now();
        let mut pause = RailPause::default();
        assert!(!pause.lasts(begin));
        let mut now = begin;
        for seconds in [30, 60, 120, 240, 300, 300] {
            pause.begin_after_failure(now);
            assert!(pause.lasts(now + Duration::from_secs(seconds - 1)));
            now += Duration::from_secs(seconds);
            assert!(!pause.lasts(now), "{seconds} s");
        }
        for (lasted, seconds) in [(299, 300), (300, 30)] {
            pause.note_begun(now);
            now += Duration::from_secs(lasted);
            pause.begin_after_failure(now);
            now += Duration::from_secs(seconds);
            assert!(pause.lasts(now - Duration::from_secs(1)) && !pause.lasts(now), "{lasted} s");
        }
    }

    #[test]
    fn a_path_without_a_rail_is_asked_again_seldom() {
        let now = Instant::now();
        let mut pause = RailPause::default();
        pause.begin_without_rail(now);
        assert!(pause.lasts(now + LONGEST - Duration::from_millis(1)) && !pause.lasts(now + LONGEST));
    }
}
