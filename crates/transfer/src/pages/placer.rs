//! What arrives at the target: pages into the guest's RAM, the rest to QEMU.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use skein_core::StreamId;
use skein_pages::packing::Unpacker;
use skein_pages::record::{self, BatchHead, Decoder, Note, Record};
use skein_pages::{Form, Kind, PAGE_BYTES, Place};
use skein_qemu_stream::main::{Entry, entry};

#[cfg(feature = "fault-points")]
use super::fault::{Plant, is_planted};
use super::target::{Failed, Target};

static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// What is read again at once: it is in the core's cache then.
const SCRATCH_BYTES: usize = 16 * PAGE_BYTES;

/// Takes one stream apart.
pub(crate) struct Placer {
    target: Arc<Target>,
    stream: StreamId,
    decoder: Decoder,
    unpacker: Option<Unpacker>,
    scratch: Vec<u8>,
    barriers: u32,
    /// The source has sent all pages; what follows on this stream waits for those of the others.
    complete: Option<Complete>,
}

struct Complete {
    version: u32,
    streams: u16,
    digest: skein_pages::ledger::Digest,
}

/// How far it came.
pub(crate) enum Step {
    /// It needs more from the source.
    Done,
    /// It waits for other streams.
    Waits,
}

impl Placer {
    pub(crate) fn new(target: Arc<Target>, stream: StreamId) -> Placer {
        target.passed(stream, 0);
        Placer {
            target,
            stream,
            decoder: Decoder::default(),
            unpacker: None,
            scratch: vec![0; SCRATCH_BYTES],
            barriers: 0,
            complete: None,
        }
    }

    pub(crate) fn push(&mut self, piece: Bytes) {
        self.decoder.push(piece);
    }

    /// Deals with what is there. What QEMU is to get goes to `out`, what the source's agent is to know to `answers`.
    /// `wait`: it may wait a little.
    pub(crate) fn step(
        &mut self,
        out: &mut VecDeque<Bytes>,
        answers: &mut Vec<Bytes>,
        wait: bool,
    ) -> Result<Step, Failed> {
        loop {
            if let Some(complete) = &self.complete {
                if !self.target.all_passed(complete.streams, complete.version, wait) {
                    return Ok(Step::Waits);
                }
                let verdict = self.target.verdict(complete.digest)?;
                self.complete = None;
                answers.push(record::note(&verdict).map_err(told)?);
            }
            match self.decoder.record().map_err(told)? {
                None => return Ok(Step::Done),
                Some(Record::Bytes(bytes)) => out.extend((!bytes.is_empty()).then_some(bytes)),
                Some(Record::Opaque) => {}
                Some(Record::Barrier) => {
                    self.barriers += 1;
                    self.target.passed(self.stream, self.barriers);
                }
                Some(Record::Batch { head, packed, stored }) => self.batch(&head, &packed, stored, out)?,
                Some(Record::Note(note)) => {
                    if let Some(answer) = self.note(note)? {
                        answers.push(record::note(&answer).map_err(told)?);
                    }
                }
            }
        }
    }

    fn note(&mut self, note: Note) -> Result<Option<Note>, Failed> {
        match note {
            Note::Blocks { key, blocks } => self.target.decide(&key, blocks).map(Some),
            Note::Complete { version, streams, digest } => {
                self.complete = Some(Complete { version, streams, digest });
                Ok(None)
            }
            Note::Regions { regions, last } => self.target.compare(regions, last),
            Note::Mode { .. } | Note::Verdict { .. } | Note::Differ { .. } => {
                Err("the source's agent said what is the target's to say".into())
            }
        }
    }

    fn batch(
        &mut self,
        head: &BatchHead,
        packed: &[u8],
        stored: Vec<Bytes>,
        out: &mut VecDeque<Bytes>,
    ) -> Result<(), Failed> {
        let unpacked = match head.count(Kind::Packed) {
            0 => &[][..],
            pages => {
                if self.unpacker.is_none() {
                    self.unpacker = Some(Unpacker::new().map_err(told)?);
                }
                let unpacker = self.unpacker.as_mut().expect("just made");
                unpacker.unpack(head.packing, pages, packed).map_err(told)?
            }
        };
        let mut unpacked = unpacked;
        let mut stored = Stored(stored.into());
        match &head.form {
            Form::Direct(place) => {
                let blocks = self.target.blocks().ok_or("pages come before it was said of which RAM")?;
                #[cfg(feature = "fault-points")]
                if place.pages().next().is_some_and(|page| is_planted(Plant::LostBatch, page)) {
                    return Ok(());
                }
                let mut left = &head.kinds[..];
                for run in &place.runs {
                    let (kinds, later) = left.split_at(usize::from(run.pages));
                    left = later;
                    let mut page = run.first;
                    for alike in kinds.chunk_by(|a, b| a == b) {
                        let mut pages = alike.len();
                        while pages > 0 {
                            let placed = match alike[0] {
                                Kind::Zero => {
                                    blocks.place_zeros(place.block, page, self.barriers, pages, &mut self.scratch)?;
                                    pages
                                }
                                Kind::Packed => {
                                    let (content, later) = unpacked.split_at(pages * PAGE_BYTES);
                                    unpacked = later;
                                    blocks.place(place.block, page, self.barriers, content, &mut self.scratch)?;
                                    pages
                                }
                                Kind::Stored => {
                                    let content = stored.next(pages);
                                    blocks.place(place.block, page, self.barriers, &content, &mut self.scratch)?;
                                    content.len() / PAGE_BYTES
                                }
                            };
                            page += placed as u32;
                            pages -= placed;
                        }
                    }
                }
            }
            Form::Content | Form::Entries { .. } => {
                let mut heads = match &head.form {
                    Form::Entries { place, named } => Some(entries(&self.target, place, *named)?.into_iter()),
                    _ => None,
                };
                for kind in &head.kinds {
                    out.extend(heads.as_mut().and_then(Iterator::next));
                    match kind {
                        Kind::Zero => out.push_back(Bytes::from_static(&ZEROS)),
                        Kind::Packed => {
                            let (content, later) = unpacked.split_at(PAGE_BYTES);
                            unpacked = later;
                            out.push_back(Bytes::copy_from_slice(content));
                        }
                        Kind::Stored => stored.pass_on(|part| out.push_back(part)),
                    }
                }
            }
        }
        Ok(())
    }
}

/// What goes before each page on QEMU's main channel.
fn entries(target: &Target, place: &Place, named: bool) -> Result<Vec<Bytes>, Failed> {
    let blocks = target.blocks().ok_or("pages come before it was said of which RAM")?;
    let name = blocks.names.get(usize::from(place.block)).ok_or("pages of RAM that there is not")?;
    let entry = |(nth, page): (usize, u32)| {
        let name = (named && nth == 0).then_some(&name[..]);
        let bytes = entry(Entry::Page, name, u64::from(page) * PAGE_BYTES as u64);
        bytes.map(Bytes::from).ok_or_else(|| "pages of RAM that there is not".to_owned())
    };
    place.pages().enumerate().map(entry).collect()
}

fn told(error: impl std::fmt::Display) -> Failed {
    error.to_string()
}

/// Pages in the pieces in which they came.
struct Stored(VecDeque<Bytes>);

impl Stored {
    /// The next pages: up to so many that are in one piece, or one that was torn.
    fn next(&mut self, pages: usize) -> Bytes {
        let front = self.front();
        let whole = (front.len() / PAGE_BYTES).min(pages);
        if whole > 0 {
            return front.split_to(whole * PAGE_BYTES);
        }
        let mut torn = BytesMut::with_capacity(PAGE_BYTES);
        self.pass_on(|part| torn.extend_from_slice(&part));
        torn.freeze()
    }

    /// The parts of the next page.
    fn pass_on(&mut self, mut to: impl FnMut(Bytes)) {
        let mut left = PAGE_BYTES;
        while left > 0 {
            let front = self.front();
            let part = front.split_to(front.len().min(left));
            left -= part.len();
            to(part);
        }
    }

    fn front(&mut self) -> &mut Bytes {
        while self.0.front().is_some_and(Bytes::is_empty) {
            self.0.pop_front();
        }
        self.0.front_mut().expect("as many pages as the head says")
    }
}
