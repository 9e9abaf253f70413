//! Keeps facts of VMs on disk.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use skein_handover::MigrationId;
use skein_hypervisor::ProcessId;
use skein_inventory::Composition;
use tracing::warn;

use super::seen::Seen;
use crate::dirs::replace;
use crate::launch::Launch;

/// What is kept of a VM while this host knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SavedVm {
    pub(super) launch: Launch,
    /// The QMP socket of a QEMU that another program started.
    pub(super) adopted: Option<PathBuf>,
    /// The composition of the VM's QEMU when it had just been started.
    #[serde(default)]
    pub(super) launched: Option<Composition>,
    /// What the guest had when its QEMU was last asked.
    #[serde(default)]
    #[serde(rename = "seen")]
    pub(super) last_seen: Option<Seen>,
    /// The images that the VM had open and has another in place of: the old image's name, and that of the image after
    /// it.
    #[serde(default)]
    #[serde(rename = "left")]
    pub(super) replaced_images: BTreeMap<String, String>,
    /// Why the VM is off, if that is worth knowing.
    #[serde(default)]
    pub(super) note: String,
    /// The reservation of a VM that is on its way here while it is off: it cannot be started before that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reserved: Option<String>,
}

impl SavedVm {
    /// Returns what is kept of a VM of which nothing more is known yet.
    pub(super) fn new(launch: Launch) -> SavedVm {
        SavedVm {
            launch,
            adopted: None,
            launched: None,
            last_seen: None,
            replaced_images: BTreeMap::new(),
            note: String::new(),
            reserved: None,
        }
    }
}

/// What is kept of a process while it runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SavedProcess {
    pub(super) process: ProcessId,
    pub(super) qmp: PathBuf,
    /// The migration that the process waits for.
    pub(super) incoming: Option<MigrationId>,
    /// The migration that takes the process's guest away.
    #[serde(default)]
    pub(super) outgoing: Option<MigrationId>,
}

/// Reads a file; `None`: it is not there, or cannot be read, which is logged.
pub(super) fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            warn!("{}: {error}", path.display());
            return None;
        }
    };
    serde_json::from_slice(&bytes).inspect_err(|error| warn!("{} is damaged: {error}", path.display())).ok()
}

/// Writes a file, whole or not at all.
pub(super) fn write<T: Serialize>(path: &Path, kept: &T) -> io::Result<()> {
    replace(path, &serde_json::to_vec_pretty(kept).expect("plain data always serialises"))
}

/// Writes a file, whole or not at all, so that it is there after a power cut.
pub(super) fn write_synced<T: Serialize>(path: &Path, kept: &T) -> io::Result<()> {
    write(path, kept)?;
    sync_dir_of(path)
}

/// Makes a rename to or from this path last over a power cut.
pub(super) fn sync_dir_of(path: &Path) -> io::Result<()> {
    fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
