//! From a stream's queue to the session: each batch in its turn, packed by then or not.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Condvar;
use skein_pages::pace::PackingOutcome;
use skein_pages::page_record;
use skein_pages::{Batch, PageKind};
use skein_session::StreamId;

use super::packer_pool::{PackJob, Taken};
use super::page_counters::add;
use super::pages::SourcePages;
use super::queue::{Queue, QueueEntry};
use crate::connection::submit;
use crate::running_session::RunningSession;

/// Hands what waits to the session, each in its turn.
pub(super) fn feed(live: &RunningSession, id: StreamId, queue: &Queue, source: &SourcePages, writable: &Condvar) {
    loop {
        let (bytes, job) = queue.wait();
        // First packed, then room: who asks for room and has no use for it yet holds up others.
        let late = job.filter(|job| !job.is_done());
        let wait = |job: &Arc<PackJob>| {
            job.wait(source.packing_wait(job.batch.bytes(), || live.lock().core.rate(source.width())));
        };
        let waits = late.inspect(wait).is_some();
        let Some(at_once) = wait_for_batch_capacity(live, id, bytes, writable) else { return queue.close() };
        let turn = if waits && at_once { PackingOutcome::HeldUp } else { PackingOutcome::InTime };
        let parts = match queue.pop() {
            None | Some(QueueEntry::End) => {
                live.with(|state, _| state.core.finish(id));
                return queue.close();
            }
            Some(QueueEntry::Ready(parts)) => parts,
            Some(QueueEntry::Job(job)) => packed(&job, source, turn),
        };
        submit(live, id, parts);
    }
}

/// The records of a batch whose turn has come; `turn`: unless it is late.
fn packed(job: &PackJob, source: &SourcePages, turn: PackingOutcome) -> Vec<Bytes> {
    let batch = &job.batch;
    let counts = &source.counts;
    match job.take() {
        Taken::Packed(packed, data) => {
            source.note_packing_outcome(turn);
            let kinds = &packed.sifted.kinds;
            add(&counts.packed_pages, PageKind::Packed.count(kinds));
            add(&counts.packed_bytes, packed.compressed.len);
            add(&counts.stored_pages, PageKind::Stored.count(kinds));
            counts.deltas(&batch.deltas, if packed.sifted.changes { batch.changes.len() } else { 0 });
            page_record::batch(batch, Some((&packed, data)))
        }
        Taken::Dense => {
            source.note_packing_outcome(turn);
            encode_uncompressed(batch, source)
        }
        Taken::Late => note_late(batch, source),
    }
}

/// The records of a batch that should have been packed.
pub(super) fn note_late(batch: &Batch, source: &SourcePages) -> Vec<Bytes> {
    source.note_packing_outcome(PackingOutcome::Late);
    add(&source.counts.late_pages, PageKind::Stored.count(&batch.kinds));
    encode_uncompressed(batch, source)
}

/// The records of a batch that is not packed.
pub(super) fn encode_uncompressed(batch: &Batch, source: &SourcePages) -> Vec<Bytes> {
    add(&source.counts.stored_pages, PageKind::Stored.count(&batch.kinds));
    source.counts.deltas(&batch.deltas, 0);
    page_record::batch(batch, None)
}

/// Waits until the session takes so many bytes. True: it did at once; none: never.
pub(super) fn wait_for_batch_capacity(
    live: &RunningSession,
    id: StreamId,
    bytes: usize,
    writable: &Condvar,
) -> Option<bool> {
    let mut at_once = true;
    live.wait_for_capacity(id, writable, |core, now| {
        let room = core.takes(now, id, bytes).then_some(at_once);
        at_once = false;
        room
    })
}
