//! Tests the journal over a disk that forgets what was not flushed. The power is cut at every call, and every call
//! fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::files::{Access, FileSystem, OpenFile, Shape};
use crate::{Journal, JournalLimits};

/// Says how many bytes a disk writes whole.
const SECTOR_BYTES: usize = 512;

/// Bytes that were written, and the offset of the first.
type Written = (usize, Vec<u8>);

/// A file: its content on the disk, and the writes that only the cache has.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Inode {
    durable: Vec<u8>,
    /// Writes of a sync that failed. The cache has them, but the kernel marked them clean, so no later sync writes
    /// them.
    lost: Vec<Written>,
    cached: Vec<Written>,
}

impl Inode {
    /// Returns what a program reads.
    fn bytes(&self) -> Vec<u8> {
        written(self.durable.clone(), self.lost.iter().chain(&self.cached), |_| true)
    }

    /// Returns the disk's content if the sectors that `reached` names had been written. Sectors are counted over all
    /// cached writes.
    fn after_a_cut(&self, reached: impl Fn(usize) -> bool) -> Vec<u8> {
        written(self.durable.clone(), &self.cached, reached)
    }

    fn sync(&mut self) {
        self.durable = self.after_a_cut(|_| true);
        self.cached.clear();
    }

    fn fail_to_sync(&mut self) {
        self.lost.append(&mut self.cached);
    }
}

/// Returns a file's bytes with the sectors of `writes` that `reached` names. Sectors are counted over all writes.
fn written<'a>(
    mut bytes: Vec<u8>,
    writes: impl IntoIterator<Item = &'a Written>,
    reached: impl Fn(usize) -> bool,
) -> Vec<u8> {
    let mut sector = 0;
    for (offset, new) in writes {
        for (index, piece) in new.chunks(SECTOR_BYTES).enumerate() {
            if reached(sector) {
                let at = offset + index * SECTOR_BYTES;
                bytes.resize(bytes.len().max(at + piece.len()), 0);
                bytes[at..at + piece.len()].copy_from_slice(piece);
            }
            sector += 1;
        }
    }
    bytes
}

/// A change of the directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Link(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

fn apply(names: &mut BTreeMap<PathBuf, usize>, change: &Change) {
    match change {
        Change::Link(path, inode) => drop(names.insert(path.clone(), *inode)),
        Change::Remove(path) => drop(names.remove(path)),
        Change::Rename(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Disk {
    inodes: Vec<Inode>,
    /// The names on the disk, and the changes since then in their order.
    durable: BTreeMap<PathBuf, usize>,
    cached: Vec<Change>,
}

impl Disk {
    fn names(&self) -> BTreeMap<PathBuf, usize> {
        let mut names = self.durable.clone();
        self.cached.iter().for_each(|change| apply(&mut names, change));
        names
    }

    fn change(&mut self, change: Change) {
        self.cached.push(change);
    }

    /// Returns the disks that a power cut may leave. A file system keeps the changes of a directory in their order, so
    /// the disk has the first changes, however many. Of a file's cached sectors the disk has nothing, everything, or
    /// some.
    fn after_a_cut(&self) -> BTreeSet<Disk> {
        let mut disks = BTreeSet::new();
        let reached: [&dyn Fn(usize) -> bool; 6] = [
            &|_| false,
            &|_| true,
            &|sector| sector == 0,
            &|sector| sector > 0,
            &|sector| sector % 2 == 0,
            &|sector| sector % 2 == 1,
        ];
        for changes in 0..=self.cached.len() {
            let mut durable = self.durable.clone();
            self.cached[..changes].iter().for_each(|change| apply(&mut durable, change));
            for reached in reached {
                let inode = |inode: &Inode| Inode { durable: inode.after_a_cut(reached), ..Inode::default() };
                let inodes = self.inodes.iter().map(inode).collect();
                disks.insert(Disk { inodes, durable: durable.clone(), cached: Vec::new() });
            }
        }
        disks
    }
}

/// What goes wrong while the host is up.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Nothing goes wrong.
    None,
    /// The power goes in this call, counted from 1. The call may have done its work or a part of the work, and returns
    /// to nobody.
    Cut(usize),
    /// This call fails without having done its work.
    Fails(usize),
    /// This call does its work and returns a failure.
    SaysSo(usize),
}

/// A host with one disk.
#[derive(Debug)]
struct Machine {
    disk: Disk,
    fault: Fault,
    calls: Vec<String>,
}

/// The host as a file system.
#[derive(Debug, Clone)]
struct Forgetful(Arc<Mutex<Machine>>);

impl Forgetful {
    fn new(disk: Disk, fault: Fault) -> Forgetful {
        Forgetful(Arc::new(Mutex::new(Machine { disk, fault, calls: Vec::new() })))
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().unwrap()
    }

    /// Returns the calls so far.
    fn calls(&self) -> Vec<String> {
        self.machine().calls.clone()
    }

    fn disk(&self) -> Disk {
        self.machine().disk.clone()
    }

    /// Makes a call: runs `work`, or `failing` if the call fails without its work.
    fn call<T>(
        &self,
        what: &str,
        path: &Path,
        work: impl FnOnce(&mut Disk) -> io::Result<T>,
        failing: impl FnOnce(&mut Disk),
    ) -> io::Result<T> {
        let mut machine = self.machine();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        machine.calls.push(format!("{what} {name}"));
        let number = machine.calls.len();
        match machine.fault {
            Fault::Cut(last) if number > last => Err(io::Error::other("the power is gone")),
            Fault::Fails(this) if number == this => {
                failing(&mut machine.disk);
                Err(io::Error::other("it failed"))
            }
            Fault::Cut(this) | Fault::SaysSo(this) if number == this => {
                let _ = work(&mut machine.disk);
                Err(io::Error::other("it failed, by its word"))
            }
            _ => work(&mut machine.disk),
        }
    }
}

impl FileSystem for Forgetful {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn OpenFile>> {
        let work = |disk: &mut Disk| {
            match (disk.names().get(path), access) {
                (Some(inode), Access::Read | Access::Write | Access::Durable) => Ok(*inode),
                // Emptying and making both give a new inode. This is the harder case, because the name may be lost.
                (_, Access::Create) => {
                    disk.inodes.push(Inode::default());
                    let inode = disk.inodes.len() - 1;
                    disk.change(Change::Link(path.to_owned(), inode));
                    Ok(inode)
                }
                (None, _) => Err(ErrorKind::NotFound.into()),
            }
        };
        let inode = self.call(&format!("open {access:?}"), path, work, |_| {})?;
        Ok(Box::new(Opened { files: self.clone(), path: path.to_owned(), inode, access }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let change = Change::Rename(from.to_owned(), to.to_owned());
        let work = |disk: &mut Disk| {
            disk.change(change);
            Ok(())
        };
        self.call("rename", from, work, |_| {})
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let work = |disk: &mut Disk| {
            disk.names().get(path).ok_or(ErrorKind::NotFound)?;
            disk.change(Change::Remove(path.to_owned()));
            Ok(())
        };
        self.call("remove", path, work, |_| {})
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let work = |disk: &mut Disk| {
            disk.durable = disk.names();
            disk.cached.clear();
            Ok(())
        };
        self.call("sync directory", directory, work, |_| {})
    }
}

/// An open file of a [`Forgetful`].
#[derive(Debug)]
struct Opened {
    files: Forgetful,
    path: PathBuf,
    inode: usize,
    access: Access,
}

impl Opened {
    fn call<T>(&self, what: &str, work: impl FnOnce(&mut Inode) -> T) -> io::Result<T> {
        self.files.call(what, &self.path, |disk| Ok(work(&mut disk.inodes[self.inode])), |_| {})
    }

    fn sync(&self, what: &str) -> io::Result<()> {
        let work = |disk: &mut Disk| {
            disk.inodes[self.inode].sync();
            Ok(())
        };
        self.files.call(what, &self.path, work, |disk| disk.inodes[self.inode].fail_to_sync())
    }

    fn write(&self, what: &str, bytes: &[u8], offset: u64) -> io::Result<()> {
        assert_ne!(self.access, Access::Read);
        self.call(what, |inode| inode.cached.push((offset as usize, bytes.to_owned())))?;
        // The flush is a call of its own, so that the power may also go before everything is on the disk.
        if self.access == Access::Durable { self.sync("flush") } else { Ok(()) }
    }
}

impl OpenFile for Opened {
    fn shape(&self) -> io::Result<Shape> {
        self.call("shape", |inode| Shape { is_file: true, allocated_bytes: inode.bytes().len() as u64 })
    }

    fn read(&self, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = self.call("read", |inode| inode.bytes())?;
        bytes.truncate(most);
        Ok(bytes)
    }

    fn write_in_place(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write("write", bytes, offset)
    }

    fn reserve(&self, bytes: usize) -> io::Result<()> {
        self.write("reserve", &vec![0; bytes], 0)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync("sync")
    }

    fn forget_cache(&self) -> io::Result<()> {
        // The kernel forgets nothing that was not synced (posix_fadvise(2)).
        self.call("forget", |inode| inode.lost.clear())
    }

    fn is_read_only(&self) -> io::Result<bool> {
        self.call("read-only?", |_| false)
    }
}

const LIMITS: JournalLimits = JournalLimits { records: 4 };

/// The records that the program may rely on, because of an acknowledgement or of what it read at the start.
#[derive(Debug, Clone, Default)]
struct Promise {
    records: Vec<u64>,
    /// Other lists of records that may be there: of steps that were begun since, and that failed or never returned.
    begun: Vec<Vec<u64>>,
}

impl Promise {
    fn is_kept_by(&self, found: &[u64]) -> bool {
        found == self.records || self.begun.iter().any(|begun| begun == found)
    }

    /// Takes a step to `next`, if `work` succeeds.
    fn step<E>(&mut self, next: Vec<u64>, work: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        self.begun.push(next.clone());
        work()?;
        *self = Promise { records: next, begun: Vec::new() };
        Ok(())
    }
}

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        Bench { dir: tempfile::tempdir().unwrap() }
    }

    fn open(&self, files: &Forgetful) -> Result<(Journal<u64>, Vec<u64>), crate::OpenError> {
        Journal::open_on(Arc::new(files.clone()), &self.dir.path().join("journal"), LIMITS)
    }

    /// Asserts that the disk has what was promised.
    fn must_be_kept(&self, disk: &Disk, promise: &Promise) {
        let opened = self.open(&Forgetful::new(disk.clone(), Fault::None));
        let (_, found) = opened.unwrap_or_else(|error| panic!("{promise:?}, and {error:?}"));
        assert!(promise.is_kept_by(&found), "{promise:?}, and found {found:?}");
    }

    /// Runs a life of the program: the program opens the journal, appends, and makes room. After an error it goes on
    /// with the same journal, as an agent does. Returns whether all went well.
    fn live(&self, files: &Forgetful, appends: usize, promise: &mut Promise) -> bool {
        let Ok((mut journal, found)) = self.open(files) else { return false };
        assert!(promise.is_kept_by(&found), "{promise:?} and found {found:?} after {:?}", files.calls());
        *promise = Promise { records: found, begun: Vec::new() };
        let mut well = true;
        for _ in 0..appends {
            // If a rewrite fails, a journal with room left could go on with the wrong file.
            if journal.free_slots() <= 1 {
                let kept = promise.records[1..].to_vec();
                well &= promise.step(kept.clone(), || journal.rewrite(&kept)).is_ok();
            }
            well &= journal.ready(1).is_ok();
            let number = promise.records.last().map_or(1, |last| last + 1);
            let next = [promise.records.as_slice(), &[number]].concat();
            well &= promise.step(next, || journal.append(&number)).is_ok();
        }
        well
    }
}

/// Ends a life at each of its calls. `then` gets what a power cut, or the kill of the program alone, may leave. Returns
/// how many calls a life has.
fn ended_at_every_call(
    bench: &Bench,
    disk: &Disk,
    promise: &Promise,
    appends: usize,
    then: &mut dyn FnMut(&Disk, &Promise),
) -> usize {
    for call in 1.. {
        let (files, mut promise) = (Forgetful::new(disk.clone(), Fault::Cut(call)), promise.clone());
        let lived = bench.live(&files, appends, &mut promise);
        let disk = files.disk();
        disk.after_a_cut().iter().for_each(|disk| then(disk, &promise));
        // The program alone ended, and the cache stays.
        then(&disk, &promise);
        if lived {
            return call;
        }
    }
    unreachable!("a life ends")
}

#[test]
fn a_power_cut_at_any_call_costs_nothing_that_was_acknowledged() {
    let bench = Bench::new();
    let (mut ends, mut different) = (0, BTreeMap::new());
    let calls = ended_at_every_call(&bench, &Disk::default(), &Promise::default(), 6, &mut |disk, promise| {
        ends += 1;
        different.entry((disk.clone(), format!("{promise:?}"))).or_insert_with(|| promise.clone());
    });
    // What was found after the first end must be there after a second end, at any call of the next life.
    let (first, mut second) = (different.len(), 0);
    for ((disk, _), promise) in different {
        ended_at_every_call(&bench, &disk, &promise, 2, &mut |disk, promise| {
            second += 1;
            bench.must_be_kept(disk, promise);
        });
    }
    println!("{calls} calls, {ends} ends, {first} of them different, {second} second ends");
    assert!(calls > 50 && second > 5000, "too few to show anything: {calls}, {second}");
}

/// After a call that failed the program goes on as long as it may, or is started again. Then the power is cut.
#[test]
fn a_call_that_fails_costs_nothing_that_is_acknowledged_afterwards() {
    let bench = Bench::new();
    let mut failed = 0;
    for fault in (1..80).flat_map(|call| [Fault::Fails(call), Fault::SaysSo(call)]) {
        let (files, mut promise) = (Forgetful::new(Disk::default(), fault), Promise::default());
        for _ in 0..3 {
            if !bench.live(&files, 6, &mut promise) {
                failed += 1;
                files.disk().after_a_cut().iter().for_each(|disk| bench.must_be_kept(disk, &promise));
            }
        }
        files.disk().after_a_cut().iter().for_each(|disk| bench.must_be_kept(disk, &promise));
    }
    assert!(failed > 100, "too few calls failed to show anything: {failed}");
}

/// The calls whose order makes the promise true, in full.
#[test]
fn the_calls_come_in_the_order_that_a_disk_needs() {
    let bench = Bench::new();
    let files = Forgetful::new(Disk::default(), Fault::None);
    let directory = bench.dir.path().file_name().unwrap().to_string_lossy().into_owned();
    let mut seen = 0;
    let mut calls = |files: &Forgetful| {
        let mut text = String::new();
        let all = files.calls();
        for call in &all[seen..] {
            writeln!(text, "{}", call.replace(&directory, ".")).unwrap();
        }
        seen = all.len();
        text
    };
    let (mut journal, _) = bench.open(&files).unwrap();
    let made = calls(&files);
    let renamed = "write journal.new\nsync journal.new\nrename journal.new\nsync directory .\n";
    assert!(made.contains(renamed), "{made}");
    assert!(made.ends_with("sync directory .\n"), "{made}");
    journal.append(&1).unwrap();
    assert_eq!(calls(&files), "write journal\nflush journal\n");
    journal.rewrite(&[1]).unwrap();
    assert_eq!(
        calls(&files),
        "open Create journal.new\nreserve journal.new\nwrite journal.new\nsync journal.new\nopen Durable journal.new\n\
         rename journal.new\nsync directory .\n"
    );
    journal.append(&2).unwrap();
    assert_eq!(calls(&files), "write journal.new\nflush journal.new\n", "the file that was renamed, by its older name");
    drop(journal);
    bench.open(&files).unwrap();
    let opened = calls(&files);
    assert!(opened.contains("sync journal\nforget journal\nread journal\n"), "{opened}");
    assert!(opened.contains("open Durable journal\nwrite journal\nflush journal\nsync directory .\n"), "{opened}");
}
