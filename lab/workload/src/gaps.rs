//! The intervals between heartbeats.

/// The width of a histogram bucket, in nanoseconds.
const BUCKET_NS: u64 = 100_000;
/// The number of buckets: up to 400 ms. Longer intervals fall into the last.
const BUCKETS: usize = 4000;

/// The intervals seen since the last reset.
#[derive(Debug, Clone)]
pub struct Gaps {
    counts: Box<[u32]>,
    total: u64,
    longest: u64,
    second: u64,
}

impl Default for Gaps {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into(), total: 0, longest: 0, second: 0 }
    }
}

impl Gaps {
    /// Adds one interval, in nanoseconds.
    pub fn add(&mut self, ns: u64) {
        self.counts[((ns / BUCKET_NS) as usize).min(BUCKETS - 1)] += 1;
        self.total += 1;
        if ns > self.longest {
            (self.longest, self.second) = (ns, self.longest);
        } else if ns > self.second {
            self.second = ns;
        }
    }

    /// Forgets all intervals.
    pub fn reset(&mut self) {
        self.counts.fill(0);
        (self.total, self.longest, self.second) = (0, 0, 0);
    }

    /// Returns how many intervals were added.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the longest interval in nanoseconds, or 0 if there is none.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// Returns the second longest interval in nanoseconds, or 0 if there is none.
    pub fn second(&self) -> u64 {
        self.second
    }

    /// Returns the interval that `permille` of a thousand do not exceed, in nanoseconds, rounded up to 100 µs.
    pub fn quantile(&self, permille: u64) -> u64 {
        let rank = (self.total * permille).div_ceil(1000);
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= rank && seen > 0 {
                return ((bucket as u64 + 1) * BUCKET_NS).min(self.longest);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_sorting(mut all in prop::collection::vec(0u64..600_000_000, 0..300), permille in 1u64..=1000) {
            let mut gaps = Gaps::default();
            all.iter().for_each(|&ns| gaps.add(ns));
            all.sort_unstable();
            prop_assert_eq!(gaps.longest(), all.last().copied().unwrap_or(0));
            prop_assert_eq!(gaps.second(), all.iter().rev().nth(1).copied().unwrap_or(0));
            if let Some(&exact) = all.get(((all.len() as u64 * permille).div_ceil(1000) as usize).wrapping_sub(1)) {
                let got = gaps.quantile(permille);
                if exact < BUCKET_NS * (BUCKETS as u64 - 1) {
                    prop_assert!(got >= exact && got <= exact + BUCKET_NS, "{got} for {exact}");
                } else {
                    prop_assert!(got >= BUCKET_NS * (BUCKETS as u64 - 1));
                }
            } else {
                prop_assert_eq!(gaps.quantile(permille), 0);
            }
            gaps.reset();
            prop_assert_eq!((gaps.total(), gaps.longest(), gaps.quantile(990)), (0, 0, 0));
        }
    }
}
