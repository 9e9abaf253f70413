//! Explains why a guest is moved.

use std::fmt;

use serde::Serialize;

use super::report::{Objection, lost, objection};
use super::{Cause, Placing, Reason};
use crate::cluster::{Compiled, RuleKind};
use skein_placement::problem::{GuestId, HostId, NOWHERE};
use skein_placement::state::State;

/// Why a guest is not left where it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Why {
    /// The guest's name.
    pub guest: String,
    /// The host where it was. `None`: it was nowhere.
    pub from: Option<String>,
    /// The name of its host, if it was nowhere because that host is offline.
    pub lost: Option<String>,
    /// The host where it goes. `None`: it goes nowhere.
    pub to: Option<String>,
    /// What spoke against the old host, with all guests where they were.
    pub ends: Vec<Objection>,
    /// What would speak against the old host, with all other guests where they go: the guest makes room for them.
    pub makes_room: Vec<Objection>,
    /// Those of the rules that would speak against the old host which keep the guest with others.
    pub goes_along: Vec<Objection>,
    /// How much less is broken by the move, with all other guests where they go
    /// ([`Score::broken`](skein_placement::score::Score::broken)).
    pub broken_saved: i64,
    /// What the move saves less what it costs, in microseconds of traffic, with all other guests where they go.
    pub cost_saved: i64,
}

/// Explains why a plan from one assignment to another moves a guest.
pub fn why_moved(compiled: &Compiled, before: &[HostId], after: &[HostId], guest: GuestId) -> Why {
    let names = &compiled.names;
    let (from, to) = (before[guest as usize], after[guest as usize]);
    let against = |assignment: &[HostId]| match from {
        NOWHERE => Vec::new(),
        host => Placing::new(compiled, assignment, guest).against(host),
    };
    let told =
        |reasons: &[Reason]| -> Vec<Objection> { reasons.iter().map(|reason| objection(compiled, reason)).collect() };
    let (ends, would_be) = (against(before), against(after));
    let is_new =
        |reason: &&Reason| !ends.iter().any(|other| other.cause == reason.cause && other.is_hard == reason.is_hard);
    let keeps_with = |reason: &Reason| match reason.cause {
        Cause::Rule(rule) => {
            matches!(names.rules[rule as usize].kind, RuleKind::Together | RuleKind::Needs | RuleKind::Among)
        }
        Cause::Capacity(_) => false,
    };
    let (goes_along, makes_room): (Vec<Reason>, Vec<Reason>) =
        would_be.iter().filter(is_new).cloned().partition(keeps_with);
    let back = State::new(&compiled.problem, after).shift_score(guest, from);
    Why {
        guest: names.guest(guest).to_owned(),
        from: names.hosts.get(from as usize).cloned(),
        lost: lost(compiled, before, guest),
        to: names.hosts.get(to as usize).cloned(),
        ends: told(&ends),
        makes_room: told(&makes_room),
        goes_along: told(&goes_along),
        broken_saved: back.broken,
        cost_saved: back.cost,
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let guest = &self.guest;
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => write!(f, "move '{guest}' from '{from}' to '{to}': ")?,
            (Some(from), None) => write!(f, "take '{guest}' off '{from}': ")?,
            (None, Some(to)) => write!(f, "place '{guest}' on '{to}': ")?,
            (None, None) => write!(f, "leave '{guest}' on no host: ")?,
        }
        let mut reasons: Vec<String> = self.ends.iter().map(|objection| objection.what.clone()).collect();
        if self.from.is_none() {
            reasons.push(match &self.lost {
                Some(host) => format!("its host '{host}' is offline"),
                None => "it was on no host".into(),
            });
        }
        reasons.extend(self.makes_room.iter().map(|objection| format!("makes room for others ({})", objection.what)));
        reasons.extend(self.goes_along.iter().map(|objection| format!("goes along ({})", objection.what)));
        if reasons.is_empty() {
            reasons.push(match self.broken_saved {
                0 => "the balance is better".into(),
                _ => "less is broken".into(),
            });
        }
        write!(f, "{}", reasons.join("; "))?;
        match self.cost_saved {
            saved if saved > 0 => write!(f, " (saves {:.1} s)", saved as f64 / 1e6),
            _ => Ok(()),
        }
    }
}
