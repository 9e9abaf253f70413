//! Tests pages that rails write straight into the target's RAM, over libfabric's provider for TCP.

use std::ffi::OsString;
use std::os::unix::fs::FileExt;
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skein_agent::{HostRails, serve_rail};
use skein_dataplane::source::{DirtyTracking, SourcePages};

use super::world::{SECOND, World};
use super::{FakeRam, PAGE, PAGES, assert_same, carry_over, differing, recorded};

/// Names the variable that says that a test program is to be the process of a rail.
const ROLE: &str = "SKEIN_TEST_ROLE";

/// Is no test, but what the processes of rails are.
#[test]
fn a_role() {
    if std::env::var(ROLE).is_ok_and(|role| role.starts_with("rail")) {
        serve_rail().unwrap();
    }
}

/// Returns a world whose hosts have rails over TCP, and trust them. The processes of rails have a mark.
fn world_with_rails(mark: &str) -> World {
    let (program, role) = (format!("/proc/{}/exe", std::process::id()), format!("{ROLE}=rail{mark}"));
    let words: Vec<OsString> =
        ["env", &role, &program, "--exact", "rails::a_role", "--nocapture"].map(Into::into).into();
    let rails = HostRails::of_providers(words, vec!["tcp;ofi_rxm".into()]).with_plaintext();
    World { rails: Some(rails), ..World::new() }
}

/// Returns the processes of rails with a mark.
fn rail_processes(mark: &str) -> Vec<Pid> {
    let children = std::fs::read_dir("/proc/self/task").unwrap().flat_map(|task| {
        let children = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
        children.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>()
    });
    let role = format!("{ROLE}=rail{mark}");
    let is_marked = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == role.as_bytes())
    };
    children.filter(is_marked).map(Pid::from_raw).collect()
}

/// Has QEMU write slowly until a rail writes: the source asks for news as pages come.
fn pace(source: &SourcePages, nth: usize) {
    if nth > 0 && source.counts().written_pages == 0 {
        thread::sleep(if nth == 1 { 2 * SECOND } else { SECOND / 4 });
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
                is_done.call_once(|| rail_processes(mark).into_iter().for_each(|rail| kill(rail, signal).unwrap()));
            }
        };
        let outcome = carry_over(&world, &recorded, false, sides, Some(&target), (None, None), &break_off);
        assert_eq!(outcome.source.failed(), None, "{mark}");
        assert!(is_done.is_completed(), "{mark}");
        assert!(differing(&target, &recorded.ram).is_empty(), "{mark}");
        assert_same(&outcome.got, &recorded.rest);
    }
}
