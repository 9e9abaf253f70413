//! Checks whether this host is a member of its cluster: identity, agent, and the other hosts.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use skein_api::{HostView, Reply, Request, Resource, Room};
use skein_client::{CallError, Client};
use skein_identity::{Identity, IdentityError, RENEW_DAYS_BEFORE};
use skein_inventory::{ControllersFile, HostsFile, ParseError};
use skein_units::about_bytes;

use super::finding::{Finding, bad, chain, ok, warn};
use crate::commands::local::unexpected;
use crate::commands::text::count;

/// How long the agent may take to answer. It answers at once what it knows by itself.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// A hosts file is shorter than this.
const FILE_BYTES_MAX: u64 = 4 << 20;

pub fn identity(dir: &Path) -> Finding {
    let identity = match Identity::load(dir) {
        Ok(identity) => identity,
        Err(IdentityError::Read { path, source }) if source.kind() == ErrorKind::PermissionDenied => {
            return warn("identity", format!("{} is not open to this user", path.display()), "run this as root (sudo)");
        }
        // The error's text says what to do.
        Err(error) => return bad("identity", chain(error), format!("see `skein ca show {}`", dir.display())),
    };
    let (host, day) = (identity.host(), identity.info().not_after.strftime("%F"));
    match identity.info().days_left(SystemTime::now()) {
        left if left < RENEW_DAYS_BEFORE => warn(
            "identity",
            format!("{host}, valid until {day} only, {left} days more"),
            format!(
                "with a controller, the agent renews it, and its log says why it has not; else, where the cluster's CA \
                 is: skein ca renew {host}; copy host.pem to {}",
                dir.display()
            ),
        ),
        _ => ok("identity", format!("{host}, valid until {day}")),
    }
}

/// Judges the room: the most that guests which come here can get.
fn judge_room(room: &Room) -> Vec<Finding> {
    let mut findings = Vec::new();
    let bounds = room.limits.iter().filter(|limit| matches!(limit.resource, Resource::Ram | Resource::Commit));
    if let Some(limit) = bounds.min_by_key(|limit| limit.left()) {
        let owner = if limit.owner.is_empty() { "this host" } else { &limit.owner };
        let (all, name) = (about_bytes(limit.limit), &limit.name);
        let free = limit.limit.saturating_sub(limit.used);
        if limit.promised > free {
            let what = format!(
                "guests of {owner} were promised {} more than is left of its {all} ({name}): if they use it, the \
                 kernel kills one",
                about_bytes(limit.promised - free)
            );
            findings.push(warn("room", what, "move or stop guests, or raise that limit if the host has more"));
        } else {
            findings.push(ok(
                "room",
                format!("{owner} has {} of {all} for guests that come ({name})", about_bytes(limit.left())),
            ));
        }
    }
    if !room.unread.is_empty() {
        let what = format!("not all that limits guests here can be read: {}", room.unread.join("; "));
        findings.push(warn(
            "room",
            what,
            "checks of migrations to this host miss these limits: see that there is room",
        ));
    }
    findings
}

/// Returns the findings about the agent, and the number of its process.
pub fn agent(client: &Client) -> (Vec<Finding>, Option<i32>) {
    // A connection without a request, only to see which process listens.
    let pid = client.connect().ok().and_then(|stream| getsockopt(&stream, PeerCredentials).ok()).map(|peer| peer.pid());
    let local = match client.call(&Request::HostShow { name: None }, ANSWER_TIME) {
        Ok(Reply::Host(host)) => host,
        Ok(reply) => return (vec![unusable(unexpected(&reply))], pid),
        Err(error) => return (vec![unusable(error)], pid),
    };
    let mut findings = vec![ok("agent", format!("runs and answers, as {}", local.name))];
    if let Some(Err(why)) = local.facts.as_ref().map(|facts| &facts.journal) {
        let cure = "make room on its disk, or make it writable; until then no migration is begun";
        findings.push(bad("agent", format!("cannot write its journal: {why}"), cure));
    }
    if let Some(room) = local.facts.as_ref().and_then(|facts| facts.room.as_ref()) {
        findings.extend(judge_room(room));
    }
    match client.call(&Request::HostList, ANSWER_TIME) {
        Ok(Reply::Hosts { hosts }) => {
            findings.push(contacts(&hosts));
            findings.extend(network(&hosts));
        }
        Ok(reply) => findings.push(unusable(unexpected(&reply))),
        Err(error) => findings.push(unusable(error)),
    }
    (findings, pid)
}

fn unusable(error: CallError) -> Finding {
    match error {
        // The error's own text says what to do. The cause behind it (no such file) adds nothing.
        CallError::NoAgent { ref path, ref source } => {
            let what = format!("none listens on {} ({})", path.display(), source.kind());
            bad("agent", what, "systemctl start skein-agent, or `skein agent`")
        }
        CallError::Forbidden { ref path, .. } => {
            warn("agent", format!("{} is not open to this user", path.display()), "run this as root (sudo)")
        }
        error => bad("agent", chain(error), "look at its log: journalctl -u skein-agent"),
    }
}

fn contacts(hosts: &[HostView]) -> Finding {
    let others: Vec<&HostView> = hosts.iter().filter(|host| !host.is_local).collect();
    let lost: Vec<String> = others
        .iter()
        .filter(|host| host.reachable == Some(false))
        .map(|host| if host.note.is_empty() { host.name.clone() } else { format!("{} ({})", host.name, host.note) })
        .collect();
    if !lost.is_empty() {
        let cure = "start the agent there; let port 7070/tcp through on every NIC; check its address in hosts.toml";
        return warn("hosts", format!("out of reach: {}", lost.join(", ")), cure);
    }
    let reached = others.iter().filter(|host| host.reachable == Some(true)).count();
    ok("hosts", format!("{} known, {reached} in contact", count(others.len(), "other host")))
}

/// Returns what is wrong on the way to the other hosts.
fn network(hosts: &[HostView]) -> Vec<Finding> {
    let problems = hosts.iter().flat_map(|host| &host.problems);
    problems.map(|problem| warn("nic", &problem.what, &problem.cure)).collect()
}

pub fn hosts_file(path: &Path) -> Finding {
    let found = match path.with_file_name("controllers.toml").exists() {
        true => "controllers say where hosts are, and others are found by their names (DNS, /etc/hosts)",
        false => "hosts are found by their names (DNS, /etc/hosts)",
    };
    let absent = format!("there is no {}: {found}", path.display());
    let named = |hosts: HostsFile| count(hosts.hosts.len(), "host");
    file("hosts", path, HostsFile::parse, named).unwrap_or_else(|| ok("hosts", absent))
}

/// Returns what is to be said of the file of the cluster's controllers, if there is one.
pub fn controllers_file(path: &Path) -> Option<Finding> {
    let named = |controllers: ControllersFile| count(controllers.addresses.len(), "controller");
    file("cluster", path, ControllersFile::parse, named)
}

/// Judges a file that the agent reads; `None`: there is none. `named` counts what a good one names.
fn file<T>(
    topic: &'static str,
    path: &Path,
    parse: impl FnOnce(&str, &str) -> Result<T, ParseError>,
    named: impl FnOnce(T) -> String,
) -> Option<Finding> {
    let shown = path.display();
    let text = std::fs::File::open(path).and_then(|file| {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut std::io::Read::take(file, FILE_BYTES_MAX + 1), &mut text)?;
        Ok(text)
    });
    let text = match text {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => {
            let what = format!("cannot read {shown}: {error}");
            return Some(bad(topic, what, "make it a text file that this user may read"));
        }
        Ok(text) => text,
    };
    Some(match parse(&text, &shown.to_string()) {
        Ok(content) => ok(topic, format!("{shown} names {}", named(content))),
        Err(error) => {
            let first = error.diagnostics.first();
            let what = first
                .map_or(String::new(), |fault| format!("{shown}:{}:{}: {}", fault.line, fault.column, fault.reason));
            let more = error.diagnostics.len() - usize::from(first.is_some()) + error.more;
            let more = if more == 0 { String::new() } else { format!(" (and {more} more)") };
            bad(topic, what + &more, first.map(|fault| fault.cure.clone()).unwrap_or_default())
        }
    })
}

#[cfg(test)]
mod tests {
    use skein_api::RoomLimit;

    use super::super::finding::Severity;
    use super::*;

    fn host(name: &str, is_local: bool, reachable: Option<bool>, note: &str) -> HostView {
        HostView {
            name: name.into(),
            addresses: vec![],
            is_local,
            reachable,
            note: note.into(),
            problems: vec![],
            facts: None,
        }
    }

    #[test]
    fn hosts_out_of_reach_are_named() {
        let hosts = [host("a", true, None, ""), host("b", false, Some(true), ""), host("c", false, None, "")];
        assert_eq!(contacts(&hosts), ok("hosts", "2 other hosts known, 1 in contact"));
        let lost = contacts(&[host("b", false, Some(false), "refused"), host("c", false, Some(false), "")]);
        assert_eq!((lost.severity, lost.what.as_str()), (Severity::Warn, "out of reach: b (refused), c"));
    }

    #[test]
    fn what_is_wrong_on_the_way_to_a_host_is_told() {
        let problem = skein_api::Problem {
            kind: skein_api::ProblemKind::LargePacketsLost,
            severity: skein_api::Severity::Warns,
            what: "frames are lost".into(),
            cure: "set the MTU".into(),
        };
        let host = HostView { problems: vec![problem], ..host("b", false, Some(true), "") };
        assert_eq!(network(&[host]), [warn("nic", "frames are lost", "set the MTU")]);
    }

    #[test]
    fn room_is_judged_by_the_tightest_limit() {
        let limit = |owner: &str, limit, used, promised| {
            let (owner, name, promised_to) = (owner.to_owned(), "memory.max".to_owned(), Vec::new());
            RoomLimit { resource: Resource::Ram, owner, name, limit, used, promised, promised_to }
        };
        let room = |limits: &[RoomLimit], unread: &[&str]| {
            let unread = unread.iter().map(|text| text.to_string()).collect();
            judge_room(&Room { limits: limits.to_vec(), unread })
        };
        let (host, group) =
            (limit("", 64 << 30, 32 << 30, 0), limit("the control group /a", 8 << 30, 2 << 30, 4 << 30));
        let good = room(&[host.clone(), group], &[]);
        assert_eq!(good, [ok("room", "the control group /a has 2 GiB of 8 GiB for guests that come (memory.max)")]);
        let short = room(&[host, limit("the control group /a", 8 << 30, 6 << 30, 3 << 30)], &["/b"]);
        assert_eq!(short.iter().map(|finding| finding.severity).collect::<Vec<_>>(), [Severity::Warn; 2]);
        assert!(short[0].what.contains("promised 1 GiB more than is left of its 8 GiB"), "{short:?}");
    }

    #[test]
    fn a_file_of_hosts_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts.toml");
        assert_eq!(hosts_file(&path).severity, Severity::Ok);
        std::fs::write(&path, "[[host]]\nname = 'b'\naddress = ['10.0.0.2']\n").unwrap();
        assert!(hosts_file(&path).what.ends_with("names 1 host"));
        std::fs::write(&path, "[[host]]\nname = 'b'\nadress = []\n").unwrap();
        let finding = hosts_file(&path);
        assert_eq!(finding.severity, Severity::Bad);
        assert!(finding.what.contains("hosts.toml:1:1: ") && finding.what.ends_with("(and 1 more)"), "{finding:?}");
        assert!(!finding.cure.is_empty());
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(hosts_file(&path).severity, Severity::Bad);
        assert_eq!(hosts_file(dir.path()).severity, Severity::Bad);
    }

    #[test]
    fn a_file_of_controllers_need_not_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("controllers.toml");
        assert_eq!(controllers_file(&path), None);
        std::fs::write(&path, "controllers = ['10.0.0.1:7443']\n").unwrap();
        let finding = controllers_file(&path).unwrap();
        assert!(finding.severity == Severity::Ok && finding.what.ends_with("names 1 controller"), "{finding:?}");
        std::fs::write(&path, "controllers = ['a:0']\n").unwrap();
        let finding = controllers_file(&path).unwrap();
        assert!(finding.severity == Severity::Bad && finding.what.contains("controllers.toml:1:16: "), "{finding:?}");
    }

    #[test]
    fn identities_are_judged() {
        use skein_identity::{ClusterCa, Validity};
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert_eq!(identity(&at("none")).severity, Severity::Bad);
        let ca = ClusterCa::create("lab").unwrap();
        for (name, days, severity) in [("long", 365, Severity::Ok), ("short", 20, Severity::Warn)] {
            ca.issue("hosta", Validity::days(days)).unwrap().save(&at(name)).unwrap();
            let finding = identity(&at(name));
            assert_eq!(finding.severity, severity, "{finding:?}");
            assert!(finding.what.starts_with("hosta, valid until 2"));
        }
        std::fs::write(at("long").join("host.pem"), "x").unwrap();
        assert_eq!(identity(&at("long")).severity, Severity::Bad);
    }
}
