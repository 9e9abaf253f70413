//! Numbers that look drawn, and are the same for the same seed.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that give the same numbers for the same seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Any number.
    #[inline]
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `n` - 1; 0 if `n` is 0.
    #[inline]
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.any()) * n as u128) >> 64) as usize
    }

    /// Above 0, and up to 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        ((self.any() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Whether something of this chance, 0 to 1, comes about.
    #[inline]
    pub fn chance(&mut self, of: f64) -> bool {
        self.unit() <= of
    }

    /// One of these.
    ///
    /// # Panics
    /// There is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Has any so many of them first, in any order (Fisher, Yates).
    ///
    /// # Panics
    /// There are fewer.
    pub fn shuffle<T>(&mut self, all: &mut [T], many: usize) {
        for at in 0..many {
            let other = at + self.below(all.len() - at);
            all.swap(at, other);
        }
    }
}
