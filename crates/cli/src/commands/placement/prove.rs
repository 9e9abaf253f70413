//! What the best placement costs, by HiGHS, where it is built in.

use std::time::Duration;

use skein_placement::problem::{HostId, Problem};

/// What is known of the best placement.
pub struct Proof {
    /// The best that is known: it breaks nothing, if anything does not.
    pub assignment: Vec<HostId>,
    /// What any that breaks nothing costs at least; None if there is none.
    pub bound: Option<i64>,
}

/// Proves as much as it gets to in so much time, beginning at what is known.
#[cfg(feature = "exact")]
pub fn prove(problem: &Problem, known: &[HostId], time: Duration) -> anyhow::Result<Proof> {
    let skein_exact::Proof { assignment, bound, .. } = skein_exact::prove(problem, known, time)?;
    Ok(Proof { assignment, bound })
}

/// Why it cannot be proven.
#[cfg(not(feature = "exact"))]
pub const WITHOUT: &str = "this skein is built without HiGHS: `make build EXACT=1` builds one with it";

/// Says that it cannot.
#[cfg(not(feature = "exact"))]
pub fn prove(_: &Problem, _: &[HostId], _: Duration) -> anyhow::Result<Proof> {
    anyhow::bail!(WITHOUT)
}
