//! What may be set of an agent's contact with others.

use std::path::PathBuf;

use skein_dataplane::AcceptorSettings;

use super::version::ControlVersions;
use crate::Allow;

/// What may be set.
#[derive(Clone, Debug)]
pub struct PeersSettings {
    /// How sessions are accepted; addresses and outage are those of the dialled ones, too.
    pub acceptor: AcceptorSettings,
    /// Which sockets of this host peers may connect to.
    pub allow: Allow,
    /// The file of hosts ([`HostsFile`](skein_inventory::HostsFile)); need not exist.
    pub hosts_file: PathBuf,
    /// Data connections on each path of the sessions that this end dials.
    pub connections: usize,
    /// Send bulk data without encryption in the sessions that this end dials.
    pub plain_data: bool,
    /// Which versions of the agents' protocol it speaks: [`CONTROL_VERSIONS`](super::CONTROL_VERSIONS), but in tests
    /// that stand for another release.
    pub versions: ControlVersions,
}
