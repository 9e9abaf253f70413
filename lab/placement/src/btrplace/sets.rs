//! Sets of hosts, each kept once however often it is written.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::error::FileError;
use super::file::parse_part;
use skein_placement::bits::Bits;
use skein_placement::problem::HostId;

/// The most bits of all sets together, with copies: 256 MiB. A file that often names a few of many nodes asks for more
/// memory than its own size.
pub(super) const BITS_MAX: usize = 1 << 31;

/// How a set is made. Sets that are made the same way are the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key<'a> {
    /// From a list of nodes.
    Listed(&'a str),
    /// All hosts but those in a list of nodes.
    Unlisted(&'a str),
    One(HostId),
    Both(u32, u32),
}

pub(super) struct Sets<'a> {
    /// The host of each node. `None`: the node does not host guests in the end.
    hosts: BTreeMap<u32, Option<HostId>>,
    host_count: u32,
    sets: Vec<Bits>,
    known: BTreeMap<Key<'a>, u32>,
    /// How many sets there are, with all copies.
    count: usize,
    bits_max: usize,
}

impl<'a> Sets<'a> {
    pub(super) fn new(hosts: BTreeMap<u32, Option<HostId>>, bits_max: usize) -> Sets<'a> {
        let host_count = hosts.values().flatten().count() as u32;
        Sets { hosts, host_count, sets: Vec::new(), known: BTreeMap::new(), count: 0, bits_max }
    }

    /// Returns the host of a node, or `None` if the node does not host guests in the end.
    pub(super) fn host(&self, node: u32, path: &str) -> Result<Option<HostId>, FileError> {
        let host = self.hosts.get(&node).copied();
        host.ok_or_else(|| FileError::meaning(path, format!("there is no node {node}")))
    }

    /// Returns the hosts in a list of nodes.
    pub(super) fn list(&self, nodes: &RawValue, path: &str) -> Result<Bits, FileError> {
        let nodes: Vec<u32> = parse_part(nodes, path)?;
        nodes.into_iter().filter_map(|node| self.host(node, path).transpose()).collect()
    }

    pub(super) fn listed(&mut self, nodes: &'a RawValue, path: &str) -> Result<u32, FileError> {
        self.keep(Key::Listed(nodes.get()), path, |sets| sets.list(nodes, path))
    }

    pub(super) fn unlisted(&mut self, nodes: &'a RawValue, path: &str) -> Result<u32, FileError> {
        self.keep(Key::Unlisted(nodes.get()), path, |sets| {
            let but = sets.list(nodes, path)?;
            Ok((0..sets.host_count).filter(|host| !but.contains(*host)).collect())
        })
    }

    pub(super) fn one(&mut self, host: HostId, path: &str) -> Result<u32, FileError> {
        self.keep(Key::One(host), path, |_| Ok([host].into_iter().collect()))
    }

    /// Returns the set of the hosts that are in both sets.
    pub(super) fn both(&mut self, one: u32, other: u32, path: &str) -> Result<u32, FileError> {
        if one == other {
            return Ok(one);
        }
        self.keep(Key::Both(one.min(other), one.max(other)), path, |sets| {
            let (one, other) = (sets.get(one), sets.get(other));
            Ok(one.iter().filter(|host| other.contains(*host)).collect())
        })
    }

    pub(super) fn get(&self, set: u32) -> &Bits {
        &self.sets[set as usize]
    }

    pub(super) fn into_sets(self) -> Vec<Bits> {
        self.sets
    }

    fn keep(
        &mut self,
        key: Key<'a>,
        path: &str,
        make: impl FnOnce(&Self) -> Result<Bits, FileError>,
    ) -> Result<u32, FileError> {
        if let Some(set) = self.known.get(&key) {
            return Ok(*set);
        }
        let set = make(self)?;
        let id = self.add(set, path)?;
        self.known.insert(key, id);
        Ok(id)
    }

    /// Keeps a set that is unlike all others.
    pub(super) fn add(&mut self, set: Bits, path: &str) -> Result<u32, FileError> {
        self.count(path)?;
        self.sets.push(set);
        Ok(self.sets.len() as u32 - 1)
    }

    pub(super) fn copy(&mut self, set: u32, path: &str) -> Result<Bits, FileError> {
        self.count(path)?;
        Ok(self.get(set).clone())
    }

    fn count(&mut self, path: &str) -> Result<(), FileError> {
        self.count += 1;
        if self.count.saturating_mul(self.host_count as usize) > self.bits_max {
            return Err(FileError::meaning(path, "the sets of nodes of all constraints are too many"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_can_be_too_many_sets() {
        let hosts = (0..100).map(|host| (host, Some(host))).collect();
        let mut sets = Sets::new(hosts, 300);
        assert_eq!(sets.one(7, "here"), Ok(0));
        assert_eq!(sets.one(7, "here"), Ok(0), "the same is no other");
        assert_eq!(sets.one(8, "here"), Ok(1));
        assert_eq!(sets.copy(1, "here").map(|set| set.len()), Ok(1));
        let error = FileError::meaning("here", "the sets of nodes of all constraints are too many");
        assert_eq!(sets.copy(0, "here"), Err(error.clone()));
        assert_eq!(sets.both(0, 1, "here"), Err(error));
    }
}
