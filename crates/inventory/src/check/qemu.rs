//! Whether the target has a QEMU that can run the guest.

use super::checker::Checker;
use crate::definition::Accel;
use crate::facts::{QemuFacts, QemuVersion};
use crate::problem::ProblemKind;

/// The oldest QEMU that Skein is tried with.
pub const QEMU_OLDEST: QemuVersion = QemuVersion { major: 7, minor: 2, micro: 0 };

impl Checker<'_> {
    /// Checks that the target's QEMU knows the guest's machine type, accelerator and CPU.
    pub(super) fn qemu(&mut self, qemu: &QemuFacts) {
        let (guest, target) = (self.guest, self.target);
        let (program, version) = (qemu.program.display(), qemu.version);
        if version < QEMU_OLDEST {
            let what = format!("{program} on {} is QEMU {version}, and Skein needs {QEMU_OLDEST}", target.name);
            self.blocks(ProblemKind::QemuTooOld, what, "install a newer QEMU there");
        } else if (version.major, version.minor) < (guest.qemu.major, guest.qemu.minor) {
            let what = format!(
                "{} would move from QEMU {} to the older {version} on {}: with a versioned machine type that is meant \
                 to \
                 work, but it is tested least (QEMU's docs/devel/migration/compatibility)",
                guest.name, guest.qemu, target.name
            );
            self.warns(ProblemKind::QemuOlder, what, format!("install QEMU {} on {}", guest.qemu, target.name));
        }

        let machine = &guest.machine_type;
        if !qemu.machines.iter().any(|known| known.name == *machine) {
            let (what, cure) = match qemu.machines.iter().find(|known| known.alias.as_ref() == Some(machine)) {
                // The alias may have meant another machine type at the source.
                Some(known) => (
                    format!("{machine} is only an alias on {}, for {} today", target.name, known.name),
                    "stop the guest and start it with a versioned machine type".to_owned(),
                ),
                None => (
                    format!("QEMU {version} on {} has no machine type {machine}", target.name),
                    format!(
                        "install QEMU {} there, or stop the guest and start it with a machine type that both have",
                        guest.qemu
                    ),
                ),
            };
            self.blocks(ProblemKind::MachineType, what, cure);
        }

        let why = match (&target.kvm, qemu.accels.iter().find(|accel| accel.accel == guest.accel)) {
            (Err(why), _) if guest.accel == Accel::Kvm => why,
            (_, Some(accel)) => return self.cpu(accel),
            (_, None) => "its QEMU was built without it",
        };
        let what = format!("{} runs under {}, which {} lacks: {why}", guest.name, guest.accel, target.name);
        let cure = match guest.accel {
            Accel::Kvm => {
                "`skein doctor` there says how to get KVM; a guest cannot change from KVM to TCG while it runs"
            }
            _ => "a guest cannot change from TCG to KVM while it runs: install a QEMU with TCG there",
        };
        self.blocks(ProblemKind::Accel, what, cure);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crate::check::world::Case;
    use crate::check::world::qemu;
    use crate::definition::Accel;
    use crate::facts::QemuVersion;
    use crate::problem::ProblemKind as K;
    use crate::problem::Severity::{Blocks, Warns};

    pub(in crate::check) const CASES: &[Case] = &[
        (
            |w| qemu(&mut w.target).version = QemuVersion { major: 7, minor: 1, micro: 9 },
            K::QemuTooOld,
            Blocks,
            &["QEMU 7.1.9", "needs 7.2.0"],
        ),
        (
            |w| qemu(&mut w.target).version = QemuVersion { major: 9, minor: 2, micro: 0 },
            K::QemuOlder,
            Warns,
            &["from QEMU 10.0.3 to the older 9.2.0 on hostb", "tested least"],
        ),
        (
            |w| (w.guest.machine_type, w.definition) = ("q35".into(), None),
            K::MachineType,
            Blocks,
            &["only an alias", "for pc-q35-10.0"],
        ),
        (|w| qemu(&mut w.target).machines.clear(), K::MachineType, Blocks, &["no machine type pc-q35-10.0"]),
        (
            |w| w.target.kvm = Err("no /dev/kvm".into()),
            K::Accel,
            Blocks,
            &["under kvm, which hostb lacks: no /dev/kvm"],
        ),
        (
            |w| {
                w.guest.accel = Accel::Tcg;
                qemu(&mut w.target).accels.pop();
            },
            K::Accel,
            Blocks,
            &["under tcg", "built without"],
        ),
    ];
}
