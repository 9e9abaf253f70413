//! Tells which networks the agent that runs keeps guests' memory off. What is judged is pure.

use skein_agent::Network;
use skein_host::Nic;

use super::arguments::Arguments;
use super::finding::{Finding, ok, warn};
use crate::commands::networks;

const OPTION: &str = "--exclude-network";

/// Returns what is to be said of the networks that the agent excludes.
pub fn networks_of(agent: &Arguments) -> Vec<Finding> {
    judge(&excluded(agent), &skein_host::nics().unwrap_or_default())
}

/// Returns the networks that a command line excludes. What is no network was refused by the agent.
fn excluded(agent: &Arguments) -> Vec<Network> {
    agent.values(OPTION).filter_map(|network| network.parse().ok()).collect()
}

fn judge(excluded: &[Network], nics: &[Nic]) -> Vec<Finding> {
    let warnings = networks::check(excluded, &[], nics).unwrap_or_default();
    let cure = "see /etc/default/skein-agent, and restart the agent: guests go on meanwhile";
    let mut findings: Vec<Finding> = warnings.into_iter().map(|what| warn("network", what, cure)).collect();
    for nic in nics.iter().filter(|nic| !nic.loopback) {
        let of = |network: &&Network| nic.addresses.iter().any(|address| network.contains(address.ip));
        if let Some(network) = excluded.iter().find(of) {
            findings.push(ok("network", format!("{} carries no guests' memory ({OPTION} {network})", nic.name)));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use skein_network::InterfaceAddress;

    use super::*;

    #[test]
    fn excluded_networks_are_told_with_their_nics() {
        let nic = |name: &str, ip: &str| Nic {
            name: name.into(),
            addresses: vec![InterfaceAddress { ip: ip.parse().unwrap(), prefix_len: 24, usable: true }],
            ..Nic::default()
        };
        let nics = [nic("eth0", "10.7.0.1"), nic("eth1", "10.9.0.1"), nic("mgmt", "192.168.7.1")];
        let line = "skein agent --exclude-network 192.168.7.0/24 --exclude-network=10.9.0.0/24 --dscp 8 \
                    --exclude-network 172.16.0.0/12";
        let findings = judge(&excluded(&Arguments::of_line(line)), &nics);
        let told: Vec<&str> = findings.iter().map(|finding| &finding.what[..]).collect();
        assert_eq!(
            told,
            [
                "--exclude-network 172.16.0.0/12 is a network in which no NIC of this host has an address now",
                "eth1 carries no guests' memory (--exclude-network 10.9.0.0/24)",
                "mgmt carries no guests' memory (--exclude-network 192.168.7.0/24)",
            ]
        );
        assert_eq!(judge(&excluded(&Arguments::default()), &nics).len(), 0);
    }
}
