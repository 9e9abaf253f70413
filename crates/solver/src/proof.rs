//! What the best placement costs, by HiGHS, where it is built in.

use std::time::Duration;

use skein_placement::problem::{HostId, Problem};
use thiserror::Error;

/// What is known of the best placement. Nothing is proven of failures of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The best that is known, a host for each guest: it breaks nothing, if anything does not.
    pub assignment: Vec<HostId>,
    /// What any that breaks nothing costs at least; None if there is none.
    pub bound: Option<i64>,
}

/// Why nothing is proven.
#[derive(Debug, Error)]
pub enum ProofError {
    /// HiGHS is not built in.
    #[error("this skein is built without HiGHS: `make build EXACT=1` builds one with it")]
    NotBuilt,
    /// HiGHS gave no proof.
    #[cfg(feature = "exact")]
    #[error(transparent)]
    Exact(#[from] skein_exact::ExactError),
}

/// Proves as much as it gets to in so much time, beginning at what is known.
///
/// # Errors
/// See [`skein_exact::prove`].
#[cfg(feature = "exact")]
pub(crate) fn prove(problem: &Problem, known: &[HostId], time: Duration) -> Result<Proof, ProofError> {
    let skein_exact::Proof { assignment, bound, .. } = skein_exact::prove(problem, known, time)?;
    Ok(Proof { assignment, bound })
}

/// Says that nothing can be proven.
///
/// # Errors
/// Always.
#[cfg(not(feature = "exact"))]
pub(crate) fn prove(_: &Problem, _: &[HostId], _: Duration) -> Result<Proof, ProofError> {
    Err(ProofError::NotBuilt)
}
