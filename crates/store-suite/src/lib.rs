//! What every store of a controller must do, as tests that its own tests call: [`run`] goes through all [`CASES`], and
//! [`side_by_side`] does random steps with a store and with a `MemoryStore`, and compares all that comes out.
//!
//! Not here: any store.

#![forbid(unsafe_code)]

mod backups;
mod basics;
mod leases;
mod schemas;
pub mod side_by_side;
mod subject;
mod together;
mod watches;

use std::time::Instant;

pub use subject::{Subject, WITHIN};

/// A case: its name, and what it does. It panics if the store does something else than it must.
pub type Case = (&'static str, fn(&Subject<'_>));

/// All cases.
pub const CASES: [Case; 24] = [
    ("a put is read again", basics::a_put_is_read_again),
    ("entries count their versions", basics::entries_count_their_versions),
    ("all compares hold or nothing is done", basics::all_compares_hold_or_nothing_is_done),
    ("what is no transaction is refused", basics::what_is_no_transaction_is_refused),
    ("deletes are of keys and of prefixes", basics::deletes_are_of_keys_and_of_prefixes),
    ("pages are of one revision", basics::pages_are_of_one_revision),
    ("large values have pages", basics::large_values_have_pages),
    ("what is compacted is forgotten", basics::what_is_compacted_is_forgotten),
    ("a watch misses nothing", watches::a_watch_misses_nothing),
    ("a watch has an end of its wait", watches::a_watch_has_an_end_of_its_wait),
    ("a watch after what is forgotten is refused", watches::a_watch_after_what_is_forgotten_is_refused),
    ("a lease ends with its keys", leases::a_lease_ends_with_its_keys),
    ("a lease that is over takes no keys", leases::a_lease_that_is_over_takes_no_keys),
    ("one candidate leads, and a deposed one is refused", leases::one_candidate_leads_and_a_deposed_one_is_refused),
    ("threads count together", together::threads_count_together),
    ("nobody sees a part of a transaction", together::nobody_sees_a_part_of_a_transaction),
    ("a schema is made, known, migrated, and refused", schemas::a_schema_is_made_known_migrated_and_refused),
    ("an interrupted migration goes on", schemas::an_interrupted_migration_goes_on),
    ("terms are raised while nobody leads", schemas::terms_are_raised_while_nobody_leads),
    ("what is no controller's store is refused", schemas::what_is_no_controllers_store_is_refused),
    ("a backup is restored", backups::a_backup_is_restored),
    ("a damaged backup writes nothing", backups::a_damaged_backup_writes_nothing),
    ("a backup is restored where it belongs", backups::a_backup_is_restored_where_it_belongs),
    ("an interrupted restore is no store", backups::an_interrupted_restore_is_no_store),
];

/// Runs all cases, each with stores of its own.
///
/// # Panics
/// The store does not do what it must.
pub fn run(subject: &Subject<'_>) {
    for (name, case) in CASES {
        let begin = Instant::now();
        case(subject);
        println!("  {name}: {:.2?}", begin.elapsed());
    }
}
