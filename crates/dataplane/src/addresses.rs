//! Lists this host's addresses as a session tells them.

use std::sync::Arc;

use skein_fabric::{Abilities, Rails};
use skein_host::Nic;
use skein_link::TrafficClass;
use skein_session::address::{Network, NicAddress};
use skein_session::pairs::is_routable;
use tracing::{info, warn};

use crate::handshake::rail;
use crate::host_nics::{HostNics, ThisHost};

/// Says which of a host's addresses to use.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// The NICs to use, by name; empty: all.
    pub nics: Vec<String>,
    /// The networks that carry no bulk data: a NIC with an address of one carries none at any of its addresses, as they
    /// are on the same wire.
    pub excluded: Vec<Network>,
    /// The networks to prefer for bulk data, the best first.
    pub preferred: Vec<Network>,
    /// The marks of connections for bulk data.
    pub class: TrafficClass,
    /// What connections for bulk data go over where both ends have it; `None`: not over RDMA.
    pub rails: Option<Arc<dyn Rails>>,
}

impl Addresses {
    /// Returns the addresses of all NICs that are up now, loopback among them. Addresses that are of use on one network
    /// link only are left out, because every bridge and tap has one.
    pub fn list(&self, nics: &[Nic]) -> Vec<NicAddress> {
        let wanted = nics.iter().filter(|nic| nic.up() && (self.nics.is_empty() || self.nics.contains(&nic.name)));
        let addresses = wanted.flat_map(|nic| {
            let excluded = |ip| self.excluded.iter().any(|network| network.contains(ip));
            let is_excluded = nic.addresses.iter().any(|address| excluded(address.ip));
            let usable = nic.addresses.iter().filter(|address| address.usable && is_routable(address.ip));
            usable.map(move |address| {
                let uplink = skein_host::uplink(nics, nic);
                let told = NicAddress {
                    ip: address.ip,
                    prefix: address.prefix_len,
                    nic: nic.name.clone(),
                    uplink: (uplink.index != nic.index).then(|| uplink.name.clone()),
                    // A driver that says 0 does not know either. A bond of Open vSwitch may be faster than its first
                    // member, which is the uplink.
                    speed_mbit: uplink.speed_mbit.max(nic.speed_mbit).filter(|mbit| *mbit > 0),
                    mtu: nic.mtu,
                };
                if is_excluded { told.without_data() } else { told }
            })
        });
        addresses.collect()
    }

    /// Opens each rail of this host once, and tells which can be used: what is missing is known before a guest moves,
    /// and rails' processes are there then.
    pub fn try_rails(&self) {
        let Some(rails) = self.rails.as_deref() else { return };
        let (now, mut has_any) = (self.now(&ThisHost), false);
        for address in now.iter().filter(|address| !address.ip.is_loopback() && address.carries_data()) {
            if let Ok(Some(endpoint)) = rail(Some(rails), &ThisHost, &address.nic, address.ip) {
                let Abilities { device, provider, .. } = endpoint.abilities();
                info!("RDMA at {} ({}): {device}, by {provider}", address.ip, address.nic);
                has_any = true;
            }
        }
        if !has_any {
            warn!(
                "RDMA is asked for, and no NIC of this host has any that can be used ({rails:?}): TCP is used; skein \
                 doctor says more"
            );
        }
    }

    /// Returns the addresses that a host has now. An error is logged and leaves the list empty.
    pub(crate) fn now(&self, host: &dyn HostNics) -> Vec<NicAddress> {
        match host.nics() {
            Ok(nics) => self.list(&nics),
            Err(error) => {
                warn!("cannot list this host's NICs: {error}");
                Vec::new()
            }
        }
    }
}
