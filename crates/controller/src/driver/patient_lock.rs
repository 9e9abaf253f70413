//! A lock whose readers do not wait for a writer that waits for another reader, unless the writer has waited long.
//!
//! A planner reads the whole of a large cluster for tens of milliseconds. Behind it a report of an agent waits to be
//! written, a thousand times a second; a fair lock has all that read after that report wait, too.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, RecursiveRwLock, RecursiveRwLockReadGuard, RecursiveRwLockWriteGuard};

/// How long a writer waits while others begin to read.
const PATIENCE: Duration = Duration::from_millis(150);
/// How often a task looks whether the lock is free.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct PatientLock<T> {
    value: RecursiveRwLock<T>,
    /// Held by a writer that has waited long: nobody begins to read meanwhile.
    turn: Mutex<()>,
    patience: Duration,
}

impl<T> PatientLock<T> {
    pub fn new(value: T) -> PatientLock<T> {
        PatientLock { value: RecursiveRwLock::new(value), turn: Mutex::new(()), patience: PATIENCE }
    }

    pub fn read(&self) -> RecursiveRwLockReadGuard<'_, T> {
        drop(self.turn.lock());
        self.value.read()
    }

    /// Waits, without holding a thread, until nobody has the lock, or for the most that a writer lets others read.
    pub async fn free(&self) {
        let until = Instant::now() + self.patience;
        while self.value.is_locked() && Instant::now() < until {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    pub fn write(&self) -> RecursiveRwLockWriteGuard<'_, T> {
        if let Some(guard) = self.value.try_write_for(self.patience) {
            return guard;
        }
        let _turn = self.turn.lock();
        self.value.write()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_reader_does_not_wait_for_a_writer_that_waits() {
        let lock = PatientLock { patience: Duration::from_secs(600), ..PatientLock::new(0) };
        thread::scope(|scope| {
            let first = lock.read();
            scope.spawn(|| *lock.write() += 1);
            thread::sleep(Duration::from_millis(50));
            // With a fair lock this would never end.
            assert_eq!(*lock.read(), 0);
            drop(first);
        });
        assert_eq!(*lock.read(), 1);
    }

    #[test]
    fn readers_who_never_pause_do_not_keep_a_writer_out() {
        let lock = PatientLock { patience: Duration::from_millis(1), ..PatientLock::new(0) };
        let is_written = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // Each begins to read before the other ends.
                    let mut held = lock.read();
                    while !is_written.load(Ordering::SeqCst) {
                        thread::sleep(Duration::from_millis(1));
                        drop(held);
                        held = lock.read();
                    }
                });
            }
            scope.spawn(|| {
                *lock.write() += 1;
                is_written.store(true, Ordering::SeqCst);
            });
        });
        assert_eq!(*lock.read(), 1);
    }
}
