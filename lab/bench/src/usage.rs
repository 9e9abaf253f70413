//! Measures what processes use: CPU of process trees and of QEMU's threads, and memory of the mover.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
};

use serde_json::Value;

use crate::results::{CpuSeconds, EndMemory};

/// The processes of one guest's or mover's end.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// The QEMU processes, each with the ids of the threads that work for the guest and not for the migration.
    pub qemus: Vec<(u32, Vec<u32>)>,
    /// The mover's processes. Their descendants belong to them.
    pub movers: Vec<u32>,
    /// The agents, which are movers too. Of their descendants those that run the same program belong to them; the
    /// others are the QEMUs.
    pub agents: Vec<u32>,
}

/// Reads what an [`End`] has used, again and again. What a process used still counts when it has ended.
#[derive(Debug)]
pub struct UsageMeter {
    /// The processes. More may be added at any time.
    pub end: End,
    /// The movers' processes, as of the last [`UsageMeter::look`].
    movers: Vec<u32>,
    /// The agents' processes, as of the same moment.
    agents: Vec<u32>,
    /// The last reading of each QEMU and agent.
    last: BTreeMap<u32, CpuSeconds>,
    /// The last reading of all movers together.
    last_movers_s: f64,
}

impl UsageMeter {
    /// Makes a meter of these processes.
    pub fn new(end: End) -> Self {
        let (movers, agents) = (Vec::new(), Vec::new());
        let mut meter = Self { end, movers, agents, last: BTreeMap::new(), last_movers_s: 0.0 };
        meter.look();
        meter
    }

    /// Finds out which processes there are now. This reads all of /proc, so it should not be done all the time.
    pub fn look(&mut self) {
        self.movers = tree(&self.end.movers);
        self.agents = self.end.agents.iter().flat_map(|agent| of_one_program(*agent)).collect();
    }

    /// Returns the CPU that the processes have used so far. What children used that a mover's process waited for is
    /// part of that process's account.
    pub fn cpu(&mut self) -> CpuSeconds {
        for (pid, threads) in &self.end.qemus {
            // The process's account includes threads that have ended, as a migration's do when it is over.
            let Ok(all) = skein_host::process_time(*pid) else { continue };
            let last = self.last.entry(*pid).or_default();
            // A process that was killed and not waited for has its whole account, but its threads no more.
            if state(*pid) != Some('Z') {
                last.guest = last.guest.max(threads.iter().filter_map(|tid| thread_s(*pid, *tid)).sum());
            }
            last.qemu = last.qemu.max(all.own_s() - last.guest);
        }
        for pid in &self.agents {
            let Ok(all) = skein_host::process_time(*pid) else { continue };
            let last = self.last.entry(*pid).or_default();
            last.mover = last.mover.max(all.own_s());
        }
        self.last_movers_s = self.last_movers_s.max(self.movers.iter().filter_map(|pid| mover_s(*pid)).sum());
        let mut cpu = CpuSeconds { mover: self.last_movers_s, ..CpuSeconds::default() };
        for last in self.last.values() {
            cpu.qemu += last.qemu;
            cpu.guest += last.guest;
            cpu.mover += last.mover;
        }
        cpu
    }

    /// Returns the memory of the mover's processes and of the sockets in their network namespace.
    pub fn memory(&self, netns: &Path) -> EndMemory {
        let pids: Vec<u32> = self.movers.iter().chain(&self.agents).copied().collect();
        let mut memory = EndMemory { socket_bytes: socket_bytes(netns, &pids), ..EndMemory::default() };
        for pid in pids {
            let Ok(of) = skein_host::process_memory(pid) else { continue };
            memory.anonymous_bytes += of.anonymous;
            memory.locked_bytes += of.locked;
        }
        memory
    }

    /// Returns what the QEMUs hold of their guests' RAM, in bytes.
    pub fn guest_ram(&self) -> u64 {
        self.end.qemus.iter().map(|(pid, _)| ram_bytes(*pid)).sum()
    }
}

/// Returns what a QEMU holds of its guest's RAM: its own pages, and those of shared memory, which others may have
/// written to. 0: the process has ended.
fn ram_bytes(pid: u32) -> u64 {
    let own = skein_host::process_memory(pid).map_or(0, |memory| memory.anonymous);
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_ram = |path: &std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|name| name.to_string_lossy().starts_with("/memfd:memory-backend-memfd"))
    };
    let shared = files.filter(is_ram).filter_map(|path| Some(fs::metadata(path).ok()?.blocks() * 512));
    own + shared.sum::<u64>()
}

/// Returns what was used between two readings.
pub fn cpu_between(before: CpuSeconds, after: CpuSeconds) -> CpuSeconds {
    CpuSeconds {
        qemu: (after.qemu - before.qemu).max(0.0),
        guest: (after.guest - before.guest).max(0.0),
        mover: (after.mover - before.mover).max(0.0),
    }
}

/// Returns `roots` and all their living descendants.
pub fn tree(roots: &[u32]) -> Vec<u32> {
    if roots.is_empty() {
        return Vec::new();
    }
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: BTreeMap<u32, u32> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    descendants(roots, &parents)
}

/// Returns `root` and those of its descendants that run the same program.
fn of_one_program(root: u32) -> Vec<u32> {
    let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let own = program(root);
    tree(&[root]).into_iter().filter(|pid| *pid == root || (own.is_some() && program(*pid) == own)).collect()
}

/// Returns the state of a process: proc_pid_stat(5), field 3.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may contain anything, come the state and the parent.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn descendants(roots: &[u32], parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut found: BTreeSet<u32> = roots.iter().copied().filter(|pid| parents.contains_key(pid)).collect();
    loop {
        let more: Vec<u32> = parents
            .iter()
            .filter(|(pid, ppid)| found.contains(ppid) && !found.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return found.into_iter().collect();
        }
        found.extend(more);
    }
}

/// Returns the threads that a process has now.
pub fn threads(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the host's ids of the threads that run a guest, from QEMU's answer to `query-cpus-fast`.
pub fn vcpu_threads(cpus: &Value) -> Vec<u32> {
    let ids = cpus.as_array().into_iter().flatten().filter_map(|cpu| cpu["thread-id"].as_u64());
    let mut ids: Vec<u32> = ids.filter_map(|id| id.try_into().ok()).collect();
    ids.sort_unstable();
    // If one thread runs all vCPUs, it is listed once for each.
    ids.dedup();
    ids
}

/// Returns a process's command line. It is empty if the process is gone.
pub fn words(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let mut words: Vec<String> = words.collect();
    // Each word ends with a zero byte.
    words.pop();
    words
}

/// Returns what a mover's process and the children that it waited for have used. The account of its first thread is
/// exact, and that of all threads is in ticks: a socat that carries one connection of many takes less than a tick.
fn mover_s(pid: u32) -> Option<f64> {
    let all = skein_host::process_time(pid).ok()?;
    let first = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok();
    let first_ns = first.and_then(|line| line.split_ascii_whitespace().next()?.parse::<f64>().ok());
    Some(all.with_children_s() + (first_ns.unwrap_or(0.0) / 1e9 - all.own_s()).max(0.0))
}

/// Returns the CPU of one thread. The kernel counts it in ticks of 10 ms.
fn thread_s(pid: u32, tid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let mut ticks = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).map(|f| f.parse::<u64>().ok());
    Some((ticks.next()?? + ticks.next()??) as f64 / 100.0)
}

/// Returns the memory of the sockets that the processes hold, as the kernel charges it (`ss -tmx` in their namespace).
fn socket_bytes(netns: &Path, pids: &[u32]) -> u64 {
    let Ok(output) = std::process::Command::new("nsenter")
        .arg(format!("--net={}", netns.display()))
        .args(["ss", "-tmxpnHO"])
        .output()
    else {
        return 0;
    };
    String::from_utf8_lossy(&output.stdout).lines().filter(|line| belongs(line, pids)).map(socket_line_bytes).sum()
}

fn belongs(line: &str, pids: &[u32]) -> bool {
    line.split("pid=").skip(1).any(|rest| {
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        digits.parse().is_ok_and(|pid| pids.contains(&pid))
    })
}

/// Returns the bytes of
/// `skmem:(r<rmem>,rb<rcvbuf>,t<wmem>,tb<sndbuf>,f<forward>,w<queued>,o<options>,bl<backlog>,d<drops>)`, see ss(8).
fn socket_line_bytes(line: &str) -> u64 {
    let Some((_, rest)) = line.split_once("skmem:(") else { return 0 };
    let Some((fields, _)) = rest.split_once(')') else { return 0 };
    // A unix socket is charged for what it has sent and the other end has not read. A TCP socket is charged for its
    // receive queue, what it allocated ahead, its send queue ('t' is part of that), and its backlog.
    let counted: &[&str] = if line.starts_with("u_") { &["t"] } else { &["r", "f", "w", "bl"] };
    fields
        .split(',')
        .filter_map(|field| {
            let digits = field.find(|c: char| c.is_ascii_digit())?;
            let value: u64 = field[digits..].parse().ok()?;
            counted.contains(&&field[..digits]).then_some(value)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_all_that_descends() {
        let parents = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 1), (6, 5)].into();
        assert_eq!(descendants(&[2], &parents), [2, 3, 4]);
        assert_eq!(descendants(&[3, 5], &parents), [3, 4, 5, 6]);
        assert!(descendants(&[9], &parents).is_empty());
    }

    #[test]
    fn cpu_of_a_shell_and_its_child() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; sleep 5"])
            .spawn()
            .unwrap();
        let mut meter = UsageMeter::new(End { movers: vec![shell.id()], ..End::default() });
        let mut used = 0.0;
        for _ in 0..3000 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            meter.look();
            used = meter.cpu().mover;
            if used > 0.05 {
                break;
            }
        }
        let _ = shell.kill();
        let _ = shell.wait();
        assert!(used > 0.05, "{used}");
        // What a process used still counts when it has ended.
        meter.look();
        assert!(meter.cpu().mover >= used);
    }

    #[test]
    fn less_than_a_tick_counts() {
        let own = mover_s(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while mover_s(child.id()).unwrap_or(0.0) == 0.0 && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let used = mover_s(child.id()).unwrap();
        let _ = child.kill();
        let _ = child.wait();
        assert!(used > 0.0 && used < 0.1, "{used}");
        assert!(mover_s(std::process::id()).unwrap() >= own);
    }

    #[test]
    fn of_an_agents_children_only_those_that_are_its_program_count() {
        // A shell with another shell and a sleep below it.
        let mut shell =
            std::process::Command::new("sh").args(["-c", "sh -c 'sleep 60; :' & sleep 60; :"]).spawn().unwrap();
        // Waits until the sleeps are sleeps: before its exec, a child is still a shell.
        let seen = || (tree(&[shell.id()]), of_one_program(shell.id()));
        let end = std::time::Instant::now() + std::time::Duration::from_secs(50);
        let (mut all, mut own) = seen();
        while (all.len(), own.len()) != (4, 2) && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(20));
            (all, own) = seen();
        }
        for pid in all.iter().rev() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid as i32), nix::sys::signal::Signal::SIGKILL);
        }
        let _ = shell.wait();
        assert_eq!((all.len(), own.len()), (4, 2), "{all:?} {own:?}");
    }

    #[test]
    fn a_qemu_that_was_killed_stays_counted() {
        let mut busy = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut meter = UsageMeter::new(End { qemus: vec![(busy.id(), vec![])], ..End::default() });
        while meter.cpu().qemu < 0.1 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ = busy.kill();
        let killed = meter.cpu().qemu;
        let _ = busy.wait();
        assert!(killed >= 0.1 && meter.cpu().qemu >= killed);
    }

    #[test]
    fn socket_memory_as_ss_tells_it() {
        let line = "tcp ESTAB 0 0 10.0.0.1:5 10.0.0.2:6 users:((\"skein\",pid=42,fd=5)) \
                    skmem:(r100,rb131072,t5,tb87040,f1000,w20,o0,bl3,d7) ";
        assert_eq!(socket_line_bytes(line), 1123);
        assert!(belongs(line, &[42]) && !belongs(line, &[4, 2, 5]));
        assert_eq!(socket_line_bytes("u_str ESTAB 0 0 * 1 * 2"), 0);
        assert_eq!(socket_line_bytes("u_str ESTAB 0 0 * 1 * 2 skmem:(r7,rb9,t50,tb9,f1,w2,o0,bl0,d0)"), 50);
    }
}
