//! What QEMU sends at the source, taken apart.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Condvar;
use skein_core::StreamId;
use skein_pages::ledger::{REGION_PAGES, RegionId};
use skein_pages::packing::Packer;
use skein_pages::record::{self, BYTES_MAX, BlockInfo, Note, RECORD_BYTES_MAX};
use skein_pages::{BATCH_PAGES_MAX, Batch, Form, Kind, PAGE_BYTES, Place};
use skein_qemu_stream::barrier::Barriers;
use skein_qemu_stream::main::{self, Entry, Item, entry};
use skein_qemu_stream::multifd::{self, Head, Packet};
use tracing::warn;

use super::counts::add;
use super::packers::{Job, Taken};
use super::queue::{Queue, Queued};
use super::source::{Direct, Failed, Mode, Source, regions};
use super::tap::{Ended, Tap};
use crate::ResetCode;
use crate::live::{Live, Urge, spawn};
use crate::stream::{self, Egress, broken, hand_over};

/// What may wait for room on a stream, where batches are packed meanwhile: a packet of multifd. It is time that a
/// guest's last pages spend here.
const WAITING_BYTES: usize = 2 * BATCH_PAGES_MAX * PAGE_BYTES;
/// What is read at once of the main channel, and of what is not understood.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes for QEMU are gathered up to this.
const GATHERED_BYTES: usize = 32 << 10;
/// How often pages that differ are sent again.
const REPAIRS_MAX: u32 = 3;

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

/// Hands what waits to the session, each in its turn.
fn feed(live: &Live, id: StreamId, queue: &Queue, source: &Source, writable: &Condvar) {
    loop {
        let bytes = queue.wait();
        if !wait_for_room(live, id, bytes, writable) {
            return queue.close();
        }
        let parts = match queue.pop() {
            None | Some(Queued::End) => {
                live.with(|state, _| state.core.finish(id));
                return queue.close();
            }
            Some(Queued::Ready(parts)) => parts,
            Some(Queued::Job(job)) => packed(&job, source),
        };
        hand_over(live, id, parts);
    }
}

/// The records of a batch whose turn has come.
fn packed(job: &Job, source: &Source) -> Vec<Bytes> {
    let batch = &job.batch;
    let counts = &source.counts;
    let taken = job.take();
    source.taken(matches!(taken, Taken::Late));
    match taken {
        Taken::Packed(packed, data) => {
            let of = |kind: Kind| packed.kinds.iter().filter(|other| **other == kind).count();
            add(&counts.packed_pages, of(Kind::Packed));
            add(&counts.packed_bytes, packed.len);
            add(&counts.stored_pages, of(Kind::Stored));
            record::batch(batch, Some((&packed, data)))
        }
        taken => {
            if matches!(taken, Taken::Late) {
                add(&counts.late_batches, 1);
            }
            as_it_is(batch, source)
        }
    }
}

fn as_it_is(batch: &Batch, source: &Source) -> Vec<Bytes> {
    add(&source.counts.stored_pages, batch.kinds.iter().filter(|kind| **kind == Kind::Stored).count());
    record::batch(batch, None)
}

/// Waits until the session takes so many bytes. False: never.
fn wait_for_room(live: &Live, id: StreamId, bytes: usize, writable: &Condvar) -> bool {
    stream::wait_for_room(live, id, writable, |core, now| core.takes(now, id, bytes).then_some(())).is_some()
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
}

impl Intake<'_> {
    fn read(&mut self) -> Result<(), Stop> {
        let read = self.kind().map_err(Stop::from).and_then(|kind| match kind {
            skein_qemu_stream::Kind::Main => self.main(),
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
        let magics = [main::MAGIC, multifd::MAGIC].map(u32::to_be_bytes);
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
        let rest = self.tap.buffered().to_vec();
        self.tap.consume(rest.len());
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

    fn multifd(&mut self) -> Result<(), Stop> {
        let mut parser = multifd::Parser::new();
        let mut barriers = Barriers::new();
        loop {
            let mut part = [0; multifd::PACKET_BYTES];
            let part = &mut part[..parser.need()];
            if let Err((ended, done)) = self.tap.read_exact(part) {
                let kept = [parser.kept(), &part[..done]].concat();
                self.gather(&kept)?;
                return Err(ended.into());
            }
            match parser.head(part) {
                Ok(Head::More) => {}
                Ok(Head::Init { .. }) => {
                    self.gather(part)?;
                    self.flush()?;
                    self.source.passed(self.id, barriers.count() as u32);
                }
                Ok(Head::Packet(packet)) => {
                    self.packet(&packet, barriers.count() as u32)?;
                    barriers.packet(&packet);
                    if packet.is_sync() {
                        self.push(vec![record::barrier()])?;
                        self.source.passed(self.id, barriers.count() as u32);
                    }
                }
                Ok(Head::DeviceState { header, payload_bytes }) => {
                    self.gather(&header[..])?;
                    self.pass_on(payload_bytes as usize)?;
                }
                Err(why) => {
                    self.source.not_understood(&why.to_string())?;
                    self.gather(parser.kept())?;
                    return self.opaque();
                }
            }
        }
    }

    fn packet(&mut self, packet: &Packet, barriers: u32) -> Result<(), Stop> {
        let has_pages = packet.normal().len() + packet.zero().len() > 0;
        let direct = match has_pages.then(|| self.source.mode(self.is_over)).transpose()? {
            Some(Mode::Direct(direct)) => direct.number(packet.block()).map(|number| (direct, number)),
            _ => None,
        };
        let Some((direct, block)) = direct else {
            self.gather(&packet.header()[..])?;
            if packet.is_compressed() || packet.payload_bytes() != packet.normal().len() * PAGE_BYTES {
                return self.pass_on(packet.payload_bytes());
            }
            self.flush()?;
            let mut left = packet.normal().len();
            while left > 0 {
                let pages = left.min(BATCH_PAGES_MAX);
                let content = self.content(pages)?;
                self.batch(Batch::new(Form::Content, content))?;
                left -= pages;
            }
            return Ok(());
        };
        if packet.is_compressed() {
            return Err(Stop::Failed(
                "QEMU's own multifd-compression does not go together with direct placement".into(),
            ));
        }
        let number = |offset: u64| (offset / PAGE_BYTES as u64) as u32;
        let normal: Vec<u32> = packet.normal().map(number).collect();
        for pages in normal.chunks(BATCH_PAGES_MAX) {
            let content = self.content(pages.len())?;
            let batch = Batch::new(Form::Direct(Place::new(block, pages.iter().copied())), content);
            self.place(&direct, batch, barriers)?;
        }
        let zero: Vec<u32> = packet.zero().map(number).collect();
        for pages in zero.chunks(BATCH_PAGES_MAX) {
            self.place(&direct, Batch::zeros(Place::new(block, pages.iter().copied())), barriers)?;
        }
        if packet.is_sync() {
            // The barrier is QEMU's too; the pages are not, any more.
            self.gather(&packet.without_pages()[..])?;
            self.flush()?;
        }
        Ok(())
    }

    fn main(&mut self) -> Result<(), Stop> {
        let mut parser = main::Parser::new();
        let mut barriers = Barriers::new();
        let mut direct: Option<Arc<Direct>> = None;
        let mut run = Run::default();
        let mut is_over = false;
        loop {
            let (item, bytes) = match parser.next(self.tap.buffered()) {
                Ok(Some(found)) => found,
                Ok(None) => {
                    if self.tap.is_dry() {
                        self.end_run(&mut run, direct.as_deref())?;
                        self.flush()?;
                    }
                    self.tap.fill(parser.need())?;
                    continue;
                }
                Err(why) => {
                    self.end_run(&mut run, direct.as_deref())?;
                    self.source.not_understood(&why.to_string())?;
                    return self.opaque();
                }
            };
            let version = barriers.count() as u32;
            barriers.item(&item);
            if let Item::Page { block, offset, named } = item {
                let head = self.tap.buffered()[..bytes].to_vec();
                self.tap.consume(bytes);
                if let Err(ended) = self.tap.fill(PAGE_BYTES) {
                    self.end_run(&mut run, direct.as_deref())?;
                    self.gather(&head)?;
                    return Err(ended.into());
                }
                // What is left out of the stream must not be what an entry without a name refers to.
                let (of, named) = match direct.as_ref().map(|direct| direct.number(&parser.blocks()[block].name)) {
                    Some(Some(number)) => (RunOf::Direct(number), false),
                    Some(None) => (RunOf::Entries(block as u16), true),
                    None => (RunOf::Entries(block as u16), named),
                };
                if !run.takes(of, version, named && direct.is_none()) {
                    self.end_run(&mut run, direct.as_deref())?;
                }
                run.add(of, version, offset, named);
                run.content.extend_from_slice(&self.tap.buffered()[..PAGE_BYTES]);
                self.tap.consume(PAGE_BYTES);
                continue;
            }
            let head = self.tap.buffered()[..bytes].to_vec();
            self.tap.consume(bytes);
            match (item, &direct) {
                (Item::Zero { block, offset, .. }, Some(known)) => {
                    let name = &parser.blocks()[block].name;
                    match known.number(name) {
                        Some(number) => {
                            let of = RunOf::Zeros(number);
                            if !run.takes(of, version, false) {
                                self.end_run(&mut run, direct.as_deref())?;
                            }
                            run.add(of, version, offset, false);
                        }
                        None => {
                            self.end_run(&mut run, direct.as_deref())?;
                            let named = entry(Entry::Zero, Some(name), offset).expect("as it was read");
                            self.gather(&named)?;
                        }
                    }
                    continue;
                }
                (Item::OtherPage { .. }, Some(_)) => {
                    return Err(Stop::Failed("xbzrle does not go together with direct placement".into()));
                }
                (Item::Postcopy(kind), Some(_)) if kind != main::Postcopy::Advise => {
                    return Err(Stop::Failed("postcopy does not go together with direct placement".into()));
                }
                (Item::Blocks, _) => {
                    self.gather(&head)?;
                    self.flush()?;
                    let info = |block: &main::Block| BlockInfo { name: block.name.clone(), bytes: block.bytes };
                    let note = self.source.blocks(parser.blocks().iter().map(info).collect());
                    self.say(&note)?;
                    if let Mode::Direct(known) = self.source.mode(self.is_over)? {
                        direct = Some(known);
                    }
                    continue;
                }
                (Item::Opaque(why), _) => {
                    self.end_run(&mut run, direct.as_deref())?;
                    if !is_over {
                        self.source.not_understood(&why.to_string())?;
                    }
                    return self.opaque();
                }
                (item, _) => {
                    self.end_run(&mut run, direct.as_deref())?;
                    self.gather(&head)?;
                    if barriers.count() as u32 != version {
                        self.flush()?;
                        self.push(vec![record::barrier()])?;
                    }
                    if item == Item::RamEnd {
                        is_over = true;
                        if let Some(direct) = &direct {
                            self.flush()?;
                            self.complete(direct, barriers.count() as u32)?;
                        }
                    }
                }
            }
        }
    }

    /// All pages were sent. Returns once the target is known to hold them.
    fn complete(&mut self, direct: &Direct, barriers: u32) -> Result<(), Stop> {
        let channels = self.source.all_passed(barriers, self.is_over)?;
        for repair in 0..=REPAIRS_MAX {
            let digest = direct.ledger.digest();
            self.say(&Note::Complete { version: barriers, streams: channels + 1, digest })?;
            match self.source.answer(self.is_over)? {
                Note::Verdict { same: true } => {
                    #[cfg(feature = "fault-points")]
                    super::fault::point("ram-complete");
                    return Ok(());
                }
                Note::Verdict { same: false } if repair < REPAIRS_MAX => {}
                _ => break,
            }
            for note in regions(&direct.ledger) {
                self.say(&note)?;
            }
            let Note::Differ { regions } = self.source.answer(self.is_over)? else { break };
            warn!(session = %self.live.id, regions = regions.len(), "the target's copy of the guest's RAM differs");
            // Newer than any version so far: the guest is stopped, and its RAM is what counts.
            self.push(vec![record::barrier()])?;
            for region in regions {
                self.repair(direct, region, barriers + 1 + repair)?;
            }
        }
        Err(Stop::Failed(
            "the target's copy of the guest's RAM differs from the guest's, and could not be mended".into(),
        ))
    }

    /// Sends a region again, as it is in the guest's RAM.
    fn repair(&mut self, direct: &Direct, region: RegionId, version: u32) -> Result<(), Stop> {
        let ram = direct.ram(region.block).ok_or_else(|| {
            "the target's copy of the guest's RAM differs from the guest's, which this agent cannot read".to_owned()
        })?;
        let first = u64::from(region.region) * REGION_PAGES as u64;
        let end = (first + REGION_PAGES as u64).min(u64::from(direct.ledger.pages(region.block)));
        let pages: Vec<u32> = (first..end).map(|page| page as u32).collect();
        for pages in pages.chunks(BATCH_PAGES_MAX) {
            let mut content = self.live.pool.take(pages.len() * PAGE_BYTES);
            let offset = u64::from(pages[0]) * PAGE_BYTES as u64;
            ram.read(offset, content.as_mut()).map_err(|error| format!("the guest's RAM cannot be read: {error}"))?;
            add(&self.source.counts.repaired_pages, pages.len());
            let form = Form::Direct(Place::new(region.block, pages.iter().copied()));
            self.place(direct, Batch::new(form, content.freeze()), version)?;
        }
        Ok(())
    }

    fn end_run(&mut self, run: &mut Run, direct: Option<&Direct>) -> Result<(), Stop> {
        let Some(of) = run.of.take() else { return Ok(()) };
        let pages = std::mem::take(&mut run.pages);
        let content = run.content.split().freeze();
        match (of, direct) {
            (RunOf::Direct(block), Some(direct)) => {
                let form = Form::Direct(Place::new(block, pages));
                self.place(direct, Batch::new(form, content), run.version)
            }
            (RunOf::Zeros(block), Some(direct)) => {
                self.place(direct, Batch::zeros(Place::new(block, pages)), run.version)
            }
            (RunOf::Entries(block) | RunOf::Direct(block) | RunOf::Zeros(block), _) => {
                self.flush()?;
                let form = Form::Entries { place: Place::new(block, pages), named: run.named };
                self.batch(Batch::new(form, content))
            }
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
        let noted = direct.ledger.note(place.block, version, pages);
        noted.map_err(|error| format!("QEMU's stream makes no sense: {error}"))?;
        self.batch(batch)
    }

    fn batch(&mut self, batch: Batch) -> Result<(), Stop> {
        let counts = &self.source.counts;
        add(&counts.pages, batch.kinds.len());
        add(&counts.zero_pages, batch.kinds.iter().filter(|kind| **kind == Kind::Zero).count());
        let Some(packers) = self.source.packers().filter(|_| !batch.content.is_empty()) else {
            return self.push(as_it_is(&batch, self.source));
        };
        // Paths that would have nothing to carry do not wait for it to be packed.
        if self.queue.is_idle() && self.takes(batch.content.len()) {
            hand_over(self.live, self.id, as_it_is(&batch, self.source));
            return Ok(());
        }
        let job = Job::new(batch, self.source.clone(), self.live.pool.take(Packer::OUT_BYTES));
        packers.offer(job.clone());
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
        if !wait_for_room(self.live, self.id, bytes, self.writable) {
            return Err(Ended::Over.into());
        }
        hand_over(self.live, self.id, parts);
        Ok(())
    }

    fn queue(&mut self, queued: Queued) -> Result<(), Stop> {
        if self.queue.push(queued, WAITING_BYTES) { Ok(()) } else { Err(Ended::Over.into()) }
    }
}

/// Pages of the main channel that are to travel together.
#[derive(Default)]
struct Run {
    of: Option<RunOf>,
    version: u32,
    /// The first entry names its block.
    named: bool,
    pages: Vec<u32>,
    content: BytesMut,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RunOf {
    Direct(u16),
    Zeros(u16),
    Entries(u16),
}

impl Run {
    /// Whether one more may be added. `names`: it cannot follow one, since it names its block.
    fn takes(&self, of: RunOf, version: u32, names: bool) -> bool {
        match self.of {
            None => true,
            Some(own) => own == of && self.version == version && !names && self.pages.len() < BATCH_PAGES_MAX,
        }
    }

    fn add(&mut self, of: RunOf, version: u32, offset: u64, named: bool) {
        if self.of.is_none() {
            (self.of, self.version, self.named) = (Some(of), version, named);
        }
        self.pages.push((offset / PAGE_BYTES as u64) as u32);
    }
}
