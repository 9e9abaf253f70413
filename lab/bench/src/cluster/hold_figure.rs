//! Judges a guest that was held for a while before it switched. This is pure.

use std::fmt;

use skein_units::measured;

use crate::figure::Limit::AtMost;
use crate::figure::{most, part};
use crate::results::Part;

/// A switch after a hold takes at most so much longer than the longest without.
const LONGER: f64 = 1.2;
/// What goes over the links in a hold, as a share of what the guest writes: its pages, and what goes around them.
const SENT_SHARE: f64 = 1.1;

/// What was seen in a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// How long the guest stood still in each migration without a hold, in milliseconds.
    pub plain_ms: Vec<u64>,
    /// How long it stood still after the hold.
    pub held_ms: u64,
    /// How long it was held, in seconds.
    pub held_s: f64,
    /// What it wrote, and what its host sent meanwhile, in bytes a second.
    pub writes_bytes_per_s: f64,
    pub sent_bytes_per_s: f64,
    pub intact: bool,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { plain_ms, held_ms, held_s, intact, .. } = self;
        let [writes, sent] = [self.writes_bytes_per_s, self.sent_bytes_per_s].map(measured::bytes);
        write!(
            f,
            "{held_ms} ms after {held_s:.0} s, {plain_ms:?} ms without; {sent} a second sent of {writes} written; {}",
            if *intact { "intact" } else { "NOT INTACT" }
        )
    }
}

/// Returns the figure's parts, by the worst round. Without rounds nothing was measured.
pub fn judge(rounds: &[Held]) -> Vec<Part> {
    let longer = most(rounds, |of| {
        let plain = of.plain_ms.iter().copied().max().unwrap_or(0);
        (of.held_ms as f64 / plain as f64, format!("{} ms, {plain} ms at most without", of.held_ms))
    });
    let sent = most(rounds, |of| {
        let share = of.sent_bytes_per_s / of.writes_bytes_per_s;
        (share, format!("{} of what the guest writes, for {:.0} s", measured::percent(share), of.held_s))
    });
    let lost = most(rounds, |of| (f64::from(u8::from(!of.intact)), if of.intact { "yes" } else { "no" }.into()));
    vec![
        part("after a hold the guest stands still as without, within 20 %".into(), AtMost(LONGER), longer),
        part("a hold sends no more than the guest writes, and a tenth".into(), AtMost(SENT_SHARE), sent),
        part("the guest finds its memory intact".into(), AtMost(0.0), lost),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_judged_by_what_is_without() {
        let good = Held {
            plain_ms: vec![60, 80, 70],
            held_ms: 90,
            held_s: 300.0,
            writes_bytes_per_s: 6e6,
            sent_bytes_per_s: 6.1e6,
            intact: true,
        };
        let met = |rounds: &[Held]| -> Vec<Option<bool>> { judge(rounds).iter().map(|part| part.met).collect() };
        assert_eq!(met(std::slice::from_ref(&good)), [Some(true); 3]);
        let bad = Held { held_ms: 100, sent_bytes_per_s: 7e6, intact: false, ..good.clone() };
        assert_eq!(met(&[good, bad]), [Some(false); 3]);
        assert_eq!(met(&[]), [None; 3]);
    }
}
