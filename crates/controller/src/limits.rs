//! How many connections there may be, by address and in all, and how many wrong tokens an address may try.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// How many connections a controller takes.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// In all: agents of a thousand hosts, and as many others again. A connection has some 50 KB.
    pub all: usize,
    /// From one address, without agents.
    pub of_address: usize,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits { all: 4096, of_address: 256 }
    }
}

/// Counts connections. One that is too many takes the place of the oldest that is no agent's: whoever opens many and
/// says nothing keeps nobody out, above all no agent, whose host would count as lost.
#[derive(Debug)]
pub(crate) struct Connections {
    limits: ConnectionLimits,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    agents: usize,
    /// Those that are no agent's, or not known to be, by their age.
    others: BTreeMap<u64, Other>,
    of_address: BTreeMap<IpAddr, BTreeSet<u64>>,
    next: u64,
}

#[derive(Debug)]
struct Other {
    address: IpAddr,
    give_way: Arc<Notify>,
}

impl Counts {
    fn remove(&mut self, number: u64) -> Option<Other> {
        let other = self.others.remove(&number)?;
        if let Some(of_address) = self.of_address.get_mut(&other.address) {
            of_address.remove(&number);
            if of_address.is_empty() {
                self.of_address.remove(&other.address);
            }
        }
        Some(other)
    }
}

/// A connection that counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    connections: Arc<Connections>,
    number: u64,
    is_agent: bool,
    give_way: Arc<Notify>,
}

impl Connections {
    pub fn new(limits: ConnectionLimits) -> Arc<Connections> {
        Arc::new(Connections { limits, counts: Mutex::default() })
    }

    /// Counts a connection. `None`: there are too many, all of them agents'.
    pub fn add(self: &Arc<Connections>, address: IpAddr) -> Option<Counted> {
        let mut counts = self.counts.lock();
        let of_address = counts.of_address.get(&address).filter(|own| own.len() >= self.limits.of_address);
        let in_all = counts.others.len() + counts.agents >= self.limits.all;
        let oldest = match of_address {
            Some(own) => own.first().copied(),
            None if in_all => Some(*counts.others.first_key_value()?.0),
            None => None,
        };
        if let Some(other) = oldest.and_then(|oldest| counts.remove(oldest)) {
            other.give_way.notify_one();
        }
        let (number, give_way) = (counts.next, Arc::new(Notify::new()));
        counts.next += 1;
        counts.others.insert(number, Other { address, give_way: give_way.clone() });
        counts.of_address.entry(address).or_default().insert(number);
        Some(Counted { connections: self.clone(), number, is_agent: false, give_way })
    }
}

impl Counted {
    /// Has the connection count in all, and not for its address, and give way to none: an agent's.
    pub fn is_agents(&mut self) {
        let mut counts = self.connections.counts.lock();
        counts.remove(self.number);
        counts.agents += 1;
        self.is_agent = true;
    }

    /// Returns what is told when the connection is to give way to another.
    pub fn give_way(&self) -> Arc<Notify> {
        self.give_way.clone()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.connections.counts.lock();
        match self.is_agent {
            true => counts.agents -= 1,
            false => drop(counts.remove(self.number)),
        }
    }
}

/// How many wrong tokens an address may try at once; the allowance comes back over [`WRONG_PERIOD`].
const WRONG_MAX: f64 = 10.0;
/// In which time the whole allowance comes back.
const WRONG_PERIOD: Duration = Duration::from_secs(60);
/// How many refusals without a known caller are noted in the audit log at once, of all addresses.
const NOTED_MAX: f64 = 50.0;
/// How many addresses are remembered.
const ADDRESSES_MAX: usize = 4096;

/// Allowances of addresses.
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    state: Mutex<WrongState>,
}

#[derive(Debug, Default)]
struct WrongState {
    of_address: BTreeMap<IpAddr, Bucket>,
    noted: Option<Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn take(&mut self, most: f64, now: Instant) -> bool {
        let back = most * now.saturating_duration_since(self.at).as_secs_f64() / WRONG_PERIOD.as_secs_f64();
        (self.left, self.at) = ((self.left + back).min(most), now);
        let may = self.left >= 1.0;
        if may {
            self.left -= 1.0;
        }
        may
    }
}

impl Wrong {
    /// Notes that an address showed something wrong. Returns whether the address may go on for now.
    pub fn note(&self, address: IpAddr, now: Instant) -> bool {
        let mut state = self.state.lock();
        if state.of_address.len() >= ADDRESSES_MAX && !state.of_address.contains_key(&address) {
            state.of_address.retain(|_, bucket| now.saturating_duration_since(bucket.at) < WRONG_PERIOD);
            if state.of_address.len() >= ADDRESSES_MAX {
                // So many addresses at once are one attack.
                return false;
            }
        }
        state.of_address.entry(address).or_insert(Bucket { left: WRONG_MAX, at: now }).take(WRONG_MAX, now)
    }

    /// Returns whether another refusal of somebody unknown is to be noted in the audit log.
    pub fn is_noted(&self, now: Instant) -> bool {
        self.state.lock().noted.get_or_insert(Bucket { left: NOTED_MAX, at: now }).take(NOTED_MAX, now)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn connections_are_counted_by_address_and_in_all_and_the_oldest_gives_way() {
        let connections = Connections::new(ConnectionLimits { all: 3, of_address: 2 });
        let add = |address| connections.add(address).unwrap();
        let gives_way = |counted: &Counted| counted.give_way().notified().now_or_never().is_some();
        let (first, second) = (add(A), add(A));
        let third = add(A);
        assert!(gives_way(&first) && !gives_way(&second), "the oldest of the address");
        let mut agent = add(B);
        agent.is_agents();
        let another = add(B);
        assert!(gives_way(&second) && !gives_way(&third) && !gives_way(&agent), "the oldest of all, there are three");
        // One that gives way has no part in the count, whenever it ends.
        drop((first, second));
        assert_eq!(connections.counts.lock().others.len(), 2);
        drop((third, another, agent));
        let counts = connections.counts.lock();
        assert!(counts.agents == 0 && counts.others.is_empty() && counts.of_address.is_empty());
    }

    #[test]
    fn agents_give_way_to_nobody() {
        let connections = Connections::new(ConnectionLimits { all: 2, of_address: 2 });
        let mut agents = [connections.add(A).unwrap(), connections.add(A).unwrap()];
        agents.iter_mut().for_each(Counted::is_agents);
        assert!(connections.add(B).is_none() && connections.add(A).is_none());
    }

    #[test]
    fn wrong_tokens_are_allowed_ten_times_a_minute() {
        let (wrong, begin) = (Wrong::default(), Instant::now());
        let allowed = |at: Duration, address| (0..100).filter(|_| wrong.note(address, begin + at)).count();
        assert_eq!(allowed(Duration::ZERO, A), 10);
        assert_eq!(allowed(Duration::ZERO, B), 10);
        assert_eq!(allowed(Duration::from_secs(31), A), 5);
        assert_eq!(allowed(Duration::from_secs(1000), A), 10);
        let noted = (0..1000).filter(|_| wrong.is_noted(begin)).count();
        assert_eq!(noted, 50);
    }

    #[test]
    fn addresses_that_are_remembered_are_bounded() {
        let (wrong, begin) = (Wrong::default(), Instant::now());
        let address = |number: u32| IpAddr::V4(number.into());
        for number in 0..ADDRESSES_MAX as u32 {
            assert!(wrong.note(address(number), begin));
        }
        assert!(!wrong.note(address(1 << 20), begin));
        assert!(wrong.note(address(1 << 20), begin + 2 * WRONG_PERIOD));
        assert_eq!(wrong.state.lock().of_address.len(), 1);
    }
}
