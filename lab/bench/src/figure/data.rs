//! What a case measured, and the numbers that checks take from it.

use std::collections::BTreeMap;

use super::part::Measured;
use crate::{
    mover::Mover,
    results::{Run, Yardstick},
    stats::median,
};

/// What a case measured, as the figure sees it.
#[derive(Clone, Copy)]
pub struct Data<'a> {
    /// The mover that the figure is about.
    pub subject: Mover,
    /// The runs of this case.
    pub runs: &'a [Run],
    /// The yardsticks of this case.
    pub yardsticks: &'a [Yardstick],
}

/// Returns the median throughput of one mover's runs in one stage, in bits per second: guest content from the first to
/// the last byte, of all guests that moved together in one direction. Returns `None` if no run completed.
pub fn throughput_bps<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Option<f64> {
    let rates: Vec<f64> = goodputs(runs.into_iter()).into_iter().map(|(_, rate)| rate).collect();
    median(&rates)
}

/// The least value of a peer.
#[derive(Clone, Copy)]
pub(super) struct Least {
    pub(super) value: f64,
    /// Whether the peer came to an end. If not, its value is known to be larger.
    pub(super) ended: bool,
}

pub(super) fn completed(run: &Run) -> Option<&Run> {
    run.error.is_none().then_some(run)
}

impl<'a> Data<'a> {
    pub(super) fn of(self, stage: &'a str, mover: Mover) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |r| r.stage == stage && r.mover == mover)
    }

    /// Returns the median over the runs that have a value.
    pub(super) fn median_of(
        self,
        stage: &'a str,
        mover: Mover,
        value: impl Fn(&Run) -> Option<f64>,
    ) -> Result<f64, String> {
        median(&self.of(stage, mover).filter_map(completed).filter_map(value).collect::<Vec<_>>())
            .ok_or_else(|| self.why_none(stage, mover))
    }

    /// Returns why there is no value of a mover.
    pub(super) fn why_none(self, stage: &'a str, mover: Mover) -> String {
        let ran = self.of(stage, mover).next().is_some();
        let ended = self.of(stage, mover).any(|r| r.called_off_s.is_none());
        let why = match (ran, ended) {
            (false, _) => "was not measured",
            (true, true) => "did not complete",
            (true, false) => "did not end",
        };
        format!("{} {why}", mover.label())
    }

    /// Returns the median of the runs that came to an end. If all runs of a mover were called off, returns the time
    /// after which the first was.
    pub(super) fn least_total(self, stage: &'a str, mover: Mover) -> Result<Least, String> {
        self.total(stage, mover).map(|value| Least { value, ended: true }).or_else(|why| {
            let called_off = self.of(stage, mover).filter_map(|r| r.called_off_s).reduce(f64::min);
            called_off.map(|value| Least { value, ended: false }).ok_or(why)
        })
    }

    /// Returns the peer with the least value. A peer that came to an end is better than one that did not.
    pub(super) fn best(
        self,
        peers: &[Mover],
        of: impl Fn(Mover) -> Result<Least, String>,
    ) -> Result<(Mover, Least), String> {
        let known = peers.iter().filter_map(|&peer| Some((peer, of(peer).ok()?)));
        known
            .min_by(|(_, a), (_, b)| b.ended.cmp(&a.ended).then(a.value.total_cmp(&b.value)))
            .ok_or_else(|| "no peer was measured".into())
    }

    /// Compares with a peer. If the peer did not come to an end, only what is met for certain can be judged.
    pub(super) fn against_best(
        self,
        own: f64,
        peer: Mover,
        best: Least,
        words: fn(f64) -> String,
        at_most: f64,
    ) -> Measured {
        let ratio = own / best.value;
        let (own, reference, label) = (words(own), words(best.value), peer.label());
        match best.ended {
            true => Ok((ratio, format!("{ratio:.3} x ({own} against {reference} of {label})"))),
            false if ratio <= at_most => Ok((
                ratio,
                format!("less than {ratio:.3} x ({own}; {label} did not end in {reference}, nor any other)"),
            )),
            false => Err(format!("{own}; no peer ended, {label} not in {reference}")),
        }
    }

    /// Returns the RAM of the guest, and by how much the subject's anonymous memory at the source grew, from the least
    /// that either end had before any migration.
    pub(super) fn source_growth(self, stage: &'a str) -> Result<(f64, f64), String> {
        let seen: Vec<_> = self
            .of(stage, self.subject)
            .filter_map(|r| Some((r.guest_memory_bytes, r.private_memory?)))
            .filter(|(ram, _)| *ram > 0)
            .collect();
        let idle = seen.iter().flat_map(|(_, m)| [m.source.before_bytes, m.target.before_bytes]).min();
        let most = seen.iter().map(|(_, m)| m.source.most_bytes).max();
        let ram = seen.first().map(|(ram, _)| *ram as f64);
        ram.zip(idle.zip(most))
            .map(|(ram, (idle, most))| (ram, most.saturating_sub(idle) as f64))
            .ok_or("memory was not watched".into())
    }

    pub(super) fn median(
        self,
        stage: &'a str,
        mover: Mover,
        value: impl Fn(&Run) -> Option<f64>,
        words: impl Fn(f64) -> String,
    ) -> Measured {
        self.median_of(stage, mover, value).map(|value| (value, words(value)))
    }

    pub(super) fn total(self, stage: &'a str, mover: Mover) -> Result<f64, String> {
        self.median_of(stage, mover, |r| r.total_s)
    }

    pub(super) fn gap(self, stage: &'a str, mover: Mover) -> Result<f64, String> {
        self.median_of(stage, mover, |r| r.guest_switchover_ms)
    }

    pub(super) fn cpu_per_gb(self, stage: &'a str, mover: Mover) -> Result<f64, String> {
        self.median_of(stage, mover, Run::mover_cpu_s_per_gb)
    }

    /// Returns the sum of the links' nominal rates.
    pub(super) fn links(self, stage: &'a str, mover: Mover) -> Result<f64, String> {
        let run = self.of(stage, mover).next().ok_or_else(|| format!("{} was not run", mover.label()))?;
        let sum: Option<u64> = run.link_bps.iter().copied().sum();
        sum.map(|bps| bps as f64).ok_or("the links have no nominal rate".into())
    }

    /// Returns the median throughput; see [`throughput_bps`].
    pub(super) fn goodput(self, stage: &'a str, mover: Mover) -> Result<f64, String> {
        throughput_bps(self.of(stage, mover)).ok_or_else(|| match self.of(stage, mover).next() {
            None => format!("{} was not measured", mover.label()),
            Some(_) => format!("{} did not complete", mover.label()),
        })
    }

    /// Returns the same as [`Self::goodput`] for each direction, named `a to b`.
    pub(super) fn goodput_each_way(self, stage: &'a str, mover: Mover) -> Result<BTreeMap<String, f64>, String> {
        let mut ways: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (way, rate) in goodputs(self.of(stage, mover)) {
            ways.entry(way).or_default().push(rate);
        }
        let ways: BTreeMap<_, _> = ways.into_iter().filter_map(|(way, rates)| Some((way, median(&rates)?))).collect();
        if ways.is_empty() { Err(format!("{} was not measured", mover.label())) } else { Ok(ways) }
    }
}

/// Returns one value for each round and direction in which all guests completed.
pub(super) fn goodputs<'a>(runs: impl Iterator<Item = &'a Run>) -> Vec<(String, f64)> {
    let mut groups: BTreeMap<(u32, String), Vec<&Run>> = BTreeMap::new();
    for run in runs {
        groups.entry((run.round, format!("{} to {}", run.source, run.target))).or_default().push(run);
    }
    groups.into_iter().filter_map(|((_, way), group)| Some((way, together_bps(&group)?))).collect()
}

/// Returns the guest content of all from the first byte of any to the last byte of any, in bits per second. Returns
/// `None` unless all completed.
pub(super) fn together_bps(group: &[&Run]) -> Option<f64> {
    let all = |moment: fn(&Run) -> Option<f64>| {
        group.iter().map(|r| completed(r).and_then(moment)).collect::<Option<Vec<_>>>()
    };
    let first = all(|r| r.first_byte_s)?.into_iter().reduce(f64::min)?;
    let last = all(|r| r.last_byte_s)?.into_iter().reduce(f64::max)?;
    let bytes: u64 = group.iter().map(|r| r.guest_bytes).sum();
    (last > first).then(|| bytes as f64 * 8.0 / (last - first))
}
