//! Finds what would have to change for a guest to fit on a host, the cheapest change first.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cause, Placing, Reason};
use crate::cluster::model::HostState;
use crate::cluster::{Compiled, RuleId, RuleKind};
use skein_placement::problem::{GuestId, HostId, NOWHERE};
use skein_placement::score::Score;
use skein_placement::state::State;

/// One step that helps a guest to fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A hard rule among guests becomes soft, or is removed where it cannot be soft.
    Lift(RuleId),
    /// A rule allows the guest on one more host.
    Widen(RuleId, HostId),
    /// A host goes online.
    Open {
        /// The host that goes online.
        host: HostId,
        /// The other guests that are on the host again then.
        back: Vec<GuestId>,
    },
    /// A host gets this much more of a resource.
    Add(HostId, usize, i64),
    /// Another guest goes to another host first.
    Move {
        /// The guest that goes to another host.
        guest: GuestId,
        /// The host where it is.
        from: HostId,
        /// The host where it fits.
        to: HostId,
    },
}

/// Steps after which the guest fits on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relaxation {
    /// The host on which the guest fits then.
    pub host: HostId,
    /// The steps, all of which are needed.
    pub steps: Vec<Step>,
    /// The cost in microseconds of traffic. For moves it is what they cost. For steps that people have to decide on or
    /// pay for, it only tells which is the lesser evil, in multiples of
    /// [`Weights::rule`](crate::cluster::model::Weights::rule): lifting a rule costs 1, more capacity 5 to 10 and
    /// above, taking a host out of maintenance or allowing one more owner 10, bringing a host online 20.
    pub cost: i64,
}

impl Relaxation {
    fn new(compiled: &Compiled, host: HostId, steps: Vec<Step>) -> Relaxation {
        let cost = steps.iter().map(|step| price(compiled, step)).fold(0, i64::saturating_add);
        Relaxation { host, steps, cost }
    }
}

/// The changes that help.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relaxations {
    /// The changes, the cheapest first: one for each set of causes, and the cheapest by moves.
    pub all: Vec<Relaxation>,
    /// Whether the search for moves was ended because there were too many. If not, all moves were tried of one guest,
    /// and if none helps, of any two among the 24 guests of each host that are cheapest to move, each to the cheapest
    /// host that takes it.
    pub is_cut_short: bool,
}

/// The most relaxations that are reported.
const RELAXATIONS_REPORTED_MAX: usize = 5;
/// The most hosts that are tried for guests that may go: about two seconds' work.
const TRIES_MAX: u32 = 20_000_000;
/// To verify a found relaxation takes as long as this many tries.
const TRIES_TO_VERIFY: u32 = 100_000;
/// The guests of a host of which any two may go.
const PAIRS_OF: usize = 24;

/// The price of one more owner, as a multiple of a soft rule's breach. It is high because owners are meant never to be
/// broken.
const OWNERS_PRICE: i64 = 10;
/// The price of taking a host out of maintenance: work for people, and the host must not fail afterwards.
const MAINTENANCE_PRICE: i64 = 10;
/// The price of bringing a host online: a repair.
const OFFLINE_PRICE: i64 = 20;
/// The price of capacity: that of a purchase, however small, and twice as much if a host's capacity had to be doubled.
const CAPACITY_PRICE: f64 = 5.0;

/// Returns what would have to change for a guest that no host accepts to fit on one. The result is empty if a host
/// accepts the guest.
pub fn relax(compiled: &Compiled, assignment: &[HostId], guest: GuestId) -> Relaxations {
    let mut placing = Placing::new(compiled, assignment, guest);
    let mut best: BTreeMap<BTreeSet<Cause>, Relaxation> = BTreeMap::new();
    for host in 0..compiled.problem.hosts.len() as HostId {
        let mut reasons = placing.against(host);
        reasons.retain(|reason| reason.is_hard);
        if reasons.is_empty() {
            return Relaxations { all: Vec::new(), is_cut_short: false };
        }
        let back = lost(compiled, assignment, guest, host);
        if !back.is_empty() {
            // What speaks against the host once it is online and its own guests take their room again.
            let mut at = assignment.to_vec();
            back.iter().for_each(|other| at[*other as usize] = host);
            reasons = Placing::new(compiled, &at, guest).against(host);
            reasons.retain(|reason| reason.is_hard);
        }
        let relaxation = dropping(compiled, host, &reasons, &back);
        let causes = reasons.iter().map(|reason| reason.cause).collect();
        let known = best.entry(causes).or_insert_with(|| relaxation.clone());
        if relaxation.cost < known.cost {
            *known = relaxation;
        }
    }
    let mut mover = Mover::new(compiled, assignment, guest);
    let by_moves = mover.one().or_else(|| mover.two());
    let mut all: Vec<Relaxation> = best.into_values().chain(by_moves).collect();
    all.sort_by_key(|relaxation| (relaxation.cost, relaxation.steps.len(), relaxation.host));
    all.truncate(RELAXATIONS_REPORTED_MAX);
    Relaxations { all, is_cut_short: mover.tries_left == 0 }
}

/// Returns the other guests that are on no host because this host is offline.
fn lost(compiled: &Compiled, assignment: &[HostId], guest: GuestId, host: HostId) -> Vec<GuestId> {
    let others = (0..).zip(assignment).filter(|(other, now)| **now == NOWHERE && *other != guest);
    others.map(|(other, _)| other).filter(|other| compiled.names.lost(*other) == Some(host)).collect()
}

/// Returns the relaxation that removes all that speaks against a host.
fn dropping(compiled: &Compiled, host: HostId, reasons: &[Reason], back: &[GuestId]) -> Relaxation {
    let names = &compiled.names;
    let step = |reason: &Reason| match reason.cause {
        Cause::Capacity(row) => Step::Add(host, row, reason.amount),
        Cause::Rule(rule) => match names.rules[rule as usize].kind {
            RuleKind::HostState => Step::Open { host, back: back.to_vec() },
            RuleKind::GuestOwners | RuleKind::Owners | RuleKind::Stays | RuleKind::Writes | RuleKind::Match => {
                Step::Widen(rule, host)
            }
            _ => Step::Lift(rule),
        },
    };
    let mut steps: Vec<Step> = reasons.iter().map(step).collect();
    steps.dedup();
    Relaxation::new(compiled, host, steps)
}

/// Returns how bad a step is. A move costs what the migration costs. A lifted rule costs as much as one breach of a
/// soft rule, and other steps cost multiples of that.
fn price(compiled: &Compiled, step: &Step) -> i64 {
    let names = &compiled.names;
    let unit = names.rule_weight.max(1);
    let times = match step {
        Step::Move { guest, .. } => {
            return compiled.problem.weights.guest_move * compiled.problem.guests[*guest as usize].move_cost;
        }
        Step::Add(host, row, amount) => {
            let share = *amount as f64 / compiled.problem.hosts[*host as usize].capacity[*row].max(1) as f64;
            return (unit as f64 * CAPACITY_PRICE * (1.0 + share)) as i64;
        }
        Step::Lift(_) => 1,
        Step::Widen(rule, _) => match names.rules[*rule as usize].kind {
            RuleKind::GuestOwners | RuleKind::Owners => OWNERS_PRICE,
            RuleKind::Writes => MAINTENANCE_PRICE,
            _ => 1,
        },
        Step::Open { host, .. } => match names.states[*host as usize] {
            HostState::Offline => OFFLINE_PRICE,
            _ => MAINTENANCE_PRICE,
        },
    };
    unit.saturating_mul(times)
}

/// Looks for other guests that can go.
struct Mover<'a> {
    compiled: &'a Compiled,
    state: State<'a>,
    guest: GuestId,
    /// The most that may be broken with the guest in place.
    broken_max: i64,
    tries_left: u32,
}

impl<'a> Mover<'a> {
    fn new(compiled: &'a Compiled, assignment: &[HostId], guest: GuestId) -> Mover<'a> {
        let mut state = State::new(&compiled.problem, assignment);
        state.shift(guest, NOWHERE);
        let broken_max = state.score().broken - Score::UNPLACED;
        Mover { compiled, state, guest, broken_max, tries_left: TRIES_MAX }
    }

    /// Returns the guests on hosts that fences allow, by the cost of their move.
    fn candidates(&self) -> Vec<(i64, GuestId, HostId)> {
        let problem = &self.compiled.problem;
        let at = (0..).zip(self.state.assignment());
        let others = at.filter(|(other, host)| **host != NOWHERE && *other != self.guest);
        let allowed = others.filter(|(_, host)| problem.may_own(self.guest, **host));
        let mut all: Vec<_> =
            allowed.map(|(other, host)| (problem.guests[other as usize].move_cost, other, *host)).collect();
        all.sort_unstable();
        all
    }

    /// Lets one guest go. The first that can is the cheapest.
    fn one(&mut self) -> Option<Relaxation> {
        for (_, other, host) in self.candidates() {
            if !self.state.fits(self.guest, host, Some(other)) {
                continue;
            }
            self.state.shift(self.guest, host);
            let target = self.cheapest_host(other, Some(self.broken_max));
            self.state.shift(self.guest, NOWHERE);
            if let Some(to) = target {
                let found = self.verified(host, &[(other, to)]);
                if found.is_some() {
                    return found;
                }
            }
            if self.tries_left == 0 {
                return None;
            }
        }
        None
    }

    /// Lets two guests of one host go, each to the cheapest host that takes it.
    fn two(&mut self) -> Option<Relaxation> {
        let mut by_host: BTreeMap<HostId, Vec<(i64, GuestId)>> = BTreeMap::new();
        for (cost, other, host) in self.candidates() {
            let on = by_host.entry(host).or_default();
            if on.len() < PAIRS_OF {
                on.push((cost, other));
            }
        }
        let mut pairs = Vec::new();
        for (host, on) in by_host {
            for (n, (cost_a, a)) in on.iter().enumerate() {
                let others = on[..n].iter().filter(|(_, b)| self.would_fit(host, *a, *b));
                pairs.extend(others.map(|(cost_b, b)| (cost_a + cost_b, *a, *b, host)));
            }
        }
        pairs.sort_unstable();
        for (_, a, b, host) in pairs {
            let found = self.try_two(host, a, b);
            if found.is_some() || self.tries_left == 0 {
                return found;
            }
        }
        None
    }

    /// Returns whether there is room for the guest once two guests went. What these hold where they were is left to
    /// [`Mover::verified`].
    fn would_fit(&self, host: HostId, a: GuestId, b: GuestId) -> bool {
        let problem = &self.compiled.problem;
        let demand = |guest: GuestId, row: usize| problem.guests[guest as usize].demand[row];
        (0..problem.resources.len()).all(|row| {
            let stay = self.state.guests_on(host).iter().filter(|on| **on != a && **on != b);
            let used: i64 = stay.map(|on| demand(*on, row)).sum();
            used + demand(self.guest, row) <= problem.hosts[host as usize].capacity[row] || demand(self.guest, row) == 0
        })
    }

    fn try_two(&mut self, host: HostId, a: GuestId, b: GuestId) -> Option<Relaxation> {
        self.state.shift(self.guest, host);
        let mut found = None;
        if let Some(to_a) = self.cheapest_host(a, None) {
            self.state.shift(a, to_a);
            if let Some(to_b) = self.cheapest_host(b, Some(self.broken_max)) {
                found = Some([(a, to_a), (b, to_b)]);
            }
            self.state.shift(a, host);
        }
        self.state.shift(self.guest, NOWHERE);
        self.verified(host, &found?)
    }

    /// Returns the cheapest host for a guest on which it breaks no more than where it is, and which leaves no more
    /// broken than `most`.
    fn cheapest_host(&mut self, guest: GuestId, most: Option<i64>) -> Option<HostId> {
        let mut best: Option<(i64, HostId)> = None;
        let most = most.map_or(0, |most| (most - self.state.score().broken).min(0));
        self.tries_left = self.tries_left.saturating_sub(self.compiled.problem.hosts.len() as u32);
        for to in 0..self.compiled.problem.hosts.len() as HostId {
            if to == self.state.host_of(guest) || !self.state.fits(guest, to, None) {
                continue;
            }
            let score = self.state.shift_score(guest, to);
            if score.broken <= most && best.is_none_or(|best| (score.cost, to) < best) {
                best = Some((score.cost, to));
            }
        }
        best.map(|(_, to)| to)
    }

    /// Returns the moves as a relaxation if no hard reason speaks against the guest's host then, nor against the hosts
    /// of those that make room.
    fn verified(&mut self, host: HostId, moves: &[(GuestId, HostId)]) -> Option<Relaxation> {
        self.tries_left = self.tries_left.saturating_sub(TRIES_TO_VERIFY);
        let mut at = self.state.assignment().to_vec();
        let step = |(guest, to): &(GuestId, HostId)| Step::Move { guest: *guest, from: host, to: *to };
        let steps: Vec<Step> = moves.iter().map(step).collect();
        moves.iter().for_each(|(guest, to)| at[*guest as usize] = *to);
        let mut fits = Placing::new(self.compiled, &at, self.guest).accepts(host);
        at[self.guest as usize] = host;
        fits &= moves.iter().all(|(guest, to)| Placing::new(self.compiled, &at, *guest).accepts(*to));
        fits.then(|| Relaxation::new(self.compiled, host, steps))
    }
}
