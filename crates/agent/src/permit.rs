//! Bounds what is done at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One of a bounded number of permits. It is given back whatever becomes of its holder.
pub(crate) struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// Takes a permit; `None`: all `most` are taken.
    pub(crate) fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Permit> {
        let place = Permit(taken.clone());
        (taken.fetch_add(1, Ordering::SeqCst) < most).then_some(place)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
