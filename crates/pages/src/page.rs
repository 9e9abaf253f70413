//! Pages: their size, their versions, and the size of a region.

/// Bytes in a page. Guests with pages of other sizes are moved without parsing their stream.
pub const PAGE_BYTES: usize = 4096;

/// Pages of a region: 2 MiB.
pub const REGION_PAGES: usize = 512;

/// A version that no record has: more barriers than there can be in a migration.
pub const VERSION_MAX: u32 = u32::MAX - 2;

/// Stands for a delta's base: what the target kept of the guest's last stay.
pub const VERSION_KEPT: u32 = VERSION_MAX;

/// Stands for a delta's base: what a rail of the source's has written into the guest's RAM. Nothing changes of that.
pub const VERSION_WRITTEN: u32 = VERSION_MAX - 1;

const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// Returns whether `page` has only zeros.
pub fn is_zero(page: &[u8]) -> bool {
    // The C library compares with vectors, which no loop becomes here (docs/decisions/0047-size.md).
    page.chunks(PAGE_BYTES).all(|part| part == &ZEROS[..part.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_bit_is_not_zero() {
        let mut page = vec![0; PAGE_BYTES];
        assert!(is_zero(&page));
        assert!(is_zero(&[]) && is_zero(&[0; 2 * PAGE_BYTES + 1]));
        assert!(!is_zero(&[&[0; 2 * PAGE_BYTES][..], &[1]].concat()));
        for at in [0, 63, 64, 2000, 4095] {
            page[at] = 1;
            assert!(!is_zero(&page), "{at}");
            page[at] = 0;
        }
    }
}
