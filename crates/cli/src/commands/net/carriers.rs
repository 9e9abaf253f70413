//! What carries an interface.

use skein_network::Interface;

/// Returns the interfaces that carry another: members of a bond or bridge, what a VLAN stands on.
pub(super) fn below<'a>(all: &'a [Interface], of: &'a Interface) -> impl Iterator<Item = &'a Interface> {
    all.iter().filter(|below| below.nic.master == Some(of.nic.index) || of.nic.lower == Some(below.nic.index))
}

/// Returns the same without guests' ends.
pub(super) fn carried_by<'a>(all: &'a [Interface], of: &'a Interface) -> impl Iterator<Item = &'a Interface> {
    below(all, of).filter(|below| !is_guests_end(below))
}

/// Returns whether an interface leads to a guest, or to a container.
pub(super) fn is_guests_end(of: &Interface) -> bool {
    matches!(of.nic.kind.as_deref(), Some("tun" | "veth")) && of.nic.addresses.is_empty()
}
