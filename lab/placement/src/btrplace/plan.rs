//! Writes and reads plans, as BtrPlace has them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::action::{Action, Event, What};
use super::error::FileError;
use super::file::parse;
use super::instance::Instance;
use skein_placement::problem::{GuestId, HostId, NOWHERE};
use skein_placement::schedule::{self, ConcurrencyLimits, Job, Network, Port, Power, Traffic};

/// The bytes per second of a port, and the bytes of memory for each second that a migration takes. Any number will do,
/// as there is no network.
const RATE: f64 = 1e6;

/// A guest that is brought to a host, from one second to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The guest that moves.
    pub guest: GuestId,
    /// The host where it is afterwards.
    pub to: HostId,
    /// When the move begins, in seconds.
    pub start: u32,
    /// When the move is done, in seconds.
    pub end: u32,
}

#[derive(Serialize, Deserialize)]
struct Plan {
    actions: Vec<Action>,
}

/// Writes a plan without the `origin`, which is the model of the instance. First nodes boot and VMs end as the
/// constraints ask for; then guests move; then those that stay get what `preserve` wants for them, and nodes are shut
/// down. Times are whole seconds.
///
/// # Panics
///
/// If a move is of a guest or to a host that the problem does not have.
pub fn write_plan(instance: &Instance, moves: &[Move]) -> String {
    let begin = instance.before.iter().map(|action| action.end).max().unwrap_or(0);
    let end = begin + moves.iter().map(|step| u64::from(step.end)).max().unwrap_or(0);
    let mut actions = instance.before.clone();
    let mut at = instance.problem.initial.clone();
    let mut ordered: Vec<&Move> = moves.iter().collect();
    ordered.sort_by_key(|step| step.start);
    // The last move of each guest gives it the amounts that it is to have.
    let last: BTreeMap<GuestId, usize> = ordered.iter().enumerate().map(|(n, step)| (step.guest, n)).collect();
    for (n, step) in ordered.into_iter().enumerate() {
        let from = std::mem::replace(&mut at[step.guest as usize], step.to);
        let start = begin + u64::from(step.start);
        let mut action = Action::new(instance.enter(step.guest, from, step.to), start, begin + u64::from(step.end));
        if last[&step.guest] == n {
            let events = instance.raised(step.guest);
            match action.what {
                // On both nodes the guest has its old amounts until it has left.
                What::MigrateVm { .. } => action.hooks.post = events,
                _ => action.hooks.pre = events,
            }
        }
        actions.push(action);
    }
    for guest in (0..).take(at.len()).filter(|guest| !last.contains_key(guest)) {
        let Some(host) = Some(at[guest as usize]).filter(|host| *host != NOWHERE) else { continue };
        for event in instance.raised(guest) {
            if let Event::Allocate { vm, rc, amount } = event {
                let on = instance.nodes[host as usize];
                actions.push(Action::new(What::Allocate { vm, on, rc, amount }, end, end));
            }
        }
    }
    actions.extend(instance.after.iter().cloned().map(|action| Action {
        start: action.start + end,
        end: action.end + end,
        ..action
    }));
    serde_json::to_string(&Plan { actions }).expect("numbers and texts can be written")
}

/// Returns the moves of a plan for a [job](Instance::job) of an instance. The times of such a plan are whole seconds.
pub fn moves(plan: &schedule::Plan) -> Vec<Move> {
    let of = |step: &schedule::Step| {
        let (start, end) = (step.start.round() as u32, step.end.round() as u32);
        let to = step.action.ends().1;
        step.action.guest().filter(|_| to != NOWHERE).map(|guest| Move { guest, to, start, end })
    };
    plan.steps.iter().filter_map(of).collect()
}

/// Reads where a plan of an instance leaves each guest.
///
/// # Errors
///
/// [`FileError`] if the text is not a plan, or not one of this instance.
pub fn read_plan(text: &str, instance: &Instance) -> Result<Vec<HostId>, FileError> {
    let Plan { actions } = parse(text)?;
    let hosts: BTreeMap<u32, HostId> = instance.nodes.iter().copied().zip(0..).collect();
    let guests: BTreeMap<u32, GuestId> = instance.vms.iter().copied().zip(0..).collect();
    let mut ordered: Vec<(usize, &Action)> = actions.iter().enumerate().collect();
    ordered.sort_by_key(|(_, action)| action.end);
    let mut at = instance.problem.initial.clone();
    for (n, action) in ordered {
        let (vm, to) = match action.what {
            What::BootVm { vm, on: to } | What::MigrateVm { vm, to, .. } | What::ResumeVm { vm, to, .. } => (vm, to),
            _ => continue,
        };
        let path = || format!("actions[{n}]");
        let guest = guests.get(&vm);
        let guest = guest.ok_or_else(|| FileError::meaning(path(), format!("VM {vm} is none that runs in the end")))?;
        let host = hosts.get(&to);
        let host = host.ok_or_else(|| FileError::meaning(path(), format!("node {to} is none that can host VMs")))?;
        at[*guest as usize] = *host;
    }
    Ok(at)
}

impl Instance {
    /// Returns the job that brings each guest to the host where it is to be, given by `goal`. Each move takes as long
    /// as the instance says: for that, a node sends one guest at a time and receives one at a time. Guests have all
    /// that `preserve` wants for them from the start, and rules hold on the way whether they are continuous or not.
    /// Whatever this allows, BtrPlace allows, too.
    pub fn job(&self, goal: &[HostId]) -> Job {
        let seconds: Vec<f64> = self.seconds.iter().map(|seconds| f64::from(*seconds)).collect();
        let traffic = |seconds: &f64| Traffic { memory_bytes: seconds * RATE, ..Traffic::default() };
        let hosts = self.problem.hosts.len();
        Job {
            problem: self.problem.clone(),
            goal: goal.to_vec(),
            traffic: seconds.iter().map(traffic).collect(),
            stop_seconds: vec![0.0; seconds.len()],
            start_seconds: seconds,
            network: Network {
                ports: vec![Port { outward: RATE, inward: RATE, switch: None }; hosts],
                switches: Vec::new(),
            },
            limits: vec![ConcurrencyLimits { incoming: 1, outgoing: 1, total: 2 }; hosts],
            power: vec![Power::ALWAYS; hosts],
            running: Vec::new(),
        }
    }

    /// Returns the action by which a guest comes to a host.
    fn enter(&self, guest: GuestId, from: HostId, to: HostId) -> What {
        let (vm, to) = (self.vms[guest as usize], self.nodes[to as usize]);
        match (self.nodes.get(from as usize), self.sleeping.get(&guest)) {
            (Some(from), _) => What::MigrateVm { vm, from: *from, to },
            (None, Some(from)) => What::ResumeVm { vm, from: *from, to },
            (None, None) => What::BootVm { vm, on: to },
        }
    }

    /// Returns the events that give a guest other amounts than it has.
    fn raised(&self, guest: GuestId) -> Vec<Event> {
        let of_guest = self.allocate.range((guest, 0)..=(guest, usize::MAX));
        of_guest
            .map(|((_, resource), amount)| Event::Allocate {
                vm: self.vms[guest as usize],
                rc: self.resources[*resource].clone(),
                amount: *amount,
            })
            .collect()
    }
}
