//! Checks the networks that `skein agent` and `skein tunnel` are to exclude or to prefer. Pure.

use anyhow::ensure;
use skein_agent::Network;
use skein_host::Nic;

/// Returns warnings about networks that mean nothing on a host with these NICs. The host may get such a network later.
///
/// # Errors
///
/// The networks make no sense on any host.
pub fn check(excluded: &[Network], preferred: &[Network], nics: &[Nic]) -> anyhow::Result<Vec<String>> {
    for (option, networks) in [("--exclude-network", excluded), ("--prefer-network", preferred)] {
        if let Some(all) = networks.iter().find(|network| network.is_everything()) {
            anyhow::bail!("{option} {all} is every network: name the network that is meant, such as 10.1.0.0/16");
        }
    }
    for wanted in preferred {
        let never = excluded.iter().find(|excluded| excluded.covers(wanted));
        ensure!(
            never.is_none(),
            "--prefer-network {wanted} carries no guests, as --exclude-network {} has it: leave out one of the two",
            never.unwrap_or(wanted)
        );
    }
    let has = |network: &Network| {
        let mut addresses = nics.iter().filter(|nic| !nic.loopback).flat_map(|nic| &nic.addresses);
        addresses.any(|address| network.contains(address.ip))
    };
    let warning = |option: &str, network: &Network| {
        let what = match network.is_address() {
            true => "is one address, which no NIC of this host has; a network has a prefix, such as 10.1.0.0/16",
            false => "is a network in which no NIC of this host has an address now",
        };
        format!("{option} {network} {what}")
    };
    let of = |option: &'static str, networks: &[Network]| -> Vec<String> {
        networks.iter().filter(|network| !has(network)).map(|network| warning(option, network)).collect()
    };
    let mut warnings = of("--exclude-network", excluded);
    warnings.extend(of("--prefer-network", preferred));
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use skein_network::InterfaceAddress;

    use super::*;

    fn nic(ip: &str) -> Nic {
        Nic {
            name: "eth0".into(),
            index: 2,
            addresses: vec![InterfaceAddress { ip: ip.parse().unwrap(), prefix_len: 24, usable: true }],
            ..Nic::default()
        }
    }

    fn checked(excluded: &[&str], preferred: &[&str]) -> Result<Vec<String>, String> {
        let networks = |of: &[&str]| -> Vec<Network> { of.iter().map(|network| network.parse().unwrap()).collect() };
        check(&networks(excluded), &networks(preferred), &[nic("10.77.0.5"), nic("fd00::5")])
            .map_err(|error| error.to_string())
    }

    #[test]
    fn networks_that_this_host_has_are_silent() {
        let fine = checked(&["10.77.0.0/16", "fd00::5"], &["10.77.0.0/8", "fd00::/8"]);
        assert_eq!(fine, Ok(Vec::new()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for all in ["0.0.0.0/0", "::/0"] {
            assert!(
                checked(&[all], &[]).unwrap_err().starts_with(&format!("--exclude-network {all} is every network"))
            );
            assert!(checked(&[], &[all]).unwrap_err().starts_with(&format!("--prefer-network {all} is every network")));
        }
        for excluded in ["10.77.0.0/24", "10.77.0.9/24", "10.77.0.0/16"] {
            let error = checked(&[excluded], &["10.77.0.0/24"]).unwrap_err();
            assert!(error.contains(&format!("carries no guests, as --exclude-network {excluded} has it")), "{error}");
        }
        assert_eq!(checked(&["10.77.0.0/24"], &["10.77.0.0/16"]), Ok(Vec::new()), "others are left of it");
    }

    #[test]
    fn what_this_host_lacks_is_warned_of() {
        let warnings = checked(&["10.77.0.0"], &["192.168.9.0/24"]).unwrap();
        assert!(warnings[0].starts_with("--exclude-network 10.77.0.0/32 is one address, which no NIC"), "{warnings:?}");
        assert!(warnings[0].ends_with("a network has a prefix, such as 10.1.0.0/16"), "{warnings:?}");
        assert_eq!(
            warnings[1],
            "--prefer-network 192.168.9.0/24 is a network in which no NIC of this host has an address now"
        );
    }
}
