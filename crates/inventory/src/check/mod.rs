//! Everything that stands against a migration, found before anything is touched.
//!
//! | file | checks |
//! |---|---|
//! | `agents`, `run_state` | what the two agents do now, and why the guest stands still |
//! | `qemu`, `cpu` | whether the target's QEMU and CPU can run the guest |
//! | `qemu_blockers` | what QEMU cannot move |
//! | `files` | whether disks, kernels and files of RAM mean the same at the target |
//! | `networks` | whether the guest's NICs find their networks |
//! | `room` | memory, threads and CPUs at both ends |
//! | `launch` | whether the target's QEMU will be the guest's again |

mod agents;
mod checker;
mod cpu;
mod files;
mod launch;
mod networks;
mod qemu;
mod qemu_blockers;
mod room;
mod run_state;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use self::agents::closed_cure;
use self::checker::Checker;
pub use self::launch::TargetLaunch;
pub use self::qemu::QEMU_OLDEST;
pub use self::room::{NoRoom, refusal, refused_copy};
pub use self::run_state::standstill;
use crate::facts::{GuestFacts, HostFacts, PathFacts};
pub use crate::problem::{Problem, ProblemKind, Severity};

/// The most problems that are reported. Those that block come first.
pub const PROBLEMS_MAX: usize = 256;

/// Returns all that stands against moving `guest` from `source` to `target`, with what blocks first. Empty: nothing
/// does. `paths` are the paths between the two hosts that work.
pub fn check(
    guest: &GuestFacts,
    start: TargetLaunch<'_>,
    source: &HostFacts,
    target: &HostFacts,
    paths: &[PathFacts],
) -> Vec<Problem> {
    let mut check = Checker { guest, source, target, problems: Vec::new() };
    if source.name == target.name {
        // All other problems would be consequences: the name is taken there, the taps are in use...
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
