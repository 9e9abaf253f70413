//! Checks of what the guest notices.

use skein_units::measured;

use super::data::{Data, completed};
use super::part::{
    Limit::{AtLeast, AtMost},
    figure, labels, part,
};
use crate::{
    mover::Mover,
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
