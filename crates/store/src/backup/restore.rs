//! A backup becomes a store again.

use std::io::{BufRead, Read, Seek, SeekFrom};
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use super::{BackupError, FORMAT, Header, LINE_BYTES_MAX, Line, Trailer, digest, from_hex};
use crate::election::TermBase;
use crate::entry::{Revision, VALUE_BYTES_MAX, Value};
use crate::key::{Key, Prefix};
use crate::schema::{StoredSchema, schema_key};
use crate::store::Store;
use crate::transaction::{Compare, Operation, Outcome, Transaction};

/// How many entries are restored at once, at most.
const RESTORED_ENTRIES_MAX: usize = 100;

/// What a backup must be, to be restored.
#[derive(Debug, Clone)]
pub struct Restore<'a> {
    /// The cluster that it must be of. `None`: of any.
    pub cluster: Option<&'a str>,
    /// The schema that is known: one more than there are migrations.
    pub schema_known: u32,
    /// The base of the store's terms: the milliseconds of the Unix time. If that is not above the backup's terms, a
    /// greater one is taken.
    pub term_base: TermBase,
    /// An entry that the store gets with the last of the backup's: by it whoever uses the store knows that it was
    /// restored.
    pub mark: Option<(Key, Value)>,
}

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// How the backup begins.
    pub header: Header,
    /// How many entries it has.
    pub entries: u64,
    /// The base of the store's terms.
    pub term_base: TermBase,
}

/// Restores a backup into an empty store. Until all of it has been read and found whole, nothing is written. A store
/// whose restoring was interrupted has no schema, and no controller takes it
/// ([`SchemaError::Foreign`](crate::schema::SchemaError::Foreign)).
///
/// # Errors
/// The backup is not whole or not wanted, the store is not empty, or fails.
pub fn restore<R: BufRead + Seek>(
    store: &dyn Store,
    backup: &mut R,
    wanted: &Restore<'_>,
    within: Duration,
) -> Result<Restored, BackupError> {
    let begin = backup.stream_position().map_err(BackupError::Read)?;
    let whole = read_all(backup, wanted, &mut |_| Ok(()))?;
    backup.seek(SeekFrom::Start(begin)).map_err(BackupError::Read)?;

    let mark =
        Transaction::new().when(Compare::Empty(Prefix::all())).then(Operation::put(restore_key(), wanted_value()));
    let Outcome::Committed { revision: mark } = store.commit(&mark, within)? else { return Err(BackupError::NotEmpty) };
    let mut writer = Writer { store, within, mark, operations: Vec::new(), bytes: 0 };
    let again = read_all(backup, wanted, &mut |operation| writer.add(operation));
    // The file was whole a moment ago.
    let again =
        again.map_err(|error| if let BackupError::Store(_) = error { error } else { BackupError::Interfered })?;
    if again != whole {
        return Err(BackupError::Interfered);
    }
    let (header, entries) = whole;
    let above = TermBase(header.term_base.0.saturating_add(header.revision.0).saturating_add(1));
    let term_base = wanted.term_base.max(above);
    writer.write()?;
    writer.operations.push(Operation::Delete(restore_key()));
    writer.operations.extend(wanted.mark.clone().map(|(key, value)| Operation::put(key, value)));
    writer.operations.push(Operation::put(schema_key(), StoredSchema { version: header.schema, term_base }.value()));
    writer.write()?;
    Ok(Restored { header, entries, term_base })
}

/// The key that is there while a store is being restored.
fn restore_key() -> Key {
    Key::fixed("restore")
}

fn wanted_value() -> Value {
    Value::small("a backup is being restored")
}

/// Reads a backup from its beginning to its end. `each` gets what puts each entry.
fn read_all<R: BufRead>(
    backup: &mut R,
    wanted: &Restore<'_>,
    each: &mut dyn FnMut(Operation) -> Result<(), BackupError>,
) -> Result<(Header, u64), BackupError> {
    let mut lines = BackupLines { backup, line: Vec::new(), number: 0 };
    let mut hash = Xxh3::new();
    let first = lines.next()?.ok_or(BackupError::NotABackup)?;
    let header: Header = serde_json::from_slice(first).map_err(|_| BackupError::NotABackup)?;
    hash.update(first);
    check_header(&header, wanted)?;
    let mut entries = 0;
    let mut before: Option<Key> = None;
    loop {
        let Some(line) = lines.next()? else { return Err(BackupError::Cut { lines: lines.number }) };
        if let Ok(trailer) = serde_json::from_slice::<Trailer>(line) {
            if (trailer != Trailer { entries, xxh3: digest(&hash) }) {
                return Err(BackupError::Changed);
            }
            return if lines.next()?.is_some() { Err(BackupError::Changed) } else { Ok((header, entries)) };
        }
        hash.update(line);
        let put = entry_of(line).filter(|(key, _)| before.as_ref().is_none_or(|before| before < key));
        let Some((key, value)) = put else { return Err(BackupError::Damaged { line: lines.number }) };
        before = Some(key.clone());
        entries += 1;
        each(Operation::put(key, value))?;
    }
}

fn check_header(header: &Header, wanted: &Restore<'_>) -> Result<(), BackupError> {
    if header.skein_backup != FORMAT {
        return Err(BackupError::FormatNewer { found: header.skein_backup });
    }
    if header.schema > wanted.schema_known {
        return Err(BackupError::SchemaNewer { found: header.schema, known: wanted.schema_known });
    }
    match wanted.cluster {
        Some(expected) if header.cluster != expected => {
            Err(BackupError::OtherCluster { found: header.cluster.clone(), expected: expected.into() })
        }
        _ => Ok(()),
    }
}

/// Reads a line with an entry. `None`: it is damaged.
fn entry_of(line: &[u8]) -> Option<(Key, Value)> {
    let Line { key, text, hex } = serde_json::from_slice(line).ok()?;
    let bytes = match (text, hex) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(hex)) => from_hex(&hex)?,
        _ => return None,
    };
    if key == schema_key() || key == restore_key() {
        return None;
    }
    Some((key, Value::new(bytes).ok()?))
}

struct BackupLines<'a, R> {
    backup: &'a mut R,
    /// The last line, with its end.
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> BackupLines<'_, R> {
    /// Reads the next line. `None`: there is none, or it has no end.
    fn next(&mut self) -> Result<Option<&[u8]>, BackupError> {
        self.line.clear();
        let mut bounded = (&mut *self.backup).take(LINE_BYTES_MAX as u64);
        bounded.read_until(b'\n', &mut self.line).map_err(BackupError::Read)?;
        if self.line.len() == LINE_BYTES_MAX {
            return Err(BackupError::Damaged { line: self.number + 1 });
        }
        if self.line.last() != Some(&b'\n') {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(&self.line))
    }
}

/// Writes entries, many at once, as long as the mark is there.
struct Writer<'a> {
    store: &'a dyn Store,
    within: Duration,
    /// The revision that put the mark.
    mark: Revision,
    operations: Vec<Operation>,
    bytes: usize,
}

impl Writer<'_> {
    fn add(&mut self, operation: Operation) -> Result<(), BackupError> {
        let bytes = if let Operation::Put { key, value, .. } = &operation {
            key.as_str().len() + value.as_bytes().len()
        } else {
            0
        };
        if self.operations.len() == RESTORED_ENTRIES_MAX || self.bytes + bytes > VALUE_BYTES_MAX {
            self.write()?;
        }
        self.bytes += bytes;
        self.operations.push(operation);
        Ok(())
    }

    fn write(&mut self) -> Result<(), BackupError> {
        let operations = std::mem::take(&mut self.operations);
        self.bytes = 0;
        let transaction = Transaction { compares: vec![Compare::Modified(restore_key(), self.mark)], operations };
        match self.store.commit(&transaction, self.within)? {
            Outcome::Committed { .. } => Ok(()),
            Outcome::Conflict { .. } => Err(BackupError::Interfered),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANY: Restore<'static> = Restore { cluster: None, schema_known: 9, term_base: TermBase(0), mark: None };

    fn read(bytes: &[u8]) -> Result<Vec<Operation>, BackupError> {
        let mut read = Vec::new();
        read_all(&mut std::io::Cursor::new(bytes), &ANY, &mut |operation| {
            read.push(operation);
            Ok(())
        })?;
        Ok(read)
    }

    /// A backup of these values, each under a key of its own.
    fn backup(values: &[Vec<u8>]) -> Vec<u8> {
        let mut text = r#"{"skein_backup":1,"schema":1,"cluster":"c","revision":5,"term_base":7}"#.to_string() + "\n";
        for (n, value) in values.iter().enumerate() {
            let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
            text += &format!("{{\"key\":\"k/{n:04}\",\"hex\":\"{hex}\"}}\n");
        }
        let mut hash = Xxh3::new();
        hash.update(text.as_bytes());
        text += &format!("{{\"entries\":{},\"xxh3\":\"{}\"}}\n", values.len(), digest(&hash));
        text.into_bytes()
    }

    #[test]
    fn a_line_without_an_end_is_not_read_into_memory() {
        let mut bytes = backup(&[]);
        bytes.truncate(bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        bytes.resize(bytes.len() + 2 * LINE_BYTES_MAX, b' ');
        assert!(matches!(read(&bytes), Err(BackupError::Damaged { line: 2 })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_backup_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(read(&bytes).is_err());
            let begun = [&backup(&[])[..72], &bytes].concat();
            prop_assert!(read(&begun).is_err());
        }

        #[test]
        fn a_backup_is_whole_or_refused(
            values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..6),
            at in any::<prop::sample::Index>(),
            with in 1..=255_u8,
        ) {
            let whole = backup(&values);
            prop_assert_eq!(read(&whole).expect("it is whole").len(), values.len());
            prop_assert!(read(&whole[..at.index(whole.len())]).is_err());
            let mut changed = whole.clone();
            changed[at.index(whole.len())] ^= with;
            prop_assert!(read(&changed).is_err(), "{}", String::from_utf8_lossy(&changed));
        }
    }
}
