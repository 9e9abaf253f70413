//! Judges what probes of a network found, and what they cost. This is pure.

use skein_units::measured;

use crate::figure::{Limit::AtMost, most, part};
use crate::results::Part;

/// What was seen in a round in which a switch drops packets that both NICs send.
#[derive(Clone, Debug, PartialEq)]
pub struct Lie {
    /// When the probe had named the path, in seconds from its beginning; `None`: it did not.
    pub named_s: Option<f64>,
    /// How long a migration took, in seconds.
    pub lie_s: f64,
    /// How long it took once the switch passed them, in seconds.
    pub honest_s: f64,
    /// Whether the guest found its memory intact.
    pub is_intact: bool,
}

/// What was seen in a round in which two NICs share a cable.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared {
    /// Whether the probe said so.
    pub is_found: bool,
    /// How long a migration took over both NICs, in seconds.
    pub both_s: f64,
    /// How long it took over one NIC, in seconds.
    pub one_s: f64,
    /// Whether the guest found its memory intact.
    pub is_intact: bool,
}

/// What was seen in a round of four paths.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// The paths that were measured.
    pub paths: usize,
    /// How long the probe took, in seconds.
    pub took_s: f64,
    /// The most that a link carried for the probe, as a share of what it carries in a minute.
    pub of_minute: f64,
    /// How long a migration took, in seconds.
    pub alone_s: f64,
    /// How long it took with one probe after the other beside it, in seconds.
    pub beside_s: f64,
    /// Whether the guest found its memory intact.
    pub is_intact: bool,
}

/// Returns the figure's parts of `mtu-lie`, by the worst round. Without rounds nothing was measured.
pub fn judge_lie(rounds: &[Lie]) -> Vec<Part> {
    let named = |round: &Lie| {
        let seconds = round.named_s.unwrap_or(f64::INFINITY);
        (seconds, round.named_s.map_or("not named".into(), measured::seconds))
    };
    vec![
        part("a path whose switch drops jumbo frames is named within 3 s".into(), AtMost(3.0), most(rounds, named)),
        part(
            "a migration takes at most 1.05 x as long as with a switch that passes them".into(),
            AtMost(1.05),
            most(rounds, |round| ratio(round.lie_s, round.honest_s)),
        ),
        intact(rounds, |round| round.is_intact),
    ]
}

/// Returns the figure's parts of `shared-bottleneck`, by the worst round. Without rounds nothing was measured.
pub fn judge_shared(rounds: &[Shared]) -> Vec<Part> {
    let missed = |round: &Shared| {
        let missed = if round.is_found { 0.0 } else { 1.0 };
        (missed, if round.is_found { "found" } else { "not found" }.to_owned())
    };
    vec![
        part("two NICs that share a cable are found".into(), AtMost(0.0), most(rounds, missed)),
        part(
            "over both a migration takes at most 1.02 x as long as over one".into(),
            AtMost(1.02),
            most(rounds, |round| ratio(round.both_s, round.one_s)),
        ),
        intact(rounds, |round| round.is_intact),
    ]
}

/// Returns the figure's parts of `probe-cost`, by the worst round. Without rounds nothing was measured.
pub fn judge_cost(rounds: &[Cost]) -> Vec<Part> {
    let took = |round: &Cost| (round.took_s, format!("{} for {} paths", measured::seconds(round.took_s), round.paths));
    let share = |round: &Cost| (round.of_minute, measured::percent(round.of_minute));
    vec![
        part("a probe of four paths takes at most 5 s".into(), AtMost(5.0), most(rounds, took)),
        part("no link carries more than 2 % of a minute for it".into(), AtMost(0.02), most(rounds, share)),
        part(
            "a migration beside probes takes at most 1.05 x as long".into(),
            AtMost(1.05),
            most(rounds, |round| ratio(round.beside_s, round.alone_s)),
        ),
        intact(rounds, |round| round.is_intact),
    ]
}

/// Returns how many times as long the first took as the second, both in seconds, and that in words.
fn ratio(one_s: f64, other_s: f64) -> (f64, String) {
    let of = one_s / other_s;
    (of, format!("{of:.3} x ({} and {})", measured::seconds(one_s), measured::seconds(other_s)))
}

fn intact<T>(rounds: &[T], is_intact: impl Fn(&T) -> bool) -> Part {
    let lost = rounds.iter().filter(|round| !is_intact(round)).count();
    let words = format!("{} of {}", rounds.len() - lost, rounds.len());
    let measured = if rounds.is_empty() { Err("nothing was measured".into()) } else { Ok((lost as f64, words)) };
    part("every guest finds its memory intact".into(), AtMost(0.0), measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(parts: &[Part]) -> Vec<Option<bool>> {
        parts.iter().map(|part| part.met).collect()
    }

    #[test]
    fn figures_are_judged_by_their_worst_rounds() {
        let lie = Lie { named_s: Some(2.0), lie_s: 5.0, honest_s: 4.9, is_intact: true };
        assert_eq!(met(&judge_lie(std::slice::from_ref(&lie))), [Some(true); 3]);
        let unnamed = Lie { named_s: None, lie_s: 9.0, honest_s: 4.9, is_intact: false };
        assert_eq!(met(&judge_lie(&[lie, unnamed])), [Some(false); 3]);

        let shared = Shared { is_found: true, both_s: 5.0, one_s: 5.0, is_intact: true };
        assert_eq!(met(&judge_shared(std::slice::from_ref(&shared))), [Some(true); 3]);
        let slower = Shared { is_found: false, both_s: 6.0, one_s: 5.0, is_intact: false };
        assert_eq!(met(&judge_shared(&[slower, shared])), [Some(false); 3]);

        let cost = Cost { paths: 4, took_s: 4.5, of_minute: 0.018, alone_s: 5.0, beside_s: 5.1, is_intact: true };
        assert_eq!(met(&judge_cost(std::slice::from_ref(&cost))), [Some(true); 4]);
        let dear = Cost { took_s: 5.5, of_minute: 0.03, beside_s: 6.0, is_intact: false, ..cost.clone() };
        assert_eq!(met(&judge_cost(&[cost, dear])), [Some(false); 4]);
        assert_eq!(met(&judge_cost(&[])), [None; 4]);
    }
}
