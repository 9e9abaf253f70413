//! Judges how migrations kept to their limits. This is pure.

use skein_units::measured;

use crate::figure::{Limit::AtMost, most, part};
use crate::results::Part;

/// What is asked for first, and in the middle, in bits per second.
pub const ASKED_BPS: [u64; 2] = [300_000_000, 600_000_000];
/// How far from its limit a migration may be, as a share of that, and how far two from each other.
const OFF_SHARE: f64 = 0.03;
const APART_SHARE: f64 = 0.1;

/// What was seen in a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Limited {
    /// What each limit came to, in bits per second.
    pub bps: [f64; 2],
    /// How fast each of two migrations was that shared the NIC, in bits per second.
    pub shared_bps: [f64; 2],
    /// How many of the guests found their memory intact.
    pub intact: usize,
}

/// Returns the figure's parts, by the worst round. Without rounds nothing was measured.
pub fn judge(rounds: &[Limited]) -> Vec<Part> {
    let off = |nth: usize| {
        most(rounds, |round| {
            let off = (round.bps[nth] / ASKED_BPS[nth] as f64 - 1.0).abs();
            (off, format!("{} off ({})", measured::percent(off), measured::bps(round.bps[nth])))
        })
    };
    let apart = most(rounds, |round| {
        let [one, other] = round.shared_bps;
        let apart = 1.0 - one.min(other) / one.max(other);
        let words = format!("{} ({} and {})", measured::percent(apart), measured::bps(one), measured::bps(other));
        (if apart.is_finite() { apart } else { 1.0 }, words)
    });
    let lost = most(rounds, |round| ((3 - round.intact) as f64, format!("{} of 3", round.intact)));
    vec![
        part("300 Mb/s that are asked for come within 3 %, after 1 s".into(), AtMost(OFF_SHARE), off(0)),
        part("600 Mb/s that are asked for in the middle do, too".into(), AtMost(OFF_SHARE), off(1)),
        part("two migrations that share a NIC are within 10 % of each other".into(), AtMost(APART_SHARE), apart),
        part("every guest finds its memory intact".into(), AtMost(0.0), lost),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Limited = Limited { bps: [301e6, 598e6], shared_bps: [470e6, 490e6], intact: 3 };

    fn met(rounds: &[Limited]) -> Vec<Option<bool>> {
        judge(rounds).iter().map(|part| part.met).collect()
    }

    #[test]
    fn a_figure_is_judged_by_its_worst_round() {
        assert_eq!(met(&[GOOD]), [Some(true); 4]);
        let bad = Limited { bps: [289e6, 640e6], shared_bps: [400e6, 500e6], intact: 2 };
        assert_eq!(met(&[GOOD, bad]), [Some(false); 4]);
        assert_eq!(met(&[Limited { shared_bps: [0.0, 0.0], ..GOOD }])[2], Some(false));
        assert_eq!(met(&[]), [None; 4]);
    }
}
