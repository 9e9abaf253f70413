//! Lists the network interfaces of a host: what is read several times a second.

use std::collections::BTreeMap;
use std::io;

use crate::nic::{Nic, NicError, parse_address, parse_link, speed_mbit, uplink};
use crate::ovs::{self, OvsError, OvsPort, OvsUplink, Switch};
use crate::source::{Answer, Ask, DriverAsk, Source};

/// Returns the network interfaces, by index. The call takes two netlink dumps, and an ioctl for each NIC: well below a
/// millisecond for a few NICs. A NIC that vanishes in between is left out or lacks its speed, which is no error.
///
/// # Errors
/// The kernel refuses or does not answer.
pub fn nics(source: &dyn Source) -> Result<Vec<Nic>, NicError> {
    nics_and_switch(source).map(|(nics, _)| nics)
}

/// Returns the same, and what Open vSwitch said.
pub(crate) fn nics_and_switch(source: &dyn Source) -> Result<(Vec<Nic>, Result<Switch, OvsError>), NicError> {
    let links = messages(source, &Ask::Links, "interfaces")?;
    let addresses = messages(source, &Ask::Addresses, "addresses")?;
    let mut nics: BTreeMap<u32, Nic> = links.iter().filter_map(|l| parse_link(l)).map(|nic| (nic.index, nic)).collect();
    for (index, address) in addresses.iter().filter_map(|a| parse_address(a)) {
        if let Some(nic) = nics.get_mut(&index) {
            nic.addresses.push(address);
        }
    }
    let mut nics: Vec<Nic> = nics.into_values().collect();
    // Where the interfaces of Open vSwitch lead; where that is not known, nothing is below them.
    let switch = ovs::read(source, &nics);
    let port_of = |nic: &Nic| switch.as_ref().ok().and_then(|switch| switch.port_of(&nics, nic));
    let ports: Vec<Option<OvsPort>> = nics.iter().map(port_of).collect();
    for (nic, port) in nics.iter_mut().zip(&ports) {
        let below = port.as_ref().and_then(OvsPort::only_uplink).and_then(OvsUplink::first_index);
        nic.lower = below.or(nic.lower);
    }
    // A veth's driver claims 10 Gb/s whatever the host can do: a figure that is worth less than none.
    for nic in nics.iter_mut().filter(|n| !n.loopback && n.kind.as_deref() != Some("veth")) {
        let settings = source.ask(&Ask::Driver(nic.name.clone(), DriverAsk::Settings)).bytes();
        nic.speed_mbit = settings.and_then(|settings| speed_mbit(&settings));
    }
    // The kernel gives the speed of a bridge's fastest port, guests' among them (br_ethtool_ops of
    // net/bridge/br_device.c).
    let bridges = |nic: &&Nic| nic.kind.as_deref() == Some("bridge");
    let speed = |bridge: &Nic| Some(uplink(&nics, bridge)).filter(|below| below.index != bridge.index)?.speed_mbit;
    let speeds: Vec<Option<u32>> = nics.iter().filter(bridges).map(speed).collect();
    for (nic, speed) in nics.iter_mut().filter(|nic| bridges(&&**nic)).zip(speeds) {
        nic.speed_mbit = speed;
    }
    let uplinks = ports.iter().map(|port| port.as_ref().and_then(OvsPort::only_uplink));
    let speeds: Vec<Option<u32>> = uplinks.map(|uplink| uplink.and_then(|uplink| uplink.speed_mbit(&nics))).collect();
    for (nic, speed) in nics.iter_mut().zip(speeds) {
        nic.speed_mbit = speed.or(nic.speed_mbit);
    }
    for nic in &mut nics {
        nic.addresses.sort_by_key(|a| a.ip.is_ipv6());
    }
    Ok((nics, switch))
}

fn messages(source: &dyn Source, ask: &Ask, what: &'static str) -> Result<Vec<Vec<u8>>, NicError> {
    match source.ask(ask) {
        Answer::Messages(messages) => Ok(messages),
        Answer::Refused(errno) => Err(NicError::Netlink(what, io::Error::from_raw_os_error(errno))),
        _ => Err(NicError::Netlink(what, io::ErrorKind::InvalidData.into())),
    }
}
