//! Is what an agent keeps for a guest and moves with it: UEFI's variable store, the TPM's state.
//!
//! Both are small, change while the guest runs, and arrive in QEMU's stream: the store as the contents of a flash
//! device, which the target's QEMU writes to its file when the guest runs there, the TPM's state as what swtpm says. So
//! the target begins with a new store and an empty TPM, and the source's are of the past when the guest runs there.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use skein_inventory::definition::{Definition, Firmware, FirmwareKind};
use tracing::info;

/// A file of a TPM's permanent state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TpmFile {
    inode: u64,
    /// The time of the last change: seconds and nanoseconds since the epoch.
    changed: (i64, i64),
}

/// The state that is kept for one VM: `state/own/NAME/`.
#[derive(Debug, Clone)]
pub(crate) struct OwnState {
    dir: PathBuf,
    /// The directory for what was there before a guest of that name arrived: no VM's name ends so.
    before: PathBuf,
}

impl OwnState {
    /// Returns the own state of a VM. `state` is the agent's state directory.
    pub(crate) fn new(state: &Path, name: &str) -> OwnState {
        let all = state.join("own");
        OwnState { dir: all.join(name), before: all.join(format!("{name}~")) }
    }

    /// Returns the directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of UEFI's variable store.
    pub(crate) fn vars(&self) -> PathBuf {
        self.dir.join("vars.fd")
    }

    /// Returns the directory of swtpm.
    pub(crate) fn tpm(&self) -> PathBuf {
        self.dir.join("tpm")
    }

    /// Returns whether a guest with this definition would begin with new contents here.
    pub(crate) fn is_new_to(&self, definition: &Definition) -> bool {
        let firmware = definition.firmware.as_ref();
        let is_own = |firmware: &Firmware| firmware.kind == FirmwareKind::Uefi && firmware.vars.is_none();
        (firmware.is_some_and(is_own) && !self.vars().exists()) || (definition.tpm.is_some() && !self.tpm().exists())
    }

    /// Returns which file the TPM's permanent state is now; `None`: there is none. swtpm writes a new file and gives it
    /// its name (`SWTPM_NVRAM_StoreData_Dir` of its swtpm_nvstore_dir.c), so another file is a whole file.
    pub(crate) fn tpm_file(&self) -> Option<TpmFile> {
        let files = fs::read_dir(self.tpm()).ok()?.flatten();
        // The file is `tpm2-00.permall`, of a TPM 1.2 `tpm-00.permall`.
        let found = files
            .filter(|file| file.file_name().as_encoded_bytes().ends_with(b".permall"))
            .find_map(|file| file.metadata().ok());
        found
            .filter(|file| file.len() > 0)
            .map(|file| TpmFile { inode: file.ino(), changed: (file.ctime(), file.ctime_nsec()) })
    }

    /// Prepares what a guest's QEMU needs at its start: what is there, or new. Errors name the file.
    pub(crate) fn prepare(&self, definition: &Definition) -> io::Result<()> {
        // What is there is of a guest that has arrived, also if an agent was killed before it knew.
        let _ = fs::remove_file(self.arriving());
        self.fill(definition)
    }

    fn fill(&self, definition: &Definition) -> io::Result<()> {
        if let Some(firmware) = definition.firmware.as_ref().filter(|firmware| firmware.kind == FirmwareKind::Uefi) {
            let vars = firmware.vars.clone().unwrap_or_else(|| self.vars());
            if firmware.vars.is_none() {
                make_dir(&self.dir)?;
            }
            if !vars.exists() {
                let template = firmware.template.as_deref().ok_or_else(|| {
                    io::Error::other(
                        "[firmware] says nothing of a template for a new variable store: add template = \"...\"",
                    )
                })?;
                copy(template, &vars)?;
            }
        }
        if definition.tpm.is_some() {
            make_dir(&self.tpm())?;
        }
        Ok(())
    }

    /// Prepares the same for a guest that is to arrive: new, with what was there set aside.
    pub(crate) fn prepare_new(&self, definition: &Definition) -> io::Result<()> {
        let is_uefi = |firmware: &Firmware| firmware.kind == FirmwareKind::Uefi && firmware.vars.is_none();
        if definition.tpm.is_some() || definition.firmware.as_ref().is_some_and(is_uefi) {
            // This comes before something is set aside: it puts back what an agent that was killed meanwhile left.
            self.put_back();
            if self.dir.exists() {
                let _ = fs::remove_dir_all(&self.before);
                fs::rename(&self.dir, &self.before).map_err(|error| named(&self.dir, error))?;
                info!("what was kept here for a guest of that name is set aside: {}", self.before.display());
            }
            make_dir(&self.dir)?;
            fs::write(self.arriving(), "").map_err(|error| named(&self.arriving(), error))?;
        }
        self.fill(definition)
    }

    /// Returns the path of a file that is there from the moment when the guest is expected until it has arrived.
    fn arriving(&self) -> PathBuf {
        self.dir.join("arriving")
    }

    /// Puts back what was set aside for a guest that did not arrive. Changes nothing if no guest was to.
    pub(crate) fn put_back(&self) {
        if self.arriving().exists() {
            let _ = fs::remove_dir_all(&self.dir);
            let _ = fs::rename(&self.before, &self.dir);
        }
    }

    /// Writes the state to the storage: the guest has arrived, and soon there is no copy but this.
    pub(crate) fn arrived(&self) -> io::Result<()> {
        let _ = fs::remove_file(self.arriving());
        let of_tpm = fs::read_dir(self.tpm()).into_iter().flatten().flatten().map(|file| file.path());
        for path in [self.vars(), self.tpm()].into_iter().chain(of_tpm) {
            match fs::File::open(&path).and_then(|file| file.sync_all()) {
                // swtpm's own files come and go.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                synced => synced.map_err(|error| named(&path, error))?,
            }
        }
        Ok(())
    }

    /// Removes the state: the guest runs on another host, with newer contents.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn make_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| named(dir, error))
}

/// Copies a file, whole or not at all, for its owner alone, with all its blocks: QEMU must find room when the guest
/// arrives.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let bytes = fs::read(from).map_err(|error| named(from, error))?;
    let new = to.with_extension("new");
    let write = || {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        io::Write::write_all(&mut file, &bytes)?;
        file.sync_all()?;
        // The link does not replace a file that came meanwhile.
        fs::hard_link(&new, to)
    };
    let written = write().map_err(|error| named(to, error));
    let _ = fs::remove_file(&new);
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(more: &str) -> Definition {
        Definition::parse(&format!("name = 'a'\nmemory = '64 MiB'\n{more}"), "a.toml").unwrap()
    }

    #[test]
    fn what_arrives_begins_anew_and_what_does_not_leaves_what_was() {
        let dir = tempfile::tempdir().unwrap();
        let own = OwnState::new(dir.path(), "a");
        let template = dir.path().join("template");
        fs::write(&template, "empty").unwrap();
        let definition = definition(&format!("[firmware]\ntemplate = '{}'\n[tpm]\n", template.display()));
        assert!(own.is_new_to(&definition));
        own.prepare(&definition).unwrap();
        assert!(!own.is_new_to(&definition));
        assert_eq!(fs::read(own.vars()).unwrap(), b"empty");
        fs::write(own.vars(), "mine!").unwrap();
        fs::write(own.tpm().join("state"), "x").unwrap();
        own.prepare(&definition).unwrap();
        assert_eq!(fs::read(own.vars()).unwrap(), b"mine!", "started again, it is as it was");
        own.prepare_new(&definition).unwrap();
        assert_eq!(fs::read(own.vars()).unwrap(), b"empty");
        assert_eq!(fs::read_dir(own.tpm()).unwrap().count(), 0);
        assert_eq!(own.tpm_file(), None);
        fs::write(own.tpm().join("tpm2-00.permall"), "").unwrap();
        assert_eq!(own.tpm_file(), None, "empty");
        fs::write(own.tpm().join("tpm2-00.permall"), "a").unwrap();
        let before = own.tpm_file();
        fs::write(own.tpm().join("new"), "a").unwrap();
        fs::rename(own.tpm().join("new"), own.tpm().join("tpm2-00.permall")).unwrap();
        assert!(before.is_some() && own.tpm_file().is_some() && own.tpm_file() != before);
        own.put_back();
        assert_eq!(fs::read(own.vars()).unwrap(), b"mine!");
        assert!(own.tpm().join("state").exists());
        own.arrived().unwrap();
        own.remove();
        assert!(!own.dir().exists());
        own.prepare_new(&definition).unwrap();
        own.put_back();
        assert!(!own.dir().exists());
        own.prepare_new(&definition).unwrap();
        own.arrived().unwrap();
        own.put_back();
        assert!(own.vars().exists(), "a guest that has arrived stays");
    }

    #[test]
    fn a_store_on_shared_storage_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let own = OwnState::new(dir.path(), "a");
        let (template, vars) = (dir.path().join("template"), dir.path().join("vars.fd"));
        let text = format!("[firmware]\nvars = '{}'\ntemplate = '{}'\n", vars.display(), template.display());
        let error = own.prepare(&definition(&text)).unwrap_err();
        assert!(error.to_string().contains("template"), "{error}");
        fs::write(&template, "empty").unwrap();
        own.prepare(&definition(&text)).unwrap();
        fs::write(&vars, "mine!").unwrap();
        own.prepare_new(&definition(&text)).unwrap();
        assert_eq!(fs::read(&vars).unwrap(), b"mine!");
        assert!(!own.dir().exists());
        let without = "[firmware]\nimage = '/x'\n";
        assert!(own.prepare(&definition(without)).unwrap_err().to_string().contains("template"));
    }
}
