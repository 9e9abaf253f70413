//! What stands against a migration for lack of room, at either end.

use skein_units::{KIB, about_bytes, exact_bytes};

use crate::facts::{GuestFacts, HostFacts};
use crate::problem::{Problem, ProblemKind, Severity};
use crate::room::{CopyFits, CopyRoom, Resource, Room, RoomLimit, RoomNeed};

/// All that `guest` lacks at the target, and what its copy lacks at the source.
pub(crate) fn problems(guest: &GuestFacts, source: &HostFacts, target: &HostFacts) -> Vec<Problem> {
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

/// What bounds a QEMU at a host. An agent that does not tell its limits tells its memory at least.
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

/// The target's pool of huge pages. What running guests were promised of it is reserved by the kernel, and not free.
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

/// What the copy makes the source allocate.
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

/// Why a guest is not copied, as one sentence; none: there is room for that.
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

/// There is no room for a QEMU. As text it is one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {cure}")]
pub struct NoRoom {
    /// Which limit is in the way.
    pub what: String,
    /// What to do.
    pub cure: String,
}

/// Why a QEMU is not let in; none: there is room for it.
pub fn refusal(room: &Room, need: &RoomNeed, host: &str, who: &str) -> Option<NoRoom> {
    let lacking = room.lacking(need);
    let (limit, needed) = lacking.first()?;
    Some(NoRoom { what: limit.shortage_text(host, who, *needed), cure: limit.cure(*needed) })
}
