//! Compiles a cluster into a problem. `hosts`, `guests` and `rules` each add their part; what they have in common is
//! here.

mod fault;
mod guests;
mod hosts;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::amount::{Amount, Unit};
use super::clash::{self, Clash};
use super::mistake::{CompileError, Mistake, Object, ObjectKind, unknown};
use super::model::{self, Amounts, Cluster, HostState};
use super::names::{Fence, Leaning, Measure, Names, RuleId, RuleKind, RuleName};
use super::printable;
use super::rule;
use fault::{Fault, at, below, index};
use skein_placement::bits::Bits;
use skein_placement::problem::{Balance, Group, GroupId, GuestId, HostId, HostMoves, Problem, Weights};
use skein_placement::schedule::Traffic;
use skein_placement::survive::Survive;

/// A compiled cluster.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The cluster in numbers. Costs are microseconds of migration traffic.
    pub problem: Problem,
    /// The names of the problem's numbers.
    pub names: Names,
    /// The traffic of each guest's migration.
    pub traffic: Vec<Traffic>,
    /// The bandwidth of one migration, in bytes per second.
    pub bandwidth: f64,
    /// How many hosts may fail, if the file says so.
    pub survive: Option<Survive>,
    /// The rules that can never hold together, and rules about no guest. They are in the problem all the same.
    pub clashes: Vec<Clash>,
}

/// The cost of a second of traffic.
const SECOND: f64 = 1e6;

/// The largest number of seconds: thirty years.
const SECONDS_MAX: f64 = 1e9;

/// Compiles a cluster.
///
/// # Errors
///
/// [`CompileError`] if a name is unknown, occurs twice or has control characters, an amount is of another unit, levels
/// are out of order, or numbers are too large.
pub fn compile(cluster: &Cluster) -> Result<Compiled, CompileError> {
    printable::check(cluster)?;
    let mut compiler = Compiler::new(cluster)?;
    compiler.hosts()?;
    compiler.guests()?;
    compiler.balances()?;
    compiler.availability_sets();
    for (n, rule) in cluster.rules.iter().enumerate() {
        compiler.rule(n, rule)?;
    }
    compiler.host_states();
    compiler.close();
    compiler.even_areas();
    compiler.problem.check()?;
    let survive = cluster.survive.as_ref().map(|survive| compiler.survive(survive)).transpose()?;
    let Compiler { problem, names, traffic, bandwidth, mut clashes, .. } = compiler;
    clashes.extend(clash::find(&problem, &names));
    Ok(Compiled { problem, names, traffic, bandwidth, survive, clashes })
}

/// Returns seconds as a cost.
fn seconds(name: &str, seconds: f64) -> Result<i64, String> {
    match (0.0..SECONDS_MAX).contains(&seconds) {
        true => Ok((seconds * SECOND).round() as i64),
        false => Err(format!("{name} is {seconds}, which is not within 0 to {SECONDS_MAX} seconds")),
    }
}

/// The weights, as costs.
struct Costs {
    load: i64,
    balance: i64,
    rule: i64,
    preference: i64,
    locality: i64,
}

impl Costs {
    fn new(weights: &model::Weights) -> Result<Costs, Mistake> {
        let of = |name: &str, number: f64| {
            let cost = below(&[name], seconds(&format!("weights.{name}"), number));
            at(|| Object::only(ObjectKind::Weights), cost)
        };
        // These two are factors of each move. Mistakes in them are reported here, with the weights, and not with the
        // first guest.
        of("moves", weights.moves)?;
        of("each_move", weights.each_move)?;
        Ok(Costs {
            load: of("load", weights.load)?,
            balance: of("balance", weights.balance)?,
            rule: of("rule", weights.rule)?,
            preference: of("preference", weights.preference)?,
            locality: of("locality", weights.locality)?,
        })
    }
}

/// A guest with the values of its template.
struct Merged<'a> {
    guest: &'a model::Guest,
    /// The template, with its index in the cluster.
    template: Option<(usize, &'a model::Template)>,
}

/// An amount of a guest, and where it is written.
#[derive(Clone, Copy)]
struct Written<'a> {
    amount: &'a Amount,
    /// The template that has the amount. `None`: the amount is the guest's own.
    template: Option<(usize, &'a model::Template)>,
}

impl Written<'_> {
    /// Turns an error into a fault of the amount, in these fields of the guest or of its template.
    fn checked<T, E: Into<Fault>>(&self, fields: &[&str], result: Result<T, E>) -> Result<T, Fault> {
        below(fields, result).map_err(|fault| match self.template {
            Some((n, template)) => fault.of_object(Object::new(ObjectKind::Template, n, &template.name)),
            None => fault,
        })
    }
}

impl<'a> Merged<'a> {
    fn written(
        &self,
        own: Option<&'a Amount>,
        of_template: impl FnOnce(&'a model::Template) -> Option<&'a Amount>,
    ) -> Option<Written<'a>> {
        let own = own.map(|amount| Written { amount, template: None });
        own.or_else(|| {
            let amount = of_template(self.template?.1)?;
            Some(Written { amount, template: self.template })
        })
    }

    fn size(&self, name: &str) -> Option<Written<'a>> {
        self.written(self.guest.size.get(name), |template| template.size.get(name))
    }

    fn load(&self, name: &str) -> Option<Written<'a>> {
        self.written(self.guest.load.get(name), |template| template.load.get(name))
    }

    fn memory(&self) -> Option<Written<'a>> {
        self.written(self.guest.memory.as_ref(), |template| template.memory.as_ref())
    }

    fn dirty(&self) -> Option<Written<'a>> {
        self.written(self.guest.dirty.as_ref(), |template| template.dirty.as_ref())
    }

    fn template(&self) -> Option<&'a model::Template> {
        self.template.map(|(_, template)| template)
    }

    fn property(&self, key: &str) -> Option<&'a String> {
        self.guest.properties.get(key).or_else(|| self.template()?.properties.get(key))
    }

    fn tags(&self) -> impl Iterator<Item = &'a String> + use<'a> {
        self.guest.tags.iter().chain(self.template().into_iter().flat_map(|template| &template.tags))
    }

    fn tenant(&self) -> Option<&'a String> {
        self.guest.tenant.as_ref().or(self.template().and_then(|template| template.tenant.as_ref()))
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
    fn new(cluster: &'a Cluster) -> Result<Compiler<'a>, Mistake> {
        let of = |kind: ObjectKind| move |n: usize, name: &str| Object::new(kind, n, name);
        let templates = index(cluster.templates.iter().map(|template| &template.name), of(ObjectKind::Template))?;
        let mut merged = Vec::new();
        for (n, guest) in cluster.guests.iter().enumerate() {
            let template = match &guest.template {
                None => None,
                Some(name) => {
                    let known = templates.get(name.as_str()).copied().ok_or_else(|| {
                        format!("guest '{}': {}", guest.name, unknown("template", name, templates.keys()))
                    });
                    let known = at(|| Object::new(ObjectKind::Guest, n, &guest.name), known)? as usize;
                    Some((known, &cluster.templates[known]))
                }
            };
            merged.push(Merged { guest, template });
        }
        let rule = |n: usize, name: &str| Object::new(ObjectKind::Rule(cluster.rules[n].kind()), n, name);
        index(cluster.rules.iter().map(rule::Rule::name), rule)?;
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
            hosts: cluster.hosts.iter().map(|host| host.name.clone()).collect(),
            guests: cluster.guests.iter().map(|guest| guest.name.clone()).collect(),
            aliases: cluster.guests.iter().map(|guest| guest.alias.clone()).collect(),
            rule_weight: costs.rule,
            ..Names::default()
        };
        Ok(Compiler {
            cluster,
            hosts: index(cluster.hosts.iter().map(|host| &host.name), of(ObjectKind::Host))?,
            guests: index(cluster.guests.iter().map(|guest| &guest.name), of(ObjectKind::Guest))?,
            resources: index(cluster.resources.iter().map(|resource| &resource.name), of(ObjectKind::Resource))?,
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

    /// Checks that an object names only resources that exist.
    fn known_resources<const N: usize>(
        &self,
        kind: ObjectKind,
        (index, name): (usize, &str),
        of: [&Amounts; N],
    ) -> Result<(), Mistake> {
        match of.iter().flat_map(|amounts| amounts.keys()).find(|key| !self.resources.contains_key(key.as_str())) {
            None => Ok(()),
            Some(key) => {
                let object = Object::new(kind, index, name);
                let what = format!("{object}: {}", unknown("resource", key, self.resources.keys()));
                Err(Fault::from(what).at(|| object))
            }
        }
    }

    fn host_named(&self, name: &str) -> Result<HostId, String> {
        self.hosts.get(name).copied().ok_or_else(|| unknown("host", name, self.hosts.keys()))
    }

    fn hosts_named(&self, names: &[String]) -> Result<Vec<HostId>, String> {
        names.iter().map(|name| self.host_named(name)).collect()
    }

    fn balances(&mut self) -> Result<(), Mistake> {
        for (n, balance) in self.cluster.balances.iter().enumerate() {
            let object = || Object::new(ObjectKind::Balance, n, &balance.per);
            let made = self.balance(balance).map_err(|fault| fault.of(&object().to_string()));
            self.problem.balances.push(at(object, made)?);
        }
        Ok(())
    }

    fn balance(&self, balance: &rule::Balance) -> Result<Balance, Fault> {
        // Takes the row of what is measured, if there is one: it says what hosts truly have left.
        let row = |name: &str| {
            let found = self.names.rows.iter().rposition(|row| row.name == name && row.measure != Measure::Count);
            found.ok_or_else(|| unknown("resource", name, self.resources.keys()))
        };
        let (first, second) = (row(&balance.per)?, row(&balance.of)?);
        let used = |row: usize, field: &str, amount: &Amount| below(&[field], self.names.rows[row].unit.used(amount));
        let free = used(second, "free", &balance.free)?;
        let target = free as f64 / used(first, "each", &balance.each)?.max(1) as f64;
        if target < 0.5 {
            let what = format!(
                "{} of {} for {} of {} is too little to be counted: write the balance the other way round",
                balance.free, balance.of, balance.each, balance.per
            );
            return Err(what.into());
        }
        let hosts = self.problem.hosts.len().max(1) as f64;
        let mean = self.problem.hosts.iter().map(|host| host.capacity[second] as f64).sum::<f64>() / hosts;
        let weight = per_cent(self.costs.balance, mean);
        Ok(Balance { first, second, ratio: target.round() as i64, weight })
    }

    /// Keeps all guests off hosts that are not online.
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

    /// Gives each guest the hosts that all of its fences have in common, and the sum of its leanings. Each combination
    /// is stored once.
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
}

/// The guests with each label, each guest once.
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

/// Returns the weight of a grain if each per cent of `grains` costs `cost`. It is at least 1, so that it counts.
fn per_cent(cost: i64, grains: f64) -> i64 {
    if cost == 0 { 0 } else { ((cost as f64 * 100.0 / grains.max(1.0)).round() as i64).max(1) }
}

fn sorted(mut costs: Vec<(HostId, i64)>) -> Vec<(HostId, i64)> {
    costs.sort_unstable();
    // A host that is named twice has its better rank.
    costs.dedup_by_key(|(host, _)| *host);
    costs
}

/// Makes a leaning: the first host costs nothing, each further host `weight` more, and hosts that are not named come
/// after the last.
fn ranked(rule: RuleId, hosts: &[HostId], weight: i64) -> Leaning {
    let costs = sorted((0..).zip(hosts).map(|(rank, host)| (*host, weight.saturating_mul(rank))).collect());
    Leaning { rule, costs, otherwise: weight.saturating_mul(hosts.len() as i64) }
}
