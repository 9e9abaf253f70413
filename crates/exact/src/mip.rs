//! Turns a problem into a mixed-integer program with exactly the meaning that [`skein_placement::verdict`] gives it.
//!
//! Guests that are alike in all that matters are of one kind. The program's columns are how many of each kind are on
//! each host: rules, load and moves are about these counts. All other columns are what a cost or a rule needs to be
//! linear.

use std::collections::BTreeMap;
use std::time::Duration;

use highs::{Col, HighsModelStatus, HighsSolutionStatus, RowProblem, Sense};
use skein_placement::problem::{
    Avoid, Even, Group, GroupId, Guest, GuestId, HostId, NOWHERE, NeedsRule, Problem, Spread, Strength,
};

use crate::error::ExactError;

/// The most factors that are not 0. They take some gigabytes, and HiGHS does not get through more in an hour.
pub(crate) const FACTORS_MAX: usize = 1 << 24;
/// Rows are scaled so that factors stay below this, because HiGHS's tolerances are absolute.
const FACTOR_MAX: i64 = 1 << 20;
/// The possible error of a bound: a constant, and a part for each unit of the bound. HiGHS's dual tolerance is 1e-7,
/// and sums of doubles of many terms are good for some 12 digits. Both stay below 1, a cost's unit, up to costs of
/// 10^10.
const BOUND_ERROR: (f64, f64) = (1e-4, 1e-11);

/// The answer of HiGHS.
pub(crate) struct Answer {
    /// The assignment that it found, if any.
    pub(crate) assignment: Option<Vec<HostId>>,
    /// A lower bound of the cost. `None`: there is no assignment.
    pub(crate) bound: Option<i64>,
}

/// The index of a column.
type Var = usize;
/// The factors of columns.
type Terms = BTreeMap<Var, i64>;

/// Guests that are alike: they have the same owners, costs, demand and groups.
struct Kind<'a> {
    of: &'a Guest,
    initial: HostId,
    members: Vec<GuestId>,
    /// For each host where the guests may be, the column with their count there.
    on: BTreeMap<HostId, Var>,
}

impl Kind<'_> {
    fn count(&self) -> i64 {
        self.members.len() as i64
    }
}

struct Mip<'a> {
    problem: &'a Problem,
    kinds: Vec<Kind<'a>>,
    /// The kinds in each group.
    groups: Vec<Vec<usize>>,
    rows: RowProblem,
    cols: Vec<Col>,
}

/// Solves a problem in the given time.
pub(crate) fn solve(problem: &Problem, time: Duration) -> Result<Answer, ExactError> {
    let kinds = kinds(problem);
    fits(problem, factors(problem, &kinds))?;
    let mut groups = vec![Vec::new(); problem.groups.len()];
    for (k, kind) in kinds.iter().enumerate() {
        kind.of.groups.iter().for_each(|group| groups[*group as usize].push(k));
    }
    let mut mip = Mip { problem, kinds, groups, rows: RowProblem::new(), cols: Vec::new() };
    mip.guests();
    mip.hosts();
    mip.group_moves();
    for id in 0..problem.groups.len() as GroupId {
        mip.group(id);
    }
    mip.run(time)
}

/// Checks that the number of factors is not too large. It grows with hosts and with guests.
fn fits(problem: &Problem, factors: usize) -> Result<(), ExactError> {
    if factors <= FACTORS_MAX {
        return Ok(());
    }
    let part = (FACTORS_MAX as f64 / factors as f64).sqrt();
    let of = |count: usize| (count as f64 * part) as usize;
    let (hosts, guests) = (of(problem.hosts.len()), of(problem.guests.len()));
    Err(ExactError::TooLarge { factors, most: FACTORS_MAX, hosts, guests })
}

/// Returns the kinds of guests.
fn kinds(problem: &Problem) -> Vec<Kind<'_>> {
    let mut alike: BTreeMap<_, Vec<GuestId>> = BTreeMap::new();
    for (id, (guest, initial)) in (0..).zip(problem.guests.iter().zip(&problem.initial)) {
        let mut groups = guest.groups.clone();
        groups.sort_unstable();
        let what = (*initial, groups, &guest.demand, guest.move_cost, guest.owners, guest.preference);
        alike.entry(what).or_default().push(id);
    }
    let kind = |members: Vec<GuestId>| {
        let first = members[0] as usize;
        Kind { of: &problem.guests[first], initial: problem.initial[first], members, on: BTreeMap::new() }
    };
    alike.into_values().map(kind).collect()
}

/// Returns about how many factors there will be, and not many more: for each kind and host, what the kind takes part
/// in.
fn factors(problem: &Problem, kinds: &[Kind<'_>]) -> usize {
    let rules = |group: &Group| {
        usize::from(group.apart.is_some())
            + 3 * usize::from(group.together.is_some())
            + 2 * usize::from(group.spread.is_some())
            + 2 * usize::from(group.even.is_some())
            + 3 * group.needs.len()
            + 3 * group.avoids.len()
            + (1 + group.among.len()) * usize::from(!group.among.is_empty())
            + usize::from(group.counts_moves)
    };
    let rows = |kind: &Kind| {
        let groups: usize = kind.of.groups.iter().map(|group| rules(&problem.groups[*group as usize])).sum();
        1 + 2 * problem.resources.len() + problem.balances.len() + groups
    };
    kinds.iter().map(rows).fold(0, usize::saturating_add).saturating_mul(problem.hosts.len())
}

/// Returns the lowest power of two that makes all of these factors small enough.
fn unit(terms: &Terms) -> f64 {
    let most = terms.values().copied().map(i64::abs).max().unwrap_or(0);
    ((most / FACTOR_MAX + 1) as u64).next_power_of_two() as f64
}

impl Mip<'_> {
    /// Adds a column: a whole number from 0 to `most`.
    fn count(&mut self, most: i64, cost: i64) -> Var {
        self.cols.push(self.rows.add_integer_column(cost as f64, 0.0..=most as f64));
        self.cols.len() - 1
    }

    fn row(&mut self, most: f64, terms: &Terms, unit: f64) {
        let factors = terms.iter().map(|(var, factor)| (self.cols[*var], *factor as f64 / unit));
        self.rows.add_row(..=most / unit, factors.collect::<Vec<_>>());
    }

    /// Adds the row that a sum is at most `most`.
    fn at_most(&mut self, terms: &Terms, most: i64) {
        let unit = unit(terms);
        // The sum is a whole number. If the row is scaled, half a unit more lets in nothing else, and makes sure of
        // what just fits.
        let more = if unit > 1.0 { 0.5 } else { 0.0 };
        self.row(most as f64 + more, terms, unit);
    }

    /// Makes what a sum has beyond `most` cost.
    fn beyond(&mut self, terms: &Terms, most: i64, weight: i64) {
        if weight == 0 {
            return;
        }
        let unit = unit(terms);
        self.cols.push(self.rows.add_column(weight as f64 * unit, 0.0..));
        let mut terms = terms.clone();
        terms.insert(self.cols.len() - 1, -(unit as i64));
        self.row(most as f64, &terms, unit);
    }

    /// Adds a rule: a sum is at most `most`, or what it has beyond costs.
    fn rule(&mut self, strength: Strength, terms: &Terms, most: i64) {
        match strength {
            Strength::Hard => self.at_most(terms, most),
            Strength::Soft(weight) => self.beyond(terms, most, weight),
        }
    }

    /// Puts every guest on one host where it may be.
    fn guests(&mut self) {
        for k in 0..self.kinds.len() {
            let (guest, count) = (self.kinds[k].members[0], self.kinds[k].count());
            for host in 0..self.problem.hosts.len() as HostId {
                if self.problem.may_own(guest, host) {
                    let cost = self.problem.move_cost(guest, host) + self.problem.preference(guest, host);
                    let var = self.count(count, cost);
                    self.kinds[k].on.insert(host, var);
                }
            }
            let all: Vec<_> = self.kinds[k].on.values().map(|var| (self.cols[*var], 1.0)).collect();
            self.rows.add_row(count as f64..=count as f64, all);
        }
    }

    /// Returns what is used on a host, times a factor for each resource.
    fn used(&self, host: HostId, factor: impl Fn(usize) -> i64) -> Terms {
        let resources = 0..self.problem.resources.len();
        let used = |kind: &Kind| -> i64 { resources.clone().map(|r| factor(r) * kind.of.demand[r]).sum() };
        let on = self.kinds.iter().filter_map(|kind| Some((*kind.on.get(&host)?, used(kind))));
        on.filter(|(_, used)| *used != 0).collect()
    }

    fn hosts(&mut self) {
        let problem = self.problem;
        for (host, of) in (0..).zip(&problem.hosts) {
            for (r, resource) in problem.resources.iter().enumerate() {
                let used = self.used(host, |other| i64::from(other == r));
                self.beyond(&used, of.safe[r], resource.load_weight);
                self.capacity(host, r, used);
            }
            // This is ratio * (capacity1 - used1) - (capacity2 - used2), if above 0.
            for balance in problem.balances.iter().filter(|balance| balance.weight > 0) {
                let factor = |r| i64::from(r == balance.second) - balance.ratio * i64::from(r == balance.first);
                let most = of.capacity[balance.second] - balance.ratio * of.capacity[balance.first];
                self.beyond(&self.used(host, factor), most, balance.weight);
            }
        }
    }

    /// Limits what is used on a host. A guest that leaves its host still uses what is transient there: what was there
    /// stays, and whatever comes is added.
    fn capacity(&mut self, host: HostId, r: usize, mut used: Terms) {
        let mut free = self.problem.hosts[host as usize].capacity[r];
        if self.problem.resources[r].transient {
            for kind in self.kinds.iter().filter(|kind| kind.initial == host) {
                if let Some(stay) = kind.on.get(&host) {
                    used.remove(stay);
                }
                free -= kind.of.demand[r] * kind.count();
            }
        }
        self.at_most(&used, free);
    }

    /// Makes the most moves of a group cost: no group moves more than this.
    fn group_moves(&mut self) {
        let problem = self.problem;
        let weight = problem.weights.group_move;
        if weight == 0 {
            return;
        }
        let most = self.count(problem.guests.len() as i64, weight);
        let counted = (0..).zip(&problem.groups).filter(|(_, group)| group.counts_moves);
        for (id, _) in counted {
            let mut terms = Terms::from([(most, -1)]);
            let mut were = 0;
            for kind in self.members(id).filter(|kind| kind.initial != NOWHERE) {
                were += kind.count();
                terms.extend(kind.on.get(&kind.initial).map(|stay| (*stay, -1)));
            }
            self.at_most(&terms, -were);
        }
    }

    fn members(&self, id: GroupId) -> impl Iterator<Item = &Kind<'_>> {
        self.groups[id as usize].iter().map(|k| &self.kinds[*k])
    }

    /// Returns the members of a group on a host.
    fn on(&self, id: GroupId, host: HostId) -> Terms {
        self.members(id).filter_map(|kind| Some((*kind.on.get(&host)?, 1))).collect()
    }

    /// Returns the guests of these kinds in each area of a level.
    fn by_area<'k>(&self, kinds: impl Iterator<Item = &'k Kind<'k>>, level: usize) -> BTreeMap<u32, Terms> {
        let mut by_area: BTreeMap<u32, Terms> = BTreeMap::new();
        for (host, var) in kinds.flat_map(|kind| &kind.on) {
            by_area.entry(self.problem.hosts[*host as usize].areas[level]).or_default().insert(*var, 1);
        }
        by_area
    }

    fn group(&mut self, id: GroupId) {
        let problem = self.problem;
        let group = &problem.groups[id as usize];
        if self.members(id).next().is_none() {
            return;
        }
        if let Some(strength) = group.apart {
            for host in 0..problem.hosts.len() as HostId {
                self.rule(strength, &self.on(id, host), 1);
            }
        }
        if let Some(strength) = group.together {
            self.together(id, strength);
        }
        if let Some(spread) = &group.spread {
            self.spread(id, spread);
        }
        if let Some(even) = &group.even {
            self.even(id, even);
        }
        for need in &group.needs {
            self.need(id, need);
        }
        for avoid in &group.avoids {
            self.avoid(id, avoid);
        }
        if !group.among.is_empty() {
            self.among(id, group);
        }
    }

    /// Makes a column for each host that is 1 if the group is there. Their sum is at most 1, or each more host costs.
    fn together(&mut self, id: GroupId, strength: Strength) {
        let mut hosts = Terms::new();
        for host in 0..self.problem.hosts.len() as HostId {
            let there = self.count(1, 0);
            hosts.insert(there, 1);
            self.only_if(id, host, &[there]);
        }
        self.rule(strength, &hosts, 1);
    }

    /// Allows members on a host only if one of these columns is 1.
    fn only_if(&mut self, id: GroupId, host: HostId, any: &[Var]) {
        let row = |kind: &Kind| -> Option<Terms> {
            let any = any.iter().map(|var| (*var, -kind.count()));
            Some(any.chain([(*kind.on.get(&host)?, 1)]).collect())
        };
        let rows: Vec<Terms> = self.members(id).filter_map(row).collect();
        rows.iter().for_each(|terms| self.at_most(terms, 0));
    }

    /// Makes a group be in enough areas.
    fn spread(&mut self, id: GroupId, spread: &Spread) {
        let there = self.there(id, spread.level).into_values().map(|var| (var, -1)).collect();
        self.rule(spread.strength, &there, -i64::from(spread.areas_min));
    }

    /// Returns, for each area where the group can be, a column that can be 1 only if the group is there.
    fn there(&mut self, id: GroupId, level: usize) -> BTreeMap<u32, Var> {
        let mut there = BTreeMap::new();
        for (area, mut terms) in self.by_area(self.members(id), level) {
            terms.values_mut().for_each(|factor| *factor = -1);
            let var = self.count(1, 0);
            terms.insert(var, 1);
            self.at_most(&terms, 0);
            there.insert(area, var);
        }
        there
    }

    /// Limits each area to the fewest members and the skew, or makes what is beyond cost. The fewest are at most as
    /// many as each area has.
    fn even(&mut self, id: GroupId, even: &Even) {
        let mut by_area = self.by_area(self.members(id), even.level);
        let members: i64 = self.members(id).map(Kind::count).sum();
        let fewest = self.count(members, 0);
        for area in even.areas.iter() {
            let mut terms = by_area.remove(&area).unwrap_or_default();
            let mut least: Terms = terms.keys().map(|var| (*var, -1)).collect();
            least.insert(fewest, 1);
            self.at_most(&least, 0);
            terms.insert(fewest, -1);
            self.rule(even.strength, &terms, even.skew_max.into());
        }
    }

    /// Keeps one of two groups out of each area, or makes each member there but one a breach.
    fn avoid(&mut self, id: GroupId, avoid: &Avoid) {
        let groups = [id, avoid.of];
        let most = groups.map(|group| self.members(group).map(Kind::count).sum::<i64>());
        let [ours, mut theirs] = groups.map(|group| self.by_area(self.members(group), avoid.level));
        for (area, ours) in ours {
            let Some(theirs) = theirs.remove(&area) else { continue };
            // One of these two columns can be 1, and its group is not in the area then.
            let none = [self.count(1, 0), self.count(1, 0)];
            self.at_most(&none.iter().map(|var| (*var, 1)).collect(), 1);
            for ((terms, most), none) in [&ours, &theirs].into_iter().zip(most).zip(none) {
                let mut terms = terms.clone();
                terms.insert(none, most);
                self.at_most(&terms, most);
            }
            let mut both: Terms = ours.into_iter().chain(theirs).collect();
            both.extend(none.iter().map(|var| (*var, -most[0] - most[1])));
            self.rule(avoid.strength, &both, 1);
        }
    }

    /// Allows members in an area only if the group that they need is there, or makes its absence cost.
    fn need(&mut self, id: GroupId, need: &NeedsRule) {
        let there = self.there(need.of, need.level);
        let mut lacks: BTreeMap<u32, Var> = BTreeMap::new();
        if let Strength::Soft(weight) = need.strength {
            for area in self.by_area(self.members(id), need.level).into_keys() {
                let var = self.count(1, weight);
                lacks.insert(area, var);
            }
        }
        let mut rows = Vec::new();
        for kind in self.members(id) {
            for (area, mut terms) in self.by_area(std::iter::once(kind), need.level) {
                let may = [there.get(&area), lacks.get(&area)].into_iter().flatten();
                terms.extend(may.map(|var| (*var, -kind.count())));
                rows.push(terms);
            }
        }
        rows.iter().for_each(|terms| self.at_most(terms, 0));
    }

    /// Chooses one of the sets, and puts all members in it.
    fn among(&mut self, id: GroupId, group: &Group) {
        let sets: Vec<_> = group.among.iter().map(|set| (set, self.count(1, 0))).collect();
        self.at_most(&sets.iter().map(|(_, chosen)| (*chosen, 1)).collect(), 1);
        for host in 0..self.problem.hosts.len() as HostId {
            let with: Vec<_> = sets.iter().filter(|(set, _)| set.contains(host)).map(|(_, chosen)| *chosen).collect();
            self.only_if(id, host, &with);
        }
    }

    fn run(mut self, time: Duration) -> Result<Answer, ExactError> {
        // HiGHS needs at least one column.
        self.count(0, 0);
        let failed = |status: &dyn std::fmt::Debug| ExactError::Solver { status: format!("{status:?}") };
        let mut model = std::mem::take(&mut self.rows).try_optimise(Sense::Minimise).map_err(|e| failed(&e))?;
        model.make_quiet();
        model.set_option("threads", 1);
        model.set_option("parallel", "off");
        model.set_option("random_seed", 0);
        model.set_option("time_limit", time.as_secs_f64());
        model.set_option("mip_rel_gap", 0.0);
        // Costs are whole numbers, so a gap of 0.5 is exact. (A mip_feasibility_tolerance of 1e-9 made HiGHS 1.16 call
        // an assignment the best that was not; ERGO-Code/HiGHS#2033 advises against it.)
        model.set_option("mip_abs_gap", 0.5);
        // HiGHS is given no start: with one, HiGHS 1.16 called values the best that break the model's rows, or that are
        // less than any solution.
        let solved = model.try_solve().map_err(|e| failed(&e))?;
        let bound = match solved.status() {
            // No cost is below 0, so nothing is unbounded.
            HighsModelStatus::Infeasible | HighsModelStatus::UnboundedOrInfeasible => None,
            HighsModelStatus::Optimal | HighsModelStatus::ReachedTimeLimit => {
                let bound = solved.double_info_value(c"mip_dual_bound").map_err(|e| failed(&e))?;
                // If HiGHS has no bound it says -inf. No cost is below 0, so 0 is a bound.
                Some((bound - BOUND_ERROR.0 - BOUND_ERROR.1 * bound.abs()).max(0.0).ceil() as i64)
            }
            other => return Err(failed(&other)),
        };
        let found = bound.is_some() && solved.primal_solution_status() == HighsSolutionStatus::Feasible;
        Ok(Answer { assignment: found.then(|| self.assignment(solved.get_solution().columns())), bound })
    }

    /// Returns the assignment of a solution: the members of a kind are placed one after the other, by host.
    fn assignment(&self, values: &[f64]) -> Vec<HostId> {
        let mut assignment = vec![NOWHERE; self.problem.guests.len()];
        for kind in &self.kinds {
            let hosts = kind.on.iter().flat_map(|(host, var)| {
                std::iter::repeat_n(*host, values[*var].round().clamp(0.0, kind.count() as f64) as usize)
            });
            for (guest, host) in kind.members.iter().zip(hosts) {
                assignment[*guest as usize] = host;
            }
        }
        assignment
    }
}
