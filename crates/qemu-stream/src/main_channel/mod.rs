//! The main channel, from the source to the target.
//!
//! A header, the configuration, commands, and sections, of which only those of `ram` say where they end: they are runs
//! of entries, each with a word in front that is the offset of a page and, below [`PAGE_BYTES`], flags (QEMU's
//! `migration/savevm.c`, `ram.c`). So the parser gets to the first section of a device, which is at the end of the
//! migration, or at its begin if a device (virtio-mem) sends something early.

use crate::block::{BLOCKS_MAX, PAGE_BYTES, block_name, is_page};
use crate::not_understood::NotUnderstood;
use crate::take::{Take, TakeStop};

/// The first word of the channel: "QEVM".
pub const MAGIC: u32 = 0x5145_564d;
const VERSION: u32 = 3;
/// More bytes than any item has, so that a buffer of this size always makes progress. The longest item is a page of the
/// old compression: its word, its block, its length, and `compressBound(4096)`.
pub const ITEM_BYTES_MAX: usize = 8 + 256 + 4 + COMPRESSED_BYTES_MAX;
const COMPRESSED_BYTES_MAX: usize = 4110;
/// QEMU ever sends only two.
const CAPABILITIES_MAX: u32 = 8;
const MACHINE_TYPE_BYTES_MAX: u32 = 255;
const PAGE: u64 = PAGE_BYTES as u64;
const PAGE_BITS: u32 = PAGE.ilog2();
const RAM_VERSION: u32 = 4;
const XBZRLE_ENCODING: u8 = 1;

/// The types of records.
mod section_type {
    pub const END_OF_STREAM: u8 = 0x00;
    pub const START: u8 = 0x01;
    pub const PART: u8 = 0x02;
    pub const END: u8 = 0x03;
    pub const FULL: u8 = 0x04;
    pub const SUBSECTION: u8 = 0x05;
    pub const CONFIGURATION: u8 = 0x07;
    pub const COMMAND: u8 = 0x08;
    pub const FOOTER: u8 = 0x7e;
}

/// The flags of a word of `ram`.
mod flag {
    pub const ZERO: u64 = 0x002;
    pub const MEM_SIZE: u64 = 0x004;
    pub const PAGE: u64 = 0x008;
    pub const END_OF_SECTION: u64 = 0x010;
    pub const CONTINUE: u64 = 0x020;
    pub const XBZRLE: u64 = 0x040;
    pub const COMPRESSED: u64 = 0x100;
    pub const MULTIFD_FLUSH: u64 = 0x200;
}

/// What the bytes at the front of the input are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MainItem {
    /// Bytes that are forwarded as they are: header, configuration, commands, heads and footers of sections. The
    /// payload of a command comes in pieces of any size.
    Plain,
    /// As [`MainItem::Plain`], with the last of the RAM blocks: [`Parser::blocks`] has all of them now.
    Blocks,
    /// The head of a page. Its content of [`PAGE_BYTES`] follows, and the caller takes it.
    Page {
        /// Index in [`Parser::blocks`].
        block: usize,
        /// Offset in the block, in bytes.
        offset: u64,
        /// Whether the entry names its block, as [`entry`] needs to know.
        named: bool,
    },
    /// A whole entry of a page of zeros.
    Zero {
        /// Index in [`Parser::blocks`].
        block: usize,
        /// Offset in the block, in bytes.
        offset: u64,
        /// Whether the entry names its block.
        named: bool,
    },
    /// A whole entry of a page as a delta (XBZRLE) or compressed.
    OtherPage {
        /// Index in [`Parser::blocks`].
        block: usize,
        /// Offset in the block, in bytes.
        offset: u64,
    },
    /// A word that may be a barrier: see [`Barriers`](crate::barrier::Barriers).
    Barrier(Barrier),
    /// The last word of `ram`, after which no page follows.
    RamEnd,
    /// The beginning of a postcopy command. Its payload follows as [`MainItem::Plain`].
    Postcopy(Postcopy),
    /// No bytes: this parser does not understand anything that follows.
    Opaque(Opaque),
}

/// Words of `ram` without a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barrier {
    /// The target has to wait for the multifd channels.
    Flush,
    /// A section ends.
    EndOfSection,
}

/// Commands of postcopy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Postcopy {
    /// Postcopy is possible. Sent whenever the source has the capability.
    Advise,
    /// Postcopy begins: which pages the target has to forget.
    Discard,
    /// Commands and devices' states, one behind the other in a payload.
    Packaged,
    /// The target has to take pages out of order.
    Listen,
    /// The target has to run the guest.
    Run,
    /// A lost connection was replaced.
    Resume,
    /// The target has to say which pages it has.
    ReceivedBitmap,
}

/// Why the parser ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Opaque {
    /// A section of something other than `ram`, with its name.
    #[error("a section of {0:?}")]
    Section(String),
    /// A section with a number that was never named.
    #[error("section {0}")]
    Unnamed(u32),
    /// A command that is unknown, or that leaves live migration as this parser knows it (COLO).
    #[error("command {0}")]
    Command(u16),
    /// The configuration has the capability `mapped-ram`: pages are not in the stream.
    #[error("mapped-ram")]
    MappedRam,
    /// The migration ended without a device.
    #[error("the end of the stream")]
    End,
}

/// A RAM block of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The block's name: 1 to [`BLOCK_NAME_BYTES_MAX`](crate::BLOCK_NAME_BYTES_MAX) bytes without a NUL.
    pub name: String,
    /// Its size, a multiple of [`PAGE_BYTES`].
    pub bytes: u64,
    /// The size of its host pages, in bytes. `None`: the source did not say. It does if postcopy is possible and the
    /// pages are not of 4 KiB.
    pub page_bytes: Option<u64>,
}

/// Reads the channel item by item. The parser does not store the bytes that it was given.
#[derive(Debug)]
pub struct Parser {
    state: State,
    need: usize,
    machine_type: Option<String>,
    ignores_shared: bool,
    /// The host page sizes of all RAM blocks, or'd. The source sends them if postcopy is possible.
    host_page_sizes: u64,
    ram: Ram,
    blocks: Vec<Block>,
    /// The block of the last page, for entries without a name. It remains valid from section to section.
    block: Option<usize>,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Header,
    Record(After),
    /// The payload of a command.
    Payload {
        remaining: u64,
    },
    /// The word in front of the RAM blocks, in section `id`.
    BlockList {
        id: u32,
    },
    /// A RAM block: `remaining` bytes of RAM are missing in the list.
    Block {
        id: u32,
        remaining: u64,
    },
    /// An entry of section `id`.
    Entry {
        id: u32,
        section: Position,
    },
    Opaque(Opaque),
    Failed(NotUnderstood),
}

/// What a record follows, where that decides which records are possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Header,
    Configuration,
    Section(u32),
    Other,
}

/// The place of a section among those of `ram`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// Other sections follow.
    Before,
    /// The END section.
    Last,
}

/// The sections of `ram`: a START, PARTs, an END.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ram {
    Unknown,
    Open(u32),
    Ended,
}

impl Default for Parser {
    fn default() -> Self {
        Self {
            state: State::Header,
            need: 1,
            machine_type: None,
            ignores_shared: false,
            host_page_sizes: 0,
            ram: Ram::Unknown,
            blocks: Vec::new(),
            block: None,
        }
    }
}

impl Parser {
    /// Returns a parser at the beginning of the channel.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the item at the front of `input` and how many bytes it has. `None`: at least [`Parser::need`] bytes are
    /// needed. Next time, pass what follows these bytes (and the content of a page).
    ///
    /// # Errors
    /// [`NotUnderstood`] if the bytes are not understood. An error, like [`MainItem::Opaque`], consumes nothing and is
    /// final.
    pub fn next(&mut self, input: &[u8]) -> Result<Option<(MainItem, usize)>, NotUnderstood> {
        let mut take = Take::new(input);
        match self.read(&mut take) {
            Ok((item, state)) => {
                let consumed = if matches!(state, State::Opaque(_)) { 0 } else { take.taken() };
                self.state = state;
                Ok(Some((item, consumed)))
            }
            Err(TakeStop::Short(need)) => {
                self.need = need;
                Ok(None)
            }
            Err(TakeStop::Bad(error)) => {
                self.state = State::Failed(error.clone());
                Err(error)
            }
        }
    }

    /// Returns how many bytes the input must have at least after [`Parser::next`] returned `None`; at most
    /// [`ITEM_BYTES_MAX`].
    pub fn need(&self) -> usize {
        self.need
    }

    /// Returns the machine type. `None`: the configuration was not read yet.
    pub fn machine_type(&self) -> Option<&str> {
        self.machine_type.as_deref()
    }

    /// Returns the RAM blocks: all of them once [`MainItem::Blocks`] was returned.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Reads an item, and returns the state after it. The parser's other fields change only after the last byte was
    /// taken, because a read that comes too short is repeated.
    fn read(&mut self, take: &mut Take<'_>) -> Result<(MainItem, State), TakeStop> {
        match self.state.clone() {
            State::Header => {
                let (magic, version) = (take.u32()?, take.u32()?);
                if (magic, version) != (MAGIC, VERSION) {
                    return Err(NotUnderstood::Format { magic, version }.into());
                }
                Ok((MainItem::Plain, State::Record(After::Header)))
            }
            State::Record(after) => self.section(after, take),
            State::Payload { remaining } => {
                let piece = take.some(remaining)?;
                Ok((MainItem::Plain, payload(remaining - piece)))
            }
            State::BlockList { id } => match take.u64()? {
                word if word % PAGE == flag::MEM_SIZE => Ok(block_list(id, word - flag::MEM_SIZE)),
                word => Err(NotUnderstood::Word(word).into()),
            },
            State::Block { id, remaining } => self.block(id, remaining, take),
            State::Entry { id, section } => self.entry(id, section, take),
            State::Opaque(what) => Ok(opaque(what)),
            State::Failed(error) => Err(error.into()),
        }
    }

    fn section(&mut self, after: After, take: &mut Take<'_>) -> Result<(MainItem, State), TakeStop> {
        let kind = take.u8()?;
        match (kind, after) {
            (section_type::CONFIGURATION, After::Header) => self.configuration(take),
            (section_type::SUBSECTION, After::Configuration) => self.subsection(take),
            (section_type::COMMAND, _) => self.command(take),
            (section_type::START | section_type::FULL, _) => self.begin(kind, take),
            (section_type::PART | section_type::END, _) => match take.u32()? {
                id if self.ram == Ram::Open(id) => {
                    let section = if kind == section_type::END { Position::Last } else { Position::Before };
                    Ok((MainItem::Plain, State::Entry { id, section }))
                }
                id => Ok(opaque(Opaque::Unnamed(id))),
            },
            // Machine types may omit the footer (`send-section-footer`).
            (section_type::FOOTER, After::Section(id)) => match take.u32()? {
                footer if footer == id => Ok((MainItem::Plain, State::Record(After::Other))),
                other => Err(NotUnderstood::RamSection(other).into()),
            },
            (section_type::END_OF_STREAM, _) => Ok(opaque(Opaque::End)),
            _ => Err(NotUnderstood::Record(kind).into()),
        }
    }

    fn configuration(&mut self, take: &mut Take<'_>) -> Result<(MainItem, State), TakeStop> {
        let length = take.u32()?;
        if length > MACHINE_TYPE_BYTES_MAX {
            return Err(NotUnderstood::Configuration(format!("a machine type of {length} bytes")).into());
        }
        let machine_type = String::from_utf8_lossy(take.bytes(length as usize)?);
        self.machine_type = Some(machine_type.into_owned());
        Ok((MainItem::Plain, State::Record(After::Configuration)))
    }

    fn subsection(&mut self, take: &mut Take<'_>) -> Result<(MainItem, State), TakeStop> {
        let (name, version) = (take.str8()?, take.u32()?);
        let unknown = |what| Err(NotUnderstood::Configuration(what).into());
        match (name, version) {
            (b"configuration/uuid", 1) => drop(take.bytes(16)?),
            (b"configuration/target-page-bits", 1) => match take.u32()? {
                PAGE_BITS => {}
                bits => return unknown(format!("pages of 2^{bits} bytes")),
            },
            (b"configuration/capabilities", 1) => {
                let count = take.u32()?;
                if count > CAPABILITIES_MAX {
                    return unknown(format!("{count} capabilities"));
                }
                let mut ignores_shared = false;
                for _ in 0..count {
                    match take.str8()? {
                        b"x-ignore-shared" => ignores_shared = true,
                        b"mapped-ram" => return Ok(opaque(Opaque::MappedRam)),
                        other => return unknown(String::from_utf8_lossy(other).into_owned()),
                    }
                }
                self.ignores_shared = ignores_shared;
            }
            _ => return unknown(String::from_utf8_lossy(name).into_owned()),
        }
        Ok((MainItem::Plain, State::Record(After::Configuration)))
    }

    fn command(&mut self, take: &mut Take<'_>) -> Result<(MainItem, State), TakeStop> {
        let (command, bytes) = (take.u16()?, take.u16()?);
        let (item, fits) = match command {
            // Opens the return path; pings; begins the switchover.
            1 | 11 => (MainItem::Plain, bytes == 0),
            2 => (MainItem::Plain, bytes == 4),
            // Without a payload if postcopy is only for other things than RAM.
            3 => (MainItem::Postcopy(Postcopy::Advise), bytes == 16 || bytes == 0),
            4 => (MainItem::Postcopy(Postcopy::Listen), bytes == 0),
            5 => (MainItem::Postcopy(Postcopy::Run), bytes == 0),
            6 => (MainItem::Postcopy(Postcopy::Discard), true),
            7 => (MainItem::Postcopy(Postcopy::Packaged), bytes == 4),
            9 => (MainItem::Postcopy(Postcopy::Resume), bytes == 0),
            10 => (MainItem::Postcopy(Postcopy::ReceivedBitmap), true),
            _ => return Ok(opaque(Opaque::Command(command))),
        };
        if !fits {
            return Err(NotUnderstood::Command { command, bytes }.into());
        }
        let remaining = match item {
            MainItem::Postcopy(Postcopy::Advise) if bytes != 0 => {
                let (host_page_sizes, page_bytes) = (take.u64()?, take.u64()?);
                if page_bytes != PAGE {
                    return Err(NotUnderstood::Configuration(format!("pages of {page_bytes} bytes")).into());
                }
                self.host_page_sizes = host_page_sizes;
                0
            }
            // The package follows the command.
            MainItem::Postcopy(Postcopy::Packaged) => take.u32()?,
            _ => bytes.into(),
        };
        Ok((item, payload(remaining.into())))
    }

    /// Reads the head of a named section.
    fn begin(&mut self, kind: u8, take: &mut Take<'_>) -> Result<(MainItem, State), TakeStop> {
        let (id, name) = (take.u32()?, take.str8()?);
        let (instance, version) = (take.u32()?, take.u32()?);
        if name != b"ram" {
            return Ok(opaque(Opaque::Section(String::from_utf8_lossy(name).into_owned())));
        }
        if kind != section_type::START || self.ram != Ram::Unknown || (instance, version) != (0, RAM_VERSION) {
            return Err(NotUnderstood::RamSection(id).into());
        }
        self.ram = Ram::Open(id);
        Ok((MainItem::Plain, State::BlockList { id }))
    }

    /// `ram_save_setup`, `parse_ramblock`. A host page's size follows the block's if postcopy may come and it is not
    /// 4096. Whether one is there can be told from what else might be: the length of the next name, which makes a word
    /// of 2^56 at least, or after the last block a word without offset.
    fn block(&mut self, id: u32, remaining: u64, take: &mut Take<'_>) -> Result<(MainItem, State), TakeStop> {
        let bad = |what| Err(NotUnderstood::Block { what }.into());
        let (name, bytes) = (take.str8()?, take.u64()?);
        let Some(name) = block_name(name) else { return bad("has no name") };
        if !bytes.is_multiple_of(PAGE) {
            return bad("ends in the middle of a page");
        }
        let Some(remaining) = remaining.checked_sub(bytes) else { return bad("is larger than all together") };
        if self.blocks.len() == BLOCKS_MAX {
            return bad("is one too many");
        }
        if self.blocks.iter().any(|block| block.name == name) {
            return bad("comes twice");
        }
        let mut page_bytes = None;
        if self.host_page_sizes & !PAGE != 0 {
            let size = take.clone().u64()?;
            if size > PAGE && size < 1 << 56 {
                if !size.is_power_of_two() || self.host_page_sizes & size == 0 {
                    return bad("has host pages of another size than was said");
                }
                page_bytes = Some(take.u64()?);
            }
        }
        if self.ignores_shared {
            // The block's address in the guest.
            take.u64()?;
        }
        self.blocks.push(Block { name: name.into(), bytes, page_bytes });
        Ok(block_list(id, remaining))
    }

    fn entry(&mut self, id: u32, section: Position, take: &mut Take<'_>) -> Result<(MainItem, State), TakeStop> {
        let word = take.u64()?;
        let (offset, flags) = (word - word % PAGE, word % PAGE);
        let again = State::Entry { id, section };
        match word {
            flag::MULTIFD_FLUSH => return Ok((MainItem::Barrier(Barrier::Flush), again)),
            flag::END_OF_SECTION => {
                let (item, ram) = match section {
                    Position::Last => (MainItem::RamEnd, Ram::Ended),
                    Position::Before => (MainItem::Barrier(Barrier::EndOfSection), Ram::Open(id)),
                };
                self.ram = ram;
                return Ok((item, State::Record(After::Section(id))));
            }
            _ => {}
        }
        let kind = flags & !flag::CONTINUE;
        if ![flag::ZERO, flag::PAGE, flag::XBZRLE, flag::COMPRESSED].contains(&kind) {
            return Err(NotUnderstood::Word(word).into());
        }
        let named = flags & flag::CONTINUE == 0;
        let block = if named {
            let name = take.str8()?;
            self.blocks.iter().position(|block| block.name.as_bytes() == name)
        } else {
            self.block
        };
        let Some(block) = block.filter(|block| offset < self.blocks[*block].bytes) else {
            return Err(NotUnderstood::Page.into());
        };
        let item = match kind {
            flag::PAGE => MainItem::Page { block, offset, named },
            flag::ZERO => match take.u8()? {
                0 => MainItem::Zero { block, offset, named },
                // QEMU could fill a page with any byte, and never did.
                _ => return Err(NotUnderstood::Encoding("a page filled with something").into()),
            },
            flag::XBZRLE => {
                let (encoding, length) = (take.u8()?, take.u16()?.into());
                if encoding != XBZRLE_ENCODING || length > PAGE_BYTES {
                    return Err(NotUnderstood::Encoding("an XBZRLE delta").into());
                }
                take.bytes(length)?;
                MainItem::OtherPage { block, offset }
            }
            _ => {
                let length = take.u32()? as usize;
                if length > COMPRESSED_BYTES_MAX {
                    return Err(NotUnderstood::Encoding("a compressed page").into());
                }
                take.bytes(length)?;
                MainItem::OtherPage { block, offset }
            }
        };
        self.block = Some(block);
        Ok((item, again))
    }
}

fn opaque(what: Opaque) -> (MainItem, State) {
    (MainItem::Opaque(what.clone()), State::Opaque(what))
}

/// Returns the state after a part of a command's payload.
fn payload(remaining: u64) -> State {
    if remaining == 0 { State::Record(After::Other) } else { State::Payload { remaining } }
}

/// Returns the item and the state after a part of the list of RAM blocks.
fn block_list(id: u32, remaining: u64) -> (MainItem, State) {
    match remaining {
        0 => (MainItem::Blocks, State::Entry { id, section: Position::Before }),
        _ => (MainItem::Plain, State::Block { id, remaining }),
    }
}

/// The kinds of entries that [`entry`] makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// The head of a page: [`MainItem::Page`]. The content follows.
    Page,
    /// A whole [`MainItem::Zero`].
    Zero,
}

/// Returns an entry of `ram` as QEMU writes it, for a page at `offset` of `block`, or of the block of the entry before.
/// Returns `None` if the name is not valid, or no page begins at `offset`.
pub fn entry(entry: Entry, block: Option<&str>, offset: u64) -> Option<Vec<u8>> {
    let kind = match entry {
        Entry::Page => flag::PAGE,
        Entry::Zero => flag::ZERO,
    };
    let continued = if block.is_some() { 0 } else { flag::CONTINUE };
    if !is_page(offset) || block.is_some_and(|name| block_name(name.as_bytes()).is_none()) {
        return None;
    }
    let mut bytes = (offset | kind | continued).to_be_bytes().to_vec();
    if let Some(name) = block {
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(name.as_bytes());
    }
    if entry == Entry::Zero {
        bytes.push(0);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
