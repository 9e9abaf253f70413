//! Is the settings of an agent's contact with others.

use std::path::PathBuf;

use skein_dataplane::AcceptorSettings;
use skein_network::WantedConnections;

use super::version::ControlVersions;
use crate::Allow;

/// The settings of an agent's contact with others.
#[derive(Clone, Debug)]
pub struct PeersSettings {
    /// How sessions are accepted. The addresses and the outage are those of dialled sessions, too.
    pub acceptor: AcceptorSettings,
    /// The sockets of this host that peers may connect to.
    pub allow: Allow,
    /// The path of the hosts file ([`HostsFile`](skein_inventory::HostsFile)); need not exist.
    pub hosts_file: PathBuf,
    /// The path of the migration network's file ([`MigrationNetwork`](skein_inventory::MigrationNetwork)); need not
    /// exist.
    pub migration_network: PathBuf,
    /// The file that keeps what controllers said of hosts that are not in the hosts file; `None`: it is not kept.
    pub hosts_cache: Option<PathBuf>,
    /// How many data connections each path of the sessions has that this end dials.
    pub connections: WantedConnections,
    /// Whether bulk data goes unencrypted in the sessions that this end dials.
    pub plain_data: bool,
    /// The versions of the agents' protocol that the agent speaks: [`CONTROL_VERSIONS`](super::CONTROL_VERSIONS), but
    /// in tests that stand for another release.
    pub versions: ControlVersions,
}
