//! Judges what was said of the time that migrations had left. This is pure.

use std::fmt;

use skein_units::measured;

use crate::figure::Limit::{AtLeast, AtMost};
use crate::figure::{Measured, part};
use crate::results::Part;

/// The share of migrations that end within the range that was said.
const INSIDE_SHARE: f64 = 0.9;
/// How wide the range is in the median, as a share of the time that was said.
const WIDTH_SHARE: f64 = 1.0 / 3.0;
/// The part of a migration's time that is over when the forecast is looked at, in the figure's words, too.
pub const AT_SHARE: f64 = 0.25;

/// What was said of a migration when a quarter of its time was over, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Said {
    /// How long the rest was said to take, at least, most likely, and at most. `None`: nothing was said.
    pub forecast: Option<[u64; 3]>,
    /// How long the rest took.
    pub took: u64,
}

impl Said {
    fn is_inside(&self) -> bool {
        self.forecast.is_some_and(|[least, _, most]| (least..=most).contains(&self.took))
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ms: u64| ms as f64 / 1000.0;
        let took = seconds(self.took);
        match self.forecast {
            Some([least, likely, most]) => {
                let [least, likely, most] = [least, likely, most].map(seconds);
                let which = if self.is_inside() { "inside" } else { "OUTSIDE" };
                write!(f, "{likely:.1} s left, {least:.1} to {most:.1}; took {took:.1}: {which}")
            }
            None => write!(f, "nothing was said; took {took:.1} s"),
        }
    }
}

/// Returns the figure's parts. Without migrations nothing was measured.
pub fn judge(all: &[Said]) -> Vec<Part> {
    let inside = all.iter().filter(|of| of.is_inside()).count();
    let share = inside as f64 / all.len() as f64;
    let nothing = || Err("nothing was measured".to_owned());
    let inside = match all.is_empty() {
        true => nothing(),
        false => Ok((share, format!("{} ({inside} of {})", measured::percent(share), all.len()))),
    };
    vec![
        part("a quarter in, the end is within the range that is said, in 90 %".into(), AtLeast(INSIDE_SHARE), inside),
        part("that range is a third of the time that is said, in the median".into(), AtMost(WIDTH_SHARE), width(all)),
    ]
}

fn width(all: &[Said]) -> Measured {
    let share = |[least, likely, most]: [u64; 3]| (most - least.min(most)) as f64 / likely.max(1) as f64;
    let mut widths: Vec<f64> = all.iter().filter_map(|of| of.forecast.map(share)).collect();
    widths.sort_by(f64::total_cmp);
    let median = widths.get(widths.len() / 2).ok_or("nothing was measured")?;
    Ok((*median, measured::percent(*median)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(all: &[Said]) -> Vec<Option<bool>> {
        judge(all).iter().map(|part| part.met).collect()
    }

    #[test]
    fn what_is_said_is_judged_by_what_it_took() {
        let good = Said { forecast: Some([9_000, 10_000, 12_000]), took: 11_000 };
        let late = Said { took: 12_001, ..good };
        let silent = Said { forecast: None, took: 11_000 };
        assert_eq!(met(&[good; 10]), [Some(true); 2]);
        let of = |others: [Said; 1]| -> Vec<Said> { others.into_iter().chain([good; 8]).collect() };
        assert_eq!(met(&of([late])), [Some(false), Some(true)], "8 of 9");
        assert_eq!(met(&of([silent])), [Some(false), Some(true)]);
        let wide = Said { forecast: Some([8_000, 10_000, 12_000]), took: 11_000 };
        assert_eq!(met(&[wide; 3]), [Some(true), Some(false)]);
        assert_eq!(met(&[]), [None; 2]);
    }
}
