//! What QEMU cannot move, and what stays behind.

use super::checker::{Checker, list};
use crate::problem::ProblemKind;

impl Checker<'_> {
    /// Checks that QEMU can migrate the guest with all that it has.
    pub(super) fn blockers(&mut self) {
        let guest = self.guest;
        if !guest.left_behind.is_empty() {
            let what = format!(
                "{} of {} stay behind: its QEMU at the target has the agent's monitor alone",
                list(&guest.left_behind),
                guest.name
            );
            let cure =
                "what uses them has to do without; `[qemu] args` of a VM file come along, -qmp and -monitor among them";
            self.warns(ProblemKind::Tuning, what, cure);
        }
        for why in &guest.blockers {
            let what = format!("QEMU cannot migrate {}: {why}", guest.name);
            self.blocks(ProblemKind::Blocker, what, "remove the device or end the job that it names, and repeat");
        }
        for device in &guest.passed_through {
            let what = format!("{} uses the device {device} of {} itself", guest.name, self.source.name);
            self.blocks(
                ProblemKind::PassedThrough,
                what,
                "unplug it from the guest, and plug in one of the target's after",
            );
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crate::check::world::Case;
    use crate::problem::ProblemKind as K;
    use crate::problem::Severity::{Blocks, Warns};

    pub(in crate::check) const CASES: &[Case] = &[
        (
            |w| w.guest.left_behind = vec!["-monitor unix:/run/web1".into()],
            K::Tuning,
            Warns,
            &["-monitor unix:/run/web1 of web1 stay behind", "[qemu] args"],
        ),
        (|w| w.guest.blockers = vec!["virtio-9p".into()], K::Blocker, Blocks, &["cannot migrate web1: virtio-9p"]),
        (
            |w| w.guest.passed_through = vec!["hostdev0".into()],
            K::PassedThrough,
            Blocks,
            &["hostdev0 of hosta", "unplug"],
        ),
    ];
}
