//! Gives each of some guests a place of its own, of those that it may have.

use std::collections::BTreeMap;

/// A matching that gives each guest on the left a place of its own on the right, by augmenting paths (Kuhn).
pub(super) struct Matching<F> {
    /// For each place on the right, the index on the left that has it.
    with: Vec<Option<usize>>,
    choices: F,
}

impl<F: Fn(usize) -> Vec<u32>> Matching<F> {
    /// Finds a place for each index on the left.
    ///
    /// # Errors
    ///
    /// A set of places for which there are more indices on the left than places.
    pub(super) fn complete(left: usize, right: usize, choices: F) -> Result<(), Vec<u32>> {
        let mut matching = Matching { with: vec![None; right], choices };
        (0..left).try_for_each(|n| matching.add(n))
    }

    /// Returns how many indices on the left can have a place, counted up to `enough`.
    pub(super) fn most(left: usize, right: usize, enough: usize, choices: F) -> usize {
        let mut matching = Matching { with: vec![None; right], choices };
        let mut placed = 0;
        for n in 0..left {
            if placed < enough {
                placed += usize::from(matching.add(n).is_ok());
            }
        }
        placed
    }

    /// Finds a place for one more index, breadth first: an index whose place is taken looks for another place.
    ///
    /// # Errors
    ///
    /// All places that were tried, if none is free: the indices that have them can have no others.
    fn add(&mut self, new: usize) -> Result<(), Vec<u32>> {
        let mut left = vec![new];
        let mut came: BTreeMap<u32, usize> = BTreeMap::new();
        let mut at = 0;
        while at < left.len() {
            let one = left[at];
            at += 1;
            for place in (self.choices)(one) {
                if came.contains_key(&place) {
                    continue;
                }
                came.insert(place, one);
                match self.with[place as usize] {
                    Some(other) => left.push(other),
                    None => {
                        self.shift(place, new, &came);
                        return Ok(());
                    }
                }
            }
        }
        Err(came.into_keys().collect())
    }

    /// Moves each index on the way to a free place one place further.
    fn shift(&mut self, free: u32, new: usize, came: &BTreeMap<u32, usize>) {
        let mut place = free;
        loop {
            let one = came[&place];
            let left = self.with.iter().position(|with| *with == Some(one));
            self.with[place as usize] = Some(one);
            match left {
                Some(before) if one != new => place = before as u32,
                _ => return,
            }
        }
    }
}
