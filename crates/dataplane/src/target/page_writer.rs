//! Writes what arrives at the target: pages into the guest's RAM, the rest to QEMU.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skein_link::Patience;
use skein_pages::packing::PageDecompressor;
use skein_pages::page_record::{self, Decoder, PageMessage, PageRecord};
use skein_pages::{
    BatchForm, BatchHead, BlockName, Digest, PAGE_BYTES, PageKind, PageRuns, ReceivedBatch, ReceivedRuns, RunContent,
};
use skein_qemu_stream::main_channel::{Entry, entry};
use skein_session::StreamId;

use super::blocks::{Bases, Blocks, Destination};
use super::error::{ProtocolError, TargetError};
use super::pages::{Regions, TargetPages};
use super::rail_regions::Offer;
use crate::decode::{Decode, DecodeError, Progress};
#[cfg(feature = "fault-points")]
use crate::fault_points::{Plant, is_planted};
use crate::rail_paths::RailPaths;

static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// Says how much is read back at once, while it is in the core's cache.
const SCRATCH_BYTES: usize = 32 * PAGE_BYTES;
/// Bounds the wait for the base of a delta, which was sent before the delta. A path that is lost meanwhile may hold the
/// base up, nothing longer.
const BASE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Takes one stream apart.
pub(crate) struct PageWriter {
    pages: Arc<TargetPages>,
    stream: StreamId,
    /// The rails of the session's paths.
    paths: Option<Arc<dyn RailPaths>>,
    decoder: Decoder,
    decompressor: Option<PageDecompressor>,
    scratch: Vec<u8>,
    barriers: u32,
    /// A batch that waits for the bases of its deltas, and since when.
    early: Option<(ReceivedBatch, Instant)>,
    /// The source's last message: it has sent all pages. What follows on this stream waits for the pages of the others.
    complete: Option<Complete>,
}

struct Complete {
    version: u32,
    streams: u16,
    digest: Digest,
}

impl PageWriter {
    pub(crate) fn new(target: Arc<TargetPages>, stream: StreamId, paths: Option<Arc<dyn RailPaths>>) -> PageWriter {
        target.passed(stream, 0);
        PageWriter {
            pages: target,
            stream,
            paths,
            decoder: Decoder::default(),
            decompressor: None,
            scratch: vec![0; SCRATCH_BYTES],
            barriers: 0,
            early: None,
            complete: None,
        }
    }

    /// Handles the records that are there; see [`Decode::step`].
    fn read(
        &mut self,
        out: &mut VecDeque<Bytes>,
        answers: &mut Vec<Bytes>,
        patience: Patience,
    ) -> Result<Progress, TargetError> {
        loop {
            if let Some((batch, since)) = self.early.take() {
                if self.is_early(&batch.head, patience)? {
                    if since.elapsed() < BASE_WAIT_MAX {
                        self.early = Some((batch, since));
                        return Ok(Progress::Waits);
                    }
                    self.pages.count_missing_base();
                }
                self.write(batch, out)?;
                if let Some(doubt) = self.pages.doubt() {
                    answers.push(page_record::note(&doubt)?);
                }
            }
            if let Some(complete) = &self.complete {
                if !self.pages.all_passed(complete.streams, complete.version, patience) {
                    return Ok(Progress::Waits);
                }
                let verdict = self.pages.compare_all(complete.digest)?;
                self.complete = None;
                answers.push(page_record::note(&verdict)?);
            }
            match self.decoder.record()? {
                None => return Ok(Progress::Done),
                Some(PageRecord::Bytes(bytes)) => out.extend((!bytes.is_empty()).then_some(bytes)),
                Some(PageRecord::Opaque) => {}
                Some(PageRecord::Barrier) => {
                    self.barriers += 1;
                    self.pages.passed(self.stream, self.barriers);
                    if self.pages.blocks().is_some() {
                        answers.push(page_record::note(&PageMessage::Passed { barriers: self.barriers })?);
                    }
                }
                Some(PageRecord::Batch(batch)) => self.early = Some((batch, Instant::now())),
                Some(PageRecord::Note(note)) => {
                    if let Some(answer) = self.note(note)? {
                        answers.push(page_record::note(&answer)?);
                    }
                }
            }
        }
    }

    fn note(&mut self, note: PageMessage) -> Result<Option<PageMessage>, TargetError> {
        match note {
            PageMessage::Blocks { key, blocks, kept_trip: kept } => {
                self.pages.choose_direct_blocks(&key, blocks, kept).map(Some)
            }
            PageMessage::Complete { version, streams, digest } => {
                self.complete = Some(Complete { version, streams, digest });
                Ok(None)
            }
            PageMessage::Regions { regions, last: true } => self.pages.compare(Regions::Last(regions)),
            PageMessage::Regions { regions, last: false } => self.pages.compare(Regions::More(regions)),
            PageMessage::Rails { rails, slice_pages, slices } => {
                let blocks = self.pages.blocks().ok_or(ProtocolError::PagesBeforeBlocks)?;
                let offer = Offer { rails, slice_pages, slices };
                self.pages.rails.open(offer, self.paths.clone(), &blocks).map(|()| None)
            }
            PageMessage::AskRails => {
                let copied = self.pages.blocks().map_or(0, |blocks| blocks.copied_bytes());
                Ok(Some(self.pages.rails.news(copied)))
            }
            PageMessage::Fence { rail } => {
                self.pages.rails.fence(rail)?;
                Ok(Some(PageMessage::Fenced { rail }))
            }
            PageMessage::Passed { .. }
            | PageMessage::RailNews { .. }
            | PageMessage::Fenced { .. }
            | PageMessage::Mode { .. }
            | PageMessage::Comparison { .. }
            | PageMessage::Differ { .. }
            | PageMessage::Doubt => Err(ProtocolError::TargetsMessage.into()),
        }
    }

    /// Returns whether a batch has to wait for pages on other streams. With [`Patience::Wait`] the call first waits a
    /// little for them.
    fn is_early(&self, head: &BatchHead, patience: Patience) -> Result<bool, TargetError> {
        let BatchForm::Direct(place) = &head.form else { return Ok(false) };
        if head.deltas.is_empty() || !self.pages.may_wait_for_bases() {
            return Ok(false);
        }
        let blocks = self.pages.blocks().ok_or(ProtocolError::PagesBeforeBlocks)?;
        let pages = place.pages().zip(&head.kinds).filter(|(_, kind)| **kind == PageKind::Delta);
        let older = pages.zip(&head.deltas).filter(|(_, delta)| delta.base < self.barriers);
        let bases: Vec<(u32, u32)> = older.map(|((page, _), delta)| (page, delta.base)).collect();
        self.pages.is_early(patience, |passed| blocks.is_early(place.block, &bases, passed))
    }

    /// Writes pages into the guest's RAM, or gives them to QEMU.
    fn write(&mut self, mut batch: ReceivedBatch, out: &mut VecDeque<Bytes>) -> Result<(), TargetError> {
        let head = &batch.head;
        let unpacked = match head.unpacked_bytes() {
            0 => &[][..],
            bytes => {
                let decompressor = match &mut self.decompressor {
                    Some(decompressor) => decompressor,
                    none => none.insert(PageDecompressor::new().map_err(TargetError::Decompressor)?),
                };
                decompressor.unpack(head.packing, bytes, &batch.packed)?
            }
        };
        let BatchForm::Direct(place) = &head.form else { return give_back(&self.pages, &mut batch, unpacked, out) };
        let blocks = self.pages.blocks().ok_or(ProtocolError::PagesBeforeBlocks)?;
        #[cfg(feature = "fault-points")]
        if place.pages().next().is_some_and(|page| is_planted(Plant::LostBatch, page)) {
            return Ok(());
        }
        let mut to = Destination { block: place.block, version: self.barriers, scratch: &mut self.scratch };
        if write_runs(&blocks, &mut to, batch.runs(unpacked))? == Bases::KeptInDoubt {
            self.pages.doubt_kept();
        }
        self.pages.note_pages_written();
        Ok(())
    }
}

/// Writes the pages of a batch into the guest's RAM.
fn write_runs(blocks: &Blocks, to: &mut Destination<'_>, mut runs: ReceivedRuns<'_>) -> Result<Bases, TargetError> {
    let mut bases = Bases::Sound;
    while let Some(run) = runs.next() {
        match run.content {
            RunContent::Zeros => blocks.write_zero_pages(to, run.first, run.pages)?,
            RunContent::Unpacked(content) => blocks.write_pages(to, run.first, content)?,
            RunContent::Stored(mut stored) => {
                let mut page = run.first;
                while let Some(content) = stored.take_whole() {
                    blocks.write_pages(to, page, &content)?;
                    page += (content.len() / PAGE_BYTES) as u32;
                }
            }
            RunContent::Changed { deltas, parts } => {
                if blocks.change(to, run.first, deltas, parts)? == Bases::KeptInDoubt {
                    bases = Bases::KeptInDoubt;
                }
            }
        }
    }
    Ok(bases)
}

/// Gives the pages of a batch to QEMU, as they were on its own stream.
fn give_back(
    pages: &TargetPages,
    batch: &mut ReceivedBatch,
    unpacked: &[u8],
    out: &mut VecDeque<Bytes>,
) -> Result<(), TargetError> {
    let mut heads = match &batch.head.form {
        BatchForm::Entries { page_runs, name } => entries(pages, page_runs, *name)?.into_iter(),
        BatchForm::Content | BatchForm::Direct(_) => Vec::new().into_iter(),
    };
    let mut runs = batch.runs(unpacked);
    while let Some(run) = runs.next() {
        match run.content {
            RunContent::Zeros => {
                for _ in 0..run.pages {
                    out.extend(heads.next());
                    out.push_back(Bytes::from_static(&ZEROS));
                }
            }
            RunContent::Unpacked(content) => {
                for page in content.chunks_exact(PAGE_BYTES) {
                    out.extend(heads.next());
                    out.push_back(Bytes::copy_from_slice(page));
                }
            }
            RunContent::Stored(mut stored) => {
                for _ in 0..run.pages {
                    out.extend(heads.next());
                    stored.take_page(|part| out.push_back(part));
                }
            }
            RunContent::Changed { .. } => return Err(ProtocolError::DeltaForQemu.into()),
        }
    }
    Ok(())
}

impl Decode for PageWriter {
    fn push(&mut self, piece: Bytes) {
        self.decoder.push(piece);
    }

    fn step(
        &mut self,
        out: &mut VecDeque<Bytes>,
        answers: &mut Vec<Bytes>,
        patience: Patience,
    ) -> Result<Progress, DecodeError> {
        Ok(self.read(out, answers, patience)?)
    }

    fn torn_down(&mut self, _why: &str) {}
}

/// Returns what goes before each page on QEMU's main channel. `first` says whether the first entry names the block.
fn entries(target: &TargetPages, place: &PageRuns, first: BlockName) -> Result<Vec<Bytes>, TargetError> {
    let blocks = target.blocks().ok_or(ProtocolError::PagesBeforeBlocks)?;
    let info = blocks.info(place.block).ok_or(ProtocolError::NoSuchRam)?;
    let mut name = Some(&info.name[..]).filter(|_| first == BlockName::Given);
    let entry = |page: u32| {
        let bytes = entry(Entry::Page, name.take(), u64::from(page) * PAGE_BYTES as u64);
        Ok(bytes.map(Bytes::from).ok_or(ProtocolError::NoSuchRam)?)
    };
    place.pages().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;
    use skein_pages::page_record::BlockInfo;
    use skein_pages::{Batch, Hashing, SentPages, ToSend};

    use super::super::pages_tests::FakeRam;
    use super::*;

    const PAGES: u32 = 8;
    const KEY: [u8; 16] = [5; 16];

    fn range(offset: u64, bytes: usize) -> Range<usize> {
        offset as usize..offset as usize + bytes
    }

    /// A page of a round, and how much of it the guest has written since the round before: nothing, a word, most, all
    /// with zeros.
    type Sent = (u32, u8);

    /// What QEMU writes to a stream: a page and its content; `None`: a barrier.
    type Said = Option<(u32, Vec<u8>)>;

    /// A batch, its pages, and what was noted of the first of them.
    type Noting = (Batch, Vec<u32>, Vec<ToSend>);

    /// A round: on which of the streams each page goes.
    type Round = Vec<(Sent, usize)>;

    fn write(page: &mut [u8], round: usize, how: u8) {
        match how {
            0 => {}
            1 | 2 => page[round * 600 % 4000..][..8].fill(round as u8 + 1),
            3..=6 => page[..3500].fill(round as u8 + 7),
            _ => page.fill(0),
        }
    }

    /// Returns a random number below `n`.
    fn dice(state: &mut u64, n: usize) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize % n.max(1)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// However the streams overtake each other, at either end, both ends hold the same in the end.
        #[test]
        fn deltas_fit_however_streams_overtake_each_other(
            rounds in prop::collection::vec(prop::collection::vec(((0..PAGES, 0u8..8), 0usize..3), 1..20), 1..9),
            ahead: bool,
            hold in 0u64..4,
            seed: u64,
        ) {
            let mut state = seed;
            // QEMU has written this to each stream: batches of one page, and the barriers between rounds.
            let mut guest = vec![0; PAGES as usize * PAGE_BYTES];
            let mut said = vec![VecDeque::<Said>::new(); 3];
            for (number, round) in rounds.iter().enumerate() {
                let mut sent = std::collections::BTreeSet::new();
                for ((page, how), stream) in round as &Round {
                    if sent.insert(*page) {
                        let content = &mut guest[range(u64::from(*page) * PAGE_BYTES as u64, PAGE_BYTES)];
                        write(content, number, *how);
                        said[*stream].push_back(Some((*page, content.to_vec())));
                    }
                }
                said.iter_mut().for_each(|stream| stream.push_back(None));
            }
            // The source's agent reads the streams in any order.
            let source = SentPages::new(&KEY, [PAGES]).with_deltas(u64::MAX);
            let hashing = if ahead { Hashing::Ahead } else { Hashing::OnlyResent };
            source.set_held_pages_max(hold);
            let mut wires: Vec<VecDeque<Bytes>> = vec![VecDeque::new(); 3];
            let mut versions = [0; 3];
            // A batch is noted page by page, with others in between.
            let mut noting: Vec<Option<Noting>> = vec![None; 3];
            while said.iter().any(|stream| !stream.is_empty()) || noting.iter().any(Option::is_some) {
                let stream = dice(&mut state, 3);
                if let Some((batch, pages, mut noted)) = noting[stream].take() {
                    let nth = noted.len();
                    let page = [(pages[nth], batch.page(nth))];
                    noted.extend(source.note_and_diff(0, versions[stream], page, hashing).unwrap());
                    if noted.len() < pages.len() {
                        noting[stream] = Some((batch, pages, noted));
                    } else {
                        wires[stream].extend(page_record::batch(&batch.with_deltas(versions[stream], noted), None));
                    }
                    continue;
                }
                match said[stream].pop_front() {
                    None => {}
                    Some(None) => {
                        versions[stream] += 1;
                        wires[stream].push_back(page_record::barrier());
                    }
                    Some(Some(first)) => {
                        let mut pages = vec![first];
                        for _ in 0..dice(&mut state, 4) {
                            pages.extend(said[stream].pop_front_if(|said| said.is_some()).flatten());
                        }
                        let numbers: Vec<u32> = pages.iter().map(|(page, _)| *page).collect();
                        let content: Vec<u8> = pages.iter().flat_map(|(_, content)| content.clone()).collect();
                        let batch = Batch::new(BatchForm::Direct(PageRuns::new(0, numbers.clone())), content.into());
                        noting[stream] = Some((batch, numbers, Vec::new()));
                    }
                }
            }
            // The source reads what it has held back from the guest's RAM.
            let last = rounds.len() as u32 + 1;
            wires[0].extend((versions[0]..last).map(|_| page_record::barrier()));
            for page in source.release().into_iter().flat_map(|(_, pages)| pages) {
                let content = guest[range(u64::from(page) * PAGE_BYTES as u64, PAGE_BYTES)].to_vec();
                let batch = Batch::new(BatchForm::Direct(PageRuns::new(0, [page])), content.into());
                let noted = source.note_and_diff(0, last, [(page, batch.page(0))], hashing).unwrap();
                wires[0].extend(page_record::batch(&batch.with_deltas(last, noted), None));
            }
            // The target's agent gets the records in any order.
            let ram = FakeRam::new(guest.len());
            let found = ram.clone();
            let target = TargetPages::new(Some(Box::new(move |_| Ok(Box::new(found.clone())))), None);
            let block = BlockInfo { name: "ram".into(), bytes: guest.len() as u64 };
            target.choose_direct_blocks(&KEY, vec![block], None).unwrap();
            let mut writers: Vec<PageWriter> =
                (0..3).map(|id| PageWriter::new(target.clone(), StreamId(id), None)).collect();
            let (mut out, mut answers) = (VecDeque::new(), Vec::new());
            let (mut waits, mut steps) = ([false; 3], 0);
            while wires.iter().any(|wire| !wire.is_empty()) || waits.contains(&true) {
                steps += 1;
                prop_assert!(steps < 100_000, "they wait for each other");
                let stream = dice(&mut state, 3);
                if let Some(piece) = wires[stream].pop_front() {
                    writers[stream].push(piece);
                }
                let step = writers[stream].step(&mut out, &mut answers, Patience::Try).unwrap();
                waits[stream] = step == Progress::Waits;
            }
            prop_assert!(*ram.bytes.lock() == guest);
            prop_assert!(target.may_wait_for_bases() && out.is_empty());
            let same = target.compare_all(source.ledger().digest()).unwrap();
            prop_assert_eq!(same, PageMessage::Comparison { same: true });
        }
    }
}
