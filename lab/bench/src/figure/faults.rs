//! Checks of cut and healed links, and of small streams beside bulk.

use skein_units::measured;

use super::data::Data;
use super::part::{Limit::AtMost, figure, part};
use crate::{
    results::{Part, Run},
    stats::median,
};

pub(super) fn below_at_most(data: Data<'_>, stage: &'static str, seconds: f64) -> Part {
    let subject = data.subject;
    part(
        figure(stage, format!("under 90 % of the remaining links for at most {seconds} s")),
        AtMost(seconds),
        data.median(
            stage,
            subject,
            |r| r.faults.iter().filter_map(|f| f.below_90_s).reduce(f64::max),
            measured::seconds,
        ),
    )
}

pub(super) fn used_again_within(data: Data<'_>, stage: &'static str, seconds: f64) -> Part {
    let subject = data.subject;
    // A transfer that ended before the time was over and had not used the links by then says nothing.
    let telling: Vec<_> = data
        .of(stage, subject)
        .flat_map(|r| &r.faults)
        .filter(|f| f.used_again_s.is_some() || f.went_on_s.is_some_and(|s| s >= seconds))
        .collect();
    let never = telling.iter().filter(|f| f.used_again_s.is_none()).count();
    let measured = median(&telling.iter().filter_map(|f| f.used_again_s).collect::<Vec<_>>());
    part(
        figure(stage, format!("all links used again within {seconds} s of healing")),
        AtMost(seconds),
        match (measured, never) {
            (_, 1..) => Ok((f64::INFINITY, format!("not in {never} of {} runs", telling.len()))),
            (Some(value), _) => Ok((value, measured::seconds(value))),
            (None, _) => Err("no transfer went on for long enough after healing".into()),
        },
    )
}

pub(super) fn latency_over(data: Data<'_>, stage: &'static str, millis: f64) -> Part {
    let subject = data.subject;
    let over = |r: &Run| r.control.as_ref().map(|c| (c.loaded.p99_us - c.idle.median_us) / 1e3);
    part(
        figure(stage, format!("round trip beside bulk (p99) at most {millis} ms over the idle one")),
        AtMost(millis),
        data.median(stage, subject, over, |v| format!("{} over", measured::millis(v))),
    )
}
