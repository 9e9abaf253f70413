//! What an interface that stands on others is: bond, VLAN, macvlan, port of a bond.

use serde::{Deserialize, Serialize};

use crate::attributes::{attributes, text, u16_at, u32_at};

// Attributes of `linux/if_link.h` that libc does not have.
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_BOND_MODE: u16 = 1;
const IFLA_BOND_ACTIVE_SLAVE: u16 = 2;
const IFLA_BOND_XMIT_HASH_POLICY: u16 = 14;
const IFLA_BOND_AD_INFO: u16 = 23;
const IFLA_BOND_AD_INFO_NUM_PORTS: u16 = 2;
const IFLA_BOND_AD_INFO_PARTNER_MAC: u16 = 5;
const IFLA_BOND_SLAVE_STATE: u16 = 1;
const IFLA_BOND_SLAVE_MII_STATUS: u16 = 2;
const IFLA_BOND_SLAVE_LINK_FAILURE_COUNT: u16 = 3;
const IFLA_BOND_SLAVE_PERM_HWADDR: u16 = 4;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_MACVLAN_MODE: u16 = 1;

/// What an interface adds to those below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Several NICs as one.
    Bond(Bond),
    /// One network of several on the NIC below.
    Vlan {
        /// The network's number.
        id: u16,
    },
    /// A hardware address of its own on the NIC below.
    Macvlan {
        /// `private`, `vepa`, `bridge`, `passthru` or `source`.
        mode: String,
    },
}

/// A bond, as the kernel's bonding driver has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bond {
    /// Which member sends what.
    pub mode: BondMode,
    /// What decides which member sends a packet, where the mode goes by that.
    pub hash: BondHash,
    /// The index of the member that carries all traffic, where one does.
    pub active: Option<u32>,
    /// How many members the other end's switch takes for one link (802.3ad).
    pub aggregated: Option<u16>,
    /// The hardware address of the other end of 802.3ad. All zero: nobody answers.
    #[serde(with = "crate::mac", default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub partner: Option<[u8; 6]>,
}

/// A bond's mode, by its name in `ip link` (Documentation/networking/bonding.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum BondMode {
    /// Packets in turn: those of one connection arrive in disorder.
    BalanceRr,
    /// One member carries all, the others wait.
    ActiveBackup,
    /// By the hash.
    BalanceXor,
    /// All members send all.
    Broadcast,
    /// LACP: by the hash, agreed on with the switch.
    #[serde(rename = "802.3ad")]
    Lacp,
    /// By load; what arrives comes by one member.
    BalanceTlb,
    /// By load, also what arrives, by ARP.
    BalanceAlb,
    /// Another, of a newer kernel.
    #[serde(other)]
    Other,
}

impl BondMode {
    /// Returns the name in `ip link`.
    pub fn word(self) -> &'static str {
        match self {
            BondMode::BalanceRr => "balance-rr",
            BondMode::ActiveBackup => "active-backup",
            BondMode::BalanceXor => "balance-xor",
            BondMode::Broadcast => "broadcast",
            BondMode::Lacp => "802.3ad",
            BondMode::BalanceTlb => "balance-tlb",
            BondMode::BalanceAlb => "balance-alb",
            BondMode::Other => "a mode that is not known here",
        }
    }

    fn of(number: u8) -> BondMode {
        match number {
            0 => BondMode::BalanceRr,
            1 => BondMode::ActiveBackup,
            2 => BondMode::BalanceXor,
            3 => BondMode::Broadcast,
            4 => BondMode::Lacp,
            5 => BondMode::BalanceTlb,
            6 => BondMode::BalanceAlb,
            _ => BondMode::Other,
        }
    }
}

/// What a bond's hash goes by, by its name in `ip link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum BondHash {
    /// Hardware addresses: all between two hosts takes one member.
    #[serde(rename = "layer2")]
    Layer2,
    /// IP addresses and ports.
    #[serde(rename = "layer3+4")]
    Layer34,
    /// Hardware and IP addresses.
    #[serde(rename = "layer2+3")]
    Layer23,
    /// As `layer2+3`, of packets within tunnels.
    #[serde(rename = "encap2+3")]
    Encap23,
    /// As `layer3+4`, of packets within tunnels.
    #[serde(rename = "encap3+4")]
    Encap34,
    /// VLAN and the sender's hardware address.
    #[serde(rename = "vlan+srcmac")]
    VlanSrcMac,
    /// Another, of a newer kernel.
    #[serde(rename = "other", other)]
    Other,
}

impl BondHash {
    /// Returns the name in `ip link`.
    pub fn word(self) -> &'static str {
        match self {
            BondHash::Layer2 => "layer2",
            BondHash::Layer34 => "layer3+4",
            BondHash::Layer23 => "layer2+3",
            BondHash::Encap23 => "encap2+3",
            BondHash::Encap34 => "encap3+4",
            BondHash::VlanSrcMac => "vlan+srcmac",
            BondHash::Other => "a hash that is not known here",
        }
    }

    fn of(number: u8) -> BondHash {
        match number {
            0 => BondHash::Layer2,
            1 => BondHash::Layer34,
            2 => BondHash::Layer23,
            3 => BondHash::Encap23,
            4 => BondHash::Encap34,
            5 => BondHash::VlanSrcMac,
            _ => BondHash::Other,
        }
    }
}

/// A bond's member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BondPort {
    /// Whether the member sends and receives; else it waits.
    pub active: bool,
    /// Whether the bonding driver finds that the link is there.
    pub link: bool,
    /// How often the link failed.
    pub failures: u32,
    /// The NIC's own hardware address: in a bond it has the bond's.
    #[serde(with = "crate::mac", default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub own_mac: Option<[u8; 6]>,
}

/// Reads an `IFLA_LINKINFO`. `kind`: what made the interface.
pub(crate) fn parse(info: &[u8], kind: Option<&str>) -> (Option<Layer>, Option<BondPort>) {
    let find = |wanted: u16| attributes(info).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let data = find(IFLA_INFO_DATA).unwrap_or_default();
    let layer = match kind {
        Some("bond") => Some(Layer::Bond(bond(data))),
        Some("vlan") => {
            let id = attributes(data).find(|(kind, _)| *kind == IFLA_VLAN_ID).and_then(|(_, value)| u16_at(value, 0));
            id.map(|id| Layer::Vlan { id })
        }
        Some("macvlan" | "macvtap") => {
            let mode = attributes(data).find(|(kind, _)| *kind == IFLA_MACVLAN_MODE);
            let mode = mode.and_then(|(_, value)| u32_at(value, 0)).map_or("", macvlan_mode);
            Some(Layer::Macvlan { mode: mode.to_owned() })
        }
        _ => None,
    };
    let is_member = find(IFLA_INFO_SLAVE_KIND).is_some_and(|kind| text(kind) == "bond");
    let port = find(IFLA_INFO_SLAVE_DATA).filter(|_| is_member).map(bond_port);
    (layer, port)
}

fn bond(data: &[u8]) -> Bond {
    let mut bond =
        Bond { mode: BondMode::Other, hash: BondHash::Layer2, active: None, aggregated: None, partner: None };
    for (kind, value) in attributes(data) {
        match kind {
            IFLA_BOND_MODE => bond.mode = value.first().map_or(BondMode::Other, |mode| BondMode::of(*mode)),
            IFLA_BOND_XMIT_HASH_POLICY => {
                bond.hash = value.first().map_or(BondHash::Other, |hash| BondHash::of(*hash));
            }
            IFLA_BOND_ACTIVE_SLAVE => bond.active = u32_at(value, 0).filter(|index| *index != 0),
            IFLA_BOND_AD_INFO => {
                for (kind, value) in attributes(value) {
                    match kind {
                        IFLA_BOND_AD_INFO_NUM_PORTS => bond.aggregated = u16_at(value, 0),
                        IFLA_BOND_AD_INFO_PARTNER_MAC => bond.partner = value.try_into().ok(),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    bond
}

fn bond_port(data: &[u8]) -> BondPort {
    let mut port = BondPort { active: false, link: false, failures: 0, own_mac: None };
    for (kind, value) in attributes(data) {
        match kind {
            // BOND_STATE_ACTIVE and BMSR_LSTATUS's BOND_LINK_UP are 0.
            IFLA_BOND_SLAVE_STATE => port.active = value.first() == Some(&0),
            IFLA_BOND_SLAVE_MII_STATUS => port.link = value.first() == Some(&0),
            IFLA_BOND_SLAVE_LINK_FAILURE_COUNT => port.failures = u32_at(value, 0).unwrap_or(0),
            IFLA_BOND_SLAVE_PERM_HWADDR => port.own_mac = value.try_into().ok(),
            _ => {}
        }
    }
    port
}

/// Returns the word of a mode (`enum macvlan_mode`).
fn macvlan_mode(number: u32) -> &'static str {
    match number {
        1 => "private",
        2 => "vepa",
        4 => "bridge",
        8 => "passthru",
        16 => "source",
        _ => "",
    }
}
