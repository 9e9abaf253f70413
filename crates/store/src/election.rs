//! The election of a leader among controllers, as transactions.
//!
//! The leader is whoever created the key `leader`, with a lease of its own; the key goes with the lease. The revision
//! that created the key makes the [`Term`]: later leaders have greater ones. What a leader writes is
//! [guarded]: the store itself refuses it once another leads, however late it comes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::entry::{Entry, LeaseId, Revision, Value};
use crate::key::Key;
use crate::transaction::{Compare, Operation, Transaction};

/// The key of the leader.
pub fn leader_key() -> Key {
    Key::fixed("leader")
}

/// What is added to a store's revisions so that terms rise over the lives of a cluster's stores: agents remember the
/// highest term that they have heard of, and a store that is made anew or restored counts its revisions from 1 again.
/// It is the milliseconds of the Unix time at which the store was made or restored; a store whose revisions rise by
/// less than a thousand a second for all its life never comes to its successor's base.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TermBase(pub u64);

/// Who leads: what a guard compares, and what agents are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// Its store's base.
    pub base: TermBase,
    /// The revision that created the leader's key.
    pub created: Revision,
}

/// What is under the leader's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leadership {
    /// The leader: what it campaigned with.
    pub candidate: Value,
    /// Its term.
    pub term: Term,
    /// Its lease. A candidate whose commit's outcome is unknown finds here whether it leads.
    pub lease: Option<LeaseId>,
}

/// A lease by the clock of its holder, on the safe side: time counts from before the store was asked, so it is over
/// here before it is over there.
///
/// The clock has to go on while the computer sleeps (`CLOCK_BOOTTIME`). It says what is worth beginning; only a guard
/// makes sure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLease {
    /// The lease.
    pub id: LeaseId,
    /// When the lease is over here, unless it is kept alive.
    over: Duration,
}

impl Term {
    /// The number that agents remember: the greater one is the later leader's.
    pub fn number(&self) -> u64 {
        self.base.0.saturating_add(self.created.0)
    }
}

/// The transaction of a candidate who wants to lead: done if nobody does. The revision of its commit is that of the
/// term.
pub fn campaign(candidate: Value, lease: LeaseId) -> Transaction {
    Transaction::new().when(Compare::Absent(leader_key())).then(Operation::put_leased(leader_key(), candidate, lease))
}

/// Reads who leads from what is under the leader's key.
pub fn leadership(entry: &Entry, base: TermBase) -> Leadership {
    Leadership { candidate: entry.value.clone(), term: Term { base, created: entry.created }, lease: entry.lease }
}

/// Lets a transaction be done only while the leader of a term leads. The guard is the first compare.
#[must_use]
pub fn guarded(mut transaction: Transaction, term: Term) -> Transaction {
    transaction.compares.insert(0, Compare::Created(leader_key(), term.created));
    transaction
}

/// Whether a [guarded] transaction was not done because another leads, or nobody does: its leader is deposed.
pub fn is_deposed(failed: &[usize]) -> bool {
    failed.contains(&0)
}

/// The transaction of a leader who leads no longer, so that others need not wait until the lease is over.
pub fn resign(term: Term) -> Transaction {
    guarded(Transaction::new().then(Operation::Delete(leader_key())), term)
}

impl HeldLease {
    /// A lease that was granted. `asked` is the time before the store was asked.
    pub fn granted(lease: crate::Lease, asked: Duration) -> HeldLease {
        HeldLease { id: lease.id, over: asked + lease.ttl }
    }

    /// The lease was kept alive, and lasts for `ttl` again. Answers may come in any order: the latest end holds.
    pub fn kept_alive(&mut self, asked: Duration, ttl: Duration) {
        self.over = self.over.max(asked + ttl);
    }

    /// How long the lease surely lasts. Zero: it may be over.
    pub fn left(&self, now: Duration) -> Duration {
        self.over.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lease, MemoryStore, Outcome, Range};

    const BASE: TermBase = TermBase(1_000);
    const TTL: Duration = Duration::from_secs(5);

    fn value(text: &str) -> Value {
        Value::small(text)
    }

    fn put(path: &'static str) -> Transaction {
        Transaction::new().then(Operation::put(Key::fixed(path), value("x")))
    }

    #[test]
    fn one_candidate_leads_until_its_lease_is_over() {
        let mut store = MemoryStore::new();
        let [a, b] = [0, 0].map(|_| store.grant(Duration::ZERO, TTL).id);
        let created = store.commit(&campaign(value("a"), a)).expect("it is done").committed().expect("nobody leads");
        assert_eq!(store.commit(&campaign(value("b"), b)).ok(), Some(Outcome::Conflict { failed: vec![0] }));
        let page = store.read(&Range::one(leader_key())).expect("it is there");
        let leads = leadership(&page.entries[0], BASE);
        let term = Term { base: BASE, created };
        assert_eq!(leads, Leadership { candidate: value("a"), term, lease: Some(a) });

        store.keep_alive(Duration::from_secs(4), b).expect("the lease is not over");
        store.advance(TTL);
        let later = store.commit(&campaign(value("b"), b)).expect("it is done").committed().expect("nobody leads");
        assert!(Term { base: BASE, created: later }.number() > term.number());
    }

    #[test]
    fn a_deposed_leader_is_refused() {
        let mut store = MemoryStore::new();
        let lead = |store: &mut MemoryStore, now: Duration| {
            let lease = store.grant(now, TTL).id;
            let created = store.commit(&campaign(value("a"), lease)).expect("it is done").committed();
            Term { base: BASE, created: created.expect("nobody leads") }
        };
        let first = lead(&mut store, Duration::ZERO);
        assert!(store.commit(&guarded(put("x"), first)).expect("it is done").committed().is_some());
        store.advance(TTL);
        let refused = |store: &mut MemoryStore, transaction: &Transaction| match store.commit(transaction) {
            Ok(Outcome::Conflict { failed }) => is_deposed(&failed),
            other => panic!("{other:?}"),
        };
        // Nobody leads, and then another: the first leader's key would be the same but for its revision.
        assert!(refused(&mut store, &guarded(put("x"), first)));
        let second = lead(&mut store, TTL);
        assert!(refused(&mut store, &guarded(put("x"), first)) && refused(&mut store, &resign(first)));
        assert!(store.commit(&resign(second)).expect("it is done").committed().is_some());
        assert!(refused(&mut store, &guarded(put("x"), second)));
    }

    #[test]
    fn a_conflict_of_its_own_does_not_depose_a_leader() {
        let mut store = MemoryStore::new();
        let lease = store.grant(Duration::ZERO, TTL).id;
        let created =
            store.commit(&campaign(value("a"), lease)).expect("it is done").committed().expect("nobody leads");
        let transaction = guarded(put("x").when(Compare::Present(Key::fixed("y"))), Term { base: BASE, created });
        assert_eq!(store.commit(&transaction).ok(), Some(Outcome::Conflict { failed: vec![1] }));
        assert!(!is_deposed(&[1]));
    }

    #[test]
    fn a_restored_stores_terms_are_greater() {
        let before = Term { base: TermBase(1_764_000_000_000), created: Revision(9_000_000) };
        let restored = Term { base: TermBase(1_764_086_400_000), created: Revision(2) };
        assert!(restored.number() > before.number());
    }

    #[test]
    fn a_lease_is_over_here_before_it_is_over_in_the_store() {
        let mut store = MemoryStore::new();
        let second = Duration::from_secs(1);
        // The store is asked at 1 s, grants at 2 s, and is heard of at 3 s.
        let lease: Lease = store.grant(2 * second, TTL);
        let mut held = HeldLease::granted(lease, second);
        assert_eq!(held.left(3 * second), 3 * second);
        let ttl = store.keep_alive(4 * second, lease.id).expect("it is not over");
        held.kept_alive(4 * second, ttl);
        held.kept_alive(3 * second, ttl);
        assert_eq!(held.left(9 * second), Duration::ZERO);
        assert_eq!(held.left(8 * second), second);
        assert!(store.advance(9 * second - Duration::from_nanos(1)).is_empty());
        assert_eq!(store.advance(9 * second), [lease.id]);
    }
}
