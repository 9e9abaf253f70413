//! The controllers that are there, and which of them leads: what each has put into the store, with a lease.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use skein_api::cluster::UnixMs;
use skein_store::election::{TermBase, leader_key, leadership};
use skein_store::{Change, Entry, Key, KeyError, WatchEvent};

/// What is before a controller's name in the key of its entry.
const PREFIX: &str = "controller/";

/// A controller, as it tells the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The name.
    pub name: String,
    /// The URL of the API.
    pub url: String,
    /// The address for agents, as `10.0.0.1:7443`.
    pub address: String,
}

/// The controller that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The controller.
    pub member: Member,
    /// The number of its term.
    pub term: u64,
}

/// The controllers whose leases are not over.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// The controllers, by name.
    pub all: BTreeMap<String, Member>,
    /// The controllers that were there and are not any more, by name, and since when: as far as this process has seen.
    pub gone: BTreeMap<String, (Member, UnixMs)>,
    /// The controller that leads, if any.
    pub leader: Option<Leader>,
}

/// Returns the key of a controller's entry.
///
/// # Errors
///
/// The name cannot be part of a key.
pub fn member_key(name: &str) -> Result<Key, KeyError> {
    Key::new(&format!("{PREFIX}{name}"))
}

impl Members {
    /// Reads what is in the store.
    pub fn load(entries: &[Entry], base: TermBase) -> Members {
        let mut members = Members::default();
        for entry in entries {
            members.put(entry, base);
        }
        members
    }

    /// Returns where agents reach the controllers, by name.
    pub fn addresses(&self) -> BTreeMap<String, String> {
        self.all.values().map(|member| (member.name.clone(), member.address.clone())).collect()
    }

    /// Reads what is in the store now, after what was there before.
    pub fn reload(&mut self, entries: &[Entry], base: TermBase, now: UnixMs) {
        let before = std::mem::replace(self, Members::load(entries, base));
        self.gone = before.gone;
        self.gone.extend(before.all.into_iter().map(|(name, member)| (name, (member, now))));
        self.gone.retain(|name, _| !self.all.contains_key(name));
    }

    /// Takes over what has changed.
    pub fn apply(&mut self, events: &[WatchEvent], base: TermBase, now: UnixMs) {
        for event in events {
            match &event.change {
                Change::Put(entry) => self.put(entry, base),
                Change::Deleted if event.key == leader_key() => self.leader = None,
                Change::Deleted => {
                    if let Some(name) = event.key.as_str().strip_prefix(PREFIX) {
                        let gone = self.all.remove(name);
                        self.gone.extend(gone.map(|member| (member.name.clone(), (member, now))));
                    }
                }
            }
        }
    }

    fn put(&mut self, entry: &Entry, base: TermBase) {
        // What another release writes may not be understood here; it stands for a controller all the same.
        let read = || serde_json::from_slice::<Member>(entry.value.as_bytes()).ok();
        if entry.key == leader_key() {
            let unknown = || Member { name: String::new(), url: String::new(), address: String::new() };
            let term = leadership(entry, base).term.number();
            self.leader = Some(Leader { member: read().unwrap_or_else(unknown), term });
        } else if entry.key.as_str().starts_with(PREFIX)
            && let Some(member) = read()
        {
            self.gone.remove(&member.name);
            self.all.insert(member.name.clone(), member);
        }
    }
}

#[cfg(test)]
mod tests {
    use skein_store::{Revision, Value};

    use super::*;

    fn entry(name: &str) -> Entry {
        let member = Member { name: name.into(), url: format!("https://{name}:7443"), address: format!("{name}:7443") };
        let value = Value::new(serde_json::to_vec(&member).unwrap()).unwrap();
        let (key, at) = (member_key(name).unwrap(), Revision(1));
        Entry { key, value, created: at, modified: at, version: 1, lease: None }
    }

    #[test]
    fn whoever_was_there_before_is_gone_until_it_is_back() {
        let (base, mut members) = (TermBase(0), Members::default());
        members.reload(&[entry("c1"), entry("c2"), entry("c3")], base, UnixMs(1));
        let event = |name: &str, change| WatchEvent { key: member_key(name).unwrap(), change };
        members.apply(&[event("c1", Change::Deleted)], base, UnixMs(2));
        // What went while nothing was watched.
        members.reload(&[entry("c3")], base, UnixMs(3));
        let gone: Vec<_> = members.gone.iter().map(|(name, (_, since))| (name.as_str(), since.0)).collect();
        assert_eq!((gone, members.addresses().len()), (vec![("c1", 2), ("c2", 3)], 1));
        members.apply(&[event("c1", Change::Put(entry("c1")))], base, UnixMs(4));
        assert_eq!((members.gone.len(), members.all.len()), (1, 2));
    }
}
