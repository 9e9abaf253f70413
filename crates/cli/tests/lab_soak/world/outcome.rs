//! What came of a round.

use std::time::Duration;

use skein_api::Outcome;

use crate::plan::Kind;

/// What went wrong for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    Lost,
    Doubled,
    Corrupted,
    Other,
}

pub struct Failure {
    pub harm: Harm,
    pub why: String,
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure { harm: Harm::Other, why }
    }
}

/// The result of a round.
pub struct Done {
    /// The outcome of each migration that was asked for. `None`: it was refused because of a fault.
    pub outcomes: Vec<Option<Outcome>>,
    /// The faults that were injected: those for which there was a moment and a victim.
    pub done: Vec<Kind>,
    /// The time from the end of the last fault until all agents agree where each guest runs, and it runs there.
    pub resolved: Duration,
    /// The time until nothing was left over.
    pub clean: Duration,
    /// The longest time that a guest ran nowhere, of the guests that were moved or kept.
    pub stopped: Duration,
    /// The number of guests that ended with the QEMU that ran them.
    pub ended: usize,
    /// The outcomes of the migrations that were in doubt.
    pub doubts: Vec<Option<Outcome>>,
}
