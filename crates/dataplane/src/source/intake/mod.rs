//! What QEMU sends at the source, taken apart: [`main_channel`] and [`multifd`] say how, here is what they have in
//! common.

mod last_pages;
mod main_channel;
mod multifd;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Condvar;
use skein_pages::pace::PackingMode;
use skein_pages::packing::{PageCompressor, plan_packing};
use skein_pages::page_record::{self, BYTES_MAX, PAGE_RECORD_BYTES_MAX, PageMessage};
use skein_pages::{BATCH_BYTES_MAX, Batch, BatchForm, Hashing, PAGE_BYTES, PageKind};
use skein_session::StreamId;

use self::main_channel::MainChannel;
use super::error::SourceError;
use super::feeder::{encode_uncompressed, feed, note_late, wait_for_batch_capacity};
use super::packer_pool::PackJob;
use super::page_counters::add;
use super::pages::{DirectBlocks, SourcePages};
use super::queue::{Queue, QueueEntry};
use super::socket_reader::{ReadEnded, SocketReader};
use crate::ResetCode;
use crate::connection::submit;
use crate::error_chain::error_chain;
use crate::local_end::LocalEnd;
use crate::running_session::{RunningSession, spawn};

/// What may wait for room on a stream, where batches are packed meanwhile: a packet of multifd. It is time that a
/// guest's last pages spend here.
const WAITING_BYTES: usize = 2 * BATCH_BYTES_MAX;
/// What is read at once of the main channel, and of what is not understood.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes for QEMU are gathered up to this.
const GATHERED_BYTES: usize = 32 << 10;

/// Why an intake ends early.
enum IntakeStop {
    Ended(ReadEnded),
    Failed(SourceError),
}

impl From<ReadEnded> for IntakeStop {
    fn from(ended: ReadEnded) -> IntakeStop {
        IntakeStop::Ended(ended)
    }
}

impl From<SourceError> for IntakeStop {
    fn from(why: SourceError) -> IntakeStop {
        IntakeStop::Failed(why)
    }
}

/// Reads a stream's local socket into the session until its end, taken apart. Returns the number of bytes.
pub(crate) fn ingest(
    live: &Arc<RunningSession>,
    id: StreamId,
    local_end: &LocalEnd,
    writable: &Arc<Condvar>,
    source: &Arc<SourcePages>,
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
        pages: source,
        queue: &queue,
        writable,
        reader: SocketReader::new(local_end, &is_over, BUFFER_BYTES),
        is_over: &is_over,
        gathered: BytesMut::new(),
        is_ahead: false,
    };
    let (feeder, stop) = match feeder {
        Ok(feeder) => (Some(feeder), intake.read().err()),
        Err(error) => (None, Some(IntakeStop::Failed(SourceError::Thread(error)))),
    };
    let bytes = intake.reader.bytes;
    let broke = match stop {
        Some(IntakeStop::Failed(why)) => {
            let words = error_chain(&why);
            source.fail(why);
            live.reset(id, ResetCode::Unsound, &words);
            None
        }
        Some(IntakeStop::Ended(ReadEnded::Broke(error))) => Some(error),
        _ => None,
    };
    queue.push(QueueEntry::End, usize::MAX);
    if let Some(feeder) = feeder {
        let _ = feeder.join();
    }
    if let Some(error) = broke {
        live.reset_for_broken_socket(id, &error);
    }
    local_end.drain();
    bytes
}

/// One stream's reader.
struct Intake<'a> {
    live: &'a RunningSession,
    id: StreamId,
    pages: &'a Arc<SourcePages>,
    queue: &'a Queue,
    writable: &'a Condvar,
    reader: SocketReader<'a>,
    is_over: &'a dyn Fn() -> bool,
    /// Bytes for QEMU that are not on their way yet.
    gathered: BytesMut,
    /// What it pushed last had to wait for room: it has time.
    is_ahead: bool,
}

impl Intake<'_> {
    fn read(&mut self) -> Result<(), IntakeStop> {
        let read = self.kind().map_err(IntakeStop::from).and_then(|kind| match kind {
            skein_qemu_stream::ChannelKind::Main => MainChannel::new(self).read(),
            skein_qemu_stream::ChannelKind::Multifd => self.multifd(),
            skein_qemu_stream::ChannelKind::Other => self.opaque(),
        });
        match read {
            Err(IntakeStop::Ended(ended)) => self.end(ended),
            read => read,
        }
    }

    /// What the connection is. One that is not QEMU's does not wait for four bytes.
    fn kind(&mut self) -> Result<skein_qemu_stream::ChannelKind, ReadEnded> {
        let magics = [skein_qemu_stream::main_channel::MAGIC, skein_qemu_stream::multifd::MAGIC].map(u32::to_be_bytes);
        loop {
            let first = &self.reader.buffered()[..self.reader.buffered().len().min(4)];
            if !magics.iter().any(|magic| magic.starts_with(first)) {
                return Ok(skein_qemu_stream::ChannelKind::Other);
            }
            match first.try_into() {
                Ok(first) => return Ok(skein_qemu_stream::kind(first)),
                Err(_) => self.reader.fill(first.len() + 1)?,
            }
        }
    }

    /// The local end has said all: what is left of it is for QEMU.
    fn end(&mut self, ended: ReadEnded) -> Result<(), IntakeStop> {
        let rest = self.reader.take(self.reader.buffered().len());
        self.gather(&rest)?;
        self.flush()?;
        match ended {
            ReadEnded::Eof => Ok(()),
            ended => Err(ended.into()),
        }
    }

    /// Everything that follows is for QEMU.
    fn opaque(&mut self) -> Result<(), IntakeStop> {
        self.flush()?;
        self.push(vec![page_record::opaque()])?;
        loop {
            let mut buffer = self.live.pool.take(BYTES_MAX);
            let bytes = match self.reader.read_some(buffer.as_mut()) {
                Ok(bytes) => bytes,
                Err(ReadEnded::Eof) => return Ok(()),
                Err(ended) => return Err(ended.into()),
            };
            add(&self.pages.counts.other_bytes, bytes);
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
    fn content(&mut self, pages: usize) -> Result<Bytes, IntakeStop> {
        let mut content = self.live.pool.take(pages * PAGE_BYTES);
        match self.reader.read_exact(content.as_mut()) {
            Ok(()) => Ok(content.freeze()),
            Err((ended, done)) => {
                content.truncate(done);
                self.gather(content.as_ref())?;
                Err(ended.into())
            }
        }
    }

    /// Bytes for QEMU, which come next.
    fn pass_on(&mut self, mut bytes: usize) -> Result<(), IntakeStop> {
        self.flush()?;
        while bytes > 0 {
            let mut part = self.live.pool.take(bytes.min(BYTES_MAX));
            match self.reader.read_exact(part.as_mut()) {
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
    fn send_direct(&mut self, direct: &DirectBlocks, batch: Batch, version: u32) -> Result<(), IntakeStop> {
        let BatchForm::Direct(place) = &batch.form else { unreachable!("only such pages are placed") };
        let pages = place.pages().enumerate().map(|(nth, page)| (page, batch.page(nth)));
        let hashing = if self.is_ahead { Hashing::Ahead } else { Hashing::OnlyResent };
        let to_send = direct.sent.note_and_diff(place.block, version, pages, hashing);
        let to_send = to_send.map_err(SourceError::NoPage)?;
        self.batch(batch.with_deltas(version, to_send))
    }

    fn batch(&mut self, batch: Batch) -> Result<(), IntakeStop> {
        let counts = &self.pages.counts;
        add(&counts.pages, batch.kinds.len());
        add(&counts.zero_pages, PageKind::Zero.count(&batch.kinds));
        let packers = self.pages.packers().filter(|_| batch.bytes() > 0);
        // A look at a few bytes costs less than to have somebody else look at all of them.
        let Some((packers, sifted)) = packers.and_then(|packers| Some((packers, plan_packing(&batch)?))) else {
            return self.push(encode_uncompressed(&batch, self.pages));
        };
        match self.pages.packing_mode() {
            PackingMode::AsItIs => return self.push(note_late(&batch, self.pages)),
            PackingMode::WhileItWaits if self.queue.is_idle() && self.takes(batch.bytes()) => {
                submit(self.live, self.id, note_late(&batch, self.pages));
                return Ok(());
            }
            PackingMode::WhileItWaits | PackingMode::Awaited => {}
        }
        let job = PackJob::new(batch, sifted, self.pages.clone(), self.live.pool.take(PageCompressor::OUT_BYTES));
        packers.offer(&job);
        self.queue(QueueEntry::Job(job))
    }

    /// Whether the session takes so many bytes at once. If not, somebody has to wait for that.
    fn takes(&self, bytes: usize) -> bool {
        let mut state = self.live.lock();
        let takes = state.core.takes(self.live.now(), self.id, bytes);
        self.live.dispatch(&mut state);
        takes
    }

    /// Bytes for QEMU, later.
    fn gather(&mut self, bytes: &[u8]) -> Result<(), IntakeStop> {
        for part in bytes.chunks(GATHERED_BYTES) {
            if self.gathered.len() + part.len() > GATHERED_BYTES {
                self.flush()?;
            }
            self.gathered.extend_from_slice(part);
        }
        Ok(())
    }

    /// What was gathered.
    fn flush(&mut self) -> Result<(), IntakeStop> {
        let bytes = self.gathered.split().freeze();
        if bytes.is_empty() { Ok(()) } else { self.bytes(bytes) }
    }

    /// Bytes for QEMU.
    fn bytes(&mut self, bytes: Bytes) -> Result<(), IntakeStop> {
        add(&self.pages.counts.other_bytes, bytes.len());
        self.push(vec![page_record::bytes_head(bytes.len()), bytes])
    }

    fn send_message(&mut self, note: &PageMessage) -> Result<(), IntakeStop> {
        self.push(vec![page_record::note(note).map_err(SourceError::Record)?])
    }

    /// What is as it will be.
    fn push(&mut self, parts: Vec<Bytes>) -> Result<(), IntakeStop> {
        if !self.queue.is_idle() {
            return self.queue(QueueEntry::Ready(parts));
        }
        // Nothing to wait for but room: a change of threads would only cost.
        let bytes = parts.iter().map(Bytes::len).sum::<usize>().min(PAGE_RECORD_BYTES_MAX);
        let at_once = wait_for_batch_capacity(self.live, self.id, bytes, self.writable).ok_or(ReadEnded::Over)?;
        self.is_ahead = !at_once;
        submit(self.live, self.id, parts);
        Ok(())
    }

    fn queue(&mut self, queued: QueueEntry) -> Result<(), IntakeStop> {
        self.is_ahead = !self.queue.is_idle();
        if self.queue.push(queued, WAITING_BYTES) { Ok(()) } else { Err(ReadEnded::Over.into()) }
    }
}
