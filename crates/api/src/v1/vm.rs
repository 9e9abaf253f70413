//! VMs as commands see them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::migration::MigrationId;

/// A VM of this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VmView {
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub state: VmState,
    /// RAM in bytes.
    pub memory_bytes: u64,
    /// Virtual CPUs.
    pub cpus: u32,
    /// The process that runs it.
    pub pid: Option<u32>,
    /// The version of its QEMU.
    pub qemu: Option<String>,
    /// The machine type, resolved: `pc-q35-10.0`.
    pub machine: Option<String>,
    /// Its QMP socket.
    pub qmp: Option<PathBuf>,
    /// The unix socket of its serial console.
    pub console: Option<PathBuf>,
    /// Started by somebody else.
    pub adopted: bool,
    /// The migration that it is in.
    pub migration: Option<MigrationId>,
    /// What is in its drives, or was when somebody last looked: its definition may name other images by now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<Drive>,
    /// Its definition, as TOML; none of one that was adopted.
    pub definition: Option<String>,
    /// Something to know of it: why it stopped, for instance. May be empty.
    pub note: String,
}

/// A drive of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Drive {
    /// The drive's name, else its device's id or QOM path.
    pub name: String,
    /// The image that is in it, as QEMU calls it; none: it is empty.
    pub image: Option<String>,
    /// What that image is an overlay of, and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backing: Vec<String>,
}

/// Whether a VM runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VmState {
    /// It runs.
    Running,
    /// It is stopped and can go on: by somebody's word, or by QEMU for an error of a disk.
    Paused,
    /// Its QEMU is being started.
    Starting,
    /// It waits for its guest to arrive.
    Incoming,
    /// It was moved and waits for the word that it runs there.
    Handover,
    /// It runs on another host, and what it left here is being removed.
    Moved,
    /// Its guest is paused, and this host alone cannot decide where it runs: see `skein migration resolve`.
    InDoubt,
    /// It is off.
    Stopped,
    /// It does not answer.
    Unresponsive,
}
