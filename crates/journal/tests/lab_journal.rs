//! Tests the journal on file systems that are full, read-only or broken, and what an append costs the disk. Needs root.
// Cores: 0.1

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use skein_journal::{AppendError, DiskProblem, EventLog, Journal, JournalLimits, OpenError};
use tempfile::TempDir;

/// A file system that is unmounted when the test is over, however the test ends.
struct Disk {
    dir: TempDir,
}

impl Disk {
    fn tmpfs(kib: usize) -> Disk {
        let disk = Disk { dir: tempfile::Builder::new().prefix("skein-journal-").tempdir().unwrap() };
        let options = format!("size={kib}k");
        mount(Some("skein-test"), disk.dir.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).unwrap();
        disk
    }

    fn ext4(image: &Path) -> Option<Disk> {
        Disk::image("ext4", 32 << 20, image)
    }

    /// Makes a file system in a file. Returns `None`, and prints why, if the host cannot have it.
    fn image(kind: &str, bytes: u64, image: &Path) -> Option<Disk> {
        if !Path::new("/dev/loop-control").exists() {
            println!("skipped: no loop devices here");
            return None;
        }
        File::create(image).unwrap().set_len(bytes).unwrap();
        let mkfs = format!("mkfs.{kind}");
        if Command::new(&mkfs).arg("-V").output().is_err() {
            println!("skipped: no {mkfs} here");
            return None;
        }
        run(Command::new(mkfs).arg("-q").arg(image));
        let disk = Disk { dir: tempfile::Builder::new().prefix("skein-journal-").tempdir().unwrap() };
        disk.mount_image(image);
        Some(disk)
    }

    /// The loop device ends with the mount.
    fn mount_image(&self, image: &Path) {
        run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(self.dir.path()));
    }

    fn unmount(&self) {
        umount2(self.dir.path(), MntFlags::empty()).unwrap();
    }

    fn journal(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    /// Returns the name `loopN` of the device that the file system is mounted from.
    fn device(&self) -> String {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let at = format!(" {} ", self.dir.path().display());
        mounts.lines().find(|line| line.contains(&at)).unwrap().split(' ').next().unwrap()["/dev/".len()..].to_owned()
    }

    /// Writes until nothing more fits, not a block and not a byte.
    fn fill(&self) {
        let mut file = File::create(self.dir.path().join("filler")).unwrap();
        for size in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; size]).and_then(|()| file.sync_data()).is_ok() {}
        }
        // No inode and no directory has a free block either.
        let error = fs::write(self.dir.path().join("more"), [1; 5000]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        let _ = fs::remove_file(self.dir.path().join("more"));
    }

    fn empty(&self) {
        fs::remove_file(self.dir.path().join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The unmount is lazy, because a test that failed may still have files open.
        let _ = umount2(self.dir.path(), MntFlags::MNT_DETACH);
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn open(path: &Path) -> (Journal<String>, Vec<String>) {
    Journal::open(path, JournalLimits::default()).unwrap_or_else(|error| panic!("{error:?}"))
}

fn text(n: usize) -> String {
    format!("{n} {}", "x".repeat(n * 37 % 4000))
}

fn texts(count: usize) -> Vec<String> {
    (0..count).map(text).collect()
}

#[test]
fn a_disk_full_before_the_journal_is_made() {
    let disk = Disk::tmpfs(512);
    for round in 0..2 {
        let error = Journal::<String>::open(&disk.journal(), JournalLimits::default()).unwrap_err();
        assert!(matches!(error, OpenError::NoSpace { kib: 1024, .. }), "{round}: {error:?}");
        assert!(error.to_string().contains("free some on its file system and start again"), "{error}");
        // The file that was begun is gone, so its space is free again.
        let left: Vec<_> = fs::read_dir(disk.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["journal.lock"]);
    }
    let small = JournalLimits { records: 20 };
    Journal::<String>::open(&disk.journal(), small).unwrap().0.append(&text(1)).unwrap();
}

/// Asserts that the reserved space is there, whatever else fills the disk.
fn full_after_open(disk: &Disk) {
    let path = disk.journal();
    let (mut journal, _) = open(&path);
    for n in 0..5 {
        journal.append(&text(n)).unwrap();
    }
    let mut log = EventLog::open(disk.dir.path(), "m").unwrap();
    log.append(&"before");
    disk.fill();
    journal.ready(250).unwrap();
    for n in 5..100 {
        journal.append(&text(n)).unwrap();
    }
    // The agent starts again while the disk is full.
    drop(journal);
    let (mut journal, records) = open(&path);
    assert_eq!(records, texts(100));
    for n in 100..255 {
        journal.ready(255 - n).unwrap();
        journal.append(&text(n)).unwrap();
    }
    let refused = journal.ready(1).unwrap_err();
    assert!(matches!(refused, AppendError::Full { room: 0, .. }), "{refused}");
    // There is no space for a second file, so the rewrite is refused. Nothing is lost.
    let refused = journal.rewrite(&texts(3)).unwrap_err();
    assert!(matches!(refused, AppendError::NoSpace { .. }), "{refused:?}");
    assert_eq!((refused.disk_problem(), journal.records()), (DiskProblem::Full, 255));
    journal.ready(0).unwrap();
    for n in 0..2000 {
        log.append(&n);
    }
    assert!(log.lost() > 0);
    let logged = EventLog::read::<serde_json::Value>(disk.dir.path(), "m").unwrap();
    assert_eq!(logged.entries.len() as u64, 2001 - log.lost());

    disk.empty();
    let lost = log.lost();
    log.append(&"after");
    let logged = EventLog::read::<serde_json::Value>(disk.dir.path(), "m").unwrap();
    assert_eq!((log.lost(), logged.entries.last().unwrap().event.as_str()), (lost, Some("after")));
    drop(journal);
    let (mut journal, records) = open(&path);
    assert_eq!(records, texts(255));
    journal.rewrite(&texts(3)).unwrap();
    journal.append(&text(3)).unwrap();
    drop(journal);
    assert_eq!(open(&path).1, texts(4));
}

#[test]
fn a_disk_full_after_the_journal_is_made() {
    full_after_open(&Disk::tmpfs(4096));
}

#[test]
fn an_ext4_full_after_the_journal_is_made() {
    let backing = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::ext4(&backing.path().join("image")) else { return };
    full_after_open(&disk);
}

#[test]
fn other_file_systems_full_after_the_journal_is_made() {
    let backing = tempfile::tempdir().unwrap();
    for (kind, mib) in [("xfs", 320), ("btrfs", 160)] {
        let Some(disk) = Disk::image(kind, mib << 20, &backing.path().join(kind)) else { continue };
        full_after_open(&disk);
        println!("{kind} passed");
    }
}

#[test]
fn a_file_system_that_is_read_only_from_the_start() {
    let disk = Disk::tmpfs(4096);
    open(&disk.journal()).0.append(&text(0)).unwrap();
    let remount = |flags: MsFlags| {
        mount(None::<&str>, disk.dir.path(), None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>).unwrap();
    };
    remount(MsFlags::MS_RDONLY);
    let error = Journal::<String>::open(&disk.journal(), JournalLimits::default()).unwrap_err();
    assert!(matches!(error, OpenError::ReadOnly { .. }), "{error:?}");
    assert!(error.to_string().contains("mount it read-write"), "{error}");
    remount(MsFlags::empty());
    assert_eq!(open(&disk.journal()).1, texts(1));
}

/// Makes the file system read-only under an open journal, as ext4 does when it finds an error.
#[test]
fn a_file_system_that_becomes_read_only() {
    let backing = tempfile::tempdir().unwrap();
    let image = backing.path().join("image");
    let Some(disk) = Disk::ext4(&image) else { return };
    let (mut journal, _) = open(&disk.journal());
    for n in 0..10 {
        journal.append(&text(n)).unwrap();
    }
    journal.ready(10).unwrap();
    run(Command::new("mount").args(["-o", "remount,errors=remount-ro"]).arg(disk.dir.path()));
    fs::write(format!("/sys/fs/ext4/{}/trigger_fs_error", disk.device()), "1").unwrap();
    let refused = journal.ready(1).unwrap_err();
    assert!(matches!(refused, AppendError::ReadOnly { .. }), "{refused:?}");
    let failed = journal.append(&"never acknowledged".to_owned()).unwrap_err();
    assert!(matches!(failed, AppendError::ReadOnly { .. }), "{failed:?}");
    assert!(failed.to_string().contains("mount it read-write"), "{failed}");
    for again in [journal.append(&text(10)).unwrap_err(), journal.ready(1).unwrap_err()] {
        assert!(matches!(again, AppendError::Poisoned { fault: DiskProblem::ReadOnly, .. }), "{again:?}");
    }
    drop(journal);
    let error = Journal::<String>::open(&disk.journal(), JournalLimits::default()).unwrap_err();
    assert!(matches!(error, OpenError::ReadOnly { .. }), "{error:?}");

    disk.unmount();
    disk.mount_image(&image);
    let (mut journal, records) = open(&disk.journal());
    assert_eq!(records, texts(10));
    journal.append(&text(10)).unwrap();
    drop(journal);
    assert_eq!(open(&disk.journal()).1, texts(11));
}

/// Makes a disk that fails writes: the file system lies in a file with holes, on a file system that is full.
#[test]
fn a_disk_that_fails_to_write() {
    let below = Disk::tmpfs(64 << 10);
    let image = below.dir.path().join("image");
    let Some(disk) = Disk::ext4(&image) else { return };
    let (mut journal, _) = open(&disk.journal());
    for n in 0..10 {
        journal.append(&text(n)).unwrap();
    }
    run(Command::new("fallocate").arg("--dig-holes").arg(&image));
    below.fill();
    let failed = (10..20).map(|n| journal.append(&text(n))).find_map(Result::err).expect("no write can succeed");
    assert!(matches!(failed, AppendError::Io { .. } | AppendError::NoSpace { .. }), "{failed:?}");
    println!("the append said: {failed}: {}", std::error::Error::source(&failed).unwrap());
    let acknowledged = journal.records();
    // The disk works again, but the file's content is not known.
    below.empty();
    let again = journal.append(&text(10)).unwrap_err();
    assert!(matches!(again, AppendError::Poisoned { .. }), "{again:?}");
    drop(journal);

    // The first round is as if the agent restarted, the second as if the host did.
    for round in 0..2 {
        let (mut journal, records) = open(&disk.journal());
        assert_eq!(records, texts(records.len()));
        assert!(records.len() >= acknowledged, "{} of {acknowledged}", records.len());
        journal.append(&text(records.len())).unwrap();
        drop(journal);
        disk.unmount();
        disk.mount_image(&image);
        assert_eq!(open(&disk.journal()).1, texts(records.len() + 1), "round {round}");
    }
}

/// Returns the KiB that were written to a disk, and the flushes that it has completed (the kernel's
/// Documentation/block/stat.rst).
fn completed(device: &str) -> [u64; 2] {
    let stat = fs::read_to_string(format!("/sys/block/{device}/stat")).unwrap();
    let fields: Vec<u64> = stat.split_whitespace().map(|field| field.parse().unwrap()).collect();
    [fields[6] / 2, fields[15]]
}

fn times(count: usize, mut step: impl FnMut()) -> String {
    let mut times: Vec<Duration> = (0..count)
        .map(|_| {
            // Appends come as seldom as in use, so the append before is never still under way.
            std::thread::sleep(Duration::from_millis(1));
            let begin = Instant::now();
            step();
            begin.elapsed()
        })
        .collect();
    times.sort();
    format!("median {:?}, p99 {:?}, longest {:?}", times[count / 2], times[count * 99 / 100], times[count - 1])
}

#[test]
fn an_append_is_one_write_to_the_disk() {
    const COUNT: usize = 250;
    let backing = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::ext4(&backing.path().join("image")) else { return };
    let mut took = Vec::new();
    for (what, dir) in [("ext4 in a file", disk.dir.path()), ("the system's", backing.path())] {
        let (mut journal, _) = open(&dir.join("journal"));
        let mut naive = File::create(dir.join("naive")).unwrap();
        let record = "x".repeat(100);
        let mut measure = |name, step: &mut dyn FnMut()| {
            let before = completed(&disk.device());
            let times = times(COUNT, step);
            let after = completed(&disk.device());
            println!("{what}: {name}: {times}");
            took.push([after[0] - before[0], after[1] - before[1]]);
        };
        measure("journal", &mut || journal.append(&record).unwrap());
        measure("a file that grows", &mut || {
            naive.write_all(record.as_bytes()).unwrap();
            naive.sync_data().unwrap();
        });
    }
    let (journal, grows) = (took[0], took[1]);
    println!("{COUNT} records, KiB and flushes: journal {journal:?}, a file that grows {grows:?}");
    // A disk writes nothing but the slot, and makes a flush if it has no FUA. What the file system does in the
    // background is little.
    let count = COUNT as u64;
    assert!((4 * count..5 * count).contains(&journal[0]) && journal[1] < count + count / 10, "{journal:?}");
    assert!(grows[1] > count + count / 2, "a file that grows takes no more: what is this test good for? {grows:?}");
}
