//! Measures the journal: how long its writes take, and how full it is.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use skein_handover::Record;
use skein_journal::Journal;
use skein_metrics::{Histogram, Samples, agent};

/// What was measured since the agent was started.
pub(crate) struct JournalMeter {
    writes: Histogram,
    failures: AtomicU64,
    records: AtomicUsize,
    free_slots: AtomicUsize,
}

impl JournalMeter {
    pub(super) fn new() -> JournalMeter {
        JournalMeter {
            writes: Histogram::of(&agent::JOURNAL_WRITES),
            failures: AtomicU64::new(0),
            records: AtomicUsize::new(0),
            free_slots: AtomicUsize::new(0),
        }
    }

    /// Notes how full the journal is.
    pub(super) fn holds(&self, journal: &Journal<Record>) {
        self.records.store(journal.records(), Ordering::Relaxed);
        self.free_slots.store(journal.free_slots(), Ordering::Relaxed);
    }

    /// Notes a write. `journal` is `None` while the journal cannot be opened.
    pub(super) fn wrote(&self, took: Duration, is_on_disk: bool, journal: Option<&Journal<Record>>) {
        if is_on_disk {
            self.writes.observe(took.as_secs_f64());
        } else {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(journal) = journal {
            self.holds(journal);
        }
    }

    /// Tells what was measured.
    pub(crate) fn collect(&self, samples: &mut Samples) {
        samples.counts(&agent::JOURNAL_WRITES, &[], &self.writes);
        samples.set(&agent::JOURNAL_FAILURES, &[], self.failures.load(Ordering::Relaxed));
        samples.set(&agent::JOURNAL_RECORDS, &[], self.records.load(Ordering::Relaxed));
        samples.set(&agent::JOURNAL_FREE, &[], self.free_slots.load(Ordering::Relaxed));
    }
}
