//! Reports all that can be said of a guest and the hosts, for people and as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::{Cause, Placing, Reason, Relaxation, Step, conflict, relax};
use crate::cluster::model::HostState;
use crate::cluster::{Compiled, RuleKind, agree};
use skein_placement::problem::{GuestId, HostId, NOWHERE};

/// A reason against a host, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Objection {
    /// The rule's name as the user gave it, or the resource's name.
    pub cause: String,
    /// Whether the reason is hard: no cost can outweigh it. A soft reason has a cost.
    pub hard: bool,
    /// The cost of a soft reason, in microseconds of traffic.
    pub cost: Option<i64>,
    /// The reason, in the words of the cluster file.
    pub what: String,
}

/// A host, and all that speaks against it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostObjections {
    /// The host's name.
    pub host: String,
    /// Whether no hard reason speaks against the host.
    pub accepts: bool,
    /// The reasons, hard ones first.
    pub objections: Vec<Objection>,
}

/// The fewest rules and resources that rule out every host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConflictReport {
    /// The causes, as in [`Objection::cause`].
    pub causes: Vec<String>,
    /// Whether no smaller set would do. `false`: none of these can be left out, but a different set may be smaller.
    pub is_smallest: bool,
}

/// A change that would help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RelaxationReport {
    /// The host on which the guest would fit then.
    pub host: String,
    /// What to do. All steps are needed.
    pub steps: Vec<String>,
    /// The cost; see [`Relaxation::cost`].
    pub cost: i64,
}

/// A resource of which there is enough, but in too small pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fragmented {
    /// The name of the resource.
    pub resource: String,
    /// How much the guest needs.
    pub needs: String,
    /// How much is free in all on the hosts where rules allow the guest.
    pub free: String,
    /// The most that is free on one host.
    pub largest: String,
    /// The host with the most.
    pub largest_on: String,
    /// Moves of other guests that would make room.
    pub remedy: Option<RelaxationReport>,
}

/// All that can be said of a guest and the hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The guest's name.
    pub guest: String,
    /// The name of the guest's host. `None`: the guest is on no host.
    pub on: Option<String>,
    /// The name of the guest's host if the guest is on none because that host is offline.
    pub lost: Option<String>,
    /// All hosts, with what speaks against each.
    pub hosts: Vec<HostObjections>,
    /// The conflict that rules out every host. `None`: a host accepts the guest.
    pub conflict: Option<ConflictReport>,
    /// What would help, the cheapest first. It is empty if a host accepts the guest.
    pub relaxations: Vec<RelaxationReport>,
    /// Whether not all moves of other guests were tried: see
    /// [`Relaxations::is_cut_short`](super::Relaxations::is_cut_short).
    pub is_cut_short: bool,
    /// The resources of which there is enough, but not on one host. It is empty if a host accepts the guest.
    pub fragmented: Vec<Fragmented>,
}

/// Explains why a guest can or cannot be on each host, with all other guests where the assignment has them.
pub fn explain(compiled: &Compiled, assignment: &[HostId], guest: GuestId) -> Explanation {
    let names = &compiled.names;
    let mut placing = Placing::new(compiled, assignment, guest);
    let against: Vec<Vec<Reason>> =
        (0..compiled.problem.hosts.len() as HostId).map(|host| placing.against(host)).collect();
    let hard = |reasons: &Vec<Reason>| -> BTreeSet<Cause> {
        reasons.iter().filter(|reason| reason.is_hard).map(|reason| reason.cause).collect()
    };
    let found = conflict(&against.iter().map(hard).collect::<Vec<_>>());
    let helps = relax(compiled, assignment, guest);
    let fragmented = match found {
        Some(_) => fragmented(compiled, &mut placing, &against, &helps.all),
        None => Vec::new(),
    };
    let objections = |reasons: &Vec<Reason>| reasons.iter().map(|reason| objection(compiled, reason)).collect();
    Explanation {
        guest: names.guest(guest).to_owned(),
        on: names.hosts.get(assignment[guest as usize] as usize).cloned(),
        lost: lost(compiled, assignment, guest),
        hosts: (0..)
            .zip(&against)
            .map(|(host, reasons)| HostObjections {
                host: names.host(host).to_owned(),
                accepts: reasons.iter().all(|reason| !reason.is_hard),
                objections: objections(reasons),
            })
            .collect(),
        conflict: found.map(|found| ConflictReport {
            causes: found.causes.iter().map(|cause| cause_text(compiled, *cause)).collect(),
            is_smallest: found.is_smallest,
        }),
        relaxations: helps.all.iter().map(|relaxation| relaxation_report(compiled, relaxation)).collect(),
        is_cut_short: helps.is_cut_short,
        fragmented,
    }
}

/// Returns what speaks against a guest on a host, with all other guests where the assignment has them.
pub fn objections(compiled: &Compiled, assignment: &[HostId], guest: GuestId, host: HostId) -> Vec<Objection> {
    let against = Placing::new(compiled, assignment, guest).against(host);
    against.iter().map(|reason| objection(compiled, reason)).collect()
}

/// Puts a reason into words.
pub(super) fn objection(compiled: &Compiled, reason: &Reason) -> Objection {
    Objection {
        cause: cause_text(compiled, reason.cause),
        hard: reason.is_hard,
        cost: (!reason.is_hard).then_some(reason.amount),
        what: reason.what.clone(),
    }
}

fn cause_text(compiled: &Compiled, cause: Cause) -> String {
    match cause {
        Cause::Rule(rule) => compiled.names.rules[rule as usize].to_string(),
        Cause::Capacity(row) => compiled.names.rows[row].to_string(),
    }
}

/// Returns the name of the guest's host if the guest is on none because that host is offline.
pub(super) fn lost(compiled: &Compiled, assignment: &[HostId], guest: GuestId) -> Option<String> {
    let names = &compiled.names;
    let is_nowhere = assignment[guest as usize] == NOWHERE;
    names.lost(guest).filter(|_| is_nowhere).map(|host| names.host(host).to_owned())
}

fn relaxation_report(compiled: &Compiled, relaxation: &Relaxation) -> RelaxationReport {
    RelaxationReport {
        host: compiled.names.host(relaxation.host).to_owned(),
        steps: relaxation.steps.iter().map(|step| step_text(compiled, step)).collect(),
        cost: relaxation.cost,
    }
}

fn step_text(compiled: &Compiled, step: &Step) -> String {
    let names = &compiled.names;
    let rule = |rule: u32| &names.rules[rule as usize];
    match *step {
        Step::Lift(id) => match rule(id).kind {
            RuleKind::Among => format!("remove {}", rule(id)),
            _ => format!("make {} soft", rule(id)),
        },
        Step::Widen(id, host) => match rule(id).kind {
            RuleKind::Match => {
                format!("set the property '{}' so that {} allows '{}'", rule(id).property, rule(id), names.host(host))
            }
            RuleKind::Writes => format!("raise 'bandwidth', or have '{}' write less", rule(id).name),
            RuleKind::Stays => format!("set 'optimize: true' of '{}'", rule(id).name),
            _ => format!("let {} allow '{}'", rule(id), names.host(host)),
        },
        Step::Open { host, ref back } => match names.states[host as usize] {
            HostState::Offline if !back.is_empty() => {
                let come = agree(back, "comes", "come");
                format!("bring '{}' online ({} {come} back with it)", names.host(host), names.list(back))
            }
            HostState::Offline => format!("bring '{}' online", names.host(host)),
            _ => format!("end the maintenance of '{}'", names.host(host)),
        },
        Step::Add(host, row, amount) => {
            let row = &names.rows[row];
            format!("add {} of {row} to '{}'", row.text(amount), names.host(host))
        }
        Step::Move { guest, from, to } => {
            format!("move '{}' from '{}' to '{}'", names.guest(guest), names.host(from), names.host(to))
        }
    }
}

/// Returns the resources that are short on every host where the guest might be, but not on all of these together.
fn fragmented(
    compiled: &Compiled,
    placing: &mut Placing,
    against: &[Vec<Reason>],
    helps: &[Relaxation],
) -> Vec<Fragmented> {
    let names = &compiled.names;
    let is_move = |step: &Step| matches!(step, Step::Move { .. });
    let remedy = helps.iter().find(|relaxation| relaxation.steps.iter().all(is_move));
    let is_fence = |reason: &Reason| reason.is_hard && matches!(reason.cause, Cause::Rule(_));
    let open: Vec<HostId> =
        (0..).zip(against).filter(|(_, reasons)| !reasons.iter().any(is_fence)).map(|(host, _)| host).collect();
    let mut all = Vec::new();
    for (row, name) in names.rows.iter().enumerate() {
        let needs = placing.demand(row);
        let free: BTreeMap<HostId, i64> = open.iter().map(|host| (*host, placing.free(*host, row).max(0))).collect();
        let Some((on, largest)) = free.iter().max_by_key(|(host, free)| (**free, std::cmp::Reverse(**host))) else {
            continue;
        };
        let total: i64 = free.values().sum();
        if *largest < needs && total >= needs {
            all.push(Fragmented {
                resource: name.to_string(),
                needs: name.text(needs),
                free: name.text(total),
                largest: name.text(*largest),
                largest_on: names.host(*on).to_owned(),
                remedy: remedy.map(|remedy| relaxation_report(compiled, remedy)),
            });
        }
    }
    all
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.on, &self.lost) {
            (Some(host), _) => writeln!(f, "'{}' is on '{host}'", self.guest)?,
            (None, Some(lost)) => writeln!(f, "'{}' is on no host: '{lost}' is offline", self.guest)?,
            (None, None) => writeln!(f, "'{}' is on no host", self.guest)?,
        }
        for host in &self.hosts {
            writeln!(f, "{}: {}", host.host, if host.accepts { "yes" } else { "no" })?;
            for objection in &host.objections {
                writeln!(f, "  {} {}", if objection.hard { "no:" } else { "rather not:" }, objection.what)?;
            }
        }
        if let Some(conflict) = &self.conflict {
            let which = if conflict.is_smallest { "the fewest" } else { "some, of which none can be left out," };
            writeln!(f, "{which} that rule out every host: {}", conflict.causes.join(", "))?;
        }
        for piece in &self.fragmented {
            writeln!(f, "{piece}")?;
        }
        for (n, relaxation) in self.relaxations.iter().enumerate() {
            writeln!(f, "{} {relaxation}", if n == 0 { "what helps:" } else { "        or:" })?;
        }
        if self.is_cut_short {
            writeln!(f, "not all moves of others were tried: there are too many")?;
        }
        Ok(())
    }
}

impl fmt::Display for RelaxationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; it fits on '{}' then", self.steps.join(", "), self.host)
    }
}

impl fmt::Display for Fragmented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fragmented { resource, needs, free, largest, largest_on, .. } = self;
        write!(
            f,
            "{resource}: fits nowhere, though {free} are free in total; it needs {needs}, and the largest piece is \
             {largest} on '{largest_on}'"
        )?;
        match &self.remedy {
            Some(remedy) => write!(f, "; to make room, {remedy}"),
            None => Ok(()),
        }
    }
}
