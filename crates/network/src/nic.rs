//! The network interfaces of a host, and what is needed to use them: what is read several times a second.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::attributes::{attributes, text, u16_at, u32_at, u64_at};

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Nic {
    /// The name, as in `ip link`.
    pub name: String,
    /// The kernel's number of the interface, unique in its namespace while the interface lives.
    pub index: u32,
    /// The hardware address; `None` for a tunnel or loopback, which have none.
    #[serde(with = "crate::mac", default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub mac: Option<[u8; 6]>,
    /// The largest packet, in bytes, without its link-layer header.
    pub mtu: u32,
    /// Whether the administrator has switched the interface on.
    pub admin_up: bool,
    /// Whether the network link is there: a cable, with something alive at its other end.
    pub carrier: bool,
    /// Whether the interface is the loopback interface.
    pub loopback: bool,
    /// What made the interface: `bond`, `bridge`, `vlan`, `veth`, `tun` …; `None` for hardware.
    pub kind: Option<String>,
    /// The index of the bond or bridge that the interface is a port of.
    pub master: Option<u32>,
    /// The index of the interface below, if this is a VLAN or a tunnel in the same namespace, or made by Open vSwitch.
    pub lower: Option<u32>,
    /// The speed in Mb/s, if the driver knows it.
    pub speed_mbit: Option<u32>,
    /// The number of receive queues.
    pub rx_queues: u32,
    /// The IP addresses, IPv4 first, in the kernel's order.
    pub addresses: Vec<InterfaceAddress>,
    /// The counters since the interface was made.
    pub counters: Counters,
}

impl Nic {
    /// Returns whether packets can be expected to pass: the interface is switched on and the network link is there.
    pub fn up(&self) -> bool {
        self.admin_up && self.carrier
    }
}

/// An IP address of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// The length of the network's prefix, in bits.
    pub prefix_len: u8,
    /// Whether the address may be used now: it neither waits for duplicate address detection nor was refused by it.
    pub usable: bool,
}

impl InterfaceAddress {
    /// Returns the network's first address: the bits behind the prefix are 0.
    pub fn network(&self) -> IpAddr {
        let prefix = u32::from(self.prefix_len);
        match self.ip {
            IpAddr::V4(ip) => {
                IpAddr::V4((u32::from(ip) & u32::MAX.checked_shl(32u32.saturating_sub(prefix)).unwrap_or(0)).into())
            }
            IpAddr::V6(ip) => {
                IpAddr::V6((u128::from(ip) & u128::MAX.checked_shl(128u32.saturating_sub(prefix)).unwrap_or(0)).into())
            }
        }
    }

    /// Returns whether the address means something on its own link only.
    pub fn is_link_local(&self) -> bool {
        match self.ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
    }
}

/// The counters of one NIC, 64 bits wide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Counters {
    /// The received bytes, link-layer headers included.
    pub rx_bytes: u64,
    /// The sent bytes, link-layer headers included.
    pub tx_bytes: u64,
    /// The received packets. Packets that hardware or a virtual network link kept together count once.
    pub rx_packets: u64,
    /// The sent packets. Packets that hardware or a virtual network link kept together count once.
    pub tx_packets: u64,
    /// The packets dropped on receipt, for want of room or of a taker.
    pub rx_dropped: u64,
    /// The packets dropped before they were sent.
    pub tx_dropped: u64,
    /// The packets that arrived broken.
    pub rx_errors: u64,
    /// The packets that could not be sent.
    pub tx_errors: u64,
}

/// The reason why the list of NICs could not be read.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The kernel did not answer.
    #[error("cannot ask the kernel for its network {0}")]
    Netlink(&'static str, #[source] io::Error),
}

/// Returns the speed in `struct ethtool_cmd`, in Mb/s; `None` if the driver does not know.
pub(crate) fn speed_mbit(settings: &[u8]) -> Option<u32> {
    let speed = u32::from(u16_at(settings, 28)?) << 16 | u32::from(u16_at(settings, 12)?);
    // SPEED_UNKNOWN is -1. Drivers without a link say 0, and some say 65535 (-1 cut to 16 bits).
    (!matches!(speed, 0 | 0xffff | u32::MAX)).then_some(speed)
}

/// Bounds how many interfaces upon each other are followed. A bridge on a VLAN on a bond has three.
pub(crate) const LAYERS_MAX: usize = 8;

/// Returns the NIC that carries the traffic of `nic` in the end: below VLANs and bridges the bond or hardware; of a
/// bridge's several ports the fastest that is up; of a bond of Open vSwitch the first member. Returns `nic` itself if
/// no NIC is below.
pub fn uplink<'a>(nics: &'a [Nic], nic: &'a Nic) -> &'a Nic {
    let mut at = nic;
    for _ in 0..LAYERS_MAX {
        match below(nics.iter(), at) {
            Some(below) => at = below,
            None => break,
        }
    }
    at
}

/// Returns the NIC on which another stands.
pub(crate) fn below<'a>(mut nics: impl Iterator<Item = &'a Nic>, at: &'a Nic) -> Option<&'a Nic> {
    if at.kind.as_deref() == Some("bridge") {
        // Guests' ends lead to guests.
        let is_guests = |port: &Nic| matches!(port.kind.as_deref(), Some("tun" | "veth"));
        let ports = nics.filter(|port| port.master == Some(at.index) && !is_guests(port));
        ports.max_by_key(|port| (port.up(), port.speed_mbit))
    } else {
        at.lower.and_then(|lower| nics.find(|nic| nic.index == lower))
    }
}

/// Holds the size of `struct ifinfomsg`.
pub(crate) const LINK_FIXED_BYTES: usize = 16;
/// Holds the size of `struct ifaddrmsg`.
const ADDRESS_FIXED_BYTES: usize = 8;

pub(crate) fn parse_link(payload: &[u8]) -> Option<Nic> {
    let flags = u32_at(payload, 8)?;
    let has = |flag: i32| flags & flag as u32 != 0;
    let mut nic = Nic {
        name: String::new(),
        index: u32_at(payload, 4)?,
        mac: None,
        mtu: 0,
        admin_up: has(libc::IFF_UP),
        carrier: has(libc::IFF_LOWER_UP),
        loopback: has(libc::IFF_LOOPBACK),
        kind: None,
        master: None,
        lower: None,
        speed_mbit: None,
        rx_queues: 1,
        addresses: Vec::new(),
        counters: Counters::default(),
    };
    let mut is_elsewhere = false;
    for (kind, value) in attributes(payload.get(LINK_FIXED_BYTES..)?) {
        match kind {
            libc::IFLA_IFNAME => nic.name = text(value),
            libc::IFLA_ADDRESS => nic.mac = value.try_into().ok().filter(|mac| *mac != [0; 6]),
            libc::IFLA_MTU => nic.mtu = u32_at(value, 0)?,
            libc::IFLA_MASTER => nic.master = u32_at(value, 0),
            libc::IFLA_LINK => nic.lower = u32_at(value, 0).filter(|index| *index != nic.index && *index != 0),
            libc::IFLA_LINK_NETNSID => is_elsewhere = true,
            // IFLA_CARRIER is more exact than IFF_LOWER_UP where both are there: a switched-off NIC has no LOWER_UP.
            libc::IFLA_CARRIER => nic.carrier = *value.first()? != 0,
            libc::IFLA_NUM_RX_QUEUES => nic.rx_queues = u32_at(value, 0)?,
            libc::IFLA_LINKINFO => {
                nic.kind = attributes(value).find(|(kind, _)| *kind == libc::IFLA_INFO_KIND).map(|(_, v)| text(v));
            }
            libc::IFLA_STATS64 => nic.counters = parse_counters(value)?,
            _ => {}
        }
    }
    if is_elsewhere || nic.kind.as_deref() == Some("veth") {
        nic.lower = None;
    }
    (!nic.name.is_empty()).then_some(nic)
}

/// Reads a `struct rtnl_link_stats64`.
fn parse_counters(value: &[u8]) -> Option<Counters> {
    let field = |n: usize| u64_at(value, 8 * n);
    Some(Counters {
        rx_packets: field(0)?,
        tx_packets: field(1)?,
        rx_bytes: field(2)?,
        tx_bytes: field(3)?,
        rx_dropped: field(6)?,
        tx_dropped: field(7)?,
        rx_errors: field(4)?,
        tx_errors: field(5)?,
    })
}

pub(crate) fn parse_address(payload: &[u8]) -> Option<(u32, InterfaceAddress)> {
    let family = i32::from(*payload.first()?);
    let prefix_len = *payload.get(1)?;
    let index = u32_at(payload, 4)?;
    let mut flags = u32::from(*payload.get(2)?);
    let (mut local, mut peer) = (None, None);
    for (kind, value) in attributes(payload.get(ADDRESS_FIXED_BYTES..)?) {
        match kind {
            libc::IFA_LOCAL => local = parse_ip(family, value),
            libc::IFA_ADDRESS => peer = parse_ip(family, value),
            libc::IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    let usable = flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) == 0;
    // IFA_LOCAL is this end's address. Without IFA_LOCAL (IPv6) IFA_ADDRESS is this end's; else IFA_ADDRESS is the
    // other end of a point-to-point link.
    Some((index, InterfaceAddress { ip: local.or(peer)?, prefix_len, usable }))
}

fn parse_ip(family: i32, value: &[u8]) -> Option<IpAddr> {
    match family {
        libc::AF_INET => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlans_and_bridges_stand_on_what_is_below_them() {
        let nic = |name: &str, index: u32, kind: Option<&str>| {
            let mut payload = vec![0; LINK_FIXED_BYTES];
            payload[4..8].copy_from_slice(&index.to_ne_bytes());
            payload.extend((4 + name.len() as u16 + 1).to_ne_bytes());
            payload.extend(libc::IFLA_IFNAME.to_ne_bytes());
            payload.extend(name.bytes().chain([0]));
            Nic { kind: kind.map(str::to_owned), ..parse_link(&payload).unwrap() }
        };
        let bond = nic("bond0", 2, Some("bond"));
        let port = Nic { master: Some(2), ..nic("eth0", 3, None) };
        let vlan = Nic { lower: Some(2), master: Some(5), ..nic("bond0.7", 4, Some("vlan")) };
        let tap = Nic { master: Some(5), speed_mbit: Some(10), ..nic("tap0", 6, Some("tun")) };
        let nics = [bond, port, vlan, nic("br7", 5, Some("bridge")), tap, nic("br8", 7, Some("bridge"))];
        let names: Vec<&str> = nics.iter().map(|nic| uplink(&nics, nic).name.as_str()).collect();
        assert_eq!(names, ["bond0", "eth0", "bond0", "bond0", "tap0", "br8"]);
        // Interfaces that stand upon themselves end, too.
        let circle = [Nic { lower: Some(2), ..nic("a", 1, None) }, Nic { lower: Some(1), ..nic("b", 2, None) }];
        uplink(&circle, &circle[0]);
    }

    #[test]
    fn what_is_cut_short_is_left_out() {
        for length in 0..LINK_FIXED_BYTES {
            assert_eq!(parse_link(&vec![0; length]), None);
        }
        for length in 0..ADDRESS_FIXED_BYTES {
            assert_eq!(parse_address(&vec![0; length]), None);
        }
        assert_eq!(parse_link(&[0; 16]), None, "no name");
        assert_eq!(parse_counters(&[0; 20]), None);
    }

    #[test]
    fn unknown_speeds_are_none() {
        let settings = |low: u16, high: u16| {
            let mut settings = vec![0; 44];
            settings[12..14].copy_from_slice(&low.to_ne_bytes());
            settings[28..30].copy_from_slice(&high.to_ne_bytes());
            settings
        };
        assert_eq!(speed_mbit(&settings(1000, 0)), Some(1000));
        assert_eq!(speed_mbit(&settings(34464, 1)), Some(100_000));
        for (low, high) in [(0, 0), (0xffff, 0), (0xffff, 0xffff)] {
            assert_eq!(speed_mbit(&settings(low, high)), None);
        }
        assert_eq!(speed_mbit(&settings(1000, 0)[..20]), None);
    }
}
