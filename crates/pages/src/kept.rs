//! The pages that the target kept from an earlier trip of the guest.
//!
//! If the guest goes back to a host that kept its RAM, the marks of that trip say what need not be sent: a page with
//! the same mark is a delta without parts, based on [`VERSION_KEPT`](crate::VERSION_KEPT).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::ledger::Ledger;

/// The marks of the pages that the target keeps.
pub(crate) struct KeptPages {
    marks: Arc<Ledger>,
    is_doubted: AtomicBool,
}

impl KeptPages {
    pub(crate) fn new(marks: Arc<Ledger>) -> KeptPages {
        KeptPages { marks, is_doubted: AtomicBool::new(false) }
    }

    /// Stops building on the kept pages.
    pub(crate) fn doubt(&self) {
        self.is_doubted.store(true, Relaxed);
    }

    /// Returns whether the target keeps a page of this mark.
    pub(crate) fn has(&self, block: u16, page: u32, mark: u128) -> bool {
        !self.is_doubted.load(Relaxed) && self.marks.known_mark(block, page) == Some(mark)
    }
}
