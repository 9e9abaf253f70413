//! MPTCP under QEMU's own connections: endpoints of the kernel's path manager in both hosts.

use serde_json::json;

use super::{Carried, CarryError, Route, lacks_program};
use crate::{
    process,
    site::{HOSTS, Site},
};

/// As many as the kernel allows (MPTCP_SUBFLOWS_MAX).
const LIMIT: &str = "8";

pub fn lacks(site: &Site) -> Option<String> {
    if let Some(why) = lacks_program("ip") {
        return Some(why);
    }
    let enabled = std::fs::read_to_string("/proc/sys/net/mptcp/enabled");
    match enabled.as_deref().map(str::trim) {
        Ok("1") => {}
        Ok(_) => return Some("MPTCP is switched off here (sysctl net.mptcp.enabled)".into()),
        Err(_) => return Some("this kernel has no MPTCP".into()),
    }
    let mut command = site.command(HOSTS[0], "ip").ok()?;
    command.args(["mptcp", "limits", "show"]);
    process::run(command).err().map(|error| format!("ip cannot set up MPTCP endpoints: {error}"))
}

/// Announces every address of the target; the source connects to each. Where all are in one subnet, routing would send
/// all by one NIC: then the source's addresses are endpoints too, each bound to its NIC.
pub fn start(route: &Route<'_>) -> Result<Carried, CarryError> {
    let site = route.site;
    let one_subnet = site.links() > 1 && subnet(site.ip(route.source, 0)?) == subnet(site.ip(route.source, 1)?);
    let mut done = Vec::new();
    for (host, flags) in
        [(route.source, if one_subnet { "subflow fullmesh" } else { "signal" }), (route.target, "signal")]
    {
        let mut lines = vec![
            "mptcp endpoint flush".to_string(),
            format!("mptcp limits set subflows {LIMIT} add_addr_accepted {LIMIT}"),
        ];
        // The first address is where the first connection goes: all know it.
        for link in 1..site.links() {
            lines.push(format!("mptcp endpoint add {} dev nic{link} {flags}", site.ip(host, link)?));
        }
        for line in lines {
            let mut command = site.command(host, "ip")?;
            command.args(line.split(' '));
            process::run(command)?;
            done.push(format!("{host}: ip {line}"));
        }
    }
    let mut carried = super::tcp(route, ",mptcp=on")?;
    carried.note("mptcp", json!(done));
    Ok(carried)
}

fn subnet(ip: std::net::IpAddr) -> Vec<u8> {
    match ip {
        std::net::IpAddr::V4(ip) => ip.octets()[..3].to_vec(),
        std::net::IpAddr::V6(ip) => ip.octets()[..8].to_vec(),
    }
}
