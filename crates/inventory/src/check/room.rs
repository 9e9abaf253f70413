//! What stands against a migration for lack of room, at either end.

use skein_units::{KIB, about_bytes, exact_bytes};

use super::checker::Checker;
use crate::facts::{GuestFacts, HostFacts};
use crate::problem::{Problem, ProblemKind, Severity};
use crate::room::{CopyFits, CopyRoom, Resource, Room, RoomLimit, RoomNeed};

impl Checker<'_> {
    /// Checks that both ends have the room that the guest and its copy need.
    pub(super) fn room(&mut self) {
        for problem in problems(self.guest, self.source, self.target) {
            self.add(problem.kind, problem.severity, problem.what, problem.cure);
        }
    }
}

/// Returns all that `guest` lacks at the target, and what its copy lacks at the source.
fn problems(guest: &GuestFacts, source: &HostFacts, target: &HostFacts) -> Vec<Problem> {
    let need = guest.need();
    let mut problems = Vec::new();
    problems.extend(pool(guest, target));
    let room = room(target);
    for (limit, needed) in room.lacking(&need) {
        let kind = match limit.resource {
            Resource::HugePages { .. } => ProblemKind::Hugepages,
            Resource::Tasks => ProblemKind::Tasks,
            _ => ProblemKind::Ram,
        };
        let what = limit.shortage_text(&target.name, &guest.name, needed);
        problems.push(Problem { kind, severity: Severity::Blocks, what, cure: limit.cure(needed) });
    }
    problems.extend(unread(&target.name, &room));
    if let Some(copy) = &guest.copy {
        problems.extend(unread(&source.name, &copy.room));
    }
    problems.extend(copy(guest, source));
    if target.cpus < guest.cpus {
        let what = format!("{} has fewer CPUs ({}) than {} ({})", target.name, target.cpus, guest.name, guest.cpus);
        let cure = "it would run slower there: choose a larger host".into();
        problems.push(Problem { kind: ProblemKind::CpusFew, severity: Severity::Warns, what, cure });
    }
    problems
}

/// Returns what bounds a QEMU at a host. An agent that does not report its limits reports its memory at least.
fn room(host: &HostFacts) -> Room {
    host.room.clone().unwrap_or_else(|| {
        let ram = RoomLimit {
            resource: Resource::Ram,
            owner: String::new(),
            name: "MemAvailable".into(),
            limit: host.ram_bytes,
            used: host.ram_bytes.saturating_sub(host.ram_available_bytes),
            promised: 0,
            promised_to: Vec::new(),
        };
        Room { limits: vec![ram], unread: Vec::new() }
    })
}

/// Checks the target's pool of huge pages. The kernel reserves what running guests were promised of the pool, so that
/// is not free.
fn pool(guest: &GuestFacts, target: &HostFacts) -> Option<Problem> {
    let page = guest.hugepages.filter(|page| *page > 0)?;
    let pages = guest.ram_bytes.div_ceil(page);
    let pool = target.hugepages.iter().find(|pool| pool.page_bytes == page);
    let (total, free) = pool.map_or((0, 0), |pool| (pool.total, pool.free));
    if free >= pages {
        return None;
    }
    let what =
        format!("{} has {free} free huge pages of {} and {} needs {pages}", target.name, exact_bytes(page), guest.name);
    let (wanted, kib) = (total.saturating_add(pages - free), page / KIB);
    let cure = format!("there: echo {wanted} > /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages");
    Some(Problem { kind: ProblemKind::Hugepages, severity: Severity::Blocks, what, cure })
}

fn unread(host: &str, room: &Room) -> Option<Problem> {
    if room.unread.is_empty() {
        return None;
    }
    let what = format!("not all that limits a guest on {host} can be read: {}", room.unread.join("; "));
    let cure = "make sure that there is room: a limit that nobody sees has the kernel kill a guest".into();
    Some(Problem { kind: ProblemKind::RoomUnknown, severity: Severity::Warns, what, cure })
}

/// Checks what the copy makes the source allocate.
fn copy(guest: &GuestFacts, source: &HostFacts) -> Option<Problem> {
    let copy = guest.copy.as_ref()?;
    let why = copy.allocation_text(&guest.name);
    let (kind, severity, what, cure) = match copy.fits() {
        CopyFits::Well => return None,
        CopyFits::Barely(limit, left) => {
            let whose = if limit.owner.is_empty() { source.name.clone() } else { format!("{} there", limit.owner) };
            let what =
                format!("{why}: {} of {} would be left to {whose} then", about_bytes(left), about_bytes(limit.limit));
            let cure =
                "move guests away one at a time, smaller ones first, so that what they leave is free for the next";
            (ProblemKind::SourceRam, Severity::Warns, what, cure.to_owned())
        }
        CopyFits::Not(limit) => {
            let what = format!("{}; {why}", limit.shortage_text(&source.name, "the copy", copy.needed_bytes()));
            (ProblemKind::SourceRam, Severity::Blocks, what, limit.cure(copy.needed_bytes()))
        }
    };
    Some(Problem { kind, severity, what, cure })
}

/// Returns why a guest is not copied, as one sentence. `None`: there is room for the copy.
pub fn refused_copy(copy: &CopyRoom, host: &str, who: &str) -> Option<String> {
    let CopyFits::Not(limit) = copy.fits() else { return None };
    let needed = copy.needed_bytes();
    Some(format!(
        "{} ({}): {}",
        limit.shortage_text(host, "the copy", needed),
        copy.allocation_text(who),
        limit.cure(needed)
    ))
}

/// The error that there is no room for a QEMU. As text it is one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {cure}")]
pub struct NoRoom {
    /// The limit that is in the way.
    pub what: String,
    /// What to do.
    pub cure: String,
}

/// Returns why a QEMU is not let in. `None`: there is room for it.
pub fn refusal(room: &Room, need: &RoomNeed, host: &str, who: &str) -> Option<NoRoom> {
    let lacking = room.lacking(need);
    let (limit, needed) = lacking.first()?;
    Some(NoRoom { what: limit.shortage_text(host, who, *needed), cure: limit.cure(*needed) })
}

#[cfg(test)]
pub(super) mod tests {
    use crate::check::world::Case;
    use crate::check::world::group_of;
    use crate::problem::ProblemKind as K;
    use crate::problem::Severity::{Blocks, Warns};
    use crate::room::{CopyRoom, Resource, Room};
    use skein_units::{GIB, MIB};

    pub(in crate::check) const CASES: &[Case] = &[
        (|w| w.target.cpus = 1, K::CpusFew, Warns, &["hostb has fewer CPUs (1) than web1 (2)"]),
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
    ];
}
