//! Takes QEMU's main channel apart.

use std::sync::Arc;

use bytes::BytesMut;
use skein_pages::page_record::{self, BlockInfo};
use skein_pages::{BATCH_PAGES_MAX, Batch, BatchForm, BlockName, PAGE_BYTES, PageRuns};
use skein_qemu_stream::barrier::Barriers;
use skein_qemu_stream::main_channel::{Block, Entry, MainItem, Parser, Postcopy, entry};

use super::input::{Input, IntakeStop};
use super::last_pages::send_last_pages;
use crate::source::error::{Unknown, Unplaceable};
use crate::source::page_counters::add;
use crate::source::pages::{DirectBlocks, PageRoute};

/// Bounds a block's bytes, because pages have numbers of 32 bits.
const BLOCK_BYTES_MAX: u64 = (PAGE_BYTES as u64) << 32;

/// The main channel, as far as it was read.
pub(super) struct MainChannel<'i, 'a> {
    input: &'i mut Input<'a>,
    parser: Parser,
    barriers: Barriers,
    /// The directly written blocks, once direct placement was decided.
    direct: Option<Arc<DirectBlocks>>,
    run: PageRun,
    /// Whether all of `ram` was said.
    ram_ended: bool,
}

/// The pages that are to travel together.
struct PageRun {
    of: Option<RunOf>,
    version: u32,
    /// Whether the first entry names its block.
    name: BlockName,
    pages: Vec<u32>,
    content: BytesMut,
}

/// What a run consists of, with the number of the block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunOf {
    /// The run has pages that the target's agent writes.
    Placed(u16),
    /// The run has zeros that the target's agent writes.
    Zeros(u16),
    /// The run has pages for the target's QEMU.
    Entries(u16),
}

impl<'i, 'a> MainChannel<'i, 'a> {
    pub(super) fn new(input: &'i mut Input<'a>) -> MainChannel<'i, 'a> {
        let (parser, barriers) = (Parser::new(), Barriers::new());
        MainChannel { input, parser, barriers, direct: None, run: PageRun::new(), ram_ended: false }
    }

    pub(super) fn read(mut self) -> Result<(), IntakeStop> {
        loop {
            match self.parser.next(self.input.reader.buffered()) {
                Ok(Some((MainItem::Opaque(why), _))) => {
                    self.end_run()?;
                    if !self.ram_ended {
                        self.input.pages.not_understood(why)?;
                    }
                    return self.input.send_opaque();
                }
                Ok(Some((MainItem::Blocks, bytes)))
                    if self.parser.blocks().iter().any(|block| block.bytes > BLOCK_BYTES_MAX) =>
                {
                    let head = self.input.reader.take(bytes);
                    self.input.outbox.gather(&head)?;
                    return self.give_up(Unknown::LargeBlock);
                }
                Ok(Some((item, bytes))) => self.item(item, bytes)?,
                Ok(None) => {
                    if self.input.reader.is_dry() {
                        self.end_run()?;
                        self.input.outbox.flush()?;
                    }
                    self.fill(self.parser.need())?;
                }
                Err(why) => return self.give_up(why.into()),
            }
        }
    }

    /// Sends everything that follows to QEMU.
    fn give_up(&mut self, why: Unknown) -> Result<(), IntakeStop> {
        self.end_run()?;
        self.input.pages.not_understood(why)?;
        self.input.send_opaque()
    }

    /// Buffers at least `least` bytes. What was read before an end goes on its way before the end.
    fn fill(&mut self, least: usize) -> Result<(), IntakeStop> {
        let Err(ended) = self.input.reader.fill(least) else { return Ok(()) };
        self.end_run()?;
        Err(ended.into())
    }

    /// Handles an item, which has the next `bytes` bytes.
    fn item(&mut self, item: MainItem, bytes: usize) -> Result<(), IntakeStop> {
        let version = self.barriers.count() as u32;
        self.barriers.item(&item);
        let head = self.input.reader.take(bytes);
        let source = self.input.pages;
        match item {
            MainItem::Page { block, offset, named } => {
                let name = if named { BlockName::Given } else { BlockName::AsBefore };
                self.page(block, offset, name, version, &head)
            }
            MainItem::Zero { block, offset, .. } => self.zero(block, offset, version, &head),
            MainItem::OtherPage { .. } if self.direct.is_some() => {
                Err(source.fail_direct_placement(Unplaceable::Xbzrle).into())
            }
            MainItem::Postcopy(kind) if self.direct.is_some() && kind != Postcopy::Advise => {
                Err(source.fail_direct_placement(Unplaceable::Postcopy).into())
            }
            MainItem::Blocks => self.blocks(&head),
            _ => {
                self.end_run()?;
                self.input.outbox.gather(&head)?;
                if self.barriers.count() as u32 != version {
                    self.input.outbox.flush()?;
                    self.input.outbox.send(vec![page_record::barrier()])?;
                    let input = &self.input;
                    input.pages.wait_pages_written(input.id, self.barriers.count() as u32, input.is_over);
                }
                self.ram_ended |= item == MainItem::RamEnd;
                if let (MainItem::RamEnd, Some(direct)) = (item, self.direct.clone()) {
                    self.input.outbox.flush()?;
                    send_last_pages(self.input, &direct, self.barriers.count() as u32)?;
                }
                Ok(())
            }
        }
    }

    fn page(
        &mut self,
        block: usize,
        offset: u64,
        name: BlockName,
        version: u32,
        head: &[u8],
    ) -> Result<(), IntakeStop> {
        if let Err(stop) = self.fill(PAGE_BYTES) {
            self.input.outbox.gather(head)?;
            return Err(stop);
        }
        // An entry without a name must not refer to an entry that is left out of the stream.
        let (of, name) = match (&self.direct, self.placed(block)) {
            (_, Some(number)) => (RunOf::Placed(number), BlockName::AsBefore),
            (Some(_), None) => (RunOf::Entries(block as u16), BlockName::Given),
            (None, None) => (RunOf::Entries(block as u16), name),
        };
        self.run_on(of, version, offset, name)?;
        self.run.content.extend_from_slice(&self.input.reader.buffered()[..PAGE_BYTES]);
        self.input.reader.consume(PAGE_BYTES);
        Ok(())
    }

    fn zero(&mut self, block: usize, offset: u64, version: u32, head: &[u8]) -> Result<(), IntakeStop> {
        if let Some(number) = self.placed(block) {
            return self.run_on(RunOf::Zeros(number), version, offset, BlockName::AsBefore);
        }
        self.input.pages.counts.zeros(1);
        self.end_run()?;
        match self.direct {
            // As above, the entry must not refer to what was left out.
            Some(_) => {
                let name = &self.parser.blocks()[block].name;
                self.input.outbox.gather(&entry(Entry::Zero, Some(name), offset).expect("as it was read"))?;
            }
            None => self.input.outbox.gather(head)?,
        }
        Ok(())
    }

    /// Handles the complete list of RAM blocks: what becomes of their pages is decided now.
    fn blocks(&mut self, head: &[u8]) -> Result<(), IntakeStop> {
        self.end_run()?;
        self.input.outbox.gather(head)?;
        self.input.outbox.flush()?;
        let info = |block: &Block| BlockInfo { name: block.name.clone(), bytes: block.bytes };
        let note = self.input.pages.blocks(self.parser.blocks().iter().map(info).collect());
        self.input.outbox.send_message(&note)?;
        if let PageRoute::Direct(direct) = self.input.pages.mode(self.input.is_over)? {
            self.direct = Some(direct);
        }
        Ok(())
    }

    /// Returns the number of a block, if the target's agent writes the block's pages.
    fn placed(&self, block: usize) -> Option<u16> {
        self.direct.as_ref()?.number(&self.parser.blocks()[block].name)
    }

    /// Adds a page to the run, or begins the next run with it. A page that QEMU gave with its block's name begins a
    /// run, so that the name is given again.
    fn run_on(&mut self, of: RunOf, version: u32, offset: u64, name: BlockName) -> Result<(), IntakeStop> {
        let begins = name == BlockName::Given && self.direct.is_none();
        if begins || !self.run.takes(of, version) {
            self.end_run()?;
        }
        self.run.add(of, version, offset, name);
        Ok(())
    }

    fn end_run(&mut self) -> Result<(), IntakeStop> {
        let Some(of) = self.run.of.take() else { return Ok(()) };
        let pages = std::mem::take(&mut self.run.pages);
        let content = self.run.content.split().freeze();
        // Read into the reader's buffer, and gathered from there.
        add(&self.input.pages.counts.copied_bytes, 2 * content.len());
        let batch = match of {
            RunOf::Placed(block) => Batch::new(BatchForm::Direct(PageRuns::new(block, pages)), content),
            RunOf::Zeros(block) => Batch::zeros(PageRuns::new(block, pages)),
            RunOf::Entries(block) => {
                self.input.outbox.flush()?;
                let form = BatchForm::Entries { page_runs: PageRuns::new(block, pages), name: self.run.name };
                return Ok(self.input.outbox.send_batch(Batch::new(form, content))?);
            }
        };
        let direct = self.direct.as_ref().expect("it was decided before a run of them began");
        Ok(self.input.outbox.send_direct(direct, batch, self.run.version)?)
    }
}

impl PageRun {
    fn new() -> PageRun {
        let (version, name) = (0, BlockName::AsBefore);
        PageRun { of: None, version, name, pages: Vec::new(), content: BytesMut::new() }
    }

    /// Returns whether a page more may be added.
    fn takes(&self, of: RunOf, version: u32) -> bool {
        match self.of {
            None => true,
            Some(own) => own == of && self.version == version && self.pages.len() < BATCH_PAGES_MAX,
        }
    }

    fn add(&mut self, of: RunOf, version: u32, offset: u64, name: BlockName) {
        if self.of.is_none() {
            (self.of, self.version, self.name) = (Some(of), version, name);
        }
        self.pages.push((offset / PAGE_BYTES as u64) as u32);
    }
}
