//! Leases, and the election that is made of them.

use std::time::{Duration, Instant};

use skein_store::election::{TermBase, campaign, guarded, is_deposed, leader_key, leadership, resign};
use skein_store::{Compare, LeaseId, Operation, Outcome, Prefix, Store, StoreError, Transaction};

use crate::subject::{Subject, WITHIN, all, commit, done, entry, eventually, key, put, value};

/// etcd grants no less than two seconds.
const TTL: Duration = Duration::from_secs(2);

fn grant(store: &dyn Store, ttl: Duration) -> LeaseId {
    let lease = store.grant(ttl, WITHIN).expect("it is granted");
    assert!(lease.ttl >= ttl, "a lease lasts for what was asked for, or more");
    lease.id
}

fn leased(path: &str, lease: LeaseId) -> Operation {
    Operation::put_leased(key(path), value("x"), lease)
}

pub(crate) fn a_lease_ends_with_its_keys(subject: &Subject<'_>) {
    let store = (subject.open)();
    let (short, kept, long) = (grant(&*store, TTL), grant(&*store, 3 * TTL), grant(&*store, 300 * TTL));
    done(&*store, &[leased("1", short), leased("2", short), leased("3", short), leased("4", kept), leased("5", long)]);
    let moved = done(&*store, &[put("1", "stays"), leased("2", long)]);
    assert_eq!(entry(&*store, "2").and_then(|entry| entry.lease), Some(long));
    assert_eq!(entry(&*store, "1").and_then(|entry| entry.lease), None);
    let mut watch = store.watch(&Prefix::all(), moved, WITHIN).expect("nothing is forgotten");

    let begin = Instant::now();
    eventually(subject, "the end of a lease", || {
        let ttl = store.keep_alive(kept, WITHIN).expect("it is kept alive all the time");
        assert!(ttl >= 3 * TTL);
        entry(&*store, "3").is_none()
    });
    assert_eq!(all(&*store), ["1=stays", "2=x", "4=x", "5=x"]);
    let batch = watch.next(WITHIN).expect("nothing is forgotten").expect("a key was deleted");
    assert_eq!(crate::subject::changes(&batch), "3-");
    assert!(matches!(store.keep_alive(short, WITHIN), Err(StoreError::LeaseOver { .. })), "{:?}", begin.elapsed());
    assert!(matches!(store.revoke(short, WITHIN), Err(StoreError::LeaseOver { .. })));

    store.revoke(long, WITHIN).expect("it is not over");
    assert_eq!(all(&*store), ["1=stays", "4=x"]);
    let batch = watch.next(WITHIN).expect("nothing is forgotten").expect("keys were deleted");
    assert_eq!(crate::subject::changes(&batch), "2- 5-");
    store.revoke(kept, WITHIN).expect("it is not over");
}

pub(crate) fn a_lease_that_is_over_takes_no_keys(subject: &Subject<'_>) {
    let store = (subject.open)();
    let lease = grant(&*store, TTL);
    store.revoke(lease, WITHIN).expect("it is not over");
    let transaction = Transaction::new().then(put("a", "")).then(leased("b", lease));
    match store.commit(&transaction, WITHIN) {
        Err(StoreError::LeaseOver { lease: over }) => assert_eq!(over, lease),
        other => panic!("{other:?}"),
    }
    assert!(all(&*store).is_empty());
    // A compare that does not hold comes first.
    let conflict = transaction.when(Compare::Present(key("c")));
    assert_eq!(commit(&*store, &conflict), Outcome::Conflict { failed: vec![0] });
}

pub(crate) fn one_candidate_leads_and_a_deposed_one_is_refused(subject: &Subject<'_>) {
    let store = (subject.open)();
    let base = TermBase(1_000_000);
    let first = grant(&*store, TTL);
    let won = commit(&*store, &campaign(value("a"), first)).committed().expect("nobody leads");
    let second = grant(&*store, 300 * TTL);
    assert_eq!(commit(&*store, &campaign(value("b"), second)), Outcome::Conflict { failed: vec![0] });
    let leads = || entry(&*store, leader_key().as_str()).map(|entry| leadership(&entry, base));
    let a = leads().expect("somebody leads");
    assert_eq!((a.candidate, a.lease, a.term.created), (value("a"), Some(first), won));
    let write = |text: &str| Transaction::new().then(put("x", text));
    assert!(commit(&*store, &guarded(write("a"), a.term)).committed().is_some());

    eventually(subject, "the end of the leader's lease", || leads().is_none());
    let refused = |transaction: Transaction| match commit(&*store, &transaction) {
        Outcome::Conflict { failed } => is_deposed(&failed),
        Outcome::Committed { .. } => false,
    };
    assert!(refused(guarded(write("late"), a.term)));
    let won = commit(&*store, &campaign(value("b"), second)).committed().expect("nobody leads");
    let b = leads().expect("somebody leads");
    assert!(b.term.created == won && b.term.number() > a.term.number());
    assert!(refused(guarded(write("late"), a.term)) && refused(resign(a.term)));
    assert!(commit(&*store, &guarded(write("b"), b.term)).committed().is_some());
    assert!(commit(&*store, &resign(b.term)).committed().is_some());
    assert!(refused(guarded(write("late"), b.term)));
    assert_eq!(all(&*store), ["x=b"]);
    store.revoke(second, WITHIN).expect("it is not over");
}
