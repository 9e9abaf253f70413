//! The namespaces of a lab: their settings, the processes in them, and their removal.

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

/// The time in which processes in a lab's namespaces have to die.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// Returns the path of a named namespace.
pub fn path(netns: &str) -> PathBuf {
    Path::new("/run/netns").join(netns)
}

/// Returns the names of namespaces that start with `prefix`.
pub fn with_prefix(prefix: &str) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// Sets up a host: Debian's congestion control, whatever this machine's default is, and addresses that are usable at
/// once. Must be called inside the host.
///
/// # Errors
///
/// The error of the system if a setting cannot be written.
pub fn set_up_host() -> io::Result<()> {
    if let Err(error) = congestion_control("cubic") {
        tracing::warn!(%error, "no cubic here: the lab's hosts use this machine's default congestion control");
    }
    for interfaces in ["all", "default"] {
        ipv6(interfaces, "accept_dad", "0")?;
    }
    Ok(())
}

/// Sets up the switch: it has no address and answers nothing. Must be called inside the switch.
///
/// # Errors
///
/// The error of the system if a setting cannot be written.
pub fn set_up_switch() -> io::Result<()> {
    for interfaces in ["all", "default"] {
        ipv6(interfaces, "disable_ipv6", "1")?;
    }
    Ok(())
}

/// Ends all processes in `namespaces`, then removes the interfaces (at once, and not when the kernel gets round to it)
/// and the namespaces.
///
/// # Errors
///
/// [`IprouteError`] if a namespace cannot be removed.
pub fn remove(namespaces: &[String], switch: &str) -> Result<(), IprouteError> {
    end_processes(namespaces);
    if namespaces.iter().any(|n| n == switch) {
        // The switch has one end of every link. It is fine if there is nothing to delete, or if a namespace was never
        // mounted because a run was killed in between. What counts is that removing the namespace works.
        if let Err(error) = batch("ip", Some(switch), &[format!("link del group {GROUP}")]) {
            tracing::debug!(%error, "no links to delete");
        }
    }
    let lines: Vec<_> = namespaces.iter().map(|n| format!("netns del {n}")).collect();
    batch("ip", None, &lines)
}

/// Returns the processes in `namespaces`, without this process, and without processes of which only some threads are
/// inside.
pub fn processes_in(namespaces: &[String]) -> Vec<Pid> {
    let inodes: Vec<u64> = namespaces.iter().filter_map(|n| Some(fs::metadata(path(n)).ok()?.ino())).collect();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let inside = |pid: &i32| {
        // This cannot be read for a process that ended and was not waited for. Such a process holds no namespace any
        // more.
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
        // In a namespace only what the machine allows to all users can be chosen. The list is the machine's and cannot
        // be changed from inside. So it is changed in the namespace where this process began, or else in that of the
        // first process, which not every machine allows to be entered.
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
        // The kernel has no IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
