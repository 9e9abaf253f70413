//! Tests a target's rails with fabrics in memory: what a source's rails can write, and until when.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Weak;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use skein_fabric::{Begun, Completion, Endpoint, RemoteMemory, Slot};
use skein_guest_ram::{AccessError, Ram};
use skein_pages::is_zero;
use skein_pages::page_record::BlockInfo;

use super::*;
use crate::find_ram::FindRam;
use crate::rail_paths::fake::FakePaths;
use crate::target::TargetPages;

const PATIENCE: Duration = Duration::from_secs(60);
const PAGE: u64 = PAGE_BYTES as u64;
/// How many pages a slice has: of the guest's ten the last slice has two.
const SLICE_PAGES: u32 = 4;
/// Which part of its file the guest's RAM is, and how many pages the file has.
const EXTENT: Range<u64> = 2 * PAGE..12 * PAGE;
const FILE_PAGES: usize = 13;
/// The key of the pages' marks.
const KEY: [u8; 16] = [5; 16];
/// The token of all operations: there is one at a time.
const TOKEN: u64 = 7;

/// RAM that is a part of a file in memory, or is as if it were none.
struct FileRam {
    file: Arc<File>,
    is_known: bool,
}

impl Ram for FileRam {
    fn bytes(&self) -> u64 {
        EXTENT.end - EXTENT.start
    }

    fn file(&self) -> Option<(&File, Range<u64>)> {
        self.is_known.then_some((&*self.file, EXTENT))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        self.file.write_all_at(data, EXTENT.start + offset).map_err(AccessError::File)
    }

    fn zero(&self, offset: u64, bytes: u64) -> Result<(), AccessError> {
        self.write(offset, &vec![0; bytes as usize])
    }

    fn is_zero(&self, offset: u64, bytes: u64) -> Result<bool, AccessError> {
        let mut held = vec![0_u8; bytes as usize];
        self.read(offset, &mut held)?;
        Ok(is_zero(&held))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.file.read_exact_at(out, EXTENT.start + offset).map_err(AccessError::File)
    }

    fn read_in_qemu(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.read(offset, out)
    }
}

fn block() -> BlockInfo {
    BlockInfo { name: "ram".into(), bytes: EXTENT.end - EXTENT.start }
}

/// Returns the file in which a guest's RAM lies, and how the target finds that.
fn guest(is_known: bool) -> (Arc<File>, FindRam) {
    let file = Arc::new(File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap()));
    file.set_len(FILE_PAGES as u64 * PAGE).unwrap();
    let found = file.clone();
    (file, Box::new(move |_| Ok(Box::new(FileRam { file: found.clone(), is_known }))))
}

/// A target: the RAM of a guest that comes, and rails into it.
struct Bench {
    file: Arc<File>,
    blocks: Arc<Blocks>,
    paths: Arc<FakePaths>,
    regions: RailRegions,
}

/// What the source was told.
#[derive(Default)]
struct Told {
    opened: BTreeMap<u8, Vec<u8>>,
    refused: Vec<(u8, String)>,
    slices: Vec<WritableSlice>,
}

impl Bench {
    fn new(paths: u64) -> Bench {
        Bench::of(FakePaths::new(paths), true)
    }

    fn of(paths: FakePaths, is_known: bool) -> Bench {
        let (file, find) = guest(is_known);
        let (blocks, why_not) = Blocks::find(Some(&find), &KEY, vec![block()], None);
        assert_eq!(why_not, "");
        Bench { file, blocks: Arc::new(blocks), paths: Arc::new(paths), regions: RailRegions::default() }
    }

    /// Offers rails with all slices of the guest, and one that there is not.
    fn offer(&self, rails: Vec<OfferedRail>) {
        self.offer_over(Some(self.paths.clone()), rails);
    }

    fn offer_over(&self, paths: Option<Arc<FakePaths>>, rails: Vec<OfferedRail>) {
        let paths = paths.map(|paths| -> Arc<dyn RailPaths> { paths });
        let offer = Offer { rails, slice_pages: SLICE_PAGES, slices: vec![(0, vec![0, 1, 2, 3])] };
        self.regions.open(offer, paths, &self.blocks).unwrap();
    }

    /// Returns what the source is told of so many offers from now on.
    fn told(&self, offers: u32) -> Told {
        let (begun, mut told) = (Instant::now(), Told::default());
        loop {
            let PageMessage::RailNews { opened, refused, slices, done, .. } = self.regions.news(0) else {
                panic!("no news of rails")
            };
            told.opened.extend(opened);
            told.refused.extend(refused);
            told.slices.extend(slices);
            if done == offers {
                return told;
            }
            assert!(begun.elapsed() < PATIENCE, "{done} of {offers} offers are done");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the pages of the file that are not zero, each with the byte of which it consists.
    fn written(&self) -> Vec<(usize, u8)> {
        let mut bytes = vec![0_u8; FILE_PAGES * PAGE_BYTES];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        let pages = bytes.chunks_exact(PAGE_BYTES).map(|page| {
            assert!(page.iter().all(|byte| *byte == page[0]), "a page is written in part");
            page[0]
        });
        pages.enumerate().filter(|(_, byte)| *byte != 0).collect()
    }
}

/// The source's end of a rail.
struct Peer {
    path: u32,
    endpoint: SharedEndpoint,
    slot: Slot,
}

impl Peer {
    fn new(bench: &Bench, path: u32) -> Peer {
        let endpoint = bench.paths.fabrics[path as usize].endpoint();
        let (mut slots, _) = Slot::register(&*endpoint, 1, PAGE_BYTES, Access::Local, 0).unwrap();
        Peer { path, endpoint, slot: slots.remove(0) }
    }

    fn offered(&self, number: u8) -> OfferedRail {
        let abilities = self.endpoint.abilities();
        let (provider, protocol) = (abilities.provider.clone(), abilities.protocol);
        OfferedRail { number, path: self.path, provider, protocol, name: self.endpoint.name().to_vec() }
    }

    /// Connects to the target's end of the rail with this number.
    fn connect(&self, number: u8, told: &Told) {
        self.endpoint.connect(&told.opened[&number]).unwrap();
    }

    /// Begins to write a page of this byte into a slice.
    fn begin(&mut self, byte: u8, slice: &WritableSlice, page: u64) {
        self.slot.bytes_mut().fill(byte);
        let to = RemoteMemory { address: slice.address + page * PAGE, key: slice.key };
        assert_eq!(self.endpoint.write(&self.slot.first(PAGE_BYTES), to, None, TOKEN), Ok(Begun::Yes));
    }

    /// Waits for the end of what was begun. Returns whether it is done: else it has failed.
    fn is_done(&self) -> bool {
        let (begun, mut completions) = (Instant::now(), Vec::new());
        while completions.is_empty() {
            self.endpoint.poll(&mut completions).unwrap();
            assert!(begun.elapsed() < PATIENCE, "a write has no end");
        }
        matches!(&completions[..], [Completion::Done { token: TOKEN }])
    }

    fn writes(&mut self, byte: u8, slice: &WritableSlice, page: u64) -> bool {
        self.begin(byte, slice, page);
        self.is_done()
    }
}

/// What an open rail holds at the target.
struct Held {
    endpoint: Weak<dyn Endpoint + Send + Sync>,
    /// The regions, which the fabric and this test hold as well.
    regions: Vec<Arc<dyn Region>>,
    holders: Vec<usize>,
}

impl Held {
    fn of(bench: &Bench, rail: u8) -> Held {
        let state = bench.regions.0.lock();
        let rail = &state.rails[&rail];
        let (endpoint, regions) = (Arc::downgrade(&rail.endpoint), rail.regions.clone());
        assert!(!regions.is_empty());
        let holders = holders(&regions);
        Held { endpoint, regions, holders }
    }

    fn is_whole(&self) -> bool {
        self.endpoint.strong_count() > 0 && holders(&self.regions) == self.holders
    }

    /// Waits until the target holds nothing of it any more.
    fn wait_until_gone(&self) {
        let (begun, others): (_, Vec<usize>) = (Instant::now(), self.holders.iter().map(|count| count - 1).collect());
        while self.endpoint.strong_count() > 0 || holders(&self.regions) != others {
            assert!(begun.elapsed() < PATIENCE, "{:?} hold the regions", holders(&self.regions));
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns a target with a rail that is open at both ends, and what the source was told of that.
fn one_rail() -> (Bench, Peer, Told) {
    let bench = Bench::new(1);
    let peer = Peer::new(&bench, 0);
    bench.offer(vec![peer.offered(0)]);
    let told = bench.told(1);
    peer.connect(0, &told);
    (bench, peer, told)
}

fn holders(regions: &[Arc<dyn Region>]) -> Vec<usize> {
    regions.iter().map(Arc::strong_count).collect()
}

#[test]
fn what_a_source_writes_lands_until_the_fence_and_changes_nothing_after_it() {
    let (bench, mut peer, told) = one_rail();
    assert!(told.refused.is_empty(), "{:?}", told.refused);
    let [first, second, last] = &told.slices[..] else { panic!("{:?}", told.slices) };
    assert_eq!([first, second, last].map(|of| (of.rail, of.block, of.slice)), [(0, 0, 0), (0, 0, 1), (0, 0, 2)]);
    assert!(peer.writes(1, first, 0) && peer.writes(2, second, 3) && peer.writes(3, last, 1));
    let written = [(2, 1), (9, 2), (11, 3)];
    assert_eq!(bench.written(), written);
    // The last slice is as long as the guest's RAM is, and the file is longer.
    assert!(!peer.writes(4, last, 2));
    assert_eq!(bench.paths.fabrics[0].refused_writes(), 1);
    // A write is under way when the rail is closed, and others are begun after that.
    peer.begin(5, first, 1);
    bench.regions.fence_all().unwrap();
    assert!(!peer.is_done() && !peer.writes(6, second, 0));
    bench.regions.fence_all().unwrap();
    assert!(!peer.writes(7, last, 0));
    assert_eq!(bench.written(), written);
}

#[test]
fn memory_stays_registered_after_the_fence_until_it_is_let_go() {
    for is_dropped in [false, true] {
        let bench = Bench::new(1);
        let peer = Peer::new(&bench, 0);
        bench.offer(vec![peer.offered(0)]);
        bench.told(1);
        let held = Held::of(&bench, 0);
        bench.regions.fence_all().unwrap();
        bench.regions.fence_all().unwrap();
        assert!(held.is_whole());
        match is_dropped {
            true => drop(bench.regions),
            false => bench.regions.let_go(),
        }
        held.wait_until_gone();
    }
}

#[test]
fn rails_that_nobody_has_fenced_are_closed_when_their_memory_is_let_go() {
    let (bench, mut peer, told) = one_rail();
    let held = Held::of(&bench, 0);
    bench.regions.let_go();
    held.wait_until_gone();
    assert!(!peer.writes(1, &told.slices[0], 0));
    assert!(bench.written().is_empty());
    bench.regions.fence_all().unwrap();
}

#[test]
fn the_fence_of_a_rail_lets_its_memory_go_and_leaves_the_others() {
    let bench = Bench::new(2);
    let mut peers = [0, 1].map(|path| Peer::new(&bench, path));
    bench.offer(vec![peers[0].offered(0), peers[1].offered(1)]);
    let told = bench.told(1);
    (0..).zip(&peers).for_each(|(rail, peer)| peer.connect(rail, &told));
    let held = Held::of(&bench, 0);
    // Again, and one that there is not.
    for rail in [0, 0, 9] {
        bench.regions.fence(rail).unwrap();
    }
    held.wait_until_gone();
    let first_of = |rail: u8| told.slices.iter().find(|slice| slice.rail == rail).unwrap();
    assert!(!peers[0].writes(1, first_of(0), 0) && peers[1].writes(2, first_of(1), 1));
    bench.regions.fence_all().unwrap();
    assert!(!peers[1].writes(3, first_of(1), 2));
    assert_eq!(bench.written(), [(3, 2)]);
}

#[test]
fn a_rail_that_is_offered_after_the_fence_is_not_opened_and_counts_as_done() {
    let bench = Bench::new(2);
    let peers = [0, 1].map(|path| Peer::new(&bench, path));
    bench.offer(vec![peers[0].offered(0)]);
    bench.told(1);
    bench.regions.fence_all().unwrap();
    bench.offer(vec![peers[1].offered(1)]);
    let told = bench.told(2);
    assert_eq!(told.refused, [(1, OVER.to_owned())]);
    assert!(told.opened.is_empty() && told.slices.is_empty());
    assert!(bench.paths.opened() == 1 && bench.regions.0.lock().rails.is_empty());
}

#[test]
fn once_rails_are_barred_an_offer_opens_and_registers_nothing_and_is_done() {
    let bench = Bench::new(2);
    let peers = [0, 1].map(|path| Peer::new(&bench, path));
    bench.regions.bar();
    bench.offer(vec![peers[0].offered(0)]);
    bench.offer(vec![peers[1].offered(1)]);
    let told = bench.told(2);
    assert_eq!(told.refused, [(0, BARRED.to_owned()), (1, BARRED.to_owned())]);
    assert!(told.opened.is_empty() && told.slices.is_empty());
    assert!(bench.paths.opened() == 0 && bench.regions.0.lock().rails.is_empty());
    bench.regions.fence_all().unwrap();
}

/// The fence comes at any moment of an offer.
#[test]
fn a_fence_amid_the_registering_leaves_nothing_open() {
    for _ in 0..30 {
        let bench = Bench::new(1);
        let mut peer = Peer::new(&bench, 0);
        bench.offer(vec![peer.offered(0)]);
        bench.regions.fence_all().unwrap();
        let told = bench.told(1);
        assert!(bench.regions.0.lock().rails.is_empty());
        if told.opened.contains_key(&0) {
            peer.connect(0, &told);
        }
        for slice in &told.slices {
            assert!(!peer.writes(1, slice, 0));
        }
        assert!(bench.written().is_empty());
    }
}

#[test]
fn a_rail_that_may_register_no_more_keeps_what_it_has_and_the_others_go_on() {
    let bench = Bench::new(2);
    let mut peers = [0, 1].map(|path| Peer::new(&bench, path));
    // As where a process may lock no more memory.
    bench.paths.fabrics[0].limit_registrations(1);
    bench.offer(vec![peers[0].offered(0), peers[1].offered(1)]);
    let told = bench.told(1);
    let [(0, why)] = &told.refused[..] else { panic!("{:?}", told.refused) };
    assert!(why.contains("no memory"), "{why}");
    let mut slices: Vec<(u8, u32)> = told.slices.iter().map(|of| (of.rail, of.slice)).collect();
    slices.sort_unstable();
    assert_eq!(slices, [(0, 0), (1, 0), (1, 1), (1, 2)]);
    (0..).zip(&peers).for_each(|(rail, peer)| peer.connect(rail, &told));
    let slice = |rail: u8, slice: u32| told.slices.iter().find(|of| (of.rail, of.slice) == (rail, slice)).unwrap();
    assert!(peers[0].writes(1, slice(0, 0), 2) && peers[1].writes(2, slice(1, 2), 0));
    assert_eq!(bench.written(), [(4, 1), (10, 2)]);
    bench.regions.fence_all().unwrap();
}

#[test]
fn the_source_is_told_why_a_rail_is_not_opened() {
    let refused = |bench: &Bench, paths: Option<Arc<FakePaths>>, rail: OfferedRail| {
        bench.offer_over(paths, vec![rail]);
        let told = bench.told(1);
        assert!(told.opened.is_empty() && told.slices.is_empty());
        let [(0, why)] = &told.refused[..] else { panic!("{:?}", told.refused) };
        why.clone()
    };
    let rail = Peer::new(&Bench::new(1), 0).offered(0);
    assert_eq!(refused(&Bench::new(1), None, rail.clone()), NOT_HERE);
    let mut paths = FakePaths::new(1);
    paths.may_write = false;
    for (bench, why) in [(Bench::of(paths, true), NOT_ALLOWED), (Bench::of(FakePaths::new(1), false), NO_FILE)] {
        assert_eq!(refused(&bench, Some(bench.paths.clone()), rail.clone()), why);
        assert_eq!(bench.paths.opened(), 0);
    }
    for (rail, why) in [
        (OfferedRail { provider: "another".into(), ..rail.clone() }, "of different kinds"),
        (OfferedRail { protocol: (0, 1), ..rail.clone() }, "of different kinds"),
        (OfferedRail { path: 1, ..rail.clone() }, "no such path"),
        (OfferedRail { name: vec![1], ..rail.clone() }, "no name"),
    ] {
        let bench = Bench::new(1);
        let told = refused(&bench, Some(bench.paths.clone()), rail);
        assert!(told.contains(why), "{told}");
    }
}

/// Returns an offer of rails that cannot be opened.
fn nameless(numbers: &[u8]) -> Offer {
    let rail = |number: &u8| OfferedRail {
        number: *number,
        path: 0,
        provider: String::new(),
        protocol: (0, 0),
        name: vec![1],
    };
    Offer { rails: numbers.iter().map(rail).collect(), slice_pages: 1, slices: vec![(0, vec![u32::MAX])] }
}

#[test]
fn rails_have_numbers_of_their_own_in_whatever_order_they_are_offered() {
    let (blocks, _) = Blocks::find(None, &[0; 16], Vec::new(), None);
    let (regions, blocks) = (RailRegions::default(), Arc::new(blocks));
    let open = |numbers: &[u8]| regions.open(nameless(numbers), None, &blocks);
    open(&[1]).unwrap();
    open(&[0, 2]).unwrap();
    for wrong in [&[][..], &[1], &[3, 3], &[RAILS_MAX as u8]] {
        open(wrong).unwrap_err();
    }
    regions.fence_all().unwrap();
}

#[test]
fn a_rail_that_is_not_closed_yet_is_not_forgotten() {
    let regions = RailRegions::default();
    regions.0.lock().unclosed = 1;
    assert!(regions.fence_all().unwrap_err().to_string().contains("rail"));
    regions.0.lock().unclosed = 0;
    regions.fence_all().unwrap();
}

#[test]
fn rails_are_closed_before_both_ends_compare() {
    let (file, find) = guest(true);
    let pages = TargetPages::new(Some(find), None);
    pages.choose_direct_blocks(&KEY, vec![block()], None).unwrap();
    let (blocks, paths) = (pages.blocks().unwrap(), Arc::new(FakePaths::new(1)));
    let bench = Bench { file, blocks, paths, regions: RailRegions(pages.rails.0.clone()) };
    let mut peer = Peer::new(&bench, 0);
    bench.offer(vec![peer.offered(0)]);
    let told = bench.told(1);
    peer.connect(0, &told);
    let slice = told.slices.iter().find(|slice| slice.slice == 1).unwrap();
    assert!(peer.writes(3, slice, 0));
    let written = bench.written();
    assert_eq!(written.len(), 1);
    pages.compare_all(Default::default()).unwrap();
    assert!(!peer.writes(4, slice, 1));
    assert_eq!(bench.written(), written);
}
