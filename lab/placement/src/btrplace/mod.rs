//! The files of BtrPlace (<https://github.com/btrplace/scheduler>, module `json`). An instance is a model (what there
//! is, and what runs where) and constraints. A plan is a list of actions.
//!
//! | in BtrPlace | here |
//! |---|---|
//! | node that is online, or has to be in the end | host |
//! | VM that runs in the end | guest; nowhere so far if it is ready or sleeping |
//! | `shareableResource` | resource |
//! | `spread`, `gather`, `among` | group |
//! | `fence`, `ban`, `root`, `quarantine`, a node that has to be `offline`, an `among` or `splitAmong` that is decided | owners |
//! | `preserve` | demand |
//! | `overbook`, `resourceCapacity` of one node | capacity |
//! | `runningCapacity` of one node | capacity of a resource of which each guest uses 1 |
//! | `split` of single VMs | group |
//!
//! An `among` is decided if it is `continuous` and all its VMs that run are in one of its parts: BtrPlace would never
//! let them leave this part. The same is true of a continuous `gather`. What cannot be expressed here is an error that
//! names the constraint: `lonely`, `split` of several VMs each, capacities that several nodes share, and all
//! constraints on when VMs move. Nodes about which the instance says nothing are neither booted nor shut down. Each
//! move costs 1.

mod action;
mod constraint;
mod error;
mod file;
mod instance;
mod plan;
mod rules;
mod sets;
mod states;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use error::FileError;
pub use instance::Instance;
pub use plan::{Move, moves, read_plan, write_plan};

use file::{File, parse};
use rules::Rules;
use sets::{BITS_MAX, Sets};
use skein_placement::problem::HostId;
use states::States;

/// Reads an instance.
///
/// # Errors
///
/// [`FileError`] if the text is not an instance, or its constraints contradict each other or cannot be expressed here.
pub fn read(text: &str) -> Result<Instance, FileError> {
    let File { model, constraints } = parse(text)?;
    let states = States::new(&model.mapping, &constraints)?;
    let mut instance = Instance::new(&states);
    instance.read_views(&model.views, &states)?;
    instance.read_actions(&model.attributes.nodes, &model.attributes.vms, &states);
    let hosts: BTreeMap<u32, HostId> = instance.nodes.iter().copied().zip(0..).collect();
    let sets = Sets::new(states.nodes.keys().map(|node| (*node, hosts.get(node).copied())).collect(), BITS_MAX);
    Rules::new(&mut instance, &states, sets).read(&constraints)?;
    instance.problem.check()?;
    Ok(instance)
}
