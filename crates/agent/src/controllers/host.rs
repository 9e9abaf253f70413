//! Is what controllers see of a host, and do to it.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::{HostFacts, Migration, Reply, RequestLine, VmView};

/// A guest's process, whose load is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestProcess {
    /// The VM's name.
    pub(crate) vm: String,
    pub(crate) pid: u32,
    /// The taps of the guest's NICs, as far as they are known.
    pub(crate) taps: Vec<String>,
}

/// The host of this agent, as controllers see it.
pub(crate) trait ControlledHost: Send + Sync {
    /// Returns the host's name.
    fn name(&self) -> String;

    /// Returns where other hosts' agents dial this one, as far as it is known.
    fn addresses(&self) -> Vec<String>;

    /// Returns what the host is. The first call may take seconds.
    fn facts(&self) -> HostFacts;

    /// Returns why the host takes no guest now.
    fn closed(&self) -> Option<String> {
        None
    }

    /// Returns the VMs. A QEMU that does not answer costs a second.
    fn vms(&self) -> Vec<VmView>;

    /// Returns a number that differs when a VM came, went, was started or ended, a migration changed, or the host
    /// takes no guest any more, or again. The call waits for no QEMU.
    fn outline(&self) -> u64;

    /// Returns the processes of the guests that run here.
    fn guests(&self) -> Vec<GuestProcess>;

    /// Returns the migrations under way, and those of the last minutes, without their events.
    fn migrations(&self) -> Vec<Migration>;

    /// Returns whether there is contact with each of the other hosts that contact is kept with.
    fn contacts(&self) -> BTreeMap<String, bool>;

    /// Returns the VMs that a person had this host forget lately, and that it does not have again.
    fn forgotten(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    /// Carries out a request, as if it had come by the agent's socket. The call takes as long as that takes.
    fn run(&self, line: RequestLine) -> Reply;

    /// Takes a controller's word on where all hosts are.
    fn learn_hosts(&self, addresses: &BTreeMap<String, Vec<String>>);
}
