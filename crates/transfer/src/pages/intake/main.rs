//! QEMU's main channel, taken apart.

use std::sync::Arc;

use bytes::BytesMut;
use skein_pages::record::{self, BlockInfo};
use skein_pages::{BATCH_PAGES_MAX, Batch, Form, PAGE_BYTES, Place};
use skein_qemu_stream::barrier::Barriers;
use skein_qemu_stream::main::{Block, Entry, Item, Parser, Postcopy, entry};

use super::{Intake, Stop};
use crate::pages::source::{Direct, Mode};

/// Pages have numbers of 32 bits.
const BLOCK_BYTES_MAX: u64 = (PAGE_BYTES as u64) << 32;

/// The main channel, as far as it was read.
pub(super) struct MainChannel<'i, 'a> {
    intake: &'i mut Intake<'a>,
    parser: Parser,
    barriers: Barriers,
    /// Since it was decided, if it was decided so.
    direct: Option<Arc<Direct>>,
    run: Run,
    /// All of `ram` was said.
    ram_ended: bool,
}

/// Pages that are to travel together.
#[derive(Default)]
struct Run {
    of: Option<RunOf>,
    version: u32,
    /// The first entry names its block.
    named: bool,
    pages: Vec<u32>,
    content: BytesMut,
}

/// What a run is of, with the number of the block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunOf {
    /// Pages that the target's agent writes.
    Placed(u16),
    /// Zeros that the target's agent writes.
    Zeros(u16),
    /// Pages for the target's QEMU.
    Entries(u16),
}

impl<'i, 'a> MainChannel<'i, 'a> {
    pub(super) fn new(intake: &'i mut Intake<'a>) -> MainChannel<'i, 'a> {
        let (parser, barriers) = (Parser::new(), Barriers::new());
        MainChannel { intake, parser, barriers, direct: None, run: Run::default(), ram_ended: false }
    }

    pub(super) fn read(mut self) -> Result<(), Stop> {
        loop {
            match self.parser.next(self.intake.tap.buffered()) {
                Ok(Some((Item::Opaque(why), _))) => {
                    self.end_run()?;
                    if !self.ram_ended {
                        self.intake.source.not_understood(&why.to_string())?;
                    }
                    return self.intake.opaque();
                }
                Ok(Some((Item::Blocks, bytes)))
                    if self.parser.blocks().iter().any(|block| block.bytes > BLOCK_BYTES_MAX) =>
                {
                    let head = self.intake.tap.take(bytes);
                    self.intake.gather(&head)?;
                    return self.give_up("a RAM block of more than 16 TiB");
                }
                Ok(Some((item, bytes))) => self.item(item, bytes)?,
                Ok(None) => {
                    if self.intake.tap.is_dry() {
                        self.end_run()?;
                        self.intake.flush()?;
                    }
                    self.fill(self.parser.need())?;
                }
                Err(why) => return self.give_up(&why.to_string()),
            }
        }
    }

    /// Everything that follows is for QEMU.
    fn give_up(&mut self, why: &str) -> Result<(), Stop> {
        self.end_run()?;
        self.intake.source.not_understood(why)?;
        self.intake.opaque()
    }

    /// Buffers at least so many bytes. What was read before an end goes on its way before that.
    fn fill(&mut self, least: usize) -> Result<(), Stop> {
        let Err(ended) = self.intake.tap.fill(least) else { return Ok(()) };
        self.end_run()?;
        Err(ended.into())
    }

    /// An item that the next so many bytes are.
    fn item(&mut self, item: Item, bytes: usize) -> Result<(), Stop> {
        let version = self.barriers.count() as u32;
        self.barriers.item(&item);
        let head = self.intake.tap.take(bytes);
        let source = self.intake.source;
        match item {
            Item::Page { block, offset, named } => self.page(block, offset, named, version, &head),
            Item::Zero { block, offset, .. } => self.zero(block, offset, version, &head),
            Item::OtherPage { .. } if self.direct.is_some() => {
                Err(Stop::Failed(source.not_placeable("QEMU sends deltas of them (xbzrle)")))
            }
            Item::Postcopy(kind) if self.direct.is_some() && kind != Postcopy::Advise => {
                Err(Stop::Failed(source.not_placeable("QEMU begins postcopy")))
            }
            Item::Blocks => self.blocks(&head),
            _ => {
                self.end_run()?;
                self.intake.gather(&head)?;
                if self.barriers.count() as u32 != version {
                    self.intake.flush()?;
                    self.intake.push(vec![record::barrier()])?;
                    let intake = &self.intake;
                    intake.source.wait_placed(intake.id, self.barriers.count() as u32, intake.is_over);
                }
                self.ram_ended |= item == Item::RamEnd;
                if let (Item::RamEnd, Some(direct)) = (item, self.direct.clone()) {
                    self.intake.flush()?;
                    self.intake.complete(&direct, self.barriers.count() as u32)?;
                }
                Ok(())
            }
        }
    }

    fn page(&mut self, block: usize, offset: u64, named: bool, version: u32, head: &[u8]) -> Result<(), Stop> {
        if let Err(stop) = self.fill(PAGE_BYTES) {
            self.intake.gather(head)?;
            return Err(stop);
        }
        // What is left out of the stream must not be what an entry without a name refers to.
        let (of, named) = match (&self.direct, self.placed(block)) {
            (_, Some(number)) => (RunOf::Placed(number), false),
            (Some(_), None) => (RunOf::Entries(block as u16), true),
            (None, None) => (RunOf::Entries(block as u16), named),
        };
        self.run_on(of, version, offset, named)?;
        self.run.content.extend_from_slice(&self.intake.tap.buffered()[..PAGE_BYTES]);
        self.intake.tap.consume(PAGE_BYTES);
        Ok(())
    }

    fn zero(&mut self, block: usize, offset: u64, version: u32, head: &[u8]) -> Result<(), Stop> {
        if let Some(number) = self.placed(block) {
            return self.run_on(RunOf::Zeros(number), version, offset, false);
        }
        self.intake.source.counts.zeros(1);
        self.end_run()?;
        match self.direct {
            // As above: it must not refer to what was left out.
            Some(_) => {
                let name = &self.parser.blocks()[block].name;
                self.intake.gather(&entry(Entry::Zero, Some(name), offset).expect("as it was read"))
            }
            None => self.intake.gather(head),
        }
    }

    /// The list of RAM blocks is complete: what becomes of their pages is decided now.
    fn blocks(&mut self, head: &[u8]) -> Result<(), Stop> {
        self.end_run()?;
        self.intake.gather(head)?;
        self.intake.flush()?;
        let info = |block: &Block| BlockInfo { name: block.name.clone(), bytes: block.bytes };
        let note = self.intake.source.blocks(self.parser.blocks().iter().map(info).collect());
        self.intake.say(&note)?;
        if let Mode::Direct(direct) = self.intake.source.mode(self.intake.is_over)? {
            self.direct = Some(direct);
        }
        Ok(())
    }

    /// The number of a block whose pages the target's agent writes.
    fn placed(&self, block: usize) -> Option<u16> {
        self.direct.as_ref()?.number(&self.parser.blocks()[block].name)
    }

    /// Adds a page to the run, or begins the next one with it. One that QEMU gave with its block's name begins one, so that the
    /// name is given again.
    fn run_on(&mut self, of: RunOf, version: u32, offset: u64, named: bool) -> Result<(), Stop> {
        let begins = named && self.direct.is_none();
        if begins || !self.run.takes(of, version) {
            self.end_run()?;
        }
        self.run.add(of, version, offset, named);
        Ok(())
    }

    fn end_run(&mut self) -> Result<(), Stop> {
        let Some(of) = self.run.of.take() else { return Ok(()) };
        let pages = std::mem::take(&mut self.run.pages);
        let content = self.run.content.split().freeze();
        let batch = match of {
            RunOf::Placed(block) => Batch::new(Form::Direct(Place::new(block, pages)), content),
            RunOf::Zeros(block) => Batch::zeros(Place::new(block, pages)),
            RunOf::Entries(block) => {
                self.intake.flush()?;
                let form = Form::Entries { place: Place::new(block, pages), named: self.run.named };
                return self.intake.batch(Batch::new(form, content));
            }
        };
        let direct = self.direct.as_ref().expect("it was decided before a run of them began");
        self.intake.place(direct, batch, self.run.version)
    }
}

impl Run {
    /// Whether one more may be added.
    fn takes(&self, of: RunOf, version: u32) -> bool {
        match self.of {
            None => true,
            Some(own) => own == of && self.version == version && self.pages.len() < BATCH_PAGES_MAX,
        }
    }

    fn add(&mut self, of: RunOf, version: u32, offset: u64, named: bool) {
        if self.of.is_none() {
            (self.of, self.version, self.named) = (Some(of), version, named);
        }
        self.pages.push((offset / PAGE_BYTES as u64) as u32);
    }
}
