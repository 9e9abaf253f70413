//! How many connections there may be, by address and in all, and how many wrong tokens an address may try.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

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

/// Counts connections.
#[derive(Debug)]
pub(crate) struct Connections {
    limits: ConnectionLimits,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    of_address: BTreeMap<IpAddr, usize>,
}

/// A connection that counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    connections: Arc<Connections>,
    address: Option<IpAddr>,
}

impl Connections {
    pub fn new(limits: ConnectionLimits) -> Arc<Connections> {
        Arc::new(Connections { limits, counts: Mutex::default() })
    }

    /// Counts a connection. `None`: there are too many.
    pub fn add(self: &Arc<Connections>, address: IpAddr) -> Option<Counted> {
        let mut counts = self.counts.lock();
        let of_address = counts.of_address.get(&address).copied().unwrap_or(0);
        if counts.all >= self.limits.all || of_address >= self.limits.of_address {
            return None;
        }
        counts.all += 1;
        counts.of_address.insert(address, of_address + 1);
        Some(Counted { connections: self.clone(), address: Some(address) })
    }
}

impl Counted {
    /// Lets the connection count in all, and not for its address: an agent's.
    pub fn release_address(&mut self) {
        let Some(address) = self.address.take() else { return };
        let mut counts = self.connections.counts.lock();
        if let Some(count) = counts.of_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                counts.of_address.remove(&address);
            }
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.release_address();
        self.connections.counts.lock().all -= 1;
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
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn connections_are_counted_by_address_and_in_all() {
        let connections = Connections::new(ConnectionLimits { all: 3, of_address: 2 });
        let (first, second) = (connections.add(A).unwrap(), connections.add(A).unwrap());
        assert!(connections.add(A).is_none());
        let mut agent = connections.add(B).unwrap();
        assert!(connections.add(B).is_none(), "there are three");
        agent.release_address();
        drop(second);
        assert!(connections.add(B).is_some());
        drop((first, agent));
        let counts = connections.counts.lock();
        assert!(counts.all == 0 && counts.of_address.is_empty());
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
