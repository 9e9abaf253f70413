//! What another agent sends of a guest's pages.

use bytes::Bytes;
use skein_pages::packing::PageDecompressor;
use skein_pages::page_record::{Decoder, PAGE_RECORD_BYTES_MAX, PageRecord};
use skein_pages::{BATCH_PAGES_MAX, PAGE_BYTES, PageKind, ReceivedBatch};

/// Records of a stream, cut where the first byte says; what is packed is unpacked.
pub fn pages(bytes: &[u8]) {
    let Some((cut, rest)) = bytes.split_first() else { return };
    let mut decoder = Decoder::default();
    let mut unpacker = PageDecompressor::new().expect("there is memory");
    for piece in rest.chunks(usize::from(*cut) * 16 + 1) {
        decoder.push(Bytes::copy_from_slice(piece));
        loop {
            match decoder.record() {
                Ok(Some(PageRecord::Batch(ReceivedBatch { head, packed, changes, stored }))) => {
                    assert!((1..=BATCH_PAGES_MAX).contains(&head.kinds.len()));
                    let places = head.form.place().map(|place| place.pages().count());
                    assert!(places.is_none_or(|places| places == head.kinds.len()));
                    let stored: usize = stored.iter().map(Bytes::len).sum();
                    assert_eq!(stored, head.count(PageKind::Stored) * PAGE_BYTES);
                    assert_eq!(head.deltas.len(), head.count(PageKind::Delta));
                    let (all, of_pages) = (head.change_bytes(), head.packed_page_bytes());
                    assert_eq!(changes.len(), if head.changes_packed { 0 } else { all });
                    if let Ok(unpacked) = unpacker.unpack(head.packing, head.unpacked_bytes(), &packed) {
                        assert_eq!(unpacked.len() - of_pages, all - changes.len());
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(decoder.waiting() < PAGE_RECORD_BYTES_MAX);
    }
}
