//! What hosts have, as their agents answered that were asked.

use std::collections::{BTreeMap, BTreeSet};

/// What a host's agent answered.
#[derive(Debug)]
pub(crate) struct Look {
    /// When the agent was asked, by the clock that never jumps.
    pub(crate) asked_ms: u64,
    /// How many hosts had been proven off by then.
    pub(crate) proofs: u64,
    /// The VMs that the host has, but those that are off.
    pub(crate) vms: BTreeSet<String>,
}

/// What hosts' agents answered last in this term, and which hosts were proven off in what order.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    pub(crate) answered: BTreeMap<String, Look>,
    /// How many hosts were proven off in this term.
    pub(crate) proofs: u64,
    /// Which proof was each host's. One that is off and not here was off before this controller led.
    pub(crate) off: BTreeMap<String, u64>,
}

impl Looks {
    /// Notes that a host is proven to be off.
    pub(crate) fn note_off(&mut self, host: &str) {
        self.proofs += 1;
        self.off.insert(host.to_owned(), self.proofs);
    }
}
