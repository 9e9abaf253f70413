//! How fast guests leave a host, by the moves that were made. Links, switches, CPUs and what guests hold come to it
//! together: no NIC tells, and many do not even know what they carry.

use std::collections::VecDeque;

/// How long a move takes besides its copy, in milliseconds: checks, the target's QEMU, the handover, and until the
/// controller has heard of it. Others copy meanwhile.
pub(crate) const SETUP_MS: u64 = 1_500;
/// How many moves a pace goes by: the newest.
const MOVES_KEPT: usize = 16;
/// How many moves a pace goes by at least: one may have met with anything.
const MOVES_LEAST: usize = 2;

/// What of a guest was moved in a time, by the clock on the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// When the move was begun.
    pub(crate) begun_ms: u64,
    /// When it was over, or now.
    pub(crate) ended_ms: u64,
    /// The guest's memory, as far as it was moved.
    pub(crate) bytes: u64,
}

/// How fast guests have left a host of late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    moves: VecDeque<Stretch>,
}

impl Pace {
    /// Notes a move that was made. One that hardly took longer than what a move takes anyhow says nothing.
    pub(crate) fn note(&mut self, moved: Stretch) {
        if moved.ended_ms.saturating_sub(moved.begun_ms) < 2 * SETUP_MS {
            return;
        }
        self.moves.push_back(moved);
        if self.moves.len() > MOVES_KEPT {
            self.moves.pop_front();
        }
    }

    /// Returns the guests' memory that leaves in a second, by the moves that were made and those that are under way;
    /// `None` while too few were made.
    pub(crate) fn bytes_per_s(&self, under_way: impl Iterator<Item = Stretch>) -> Option<f64> {
        if self.moves.len() < MOVES_LEAST {
            return None;
        }
        let first_ms = self.moves.iter().map(|of| of.begun_ms).min()?;
        let later = under_way.filter(|of| of.begun_ms >= first_ms);
        let mut all: Vec<Stretch> = self.moves.iter().copied().chain(later).collect();
        all.sort_by_key(|of| of.begun_ms);
        let bytes: u64 = all.iter().map(|of| of.bytes).sum();
        let (mut copied_ms, mut until_ms) = (0, 0);
        for of in all {
            let from_ms = of.begun_ms.saturating_add(SETUP_MS).max(until_ms);
            copied_ms += of.ended_ms.saturating_sub(from_ms);
            until_ms = until_ms.max(of.ended_ms);
        }
        (copied_ms > 0 && bytes > 0).then(|| bytes as f64 * 1e3 / copied_ms as f64)
    }
}

/// Returns how long moves take, in milliseconds, that begin anew on a host where so many may be under way, besides the
/// copies: each of them once, as many at a time.
pub(crate) fn setups_ms(moves: usize, at_once: u32) -> u64 {
    SETUP_MS * (moves as u64).div_ceil(u64::from(at_once.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn stretch(begun_ms: u64, ended_ms: u64, bytes: u64) -> Stretch {
        Stretch { begun_ms, ended_ms, bytes }
    }

    fn pace(moves: &[Stretch]) -> Pace {
        let mut pace = Pace::default();
        moves.iter().for_each(|of| pace.note(*of));
        pace
    }

    #[test]
    fn moves_at_a_time_count_together() {
        let alone = pace(&[stretch(10_000, 16_500, 100 * MB)]);
        assert_eq!(alone.bytes_per_s(std::iter::empty()), None);
        let both = pace(&[stretch(10_000, 16_500, 50 * MB), stretch(10_000, 16_500, 50 * MB)]);
        assert_eq!(both.bytes_per_s(std::iter::empty()), Some(20e6));
        // What begins while another copies loses no time; what waits for the other's end does.
        let chain = pace(&[stretch(10_000, 16_500, 100 * MB), stretch(12_000, 21_500, 100 * MB)]);
        assert_eq!(chain.bytes_per_s(std::iter::empty()), Some(20e6));
        let after = pace(&[stretch(10_000, 16_500, 100 * MB), stretch(16_500, 23_000, 100 * MB)]);
        assert_eq!(after.bytes_per_s(std::iter::empty()), Some(20e6));
    }

    #[test]
    fn what_is_under_way_counts_as_far_as_it_is() {
        let first = pace(&[stretch(10_000, 21_500, 50 * MB), stretch(10_000, 21_500, 50 * MB)]);
        let beside = [stretch(10_000, 21_500, 100 * MB), stretch(21_500, 21_500, 0)];
        assert_eq!(first.bytes_per_s(beside.into_iter()), Some(20e6));
    }

    #[test]
    fn what_says_nothing_is_not_kept() {
        let short = pace(&[stretch(10_000, 12_000, 100 * MB)]);
        assert_eq!(short, Pace::default());
        assert_eq!(short.bytes_per_s([stretch(0, 60_000, 100 * MB)].into_iter()), None);
        let long: Vec<Stretch> = (0..40).map(|n| stretch(n * 10_000, n * 10_000 + 6_500, n * MB)).collect();
        assert_eq!(pace(&long).moves.len(), MOVES_KEPT);
    }

    #[test]
    fn what_every_move_takes_is_shared() {
        assert_eq!([setups_ms(0, 4), setups_ms(1, 4), setups_ms(12, 4), setups_ms(12, 0)], [0, 1500, 4500, 18_000]);
    }
}
