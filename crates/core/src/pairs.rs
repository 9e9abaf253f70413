//! Which local and remote addresses make a path.
//!
//! Two NICs that share a subnet reach each other without a router. A NIC that shares none with the peer is
//! tried against every NIC of the peer that is not reached otherwise: routes may exist. Each pair of NICs
//! is one path, whatever number of addresses they have.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::handshake::Address;

/// Most paths of a session: two for each of eight NICs.
pub const PATHS_MAX: usize = 16;

/// A path that may work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// This end.
    pub local: Address,
    /// The other end.
    pub remote: Address,
}

fn network(ip: IpAddr, prefix: u8) -> u128 {
    let (bits, width) = match ip {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    bits.checked_shr(width - u32::from(prefix).min(width)).unwrap_or(0)
}

fn share_subnet(a: &Address, b: &Address) -> bool {
    a.ip.is_ipv4() == b.ip.is_ipv4() && a.prefix == b.prefix && network(a.ip, a.prefix) == network(b.ip, b.prefix)
}

fn is_routable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_link_local() && !ip.is_multicast() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local() && !ip.is_multicast() && !ip.is_unspecified(),
    }
}

/// All pairs worth dialling, best first: so that the first few already use every NIC. Loopback
/// addresses pair with each other only, for two ends on one host.
pub fn pairs(local: &[Address], remote: &[Address]) -> Vec<Pair> {
    let own: BTreeSet<IpAddr> = local.iter().map(|a| a.ip).filter(|ip| !ip.is_loopback()).collect();
    let candidates = |same: bool| {
        let own = &own;
        local.iter().flat_map(move |l| {
            remote.iter().filter_map(move |r| {
                let usable = l.ip.is_ipv4() == r.ip.is_ipv4()
                    && l.ip.is_loopback() == r.ip.is_loopback()
                    && is_routable(l.ip)
                    && is_routable(r.ip)
                    // An address that both ends have (of a bridge for guests, say) leads back here.
                    && !own.contains(&r.ip);
                (usable && (share_subnet(l, r) || l.ip.is_loopback()) == same)
                    .then(|| Pair { local: l.clone(), remote: r.clone() })
            })
        })
    };
    let mut seen = BTreeSet::new();
    let mut once = |pair: &Pair| seen.insert((pair.local.nic.clone(), pair.remote.nic.clone()));
    let mut pairs: Vec<Pair> = candidates(true).filter(|pair| once(pair)).collect();
    let reached: (BTreeSet<_>, BTreeSet<_>) = pairs.iter().map(|p| (p.local.nic.clone(), p.remote.nic.clone())).unzip();
    pairs
        .extend(candidates(false).filter(|pair| {
            !reached.0.contains(&pair.local.nic) && !reached.1.contains(&pair.remote.nic) && once(pair)
        }));
    spread(pairs)
}

/// Orders pairs so that each round uses every local NIC once, and different remote ones as far as possible.
fn spread(mut pairs: Vec<Pair>) -> Vec<Pair> {
    let mut ordered = Vec::with_capacity(pairs.len());
    while !pairs.is_empty() {
        let (mut locals, mut remotes) = (BTreeSet::new(), BTreeSet::new());
        let mut rest = Vec::new();
        for pair in pairs {
            if locals.contains(&pair.local.nic) || remotes.contains(&pair.remote.nic) {
                rest.push(pair);
            } else {
                locals.insert(pair.local.nic.clone());
                remotes.insert(pair.remote.nic.clone());
                ordered.push(pair);
            }
        }
        pairs = rest;
    }
    ordered.truncate(PATHS_MAX);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(list: &[(&str, &str)]) -> Vec<Address> {
        let parse = |(nic, text): &(&str, &str)| {
            let (ip, prefix) = text.split_once('/').unwrap();
            Address { ip: ip.parse().unwrap(), prefix: prefix.parse().unwrap(), nic: nic.to_string() }
        };
        list.iter().map(parse).collect()
    }

    fn check(local: &[(&str, &str)], remote: &[(&str, &str)], expected: &[&str]) {
        let shown: Vec<String> = pairs(&addresses(local), &addresses(remote))
            .iter()
            .map(|p| format!("{} {} > {} {}", p.local.nic, p.local.ip, p.remote.nic, p.remote.ip))
            .collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn two_subnets_make_two_paths() {
        check(
            &[("a0", "10.0.0.1/24"), ("a1", "10.0.1.1/24")],
            &[("b0", "10.0.0.2/24"), ("b1", "10.0.1.2/24")],
            &["a0 10.0.0.1 > b0 10.0.0.2", "a1 10.0.1.1 > b1 10.0.1.2"],
        );
    }

    #[test]
    fn one_subnet_pairs_every_nic_once_before_any_twice() {
        check(
            &[("a0", "10.0.0.1/24"), ("a1", "10.0.0.2/24")],
            &[("b0", "10.0.0.3/24"), ("b1", "10.0.0.4/24")],
            &[
                "a0 10.0.0.1 > b0 10.0.0.3",
                "a1 10.0.0.2 > b1 10.0.0.4",
                "a0 10.0.0.1 > b1 10.0.0.4",
                "a1 10.0.0.2 > b0 10.0.0.3",
            ],
        );
    }

    #[test]
    fn both_families_on_a_nic_are_one_path() {
        check(
            &[("a0", "10.0.0.1/24"), ("a0", "fd00::1/64"), ("a1", "fd01::1/64")],
            &[("b0", "10.0.0.2/24"), ("b0", "fd00::2/64"), ("b1", "fd01::2/64")],
            &["a0 10.0.0.1 > b0 10.0.0.2", "a1 fd01::1 > b1 fd01::2"],
        );
    }

    #[test]
    fn routed_hosts_try_what_no_subnet_joins() {
        check(
            &[("a0", "10.0.0.1/24"), ("up", "192.0.2.1/24")],
            &[("b0", "10.0.0.2/24"), ("up", "198.51.100.1/24")],
            &["a0 10.0.0.1 > b0 10.0.0.2", "up 192.0.2.1 > up 198.51.100.1"],
        );
    }

    #[test]
    fn addresses_that_both_have_and_link_local_ones_lead_nowhere() {
        check(
            &[("virbr0", "192.168.122.1/24"), ("a0", "10.0.0.1/24"), ("a0", "fe80::1/64"), ("lo", "127.0.0.1/8")],
            &[("virbr0", "192.168.122.1/24"), ("b0", "10.0.0.2/24"), ("b0", "fe80::2/64"), ("lo", "127.0.0.1/8")],
            &["a0 10.0.0.1 > b0 10.0.0.2", "lo 127.0.0.1 > lo 127.0.0.1"],
        );
    }
}
