//! Strings from another host. They are shown to people and compared, so they are kept short and cannot drive a
//! terminal.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

/// The longest string that is taken from another host: as long as a path may be (PATH_MAX of linux/limits.h).
pub(crate) const CLAIM_BYTES_MAX: usize = 4096;

/// A value with strings in it that another host said.
pub(crate) trait Claim {
    /// Returns the value with its strings short and printable.
    fn bounded(self) -> Self;
}

impl Claim for String {
    fn bounded(self) -> Self {
        printable(self, CLAIM_BYTES_MAX)
    }
}

impl Claim for PathBuf {
    fn bounded(self) -> Self {
        // A path that changes here is found nowhere, which is what should become of it.
        self.into_os_string().into_string().map_or_else(|_| PathBuf::new(), |path| path.bounded().into())
    }
}

impl<T: Claim> Claim for Option<T> {
    fn bounded(self) -> Self {
        self.map(Claim::bounded)
    }
}

impl<T: Claim> Claim for Vec<T> {
    fn bounded(self) -> Self {
        self.into_iter().map(Claim::bounded).collect()
    }
}

impl<T: Claim + Ord> Claim for BTreeSet<T> {
    fn bounded(self) -> Self {
        self.into_iter().map(Claim::bounded).collect()
    }
}

impl<K: Claim + Ord, V: Claim> Claim for BTreeMap<K, V> {
    fn bounded(self) -> Self {
        self.into_iter().map(|(key, value)| (key.bounded(), value.bounded())).collect()
    }
}

impl<A: Claim, B: Claim> Claim for (A, B) {
    fn bounded(self) -> Self {
        (self.0.bounded(), self.1.bounded())
    }
}

impl Claim for () {
    fn bounded(self) -> Self {}
}

impl<T: Claim, E: Claim> Claim for Result<T, E> {
    fn bounded(self) -> Self {
        self.map(Claim::bounded).map_err(Claim::bounded)
    }
}

/// Writes the first `most` items as `a, b, c and 7 more`.
pub fn shortened(items: &[String], most: usize) -> String {
    let shown = items.len().min(most);
    let more = if items.len() > shown { format!(" and {} more", items.len() - shown) } else { String::new() };
    format!("{}{more}", items[..shown].join(", "))
}

/// Deserialises a claim and bounds it, for `#[serde(deserialize_with)]`.
pub(crate) fn claim<'de, D: Deserializer<'de>, T: Deserialize<'de> + Claim>(from: D) -> Result<T, D::Error> {
    T::deserialize(from).map(Claim::bounded)
}

/// Returns `text` without control characters and without characters that turn the direction of writing, cut to
/// `bytes_max` (at least 3).
pub fn printable(mut text: String, bytes_max: usize) -> String {
    let unfit = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if text.contains(unfit) {
        text = text.replace(unfit, "\u{fffd}");
    }
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max - '…'.len_utf8()));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_short_and_printable() {
        for (text, expect) in [
            ("plain", "plain"),
            ("a\u{1b}[2Jb", "a\u{fffd}[2Jb"),
            ("\u{202e}x", "\u{fffd}x"),
            ("ééééééééé", "éé…"),
            ("12345678", "12345678"),
            ("123456789", "12345…"),
        ] {
            assert_eq!(printable(text.into(), 8), expect, "{text:?}");
        }
    }
}
