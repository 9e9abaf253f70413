//! The books of hosts: what is used of each host, and what that breaks and costs.

use crate::problem::{Balance, GuestId, HostId, Problem};
use crate::score::{OVERLOAD_MAX, Score, millionths, overload};

/// How many resources are handled at a time. They are floating point numbers, whose arithmetic is exact here because
/// [`Problem::check`] keeps all sums within 53 bits. Unused lanes have no demand and unlimited room.
const LANES: usize = 4;

#[derive(Clone, Copy)]
#[repr(align(32))]
struct Lanes([f64; LANES]);

const NONE: Lanes = Lanes([0.0; LANES]);

/// The row of a host that has what is used of each resource.
const USED: usize = 0;
/// The row that has the capacity, less what is held by guests that left the host.
const CAPACITY: usize = 1;
const SAFE: usize = 2;
/// The row that has what a unit of overload breaks, before rounding up.
const BREAKS: usize = 3;
const ROWS: usize = 4;

/// Packs the values of resources into lanes, and fills the unused lanes with `rest`.
fn of_lanes(values: impl Iterator<Item = f64>, blocks: usize, rest: f64) -> Vec<Lanes> {
    let mut all = vec![Lanes([rest; LANES]); blocks];
    values.enumerate().for_each(|(r, value)| all[r / LANES].0[r % LANES] = value);
    all
}

/// The guest that comes to a host, and the guest that goes.
#[derive(Clone, Copy, Default)]
pub(super) struct Exchange {
    pub(super) comes: Option<GuestId>,
    pub(super) goes: Option<GuestId>,
}

/// How much of each host is used.
pub(super) struct HostUsage<'a> {
    problem: &'a Problem,
    /// The number of blocks of four resources.
    blocks: usize,
    demand: Vec<Lanes>,
    rows: Vec<Lanes>,
    load_weight: Vec<Lanes>,
    /// For each resource: 1 if it is transient, else 0.
    transient: Vec<Lanes>,
    /// What each host breaks and costs by overload, load and balance.
    score: Vec<Score>,
}

impl<'a> HostUsage<'a> {
    /// Makes the books with no guest on any host.
    pub(super) fn new(problem: &'a Problem) -> HostUsage<'a> {
        let blocks = problem.resources.len().div_ceil(LANES);
        let lanes = |values: &[i64], rest| of_lanes(values.iter().map(|value| *value as f64), blocks, rest);
        let mut rows = Vec::with_capacity(problem.hosts.len() * ROWS * blocks);
        for host in &problem.hosts {
            rows.extend(std::iter::repeat_n(NONE, blocks));
            rows.extend(lanes(&host.capacity, f64::MAX));
            rows.extend(lanes(&host.safe, f64::MAX));
            // A little less than the exact value, so that rounding cannot make it too large.
            let breaks = host.capacity.iter().map(|of| millionths(1, *of) * (1.0 - 1e-12));
            rows.extend(of_lanes(breaks, blocks, 0.0));
        }
        let resources = &problem.resources;
        let mut hosts = HostUsage {
            problem,
            blocks,
            demand: problem.guests.iter().flat_map(|guest| lanes(&guest.demand, 0.0)).collect(),
            rows,
            load_weight: of_lanes(resources.iter().map(|resource| resource.load_weight as f64), blocks, 0.0),
            transient: of_lanes(resources.iter().map(|resource| f64::from(u8::from(resource.transient))), blocks, 0.0),
            score: Vec::new(),
        };
        hosts.score =
            (0..problem.hosts.len() as HostId).map(|host| hosts.score_if(host, Exchange::default())).collect();
        hosts
    }

    /// Returns what a host breaks and costs by itself.
    #[inline]
    pub(super) fn score(&self, host: HostId) -> Score {
        self.score[host as usize]
    }

    /// Returns what a host would break and cost after an exchange.
    #[inline]
    pub(super) fn score_if(&self, host: HostId, exchange: Exchange) -> Score {
        self.score_within(host, exchange, 0.0, f64::INFINITY).expect("nothing is beyond infinity")
    }

    /// Returns what a host would break and cost after an exchange, where each unit of what is broken costs `price`.
    /// Returns `None` if this is found to exceed `most` before balances are computed.
    #[inline]
    pub(super) fn score_within(&self, host: HostId, exchange: Exchange, price: f64, most: f64) -> Option<Score> {
        let (used, room, safe) = (self.row(host, USED), self.row(host, CAPACITY), self.row(host, SAFE));
        let breaks = self.row(host, BREAKS);
        let comes = exchange.comes.map(|guest| self.demand(guest));
        let goes = exchange.goes.map(|guest| self.demand(guest));
        // Transient resources: a guest that comes back is counted here already, and a guest that leaves its first host
        // is still counted.
        let was_here = |guest: &GuestId| self.problem.initial[*guest as usize] == host;
        let back = comes.filter(|_| exchange.comes.as_ref().is_some_and(was_here));
        let stays = goes.filter(|_| exchange.goes.as_ref().is_some_and(was_here));
        let is_held = back.is_some() || stays.is_some();
        let of = |guest: Option<&[Lanes]>, block: usize| guest.map_or(NONE, |demand| demand[block]).0;
        let capacity = &self.problem.hosts[host as usize].capacity;
        let mut cost = NONE.0;
        let mut broken = 0;
        for block in 0..self.blocks {
            let (comes, goes) = (of(comes, block), of(goes, block));
            let mut room = room[block].0;
            if is_held {
                let (back, stays) = (of(back, block), of(stays, block));
                for lane in 0..LANES {
                    room[lane] -= self.transient[block].0[lane] * (stays[lane] - back[lane]);
                }
            }
            let mut over = NONE.0;
            let mut is_over = false;
            for lane in 0..LANES {
                let now = used[block].0[lane] + comes[lane] - goes[lane];
                let above = now - safe[block].0[lane];
                cost[lane] += self.load_weight[block].0[lane] * if above > 0.0 { above } else { 0.0 };
                over[lane] = now - room[lane];
                is_over |= over[lane] > 0.0;
            }
            if is_over {
                // Most exchanges beyond the limit are found here without a division.
                let breaks = over.iter().zip(&breaks[block].0).map(|(over, by)| (over.max(0.0) * by).min(OVERLOAD_MAX));
                let at_least: f64 = breaks.sum();
                if cost.iter().sum::<f64>() + price * (broken as f64 + at_least) > most {
                    return None;
                }
                let capacity = &capacity[block * LANES..];
                broken += over.iter().zip(capacity).map(|(over, of)| overload(*over as i64, *of)).sum::<i64>();
            }
            // Neither sum shrinks with the resources that follow.
            if cost.iter().sum::<f64>() + price * broken as f64 > most {
                return None;
            }
        }
        let mut cost: f64 = cost.into_iter().sum();
        let now = |r: usize| {
            let (block, lane) = (r / LANES, r % LANES);
            used[block].0[lane] + of(comes, block)[lane] - of(goes, block)[lane]
        };
        for balance in &self.problem.balances {
            cost += self.missing(host, balance, now(balance.first), now(balance.second));
        }
        Some(Score { broken, cost: cost as i64 })
    }

    /// Returns the cost of a balance's missing free units of its second resource.
    #[inline]
    fn missing(&self, host: HostId, balance: &Balance, first: f64, second: f64) -> f64 {
        let capacity = &self.problem.hosts[host as usize].capacity;
        let free = |r: usize, used: f64| capacity[r] as f64 - used;
        let missing = balance.ratio as f64 * free(balance.first, first) - free(balance.second, second);
        balance.weight as f64 * if missing > 0.0 { missing } else { 0.0 }
    }

    /// Returns whether there is room for a guest after another has gone, or at least no resource that is short gets
    /// shorter.
    #[inline]
    pub(super) fn fits(&self, host: HostId, comes: GuestId, goes: Option<GuestId>) -> bool {
        let was_here = |guest: GuestId| f64::from(u8::from(self.problem.initial[guest as usize] == host));
        let (back, stays) = (was_here(comes), goes.map_or(0.0, was_here));
        let (used, room, demand) = (self.row(host, USED), self.row(host, CAPACITY), self.demand(comes));
        for block in 0..self.blocks {
            let (comes, goes) = (demand[block].0, goes.map_or(NONE, |goes| self.demand(goes)[block]).0);
            for lane in 0..LANES {
                let transient = self.transient[block].0[lane];
                let more = comes[lane] * (1.0 - transient * back) - goes[lane] * (1.0 - transient * stays);
                if more > 0.0 && used[block].0[lane] + more > room[block].0[lane] {
                    return false;
                }
            }
        }
        true
    }

    pub(super) fn put(&mut self, guest: GuestId, host: HostId) {
        self.add(guest, host, 1.0);
    }

    pub(super) fn take(&mut self, guest: GuestId, host: HostId) {
        self.add(guest, host, -1.0);
    }

    fn add(&mut self, guest: GuestId, host: HostId, sign: f64) {
        let (demand, row) = (guest as usize * self.blocks, (host as usize * ROWS + USED) * self.blocks);
        for block in 0..self.blocks {
            for lane in 0..LANES {
                self.rows[row + block].0[lane] += sign * self.demand[demand + block].0[lane];
            }
        }
    }

    /// Holds a guest's transient resources on the host that it left (`sign` is 1), or no longer (-1).
    pub(super) fn hold(&mut self, guest: GuestId, host: HostId, sign: i8) {
        let (demand, row) = (guest as usize * self.blocks, (host as usize * ROWS + CAPACITY) * self.blocks);
        for block in 0..self.blocks {
            for lane in 0..LANES {
                let held = self.transient[block].0[lane] * self.demand[demand + block].0[lane];
                self.rows[row + block].0[lane] -= f64::from(sign) * held;
            }
        }
    }

    /// Computes a host's score again after its guests have changed. Returns the difference to the old score.
    pub(super) fn recount(&mut self, host: HostId) -> Score {
        let now = self.score_if(host, Exchange::default());
        let change = now - self.score[host as usize];
        self.score[host as usize] = now;
        change
    }

    #[inline]
    fn row(&self, host: HostId, row: usize) -> &[Lanes] {
        let from = (host as usize * ROWS + row) * self.blocks;
        &self.rows[from..from + self.blocks]
    }

    #[inline]
    fn demand(&self, guest: GuestId) -> &[Lanes] {
        let from = guest as usize * self.blocks;
        &self.demand[from..from + self.blocks]
    }
}
