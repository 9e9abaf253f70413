//! Judges what share migrations had beside foreign traffic. This is pure.

use skein_units::measured;

use crate::figure::{
    Limit::{AtLeast, AtMost},
    least, most, part,
};
use crate::results::Part;

/// The guests that move at once.
pub const GUESTS: usize = 4;

/// What was seen in a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared {
    /// The share of migrations in what the source's NICs sent, from a second on until the first guest was over.
    pub share: f64,
    /// What both had together, as a share of what the NICs may send.
    pub filled: f64,
    /// What came against the migrations meanwhile, as a share of what came before.
    pub against: f64,
    /// The share that foreign traffic had of the NICs once the migrations were over.
    pub foreign_alone: f64,
    /// How many guests found their memory intact.
    pub intact: usize,
}

/// Returns the figure's parts, by the worst round. Without rounds nothing was measured.
pub fn judge(rounds: &[Shared]) -> Vec<Part> {
    let share = |of: fn(&Shared) -> f64| least(rounds, |round| (of(round), measured::percent(of(round))));
    let lost = most(rounds, |round| {
        let lost = GUESTS - round.intact;
        (lost as f64, format!("{lost} of {GUESTS}"))
    });
    vec![
        part(
            "with a share of 90 % migrations have at least 88 % within 1 s".into(),
            AtLeast(0.88),
            share(|of| of.share),
        ),
        part(
            "foreign traffic has the rest: both fill at least 90 % of the NICs".into(),
            AtLeast(0.9),
            share(|of| of.filled),
        ),
        part(
            "the opposite direction has at least 95 % of what it had before".into(),
            AtLeast(0.95),
            share(|of| of.against),
        ),
        part("alone, foreign traffic has at least 90 % of the NICs".into(), AtLeast(0.9), share(|of| of.foreign_alone)),
        part("guests whose memory is not intact".into(), AtMost(0.0), lost),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Shared = Shared { share: 0.9, filled: 0.97, against: 0.99, foreign_alone: 0.98, intact: 4 };

    fn met(rounds: &[Shared]) -> Vec<Option<bool>> {
        judge(rounds).iter().map(|part| part.met).collect()
    }

    #[test]
    fn a_figure_is_judged_by_its_worst_round() {
        assert_eq!(met(&[GOOD]), [Some(true); 5]);
        let bad = Shared { share: 0.87, filled: 0.8, against: 0.9, foreign_alone: 0.5, intact: 3 };
        assert_eq!(met(&[GOOD, bad]), [Some(false); 5]);
        assert_eq!(met(&[]), [None; 5]);
    }
}
