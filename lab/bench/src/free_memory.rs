//! Free memory: kept from a virtual machine's host while a bench measures, taken and given back, put together.
//!
//! A kernel in a virtual machine reports free blocks to the host (free page reporting, the kernel's
//! mm/page_reporting.c), which takes them. The next touch of such a block then costs 2 s a GB where a host of guests
//! pays 0.1 s (seen in Firecracker), and most of all for huge pages, as these blocks are those that huge pages are made
//! of. A host of guests has all of its memory.

use std::{fs, io, path::Path};

/// The kernel's least order of blocks that are reported. There is no such file outside virtual machines.
const REPORTED_ORDER: &str = "/sys/module/page_reporting/parameters/page_reporting_order";
/// An order that no block has: above `MAX_PAGE_ORDER` (the kernel's include/linux/mmzone.h).
const NO_ORDER: &str = "11";

/// Written to, it makes the kernel gather free memory (its Documentation/admin-guide/sysctl/vm.rst).
const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// Keeps free memory from a virtual machine's host until dropped.
#[derive(Debug)]
pub struct KeptFreeMemory {
    /// What the file said before. `None`: nothing is reported, or this process may not change that.
    before: Option<String>,
}

impl KeptFreeMemory {
    /// Ends the reporting. What was reported before comes back as it is touched: see [`reclaim`].
    pub fn keep() -> KeptFreeMemory {
        KeptFreeMemory { before: Self::set(Path::new(REPORTED_ORDER)).ok().flatten() }
    }

    /// Writes [`NO_ORDER`] into a file, and returns what was there; none: the same.
    fn set(file: &Path) -> io::Result<Option<String>> {
        let before = fs::read_to_string(file)?.trim().to_owned();
        if before == NO_ORDER {
            return Ok(None);
        }
        fs::write(file, NO_ORDER)?;
        Ok(Some(before))
    }
}

impl Drop for KeptFreeMemory {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = fs::write(REPORTED_ORDER, before);
        }
    }
}

/// Takes this much of the free memory, at most half of it, and gives it back. A virtual machine may have given free
/// memory up to its host, which takes a while to return it. Without this, the first mover would pay for that.
pub fn reclaim(bytes: u64) {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    let available = available.and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) * 1024;
    std::hint::black_box(vec![1u8; bytes.min(available / 2) as usize]);
}

/// Makes the kernel put what is used together, so that free memory has huge pages. Root may; otherwise nothing happens.
pub fn gather() {
    let _ = fs::write(COMPACT, "1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("order");
        assert!(KeptFreeMemory::set(&file).is_err(), "no file");
        fs::write(&file, "9\n").unwrap();
        assert_eq!(KeptFreeMemory::set(&file).unwrap().as_deref(), Some("9"));
        assert_eq!(fs::read_to_string(&file).unwrap(), NO_ORDER);
        assert_eq!(KeptFreeMemory::set(&file).unwrap(), None);
    }
}
