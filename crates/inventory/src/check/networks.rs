//! Whether the guest's NICs find their networks at the target.

use std::collections::BTreeSet;

use super::checker::Checker;
use crate::definition::Attachment;
use crate::problem::ProblemKind;

impl Checker<'_> {
    /// Checks that each NIC finds its bridge or tap at the target, and is where its definition says.
    pub(super) fn networks(&mut self) {
        let (guest, target) = (self.guest, self.target);
        for (nic, (tap, now)) in guest.nics.iter().filter_map(|nic| Some((nic, nic.moved.as_ref()?))) {
            let Some(Attachment::Bridge(bridge)) = &nic.attachment else { continue };
            let now = if now.is_empty() { "no bridge" } else { now };
            let what = format!(
                "{}'s {tap} is in {now} now, and its definition says {bridge}, as it would be on {}",
                guest.name, target.name
            );
            let cure = format!(
                "put it back (`ip link set {tap} master {bridge}`), or stop the guest and start it with the bridge \
                 that it has now"
            );
            self.blocks(ProblemKind::Bridge, what, cure);
        }
        let attachments: BTreeSet<_> = self.guest.nics.iter().filter_map(|nic| nic.attachment.as_ref()).collect();
        for attachment in attachments {
            match attachment {
                Attachment::Bridge(bridge) if !target.bridges.contains(bridge) => {
                    let what = format!("{} has no bridge {bridge}, or it is down", target.name);
                    let cure = format!(
                        "make it there, on the same network: `ip link add {bridge} type bridge`, `ip link set \
                         {bridge} up`"
                    );
                    self.blocks(ProblemKind::Bridge, what, cure);
                }
                Attachment::Tap(tap) if target.taps_in_use.contains(tap) => {
                    let what = format!("{} uses a tap device {tap} for something else", target.name);
                    self.blocks(
                        ProblemKind::Tap,
                        what,
                        "free it there, or give the NIC a bridge, whose taps have names of their own",
                    );
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crate::check::world::Case;
    use crate::check::world::names;
    use crate::problem::ProblemKind as K;
    use crate::problem::Severity::Blocks;

    pub(in crate::check) const CASES: &[Case] = &[
        (
            |w| w.guest.nics[0].moved = Some(("sk1".into(), "br1".into())),
            K::Bridge,
            Blocks,
            &["web1's sk1 is in br1 now, and its definition says br0", "ip link set sk1 master br0"],
        ),
        (|w| w.target.bridges.clear(), K::Bridge, Blocks, &["hostb has no bridge br0", "ip link add br0 type bridge"]),
        (|w| w.target.taps_in_use = names(&["tap7"]), K::Tap, Blocks, &["a tap device tap7 for something else"]),
    ];
}
