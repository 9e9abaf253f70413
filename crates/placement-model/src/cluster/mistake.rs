//! Mistakes in a cluster, each with the object that it is in, wherever the cluster comes from.

use std::fmt;

use thiserror::Error;

use skein_placement::problem::Flaw;

/// Why a cluster cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CompileError {
    /// Something in the cluster is not allowed.
    #[error(transparent)]
    Mistake(#[from] Mistake),
    /// The sums of its amounts or weights are too large.
    #[error("the cluster cannot be counted")]
    Flaw(#[from] Flaw),
}

/// Something in a cluster that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}")]
pub struct Mistake {
    /// The object that the mistake is in.
    pub object: Object,
    /// The fields that lead to the mistake within the object: `size`, `memory`. Empty: the mistake is in the object's
    /// name, or in its only value.
    pub part: Vec<String>,
    /// Why it is not allowed, and what would be. The text names the object.
    pub what: String,
}

/// An object of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The index in the list of its kind, from 0 on.
    pub index: usize,
    /// The object's name. For a balance it is the name of the resource that it is for. Empty if there is only one of
    /// its kind.
    pub name: String,
}

/// Kinds of objects, by the field of [`Cluster`](super::model::Cluster) that they are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// An entry of `resources`.
    Resource,
    /// An entry of `hosts`.
    Host,
    /// An entry of `templates`.
    Template,
    /// An entry of `guests`.
    Guest,
    /// An entry of `rules`, of this kind.
    Rule(&'static str),
    /// An entry of `balances`.
    Balance,
    /// The value of `survive`.
    Survive,
    /// The value of `weights`.
    Weights,
    /// The value of `bandwidth`.
    Bandwidth,
}

impl ObjectKind {
    /// Returns the word for an object of this kind.
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

    /// Makes the only object of its kind.
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

/// Says that there is no such thing, and which one may be meant.
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
