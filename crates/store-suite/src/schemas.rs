//! The schema and its migrations.

use skein_store::election::{Term, TermBase, campaign, guarded};
use skein_store::schema::{Migration, SchemaChange, SchemaError, open_schema, raise_terms, schema_key};
use skein_store::{Compare, Entry, Operation, Outcome, Store, Transaction, Value};

use crate::subject::{Subject, WITHIN, all, commit, done, entry, failed, key, put, value};

const BASE: TermBase = TermBase(5_000);

/// From 1 to 2: each host's value ends with a `!`.
fn mark(entries: &[Entry]) -> Vec<Operation> {
    let old = entries.iter().filter(|entry| entry.key.as_str().starts_with("host/"));
    let old = old.filter(|entry| entry.value.as_bytes().last() != Some(&b'!'));
    old.map(|entry| {
        let marked = [entry.value.as_bytes(), b"!"].concat();
        Operation::put(entry.key.clone(), Value::new(marked).expect("it is within the bound"))
    })
    .collect()
}

/// From 2 to 3: what is below `vm` goes to `guest`.
fn rename(entries: &[Entry]) -> Vec<Operation> {
    let vms = entries.iter().filter_map(|entry| Some((entry, entry.key.as_str().strip_prefix("vm/")?)));
    vms.flat_map(|(entry, name)| {
        let renamed = Operation::put(key(&format!("guest/{name}")), entry.value.clone());
        [renamed, Operation::Delete(entry.key.clone())]
    })
    .collect()
}

const MIGRATIONS: [Migration; 2] = [mark, rename];

fn fill(store: &dyn Store) {
    for n in 0..3 {
        let puts: Vec<_> = (0..40).map(|m| put(&format!("host/{n}{m:02}"), "h")).collect();
        done(store, &puts);
    }
    done(store, &[put("vm/a", "g"), put("x", "1")]);
}

fn filled(text: &str, vm: &str) -> Vec<String> {
    let mut all: Vec<String> = (0..3).flat_map(|n| (0..40).map(move |m| format!("{n}{m:02}"))).collect();
    all = all.into_iter().map(|name| format!("host/{name}={text}")).collect();
    all.extend([format!("{vm}/a=g"), "x=1".to_string()]);
    all.sort();
    all
}

fn without_schema(store: &dyn Store) -> Vec<String> {
    all(store).into_iter().filter(|shown| !shown.starts_with("schema=")).collect()
}

pub(crate) fn a_schema_is_made_known_migrated_and_refused(subject: &Subject<'_>) {
    let store = (subject.open)();
    let open = |known: usize, base: TermBase| open_schema(&*store, &MIGRATIONS[..known], base, WITHIN);
    let made = open(0, BASE).expect("the store is empty");
    assert_eq!((made.schema.version, made.schema.term_base, made.change), (1, BASE, SchemaChange::Created));
    fill(&*store);
    let again = open(0, TermBase(6_000)).expect("it is known");
    assert_eq!((again.schema, again.modified, again.change), (made.schema, made.modified, SchemaChange::None));
    assert_eq!(failed(&*store, &[again.unchanged()]), [0; 0]);

    let lease = store.grant(WITHIN, WITHIN).expect("it is granted").id;
    assert!(commit(&*store, &campaign(value("old"), lease).when(made.unchanged())).committed().is_some());
    assert!(matches!(open(2, BASE), Err(SchemaError::InUse { found: 1 })));
    store.revoke(lease, WITHIN).expect("it is not over");
    assert_eq!(without_schema(&*store), filled("h", "vm"), "while somebody leads nothing is migrated");

    let migrated = open(2, BASE).expect("nobody leads");
    assert_eq!((migrated.schema.version, migrated.schema.term_base), (3, BASE));
    assert_eq!(migrated.change, SchemaChange::Migrated { from: 1 });
    assert_eq!(without_schema(&*store), filled("h!", "guest"));
    // A controller that was started before does not lead any more.
    let lease = store.grant(WITHIN, WITHIN).expect("it is granted").id;
    let old = commit(&*store, &campaign(value("old"), lease).when(made.unchanged()));
    assert_eq!(old, Outcome::Conflict { failed: vec![1] });
    store.revoke(lease, WITHIN).expect("it is not over");
    assert!(matches!(open(1, BASE), Err(SchemaError::Newer { found: 3, known: 2 })));
    assert_eq!(open(2, BASE).expect("it is known").change, SchemaChange::None);
}

pub(crate) fn terms_are_raised_while_nobody_leads(subject: &Subject<'_>) {
    let store = (subject.open)();
    let raise = |above: u64| raise_terms(&*store, above, put("mark", "old"), WITHIN);
    assert!(matches!(raise(9_000), Err(SchemaError::Empty)));
    let made = open_schema(&*store, &[], BASE, WITHIN).expect("the store is empty");
    // What is there already is not raised, and not marked.
    assert_eq!(raise(5_000).expect("nobody leads"), made.schema);
    assert!(matches!(raise(u64::MAX), Err(SchemaError::TermTooGreat { .. })));
    assert!(without_schema(&*store).is_empty());

    let lease = store.grant(WITHIN, WITHIN).expect("it is granted").id;
    let won = commit(&*store, &campaign(value("a"), lease).when(made.unchanged())).committed().expect("nobody leads");
    assert!(matches!(raise(9_000), Err(SchemaError::Led)));
    store.revoke(lease, WITHIN).expect("it is not over");
    assert_eq!(raise(9_000).expect("nobody leads").term_base, TermBase(9_000));
    assert_eq!(without_schema(&*store), ["mark=old"]);
    // A controller that was started before does not lead any more, nor does a leader of before write.
    let lease = store.grant(WITHIN, WITHIN).expect("it is granted").id;
    let late = commit(&*store, &campaign(value("a"), lease).when(made.unchanged()));
    assert_eq!(late, Outcome::Conflict { failed: vec![1] });
    let write = Transaction::new().then(put("x", "1"));
    assert!(commit(&*store, &guarded(write, Term { base: BASE, created: won })).committed().is_none());
    let opened = open_schema(&*store, &[], BASE, WITHIN).expect("it is known");
    let won = commit(&*store, &campaign(value("b"), lease).when(opened.unchanged())).committed();
    let term = Term { base: opened.schema.term_base, created: won.expect("nobody leads") };
    assert!(term.number() > 9_000);
}

pub(crate) fn an_interrupted_migration_goes_on(subject: &Subject<'_>) {
    let store = (subject.open)();
    let made = open_schema(&*store, &[], BASE, WITHIN).expect("the store is empty");
    fill(&*store);
    // The first entries were migrated, and then the controller died.
    let found = entry(&*store, "host/000").expect("it was put");
    let part = skein_store::Transaction { compares: vec![made.unchanged()], operations: mark(&[found]) };
    assert!(commit(&*store, &part).committed().is_some());
    assert!(open_schema(&*store, &MIGRATIONS[..1], BASE, WITHIN).is_ok());
    assert_eq!(without_schema(&*store), filled("h!", "vm"));
}

pub(crate) fn what_is_no_controllers_store_is_refused(subject: &Subject<'_>) {
    let store = (subject.open)();
    done(&*store, &[put("somebody/elses", "1")]);
    assert!(matches!(open_schema(&*store, &[], BASE, WITHIN), Err(SchemaError::Foreign)));
    assert_eq!(failed(&*store, &[Compare::Absent(schema_key())]), [0; 0]);
    done(&*store, &[put("schema", "1")]);
    assert!(matches!(open_schema(&*store, &[], BASE, WITHIN), Err(SchemaError::Unreadable(_))));
}
