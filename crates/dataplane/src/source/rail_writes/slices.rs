//! Finds the slices of a guest's RAM that the target registers: those with data.

use std::collections::BTreeMap;
use std::sync::Arc;

use skein_guest_ram::Ram;
use skein_pages::PAGE_BYTES;
use skein_pages::page_record::SLICES_MAX;

/// How large a slice is at least, in pages: 16 MiB.
pub(super) const SLICE_PAGES_MIN: u64 = 4096;

/// The slices of a guest's RAM that have data.
pub(super) struct DataSlices {
    /// How many pages a slice has at most.
    pub(super) pages: u32,
    /// The slices of each block, by number.
    pub(super) of_blocks: Vec<(u16, Vec<u32>)>,
}

/// Returns which slices have data. `None`: there are too many pages.
pub(super) fn slices_with_data(rams: &BTreeMap<u16, Arc<dyn Ram>>) -> Option<DataSlices> {
    let pages = |ram: &Arc<dyn Ram>| ram.bytes() / PAGE_BYTES as u64;
    let all: u64 = rams.values().map(pages).sum();
    let slice_pages = all.div_ceil(SLICES_MAX as u64 / 2).next_multiple_of(SLICE_PAGES_MIN).max(SLICE_PAGES_MIN);
    let slice_pages = u32::try_from(slice_pages).ok()?;
    let slices = rams.iter().map(|(block, ram)| {
        let slices = 0..pages(ram).div_ceil(slice_pages.into()) as u32;
        (*block, slices.filter(|slice| has_data(&**ram, *slice, slice_pages)).collect())
    });
    Some(DataSlices { pages: slice_pages, of_blocks: slices.collect() })
}

/// Returns whether there is anything but zeros in a slice. What cannot be read may have something.
fn has_data(ram: &dyn Ram, slice: u32, slice_pages: u32) -> bool {
    let slice_bytes = u64::from(slice_pages) * PAGE_BYTES as u64;
    let offset = u64::from(slice) * slice_bytes;
    !ram.is_zero(offset, slice_bytes.min(ram.bytes() - offset)).unwrap_or(false)
}
