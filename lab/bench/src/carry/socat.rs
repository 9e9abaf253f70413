//! A socat at each end: unix to TCP, TCP to unix. The shape of KubeVirt's proxy, without its TLS.

use super::carried::{
    Carried, CarryError, CarryRoute, PORT, READY_DEADLINE, command_lines, forwards, unix_uris, wait_for_sockets,
};
use crate::process::Process;

/// How many bytes socat moves at once. Its default of 8 KiB would make it slow.
const BLOCK_BYTES: &str = "262144";

pub fn start(route: &CarryRoute<'_>) -> Result<Carried, CarryError> {
    let (guests, control) = forwards(route);
    let ip = route.site.ip(route.target, 0)?;
    let mut carried = Carried { uris: unix_uris(&guests), ..Carried::default() };
    for (n, forward) in guests.iter().chain(&control).enumerate() {
        let port = PORT + n as u16;
        let mut command = route.site.command(route.target, "socat")?;
        command.args(["-b", BLOCK_BYTES, &format!("TCP-LISTEN:{port},bind={ip},reuseaddr,fork,backlog=64")]);
        command.arg(format!("UNIX-CONNECT:{}", forward.connect.display()));
        let mut target = Process::start(command, &route.directory.join(format!("socat-t{n}.log")))?;
        let netns = route.site.netns(route.target)?;
        target.wait_until("listening socket", READY_DEADLINE, |_| listens(&netns, port))?;
        carried.target.push(target);

        let mut command = route.site.command(route.source, "socat")?;
        command.args(["-b", BLOCK_BYTES, &format!("UNIX-LISTEN:{},fork,backlog=64", forward.listen.display())]);
        command.arg(format!("TCP:{ip}:{port}"));
        let mut source = Process::start(command, &route.directory.join(format!("socat-s{n}.log")))?;
        wait_for_sockets(&mut source, std::iter::once(forward))?;
        carried.source.push(source);
    }
    carried.control = control;
    carried.note("socat on the source", command_lines(&carried.source));
    carried.note("socat on the target", command_lines(&carried.target));
    Ok(carried)
}

/// Returns whether something listens on a TCP port in a network namespace, without connecting to it.
fn listens(netns: &std::path::Path, port: u16) -> bool {
    // The fields of /proc/net/tcp are number, local address:port, remote address:port, state; 0A is LISTEN.
    let table = skein_host::enter(netns, || std::fs::read_to_string("/proc/thread-self/net/tcp"));
    table.is_ok_and(|table| table.is_ok_and(|text| text.lines().any(|line| listening(line, port))))
}

fn listening(line: &str, port: u16) -> bool {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let local = fields.next().and_then(|a| u16::from_str_radix(a.rsplit_once(':')?.1, 16).ok());
    local == Some(port) && fields.nth(1) == Some("0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_sockets() {
        let line =
            "   0: 0100007F:115C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0";
        assert!(listening(line, 4444));
        assert!(!listening(line, 4445));
        assert!(!listening(&line.replace(" 0A ", " 01 "), 4444));
        assert!(!listening("  sl  local_address rem_address   st", 4444));
    }
}
