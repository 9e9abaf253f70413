//! Multipath TCP between two hosts: the best that QEMU alone has for several NICs, set up here as an experienced
//! administrator would.
//!
//! The target announces its addresses (`signal` endpoints). If each NIC has a subnet of its own, that is enough: the
//! source makes one subflow to each address, and routing takes it through the NIC of that subnet. With several NICs in
//! one subnet, routing would take them all through one NIC. So the source binds each subflow to a NIC (`fullmesh`
//! endpoints with a device), and each of the target's NICs must answer ARP for its own address only, or all subflows
//! arrive on one.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use crate::spec::{HostSpec, Spec};

/// The most additional subflows, announced addresses and endpoints that the kernel takes (`MPTCP_PM_ADDR_MAX`).
const KERNEL_MAX: usize = 8;

/// What a host does with the other host's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host connects.
    Source,
    /// The host listens, on the wildcard address.
    Target,
    /// The host does neither, as when it is built.
    None,
}

/// Returns whether this kernel has MPTCP. Must be called inside a host.
pub fn available() -> bool {
    fs::read_to_string("/proc/sys/net/mptcp/enabled").is_ok_and(|enabled| enabled.trim() == "1")
}

/// Returns lines for `ip -batch` in the host.
pub fn lines(spec: &Spec, host: &HostSpec, role: Role) -> Vec<String> {
    let mut lines = vec!["mptcp endpoint flush".to_owned()];
    if role == Role::None {
        // These are the kernel's defaults.
        lines.push("mptcp limits set subflow 2 add_addr_accepted 0".to_owned());
        return lines;
    }
    lines.push(format!("mptcp limits set subflow {KERNEL_MAX} add_addr_accepted {KERNEL_MAX}"));
    let flags = match role {
        Role::Target => "signal",
        _ if shares_a_segment(spec) => "subflow fullmesh",
        _ => return lines,
    };
    // Each NIC has one address: a second family would only take subflows from the NICs after it.
    let nics = host.nics.iter().enumerate().filter_map(|(n, nic)| Some((n, nic.addresses.iter().map(|a| a.ip).min()?)));
    lines.extend(nics.take(KERNEL_MAX).map(|(n, ip)| format!("mptcp endpoint add {ip} dev nic{n} {flags}")));
    lines
}

/// Sets how the host treats ARP: strictly by NIC, if NICs share a subnet and MPTCP is to use them. Must be called
/// inside the host.
///
/// # Errors
///
/// The error of the system if a setting cannot be written.
pub fn set_arp(spec: &Spec, role: Role) -> io::Result<()> {
    let strict = role != Role::None && shares_a_segment(spec);
    for (setting, value) in [("arp_ignore", 1), ("arp_announce", 2)] {
        let file = Path::new("/proc/sys/net/ipv4/conf/all").join(setting);
        fs::write(file, if strict { value } else { 0 }.to_string())?;
    }
    Ok(())
}

fn shares_a_segment(spec: &Spec) -> bool {
    spec.hosts.iter().any(|host| {
        let mut seen = BTreeSet::new();
        host.nics.iter().any(|nic| !seen.insert(&nic.segment))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_a_nic_needs_no_endpoints_at_the_source() {
        let spec = Spec::pairs("demo", 2, None);
        assert_eq!(
            lines(&spec, &spec.hosts[0], Role::Source),
            ["mptcp endpoint flush", "mptcp limits set subflow 8 add_addr_accepted 8",]
        );
        assert_eq!(
            lines(&spec, &spec.hosts[1], Role::Target)[2..],
            ["mptcp endpoint add 10.77.0.2 dev nic0 signal", "mptcp endpoint add 10.77.1.2 dev nic1 signal",]
        );
        assert_eq!(lines(&spec, &spec.hosts[1], Role::None).len(), 2);
    }

    #[test]
    fn one_subnet_needs_them_bound_to_nics() {
        let spec = Spec::same_subnet("demo", 16, None);
        let source = lines(&spec, &spec.hosts[0], Role::Source);
        assert_eq!(source[3], "mptcp endpoint add 10.77.0.17 dev nic1 subflow fullmesh");
        assert_eq!(source.len(), 2 + KERNEL_MAX);
    }
}
