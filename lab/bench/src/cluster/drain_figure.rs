//! Judges how a host was emptied. This is pure.

use skein_units::measured;

use crate::figure::{
    Limit::{AtLeast, AtMost},
    part,
};
use crate::results::Part;

/// The most that a drain may take, as a multiple of what the links need for its bytes.
const BOUND_FACTOR: f64 = 1.2;
/// How far the first forecast may be from what came, as a share of that.
const FORECAST_SHARE: f64 = 0.2;

/// What was seen of one drain.
#[derive(Clone, Debug, PartialEq)]
pub struct Drained {
    /// From the command until the host was empty.
    pub took_s: f64,
    /// The least time in which the links carry what went over them meanwhile: of each NIC and direction its bytes by
    /// its rate, and of these the longest.
    pub bound_s: f64,
    /// When the drain first said how long it takes, from the command, and how long from there.
    pub forecast: Option<(f64, f64)>,
    /// The guests that were to leave.
    pub guests: usize,
    /// The guests that have left, and find their memory intact where they run.
    pub intact: usize,
    /// The most migrations at a time.
    pub at_once_max: u32,
    /// The breaches of rules that must hold, as `skein rule check` tells them before and after.
    pub broken: usize,
}

impl Drained {
    /// Returns by what share of what came the first forecast of the end was wrong.
    fn forecast_is_off(&self) -> Option<f64> {
        let (at_s, left_s) = self.forecast?;
        let came_s = self.took_s - at_s;
        (came_s > 0.0).then(|| (left_s - came_s).abs() / came_s)
    }
}

/// Returns the figure's parts. Without rounds nothing was measured.
pub fn judge(rounds: &[Drained]) -> Vec<Part> {
    let worst = |of: &dyn Fn(&Drained) -> Option<(f64, String)>| {
        let all: Option<Vec<_>> = rounds.iter().map(of).collect();
        let all = all.ok_or_else(|| "not in every round".to_owned())?;
        all.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).ok_or_else(|| "nothing was measured".to_owned())
    };
    let took = worst(&|round| {
        let words = format!("{} against {}", measured::seconds(round.took_s), measured::seconds(round.bound_s));
        let times = round.took_s / round.bound_s;
        times.is_finite().then(|| (times, format!("{times:.3} x ({words})")))
    });
    let forecast = worst(&|round| {
        let (off, (at_s, left_s)) = (round.forecast_is_off()?, round.forecast?);
        let (told, came) = (measured::seconds(left_s), measured::seconds(round.took_s - at_s));
        Some((off, format!("{} off ({told} told, {came} came)", measured::percent(off))))
    });
    let sum = |of: fn(&Drained) -> usize| rounds.iter().map(of).sum::<usize>();
    let (guests, intact, broken) = (sum(|of| of.guests), sum(|of| of.intact), sum(|of| of.broken));
    let most = rounds.iter().map(|of| of.at_once_max).max();
    let seen = |words: String, value: f64| match rounds.is_empty() {
        true => Err("nothing was measured".to_owned()),
        false => Ok((value, words)),
    };
    vec![
        part(format!("every drain takes at most {BOUND_FACTOR} x the links' bound"), AtMost(BOUND_FACTOR), took),
        part(
            format!("the first forecast of each end is off by at most {}", measured::percent(FORECAST_SHARE)),
            AtMost(FORECAST_SHARE),
            forecast,
        ),
        part(
            "no hard rule is broken".into(),
            AtMost(0.0),
            seen(format!("{broken} broken in {} drains", rounds.len()), broken as f64),
        ),
        part(
            "at most 4 migrations at a time".into(),
            AtMost(4.0),
            seen(format!("at most {}", most.unwrap_or(0)), f64::from(most.unwrap_or(0))),
        ),
        part(
            "every guest leaves, runs once, and finds its memory intact".into(),
            AtLeast(1.0),
            seen(format!("{intact} of {guests}"), intact as f64 / guests.max(1) as f64),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Drained = Drained {
        took_s: 45.0,
        bound_s: 40.0,
        forecast: Some((1.0, 40.0)),
        guests: 12,
        intact: 12,
        at_once_max: 4,
        broken: 0,
    };

    fn met(rounds: &[Drained]) -> Vec<Option<bool>> {
        judge(rounds).iter().map(|part| part.met).collect()
    }

    #[test]
    fn a_figure_is_judged_by_its_worst_round() {
        assert_eq!(met(&[GOOD]), [Some(true); 5]);
        assert_eq!(met(&[GOOD, Drained { took_s: 49.0, forecast: Some((1.0, 47.0)), ..GOOD }])[0], Some(false));
        assert_eq!(met(&[Drained { forecast: Some((1.0, 35.0)), ..GOOD }, GOOD])[1], Some(false));
        assert_eq!(met(&[Drained { forecast: Some((1.0, 53.0)), ..GOOD }])[1], Some(false));
        let bad = Drained { broken: 1, at_once_max: 5, intact: 11, ..GOOD };
        assert_eq!(met(&[GOOD, bad])[2..], [Some(false); 3]);
    }

    #[test]
    fn what_was_not_seen_is_not_judged() {
        assert_eq!(met(&[]), [None; 5]);
        assert_eq!(met(&[GOOD, Drained { forecast: None, ..GOOD }])[1], None);
    }
}
