//! Checks that a problem is well formed: nothing refers to what does not exist, and no sum can grow beyond what is
//! counted exactly.

use thiserror::Error;

use super::{GroupId, HostMoves, NOWHERE, Problem, Strength};

/// All sums of amounts and of costs stay below this number. Up to 2^53, floating point numbers represent integers
/// exactly.
const MOST: i128 = 1 << 53;
/// The most bytes that [`State`](crate::state::State) may use to record where groups are: 50,000 groups on 100,000
/// hosts fit.
const BOOKS_MAX: u128 = 1 << 30;

/// Why a problem is not well formed. Indices are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Flaw {
    /// A list does not have the length that it must have.
    #[error("{what} has {has} entries instead of {wants}")]
    Length {
        /// The list, in words.
        what: String,
        /// How many entries the list has.
        has: usize,
        /// How many entries the list should have.
        wants: usize,
    },
    /// A number refers to something that does not exist.
    #[error("{what} refers to number {number} of {of}, of which there are {count}")]
    Dangling {
        /// What refers, in words.
        what: String,
        /// The number that is used.
        number: usize,
        /// The kind of thing that is referred to.
        of: &'static str,
        /// How many of that kind there are.
        count: usize,
    },
    /// An amount or a cost is below 0.
    #[error("{what} is {amount}, which is below 0")]
    Negative {
        /// The amount or cost, in words.
        what: String,
        /// The value.
        amount: i64,
    },
    /// A sum could grow beyond what is counted exactly.
    #[error("{what} can come to more than 2^53: take larger units or smaller weights")]
    TooLarge {
        /// The sum, in words.
        what: &'static str,
    },
    /// The record of where groups are would take too much memory.
    #[error(
        "{groups} groups on {hosts} hosts in {areas} areas of all levels take {bytes} bytes of books, where \
         {BOOKS_MAX} are allowed: \
         take fewer groups or areas"
    )]
    TooMany {
        /// The number of groups.
        groups: usize,
        /// The number of hosts.
        hosts: usize,
        /// The number of areas, over all levels.
        areas: u64,
        /// The memory needed: for each group one bit per host and one count per area.
        bytes: u128,
    },
    /// A guest is in two groups that are apart.
    #[error("guest {guest} is in group {group} and in group {of}, which are apart")]
    Both {
        /// The guest's number.
        guest: usize,
        /// One of the guest's groups.
        group: usize,
        /// The guest's other group.
        of: GroupId,
    },
    /// A guest lists a group twice.
    #[error("guest {guest} is in a group twice")]
    Twice {
        /// The guest's number.
        guest: usize,
    },
}

fn length(what: impl FnOnce() -> String, has: usize, wants: usize) -> Result<(), Flaw> {
    if has == wants { Ok(()) } else { Err(Flaw::Length { what: what(), has, wants }) }
}

fn refers(what: impl FnOnce() -> String, number: usize, of: &'static str, count: usize) -> Result<(), Flaw> {
    if number < count { Ok(()) } else { Err(Flaw::Dangling { what: what(), number, of, count }) }
}

fn amounts<'a>(what: impl Fn() -> String, all: impl IntoIterator<Item = &'a i64>) -> Result<(), Flaw> {
    match all.into_iter().find(|amount| **amount < 0) {
        None => Ok(()),
        Some(amount) => Err(Flaw::Negative { what: what(), amount: *amount }),
    }
}

impl Problem {
    /// Checks that all references are valid, and that all sums can be counted exactly.
    ///
    /// # Errors
    ///
    /// The first [`Flaw`] that is found.
    pub fn check(&self) -> Result<(), Flaw> {
        self.check_hosts()?;
        self.check_groups()?;
        self.check_books()?;
        self.check_guests()?;
        self.check_sums()
    }

    fn check_hosts(&self) -> Result<(), Flaw> {
        let (resources, levels) = (self.resources.len(), self.levels.len());
        amounts(|| "a load's weight".into(), self.resources.iter().map(|resource| &resource.load_weight))?;
        for (n, host) in self.hosts.iter().enumerate() {
            length(|| format!("the capacity of host {n}"), host.capacity.len(), resources)?;
            length(|| format!("the safe amount of host {n}"), host.safe.len(), resources)?;
            length(|| format!("the areas of host {n}"), host.areas.len(), levels)?;
            amounts(|| format!("an amount of host {n}"), host.capacity.iter().chain(&host.safe))?;
            for (area, count) in host.areas.iter().zip(&self.levels) {
                refers(|| format!("host {n}"), *area as usize, "areas", *count as usize)?;
            }
        }
        for balance in &self.balances {
            refers(|| "a balance".into(), balance.first.max(balance.second), "resources", resources)?;
            amounts(|| "a balance".into(), [&balance.ratio, &balance.weight])?;
        }
        match &self.host_moves {
            HostMoves::Uniform(cost) => amounts(|| "the cost of moves between hosts".into(), [cost]),
            HostMoves::Matrix(rows) => {
                length(|| "the cost of moves between hosts".into(), rows.len(), self.hosts.len() * self.hosts.len())
            }
        }
    }

    fn check_groups(&self) -> Result<(), Flaw> {
        let hosts = self.hosts.len();
        let strength = |n: usize, of: Option<Strength>| match of {
            Some(Strength::Soft(weight)) => amounts(|| format!("the weight of a rule of group {n}"), [&weight]),
            _ => Ok(()),
        };
        for (n, group) in self.groups.iter().enumerate() {
            strength(n, group.apart)?;
            strength(n, group.together)?;
            if let Some(spread) = group.spread {
                strength(n, Some(spread.strength))?;
                refers(|| format!("the spread of group {n}"), spread.level, "levels", self.levels.len())?;
            }
            if let Some(even) = &group.even {
                let what = || format!("the skew of group {n}");
                strength(n, Some(even.strength))?;
                refers(what, even.level, "levels", self.levels.len())?;
                let areas = self.levels[even.level] as usize;
                even.areas.iter().try_for_each(|area| refers(what, area as usize, "areas", areas))?;
            }
            let needs = group.needs.iter().map(|need| ("a need", need.level, need.of, need.strength));
            let avoids = group.avoids.iter().map(|avoid| ("an avoidance", avoid.level, avoid.of, avoid.strength));
            for (what, level, of, force) in needs.chain(avoids) {
                strength(n, Some(force))?;
                refers(|| format!("{what} of group {n}"), level, "levels", self.levels.len())?;
                refers(|| format!("{what} of group {n}"), of as usize, "groups", self.groups.len())?;
            }
            for host in group.among.iter().flat_map(|set| set.iter()) {
                refers(|| format!("a set of group {n}"), host as usize, "hosts", hosts)?;
            }
        }
        for host in self.owners.iter().flat_map(|set| set.iter()) {
            refers(|| "a set of owners".into(), host as usize, "hosts", hosts)?;
        }
        for preference in &self.preferences {
            length(|| "a preference".into(), preference.len(), hosts)?;
            amounts(|| "a preference".into(), preference)?;
        }
        Ok(())
    }

    /// Checks the memory for a bit per group and host, and a count per group and area.
    fn check_books(&self) -> Result<(), Flaw> {
        let (groups, hosts) = (self.groups.len(), self.hosts.len());
        let areas = self.levels.iter().copied().map(u64::from).sum();
        let bytes = groups as u128 * (hosts as u128 / 8 + 4 * u128::from(areas));
        if bytes <= BOOKS_MAX { Ok(()) } else { Err(Flaw::TooMany { groups, hosts, areas, bytes }) }
    }

    fn check_guests(&self) -> Result<(), Flaw> {
        length(|| "where guests are".into(), self.initial.len(), self.guests.len())?;
        for (n, (guest, initial)) in self.guests.iter().zip(&self.initial).enumerate() {
            let who = || format!("guest {n}");
            length(|| format!("the demand of guest {n}"), guest.demand.len(), self.resources.len())?;
            amounts(|| format!("an amount of guest {n}"), guest.demand.iter().chain([&guest.move_cost]))?;
            for group in &guest.groups {
                refers(who, *group as usize, "groups", self.groups.len())?;
            }
            let mut groups = guest.groups.clone();
            groups.sort_unstable();
            if groups.windows(2).any(|two| two[0] == two[1]) {
                return Err(Flaw::Twice { guest: n });
            }
            for group in &guest.groups {
                let avoids = &self.groups[*group as usize].avoids;
                if let Some(avoid) = avoids.iter().find(|avoid| groups.binary_search(&avoid.of).is_ok()) {
                    return Err(Flaw::Both { guest: n, group: *group as usize, of: avoid.of });
                }
            }
            if let Some(owners) = guest.owners {
                refers(who, owners as usize, "sets of owners", self.owners.len())?;
            }
            if let Some(preference) = guest.preference {
                refers(who, preference as usize, "preferences", self.preferences.len())?;
            }
            if *initial != NOWHERE {
                refers(who, *initial as usize, "hosts", self.hosts.len())?;
            }
        }
        Ok(())
    }

    /// Checks the largest value that each sum could reach. Factors are below 2^63, and there are fewer than 2^32 of
    /// anything. A product that could leave 127 bits is cut off, far above the limit.
    fn check_sums(&self) -> Result<(), Flaw> {
        let sum = |all: &mut dyn Iterator<Item = i64>| all.map(i128::from).fold(0i128, i128::saturating_add);
        let product = |factors: &[i128]| factors.iter().copied().fold(1i128, i128::saturating_mul);
        let limit = |what: &'static str, most: i128| if most < MOST { Ok(()) } else { Err(Flaw::TooLarge { what }) };
        let mut cost = 0i128;
        let mut total = Vec::new();
        for (r, resource) in self.resources.iter().enumerate() {
            let demand = sum(&mut self.guests.iter().map(|guest| guest.demand[r]));
            let capacity = sum(&mut self.hosts.iter().map(|host| host.capacity[r].max(host.safe[r])));
            limit("a resource", demand.saturating_add(capacity))?;
            total.push(demand + capacity);
            cost = cost.saturating_add(product(&[demand, resource.load_weight.into()]));
        }
        for balance in &self.balances {
            let free = product(&[total[balance.first], balance.ratio.into()]).saturating_add(total[balance.second]);
            // The sum is counted even if its weight is 0.
            limit("a balance", free)?;
            cost = cost.saturating_add(product(&[free, balance.weight.into()]));
        }
        let guests = self.guests.len() as i128;
        let host_move = match &self.host_moves {
            HostMoves::Uniform(cost) => *cost,
            HostMoves::Matrix(rows) => rows.iter().copied().max().map_or(0, i64::from),
        };
        let moves = sum(&mut self.guests.iter().map(|guest| guest.move_cost));
        let preference = self.preferences.iter().flatten().copied().max().unwrap_or(0);
        let weights = &self.weights;
        amounts(|| "the weight of moves".into(), [&weights.guest_move, &weights.group_move, &weights.host_move])?;
        let of_moves = [
            product(&[moves, weights.guest_move.into()]),
            product(&[guests, host_move.into(), weights.host_move.into()]),
            product(&[guests, weights.group_move.into()]),
            product(&[guests, preference.into()]),
        ];
        cost = of_moves.into_iter().fold(cost, i128::saturating_add);
        let mut members = vec![0i128; self.groups.len()];
        self.guests.iter().flat_map(|guest| &guest.groups).for_each(|group| members[*group as usize] += 1);
        let sizes = members.clone();
        for (group, members) in self.groups.iter().zip(members) {
            let even = group.even.as_ref().map(|even| even.strength);
            let needs = group.needs.iter().map(|need| need.strength);
            for avoid in &group.avoids {
                if let Strength::Soft(weight) = avoid.strength {
                    let both = members + sizes[avoid.of as usize];
                    cost = cost.saturating_add(product(&[both, weight.into()]));
                }
            }
            let alone = [group.apart, group.together, group.spread.map(|spread| spread.strength), even];
            for strength in alone.into_iter().flatten().chain(needs) {
                if let Strength::Soft(weight) = strength {
                    let areas = group.spread.map_or(0, |spread| spread.areas_min.into());
                    cost = cost.saturating_add(product(&[members.max(areas), weight.into()]));
                }
            }
        }
        limit("the cost", cost)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases;
    use crate::dice::Dice;
    use crate::problem::{Balance, Group};

    proptest! {
        #[test]
        fn the_cases_of_tests_are_problems(seed: u64) {
            prop_assert_eq!(cases::problem(&mut Dice::new(seed), 8, 20).check(), Ok(()));
        }
    }

    fn flaw(spoil: impl FnOnce(&mut Problem)) -> String {
        // The problem must have hosts, guests and groups.
        let mut problem = (0..).map(|seed| cases::problem(&mut Dice::new(seed), 8, 20));
        let mut problem = problem.find(|problem| problem.hosts.len() > 2 && problem.guests.len() > 2).unwrap();
        spoil(&mut problem);
        problem.check().expect_err("it is spoilt").to_string()
    }

    #[test]
    fn what_refers_to_nothing_is_told() {
        assert!(flaw(|p| p.initial[1] = 900).starts_with("guest 1 refers to number 900 of hosts"));
        assert!(flaw(|p| p.guests[2].groups = vec![77]).starts_with("guest 2 refers to number 77 of groups"));
        assert!(flaw(|p| p.guests[2].owners = Some(9)).starts_with("guest 2 refers to number 9 of sets of owners"));
        assert!(flaw(|p| p.hosts[1].areas[0] = 500).starts_with("host 1 refers to number 500 of areas"));
        assert!(flaw(|p| p.initial.truncate(1)).starts_with("where guests are has"));
        assert!(flaw(|p| p.guests[0].demand.push(1)).starts_with("the demand of guest 0 has"));
        assert!(
            flaw(|p| p.host_moves = HostMoves::Matrix(vec![1])).starts_with("the cost of moves between hosts has 1")
        );
    }

    #[test]
    fn what_cannot_be_counted_is_told() {
        assert!(flaw(|p| p.guests[0].demand[0] = -1).starts_with("an amount of guest 0 is -1"));
        assert_eq!(
            flaw(|p| p.guests[0].demand[0] = 1 << 53),
            "a resource can come to more than 2^53: take larger units or smaller weights"
        );
        let dear = |p: &mut Problem| (p.guests[0].move_cost, p.weights.guest_move) = (i64::MAX, i64::MAX);
        assert_eq!(flaw(dear), "the cost can come to more than 2^53: take larger units or smaller weights");
        let balance = Balance { first: 0, second: 0, ratio: i64::MAX, weight: 0 };
        assert_eq!(
            flaw(|p| p.balances = vec![balance]),
            "a balance can come to more than 2^53: take larger units or smaller weights"
        );
    }

    #[test]
    fn what_takes_absurd_memory_is_told() {
        let told = flaw(|p| {
            p.levels[0] = u32::MAX;
            p.groups.push(Group::default());
        });
        assert!(told.contains(" groups on "), "{told}");
        assert!(told.ends_with("where 1073741824 are allowed: take fewer groups or areas"), "{told}");
    }
}
