//! Skein itself: `skein agent` on the target, `skein tunnel` on the source.

use super::carried::{Carried, CarryError, CarryRoute, READY_DEADLINE, command_lines, forwards, unix_uris};
use super::kit::Kit;
use crate::{mover::Tls, process::Process};

/// The port of the agent.
const PORT: u16 = 7070;

/// Starts an agent on the target and a tunnel to it on the source.
pub fn start(route: &CarryRoute<'_>, kit: &Kit, tls: Tls) -> Result<Carried, CarryError> {
    let (guests, control) = forwards(route);
    let site = route.site;

    let mut command = site.command(route.target, kit.skein())?;
    command.args(["agent", "--tunnels-only"]).arg("--identity").arg(kit.identity(route.target));
    command.arg("--listen").arg(format!("[::]:{PORT}"));
    command.arg("--allow").arg(route.directory.join("*.t"));
    if tls == Tls::Off {
        command.arg("--allow-plain-data");
    }
    let mut agent = Process::start(command, &route.directory.join("agent.log"))?;
    agent.wait_ready(READY_DEADLINE)?;

    let mut command = site.command(route.source, kit.skein())?;
    command.arg("tunnel").arg("--identity").arg(kit.identity(route.source));
    command.arg("--to").arg(format!("{}:{PORT}", site.ip(route.target, 0)?));
    for forward in guests.iter().chain(&control) {
        let mut pair = forward.listen.clone().into_os_string();
        pair.push("=");
        pair.push(&forward.connect);
        command.arg("--forward").arg(pair);
    }
    if tls == Tls::Off {
        command.arg("--plain-data");
    }
    let mut tunnel = Process::start(command, &route.directory.join("tunnel.log"))?;
    tunnel.wait_ready(READY_DEADLINE)?;

    let mut carried =
        Carried { uris: unix_uris(&guests), control, source: vec![tunnel], target: vec![agent], ..Carried::default() };
    carried.note("tunnel", command_lines(&carried.source));
    carried.note("agent", command_lines(&carried.target));
    Ok(carried)
}
