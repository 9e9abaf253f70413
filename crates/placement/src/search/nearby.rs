//! Large neighbourhood search (Shaw: "Using constraint programming and local search methods to solve vehicle routing
//! problems", CP 1998): some guests are taken from some hosts, and put back on these in the best of all ways. It finds
//! what takes several moves of which each by itself breaks something: guests that change places in a ring, hosts that
//! change all of theirs.
//!
//! All ways can be looked at where there are few; where there are many, annealing has better use for the time.

use super::units::{UnitId, units};
use crate::dice::Dice;
use crate::problem::{GuestId, HostId, NOWHERE, Problem};
use crate::score::Score;
use crate::state::State;
use crate::verdict::members;

/// Most hosts and units for it.
const HOSTS_MAX: usize = 16;
const UNITS_MAX: usize = 200;
/// Most ways that the units taken out could be put back in.
const WAYS_MAX: usize = 5_000;

/// The search around one assignment.
pub(super) struct Nearby<'a> {
    state: State<'a>,
    units: Vec<Vec<GuestId>>,
    /// All hosts, those first that units are taken from, which are so many.
    hosts: Vec<HostId>,
    among: usize,
    /// Who is out, and the best places for them so far.
    taken: Vec<UnitId>,
    best: Vec<HostId>,
    score: Score,
    /// Placements that are still to be looked at.
    left: i64,
}

impl<'a> Nearby<'a> {
    /// None where there are too many hosts or guests for it.
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

    /// What it has.
    pub(super) fn state(&self) -> &State<'a> {
        &self.state
    }

    /// Goes on from another assignment.
    pub(super) fn restore(&mut self, at: &[HostId]) {
        (0..).zip(at).for_each(|(guest, host)| self.state.shift(guest, *host));
        self.score = self.state.score();
    }

    /// Goes on by so many placements, counted over all calls.
    pub(super) fn run(&mut self, tries: u64, dice: &mut Dice) {
        self.left += tries as i64;
        while self.left > 0 {
            self.step(dice);
        }
    }

    fn step(&mut self, dice: &mut Dice) {
        // At least for the choice: nobody may be on these hosts.
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

    /// Some hosts, and who is taken from them: all, or as many as could be put back in few enough ways.
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

    /// Tries all places for those from `nth` on. `over`: how much the hosts are overloaded more by those before.
    fn put_back(&mut self, nth: usize, over: i64) {
        if nth == self.taken.len() {
            // What is as good is taken, too: there may be a way from there.
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
            // It only grows with those to come.
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
