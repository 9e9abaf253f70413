//! Reading, writing, forgetting.

use skein_store::{
    Compare, LeaseId, OPERATIONS_MAX, Operation, Outcome, Prefix, Range, Revision, StoreError, Transaction,
    TransactionError, VALUE_BYTES_MAX, Value,
};

use crate::subject::{Subject, WITHIN, all, commit, done, entry, failed, key, prefix, put, shown, value};

pub(crate) fn a_put_is_read_again(subject: &Subject<'_>) {
    let store = (subject.open)();
    assert_eq!(entry(&*store, "host/a"), None);
    assert!(all(&*store).is_empty(), "a store that was opened has nothing in it");
    let revision = done(&*store, &[put("host/a", "1"), put("host/ä b", ""), put("x", "2")]);
    let found = entry(&*store, "host/a").expect("it was put");
    assert_eq!((found.key.as_str(), found.value.clone(), found.lease), ("host/a", value("1"), None));
    assert_eq!((found.created, found.modified, found.version), (revision, revision, 1));
    assert_eq!(all(&*store), ["host/a=1", "host/ä b=", "x=2"]);
    assert_eq!(shown(&*store, &Range::below(prefix("host/"))), ["host/a=1", "host/ä b="]);
    let bytes = Value::new(vec![0, 255, 10]).expect("it is within the bound");
    done(&*store, &[Operation::put(key("bytes"), bytes.clone())]);
    assert_eq!(entry(&*store, "bytes").expect("it was put").value, bytes);
    // Another store, though it may be in the same etcd, has nothing of it.
    assert!(all(&*(subject.open)()).is_empty());
}

pub(crate) fn entries_count_their_versions(subject: &Subject<'_>) {
    let store = (subject.open)();
    let figures = || entry(&*store, "a").map(|entry| (entry.created, entry.modified, entry.version));
    let first = done(&*store, &[put("a", "1")]);
    let second = done(&*store, &[put("a", "1")]);
    assert!(second > first);
    assert_eq!(figures(), Some((first, second, 2)));
    let deleted = done(&*store, &[Operation::Delete(key("a"))]);
    assert!(deleted > second && figures().is_none());
    assert_eq!(done(&*store, &[Operation::Delete(key("a"))]), deleted, "what changes nothing is no revision");
    let third = done(&*store, &[put("a", "1")]);
    assert_eq!(figures(), Some((third, third, 1)));
}

pub(crate) fn all_compares_hold_or_nothing_is_done(subject: &Subject<'_>) {
    let store = (subject.open)();
    let created = done(&*store, &[put("a", "1")]);
    let lease = store.grant(WITHIN, WITHIN).expect("it is granted").id;
    done(&*store, &[Operation::put_leased(key("l"), value("x"), lease)]);
    let modified = done(&*store, &[put("a", "2")]);
    let hold = [
        Compare::Present(key("a")),
        Compare::Absent(key("b")),
        Compare::Created(key("a"), created),
        Compare::Modified(key("a"), modified),
        Compare::Value(key("a"), value("2")),
        Compare::Leased(key("l"), lease),
        Compare::Empty(prefix("a/")),
    ];
    let fail = [
        Compare::Present(key("b")),
        Compare::Absent(key("a")),
        Compare::Created(key("a"), modified),
        Compare::Created(key("b"), created),
        Compare::Modified(key("a"), created),
        Compare::Modified(key("b"), Revision(0)),
        Compare::Created(key("b"), Revision(0)),
        Compare::Value(key("a"), value("1")),
        Compare::Value(key("b"), value("")),
        Compare::Leased(key("a"), lease),
        Compare::Leased(key("b"), LeaseId(0)),
        Compare::Empty(Prefix::all()),
    ];
    assert_eq!(failed(&*store, &hold), [0; 0]);
    assert_eq!(failed(&*store, &fail), (0..fail.len()).collect::<Vec<_>>());
    for compare in fail {
        let mut transaction = Transaction { compares: hold.to_vec(), operations: vec![put("n", "1")] };
        transaction.compares.insert(3, compare);
        assert_eq!(commit(&*store, &transaction), Outcome::Conflict { failed: vec![3] }, "{transaction:?}");
    }
    assert_eq!(all(&*store), ["a=2", "l=x"]);
    store.revoke(lease, WITHIN).expect("it is not over");
}

pub(crate) fn what_is_no_transaction_is_refused(subject: &Subject<'_>) {
    let store = (subject.open)();
    let puts = |count: usize| Transaction {
        compares: (0..count).map(|n| Compare::Absent(key(&format!("k/{n}")))).collect(),
        operations: (0..count).map(|n| put(&format!("k/{n}"), "")).collect(),
    };
    let refused = |transaction: &Transaction| match store.commit(transaction, WITHIN) {
        Err(StoreError::Invalid(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(commit(&*store, &puts(OPERATIONS_MAX)).committed().is_some());
    assert_eq!(commit(&*store, &puts(OPERATIONS_MAX)), Outcome::Conflict { failed: (0..OPERATIONS_MAX).collect() });
    assert_eq!(refused(&puts(OPERATIONS_MAX + 1)), TransactionError::TooMany { count: OPERATIONS_MAX + 1 });
    let twice = Transaction::new().then(Operation::DeletePrefix(prefix("k/"))).then(put("k/0", ""));
    assert_eq!(refused(&twice), TransactionError::WrittenTwice { key: key("k/0") });
    let half = Value::new(vec![0; VALUE_BYTES_MAX]).expect("it is within the bound");
    let large = Transaction::new().then(Operation::put(key("a"), half.clone())).then(Operation::put(key("b"), half));
    assert!(matches!(refused(&large), TransactionError::TooManyBytes { .. }));
    assert_eq!(all(&*store).len(), OPERATIONS_MAX);
}

pub(crate) fn deletes_are_of_keys_and_of_prefixes(subject: &Subject<'_>) {
    let store = (subject.open)();
    done(&*store, &[put("a", ""), put("a/1", ""), put("a/2", ""), put("ab/1", ""), put("b", "")]);
    let overlapping = [
        Operation::DeletePrefix(prefix("a/")),
        Operation::Delete(key("a/1")),
        Operation::Delete(key("none")),
        Operation::Delete(key("b")),
        put("c", ""),
    ];
    done(&*store, &overlapping);
    assert_eq!(all(&*store), ["a=", "ab/1=", "c="]);
    done(&*store, &[Operation::DeletePrefix(Prefix::all())]);
    assert!(all(&*store).is_empty());
}

pub(crate) fn pages_are_of_one_revision(subject: &Subject<'_>) {
    let store = (subject.open)();
    let puts: Vec<_> = (0..9).map(|n| put(&format!("vm/{n}"), "1")).collect();
    let before = done(&*store, &puts);
    let first = Range::below(prefix("vm/")).limit(4);
    let page = store.read(&first, WITHIN).expect("it can be read");
    assert!(page.more && page.entries.len() == 4 && page.revision >= before);
    done(&*store, &[put("vm/45", "2"), put("vm/5", "2"), Operation::Delete(key("vm/6")), put("vm", "2")]);
    let second = first.next(&page).expect("there is more");
    assert_eq!(shown(&*store, &second), ["vm/4=1", "vm/5=1", "vm/6=1", "vm/7=1"]);
    let third = second.next(&store.read(&second, WITHIN).expect("it can be read")).expect("there is more");
    assert_eq!(shown(&*store, &third), ["vm/8=1"]);
    assert_eq!(third.next(&store.read(&third, WITHIN).expect("it can be read")), None);
    assert_eq!(shown(&*store, &first.clone().after(key("vm/3"))), ["vm/4=1", "vm/45=2", "vm/5=2", "vm/7=1"]);
    assert_eq!(shown(&*store, &first.clone().after(key("a"))), ["vm/0=1", "vm/1=1", "vm/2=1", "vm/3=1"]);
    assert_eq!(shown(&*store, &first.clone().after(key("vm/8"))), [""; 0]);
    assert_eq!(shown(&*store, &first.after(key("w"))), [""; 0]);
    assert_eq!(shown(&*store, &Range::one(key("vm/6")).at(before)), ["vm/6=1"]);
    let future = Range::one(key("vm/6")).at(Revision(before.0 + 1_000_000));
    assert!(matches!(store.read(&future, WITHIN), Err(StoreError::FutureRevision { .. })));
}

pub(crate) fn large_values_have_pages(subject: &Subject<'_>) {
    let store = (subject.open)();
    let large = |byte: u8| Value::new(vec![byte; VALUE_BYTES_MAX]).expect("it is within the bound");
    for n in 0..5 {
        done(&*store, &[Operation::put(key(&format!("l/{n}")), large(n))]);
    }
    let range = Range::below(prefix("l/"));
    let mut found = Vec::new();
    for page in skein_store::Pages::new(&*store, range, WITHIN) {
        let page = page.expect("it can be read");
        assert!(page.entries.len() <= 3, "a page has at most 2 MiB before its last entry");
        found.extend(page.entries);
    }
    assert_eq!(found.len(), 5);
    assert!(found.iter().zip(0..).all(|(entry, n)| entry.value == large(n)));
    // A conflict on a large value is told as any other.
    let other = Value::new(vec![1; VALUE_BYTES_MAX / 2]).expect("it is within the bound");
    assert_eq!(failed(&*store, &[Compare::Value(key("l/0"), other), Compare::Present(key("l/1"))]), [0]);
}

pub(crate) fn what_is_compacted_is_forgotten(subject: &Subject<'_>) {
    let store = (subject.open)();
    done(&*store, &[put("a", "1"), put("gone", "1")]);
    done(&*store, &[put("a", "2"), put("b", "1")]);
    let before = done(&*store, &[put("c", "1")]);
    let through = done(&*store, &[Operation::Delete(key("gone"))]);
    let after = done(&*store, &[put("a", "3")]);
    store.compact(through, WITHIN).expect("it has come");
    let now = Range::below(Prefix::all());
    assert_eq!(shown(&*store, &now), ["a=3", "b=1", "c=1"]);
    assert_eq!(shown(&*store, &now.clone().at(through)), ["a=2", "b=1", "c=1"]);
    match store.read(&now.clone().at(before), WITHIN) {
        Err(StoreError::Compacted { compacted }) => assert!(compacted > before && compacted <= after),
        other => panic!("{other:?}"),
    }
    store.compact(before, WITHIN).expect("this is forgotten already");
    assert_eq!(shown(&*store, &now.clone().at(through)), ["a=2", "b=1", "c=1"]);
    let future = Revision(after.0 + 1_000_000);
    assert!(matches!(store.compact(future, WITHIN), Err(StoreError::FutureRevision { .. })));
    store.compact(after, WITHIN).expect("it has come");
    assert_eq!(shown(&*store, &now), ["a=3", "b=1", "c=1"]);
}
