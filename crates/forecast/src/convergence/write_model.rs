//! How a guest writes.

use super::throttling::running_share;

/// Two rounds of nearly one length do not tell how large the hot set is.
const ROUND_LENGTH_RATIO_MIN: f64 = 1.08;
/// How often a guest may have come around its hot set in a round. After more, few pages are left to tell by, or, of a
/// guest that sweeps, none.
const HOT_SET_TURNS_MAX: f64 = 1.0;

/// A round, or the mean of some rounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// The seconds that the guest lived in the round.
    pub(super) seconds: f64,
    /// The bytes that the guest dirtied.
    pub(super) dirtied: f64,
}

/// How a guest writes: see the [module](super).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriteModel {
    /// Bytes of pages that the guest writes a second, `w`.
    pub rate: f64,
    /// How often the guest comes around its hot set a second, `w/N`. 0: the hot set is endless.
    pub turns: f64,
}

impl WriteModel {
    /// Returns the bytes that are dirtied in so many seconds.
    pub fn dirtied(&self, seconds: f64) -> f64 {
        match self.turns * seconds {
            turned if turned < 1e-9 => self.rate * seconds,
            turned => self.rate * -(-turned).exp_m1() / self.turns,
        }
    }

    /// Returns how the same guest writes while it is throttled by so many per cent.
    pub fn throttled(&self, percent: u8) -> WriteModel {
        let lives = running_share(percent);
        WriteModel { rate: self.rate * lives, turns: self.turns * lives }
    }

    /// Returns the model that would have dirtied what these two rounds did.
    pub(super) fn of_rounds(first: Round, last: Round) -> WriteModel {
        let linear = WriteModel { rate: last.dirtied / last.seconds, turns: 0.0 };
        let (long, short) = if first.seconds > last.seconds { (first, last) } else { (last, first) };
        let (longer, more) = (long.seconds / short.seconds, long.dirtied / short.dirtied);
        // A guest that dirtied less in more time writes otherwise by now.
        if longer < ROUND_LENGTH_RATIO_MIN || !(1.0..longer).contains(&more) {
            return linear;
        }
        // (1 - e^(-u·T)) / (1 - e^(-u·t)) falls from T/t to 1.
        let (mut low, mut high) = (0.0, HOT_SET_TURNS_MAX / short.seconds);
        for _ in 0..40 {
            let turns = (low + high) / 2.0;
            let is_low = (-turns * long.seconds).exp_m1() / (-turns * short.seconds).exp_m1() > more;
            *(if is_low { &mut low } else { &mut high }) = turns;
        }
        let turned = high * last.seconds;
        WriteModel { rate: linear.rate * turned / -(-turned).exp_m1(), turns: high }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn two_rounds_tell_how_a_guest_writes(rate in 1.0f64..1e10, turns in 0.0f64..0.95, long in 1.5f64..60.0) {
            let writes = WriteModel { rate, turns };
            let round = |seconds| Round { seconds, dirtied: writes.dirtied(seconds) };
            let model = WriteModel::of_rounds(round(long), round(1.0));
            prop_assert!((model.rate / rate - 1.0).abs() < 0.01, "{:?}", model);
            prop_assert!((model.turns - turns).abs() < 0.01, "{:?}", model);
        }
    }
}
