//! Writes and reads the journal's file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files::{Access, FileSystem, Kernel, OpenFile};
use crate::image::{self, Damage, JournalSlot, RECORD_BYTES_MAX, RECORDS_MAX, SLOT_BYTES};

/// Bounds the bytes of a journal's file.
const FILE_BYTES_MAX: usize = (1 + RECORDS_MAX) * SLOT_BYTES;

/// How much a journal holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalLimits {
    /// How many records the file has room for, within 1..=[`RECORDS_MAX`]. A value outside counts as the nearest value
    /// within. Each record takes 4 KiB of disk, which are reserved. A file that was made with another limit keeps its
    /// limit until [`Journal::rewrite`].
    pub records: usize,
}

impl Default for JournalLimits {
    /// Returns the limits of a file of 1 MiB.
    fn default() -> JournalLimits {
        JournalLimits { records: 255 }
    }
}

impl JournalLimits {
    fn slots(self) -> usize {
        self.records.clamp(1, RECORDS_MAX)
    }
}

/// A kind of disk problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskProblem {
    /// There is no space, in the journal or on its file system.
    Full,
    /// The file system is read-only.
    ReadOnly,
    /// The disk or the file system failed.
    Io,
    /// The record itself cannot be written.
    Record,
}

impl DiskProblem {
    fn of(error: &io::Error) -> DiskProblem {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskProblem::Full,
            ErrorKind::ReadOnlyFilesystem => DiskProblem::ReadOnly,
            _ => DiskProblem::Io,
        }
    }

    fn what(self) -> &'static str {
        match self {
            DiskProblem::Full => "no space",
            DiskProblem::ReadOnly => "read-only file system",
            DiskProblem::Io | DiskProblem::Record => "I/O error",
        }
    }
}

/// The reason why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another program has the journal open.
    #[error(
        "{path} is in use, probably by another agent: stop that one (`fuser -v {path}.lock` shows it), or give this \
         one a \
         state directory of its own",
        path = .path.display()
    )]
    Busy {
        /// The journal's path.
        path: PathBuf,
    },
    /// The file system has no room for what the journal reserves.
    #[error("no space for {path}, which reserves {kib} KiB: free some on its file system and start \
             again", path = .path.display())]
    NoSpace {
        /// The journal's path.
        path: PathBuf,
        /// How many KiB are reserved.
        kib: usize,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing can be written to the file system.
    #[error("{path} is on a read-only file system: see `dmesg` for why, mount it read-write, and start \
             again", path = .path.display())]
    ReadOnly {
        /// The journal's path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system failed.
    #[error("cannot {what} {path}: check the directory, its permissions and the disk (`dmesg`), and start \
             again", path = .path.display())]
    Io {
        /// The path of the file or directory.
        path: PathBuf,
        /// The action that failed.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Records that were acknowledged may be missing.
    #[error(
        "{path} cannot be trusted, and nothing is started without it: keep a copy, find out by hand how far each \
         migration \
         in it had come (the event logs, and the other hosts, tell), move the file away, and start again",
        path = .path.display()
    )]
    Damaged {
        /// The journal's path.
        path: PathBuf,
        /// The damage that was found.
        source: Damage,
    },
    /// A record is whole, but this program does not know its kind.
    #[error("record {number} of {path} was written by another version: start that version", path = .path.display())]
    Foreign {
        /// The journal's path.
        path: PathBuf,
        /// The record's number, counted from 1.
        number: usize,
        /// The decoder's error.
        source: postcard::Error,
    },
}

/// The reason why nothing was made durable. [`AppendError::disk_problem`] returns the kind of problem.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The journal has no room for so many records. Nothing was written; the journal goes on working.
    #[error("{path} has room for {room} more records, not {asked}: finish or cancel migrations that are under \
             way", path = .path.display())]
    Full {
        /// The journal's path.
        path: PathBuf,
        /// How many more records fit.
        room: usize,
        /// How many records were to be written.
        asked: usize,
    },
    /// The record is longer than [`RECORD_BYTES_MAX`], or cannot be encoded. Nothing was written; the journal goes on
    /// working.
    #[error("this record cannot be written to {path}: it has at most {RECORD_BYTES_MAX} bytes", path = .path.display())]
    Record {
        /// The journal's path.
        path: PathBuf,
        /// The encoder's error.
        source: postcard::Error,
    },
    /// The file system has no space.
    #[error("no space to write {path}: free some on its file system", path = .path.display())]
    NoSpace {
        /// The journal's path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file system is read-only.
    #[error("{path} is on a read-only file system: see `dmesg` for why, and mount it \
             read-write", path = .path.display())]
    ReadOnly {
        /// The journal's path.
        path: PathBuf,
        /// What the system said; `None` if only the mount says that the file system is read-only.
        source: Option<io::Error>,
    },
    /// The system failed.
    #[error("cannot write {path}: check the disk (`dmesg`)", path = .path.display())]
    Io {
        /// The journal's path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// An earlier write failed, so the file's content is not known. Nothing is written until the journal is opened
    /// again.
    #[error("an earlier write to {path} failed ({}): mend that, and restart the agent; guests go on \
             running", .fault.what(), path = .path.display())]
    Poisoned {
        /// The journal's path.
        path: PathBuf,
        /// The kind of the earlier failure.
        fault: DiskProblem,
    },
}

impl AppendError {
    /// Returns the kind of disk problem; for a poisoned journal, the kind that poisoned it.
    pub fn disk_problem(&self) -> DiskProblem {
        match self {
            AppendError::Full { .. } | AppendError::NoSpace { .. } => DiskProblem::Full,
            AppendError::Record { .. } => DiskProblem::Record,
            AppendError::ReadOnly { .. } => DiskProblem::ReadOnly,
            AppendError::Io { .. } => DiskProblem::Io,
            AppendError::Poisoned { fault, .. } => *fault,
        }
    }

    fn of(path: &Path, source: io::Error) -> AppendError {
        let path = path.to_owned();
        match DiskProblem::of(&source) {
            DiskProblem::Full => AppendError::NoSpace { path, source },
            DiskProblem::ReadOnly => AppendError::ReadOnly { path, source: Some(source) },
            _ => AppendError::Io { path, source },
        }
    }
}

/// An append-only file of records of one type, written with postcard.
///
/// `append` returns when the record is on the disk. An append costs one write in place: the space is allocated and
/// zeroed when the file is made, so neither a full disk nor the file system's own journal comes between. (On ZFS and
/// bcachefs every write allocates, and the reservation is no promise. On btrfs the file is made to be written in
/// place.)
///
/// A record whose `append` returned an error or never returned may be there when the file is opened again, or not. An
/// acknowledged record always is.
///
/// After a write that failed, the journal is *poisoned*: every later write fails, too. Nobody knows what the disk
/// holds, and a second sync would report success for what the first sync lost. Drop the journal and open it again:
/// opening reads from the disk what is really there.
///
/// One program at a time has a journal open; `PATH.lock` is the file that the program locks. `PATH.new` is a file that
/// is being written to take the journal's place.
#[derive(Debug)]
pub struct Journal<R> {
    path: PathBuf,
    limits: JournalLimits,
    files: Arc<dyn FileSystem>,
    /// The open file. Every write to it is durable when the write returns.
    file: Box<dyn OpenFile>,
    /// The sequence number of the record in the first slot.
    first: u64,
    slots: usize,
    used: usize,
    /// The memory in which a record is put together; allocated once.
    slot: Box<JournalSlot>,
    poisoned: Option<DiskProblem>,
    _lock: Lock,
    _record: PhantomData<fn(R)>,
}

impl<R: Serialize + DeserializeOwned> Journal<R> {
    /// Opens the journal at `path`, or makes an empty journal if there is none, and returns the journal's records. The
    /// directory must be there.
    ///
    /// A journal that is there already needs no space on the file system, but the file system must be writable.
    pub fn open(path: &Path, limits: JournalLimits) -> Result<(Journal<R>, Vec<R>), OpenError> {
        Journal::open_on(Arc::new(Kernel), path, limits)
    }

    /// Opens as [`Self::open`] does; all but the lock is on `files`.
    pub(crate) fn open_on(
        files: Arc<dyn FileSystem>,
        path: &Path,
        limits: JournalLimits,
    ) -> Result<(Journal<R>, Vec<R>), OpenError> {
        let failed = |what| {
            move |source: io::Error| {
                let path = path.to_owned();
                match DiskProblem::of(&source) {
                    DiskProblem::Full => {
                        OpenError::NoSpace { path, kib: (1 + limits.slots()) * SLOT_BYTES / 1024, source }
                    }
                    DiskProblem::ReadOnly => OpenError::ReadOnly { path, source },
                    _ => OpenError::Io { path, what, source },
                }
            }
        };
        let lock = Lock::take(&beside(path, ".lock")).map_err(|error| match error {
            TryLockError::WouldBlock => OpenError::Busy { path: path.to_owned() },
            TryLockError::Error(source) => failed("lock")(source),
        })?;
        match files.remove(&beside(path, ".new")) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(failed("remove what is left beside")(error));
            }
            _ => {}
        }

        let bytes = match read(&*files, path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let bytes = image::encode(1, limits.slots(), &[[]; 0]);
                write_beside(&*files, path, &bytes)
                    .and_then(|()| put_in_place(&*files, path))
                    .map_err(failed("make"))?;
                bytes
            }
            Err(error) => return Err(failed("read")(error)),
        };
        let image = image::decode(&bytes).map_err(|source| OpenError::Damaged { path: path.to_owned(), source })?;
        let mut records = Vec::with_capacity(image.payloads.len());
        for (index, payload) in image.payloads.iter().enumerate() {
            let foreign = |source| OpenError::Foreign { path: path.to_owned(), number: index + 1, source };
            match postcard::take_from_bytes(payload).map_err(foreign)? {
                (record, []) => records.push(record),
                _ => return Err(foreign(postcard::Error::SerdeDeCustom)),
            }
        }

        // Somebody may have copied the file without its zeros.
        reserve(&*files, path, bytes.len(), 1 + records.len()).map_err(failed("reserve the space of"))?;
        let file = files.open(path, Access::Durable).map_err(failed("open"))?;
        let journal = Journal {
            path: path.to_owned(),
            limits,
            files,
            file,
            first: image.first,
            slots: image.slots,
            used: records.len(),
            slot: Box::new(JournalSlot::ZERO),
            poisoned: None,
            _lock: lock,
            _record: PhantomData,
        };
        // A record that was never acknowledged must not follow what is appended now.
        if image.torn {
            tracing::info!(path = %path.display(), "a record that was never finished is cut off");
        }
        journal.probe().map_err(failed("write"))?;
        sync_directory(&*journal.files, path).map_err(failed("sync the directory of"))?;
        Ok((journal, records))
    }

    /// Adds a record, and returns when the record is durable. A record takes one of [`Journal::free_slots`].
    pub fn append(&mut self, record: &R) -> Result<(), AppendError> {
        self.sound()?;
        if self.free_slots() == 0 {
            return Err(AppendError::Full { path: self.path.clone(), room: 0, asked: 1 });
        }
        self.slot
            .fill(self.first + self.used as u64, |room| postcard::to_slice(record, room).map(|bytes| bytes.len()))
            .map_err(|source| AppendError::Record { path: self.path.clone(), source })?;
        match self.file.write_in_place(&self.slot.0, self.next_offset()) {
            Ok(()) => self.used += 1,
            Err(source) => return Err(self.poison(source)),
        }
        Ok(())
    }

    /// Replaces all records by `records`: the records that are still needed. This makes room again. A crash leaves the
    /// old records or the new records.
    ///
    /// The rewrite needs the journal's space a second time. If the rewrite fails for want of space, or before the new
    /// file took the old file's place, the journal is unchanged and goes on working.
    pub fn rewrite(&mut self, records: &[R]) -> Result<(), AppendError> {
        self.sound()?;
        let slots = self.limits.slots();
        if records.len() > slots {
            return Err(AppendError::Full { path: self.path.clone(), room: slots, asked: records.len() });
        }
        let mut payloads = Vec::with_capacity(records.len());
        for record in records {
            let payload = postcard::to_stdvec(record)
                .and_then(|bytes| {
                    (bytes.len() <= RECORD_BYTES_MAX).then_some(bytes).ok_or(postcard::Error::SerializeBufferFull)
                })
                .map_err(|source| AppendError::Record { path: self.path.clone(), source })?;
            payloads.push(payload);
        }
        let first = self.first + self.used as u64;
        let new = beside(&self.path, ".new");
        let file = write_beside(&*self.files, &self.path, &image::encode(first, slots, &payloads))
            .and_then(|()| self.files.open(&new, Access::Durable));
        let file = file.map_err(|source| {
            let _ = self.files.remove(&new);
            AppendError::of(&self.path, source)
        })?;
        // From here on a crash may leave either file, so the journal cannot go on with either before this has
        // succeeded.
        put_in_place(&*self.files, &self.path).map_err(|source| self.poison(source))?;
        (self.file, self.first, self.slots, self.used) = (file, first, slots, payloads.len());
        Ok(())
    }

    /// Returns how many more records fit.
    pub fn free_slots(&self) -> usize {
        self.slots - self.used
    }

    /// Returns how many records are there.
    pub fn records(&self) -> usize {
        self.used
    }

    /// Checks that `records` more records will surely find room, on a disk that can be written now. The check makes a
    /// durable write where the next record will go. Call it before something is begun, not while a guest is stopped.
    pub fn ready(&self, records: usize) -> Result<(), AppendError> {
        self.sound()?;
        if self.file.is_read_only().map_err(|source| AppendError::of(&self.path, source))? {
            return Err(AppendError::ReadOnly { path: self.path.clone(), source: None });
        }
        if self.free_slots() < records {
            return Err(AppendError::Full { path: self.path.clone(), room: self.free_slots(), asked: records });
        }
        self.probe().map_err(|source| AppendError::of(&self.path, source))
    }

    /// Writes zeros where the next record will go. A failure harms nothing.
    fn probe(&self) -> io::Result<()> {
        if self.free_slots() == 0 {
            return Ok(());
        }
        self.file.write_in_place(&JournalSlot::ZERO.0, self.next_offset())
    }

    fn next_offset(&self) -> u64 {
        ((1 + self.used) * SLOT_BYTES) as u64
    }

    fn sound(&self) -> Result<(), AppendError> {
        match self.poisoned {
            Some(fault) => Err(AppendError::Poisoned { path: self.path.clone(), fault }),
            None => Ok(()),
        }
    }

    fn poison(&mut self, source: io::Error) -> AppendError {
        self.poisoned = Some(DiskProblem::of(&source));
        AppendError::of(&self.path, source)
    }
}

/// A file that this process has locked.
#[derive(Debug)]
struct Lock(File);

impl Lock {
    fn take(path: &Path) -> Result<Lock, TryLockError> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = file.map_err(TryLockError::Error)?;
        file.try_lock()?;
        Ok(Lock(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that another thread has forked, and that has not become another
        // program yet, has the file open, too.
        let _ = self.0.unlock();
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Reads what the *disk* holds. The cache may hold what was never synced: a program that was killed between write and
/// sync leaves it there, and a failed sync leaves it there marked as written. So the file is synced, forgotten, and
/// read again.
fn read(files: &dyn FileSystem, path: &Path) -> io::Result<Vec<u8>> {
    let file = files.open(path, Access::Read)?;
    if !file.shape()?.is_file {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    file.sync_all()?;
    file.forget_cache()?;
    // One byte more than fits, so that a file that is too long is found to be so.
    file.read(FILE_BYTES_MAX + 1)
}

/// Writes a new file of `bytes` beside `path`. All of the file is on the disk when the call returns.
fn write_beside(files: &dyn FileSystem, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = beside(path, ".new");
    let written = (|| {
        let file = files.open(&new, Access::Create)?;
        file.reserve(bytes.len())?;
        file.write_in_place(bytes, 0)?;
        file.sync_all()
    })();
    if written.is_err() {
        let _ = files.remove(&new);
    }
    written
}

/// Gives the file beside `path` the name `path`, durably.
fn put_in_place(files: &dyn FileSystem, path: &Path) -> io::Result<()> {
    files.rename(&beside(path, ".new"), path)?;
    sync_directory(files, path)
}

fn sync_directory(files: &dyn FileSystem, path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    files.sync_directory(directory)
}

/// Writes zeros from slot `from` to the end if the file has holes.
fn reserve(files: &dyn FileSystem, path: &Path, bytes: usize, from: usize) -> io::Result<()> {
    let file = files.open(path, Access::Write)?;
    if file.shape()?.allocated_bytes >= bytes as u64 {
        return Ok(());
    }
    let from = from * SLOT_BYTES;
    file.write_in_place(&vec![0; bytes - from], from as u64)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    enum Record {
        Note(String),
        Bytes(Vec<u8>),
    }

    fn note(text: &str) -> Record {
        Record::Note(text.into())
    }

    const FEW: JournalLimits = JournalLimits { records: 6 };

    fn open(path: &Path) -> (Journal<Record>, Vec<Record>) {
        Journal::open(path, FEW).unwrap()
    }

    fn chain(error: &dyn std::error::Error) -> String {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            text += &format!(": {error}");
            source = error.source();
        }
        text
    }

    #[test]
    fn records_come_back_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, records) = open(&path);
        assert_eq!(records, []);
        journal.append(&note("one")).unwrap();
        journal.append(&note("two")).unwrap();
        assert_eq!((journal.records(), journal.free_slots()), (2, 4));
        drop(journal);
        let (mut journal, records) = open(&path);
        assert_eq!(records, [note("one"), note("two")]);
        journal.append(&note("three")).unwrap();
        drop(journal);
        assert_eq!(open(&path).1, [note("one"), note("two"), note("three")]);
    }

    #[test]
    fn the_file_never_grows_and_is_allocated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = open(&path);
        let size = |path| {
            let metadata = fs::metadata(path).unwrap();
            (metadata.len(), metadata.blocks() * 512 >= metadata.len())
        };
        assert_eq!(size(&path), (7 * 4096, true));
        for _ in 0..6 {
            journal.append(&Record::Bytes(vec![1; 4000])).unwrap();
        }
        assert_eq!(size(&path), (7 * 4096, true));
        drop(journal);

        // A copy without its zeros gets them again.
        let (copy, mut bytes) = (dir.path().join("copy"), fs::read(&path).unwrap());
        bytes[3 * 4096..].fill(0);
        fs::write(&copy, &bytes[..3 * 4096]).unwrap();
        OpenOptions::new().write(true).open(&copy).unwrap().set_len(7 * 4096).unwrap();
        assert!(!size(&copy).1);
        let (journal, records) = open(&copy);
        assert_eq!((records.len(), journal.free_slots()), (2, 4));
        assert!(size(&copy).1);
    }

    #[test]
    fn a_full_journal_goes_on_after_a_rewrite() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = open(&path);
        for n in 0..6 {
            journal.ready(6 - n).unwrap();
            journal.append(&note(&n.to_string())).unwrap();
        }
        journal.ready(0).unwrap();
        for error in [journal.append(&note("more")).unwrap_err(), journal.ready(1).unwrap_err()] {
            assert!(matches!(error, AppendError::Full { room: 0, asked: 1, .. }), "{error}");
            assert_eq!(error.disk_problem(), DiskProblem::Full);
        }
        let seven = vec![note("x"); 7];
        assert_eq!(journal.rewrite(&seven).unwrap_err().disk_problem(), DiskProblem::Full);
        journal.rewrite(&[note("4"), note("5")]).unwrap();
        assert_eq!((journal.records(), journal.free_slots()), (2, 4));
        journal.append(&note("6")).unwrap();
        drop(journal);
        let (journal, records) = open(&path);
        assert_eq!(records, [note("4"), note("5"), note("6")]);
        assert_eq!(journal.first, 7);
        assert!(!beside(&path, ".new").exists());

        // Another limit holds from the next rewrite on.
        drop(journal);
        let (mut journal, records) = Journal::<Record>::open(&path, JournalLimits { records: 20 }).unwrap();
        assert_eq!(journal.free_slots(), 3);
        journal.rewrite(&records).unwrap();
        assert_eq!(journal.free_slots(), 17);
    }

    #[test]
    fn a_record_too_long_is_refused_and_harms_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = open(&path);
        // The kind takes one byte, the length two.
        let most = Record::Bytes(vec![1; RECORD_BYTES_MAX - 3]);
        let more = Record::Bytes(vec![1; RECORD_BYTES_MAX - 2]);
        assert_eq!(journal.append(&more).unwrap_err().disk_problem(), DiskProblem::Record);
        assert_eq!(journal.rewrite(std::slice::from_ref(&more)).unwrap_err().disk_problem(), DiskProblem::Record);
        journal.append(&most).unwrap();
        journal.append(&note("short")).unwrap();
        drop(journal);
        assert_eq!(open(&path).1, [most, note("short")]);
    }

    #[test]
    fn one_program_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = open(&path);
        for _ in 0..2 {
            let error = Journal::<Record>::open(&path, FEW).unwrap_err();
            assert!(matches!(error, OpenError::Busy { .. }));
            assert!(error.to_string().contains("fuser -v "), "{error}");
            // The same holds after the file was replaced.
            journal.rewrite(&[]).unwrap();
        }
        drop(journal);
        open(&path);
    }

    #[test]
    fn a_child_being_born_does_not_keep_it_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, _) = open(&path);
        let of_the_child = journal._lock.0.try_clone().unwrap();
        drop(journal);
        open(&path);
        drop(of_the_child);
    }

    #[test]
    fn what_is_no_journal_of_ours_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let refused = || chain(&Journal::<Record>::open(&path, FEW).unwrap_err());
        fs::write(&path, "").unwrap();
        assert!(refused().contains("it is not a journal"));
        fs::write(&path, "some text").unwrap();
        let said = refused();
        assert!(said.contains("keep a copy") && said.contains("move the file away"), "{said}");
        assert_eq!(fs::read(&path).unwrap(), b"some text");
        fs::remove_file(&path).unwrap();

        let (mut journal, _) = open(&path);
        journal.append(&note("one")).unwrap();
        journal.append(&note("two")).unwrap();
        drop(journal);
        let good = fs::read(&path).unwrap();
        // The record is whole, but of another type.
        let error = Journal::<u64>::open(&path, FEW).unwrap_err();
        assert!(matches!(error, OpenError::Foreign { number: 1, .. }), "{}", chain(&error));
        let mut bad = good.clone();
        bad[5000] ^= 1;
        fs::write(&path, &bad).unwrap();
        let said = refused();
        assert!(said.contains("record 1 is damaged, and others follow it"), "{said}");
        assert_eq!(fs::read(&path).unwrap(), bad);
        fs::write(&path, &good[..2 * 4096 + 100]).unwrap();
        assert!(refused().contains("it has 8292 bytes and was made with 28672"), "{}", refused());
        fs::write(&path, &good).unwrap();
        assert_eq!(open(&path).1.len(), 2);

        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(refused().contains("it is not a regular file"));
        let nowhere = dir.path().join("nowhere/journal");
        let error = Journal::<Record>::open(&nowhere, FEW).unwrap_err();
        assert!(matches!(error, OpenError::Io { .. }), "{}", chain(&error));
    }

    #[test]
    fn what_a_rewrite_left_half_done_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = open(&path);
        journal.append(&note("one")).unwrap();
        drop(journal);
        fs::write(beside(&path, ".new"), "half").unwrap();
        assert_eq!(open(&path).1, [note("one")]);
        assert!(!beside(&path, ".new").exists());
    }

    /// Makes a write fail without root: the journal's descriptor is replaced by a descriptor that cannot be written.
    #[test]
    fn after_a_failed_write_nothing_is_written_until_it_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = open(&path);
        journal.append(&note("one")).unwrap();
        let writable = |path: &Path| OpenOptions::new().write(true).open(path).unwrap();
        for (broken, fault) in
            [(writable("/dev/full".as_ref()), DiskProblem::Full), (File::open(&path).unwrap(), DiskProblem::Io)]
        {
            let good = std::mem::replace(&mut journal.file, Box::new(broken));
            // The check harms nothing.
            assert_eq!(journal.ready(1).unwrap_err().disk_problem(), fault);
            let error = journal.append(&note("two")).unwrap_err();
            assert!(
                !matches!(error, AppendError::Poisoned { .. }) && error.disk_problem() == fault,
                "{}",
                chain(&error)
            );
            journal.file = good;
            for error in [
                journal.append(&note("three")).unwrap_err(),
                journal.rewrite(&[]).unwrap_err(),
                journal.ready(1).unwrap_err(),
            ] {
                assert!(matches!(error, AppendError::Poisoned { .. }) && error.disk_problem() == fault, "{error}");
            }
            drop(journal);
            let (again, records) = open(&path);
            assert_eq!(records, [note("one")]);
            journal = again;
        }
        journal.append(&note("three")).unwrap();
    }

    #[derive(Debug, Clone)]
    enum Step {
        Append(Vec<u8>),
        Rewrite(u8),
        Reopen,
        /// The agent dies in an append. The numbers say which of the slot's sectors were written, and what garbage a
        /// bad disk put there.
        Crash(Vec<u8>, u8, Option<(usize, Vec<u8>)>),
        /// The agent dies in a rewrite, after so many bytes of the new file were written.
        CrashInRewrite(usize),
        /// Something changes bytes of the file.
        Damage(prop::sample::Index, Vec<u8>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let payload = || prop_oneof![4 => vec(any::<u8>(), 0..50), 1 => vec(any::<u8>(), 3000..4070)];
        let noise = proptest::option::of((0..4096usize, vec(any::<u8>(), 1..4096)));
        prop_oneof![
            6 => payload().prop_map(Step::Append),
            1 => any::<u8>().prop_map(Step::Rewrite),
            1 => Just(Step::Reopen),
            3 => (payload(), prop_oneof![any::<u8>(), Just(255)], noise).prop_map(|(p, s, n)| Step::Crash(p, s, n)),
            1 => (0..8 * 4096usize).prop_map(Step::CrashInRewrite),
            1 => (any::<prop::sample::Index>(), vec(any::<u8>(), 1..50)).prop_map(|(at, new)| Step::Damage(at, new)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        /// Compares the journal with a list: what was acknowledged is there, in order, and nothing that was not
        /// appended.
        #[test]
        fn it_is_a_list_that_survives(steps in vec(step(), 1..40)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("journal");
            let (mut journal, records) = open(&path);
            let mut model = records;
            for step in steps {
                match step {
                    Step::Append(payload) => {
                        let record = Record::Bytes(payload);
                        let room = journal.free_slots();
                        prop_assert_eq!(journal.ready(1).is_ok(), room > 0);
                        match journal.append(&record) {
                            Ok(()) => model.push(record),
                            Err(error) => {
                                prop_assert!(room == 0 && error.disk_problem() == DiskProblem::Full, "{error}");
                            }
                        }
                    }
                    Step::Rewrite(keep) => {
                        let mut bits = (0..8).map(|bit| keep & 1 << bit != 0);
                        model.retain(|_| bits.next().unwrap_or(true));
                        journal.rewrite(&model).unwrap();
                    }
                    Step::Reopen => {
                        drop(journal);
                        let (again, records) = open(&path);
                        prop_assert_eq!(&records, &model);
                        journal = again;
                    }
                    Step::Crash(payload, sectors, noise) => {
                        if journal.free_slots() == 0 {
                            continue;
                        }
                        let (record, at) = (Record::Bytes(payload), journal.next_offset());
                        let before = fs::read(&path).unwrap();
                        journal.append(&record).unwrap();
                        drop(journal);
                        let mut slot = before[at as usize..][..4096].to_vec();
                        let new = fs::read(&path).unwrap()[at as usize..][..4096].to_vec();
                        let written = (0..8).filter(|sector| sectors & 1 << sector != 0);
                        for sector in written.map(|s| s * 512..(s + 1) * 512) {
                            slot[sector.clone()].copy_from_slice(&new[sector]);
                        }
                        if let Some((offset, noise)) = noise {
                            slot.iter_mut().skip(offset).zip(noise).for_each(|(byte, new)| *byte = new);
                        }
                        let file = OpenOptions::new().write(true).open(&path).unwrap();
                        file.write_all_at(&slot, at).unwrap();
                        let (again, records) = open(&path);
                        if slot == new {
                            model.push(record);
                        }
                        prop_assert_eq!(&records, &model);
                        // The torn record is cut off for good.
                        let rest = &fs::read(&path).unwrap()[again.next_offset() as usize..];
                        prop_assert!(rest.iter().all(|byte| *byte == 0));
                        journal = again;
                    }
                    Step::CrashInRewrite(written) => {
                        drop(journal);
                        let file = image::encode(99, 6, &[[7; 9]]);
                        fs::write(beside(&path, ".new"), &file[..written.min(file.len())]).unwrap();
                        let (again, records) = open(&path);
                        prop_assert_eq!(&records, &model);
                        journal = again;
                    }
                    Step::Damage(at, new) => {
                        drop(journal);
                        let good = fs::read(&path).unwrap();
                        let mut bad = good.clone();
                        let at = at.index(bad.len());
                        bad[at..].iter_mut().zip(&new).for_each(|(byte, new)| *byte = *new);
                        fs::write(&path, &bad).unwrap();
                        match Journal::<Record>::open(&path, FEW) {
                            Err(OpenError::Damaged { .. }) => prop_assert_eq!(fs::read(&path).unwrap(), bad),
                            Err(error) => prop_assert!(false, "{}", error),
                            Ok((_, records)) if records.len() == model.len() => prop_assert_eq!(&records, &model),
                            // The damage looks like an append that was never finished.
                            Ok((_, records)) => {
                                let last = model.len() - 1;
                                prop_assert_eq!(&records, &model[..last]);
                                let in_last = (1 + last..2 + last).contains(&(at / 4096));
                                prop_assert!(in_last || at + new.len() > (1 + last) * 4096);
                            }
                        }
                        fs::write(&path, &good).unwrap();
                        let (again, records) = open(&path);
                        prop_assert_eq!(&records, &model);
                        journal = again;
                    }
                }
            }
            drop(journal);
            prop_assert_eq!(&open(&path).1, &model);
        }

        #[test]
        fn any_file_is_survived(bytes in vec(any::<u8>(), 0..200), record in vec(any::<u8>(), 0..100)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("journal");
            fs::write(&path, &bytes).unwrap();
            let refused = matches!(Journal::<Record>::open(&path, FEW), Err(OpenError::Damaged { .. }));
            prop_assert!(refused);
            // A whole record of any bytes is one of this program's, or of another version's.
            fs::write(&path, image::encode(1, 2, &[&record])).unwrap();
            match Journal::<Record>::open(&path, FEW) {
                Ok((_, records)) => prop_assert_eq!(records.len(), 1),
                Err(error) => prop_assert!(matches!(error, OpenError::Foreign { number: 1, .. }), "{}", error),
            }
        }
    }
}
