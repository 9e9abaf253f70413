//! Changes an assignment so that it survives more failures, guest by guest.

use super::{Survival, Survive, survive};
use crate::problem::{GuestId, HostId, NOWHERE, Problem};
use crate::score::Score;
use crate::state::State;

/// The most times that failures are evaluated, and the largest cluster (guests times hosts) for which they are: this is
/// some seconds' work.
const LOOKS_MAX: usize = 2_000;
const SIZE_MAX: usize = 4_000;

/// Moves single guests for as long as this makes more failures survived and breaks no more. The result is never worse.
///
/// # Panics
///
/// If the assignment is not one of the problem.
pub fn mend(problem: &Problem, assignment: &[HostId], hosts: &[HostId], rule: Survive) -> Vec<HostId> {
    let mut at = assignment.to_vec();
    if problem.guests.len() * problem.hosts.len() > SIZE_MAX {
        return at;
    }
    let mut state = State::new(problem, &at);
    let mut best = rank(&survive(problem, &at, hosts, rule.failures));
    let mut looks = LOOKS_MAX / hosts.len().max(1);
    while best.0 > 0 {
        let mut found: Option<((usize, usize), Score, GuestId, HostId)> = None;
        for guest in (0..problem.guests.len() as GuestId).filter(|guest| at[*guest as usize] != NOWHERE) {
            for to in hosts.iter().copied().filter(|to| *to != at[guest as usize]) {
                let score = state.shift_score(guest, to);
                if looks == 0 || score.broken > 0 || !problem.may_own(guest, to) || !state.fits(guest, to, None) {
                    continue;
                }
                looks -= 1;
                let mut then = at.clone();
                then[guest as usize] = to;
                let told = rank(&survive(problem, &then, hosts, rule.failures));
                let is_best = found.is_none_or(|(least, cost, ..)| (told, score) < (least, cost));
                if told < best && is_best {
                    found = Some((told, score, guest, to));
                }
            }
        }
        let Some((told, _, guest, to)) = found else { break };
        (best, at[guest as usize]) = (told, to);
        state.shift(guest, to);
    }
    at
}

/// Returns how many failures are not survived, and how many guests find no room. Less is better, and the first number
/// counts first.
fn rank(survival: &Survival) -> (usize, usize) {
    (survival.failures.len(), survival.failures.iter().map(|failure| failure.left.len()).sum())
}
