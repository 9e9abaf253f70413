//! What the writer, the readers and the watches share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};
use skein_store::{Cause, MemoryStore, StoreError};

use crate::disk::DiskError;

/// The time by which leases end: since whenever, and never back. A real one goes on while the computer sleeps.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What is stored, and who is told when it changes.
pub(crate) struct Shared {
    pub memory: RwLock<MemoryStore>,
    pub clock: Clock,
    /// Whether an earlier write failed, so that nobody knows what is on the disk.
    ended: AtomicBool,
    /// Counts the changes of memory.
    changes: Mutex<u64>,
    changed: Condvar,
}

impl Shared {
    pub fn new(memory: MemoryStore, clock: Clock) -> Shared {
        Shared {
            memory: RwLock::new(memory),
            clock,
            ended: AtomicBool::new(false),
            changes: Mutex::new(0),
            changed: Condvar::new(),
        }
    }

    /// How often something has changed.
    pub fn changes(&self) -> u64 {
        *self.changes.lock()
    }

    /// Waits until more has changed. `false`: nothing has, until the deadline.
    pub fn wait(&self, seen: u64, deadline: Instant) -> bool {
        let mut changes = self.changes.lock();
        !self.changed.wait_while_until(&mut changes, |changes| *changes == seen, deadline).timed_out()
    }

    /// Fails if nobody knows what is on the disk.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.ended.load(Ordering::SeqCst) { Err(ended()) } else { Ok(()) }
    }

    /// Lets nobody read or write any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.notify();
    }

    /// Wakes those who wait for a change.
    pub fn notify(&self) {
        *self.changes.lock() += 1;
        self.changed.notify_all();
    }
}

/// Why a store that has ended does nothing.
pub(crate) fn ended() -> StoreError {
    StoreError::Unavailable(Cause::new(DiskError::Ended))
}
