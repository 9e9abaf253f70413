//! Tells what cannot be done with a VM.

use std::io;
use std::path::PathBuf;

use skein_handover::MigrationId;
use skein_hypervisor::{ConnectError, GuestError};
use skein_inventory::NoRoom;
use thiserror::Error;

use crate::composition::CompositionError;

/// The reason why something cannot be done with a VM.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum VmError {
    #[error("there is no VM '{0}' on this host")]
    Unknown(String),
    #[error("a VM '{0}' is on this host already")]
    Exists(String),
    #[error("'{0}' is running")]
    Running(String),
    #[error("'{0}' is not running")]
    NotRunning(String),
    #[error("'{0}' is off already")]
    OffAlready(String),
    #[error("'{0}' is being started or tidied up at this moment")]
    Busy(String),
    #[error("the start of '{0}' was called off, and its QEMU killed")]
    CalledOff(String),
    #[error("'{0}' left for another host while it was being stopped")]
    Left(String),
    #[error("'{0}' has moved to another host")]
    Moved(String),
    #[error("'{0}' has no serial console that the agent can open")]
    NoConsole(String),
    #[error("that QEMU is the VM '{0}' already")]
    Adopted(String),
    #[error("'{name}' is not paused but {state}")]
    NotPaused { name: String, state: String },
    #[error("the tap {0} is in use: does another VM of this host have a NIC with the same MAC address?")]
    TapInUse(String),
    #[error("there is no bridge {0} on this host")]
    NoBridge(String),
    #[error("there is no {image} on this host", image = .0.display())]
    NoImage(PathBuf),
    #[error("the QEMU of '{0}' waits for a migration, and has no guest yet")]
    NoGuest(String),
    #[error("'{name}' is in migration {id}")]
    Migrating { name: String, id: MigrationId },
    #[error("'{0}' is no name of a VM")]
    BadName(String),
    #[error("QEMU of '{name}'")]
    Qemu {
        name: String,
        #[source]
        source: skein_hypervisor::Error,
    },
    #[error("QMP of '{name}'")]
    Connect {
        name: String,
        #[source]
        source: ConnectError,
    },
    #[error("QMP of '{name}'")]
    Guest {
        name: String,
        #[source]
        source: GuestError,
    },
    #[error("what '{name}' is composed of is not known")]
    Composition {
        name: String,
        #[source]
        source: Box<CompositionError>,
    },
    #[error("there is no swtpm on this host, which a VM with a TPM needs")]
    NoSwtpm,
    #[error("there is no UEFI on this host for '{0}'")]
    NoFirmware(String),
    #[error("the CPU model of '{0}' is \"baseline\", which a controller has to find")]
    NoBaseline(String),
    #[error("'{0}' is no CPU model")]
    BadCpuModel(String),
    #[error("'{name}' could never be moved: {why}")]
    Unmovable { name: String, why: String },
    #[error(
        "'{name}' is on its way to this host, by move {reservation} of the cluster, and is not to be started before \
             it has come"
    )]
    Reserved { name: String, reservation: String },
    #[error("'{name}' cannot be moved while it is off: {why}")]
    StaysHere { name: String, why: String },
    #[error("'{name}' cannot be kept on this host: {why}")]
    CannotKeep { name: String, why: String },
    #[error("'{0}' was started or changed since another host was told what is kept of it")]
    Changed(String),
    #[error("what another host keeps of '{0}' is not understood")]
    StrangeOffer(String),
    #[error("{what}")]
    OtherImages { what: String, cure: String },
    #[error("{}", .0.what)]
    NoRoom(NoRoom),
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("'{name}' did not shut down within {s} s")]
    StillOn { name: String, s: u64, cure: String },
    #[error("{qmp} leads to no process that can be seen from here", qmp = .0.display())]
    NoProcess(PathBuf),
}

impl VmError {
    /// Returns what to do about it.
    pub fn cure(&self) -> &str {
        match self {
            VmError::Unknown(_) => "see `skein vm list`, here and on the other hosts",
            VmError::Exists(_) => "choose another name, or `skein vm forget` the old one if it is stopped",
            VmError::Running(_) => {
                "nothing is to be done if it was to be started; for anything else stop it first, with `skein vm stop`"
            }
            VmError::NotRunning(_) => {
                "if it is to run, `skein vm start` starts it; if it is to be elsewhere while it is off, have a \
                 controller move it: `skein migrate` without --to, or with --controller"
            }
            VmError::OffAlready(_) => "`skein vm start` starts it; `skein vm forget` has this host forget it",
            VmError::Busy(_) => "repeat it when that is done: `skein vm show` says how it is",
            VmError::CalledOff(_) => "start it again if that was not what was meant",
            VmError::Left(_) => "see `skein vm list` on the other hosts",
            VmError::Moved(_) => "ask for it there",
            VmError::NoConsole(_) => {
                "a VM that the agent started has one; of one that was adopted, use what its own program has"
            }
            VmError::Adopted(_) => "use that name, or `skein vm forget` it, which leaves the QEMU as it is",
            VmError::NotPaused { .. } => "what is not paused cannot go on: `skein vm stop --force` ends it",
            VmError::TapInUse(_) => "give each NIC a mac of its own, or leave it out",
            VmError::NoBridge(_) => "make it, or name another in the VM's definition: `skein host show` lists them",
            VmError::NoImage(_) => "see that the storage is mounted here, or correct the path in the VM's definition",
            VmError::NoGuest(_) => "adopt it once its guest has arrived",
            VmError::Migrating { .. } => "wait for its end, or call it off with `skein migration cancel`",
            VmError::BadName(_) => "names are of a-z 0-9 . _ -, at most 63, and begin with a letter or a digit",
            VmError::Qemu { .. } => "see what QEMU said, mend the VM's definition or this host, and repeat",
            VmError::Connect { .. } | VmError::Guest { .. } => {
                "another program may have its QMP socket open: QEMU serves one at a time"
            }
            VmError::Composition { .. } => {
                "a guest of which that is not known cannot be moved: repeat it, and report QEMU's version if it stays \
                 so"
            }
            VmError::StillOn { cure, .. } => cure,
            VmError::NoSwtpm => "install swtpm there, or remove [tpm] from the VM's file",
            VmError::NoFirmware(_) => {
                "install ovmf, or say where its image and template are: image = \"...\" and template = \"...\" in \
                 [firmware]"
            }
            VmError::NoBaseline(_) => "start it with --cluster, or name a CPU model in its definition",
            VmError::BadCpuModel(_) => "see that the controller and this host's QEMU know the same CPU models",
            VmError::Unmovable { .. } => {
                "remove that from the VM's file; or, if the VM is to stay on this host for good, add [migration] \
                 allowed = false"
            }
            VmError::Reserved { .. } => "wait for that, or call it off: `skein operation list`",
            VmError::StaysHere { .. } => "start it here and move it while it runs, or leave it here",
            VmError::CannotKeep { .. } => {
                "put its disks on storage that both hosts share (NFS, Ceph, iSCSI), at the same path"
            }
            VmError::Changed(_) => "ask for its move again",
            VmError::StrangeOffer(_) => "see that both hosts have the same release of skein",
            VmError::OtherImages { cure, .. } => cure,
            VmError::NoRoom(lack) => &lack.cure,
            VmError::NoProcess(_) => "the agent has to run in the same pid namespace as QEMU",
            VmError::Io { .. } => "mend that on this host, and repeat",
        }
    }
}

pub(super) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> VmError {
    let what = what.into();
    move |source| VmError::Io { what, source }
}
