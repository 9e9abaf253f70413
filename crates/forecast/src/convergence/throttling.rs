//! By how much a guest has to be throttled, and is.

/// The most that QEMU throttles a guest by, in per cent (`CPU_THROTTLE_PCT_MAX` of its sysemu/cpu-throttle.h).
pub const THROTTLE_MAX: u8 = 99;
/// A guest that dirties this part of what is moved converges soon.
pub(super) const DIRTY_SHARE_CONVERGING: f64 = 0.8;
/// A guest that is throttled is to dirty this part of what is moved.
const DIRTY_SHARE_THROTTLED: f64 = 0.5;

/// Returns the part of the time in which a guest lives that is throttled by so many per cent.
pub(super) fn running_share(percent: u8) -> f64 {
    1.0 - f64::from(percent.min(THROTTLE_MAX)) / 100.0
}

/// Returns the per cent by which a guest that writes at `rate` has to be throttled to converge soon. `None`: no
/// throttling is enough. Both rates are in bytes a second.
pub fn needed(rate: f64, moves: f64) -> Option<u8> {
    throttle_to(DIRTY_SHARE_CONVERGING * moves, rate)
}

/// Returns the per cent by which a guest that writes at `rate` is throttled, where so many are allowed. `None`: what is
/// allowed is not enough. Both rates are in bytes a second.
pub fn throttle(rate: f64, moves: f64, allowed: u8) -> Option<u8> {
    needed(rate, moves).filter(|percent| *percent <= allowed).map(|_| hurried(rate, moves).min(allowed))
}

/// Returns the per cent to allow for a guest that writes at `rate`, rounded up to tens. `None`: no throttling is
/// enough. Both rates are in bytes a second.
pub fn advised(rate: f64, moves: f64) -> Option<u8> {
    needed(rate, moves).map(|_| hurried(rate, moves).next_multiple_of(10).min(THROTTLE_MAX))
}

/// Returns the per cent by which a guest is throttled if nothing forbids that.
pub(super) fn hurried(rate: f64, moves: f64) -> u8 {
    throttle_to(DIRTY_SHARE_THROTTLED * moves, rate).unwrap_or(THROTTLE_MAX)
}

fn throttle_to(aim: f64, rate: f64) -> Option<u8> {
    let percent = ((1.0 - aim / rate.max(1.0)) * 100.0).ceil().max(1.0);
    (percent <= f64::from(THROTTLE_MAX)).then_some(percent as u8)
}

#[cfg(test)]
mod tests {
    use super::needed;

    #[test]
    fn what_is_needed_leaves_four_fifths_of_what_is_moved() {
        assert_eq!((needed(100.0, 200.0), needed(100.0, 100.0), needed(1e9, 1.0)), (Some(1), Some(20), None));
    }
}
