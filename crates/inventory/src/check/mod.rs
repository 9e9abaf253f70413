//! Everything that stands against a migration, found before anything is touched.

mod files;
mod room;

use std::collections::BTreeSet;
use std::path::PathBuf;

use skein_units::exact_bytes;

pub use self::room::{NoRoom, refusal, refused_copy};
use crate::claim::shortened;
use crate::composition::{Composition, composition_problems, launch_problems};
use crate::definition::{Accel, Attachment, Definition};
use crate::facts::{
    AccelFacts, GuestDisk, GuestFacts, HostFacts, MigrationSlots, PathFacts, Presence, QemuFacts, QemuVersion,
};
pub use crate::problem::{Problem, ProblemKind, Severity};

/// The oldest QEMU that Skein is tried with.
pub const QEMU_OLDEST: QemuVersion = QemuVersion { major: 7, minor: 2, micro: 0 };
/// Most problems that are told. Those that block come first.
pub const PROBLEMS_MAX: usize = 256;
/// Most names in a list within a sentence.
const NAMES_MAX: usize = 24;

/// CPU models that are proposed: the newer first.
const CPU_MODELS: [&str; 9] = [
    "EPYC-v4",
    "EPYC-v2",
    "EPYC-v1",
    "Cascadelake-Server-v4",
    "Skylake-Server-v4",
    "Haswell-v4",
    "Westmere-v2",
    "Nehalem-v1",
    "qemu64-v1",
];

/// What the target's QEMU will be started from.
#[derive(Debug, Clone, Copy)]
pub enum TargetLaunch<'a> {
    /// A definition.
    Definition {
        /// As it is given to the target.
        definition: &'a Definition,
        /// How the guest's QEMU was composed when it had just been started; none: nobody looked.
        launched: Option<&'a Composition>,
        /// Images that the definition has got from what the guest has open now.
        given: &'a [String],
    },
    /// The arguments of a QEMU that somebody else started, as they are given to the target.
    CommandLine(&'a [String]),
}

impl<'a> TargetLaunch<'a> {
    fn definition(self) -> Option<&'a Definition> {
        match self {
            TargetLaunch::Definition { definition, .. } => Some(definition),
            TargetLaunch::CommandLine(_) => None,
        }
    }
}

/// All that stands against moving `guest` from `source` to `target`; those that block come first. Empty: nothing does.
/// `paths` are those between the two that work.
pub fn check(
    guest: &GuestFacts,
    start: TargetLaunch<'_>,
    source: &HostFacts,
    target: &HostFacts,
    paths: &[PathFacts],
) -> Vec<Problem> {
    let mut check = Checker { guest, source, target, problems: Vec::new() };
    if source.name == target.name {
        // The rest would be consequences: its name is taken there, its taps are in use...
        let what = format!("{} runs on {} already", guest.name, target.name);
        check.blocks(ProblemKind::SameHost, what, "choose another target");
        return check.problems;
    }
    check.agents(paths);
    check.name();
    match &target.qemu {
        Ok(qemu) => check.qemu(qemu),
        Err(why) => {
            let what = format!("{} has no QEMU to run {}: {why}", target.name, guest.name);
            check.blocks(
                ProblemKind::QemuMissing,
                what,
                "install QEMU there, or say where it is: binary = \"...\" in [qemu]",
            );
        }
    }
    check.blockers();
    check.files(start.definition());
    check.loaded_files(start.definition());
    check.disks();
    check.local_servers();
    check.ram_files();
    check.networks();
    check.room();
    check.composition(start);
    if let Some(definition) = start.definition() {
        check.definition(definition);
    }
    check.problems.sort_by_key(|problem| problem.severity);
    check.problems.truncate(PROBLEMS_MAX);
    check.problems
}

struct Checker<'a> {
    guest: &'a GuestFacts,
    source: &'a HostFacts,
    target: &'a HostFacts,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    fn add(&mut self, kind: ProblemKind, severity: Severity, what: String, cure: impl Into<String>) {
        self.problems.push(Problem::new(kind, severity, what, cure));
    }

    fn blocks(&mut self, kind: ProblemKind, what: String, cure: impl Into<String>) {
        self.add(kind, Severity::Blocks, what, cure);
    }

    fn warns(&mut self, kind: ProblemKind, what: String, cure: impl Into<String>) {
        self.add(kind, Severity::Warns, what, cure);
    }

    /// What the two agents need: a path, journals, places.
    fn agents(&mut self, paths: &[PathFacts]) {
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
        // In a migration it stands still at the end.
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
        }
        for host in [source, target] {
            if let Err(why) = &host.journal {
                let what = format!("the agent of {} cannot write its journal: {why}", host.name);
                let cure = "make room on, or mend, the disk below its state directory; guests that run are not touched";
                self.blocks(ProblemKind::Journal, what, cure);
            }
        }
        self.places(source.outgoing, &source.name, "outgoing");
        self.places(target.incoming, &target.name, "incoming");
    }

    fn places(&mut self, places: MigrationSlots, host: &str, way: &str) {
        let MigrationSlots { limit, used } = places;
        if limit == 0 {
            let what = format!("{host} takes no {way} migrations: its limit is 0");
            self.blocks(ProblemKind::Places, what, "raise the limit in its agent's configuration");
        } else if places.free() == 0 {
            let what = format!("{host} has {used} of {limit} {way} migrations already: this one will be queued");
            self.warns(ProblemKind::Places, what, "wait for its turn, cancel another, or raise the limit");
        }
    }

    fn name(&mut self) {
        let (guest, target) = (&self.guest.name, &self.target.name);
        let under_way = &self.guest.migration;
        for vm in self.target.vms.iter().filter(|vm| vm.name == *guest) {
            match &vm.presence {
                // What the migration that is under way has there is no leftover, and becomes the guest at its end:
                // whoever removed it would end the guest.
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

    fn qemu(&mut self, qemu: &QemuFacts) {
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
                // Whoever resolved it at the source may have meant another.
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

    /// A CPU model that both hosts can give a guest whole.
    fn common_cpu(&self, there: &AccelFacts) -> Option<&'static str> {
        let here = self.source.qemu.as_ref().ok()?.accels.iter().find(|accel| accel.accel == there.accel)?;
        let is_whole = |accel: &AccelFacts, name: &str| {
            accel.cpu_models.iter().any(|model| model.name == name && model.missing.is_empty())
        };
        CPU_MODELS.into_iter().find(|name| is_whole(here, name) && is_whole(there, name))
    }

    /// Whether the target can give the guest its CPU.
    fn cpu(&mut self, there: &AccelFacts) {
        let (guest, source, target) = (self.guest, self.source, self.target);
        let model = guest.cpu.split(',').next().unwrap_or_default();
        let is_host = guest.accel == Accel::Kvm && matches!(model, "host" | "max");
        let such_as = self.common_cpu(there).map_or(String::new(), |model| format!(", such as cpu = \"{model}\""));
        let named = &format!("stop the guest and start it with a CPU model that both hosts have{such_as}");
        let known = !source.cpu_vendor.is_empty() && !target.cpu_vendor.is_empty();
        if guest.accel == Accel::Kvm && known && source.cpu_vendor != target.cpu_vendor {
            let (from, to) = (&source.cpu_vendor, &target.cpu_vendor);
            let what = format!("the CPU of {} is {to}, that of {} {from}", target.name, source.name);
            if is_host {
                // Its flags differ too, of course.
                return self.blocks(
                    ProblemKind::CpuVendor,
                    format!("{what}, and the guest has cpu = \"{model}\""),
                    named,
                );
            }
            self.warns(
                ProblemKind::CpuVendor,
                what,
                "try it with a guest that matters less, or choose a host of that vendor",
            );
        }
        let found = there.cpu_models.iter().find(|known| known.name == model);
        if found.is_none() && !is_host && !matches!(model, "host" | "max") {
            let what = format!("QEMU on {} has no CPU model {model}", target.name);
            return self.blocks(ProblemKind::CpuModel, what, format!("install QEMU {} there, or {named}", guest.qemu));
        }
        // Best what the guest really has; otherwise what its model asks for, or the two hosts' own flags.
        let missing: Vec<String> = match (&there.features, found) {
            (Some(features), _) if !guest.cpu_features.is_empty() => lacking(&guest.cpu_features, features),
            (_, Some(found)) if !is_host => found.missing.clone(),
            _ if is_host && !source.cpu_flags.is_empty() && !target.cpu_flags.is_empty() => {
                lacking(&source.cpu_flags, &target.cpu_flags)
            }
            _ => {
                let what = format!("whether {} has all flags of {}'s CPU is not known", target.name, guest.name);
                return self.warns(ProblemKind::CpuUnknown, what, named);
            }
        };
        if !missing.is_empty() {
            let what =
                format!("{} lacks flags of {}'s CPU ({}): {}", target.name, guest.name, guest.cpu, list(&missing));
            self.blocks(ProblemKind::CpuFlags, what, named);
            return;
        }
        let more = lacking(&target.cpu_flags, &source.cpu_flags);
        if is_host && !source.cpu_flags.is_empty() && !more.is_empty() {
            let what = format!(
                "{} has cpu = \"{model}\", and the CPU of {} has more flags than that of {}: started anew there, the \
                 guest \
                 would not come back ({})",
                guest.name,
                target.name,
                source.name,
                list(&more)
            );
            self.warns(ProblemKind::CpuDiffers, what, named);
        }
    }

    fn blockers(&mut self) {
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

    fn networks(&mut self) {
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

    fn room(&mut self) {
        for problem in room::problems(self.guest, self.source, self.target) {
            self.add(problem.kind, problem.severity, problem.what, problem.cure);
        }
    }

    /// The target starts its QEMU anew: what the guest's has got or lost since it was started, the target's would lack
    /// or have.
    fn composition(&mut self, start: TargetLaunch<'_>) {
        let (name, now) = (&self.guest.name, &self.guest.composition);
        self.problems.extend(match start {
            TargetLaunch::Definition { launched: Some(launched), given, .. } => {
                composition_problems(name, launched, now, given)
            }
            // Of an agent that did not look yet. The target compares.
            TargetLaunch::Definition { launched: None, .. } => composition_problems(name, now, now, &[]),
            TargetLaunch::CommandLine(args) => launch_problems(name, args, now, &self.guest.hot_plugged),
        });
    }

    /// The target starts its QEMU from the definition: one that was changed since the guest started makes another
    /// machine.
    fn definition(&mut self, definition: &Definition) {
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
        // What is only read, and not named, is what a disk is an overlay of.
        let is_own = |path: &PathBuf| definition.disks.iter().any(|disk| disk.path == *path);
        let vars = definition.firmware.as_ref().and_then(|firmware| firmware.vars.as_ref());
        let named_elsewhere = |path: &PathBuf| vars == Some(path) || definition.qemu.names(path);
        let is_disk = |disk: &&GuestDisk| is_own(&disk.path) || !(disk.readonly || named_elsewhere(&disk.path));
        let has = guest.disks.iter().filter(is_disk).map(|disk| &disk.path);
        // Which device has which is compared with the composition.
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

/// Why a guest stands still in one of QEMU's run states (RunState of its qapi/run-state.json), and what to do. None: it
/// runs.
pub fn standstill(run_state: &str) -> Option<(&'static str, &'static str)> {
    let resume = "resume it (`skein vm resume`) or shut it down (`skein vm stop --force`), and repeat";
    let reset = "reset it (QMP `system_reset`, then `cont`) or shut it down (`skein vm stop --force`), and repeat";
    let wait = "wait until it runs, and repeat";
    Some(match run_state {
        "running" => return None,
        "paused" => ("somebody paused it", resume),
        "prelaunch" => ("it was started paused (-S)", resume),
        "io-error" => {
            ("one of its disks fails", "mend the disk, then resume it (`skein vm resume`) or shut it down, and repeat")
        }
        "suspended" => ("it sleeps", "wake it (QMP `system_wakeup`) or shut it down, and repeat"),
        "watchdog" => ("its watchdog stopped it", resume),
        "guest-panicked" => ("its kernel panicked", reset),
        "internal-error" => ("QEMU or KVM failed", reset),
        "shutdown" => ("it has shut down", reset),
        "inmigrate" => ("it is still arriving", wait),
        // It may run elsewhere.
        "postmigrate" => (
            "somebody else's migration took it away",
            "if it runs there, end this one (`skein vm stop --force`); only if it does not, resume it (QMP `cont`), \
             and repeat",
        ),
        "finish-migrate" | "save-vm" | "restore-vm" => ("QEMU holds it for a moment", wait),
        _ => ("somebody or something stopped it", resume),
    })
}

/// Flags of `wanted` that `given` lacks. QEMU and Linux write dashes, underscores and dots in them as they like.
fn lacking(wanted: &BTreeSet<String>, given: &BTreeSet<String>) -> Vec<String> {
    let plain = |flag: &String| flag.replace(['_', '.'], "-");
    let given: BTreeSet<String> = given.iter().map(plain).collect();
    wanted.iter().filter(|flag| !given.contains(&plain(flag))).cloned().collect()
}

/// `a, b, c and 7 more`, or `none`.
fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { shortened(names, NAMES_MAX) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::claim::CLAIM_BYTES_MAX;
    use crate::composition::{Device, Drive, Image, Medium};
    use crate::facts::{
        CpuModel, FileFacts, FileSystem, GuestDisk, GuestNic, Hugepages, MachineType, NicFacts, VmFacts,
    };
    use skein_units::{GIB, MIB};

    use crate::problem::SENTENCE_BYTES_MAX;
    use crate::room::{CopyRoom, Resource, Room, RoomLimit, overhead_bytes};

    struct World {
        guest: GuestFacts,
        definition: Option<Definition>,
        args: Vec<String>,
        launched: Composition,
        source: HostFacts,
        target: HostFacts,
        paths: Vec<PathFacts>,
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    fn file(path: &str) -> FileFacts {
        FileFacts {
            path: path.into(),
            readable: true,
            writable: true,
            file_system: FileSystem::Network,
            file_system_name: "nfs".into(),
            device: 40,
            inode: 1234,
            mounted_from: Some("nas:/vm".into()),
            handle: None,
            wwid: None,
        }
    }

    fn host(name: &str) -> HostFacts {
        let accel = |accel, models: &[&str], features: &[&str]| AccelFacts {
            accel,
            cpu_models: models.iter().map(|name| CpuModel { name: name.to_string(), missing: Vec::new() }).collect(),
            features: Some(names(features)),
        };
        HostFacts {
            name: name.into(),
            boot_id: Some(format!("boot of {name}")),
            ram_bytes: 64 * GIB,
            ram_available_bytes: 32 * GIB,
            kept_ram_bytes: 0,
            room: None,
            hugepages: vec![Hugepages { page_bytes: 2 * MIB, total: 4096, free: 2048 }],
            cpus: 16,
            cpu_vendor: "AuthenticAMD".into(),
            cpu_flags: names(&["sse4_1", "avx2"]),
            kvm: Ok(()),
            qemu: Ok(QemuFacts {
                program: "/usr/bin/qemu-system-x86_64".into(),
                version: QemuVersion { major: 10, minor: 0, micro: 2 },
                machines: vec![MachineType { name: "pc-q35-10.0".into(), alias: Some("q35".into()) }],
                accels: vec![
                    accel(Accel::Kvm, &["host", "max", "EPYC-v4"], &["sse4-1", "avx2"]),
                    accel(Accel::Tcg, &["max"], &["sse4-1"]),
                ],
            }),
            bridges: names(&["br0"]),
            taps_in_use: names(&["tap0"]),
            vms: vec![VmFacts { name: "other".into(), presence: Presence::Guest }],
            incoming: MigrationSlots { limit: 2, used: 1 },
            outgoing: MigrationSlots { limit: 2, used: 1 },
            journal: Ok(()),
            files: vec![file("/srv/web1.qcow2"), file("/boot/vmlinuz"), file("/boot/initrd")],
            digests: BTreeMap::from([("/boot/vmlinuz".into(), "1".into()), ("/boot/initrd".into(), "2".into())]),
            nics: vec![NicFacts { name: "eth0".into(), speed_bits_per_s: Some(1_000_000_000) }],
            swtpm: Some("0.7.1".into()),
        }
    }

    fn world() -> World {
        let nic = |attachment| GuestNic { attachment, moved: None };
        let text = "name = 'web1'\nmemory = '4 GiB'\ncpus = 2\nmachine = 'pc-q35-10.0,smm=off'\nkernel = \
                    '/boot/vmlinuz'\n\
                    initrd = '/boot/initrd'\n[[disk]]\npath = '/srv/web1.qcow2'\nformat = 'qcow2'\n";
        World {
            guest: GuestFacts {
                name: "web1".into(),
                adopted: false,
                qemu: QemuVersion { major: 10, minor: 0, micro: 3 },
                machine_type: "pc-q35-10.0".into(),
                accel: Accel::Kvm,
                cpu: "EPYC-v4,+avx2".into(),
                cpu_features: names(&["sse4.1", "avx2"]),
                cpus: 2,
                ram_bytes: 4 * GIB,
                device_bytes: 0,
                ram_shared: true,
                hugepages: None,
                blockers: Vec::new(),
                passed_through: Vec::new(),
                disks: vec![GuestDisk {
                    path: "/srv/web1.qcow2".into(),
                    format: crate::DiskFormat::Qcow2,
                    readonly: false,
                }],
                loaded: vec!["/boot/vmlinuz".into(), "/boot/initrd".into()],
                ram_files: vec!["/dev/shm/web1".into()],
                nics: vec![
                    nic(Some(Attachment::Bridge("br0".into()))),
                    nic(Some(Attachment::Tap("tap7".into()))),
                    nic(None),
                ],
                composition: Composition::default(),
                hot_plugged: Vec::new(),
                left_behind: Vec::new(),
                run_state: "running".into(),
                copy: None,
                locks_ram: false,
                migration: None,
                holds_migration: false,
            },
            definition: Some(Definition::parse(text, "web1.toml").unwrap()),
            source: host("hosta"),
            target: host("hostb"),
            args: Vec::new(),
            launched: Composition::default(),
            paths: vec![PathFacts { local: "eth0".into(), remote: "eth0".into(), bits_per_s: Some(1_000_000_000) }],
        }
    }

    fn qemu(host: &mut HostFacts) -> &mut QemuFacts {
        host.qemu.as_mut().unwrap()
    }

    /// One change to a world in which nothing stands against the migration.
    type Change = fn(&mut World);

    fn drive(device: &str) -> Drive {
        let medium = Medium {
            chain: Vec::new(),
            beside: BTreeMap::new(),
            read_only: true,
            tuning: BTreeMap::new(),
            bitmaps: BTreeSet::new(),
        };
        Drive { device: device.into(), name: String::new(), removable: true, medium: Some(medium) }
    }

    fn problems(change: Change) -> Vec<Problem> {
        let mut world = world();
        change(&mut world);
        let World { guest, definition, args, launched, source, target, paths } = &world;
        let start = match definition {
            Some(definition) => TargetLaunch::Definition { definition, launched: Some(launched), given: &[] },
            None => TargetLaunch::CommandLine(args),
        };
        check(guest, start, source, target, paths)
    }

    /// One limit of memory: all, and what is used.
    fn group_of(limit: u64, used: u64) -> Room {
        let (owner, name) = ("the control group /sys/fs/cgroup/m".into(), "memory.max".into());
        let (promised, promised_to) = (0, Vec::new());
        let limits = vec![RoomLimit { resource: Resource::Ram, owner, name, limit, used, promised, promised_to }];
        Room { limits, unread: Vec::new() }
    }

    use ProblemKind as K;
    use Severity::{Blocks, Warns};

    const CASES: &[(Change, K, Severity, &[&str])] = &[
        (|w| w.target.name = "hosta".into(), K::SameHost, Blocks, &["web1 runs on hosta already"]),
        (|w| w.guest.migration = Some("m7".into()), K::MigrationUnderWay, Blocks, &["migration m7", "show m7"]),
        (
            |w| w.guest.left_behind = vec!["-monitor unix:/run/web1".into()],
            K::Tuning,
            Warns,
            &["-monitor unix:/run/web1 of web1 stay behind", "[qemu] args"],
        ),
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
        (|w| w.source.journal = Err("disk full".into()), K::Journal, Blocks, &["hosta", "disk full", "make room"]),
        (|w| w.target.journal = Err("read-only".into()), K::Journal, Blocks, &["hostb", "read-only"]),
        (|w| w.source.outgoing.used = 2, K::Places, Warns, &["hosta has 2 of 2 outgoing", "queued"]),
        (|w| w.target.incoming.used = 9, K::Places, Warns, &["hostb has 9 of 2 incoming", "queued"]),
        (|w| w.target.incoming = MigrationSlots { limit: 0, used: 0 }, K::Places, Blocks, &["hostb takes no incoming"]),
        (|w| w.source.outgoing = MigrationSlots { limit: 0, used: 1 }, K::Places, Blocks, &["hosta takes no outgoing"]),
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
        (
            |w| w.target.qemu = Err("not installed".into()),
            K::QemuMissing,
            Blocks,
            &["hostb", "not installed", "install"],
        ),
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
        (
            |w| {
                w.guest.cpu = "host".into();
                w.target.cpu_vendor = "GenuineIntel".into();
                w.target.cpu_flags = names(&["avx512f"]);
            },
            K::CpuVendor,
            Blocks,
            &["hostb is GenuineIntel, that of hosta AuthenticAMD", "cpu = \"host\""],
        ),
        (|w| w.target.cpu_vendor = "GenuineIntel".into(), K::CpuVendor, Warns, &["GenuineIntel", "that vendor"]),
        (|w| w.guest.cpu = "Genoa".into(), K::CpuModel, Blocks, &["QEMU on hostb has no CPU model Genoa"]),
        (
            |w| w.guest.cpu_features.extend(names(&["avx512f", "vaes"])),
            K::CpuFlags,
            Blocks,
            &["hostb lacks flags of web1's CPU (EPYC-v4,+avx2): avx512f, vaes", "CPU model that both hosts have"],
        ),
        (
            |w| {
                w.guest.cpu_features.clear();
                qemu(&mut w.target).accels[0].cpu_models[2].missing = vec!["clwb".into()];
            },
            K::CpuFlags,
            Blocks,
            &["clwb"],
        ),
        (
            |w| {
                w.guest.cpu = "host".into();
                qemu(&mut w.target).accels[0].features = None;
                w.target.cpu_flags.remove("avx2");
            },
            K::CpuFlags,
            Blocks,
            &["(host): avx2"],
        ),
        (
            |w| {
                (w.guest.accel, w.guest.cpu) = (Accel::Tcg, "max".into());
                w.target.cpu_vendor = "GenuineIntel".into();
            },
            K::CpuFlags,
            Blocks,
            &["(max): avx2"],
        ),
        (
            |w| {
                w.guest.cpu = "host,-svm".into();
                w.target.cpu_flags.extend(names(&["avx512f"]));
            },
            K::CpuDiffers,
            Warns,
            &["more flags than that of hosta", "avx512f"],
        ),
        (
            |w| {
                w.guest.cpu = "host".into();
                w.guest.cpu_features.clear();
                w.source.cpu_flags.clear();
            },
            K::CpuUnknown,
            Warns,
            &["not known"],
        ),
        (|w| w.target.cpus = 1, K::CpusFew, Warns, &["hostb has fewer CPUs (1) than web1 (2)"]),
        (|w| w.guest.blockers = vec!["virtio-9p".into()], K::Blocker, Blocks, &["cannot migrate web1: virtio-9p"]),
        (
            |w| w.guest.passed_through = vec!["hostdev0".into()],
            K::PassedThrough,
            Blocks,
            &["hostdev0 of hosta", "unplug"],
        ),
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
            // Hosts that were installed from one image: equal inodes, and yet two files.
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
            // Two hosts installed from one image, of which neither says its boot: equal numbers of different files.
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
            |w| w.guest.nics[0].moved = Some(("sk1".into(), "br1".into())),
            K::Bridge,
            Blocks,
            &["web1's sk1 is in br1 now, and its definition says br0", "ip link set sk1 master br0"],
        ),
        (|w| w.target.bridges.clear(), K::Bridge, Blocks, &["hostb has no bridge br0", "ip link add br0 type bridge"]),
        (|w| w.target.taps_in_use = names(&["tap7"]), K::Tap, Blocks, &["a tap device tap7 for something else"]),
        (
            |w| w.target.ram_available_bytes = 4 * GIB,
            K::Ram,
            Blocks,
            &["hostb has 4 GiB of RAM left", "free 180.5 MiB"],
        ),
        (
            |w| (w.target.ram_bytes, w.target.ram_available_bytes) = (3 * GIB, 2 * GIB),
            K::Ram,
            Blocks,
            &["a larger host: all its RAM is 3 GiB"],
        ),
        (
            |w| {
                w.guest.hugepages = Some(2 * MIB);
                w.target.ram_available_bytes = 100 * MIB;
            },
            K::Ram,
            Blocks,
            &["web1 needs 180.5 MiB"],
        ),
        (
            |w| {
                w.guest.hugepages = Some(2 * MIB);
                w.target.hugepages[0].free = 2047;
            },
            K::Hugepages,
            Blocks,
            &["2047 free huge pages of 2 MiB and web1 needs 2048", "echo 4097 > ", "hugepages-2048kB/nr_hugepages"],
        ),
        (|w| w.guest.hugepages = Some(GIB), K::Hugepages, Blocks, &["0 free huge pages of 1 GiB", "echo 4 > "]),
        (
            |w| w.target.room = Some(group_of(6 * GIB, 2 * GIB)),
            K::Ram,
            Blocks,
            &[
                "the control group /sys/fs/cgroup/m of hostb has 4 GiB left of 6 GiB (memory.max)",
                "web1 needs",
                "MemoryMax=",
            ],
        ),
        (
            |w| {
                let mut room = group_of(300, 200);
                (room.limits[0].resource, room.limits[0].name) = (Resource::Tasks, "pids.max".into());
                w.target.room = Some(room);
            },
            K::Tasks,
            Blocks,
            &["has 100 threads left of 300 (pids.max)", "web1 needs 130", "TasksMax="],
        ),
        (
            |w| {
                let room = group_of(8 * GIB, 6 * GIB);
                w.guest.copy = Some(CopyRoom { holes_bytes: 3 * GIB, agent_bytes: 0, room, promised_bytes: 0 });
            },
            K::SourceRam,
            Blocks,
            &["of hosta has 2 GiB left of 8 GiB", "the copy needs 3 GiB", "never wrote"],
        ),
        (
            |w| {
                let room = group_of(8 * GIB, 6 * GIB);
                w.guest.copy = Some(CopyRoom { holes_bytes: 2 * GIB - 1, agent_bytes: 0, room, promised_bytes: 0 });
            },
            K::SourceRam,
            Warns,
            &["2 GiB of RAM that it never wrote", "of 8 GiB would be left", "one at a time"],
        ),
        (
            |w| {
                let unread = vec!["limits above /sys/fs/cgroup".into()];
                w.target.room = Some(Room { unread, ..group_of(64 * GIB, GIB) });
            },
            K::RoomUnknown,
            Warns,
            &["limits a guest on hostb can be read: limits above /sys/fs/cgroup"],
        ),
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
        (|w| w.definition.as_mut().unwrap().disks.clear(), K::DefinitionDiffers, Blocks, &["/srv/web1.qcow2", "none"]),
    ];

    #[test]
    fn each_problem_is_found_alone_and_told_with_its_cure() {
        assert_eq!(problems(|_| {}), []);
        let overlay: Change = |w| {
            let (path, format) = ("/srv/base.raw".into(), crate::DiskFormat::Raw);
            w.guest.disks.push(GuestDisk { path, format, readonly: true });
            w.target.files.push(file("/srv/base.raw"));
            w.source.files.push(file("/srv/base.raw"));
        };
        assert_eq!(problems(overlay), [], "the definition does not name what is below an overlay");
        let second: Change = |w| {
            let (path, format) = (PathBuf::from("/srv/a.raw"), crate::DiskFormat::Raw);
            w.guest.disks.insert(0, GuestDisk { path: path.clone(), format, readonly: false });
            let text = "name = 'web1'\nmemory = '4 GiB'\n[[disk]]\npath = '/srv/a.raw'\nformat = 'raw'\n";
            w.definition.as_mut().unwrap().disks.extend(Definition::parse(text, "").unwrap().disks);
            [&mut w.source, &mut w.target].into_iter().for_each(|host| host.files.push(file("/srv/a.raw")));
        };
        assert_eq!(problems(second), [], "in another order");
        let renamed: Change = |w| {
            w.target.files[0].mounted_from = Some("10.0.0.9:/vm".into());
            [&mut w.source, &mut w.target].into_iter().for_each(|host| host.files[0].handle = Some("1:aa".into()));
        };
        assert_eq!(problems(renamed), [], "one file of a server that has two names");
        for (number, (change, kind, severity, parts)) in CASES.iter().enumerate() {
            let problems = problems(*change);
            let [problem] = &problems[..] else { panic!("case {number}, {kind:?}: {problems:#?}") };
            assert_eq!((problem.kind, problem.severity), (*kind, *severity), "case {number}: {problem}");
            let told = problem.to_string();
            assert!(parts.iter().all(|part| told.contains(part)), "case {number}, {parts:?}: {told}");
            assert!(!problem.cure.is_empty(), "{told}");
        }
        // Those before Other, which no check makes; two are found by agents' sessions.
        let by_sessions = [K::NicsUnused, K::LargePacketsLost];
        let kinds: BTreeSet<K> = CASES.iter().map(|(_, kind, ..)| *kind).chain(by_sessions).collect();
        assert_eq!(kinds.len(), K::Other as usize, "a kind without a case");
    }

    #[test]
    fn what_does_not_stand_against_it_is_no_problem() {
        let changes: &[Change] = &[
            |w| w.definition = None,
            // A disk in [qemu] args, and a variable store on shared storage.
            |w| {
                for path in ["/srv/more.raw", "/srv/vars.fd"] {
                    w.guest.disks.push(GuestDisk {
                        path: path.into(),
                        format: crate::DiskFormat::Raw,
                        readonly: false,
                    });
                    w.source.files.push(file(path));
                    w.target.files.push(file(path));
                }
                let text = "name = 'web1'\nmemory = '4 GiB'\n[firmware]\nvars = '/srv/vars.fd'\n\
                            [qemu]\nargs = ['-drive', 'file=/srv/more.raw,if=virtio']";
                let Definition { firmware, qemu, .. } = Definition::parse(text, "").unwrap();
                let definition = w.definition.as_mut().unwrap();
                (definition.firmware, definition.qemu) = (firmware, qemu);
            },
            |w| (w.guest.cpu, w.guest.accel, w.guest.cpu_features) = ("max".into(), Accel::Tcg, names(&["sse4_1"])),
            |w| w.guest.cpu = "host".into(),
            |w| w.target.cpu_vendor = String::new(),
            |w| w.target.ram_available_bytes = 4 * GIB + overhead_bytes(4 * GIB, 2),
            |w| w.guest.hugepages = Some(2 * MIB),
            |w| (w.guest.disks[0].readonly, w.target.files[0].writable) = (true, false),
            // Two hosts that are namespaces of one kernel share its local file systems.
            |w| {
                w.target.boot_id = w.source.boot_id.clone();
                w.source.files[0].file_system = FileSystem::Local;
                w.target.files[0].file_system = FileSystem::Local;
            },
            // An NFS mount has another device number on each host.
            |w| w.target.files[0].device = 77,
            |w| {
                for host in [&mut w.source, &mut w.target] {
                    (host.files[0].file_system, host.files[0].wwid) = (FileSystem::Unknown, Some("naa.1".into()));
                }
                w.target.files[0].inode = 5;
            },
            |w| qemu(&mut w.target).version = QemuVersion { major: 10, minor: 1, micro: 0 },
            |w| w.source.kvm = Err("asked the wrong way".into()),
        ];
        for (number, change) in changes.iter().enumerate() {
            assert_eq!(problems(*change), [], "case {number}");
        }
    }

    #[test]
    fn all_problems_are_told_at_once_those_that_block_first() {
        let problems = problems(|w| {
            w.source.outgoing.used = 2;
            w.paths.clear();
            w.target.bridges.clear();
            w.target.qemu = Err("none".into());
            w.target.cpus = 1;
            w.guest.blockers = vec!["a".into(), "b".into()];
        });
        let kinds: Vec<K> = problems.iter().map(|problem| problem.kind).collect();
        assert_eq!(kinds, [K::NoPath, K::QemuMissing, K::Blocker, K::Blocker, K::Bridge, K::Places, K::CpusFew]);
        let under_way = super::tests::problems(|w| {
            w.guest.migration = Some("m7".into());
            let presence = Presence::Leftover { migration: Some("m3".into()) };
            w.target.vms[0] = VmFacts { name: "web1".into(), presence };
        });
        let kinds: Vec<K> = under_way.iter().map(|problem| problem.kind).collect();
        assert_eq!(kinds, [K::MigrationUnderWay, K::Leftover], "what another migration left is told all the same");
        let many = super::tests::problems(|w| w.guest.blockers = vec!["x\u{1b}".repeat(9000); 1000]);
        assert_eq!(many.len(), PROBLEMS_MAX);
        assert!(
            many.iter().all(|problem| problem.what.len() <= SENTENCE_BYTES_MAX && !problem.what.contains('\u{1b}'))
        );
        let flags = super::tests::problems(|w| w.guest.cpu_features = (0..100).map(|n| format!("f{n:02}")).collect());
        assert!(flags[0].what.ends_with("f23 and 76 more"), "{}", flags[0]);
    }

    #[test]
    fn no_number_is_too_odd() {
        problems(|w| {
            (w.guest.ram_bytes, w.guest.cpus, w.guest.hugepages) = (u64::MAX, u32::MAX, Some(1));
            w.target.hugepages[0] = Hugepages { page_bytes: 1, total: u64::MAX, free: 0 };
            (w.target.ram_bytes, w.target.ram_available_bytes) = (0, u64::MAX - 1);
        });
        problems(|w| w.guest.hugepages = Some(0));
    }

    #[test]
    fn facts_and_problems_go_over_a_wire() {
        let World { guest, source, paths, .. } = world();
        let again = serde_json::to_string(&(&guest, &source, &paths)).unwrap();
        let again: (GuestFacts, HostFacts, Vec<PathFacts>) = serde_json::from_str(&again).unwrap();
        assert_eq!(again, (guest, source, paths));
        for (change, kind, ..) in CASES {
            let problems = problems(*change);
            let json = serde_json::to_value(&problems).unwrap();
            let code = json[0]["kind"].as_str().unwrap();
            assert!(code.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{kind:?}: {code}");
            assert_eq!(serde_json::from_value::<Vec<Problem>>(json).unwrap(), problems);
        }
        let newer = r#"{"kind":"moon-phase","severity":"blocks","what":"w\u001b[2J","cure":"c"}"#;
        let newer: Problem = serde_json::from_str(newer).unwrap();
        assert_eq!((newer.kind, newer.what.as_str()), (K::Other, "w\u{fffd}[2J"));
    }

    #[test]
    fn what_a_peer_says_is_short_and_printable() {
        let mut world = world();
        let bad = format!("\u{1b}[2J{}", "x".repeat(10_000));
        let host = &mut world.target;
        host.name = bad.clone();
        host.cpu_vendor = bad.clone();
        host.kvm = Err(bad.clone());
        host.bridges = [bad.clone()].into();
        host.vms[0].presence = Presence::Leftover { migration: Some(bad.clone()) };
        host.files[0].path = bad.clone().into();
        host.files[0].file_system_name = bad.clone();
        host.nics[0].name = bad.clone();
        qemu(host).program = bad.clone().into();
        qemu(host).machines[0].alias = Some(bad.clone());
        qemu(host).accels[0].cpu_models[0].missing = vec![bad.clone()];
        qemu(host).accels[0].features = Some([bad].into());
        let json = serde_json::to_string(host).unwrap();
        let heard: HostFacts = serde_json::from_str(&json).unwrap();
        let again = serde_json::to_string(&heard).unwrap();
        assert_eq!((again.matches("\\u001b").count(), json.matches("\\u001b").count()), (0, 12));
        assert_eq!((heard.name.len(), heard.cpu_vendor.len()), (CLAIM_BYTES_MAX, CLAIM_BYTES_MAX));
    }
}
