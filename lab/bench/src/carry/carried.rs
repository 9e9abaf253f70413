//! What all carriers have in common.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use skein_identity::{CaError, WriteError};

use crate::{
    process::{Process, ProcessError},
    site::{Site, SiteError},
};

/// The time for a carrier to be ready.
pub(super) const READY_DEADLINE: Duration = Duration::from_secs(20);

/// The first TCP port of QEMU's or socat's. The guests have the following numbers.
pub(super) const PORT: u16 = 4444;

/// Why a carrier could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    /// One of its programs failed.
    #[error("setting up the mover")]
    Process(#[from] ProcessError),
    /// The hosts failed.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// The keys for QEMU's own TLS could not be made.
    #[error("making certificates for QEMU")]
    Certificate(#[from] rcgen::Error),
    /// One of its files failed.
    #[error("the mover's file {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The keys of the bench's cluster could not be made.
    #[error("making a CA and identities")]
    Ca(#[from] CaError),
    /// The files of these keys could not be written.
    #[error("writing an identity")]
    Identity(#[from] WriteError),
}

/// A pipe between unix sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The socket on the source, which the mover makes.
    pub listen: PathBuf,
    /// The socket on the target, which another program makes.
    pub connect: PathBuf,
}

/// The hosts between which something is carried, and for how many guests.
pub struct CarryRoute<'a> {
    /// The hosts.
    pub site: &'a Site,
    /// The host that guests leave.
    pub source: &'a str,
    /// The host that guests go to.
    pub target: &'a str,
    /// How many guests there are.
    pub guests: u32,
    /// Whether there is one more pipe, if the carrier is a tunnel.
    pub control: bool,
    /// The directory for sockets and logs of this run. Its path is short, as a unix socket's path has at most 107
    /// bytes.
    pub directory: &'a Path,
}

/// A carrier that is ready. Dropping it ends its processes.
#[derive(Debug, Default)]
pub struct Carried {
    /// Its processes on the source, which are ended before those on the target.
    pub source: Vec<Process>,
    /// Its processes on the target.
    pub target: Vec<Process>,
    /// For each guest, what the target QEMU listens on and what the source QEMU connects to.
    pub uris: Vec<(String, String)>,
    /// The additional pipe, if there is one.
    pub control: Option<Forward>,
    /// The directory with QEMU's TLS credentials.
    pub tls: Option<PathBuf>,
    /// All settings of the carrier.
    pub parameters: BTreeMap<String, Value>,
}

impl Carried {
    pub(super) fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.parameters.insert(name.into(), value.into());
    }

    /// Returns the ids of its processes on the source.
    pub fn source_pids(&self) -> Vec<u32> {
        self.source.iter().map(Process::pid).collect()
    }

    /// Returns the ids of its processes on the target.
    pub fn target_pids(&self) -> Vec<u32> {
        self.target.iter().map(Process::pid).collect()
    }
}

pub(super) fn lacks_program(name: &str) -> Option<String> {
    find(name).is_none().then(|| format!("{name} is not installed"))
}

/// Returns a program on the path, or where only root's path leads.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// Sets up QEMU's own connections, by the first NIC.
pub(super) fn tcp(route: &CarryRoute<'_>, options: &str) -> Result<Carried, CarryError> {
    let ip = route.site.ip(route.target, 0)?;
    let uris = (0..route.guests as u16)
        // QEMU listens on all addresses: with MPTCP, connections come in by every NIC.
        .map(|n| (format!("tcp:0.0.0.0:{}{options}", PORT + n), format!("tcp:{ip}:{}{options}", PORT + n)))
        .collect();
    Ok(Carried { uris, ..Carried::default() })
}

/// Returns the unix sockets of each guest, and one more pair for the control stream.
pub(super) fn forwards(route: &CarryRoute<'_>) -> (Vec<Forward>, Option<Forward>) {
    let forward = |name: String| Forward {
        listen: route.directory.join(format!("{name}.s")),
        connect: route.directory.join(format!("{name}.t")),
    };
    let guests = (0..route.guests).map(|n| forward(format!("m{n}"))).collect();
    (guests, route.control.then(|| forward("c".into())))
}

pub(super) fn unix_uris(forwards: &[Forward]) -> Vec<(String, String)> {
    forwards.iter().map(|f| (format!("unix:{}", f.connect.display()), format!("unix:{}", f.listen.display()))).collect()
}

pub(crate) fn command_lines<'a>(processes: impl IntoIterator<Item = &'a Process>) -> Value {
    json!(processes.into_iter().map(|p| p.command_line().join(" ")).collect::<Vec<_>>())
}

pub(super) fn write(path: &Path, content: &str) -> Result<(), CarryError> {
    std::fs::write(path, content).map_err(|source| CarryError::File { path: path.into(), source })
}

/// Waits until `process` has made its sockets.
pub(super) fn wait_for_sockets<'a>(
    process: &mut Process,
    forwards: impl Iterator<Item = &'a Forward> + Clone,
) -> Result<(), CarryError> {
    Ok(process.wait_until("socket", READY_DEADLINE, |_| forwards.clone().all(|f| f.listen.exists()))?)
}
