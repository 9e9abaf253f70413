//! RAM blocks and pages, as both kinds of channels name them.

/// Bytes of a page. Streams with pages of other sizes are not understood.
pub const PAGE_BYTES: usize = 4096;
/// The longest name of a RAM block: its length is one byte on the main channel, and a NUL follows it in the 256 of a
/// multifd packet.
pub const BLOCK_NAME_BYTES_MAX: usize = 255;
/// The most RAM blocks. A machine has some twenty, and one for each memory device, of which QEMU takes 256.
pub const BLOCKS_MAX: usize = 4096;
/// Where offsets in a RAM block end: no guest has more than the 52 bits of x86-64's physical addresses.
pub const OFFSET_END: u64 = 1 << 52;

/// Returns these bytes as the name of a RAM block. `None`: they cannot be one.
pub(crate) fn block_name(bytes: &[u8]) -> Option<&str> {
    let is_name = !bytes.is_empty() && bytes.len() <= BLOCK_NAME_BYTES_MAX && !bytes.contains(&0);
    is_name.then_some(bytes).and_then(|bytes| std::str::from_utf8(bytes).ok())
}

/// Returns whether a page of some block may begin at `offset`.
pub(crate) fn is_page(offset: u64) -> bool {
    offset.is_multiple_of(PAGE_BYTES as u64) && offset < OFFSET_END
}
