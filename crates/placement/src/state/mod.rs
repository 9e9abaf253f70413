//! An assignment with its books. The books tell what a shift or a swap would change in time that depends on the
//! resources and rules of the guests concerned, not on the number of hosts and guests.

mod groups;
mod hosts;
mod moves;

use groups::Rules;
use hosts::{Exchange, HostUsage};
use moves::Moves;

use crate::problem::{GuestId, HostId, NOWHERE, Problem, Strength};
use crate::score::{Score, place_broken};

/// The changes that are accepted.
#[derive(Clone, Copy, Debug)]
pub struct Limit<'a> {
    /// The price of each unit of [`Score::broken`] of each host; never below 0.
    pub prices: &'a [f64],
    /// The most by which a change may make the assignment worse.
    pub most: f64,
}

impl Limit<'_> {
    #[inline]
    fn price(self, host: HostId, score: Score) -> f64 {
        score.cost as f64 + self.prices[host as usize] * score.broken as f64
    }
}

/// An assignment with its books.
pub struct State<'a> {
    problem: &'a Problem,
    at: Vec<HostId>,
    on: Vec<Vec<GuestId>>,
    /// The position of each guest in its host's list in `on`.
    slot: Vec<u32>,
    hosts: HostUsage<'a>,
    rules: Rules,
    moves: Moves,
    /// The most that a move of each guest can save, besides what its host costs.
    saves_max: Vec<f64>,
    score: Score,
}

/// Returns the most that rules and group moves can save if a guest moves: one breach of each soft rule, and one move of
/// a group. For an even spread it is one breach in each area, if the guest was missing most there; for groups that are
/// apart all other members, if the guest was alone among them.
pub(crate) fn saves_max(problem: &Problem) -> Vec<f64> {
    let soft = |strength: Strength| match strength {
        Strength::Hard => 0,
        Strength::Soft(weight) => weight,
    };
    let (mut of_groups, mut members) = (vec![0i64; problem.groups.len()], vec![0i64; problem.groups.len()]);
    problem.guests.iter().flat_map(|guest| &guest.groups).for_each(|group| members[*group as usize] += 1);
    for (id, group) in problem.groups.iter().enumerate() {
        let spread = group.spread.map(|spread| spread.strength);
        of_groups[id] += [group.apart, group.together, spread].into_iter().flatten().map(soft).sum::<i64>();
        if let Some(even) = &group.even {
            of_groups[id] += (even.areas.len() as i64 + 1).saturating_mul(soft(even.strength));
        }
        for need in &group.needs {
            of_groups[id] += soft(need.strength);
            of_groups[need.of as usize] += soft(need.strength);
        }
        for avoid in &group.avoids {
            let other = avoid.of as usize;
            of_groups[id] = of_groups[id].saturating_add(soft(avoid.strength).saturating_mul(members[other]));
            of_groups[other] = of_groups[other].saturating_add(soft(avoid.strength).saturating_mul(members[id]));
        }
    }
    let of_guest = |groups: &Vec<u32>| groups.iter().map(|group| of_groups[*group as usize]).sum::<i64>();
    problem.guests.iter().map(|guest| (of_guest(&guest.groups) + problem.weights.group_move) as f64).collect()
}

impl<'a> State<'a> {
    /// Makes the books of an assignment: the host of each guest, or [`NOWHERE`].
    ///
    /// # Panics
    ///
    /// If the assignment has fewer guests than the problem, or names a host that the problem does not have.
    pub fn new(problem: &'a Problem, assignment: &[HostId]) -> State<'a> {
        let rules = Rules::new(problem);
        let mut state = State {
            problem,
            at: vec![NOWHERE; problem.guests.len()],
            on: vec![Vec::new(); problem.hosts.len()],
            slot: vec![0; problem.guests.len()],
            hosts: HostUsage::new(problem),
            moves: Moves::new(problem, &rules),
            saves_max: saves_max(problem),
            rules,
            score: Score::broken(problem.guests.len() as i64 * Score::UNPLACED),
        };
        // No guest is on a host yet, so every guest has left the host where it was.
        for guest in 0..problem.guests.len() as GuestId {
            let initial = problem.initial[guest as usize];
            if initial != NOWHERE {
                state.hosts.hold(guest, initial, 1);
                let growth = state.moves.count(problem, &state.rules, (guest, 1));
                state.score.cost += problem.weights.group_move * growth;
            }
        }
        for (group, members) in problem.groups.iter().zip(&state.rules.members) {
            if let Some(spread) = group.spread
                && !members.is_empty()
            {
                state.score += spread.strength.score(i64::from(spread.areas_min));
            }
        }
        for host in 0..problem.hosts.len() as HostId {
            state.hosts.recount(host);
            state.score += state.hosts.score(host);
        }
        for (guest, host) in (0..problem.guests.len()).zip(assignment) {
            state.shift(guest as GuestId, *host);
        }
        state
    }

    /// Returns the problem.
    pub fn problem(&self) -> &'a Problem {
        self.problem
    }

    /// Returns the score of the assignment.
    pub fn score(&self) -> Score {
        self.score
    }

    /// Returns the host of each guest, or [`NOWHERE`].
    pub fn assignment(&self) -> &[HostId] {
        &self.at
    }

    /// Returns the host of a guest.
    #[inline]
    pub fn host_of(&self, guest: GuestId) -> HostId {
        self.at[guest as usize]
    }

    /// Returns the guests on a host, in no order.
    #[inline]
    pub fn guests_on(&self, host: HostId) -> &[GuestId] {
        &self.on[host as usize]
    }

    /// Returns what a host breaks and costs by itself: overload, load and balance.
    pub fn host_score(&self, host: HostId) -> Score {
        self.hosts.score(host)
    }

    /// Returns the change of the score if a guest were on another host.
    #[inline]
    pub fn shift_score(&self, guest: GuestId, to: HostId) -> Score {
        let from = self.at[guest as usize];
        if from == to {
            return Score::default();
        }
        let mut score = self.own_score(guest, from, to);
        score += self.rules.shift_score(self.problem, &self.at, guest, from, to);
        if to != NOWHERE {
            score += self.exchange_score(to, Exchange { comes: Some(guest), goes: None });
        }
        if from != NOWHERE {
            score += self.exchange_score(from, Exchange { comes: None, goes: Some(guest) });
        }
        if self.problem.weights.group_move != 0 {
            let growth = self.moves.growth(self.problem, &self.rules, &[(guest, self.moves_more(guest, to))]);
            score.cost += self.problem.weights.group_move * growth;
        }
        score
    }

    /// Returns by how much the assignment gets worse, with overload at its price, if a guest moved to another host.
    /// Returns `None` if that is beyond the limit or breaks more of a rule. The guest must be on a host now.
    #[inline]
    pub fn shift_within(&self, guest: GuestId, to: HostId, limit: Limit) -> Option<f64> {
        let from = self.at[guest as usize];
        if from == to || from == NOWHERE || to == NOWHERE {
            return None;
        }
        let own = self.own_score(guest, from, to);
        if own.broken > 0 {
            return None;
        }
        // The host that is left can save no more than its whole cost, and the guest's rules no more than `saves_max`.
        let most = limit.most + self.saves_max[guest as usize];
        let mut worse = own.cost as f64;
        let of_host = limit.price(from, self.hosts.score(from));
        worse += self.worse(to, Exchange { comes: Some(guest), goes: None }, limit, most + of_host - worse)?;
        let rules = self.rules.shift_score(self.problem, &self.at, guest, from, to);
        if rules.broken > 0 {
            return None;
        }
        worse += rules.cost as f64;
        worse += self.worse(from, Exchange { comes: None, goes: Some(guest) }, limit, most - worse)?;
        if self.problem.weights.group_move != 0 {
            let growth = self.moves.growth(self.problem, &self.rules, &[(guest, self.moves_more(guest, to))]);
            worse += (self.problem.weights.group_move * growth) as f64;
        }
        (worse <= limit.most).then_some(worse)
    }

    /// Returns the same as [`State::shift_within`] for two guests that change places.
    #[inline]
    pub fn swap_within(&self, a: GuestId, b: GuestId, limit: Limit) -> Option<f64> {
        let (on_a, on_b) = (self.at[a as usize], self.at[b as usize]);
        if on_a == on_b || on_a == NOWHERE || on_b == NOWHERE {
            return None;
        }
        let own = self.own_score(a, on_a, on_b) + self.own_score(b, on_b, on_a);
        if own.broken > 0 {
            return None;
        }
        let most = limit.most + self.saves_max[a as usize] + self.saves_max[b as usize];
        let mut worse = own.cost as f64;
        let of_host = limit.price(on_a, self.hosts.score(on_a));
        worse += self.worse(on_b, Exchange { comes: Some(a), goes: Some(b) }, limit, most + of_host - worse)?;
        let rules = self.rules.swap_score(self.problem, &self.at, (a, on_a), (b, on_b))?;
        if rules.broken > 0 {
            return None;
        }
        worse += rules.cost as f64;
        worse += self.worse(on_a, Exchange { comes: Some(b), goes: Some(a) }, limit, most - worse)?;
        if self.problem.weights.group_move != 0 {
            let changes = [(a, self.moves_more(a, on_b)), (b, self.moves_more(b, on_a))];
            worse += (self.problem.weights.group_move * self.moves.growth(self.problem, &self.rules, &changes)) as f64;
        }
        (worse <= limit.most).then_some(worse)
    }

    /// Returns the change of the score if two guests changed places. Returns `None` if their groups need each other, or
    /// if either guest is nowhere.
    #[inline]
    pub fn swap_score(&self, a: GuestId, b: GuestId) -> Option<Score> {
        let (on_a, on_b) = (self.at[a as usize], self.at[b as usize]);
        if on_a == on_b || on_a == NOWHERE || on_b == NOWHERE {
            return None;
        }
        let mut score = self.rules.swap_score(self.problem, &self.at, (a, on_a), (b, on_b))?;
        score += self.own_score(a, on_a, on_b) + self.own_score(b, on_b, on_a);
        score += self.exchange_score(on_b, Exchange { comes: Some(a), goes: Some(b) });
        score += self.exchange_score(on_a, Exchange { comes: Some(b), goes: Some(a) });
        if self.problem.weights.group_move != 0 {
            let changes = [(a, self.moves_more(a, on_b)), (b, self.moves_more(b, on_a))];
            score.cost += self.problem.weights.group_move * self.moves.growth(self.problem, &self.rules, &changes);
        }
        Some(score)
    }

    /// Returns whether there is room for a guest on a host after another has gone, or at least no resource that is
    /// short there gets shorter.
    #[inline]
    pub fn fits(&self, guest: GuestId, to: HostId, goes: Option<GuestId>) -> bool {
        self.hosts.fits(to, guest, goes)
    }

    /// Moves a guest to another host, or to [`NOWHERE`], whatever that breaks.
    pub fn shift(&mut self, guest: GuestId, to: HostId) {
        let (from, initial) = (self.at[guest as usize], self.problem.initial[guest as usize]);
        if from == to {
            return;
        }
        let mut score = self.own_score(guest, from, to);
        score += self.rules.shift_score(self.problem, &self.at, guest, from, to);
        let change = (guest, self.moves_more(guest, to));
        score.cost += self.problem.weights.group_move * self.moves.count(self.problem, &self.rules, change);
        if from != NOWHERE {
            self.take(guest, from);
            if from == initial {
                self.hosts.hold(guest, from, 1);
            }
        }
        if to != NOWHERE {
            self.put(guest, to);
            if to == initial {
                self.hosts.hold(guest, to, -1);
            }
        }
        self.at[guest as usize] = to;
        for host in [from, to].into_iter().filter(|host| *host != NOWHERE) {
            score += self.hosts.recount(host);
        }
        self.score += score;
    }

    /// Lets two guests change places.
    pub fn swap(&mut self, a: GuestId, b: GuestId) {
        let (on_a, on_b) = (self.at[a as usize], self.at[b as usize]);
        self.shift(a, on_b);
        self.shift(b, on_a);
    }

    fn put(&mut self, guest: GuestId, host: HostId) {
        let on = &mut self.on[host as usize];
        self.slot[guest as usize] = on.len() as u32;
        on.push(guest);
        self.rules.put(self.problem, guest, host);
        self.hosts.put(guest, host);
    }

    fn take(&mut self, guest: GuestId, host: HostId) {
        let (on, slot) = (&mut self.on[host as usize], self.slot[guest as usize] as usize);
        on.swap_remove(slot);
        if let Some(last) = on.get(slot) {
            self.slot[*last as usize] = slot as u32;
        }
        self.rules.take(self.problem, guest, host);
        self.hosts.take(guest, host);
    }

    /// Returns the change of a host's own score after an exchange.
    #[inline]
    fn exchange_score(&self, host: HostId, exchange: Exchange) -> Score {
        self.hosts.score_if(host, exchange) - self.hosts.score(host)
    }

    /// Returns by how much a host by itself gets worse, with overload at its price. Returns `None` if that is more than
    /// `most`.
    #[inline]
    fn worse(&self, host: HostId, exchange: Exchange, limit: Limit, most: f64) -> Option<f64> {
        let (price, now) = (limit.prices[host as usize], self.hosts.score(host));
        let then = self.hosts.score_within(host, exchange, price, most + limit.price(host, now))?;
        let worse = limit.price(host, then - now);
        (worse <= most).then_some(worse)
    }

    /// Returns the part of a move's change that depends on the guest alone.
    #[inline]
    fn own_score(&self, guest: GuestId, from: HostId, to: HostId) -> Score {
        let problem = self.problem;
        let mut score = Score::cost(problem.move_cost(guest, to) - problem.move_cost(guest, from));
        let of = &problem.guests[guest as usize];
        if of.preference.is_some() {
            score.cost += problem.preference(guest, to) - problem.preference(guest, from);
        }
        score.broken += place_broken(problem, guest, to) - place_broken(problem, guest, from);
        score
    }

    /// Returns by how much more a guest counts as moved if it went to `to`.
    #[inline]
    fn moves_more(&self, guest: GuestId, to: HostId) -> i64 {
        let initial = self.problem.initial[guest as usize];
        let is_moved = |at: HostId| i64::from(initial != NOWHERE && at != initial);
        is_moved(to) - is_moved(self.at[guest as usize])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases;
    use crate::dice::Dice;
    use crate::verdict::judge;

    proptest! {
        /// Checks that the books agree with the judge after every change, and told the change beforehand.
        #[test]
        fn the_books_are_right(seed: u64) {
            let dice = &mut Dice::new(seed);
            let problem = cases::problem(dice, 8, 20);
            let mut state = State::new(&problem, &problem.initial);
            prop_assert_eq!(state.score(), judge(&problem, &problem.initial).score());
            for _ in 0..40 {
                let guests = problem.guests.len();
                if guests == 0 {
                    break;
                }
                let before = state.score();
                let a = dice.below(guests) as GuestId;
                let b = dice.below(guests) as GuestId;
                let told = match dice.below(3) {
                    0 => {
                        let Some(told) = state.swap_score(a, b) else { continue };
                        state.swap(a, b);
                        told
                    }
                    _ => {
                        let to = if dice.chance(0.1) { NOWHERE } else { dice.below(problem.hosts.len()) as HostId };
                        let told = state.shift_score(a, to);
                        state.shift(a, to);
                        told
                    }
                };
                prop_assert_eq!(told, state.score() - before);
                prop_assert_eq!(state.score(), judge(&problem, state.assignment()).score());
            }
        }

        /// Checks that a change within the limit costs what it was said to cost, and that a change beyond it costs more
        /// or breaks more of a rule.
        #[test]
        fn limits_are_kept(seed: u64) {
            let dice = &mut Dice::new(seed);
            let problem = cases::problem(dice, 6, 20);
            let state = State::new(&problem, &problem.initial);
            let prices: Vec<f64> = problem.hosts.iter().map(|_| dice.below(5) as f64 / 1e4).collect();
            let limit = Limit { prices: &prices, most: dice.below(400) as f64 - 200.0 };
            let of_hosts = |state: &State, price: &dyn Fn(HostId) -> f64| -> f64 {
                (0..problem.hosts.len() as HostId).map(|host| price(host) * state.host_score(host).broken as f64).sum()
            };
            let priced = |state: &State| state.score().cost as f64 + of_hosts(state, &|host| prices[host as usize]);
            let placed = || (0..problem.guests.len() as GuestId).filter(|guest| state.host_of(*guest) != NOWHERE);
            // What is broken, without the overload of hosts, which has a price.
            let by_rules = |state: &State| state.score().broken - of_hosts(state, &|_| 1.0) as i64;
            let owners = |a, to| place_broken(&problem, a, to) - place_broken(&problem, a, state.host_of(a));
            let check = |told: Option<f64>, after: State, owners: i64| {
                let worse = priced(&after) - priced(&state);
                let breaks = owners > 0 || by_rules(&after) - by_rules(&state) - owners > 0;
                match told {
                    Some(told) => prop_assert!((told - worse).abs() < 1e-3 && worse <= limit.most + 1e-3),
                    None => prop_assert!(breaks || worse > limit.most - 1e-3, "{worse}"),
                }
                Ok(())
            };
            for a in placed() {
                for to in (0..problem.hosts.len() as HostId).filter(|to| *to != state.host_of(a)) {
                    let mut after = State::new(&problem, &problem.initial);
                    after.shift(a, to);
                    check(state.shift_within(a, to, limit), after, owners(a, to))?;
                }
                for b in placed().filter(|b| state.swap_score(a, *b).is_some()) {
                    let mut after = State::new(&problem, &problem.initial);
                    after.swap(a, b);
                    let owners = [owners(a, state.host_of(b)), owners(b, state.host_of(a))];
                    check(state.swap_within(a, b, limit), after, owners.iter().sum())?;
                }
            }
        }

        /// Checks that a guest that fits makes no overload worse.
        #[test]
        fn what_fits_overloads_nothing_more(seed: u64) {
            let dice = &mut Dice::new(seed);
            let mut problem = cases::problem(dice, 6, 20);
            problem.groups.iter_mut().for_each(|group| *group = Default::default());
            problem.owners.clear();
            problem.guests.iter_mut().for_each(|guest| guest.owners = None);
            let state = State::new(&problem, &problem.initial);
            for guest in 0..problem.guests.len() as GuestId {
                for to in 0..problem.hosts.len() as HostId {
                    let from = state.host_of(guest);
                    if from != to && from != NOWHERE {
                        let worse = state.shift_score(guest, to).broken;
                        prop_assert!(!state.fits(guest, to, None) || worse <= 0, "{} to {}: {}", guest, to, worse);
                    }
                }
            }
        }
    }
}
