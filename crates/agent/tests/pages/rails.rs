//! Tests pages that rails write straight into the target's RAM, over libfabric's provider for TCP.

use std::os::unix::fs::FileExt;
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skein_agent::HostRails;
use skein_dataplane::source::{DirtyTracking, SourcePages};
use skein_fabric::test_process;

use super::world::{SECOND, World};
use super::{FakeRam, PAGE, PAGES, assert_same, carry_over, differing, recorded};

/// Is no test, but what the processes of rails are.
#[test]
fn a_role() {
    test_process::serve_if_asked();
}

/// Returns a world whose hosts have rails over TCP, and trust them. The processes of rails have a mark.
fn world_with_rails(mark: &str) -> World {
    let words = test_process::words(module_path!(), mark);
    let rails = HostRails::of_providers(words, vec!["tcp;ofi_rxm".into()]).with_plaintext();
    World { rails: Some(rails), ..World::new() }
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
        let is_done = std::sync::Once::new();
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
