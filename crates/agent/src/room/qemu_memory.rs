//! Reads what a QEMU holds of its guest's RAM, and what of the RAM is still to be allocated.
//!
//! RAM in a file in memory (memfd, tmpfs) is allocated page by page, by the process that touches it first. That may be
//! the agent, whose writes the QEMU's own figures do not show. So the file is asked (`st_blocks` counts what is swapped
//! out, too). RAM that is private to QEMU is in `RssAnon` of `/proc/PID/status`, with all else that QEMU has.
//!
//! What the kernel merged (KSM) counts as not allocated: each page of it takes memory again when it is written to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::stat::{major, minor};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, statfs};
use skein_guest_ram::own_bytes_outside;
use skein_inventory::{Resource, RoomLimit, RoomNeed};

use crate::host_files::kilobytes;

/// Makes bytes of the kernel's pages.
const PAGE_SHIFT: u32 = 12;
/// Bounds a guest's RAM from below: smaller files in memory are rings and logs.
const RAM_BYTES_MIN: u64 = 1 << 20;
/// Holds the part of the names of huge pages' limits that count reserved pages, and not used pages.
pub(super) const HUGETLB_RESERVATION_MARK: &str = ".rsvd.";
/// Names a guest's RAM in a memfd, as QEMU does (memfd_backend_memory_alloc of its backends/hostmem-memfd.c).
const BACKEND: &str = "/memfd:memory-backend-memfd";
/// Holds a magic number of linux/magic.h; a kernel without tmpfs keeps memfds there.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// The memory of a process that may be a guest's RAM, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QemuMemory {
    /// The sizes of the files in memory that the process has mapped.
    pub(crate) files: u64,
    /// How much of these files is allocated.
    pub(crate) files_allocated: u64,
    /// The sizes of the files in huge pages.
    pub(crate) huge: u64,
    /// How much of the files in huge pages is allocated.
    pub(crate) huge_allocated: u64,
    /// The process's own memory, in RAM or swapped out, with its page tables.
    pub(crate) private: u64,
    /// The part of it that is known not to be the guest's RAM: see [`Self::without_own`].
    pub(crate) own: u64,
    /// The part of it that the kernel has merged with the same elsewhere (KSM).
    pub(crate) merged: u64,
    /// The process's own memory that may be written, touched or not (`VmData`, `VmStk`): what the kernel accounts when
    /// the memory is mapped (`vm.overcommit_memory` 2).
    pub(crate) committed: u64,
    /// The resident shared memory, that of files among it.
    pub(crate) shared: u64,
    /// The number of threads.
    pub(crate) threads: u64,
}

impl QemuMemory {
    /// Reads the memory of a process.
    ///
    /// # Errors
    /// The process has ended, or this process may not read its memory.
    pub(crate) fn of(pid: u32) -> io::Result<QemuMemory> {
        let process = Path::new("/proc").join(pid.to_string());
        let status = fs::read_to_string(process.join("status"))?;
        let field = |name: &str| kilobytes(&status, name).unwrap_or(0);
        let own = field("VmPTE");
        let private = field("RssAnon").saturating_add(field("VmSwap")).saturating_add(own);
        // The kernel tells it from 5.19 on.
        let merged = fs::read_to_string(process.join("ksm_merging_pages")).ok();
        let merged = merged.and_then(|pages| pages.trim().parse().ok()).map_or(0, |pages: u64| pages << PAGE_SHIFT);
        let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")?.trim().parse().ok()).unwrap_or(0);
        let committed = field("VmData").saturating_add(field("VmStk"));
        let mut held =
            QemuMemory { private, own, merged, committed, shared: field("RssShmem"), threads, ..QemuMemory::default() };
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        // Reading all mappings takes longer than all else, and most QEMUs' RAM is known by its name.
        let mut mappings: Option<BTreeSet<Inode>> = None;
        let mut seen = BTreeMap::new();
        for entry in fs::read_dir(process.join("fd"))? {
            let Ok(entry) = entry else { continue };
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            // No other file is asked: the server of a disk's file system may be dead.
            let Some(name) = target.to_str().filter(|name| is_in_memory(name, &mounts)) else { continue };
            let Ok(file) = fs::metadata(entry.path()) else { continue };
            let inode = ((major(file.dev()), minor(file.dev())), file.ino());
            if !file.is_file() {
                continue;
            }
            if !name.starts_with(BACKEND) {
                // A disk's image may be on tmpfs, too; but nobody maps an image.
                if mappings.is_none() {
                    mappings = Some(mapped(&String::from_utf8_lossy(&fs::read(process.join("maps"))?)));
                }
                if !mappings.as_ref().is_some_and(|mapped| mapped.contains(&inode)) {
                    continue;
                }
            }
            seen.insert(inode, (entry.path(), file.len(), file.blocks().saturating_mul(512)));
        }
        for (path, size, allocated) in seen.into_values().filter(|(_, size, _)| *size >= RAM_BYTES_MIN) {
            let Ok(kind) = statfs(&path).map(|stat| stat.filesystem_type()) else { continue };
            if kind == HUGETLBFS_MAGIC {
                held.huge = held.huge.saturating_add(size);
                held.huge_allocated = held.huge_allocated.saturating_add(allocated);
            } else if kind == TMPFS_MAGIC || kind == RAMFS_MAGIC {
                held.files = held.files.saturating_add(size);
                held.files_allocated = held.files_allocated.saturating_add(allocated);
            }
        }
        Ok(held)
    }

    /// Takes what QEMU itself has, beside the guest's RAM at these addresses, out of what may be RAM: heap, stacks,
    /// translated code.
    ///
    /// # Errors
    /// As for [`QemuMemory::of`].
    pub(crate) fn without_own(self, pid: u32, ram: &[Range<u64>]) -> io::Result<QemuMemory> {
        let beside = own_bytes_outside(pid, ram)?;
        Ok(QemuMemory { own: self.own.saturating_add(beside), ..self })
    }

    /// Returns how much RAM of a guest with `ram_bytes` is not in files.
    pub(crate) fn private_ram(&self, ram_bytes: u64) -> u64 {
        ram_bytes.saturating_sub(self.huge).saturating_sub(self.files)
    }

    /// Returns what the kernel has still to account for a QEMU that is to have so much memory: RAM of QEMU's own is
    /// accounted when QEMU maps it, that in files when it is allocated.
    pub(crate) fn commit_pending(&self, need: &RoomNeed) -> u64 {
        let mapped = self.files.saturating_add(self.committed);
        need.memory_bytes().saturating_sub(mapped).saturating_add(self.holes())
    }

    /// Returns how much RAM of a guest with `ram_bytes` is not allocated yet: what it may still take of the host's
    /// memory.
    pub(crate) fn pending(&self, ram_bytes: u64) -> u64 {
        // This RAM is in no file that is open, shared or not.
        let elsewhere = self.private_ram(ram_bytes);
        let shared = self.shared.saturating_sub(self.files_allocated);
        let private = self.private.saturating_sub(self.own).saturating_sub(self.merged);
        self.holes().saturating_add(elsewhere.saturating_sub(private.saturating_add(shared)))
    }

    /// Returns how much of files in memory was never written: it is allocated when it is read, too. (Private RAM is
    /// not: the kernel maps its one page of zeros.)
    pub(crate) fn holes(&self) -> u64 {
        self.files.saturating_sub(self.files_allocated)
    }

    /// Returns what the process has of what a limit counts as used.
    pub(super) fn of_limit(&self, limit: &RoomLimit) -> u64 {
        match limit.resource {
            Resource::Ram => self.files_allocated.saturating_add(self.private),
            // A QEMU that is confirmed after its start has mapped its guest's RAM, and touched none.
            Resource::Commit => self.files_allocated.saturating_add(self.committed),
            Resource::HugePages { .. } if limit.name.contains(HUGETLB_RESERVATION_MARK) => self.huge,
            Resource::HugePages { .. } => self.huge_allocated,
            Resource::Tasks => self.threads,
            Resource::Addresses | Resource::LockedRam | Resource::Other => 0,
        }
    }

    /// Returns the huge pages that are promised and not allocated, in bytes.
    pub(crate) fn huge_pending(&self) -> u64 {
        self.huge.saturating_sub(self.huge_allocated)
    }
}

/// The two numbers of a device, and an inode.
type Inode = ((u64, u64), u64);

/// Returns whether a file is in memory, by the name that the kernel gives a descriptor: memfds, and files of tmpfs and
/// hugetlbfs by the mounts.
fn is_in_memory(name: &str, mounts: &str) -> bool {
    let path = name.strip_suffix(" (deleted)").unwrap_or(name);
    // Of the mounts at one place the last is on top.
    let mount = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(point, _)| Path::new(path).starts_with(point))
        .max_by_key(|(point, _)| point.len());
    name.starts_with("/memfd:") || mount.is_some_and(|(_, kind)| matches!(kind, "tmpfs" | "hugetlbfs" | "ramfs"))
}

/// Returns the mapped files, from lines as `7f00-7f01 rw-s 00000000 00:01 1234   /memfd:ram (deleted)`.
fn mapped(maps: &str) -> BTreeSet<Inode> {
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let inode = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let (major, minor) = fields.next()?.split_once(':')?;
        let inode = fields.next()?.parse().ok().filter(|inode| *inode != 0)?;
        Some(((number(major)?, number(minor)?), inode))
    };
    maps.lines().filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pending_of_each_kind_of_ram() {
        let files = QemuMemory { files: 100, files_allocated: 30, shared: 20, private: 50, ..QemuMemory::default() };
        assert_eq!((files.pending(100), files.holes()), (70, 70));
        assert_eq!(files.pending(160), 80, "60 more in QEMU's own memory, of which 50 are there");
        let private = QemuMemory { private: 40, ..QemuMemory::default() };
        assert_eq!((private.pending(100), private.holes(), private.pending(30)), (60, 0, 0));
        let busy = QemuMemory { private: 40, own: 25, merged: 10, ..QemuMemory::default() };
        assert_eq!(busy.pending(100), 95, "QEMU's own and merged pages are no RAM that is there to stay");
        let anonymous_shared = QemuMemory { shared: 40, private: 5, ..QemuMemory::default() };
        assert_eq!(anonymous_shared.pending(100), 55);
        let huge = QemuMemory { huge: 100, huge_allocated: 60, ..QemuMemory::default() };
        assert_eq!((huge.pending(100), huge.huge_pending()), (0, 40));
    }

    #[test]
    fn what_is_mapped_counts_as_committed_before_it_is_touched() {
        let held = QemuMemory { private: 20, committed: 3000, files_allocated: 7, ..QemuMemory::default() };
        let limit = |resource| RoomLimit {
            resource,
            owner: String::new(),
            name: String::new(),
            limit: 8000,
            used: 3500,
            promised: 0,
            promised_to: Vec::new(),
        };
        assert_eq!((held.of_limit(&limit(Resource::Ram)), held.of_limit(&limit(Resource::Commit))), (27, 3007));
    }

    #[test]
    fn what_a_qemu_has_mapped_is_not_to_be_accounted_again() {
        use skein_inventory::Accel;
        use skein_units::GIB;
        let need = RoomNeed::new(8 * GIB, None, 2, Accel::Kvm);
        let overhead = need.memory_bytes() - 8 * GIB;
        assert_eq!(QemuMemory::default().commit_pending(&need), need.memory_bytes(), "it has not begun");
        // A file beside private RAM: a log of vhost, or a disk's image on tmpfs.
        let private =
            QemuMemory { committed: 8 * GIB, files: GIB / 4, files_allocated: GIB / 4, ..QemuMemory::default() };
        assert_eq!(private.commit_pending(&need), overhead.saturating_sub(GIB / 4));
        let shared = QemuMemory { committed: overhead, files: 8 * GIB, files_allocated: GIB, ..QemuMemory::default() };
        assert_eq!(shared.commit_pending(&need), 7 * GIB);
        let huge = QemuMemory { committed: overhead, huge: 8 * GIB, ..QemuMemory::default() };
        assert_eq!(huge.commit_pending(&RoomNeed::new(8 * GIB, Some(2 << 20), 2, Accel::Kvm)), 0);
    }

    #[test]
    fn files_in_memory_that_are_mapped() {
        let maps = "55d0-55d1 r-xp 00000000 08:01 77                         /usr/bin/qemu\n\
                    7f00-7f01 rw-s 00000000 00:01 1234                       /memfd:ram 0 (deleted)\n\
                    7f01-7f02 rw-s 00001000 00:01 1234                       /memfd:ram 0 (deleted)\n\
                    7f02-7f03 rw-s 00000000 00:01 9                          /memfd:ram 0 (deleted)\n\
                    7f04-7f05 rw-s 00000000 00:1f 5                          /dev/shm/a b\n\
                    7f06-7f07 rw-s 00000000 00:2a 6                          /dev/huge/x (deleted)\n\
                    7f08-7f09 rw-p 00000000 00:00 0                          [stack]\n\
                    7f0a-7f0b rw-p 00000000 00:00 0\nodd\n";
        assert_eq!(mapped(maps), [((8, 1), 77), ((0, 1), 1234), ((0, 1), 9), ((0, 0x1f), 5), ((0, 0x2a), 6)].into());
        let mounts = "/dev/sda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\nhuge /dev/huge hugetlbfs rw 0 0\n\
                      nfs /dev/shm/nfs nfs rw 0 0\n";
        for name in ["/memfd:ram 0 (deleted)", "/dev/shm/a b", "/dev/huge/x (deleted)"] {
            assert!(is_in_memory(name, mounts), "{name}");
        }
        for name in ["/usr/bin/qemu", "/dev/shm/nfs/a", "socket:[12]", "anon_inode:kvm-vcpu:0", ""] {
            assert!(!is_in_memory(name, mounts), "{name}");
        }
    }

    #[test]
    fn of_a_process() {
        let own = QemuMemory::of(std::process::id()).unwrap();
        assert!(own.private > 0 && own.threads > 0 && own.committed > own.private / 2, "{own:?}");
        assert!(QemuMemory::of(u32::MAX).is_err());
        let beside = own.without_own(std::process::id(), &[]).unwrap();
        assert!(beside.own > own.own && own.own > 0, "{own:?} {beside:?}");
    }
}
