//! How two hosts are joined, as text: NICs at both ends, and the networks between them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;
use skein_network::{Interface, OvsMember, OvsUplink};
use skein_units::measured::nominal;

use super::carriers::carried_by;
use crate::commands::text::clean_line;

/// Networks that both hosts are in, by the same interfaces.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Join {
    /// The networks, as `10.1.0.0/24`.
    networks: Vec<String>,
    /// What this host has in them.
    local: Vec<End>,
    /// What the other host has in them.
    remote: Vec<End>,
}

/// An interface with an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct End {
    /// The interface.
    name: String,
    /// The hardware that carries it, and what stands between: `eth0 + eth1 > bond0 > vmbr0`.
    carried_by: String,
    /// The speed in Mb/s; `None`: its driver tells none.
    speed_mbit: Option<u32>,
    /// Whether packets can be expected to pass.
    up: bool,
}

/// How two hosts are joined.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Picture {
    /// The networks that both are in.
    joins: Vec<Join>,
    /// This host's interfaces with addresses of which the other host is in no network.
    local_only: Vec<String>,
    /// The other host's interfaces with addresses of which this host is in no network.
    remote_only: Vec<String>,
}

/// The interfaces in each network, by the network's name.
fn networks(interfaces: &[Interface]) -> BTreeMap<String, Vec<End>> {
    let mut found = BTreeMap::<String, BTreeSet<End>>::new();
    for of in interfaces {
        for address in of.nic.addresses.iter().filter(|address| !address.is_link_local()) {
            let end = End {
                name: of.nic.name.clone(),
                carried_by: chain(interfaces, of, &mut BTreeSet::new()),
                speed_mbit: of.nic.speed_mbit,
                up: of.nic.up(),
            };
            found.entry(format!("{}/{}", address.network(), address.prefix_len)).or_default().insert(end);
        }
    }
    found.into_iter().map(|(network, ends)| (network, ends.into_iter().collect())).collect()
}

/// Returns what carries an interface, hardware first. `seen` has the interfaces above: recordings may have circles.
fn chain(all: &[Interface], of: &Interface, seen: &mut BTreeSet<u32>) -> String {
    if !seen.insert(of.nic.index) {
        return of.nic.name.clone();
    }
    if let Some(port) = of.ovs.as_ref().filter(|port| !port.uplinks.is_empty()) {
        let ways: Vec<String> = port.uplinks.iter().map(|uplink| way(all, uplink, &of.nic.name, seen)).collect();
        return format!("{} > {}", ways.join(" or "), of.nic.name);
    }
    let below: Vec<String> = carried_by(all, of).map(|below| chain(all, below, seen)).collect();
    if below.is_empty() { of.nic.name.clone() } else { format!("{} > {}", below.join(" + "), of.nic.name) }
}

/// Returns what carries a way of Open vSwitch out of the host, up to the interface that is named `to`.
fn way(all: &[Interface], uplink: &OvsUplink, to: &str, seen: &mut BTreeSet<u32>) -> String {
    let member = |member: &OvsMember| match all.iter().find(|below| Some(below.nic.index) == member.index) {
        Some(below) => chain(all, below, seen),
        None => member.name.clone(),
    };
    let mut way = vec![uplink.members.iter().map(member).collect::<Vec<_>>().join(" + ")];
    let bridges = uplink.bridges.iter().rev();
    way.extend(uplink.bond.iter().map(|_| &uplink.port).chain(bridges).filter(|name| *name != to).cloned());
    way.join(" > ")
}

impl Picture {
    /// Finds the networks that both hosts are in, by their addresses: whether anything passes there only a probe knows.
    pub(super) fn of(local: &[Interface], remote: &[Interface]) -> Picture {
        let (mut own, mut other) = (networks(local), networks(remote));
        let mut joins: Vec<Join> = Vec::new();
        let common: Vec<String> = own.keys().filter(|name| other.contains_key(*name)).cloned().collect();
        for network in common {
            let (Some(local), Some(remote)) = (own.remove(&network), other.remove(&network)) else { continue };
            match joins.iter_mut().find(|join| join.local == local && join.remote == remote) {
                Some(join) => join.networks.push(network),
                None => joins.push(Join { networks: vec![network], local, remote }),
            }
        }
        let joined = |side: fn(&Join) -> &[End]| -> BTreeSet<&str> {
            joins.iter().flat_map(side).map(|end| end.name.as_str()).collect()
        };
        let alone = |rest: BTreeMap<String, Vec<End>>, joined: BTreeSet<&str>| -> Vec<String> {
            let names: BTreeSet<String> = rest.into_values().flatten().map(|end| end.name).collect();
            names.into_iter().filter(|name| !joined.contains(name.as_str())).collect()
        };
        let local_only = alone(own, joined(|join| &join.local));
        let remote_only = alone(other, joined(|join| &join.remote));
        Picture { joins, local_only, remote_only }
    }

    /// Returns the picture as text, with this host on the left.
    pub(super) fn text(&self, host: &str) -> String {
        let rows: Vec<[String; 3]> = self.joins.iter().flat_map(rows).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (left, middle) = (width(0).max("this host".len()), width(1));
        let mut text = String::new();
        let host = clean_line(host);
        if rows.is_empty() {
            let _ = writeln!(text, "this host and {host} have no network in common by their addresses");
        } else {
            let _ = writeln!(text, "{:left$}{:middle$}{host}", "this host", "");
            for [local, networks, remote] in &rows {
                let _ = writeln!(text, "{local:left$}{networks:middle$}{remote}");
            }
        }
        for (names, of, other) in [(&self.local_only, "this host", &*host), (&self.remote_only, &*host, "this host")] {
            if !names.is_empty() {
                let names = names.iter().map(|name| clean_line(name)).collect::<Vec<_>>().join(", ");
                let _ = writeln!(text, "{of}: {names}: in no network of {other}");
            }
        }
        text
    }
}

/// Returns the lines of a join: what is left, between, and right.
fn rows(join: &Join) -> Vec<[String; 3]> {
    let networks = format!(" {} ", join.networks.join(", "));
    let blank = " ".repeat(networks.chars().count());
    (0..join.local.len().max(join.remote.len()))
        .map(|row| {
            let left = join.local.get(row).map(label).unwrap_or_default();
            let right = join.remote.get(row).map(label).unwrap_or_default();
            let between = if row == 0 { &networks } else { &blank };
            let near = joint(row, join.local.len(), ['┬', '┤', '┘']);
            let far = joint(row, join.remote.len(), ['┬', '├', '└']);
            let line = |joint: char| if joint == ' ' { ' ' } else { '─' };
            [left, format!(" {}{near}{between}{far}{} ", line(near), line(far)), right]
        })
        .collect()
}

/// Returns how the line of a row's end meets the line between the hosts, by the joints of the first, a middle and the
/// last of several ends.
fn joint(row: usize, ends: usize, [first, middle, last]: [char; 3]) -> char {
    match row {
        0 if ends == 1 => '─',
        0 => first,
        _ if row + 1 < ends => middle,
        _ if row + 1 == ends => last,
        _ => ' ',
    }
}

fn label(end: &End) -> String {
    let speed = end.speed_mbit.map_or("speed not known".into(), |mbit| nominal(u64::from(mbit) * 1_000_000));
    let state = if end.up { "" } else { ", NO LINK" };
    format!("{} ({speed}{state})", clean_line(&end.carried_by))
}

#[cfg(test)]
mod tests {
    use skein_network::{InterfaceAddress, Recording};

    use super::*;

    fn host() -> Vec<Interface> {
        let recording = include_str!("../../../../network/tests/recordings/bond-vlan-bridge.json");
        let recording: Recording = serde_json::from_str(recording).unwrap();
        skein_network::read(&recording).unwrap()
    }

    /// Returns hardware with an address.
    fn nic(name: &str, address: &str, mbit: Option<u32>) -> Interface {
        let mut of = host().into_iter().find(|of| of.nic.name == "eth0").unwrap();
        let (ip, prefix_len) = address.split_once('/').unwrap();
        of.nic.name = name.into();
        of.nic.index = 900 + name.bytes().map(u32::from).sum::<u32>();
        (of.nic.master, of.nic.lower, of.nic.speed_mbit) = (None, None, mbit);
        let prefix_len = prefix_len.parse().unwrap();
        of.nic.addresses = vec![InterfaceAddress { ip: ip.parse().unwrap(), prefix_len, usable: true }];
        of
    }

    #[test]
    fn hosts_are_joined_by_networks_seen_through_to_hardware() {
        let mut local = host();
        local.push(nic("mgmt", "192.168.7.1/24", Some(100)));
        local.push(nic("far", "172.16.0.1/16", None));
        let remote = [nic("eth4", "10.7.0.2/24", Some(10_000)), nic("mgmt", "192.168.7.2/24", Some(100))];
        let picture = Picture::of(&local, &remote);
        assert_eq!(
            picture.text("hostb"),
            "\
this host                                                           hostb
eth0 + eth1 > bond0 > bond0.7 > vmbr7 (1 Gb/s) ── 10.7.0.0/24 ──    eth4 (10 Gb/s)
mgmt (100 Mb/s)                                ── 192.168.7.0/24 ── mgmt (100 Mb/s)
this host: bond0, far: in no network of hostb
"
        );
    }

    #[test]
    fn open_vswitch_is_seen_through_to_hardware() {
        let recording = include_str!("../../../../network/tests/recordings/open-vswitch.json");
        let mut local = skein_network::read(&serde_json::from_str::<Recording>(recording).unwrap()).unwrap();
        let of = |local: &[Interface], name: &str| {
            let of = local.iter().find(|of| of.nic.name == name).unwrap();
            chain(local, of, &mut BTreeSet::new())
        };
        assert_eq!(of(&local, "br-ex"), "eth0 + eth1 > bond0 > br-ex");
        assert_eq!(of(&local, "mig0"), "eth0 + eth1 > bond0 > br-ex > br-int > mig0");
        let port = local.iter_mut().find(|of| of.nic.name == "mig0").unwrap().ovs.as_mut().unwrap();
        let [mut first, mut second] = [0, 1].map(|nth| {
            let mut uplink = port.uplinks[0].clone();
            (uplink.bond, uplink.members) = (None, vec![uplink.members[nth].clone()]);
            uplink
        });
        first.bridges.truncate(1);
        // The kernel does not have a NIC of DPDK.
        second.members[0] = OvsMember { name: "dpdk0".into(), index: None, ..second.members[0].clone() };
        port.uplinks = vec![first, second];
        assert_eq!(of(&local, "mig0"), "eth0 > br-int or dpdk0 > br-ex > br-int > mig0");
    }

    #[test]
    fn several_ends_in_a_network_meet_in_a_line() {
        let local = [nic("a0", "10.1.0.1/24", Some(1000)), nic("a1", "10.1.0.2/24", Some(1000))];
        let remote = ["b0", "b1", "b2"].map(|name| nic(name, "10.1.0.9/24", Some(1000)));
        let text = Picture::of(&local, &remote).text("hostb");
        assert_eq!(
            text,
            "\
this host                     hostb
a0 (1 Gb/s) ─┬ 10.1.0.0/24 ┬─ b0 (1 Gb/s)
a1 (1 Gb/s) ─┘             ├─ b1 (1 Gb/s)
                           └─ b2 (1 Gb/s)
"
        );
    }

    #[test]
    fn hosts_without_a_network_in_common_are_told_so() {
        let picture = Picture::of(&[nic("a0", "10.1.0.1/24", None)], &[nic("b0", "10.2.0.1/24", None)]);
        assert_eq!(
            picture.text("hostb"),
            "this host and hostb have no network in common by their addresses\n\
             this host: a0: in no network of hostb\n\
             hostb: b0: in no network of this host\n"
        );
    }
}
