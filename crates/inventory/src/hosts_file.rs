//! The other hosts, as a TOML file (`/etc/skein/hosts.toml`).
//!
//! ```toml
//! transport = "auto"          # of all hosts; this is what it is without this line
//! rate = "4 Gbit/s; mon-fri 08:00-18:00 1 Gbit/s"  # of a host's migrations together; without this line as links carry
//! keep_ram = "8 GiB"          # RAM of guests that left a host, kept there for their way back; without this line none
//! keep_time = "1h"            # for so long; this is what it is without this line
//! [[host]]
//! name = "hostb"
//! address = ["10.0.0.2", "10.0.1.2:7070", "hostb.example"]
//! transport = "multichannel"  # of migrations from this host
//! keep_ram = "64 GiB"         # on this host
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use skein_units::{RatePlan, RatePlanError, exact_time, parse_bytes, parse_seconds};

use crate::definition::check_name;
use crate::route::Route;
use crate::toml_reader::{ParseError, Table, Value, quote, read};

/// The most hosts.
pub const HOSTS_MAX: usize = 1024;
/// The most addresses of a host.
pub const ADDRESSES_MAX: usize = 16;
/// Bounds the text of a plan of rates.
const RATE_BYTES_MAX: usize = 2048;
/// How long RAM is kept unless the file says otherwise: an hour.
const KEEP_TIME_DEFAULT_S: u64 = 3600;
/// The longest time for which RAM is kept. Later a guest has written most of its memory anew.
const KEEP_TIME_MAX_S: u64 = 30 * 86_400;

/// How much RAM of guests that left a host is kept there for their way back, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRamPolicy {
    /// The bytes of all guests together.
    pub ram_bytes: u64,
    /// The seconds since the guest left.
    pub time_s: u64,
}

/// The hosts of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct HostsFile {
    /// The hosts in the file's order. Each name and each address is there once.
    pub hosts: Vec<HostEntry>,
    /// How guests' memory travels, unless a host or a migration says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Route>,
    /// How fast all migrations from a host together may send, unless the host says otherwise.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "in_words")]
    pub rate: Option<RatePlan>,
    /// The bytes that RAM of guests that left a host may take there, unless the host says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_ram: Option<u64>,
    /// The seconds for which that RAM is kept, unless the host says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_time: Option<u64>,
}

/// A host and where its agent listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostEntry {
    /// The name: `[a-z0-9][a-z0-9._-]{0,62}`.
    pub name: String,
    /// The addresses, at least one, in the order in which they are to be tried.
    pub addresses: Vec<HostAddress>,
    /// How the memory of guests that leave the host travels, unless a migration says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Route>,
    /// How fast all migrations from the host together may send.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "in_words")]
    pub rate: Option<RatePlan>,
    /// The bytes that RAM of guests that left the host may take on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_ram: Option<u64>,
    /// The seconds for which that RAM is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_time: Option<u64>,
}

/// Where an agent listens: `10.0.0.2`, `10.0.0.2:7070`, `fd00::2`, `[fd00::2]:7070`, `hostb.example:7070`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostAddress {
    /// An IP address without brackets, or a name.
    pub host: String,
    /// The port. `None`: the usual one.
    pub port: Option<u16>,
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port, self.host.contains(':')) {
            (None, _) => f.write_str(&self.host),
            (Some(port), true) => write!(f, "[{}]:{port}", self.host),
            (Some(port), false) => write!(f, "{}:{port}", self.host),
        }
    }
}

impl FromStr for HostAddress {
    type Err = String;

    /// Reads an address.
    ///
    /// # Errors
    ///
    /// What to write instead.
    fn from_str(text: &str) -> Result<HostAddress, String> {
        if text.parse::<IpAddr>().is_ok() {
            return Ok(HostAddress { host: text.to_owned(), port: None });
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or("a bracket is not closed: write \"[fd00::2]:7070\"")?;
                host.parse::<Ipv6Addr>().map_err(|_| "only IPv6 addresses stand in brackets: \"[fd00::2]:7070\"")?;
                let port = match port.strip_prefix(':') {
                    Some(port) => Some(port),
                    None if port.is_empty() => None,
                    None => return Err("a port follows a colon: \"[fd00::2]:7070\"".into()),
                };
                (host, port)
            }
            None if text.matches(':').count() > 1 => {
                return Err("that is no IPv6 address; with a port it stands in brackets: \"[fd00::2]:7070\"".into());
            }
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = match port {
            None => None,
            Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => match port.parse() {
                Ok(0) | Err(_) => return Err("ports are 1 to 65535".into()),
                Ok(port) => Some(port),
            },
            Some(_) => return Err("what follows the colon is a port, 1 to 65535".into()),
        };
        if host.parse::<IpAddr>().is_err() {
            check_host_name(host)?;
        }
        Ok(HostAddress { host: host.to_owned(), port })
    }
}

/// Checks a name for the resolver: RFC 1123, 2.1, and underscores, which people use.
fn check_host_name(name: &str) -> Result<(), String> {
    let label = |label: &str| {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-') && label.bytes().all(fits)
    };
    let numeric = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if name.len() > 253 || numeric || !name.strip_suffix('.').unwrap_or(name).split('.').all(label) {
        return Err("write an IP address or a name, and perhaps a port: \"10.0.0.2\" or \"hostb.example:7070\"".into());
    }
    Ok(())
}

impl Serialize for HostAddress {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl HostsFile {
    /// Reads the file. `file_name` is for messages.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the file, at once.
    pub fn parse(text: &str, file_name: &str) -> Result<HostsFile, ParseError> {
        read(text, file_name, |reader, mut root: Table| {
            let tables = root.get("host").map_or(Vec::new(), |value| value.tables(reader, "[[host]]", HOSTS_MAX));
            let transport = root.get("transport").and_then(|value| value.parsed(reader, 64, str::parse));
            let rate = root.get("rate").and_then(|value| value.parsed(reader, RATE_BYTES_MAX, parse_rate));
            let keep_ram = root.get("keep_ram").and_then(|value| value.parsed(reader, 64, parse_ram));
            let keep_time = root.get("keep_time").and_then(|value| value.parsed(reader, 64, parse_keep_time));
            root.finish(reader, &[]);
            let (mut hosts, mut names, mut owners) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
            for (number, mut table) in tables.into_iter().enumerate() {
                let value = table.require(reader, "name", "name = \"hostb\"");
                let name = value.as_ref().and_then(|value| value.parsed(reader, 1024, check_name));
                if let (Some(value), Some(name)) = (&value, &name)
                    && names.insert(name.clone(), ()).is_some()
                {
                    let cure = "put all addresses into one [[host]], or rename one";
                    value.report_at(reader, format!("host {} is there already", quote(name)), cure);
                }
                let value = table.require(reader, "address", "address = [\"10.0.0.2\"]");
                let strings = value.as_ref().map(|value| value.strings(reader, ADDRESSES_MAX, 512));
                let mut addresses = Vec::new();
                for (value, text) in strings.iter().flatten() {
                    let Some(address) = value.parsed(reader, 512, |text| text.parse::<HostAddress>()) else { continue };
                    match owners.insert(address.clone(), number) {
                        None => addresses.push(address),
                        Some(owner) => {
                            let whose = if owner == number { "of this host" } else { "of another host" };
                            let reason = format!("{} is an address {whose} already", quote(text));
                            value.report_at(reader, reason, "keep it in one place");
                        }
                    }
                }
                if let (Some(value), true) = (&value, value.as_ref().is_some_and(Value::is_empty_array)) {
                    value.report_at(reader, "a host needs an address", "write address = [\"10.0.0.2\"]");
                }
                let transport = table.get("transport").and_then(|value| value.parsed(reader, 64, str::parse));
                let rate = table.get("rate").and_then(|value| value.parsed(reader, RATE_BYTES_MAX, parse_rate));
                let keep_ram = table.get("keep_ram").and_then(|value| value.parsed(reader, 64, parse_ram));
                let keep_time = table.get("keep_time").and_then(|value| value.parsed(reader, 64, parse_keep_time));
                table.finish(reader, &[]);
                hosts.push(HostEntry {
                    name: name.unwrap_or_default(),
                    addresses,
                    transport,
                    rate,
                    keep_ram,
                    keep_time,
                });
            }
            HostsFile { hosts, transport, rate, keep_ram, keep_time }
        })
    }

    /// Returns the host of this name.
    pub fn get(&self, name: &str) -> Option<&HostEntry> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// Returns how the memory of guests that leave a host travels.
    pub fn transport_from(&self, name: &str) -> Route {
        self.get(name).and_then(|host| host.transport).or(self.transport).unwrap_or_default()
    }

    /// Returns how fast all migrations from a host together may send, at which times. `None`: as the links carry.
    pub fn rate_plan_of(&self, name: &str) -> Option<&RatePlan> {
        self.get(name).and_then(|host| host.rate.as_ref()).or(self.rate.as_ref())
    }

    /// Returns what a host keeps of the RAM of guests that leave it. `None`: nothing.
    pub fn kept_ram_policy_of(&self, name: &str) -> Option<KeptRamPolicy> {
        let host = self.get(name);
        let ram_bytes = host.and_then(|host| host.keep_ram).or(self.keep_ram).filter(|bytes| *bytes > 0)?;
        let time_s = host.and_then(|host| host.keep_time).or(self.keep_time).unwrap_or(KEEP_TIME_DEFAULT_S);
        Some(KeptRamPolicy { ram_bytes, time_s })
    }
}

/// Writes a plan as people write plans.
fn in_words<S: Serializer>(plan: &Option<RatePlan>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(plan.as_ref().expect("what is absent is skipped"))
}

fn parse_rate(text: &str) -> Result<RatePlan, String> {
    text.parse().map_err(|error: RatePlanError| error.to_string())
}

fn parse_ram(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}

fn parse_keep_time(text: &str) -> Result<u64, String> {
    match parse_seconds(text).map_err(|error| error.to_string())? {
        seconds @ 1..=KEEP_TIME_MAX_S => Ok(seconds),
        0 => Err("to keep nothing, write keep_ram = \"0 GiB\"".into()),
        _ => Err(format!("{} are the most", exact_time(KEEP_TIME_MAX_S))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_is_read() {
        let hosts = HostsFile::parse(
            "[[host]]\nname = 'hostb'\naddress = ['10.0.0.2', '10.0.1.2:7070', 'hostb.example']\n\
             [[host]]\nname = 'c-3'\naddress = ['[fd00::3]:71', 'fd00::3']\n",
            "hosts.toml",
        )
        .unwrap();
        let address = |host: &str, port| HostAddress { host: host.into(), port };
        let b = [address("10.0.0.2", None), address("10.0.1.2", Some(7070)), address("hostb.example", None)];
        assert_eq!(hosts.get("hostb").unwrap().addresses, b);
        assert_eq!(hosts.get("c-3").unwrap().addresses, [address("fd00::3", Some(71)), address("fd00::3", None)]);
        assert_eq!((hosts.get("d"), hosts.hosts.len()), (None, 2));
        assert_eq!(HostsFile::parse("# none yet\n", "hosts.toml"), Ok(HostsFile::default()));
        let json = r#"{"hosts":[{"name":"a","addresses":["[fd00::3]:71"]}]}"#;
        let one = HostsFile::parse("[[host]]\nname = 'a'\naddress = ['[fd00::3]:71']\n", "hosts.toml").unwrap();
        assert_eq!(serde_json::to_string(&one).unwrap(), json);
    }

    #[test]
    fn a_transport_is_a_hosts_or_the_clusters() {
        let text = "transport = 'compression'\n[[host]]\nname = 'a'\naddress = ['10.0.0.1']\ntransport = 'tcp'\n\
                    [[host]]\nname = 'b'\naddress = ['10.0.0.2']\n";
        let hosts = HostsFile::parse(text, "hosts.toml").unwrap();
        let from = ["a", "b", "c"].map(|name| hosts.transport_from(name));
        assert_eq!(from, [Route::TCP, Route::COMPRESSION, Route::COMPRESSION]);
        assert_eq!(HostsFile::default().transport_from("a"), Route::AUTO);
    }

    #[test]
    fn a_rate_is_a_hosts_or_the_clusters() {
        let text =
            "rate = '4 Gbit/s; sun unlimited'\n[[host]]\nname = 'a'\naddress = ['10.0.0.1']\nrate = '1 Gbit/s'\n";
        let hosts = HostsFile::parse(text, "hosts.toml").unwrap();
        let of = |name| hosts.rate_plan_of(name).unwrap().to_string();
        assert_eq!((of("a"), of("b")), ("1 Gbit/s".into(), "4 Gbit/s; sun 00:00-24:00 unlimited".into()));
        assert_eq!(HostsFile::default().rate_plan_of("a"), None);
        let json = serde_json::to_value(&hosts).unwrap();
        assert_eq!((&json["rate"], &json["hosts"][0]["rate"]), (&of("b").into(), &"1 Gbit/s".into()));
    }

    #[test]
    fn what_is_kept_is_a_hosts_or_the_clusters() {
        let text = "keep_ram = '8 GiB'\n[[host]]\nname = 'a'\naddress = ['10.0.0.1']\nkeep_time = '10m'\n\
                    [[host]]\nname = 'b'\naddress = ['10.0.0.2']\nkeep_ram = '0 GiB'\n";
        let hosts = HostsFile::parse(text, "hosts.toml").unwrap();
        let keeping = |time_s| Some(KeptRamPolicy { ram_bytes: 8 << 30, time_s });
        assert_eq!(["a", "b", "c"].map(|name| hosts.kept_ram_policy_of(name)), [keeping(600), None, keeping(3600)]);
        assert_eq!(HostsFile::default().kept_ram_policy_of("a"), None);
    }

    #[test]
    fn each_fault_is_told_with_its_place_and_cure() {
        const B: &str = "[[host]]\nname = 'b'\naddress = ['10.0.0.2']\n";
        for (text, line, column, parts) in [
            ("transport = 'fast'", 1, 13, &["auto, tcp, compression, multichannel"][..]),
            ("rate = '1'", 1, 8, &["say of what: \"1 MB/s\""]),
            ("rate = 'mon-fry 1 Gbit/s'", 1, 8, &["the days are mon, tue"]),
            ("keep_ram = '8G'", 1, 12, &["write \"8 GiB\""]),
            ("keep_ram = 8", 1, 12, &["an integer and must be a string", "\"8 GiB\""]),
            ("keep_time = '1'", 1, 13, &["\"1m\" or \"1h\""]),
            ("keep_time = '0s'", 1, 13, &["keep_ram = \"0 GiB\""]),
            ("keep_time = '31d'", 1, 13, &["30 d are the most"]),
            ("[[hosts]]", 1, 3, &["no key \"hosts\"", "did you mean host?"][..]),
            ("[host]\nname = 'b'", 1, 1, &["[[host]], with two brackets"]),
            ("[[host]]\naddress = ['10.0.0.2']", 1, 1, &["name is missing in this [[host]]"]),
            ("[[host]]\nname = 'b'", 1, 1, &["address is missing"]),
            ("[[host]]\nname = 'b'\naddress = []", 3, 11, &["needs an address"]),
            ("[[host]]\nname = 'b'\naddress = '10.0.0.2'", 3, 11, &["must be an array"]),
            ("[[host]]\nname = 'b'\naddress = [7]", 3, 12, &["an integer and must be a string"]),
            ("[[host]]\nname = 'B'\naddress = ['a']", 2, 8, &["name cannot be \"B\""]),
            ("[[host]]\nname = 'b'\nadress = ['a']\naddress = ['a']", 3, 1, &["did you mean address?"]),
            (&format!("{B}{}", B.replace(".2", ".3")), 5, 8, &["\"b\" is there already"]),
            (&format!("{B}{}", B.replace("'b'", "'c'")), 6, 12, &["of another host already"]),
            ("[[host]]\nname = 'b'\naddress = ['a', 'a']", 3, 17, &["of this host already"]),
            ("[[host]]\nname = 'b'\naddress = ['a:0']", 3, 12, &["1 to 65535"]),
            ("[[host]]\nname = 'b'\naddress = ['a:65536']", 3, 12, &["1 to 65535"]),
            ("[[host]]\nname = 'b'\naddress = ['a:http']", 3, 12, &["is a port"]),
            ("[[host]]\nname = 'b'\naddress = ['a:']", 3, 12, &["1 to 65535"]),
            ("[[host]]\nname = 'b'\naddress = ['10.0.0.256']", 3, 12, &["an IP address or a name"]),
            ("[[host]]\nname = 'b'\naddress = ['a b']", 3, 12, &["an IP address or a name"]),
            ("[[host]]\nname = 'b'\naddress = ['-a.example']", 3, 12, &["an IP address or a name"]),
            ("[[host]]\nname = 'b'\naddress = ['fd00::2:x']", 3, 12, &["in brackets"]),
            ("[[host]]\nname = 'b'\naddress = ['[fd00::2']", 3, 12, &["not closed"]),
            ("[[host]]\nname = 'b'\naddress = ['[fd00::2]7']", 3, 12, &["follows a colon"]),
            ("[[host]]\nname = 'b'\naddress = ['[10.0.0.2]:7']", 3, 12, &["only IPv6"]),
        ] {
            let error = HostsFile::parse(text, "hosts.toml").expect_err(text);
            let [fault] = &error.diagnostics[..] else { panic!("{text}: {error}") };
            assert_eq!((fault.line, fault.column), (line, column), "{error}");
            let told = format!("{} {}", fault.reason, fault.cure);
            assert!(parts.iter().all(|part| told.contains(part)), "{parts:?} in {told}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_written_as_it_is_read(
            text in "[\\[\\]a-z0-9.:-]{0,24}|[0-9.]{1,12}(:[0-9]{1,6})?|\\[?[0-9a-f:]{2,20}\\]?(:[0-9]{1,6})?",
        ) {
            if let Ok(address) = text.parse::<HostAddress>() {
                prop_assert_eq!(address.to_string().parse::<HostAddress>(), Ok(address.clone()));
                let json = serde_json::to_string(&address).unwrap();
                prop_assert_eq!(serde_json::from_str::<HostAddress>(&json).unwrap(), address);
            }
        }
    }
}
