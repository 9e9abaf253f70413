//! Several at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use skein_store::{Compare, Operation, Outcome, Prefix, Range, Store, Transaction};

use crate::subject::{Subject, WITHIN, all, commit, done, entry, key, prefix, put, value};

/// How many threads count, and how far each.
const THREADS: u64 = 4;
const COUNTS: u64 = 15;

pub(crate) fn threads_count_together(subject: &Subject<'_>) {
    let store = (subject.open)();
    done(&*store, &[put("count", "0")]);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..COUNTS).for_each(|_| count(&*store)));
        }
    });
    assert_eq!(all(&*store), [format!("count={}", THREADS * COUNTS)]);
    assert_eq!(entry(&*store, "count").map(|entry| entry.version), Some(1 + THREADS * COUNTS));
}

/// Adds one, however often another was faster.
fn count(store: &dyn Store) {
    loop {
        let found = entry(store, "count").expect("it was put");
        let count: u64 = std::str::from_utf8(found.value.as_bytes()).expect("it is text").parse().expect("a number");
        let add = Transaction::new()
            .when(Compare::Modified(key("count"), found.modified))
            .then(put("count", &(count + 1).to_string()));
        if let Outcome::Committed { .. } = commit(store, &add) {
            return;
        }
    }
}

pub(crate) fn nobody_sees_a_part_of_a_transaction(subject: &Subject<'_>) {
    const ROUNDS: u64 = 40;
    let store = (subject.open)();
    let keys: Vec<String> = (0..7).map(|n| format!("k/{n}")).collect();
    let puts = |text: &str| keys.iter().map(|path| put(path, text)).collect::<Vec<_>>();
    let start = done(&*store, &puts("0"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut pages = 0;
            while !over.load(Ordering::Relaxed) || pages == 0 {
                // Pages of two entries each, and more commits in between.
                let mut values = Vec::new();
                for page in skein_store::Pages::new(&*store, Range::below(prefix("k/")).limit(2), WITHIN) {
                    values.extend(page.expect("it can be read").entries.into_iter().map(|entry| entry.value));
                    pages += 1;
                }
                assert!(values.is_empty() || values.len() == keys.len(), "{values:?}");
                assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
            }
        });
        let watch = scope.spawn(|| {
            let mut watch = store.watch(&Prefix::all(), start, WITHIN).expect("nothing is forgotten");
            let mut before = start;
            for round in 1..=ROUNDS {
                let batch = watch.next(WITHIN).expect("nothing is forgotten").expect("there are more rounds");
                assert!(batch.revision > before && batch.events.len() == keys.len(), "{batch:?}");
                before = batch.revision;
                let text = if round % 5 == 0 { None } else { Some(value(&round.to_string())) };
                let is_round = |event: &skein_store::WatchEvent| match &event.change {
                    skein_store::Change::Put(entry) => Some(&entry.value) == text.as_ref(),
                    skein_store::Change::Deleted => text.is_none(),
                };
                assert!(batch.events.iter().all(is_round), "{batch:?}");
            }
            assert!(watch.next(Duration::from_millis(50)).expect("nothing is forgotten").is_none());
        });
        for round in 1..=ROUNDS {
            let operations =
                if round % 5 == 0 { vec![Operation::DeletePrefix(prefix("k/"))] } else { puts(&round.to_string()) };
            done(&*store, &operations);
        }
        over.store(true, Ordering::Relaxed);
        for thread in [read, watch] {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}
