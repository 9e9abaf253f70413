//! Random steps with a store and with a [`MemoryStore`] beside it: all that comes out is the same.
//!
//! Only numbers differ: revisions are translated by the commits that made them, leases by their grants.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use skein_store::{
    Change, Compare, Entry, LeaseId, MemoryStore, MemoryWatch, Operation, Outcome, PAGE_ENTRIES_MAX, Prefix, Range,
    Revision, Snapshot, Store, StoreError, Transaction, Watch, WatchBatch, WatchError, WatchEvent,
};

use crate::subject::{Subject, WITHIN, key, prefix, value};

/// Closes a store, and opens it again.
pub type Reopen<'a> = dyn Fn(Box<dyn Store>) -> Box<dyn Store> + 'a;

/// What is tried.
pub struct Plan<'a> {
    /// The stores.
    pub subject: Subject<'a>,
    /// How a store is closed and opened again. `None`: it stays open.
    pub reopen: Option<&'a Reopen<'a>>,
    /// Whether the time of leases passes only when it is told to.
    pub virtual_time: bool,
    /// How many sequences of steps are tried.
    pub cases: u32,
    /// How many steps each has at most.
    pub steps: usize,
}

/// How many watches there are at once.
const WATCHES_MAX: usize = 3;

const KEYS: [&str; 9] = ["a", "a/1", "a/2", "a/b/1", "a/b/2", "ab", "b", "b/1", "c"];
const PREFIXES: [&str; 5] = ["", "a/", "a/b/", "b/", "d/"];
const VALUES: [&str; 3] = ["", "1", "two"];

#[derive(Debug, Clone)]
enum Step {
    Commit { compares: Vec<AnyCompare>, operations: Vec<AnyOperation> },
    Grant(u64),
    KeepAlive(usize),
    Revoke(usize),
    Pass(u64),
    Compact(usize),
    Read { prefix: &'static str, after: Option<&'static str>, limit: usize, back: Option<usize> },
    Watch { prefix: &'static str, back: usize },
    Poll,
    Reopen,
}

/// Revisions are named by how many commits ago they were, leases by their grants.
#[derive(Debug, Clone)]
enum AnyCompare {
    Absent(&'static str),
    Present(&'static str),
    Empty(&'static str),
    Modified(&'static str, usize),
    Created(&'static str, usize),
    Value(&'static str, &'static str),
    Leased(&'static str, usize),
    /// What is known to hold: that the key is as it is.
    Unchanged(&'static str),
}

#[derive(Debug, Clone)]
enum AnyOperation {
    Put(&'static str, &'static str, Option<usize>),
    Delete(&'static str),
    DeletePrefix(&'static str),
}

fn any_step() -> impl Strategy<Value = Step> {
    let compare = prop_oneof![
        select(&KEYS[..]).prop_map(AnyCompare::Absent),
        select(&KEYS[..]).prop_map(AnyCompare::Present),
        select(&PREFIXES[1..]).prop_map(AnyCompare::Empty),
        (select(&KEYS[..]), 0..4_usize).prop_map(|(key, back)| AnyCompare::Modified(key, back)),
        (select(&KEYS[..]), 0..4_usize).prop_map(|(key, back)| AnyCompare::Created(key, back)),
        (select(&KEYS[..]), select(&VALUES[..])).prop_map(|(key, value)| AnyCompare::Value(key, value)),
        (select(&KEYS[..]), 0..3_usize).prop_map(|(key, lease)| AnyCompare::Leased(key, lease)),
        select(&KEYS[..]).prop_map(AnyCompare::Unchanged),
        select(&KEYS[..]).prop_map(AnyCompare::Unchanged),
    ];
    let put = (select(&KEYS[..]), select(&VALUES[..]), prop::option::weighted(0.4, 0..4_usize));
    let operation = prop_oneof![
        6 => put.prop_map(|(key, value, lease)| AnyOperation::Put(key, value, lease)),
        2 => select(&KEYS[..]).prop_map(AnyOperation::Delete),
        1 => select(&PREFIXES[..]).prop_map(AnyOperation::DeletePrefix),
    ];
    let commit = (vec(compare, 0..3), vec(operation, 0..5));
    let read = (select(&PREFIXES[..]), prop::option::of(select(&KEYS[..])), 1..8_usize, prop::option::of(0..6_usize));
    prop_oneof![
        10 => commit.prop_map(|(compares, operations)| Step::Commit { compares, operations }),
        2 => (1..30_u64).prop_map(Step::Grant),
        1 => (0..4_usize).prop_map(Step::KeepAlive),
        1 => (0..4_usize).prop_map(Step::Revoke),
        1 => (1..15_u64).prop_map(Step::Pass),
        1 => (0..6_usize).prop_map(Step::Compact),
        4 => read.prop_map(|(prefix, after, limit, back)| Step::Read { prefix, after, limit, back }),
        2 => (select(&PREFIXES[..]), 0..6_usize).prop_map(|(prefix, back)| Step::Watch { prefix, back }),
        2 => Just(Step::Poll),
        1 => Just(Step::Reopen),
    ]
}

/// Tries random steps.
///
/// # Panics
/// The store did something else than the one in memory: the least steps with which it does are shown.
pub fn run(plan: &Plan<'_>) {
    let config = Config { cases: plan.cases, max_shrink_iters: 300, failure_persistence: None, ..Config::default() };
    let steps = vec(any_step(), 1..=plan.steps);
    let result = TestRunner::new(config).run(&steps, |steps| {
        let mut pair = Pair::new(plan);
        for step in steps {
            pair.step(step);
        }
        pair.compare_all();
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

struct Pair<'a> {
    plan: &'a Plan<'a>,
    /// It is taken while it is opened again.
    real: Option<Box<dyn Store>>,
    model: MemoryStore,
    now: Duration,
    /// The real revision of each of the model's, in their order.
    revisions: BTreeMap<Revision, Revision>,
    /// The model's leases, and the real ones.
    leases: Vec<(LeaseId, LeaseId)>,
    watches: Vec<Watches>,
}

/// A watch of each store.
struct Watches {
    /// The model's revision up to which all has been taken.
    after: Revision,
    model: MemoryWatch,
    real: Box<dyn Watch>,
}

impl<'a> Pair<'a> {
    fn new(plan: &'a Plan<'a>) -> Pair<'a> {
        let real = (plan.subject.open)();
        let model = MemoryStore::new();
        let begin = real.read(&Range::below(Prefix::all()), WITHIN).expect("it can be read");
        assert!(begin.entries.is_empty(), "{begin:?}");
        let revisions = BTreeMap::from([(model.revision(), begin.revision)]);
        let (leases, watches) = (Vec::new(), Vec::new());
        Pair { plan, real: Some(real), model, now: Duration::ZERO, revisions, leases, watches }
    }

    fn real(&self) -> &dyn Store {
        self.real.as_deref().expect("it is open")
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Commit { compares, operations } => self.commit(&compares, &operations),
            Step::Grant(seconds) => self.grant(seconds),
            Step::KeepAlive(lease) => {
                let Some((model, real)) = self.leases.get(lease).copied() else { return };
                let model = self.model.keep_alive(self.now, model);
                same(&model.map(drop), &self.real().keep_alive(real, WITHIN).map(drop), |_, _| true);
            }
            Step::Revoke(lease) => {
                let Some((model, real)) = self.leases.get(lease).copied() else { return };
                let (model, real) = (self.model.revoke(model), self.real().revoke(real, WITHIN));
                same(&model, &real, |_, _| true);
                self.note();
            }
            Step::Pass(seconds) if self.plan.virtual_time => {
                let time = Duration::from_secs(seconds);
                self.now += time;
                (self.plan.subject.pass)(time);
                for lease in self.model.due(self.now) {
                    // Each is a revision of its own, and the real ones are only known together.
                    self.model.revoke(lease).expect("it is due");
                }
                self.real().commit(&Transaction::new(), WITHIN).expect("nothing is to be done");
                self.note();
            }
            Step::Pass(_) => {}
            Step::Compact(back) => {
                self.poll();
                let (model, real) = self.back(back);
                // Those that have not come so far may go on or end.
                self.watches.retain(|watches| watches.after >= model);
                let (model, real) = (self.model.compact(model).map(drop), self.real().compact(real, WITHIN));
                same(&model, &real, |_, _| true);
            }
            Step::Read { prefix: path, after, limit, back } => {
                let mut range = Range::below(prefix(path)).limit(limit);
                range.start_after = after.map(key);
                self.read(range, back);
            }
            Step::Watch { prefix, back } => self.watch(prefix, back),
            Step::Poll => self.poll(),
            Step::Reopen => {
                let Some(reopen) = self.plan.reopen else { return };
                self.watches.clear();
                self.real = self.real.take().map(reopen);
                for (lease, _) in &self.leases {
                    // A store that is opened lets leases last for their whole time. Some are over.
                    let _ = self.model.keep_alive(self.now, *lease);
                }
            }
        }
    }

    fn grant(&mut self, seconds: u64) {
        let ttl = Duration::from_secs(if self.plan.virtual_time { seconds } else { 600 });
        let model = self.model.grant(self.now, ttl);
        let real = self.real().grant(ttl, WITHIN).expect("it is granted");
        assert_eq!(real.ttl, model.ttl);
        assert!(self.leases.iter().all(|(_, before)| *before != real.id), "no lease is granted twice");
        self.leases.push((model.id, real.id));
    }

    /// A revision some commits ago: the model's, and the real one.
    fn back(&self, back: usize) -> (Revision, Revision) {
        let found = self.revisions.iter().rev().nth(back).or(self.revisions.first_key_value());
        found.map(|(model, real)| (*model, *real)).expect("there is a first")
    }

    fn lease(&self, lease: usize) -> (LeaseId, LeaseId) {
        self.leases.get(lease).copied().unwrap_or((LeaseId(u64::MAX >> 2), LeaseId(u64::MAX >> 2)))
    }

    /// A compare for the model, and for the real store.
    fn compare(&self, compare: &AnyCompare) -> [Compare; 2] {
        let both = |compare: Compare| [compare.clone(), compare];
        match *compare {
            AnyCompare::Absent(path) => both(Compare::Absent(key(path))),
            AnyCompare::Present(path) => both(Compare::Present(key(path))),
            AnyCompare::Empty(path) => both(Compare::Empty(prefix(path))),
            AnyCompare::Value(path, text) => both(Compare::Value(key(path), value(text))),
            AnyCompare::Modified(path, back) => {
                let (model, real) = self.back(back);
                [Compare::Modified(key(path), model), Compare::Modified(key(path), real)]
            }
            AnyCompare::Created(path, back) => {
                let (model, real) = self.back(back);
                [Compare::Created(key(path), model), Compare::Created(key(path), real)]
            }
            AnyCompare::Leased(path, lease) => {
                let (model, real) = self.lease(lease);
                [Compare::Leased(key(path), model), Compare::Leased(key(path), real)]
            }
            AnyCompare::Unchanged(path) => {
                let page = self.model.read(&Range::one(key(path))).expect("it can be read");
                match page.entries.first() {
                    None => both(Compare::Absent(key(path))),
                    Some(entry) => {
                        let real = self.revisions[&entry.modified];
                        [Compare::Modified(key(path), entry.modified), Compare::Modified(key(path), real)]
                    }
                }
            }
        }
    }

    fn operation(&self, operation: &AnyOperation) -> [Operation; 2] {
        let both = |operation: Operation| [operation.clone(), operation];
        match *operation {
            AnyOperation::Put(path, text, None) => both(Operation::put(key(path), value(text))),
            AnyOperation::Put(path, text, Some(lease)) => {
                let (model, real) = self.lease(lease);
                [model, real].map(|lease| Operation::put_leased(key(path), value(text), lease))
            }
            AnyOperation::Delete(path) => both(Operation::Delete(key(path))),
            AnyOperation::DeletePrefix(path) => both(Operation::DeletePrefix(prefix(path))),
        }
    }

    fn commit(&mut self, compares: &[AnyCompare], operations: &[AnyOperation]) {
        let mut both = [Transaction::new(), Transaction::new()];
        for compare in compares {
            let pair = self.compare(compare);
            both.iter_mut().zip(pair).for_each(|(transaction, compare)| transaction.compares.push(compare));
        }
        for operation in operations {
            let pair = self.operation(operation);
            both.iter_mut().zip(pair).for_each(|(transaction, operation)| transaction.operations.push(operation));
        }
        let before = self.model.revision();
        let (model, real) = (self.model.commit(&both[0]), self.real().commit(&both[1], WITHIN));
        same(&model, &real, |model, real| match (model, real) {
            (Outcome::Conflict { failed: model }, Outcome::Conflict { failed: real }) => model == real,
            (Outcome::Committed { .. }, Outcome::Committed { .. }) => true,
            _ => false,
        });
        if let (Ok(Outcome::Committed { revision: model }), Ok(Outcome::Committed { revision: real })) = (&model, real)
        {
            if *model > before {
                self.add(*model, real);
            } else {
                assert_eq!(self.to_model(real), *model);
            }
        }
    }

    fn add(&mut self, model: Revision, real: Revision) {
        let (_, last) = self.back(0);
        assert!(real > last, "revisions rise: {real} after {last}");
        self.revisions.insert(model, real);
    }

    /// Finds the real revisions of what the model has changed since the last one that is known: those of a watch.
    fn note(&mut self) {
        let (model, real) = self.back(0);
        let mut watch = self.real().watch(&Prefix::all(), real, WITHIN).expect("nothing is forgotten");
        for model in model.0 + 1..=self.model.revision().0 {
            let batch = watch.next(WITHIN).expect("nothing is forgotten").expect("as much has changed");
            self.add(Revision(model), batch.revision);
        }
    }

    fn to_model(&self, real: Revision) -> Revision {
        // Others may have changed the same etcd since.
        let known = self.revisions.iter().rev().find(|(_, known)| **known <= real);
        known.map(|(model, _)| *model).expect("it is not before the first")
    }

    fn entry(&self, mut entry: Entry) -> Entry {
        let exact = |revision: Revision| {
            let model = self.to_model(revision);
            assert_eq!(self.revisions[&model], revision, "an entry is of a revision that made it");
            model
        };
        (entry.created, entry.modified) = (exact(entry.created), exact(entry.modified));
        entry.lease =
            entry.lease.map(|lease| self.leases.iter().find(|(_, real)| *real == lease).expect("it was granted").0);
        entry
    }

    fn batch(&self, batch: WatchBatch) -> WatchBatch {
        let event = |event: WatchEvent| WatchEvent {
            key: event.key,
            change: match event.change {
                Change::Put(entry) => Change::Put(self.entry(entry)),
                Change::Deleted => Change::Deleted,
            },
        };
        let events = batch.events.into_iter().map(event).collect();
        WatchBatch { revision: self.to_model(batch.revision), events }
    }

    fn read(&self, range: Range, back: Option<usize>) {
        let at = back.map(|back| self.back(back));
        let (mut model, mut real) = (range.clone(), range);
        (model.at, real.at) = (at.map(|at| at.0), at.map(|at| at.1));
        let (model, real) = (self.model.read(&model), self.real().read(&real, WITHIN));
        same(&model, &real, |model, real| {
            let entries = real.entries.iter().map(|entry| self.entry(entry.clone())).collect();
            *model == Snapshot { revision: self.to_model(real.revision), entries, more: real.more }
        });
    }

    fn compare_all(&mut self) {
        self.poll();
        self.read(Range::below(Prefix::all()).limit(PAGE_ENTRIES_MAX), None);
    }

    fn watch(&mut self, path: &str, back: usize) {
        let (after, real) = self.back(back);
        let model = self.model.watch(&prefix(path), after);
        let real = self.real().watch(&prefix(path), real, WITHIN);
        match (model, real) {
            (Ok(model), Ok(real)) => {
                if self.watches.len() == WATCHES_MAX {
                    self.watches.remove(0);
                }
                self.watches.push(Watches { after, model, real });
            }
            (Err(WatchError::Compacted { .. }), Err(WatchError::Compacted { .. })) => {}
            (model, real) => panic!("{:?} in memory, {:?} in the store", model.map(drop), real.map(drop)),
        }
    }

    /// Takes all that has changed from all watches.
    fn poll(&mut self) {
        let mut watches = std::mem::take(&mut self.watches);
        for Watches { after, model, real } in &mut watches {
            while let Some(expected) = model.next(&self.model).expect("it is polled before anything is forgotten") {
                let batch = real.next(WITHIN).expect("nothing is forgotten");
                *after = expected.revision;
                assert_eq!(batch.map(|batch| self.batch(batch)), Some(expected));
            }
            let more = real.next(Duration::from_millis(2)).expect("nothing is forgotten");
            assert_eq!(more, None);
        }
        self.watches = watches;
    }
}

/// Both succeed, and alike, or both fail in the same way.
fn same<T: std::fmt::Debug>(
    model: &Result<T, StoreError>,
    real: &Result<T, StoreError>,
    alike: impl FnOnce(&T, &T) -> bool,
) {
    let same = match (model, real) {
        (Ok(model), Ok(real)) => alike(model, real),
        (Err(StoreError::Invalid(model)), Err(StoreError::Invalid(real))) => model == real,
        (Err(model), Err(real)) => std::mem::discriminant(model) == std::mem::discriminant(real),
        _ => false,
    };
    assert!(same, "{model:?} in memory, {real:?} in the store");
}
