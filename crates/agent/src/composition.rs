//! Finds what a guest is composed of, with the files that its process has open.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use skein_hypervisor::Guest;
use skein_inventory::composition::{Composition, OpenFile};
use thiserror::Error;

use crate::host_files;

/// Bounds the files: a guest's disks with their backing files. More make the comparison fail, because they must not be
/// taken for the same.
const FILES_MAX: usize = 256;

/// The reason why it is not known what a guest is composed of.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum CompositionError {
    #[error(transparent)]
    Guest(#[from] skein_hypervisor::CompositionError),
    #[error("it has {0} files open, and {FILES_MAX} can be compared")]
    TooManyFiles(usize),
}

/// Returns what a guest is composed of, with its files, as the process `pid` has them open. `own` is the directory of
/// what moves with the guest.
pub(crate) fn with_files(guest: &dyn Guest, pid: u32, own: &Path) -> Result<Composition, CompositionError> {
    let mut composition = guest.composition()?;
    composition.boot_id = host_files::boot_id();
    composition.files = files(&composition, pid, own)?;
    Ok(composition)
}

fn files(composition: &Composition, pid: u32, own: &Path) -> Result<Vec<OpenFile>, CompositionError> {
    let named = composition.filenames().into_iter().filter_map(|name| Some((name, path_of(name, pid)?)));
    let (names, paths): (Vec<&str>, Vec<PathBuf>) = named.unzip();
    if names.len() > FILES_MAX {
        return Err(CompositionError::TooManyFiles(names.len()));
    }
    let open = open_files(pid);
    let looked = host_files::looked_at(&paths);
    let file = |(name, path): (&str, &PathBuf)| {
        let facts = looked.iter().find(|facts| facts.path == *path).cloned();
        let is_open = facts.as_ref().is_some_and(|facts| open.contains(&(facts.device, facts.inode)));
        let facts = facts.map(|facts| skein_inventory::FileFacts { path: name.into(), ..facts });
        OpenFile { filename: name.to_owned(), facts, is_open, moves: Path::new(name).starts_with(own) }
    };
    Ok(names.into_iter().zip(&paths).map(file).collect())
}

/// Returns where this process finds a file of QEMU. QEMU may have another root, and another working directory.
fn path_of(filename: &str, pid: u32) -> Option<PathBuf> {
    let path = host_files::image(filename)?;
    Some(match path.strip_prefix("/") {
        Ok(from_root) if from_root.starts_with("dev/fdset") => return None,
        Ok(from_root) => Path::new(&format!("/proc/{pid}/root")).join(from_root),
        Err(_) => Path::new(&format!("/proc/{pid}/cwd")).join(path),
    })
}

/// Returns device and inode of each regular file that a process has open, or device number and 0 of a block device, as
/// [`FileFacts`](skein_inventory::FileFacts) has them.
fn open_files(pid: u32) -> BTreeSet<(u64, u64)> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let identity = |fd: fs::DirEntry| {
        // The link leads to the open file itself, whatever has its name by now. No server is asked for sockets and
        // pipes.
        let name = fs::read_link(fd.path()).ok()?;
        let found = name.is_absolute().then(|| fs::metadata(fd.path()).ok())??;
        let kind = found.file_type();
        match (kind.is_file(), kind.is_block_device()) {
            (true, _) => Some((found.dev(), found.ino())),
            (_, true) => Some((found.rdev(), 0)),
            _ => None,
        }
    };
    fds.filter_map(identity).collect()
}
