//! QEMU's migration stream.

use skein_qemu_stream::barrier::Barriers;
use skein_qemu_stream::main_channel::{self, Entry, ITEM_BYTES_MAX, MainItem, entry};
use skein_qemu_stream::multifd::{self, Head, PAYLOAD_BYTES_MAX};
use skein_qemu_stream::{BLOCKS_MAX, PAGE_BYTES};

use crate::input::Input;

/// The main channel, behind a byte that says in how small pieces it arrives.
pub fn qemu_main(bytes: &[u8]) {
    let mut input = Input(bytes);
    let piece = usize::from(input.byte()) + 1;
    assert_eq!(read_main(input.0, piece), read_main(input.0, usize::MAX), "it matters how a stream arrives");
}

/// The items with where each ends, and the error that ends them.
fn read_main(stream: &[u8], piece: usize) -> (Vec<(MainItem, usize)>, Option<String>) {
    let (mut parser, mut barriers, mut items) = (main_channel::Parser::new(), Barriers::new(), Vec::new());
    let (mut at, mut arrived) = (0, 0);
    loop {
        let given = &stream[at.min(arrived)..arrived];
        let (item, consumed) = match parser.next(given) {
            Ok(Some(some)) => some,
            Ok(None) => {
                assert!(given.len() < parser.need() && parser.need() <= ITEM_BYTES_MAX);
                if arrived == stream.len() {
                    return (items, None);
                }
                arrived = arrived.saturating_add(piece).min(stream.len());
                continue;
            }
            Err(error) => return (items, Some(error.to_string())),
        };
        barriers.item(&item);
        assert!(parser.blocks().len() <= BLOCKS_MAX);
        let again = |kind, block: usize, offset, named: bool| {
            assert!(offset < parser.blocks()[block].bytes);
            let name = named.then_some(&*parser.blocks()[block].name);
            assert_eq!(entry(kind, name, offset).as_deref(), Some(&given[..consumed]));
        };
        at += consumed;
        match item {
            MainItem::Page { block, offset, named } => {
                again(Entry::Page, block, offset, named);
                at += PAGE_BYTES;
                arrived = arrived.max(at.min(stream.len()));
            }
            MainItem::Zero { block, offset, named } => again(Entry::Zero, block, offset, named),
            MainItem::Opaque(what) => {
                assert_eq!(consumed, 0);
                return (items, Some(what.to_string()));
            }
            _ => {}
        }
        match items.last_mut() {
            // In how many pieces a payload comes is not the stream's.
            Some((MainItem::Plain, end)) if item == MainItem::Plain => *end = at,
            _ => items.push((item, at)),
        }
    }
}

/// A multifd channel.
pub fn qemu_multifd(mut bytes: &[u8]) {
    let (mut parser, mut barriers) = (multifd::Parser::new(), Barriers::new());
    while let Some((given, rest)) = bytes.split_at_checked(parser.need()) {
        bytes = rest;
        let payload_bytes = match parser.head(given) {
            Ok(Head::Packet(packet)) => {
                barriers.packet(&packet);
                if let Some(fields) = packet.canonical() {
                    assert_eq!(fields.header().as_deref(), Some(packet.header()));
                }
                assert!(packet.payload_bytes() <= PAYLOAD_BYTES_MAX);
                assert!(!packet.has_pages() || !packet.block().is_empty());
                packet.payload_bytes()
            }
            Ok(Head::DeviceState { payload_bytes, .. }) => payload_bytes as usize,
            Ok(Head::More | Head::Init { .. }) => 0,
            Err(error) => {
                assert!(parser.kept().ends_with(given) && !error.to_string().is_empty());
                return;
            }
        };
        bytes = bytes.get(payload_bytes..).unwrap_or_default();
    }
}
