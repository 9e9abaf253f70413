//! Reads the memory of a process, and of the host.

use nix::unistd::{SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

use crate::{ProcError, read_proc};

/// The memory that a process holds now, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All resident memory: anonymous, mapped files and shared memory.
    pub resident: u64,
    /// Resident memory of the process's own: heap, stacks.
    pub anonymous: u64,
    /// Resident shared memory: memfd, tmpfs, guest RAM that others map, too.
    pub shared: u64,
    /// Locked memory (mlock); it is part of the above.
    pub locked: u64,
    /// Memory that is pinned for devices (RDMA). It is not subtracted from anything above.
    pub pinned: u64,
    /// Resident memory with each page divided by how many processes map the page; `None` if the kernel refuses to say.
    pub proportional: Option<u64>,
}

/// Returns the memory of the process `pid`. The kernel walks the process's page tables, which takes some milliseconds
/// for gigabytes in small pages.
///
/// # Errors
/// The process has ended or is a kernel thread, or `/proc/PID/status` cannot be understood.
pub fn process_memory(pid: u32) -> Result<Memory, ProcError> {
    let path = format!("/proc/{pid}/status");
    let status = read_proc(&path)?;
    let mut memory = parse_status(&status).map_err(|field| ProcError::Field { path, field })?;
    memory.proportional =
        read_proc(&format!("/proc/{pid}/smaps_rollup")).ok().and_then(|rollup| kilobytes(&rollup, "Pss"));
    Ok(memory)
}

/// Returns the resident memory of the process `pid`, in bytes, as the kernel counts it: no page table is walked.
///
/// # Errors
/// The process has ended, or `/proc/PID/statm` cannot be understood.
pub fn process_resident(pid: u32) -> Result<u64, ProcError> {
    let path = format!("/proc/{pid}/statm");
    let statm = read_proc(&path)?;
    let pages = statm.split_ascii_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
    let page_bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|bytes| u64::try_from(bytes).ok());
    let bytes = pages.and_then(|pages| pages.checked_mul(page_bytes.unwrap_or(4096)));
    bytes.ok_or(ProcError::Field { path, field: "resident" })
}

/// The memory of the host, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// MemTotal.
    pub total: u64,
    /// MemAvailable: what can be used without swapping.
    pub available: u64,
}

/// Returns the memory of the host.
///
/// # Errors
/// `/proc/meminfo` cannot be read or understood.
pub fn host_memory() -> Result<HostMemory, ProcError> {
    let path = "/proc/meminfo";
    let meminfo = read_proc(path)?;
    let field = |field| kilobytes(&meminfo, field).ok_or_else(|| ProcError::Field { path: path.to_owned(), field });
    Ok(HostMemory { total: field("MemTotal")?, available: field("MemAvailable")? })
}

fn parse_status(status: &str) -> Result<Memory, &'static str> {
    let field = |name| kilobytes(status, name).ok_or(name);
    Ok(Memory {
        resident: field("VmRSS")?,
        anonymous: field("RssAnon")?,
        shared: field("RssShmem")?,
        locked: field("VmLck")?,
        pinned: field("VmPin")?,
        proportional: None,
    })
}

/// Returns the value of `NAME:  123 kB`, in bytes.
fn kilobytes(file: &str, name: &str) -> Option<u64> {
    let value = file.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_touched_is_seen() {
        let mut tries = 0;
        let (block, before, after, counted) = loop {
            let before = process_memory(std::process::id()).unwrap();
            let block = std::hint::black_box(vec![1u8; 32 << 20]);
            let after = process_memory(std::process::id()).unwrap();
            let counted = process_resident(std::process::id()).unwrap();
            tries += 1;
            // Another test may have let go of memory meanwhile.
            let least = before.anonymous + (30 << 20);
            if (after.anonymous >= least && counted >= least) || tries == 20 {
                break (block, before, after, counted);
            }
        };
        assert!(after.anonymous >= before.anonymous + (30 << 20), "{before:?} {after:?}");
        assert!(after.resident >= after.anonymous);
        assert!(counted >= before.anonymous + (30 << 20), "{counted} {after:?}");
        let host = host_memory().unwrap();
        assert!(host.total > host.available && host.total > counted, "{host:?}");
        drop(block);
    }

    #[test]
    fn fields_are_in_kilobytes_and_names_match_whole() {
        let file = "Pss_Anon:  7 kB\nPss:      12 kB\nVmLck:  x kB\nName: a\n";
        assert_eq!(kilobytes(file, "Pss"), Some(12288));
        assert_eq!(kilobytes(file, "VmLck"), None);
        assert_eq!(kilobytes(file, "Name"), None);
        assert_eq!(parse_status(file), Err("VmRSS"));
    }
}
