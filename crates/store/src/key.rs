//! Keys, and prefixes of whole segments.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// How many bytes a key has at most. etcd has no bound of its own; names of VMs are the longest part of ours, with 64.
pub const KEY_BYTES_MAX: usize = 512;

/// The name of an entry: a path such as `host/alpha`. Segments are not empty and have no control characters. Keys are
/// ordered by their bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(Arc<str>);

/// All keys below a path: `host/`; or all keys there are, which is the empty prefix. It ends with a slash, so that
/// `host/a/` never means `host/ab`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(Arc<str>);

/// Why a text is no key, or no prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It has more bytes than [`KEY_BYTES_MAX`].
    #[error("a key of {bytes} bytes: {KEY_BYTES_MAX} are allowed, shorten it")]
    TooLong {
        /// How many it has.
        bytes: usize,
    },
    /// A segment is empty: the key is, begins or ends with a slash, or has two in a row.
    #[error("an empty segment in a key: write segments with one slash between them, such as host/alpha")]
    EmptySegment,
    /// There is a control character in it.
    #[error("a control character in a key: leave it out")]
    ControlCharacter,
    /// A prefix does not end with a slash.
    #[error("a prefix that ends within a segment: end it with a slash, such as host/")]
    NoSlash,
}

impl Key {
    /// Makes a key of a path.
    ///
    /// # Errors
    /// It is no path of segments, or too long.
    pub fn new(path: &str) -> Result<Key, KeyError> {
        check(path)?;
        Ok(Key(path.into()))
    }

    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the key is below a prefix.
    pub fn is_below(&self, prefix: &Prefix) -> bool {
        self.0.starts_with(&*prefix.0)
    }

    /// A key that the crate itself has fixed, and that is known to be one.
    pub(crate) fn fixed(path: &'static str) -> Key {
        debug_assert!(check(path).is_ok());
        Key(path.into())
    }
}

impl Prefix {
    /// Makes a prefix of a path with a slash at its end; the empty text is the prefix of all keys.
    ///
    /// # Errors
    /// It ends with no slash, is no path of segments, or is too long.
    pub fn new(path: &str) -> Result<Prefix, KeyError> {
        if !path.is_empty() {
            check(path.strip_suffix('/').ok_or(KeyError::NoSlash)?)?;
        }
        Ok(Prefix(path.into()))
    }

    /// The prefix of all keys.
    pub fn all() -> Prefix {
        Prefix("".into())
    }

    /// The path, with its slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Makes the key of a name below the prefix.
    ///
    /// # Errors
    /// Both together are no key.
    pub fn key(&self, name: &str) -> Result<Key, KeyError> {
        Key::new(&format!("{}{name}", self.0))
    }

    /// Whether one of the two prefixes is below the other, so that a key can be below both.
    pub fn overlaps(&self, other: &Prefix) -> bool {
        self.0.starts_with(&*other.0) || other.0.starts_with(&*self.0)
    }
}

fn check(path: &str) -> Result<(), KeyError> {
    if path.len() > KEY_BYTES_MAX {
        return Err(KeyError::TooLong { bytes: path.len() });
    }
    if path.split('/').any(str::is_empty) {
        return Err(KeyError::EmptySegment);
    }
    if path.contains(char::is_control) {
        return Err(KeyError::ControlCharacter);
    }
    Ok(())
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Key {
    type Error = KeyError;

    fn try_from(path: String) -> Result<Key, KeyError> {
        Key::new(&path)
    }
}

impl From<Key> for String {
    fn from(key: Key) -> String {
        key.as_str().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_paths() {
        for path in ["leader", "host/alpha", "vm/ä ö/definition", &"x".repeat(KEY_BYTES_MAX)] {
            assert_eq!(Key::new(path).map(String::from), Ok(path.to_string()));
        }
        for path in ["", "/", "/host", "host/", "host//alpha"] {
            assert_eq!(Key::new(path), Err(KeyError::EmptySegment), "{path}");
        }
        assert_eq!(Key::new("host/a\n"), Err(KeyError::ControlCharacter));
        assert_eq!(Key::new(&"x".repeat(513)), Err(KeyError::TooLong { bytes: 513 }));
    }

    #[test]
    fn a_prefix_is_of_whole_segments() {
        let prefix = Prefix::new("host/").expect("it is a prefix");
        assert_eq!(Prefix::new("host"), Err(KeyError::NoSlash));
        assert_eq!(Prefix::new("host//"), Err(KeyError::EmptySegment));
        let below = |path: &str| Key::new(path).expect("it is a key").is_below(&prefix);
        assert!(below("host/alpha") && !below("host") && !below("hosts/alpha"));
        assert!(Key::new("x").expect("it is a key").is_below(&Prefix::all()));
        assert_eq!(prefix.key("alpha").map(String::from), Ok("host/alpha".into()));
        assert!(prefix.key("").is_err());
    }

    #[test]
    fn prefixes_overlap_where_one_is_below_the_other() {
        let prefix = |path: &str| Prefix::new(path).expect("it is a prefix");
        assert!(prefix("a/").overlaps(&prefix("a/b/")) && prefix("a/b/").overlaps(&prefix("a/")));
        assert!(Prefix::all().overlaps(&prefix("a/")));
        assert!(!prefix("a/").overlaps(&prefix("ab/")));
    }
}
