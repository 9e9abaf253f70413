//! What is tried, and the words with which cases try it.

use std::time::{Duration, Instant};

use skein_store::{
    Compare, Entry, Key, Operation, Outcome, Prefix, Range, Revision, Store, Transaction, Value, WatchBatch, read_one,
};

/// How long a call of a store may take in tests: on a busy machine, with a slow disk.
pub const WITHIN: Duration = Duration::from_secs(20);

/// A kind of store that is tried.
pub struct Subject<'a> {
    /// Makes an empty store.
    pub open: &'a dyn Fn() -> Box<dyn Store>,
    /// Lets time pass for leases.
    pub pass: &'a dyn Fn(Duration),
}

pub(crate) fn key(path: &str) -> Key {
    Key::new(path).expect("it is a key")
}

pub(crate) fn prefix(path: &str) -> Prefix {
    Prefix::new(path).expect("it is a prefix")
}

pub(crate) fn value(text: &str) -> Value {
    Value::new(text.as_bytes()).expect("it is within the bound")
}

pub(crate) fn put(path: &str, text: &str) -> Operation {
    Operation::put(key(path), value(text))
}

pub(crate) fn commit(store: &dyn Store, transaction: &Transaction) -> Outcome {
    store.commit(transaction, WITHIN).unwrap_or_else(|error| panic!("{error}: {error:?}"))
}

/// Does operations without compares, and returns their revision.
pub(crate) fn done(store: &dyn Store, operations: &[Operation]) -> Revision {
    let transaction = Transaction { compares: Vec::new(), operations: operations.to_vec() };
    commit(store, &transaction).committed().expect("nothing is compared")
}

/// Which compares do not hold.
pub(crate) fn failed(store: &dyn Store, compares: &[Compare]) -> Vec<usize> {
    match commit(store, &Transaction { compares: compares.to_vec(), operations: Vec::new() }) {
        Outcome::Committed { .. } => Vec::new(),
        Outcome::Conflict { failed } => failed,
    }
}

pub(crate) fn entry(store: &dyn Store, path: &str) -> Option<Entry> {
    read_one(store, &key(path), WITHIN).unwrap_or_else(|error| panic!("{error}: {error:?}")).1
}

/// Keys and values of a range's page, as `a=1`.
pub(crate) fn shown(store: &dyn Store, range: &Range) -> Vec<String> {
    let page = store.read(range, WITHIN).unwrap_or_else(|error| panic!("{error}: {error:?}"));
    page.entries.iter().map(show).collect()
}

pub(crate) fn show(entry: &Entry) -> String {
    format!("{}={}", entry.key, String::from_utf8_lossy(entry.value.as_bytes()))
}

/// All keys and values, if they are one page.
pub(crate) fn all(store: &dyn Store) -> Vec<String> {
    shown(store, &Range::below(Prefix::all()))
}

/// What became of keys in a batch, as `a=1 b-`.
pub(crate) fn changes(batch: &WatchBatch) -> String {
    let change = |event: &skein_store::WatchEvent| match &event.change {
        skein_store::Change::Put(entry) => show(entry),
        skein_store::Change::Deleted => format!("{}-", event.key),
    };
    batch.events.iter().map(change).collect::<Vec<_>>().join(" ")
}

/// Waits until something holds, at most [`WITHIN`], while time passes for leases, too.
pub(crate) fn eventually(subject: &Subject<'_>, what: &str, test: impl Fn() -> bool) {
    let deadline = Instant::now() + WITHIN;
    while !test() {
        assert!(Instant::now() < deadline, "{what} has not come in {WITHIN:?}");
        (subject.pass)(Duration::from_millis(100));
        std::thread::sleep(Duration::from_millis(20));
    }
}
