//! Backups.

use std::io::Cursor;

use skein_store::backup::{BackupError, Restore, export, restore};
use skein_store::election::{Term, TermBase};
use skein_store::schema::{SchemaError, open_schema};
use skein_store::{Operation, Revision, Store, Value};

use crate::subject::{Subject, WITHIN, all, done, key, put};

const BASE: TermBase = TermBase(5_000);
const WANTED: Restore<'static> = Restore { cluster: Some("prod"), schema_known: 1, term_base: BASE, mark: None };

/// A store with text, bytes, something large, and something with a lease; and its backup.
fn filled(subject: &Subject<'_>) -> (Box<dyn Store>, Vec<u8>) {
    let store = (subject.open)();
    open_schema(&*store, &[], BASE, WITHIN).expect("the store is empty");
    for n in 0..3 {
        let puts: Vec<_> = (0..90).map(|m| put(&format!("vm/{n}{m:02}"), "\"ä\n\u{1}\"")).collect();
        done(&*store, &puts);
    }
    let bytes = Value::new(vec![0, 255, 16]).expect("it is within the bound");
    let large = Value::new(vec![b'x'; 700_000]).expect("it is within the bound");
    done(&*store, &[Operation::put(key("bytes"), bytes), Operation::put(key("large/1"), large.clone())]);
    done(&*store, &[Operation::put(key("large/2"), large), put("empty", "")]);
    let lease = store.grant(15 * WITHIN, WITHIN).expect("it is granted").id;
    done(&*store, &[Operation::put_leased(key("leader"), crate::subject::value("me"), lease)]);
    let mut backup = Vec::new();
    let exported = export(&*store, "prod", &mut backup, WITHIN).expect("the store can be read");
    assert_eq!((exported.entries, exported.header.schema), (274, 1));
    store.revoke(lease, WITHIN).expect("it is not over");
    (store, backup)
}

fn restored(store: &dyn Store, backup: &[u8], wanted: &Restore<'_>) -> Result<TermBase, BackupError> {
    restore(store, &mut Cursor::new(backup), wanted, WITHIN).map(|restored| restored.term_base)
}

pub(crate) fn a_backup_is_restored(subject: &Subject<'_>) {
    let (store, backup) = filled(subject);
    let first = std::str::from_utf8(&backup).expect("it is text").lines().next().expect("it has a header");
    assert!(first.starts_with(r#"{"skein_backup":1,"schema":1,"cluster":"prod","revision":"#), "{first}");
    // Since the backup was made a lease was revoked, which is one more revision.
    let (revision, _) = skein_store::read_one(&*store, &key("vm/000"), WITHIN).expect("it can be read");
    let copy = (subject.open)();
    let base = restored(&*copy, &backup, &WANTED).expect("it is whole, and the store empty");
    let without_schema = |store: &dyn Store| -> Vec<String> {
        all(store).into_iter().filter(|shown| !shown.starts_with("schema=")).collect()
    };
    assert_eq!(without_schema(&*copy), without_schema(&*store));
    // Its terms are greater than any that the store had, though its revisions need not be.
    let last = Term { base: BASE, created: Revision(revision.0 - 1) };
    assert!(Term { base, created: Revision(1) }.number() > last.number(), "{base:?} {last:?}");
    let opened = open_schema(&*copy, &[], TermBase(1), WITHIN).expect("it is a store");
    assert_eq!((opened.schema.version, opened.schema.term_base), (1, base));
    // What was restored makes the same backup again, but for its header.
    let mut again = Vec::new();
    export(&*copy, "prod", &mut again, WITHIN).expect("the store can be read");
    let lines = |backup: &[u8]| backup.split(|byte| *byte == b'\n').skip(1).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (before, after) = (lines(&backup), lines(&again));
    assert!(before.len() == 276 && before[..274] == after[..274]);
    assert!(matches!(restored(&*copy, &backup, &WANTED), Err(BackupError::NotEmpty)));
    let later = TermBase(1_764_000_000_000);
    let copy = (subject.open)();
    assert_eq!(restored(&*copy, &backup, &Restore { term_base: later, ..WANTED }).ok(), Some(later));
}

pub(crate) fn a_damaged_backup_writes_nothing(subject: &Subject<'_>) {
    let (_, backup) = filled(subject);
    let copy = (subject.open)();
    let refused = |damaged: &[u8]| {
        let error = restored(&*copy, damaged, &WANTED).expect_err("it is damaged");
        assert!(!matches!(error, BackupError::Store(_) | BackupError::Interfered | BackupError::NotEmpty), "{error:?}");
    };
    let ends: Vec<usize> = (0..backup.len()).filter(|at| backup[*at] == b'\n').collect();
    for end in ends.iter().step_by(23).chain(&ends[ends.len() - 2..]) {
        refused(&backup[..*end]);
        if end + 1 != backup.len() {
            refused(&backup[..=*end]);
        }
    }
    for at in (0..backup.len()).step_by(backup.len() / 40).chain(backup.len() - 100..backup.len()) {
        let mut changed = backup.clone();
        changed[at] ^= 1;
        refused(&changed);
    }
    let line = ends[4] + 1..ends[5] + 1;
    refused(&[&backup[..line.start], &backup[line.end..]].concat());
    refused(&[&backup[..line.end], &backup[line.start..]].concat());
    refused(&[&backup[..], b"{}\n"].concat());
    refused(b"");
    refused(b"{}\n");
    assert!(all(&*copy).is_empty());
    assert!(restored(&*copy, &backup, &WANTED).is_ok());
}

pub(crate) fn a_backup_is_restored_where_it_belongs(subject: &Subject<'_>) {
    let (_, backup) = filled(subject);
    let copy = (subject.open)();
    let other = restored(&*copy, &backup, &Restore { cluster: Some("test"), ..WANTED });
    assert!(matches!(other, Err(BackupError::OtherCluster { .. })));
    let old = restored(&*copy, &backup, &Restore { schema_known: 0, ..WANTED });
    assert!(matches!(old, Err(BackupError::SchemaNewer { found: 1, known: 0 })));
    let newer = String::from_utf8(backup.clone()).expect("it is text").replacen("backup\":1", "backup\":2", 1);
    let newer = restored(&*copy, newer.as_bytes(), &WANTED);
    assert!(matches!(newer, Err(BackupError::FormatNewer { found: 2 })));
    assert!(all(&*copy).is_empty());
    assert!(matches!(export(&*copy, "prod", &mut Vec::new(), WITHIN), Err(BackupError::Empty)));
    assert!(restored(&*copy, &backup, &Restore { cluster: None, ..WANTED }).is_ok());
}

pub(crate) fn an_interrupted_restore_is_no_store(subject: &Subject<'_>) {
    let (_, backup) = filled(subject);
    let copy = (subject.open)();
    // The file changes after it was found whole: a reader that gives something else the second time.
    let mut changed = backup.clone();
    let last = changed.len() - 10;
    changed[last] ^= 1;
    let mut twice = Twice { first: Some(Cursor::new(backup.clone())), second: Cursor::new(changed) };
    let error = restore(&*copy, &mut twice, &WANTED, WITHIN).expect_err("the file has changed");
    assert!(matches!(error, BackupError::Interfered), "{error:?}");
    assert!(!all(&*copy).is_empty());
    assert!(matches!(open_schema(&*copy, &[], BASE, WITHIN), Err(SchemaError::Foreign)));
    assert!(matches!(restored(&*copy, &backup, &WANTED), Err(BackupError::NotEmpty)));
}

/// One file until it is read again from its beginning, and another from then on.
struct Twice {
    first: Option<Cursor<Vec<u8>>>,
    second: Cursor<Vec<u8>>,
}

impl Twice {
    fn now(&mut self) -> &mut Cursor<Vec<u8>> {
        self.first.as_mut().unwrap_or(&mut self.second)
    }
}

impl std::io::Read for Twice {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.now().read(buffer)
    }
}

impl std::io::BufRead for Twice {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        self.now().fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.now().consume(amount);
    }
}

impl std::io::Seek for Twice {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        if let std::io::SeekFrom::Start(_) = to {
            self.first = None;
        }
        self.now().seek(to)
    }
}
