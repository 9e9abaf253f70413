//! Reads and writes attributes of netlink messages (RFC 3549, `linux/netlink.h`).

/// Returns the attributes (type, value) in `bytes`, up to the first that does not fit.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        // The two top bits of the type are flags (nested, byte order).
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns an attribute, padded to four bytes.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [(4 + value.len() as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the native-endian `u16` at `offset`.
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Returns the native-endian `u32` at `offset`.
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Returns the native-endian `u64` at `offset`.
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Returns the text of an attribute, up to its first zero.
pub fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_to_four_bytes() {
        let bytes = [attribute(3, b"eth0\0"), attribute(0x8004, &[1, 2, 3, 4])].concat();
        assert_eq!(bytes.len(), 20);
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read, [(3, &b"eth0\0"[..]), (4, &[1, 2, 3, 4][..])]);
    }

    #[test]
    fn lengths_that_lie_end_the_walk() {
        for bytes in [&[][..], &[0, 0, 0, 0], &[3, 0, 1, 0], &[255, 255, 1, 0, 9], &[1]] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
        }
    }
}
