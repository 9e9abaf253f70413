//! What the target's QEMU is started from, and whether that makes the guest's QEMU again.

use std::path::PathBuf;

use skein_units::exact_bytes;

use super::checker::{Checker, list};
use crate::composition::{Composition, composition_problems, launch_problems};
use crate::definition::Definition;
use crate::facts::GuestDisk;
use crate::problem::ProblemKind;

/// What the target's QEMU will be started from.
#[derive(Debug, Clone, Copy)]
pub enum TargetLaunch<'a> {
    /// The QEMU is started from a definition.
    Definition {
        /// The definition as the target gets it.
        definition: &'a Definition,
        /// How the guest's QEMU was composed when it had just been started. `None`: no agent looked then.
        launched: Option<&'a Composition>,
        /// The images that the definition has got from what the guest has open now.
        given: &'a [String],
    },
    /// The QEMU is started by the arguments of a QEMU that somebody else started, as the target gets them.
    CommandLine(&'a [String]),
}

impl<'a> TargetLaunch<'a> {
    /// Returns the definition. `None`: there are only arguments.
    pub(super) fn definition(self) -> Option<&'a Definition> {
        match self {
            TargetLaunch::Definition { definition, .. } => Some(definition),
            TargetLaunch::CommandLine(_) => None,
        }
    }
}

impl Checker<'_> {
    /// Checks that the target's QEMU, which starts anew, will be composed as the guest's is now. It would lack what the
    /// guest's QEMU has got since it was started, and would have what that QEMU has lost.
    pub(super) fn composition(&mut self, start: TargetLaunch<'_>) {
        let (name, now) = (&self.guest.name, &self.guest.composition);
        self.problems.extend(match start {
            TargetLaunch::Definition { launched: Some(launched), given, .. } => {
                composition_problems(name, launched, now, given)
            }
            // The VM was started by an agent that did not look yet. The target compares.
            TargetLaunch::Definition { launched: None, .. } => composition_problems(name, now, now, &[]),
            TargetLaunch::CommandLine(args) => launch_problems(name, args, now, &self.guest.hot_plugged),
        });
    }

    /// Checks that the definition still says what the guest runs with. A definition that was changed since the guest
    /// started makes another machine.
    pub(super) fn definition(&mut self, definition: &Definition) {
        let (guest, target) = (self.guest, self.target);
        if definition.tpm.is_some() && target.swtpm.is_none() {
            let what = format!("{} has no swtpm, which emulates the TPM of {}", target.name, guest.name);
            self.blocks(ProblemKind::TpmMissing, what, "install swtpm there");
        }
        if !definition.migration.allowed {
            let what = format!("{} is to stay: its definition says allowed = false in [migration]", guest.name);
            let cure = "stop the guest and start it from a file without that line, if nothing else keeps it there";
            self.blocks(ProblemKind::NotAllowed, what, cure);
        }
        let paths = |paths: Vec<&PathBuf>| paths.into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        // A file that is only read, and not named, is what a disk is an overlay of.
        let is_own = |path: &PathBuf| definition.disks.iter().any(|disk| disk.path == *path);
        let vars = definition.firmware.as_ref().and_then(|firmware| firmware.vars.as_ref());
        let named_elsewhere = |path: &PathBuf| vars == Some(path) || definition.qemu.names(path);
        let is_disk = |disk: &&GuestDisk| is_own(&disk.path) || !(disk.readonly || named_elsewhere(&disk.path));
        let has = guest.disks.iter().filter(is_disk).map(|disk| &disk.path);
        // Which device has which path is compared with the composition.
        let sorted = |mut paths: Vec<String>| {
            paths.sort();
            paths
        };
        let has = sorted(paths(has.collect()));
        let says = sorted(paths(definition.disks.iter().map(|disk| &disk.path).collect()));
        let one = |text: &str| vec![text.to_owned()];
        for (what, has, says) in [
            ("memory", one(&exact_bytes(guest.ram_bytes)), one(&exact_bytes(definition.memory_bytes))),
            ("cpus", one(&guest.cpus.to_string()), one(&definition.cpus.to_string())),
            ("machine", one(&guest.machine_type), one(definition.machine_type())),
            ("disks", has, says),
        ] {
            if has != says {
                let (name, has, says) = (&guest.name, list(&has), list(&says));
                let what = format!("{name} runs with {what} {has}, and its definition says {says}");
                let cure = "restore the definition, or stop the guest and start it anew";
                self.blocks(ProblemKind::DefinitionDiffers, what, cure);
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crate::check::world::Case;
    use crate::check::world::drive;
    use crate::definition::Definition;
    use crate::problem::ProblemKind as K;
    use crate::problem::Severity::{Blocks, Warns};
    use skein_units::GIB;

    pub(in crate::check) const CASES: &[Case] = &[
        (
            |w| w.definition.as_mut().unwrap().memory_bytes = GIB,
            K::DefinitionDiffers,
            Blocks,
            &["memory 4 GiB", "1 GiB"],
        ),
        (|w| w.definition.as_mut().unwrap().cpus = 3, K::DefinitionDiffers, Blocks, &["cpus 2", "says 3"]),
        (
            |w| drop(w.guest.composition.peripherals.insert("late".into(), "virtio-rng-pci".into())),
            K::Composition,
            Blocks,
            &["the device virtio-rng-pci \"late\" was added", "unplug it"],
        ),
        (
            |w| {
                w.definition = None;
                w.guest.hot_plugged.push("virtio-blk-pci \"late\"".into());
            },
            K::Composition,
            Blocks,
            &["virtio-blk-pci \"late\" was plugged into web1"],
        ),
        (|w| w.launched.drives.push(drive("cd0")), K::DiskChanged, Blocks, &["cd0", "was removed"]),
        (
            |w| {
                w.launched.drives.push(drive("cd0"));
                w.guest.composition.drives.push(drive("cd0"));
                let medium = w.guest.composition.drives[0].medium.as_mut().unwrap();
                medium.tuning.insert("iops".into(), "5".into());
            },
            K::Tuning,
            Warns,
            &["iops of the drive", "set it again"],
        ),
        (
            |w| w.definition.as_mut().unwrap().machine = "q35".into(),
            K::DefinitionDiffers,
            Blocks,
            &["pc-q35-10.0", "q35"],
        ),
        (
            |w| {
                let text = "name = 'web1'\nmemory = '4 GiB'\n[tpm]\n";
                w.definition.as_mut().unwrap().tpm = Definition::parse(text, "").unwrap().tpm;
                w.target.swtpm = None;
            },
            K::TpmMissing,
            Blocks,
            &["hostb has no swtpm", "TPM of web1", "install swtpm"],
        ),
        (
            |w| w.definition.as_mut().unwrap().migration.allowed = false,
            K::NotAllowed,
            Blocks,
            &["web1 is to stay", "allowed = false"],
        ),
        (|w| w.definition.as_mut().unwrap().disks.clear(), K::DefinitionDiffers, Blocks, &["/srv/web1.qcow2", "none"]),
    ];
}
