//! Limits how fast the migrations of a host hand over bytes to their sessions, each and all together.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use skein_session::rate::{Booking, RateShares, SenderId};

/// Bounds a wait before its stream is looked at again.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The rate that all migrations of a host share.
#[derive(Debug)]
pub struct RateLimiter {
    shares: Mutex<RateShares>,
    /// Notified when a limit changes.
    changed: Condvar,
    epoch: Instant,
    next: AtomicU64,
}

/// A migration's part in the rate of its host. Once it is dropped, the others have it.
#[derive(Debug)]
pub struct RateShare {
    limiter: Arc<RateLimiter>,
    id: SenderId,
}

impl RateLimiter {
    /// Makes a limiter that limits nothing yet.
    pub fn new() -> Arc<RateLimiter> {
        Arc::new(RateLimiter {
            shares: Mutex::default(),
            changed: Condvar::new(),
            epoch: Instant::now(),
            next: AtomicU64::new(0),
        })
    }

    /// Limits all migrations together to so many bytes per second. `None`: not at all.
    pub fn set_total(&self, bytes_per_s: Option<NonZeroU64>) {
        self.shares.lock().set_total(self.now(), bytes_per_s);
        self.changed.notify_all();
    }

    /// Adds a migration that has no limit of its own.
    pub fn join(self: &Arc<Self>) -> RateShare {
        let id = SenderId(self.next.fetch_add(1, Ordering::Relaxed));
        self.shares.lock().set_sender(self.now(), id, None);
        RateShare { limiter: self.clone(), id }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }
}

impl RateShare {
    /// Returns the share of a sender that shares nothing and has no limit.
    pub fn unlimited() -> Arc<RateShare> {
        Arc::new(RateLimiter::new().join())
    }

    /// Limits this migration to so many bytes per second, beside the limit of all. `None`: not at all.
    pub fn set_limit(&self, bytes_per_s: Option<NonZeroU64>) {
        self.limiter.shares.lock().set_sender(self.limiter.now(), self.id, bytes_per_s);
        self.limiter.changed.notify_all();
    }

    /// Returns the bytes per second that the migration may hand over at this moment. `None`: any number.
    pub fn bytes_per_s(&self) -> Option<f64> {
        self.limiter.shares.lock().rate(self.id)
    }

    /// Waits until so many bytes may be handed over, or `is_over`. What is not handed over in the end is
    /// [given back](Self::give_back). Returns whether there was a wait.
    pub(super) fn wait(&self, bytes: usize, is_over: impl Fn() -> bool) -> bool {
        let mut shares = self.limiter.shares.lock();
        let booking = shares.book(self.limiter.now(), self.id, bytes as u64);
        let mut waited = false;
        loop {
            let wait = shares.wait(self.limiter.now(), self.id, booking);
            if wait.is_zero() {
                return waited;
            }
            waited = true;
            self.limiter.changed.wait_for(&mut shares, wait.min(WAIT_MAX));
            drop(shares);
            if is_over() {
                return waited;
            }
            shares = self.limiter.shares.lock();
        }
    }

    /// Takes the right to hand over so many bytes at once. Returns false if they have to wait.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        let mut shares = self.limiter.shares.lock();
        let now = self.limiter.now();
        let booking: Booking = shares.book(now, self.id, bytes as u64);
        let takes = shares.wait(now, self.id, booking).is_zero();
        if !takes {
            shares.give_back(now, self.id, bytes as u64);
        }
        takes
    }

    /// Gives back the right to hand over so many bytes.
    pub(super) fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.limiter.shares.lock().give_back(self.limiter.now(), self.id, bytes as u64);
        }
    }
}

impl Drop for RateShare {
    fn drop(&mut self) {
        self.limiter.shares.lock().remove(self.limiter.now(), self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn what_waits_goes_once_its_limit_is_lifted() {
        let limiter = RateLimiter::new();
        let share = limiter.join();
        limiter.set_total(NonZeroU64::new(1));
        assert!(share.takes(MIB), "what is first goes at once");
        assert!(!share.takes(MIB));
        std::thread::scope(|scope| {
            let (looks, looked) = sync_channel(1);
            let share = &share;
            let waits = scope.spawn(move || {
                share.wait(MIB, || {
                    let _ = looks.try_send(());
                    false
                })
            });
            looked.recv().unwrap();
            assert!(!waits.is_finished());
            limiter.set_total(None);
            assert!(waits.join().unwrap());
        });
    }

    #[test]
    fn a_stream_that_is_over_waits_for_nothing() {
        let limiter = RateLimiter::new();
        let share = limiter.join();
        share.set_limit(NonZeroU64::new(1));
        assert!(share.takes(MIB));
        assert!(share.wait(MIB, || true));
    }

    #[test]
    fn a_migration_that_ended_leaves_its_share_to_the_others() {
        let limiter = RateLimiter::new();
        limiter.set_total(NonZeroU64::new(1000));
        let [one, other] = [limiter.join(), limiter.join()];
        assert_eq!((one.bytes_per_s(), other.bytes_per_s()), (Some(500.0), Some(500.0)));
        drop(other);
        assert_eq!(one.bytes_per_s(), Some(1000.0));
    }
}
