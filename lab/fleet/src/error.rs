//! Why a fleet cannot be run.

use std::io;
use std::path::PathBuf;

use skein_client::{BadUrl, ControllerError};
use skein_identity::CaError;
use skein_lab_placement::planetlab;

/// Why a fleet cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// A file, a pipe or a process failed.
    #[error("{what}")]
    Io {
        /// What could not be done.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The program of controllers refuses.
    #[error("skein-controller {command}: {said}")]
    Controller {
        /// What was asked.
        command: &'static str,
        /// What it said.
        said: String,
    },
    /// The controller refuses, or does not answer.
    #[error("the controller")]
    Asked(#[from] ControllerError),
    /// The controller's address is none.
    #[error("the controller's address")]
    Url(#[from] BadUrl),
    /// The cluster's CA cannot be used.
    #[error("the cluster's CA")]
    Ca(#[from] CaError),
    /// What the kernel says of a process cannot be read.
    #[error("the controller's process")]
    Process(#[from] skein_host::ProcError),
    /// There are no traces.
    #[error("{} has no traces: name a directory with a file for each machine, or with such directories", .0.display())]
    NoTraces(PathBuf),
    /// A file is no trace.
    #[error("{}", .path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: planetlab::FileError,
    },
    /// Something did not happen in time.
    #[error("{0}")]
    Late(String),
    /// A process of agents has ended.
    #[error("a process of agents has ended")]
    AgentsGone,
    /// Somebody has had enough.
    #[error("interrupted")]
    Interrupted,
}

impl FleetError {
    /// Makes the error of something that could not be done.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> FleetError {
        |source| FleetError::Io { what: what.into(), source }
    }
}
