//! Judges what the controller's page takes in a browser. This is pure.

use serde::Deserialize;
use skein_units::measured;

use crate::figure::Limit::AtMost;
use crate::figure::{Measured, part};
use crate::results::Part;

/// From the address until the first row answers a click, in milliseconds.
const OPENED_MS: f64 = 1500.0;
/// What the browser takes of a core as 50 events a second come.
const CORES: f64 = 0.3;
/// How much the page's memory may grow from the first third of the time to the last, as a share.
const GROWTH: f64 = 0.1;
/// How old a sample is on the screen, in milliseconds, in 95 of 100.
const AGE_MS: f64 = 500.0;
/// What 50 pages cost the controller, as a share of a core.
const MANY_CORES: f64 = 0.1;

/// What `browser/figures.mjs open` prints.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Opened {
    /// How long each page took to answer a click, in milliseconds, the quickest first.
    pub opened_ms: Vec<f64>,
    /// What the browser took of a core, in the median.
    pub cores: f64,
    /// The page's memory in bytes, look by look, after a collection each.
    pub heap_bytes: Vec<f64>,
}

/// What `browser/figures.mjs live` prints.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Live {
    /// The samples that were shown.
    pub samples: u32,
    /// How old they were.
    pub p50_ms: f64,
    pub p95_ms: f64,
}

/// What `browser/figures.mjs many` prints: what the controller takes of a core without a page, and with many.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Many {
    pub cores_without: f64,
    pub cores_many: f64,
    /// The requests of each page, those that failed, and the bytes that came.
    pub requests: u32,
    pub failed: u32,
    pub bytes: f64,
}

/// Returns the figure's parts of a large cluster. `None`: nothing was measured.
pub fn judge_large(seen: Option<&Opened>) -> Vec<Part> {
    let of = |measured: fn(&Opened) -> Measured| seen.ok_or_else(nothing).and_then(measured);
    let opened = of(|seen| {
        let median = *seen.opened_ms.get(seen.opened_ms.len() / 2).ok_or_else(nothing)?;
        let most = seen.opened_ms.last().copied().unwrap_or(median);
        Ok((median, format!("{} in the median of {} ({} at most)", ms(median), seen.opened_ms.len(), ms(most))))
    });
    let cores = of(|seen| Ok((seen.cores, measured::percent(seen.cores))));
    let grown = of(|seen| {
        let third = (seen.heap_bytes.len() / 3).max(1);
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
        let first = mean(seen.heap_bytes.get(..third).ok_or_else(nothing)?);
        let last = mean(&seen.heap_bytes[seen.heap_bytes.len() - third..]);
        let words = format!("{} to {}", measured::bytes(first), measured::bytes(last));
        Ok((last / first - 1.0, format!("{} ({words})", measured::percent(last / first - 1.0))))
    });
    vec![
        part("from the address to the first row that answers, 1.5 s".into(), AtMost(OPENED_MS), opened),
        part("50 events a second take 30 % of a core of the browser".into(), AtMost(CORES), cores),
        part("the page's memory does not grow, by more than a tenth".into(), AtMost(GROWTH), grown),
    ]
}

/// Returns the figure's parts of a migration that is watched. `None`: nothing was measured.
pub fn judge_live(seen: Option<&(Live, Many)>) -> Vec<Part> {
    let age = seen.map(|(live, _)| {
        (live.p95_ms, format!("{} ({} in the median of {})", ms(live.p95_ms), ms(live.p50_ms), live.samples))
    });
    let many = seen.map(|(_, many)| {
        let more = many.cores_many - many.cores_without;
        let words = format!("{} to {}", measured::percent(many.cores_without), measured::percent(many.cores_many));
        (more, format!("{} ({words}; {} each)", measured::percent(more), many.requests))
    });
    let failed = seen.map(|(_, many)| (f64::from(many.failed), format!("{} failed", many.failed)));
    vec![
        part("a sample is on the screen within 500 ms, 95 of 100".into(), AtMost(AGE_MS), age.ok_or_else(nothing)),
        part("50 pages cost the controller 10 % of a core".into(), AtMost(MANY_CORES), many.ok_or_else(nothing)),
        part("none of their requests fails".into(), AtMost(0.0), failed.ok_or_else(nothing)),
    ]
}

fn ms(of: f64) -> String {
    measured::seconds(of / 1000.0)
}

fn nothing() -> String {
    "nothing was measured".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(parts: &[Part]) -> Vec<Option<bool>> {
        parts.iter().map(|part| part.met).collect()
    }

    #[test]
    fn a_page_is_judged_by_the_median_and_by_what_it_keeps() {
        let good = Opened { opened_ms: vec![700.0, 900.0, 4000.0], cores: 0.2, heap_bytes: vec![10e6, 12e6, 10e6] };
        assert_eq!(met(&judge_large(Some(&good))), [Some(true); 3]);
        let bad = Opened { opened_ms: vec![700.0, 1600.0, 1700.0], cores: 0.4, heap_bytes: vec![10e6, 12e6, 12e6] };
        assert_eq!(met(&judge_large(Some(&bad))), [Some(false); 3]);
        assert_eq!(met(&judge_large(None)), [None; 3]);
    }

    #[test]
    fn what_is_live_is_judged_by_its_age_and_by_what_many_cost() {
        let live = Live { samples: 300, p50_ms: 150.0, p95_ms: 350.0 };
        let many = Many { cores_without: 0.05, cores_many: 0.12, requests: 9, failed: 0, bytes: 1e6 };
        assert_eq!(met(&judge_live(Some(&(live.clone(), many.clone())))), [Some(true); 3]);
        let bad = (Live { p95_ms: 700.0, ..live }, Many { cores_many: 0.3, failed: 1, ..many });
        assert_eq!(met(&judge_live(Some(&bad))), [Some(false); 3]);
        assert_eq!(met(&judge_live(None)), [None; 3]);
    }
}
