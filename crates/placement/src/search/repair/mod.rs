//! Repairs what is broken, with few moves.
//!
//! A round takes out the guests that break something, as few as possible. It brings them back one by one, the hardest
//! first. A guest goes where nothing breaks, or else takes the place of other guests, which are out then (an ejection
//! chain; Glover: "Ejection chains, reference structures and alternating path methods for traveling salesman problems",
//! Discrete Applied Mathematics 65, 1996). A guest that was hard to bring back is not put out again lightly (guided
//! ejection search; Nagata, Bräysy: "A powerful route minimization heuristic for the vehicle routing problem with time
//! windows", Operations Research Letters 37, 2009). Every guest that could be where it was goes back there. When
//! nothing is broken, or rounds are in vain, the guests that moved change places to lower the cost.
//!
//! A step looks at some guests and hosts, and at all hosts only if those do not suffice.

mod partial;
mod polish;
mod reduce;
#[cfg(test)]
mod tests;

use std::collections::BinaryHeap;

use partial::Partial;

use super::units::UnitId;
use crate::dice::Dice;
use crate::problem::{GuestId, HostId, NOWHERE, Problem};
use crate::score::Score;
use crate::verdict::moves;

/// After this many rounds in vain the repair ends.
const ROUNDS_MAX: u32 = 30;
/// How often a unit may fail to find a place in a round.
const FAILS_MAX: u32 = 12;
/// How many hosts are tried before all hosts are.
const HOSTS_TRIED_FIRST: usize = 48;
/// How many hosts are considered for clearing, and the most units that may have to leave for one unit.
const CLEARED_HOSTS_MAX: usize = 24;
const VICTIMS_MAX: usize = 4;
/// The most units that are brought back in a round: a constant, and a number for each unit that is taken out at first.
/// Without a limit a round could go on for long where there is no solution.
const ROUND_UNITS_MAX: usize = 200;
const ROUND_EACH: usize = 20;
/// The begin of a round looks at all guests: this many of them count as a step.
const GUESTS_PER_STEP: u64 = 32;

/// Repairs an assignment. The result breaks as little as could be found; of such assignments it has the fewest moves
/// that could be found, and of these the lowest cost. It is never worse than `from`. The same seed and steps give the
/// same result.
///
/// # Panics
///
/// If the assignment is not one of the problem.
pub fn repair(problem: &Problem, from: &[HostId], seed: u64, steps: u64) -> Vec<HostId> {
    let mut repair = Repair::new(problem, from, seed);
    repair.run(steps);
    repair.assignment().to_vec()
}

/// How good an assignment is. Less is better, and the first field counts first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    broken: i64,
    /// The number of moves, as the judge counts them.
    moves: usize,
    cost: i64,
}

/// A repair under way, for callers with a deadline.
pub struct Repair<'a> {
    partial: Partial<'a>,
    dice: Dice,
    /// The units that are out, the hardest first: how often each failed, its size, and its index.
    pool: BinaryHeap<(u32, u64, UnitId)>,
    is_pooled: Vec<bool>,
    fails: Vec<u32>,
    /// Units for which there is no place in this round.
    hopeless: Vec<UnitId>,
    phase: Phase,
    /// How many more units may be brought back in this round.
    left: usize,
    rounds_in_vain: u32,
    best: Vec<HostId>,
    best_rank: Rank,
}

enum Phase {
    /// Between two rounds.
    Begin,
    /// Within a round: units are brought back.
    Fill,
    /// Lowers moves and cost; the state is the best assignment.
    Polish(polish::Polish),
}

impl<'a> Repair<'a> {
    /// Begins a repair at an assignment.
    ///
    /// # Panics
    ///
    /// If the assignment is not one of the problem.
    pub fn new(problem: &'a Problem, from: &[HostId], seed: u64) -> Repair<'a> {
        let partial = Partial::new(problem, from);
        Repair {
            fails: vec![0; partial.units.len()],
            is_pooled: vec![false; partial.units.len()],
            best_rank: rank(&partial),
            best: from.to_vec(),
            partial,
            dice: Dice::new(seed),
            pool: BinaryHeap::new(),
            hopeless: Vec::new(),
            phase: Phase::Begin,
            left: 0,
            rounds_in_vain: 0,
        }
    }

    /// Continues for `steps` steps. Returns whether more steps may help.
    pub fn run(&mut self, steps: u64) -> bool {
        let mut left = steps;
        while left > 0 {
            let Some(spent) = self.step() else { return false };
            left = left.saturating_sub(spent);
        }
        true
    }

    /// Returns whether the repair is done with what is broken: more steps only lower the cost and save a few moves.
    pub fn is_mended(&self) -> bool {
        matches!(self.phase, Phase::Polish(_))
    }

    /// Returns the score of the best assignment.
    pub fn score(&self) -> Score {
        match self.phase {
            Phase::Polish(_) => self.partial.state.score(),
            _ => Score { broken: self.best_rank.broken, cost: self.best_rank.cost },
        }
    }

    /// Returns the best assignment: the host of each guest.
    pub fn assignment(&self) -> &[HostId] {
        match self.phase {
            Phase::Polish(_) => self.partial.state.assignment(),
            _ => &self.best,
        }
    }

    /// Does one step. Returns how many steps it counts as, or `None` if there is nothing left to do.
    fn step(&mut self) -> Option<u64> {
        let round = 1 + self.best.len() as u64 / GUESTS_PER_STEP;
        match &mut self.phase {
            _ if self.partial.problem().hosts.is_empty() => None,
            Phase::Begin => {
                self.begin();
                Some(round)
            }
            Phase::Fill => match self.pool.pop() {
                Some((.., unit)) => {
                    self.is_pooled[unit as usize] = false;
                    self.bring_back(unit);
                    Some(1)
                }
                None => {
                    self.end();
                    Some(round)
                }
            },
            Phase::Polish(polish) => polish.step(&mut self.partial, &mut self.dice).then_some(1),
        }
    }

    fn begin(&mut self) {
        let rounds_max = if self.best_rank.broken == 0 { 0 } else { ROUNDS_MAX };
        if self.rounds_in_vain > rounds_max {
            self.partial.restore(&self.best);
            self.phase = Phase::Polish(polish::Polish::new(&self.partial));
            return;
        }
        if self.rounds_in_vain > 0 && self.dice.chance(0.5) {
            self.partial.restore(&self.best);
        }
        self.reduce();
        self.left = ROUND_UNITS_MAX + ROUND_EACH * self.pool.len();
        self.phase = Phase::Fill;
    }

    /// Ends a round: puts the units without a place where they break least, and keeps the result if it is the best. A
    /// guest that was nowhere may stay so; a guest that was on a host stays on one.
    fn end(&mut self) {
        for unit in std::mem::take(&mut self.hopeless) {
            for at in 0..self.partial.units[unit as usize].len() {
                let guest = self.partial.units[unit as usize][at];
                let hosts = 0..self.partial.problem().hosts.len() as HostId;
                let was = self.partial.problem().initial[guest as usize];
                let places = (was == NOWHERE).then_some(NOWHERE).into_iter().chain(hosts);
                let least = places.min_by_key(|place| self.partial.state.shift_score(guest, *place));
                self.partial.state.shift(guest, least.expect("there are hosts"));
            }
        }
        polish::take_back(&mut self.partial);
        let rank = rank(&self.partial);
        self.rounds_in_vain += 1;
        if rank < self.best_rank {
            if rank.broken < self.best_rank.broken {
                self.rounds_in_vain = u32::from(rank.broken == 0);
            }
            self.best_rank = rank;
            self.best.copy_from_slice(self.partial.state.assignment());
        }
        self.phase = Phase::Begin;
    }

    /// Takes a unit out, wherever its guests are, unless it is out already.
    fn take_out(&mut self, unit: UnitId) {
        if std::mem::replace(&mut self.is_pooled[unit as usize], true) {
            return;
        }
        for at in 0..self.partial.units[unit as usize].len() {
            let guest = self.partial.units[unit as usize][at];
            self.partial.state.shift(guest, NOWHERE);
        }
        self.pool.push((self.fails[unit as usize], self.partial.size[unit as usize], unit));
    }

    fn bring_back(&mut self, unit: UnitId) {
        if self.left == 0 {
            self.hopeless.push(unit);
            return;
        }
        self.left -= 1;
        if let Some(host) = self.place_for(unit) {
            self.partial.shift(unit, host);
            return;
        }
        let fails = &mut self.fails[unit as usize];
        *fails += 1;
        if fails.is_multiple_of(FAILS_MAX) {
            self.hopeless.push(unit);
        } else if let Some((host, victims)) = self.clearing_for(unit) {
            self.partial.shift(unit, host);
            victims.into_iter().for_each(|victim| self.take_out(victim));
        } else {
            self.take_out_a_group(unit);
            self.take_out(unit);
        }
    }

    /// Returns the best host where a unit breaks nothing: where it was, or else one of some hosts, or else one of all
    /// hosts.
    fn place_for(&mut self, unit: UnitId) -> Option<HostId> {
        let homes = self.homes(unit);
        if let Some(home) =
            homes.iter().find(|home| self.partial.moves(unit, **home) == 0 && self.is_free(unit, **home))
        {
            return Some(*home);
        }
        let hosts = self.partial.problem().hosts.len();
        let some: Vec<HostId> = (0..HOSTS_TRIED_FIRST.min(hosts)).map(|_| self.dice.below(hosts) as HostId).collect();
        let of_some = self.best_of(unit, homes.into_iter().chain(some));
        of_some.or_else(|| self.best_of(unit, 0..hosts as HostId))
    }

    fn best_of(&mut self, unit: UnitId, hosts: impl Iterator<Item = HostId>) -> Option<HostId> {
        let mut best = None;
        for host in hosts.filter(|host| *host != NOWHERE) {
            if !self.partial.may_own(unit, host) || !self.partial.could_fit(unit, host) {
                continue;
            }
            let score = self.partial.shift_score(unit, host);
            let rank = (self.partial.moves(unit, host), score, host);
            if score.broken <= 0 && best.is_none_or(|best| rank < best) {
                best = Some(rank);
            }
        }
        best.map(|(.., host)| host)
    }

    fn is_free(&mut self, unit: UnitId, host: HostId) -> bool {
        self.partial.may_own(unit, host) && self.partial.shift_score(unit, host).broken <= 0
    }

    /// Returns the hosts where a unit's guests were at first.
    fn homes(&self, unit: UnitId) -> Vec<HostId> {
        let initial = &self.partial.problem().initial;
        let guests = self.partial.units[unit as usize].iter();
        let mut homes: Vec<HostId> =
            guests.map(|guest| initial[*guest as usize]).filter(|host| *host != NOWHERE).collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }

    /// Returns a host to which a unit could come if other units left, and those units: the cheapest to put out.
    fn clearing_for(&mut self, unit: UnitId) -> Option<(HostId, Vec<UnitId>)> {
        let mut hosts: Vec<HostId> = (0..self.partial.problem().hosts.len() as HostId).collect();
        hosts.retain(|host| self.partial.may_own(unit, *host));
        let cleared = CLEARED_HOSTS_MAX.min(hosts.len());
        self.dice.shuffle(&mut hosts, cleared);
        hosts.truncate(cleared);
        hosts.extend(self.homes(unit));
        let mut best: Option<(u64, HostId, Vec<UnitId>)> = None;
        for host in hosts {
            if let Some((price, victims)) = self.clear(unit, host)
                && best.as_ref().is_none_or(|(least, ..)| price < *least)
            {
                best = Some((price, host, victims));
            }
        }
        best.map(|(_, host, victims)| (host, victims))
    }

    /// Returns which units would have to leave a host for a unit to come there, and what putting them out costs.
    fn clear(&mut self, unit: UnitId, host: HostId) -> Option<(u64, Vec<UnitId>)> {
        let mut broken = self.partial.shift(unit, host).broken;
        let mut victims = Vec::new();
        while broken > 0 && victims.len() < VICTIMS_MAX {
            let Some((victim, _)) = self.victim(host, Some(unit)) else { break };
            broken += self.partial.shift(victim, NOWHERE).broken;
            victims.push(victim);
        }
        let mut price = self.partial.moves(unit, host) as u64;
        if broken <= 0 {
            for &victim in &victims {
                let is_easy = self.place_for(victim).is_some();
                price += 1 + if is_easy { 0 } else { 2 + u64::from(self.fails[victim as usize]) };
                price += u64::from(self.partial.moves(victim, host) == 0);
            }
        }
        for victim in victims.iter().rev() {
            self.partial.shift(*victim, host);
        }
        self.partial.shift(unit, NOWHERE);
        (broken <= 0).then_some((price, victims))
    }

    /// Returns the unit that should leave a host first so that less is broken there, and by how much less is broken
    /// then. It is the unit that ends most of what is broken, and of such units one that has moved anyway, or the
    /// smallest.
    fn victim(&mut self, host: HostId, but: Option<UnitId>) -> Option<(UnitId, i64)> {
        let guests: Vec<GuestId> = self.partial.state.guests_on(host).to_vec();
        let mut best = None;
        for guest in guests {
            let unit = self.partial.unit_of(guest);
            // A unit whose guests are not all in one place has to be taken out before.
            if Some(unit) == but
                || self.partial.units[unit as usize][0] != guest
                || self.partial.place(unit) != Some(host)
            {
                continue;
            }
            let gain = -self.partial.shift_score(unit, NOWHERE).broken;
            let size = self.partial.size[unit as usize];
            let is_at_home = self.partial.moves(unit, host) == 0;
            let rank = (gain / (1 + i64::from(self.fails[unit as usize])), !is_at_home, u64::MAX - size, unit);
            if gain > 0 && best.is_none_or(|(best, _)| rank > best) {
                best = Some((rank, gain));
            }
        }
        best.map(|((.., unit), gain)| (unit, gain))
    }
}

fn rank(partial: &Partial) -> Rank {
    let Score { broken, cost } = partial.state.score();
    Rank { broken, moves: moves(partial.problem(), partial.state.assignment()), cost }
}
