//! Encodes and decodes the bytes between two agents: records of a stream.
//!
//! | tag | from | what follows |
//! |---|---|---|
//! | 1 bytes | both | `be32` length; bytes that this end's QEMU gets as they are |
//! | 2 batch | source | a head, what is packed, bytes of deltas, stored pages; see [`BatchHead`] |
//! | 3 barrier | source | nothing: pages that follow on this stream are of the next version |
//! | 4 note | both | `be32` length, a [`PageMessage`] |
//! | 5 opaque | source | everything that follows on the stream is for QEMU as it is |
//!
//! A batch's head: `u8` packing in the low half and form in the high half, `be16` block, `u8` pages, `u8` runs, `be32`
//! packed bytes; of each run `be32` first page, `u8` pages; then the pages' kinds, four bits each, the first in the low
//! bits; of each delta `be32` base, `be128` mark, `be32` parts that change. Forms are 0 content (no block, no runs), 1
//! direct, 2 entries, 3 entries of which the first names its block. Packing is that of [`Packing`], and 8 more if the
//! bytes of deltas are packed after the pages; otherwise they follow what is packed.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::batch::{BATCH_BYTES_MAX, BATCH_PAGES_MAX, Batch, BatchForm, BlockName, PageKind, PageRuns, Run};
use crate::delta::{DELTA_BYTES_MAX, DeltaHead};
use crate::mark::{Digest, Key};
use crate::packing::{Packed, Packing, parts};
use crate::page::PAGE_BYTES;
use crate::received::{BatchHead, ReceivedBatch};
use crate::region::RegionId;

const TAG_BYTES: u8 = 1;
const TAG_BATCH: u8 = 2;
const TAG_BARRIER: u8 = 3;
const TAG_MESSAGE: u8 = 4;
const TAG_OPAQUE: u8 = 5;

/// Bounds the bytes in one record.
pub const BYTES_MAX: usize = 256 << 10;
/// Bounds a note: 8192 regions.
pub const PAGE_MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Bounds the RAM blocks of a guest: one for each DIMM (256) and device.
pub const BLOCKS_MAX: usize = 4096;
/// Bounds the head of a batch without deltas: of 64 single pages.
const PLAIN_HEAD_BYTES_MAX: usize = 10 + BATCH_PAGES_MAX * 5 + BATCH_PAGES_MAX / 2;
/// Holds the bytes that the head of a delta takes.
pub const DELTA_HEAD_BYTES: usize = 24;
/// Bounds a record: of pages that go whole, as a delta and its head are shorter than a page.
pub const PAGE_RECORD_BYTES_MAX: usize = PLAIN_HEAD_BYTES_MAX + BATCH_BYTES_MAX;
const _: () = assert!(DELTA_HEAD_BYTES + DELTA_BYTES_MAX <= PAGE_BYTES);
/// Says, in the low half of a batch's first byte, that the bytes of deltas are packed.
const CHANGES_PACKED: u8 = 8;

/// A RAM block of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockInfo {
    /// QEMU's name of the block: `pc.ram`.
    pub name: String,
    /// The block's length.
    pub bytes: u64,
}

/// A rail by which the source would write the guest's RAM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedRail {
    /// The number by which both ends know the rail, below [`RAILS_MAX`]. Offers may come in another order.
    pub number: u8,
    /// The session's path whose NICs the rail has.
    pub path: u32,
    /// The rail's provider and its protocol, which both ends must share.
    pub provider: String,
    /// The protocol's number and version.
    pub protocol: (u32, u32),
    /// The name by which the source's end is found.
    pub name: Vec<u8>,
}

/// A slice of a block that a rail may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritableSlice {
    /// The rail's number.
    pub rail: u8,
    /// The block's number.
    pub block: u16,
    /// The slice's number in the block.
    pub slice: u32,
    /// Where the slice begins, as the target's provider says.
    pub address: u64,
    /// The key that the target's provider asks for.
    pub key: u64,
}

/// A message between the two agents of a migration, in the migration's streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageMessage {
    /// The source says what RAM there is, on the main stream, before the first page. The target answers with
    /// [`PageMessage::Mode`].
    Blocks {
        /// The key of the marks of pages.
        key: Key,
        /// The blocks, in QEMU's order.
        blocks: Vec<BlockInfo>,
        /// The trip on which the guest came from the target, under the same key, if its marks are still known. Pages
        /// would be built on the RAM that was kept then.
        kept_trip: Option<u64>,
    },
    /// The target says which blocks it writes itself, by their numbers, and why not the others, in words.
    Mode {
        /// The numbers of the blocks.
        direct: Vec<u16>,
        /// The reason, for people; may be empty.
        why_not: String,
        /// Whether what was kept of that trip is there.
        builds_on_kept: bool,
    },
    /// The target says that what was kept is not what it should be. No more pages are to be built on it.
    Doubt,
    /// The target says that everything before so many barriers of this stream is written.
    Passed {
        /// The number of barriers.
        barriers: u32,
    },
    /// The source says, on the main stream, that every page was sent, with so many barriers before the last of them on
    /// each of so many streams. The target answers with [`PageMessage::Comparison`], and the source waits for the
    /// answer.
    Complete {
        /// The number of barriers.
        version: u32,
        /// The number of streams with pages.
        streams: u16,
        /// The digest of all pages of the blocks that the target writes itself.
        digest: Digest,
    },
    /// The target says whether it holds the same.
    Comparison {
        /// Whether the target holds the same.
        same: bool,
    },
    /// The source says its regions after a comparison that found a difference, in order, in as many notes as it takes.
    Regions {
        /// The regions and their digests.
        regions: Vec<(RegionId, Digest)>,
        /// Whether no more follow.
        last: bool,
    },
    /// The target says, after the last of the regions, which of them differ. The source sends these again, and then
    /// [`PageMessage::Complete`].
    Differ {
        /// The regions that differ.
        regions: Vec<RegionId>,
    },
    /// The source says by which rails it would write the guest's RAM: again, whenever it has others. From then on it
    /// asks with [`PageMessage::AskRails`].
    Rails {
        /// The rails.
        rails: Vec<OfferedRail>,
        /// How many pages a slice has at most: a block begins with one, and each but the last is whole.
        slice_pages: u32,
        /// The slices that are not zero at the source: the block's number, and the slices' numbers.
        slices: Vec<(u16, Vec<u32>)>,
    },
    /// The source asks what became of its rails. The target answers with [`PageMessage::RailNews`].
    AskRails,
    /// The target says what became of rails since it was asked before.
    RailNews {
        /// Rails that are open at the target, by number, and the names by which the target's ends are found.
        opened: Vec<(u8, Vec<u8>)>,
        /// Rails that are not used, and why not, in words.
        refused: Vec<(u8, String)>,
        /// Slices that may be written from now on.
        slices: Vec<WritableSlice>,
        /// Of how many offers, [`PageMessage::Rails`], nothing more comes.
        done: u32,
        /// How many bytes the target's threads have copied to and from the guest's RAM.
        copied_bytes: u64,
    },
    /// The source gives a rail up. What was begun to be written by it may still arrive, so the target closes the rail,
    /// and answers with [`PageMessage::Fenced`].
    Fence {
        /// The rail's number.
        rail: u8,
    },
    /// The target says that a rail is closed: nothing comes by it any more.
    Fenced {
        /// The rail's number.
        rail: u8,
    },
}

/// Bounds the rails of a migration.
pub const RAILS_MAX: usize = 16;
/// Bounds the slices of a migration's RAM in an offer of rails: the keys of so many fit into some messages.
pub const SLICES_MAX: usize = 4096;
/// Bounds the slices in one [`PageMessage::RailNews`].
pub const SLICES_PER_MESSAGE_MAX: usize = 1024;

/// Bounds the regions in one [`PageMessage::Regions`].
pub const REGIONS_PER_MESSAGE_MAX: usize = 4096;

/// The reason why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum PageRecordError {
    #[error("there is no record with tag {0}")]
    Tag(u8),
    #[error("a record of {bytes} bytes is too long: {most} are possible")]
    Length { bytes: usize, most: usize },
    #[error("a batch's head contradicts itself")]
    Head,
    #[error("a note is damaged")]
    Note,
}

/// A received record.
#[derive(Clone, Debug)]
pub enum PageRecord {
    /// The record has bytes for QEMU.
    Bytes(Bytes),
    /// The record has pages.
    Batch(ReceivedBatch),
    /// The next version begins.
    Barrier,
    /// The record has a message for this agent.
    Note(PageMessage),
    /// All that follows is for QEMU.
    Opaque,
}

/// Returns the head of a record of bytes for QEMU, of at most [`BYTES_MAX`].
pub fn bytes_head(len: usize) -> Bytes {
    debug_assert!(len <= BYTES_MAX);
    let mut head = BytesMut::with_capacity(5);
    head.put_u8(TAG_BYTES);
    head.put_u32(len as u32);
    head.freeze()
}

/// Returns a barrier.
pub fn barrier() -> Bytes {
    Bytes::from_static(&[TAG_BARRIER])
}

/// Returns the end of all records on a stream.
pub fn opaque() -> Bytes {
    Bytes::from_static(&[TAG_OPAQUE])
}

/// Returns a note.
///
/// # Errors
/// The note is too long.
pub fn note(note: &PageMessage) -> Result<Bytes, PageRecordError> {
    let body = postcard::to_stdvec(note).map_err(|_| PageRecordError::Note)?;
    let (bytes, most) = (body.len(), PAGE_MESSAGE_BYTES_MAX);
    if bytes > most {
        return Err(PageRecordError::Length { bytes, most });
    }
    let mut record = BytesMut::with_capacity(5 + bytes);
    record.put_u8(TAG_MESSAGE);
    record.put_u32(bytes as u32);
    record.put_slice(&body);
    Ok(record.freeze())
}

/// Returns a batch, in its buffers: packed, with the packed bytes beside the plan; or as it is.
pub fn batch(batch: &Batch, packed: Option<(&Packed, Bytes)>) -> Vec<Bytes> {
    let (kinds, changes_packed, packing, data) = match packed {
        Some((Packed { sifted, compressed }, data)) => {
            (&sifted.kinds, sifted.changes, compressed.packing, data.slice(..compressed.len))
        }
        None => (&batch.kinds, false, Packing::None, Bytes::new()),
    };
    let (form, place) = match &batch.form {
        BatchForm::Content => (0, None),
        BatchForm::Direct(place) => (1, Some(place)),
        BatchForm::Entries { page_runs: place, name } => (2 + u8::from(*name == BlockName::Given), Some(place)),
    };
    let runs = place.map_or(&[][..], |place| &place.runs);
    let mut head = BytesMut::with_capacity(PLAIN_HEAD_BYTES_MAX + batch.deltas.len() * DELTA_HEAD_BYTES);
    head.put_u8(TAG_BATCH);
    let changes = if changes_packed { CHANGES_PACKED } else { 0 };
    head.put_u8(packing as u8 | changes | form << 4);
    head.put_u16(place.map_or(0, |place| place.block));
    head.put_u8(kinds.len() as u8);
    head.put_u8(runs.len() as u8);
    head.put_u32(data.len() as u32);
    for run in runs {
        head.put_u32(run.first);
        head.put_u8(run.pages);
    }
    for pair in kinds.chunks(2) {
        head.put_u8(pair[0] as u8 | pair.get(1).map_or(0, |kind| (*kind as u8) << 4));
    }
    for delta in &batch.deltas {
        head.put_u32(delta.base);
        head.put_u128(delta.mark);
        head.put_u32(delta.changed);
    }
    let mut record = vec![head.freeze()];
    record.extend((!data.is_empty()).then_some(data));
    record.extend((!changes_packed && !batch.changes.is_empty()).then(|| batch.changes.clone()));
    record.extend(parts(batch, kinds, PageKind::Stored));
    record
}

/// Takes records out of the bytes that arrive.
#[derive(Debug, Default)]
pub struct Decoder {
    input: Input,
    is_opaque: bool,
}

impl Decoder {
    /// Takes the next bytes of the stream.
    pub fn push(&mut self, piece: Bytes) {
        self.input.push(piece);
    }

    /// Returns how many bytes wait for the rest of their record. They are never more than the longest record and one
    /// piece.
    pub fn waiting(&self) -> usize {
        self.input.bytes
    }

    /// Returns the next record; `None`: more bytes are needed.
    ///
    /// # Errors
    /// The bytes are no record, and nothing that follows can be understood.
    pub fn record(&mut self) -> Result<Option<PageRecord>, PageRecordError> {
        if self.is_opaque {
            return Ok(self.input.pop().map(PageRecord::Bytes));
        }
        let mut head = [0; 10];
        let seen = self.input.peek(&mut head);
        let length = |at: usize, most: usize| {
            let bytes = u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes")) as usize;
            if bytes > most { Err(PageRecordError::Length { bytes, most }) } else { Ok(bytes) }
        };
        match (head[0], seen) {
            (_, 0) => Ok(None),
            (TAG_BARRIER, _) => {
                self.input.skip(1);
                Ok(Some(PageRecord::Barrier))
            }
            (TAG_OPAQUE, _) => {
                self.input.skip(1);
                self.is_opaque = true;
                self.record()
            }
            (TAG_BYTES | TAG_MESSAGE | TAG_BATCH, seen) if seen < if head[0] == TAG_BATCH { 10 } else { 5 } => Ok(None),
            (TAG_BYTES, _) => {
                let bytes = length(1, BYTES_MAX)?;
                Ok(self.input.take_after(5, bytes).map(PageRecord::Bytes))
            }
            (TAG_MESSAGE, _) => {
                let bytes = length(1, PAGE_MESSAGE_BYTES_MAX)?;
                let Some(body) = self.input.take_after(5, bytes) else { return Ok(None) };
                let note = postcard::from_bytes(&body).map_err(|_| PageRecordError::Note)?;
                Ok(Some(PageRecord::Note(note)))
            }
            (TAG_BATCH, _) => self.next_batch(head, length(6, BATCH_BYTES_MAX)?),
            (tag, _) => Err(PageRecordError::Tag(tag)),
        }
    }

    fn next_batch(&mut self, fixed: [u8; 10], packed_bytes: usize) -> Result<Option<PageRecord>, PageRecordError> {
        let packing = Packing::numbered(fixed[1] & (CHANGES_PACKED - 1)).ok_or(PageRecordError::Head)?;
        let changes_packed = fixed[1] & CHANGES_PACKED != 0;
        let block = u16::from_be_bytes([fixed[2], fixed[3]]);
        let (pages, runs) = (usize::from(fixed[4]), usize::from(fixed[5]));
        if !(1..=BATCH_PAGES_MAX).contains(&pages) || runs > pages {
            return Err(PageRecordError::Head);
        }
        let plain_bytes = 10 + runs * 5 + pages.div_ceil(2);
        let mut head = [0; PLAIN_HEAD_BYTES_MAX + BATCH_PAGES_MAX * DELTA_HEAD_BYTES];
        if self.input.peek(&mut head[..plain_bytes]) < plain_bytes {
            return Ok(None);
        }
        let mut rest = &head[10..plain_bytes];
        let runs: Vec<Run> = (0..runs).map(|_| Run { first: rest.get_u32(), pages: rest.get_u8() }).collect();
        let kind = |nth: usize| match rest[nth / 2] >> (4 * (nth % 2)) & 15 {
            0 => Ok(PageKind::Zero),
            1 => Ok(PageKind::Packed),
            2 => Ok(PageKind::Stored),
            3 => Ok(PageKind::Delta),
            _ => Err(PageRecordError::Head),
        };
        let kinds = (0..pages).map(kind).collect::<Result<Vec<_>, _>>()?;
        let place = PageRuns { block, runs };
        let form = match fixed[1] >> 4 {
            0 if place == (PageRuns { block: 0, runs: Vec::new() }) => BatchForm::Content,
            1 => BatchForm::Direct(place),
            2 => BatchForm::Entries { page_runs: place, name: BlockName::AsBefore },
            3 => BatchForm::Entries { page_runs: place, name: BlockName::Given },
            _ => return Err(PageRecordError::Head),
        };
        let fits = form.place().is_none_or(|place| {
            let in_runs: usize = place.runs.iter().map(|run| usize::from(run.pages)).sum();
            let end = |run: &Run| run.first.checked_add(u32::from(run.pages)).is_some();
            in_runs == pages && place.runs.iter().all(|run| run.pages > 0 && end(run))
        });
        let deltas = PageKind::Delta.count(&kinds);
        // Only the agent's own pages are changed: QEMU gets whole pages.
        if !fits || (deltas > 0 && !matches!(form, BatchForm::Direct(_))) {
            return Err(PageRecordError::Head);
        }
        let head_bytes = plain_bytes + deltas * DELTA_HEAD_BYTES;
        if self.input.peek(&mut head[..head_bytes]) < head_bytes {
            return Ok(None);
        }
        let mut rest = &head[plain_bytes..head_bytes];
        let mut delta = || DeltaHead { base: rest.get_u32(), mark: rest.get_u128(), changed: rest.get_u32() };
        let deltas: Vec<DeltaHead> = (0..deltas).map(|_| delta()).collect();
        let head = BatchHead { form, kinds, packing, deltas, changes_packed };
        let is_packed = head.unpacked_bytes() > 0;
        let is_sound = is_packed == (packing != Packing::None) && is_packed == (packed_bytes > 0);
        if !is_sound || !head.deltas.iter().all(DeltaHead::is_valid) || (changes_packed && head.change_bytes() == 0) {
            return Err(PageRecordError::Head);
        }
        let change_bytes = if changes_packed { 0 } else { head.change_bytes() };
        let stored_bytes = head.count(PageKind::Stored) * PAGE_BYTES;
        if self.input.bytes < head_bytes + packed_bytes + change_bytes + stored_bytes {
            return Ok(None);
        }
        self.input.skip(head_bytes);
        let packed = self.input.take(packed_bytes);
        let changes = self.input.take(change_bytes);
        let stored = self.input.take_pieces(stored_bytes).into();
        Ok(Some(PageRecord::Batch(ReceivedBatch { head, packed, changes, stored })))
    }
}

/// The bytes, in the pieces in which they came.
#[derive(Debug, Default)]
struct Input {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Input {
    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.bytes += piece.len();
            self.pieces.push_back(piece);
        }
    }

    fn pop(&mut self) -> Option<Bytes> {
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.len();
        Some(piece)
    }

    /// Copies the first bytes, as many as there are.
    fn peek(&self, out: &mut [u8]) -> usize {
        let mut done = 0;
        for piece in &self.pieces {
            let part = piece.len().min(out.len() - done);
            out[done..done + part].copy_from_slice(&piece[..part]);
            done += part;
            if done == out.len() {
                break;
            }
        }
        done
    }

    fn skip(&mut self, mut bytes: usize) {
        self.bytes -= bytes;
        while bytes > 0 {
            let front = self.pieces.front_mut().expect("as many bytes as were counted");
            let part = bytes.min(front.len());
            front.advance(part);
            bytes -= part;
            if front.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    /// Returns the next bytes, all of which are there, in one piece. They are copied only if they are in several.
    fn take(&mut self, bytes: usize) -> Bytes {
        let mut pieces = self.take_pieces(bytes);
        match pieces.len() {
            0 => Bytes::new(),
            1 => pieces.remove(0),
            _ => pieces.concat().into(),
        }
    }

    fn take_pieces(&mut self, mut bytes: usize) -> Vec<Bytes> {
        self.bytes -= bytes;
        let mut pieces = Vec::new();
        while bytes > 0 {
            let front = self.pieces.front_mut().expect("as many bytes as were counted");
            let part = front.split_to(bytes.min(front.len()));
            bytes -= part.len();
            pieces.push(part);
            if front.is_empty() {
                self.pieces.pop_front();
            }
        }
        pieces
    }

    /// Returns the bytes after a head; `None`: they are not all there.
    fn take_after(&mut self, head: usize, bytes: usize) -> Option<Bytes> {
        (self.bytes >= head + bytes).then(|| {
            self.skip(head);
            self.take(bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packing::{Effort, PageCompressor, PageDecompressor, plan_packing};
    use crate::sent::ToSend;

    #[derive(Clone, Debug)]
    enum Said {
        Bytes(Vec<u8>),
        Batch(u8, Vec<(u32, u8, Option<u32>)>, bool),
        Barrier,
        Note(bool),
    }

    /// Returns parts that change, of pages of which only parts go.
    fn delta() -> impl Strategy<Value = Option<u32>> {
        let changed = prop_oneof![Just(0), any::<u32>().prop_map(|changed| changed & 0x00ff_ffff)];
        prop_oneof![2 => Just(None), 1 => changed.prop_map(Some)]
    }

    fn said() -> impl Strategy<Value = Said> {
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..5000).prop_map(Said::Bytes),
            (0u8..4, proptest::collection::vec((0u32..1 << 30, 0u8..4, delta()), 1..=BATCH_PAGES_MAX), any::<bool>())
                .prop_map(|(form, pages, pack)| Said::Batch(form, pages, pack)),
            Just(Said::Barrier),
            any::<bool>().prop_map(Said::Note),
        ]
    }

    fn encode(said: &Said) -> (Vec<Bytes>, Option<Batch>) {
        match said {
            Said::Bytes(bytes) => (vec![bytes_head(bytes.len()), bytes.clone().into()], None),
            Said::Barrier => (vec![barrier()], None),
            Said::Note(same) => (vec![note(&PageMessage::Comparison { same: *same }).unwrap()], None),
            Said::Batch(form, pages, pack) => {
                let content: Vec<u8> = pages.iter().flat_map(|(_, fill, _)| [*fill; PAGE_BYTES]).collect();
                let place = PageRuns::new(7, pages.iter().map(|(page, ..)| *page));
                let form = match form {
                    0 => BatchForm::Content,
                    1 => BatchForm::Direct(place),
                    2 => BatchForm::Entries { page_runs: place, name: BlockName::AsBefore },
                    _ => BatchForm::Entries { page_runs: place, name: BlockName::Given },
                };
                let mut made = Batch::new(form, content.into());
                if let BatchForm::Direct(_) = made.form {
                    let to_send = |(page, fill, changed): &(u32, u8, Option<u32>)| {
                        let delta = |changed| DeltaHead { base: *page, mark: u128::from(*page) << 90, changed };
                        changed
                            .filter(|_| *fill > 0)
                            .map_or(ToSend::Whole { before: None, mark: 0 }, |changed| ToSend::Delta(delta(changed)))
                    };
                    made = made.with_deltas(0, pages.iter().map(to_send).collect());
                }
                let mut out = vec![0; PageCompressor::OUT_BYTES];
                let sifted = pack.then(|| plan_packing(&made)).flatten();
                let packed = sifted.and_then(|sifted| {
                    let pages = sifted.parts(&made).concat();
                    let compressed = PageCompressor::new().unwrap().pack(&pages, Effort::LEAST, &mut out)?;
                    Some(Packed { sifted, compressed })
                });
                let out = Bytes::from(out);
                (batch(&made, packed.as_ref().map(|packed| (packed, out))), Some(made))
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_said_is_heard_however_it_is_cut(
            all in proptest::collection::vec(said(), 1..8),
            cuts in proptest::collection::vec(1usize..70_000, 1..50),
        ) {
            let wire: Vec<u8> = all.iter().flat_map(|said| encode(said).0.concat()).collect();
            let mut decoder = Decoder::default();
            let mut heard = Vec::new();
            let mut rest = Bytes::from(wire);
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                decoder.push(rest.split_to((*cuts.next().unwrap()).min(rest.len())));
                while let Some(record) = decoder.record().unwrap() {
                    heard.push(record);
                }
                prop_assert!(decoder.waiting() < PAGE_RECORD_BYTES_MAX);
            }
            prop_assert_eq!(heard.len(), all.len());
            for (said, record) in all.iter().zip(heard) {
                match (said, record) {
                    (Said::Bytes(bytes), PageRecord::Bytes(heard)) => prop_assert_eq!(bytes, &heard),
                    (Said::Barrier, PageRecord::Barrier) => {}
                    (Said::Note(same), PageRecord::Note(heard)) => {
                        prop_assert_eq!(heard, PageMessage::Comparison { same: *same });
                    }
                    (Said::Batch(_, pages, pack), PageRecord::Batch(received)) => {
                        let ReceivedBatch { head, packed, changes, stored } = received;
                        let made = encode(said).1.unwrap();
                        prop_assert_eq!(&head.form, &made.form);
                        prop_assert_eq!(&head.deltas, &made.deltas);
                        prop_assert_eq!(head.kinds.len(), pages.len());
                        if !pack {
                            prop_assert_eq!(&head.kinds, &made.kinds);
                            let parts = parts(&made, &made.kinds, PageKind::Stored);
                            prop_assert!(Vec::from(stored).concat() == parts.concat());
                        }
                        let mut unpacker = PageDecompressor::new().unwrap();
                        let unpacked = unpacker.unpack(head.packing, head.unpacked_bytes(), &packed).unwrap();
                        let changes = match head.changes_packed {
                            true => &unpacked[head.packed_page_bytes()..],
                            false => &changes,
                        };
                        prop_assert!(changes == made.changes);
                    }
                    other => prop_assert!(false, "{other:?}"),
                }
            }
        }

        #[test]
        fn anything_is_refused_or_bounded(wire in proptest::collection::vec(any::<u8>(), 0..2000), first in 0u8..7) {
            let mut decoder = Decoder::default();
            let mut wire = wire;
            wire.insert(0, first);
            decoder.push(wire.into());
            for _ in 0..3000 {
                match decoder.record() {
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                }
            }
        }
    }

    #[test]
    fn after_opaque_everything_is_for_qemu() {
        let mut decoder = Decoder::default();
        decoder.push([&opaque()[..], &[99, 1, 2]].concat().into());
        let Some(PageRecord::Bytes(bytes)) = decoder.record().unwrap() else { panic!() };
        assert_eq!(bytes, &[99, 1, 2][..]);
        decoder.push(vec![TAG_OPAQUE].into());
        assert!(matches!(decoder.record(), Ok(Some(PageRecord::Bytes(bytes))) if bytes == [TAG_OPAQUE][..]));
    }

    #[test]
    fn a_full_note_of_regions_fits() {
        let region = (RegionId { block: u16::MAX, region: u32::MAX }, Digest(u128::MAX));
        assert!(note(&PageMessage::Regions { regions: vec![region; REGIONS_PER_MESSAGE_MAX], last: true }).is_ok());
    }
}
