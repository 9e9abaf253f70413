//! Is the table of nftables that leads connections to the migration network to this host's agent.
//!
//! The table is `inet skein`. No other table is touched. The program `nft` makes it in one transaction, and removes it
//! whole. Connections of this host to its own addresses pass: the agent itself connects so for other hosts. Where
//! connections are to pass without an agent, the table belongs to a process of the agent (`flags owner`, from Linux
//! 5.12), and the kernel removes it with that process.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use skein_host::{Tool, ToolOutput, run_tool};
use skein_inventory::{HostsFile, MigrationNetwork, Subnet};
use thiserror::Error;

use crate::peers::DEFAULT_PORT;

/// The table's name as nft has it.
const TABLE: &str = "inet skein";
/// The versions of IP, each with the set of its networks, and a rule.
const FAMILIES: [(&str, &str); 2] = [("ip", "networks4"), ("ip6", "networks6")];
/// Says how long nft may take for a table that goes with this process.
const HELD_TIME: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);

/// The reason why the kernel does not lead connections to the agent, or not any more.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum RedirectError {
    #[error(
        "the program nft is missing: apt-get install nftables (Debian, Ubuntu), dnf install nftables (Fedora, RHEL)"
    )]
    NoNft,
    #[error("nft cannot be run")]
    Nft(#[source] io::Error),
    #[error(
        "the kernel does not permit it: it takes root (CAP_NET_ADMIN); and what a running agent holds, as \
         without_agent is \"pass\", is that agent's"
    )]
    NotPermitted,
    #[error("nft refuses: {0}")]
    Refused(String),
    #[error("what nft writes of the table cannot be read")]
    Unreadable,
    #[error(
        "the kernel does not keep the table for this process: without_agent = \"pass\" takes Linux 5.12 and nft 0.9.9"
    )]
    NotHeld,
    #[error(
        "the agent of {host} listens on {address}, which would be caught: take that port out of ports, or have the \
         agent listen on another"
    )]
    CatchesAgent { host: String, address: SocketAddr },
}

/// The table as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RedirectStatus {
    /// The networks that are caught, as nft writes them, sorted.
    pub networks: Vec<String>,
    /// The ports that are caught, as nft writes them, sorted.
    pub ports: Vec<String>,
    /// The port of the loopback interface that connections are led to.
    pub listen: Option<u16>,
    /// The connections that were caught so far.
    pub connections: u64,
    /// Whether the table goes with the agent.
    pub is_held: bool,
    /// The rules that lead connections to the agent. A table that lacks some leads not all, or none.
    pub rules: usize,
    /// Whether connections of this host pass those rules.
    pub is_hooked: bool,
}

impl RedirectStatus {
    /// Returns whether the table has all that it was made with.
    pub fn is_whole(&self) -> bool {
        self.is_hooked && self.rules == FAMILIES.len()
    }

    /// Returns whether the table catches what the file says.
    pub fn is_as(&self, network: &MigrationNetwork) -> bool {
        self.is_whole()
            && (&self.networks, &self.ports) == (&expected(network).0, &expected(network).1)
            && self.listen == Some(network.listen)
    }
}

/// Returns nft's line that makes the table, which does not exist yet. A line is one transaction.
fn line(network: &MigrationNetwork, flags: &str) -> String {
    let elements = |all: Vec<String>| match all.is_empty() {
        true => String::new(),
        false => format!(" elements = {{ {} }};", all.join(", ")),
    };
    let of = |is_ipv6| network.networks.iter().filter(move |network: &&Subnet| network.is_ipv6() == is_ipv6);
    let mut line = format!("table {TABLE} {{ {flags} ");
    for (set, kind, all) in [
        ("networks4", "ipv4_addr", of(false).map(ToString::to_string).collect()),
        ("networks6", "ipv6_addr", of(true).map(ToString::to_string).collect()),
        ("ports", "inet_service", network.ports.iter().map(ToString::to_string).collect()),
    ] {
        let _ = write!(line, "set {set} {{ type {kind}; flags interval;{} }}; ", elements(all));
    }
    // Before the usual priority of such chains, so that what others redirect is theirs.
    line += "chain output { type nat hook output priority -110; policy accept; fib daddr type local return; ";
    for (family, set) in FAMILIES {
        let to = network.listen;
        let _ = write!(line, "{family} daddr @{set} tcp dport @ports counter redirect to :{to}; ");
    }
    line + "}; }\n"
}

/// Checks that agents reach each other although their connections pass the same rules.
fn check_agents(network: &MigrationNetwork, hosts: &HostsFile) -> Result<(), RedirectError> {
    match network.caught_agent(hosts, DEFAULT_PORT) {
        Some((host, address)) => Err(RedirectError::CatchesAgent { host, address }),
        None => Ok(()),
    }
}

/// Has the kernel lead connections to the migration network to this host's agent, in place of what it does now. It does
/// so until [`remove_redirect`], or until the host boots, whether an agent runs or not.
///
/// # Errors
/// Nothing has changed.
pub fn install_redirect(network: &MigrationNetwork, hosts: &HostsFile) -> Result<(), RedirectError> {
    check_agents(network, hosts)?;
    let script = format!("add table {TABLE}\ndelete table {TABLE}\n{}", line(network, ""));
    let said = nft(&["-f", "-"], &script)?;
    if said.status.success() { Ok(()) } else { Err(refused(&said.errors)) }
}

/// Has the kernel lead connections nowhere any more. Returns whether it did.
///
/// # Errors
/// Nothing has changed.
pub fn remove_redirect() -> Result<bool, RedirectError> {
    let said = nft(&["delete", "table", "inet", "skein"], "")?;
    if !said.status.success() && !said.errors.contains("No such file") {
        return Err(refused(&said.errors));
    }
    Ok(said.status.success())
}

/// Returns what the kernel does with connections to the migration network; `None`: nothing.
///
/// # Errors
/// The kernel cannot be asked.
pub fn redirect_status() -> Result<Option<RedirectStatus>, RedirectError> {
    let said = nft(&["-j", "list", "table", "inet", "skein"], "")?;
    if said.status.success() {
        let table = serde_json::from_slice(&said.out).map_err(|_| RedirectError::Unreadable)?;
        return Ok(Some(parse(&table)));
    }
    if said.errors.contains("No such file") { Ok(None) } else { Err(refused(&said.errors)) }
}

fn refused(words: &str) -> RedirectError {
    if words.contains("not permitted") {
        return RedirectError::NotPermitted;
    }
    RedirectError::Refused(words.lines().next().unwrap_or_default().to_owned())
}

fn parse(table: &Value) -> RedirectStatus {
    let mut status = RedirectStatus::default();
    let all = table["nftables"].as_array().map_or(&[][..], Vec::as_slice);
    for object in all {
        if let Some(set) = object.get("set") {
            let elements = set["elem"].as_array().map_or(&[][..], Vec::as_slice).iter().map(element);
            match set["name"].as_str() {
                Some("networks4" | "networks6") => status.networks.extend(elements),
                Some("ports") => status.ports.extend(elements),
                _ => {}
            }
        }
        // nft 1.0.6 writes the family's name in place of the flag's.
        if let Some(flags) = object.get("table").and_then(|table| table.get("flags")) {
            status.is_held = !flags.to_string().contains("dormant");
        }
        status.is_hooked |= object["chain"]["hook"] == "output";
        for part in object["rule"]["expr"].as_array().map_or(&[][..], Vec::as_slice) {
            status.connections += part["counter"]["packets"].as_u64().unwrap_or(0);
            if let Some(port) = part["redirect"]["port"].as_u64() {
                status.listen = u16::try_from(port).ok();
                status.rules += 1;
            }
        }
    }
    status.networks.sort();
    status.ports.sort();
    status
}

/// Returns an element of a set as nft's own words for it.
fn element(element: &Value) -> String {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if let Some(prefix) = element.get("prefix") {
        return format!("{}/{}", word(&prefix["addr"]), prefix["len"]);
    }
    match element.get("range") {
        Some(range) => format!("{}-{}", word(&range[0]), word(&range[1])),
        None => word(element),
    }
}

/// Returns the sets' elements as the kernel has them if the table is as the file says.
fn expected(network: &MigrationNetwork) -> (Vec<String>, Vec<String>) {
    let one = |text: String| {
        let bits = if text.contains(':') { "/128" } else { "/32" };
        text.strip_suffix(bits).map_or(text.clone(), str::to_owned)
    };
    let mut networks: Vec<String> = network.networks.iter().map(|network| one(network.to_string())).collect();
    let mut ports: Vec<String> = network.ports.iter().map(ToString::to_string).collect();
    networks.sort();
    ports.sort();
    (networks, ports)
}

/// Returns the error of an nft that cannot be run.
fn not_run(error: io::Error) -> RedirectError {
    match error.kind() {
        io::ErrorKind::NotFound => RedirectError::NoNft,
        _ => RedirectError::Nft(error),
    }
}

fn nft(arguments: &[&str], input: &str) -> Result<ToolOutput, RedirectError> {
    run_tool("nft", arguments, input).map_err(not_run)
}

/// A table that goes with this, or with this process.
pub(super) struct HeldRedirect {
    nft: Tool,
}

impl HeldRedirect {
    /// Makes the table.
    pub(super) fn install(network: &MigrationNetwork, hosts: &HostsFile) -> Result<HeldRedirect, RedirectError> {
        check_agents(network, hosts)?;
        // A table without an owner is of `skein net catch install`, from before the file was changed.
        if redirect_status()?.is_some_and(|table| !table.is_held) {
            remove_redirect()?;
        }
        let mut nft = Tool::start(Command::new("nft").arg("-i").stdout(Stdio::null())).map_err(not_run)?;
        let mut stdin = nft.0.stdin.take().ok_or_else(|| RedirectError::Nft(io::ErrorKind::BrokenPipe.into()))?;
        stdin.write_all(line(network, "flags owner;").as_bytes()).map_err(RedirectError::Nft)?;
        stdin.flush().map_err(RedirectError::Nft)?;
        nft.0.stdin = Some(stdin);
        let mut held = HeldRedirect { nft };
        let deadline = Instant::now() + HELD_TIME;
        while held.stands() && Instant::now() < deadline {
            if redirect_status()?.is_some_and(|table| table.is_held && table.is_as(network)) {
                return Ok(held);
            }
            thread::sleep(PAUSE);
        }
        Err(RedirectError::NotHeld)
    }

    /// Returns whether the table's owner still runs.
    pub(super) fn stands(&mut self) -> bool {
        self.nft.runs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> MigrationNetwork {
        MigrationNetwork::parse(text, "migration-network.toml").unwrap()
    }

    #[test]
    fn a_table_is_read_as_nft_writes_it() {
        // As nft 1.0.6 of Debian 12 wrote it.
        let text = r#"{"nftables": [{"metainfo": {"version": "1.0.6", "release_name": "Lester Gooch #5"}},
            {"table": {"family": "inet", "name": "skein", "handle": 2, "flags": "inet"}},
            {"set": {"family": "inet", "name": "networks4", "table": "skein", "type": "ipv4_addr", "handle": 2,
            "flags": ["interval"], "elem": ["10.9.8.1", {"prefix": {"addr": "10.9.9.0", "len": 24}}]}},
            {"set": {"family": "inet", "name": "networks6", "table": "skein", "type": "ipv6_addr", "handle": 3}},
            {"set": {"family": "inet", "name": "ports", "table": "skein", "type": "inet_service", "handle": 4,
            "elem": [7, {"range": [49152, 49215]}]}},
            {"chain": {"family": "inet", "table": "skein", "name": "output", "handle": 1, "type": "nat",
            "hook": "output", "prio": -110, "policy": "accept"}},
            {"rule": {"family": "inet", "table": "skein", "chain": "output", "handle": 6, "expr": [
            {"counter": {"packets": 3, "bytes": 180}}, {"redirect": {"port": 7071}}]}},
            {"rule": {"family": "inet", "table": "skein", "chain": "output", "handle": 7, "expr": [
            {"counter": {"packets": 0, "bytes": 0}}, {"redirect": {"port": 7071}}]}}]}"#;
        let table: Value = serde_json::from_str(text).unwrap();
        let status = parse(&table);
        assert_eq!((status.is_held, status.connections, status.listen), (true, 3, Some(7071)));
        let network = network("network = ['10.9.9.0/24', '10.9.8.1/32']\nports = ['49152-49215', '7']");
        assert!(status.is_as(&network), "{status:?}");
        // As `nft flush table inet skein` leaves the table, and as nobody leaves it.
        let without = |gone: &dyn Fn(&Value) -> bool| {
            let mut table = table.clone();
            table["nftables"].as_array_mut().unwrap().retain(|object| !gone(object));
            parse(&table)
        };
        let flushed = without(&|object| object.get("rule").is_some());
        assert!(!flushed.is_whole() && !flushed.is_as(&network) && flushed.listen.is_none(), "{flushed:?}");
        assert!(!without(&|object| object["rule"]["handle"] == 7).is_whole());
        assert!(!without(&|object| object.get("chain").is_some()).is_whole());
    }

    #[test]
    fn the_line_says_what_the_file_says() {
        let line = line(&network("network = ['fd09::/64']\nports = ['7']\nlisten = 9"), "flags owner;");
        assert!(line.contains("set networks4 { type ipv4_addr; flags interval; };"), "{line}");
        assert!(line.contains("elements = { fd09::/64 };") && line.contains("elements = { 7 };"), "{line}");
        assert!(line.contains("redirect to :9;") && line.contains("{ flags owner; "), "{line}");
        assert_eq!(line.find('\n'), Some(line.len() - 1), "one transaction");
    }
}
