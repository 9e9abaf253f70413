//! Makes realistic clusters from a seed, to try and measure things on. Their content is drawn at random, and nothing is
//! broken in them.
//!
//! Hosts are in racks of 20, and racks in up to 4 server rooms; a rack's hosts are alike. Guests have one of six sizes.
//! Memory is reserved, and used on both hosts while a guest moves; everything else is measured load. Guests come as
//! applications of tenants. Some tenants are in one room only or prefer one, and some applications need hosts with a
//! licence. Of the applications with several guests, most have their guests apart, on different racks, or together.
//! With about 20 guests a host, 72 % of the memory is in use.

use crate::bits::Bits;
use crate::dice::Dice;
use crate::problem::{
    Group, GroupId, Guest, GuestId, Host, HostId, HostMoves, NOWHERE, Problem, Resource, Spread, Strength, Weights,
};
use crate::score::Score;
use crate::state::State;

/// Index of memory in [`Problem::resources`], in MiB.
pub const MEMORY: usize = 0;
/// Index of CPU load, in hundredths of a core.
pub const CPU: usize = 1;
/// Index of disk load, in MB/s.
pub const DISK: usize = 2;
/// Index of network load, in Mb/s.
pub const NETWORK: usize = 3;

/// The index of racks in [`Problem::levels`].
pub const RACK: usize = 0;
/// The index of server rooms in [`Problem::levels`].
pub const SERVER_ROOM: usize = 1;

const HOSTS_PER_RACK: usize = 20;
const ROOMS_MAX: usize = 4;
const GIB: i64 = 1024;
/// How much of all hosts' memory the guests have, in per cent.
const MEMORY_PERCENT: i64 = 72;
/// The memory that a host keeps for itself, in MiB.
const HOST_MEMORY: i64 = 8 * GIB;
/// The cores, and the memory in GiB, of each generation of hosts.
const GENERATIONS: [(i64, i64); 3] = [(32, 256), (48, 384), (64, 512)];
/// The sizes of guests: the memory in GiB, and how many guests in a hundred have it.
const SIZES: [(i64, usize); 6] = [(2, 12), (4, 22), (8, 27), (16, 24), (32, 10), (64, 5)];
/// One host in this many has the licence.
const LICENSED_EVERY: usize = 16;
/// On how many hosts a guest is tried before all hosts are.
const TRIES: usize = 8;

/// Makes a cluster of this many hosts and guests, which is the same for the same seed. A guest that fits nowhere
/// without breaking a rule is nowhere. With 20 guests a host and a hundred hosts or more, there is no such guest.
///
/// # Panics
///
/// If `hosts` is 0.
pub fn fleet(hosts: usize, guests: usize, seed: u64) -> Problem {
    assert!(hosts > 0, "guests need hosts");
    let mut fleet = Fleet::new(hosts, guests, seed);
    let tenant_max = (guests / 40).max(1);
    while fleet.problem.guests.len() < guests {
        let more = 1 + fleet.dice.below(tenant_max).min(guests - fleet.problem.guests.len() - 1);
        fleet.add_tenant(more);
    }
    fleet.place();
    fleet.age();
    fleet.problem
}

/// Makes a host fail: no guest can be on it, and its guests are nowhere.
pub fn fail(problem: &mut Problem, host: HostId) {
    let Host { capacity, safe, .. } = &mut problem.hosts[host as usize];
    capacity.iter_mut().chain(safe).for_each(|amount| *amount = 0);
    problem.initial.iter_mut().filter(|on| **on == host).for_each(|on| *on = NOWHERE);
}

/// Makes the load of a host's guests grow alike until they want a quarter more CPU than the host has.
pub fn overload(problem: &mut Problem, host: HostId) {
    let wanted = problem.hosts[host as usize].capacity[CPU] * 5 / 4;
    let all = problem.guests.iter_mut().zip(&problem.initial);
    let mut guests: Vec<&mut Guest> = all.filter(|(_, on)| **on == host).map(|(guest, _)| guest).collect();
    let used: i64 = guests.iter().map(|guest| guest.demand[CPU]).sum();
    for guest in &mut guests {
        guest.demand[CPU] = guest.demand[CPU] * wanted / used.max(1) + 1;
    }
}

struct Fleet {
    dice: Dice,
    problem: Problem,
    /// The memory that guests should have on average, and the memory that all have so far.
    memory_mean: i64,
    memory: i64,
}

/// What all guests of a tenant have in common.
struct Tenant {
    owners: Option<u32>,
    preference: Option<u32>,
}

impl Fleet {
    fn new(hosts: usize, guests: usize, seed: u64) -> Fleet {
        let racks = hosts.div_ceil(HOSTS_PER_RACK);
        let rooms = racks.min(ROOMS_MAX);
        let host = |n: usize| {
            let rack = n / HOSTS_PER_RACK;
            let (cores, memory) = GENERATIONS[rack % GENERATIONS.len()];
            let capacity = vec![memory * GIB - HOST_MEMORY, cores * 100, 4000, 25_000];
            // A host whose load is above these limits feels slow.
            let safe = [100, 80, 70, 70].iter().zip(&capacity).map(|(percent, most)| most * percent / 100).collect();
            Host { areas: vec![rack as u32, (rack % rooms) as u32], capacity, safe }
        };
        let hosts: Vec<Host> = (0..hosts).map(host).collect();
        let in_room = |room: usize| (0..).zip(&hosts).filter(move |(_, host)| host.areas[SERVER_ROOM] as usize == room);
        // One set of owners for each room, and one of the hosts with the licence.
        let mut owners: Vec<Bits> = (0..rooms).map(|room| in_room(room).map(|(host, _)| host).collect()).collect();
        owners.push((0..hosts.len() as HostId).step_by(LICENSED_EVERY).collect());
        let dislike =
            |room: usize| hosts.iter().map(|host| 5 * i64::from(host.areas[SERVER_ROOM] as usize != room)).collect();
        let measured = Resource { transient: false, load_weight: 1 };
        let problem = Problem {
            resources: vec![Resource { transient: true, load_weight: 0 }, measured.clone(), measured.clone(), measured],
            levels: vec![racks as u32, rooms as u32],
            preferences: (0..rooms).map(dislike).collect(),
            hosts,
            groups: Vec::new(),
            guests: Vec::new(),
            balances: Vec::new(),
            weights: Weights { guest_move: 1, ..Weights::default() },
            host_moves: HostMoves::Uniform(0),
            owners,
            initial: Vec::new(),
        };
        let memory: i64 = problem.hosts.iter().map(|host| host.capacity[MEMORY]).sum();
        let memory_mean = memory * MEMORY_PERCENT / 100 / guests.max(1) as i64;
        Fleet { dice: Dice::new(seed), problem, memory_mean, memory: 0 }
    }

    fn add_tenant(&mut self, guests: usize) {
        let rooms = self.problem.levels[SERVER_ROOM] as usize;
        let room = self.dice.below(rooms) as u32;
        let tenant = Tenant {
            owners: self.dice.chance(0.12).then_some(room),
            preference: self.dice.chance(0.25).then_some(room),
        };
        let mut left = guests;
        while left > 0 {
            let members = 1 + self.dice.below(12).min(left - 1);
            self.add_application(&tenant, members);
            left -= members;
        }
    }

    fn add_application(&mut self, tenant: &Tenant, members: usize) {
        let licensed = self.problem.levels[SERVER_ROOM];
        let owners = if members == 1 && self.dice.chance(0.2) { Some(licensed) } else { tenant.owners };
        let group = if members > 1 { self.draw_group(members, owners.is_some()) } else { None };
        let groups: Vec<GroupId> = group.iter().map(|_| self.problem.groups.len() as GroupId).collect();
        self.problem.groups.extend(group);
        // Takes larger or smaller sizes so that the sum becomes what it should be.
        let (one, other) = (self.draw_size() * GIB, self.draw_size() * GIB);
        let is_short = self.memory < self.memory_mean * self.problem.guests.len() as i64;
        let memory = if is_short { one.max(other) } else { one.min(other) };
        self.memory += memory * members as i64;
        for _ in 0..members {
            let demand = vec![memory, self.draw_cpu(memory), self.draw_load(15, 300), self.draw_load(100, 2000)];
            self.problem.guests.push(Guest {
                demand,
                groups: groups.clone(),
                // About the seconds that the move takes at 10 Gb/s.
                move_cost: memory / GIB,
                owners,
                preference: tenant.preference,
            });
        }
    }

    fn draw_group(&mut self, members: usize, is_in_room: bool) -> Option<Group> {
        let [racks, rooms] = [RACK, SERVER_ROOM].map(|level| self.problem.levels[level] as usize);
        let racks = if is_in_room { racks / rooms } else { racks };
        let spread = Spread { level: RACK, areas_min: members.min(racks).min(3) as u32, strength: Strength::Hard };
        let kind = self.dice.below(100);
        let (apart, together, spread) = match kind {
            0..25 => (Some(Strength::Hard), None, Some(spread)),
            25..50 => (Some(Strength::Hard), None, None),
            50..65 => (Some(Strength::Soft(20)), None, None),
            65..75 if members <= 3 => (None, Some(Strength::Soft(10)), None),
            _ => return None,
        };
        Some(Group { apart, together, spread, ..Group::default() })
    }

    fn draw_size(&mut self) -> i64 {
        let mut left = self.dice.below(100);
        for (size, of_hundred) in SIZES {
            if left < of_hundred {
                return size;
            }
            left -= of_hundred;
        }
        unreachable!("all sizes together are of a hundred in a hundred")
    }

    /// Draws the CPU load: a core for 4 GiB, though most guests do little most of the time.
    fn draw_cpu(&mut self, memory: i64) -> i64 {
        let cores = (memory / (4 * GIB)).max(1);
        let busy = self.dice.unit();
        ((0.05 + 0.95 * busy * busy) * (cores * 100) as f64) as i64
    }

    /// Draws a load that is little for most guests, and much for one guest in twenty.
    fn draw_load(&mut self, little: usize, much: usize) -> i64 {
        let most = if self.dice.chance(0.05) { much } else { little };
        self.dice.below(most + 1) as i64
    }

    /// Places all guests where nothing breaks, each on the best of a few hosts. Guests with the least choice are placed
    /// first.
    fn place(&mut self) {
        let problem = &mut self.problem;
        problem.initial = vec![NOWHERE; problem.guests.len()];
        let anywhere: Vec<HostId> = (0..problem.hosts.len() as HostId).collect();
        let sets: Vec<Vec<HostId>> = problem.owners.iter().map(|set| set.iter().collect()).collect();
        let mut used = vec![0; problem.hosts.len()];
        let mut state = State::new(problem, &problem.initial);
        for guest in by_choice(problem) {
            let hosts = problem.guests[guest as usize].owners.map_or(&anywhere, |set| &sets[set as usize]);
            // Compares rules first, then preferences and load, then the memory in use in steps of a fifth, as people
            // would.
            let score = |host: HostId| {
                let Score { broken, cost } = state.shift_score(guest, host);
                let memory = 5 * used[host as usize] / problem.hosts[host as usize].capacity[MEMORY];
                let breaks_nothing = broken <= -Score::UNPLACED && state.fits(guest, host, None);
                breaks_nothing.then_some(((broken, cost + memory), host))
            };
            let few = (0..TRIES).filter_map(|_| score(*self.dice.pick(hosts))).min_by_key(|(score, _)| *score);
            // A group that has to be spread needs another rack, so all hosts are tried.
            let groups = &problem.guests[guest as usize].groups;
            let is_spread = groups.iter().any(|group| problem.groups[*group as usize].spread.is_some());
            let few = few.filter(|((broken, _), _)| !is_spread || *broken < -Score::UNPLACED);
            let best = few.or_else(|| hosts.iter().filter_map(|host| score(*host)).min_by_key(|(score, _)| *score));
            if let Some((_, host)) = best {
                used[host as usize] += problem.guests[guest as usize].demand[MEMORY];
                state.shift(guest, host);
            }
        }
        let initial = state.assignment().to_vec();
        self.problem.initial = initial;
    }

    /// Changes the CPU load of half of the guests, as it changes with time, within what their hosts' CPUs allow.
    fn age(&mut self) {
        let mut free: Vec<i64> = self.problem.hosts.iter().map(|host| host.capacity[CPU]).collect();
        let placed: Vec<(usize, usize)> = (0..)
            .zip(&self.problem.initial)
            .filter(|(_, host)| **host != NOWHERE)
            .map(|(guest, host)| (guest, *host as usize))
            .collect();
        placed.iter().for_each(|(guest, host)| free[*host] -= self.problem.guests[*guest].demand[CPU]);
        for (guest, host) in placed {
            let load = self.draw_cpu(self.problem.guests[guest].demand[MEMORY]);
            let more = load - self.problem.guests[guest].demand[CPU];
            if self.dice.chance(0.5) && more <= free[host] {
                self.problem.guests[guest].demand[CPU] = load;
                free[host] -= more;
            }
        }
    }
}

/// Returns the guests in order of their choice of hosts, those with the least first.
fn by_choice(problem: &Problem) -> Vec<GuestId> {
    let mut guests: Vec<GuestId> = (0..problem.guests.len() as GuestId).collect();
    guests.sort_by_key(|guest| {
        let of = &problem.guests[*guest as usize];
        (of.owners.is_none(), -of.demand[MEMORY])
    });
    guests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::{Least, moves_min};
    use crate::verdict::{Breach, judge};

    #[test]
    fn nothing_is_broken_at_first() {
        for seed in 0..4 {
            let problem = fleet(100, 2000, seed);
            assert_eq!((problem.hosts.len(), problem.guests.len(), problem.check()), (100, 2000, Ok(())));
            let verdict = judge(&problem, &problem.initial);
            assert_eq!(verdict.hard, [], "seed {seed}");
            let used: i64 = problem.guests.iter().map(|guest| guest.demand[MEMORY]).sum();
            let all: i64 = problem.hosts.iter().map(|host| host.capacity[MEMORY]).sum();
            assert!((70..75).contains(&(100 * used / all)), "{used} MiB of {all}");
        }
    }

    #[test]
    fn there_are_all_kinds_of_rules() {
        let problem = fleet(100, 2000, 1);
        let groups = |is: &dyn Fn(&Group) -> bool| problem.groups.iter().filter(|group| is(group)).count();
        assert!(groups(&|group| group.apart == Some(Strength::Hard)) > 50);
        assert!(groups(&|group| group.spread.is_some_and(|spread| spread.areas_min > 1)) > 25);
        assert!(groups(&|group| matches!(group.apart, Some(Strength::Soft(_)))) > 15);
        assert!(groups(&|group| group.together.is_some()) > 0);
        let guests = |is: &dyn Fn(&Guest) -> bool| problem.guests.iter().filter(|guest| is(guest)).count();
        assert!(guests(&|guest| guest.owners == Some(problem.levels[SERVER_ROOM])) > 5, "some need the licence");
        assert!(guests(&|guest| guest.owners.is_some()) > 100);
        assert!(guests(&|guest| guest.preference.is_some()) > 150);
    }

    #[test]
    fn it_is_the_same_for_the_same_seed() {
        assert_eq!(fleet(40, 600, 7), fleet(40, 600, 7));
        assert_ne!(fleet(40, 600, 7), fleet(40, 600, 8));
    }

    #[test]
    fn what_does_not_fit_is_nowhere() {
        let crowded = fleet(2, 400, 3);
        assert!(crowded.initial.contains(&NOWHERE));
        let verdict = judge(&crowded, &crowded.initial);
        assert!(verdict.hard.iter().all(|breach| matches!(breach, Breach::Unplaced { .. } | Breach::Spread { .. })));
    }

    #[test]
    fn a_host_that_fails_leaves_its_guests_nowhere() {
        let mut problem = fleet(100, 2000, 2);
        let guests = problem.initial.iter().filter(|host| **host == 5).count();
        fail(&mut problem, 5);
        assert_eq!(moves_min(&problem), Least { moves: 0, placements: guests, is_impossible: false });
        assert!(guests > 5);
        let mut back = problem.clone();
        back.initial.iter_mut().filter(|host| **host == NOWHERE).for_each(|host| *host = 5);
        assert!(!judge(&problem, &back.initial).is_valid(), "nobody can be there any more");
    }

    #[test]
    fn a_host_is_overloaded_and_nothing_else() {
        let mut problem = fleet(100, 2000, 2);
        overload(&mut problem, 5);
        let hard = judge(&problem, &problem.initial).hard;
        assert!(matches!(hard[..], [Breach::Overload { host: 5, resource: CPU, .. }]), "{hard:?}");
        assert!((1..8).contains(&moves_min(&problem).moves), "{:?}", moves_min(&problem));
    }
}
