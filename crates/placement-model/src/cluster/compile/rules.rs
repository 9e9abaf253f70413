//! Compiles rules: about groups of guests, and about guests and hosts.

use std::collections::{BTreeMap, BTreeSet};

use super::super::clash::{self, Clash};
use super::super::mistake::{Mistake, Object, ObjectKind, unknown};
use super::super::names::{Leaning, RuleKind};
use super::super::rule::{self, Force, Guests, HOST_LEVEL, Hosts, Matching, Rule};
use super::fault::{Fault, at, below};
use super::{Compiler, ranked, seconds};
use skein_placement::bits::Bits;
use skein_placement::problem::{Avoid, Even, Group, GuestId, HostId, NOWHERE, NeedsRule, Spread, Strength};
use skein_placement::survive::Survive;

impl<'a> Compiler<'a> {
    /// Keeps guests of the same availability set apart, unless a rule with a force of its own says so.
    pub(super) fn availability_sets(&mut self) {
        let told = self.cluster.rules.iter().filter_map(|rule| match rule {
            Rule::Apart(rule::Apart { of: Guests::Set(set), from: None, .. }) => Some(set.as_str()),
            _ => None,
        });
        let told: BTreeSet<&str> = told.collect();
        for (set, guests) in self.sets.clone() {
            if !told.contains(set) {
                let rule = self.new_rule(set, RuleKind::AvailabilitySet);
                let apart = Some(Strength::Soft(self.names.rule_weight));
                self.group(rule, Group { apart, ..Group::default() }, guests);
            }
        }
    }

    pub(super) fn rule(&mut self, n: usize, rule: &Rule) -> Result<(), Mistake> {
        let name = rule.name();
        let object = || Object::new(ObjectKind::Rule(rule.kind()), n, name);
        at(object, self.add_rule(rule, name).map_err(|fault| fault.of(&object().to_string())))
    }

    fn add_rule(&mut self, rule: &Rule, name: &str) -> Result<(), Fault> {
        match rule {
            Rule::Apart(apart) => self.apart(name, apart),
            Rule::Together(together) => {
                let strength = self.strength(together.force, together.weight)?;
                let group = Group { together: Some(strength), ..Group::default() };
                self.group_rule(name, RuleKind::Together, &together.of, group)
            }
            Rule::Spread(spread) => self.spread(name, spread),
            Rule::Among(among) => {
                let sets: Result<Vec<Vec<HostId>>, String> =
                    among.within.iter().map(|hosts| self.within(hosts)).collect();
                let sets: Vec<Bits> = sets?.into_iter().map(|set| set.into_iter().collect()).collect();
                if sets.is_empty() {
                    return Err("'within' is empty: name at least one set of hosts".to_owned().into());
                }
                self.group_rule(name, RuleKind::Among, &among.of, Group { among: sets, ..Group::default() })
            }
            Rule::Needs(needs) => {
                let strength = self.strength(needs.force, needs.weight)?;
                let level = self.level(&needs.level)?;
                let near = self.who(name, &needs.near)?;
                let rule = self.new_rule(name, RuleKind::Needs);
                let of = self.group(rule, Group::default(), near);
                let guests = self.who(name, &needs.of)?;
                self.group(rule, Group { needs: vec![NeedsRule { level, of, strength }], ..Group::default() }, guests);
                Ok(())
            }
            Rule::Owners(owners) => {
                let hosts = self.within(&owners.within)?.into_iter().collect();
                let guests = self.who(name, &owners.of)?;
                let rule = self.new_rule(name, RuleKind::Owners);
                self.fence(rule, hosts, &guests);
                Ok(())
            }
            Rule::Preferred(preferred) => {
                let hosts = self.within(&preferred.within)?;
                let guests = self.who(name, &preferred.of)?;
                let rule = self.new_rule(name, RuleKind::Preferred);
                let weight = self.costs.preference;
                let leaning = match &preferred.within {
                    Hosts::Hosts(_) => ranked(rule, &hosts, weight),
                    // A host group has no order.
                    Hosts::Group(_) => {
                        Leaning { rule, costs: hosts.iter().map(|host| (*host, 0)).collect(), otherwise: weight }
                    }
                };
                self.lean(leaning, &guests);
                Ok(())
            }
            Rule::Match(rule) => self.matching(name, rule),
        }
    }

    /// Keeps guests apart from each other, or from others, which have a group of their own then.
    fn apart(&mut self, name: &str, apart: &rule::Apart) -> Result<(), Fault> {
        let strength = self.strength(apart.force, apart.weight)?;
        let Some(from) = &apart.from else {
            if apart.level.is_some() {
                let what = "there is a level without 'from': name whom they are apart from, or use spread";
                return Err(what.to_owned().into());
            }
            return self.group_rule(
                name,
                RuleKind::Apart,
                &apart.of,
                Group { apart: Some(strength), ..Group::default() },
            );
        };
        let level = self.level(apart.level.as_deref().unwrap_or(HOST_LEVEL))?;
        let (others, guests) = (self.who(name, from)?, self.who(name, &apart.of)?);
        if let Some(both) = guests.iter().find(|guest| others.binary_search(guest).is_ok()) {
            let who = self.names.guest(*both);
            return Err(format!("'{who}' is in 'of' and in 'from': take it out of one of them").into());
        }
        let rule = self.new_rule(name, RuleKind::Apart);
        let of = self.group(rule, Group::default(), others);
        self.group(rule, Group { avoids: vec![Avoid { level, of, strength }], ..Group::default() }, guests);
        Ok(())
    }

    fn spread(&mut self, name: &str, spread: &rule::Spread) -> Result<(), Fault> {
        let strength = self.strength(spread.force, spread.weight)?;
        let level = self.level(&spread.level)?;
        if spread.areas_min.is_none() && spread.skew_max.is_none() {
            return Err("say over how many areas: areas_min, or how evenly: skew_max".to_owned().into());
        }
        if spread.areas_min == Some(0) {
            let what = "areas_min is 0, which nothing can break: say over how many areas, or leave it out";
            return Err(what.to_owned().into());
        }
        let group = Group {
            spread: spread.areas_min.map(|areas_min| Spread { level, areas_min, strength }),
            // Which areas count is known only once all fences are.
            even: spread.skew_max.map(|skew_max| Even { level, areas: Bits::default(), skew_max, strength }),
            ..Group::default()
        };
        self.group_rule(name, RuleKind::Spread, &spread.of, group)
    }

    /// Sets the areas that count for an even spread: those where one of its guests may be.
    pub(super) fn even_areas(&mut self) {
        for (group, members) in self.problem.groups.iter_mut().zip(&self.names.members) {
            let Some(even) = &mut group.even else { continue };
            let owners: BTreeSet<Option<u32>> =
                members.iter().map(|guest| self.problem.guests[*guest as usize].owners).collect();
            let may_be = |host: HostId| {
                owners.iter().any(|set| set.is_none_or(|set| self.problem.owners[set as usize].contains(host)))
            };
            let hosts = (0..).zip(&self.problem.hosts).filter(|(host, _)| may_be(*host));
            even.areas = hosts.map(|(_, host)| host.areas[even.level]).collect();
        }
    }

    fn group_rule(&mut self, name: &str, kind: RuleKind, of: &Guests, group: Group) -> Result<(), Fault> {
        let guests = self.who(name, of)?;
        let rule = self.new_rule(name, kind);
        self.group(rule, group, guests);
        Ok(())
    }

    /// Compiles how many hosts may fail, and checks that some are left then.
    pub(super) fn survive(&self, survive: &rule::Survive) -> Result<Survive, Mistake> {
        let told = |fault: Fault| fault.of("survive").at(|| Object::only(ObjectKind::Survive));
        let (failures, hosts) = (survive.failures, self.cluster.hosts.len());
        if failures == 0 || failures as usize >= hosts {
            let what = format!("failures is {failures}: write 1 or more, and fewer than the {hosts} hosts");
            return Err(told(what.into()));
        }
        let strength = self.strength(survive.force, survive.weight).map_err(told)?;
        Ok(Survive { failures, strength })
    }

    /// Compiles a rule about a property: each value that guests have gives a set of hosts.
    fn matching(&mut self, name: &str, of: &rule::Match) -> Result<(), Fault> {
        let cluster = self.cluster;
        let hosts = match &of.group {
            Some(group) => self.within(&Hosts::Group(group.clone()))?,
            None => (0..cluster.hosts.len() as HostId).collect(),
        };
        let concerned: Bits = hosts.iter().copied().collect();
        let rule = self.new_rule(name, RuleKind::Match);
        self.names.rules[rule as usize].property.clone_from(&of.property);
        let unset: Vec<&str> = hosts
            .iter()
            .map(|host| &cluster.hosts[*host as usize])
            .filter(|host| !host.properties.contains_key(&of.property))
            .map(|host| host.name.as_str())
            .collect();
        let mut guests_unset = Vec::new();
        let mut values: BTreeMap<Option<&str>, Vec<GuestId>> = BTreeMap::new();
        for (n, merged) in (0..).zip(&self.merged) {
            let value = merged.property(&of.property).map(String::as_str);
            let recorded = self.names.recorded[n as usize];
            if value.is_none() && recorded != NOWHERE && concerned.contains(recorded) {
                guests_unset.push(n);
            }
            values.entry(value).or_default().push(n);
        }
        self.clashes.extend(clash::unset(&self.names, rule, &of.property, &unset, &guests_unset));
        let weight = match of.weight {
            Some(weight) => below(&["weight"], seconds("its weight", weight))?,
            None => self.names.rule_weight,
        };
        for (value, guests) in values {
            let matches = |host: HostId| {
                value.is_some()
                    && cluster.hosts[host as usize].properties.get(&of.property).map(String::as_str) == value
            };
            let is_wanted = |host: HostId| match of.relation {
                Matching::Must | Matching::Should => matches(host),
                Matching::MustNot | Matching::ShouldNot => !matches(host),
            };
            let bad: Vec<HostId> = hosts.iter().copied().filter(|host| !is_wanted(*host)).collect();
            match of.relation {
                _ if bad.is_empty() => {}
                Matching::Must | Matching::MustNot => {
                    let bad: Bits = bad.into_iter().collect();
                    self.fence(
                        rule,
                        (0..cluster.hosts.len() as HostId).filter(|host| !bad.contains(*host)).collect(),
                        &guests,
                    );
                }
                Matching::Should | Matching::ShouldNot => {
                    let costs = bad.into_iter().map(|host| (host, weight)).collect();
                    self.lean(Leaning { rule, costs, otherwise: 0 }, &guests);
                }
            }
        }
        Ok(())
    }

    fn strength(&self, force: Force, weight: Option<f64>) -> Result<Strength, Fault> {
        match (force, weight) {
            (Force::Hard, None) => Ok(Strength::Hard),
            (Force::Hard, Some(_)) => {
                Err("it is hard, so that it has no weight: leave one of both out".to_owned().into())
            }
            (Force::Soft, None) => Ok(Strength::Soft(self.names.rule_weight)),
            (Force::Soft, Some(weight)) => below(&["weight"], seconds("its weight", weight)).map(Strength::Soft),
        }
    }

    fn level(&self, name: &str) -> Result<usize, String> {
        self.levels.get(name).copied().ok_or_else(|| unknown("level", name, self.levels.keys()))
    }

    fn within(&self, hosts: &Hosts) -> Result<Vec<HostId>, String> {
        match hosts {
            Hosts::Hosts(names) => self.hosts_named(names),
            Hosts::Group(name) => {
                let of = |group: &Option<String>| group.as_ref() == Some(name);
                let hosts: Vec<HostId> =
                    (0..).zip(&self.names.host_groups).filter(|(_, group)| of(group)).map(|(host, _)| host).collect();
                if hosts.is_empty() {
                    return Err(unknown("host group", name, self.names.host_groups.iter().flatten()));
                }
                Ok(hosts)
            }
        }
    }

    /// Returns the guests that a rule is about, each once. A rule about no guest is reported: it may be a slip, but
    /// guests come and go, so it is no error.
    fn who(&mut self, rule: &str, guests: &Guests) -> Result<Vec<GuestId>, String> {
        let (what, name, labels) = match guests {
            Guests::Guests(names) => {
                let find = |name: &String| {
                    let known = self.guests.get(name.as_str()).copied();
                    known.ok_or_else(|| unknown("guest", name, self.guests.keys()))
                };
                let mut found = names.iter().map(find).collect::<Result<Vec<GuestId>, String>>()?;
                found.sort_unstable();
                found.dedup();
                return Ok(found);
            }
            Guests::Tag(name) => ("tag", name, &self.tags),
            Guests::Set(name) => ("availability set", name, &self.sets),
            Guests::Tenant(name) => ("tenant", name, &self.tenants),
        };
        let found = labels.get(name.as_str()).cloned().unwrap_or_default();
        if found.is_empty() {
            let clash = Clash::nobody(rule, unknown(what, name, labels.keys()));
            self.clashes.push(clash);
        }
        Ok(found)
    }
}
