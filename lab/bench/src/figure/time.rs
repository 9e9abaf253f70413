//! Checks of how long migrations take.

use std::collections::BTreeMap;

use skein_units::measured;

use super::data::{Data, Least, completed};
use super::part::{Limit::AtMost, figure, labels, part, times};
use crate::{
    mover::Mover,
    results::{Part, Run},
    stats::{Summary, median},
};

pub(super) fn time_of(data: Data<'_>, stage: &'static str, peer: Mover, at_most: f64) -> Part {
    let subject = data.subject;
    part(
        figure(stage, format!("total time at most {at_most} x {}", peer.label())),
        AtMost(at_most),
        times(data.total(stage, subject), data.total(stage, peer), measured::seconds),
    )
}

pub(super) fn first_time_of(data: Data<'_>, stage: &'static str, peer: Mover, at_most: f64) -> Part {
    let first = |mover| data.median_of(stage, mover, |run| run.total_s.filter(|_| run.round == 1));
    part(
        figure(stage, format!("total time of the first migration at most {at_most} x {}", peer.label())),
        AtMost(at_most),
        times(first(data.subject), first(peer), measured::seconds),
    )
}

pub(super) fn time_of_best(data: Data<'_>, stage: &'static str, peers: &'static [Mover], at_most: f64) -> Part {
    let subject = data.subject;
    part(
        figure(stage, format!("total time at most {at_most} x the best of {}", labels(peers))),
        AtMost(at_most),
        data.total(stage, subject).and_then(|own| {
            let (peer, best) = data.best(peers, |mover| data.least_total(stage, mover))?;
            data.against_best(own, peer, best, measured::seconds, at_most)
        }),
    )
}

pub(super) fn multiple_of_best(
    data: Data<'_>,
    stage: &'static str,
    idle: &'static str,
    peers: &'static [Mover],
    at_most: f64,
) -> Part {
    let subject = data.subject;
    part(
        figure(
            stage,
            format!("total time as a multiple of '{idle}' at most {at_most} x the best of {}", labels(peers)),
        ),
        AtMost(at_most),
        data.total(stage, subject).and_then(|own| {
            let own = own / data.total(idle, subject)?;
            let (peer, best) = data.best(peers, |mover| {
                let Least { value, ended } = data.least_total(stage, mover)?;
                Ok(Least { value: value / data.total(idle, mover)?, ended })
            })?;
            data.against_best(own, peer, best, |value| format!("{value:.2} x"), at_most)
        }),
    )
}

pub(super) fn total_at_most(data: Data<'_>, stage: &'static str, seconds: f64) -> Part {
    let subject = data.subject;
    // A migration that was called off would have taken longer than it did.
    let took = |r: &Run| completed(r).and_then(|r| r.total_s).or(r.called_off_s);
    let longest = data.of(stage, subject).filter_map(took).reduce(f64::max);
    part(
        figure(stage, format!("every migration ends within {seconds} s")),
        AtMost(seconds),
        longest.map(|longest| (longest, measured::seconds(longest))).ok_or_else(|| data.why_none(stage, subject)),
    )
}

pub(super) fn adds(data: Data<'_>, stage: &'static str, undisturbed: &'static str, seconds: f64) -> Part {
    let subject = data.subject;
    let measured = data.total(stage, subject).and_then(|with| {
        let without = data.total(undisturbed, subject)?;
        let words = format!(
            "{} more ({} against {})",
            measured::seconds(with - without),
            measured::seconds(with),
            measured::seconds(without)
        );
        Ok((with - without, words))
    });
    part(figure(stage, format!("adds at most {seconds} s")), AtMost(seconds), measured)
}

/// Returns the times of the subject's guests that moved together, of each round with several that completed.
fn together(data: Data<'_>, stage: &'static str) -> Vec<Vec<f64>> {
    let mut rounds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for run in data.of(stage, data.subject).filter_map(completed) {
        rounds.entry(run.round).or_default().extend(run.total_s);
    }
    rounds.into_values().filter(|times| times.len() > 1).collect()
}

pub(super) fn finish_within(data: Data<'_>, stage: &'static str, factor: f64) -> Part {
    let apart: Vec<f64> = together(data, stage)
        .iter()
        .filter_map(|times| Some(Summary::of(times)?.max / Summary::of(times)?.min))
        .collect();
    part(
        figure(stage, format!("finish times within {} of each other", measured::percent(factor - 1.0))),
        AtMost(factor),
        median(&apart)
            .map(|apart| (apart, measured::percent(apart - 1.0)))
            .ok_or("fewer than two guests completed together".into()),
    )
}

pub(super) fn finish_near_mean(data: Data<'_>, stage: &'static str, share: f64) -> Part {
    let off = |times: &Vec<f64>| {
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        times.iter().map(|time| (time / mean - 1.0).abs()).reduce(f64::max)
    };
    let off: Vec<f64> = together(data, stage).iter().filter_map(off).collect();
    part(
        figure(stage, format!("finish times within {} of their mean", measured::percent(share))),
        AtMost(share),
        median(&off).map(|off| (off, measured::percent(off))).ok_or("fewer than two guests completed together".into()),
    )
}

pub(super) fn first_byte_after(data: Data<'_>, stage: &'static str, peer: Mover, seconds: f64) -> Part {
    let first = |mover| data.median_of(stage, mover, |run| completed(run)?.first_byte_s);
    let measured = first(data.subject).and_then(|own| {
        let peers = first(peer)?;
        let words = format!(
            "{} ({} against {})",
            measured::millis((own - peers) * 1e3),
            measured::seconds(own),
            measured::seconds(peers)
        );
        Ok((own - peers, words))
    });
    let allowed = measured::millis(seconds * 1e3);
    part(figure(stage, format!("first byte at most {allowed} later than {}", peer.label())), AtMost(seconds), measured)
}

pub(super) fn full_within(data: Data<'_>, stage: &'static str, share: f64, seconds: f64) -> Part {
    let after = |run: &Run| {
        let links = run.link_bps.iter().copied().sum::<Option<u64>>()? as f64;
        let (samples, first) = (run.samples.as_ref()?, completed(run)?.first_byte_s?);
        let sends = samples.nics.iter().filter(|nic| nic.host == run.source);
        let sends: Vec<&Vec<f64>> = sends.map(|nic| &nic.tx_bps).collect();
        let is_full = |at: &usize| sends.iter().filter_map(|nic| nic.get(*at)).sum::<f64>() >= share * links;
        let from = samples.t_s.partition_point(|t| *t < first);
        // A sample is the mean of the time since the one before: the links were as full from then on.
        let since = |at: usize| at.checked_sub(1).map_or(first, |before| samples.t_s[before]);
        let full = (from..samples.t_s.len()).find(is_full);
        Some(full.map_or(f64::INFINITY, |at| (since(at) - first).max(0.0)))
    };
    let all: Vec<f64> = data.of(stage, data.subject).filter_map(after).collect();
    let told = |median: f64| {
        let most = all.iter().copied().fold(median, f64::max);
        let (median_words, most_words) = (measured::seconds(median), measured::seconds(most));
        (median, format!("{median_words} in the median of {} ({most_words} at most)", all.len()))
    };
    part(
        figure(stage, format!("{} of the links used within {seconds} s of the first byte", measured::percent(share))),
        AtMost(seconds),
        median(&all).map(told).ok_or("no run has samples of links with a rate".into()),
    )
}
