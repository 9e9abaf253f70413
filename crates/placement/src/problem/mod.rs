//! What is to be decided, in numbers only: hosts with resources, guests that use them, rules, and what load and moves
//! cost.
//!
//! The Google Machine Reassignment problem (ROADEF/EURO challenge 2012, problem_definition_v1.pdf) is one instance:
//! machines are hosts, processes are guests, a service is a group whose members are apart, spread over locations
//! (level 0) and need others in their neighbourhood (level 1).

mod check;

pub use check::Flaw;

use crate::bits::Bits;

/// Index of a host in [`Problem::hosts`].
pub type HostId = u32;
/// Index of a guest in [`Problem::guests`].
pub type GuestId = u32;
/// Index of a group in [`Problem::groups`].
pub type GroupId = u32;
/// Where a guest is that is on no host.
pub const NOWHERE: HostId = HostId::MAX;

/// Something of which hosts have an amount and guests use one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// A guest that moves uses it on the host it leaves, too, until all moves are done.
    pub transient: bool,
    /// Cost of each unit above a host's [`Host::safe`].
    pub load_weight: i64,
}

/// Where guests run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its area at each level: fault domains, neighbourhoods and the like, each numbered from 0.
    pub areas: Vec<u32>,
    /// Most of each resource.
    pub capacity: Vec<i64>,
    /// How much of each can be used before it costs.
    pub safe: Vec<i64>,
}

/// Whether a rule must hold, or what each breach costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// It must.
    Hard,
    /// Each breach costs so much.
    Soft(i64),
}

/// Members are in at least so many areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Index in [`Problem::levels`].
    pub level: usize,
    /// How many areas there have to be.
    pub areas_min: u32,
    /// Each area that is missing is a breach.
    pub strength: Strength,
}

/// Members are spread evenly: no area has more than so many members more than the area with the fewest (Kubernetes
/// calls that the skew of a topology spread constraint).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Even {
    /// Index in [`Problem::levels`].
    pub level: usize,
    /// The areas that count: where members can be.
    pub areas: Bits,
    /// The largest difference.
    pub skew_max: u32,
    /// Each member beyond that is a breach.
    pub strength: Strength,
}

/// Where a member is, one of another group is in the same area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsRule {
    /// Index in [`Problem::levels`].
    pub level: usize,
    /// The other group.
    pub of: GroupId,
    /// Each area without them is a breach.
    pub strength: Strength,
}

/// Where a member is, none of another group is in the same area. No guest is in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avoid {
    /// Index in [`Problem::levels`].
    pub level: usize,
    /// The other group.
    pub of: GroupId,
    /// In an area with both, each of either that is there but for one is a breach.
    pub strength: Strength,
}

/// Guests about which there are rules together. A guest can be in several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// No two on one host. Each that is too many on a host is a breach.
    pub apart: Option<Strength>,
    /// All on one host. Each host that is too many is a breach.
    pub together: Option<Strength>,
    /// In several areas.
    pub spread: Option<Spread>,
    /// The same number in each of several areas, nearly.
    pub even: Option<Even>,
    /// Near others.
    pub needs: Vec<NeedsRule>,
    /// Not near others.
    pub avoids: Vec<Avoid>,
    /// All on hosts of one of these sets, whichever; anywhere if there is none. Hard: each that is outside is a breach.
    pub among: Vec<Bits>,
    /// How many of it move counts in [`Weights::group_move`].
    pub counts_moves: bool,
}

/// What is placed: a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// How much of each resource it uses.
    pub demand: Vec<i64>,
    /// The groups that it is in, each once.
    pub groups: Vec<GroupId>,
    /// Cost of a move, before [`Weights::guest_move`].
    pub move_cost: i64,
    /// Index in [`Problem::owners`] of the hosts that it may be on; every host without one.
    pub owners: Option<u32>,
    /// Index in [`Problem::preferences`] of what each host costs it.
    pub preference: Option<u32>,
}

/// For each unit of the first resource that is free on a host, `target` units of the second should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Index in [`Problem::resources`].
    pub first: usize,
    /// Index in [`Problem::resources`].
    pub second: usize,
    /// How much of the second for each unit of the first.
    pub ratio: i64,
    /// Cost of each unit of the second that is missing.
    pub weight: i64,
}

/// What moves cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Times the [`Guest::move_cost`] of each that moves.
    pub guest_move: i64,
    /// Times the largest number of guests of one group that move.
    pub group_move: i64,
    /// Times [`Problem::host_move_cost`] of each move.
    pub host_move: i64,
}

/// What a move from one host to another costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMoves {
    /// The same between any two.
    Uniform(i64),
    /// Row by row: from, to.
    Matrix(Vec<u32>),
}

/// What is to be decided. Costs and demands are 0 or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What there is of which hosts have an amount.
    pub resources: Vec<Resource>,
    /// How many areas there are at each level.
    pub levels: Vec<u32>,
    /// Where guests can be.
    pub hosts: Vec<Host>,
    /// Rules.
    pub groups: Vec<Group>,
    /// What is placed.
    pub guests: Vec<Guest>,
    /// Of what is free on each host.
    pub balances: Vec<Balance>,
    /// What moves cost.
    pub weights: Weights,
    /// What a move costs by where it goes.
    pub host_moves: HostMoves,
    /// Sets of hosts of [`Guest::owners`].
    pub owners: Vec<Bits>,
    /// A cost for each host.
    pub preferences: Vec<Vec<i64>>,
    /// Where each guest is now, or [`NOWHERE`].
    pub initial: Vec<HostId>,
}

impl Problem {
    /// What a move between two hosts costs, before its weight.
    #[inline]
    pub fn host_move_cost(&self, from: HostId, to: HostId) -> i64 {
        match &self.host_moves {
            HostMoves::Uniform(cost) => i64::from(from != to) * cost,
            HostMoves::Matrix(rows) => i64::from(rows[from as usize * self.hosts.len() + to as usize]),
        }
    }

    /// Whether a guest's owners, as they are called, include a host.
    #[inline]
    pub fn may_own(&self, guest: GuestId, host: HostId) -> bool {
        host == NOWHERE || self.guests[guest as usize].owners.is_none_or(|set| self.owners[set as usize].contains(host))
    }

    /// What a host costs a guest.
    #[inline]
    pub fn preference(&self, guest: GuestId, host: HostId) -> i64 {
        match self.guests[guest as usize].preference {
            Some(of) if host != NOWHERE => self.preferences[of as usize][host as usize],
            _ => 0,
        }
    }

    /// What it costs that a guest is on a host which was elsewhere, but for its group's part.
    #[inline]
    pub fn move_cost(&self, guest: GuestId, to: HostId) -> i64 {
        let from = self.initial[guest as usize];
        if from == to || from == NOWHERE || to == NOWHERE {
            return 0;
        }
        self.weights.guest_move * self.guests[guest as usize].move_cost
            + self.weights.host_move * self.host_move_cost(from, to)
    }
}
