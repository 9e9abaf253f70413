//! What is wrong in a cluster, and with which object, wherever the cluster is from.

use std::fmt;

use thiserror::Error;

use crate::problem::Flaw;

/// Why a cluster cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CompileError {
    /// Something in it cannot be.
    #[error(transparent)]
    Mistake(#[from] Mistake),
    /// Its amounts or weights are too large together.
    #[error("the cluster cannot be counted")]
    Flaw(#[from] Flaw),
}

/// Something in a cluster that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}")]
pub struct Mistake {
    /// The object in which it is.
    pub object: Object,
    /// The fields that lead to it within the object: `size`, `memory`. Empty: the object's name, or the only value
    /// that the object has.
    pub part: Vec<String>,
    /// Why it cannot be, and what could. Names the object.
    pub what: String,
}

/// An object of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub kind: ObjectKind,
    /// Index in the list of its kind, from 0 on.
    pub index: usize,
    /// What it is called; of a balance, the resource that it is for. Empty where there is only one of its kind.
    pub name: String,
}

/// Kinds of objects, by the field of [`Cluster`](super::model::Cluster) that they are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// One of `resources`.
    Resource,
    /// One of `hosts`.
    Host,
    /// One of `templates`.
    Template,
    /// One of `guests`.
    Guest,
    /// One of `rules`, of this kind.
    Rule(&'static str),
    /// One of `balances`.
    Balance,
    /// `survive`.
    Survive,
    /// `weights`.
    Weights,
    /// `bandwidth`.
    Bandwidth,
}

impl ObjectKind {
    /// What an object of this kind is called.
    pub(super) fn word(self) -> &'static str {
        match self {
            ObjectKind::Resource => "resource",
            ObjectKind::Host => "host",
            ObjectKind::Template => "template",
            ObjectKind::Guest => "guest",
            ObjectKind::Rule(_) => "rule",
            ObjectKind::Balance => "balance",
            ObjectKind::Survive => "survive",
            ObjectKind::Weights => "weights",
            ObjectKind::Bandwidth => "bandwidth",
        }
    }
}

impl Object {
    pub(super) fn new(kind: ObjectKind, index: usize, name: &str) -> Object {
        Object { kind, index, name: name.to_owned() }
    }

    /// The only object of its kind.
    pub(super) fn only(kind: ObjectKind) -> Object {
        Object { kind, index: 0, name: String::new() }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, name) = (self.kind.word(), &self.name);
        match self.kind {
            ObjectKind::Balance => write!(f, "{word} for '{name}'"),
            ObjectKind::Survive | ObjectKind::Weights | ObjectKind::Bandwidth => f.write_str(word),
            _ => write!(f, "{word} '{name}'"),
        }
    }
}

/// That there is no such thing, and which may be meant.
pub(super) fn unknown<T: AsRef<str>>(what: &str, name: &str, known: impl IntoIterator<Item = T>) -> String {
    let likeness = |known: &T| (strsim::jaro_winkler(known.as_ref(), name) * 1000.0) as u32;
    match known.into_iter().max_by_key(likeness) {
        Some(close) if likeness(&close) > 700 => {
            format!("there is no {what} '{name}'; did you mean '{}'?", close.as_ref())
        }
        Some(_) => format!("there is no {what} '{name}'"),
        None => format!("there is no {what} '{name}', and no other either"),
    }
}
