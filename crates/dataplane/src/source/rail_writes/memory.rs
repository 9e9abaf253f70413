//! Is the memory that a rail has registered at the source.

use std::ops::Range;
use std::sync::Arc;

use skein_fabric::{Access, Arena, FabricError, Region, SharedEndpoint, Slice, Slot};
use skein_pages::BATCH_BYTES_MAX;

use crate::source::page_counters::{PageCounters, add};

/// How many batches a rail has under way at most.
pub(super) const SLOTS: usize = 32;

/// What a rail has registered.
pub(super) struct RailMemory {
    /// Where batches come.
    arena: Arc<Arena>,
    region: Arc<dyn Region>,
    /// Where batches are copied that are elsewhere.
    slots: Vec<Slot>,
    counts: Arc<PageCounters>,
}

impl RailMemory {
    /// Registers the memory in which batches come, and some for those that are elsewhere.
    ///
    /// # Errors
    /// There is no memory, or the rail registers none.
    pub(super) fn register(
        endpoint: &SharedEndpoint,
        arena: Arc<Arena>,
        counts: Arc<PageCounters>,
    ) -> Result<RailMemory, FabricError> {
        let (slots, _) = Slot::register(&**endpoint, SLOTS, BATCH_BYTES_MAX, Access::Local, 0)?;
        let region = endpoint.register(arena.memory(), Access::Local, 0)?;
        Ok(RailMemory { arena, region, slots, counts })
    }

    /// Returns a part of a batch for an operation: where the batch is, or copied into a slot, at the same place there.
    pub(super) fn at_hand(&mut self, slot: usize, content: &[u8], run: Range<usize>) -> Slice {
        let bytes = &content[run.clone()];
        let registered = self.arena.range_of(bytes).and_then(|range| Slice::new(self.region.clone(), range));
        registered.unwrap_or_else(|| {
            add(&self.counts.copied_bytes, bytes.len());
            self.slots[slot].bytes_mut()[run.clone()].copy_from_slice(bytes);
            self.slots[slot].part(run)
        })
    }
}
