//! What Open vSwitch says of its bridges (ovs-vswitchd.conf.db(5), RFC 7047): where an interface leads that it made.
//!
//! The kernel knows that a NIC belongs to Open vSwitch, and nothing more.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::nic::Nic;
use crate::source::{Answer, Ask, Source};

/// An interface that Open vSwitch made for the host: a port of a bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OvsPort {
    /// The bridge.
    pub bridge: String,
    /// The VLAN that the port is in (`tag`).
    pub vlan: Option<u16>,
    /// Where the bridge leads out of the host. Of several, flows decide which carries what.
    pub uplinks: Vec<OvsUplink>,
}

/// A port through which a bridge leads out of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OvsUplink {
    /// The port's name: that of a NIC, or of a bond.
    pub port: String,
    /// The bridges on the way, joined by patch ports: that of the interface first, that of this port last.
    pub bridges: Vec<String>,
    /// The VLAN that this port is in (`tag`); `None`: the port is a trunk.
    pub vlan: Option<u16>,
    /// The bond, if the port has several NICs.
    pub bond: Option<OvsBond>,
    /// The NICs.
    pub members: Vec<OvsMember>,
}

/// A bond of Open vSwitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OvsBond {
    /// Which member sends what.
    pub mode: OvsBondMode,
    /// Whether the bond speaks LACP.
    pub lacp: bool,
    /// Whether the bond goes by active-backup as long as nobody answers its LACP; else it carries nothing meanwhile.
    pub fallback: bool,
}

/// A bond's mode, by its name in Open vSwitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OvsBondMode {
    /// One member carries all, the others wait.
    ActiveBackup,
    /// By the sender's hardware address and VLAN: all that an interface sends takes one member.
    BalanceSlb,
    /// By addresses and ports, with LACP alone; members are moved to as they have load.
    BalanceTcp,
    /// Another, of a newer release.
    #[serde(other)]
    Other,
}

impl OvsBondMode {
    /// Returns the name in Open vSwitch.
    pub fn word(self) -> &'static str {
        match self {
            OvsBondMode::ActiveBackup => "active-backup",
            OvsBondMode::BalanceSlb => "balance-slb",
            OvsBondMode::BalanceTcp => "balance-tcp",
            OvsBondMode::Other => "a mode that is not known here",
        }
    }
}

/// A NIC of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OvsMember {
    /// The name in Open vSwitch.
    pub name: String,
    /// The kernel's number of the NIC; `None`: the kernel does not have the NIC, as with DPDK.
    pub index: Option<u32>,
    /// Whether Open vSwitch finds that the link is there.
    pub link: bool,
    /// Whether somebody answers the LACP on this member; `None`: the port speaks no LACP.
    pub answered: Option<bool>,
}

impl OvsPort {
    /// Returns where the interface leads; `None`: nowhere out of the host, or flows decide between several ways.
    pub fn only_uplink(&self) -> Option<&OvsUplink> {
        if let [uplink] = self.uplinks.as_slice() { Some(uplink) } else { None }
    }
}

impl OvsUplink {
    /// Returns the first NIC that the kernel has, which stands for a bond.
    pub(crate) fn first_index(&self) -> Option<u32> {
        self.members.iter().find_map(|member| member.index)
    }

    /// Returns the speed: of all members that may send, where connections are spread over them, else of one.
    pub(crate) fn speed_mbit(&self, nics: &[Nic]) -> Option<u32> {
        let speed = |member: &OvsMember| nics.iter().find(|nic| Some(nic.index) == member.index)?.speed_mbit;
        match self.mode_now() {
            Some(OvsBondMode::BalanceTcp) => self.sending().map(speed).sum::<Option<u32>>().filter(|mbit| *mbit > 0),
            _ => self.sending().chain(&self.members).find_map(speed),
        }
    }

    /// Returns the members that may send.
    pub fn sending(&self) -> impl Iterator<Item = &OvsMember> {
        let is_lacp = self.is_answered() == Some(true);
        self.members.iter().filter(move |member| member.link && (!is_lacp || member.answered == Some(true)))
    }

    /// Returns whether somebody answers the bond's LACP; `None`: the port speaks no LACP.
    pub fn is_answered(&self) -> Option<bool> {
        let answered = || self.members.iter().any(|member| member.answered == Some(true));
        self.bond.filter(|bond| bond.lacp).map(|_| answered())
    }

    /// Returns the mode by which the bond goes now; `None`: the bond carries nothing, or there is none
    /// (`choose_output_member` of ofproto/bond.c).
    pub fn mode_now(&self) -> Option<OvsBondMode> {
        let bond = self.bond?;
        match (self.is_answered(), bond.mode) {
            (Some(false), _) => bond.fallback.then_some(OvsBondMode::ActiveBackup),
            (None, OvsBondMode::BalanceTcp) => None,
            (_, mode) => Some(mode),
        }
    }
}

/// Returns what is asked of Open vSwitch's database: operations of `transact` (RFC 7047, 4.1.3). Options that are not
/// needed are not asked for, as keys are among them.
pub fn questions() -> Value {
    let port = ["_uuid", "name", "interfaces", "tag", "bond_mode", "lacp"];
    let interface = ["_uuid", "name", "type", "ifindex", "link_state", "lacp_current"];
    json!([
        "Open_vSwitch",
        select("Bridge", json!([]), &["name", "ports"]),
        select("Port", json!([]), &port),
        select("Interface", json!([]), &interface),
        select("Interface", json!([["type", "==", "patch"]]), &["_uuid", "options"]),
        select("Port", json!([["lacp", "!=", ["set", []]]]), &["_uuid", "other_config"]),
    ])
}

fn select(table: &str, of: Value, columns: &[&str]) -> Value {
    json!({"op": "select", "table": table, "where": of, "columns": columns})
}

/// What Open vSwitch has.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    bridges: Vec<Bridge>,
    ports: BTreeMap<String, Port>,
    interfaces: BTreeMap<String, Interface>,
}

#[derive(Debug)]
struct Bridge {
    name: String,
    ports: Vec<String>,
}

#[derive(Debug)]
struct Port {
    name: String,
    interfaces: Vec<String>,
    vlan: Option<u16>,
    bond_mode: OvsBondMode,
    lacp: bool,
    fallback: bool,
}

#[derive(Debug)]
struct Interface {
    name: String,
    kind: String,
    index: Option<u32>,
    link: bool,
    answered: Option<bool>,
    peer: Option<String>,
}

/// The reason why nothing is known of Open vSwitch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OvsError {
    #[error("Open vSwitch did not answer ({})", std::io::Error::from_raw_os_error(*.0))]
    Refused(i32),
    #[error("Open vSwitch's answer is not understood")]
    NotUnderstood,
}

/// Returns whether Open vSwitch may have made an interface: in the kernel's datapath, or as a tap where packets go
/// through its own process.
pub(crate) fn may_be_ovs(nic: &Nic) -> bool {
    match nic.kind.as_deref() {
        Some("openvswitch") => nic.admin_up,
        Some("tun") => nic.admin_up && !nic.addresses.is_empty(),
        _ => false,
    }
}

/// Asks Open vSwitch, if it may have made any of these.
pub(crate) fn read(source: &dyn Source, nics: &[Nic]) -> Result<Switch, OvsError> {
    if !nics.iter().any(may_be_ovs) {
        return Ok(Switch::default());
    }
    match source.ask(&Ask::Ovs) {
        Answer::Text(text) => Switch::parse(&text).ok_or(OvsError::NotUnderstood),
        Answer::Refused(errno) => Err(OvsError::Refused(errno)),
        _ => Err(OvsError::NotUnderstood),
    }
}

impl Switch {
    /// Reads the result of [`questions`].
    fn parse(text: &str) -> Option<Switch> {
        let results: Vec<Value> = serde_json::from_str(text).ok()?;
        let [bridges, ports, interfaces, patches, lacp] = results.as_slice() else { return None };
        let rows = |of: &Value| of["rows"].as_array().cloned();
        let bridge = |row: &Value| {
            Some(Bridge {
                name: row["name"].as_str()?.to_owned(),
                ports: set(&row["ports"])?.iter().map(uuid).collect::<Option<_>>()?,
            })
        };
        let port = |row: &Value| {
            let bond_mode = match optional(&row["bond_mode"])? {
                // The default (ovs-vswitchd.conf.db(5)).
                None => OvsBondMode::ActiveBackup,
                Some(mode) => serde_json::from_value(mode).ok()?,
            };
            let port = Port {
                name: row["name"].as_str()?.to_owned(),
                interfaces: set(&row["interfaces"])?.iter().map(uuid).collect::<Option<_>>()?,
                vlan: number(&row["tag"])?,
                bond_mode,
                lacp: optional(&row["lacp"])?.is_some_and(|lacp| lacp != "off"),
                fallback: false,
            };
            Some((uuid(&row["_uuid"])?, port))
        };
        let interface = |row: &Value| {
            let interface = Interface {
                name: row["name"].as_str()?.to_owned(),
                kind: row["type"].as_str()?.to_owned(),
                index: number(&row["ifindex"])?.filter(|index| *index != 0),
                link: optional(&row["link_state"])?.is_some_and(|state| state == "up"),
                answered: optional(&row["lacp_current"])?.and_then(|current| current.as_bool()),
                peer: None,
            };
            Some((uuid(&row["_uuid"])?, interface))
        };
        let mut switch = Switch {
            bridges: rows(bridges)?.iter().map(bridge).collect::<Option<_>>()?,
            ports: rows(ports)?.iter().map(port).collect::<Option<_>>()?,
            interfaces: rows(interfaces)?.iter().map(interface).collect::<Option<_>>()?,
        };
        for row in rows(patches)? {
            if let Some(interface) = switch.interfaces.get_mut(&uuid(&row["_uuid"])?) {
                interface.peer = entry(&row["options"], "peer")?;
            }
        }
        for row in rows(lacp)? {
            if let Some(port) = switch.ports.get_mut(&uuid(&row["_uuid"])?) {
                port.fallback = entry(&row["other_config"], "lacp-fallback-ab")?.is_some_and(|value| value == "true");
            }
        }
        Some(switch)
    }

    /// Returns what Open vSwitch says of an interface that it made. `None`: it did not make that one.
    pub(crate) fn port_of(&self, nics: &[Nic], nic: &Nic) -> Option<OvsPort> {
        // Names are told apart by number: a host's other network namespaces may have the same names.
        let is_it = |of: &Interface| of.kind == "internal" && of.name == nic.name && of.index == Some(nic.index);
        let (uuid, _) = self.interfaces.iter().find(|(_, of)| is_it(of))?;
        let (port_uuid, port) = self.ports.iter().find(|(_, port)| port.interfaces.contains(uuid))?;
        let bridge = self.bridges.iter().find(|bridge| bridge.ports.contains(port_uuid))?;
        Some(OvsPort { bridge: bridge.name.clone(), vlan: port.vlan, uplinks: self.uplinks(nics, bridge) })
    }

    /// Returns where a bridge leads out of the host: by its own ports, and by those of bridges behind patch ports.
    fn uplinks(&self, nics: &[Nic], from: &Bridge) -> Vec<OvsUplink> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::from([from.name.as_str()]);
        let mut ways = vec![(from, vec![from.name.clone()])];
        while let Some((bridge, way)) = ways.pop() {
            for port in bridge.ports.iter().filter_map(|uuid| self.ports.get(uuid)) {
                found.extend(self.uplink(nics, port, &way));
                let peers = self.interfaces_of(port).filter_map(|interface| interface.peer.as_deref());
                for next in peers.filter_map(|peer| self.bridge_of(peer)) {
                    if seen.insert(&next.name) {
                        ways.push((next, way.iter().chain([&next.name]).cloned().collect()));
                    }
                }
            }
        }
        found.sort_by(|a, b| (a.bridges.len(), &a.port).cmp(&(b.bridges.len(), &b.port)));
        found
    }

    fn interfaces_of<'a>(&'a self, port: &'a Port) -> impl Iterator<Item = &'a Interface> {
        port.interfaces.iter().filter_map(|uuid| self.interfaces.get(uuid))
    }

    /// Returns the bridge of a patch port's other end.
    fn bridge_of(&self, peer: &str) -> Option<&Bridge> {
        let (interface, _) = self.interfaces.iter().find(|(_, of)| of.name == peer && of.kind == "patch")?;
        let (port, _) = self.ports.iter().find(|(_, port)| port.interfaces.contains(interface))?;
        self.bridges.iter().find(|bridge| bridge.ports.contains(port))
    }

    /// Returns a port that leads out of the host; `None` of guests' ends, tunnels, and what Open vSwitch made.
    fn uplink(&self, nics: &[Nic], port: &Port, way: &[String]) -> Option<OvsUplink> {
        let is_bond = port.interfaces.len() > 1;
        let member = |of: &Interface| {
            let nic = nics.iter().find(|nic| Some(nic.index) == of.index && nic.name == of.name);
            let leads_out = match (of.kind.as_str(), nic) {
                ("dpdk", _) => true,
                // A member whose NIC is gone is still a member.
                ("" | "system" | "afxdp" | "afxdp-nonpmd", None) => is_bond,
                ("" | "system" | "afxdp" | "afxdp-nonpmd", Some(nic)) => {
                    !matches!(nic.kind.as_deref(), Some("tun" | "veth" | "openvswitch"))
                }
                _ => false,
            };
            let answered = port.lacp.then_some(of.answered == Some(true));
            leads_out.then(|| OvsMember {
                name: of.name.clone(),
                index: nic.map(|nic| nic.index),
                link: of.link,
                answered,
            })
        };
        let mut members: Vec<OvsMember> = self.interfaces_of(port).map(member).collect::<Option<_>>()?;
        members.sort_by(|a, b| a.name.cmp(&b.name));
        let bond = OvsBond { mode: port.bond_mode, lacp: port.lacp, fallback: port.fallback };
        let bond = is_bond.then_some(bond);
        (!members.is_empty()).then(|| OvsUplink {
            port: port.name.clone(),
            bridges: way.to_vec(),
            vlan: port.vlan,
            bond,
            members,
        })
    }
}

/// Returns the elements of a set, which is written without brackets if it has one (RFC 7047, 5.1).
fn set(value: &Value) -> Option<Vec<Value>> {
    match value.as_array().map(Vec::as_slice) {
        Some([kind, Value::Array(elements)]) if kind == "set" => Some(elements.clone()),
        _ if value.is_null() => None,
        _ => Some(vec![value.clone()]),
    }
}

/// Returns what a column has that has one element at most.
fn optional(value: &Value) -> Option<Option<Value>> {
    let mut elements = set(value)?;
    (elements.len() < 2).then(|| elements.pop())
}

/// Returns the number that a column has; `Some(None)`: it has none.
fn number<T: TryFrom<u64>>(value: &Value) -> Option<Option<T>> {
    match optional(value)? {
        None => Some(None),
        Some(value) => Some(Some(value.as_u64()?.try_into().ok()?)),
    }
}

fn uuid(value: &Value) -> Option<String> {
    match value.as_array()?.as_slice() {
        [kind, Value::String(uuid)] if kind == "uuid" => Some(uuid.clone()),
        _ => None,
    }
}

/// Returns the value of a key of a map; `Some(None)`: the map has no such key.
fn entry(value: &Value, key: &str) -> Option<Option<String>> {
    let [kind, Value::Array(entries)] = value.as_array()?.as_slice() else { return None };
    let found = entries.iter().find(|entry| entry[0] == key).and_then(|entry| entry[1].as_str());
    (kind == "map").then(|| found.map(str::to_owned))
}
