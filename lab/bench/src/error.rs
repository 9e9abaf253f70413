//! Why a bench cannot go on.

use std::{io, path::PathBuf, time::Duration};

use skein_client::CallError;
use skein_lab_guest::Error;

use crate::{busy::BusyError, carry::CarryError, migration::MigrationError, site::SiteError};

/// The time for a move to come to its middle, to settle after the agent is back, and to be made once more.
pub(crate) const KILLED_DEADLINE: Duration = Duration::from_secs(120);

/// Why a bench cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The hosts failed.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// The guests failed.
    #[error(transparent)]
    Guest(#[from] skein_lab_guest::Error),
    /// Keys or programs failed.
    #[error(transparent)]
    Carry(#[from] CarryError),
    /// The guests at work on all cores failed.
    #[error(transparent)]
    Busy(#[from] BusyError),
    /// An agent failed.
    #[error("an agent")]
    Agent(#[source] skein_client::CallError),
    /// A guest whose agent was killed is not as it should be.
    #[error("an agent was killed")]
    Killed(#[source] KilledError),
    /// A cluster is not as it should be.
    #[error("the cluster: {0}")]
    Cluster(String),
    /// A fleet of simulated hosts cannot be run.
    #[error("the fleet")]
    Fleet(#[from] skein_lab_fleet::FleetError),
    /// There is no controller to run.
    #[error("there is no {}: build it beside skein (make controller)", .0.display())]
    NoController(PathBuf),
    /// The bench is not run by root, and only root may make hosts.
    #[error("a bench makes network namespaces: run it as root")]
    NotRoot,
    /// Watching a run failed.
    #[error("watching a run")]
    Watch(#[source] io::Error),
    /// A directory could not be made.
    #[error("a directory for the bench's files")]
    Directory(#[source] io::Error),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// What went wrong with a guest whose agent was killed.
#[derive(Debug, thiserror::Error)]
pub enum KilledError {
    /// An agent refused, or did not answer.
    #[error("an agent")]
    Agent(#[from] CallError),
    /// The guest or its QEMU failed.
    #[error("the guest")]
    Guest(#[from] Error),
    /// The guest could not be moved once more.
    #[error("the move after it")]
    Move(#[from] MigrationError),
    /// The move was over before the agent could be killed.
    #[error("the move was over before its middle: {0}")]
    Early(String),
    /// The next move was called off.
    #[error("the move after it was called off: {0}")]
    Kept(String),
    /// Something did not happen in time.
    #[error("{what}: not within {} s", KILLED_DEADLINE.as_secs())]
    Late {
        /// What did not happen.
        what: &'static str,
    },
    /// The guest does not run where it should, or runs in more than one QEMU.
    #[error("THE GUEST DOES NOT RUN EXACTLY ONCE: {0}")]
    NotOnce(String),
    /// The guest's memory or disk is not what it should be.
    #[error("THE GUEST IS NOT INTACT: {bad_pages} of {pages} pages and {bad_blocks} blocks are wrong")]
    NotIntact {
        /// How many pages the guest wrote.
        pages: u64,
        /// How many of these pages are wrong.
        bad_pages: u64,
        /// How many blocks of its disk are wrong.
        bad_blocks: u64,
    },
}

impl From<KilledError> for BenchError {
    fn from(source: KilledError) -> Self {
        BenchError::Killed(source)
    }
}
