//! Leads back from a problem's numbers to what the user wrote.

use std::fmt;

use serde::Serialize;

use super::amount::Unit;
use super::model::HostState;
use skein_placement::bits::Bits;
use skein_placement::problem::{GroupId, GuestId, HostId, NOWHERE};

/// The index of a rule in [`Names::rules`].
pub type RuleId = u32;

/// The kind of a rule, or of something that has the meaning of a rule.
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
    /// A guest with `optimize: false`, which stays where it is.
    Stays,
    /// A guest that writes more than can be sent.
    Writes,
    /// Guests with the same `availability_set`.
    AvailabilitySet,
    /// Hosts that are not online.
    HostState,
}

/// A rule and its name. Names are unique among the rules of one kind that the user writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleName {
    /// The name of the rule, of the availability set, or of the guest.
    pub name: String,
    /// The kind of the rule.
    pub kind: RuleKind,
    /// The property that the rule compares. Empty if it compares none.
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
    /// What guests use, as measured.
    Measured,
    /// The number of guests.
    Count,
}

/// The name of one of [`Problem::resources`](skein_placement::problem::Problem::resources). A resource of the user has
/// a row for what is reserved and one for what is measured, if guests have either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The resource's name, or "guests" where these are counted.
    pub name: String,
    /// What the row counts.
    pub measure: Measure,
    /// The unit of the row's amounts.
    pub unit: Unit,
}

impl Row {
    /// Returns an amount of the row as a text.
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
    /// The names of its areas.
    pub areas: Vec<String>,
}

/// A hard limit of guests to hosts. A guest's [`owners`](skein_placement::problem::Guest::owners) are the hosts that
/// all of its fences have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The rule that sets the limit.
    pub rule: RuleId,
    /// The hosts where guests may be by the rule.
    pub hosts: Bits,
}

/// What hosts cost guests by one rule. A guest's [`preference`](skein_placement::problem::Guest::preference) is the sum
/// of all of its leanings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaning {
    /// The rule that sets the cost.
    pub rule: RuleId,
    /// The costs of hosts that differ from `otherwise`, by host.
    pub costs: Vec<(HostId, i64)>,
    /// The cost of all other hosts.
    pub otherwise: i64,
}

impl Leaning {
    /// Returns what a host costs.
    pub fn cost(&self, host: HostId) -> i64 {
        self.costs.binary_search_by_key(&host, |(host, _)| *host).map_or(self.otherwise, |at| self.costs[at].1)
    }
}

/// The names of what a problem has in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The names of hosts.
    pub hosts: Vec<String>,
    /// The state of each host: whether guests can run on it.
    pub states: Vec<HostState>,
    /// The hosts with disks that others need.
    pub storage: Bits,
    /// The host group of each host.
    pub host_groups: Vec<Option<String>>,
    /// For each host, how much of each row stays free after a guest was placed there to relieve another host.
    pub place_free: Vec<Vec<i64>>,
    /// The names of guests.
    pub guests: Vec<String>,
    /// The alias of each guest: its name elsewhere. Several guests can have the same.
    pub aliases: Vec<Option<String>>,
    /// The recorded host of each guest, also if that host is offline.
    pub recorded: Vec<HostId>,
    /// The rows, by resource of the problem.
    pub rows: Vec<Row>,
    /// The levels of areas.
    pub levels: Vec<Level>,
    /// All rules, also what has the meaning of a rule.
    pub rules: Vec<RuleName>,
    /// The rule of each group.
    pub groups: Vec<RuleId>,
    /// The members of each group.
    pub members: Vec<Vec<GuestId>>,
    /// The hard limits to hosts.
    pub fences: Vec<Fence>,
    /// The fences of each guest, as indices in `fences`.
    pub fences_of: Vec<Vec<u32>>,
    /// What hosts cost, by rule.
    pub leanings: Vec<Leaning>,
    /// The leanings of each guest, as indices in `leanings`.
    pub leanings_of: Vec<Vec<u32>>,
    /// The cost of a breach of a soft rule without a weight of its own.
    pub rule_weight: i64,
}

impl Names {
    /// Returns a host's name.
    pub fn host(&self, host: HostId) -> &str {
        if host == NOWHERE { "nowhere" } else { &self.hosts[host as usize] }
    }

    /// Returns a guest's name.
    pub fn guest(&self, guest: GuestId) -> &str {
        &self.guests[guest as usize]
    }

    /// Returns the host of a guest that is on none because that host is offline.
    pub(crate) fn lost(&self, guest: GuestId) -> Option<HostId> {
        let was = self.recorded[guest as usize];
        (self.states.get(was as usize) == Some(&HostState::Offline)).then_some(was)
    }

    /// Returns the rule of a group.
    pub fn group(&self, group: GroupId) -> &RuleName {
        &self.rules[self.groups[group as usize] as usize]
    }

    /// Returns the name of an area with its level: "rack 'r1'".
    pub fn area(&self, level: usize, area: u32) -> String {
        let level = &self.levels[level];
        format!("{} '{}'", level.name, level.areas[area as usize])
    }

    /// Returns the same as [`Names::area`], but only the name for a host, which is an area by itself.
    pub(crate) fn area_name(&self, level: usize, area: u32) -> String {
        match self.levels[level].name == super::HOST_LEVEL {
            true => format!("'{}'", self.levels[level].areas[area as usize]),
            false => self.area(level, area),
        }
    }

    /// Returns the names of several guests; if there are many, the rest as a number.
    pub fn list(&self, guests: &[GuestId]) -> String {
        listed(guests.iter().map(|guest| self.guest(*guest)))
    }

    /// Returns the guest with this name.
    pub fn guest_named(&self, name: &str) -> Option<GuestId> {
        self.guests.iter().position(|guest| guest == name).map(|at| at as GuestId)
    }

    /// Returns the guests with this alias.
    pub fn guests_called(&self, alias: &str) -> Vec<GuestId> {
        let all = (0..).zip(&self.aliases);
        all.filter(|(_, of)| of.as_deref() == Some(alias)).map(|(guest, _)| guest).collect()
    }
}

/// Returns the first names, and the rest as a number.
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

/// Returns the form of a word that fits the number of guests.
pub(crate) fn agree<'a>(guests: &[GuestId], one: &'a str, several: &'a str) -> &'a str {
    if guests.len() == 1 { one } else { several }
}
