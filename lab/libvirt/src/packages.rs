//! The distribution's libvirt, unpacked and not installed.

use crate::{Error, io, output};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages that a host needs besides QEMU: the daemon, `virsh`, and the tunnel with which Skein is compared.
const WANTED: [&str; 4] = ["libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients", "socat"];

/// Returns a directory with `usr` and `etc` to lay over the machine's own: the packages that this machine lacks for a
/// libvirt, at the versions of its own distribution. They are downloaded and unpacked below `cache` once, until the
/// distribution has newer ones or the machine has gained or lost packages.
///
/// # Errors
///
/// [`Error::Skip`] if packages are not available, [`Error::Program`] if one does not unpack.
pub fn unpacked(cache: &Path) -> Result<PathBuf, Error> {
    let (debs, root, stamp) = (cache.join("debs"), cache.join("root"), cache.join("packages"));
    fs::create_dir_all(cache).map_err(io(format!("create {}", cache.display())))?;
    let lock = fs::File::create(cache.join("lock")).map_err(io("create the cache's lock"))?;
    lock.lock().map_err(io("lock the cache"))?;

    let wanted = match apt(&debs, "--simulate") {
        Ok(wanted) => wanted,
        // Offline, or the package lists were cleaned away: what was unpacked before still serves.
        Err(_) if stamp.exists() => return Ok(root),
        Err(error) => return Err(skip(&error)),
    };
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(root);
    }
    for old in [&stamp, &debs, &root] {
        remove(old)?;
    }
    for new in [debs.join("partial"), root.join("usr"), root.join("etc")] {
        fs::create_dir_all(&new).map_err(io(format!("create {}", new.display())))?;
    }
    apt(&debs, "--download-only").map_err(|error| skip(&error))?;
    for entry in fs::read_dir(&debs).map_err(io("read the downloaded packages"))?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "deb") {
            output(Command::new("dpkg").arg("-x").arg(entry.path()).arg(&root))?;
        }
    }
    // Debian's /bin, /lib and /sbin are links into /usr, but some packages of Debian 12 still ship files there.
    for top in ["bin", "lib", "lib64", "sbin"].map(|top| root.join(top)).into_iter().filter(|top| top.is_dir()) {
        output(Command::new("cp").arg("-a").arg(&top).arg(root.join("usr")))?;
    }
    fs::write(&stamp, wanted).map_err(io("write the cache's stamp"))?;
    Ok(root)
}

/// Removes a file or a whole directory, if it exists.
fn remove(path: &Path) -> Result<(), Error> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io(format!("remove {}", path.display()))(error)),
        _ => Ok(()),
    }
}

fn skip(error: &Error) -> Error {
    Error::Skip(format!("libvirt's packages cannot be had from this machine's distribution (apt-get update?): {error}"))
}

fn apt(debs: &Path, how: &str) -> Result<String, Error> {
    let mut command = Command::new("apt-get");
    command.args(["install", "--yes", "--no-install-recommends", "-qq", how]);
    // Nothing is installed, so dpkg's lock is not needed, and the user as which apt downloads need not reach the
    // directory.
    command.args(["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root", "-o"]);
    command.arg(format!("Dir::Cache::archives={}", debs.display())).args(WANTED);
    output(&mut command)
}
