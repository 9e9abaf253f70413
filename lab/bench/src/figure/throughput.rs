//! Checks of how much of guests' memory goes over the links.

use skein_units::measured;

use super::data::Data;
use super::part::{Limit::AtLeast, figure, part, ratio, times};
use crate::{mover::Mover, results::Part};

pub(super) fn of_iperf3(data: Data<'_>, stage: &'static str, share: f64) -> Part {
    let subject = data.subject;
    let yardstick = data.yardsticks.iter().find(|y| y.stage == stage && !y.iperf3_bps.is_empty());
    let iperf3 = yardstick.map(|y| y.iperf3_bps.iter().sum::<f64>()).ok_or("iperf3 was not measured".into());
    part(
        figure(stage, format!("guest bytes at {} of what iperf3 gets on all links together", measured::percent(share))),
        AtLeast(share),
        ratio(data.goodput(stage, subject), iperf3, measured::bps),
    )
}

pub(super) fn of_links(data: Data<'_>, stage: &'static str, share: f64) -> Part {
    let subject = data.subject;
    part(
        figure(stage, format!("guest bytes at {} of the links' sum", measured::percent(share))),
        AtLeast(share),
        ratio(data.goodput(stage, subject), data.links(stage, subject), measured::bps),
    )
}

pub(super) fn each_way(data: Data<'_>, stage: &'static str, share: f64) -> Part {
    let subject = data.subject;
    let measured = data.links(stage, subject).and_then(|links| {
        let ways = data.goodput_each_way(stage, subject)?;
        let words =
            ways.iter().map(|(way, rate)| format!("{way}: {}", measured::percent(rate / links))).collect::<Vec<_>>();
        let worst = ways.values().copied().fold(f64::INFINITY, f64::min) / links;
        if ways.len() < 2 { Err("only one direction was measured".into()) } else { Ok((worst, words.join(", "))) }
    });
    part(
        figure(stage, format!("guest bytes of each direction at {} of the links' sum", measured::percent(share))),
        AtLeast(share),
        measured,
    )
}

pub(super) fn goodput_of(data: Data<'_>, stage: &'static str, peer: Mover, at_least: f64) -> Part {
    let subject = data.subject;
    part(
        figure(stage, format!("throughput at least {at_least} x {}", peer.label())),
        AtLeast(at_least),
        times(data.goodput(stage, subject), data.goodput(stage, peer), measured::bps),
    )
}

pub(super) fn goodput_of_stage(data: Data<'_>, stage: &'static str, other: &'static str, at_least: f64) -> Part {
    let subject = data.subject;
    part(
        figure(stage, format!("throughput at least {at_least} x that of '{other}'")),
        AtLeast(at_least),
        times(data.goodput(stage, subject), data.goodput(other, subject), measured::bps),
    )
}
