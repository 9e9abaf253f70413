//! Which form the values have: a number under a key, and the steps from one to the next.
//!
//! A controller opens a store with the migrations that it knows: of a list of n, the first leads from version 1 to 2,
//! and the controller's own version is n + 1. An older store is migrated, step by step; a newer one is refused. While
//! a leader leads nothing is migrated; and whoever campaigns compares the schema
//! ([`OpenedSchema::unchanged`]), so that a controller that was started before a migration never leads after it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::election::{TermBase, leader_key};
use crate::entry::{Entry, Revision, Value};
use crate::error::{Cause, StoreError};
use crate::key::{Key, Prefix};
use crate::range::{PAGE_ENTRIES_MAX, Range};
use crate::store::{Store, read_one};
use crate::transaction::{Compare, Operation, Outcome, Transaction};

/// How many entries a migration gets at once, at most: so that each may become three, and one transaction changes all.
pub const MIGRATED_ENTRIES_MAX: usize = 40;

/// How many bytes they have at most, before the last of them. Half of a transaction's, so that values may grow.
const MIGRATED_BYTES_MAX: usize = 512 << 10;

/// One step from a version to the next: what is done with these entries, which are some of the store's. It is called
/// with all entries, in the order of their keys, a few at a time, and once more with all of them if it is interrupted:
/// what it has made already it leaves alone. It writes neither the schema nor the leader.
pub type Migration = fn(&[Entry]) -> Vec<Operation>;

/// The greatest number above which terms may be raised: agents know terms up to four times as great.
const TERMS_ABOVE_MAX: u64 = 1 << 60;

/// What is under the schema's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSchema {
    /// The version of all values.
    pub version: u32,
    /// What is added to the store's revisions to make terms.
    pub term_base: TermBase,
}

/// A store that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenedSchema {
    /// What is stored.
    pub schema: StoredSchema,
    /// The revision that put it.
    pub modified: Revision,
    /// What had to be done.
    pub change: SchemaChange,
}

/// What was done when a store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaChange {
    /// Nothing: its version is the controller's.
    None,
    /// The store was empty.
    Created,
    /// Its values were migrated.
    Migrated {
        /// Its version before.
        from: u32,
    },
}

/// Why a store cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SchemaError {
    /// The store failed.
    #[error("the store's schema cannot be read or written")]
    Store(#[from] StoreError),
    /// The store was written by a later version of Skein.
    #[error("the store has schema {found}, and this controller knows {known}: use the version that wrote it, or later")]
    Newer {
        /// The store's version.
        found: u32,
        /// The controller's.
        known: u32,
    },
    /// There is something in the store, and no schema.
    #[error("the store has entries and no schema: it is another program's, or its restoring was interrupted; empty it")]
    Foreign,
    /// What is under the schema's key is none.
    #[error("the store's schema cannot be understood: restore a backup into an empty store")]
    Unreadable(#[source] Cause),
    /// A controller leads while values are to be migrated.
    #[error("a controller leads that uses schema {found}: stop all controllers of the older version first")]
    InUse {
        /// The store's version.
        found: u32,
    },
    /// The store was never opened by a controller.
    #[error("the store is empty: no controller has used it")]
    Empty,
    /// A controller leads whose terms are to be raised.
    #[error("a controller leads: stop all controllers that use this store, and try again")]
    Led,
    /// The terms could not rise any more.
    #[error("{above} is too great for a term: greater ones could not follow; nothing was written")]
    TermTooGreat {
        /// What was asked for.
        above: u64,
    },
    /// Others change the store at the same time.
    #[error("others changed the store while it was opened: try again")]
    Busy,
}

/// The key of the schema.
pub fn schema_key() -> Key {
    Key::fixed("schema")
}

impl OpenedSchema {
    /// Holds while the schema is what it was when the store was opened.
    pub fn unchanged(&self) -> Compare {
        Compare::Modified(schema_key(), self.modified)
    }
}

impl StoredSchema {
    /// The value that is stored.
    pub fn value(&self) -> Value {
        Value::small(&format!(r#"{{"version":{},"term_base":{}}}"#, self.version, self.term_base.0))
    }
}

/// Opens a store: makes the schema of an empty one, with this base of its terms, or migrates an older one.
///
/// # Errors
/// The store is not available, is newer, has something else in it, or is in use by an older version.
pub fn open_schema(
    store: &dyn Store,
    migrations: &[Migration],
    new_base: TermBase,
    within: Duration,
) -> Result<OpenedSchema, SchemaError> {
    let known = u32::try_from(migrations.len() + 1).unwrap_or(u32::MAX);
    let (revision, found) = read_one(store, &schema_key(), within)?;
    let Some(entry) = found else {
        return create(store, StoredSchema { version: known, term_base: new_base }, revision, within);
    };
    let schema = read_schema(&entry)?;
    if schema.version > known {
        return Err(SchemaError::Newer { found: schema.version, known });
    }
    let mut opened = OpenedSchema { schema, modified: entry.modified, change: SchemaChange::None };
    for version in schema.version..known {
        let step = usize::try_from(version).ok().and_then(|version| migrations.get(version.checked_sub(1)?));
        let Some(migration) = step else { return Err(SchemaError::Newer { found: version, known }) };
        migrate(store, *migration, &mut opened, within)?;
        opened.change = SchemaChange::Migrated { from: schema.version };
    }
    Ok(opened)
}

/// Has all later terms of a store be above a number, which agents have heard of from another store. Does nothing if
/// they are. `mark`: an entry that the store gets with it, by which whoever uses the store knows that what it says is
/// of the time before. While a controller leads, nothing is raised; and a controller that was started before does not
/// lead after ([`OpenedSchema::unchanged`]).
///
/// # Errors
/// The store is not available, is no controller's, or is in use; the number is too great.
pub fn raise_terms(
    store: &dyn Store,
    above: u64,
    mark: Operation,
    within: Duration,
) -> Result<StoredSchema, SchemaError> {
    if above > TERMS_ABOVE_MAX {
        return Err(SchemaError::TermTooGreat { above });
    }
    let (_, found) = read_one(store, &schema_key(), within)?;
    let entry = found.ok_or(SchemaError::Empty)?;
    let schema = read_schema(&entry)?;
    if schema.term_base.0 >= above {
        return Ok(schema);
    }
    let raised = StoredSchema { term_base: TermBase(above), ..schema };
    let transaction = Transaction::new()
        .when(Compare::Absent(leader_key()))
        .when(Compare::Modified(schema_key(), entry.modified))
        .then(Operation::put(schema_key(), raised.value()))
        .then(mark);
    match store.commit(&transaction, within)? {
        Outcome::Committed { .. } => Ok(raised),
        Outcome::Conflict { failed } if failed.contains(&0) => Err(SchemaError::Led),
        Outcome::Conflict { .. } => Err(SchemaError::Busy),
    }
}

/// Reads the schema of what is under its key.
///
/// # Errors
/// It is none.
pub fn read_schema(entry: &Entry) -> Result<StoredSchema, SchemaError> {
    serde_json::from_slice(entry.value.as_bytes()).map_err(|error| SchemaError::Unreadable(Cause::new(error)))
}

fn create(
    store: &dyn Store,
    schema: StoredSchema,
    revision: Revision,
    within: Duration,
) -> Result<OpenedSchema, SchemaError> {
    let create =
        Transaction::new().when(Compare::Empty(Prefix::all())).then(Operation::put(schema_key(), schema.value()));
    match store.commit(&create, within)? {
        Outcome::Committed { revision: modified } => {
            Ok(OpenedSchema { schema, modified, change: SchemaChange::Created })
        }
        // There was something before; or another controller has created the schema since.
        Outcome::Conflict { .. } => {
            let before = store.read(&Range::below(Prefix::all()).limit(1).at(revision), within)?;
            Err(if before.entries.is_empty() { SchemaError::Busy } else { SchemaError::Foreign })
        }
    }
}

/// Migrates all entries by one step, and then says so in the schema.
fn migrate(
    store: &dyn Store,
    migration: Migration,
    opened: &mut OpenedSchema,
    within: Duration,
) -> Result<(), SchemaError> {
    let found = opened.schema.version;
    let mut range = Some(Range::below(Prefix::all()).limit(PAGE_ENTRIES_MAX));
    while let Some(read) = range {
        let page = store.read(&read, within)?;
        range = read.next(&page);
        let entries: Vec<Entry> = page.entries.into_iter().filter(|entry| entry.key != schema_key()).collect();
        let mut rest = &entries[..];
        while !rest.is_empty() {
            let (some, others) = rest.split_at(migrated_at_once(rest));
            rest = others;
            let operations = migration(some);
            if operations.is_empty() {
                continue;
            }
            let mut transaction = Transaction { compares: Vec::new(), operations }.when(Compare::Absent(leader_key()));
            transaction.compares.push(opened.unchanged());
            transaction.compares.extend(some.iter().map(|entry| Compare::Modified(entry.key.clone(), entry.modified)));
            done(store.commit(&transaction, within)?, found)?;
        }
    }
    let next = StoredSchema { version: found + 1, ..opened.schema };
    let transaction = Transaction::new()
        .when(Compare::Absent(leader_key()))
        .when(opened.unchanged())
        .then(Operation::put(schema_key(), next.value()));
    opened.modified = done(store.commit(&transaction, within)?, found)?;
    opened.schema = next;
    Ok(())
}

/// How many entries go into one transaction, at least one.
fn migrated_at_once(entries: &[Entry]) -> usize {
    let mut bytes = 0;
    let fits = entries.iter().take(MIGRATED_ENTRIES_MAX).take_while(|entry| {
        let fits = bytes <= MIGRATED_BYTES_MAX;
        bytes += entry.bytes();
        fits
    });
    fits.count()
}

/// Returns the revision of a transaction whose first compare is that nobody leads.
fn done(outcome: Outcome, found: u32) -> Result<Revision, SchemaError> {
    match outcome {
        Outcome::Committed { revision } => Ok(revision),
        Outcome::Conflict { failed } if failed.contains(&0) => Err(SchemaError::InUse { found }),
        Outcome::Conflict { .. } => Err(SchemaError::Busy),
    }
}
