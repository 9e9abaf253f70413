//! Which hardware carries an interface's traffic in the end, with how many queues, and near which cores.

use crate::core_list::CoreList;
use crate::interface::{BondBelow, Interface};
use crate::layers::Layer;
use crate::source::{Ask, Source};

/// Returns the NICs that carry the traffic of an interface in the end: below bridge and VLAN the NIC, below a bond its
/// members that send, or all of them if none does. Returns none if there is no such interface.
pub fn carriers<'a>(interfaces: &'a [Interface], name: &str) -> Vec<&'a Interface> {
    let Some(below) = below(interfaces, name) else { return Vec::new() };
    let Some(Layer::Bond(_)) = below.layer else { return vec![below] };
    let members: Vec<&Interface> =
        interfaces.iter().filter(|port| port.port_of.as_deref() == Some(below.nic.name.as_str())).collect();
    let sending: Vec<&Interface> = members.iter().copied().filter(|port| sends(port)).collect();
    if sending.is_empty() { members } else { sending }
}

/// Returns the bond that carries the traffic of an interface, if one does.
pub fn bond_below(interfaces: &[Interface], name: &str) -> Option<BondBelow> {
    let below = below(interfaces, name)?;
    let Some(Layer::Bond(bond)) = &below.layer else { return None };
    let members = carriers(interfaces, name).into_iter().filter(|port| sends(port)).count() as u32;
    let members = bond.aggregated.map_or(members, |aggregated| members.min(aggregated.into()));
    Some(BondBelow { name: below.nic.name.clone(), bond: bond.clone(), members })
}

/// Returns the NIC or bond below bridges and VLANs.
fn below<'a>(interfaces: &'a [Interface], name: &str) -> Option<&'a Interface> {
    let find = |name: &str| interfaces.iter().find(|of| of.nic.name == name);
    let of = find(name)?;
    Some(of.uplink.as_deref().and_then(find).unwrap_or(of))
}

/// Returns whether a bond's member sends.
fn sends(port: &Interface) -> bool {
    port.nic.up() && port.bond_port.as_ref().is_some_and(|of| of.active && of.link)
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
