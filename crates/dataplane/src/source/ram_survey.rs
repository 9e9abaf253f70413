//! Samples a guest's RAM, so that it is known how much of what is left to send goes on the wire.
//!
//! A page of zeros takes next to no time, and a page that compresses takes less than another. QEMU counts all of them
//! alike among what remains, and they lie together: a guest that never used the second half of its RAM is moved when
//! the first half is. QEMU sends the blocks in the order in which its stream tells of them, each from its beginning
//! (`ram_save_host_page` and `find_dirty_block` of its migration/ram.c), so that in the first round the bytes that are
//! sent say which those are.

use skein_pages::PAGE_BYTES;

/// How many pages are looked at, spread evenly: of many pages of which a third are zero, the share is known to 2 %.
const SAMPLES: u64 = 4096;
/// How many of them are looked at in one go: a few milliseconds.
const SAMPLES_AT_ONCE: usize = 512;

/// Compressing is of no account as long as it could have saved less than this share of the RAM.
const LEAST_SAVINGS: f64 = 0.02;
/// More than this share of what compressing single pages could save is not saved by compressing alone.
const MOST_SAVED_SHARE: f64 = 1.5;

/// What the pages of a guest's RAM take on the wire, by samples, in the order in which they are sent.
#[derive(Debug)]
pub(super) struct RamSurvey {
    /// The bytes of each block.
    blocks: Vec<u64>,
    total_bytes: u64,
    /// The bytes that each sample which was taken becomes if it is packed; 0: it is zero.
    samples: Vec<u16>,
    samples_max: u64,
}

impl RamSurvey {
    /// Begins a survey of blocks of these bytes.
    pub(super) fn new(blocks: impl Iterator<Item = u64>) -> RamSurvey {
        let blocks: Vec<u64> = blocks.collect();
        let total_bytes = blocks.iter().sum();
        let samples_max = SAMPLES.min(total_bytes / PAGE_BYTES as u64);
        RamSurvey { blocks, total_bytes, samples: Vec::new(), samples_max }
    }

    /// Looks at some more pages. `packed_bytes` returns what so many bytes at an offset of the block with a number
    /// become if they are packed, 0 if they are zero. Returns whether all were looked at.
    pub(super) fn go_on(&mut self, mut packed_bytes: impl FnMut(u16, u64, u64) -> usize) -> bool {
        for _ in 0..SAMPLES_AT_ONCE {
            if self.samples.len() as u64 == self.samples_max {
                break;
            }
            let (block, offset) = self.place(self.samples.len() as u64);
            let bytes = (PAGE_BYTES as u64).min(self.blocks[usize::from(block)] - offset);
            self.samples.push(packed_bytes(block, offset, bytes).min(PAGE_BYTES) as u16);
        }
        self.samples.len() as u64 == self.samples_max
    }

    /// Returns where a sample is: the block, and the offset of a page in it. Each sample is somewhere in a stretch of
    /// its own, not always at its beginning: what lies there in a huge page is not like the rest.
    fn place(&self, sample: u64) -> (u16, u64) {
        let begin =
            |sample: u64| (u128::from(sample) * u128::from(self.total_bytes) / u128::from(self.samples_max)) as u64;
        let pages = ((begin(sample + 1) - begin(sample)) / PAGE_BYTES as u64).max(1);
        // Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4).
        let within = (sample + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mut at = begin(sample) + within % pages * PAGE_BYTES as u64;
        for (number, bytes) in (0..).zip(&self.blocks) {
            if at < *bytes {
                return (number, at - at % PAGE_BYTES as u64);
            }
            at -= bytes;
        }
        (0, 0)
    }

    /// Returns about how many bytes the last `remaining_bytes` of the RAM take on the wire, if the rest took what was
    /// `sent`.
    ///
    /// Compressing saves less than it could where no CPU is idle in time. So of what it could save in the pages that
    /// are left the same share is taken off that was saved in those that were sent.
    pub(super) fn wire_bytes(&self, remaining_bytes: u64, sent: Sent) -> u64 {
        let (all, left) = (self.last(self.total_bytes), self.last(remaining_bytes));
        let could_save = all.savings() - left.savings();
        let saved = sent.nonzero_bytes as f64 - sent.wire_bytes as f64;
        let share = if could_save > LEAST_SAVINGS * all.nonzero_bytes { saved / could_save } else { 1.0 };
        let wire_bytes = match share {
            0.0..=MOST_SAVED_SHARE => left.nonzero_bytes - share * left.savings(),
            // Something else saves, or costs: what the target has already is not sent.
            _ => left.nonzero_bytes * sent.wire_bytes as f64 / sent.nonzero_bytes.max(1) as f64,
        };
        (wire_bytes.max(0.0) as u64).min(remaining_bytes)
    }

    /// Returns what is in the last bytes of the RAM.
    fn last(&self, bytes: u64) -> Content {
        if self.samples.is_empty() || self.total_bytes == 0 {
            return Content { nonzero_bytes: bytes as f64, packed_bytes: bytes as f64 };
        }
        let sample_bytes = self.total_bytes as f64 / self.samples.len() as f64;
        let before = self.total_bytes.saturating_sub(bytes) as f64 / sample_bytes;
        let first = (before as usize).min(self.samples.len() - 1);
        let part = 1.0 - (before - first as f64).min(1.0);
        let weights = std::iter::once(part).chain(std::iter::repeat(1.0));
        let mut content = Content::default();
        for (packed, weight) in self.samples[first..].iter().zip(weights).filter(|(packed, _)| **packed > 0) {
            content.nonzero_bytes += weight * sample_bytes;
            content.packed_bytes += weight * sample_bytes * f64::from(*packed) / PAGE_BYTES as f64;
        }
        content
    }
}

/// What was sent so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// The bytes of pages that are not zero.
    pub(super) nonzero_bytes: u64,
    /// The bytes on the wire.
    pub(super) wire_bytes: u64,
}

/// What is in some of the RAM, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Content {
    /// What is not zero.
    nonzero_bytes: f64,
    /// What that becomes if all of it is packed.
    packed_bytes: f64,
}

impl Content {
    fn savings(&self) -> f64 {
        self.nonzero_bytes - self.packed_bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MB: u64 = 1 << 20;

    fn surveyed(blocks: &[u64], packed_bytes: impl Fn(u16, u64, u64) -> usize + Copy) -> RamSurvey {
        let mut survey = RamSurvey::new(blocks.iter().copied());
        while !survey.go_on(packed_bytes) {}
        survey
    }

    #[test]
    fn what_is_left_is_known_wherever_zeros_lie() {
        // The first block holds something in its first quarter, the second one what compresses to a quarter.
        let survey = surveyed(&[512 * MB, 64 * MB], |block, offset, _| match (block, offset < 128 * MB) {
            (0, true) => PAGE_BYTES,
            (0, false) => 0,
            _ => PAGE_BYTES / 4,
        });
        for (done, left) in [(0_u64, 144), (64, 80), (128, 16), (300, 16), (512, 16), (544, 8), (576, 0)] {
            let (full, packed) = (done.min(128), done.saturating_sub(512));
            let sent = Sent { nonzero_bytes: (full + packed) * MB, wire_bytes: (full + packed / 4) * MB };
            let told = survey.wire_bytes((576 - done) * MB, sent);
            assert!(told.abs_diff(left * MB) <= MB, "{done} MiB are done: {told}");
        }
        // Every third page.
        let is_third = |offset: u64| (offset / PAGE_BYTES as u64).is_multiple_of(3);
        let survey = surveyed(&[1024 * MB], |_, offset, _| if is_third(offset) { PAGE_BYTES } else { 0 });
        let told = survey.wire_bytes(1024 * MB, Sent::default()) as f64;
        assert!((told / (1024 * MB) as f64 - 1.0 / 3.0).abs() < 0.03, "{told}");
    }

    #[test]
    fn what_is_saved_of_what_is_left_is_what_was_saved_of_the_rest() {
        // The first half compresses to a half, the second to three quarters.
        let survey = surveyed(&[512 * MB], |_, offset, _| PAGE_BYTES / 4 * if offset < 256 * MB { 2 } else { 3 });
        for (wire, left) in [
            (128, 192), // All was saved …
            (192, 224), // … half of it …
            (256, 256), // … nothing.
            (32, 32),   // More than can be: most of it was there already.
        ] {
            let sent = Sent { nonzero_bytes: 256 * MB, wire_bytes: wire * MB };
            let told = survey.wire_bytes(256 * MB, sent);
            assert!(told.abs_diff(left * MB) <= MB, "{wire}: {} MiB", told / MB);
        }
        // Nothing can be saved, and nothing is.
        let survey = surveyed(&[512 * MB], |_, _, _| PAGE_BYTES);
        let sent = Sent { nonzero_bytes: 256 * MB, wire_bytes: 257 * MB };
        assert!(survey.wire_bytes(256 * MB, sent).abs_diff(256 * MB) <= MB);
    }

    #[test]
    fn a_survey_takes_its_time() {
        let mut survey = RamSurvey::new([1024 * MB].into_iter());
        let looks = (1..=100).find(|_| survey.go_on(|_, _, _| 0));
        assert_eq!(looks, Some(8));
        assert_eq!(survey.wire_bytes(1024 * MB, Sent::default()), 0);
    }

    proptest! {
        /// Whatever blocks there are, all that is asked for lies within them, and no more is left than remains.
        #[test]
        fn only_what_is_there_is_looked_at(
            blocks in proptest::collection::vec(0..20 * MB, 0..6),
            remaining in 0..200 * MB,
            sent: (u64, u64),
        ) {
            let sizes = blocks.clone();
            let survey = surveyed(&blocks, |block, offset, bytes| {
                assert!(bytes > 0 && offset + bytes <= sizes[usize::from(block)], "{block} {offset} {bytes}");
                if offset.is_multiple_of(3) { usize::MAX } else { 7 }
            });
            let sent = Sent { nonzero_bytes: sent.0, wire_bytes: sent.1 };
            prop_assert!(survey.wire_bytes(remaining, sent) <= remaining);
        }
    }
}
