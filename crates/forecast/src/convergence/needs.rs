//! What would be enough for a guest to converge.

use std::fmt;

use super::throttling::{DIRTY_SHARE_CONVERGING, advised, running_share};

/// To have more times as many NICs as there are is no advice.
const ADVISED_NICS_FACTOR_MAX: u32 = 4;

/// What would be enough. In words: `needs 2 more NICs, or --allow-throttle 80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvergenceNeeds {
    /// How many more NICs like those that carry the guest. `None`: more NICs would not help, or be too many.
    pub nics: Option<u32>,
    /// Per cent to allow. `None`: no throttling is enough, or it has no effect.
    pub throttle: Option<u8>,
    /// Per cent by which the guest is throttled, and yet writes as before.
    pub throttle_without_effect: Option<u8>,
}

impl ConvergenceNeeds {
    /// Returns the needs of a guest that writes `rate` where it is not throttled, may be throttled by `allowed` per
    /// cent, and moves at `moves` over `nics`. `nics` is 0 if another NIC would not carry the guest.
    pub(super) fn of(rate: f64, moves: f64, nics: u32, allowed: u8) -> ConvergenceNeeds {
        let times = rate * running_share(allowed) / (DIRTY_SHARE_CONVERGING * moves);
        let more = (times * f64::from(nics)).ceil() as u32;
        ConvergenceNeeds {
            nics: (nics > 0)
                .then(|| more.saturating_sub(nics).max(1))
                .filter(|_| more <= nics.saturating_mul(ADVISED_NICS_FACTOR_MAX)),
            throttle: advised(rate, moves).filter(|percent| *percent > allowed),
            throttle_without_effect: None,
        }
    }
}

impl fmt::Display for ConvergenceNeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nics = self.nics.map(|nics| format!("{nics} more NIC{}", if nics == 1 { "" } else { "s" }));
        let throttle = self.throttle.map(|percent| format!("--allow-throttle {percent}"));
        match (nics, throttle) {
            (Some(nics), Some(throttle)) => write!(f, "needs {nics}, or {throttle}"),
            (Some(one), None) | (None, Some(one)) => write!(f, "needs {one}"),
            (None, None) => f.write_str("neither another NIC nor more throttling would be enough"),
        }?;
        match self.throttle_without_effect {
            Some(percent) => write!(
                f,
                "; its QEMU says that it throttles it by {percent} %, and does not: one that has ended throttling \
                 once may not be \
                 able to any more until it is started anew"
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;

    #[test]
    fn needs_are_in_words() {
        for (nics, throttle, words) in [
            (Some(2), Some(80), "needs 2 more NICs, or --allow-throttle 80"),
            (Some(1), None, "needs 1 more NIC"),
            (None, Some(99), "needs --allow-throttle 99"),
            (None, None, "neither another NIC nor more throttling would be enough"),
        ] {
            assert_eq!(ConvergenceNeeds { nics, throttle, throttle_without_effect: None }.to_string(), words);
        }
        let numb = ConvergenceNeeds { nics: Some(1), throttle: None, throttle_without_effect: Some(99) }.to_string();
        assert!(
            numb.starts_with("needs 1 more NIC; its QEMU says that it throttles it by 99 %, and does not"),
            "{numb}"
        );
    }

    #[test]
    fn what_is_lacking_is_what_would_be_enough() {
        for (moves, nics, allowed, more, throttle) in [
            (230.0, 2, 0, Some(1), Some(60)),
            (100.0, 2, 0, Some(5), Some(80)),
            (100.0, 0, 0, None, Some(80)),
            (100.0, 1, 50, Some(1), Some(80)),
            (100.0, 1, 80, Some(1), None),
            (80.0, 2, 0, Some(6), Some(90)),
            (70.0, 2, 0, None, Some(90)),
            (2.0, 1, 0, None, None),
        ] {
            let needs = ConvergenceNeeds::of(245.0 * MB, moves * MB, nics, allowed);
            assert_eq!(
                needs,
                ConvergenceNeeds { nics: more, throttle, throttle_without_effect: None },
                "{moves} {nics} {allowed}"
            );
        }
    }
}
