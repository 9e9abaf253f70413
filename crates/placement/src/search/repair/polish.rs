//! Reduces the moves and the cost of an assignment once all that can be mended is mended.

use super::partial::Partial;
use crate::dice::Dice;
use crate::problem::{HostId, NOWHERE};
use crate::score::Score;
use crate::search::units::UnitId;

/// How many times all moved units are gone through.
const SWEEPS: usize = 4;
/// After this many steps in vain for each moved unit, the polish ends.
const IDLE_MAX: u64 = 2000;
/// How many units are looked at to find one from the same host.
const LOOKS: usize = 16;

/// A unit, and the host that it goes to.
type Shift = (UnitId, HostId);

/// Changes the places of units that moved or are new.
pub(super) struct Polish {
    /// The units that are not where they were.
    away: Vec<UnitId>,
    idle: u64,
}

impl Polish {
    pub(super) fn new(partial: &Partial) -> Polish {
        Polish { away: away(partial), idle: 0 }
    }

    /// Does one try. Returns whether there may be more to gain.
    pub(super) fn step(&mut self, partial: &mut Partial, dice: &mut Dice) -> bool {
        if self.away.is_empty() || self.idle > IDLE_MAX * self.away.len() as u64 {
            return false;
        }
        self.idle += 1;
        let unit = *dice.pick(&self.away);
        let shifts = self.draw(partial, dice, unit).unwrap_or_default();
        if try_shifts(partial, &shifts) {
            self.idle = 0;
            let of_these = shifts.iter().map(|(unit, _)| *unit).filter(|unit| is_away(partial, *unit));
            self.away.retain(|unit| shifts.iter().all(|(other, _)| other != unit));
            self.away.extend(of_these);
        }
        true
    }

    /// Draws a change that could be better: a unit goes to another host, or changes places with another moved unit, or
    /// a unit that did not move leaves its host for one or two that did.
    fn draw(&self, partial: &Partial, dice: &mut Dice, unit: UnitId) -> Option<Vec<Shift>> {
        let at = partial.place(unit)?;
        let any = dice.below(partial.problem().hosts.len()) as HostId;
        let kind = dice.below(4);
        if kind == 0 {
            return Some(vec![(unit, any)]);
        }
        if kind == 1 {
            let other = *dice.pick(&self.away);
            return (other != unit).then_some(vec![(unit, partial.place(other)?), (other, at)]);
        }
        let home = home(partial, unit)?;
        let guests = partial.state.guests_on(home);
        let other = partial.unit_of(*guests.get(dice.below(guests.len()))?);
        let to = if dice.chance(0.5) { at } else { any };
        let mut shifts = vec![(unit, home), (other, to)];
        if kind == 3 {
            let second = (0..LOOKS).map(|_| *dice.pick(&self.away));
            let comes_too =
                |second: &UnitId| ![unit, other].contains(second) && self::home(partial, *second) == Some(home);
            shifts.extend(second.into_iter().find(comes_too).map(|second| (second, home)));
        }
        Some(shifts)
    }
}

/// Returns the units that are not where they were.
fn away(partial: &Partial) -> Vec<UnitId> {
    (0..partial.units.len() as UnitId).filter(|unit| is_away(partial, *unit)).collect()
}

/// Returns whether a unit is on one host that is not where it was.
fn is_away(partial: &Partial, unit: UnitId) -> bool {
    partial.place(unit).is_some_and(|at| home(partial, unit) != Some(at))
}

/// Returns the host of a unit if all of its guests were there at first.
fn home(partial: &Partial, unit: UnitId) -> Option<HostId> {
    let mut homes = partial.units[unit as usize].iter().map(|guest| partial.problem().initial[*guest as usize]);
    let first = homes.next().filter(|home| *home != NOWHERE)?;
    homes.all(|home| home == first).then_some(first)
}

/// Moves units back to where they were if they fit there, or if they fit after changing places with a unit that is
/// there instead.
pub(super) fn take_back(partial: &mut Partial) {
    for _ in 0..SWEEPS {
        let mut any = false;
        let away = away(partial);
        for &unit in &away {
            let Some(home) = home(partial, unit) else { continue };
            let Some(at) = partial.place(unit).filter(|at| *at != home) else { continue };
            if try_shifts(partial, &[(unit, home)]) {
                any = true;
                continue;
            }
            let others: Vec<UnitId> =
                partial.state.guests_on(home).iter().map(|guest| partial.unit_of(*guest)).collect();
            let is_there = |other: &UnitId| partial.place(*other) == Some(home) && partial.moves(*other, home) > 0;
            let mut others = others.into_iter().filter(is_there).collect::<Vec<_>>().into_iter();
            any |= others.any(|other| try_shifts(partial, &[(unit, home), (other, at)]));
        }
        if !any {
            return;
        }
    }
}

/// Applies shifts if the result breaks less, or else needs fewer moves, or else costs less.
fn try_shifts(partial: &mut Partial, shifts: &[Shift]) -> bool {
    let mut score = Score::default();
    let mut moves = 0;
    let mut back: Vec<Shift> = Vec::new();
    for &(unit, to) in shifts {
        let Some(from) = partial.place(unit) else { break };
        moves += partial.moves(unit, to) as i64 - partial.moves(unit, from) as i64;
        score += partial.shift(unit, to);
        back.push((unit, from));
    }
    let is_better = back.len() == shifts.len() && (score.broken, moves, score.cost) < (0, 0, 0);
    if !is_better {
        for (unit, from) in back.into_iter().rev() {
            partial.shift(unit, from);
        }
    }
    is_better
}
