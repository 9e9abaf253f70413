//! Decides which hosts can sleep, and when they have to wake.
//!
//! A host can sleep if all its guests have a place on the hosts that stay awake, and what is expected soon and later
//! keeps the level `place` of each resource free there. With [`Config::spare`] the guests must have a place even after
//! so many of those hosts are lost, too, though only the `reserve` is kept free then. One host goes to sleep at a time,
//! the one with the least to move first, and only if some host could have slept for [`Config::settle_s`] on end. A host
//! wakes as soon as what is expected leaves less than `start` free of what all awake hosts have together, or guests are
//! broken which none of these hosts can take. No host goes to sleep that would have to wake at once. Between the two
//! levels nothing changes.
//!
//! Of hosts that vote on who runs what, a majority stays awake whatever the load:
//!
//! | hosts that vote | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 | 11 | n |
//! |---|---|---|---|---|---|---|---|---|---|---|---|---|
//! | stay awake | 1 | 2 | 2 | 3 | 3 | 4 | 4 | 5 | 5 | 6 | 6 | n / 2 + 1 |
//! | can sleep | 0 | 0 | 1 | 1 | 2 | 2 | 3 | 3 | 4 | 4 | 5 | (n - 1) / 2 |

use super::view::{BadView, By, Column, View, columns, expected, length, shift_broken};
use crate::bits::Bits;
use crate::problem::{GuestId, Host, HostId, NOWHERE, Problem};
use crate::state::{Limit, State};

/// The configuration of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The least number of hosts that stay awake.
    pub awake_min: usize,
    /// How many of the hosts that stay awake may be lost, one after the other, so that guests still fit.
    pub spare: usize,
    /// The seconds for which a host must have been able to sleep, and none woke, before one goes to sleep.
    pub settle_s: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config { awake_min: 2, spare: 1, settle_s: 1800 }
    }
}

/// What the policy has to know of a host besides its resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Whether the host sleeps.
    pub is_asleep: bool,
    /// Whether other hosts read and write what this host stores.
    pub stores: bool,
    /// Whether the host's owner opted out.
    pub opted_out: bool,
    /// Whether the host votes.
    pub votes: bool,
}

/// Why a host does not go to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The host sleeps already.
    Asleep,
    /// The host's owner opted out.
    OptedOut,
    /// Other hosts need what this host stores.
    Stores,
    /// No fewer hosts may be awake.
    AwakeMin {
        /// The number of hosts that are awake.
        awake: usize,
    },
    /// No fewer of the hosts that vote may be awake.
    Quorum {
        /// The number of voting hosts that are awake.
        awake: usize,
        /// The number of voting hosts.
        voters: usize,
    },
    /// One of the host's guests never moves, or writes to its memory faster than that could be sent.
    Stays {
        /// The guest that stays.
        guest: GuestId,
    },
    /// One of the host's guests has no place elsewhere.
    NoPlace {
        /// The guest that has no place.
        guest: GuestId,
    },
    /// If another host were lost as well, a guest of that host would have no place.
    Loss {
        /// The host that would be lost.
        of: HostId,
        /// The guest that would have no place.
        guest: GuestId,
    },
    /// A host would have to wake at once.
    Needed {
        /// What it would have to wake for.
        need: Need,
    },
    /// The host could sleep, but must have been able to for longer.
    Settling {
        /// The time from which it could.
        until_s: u64,
    },
    /// Another host goes to sleep first.
    AfterAnother,
    /// A host has to wake.
    Waking,
}

/// Why a host wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Too few hosts are awake.
    AwakeMin,
    /// Too few of the hosts that vote are awake.
    Quorum,
    /// The hosts that are awake together have less of a resource free than `start`.
    Short {
        /// The resource.
        resource: usize,
        /// How much is free.
        free: i64,
        /// How much should be free.
        start: i64,
    },
    /// A guest is nowhere, or on an overloaded host, and no awake host has a place for it.
    NoPlace {
        /// The guest that has no place.
        guest: GuestId,
    },
}

/// A host that goes to sleep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sleep {
    /// The host that goes to sleep.
    pub host: HostId,
    /// The moves of its guests, which come first.
    pub moves: Vec<(GuestId, HostId)>,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The host that goes to sleep, if any.
    pub sleep: Option<Sleep>,
    /// The host that wakes, if any, and why.
    pub wake: Option<(HostId, Need)>,
    /// For each host but the one that goes to sleep, why it does not.
    pub against: Vec<(HostId, Against)>,
}

/// What was decided before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The time since which some host could have slept.
    possible_since_s: Option<u64>,
}

impl History {
    /// Remembers a decision.
    pub fn remember_decision(&mut self, now_s: u64, decision: &Decision) {
        let is_settling = decision.against.iter().any(|(_, against)| matches!(against, Against::Settling { .. }));
        // After a host has gone to sleep, the next has to have been able to for as long again.
        self.possible_since_s = match (is_settling, self.possible_since_s) {
            (true, since) => since.or(Some(now_s)),
            (false, _) => decision.sleep.is_some().then_some(now_s),
        };
    }
}

/// Returns how many of the hosts that vote have to stay awake.
pub fn quorum(voters: usize) -> usize {
    if voters == 0 { 0 } else { voters / 2 + 1 }
}

/// Decides what to do now. Hosts that sleep are closed to guests without being named in [`View::closed`].
///
/// # Errors
///
/// [`BadView`] if the view is not valid.
pub fn decide(config: &Config, view: &View, roles: &[Role], history: &History) -> Result<Decision, BadView> {
    view.check()?;
    length("roles", roles.len(), view.problem.hosts.len())?;
    let mut columns = columns(view);
    columns.retain(|column| column.by != By::Latest);
    let reserve = expected(view, &columns)?;
    let mut place = reserve.clone();
    for (host, free) in place.hosts.iter_mut().zip(view.place_free) {
        let capacity = host.capacity.iter_mut().zip(&columns);
        capacity.for_each(|(capacity, column)| *capacity = (*capacity - free[column.resource]).max(0));
    }
    let here = State::new(&place, &place.initial);
    let desk = PowerDecider { config, view, roles, columns: &columns, place: &place, reserve: &reserve, here };
    if let Some(need) = desk.need() {
        let against = desk.hosts().map(|host| (host, desk.barred(host).unwrap_or(Against::Waking))).collect();
        return Ok(Decision { sleep: None, wake: desk.wakes(need).map(|host| (host, need)), against });
    }
    Ok(desk.sleep(history))
}

/// The parts of a decision. One problem keeps `place` free, and the other the `reserve`.
struct PowerDecider<'a> {
    config: &'a Config,
    view: &'a View<'a>,
    roles: &'a [Role],
    columns: &'a [Column],
    place: &'a Problem,
    reserve: &'a Problem,
    /// The assignment as it is now.
    here: State<'a>,
}

impl PowerDecider<'_> {
    fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        0..self.roles.len() as HostId
    }

    fn awake(&self) -> usize {
        self.roles.iter().filter(|role| !role.is_asleep).count()
    }

    /// Returns how many hosts that vote are awake, and how many there are.
    fn voters(&self) -> (usize, usize) {
        let voters = self.roles.iter().filter(|role| role.votes);
        (voters.clone().filter(|role| !role.is_asleep).count(), voters.count())
    }

    /// Returns the hosts that take no guests.
    fn closed(&self) -> Bits {
        self.hosts().filter(|host| self.roles[*host as usize].is_asleep || self.view.closed.contains(*host)).collect()
    }

    /// Returns why a host has to wake, if one has to.
    fn need(&self) -> Option<Need> {
        let (awake, voters) = self.voters();
        if self.awake() < self.config.awake_min.min(self.roles.len()) {
            return Some(Need::AwakeMin);
        }
        if awake < quorum(voters) {
            return Some(Need::Quorum);
        }
        self.lack(&self.closed(), self.here.assignment())
    }

    /// Returns what the hosts that are not closed lack, with guests at these hosts.
    fn lack(&self, closed: &Bits, at: &[HostId]) -> Option<Need> {
        self.short(closed, at).or_else(|| self.homeless(closed, at))
    }

    fn short(&self, closed: &Bits, at: &[HostId]) -> Option<Need> {
        let open: Vec<HostId> = self.hosts().filter(|host| !closed.contains(*host)).collect();
        self.columns.iter().enumerate().find_map(|(n, column)| {
            let all = |of: fn(&Host) -> &[i64]| -> i64 {
                open.iter().map(|host| of(&self.view.problem.hosts[*host as usize])[column.resource]).sum()
            };
            let (capacity, safe) = (all(|host| &host.capacity), all(|host| &host.safe));
            let here = self.place.guests.iter().zip(at).filter(|(_, on)| **on != NOWHERE && !closed.contains(**on));
            let used: i64 = here.map(|(guest, _)| guest.demand[n]).sum();
            let (free, start) = (capacity - used, capacity - safe);
            (free < start).then_some(Need::Short { resource: column.resource, free, start })
        })
    }

    /// Returns the need of a guest that has to be on another host and has no place there.
    fn homeless(&self, closed: &Bits, at: &[HostId]) -> Option<Need> {
        let state = State::new(self.reserve, at);
        let is_broken = |guest: &GuestId| match state.host_of(*guest) {
            NOWHERE => true,
            host => state.host_score(host).broken > 0,
        };
        let mut guests = (0..self.reserve.guests.len() as GuestId).filter(is_broken);
        guests.find(|guest| first_fitting_host(&state, *guest, closed).is_none()).map(|guest| Need::NoPlace { guest })
    }

    /// Returns the host to wake: one that votes, if votes are missing, and the one with most of the resource that is
    /// short.
    fn wakes(&self, need: Need) -> Option<HostId> {
        let resource = if let Need::Short { resource, .. } = need { resource } else { 0 };
        let asleep = self.hosts().filter(|host| self.roles[*host as usize].is_asleep);
        asleep.max_by_key(|host| {
            let capacity = self.view.problem.hosts[*host as usize].capacity.get(resource).copied();
            (need == Need::Quorum && self.roles[*host as usize].votes, capacity, std::cmp::Reverse(*host))
        })
    }

    /// Returns why a host cannot sleep whatever is used, if so.
    fn barred(&self, host: HostId) -> Option<Against> {
        let role = self.roles[host as usize];
        let ((awake_voters, voters), awake) = (self.voters(), self.awake());
        if role.is_asleep {
            return Some(Against::Asleep);
        }
        if role.opted_out {
            return Some(Against::OptedOut);
        }
        if role.stores {
            return Some(Against::Stores);
        }
        if awake <= self.config.awake_min.max(1) {
            return Some(Against::AwakeMin { awake });
        }
        if role.votes && awake_voters <= quorum(voters) {
            return Some(Against::Quorum { awake: awake_voters, voters });
        }
        let stays =
            |guest: &&GuestId| self.view.pinned.contains(**guest) || self.view.sends_s[**guest as usize].is_infinite();
        self.here.guests_on(host).iter().filter(stays).min().map(|guest| Against::Stays { guest: *guest })
    }

    fn sleep(&self, history: &History) -> Decision {
        let mut decision = Decision::default();
        let mut order = Vec::new();
        for host in self.hosts() {
            match self.barred(host) {
                Some(against) => decision.against.push((host, against)),
                None => order.push(host),
            }
        }
        let sends_s = |host: &HostId| -> f64 {
            self.here.guests_on(*host).iter().map(|guest| self.view.sends_s[*guest as usize]).sum()
        };
        order.sort_by(|a, b| sends_s(a).total_cmp(&sends_s(b)));
        let mut is_found = false;
        for host in order {
            let moves = if is_found { Err(Against::AfterAnother) } else { self.empty(host) };
            let against = match moves {
                Err(against) => against,
                Ok(moves) => {
                    is_found = true;
                    let since_s = history.possible_since_s.unwrap_or(self.view.now_s);
                    let until_s = since_s.saturating_add(self.config.settle_s.into());
                    if self.view.now_s >= until_s {
                        decision.sleep = Some(Sleep { host, moves });
                        continue;
                    }
                    Against::Settling { until_s }
                }
            };
            decision.against.push((host, against));
        }
        decision.against.sort_by_key(|(host, _)| *host);
        decision
    }

    /// Returns where a host's guests go.
    ///
    /// # Errors
    ///
    /// Why they cannot all go.
    fn empty(&self, host: HostId) -> Result<Vec<(GuestId, HostId)>, Against> {
        let mut closed = self.closed();
        closed.insert(host);
        let mut state = State::new(self.place, &self.place.initial);
        let moves = evacuate(&mut state, host, &closed).map_err(|guest| Against::NoPlace { guest })?;
        if let Some(need) = self.lack(&closed, state.assignment()) {
            return Err(Against::Needed { need });
        }
        if self.config.spare > 0 {
            let after = Problem { initial: state.assignment().to_vec(), ..self.reserve.clone() };
            self.spare(&mut State::new(&after, &after.initial), &closed, self.config.spare)?;
        }
        Ok(moves)
    }

    /// Checks that any so many other hosts could be lost as well, once all guests are in their new places.
    ///
    /// # Errors
    ///
    /// The host whose loss would leave a guest without a place.
    fn spare(&self, state: &mut State, closed: &Bits, losses: usize) -> Result<(), Against> {
        for of in self.hosts().filter(|of| !closed.contains(*of)) {
            let mut closed = closed.clone();
            closed.insert(of);
            let moves = evacuate(state, of, &closed).map_err(|guest| Against::Loss { of, guest })?;
            if losses > 1 {
                self.spare(state, &closed, losses - 1)?;
            }
            moves.into_iter().for_each(|(guest, _)| state.shift(guest, of));
        }
        Ok(())
    }
}

/// Moves all guests off a host, the largest first.
///
/// # Errors
///
/// The first guest that has no place.
fn evacuate(state: &mut State, host: HostId, closed: &Bits) -> Result<Vec<(GuestId, HostId)>, GuestId> {
    let problem = state.problem();
    let size = |guest: GuestId| {
        let demand = problem.guests[guest as usize].demand.iter();
        let parts = demand.zip(&problem.hosts[host as usize].capacity);
        parts.map(|(demand, capacity)| *demand as f64 / (*capacity).max(1) as f64).fold(0.0, f64::max)
    };
    let mut guests = state.guests_on(host).to_vec();
    guests.sort_by(|a, b| size(*b).total_cmp(&size(*a)).then(a.cmp(b)));
    let mut moves = Vec::new();
    for guest in guests {
        let to = first_fitting_host(state, guest, closed).ok_or(guest)?;
        state.shift(guest, to);
        moves.push((guest, to));
    }
    Ok(moves)
}

/// Returns the first host that has a place for a guest and breaks nothing: hosts are filled one after the other.
fn first_fitting_host(state: &State, guest: GuestId, closed: &Bits) -> Option<HostId> {
    let prices = vec![0.0; state.problem().hosts.len()];
    let free = Limit { prices: &prices, most: f64::INFINITY };
    let is_open = |to: &HostId| *to != state.host_of(guest) && !closed.contains(*to);
    let mut hosts = (0..prices.len() as HostId).filter(is_open);
    hosts.find(|to| shift_broken(state, free, guest, *to).is_some())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases;
    use crate::dice::Dice;
    use crate::policy::forecast::{Expected, Outlook};
    use crate::problem::{Guest, HostMoves, Resource, Weights};
    use crate::verdict::{Breach, judge};

    const AWAKE: Role = Role { is_asleep: false, stores: false, opted_out: false, votes: false };
    const ASLEEP: Role = Role { is_asleep: true, ..AWAKE };

    /// Makes hosts with 100 of a resource, of which 10 are to be free, with guests that use the given amounts.
    fn cluster(hosts: &[&[i64]]) -> Problem {
        let host = Host { areas: Vec::new(), capacity: vec![100], safe: vec![90] };
        let guest = |used: &i64| Guest {
            demand: vec![*used],
            groups: Vec::new(),
            move_cost: 1,
            owners: None,
            preference: None,
        };
        Problem {
            resources: vec![Resource { transient: false, load_weight: 0 }],
            levels: Vec::new(),
            hosts: vec![host; hosts.len()],
            groups: Vec::new(),
            guests: hosts.iter().flat_map(|guests| guests.iter().map(guest)).collect(),
            balances: Vec::new(),
            weights: Weights::default(),
            host_moves: HostMoves::Uniform(0),
            owners: Vec::new(),
            preferences: Vec::new(),
            initial: (0..).zip(hosts).flat_map(|(host, guests)| guests.iter().map(move |_| host)).collect(),
        }
    }

    fn config() -> Config {
        Config { spare: 0, settle_s: 0, awake_min: 1 }
    }

    fn decision(config: &Config, problem: &Problem, roles: &[Role], pinned: &[GuestId]) -> Decision {
        let outlook = |guest: &Guest| guest.demand.iter().map(|used| Outlook::fixed(*used as f64)).collect();
        let outlooks: Vec<_> = problem.guests.iter().map(outlook).collect();
        let view = View {
            problem,
            outlooks: &outlooks,
            place_free: &vec![vec![20]; problem.hosts.len()],
            sends_s: &problem.guests.iter().map(|guest| guest.demand[0] as f64).collect::<Vec<_>>(),
            pinned: &pinned.iter().copied().collect(),
            closed: &Bits::default(),
            now_s: 0,
        };
        decide(config, &view, roles, &History::default()).unwrap()
    }

    #[test]
    fn the_table_of_the_quorum() {
        let table: Vec<usize> = (0..=11).map(quorum).collect();
        assert_eq!(table, [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]);
    }

    #[test]
    fn the_one_with_the_least_to_move_sleeps() {
        let problem = cluster(&[&[20, 20], &[30], &[10, 10, 10]]);
        let decision = decision(&config(), &problem, &[AWAKE; 3], &[]);
        assert_eq!(decision.sleep, Some(Sleep { host: 1, moves: vec![(2, 0)] }));
        assert_eq!(decision.against, [(0, Against::AfterAnother), (2, Against::AfterAnother)]);
    }

    #[test]
    fn each_has_its_reason() {
        let problem = cluster(&[&[70], &[60], &[30], &[10], &[], &[]]);
        let voter = Role { votes: true, ..AWAKE };
        let roles = [Role { stores: true, ..AWAKE }, Role { opted_out: true, ..AWAKE }, AWAKE, AWAKE, voter, ASLEEP];
        let decision = decision(&config(), &problem, &roles, &[3]);
        let against = [
            (0, Against::Stores),
            (1, Against::OptedOut),
            (3, Against::Stays { guest: 3 }),
            (4, Against::Quorum { awake: 1, voters: 1 }),
            (5, Against::Asleep),
        ];
        assert_eq!(decision.against, against);
        assert_eq!(decision.sleep.map(|sleep| sleep.host), Some(2));
    }

    #[test]
    fn place_and_minimum_are_kept() {
        let short = decision(&config(), &cluster(&[&[95], &[]]), &[AWAKE; 2], &[]);
        let need = Need::Short { resource: 0, free: 5, start: 10 };
        assert_eq!((short.sleep, short.against[1]), (None, (1, Against::Needed { need })));
        let problem = cluster(&[&[70], &[60], &[30]]);
        let full = decision(&config(), &problem, &[AWAKE; 3], &[]);
        let no = |host| (host, Against::NoPlace { guest: host });
        assert_eq!((full.sleep, full.against), (None, vec![no(0), no(1), no(2)]));
        let few = decision(&Config { awake_min: 3, ..config() }, &cluster(&[&[], &[], &[]]), &[AWAKE; 3], &[]);
        assert!(few.against.iter().all(|(_, against)| *against == Against::AwakeMin { awake: 3 }));
    }

    #[test]
    fn with_a_spare_one_more_can_be_lost() {
        let problem = cluster(&[&[60], &[60], &[]]);
        let spare = Config { spare: 1, ..config() };
        assert_eq!(decision(&config(), &problem, &[AWAKE; 3], &[]).sleep.map(|sleep| sleep.host), Some(2));
        let kept = decision(&spare, &problem, &[AWAKE; 3], &[]);
        assert_eq!(kept.sleep, None);
        assert_eq!(kept.against[2], (2, Against::Loss { of: 0, guest: 0 }));
        let small = cluster(&[&[50], &[40], &[20], &[]]);
        let sleeps = |spare| decision(&Config { spare, ..config() }, &small, &[AWAKE; 4], &[]).sleep.is_some();
        assert_eq!([0, 1, 2, 3].map(sleeps), [true, true, false, false], "110 on three hosts, two, one");
    }

    #[test]
    fn one_wakes_when_it_gets_short() {
        let roles = [AWAKE, AWAKE, ASLEEP];
        let short = decision(&config(), &cluster(&[&[90], &[95], &[]]), &roles, &[]);
        assert_eq!(short.wake, Some((2, Need::Short { resource: 0, free: 15, start: 20 })));
        assert_eq!(short.against[0], (0, Against::Waking));
        let homeless = decision(&config(), &cluster(&[&[40, 65], &[50], &[]]), &roles, &[]);
        assert_eq!(homeless.wake, Some((2, Need::NoPlace { guest: 1 })));
        let between = decision(&config(), &cluster(&[&[85], &[80], &[]]), &roles, &[]);
        assert_eq!((between.wake, between.sleep), (None, None));
        let voters = [Role { votes: true, ..AWAKE }, ASLEEP, Role { votes: true, ..ASLEEP }];
        assert_eq!(decision(&config(), &cluster(&[&[], &[], &[]]), &voters, &[]).wake, Some((2, Need::Quorum)));
    }

    #[test]
    fn it_settles_first() {
        let problem = cluster(&[&[20], &[]]);
        let config = Config { settle_s: 1800, ..config() };
        let mut history = History::default();
        let mut slept_s = Vec::new();
        for now_s in (0..12).map(|n| n * 600) {
            // The host is busy in between.
            let used = if now_s == 1200 { 85.0 } else { 20.0 };
            let view = View {
                problem: &problem,
                outlooks: &[vec![Outlook::fixed(used)]],
                place_free: &[vec![20], vec![20]],
                sends_s: &[8.0],
                pinned: &[0].into_iter().collect(),
                closed: &(if now_s == 1200 { [1] } else { [9] }).into_iter().collect(),
                now_s,
            };
            let decision = decide(&config, &view, &[Role { stores: used > 80.0, ..AWAKE }; 2], &history).unwrap();
            history.remember_decision(now_s, &decision);
            if decision.sleep.is_some() {
                slept_s.push(now_s);
            }
        }
        assert_eq!(slept_s, [3600, 5400], "1800 s after it was possible, and each 1800 s after the one before");
    }

    proptest! {
        /// Checks that a host that goes to sleep may, is empty then, and leaves all others with no more broken than
        /// before.
        #[test]
        fn sleep_does_no_harm(seed: u64) {
            let dice = &mut Dice::new(seed);
            let problem = cases::problem(dice, 6, 10);
            let guests = problem.guests.len();
            let outlook = |used: i64, dice: &mut Dice| {
                let mut expected = || Expected { mean: used as f64 * dice.unit(), variance: 0.0 };
                Outlook { recent: [0.0; 2], soon: expected(), later: expected() }
            };
            let outlooks: Vec<Vec<Outlook>> = (problem.guests.iter())
                .map(|guest| guest.demand.iter().map(|used| outlook(*used, dice)).collect())
                .collect();
            let mut role = || Role {
                is_asleep: dice.chance(0.2),
                stores: dice.chance(0.1),
                opted_out: dice.chance(0.1),
                votes: dice.chance(0.3),
            };
            let roles: Vec<Role> = problem.hosts.iter().map(|_| role()).collect();
            let pinned: Bits = (0..guests as GuestId).filter(|_| dice.chance(0.1)).collect();
            let place = |host: &Host| host.capacity.iter().map(|most| most / 7).collect();
            let place_free: Vec<Vec<i64>> = problem.hosts.iter().map(place).collect();
            let config = Config { settle_s: 0, spare: dice.below(3), awake_min: 1 };
            let view = View {
                problem: &problem,
                outlooks: &outlooks,
                place_free: &place_free,
                sends_s: &vec![8.0; guests],
                pinned: &pinned,
                closed: &Bits::default(),
                now_s: 0,
            };
            let decision = decide(&config, &view, &roles, &History::default()).unwrap();
            prop_assert_eq!(&decide(&config, &view, &roles, &History::default()).unwrap(), &decision);
            prop_assert_eq!(decision.against.len() + usize::from(decision.sleep.is_some()), roles.len());
            prop_assert!(decision.wake.is_none_or(|(host, _)| roles[host as usize].is_asleep));
            let Some(sleep) = decision.sleep else { return Ok(()) };
            let role = roles[sleep.host as usize];
            prop_assert!(!role.is_asleep && !role.stores && !role.opted_out && decision.wake.is_none());
            let mut at = problem.initial.clone();
            for (guest, to) in &sleep.moves {
                prop_assert!(!pinned.contains(*guest) && !roles[*to as usize].is_asleep && *to != sleep.host);
                at[*guest as usize] = *to;
            }
            prop_assert!(!at.contains(&sleep.host));
            let awake = |host: usize| !roles[host].is_asleep && host != sleep.host as usize;
            let voters = (0..roles.len()).filter(|host| roles[*host].votes);
            prop_assert!(voters.clone().filter(|host| awake(*host)).count() >= quorum(voters.count()) || !role.votes);
            let rules = |at: &[HostId]| {
                let mut verdict = judge(&problem, at);
                verdict.hard.retain(|breach| !matches!(breach, Breach::Overload { .. }));
                verdict.score().broken
            };
            prop_assert!(rules(&at) <= rules(&problem.initial));
            for (host, of) in (0..).zip(&problem.hosts) {
                for (r, capacity) in of.capacity.iter().enumerate() {
                    let used = |at: &[HostId]| -> f64 {
                        let here = at.iter().zip(&outlooks).filter(|(on, _)| **on == host);
                        here.map(|(_, of)| of[r].later.mean.ceil()).sum()
                    };
                    let left = (capacity - capacity / 7) as f64;
                    prop_assert!(used(&at) <= left || used(&at) <= used(&problem.initial));
                }
            }
        }
    }
}
