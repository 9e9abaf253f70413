//! Checks what carries a migration over RDMA. A host without RDMA devices has nothing to be told.

use std::fs;
use std::net::IpAddr;

use skein_agent::{HostRails, rail_of};
use skein_host::Kernel;
use skein_network::Interface;

use super::finding::{Finding, ok, warn};
use crate::commands::own_command;
use crate::commands::session_options::SERVE_RAIL;

/// Whether shared memory has huge pages.
const SHARED_HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// The memory that a connection over RDMA locks, in bytes: rings of 64 slots of 272 KiB both ways, and messages.
const CONNECTION_BYTES: u64 = 36 << 20;

/// `agent` is the agent's process, if there is one.
pub fn rdma(agent: Option<i32>) -> Vec<Finding> {
    let Ok(interfaces) = skein_network::read(&Kernel::new()) else { return Vec::new() };
    let rails = HostRails::of_devices(own_command(SERVE_RAIL));
    let process = agent.map_or("self".to_owned(), |pid| pid.to_string());
    let of_process = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
    let mut findings = judge(&interfaces, |at| rail_of(&rails, at), &of_process("limits"));
    let shared = fs::read_to_string(SHARED_HUGE_PAGES).unwrap_or_default();
    findings.extend(small_pages(&of_process("cmdline"), &shared));
    findings
}

/// Judges the pages of guests' shared RAM, which an agent that lets NICs write gives them. `arguments` are the agent's,
/// each with a zero behind it; `shared` is what [`SHARED_HUGE_PAGES`] says.
fn small_pages(arguments: &str, shared: &str) -> Option<Finding> {
    let arguments: Vec<&str> = arguments.split('\0').collect();
    let allows = arguments.windows(2).any(|pair| pair == ["--rdma-plaintext", "allow"])
        || arguments.contains(&"--rdma-plaintext=allow");
    let is_small = ["[never]", "[deny]"].iter().any(|value| shared.contains(value));
    (allows && is_small).then(|| {
        let what = "guests' RAM, which NICs may write, is shared memory, and has small pages here";
        warn("rdma", what, format!("echo advise > {SHARED_HUGE_PAGES}, at each boot"))
    })
}

/// Judges RDMA devices. `rail` opens what there is at an address, and says what that is in words.
fn judge(
    interfaces: &[Interface],
    rail: impl Fn(IpAddr) -> Result<Option<String>, String>,
    limits: &str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for of in interfaces.iter().filter(|of| !of.rdma.is_empty()) {
        let name = &of.nic.name;
        for port in of.rdma.iter().filter(|port| !port.active) {
            let what = format!("{name}: port {} of {} is not active", port.port, port.device);
            findings.push(warn("rdma", what, "look at the cable, the switch and, for InfiniBand, the subnet manager"));
        }
        let Some(address) = of.nic.addresses.iter().find(|address| address.usable && !is_link_local(address.ip)) else {
            let what = format!("{name} has an RDMA device and no address that hosts can reach");
            findings.push(warn("rdma", what, "give the NIC an address; InfiniBand needs IPoIB for that"));
            continue;
        };
        findings.push(match rail(address.ip) {
            Ok(Some(rail)) => ok("rdma", format!("{name}: {rail}")),
            Ok(None) => {
                let what = format!("{name} has an RDMA device that libfabric does not offer");
                warn("rdma", what, "apt install ibverbs-providers; fi_info -p verbs (libfabric-bin) says more")
            }
            Err(why) => warn("rdma", format!("{name}: {why}"), "see docs/rdma.md; until then guests go over TCP"),
        });
    }
    let locked = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let locked = locked.and_then(|limit| limit.split_whitespace().next()?.parse::<u64>().ok());
    // A connection in each direction, and a second of each path: less is sure to be too little.
    if let Some(bytes) = locked.filter(|bytes| *bytes < 4 * CONNECTION_BYTES && !findings.is_empty()) {
        let what = format!("{} KiB of memory may be locked: RDMA needs more", bytes >> 10);
        findings.push(warn("rdma", what, "LimitMEMLOCK=infinity in the agent's unit, or ulimit -l unlimited"));
    }
    findings
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use skein_network::{InterfaceAddress, RdmaPort};

    use super::super::finding::Severity;
    use super::*;

    fn with_rdma(active: bool, address: Option<&str>) -> Vec<Interface> {
        let mut all = skein_network::read(&Kernel::new()).unwrap();
        let mut of = all.swap_remove(0);
        of.nic.name = "eth7".into();
        of.nic.addresses = address
            .map(|ip| InterfaceAddress { ip: ip.parse().unwrap(), prefix_len: 24, usable: true })
            .into_iter()
            .collect();
        let (device, link_layer, rate) = ("mlx5_0".into(), "Ethernet".into(), "100 Gb/sec".into());
        of.rdma = vec![RdmaPort { device, port: 1, active, link_layer, rate, nic: None }];
        let bare = all.into_iter().filter(|of| of.rdma.is_empty());
        std::iter::once(of).chain(bare).collect()
    }

    #[test]
    fn small_pages_are_told_where_nics_write_shared_memory() {
        let (allow, usual) = ("skein\0agent\0--rdma-plaintext\0allow\0", "skein\0agent\0--rdma\0auto\0");
        let (small, huge) = ("always within_size advise [never] deny force\n", "always [advise] never\n");
        assert!(small_pages(allow, small).is_some() && small_pages("a\0--rdma-plaintext=allow", small).is_some());
        assert!(small_pages(allow, huge).is_none() && small_pages(usual, small).is_none());
        assert!(small_pages(allow, "").is_none());
    }

    #[test]
    fn devices_are_judged_by_what_opens() {
        let limits = |kib: u64| format!("Max locked memory         {}   {0}   bytes\n", kib << 10);
        let found = |active, address, rail: Result<Option<&str>, &str>, kib| {
            let rail = |_| rail.map(|rail| rail.map(str::to_owned)).map_err(str::to_owned);
            let findings = judge(&with_rdma(active, address), rail, &limits(kib));
            findings.into_iter().map(|finding| (finding.severity, finding.what)).collect::<Vec<_>>()
        };
        let at = Some("10.0.0.1");
        assert_eq!(found(true, at, Ok(Some("verbs")), 1 << 30), [(Severity::Ok, "eth7: verbs".to_owned())]);
        for (active, address, rail, kib) in [
            (false, at, Ok(Some("verbs")), 1 << 30),
            (true, at, Ok(None), 1 << 30),
            (true, Some("fe80::1"), Ok(Some("verbs")), 1 << 30),
            (true, None, Ok(Some("verbs")), 1 << 30),
            (true, at, Err("no library"), 1 << 30),
            (true, at, Ok(Some("verbs")), 8192),
        ] {
            let warned = found(active, address, rail, kib);
            assert_eq!(warned.iter().filter(|(severity, _)| *severity == Severity::Warn).count(), 1, "{warned:?}");
        }
        let bare: Vec<Interface> = with_rdma(true, at).split_off(1);
        assert_eq!(judge(&bare, |_| unreachable!("no device, no library"), &limits(64)), []);
    }
}
