//! What a QEMU will really get on a host: its memory, and every limit above the QEMU.
//!
//! A [`RoomLimit`] is anything beyond which the kernel refuses or kills: the host's memory, a control group's
//! `memory.max`, the commit limit of `vm.overcommit_memory` 2. Guests that run have RAM that they were promised and did
//! not touch yet; no other guest may have that RAM. A migration needs all of its guest's RAM at the target. At the
//! source it needs the RAM that the copy makes the kernel allocate: QEMU reads every page of the guest, and a page of a
//! shared file that was never written is allocated when it is read (`shmem_fault` of the kernel's mm/shmem.c).

use serde::{Deserialize, Serialize};
use skein_units::{GIB, MIB, about_bytes, exact_bytes};

use crate::claim::{Claim, claim};
use crate::definition::Accel;

/// The threads of a QEMU beside its vCPUs, and the agent's threads for its migration. QEMU's pool for disks has up to
/// 64 (`THREAD_POOL_MAX_THREADS_DEFAULT` of its include/block/thread-pool.h), and a migration has up to 16 for channels
/// at each end and as many of the agent's.
const THREADS_BESIDE_VCPUS: u64 = 128;
/// The most that QEMU maps for the code that TCG makes (`DEFAULT_CODE_GEN_BUFFER_SIZE` of its tcg/region.c).
const TCG_BYTES: u64 = GIB;
/// The programs, libraries and arenas of a QEMU in its address space.
const ADDRESSES_BYTES: u64 = GIB;
/// The check warns where less than this part of a limit would be left at the source.
const LEFT_SHARE_WARN: u64 = 16;
/// The most names in a sentence.
const NAMES_MAX: usize = 8;

/// Returns the RAM that a QEMU needs beside its guest's: page tables of QEMU's and of KVM's (8 bytes for each 4 KiB
/// page, both), 8 MiB for each CPU (stack, coalesced rings, vhost), and 128 MiB for the process and its devices' and
/// its channels' buffers. The parts are those of KubeVirt's GetMemoryOverhead. A two-hundredth of the RAM more is the
/// agent's, for its marks of the guest's pages: 16 bytes and a version for each of 4 KiB.
pub fn overhead_bytes(ram_bytes: u64, cpus: u32) -> u64 {
    (ram_bytes / 256)
        .saturating_add(ram_bytes / 200)
        .saturating_add(8 * MIB * u64::from(cpus))
        .saturating_add(128 * MIB)
}

/// What a limit bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Memory, in bytes.
    Ram,
    /// Memory that the kernel accounts before it is used, in bytes (`vm.overcommit_memory` 2).
    Commit,
    /// Huge pages of one size, in bytes.
    HugePages {
        /// The size of a page.
        page_bytes: u64,
    },
    /// Processes and threads.
    Tasks,
    /// Addresses of one process, in bytes (`RLIMIT_AS`).
    Addresses,
    /// Memory that one process may lock, in bytes (`RLIMIT_MEMLOCK`).
    LockedRam,
    /// A resource of a newer version of Skein: nothing is asked of it.
    #[serde(other)]
    Other,
}

/// A bound on what QEMUs of a host get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomLimit {
    /// What is bounded.
    pub resource: Resource,
    /// The owner of the limit, as in a sentence: `the control group /sys/fs/cgroup/machine.slice`. Empty: the host
    /// itself.
    #[serde(deserialize_with = "claim")]
    pub owner: String,
    /// The name of the setting: `memory.max`.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// All that there is.
    pub limit: u64,
    /// The part of `limit` that is in use and cannot be given back.
    pub used: u64,
    /// The part of the rest that others were promised and have not used yet.
    pub promised: u64,
    /// The guests that were promised it.
    #[serde(deserialize_with = "claim")]
    pub promised_to: Vec<String>,
}

/// All bounds on what a QEMU gets on a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The bounds.
    pub limits: Vec<RoomLimit>,
    /// The bounds that could not be read, in words.
    #[serde(deserialize_with = "claim")]
    pub unread: Vec<String>,
}

/// What the copy of a guest takes of its source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyRoom {
    /// RAM of the guest that was never written, and that the kernel allocates as QEMU reads it, in bytes.
    pub holes_bytes: u64,
    /// What the agent takes to know what the target holds, in bytes.
    pub agent_bytes: u64,
    /// What bounds both. What other guests were promised counts where they are being copied, too.
    pub room: Room,
    /// RAM of all other guests that is promised and not allocated yet, in bytes.
    pub promised_bytes: u64,
}

impl Claim for RoomLimit {
    // The fields were bounded when they arrived.
    fn bounded(self) -> Self {
        self
    }
}

/// What a QEMU needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomNeed {
    /// The guest's RAM, in bytes.
    pub ram_bytes: u64,
    /// The RAM of devices, such as graphics cards, in bytes.
    #[serde(default)]
    pub device_bytes: u64,
    /// The size of the huge pages below the guest's RAM, in bytes. `None`: pages of the usual size.
    pub hugepages: Option<u64>,
    /// The number of virtual CPUs.
    pub cpus: u32,
    /// Whether QEMU makes code (TCG).
    pub is_emulated: bool,
    /// Whether QEMU locks the guest's RAM.
    pub locks_ram: bool,
}

impl RoomNeed {
    /// Makes the need of a guest with so much RAM.
    pub fn new(ram_bytes: u64, hugepages: Option<u64>, cpus: u32, accel: Accel) -> RoomNeed {
        let hugepages = hugepages.filter(|page| *page > 0);
        RoomNeed { ram_bytes, device_bytes: 0, hugepages, cpus, is_emulated: accel != Accel::Kvm, locks_ram: false }
    }

    /// Returns the memory in pages of the usual size: what QEMU and the agent need, with the guest's RAM unless huge
    /// pages are below it.
    pub fn memory_bytes(&self) -> u64 {
        let overhead = overhead_bytes(self.ram_bytes, self.cpus).saturating_add(self.device_bytes);
        if self.hugepages.is_some() { overhead } else { self.ram_bytes.saturating_add(overhead) }
    }

    /// Returns how much is needed of a resource, in the resource's unit.
    pub fn of(&self, resource: Resource) -> u64 {
        let emulator = if self.is_emulated { TCG_BYTES } else { 0 };
        match resource {
            Resource::Ram => self.memory_bytes(),
            Resource::Commit => self.memory_bytes().saturating_add(emulator),
            Resource::HugePages { page_bytes } if self.hugepages == Some(page_bytes) => {
                self.ram_bytes.checked_next_multiple_of(page_bytes).unwrap_or(u64::MAX)
            }
            Resource::Tasks => u64::from(self.cpus).saturating_add(THREADS_BESIDE_VCPUS),
            Resource::Addresses => {
                let all = self.ram_bytes.saturating_add(overhead_bytes(self.ram_bytes, self.cpus));
                all.saturating_add(self.device_bytes).saturating_add(emulator).saturating_add(ADDRESSES_BYTES)
            }
            Resource::LockedRam if self.locks_ram => self.ram_bytes,
            Resource::HugePages { .. } | Resource::LockedRam | Resource::Other => 0,
        }
    }
}

impl RoomLimit {
    /// Returns what is left for another QEMU.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used).saturating_sub(self.promised)
    }

    /// Returns whether `needed` does not fit.
    pub fn lacks(&self, needed: u64) -> bool {
        needed > 0 && self.left() < needed
    }

    fn amount(&self, amount: u64) -> String {
        match self.resource {
            Resource::Tasks | Resource::Other => amount.to_string(),
            _ => about_bytes(amount),
        }
    }

    fn noun(&self) -> String {
        match self.resource {
            Resource::Ram | Resource::Commit | Resource::LockedRam | Resource::Addresses | Resource::Other => {
                String::new()
            }
            Resource::HugePages { page_bytes } => format!(" in huge pages of {}", exact_bytes(page_bytes)),
            Resource::Tasks => " threads".into(),
        }
    }

    /// Tells what is left, and what `who` needs: `the control group /a of hostb has 210 MiB left of 360 MiB
    /// (memory.max) and web1 needs 393 MiB`.
    pub fn shortage_text(&self, host: &str, who: &str, needed: u64) -> String {
        let (left, all, noun) = (self.amount(self.left()), self.amount(self.limit), self.noun());
        let mut text = match (self.owner.is_empty(), self.resource) {
            (true, Resource::Ram) => format!("{host} has {left} of RAM left"),
            (true, _) => format!("{host} has {left}{noun} left of {all} ({})", self.name),
            _ => format!("{} of {host} has {left}{noun} left of {all} ({})", self.owner, self.name),
        };
        if self.promised > 0 {
            let shown = self.promised_to.len().min(NAMES_MAX);
            let more = if self.promised_to.len() > shown { " and others" } else { "" };
            let names = self.promised_to[..shown].join(", ");
            text += &format!(" beside {} that {names}{more} may still take", self.amount(self.promised));
        }
        text + &format!(" and {who} needs {}", self.amount(needed))
    }

    /// Returns what to do.
    pub fn cure(&self, needed: u64) -> String {
        let missing = self.amount(needed.saturating_sub(self.left()));
        match (self.resource, self.owner.is_empty()) {
            (Resource::Ram, true) if self.limit < needed => {
                format!("choose a larger host: all its RAM is {}", about_bytes(self.limit))
            }
            (Resource::Ram, true) => format!("free {missing} there: move or stop other guests"),
            (Resource::Ram, false) => format!(
                "raise its {} by {missing} (MemoryMax= or MemoryHigh=, if it is a unit's: `systemctl set-property`), \
                 or move or stop guests \
                 that are in it",
                self.name
            ),
            (Resource::Commit, _) => format!(
                "there: raise vm.overcommit_ratio or add swap for {missing} more, or let the kernel overcommit \
                 (sysctl vm.overcommit_memory=0)"
            ),
            (Resource::HugePages { .. }, _) => format!("raise {} of {} there by {missing}", self.name, self.owner),
            (Resource::Tasks, _) => format!(
                "raise its {} by {missing} (TasksMax=, if it is a unit's), or move or stop guests that are in it",
                self.name
            ),
            (Resource::Addresses, _) => "LimitAS=infinity in the unit of the agent there, and start it again".into(),
            (Resource::LockedRam, _) => {
                "LimitMEMLOCK=infinity in the unit of the agent there, and start it again".into()
            }
            (Resource::Other, _) => "update Skein on this host".into(),
        }
    }
}

impl Room {
    /// Returns the most that there is of a resource: never more than any limit leaves. `None`: nothing bounds it.
    pub fn left(&self, resource: Resource) -> Option<u64> {
        self.limits.iter().filter(|limit| limit.resource == resource).map(RoomLimit::left).min()
    }

    /// Returns the limits that `need` does not fit into, each with what is needed of it.
    pub fn lacking(&self, need: &RoomNeed) -> Vec<(&RoomLimit, u64)> {
        let needs = self.limits.iter().map(|limit| (limit, need.of(limit.resource)));
        needs.filter(|(limit, needed)| limit.lacks(*needed)).collect()
    }
}

/// How a copy fits into its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyFits {
    /// The copy fits with room to spare.
    Well,
    /// The copy fits, but little is left of this limit: so many bytes.
    Barely(RoomLimit, u64),
    /// The copy exceeds this limit.
    Not(RoomLimit),
}

impl CopyRoom {
    /// Returns what the copy makes the kernel allocate, in bytes.
    pub fn needed_bytes(&self) -> u64 {
        self.holes_bytes.saturating_add(self.agent_bytes)
    }

    /// Returns whether the copy fits. Little is left where the copy takes more than it leaves, and it leaves less than
    /// a sixteenth of a limit, or of the host's memory less what other guests were promised.
    pub fn fits(&self) -> CopyFits {
        let needed = self.needed_bytes();
        let bounds = |limit: &&RoomLimit| matches!(limit.resource, Resource::Ram | Resource::Commit);
        let tightest = self.room.limits.iter().filter(bounds).min_by_key(|limit| limit.left());
        let Some(limit) = tightest else { return CopyFits::Well };
        if limit.lacks(needed) {
            return CopyFits::Not(limit.clone());
        }
        for limit in self.room.limits.iter().filter(bounds) {
            let after = limit.left() - needed;
            let promised = if limit.owner.is_empty() { self.promised_bytes } else { 0 };
            if after < needed && after < (limit.limit / LEFT_SHARE_WARN).max(promised) {
                return CopyFits::Barely(limit.clone(), after);
            }
        }
        CopyFits::Well
    }

    /// Tells what is allocated: `copying web1 makes the kernel allocate 3 GiB (2.9 GiB ...)`.
    pub fn allocation_text(&self, guest: &str) -> String {
        let (all, holes, agent) =
            (about_bytes(self.needed_bytes()), about_bytes(self.holes_bytes), about_bytes(self.agent_bytes));
        format!(
            "copying {guest} makes the kernel allocate {all}: {holes} of RAM that it never wrote and that QEMU reads, \
             {agent} for \
             the agent"
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use skein_units::MIB;

    fn limit(resource: Resource, owner: &str, (limit, used, promised): (u64, u64, u64)) -> RoomLimit {
        let (owner, name) = (owner.to_owned(), "memory.max".to_owned());
        RoomLimit { resource, owner, name, limit, used, promised, promised_to: vec!["old".into()] }
    }

    #[test]
    fn a_limit_is_told_with_its_owner() {
        let group = limit(Resource::Ram, "the control group /sys/fs/cgroup/a", (360 * MIB, 44 * MIB, 106 * MIB));
        let told = group.shortage_text("hostb", "web1", 393 * MIB);
        let expect = "the control group /sys/fs/cgroup/a of hostb has 210 MiB left of 360 MiB (memory.max) beside 106 \
                      MiB that \
                      old may still take and web1 needs 393 MiB";
        assert_eq!(told, expect);
        assert!(group.cure(393 * MIB).starts_with("raise its memory.max by 183 MiB (MemoryMax="));
        let tasks = RoomLimit { promised: 0, ..limit(Resource::Tasks, "the control group /a", (40, 30, 0)) };
        assert_eq!(
            tasks.shortage_text("b", "v", 129),
            "the control group /a of b has 10 threads left of 40 (memory.max) and v needs 129"
        );
        let huge = limit(Resource::HugePages { page_bytes: 2 * MIB }, "the control group /a", (8 * MIB, 0, 0));
        assert!(huge.shortage_text("b", "v", 1).contains("8 MiB in huge pages of 2 MiB left"));
    }

    #[test]
    fn what_is_needed_of_each() {
        let plain = RoomNeed::new(4 * GIB, None, 2, Accel::Tcg);
        let overhead = overhead_bytes(4 * GIB, 2);
        assert_eq!(plain.of(Resource::Ram), 4 * GIB + overhead);
        assert_eq!(plain.of(Resource::Commit), 5 * GIB + overhead);
        assert_eq!((plain.of(Resource::Tasks), plain.of(Resource::LockedRam)), (130, 0));
        assert_eq!(plain.of(Resource::HugePages { page_bytes: 2 * MIB }), 0);
        let huge = RoomNeed::new(4 * GIB + 1, Some(2 * MIB), 2, Accel::Kvm);
        assert_eq!(huge.of(Resource::HugePages { page_bytes: 2 * MIB }), 4 * GIB + 2 * MIB);
        assert_eq!(huge.of(Resource::HugePages { page_bytes: GIB }), 0);
        assert!(huge.of(Resource::Ram) < 200 * MIB);
        let with_graphics = RoomNeed { device_bytes: 512 * MIB, ..plain };
        assert_eq!(with_graphics.memory_bytes(), plain.memory_bytes() + 512 * MIB);
        assert_eq!(with_graphics.of(Resource::Addresses), plain.of(Resource::Addresses) + 512 * MIB);
        let locking = RoomNeed { locks_ram: true, ..plain };
        assert_eq!(locking.of(Resource::LockedRam), 4 * GIB);
    }

    #[test]
    fn the_copy_of_a_sparse_guest() {
        let copy = |holes_bytes, promised_bytes, limits: &[RoomLimit]| {
            let room = Room { limits: limits.to_vec(), unread: Vec::new() };
            CopyRoom { holes_bytes, agent_bytes: 0, room, promised_bytes }.fits()
        };
        let host = limit(Resource::Ram, "", (16 * GIB, 9 * GIB, 0));
        let group = limit(Resource::Ram, "the control group /a", (8 * GIB, GIB, 0));
        let both = [host.clone(), group.clone()];
        assert_eq!(copy(0, 16 * GIB, &both), CopyFits::Well);
        assert_eq!(copy(5 * GIB, 0, &both), CopyFits::Well);
        assert_eq!(copy(5 * GIB, 3 * GIB, &both), CopyFits::Barely(host.clone(), 2 * GIB));
        assert_eq!(copy(GIB, 30 * GIB, &both), CopyFits::Well, "it leaves more than it takes");
        assert_eq!(copy(7 * GIB - 1, 0, &both), CopyFits::Barely(host.clone(), 1));
        assert_eq!(copy(7 * GIB + 1, 0, &both), CopyFits::Not(host));
        let tight = limit(Resource::Ram, "the control group /a", (GIB, 0, 0));
        assert_eq!(copy(GIB + 1, 0, &[tight.clone(), group]), CopyFits::Not(tight));
        assert_eq!(copy(GIB, 0, &[]), CopyFits::Well, "nothing is known");
    }

    fn limits() -> impl Strategy<Value = Vec<RoomLimit>> {
        let resource = prop_oneof![
            Just(Resource::Ram),
            Just(Resource::Commit),
            Just(Resource::Tasks),
            Just(Resource::HugePages { page_bytes: 2 * MIB })
        ];
        let one = (resource, any::<(u64, u64, u64)>()).prop_map(|(resource, numbers)| limit(resource, "g", numbers));
        prop::collection::vec(one, 0..6)
    }

    proptest! {
        #[test]
        fn the_room_is_never_more_than_any_limit(limits in limits(), ram in any::<u64>(), cpus in any::<u32>()) {
            let room = Room { limits, unread: Vec::new() };
            let need = RoomNeed::new(ram, None, cpus, Accel::Kvm);
            let lacking = room.lacking(&need);
            for limit in &room.limits {
                let left = room.left(limit.resource).unwrap();
                prop_assert!(left <= limit.limit && left <= limit.limit.saturating_sub(limit.used));
                prop_assert!(u128::from(left) + u128::from(limit.promised) <= u128::from(limit.limit) || left == 0);
                // A need that fits into all limits lacks none, and a need that does not fit is reported.
                let needed = need.of(limit.resource);
                let is_told = lacking.iter().any(|(other, _)| other == &limit);
                prop_assert_eq!(is_told, needed > 0 && limit.left() < needed);
                limit.shortage_text("h", "v", needed);
                limit.cure(needed);
            }
        }
    }
}
