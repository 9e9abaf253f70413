//! The books of moves: for each group, how many of its members are not where they were.

use super::groups::Rules;
use crate::problem::{GroupId, GuestId, Problem};

/// How many members of each group have moved, and the largest of these numbers.
pub(super) struct Moves {
    moved: Vec<u32>,
    /// For each number of moved members, how many groups have that number.
    groups: Vec<u32>,
    most: u32,
}

/// A guest, and the change in how often it counts as moved: -1, 0 or 1.
pub(super) type Change = (GuestId, i64);

impl Moves {
    /// Makes the books with no guest moved.
    pub(super) fn new(problem: &Problem, rules: &Rules) -> Moves {
        let largest = rules.members.iter().map(Vec::len).max().unwrap_or(0);
        let mut groups = vec![0; largest + 1];
        groups[0] = problem.groups.iter().filter(|group| group.counts_moves).count() as u32;
        Moves { moved: vec![0; problem.groups.len()], groups, most: 0 }
    }

    /// Returns by how much the largest number of moves of a group would grow with one or two changes.
    #[inline]
    pub(super) fn growth(&self, problem: &Problem, rules: &Rules, changes: &[Change]) -> i64 {
        if changes.iter().all(|(_, by)| *by == 0) {
            return 0;
        }
        // Each group that changes, once, with the number of its members that have moved, before and after.
        let of = |guest: GuestId, group: GroupId| rules.of(guest).contains(&group);
        let each = || {
            changes.iter().enumerate().flat_map(move |(nth, (guest, _))| {
                rules.of(*guest).iter().filter_map(move |&group| {
                    let is_told = changes[..nth].iter().any(|(other, _)| of(*other, group));
                    if is_told || !problem.groups[group as usize].counts_moves {
                        return None;
                    }
                    let by: i64 = changes.iter().filter(|(other, _)| of(*other, group)).map(|(_, by)| by).sum();
                    let moved = i64::from(self.moved[group as usize]);
                    (by != 0).then_some((moved, moved + by))
                })
            })
        };
        let now = i64::from(self.most);
        let mut most = each().map(|(_, then)| then).fold(now, i64::max);
        while most > 0 {
            let count = |(gone, come), (moved, then)| (gone + i64::from(moved == most), come + i64::from(then == most));
            let (gone, come) = each().fold((0, 0), count);
            if i64::from(self.groups.get(most as usize).copied().unwrap_or(0)) - gone + come > 0 {
                break;
            }
            most -= 1;
        }
        most - now
    }

    /// Counts a change. Returns by how much the largest number grows.
    pub(super) fn count(&mut self, problem: &Problem, rules: &Rules, (guest, by): Change) -> i64 {
        if by == 0 {
            return 0;
        }
        let before = self.most;
        for group in rules.of(guest) {
            let moved = &mut self.moved[*group as usize];
            let was = *moved;
            *moved = moved.wrapping_add_signed(by as i32);
            if problem.groups[*group as usize].counts_moves {
                self.groups[was as usize] -= 1;
                self.groups[*moved as usize] += 1;
                self.most = self.most.max(*moved);
            }
        }
        while self.most > 0 && self.groups[self.most as usize] == 0 {
            self.most -= 1;
        }
        i64::from(self.most) - i64::from(before)
    }
}
