//! Compresses the pages of a batch, and gives them back.
//!
//! A page that looks incompressible goes as it is, at the price of a check of some of its bytes. The others are
//! compressed together, because neighbours resemble each other.

use bytes::Bytes;
use lz4::block::CompressionMode;
use thiserror::Error;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use crate::batch::{BATCH_BYTES_MAX, Batch, PageKind};
use crate::page::PAGE_BYTES;

/// The compression of packed pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Packing {
    /// No page is compressed.
    None = 0,
    /// The pages are in LZ4's block format.
    Lz4 = 1,
    /// The pages are a Zstandard frame.
    Zstd = 2,
}

impl Packing {
    /// Returns the compression with this number.
    pub fn numbered(number: u8) -> Option<Packing> {
        [Packing::None, Packing::Lz4, Packing::Zstd].into_iter().find(|packing| *packing as u8 == number)
    }
}

/// The effort of compressing: a step of a ladder. Each step costs up to three times as much as the step below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effort(u8);

impl Effort {
    /// Holds the least effort: LZ4.
    pub const LEAST: Effort = Effort(0);
    /// Holds zstd's levels of the steps above. Levels below 1 take nearly as long on memory pages, and levels beyond
    /// gain next to nothing.
    const ZSTD_LEVELS: [i32; 4] = [1, 3, 5, 8];
    /// Holds the most effort.
    pub const MOST: Effort = Effort(Self::ZSTD_LEVELS.len() as u8);

    /// Holds the usual effort: zstd's level 1. LZ4 takes half its time on memory pages, and leaves a fifth more, of
    /// text two thirds.
    pub const USUAL: Effort = Effort(1);

    /// Returns the effort one step up.
    pub fn more(self) -> Effort {
        Effort(self.0 + 1).min(Effort::MOST)
    }

    /// Returns the effort one step down.
    pub fn less(self) -> Effort {
        Effort(self.0.saturating_sub(1))
    }

    /// Returns zstd's level; `None`: LZ4.
    pub fn zstd_level(self) -> Option<i32> {
        Some(Self::ZSTD_LEVELS[usize::from(self.0.checked_sub(1)?)])
    }

    /// Returns the effort with this number on the ladder, or the nearest.
    pub fn nth(step: u8) -> Effort {
        Effort(step).min(Effort::MOST)
    }

    /// Returns the number on the ladder, from 0.
    pub const fn step(self) -> u8 {
        self.0
    }
}

impl std::fmt::Display for Effort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.zstd_level() {
            None => f.write_str("lz4"),
            Some(level) => write!(f, "zstd {level}"),
        }
    }
}

/// Holds the mode of LZ4 that searches fewer places ("acceleration" in lz4.h). On memory pages it takes three quarters
/// of the time, or half, and leaves 4 % more.
const LZ4_MODE: Option<CompressionMode> = Some(CompressionMode::FAST(4));

/// Bounds a compressed page, as a share of the page; a page that stays larger goes as it is.
const PACKED_SHARE_MAX: f64 = 0.9;
/// Says how far apart the sampled bytes of a page are …
const SAMPLE_STRIDE: usize = 251;
/// … and how many are sampled. Random bytes have 163 different values among 256; memory that compresses has far fewer.
const SAMPLE_BYTES: usize = 16;
const DENSE_VALUES: u32 = 145;

/// Returns whether a page looks as if it did not compress: encrypted, or compressed already.
fn is_dense(page: &[u8]) -> bool {
    // Bytes are used rather than bits: no store waits for the one before.
    let mut seen = [0u8; 256];
    for at in (0..PAGE_BYTES - SAMPLE_BYTES).step_by(SAMPLE_STRIDE) {
        for byte in &page[at..at + SAMPLE_BYTES] {
            seen[usize::from(*byte)] = 1;
        }
    }
    sum_of_flags(&seen) > DENSE_VALUES
}

/// Returns about how many bytes a page becomes if it is packed: LZ4's result for it alone.
pub fn packed_bytes(page: &[u8]) -> usize {
    let mut out = [0; PAGE_BYTES + PAGE_BYTES / 255 + 16];
    if page.len() == PAGE_BYTES && is_dense(page) {
        return page.len();
    }
    let packed = lz4::block::compress_to_buffer(page, LZ4_MODE, false, &mut out).unwrap_or(page.len());
    if (packed as f64) < page.len() as f64 * PACKED_SHARE_MAX { packed } else { page.len() }
}

/// Returns how many of these bytes are 1; the others are 0. Eight at a time, because no loop becomes vectors in a link
/// for size (docs/decisions/0047-size.md).
fn sum_of_flags(flags: &[u8; 256]) -> u32 {
    let bytes: u64 = flags.as_chunks::<8>().0.iter().map(|eight| u64::from_ne_bytes(*eight)).sum();
    // No byte exceeds 32, and no sum of two exceeds 64. The product's highest 16 bits are the sum of all.
    let pairs = (bytes & 0x00ff_00ff_00ff_00ff) + (bytes >> 8 & 0x00ff_00ff_00ff_00ff);
    (pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48) as u32
}

/// What of a batch is to be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackingPlan {
    /// How each page travels then.
    pub kinds: Vec<PageKind>,
    /// Whether the bytes of the batch's deltas are packed, too, after the pages.
    pub changes: bool,
}

impl PackingPlan {
    /// Returns what is to be packed, in its buffers.
    pub fn parts(&self, batch: &Batch) -> Vec<Bytes> {
        let mut parts = parts(batch, &self.kinds, PageKind::Packed);
        parts.extend(self.changes.then(|| batch.changes.clone()));
        parts
    }
}

/// Says from how many bytes on a batch's deltas are considered: packing fewer takes longer than sending them.
const CHANGES_MIN: usize = 8 * PAGE_BYTES;

/// Returns what of a batch does not look incompressible; `None`: everything looks so.
pub fn plan_packing(batch: &Batch) -> Option<PackingPlan> {
    let mut kinds = batch.kinds.clone();
    for (nth, kind) in kinds.iter_mut().enumerate() {
        if batch.page(nth).is_some_and(|page| !is_dense(page)) {
            *kind = PageKind::Packed;
        }
    }
    let changes = batch.changes.len() >= CHANGES_MIN && !is_dense(&batch.changes[..PAGE_BYTES]);
    (changes || kinds.contains(&PageKind::Packed)).then_some(PackingPlan { kinds, changes })
}

/// A batch made small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// What was packed.
    pub sifted: PackingPlan,
    /// The compression, and the bytes of the result.
    pub compressed: Compressed,
}

/// Pages made small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed {
    /// The compression.
    pub packing: Packing,
    /// The bytes of the result in the buffer that was given.
    pub len: usize,
}

/// Compresses pages. Each compressing thread has its own.
pub struct PageCompressor {
    zstd: Compressor<'static>,
    level: i32,
}

impl PageCompressor {
    /// Bounds a result before it is cut: what LZ4 may make of a batch (`LZ4_COMPRESSBOUND` in lz4.h), which is more
    /// than zstd does.
    pub const OUT_BYTES: usize = BATCH_BYTES_MAX + BATCH_BYTES_MAX / 255 + 16;

    /// Makes a compressor.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new() -> std::io::Result<PageCompressor> {
        let mut zstd = Compressor::new(1)?;
        // The batch says how long it is, and TLS that it arrived whole.
        zstd.set_parameter(CParameter::ContentSizeFlag(false))?;
        zstd.set_parameter(CParameter::ChecksumFlag(false))?;
        Ok(PageCompressor { zstd, level: 1 })
    }

    /// Compresses pages of one batch into `out`, of [`Self::OUT_BYTES`]; `None`: packing is not worth it.
    pub fn pack(&mut self, pages: &[u8], effort: Effort, out: &mut [u8]) -> Option<Compressed> {
        let (packing, len) = match effort.zstd_level() {
            None => (Packing::Lz4, lz4::block::compress_to_buffer(pages, LZ4_MODE, false, out).ok()?),
            Some(level) => {
                if level != self.level {
                    self.zstd.set_compression_level(level).ok()?;
                    self.level = level;
                }
                (Packing::Zstd, self.zstd.compress_to_buffer(pages, out).ok()?)
            }
        };
        ((len as f64) < pages.len() as f64 * PACKED_SHARE_MAX).then_some(Compressed { packing, len })
    }
}

/// The reason why packed pages cannot be unpacked.
#[derive(Debug, Error)]
pub enum UnpackError {
    /// A batch has at most [`BATCH_BYTES_MAX`].
    #[error("pages do not unpack to what they should be: {bytes} bytes are too many")]
    TooLong {
        /// The bytes that the pages should have.
        bytes: usize,
    },
    /// The packed bytes are damaged.
    #[error("pages do not unpack to what they should be")]
    Damaged(#[source] std::io::Error),
    /// The packed bytes are something else.
    #[error("pages do not unpack to what they should be: {found} bytes instead of {bytes}")]
    Length {
        /// The bytes that the pages have.
        found: usize,
        /// The bytes that the pages should have.
        bytes: usize,
    },
}

/// Unpacks pages. Each unpacking thread has its own.
pub struct PageDecompressor {
    zstd: Decompressor<'static>,
    pages: Vec<u8>,
}

impl PageDecompressor {
    /// Makes a decompressor.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new() -> std::io::Result<PageDecompressor> {
        Ok(PageDecompressor { zstd: Decompressor::new()?, pages: vec![0; BATCH_BYTES_MAX] })
    }

    /// Returns the packed pages of a batch, of `bytes` bytes.
    ///
    /// # Errors
    /// The packed bytes are damaged, or are not as many as they should be.
    pub fn unpack(&mut self, packing: Packing, bytes: usize, data: &[u8]) -> Result<&[u8], UnpackError> {
        let out = self.pages.get_mut(..bytes).ok_or(UnpackError::TooLong { bytes })?;
        let unpacked = match packing {
            Packing::None => Ok(0),
            Packing::Lz4 => lz4::block::decompress_to_buffer(data, Some(bytes as i32), out),
            Packing::Zstd => self.zstd.decompress_to_buffer(data, out),
        };
        let found = unpacked.map_err(UnpackError::Damaged)?;
        if found != bytes {
            return Err(UnpackError::Length { found, bytes });
        }
        Ok(out)
    }
}

/// Returns the pages of a batch that travel in this way, in their buffers.
pub fn parts(batch: &Batch, kinds: &[PageKind], of: PageKind) -> Vec<Bytes> {
    let mut parts = Vec::new();
    let mut nth = 0;
    while nth < kinds.len() {
        let run = kinds[nth..].iter().take_while(|kind| **kind == of).count();
        if run > 0 {
            parts.push(batch.content.slice(nth * PAGE_BYTES..(nth + run) * PAGE_BYTES));
        }
        nth += run.max(1);
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::batch::{BATCH_PAGES_MAX, BatchForm};

    fn random_page(seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        std::iter::repeat_with(next).take(PAGE_BYTES).collect()
    }

    fn page_of(kind: u8, seed: u64) -> Vec<u8> {
        match kind {
            0 => vec![0; PAGE_BYTES],
            1 => random_page(seed),
            _ => (0..PAGE_BYTES).map(|at| ((at as u64 * seed) % 61) as u8 + 1).collect(),
        }
    }

    #[test]
    fn a_full_batch_is_packed_with_every_effort() {
        let pages: Vec<u8> = (0..BATCH_PAGES_MAX).flat_map(|nth| page_of(2, nth as u64 + 2)).collect();
        let (mut packer, mut unpacker) = (PageCompressor::new().unwrap(), PageDecompressor::new().unwrap());
        let mut out = vec![0; PageCompressor::OUT_BYTES];
        for step in (0..=Effort::MOST.step()).rev().chain([Effort::MOST.step()]) {
            let packed = packer.pack(&pages, Effort::nth(step), &mut out).unwrap();
            assert!(packed.len < pages.len() / 4, "{step}: {}", packed.len);
            assert!(unpacker.unpack(packed.packing, BATCH_BYTES_MAX, &out[..packed.len]).unwrap() == pages, "{step}");
        }
    }

    proptest! {
        #[test]
        fn flags_are_counted(set in proptest::collection::btree_set(any::<u8>(), 0..=256)) {
            let mut flags = [0; 256];
            set.iter().for_each(|value| flags[usize::from(*value)] = 1);
            prop_assert_eq!(sum_of_flags(&flags) as usize, set.len());
            prop_assert_eq!(sum_of_flags(&[1; 256]), 256);
        }

        #[test]
        fn what_is_packed_unpacks(
            pages in proptest::collection::vec((0u8..3, 1u64..1000), 1..=BATCH_PAGES_MAX),
            step in 0..=Effort::MOST.step(),
        ) {
            let content: Vec<u8> = pages.iter().flat_map(|(kind, seed)| page_of(*kind, *seed)).collect();
            let batch = Batch::new(BatchForm::Content, content.clone().into());
            let mut out = vec![0; PageCompressor::OUT_BYTES];
            let sifted = plan_packing(&batch);
            let packed = sifted.as_ref().and_then(|sifted| {
                PageCompressor::new().unwrap().pack(&sifted.parts(&batch).concat(), Effort::nth(step), &mut out)
            });
            let (kinds, packing, len) = match (sifted, packed) {
                (Some(sifted), Some(packed)) => (sifted.kinds, packed.packing, packed.len),
                _ => (batch.kinds.clone(), Packing::None, 0),
            };
            for ((kind, _), travels) in pages.iter().zip(&kinds) {
                prop_assert_eq!(*kind == 0, *travels == PageKind::Zero);
                prop_assert!(*kind != 1 || *travels == PageKind::Stored, "random pages are not tried");
            }
            let mut unpacker = PageDecompressor::new().unwrap();
            let count = PageKind::Packed.count(&kinds);
            let unpacked = match count {
                0 => vec![],
                _ => unpacker.unpack(packing, count * PAGE_BYTES, &out[..len]).unwrap().to_vec(),
            };
            let plain: Vec<u8> = parts(&batch, &kinds, PageKind::Stored).concat();
            let (mut unpacked, mut plain) = (unpacked.chunks(PAGE_BYTES), plain.chunks(PAGE_BYTES));
            let zero = vec![0; PAGE_BYTES];
            let back: Vec<u8> = kinds.iter().flat_map(|kind| match kind {
                PageKind::Zero => &zero[..],
                PageKind::Packed => unpacked.next().unwrap(),
                PageKind::Stored => plain.next().unwrap(),
                PageKind::Delta => unreachable!(),
            }).copied().collect();
            prop_assert!(back == content);
        }

        #[test]
        fn damage_is_an_error(data: Vec<u8>, bytes in 0usize..=200 * PAGE_BYTES, packing in 0u8..3) {
            let packing = [Packing::None, Packing::Lz4, Packing::Zstd][usize::from(packing)];
            if bytes >= PAGE_BYTES && data.len() < 16 {
                prop_assert!(PageDecompressor::new().unwrap().unpack(packing, bytes, &data).is_err());
            }
        }
    }

    #[test]
    fn pages_that_do_not_compress_are_noticed_without_trying() {
        for seed in 0..200 {
            assert!(is_dense(&random_page(seed)));
            assert!(!is_dense(&page_of(2, seed)));
        }
        let mut half = random_page(1);
        half[..PAGE_BYTES / 2].fill(0);
        assert!(!is_dense(&half));
    }

    #[test]
    fn a_page_is_about_as_long_as_it_becomes() {
        let mut half = random_page(1);
        half[..PAGE_BYTES / 2].fill(0);
        assert_eq!(packed_bytes(&random_page(2)), PAGE_BYTES);
        assert!((2048..2400).contains(&packed_bytes(&half)), "{}", packed_bytes(&half));
        assert!(packed_bytes(&[7; PAGE_BYTES]) < 64);
        assert!(packed_bytes(&random_page(3)[..100]) <= 100);
    }
}
