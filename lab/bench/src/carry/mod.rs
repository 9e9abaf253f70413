//! What carries a migration between two hosts: set up before a run, gone after it.

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

/// For a carrier to be ready.
const READY_DEADLINE: Duration = Duration::from_secs(20);

/// First TCP port of QEMU's or socat's; guests number up from here.
const PORT: u16 = 4444;

/// A carrier that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    /// A program of it.
    #[error("setting up the mover")]
    Process(#[from] ProcessError),
    /// The hosts.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// Keys for QEMU's own TLS.
    #[error("making certificates for QEMU")]
    Certificate(#[from] rcgen::Error),
    /// Its files.
    #[error("the mover's file {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The keys of a cluster made for the bench.
    #[error("making a CA and identities")]
    Ca(#[from] CaError),
    /// Their files.
    #[error("writing an identity")]
    Identity(#[from] WriteError),
}

/// A pipe between unix sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Made by the mover, on the source.
    pub listen: PathBuf,
    /// Made by someone else, on the target.
    pub connect: PathBuf,
}

/// Between which hosts, for how many guests.
pub struct CarryRoute<'a> {
    /// The hosts.
    pub site: &'a Site,
    /// Where guests leave.
    pub source: &'a str,
    /// Where they go.
    pub target: &'a str,
    /// How many.
    pub guests: u32,
    /// One more pipe, where the carrier is a tunnel.
    pub control: bool,
    /// Directory for sockets and logs of this run. Short: a unix socket's path has at most 107 bytes.
    pub directory: &'a Path,
}

/// A carrier that is ready. Dropping it ends its processes.
#[derive(Debug, Default)]
pub struct Carried {
    /// Its processes on the source; ended before those on the target.
    pub source: Vec<Process>,
    /// Its processes on the target.
    pub target: Vec<Process>,
    /// For each guest, what the target QEMU listens on and what the source QEMU connects to.
    pub uris: Vec<(String, String)>,
    /// The further pipe, if there is one.
    pub control: Option<Forward>,
    /// Directory with QEMU's TLS credentials.
    pub tls: Option<PathBuf>,
    /// Everything about it that was set.
    pub parameters: BTreeMap<String, Value>,
}

impl Carried {
    fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.parameters.insert(name.into(), value.into());
    }

    /// Its processes' ids on the source.
    pub fn source_pids(&self) -> Vec<u32> {
        self.source.iter().map(Process::pid).collect()
    }

    /// Its processes' ids on the target.
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
    /// Makes a cluster's CA and an identity for each host, and what QEMU's own TLS wants.
    /// `skein`: the program whose tunnel is measured.
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

    /// The `skein` program.
    pub fn skein(&self) -> &Path {
        &self.skein
    }

    /// The directory of a host's identity.
    pub fn identity(&self, host: &str) -> PathBuf {
        self.directory.path().join(format!("identity-{host}"))
    }
}

/// Why this machine cannot run `mover` with this QEMU and memory, as far as can be told before trying; None if it can.
pub fn lacks(mover: Mover, site: &Site, qemu: &Path, memory: MemoryBackend) -> Option<String> {
    match mover.carrier() {
        // A VM's definition knows no other.
        Carrier::Agents { .. } if memory != MemoryBackend::Memfd => Some("guests of agents have shared memory".into()),
        Carrier::Mptcp => mptcp::lacks(site),
        Carrier::Ssh => ssh::lacks(),
        Carrier::Socat => lacks_program("socat").or_else(|| takes_the_first_for_main(qemu)),
        Carrier::Agents { .. } | Carrier::Tcp | Carrier::TcpTls | Carrier::Skein { .. } => None,
    }
}

/// A socat forks for each connection, and whichever is first at the target is first; QEMU knows its channels by what
/// they say since 8.0 (migration/migration.c, `migration_ioc_process_incoming`).
fn takes_the_first_for_main(qemu: &Path) -> Option<String> {
    let version = skein_hypervisor::version_of(qemu).ok().filter(|version| version.major < 8)?;
    Some(format!("socat does not keep the order of connections, and QEMU {version} takes the first for its main one"))
}

fn lacks_program(name: &str) -> Option<String> {
    find(name).is_none().then(|| format!("{name} is not installed"))
}

/// A program on the path, or where only root's path leads.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// Sets up what carries `mover`, and waits until it is ready.
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
        // Its processes stay for the stage; see [`crate::agents`].
        Carrier::Agents { .. } => Ok(Carried::default()),
    }
}

/// QEMU's own connections, by the first NIC.
fn tcp(route: &CarryRoute<'_>, options: &str) -> Result<Carried, CarryError> {
    let ip = route.site.ip(route.target, 0)?;
    let uris = (0..route.guests as u16)
        // All addresses: with MPTCP, connections come in by every NIC.
        .map(|n| (format!("tcp:0.0.0.0:{}{options}", PORT + n), format!("tcp:{ip}:{}{options}", PORT + n)))
        .collect();
    Ok(Carried { uris, ..Carried::default() })
}

/// The unix sockets of each guest, and one more for the control stream.
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
