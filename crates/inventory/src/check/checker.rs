//! Collects problems.

use crate::claim::shortened;
use crate::facts::{GuestFacts, HostFacts};
use crate::problem::{Problem, ProblemKind, Severity};

/// The most names in a list within a sentence.
const NAMES_MAX: usize = 24;

/// A migration that is checked, and the problems that were found so far. Each file of this folder adds the checks of
/// one subject.
pub(super) struct Checker<'a> {
    pub(super) guest: &'a GuestFacts,
    pub(super) source: &'a HostFacts,
    pub(super) target: &'a HostFacts,
    pub(super) problems: Vec<Problem>,
}

impl Checker<'_> {
    pub(super) fn add(&mut self, kind: ProblemKind, severity: Severity, what: String, cure: impl Into<String>) {
        self.problems.push(Problem::new(kind, severity, what, cure));
    }

    pub(super) fn blocks(&mut self, kind: ProblemKind, what: String, cure: impl Into<String>) {
        self.add(kind, Severity::Blocks, what, cure);
    }

    pub(super) fn warns(&mut self, kind: ProblemKind, what: String, cure: impl Into<String>) {
        self.add(kind, Severity::Warns, what, cure);
    }
}

/// Writes names as `a, b, c and 7 more`, or as `none`.
pub(super) fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { shortened(names, NAMES_MAX) }
}
