//! Says when a session's data goes over RDMA.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// How many bytes a session has carried when rails are worth their price.
const BYTES_MIN: u64 = 1 << 20;

/// What is wanted of a session's rails.
#[derive(Debug, Default)]
pub(crate) struct RailUse {
    held_off: AtomicUsize,
    is_wanted: AtomicBool,
}

/// Keeps a session's data off RDMA as long as this exists.
#[derive(Debug)]
pub struct RailsHeldOff(Arc<RailUse>);

impl RailUse {
    /// Keeps data off RDMA as long as the result exists.
    pub(crate) fn hold_off(self: &Arc<RailUse>) -> RailsHeldOff {
        self.held_off.fetch_add(1, SeqCst);
        RailsHeldOff(self.clone())
    }

    pub(crate) fn is_held_off(&self) -> bool {
        self.held_off.load(SeqCst) > 0
    }

    /// Has rails open though the session has carried little.
    pub(crate) fn want(&self) {
        self.is_wanted.store(true, SeqCst);
    }

    /// Returns whether rails are to be used by a session that has carried so many bytes.
    pub(crate) fn is_due(&self, carried_bytes: u64) -> bool {
        !self.is_held_off() && (self.is_wanted.load(SeqCst) || carried_bytes >= BYTES_MIN)
    }
}

impl Drop for RailsHeldOff {
    fn drop(&mut self) {
        self.0.held_off.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_are_due_when_much_is_carried_or_they_are_wanted_and_nobody_holds_them_off() {
        let of = Arc::<RailUse>::default();
        assert!(!of.is_due(BYTES_MIN - 1) && of.is_due(BYTES_MIN));
        let (first, second) = (of.hold_off(), of.hold_off());
        of.want();
        drop(first);
        assert!(!of.is_due(u64::MAX) && of.is_held_off());
        drop(second);
        assert!(of.is_due(0));
    }
}
