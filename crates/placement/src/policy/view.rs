//! What a policy sees, and the problem that it makes of that.

use thiserror::Error;

use super::forecast::Outlook;
use crate::bits::Bits;
use crate::problem::{Flaw, GuestId, HostId, NOWHERE, Problem};
use crate::score::Score;
use crate::state::{Limit, State};

/// What a policy sees of the cluster.
///
/// The levels of each host and resource are those of the problem that `skein_placement_model::cluster::compile` makes.
/// What is beyond [`Host::capacity`](crate::problem::Host::capacity) is the `reserve`, which no guest gets. A host that
/// uses more than [`Host::safe`](crate::problem::Host::safe) has less free than `start`, and is short.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The hosts, guests and rules, with where each guest is as [`Problem::initial`]. What guests use is in `outlooks`,
    /// not here.
    pub problem: &'a Problem,
    /// The level `place` of each host, for each resource: how much of its capacity is free after a guest was put there,
    /// as in `skein_placement_model::cluster::Names::place_free`.
    pub place_free: &'a [Vec<i64>],
    /// The outlooks of each guest, for each resource.
    pub outlooks: &'a [Vec<Outlook>],
    /// How long each guest takes to move, in seconds ([`schedule::forecast`](crate::schedule::forecast())). Infinite:
    /// the guest writes to its memory faster than that can be sent, and stays.
    pub sends_s: &'a [f64],
    /// The guests that never move: their owners opted out.
    pub pinned: &'a Bits,
    /// The hosts that take no more guests: they are asleep, or soon will be.
    pub closed: &'a Bits,
    /// The time, in seconds from any beginning.
    pub now_s: u64,
}

/// Why a view is not valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadView {
    /// A list does not have the length that it must have.
    #[error("there are {has} {what} instead of {wants}")]
    Length {
        /// The things listed, in words.
        what: &'static str,
        /// How many there are.
        has: usize,
        /// How many there should be.
        wants: usize,
    },
    /// An outlook is not an amount.
    #[error("the outlook of guest {guest} for resource {resource} has a number that is not finite, or below 0")]
    Outlook {
        /// The guest's index.
        guest: usize,
        /// The resource's index.
        resource: usize,
    },
    /// A level is below 0.
    #[error("the level `place` of host {host} for resource {resource} is below 0")]
    Place {
        /// The host's index.
        host: usize,
        /// The resource's index.
        resource: usize,
    },
    /// A time is not a number of 0 or more.
    #[error("the seconds that guest {guest} takes to move are no number of 0 or more")]
    Sends {
        /// The guest's index.
        guest: usize,
    },
    /// The problem is not valid, or not with what guests are expected to use.
    #[error("the problem is none")]
    Problem(#[from] Flaw),
}

pub(super) fn length(what: &'static str, has: usize, wants: usize) -> Result<(), BadView> {
    if has == wants { Ok(()) } else { Err(BadView::Length { what, has, wants }) }
}

impl View<'_> {
    /// Checks that the view is complete and valid.
    pub(super) fn check(&self) -> Result<(), BadView> {
        self.problem.check()?;
        let (guests, resources) = (self.problem.guests.len(), self.problem.resources.len());
        length("levels `place`", self.place_free.len(), self.problem.hosts.len())?;
        length("outlooks", self.outlooks.len(), guests)?;
        length("times to move", self.sends_s.len(), guests)?;
        for (host, levels) in self.place_free.iter().enumerate() {
            length("resources in a level `place`", levels.len(), resources)?;
            if let Some(resource) = levels.iter().position(|free| *free < 0) {
                return Err(BadView::Place { host, resource });
            }
        }
        for (guest, outlooks) in self.outlooks.iter().enumerate() {
            length("resources in an outlook", outlooks.len(), resources)?;
            if let Some(resource) = outlooks.iter().position(|of| !of.is_amount()) {
                return Err(BadView::Outlook { guest, resource });
            }
        }
        match self.sends_s.iter().position(|seconds| seconds.is_nan() || *seconds < 0.0) {
            Some(guest) => Err(BadView::Sends { guest }),
            None => Ok(()),
        }
    }
}

/// The aspects of a resource. Each is a resource of its own in the problem that is solved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Soon,
    Later,
    /// The last sample. A host is overloaded by it only if it was overloaded by the sample before, too.
    Latest,
}

#[derive(Clone, Copy)]
pub(super) struct Column {
    pub(super) resource: usize,
    pub(super) by: By,
}

impl Column {
    fn amount(self, outlooks: &[Outlook]) -> i64 {
        let of = &outlooks[self.resource];
        let amount = match self.by {
            By::Soon => of.soon.mean,
            By::Later => of.later.mean,
            By::Latest => of.recent[0],
        };
        // A number that is too large is refused where the sum is checked.
        amount.ceil() as i64
    }
}

/// Returns the columns of all resources: all aspects of each, but only one of a resource that never changes.
pub(super) fn columns(view: &View) -> Vec<Column> {
    let of = |resource: usize| {
        let is_fixed = |of: &Vec<Outlook>| of[resource] == Outlook::fixed(of[resource].recent[0]);
        let by: &[By] =
            if view.outlooks.iter().all(is_fixed) { &[By::Later] } else { &[By::Soon, By::Later, By::Latest] };
        by.iter().map(move |by| Column { resource, by: *by })
    };
    (0..view.problem.resources.len()).flat_map(of).collect()
}

/// Returns the problem with a resource for each column, in which guests use what is expected of them.
///
/// # Errors
///
/// A [`Flaw`] if what guests use comes to more than can be counted.
pub(super) fn expected(view: &View, columns: &[Column]) -> Result<Problem, Flaw> {
    let mut problem = Problem { balances: Vec::new(), ..view.problem.clone() };
    let each = |of: &[i64]| columns.iter().map(|column| of[column.resource]).collect::<Vec<i64>>();
    problem.resources = columns.iter().map(|of| view.problem.resources[of.resource].clone()).collect();
    for (guest, outlooks) in problem.guests.iter_mut().zip(view.outlooks) {
        guest.demand = columns.iter().map(|of| of.amount(outlooks)).collect();
    }
    for host in &mut problem.hosts {
        (host.capacity, host.safe) = (each(&host.capacity), each(&host.safe));
    }
    problem.check()?;
    Ok(problem)
}

/// Returns by how much more is broken if a guest goes to a host. Returns `None` if there is no room, or if more of a
/// rule is broken, for which no relief elsewhere makes up. `free` has no price on overload.
pub(super) fn shift_broken(state: &State, free: Limit, guest: GuestId, to: HostId) -> Option<i64> {
    if !state.fits(guest, to, None) {
        return None;
    }
    if state.host_of(guest) == NOWHERE {
        return Some(state.shift_score(guest, to).broken).filter(|broken| *broken <= -Score::UNPLACED);
    }
    state.shift_within(guest, to, free)?;
    Some(state.shift_score(guest, to).broken).filter(|broken| *broken <= 0)
}

/// Returns the same as [`shift_broken`] for two guests that change places.
pub(super) fn swap_broken(state: &State, free: Limit, a: GuestId, b: GuestId) -> Option<i64> {
    let (on_a, on_b) = (state.host_of(a), state.host_of(b));
    if !state.fits(a, on_b, Some(b)) || !state.fits(b, on_a, Some(a)) {
        return None;
    }
    state.swap_within(a, b, free)?;
    Some(state.swap_score(a, b)?.broken).filter(|broken| *broken <= 0)
}
