//! Simulated annealing (Kirkpatrick, Gelatt, Vecchi: "Optimization by simulated annealing", Science 220, 1983) that
//! passes through overloaded assignments. The overload of a host has a price. The price rises while the host is
//! overloaded, so other hosts need not pay for it. Once nothing is overloaded all prices fall, until something is
//! overloaded again (strategic oscillation; Glover, Hao: "The case for strategic oscillation", Annals of Operations
//! Research 183, 2011). No rule is broken on the way.
//!
//! A guest that is not where it was at first has a price, too, which falls to nothing. So the moves that help most for
//! what they move come first, and the room that movers hold on both hosts is not given away for little.

use super::cooling::CoolingSchedule;
use super::units::{UnitId, units};
use crate::dice::Dice;
use crate::problem::{Guest, GuestId, HostId, NOWHERE, Problem};
use crate::state::{Limit, State, saves_max};
use crate::verdict::members;

/// The part of the guests whose size counts as the largest: one in this many.
const LARGEST: usize = 100;
/// Half of the tries are with large guests: those that are at least this many times as large as the temperature. Small
/// guests move by themselves while it is hot, and large ones decide what can be reached. At least `LARGE_MIN` guests
/// count as large.
const LARGE: f64 = 10.0;
const LARGE_MIN: usize = 10;
/// What a guest that is away counts besides the transient resources that it holds: a multiple of the mean guest.
const AWAY: f64 = 2.0;
/// The most that an overload's price rises to, as a multiple of the least price. Beyond that the price begins anew, as
/// it had no effect.
const PRICE_MAX: f64 = 1e5;
/// The part of a cooling after which prices change, and the power of e by which they change in a cooling.
const PRICES_FROM: f64 = 0.3;
const PRICES_CHANGE: f64 = 20.0;

/// The state of the annealing, which says what changes are accepted now.
pub(super) struct Anneal {
    schedule: CoolingSchedule,
    temperature: f64,
    /// The price of each unit of [`Score::broken`](crate::score::Score::broken), for each host.
    prices: Vec<f64>,
    /// What a millionth of a mean host costs: its load, of the resource that costs most, and the most that its guests
    /// could cost otherwise.
    unit_price: f64,
    /// What it costs at the full price that a guest is away, for each guest.
    away: Vec<f64>,
    /// The price of being away now, as a part of the full price.
    away_price: f64,
    /// The guests with their sizes, the largest first.
    sizes: Vec<(f64, GuestId)>,
    /// How many guests count as large now.
    large: usize,
    /// The guests of each unit, and the unit of each guest.
    units: Vec<Vec<GuestId>>,
    unit_of: Vec<UnitId>,
    progress: f64,
}

impl Anneal {
    pub(super) fn new(problem: &Problem) -> Anneal {
        let saves_max = saves_max(problem);
        let rest: Vec<f64> =
            problem.guests.iter().zip(saves_max).map(|(guest, saves)| rest(problem, guest, saves)).collect();
        let mut sizes: Vec<(f64, GuestId)> =
            problem.guests.iter().zip(&rest).map(|(guest, rest)| load(problem, guest) + rest).zip(0..).collect();
        sizes.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (units, unit_of) = units(problem, &members(problem));
        let rest = rest.iter().sum::<f64>() / problem.hosts.len().max(1) as f64;
        let unit_price = (host_costs(problem).fold(0.0, f64::max) + rest).max(1.0) / 1e6;
        Anneal {
            schedule: CoolingSchedule::default(),
            temperature: 1.0,
            prices: vec![unit_price; problem.hosts.len()],
            unit_price,
            away: away(problem),
            away_price: 0.0,
            sizes,
            large: 0,
            units,
            unit_of,
            progress: 0.0,
        }
    }

    /// Begins a cooling.
    pub(super) fn heat(&mut self, schedule: CoolingSchedule) {
        self.schedule = schedule;
        let price_min = self.price_min();
        self.prices.fill(price_min);
        self.progress = 0.0;
        self.set_temperature();
    }

    /// Cools down to where the cooling is now: `progress` is from 0 to 1.
    pub(super) fn cool(&mut self, progress: f64, state: &State) {
        let by = (progress - self.progress).max(0.0);
        self.progress = progress;
        self.set_temperature();
        if progress < PRICES_FROM {
            return;
        }
        let (price_min, rises) = (self.price_min(), (PRICES_CHANGE * by).exp());
        let is_over = |host: HostId| state.host_score(host).broken > 0;
        let prices = (0..).zip(&mut self.prices);
        if state.score().broken == 0 {
            prices.for_each(|(_, price)| *price = (*price / rises).max(price_min));
        } else {
            for (_, price) in prices.filter(|(host, _)| is_over(*host)) {
                *price *= rises;
                if *price > price_min * PRICE_MAX {
                    *price = price_min;
                }
            }
        }
    }

    fn price_min(&self) -> f64 {
        self.schedule.price * self.unit_price
    }

    fn set_temperature(&mut self) {
        let largest = self.sizes.get(self.sizes.len() / LARGEST).map_or(0.0, |(size, _)| *size);
        self.temperature = self.schedule.temperature(self.progress) * largest.max(1.0);
        self.away_price = self.schedule.away(self.progress);
        let large = self.sizes.partition_point(|(size, _)| *size >= LARGE * self.temperature);
        self.large = large.max(LARGE_MIN).min(self.sizes.len());
    }

    /// Does one try: moves a guest to another host, or lets two guests change places. There have to be a guest and a
    /// host.
    #[inline]
    pub(super) fn step(&self, state: &mut State, dice: &mut Dice) {
        let problem = state.problem();
        let any = |dice: &mut Dice| dice.below(problem.guests.len()) as GuestId;
        let guest = if dice.chance(0.5) { self.sizes[dice.below(self.large)].1 } else { any(dice) };
        let most = -self.temperature * dice.unit().ln();
        let limit = |away: f64| Limit { prices: &self.prices, most: most - away };
        if dice.chance(0.5) {
            let home = problem.initial[guest as usize];
            let is_home = home != NOWHERE && dice.chance(self.schedule.home);
            let to = if is_home { home } else { dice.below(problem.hosts.len()) as HostId };
            let unit = &self.units[self.unit_of[guest as usize] as usize];
            if unit.len() > 1 {
                return self.shift_unit(state, unit, to, most);
            }
            let away = self.away_more(state, guest, to);
            if state.shift_within(guest, to, limit(away)).is_some() {
                state.shift(guest, to);
            }
        } else {
            let other = any(dice);
            let (on, other_on) = (state.host_of(guest), state.host_of(other));
            let away = self.away_more(state, guest, other_on) + self.away_more(state, other, on);
            if state.swap_within(guest, other, limit(away)).is_some() {
                state.swap(guest, other);
            }
        }
    }

    /// Moves guests that belong together to another host, if that is within the limit and breaks no more of any rule.
    fn shift_unit(&self, state: &mut State, unit: &[GuestId], to: HostId, most: f64) {
        let from: Vec<HostId> = unit.iter().map(|guest| state.host_of(*guest)).collect();
        if from.contains(&NOWHERE) {
            return;
        }
        let mut hosts = [from.clone(), vec![to]].concat();
        hosts.sort_unstable();
        hosts.dedup();
        let overload = |state: &State| -> (i64, f64) {
            let each = hosts.iter().map(|host| (*host, state.host_score(*host).broken));
            each.fold((0, 0.0), |(sum, cost), (host, of)| (sum + of, cost + self.prices[host as usize] * of as f64))
        };
        let away: f64 = unit.iter().map(|guest| self.away_more(state, *guest, to)).sum();
        let (before, (over_before, cost_before)) = (state.score(), overload(state));
        unit.iter().for_each(|guest| state.shift(*guest, to));
        let (after, (over, cost)) = (state.score() - before, overload(state));
        if after.broken - (over - over_before) > 0 || after.cost as f64 + cost - cost_before + away > most {
            unit.iter().zip(from).for_each(|(guest, from)| state.shift(*guest, from));
        }
    }

    /// Returns how much more a guest would cost for being away if it went to a host.
    #[inline]
    fn away_more(&self, state: &State, guest: GuestId, to: HostId) -> f64 {
        let home = state.problem().initial[guest as usize];
        if home == NOWHERE {
            return 0.0;
        }
        let is_away = |host: HostId| f64::from(u8::from(host != home));
        self.away_price * self.away[guest as usize] * (is_away(to) - is_away(state.host_of(guest)))
    }
}

/// Returns what a guest could cost if all of its demand were above what is safe.
fn load(problem: &Problem, guest: &Guest) -> f64 {
    guest.demand.iter().zip(&problem.resources).map(|(of, resource)| *of as f64 * resource.load_weight as f64).sum()
}

/// Returns what a guest could cost besides its load: on the host that it prefers least, by its rules, and by its move.
fn rest(problem: &Problem, guest: &Guest, saves_max: f64) -> f64 {
    let preference = guest.preference.and_then(|of| problem.preferences[of as usize].iter().max());
    let moves = problem.weights.guest_move as f64 * guest.move_cost as f64;
    preference.map_or(0.0, |most| *most as f64) + saves_max + moves
}

/// Returns for each resource what a mean host would cost if all of its capacity were above what is safe.
fn host_costs(problem: &Problem) -> impl Iterator<Item = f64> {
    let loads = problem.resources.iter().map(|resource| resource.load_weight as f64);
    loads.zip(capacities(problem)).map(|(load, capacity)| load * capacity)
}

/// Returns the mean capacity of hosts for each resource.
fn capacities(problem: &Problem) -> impl Iterator<Item = f64> {
    let hosts = problem.hosts.len().max(1) as f64;
    (0..problem.resources.len())
        .map(move |r| problem.hosts.iter().map(|host| host.capacity[r] as f64).sum::<f64>() / hosts)
}

/// Returns what each guest costs if it is away: its share of a mean host's transient resources (the largest share),
/// priced at what a mean host costs, and a constant.
fn away(problem: &Problem) -> Vec<f64> {
    let (cost, capacities): (f64, Vec<f64>) = (host_costs(problem).sum(), capacities(problem).collect());
    let mean = problem.hosts.len() as f64 / problem.guests.len().max(1) as f64;
    let share = |guest: &Guest| {
        let shares = guest.demand.iter().zip(&capacities).map(|(demand, capacity)| *demand as f64 / capacity.max(1.0));
        let transient = shares.zip(&problem.resources).filter(|(_, resource)| resource.transient);
        transient.fold(0.0, |most, (share, _)| f64::max(most, share))
    };
    problem.guests.iter().map(|guest| cost * (share(guest) + AWAY * mean)).collect()
}
