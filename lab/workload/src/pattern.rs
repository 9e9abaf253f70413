//! Page contents as a function of (seed, page number, version), and the order of rewriting.

use std::ops::Range;

/// The bytes of a page (and of a block of the disk test).
pub const PAGE_BYTES: usize = 4096;
/// The 64-bit words of a page.
pub const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// One page, as the words that are written.
pub type Page = [u64; PAGE_WORDS];

// Constants of wyrand (Wang Yi, public domain): one addition, one 64x64->128 multiplication and one xor a word, which
// is the cheapest good generator under an emulated CPU.
const STEP: u64 = 0xa076_1d64_78bd_642f;
const MASK: u64 = 0xe703_7ed1_a0b4_28db;

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Returns a 64-bit hash of two numbers.
fn mix(a: u64, b: u64) -> u64 {
    fold(fold(a ^ STEP, b ^ MASK) ^ b.wrapping_add(STEP), a ^ MASK)
}

/// A compressible page has one random word in this many; the others repeat. 256 of 4096 bytes remain: about 12:1 for
/// zstd.
const SPARSE: usize = 16;

/// The part to rewrite moves by this many parts with each version. The number is odd, so that all parts of a page are
/// visited (their number is a power of two). It is large, so that neighbours in time are not neighbours in space.
const PART_STRIDE: u64 = 167;
/// `PART_STRIDE * PART_STRIDE_INVERSE = 1 (mod 512)`.
const PART_STRIDE_INVERSE: u64 = 279;

/// The contents of a region of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    seed: u64,
    compressible_percent: u8,
    parts: u64,
}

impl Pattern {
    /// Makes a pattern. A page is divided into `parts`, a power of two of at most 512, and each rewrite changes one
    /// part.
    ///
    /// # Panics
    ///
    /// If `parts` is not such a number.
    pub fn new(seed: u64, compressible_percent: u8, parts: usize) -> Self {
        assert!(parts.is_power_of_two() && parts <= PAGE_WORDS, "parts: a power of two of at most {PAGE_WORDS}");
        Self { seed, compressible_percent, parts: parts as u64 }
    }

    /// Returns whether a page is one of those that compress well.
    pub fn is_compressible(&self, page: u64) -> bool {
        mix(self.seed ^ 0x5eed, page) % 100 < u64::from(self.compressible_percent)
    }

    /// Returns which part of the page the rewrite to `version` (1 and up) changes.
    fn part_of(&self, page: u64, version: u64) -> u64 {
        version.wrapping_mul(PART_STRIDE).wrapping_add(page) % self.parts
    }

    /// Returns the version at which `part` was last written when the page stands at `version`. 0: it was only filled.
    fn part_version(&self, page: u64, part: u64, version: u64) -> u64 {
        // The versions v with part_of(v) = part are v = residue (mod parts). Take the latest of them.
        let residue = part.wrapping_sub(page).wrapping_mul(PART_STRIDE_INVERSE) % self.parts;
        let age = version.wrapping_sub(residue) % self.parts;
        // Residue 0 gives version 0 for a page that was never rewritten there. That is right: it was filled.
        version.saturating_sub(age)
    }

    /// Calls `each(word index, value)` for the words of `range`, all as written at `version`.
    #[inline(always)]
    fn words(&self, page: &Keys, range: Range<usize>, version: u64, mut each: impl FnMut(usize, u64)) {
        let key = mix(page.random, version);
        let random = |index: usize| {
            let state = key.wrapping_add(STEP.wrapping_mul(index as u64));
            fold(state, state ^ MASK)
        };
        match page.constant {
            Some(constant) => {
                let constant = constant.wrapping_add(version);
                range.for_each(|i| each(i, if i % SPARSE == 0 { random(i) } else { constant }));
            }
            None => range.for_each(|i| each(i, random(i))),
        }
    }

    /// Calls `each` for all words of the page as it stands at `version`.
    #[inline(always)]
    fn all_words(&self, page: u64, version: u64, mut each: impl FnMut(usize, u64)) {
        let keys = self.keys(page);
        if self.parts == 1 || version == 0 {
            return self.words(&keys, 0..PAGE_WORDS, version, each);
        }
        for part in 0..self.parts {
            self.words(&keys, self.range(part), self.part_version(page, part, version), &mut each);
        }
    }

    fn keys(&self, page: u64) -> Keys {
        Keys { random: mix(self.seed, page), constant: self.is_compressible(page).then(|| mix(self.seed, !page)) }
    }

    fn range(&self, part: u64) -> Range<usize> {
        let length = PAGE_WORDS / self.parts as usize;
        let start = part as usize * length;
        start..start + length
    }

    /// Writes the whole page as it stands at `version`.
    pub fn fill(&self, page: u64, version: u64, into: &mut Page) {
        self.all_words(page, version, |i, word| into[i] = word);
    }

    /// Changes the page from `version - 1` to `version`: writes one part only.
    pub fn rewrite(&self, page: u64, version: u64, into: &mut Page) {
        let range = self.range(self.part_of(page, version));
        self.words(&self.keys(page), range, version, |i, word| into[i] = word);
    }

    /// Returns whether the page holds exactly what it should at `version`.
    pub fn check(&self, page: u64, version: u64, content: &Page) -> bool {
        let mut difference = 0;
        self.all_words(page, version, |i, word| difference |= content[i] ^ word);
        difference == 0
    }
}

/// What all words of a page have in common.
struct Keys {
    random: u64,
    /// The repeated word, if the page is compressible.
    constant: Option<u64>,
}

/// The order in which a region is rewritten: passes over all its pages, each pass in the same scattered order.
///
/// The only state is the number of writes done so far. It gives the version of every page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sweep {
    pages: u64,
    stride: u64,
    inverse: u64,
}

impl Sweep {
    /// Makes a sweep over `pages` pages.
    pub fn new(pages: u64) -> Self {
        // The golden section scatters well. Any stride coprime to the length visits every page once a pass.
        let mut stride = (pages as f64 * 0.618_033_988_75) as u64 | 1;
        loop {
            if let Some(inverse) = inverse(stride, pages.max(1)) {
                return Self { pages, stride, inverse };
            }
            stride += 2;
        }
    }

    /// Returns how many pages are in the region.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the write that follows `written` earlier ones: the page, and its new version.
    ///
    /// # Panics
    ///
    /// If the region is empty.
    pub fn next(&self, written: u64) -> (u64, u64) {
        let page = (u128::from(written % self.pages) * u128::from(self.stride) % u128::from(self.pages)) as u64;
        (page, written / self.pages + 1)
    }

    /// Returns the version of `page` after `written` writes.
    pub fn version(&self, page: u64, written: u64) -> u64 {
        let place = (u128::from(page) * u128::from(self.inverse) % u128::from(self.pages)) as u64;
        written / self.pages + u64::from(place < written % self.pages)
    }
}

/// Returns the inverse of `a` modulo `m`, if there is one (extended Euclid).
fn inverse(a: u64, m: u64) -> Option<u64> {
    let (mut r0, mut r1) = (i128::from(m), i128::from(a % m));
    let (mut t0, mut t1) = (0i128, 1i128);
    while r1 != 0 {
        let q = r0 / r1;
        (r0, r1) = (r1, r0 - q * r1);
        (t0, t1) = (t1, t0 - q * t1);
    }
    (r0 == 1).then(|| t0.rem_euclid(i128::from(m)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PARTS: [usize; 3] = [1, 4, 512];

    fn zero() -> Page {
        [0; PAGE_WORDS]
    }

    #[test]
    fn part_strides_are_inverse() {
        assert_eq!(PART_STRIDE * PART_STRIDE_INVERSE % PAGE_WORDS as u64, 1);
    }

    #[test]
    fn rewriting_changes_one_part() {
        for parts in PARTS {
            for percent in [0, 100] {
                let pattern = Pattern::new(7, percent, parts);
                let mut page = zero();
                pattern.fill(3, 0, &mut page);
                let before = page;
                pattern.rewrite(3, 1, &mut page);
                let changed = (0..PAGE_WORDS).filter(|&i| page[i] != before[i]).count();
                assert_eq!(changed, PAGE_WORDS / parts, "{parts} parts, {percent} % compressible");
            }
        }
    }

    #[test]
    fn share_of_compressible_pages() {
        for percent in [0u8, 10, 50, 100] {
            let pattern = Pattern::new(1, percent, 1);
            let share = (0..100_000).filter(|&page| pattern.is_compressible(page)).count() as f64 / 1000.0;
            assert!((share - f64::from(percent)).abs() < 1.0, "{percent}: {share}");
        }
    }

    /// The number of distinct words says enough about compressibility: an LZ coder needs repeats.
    #[test]
    fn compressible_pages_repeat_and_others_do_not() {
        for (percent, distinct) in [(0, PAGE_WORDS), (100, PAGE_WORDS / SPARSE + 1)] {
            let mut page = zero();
            Pattern::new(9, percent, 1).fill(5, 2, &mut page);
            let mut words = page.to_vec();
            words.sort_unstable();
            words.dedup();
            assert_eq!(words.len(), distinct);
        }
    }

    #[test]
    fn random_words_have_even_bits() {
        let pattern = Pattern::new(42, 0, 1);
        let mut ones = [0u32; 64];
        let mut page = zero();
        for number in 0..100 {
            pattern.fill(number, 0, &mut page);
            for word in page {
                for (bit, count) in ones.iter_mut().enumerate() {
                    *count += (word >> bit & 1) as u32;
                }
            }
        }
        // 51200 draws have a standard deviation of 113.
        assert!(ones.iter().all(|&n| n.abs_diff(25_600) < 700), "{ones:?}");
    }

    proptest! {
        /// Checks that rewriting step by step leads to the content that `fill` writes for the version, and that `check`
        /// agrees with both.
        #[test]
        fn rewrites_add_up(
            seed: u64,
            page in 0u64..1 << 40,
            percent in 0u8..=100,
            parts in prop::sample::select(&PARTS[..]),
            version in 0u64..1100,
        ) {
            let pattern = Pattern::new(seed, percent, parts);
            let (mut stepped, mut filled) = (zero(), zero());
            pattern.fill(page, 0, &mut stepped);
            for v in 1..=version {
                pattern.rewrite(page, v, &mut stepped);
            }
            pattern.fill(page, version, &mut filled);
            prop_assert_eq!(&stepped[..], &filled[..]);
            prop_assert!(pattern.check(page, version, &stepped));
            prop_assert!(!pattern.check(page, version + 1, &stepped), "a stale page must not pass");
            prop_assert!(!pattern.check(page + 1, version, &stepped), "a page in another's place must not pass");
        }

        /// Checks that every single flipped bit is noticed.
        #[test]
        fn one_bit_is_seen(
            seed: u64,
            page: u64,
            version in 0u64..2000,
            parts in prop::sample::select(&PARTS[..]),
            word in 0..PAGE_WORDS,
            bit in 0..64u32,
        ) {
            let pattern = Pattern::new(seed, 50, parts);
            let mut content = zero();
            pattern.fill(page, version, &mut content);
            content[word] ^= 1 << bit;
            prop_assert!(!pattern.check(page, version, &content));
        }

        /// Checks that the closed form of versions agrees with counting.
        #[test]
        fn sweep_agrees_with_counting(pages in 1u64..200, written in 0u64..1000) {
            let sweep = Sweep::new(pages);
            let mut versions = vec![0; pages as usize];
            for n in 0..written {
                let (page, version) = sweep.next(n);
                versions[page as usize] += 1;
                prop_assert_eq!(versions[page as usize], version);
            }
            for page in 0..pages {
                prop_assert_eq!(sweep.version(page, written), versions[page as usize]);
            }
        }

        #[test]
        fn large_sweeps(pages in 1u64..1 << 40, written in 0u64..1 << 60) {
            let sweep = Sweep::new(pages);
            let (page, version) = sweep.next(written);
            prop_assert!(page < pages);
            prop_assert_eq!(sweep.version(page, written) + 1, version);
            prop_assert_eq!(sweep.version(page, written + 1), version);
        }
    }
}
