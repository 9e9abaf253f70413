//! Which hardware carries an interface's traffic in the end, with how many queues, and near which cores.

use crate::any_bond::{AnyBond, BondBelow};
use crate::core_list::CoreList;
use crate::interface::Interface;
use crate::layers::Layer;
use crate::nic::{self, LAYERS_MAX};
use crate::ovs::{OvsMember, OvsPort, OvsUplink};
use crate::source::{Ask, Source};

/// Returns the NICs that carry the traffic of an interface in the end: below bridge and VLAN the NIC, below a bond its
/// members that send, or all of them if none does. Returns none if there is no such interface.
pub fn carriers<'a>(interfaces: &'a [Interface], name: &str) -> Vec<&'a Interface> {
    let Some(below) = below(interfaces, name) else { return Vec::new() };
    let members = match below {
        Below::Nic(nic) => return vec![nic],
        Below::Ovs(of, uplink) => {
            let sending = in_kernel(interfaces, uplink.sending());
            let members = if sending.is_empty() { in_kernel(interfaces, uplink.members.iter()) } else { sending };
            // What the kernel does not have, as with DPDK, is not among the interfaces.
            return if members.is_empty() { vec![of] } else { members };
        }
        Below::Bond(bond) => interfaces.iter().filter(|port| port.port_of.as_ref() == Some(&bond.nic.name)),
    };
    let members: Vec<&Interface> = members.collect();
    let sending: Vec<&Interface> = members.iter().copied().filter(|port| sends(port)).collect();
    if sending.is_empty() { members } else { sending }
}

/// Returns the bond that carries the traffic of an interface, if one does.
pub fn bond_below(interfaces: &[Interface], name: &str) -> Option<BondBelow> {
    let of = match below(interfaces, name)? {
        Below::Nic(_) => return None,
        Below::Ovs(_, uplink) => {
            let (members, bond) = (uplink.sending().count() as u32, AnyBond::Ovs(uplink.clone()));
            return Some(BondBelow { name: uplink.port.clone(), bond, members });
        }
        Below::Bond(of) => of,
    };
    let members = carriers(interfaces, name).into_iter().filter(|port| sends(port)).count() as u32;
    let name = of.nic.name.clone();
    match (&of.layer, &of.team) {
        (Some(Layer::Bond(bond)), _) => {
            let members = bond.aggregated.map_or(members, |aggregated| members.min(aggregated.into()));
            Some(BondBelow { name, bond: AnyBond::Bond(bond.clone()), members })
        }
        (_, Some(team)) => Some(BondBelow { name, bond: AnyBond::Team(team.clone()), members }),
        _ => None,
    }
}

/// What is below bridges and VLANs.
enum Below<'a> {
    Nic(&'a Interface),
    /// A bond, or a team.
    Bond(&'a Interface),
    /// An interface of Open vSwitch, and the bond through which its bridge leads out of the host.
    Ovs(&'a Interface, &'a OvsUplink),
}

fn below<'a>(interfaces: &'a [Interface], name: &str) -> Option<Below<'a>> {
    let mut at = interfaces.iter().find(|of| of.nic.name == name)?;
    for _ in 0..LAYERS_MAX {
        if let Some(uplink) = at.ovs.as_ref().and_then(OvsPort::only_uplink).filter(|uplink| uplink.bond.is_some()) {
            return Some(Below::Ovs(at, uplink));
        }
        let below = nic::below(interfaces.iter().map(|of| &of.nic), &at.nic);
        match below.and_then(|below| interfaces.iter().find(|of| of.nic.index == below.index)) {
            Some(below) => at = below,
            None => break,
        }
    }
    let is_bond = matches!(at.layer, Some(Layer::Bond(_))) || at.team.is_some();
    Some(if is_bond { Below::Bond(at) } else { Below::Nic(at) })
}

fn in_kernel<'a>(interfaces: &'a [Interface], members: impl Iterator<Item = &'a OvsMember>) -> Vec<&'a Interface> {
    let find = |member: &OvsMember| interfaces.iter().find(|of| Some(of.nic.index) == member.index);
    members.filter_map(find).collect()
}

/// Returns whether a bond's or a team's member sends.
fn sends(port: &Interface) -> bool {
    let of_bond = port.bond_port.as_ref().is_some_and(|of| of.active && of.link);
    port.nic.up() && (of_bond || port.team_port.is_some_and(|of| of.active))
}

/// Returns how many queues the traffic of an interface has in each direction: those of the NIC with the fewest. `None`:
/// nobody says.
pub fn queues(interfaces: &[Interface], name: &str) -> Option<u32> {
    carriers(interfaces, name).into_iter().map(queues_of).min()
}

/// Returns a NIC's queues in use. The list of interfaces has those that a driver has room for, which may be more
/// (`alloc_etherdev_mqs`), so a driver's own word counts where there is one.
fn queues_of(of: &Interface) -> u32 {
    match of.driver.channels {
        Some(channels) => channels.combined + channels.rx.min(channels.tx),
        // What is no hardware and tells no queues has its packets carried by whoever sends them.
        None if of.nic.kind.is_some() => 1,
        None => of.nic.rx_queues.min(of.tx_queues),
    }
    .max(1)
}

/// Returns the cores of the NUMA nodes of the NICs that carry an interface's traffic. `None`: the host has one node, or
/// a NIC does not tell its node, so that no core is better than another.
pub fn near_cores(source: &dyn Source, interfaces: &[Interface], name: &str) -> Option<CoreList> {
    if nodes(source).0.len() < 2 {
        return None;
    }
    let carriers = carriers(interfaces, name);
    let of_each: Option<Vec<CoreList>> = carriers
        .into_iter()
        .map(|of| of.device.as_ref()?.numa_node.and_then(|node| cores_of_node(source, node)))
        .collect();
    let cores = CoreList(of_each?.into_iter().flat_map(|list| list.0).collect());
    (!cores.0.is_empty()).then_some(cores)
}

/// Returns the numbers of the host's NUMA nodes.
pub fn nodes(source: &dyn Source) -> CoreList {
    let text = source.ask(&Ask::File("/sys/devices/system/node/online".into())).text();
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Returns the cores of a NUMA node; `None` if there is no such node, or if it has no cores.
pub fn cores_of_node(source: &dyn Source, node: u32) -> Option<CoreList> {
    let text = source.ask(&Ask::File(format!("/sys/devices/system/node/node{node}/cpulist"))).text()?;
    text.parse().ok().filter(|list: &CoreList| !list.0.is_empty())
}
