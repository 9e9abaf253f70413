//! What a NIC's driver says: its name, duplex, queues, rings, and the work that the NIC takes from the CPU.

use serde::{Deserialize, Serialize};

use crate::attributes::{text, u32_at};
use crate::nic::speed_mbit;
use crate::source::{Ask, DriverAsk, Source};

/// Large receive offload (`ETH_FLAG_LRO` of `linux/ethtool.h`).
const ETH_FLAG_LRO: u32 = 1 << 15;

/// How a link is used in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Duplex {
    /// In turn: a cable or port that is not right.
    Half,
    /// At once.
    Full,
}

/// The work that a NIC, or the kernel late in the way of a packet, does many packets at a time. `None`: the driver does
/// not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Offloads {
    /// The NIC cuts what is sent into packets (TCP segmentation offload).
    pub tso: Option<bool>,
    /// The kernel cuts what is sent into packets, as late as possible (generic segmentation offload).
    pub gso: Option<bool>,
    /// The kernel joins received packets (generic receive offload).
    pub gro: Option<bool>,
    /// The NIC joins received packets (large receive offload): a bridge or router has to have that off.
    pub lro: Option<bool>,
    /// The NIC makes checksums.
    pub tx_checksum: Option<bool>,
    /// The NIC checks checksums.
    pub rx_checksum: Option<bool>,
}

/// How many queues of a kind a NIC uses, and could.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Channels {
    /// Queues for both directions, in use.
    pub combined: u32,
    /// Queues for both directions that the NIC has.
    pub combined_max: u32,
    /// Queues for received packets alone, in use.
    pub rx: u32,
    /// Queues for received packets alone that the NIC has.
    pub rx_max: u32,
    /// Queues for sent packets alone, in use.
    pub tx: u32,
    /// Queues for sent packets alone that the NIC has.
    pub tx_max: u32,
}

/// How many packets wait in a NIC's queues at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rings {
    /// Received packets.
    pub rx: u32,
    /// The most that the NIC can have.
    pub rx_max: u32,
    /// Packets to be sent.
    pub tx: u32,
    /// The most that the NIC can have.
    pub tx_max: u32,
}

/// What a driver says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Driver {
    /// The driver's name.
    pub name: Option<String>,
    /// The version of the NIC's firmware.
    pub firmware: Option<String>,
    /// Whether both directions are used at once.
    pub duplex: Option<Duplex>,
    /// The queues, where the NIC has several.
    pub channels: Option<Channels>,
    /// The rings.
    pub rings: Option<Rings>,
    /// Whether the NIC sends and obeys pause frames (802.3x): a NIC that pauses holds up all that it carries.
    pub pause: Option<bool>,
    /// The offloads.
    pub offloads: Offloads,
}

/// Returns the offloads of a NIC.
pub fn offloads(source: &dyn Source, nic: &str) -> Offloads {
    let value = |what| u32_at(&source.ask(&Ask::Driver(nic.to_owned(), what)).bytes()?, 4);
    let is_on = |what| value(what).map(|value| value != 0);
    Offloads {
        tso: is_on(DriverAsk::Tso),
        gso: is_on(DriverAsk::Gso),
        gro: is_on(DriverAsk::Gro),
        lro: value(DriverAsk::Flags).map(|flags| flags & ETH_FLAG_LRO != 0),
        tx_checksum: is_on(DriverAsk::TxChecksum),
        rx_checksum: is_on(DriverAsk::RxChecksum),
    }
}

/// Asks all of a driver.
pub(crate) fn read(source: &dyn Source, nic: &str) -> Driver {
    let ask = |what| source.ask(&Ask::Driver(nic.to_owned(), what)).bytes();
    let info = ask(DriverAsk::Info);
    let part =
        |from: usize| info.as_ref().and_then(|info| info.get(from..from + 32)).map(text).filter(|t| !t.is_empty());
    // Without a speed nothing is known: a team whose members tell none says that it is half duplex.
    let settings = ask(DriverAsk::Settings).filter(|settings| speed_mbit(settings).is_some());
    let duplex = settings.and_then(|settings| match settings.get(14)? {
        0 => Some(Duplex::Half),
        1 => Some(Duplex::Full),
        _ => None,
    });
    Driver {
        name: part(4),
        firmware: part(68).filter(|version| version != "N/A"),
        duplex,
        channels: ask(DriverAsk::Channels).and_then(|bytes| channels(&bytes)),
        rings: ask(DriverAsk::Rings).and_then(|bytes| rings(&bytes)),
        pause: ask(DriverAsk::Pause).and_then(|bytes| Some(u32_at(&bytes, 8)? != 0 || u32_at(&bytes, 12)? != 0)),
        offloads: offloads(source, nic),
    }
}

/// Reads a `struct ethtool_channels`.
fn channels(bytes: &[u8]) -> Option<Channels> {
    let field = |n: usize| u32_at(bytes, 4 * n);
    Some(Channels {
        rx_max: field(1)?,
        tx_max: field(2)?,
        combined_max: field(4)?,
        rx: field(5)?,
        tx: field(6)?,
        combined: field(8)?,
    })
}

/// Reads a `struct ethtool_ringparam`.
fn rings(bytes: &[u8]) -> Option<Rings> {
    let field = |n: usize| u32_at(bytes, 4 * n);
    Some(Rings { rx_max: field(1)?, tx_max: field(4)?, rx: field(5)?, tx: field(8)? })
}
