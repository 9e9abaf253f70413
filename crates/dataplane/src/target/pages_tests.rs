//! Tests the target alone: what it does with pages and deltas, one after the other.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use parking_lot::Mutex;
use skein_guest_ram::{AccessError, Ram};
use skein_link::Patience;
use skein_pages::delta::DeltaHead;
use skein_pages::page_record::{BlockInfo, PageMessage};
use skein_pages::{Batch, BatchForm, Hashing, Key, PAGE_BYTES, PageRuns, SentPages, ToSend, is_zero};
use skein_session::StreamId;

use super::blocks::Destination;
use super::pages::{Regions, TargetPages};

const KEY: Key = [5; 16];

/// RAM that damages what is written to it, if a test says so.
#[derive(Clone, Default)]
pub(super) struct FakeRam {
    pub(super) bytes: Arc<Mutex<Vec<u8>>>,
    damages: Arc<AtomicBool>,
}

fn range(offset: u64, bytes: usize) -> Range<usize> {
    offset as usize..offset as usize + bytes
}

impl FakeRam {
    pub(super) fn new(bytes: usize) -> FakeRam {
        FakeRam { bytes: Arc::new(Mutex::new(vec![0; bytes])), damages: Arc::default() }
    }
}

impl Ram for FakeRam {
    fn bytes(&self) -> u64 {
        self.bytes.lock().len() as u64
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        let mut bytes = self.bytes.lock();
        bytes[range(offset, data.len())].copy_from_slice(data);
        if self.damages.load(SeqCst) {
            bytes[offset as usize + data.len() / 2] ^= 1;
        }
        Ok(())
    }

    fn zero(&self, offset: u64, bytes: u64) -> Result<(), AccessError> {
        self.bytes.lock()[range(offset, bytes as usize)].fill(0);
        Ok(())
    }

    fn is_zero(&self, offset: u64, bytes: u64) -> Result<bool, AccessError> {
        Ok(is_zero(&self.bytes.lock()[range(offset, bytes as usize)]))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        out.copy_from_slice(&self.bytes.lock()[range(offset, out.len())]);
        Ok(())
    }

    fn read_in_qemu(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.read(offset, out)
    }
}

/// Returns the place where pages of block 0 go.
fn to(version: u32, scratch: &mut [u8]) -> Destination<'_> {
    Destination { block: 0, version, scratch }
}

/// A target with one block of four pages, and the source's ledger of the block.
struct Bench {
    ram: FakeRam,
    target: Arc<TargetPages>,
    source: SentPages,
}

impl Bench {
    fn new() -> Bench {
        let ram = FakeRam::new(4 * PAGE_BYTES);
        let found = ram.clone();
        let target = TargetPages::new(Some(Box::new(move |_| Ok(Box::new(found.clone())))), None);
        let block = BlockInfo { name: "ram".into(), bytes: ram.bytes() };
        target.choose_direct_blocks(&KEY, vec![block], None).unwrap();
        Bench { ram, target, source: SentPages::new(&KEY, [4]).with_deltas(u64::MAX) }
    }

    /// Returns what the source sends of page 1 that holds `content` now.
    fn note(&self, version: u32, content: &[u8]) -> ToSend {
        self.source.note_and_diff(0, version, [(1, Some(content))], Hashing::Ahead).unwrap().pop().unwrap()
    }

    /// Returns the delta that the source sends of page 1 that holds `content` now.
    fn note_delta(&self, version: u32, content: &[u8]) -> DeltaHead {
        match self.note(version, content) {
            ToSend::Delta(head) => head,
            other => panic!("its hashes are known: {other:?}"),
        }
    }

    fn place(&self, version: u32, content: &[u8]) {
        let blocks = self.target.blocks().unwrap();
        blocks.write_pages(&mut to(version, &mut [0; 2 * PAGE_BYTES]), 1, content).unwrap();
    }

    /// Lets a delta of page 1 arrive, with the parts of `content` that the delta says.
    fn change(&self, version: u32, delta: DeltaHead, content: &[u8]) {
        let blocks = self.target.blocks().unwrap();
        let batch = Batch::new(BatchForm::Direct(PageRuns::new(0, [1])), content.to_vec().into());
        let changes = batch.with_deltas(version, vec![ToSend::Delta(delta)]).changes;
        blocks.change(&mut to(version, &mut [0; 2 * PAGE_BYTES]), 1, &[delta], &changes).unwrap();
    }

    fn is_same(&self) -> bool {
        self.target.compare_all(self.source.ledger().digest()).unwrap() == PageMessage::Comparison { same: true }
    }

    /// Returns how many regions are sent again.
    fn differ(&self) -> usize {
        let regions = self.source.ledger().digests().into_iter().collect();
        match self.target.compare(Regions::Last(regions)).unwrap() {
            Some(PageMessage::Differ { regions }) => regions.len(),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns a page with this word at two places.
fn page(word: u8) -> Vec<u8> {
    let mut page = vec![9; PAGE_BYTES];
    page[300..308].fill(word);
    page[4000..4008].fill(word);
    page
}

#[test]
fn a_page_that_is_owed_is_owed_until_it_comes_whole() {
    let bench = Bench::new();
    bench.note(0, &page(1));
    bench.place(0, &page(1));
    let delta = bench.note_delta(1, &page(2));
    // These are another page's bytes: the result does not have the mark that it should have.
    bench.change(1, delta, &page(7));
    assert!(bench.ram.bytes.lock()[PAGE_BYTES + 300] != 7, "what does not fit was written");
    assert!(!bench.is_same(), "the digests agree, and a page is owed");
    assert_eq!(bench.differ(), 1);
    // The guest does not write to the page any more.
    let content = page(2);
    let same = bench.note_delta(2, &content);
    assert_eq!((same.base, same.changed), (1, 0));
    bench.change(2, same, &content);
    assert!(!bench.is_same(), "a page is owed, and what is not there did not change");
    assert_eq!(bench.differ(), 1);
    // The page comes whole.
    bench.source.ledger().note_whole_pages(0, 3, [(1, Some(&content[..]))]).unwrap();
    bench.place(3, &content);
    assert!(bench.is_same());
    assert!(bench.ram.bytes.lock()[PAGE_BYTES..2 * PAGE_BYTES] == content);
}

#[test]
fn what_the_ram_holds_counts_and_not_what_was_written_to_it() {
    for damages in [false, true] {
        let bench = Bench::new();
        bench.note(0, &page(1));
        bench.place(0, &page(1));
        bench.note(1, &page(2));
        bench.place(1, &page(2));
        let delta = bench.note_delta(2, &page(3));
        bench.ram.damages.store(damages, SeqCst);
        bench.change(2, delta, &page(3));
        assert_eq!(bench.is_same(), !damages);
    }
}

#[test]
fn every_page_that_becomes_zeros_is_zeros() {
    let bench = Bench::new();
    let zeros = |version, pages: [u32; 2]| {
        bench.source.ledger().note_whole_pages(0, version, pages.map(|page| (page, None))).unwrap();
        let blocks = bench.target.blocks().unwrap();
        blocks.write_zero_pages(&mut to(version, &mut [0; PAGE_BYTES]), pages[0], 2).unwrap();
    };
    bench.note(0, &page(1));
    bench.place(0, &page(1));
    // The first of the two has been zeros all along.
    zeros(1, [0, 1]);
    assert!(is_zero(&bench.ram.bytes.lock()));
    assert!(bench.is_same());
}

#[test]
fn all_streams_have_passed_all_barriers_or_it_is_waited_for_them() {
    let bench = Bench::new();
    bench.target.passed(StreamId(0), 3);
    bench.target.passed(StreamId(2), 2);
    assert!(bench.target.all_passed(2, 2, Patience::Try));
    assert!(!bench.target.all_passed(2, 3, Patience::Try), "one has the last pages before it");
    bench.target.passed(StreamId(2), 3);
    assert!(bench.target.all_passed(2, 3, Patience::Try));
    assert!(!bench.target.all_passed(3, 3, Patience::Try), "one has not begun");
}
