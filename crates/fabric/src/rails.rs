//! Is the rails of a host: which of its addresses have an RDMA device.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::fabric::{Endpoint, FabricError};
use crate::library::Library;
use crate::rail::{Rail, RailEndpoint};

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// The rails of a host.
pub trait Rails: fmt::Debug + Send + Sync {
    /// Opens an endpoint of the rail at a local address. `None`: there is no rail.
    ///
    /// # Errors
    /// There is one, and it cannot be used.
    fn endpoint(&self, at: IpAddr) -> Result<Option<Arc<dyn Endpoint>>, FabricError>;
}

/// The rails of the host that this program runs on, by libfabric.
pub struct HostRails {
    providers: Vec<String>,
    /// Whether the providers need a device.
    needs_device: bool,
    /// The rails that are open, so that endpoints of one share what it has registered.
    open: Mutex<BTreeMap<IpAddr, Weak<Rail>>>,
}

impl HostRails {
    /// The providers for devices, the best first: InfiniBand, RoCE and iWARP by verbs, and EFA.
    pub const PROVIDERS: [&str; 2] = ["verbs;ofi_rxm", "efa"];

    /// Returns the rails of RDMA devices.
    pub fn of_devices() -> HostRails {
        HostRails { needs_device: true, ..HostRails::of_providers(&HostRails::PROVIDERS.map(str::to_owned)) }
    }

    /// Returns the rails of these providers, which libfabric names, the best first.
    pub fn of_providers(providers: &[String]) -> HostRails {
        HostRails { providers: providers.to_vec(), needs_device: false, open: Mutex::default() }
    }

    fn rail(&self, at: IpAddr) -> Result<Option<Arc<Rail>>, FabricError> {
        let mut open = self.open.lock();
        if let Some(rail) = open.get(&at).and_then(Weak::upgrade) {
            return Ok(Some(rail));
        }
        let library = Library::get()?;
        for provider in &self.providers {
            let mut offers = library.offers(Some(provider), Some(at))?;
            if !offers.is_empty() {
                let rail = Rail::open(offers.swap_remove(0))?;
                open.insert(at, Arc::downgrade(&rail));
                return Ok(Some(rail));
            }
        }
        Ok(None)
    }
}

impl Rails for HostRails {
    fn endpoint(&self, at: IpAddr) -> Result<Option<Arc<dyn Endpoint>>, FabricError> {
        // A host without devices needs no library, and has no error.
        let is_bare = || Path::new(DEVICES).read_dir().map_or(true, |mut devices| devices.next().is_none());
        if self.needs_device && is_bare() {
            return Ok(None);
        }
        let Some(rail) = self.rail(at)? else { return Ok(None) };
        Ok(Some(Arc::new(RailEndpoint::open(&rail)?)))
    }
}

impl fmt::Debug for HostRails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostRails").field("providers", &self.providers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_rail_and_as_many_endpoints_as_are_asked_for() {
        let rails = HostRails::of_providers(&["no such provider".to_owned(), "tcp;ofi_rxm".to_owned()]);
        let at = [127, 0, 0, 1].into();
        let [a, b] = [(); 2].map(|()| rails.endpoint(at).unwrap().unwrap());
        assert_ne!(a.name(), b.name());
        assert!(Arc::ptr_eq(&rails.rail(at).unwrap().unwrap(), &rails.rail(at).unwrap().unwrap()));
        assert!(rails.endpoint([192, 0, 2, 1].into()).is_err(), "not this host's");
        drop((a, b));
        assert!(rails.open.lock()[&at].upgrade().is_none(), "a rail that nobody uses is closed");
    }
}
