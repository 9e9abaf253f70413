//! What is to be decided, in numbers only: hosts with resources, guests that use them, rules, and what load and moves
//! cost.
//!
//! The Google Machine Reassignment problem (ROADEF/EURO challenge 2012, problem_definition_v1.pdf) is one instance: its
//! machines are hosts, and its processes are guests. A service is a group whose members are apart, are spread over
//! locations (level 0), and need other groups in their neighbourhood (level 1).

mod check;

pub use check::Flaw;

use crate::bits::Bits;

/// Index of a host in [`Problem::hosts`].
pub type HostId = u32;
/// Index of a guest in [`Problem::guests`].
pub type GuestId = u32;
/// Index of a group in [`Problem::groups`].
pub type GroupId = u32;
/// The host of a guest that is on no host.
pub const NOWHERE: HostId = HostId::MAX;

/// A resource, of which each host has an amount and each guest uses an amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Whether a guest that moves uses the resource on the host that it leaves, too, until all moves are done.
    pub transient: bool,
    /// The cost of each unit that is used above a host's [`Host::safe`].
    pub load_weight: i64,
}

/// A host, on which guests run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The host's area at each level (fault domains, neighbourhoods and the like). Areas of a level are numbered from
    /// 0.
    pub areas: Vec<u32>,
    /// The capacity of each resource.
    pub capacity: Vec<i64>,
    /// How much of each resource can be used before it costs.
    pub safe: Vec<i64>,
}

/// Whether a rule must hold, or what each of its breaches costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// The rule must hold.
    Hard,
    /// The rule may be broken; each breach has this cost.
    Soft(i64),
}

/// The rule that members of a group are in at least `areas_min` areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Index in [`Problem::levels`].
    pub level: usize,
    /// The smallest number of areas that members must be in.
    pub areas_min: u32,
    /// Each area that is missing is a breach.
    pub strength: Strength,
}

/// The rule that members are spread evenly: no area has more than `skew_max` members more than the area with the
/// fewest. (Kubernetes calls this the skew of a topology spread constraint.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Even {
    /// Index in [`Problem::levels`].
    pub level: usize,
    /// The areas that count: those in which members can be.
    pub areas: Bits,
    /// The largest difference that is allowed.
    pub skew_max: u32,
    /// Each member beyond that difference is a breach.
    pub strength: Strength,
}

/// The rule that each area with a member also has a member of another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsRule {
    /// Index in [`Problem::levels`].
    pub level: usize,
    /// The other group.
    pub of: GroupId,
    /// Each area with members but without the other group is a breach.
    pub strength: Strength,
}

/// The rule that no area has members of both this group and another. No guest may be in both groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avoid {
    /// Index in [`Problem::levels`].
    pub level: usize,
    /// The other group.
    pub of: GroupId,
    /// An area with members of both groups has one breach fewer than it has members of the two.
    pub strength: Strength,
}

/// A group: guests about which there are rules together. A guest can be in several groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// No two members share a host. On each host, every member but one is a breach.
    pub apart: Option<Strength>,
    /// All members are on one host. Each further host is a breach.
    pub together: Option<Strength>,
    /// Members are in several areas.
    pub spread: Option<Spread>,
    /// Members are spread evenly over areas.
    pub even: Option<Even>,
    /// Members are near other groups.
    pub needs: Vec<NeedsRule>,
    /// Members are not near other groups.
    pub avoids: Vec<Avoid>,
    /// All members are on hosts of one of these sets, whichever. If there are no sets, members may be anywhere. The
    /// rule is hard: each member outside the set is a breach.
    pub among: Vec<Bits>,
    /// Whether the number of members that move counts in [`Weights::group_move`].
    pub counts_moves: bool,
}

/// A guest, which is to be placed: a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// How much of each resource the guest uses.
    pub demand: Vec<i64>,
    /// The groups that the guest is in, each once.
    pub groups: Vec<GroupId>,
    /// The cost of a move of this guest, before [`Weights::guest_move`].
    pub move_cost: i64,
    /// The index in [`Problem::owners`] of the hosts that the guest may be on. `None`: every host.
    pub owners: Option<u32>,
    /// The index in [`Problem::preferences`] of what each host costs this guest. `None`: nothing.
    pub preference: Option<u32>,
}

/// The rule that each host has `ratio` free units of the second resource for each free unit of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// The first resource: an index in [`Problem::resources`].
    pub first: usize,
    /// The second resource: an index in [`Problem::resources`].
    pub second: usize,
    /// How many units of the second resource should be free for each unit of the first.
    pub ratio: i64,
    /// The cost of each missing unit of the second resource.
    pub weight: i64,
}

/// The weights of what moves cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Multiplies the [`Guest::move_cost`] of each guest that moves.
    pub guest_move: i64,
    /// Multiplies the largest number of guests of one group that move.
    pub group_move: i64,
    /// Multiplies the [`Problem::host_move_cost`] of each move.
    pub host_move: i64,
}

/// The cost of a move by the two hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMoves {
    /// The same cost between any two hosts.
    Uniform(i64),
    /// A matrix, row by row: a row for each host that is left, a column for each host that is moved to.
    Matrix(Vec<u32>),
}

/// A placement problem. Costs and demands are 0 or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The resources.
    pub resources: Vec<Resource>,
    /// The number of areas at each level.
    pub levels: Vec<u32>,
    /// The hosts on which guests can be.
    pub hosts: Vec<Host>,
    /// The groups of guests, with their rules.
    pub groups: Vec<Group>,
    /// The guests that are placed.
    pub guests: Vec<Guest>,
    /// The balances that are asked of each host's free resources.
    pub balances: Vec<Balance>,
    /// The weights of what moves cost.
    pub weights: Weights,
    /// The cost of a move by the two hosts.
    pub host_moves: HostMoves,
    /// The sets of hosts that [`Guest::owners`] refers to.
    pub owners: Vec<Bits>,
    /// The lists that [`Guest::preference`] refers to: a cost for each host.
    pub preferences: Vec<Vec<i64>>,
    /// The host of each guest now, or [`NOWHERE`].
    pub initial: Vec<HostId>,
}

impl Problem {
    /// Returns the cost of a move between two hosts, before its weight.
    #[inline]
    pub fn host_move_cost(&self, from: HostId, to: HostId) -> i64 {
        match &self.host_moves {
            HostMoves::Uniform(cost) => i64::from(from != to) * cost,
            HostMoves::Matrix(rows) => i64::from(rows[from as usize * self.hosts.len() + to as usize]),
        }
    }

    /// Returns whether a guest may be on a host: whether the host is among the guest's owners.
    #[inline]
    pub fn may_own(&self, guest: GuestId, host: HostId) -> bool {
        host == NOWHERE || self.guests[guest as usize].owners.is_none_or(|set| self.owners[set as usize].contains(host))
    }

    /// Returns the cost of a guest's being on a host, by its preferences.
    #[inline]
    pub fn preference(&self, guest: GuestId, host: HostId) -> i64 {
        match self.guests[guest as usize].preference {
            Some(of) if host != NOWHERE => self.preferences[of as usize][host as usize],
            _ => 0,
        }
    }

    /// Returns the cost of a guest's being on `to` instead of where it was, without the part that its groups cost.
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
