//! An agent's disk. What was acknowledged is there after a crash; what was not acknowledged may be.

use skein_handover::{Record, needed};

use crate::rng::Rng;

/// The number of records beyond which a journal is compacted: written anew with the records that are needed.
const COMPACT_AT: usize = 48;

#[derive(Default)]
pub struct Disk {
    records: Vec<Record>,
    /// How many faults let the disk have no space.
    pub full: u32,
    /// How many faults let writes fail.
    pub flaky: u32,
    /// How many faults let writes take long.
    pub slow: u32,
    /// A write failed, and its content is unknown: nothing more is written until the journal is opened again.
    pub poisoned: bool,
}

impl Disk {
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Writes and syncs. Returns `false` if the records may or may not be there.
    pub fn write(&mut self, records: &[Record], rng: &mut Rng) -> bool {
        // A lack of space is seen before anything is written.
        if self.full > 0 || self.poisoned {
            return false;
        }
        if self.flaky > 0 && rng.percent(60) {
            self.tear(records, rng);
            self.poisoned = true;
            return false;
        }
        self.records.extend_from_slice(records);
        if self.records.len() > COMPACT_AT {
            self.records = needed(&self.records);
        }
        true
    }

    /// Opens the journal again. Returns all its records.
    pub fn open(&mut self) -> &[Record] {
        self.poisoned = false;
        &self.records
    }

    /// Ends a write in the middle, as a crash does: the first few records are there, or all, or none.
    pub fn tear(&mut self, records: &[Record], rng: &mut Rng) {
        if self.full == 0 && !self.poisoned {
            let kept = rng.below(records.len() as u64 + 1) as usize;
            self.records.extend_from_slice(&records[..kept]);
        }
    }

    /// Loses the last records, though they were acknowledged; see
    /// [`Plant::ForgottenJournal`](super::Plant::ForgottenJournal).
    pub fn forget(&mut self, last: usize) {
        self.records.truncate(self.records.len().saturating_sub(last));
    }
}
