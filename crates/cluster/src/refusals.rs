//! How many refusals of a caller are written to the audit log.

use std::collections::BTreeMap;

use crate::time::Now;

/// How many refusals of one caller are written in a [`REFUSALS_MS`].
const REFUSALS_MAX: u32 = 60;
/// In which time the refusals of a caller are counted, in milliseconds.
const REFUSALS_MS: u64 = 60_000;
/// How many callers' refusals are counted; all others count as one caller.
const CALLERS_MAX: usize = 1024;

/// The refusals of callers.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    of: BTreeMap<String, Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    since_ms: u64,
    written: u32,
    left_out: u64,
}

impl Refusals {
    /// Counts a refusal. Returns how many were left out since the last that was written; `None`: it is left out, too.
    pub(crate) fn count(&mut self, now: Now, by: &str) -> Option<u64> {
        if self.of.len() >= CALLERS_MAX && !self.of.contains_key(by) {
            self.of.retain(|_, counted| now.ms_since(counted.since_ms) < REFUSALS_MS);
        }
        let is_known = self.of.len() < CALLERS_MAX || self.of.contains_key(by);
        let counted = self.of.entry(if is_known { by } else { "" }.to_owned()).or_default();
        if counted.written == 0 || now.ms_since(counted.since_ms) >= REFUSALS_MS {
            (counted.since_ms, counted.written) = (now.mono_ms, 0);
        }
        if counted.written >= REFUSALS_MAX {
            counted.left_out += 1;
            return None;
        }
        counted.written += 1;
        Some(std::mem::take(&mut counted.left_out))
    }
}
