//! An agent's disk: what it acknowledged is there after a crash, what it did not may be.

use skein_handover::{Record, needed};

use crate::rng::Rng;

/// Records beyond which a journal is written anew with those that are needed.
const COMPACT_AT: usize = 48;

#[derive(Default)]
pub struct Disk {
    records: Vec<Record>,
    /// Faults that are at work.
    pub full: u32,
    pub flaky: u32,
    pub slow: u32,
    /// A write failed, and nobody knows what is there: nothing more is written until the journal is opened again.
    pub poisoned: bool,
}

impl Disk {
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Writes and syncs. False: they may or may not be there.
    pub fn write(&mut self, records: &[Record], rng: &mut Rng) -> bool {
        // That there is no space is seen before anything is written.
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

    /// The journal is opened again.
    pub fn open(&mut self) -> &[Record] {
        self.poisoned = false;
        &self.records
    }

    /// The agent ends in the middle of a write: the first few are there, or all, or none.
    pub fn tear(&mut self, records: &[Record], rng: &mut Rng) {
        if self.full == 0 && !self.poisoned {
            let kept = rng.below(records.len() as u64 + 1) as usize;
            self.records.extend_from_slice(&records[..kept]);
        }
    }

    /// A disk that acknowledged what it did not keep; see [`super::Plant::ForgottenJournal`].
    pub fn forget(&mut self, last: usize) {
        self.records.truncate(self.records.len().saturating_sub(last));
    }
}
