//! Decides when bulk data has waited for too long while every path is barred from carrying such data.

use std::time::Duration;

/// Bulk data that was last seen to wait so long ago waits no more. Control connections take a little of a stream now
/// and then, and between two such moments nothing waits.
const REST_TIME: Duration = Duration::from_secs(5);

/// Whether paths are barred, and since when bulk data waits for that.
#[derive(Debug, Default)]
pub(super) struct Barred {
    /// Why no path may carry bulk data; empty: a path may.
    why: String,
    /// When bulk data was first and last seen to wait.
    waited: Option<(Duration, Duration)>,
}

impl Barred {
    /// Notes why none of the paths that are up may carry bulk data; empty: a path may.
    pub(super) fn note(&mut self, why: &str) {
        if self.why != why {
            self.why = why.to_owned();
        }
    }

    /// Returns why no path may carry bulk data, once such data has waited for `outage`. `carries`: a connection for
    /// such data is there.
    pub(super) fn is_out(&mut self, now: Duration, carries: bool, waits: bool, outage: Duration) -> Option<&str> {
        if self.why.is_empty() || carries {
            self.waited = None;
            return None;
        }
        self.waited = match self.waited {
            waited if waits => Some((waited.map_or(now, |(first, _)| first), now)),
            waited => waited.filter(|(_, last)| now.saturating_sub(*last) < REST_TIME),
        };
        let (first, last) = self.waited?;
        (last == now && now.saturating_sub(first) >= outage).then_some(&*self.why)
    }
}
