//! Hands a VM that is off to another host: what is kept of it, and who may start it.
//!
//! The target keeps the VM with a *reservation*, by which it cannot be started there. Then the source gives the VM up,
//! once or never. After that the target's reservation is released.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use skein_inventory::command_line;
use skein_inventory::composition::{SameFile, same_file};
use skein_inventory::definition::{Definition, is_name};
use skein_inventory::facts::FileFacts;
use tracing::{info, warn};

use super::error::{VmError, io_error};
use super::movable;
use super::registry::Vms;
use super::saved::{SavedVm, sync_dir_of, write_synced};
use super::vm::Vm;

/// The version of what agents tell each other.
const FORMAT: u32 = 1;

/// What a host keeps of a VM that is off, for another host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OfferedVm {
    format: u32,
    host: String,
    name: String,
    kept: SavedVm,
    boot_id: Option<String>,
    files: Vec<FileFacts>,
}

/// What some files are on a host. A file that is not there is left out.
#[derive(Debug)]
pub(crate) struct HostFiles {
    /// The host's name.
    pub(crate) host: String,
    /// The kernel's id of the host's boot.
    pub(crate) boot_id: Option<String>,
    pub(crate) files: Vec<FileFacts>,
}

/// The files of a VM that is off.
struct VmFiles {
    /// Those that the guest writes: they have to be the same.
    written: BTreeSet<PathBuf>,
    /// Those that are only read: another host has to have them.
    read: BTreeSet<PathBuf>,
}

impl Vms {
    /// Returns what is kept of a VM that is off. `look` tells what these files are on this host.
    ///
    /// # Errors
    /// The VM is not off, or something belongs to it that only this host has.
    pub(crate) fn offer(&self, name: &str, look: impl FnOnce(Vec<PathBuf>) -> HostFiles) -> Result<OfferedVm, VmError> {
        let vm = self.idle(name)?;
        let kept = vm.saved.lock().clone();
        let stays = |why: String| VmError::StaysHere { name: name.to_owned(), why };
        let definition = kept.launch.definition().filter(|_| kept.adopted.is_none());
        let definition = definition.ok_or_else(|| stays("another program had started it".into()))?;
        // A running guest takes these along in QEMU's stream.
        if definition.tpm.is_some() || vm.own.dir().exists() {
            return Err(stays("its UEFI variables or its TPM are kept on this host; move it while it runs".into()));
        }
        movable::check(definition)?;
        let files = files_of(definition, &kept);
        let own = files.written.iter().chain(&files.read).map(|path| path.display().to_string());
        if let Some(server) = own.filter(|name| command_line::is_of_this_host(name)).min() {
            return Err(stays(format!("it has {server}, of a server on this host itself")));
        }
        let opened = files.written.into_iter().chain(files.read).collect();
        let HostFiles { host, boot_id, files } = look(opened);
        vm.state.lock().offered = Some(as_text(&kept));
        Ok(OfferedVm { format: FORMAT, host, name: name.to_owned(), kept, boot_id, files })
    }

    /// Returns a VM that is off, and with which nothing is done.
    fn idle(&self, name: &str) -> Result<Arc<Vm>, VmError> {
        let vm = self.get(name)?;
        vm.wait_tidied();
        match vm.busy_error().or_else(|| vm.moved_error()) {
            Some(why) => Err(why),
            None => Ok(vm),
        }
    }

    /// Keeps a VM of another host, which cannot be started here before the reservation is released.
    ///
    /// # Errors
    /// The VM is here already, or this host has not got what belongs to the VM.
    pub(crate) fn reserve(
        &self,
        offered: OfferedVm,
        reservation: &str,
        look: impl FnOnce(Vec<PathBuf>) -> HostFiles,
    ) -> Result<Arc<Vm>, VmError> {
        let OfferedVm { format, ref host, ref name, ref kept, .. } = offered;
        let definition = kept.launch.definition().filter(|definition| definition.name == *name);
        let Some(definition) = definition.filter(|_| format == FORMAT && is_name(name)) else {
            return Err(VmError::StrangeOffer(name.clone()));
        };
        if let Some(known) = self.reserved(name, reservation)? {
            return Ok(known);
        }
        movable::check(definition)?;
        let files = files_of(definition, kept);
        let opened = files.written.iter().chain(&files.read).cloned().collect();
        let lacks = lacks(&files, &offered, &look(opened));
        if !lacks.is_empty() {
            return Err(VmError::CannotKeep { name: name.clone(), why: lacks.join("; ") });
        }
        let reserved = Some(reservation.to_owned());
        let vm = self.new_vm(name, SavedVm { reserved, ..kept.clone() });
        let mut vms = self.vms.lock();
        // Another command may have come first.
        if let Some(known) = vms.get(name) {
            match &known.saved.lock().reserved {
                Some(of) if of == reservation => return Ok(known.clone()),
                Some(_) => {}
                None => return Err(VmError::Exists(name.clone())),
            }
        }
        write_synced(&self.file(name), &*vm.saved.lock()).map_err(io_error(format!("cannot remember '{name}'")))?;
        vms.insert(name.clone(), vm.clone());
        info!(vm = name, from = host, reservation, "is kept for a move while it is off");
        Ok(vm)
    }

    /// Returns the VM if it has this reservation.
    fn reserved(&self, name: &str, reservation: &str) -> Result<Option<Arc<Vm>>, VmError> {
        let Ok(vm) = self.get(name) else { return Ok(None) };
        let of = vm.saved.lock().reserved.clone();
        match of {
            None => Err(VmError::Exists(name.to_owned())),
            Some(of) => Ok((of == reservation).then_some(vm)),
        }
    }

    /// Releases a reservation: the VM is this host's from now on, or is forgotten. Returns the VM if this host has it
    /// afterwards.
    pub(crate) fn release(&self, name: &str, reservation: &str, keep: bool) -> Result<Option<Arc<Vm>>, VmError> {
        let Ok(vm) = self.get(name) else { return Ok(None) };
        let kept = vm.saved.lock().clone();
        if kept.reserved.as_deref() != Some(reservation) {
            return Ok(Some(vm));
        }
        if !keep {
            self.let_go(&vm, || {});
            info!(vm = name, reservation, "is not kept any more: its move is over");
            return Ok(None);
        }
        let _files = vm.files.lock();
        let kept = SavedVm { reserved: None, ..kept };
        write_synced(&self.file(name), &kept).map_err(io_error(format!("cannot remember '{name}'")))?;
        *vm.saved.lock() = kept;
        info!(vm = name, reservation, "is this host's");
        Ok(Some(vm.clone()))
    }

    /// Gives a VM up that is off, for a move. What was kept of it is set aside under the move's name, by which it is
    /// known that this was done.
    pub(crate) fn leave(&self, name: &str, reservation: &str) -> Result<(), VmError> {
        let vm = self.idle(name)?;
        // From here on nobody starts it.
        if !self.seize(&vm) {
            return Err(VmError::Busy(name.to_owned()));
        }
        // The other host would have the VM as it was then.
        let kept = as_text(&vm.saved.lock());
        let is_told = vm.state.lock().offered.as_ref() == Some(&kept);
        if !is_told {
            vm.state.lock().busy = false;
            return Err(VmError::Changed(name.to_owned()));
        }
        let aside = self.left_file(reservation);
        let file = self.file(name);
        let set_aside = || {
            let _files = vm.files.lock();
            // What is kept of starts is forgotten by its age: this is of now, however old the definition is.
            fs::File::open(&file)?.set_modified(SystemTime::now())?;
            fs::rename(&file, &aside)?;
            sync_dir_of(&aside)?;
            sync_dir_of(&file)
        };
        if let Err(error) = set_aside() {
            // What the disk says by now holds: the VM may be given up.
            vm.state.lock().busy = false;
            if !aside.exists() {
                return Err(io_error(format!("'{name}' cannot be given up"))(error));
            }
        }
        self.remove(&vm);
        self.replace(&vm, None);
        info!(vm = name, reservation, "left for another host while it was off");
        Ok(())
    }

    /// Returns whether a VM was given up for a move.
    pub(crate) fn has_left(&self, reservation: &str) -> bool {
        self.left_file(reservation).exists()
    }

    fn left_file(&self, reservation: &str) -> PathBuf {
        self.dirs.starts().join(format!("{reservation}.left"))
    }
}

fn as_text(kept: &SavedVm) -> String {
    serde_json::to_string(kept).expect("plain data always serialises")
}

/// Returns the files that a VM has open when it runs, by its definition and by what it last had.
fn files_of(definition: &Definition, kept: &SavedVm) -> VmFiles {
    let mut files = VmFiles { written: BTreeSet::new(), read: BTreeSet::new() };
    for disk in &definition.disks {
        let of = if disk.readonly { &mut files.read } else { &mut files.written };
        of.insert(disk.path.clone());
    }
    let drives = kept.last_seen.iter().flat_map(|seen| &seen.drives);
    for (removable, medium) in drives.filter_map(|drive| Some((drive.removable, drive.medium.as_ref()?))) {
        let mut chain = medium.chain.iter().map(|image| PathBuf::from(&image.filename));
        let is_read = removable || medium.read_only;
        files.written.extend(chain.next().filter(|_| !is_read));
        files.read.extend(chain);
    }
    files.written.extend(command_line::drive_files(&definition.qemu.args).into_iter().map(PathBuf::from));
    files.written.extend(definition.firmware.iter().filter_map(|firmware| firmware.vars.clone()));
    files.read.extend(definition.cdroms.iter().filter_map(|cdrom| cdrom.path.clone()));
    files.read.extend(definition.opened().into_iter().map(|(_, path)| path.clone()));
    files.read.extend(definition.qemu.binary.clone());
    files.read.retain(|path| path.is_absolute() && !files.written.contains(path));
    files
}

/// Returns what speaks against a VM on this host, by its files.
fn lacks(files: &VmFiles, offered: &OfferedVm, facts: &HostFiles) -> Vec<String> {
    let find = |of: &[FileFacts], path: &PathBuf| of.iter().find(|file| file.path == *path).cloned();
    let mut lacks = Vec::new();
    for path in files.written.iter().filter(|path| path.is_absolute()) {
        let shown = path.display();
        let Some(here) = find(&facts.files, path) else {
            lacks.push(format!("{} has no {shown}", facts.host));
            continue;
        };
        if !here.readable || !here.writable {
            lacks.push(format!("QEMU on {} may not read and write {shown}", facts.host));
        }
        let local = |file: &FileFacts, host: &str| {
            format!("{shown} is on a local file system ({}) of {host}", file.file_system_name)
        };
        let Some(there) = find(&offered.files, path) else {
            lacks.push(format!("{} does not see {shown} itself", offered.host));
            continue;
        };
        match same_file((offered.boot_id.as_deref(), facts.boot_id.as_deref()), &there, &here) {
            SameFile::Yes => {}
            SameFile::No => {
                lacks.push(format!("{shown} on {} is another file than on {}", facts.host, offered.host));
            }
            SameFile::LocalToFirst => lacks.push(local(&there, &offered.host)),
            SameFile::LocalToSecond => lacks.push(local(&here, &facts.host)),
            // As for a running guest: whoever has such storage knows it.
            SameFile::Unknown(why) => {
                warn!(vm = offered.name, "whether {shown} is the same file on both hosts is not known: {why}");
            }
        }
    }
    let missing = files.read.iter().filter(|path| find(&facts.files, path).is_none());
    lacks.extend(missing.map(|path| format!("{} has no {}", facts.host, path.display())));
    lacks
}
