//! The way back from a problem's numbers to what the user wrote.

use std::fmt;

use serde::Serialize;

use super::amount::Unit;
use super::model::HostState;
use crate::bits::Bits;
use crate::problem::{GroupId, GuestId, HostId, NOWHERE};

/// Index in [`Names::rules`].
pub type RuleId = u32;

/// What a rule is, or what says the same as one.
#[expect(missing_docs, reason = "they are named as in the file")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleKind {
    Apart,
    Together,
    Spread,
    Owners,
    Preferred,
    Among,
    Needs,
    Match,
    /// A guest's own `owners`.
    GuestOwners,
    /// A guest's own `preferred`.
    GuestPreferred,
    /// A guest's `near`.
    Near,
    /// A guest with `optimize: false`.
    Stays,
    /// A guest that writes more than can be sent.
    Writes,
    /// Guests with the same `availability_set`.
    AvailabilitySet,
    /// Hosts that are not online.
    HostState,
}

/// A rule, and what it is called: names are unique among rules of one kind that the user writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleName {
    /// Of the rule, of the availability set, or of the guest.
    pub name: String,
    /// What it is.
    pub kind: RuleKind,
    /// Which property it compares; empty where it compares none.
    pub property: String,
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.kind {
            RuleKind::GuestOwners => write!(f, "the possible owners of '{name}'"),
            RuleKind::GuestPreferred => write!(f, "the preferred owners of '{name}'"),
            RuleKind::Near => write!(f, "the data of '{name}'"),
            RuleKind::Stays => write!(f, "'optimize: false' of '{name}'"),
            RuleKind::Writes => write!(f, "how fast '{name}' writes"),
            RuleKind::AvailabilitySet => write!(f, "availability set '{name}'"),
            RuleKind::HostState => f.write_str("the state of hosts"),
            _ => write!(f, "rule '{name}'"),
        }
    }
}

/// What a row of amounts counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// What guests have reserved.
    Reserved,
    /// What they use, as measured.
    Measured,
    /// How many they are.
    Count,
}

/// Of one of [`Problem::resources`](crate::problem::Problem::resources): a resource of the user has a row for what is
/// reserved and one for what is measured, where guests have either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The resource; "guests" where they are counted.
    pub name: String,
    /// Of which.
    pub measure: Measure,
    /// Of its amounts.
    pub unit: Unit,
}

impl Row {
    /// An amount of it.
    pub fn text(&self, grains: i64) -> String {
        match self.measure {
            Measure::Count => grains.to_string(),
            _ => self.unit.text(grains),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.measure {
            Measure::Measured => write!(f, "measured {}", self.name),
            _ => f.write_str(&self.name),
        }
    }
}

/// A level of fault domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// Its name.
    pub name: String,
    /// Those of its areas.
    pub areas: Vec<String>,
}

/// A hard limit of guests to hosts. A guest's [`owners`](crate::problem::Guest::owners) are what all of its fences have
/// in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The rule that sets the limit.
    pub rule: RuleId,
    /// Where it lets guests be.
    pub hosts: Bits,
}

/// What hosts cost guests by one rule. A guest's [`preference`](crate::problem::Guest::preference) is the sum of all of
/// its leanings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaning {
    /// The rule that sets the cost.
    pub rule: RuleId,
    /// Of hosts that cost something else than `otherwise`, by number.
    pub costs: Vec<(HostId, i64)>,
    /// Of all others.
    pub otherwise: i64,
}

impl Leaning {
    /// What a host costs.
    pub fn cost(&self, host: HostId) -> i64 {
        self.costs.binary_search_by_key(&host, |(host, _)| *host).map_or(self.otherwise, |at| self.costs[at].1)
    }
}

/// What the numbers of a problem are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Of hosts.
    pub hosts: Vec<String>,
    /// Whether guests can run on each.
    pub states: Vec<HostState>,
    /// Which of them hold disks that others need.
    pub storage: Bits,
    /// The host group of each.
    pub host_groups: Vec<Option<String>>,
    /// Of each host: what is free of each row after a guest was placed there to relieve another.
    pub place_free: Vec<Vec<i64>>,
    /// Of guests.
    pub guests: Vec<String>,
    /// What each is called elsewhere: several can be called the same.
    pub aliases: Vec<Option<String>>,
    /// Where each was, also on a host that is offline.
    pub recorded: Vec<HostId>,
    /// Of resources.
    pub rows: Vec<Row>,
    /// Of levels of areas.
    pub levels: Vec<Level>,
    /// All, also what says the same as one.
    pub rules: Vec<RuleName>,
    /// The rule of each group.
    pub groups: Vec<RuleId>,
    /// Who is in each group.
    pub members: Vec<Vec<GuestId>>,
    /// Hard limits to hosts.
    pub fences: Vec<Fence>,
    /// Those of each guest.
    pub fences_of: Vec<Vec<u32>>,
    /// What hosts cost.
    pub leanings: Vec<Leaning>,
    /// Those of each guest.
    pub leanings_of: Vec<Vec<u32>>,
    /// What a breach costs of a rule that is soft and says nothing else.
    pub rule_weight: i64,
}

impl Names {
    /// A host's name.
    pub fn host(&self, host: HostId) -> &str {
        if host == NOWHERE { "nowhere" } else { &self.hosts[host as usize] }
    }

    /// A guest's name.
    pub fn guest(&self, guest: GuestId) -> &str {
        &self.guests[guest as usize]
    }

    /// The host of a guest that is on none because that host is offline.
    pub(crate) fn lost(&self, guest: GuestId) -> Option<HostId> {
        let was = self.recorded[guest as usize];
        (self.states.get(was as usize) == Some(&HostState::Offline)).then_some(was)
    }

    /// The rule of a group.
    pub fn group(&self, group: GroupId) -> &RuleName {
        &self.rules[self.groups[group as usize] as usize]
    }

    /// An area of a level: "rack 'r1'".
    pub fn area(&self, level: usize, area: u32) -> String {
        let level = &self.levels[level];
        format!("{} '{}'", level.name, level.areas[area as usize])
    }

    /// The same; of hosts, which are areas by themselves, only the name.
    pub(crate) fn area_name(&self, level: usize, area: u32) -> String {
        match self.levels[level].name == super::HOST_LEVEL {
            true => format!("'{}'", self.levels[level].areas[area as usize]),
            false => self.area(level, area),
        }
    }

    /// Names of several guests, the rest of them counted.
    pub fn list(&self, guests: &[GuestId]) -> String {
        listed(guests.iter().map(|guest| self.guest(*guest)))
    }

    /// Which guest is called so.
    pub fn guest_named(&self, name: &str) -> Option<GuestId> {
        self.guests.iter().position(|guest| guest == name).map(|at| at as GuestId)
    }

    /// Which guests have this alias.
    pub fn guests_called(&self, alias: &str) -> Vec<GuestId> {
        let all = (0..).zip(&self.aliases);
        all.filter(|(_, of)| of.as_deref() == Some(alias)).map(|(guest, _)| guest).collect()
    }
}

/// The first ones by name, the rest as a number.
pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const NAMES_LISTED_MAX: usize = 4;
    let names: Vec<&str> = names.collect();
    let told: Vec<String> = names.iter().take(NAMES_LISTED_MAX).map(|name| format!("'{name}'")).collect();
    match names.len() {
        0 => "nobody".into(),
        n if n > NAMES_LISTED_MAX => format!("{} and {} more", told.join(", "), n - NAMES_LISTED_MAX),
        _ => told.join(", "),
    }
}

/// The form of a word that fits so many guests.
pub(crate) fn agree<'a>(guests: &[GuestId], one: &'a str, several: &'a str) -> &'a str {
    if guests.len() == 1 { one } else { several }
}
