//! Threads that write all the time, and know of each write what became of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use skein_store::{
    Change, Compare, Entry, Key, Operation, Outcome, Prefix, Revision, Store, StoreError, Transaction, Value, read_one,
};

/// How many threads write with a guard, and how many without one.
const GUARDED: usize = 3;
const PLAIN: usize = 2;

/// How long a call has: long enough for an election of etcd's.
const WITHIN: Duration = Duration::from_secs(4);

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Load<'a> {
    store: &'a dyn Store,
    begin: Revision,
    /// How many commits were acknowledged, by all threads.
    acknowledged: AtomicU64,
    ends: AtomicBool,
    tallies: Mutex<Vec<Tally>>,
    longest_gap: Mutex<Duration>,
}

/// What a thread knows of its writes.
struct Tally {
    path: String,
    guarded: bool,
    acknowledged: u64,
    unknown: u64,
    unavailable: u64,
}

/// What has come of it.
pub struct Report {
    pub longest_gap: Duration,
    acknowledged: u64,
    unknown: u64,
    /// How many of these were done.
    unknown_done: u64,
    unavailable: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { longest_gap, acknowledged, unknown, unknown_done, unavailable } = self;
        write!(
            f,
            "{acknowledged} commits acknowledged; {unknown} with an unknown outcome, of which {unknown_done} were \
             done; {unavailable} unavailable; the longest pause: {longest_gap:.2?}"
        )
    }
}

fn key(path: &str) -> Key {
    Key::new(path).expect("it is a key")
}

fn number(entry: &Entry) -> u64 {
    std::str::from_utf8(entry.value.as_bytes()).expect("it is text").parse().expect("it is a number")
}

fn put(path: &str, number: u64) -> Operation {
    Operation::put(key(path), Value::new(number.to_string().into_bytes()).expect("it is within the bound"))
}

impl<'a> Load<'a> {
    pub fn start(store: &'a dyn Store) -> Load<'a> {
        let begin = read_one(store, &key("begin"), WITHIN).expect("etcd is there").0;
        Load {
            store,
            begin,
            acknowledged: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            tallies: Mutex::new(Vec::new()),
            longest_gap: Mutex::new(Duration::ZERO),
        }
    }

    pub fn run<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        for n in 0..GUARDED {
            scope.spawn(move || self.write(&format!("guarded/{n}"), Load::guarded));
        }
        for n in 0..PLAIN {
            scope.spawn(move || self.write(&format!("plain/{n}"), Load::plain));
        }
    }

    pub fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
    }

    /// Waits until so many more commits are acknowledged, and returns how long the first took.
    pub fn wait_for_more(&self, more: u64) -> Duration {
        let (begin, before) = (Instant::now(), self.acknowledged.load(Ordering::SeqCst));
        let mut first = None;
        loop {
            let now = self.acknowledged.load(Ordering::SeqCst);
            // Commits that were under way when the member died are not the first ones after it.
            if now > before + (GUARDED + PLAIN) as u64 {
                first.get_or_insert_with(|| begin.elapsed());
            }
            if now >= before + more {
                return first.unwrap_or(begin.elapsed());
            }
            if begin.elapsed() > PATIENCE {
                self.end();
                panic!("{} commits in {PATIENCE:?}, and {more} were waited for", now - before);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn write(&self, path: &str, work: impl Fn(&Self, &mut Tally)) {
        let guarded = path.starts_with("guarded/");
        let mut tally = Tally { path: path.into(), guarded, acknowledged: 0, unknown: 0, unavailable: 0 };
        work(self, &mut tally);
        self.tallies.lock().expect("no thread panicked").push(tally);
    }

    /// Counts up, one at a time: what may have been done is repeated only if what was read has not changed.
    fn guarded(&self, tally: &mut Tally) {
        let mut found: Option<Entry> = None;
        let mut last = Instant::now();
        while !self.ends.load(Ordering::SeqCst) {
            let next = found.as_ref().map_or(0, number) + 1;
            let guard = match &found {
                None => Compare::Absent(key(&tally.path)),
                Some(entry) => Compare::Modified(key(&tally.path), entry.modified),
            };
            let transaction = Transaction::new().when(guard).then(put(&tally.path, next));
            match self.store.commit(&transaction, WITHIN) {
                Ok(Outcome::Committed { .. }) => {
                    tally.acknowledged += 1;
                    self.acknowledged.fetch_add(1, Ordering::SeqCst);
                    let mut longest = self.longest_gap.lock().expect("no thread panicked");
                    *longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
                // What was unknown has been done after it was read.
                Ok(Outcome::Conflict { .. }) => assert!(tally.unknown > 0, "nobody else writes {}", tally.path),
                Err(StoreError::Unknown(_)) => tally.unknown += 1,
                Err(StoreError::Unavailable(_)) => tally.unavailable += 1,
                Err(error) => panic!("{error}: {error:?}"),
            }
            found = loop {
                match read_one(self.store, &key(&tally.path), WITHIN) {
                    Ok((_, found)) => break found,
                    Err(StoreError::Unavailable(_)) => tally.unavailable += 1,
                    Err(error) => panic!("{error}: {error:?}"),
                }
                assert!(last.elapsed() < PATIENCE, "nothing can be read");
            };
        }
    }

    /// Puts a key again and again, without a guard: its version tells how often that was done.
    fn plain(&self, tally: &mut Tally) {
        let begin = Instant::now();
        while !self.ends.load(Ordering::SeqCst) && begin.elapsed() < 5 * PATIENCE {
            let transaction = Transaction::new().then(put(&tally.path, tally.acknowledged + 1));
            match self.store.commit(&transaction, WITHIN) {
                Ok(_) => {
                    tally.acknowledged += 1;
                    self.acknowledged.fetch_add(1, Ordering::SeqCst);
                }
                Err(StoreError::Unknown(_)) => tally.unknown += 1,
                Err(StoreError::Unavailable(_)) => tally.unavailable += 1,
                Err(error) => panic!("{error}: {error:?}"),
            }
        }
    }

    /// Holds what the threads know against what is there, and against all that was ever there.
    pub fn judge(&self) -> Report {
        let mut counts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut watch = self.store.watch(&Prefix::all(), self.begin, WITHIN).expect("nothing is forgotten");
        while let Some(batch) = watch.next(Duration::from_secs(2)).expect("nothing is forgotten") {
            for event in batch.events {
                let Change::Put(entry) = event.change else { panic!("nobody deletes {}", event.key) };
                counts.entry(event.key.to_string()).or_default().push(number(&entry));
            }
        }
        let tallies = self.tallies.lock().expect("no thread panicked");
        assert_eq!(tallies.len(), GUARDED + PLAIN);
        let longest_gap = *self.longest_gap.lock().expect("no thread panicked");
        let mut report = Report { longest_gap, acknowledged: 0, unknown: 0, unknown_done: 0, unavailable: 0 };
        for tally in tallies.iter() {
            let seen = &counts[&tally.path];
            let (_, entry) = read_one(self.store, &key(&tally.path), WITHIN).expect("etcd is there");
            let done = entry.expect("it was put").version;
            assert_eq!(seen.len() as u64, done, "{}: the watch has seen each write once", tally.path);
            assert!(
                (tally.acknowledged..=tally.acknowledged + tally.unknown).contains(&done),
                "{}: {} acknowledged, {} unknown, {done} done",
                tally.path,
                tally.acknowledged,
                tally.unknown
            );
            if tally.guarded {
                assert!(seen.iter().zip(1..).all(|(seen, expected)| *seen == expected), "{}: {seen:?}", tally.path);
            }
            report.acknowledged += tally.acknowledged;
            report.unknown += tally.unknown;
            report.unavailable += tally.unavailable;
            report.unknown_done += done - tally.acknowledged;
        }
        report
    }
}
