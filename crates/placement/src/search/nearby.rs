//! Large neighbourhood search (Shaw: "Using constraint programming and local search methods to solve vehicle routing
//! problems", CP 1998): takes some guests from some hosts and puts them back on these hosts in the best of all ways.
//! This finds changes of several moves of which each by itself breaks something: guests that change places in a ring,
//! or hosts that exchange all of their guests.
//!
//! It is used where there are few ways, so that all can be tried. Where there are many, annealing makes better use of
//! the time.

use super::units::{UnitId, units};
use crate::dice::Dice;
use crate::problem::{GuestId, HostId, NOWHERE, Problem};
use crate::score::Score;
use crate::state::State;
use crate::verdict::members;

/// The most hosts and units for which this search is used.
const HOSTS_MAX: usize = 16;
const UNITS_MAX: usize = 200;
/// The most ways in which the units that are taken out may be put back.
const WAYS_MAX: usize = 5_000;

/// The search around one assignment.
pub(super) struct Nearby<'a> {
    state: State<'a>,
    units: Vec<Vec<GuestId>>,
    /// All hosts. The first `among` of them are those that units are taken from.
    hosts: Vec<HostId>,
    among: usize,
    /// The units that are taken out, and the best hosts for them so far.
    taken: Vec<UnitId>,
    best: Vec<HostId>,
    score: Score,
    /// How many placements are still to be tried.
    left: i64,
}

impl<'a> Nearby<'a> {
    /// Makes the search, or returns `None` if there are too many hosts or guests for it.
    pub(super) fn new(problem: &'a Problem, from: &[HostId]) -> Option<Nearby<'a>> {
        let (units, _) = units(problem, &members(problem));
        let hosts = problem.hosts.len();
        if !(2..=HOSTS_MAX).contains(&hosts) || !(1..=UNITS_MAX).contains(&units.len()) {
            return None;
        }
        let state = State::new(problem, from);
        Some(Nearby {
            score: state.score(),
            state,
            units,
            hosts: (0..hosts as HostId).collect(),
            among: 0,
            taken: Vec::new(),
            best: Vec::new(),
            left: 0,
        })
    }

    /// Returns the assignment at which the search is.
    pub(super) fn state(&self) -> &State<'a> {
        &self.state
    }

    /// Continues from another assignment.
    pub(super) fn restore(&mut self, at: &[HostId]) {
        (0..).zip(at).for_each(|(guest, host)| self.state.shift(guest, *host));
        self.score = self.state.score();
    }

    /// Tries `tries` more placements, counted over all calls.
    pub(super) fn run(&mut self, tries: u64, dice: &mut Dice) {
        self.left += tries as i64;
        while self.left > 0 {
            self.step(dice);
        }
    }

    fn step(&mut self, dice: &mut Dice) {
        // The choice itself counts, too: there may be no guest on these hosts.
        self.left -= 1;
        self.choose(dice);
        let many = self.taken.len();
        let before: Vec<HostId> = self.guests().map(|guest| self.state.host_of(guest)).collect();
        self.best.clear();
        for nth in 0..many {
            self.shift(nth, NOWHERE);
        }
        self.put_back(0, 0);
        let best = std::mem::take(&mut self.best);
        if best.is_empty() {
            let guests: Vec<GuestId> = self.guests().collect();
            guests.into_iter().zip(before).for_each(|(guest, host)| self.state.shift(guest, host));
        } else {
            (0..many).for_each(|nth| self.shift(nth, best[nth]));
        }
        self.best = best;
    }

    /// Chooses some hosts and the units to take from them: all units, or as many as can be put back in few enough ways.
    fn choose(&mut self, dice: &mut Dice) {
        self.among = 2 + dice.below(self.hosts.len() - 1);
        dice.shuffle(&mut self.hosts, self.among);
        let hosts = &self.hosts[..self.among];
        let is_there = |unit: &UnitId| {
            let host = self.state.host_of(self.units[*unit as usize][0]);
            host == NOWHERE || hosts.contains(&host)
        };
        self.taken = (0..self.units.len() as UnitId).filter(is_there).collect();
        let many = (WAYS_MAX.ilog(self.among) as usize).min(self.taken.len());
        dice.shuffle(&mut self.taken, many);
        self.taken.truncate(many);
    }

    /// Tries all hosts for the units from `nth` on. `over` is how much more the hosts are overloaded by the units
    /// before.
    fn put_back(&mut self, nth: usize, over: i64) {
        if nth == self.taken.len() {
            // An equally good assignment is taken, too: it may lead to a better one.
            if self.state.score() <= self.score {
                self.score = self.state.score();
                self.best = self.taken.iter().map(|unit| self.state.host_of(self.units[*unit as usize][0])).collect();
            }
            return;
        }
        for at in 0..self.among {
            let host = self.hosts[at];
            self.left -= 1;
            let before = self.state.host_score(host).broken;
            self.shift(nth, host);
            let over = over + self.state.host_score(host).broken - before;
            // The overload only grows with the units that follow.
            if over <= self.score.broken {
                self.put_back(nth + 1, over);
            }
            self.shift(nth, NOWHERE);
        }
    }

    fn guests(&self) -> impl Iterator<Item = GuestId> {
        self.taken.iter().flat_map(|unit| self.units[*unit as usize].iter().copied())
    }

    fn shift(&mut self, nth: usize, to: HostId) {
        self.units[self.taken[nth] as usize].iter().for_each(|guest| self.state.shift(*guest, to));
    }
}
