//! Reassembly: bytes in order, out of chunks that arrive in any order, more than once, and overlapping.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes};

/// Neighbouring pieces that together have at most this many bytes are joined.
const JOIN_BYTES: usize = 4 << 10;

/// The receiving half's buffer. The caller bounds it: it inserts nothing beyond the granted credit.
#[derive(Debug, Default)]
pub struct Reassembly {
    /// Bytes handed out so far; nothing before this offset is kept.
    delivered: u64,
    /// Disjoint chunks at or after `delivered`, by offset.
    chunks: BTreeMap<u64, Bytes>,
    /// Sum of the chunks' lengths.
    held_bytes: u64,
}

impl Reassembly {
    /// Returns the offset of the next byte to hand out.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns how many bytes wait here.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns in how many pieces the waiting bytes lie.
    pub(crate) fn pieces(&self) -> usize {
        self.chunks.len()
    }

    /// Returns how many pieces there are beyond what bytes without gaps need: about as many as there are gaps.
    pub(crate) fn gaps(&self) -> usize {
        // Of two neighbours without a gap, one is longer than half of [`JOIN_BYTES`].
        self.chunks.len().saturating_sub(2 + self.held_bytes as usize / (JOIN_BYTES / 2))
    }

    /// Returns the offset after the last byte that is here or was handed out.
    pub(crate) fn end(&self) -> u64 {
        self.chunks.last_key_value().map_or(self.delivered, |(&offset, chunk)| offset + chunk.len() as u64)
    }

    /// Returns whether [`Self::pop`] has bytes.
    pub fn is_ready(&self) -> bool {
        self.chunks.first_key_value().is_some_and(|(&offset, _)| offset == self.delivered)
    }

    /// Inserts a chunk. Bytes that are already here or delivered are dropped. Returns how many bytes were new.
    pub fn insert(&mut self, mut offset: u64, mut data: Bytes) -> u64 {
        let before = self.held_bytes;
        let whole = data.len();
        if offset < self.delivered {
            let skip = (self.delivered - offset).min(data.len() as u64);
            data.advance(skip as usize);
            offset += skip;
        }
        while !data.is_empty() {
            // The neighbour before may cover the beginning.
            if let Some((&at, chunk)) = self.chunks.range(..=offset).next_back() {
                let covered = (at + chunk.len() as u64).saturating_sub(offset).min(data.len() as u64);
                if covered > 0 {
                    data.advance(covered as usize);
                    offset += covered;
                    continue;
                }
            }
            // The neighbour after may cover the rest.
            let gap = match self.chunks.range(offset..).next() {
                Some((&next, _)) => ((next - offset) as usize).min(data.len()),
                None => data.len(),
            };
            let mut piece = data.split_to(gap);
            if gap < whole / 2 {
                // A copy, so that a small part does not keep a whole buffer.
                piece = Bytes::copy_from_slice(&piece);
            }
            self.held_bytes += gap as u64;
            self.keep(offset, piece);
            offset += gap as u64;
        }
        self.held_bytes - before
    }

    /// Stores a piece. Small pieces are joined, because a piece costs more memory than its bytes.
    fn keep(&mut self, offset: u64, piece: Bytes) {
        if piece.len() < JOIN_BYTES
            && let Some((&at, before)) = self.chunks.range_mut(..offset).next_back()
            && at + before.len() as u64 == offset
            && before.len() + piece.len() <= JOIN_BYTES
        {
            *before = [&before[..], &piece[..]].concat().into();
        } else {
            self.chunks.insert(offset, piece);
        }
    }

    /// Returns the next bytes in order, if they are here.
    pub fn pop(&mut self) -> Option<Bytes> {
        let entry = self.chunks.first_entry().filter(|entry| *entry.key() == self.delivered)?;
        let data = entry.remove();
        self.delivered += data.len() as u64;
        self.held_bytes -= data.len() as u64;
        Some(data)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any cover of the bytes, in any order, with overlaps and repeats, comes out as the bytes themselves.
        #[test]
        fn any_cover_comes_out_whole(
            len in 1usize..2000,
            pieces in proptest::collection::vec((0usize..2000, 1usize..300), 0..60),
            order in any::<u64>(),
            pops in proptest::collection::vec(any::<bool>(), 0..200),
        ) {
            let bytes: Bytes = (0..len).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<_>>().into();
            let mut all: Vec<(usize, usize)> = pieces
                .into_iter()
                .filter(|(at, _)| *at < len)
                .map(|(at, n)| (at, n.min(len - at)))
                .chain((0..len).step_by(97).map(|at| (at, 97.min(len - at))))
                .collect();
            // A cheap shuffle from one number.
            all.sort_by_key(|(at, n)| (*at as u64 + 1).wrapping_mul(order | 1).rotate_left(17) ^ *n as u64);

            let mut reassembly = Reassembly::default();
            let mut out = Vec::new();
            let mut pops = pops.into_iter();
            for (at, n) in all {
                reassembly.insert(at as u64, bytes.slice(at..at + n));
                prop_assert!(reassembly.held_bytes() + reassembly.delivered() <= len as u64);
                if pops.next().unwrap_or(false) {
                    while let Some(piece) = reassembly.pop() {
                        out.extend_from_slice(&piece);
                    }
                    prop_assert!(!reassembly.is_ready());
                }
            }
            while let Some(piece) = reassembly.pop() {
                out.extend_from_slice(&piece);
            }
            prop_assert_eq!(&out[..], &bytes[..]);
            prop_assert_eq!(reassembly.held_bytes(), 0);
        }
    }
}
