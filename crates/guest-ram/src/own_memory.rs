//! How much memory a process has beside its guest's RAM.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::maps::own_ranges;
use crate::process_memory::{ENTRY_BYTES, PAGE_BYTES};

/// Bits 63 and 62 of an entry of `/proc/PID/pagemap`: the page is in memory, or in swap (the kernel's
/// Documentation/admin-guide/mm/pagemap.rst).
const ENTRY_IS_THERE: u64 = 0b11 << 62;
/// Bit 61: the page is of a file, or shared.
const ENTRY_IS_FILES: u64 = 1 << 61;
/// How many entries are read at once.
const ENTRIES_MAX: u64 = 1 << 15;
/// Bounds the addresses that are looked through: with the RAM left out, a QEMU has some GiB.
const ADDRESSES_MAX: u64 = 64 << 30;

/// Returns the bytes of a process's own memory, in RAM or swapped out, that are outside the addresses in `ram`: heap,
/// stacks, translated code, the written pages of private mappings. It takes as long as there are addresses outside, so
/// it does not depend on the RAM's size, as `smaps` does.
///
/// # Errors
/// The process has ended, this process may not look, or there are more addresses than any QEMU has.
pub fn own_bytes_outside(pid: u32, ram: &[Range<u64>]) -> io::Result<u64> {
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    let pages = File::open(format!("/proc/{pid}/pagemap"))?;
    let ranges = own_ranges(&String::from_utf8_lossy(&maps), ram);
    if ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add) > ADDRESSES_MAX {
        return Err(io::Error::other("it has more memory mapped beside its guest's RAM than a QEMU has"));
    }
    let mut entries = vec![0; (ENTRIES_MAX * ENTRY_BYTES) as usize];
    let mut count = 0;
    for Range { start, end } in ranges {
        let (mut page, end) = (start / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
        while page < end {
            let wanted = ((end - page).min(ENTRIES_MAX) * ENTRY_BYTES) as usize;
            let read = pages.read_at(&mut entries[..wanted], page * ENTRY_BYTES)?;
            let read = &entries[..read - read % ENTRY_BYTES as usize];
            if read.is_empty() {
                // The table of a process that has ended is empty, and so is that of addresses of the kernel's.
                break;
            }
            let is_own = |entry: u64| entry & ENTRY_IS_THERE != 0 && entry & ENTRY_IS_FILES == 0;
            let (read, _) = read.as_chunks();
            count += read.iter().filter(|entry| is_own(u64::from_ne_bytes(**entry))).count() as u64;
            page += read.len() as u64;
        }
    }
    Ok(count * PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_is_left_out_and_what_is_not_touched_too() {
        const BYTES: usize = 64 << 20;
        let mut memory = vec![0u8; BYTES];
        memory[..BYTES / 2].fill(1);
        let start = memory.as_ptr().addr() as u64;
        let of = |ram: &[Range<u64>]| own_bytes_outside(std::process::id(), ram).unwrap();
        // Other tests of this process allocate meanwhile, but less than this.
        let slack = 8 << 20;
        let whole = start..start + BYTES as u64;
        let (all, without) = (of(&[]), of(std::slice::from_ref(&whole)));
        assert!((all - without).abs_diff(BYTES as u64 / 2) < slack, "{all} {without}");
        let part = |from: u64, to: u64| start + from * BYTES as u64 / 4..start + to * BYTES as u64 / 4;
        assert!((all - of(&[part(0, 1), part(3, 4)])).abs_diff(BYTES as u64 / 4) < slack);
        assert!(own_bytes_outside(u32::MAX, &[]).is_err());
    }
}
