//! Is what a dialer and an acceptor see of their host, and tells the kernel to keep several NICs in one subnet apart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::sync::Mutex;

use skein_host::{
    BondBelow, CoreList, Interface, Kernel, Nic, NicError, bond_below, interfaces, near_cores, nodes, queues,
};
use skein_session::address::NicAddress;
use tracing::{info, warn};

/// A host's NICs.
pub(crate) trait HostNics: Send + Sync {
    /// Returns all NICs as they are now.
    ///
    /// # Errors
    /// The kernel does not answer.
    fn nics(&self) -> Result<Vec<Nic>, NicError>;

    /// Returns what carries each of these NICs' traffic in the end, in their order.
    fn carriers(&self, nics: &[String]) -> Vec<Carriers>;

    /// Returns whether a NIC has an RDMA device that can be used.
    fn has_rdma(&self, nic: &str) -> bool;

    /// Returns the cores on which threads that serve a NIC are to stay; `None`: no core is better than another.
    fn near_cores(&self, nic: &str) -> Option<CoreList>;

    /// Makes each NIC that has one of these addresses answer for its own addresses alone.
    fn keep_apart(&self, addresses: &[NicAddress]);
}

/// What carries a NIC's traffic in the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carriers {
    /// How many queues there are; `None`: nobody says.
    pub(crate) queues: Option<u32>,
    /// The bond among them.
    pub(crate) bond: Option<BondBelow>,
}

/// The host that this program runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThisHost;

impl HostNics for ThisHost {
    fn nics(&self) -> Result<Vec<Nic>, NicError> {
        skein_host::nics()
    }

    fn carriers(&self, nics: &[String]) -> Vec<Carriers> {
        let all = interfaces(&Kernel::new()).unwrap_or_default();
        nics.iter().map(|nic| Carriers { queues: queues(&all, nic), bond: bond_below(&all, nic) }).collect()
    }

    fn has_rdma(&self, nic: &str) -> bool {
        let all = interfaces(&Kernel::new()).unwrap_or_default();
        all.iter().any(|of| of.nic.name == nic && of.rdma.iter().any(|port| port.active))
    }

    fn near_cores(&self, nic: &str) -> Option<CoreList> {
        let kernel = Kernel::new();
        let several = nodes(&kernel).0.len() > 1;
        // The list of interfaces is read where it matters.
        let all: Option<Vec<Interface>> = several.then(|| interfaces(&kernel).ok()).flatten();
        near_cores(&kernel, &all?, nic)
    }

    fn keep_apart(&self, addresses: &[NicAddress]) {
        keep_arp_apart(addresses);
    }
}

/// Makes each NIC answer ARP for its own addresses only, where two NICs share a subnet.
///
/// By default Linux answers for any of its addresses on any NIC (Documentation/networking/ip-sysctl.rst, `arp_ignore`).
/// Then the NIC that answers first gets the traffic of all, one network link carries everything, and sockets bound to
/// the other NICs receive nothing.
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
            // Each NIC's settings are checked again and again; the warning is logged once.
            Err(error) if WARNED.lock().is_ok_and(|mut warned| warned.insert(file)) => warn!(
                "{nic} shares a subnet with another NIC, and {setting} cannot be set ({error}): traffic of both may \
                 arrive on one; run `sysctl -w net.ipv4.conf.{nic}.{setting}={wanted}` as root"
            ),
            Err(_) => {}
        }
    }
}
