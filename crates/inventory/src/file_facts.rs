//! What was seen of a file. The facts are a host's words, as in [`facts`](crate::facts).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::claim::claim;

/// A file or block device of a guest, as a host sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// The path, as the guest's QEMU names it.
    #[serde(deserialize_with = "claim")]
    pub path: PathBuf,
    /// Whether QEMU may read the file.
    pub readable: bool,
    /// Whether QEMU may write the file.
    pub writable: bool,
    /// The kind of file system that the file is on.
    pub file_system: FileSystem,
    /// The file system's name, for messages: `ext4`, `nfs`...
    #[serde(deserialize_with = "claim")]
    pub file_system_name: String,
    /// What is mounted there, of a network file system: `nas:/export/vm` (proc_pid_mountinfo(5)).
    #[serde(default, deserialize_with = "claim")]
    pub mounted_from: Option<String>,
    /// What a network file system calls the file (name_to_handle_at(2)), where the file system tells: of NFS, the
    /// server's handle.
    #[serde(default, deserialize_with = "claim")]
    pub handle: Option<String>,
    /// st_dev, which means something within one kernel only.
    pub device: u64,
    /// st_ino. On a network file system it is the server's.
    pub inode: u64,
    /// A block device's worldwide name (`/sys/block/*/device/wwid`, a multipath or LVM UUID), where the device has one.
    #[serde(deserialize_with = "claim")]
    pub wwid: Option<String>,
}

/// The kind of file system, by statfs' magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    /// Only this kernel has the file system: ext4, xfs, btrfs, tmpfs, overlay...
    Local,
    /// A server or a cluster has the file system: NFS, CIFS, Ceph, GFS2, OCFS2...
    Network,
    /// The kind is not known: FUSE, 9p, a block device, and unheard-of file systems.
    Unknown,
}
