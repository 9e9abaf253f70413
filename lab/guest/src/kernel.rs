//! The guest's kernel: the distribution's, either installed, or downloaded and unpacked. It is never installed by the
//! lab.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Error;

/// The modules that the workload needs, if they are not built in. The modules that these depend on come along.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "virtio_net", "virtio_console"];
/// A module that is loaded where the kernel has it: guests say by it which pages are free.
const HINTS_MODULE: &str = "virtio_balloon";
/// Metapackages that depend on a kernel, the smallest first.
const PACKAGES: [&str; 2] = ["linux-image-cloud-amd64", "linux-image-amd64"];
/// The time for one command of the package tools.
const COMMAND_DEADLINE: Duration = Duration::from_secs(180);

/// A kernel and its modules, as files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The version, as `uname -r` gives it.
    pub version: String,
    image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// Returns an installed kernel if a usable one is readable, or else one that is downloaded into `cache` (once).
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if there is no usable kernel, or [`Error::Io`] if a file cannot be read or written.
    pub fn obtain(cache: &Path) -> Result<Self, Error> {
        let unpacked = cache.join("kernel");
        if let Some(kernel) = Self::find(Path::new("/")).or_else(|| Self::find(&unpacked)) {
            return Ok(kernel);
        }
        download(cache, &unpacked)?;
        Self::find(&unpacked).ok_or_else(|| {
            Error::Kernel(format!("the package unpacked in {} has no usable kernel", unpacked.display()))
        })
    }

    /// Returns the newest usable kernel below `root`.
    fn find(root: &Path) -> Option<Self> {
        let mut found: Vec<Self> = fs::read_dir(root.join("boot"))
            .ok()?
            .flatten()
            .filter_map(|entry| {
                let version = entry.file_name().to_str()?.strip_prefix("vmlinuz-")?.to_owned();
                let modules = ["lib/modules", "usr/lib/modules"]
                    .map(|at| root.join(at).join(&version))
                    .into_iter()
                    .find(|d| d.is_dir())?;
                Some(Self { version, image: entry.path(), modules })
            })
            .collect();
        found.sort_by_key(|kernel| version_key(&kernel.version));
        // The kernel must be readable and complete: some distributions keep kernels from ordinary users.
        found.into_iter().rev().find(|kernel| File::open(&kernel.image).is_ok() && kernel.modules().is_ok())
    }

    /// Returns the modules that the workload needs, uncompressed, each after those that it depends on.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if a module is missing or cannot be unpacked, or [`Error::Io`] if one cannot be read.
    pub fn modules(&self) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let mut files = HashMap::new();
        list_modules(&self.modules, &mut files).map_err(Error::io("reading", &self.modules))?;
        let builtin =
            fs::read_to_string(self.modules.join("modules.builtin")).map_err(Error::io("reading", &self.modules))?;
        let builtin: HashSet<String> = builtin.lines().filter_map(|line| module_name(Path::new(line))).collect();

        let mut loaded = Vec::new();
        let mut seen = builtin;
        let hints = Some(HINTS_MODULE).filter(|name| files.contains_key(*name));
        for name in MODULES.into_iter().chain(hints) {
            load(name, &files, &mut seen, &mut loaded)?;
        }
        Ok(loaded)
    }

    /// Returns the kernel for QEMU's `-kernel`. A kernel packed with xz, zstd or gzip is unpacked, since an emulated
    /// CPU takes seconds for that. Any other is returned as it is: LZ4, as in Debian 12, takes no time that could be
    /// measured.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the kernel cannot be read.
    pub fn boot_image(&self) -> Result<Vec<u8>, Error> {
        let image = fs::read(&self.image).map_err(Error::io("reading", &self.image))?;
        Ok(unwrap(&image).unwrap_or(image))
    }
}

/// Returns a key that sorts numbers by value and the rest by text: 6.1.0-9 comes before 6.1.0-56.
fn version_key(version: &str) -> Vec<(u64, String)> {
    version.split(['.', '-', '+', '~']).map(|part| (part.parse().unwrap_or(0), part.to_owned())).collect()
}

/// Returns `virtio_pci` for `kernel/drivers/virtio/virtio-pci.ko.xz`.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let stem = [".ko", ".ko.xz", ".ko.zst", ".ko.gz"].iter().find_map(|end| name.strip_suffix(end))?;
    Some(stem.replace('-', "_"))
}

fn list_modules(directory: &Path, into: &mut HashMap<String, PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            list_modules(&path, into)?;
        } else if let Some(name) = module_name(&path) {
            into.insert(name, path);
        }
    }
    Ok(())
}

/// Adds a module after its dependencies, unless it is there already.
fn load(
    name: &str,
    files: &HashMap<String, PathBuf>,
    seen: &mut HashSet<String>,
    loaded: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), Error> {
    if !seen.insert(name.to_owned()) {
        return Ok(());
    }
    let path = files.get(name).ok_or_else(|| Error::Kernel(format!("the kernel has no module {name}")))?;
    let content = fs::read(path).map_err(Error::io("reading", path))?;
    let content = decompress(&content).ok_or_else(|| {
        Error::Kernel(format!("{} cannot be decompressed; install xz-utils and zstd", path.display()))
    })?;
    for dependency in dependencies(&content) {
        load(&dependency.replace('-', "_"), files, seen, loaded)?;
    }
    loaded.push((name.to_owned(), content));
    Ok(())
}

/// Returns what a module depends on, from its `.modinfo` section: `depends=a,b` between NULs.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value).split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns the ELF kernel inside a bzImage, if it can be unpacked.
///
/// Offsets of the setup header: <https://docs.kernel.org/arch/x86/boot.html>
fn unwrap(image: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    if image.get(0x202..0x206) != Some(b"HdrS") {
        return None;
    }
    let setup_sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    let payload = image.get(start..start.checked_add(word(0x24c)?)?)?;
    // xz and zstd payloads are followed by four bytes of the kernel's own with their uncompressed size.
    let trailer = if payload.starts_with(b"\x1f\x8b") { 0 } else { 4 };
    let kernel = decompress(payload.get(..payload.len().checked_sub(trailer)?)?)?;
    kernel.starts_with(b"\x7fELF").then_some(kernel)
}

/// Decompresses by the content's magic number. Content without a known one is returned as it is.
fn decompress(content: &[u8]) -> Option<Vec<u8>> {
    let program = match content {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0x1f, 0x8b, ..] => "gzip",
        _ => return Some(content.to_vec()),
    };
    let mut child = Command::new(program)
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take()?;
    let output = std::thread::scope(|scope| {
        scope.spawn(move || io::Write::write_all(&mut stdin, content));
        child.wait_with_output()
    });
    output.ok().filter(|output| output.status.success()).map(|output| output.stdout)
}

/// Downloads the distribution's kernel package and unpacks it into `into`.
fn download(cache: &Path, into: &Path) -> Result<(), Error> {
    let package = match kernel_package()? {
        Some(package) => package,
        None => {
            // A fresh machine has no package lists.
            run(Command::new("apt-get").args(["-qq", "update"]))?;
            kernel_package()?.ok_or_else(|| {
                Error::Kernel(format!(
                    "no package {} is known; run `apt-get update`, or install a kernel",
                    PACKAGES.join(" or ")
                ))
            })?
        }
    };
    tracing::info!(%package, "downloading the guest's kernel");
    let work = tempfile::tempdir_in(cache).map_err(Error::io("creating a directory in", cache))?;
    run(Command::new("apt-get").args(["-qq", "download", &package]).current_dir(work.path()))?;
    let entries = fs::read_dir(work.path()).map_err(Error::io("reading", work.path()))?;
    let archive = entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "deb"))
        .ok_or_else(|| Error::Kernel(format!("apt-get download {package} left no package")))?;
    let unpacked = work.path().join("unpacked");
    run(Command::new("dpkg-deb").arg("-x").args([&archive, &unpacked]))?;
    let _ = fs::remove_dir_all(into);
    fs::rename(&unpacked, into).map_err(Error::io("creating", into))
}

/// Returns the kernel package that the first known metapackage depends on.
fn kernel_package() -> Result<Option<String>, Error> {
    for name in PACKAGES {
        let output = run(Command::new("apt-cache").args(["depends", "--no-suggests", "--no-recommends", name]));
        // apt-cache fails for a package that it does not know.
        let Ok(output) = output else { continue };
        let package = output.lines().filter_map(|line| line.trim().strip_prefix("Depends: linux-image-")).next();
        if let Some(package) = package {
            return Ok(Some(format!("linux-image-{package}")));
        }
    }
    Ok(None)
}

/// Runs a command to its end, within [`COMMAND_DEADLINE`], and returns its output.
fn run(command: &mut Command) -> Result<String, Error> {
    let shown = format!("{command:?}");
    let failed = |why: String| Error::Kernel(format!("{shown}: {why}"));
    let output = tempfile::tempfile().map_err(|e| failed(e.to_string()))?;
    let both = output.try_clone().map_err(|e| failed(e.to_string()))?;
    let errors = output.try_clone().map_err(|e| failed(e.to_string()))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(both)
        .stderr(errors)
        .spawn()
        .map_err(|e| failed(format!("{e}; this needs Debian's tools")))?;
    let end = Instant::now() + COMMAND_DEADLINE;
    let status = loop {
        match child.try_wait().map_err(|e| failed(e.to_string()))? {
            Some(status) => break status,
            None if Instant::now() > end => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(format!("not done within {} s", COMMAND_DEADLINE.as_secs())));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut text = String::new();
    let mut output = output;
    io::Seek::rewind(&mut output)
        .and_then(|()| io::Read::read_to_string(&mut output, &mut text))
        .map_err(|e| failed(e.to_string()))?;
    if status.success() { Ok(text) } else { Err(failed(format!("{status}: {}", text.trim()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_is_by_number() {
        let mut versions = ["6.1.0-56-cloud-amd64", "6.1.0-9-amd64", "6.12.38+deb13-cloud-amd64", "5.10.0-30-amd64"];
        versions.sort_by_key(|version| version_key(version));
        assert_eq!(versions, ["5.10.0-30-amd64", "6.1.0-9-amd64", "6.1.0-56-cloud-amd64", "6.12.38+deb13-cloud-amd64"]);
    }

    #[test]
    fn names_of_modules() {
        for (path, name) in [
            ("kernel/drivers/virtio/virtio_pci.ko", Some("virtio_pci")),
            ("kernel/drivers/char/hw_random/virtio-rng.ko.xz", Some("virtio_rng")),
            ("a.ko.zst", Some("a")),
            ("modules.order", None),
            ("a.kox", None),
        ] {
            assert_eq!(module_name(Path::new(path)).as_deref(), name, "{path}");
        }
    }

    #[test]
    fn dependencies_of_modules() {
        assert_eq!(
            dependencies(b"\x7fELF..\0license=GPL\0depends=virtio_ring,virtio\0retpoline=Y\0"),
            ["virtio_ring", "virtio"]
        );
        assert!(dependencies(b"\0depends=\0name=virtio\0").is_empty());
        assert!(dependencies(b"").is_empty());
    }

    #[test]
    fn modules_come_after_what_they_need() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("lib/modules/1.0");
        fs::create_dir_all(directory.join("kernel")).unwrap();
        fs::create_dir_all(root.path().join("boot")).unwrap();
        fs::write(root.path().join("boot/vmlinuz-1.0"), "kernel").unwrap();
        fs::write(directory.join("modules.builtin"), "kernel/lib/crc.ko\n").unwrap();
        for (file, depends) in [
            ("virtio_pci", "virtio,virtio-ring"),
            ("virtio", ""),
            ("virtio-ring", "virtio"),
            ("virtio_net", "net_failover,crc"),
            ("net_failover", ""),
            ("virtio_console", "virtio"),
        ] {
            fs::write(directory.join(format!("kernel/{file}.ko")), format!("{file}\0depends={depends}\0")).unwrap();
        }
        assert!(Kernel::find(root.path()).is_none(), "virtio_blk is missing");
        fs::write(directory.join("modules.builtin"), "kernel/lib/crc.ko\nkernel/virtio_blk.ko\n").unwrap();
        let kernel = Kernel::find(root.path()).unwrap();
        let names: Vec<String> = kernel.modules().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["virtio", "virtio_ring", "virtio_pci", "net_failover", "virtio_net", "virtio_console"]);
        fs::write(directory.join("kernel/virtio_balloon.ko"), "\0depends=virtio\0").unwrap();
        let last = kernel.modules().unwrap().pop().map(|(name, _)| name);
        assert_eq!(last.as_deref(), Some("virtio_balloon"));
        assert_eq!(kernel.boot_image().unwrap(), b"kernel");
    }

    #[test]
    fn unwrapping_never_panics() {
        for length in [0, 0x1f2, 0x206, 0x250, 4096] {
            assert_eq!(unwrap(&vec![0xff; length]), None);
            let mut image = vec![0xff; length];
            if length > 0x206 {
                image[0x202..0x206].copy_from_slice(b"HdrS");
            }
            assert_eq!(unwrap(&image), None);
        }
    }
}
