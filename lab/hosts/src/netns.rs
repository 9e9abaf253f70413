//! The namespaces of a lab: what is set in them, who runs in them, and how they are removed.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::iproute::{IprouteError, batch};
use crate::plan::GROUP;

/// How long processes in a lab's namespaces may take to die.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// Where a named namespace is found.
pub fn path(netns: &str) -> PathBuf {
    Path::new("/run/netns").join(netns)
}

/// The names of namespaces that start with `prefix`.
pub fn with_prefix(prefix: &str) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// Settings of a host, from inside it: Debian's congestion control, whatever this machine's default, and addresses that
/// are usable at once.
pub fn set_up_host() -> io::Result<()> {
    if let Err(error) = congestion_control("cubic") {
        tracing::warn!(%error, "no cubic here: the lab's hosts use this machine's default congestion control");
    }
    for interfaces in ["all", "default"] {
        ipv6(interfaces, "accept_dad", "0")?;
    }
    Ok(())
}

/// Settings of the switch, from inside it: it has no address and answers nobody.
pub fn set_up_switch() -> io::Result<()> {
    for interfaces in ["all", "default"] {
        ipv6(interfaces, "disable_ipv6", "1")?;
    }
    Ok(())
}

/// Ends all processes in `namespaces`, then removes the interfaces (at once, not when the kernel gets round to it) and
/// the namespaces.
pub fn remove(namespaces: &[String], switch: &str) -> Result<(), IprouteError> {
    end_processes(namespaces);
    if namespaces.iter().any(|n| n == switch) {
        // The switch holds one end of every link. Nothing to delete is fine, and so is a namespace that was never
        // mounted because a run was killed in between: what counts is that removing it works.
        if let Err(error) = batch("ip", Some(switch), &[format!("link del group {GROUP}")]) {
            tracing::debug!(%error, "no links to delete");
        }
    }
    let lines: Vec<_> = namespaces.iter().map(|n| format!("netns del {n}")).collect();
    batch("ip", None, &lines)
}

/// This process is never among them, nor one of whose threads only some are inside.
pub fn processes_in(namespaces: &[String]) -> Vec<Pid> {
    let inodes: Vec<u64> = namespaces.iter().filter_map(|n| Some(fs::metadata(path(n)).ok()?.ino())).collect();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let inside = |pid: &i32| {
        // Of a process that ended and was not waited for this cannot be read: it holds no namespace any more.
        fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|ns| inodes.contains(&ns.ino()))
    };
    pids.filter(|pid| *pid != std::process::id() as i32).filter(inside).map(Pid::from_raw).collect()
}

fn end_processes(namespaces: &[String]) {
    let started = Instant::now();
    loop {
        let pids = processes_in(namespaces);
        if pids.is_empty() {
            return;
        }
        if started.elapsed() > KILL_DEADLINE {
            tracing::warn!(?pids, "processes in the lab do not end; their namespaces stay until they do");
            return;
        }
        for pid in pids {
            let _ = kill(pid, Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn congestion_control(name: &str) -> io::Result<()> {
    let chosen = Path::new("/proc/sys/net/ipv4/tcp_congestion_control");
    match fs::write(chosen, name) {
        // Only what the machine allows to everybody can be chosen in a namespace. The list is the machine's, and
        // cannot be changed from in here: but where this process began, and else where the first one did, which not
        // every machine lets be entered.
        Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) => {
            let allow = |netns: &str| skein_host::enter(Path::new(netns), || allow_congestion_control(name))?;
            allow("/proc/self/ns/net").or_else(|_| allow("/proc/1/ns/net"))?;
            fs::write(chosen, name)
        }
        other => other,
    }
}

fn allow_congestion_control(name: &str) -> io::Result<()> {
    let path = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let allowed = fs::read_to_string(path)?;
    fs::write(path, format!("{} {name}", allowed.trim()))
}

fn ipv6(interfaces: &str, setting: &str, value: &str) -> io::Result<()> {
    match fs::write(format!("/proc/sys/net/ipv6/conf/{interfaces}/{setting}"), value) {
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
