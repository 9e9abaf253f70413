//! RDMA devices, and which NIC each belongs to (`/sys/class/infiniband`).

use serde::{Deserialize, Serialize};

use crate::source::{Ask, Source};

/// The most entries of a port's table of addresses that are looked at for the NIC.
const GIDS_MAX: usize = 8;

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RdmaPort {
    /// The device's name: `mlx5_0`.
    pub device: String,
    /// The port's number, from 1.
    pub port: u32,
    /// Whether it can be used.
    pub active: bool,
    /// `InfiniBand` or `Ethernet` (RoCE, iWARP).
    pub link_layer: String,
    /// The rate in words: `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// The interface that it shares a cable with. `None`: InfiniBand without IP, or not known.
    #[serde(skip)]
    pub nic: Option<String>,
}

/// Returns all ports.
pub(crate) fn read(source: &dyn Source) -> Vec<RdmaPort> {
    const CLASS: &str = "/sys/class/infiniband";
    let names = |path: String| source.ask(&Ask::Directory(path)).names();
    let mut ports = Vec::new();
    for device in names(CLASS.to_owned()) {
        for name in names(format!("{CLASS}/{device}/ports")) {
            let Ok(port) = name.parse() else { continue };
            let folder = format!("{CLASS}/{device}/ports/{name}");
            let file = |name: &str| source.ask(&Ask::File(format!("{folder}/{name}"))).text().unwrap_or_default();
            let mut entries = names(format!("{folder}/gid_attrs/ndevs"));
            entries.sort_by_key(|entry| entry.parse::<u32>().ok());
            let of_gids = entries.iter().take(GIDS_MAX).map(|entry| file(&format!("gid_attrs/ndevs/{entry}")));
            let of_gids = of_gids.map(|name| name.trim().to_owned()).find(|name| !name.is_empty());
            ports.push(RdmaPort {
                // `4: ACTIVE`
                active: file("state").trim().ends_with("ACTIVE"),
                link_layer: file("link_layer").trim().to_owned(),
                rate: file("rate").trim().to_owned(),
                nic: of_gids.or_else(|| names(format!("{CLASS}/{device}/device/net")).into_iter().next()),
                device: device.clone(),
                port,
            });
        }
    }
    ports
}
