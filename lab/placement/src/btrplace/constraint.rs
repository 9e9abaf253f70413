//! Reads a constraint's fields. Each returns an error if the constraint lacks the field.

use serde_json::value::RawValue;

use super::error::FileError;
use super::file::Constraint;

/// A constraint, and where it is in the file.
#[derive(Clone, Copy)]
pub(super) struct Rule<'c, 'a> {
    pub(super) of: &'c Constraint<'a>,
    pub(super) at: usize,
}

impl<'c, 'a> Rule<'c, 'a> {
    pub(super) fn path(&self, key: &str) -> String {
        format!("constraints[{}].{key}", self.at)
    }

    pub(super) fn error(&self, what: impl std::fmt::Display) -> FileError {
        FileError::meaning(format!("constraints[{}]", self.at), format!("{}: {what}", self.of.id))
    }

    pub(super) fn has<T>(&self, value: Option<T>, key: &str) -> Result<T, FileError> {
        value.ok_or_else(|| self.error(format!("`{key}` is missing")))
    }

    pub(super) fn vm(&self) -> Result<u32, FileError> {
        self.has(self.of.vm, "vm")
    }

    pub(super) fn node(&self) -> Result<u32, FileError> {
        self.has(self.of.node, "node")
    }

    pub(super) fn vms(&self) -> Result<&'c [u32], FileError> {
        self.has(self.of.vms.as_deref(), "vms")
    }

    pub(super) fn nodes(&self) -> Result<&'a RawValue, FileError> {
        self.has(self.of.nodes, "nodes")
    }

    pub(super) fn amount(&self) -> Result<i64, FileError> {
        self.has(self.of.amount, "amount").map(i64::from)
    }
}
