//! For which guests a planned move waits that are still to leave its target: those whose room it needs, or that a rule
//! keeps apart from it, and no others. Nothing waits for a guest that is held, as nobody knows when that leaves.

use std::borrow::Cow;
use std::collections::BTreeSet;

use skein_placement::problem::{GuestId, HostId};
use skein_placement_model::cluster::Compiled;
use skein_placement_model::cluster::model::Cluster;
use skein_placement_model::explain::{Cause, Placing};

use crate::leaving::Leaving;
use crate::planner::{PlanError, PlanRequest, Planned, PlannedMove, plan_sound};
use crate::seen::MEMORY;
use crate::sound::compile_sound;

/// Of more guests than this that leave a host it is not seen which of them a move needs gone: it waits for all.
const LEAVING_TRIED_MAX: usize = 16;
/// How often a plan is made anew without hosts that guests are held on.
const BARRED_ROUNDS: usize = 6;

/// Makes a plan. The same request gives the same plan. What placement cannot use is left out.
///
/// # Errors
///
/// The cluster has no such guest, or cannot be planned whatever is left out.
pub fn plan(request: &PlanRequest) -> Result<Planned, PlanError> {
    // It is large, and seldom changed.
    let mut request = Cow::Borrowed(request);
    let mut all: Vec<Barred> = Vec::new();
    for round in 1.. {
        let mut planned = plan_sound(&request)?;
        all.iter().for_each(|barred| barred.tell(&mut planned.moves));
        let barred = tell_waits(&request.cluster, &request.leaving, &mut planned.moves)?;
        if round >= BARRED_ROUNDS {
            leave(&barred, &mut planned.moves);
        } else if !barred.is_empty() {
            barred.iter().for_each(|barred| barred.apply(&mut request.to_mut().cluster));
            all.extend(barred);
            continue;
        }
        return Ok(planned);
    }
    unreachable!("the last round returns")
}

/// A host that a guest cannot go to before a guest that is held has left it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Barred {
    vm: String,
    host: String,
    by: String,
}

impl Barred {
    /// Keeps the guest off the host.
    fn apply(&self, cluster: &mut Cluster) {
        let all = || cluster.hosts.iter().map(|host| host.name.clone()).collect();
        let of = cluster.guests.iter().find(|guest| guest.name == self.vm);
        let mut owners: Vec<String> = of.and_then(|guest| guest.owners.clone()).unwrap_or_else(all);
        owners.retain(|host| *host != self.host);
        let guests = cluster.guests.iter_mut().filter(|guest| guest.name == self.vm);
        guests.for_each(|guest| guest.owners = Some(owners.clone()));
    }

    /// Says so where it counts as a matter of owners.
    fn tell(&self, moves: &mut [PlannedMove]) {
        let owners = format!("'{}' is not among the possible owners of '{}'", self.host, self.vm);
        for of in moves.iter_mut().filter(|of| of.vm == self.vm) {
            of.reason = of.reason.replace(&owners, &self.words());
        }
    }

    fn words(&self) -> String {
        format!("'{0}' is held on its way from there: skein migration switch {0}", self.by)
    }
}

/// Has each move wait for the guests that have to have left its target before. Returns the moves that would have to
/// wait for a guest that is held.
fn tell_waits(cluster: &Cluster, leaving: &[Leaving], moves: &mut [PlannedMove]) -> Result<Vec<Barred>, PlanError> {
    let mut barred = Vec::new();
    if !moves.iter().any(|of| leaving.iter().any(|left| of.to.as_ref() == Some(&left.from))) {
        return Ok(barred);
    }
    let made = compile_sound(&mut cluster.clone());
    let (mut compiled, _) = made.map_err(|error| PlanError::Cluster(Box::new(error)))?;
    let initial = compiled.problem.initial.clone();
    for index in 0..moves.len() {
        let of = &moves[index];
        let Some((guest, to)) = placed(&compiled, of) else { continue };
        let there = leaving.iter().filter(|left| of.to.as_ref() == Some(&left.from) && left.vm != of.vm);
        let mut there: Vec<(GuestId, &Leaving)> =
            there.filter_map(|left| Some((compiled.names.guest_named(&left.vm)?, left))).collect();
        if there.is_empty() {
            continue;
        }
        // It is first tried to leave those that are held.
        there.sort_by_key(|(_, left)| !left.is_held);
        let mut at = initial.clone();
        for (before, other) in (0..).zip(&moves[..index]) {
            // What this plan has leave the host has left only if that is waited for.
            let may_be_there = of.to.as_ref() == Some(&other.from) && !of.waits.contains(&before);
            if let Some((other, host)) = placed(&compiled, other).filter(|_| !may_be_there) {
                at[other as usize] = host;
            }
        }
        let room = compiled.problem.hosts[to as usize].capacity.clone();
        let memory = compiled.names.rows.iter().position(|row| row.name == MEMORY);
        let mut against = |stay: &[(GuestId, &Leaving)]| {
            let (mut at, mut room) = (at.clone(), room.clone());
            for (other, left) in stay {
                at[*other as usize] = to;
                // The cluster has the memory of one that is held taken from the host already.
                if let Some(memory) = memory.filter(|_| left.is_held) {
                    room[memory] += compiled.problem.guests[*other as usize].demand[memory];
                }
            }
            compiled.problem.hosts[to as usize].capacity = room;
            against(&mut compiled, at, guest, to)
        };
        let known = against(&[]);
        let mut needed = if against(&there).is_subset(&known) { Vec::new() } else { there };
        if needed.len() <= LEAVING_TRIED_MAX {
            let mut stay = Vec::new();
            needed.retain(|left| {
                stay.push(*left);
                let is_free = against(&stay).is_subset(&known);
                if !is_free {
                    stay.pop();
                }
                !is_free
            });
        }
        compiled.problem.hosts[to as usize].capacity = room;
        let of = &mut moves[index];
        of.after = needed.iter().map(|(_, left)| left.vm.clone()).collect();
        if let Some((_, held)) = needed.iter().find(|(_, left)| left.is_held) {
            barred.push(Barred { vm: of.vm.clone(), host: held.from.clone(), by: held.vm.clone() });
        }
    }
    Ok(barred)
}

/// Leaves guests where they are that would have to wait for a guest that is held.
fn leave(barred: &[Barred], moves: &mut [PlannedMove]) {
    for barred in barred {
        for of in moves.iter_mut().filter(|of| of.vm == barred.vm && of.to.as_ref() == Some(&barred.host)) {
            of.reason = format!("{}: {}", barred.host, barred.words());
            (of.to, of.after) = (None, Vec::new());
        }
    }
}

fn placed(compiled: &Compiled, of: &PlannedMove) -> Option<(GuestId, HostId)> {
    let to = of.to.as_ref()?;
    let host = compiled.names.hosts.iter().position(|name| name == to)?;
    Some((compiled.names.guest_named(&of.vm)?, host as HostId))
}

/// Returns what rules out a host for a guest, with all others where they are then.
fn against(compiled: &mut Compiled, mut at: Vec<HostId>, guest: GuestId, host: HostId) -> BTreeSet<Cause> {
    at[guest as usize] = compiled.problem.initial[guest as usize];
    // Who has left has left: no memory is held any more where it was.
    compiled.problem.initial.clone_from(&at);
    Placing::new(compiled, &at, guest).against(host).into_iter().filter(|of| of.is_hard).map(|of| of.cause).collect()
}
