//! Tests a guest's pages from a source's outgoing channels to a target's RAM or QEMU, on the loopback interface, with
//! streams that are made up.

mod rails;
mod ram;
#[path = "../world/mod.rs"]
mod world;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skein_agent::OutgoingChannels;
use skein_dataplane::source::{
    Compress, DirtyTracking, PackResult, PackerPool, RateShare, SourcePages, SourcePagesSettings,
};
use skein_dataplane::target::TargetPages;
use skein_dataplane::{KeptMarks, KeptRam, Width};
use skein_handover::MigrationId;
use skein_pages::packing::{Effort, PageCompressor};
use skein_qemu_stream::main_channel::{Entry, entry};
use skein_qemu_stream::multifd::Canonical;

use self::ram::{FakeRam, PAGE, STEPS};
use self::world::*;

const PAGES: usize = 1500;
/// Holds a section of something that is not RAM.
const DEVICES: &[u8] = b"\x04\0\0\0\x09\x07devices\0\0\0\0\0\0\0\x01 state, of which nobody knows how long it is";

/// A QEMU's connections, and the content of its guest's RAM at the end.
struct Recorded {
    main: Vec<u8>,
    channels: Vec<Vec<u8>>,
    ram: Vec<u8>,
    /// The pages of all rounds and both blocks, and those of zeros.
    pages: u64,
    zero_pages: u64,
    /// The part of `main` and `channels` that is not pages of `pc.ram`: what a QEMU whose RAM is written directly is to
    /// get.
    rest: Vec<Vec<u8>>,
}

/// Returns the content of version `version` of a page: zeros, noise, or text; or the same text but for a number, or
/// with it.
fn content(page: usize, version: usize) -> Vec<u8> {
    if page.is_multiple_of(3) {
        let mut text: Vec<u8> = format!("page {page}; ").bytes().cycle().take(PAGE).collect();
        if page.is_multiple_of(2) {
            text[page % 4000..][..8].copy_from_slice(&version.to_be_bytes());
        }
        return text;
    }
    let mut state = (page * 31 + version * 1009 + 1) as u64;
    match (page / 7 + version) % 4 {
        0 => vec![0; PAGE],
        1 => std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .take(PAGE)
        .collect(),
        _ => format!("page {page} of version {version}; ").bytes().cycle().take(PAGE).collect(),
    }
}

fn word(flags: u64) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

/// Makes a packet of flags, pages with content, pages of zeros, and their version.
type MakePacket<'a> = dyn FnMut(u32, &[usize], &[usize], usize) -> Vec<u8> + 'a;

/// Returns three rounds over a guest's RAM: on the main channel alone, or by `channels` of multifd.
fn recorded(channels: usize) -> Recorded {
    rounds(channels, 3)
}

/// Returns so many of the rounds. After less than three QEMU has not said that it is through with its RAM.
fn rounds(channels: usize, rounds: usize) -> Recorded {
    let mut ram = vec![0; PAGES * PAGE];
    ram[..8].copy_from_slice(b"leftover");
    let (mut main, mut direct) = (Vec::new(), Vec::new());
    let mut both = |bytes: &[u8], of_pages: bool| {
        main.extend_from_slice(bytes);
        if !of_pages {
            direct.extend_from_slice(bytes);
        }
    };
    both(b"QEVM\0\0\0\x03\x07\0\0\0\x0bpc-q35-10.0", false);
    let vga = b"vga";
    both(b"\x01\0\0\0\x01\x03ram\0\0\0\0\0\0\0\x04", false);
    both(&word((PAGES * PAGE + PAGE) as u64 | 0x004), false);
    both(&[&b"\x06pc.ram"[..], &((PAGES * PAGE) as u64).to_be_bytes()].concat(), false);
    both(&[&b"\x03"[..], vga, &(PAGE as u64).to_be_bytes()].concat(), false);
    let flush = if channels > 0 { word(0x200) } else { Vec::new() };
    both(&[&flush[..], &word(0x010), b"\x7e\0\0\0\x01"].concat(), false);
    let mut streams: Vec<(Vec<u8>, Vec<u8>)> = (0..channels)
        .map(|id| {
            let mut init = [&[0x11, 0x22, 0x33, 0x44, 0, 0, 0, 1][..], &[0; 56]].concat();
            init[24] = id as u8;
            (init.clone(), init)
        })
        .collect();
    let mut number = 0;
    let mut packet = |flags, normal: &[usize], zero: &[usize], version| {
        number += 1;
        let offsets = |pages: &[usize]| pages.iter().map(|page| (page * PAGE) as u64).collect();
        let header = Canonical {
            flags,
            pages_alloc: if flags == 1 { 0 } else { 128 },
            next_packet_size: (normal.len() * PAGE) as u32,
            packet_num: number,
            block: if flags == 1 { String::new() } else { "pc.ram".into() },
            normal: offsets(normal),
            zero: offsets(zero),
        };
        let mut bytes = header.header().unwrap().to_vec();
        normal.iter().for_each(|page| bytes.extend(content(*page, version)));
        bytes
    };
    let sync = |streams: &mut Vec<(Vec<u8>, Vec<u8>)>, packet: &mut MakePacket<'_>| {
        for (all, rest) in streams {
            let bytes = packet(1, &[], &[], 0);
            all.extend(&bytes);
            rest.extend(&bytes);
        }
    };
    sync(&mut streams, &mut packet);
    let (mut pages, mut zero_pages) = (0, 0);
    for (version, step) in STEPS.iter().enumerate().take(rounds) {
        let last = version == 2;
        both(&[if last { 3 } else { 2 }, 0, 0, 0, 1], false);
        // Never the first page, whose leftover a zero has to go over in the last round.
        let is_sent = |page: &usize| if *page == 0 { last } else { page.is_multiple_of(*step) };
        let sent: Vec<usize> = (0..PAGES).filter(is_sent).collect();
        let content = |page| if page == 0 { vec![0; PAGE] } else { content(page, version) };
        for page in &sent {
            ram[page * PAGE..][..PAGE].copy_from_slice(&content(*page));
        }
        let is_zero = |page: &&usize| content(**page).iter().all(|byte| *byte == 0);
        pages += sent.len() as u64 + 1;
        zero_pages += sent.iter().filter(is_zero).count() as u64;
        if channels > 0 {
            let (zero, normal): (Vec<usize>, Vec<usize>) = sent.iter().partition(is_zero);
            for (nth, pages) in normal.chunks(100).enumerate() {
                let zero = zero.chunks(28).nth(nth).unwrap_or_default();
                streams[nth % channels].0.extend(packet(0, pages, zero, version));
            }
            for (nth, pages) in zero.chunks(28).enumerate().skip(normal.chunks(100).len()) {
                streams[nth % channels].0.extend(packet(0, &[], pages, version));
            }
            sync(&mut streams, &mut packet);
            both(&word(0x200), false);
        } else {
            for (nth, page) in sent.iter().enumerate() {
                let (name, offset) = ((nth == 0).then_some("pc.ram"), (page * PAGE) as u64);
                if is_zero(&page) {
                    both(&entry(Entry::Zero, name, offset).unwrap(), true);
                } else {
                    both(&entry(Entry::Page, name, offset).unwrap(), true);
                    both(&content(*page), true);
                }
            }
        }
        // The other block's page goes to QEMU, whatever writes pc.ram.
        both(&entry(Entry::Page, Some("vga"), 0).unwrap(), false);
        both(&vec![version as u8 + 1; PAGE], false);
        both(&[&word(0x010)[..], b"\x7e\0\0\0\x01"].concat(), false);
    }
    both(DEVICES, false);
    let (all, rest): (Vec<_>, Vec<_>) = streams.into_iter().unzip();
    Recorded { main, channels: all, ram, pages, zero_pages, rest: [direct].into_iter().chain(rest).collect() }
}

/// Compresses in this very process.
struct Own(PageCompressor);

impl Compress for Own {
    fn compress(
        &mut self,
        pages: &[Bytes],
        effort: Effort,
        out: &mut [u8],
        _is_over: &dyn Fn() -> bool,
    ) -> io::Result<PackResult> {
        Ok((self.0.pack(&pages.concat(), effort, out), Duration::ZERO))
    }
}

struct Outcome {
    /// What the target's QEMU got, main first.
    got: Vec<Vec<u8>>,
    source: Arc<SourcePages>,
    target: Arc<TargetPages>,
}

/// Carries recorded connections from outgoing to incoming channels.
fn carry(recorded: &Recorded, packs: bool, source: Option<&FakeRam>, target: Option<&FakeRam>) -> Outcome {
    carry_back(recorded, packs, source, target, (None, None))
}

/// Carries the same, between hosts that have kept something.
fn carry_back(
    recorded: &Recorded,
    packs: bool,
    source: Option<&FakeRam>,
    target: Option<&FakeRam>,
    kept: (Option<KeptMarks>, Option<KeptRam>),
) -> Outcome {
    carry_from(recorded, packs, (source, DirtyTracking::Exact), target, kept)
}

/// Carries the same, from a QEMU that may miss what the guest writes.
fn carry_from(
    recorded: &Recorded,
    packs: bool,
    (source, misses): (Option<&FakeRam>, DirtyTracking),
    target: Option<&FakeRam>,
    kept: (Option<KeptMarks>, Option<KeptRam>),
) -> Outcome {
    carry_over(&World::new(), recorded, packs, (source, misses), target, kept, &|_, _| {})
}

/// Carries the same, over the rails of a world. `paces` is called before each part that QEMU writes, with the source's
/// pages and the part's number on its connection.
fn carry_over(
    world: &World,
    recorded: &Recorded,
    packs: bool,
    (source, misses): (Option<&FakeRam>, DirtyTracking),
    target: Option<&FakeRam>,
    (marks, ram): (Option<KeptMarks>, Option<KeptRam>),
    paces: &(dyn Fn(&SourcePages, usize) + Sync),
) -> Outcome {
    let (a, b) = world.pair();
    let id = MigrationId(5);
    let pages = SourcePages::new(SourcePagesSettings {
        packers: packs.then(|| {
            let hire = |_: &dyn Fn() -> bool| Some(Box::new(Own(PageCompressor::new().unwrap())) as Box<dyn Compress>);
            Arc::new(PackerPool::start(2, 2, Box::new(hire)).unwrap())
        }),
        width: Width::All,
        rate: RateShare::unlimited(),
        direct: target.is_some(),
        may_use_rdma: world.may_use_rdma,
        channels: recorded.channels.len() as u16,
        key: [9 + u8::from(marks.is_some()); 16],
        ram: source.map(FakeRam::find),
        delta_memory: 0.04,
        kept_marks: marks,
        dirty_tracking: misses,
    });
    let (tap_path, landing) = (world.path("tap.sock"), world.path("landing.sock"));
    let target = TargetPages::new(target.map(FakeRam::find), ram);
    b.peers.incoming_channels().open(id, "a", &landing, target.clone());
    let listener = UnixListener::bind(&landing).unwrap();
    // The first connection waits 5 s for a session, which may not be enough on a busy machine.
    a.peers.reach("b");
    a.contact("b", true, PATIENCE);
    let tap = OutgoingChannels::start(&tap_path, &a.peers, "b", id, pages.clone(), &[]).unwrap();
    let streams: Vec<&Vec<u8>> = [&recorded.main].into_iter().chain(&recorded.channels).collect();
    let got = thread::scope(|scope| {
        for bytes in &streams {
            let mut socket = UnixStream::connect(&tap_path).unwrap();
            let pages = &pages;
            scope.spawn(move || {
                // All connections go along together, also one that has little.
                let mut parts = bytes.chunks((bytes.len() / 24).clamp(1, 100_001)).enumerate();
                let mut write = |(nth, part)| {
                    paces(pages, nth);
                    socket.write_all(part)
                };
                // The connection may be broken off.
                if parts.try_for_each(&mut write).is_ok() {
                    let _ = socket.shutdown(Shutdown::Write);
                }
                let _ = socket.read(&mut [0]);
            });
        }
        let reading: Vec<_> = streams
            .iter()
            .map(|_| {
                let socket = accept(&listener, &pages);
                scope.spawn(move || {
                    let Some(mut socket) = socket else { return Vec::new() };
                    socket.set_read_timeout(Some(120 * SECOND)).unwrap();
                    let mut got = Vec::new();
                    let _ = socket.read_to_end(&mut got);
                    got
                })
            })
            .collect();
        let got: Vec<Vec<u8>> = reading.into_iter().map(|thread| thread.join().unwrap()).collect();
        // Writers of connections that were broken off wait for their ends.
        drop(tap);
        got
    });
    Outcome { got, source: pages, target }
}

/// Carries a guest until no page is repaired, three times at most: on a machine that stands still for seconds a delta
/// gives its base up, and its page is repaired.
fn without_repairs<T>(carry: impl Fn() -> (Outcome, T)) -> (Outcome, T) {
    let is_whole = |(outcome, _): &(Outcome, T)| outcome.source.counts().repaired_pages == 0;
    std::iter::repeat_with(carry).take(3).find(is_whole).expect("not each time a base is late")
}

/// Returns the next connection; `None`: the migration has failed before it was made.
fn accept(listener: &UnixListener, source: &SourcePages) -> Option<UnixStream> {
    listener.set_nonblocking(true).unwrap();
    let end = Instant::now() + PATIENCE;
    let mut failed = None;
    loop {
        if let Ok((socket, _)) = listener.accept() {
            socket.set_nonblocking(false).unwrap();
            return Some(socket);
        }
        if source.failed().is_some() && failed.get_or_insert_with(Instant::now).elapsed() > SECOND {
            return None;
        }
        assert!(Instant::now() < end, "a connection does not land");
        thread::sleep(SECOND / 500);
    }
}

/// Compares by what each connection begins with: connections arrive in the order in which they were made.
fn assert_same(got: &[Vec<u8>], expected: &[Vec<u8>]) {
    assert_eq!(got.len(), expected.len());
    for (nth, (got, expected)) in got.iter().zip(expected).enumerate() {
        let differ = got.iter().zip(expected).position(|(a, b)| a != b);
        assert!(got == expected, "connection {nth}: {} bytes of {}, differ at {differ:?}", got.len(), expected.len());
    }
}

#[test]
fn qemu_gets_exactly_what_was_sent_where_its_ram_is_not_written() {
    for (channels, packs) in [(0, true), (0, false), (3, true), (3, false)] {
        let recorded = recorded(channels);
        let outcome = carry(&recorded, packs, None, None);
        let sent: Vec<Vec<u8>> = [recorded.main.clone()].into_iter().chain(recorded.channels.clone()).collect();
        assert_same(&outcome.got, &sent);
        let counts = outcome.source.counts();
        assert!(
            counts.pages > PAGES as u64
                && counts.zero_pages + counts.packed_pages + counts.stored_pages == counts.pages
        );
        assert!(packs || counts.packed_pages == 0);
        assert!((packs || counts.packing_us == 0) && counts.compared_us.is_none());
        // The pages of which QEMU itself says that they are zeros count, too.
        assert_eq!((counts.pages, counts.zero_pages), (recorded.pages, recorded.zero_pages));
    }
}

#[test]
fn what_was_sent_before_a_stream_broke_arrives() {
    let whole = rounds(0, 1);
    let page = (20..PAGES).map(|page| content(page, 0)).find(|content| content.iter().any(|byte| *byte != 0)).unwrap();
    let page = whole.main.windows(PAGE).position(|bytes| bytes == page).unwrap();
    // The ends are between pages, before a page's content, and in the middle of it.
    for end in [page + PAGE, page + PAGE + 3, page, page - 1, page + 77] {
        let broken = Recorded { main: whole.main[..end].to_vec(), ..rounds(0, 1) };
        let outcome = carry(&broken, false, None, None);
        assert_same(&outcome.got, std::slice::from_ref(&broken.main));
    }
}

#[test]
fn a_block_whose_pages_have_no_numbers_is_left_alone() {
    let mut recorded = rounds(0, 1);
    let (small, large) = ((PAGES * PAGE) as u64, 1u64 << 45);
    let at = recorded.main.windows(8).position(|bytes| bytes == small.to_be_bytes()).unwrap();
    recorded.main[at..at + 8].copy_from_slice(&large.to_be_bytes());
    let total = recorded.main.windows(8).position(|bytes| bytes == word((small + PAGE as u64) | 0x004)).unwrap();
    recorded.main[total..total + 8].copy_from_slice(&word((large + PAGE as u64) | 0x004));
    // The page is beyond what 32 bits count.
    recorded.main.extend(entry(Entry::Page, Some("pc.ram"), (1 << 44) + 5 * PAGE as u64).unwrap());
    recorded.main.extend(vec![7; PAGE]);
    let outcome = carry(&recorded, false, None, None);
    assert_same(&outcome.got, std::slice::from_ref(&recorded.main));
    assert_eq!(outcome.source.counts().pages, 0);
}

#[test]
fn pages_are_written_into_the_ram_and_qemu_gets_the_rest() {
    for (channels, packs) in [(0, true), (0, false), (1, true), (4, true), (4, false)] {
        let recorded = recorded(channels);
        let mut before = vec![0; PAGES * PAGE];
        before[..8].copy_from_slice(b"leftover");
        let ram = FakeRam::new(before);
        let outcome = carry(&recorded, packs, None, Some(&ram));
        assert_eq!(outcome.source.failed(), None);
        assert_eq!(outcome.source.is_direct(), Some(true));
        // The other block is private there, which is not worth a word.
        assert_eq!(outcome.source.why_not_direct(), "");
        let counts = outcome.source.counts();
        assert_eq!((counts.pages, counts.zero_pages), (recorded.pages, recorded.zero_pages));
        assert!(counts.compared_us.is_some_and(|us| us > 0), "{counts:?}");
        let differ = differing(&ram, &recorded.ram);
        assert!(differ.is_empty(), "{channels} channels: {differ:?}");
        assert_same(&outcome.got, &recorded.rest);
    }
}

#[test]
fn of_pages_that_are_sent_again_what_changed_goes() {
    for (channels, packs) in [(0, true), (1, false), (4, true), (4, false)] {
        let recorded = recorded(channels);
        let mut before = vec![0; PAGES * PAGE];
        before[..8].copy_from_slice(b"leftover");
        let source = FakeRam::new(recorded.ram.clone());
        let (outcome, target) = without_repairs(|| {
            let target = FakeRam::new(before.clone());
            let outcome = carry(&recorded, packs, Some(&source), Some(&target));
            assert_eq!(outcome.source.failed(), None);
            (outcome, target)
        });
        let differ = differing(&target, &recorded.ram);
        assert!(differ.is_empty(), "{channels} channels: {differ:?}");
        assert_same(&outcome.got, &recorded.rest);
        let counts = outcome.source.counts();
        assert!(counts.delta_pages > 0 && counts.unchanged_pages > 0 && counts.repaired_pages == 0, "{counts:?}");
        let whole = counts.zero_pages + counts.packed_pages + counts.stored_pages;
        assert_eq!(whole + counts.delta_pages + counts.unchanged_pages, counts.pages, "{counts:?}");
    }
}

#[test]
fn what_qemu_misses_of_what_the_guest_writes_is_sent() {
    // The RAM is no multiple of 256 KiB.
    assert_ne!(PAGES % 64, 0);
    for (channels, misses) in
        [(0, DirtyTracking::MissesAllBlocks), (4, DirtyTracking::MissesUnalignedBlocks), (4, DirtyTracking::Exact)]
    {
        let recorded = recorded(channels);
        // These were written to, and never sent: some bytes, a page of zeros, and no more than zeros.
        let mut ram = recorded.ram.clone();
        ram[3 * PAGE + 7] ^= 1;
        ram[(PAGES - 1) * PAGE..].fill(9);
        ram[PAGE..2 * PAGE].fill(0);
        let missed =
            (0..PAGES).filter(|page| ram[page * PAGE..][..PAGE] != recorded.ram[page * PAGE..][..PAGE]).count();
        let source = FakeRam::new(ram.clone());
        // Pages are repaired from a RAM that here is not what QEMU sent.
        let (outcome, target) = without_repairs(|| {
            let target = FakeRam::new(vec![0; PAGES * PAGE]);
            let outcome = carry_from(&recorded, true, (Some(&source), misses), Some(&target), (None, None));
            assert_eq!(outcome.source.failed(), None);
            (outcome, target)
        });
        let counts = outcome.source.counts();
        let (is_like, sent) = if misses == DirtyTracking::Exact { (&recorded.ram, 0) } else { (&ram, missed as u64) };
        assert!(differing(&target, is_like).is_empty(), "{misses:?}");
        assert_eq!((counts.missed_pages, counts.repaired_pages), (sent, 0), "{misses:?}");
        assert_same(&outcome.got, &recorded.rest);
    }
}

#[test]
fn what_cannot_be_compared_is_left_to_qemu_and_told() {
    let may_miss = "and without KVM QEMU may lose sight of what the guest writes there";
    let other = FakeRam::new(vec![0; PAGES * PAGE]);
    let hidden = FakeRam { is_hidden: true, ..other.clone() };
    let (reached, hidden, unknown) = (Some(&other), Some(&hidden), None);
    let out_of_reach = "the agent of this host cannot reach it: QEMU has no RAM block 'pc.ram' here";
    for (channels, source, misses, target, why) in [
        (0, unknown, DirtyTracking::MissesAllBlocks, true, "the agent of this host does not know where QEMU has it"),
        (4, hidden, DirtyTracking::MissesUnalignedBlocks, true, out_of_reach),
        (4, reached, DirtyTracking::MissesAllBlocks, false, "its pages go through QEMU"),
    ] {
        let recorded = recorded(channels);
        let ram = FakeRam::new(vec![0; PAGES * PAGE]);
        let outcome = carry_from(&recorded, true, (source, misses), target.then_some(&ram), (None, None));
        assert_eq!((outcome.source.failed(), outcome.source.is_direct()), (None, Some(false)));
        let sent: Vec<Vec<u8>> = [recorded.main.clone()].into_iter().chain(recorded.channels.clone()).collect();
        assert_same(&outcome.got, &sent);
        assert_eq!(outcome.source.counts().compared_us, None);
        let told = outcome.source.not_compared();
        assert!(told.starts_with(&format!("RAM block 'pc.ram' is not compared, {may_miss}: {why}")), "{told}");
        assert_eq!(outcome.source.why_not_direct(), if target { &told[..] } else { "" });
    }
    // Where QEMU misses nothing, the source need not reach the RAM.
    let recorded = recorded(4);
    let ram = FakeRam::new(vec![0; PAGES * PAGE]);
    let outcome = carry_from(&recorded, true, (hidden, DirtyTracking::Exact), Some(&ram), (None, None));
    assert_eq!((outcome.source.is_direct(), &outcome.source.not_compared()[..]), (Some(true), ""));
    assert!(differing(&ram, &recorded.ram).is_empty());
}

/// Carries a guest there and back. Returns what each host has kept by then, and how many bytes went.
fn left(recorded: &Recorded, ram: &FakeRam, (there, here): (u64, u64)) -> ((Option<KeptMarks>, Option<KeptRam>), u64) {
    let target = FakeRam::new(vec![0; PAGES * PAGE]);
    let outcome = carry(recorded, false, Some(ram), Some(&target));
    assert_eq!(outcome.source.failed(), None);
    assert!(!outcome.source.builds_on_kept());
    let kept = (outcome.target.take_marks(there), outcome.source.ram_to_keep(here).unwrap());
    assert!(outcome.target.take_marks(there).is_none(), "once");
    assert_eq!(kept.1.as_ref().map(KeptRam::bytes), Some((PAGES * PAGE) as u64));
    (kept, outcome.source.counts().wire_bytes())
}

#[test]
fn a_guest_that_comes_back_finds_what_was_kept() {
    for (channels, packs) in [(0, false), (0, true), (4, false)] {
        let recorded = recorded(channels);
        let source = FakeRam::new(recorded.ram.clone());
        let (outcome, (target, bytes)) = without_repairs(|| {
            let (kept, bytes) = left(&recorded, &source, (7, 7));
            let target = FakeRam::new(vec![0; PAGES * PAGE]);
            let outcome = carry_back(&recorded, packs, Some(&source), Some(&target), kept);
            assert_eq!(outcome.source.failed(), None);
            assert!(outcome.source.builds_on_kept());
            (outcome, (target, bytes))
        });
        assert!(differing(&target, &recorded.ram).is_empty());
        assert_same(&outcome.got, &recorded.rest);
        let counts = outcome.source.counts();
        assert!(counts.repaired_pages == 0 && counts.wire_bytes() * 3 < bytes * 2, "{counts:?} of {bytes}");
        // The guest may go there and back again.
        assert!(outcome.target.take_marks(8).is_some() && outcome.source.ram_to_keep(8).unwrap().is_some());
    }
}

#[test]
fn what_was_kept_and_is_damaged_is_sent_again() {
    // The guest writes to some pages, or to all.
    for (channels, every) in [(0, 100), (2, 100), (2, 1)] {
        let recorded = recorded(channels);
        let kept_ram = FakeRam::new(recorded.ram.clone());
        let (kept, _) = left(&recorded, &kept_ram, (7, 7));
        for (nth, page) in kept_ram.content().chunks(PAGE).enumerate().skip(1).step_by(every) {
            kept_ram.file.write_all_at(&[page[99] ^ 1], (nth * PAGE + 99) as u64).unwrap();
        }
        let (source, target) = (FakeRam::new(recorded.ram.clone()), FakeRam::new(vec![0; PAGES * PAGE]));
        let outcome = carry_back(&recorded, true, Some(&source), Some(&target), kept);
        assert_eq!(outcome.source.failed(), None);
        assert!(outcome.source.builds_on_kept());
        assert!(differing(&target, &recorded.ram).is_empty());
        assert_same(&outcome.got, &recorded.rest);
        assert!(outcome.source.counts().repaired_pages > 0);
    }
}

#[test]
fn what_was_kept_of_anything_else_is_not_used() {
    let recorded = recorded(2);
    // This guest has a block of another size.
    let mut other = rounds(2, 3);
    let vga = b"\x03vga".iter().copied().chain((PAGE as u64).to_be_bytes()).collect::<Vec<_>>();
    let total = word((PAGES * PAGE + PAGE) as u64 | 0x004);
    for bytes in [&mut other.main, &mut other.rest[0]] {
        for (old, new) in [(&vga, 2 * PAGE as u64), (&total, (PAGES * PAGE + 2 * PAGE) as u64 | 0x004)] {
            let at = bytes.windows(old.len()).position(|bytes| bytes == &old[..]).unwrap() + old.len();
            bytes[at - 8..at].copy_from_slice(&new.to_be_bytes());
        }
    }
    let source = FakeRam::new(recorded.ram.clone());
    // The cases: another trip, only one end has it, another guest.
    for (nth, back) in [&recorded, &recorded, &recorded, &other].into_iter().enumerate() {
        let (mut kept, _) = left(&recorded, &source, if nth == 0 { (7, 8) } else { (7, 7) });
        kept.0 = kept.0.filter(|_| nth != 1);
        kept.1 = kept.1.filter(|_| nth != 2);
        let target = FakeRam::new(vec![0; PAGES * PAGE]);
        let outcome = carry_back(back, false, Some(&source), Some(&target), kept);
        assert_eq!(outcome.source.failed(), None);
        assert!(!outcome.source.builds_on_kept(), "{nth}");
        assert!(differing(&target, &recorded.ram).is_empty());
        assert_same(&outcome.got, &back.rest);
    }
}

fn differing(ram: &FakeRam, expected: &[u8]) -> Vec<usize> {
    let ram = ram.content();
    (0..PAGES).filter(|page| ram[page * PAGE..][..PAGE] != expected[page * PAGE..][..PAGE]).collect()
}

#[test]
fn what_differs_is_sent_again_from_the_guests_ram() {
    for channels in [0, 2] {
        let recorded = recorded(channels);
        let (source, target) = (FakeRam::new(recorded.ram.clone()), FakeRam::new(vec![0; PAGES * PAGE]));
        target.wrong.store(3, Ordering::SeqCst);
        let outcome = carry(&recorded, true, Some(&source), Some(&target));
        assert_eq!(outcome.source.failed(), None);
        assert!(differing(&target, &recorded.ram).is_empty());
        assert!(outcome.source.counts().repaired_pages > 0);
        assert!(outcome.got[0].ends_with(DEVICES));
    }
}

#[test]
fn what_differs_and_cannot_be_mended_never_runs() {
    let recorded = recorded(2);
    // Nothing that is written at the target is right. The guest's RAM cannot be read at the source, or can.
    for readable in [false, true] {
        let (source, target) = (FakeRam::new(recorded.ram.clone()), FakeRam::new(vec![0; PAGES * PAGE]));
        target.wrong.store(u64::MAX, Ordering::SeqCst);
        let outcome = carry(&recorded, true, readable.then_some(&source), Some(&target));
        let why = outcome.source.failed().expect("it failed");
        assert!(why.contains("differs"), "{why}");
        assert!(!outcome.got[0].ends_with(DEVICES), "QEMU got no device's state");
    }
}

#[test]
fn a_guest_whose_qemu_has_its_ram_elsewhere_never_runs() {
    let recorded = recorded(2);
    let (source, mut target) = (FakeRam::new(recorded.ram.clone()), FakeRam::new(vec![0; PAGES * PAGE]));
    target.elsewhere = true;
    let outcome = carry(&recorded, true, Some(&source), Some(&target));
    assert!(!outcome.got[0].ends_with(DEVICES), "QEMU got no device's state");
}

#[test]
fn a_target_that_is_short_of_ram_gets_the_pages_through_qemu() {
    let recorded = recorded(2);
    let short = FakeRam::new(vec![0; (PAGES - 1) * PAGE]);
    let outcome = carry(&recorded, true, None, Some(&short));
    assert_eq!(outcome.source.is_direct(), Some(false));
    let (there, here) = (PAGES * PAGE, (PAGES - 1) * PAGE);
    let why = format!("block 'pc.ram' has {there} bytes at the source, {here} at the target");
    assert_eq!(outcome.source.why_not_direct(), why);
    let sent: Vec<Vec<u8>> = [recorded.main.clone()].into_iter().chain(recorded.channels.clone()).collect();
    assert_same(&outcome.got, &sent);
}

#[test]
fn what_is_understood_too_late_for_direct_placement_goes_through_qemu_the_next_time() {
    for channels in [0, 2] {
        let recorded = rounds(channels, 1);
        let ram = FakeRam::new(vec![0; PAGES * PAGE]);
        let failed = carry(&recorded, true, None, Some(&ram));
        let why = failed.source.direct_placement_failure().expect("pages were placed, and then came something else");
        assert!(why.contains("does not know"), "{why}");
        assert!(failed.source.failed().is_some_and(|failed| failed.contains(&why)), "{:?}", failed.source.failed());
        assert!(!failed.got[0].ends_with(DEVICES), "QEMU got no device's state");

        let outcome = carry(&recorded, true, None, None);
        assert_eq!((outcome.source.direct_placement_failure(), outcome.source.failed()), (None, None));
        let sent: Vec<Vec<u8>> = [recorded.main.clone()].into_iter().chain(recorded.channels.clone()).collect();
        assert_same(&outcome.got, &sent);
    }
}
