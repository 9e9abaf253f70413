//! A page: how long it is, how its versions are counted, and how many are a region.

/// Bytes in a page. Guests with others are moved without looking into their stream.
pub const PAGE_BYTES: usize = 4096;

/// Pages of a region: 2 MiB.
pub const REGION_PAGES: usize = 512;

/// A version that no record has: more barriers than a migration can come to.
pub const VERSION_MAX: u32 = u32::MAX - 2;

/// In place of a delta's base: what the target keeps of the guest's last stay.
pub const VERSION_KEPT: u32 = VERSION_MAX;

/// Returns whether there are only zeros.
pub fn is_zero(page: &[u8]) -> bool {
    // Most pages that are not zero are so in their first bytes.
    let (first, rest) = page.split_at(page.len().min(64));
    first.iter().all(|byte| *byte == 0) && rest.chunks(256).all(|part| part.iter().fold(0, |any, byte| any | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_bit_is_not_zero() {
        let mut page = vec![0; PAGE_BYTES];
        assert!(is_zero(&page));
        for at in [0, 63, 64, 2000, 4095] {
            page[at] = 1;
            assert!(!is_zero(&page), "{at}");
            page[at] = 0;
        }
    }
}
