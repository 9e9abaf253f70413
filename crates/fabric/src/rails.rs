//! Is the rails of a host: which of its addresses have an RDMA device.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fabric::{FabricError, SharedEndpoint};
use crate::process::{ProcessEndpoint, RailProcess};

/// The rails of a host.
pub trait Rails: fmt::Debug + Send + Sync {
    /// Opens an endpoint of the rail at a local address. `None`: there is no rail.
    ///
    /// # Errors
    /// There is one, and it cannot be used.
    fn endpoint(&self, at: IpAddr) -> Result<Option<SharedEndpoint>, FabricError>;

    /// Returns whether guests' memory may go over rails without protection, so that NICs place it by themselves.
    fn allows_plaintext(&self) -> bool;

    /// Returns whether a NIC has no rail, whatever its address: `has_device` is whether the NIC has an RDMA device.
    fn bars(&self, nic: &str, has_device: &dyn Fn() -> bool) -> bool;
}

/// Opens the rail at a local address, and says what that is, in words. `None`: there is none.
///
/// # Errors
/// Why the rail cannot be used, in words.
pub fn rail_of(rails: &dyn Rails, at: IpAddr) -> Result<Option<String>, String> {
    let endpoint = rails.endpoint(at).map_err(|error| error.to_string())?;
    Ok(endpoint.map(|endpoint| {
        let abilities = endpoint.abilities();
        let notice = if abilities.has_immediates() { "" } else { ", writes carry no data for the other end" };
        format!("{} ({}){notice}", abilities.device, abilities.provider)
    }))
}

/// The rails of the host that this program runs on, by libfabric, each in a process of its own.
pub struct HostRails {
    /// A program that calls [`crate::serve_rail`], and its arguments.
    words: Vec<OsString>,
    providers: Vec<String>,
    /// Whether the providers need a device.
    needs_device: bool,
    /// The NICs that are not to be used.
    barred: Vec<String>,
    allows_plaintext: bool,
    /// The processes, by the addresses of their rails. Each is kept for the next endpoint.
    processes: Mutex<BTreeMap<IpAddr, Arc<RailProcess>>>,
}

impl HostRails {
    /// The providers for devices, the best first: InfiniBand, RoCE and iWARP by verbs, and EFA.
    pub const PROVIDERS: [&str; 2] = ["verbs;ofi_rxm", "efa"];

    /// Returns the rails of RDMA devices. `words` are a program that calls [`crate::serve_rail`], and its arguments.
    pub fn of_devices(words: Vec<OsString>) -> HostRails {
        let providers = HostRails::PROVIDERS.map(str::to_owned).into();
        HostRails { needs_device: true, ..HostRails::of_providers(words, providers) }
    }

    /// Returns the rails of these providers, which libfabric names, the best first. `words` as for
    /// [`Self::of_devices`].
    pub fn of_providers(words: Vec<OsString>, providers: Vec<String>) -> HostRails {
        let (barred, processes) = (Vec::new(), Mutex::default());
        HostRails { words, providers, needs_device: false, barred, allows_plaintext: false, processes }
    }

    /// Returns the rails of a fabric that is trusted: guests' memory may go without protection.
    pub fn with_plaintext(self) -> HostRails {
        HostRails { allows_plaintext: true, ..self }
    }

    /// Returns the rails without those of some NICs.
    pub fn without(self, nics: Vec<String>) -> HostRails {
        HostRails { barred: nics, ..self }
    }
}

impl fmt::Debug for HostRails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.providers.join(", "))
    }
}

impl Rails for HostRails {
    fn endpoint(&self, at: IpAddr) -> Result<Option<SharedEndpoint>, FabricError> {
        let kept = self.processes.lock().get(&at).cloned();
        let opened = match kept.map(|process| ProcessEndpoint::open(&process, &self.providers, at)) {
            // One that has died or hangs is replaced.
            None | Some(Err(FabricError::Process(_))) => {
                let process = RailProcess::start(&self.words)?;
                let opened = ProcessEndpoint::open(&process, &self.providers, at)?;
                if opened.is_some() {
                    self.processes.lock().insert(at, process);
                }
                opened
            }
            Some(opened) => opened?,
        };
        Ok(opened.map(|endpoint| Arc::new(endpoint) as SharedEndpoint))
    }

    fn allows_plaintext(&self) -> bool {
        self.allows_plaintext
    }

    fn bars(&self, nic: &str, has_device: &dyn Fn() -> bool) -> bool {
        self.barred.iter().any(|barred| barred == nic) || (self.needs_device && !has_device())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_devices() -> HostRails {
        HostRails::of_devices(Vec::new())
    }

    fn of_providers() -> HostRails {
        HostRails::of_providers(Vec::new(), vec!["tcp;ofi_rxm".to_owned()])
    }

    #[test]
    fn a_nic_that_is_barred_has_no_rail_whether_or_not_it_has_a_device() {
        let barred = || vec!["eth1".to_owned(), "ib0".to_owned()];
        // Whether plaintext is allowed changes nothing, whichever is said first.
        for rails in [
            of_devices().without(barred()),
            of_providers().without(barred()),
            of_devices().without(barred()).with_plaintext(),
            of_providers().with_plaintext().without(barred()),
        ] {
            for nic in ["eth1", "ib0"] {
                for has_device in [false, true] {
                    assert!(rails.bars(nic, &|| has_device), "{rails:?}: {nic}, {has_device}");
                }
            }
            // A name that is only like a barred one is another NIC's.
            for nic in ["eth0", "eth10", "eth", "h1", "ETH1", ""] {
                assert!(!rails.bars(nic, &|| true), "{rails:?}: {nic}");
            }
        }
    }

    #[test]
    fn a_nic_without_a_device_has_no_rail_of_providers_that_need_one_and_may_have_one_of_others() {
        let elsewhere = || vec!["eth1".to_owned()];
        for rails in [of_devices(), of_devices().without(elsewhere()), of_devices().with_plaintext()] {
            assert!(rails.bars("eth0", &|| false), "{rails:?}");
            assert!(!rails.bars("eth0", &|| true), "{rails:?}");
        }
        for rails in [of_providers(), of_providers().without(elsewhere()), of_providers().with_plaintext()] {
            for has_device in [false, true] {
                assert!(!rails.bars("eth0", &|| has_device), "{rails:?}: {has_device}");
            }
        }
    }
}
