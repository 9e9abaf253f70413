//! Units: guests that have to be together and so move as one.

use crate::problem::{GuestId, Problem, Strength};

/// The index of a unit.
pub(super) type UnitId = u32;

/// Returns the guests of each unit, and the unit of each guest. A guest without such a rule is a unit by itself.
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
        // The leader is the first guest of its unit.
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
