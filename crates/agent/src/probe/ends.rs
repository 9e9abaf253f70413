//! Tells what is at the ends of paths, and which NICs have none.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use skein_api::{ProbedEnd, ProbedPath, RoundTrip, UnusedPair};
use skein_dataplane::{DialedPath, NicAddress, PathSurvey, PathUse, is_routable};
use skein_inventory::printable;
use skein_network::{Duplex, Interface, InterfaceAddress, NicDcb, dcb_of};

/// Bounds words of the other host.
const WORDS_BYTES_MAX: usize = 100;
/// Bounds the NICs without a path that are told.
const PATHLESS_MAX: usize = 16;

pub(super) fn fit(name: &str) -> String {
    printable(name.to_owned(), WORDS_BYTES_MAX)
}

fn network(address: &InterfaceAddress) -> (IpAddr, u8) {
    (address.network(), address.prefix_len)
}

/// Returns the NICs of either host that have an address in a network of both and no path. `hosts`, `interfaces` and
/// `with_path` are of this host and of the other.
pub(super) fn pathless(
    hosts: [&str; 2],
    interfaces: [&[Interface]; 2],
    with_path: [BTreeSet<&str>; 2],
) -> Vec<UnusedPair> {
    let addresses = |of: &'_ [Interface]| -> Vec<(String, bool, InterfaceAddress)> {
        let of_nic = |of: &Interface| {
            let (name, is_up) = (of.nic.name.clone(), of.nic.up());
            let routable = of.nic.addresses.iter().filter(|address| leads_elsewhere(address.ip)).copied();
            routable.map(move |address| (name.clone(), is_up, address)).collect::<Vec<_>>()
        };
        of.iter().flat_map(of_nic).collect()
    };
    let [own, others] = interfaces.map(addresses);
    let mut told: [BTreeSet<String>; 2] = Default::default();
    let mut pairs = Vec::new();
    for (nic, is_up, address) in &own {
        for (remote_nic, is_remote_up, remote) in &others {
            // Guests' bridges often have the same address on all hosts.
            let is_joined = network(address) == network(remote) && address.ip != remote.ip;
            let is_new = [(nic, 0), (remote_nic, 1)]
                .into_iter()
                .any(|(nic, at): (&String, usize)| !with_path[at].contains(&nic[..]) && !told[at].contains(nic));
            if !is_joined || !is_new || pairs.len() >= PATHLESS_MAX {
                continue;
            }
            told[0].insert(nic.clone());
            told[1].insert(remote_nic.clone());
            let why = match (is_up, is_remote_up) {
                (true, true) => "the session uses neither or only one of them".to_owned(),
                (false, true) => format!("the link of {} is down at {}", fit(nic), hosts[0]),
                (true, false) => format!("the link of {} is down at {}", fit(remote_nic), hosts[1]),
                (false, false) => "the links of both are down".to_owned(),
            };
            pairs.push(UnusedPair {
                nic: fit(nic),
                remote_nic: fit(remote_nic),
                why,
                is_down: !is_up || !is_remote_up,
            });
        }
    }
    pairs
}

fn leads_elsewhere(ip: IpAddr) -> bool {
    is_routable(ip) && !ip.is_loopback()
}

/// Returns what an end of a path is. `interfaces` are those of its host, as far as they are known.
fn end(of: &NicAddress, interfaces: &[Interface]) -> ProbedEnd {
    let carries = of.uplink.as_deref().unwrap_or(&of.nic);
    let interface = interfaces.iter().find(|interface| interface.nic.name == carries);
    ProbedEnd {
        nic: fit(&of.nic),
        address: of.ip.to_string(),
        speed_mbit: of.speed_mbit.filter(|mbit| *mbit > 0),
        mtu: of.mtu,
        half_duplex: interface.is_some_and(|interface| interface.driver.duplex == Some(Duplex::Half)),
        dcb: dcb_of(interfaces, &of.nic).into_iter().map(|dcb| NicDcb { nic: fit(&dcb.nic), ..dcb }).collect(),
    }
}

/// Returns what a path is, and what packets found of it.
pub(super) fn looked_at(path: &DialedPath, survey: &PathSurvey, own: &[Interface], others: &[Interface]) -> ProbedPath {
    let median = |sorted: &[Duration]| sorted.get(sorted.len() / 2).copied();
    let round_trip = survey
        .round_trips
        .first()
        .zip(median(&survey.round_trips))
        .map(|(least, median)| RoundTrip { least_us: least.as_micros() as u64, median_us: median.as_micros() as u64 });
    let [mut local, mut remote] = [end(&path.local, own), end(&path.remote, others)];
    if !local.dcb.iter().chain(&remote.dcb).any(NicDcb::has_any) {
        local.dcb.clear();
        remote.dcb.clear();
    }
    ProbedPath {
        local,
        remote,
        carries: if path.carries == PathUse::Data { String::new() } else { path.carries.to_string() },
        round_trip,
        passes_bytes: survey.passes,
        lost_bytes: survey.lost,
        ..ProbedPath::default()
    }
}

#[cfg(test)]
mod tests {
    use skein_network::{Recording, read};

    use super::*;

    /// Returns interfaces with these names and addresses, and whether they are up.
    fn interfaces(list: &[(&str, &str, bool)]) -> Vec<Interface> {
        let recording = include_str!("../../../network/tests/recordings/bond-vlan-bridge.json");
        let recording: Recording = serde_json::from_str(recording).unwrap();
        let some = read(&recording).unwrap().remove(0);
        let of = |(name, address, is_up): &(&str, &str, bool)| {
            let mut of = some.clone();
            (of.nic.name, of.nic.admin_up, of.nic.carrier) = ((*name).into(), true, *is_up);
            let ip = address.parse().unwrap();
            of.nic.addresses = vec![InterfaceAddress { ip, prefix_len: 24, usable: true }];
            of
        };
        list.iter().map(of).collect()
    }

    #[test]
    fn nics_in_a_common_network_without_a_path_are_told() {
        let own = interfaces(&[
            ("eth0", "10.7.0.1", true),
            ("eth1", "10.7.1.1", false),
            ("eth2", "10.7.2.1", true),
            ("guests", "172.17.0.1", true),
            ("mgmt", "192.168.9.1", true),
            ("link", "169.254.0.1", true),
        ]);
        let others = interfaces(&[
            ("eth0", "10.7.0.2", true),
            ("eth1", "10.7.1.2", true),
            ("eth3", "10.7.2.2", true),
            ("guests", "172.17.0.1", true),
            ("lan", "192.168.8.1", true),
            ("link", "169.254.0.2", true),
        ]);
        let told = pathless(["a", "b"], [&own, &others], [["eth0"].into(), ["eth0"].into()]);
        let told: Vec<_> = told.iter().map(|pair| (&pair.nic[..], &pair.remote_nic[..], pair.is_down)).collect();
        assert_eq!(told, [("eth1", "eth1", true), ("eth2", "eth3", false)]);
        let all = [["eth0", "eth1", "eth2"].into(), ["eth0", "eth1", "eth3"].into()];
        assert_eq!(pathless(["a", "b"], [&own, &others], all), []);
        // A second NIC of one end is told as well.
        let two = interfaces(&[("eth0", "10.7.0.1", true), ("eth9", "10.7.0.9", false)]);
        let told = pathless(["a", "b"], [&two, &others], [["eth0"].into(), ["eth0"].into()]);
        assert_eq!((told.len(), &told[0].nic[..]), (1, "eth9"));
        assert_eq!(told[0].why, "the link of eth9 is down at a");
    }
}
