//! Counts what block devices, and a process, read and wrote.

use std::path::Path;

use crate::{ProcError, read_proc};

/// The bytes of a sector of `/proc/diskstats`, whatever the device's own are (Documentation/admin-guide/iostats.rst).
const SECTOR_BYTES: u64 = 512;

/// What was read from block devices and written to them since boot, or since a process was started, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskBytes {
    /// The bytes that were read.
    pub read: u64,
    /// The bytes that were written.
    pub written: u64,
}

/// Returns what all disks of this host read and wrote. Only devices that stand on no other count: what goes by a
/// partition, a logical volume or a RAID goes by its disks, too.
///
/// # Errors
/// `/proc/diskstats` cannot be read.
pub fn disks() -> Result<DiskBytes, ProcError> {
    // Hardware has a device behind it; partitions are not listed there, and what is made of other disks has none.
    let is_disk = |name: &str| Path::new("/sys/block").join(name).join("device").exists();
    Ok(parse_disks(&read_proc("/proc/diskstats")?, is_disk))
}

/// Returns what a process read from block devices and wrote to them, or will have when its pages are written back.
///
/// # Errors
/// The process has ended or is another user's, or `/proc/PID/io` cannot be understood.
pub fn process_disk_bytes(pid: u32) -> Result<DiskBytes, ProcError> {
    let path = format!("/proc/{pid}/io");
    let io = read_proc(&path)?;
    let field = |name: &'static str| {
        let value = io.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
        value.ok_or_else(|| ProcError::Field { path: path.clone(), field: name })
    };
    Ok(DiskBytes { read: field("read_bytes")?, written: field("write_bytes")? })
}

fn parse_disks(stats: &str, is_disk: impl Fn(&str) -> bool) -> DiskBytes {
    let mut all = DiskBytes::default();
    for line in stats.lines() {
        // The fields are major, minor, name; reads, merged, sectors, ms; writes, merged, sectors, ms...
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let sectors = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        if fields.get(2).is_some_and(|name| is_disk(name)) {
            all.read = all.read.saturating_add(sectors(5).saturating_mul(SECTOR_BYTES));
            all.written = all.written.saturating_add(sectors(9).saturating_mul(SECTOR_BYTES));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_on_a_disk_does_not_count_twice() {
        let stats = "   8       0 sda 10 1 100 7 20 2 200 9 0 5 16\n   8       1 sda1 10 1 100 7 20 2 200 9 0 5 16\n \
                     253       0 dm-0 10 0 100 7 20 0 200 9 0 5 16\n   8      16 sdb 1 0 8 1 1 0 16 1 0 1 2\n \
                     7 0 loop0\n";
        let all = parse_disks(stats, |name| ["sda", "sdb", "loop0"].contains(&name));
        assert_eq!(all, DiskBytes { read: 108 * 512, written: 216 * 512 });
        assert_eq!(parse_disks("x\n\n", |_| true), DiskBytes::default());
        disks().unwrap();
    }

    #[test]
    fn what_a_process_writes_is_seen() {
        let own = || process_disk_bytes(std::process::id()).unwrap();
        let before = own();
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        std::io::Write::write_all(&mut file, &vec![7; 1 << 20]).unwrap();
        assert!(own().written >= before.written + (1 << 20), "{before:?} {:?}", own());
        assert!(matches!(process_disk_bytes(u32::MAX), Err(ProcError::Read { .. })));
    }
}
