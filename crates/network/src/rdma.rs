//! RDMA devices, which NIC each belongs to, and what each has carried (`/sys/class/infiniband`).

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

const CLASS: &str = "/sys/class/infiniband";
const NICS: &str = "/sys/class/net";

/// Returns all ports.
pub(crate) fn read(source: &dyn Source) -> Vec<RdmaPort> {
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
            let of_address = || iwarp_nic(source, &device, &file("gids/0"));
            ports.push(RdmaPort {
                // `4: ACTIVE`
                active: file("state").trim().ends_with("ACTIVE"),
                link_layer: file("link_layer").trim().to_owned(),
                rate: file("rate").trim().to_owned(),
                nic: of_gids
                    .or_else(of_address)
                    .or_else(|| names(format!("{CLASS}/{device}/device/net")).into_iter().next()),
                device: device.clone(),
                port,
            });
        }
    }
    ports
}

/// Returns the NIC of a port that does iWARP: its first GID begins with the NIC's address, in all drivers of Linux
/// (`siw_query_gid`, `irdma_iw_query_gid`, `c4iw_query_gid`; devices of iWARP have no table of NICs). `None`: the
/// device does no iWARP, or no NIC has that address.
fn iwarp_nic(source: &dyn Source, device: &str, gid: &str) -> Option<String> {
    let file = |path: String| source.ask(&Ask::File(path)).text();
    // `4: RNIC`
    if !file(format!("{CLASS}/{device}/node_type"))?.trim().starts_with("4:") {
        return None;
    }
    let digits: String = gid.chars().filter(char::is_ascii_hexdigit).take(12).collect();
    let address_of = |nic: &str| file(format!("{NICS}/{nic}/address")).map(|text| text.trim().replace(':', ""));
    if digits.bytes().all(|digit| digit == b'0') {
        return None;
    }
    let nics = source.ask(&Ask::Directory(NICS.to_owned())).names();
    // A bond has the address of one of its NICs.
    let mut of_address = nics.into_iter().filter(|nic| address_of(nic).is_some_and(|address| address == digits));
    of_address.find(|nic| file(format!("{NICS}/{nic}/bonding/mode")).is_none())
}

/// What RDMA devices have carried by their own counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RdmaCounters {
    /// The device: `mlx5_0`.
    pub device: String,
    /// The bytes sent and received by RDMA; left out where the device does not count bytes (soft-RoCE).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<SentAndReceived>,
    /// The packets sent and received by RDMA; left out where the device does not count packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<SentAndReceived>,
    /// The bytes of each priority, 0 first, with what is no RDMA; empty where the driver does not count priorities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub priorities: Vec<SentAndReceived>,
}

/// A counter of each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SentAndReceived {
    /// What was sent.
    pub sent: u64,
    /// What was received.
    pub received: u64,
}

impl SentAndReceived {
    fn since(self, before: SentAndReceived) -> SentAndReceived {
        let (sent, received) = (self.sent.saturating_sub(before.sent), self.received.saturating_sub(before.received));
        SentAndReceived { sent, received }
    }
}

impl RdmaCounters {
    /// Returns what was carried since other counters of the device were read. Counters of another device, and counters
    /// that are new, count from zero.
    pub fn since(&self, before: &RdmaCounters) -> RdmaCounters {
        if self.device != before.device {
            return self.clone();
        }
        let both = |now: Option<SentAndReceived>, before: Option<SentAndReceived>| {
            now.map(|now| now.since(before.unwrap_or_default()))
        };
        let earlier = before.priorities.iter().copied().chain(std::iter::repeat(SentAndReceived::default()));
        RdmaCounters {
            device: self.device.clone(),
            bytes: both(self.bytes, before.bytes),
            packets: both(self.packets, before.packets),
            priorities: self.priorities.iter().zip(earlier).map(|(now, before)| now.since(before)).collect(),
        }
    }
}

/// The names of counters of a port of an RDMA device, sent and received, and how many units one stands for:
/// InfiniBand's count words of four bytes (`Documentation/ABI/stable/sysfs-class-infiniband`), EFA's and soft-RoCE's
/// count ones.
const BYTES: [(&str, &str, u64); 2] =
    [("counters/port_xmit_data", "counters/port_rcv_data", 4), ("hw_counters/tx_bytes", "hw_counters/rx_bytes", 1)];
const PACKETS: [(&str, &str, u64); 3] = [
    ("counters/port_xmit_packets", "counters/port_rcv_packets", 1),
    ("hw_counters/tx_pkts", "hw_counters/rx_pkts", 1),
    ("hw_counters/sent_pkts", "hw_counters/rcvd_pkts", 1),
];
/// What the names of a driver's counters of priorities begin and end with, sent and received: mlx5's, and bnxt_en's.
const PRIORITIES: [(&str, &str, &str); 2] = [("tx_prio", "rx_prio", "_bytes"), ("tx_bytes_pri", "rx_bytes_pri", "")];

/// Reads what the RDMA port on a NIC's cable has carried since its driver was loaded. `None`: the NIC has no such port.
pub fn rdma_counters(source: &dyn Source, nic: &str) -> Option<RdmaCounters> {
    let port = read(source).into_iter().find(|port| port.nic.as_deref() == Some(nic))?;
    let number = |name: &str| -> Option<u64> {
        let file = format!("{CLASS}/{}/ports/{}/{name}", port.device, port.port);
        source.ask(&Ask::File(file)).text()?.trim().parse().ok()
    };
    let first = |names: &[(&str, &str, u64)]| {
        names.iter().find_map(|(sent, received, unit)| {
            let of = |name| number(name).map(|count| count.saturating_mul(*unit));
            Some(SentAndReceived { sent: of(sent)?, received: of(received)? })
        })
    };
    let counters = source.ask(&Ask::Counters(nic.to_owned())).text().unwrap_or_default();
    let counter = |name: &str| -> Option<u64> {
        counters.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok())
    };
    let priorities = PRIORITIES.iter().map(|(sent, received, end)| {
        let of = |begin: &str, priority: u8| counter(&format!("{begin}{priority}{end}"));
        let both = |priority| Some(SentAndReceived { sent: of(sent, priority)?, received: of(received, priority)? });
        (0..8).map_while(both).collect::<Vec<_>>()
    });
    Some(RdmaCounters {
        bytes: first(&BYTES),
        packets: first(&PACKETS),
        priorities: priorities.into_iter().find(|found| !found.is_empty()).unwrap_or_default(),
        device: port.device,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Answer, Recording};

    fn recording(device: &str, files: &[(&str, &str)], counters: &str) -> Recording {
        let port = format!("{CLASS}/{device}/ports/1");
        let names = |names: &[&str]| Answer::Names(names.iter().map(|name| (*name).to_owned()).collect());
        let mut answers = vec![
            (format!("directory {CLASS}"), names(&[device])),
            (format!("directory {CLASS}/{device}/ports"), names(&["1"])),
            (format!("directory {port}/gid_attrs/ndevs"), names(&["0"])),
            (format!("file {port}/gid_attrs/ndevs/0"), Answer::Text("eth3\n".into())),
            ("counters eth3".into(), Answer::Text(counters.into())),
        ];
        answers.extend(files.iter().map(|(name, text)| (format!("file {port}/{name}"), Answer::Text((*text).into()))));
        serde_json::from_value(
            serde_json::to_value(answers.into_iter().collect::<std::collections::BTreeMap<_, _>>()).unwrap(),
        )
        .unwrap()
    }

    fn both(sent: u64, received: u64) -> SentAndReceived {
        SentAndReceived { sent, received }
    }

    #[test]
    fn a_device_of_iwarp_belongs_to_the_nic_that_has_its_address() {
        let names = |names: &[&str]| Answer::Names(names.iter().map(|name| (*name).to_owned()).collect());
        let text = |text: &str| Answer::Text(text.to_owned());
        let recorded = |node_type: &str| -> Recording {
            let answers = std::collections::BTreeMap::from([
                (format!("directory {CLASS}"), names(&["siw0"])),
                (format!("directory {CLASS}/siw0/ports"), names(&["1"])),
                (format!("file {CLASS}/siw0/node_type"), text(node_type)),
                (format!("file {CLASS}/siw0/ports/1/gids/0"), text("5254:0000:0101:0000:0000:0000:0000:0000\n")),
                (format!("directory {NICS}"), names(&["bond0", "eth0", "eth1"])),
                (format!("file {NICS}/bond0/address"), text("52:54:00:00:01:01\n")),
                (format!("file {NICS}/bond0/bonding/mode"), text("active-backup 1\n")),
                (format!("file {NICS}/eth0/address"), text("52:54:00:00:00:01\n")),
                (format!("file {NICS}/eth1/address"), text("52:54:00:00:01:01\n")),
            ]);
            serde_json::from_value(serde_json::to_value(answers).unwrap()).unwrap()
        };
        let nic = |node_type: &str| read(&recorded(node_type))[0].nic.clone();
        assert_eq!(nic("4: RNIC\n").as_deref(), Some("eth1"));
        assert_eq!(nic("1: CA\n"), None, "what is in its GID is no address");
    }

    #[test]
    fn each_kind_of_device_has_counters_of_its_own() {
        let words = [
            ("counters/port_xmit_data", "1000\n"),
            ("counters/port_rcv_data", "50\n"),
            ("counters/port_xmit_packets", "7\n"),
            ("counters/port_rcv_packets", "5\n"),
        ];
        let prio: String = (0..8).map(|n| format!("tx_prio{n}_bytes: {}\nrx_prio{n}_bytes: {n}\n", n * 100)).collect();
        let found = rdma_counters(&recording("mlx5_0", &words, &prio), "eth3").unwrap();
        assert_eq!((found.bytes, found.packets), (Some(both(4000, 200)), Some(both(7, 5))));
        assert_eq!((found.priorities.len(), found.priorities[3]), (8, both(300, 3)));
        let later = RdmaCounters { bytes: Some(both(5000, 200)), ..found.clone() };
        assert_eq!(later.since(&found).bytes, Some(both(1000, 0)));
        assert_eq!(later.since(&RdmaCounters { device: "mlx5_1".into(), ..found }), later);

        let soft = [("hw_counters/sent_pkts", "30\n"), ("hw_counters/rcvd_pkts", "20\n")];
        let found = rdma_counters(&recording("rxe0", &soft, "peer_ifindex: 4\n"), "eth3").unwrap();
        assert_eq!((found.bytes, found.packets, found.priorities), (None, Some(both(30, 20)), Vec::new()));

        let efa = [("hw_counters/tx_bytes", "9\n"), ("hw_counters/rx_bytes", "8\n")];
        let broadcom = "tx_bytes_pri0: 5\nrx_bytes_pri0: 6\n";
        let found = rdma_counters(&recording("efa0", &efa, broadcom), "eth3").unwrap();
        assert_eq!((found.bytes, found.packets, found.priorities), (Some(both(9, 8)), None, vec![both(5, 6)]));
        assert_eq!(rdma_counters(&recording("efa0", &efa, ""), "eth4"), None);
        let garbage = [("counters/port_xmit_data", "-1\n"), ("counters/port_rcv_data", "x")];
        let found = rdma_counters(&recording("mlx5_0", &garbage, "tx_prio0_bytes: -\n"), "eth3").unwrap();
        assert_eq!((found.bytes, found.packets, found.priorities), (None, None, Vec::new()));
    }
}
