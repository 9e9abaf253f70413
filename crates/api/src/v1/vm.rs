//! Shows VMs as commands see them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::migration::MigrationId;

/// A VM of this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VmView {
    /// The VM's name.
    pub name: String,
    /// Whether the VM runs.
    pub state: VmState,
    /// The RAM, in bytes.
    pub memory_bytes: u64,
    /// The number of virtual CPUs.
    pub cpus: u32,
    /// The process that runs it.
    pub pid: Option<u32>,
    /// The version of the VM's QEMU.
    pub qemu: Option<String>,
    /// The machine type, resolved: `pc-q35-10.0`.
    pub machine: Option<String>,
    /// The path of the VM's QMP socket.
    pub qmp: Option<PathBuf>,
    /// The unix socket of its serial console.
    pub console: Option<PathBuf>,
    /// Whether another program started the VM.
    pub adopted: bool,
    /// The migration that the VM is in.
    pub migration: Option<MigrationId>,
    /// The images in the VM's drives, as the agent last saw them. The definition may name other images by now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<Drive>,
    /// The definition, as TOML; `None` for an adopted VM.
    pub definition: Option<String>,
    /// A fact for people, as why the VM stopped. May be empty.
    pub note: String,
    /// The reservation of a VM that is on its way here while it is off, and cannot be started until that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<String>,
}

impl VmView {
    /// Makes a VM of which only the name and the state are known.
    pub fn new(name: &str, state: VmState) -> VmView {
        VmView {
            name: name.to_owned(),
            state,
            memory_bytes: 0,
            cpus: 1,
            pid: None,
            qemu: None,
            machine: None,
            qmp: None,
            console: None,
            adopted: false,
            migration: None,
            drives: Vec::new(),
            definition: None,
            note: String::new(),
            reserved: None,
        }
    }
}

/// A drive of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Drive {
    /// The drive's name, else its device's id or QOM path.
    pub name: String,
    /// The image in the drive, as QEMU calls it; `None`: the drive is empty.
    pub image: Option<String>,
    /// The image that the image is an overlay of, and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backing: Vec<String>,
}

/// Whether a VM runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VmState {
    /// The guest runs.
    Running,
    /// The guest is stopped and can go on: a person stopped it, or QEMU did for an error of a disk.
    Paused,
    /// The VM's QEMU is being started.
    Starting,
    /// The VM waits for its guest to arrive.
    Incoming,
    /// The guest has arrived and waits for the decision that it runs here.
    Handover,
    /// The guest runs on another host, and what it left here is being removed.
    Moved,
    /// The guest is paused, and this host alone cannot decide where the guest runs: see `skein migration resolve`.
    InDoubt,
    /// The VM is off.
    Stopped,
    /// The VM's QEMU does not answer.
    Unresponsive,
}
