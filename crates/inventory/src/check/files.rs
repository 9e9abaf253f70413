//! Whether a guest's disks, the files that it starts from and those that hold its RAM mean the same at the target as at
//! the source.

use std::path::{Path, PathBuf};

use super::checker::Checker;
use crate::command_line;
use crate::composition::{Device, SameFile, same_file};
use crate::definition::Definition;
use crate::facts::HostFacts;
use crate::file_facts::{FileFacts, FileSystem};
use crate::problem::{ProblemKind, Severity};

/// Whether a path means the same file on both hosts.
enum Same {
    Yes,
    No,
    /// The file is on the local file system of this host.
    Local(String),
    Unknown(String),
}

impl Checker<'_> {
    /// Checks that the target can read what QEMU opens beside disks.
    pub(super) fn files(&mut self, definition: Option<&Definition>) {
        let Some(definition) = definition else { return };
        for (what, path) in definition.opened() {
            if !self.target.file(path).is_some_and(|file| file.readable) {
                let what = format!("{} cannot read the {what} {}", self.target.name, path.display());
                self.blocks(ProblemKind::FileMissing, what, "copy it there, to the same place");
            }
        }
    }

    /// Checks the files that QEMU reads as it starts, and shows the guest when the guest asks: they do not move.
    pub(super) fn loaded_files(&mut self, definition: Option<&Definition>) {
        let (guest, source, target) = (self.guest, self.source, self.target);
        let named: Vec<_> =
            definition.iter().flat_map(|definition| definition.opened()).map(|(_, path)| path).collect();
        // Of the files that a definition names, the lack is reported already.
        let is_told = |path: &PathBuf| named.contains(&path) && target.file(path).is_none_or(|file| !file.readable);
        for path in guest.loaded.iter().filter(|path| !is_told(path)) {
            let shown = path.display();
            let cure = format!("copy {shown} from {} to the same place on {}", source.name, target.name);
            match (source.digest(path), target.digest(path)) {
                (Some(here), Some(there)) if here == there => {}
                (Some(_), Some(_)) => {
                    let what = format!(
                        "{shown} holds something else on {} than on {}, and {} would find that there",
                        target.name, source.name, guest.name
                    );
                    self.blocks(ProblemKind::FileDiffers, what, cure);
                }
                (Some(_), None) if target.file(path).is_none() => {
                    let what =
                        format!("{} cannot read {shown}, which the QEMU of {} starts from", target.name, guest.name);
                    self.blocks(ProblemKind::FileMissing, what, cure);
                }
                _ => {
                    let what = format!("whether {shown} holds the same on both hosts is not known");
                    self.blocks(
                        ProblemKind::FileDiffers,
                        what,
                        format!(
                            "put what {} was started from to that place on both hosts, readable for the agent",
                            guest.name
                        ),
                    );
                }
            }
        }
    }

    pub(super) fn disks(&mut self) {
        let (guest, source, target) = (self.guest, self.source, self.target);
        for disk in &guest.disks {
            let path = disk.path.display();
            let Some(there) = target.file(&disk.path) else {
                let what = format!("{} has no {path}", target.name);
                let cure = format!("mount there what it is on, at the same place as on {}", source.name);
                self.blocks(ProblemKind::DiskMissing, what, cure);
                continue;
            };
            // A disk that is only read may be a copy, such as an installation image.
            let severity = if disk.readonly { Severity::Warns } else { Severity::Blocks };
            let shared = if disk.readonly {
                "make sure that both hold the same bytes"
            } else {
                "put the disk on storage that both hosts share (NFS, Ceph, iSCSI), at the same path"
            };
            match self.same(&disk.path, there) {
                Same::Yes => {}
                Same::No => {
                    let what = format!("{path} on {} is another file than on {}", target.name, source.name);
                    self.add(ProblemKind::DiskDiffers, severity, what, shared);
                }
                Same::Local(whose) => {
                    let what = format!("{path} is on a local file system {whose}, which only one host sees");
                    self.add(ProblemKind::DiskLocal, severity, what, shared);
                }
                Same::Unknown(why) => {
                    let what = format!("whether {path} is the same file on both hosts is not known: {why}");
                    self.warns(
                        ProblemKind::DiskUnknown,
                        what,
                        "make sure that it is: two files would destroy the guest's data",
                    );
                }
            }
            if !there.readable || !(there.writable || disk.readonly) {
                let verb = if there.readable { "write" } else { "read" };
                let what = format!("QEMU on {} may not {verb} {path}", target.name);
                let cure = "give it the rights there: mode and owner of the file, the mount (ro?), the server's export";
                self.blocks(ProblemKind::DiskAccess, what, cure);
            }
        }
    }

    /// Checks for disks that a server on the host has: each host has its own server.
    pub(super) fn local_servers(&mut self) {
        let (guest, source, target) = (self.guest, self.source, self.target);
        for filename in guest.composition.filenames() {
            if command_line::is_of_this_host(filename) {
                let what = format!(
                    "{} has {filename} open, of a server on {} itself: {} would ask its own",
                    guest.name, source.name, target.name
                );
                self.blocks(
                    ProblemKind::DiskLocal,
                    what,
                    "have QEMU open it by an address that means the same on both hosts",
                );
            }
        }
        for device in guest.composition.devices.iter().flat_map(Device::all) {
            if device.driver.starts_with("vhost-user-blk") {
                let what = format!(
                    "whether the disk \"{}\" ({}) is the same on both hosts is not known: another process has it",
                    device.id, device.driver
                );
                self.warns(
                    ProblemKind::DiskUnknown,
                    what,
                    "make sure that it is: two disks would destroy the guest's data",
                );
            }
        }
    }

    /// Checks the files that hold RAM: two QEMUs that map one file as the RAM of the same guest write into each
    /// other's.
    pub(super) fn ram_files(&mut self) {
        let (guest, target) = (self.guest, self.target);
        for path in &guest.ram_files {
            let Some(there) = target.file(path) else { continue };
            let shown = path.display();
            let cure = "shut the guest down and start it with memory-backend-memfd, or with a file that each host has \
                        for itself";
            match self.same(path, there) {
                Same::Yes => {
                    let what = format!(
                        "RAM of {} is in {shown}, which {} has, too: its QEMU there would write into the RAM of the \
                         guest that runs here",
                        guest.name, target.name
                    );
                    self.blocks(ProblemKind::RamShared, what, cure);
                }
                Same::Unknown(why) => {
                    let what = format!(
                        "whether {shown}, the RAM of {}, is the same file on {} is not known: {why}",
                        guest.name, target.name
                    );
                    self.blocks(ProblemKind::RamShared, what, cure);
                }
                Same::No | Same::Local(_) => {}
            }
        }
    }

    fn same(&self, path: &Path, there: &FileFacts) -> Same {
        let (source, target) = (self.source, self.target);
        let local =
            |host: &HostFacts, file: &FileFacts| Same::Local(format!("({}) of {}", file.file_system_name, host.name));
        let Some(here) = source.file(path) else {
            let not_seen = Same::Unknown(format!("{} does not see it", source.name));
            return if there.file_system == FileSystem::Local { local(target, there) } else { not_seen };
        };
        match same_file((source.boot_id.as_deref(), target.boot_id.as_deref()), here, there) {
            SameFile::Yes => Same::Yes,
            SameFile::No => Same::No,
            SameFile::LocalToFirst => local(source, here),
            SameFile::LocalToSecond => local(target, there),
            SameFile::Unknown(why) => Same::Unknown(why),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crate::check::world::Case;
    use crate::problem::ProblemKind as K;
    use crate::problem::Severity::{Blocks, Warns};
    use std::path::Path;

    use crate::check::world::{drive, file};
    use crate::composition::{Device, Image};
    use crate::definition::Definition;
    use crate::file_facts::FileSystem;

    pub(in crate::check) const CASES: &[Case] = &[
        (|w| drop(w.target.files.remove(1)), K::FileMissing, Blocks, &["hostb cannot read the kernel /boot/vmlinuz"]),
        (|w| w.target.files[2].readable = false, K::FileMissing, Blocks, &["the initrd /boot/initrd"]),
        (
            |w| drop(w.target.digests.insert("/boot/initrd".into(), "3".into())),
            K::FileDiffers,
            Blocks,
            &["/boot/initrd holds something else on hostb than on hosta", "copy /boot/initrd from hosta"],
        ),
        (
            |w| drop(w.source.digests.remove(Path::new("/boot/vmlinuz"))),
            K::FileDiffers,
            Blocks,
            &["whether /boot/vmlinuz holds the same", "web1 was started from"],
        ),
        (
            |w| {
                w.guest.loaded.push("/etc/ignition".into());
                w.source.digests.insert("/etc/ignition".into(), "4".into());
            },
            K::FileMissing,
            Blocks,
            &["hostb cannot read /etc/ignition, which the QEMU of web1 starts from"],
        ),
        (
            |w| [&mut w.source, &mut w.target].into_iter().for_each(|host| host.files.push(file("/dev/shm/web1"))),
            K::RamShared,
            Blocks,
            &["RAM of web1 is in /dev/shm/web1, which hostb has, too", "memfd"],
        ),
        (
            |w| {
                let mut drive = drive("d0");
                let image = Image { format: "raw".into(), filename: "nbd://[::1]:10809/d".into(), virtual_bytes: 1 };
                drive.medium.as_mut().unwrap().chain.push(image);
                w.guest.composition.drives.push(drive.clone());
                w.launched.drives.push(drive);
            },
            K::DiskLocal,
            Blocks,
            &["web1 has nbd://[::1]:10809/d open, of a server on hosta itself", "address"],
        ),
        (
            |w| {
                let disk = Device { driver: "vhost-user-blk-pci".into(), id: "v0".into(), ..Device::default() };
                w.guest.composition.devices.push(Device { children: vec![disk], ..Device::default() });
                w.launched.devices.clone_from(&w.guest.composition.devices);
            },
            K::DiskUnknown,
            Warns,
            &["the disk \"v0\" (vhost-user-blk-pci)"],
        ),
        (
            |w| w.target.files[0].mounted_from = Some("san:/vm".into()),
            K::DiskUnknown,
            Warns,
            &["nas:/vm and san:/vm may be two names of the same"],
        ),
        (
            |w| {
                w.target.files[0].mounted_from = Some("san:/vm".into());
                w.source.files[0].handle = Some("1:aa".into());
                w.target.files[0].handle = Some("1:ab".into());
            },
            K::DiskDiffers,
            Blocks,
            &["/srv/web1.qcow2 on hostb is another file"],
        ),
        (|w| w.source.files[0].mounted_from = None, K::DiskUnknown, Warns, &["mounted from is not told"]),
        (|w| drop(w.target.files.remove(0)), K::DiskMissing, Blocks, &["hostb has no /srv/web1.qcow2", "mount"]),
        (|w| w.target.files[0].inode = 1, K::DiskDiffers, Blocks, &["another file than on hosta", "NFS"]),
        (
            |w| {
                w.source.files[0].wwid = Some("naa.1".into());
                w.target.files[0].wwid = Some("naa.2".into());
            },
            K::DiskDiffers,
            Blocks,
            &["another file"],
        ),
        (
            |w| {
                w.target.boot_id = w.source.boot_id.clone();
                w.target.files[0].device = 41;
            },
            K::DiskDiffers,
            Blocks,
            &["another file"],
        ),
        (
            |w| {
                w.target.files[0].inode = 1;
                w.guest.disks[0].readonly = true;
            },
            K::DiskDiffers,
            Warns,
            &["the same bytes"],
        ),
        (
            // These hosts were installed from one image: the inodes are equal, and yet the files are two.
            |w| {
                for host in [&mut w.source, &mut w.target] {
                    (host.files[0].file_system, host.files[0].file_system_name) = (FileSystem::Local, "ext4".into());
                }
            },
            K::DiskLocal,
            Blocks,
            &["a local file system (ext4) of hosta", "both hosts share"],
        ),
        (|w| w.target.files[0].file_system = FileSystem::Local, K::DiskLocal, Blocks, &["(nfs) of hostb"]),
        (
            // These hosts were installed from one image, and neither says its boot: equal numbers of different files.
            |w| {
                (w.source.boot_id, w.target.boot_id) = (None, None);
                w.source.files[0].file_system = FileSystem::Local;
                w.target.files[0].file_system = FileSystem::Local;
            },
            K::DiskLocal,
            Blocks,
            &["which only one host sees"],
        ),
        (
            |w| {
                w.target.files[0].file_system = FileSystem::Local;
                w.guest.disks[0].readonly = true;
            },
            K::DiskLocal,
            Warns,
            &["the same bytes"],
        ),
        (
            |w| {
                w.target.files[0].file_system = FileSystem::Local;
                w.source.files.clear();
            },
            K::DiskLocal,
            Blocks,
            &["of hostb"],
        ),
        (|w| w.target.files[0].file_system = FileSystem::Unknown, K::DiskUnknown, Warns, &["may be shared or not"]),
        (|w| w.source.files.clear(), K::DiskUnknown, Warns, &["hosta does not see it", "destroy"]),
        (|w| w.target.files[0].writable = false, K::DiskAccess, Blocks, &["may not write /srv/web1.qcow2", "mount"]),
        (|w| w.target.files[0].readable = false, K::DiskAccess, Blocks, &["may not read"]),
        (
            |w| {
                let text = "name = 'web1'\nmemory = '4 GiB'\n[firmware]\nimage = '/ovmf/code.fd'\n";
                w.definition.as_mut().unwrap().firmware = Definition::parse(text, "").unwrap().firmware;
            },
            K::FileMissing,
            Blocks,
            &["hostb cannot read the firmware /ovmf/code.fd"],
        ),
        (
            |w| {
                let text = "name = 'web1'\nmemory = '4 GiB'\n[firmware]\ntemplate = '/ovmf/vars.fd'\n";
                w.definition.as_mut().unwrap().firmware = Definition::parse(text, "").unwrap().firmware;
            },
            K::FileMissing,
            Blocks,
            &["cannot read the template of the variable store /ovmf/vars.fd"],
        ),
    ];
}
