//! What a guest boots from, and the disk that source and target share.

use std::env;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_hypervisor::DiskCache;
use tempfile::TempDir;

use crate::kernel::Kernel;
use crate::{Error, initramfs};

/// The environment variable that names the workload program.
pub const WORKLOAD_VARIABLE: &str = "SKEIN_WORKLOAD";
/// The path of the workload program below the target directory, where [`WORKLOAD_BUILD`] leaves it.
const WORKLOAD_PATH: &str = "guest/guest/skein-workload";
/// The command that builds the workload program.
pub const WORKLOAD_BUILD: &str = "scripts/build.sh guest";
/// The environment variable that names the software's archive.
pub const SOFTWARE_VARIABLE: &str = "SKEIN_SOFTWARE";
/// The path of the archive below the target directory, where [`SOFTWARE_BUILD`] leaves it.
const SOFTWARE_PATH: &str = "guest/software.cpio";
/// The command that makes the archive.
pub const SOFTWARE_BUILD: &str = "scripts/software.sh";
/// How long to wait for the lock: another process may be downloading the kernel.
const LOCK_DEADLINE: Duration = Duration::from_secs(300);

/// A kernel and an initramfs, ready to boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The file for `-kernel`.
    pub kernel: PathBuf,
    /// The file for `-initrd`.
    pub initrd: PathBuf,
    /// The kernel's version.
    pub version: String,
}

impl Image {
    /// Prepares an image in `cache`, which is created: obtains the kernel (once) and packs the workload program.
    /// Several processes may do so at the same time.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], [`Error::NoWorkload`], or [`Error::Io`] if a file cannot be read or written.
    pub fn prepare(cache: &Path) -> Result<Self, Error> {
        Self::prepare_with(cache, &find_workload()?)
    }

    /// Does the same as [`Image::prepare`] with a given workload program.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], or [`Error::Io`] if a file cannot be read or written.
    pub fn prepare_with(cache: &Path, workload: &Path) -> Result<Self, Error> {
        fs::create_dir_all(cache).map_err(Error::io("creating", cache))?;
        let _lock = lock(&cache.join("lock"))?;
        let kernel = Kernel::obtain(cache)?;
        let image = cache.join(format!("linux-{}", kernel.version));
        if !image.exists() {
            write_whole(&image, &kernel.boot_image()?)?;
        }
        let program = fs::read(workload).map_err(Error::io("reading", workload))?;
        let archive = initramfs::build(&program, &kernel.modules()?);
        let mut hasher = DefaultHasher::new();
        archive.hash(&mut hasher);
        // The name is made from the content: a guest of another process may have an older file open.
        let initrd = cache.join(format!("initramfs-{:016x}.cpio", hasher.finish()));
        if !initrd.exists() {
            write_whole(&initrd, &archive)?;
        }
        Ok(Self { kernel: image, initrd, version: kernel.version })
    }

    /// Adds an archive of software behind the initramfs, which the kernel unpacks too; see [`find_software`].
    ///
    /// # Errors
    ///
    /// [`Error::NoSoftware`], or [`Error::Io`] if a file cannot be read or written.
    pub fn with_software(self, cache: &Path) -> Result<Self, Error> {
        let software = find_software()?;
        let read = |path: &Path| fs::read(path).map_err(Error::io("reading", path));
        let mut archive = read(&self.initrd)?;
        archive.extend(read(&software)?);
        let mut hasher = DefaultHasher::new();
        archive.hash(&mut hasher);
        let initrd = cache.join(format!("initramfs-{:016x}.cpio", hasher.finish()));
        if !initrd.exists() {
            write_whole(&initrd, &archive)?;
        }
        Ok(Self { initrd, ..self })
    }
}

/// Returns the directory for downloads: `$SKEIN_CACHE`, `$XDG_CACHE_HOME/skein` or `~/.cache/skein`.
pub fn default_cache() -> PathBuf {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("SKEIN_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("skein")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/skein")))
        .unwrap_or_else(|| env::temp_dir().join("skein-cache"))
}

/// Returns the workload program: `$SKEIN_WORKLOAD`, or what was built beside this program's own target directory.
///
/// # Errors
///
/// [`Error::NoWorkload`] if there is none.
pub fn find_workload() -> Result<PathBuf, Error> {
    match env::var_os(WORKLOAD_VARIABLE) {
        Some(path) => Ok(path.into()),
        None => find(WORKLOAD_PATH)?.ok_or(Error::NoWorkload),
    }
}

/// Returns the archive of software that a guest with [`crate::Params::build`] unpacks and builds: `$SKEIN_SOFTWARE`, or
/// what [`SOFTWARE_BUILD`] left beside this program's own target directory.
///
/// # Errors
///
/// [`Error::NoSoftware`] if there is none.
pub fn find_software() -> Result<PathBuf, Error> {
    match env::var_os(SOFTWARE_VARIABLE) {
        Some(path) => Ok(path.into()),
        None => find(SOFTWARE_PATH)?.ok_or(Error::NoSoftware),
    }
}

/// Returns a file below the target directory that this program lies in, if it exists.
fn find(path: &str) -> Result<Option<PathBuf>, Error> {
    let program = env::current_exe().map_err(Error::io("finding", "this program"))?;
    Ok(program.ancestors().map(|directory| directory.join(path)).find(|path| path.is_file()))
}

fn lock(path: &Path) -> Result<File, Error> {
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(Error::io("opening", path))?;
    let end = Instant::now() + LOCK_DEADLINE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(Error::io("locking", path)(error.into())),
        }
    }
}

/// Writes a file in one step, so that no reader ever sees half of it.
fn write_whole(path: &Path, content: &[u8]) -> Result<(), Error> {
    let directory = path.parent().unwrap_or(Path::new("."));
    // The file is readable by all: QEMU may run as another user.
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(directory)
        .map_err(Error::io("creating a file in", directory))?;
    file.write_all(content).map_err(Error::io("writing", path))?;
    file.persist(path).map_err(|e| Error::io("writing", path)(e.error))?;
    Ok(())
}

/// A raw disk image that source and target open at the same time. It is removed with the last copy of this value.
#[derive(Debug, Clone)]
pub struct SharedDisk {
    directory: Arc<TempDir>,
    cache: DiskCache,
    mb: u32,
}

impl SharedDisk {
    /// Creates an empty image of `mb` MiB in a directory of its own below `directory`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the image cannot be created.
    pub fn create(directory: &Path, mb: u32) -> Result<Self, Error> {
        let own = tempfile::Builder::new()
            .prefix("skein-disk-")
            .tempdir_in(directory)
            .map_err(Error::io("creating a directory in", directory))?;
        let path = own.path().join("disk.raw");
        let file = File::create(&path).map_err(Error::io("creating", &path))?;
        file.set_len(u64::from(mb) << 20).map_err(Error::io("creating", &path))?;
        // Not every file system has O_DIRECT. Both QEMUs run on one kernel here, so its page cache serves as well.
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).is_ok();
        let cache = if direct { DiskCache::None } else { DiskCache::Writeback };
        Ok(Self { directory: own.into(), cache, mb })
    }

    /// Returns the path of the image.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("disk.raw")
    }

    /// Returns the size in MiB.
    pub fn mb(&self) -> u32 {
        self.mb
    }

    pub(crate) fn cache(&self) -> DiskCache {
        self.cache
    }
}
