//! Checks what carries a migration over RDMA. A host without RDMA devices has nothing to be told.

use std::fs;
use std::net::IpAddr;

use skein_agent::{HostRails, rail_of};
use skein_host::Kernel;
use skein_network::Interface;

use super::arguments::Arguments;
use super::finding::{Finding, ok, warn};
use crate::commands::own_command;
use crate::commands::session_options::SERVE_RAIL;

/// Whether shared memory has huge pages.
const SHARED_HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// The memory that a connection over RDMA locks, in bytes: rings of 64 slots of 272 KiB both ways, and messages.
const CONNECTION_BYTES: u64 = 36 << 20;

/// `pid` is the agent's process, if there is one; `agent` is what that was told.
pub fn rdma(pid: Option<i32>, agent: &Arguments) -> Vec<Finding> {
    let Ok(interfaces) = skein_network::read(&Kernel::new()) else { return Vec::new() };
    let process = pid.map_or("self".to_owned(), |pid| pid.to_string());
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap_or_default();
    let rails = HostRails::of_devices(own_command(SERVE_RAIL));
    let mut findings = judge(&interfaces, |at| rail_of(&rails, at), &limits);
    let providers: Vec<String> = agent.values("--rdma").map(str::to_owned).collect();
    match &providers[..] {
        [] => {}
        [only] if only == "off" => {}
        [only] if only == "auto" => findings.extend(no_device(&interfaces)),
        named => {
            let rails = HostRails::of_providers(own_command(SERVE_RAIL), named.to_vec());
            findings.extend(named_providers(named, &interfaces, |at| rail_of(&rails, at)));
        }
    }
    if agent.values("--rdma-plaintext").any(|value| value == "allow") {
        findings.extend(small_pages(&fs::read_to_string(SHARED_HUGE_PAGES).unwrap_or_default()));
    }
    findings
}

/// Says that RDMA is asked for, and no NIC has a device for that.
fn no_device(interfaces: &[Interface]) -> Option<Finding> {
    interfaces.iter().all(|of| of.rdma.is_empty()).then(|| {
        let what = "the agent is to use RDMA (--rdma auto), and no NIC of this host has an RDMA device: TCP is used";
        warn("rdma", what, "rdma link (iproute2) shows devices; a NIC's driver may need a module; docs/rdma-setup.md")
    })
}

/// Judges the providers of libfabric that the agent was told to use. `rail` opens what they have at an address, and
/// says what that is in words.
fn named_providers(
    providers: &[String],
    interfaces: &[Interface],
    rail: impl Fn(IpAddr) -> Result<Option<String>, String>,
) -> Vec<Finding> {
    let of_nic = |of: &Interface| Some((of.nic.name.clone(), rail(reachable_address(of)?)));
    let mut failed = None;
    let found = interfaces.iter().filter_map(of_nic).filter_map(|(nic, rail)| match rail {
        Ok(rail) => rail.map(|rail| ok("rdma", format!("{nic}: {rail}"))),
        Err(why) => {
            failed.get_or_insert(why);
            None
        }
    });
    let found: Vec<Finding> = found.collect();
    if !found.is_empty() {
        return found;
    }
    let what = format!("the agent is to use RDMA by {}, and no NIC has any: TCP is used", providers.join(", "));
    let why = failed.unwrap_or_else(|| "libfabric offers nothing by that name at this host's addresses".into());
    let cure = "fi_info -l (libfabric-bin) lists providers; --rdma auto takes those of RDMA devices";
    vec![warn("rdma", format!("{what} ({why})"), cure)]
}

/// Judges the pages of guests' shared RAM, which an agent that lets NICs write gives them. `shared` is what
/// [`SHARED_HUGE_PAGES`] says.
fn small_pages(shared: &str) -> Option<Finding> {
    let is_small = ["[never]", "[deny]"].iter().any(|value| shared.contains(value));
    is_small.then(|| {
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
        let Some(address) = reachable_address(of) else {
            let what = format!("{name} has an RDMA device and no address that hosts can reach");
            findings.push(warn("rdma", what, "give the NIC an address; InfiniBand needs IPoIB for that"));
            continue;
        };
        findings.push(match rail(address) {
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

/// Returns an address of a NIC that other hosts can reach.
fn reachable_address(of: &Interface) -> Option<IpAddr> {
    of.nic.addresses.iter().find(|address| address.usable && !is_link_local(address.ip)).map(|address| address.ip)
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
        assert!(small_pages("always within_size advise [never] deny force\n").is_some());
        assert!(small_pages("always [advise] never\n").is_none() && small_pages("").is_none());
    }

    #[test]
    fn rdma_that_is_asked_for_and_not_there_is_told() {
        let with = with_rdma(true, Some("10.0.0.1"));
        let (bare, named) = (&with[1..], ["no_such".to_owned()]);
        assert!(no_device(bare).is_some() && no_device(&with).is_none());
        let found = |rail: Result<Option<&str>, &str>| {
            let rail = |_| rail.map(|rail| rail.map(str::to_owned)).map_err(str::to_owned);
            let [finding] = &named_providers(&named, &with[..1], rail)[..] else { panic!("one NIC, one finding") };
            (finding.severity, finding.what.clone())
        };
        assert_eq!(found(Ok(Some("tcp"))), (Severity::Ok, "eth7: tcp".to_owned()));
        for (rail, why) in [(Ok(None), "offers nothing by that name"), (Err("no library"), "no library")] {
            let (severity, what) = found(rail);
            assert!(severity == Severity::Warn && what.contains("no_such") && what.contains(why), "{what}");
        }
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
