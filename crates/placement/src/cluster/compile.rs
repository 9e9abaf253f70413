//! A file as a problem.

use std::collections::{BTreeMap, BTreeSet};

use super::amount::{Amount, Unit};
use super::clash::{self, Clash};
use super::file::{self, Amounts, Cluster, Force, Guests, HostState, Hosts, Matching, Name, Number, Rule};
use super::names::{Fence, Leaning, Level, Measure, Names, Row, RuleId, RuleKind, RuleName};
use super::{ClusterError, HOST_LEVEL, unknown};
use crate::bits::Bits;
use crate::problem::{
    Balance, Group, GroupId, Guest, GuestId, Host, HostId, HostMoves, NOWHERE, Need, Problem, Resource, Spread,
    Strength, Weights,
};
use crate::schedule::{Traffic, forecast};

/// What a file says.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// In numbers. Costs are microseconds of migration traffic.
    pub problem: Problem,
    /// What they are called.
    pub names: Names,
    /// What there is to send of each guest, if it moves.
    pub traffic: Vec<Traffic>,
    /// Of one migration, in bytes a second.
    pub bandwidth: f64,
    /// Rules that can never hold together, and rules about nobody. They are in the problem all the same.
    pub clashes: Vec<Clash>,
}

/// The cost of a second of traffic.
const SECOND: f64 = 1e6;

/// No number of seconds in the file is larger: thirty years.
const SECONDS_MAX: f64 = 1e9;

/// How long guests may stand still: what `skein migrate` aims at unless it is told otherwise.
const DOWNTIME_S: f64 = 0.3;

/// Whoever writes its memory nearly as fast as it is sent is throttled in the end: no guest is sent more than ten times.
const DIRTY_SHARE_MAX: f64 = 0.9;

/// Reads a file's meaning.
///
/// # Errors
/// A name that there is not or is there twice, an amount of another unit, levels out of order, or numbers that are too large.
pub fn compile(cluster: &Cluster) -> Result<Compiled, ClusterError> {
    let mut compiler = Compiler::new(cluster)?;
    compiler.hosts()?;
    compiler.guests()?;
    compiler.balances()?;
    compiler.availability_sets();
    for rule in &cluster.rules {
        compiler.rule(rule)?;
    }
    compiler.host_states();
    compiler.close();
    compiler.problem.check()?;
    let Compiler { problem, names, traffic, bandwidth, mut clashes, .. } = compiler;
    clashes.extend(clash::find(&problem, &names));
    Ok(Compiled { problem, names, traffic, bandwidth, clashes })
}

/// What is wrong, and at which line; 0 where that of whatever it is in will do.
struct Mistake {
    line: u64,
    what: String,
}

impl Mistake {
    /// The same, and whose it is.
    fn of(self, who: &str) -> Mistake {
        Mistake { what: format!("{who}: {}", self.what), ..self }
    }
}

impl From<String> for Mistake {
    fn from(what: String) -> Mistake {
        Mistake { line: 0, what }
    }
}

/// An error at its own line, or else at that of a name, unless there is none.
fn at<T, E: Into<Mistake>>(name: &Name, result: Result<T, E>) -> Result<T, ClusterError> {
    result.map_err(|mistake| {
        let Mistake { line, what } = mistake.into();
        ClusterError::File { line: if line > 0 { line } else { name.referenced.line().max(1) }, what }
    })
}

/// An error about an amount, at its line.
fn at_amount<T>(amount: &Amount, result: Result<T, String>) -> Result<T, Mistake> {
    result.map_err(|what| Mistake { line: amount.line, what })
}

/// Things by their names, each of which is there once.
fn index<'a>(what: &str, names: impl Iterator<Item = &'a Name>) -> Result<BTreeMap<&'a str, u32>, ClusterError> {
    let mut all = BTreeMap::new();
    for (n, name) in (0..).zip(names) {
        if all.insert(name.value.as_str(), n).is_some() {
            return at(name, Err(format!("there are two {what}s '{}': rename one", name.value)));
        }
    }
    Ok(all)
}

/// Seconds as a cost.
fn seconds(name: &str, number: &Number) -> Result<i64, Mistake> {
    let (seconds, line) = (number.value, number.referenced.line());
    match (0.0..SECONDS_MAX).contains(&seconds) {
        true => Ok((seconds * SECOND).round() as i64),
        false => {
            Err(Mistake { line, what: format!("{name} is {seconds}, which is not within 0 to {SECONDS_MAX} seconds") })
        }
    }
}

/// What the weights say, as costs.
struct Costs {
    load: i64,
    balance: i64,
    rule: i64,
    preference: i64,
    locality: i64,
}

impl Costs {
    fn new(weights: &file::Weights) -> Result<Costs, ClusterError> {
        let of = |name: &str, number: &Number| {
            seconds(&format!("weights.{name}"), number)
                .map_err(|Mistake { line, what }| ClusterError::File { line: line.max(1), what })
        };
        // These are factors of each move; they are told here, as they stand, and not of the first guest.
        of("moves", &weights.moves)?;
        of("each_move", &weights.each_move)?;
        Ok(Costs {
            load: of("load", &weights.load)?,
            balance: of("balance", &weights.balance)?,
            rule: of("rule", &weights.rule)?,
            preference: of("preference", &weights.preference)?,
            locality: of("locality", &weights.locality)?,
        })
    }
}

/// A guest with what its template says.
struct Merged<'a> {
    guest: &'a file::Guest,
    template: Option<&'a file::Template>,
}

impl<'a> Merged<'a> {
    fn amount(
        &self,
        of: fn(&file::Guest) -> &Amounts,
        or: fn(&file::Template) -> &Amounts,
        name: &str,
    ) -> Option<&'a Amount> {
        of(self.guest).get(name).or_else(|| or(self.template?).get(name))
    }

    fn size(&self, name: &str) -> Option<&'a Amount> {
        self.amount(|guest| &guest.size, |template| &template.size, name)
    }

    fn load(&self, name: &str) -> Option<&'a Amount> {
        self.amount(|guest| &guest.load, |template| &template.load, name)
    }

    fn property(&self, key: &str) -> Option<&'a String> {
        self.guest.properties.get(key).or_else(|| self.template?.properties.get(key))
    }

    fn tags(&self) -> impl Iterator<Item = &'a String> + use<'a> {
        self.guest.tags.iter().chain(self.template.into_iter().flat_map(|template| &template.tags))
    }

    fn tenant(&self) -> Option<&'a String> {
        self.guest.tenant.as_ref().or(self.template.and_then(|template| template.tenant.as_ref()))
    }
}

struct Compiler<'a> {
    cluster: &'a Cluster,
    hosts: BTreeMap<&'a str, HostId>,
    guests: BTreeMap<&'a str, GuestId>,
    resources: BTreeMap<&'a str, u32>,
    units: Vec<Unit>,
    tags: Labels<'a>,
    sets: Labels<'a>,
    tenants: Labels<'a>,
    merged: Vec<Merged<'a>>,
    costs: Costs,
    levels: BTreeMap<&'a str, usize>,
    problem: Problem,
    names: Names,
    clashes: Vec<Clash>,
    traffic: Vec<Traffic>,
    bandwidth: f64,
}

impl<'a> Compiler<'a> {
    fn new(cluster: &'a Cluster) -> Result<Compiler<'a>, ClusterError> {
        let templates = index("template", cluster.templates.iter().map(|template| &template.name))?;
        let mut merged = Vec::new();
        for guest in &cluster.guests {
            let template = match &guest.template {
                None => None,
                Some(name) => {
                    let known = templates.get(name.as_str()).ok_or_else(|| {
                        format!("guest '{}': {}", guest.name.value, unknown("template", name, templates.keys()))
                    });
                    Some(&cluster.templates[*at(&guest.name, known)? as usize])
                }
            };
            merged.push(Merged { guest, template });
        }
        let rules = cluster.rules.iter().map(rule_name);
        index("rule", rules)?;
        let problem = Problem {
            resources: Vec::new(),
            levels: Vec::new(),
            hosts: Vec::new(),
            groups: Vec::new(),
            guests: Vec::new(),
            balances: Vec::new(),
            weights: Weights { guest_move: 1, ..Weights::default() },
            host_moves: HostMoves::Uniform(0),
            owners: Vec::new(),
            preferences: Vec::new(),
            initial: Vec::new(),
        };
        let costs = Costs::new(&cluster.weights)?;
        let names = Names {
            hosts: cluster.hosts.iter().map(|host| host.name.value.clone()).collect(),
            guests: cluster.guests.iter().map(|guest| guest.name.value.clone()).collect(),
            rule_weight: costs.rule,
            ..Names::default()
        };
        Ok(Compiler {
            cluster,
            hosts: index("host", cluster.hosts.iter().map(|host| &host.name))?,
            guests: index("guest", cluster.guests.iter().map(|guest| &guest.name))?,
            resources: index("resource", cluster.resources.iter().map(|resource| &resource.name))?,
            units: cluster.resources.iter().map(|resource| Unit::named(&resource.unit)).collect(),
            tags: labels(&merged, Merged::tags),
            sets: labels(&merged, |merged| merged.guest.availability_set.iter()),
            tenants: labels(&merged, |merged| merged.tenant().into_iter()),
            merged,
            costs,
            levels: BTreeMap::new(),
            problem,
            names,
            traffic: Vec::new(),
            bandwidth: 0.0,
            clashes: Vec::new(),
        })
    }

    /// Rows, areas and hosts.
    fn hosts(&mut self) -> Result<(), ClusterError> {
        let cluster = self.cluster;
        self.find_levels();
        let guests_max = cluster.hosts.iter().any(|host| host.guests_max.is_some());
        for host in &cluster.hosts {
            self.known_resources(&host.name, "host", [&host.capacity])?;
            let levels = host.levels.keys().find(|name| !self.resources.contains_key(name.as_str()));
            if let Some(name) = levels {
                let what = unknown("resource", name, self.resources.keys());
                return at(&host.name, Err(format!("host '{}': {what}", host.name.value)));
            }
            let areas = at(&host.name, self.areas(host))?;
            self.problem.hosts.push(Host { areas, capacity: Vec::new(), safe: Vec::new() });
        }
        self.names.states = cluster.hosts.iter().map(|host| host.state).collect();
        self.names.host_groups = cluster.hosts.iter().map(|host| host.group.clone()).collect();
        self.names.storage = (0..).zip(&cluster.hosts).filter(|(_, host)| host.storage).map(|(n, _)| n).collect();
        self.names.place_free = vec![Vec::new(); cluster.hosts.len()];
        for (of, resource) in cluster.resources.iter().enumerate() {
            let name = resource.name.value.as_str();
            if !(1.0..=1000.0).contains(&resource.overcommit) {
                let what = format!("resource '{name}': overcommit is {}, not within 1 to 1000", resource.overcommit);
                return at(&resource.name, Err(what));
            }
            let is_measured = self.merged.iter().any(|guest| guest.load(name).is_some());
            let is_reserved = self.merged.iter().any(|guest| guest.size(name).is_some());
            if is_reserved || !is_measured {
                self.row(of, Measure::Reserved, !is_measured)?;
            }
            if is_measured {
                self.row(of, Measure::Measured, true)?;
            }
        }
        if guests_max {
            self.names.rows.push(Row {
                name: "guests".into(),
                measure: Measure::Count,
                unit: Unit::Other(String::new()),
            });
            self.problem.resources.push(Resource { transient: false, load_weight: 0 });
            for ((host, of), place) in self.problem.hosts.iter_mut().zip(&cluster.hosts).zip(&mut self.names.place_free)
            {
                let most = i64::from(of.guests_max.unwrap_or(cluster.guests.len() as u32));
                host.capacity.push(most);
                host.safe.push(most);
                place.push(0);
            }
        }
        Ok(())
    }

    fn find_levels(&mut self) {
        for host in &self.cluster.hosts {
            for level in host.areas.keys() {
                let next = self.levels.len();
                self.levels.entry(level).or_insert(next);
            }
        }
        let uses_hosts = self.cluster.rules.iter().any(|rule| match rule {
            Rule::Spread(spread) => spread.level == HOST_LEVEL,
            Rule::Needs(needs) => needs.level == HOST_LEVEL,
            _ => false,
        });
        if uses_hosts {
            // Where hosts have an area of that name it is there already, and refused later.
            let next = self.levels.len();
            self.levels.entry(HOST_LEVEL).or_insert(next);
        }
        self.names.levels = vec![Level { name: String::new(), areas: Vec::new() }; self.levels.len()];
        for (name, at) in &self.levels {
            self.names.levels[*at].name = (*name).to_owned();
        }
        self.problem.levels = vec![0; self.levels.len()];
    }

    /// A host's area at each level, new ones numbered.
    fn areas(&mut self, host: &file::Host) -> Result<Vec<u32>, String> {
        let mut areas = Vec::new();
        for (at, level) in self.names.levels.iter_mut().enumerate() {
            let name = match host.areas.get(&level.name) {
                Some(_) if level.name == HOST_LEVEL => {
                    return Err(format!(
                        "host '{}': the level '{HOST_LEVEL}' is each host by itself: rename it",
                        host.name.value
                    ));
                }
                Some(area) => area,
                None if level.name == HOST_LEVEL => &host.name.value,
                None => {
                    return Err(format!(
                        "host '{}': its {} is missing in 'areas', which other hosts have",
                        host.name.value, level.name
                    ));
                }
            };
            // A host is an area of its own, so that there is nothing to look for.
            let known = if level.name == HOST_LEVEL { None } else { level.areas.iter().position(|area| area == name) };
            areas.push(known.unwrap_or(level.areas.len()) as u32);
            if known.is_none() {
                level.areas.push(name.clone());
            }
            self.problem.levels[at] = level.areas.len() as u32;
        }
        Ok(areas)
    }

    /// A row of a resource: of each host what there is, what is free of cost, and what has to stay free.
    fn row(&mut self, of: usize, measure: Measure, costs: bool) -> Result<(), ClusterError> {
        let cluster = self.cluster;
        let (resource, unit) = (&cluster.resources[of], &self.units[of]);
        let name = resource.name.value.as_str();
        let times = if measure == Measure::Reserved { resource.overcommit } else { 1.0 };
        let mut sum = 0.0;
        for (n, host) in cluster.hosts.iter().enumerate() {
            let who = format!("host '{}': {name}", host.name.value);
            let plain = host.capacity.get(name).map_or(Ok(0.0), |amount| at_amount(amount, unit.plain(amount)));
            let total = at(&host.name, plain.map_err(|mistake| mistake.of(&who)))? * times;
            let (levels, whose) = match host.levels.get(name) {
                Some(levels) => (levels, who),
                None => (&resource.levels, format!("resource '{name}', on '{}'", host.name.value)),
            };
            let free = free(levels, unit, total, times).map_err(|mistake| mistake.of(&whose));
            let [reserve, start, place] = at(&host.name, free)?;
            let to = &mut self.problem.hosts[n];
            to.capacity.push(unit.there_is(total - reserve));
            to.safe.push(unit.there_is(total - start).min(unit.there_is(total - reserve)));
            self.names.place_free[n].push(unit.there_is(place - reserve));
            sum += unit.there_is(total) as f64;
        }
        let mean = sum / cluster.hosts.len().max(1) as f64;
        let load_weight = if costs { per_cent(self.costs.load, mean) } else { 0 };
        self.problem.resources.push(Resource { transient: resource.transient, load_weight });
        self.names.rows.push(Row { name: name.to_owned(), measure, unit: unit.clone() });
        Ok(())
    }

    fn known_resources<const N: usize>(&self, name: &Name, what: &str, of: [&Amounts; N]) -> Result<(), ClusterError> {
        match of.iter().flat_map(|amounts| amounts.keys()).find(|key| !self.resources.contains_key(key.as_str())) {
            None => Ok(()),
            Some(key) => {
                at(name, Err(format!("{what} '{}': {}", name.value, unknown("resource", key, self.resources.keys()))))
            }
        }
    }

    fn guests(&mut self) -> Result<(), ClusterError> {
        let cluster = self.cluster;
        for template in &cluster.templates {
            self.known_resources(&template.name, "template", [&template.size, &template.load])?;
        }
        let bandwidth = Unit::Rate.plain(&cluster.bandwidth).and_then(|plain| match plain {
            0.0 => Err("it is 0".to_owned()),
            other => Ok(other),
        });
        self.bandwidth = bandwidth.map_err(|what| ClusterError::File {
            line: cluster.bandwidth.line.max(1),
            what: format!("bandwidth: {what}"),
        })?;
        self.names.fences_of = vec![Vec::new(); cluster.guests.len()];
        self.names.leanings_of = vec![Vec::new(); cluster.guests.len()];
        for (n, guest) in (0..).zip(&cluster.guests) {
            self.known_resources(&guest.name, "guest", [&guest.size, &guest.load])?;
            let who = format!("guest '{}'", guest.name.value);
            at(&guest.name, self.guest(n).map_err(|mistake| mistake.of(&who)))?;
        }
        Ok(())
    }

    fn guest(&mut self, n: GuestId) -> Result<(), Mistake> {
        let guest = &self.cluster.guests[n as usize];
        let recorded = guest.host.as_ref().map_or(Ok(NOWHERE), |host| self.host_named(host))?;
        let is_up = recorded != NOWHERE && self.names.states[recorded as usize] != HostState::Offline;
        let traffic = self.traffic(n)?;
        let made = Guest {
            demand: self.demand(n)?,
            groups: Vec::new(),
            move_cost: self.move_cost(&traffic)?,
            owners: None,
            preference: None,
        };
        self.problem.guests.push(made);
        self.problem.initial.push(if is_up { recorded } else { NOWHERE });
        self.names.recorded.push(recorded);
        let name = &guest.name.value;
        if let Some(owners) = &guest.owners {
            let hosts = self.hosts_named(owners)?.into_iter().collect();
            let rule = self.new_rule(name, RuleKind::GuestOwners);
            self.fence(rule, hosts, &[n]);
        }
        if is_up && forecast(&traffic, self.bandwidth).is_none() {
            let rule = self.new_rule(name, RuleKind::Writes);
            self.fence(rule, [recorded].into_iter().collect(), &[n]);
        }
        self.traffic.push(traffic);
        if !guest.optimize && is_up && self.names.states[recorded as usize] == HostState::Online {
            let rule = self.new_rule(name, RuleKind::Stays);
            self.fence(rule, [recorded].into_iter().collect(), &[n]);
        }
        if !guest.preferred.is_empty() {
            let hosts = self.hosts_named(&guest.preferred)?;
            let rule = self.new_rule(name, RuleKind::GuestPreferred);
            self.lean(ranked(rule, &hosts, self.costs.preference), &[n]);
        }
        if !guest.near.is_empty() {
            let hosts = self.hosts_named(&guest.near)?;
            let rule = self.new_rule(name, RuleKind::Near);
            let costs = sorted(hosts.into_iter().map(|host| (host, 0)).collect());
            self.lean(Leaning { rule, costs, otherwise: self.costs.locality }, &[n]);
        }
        Ok(())
    }

    /// What a guest uses of each row. Who has no measured load is taken to use all that it has reserved.
    fn demand(&self, n: GuestId) -> Result<Vec<i64>, Mistake> {
        let merged = &self.merged[n as usize];
        let used = |row: &Row, amount: Option<&Amount>| {
            let used = amount.map_or(Ok(0), |amount| at_amount(amount, row.unit.used(amount)));
            used.map_err(|mistake| mistake.of(&row.name))
        };
        let of = |row: &Row| match row.measure {
            Measure::Count => Ok(1),
            Measure::Reserved => used(row, merged.size(&row.name)),
            Measure::Measured => used(row, merged.load(&row.name).or(merged.size(&row.name))),
        };
        self.names.rows.iter().map(of).collect()
    }

    /// What there is to send of a guest.
    fn traffic(&self, n: GuestId) -> Result<Traffic, Mistake> {
        let merged = &self.merged[n as usize];
        let template = merged.template;
        let memory =
            merged.guest.memory.as_ref().or_else(|| template?.memory.as_ref()).or_else(|| merged.size("memory"));
        let plain = |name: &str, unit: Unit, amount: Option<&Amount>| {
            let plain = amount.map_or(Ok(0.0), |amount| at_amount(amount, unit.plain(amount)));
            plain.map_err(|mistake| mistake.of(name))
        };
        let memory = plain("memory", Unit::Bytes, memory)?;
        let dirty = merged.guest.dirty.as_ref().or_else(|| template?.dirty.as_ref());
        let dirty_rate = plain("dirty", Unit::Rate, dirty)?;
        Ok(Traffic { memory_bytes: memory, dirty_rate, downtime_seconds: DOWNTIME_S, ..Traffic::default() })
    }

    /// Its memory once, and what is written meanwhile again and again (a geometric series), in time.
    fn move_cost(&self, traffic: &Traffic) -> Result<i64, Mistake> {
        let (memory, bandwidth) = (traffic.memory_bytes, self.bandwidth);
        let share = (traffic.dirty_rate / bandwidth).min(DIRTY_SHARE_MAX);
        let weights = &self.cluster.weights;
        let cost = weights.each_move.value + weights.moves.value * memory / bandwidth / (1.0 - share);
        if cost >= SECONDS_MAX {
            let what = format!("its move costs {cost:.0} seconds: correct 'bandwidth', its memory, or 'weights.moves'");
            return Err(what.into());
        }
        Ok((cost * SECOND).round() as i64)
    }

    fn host_named(&self, name: &str) -> Result<HostId, String> {
        self.hosts.get(name).copied().ok_or_else(|| unknown("host", name, self.hosts.keys()))
    }

    fn hosts_named(&self, names: &[String]) -> Result<Vec<HostId>, String> {
        names.iter().map(|name| self.host_named(name)).collect()
    }

    fn balances(&mut self) -> Result<(), ClusterError> {
        for balance in &self.cluster.balances {
            let who = format!("balance for '{}'", balance.per.value);
            let made = self.balance(balance).map_err(|mistake| mistake.of(&who));
            self.problem.balances.push(at(&balance.per, made)?);
        }
        Ok(())
    }

    fn balance(&self, balance: &file::Balance) -> Result<Balance, Mistake> {
        // What is measured, where something is: it is what hosts have left in truth.
        let row = |name: &str| {
            let found = self.names.rows.iter().rposition(|row| row.name == name && row.measure != Measure::Count);
            found.ok_or_else(|| unknown("resource", name, self.resources.keys()))
        };
        let (first, second) = (row(&balance.per.value)?, row(&balance.of)?);
        let unit = |row: usize| &self.names.rows[row].unit;
        let used = |row: usize, amount: &Amount| at_amount(amount, unit(row).used(amount));
        let target = used(second, &balance.free)? as f64 / used(first, &balance.each)?.max(1) as f64;
        if target < 0.5 {
            let what = format!(
                "{} of {} for {} of {} is too little to be counted: write the balance the other way round",
                balance.free, balance.of, balance.each, balance.per.value
            );
            return Err(what.into());
        }
        let hosts = self.problem.hosts.len().max(1) as f64;
        let mean = self.problem.hosts.iter().map(|host| host.capacity[second] as f64).sum::<f64>() / hosts;
        let weight = per_cent(self.costs.balance, mean);
        Ok(Balance { first, second, target: target.round() as i64, weight })
    }

    /// Who is of the same set is apart, if no rule says so with a force of its own.
    fn availability_sets(&mut self) {
        let told = self.cluster.rules.iter().filter_map(|rule| match rule {
            Rule::Apart(file::Together { of: Guests::Set(set), .. }) => Some(set.as_str()),
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

    fn rule(&mut self, rule: &Rule) -> Result<(), ClusterError> {
        let name = rule_name(rule);
        let who = format!("rule '{}'", name.value);
        at(name, self.add_rule(rule, &name.value).map_err(|mistake| mistake.of(&who)))
    }

    fn add_rule(&mut self, rule: &Rule, name: &str) -> Result<(), Mistake> {
        match rule {
            Rule::Apart(apart) => {
                let group = Group { apart: Some(self.strength(apart.force, &apart.weight)?), ..Group::default() };
                self.group_rule(name, RuleKind::Apart, &apart.of, group)
            }
            Rule::Together(together) => {
                let strength = self.strength(together.force, &together.weight)?;
                let group = Group { together: Some(strength), ..Group::default() };
                self.group_rule(name, RuleKind::Together, &together.of, group)
            }
            Rule::Spread(spread) => {
                let strength = self.strength(spread.force, &spread.weight)?;
                let level = self.level(&spread.level)?;
                let spread_over = Spread { level, areas_min: spread.areas_min, strength };
                let group = Group { spread: Some(spread_over), ..Group::default() };
                self.group_rule(name, RuleKind::Spread, &spread.of, group)
            }
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
                let level = self.level(&needs.level)?;
                let near = self.who(name, &needs.near)?;
                let rule = self.new_rule(name, RuleKind::Needs);
                let of = self.group(rule, Group::default(), near);
                let guests = self.who(name, &needs.of)?;
                self.group(rule, Group { needs: vec![Need { level, of }], ..Group::default() }, guests);
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
                    // A group has no order.
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

    fn group_rule(&mut self, name: &str, kind: RuleKind, of: &Guests, group: Group) -> Result<(), Mistake> {
        let guests = self.who(name, of)?;
        let rule = self.new_rule(name, kind);
        self.group(rule, group, guests);
        Ok(())
    }

    /// A rule on a property: each value that guests have gives a set of hosts.
    fn matching(&mut self, name: &str, of: &file::Match) -> Result<(), Mistake> {
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
            .map(|host| host.name.value.as_str())
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
        let weight = match &of.weight {
            Some(weight) => seconds("its weight", weight)?,
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

    /// Nobody is to be where hosts are not online.
    fn host_states(&mut self) {
        let online = |state: &HostState| *state == HostState::Online;
        if self.names.states.iter().all(online) {
            return;
        }
        let hosts = (0..).zip(&self.names.states).filter(|(_, state)| online(state)).map(|(host, _)| host).collect();
        let rule = self.new_rule("", RuleKind::HostState);
        let all: Vec<GuestId> = (0..self.problem.guests.len() as GuestId).collect();
        self.fence(rule, hosts, &all);
    }

    /// What all fences of a guest have in common, and the sum of all its leanings: each combination once.
    fn close(&mut self) {
        let hosts = self.problem.hosts.len() as HostId;
        let mut owners: BTreeMap<&[u32], u32> = BTreeMap::new();
        let mut preferences: BTreeMap<&[u32], u32> = BTreeMap::new();
        for ((guest, fences), leanings) in
            self.problem.guests.iter_mut().zip(&self.names.fences_of).zip(&self.names.leanings_of)
        {
            guest.groups.sort_unstable();
            if !fences.is_empty() {
                guest.owners = Some(*owners.entry(fences).or_insert_with(|| {
                    let inside =
                        |host: &HostId| fences.iter().all(|of| self.names.fences[*of as usize].hosts.contains(*host));
                    self.problem.owners.push((0..hosts).filter(inside).collect());
                    self.problem.owners.len() as u32 - 1
                }));
            }
            if !leanings.is_empty() {
                guest.preference = Some(*preferences.entry(leanings).or_insert_with(|| {
                    let cost =
                        |host: HostId| leanings.iter().map(|of| self.names.leanings[*of as usize].cost(host)).sum();
                    self.problem.preferences.push((0..hosts).map(cost).collect());
                    self.problem.preferences.len() as u32 - 1
                }));
            }
        }
    }

    fn new_rule(&mut self, name: &str, kind: RuleKind) -> RuleId {
        self.names.rules.push(RuleName { name: name.to_owned(), kind, property: String::new() });
        self.names.rules.len() as RuleId - 1
    }

    fn group(&mut self, rule: RuleId, group: Group, guests: Vec<GuestId>) -> GroupId {
        let id = self.problem.groups.len() as GroupId;
        self.problem.groups.push(group);
        self.names.groups.push(rule);
        guests.iter().for_each(|guest| self.problem.guests[*guest as usize].groups.push(id));
        self.names.members.push(guests);
        id
    }

    fn fence(&mut self, rule: RuleId, hosts: Bits, guests: &[GuestId]) {
        let id = self.names.fences.len() as u32;
        self.names.fences.push(Fence { rule, hosts });
        guests.iter().for_each(|guest| self.names.fences_of[*guest as usize].push(id));
    }

    fn lean(&mut self, leaning: Leaning, guests: &[GuestId]) {
        let id = self.names.leanings.len() as u32;
        self.names.leanings.push(leaning);
        guests.iter().for_each(|guest| self.names.leanings_of[*guest as usize].push(id));
    }

    fn strength(&self, force: Force, weight: &Option<Number>) -> Result<Strength, Mistake> {
        match (force, weight) {
            (Force::Hard, None) => Ok(Strength::Hard),
            (Force::Hard, Some(_)) => {
                Err("it is hard, so that it has no weight: leave one of both out".to_owned().into())
            }
            (Force::Soft, None) => Ok(Strength::Soft(self.names.rule_weight)),
            (Force::Soft, Some(weight)) => seconds("its weight", weight).map(Strength::Soft),
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

    /// Who a rule is about, each once. That it is nobody is told: it may be a slip, but guests come and go.
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

/// Guests by what they are labelled with, each once.
type Labels<'a> = BTreeMap<&'a str, Vec<GuestId>>;

fn labels<'a, I: Iterator<Item = &'a String>>(merged: &[Merged<'a>], of: impl Fn(&Merged<'a>) -> I) -> Labels<'a> {
    let mut all = Labels::new();
    for (n, guest) in (0..).zip(merged) {
        for label in of(guest) {
            let guests = all.entry(label).or_default();
            if guests.last() != Some(&n) {
                guests.push(n);
            }
        }
    }
    all
}

fn rule_name(rule: &Rule) -> &Name {
    match rule {
        Rule::Apart(of) | Rule::Together(of) => &of.name,
        Rule::Spread(of) => &of.name,
        Rule::Owners(of) | Rule::Preferred(of) => &of.name,
        Rule::Among(of) => &of.name,
        Rule::Needs(of) => &of.name,
        Rule::Match(of) => &of.name,
    }
}

/// The weight of a grain, if each per cent of so many grains costs so much: at least 1, so that it counts.
fn per_cent(cost: i64, grains: f64) -> i64 {
    if cost == 0 { 0 } else { ((cost as f64 * 100.0 / grains.max(1.0)).round() as i64).max(1) }
}

fn sorted(mut costs: Vec<(HostId, i64)>) -> Vec<(HostId, i64)> {
    costs.sort_unstable();
    // A host that is named twice has its better rank.
    costs.dedup_by_key(|(host, _)| *host);
    costs
}

/// The first costs nothing, each further one `weight` more; a host that is not named comes after the last.
fn ranked(rule: RuleId, hosts: &[HostId], weight: i64) -> Leaning {
    let costs = sorted((0..).zip(hosts).map(|(rank, host)| (*host, weight.saturating_mul(rank))).collect());
    Leaning { rule, costs, otherwise: weight.saturating_mul(hosts.len() as i64) }
}

/// What is to be free of a capacity: reserve, start and place, in plain units. Amounts are of what there is, not of what it is overcommitted to.
fn free(levels: &file::Levels, unit: &Unit, total: f64, times: f64) -> Result<[f64; 3], Mistake> {
    let of = |amount: &Amount| match amount.unit.as_str() {
        "%" if amount.number <= 100.0 => Ok(total * amount.number / 100.0),
        "%" => at_amount(amount, Err(format!("{amount} is more than there is"))),
        _ => at_amount(amount, unit.plain(amount)).map(|plain| plain * times),
    };
    let level = |amount: &Option<Amount>, default: f64| amount.as_ref().map_or(Ok(default), of);
    let reserve = level(&levels.reserve, 0.0)?;
    let start = level(&levels.start, (total * 0.1).max(reserve))?;
    let place = level(&levels.place, (total * 0.2).max(start))?;
    if !(reserve <= start && start <= place) {
        let written = [&levels.place, &levels.start, &levels.reserve].into_iter().flatten().next();
        let line = written.map_or(0, |amount| amount.line);
        return Err(Mistake { line, what: "levels have to be in order: reserve <= start <= place".into() });
    }
    Ok([reserve, start, place])
}
