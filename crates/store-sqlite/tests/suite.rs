//! The store does what all stores must, in a file and in memory, and what a store in plain memory does.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use skein_store::Store;
use skein_store_sqlite::{Clock, SqliteStore};
use skein_store_suite::{Subject, run, side_by_side};

/// A clock that stands still until it is moved.
#[derive(Default)]
struct VirtualClock {
    now_ms: Arc<AtomicU64>,
}

impl VirtualClock {
    fn clock(&self) -> Clock {
        let now_ms = self.now_ms.clone();
        Arc::new(move || Duration::from_millis(now_ms.load(Ordering::SeqCst)))
    }

    fn pass(&self, time: Duration) {
        self.now_ms.fetch_add(u64::try_from(time.as_millis()).expect("it is short"), Ordering::SeqCst);
    }
}

/// A folder in which each store has a file of its own.
struct Files {
    folder: tempfile::TempDir,
    last: AtomicUsize,
}

impl Files {
    fn new() -> Files {
        Files { folder: tempfile::tempdir().expect("there is a temporary folder"), last: AtomicUsize::new(0) }
    }

    fn last(&self) -> PathBuf {
        self.folder.path().join(format!("{}.sqlite", self.last.load(Ordering::SeqCst)))
    }

    fn next(&self) -> PathBuf {
        self.last.fetch_add(1, Ordering::SeqCst);
        self.last()
    }
}

fn open(path: &std::path::Path, clock: &VirtualClock) -> Box<dyn Store> {
    Box::new(SqliteStore::open_with(path, clock.clock()).unwrap_or_else(|error| panic!("{error}: {error:?}")))
}

#[test]
fn a_store_in_a_file_does_what_all_must() {
    let (files, clock) = (Files::new(), VirtualClock::default());
    run(&Subject { open: &|| open(&files.next(), &clock), pass: &|time| clock.pass(time) });
}

#[test]
fn a_store_in_memory_does_what_all_must() {
    let clock = VirtualClock::default();
    let open = || -> Box<dyn Store> { Box::new(SqliteStore::in_memory(clock.clock()).expect("there is memory")) };
    run(&Subject { open: &open, pass: &|time| clock.pass(time) });
}

#[test]
fn it_does_what_a_store_in_plain_memory_does_also_when_it_is_opened_again() {
    let (files, clock) = (Files::new(), VirtualClock::default());
    side_by_side::run(&side_by_side::Plan {
        subject: Subject { open: &|| open(&files.next(), &clock), pass: &|time| clock.pass(time) },
        reopen: Some(&|store| {
            drop(store);
            open(&files.last(), &clock)
        }),
        virtual_time: true,
        cases: 60,
        steps: 60,
    });
}
