//! Reads CPU time of the cores, of a process, and of a thread. The kernel counts the first two in ticks (`_SC_CLK_TCK`,
//! 10 ms on Linux), so differences are exact only over a second or more.

use std::sync::LazyLock;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

use crate::{ProcError, read_proc};

/// How long a core was busy and idle since boot, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreTime {
    /// The core's number.
    pub core: u32,
    /// Everything but idle and waiting for I/O. Stolen time is included, because the core was not there to be used.
    pub busy_s: f64,
    /// The core was idle, or idle with I/O under way.
    pub idle_s: f64,
}

/// The CPU time of a process, in seconds. All of its threads count, also those that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessTime {
    /// The time in the process's own code; a hypervisor's includes its guest's.
    pub user_s: f64,
    /// The time in the kernel on the process's behalf.
    pub system_s: f64,
    /// The user time of children that ended and were waited for, and of their children.
    pub children_user_s: f64,
    /// The system time of children that ended and were waited for, and of their children.
    pub children_system_s: f64,
}

impl ProcessTime {
    /// Returns the user and system time of the process itself.
    pub fn own_s(&self) -> f64 {
        self.user_s + self.system_s
    }

    /// Returns the user and system time of the process and of the children that it waited for.
    pub fn with_children_s(&self) -> f64 {
        self.own_s() + self.children_user_s + self.children_system_s
    }
}

/// Returns the time of each core that is online.
///
/// # Errors
/// `/proc/stat` cannot be read or understood.
pub fn cores() -> Result<Vec<CoreTime>, ProcError> {
    let path = "/proc/stat";
    let cores = parse_cores(&read_proc(path)?, *TICK_S);
    if cores.is_empty() { Err(ProcError::Field { path: path.to_owned(), field: "cpu0" }) } else { Ok(cores) }
}

/// Returns the CPU time of the calling thread, to the nanosecond (clock_gettime(2)).
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.expect("Linux has this clock for each thread").into()
}

/// Returns the CPU time of this process, to the nanosecond (clock_gettime(2)).
pub fn own_process_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID);
    time.expect("Linux has this clock for each process").into()
}

/// Returns the CPU time of the process `pid`.
///
/// # Errors
/// The process has ended, or `/proc/PID/stat` cannot be understood.
pub fn process_time(pid: u32) -> Result<ProcessTime, ProcError> {
    let path = format!("/proc/{pid}/stat");
    parse_process(&read_proc(&path)?, *TICK_S).ok_or(ProcError::Field { path, field: "utime" })
}

static TICK_S: LazyLock<f64> = LazyLock::new(|| {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    1.0 / per_second as f64
});

fn parse_cores(stat: &str, tick_s: f64) -> Vec<CoreTime> {
    let core = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
        // The line of all cores together has no number.
        let core = fields.next()?.parse().ok()?;
        // The fields are user nice system idle iowait irq softirq steal; guest and guest_nice are part of user and
        // nice.
        let ticks: Vec<u64> = fields.take(8).map_while(|f| f.parse().ok()).collect();
        let idle = *ticks.get(3)? + ticks.get(4).unwrap_or(&0);
        let busy = ticks.iter().sum::<u64>() - idle;
        Some(CoreTime { core, busy_s: busy as f64 * tick_s, idle_s: idle as f64 * tick_s })
    };
    // `cpu 1 2 3 …` must not read as a core. A blank follows its prefix.
    stat.lines().filter(|l| !l.starts_with("cpu ")).filter_map(core).collect()
}

fn parse_process(stat: &str, tick_s: f64) -> Option<ProcessTime> {
    // The second field is the name in parentheses. The name may hold blanks and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    // The fields are counted from the third (state): utime is the 14th of all, see proc_pid_stat(5).
    let mut times = rest.split_ascii_whitespace().skip(11).map(|f| f.parse::<i64>().map(|t| t as f64 * tick_s));
    let mut next = || times.next()?.ok();
    Some(ProcessTime { user_s: next()?, system_s: next()?, children_user_s: next()?, children_system_s: next()? })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn cores_of_a_stat_file() {
        let stat = "cpu  30 0 30 300 3 0 0 0 0 0\ncpu0 10 1 10 100 5 2 3 4 6 0\ncpu3 20 0 0 7\nintr 1 2 3\n";
        let cores = parse_cores(stat, 0.01);
        assert_eq!(
            cores,
            [CoreTime { core: 0, busy_s: 0.3, idle_s: 1.05 }, CoreTime { core: 3, busy_s: 0.2, idle_s: 0.07 },]
        );
    }

    #[test]
    fn names_with_blanks_and_parentheses() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 10 20 0 0 150 50 7 3 20 0 4 0 99 1000 5";
        let time = parse_process(stat, 0.01).unwrap();
        assert_eq!((time.user_s, time.system_s), (1.5, 0.5));
        assert_eq!(time.own_s(), 2.0);
        assert!((time.with_children_s() - 2.1).abs() < 1e-9);
        assert_eq!(parse_process("7 (x) S 1 2", 0.01), None);
    }

    #[test]
    fn a_thread_that_works_is_seen() {
        let before = process_time(std::process::id()).unwrap().own_s();
        let spent = move || process_time(std::process::id()).unwrap().own_s() - before;
        // Other processes may use the cores, too: how long that takes is not known.
        let end = Instant::now() + Duration::from_secs(60);
        std::thread::spawn(move || while spent() < 0.05 && Instant::now() < end {}).join().unwrap();
        assert!(spent() >= 0.05, "{} s", spent());
        assert!(!cores().unwrap().is_empty());
    }

    #[test]
    fn a_process_that_is_not_there() {
        let error = process_time(u32::MAX).unwrap_err();
        assert!(matches!(error, ProcError::Read { .. }), "{error}");
    }
}
