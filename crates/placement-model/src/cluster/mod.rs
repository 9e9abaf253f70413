//! A cluster in words, and what the words mean as a [`Problem`](skein_placement::problem::Problem).
//!
//! | module | does |
//! |---|---|
//! | [`model`] | what a cluster is: plain values, from a file or from agents' reports |
//! | [`rule`] | the kinds of its rules, and their parameters |
//! | [`amount`] | "16 GiB" and other amounts |
//! | [`mod@file`] | a cluster as a file, YAML or JSON, and the lines of its mistakes |
//! | [`compile`](compile()) | a cluster as a problem, with [`Names`] that lead back |
//! | [`Clash`] | rules that can never hold together, reported when they are made |
//! | [`check`](check()) | what is broken now, and since when |
//!
//! The reference of the file is docs/cluster-file.md.

pub mod amount;
mod check;
mod clash;
mod compile;
mod complaint;
pub mod file;
mod mistake;
pub mod model;
mod names;
pub mod printable;
pub mod rule;
mod survival;
#[cfg(test)]
pub(crate) mod tests;

pub use check::{Check, History, check};
pub use clash::Clash;
pub use compile::{Compiled, compile};
pub use complaint::Complaint;
pub use file::{ClusterError, read, read_part};
pub use mistake::{CompileError, Mistake, Object, ObjectKind};
pub(crate) use names::agree;
pub use names::{Fence, Leaning, Level, Measure, Names, Row, RuleId, RuleKind, RuleName};
pub use rule::HOST_LEVEL;
pub use survival::{Survived, failing};
