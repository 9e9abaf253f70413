//! What the two agents do now, and what they have by the guest's name.

use std::collections::BTreeSet;

use super::checker::Checker;
use super::run_state::standstill;
use crate::facts::{MigrationSlots, PathFacts, Presence};
use crate::problem::ProblemKind;

/// Returns what to do about a host that takes no guest.
pub fn closed_cure(host: &str) -> String {
    format!("choose another host; or boot {host}, or if that is not needed any more: skein host resume {host}")
}

impl Checker<'_> {
    /// Checks what the two agents need: a guest that is free to move, a path, journals and migration slots.
    pub(super) fn agents(&mut self, paths: &[PathFacts]) {
        let (guest, source, target) = (self.guest, self.source, self.target);
        if let Some(migration) = &guest.migration {
            let what = format!("{} is being moved already, by migration {migration}", guest.name);
            let cure = format!("`skein migration show {migration}` says how it stands; wait for it, or cancel it");
            self.blocks(ProblemKind::MigrationUnderWay, what, cure);
        } else if guest.holds_migration {
            let what = format!(
                "the QEMU of {} is busy with a migration that is not Skein's, or has not ended an earlier one (QEMU \
                 7.2 may \
                 never end one whose connections broke)",
                guest.name
            );
            let cure = "wait a few seconds and repeat; if it stays so, shut the guest down and start it again";
            self.blocks(ProblemKind::MigrationUnderWay, what, cure);
        }
        // A guest that is being moved stands still at the end.
        if let (None, Some((why, cure))) = (&guest.migration, standstill(&guest.run_state)) {
            let what = format!(
                "{} does not run: {why} (QEMU's run state is {}); moved, it would run, which nobody asked for",
                guest.name, guest.run_state
            );
            self.blocks(ProblemKind::NotRunning, what, cure);
        }
        if paths.is_empty() {
            let what = format!("no NIC of {} reaches one of {}", source.name, target.name);
            let cure = "`skein doctor` on both hosts says which links are down and which addresses do not answer";
            self.blocks(ProblemKind::NoPath, what, cure);
        } else if paths.iter().all(PathFacts::is_excluded) {
            let by = |host: &str, excludes: fn(&PathFacts) -> Option<&String>| {
                let names: BTreeSet<&str> = paths.iter().filter_map(excludes).map(String::as_str).collect();
                let names = names.into_iter().collect::<Vec<_>>().join(", ");
                (!names.is_empty()).then(|| format!("{host} excludes the network of {names}"))
            };
            let here = by(&source.name, |path| path.source_excludes.then_some(&path.local));
            let there = by(&target.name, |path| path.target_excludes.then_some(&path.remote));
            let reasons: Vec<String> = here.into_iter().chain(there).collect();
            let what =
                format!("no path from {} to {} may carry guests: {}", source.name, target.name, reasons.join("; "));
            let cure = "take --exclude-network of a network that both hosts have out of the options of the agent that \
                        excludes it (/etc/default/skein-agent), and restart that agent: guests go on meanwhile";
            self.blocks(ProblemKind::NoPath, what, cure);
        }
        for host in [source, target] {
            if let Err(why) = &host.journal {
                let what = format!("the agent of {} cannot write its journal: {why}", host.name);
                let cure = "make room on, or mend, the disk below its state directory; guests that run are not touched";
                self.blocks(ProblemKind::Journal, what, cure);
            }
        }
        if let Some(why) = &target.closed {
            let what = format!("{} takes no guest: {why}", target.name);
            self.blocks(ProblemKind::Places, what, closed_cure(&target.name));
        }
        self.slots(source.outgoing, &source.name, "outgoing");
        self.slots(target.incoming, &target.name, "incoming");
    }

    /// Checks that a host has a slot for one more migration.
    fn slots(&mut self, slots: MigrationSlots, host: &str, way: &str) {
        let MigrationSlots { limit, used } = slots;
        if limit == 0 {
            let what = format!("{host} takes no {way} migrations: its limit is 0");
            self.blocks(ProblemKind::Places, what, "raise the limit in its agent's configuration");
        } else if slots.free() == 0 {
            let what = format!("{host} has {used} of {limit} {way} migrations already: this one will be queued");
            self.warns(ProblemKind::Places, what, "wait for its turn, cancel another, or raise the limit");
        }
    }

    /// Checks that the target has nothing else of the guest's name.
    pub(super) fn name(&mut self) {
        let (guest, target) = (&self.guest.name, &self.target.name);
        let under_way = &self.guest.migration;
        for vm in self.target.vms.iter().filter(|vm| vm.name == *guest) {
            match &vm.presence {
                // What the migration that is under way has there is no leftover, and becomes the guest at its end. To
                // remove it would end the guest.
                Presence::Leftover { migration: migration @ Some(_) } if migration == under_way => {}
                Presence::Guest if under_way.is_some() => {}
                Presence::Guest => {
                    let what = format!("{target} has a guest named {guest} already");
                    let cure = format!("look at it there (`skein vm show {guest}`), and stop or rename one of the two");
                    self.blocks(ProblemKind::NameTaken, what, cure);
                }
                Presence::Stopped => {
                    let what = format!("{target} has a VM named {guest} already, which is stopped");
                    let cure = format!(
                        "on {target}: `skein vm forget {guest}`, if that is an old copy (its disks are left alone); \
                         else rename one"
                    );
                    self.blocks(ProblemKind::NameTaken, what, cure);
                }
                Presence::Leftover { migration: Some(id) } => {
                    let what = format!("{target} still has what migration {id} left of {guest}");
                    let cure = format!(
                        "on {target}: `skein migration cancel {id}`; if it is in doubt, `skein migration resolve \
                         {id}` first"
                    );
                    self.blocks(ProblemKind::Leftover, what, cure);
                }
                Presence::Leftover { migration: None } => {
                    let what = format!("{target} still has what an earlier migration left of {guest}");
                    self.blocks(
                        ProblemKind::Leftover,
                        what,
                        format!("on {target}: `skein vm stop {guest}` removes it"),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crate::check::world::Case;
    use crate::facts::{MigrationSlots, Presence, VmFacts};
    use crate::problem::ProblemKind as K;
    use crate::problem::Severity::{Blocks, Warns};

    pub(in crate::check) const CASES: &[Case] = &[
        (|w| w.guest.migration = Some("m7".into()), K::MigrationUnderWay, Blocks, &["migration m7", "show m7"]),
        (|w| w.guest.holds_migration = true, K::MigrationUnderWay, Blocks, &["QEMU of web1 is busy", "start it again"]),
        (
            |w| w.guest.run_state = "paused".into(),
            K::NotRunning,
            Blocks,
            &[
                "web1 does not run: somebody paused it",
                "state is paused",
                "`skein vm resume`",
                "shut it down",
                "repeat",
            ],
        ),
        (|w| w.guest.run_state = "guest-panicked".into(), K::NotRunning, Blocks, &["panicked", "system_reset"]),
        (|w| w.guest.run_state = "postmigrate".into(), K::NotRunning, Blocks, &["if it runs there, end this one"]),
        (|w| w.guest.run_state = "of-a-newer-qemu".into(), K::NotRunning, Blocks, &["state is of-a-newer-qemu"]),
        (
            // In the handover, with what it has there already; not what another one left.
            |w| {
                (w.guest.migration, w.guest.run_state) = (Some("m7".into()), "finish-migrate".into());
                let presence = Presence::Leftover { migration: Some("m7".into()) };
                w.target.vms[0] = VmFacts { name: "web1".into(), presence };
            },
            K::MigrationUnderWay,
            Blocks,
            &["migration m7"],
        ),
        (
            |w| {
                w.guest.migration = Some("m7".into());
                w.target.vms[0].name = "web1".into();
            },
            K::MigrationUnderWay,
            Blocks,
            &["migration m7"],
        ),
        (|w| w.paths.clear(), K::NoPath, Blocks, &["no NIC of hosta reaches one of hostb", "skein doctor"]),
        (
            |w| w.paths[0].target_excludes = true,
            K::NoPath,
            Blocks,
            &[
                "no path from hosta to hostb may carry guests: hostb excludes the network of 10.0.0.2",
                "exclude-network",
            ],
        ),
        (
            |w| {
                w.paths.push(w.paths[0].clone());
                w.paths[0].source_excludes = true;
                w.paths[1].target_excludes = true;
            },
            K::NoPath,
            Blocks,
            &["hosta excludes the network of eth0; hostb excludes the network of 10.0.0.2", "restart that agent"],
        ),
        (|w| w.source.journal = Err("disk full".into()), K::Journal, Blocks, &["hosta", "disk full", "make room"]),
        (|w| w.target.journal = Err("read-only".into()), K::Journal, Blocks, &["hostb", "read-only"]),
        (|w| w.source.outgoing.used = 2, K::Places, Warns, &["hosta has 2 of 2 outgoing", "queued"]),
        (|w| w.target.incoming.used = 9, K::Places, Warns, &["hostb has 9 of 2 incoming", "queued"]),
        (|w| w.target.incoming = MigrationSlots { limit: 0, used: 0 }, K::Places, Blocks, &["hostb takes no incoming"]),
        (|w| w.source.outgoing = MigrationSlots { limit: 0, used: 1 }, K::Places, Blocks, &["hosta takes no outgoing"]),
        (
            |w| w.target.closed = Some("it is to be booted".into()),
            K::Places,
            Blocks,
            &["hostb takes no guest: it is to be booted", "skein host resume hostb"],
        ),
        (|w| w.target.vms[0].name = "web1".into(), K::NameTaken, Blocks, &["hostb has a guest named web1"]),
        (
            |w| w.target.vms[0] = VmFacts { name: "web1".into(), presence: Presence::Stopped },
            K::NameTaken,
            Blocks,
            &["which is stopped", "on hostb: `skein vm forget web1`"],
        ),
        (
            |w| {
                let presence = Presence::Leftover { migration: Some("m3".into()) };
                w.target.vms[0] = VmFacts { name: "web1".into(), presence };
            },
            K::Leftover,
            Blocks,
            &["what migration m3 left of web1", "on hostb: `skein migration cancel m3`"],
        ),
        (
            |w| w.target.vms[0] = VmFacts { name: "web1".into(), presence: Presence::Leftover { migration: None } },
            K::Leftover,
            Blocks,
            &["on hostb: `skein vm stop web1`"],
        ),
    ];
}
