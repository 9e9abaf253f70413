//! A multifd channel: an initial packet, then packets of pages of one RAM block each, or of a device's state.
//!
//! The layouts are those of QEMU's `migration/multifd.h` and `multifd.c`: `MultiFDInit_t`, `MultiFDPacket_t`,
//! `MultiFDPacketDeviceState_t`. QEMU before 9.0 has no zero pages in packets, may set SYNC on a packet with pages, and
//! leaves in a packet what an earlier one had: offsets past its own, and in one without pages the block and the
//! payload's size.

use crate::block::{BLOCK_NAME_BYTES_MAX, PAGE_BYTES, block_name, is_page};
use crate::not_understood::NotUnderstood;

/// The first word of every packet.
pub const MAGIC: u32 = 0x1122_3344;
const VERSION: u32 = 1;
/// The first packet of a channel.
pub const INIT_BYTES: usize = 64;
/// The common beginning of all later packets: magic, version, flags.
const COMMON_BYTES: usize = 12;
/// The header of a packet of pages, however many it has.
pub const PACKET_BYTES: usize = OFFSETS_AT + 8 * PAGES_MAX;
/// The header of a packet of a device's state.
pub const DEVICE_STATE_BYTES: usize = 276;
/// The most pages of a packet: `MULTIFD_PACKET_SIZE`, 512 KiB.
pub const PAGES_MAX: usize = 128;
/// The longest payload of a packet of pages: QEMU allows twice `MULTIFD_PACKET_SIZE` for compressed pages.
pub const PAYLOAD_BYTES_MAX: usize = 2 * PAGES_MAX * PAGE_BYTES;

const FLAGS_AT: usize = 8;
const PAGES_ALLOC_AT: usize = 12;
const NORMAL_PAGES_AT: usize = 16;
const NEXT_PACKET_SIZE_AT: usize = 20;
const PACKET_NUM_AT: usize = 24;
const ZERO_PAGES_AT: usize = 32;
const NAME_AT: usize = 64;
const OFFSETS_AT: usize = NAME_AT + BLOCK_NAME_BYTES_MAX + 1;
/// Of a device's state.
const PAYLOAD_BYTES_AT: usize = 272;

const SYNC: u32 = 0x01;
const COMPRESSION: u32 = 0x3e;
/// None, zlib, zstd, QPL, UADK, QATzip.
const COMPRESSIONS: [u32; 6] = [0, 0x02, 0x04, 0x08, 0x10, 0x20];
const DEVICE_STATE: u32 = 0x40;

/// What comes next on a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// Part of a header, which the parser stores. The parser needs [`Parser::need`] more bytes.
    More,
    /// The first packet, [`INIT_BYTES`] long.
    Init {
        /// The channel's number, from 0. Channels connect in any order.
        id: u8,
        /// The VM's UUID, or zeros.
        uuid: [u8; 16],
    },
    /// Pages of a RAM block, or a barrier: [`Packet::payload_bytes`] follow.
    Packet(Packet),
    /// State of a device.
    DeviceState {
        /// The whole header.
        header: Box<[u8; DEVICE_STATE_BYTES]>,
        /// How many bytes follow: any number that the source claims, up to 4 GiB.
        payload_bytes: u32,
    },
}

/// The place of a packet in its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Position {
    /// At the beginning: the initial packet.
    #[default]
    First,
    /// After the initial packet.
    Later,
}

/// Reads the headers of a channel. The caller takes each payload off the connection before the next header.
#[derive(Debug, Default)]
pub struct Parser {
    /// The part of the header that was read so far.
    unfinished: Vec<u8>,
    position: Position,
    failed: Option<NotUnderstood>,
}

impl Parser {
    /// Returns a parser at the beginning of a channel.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how many bytes [`Parser::head`] needs next. 0: something was not understood.
    pub fn need(&self) -> usize {
        match (self.position, &self.unfinished[..]) {
            _ if self.failed.is_some() => 0,
            (Position::First, _) => INIT_BYTES,
            (Position::Later, []) => COMMON_BYTES,
            (Position::Later, common) if be32(common, FLAGS_AT) == DEVICE_STATE => DEVICE_STATE_BYTES - COMMON_BYTES,
            (Position::Later, _) => PACKET_BYTES - COMMON_BYTES,
        }
    }

    /// Returns the bytes that were passed in and are in no [`Head`] yet. After an error, opaque bytes begin with these.
    pub fn kept(&self) -> &[u8] {
        &self.unfinished
    }

    /// Reads the next part of a header.
    ///
    /// # Errors
    ///
    /// [`NotUnderstood`] if the header is not understood. Every later call returns the same error.
    ///
    /// # Panics
    ///
    /// Unless `bytes` has exactly [`Parser::need`] bytes.
    pub fn head(&mut self, bytes: &[u8]) -> Result<Head, NotUnderstood> {
        assert_eq!(bytes.len(), self.need(), "a header is given in the parts that were asked for");
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.unfinished.extend_from_slice(bytes);
        match read(&self.unfinished, self.position) {
            Ok(Head::More) => Ok(Head::More),
            Ok(head) => {
                self.unfinished.clear();
                self.position = Position::Later;
                Ok(head)
            }
            Err(error) => {
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }
}

/// Reads a header of [`Parser::need`] bytes, or the common part of one.
fn read(bytes: &[u8], position: Position) -> Result<Head, NotUnderstood> {
    let (magic, version) = (be32(bytes, 0), be32(bytes, 4));
    if (magic, version) != (MAGIC, VERSION) {
        return Err(NotUnderstood::Format { magic, version });
    }
    if position == Position::First {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[8..24]);
        return Ok(Head::Init { id: bytes[24], uuid });
    }
    let flags = be32(bytes, FLAGS_AT);
    let of_pages = flags & !(SYNC | COMPRESSION) == 0 && COMPRESSIONS.contains(&(flags & COMPRESSION));
    if !of_pages && flags != DEVICE_STATE {
        return Err(NotUnderstood::Flags(flags));
    }
    if bytes.len() == COMMON_BYTES {
        return Ok(Head::More);
    }
    if of_pages {
        return Packet::read(boxed(bytes)).map(Head::Packet);
    }
    match be32(bytes, PAYLOAD_BYTES_AT) {
        // QEMU refuses such a packet, too.
        0 => Err(NotUnderstood::Packet { what: "has no state of a device" }),
        payload_bytes => Ok(Head::DeviceState { header: boxed(bytes), payload_bytes }),
    }
}

/// The header of a packet of pages of one RAM block. There may be no normal pages, no zero pages, or neither.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    header: Box<[u8; PACKET_BYTES]>,
    normal_pages: usize,
    zero_pages: usize,
}

impl Packet {
    /// Checks the numbers. Flags, magic and version are checked already.
    fn read(header: Box<[u8; PACKET_BYTES]>) -> Result<Self, NotUnderstood> {
        let number = |at| be32(&header[..], at) as usize;
        let (normal_pages, zero_pages) = (number(NORMAL_PAGES_AT), number(ZERO_PAGES_AT));
        let packet = |what| Err(NotUnderstood::Packet { what });
        // Each number is checked by itself first, because their sum might overflow.
        if normal_pages > PAGES_MAX || zero_pages > PAGES_MAX || normal_pages + zero_pages > PAGES_MAX {
            return packet("has more pages than fit");
        }
        match number(PAGES_ALLOC_AT) {
            PAGES_MAX => {}
            // A SYNC packet of QEMU 9.0 and later.
            0 if normal_pages + zero_pages == 0 => {}
            _ => return packet("is for pages of another size"),
        }
        let packet_read = Self { header, normal_pages, zero_pages };
        if packet_read.has_pages() && packet_read.name().is_none() {
            return packet("has pages of no RAM block");
        }
        if !packet_read.normal().chain(packet_read.zero()).all(is_page) {
            return packet("has a page that begins nowhere");
        }
        if packet_read.payload_bytes() > PAYLOAD_BYTES_MAX {
            return packet("claims more payload than fits");
        }
        Ok(packet_read)
    }

    /// Returns the header as it was on the wire.
    pub fn header(&self) -> &[u8; PACKET_BYTES] {
        &self.header
    }

    /// Returns the flags as they are on the wire.
    pub fn flags(&self) -> u32 {
        be32(&self.header[..], FLAGS_AT)
    }

    /// Returns whether the channel has a barrier *after* the packet's pages.
    pub fn is_sync(&self) -> bool {
        self.flags() & SYNC != 0
    }

    /// Returns whether QEMU compressed the normal pages. Then the payload is opaque, and with zlib and zstd part of one
    /// stream for the whole channel.
    pub fn is_compressed(&self) -> bool {
        self.flags() & COMPRESSION != 0
    }

    /// Returns whether the packet has pages, normal or zero.
    pub fn has_pages(&self) -> bool {
        self.normal_pages + self.zero_pages > 0
    }

    /// Returns how many bytes follow the header, at most [`PAYLOAD_BYTES_MAX`]. If they are not compressed, they are
    /// the normal pages in their order.
    pub fn payload_bytes(&self) -> usize {
        match self.normal_pages {
            // QEMU before 9.0 leaves the size of an earlier packet in this field.
            0 => 0,
            _ if self.is_compressed() => be32(&self.header[..], NEXT_PACKET_SIZE_AT) as usize,
            // The receiving QEMU does not use the field either.
            pages => pages * PAGE_BYTES,
        }
    }

    /// Returns the name of the RAM block. In a packet without pages the name has no meaning, and may be empty.
    pub fn block(&self) -> &str {
        self.name().unwrap_or_default()
    }

    fn name(&self) -> Option<&str> {
        let name = &self.header[NAME_AT..OFFSETS_AT];
        let length = name.iter().position(|byte| *byte == 0)?;
        block_name(&name[..length])
    }

    /// Returns the offsets in the block, in bytes, of the payload's pages.
    pub fn normal(&self) -> impl ExactSizeIterator<Item = u64> + Clone + '_ {
        self.offsets(0, self.normal_pages)
    }

    /// Returns the offsets in the block, in bytes, of the pages of zeros. Only QEMU 9.0 and later sends and reads them.
    pub fn zero(&self) -> impl ExactSizeIterator<Item = u64> + Clone + '_ {
        self.offsets(self.normal_pages, self.zero_pages)
    }

    fn offsets(&self, first: usize, pages: usize) -> impl ExactSizeIterator<Item = u64> + Clone + '_ {
        (first..first + pages).map(|page| be64(&self.header[..], OFFSETS_AT + 8 * page))
    }

    /// Returns the header's fields, if they are all that the header has. `None`: QEMU before 9.0 left something of an
    /// earlier packet in the header.
    pub fn canonical(&self) -> Option<Canonical> {
        let canonical = Canonical {
            flags: self.flags(),
            pages_alloc: be32(&self.header[..], PAGES_ALLOC_AT),
            next_packet_size: be32(&self.header[..], NEXT_PACKET_SIZE_AT),
            packet_num: be64(&self.header[..], PACKET_NUM_AT),
            block: self.block().into(),
            normal: self.normal().collect(),
            zero: self.zero().collect(),
        };
        (canonical.header()? == self.header).then_some(canonical)
    }

    /// Returns the same header without pages and without a payload, for a packet whose pages reach the guest in another
    /// way. The SYNC flag and the packet's number stay.
    pub fn without_pages(&self) -> Box<[u8; PACKET_BYTES]> {
        let mut header = self.header.clone();
        for at in [NORMAL_PAGES_AT, ZERO_PAGES_AT, NEXT_PACKET_SIZE_AT] {
            header[at..at + 4].fill(0);
        }
        header
    }
}

/// The fields of a packet's header. They are not checked, and may come from anywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canonical {
    /// See [`Packet::flags`].
    pub flags: u32,
    /// Room for pages: [`PAGES_MAX`], or 0.
    pub pages_alloc: u32,
    /// Bytes of the payload, or what an earlier packet left in this field.
    pub next_packet_size: u32,
    /// The packet's number among those of all channels.
    pub packet_num: u64,
    /// See [`Packet::block`].
    pub block: String,
    /// See [`Packet::normal`].
    pub normal: Vec<u64>,
    /// See [`Packet::zero`].
    pub zero: Vec<u64>,
}

impl Canonical {
    /// Returns the header with these fields. `None`: the name or the pages do not fit.
    pub fn header(&self) -> Option<Box<[u8; PACKET_BYTES]>> {
        let pages = self.normal.len().checked_add(self.zero.len())?;
        if pages > PAGES_MAX || self.block.len() > BLOCK_NAME_BYTES_MAX {
            return None;
        }
        let mut header = Box::new([0; PACKET_BYTES]);
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_be_bytes());
        put(4, &VERSION.to_be_bytes());
        put(FLAGS_AT, &self.flags.to_be_bytes());
        put(PAGES_ALLOC_AT, &self.pages_alloc.to_be_bytes());
        put(NORMAL_PAGES_AT, &(self.normal.len() as u32).to_be_bytes());
        put(NEXT_PACKET_SIZE_AT, &self.next_packet_size.to_be_bytes());
        put(PACKET_NUM_AT, &self.packet_num.to_be_bytes());
        put(ZERO_PAGES_AT, &(self.zero.len() as u32).to_be_bytes());
        put(NAME_AT, self.block.as_bytes());
        for (page, offset) in self.normal.iter().chain(&self.zero).enumerate() {
            put(OFFSETS_AT + 8 * page, &offset.to_be_bytes());
        }
        Some(header)
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

fn boxed<const N: usize>(bytes: &[u8]) -> Box<[u8; N]> {
    Box::new(array(bytes, 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn init(id: u8) -> Vec<u8> {
        let mut bytes = vec![0; INIT_BYTES];
        bytes[..8].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0, 0, 0, 1]);
        bytes[8..24].fill(0xab);
        bytes[24] = id;
        bytes
    }

    fn fields(flags: u32, normal: &[u64], zero: &[u64]) -> Canonical {
        Canonical {
            flags,
            pages_alloc: if flags == SYNC { 0 } else { 128 },
            next_packet_size: (normal.len() * PAGE_BYTES) as u32,
            packet_num: 77,
            block: if flags == SYNC { String::new() } else { "pc.ram".into() },
            normal: normal.into(),
            zero: zero.into(),
        }
    }

    /// Returns what a channel after its initial packet makes of a header.
    fn read(header: &[u8]) -> Result<Head, NotUnderstood> {
        let mut parser = Parser::new();
        assert_eq!(parser.head(&init(0)).unwrap(), Head::Init { id: 0, uuid: [0xab; 16] });
        assert_eq!(parser.need(), 12);
        let (common, rest) = header.split_at(12);
        match parser.head(common) {
            Ok(head) => assert_eq!((head, parser.kept()), (Head::More, common)),
            Err(error) => {
                assert_eq!((parser.kept(), parser.need()), (common, 0));
                return Err(error);
            }
        }
        assert_eq!(parser.need(), rest.len());
        let head = parser.head(rest);
        match &head {
            Ok(_) => assert_eq!((parser.kept(), parser.need()), (&[][..], 12)),
            Err(error) => {
                assert_eq!((parser.kept(), parser.need()), (header, 0));
                assert_eq!(parser.head(&[]), Err(error.clone()));
            }
        }
        head
    }

    fn packet(fields: &Canonical) -> Packet {
        match read(&fields.header().unwrap()[..]) {
            Ok(Head::Packet(packet)) => packet,
            other => panic!("{other:?}"),
        }
    }

    fn changed(at: usize, value: u32) -> Result<Head, NotUnderstood> {
        let mut header = fields(0, &[0x1000, 0x2000], &[0x3000]).header().unwrap();
        header[at..at + 4].copy_from_slice(&value.to_be_bytes());
        read(&header[..])
    }

    #[test]
    fn a_packet_tells_what_follows_it() {
        let plain = packet(&fields(0, &[0x1000, 0x5000], &[0x3000]));
        assert_eq!((plain.block(), plain.payload_bytes()), ("pc.ram", 8192));
        assert_eq!(plain.normal().collect::<Vec<_>>(), [0x1000, 0x5000]);
        assert_eq!(plain.zero().collect::<Vec<_>>(), [0x3000]);
        assert!(plain.has_pages() && !plain.is_sync() && !plain.is_compressed());
        let sync = packet(&fields(SYNC, &[], &[]));
        assert_eq!((sync.block(), sync.payload_bytes()), ("", 0));
        assert!(sync.is_sync() && !sync.has_pages());
        let zstd = packet(&Canonical { next_packet_size: 100, ..fields(4, &[0], &[]) });
        assert!(zstd.is_compressed() && zstd.payload_bytes() == 100);
        // QEMU 7.2 leaves this of an earlier packet.
        let stale = packet(&Canonical { next_packet_size: 100, ..fields(4, &[], &[]) });
        assert_eq!(stale.payload_bytes(), 0);
    }

    #[test]
    fn nothing_is_left_of_a_packet_but_its_barrier() {
        for fields in [fields(SYNC | 4, &[0x1000], &[]), fields(0, &[0x1000], &[0x2000])] {
            let packet = packet(&fields);
            let Ok(Head::Packet(left)) = read(&packet.without_pages()[..]) else { panic!() };
            assert!(!left.has_pages() && left.payload_bytes() == 0);
            assert_eq!((left.flags(), left.is_sync()), (packet.flags(), packet.is_sync()));
            assert_eq!(left.header()[PACKET_NUM_AT..ZERO_PAGES_AT], packet.header()[PACKET_NUM_AT..ZERO_PAGES_AT]);
        }
    }

    #[test]
    fn a_header_is_canonical_if_its_fields_are_all_of_it() {
        for fields in [fields(0, &[0x1000], &[0x2000]), fields(SYNC, &[], &[]), fields(SYNC | 2, &[0; 128], &[])] {
            assert_eq!(packet(&fields).canonical(), Some(fields));
        }
        for at in [36, 63, NAME_AT + 7, PACKET_BYTES - 1] {
            let mut header = fields(0, &[0x1000], &[0x2000]).header().unwrap();
            header[at] = 1;
            let Ok(Head::Packet(packet)) = read(&header[..]) else { panic!("{at}") };
            assert_eq!((packet.canonical(), packet.header()), (None, &*header));
        }
        assert_eq!(fields(0, &[0; 100], &[0; 29]).header(), None);
        assert_eq!(Canonical { block: "x".repeat(256), ..fields(0, &[], &[]) }.header(), None);
    }

    #[test]
    fn numbers_are_checked() {
        assert!(changed(0, MAGIC).is_ok());
        assert!(matches!(changed(0, 0), Err(NotUnderstood::Format { magic: 0, .. })));
        assert!(matches!(changed(4, 2), Err(NotUnderstood::Format { version: 2, .. })));
        for flags in [0x06, 0x0a, 0x41, 0x42, 0x80, 0x8000_0000] {
            assert_eq!(changed(FLAGS_AT, flags), Err(NotUnderstood::Flags(flags)));
        }
        let wrong = |at, value| matches!(changed(at, value), Err(NotUnderstood::Packet { .. }));
        assert!(wrong(PAGES_ALLOC_AT, 0) && wrong(PAGES_ALLOC_AT, 8) && wrong(PAGES_ALLOC_AT, 129));
        assert!(wrong(NORMAL_PAGES_AT, 129) && wrong(NORMAL_PAGES_AT, u32::MAX) && wrong(NORMAL_PAGES_AT, 128));
        assert!(wrong(ZERO_PAGES_AT, 127) && wrong(ZERO_PAGES_AT, u32::MAX));
        assert!(wrong(OFFSETS_AT + 4, 0x1001) && wrong(OFFSETS_AT, 0x10_0000));
        assert!(wrong(NAME_AT, 0) && wrong(NAME_AT, 0xff00_0000));
        let mut endless = fields(0, &[0], &[]).header().unwrap();
        endless[NAME_AT..OFFSETS_AT].fill(b'x');
        assert!(read(&endless[..]).is_err(), "no NUL behind the name");
        let too_long = Canonical { next_packet_size: (PAYLOAD_BYTES_MAX + 1) as u32, ..fields(2, &[0], &[]) };
        assert!(read(&too_long.header().unwrap()[..]).is_err());
    }

    #[test]
    fn a_devices_state_is_as_long_as_it_says() {
        let mut header = [0; DEVICE_STATE_BYTES];
        header[..12].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0, 0, 0, 1, 0, 0, 0, 0x40]);
        assert!(matches!(read(&header), Err(NotUnderstood::Packet { .. })), "QEMU refuses an empty one");
        header[272..].copy_from_slice(&[0x80, 0, 0, 1]);
        let expected = Head::DeviceState { header: Box::new(header), payload_bytes: 0x8000_0001 };
        assert_eq!(read(&header), Ok(expected));
    }

    #[test]
    fn a_channel_begins_with_its_number() {
        let mut parser = Parser::new();
        assert_eq!(parser.need(), INIT_BYTES);
        assert_eq!(parser.head(&init(9)), Ok(Head::Init { id: 9, uuid: [0xab; 16] }));
        let mut parser = Parser::new();
        assert!(parser.head(&[0x11; INIT_BYTES]).is_err());
        assert_eq!((parser.kept(), parser.need()), (&[0x11; INIT_BYTES][..], 0));
    }

    proptest! {
        #[test]
        fn packets_are_read_as_they_were_written(
            flags in prop::sample::select(vec![0, SYNC, 2, 4, SYNC | 8, 0x10, SYNC | 0x20]),
            (normal, zero) in (0_usize..=128).prop_flat_map(|n| (
                prop::collection::vec(0_u64..1 << 40, n),
                prop::collection::vec(0_u64..1 << 40, 0..=128 - n),
            )),
            block in "[ -~]{1,255}",
            next_packet_size in 0_u32..=1 << 20,
            packet_num in any::<u64>(),
        ) {
            let offsets = |pages: Vec<u64>| pages.into_iter().map(|page| page * PAGE_BYTES as u64).collect();
            let (normal, zero) = (offsets(normal), offsets(zero));
            let fields = Canonical { flags, pages_alloc: 128, next_packet_size, packet_num, block, normal, zero };
            let packet = packet(&fields);
            prop_assert_eq!(packet.header(), &*fields.header().unwrap());
            prop_assert_eq!(packet.canonical(), Some(fields));
        }

        #[test]
        fn anything_is_survived(
            fields in prop::collection::vec(any::<u32>(), PACKET_BYTES / 4),
            noise in any::<bool>(),
        ) {
            let mut header: Vec<u8> = fields.into_iter().flat_map(u32::to_be_bytes).collect();
            if !noise {
                header[..12].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0, 0, 0, 1, 0, 0, 0, 0]);
                header[12..24].copy_from_slice(&[0, 0, 0, 128, 0, 0, 0, 1, 0, 0, 0, 1]);
            }
            if header[FLAGS_AT..12] != DEVICE_STATE.to_be_bytes() {
                let _ = read(&header);
            }
        }
    }
}
