//! Checks of what the guest notices.

use skein_units::measured;

use super::data::{Data, completed};
use super::part::{
    Limit::{AtLeast, AtMost},
    figure, labels, part,
};
use crate::{
    memory_reads::MemoryReads,
    mover::Mover,
    page_sizes::{GuestPages, PageSizes},
    results::{Part, Run},
};

pub(super) fn guest_slowed_at_most(data: Data<'_>, stage: &'static str, share: f64) -> Part {
    let subject = data.subject;
    part(
        figure(stage, format!("the guest is slowed by at most {}", measured::percent(share))),
        AtMost(share),
        data.median(stage, subject, |r| r.rewriting.map(|seen| seen.slowed()), measured::percent),
    )
}

pub(super) fn reads_of(data: Data<'_>, stage: &'static str, peer: Mover, at_least: f64) -> Part {
    // Within a run all is measured at the same time. So each is held against the run's own memory on huge pages.
    let of = |mover, ns: fn(&MemoryReads) -> f64| {
        data.median_of(stage, mover, |r| r.memory_reads.map(|reads| reads.huge_ns / ns(&reads)))
            .map_err(|why| if data.of(stage, mover).any(Run::intact) { "memory was not read".into() } else { why })
    };
    let share = |end: fn(&GuestPages) -> PageSizes| {
        let share = data.median_of(stage, data.subject, |r| r.guest_pages.map(|pages| end(&pages).huge_share()));
        share.map_or("unknown".into(), measured::percent)
    };
    let measured = || {
        let reference = of(peer, |reads| reads.started_ns)?;
        let [started, moved] = [of(data.subject, |reads| reads.started_ns)?, of(data.subject, |reads| reads.moved_ns)?]
            .map(|own| own / reference);
        let shared = of(data.subject, |reads| reads.shared_ns)? / reference;
        let [before, after] = [share(|pages| pages.source), share(|pages| pages.target)];
        let words = format!(
            "{:.3} x (as started {started:.3}, moved {moved:.3}; shared memory {shared:.3}; on huge pages {before} of \
             the RAM before moves, {after} after)",
            started.min(moved)
        );
        Ok((started.min(moved), words))
    };
    let words = format!("reads of memory like the guest's RAM at least {at_least} x as fast as {}'s", peer.label());
    part(figure(stage, words), AtLeast(at_least), measured())
}

pub(super) fn gap_at_most(data: Data<'_>, stage: &'static str, millis: f64) -> Part {
    let subject = data.subject;
    part(
        figure(stage, format!("downtime as the guest sees it at most {millis} ms")),
        AtMost(millis),
        data.median(stage, subject, |r| r.guest_switchover_ms, measured::millis),
    )
}

pub(super) fn gap_kept(data: Data<'_>, stage: &'static str, factor: f64, slack_ms: f64, share: f64) -> Part {
    let subject = data.subject;
    // A run that did not complete did not keep the limit.
    let limit = |r: &Run| factor * r.downtime_limit_ms as f64 + slack_ms;
    let kept = |r: &&Run| completed(r).and_then(|r| r.guest_switchover_ms).is_some_and(|ms| ms <= limit(r));
    let runs = data.of(stage, subject).count();
    let good = data.of(stage, subject).filter(kept).count();
    let longest = data.of(stage, subject).filter_map(|r| completed(r)?.guest_switchover_ms);
    let longest = longest.reduce(f64::max).map_or("none".into(), measured::millis);
    part(
        figure(
            stage,
            format!(
                "downtime as the guest sees it at most {factor} x the limit and {slack_ms} ms in {} of \
                 all runs",
                measured::percent(share)
            ),
        ),
        AtLeast(share),
        match runs {
            0 => Err(data.why_none(stage, subject)),
            _ => Ok((good as f64 / runs as f64, format!("{good} of {runs} runs, the longest {longest}"))),
        },
    )
}

pub(super) fn gap_of(data: Data<'_>, stage: &'static str, peers: &'static [Mover], factor: f64, slack_ms: f64) -> Part {
    let subject = data.subject;
    let best =
        peers.iter().filter_map(|&peer| Some((peer, data.gap(stage, peer).ok()?))).min_by(|a, b| a.1.total_cmp(&b.1));
    let text = figure(
        stage,
        format!(
            "downtime as the guest sees it at most the larger of {factor} x and {slack_ms} ms more than \
             the best of {}",
            labels(peers)
        ),
    );
    match best {
        None => part(text, AtMost(0.0), Err("no peer was measured".into())),
        Some((peer, gap)) => {
            let limit = (factor * gap).max(gap + slack_ms);
            let measured = data.gap(stage, subject).map(|own| {
                let words = format!("{} against {} of {}", measured::millis(own), measured::millis(gap), peer.label());
                (own, words)
            });
            part(text, AtMost(limit), measured)
        }
    }
}
