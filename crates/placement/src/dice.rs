//! A generator of pseudo-random numbers that gives the same numbers for the same seed.

/// The generator SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Makes a generator that gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Returns any number of 64 bits.
    #[inline]
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `n` - 1, or 0 if `n` is 0.
    #[inline]
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.any()) * n as u128) >> 64) as usize
    }

    /// Returns a number above 0 and up to 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        ((self.any() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Returns `true` with a probability of `of`, from 0 to 1.
    #[inline]
    pub fn chance(&mut self, of: f64) -> bool {
        self.unit() <= of
    }

    /// Returns one of the elements.
    ///
    /// # Panics
    ///
    /// If `of` is empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Puts `many` randomly chosen elements, in random order, at the beginning of the slice (Fisher-Yates).
    ///
    /// # Panics
    ///
    /// If the slice has fewer than `many` elements.
    pub fn shuffle<T>(&mut self, all: &mut [T], many: usize) {
        for at in 0..many {
            let other = at + self.below(all.len() - at);
            all.swap(at, other);
        }
    }
}
