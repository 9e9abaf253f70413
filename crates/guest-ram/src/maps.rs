//! What backs a range of a process's address space: `/proc/PID/maps` (proc_pid_maps(5)). Pure.

use std::ops::Range;

/// The file that backs a range of addresses. The range is shared with everybody who has the file mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backing {
    /// The first mapping of the range: its name in `/proc/PID/map_files`.
    pub(crate) mapping: Range<u64>,
    /// The offset in the file at which the range begins.
    pub(crate) offset: u64,
    /// Major and minor number of the file's filesystem.
    pub(crate) device: (u64, u64),
    /// The file's inode number.
    pub(crate) inode: u64,
    /// The path that the file has, or had; for messages.
    pub(crate) path: String,
}

/// Why no file backs a range of addresses as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unsuitable {
    /// Part of the range is not mapped.
    NotMapped,
    /// Part of the range is private to the process.
    Private,
    /// The process itself cannot read and write the whole range.
    ReadOnly,
    /// The range is in several files, or not in one piece of one file.
    Scattered,
    /// A line of the text is not a mapping.
    Malformed(String),
}

/// A mapping, from one line.
#[derive(Debug, PartialEq)]
struct Mapping {
    range: Range<u64>,
    writable: bool,
    /// Whether the process can access it at all.
    usable: bool,
    shared: bool,
    offset: u64,
    device: (u64, u64),
    inode: u64,
    path: String,
}

/// Returns what backs `range`, which is not empty. The range may consist of several mappings that adjoin in memory and
/// in the file: the kernel splits a mapping whose parts were given different advice.
pub(crate) fn backing(maps: &str, range: Range<u64>) -> Result<Backing, Unsuitable> {
    let mut found: Option<Backing> = None;
    each_mapping(maps, &range, |mapping, at| {
        if !mapping.shared {
            return Err(Unsuitable::Private);
        }
        if !mapping.writable {
            return Err(Unsuitable::ReadOnly);
        }
        match &found {
            None => {
                let offset = (range.start - mapping.range.start).checked_add(mapping.offset);
                found = Some(Backing {
                    offset: offset.ok_or(Unsuitable::Scattered)?,
                    device: mapping.device,
                    inode: mapping.inode,
                    path: mapping.path,
                    mapping: mapping.range,
                });
            }
            Some(first) => {
                let same = (first.device, first.inode) == (mapping.device, mapping.inode);
                if !same || Some(mapping.offset) != first.offset.checked_add(at - range.start) {
                    return Err(Unsuitable::Scattered);
                }
            }
        }
        Ok(())
    })?;
    found.ok_or(Unsuitable::NotMapped)
}

/// Checks that all of `range`, which is not empty, is anonymous memory of the process, which can read and write the
/// range. What nobody touched of a private mapping of a file is the file's and not zero, and of huge pages the kernel
/// tells less.
pub(crate) fn all_private(maps: &str, range: Range<u64>) -> Result<(), Unsuitable> {
    each_mapping(maps, &range, |mapping, _| match mapping {
        Mapping { shared: true, .. } => Err(Unsuitable::Scattered),
        Mapping { inode: 1.., .. } => Err(Unsuitable::Private),
        Mapping { writable: false, .. } => Err(Unsuitable::ReadOnly),
        _ => Ok(()),
    })
}

/// Returns the addresses outside `ram` that may have memory of the process's own: those of private mappings which the
/// process can use. Lines that are no mappings are passed over.
pub(crate) fn own_ranges(maps: &str, ram: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut ram: Vec<&Range<u64>> = ram.iter().filter(|range| !range.is_empty()).collect();
    ram.sort_by_key(|range| range.start);
    let mut ranges = Vec::new();
    for mapping in maps.lines().filter_map(parse).filter(|mapping| !mapping.shared && mapping.usable) {
        let mut at = mapping.range.start;
        for taken in ram.iter().filter(|taken| taken.end > mapping.range.start && taken.start < mapping.range.end) {
            if taken.start > at {
                ranges.push(at..taken.start);
            }
            at = at.max(taken.end);
        }
        if at < mapping.range.end {
            ranges.push(at..mapping.range.end);
        }
    }
    ranges
}

/// Passes the mappings of `range` to `see`, in order, each with the address from which on it is part of the range. They
/// adjoin, and cover all of the range, or that is an error.
fn each_mapping(
    maps: &str,
    range: &Range<u64>,
    mut see: impl FnMut(Mapping, u64) -> Result<(), Unsuitable>,
) -> Result<(), Unsuitable> {
    let mut at = range.start;
    for line in maps.lines() {
        let mapping = parse(line).ok_or_else(|| Unsuitable::Malformed(line.into()))?;
        if mapping.range.end <= range.start {
            continue;
        }
        if mapping.range.start > at {
            break;
        }
        let end = mapping.range.end;
        see(mapping, at)?;
        at = end;
        if at >= range.end {
            return Ok(());
        }
    }
    Err(Unsuitable::NotMapped)
}

/// Parses a line like `7f4ad3fff000-7f4ae3fff000 rw-s 00000000 00:01 125230      /memfd:memory-backend-memfd
/// (deleted)`.
fn parse(line: &str) -> Option<Mapping> {
    let hex = |word| u64::from_str_radix(word, 16).ok();
    let mut columns = line.splitn(6, ' ');
    let (start, end) = columns.next()?.split_once('-')?;
    let range = hex(start)?..hex(end)?;
    let access = columns.next()?.as_bytes();
    let offset = hex(columns.next()?)?;
    let (major, minor) = columns.next()?.split_once(':')?;
    let (device, inode) = ((hex(major)?, hex(minor)?), columns.next()?.parse().ok()?);
    let path = columns.next().unwrap_or_default().trim_start().to_owned();
    let (writable, shared) = (access.starts_with(b"rw"), access.get(3) == Some(&b's'));
    let usable = !access.starts_with(b"---");
    (!range.is_empty()).then_some(Mapping { range, writable, usable, shared, offset, device, inode, path })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAPS: &str = "\
1000-5000 rw-s 00010000 00:01 77                     /memfd:memory-backend-memfd (deleted)
5000-7000 rw-s 00014000 00:01 77                     /memfd:memory-backend-memfd (deleted)
7000-8000 rw-s 00000000 00:01 78                     /memfd:other one (deleted)
8000-9000 rw-s 00002000 00:01 78                     /memfd:other one (deleted)
9000-a000 r--s 00003000 00:01 78                     /memfd:other one (deleted)
a000-b000 rw-p 00000000 00:00 0 
c000-d000 rw-p 00000000 00:01 79                     /memfd:private (deleted)
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn what_backs_a_range() {
        let found = backing(MAPS, 0x2000..0x6000).unwrap();
        let path = "/memfd:memory-backend-memfd (deleted)".into();
        assert_eq!(found, Backing { mapping: 0x1000..0x5000, offset: 0x11000, device: (0, 1), inode: 77, path });
        for (range, expected) in [
            (0x1000..0x7000, Ok(0x10000)),
            (0x6fff..0x7000, Ok(0x15fff)),
            (0x8000..0x9000, Ok(0x2000)),
            (0x6000..0x8000, Err(Unsuitable::Scattered)),
            (0x7000..0x9000, Err(Unsuitable::Scattered)),
            (0x8000..0xa000, Err(Unsuitable::ReadOnly)),
            (0xa000..0xb000, Err(Unsuitable::Private)),
            (0xc000..0xd000, Err(Unsuitable::Private)),
            (0xb000..0xd000, Err(Unsuitable::NotMapped)),
            (0x0..0x2000, Err(Unsuitable::NotMapped)),
            (0xe000..0xf000, Err(Unsuitable::NotMapped)),
        ] {
            assert_eq!(backing(MAPS, range.clone()).map(|found| found.offset), expected, "{range:x?}");
        }
        for (range, expected) in [
            (0xa000..0xb000, Ok(())),
            (0xc800..0xd000, Err(Unsuitable::Private)),
            (0x9000..0xb000, Err(Unsuitable::Scattered)),
            (0xa000..0xd000, Err(Unsuitable::NotMapped)),
            (0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000, Err(Unsuitable::ReadOnly)),
        ] {
            assert_eq!(all_private(MAPS, range.clone()), expected, "{range:x?}");
        }
        let cut = &MAPS[..MAPS.len() / 3];
        assert!(matches!(backing(cut, 0x7000..0x8000), Err(Unsuitable::Malformed(_) | Unsuitable::NotMapped)));
        assert_eq!(backing("hello", 1..2), Err(Unsuitable::Malformed("hello".into())));
    }

    #[test]
    fn what_a_process_has_beside_the_ram() {
        let all = [0xa000..0xb000, 0xc000..0xd000, 0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000];
        assert_eq!(own_ranges(MAPS, &[]), all);
        let ranges = |pairs: &[(u64, u64)]| pairs.iter().map(|(start, end)| *start..*end).collect::<Vec<_>>();
        for (ram, left) in [
            (&[(0xa000, 0xb000)][..], &[(0xc000, 0xd000)][..]),
            (
                &[(0xcc00, 0xd000), (0x9000, 0xa400), (0xc200, 0xc400)],
                &[(0xa400, 0xb000), (0xc000, 0xc200), (0xc400, 0xcc00)],
            ),
            (&[(0, 0xf000)], &[]),
        ] {
            let own = own_ranges(MAPS, &ranges(ram));
            assert_eq!((&own[..left.len()], own.len()), (&ranges(left)[..], left.len() + 1));
        }
        assert_eq!(own_ranges("a000-b000 ---p 00000000 00:00 0\nodd\n", &[]), []);
    }

    proptest! {
        #[test]
        fn nothing_panics(
            at in 0..MAPS.len(),
            instead in "[0-9a-f :-]{0,18}",
            text in ".{0,100}",
            range in any::<(u64, u64)>(),
        ) {
            let mut maps = MAPS.to_owned();
            maps.replace_range(at..at + 1, &instead);
            for range in [0x1000..0x7000, 0x6000..0x9000, range.0.min(range.1)..range.0.max(range.1)] {
                let _ = (backing(&maps, range.clone()), backing(&text, range.clone()));
                let _ = (all_private(&maps, range.clone()), all_private(&text, range));
            }
        }
    }
}
