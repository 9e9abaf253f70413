//! Which pages have memory, so that they may be touched.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const BITS: usize = u64::BITS as usize;

/// A bit for each page, set once there is memory for it: 32 KiB for a GiB in 4 KiB pages.
#[derive(Debug)]
pub(crate) struct Touched(Box<[AtomicU64]>);

impl Touched {
    /// Returns a set for `pages` pages, with no page in it.
    pub(crate) fn new(pages: usize) -> Self {
        Self((0..pages.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns whether there is memory for all of these pages.
    pub(crate) fn all(&self, pages: Range<usize>) -> bool {
        masks(pages).all(|(word, mask)| self.0[word].load(Ordering::Acquire) & mask == mask)
    }

    /// Notes that there is memory for these pages.
    pub(crate) fn set(&self, pages: Range<usize>) {
        for (word, mask) in masks(pages) {
            self.0[word].fetch_or(mask, Ordering::Release);
        }
    }
}

/// Returns the words that have bits of `pages`, and which bits.
fn masks(pages: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    (pages.start / BITS..pages.end.div_ceil(BITS)).map(move |word| {
        let begin = pages.start.saturating_sub(word * BITS);
        let end = (pages.end - word * BITS).min(BITS);
        let bits = end.saturating_sub(begin);
        (word, if bits == 0 { 0 } else { u64::MAX >> (BITS - bits) << begin })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn like_a_set(
            ranges in proptest::collection::vec((0..200usize, 0..200usize), 0..10),
            asked in (0..200usize, 0..200usize),
        ) {
            let touched = Touched::new(200);
            let mut model = [false; 200];
            let sorted = |(a, b): (usize, usize)| a.min(b)..a.max(b);
            for range in ranges.into_iter().map(sorted) {
                touched.set(range.clone());
                model[range].fill(true);
            }
            let asked = sorted(asked);
            prop_assert_eq!(touched.all(asked.clone()), model[asked].iter().all(|&set| set));
            for (page, set) in model.into_iter().enumerate() {
                prop_assert_eq!(touched.all(page..page + 1), set);
            }
        }
    }
}
