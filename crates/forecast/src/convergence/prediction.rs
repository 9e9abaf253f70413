//! Whether a copy ends, and when.

use std::fmt;

use skein_units::{about_seconds, decimal};

use super::write_model::WriteModel;

/// Rounds that shrink by less than a hundredth do not shrink.
const SHRINKING_SHARE: f64 = 0.99;
/// A copy that would take longer, nearly a fortnight, does not end: no figure is that exact.
const FORECAST_MAX_S: f64 = 1e6;

/// How fast a guest writes and is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRates {
    /// Bytes of pages that the guest writes a second, throttled as it is.
    pub dirties_bytes_per_s: u64,
    /// Bytes of the guest that are moved a second, whatever they are on the wire.
    pub moves_bytes_per_s: u64,
}

impl fmt::Display for CopyRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |bytes: u64| decimal(bytes as f64, "B");
        write!(f, "dirties {}/s, moves {}/s", rate(self.dirties_bytes_per_s), rate(self.moves_bytes_per_s))
    }
}

/// Whether the copy of a guest ends. In words: `converges in about 12 s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Convergence {
    /// What the guest writes shows when the first round is over.
    FirstRound {
        /// The time until then.
        seconds: f64,
    },
    /// The copy ends.
    In {
        /// The time until the guest is moved.
        seconds: f64,
    },
    /// The copy does not end.
    Never(CopyRates),
}

impl fmt::Display for Convergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstRound { seconds } => write!(f, "first round over in about {}", about_seconds(*seconds)),
            Self::In { seconds } => write!(f, "converges in about {}", about_seconds(*seconds)),
            Self::Never(rates) => write!(f, "will not converge: {rates}"),
        }
    }
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copying {
    /// Bytes left to send in this round.
    pub remaining: u64,
    /// Seconds since the round began.
    pub since: f64,
    /// How the guest writes, throttled as it is. `None` in the first round.
    pub writes: Option<WriteModel>,
    /// Bytes of the guest that are moved a second.
    pub moves: f64,
    /// Bytes that may be left at the switchover.
    pub fits: u64,
}

impl Copying {
    /// Returns whether the copy ends: see the [module](super). `None`: nothing moves.
    pub fn convergence(&self) -> Option<Convergence> {
        if self.moves <= 0.0 {
            return None;
        }
        let mut seconds = self.remaining as f64 / self.moves;
        let Some(writes) = self.writes else {
            return Some(Convergence::FirstRound { seconds: seconds.min(FORECAST_MAX_S) });
        };
        let never = Convergence::Never(CopyRates {
            dirties_bytes_per_s: writes.rate as u64,
            moves_bytes_per_s: self.moves as u64,
        });
        let mut left = writes.dirtied(self.since + seconds);
        while left > self.fits as f64 {
            seconds += left / self.moves;
            let next = writes.dirtied(left / self.moves);
            if next > left * SHRINKING_SHARE || seconds > FORECAST_MAX_S {
                return Some(never);
            }
            left = next;
        }
        seconds += left / self.moves;
        Some(if seconds > FORECAST_MAX_S { never } else { Convergence::In { seconds } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;

    #[test]
    fn convergence_is_in_words() {
        let rates = CopyRates { dirties_bytes_per_s: 310_000_000, moves_bytes_per_s: 230_000_000 };
        for (convergence, words) in [
            (Convergence::FirstRound { seconds: 3.5 }, "first round over in about 3.5 s"),
            (Convergence::In { seconds: 12.2 }, "converges in about 12 s"),
            (Convergence::Never(rates), "will not converge: dirties 310 MB/s, moves 230 MB/s"),
        ] {
            assert_eq!(convergence.to_string(), words);
        }
    }

    #[test]
    fn a_small_hot_set_converges_however_fast_it_is_written() {
        let writes = WriteModel { rate: 10_000.0 * MB, turns: 200.0 };
        let copying = |fits| Copying { remaining: 1 << 30, since: 0.0, writes: Some(writes), moves: 200.0 * MB, fits };
        assert!(matches!(copying(51_000_000).convergence(), Some(Convergence::In { .. })));
        assert!(matches!(copying(49_000_000).convergence(), Some(Convergence::Never(_))));
        assert_eq!(Copying { moves: 0.0, ..copying(0) }.convergence(), None);
        let first = Copying { writes: None, ..copying(0) }.convergence();
        assert!(matches!(first, Some(Convergence::FirstRound { seconds }) if (5.3..5.4).contains(&seconds)));
    }
}
