//! What carries an interface.

use skein_network::{Interface, OvsUplink};

/// Returns the interfaces that carry another: members of a bond or bridge, what a VLAN stands on, and the NICs by which
/// Open vSwitch leads out of the host.
pub(super) fn below<'a>(all: &'a [Interface], of: &'a Interface) -> impl Iterator<Item = &'a Interface> {
    let by_ovs: Vec<u32> = of.ovs.iter().flat_map(|port| &port.uplinks).flat_map(indices).collect();
    all.iter().filter(move |below| {
        let number = below.nic.index;
        below.nic.master == Some(of.nic.index) || of.nic.lower == Some(number) || by_ovs.contains(&number)
    })
}

fn indices(uplink: &OvsUplink) -> impl Iterator<Item = u32> {
    uplink.members.iter().filter_map(|member| member.index)
}

/// Returns the same without guests' ends.
pub(super) fn carried_by<'a>(all: &'a [Interface], of: &'a Interface) -> impl Iterator<Item = &'a Interface> {
    below(all, of).filter(|below| !is_guests_end(below))
}

/// Returns whether an interface leads to a guest, or to a container.
pub(super) fn is_guests_end(of: &Interface) -> bool {
    matches!(of.nic.kind.as_deref(), Some("tun" | "veth")) && of.nic.addresses.is_empty() && of.ovs.is_none()
}
