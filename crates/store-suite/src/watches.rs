//! Watching.

use std::time::{Duration, Instant};

use skein_store::{Operation, Prefix, Revision, Watch, WatchError};

use crate::subject::{Subject, WITHIN, changes, done, key, prefix, put};

fn next(watch: &mut dyn Watch) -> (Revision, String) {
    let batch = watch.next(WITHIN).expect("nothing is forgotten").expect("something has changed");
    (batch.revision, changes(&batch))
}

fn is_quiet(watch: &mut dyn Watch) -> bool {
    watch.next(Duration::from_millis(100)).expect("nothing is forgotten").is_none()
}

pub(crate) fn a_watch_misses_nothing(subject: &Subject<'_>) {
    let store = (subject.open)();
    let start = done(&*store, &[put("z", "")]);
    let mut all = store.watch(&Prefix::all(), start, WITHIN).expect("nothing is forgotten");
    let first = done(&*store, &[put("vm/a", "1"), put("host/a", "1"), put("host/b", "1")]);
    let second = done(&*store, &[put("vm/b", "1")]);
    let third =
        done(&*store, &[Operation::DeletePrefix(prefix("host/")), Operation::Delete(key("vm/b")), put("vm/a", "2")]);
    assert_eq!(next(&mut *all), (first, "host/a=1 host/b=1 vm/a=1".into()));
    assert_eq!(next(&mut *all), (second, "vm/b=1".into()));
    assert_eq!(next(&mut *all), (third, "host/a- host/b- vm/a=2 vm/b-".into()));
    // A watch that begins later sees what was in between, and only what is below its prefix.
    let mut hosts = store.watch(&prefix("host/"), start, WITHIN).expect("nothing is forgotten");
    assert_eq!(next(&mut *hosts), (first, "host/a=1 host/b=1".into()));
    assert_eq!(next(&mut *hosts), (third, "host/a- host/b-".into()));
    let mut later = store.watch(&prefix("host/"), first, WITHIN).expect("nothing is forgotten");
    assert_eq!(next(&mut *later), (third, "host/a- host/b-".into()));
    done(&*store, &[put("vm/c", "1")]);
    assert!(is_quiet(&mut *later) && is_quiet(&mut *hosts));
    let last = done(&*store, &[put("host/c", "1")]);
    assert_eq!((next(&mut *later), next(&mut *hosts)), ((last, "host/c=1".into()), (last, "host/c=1".into())));
}

pub(crate) fn a_watch_has_an_end_of_its_wait(subject: &Subject<'_>) {
    let store = (subject.open)();
    let start = done(&*store, &[put("a", "")]);
    let mut watch = store.watch(&Prefix::all(), start, WITHIN).expect("nothing is forgotten");
    let begin = Instant::now();
    assert!(watch.next(Duration::from_millis(300)).expect("nothing is forgotten").is_none());
    assert!(begin.elapsed() >= Duration::from_millis(290) && begin.elapsed() < WITHIN);
    // It is woken, and does not look only when its time is over.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            done(&*store, &[put("a", "1")]);
        });
        let begin = Instant::now();
        assert_eq!(next(&mut *watch).1, "a=1");
        assert!(begin.elapsed() < WITHIN / 2, "it was woken after {:?}", begin.elapsed());
    });
}

pub(crate) fn a_watch_after_what_is_forgotten_is_refused(subject: &Subject<'_>) {
    let store = (subject.open)();
    let start = done(&*store, &[put("a", "1")]);
    let deleted = done(&*store, &[Operation::Delete(key("a"))]);
    let last = done(&*store, &[put("b", "1")]);
    store.compact(deleted, WITHIN).expect("it has come");
    // A watch may be refused when it begins, or when it is asked.
    let refused = |after| match store.watch(&Prefix::all(), after, WITHIN).map(|mut watch| watch.next(WITHIN)) {
        Err(WatchError::Compacted { compacted }) | Ok(Err(WatchError::Compacted { compacted })) => compacted,
        other => panic!("{:?}", other.map(drop)),
    };
    assert_eq!(refused(start), deleted);
    assert!(refused(Revision(0)) >= deleted);
    let mut watch = store.watch(&Prefix::all(), deleted, WITHIN).expect("this is still there");
    assert_eq!(next(&mut *watch), (last, "b=1".into()));
}
