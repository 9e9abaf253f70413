//! Which local and remote addresses make a path.
//!
//! Two NICs that share a subnet reach each other without a router. A NIC that shares no subnet with the peer is tried
//! against every NIC of the peer that is not reached otherwise, because there may be routes. Each pair of NICs is one
//! path, however many addresses they have.
//!
//! If there are more pairs than a session may have paths, pairs are taken in this order:
//!
//! 1. the pair on which the session began, and addresses that the configuration names;
//! 2. for each subnet in common its best pair, if there are not too many: faults of one subnet then leave the others;
//! 3. NICs that no path uses yet: in common subnets before others, the fastest first. VLANs and bridges count as the
//!    NIC below them;
//! 4. NICs that have a path already, the least used first: a way round a NIC that fails.
//!
//! Pairs that were tried and never worked come after all others. The choice depends only on its input, and not on the
//! order of the addresses.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::address::{NicAddress, network_bits};
use crate::limits::ADDRESSES_MAX;

/// Most paths of a session: two for each of eight NICs.
pub const PATHS_MAX: usize = 16;

/// Speed that is assumed of a NIC whose driver does not tell its speed: that of the cheapest NICs.
const SPEED_UNKNOWN_MBIT: u32 = 1000;

/// The name of the loopback interface, which is Linux's on every host.
const LOOPBACK_NIC: &str = "lo";

/// A path that may work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// This end's address.
    pub local: NicAddress,
    /// The other end's address.
    pub remote: NicAddress,
}

/// The identity of a path: what stays of a [`Pair`] when the speeds of its NICs change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ends {
    /// This end's address and NIC.
    pub local: (IpAddr, String),
    /// The other end's address and NIC.
    pub remote: (IpAddr, String),
}

impl Pair {
    /// Returns the identity of the path.
    pub fn ends(&self) -> Ends {
        let end = |address: &NicAddress| (address.ip, address.nic.clone());
        Ends { local: end(&self.local), remote: end(&self.remote) }
    }

    /// Returns the speed of the slower end in Mb/s. `None`: neither end's speed is known.
    pub fn speed_mbit(&self) -> Option<u32> {
        slower(self.local.speed_mbit, self.remote.speed_mbit)
    }
}

/// What a choice prefers.
#[derive(Clone, Debug, Default)]
pub struct Preference {
    /// Addresses of either end that the configuration names.
    pub named: BTreeSet<IpAddr>,
    /// Pairs that were tried and never worked.
    pub failed: BTreeSet<Ends>,
    /// A pair that is chosen in any case, if it is among the candidates.
    pub first: Option<Ends>,
}

/// Which pairs are dialled, and which are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The pairs to dial: at most [`PATHS_MAX`], best first. The first few already use every NIC.
    pub pairs: Vec<Pair>,
    /// Speed that is not used: for each local NIC without a path, and each uplink once, the best pair that would reach
    /// an uplink of the peer that has no path either. Best first.
    pub left_out: Vec<Pair>,
}

/// A subnet: whether it is IPv4, the bits of its prefix, the prefix.
type Subnet = (bool, u8, u128);

fn subnet(address: &NicAddress) -> Subnet {
    (address.ip.is_ipv4(), address.prefix, network_bits(address.ip, address.prefix))
}

/// Returns whether two addresses are of one network.
pub fn is_same_network(one: &NicAddress, other: &NicAddress) -> bool {
    subnet(one) == subnet(other)
}

/// Returns whether an address can be that of another host's NIC, or of this host's loopback.
pub fn is_routable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_link_local() && !ip.is_multicast() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local() && !ip.is_multicast() && !ip.is_unspecified(),
    }
}

/// Returns the addresses of an end that may have paths, beside `first`, at which the session began. A session over
/// loopback addresses stays there, and others need a NIC: what else is on the loopback interface (the address of a
/// migration network, say) leads nowhere. Hosts that are only reached at such an address begin there.
pub fn usable_beside(list: Vec<NicAddress>, first: &NicAddress) -> Vec<NicAddress> {
    let is_of_nic =
        |address: &NicAddress| address.ip == first.ip || address.nic != LOOPBACK_NIC || address.ip.is_loopback();
    let is_same_kind = |address: &NicAddress| address.ip.is_loopback() == first.ip.is_loopback();
    list.into_iter().filter(|address| is_same_kind(address) && is_of_nic(address)).collect()
}

fn slower(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (known, None) | (None, known) => known,
    }
}

/// Returns the addresses to tell a peer: all, or if there are too many, those that matter to the peer. `peer`: its
/// addresses, as far as they are known. `pinned`: addresses that are told in any case.
pub fn announced(mut all: Vec<NicAddress>, peer: &[NicAddress], pinned: &[IpAddr]) -> Vec<NicAddress> {
    if all.len() <= ADDRESSES_MAX {
        return all;
    }
    let common: BTreeSet<Subnet> = peer.iter().map(subnet).collect();
    // If both ends have too many addresses and nothing else decides, both keep the same subnets.
    all.sort_by_cached_key(|address| {
        let kept = pinned.contains(&address.ip) || address.ip.is_loopback();
        let speed = address.speed_mbit.unwrap_or(SPEED_UNKNOWN_MBIT);
        (!kept, !common.contains(&subnet(address)), Reverse(speed), subnet(address), address.clone())
    });
    all.truncate(ADDRESSES_MAX);
    all.sort();
    all
}

/// A pair that may be chosen. It has numbers instead of names, since a host may have hundreds of NICs.
struct Candidate {
    local: usize,
    remote: usize,
    /// The subnet in common. `None`: only a route may join the pair.
    subnet: Option<Subnet>,
    /// The addresses of the pair that the configuration names.
    named: [Option<IpAddr>; 2],
    failed: bool,
    speed: u32,
    /// The local and the remote uplink that carry the path, as indices of [`Load`].
    uplinks: (usize, usize),
}

/// The number of paths on each uplink of both ends.
#[derive(Default)]
struct Load {
    local: Vec<usize>,
    remote: Vec<usize>,
}

impl Load {
    fn of(&self, candidate: &Candidate) -> usize {
        self.local[candidate.uplinks.0].max(self.remote[candidate.uplinks.1])
    }

    fn add(&mut self, candidate: &Candidate) {
        self.local[candidate.uplinks.0] += 1;
        self.remote[candidate.uplinks.1] += 1;
    }
}

/// Chooses the pairs worth dialling. Loopback addresses pair only with each other, for two ends on one host.
pub fn choose(local: &[NicAddress], remote: &[NicAddress], preference: &Preference) -> Choice {
    let (local, remote) = (sorted(local), sorted(remote));
    let (candidates, mut load) = candidates(&local, &remote, preference);
    let pair = |at: &usize| {
        let candidate = &candidates[*at];
        Pair { local: local[candidate.local].clone(), remote: remote[candidate.remote].clone() }
    };
    let common: BTreeSet<_> =
        candidates.iter().filter(|candidate| !candidate.failed).filter_map(|c| c.subnet).collect();
    let all_fit = common.len() <= PATHS_MAX;
    let mut left: Vec<usize> = (0..candidates.len()).collect();
    let mut next =
        preference.first.as_ref().and_then(|first| left.iter().copied().find(|at| pair(at).ends() == *first));
    let (mut taken, mut subnets, mut served) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    while taken.len() < PATHS_MAX {
        let rank = |at: &&usize| {
            let candidate = &candidates[**at];
            let is_named = candidate.named.iter().flatten().any(|ip| !served.contains(ip));
            let is_new = !candidate.failed && candidate.subnet.is_some_and(|subnet| !subnets.contains(&subnet));
            let speed = Reverse(candidate.speed);
            let load = load.of(candidate);
            (candidate.failed, !is_named, !is_new && all_fit, load, candidate.subnet.is_none(), speed, !is_new, **at)
        };
        let Some(at) = next.take().or_else(|| left.iter().min_by_key(rank).copied()) else { break };
        left.retain(|other| *other != at);
        let candidate = &candidates[at];
        load.add(candidate);
        subnets.extend(candidate.subnet);
        served.extend(candidate.named.into_iter().flatten());
        taken.push(at);
    }
    let left_out = left_out(&candidates, left, load);
    Choice { pairs: taken.iter().map(pair).collect(), left_out: left_out.iter().map(pair).collect() }
}

fn sorted(addresses: &[NicAddress]) -> Vec<NicAddress> {
    let mut sorted = addresses.to_vec();
    sorted.sort();
    sorted.dedup();
    sorted
}

/// Returns all pairs of NICs that may work, each by its best addresses, and uplinks without load.
fn candidates(local: &[NicAddress], remote: &[NicAddress], preference: &Preference) -> (Vec<Candidate>, Load) {
    let own: BTreeSet<IpAddr> = local.iter().map(|a| a.ip).filter(|ip| !ip.is_loopback()).collect();
    let end = |addresses: &[NicAddress]| {
        let (mut nics, mut uplinks) = (Numbers::default(), Numbers::default());
        let numbers: Vec<(usize, usize)> =
            addresses.iter().map(|a| (nics.of(&a.nic), uplinks.of(a.uplink.as_deref().unwrap_or(&a.nic)))).collect();
        let subnets: Vec<Subnet> = addresses.iter().map(subnet).collect();
        (numbers, subnets, nics.0.len(), uplinks.0.len())
    };
    let (local_numbers, local_subnets, local_nics, local_uplinks) = end(local);
    let (remote_numbers, remote_subnets, remote_nics, remote_uplinks) = end(remote);
    let failed: BTreeSet<_> = preference
        .failed
        .iter()
        .map(|ends| (&ends.local.0, &ends.local.1[..], &ends.remote.0, &ends.remote.1[..]))
        .collect();
    let named = |ip: IpAddr| preference.named.contains(&ip).then_some(ip);
    // The best candidate by the numbers of both NICs.
    let mut best: BTreeMap<(usize, usize), Candidate> = BTreeMap::new();
    let mut reached = (vec![false; local_nics], vec![false; remote_nics]);
    for direct in [true, false] {
        for (l, r) in (0..local.len()).flat_map(|l| (0..remote.len()).map(move |r| (l, r))) {
            let (a, b) = (&local[l], &remote[r]);
            let is_direct = local_subnets[l] == remote_subnets[r] || a.ip.is_loopback();
            let ((local_nic, local_uplink), (remote_nic, remote_uplink)) = (local_numbers[l], remote_numbers[r]);
            let usable = is_direct == direct
                && a.ip.is_ipv4() == b.ip.is_ipv4()
                && a.ip.is_loopback() == b.ip.is_loopback()
                && is_routable(a.ip)
                && is_routable(b.ip)
                // An address that both ends have (of a bridge for guests, say) leads back here.
                && !own.contains(&b.ip);
            if !usable || !direct && (reached.0[local_nic] || reached.1[remote_nic]) {
                continue;
            }
            let candidate = Candidate {
                local: l,
                remote: r,
                subnet: direct.then_some(local_subnets[l]),
                named: [named(a.ip), named(b.ip)],
                failed: failed.contains(&(&a.ip, &a.nic[..], &b.ip, &b.nic[..])),
                speed: slower(a.speed_mbit, b.speed_mbit).unwrap_or(SPEED_UNKNOWN_MBIT),
                uplinks: (local_uplink, remote_uplink),
            };
            let quality = |candidate: &Candidate| (!candidate.failed, candidate.named.iter().flatten().count());
            let known = best.get(&(local_nic, remote_nic));
            if known.is_none_or(|known| quality(&candidate) > quality(known)) {
                best.insert((local_nic, remote_nic), candidate);
            }
        }
        for (local_nic, remote_nic) in best.keys() {
            (reached.0[*local_nic], reached.1[*remote_nic]) = (true, true);
        }
    }
    let mut candidates: Vec<Candidate> = best.into_values().collect();
    candidates.sort_by_key(|candidate| (candidate.local, candidate.remote));
    (candidates, Load { local: vec![0; local_uplinks], remote: vec![0; remote_uplinks] })
}

/// Numbers names from 0 on.
#[derive(Default)]
struct Numbers<'a>(BTreeMap<&'a str, usize>);

impl<'a> Numbers<'a> {
    fn of(&mut self, name: &'a str) -> usize {
        let next = self.0.len();
        *self.0.entry(name).or_insert(next)
    }
}

/// Returns the pairs of [`Choice::left_out`].
fn left_out(candidates: &[Candidate], mut left: Vec<usize>, mut load: Load) -> Vec<usize> {
    let any_direct = candidates.iter().any(|candidate| candidate.subnet.is_some());
    // Where a subnet joins the hosts, a NIC that shares no subnet rarely has a route: mostly it is in a guests'
    // network.
    left.retain(|at| !candidates[*at].failed && (candidates[*at].subnet.is_some() || !any_direct));
    left.sort_by_key(|at| (Reverse(candidates[*at].speed), *at));
    left.retain(|at| {
        let is_free = load.of(&candidates[*at]) == 0;
        if is_free {
            load.add(&candidates[*at]);
        }
        is_free
    });
    left
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_on_the_loopback_interface_are_no_nics() {
        let of = |nic: &str, ip: [u8; 4], prefix| NicAddress::new(ip.into(), prefix, nic);
        let [nic, network] = [of("eth0", [10, 7, 0, 1], 24), of("lo", [10, 9, 9, 1], 32)];
        let loopbacks = [of("lo", [127, 0, 0, 1], 8), of("lo", [127, 0, 0, 2], 8)];
        let all: Vec<NicAddress> = [nic.clone(), network.clone()].into_iter().chain(loopbacks.clone()).collect();
        assert_eq!(usable_beside(all.clone(), &nic), std::slice::from_ref(&nic));
        assert_eq!(usable_beside(all.clone(), &network), [nic, network]);
        assert_eq!(usable_beside(all, &loopbacks[0]), loopbacks);
    }

    #[test]
    fn networks_are_told_by_their_prefix() {
        let of = |ip: &str, prefix| NicAddress::new(ip.parse().unwrap(), prefix, "eth0");
        assert!(is_same_network(&of("10.7.0.1", 24), &of("10.7.0.2", 24)));
        assert!(!is_same_network(&of("10.7.0.1", 24), &of("10.7.1.2", 24)));
        assert!(!is_same_network(&of("10.7.0.1", 24), &of("10.7.0.2", 16)));
    }

    fn addresses(list: &[(&str, &str)]) -> Vec<NicAddress> {
        let parse = |(nic, text): &(&str, &str)| {
            let (ip, prefix) = text.split_once('/').unwrap();
            NicAddress::new(ip.parse().unwrap(), prefix.parse().unwrap(), nic)
        };
        list.iter().map(parse).collect()
    }

    fn shown(pairs: &[Pair]) -> Vec<String> {
        let shown = |p: &Pair| format!("{} {} > {} {}", p.local.nic, p.local.ip, p.remote.nic, p.remote.ip);
        pairs.iter().map(shown).collect()
    }

    fn check(local: &[(&str, &str)], remote: &[(&str, &str)], expected: &[&str]) {
        let choice = choose(&addresses(local), &addresses(remote), &Preference::default());
        assert_eq!(shown(&choice.pairs), expected);
        assert_eq!(choice.left_out, []);
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

    /// Returns a NIC with an address in subnet `subnet`, on an uplink of its own.
    fn nic(end: u8, number: u8, subnet: u8, speed_mbit: Option<u32>) -> NicAddress {
        let ip = IpAddr::from([10, 0, subnet, 2 * number + end]);
        NicAddress { speed_mbit, ..NicAddress::new(ip, 24, &format!("e{number}")) }
    }

    /// Returns two hosts that have a NIC for each of these speeds, each in a subnet of its own.
    fn hosts(speeds: &[Option<u32>]) -> (Vec<NicAddress>, Vec<NicAddress>) {
        let host = |end| (0..).zip(speeds).map(|(i, speed)| nic(end, i, i, *speed)).collect();
        (host(0), host(1))
    }

    #[test]
    fn of_too_many_the_slowest_is_left_out_and_told() {
        let mut speeds = [Some(1000); PATHS_MAX + 1];
        (speeds[3], speeds[PATHS_MAX]) = (Some(100), Some(25_000));
        let (a, b) = hosts(&speeds);
        let Choice { pairs, left_out } = choose(&a, &b, &Preference::default());
        assert_eq!((pairs.len(), pairs[0].speed_mbit()), (PATHS_MAX, Some(25_000)));
        assert_eq!(shown(&left_out), ["e3 10.0.3.6 > e3 10.0.3.7"]);
        // A pair that the configuration names, or on which the session began, is not left out; another pair is.
        let named = Preference { named: [b[3].ip].into(), ..Default::default() };
        let first = Preference { first: Some(left_out[0].ends()), ..Default::default() };
        for preference in [named, first] {
            let choice = choose(&a, &b, &preference);
            assert_eq!(choice.pairs[0], left_out[0]);
            assert_eq!(choice.left_out[0].speed_mbit(), Some(1000));
        }
        // A pair that never worked makes room.
        let failed = Preference { failed: [pairs[0].ends()].into(), ..Default::default() };
        let choice = choose(&a, &b, &failed);
        assert!(choice.pairs.contains(&left_out[0]) && !choice.pairs.contains(&pairs[0]) && choice.left_out.is_empty());
    }

    #[test]
    fn hundreds_of_vlans_on_one_nic_leave_room_for_another_nic() {
        let vlan = |end: u8, i: u8| NicAddress { uplink: Some("bond0".into()), ..nic(end, i % 100, i, Some(25_000)) };
        let vlan = |end: u8, i: u8| NicAddress { nic: format!("bond0.{i}"), ..vlan(end, i) };
        let host = |end: u8| -> Vec<NicAddress> {
            (0..250).map(|i| vlan(end, i)).chain([nic(end, 3, 252, Some(10_000)), nic(end, 4, 253, None)]).collect()
        };
        let Choice { pairs, left_out } = choose(&host(0), &host(1), &Preference::default());
        let nics: Vec<&str> = pairs[..3].iter().map(|pair| &pair.local.nic[..]).collect();
        assert_eq!((pairs.len(), nics), (PATHS_MAX, vec!["bond0.0", "e3", "e4"]));
        assert_eq!(left_out, [], "their NIC is used");
    }

    #[test]
    fn of_too_many_addresses_those_in_common_are_told() {
        let all: Vec<NicAddress> = (0..=u8::MAX)
            .flat_map(|i| [nic(0, 1, i, None), NicAddress { ip: [10, 1, i, 1].into(), ..nic(0, 1, i, Some(40_000)) }])
            .chain([nic(0, 2, 7, Some(10)), NicAddress::new([127, 0, 0, 1].into(), 8, "lo")])
            .collect();
        let pinned = all[0].ip;
        let peer = [NicAddress { ip: [10, 1, 200, 9].into(), ..nic(1, 1, 1, None) }, nic(1, 1, 7, None)];
        let told = announced(all.clone(), &peer, &[pinned]);
        assert_eq!(told.len(), ADDRESSES_MAX);
        for ip in [pinned, [10, 1, 200, 1].into(), [10, 0, 7, 4].into(), [127, 0, 0, 1].into()] {
            assert!(told.iter().any(|address| address.ip == ip), "{ip}");
        }
        assert_eq!(announced(all[..9].to_vec(), &[], &[]), all[..9]);
    }

    fn host(end: u8) -> impl Strategy<Value = Vec<NicAddress>> {
        let speed = prop_oneof![Just(None), prop::sample::select(vec![100, 1000, 10_000, 25_000]).prop_map(Some)];
        let one = (0u8..24, 0u8..30, speed, 0u8..40);
        prop::collection::vec(one, 1..40).prop_map(move |nics| {
            let address = |(i, (subnet, _, speed, uplink)): (u8, (u8, u8, Option<u32>, u8))| {
                // A third of the NICs are VLANs.
                let uplink = (uplink < 13).then(|| format!("bond{}", uplink % 3));
                NicAddress { uplink, ..nic(end, i, subnet, speed) }
            };
            (0..).zip(nics).map(address).collect()
        })
    }

    proptest! {
        #[test]
        fn every_subnet_is_reached_and_no_nic_gives_way_to_a_slower_one(
            a in host(0),
            b in host(1),
            failed in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..20),
            turn in any::<prop::sample::Index>(),
        ) {
            let failed: BTreeSet<Ends> = failed
                .iter()
                .map(|(x, y)| Pair { local: x.get(&a).clone(), remote: y.get(&b).clone() }.ends())
                .collect();
            let preference = Preference { failed: failed.clone(), ..Default::default() };
            let choice = choose(&a, &b, &preference);
            let pairs = &choice.pairs;
            let (mut turned_a, mut turned_b) = (a.clone(), b.clone());
            turned_a.rotate_left(turn.index(a.len()));
            turned_b.reverse();
            prop_assert_eq!(&choose(&turned_a, &turned_b, &preference), &choice);

            let nics: BTreeSet<_> = pairs.iter().map(|pair| (&pair.local.nic, &pair.remote.nic)).collect();
            prop_assert!(pairs.len() <= PATHS_MAX && nics.len() == pairs.len());
            // Each NIC here has one address, so that each pair of addresses in a subnet is a candidate.
            let works = |pair: &Pair| !failed.contains(&pair.ends());
            let all: Vec<Pair> = a
                .iter()
                .flat_map(|x| b.iter().map(move |y| Pair { local: x.clone(), remote: y.clone() }))
                .filter(|pair| subnet(&pair.local) == subnet(&pair.remote) && works(pair))
                .collect();
            let common: BTreeSet<Subnet> = all.iter().map(|pair| subnet(&pair.local)).collect();
            let taken = |wanted: Subnet| {
                pairs.iter().filter(move |pair| subnet(&pair.local) == wanted && subnet(&pair.remote) == wanted)
            };
            if common.len() <= PATHS_MAX {
                prop_assert!(common.iter().all(|subnet| taken(*subnet).next().is_some()));
            }
            let uplink = |address: &NicAddress| address.uplink.clone().unwrap_or_else(|| address.nic.clone());
            let used: (BTreeSet<String>, BTreeSet<String>) =
                pairs.iter().map(|pair| (uplink(&pair.local), uplink(&pair.remote))).unzip();
            let speed = |pair: &Pair| pair.speed_mbit().unwrap_or(SPEED_UNKNOWN_MBIT);
            for out in all.iter().filter(|pair| !pairs.contains(pair)) {
                if used.0.contains(&uplink(&out.local)) || used.1.contains(&uplink(&out.remote)) {
                    continue;
                }
                prop_assert_eq!(pairs.len(), PATHS_MAX);
                for pair in pairs.iter().filter(|pair| works(pair)) {
                    let own = subnet(&pair.local);
                    // All subnets should have a path, and this path was the first of its subnet.
                    let is_first = taken(own).next() == Some(pair);
                    let is_due = common.len() <= PATHS_MAX && own != subnet(&out.local) && is_first;
                    prop_assert!(is_due || speed(pair) >= speed(out), "{pair:?} was taken, {out:?} was not");
                }
                let told = |left: &Pair| {
                    uplink(&left.local) == uplink(&out.local) || uplink(&left.remote) == uplink(&out.remote)
                };
                prop_assert!(choice.left_out.iter().any(told));
            }
        }
    }
}
