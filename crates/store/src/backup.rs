//! Backups: all entries of one revision, as lines of JSON.
//!
//! ```text
//! {"skein_backup":1,"schema":3,"cluster":"prod","revision":4711,"term_base":1764145000000}
//! {"key":"host/alpha","text":"{…}"}
//! {"key":"host/beta","hex":"00ff…"}                        a value that is no text
//! {"entries":2,"xxh3":"0123456789abcdef0123456789abcdef"}   of all bytes before this line
//! ```
//!
//! Keys are in their order. Entries with a lease are left out: who leads and who is there is not for another day.
//!
//! A backup is restored into an empty store only, and read twice: once to see that nothing is cut or changed, before
//! anything is written. Its terms are greater than all of the store that it was made of, so that agents obey the next
//! leader ([`TermBase`]). The checksum finds damage; whoever can write a backup can write its checksum, too.

mod restore;

use std::io::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::election::TermBase;
use crate::entry::{Revision, VALUE_BYTES_MAX};
use crate::error::StoreError;
use crate::key::{KEY_BYTES_MAX, Key, Prefix};
use crate::range::Range;
use crate::schema::{SchemaError, read_schema, schema_key};
use crate::store::{Pages, Store, read_one};

pub use restore::{Restore, Restored, restore};

/// The version of the format.
const FORMAT: u32 = 1;

/// How many bytes a line has at most. JSON writes a control character with six bytes.
const LINE_BYTES_MAX: usize = 6 * (VALUE_BYTES_MAX + KEY_BYTES_MAX) + 256;

/// The first line of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format.
    pub skein_backup: u32,
    /// The version of the values ([`crate::schema`]).
    pub schema: u32,
    /// Names the cluster.
    pub cluster: String,
    /// The revision that was read.
    pub revision: Revision,
    /// What was added to revisions to make terms.
    pub term_base: TermBase,
}

/// A line with an entry: its key, and its value as text or in hexadecimal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: Key,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

/// The last line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trailer {
    entries: u64,
    xxh3: String,
}

/// What was written to a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// How it begins.
    pub header: Header,
    /// How many entries it has.
    pub entries: u64,
}

/// Why a backup was not made, or not restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// The store has no schema that can be read.
    #[error("the store has no schema, so it is no controller's")]
    Schema(#[from] SchemaError),
    /// The store was never opened by a controller.
    #[error("the store is empty: there is nothing to back up")]
    Empty,
    /// The backup cannot be written.
    #[error("the backup cannot be written: what there is of it is of no use, delete it")]
    Write(#[source] std::io::Error),
    /// The backup cannot be read.
    #[error("the backup cannot be read; nothing was written")]
    Read(#[source] std::io::Error),
    /// The file does not begin as a backup does.
    #[error("this is no backup of a controller's store; nothing was written")]
    NotABackup,
    /// The backup's format is of a later version of Skein.
    #[error("the backup has format {found}, and {FORMAT} is known: use the version that made it; nothing was written")]
    FormatNewer {
        /// Its format.
        found: u32,
    },
    /// The backup's values are of a later version of Skein.
    #[error(
        "the backup has schema {found}, and {known} is known: use the version that made it, or later; nothing was \
         written"
    )]
    SchemaNewer {
        /// Its schema.
        found: u32,
        /// The one that is known.
        known: u32,
    },
    /// The backup is another cluster's.
    #[error("the backup is of the cluster {found}, not of {expected}; nothing was written")]
    OtherCluster {
        /// Its cluster.
        found: String,
        /// The one that is expected.
        expected: String,
    },
    /// A line is not what a backup has there.
    #[error("line {line} of the backup is damaged: use another backup; nothing was written")]
    Damaged {
        /// The line, counted from 1.
        line: u64,
    },
    /// The end is missing.
    #[error("the backup ends too early, after line {lines}: use another backup; nothing was written")]
    Cut {
        /// How many lines there are.
        lines: u64,
    },
    /// The checksum or the count is another.
    #[error("the backup was changed since it was made: use another backup; nothing was written")]
    Changed,
    /// The store has something in it.
    #[error("the store is not empty: a backup is restored into an empty one only; nothing was written")]
    NotEmpty,
    /// The backup's file changed, or the store was written by others, while it was restored.
    #[error("the backup or the store changed while it was restored: empty the store, and restore again")]
    Interfered,
}

/// Writes all entries of a store as they are at one revision. Each call of the store has `within`.
///
/// # Errors
/// The store or the output fails. What was written is then no backup, and [`restore()`] refuses it.
pub fn export(
    store: &dyn Store,
    cluster: &str,
    output: &mut dyn Write,
    within: Duration,
) -> Result<Exported, BackupError> {
    let (revision, schema) = read_one(store, &schema_key(), within)?;
    let schema = read_schema(&schema.ok_or(BackupError::Empty)?)?;
    let header = Header {
        skein_backup: FORMAT,
        schema: schema.version,
        cluster: cluster.into(),
        revision,
        term_base: schema.term_base,
    };
    let mut lines = Lines { output, hash: Xxh3::new() };
    lines.write(&header)?;
    let mut entries = 0;
    for page in Pages::new(store, Range::below(Prefix::all()).at(revision), within) {
        for entry in page?.entries.into_iter().filter(|entry| entry.lease.is_none() && entry.key != schema_key()) {
            let text = std::str::from_utf8(entry.value.as_bytes()).ok().map(String::from);
            let hex = if text.is_none() { Some(to_hex(entry.value.as_bytes())) } else { None };
            lines.write(&Line { key: entry.key, text, hex })?;
            entries += 1;
        }
    }
    let xxh3 = digest(&lines.hash);
    lines.write(&Trailer { entries, xxh3 })?;
    lines.output.flush().map_err(BackupError::Write)?;
    Ok(Exported { header, entries })
}

struct Lines<'a> {
    output: &'a mut dyn Write,
    hash: Xxh3,
}

impl Lines<'_> {
    fn write(&mut self, line: &impl Serialize) -> Result<(), BackupError> {
        let mut bytes = serde_json::to_vec(line).map_err(|error| BackupError::Write(error.into()))?;
        bytes.push(b'\n');
        self.hash.update(&bytes);
        self.output.write_all(&bytes).map_err(BackupError::Write)
    }
}

fn digest(hash: &Xxh3) -> String {
    format!("{:032x}", hash.digest128())
}

fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a text never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}
