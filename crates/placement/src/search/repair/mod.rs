//! Mends what is broken, with few moves.
//!
//! A round takes out who breaks something, as few as can be, and brings them back one by one, the hardest first: where
//! nothing breaks, or else in the place of others, who are out then (an ejection chain; Glover: "Ejection chains,
//! reference structures and alternating path methods for traveling salesman problems", Discrete Applied Mathematics 65,
//! 1996). Who was hard to bring back is not put out again lightly (guided ejection search; Nagata, Bräysy: "A powerful
//! route minimization heuristic for the vehicle routing problem with time windows", Operations Research Letters 37,
//! 2009). Whoever could be where it was goes back there. When nothing is broken, or rounds are in vain, those that
//! moved change places for what costs less.
//!
//! A step looks at some guests and hosts, and at all hosts only if those do not do.

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

/// Rounds in vain after which no more is mended.
const ROUNDS_MAX: u32 = 30;
/// How often a unit may fail to find a place in a round.
const FAILS_MAX: u32 = 12;
/// Hosts that are looked at before all are.
const HOSTS_TRIED_FIRST: usize = 48;
/// Hosts that could be cleared for a unit, and most units that have to leave for it.
const CLEARED_HOSTS_MAX: usize = 24;
const VICTIMS_MAX: usize = 4;
/// Most units that are brought back in a round, and for each that is taken out at first: else it could go on for long
/// where there is no way.
const ROUND_UNITS_MAX: usize = 200;
const ROUND_EACH: usize = 20;
/// How many steps a round's begin is worth: it looks at all guests.
const GUESTS_PER_STEP: u64 = 32;

/// Mends an assignment, to one that breaks as little as could be found, with as few moves as could be found for that,
/// and what costs least of these; it is never worse than the one to begin with. The same seed and steps give the same.
///
/// # Panics
/// The assignment is none of the problem.
pub fn repair(problem: &Problem, from: &[HostId], seed: u64, steps: u64) -> Vec<HostId> {
    let mut repair = Repair::new(problem, from, seed);
    repair.run(steps);
    repair.assignment().to_vec()
}

/// How good an assignment is, less being better: the first first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    broken: i64,
    /// As the judge counts them.
    moves: usize,
    cost: i64,
}

/// A repair under way: for those who have a deadline.
pub struct Repair<'a> {
    partial: Partial<'a>,
    dice: Dice,
    /// Units that are out, the hardest first: how often each failed, and how large it is.
    pool: BinaryHeap<(u32, u64, UnitId)>,
    is_pooled: Vec<bool>,
    fails: Vec<u32>,
    /// Units for which there is no place this round.
    hopeless: Vec<UnitId>,
    phase: Phase,
    /// How many more units are brought back in this round.
    left: usize,
    rounds_in_vain: u32,
    best: Vec<HostId>,
    best_rank: Rank,
}

enum Phase {
    /// Between two rounds.
    Begin,
    /// In one.
    Fill,
    /// The state is the best.
    Polish(polish::Polish),
}

impl<'a> Repair<'a> {
    /// Begins at an assignment.
    ///
    /// # Panics
    /// The assignment is none of the problem.
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

    /// Goes on by so many steps. Whether more may help.
    pub fn run(&mut self, steps: u64) -> bool {
        let mut left = steps;
        while left > 0 {
            let Some(spent) = self.step() else { return false };
            left = left.saturating_sub(spent);
        }
        true
    }

    /// Whether it is done with what is broken: more steps only lower the cost, and few moves.
    pub fn is_mended(&self) -> bool {
        matches!(self.phase, Phase::Polish(_))
    }

    /// How good the best is.
    pub fn score(&self) -> Score {
        match self.phase {
            Phase::Polish(_) => self.partial.state.score(),
            _ => Score { broken: self.best_rank.broken, cost: self.best_rank.cost },
        }
    }

    /// The best: a host for each guest.
    pub fn assignment(&self) -> &[HostId] {
        match self.phase {
            Phase::Polish(_) => self.partial.state.assignment(),
            _ => &self.best,
        }
    }

    /// How many steps it was worth; none if there is nothing to do.
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

    /// Puts those for whom there is no place where that breaks least, and keeps what is best. Who was nowhere may stay
    /// so; nobody is stopped.
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

    /// Takes a unit out, wherever its guests are, unless it is already.
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

    /// The best host where a unit breaks nothing: where it was, or of some, or of all.
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

    /// Where a unit's guests were at first.
    fn homes(&self, unit: UnitId) -> Vec<HostId> {
        let initial = &self.partial.problem().initial;
        let guests = self.partial.units[unit as usize].iter();
        let mut homes: Vec<HostId> =
            guests.map(|guest| initial[*guest as usize]).filter(|host| *host != NOWHERE).collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }

    /// A host that a unit could come to if others left, who are the cheapest to put out.
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

    /// Who would have to leave a host for a unit to come there, and how dear that is.
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

    /// Who should leave a host first for less to be broken there: who ends most of it, and of these who has moved
    /// anyway, or is the smallest; and by how much less is broken then.
    fn victim(&mut self, host: HostId, but: Option<UnitId>) -> Option<(UnitId, i64)> {
        let guests: Vec<GuestId> = self.partial.state.guests_on(host).to_vec();
        let mut best = None;
        for guest in guests {
            let unit = self.partial.unit_of(guest);
            // A unit that is not whole is to be taken out before.
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
