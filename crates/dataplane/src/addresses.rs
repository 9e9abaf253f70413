//! This host's addresses as a session tells them, and what the kernel must be told so that several NICs
//! in one subnet stay apart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::sync::Mutex;

use skein_host::Nic;
use skein_session::address::NicAddress;
use skein_session::pairs::is_routable;
use tracing::{info, warn};

/// Which of a host's addresses to use.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// NICs to use, by name; empty: all.
    pub nics: Vec<String>,
}

impl Addresses {
    /// The addresses of all NICs that are up now, loopback among them; not those that are of use on one link only,
    /// which every bridge and tap has.
    pub fn list(&self, nics: &[Nic]) -> Vec<NicAddress> {
        let wanted = nics.iter().filter(|nic| nic.up() && (self.nics.is_empty() || self.nics.contains(&nic.name)));
        let addresses = wanted.flat_map(|nic| {
            let usable = nic.addresses.iter().filter(|address| address.usable && is_routable(address.ip));
            usable.map(|address| {
                let uplink = skein_host::uplink(nics, nic);
                NicAddress {
                    ip: address.ip,
                    prefix: address.prefix_len,
                    nic: nic.name.clone(),
                    uplink: (uplink.index != nic.index).then(|| uplink.name.clone()),
                    speed_mbit: uplink.speed_mbit.or(nic.speed_mbit),
                    mtu: nic.mtu,
                }
            })
        });
        addresses.collect()
    }

    /// Lists the host's NICs; an error leaves the list empty and a word in the log.
    pub(crate) fn now(&self) -> Vec<NicAddress> {
        match skein_host::nics() {
            Ok(nics) => self.list(&nics),
            Err(error) => {
                warn!("cannot list this host's NICs: {error}");
                Vec::new()
            }
        }
    }
}

/// Makes each NIC answer ARP for its own addresses only, where two of them share a subnet.
///
/// By default Linux answers for any of its addresses on any NIC (Documentation/networking/ip-sysctl.rst,
/// `arp_ignore`): then whichever NIC answers first gets the traffic of all, one link carries everything,
/// and sockets bound to the other NICs hear nothing.
pub fn keep_arp_apart(addresses: &[NicAddress]) {
    let mut subnets: BTreeMap<(u8, u32), Vec<&str>> = BTreeMap::new();
    for address in addresses {
        if let IpAddr::V4(ip) = address.ip
            && !ip.is_loopback()
        {
            let network = u32::from(ip).checked_shr(32 - u32::from(address.prefix)).unwrap_or(0);
            subnets.entry((address.prefix, network)).or_default().push(&address.nic);
        }
    }
    for nics in subnets.into_values() {
        if nics.iter().any(|nic| *nic != nics[0]) {
            nics.into_iter().for_each(keep_nic_apart);
        }
    }
}

static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn keep_nic_apart(nic: &str) {
    for (setting, wanted) in [("arp_ignore", 1), ("arp_announce", 2)] {
        let file = format!("/proc/sys/net/ipv4/conf/{nic}/{setting}");
        let current = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u32>().ok());
        if current.is_some_and(|value| value >= wanted) {
            continue;
        }
        match fs::write(&file, wanted.to_string()) {
            Ok(()) => {
                info!("{nic} shares a subnet with another NIC: set {setting}={wanted}, so that each answers for itself")
            }
            // Each NIC's settings are looked at again and again; the word is said once.
            Err(error) if WARNED.lock().is_ok_and(|mut warned| warned.insert(file)) => warn!(
                "{nic} shares a subnet with another NIC, and {setting} cannot be set ({error}): traffic of both may \
                 arrive on one; run `sysctl -w net.ipv4.conf.{nic}.{setting}={wanted}` as root"
            ),
            Err(_) => {}
        }
    }
}
