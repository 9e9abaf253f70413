//! Tests pages that rails write straight into the target's RAM, over libfabric's provider for TCP.

use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Once};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skein_agent::{HostRails, Rails};
use skein_dataplane::source::{DirtyTracking, SourcePages};
use skein_fabric::fake::{FakeAbilities, FakeFabric, FakeRails};
use skein_fabric::{Completion, FabricError, RemoteMemory, SharedEndpoint, test_process};
use skein_qemu_stream::main_channel::{Entry, entry};

use super::world::{SECOND, World};
use super::{DEVICES, FakeRam, Outcome, PAGE, PAGES, Recorded, assert_same, carry_over, differing, recorded, word};

/// Is no test, but what the processes of rails are.
#[test]
fn a_role() {
    test_process::serve_if_asked();
}

/// Returns a world whose hosts have rails over TCP, and trust them. The processes of rails have a mark.
fn world_with_rails(mark: &str) -> World {
    let words = test_process::words(module_path!(), mark);
    world_over(HostRails::of_providers(words, vec!["tcp;ofi_rxm".into()]).with_plaintext())
}

fn world_over(rails: impl Rails + 'static) -> World {
    World { rails: Some(Arc::new(rails)), ..World::new() }
}

/// Has QEMU write slowly until a rail writes, once a session has carried enough for rails: the source asks for news as
/// pages come. The longer rails take to be ready, the slower QEMU writes.
fn pace(source: &SourcePages, nth: usize) {
    if nth > 4 && source.counts().written_pages == 0 {
        thread::sleep((nth as u32 * SECOND / 10).min(3 * SECOND));
    }
}

#[test]
fn rails_write_pages_that_are_new_and_the_rest_goes_as_before() {
    for channels in [0, 4] {
        let recorded = recorded(channels);
        let (source, target) = (FakeRam::new(recorded.ram.clone()), FakeRam::new(vec![0; PAGES * PAGE]));
        target.file.write_all_at(b"leftover", 0).unwrap();
        let sides = (Some(&source), DirtyTracking::Exact);
        let world = world_with_rails("ready");
        let outcome = carry_over(&world, &recorded, false, sides, Some(&target), (None, None), &pace);
        assert_eq!(outcome.source.failed(), None);
        assert!(differing(&target, &recorded.ram).is_empty());
        assert_same(&outcome.got, &recorded.rest);
        let counts = outcome.source.counts();
        assert!(counts.written_pages > 50, "{counts:?}");
        let whole = counts.zero_pages + counts.stored_pages + counts.written_pages;
        assert_eq!(whole + counts.delta_pages + counts.unchanged_pages, counts.pages, "{counts:?}");
    }
}

/// A library that crashes or hangs in the middle: what it had goes again once nothing of it can arrive any more.
#[test]
fn what_rails_that_die_or_hang_had_goes_over_connections() {
    for (signal, mark) in [(Signal::SIGKILL, "killed"), (Signal::SIGSTOP, "stopped")] {
        let recorded = recorded(4);
        let (source, target) = (FakeRam::new(recorded.ram.clone()), FakeRam::new(vec![0; PAGES * PAGE]));
        target.file.write_all_at(b"leftover", 0).unwrap();
        let sides = (Some(&source), DirtyTracking::Exact);
        let world = world_with_rails(mark);
        let is_done = Once::new();
        let break_off = |pages: &SourcePages, nth: usize| {
            pace(pages, nth);
            if pages.counts().written_pages > 0 {
                is_done.call_once(|| {
                    test_process::rails(mark).iter().for_each(|rail| kill(Pid::from_raw(*rail), signal).unwrap())
                });
            }
        };
        let outcome = carry_over(&world, &recorded, false, sides, Some(&target), (None, None), &break_off);
        assert_eq!(outcome.source.failed(), None, "{mark}");
        assert!(is_done.is_completed(), "{mark}");
        assert!(differing(&target, &recorded.ram).is_empty(), "{mark}");
        assert_same(&outcome.got, &recorded.rest);
    }
}

const USUAL: FakeAbilities = FakeAbilities { immediates: true, ordered: true };

/// Rails over a fabric in memory, whose ends are counted: those of both hosts together.
#[derive(Clone, Debug)]
struct CountedRails {
    rails: FakeRails,
    opened: Arc<AtomicUsize>,
    /// The end of a rail with which the fabric comes to its limit: it registers one region more.
    limited_from: Option<usize>,
}

impl CountedRails {
    fn new(limited_from: Option<usize>) -> CountedRails {
        CountedRails { rails: FakeRails(FakeFabric::new(USUAL, 7)), opened: Arc::default(), limited_from }
    }

    fn opened(&self) -> usize {
        self.opened.load(SeqCst)
    }
}

impl Rails for CountedRails {
    fn endpoint(&self, at: IpAddr) -> Result<Option<SharedEndpoint>, FabricError> {
        let nth = self.opened.fetch_add(1, SeqCst) + 1;
        if self.limited_from == Some(nth) {
            self.rails.0.limit_registrations(1);
        }
        self.rails.endpoint(at)
    }

    fn allows_plaintext(&self) -> bool {
        self.rails.allows_plaintext()
    }

    fn bars(&self, nic: &str, has_device: &dyn Fn() -> bool) -> bool {
        self.rails.bars(nic, has_device)
    }
}

/// A migration over a fabric in memory. `paces` as for [`carry_over`].
fn carry_over_fabric(
    fabric: &FakeFabric,
    channels: usize,
    paces: &(dyn Fn(&SourcePages, usize) + Sync),
) -> (Outcome, bool) {
    let recorded = recorded(channels);
    let (source, target) = (FakeRam::new(recorded.ram.clone()), FakeRam::new(vec![0; PAGES * PAGE]));
    target.file.write_all_at(b"leftover", 0).unwrap();
    let world = world_over(FakeRails(fabric.clone()));
    let sides = (Some(&source), DirtyTracking::Exact);
    let outcome = carry_over(&world, &recorded, false, sides, Some(&target), (None, None), paces);
    let is_same = differing(&target, &recorded.ram).is_empty();
    if outcome.source.failed().is_none() {
        assert_same(&outcome.got, &recorded.rest);
    }
    (outcome, is_same)
}

/// The same, over a fabric that is disturbed once rails write.
fn carry_over_disturbed(
    abilities: FakeAbilities,
    channels: usize,
    disturb: impl Fn(&FakeFabric) + Sync,
) -> (Outcome, bool) {
    let (fabric, is_disturbed) = (FakeFabric::new(abilities, 7), Once::new());
    let paces = |pages: &SourcePages, nth: usize| {
        pace(pages, nth);
        if pages.counts().written_pages > 0 {
            is_disturbed.call_once(|| disturb(&fabric));
        }
    };
    carry_over_fabric(&fabric, channels, &paces)
}

#[test]
fn a_migration_that_is_not_to_use_rdma_does_not() {
    for may_use_rdma in [false, true] {
        let recorded = recorded(4);
        let (source, target) = (FakeRam::new(recorded.ram.clone()), FakeRam::new(vec![0; PAGES * PAGE]));
        target.file.write_all_at(b"leftover", 0).unwrap();
        let (rails, opened) = (CountedRails::new(None), AtomicUsize::new(0));
        let world = World { may_use_rdma, ..world_over(rails.clone()) };
        let paces = |pages: &SourcePages, nth: usize| {
            match may_use_rdma {
                true => pace(pages, nth),
                false => thread::sleep(SECOND / if nth > 4 { 10 } else { 1000 }),
            }
            // When the migration is over, the session may come to RDMA: it has carried enough.
            opened.fetch_max(rails.opened(), SeqCst);
        };
        let sides = (Some(&source), DirtyTracking::Exact);
        let outcome = carry_over(&world, &recorded, false, sides, Some(&target), (None, None), &paces);
        assert_eq!(outcome.source.failed(), None);
        assert!(differing(&target, &recorded.ram).is_empty());
        // Neither pages nor any connection of the session went over a rail, or both.
        let uses = (outcome.source.counts().written_pages > 0, opened.load(SeqCst) > 0);
        assert_eq!(uses, (may_use_rdma, may_use_rdma));
    }
}

/// How many pages a guest has whose RAM is a slice of 4096 pages, and one that is not whole.
const LARGE_PAGES: usize = 4096 + 500;

/// Returns a round over the RAM of such a guest, on the main channel alone. No page is zero, and none is sent twice.
fn large() -> Recorded {
    let content = |page: usize| format!("page {page}; ").into_bytes().into_iter().cycle().take(PAGE);
    let bytes = (LARGE_PAGES * PAGE) as u64;
    let begin = [
        &b"QEVM\0\0\0\x03\x07\0\0\0\x0bpc-q35-10.0\x01\0\0\0\x01\x03ram\0\0\0\0\0\0\0\x04"[..],
        &word(bytes | 0x004),
        b"\x06pc.ram",
        &bytes.to_be_bytes(),
        &word(0x010),
        b"\x7e\0\0\0\x01",
    ]
    .concat();
    let (mut main, mut rest) = (begin.clone(), begin);
    for (section, pages) in [(2, 0..LARGE_PAGES - 100), (3, LARGE_PAGES - 100..LARGE_PAGES)] {
        let head = [section, 0_u8, 0, 0, 1];
        main.extend(head);
        let first = pages.start;
        for page in pages {
            let name = (page == first).then_some("pc.ram");
            main.extend(entry(Entry::Page, name, (page * PAGE) as u64).unwrap());
            main.extend(content(page));
        }
        let end = [&word(0x010)[..], b"\x7e\0\0\0\x01"].concat();
        main.extend(&end);
        rest.extend([&head[..], &end].concat());
    }
    main.extend(DEVICES);
    rest.extend(DEVICES);
    let ram = (0..LARGE_PAGES).flat_map(content).collect();
    Recorded { main, channels: Vec::new(), ram, pages: LARGE_PAGES as u64, zero_pages: 0, rest: vec![rest] }
}

/// A host on which a process may lock little memory: its NIC writes what is registered, and no more.
#[test]
fn what_the_target_may_not_register_goes_over_connections() {
    let recorded = large();
    let (source, target) = (FakeRam::new(recorded.ram.clone()), FakeRam::new(vec![0; LARGE_PAGES * PAGE]));
    target.file.write_all_at(b"leftover", 0).unwrap();
    // The session's connection has two ends, the source has one, and the target opens its own after that. The first
    // slice is all that it registers.
    let rails = CountedRails::new(Some(4));
    let world = world_over(rails.clone());
    let paces = |pages: &SourcePages, nth: usize| {
        if nth > 10 && pages.counts().written_pages == 0 {
            thread::sleep((nth as u32 * SECOND / 50).min(SECOND));
        }
    };
    let sides = (Some(&source), DirtyTracking::Exact);
    let outcome = carry_over(&world, &recorded, false, sides, Some(&target), (None, None), &paces);
    assert_eq!(outcome.source.failed(), None);
    assert!(target.content() == recorded.ram);
    assert_same(&outcome.got, &recorded.rest);
    let counts = outcome.source.counts();
    assert!(counts.written_pages > 0 && counts.stored_pages >= 500, "{counts:?}");
    assert_eq!(rails.opened(), 4);
}

/// EFA keeps no order. iWARP's writes have no immediate data, and are said to be done before they are there: no page is
/// written so.
#[test]
fn rails_write_in_any_order_what_is_known_to_be_there() {
    for (channels, immediates, ordered) in [(0, true, false), (4, true, false), (4, false, true), (4, false, false)] {
        let (outcome, is_same) = carry_over_disturbed(FakeAbilities { immediates, ordered }, channels, |_| {});
        assert_eq!(outcome.source.failed(), None);
        assert!(is_same, "immediates {immediates}, ordered {ordered}");
        let written = outcome.source.counts().written_pages;
        assert!(if immediates { written > 50 } else { written == 0 }, "{:?}", outcome.source.counts());
    }
}

/// Returns a fabric that tells something wrong of the guest's memory at the target.
fn fabric_that_tells(wrong: fn(RemoteMemory) -> RemoteMemory) -> FakeFabric {
    let fabric = FakeFabric::new(USUAL, 7);
    fabric.tell_wrong(PAGES * PAGE, wrong);
    fabric
}

/// A peer that names wrong keys or places that are not its guest's: nothing is written there, and the pages go over
/// connections.
#[test]
fn what_cannot_be_written_where_a_peer_says_goes_over_connections() {
    type Wrong = fn(RemoteMemory) -> RemoteMemory;
    let wrong: [(&str, Wrong, bool); 3] = [
        ("a wrong key", |at| RemoteMemory { key: at.key ^ 1, ..at }, true),
        ("behind the guest's memory", |at| RemoteMemory { address: (PAGES * PAGE) as u64 - 100, ..at }, true),
        // The source does not even try that.
        ("nowhere", |at| RemoteMemory { address: u64::MAX - 100, ..at }, false),
    ];
    for (what, wrong, is_tried) in wrong {
        let fabric = fabric_that_tells(wrong);
        let paces = |pages: &SourcePages, nth: usize| {
            // Until a write was refused. Rails that never write are not waited for to the end.
            let is_over = if is_tried { fabric.refused_writes() > 0 } else { nth > 12 };
            pace(pages, if is_over { 0 } else { nth });
        };
        let (outcome, is_same) = carry_over_fabric(&fabric, 4, &paces);
        assert_eq!((outcome.source.failed(), is_same), (None, true), "{what}");
        assert_eq!(outcome.source.counts().written_pages, 0, "{what}");
        assert_eq!(fabric.refused_writes() > 0, is_tried, "{what}");
    }
}

/// A peer that has pages written to other places of its guest's memory than theirs harms its own guest alone, and
/// that is found.
#[test]
fn what_is_written_to_other_places_is_found() {
    let fabric = fabric_that_tells(|at| RemoteMemory { address: at.address + PAGE as u64, ..at });
    let (outcome, is_same) = carry_over_fabric(&fabric, 4, &pace);
    assert!(is_same || outcome.source.failed().is_some(), "other memory, and nobody knows");
}

/// A provider whose completions never come, or come for what was not begun, and a peer that repeats itself.
#[test]
fn a_provider_that_misbehaves_is_left_and_its_pages_go_over_connections() {
    type Disturb = fn(&FakeFabric);
    let disturbances: [(&str, Disturb); 4] = [
        ("completions never come", FakeFabric::get_stuck),
        ("the peer is gone", FakeFabric::cut),
        ("a completion of nothing", |fabric| fabric.lie(&Completion::Done { token: 999_999 })),
        ("an immediate again", |fabric| fabric.lie(&Completion::Written { token: None, immediate: 1 })),
    ];
    for (what, disturb) in disturbances {
        let (outcome, is_same) = carry_over_disturbed(USUAL, 4, disturb);
        assert_eq!((outcome.source.failed(), is_same), (None, true), "{what}");
    }
}
