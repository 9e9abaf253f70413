//! Skein's migration network, which is on no wire: QEMU's own connections, which the kernel leads to the agents.

use serde_json::Value;

use super::carried::{Carried, CarryError, CarryRoute, READY_DEADLINE, command_lines, lacks_program, write};
use super::kit::Kit;
use crate::{
    process::{self, Process},
    site::HOSTS,
};

/// The port of the agents.
const PORT: u16 = 7070;

/// The first of the ports that are caught, as Proxmox VE has them. The guests have the following numbers.
const FIRST_CAUGHT: u16 = 60000;

/// Returns what is lacking.
pub fn lacks() -> Option<String> {
    lacks_program("nft")
}

/// Gives each host an address in the network, starts the agents, and has what the source connects to caught.
pub fn start(route: &CarryRoute<'_>, kit: &Kit) -> Result<Carried, CarryError> {
    let network_file = route.directory.join("network.toml");
    write(&network_file, &format!("network = ['10.99.9.0/24']\nallow = ['*']\n{}", hosts(address_of)))?;
    let hosts_file = route.directory.join("hosts.toml");
    let listed = [route.site.ip(HOSTS[0], 0)?, route.site.ip(HOSTS[1], 0)?];
    write(&hosts_file, &hosts(|nth| listed[nth].to_string()))?;

    let agent = |host: &str| -> Result<Process, CarryError> {
        let mut command = route.site.command(host, kit.skein())?;
        command.args(["agent", "--tunnels-only"]).arg("--identity").arg(kit.identity(host));
        command.arg("--listen").arg(format!("[::]:{PORT}"));
        command.arg("--hosts").arg(&hosts_file).arg("--migration-network").arg(&network_file);
        let mut agent = Process::start(command, &route.directory.join(format!("network-{host}.log")))?;
        agent.wait_ready(READY_DEADLINE)?;
        Ok(agent)
    };
    join_network(route)?;
    let target = agent(route.target)?;
    let mut source = agent(route.source)?;
    let catch = |what: &str, options: &[&str]| -> Result<String, CarryError> {
        let mut command = route.site.command(route.source, kit.skein())?;
        command.args(["net", "catch", what]).args(options);
        command.arg("--migration-network").arg(&network_file).arg("--hosts").arg(&hosts_file);
        Ok(process::run(command)?)
    };
    catch("install", &[])?;
    let takes_connections =
        |said: &str| serde_json::from_str::<Value>(said).is_ok_and(|shown| shown["agent_listens"] == true);
    source.wait_until("agent that takes connections", READY_DEADLINE, |_| {
        catch("show", &["--json"]).is_ok_and(|said| takes_connections(&said))
    })?;

    let address = address_of(place_of(route.target));
    let uri = |nth: u16| format!("tcp:{address}:{}", FIRST_CAUGHT + nth);
    let uris = (0..route.guests as u16).map(|nth| (uri(nth), uri(nth))).collect();
    let mut carried = Carried { uris, source: vec![source], target: vec![target], ..Carried::default() };
    carried.note("agents", command_lines(carried.source.iter().chain(&carried.target)));
    carried.note("skein net catch show", catch("show", &[])?);
    Ok(carried)
}

/// Gives both hosts their addresses, and a route to the other's.
fn join_network(route: &CarryRoute<'_>) -> Result<(), CarryError> {
    for (host, other) in [(route.source, route.target), (route.target, route.source)] {
        let via = route.site.ip(other, 0)?.to_string();
        let own = format!("{}/32", address_of(place_of(host)));
        for words in [["addr", "replace", &own, "dev", "lo"], ["route", "replace", "10.99.9.0/24", "via", &via]] {
            let mut command = route.site.command(host, "ip")?;
            command.args(words);
            process::run(command)?;
        }
    }
    Ok(())
}

fn place_of(host: &str) -> usize {
    HOSTS.iter().position(|name| *name == host).unwrap_or_default()
}

fn address_of(nth: usize) -> String {
    format!("10.99.9.{}", nth + 1)
}

/// Returns the hosts with an address each, as the agents' files list them.
fn hosts(address: impl Fn(usize) -> String) -> String {
    HOSTS
        .iter()
        .enumerate()
        .map(|(nth, name)| format!("[[host]]\nname = '{name}'\naddress = ['{}']\n", address(nth)))
        .collect()
}
