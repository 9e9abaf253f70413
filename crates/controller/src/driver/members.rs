//! The controllers that are there, and which of them leads: what each has put into the store, with a lease.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
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

    /// Takes over what has changed.
    pub fn apply(&mut self, events: &[WatchEvent], base: TermBase) {
        for event in events {
            match &event.change {
                Change::Put(entry) => self.put(entry, base),
                Change::Deleted if event.key == leader_key() => self.leader = None,
                Change::Deleted => {
                    if let Some(name) = event.key.as_str().strip_prefix(PREFIX) {
                        self.all.remove(name);
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
            self.all.insert(member.name.clone(), member);
        }
    }
}
