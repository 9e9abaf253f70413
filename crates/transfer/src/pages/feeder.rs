//! From a stream's queue to the session: each batch in its turn, packed by then or not.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Condvar;
use skein_core::StreamId;
use skein_pages::pace::Turn;
use skein_pages::record;
use skein_pages::{Batch, Kind};

use super::counts::add;
use super::packers::{Job, Taken};
use super::queue::{Queue, Queued};
use super::source::Source;
use crate::live::Live;
use crate::stream::{self, hand_over};

/// Hands what waits to the session, each in its turn.
pub(super) fn feed(live: &Live, id: StreamId, queue: &Queue, source: &Source, writable: &Condvar) {
    loop {
        let (bytes, job) = queue.wait();
        // First packed, then room: who asks for room and has no use for it yet holds up others.
        let late = job.filter(|job| !job.is_done());
        let wait = |job: &Arc<Job>| {
            job.wait(source.patience(job.batch.bytes(), || live.lock().core.rate(source.width())));
        };
        let waits = late.inspect(wait).is_some();
        let Some(at_once) = room(live, id, bytes, writable) else { return queue.close() };
        let turn = if waits && at_once { Turn::HeldUp } else { Turn::InTime };
        let parts = match queue.pop() {
            None | Some(Queued::End) => {
                live.with(|state, _| state.core.finish(id));
                return queue.close();
            }
            Some(Queued::Ready(parts)) => parts,
            Some(Queued::Job(job)) => packed(&job, source, turn),
        };
        hand_over(live, id, parts);
    }
}

/// The records of a batch whose turn has come; `turn`: unless it is late.
fn packed(job: &Job, source: &Source, turn: Turn) -> Vec<Bytes> {
    let batch = &job.batch;
    let counts = &source.counts;
    match job.take() {
        Taken::Packed(packed, data) => {
            source.taken(turn);
            let kinds = &packed.sifted.kinds;
            add(&counts.packed_pages, Kind::Packed.count(kinds));
            add(&counts.packed_bytes, packed.compressed.len);
            add(&counts.stored_pages, Kind::Stored.count(kinds));
            counts.deltas(&batch.deltas, if packed.sifted.changes { batch.changes.len() } else { 0 });
            record::batch(batch, Some((&packed, data)))
        }
        Taken::Dense => {
            source.taken(turn);
            as_it_is(batch, source)
        }
        Taken::Late => late(batch, source),
    }
}

/// The records of a batch that should have been packed.
pub(super) fn late(batch: &Batch, source: &Source) -> Vec<Bytes> {
    source.taken(Turn::Late);
    add(&source.counts.late_pages, Kind::Stored.count(&batch.kinds));
    as_it_is(batch, source)
}

/// The records of a batch that is not packed.
pub(super) fn as_it_is(batch: &Batch, source: &Source) -> Vec<Bytes> {
    add(&source.counts.stored_pages, Kind::Stored.count(&batch.kinds));
    source.counts.deltas(&batch.deltas, 0);
    record::batch(batch, None)
}

/// Waits until the session takes so many bytes. True: it did at once; none: never.
pub(super) fn room(live: &Live, id: StreamId, bytes: usize, writable: &Condvar) -> Option<bool> {
    let mut at_once = true;
    stream::wait_for_room(live, id, writable, |core, now| {
        let room = core.takes(now, id, bytes).then_some(at_once);
        at_once = false;
        room
    })
}
