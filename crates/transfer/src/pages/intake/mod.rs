//! What QEMU sends at the source, taken apart: [`main`] and [`multifd`] say how, here is what they have in common.

mod handover;
mod main;
mod multifd;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Condvar;
use skein_core::StreamId;
use skein_pages::pace::Use;
use skein_pages::packing::{Packer, sift};
use skein_pages::record::{self, BYTES_MAX, Note, RECORD_BYTES_MAX};
use skein_pages::{BATCH_BYTES_MAX, Batch, Form, Kind, PAGE_BYTES};

use self::main::MainChannel;
use super::counts::add;
use super::feeder::{as_it_is, feed, late, room};
use super::packers::Job;
use super::queue::{Queue, Queued};
use super::source::{Direct, Failed, Source};
use super::tap::{Ended, Tap};
use crate::ResetCode;
use crate::live::{Live, Urge, spawn};
use crate::stream::{Egress, broken, hand_over};

/// What may wait for room on a stream, where batches are packed meanwhile: a packet of multifd. It is time that a
/// guest's last pages spend here.
const WAITING_BYTES: usize = 2 * BATCH_BYTES_MAX;
/// What is read at once of the main channel, and of what is not understood.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes for QEMU are gathered up to this.
const GATHERED_BYTES: usize = 32 << 10;

/// Why an intake ends early.
enum Stop {
    Ended(Ended),
    Failed(Failed),
}

impl From<Ended> for Stop {
    fn from(ended: Ended) -> Stop {
        Stop::Ended(ended)
    }
}

impl From<Failed> for Stop {
    fn from(why: Failed) -> Stop {
        Stop::Failed(why)
    }
}

/// Reads a stream's local socket into the session until its end, taken apart. Returns the number of bytes.
pub(crate) fn ingest(
    live: &Arc<Live>,
    id: StreamId,
    egress: &Egress,
    writable: &Arc<Condvar>,
    source: &Arc<Source>,
) -> u64 {
    let queue = Arc::new(Queue::default());
    let feeder = {
        let (live, queue, source, writable) = (live.clone(), queue.clone(), source.clone(), writable.clone());
        spawn("feeder", move || feed(&live, id, &queue, &source, &writable))
    };
    let is_over = || live.lock().core.is_reset(id);
    let mut intake = Intake {
        live,
        id,
        source,
        queue: &queue,
        writable,
        tap: Tap::new(egress.socket(), egress.is_held(), &is_over, BUFFER_BYTES),
        is_over: &is_over,
        gathered: BytesMut::new(),
        is_ahead: false,
    };
    let stop = match &feeder {
        Ok(_) => intake.read().err(),
        Err(error) => Some(Stop::Failed(error.to_string())),
    };
    let bytes = intake.tap.bytes;
    let broke = match stop {
        Some(Stop::Failed(why)) => {
            source.fail(&why);
            live.reset(id, ResetCode::Unsound, &why);
            None
        }
        Some(Stop::Ended(Ended::Broke(error))) => Some(error),
        _ => None,
    };
    queue.push(Queued::End, usize::MAX);
    if let Ok(feeder) = feeder {
        let _ = feeder.join();
    }
    if let Some(error) = broke {
        broken(live, id, &error);
    }
    egress.drain_held();
    bytes
}

/// One stream's reader.
struct Intake<'a> {
    live: &'a Live,
    id: StreamId,
    source: &'a Arc<Source>,
    queue: &'a Queue,
    writable: &'a Condvar,
    tap: Tap<'a>,
    is_over: &'a dyn Fn() -> bool,
    /// Bytes for QEMU that are not on their way yet.
    gathered: BytesMut,
    /// What it pushed last had to wait for room: it has time.
    is_ahead: bool,
}

impl Intake<'_> {
    fn read(&mut self) -> Result<(), Stop> {
        let read = self.kind().map_err(Stop::from).and_then(|kind| match kind {
            skein_qemu_stream::Kind::Main => MainChannel::new(self).read(),
            skein_qemu_stream::Kind::Multifd => self.multifd(),
            skein_qemu_stream::Kind::Other => self.opaque(),
        });
        match read {
            Err(Stop::Ended(ended)) => self.end(ended),
            read => read,
        }
    }

    /// What the connection is. One that is not QEMU's does not wait for four bytes.
    fn kind(&mut self) -> Result<skein_qemu_stream::Kind, Ended> {
        let magics = [skein_qemu_stream::main::MAGIC, skein_qemu_stream::multifd::MAGIC].map(u32::to_be_bytes);
        loop {
            let first = &self.tap.buffered()[..self.tap.buffered().len().min(4)];
            if !magics.iter().any(|magic| magic.starts_with(first)) {
                return Ok(skein_qemu_stream::Kind::Other);
            }
            match first.try_into() {
                Ok(first) => return Ok(skein_qemu_stream::kind(first)),
                Err(_) => self.tap.fill(first.len() + 1)?,
            }
        }
    }

    /// The local end has said all: what is left of it is for QEMU.
    fn end(&mut self, ended: Ended) -> Result<(), Stop> {
        let rest = self.tap.take(self.tap.buffered().len());
        self.gather(&rest)?;
        self.flush()?;
        match ended {
            Ended::Eof => Ok(()),
            ended => Err(ended.into()),
        }
    }

    /// Everything that follows is for QEMU.
    fn opaque(&mut self) -> Result<(), Stop> {
        self.flush()?;
        self.push(vec![record::opaque()])?;
        loop {
            let mut buffer = self.live.pool.take(BYTES_MAX);
            let bytes = match self.tap.read_some(buffer.as_mut()) {
                Ok(bytes) => bytes,
                Err(Ended::Eof) => return Ok(()),
                Err(ended) => return Err(ended.into()),
            };
            add(&self.source.counts.other_bytes, bytes);
            let data = if bytes < BYTES_MAX / 4 {
                Bytes::copy_from_slice(&buffer.as_ref()[..bytes])
            } else {
                buffer.truncate(bytes);
                buffer.freeze()
            };
            self.push(vec![data])?;
        }
    }

    /// Pages' content, which comes next.
    fn content(&mut self, pages: usize) -> Result<Bytes, Stop> {
        let mut content = self.live.pool.take(pages * PAGE_BYTES);
        match self.tap.read_exact(content.as_mut()) {
            Ok(()) => Ok(content.freeze()),
            Err((ended, done)) => {
                content.truncate(done);
                self.gather(content.as_ref())?;
                Err(ended.into())
            }
        }
    }

    /// Bytes for QEMU, which come next.
    fn pass_on(&mut self, mut bytes: usize) -> Result<(), Stop> {
        self.flush()?;
        while bytes > 0 {
            let mut part = self.live.pool.take(bytes.min(BYTES_MAX));
            match self.tap.read_exact(part.as_mut()) {
                Ok(()) => {}
                Err((ended, done)) => {
                    part.truncate(done);
                    self.gather(part.as_ref())?;
                    return Err(ended.into());
                }
            }
            bytes -= part.as_ref().len();
            self.bytes(part.freeze())?;
        }
        Ok(())
    }

    /// Pages that the target's agent writes itself.
    fn place(&mut self, direct: &Direct, batch: Batch, version: u32) -> Result<(), Stop> {
        let Form::Direct(place) = &batch.form else { unreachable!("only such pages are placed") };
        let pages = place.pages().enumerate().map(|(nth, page)| (page, batch.page(nth)));
        let noted = direct.ledger.note_changes(place.block, version, pages, self.is_ahead);
        let deltas = noted.map_err(|error| format!("QEMU's stream makes no sense: {error}"))?;
        self.batch(batch.with_deltas(deltas))
    }

    fn batch(&mut self, batch: Batch) -> Result<(), Stop> {
        let counts = &self.source.counts;
        add(&counts.pages, batch.kinds.len());
        add(&counts.zero_pages, Kind::Zero.count(&batch.kinds));
        let packers = self.source.packers().filter(|_| batch.bytes() > 0);
        // A look at a few bytes costs less than to have somebody else look at all of them.
        let Some((packers, sifted)) = packers.and_then(|packers| Some((packers, sift(&batch)?))) else {
            return self.push(as_it_is(&batch, self.source));
        };
        match self.source.of_packers() {
            Use::AsItIs => return self.push(late(&batch, self.source)),
            Use::WhileItWaits if self.queue.is_idle() && self.takes(batch.bytes()) => {
                hand_over(self.live, self.id, late(&batch, self.source));
                return Ok(());
            }
            Use::WhileItWaits | Use::Awaited => {}
        }
        let job = Job::new(batch, sifted, self.source.clone(), self.live.pool.take(Packer::OUT_BYTES));
        packers.offer(&job);
        self.queue(Queued::Job(job))
    }

    /// Whether the session takes so many bytes at once. If not, somebody has to wait for that.
    fn takes(&self, bytes: usize) -> bool {
        let mut state = self.live.lock();
        let takes = state.core.takes(self.live.now(), self.id, bytes);
        self.live.settle(&mut state, Urge::Threads);
        takes
    }

    /// Bytes for QEMU, later.
    fn gather(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        for part in bytes.chunks(GATHERED_BYTES) {
            if self.gathered.len() + part.len() > GATHERED_BYTES {
                self.flush()?;
            }
            self.gathered.extend_from_slice(part);
        }
        Ok(())
    }

    /// What was gathered.
    fn flush(&mut self) -> Result<(), Stop> {
        let bytes = self.gathered.split().freeze();
        if bytes.is_empty() { Ok(()) } else { self.bytes(bytes) }
    }

    /// Bytes for QEMU.
    fn bytes(&mut self, bytes: Bytes) -> Result<(), Stop> {
        add(&self.source.counts.other_bytes, bytes.len());
        self.push(vec![record::bytes_head(bytes.len()), bytes])
    }

    fn say(&mut self, note: &Note) -> Result<(), Stop> {
        self.push(vec![record::note(note).map_err(|error| error.to_string())?])
    }

    /// What is as it will be.
    fn push(&mut self, parts: Vec<Bytes>) -> Result<(), Stop> {
        if !self.queue.is_idle() {
            return self.queue(Queued::Ready(parts));
        }
        // Nothing to wait for but room: a change of threads would only cost.
        let bytes = parts.iter().map(Bytes::len).sum::<usize>().min(RECORD_BYTES_MAX);
        let at_once = room(self.live, self.id, bytes, self.writable).ok_or(Ended::Over)?;
        self.is_ahead = !at_once;
        hand_over(self.live, self.id, parts);
        Ok(())
    }

    fn queue(&mut self, queued: Queued) -> Result<(), Stop> {
        self.is_ahead = !self.queue.is_idle();
        if self.queue.push(queued, WAITING_BYTES) { Ok(()) } else { Err(Ended::Over.into()) }
    }
}
