//! Hardware addresses as text.

use serde::{Deserialize, Deserializer, Serializer, de};

/// Returns `02:00:00:00:00:01`.
pub fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn parse(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes?.try_into().ok()
}

pub(crate) fn serialize<S: Serializer>(mac: &Option<[u8; 6]>, to: S) -> Result<S::Ok, S::Error> {
    match mac {
        Some(mac) => to.serialize_str(&text(*mac)),
        None => to.serialize_none(),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<[u8; 6]>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    parse(&text).map(Some).ok_or_else(|| de::Error::custom("no hardware address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let mac = [2, 0, 0x1f, 0, 0xff, 1];
        assert_eq!(text(mac), "02:00:1f:00:ff:01");
        assert_eq!(parse(&text(mac)), Some(mac));
        for wrong in ["", "02", "02:00:1f:00:ff", "02:00:1f:00:ff:01:02", "02:00:1f:00:ff:100", "x2:00:1f:00:ff:01"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
