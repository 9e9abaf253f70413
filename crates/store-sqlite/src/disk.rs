//! The file of SQLite: versions of keys, leases, and where the store stands.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};
use skein_store::{Cause, Changes, Entry, Key, Lease, LeaseId, Loaded, Revision, StoreError, StoredVersion, Value};

use crate::lock::{LockError, StoreLock};

/// The format of the tables, in the file's `user_version`.
const FORMAT: i64 = 1;

/// Marks a file as a controller's store: "Skei".
const APPLICATION: i64 = 0x536b_6569;

/// How long a write waits for another program that reads or writes the file, such as an operator's `sqlite3`.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

const TABLES: &str = "
CREATE TABLE store (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    revision INTEGER NOT NULL,
    compacted INTEGER NOT NULL,
    last_lease INTEGER NOT NULL
) STRICT;
CREATE TABLE version (
    key TEXT NOT NULL,
    modified INTEGER NOT NULL,
    created INTEGER, -- NULL: the key was deleted
    version INTEGER,
    lease INTEGER,
    value BLOB,
    PRIMARY KEY (key, modified)
) STRICT;
CREATE TABLE lease (id INTEGER PRIMARY KEY, ttl_ms INTEGER NOT NULL) STRICT;
INSERT INTO store VALUES (1, 1, 1, 0);
";

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{path} is in use by {holder}: stop that first")]
    Held {
        /// The store's file.
        path: PathBuf,
        /// Which process, in words.
        holder: String,
    },
    /// The file, or the lock beside it, cannot be made or opened.
    #[error("cannot open {path}: check that its directory is there, and who may write to it")]
    File {
        /// The store's file.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: std::io::Error,
    },
    /// The file is no controller's store.
    #[error("{path} is no store of a controller: name another file")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// There is no database, and what another had not taken over yet: SQLite would delete that.
    #[error(
        "{path} is empty, and {wal} has what a controller wrote last: move that beside the database that it belongs \
         to, with all files that begin with the database's name, and try again"
    )]
    LeftLog {
        /// The store's file.
        path: PathBuf,
        /// The file beside it.
        wal: PathBuf,
    },
    /// The store was written by a later version of Skein.
    #[error("{path} has format {found}, and {FORMAT} is known: use the version that wrote it, or later")]
    Newer {
        /// The store's file.
        path: PathBuf,
        /// Its format.
        found: i64,
    },
    /// SQLite cannot read or write the file.
    #[error("cannot read or write {path}")]
    Sqlite {
        /// The store's file.
        path: PathBuf,
        /// What SQLite says.
        #[source]
        source: rusqlite::Error,
    },
    /// What is in the file is damaged.
    #[error("{path} is damaged: keep it, and restore a backup into a new file")]
    Damaged {
        /// The store's file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: DiskError,
    },
    /// The writer's thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

/// What is wrong with what is stored, or with the file.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// SQLite failed.
    #[error("SQLite: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// SQLite's own check of the file finds mistakes.
    #[error("SQLite's check: {first}")]
    Integrity {
        /// The first of them.
        first: String,
    },
    /// A row is none that a store writes.
    #[error("a row of {key:?} at revision {modified} is none that was written")]
    Row {
        /// Its key.
        key: String,
        /// Its revision.
        modified: i64,
    },
    /// The store's revision is not the one that this process wrote last.
    #[error("another program changed the file")]
    Interfered,
    /// An earlier write failed, and whether it is on the disk is not known.
    #[error("an earlier write failed; the controller has to be started again")]
    Ended,
    /// The writer did not come to it in time.
    #[error("the disk is too slow")]
    Slow,
}

/// A failed write, and whether the store can go on.
pub(crate) struct WriteError {
    pub error: StoreError,
    /// Whether it is unknown what is on the disk.
    pub ends: bool,
}

pub(crate) struct Disk {
    connection: Connection,
    _lock: Option<StoreLock>,
}

impl Disk {
    /// Opens a file, or makes it, with what it has.
    pub fn open(path: &Path) -> Result<(Disk, Loaded), OpenError> {
        let at = || path.to_path_buf();
        let lock = StoreLock::take(path).map_err(|error| match error {
            LockError::Held(holder) => OpenError::Held { path: at(), holder },
            LockError::Failed(source) => OpenError::File { path: at(), source },
        })?;
        let length = |path: &Path| std::fs::metadata(path).map_or(0, |of| of.len());
        let mut wal = path.as_os_str().to_owned();
        wal.push("-wal");
        let wal = PathBuf::from(wal);
        if length(path) == 0 && length(&wal) > 0 {
            return Err(OpenError::LeftLog { path: at(), wal });
        }
        // SQLite gives its other files the mode of this one.
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        drop(file.map_err(|source| OpenError::File { path: at(), source })?);
        let connection = Connection::open(path).map_err(|source| OpenError::Sqlite { path: at(), source })?;
        Disk::with(connection, Some(lock), path)
    }

    /// A store that ends with the process.
    pub fn in_memory() -> Result<(Disk, Loaded), OpenError> {
        let path = Path::new(":memory:");
        let connection =
            Connection::open_in_memory().map_err(|source| OpenError::Sqlite { path: path.into(), source })?;
        Disk::with(connection, None, path)
    }

    fn with(connection: Connection, lock: Option<StoreLock>, path: &Path) -> Result<(Disk, Loaded), OpenError> {
        let mut disk = Disk { connection, _lock: lock };
        let found = disk.prepare().map_err(|source| match source.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => OpenError::Foreign { path: path.into() },
            Some(ErrorCode::DatabaseCorrupt) => OpenError::Damaged { path: path.into(), source: source.into() },
            _ => OpenError::Sqlite { path: path.into(), source },
        })?;
        match found {
            Found::Store => {}
            Found::Foreign => return Err(OpenError::Foreign { path: path.into() }),
            Found::Newer(found) => return Err(OpenError::Newer { path: path.into(), found }),
        }
        let loaded = disk.load().map_err(|source| OpenError::Damaged { path: path.into(), source })?;
        Ok((disk, loaded))
    }

    /// Makes the tables of an empty file, or sees that they are a store's.
    fn prepare(&mut self) -> rusqlite::Result<Found> {
        let connection = &mut self.connection;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        let application: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let format: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if tables != 0 && application != APPLICATION {
            return Ok(Found::Foreign);
        }
        if format > FORMAT {
            return Ok(Found::Newer(format));
        }
        // Each commit is synced: with NORMAL, the last ones are lost with the power.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
        connection.pragma_update(None, "trusted_schema", false)?;
        connection.pragma_update(None, "cell_size_check", true)?;
        if tables == 0 {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "application_id", APPLICATION)?;
            transaction.pragma_update(None, "user_version", FORMAT)?;
            transaction.commit()?;
        }
        Ok(Found::Store)
    }

    fn load(&self) -> Result<Loaded, DiskError> {
        let check: String = self.connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        if check != "ok" {
            return Err(DiskError::Integrity { first: check });
        }
        let mut loaded = Loaded::default();
        let store = "SELECT revision, compacted, last_lease FROM store";
        let found: Option<(i64, i64, i64)> =
            self.connection.query_row(store, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
        let none = || DiskError::Integrity { first: "the store's own row is missing or wrong".into() };
        let (revision, compacted, last_lease) = found.ok_or_else(none)?;
        loaded.revision = Revision(u64::try_from(revision).map_err(|_| none())?);
        loaded.compacted = Revision(u64::try_from(compacted).map_err(|_| none())?);
        loaded.last_lease = u64::try_from(last_lease).map_err(|_| none())?;
        let mut leases = self.connection.prepare("SELECT id, ttl_ms FROM lease")?;
        let mut rows = leases.query([])?;
        while let Some(row) = rows.next()? {
            let (id, ttl_ms): (i64, i64) = (row.get(0)?, row.get(1)?);
            let (Ok(id), Ok(ttl_ms)) = (u64::try_from(id), u64::try_from(ttl_ms)) else { return Err(none()) };
            loaded.leases.push(Lease { id: LeaseId(id), ttl: Duration::from_millis(ttl_ms) });
        }
        let mut versions =
            self.connection.prepare("SELECT key, modified, created, version, lease, value FROM version")?;
        let mut rows = versions.query([])?;
        while let Some(row) = rows.next()? {
            let (key, modified): (String, i64) = (row.get(0)?, row.get(1)?);
            let version = Stored { created: row.get(2)?, version: row.get(3)?, lease: row.get(4)?, value: row.get(5)? };
            let read = version.read(&key, modified).filter(|version| version.modified <= loaded.revision);
            loaded.versions.push(read.ok_or(DiskError::Row { key, modified })?);
        }
        Ok(loaded)
    }

    /// Writes what a revision changes. `before` is the store's revision until then.
    pub fn write(&mut self, before: Revision, changes: &Changes) -> Result<(), WriteError> {
        self.transaction(|transaction| {
            let moved = transaction
                .prepare_cached("UPDATE store SET revision = ?1 WHERE revision = ?2")?
                .execute(params![stored(changes.revision.0), stored(before.0)])?;
            if moved != 1 {
                return Err(DiskError::Interfered);
            }
            let mut insert = transaction.prepare_cached("INSERT INTO version VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
            for StoredVersion { key, modified, entry } in &changes.versions {
                insert.execute(params![
                    key.as_str(),
                    stored(modified.0),
                    entry.as_ref().map(|entry| stored(entry.created.0)),
                    entry.as_ref().map(|entry| stored(entry.version)),
                    entry.as_ref().and_then(|entry| entry.lease).map(|lease| stored(lease.0)),
                    entry.as_ref().map(|entry| entry.value.as_bytes()),
                ])?;
            }
            if let Some(lease) = changes.ended {
                transaction.execute("DELETE FROM lease WHERE id = ?1", [stored(lease.0)])?;
            }
            Ok(())
        })
    }

    /// Writes a lease that is granted.
    pub fn write_lease(&mut self, lease: Lease) -> Result<(), WriteError> {
        let ttl_ms = i64::try_from(lease.ttl.as_millis()).unwrap_or(i64::MAX);
        self.transaction(|transaction| {
            transaction.execute("UPDATE store SET last_lease = ?1", [stored(lease.id.0)])?;
            transaction.execute("INSERT INTO lease VALUES (?1, ?2)", [stored(lease.id.0), ttl_ms])?;
            Ok(())
        })
    }

    /// Drops versions that a compaction forgets.
    pub fn compact(&mut self, through: Revision, dropped: &[(Key, Revision)]) -> Result<(), WriteError> {
        self.transaction(|transaction| {
            transaction.execute("UPDATE store SET compacted = ?1", [stored(through.0)])?;
            let mut delete = transaction.prepare_cached("DELETE FROM version WHERE key = ?1 AND modified = ?2")?;
            for (key, modified) in dropped {
                delete.execute(params![key.as_str(), stored(modified.0)])?;
            }
            Ok(())
        })
    }

    /// How commits are written: the journal's mode, and whether each is synced (2: each).
    #[cfg(test)]
    pub fn modes(&self) -> rusqlite::Result<(String, i64)> {
        let journal = self.connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
        Ok((journal, self.connection.pragma_query_value(None, "synchronous", |row| row.get(0))?))
    }

    /// Bounds the file, so that a test has a full disk.
    #[cfg(test)]
    pub fn set_pages_max(&self, pages: i64) -> rusqlite::Result<()> {
        self.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
    }

    fn transaction(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<(), DiskError>) -> Result<(), WriteError> {
        let Err((error, committing)) = self.try_transaction(work) else { return Ok(()) };
        if !self.connection.is_autocommit() {
            // Fails if SQLite has rolled back by itself.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        let rolled_back = self.connection.is_autocommit();
        Err(write_error(error, committing, rolled_back))
    }

    /// Fails with whether the transaction was being committed.
    fn try_transaction(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> Result<(), DiskError>,
    ) -> Result<(), (DiskError, bool)> {
        let begun = self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = begun.map_err(|error| (error.into(), false))?;
        // A transaction that is dropped is rolled back.
        work(&transaction).map_err(|error| (error, false))?;
        transaction.commit().map_err(|error| (error.into(), true))
    }
}

enum Found {
    Store,
    Foreign,
    Newer(i64),
}

/// Says what an error leaves. A full disk fails a write of the log, before its last frame is complete, so that the
/// commit is not there, now or after a crash; a lock is waited for before anything is written. Of other errors in a
/// commit, such as a sync that failed, nobody knows.
fn write_error(error: DiskError, committing: bool, rolled_back: bool) -> WriteError {
    let code = if let DiskError::Sqlite(error) = &error { error.sqlite_error_code() } else { None };
    let nothing_written =
        rolled_back && (!committing || matches!(code, Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy)));
    let corrupt = matches!(error, DiskError::Interfered)
        || matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase));
    let cause = Cause::new(error);
    match (nothing_written, corrupt) {
        (true, false) => WriteError { error: StoreError::Unavailable(cause), ends: false },
        (true, true) => WriteError { error: StoreError::Corrupt(cause), ends: true },
        (false, _) => WriteError { error: StoreError::Unknown(cause), ends: true },
    }
}

struct Stored {
    created: Option<i64>,
    version: Option<i64>,
    lease: Option<i64>,
    value: Option<Vec<u8>>,
}

impl Stored {
    /// Makes a version of a row. `None`: the row is none that was written.
    fn read(self, key: &str, modified: i64) -> Option<StoredVersion> {
        let number = |number: i64| u64::try_from(number).ok();
        let key = Key::new(key).ok()?;
        let modified = Revision(number(modified)?);
        let Some(created) = self.created else { return Some(StoredVersion::deleted(&key, modified)) };
        let lease = match self.lease {
            Some(lease) => Some(LeaseId(number(lease)?)),
            None => None,
        };
        let value = Value::new(self.value?).ok()?;
        let (created, version) = (Revision(number(created)?), number(self.version?)?);
        Some(StoredVersion::put(Entry { key, value, created, modified, version, lease }))
    }
}

/// A number as SQLite has it. Revisions and leases count from 1 on.
fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
