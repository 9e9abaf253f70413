//! Decides which paths carry bulk data. `docs/transport-choice.md` has the rules in words.
//!
//! 1. A path to or from a network that either end's configuration excludes carries no bulk data, ever.
//! 2. Of the others, those in the network that the configuration prefers most carry bulk data, as long as one of them
//!    is there; the rest are spares.
//! 3. Of these, a path is a spare that is slower than a tenth of what the faster NICs carry together: what it would add
//!    is less than what waiting for its chunks may cost. Speeds are those that the drivers tell.

use std::collections::BTreeMap;
use std::fmt;

use crate::address::{Network, NicAddress};
use crate::pairs::Pair;

/// What a path is worth adding for: one part in this many of what the faster NICs carry together.
const WORTH_PARTS: u64 = 10;

/// What a path carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUse {
    /// Bulk data, and all else.
    Data,
    /// What is small. Bulk data once no path for bulk data is there.
    Spare(SpareReason),
    /// What is small, and never bulk data: an end's configuration excludes its network.
    Excluded,
}

/// Why a path is a spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpareReason {
    /// The path is slow, beside faster NICs.
    Slow {
        /// The path's speed in Mb/s.
        speed_mbit: u32,
        /// What the faster NICs carry together, in Mb/s.
        others_mbit: u64,
    },
    /// The configuration prefers another network.
    NotPreferred,
}

impl fmt::Display for PathUse {
    /// Writes `a spare: 100 Mb/s adds less than a tenth to the 2000 Mb/s of faster NICs`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathUse::Data => f.write_str("carries data"),
            PathUse::Spare(SpareReason::Slow { speed_mbit, others_mbit }) => {
                write!(f, "a spare: {speed_mbit} Mb/s adds less than a tenth to the {others_mbit} Mb/s of faster NICs")
            }
            PathUse::Spare(SpareReason::NotPreferred) => f.write_str("a spare: another network is preferred"),
            PathUse::Excluded => f.write_str("carries no data: its network is excluded"),
        }
    }
}

/// Returns what each of the pairs carries. `is_there` tells whether a pair's path is up, or may come up soon;
/// `preferred`: the networks to prefer, the best first.
pub fn path_uses(pairs: &[Pair], is_there: impl Fn(&Pair) -> bool, preferred: &[Network]) -> Vec<PathUse> {
    let is_excluded = |pair: &Pair| !pair.local.carries_data() || !pair.remote.carries_data();
    let rank = |pair: &Pair| preferred.iter().position(|of| of.contains(pair.local.ip) || of.contains(pair.remote.ip));
    let rank = |pair: &Pair| rank(pair).unwrap_or(preferred.len());
    let there: Vec<&Pair> = pairs.iter().filter(|pair| !is_excluded(pair) && is_there(pair)).collect();
    let best = there.iter().map(|pair| rank(pair)).min();
    let worthy: Vec<&Pair> = there.into_iter().filter(|pair| Some(rank(pair)) == best).collect();
    let of_pair = |pair: &Pair| match best {
        _ if is_excluded(pair) => PathUse::Excluded,
        // Whatever comes up first is taken.
        None => PathUse::Data,
        Some(best) if rank(pair) > best => PathUse::Spare(SpareReason::NotPreferred),
        Some(_) => pair.speed_mbit().map_or(PathUse::Data, |speed_mbit| {
            let others_mbit = faster_mbit(&worthy, speed_mbit);
            match u64::from(speed_mbit).saturating_mul(WORTH_PARTS) < others_mbit {
                true => PathUse::Spare(SpareReason::Slow { speed_mbit, others_mbit }),
                false => PathUse::Data,
            }
        }),
    };
    pairs.iter().map(of_pair).collect()
}

/// Returns what this end's NICs carry together over pairs that are faster than a speed. VLANs and bridges count as the
/// NIC below them.
fn faster_mbit(pairs: &[&Pair], speed_mbit: u32) -> u64 {
    let mut faster: BTreeMap<&str, u32> = BTreeMap::new();
    for pair in pairs {
        let Some(speed) = pair.speed_mbit().filter(|speed| *speed > speed_mbit) else { continue };
        let most = faster.entry(uplink(&pair.local)).or_default();
        *most = speed.max(*most);
    }
    faster.values().copied().map(u64::from).sum()
}

fn uplink(address: &NicAddress) -> &str {
    address.uplink.as_deref().unwrap_or(&address.nic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(nic: &str, host: u8, speed_mbit: Option<u32>) -> NicAddress {
        // A NIC's last letter is its network: 10.0.NETWORK.HOST.
        let network = nic.as_bytes()[nic.len() - 1] - b'0';
        NicAddress { speed_mbit, ..NicAddress::new([10, 0, network, host].into(), 24, nic) }
    }

    fn pair(nic: &str, speed_mbit: u32) -> Pair {
        let speed = Some(speed_mbit);
        Pair { local: address(nic, 1, speed), remote: address(nic, 2, speed) }
    }

    fn uses(pairs: &[Pair], preferred: &[&str]) -> Vec<PathUse> {
        let preferred: Vec<Network> = preferred.iter().map(|of| of.parse().unwrap()).collect();
        path_uses(pairs, |_| true, &preferred)
    }

    const NOT_PREFERRED: PathUse = PathUse::Spare(SpareReason::NotPreferred);

    #[test]
    fn a_nic_that_adds_less_than_a_tenth_is_a_spare() {
        let slow = |speed_mbit, others_mbit| PathUse::Spare(SpareReason::Slow { speed_mbit, others_mbit });
        let three = |first, second, third| [pair("eth0", first), pair("eth1", second), pair("eth2", third)];
        assert_eq!(uses(&three(100, 10_000, 10_000), &[]), [slow(100, 20_000), PathUse::Data, PathUse::Data]);
        assert_eq!(uses(&three(100, 1_000, 1_000), &[])[0], slow(100, 2_000));
        assert_eq!(uses(&three(200, 1_000, 1_000), &[])[0], PathUse::Data);
        assert_eq!(uses(&three(1_000, 1_000, 1_000), &[]), [PathUse::Data; 3]);
        assert_eq!(uses(&[pair("eth0", 1_000), pair("eth1", 10_000)], &[]), [PathUse::Data; 2], "a tenth is worth it");
        // What is not known is not left out, and leaves nobody out.
        let unknown = Pair { local: address("eth0", 1, None), remote: address("eth0", 2, None) };
        assert_eq!(uses(&[unknown.clone(), pair("eth1", 100)], &[]), [PathUse::Data; 2]);
        assert_eq!(uses(&[unknown, pair("eth1", 100), pair("eth2", 10_000)], &[])[0], PathUse::Data);
    }

    #[test]
    fn pairs_over_the_same_nic_count_once() {
        let mut crossed = pair("eth1", 1_000);
        crossed.remote = address("eth2", 2, Some(1_000));
        assert_eq!(uses(&[pair("eth0", 100), pair("eth1", 1_000), crossed], &[])[0], PathUse::Data);
    }

    #[test]
    fn a_spare_carries_data_while_the_others_are_gone() {
        let pairs = [pair("eth0", 100), pair("eth1", 10_000), pair("eth2", 10_000)];
        let left = path_uses(&pairs, |pair| pair.local.nic == "eth0", &[]);
        assert_eq!(left[0], PathUse::Data);
        assert_eq!(path_uses(&pairs, |_| false, &[]), [PathUse::Data; 3]);
        let preferred = ["10.0.1.0/24".parse().unwrap()];
        assert_eq!(path_uses(&pairs, |pair| pair.local.nic != "eth1", &preferred)[2], PathUse::Data);
    }

    #[test]
    fn networks_are_preferred_by_rank_and_excluded_for_ever() {
        let pairs = [pair("eth0", 1_000), pair("eth1", 1_000), pair("eth2", 1_000)];
        assert_eq!(uses(&pairs, &["10.0.2.0/24"]), [NOT_PREFERRED, NOT_PREFERRED, PathUse::Data]);
        let ranked = uses(&pairs, &["10.0.1.0/24", "10.0.2.0/24"]);
        assert_eq!(ranked, [NOT_PREFERRED, PathUse::Data, NOT_PREFERRED]);
        assert_eq!(uses(&pairs, &["10.9.0.0/16"]), [PathUse::Data; 3], "nobody is in that network");
        // Of the preferred, too, only what is worth adding carries data.
        let pairs = [pair("eth0", 10_000), pair("eth1", 100), pair("eth2", 10_000)];
        assert!(matches!(uses(&pairs, &["10.0.0.0/22"])[1], PathUse::Spare(SpareReason::Slow { .. })));
        let mut pairs = pairs;
        pairs[2].remote = pairs[2].remote.clone().without_data();
        assert_eq!(uses(&pairs, &["10.0.2.0/24"])[2], PathUse::Excluded);
        assert_eq!(path_uses(&pairs, |pair| pair.local.nic == "eth2", &[])[2], PathUse::Excluded);
    }
}
