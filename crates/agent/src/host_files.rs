//! Reads files of this host: those of `/proc`, and the facts of guests' files.
//!
//! Guests' files are read in threads of their own, because a dead server of a file system blocks such a thread for
//! good.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use nix::sys::statfs::statfs;
use nix::unistd::{AccessFlags, eaccess};
use serde_json::Value;
use skein_inventory::{FileFacts, FileSystem};
use tracing::warn;

/// Bounds the time in which all of a guest's files are read.
pub(crate) const FILES_TIME: Duration = Duration::from_secs(5);
/// Bounds the files: a guest's disks (at most 64), their backing files, kernel and initramfs.
const FILES_MAX: usize = 256;
/// Bounds a file whose contents are compared: no kernel or initramfs is larger, and it is read in the time that files
/// have.
const LOADED_BYTES_MAX: u64 = 1 << 30;
/// Bounds the threads that read files: those that a dead server blocks stay.
const LOOKERS_MAX: usize = 512;
/// Bounds the layers of block devices: LVM on RAID on multipath.
const LAYERS_MAX: usize = 8;

/// Returns the kernel's id of this boot of the host (`/proc/sys/kernel/random/boot_id`). `None`: it cannot be read.
pub fn boot_id() -> Option<String> {
    Some(text("/proc/sys/kernel/random/boot_id").trim().to_owned()).filter(|id| !id.is_empty())
}

/// Returns the text of a file of `/proc` or `/sys`; empty if the file cannot be read.
pub(crate) fn text(path: impl AsRef<Path>) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Returns the value of `NAME:  123 kB`, in bytes.
pub(crate) fn kilobytes(file: &str, name: &str) -> Option<u64> {
    let value = file.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Counts the threads that read files now.
static LOOKERS: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` in a thread of its own, which the caller may wait for or not. `None`: too many threads are still at
/// work.
pub(crate) fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<Receiver<T>> {
    struct Looker;
    impl Drop for Looker {
        fn drop(&mut self) {
            LOOKERS.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let others = LOOKERS.fetch_add(1, Ordering::Relaxed);
    let looker = Looker;
    let (tell, told) = sync_channel(1);
    let look = move || {
        let _looker = looker;
        let _ = tell.send(work());
    };
    (others < LOOKERS_MAX).then(|| thread::Builder::new().name("look".into()).spawn(look).ok())??;
    Some(told)
}

/// The files that are being read.
pub(crate) struct Looks<T> {
    files: Vec<(PathBuf, Option<Receiver<Option<T>>>)>,
    end: Instant,
}

pub(crate) fn looks<T: Send + 'static>(paths: &[PathBuf], look: fn(&Path) -> Option<T>) -> Looks<T> {
    let files = paths.iter().take(FILES_MAX).map(|path| {
        let looked_at = path.clone();
        (path.clone(), aside(move || look(&looked_at)))
    });
    Looks { files: files.collect(), end: Instant::now() + FILES_TIME }
}

/// Returns the facts of the files that exist, and whose file system answers in time.
pub(crate) fn looked_at(paths: &[PathBuf]) -> Vec<FileFacts> {
    looks(paths, look).wait().into_iter().map(|(_, facts)| facts).collect()
}

impl<T> Looks<T> {
    /// Waits for the files. Returns those that exist, and whose file system answers.
    pub(crate) fn wait(self) -> Vec<(PathBuf, T)> {
        let end = self.end;
        let seen = |(path, told): (PathBuf, Option<Receiver<Option<T>>>)| {
            let told = told.and_then(|told| told.recv_timeout(end.saturating_duration_since(Instant::now())).ok());
            let seen = told.unwrap_or_else(|| {
                warn!("{}: its file system does not answer", path.display());
                None
            });
            Some((path, seen?))
        };
        self.files.into_iter().filter_map(seen).collect()
    }
}

/// Returns the SHA-256 of a file of at most [`LOADED_BYTES_MAX`]; `None`: it is no such file, or cannot be read.
pub(crate) fn digest(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok().filter(|found| found.is_file() && found.len() <= LOADED_BYTES_MAX)?;
    let mut file = fs::File::open(path).ok()?.take(found.len());
    let mut digest = Context::new(&SHA256);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).ok()? {
            0 => break,
            bytes => digest.update(&buffer[..bytes]),
        }
    }
    Some(digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

pub(crate) fn look(path: &Path) -> Option<FileFacts> {
    let found = fs::metadata(path).ok()?;
    let may = |access| eaccess(path, access).is_ok();
    let mut facts = FileFacts {
        path: path.to_owned(),
        readable: may(AccessFlags::R_OK),
        writable: may(AccessFlags::W_OK),
        file_system: FileSystem::Unknown,
        file_system_name: "block device".into(),
        device: found.dev(),
        inode: found.ino(),
        mounted_from: None,
        handle: None,
        wwid: None,
    };
    if found.file_type().is_block_device() {
        // This is the device itself, and not the node that leads to it, of which each host has its own.
        let (major, minor) = (nix::sys::stat::major(found.rdev()), nix::sys::stat::minor(found.rdev()));
        (facts.device, facts.inode) = (found.rdev(), 0);
        facts.wwid = wwid(&Path::new("/sys/dev/block").join(format!("{major}:{minor}")), LAYERS_MAX);
    } else {
        let magic = statfs(path).map_or(0, |stat| stat.filesystem_type().0 as u32);
        (facts.file_system, facts.file_system_name) = file_system(magic);
        if facts.file_system == FileSystem::Network {
            facts.mounted_from = mounted_from(&text("/proc/self/mountinfo"), found.dev());
            facts.handle = skein_host::file_handle(path).ok();
        }
    }
    Some(facts)
}

/// Returns the source of the mount with this device number, by proc_pid_mountinfo(5).
fn mounted_from(mountinfo: &str, device: u64) -> Option<String> {
    let device = format!("{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device));
    mountinfo.lines().find_map(|line| {
        let (place, file_system) = line.split_once(" - ")?;
        let source = file_system.split(' ').nth(1)?;
        (place.split(' ').nth(2)? == device).then(|| source.to_owned())
    })
}

/// Holds names that QEMU gives to the disks that it emulates, the same in each guest. They are no names for a host that
/// is a guest.
const EMULATED_DISK_NAMES: [&str; 3] = ["QEMU", "nvme.1b36-", "eui.525400"];

/// Returns the worldwide name of a block device, by its directory in `/sys`. For LVM, encryption and RAID that is their
/// UUID with the names of what is below: hosts installed from one image have the same UUIDs on disks of their own.
fn wwid(dir: &Path, layers: usize) -> Option<String> {
    let said = |file: &str| Some(text(dir.join(file)).trim().to_owned()).filter(|text| !text.is_empty());
    let layers = layers.checked_sub(1)?;
    if let Some(number) = said("partition") {
        return Some(format!("{} partition {number}", wwid(&fs::canonicalize(dir).ok()?.join(".."), layers)?));
    }
    if let Some(uuid) = said("dm/uuid").or_else(|| said("md/uuid")) {
        if uuid.starts_with("mpath-") {
            return Some(uuid);
        }
        let below = fs::read_dir(dir.join("slaves")).ok()?.map(|slave| wwid(&slave.ok()?.path(), layers));
        let mut below = below.collect::<Option<Vec<String>>>().filter(|below| !below.is_empty())?;
        below.sort();
        return Some(format!("{uuid} on {}", below.join(", ")));
    }
    // NVMe has its own name beside, SCSI a level below.
    let name = said("wwid").or_else(|| said("device/wwid"))?;
    (!EMULATED_DISK_NAMES.iter().any(|emulated| name.contains(emulated))).then_some(name)
}

/// Holds magic numbers of linux/magic.h, and of file systems that keep theirs elsewhere.
const FILE_SYSTEMS: [(u32, FileSystem, &str); 31] = [
    (0xef53, FileSystem::Local, "ext4"),
    (0x5846_5342, FileSystem::Local, "xfs"),
    (0x9123_683e, FileSystem::Local, "btrfs"),
    (0x0102_1994, FileSystem::Local, "tmpfs"),
    (0x8584_58f6, FileSystem::Local, "ramfs"),
    (0x9584_58f6, FileSystem::Local, "hugetlbfs"),
    (0x794c_7630, FileSystem::Local, "overlay"),
    (0x2fc1_2fc1, FileSystem::Local, "zfs"),
    (0xca45_1a4e, FileSystem::Local, "bcachefs"),
    (0xf2f5_2010, FileSystem::Local, "f2fs"),
    (0x3153_464a, FileSystem::Local, "jfs"),
    (0x5265_4973, FileSystem::Local, "reiserfs"),
    (0x7371_7368, FileSystem::Local, "squashfs"),
    (0xe0f5_e1e2, FileSystem::Local, "erofs"),
    (0x9660, FileSystem::Local, "iso9660"),
    (0x4d44, FileSystem::Local, "vfat"),
    (0x2011_bab0, FileSystem::Local, "exfat"),
    (0x7366_746e, FileSystem::Local, "ntfs3"),
    (0x6969, FileSystem::Network, "nfs"),
    (0xff53_4d42, FileSystem::Network, "cifs"),
    (0xfe53_4d42, FileSystem::Network, "smb3"),
    (0x517b, FileSystem::Network, "smb"),
    (0x00c3_6400, FileSystem::Network, "ceph"),
    (0x0116_1970, FileSystem::Network, "gfs2"),
    (0x7461_636f, FileSystem::Network, "ocfs2"),
    (0x0bd0_0bd0, FileSystem::Network, "lustre"),
    (0x4750_4653, FileSystem::Network, "gpfs"),
    (0x5346_414f, FileSystem::Network, "afs"),
    (0x7375_7245, FileSystem::Network, "coda"),
    (0x6573_5546, FileSystem::Unknown, "fuse"),
    (0x0102_1997, FileSystem::Unknown, "9p"),
];

pub(crate) fn file_system(magic: u32) -> (FileSystem, String) {
    let known = FILE_SYSTEMS.iter().find(|(other, ..)| *other == magic);
    known.map_or_else(
        || (FileSystem::Unknown, format!("file system {magic:#x}")),
        |(_, kind, name)| (*kind, (*name).to_owned()),
    )
}

/// Returns the path in what QEMU calls a filename: `/a`, `file:/a`, or `json:{"driver": "raw", "file": {"filename":
/// "/a"}}` where a path does not say it all. `None`: the file is not on this host (`nbd://...`).
pub(crate) fn image(filename: &str) -> Option<PathBuf> {
    if let Some(options) = filename.strip_prefix("json:") {
        let options: Value = serde_json::from_str(options).ok()?;
        let said =
            ["/filename", "/file/filename", "/file.filename"].iter().find_map(|at| options.pointer(at)?.as_str());
        return said.map(PathBuf::from);
    }
    let path = filename.strip_prefix("file:").unwrap_or(filename);
    (!path.is_empty() && !path.contains("://")).then(|| path.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use skein_units::MIB;

    use super::*;

    #[test]
    fn memory() {
        let text =
            "MemTotal:       16307972 kB\nMemFree:  12 kB\nMemAvailable:   15000000 kB\nHugepagesize:       2048 kB\n";
        assert_eq!(kilobytes(text, "MemTotal"), Some(16_307_972 * 1024));
        assert_eq!(kilobytes(text, "MemAvailable"), Some(15_360_000_000));
        assert_eq!(kilobytes(text, "Hugepagesize"), Some(2 * MIB));
        for odd in [
            "",
            "MemTotal: x kB",
            "MemTotal: 1",
            "MemTotal: 99999999999999999999 kB",
            "MemTotal: 18446744073709551615 kB",
        ] {
            assert_eq!(kilobytes(odd, "MemTotal"), None, "{odd}");
        }
    }

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
            fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn names_of_block_devices() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| wwid(&dir.path().join(name), LAYERS_MAX);
        write(
            dir.path(),
            &[
                ("scsi/device/wwid", "naa.600508b1001c\n"),
                ("scsi/part/partition", "2\n"),
                ("nvme/wwid", "eui.0025388b710ff22a\n"),
                ("virtio/serial", "\n"),
                ("nested/device/wwid", "t10.ATA     QEMU HARDDISK                           QM00001\n"),
                ("nested-nvme/wwid", "eui.5254000000000001\n"),
                ("mpath/dm/uuid", "mpath-3600508b1001c\n"),
                ("lv/dm/uuid", "LVM-abc\n"),
                ("lv-of-unnamed/dm/uuid", "LVM-abc\n"),
                ("empty-lv/dm/uuid", "LVM-abc\n"),
                ("empty-lv/slaves/.keep/x", ""),
                ("ring/dm/uuid", "LVM-ring\n"),
            ],
        );
        let link = |lv: &str, below: &str| {
            fs::create_dir_all(dir.path().join(lv).join("slaves")).unwrap();
            std::os::unix::fs::symlink(dir.path().join(below), dir.path().join(lv).join("slaves").join(below)).unwrap();
        };
        link("lv", "scsi");
        link("lv", "mpath");
        link("lv-of-unnamed", "virtio");
        link("ring", "ring");
        assert_eq!(at("scsi").as_deref(), Some("naa.600508b1001c"));
        assert_eq!(at("scsi/part").as_deref(), Some("naa.600508b1001c partition 2"));
        assert_eq!(at("nvme").as_deref(), Some("eui.0025388b710ff22a"));
        assert_eq!(at("mpath").as_deref(), Some("mpath-3600508b1001c"));
        assert_eq!(at("lv").as_deref(), Some("LVM-abc on mpath-3600508b1001c, naa.600508b1001c"));
        // Two hosts of one image could have the same name: no name is better.
        for unnamed in ["virtio", "nested", "nested-nvme", "lv-of-unnamed", "empty-lv", "ring", "missing"] {
            assert_eq!(at(unnamed), None, "{unnamed}");
        }
    }

    #[test]
    fn file_systems() {
        let kind = |magic: i64| file_system(magic as u32);
        assert_eq!(kind(nix::sys::statfs::NFS_SUPER_MAGIC.0), (FileSystem::Network, "nfs".into()));
        assert_eq!(kind(nix::sys::statfs::BTRFS_SUPER_MAGIC.0), (FileSystem::Local, "btrfs".into()));
        assert_eq!(kind(nix::sys::statfs::FUSE_SUPER_MAGIC.0), (FileSystem::Unknown, "fuse".into()));
        assert_eq!(kind(0x1234), (FileSystem::Unknown, "file system 0x1234".into()));
        let magics: BTreeSet<u32> = FILE_SYSTEMS.iter().map(|(magic, ..)| *magic).collect();
        assert_eq!(magics.len(), FILE_SYSTEMS.len());
    }

    #[test]
    fn files_of_this_host() {
        let dir = tempfile::tempdir().unwrap();
        let (file, missing) = (dir.path().join("disk"), dir.path().join("missing"));
        fs::write(&file, "x").unwrap();
        let seen = looked_at(&[missing, file.clone(), "/proc/self/mounts".into()]);
        assert_eq!(seen.len(), 2);
        let found = fs::metadata(&file).unwrap();
        assert_eq!((&seen[0].path, seen[0].device, seen[0].inode), (&file, found.dev(), found.ino()));
        assert_eq!((seen[0].readable, seen[0].writable, &seen[0].wwid), (true, true, &None));
        assert_eq!(seen[1].file_system, FileSystem::Unknown, "{:?}", seen[1]);
    }

    #[test]
    fn who_does_not_come_back_is_not_waited_for() {
        let told = aside(|| thread::sleep(Duration::from_secs(120))).unwrap();
        let looks: Looks<FileFacts> = Looks {
            files: vec![("/srv/dead".into(), aside(move || told.recv().map(|()| None).unwrap()))],
            end: Instant::now() + Duration::from_millis(50),
        };
        let begun = Instant::now();
        assert_eq!(looks.wait(), []);
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn where_it_is_mounted_from() {
        let text = "36 27 0:45 / /srv/vm rw,relatime shared:9 - nfs4 nas:/export/vm rw,vers=4.2\n\
                    37 27 0:46 / /srv/iso rw - nfs4 nas:/iso rw\nodd\n";
        let device = |minor| nix::sys::stat::makedev(0, minor);
        assert_eq!(mounted_from(text, device(45)).unwrap(), "nas:/export/vm");
        assert_eq!(mounted_from(text, device(46)).unwrap(), "nas:/iso");
        assert_eq!(mounted_from(text, device(47)), None);
    }
}
