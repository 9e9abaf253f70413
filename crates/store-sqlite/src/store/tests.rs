use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

use skein_store::{Key, Operation, Value, read_one};

use super::*;
use crate::disk::DiskError;

const WITHIN: Duration = Duration::from_secs(20);

fn still() -> Clock {
    Arc::new(|| Duration::ZERO)
}

fn put(path: &str, bytes: usize) -> Transaction {
    let key = Key::new(path).expect("it is a key");
    Transaction::new().then(Operation::put(key, Value::new(vec![b'x'; bytes]).expect("it is within the bound")))
}

fn has(store: &SqliteStore, path: &str) -> bool {
    let key = Key::new(path).expect("it is a key");
    read_one(store, &key, WITHIN).expect("it can be read").1.is_some()
}

fn file() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("store.sqlite");
    (folder, path)
}

#[test]
fn its_files_are_for_their_owner_only() {
    let (folder, path) = file();
    let store = SqliteStore::open_with(&path, still()).expect("it is made");
    store.commit(&put("a", 1), WITHIN).expect("it is done");
    let mut names = Vec::new();
    for file in std::fs::read_dir(folder.path()).expect("it is a folder") {
        let file = file.expect("it can be read");
        let mode = file.metadata().expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", file.path());
        names.push(file.file_name().into_string().expect("it is text"));
    }
    names.sort();
    assert_eq!(names, ["store.sqlite", "store.sqlite-shm", "store.sqlite-wal", "store.sqlite.lock"]);
}

#[test]
fn a_store_is_opened_once() {
    let (_folder, path) = file();
    let store = SqliteStore::open_with(&path, still()).expect("it is made");
    match SqliteStore::open_with(&path, still()).map(drop) {
        Err(OpenError::Held { holder, .. }) => {
            assert!(holder.ends_with(&format!("with process id {}", std::process::id())), "{holder}");
        }
        other => panic!("{other:?}"),
    }
    store.commit(&put("a", 1), WITHIN).expect("the refused one has done it no harm");
    drop(store);
    let store = SqliteStore::open_with(&path, still()).expect("it is free again");
    assert!(has(&store, "a"));
}

/// A process that is killed loses nothing of the page cache, so no other test sees whether commits are synced.
#[test]
fn each_commit_is_synced() {
    let (_folder, path) = file();
    let (disk, _) = Disk::open(&path).expect("it is made");
    assert_eq!(disk.modes(), Ok(("wal".to_string(), 2)));
    drop(disk);
    let (disk, _) = Disk::open(&path).expect("it is there");
    assert_eq!(disk.modes(), Ok(("wal".to_string(), 2)));
}

#[test]
fn a_full_disk_takes_nothing_and_the_store_goes_on() {
    let (_folder, path) = file();
    let (disk, loaded) = Disk::open(&path).expect("it is made");
    disk.set_pages_max(100).expect("it is set");
    let store = SqliteStore::start(disk, loaded, still()).expect("it is started");
    let mut puts = 0;
    let full = loop {
        match store.commit(&put(&format!("k/{puts}"), 30_000), WITHIN) {
            Ok(_) => puts += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, StoreError::Unavailable(_)), "{full:?}");
    assert!((5..100).contains(&puts) && !has(&store, &format!("k/{puts}")));
    let revision = store.commit(&put("small", 1), WITHIN).expect("there is room for this").committed();
    drop(store);
    let store = SqliteStore::open_with(&path, still()).expect("it is whole");
    assert!(has(&store, "small") && has(&store, "k/0") && !has(&store, &format!("k/{puts}")));
    assert_eq!(read_one(&store, &Key::new("small").expect("it is a key"), WITHIN).ok().map(|read| read.0), revision);
}

/// How often the writer looks at the clock in so long, at least once each time that it tries to end a lease.
fn looks(count: &AtomicU64, within: Duration) -> u64 {
    let before = count.load(Ordering::SeqCst);
    std::thread::sleep(within);
    count.load(Ordering::SeqCst) - before
}

#[test]
fn a_lease_that_cannot_be_ended_is_tried_again_after_a_while() {
    let (_folder, path) = file();
    let (disk, loaded) = Disk::open(&path).expect("it is made");
    disk.set_pages_max(100).expect("it is set");
    let (time, count) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (clock_time, clock_count) = (time.clone(), count.clone());
    let clock: Clock = Arc::new(move || {
        clock_count.fetch_add(1, Ordering::SeqCst);
        Duration::from_secs(clock_time.load(Ordering::SeqCst))
    });
    let store = SqliteStore::start(disk, loaded, clock).expect("it is started");
    let lease = store.grant(Duration::from_secs(5), WITHIN).expect("there is room").id;
    let keys = (0..300).map(|number| Key::new(&format!("leased/{number:0>100}")).expect("it is a key"));
    let value = || Value::new(b"x".to_vec()).expect("it is within the bound");
    let keys: Vec<Key> = keys.collect();
    for keys in keys.chunks(50) {
        let add = |all: Transaction, key: &Key| all.then(Operation::put_leased(key.clone(), value(), lease));
        store.commit(&keys.iter().fold(Transaction::new(), add), WITHIN).expect("there is room");
    }
    store.commit(&put("old", 60_000), WITHIN).expect("there is room");
    store.commit(&put("old", 1), WITHIN).expect("there is room");
    for bytes in [20_000, 2_000, 100] {
        (0..1000).find(|number| store.commit(&put(&format!("k/{bytes}/{number}"), bytes), WITHIN).is_err());
    }
    let before = count.load(Ordering::SeqCst);
    time.store(60, Ordering::SeqCst);
    let tried = looks(&count, Duration::from_secs(2));
    // On a busy machine the first look may come after these seconds.
    let deadline = Instant::now() + WITHIN;
    while count.load(Ordering::SeqCst) == before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(count.load(Ordering::SeqCst) > before && tried < 200, "it looked {tried} times");
    assert!(has(&store, &format!("leased/{:0>100}", 7)), "it is not ended");
    let revision = store.read(&Range::below(Prefix::all()), WITHIN).expect("it can be read").revision;
    store.compact(revision, WITHIN).expect("that takes no room");
    // It is ended as soon as there is room.
    let deadline = Instant::now() + WITHIN;
    while store.keep_alive(lease, WITHIN).is_ok() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(matches!(store.keep_alive(lease, WITHIN), Err(StoreError::LeaseOver { .. })));
}

#[test]
fn a_store_that_has_ended_does_not_look_at_its_leases_without_a_pause() {
    let (_folder, path) = file();
    let (time, count) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (clock_time, clock_count) = (time.clone(), count.clone());
    let clock: Clock = Arc::new(move || {
        clock_count.fetch_add(1, Ordering::SeqCst);
        Duration::from_secs(clock_time.load(Ordering::SeqCst))
    });
    let store = SqliteStore::open_with(&path, clock).expect("it is made");
    store.grant(Duration::from_secs(5), WITHIN).expect("there is room");
    let other = rusqlite::Connection::open(&path).expect("SQLite opens it");
    other.execute("UPDATE store SET revision = 9", []).expect("SQLite writes it");
    store.commit(&put("a", 1), WITHIN).expect_err("the file is another");
    time.store(60, Ordering::SeqCst);
    let looked = looks(&count, Duration::from_secs(1));
    assert!(looked < 200, "it looked {looked} times");
}

#[test]
fn what_another_program_writes_ends_the_store() {
    let (_folder, path) = file();
    let store = SqliteStore::open_with(&path, still()).expect("it is made");
    let mut watch = store.watch(&Prefix::all(), Revision(1), WITHIN).expect("nothing is forgotten");
    let other = rusqlite::Connection::open(&path).expect("SQLite opens it");
    other.execute("UPDATE store SET revision = 9", []).expect("SQLite writes it");
    let refused = store.commit(&put("a", 1), WITHIN).expect_err("the file is another");
    assert!(matches!(refused, StoreError::Corrupt(_)), "{refused:?}");
    assert!(matches!(store.read(&Range::below(Prefix::all()), WITHIN), Err(StoreError::Unavailable(_))));
    assert!(matches!(store.commit(&put("a", 1), WITHIN), Err(StoreError::Unavailable(_))));
    assert!(matches!(watch.next(WITHIN), Err(WatchError::Store(_))));
}

#[test]
fn an_operator_that_writes_is_waited_for_and_does_no_harm() {
    let (_folder, path) = file();
    let store = SqliteStore::open_with(&path, still()).expect("it is made");
    let other = rusqlite::Connection::open(&path).expect("SQLite opens it");
    other.execute_batch("BEGIN IMMEDIATE").expect("nobody writes");
    let busy = store.commit(&put("a", 1), WITHIN).expect_err("somebody writes");
    assert!(matches!(busy, StoreError::Unavailable(_)), "{busy:?}");
    assert!(!has(&store, "a"));
    other.execute_batch("ROLLBACK").expect("it has begun");
    store.commit(&put("a", 1), WITHIN).expect("nobody writes");
}

#[test]
fn a_caller_that_gives_up_knows_whether_it_may_be_done() {
    let store = SqliteStore::in_memory(still()).expect("there is memory");
    let short = Duration::from_millis(50);
    {
        // The writer has the first job, and waits for memory.
        let _reader = store.shared.memory.read();
        let begun = Instant::now();
        let first = loop {
            match store.commit(&put("first", 1), short).expect_err("nobody can write") {
                // The writer had not come to the job yet, and passes it over.
                StoreError::Unavailable(_) if begun.elapsed() < WITHIN => {}
                error => break error,
            }
        };
        assert!(matches!(first, StoreError::Unknown(_)), "{first:?}");
        let second = store.commit(&put("second", 1), short).expect_err("nobody can write");
        assert!(matches!(second, StoreError::Unavailable(_)), "{second:?}");
    }
    store.commit(&put("third", 1), WITHIN).expect("it is done");
    assert!(has(&store, "first") && !has(&store, "second") && has(&store, "third"));
}

#[test]
fn what_another_database_had_not_taken_over_is_not_deleted() {
    let (_folder, path) = file();
    let wal = path.with_extension(format!("{}-wal", path.extension().map_or("", |of| of.to_str().unwrap())));
    std::fs::write(&wal, "what a controller wrote last").expect("it is written");
    for is_empty in [false, true] {
        if is_empty {
            std::fs::write(&path, "").expect("it is written");
        }
        let refused = SqliteStore::open_with(&path, still()).map(drop);
        assert!(matches!(refused, Err(OpenError::LeftLog { .. })), "{refused:?}");
        assert!(wal.exists());
    }
    std::fs::remove_file(&wal).expect("it is there");
    assert!(SqliteStore::open_with(&path, still()).is_ok());
}

#[test]
fn what_is_no_store_is_refused_and_left_alone() {
    let (_folder, path) = file();
    std::fs::write(&path, "This is a text of somebody else's, and longer than a header of SQLite's. ".repeat(20))
        .expect("it is written");
    assert!(matches!(SqliteStore::open_with(&path, still()).map(drop), Err(OpenError::Foreign { .. })));
    std::fs::remove_file(&path).expect("it is there");
    let other = rusqlite::Connection::open(&path).expect("SQLite makes it");
    other.execute_batch("CREATE TABLE a (b)").expect("it is another program's");
    let refused = SqliteStore::open_with(&path, still()).map(drop);
    assert!(matches!(refused, Err(OpenError::Foreign { .. })), "{refused:?}");
    let tables: i64 = other.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).expect("a number");
    assert_eq!(tables, 1);
}

#[test]
fn a_newer_store_and_a_damaged_one_are_refused() {
    let (_folder, path) = file();
    let store = SqliteStore::open_with(&path, still()).expect("it is made");
    for n in 0..40 {
        store.commit(&put(&format!("k/{n}"), 3000), WITHIN).expect("it is done");
    }
    drop(store);
    let with = |statement: &str| {
        let other = rusqlite::Connection::open(&path).expect("SQLite opens it");
        other.execute_batch(statement).expect("SQLite does it");
    };
    let refused = || SqliteStore::open_with(&path, still()).map(drop);
    with("PRAGMA user_version = 2");
    assert!(matches!(refused(), Err(OpenError::Newer { found: 2, .. })));
    with("PRAGMA user_version = 1; INSERT INTO version VALUES ('k//0', 2, 2, 1, NULL, x'00')");
    assert!(matches!(refused(), Err(OpenError::Damaged { source: DiskError::Row { modified: 2, .. }, .. })));
    with("DELETE FROM version WHERE key = 'k//0'; INSERT INTO version VALUES ('future', 99, 99, 1, NULL, x'00')");
    assert!(matches!(refused(), Err(OpenError::Damaged { source: DiskError::Row { modified: 99, .. }, .. })));
    with("DELETE FROM version WHERE key = 'future'; DELETE FROM store");
    assert!(matches!(refused(), Err(OpenError::Damaged { source: DiskError::Integrity { .. }, .. })));
    with("INSERT INTO store VALUES (1, 41, 1, 0)");
    assert!(refused().is_ok());
    let mut bytes = std::fs::read(&path).expect("it is there");
    let page = 4096;
    bytes[5 * page..9 * page].fill(0xa5);
    std::fs::write(&path, bytes).expect("it is written");
    let damaged = refused();
    assert!(matches!(damaged, Err(OpenError::Damaged { .. })), "{damaged:?}");
}
