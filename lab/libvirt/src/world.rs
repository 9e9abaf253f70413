//! One libvirt host: a lab host's network, and a view of the file system of its own around a `libvirtd`.

use crate::{Error, io, output};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The time for a daemon to answer. It first asks the machine's QEMU about everything that it can do.
const DAEMON_ANSWERS: Duration = Duration::from_secs(60);

/// The path at which each world has the QEMU that its guests run in.
pub(crate) const EMULATOR: &str = "/usr/local/bin/lab-qemu";

/// A running world. Dropping it kills all that runs in it and leaves nothing behind.
///
/// Separate file systems are necessary: `--migrateuri unix:///PATH` is *one* path, which the target's QEMU binds and
/// the source dials. In one file system no tunnel could be between the two.
#[derive(Debug)]
pub struct World {
    name: String,
    /// The number of the world's process 1, as seen from outside.
    init: u32,
    /// The process that ends the world when it dies, and dies with this program.
    unshare: Child,
}

impl World {
    /// Makes a world and starts its daemon. [`answers`](Self::answers) waits until that is ready.
    ///
    /// `setpriv` is a command that runs that program in the lab host's network namespace. `root` is the directory that
    /// [`unpacked`](crate::unpacked) returned. `uuid` identifies the host to libvirt, which refuses to migrate between
    /// two hosts with the same one.
    ///
    /// # Errors
    ///
    /// [`Error::Skip`] if the machine allows no such namespaces or mounts, [`Error::Io`] if nothing starts.
    pub fn start(setpriv: Command, name: &str, uuid: &str, root: &Path) -> Result<Self, Error> {
        let mut command = setpriv;
        command.args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            "--fork",
            "--kill-child",
        ]);
        command.args(["sh", "-c", include_str!("world.sh"), "world.sh", name]);
        command.arg(root).arg(uuid);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut unshare = command.spawn().map_err(io("start setpriv and unshare"))?;
        let mut said = String::new();
        let mut init = None;
        let lines = unshare.stdout.take().map(|out| BufReader::new(out).lines());
        for line in lines.into_iter().flatten().map_while(Result::ok) {
            match line.split_once(' ') {
                Some(("pid", pid)) => init = pid.parse().ok(),
                Some(("skip", why)) => said = why.to_owned(),
                _ if line == "ready" => {
                    if let Some(init) = init {
                        let world = Self { name: name.to_owned(), init, unshare };
                        world.write(EMULATOR, include_str!("emulator.sh"), 0o755)?;
                        return Ok(world);
                    }
                }
                _ => {}
            }
        }
        if let Ok(out) = unshare.wait_with_output() {
            said += &String::from_utf8_lossy(&out.stderr);
        }
        Err(Error::Skip(format!("no host of its own can be made for libvirt on this machine: {}", said.trim())))
    }

    /// Waits until the daemon answers. Returns the versions of libvirt and of its hypervisor.
    ///
    /// # Errors
    ///
    /// [`Error::Program`] with the daemon's last words if it does not answer within a minute.
    pub fn answers(&self) -> Result<String, Error> {
        let deadline = Instant::now() + DAEMON_ANSWERS;
        loop {
            match self.virsh(&["version", "--daemon"]) {
                Ok(version) => {
                    let lines = version.lines().filter_map(|line| {
                        let (what, version) = line.split_once(": ")?;
                        ["Running hypervisor", "Running against daemon"].contains(&what).then_some(version)
                    });
                    return Ok(lines.collect::<Vec<_>>().join(", "));
                }
                Err(Error::Program { program, said }) if Instant::now() > deadline => {
                    return Err(Error::Program { program, said: format!("{said}\n{}", self.last_words()) });
                }
                Err(Error::Program { .. }) => std::thread::sleep(Duration::from_millis(200)),
                Err(other) => return Err(other),
            }
        }
    }

    /// Returns the world's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a path in this world's file system as one that this program can open, or bind or connect a socket to.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.init))
    }

    /// Returns a command that runs `program` in all of this world's namespaces. Killing its child ends the program with
    /// SIGTERM.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--mount", "--uts", "--ipc", "--net", "--pid", "--"]);
        command.args(["setpriv", "--pdeathsig", "TERM", "--", program]);
        command
    }

    /// Runs `virsh` against this world's daemon, for at most a minute. Returns what it printed.
    ///
    /// # Errors
    ///
    /// [`Error::Program`] with all that it printed if it fails.
    pub fn virsh(&self, arguments: &[&str]) -> Result<String, Error> {
        let mut command = self.command("timeout");
        output(
            command.args(["--kill-after=5", "60", "virsh", "--quiet", "--connect", "qemu:///system"]).args(arguments),
        )
    }

    /// Writes a small file in this world, with the directories above the file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be written.
    pub fn write(&self, inside: &str, text: &str, mode: u32) -> Result<(), Error> {
        let to = self.path(inside);
        let parents = to.parent().map_or(Ok(()), fs::create_dir_all);
        parents
            .and_then(|()| fs::write(&to, text))
            .and_then(|()| fs::set_permissions(&to, fs::Permissions::from_mode(mode)))
            .map_err(io(format!("write {inside} of {}", self.name)))
    }

    /// Copies a file into this world, with its mode. libvirt changes the owner of what a guest uses, so each world
    /// needs files of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be copied.
    pub fn put(&self, file: &Path, inside: &str) -> Result<(), Error> {
        let to = self.path(inside);
        let cannot = || io(format!("copy {} to {inside} of {}", file.display(), self.name));
        if let Some(directory) = to.parent() {
            fs::create_dir_all(directory).map_err(cannot())?;
        }
        fs::copy(file, &to).map(drop).map_err(cannot())
    }

    /// Returns the last lines of the daemon's log, of the logs of the guests' QEMUs and of their consoles.
    pub fn last_words(&self) -> String {
        let mut files = vec![self.path("/run/libvirtd.out"), self.path("/var/log/libvirt/libvirtd.log")];
        let guests = fs::read_dir(self.path("/var/log/libvirt/qemu")).into_iter().flatten().flatten();
        files.extend(guests.map(|entry| entry.path()));
        let mut words = String::new();
        for file in files {
            let text = String::from_utf8_lossy(&fs::read(&file).unwrap_or_default()).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            for line in &lines[lines.len().saturating_sub(12)..] {
                words += &format!("{} {name}: {line}\n", self.name);
            }
        }
        words
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The world's process 1 is killed with it, and the kernel kills the rest.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        let deadline = Instant::now() + Duration::from_secs(10);
        while Path::new(&format!("/proc/{}", self.init)).exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
