//! Says where an agent keeps what.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use skein_handover::MigrationId;

/// An agent's directories: `state` outlives a boot of the host, `run` does not.
///
/// ```text
/// state/journal              who may run which guest
/// state/run                  the other directory
/// state/vms/NAME.json        what a VM is started from; NAME.json~ID: what one will be that is to come here
/// state/own/NAME/            what is kept for a guest and moves with it: UEFI's variables, its TPM
/// state/migrations/ID.jsonl  what happened in a migration
/// state/attempts/ID.json     a migration that was asked for, by the first attempt's id, and its attempts
/// state/starts/NAME.json     what came of a start that a controller asked for under a name
/// state/probes/HOST.json     what was measured last of the way to a host
/// state/term                 the highest term of a controller that led
/// state/hosts.json           where controllers said that hosts are
/// state/update/               the last update of this host that a controller asked for, and what came of it
/// run/agent.sock             commands
/// run/vms/NAME/              a VM's QEMU: qmp, console, vnc, tpm, qemu.log, process.json
/// run/closed                 until when the host takes no guests, in seconds since its boot
/// run/watchdog               when a report was sent that a leader acknowledged, while a watchdog is armed
/// run/migrations/ID.out      where the source's QEMU is joined, ID.in: where the target's is
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirs {
    /// The directory that outlives a boot, as `/var/lib/skein`.
    pub state: PathBuf,
    /// The directory that does not, as `/run/skein`.
    pub run: PathBuf,
}

impl Default for Dirs {
    fn default() -> Dirs {
        Dirs { state: "/var/lib/skein".into(), run: "/run/skein".into() }
    }
}

impl Dirs {
    /// Makes the directories, for their owner alone.
    pub fn create(&self) -> io::Result<()> {
        let (vms, migrations) = (self.run.join("vms"), self.run.join("migrations"));
        for dir in [self.vms(), self.migrations(), self.attempts(), self.starts(), self.probes(), vms, migrations] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
            made.map_err(|error| io::Error::new(error.kind(), format!("cannot make {}: {error}", dir.display())))?;
        }
        Ok(())
    }

    /// Checks that there is room for what is kept of a VM and a migration: their definitions and logs are shorter than
    /// this.
    pub(crate) fn ready(&self) -> io::Result<()> {
        const PROBE_BYTES: usize = 64 << 10;
        let path = self.state.join("room");
        let written = fs::write(&path, vec![0; PROBE_BYTES]);
        let _ = fs::remove_file(&path);
        written
    }

    /// Removes what a killed agent left of migrations that are not open.
    pub(crate) fn tidy_migrations(&self, is_open: impl Fn(MigrationId) -> bool) {
        for entry in fs::read_dir(self.run.join("migrations")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.split('.').next()?.parse().ok());
            if !id.is_some_and(&is_open) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Writes down which run directory belongs to this state directory. `vm_in` returns a VM that runs with its sockets
    /// below a directory.
    ///
    /// # Errors
    /// It was another run directory, and VMs run there: this agent would not know them, and would start them again.
    pub(crate) fn take_run(&self, vm_in: impl Fn(&Path) -> Option<String>) -> io::Result<()> {
        let file = self.state.join("run");
        let own = std::path::absolute(&self.run)?;
        let last = fs::read(&file).ok().map(|bytes| PathBuf::from(OsString::from_vec(bytes)));
        match last.filter(|last| *last != own) {
            Some(last) if let Some(vm) = vm_in(&last) => Err(io::Error::other(format!(
                "the VM {vm} of {} runs with its sockets below {last}: start the agent with --run {last} until its VMs \
                 are stopped",
                self.state.display(),
                last = last.display()
            ))),
            _ => replace(&file, own.as_os_str().as_bytes()),
        }
    }

    /// Returns the path of the journal.
    pub fn journal(&self) -> PathBuf {
        self.state.join("journal")
    }

    /// Returns the directory of what VMs are started from.
    pub fn vms(&self) -> PathBuf {
        self.state.join("vms")
    }

    /// Returns the directory of the migrations' logs.
    pub fn migrations(&self) -> PathBuf {
        self.state.join("migrations")
    }

    /// Returns the directory of the requested migrations, with their attempts.
    pub(crate) fn attempts(&self) -> PathBuf {
        self.state.join("attempts")
    }

    /// Returns the directory of the starts that were asked for under names.
    pub(crate) fn starts(&self) -> PathBuf {
        self.state.join("starts")
    }

    /// Returns the directory of what was measured of the ways to other hosts.
    pub(crate) fn probes(&self) -> PathBuf {
        self.state.join("probes")
    }

    /// Returns the path of the file with the highest term of a controller.
    pub(crate) fn term(&self) -> PathBuf {
        self.state.join("term")
    }

    /// Returns the path of the file with the controllers that controllers named.
    pub(crate) fn controllers_cache(&self) -> PathBuf {
        self.state.join("controllers.json")
    }

    /// Returns the path of the file with the hosts that controllers named.
    pub(crate) fn hosts_cache(&self) -> PathBuf {
        self.state.join("hosts.json")
    }

    /// Returns the path of the file from which the next agent goes on to feed the host's watchdog.
    pub(crate) fn watchdog(&self) -> PathBuf {
        self.run.join("watchdog")
    }

    /// Returns the path of the socket for commands.
    pub fn socket(&self) -> PathBuf {
        self.run.join("agent.sock")
    }

    /// Returns the directory of a running VM.
    pub fn vm(&self, name: &str) -> PathBuf {
        self.run.join("vms").join(name)
    }

    /// Returns the path of the socket that a source's QEMU migrates to.
    pub fn outgoing_socket(&self, id: MigrationId) -> PathBuf {
        self.run.join("migrations").join(format!("{id}.out"))
    }

    /// Returns the path of the socket that a target's QEMU listens on.
    pub fn incoming_socket(&self, id: MigrationId) -> PathBuf {
        self.run.join("migrations").join(format!("{id}.in"))
    }
}

/// Writes a file, whole or not at all.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let replace = || {
        fs::write(&new, bytes)?;
        fs::File::open(&new)?.sync_data()?;
        fs::rename(&new, path)
    };
    replace().map_err(|error| {
        let _ = fs::remove_file(&new);
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    })
}
