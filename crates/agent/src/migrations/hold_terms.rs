//! Says how a migration is held: for how long, and when its guest switches by itself. Pure: time is an argument.

use std::time::Duration;

use jiff::Timestamp;
use skein_api::{HoldOptions, HoldView, SwitchWindow};

use super::source::Freshness;

/// The longest hold if nothing else is asked for.
const HOLD_DEFAULT: Duration = Duration::from_secs(24 * 3600);
/// A hold lasts beyond the beginning of its window by this, so that the window is seen to open first.
const WINDOW_SLACK: Duration = Duration::from_secs(60);
/// Bounds the time until a window opens: the longest hold that may be asked for.
const WINDOW_AHEAD_MAX: Duration = Duration::from_secs(*skein_api::HOLD_RANGE_S.end());

/// How a migration is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HoldTerms {
    /// How long the guest may be held.
    pub(super) longest: Duration,
    window: Option<Window>,
}

/// The moments at which a guest switches by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    from: Timestamp,
    until: Option<Timestamp>,
}

/// What a window says at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowState {
    /// The window is not open yet.
    Ahead,
    /// The guest may switch.
    Open,
    /// The migration is called off if its guest has not switched.
    Over,
}

/// The reason why a migration is not held so.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RefusedTerms {
    #[error("the window to switch in was over at {0:.0}")]
    Over(Timestamp),
    #[error("the window to switch in opens at {0:.0}, which is more than 30 days ahead")]
    FarAhead(Timestamp),
}

impl HoldTerms {
    /// Returns the terms that a person asked for.
    ///
    /// # Errors
    /// The window is over, or is too far ahead.
    pub(super) fn new(asked: &HoldOptions, now: Timestamp) -> Result<HoldTerms, RefusedTerms> {
        let window = asked.window.map(|SwitchWindow { from_unix_s, until_unix_s }| Window {
            from: timestamp(from_unix_s),
            until: until_unix_s.map(timestamp),
        });
        let mut longest = asked.longest_s.map_or(HOLD_DEFAULT, Duration::from_secs);
        if let Some(Window { from, until }) = window {
            if let Some(until) = until.filter(|until| *until <= now) {
                return Err(RefusedTerms::Over(until));
            }
            let ahead = Duration::try_from(from.duration_since(now)).unwrap_or_default();
            if ahead > WINDOW_AHEAD_MAX {
                return Err(RefusedTerms::FarAhead(from));
            }
            if asked.longest_s.is_none() {
                let left = until.map(|until| Duration::try_from(until.duration_since(now)).unwrap_or_default());
                longest = left.unwrap_or_default().min(WINDOW_AHEAD_MAX).max(ahead + WINDOW_SLACK);
            }
        }
        Ok(HoldTerms { longest, window })
    }

    /// Returns what the window says now; `None`: there is no window.
    pub(super) fn window(&self, now: Timestamp) -> Option<WindowState> {
        let window = self.window?;
        Some(match window.until {
            Some(until) if until <= now => WindowState::Over,
            _ if window.from <= now => WindowState::Open,
            _ => WindowState::Ahead,
        })
    }

    /// Returns how people see the hold. `since` is when the guest came to be held, if it is held.
    pub(super) fn view(&self, since: Option<&str>, freshness: Option<Freshness>) -> HoldView {
        let ends = || Some(since?.parse::<Timestamp>().ok()? + self.longest);
        let until = self.window.and_then(|window| window.until);
        HoldView {
            since: since.map(str::to_owned),
            dirty_bytes: freshness.map(|freshness| freshness.dirty_bytes),
            downtime_ms: freshness.map(|freshness| freshness.downtime_ms),
            switches_from: self.window.map(|window| shown(window.from)),
            called_off_at: ends().into_iter().chain(until).min().map(shown),
        }
    }
}

/// Returns the moment so many seconds after 1970 began; the last moment that there is, if the number is beyond that.
fn timestamp(unix_s: u64) -> Timestamp {
    i64::try_from(unix_s).ok().and_then(|seconds| Timestamp::from_second(seconds).ok()).unwrap_or(Timestamp::MAX)
}

fn shown(time: Timestamp) -> String {
    format!("{time:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    fn terms(longest_s: Option<u64>, window: Option<(u64, Option<u64>)>) -> Result<HoldTerms, RefusedTerms> {
        let window = window.map(|(from_unix_s, until_unix_s)| SwitchWindow { from_unix_s, until_unix_s });
        HoldTerms::new(&HoldOptions { longest_s, window }, timestamp(100 * DAY))
    }

    #[test]
    fn a_hold_lasts_a_day_or_until_its_window() {
        assert_eq!(terms(None, None).unwrap().longest, HOLD_DEFAULT);
        assert_eq!(terms(Some(60), None).unwrap().longest, Duration::from_secs(60));
        let days = |days: u64| Duration::from_secs(days * DAY);
        assert_eq!(terms(None, Some((103 * DAY, None))).unwrap().longest, days(3) + WINDOW_SLACK);
        assert_eq!(terms(Some(60), Some((103 * DAY, None))).unwrap().longest, Duration::from_secs(60));
        assert_eq!(terms(None, Some((99 * DAY, None))).unwrap().longest, WINDOW_SLACK, "it is open already");
        assert_eq!(terms(None, Some((103 * DAY, Some(104 * DAY)))).unwrap().longest, days(4));
        assert_eq!(terms(None, Some((99 * DAY, Some(u64::MAX)))).unwrap().longest, WINDOW_AHEAD_MAX);
    }

    #[test]
    fn a_window_is_ahead_open_or_over() {
        let terms = terms(None, Some((101 * DAY, Some(102 * DAY)))).unwrap();
        for (at, state) in [
            (101 * DAY - 1, WindowState::Ahead),
            (101 * DAY, WindowState::Open),
            (102 * DAY - 1, WindowState::Open),
            (102 * DAY, WindowState::Over),
        ] {
            assert_eq!(terms.window(timestamp(at)), Some(state), "{at}");
        }
        assert_eq!(super::tests::terms(None, None).unwrap().window(Timestamp::MAX), None);
        assert!(matches!(super::tests::terms(None, Some((98 * DAY, Some(99 * DAY)))), Err(RefusedTerms::Over(_))));
        assert!(matches!(super::tests::terms(None, Some((131 * DAY, None))), Err(RefusedTerms::FarAhead(_))));
    }

    #[test]
    fn a_view_says_what_comes_first() {
        let held = terms(Some(60), None).unwrap();
        let view = held.view(Some("1970-04-11T00:00:00.000Z"), Some(Freshness { dirty_bytes: 5, downtime_ms: 7 }));
        assert_eq!((view.dirty_bytes, view.downtime_ms, view.switches_from), (Some(5), Some(7), None));
        assert_eq!(view.called_off_at.as_deref(), Some("1970-04-11T00:01:00.000Z"));
        // The window's end, though the window opens an hour before.
        let window = Some((100 * DAY + 3600, Some(100 * DAY + 7200)));
        let held = terms(None, window).unwrap().view(Some("1970-04-11T00:00:10.000Z"), None);
        assert_eq!(held.called_off_at.as_deref(), Some("1970-04-11T02:00:00.000Z"));
        let waits = terms(None, Some((101 * DAY, Some(101 * DAY + 60)))).unwrap().view(None, None);
        assert_eq!((waits.since, waits.dirty_bytes), (None, None));
        assert_eq!(waits.switches_from.as_deref(), Some("1970-04-12T00:00:00.000Z"));
        assert_eq!(waits.called_off_at.as_deref(), Some("1970-04-12T00:01:00.000Z"));
    }
}
