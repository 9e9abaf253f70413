//! Returns what this host says of itself, and of the way to another host.

use std::path::PathBuf;

use skein_dataplane::{NetworkProblem, SessionSnapshot};
use skein_forecast::wire_bits_per_s;
use skein_inventory::check::{Problem, ProblemKind, Severity};
use skein_inventory::facts::{GuestFiles, HostFacts};
use skein_inventory::printable;

use super::refusal::WORDS_BYTES_MAX;
use crate::migrations::Capacity;
use crate::probe::ProbeStore;
use crate::read_facts;
use crate::room::HostRoom;
use crate::vms::Vms;

/// Returns the problems on the way to a host, as its sessions found them.
pub(super) fn network_problems(sessions: &[SessionSnapshot], host: &str) -> Vec<Problem> {
    let faults = sessions.iter().filter(|session| session.peer == host).flat_map(|session| &session.problems);
    let problem = |fault: &NetworkProblem| Problem {
        kind: match fault {
            NetworkProblem::NicsLeftOut { .. } => ProblemKind::NicsUnused,
            NetworkProblem::LargePacketsLost { .. } => ProblemKind::LargePacketsLost,
        },
        severity: Severity::Warns,
        // The names of the other end's NICs are that end's word.
        what: printable(fault.what(host), WORDS_BYTES_MAX * 2),
        cure: printable(fault.cure(), WORDS_BYTES_MAX * 2),
    };
    faults.map(problem).collect()
}

/// Returns the facts of a host, for a guest with these files.
pub(crate) fn host_facts(
    name: &str,
    vms: &Vms,
    rooms: &HostRoom,
    inquiry: &crate::migrations::Inquiry,
    qemu: Option<PathBuf>,
    files: &GuestFiles,
    probes: &ProbeStore,
) -> HostFacts {
    let none = skein_inventory::facts::MigrationSlots { limit: 0, used: 0 };
    let capacity = inquiry.capacity();
    let stopping =
        || Capacity { incoming: none, outgoing: none, kept_ram_bytes: 0, journal: Err("the agent stops".into()) };
    let Capacity { incoming, outgoing, kept_ram_bytes, journal } = capacity.unwrap_or_else(stopping);
    let qemu = qemu.as_deref();
    let room = rooms.room();
    let mut facts = read_facts::host(read_facts::HostQuestion {
        name,
        qemu,
        files,
        vms,
        kept_ram_bytes,
        room,
        incoming,
        outgoing,
        journal,
        closed: rooms.closed(),
    });
    for nic in facts.nics.iter_mut().filter(|nic| nic.speed_bits_per_s.is_none()) {
        nic.speed_bits_per_s = probes.nic_bits_per_s(&nic.name).map(wire_bits_per_s);
    }
    facts
}
