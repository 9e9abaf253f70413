//! Reads everything that bounds a QEMU on this host at this moment: the host's memory, control groups, the kernel's
//! commit limit, limits of processes.

use std::path::Path;

use skein_host::{ControlGroups, GroupResource};
use skein_inventory::{Resource, Room, RoomLimit};

use super::qemu_memory::{HUGETLB_RESERVATION_MARK, QemuMemory};
use crate::host_files::kilobytes;

/// Holds the bit of the capability to lock memory beyond RLIMIT_MEMLOCK: CAP_IPC_LOCK of linux/capability.h.
const CAP_IPC_LOCK: u64 = 1 << 14;
/// Bounds the nodes: any kernel is built for fewer (MAX_NUMNODES).
const NODES_MAX: u32 = 1023;

/// The memory that another guest was promised.
#[derive(Clone, Debug)]
pub(super) struct Promise {
    /// The VM that has the promise.
    pub(super) name: String,
    /// The promised memory in pages of the usual size, in bytes.
    pub(super) bytes: u64,
    /// How much of that memory a kernel that does not overcommit has not accounted yet, in bytes: RAM of QEMU's own is
    /// accounted when QEMU starts (`accountable_mapping` of the kernel's mm/mmap.c), a shared memfd page by page.
    pub(super) commit_bytes: u64,
    /// The promised huge pages that the kernel has reserved, in bytes. Their control group is charged when they are
    /// touched.
    pub(super) huge_bytes: u64,
    /// The control groups of the VM's QEMU.
    pub(super) groups: ControlGroups,
}

/// The texts of files that the limits are read from.
pub(super) struct ProcFiles {
    pub(super) meminfo: String,
    /// The text of `/proc/sys/vm/overcommit_memory`.
    pub(super) overcommit: String,
    /// The text of `/proc/self/limits`.
    pub(super) limits: String,
    /// The text of `/proc/self/status`.
    pub(super) status: String,
}

impl ProcFiles {
    pub(super) fn read() -> ProcFiles {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        ProcFiles {
            meminfo: text("/proc/meminfo"),
            overcommit: text("/proc/sys/vm/overcommit_memory"),
            limits: text("/proc/self/limits"),
            status: text("/proc/self/status"),
        }
    }
}

/// Control groups in which there has to be room.
#[derive(Clone, Copy)]
pub(super) struct ChargedGroups<'a> {
    pub(super) groups: &'a ControlGroups,
    pub(super) charged: Charged,
}

/// What is charged to control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charged {
    /// What a QEMU in these groups takes.
    Qemu,
    /// Memory that the agent touches first, for a QEMU in other groups.
    Agent,
}

/// Returns the control groups in which there has to be room for a QEMU with `ram_bytes` of RAM. The kernel charges
/// memory of a process to that process's groups, whoever writes to it (`process_vm_writev`), but memory in files to the
/// groups of who touches it first: at a target that is the agent.
pub(super) fn charged<'a>(
    agent: &'a ControlGroups,
    qemu: Option<(&'a ControlGroups, &QemuMemory)>,
    ram_bytes: u64,
) -> Vec<ChargedGroups<'a>> {
    // A QEMU that is not there yet will be started in the agent's groups.
    let Some((groups, held)) = qemu.filter(|(groups, _)| *groups != agent) else {
        return vec![ChargedGroups { groups: agent, charged: Charged::Qemu }];
    };
    let mut all = vec![ChargedGroups { groups, charged: Charged::Qemu }];
    if held.private_ram(ram_bytes) < ram_bytes {
        all.push(ChargedGroups { groups: agent, charged: Charged::Agent });
    }
    all
}

/// Returns the room that a QEMU in these groups has, which has `held` of what it needs already: nobody has to find that
/// again. The QEMU's own groups are first. `kept` is RAM of guests that left, which is let go of if it is
/// needed.
pub(super) fn room(
    files: &ProcFiles,
    groups: &[ChargedGroups<'_>],
    promises: &[Promise],
    held: &QemuMemory,
    kept: u64,
) -> Room {
    let mut room = Room::default();
    let all = |of: fn(&Promise) -> u64, is_in: &dyn Fn(&Promise) -> bool| {
        let those = promises.iter().filter(|promise| of(promise) > 0 && is_in(promise));
        let names: Vec<String> = those.clone().map(|promise| promise.name.clone()).collect();
        (those.map(of).fold(0, u64::saturating_add), names)
    };
    let memory = |field: &str| kilobytes(&files.meminfo, field);
    let mut host = |resource, name: &str, limit: Option<u64>, used: Option<u64>, of: fn(&Promise) -> u64| {
        let (Some(limit), Some(used)) = (limit, used) else {
            return room.unread.push(format!("{name} in /proc/meminfo"));
        };
        let (promised, promised_to) = all(of, &|_| true);
        let (owner, name) = (String::new(), name.to_owned());
        room.limits.push(RoomLimit { resource, owner, name, limit, used, promised, promised_to });
    };
    let total = memory("MemTotal");
    let used = total.zip(memory("MemAvailable")).map(|(total, free)| total.saturating_sub(free).saturating_sub(kept));
    host(Resource::Ram, "MemAvailable", total, used, |promise| promise.bytes);
    match files.overcommit.trim() {
        "2" => {
            let used = memory("Committed_AS").map(|used| used.saturating_sub(kept));
            host(Resource::Commit, "CommitLimit", memory("CommitLimit"), used, |promise| promise.commit_bytes);
        }
        "0" | "1" => {}
        odd => room.unread.push(format!("/proc/sys/vm/overcommit_memory, which says {odd:?}")),
    }
    let (mut known, mut of_agent) = (Vec::new(), Vec::new());
    for ChargedGroups { groups, charged } in groups {
        let (limits, unread) = groups.limits();
        room.unread.extend(unread);
        for limit in limits {
            let which = (limit.dir.clone(), limit.file.clone());
            let is_of_agent_only = *charged == Charged::Agent;
            if known.contains(&which) || is_of_agent_only && limit.resource == GroupResource::Tasks {
                continue;
            }
            known.push(which);
            let is_in = |promise: &Promise| promise.groups.is_in(&limit.dir);
            let nothing = || (0, Vec::new());
            let (resource, used, (promised, promised_to)) = match limit.resource {
                GroupResource::Memory => {
                    (Resource::Ram, limit.used.saturating_sub(kept), all(|promise| promise.bytes, &is_in))
                }
                GroupResource::HugePages { page_bytes } => {
                    // What is reserved is in use already.
                    let is_reserved = limit.file.contains(HUGETLB_RESERVATION_MARK);
                    let promised = if is_reserved { nothing() } else { all(|promise| promise.huge_bytes, &is_in) };
                    (Resource::HugePages { page_bytes }, limit.used, promised)
                }
                GroupResource::Tasks => (Resource::Tasks, limit.used, nothing()),
            };
            let (owner, name) = (format!("the control group {}", limit.dir.display()), limit.file);
            let limit = RoomLimit { resource, owner, name, limit: limit.limit, used, promised, promised_to };
            match is_of_agent_only {
                true => of_agent.push(limit),
                false => room.limits.push(limit),
            }
        }
    }
    if let Some(limit) = nodes(Path::new("/sys/devices/system/node"), &files.status, kept) {
        let (promised, promised_to) = all(|promise| promise.bytes, &|_| true);
        room.limits.push(RoomLimit { promised, promised_to, ..limit });
    }
    for limit in &mut room.limits {
        limit.used = limit.used.saturating_sub(held.of_limit(limit));
    }
    room.limits.extend(of_agent);
    room.unread.sort();
    room.unread.dedup();
    room.limits.extend(of_process(&files.limits, &files.status));
    room
}

/// Returns the memory of the NUMA nodes that the agent, and so its QEMUs, may use, if those are not all nodes
/// (cpuset.mems of a control group, numactl). The kernel kills for lack of their memory, too. `dir` is the directory of
/// all nodes.
fn nodes(dir: &Path, status: &str, kept: u64) -> Option<RoomLimit> {
    let list = |text: &str| -> Option<Vec<u32>> {
        let ranges = text.trim().split(',').map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?.min(NODES_MAX))
        });
        Some(ranges.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
    };
    let allowed = list(status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?)?;
    let with_memory = list(&std::fs::read_to_string(dir.join("has_memory")).ok()?)?;
    if with_memory.iter().all(|node| allowed.contains(node)) {
        return None;
    }
    let (mut limit, mut used) = (0u64, 0u64);
    for node in with_memory.iter().filter(|node| allowed.contains(node)) {
        // The line is `Node 0 MemFree:  123 kB`.
        let text = std::fs::read_to_string(dir.join(format!("node{node}/meminfo"))).ok()?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.split_once(name)?.1.strip_prefix(':'));
            line.and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024))
        };
        let cache = field(" Active(file)")?.saturating_add(field(" Inactive(file)")?);
        let free = field(" MemFree")?.saturating_add(cache - cache / 2);
        limit = limit.saturating_add(field(" MemTotal")?);
        used = used.saturating_add(field(" MemTotal")?.saturating_sub(free));
    }
    let shown: Vec<String> = allowed.iter().filter(|node| with_memory.contains(node)).map(u32::to_string).collect();
    let owner = format!("NUMA node {}, which is all that the agent may use,", shown.join(", "));
    let used = used.saturating_sub(kept);
    let (name, promised, promised_to) = ("cpuset.mems".to_owned(), 0, Vec::new());
    Some(RoomLimit { resource: Resource::Ram, owner, name, limit, used, promised, promised_to })
}

/// Returns the limits of each process, which a QEMU inherits from the agent.
fn of_process(limits: &str, status: &str) -> Vec<RoomLimit> {
    let caps = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let may_lock = caps.unwrap_or(0) & CAP_IPC_LOCK != 0;
    let bound = |line: &str, name: &str, resource| {
        let soft = limits.lines().find_map(|text| text.strip_prefix(line))?.split_whitespace().next()?;
        // `unlimited` is no number.
        let (owner, name) = ("a process of the agent".to_owned(), name.to_owned());
        let (limit, used, promised, promised_to) = (soft.parse().ok()?, 0, 0, Vec::new());
        Some(RoomLimit { resource, owner, name, limit, used, promised, promised_to })
    };
    let locked = bound("Max locked memory", "RLIMIT_MEMLOCK", Resource::LockedRam).filter(|_| !may_lock);
    bound("Max address space", "RLIMIT_AS", Resource::Addresses).into_iter().chain(locked).collect()
}

/// Returns the nearest group with a limit of memory, for a sentence; `None`: only the host's memory bounds it.
pub(crate) fn memory_owner(groups: &ControlGroups) -> Option<String> {
    let (limits, _) = groups.limits();
    let nearest = limits.into_iter().find(|limit| limit.resource == GroupResource::Memory)?;
    Some(shown(&nearest.dir))
}

fn shown(dir: &Path) -> String {
    format!("the control group {}", dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn files(overcommit: &str) -> ProcFiles {
        ProcFiles {
            meminfo:
                "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\nCommitLimit: 4194304 kB\nCommitted_AS: 1048576 kB\n"
                    .into(),
            overcommit: overcommit.into(),
            limits: "Max locked memory         65536                65536                bytes     \n\
                     Max address space         unlimited            unlimited            bytes     \n"
                .into(),
            status: "CapEff:\t0000000000000000\n".into(),
        }
    }

    fn promise(name: &str, bytes: u64) -> Promise {
        Promise { name: name.into(), bytes, commit_bytes: bytes, huge_bytes: 0, groups: ControlGroups::default() }
    }

    #[test]
    fn the_host_itself_and_what_it_promised() {
        let room =
            room(&files("0\n"), &[], &[promise("old", GIB), promise("full", 0)], &QemuMemory::default(), GIB / 2);
        let [ram, locked] = &room.limits[..] else { panic!("{room:?}") };
        assert_eq!((ram.limit, ram.used, ram.promised, ram.left()), (8 * GIB, 3 * GIB / 2, GIB, 11 * GIB / 2));
        assert_eq!((&ram.promised_to[..], room.unread.len()), (&["old".to_owned()][..], 0));
        assert_eq!((locked.resource, locked.limit), (Resource::LockedRam, 65536));
    }

    #[test]
    fn the_groups_that_count_are_those_that_are_charged() {
        let (agent, mut elsewhere) = (ControlGroups::default(), ControlGroups::default());
        elsewhere.unread.push("these are others".into());
        let private = QemuMemory { private: GIB / 4, committed: 5 * GIB, ..QemuMemory::default() };
        let shared = QemuMemory { files: 4 * GIB, ..QemuMemory::default() };
        let huge = QemuMemory { huge: 4 * GIB, ..QemuMemory::default() };
        let of = |qemu: Option<(&ControlGroups, &QemuMemory)>| -> Vec<(bool, Charged)> {
            let all = charged(&agent, qemu, 4 * GIB);
            all.iter().map(|of| (*of.groups == agent, of.charged)).collect()
        };
        assert_eq!(of(None), [(true, Charged::Qemu)], "it will be started there");
        assert_eq!(of(Some((&agent, &private))), [(true, Charged::Qemu)]);
        assert_eq!(of(Some((&elsewhere, &private))), [(false, Charged::Qemu)], "the agent writes, QEMU is charged");
        for held in [&shared, &huge] {
            assert_eq!(of(Some((&elsewhere, held))), [(false, Charged::Qemu), (true, Charged::Agent)]);
        }
    }

    #[test]
    fn what_a_qemu_has_already_is_not_to_be_found_again() {
        let held = QemuMemory { private: GIB, committed: GIB / 2, ..QemuMemory::default() };
        let room = room(&files("2\n"), &[], &[], &held, 0);
        assert_eq!((room.left(Resource::Ram), room.left(Resource::Commit)), (Some(7 * GIB), Some(7 * GIB / 2)));
    }

    #[test]
    fn a_kernel_that_does_not_overcommit() {
        let room = room(&files("2\n"), &[], &[promise("old", GIB)], &QemuMemory::default(), 0);
        assert_eq!(room.left(Resource::Commit), Some(2 * GIB), "what is not touched of a memfd is not committed");
        let private = Promise { commit_bytes: 0, ..promise("old", GIB) };
        let room = super::room(&files("2\n"), &[], &[private], &QemuMemory::default(), 0);
        assert_eq!(room.left(Resource::Commit), Some(3 * GIB), "RAM of QEMU's own is committed when QEMU has it");
        let odd = super::room(&ProcFiles { meminfo: String::new(), ..files("x") }, &[], &[], &QemuMemory::default(), 0);
        assert_eq!((odd.left(Resource::Ram), odd.unread.len()), (None, 2), "{odd:?}");
    }

    #[test]
    fn numa_nodes_that_are_out_of_bounds_have_no_room() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("has_memory"), "0-1\n").unwrap();
        for node in [0, 1] {
            let text = format!(
                "Node {node} MemTotal:  8388608 kB\nNode {node} MemFree:  2097152 kB\nNode {node} Active:  7 kB\n\
                 Node {node} Active(file):  1048576 kB\nNode {node} Inactive(file):  1048576 kB\n"
            );
            std::fs::create_dir(dir.path().join(format!("node{node}"))).unwrap();
            std::fs::write(dir.path().join(format!("node{node}/meminfo")), text).unwrap();
        }
        let of = |allowed: &str| nodes(dir.path(), &format!("Mems_allowed_list:\t{allowed}\n"), 0);
        let limit = of("1").unwrap();
        assert_eq!((limit.limit, limit.left()), (8 * GIB, 3 * GIB), "half of the page cache counts");
        assert!(limit.owner.contains("NUMA node 1,"));
        assert_eq!(
            (of("0-1"), of("0-63"), of("odd"), nodes(Path::new("/nonexistent"), "", 0)),
            (None, None, None, None)
        );
    }

    #[test]
    fn who_may_lock_memory_is_not_bound() {
        let all = "CapEff:\t000001ffffffffff\n";
        assert_eq!(of_process(&files("0").limits, all), []);
        let addresses = of_process("Max address space   4096 4096 bytes\n", all);
        assert_eq!((addresses[0].resource, addresses[0].limit), (Resource::Addresses, 4096));
    }
}
