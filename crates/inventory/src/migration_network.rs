//! The migration network, as a TOML file (`/etc/skein/migration-network.toml`), the same on all hosts.
//!
//! ```toml
//! network = ["10.9.9.0/24"]             # what programs connect to there is carried by Skein
//! allow = ["pve*"]                      # the hosts whose programs may connect to this host; without this line none
//! ports = ["49152-49215", "60000-60050"]  # these are caught; this is what it is without this line
//! listen = 7071                         # the port of the loopback interface that connections are led to
//! without_agent = "refuse"              # or "pass": what becomes of connections while no agent runs
//! [[host]]                              # only where the addresses of hosts' agents are not in the network
//! name = "hostb"
//! address = ["10.9.9.2"]
//! ```
//!
//! An entry of `allow` is a host's name, or a pattern with `*`; behind `=` it may have an address, and ports:
//! `"pve1=10.9.9.2:60000-60050"`, `"pve1=[fd09::2]:60000"`, `"pve1=10.9.9.2"`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::definition::check_name;
use crate::hosts_file::{ADDRESSES_MAX, HOSTS_MAX, HostsFile};
use crate::toml_reader::{ParseError, Reader, Table, Value, quote, read};

/// The most networks, and the most ranges of ports.
const RANGES_MAX: usize = 64;
/// The most entries of `allow`.
const ALLOW_MAX: usize = 1024;
/// The port of the loopback interface that connections are led to, unless the file says otherwise.
const LISTEN_DEFAULT: u16 = 7071;
/// The ports that are caught unless the file says otherwise: those of libvirt, with its NBD (`migration_port_min` and
/// `_max` in qemu.conf), and those of Proxmox VE.
const PORTS_DEFAULT: [Ports; 2] = [Ports { first: 49152, last: 49215 }, Ports { first: 60000, last: 60050 }];

/// A migration network, and what this host allows in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationNetwork {
    /// The networks, which do not overlap. None: there is no migration network.
    pub networks: Vec<Subnet>,
    /// The ports that are caught, in ranges that do not overlap.
    pub ports: Vec<Ports>,
    /// The port of the loopback interface that connections are led to.
    pub listen: u16,
    /// What becomes of connections while no agent runs.
    pub without_agent: WithoutAgent,
    /// Who may connect to this host.
    pub allow: Vec<AllowedHost>,
    /// Hosts by their addresses, where the hosts file does not have these.
    pub hosts: BTreeMap<IpAddr, String>,
}

/// What becomes of connections to the migration network while no agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WithoutAgent {
    /// They are refused: nothing leaves the host unencrypted.
    #[default]
    Refuse,
    /// They go out as if there were no Skein.
    Pass,
}

/// A network: its first address and the length of its prefix in bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subnet {
    address: IpAddr,
    prefix: u8,
}

/// Ports from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports {
    first: u16,
    last: u16,
}

/// An entry of `allow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    /// The host's name, or a pattern with `*`.
    name: String,
    /// The address that the host may connect to; `None`: any in the networks.
    address: Option<IpAddr>,
    /// The ports; `None`: those that are caught.
    ports: Option<Ports>,
}

impl Default for MigrationNetwork {
    fn default() -> MigrationNetwork {
        MigrationNetwork {
            networks: Vec::new(),
            ports: PORTS_DEFAULT.into(),
            listen: LISTEN_DEFAULT,
            without_agent: WithoutAgent::Refuse,
            allow: Vec::new(),
            hosts: BTreeMap::new(),
        }
    }
}

impl MigrationNetwork {
    /// Reads the file. `file_name` is for messages.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the file, at once.
    pub fn parse(text: &str, file_name: &str) -> Result<MigrationNetwork, ParseError> {
        read(text, file_name, |reader, mut root: Table| {
            let default = MigrationNetwork::default();
            let networks = root.require(reader, "network", "network = [\"10.9.9.0/24\"]");
            let networks = networks.map(|value| ranges(reader, &value, Subnet::overlaps)).unwrap_or_default();
            let ports = root.get("ports").map(|value| ranges(reader, &value, Ports::overlaps));
            let listen = root.get("listen").and_then(|value| value.integer(reader, 1..=65535));
            let words = [("refuse", WithoutAgent::Refuse), ("pass", WithoutAgent::Pass)];
            let without_agent = root.get("without_agent").and_then(|value| value.word(reader, &words));
            let allow = root.get("allow");
            let hosts = root.get("host").map_or(Vec::new(), |value| value.tables(reader, "[[host]]", HOSTS_MAX));
            root.finish(reader, &[]);
            let mut read = MigrationNetwork {
                networks,
                ports: ports.unwrap_or(default.ports),
                listen: listen.map_or(default.listen, |port| port as u16),
                without_agent: without_agent.unwrap_or_default(),
                allow: Vec::new(),
                hosts: BTreeMap::new(),
            };
            for (value, _) in allow.map(|value| value.strings(reader, ALLOW_MAX, 512)).unwrap_or_default() {
                read.allow.extend(value.parsed(reader, 512, |text| read.allowed_host(text)));
            }
            for table in hosts {
                read.read_host(reader, table);
            }
            read
        })
    }

    fn allowed_host(&self, text: &str) -> Result<AllowedHost, String> {
        let allowed: AllowedHost = text.parse()?;
        match allowed.address {
            Some(address) if !self.has(address) => Err(format!("{address} is in no network of this file")),
            _ => Ok(allowed),
        }
    }

    fn read_host(&mut self, reader: &mut Reader, mut table: Table) {
        let name = table.require(reader, "name", "name = \"hostb\"");
        let name = name.and_then(|value| value.parsed(reader, 1024, check_name)).unwrap_or_default();
        let addresses = table.require(reader, "address", "address = [\"10.9.9.2\"]");
        table.finish(reader, &[]);
        for (value, _) in addresses.map(|value| value.strings(reader, ADDRESSES_MAX, 64)).unwrap_or_default() {
            let parse = |text: &str| text.parse::<IpAddr>().map_err(|_| "write an IP address: \"10.9.9.2\"".to_owned());
            let Some(address) = value.parsed(reader, 64, parse) else { continue };
            if !self.has(address) {
                value.report_at(reader, format!("{address} is in no network of this file"), "add its network");
            } else if self.hosts.insert(address, name.clone()).is_some() {
                value.report_at(reader, format!("{address} is there already"), "keep it in one place");
            }
        }
    }

    /// Returns whether an address is in the migration network.
    pub fn has(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.has(address))
    }

    /// Returns whether connections to there are caught.
    pub fn catches(&self, to: SocketAddr) -> bool {
        self.has(to.ip()) && self.ports.iter().any(|ports| ports.has(to.port()))
    }

    /// Returns the host that has an address: by this file, or as its agent listens there by `hosts`.
    pub fn host_of(&self, address: IpAddr, hosts: &HostsFile) -> Option<String> {
        let listens = |listed: &&crate::HostEntry| listed.addresses.iter().any(|own| own.host.parse() == Ok(address));
        let listed = || hosts.hosts.iter().find(listens).map(|host| host.name.clone());
        self.hosts.get(&address).cloned().or_else(listed)
    }

    /// Returns whether a host may connect to an address and port of this host.
    pub fn may_connect(&self, host: &str, to: SocketAddr) -> bool {
        let allows = |entry: &AllowedHost| {
            let ports = |ports: &[Ports]| ports.iter().any(|ports| ports.has(to.port()));
            matches(&entry.name, host)
                && entry.address.is_none_or(|address| address == to.ip())
                && entry.ports.map_or_else(|| ports(&self.ports), |own| ports(&[own]))
        };
        self.has(to.ip()) && self.allow.iter().any(allows)
    }

    /// Returns an agent that the connections of other agents would not reach, as they would be caught.
    pub fn caught_agent(&self, hosts: &HostsFile, default_port: u16) -> Option<(String, SocketAddr)> {
        let agents = hosts.hosts.iter().flat_map(|host| host.addresses.iter().map(move |address| (host, address)));
        agents
            .filter_map(|(host, address)| {
                let to = SocketAddr::new(address.host.parse().ok()?, address.port.unwrap_or(default_port));
                Some((host.name.clone(), to))
            })
            .find(|(_, to)| self.catches(*to))
    }
}

/// Reads an array of ranges, none of which overlaps another.
fn ranges<T>(reader: &mut Reader, value: &Value, overlaps: fn(&T, &T) -> bool) -> Vec<T>
where
    T: FromStr<Err = String> + fmt::Display,
{
    let mut read: Vec<T> = Vec::new();
    for (value, text) in value.strings(reader, RANGES_MAX, 64) {
        let Some(range) = value.parsed(reader, 64, str::parse::<T>) else { continue };
        match read.iter().find(|other| overlaps(other, &range)) {
            Some(other) => value.report_at(reader, format!("{} overlaps {other}", quote(text)), "make one of both"),
            None => read.push(range),
        }
    }
    read
}

/// Returns whether a name is as a pattern says. `*` is any part of a name.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, rest)) => name
            .strip_prefix(head)
            .is_some_and(|tail| (0..=tail.len()).any(|at| tail.is_char_boundary(at) && matches(rest, &tail[at..]))),
    }
}

impl Subnet {
    /// Returns whether an address is in the network.
    pub fn has(&self, address: IpAddr) -> bool {
        masked(address, self.prefix) == Some(self.address)
    }

    /// Returns whether the network is one of IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.address.is_ipv6()
    }

    fn overlaps(&self, other: &Subnet) -> bool {
        self.has(other.address) || other.has(self.address)
    }
}

/// Returns the first address of a network; `None`: an address has fewer bits.
fn masked(address: IpAddr, prefix: u8) -> Option<IpAddr> {
    let prefix = u32::from(prefix);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32u32.checked_sub(prefix)?).unwrap_or(0);
            Some(IpAddr::V4((address.to_bits() & mask).into()))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128u32.checked_sub(prefix)?).unwrap_or(0);
            Some(IpAddr::V6((address.to_bits() & mask).into()))
        }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Subnet, String> {
        let cure = || "write a network: \"10.9.9.0/24\" or \"fd09::/64\"".to_owned();
        let (address, prefix) = text.split_once('/').ok_or_else(cure)?;
        let address: IpAddr = address.parse().map_err(|_| cure())?;
        let prefix = prefix.parse().map_err(|_| cure())?;
        let first = masked(address, prefix).ok_or_else(cure)?;
        if first != address {
            return Err(format!("the network of that address is \"{first}/{prefix}\""));
        }
        if prefix == 0 || first.is_loopback() || first.is_multicast() || first.is_unspecified() {
            return Err("that is no network of hosts: write one of their own".to_owned());
        }
        Ok(Subnet { address, prefix })
    }
}

impl Ports {
    fn has(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    fn overlaps(&self, other: &Ports) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Ports, String> {
        let cure = "write a port or a range: \"60000-60050\"";
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Ports { first, last }),
            _ => Err(cure.to_owned()),
        }
    }
}

impl FromStr for AllowedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<AllowedHost, String> {
        let (name, to) = text.split_once('=').map_or((text, None), |(name, to)| (name, Some(to)));
        let stars = name.matches('*').count();
        if stars > 4 || (name != "*" && check_name(&name.replace('*', "a")).is_err()) {
            return Err("write a host's name, or a pattern: \"pve*\", \"pve1=10.9.9.2:60000-60050\"".to_owned());
        }
        let (mut address, mut ports) = (None, None);
        if let Some(to) = to {
            let cure = || "behind = stands an address, and perhaps ports: \"pve1=[fd09::2]:60000-60050\"".to_owned();
            let (host, behind) = match (to.parse::<IpAddr>(), to.strip_prefix('[')) {
                (Ok(_), _) => (to, None),
                (_, Some(rest)) => rest.split_once("]:").map(|(host, ports)| (host, Some(ports))).ok_or_else(cure)?,
                _ => to.split_once(':').map(|(host, ports)| (host, Some(ports))).ok_or_else(cure)?,
            };
            address = Some(host.parse().map_err(|_| cure())?);
            ports = behind.map(str::parse).transpose().map_err(|_| cure())?;
        }
        Ok(AllowedHost { name: name.to_owned(), address, ports })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MigrationNetwork, ParseError> {
        MigrationNetwork::parse(text, "migration-network.toml")
    }

    fn to(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn one_line_is_enough_and_allows_nobody() {
        let network = parse("network = ['10.9.9.0/24']").unwrap();
        assert_eq!((network.listen, network.without_agent), (7071, WithoutAgent::Refuse));
        for caught in ["10.9.9.2:60000", "10.9.9.255:60050", "10.9.9.2:49152", "10.9.9.2:49215"] {
            assert!(network.catches(to(caught)), "{caught}");
            assert!(!network.may_connect("hosta", to(caught)));
        }
        for other in ["10.9.9.2:7070", "10.9.9.2:60051", "10.9.8.2:60000", "[fd09::2]:60000"] {
            assert!(!network.catches(to(other)), "{other}");
        }
    }

    #[test]
    fn who_may_connect_is_said_by_name_address_and_ports() {
        let allow = "allow = ['pve*', 'a=10.9.9.2', 'b=10.9.9.2:5000-5001', 'c=[fd09::2]:5000']";
        let network = parse(&format!("network = ['10.9.9.0/24', 'fd09::/64']\n{allow}")).unwrap();
        for (host, address, may) in [
            ("pve1", "10.9.9.2:60000", true),
            ("pve1", "[fd09::7]:60000", true),
            ("pve1", "10.9.9.2:22", false),
            ("pve1", "10.9.8.2:60000", false),
            ("xpve1", "10.9.9.2:60000", false),
            ("a", "10.9.9.2:60000", true),
            ("a", "10.9.9.3:60000", false),
            ("b", "10.9.9.2:5001", true),
            ("b", "10.9.9.2:60000", false),
            ("c", "[fd09::2]:5000", true),
            ("c", "10.9.9.2:5000", false),
            ("d", "10.9.9.2:60000", false),
        ] {
            assert_eq!(network.may_connect(host, to(address)), may, "{host} {address}");
        }
        assert!(matches("*", "x") && matches("a*c", "abc") && matches("a*", "a") && !matches("a*c", "abx"));
    }

    #[test]
    fn a_host_is_known_by_its_agents_address_or_by_this_file() {
        let hosts =
            "[[host]]\nname = 'a'\naddress = ['10.9.9.1', '10.0.0.1']\n[[host]]\nname = 'b'\naddress = ['x:71']";
        let hosts = HostsFile::parse(hosts, "hosts.toml").unwrap();
        let network = parse("network = ['10.9.9.0/24']\n[[host]]\nname = 'b'\naddress = ['10.9.9.2']").unwrap();
        let host = |address: &str| network.host_of(address.parse().unwrap(), &hosts);
        assert_eq!([host("10.9.9.1"), host("10.9.9.2"), host("10.9.9.3")], [Some("a".into()), Some("b".into()), None]);
    }

    #[test]
    fn an_agent_that_would_be_caught_is_found() {
        let hosts = |port: u16| format!("[[host]]\nname = 'a'\naddress = ['b.example:60000', '10.9.9.1:{port}']");
        let caught = |port| {
            let hosts = HostsFile::parse(&hosts(port), "hosts.toml").unwrap();
            parse("network = ['10.9.9.0/24']").unwrap().caught_agent(&hosts, 7070)
        };
        assert_eq!(caught(7070), None);
        assert_eq!(caught(60001), Some(("a".into(), to("10.9.9.1:60001"))));
    }

    #[test]
    fn each_fault_is_told() {
        for (text, says) in [
            ("", "network is missing"),
            ("network = ['10.9.9.1/24']", "10.9.9.0/24"),
            ("network = ['10.9.9.0']", "write a network"),
            ("network = ['10.9.9.0/33']", "write a network"),
            ("network = ['0.0.0.0/0']", "no network of hosts"),
            ("network = ['127.0.0.0/8']", "no network of hosts"),
            ("network = ['10.0.0.0/8', '10.9.9.0/24']", "overlaps 10.0.0.0/8"),
            ("network = ['10.9.9.0/24']\nports = ['1-5', '5']", "overlaps 1-5"),
            ("network = ['10.9.9.0/24']\nports = ['5-1']", "a range"),
            ("network = ['10.9.9.0/24']\nports = ['0']", "a range"),
            ("network = ['10.9.9.0/24']\nallow = ['A']", "a host's name"),
            ("network = ['10.9.9.0/24']\nallow = ['a=10.9.8.2']", "in no network"),
            ("network = ['10.9.9.0/24']\nallow = ['a=b']", "behind ="),
            ("network = ['10.9.9.0/24']\nwithout_agent = 'fail'", "refuse"),
            ("network = ['10.9.9.0/24']\nalow = []", "did you mean allow"),
            ("network = ['10.9.9.0/24']\n[[host]]\nname = 'a'\naddress = ['10.9.8.1']", "in no network"),
            ("network = ['10.9.9.0/24']\n[[host]]\nname = 'a'\naddress = ['10.9.9.1', '10.9.9.1']", "already"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(says), "{says} in {error}");
        }
    }
}
