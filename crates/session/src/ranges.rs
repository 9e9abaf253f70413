//! A set of byte ranges that merges neighbours.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint, non-adjacent ranges: ends by starts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Everything that overlaps or touches [start, end) becomes part of the new range.
        while let Some((&s, &e)) = self.ends.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.ends.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.ends.insert(start, end);
    }

    /// Removes the range that begins at `start`, if there is one. Returns where that range ended.
    pub(crate) fn take_from(&mut self, start: u64) -> Option<u64> {
        self.ends.remove(&start)
    }

    /// Returns how many separate ranges there are.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn overlaps(&self, range: Range<u64>) -> bool {
        !range.is_empty() && self.ends.range(..range.end).next_back().is_some_and(|(_, &end)| range.start < end)
    }

    pub(crate) fn contains(&self, range: Range<u64>) -> bool {
        range.is_empty() || self.ends.range(..=range.start).next_back().is_some_and(|(_, &end)| range.end <= end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_set_of_numbers(
            inserts in proptest::collection::vec((0u64..64, 0u64..16), 0..32),
            asks in proptest::collection::vec((0u64..64, 0u64..16), 0..32),
        ) {
            let mut ranges = Ranges::default();
            let mut model = [false; 128];
            for (start, len) in inserts {
                ranges.insert(start..start + len);
                (start..start + len).for_each(|i| model[i as usize] = true);
            }
            for (start, len) in asks {
                let expected = (start..start + len).all(|i| model[i as usize]);
                prop_assert_eq!(ranges.contains(start..start + len), expected);
                let expected = (start..start + len).any(|i| model[i as usize]);
                prop_assert_eq!(ranges.overlaps(start..start + len), expected);
            }
            let mut last = None;
            for (&start, &end) in &ranges.ends {
                prop_assert!(start < end && last.is_none_or(|l| l < start));
                last = Some(end);
            }
        }
    }
}
