//! Checks what is broken now, and since when.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::complaint::Complaint;
use super::names::{Names, RuleKind, agree};
use super::survival::{self, Survived};
use super::{Compiled, model::HostState};
use skein_placement::problem::{GroupId, GuestId, HostId, NOWHERE, Problem};
use skein_placement::score::Score;
use skein_placement::verdict::{Breach, judge};

/// Since when what is broken has been so: the [`Complaint::key`] of each complaint, with the time of the first
/// [`check`] that found it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// The field has a name in JSON, so that no other file of numbers is taken for a history.
    since: BTreeMap<String, u64>,
}

/// What is broken, the worst first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The complaints, hard ones before soft ones.
    pub complaints: Vec<Complaint>,
    /// The cost of all soft complaints, with load and balance, in microseconds of traffic. Failures that are not
    /// survived are not included.
    pub cost: i64,
    /// The result of letting hosts fail, if the file asks for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub survived: Option<Survived>,
}

impl Check {
    /// Returns whether nothing hard is broken.
    pub fn is_valid(&self) -> bool {
        self.complaints.iter().all(|complaint| !complaint.hard)
    }
}

/// Which of a group's rules is broken: one that must hold, or one whose breach costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breached {
    Hard,
    Soft,
}

/// Checks an assignment. `history` is what the last check returned, and `now` is the time, of any clock.
pub fn check(compiled: &Compiled, assignment: &[HostId], history: &History, now: u64) -> (Check, History) {
    let verdict = judge(&compiled.problem, assignment);
    let text = BreachText { problem: &compiled.problem, names: &compiled.names, at: assignment };
    let mut complaints: Vec<Complaint> =
        verdict.hard.iter().flat_map(|breach| text.complaints(breach, Breached::Hard)).collect();
    complaints.extend(verdict.soft.iter().flat_map(|breach| text.complaints(breach, Breached::Soft)));
    complaints.extend(text.preferences());
    let survived = survival::look(compiled, assignment).map(|(survived, failures)| {
        complaints.extend(failures);
        survived
    });
    for complaint in &mut complaints {
        complaint.since = history.since.get(&complaint.key).copied().unwrap_or(now).min(now);
    }
    let since = complaints.iter().map(|complaint| (complaint.key.clone(), complaint.since)).collect();
    complaints.sort_by(|a, b| (b.hard, b.gravity, &a.key).cmp(&(a.hard, a.gravity, &b.key)));
    (Check { complaints, cost: verdict.cost.total(), survived }, History { since })
}

/// How much of a host's capacity is used.
struct Usage {
    used: i64,
    /// The part of `used` that is of guests that are leaving.
    moving: i64,
    capacity: i64,
}

/// What a complaint says about a broken rule of a group.
struct GroupText {
    /// What tells this breach from others of the rule, behind the rule's name.
    key: String,
    what: String,
    guests: Vec<GuestId>,
}

/// Puts breaches into the user's words.
struct BreachText<'a> {
    problem: &'a Problem,
    names: &'a Names,
    at: &'a [HostId],
}

impl BreachText<'_> {
    fn complaint(&self, key: String, what: String, guests: &[GuestId], hosts: &[HostId]) -> Complaint {
        Complaint {
            key,
            hard: true,
            gravity: Score::BREACH,
            what,
            rule: None,
            guests: guests.iter().map(|guest| self.names.guest(*guest).to_owned()).collect(),
            hosts: hosts.iter().map(|host| self.names.host(*host).to_owned()).collect(),
            since: 0,
        }
    }

    /// Returns the complaints about a breach: one, or one for each rule that is broken.
    fn complaints(&self, breach: &Breach, breached: Breached) -> Vec<Complaint> {
        let (group, text) = match *breach {
            Breach::Unplaced { guest } => return vec![self.unplaced(guest)],
            Breach::NotOwner { guest, host, .. } => return self.not_owner(guest, host),
            Breach::Overload { host, resource, used, moving, capacity } => {
                return vec![self.overload(host, resource, Usage { used, moving, capacity })];
            }
            Breach::Apart { group, host, .. } => (group, self.apart(group, host)),
            Breach::Together { group, hosts, .. } => (group, self.together(group, hosts)),
            Breach::Spread { group, areas, areas_min } => (group, self.spread(group, areas, areas_min)),
            Breach::Need { group, of, level, area } => (group, self.need(group, of, level, area)),
            Breach::Uneven { group, least, most, .. } => (group, self.uneven(group, least, most)),
            Breach::Avoid { group, of, level, area, .. } => (group, self.avoid(group, of, level, area)),
            Breach::Among { group, .. } => (group, self.among(group)),
        };
        vec![self.of_group(breach, group, breached, text)]
    }

    fn overload(&self, host: HostId, resource: usize, Usage { used, moving, capacity }: Usage) -> Complaint {
        let row = &self.names.rows[resource];
        let mut what = format!(
            "{row} of '{}': {} used of {}, {} too much",
            self.names.host(host),
            row.text(used),
            row.text(capacity),
            row.text(used - capacity)
        );
        if moving > 0 {
            what += &format!(" ({} of it by guests that are leaving)", row.text(moving));
        }
        let guests = self.on(host).filter(|guest| self.problem.guests[*guest as usize].demand[resource] > 0);
        let key = format!("overload of {row} on {}", self.names.host(host));
        let mut complaint = self.complaint(key, what, &guests.collect::<Vec<_>>(), &[host]);
        complaint.gravity = skein_placement::score::overload(used - capacity, capacity);
        complaint
    }

    fn apart(&self, group: GroupId, host: HostId) -> GroupText {
        let guests: Vec<GuestId> = self.members_on(group, |on| on == host);
        let host = self.names.host(host);
        let what = format!("{} share '{host}' and are to be apart", self.names.list(&guests));
        GroupText { key: format!(" on {host}"), what, guests }
    }

    fn together(&self, group: GroupId, hosts: u32) -> GroupText {
        let guests = self.members_on(group, |on| on != NOWHERE);
        let what = format!("{} are on {hosts} hosts and are to be together", self.names.list(&guests));
        GroupText { key: String::new(), what, guests }
    }

    fn spread(&self, group: GroupId, areas: u32, areas_min: u32) -> GroupText {
        let guests = self.members_on(group, |_| true);
        let level = self.problem.groups[group as usize].spread.map_or(0, |spread| spread.level);
        let level = &self.names.levels[level].name;
        let what = format!(
            "{} {} in {areas} of at least {areas_min} areas of level '{level}'",
            self.names.list(&guests),
            agree(&guests, "is", "are")
        );
        GroupText { key: String::new(), what, guests }
    }

    fn need(&self, group: GroupId, of: GroupId, level: usize, area: u32) -> GroupText {
        let guests = self.members_in(group, level, area);
        let needed = self.names.list(&self.names.members[of as usize]);
        let area = self.names.area(level, area);
        let what = format!(
            "{} {} one of {needed} in {area}, where none is",
            self.names.list(&guests),
            agree(&guests, "needs", "need")
        );
        GroupText { key: format!(" in {area}"), what, guests }
    }

    fn uneven(&self, group: GroupId, least: u32, most: u32) -> GroupText {
        let guests = self.members_on(group, |_| true);
        let even = self.problem.groups[group as usize].even.as_ref();
        let (level, skew) = even.map_or((0, 0), |even| (even.level, even.skew_max));
        let level = &self.names.levels[level].name;
        let what = format!(
            "of {} up to {most} are in one area of level '{level}' and {least} in another, which is more than {skew} \
             apart",
            self.names.list(&guests)
        );
        GroupText { key: " evenly".into(), what, guests }
    }

    fn avoid(&self, group: GroupId, of: GroupId, level: usize, area: u32) -> GroupText {
        let (guests, others) = (self.members_in(group, level, area), self.members_in(of, level, area));
        let place = self.names.area_name(level, area);
        let what = format!(
            "{} {} {place} with {} and {} to be apart from {}",
            self.names.list(&guests),
            agree(&guests, "shares", "share"),
            self.names.list(&others),
            agree(&guests, "is", "are"),
            agree(&others, "it", "them"),
        );
        GroupText { key: format!(" in {place}"), what, guests: [guests, others].concat() }
    }

    fn among(&self, group: GroupId) -> GroupText {
        let guests = self.members_on(group, |on| on != NOWHERE);
        let what = format!("{} are not all within one of the sets of hosts", self.names.list(&guests));
        GroupText { key: String::new(), what, guests }
    }

    fn unplaced(&self, guest: GuestId) -> Complaint {
        let name = self.names.guest(guest);
        let (what, hosts) = match self.names.lost(guest) {
            Some(was) => (format!("'{name}' is on no host: '{}' is offline", self.names.host(was)), vec![was]),
            None => (format!("'{name}' is on no host"), Vec::new()),
        };
        let mut complaint = self.complaint(format!("{name} is nowhere"), what, &[guest], &hosts);
        // That a guest does not run comes first, whatever placing it could break.
        complaint.gravity = Score::FORBIDDEN;
        complaint
    }

    /// Returns the complaints about a guest on a host that its fences do not allow, one for each rule.
    fn not_owner(&self, guest: GuestId, host: HostId) -> Vec<Complaint> {
        let fences = self.names.fences_of[guest as usize].iter().map(|fence| &self.names.fences[*fence as usize]);
        let broken = fences.filter(|fence| !fence.hosts.contains(host)).map(|fence| fence.rule);
        let tell = |rule: u32| {
            let rule = &self.names.rules[rule as usize];
            let what = match rule.kind {
                // Each guest of such a host has a complaint of its own.
                RuleKind::HostState => format!(
                    "'{}' is on '{}', which is {}",
                    self.names.guest(guest),
                    self.names.host(host),
                    self.names.state(host)
                ),
                _ => self.names.fenced_out(rule, guest, host),
            };
            let key = format!("{rule}: {}", self.names.guest(guest));
            let mut complaint = self.complaint(key, what, &[guest], &[host]);
            complaint.rule = Some(rule.to_string());
            complaint
        };
        broken.map(tell).collect()
    }

    /// Returns the complaint about a broken rule of a group.
    fn of_group(&self, breach: &Breach, group: GroupId, breached: Breached, text: GroupText) -> Complaint {
        let GroupText { key, what, guests } = text;
        let mut hosts: Vec<HostId> = guests.iter().map(|guest| self.at[*guest as usize]).collect();
        hosts.retain(|host| *host != NOWHERE);
        hosts.sort_unstable();
        hosts.dedup();
        let rule = self.names.group(group);
        let mut complaint = self.complaint(format!("{rule}{key}"), what, &guests, &hosts);
        let of = &self.problem.groups[group as usize];
        let strength = match breach {
            Breach::Apart { .. } => of.apart,
            Breach::Together { .. } => of.together,
            Breach::Uneven { .. } => of.even.as_ref().map(|even| even.strength),
            Breach::Need { of: other, level, .. } => {
                let need = of.needs.iter().find(|need| (need.of, need.level) == (*other, *level));
                need.map(|need| need.strength)
            }
            Breach::Avoid { of: other, level, .. } => {
                let avoid = of.avoids.iter().find(|avoid| (avoid.of, avoid.level) == (*other, *level));
                avoid.map(|avoid| avoid.strength)
            }
            _ => of.spread.map(|spread| spread.strength),
        };
        complaint.hard = breached == Breached::Hard;
        complaint.rule = Some(rule.to_string());
        complaint.gravity = match strength.map(|strength| strength.score(breach.count())) {
            Some(score) if breached == Breached::Soft => score.cost,
            _ => Score::BREACH * breach.count(),
        };
        complaint
    }

    /// Returns the complaints about guests on hosts that a soft rule about a guest and its host disfavours.
    fn preferences(&self) -> Vec<Complaint> {
        let mut complaints = Vec::new();
        for (guest, host) in (0..).zip(self.at).filter(|(_, host)| **host != NOWHERE) {
            for leaning in &self.names.leanings_of[guest as usize] {
                let leaning = &self.names.leanings[*leaning as usize];
                let cost = leaning.cost(*host);
                if cost > 0 {
                    let rule = &self.names.rules[leaning.rule as usize];
                    let what = self.names.leant_away(rule, guest, *host);
                    let mut complaint =
                        self.complaint(format!("{rule}: {}", self.names.guest(guest)), what, &[guest], &[*host]);
                    (complaint.hard, complaint.gravity, complaint.rule) = (false, cost, Some(rule.to_string()));
                    complaints.push(complaint);
                }
            }
        }
        complaints
    }

    fn on(&self, host: HostId) -> impl Iterator<Item = GuestId> {
        (0..).zip(self.at).filter(move |(_, on)| **on == host).map(|(guest, _)| guest)
    }

    fn members_on(&self, group: GroupId, is_there: impl Fn(HostId) -> bool) -> Vec<GuestId> {
        let members = self.names.members[group as usize].iter();
        members.filter(|guest| is_there(self.at[**guest as usize])).copied().collect()
    }

    fn members_in(&self, group: GroupId, level: usize, area: u32) -> Vec<GuestId> {
        self.members_on(group, |on| on != NOWHERE && self.problem.hosts[on as usize].areas[level] == area)
    }
}

impl Names {
    /// Returns why a host that is not online may have no guests.
    fn state(&self, host: HostId) -> &'static str {
        match self.states[host as usize] {
            HostState::Offline => "offline",
            _ => "in maintenance",
        }
    }

    /// Returns why a rule does not allow a guest on a host.
    pub(crate) fn fenced_out(&self, rule: &super::RuleName, guest: GuestId, host: HostId) -> String {
        let (who, on) = (self.guest(guest), self.host(host));
        match rule.kind {
            RuleKind::HostState => format!("'{on}' is {}", self.state(host)),
            RuleKind::GuestOwners => format!("'{on}' is not among {rule}"),
            RuleKind::Stays => format!("'{who}' stays where it is: {rule}"),
            RuleKind::Writes => format!("'{who}' stays where it is: it writes faster than it can be sent"),
            RuleKind::Match => format!("the property '{}' of '{who}' and of '{on}' breaks {rule}", rule.property),
            _ => format!("{rule} does not let '{who}' be on '{on}'"),
        }
    }

    /// Returns why a rule disfavours a guest on a host.
    pub(crate) fn leant_away(&self, rule: &super::RuleName, guest: GuestId, host: HostId) -> String {
        let (who, on) = (self.guest(guest), self.host(host));
        match rule.kind {
            RuleKind::Near => format!("'{on}' is not near {rule}"),
            RuleKind::GuestPreferred => format!("'{on}' is not the first of {rule}"),
            RuleKind::Match => format!("the property '{}' of '{who}' and of '{on}' goes against {rule}", rule.property),
            _ => format!("{rule} would rather not have '{who}' on '{on}'"),
        }
    }
}
