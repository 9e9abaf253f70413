//! A finding: what was checked, how it is, and what would mend it.

use serde::Serialize;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    Ok,
    /// Something is slow, or about to fail.
    Warn,
    /// Guests cannot be moved.
    Bad,
}

/// Something that was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) topic: &'static str,
    pub(super) what: String,
    /// What would mend it. Empty: there is nothing to mend.
    pub(super) cure: String,
}

pub(super) fn ok(topic: &'static str, what: impl Into<String>) -> Finding {
    Finding { severity: Severity::Ok, topic, what: what.into(), cure: String::new() }
}

pub(super) fn warn(topic: &'static str, what: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { severity: Severity::Warn, topic, what: what.into(), cure: cure.into() }
}

pub(super) fn bad(topic: &'static str, what: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { severity: Severity::Bad, topic, what: what.into(), cure: cure.into() }
}

/// Returns an error and its causes in one line.
pub(super) fn chain(error: impl std::error::Error + Send + Sync + 'static) -> String {
    format!("{:#}", anyhow::Error::new(error))
}
