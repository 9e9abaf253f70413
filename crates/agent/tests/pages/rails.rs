//! Tests pages that rails write straight into the target's RAM, over libfabric's provider for TCP.

use std::os::unix::fs::FileExt;
use std::sync::{Arc, Once};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skein_agent::{HostRails, Rails};
use skein_dataplane::source::{DirtyTracking, SourcePages};
use skein_fabric::fake::{FakeAbilities, FakeFabric, FakeRails};
use skein_fabric::{Completion, RemoteMemory, test_process};

use super::world::{SECOND, World};
use super::{FakeRam, Outcome, PAGE, PAGES, assert_same, carry_over, differing, recorded};

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

/// A migration over a fabric in memory.
fn carry_over_fake(
    abilities: FakeAbilities,
    channels: usize,
    prepare: impl Fn(&FakeFabric),
    disturb: impl Fn(&FakeFabric) + Sync,
) -> (Outcome, bool) {
    let fabric = FakeFabric::new(abilities, 7);
    prepare(&fabric);
    let recorded = recorded(channels);
    let (source, target) = (FakeRam::new(recorded.ram.clone()), FakeRam::new(vec![0; PAGES * PAGE]));
    target.file.write_all_at(b"leftover", 0).unwrap();
    let world = world_over(FakeRails(fabric.clone()));
    let is_disturbed = Once::new();
    let paces = |pages: &SourcePages, nth: usize| {
        // Rails that never write are not waited for to the end.
        pace(pages, if fabric.tells_wrong() && nth > 12 { 0 } else { nth });
        if pages.counts().written_pages > 0 {
            is_disturbed.call_once(|| disturb(&fabric));
        }
    };
    let sides = (Some(&source), DirtyTracking::Exact);
    let outcome = carry_over(&world, &recorded, false, sides, Some(&target), (None, None), &paces);
    let is_same = differing(&target, &recorded.ram).is_empty();
    if outcome.source.failed().is_none() {
        assert_same(&outcome.got, &recorded.rest);
    }
    (outcome, is_same)
}

#[test]
fn a_migration_that_is_not_to_use_rdma_does_not() {
    let recorded = recorded(4);
    let (source, target) = (FakeRam::new(recorded.ram.clone()), FakeRam::new(vec![0; PAGES * PAGE]));
    target.file.write_all_at(b"leftover", 0).unwrap();
    let world = World { may_use_rdma: false, ..world_over(FakeRails(FakeFabric::new(USUAL, 7))) };
    let slowly = |_: &SourcePages, nth: usize| thread::sleep(SECOND / if nth > 4 { 10 } else { 1000 });
    let sides = (Some(&source), DirtyTracking::Exact);
    let outcome = carry_over(&world, &recorded, false, sides, Some(&target), (None, None), &slowly);
    assert_eq!(outcome.source.failed(), None);
    assert!(differing(&target, &recorded.ram).is_empty());
    assert_eq!(outcome.source.counts().written_pages, 0);
}

const USUAL: FakeAbilities = FakeAbilities { immediates: true, ordered: true };

/// EFA keeps no order. iWARP's writes have no immediate data, and are said to be done before they are there: no page is
/// written so.
#[test]
fn rails_write_in_any_order_what_is_known_to_be_there() {
    for (channels, immediates, ordered) in [(0, true, false), (4, true, false), (4, false, true), (4, false, false)] {
        let (outcome, is_same) = carry_over_fake(FakeAbilities { immediates, ordered }, channels, |_| {}, |_| {});
        assert_eq!(outcome.source.failed(), None);
        assert!(is_same, "immediates {immediates}, ordered {ordered}");
        let written = outcome.source.counts().written_pages;
        assert!(if immediates { written > 50 } else { written == 0 }, "{:?}", outcome.source.counts());
    }
}

/// A peer that names wrong keys or places that are not its guest's: nothing is written there, and the pages go over
/// connections.
#[test]
fn what_cannot_be_written_where_a_peer_says_goes_over_connections() {
    type Wrong = fn(RemoteMemory) -> RemoteMemory;
    let wrong: [(&str, Wrong); 3] = [
        ("a wrong key", |at| RemoteMemory { key: at.key ^ 1, ..at }),
        ("behind the guest's memory", |at| RemoteMemory { address: (PAGES * PAGE) as u64 - 100, ..at }),
        ("nowhere", |at| RemoteMemory { address: u64::MAX - 100, ..at }),
    ];
    for (what, wrong) in wrong {
        let (outcome, is_same) = carry_over_fake(USUAL, 4, |fabric| fabric.tell_wrong(PAGES * PAGE, wrong), |_| {});
        assert_eq!((outcome.source.failed(), is_same), (None, true), "{what}");
        assert_eq!(outcome.source.counts().written_pages, 0, "{what}");
    }
}

/// A peer that has pages written to other places of its guest's memory than theirs harms its own guest alone, and
/// that is found.
#[test]
fn what_is_written_to_other_places_is_found() {
    let shifted = |at: RemoteMemory| RemoteMemory { address: at.address + PAGE as u64, ..at };
    let (outcome, is_same) = carry_over_fake(USUAL, 4, |fabric| fabric.tell_wrong(PAGES * PAGE, shifted), |_| {});
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
        let (outcome, is_same) = carry_over_fake(USUAL, 4, |_| {}, disturb);
        assert_eq!((outcome.source.failed(), is_same), (None, true), "{what}");
    }
}
