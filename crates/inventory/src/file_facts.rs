//! What was seen of a file. A host's words, as in [`facts`](crate::facts).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::claim::claim;

/// A file or block device of a guest, as a host sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// As the guest's QEMU names it.
    #[serde(deserialize_with = "claim")]
    pub path: PathBuf,
    /// Whether QEMU may read it.
    pub readable: bool,
    /// Whether QEMU may write it.
    pub writable: bool,
    /// Where it is.
    pub file_system: FileSystem,
    /// `ext4`, `nfs`...: for messages.
    #[serde(deserialize_with = "claim")]
    pub file_system_name: String,
    /// What is mounted there, of a network file system: `nas:/export/vm` (proc_pid_mountinfo(5)).
    #[serde(default, deserialize_with = "claim")]
    pub mounted_from: Option<String>,
    /// What a network file system calls the file (name_to_handle_at(2)), where it tells: of NFS, the server's handle.
    #[serde(default, deserialize_with = "claim")]
    pub handle: Option<String>,
    /// st_dev: means something within one kernel only.
    pub device: u64,
    /// st_ino: on a network file system, the server's.
    pub inode: u64,
    /// A block device's own, worldwide name (`/sys/block/*/device/wwid`, a multipath or LVM UUID), where it has one.
    #[serde(deserialize_with = "claim")]
    pub wwid: Option<String>,
}

/// What kind of file system, by statfs' magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    /// This kernel's alone: ext4, xfs, btrfs, tmpfs, overlay...
    Local,
    /// A server's or a cluster's: NFS, CIFS, Ceph, GFS2, OCFS2...
    Network,
    /// FUSE, 9p, a block device, and what nobody has heard of.
    Unknown,
}
