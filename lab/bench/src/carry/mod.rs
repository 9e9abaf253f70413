//! What carries a migration between two hosts. It is set up before a run, and gone after it.

mod mptcp;
pub mod qemu_tls;
mod skein;
mod socat;
mod ssh;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use skein_hypervisor::MemoryBackend;
use skein_identity::{CaError, ClusterCa, Validity, WriteError};
use tempfile::TempDir;

use crate::{
    mover::{Carrier, Mover},
    process::{Process, ProcessError},
    site::{HOSTS, Site, SiteError},
};

/// The time for a carrier to be ready.
const READY_DEADLINE: Duration = Duration::from_secs(20);

/// The first TCP port of QEMU's or socat's. The guests have the following numbers.
const PORT: u16 = 4444;

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
    fn note(&mut self, name: &str, value: impl Into<Value>) {
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

/// What carriers need for a whole bench: keys, and the `skein` program.
#[derive(Debug)]
pub struct Kit {
    directory: TempDir,
    skein: PathBuf,
}

impl Kit {
    /// Makes a cluster's CA, an identity for each host, and the files for QEMU's own TLS. `skein` is the program whose
    /// tunnel is measured.
    ///
    /// # Errors
    ///
    /// [`CarryError`] if keys or files cannot be made.
    pub fn new(skein: &Path) -> Result<Self, CarryError> {
        let directory = tempfile::Builder::new()
            .prefix("skein-kit-")
            .tempdir()
            .map_err(|source| CarryError::File { path: std::env::temp_dir(), source })?;
        let kit = Self { directory, skein: skein.into() };
        let ca = ClusterCa::create("skein bench")?;
        for host in HOSTS {
            ca.issue(host, Validity::days(2))?.save(&kit.identity(host))?;
        }
        qemu_tls::prepare(&kit)?;
        Ok(kit)
    }

    /// Returns the path of the `skein` program.
    pub fn skein(&self) -> &Path {
        &self.skein
    }

    /// Returns the directory of a host's identity.
    pub fn identity(&self, host: &str) -> PathBuf {
        self.directory.path().join(format!("identity-{host}"))
    }
}

/// Returns why this machine cannot run `mover` with this QEMU and memory, as far as that is known before trying.
/// `None`: it can.
pub fn lacks(mover: Mover, site: &Site, qemu: &Path, memory: MemoryBackend) -> Option<String> {
    match mover.carrier() {
        // A VM's definition has no other kind of memory.
        Carrier::Agents { .. } if memory != MemoryBackend::Memfd => Some("guests of agents have shared memory".into()),
        Carrier::Mptcp => mptcp::lacks(site),
        Carrier::Ssh => ssh::lacks(),
        Carrier::Socat => lacks_program("socat").or_else(|| takes_the_first_for_main(qemu)),
        Carrier::Agents { .. } | Carrier::Tcp | Carrier::TcpTls | Carrier::Skein { .. } => None,
    }
}

/// Returns a reason against multifd through socat if this QEMU takes the first connection for the main channel. A socat
/// forks for each connection, and any of them may be first at the target. Since 8.0, QEMU knows its channels by what
/// they send (migration/migration.c, `migration_ioc_process_incoming`).
fn takes_the_first_for_main(qemu: &Path) -> Option<String> {
    let version = skein_hypervisor::version_of(qemu).ok().filter(|version| version.major < 8)?;
    Some(format!("socat does not keep the order of connections, and QEMU {version} takes the first for its main one"))
}

fn lacks_program(name: &str) -> Option<String> {
    find(name).is_none().then(|| format!("{name} is not installed"))
}

/// Returns a program on the path, or where only root's path leads.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// Sets up what carries `mover`, and waits until it is ready.
///
/// # Errors
///
/// [`CarryError`] if something of it fails, or is not ready in time.
pub fn start(mover: Mover, route: &CarryRoute<'_>, kit: &Kit) -> Result<Carried, CarryError> {
    match mover.carrier() {
        Carrier::Tcp => tcp(route, ""),
        Carrier::TcpTls => {
            let mut carried = tcp(route, "")?;
            carried.tls = Some(qemu_tls::directory(kit));
            carried.note("tls", "tls-creds-x509 on both ends, ECDSA P-256, verify-peer=on");
            Ok(carried)
        }
        Carrier::Mptcp => mptcp::start(route),
        Carrier::Ssh => ssh::start(route, kit),
        Carrier::Socat => socat::start(route),
        Carrier::Skein { tls } => skein::start(route, kit, tls),
        // The agents' processes stay for the stage; see [`crate::agents`].
        Carrier::Agents { .. } => Ok(Carried::default()),
    }
}

/// Sets up QEMU's own connections, by the first NIC.
fn tcp(route: &CarryRoute<'_>, options: &str) -> Result<Carried, CarryError> {
    let ip = route.site.ip(route.target, 0)?;
    let uris = (0..route.guests as u16)
        // QEMU listens on all addresses: with MPTCP, connections come in by every NIC.
        .map(|n| (format!("tcp:0.0.0.0:{}{options}", PORT + n), format!("tcp:{ip}:{}{options}", PORT + n)))
        .collect();
    Ok(Carried { uris, ..Carried::default() })
}

/// Returns the unix sockets of each guest, and one more pair for the control stream.
fn forwards(route: &CarryRoute<'_>) -> (Vec<Forward>, Option<Forward>) {
    let forward = |name: String| Forward {
        listen: route.directory.join(format!("{name}.s")),
        connect: route.directory.join(format!("{name}.t")),
    };
    let guests = (0..route.guests).map(|n| forward(format!("m{n}"))).collect();
    (guests, route.control.then(|| forward("c".into())))
}

fn unix_uris(forwards: &[Forward]) -> Vec<(String, String)> {
    forwards.iter().map(|f| (format!("unix:{}", f.connect.display()), format!("unix:{}", f.listen.display()))).collect()
}

pub(crate) fn command_lines<'a>(processes: impl IntoIterator<Item = &'a Process>) -> Value {
    json!(processes.into_iter().map(|p| p.command_line().join(" ")).collect::<Vec<_>>())
}

fn write(path: &Path, content: &str) -> Result<(), CarryError> {
    std::fs::write(path, content).map_err(|source| CarryError::File { path: path.into(), source })
}

/// Waits until `process` has made its sockets.
fn wait_for_sockets<'a>(
    process: &mut Process,
    forwards: impl Iterator<Item = &'a Forward> + Clone,
) -> Result<(), CarryError> {
    Ok(process.wait_until("socket", READY_DEADLINE, |_| forwards.clone().all(|f| f.listen.exists()))?)
}
