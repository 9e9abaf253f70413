//! Says how far a copy is, for commands and for the event log.

use std::collections::VecDeque;
use std::time::Duration;

use skein_api::{CopyProgress, PageFigures};
use skein_forecast::Convergence;
use skein_hypervisor::{CopyState, MigrationState};
use skein_inventory::Route;

use super::environment::CopiedPages;
use crate::migrations::offer::Offer;
use crate::to_api::ToApi;

/// The rate that is shown is that of the last so many bytes, as a hypervisor hands them over in bursts …
const RATE_BYTES: u64 = 8 << 20;
/// … or of this time, if it moved less.
const RATE_TIME: Duration = Duration::from_secs(5);
/// The time between two progress entries of the event log.
const LOG_PERIOD: Duration = Duration::from_secs(10);
/// A guest that may be throttled is always throttled by at least this percentage: QEMU's settings take no less.
const THROTTLE_LEAST_PERCENT: u8 = 1;

/// Whether progress is worth an entry of the event log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logged {
    Yes,
    No,
}

/// Follows one copy.
#[derive(Debug)]
pub(super) struct ProgressWatch {
    /// The times at which the rate was computed of late, and the bytes transferred by then.
    rate_samples: VecDeque<(Duration, u64)>,
    logged_at: Duration,
    is_placement_noted: bool,
    is_lack_noted: bool,
}

/// Returns by how many per cent the guest is throttled, as people are told: the least throttle counts as none.
pub(super) fn throttle_percent(state: &MigrationState) -> u8 {
    state.throttle_percent.filter(|percent| *percent > THROTTLE_LEAST_PERCENT).unwrap_or(0)
}

impl ProgressWatch {
    pub(super) fn new(now: Duration) -> ProgressWatch {
        ProgressWatch { rate_samples: VecDeque::new(), logged_at: now, is_placement_noted: false, is_lack_noted: false }
    }

    /// Returns the bits a second that the hypervisor transferred of late; 0: not known.
    pub(super) fn rate(&mut self, now: Duration, copy: &CopyState) -> u64 {
        let bytes = copy.transferred_bytes;
        if self.rate_samples.back().is_some_and(|(_, before)| *before > bytes) {
            self.rate_samples.clear();
        }
        let is_enough = |(at, before): &(Duration, u64)| {
            now.saturating_sub(*at) >= RATE_TIME || bytes.saturating_sub(*before) >= RATE_BYTES
        };
        while self.rate_samples.get(1).is_some_and(is_enough) {
            self.rate_samples.pop_front();
        }
        let since = self.rate_samples.front().copied();
        self.rate_samples.push_back((now, bytes));
        let Some((at, before)) = since else { return 0 };
        let seconds = now.saturating_sub(at).as_secs_f64().max(0.001);
        ((bytes - before) as f64 * 8.0 / seconds) as u64
    }

    /// Returns whether this progress goes into the event log. One entry comes every [`LOG_PERIOD`], and one
    /// when the migration is over.
    pub(super) fn is_logged(&mut self, now: Duration, state: &MigrationState) -> Logged {
        if now.saturating_sub(self.logged_at) < LOG_PERIOD && !state.status.is_over() {
            return Logged::No;
        }
        self.logged_at = now;
        Logged::Yes
    }

    /// Returns a line for the event log if RAM that should be compared is not. Returns it once.
    pub(super) fn note_lack(&mut self, pages: &PageFigures) -> Option<String> {
        if pages.not_compared.is_empty() || self.is_lack_noted {
            return None;
        }
        self.is_lack_noted = true;
        Some(format!("warning: {}", pages.not_compared))
    }

    /// Returns lines for the event log on how the pages get to the RAM of the guest at `target`, once that is known.
    /// Returns them once.
    pub(super) fn note_placement(&mut self, pages: &PageFigures, builds_on_kept: bool, target: &str) -> Vec<String> {
        let Some(direct) = pages.direct.filter(|_| !self.is_placement_noted) else { return Vec::new() };
        self.is_placement_noted = true;
        let text = match (direct, &pages.why_not_direct[..]) {
            (true, "") => "direct placement: yes".into(),
            (true, why) => format!("direct placement: of smaller blocks only: {why}"),
            (false, why) => format!("direct placement: no: {why}"),
        };
        let built_on = builds_on_kept.then(|| format!("built on what {target} kept of the guest's RAM"));
        [text].into_iter().chain(built_on).collect()
    }
}

/// Returns how far the copy is.
pub(super) fn progress(
    copy: &CopyState,
    bits_per_s: u64,
    converges: Option<Convergence>,
    throttle_percent: u8,
    remaining_wire_bytes: Option<u64>,
    pages: Option<PageFigures>,
) -> CopyProgress {
    CopyProgress {
        total_bytes: copy.total_bytes,
        remaining_bytes: copy.remaining_bytes,
        remaining_wire_bytes,
        transferred_bytes: copy.transferred_bytes,
        round: copy.round,
        dirty_bytes_per_s: copy.dirty_bytes_per_s,
        bits_per_s,
        converges: converges.to_api(),
        throttle_percent,
        pages,
    }
}

/// Returns where the bytes of the pages went so far, of a guest with `ram_bytes` of RAM.
pub(super) fn page_figures(pages: &dyn CopiedPages, offer: Option<&Offer>, ram_bytes: u64) -> PageFigures {
    let counts = pages.counts();
    let sent_bytes = counts.guest_bytes().saturating_sub(counts.repaired_bytes());
    PageFigures {
        transport: offer.map_or_else(Route::default, |offer| offer.transport).to_api(),
        direct: pages.is_direct(),
        why_not_direct: offer.and_then(|offer| offer.indirect.clone()).unwrap_or_else(|| pages.why_not_direct()),
        not_compared: pages.not_compared(),
        again_bytes: sent_bytes.saturating_sub(ram_bytes),
        counts: counts.to_api(),
    }
}

#[cfg(test)]
mod tests {
    use skein_hypervisor::MigrationStatus;

    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_rate_is_a_difference() {
        let mut watch = ProgressWatch::new(at(0));
        let mut rate = |ms, bytes| watch.rate(at(ms), &CopyState { transferred_bytes: bytes, ..CopyState::default() });
        assert_eq!((rate(100, 500), rate(200, 1500), rate(200, 1501)), (0, 80_000, 80_080));
        assert_eq!(rate(300, 10), 0, "a migration that begins anew");
        // Ten MB at once are a rate of their own.
        assert_eq!((rate(400, 10_000_010), rate(500, 20_000_010)), (800_000_000, 800_000_000));
    }

    #[test]
    fn a_rate_between_two_bursts_is_not_zero() {
        let mut watch = ProgressWatch::new(at(0));
        // 4 MB every 3.2 s are 10 Mb/s.
        let rates = (0..200).map(|tenth| {
            let transferred_bytes = tenth / 32 * 4_000_000;
            watch.rate(at(tenth * 100), &CopyState { transferred_bytes, ..CopyState::default() })
        });
        let rates: Vec<u64> = rates.skip(60).collect();
        assert!(rates.iter().all(|rate| (5_000_000..17_000_000).contains(rate)), "{rates:?}");
    }

    #[test]
    fn the_log_has_every_tenth_second_and_the_end() {
        let mut watch = ProgressWatch::new(at(0));
        let state = |status| MigrationState { status, ..MigrationState::default() };
        let active = state(MigrationStatus::Active);
        let logged: Vec<u64> = (0..250).filter(|n| watch.is_logged(at(n * 100), &active) == Logged::Yes).collect();
        assert_eq!(logged, [100, 200]);
        assert_eq!(watch.is_logged(at(25_000), &state(MigrationStatus::Completed)), Logged::Yes);
    }

    #[test]
    fn how_pages_get_there_is_noted_once_it_is_known() {
        let figures = |direct, why: &str| PageFigures {
            transport: Route::default().to_api(),
            direct,
            why_not_direct: why.into(),
            not_compared: String::new(),
            again_bytes: 0,
            counts: skein_api::PageCounts::default(),
        };
        let noted = |figures: &PageFigures, kept| ProgressWatch::new(at(0)).note_placement(figures, kept, "b");
        assert_eq!(
            noted(&figures(Some(true), ""), true),
            ["direct placement: yes", "built on what b kept of the guest's RAM"]
        );
        assert_eq!(
            noted(&figures(Some(true), "private"), false),
            ["direct placement: of smaller blocks only: private"]
        );
        let mut watch = ProgressWatch::new(at(0));
        assert!(watch.note_placement(&figures(None, ""), false, "b").is_empty());
        let no = figures(Some(false), "private");
        assert_eq!(watch.note_placement(&no, false, "b"), ["direct placement: no: private"]);
        assert!(watch.note_placement(&no, false, "b").is_empty(), "once");
        assert_eq!(watch.note_lack(&no), None);
        let lacks = PageFigures { not_compared: "RAM block 'pc.ram' is not compared".into(), ..no };
        assert_eq!(watch.note_lack(&lacks).as_deref(), Some("warning: RAM block 'pc.ram' is not compared"));
        assert_eq!(watch.note_lack(&lacks), None, "once");
    }

    #[test]
    fn the_least_throttle_is_none() {
        let state = |throttle_percent| MigrationState { throttle_percent, ..MigrationState::default() };
        assert_eq!([None, Some(1), Some(2)].map(|percent| throttle_percent(&state(percent))), [0, 0, 2]);
    }
}
