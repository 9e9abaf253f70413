use std::time::Duration;

use super::*;
use crate::key::Prefix;
use crate::watch::{Change, WatchBatch, WatchError};
use crate::{Value, range::PAGE_ENTRIES_MAX};

const START: Duration = Duration::ZERO;
const TTL: Duration = Duration::from_secs(10);

fn key(path: &str) -> Key {
    Key::new(path).expect("it is a key")
}

fn prefix(path: &str) -> Prefix {
    Prefix::new(path).expect("it is a prefix")
}

fn put(path: &str, text: &str) -> Operation {
    Operation::put(key(path), Value::small(text))
}

fn done(store: &mut MemoryStore, operations: &[Operation]) -> Revision {
    let transaction = Transaction { compares: Vec::new(), operations: operations.to_vec() };
    store.commit(&transaction).expect("it is done").committed().expect("nothing is compared")
}

fn paths(store: &MemoryStore, range: &Range) -> Vec<String> {
    let page = store.read(range).expect("it can be read");
    page.entries
        .iter()
        .map(|entry| format!("{}={}", entry.key, String::from_utf8_lossy(entry.value.as_bytes())))
        .collect()
}

fn batches(store: &MemoryStore, watch: &mut MemoryWatch) -> Vec<WatchBatch> {
    std::iter::from_fn(|| watch.next(store).expect("nothing is forgotten")).collect()
}

/// What became of keys, as `2: a b-`.
fn shown(batches: &[WatchBatch]) -> Vec<String> {
    let event =
        |event: &crate::WatchEvent| format!(" {}{}", event.key, if event.change == Change::Deleted { "-" } else { "" });
    batches
        .iter()
        .map(|batch| format!("{}:{}", batch.revision, batch.events.iter().map(event).collect::<String>()))
        .collect()
}

#[test]
fn a_page_is_of_one_revision_whatever_comes_between() {
    let mut store = MemoryStore::new();
    done(&mut store, &[put("vm/a", "1"), put("vm/b", "1"), put("vm/c", "1"), put("vms", "1"), put("u/z", "1")]);
    let range = Range::below(prefix("vm/")).limit(2);
    let page = store.read(&range).expect("it can be read");
    assert_eq!((page.entries.len(), page.more, page.revision), (2, true, Revision(2)));
    done(&mut store, &[put("vm/bb", "2"), put("vm/c", "2"), Operation::Delete(key("vm/a"))]);
    let second = range.next(&page).expect("there is more");
    assert_eq!(paths(&store, &second), ["vm/c=1"]);
    assert_eq!(second.next(&store.read(&second).expect("it can be read")), None);
    assert_eq!(paths(&store, &range.clone().limit(9)), ["vm/b=1", "vm/bb=2", "vm/c=2"]);
    assert_eq!(paths(&store, &Range::one(key("vm/a")).at(Revision(2))), ["vm/a=1"]);
    assert_eq!(paths(&store, &range.after(key("a"))), ["vm/b=1", "vm/bb=2"]);
}

#[test]
fn a_page_has_bounds() {
    let mut store = MemoryStore::new();
    for n in 0..PAGE_ENTRIES_MAX / 100 + 1 {
        let puts: Vec<_> = (0..100).map(|m| put(&format!("k/{n:03}{m:02}"), "")).collect();
        done(&mut store, &puts);
    }
    let page = store.read(&Range::below(prefix("k/")).limit(usize::MAX)).expect("it can be read");
    assert_eq!((page.entries.len(), page.more), (PAGE_ENTRIES_MAX, true));
    let page = store.read(&Range::below(prefix("k/")).limit(0)).expect("it can be read");
    assert_eq!((page.entries.len(), page.more), (1, true));
    for n in 0..4 {
        let large = Value::new(vec![0; crate::VALUE_BYTES_MAX]).expect("it is within the bound");
        done(&mut store, &[Operation::put(key(&format!("l/{n}")), large)]);
    }
    let page = store.read(&Range::below(prefix("l/"))).expect("it can be read");
    assert_eq!((page.entries.len(), page.more), (2, true));
}

#[test]
fn entries_count_their_versions_from_their_creation() {
    let mut store = MemoryStore::new();
    let figures = |store: &MemoryStore| {
        let page = store.read(&Range::one(key("a"))).expect("it can be read");
        page.entries.first().map(|entry| (entry.created.0, entry.modified.0, entry.version))
    };
    done(&mut store, &[put("a", "1")]);
    done(&mut store, &[put("a", "1")]);
    assert_eq!(figures(&store), Some((2, 3, 2)));
    done(&mut store, &[Operation::Delete(key("a"))]);
    assert_eq!(figures(&store), None);
    assert_eq!(done(&mut store, &[Operation::Delete(key("a"))]), Revision(4));
    done(&mut store, &[put("a", "1")]);
    assert_eq!(figures(&store), Some((5, 5, 1)));
}

#[test]
fn all_compares_hold_or_nothing_is_done() {
    let mut store = MemoryStore::new();
    done(&mut store, &[put("a", "1")]);
    let lease = store.grant(START, TTL).id;
    done(&mut store, &[Operation::put_leased(key("l"), Value::small("x"), lease)]);
    done(&mut store, &[put("a", "2")]);
    let hold = [
        Compare::Present(key("a")),
        Compare::Absent(key("b")),
        Compare::Created(key("a"), Revision(2)),
        Compare::Modified(key("a"), Revision(4)),
        Compare::Value(key("a"), Value::small("2")),
        Compare::Leased(key("l"), lease),
        Compare::Empty(prefix("a/")),
    ];
    let fail = [
        Compare::Present(key("b")),
        Compare::Absent(key("a")),
        Compare::Created(key("a"), Revision(4)),
        Compare::Modified(key("a"), Revision(2)),
        Compare::Modified(key("b"), Revision(0)),
        Compare::Value(key("a"), Value::small("1")),
        Compare::Value(key("b"), Value::small("")),
        Compare::Leased(key("a"), lease),
        Compare::Empty(Prefix::all()),
    ];
    for compare in &hold {
        assert!(
            store.clone().commit(&Transaction::new().when(compare.clone())).expect("it is done").committed().is_some()
        );
    }
    for compare in fail {
        let mut transaction = Transaction { compares: hold.to_vec(), operations: vec![put("n", "1")] };
        transaction.compares.insert(3, compare);
        assert_eq!(store.commit(&transaction).ok(), Some(Outcome::Conflict { failed: vec![3] }), "{transaction:?}");
    }
    assert_eq!(store.revision(), Revision(4));
}

#[test]
fn a_batch_is_a_whole_transaction() {
    let mut store = MemoryStore::new();
    let mut all = store.watch(&Prefix::all(), Revision(1)).expect("nothing is forgotten");
    let future = store.watch(&prefix("host/"), Revision(2)).expect_err("there is no such revision");
    assert!(matches!(future, WatchError::Store(StoreError::FutureRevision { .. })), "{future}");
    done(&mut store, &[put("vm/a", "1"), put("host/a", "1"), put("host/b", "1")]);
    done(&mut store, &[put("vm/b", "1")]);
    done(&mut store, &[Operation::DeletePrefix(prefix("host/")), Operation::Delete(key("host/a")), put("vm/a", "2")]);
    assert_eq!(shown(&batches(&store, &mut all)), ["2: host/a host/b vm/a", "3: vm/b", "4: host/a- host/b- vm/a"]);
    let mut later = store.watch(&prefix("host/"), Revision(2)).expect("nothing is forgotten");
    assert_eq!(shown(&batches(&store, &mut later)), ["4: host/a- host/b-"]);
    assert_eq!(batches(&store, &mut later), []);
    let past = store.watch(&prefix("host/"), Revision(0)).expect_err("no store has a revision 0");
    assert!(matches!(past, WatchError::Compacted { compacted: Revision(1) }));
}

#[test]
fn what_is_compacted_is_forgotten_and_all_else_stays() {
    let mut store = MemoryStore::new();
    done(&mut store, &[put("a", "1"), put("gone", "1")]);
    done(&mut store, &[put("a", "2"), put("b", "1")]);
    done(&mut store, &[Operation::Delete(key("gone"))]);
    done(&mut store, &[put("a", "3")]);
    let mut old = store.watch(&Prefix::all(), Revision(3)).expect("nothing is forgotten");
    let bytes = store.bytes();
    let dropped = store.compact(Revision(4)).expect("it has come");
    assert_eq!(dropped, [(key("a"), Revision(2)), (key("gone"), Revision(2)), (key("gone"), Revision(4))]);
    assert!(store.bytes() < bytes);
    assert!(matches!(old.next(&store), Err(WatchError::Compacted { compacted: Revision(4) })));
    let now = Range::below(Prefix::all());
    assert_eq!(paths(&store, &now), ["a=3", "b=1"]);
    assert_eq!(paths(&store, &now.clone().at(Revision(4))), ["a=2", "b=1"]);
    assert!(matches!(store.read(&now.clone().at(Revision(3))), Err(StoreError::Compacted { compacted: Revision(4) })));
    let mut watch = store.watch(&Prefix::all(), Revision(4)).expect("this is still there");
    assert_eq!(shown(&batches(&store, &mut watch)), ["5: a"]);
    assert!(matches!(store.compact(Revision(6)), Err(StoreError::FutureRevision { .. })));
    assert_eq!(store.compact(Revision(2)).ok(), Some(Vec::new()));
    assert_eq!(store.compacted(), Revision(4));
    store.compact(Revision(5)).expect("it has come");
    assert_eq!(paths(&store, &now), ["a=3", "b=1"]);
}

#[test]
fn keys_end_with_the_lease_that_they_were_put_with_last() {
    let mut store = MemoryStore::new();
    let [a, b] = [5, 9].map(|seconds| store.grant(START, Duration::from_secs(seconds)).id);
    let leased = |path: &str, lease| Operation::put_leased(key(path), Value::small("x"), lease);
    done(&mut store, &[leased("1", a), leased("2", a), leased("3", a), leased("4", b)]);
    done(&mut store, &[put("1", "stays"), leased("2", b)]);
    assert_eq!(store.next_end(), Some(Duration::from_secs(5)));
    assert_eq!(store.advance(Duration::from_secs(5)), [a]);
    let all = Range::below(Prefix::all());
    assert_eq!(paths(&store, &all), ["1=stays", "2=x", "4=x"]);
    assert!(matches!(store.keep_alive(Duration::from_secs(6), a), Err(StoreError::LeaseOver { .. })));
    assert_eq!(store.keep_alive(Duration::from_secs(6), b).ok(), Some(Duration::from_secs(9)));
    assert_eq!(store.advance(Duration::from_secs(14)), []);
    let mut watch = store.watch(&Prefix::all(), store.revision()).expect("nothing is forgotten");
    store.revoke(b).expect("it is not over");
    assert_eq!(shown(&batches(&store, &mut watch)), ["5: 2- 4-"]);
    assert!(matches!(store.revoke(b), Err(StoreError::LeaseOver { .. })));
    assert_eq!(paths(&store, &all), ["1=stays"]);
}

#[test]
fn a_lease_that_is_over_takes_no_keys() {
    let mut store = MemoryStore::new();
    let lease = store.grant(START, TTL).id;
    store.revoke(lease).expect("it is not over");
    assert_eq!(store.revision(), Revision(1));
    let transaction = Transaction::new().then(Operation::put_leased(key("a"), Value::small(""), lease));
    assert!(matches!(store.commit(&transaction), Err(StoreError::LeaseOver { .. })));
    let conflict = transaction.when(Compare::Present(key("b")));
    assert_eq!(store.commit(&conflict).ok(), Some(Outcome::Conflict { failed: vec![0] }));
    assert_ne!(store.grant(START, TTL).id, lease);
}

#[test]
fn a_full_store_only_deletes() {
    let mut store = MemoryStore::new().with_bytes_max(1000);
    let mut puts = 0;
    while store.commit(&Transaction::new().then(put("a", "0123456789"))).is_ok() {
        puts += 1;
    }
    assert_eq!(puts, 7);
    let full = store.commit(&Transaction::new().then(put("b", ""))).expect_err("it is full");
    let StoreError::Full(full) = full else { panic!("{full:?}") };
    assert_eq!(full.to_string(), "973 of 1000 bytes are used");
    assert_eq!(done(&mut store, &[Operation::Delete(key("a"))]), Revision(9));
    store.compact(Revision(9)).expect("it has come");
    assert_eq!(store.bytes(), 0);
    done(&mut store, &[put("a", "0123456789")]);
}

#[test]
fn what_was_prepared_changes_nothing_until_it_is_applied() {
    let mut store = MemoryStore::new();
    let transaction = Transaction::new().then(put("a", "1"));
    let Ok(Prepared::Changes(changes)) = store.prepare(&transaction) else { panic!("nothing is compared") };
    assert_eq!((store.revision(), changes.revision), (Revision(1), Revision(2)));
    assert!(paths(&store, &Range::one(key("a"))).is_empty());
    store.apply(changes);
    assert_eq!(paths(&store, &Range::one(key("a"))), ["a=1"]);
}

#[test]
fn a_store_that_is_loaded_is_the_one_before_with_whole_leases() {
    let mut store = MemoryStore::new();
    let lease = store.grant(START, TTL);
    let mut versions = Vec::new();
    let leased = Operation::put_leased(key("l"), Value::small("x"), lease.id);
    for operations in [vec![put("a", "1"), leased], vec![put("a", "2")], vec![Operation::Delete(key("a"))]] {
        let transaction = Transaction { compares: Vec::new(), operations };
        let Ok(Prepared::Changes(changes)) = store.prepare(&transaction) else { panic!("nothing is compared") };
        versions.extend(changes.versions.clone());
        store.apply(changes);
    }
    versions.reverse();
    let loaded = Loaded { revision: Revision(4), compacted: Revision(1), versions, leases: vec![lease], last_lease: 7 };
    let now = Duration::from_secs(100);
    let mut again = MemoryStore::load(loaded, now);
    for at in 1..=4 {
        let range = Range::below(Prefix::all()).at(Revision(at));
        assert_eq!(store.read(&range).ok(), again.read(&range).ok());
    }
    let [old, new] = [&store, &again].map(|store| {
        let mut watch = store.watch(&Prefix::all(), Revision(1)).expect("nothing is forgotten");
        batches(store, &mut watch)
    });
    assert_eq!(old, new);
    assert_eq!(again.bytes(), store.bytes());
    assert_eq!(again.next_end(), Some(now + TTL));
    assert_eq!(again.grant(now, TTL).id, LeaseId(8));
    assert_eq!(again.advance(now + TTL), [lease.id, LeaseId(8)]);
    assert!(paths(&again, &Range::below(Prefix::all())).is_empty());
}
