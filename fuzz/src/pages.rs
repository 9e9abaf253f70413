//! What another agent sends of a guest's pages.

use bytes::Bytes;
use skein_pages::packing::Unpacker;
use skein_pages::record::{Decoder, RECORD_BYTES_MAX, Record};
use skein_pages::{BATCH_PAGES_MAX, Kind, PAGE_BYTES};

/// Records of a stream, cut where the first byte says; what is packed is unpacked.
pub fn pages(bytes: &[u8]) {
    let Some((cut, rest)) = bytes.split_first() else { return };
    let mut decoder = Decoder::default();
    let mut unpacker = Unpacker::new().expect("there is memory");
    for piece in rest.chunks(usize::from(*cut) * 16 + 1) {
        decoder.push(Bytes::copy_from_slice(piece));
        loop {
            match decoder.record() {
                Ok(Some(Record::Batch { head, packed, stored })) => {
                    assert!((1..=BATCH_PAGES_MAX).contains(&head.kinds.len()));
                    let places = head.form.place().map(|place| place.pages().count());
                    assert!(places.is_none_or(|places| places == head.kinds.len()));
                    let stored: usize = stored.iter().map(Bytes::len).sum();
                    assert_eq!(stored, head.count(Kind::Stored) * PAGE_BYTES);
                    let pages = head.count(Kind::Packed);
                    if let Ok(unpacked) = unpacker.unpack(head.packing, pages, &packed) {
                        assert_eq!(unpacked.len(), pages * PAGE_BYTES);
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(decoder.waiting() < RECORD_BYTES_MAX);
    }
}
