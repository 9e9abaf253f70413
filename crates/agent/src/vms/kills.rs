//! Finds whether the kernel killed a QEMU for lack of memory.
//!
//! | word | says |
//! |---|---|
//! | the exit status | SIGKILL; of a child only, so not of a QEMU that an earlier agent started |
//! | `/dev/kmsg` | which process was killed, and of which control group the memory was exhausted; an agent in its unit may not read it (`ProtectKernelLogs=`) |
//! | `oom_kill` of the QEMU's memory group, or of `/proc/vmstat` | how many were killed, counted before the process ends |

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nix::libc::{O_NONBLOCK, SIGKILL};
use parking_lot::Mutex;
use skein_api::KERNEL_KILLED;
use skein_host::ControlGroups;
use skein_hypervisor::{Exit, Process, ProcessId};

use crate::room::limits::memory_owner;

/// Bounds the lines of the kernel's log that are read: those of one kill are some fifty.
const KERNEL_LOG_LINES_MAX: usize = 100_000;
/// Bounds a line (`PRINTK_MESSAGE_MAX` of the kernel's kernel/printk/internal.h, and its dictionary).
const KERNEL_LOG_LINE_BYTES_MAX: usize = 8192;
/// Holds the microseconds of a tick. A start time is in ticks of 1/100 s on all that Linux runs KVM on
/// (proc_pid_stat(5)).
const TICK_US: u64 = 10_000;

/// The kills by the kernel that are accounted for.
#[derive(Debug, Default)]
pub(super) struct Kills {
    /// The accounted number of kills, by the file that counts them.
    accounted: Mutex<BTreeMap<PathBuf, u64>>,
}

/// What killed a QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Killed {
    /// The kernel killed the QEMU, for lack of memory: of which memory, in words.
    ByKernel(String),
    /// Another program killed the QEMU (SIGKILL).
    BySomebody,
}

impl Killed {
    /// Returns a text as `the kernel killed guest web1 on hostb: out of memory on this host`.
    pub(crate) fn text(&self, guest: &str, host: &str) -> String {
        match self {
            Killed::ByKernel(why) => format!("{KERNEL_KILLED}{guest} on {host}: {why}"),
            Killed::BySomebody => {
                format!("guest {guest} on {host} was killed (SIGKILL), by somebody else than its agent")
            }
        }
    }
}

/// What was counted when a QEMU began to be watched.
#[derive(Debug)]
pub(super) struct Before {
    groups: ControlGroups,
    /// The owner of the kernel's limit, in words; `None`: only the host's memory bounds the QEMU.
    owner: Option<String>,
}

impl Kills {
    /// Reads the counts before the process may be killed.
    pub(super) fn before(&self, process: ProcessId) -> Before {
        let groups = ControlGroups::of(process.pid).unwrap_or_default();
        let mut accounted = self.accounted.lock();
        for (counter, kills) in counters(&groups) {
            accounted.entry(counter).or_insert(kills);
        }
        Before { owner: memory_owner(&groups), groups }
    }

    /// Returns what killed a process that is gone; `None`: nothing did, or this agent did.
    pub(super) fn why(&self, process: &Process, exit: Option<Exit>, before: &Before) -> Option<Killed> {
        if process.was_killed() || !matches!(exit, Some(Exit::Signal(SIGKILL) | Exit::Unknown)) {
            return None;
        }
        if let Some(group) = kernel_log().and_then(|log| killed(&log, process.id())) {
            self.take(&before.groups);
            return Some(Killed::ByKernel(match &*group {
                "" | "/" => "out of memory on this host".into(),
                group => format!("out of memory in control group {group}"),
            }));
        }
        if self.take(&before.groups) {
            return Some(Killed::ByKernel(match &before.owner {
                Some(owner) => format!("out of memory; {owner} has a limit"),
                None => "out of memory on this host".into(),
            }));
        }
        (exit == Some(Exit::Signal(SIGKILL))).then_some(Killed::BySomebody)
    }

    /// Returns whether the kernel killed one process more than is accounted for, which is this process then.
    fn take(&self, groups: &ControlGroups) -> bool {
        let mut accounted = self.accounted.lock();
        let mut is_new = false;
        // All counters count the same kill. The group's counts first; it may be gone with its last process.
        for (rank, (counter, kills)) in counters(groups).into_iter().enumerate() {
            let known = accounted.entry(counter).or_insert(kills);
            if *known < kills {
                is_new |= rank == 0;
                *known += 1;
            }
        }
        is_new
    }
}

/// Returns the files that count kills, the nearest first, and their counts.
fn counters(groups: &ControlGroups) -> Vec<(PathBuf, u64)> {
    let of_host = || {
        let stat = fs::read_to_string("/proc/vmstat").ok()?;
        let kills = stat.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()?;
        Some((PathBuf::from("/proc/vmstat"), kills))
    };
    groups.oom_kills().into_iter().chain(of_host()).collect()
}

/// Returns the kernel's log as it is now; `None`: it may not be read here.
fn kernel_log() -> Option<Vec<String>> {
    let mut file = File::options().read(true).custom_flags(O_NONBLOCK).open("/dev/kmsg").ok()?;
    let mut record = vec![0; KERNEL_LOG_LINE_BYTES_MAX];
    let mut records = Vec::new();
    for _ in 0..KERNEL_LOG_LINES_MAX {
        match file.read(&mut record) {
            Ok(bytes) => records.push(String::from_utf8_lossy(&record[..bytes]).into_owned()),
            // EPIPE: lines were overwritten before they were read; the next read returns those that are there.
            Err(error) if error.raw_os_error() == Some(nix::libc::EPIPE) => {}
            Err(_) => break,
        }
    }
    Some(records)
}

/// Returns the control group whose memory was exhausted when the kernel killed this process: `/` or nothing for the
/// host's. `None`: the log says nothing of the process.
///
/// `3,1234,5678901,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,`
/// `task_memcg=/a,task=qemu-system-x86,pid=42,uid=0` (`dump_oom_summary` of the kernel's mm/oom_kill.c)
fn killed(records: &[String], process: ProcessId) -> Option<String> {
    records.iter().rev().find_map(|record| {
        let (head, text) = record.split_once(';')?;
        let summary = text.lines().next()?.strip_prefix("oom-kill:")?;
        let us: u64 = head.split(',').nth(2)?.parse().ok()?;
        // The search goes from the end: a program's name may have a comma in it.
        let pid = summary.rsplit(',').find_map(|field| field.strip_prefix("pid="))?;
        let is_it = pid.parse() == Ok(process.pid) && us >= process.started.saturating_mul(TICK_US);
        let group = summary.split(',').find_map(|field| field.strip_prefix("oom_memcg="));
        is_it.then(|| group.unwrap_or_default().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_log_names_who_was_killed() {
        let records = [
            "6,1,100,-;Linux version 6.1",
            "3,2,5000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/old,\
             task_memcg=/old,task=x,pid=42,uid=0",
            "3,3,9000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a/b,\
             task_memcg=/a/b/c,task=qemu,pid=1,x,pid=42,uid=0\n SUBSYSTEM=x\n",
            "3,4,9100000,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
             task_memcg=/a,task=qemu,pid=43,uid=0",
            "odd",
        ]
        .map(str::to_owned);
        let group = |pid, started| killed(&records, ProcessId { pid, started });
        assert_eq!(group(42, 600).as_deref(), Some("/a/b"));
        assert_eq!(group(42, 901), None, "another process had that number before");
        assert_eq!(group(43, 1).as_deref(), Some(""));
        assert_eq!(group(1, 1), None);
    }

    #[test]
    fn who_was_not_killed_is_not_told_to_be() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::attach(ProcessId::of(child.id()).unwrap().unwrap()).unwrap().unwrap();
        let kills = Kills::default();
        let before = kills.before(process.id());
        let why = |exit| kills.why(&process, exit, &before);
        assert_eq!((why(None), why(Some(Exit::Status(0))), why(Some(Exit::Signal(15)))), (None, None, None));
        process.kill(std::time::Duration::from_secs(5)).unwrap();
        assert_eq!(why(Some(Exit::Signal(SIGKILL))), None, "the agent itself did that");
        let _ = child.wait();
    }
}
