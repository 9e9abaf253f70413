//! Guests that have to be together, and so move as one: a unit.

use crate::problem::{GuestId, Problem, Strength};

/// Index of a unit.
pub(super) type UnitId = u32;

/// Guests by which of them have to be together, and the unit of each.
pub(super) fn units(problem: &Problem, members: &[Vec<GuestId>]) -> (Vec<Vec<GuestId>>, Vec<UnitId>) {
    let mut leader: Vec<GuestId> = (0..problem.guests.len() as GuestId).collect();
    fn find(leader: &mut [GuestId], mut guest: GuestId) -> GuestId {
        while leader[guest as usize] != guest {
            leader[guest as usize] = leader[leader[guest as usize] as usize];
            guest = leader[guest as usize];
        }
        guest
    }
    for (group, members) in problem.groups.iter().zip(members) {
        if group.together == Some(Strength::Hard) {
            for two in members.windows(2) {
                let (one, other) = (find(&mut leader, two[0]), find(&mut leader, two[1]));
                leader[one.max(other) as usize] = one.min(other);
            }
        }
    }
    let (mut units, mut unit_of) = (Vec::<Vec<GuestId>>::new(), Vec::<UnitId>::new());
    for guest in 0..problem.guests.len() as GuestId {
        // Who leads is the first of its unit.
        let first = find(&mut leader, guest);
        if first == guest {
            unit_of.push(units.len() as UnitId);
            units.push(vec![guest]);
        } else {
            unit_of.push(unit_of[first as usize]);
            units[unit_of[first as usize] as usize].push(guest);
        }
    }
    (units, unit_of)
}
