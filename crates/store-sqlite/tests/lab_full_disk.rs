//! A disk that is really full, a file system of a megabyte: nothing is written, nothing is lost, and the store goes on
//! when there is room again.

// Timeout: 60 s
// Cores: 0.3

use std::path::Path;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use skein_store::{Key, Operation, Outcome, Prefix, Range, Store, StoreError, Transaction, Value};
use skein_store_sqlite::SqliteStore;

const WITHIN: Duration = Duration::from_secs(20);

fn put(path: &str, bytes: usize) -> Transaction {
    let value = Value::new(vec![b'x'; bytes]).expect("it is within the bound");
    Transaction::new().then(Operation::put(Key::new(path).expect("it is a key"), value))
}

fn paths(store: &dyn Store) -> Vec<String> {
    let page = store.read(&Range::below(Prefix::all()), WITHIN).expect("it can be read");
    page.entries.iter().map(|entry| entry.key.to_string()).collect()
}

/// Mounts a file system of a megabyte, which only this thread and those that it starts see.
fn small_disk(path: &Path) {
    unshare(CloneFlags::CLONE_NEWNS).expect("this is root");
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).expect("this is root");
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some("size=1m")).expect("this is root");
}

#[test]
fn a_full_disk_takes_nothing_and_loses_nothing() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    small_disk(folder.path());
    let (path, ballast) = (folder.path().join("store.sqlite"), folder.path().join("ballast"));
    std::fs::write(&ballast, vec![0; 200_000]).expect("there is room");
    let store = SqliteStore::open(&path).unwrap_or_else(|error| panic!("{error}: {error:?}"));
    let mut expected = Vec::new();
    // Full twice: in between there is room again, without a new start.
    for round in 0..2 {
        let refused = loop {
            let name = format!("k/{:03}", expected.len());
            match store.commit(&put(&name, 5_000), WITHIN) {
                Ok(Outcome::Committed { .. }) => expected.push(name),
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        println!("  round {round}: full after {} transactions: {refused:?}", expected.len());
        assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
        assert_eq!(paths(&store), expected);
        // Smaller ones may find room. What is larger does not, and is not there.
        assert!(store.commit(&put("large", 300_000), WITHIN).is_err());
        assert_eq!(paths(&store), expected);
        let _ = std::fs::remove_file(&ballast);
    }
    assert!(expected.len() > 10, "{expected:?}");
    drop(store);
    let store = SqliteStore::open(&path).unwrap_or_else(|error| panic!("{error}: {error:?}"));
    assert_eq!(paths(&store), expected);
}
