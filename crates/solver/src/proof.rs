//! Proves what the best placement costs, by HiGHS, if that is built in.

use std::time::Duration;

use skein_placement::problem::{HostId, Problem};
use thiserror::Error;

/// What is known of the best placement. Failures of hosts are not part of the proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The best assignment that is known, a host for each guest. It breaks nothing if there is an assignment that
    /// breaks nothing.
    pub assignment: Vec<HostId>,
    /// A lower bound of the cost of any assignment that breaks nothing. `None`: there is no such assignment.
    pub bound: Option<i64>,
}

/// Why nothing is proven.
#[derive(Debug, Error)]
pub enum ProofError {
    /// HiGHS is not built in.
    #[error("this program is built without HiGHS: `make build EXACT=1` builds one with it, or `make lab EXACT=1`")]
    NotBuilt,
    /// HiGHS gave no proof.
    #[cfg(feature = "exact")]
    #[error(transparent)]
    Exact(#[from] skein_exact::ExactError),
}

/// Proves as much as it can in the given time, beginning with what is known.
///
/// # Errors
///
/// Those of [`skein_exact::prove`].
#[cfg(feature = "exact")]
pub(crate) fn prove(problem: &Problem, known: &[HostId], time: Duration) -> Result<Proof, ProofError> {
    let skein_exact::Proof { assignment, bound, .. } = skein_exact::prove(problem, known, time)?;
    Ok(Proof { assignment, bound })
}

/// Returns the error that nothing can be proven.
///
/// # Errors
///
/// Always.
#[cfg(not(feature = "exact"))]
pub(crate) fn prove(_: &Problem, _: &[HostId], _: Duration) -> Result<Proof, ProofError> {
    Err(ProofError::NotBuilt)
}
