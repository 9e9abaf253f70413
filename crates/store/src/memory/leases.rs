//! Leases: until when, and which keys end with each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::entry::{Lease, LeaseId};
use crate::error::StoreError;
use crate::key::Key;

#[derive(Debug, Clone, Default)]
pub(super) struct Leases {
    held: BTreeMap<LeaseId, Held>,
    /// The last lease that was granted.
    last: u64,
}

#[derive(Debug, Clone)]
struct Held {
    ttl: Duration,
    /// When the lease ends, unless it is kept alive.
    ends: Duration,
    keys: BTreeSet<Key>,
}

impl Leases {
    pub fn load(leases: Vec<Lease>, last: u64, now: Duration) -> Leases {
        let mut loaded = Leases::default();
        leases.into_iter().for_each(|lease| loaded.add(lease, now));
        loaded.last = loaded.last.max(last);
        loaded
    }

    /// The lease that is granted next: none is used twice, so that whoever held one before does not keep another's.
    pub fn next(&self) -> LeaseId {
        LeaseId(self.last + 1)
    }

    pub fn add(&mut self, lease: Lease, now: Duration) {
        self.last = self.last.max(lease.id.0);
        self.held.insert(lease.id, Held { ttl: lease.ttl, ends: now + lease.ttl, keys: BTreeSet::new() });
    }

    pub fn remove(&mut self, lease: LeaseId) {
        self.held.remove(&lease);
    }

    pub fn check(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.keys(lease).map(|_| ())
    }

    /// The keys that end with a lease.
    pub fn keys(&self, lease: LeaseId) -> Result<&BTreeSet<Key>, StoreError> {
        self.held.get(&lease).map(|held| &held.keys).ok_or(StoreError::LeaseOver { lease })
    }

    pub fn keep_alive(&mut self, lease: LeaseId, now: Duration) -> Result<Duration, StoreError> {
        let held = self.held.get_mut(&lease).ok_or(StoreError::LeaseOver { lease })?;
        held.ends = now + held.ttl;
        Ok(held.ttl)
    }

    /// A key ends with another lease from now on, or with none.
    pub fn move_key(&mut self, key: &Key, from: Option<LeaseId>, to: Option<LeaseId>) {
        if let Some(held) = from.and_then(|lease| self.held.get_mut(&lease)) {
            held.keys.remove(key);
        }
        if let Some(held) = to.and_then(|lease| self.held.get_mut(&lease)) {
            held.keys.insert(key.clone());
        }
    }

    pub fn due(&self, now: Duration) -> Vec<LeaseId> {
        let mut due: Vec<(Duration, LeaseId)> =
            self.held.iter().filter(|(_, held)| held.ends <= now).map(|(id, held)| (held.ends, *id)).collect();
        due.sort();
        due.into_iter().map(|(_, id)| id).collect()
    }

    pub fn next_end(&self) -> Option<Duration> {
        self.held.values().map(|held| held.ends).min()
    }
}
