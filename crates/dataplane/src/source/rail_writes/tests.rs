//! Tests which pages rails write, and a rail over a fabric in memory.

use std::sync::mpsc::sync_channel;
use std::thread;

use skein_fabric::{Access, Slot};
use skein_guest_ram::{AccessError, Ram};
use skein_pages::PageRuns;
use skein_pages::delta::DeltaHead;
use skein_pages::page_record::WritableSlice;

use super::opening::open;
use super::slices::{DataSlices, SLICE_PAGES_MIN, slices_with_data};
use super::*;
use crate::rail_paths::RailPaths;
use crate::rail_paths::fake::FakePaths;
use crate::source::page_counters::PageCounters;

const PATIENCE: Duration = Duration::from_secs(60);
/// How many pages a slice has here, and the shortest run that is written.
const SLICE_PAGES: u32 = 64;
const LEAST: u32 = RUN_PAGES_MIN as u32;
/// The key of a target's memory.
const KEY: u64 = 9;
/// The least slice of a guest, in bytes.
const SLICE_BYTES_MIN: u64 = SLICE_PAGES_MIN * PAGE_BYTES as u64;

/// Runs, as a plan has them: the place in the batch, the first page, how many.
type Runs = Vec<(usize, u32, usize)>;

/// Returns rails that are open and have so many batches each, on a path each. All may write these slices of block 0.
fn open_rails(loads: &[usize], slices: Range<u32>) -> RailWrites {
    let (rails, paths) = (RailWrites::default(), FakePaths::new(1));
    let mut state = rails.state.lock();
    (state.slice_pages, state.data_paths) = (SLICE_PAGES, loads.len());
    for load in loads {
        let endpoint = paths.open(0).unwrap();
        let (queue, status) = (VecDeque::new(), RailStatus::Open);
        state.rails.push(RailState { path: 0, endpoint, memory: None, queue, load: *load, status, is_lost: false });
    }
    for slice in slices {
        let at = |rail| (rail, RemoteMemory { address: 0, key: KEY });
        state.slices.insert((0, slice), (0..loads.len()).map(at).collect());
    }
    drop(state);
    rails
}

/// Returns a batch of pages of block 0, none of which is zero.
fn batch_of(pages: impl IntoIterator<Item = u32>) -> Batch {
    let place = PageRuns::new(0, pages);
    let content = vec![7_u8; place.pages().count() * PAGE_BYTES];
    Batch::new(BatchForm::Direct(place), content.into())
}

fn mark(nth: usize) -> u128 {
    1000 + nth as u128
}

/// Says that all pages of a batch go whole, after these versions of theirs.
fn whole(batch: &Batch, before: Option<u32>) -> Vec<ToSend> {
    (0..batch.kinds.len()).map(|nth| ToSend::Whole { before, mark: mark(nth) }).collect()
}

/// Plans a batch of pages that go whole for the first time.
fn plan(rails: &RailWrites, batch: &Batch) -> Option<PlannedWrite> {
    rails.plan(batch, &whole(batch, None), 0, |_| true)
}

/// Returns the runs of a write: place, page and length of each.
fn runs_of(planned: &PlannedWrite) -> Runs {
    planned.runs.iter().map(|run| (run.nth, run.first, run.pages)).collect()
}

fn under_way(rails: &RailWrites) -> usize {
    rails.state.lock().under_way.len()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn pages_in_a_row_are_written_in_one_go_and_the_border_of_slices_parts_them() {
    let cases: [(Vec<u32>, Runs); 4] = [
        ((0..40).collect(), vec![(0, 0, 40)]),
        ((0..20).chain(30..50).collect(), vec![(0, 0, 20), (20, 30, 20)]),
        ((30..50).chain(0..20).collect(), vec![(0, 30, 20), (20, 0, 20)]),
        ((32..96).collect(), vec![(0, 32, 32), (32, 64, 32)]),
    ];
    for (numbers, runs) in cases {
        let (rails, batch) = (open_rails(&[0], 0..2), batch_of(numbers.clone()));
        let planned = plan(&rails, &batch).unwrap();
        assert_eq!(runs_of(&planned), runs);
        let pages: Vec<(u16, u32)> = numbers.iter().map(|page| (0, *page)).collect();
        assert_eq!(planned.pages().collect::<Vec<(u16, u32)>>(), pages);
        let marks: Vec<(usize, u128)> = (0..numbers.len()).map(|nth| (nth, mark(nth))).collect();
        assert_eq!(planned.written, marks);
        assert_eq!(planned.bytes(), numbers.len() * PAGE_BYTES);
        assert_eq!(under_way(&rails), numbers.len());
    }
}

#[test]
fn short_runs_are_not_written() {
    let border = SLICE_PAGES;
    let cases: [(Vec<u32>, Runs); 6] = [
        ((0..LEAST - 1).collect(), vec![]),
        ((0..LEAST).collect(), vec![(0, 0, RUN_PAGES_MIN)]),
        ((0..LEAST - 1).chain(30..30 + LEAST).collect(), vec![(RUN_PAGES_MIN - 1, 30, RUN_PAGES_MIN)]),
        ((0..60).step_by(2).collect(), vec![]),
        // These are long enough, were it not for the border between two slices.
        ((border + 1 - LEAST..border + LEAST - 1).collect(), vec![]),
        ((border + 1 - LEAST..border + LEAST).collect(), vec![(RUN_PAGES_MIN - 1, border, RUN_PAGES_MIN)]),
    ];
    for (numbers, runs) in cases {
        let (rails, batch) = (open_rails(&[0], 0..2), batch_of(numbers.clone()));
        let planned = plan(&rails, &batch);
        assert_eq!(planned.as_ref().map(runs_of).unwrap_or_default(), runs, "{numbers:?}");
        let written: Vec<usize> = planned.iter().flat_map(|planned| &planned.written).map(|(nth, _)| *nth).collect();
        let expected: Vec<usize> = runs.iter().flat_map(|(begin, _, pages)| *begin..begin + pages).collect();
        assert_eq!(written, expected, "{numbers:?}");
        assert_eq!(under_way(&rails), expected.len(), "{numbers:?}");
    }
}

#[test]
fn pages_that_are_zero_or_do_not_go_whole_part_a_run() {
    let delta = DeltaHead { base: 0, mark: 0, changed: 1 };
    let first = ToSend::Whole { before: None, mark: mark(20) };
    let cases = [(0, first), (7, ToSend::Nothing), (7, ToSend::Delta(delta)), (7, ToSend::Hold(delta))];
    for (byte, of_one) in cases {
        let mut content = vec![7_u8; 40 * PAGE_BYTES];
        content[20 * PAGE_BYTES..21 * PAGE_BYTES].fill(byte);
        let batch = Batch::new(BatchForm::Direct(PageRuns::new(0, 0..40)), content.into());
        let mut to_send = whole(&batch, None);
        to_send[20] = of_one;
        let planned = open_rails(&[0], 0..1).plan(&batch, &to_send, 0, |_| true).unwrap();
        assert_eq!(runs_of(&planned), [(0, 0, 20), (21, 21, 19)], "{of_one:?}");
    }
}

#[test]
fn a_page_is_written_only_if_no_other_version_of_it_is_on_its_way() {
    let batch = batch_of(0..40);
    for (before, written_through, is_written) in
        [(None, 0, true), (Some(0), 0, false), (Some(3), 3, false), (Some(3), 4, true)]
    {
        let planned = open_rails(&[0], 0..1).plan(&batch, &whole(&batch, before), written_through, |_| true);
        assert_eq!(planned.is_some(), is_written, "{before:?}, {written_through}");
    }
    // One of them is being written.
    let rails = open_rails(&[0], 0..1);
    let planned = plan(&rails, &batch).unwrap();
    assert!(plan(&rails, &batch_of(39..64)).is_none());
    assert!(plan(&rails, &batch_of(40..64)).is_some());
    rails.clear(&planned);
    assert_eq!(under_way(&rails), 24);
    assert!(plan(&rails, &batch).is_some());
    // A newer version is noted meanwhile.
    let rails = open_rails(&[0], 0..1);
    let planned = rails.plan(&batch, &whole(&batch, None), 0, |planned| {
        assert_eq!((planned.pages().count(), under_way(&rails)), (40, 40));
        false
    });
    assert!(planned.is_none() && under_way(&rails) == 0);
}

#[test]
fn nothing_is_planned_where_no_rail_may_write() {
    let batch = batch_of(0..40);
    assert!(plan(&open_rails(&[], 0..1), &batch).is_none());
    assert!(plan(&open_rails(&[0], 0..0), &batch).is_none());
    // The second of the slices is not registered yet.
    assert_eq!(runs_of(&plan(&open_rails(&[0], 0..1), &batch_of(32..96)).unwrap()), [(0, 32, 32)]);
    for status in [RailStatus::Opening, RailStatus::Failed, RailStatus::Fencing, RailStatus::Fenced] {
        let rails = open_rails(&[0], 0..1);
        rails.state.lock().rails[0].status = status;
        assert!(plan(&rails, &batch).is_none(), "{status:?}");
    }
    let rails = open_rails(&[0], 0..1);
    // What QEMU is to get goes over connections.
    assert!(plan(&rails, &Batch::new(BatchForm::Content, batch.content.clone())).is_none());
    rails.end();
    assert!(plan(&rails, &batch).is_none());
}

#[test]
fn rails_share_batches_by_what_they_have_to_do() {
    let rails = open_rails(&[2, 0, 1], 0..8);
    let batch = |slice: u32| batch_of(slice * SLICE_PAGES..(slice + 1) * SLICE_PAGES);
    for slice in 0..6 {
        rails.begin(plan(&rails, &batch(slice)).unwrap(), batch(slice));
    }
    let has: Vec<(usize, usize)> = rails.state.lock().rails.iter().map(|rail| (rail.load, rail.queue.len())).collect();
    assert_eq!(has, [(3, 1), (3, 3), (3, 2)]);
    // Rails that have failed have no part in that.
    let mut state = rails.state.lock();
    (state.rails[0].status, state.rails[1].status, state.data_paths) = (RailStatus::Failed, RailStatus::Fenced, 1);
    drop(state);
    assert_eq!(plan(&rails, &batch(6)).unwrap().rail, 2);
    // One fails between plan and write.
    let planned = plan(&rails, &batch(7)).unwrap();
    rails.state.lock().rails[2].status = RailStatus::Failed;
    assert!(!rails.begin(planned, batch(7)).wait());
}

#[test]
fn paths_without_a_rail_have_their_share() {
    for (count, paths, written) in [(1, 4, 10), (2, 4, 20), (4, 4, 40), (1, 1, 40), (2, 1, 40)] {
        let (rails, batch) = (open_rails(&vec![0; count], 0..1), batch_of(0..40));
        rails.state.lock().data_paths = paths;
        let planned = (0..40).filter_map(|_| plan(&rails, &batch).inspect(|planned| rails.clear(planned)));
        assert_eq!(planned.count(), written, "{count} of {paths} paths");
    }
}

/// RAM of which all but a byte here and there is zero, and that takes no memory.
struct Sparse {
    bytes: u64,
    data: Vec<u64>,
    is_readable: bool,
}

impl Ram for Sparse {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_zero(&self, offset: u64, bytes: u64) -> Result<bool, AccessError> {
        assert!(bytes > 0 && offset + bytes <= self.bytes, "{bytes} bytes at {offset}");
        if !self.is_readable {
            return Err(AccessError::Shrunk { bytes: 0 });
        }
        Ok(!self.data.iter().any(|at| (offset..offset + bytes).contains(at)))
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), AccessError> {
        unreachable!("the source writes nothing")
    }

    fn zero(&self, _: u64, _: u64) -> Result<(), AccessError> {
        unreachable!("the source writes nothing")
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), AccessError> {
        unreachable!("nothing is read to be thrown away")
    }

    fn read_in_qemu(&self, _: u64, _: &mut [u8]) -> Result<(), AccessError> {
        unreachable!("nothing is read to be thrown away")
    }
}

fn sparse(bytes: u64, data: &[u64], is_readable: bool) -> Arc<dyn Ram> {
    Arc::new(Sparse { bytes, data: data.to_vec(), is_readable })
}

#[test]
fn slices_without_data_are_not_offered() {
    let page = PAGE_BYTES as u64;
    let (first, third, last) = (0, 3 * SLICE_BYTES_MIN - 1, 4 * SLICE_BYTES_MIN + 5);
    let rams = BTreeMap::from([
        (0, sparse(4 * SLICE_BYTES_MIN + page, &[first, third, last], true)),
        (3, sparse(2 * SLICE_BYTES_MIN, &[], true)),
        // What cannot be read may have something.
        (5, sparse(2 * SLICE_BYTES_MIN, &[], false)),
    ]);
    let slices = slices_with_data(&rams).unwrap();
    let of_blocks: [(u16, Vec<u32>); 3] = [(0, vec![0, 2, 4]), (3, vec![]), (5, vec![0, 1])];
    assert_eq!(u64::from(slices.pages), SLICE_PAGES_MIN);
    assert_eq!(slices.of_blocks, of_blocks);
    let rails = RailWrites::default();
    let (offered, opened) = open(&FakePaths::new(1), 0, &Arc::default()).unwrap();
    rails.offer(offered, opened, &slices);
    let Some(PageMessage::Rails { rails: offered, slice_pages, slices: told }) = rails.to_say() else {
        panic!("nothing is offered")
    };
    assert_eq!((offered.len(), offered[0].number, slice_pages), (1, 0, slices.pages));
    assert_eq!(told, of_blocks);
}

#[test]
fn slices_of_a_large_guest_are_larger_and_a_guest_of_too_many_pages_has_none() {
    let slices_of = |bytes: u64| slices_with_data(&BTreeMap::from([(0, sparse(bytes, &[0, bytes - 1], true))]));
    for (bytes, pages, last) in [(1 << 34, 4096, 1023), (1 << 40, 1 << 17, 2047)] {
        let slices = slices_of(bytes).unwrap();
        assert_eq!(slices.pages, pages, "{bytes} bytes");
        assert_eq!(slices.of_blocks, [(0, vec![0, last])], "{bytes} bytes");
    }
    assert!(slices_of(1 << 56).is_none());
}

#[test]
fn what_would_lie_behind_all_memory_is_not_written() {
    let (rails, batch) = (Arc::new(open_rails(&[0], 0..0)), batch_of(0..40));
    let paths: Arc<dyn RailPaths> = Arc::new(FakePaths::new(1));
    for (address, is_written) in [(u64::MAX - 100, false), (0, true)] {
        let slice = WritableSlice { rail: 0, block: 0, slice: 0, address, key: KEY };
        rails.hear(&paths, Vec::new(), Vec::new(), vec![slice], 0);
        assert_eq!(plan(&rails, &batch).is_some(), is_written, "{address:#x}");
    }
}

#[test]
fn the_target_is_asked_until_it_has_told_all() {
    let rails = Arc::new(RailWrites::default());
    assert_eq!(rails.to_say(), None);
    let paths: Arc<dyn RailPaths> = Arc::new(FakePaths::new(1));
    let (offered, opened) = open(&*paths, 0, &Arc::default()).unwrap();
    rails.offer(offered, opened, &DataSlices { pages: SLICE_PAGES, of_blocks: vec![(0, vec![0])] });
    assert!(matches!(rails.to_say(), Some(PageMessage::Rails { .. })));
    for _ in 0..2 {
        wait_until("the target is asked", || rails.to_say() == Some(PageMessage::AskRails));
    }
    rails.hear(&paths, Vec::new(), vec![(0, "it has no room".into())], Vec::new(), 1);
    thread::sleep(2 * ASK_PERIOD);
    assert_eq!(rails.to_say(), None);
}

/// A rail that is open, and the slice of a target that it may write.
struct Bench {
    rails: Arc<RailWrites>,
    paths: Arc<FakePaths>,
    counts: Arc<PageCounters>,
    slot: Slot,
    /// The target's end, which has to live.
    _there: SharedEndpoint,
}

impl Bench {
    /// Opens a rail whose target tells this key of its memory.
    fn new(key: u64) -> Bench {
        let (rails, paths) = (Arc::new(RailWrites::default()), Arc::new(FakePaths::new(1)));
        let (there, counts) = (paths.fabrics[0].endpoint(), Arc::<PageCounters>::default());
        let bytes = SLICE_PAGES as usize * PAGE_BYTES;
        let (mut slots, at) = Slot::register(&*there, 1, bytes, Access::RemoteWrite, KEY).unwrap();
        let (offered, opened) = open(&*paths, 0, &counts).unwrap();
        rails.offer(offered, opened, &DataSlices { pages: SLICE_PAGES, of_blocks: vec![(0, vec![0])] });
        assert!(matches!(rails.to_say(), Some(PageMessage::Rails { .. })));
        let slice = WritableSlice { rail: 0, block: 0, slice: 0, address: at.address, key };
        let as_migration: Arc<dyn RailPaths> = paths.clone();
        rails.hear(&as_migration, vec![(0, there.name().to_vec())], Vec::new(), vec![slice], 1);
        Bench { rails, paths, counts, slot: slots.remove(0), _there: there }
    }

    /// Plans a batch that goes whole, and begins to write that.
    fn begin(&self, batch: Batch) -> Arc<WriteJob> {
        self.rails.begin(plan(&self.rails, &batch).unwrap(), batch)
    }

    /// Returns the byte of which each page of the target's slice consists.
    fn written(&self) -> Vec<u8> {
        let pages = self.slot.bytes().chunks_exact(PAGE_BYTES);
        pages.inspect(|page| assert!(page.iter().all(|byte| *byte == page[0]))).map(|page| page[0]).collect()
    }

    fn status(&self) -> RailStatus {
        self.rails.state.lock().rails[0].status
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.rails.end();
    }
}

#[test]
fn a_batch_is_written_where_the_target_says_and_copied_only_if_it_is_not_at_hand() {
    for is_at_hand in [false, true] {
        let bench = Bench::new(KEY);
        let (pool, bytes) = (&bench.paths.pool, 47 * PAGE_BYTES);
        let mut content = if is_at_hand { pool.take_for_rails(bytes) } else { pool.take(bytes) };
        content.as_mut().fill(7);
        let place = PageRuns::new(0, (3..30).chain(40..60));
        let job = bench.begin(Batch::new(BatchForm::Direct(place), content.freeze()));
        assert!(job.wait());
        let is_written = |page: u32| (3..30).contains(&page) || (40..60).contains(&page);
        let expected: Vec<u8> = (0..SLICE_PAGES).map(|page| if is_written(page) { 7 } else { 0 }).collect();
        assert_eq!(bench.written(), expected);
        assert_eq!(bench.counts.snapshot().copied_bytes, if is_at_hand { 0 } else { bytes as u64 });
        wait_until("the bytes are counted", || bench.paths.written_bytes() == bytes as u64);
        assert_eq!((under_way(&bench.rails), bench.rails.state.lock().rails[0].load), (0, 0));
    }
}

#[test]
fn rails_rest_when_nothing_more_is_planned() {
    let bench = Bench::new(KEY);
    assert!(bench.begin(batch_of(0..40)).wait());
    bench.rails.come_to_rest();
    // A guest is not kept waiting for as long as a busy machine may take.
    wait_until("the rail rests", || bench.rails.state.lock().writers == 0);
    assert_eq!(bench.status(), RailStatus::Ended);
    assert!(plan(&bench.rails, &batch_of(0..40)).is_none());
}

#[test]
fn what_a_rail_could_not_write_goes_another_way_once_the_target_has_closed_the_rail() {
    let bench = Bench::new(KEY ^ 1);
    let job = bench.begin(batch_of(0..40));
    assert!(!job.wait());
    assert_eq!(bench.paths.fabrics[0].refused_writes(), 1);
    assert!(bench.written().iter().all(|byte| *byte == 0));
    // What was begun may still arrive: another version of a page waits, unless its stream is torn down.
    assert_eq!(under_way(&bench.rails), 40);
    assert!(!bench.rails.wait_clear(0, 39..50, || true));
    assert!(matches!(bench.rails.claim_fence(&job), Fencing::Ask(PageMessage::Fence { rail: 0 })));
    assert!(matches!(bench.rails.claim_fence(&job), Fencing::Wait));
    bench.rails.fenced(0);
    assert!(matches!(bench.rails.claim_fence(&job), Fencing::Done));
    bench.rails.clear(&job.planned);
    assert!(bench.rails.wait_clear(0, 39..50, || false));
    assert!(plan(&bench.rails, &batch_of(0..40)).is_none(), "no rail is open");
}

#[test]
fn a_rail_whose_path_leaves_rdma_is_given_up() {
    let bench = Bench::new(KEY);
    bench.rails.look(&[0], 1);
    assert!(bench.begin(batch_of(0..40)).wait());
    bench.rails.look(&[1], 1);
    wait_until("the rail is given up", || bench.status() == RailStatus::Failed);
    assert!(plan(&bench.rails, &batch_of(0..40)).is_none());
}

#[test]
fn what_is_under_way_at_the_end_is_waited_for_unless_the_migration_has_failed() {
    for has_failed in [false, true] {
        let rails = Arc::new(RailWrites::default());
        let write =
            PlannedWrite { block: 0, runs: vec![Run { nth: 0, first: 7, pages: 1 }], written: Vec::new(), rail: 0 };
        rails.state.lock().under_way.extend(write.pages());
        rails.end();
        let (own, (sender, waited)) = (rails.clone(), sync_channel(1));
        thread::spawn(move || {
            own.wait_clear(0, 6..9, || false);
            let _ = sender.send(());
        });
        waited.recv_timeout(Duration::from_millis(50)).unwrap_err();
        if has_failed {
            rails.give_up()
        } else {
            rails.clear(&write)
        }
        waited.recv_timeout(Duration::from_secs(30)).unwrap();
    }
}
