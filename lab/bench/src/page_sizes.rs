//! What pages the RAM of a guest lies on, as the kernel tells of its QEMU.

use std::fs;

use serde::{Deserialize, Serialize};

/// The pages of a guest's RAM in the memory of its QEMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageSizes {
    /// What of the RAM is in memory.
    pub resident_bytes: u64,
    /// What of that is mapped by huge pages, 2 MiB each on x86.
    pub huge_bytes: u64,
}

/// The pages of a guest's RAM at both ends of a migration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestPages {
    /// The pages at the source, before the migration.
    pub source: PageSizes,
    /// The pages at the target, after it.
    pub target: PageSizes,
}

impl PageSizes {
    /// Reads the pages of the RAM of a QEMU's guest: of the largest mapping that this process has. Returns `None` if
    /// the process has ended.
    pub fn of_guest_ram(pid: u32) -> Option<PageSizes> {
        let mappings = mappings(&fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?);
        mappings.into_iter().max_by_key(|mapping| mapping.bytes).map(|mapping| mapping.pages)
    }

    /// Reads the pages of this process's own memory from `begin` on, `bytes` bytes.
    ///
    /// # Errors
    /// The error of the system.
    pub fn of_own(begin: u64, bytes: u64) -> std::io::Result<PageSizes> {
        // Counts what overlaps: the kernel may have joined the memory to a mapping below.
        let within = |mapping: &SmapsEntry| mapping.begin < begin + bytes && mapping.begin + mapping.bytes > begin;
        let mappings = mappings(&fs::read_to_string("/proc/self/smaps")?).into_iter().filter(within);
        Ok(mappings.fold(PageSizes::default(), |sum, SmapsEntry { pages, .. }| PageSizes {
            resident_bytes: sum.resident_bytes + pages.resident_bytes,
            huge_bytes: sum.huge_bytes + pages.huge_bytes,
        }))
    }

    /// Returns the share of the memory that is mapped by huge pages, 0 to 1. 0: there is none.
    pub fn huge_share(self) -> f64 {
        if self.resident_bytes == 0 { 0.0 } else { self.huge_bytes as f64 / self.resident_bytes as f64 }
    }
}

/// A mapping of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SmapsEntry {
    begin: u64,
    bytes: u64,
    pages: PageSizes,
}

/// Returns the mappings of a process, from its `smaps` (proc_pid_smaps(5)).
fn mappings(smaps: &str) -> Vec<SmapsEntry> {
    let mut all: Vec<SmapsEntry> = Vec::new();
    for line in smaps.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        // The first line of a mapping is `BEGIN-END PERMISSIONS OFFSET MAJOR:MINOR INODE PATH`.
        if let Some((begin, end)) = name.split_once(' ').and_then(|(range, _)| range.split_once('-')) {
            let number = |text| u64::from_str_radix(text, 16).unwrap_or_default();
            all.push(SmapsEntry {
                begin: number(begin),
                bytes: number(end).saturating_sub(number(begin)),
                ..Default::default()
            });
            continue;
        }
        let Some(mapping) = all.last_mut() else { continue };
        let bytes = || value.trim().strip_suffix(" kB").and_then(|kb| kb.parse::<u64>().ok()).unwrap_or_default() << 10;
        match name {
            "Rss" => mapping.pages.resident_bytes = bytes(),
            "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => mapping.pages.huge_bytes += bytes(),
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0000000-55d0c0800000 rw-p 00000000 00:00 0                          [heap]
Size:               8192 kB
Rss:                  40 kB
AnonHugePages:         0 kB
7f0000000000-7f0080000000 rw-p 00000000 00:00 0 
Size:            2097152 kB
Rss:             1703936 kB
Pss:             1703936 kB
AnonHugePages:   1277952 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:         0 kB
VmFlags: rd wr mr mw me dc dd ac sd hg 
7f0090000000-7f0090200000 rw-s 00000000 00:01 77                         /memfd:memory-backend-memfd (deleted)
Size:               2048 kB
Rss:                2048 kB
ShmemPmdMapped:     2048 kB
";

    #[test]
    fn mappings_as_the_kernel_tells_them() {
        let [heap, ram, shared] = mappings(SMAPS)[..] else { panic!("{:?}", mappings(SMAPS)) };
        assert_eq!((heap.bytes, heap.pages.resident_bytes, heap.pages.huge_share()), (8 << 20, 40 << 10, 0.0));
        assert_eq!((ram.begin, ram.bytes, ram.pages.huge_share()), (0x7f00_0000_0000, 2 << 30, 0.75));
        assert_eq!(shared.pages, PageSizes { resident_bytes: 2 << 20, huge_bytes: 2 << 20 });
        assert_eq!((mappings("").len(), mappings("Rss: 4 kB\nx\n").len()), (0, 0));
        assert_eq!(PageSizes::default().huge_share(), 0.0);
    }

    #[test]
    fn the_largest_mapping_is_the_ram() {
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        let begin = block.as_ptr().addr() as u64;
        let own = PageSizes::of_own(begin - 4096, block.len() as u64).unwrap();
        assert!(own.resident_bytes >= 32 << 20, "{own:?}");
        let largest = PageSizes::of_guest_ram(std::process::id()).unwrap();
        assert!(largest.huge_bytes <= largest.resident_bytes, "{largest:?}");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(PageSizes::of_guest_ram(child.id()), None);
    }
}
