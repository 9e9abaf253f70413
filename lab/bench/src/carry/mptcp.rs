//! MPTCP under QEMU's own connections.

use serde_json::json;

use super::carried::{Carried, CarryError, CarryRoute, tcp};
use crate::{
    process,
    site::{HOSTS, Site},
};

/// Returns what is lacking, by trying it: the kernel may not have MPTCP or may have it disabled, or `ip` may be too
/// old.
pub fn lacks(site: &Site) -> Option<String> {
    let error = site.mptcp(HOSTS[0], HOSTS[1]).err()?;
    Some(crate::chain(&error))
}

pub fn start(route: &CarryRoute<'_>) -> Result<Carried, CarryError> {
    route.site.mptcp(route.source, route.target)?;
    let mut carried = tcp(route, ",mptcp=on")?;
    for host in [route.source, route.target] {
        let show = |what: &str| -> Result<String, CarryError> {
            let mut command = route.site.command(host, "ip")?;
            command.args(["mptcp", what, "show"]);
            Ok(process::run(command)?)
        };
        let lines = show("limits")? + &show("endpoint")?;
        let lines: Vec<&str> = lines.lines().map(str::trim).collect();
        carried.note(&format!("ip mptcp on {host}"), json!(lines));
    }
    Ok(carried)
}
