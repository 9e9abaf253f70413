//! Decides which guests to move as the load changes.
//!
//! A round has two parts. First, what is **broken** is repaired whatever it costs: hard rules, and hosts whose guests
//! have used, or on average will use, more than there is. A host counts as overloaded only if its guests used too much
//! in both of the last two samples; one sample alone is a spike. If nothing else repairs it, neither a guest's cooldown
//! nor the level `place` stands in the way. Then, once an interval, hosts that are **short**, with less free than the
//! level `start`, are relieved as far as that pays.
//!
//! The worth of a lower unmet load is counted in seconds of one host that is wholly overloaded. Of a load with mean m
//! and variance v, whatever its distribution, at most (sqrt(v + s^2) - s) / 2 is expected above a capacity c, with s =
//! c - m (Scarf: "A min-max solution of an inventory problem", 1958). So a move
//!
//! - **saves** `interval_s` x the part of the capacity by which this expectation falls for soon, and `horizon_s` x the
//!   part by which it falls for later, over both hosts and all resources;
//! - **costs** the seconds for which it is sent, [`View::sends_s`], x the price of its [`Config::aggressiveness`];
//!
//! and is made if it saves more than it costs. Most of the unmet load at any time is spikes, which no move foresees.
//! Their variance, which counts here, tells where they will be.

use std::cmp::Ordering;

use thiserror::Error;

use super::forecast::{Expected, Outlook};
use super::view::{BadView, By, Column, View, columns, expected, shift_broken, swap_broken};
use crate::bits::Bits;
use crate::problem::{GuestId, HostId, NOWHERE, Problem};
use crate::state::{Limit, State};
use crate::verdict::{Breach, judge};

/// The configuration of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How much is done. 1: only what is broken is repaired. 2 to 4: hosts that are short are relieved, too, if 4, 2 or
    /// 1 seconds are saved for each second that is sent. 5: any host is relieved if half a second is saved.
    pub aggressiveness: u8,
    /// Seconds from one round of relief to the next. What is broken is repaired in every round.
    pub interval_s: u32,
    /// Seconds for which the outlook for later counts.
    pub horizon_s: u32,
    /// Seconds for which a guest stays after a move, unless no other guest could end an overload.
    pub cooldown_s: u32,
    /// The most moves of a guest within a day.
    pub guest_moves_max: usize,
    /// The most moves of a round.
    pub round_moves_max: usize,
}

/// Two moves count as equal in what they break if they differ by less than this: a thousandth of a host's overload.
const ALIKE: i64 = 1000;
/// The seconds over which a guest's moves are counted.
const DAY_S: u64 = 86_400;

impl Default for Config {
    fn default() -> Config {
        Config {
            aggressiveness: 3,
            interval_s: 600,
            horizon_s: 7200,
            cooldown_s: 3600,
            guest_moves_max: 3,
            round_moves_max: 20,
        }
    }
}

impl Config {
    /// Returns how many seconds have to be saved for each second that is sent.
    pub fn price(&self) -> f64 {
        16.0 / f64::from(1u32 << self.aggressiveness)
    }
}

/// What was decided before. Guests and hosts are identified by their indices, which have to stay the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The times at which each guest moved within the last day.
    moves_s: Vec<Vec<u64>>,
    relieved_s: Option<u64>,
    /// The hosts whose guests used more than there is in the last sample. Some of these guests may have left since.
    overloaded: Bits,
}

impl History {
    /// Remembers a round's moves.
    pub fn remember_round(&mut self, now_s: u64, round: &Round) {
        let most = round.moves.iter().map(|of| of.guest as usize + 1).max().unwrap_or(0);
        self.moves_s.resize(self.moves_s.len().max(most), Vec::new());
        for of in &round.moves {
            let moves_s = &mut self.moves_s[of.guest as usize];
            moves_s.retain(|moved_s| moved_s.saturating_add(DAY_S) > now_s);
            moves_s.push(now_s);
        }
        if round.is_relief {
            self.relieved_s = Some(now_s);
        }
        self.overloaded = round.overloaded.clone();
    }

    /// Returns whether a guest has moved less often within a day than it may.
    fn may_move(&self, config: &Config, guest: GuestId, now_s: u64) -> bool {
        let today = self.moves_s_of(guest).iter().filter(|moved_s| moved_s.saturating_add(DAY_S) > now_s).count();
        today < config.guest_moves_max
    }

    fn is_cool(&self, config: &Config, guest: GuestId, now_s: u64) -> bool {
        let last = self.moves_s_of(guest).last();
        last.is_none_or(|moved_s| now_s >= moved_s.saturating_add(config.cooldown_s.into()))
    }

    fn moves_s_of(&self, guest: GuestId) -> &[u64] {
        self.moves_s.get(guest as usize).map_or(&[], Vec::as_slice)
    }
}

/// Why a guest moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveReason {
    /// The move repairs something.
    Broken {
        /// By how much less is broken, as [`Score::broken`](crate::score::Score::broken) counts.
        less: i64,
    },
    /// The guest's host is short of a resource.
    Short {
        /// The resource.
        resource: usize,
        /// How much is free there.
        free: i64,
        /// How much should be free, by the level `start`.
        start: i64,
    },
    /// The guest's host is not short, but is more likely to become so than the host where the guest goes.
    Balance,
}

/// A guest that is to move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    /// The guest that moves.
    pub guest: GuestId,
    /// The host where it is, or [`NOWHERE`].
    pub from: HostId,
    /// The host where it goes.
    pub to: HostId,
    /// Why it moves.
    pub why: MoveReason,
    /// The seconds of a wholly overloaded host that the move saves. It may be below 0 if the move is made for a rule
    /// only. If two guests change places, it is the sum of both.
    pub saves_s: f64,
    /// The seconds for which the guest is sent. If two guests change places, it is the sum of both.
    pub sends_s: f64,
}

/// What is to be done now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// The moves, in this order. There may be none.
    pub moves: Vec<Move>,
    /// Whether hosts that are short were looked at because an interval was over.
    pub is_relief: bool,
    /// The hosts that were overloaded in the last sample, in any resource.
    pub overloaded: Bits,
    /// The best of the moves that would relieve a host and save less than they cost, if no move is made.
    pub unworthy: Option<Move>,
}

/// Why no decision is possible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadRound {
    /// The aggressiveness is not 1 to 5.
    #[error("aggressiveness is {0}: it is 1 to 5")]
    Aggressiveness(u8),
    /// The view is not valid.
    #[error(transparent)]
    View(#[from] BadView),
}

/// Decides a round. Must be called once for each sample.
///
/// # Errors
///
/// [`BadRound`] if the configuration or the view is not valid.
pub fn decide(config: &Config, view: &View, history: &History) -> Result<Round, BadRound> {
    if !(1..=5).contains(&config.aggressiveness) {
        return Err(BadRound::Aggressiveness(config.aggressiveness));
    }
    view.check()?;
    let columns = columns(view);
    let mut expected = expected(view, &columns).map_err(BadView::from)?;
    let overloaded = overload(view, history, &columns, &mut expected);
    let mut desk = RoundBuilder::new(config, view, history, &columns, &expected);
    desk.repair();
    let since = |relieved_s: u64| view.now_s >= relieved_s.saturating_add(config.interval_s.into());
    let is_relief = config.aggressiveness > 1 && history.relieved_s.is_none_or(since);
    if is_relief {
        desk.relieve();
    }
    Ok(Round { moves: desk.moves, is_relief, overloaded, unworthy: desk.unworthy })
}

/// Makes the hosts overloaded that were overloaded in both of the last two samples, and no others by the last sample.
/// Returns all hosts that were overloaded in the last sample.
fn overload(view: &View, history: &History, columns: &[Column], problem: &mut Problem) -> Bits {
    let mut overloaded = Bits::default();
    for (n, column) in columns.iter().enumerate().filter(|(_, column)| column.by == By::Latest) {
        let mut used = vec![[0.0; 2]; problem.hosts.len()];
        for (host, of) in problem.initial.iter().zip(view.outlooks).filter(|(host, _)| **host != NOWHERE) {
            let recent = of[column.resource].recent.map(f64::ceil);
            used[*host as usize].iter_mut().zip(recent).for_each(|(used, of)| *used += of);
        }
        for (host, [last, before]) in (0..).zip(used) {
            let capacity = &mut problem.hosts[host as usize].capacity[n];
            if last <= *capacity as f64 {
                continue;
            }
            overloaded.insert(host);
            let is_lasting = before > *capacity as f64 || history.overloaded.contains(host);
            // An overload that lasts is relieved down to `start`, so that the next change does not overload the host
            // again.
            let safe = view.problem.hosts[host as usize].safe[column.resource];
            *capacity = if is_lasting { safe } else { last as i64 };
        }
    }
    overloaded
}

/// What is expected of all of a host's guests together.
#[derive(Clone, Default)]
struct Load {
    /// What is expected of each resource, soon and later.
    expected: Vec<[Expected; 2]>,
    /// What is used by each column.
    used: Vec<i64>,
}

impl Load {
    /// Adds a guest (`sign` is 1) or removes it (-1).
    fn add(&mut self, outlooks: &[Outlook], demand: &[i64], sign: i64) {
        for (sums, of) in self.expected.iter_mut().zip(outlooks) {
            for (sum, of) in sums.iter_mut().zip([of.soon, of.later]) {
                sum.mean += sign as f64 * of.mean;
                sum.variance += sign as f64 * of.variance;
            }
        }
        self.used.iter_mut().zip(demand).for_each(|(used, of)| *used += sign * of);
    }
}

/// Returns the part of a capacity that is wanted beyond it.
fn want(load: &Expected, capacity: f64) -> f64 {
    let spare = capacity - load.mean;
    ((load.variance.max(0.0) + spare * spare).sqrt() - spare) / 2.0 / capacity.max(1.0)
}

/// One guest that goes to another host, or two that change places.
#[derive(Clone, Copy)]
struct Choice {
    guest: GuestId,
    to: HostId,
    /// The guest that comes back in exchange.
    back: Option<GuestId>,
    broken: i64,
    saves_s: f64,
    sends_s: f64,
}

/// A guest that may move.
#[derive(Clone, Copy)]
struct Leaves {
    guest: GuestId,
    sends_s: f64,
    /// What is saved on the host that it leaves.
    saves_s: f64,
}

/// The builder of a round.
struct RoundBuilder<'a> {
    config: &'a Config,
    view: &'a View<'a>,
    history: &'a History,
    columns: &'a [Column],
    problem: &'a Problem,
    state: State<'a>,
    /// A price of 0 for each host's overload.
    prices: Vec<f64>,
    /// The load of each host.
    loads: Vec<Load>,
    /// The seconds of unmet load of each host.
    wants_s: Vec<f64>,
    has_moved: Bits,
    /// Whether nothing else repairs what is broken: cooldowns and the level `place` do not count then.
    is_urgent: bool,
    moves: Vec<Move>,
    unworthy: Option<Move>,
}

impl<'a> RoundBuilder<'a> {
    fn new(
        config: &'a Config,
        view: &'a View,
        history: &'a History,
        columns: &'a [Column],
        problem: &'a Problem,
    ) -> RoundBuilder<'a> {
        let none =
            Load { expected: vec![Default::default(); view.problem.resources.len()], used: vec![0; columns.len()] };
        let mut desk = RoundBuilder {
            config,
            view,
            history,
            columns,
            problem,
            state: State::new(problem, &problem.initial),
            prices: vec![0.0; problem.hosts.len()],
            wants_s: Vec::new(),
            loads: vec![none; problem.hosts.len()],
            has_moved: Bits::default(),
            is_urgent: false,
            moves: Vec::new(),
            unworthy: None,
        };
        for guest in 0..problem.guests.len() as GuestId {
            desk.put(guest, problem.initial[guest as usize], 1);
        }
        desk.wants_s =
            (0..problem.hosts.len() as HostId).map(|host| desk.want_s(host, &desk.loads[host as usize])).collect();
        desk
    }

    fn put(&mut self, guest: GuestId, host: HostId, sign: i64) {
        if let Some(load) = self.loads.get_mut(host as usize) {
            load.add(&self.view.outlooks[guest as usize], &self.problem.guests[guest as usize].demand, sign);
        }
    }

    /// Returns a host's load if guests came (1) or went (-1).
    fn with(&self, host: HostId, guests: &[(GuestId, i64)]) -> Load {
        let mut load = self.loads[host as usize].clone();
        for (guest, sign) in guests {
            let guest = *guest as usize;
            load.add(&self.view.outlooks[guest], &self.problem.guests[guest].demand, *sign);
        }
        load
    }

    fn want_s(&self, host: HostId, load: &Load) -> f64 {
        let (interval_s, horizon_s) = (f64::from(self.config.interval_s), f64::from(self.config.horizon_s));
        let each = load.expected.iter().zip(&self.view.problem.hosts[host as usize].capacity);
        each.map(|([soon, later], capacity)| {
            interval_s * want(soon, *capacity as f64) + horizon_s * want(later, *capacity as f64)
        })
        .sum()
    }

    /// Returns why a host is short, if it is. This is decided by what is expected, not by the last sample, which may be
    /// a spike.
    fn short_of(&self, host: HostId) -> Option<MoveReason> {
        let (of, load) = (&self.view.problem.hosts[host as usize], &self.loads[host as usize]);
        self.columns.iter().zip(&load.used).filter(|(column, _)| column.by != By::Latest).find_map(|(column, used)| {
            let resource = column.resource;
            let [capacity, safe] = [&of.capacity, &of.safe].map(|of| of[resource]);
            (*used > safe).then_some(MoveReason::Short { resource, free: capacity - used, start: capacity - safe })
        })
    }

    /// Returns whether a host can have this load: `place` has to stay free of each resource that is used more than
    /// before.
    fn may_place(&self, host: HostId, load: &Load) -> bool {
        if self.is_urgent {
            return true;
        }
        let of = &self.view.problem.hosts[host as usize];
        let before = &self.loads[host as usize].used;
        self.columns.iter().zip(load.used.iter().zip(before)).all(|(column, (used, before))| {
            let free = self.view.place_free[host as usize][column.resource];
            used <= before || of.capacity[column.resource] - used >= free
        })
    }

    /// Returns the seconds that a guest's leaving its host saves, wherever it goes.
    fn leaving_s(&self, guest: GuestId) -> f64 {
        match self.state.host_of(guest) {
            NOWHERE => 0.0,
            from => self.wants_s[from as usize] - self.want_s(from, &self.with(from, &[(guest, -1)])),
        }
    }

    /// Returns the choice that a guest goes to a host, or `None` if that breaks more or there is no room.
    fn shift(&self, leaves: Leaves, to: HostId) -> Option<Choice> {
        let Leaves { guest, sends_s, saves_s } = leaves;
        let is_open = self.state.host_of(guest) != to && !self.view.closed.contains(to);
        if !is_open {
            return None;
        }
        let broken = shift_broken(&self.state, self.free(), guest, to)?;
        let there = self.with(to, &[(guest, 1)]);
        if !self.may_place(to, &there) {
            return None;
        }
        let saves_s = saves_s + self.wants_s[to as usize] - self.want_s(to, &there);
        Some(Choice { guest, to, back: None, broken, saves_s, sends_s })
    }

    /// Returns the choice that two guests change places.
    fn swap(&self, leaves: Leaves, back: Leaves) -> Option<Choice> {
        let (guest, other) = (leaves.guest, back.guest);
        let (from, to) = (self.state.host_of(guest), self.state.host_of(other));
        if from == to || self.view.closed.contains(to) || self.view.closed.contains(from) {
            return None;
        }
        let broken = swap_broken(&self.state, self.free(), guest, other)?;
        let there = self.with(to, &[(guest, 1), (other, -1)]);
        let here = self.with(from, &[(guest, -1), (other, 1)]);
        if !self.may_place(to, &there) || !self.may_place(from, &here) {
            return None;
        }
        let wants_s = self.wants_s[from as usize] + self.wants_s[to as usize];
        let saves_s = wants_s - self.want_s(to, &there) - self.want_s(from, &here);
        Some(Choice { guest, to, back: Some(other), broken, saves_s, sends_s: leaves.sends_s + back.sends_s })
    }

    fn free(&self) -> Limit<'_> {
        Limit { prices: &self.prices, most: f64::INFINITY }
    }

    fn gain_s(&self, choice: &Choice) -> f64 {
        choice.saves_s - self.config.price() * choice.sends_s
    }

    /// Returns the better of two choices: that which breaks less, by at least [`ALIKE`]; else that which gains more;
    /// else the first.
    fn better(&self, best: Option<Choice>, other: Choice) -> Option<Choice> {
        let broken = |choice: &Choice| choice.broken.div_euclid(ALIKE);
        let is_better = best.is_none_or(|best| match broken(&other).cmp(&broken(&best)) {
            Ordering::Less => true,
            Ordering::Equal => self.gain_s(&other) > self.gain_s(&best),
            Ordering::Greater => false,
        });
        if is_better { Some(other) } else { best }
    }

    /// Returns the best move of one of these guests that is worth it.
    fn best_shift(&self, guests: &[GuestId], is_worth: impl Fn(&Choice) -> bool) -> Option<Choice> {
        let leaves = guests.iter().filter_map(|guest| self.leaves(*guest));
        let hosts = 0..self.problem.hosts.len() as HostId;
        let shifts = leaves.flat_map(|leaves| hosts.clone().filter_map(move |to| self.shift(leaves, to)));
        shifts.filter(is_worth).fold(None, |best, other| self.better(best, other))
    }

    /// Returns the best exchange of one of these guests with any other.
    fn best_swap(&self, guests: &[GuestId], is_worth: impl Fn(&Choice) -> bool) -> Option<Choice> {
        if self.moves.len() + 2 > self.config.round_moves_max {
            return None;
        }
        let is_placed = |leaves: &Leaves| self.state.host_of(leaves.guest) != NOWHERE;
        let others = (0..self.problem.guests.len() as GuestId).filter_map(|guest| self.leaves(guest));
        let others: Vec<Leaves> = others.filter(is_placed).collect();
        let leaves = guests.iter().filter_map(|guest| self.leaves(*guest)).filter(is_placed);
        let swaps = leaves.flat_map(|leaves| others.iter().filter_map(move |back| self.swap(leaves, *back)));
        swaps.filter(is_worth).fold(None, |best, other| self.better(best, other))
    }

    /// Returns a guest as one that leaves, if it may move and can.
    fn leaves(&self, guest: GuestId) -> Option<Leaves> {
        let may_move = !self.view.pinned.contains(guest)
            && !self.has_moved.contains(guest)
            && self.history.may_move(self.config, guest, self.view.now_s)
            && (self.is_urgent || self.history.is_cool(self.config, guest, self.view.now_s));
        let sends_s = match self.state.host_of(guest) {
            NOWHERE => 0.0,
            _ => self.view.sends_s[guest as usize],
        };
        (may_move && sends_s.is_finite()).then(|| Leaves { guest, sends_s, saves_s: self.leaving_s(guest) })
    }

    /// Repairs what is broken, with the choice that repairs most first. Two guests change places only if no move
    /// repairs anything. Only if that does not help either, the repair is urgent.
    fn repair(&mut self) {
        while self.state.score().broken > 0 && self.moves.len() < self.config.round_moves_max {
            let (guests, mends) = (self.guilty(), |choice: &Choice| choice.broken < 0);
            let choice = self.best_shift(&guests, mends).or_else(|| self.best_swap(&guests, mends)).or_else(|| {
                self.is_urgent = true;
                self.best_shift(&guests, mends)
            });
            self.is_urgent = false;
            let Some(choice) = choice else { break };
            self.carry_out(choice, MoveReason::Broken { less: -choice.broken });
        }
    }

    /// Returns the guests that take part in something broken.
    fn guilty(&self) -> Vec<GuestId> {
        let (mut guests, mut hosts, mut groups) = (Bits::default(), Bits::default(), Bits::default());
        for breach in judge(self.problem, self.state.assignment()).hard {
            match breach {
                Breach::Unplaced { guest } | Breach::NotOwner { guest, .. } => guests.insert(guest),
                Breach::Overload { host, .. } => hosts.insert(host),
                Breach::Apart { group, .. }
                | Breach::Together { group, .. }
                | Breach::Spread { group, .. }
                | Breach::Uneven { group, .. }
                | Breach::Among { group, .. } => groups.insert(group),
                Breach::Need { group, of, .. } | Breach::Avoid { group, of, .. } => {
                    [group, of].into_iter().for_each(|group| groups.insert(group))
                }
            }
        }
        let is_guilty = |guest: &GuestId| {
            guests.contains(*guest)
                || hosts.contains(self.state.host_of(*guest))
                || self.problem.guests[*guest as usize].groups.iter().any(|group| groups.contains(*group))
        };
        (0..self.problem.guests.len() as GuestId).filter(is_guilty).collect()
    }

    /// Relieves hosts that are short, or any host, as long as that pays.
    fn relieve(&mut self) {
        let any = self.config.aggressiveness == 5;
        while self.moves.len() < self.config.round_moves_max {
            let hosts = (0..self.problem.hosts.len() as HostId).filter(|host| any || self.short_of(*host).is_some());
            let mut guests: Vec<GuestId> = hosts.flat_map(|host| self.state.guests_on(host)).copied().collect();
            guests.sort_unstable();
            let Some(choice) = self.best_shift(&guests, |choice| self.gain_s(choice) > 0.0) else {
                let best = self.best_shift(&guests, |_| true).filter(|_| self.moves.is_empty());
                self.unworthy = best.map(|Choice { guest, to, saves_s, sends_s, .. }| {
                    let from = self.state.host_of(guest);
                    let why = self.short_of(from).unwrap_or(MoveReason::Balance);
                    Move { guest, from, to, why, saves_s, sends_s }
                });
                break;
            };
            let host = self.state.host_of(choice.guest);
            let why = self.short_of(host).unwrap_or(MoveReason::Balance);
            self.carry_out(choice, why);
        }
    }

    fn carry_out(&mut self, choice: Choice, why: MoveReason) {
        let from = self.state.host_of(choice.guest);
        let back = choice.back.map(|back| (back, from));
        for (guest, to) in [(choice.guest, choice.to)].into_iter().chain(back) {
            let from = self.state.host_of(guest);
            self.moves.push(Move { guest, from, to, why, saves_s: choice.saves_s, sends_s: choice.sends_s });
            self.put(guest, from, -1);
            self.put(guest, to, 1);
            self.state.shift(guest, to);
            self.has_moved.insert(guest);
        }
        for host in [from, choice.to].into_iter().filter(|host| *host != NOWHERE) {
            self.wants_s[host as usize] = self.want_s(host, &self.loads[host as usize]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::cases;
    use crate::dice::Dice;
    use crate::policy::forecast::LoadForecast;
    use crate::problem::{Guest, Host, HostMoves, Resource, Weights};

    /// The seconds that a small guest takes to move.
    const SMALL_S: f64 = 8.0;
    const MONTHS_S: f64 = 1e7;

    /// Makes hosts with 100 CPU, of which 20 are to be free, and 100 memory, and guests with the given memory on them.
    fn cluster(hosts: usize, guests: &[(HostId, i64)]) -> Problem {
        let host = Host { areas: Vec::new(), capacity: vec![100, 100], safe: vec![80, 100] };
        let guest = |(_, memory): &(HostId, i64)| Guest {
            demand: vec![0, *memory],
            groups: Vec::new(),
            move_cost: 1,
            owners: None,
            preference: None,
        };
        Problem {
            resources: vec![
                Resource { transient: false, load_weight: 0 },
                Resource { transient: true, load_weight: 0 },
            ],
            levels: Vec::new(),
            hosts: vec![host; hosts],
            groups: Vec::new(),
            guests: guests.iter().map(guest).collect(),
            balances: Vec::new(),
            weights: Weights::default(),
            host_moves: HostMoves::Uniform(0),
            owners: Vec::new(),
            preferences: Vec::new(),
            initial: guests.iter().map(|(host, _)| *host).collect(),
        }
    }

    static NONE: LazyLock<Bits> = LazyLock::new(Bits::default);

    /// Makes the view of such a cluster: no guest is pinned and no host is closed.
    fn view<'a>(
        problem: &'a Problem,
        place_free: &'a [Vec<i64>],
        outlooks: &'a [Vec<Outlook>],
        sends_s: &'a [f64],
    ) -> View<'a> {
        View { problem, place_free, outlooks, sends_s, pinned: &NONE, closed: &NONE, now_s: 0 }
    }

    /// Returns the moves of a round in which guests are expected to use this much CPU.
    fn moves(config: &Config, problem: &Problem, cpu: &[f64], sends_s: f64) -> Vec<Move> {
        let outlook = |(cpu, guest): (&f64, &Guest)| vec![Outlook::fixed(*cpu), Outlook::fixed(guest.demand[1] as f64)];
        let outlooks: Vec<_> = cpu.iter().zip(&problem.guests).map(outlook).collect();
        decided(config, problem, &outlooks, sends_s)
    }

    fn decided(config: &Config, problem: &Problem, outlooks: &[Vec<Outlook>], sends_s: f64) -> Vec<Move> {
        round(config, problem, outlooks, sends_s).moves
    }

    fn round(config: &Config, problem: &Problem, outlooks: &[Vec<Outlook>], sends_s: f64) -> Round {
        let (place_free, sends_s) = (vec![vec![20, 0]; problem.hosts.len()], vec![sends_s; outlooks.len()]);
        decide(config, &view(problem, &place_free, outlooks, &sends_s), &History::default()).unwrap()
    }

    fn went(moves: &[Move]) -> Vec<(GuestId, HostId)> {
        moves.iter().map(|of| (of.guest, of.to)).collect()
    }

    #[test]
    fn nothing_is_an_answer() {
        let problem = cluster(2, &[(0, 10), (0, 10), (1, 10)]);
        assert_eq!(moves(&Config::default(), &problem, &[30.0, 30.0, 10.0], SMALL_S), Vec::new());
    }

    #[test]
    fn who_is_overloaded_is_relieved_whatever_it_costs_with_the_fewest_moves() {
        let problem = cluster(3, &[(0, 10), (0, 10), (0, 10), (1, 10)]);
        let all =
            moves(&Config { aggressiveness: 1, ..Config::default() }, &problem, &[70.0, 20.0, 25.0, 60.0], MONTHS_S);
        assert_eq!(went(&all), [(0, 2)], "each of the three would do, and this leaves the most to spare");
        assert_eq!(all[0].why, MoveReason::Broken { less: 150_000 });
    }

    #[test]
    fn who_is_short_is_relieved_if_it_pays() {
        let problem = cluster(2, &[(0, 10), (0, 10), (1, 10)]);
        let cpu = [60.0, 35.0, 10.0];
        let outlook = |(cpu, guest): (&f64, &Guest)| {
            let expected = Expected { mean: *cpu, variance: 100.0 };
            let outlook = Outlook { recent: [*cpu; 2], soon: expected, later: expected };
            vec![outlook, Outlook::fixed(guest.demand[1] as f64)]
        };
        let spiky: Vec<_> = cpu.iter().zip(&problem.guests).map(outlook).collect();
        let cheap = decided(&Config::default(), &problem, &spiky, SMALL_S);
        assert_eq!(cheap[0].why, MoveReason::Short { resource: 0, free: 5, start: 20 });
        assert!(cheap[0].saves_s > Config::default().price() * cheap[0].sends_s, "{cheap:?}");
        assert_eq!(cheap.len(), 1);
        let none = round(&Config::default(), &problem, &spiky, MONTHS_S);
        assert_eq!(none.moves, [], "months of sending do not pay");
        // What would have been best is told.
        let best = none.unworthy.unwrap();
        assert_eq!((best.guest, best.to, best.why), (cheap[0].guest, cheap[0].to, cheap[0].why));
        assert!(best.saves_s < Config::default().price() * best.sends_s, "{best:?}");
        assert_eq!(round(&Config::default(), &problem, &spiky, SMALL_S).unworthy, None);
    }

    #[test]
    fn two_change_places_where_none_fits() {
        let problem = cluster(2, &[(0, 60), (0, 40), (1, 60), (1, 40)]);
        let free = Problem { resources: vec![problem.resources[0].clone(); 2], ..problem.clone() };
        let cpu = [70.0, 40.0, 40.0, 30.0];
        assert_eq!(went(&moves(&Config::default(), &free, &cpu, SMALL_S)), [(1, 1), (3, 0)]);
        assert_eq!(
            moves(&Config::default(), &problem, &cpu, SMALL_S),
            [],
            "memory is used on both hosts while they move"
        );
    }

    #[test]
    fn who_is_nowhere_is_placed_where_that_breaks_nothing() {
        let mut problem = cluster(2, &[(NOWHERE, 10), (0, 10)]);
        problem.owners = vec![[0].into_iter().collect()];
        problem.guests[0].owners = Some(0);
        assert_eq!(went(&moves(&Config::default(), &problem, &[10.0, 10.0], SMALL_S)), [(0, 0)]);
        let config = Config::default();
        assert_eq!(
            went(&moves(&config, &problem, &[10.0, 75.0], SMALL_S)),
            [(0, 0)],
            "`place` gives way to what is broken"
        );
        assert_eq!(moves(&config, &problem, &[10.0, 95.0], SMALL_S), [], "but not what there is");
    }

    /// Plays a host at 60 of 100 whose second guest uses more from some sample on. Returns the sample after which a
    /// guest moves.
    fn acts_after(rise: &[f64]) -> Option<usize> {
        let problem = cluster(2, &[(0, 10), (0, 10), (1, 10)]);
        let mut forecasts = vec![LoadForecast::new(Expected { mean: 30.0, variance: 1.0 }); 3];
        let mut history = History::default();
        let calm = [30.0f64; 40];
        calm.iter().chain(rise).enumerate().find_map(|(n, used)| {
            for (forecast, used) in forecasts.iter_mut().zip([30.0, *used, 20.0]) {
                forecast.sample(Some(used)).unwrap();
            }
            let outlook = |of: &LoadForecast| vec![of.outlook(), Outlook::fixed(10.0)];
            let outlooks: Vec<_> = forecasts.iter().map(outlook).collect();
            let now_s = n as u64 * 300;
            let place_free = [vec![20, 0], vec![20, 0]];
            let view = View { now_s, ..view(&problem, &place_free, &outlooks, &[SMALL_S; 3]) };
            let round = decide(&Config::default(), &view, &history).unwrap();
            history.remember_round(now_s, &round);
            (!round.moves.is_empty()).then(|| n + 1 - calm.len())
        })
    }

    #[test]
    fn a_spike_moves_nobody_and_what_lasts_is_acted_on_with_the_second_sample() {
        assert_eq!(acts_after(&[95.0, 30.0, 30.0, 30.0]), None);
        assert_eq!(acts_after(&[90.0, 90.0, 90.0]), Some(2));
    }

    #[test]
    fn an_overload_is_ended_by_who_has_just_moved_if_nobody_else_can() {
        let problem = cluster(2, &[(0, 10), (0, 10), (1, 90)]);
        let (outlooks, sends_s) = ([70.0, 50.0, 35.0], vec![SMALL_S; 3]);
        let outlook = |(cpu, of): (f64, &Guest)| vec![Outlook::fixed(cpu), Outlook::fixed(of.demand[1] as f64)];
        let outlooks: Vec<_> = outlooks.into_iter().zip(&problem.guests).map(outlook).collect();
        let place_free = [vec![20, 0], vec![20, 0]];
        let went_after = |moved: GuestId| {
            let moved = Move { guest: moved, from: 1, to: 0, why: MoveReason::Balance, saves_s: 0.0, sends_s: 0.0 };
            let mut history = History::default();
            history.remember_round(0, &Round { moves: vec![moved], ..Round::default() });
            let view = View { now_s: 600, ..view(&problem, &place_free, &outlooks, &sends_s) };
            went(&decide(&Config::default(), &view, &history).unwrap().moves)
        };
        assert_eq!(went_after(2), [(1, 1)]);
        assert_eq!(went_after(1), [(1, 1)], "the other does not fit");
    }

    #[test]
    fn what_cannot_be_is_told() {
        let problem = cluster(1, &[(0, 10)]);
        let told = |config: &Config, outlook: Outlook, sends_s: &[f64], place: i64| {
            let (outlooks, place_free) = ([vec![outlook; 2]], [vec![place; 2]]);
            decide(config, &view(&problem, &place_free, &outlooks, sends_s), &History::default())
                .expect_err("it cannot be")
                .to_string()
        };
        let (config, fine) = (Config::default(), Outlook::fixed(1.0));
        let eager = Config { aggressiveness: 6, ..Config::default() };
        assert_eq!(told(&eager, fine, &[1.0], 0), "aggressiveness is 6: it is 1 to 5");
        assert_eq!(told(&config, fine, &[], 0), "there are 0 times to move instead of 1");
        assert!(told(&config, fine, &[f64::NAN], 0).starts_with("the seconds that guest 0 takes to move are no"));
        assert_eq!(told(&config, fine, &[1.0], -1), "the level `place` of host 0 for resource 0 is below 0");
        for bad in [f64::NAN, -1.0, f64::INFINITY] {
            assert!(
                told(&config, Outlook::fixed(bad), &[1.0], 0).starts_with("the outlook of guest 0 for resource 0 has")
            );
        }
        assert_eq!(told(&config, Outlook::fixed(1e300), &[1.0], 0), "the problem is none", "too much to be counted");
    }

    /// Draws outlooks around what the guests of a case use.
    fn outlooks(dice: &mut Dice, problem: &Problem) -> Vec<Vec<Outlook>> {
        let mut around = |demand: i64| {
            let mut amount = || demand as f64 * 2.0 * dice.unit();
            let recent = [amount(), amount()];
            let [soon, later] = [amount(), amount()].map(|mean| Expected { mean, variance: mean });
            if dice.chance(0.3) { Outlook::fixed(demand as f64) } else { Outlook { recent, soon, later } }
        };
        problem.guests.iter().map(|guest| guest.demand.iter().map(|demand| around(*demand)).collect()).collect()
    }

    fn some_config(dice: &mut Dice) -> Config {
        Config {
            aggressiveness: 1 + dice.below(5) as u8,
            interval_s: 600 * dice.below(2) as u32,
            round_moves_max: 1 + dice.below(6),
            ..Config::default()
        }
    }

    /// Returns how much is broken by hard rules other than capacity.
    fn rules_broken(problem: &Problem, at: &[HostId]) -> i64 {
        let mut verdict = judge(problem, at);
        verdict.hard.retain(|breach| !matches!(breach, Breach::Overload { .. }));
        verdict.score().broken
    }

    proptest! {
        /// Checks over some rounds, whatever happens: no more of any rule is broken, no host is filled beyond `place`,
        /// a pinned guest stays, no guest goes to a closed host, and none moves too often or too soon except for what
        /// is broken. The same question has the same answer.
        #[test]
        fn rounds_do_no_harm(seed: u64) {
            let dice = &mut Dice::new(seed);
            let mut problem = cases::problem(dice, 6, 16);
            let guests = problem.guests.len();
            let config = some_config(dice);
            let mut half = |most: &i64| dice.below(*most as usize / 2 + 1) as i64;
            let place = |host: &Host| host.capacity.iter().map(&mut half).collect();
            let place_free: Vec<Vec<i64>> = problem.hosts.iter().map(place).collect();
            let pinned: Bits = (0..guests as GuestId).filter(|_| dice.chance(0.2)).collect();
            let closed: Bits = (0..problem.hosts.len() as HostId).filter(|_| dice.chance(0.2)).collect();
            let mut moved_s = vec![Vec::new(); guests];
            let mut history = History::default();
            for now_s in (0..10u64).map(|round| round * 1200) {
                let outlooks = outlooks(dice, &problem);
                let sends_s = vec![if dice.chance(0.1) { f64::INFINITY } else { 100.0 * dice.unit() }; guests];
                let view = view(&problem, &place_free, &outlooks, &sends_s);
                let view = View { pinned: &pinned, closed: &closed, now_s, ..view };
                let round = decide(&config, &view, &history).unwrap();
                prop_assert_eq!(decide(&config, &view, &history).unwrap(), round.clone());
                history.remember_round(now_s, &round);
                prop_assert!(round.moves.len() <= config.round_moves_max);
                let mut at = problem.initial.clone();
                let mut mended = Bits::default();
                for of in &round.moves {
                    let is_mending = matches!(of.why, MoveReason::Broken { .. });
                    if is_mending {
                        mended.insert(of.to);
                    }
                    prop_assert!(!pinned.contains(of.guest) && !closed.contains(of.to));
                    prop_assert_eq!(at[of.guest as usize], of.from);
                    at[of.guest as usize] = of.to;
                    let moved_s: &mut Vec<u64> = &mut moved_s[of.guest as usize];
                    let is_cool = moved_s.last().is_none_or(|last| now_s >= last + u64::from(config.cooldown_s));
                    prop_assert!(is_cool || is_mending);
                    moved_s.push(now_s);
                    prop_assert!(moved_s.len() <= config.guest_moves_max);
                }
                prop_assert!(rules_broken(&problem, &at) <= rules_broken(&problem, &problem.initial));
                let used = |at: &[HostId], host: HostId, of: &dyn Fn(&[Outlook]) -> f64| -> f64 {
                    at.iter().zip(&outlooks).filter(|(on, _)| **on == host).map(|(_, outlooks)| of(outlooks)).sum()
                };
                for (host, of) in (0..).zip(&problem.hosts) {
                    for (r, place) in place_free[host as usize].iter().enumerate() {
                        let left = of.capacity[r] - if mended.contains(host) { 0 } else { *place };
                        for by in [|of: &Outlook| of.soon.mean, |of: &Outlook| of.later.mean] {
                            let used = |at: &[HostId]| used(at, host, &|of| by(&of[r]).ceil());
                            let (before, after) = (used(&problem.initial), used(&at));
                            prop_assert!(after <= before || after <= left as f64, "host {} resource {}: {} to \
                                {}", host, r, before, after);
                        }
                    }
                }
                problem.initial = at;
            }
        }
    }
}
