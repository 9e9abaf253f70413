//! QEMU's answers, read so far that an error names what was asked.

use serde_json::Value;

/// An answer that does not say what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("QEMU's answer to {command} is not understood: {why}")]
pub struct Malformed {
    /// The command that was asked.
    pub command: &'static str,
    /// What is wrong with the answer.
    pub why: String,
}

pub(super) type Read<T> = Result<T, Malformed>;

pub(super) fn malformed(command: &'static str, why: impl Into<String>) -> Malformed {
    Malformed { command, why: why.into() }
}

pub(super) fn text<'a>(command: &'static str, value: &'a Value, key: &str) -> Read<&'a str> {
    value[key].as_str().ok_or_else(|| malformed(command, format!("no {key} in {}", excerpt(value))))
}

pub(super) fn list<'a>(command: &'static str, value: &'a Value) -> Read<&'a Vec<Value>> {
    value.as_array().ok_or_else(|| malformed(command, format!("no list but {}", excerpt(value))))
}

pub(super) fn words<'a>(command: &'static str, value: &'a Value) -> Read<&'a str> {
    value.as_str().ok_or_else(|| malformed(command, format!("no text but {}", excerpt(value))))
}

fn excerpt(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}
