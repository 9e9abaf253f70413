//! Where hosts are, as the leader tells agents: each agent is told the whole list, and again when it has changed. In a
//! large cluster something changes all the time, so that the list of before has its time first.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use skein_api::ToAgent;
use skein_api::cluster::ChangedObject;

use super::line::{Line, bytes};

/// How long a list stands before the next, for each of its hosts. A list has some 60 bytes a host, and so many agents
/// read it: 6 MB/s in all with 1,000 hosts.
const PER_HOST: Duration = Duration::from_millis(10);
/// How long a list stands at most.
const LONGEST: Duration = Duration::from_secs(10);

/// Counts the lists. Nobody has been told the list 0.
pub(crate) type ListNumber = u64;

/// Where hosts are.
#[derive(Default)]
pub(crate) struct HostList {
    hosts: BTreeMap<String, Vec<String>>,
    number: ListNumber,
    /// The list as it is sent, once it was sent.
    line: Option<Line>,
    /// When the next list may be sent to all.
    next: Option<Instant>,
}

impl HostList {
    /// Takes the list of a leader's tables.
    pub fn set(&mut self, hosts: BTreeMap<String, Vec<String>>) {
        if self.number == 0 || self.hosts != hosts {
            self.hosts = hosts;
            self.changed();
        }
    }

    /// Notes where a host is.
    pub fn note(&mut self, changed: &ChangedObject) {
        match changed {
            ChangedObject::Host { host } if self.hosts.get(&host.name) != Some(&host.addresses) => {
                self.hosts.insert(host.name.clone(), host.addresses.clone());
                self.changed();
            }
            ChangedObject::Gone { kind, name } if kind == "host" && self.hosts.remove(name).is_some() => self.changed(),
            _ => {}
        }
    }

    fn changed(&mut self) {
        self.number += 1;
        self.line = None;
    }

    /// Returns the number of the list that is true now.
    pub fn number(&self) -> ListNumber {
        self.number
    }

    /// Returns the list as it is sent.
    pub fn line(&mut self) -> Line {
        let hosts = &self.hosts;
        let make = || {
            let known = hosts.iter().filter(|(_, addresses)| !addresses.is_empty());
            bytes(&ToAgent::Hosts { addresses: known.map(|(name, at)| (name.clone(), at.clone())).collect() })
        };
        self.line.get_or_insert_with(make).clone()
    }

    /// Returns whether the list of before has stood for long enough, and begins the time of the next one if it has.
    pub fn is_time(&mut self, now: Instant) -> bool {
        let is_time = self.next.is_none_or(|next| now >= next);
        if is_time {
            let hosts = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
            self.next = Some(now + PER_HOST.saturating_mul(hosts).min(LONGEST));
        }
        is_time
    }
}
