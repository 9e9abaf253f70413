//! The store as callers have it.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use skein_store::{
    Lease, LeaseId, Loaded, MemoryStore, MemoryWatch, Outcome, Prefix, Range, Revision, Snapshot, Store, StoreError,
    Transaction, Watch, WatchBatch, WatchError,
};

use crate::disk::{Disk, OpenError};
use crate::shared::{Clock, Shared, ended};
use crate::writer::{Done, JOBS_MAX, Job, Task, ask, run};

/// A store in a file of SQLite.
pub struct SqliteStore {
    shared: Arc<Shared>,
    jobs: Option<SyncSender<Job>>,
    writer: Option<JoinHandle<()>>,
}

impl SqliteStore {
    /// Opens the store in a file, or makes one. The file and those beside it (`-wal`, `-shm`, `.lock`) are for their
    /// owner only.
    ///
    /// # Errors
    /// Another process has it, it cannot be opened, is none, is newer, or damaged.
    pub fn open(path: &Path) -> Result<SqliteStore, OpenError> {
        SqliteStore::open_with(path, boot_clock())
    }

    /// Opens a store with another clock.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: &Path, clock: Clock) -> Result<SqliteStore, OpenError> {
        let (disk, loaded) = Disk::open(path)?;
        SqliteStore::start(disk, loaded, clock)
    }

    /// A store that ends with the process, for tests of those who need one.
    ///
    /// # Errors
    /// SQLite has no memory, or no thread can be started.
    pub fn in_memory(clock: Clock) -> Result<SqliteStore, OpenError> {
        let (disk, loaded) = Disk::in_memory()?;
        SqliteStore::start(disk, loaded, clock)
    }

    fn start(disk: Disk, loaded: Loaded, clock: Clock) -> Result<SqliteStore, OpenError> {
        let memory = MemoryStore::load(loaded, clock());
        let shared = Arc::new(Shared::new(memory, clock));
        let (jobs, waiting) = sync_channel(JOBS_MAX);
        let writes = shared.clone();
        let writer = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || run(disk, &writes, &waiting))
            .map_err(OpenError::Thread)?;
        Ok(SqliteStore { shared, jobs: Some(jobs), writer: Some(writer) })
    }

    fn ask(&self, task: Task, within: Duration) -> Result<Done, StoreError> {
        match &self.jobs {
            Some(jobs) => ask(jobs, task, within),
            None => Err(ended()),
        }
    }
}

impl Drop for SqliteStore {
    /// Waits until what was begun is written, so that the file can be opened again.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has said so.
            let _ = writer.join();
        }
    }
}

impl Store for SqliteStore {
    fn read(&self, range: &Range, _within: Duration) -> Result<Snapshot, StoreError> {
        self.shared.check()?;
        self.shared.memory.read().read(range)
    }

    fn commit(&self, transaction: &Transaction, within: Duration) -> Result<Outcome, StoreError> {
        match self.ask(Task::Commit(transaction.clone()), within)? {
            Done::Commit(outcome) => Ok(outcome),
            _ => Err(ended()),
        }
    }

    fn watch(&self, prefix: &Prefix, after: Revision, _within: Duration) -> Result<Box<dyn Watch>, WatchError> {
        self.shared.check()?;
        let watch = self.shared.memory.read().watch(prefix, after)?;
        Ok(Box::new(SqliteWatch { shared: self.shared.clone(), watch }))
    }

    fn grant(&self, ttl: Duration, within: Duration) -> Result<Lease, StoreError> {
        match self.ask(Task::Grant(ttl), within)? {
            Done::Grant(lease) => Ok(lease),
            _ => Err(ended()),
        }
    }

    fn keep_alive(&self, lease: LeaseId, within: Duration) -> Result<Duration, StoreError> {
        match self.ask(Task::KeepAlive(lease), within)? {
            Done::KeepAlive(ttl) => Ok(ttl),
            _ => Err(ended()),
        }
    }

    fn revoke(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
        self.ask(Task::Revoke(lease), within).map(|_| ())
    }

    fn compact(&self, through: Revision, within: Duration) -> Result<(), StoreError> {
        self.ask(Task::Compact(through), within).map(|_| ())
    }
}

struct SqliteWatch {
    shared: Arc<Shared>,
    watch: MemoryWatch,
}

impl Watch for SqliteWatch {
    fn next(&mut self, wait: Duration) -> Result<Option<WatchBatch>, WatchError> {
        let deadline = Instant::now() + wait;
        loop {
            let seen = self.shared.changes();
            self.shared.check()?;
            if let Some(batch) = self.watch.next(&self.shared.memory.read())? {
                return Ok(Some(batch));
            }
            if !self.shared.wait(seen, deadline) {
                return Ok(None);
            }
        }
    }
}

/// The kernel's clock that also counts while the computer sleeps: whoever held a lease then has lost it.
fn boot_clock() -> Clock {
    Arc::new(|| {
        // The clock is always there on Linux; without it no lease ends.
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
    })
}

#[cfg(test)]
mod tests;
