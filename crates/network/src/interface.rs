//! All that is known of a host's interfaces.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::attributes::{attributes, text, u32_at};
use crate::dcb::{self, Dcb};
use crate::device::{self, Device};
use crate::driver::{self, Driver};
use crate::layers::{self, BondPort, Layer};
use crate::nic::{LINK_FIXED_BYTES, Nic, NicError};
use crate::nic_list::nics_and_switch;
use crate::ovs::{self, OvsPort};
use crate::rdma::{self, RdmaPort};
use crate::source::{Answer, Ask, Source};
use crate::team::{self, Team, TeamPort};

// Attributes of `linux/if_link.h` that libc does not have.
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;

/// An interface, with everything that decides how fast it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interface {
    /// What is needed to use it.
    #[serde(flatten)]
    pub nic: Nic,
    /// The interface that carries its traffic in the end, if that is another: below bridge and VLAN the NIC or bond.
    pub uplink: Option<String>,
    /// The bond or bridge that it is a port of.
    pub port_of: Option<String>,
    /// The number of queues for sent packets.
    pub tx_queues: u32,
    /// What it adds to those below it.
    pub layer: Option<Layer>,
    /// What its bond says of it.
    pub bond_port: Option<BondPort>,
    /// What it is, if it is a team.
    pub team: Option<Team>,
    /// What its team says of it.
    pub team_port: Option<TeamPort>,
    /// What Open vSwitch says of it, if that made it.
    pub ovs: Option<OvsPort>,
    /// The reason why what it stands on is not known, if it is not.
    pub not_known: Option<String>,
    /// What its driver says.
    pub driver: Driver,
    /// Where it is in the host; `None` for an interface that is no hardware.
    pub device: Option<Device>,
    /// Data Center Bridging, where its driver has that.
    pub dcb: Option<Dcb>,
    /// The RDMA ports that share its cable.
    pub rdma: Vec<RdmaPort>,
    /// The queueing discipline at its root: `mq`, `htb`, `noqueue` …
    pub qdisc: Option<String>,
}

/// What of the list of links is not in [`Nic`].
#[derive(Default)]
struct More {
    tx_queues: u32,
    layer: Option<Layer>,
    bond_port: Option<BondPort>,
    bus: Option<String>,
    device: Option<String>,
}

/// Reads all interfaces but loopback: takes milliseconds.
///
/// # Errors
/// The kernel refuses, or does not answer.
pub fn read(source: &dyn Source) -> Result<Vec<Interface>, NicError> {
    let (nics, switch) = nics_and_switch(source)?;
    let mut more: BTreeMap<u32, More> = source.ask(&Ask::Links).messages().iter().filter_map(|l| parse(l)).collect();
    let table = device::interrupts(source);
    let rdma = rdma::read(source);
    let qdiscs = crate::qos::roots(source);
    let mut team_ports = BTreeMap::new();
    let mut teams = BTreeMap::new();
    for nic in nics.iter().filter(|nic| nic.kind.as_deref() == Some("team")) {
        let read = team::read(source, nic.index, &nic.name);
        teams.insert(
            nic.index,
            read.map(|read| {
                team_ports.extend(read.ports);
                read.team
            }),
        );
    }
    let name_of = |index: u32| nics.iter().find(|nic| nic.index == index).map(|nic| nic.name.clone());
    let interfaces = nics.iter().filter(|nic| !nic.loopback).map(|nic| {
        let More { tx_queues, layer, bond_port, bus, device } = more.remove(&nic.index).unwrap_or_default();
        let uplink = crate::nic::uplink(&nics, nic);
        let is_ovs = nic.kind.as_deref() == Some("openvswitch") && ovs::may_be_ovs(nic);
        let not_known = match (&switch, teams.get(&nic.index)) {
            (Err(why), _) if is_ovs => Some(why.to_string()),
            (_, Some(Err(errno))) => Some(team::refusal(*errno)),
            _ => None,
        };
        let dcb = match source.ask(&Ask::Dcb(nic.name.clone())) {
            Answer::Bytes(bytes) => Some(dcb::parse(&bytes)),
            _ => None,
        };
        Interface {
            uplink: (uplink.index != nic.index).then(|| uplink.name.clone()),
            port_of: nic.master.and_then(name_of),
            tx_queues,
            layer,
            bond_port,
            team: teams.remove(&nic.index).and_then(Result::ok),
            team_port: team_ports.remove(&nic.index),
            ovs: switch.as_ref().ok().and_then(|switch| switch.port_of(&nics, nic)),
            not_known,
            driver: driver::read(source, &nic.name),
            device: bus.zip(device).map(|(bus, name)| device::read(source, &bus, &name, &table)),
            dcb: dcb.filter(|dcb| *dcb != Dcb::default()),
            rdma: rdma.iter().filter(|port| port.nic.as_deref() == Some(&nic.name)).cloned().collect(),
            qdisc: qdiscs.get(&nic.index).map(|root| root.kind.clone()),
            nic: nic.clone(),
        }
    });
    Ok(interfaces.collect())
}

fn parse(payload: &[u8]) -> Option<(u32, More)> {
    let mut more = More { tx_queues: 1, ..More::default() };
    let mut info = None;
    for (kind, value) in attributes(payload.get(LINK_FIXED_BYTES..)?) {
        match kind {
            IFLA_NUM_TX_QUEUES => more.tx_queues = u32_at(value, 0)?,
            IFLA_PARENT_DEV_NAME => more.device = Some(text(value)).filter(|name| is_file_name(name)),
            IFLA_PARENT_DEV_BUS_NAME => more.bus = Some(text(value)).filter(|name| is_file_name(name)),
            libc::IFLA_LINKINFO => info = Some(value),
            _ => {}
        }
    }
    if let Some(info) = info {
        let kind = attributes(info).find(|(kind, _)| *kind == libc::IFLA_INFO_KIND).map(|(_, kind)| text(kind));
        (more.layer, more.bond_port) = layers::parse(info, kind.as_deref());
    }
    Some((u32_at(payload, 4)?, more))
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/')
}
