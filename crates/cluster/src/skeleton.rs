//! What the cluster is made of that placement sees: its resources, what is set of hosts, their areas.

use std::collections::BTreeSet;

use skein_api::cluster::HostSettings;
use skein_placement_model::cluster::HOST_LEVEL;
use skein_placement_model::cluster::model::{Cluster, Host, Resource};

use crate::seen::{CPU, MEMORY};

/// The area of hosts of which none was set.
pub(crate) const NO_AREA: &str = "(none)";

/// Returns a cluster without hosts and guests.
pub(crate) fn empty_cluster() -> Cluster {
    let mut memory = Resource::new(MEMORY, "bytes");
    memory.transient = true;
    Cluster::new(vec![memory, Resource::new(CPU, "cores")])
}

/// Gives a host what is set of it.
pub(crate) fn label(host: &mut Host, settings: &HostSettings) {
    host.group.clone_from(&settings.group);
    host.areas.clone_from(&settings.areas);
    host.properties.clone_from(&settings.properties);
    host.storage = settings.storage;
}

/// Gives each host an area at each level that any host has. That each host is an area by itself needs not be said.
pub(crate) fn complete_areas(cluster: &mut Cluster) {
    let levels: BTreeSet<String> = cluster.hosts.iter().flat_map(|host| host.areas.keys().cloned()).collect();
    for host in &mut cluster.hosts {
        for level in levels.iter().filter(|level| *level != HOST_LEVEL) {
            host.areas.entry(level.clone()).or_insert_with(|| NO_AREA.to_owned());
        }
    }
}
