//! Compiles hosts: what there is of each resource, and the areas where they are.

use super::super::amount::{Amount, Unit};
use super::super::mistake::{Mistake, Object, ObjectKind, unknown};
use super::super::model;
use super::super::names::{Level, Measure, Row};
use super::super::rule::{HOST_LEVEL, Rule};
use super::fault::{Fault, at, below};
use super::{Compiler, per_cent};
use skein_placement::problem::{Host, Resource};

/// Whether the load of a row costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Priced {
    Yes,
    No,
}

impl<'a> Compiler<'a> {
    /// Compiles rows, areas and hosts.
    pub(super) fn hosts(&mut self) -> Result<(), Mistake> {
        let cluster = self.cluster;
        self.find_levels();
        let guests_max = cluster.hosts.iter().any(|host| host.guests_max.is_some());
        for (n, host) in cluster.hosts.iter().enumerate() {
            self.known_resources(ObjectKind::Host, (n, &host.name), [&host.capacity])?;
            let object = || Object::new(ObjectKind::Host, n, &host.name);
            let levels = host.levels.keys().find(|name| !self.resources.contains_key(name.as_str()));
            if let Some(name) = levels {
                let what = unknown("resource", name, self.resources.keys());
                return at(object, Err(format!("host '{}': {what}", host.name)));
            }
            let areas = at(object, self.areas(host))?;
            self.problem.hosts.push(Host { areas, capacity: Vec::new(), safe: Vec::new() });
        }
        self.names.states = cluster.hosts.iter().map(|host| host.state).collect();
        self.names.host_groups = cluster.hosts.iter().map(|host| host.group.clone()).collect();
        self.names.storage = (0..).zip(&cluster.hosts).filter(|(_, host)| host.storage).map(|(n, _)| n).collect();
        self.names.place_free = vec![Vec::new(); cluster.hosts.len()];
        for (of, resource) in cluster.resources.iter().enumerate() {
            let name = resource.name.as_str();
            if !(1.0..=1000.0).contains(&resource.overcommit) {
                let what = format!("resource '{name}': overcommit is {}, not within 1 to 1000", resource.overcommit);
                return at(|| Object::new(ObjectKind::Resource, of, name), Err(what));
            }
            let is_measured = self.merged.iter().any(|guest| guest.load(name).is_some());
            let is_reserved = self.merged.iter().any(|guest| guest.size(name).is_some());
            if is_reserved || !is_measured {
                let priced = if is_measured { Priced::No } else { Priced::Yes };
                self.row(of, Measure::Reserved, priced)?;
            }
            if is_measured {
                self.row(of, Measure::Measured, Priced::Yes)?;
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
            Rule::Apart(apart) => apart.from.is_some() && apart.level.as_deref().is_none_or(|of| of == HOST_LEVEL),
            _ => false,
        });
        if uses_hosts {
            // If hosts have an area of that name, the level is there already and is refused later.
            let next = self.levels.len();
            self.levels.entry(HOST_LEVEL).or_insert(next);
        }
        self.names.levels = vec![Level { name: String::new(), areas: Vec::new() }; self.levels.len()];
        for (name, at) in &self.levels {
            self.names.levels[*at].name = (*name).to_owned();
        }
        self.problem.levels = vec![0; self.levels.len()];
    }

    /// Returns a host's area at each level. New areas get the next number.
    fn areas(&mut self, host: &model::Host) -> Result<Vec<u32>, Fault> {
        let mut areas = Vec::new();
        for (at, level) in self.names.levels.iter_mut().enumerate() {
            let name = match host.areas.get(&level.name) {
                Some(_) if level.name == HOST_LEVEL => {
                    let what =
                        format!("host '{}': the level '{HOST_LEVEL}' is each host by itself: rename it", host.name);
                    return Err(Fault::from(what).below(&["areas", HOST_LEVEL]));
                }
                Some(area) => area,
                None if level.name == HOST_LEVEL => &host.name,
                None => {
                    let (name, level) = (&host.name, &level.name);
                    let what = format!("host '{name}': its {level} is missing in 'areas', which other hosts have");
                    return Err(what.into());
                }
            };
            // A host is an area of its own, so no known area has to be looked for.
            let known = if level.name == HOST_LEVEL { None } else { level.areas.iter().position(|area| area == name) };
            areas.push(known.unwrap_or(level.areas.len()) as u32);
            if known.is_none() {
                level.areas.push(name.clone());
            }
            self.problem.levels[at] = level.areas.len() as u32;
        }
        Ok(areas)
    }

    /// Adds a row of a resource: for each host what it has, how much can be used without cost, and how much has to stay
    /// free.
    fn row(&mut self, of: usize, measure: Measure, priced: Priced) -> Result<(), Mistake> {
        let cluster = self.cluster;
        let (resource, unit) = (&cluster.resources[of], &self.units[of]);
        let name = resource.name.as_str();
        let times = if measure == Measure::Reserved { resource.overcommit } else { 1.0 };
        let mut sum = 0.0;
        for (n, host) in cluster.hosts.iter().enumerate() {
            let object = || Object::new(ObjectKind::Host, n, &host.name);
            let who = format!("host '{}': {name}", host.name);
            let plain = host.capacity.get(name).map_or(Ok(0.0), |amount| unit.plain(amount));
            let plain = below(&["capacity", name], plain).map_err(|fault| fault.of(&who));
            let total = at(object, plain)? * times;
            let free = match host.levels.get(name) {
                Some(levels) => {
                    below(&["levels", name], free(levels, unit, total, times)).map_err(|fault| fault.of(&who))
                }
                None => below(&["levels"], free(&resource.levels, unit, total, times)).map_err(|fault| {
                    let whose = format!("resource '{name}', on '{}'", host.name);
                    fault.of_object(Object::new(ObjectKind::Resource, of, name)).of(&whose)
                }),
            };
            let [reserve, start, place] = at(object, free)?;
            let to = &mut self.problem.hosts[n];
            to.capacity.push(unit.there_is(total - reserve));
            to.safe.push(unit.there_is(total - start).min(unit.there_is(total - reserve)));
            self.names.place_free[n].push(unit.there_is(place - reserve));
            sum += unit.there_is(total) as f64;
        }
        let mean = sum / cluster.hosts.len().max(1) as f64;
        let load_weight = if priced == Priced::Yes { per_cent(self.costs.load, mean) } else { 0 };
        self.problem.resources.push(Resource { transient: resource.transient, load_weight });
        self.names.rows.push(Row { name: name.to_owned(), measure, unit: unit.clone() });
        Ok(())
    }
}

/// Returns how much of a capacity is to be free: reserve, start and place, in plain units. Amounts are of what there
/// is, not of what it is overcommitted to.
fn free(levels: &model::Levels, unit: &Unit, total: f64, times: f64) -> Result<[f64; 3], Fault> {
    let of = |amount: &Amount| match amount.unit.as_str() {
        "%" if amount.number <= 100.0 => Ok(total * amount.number / 100.0),
        "%" => Err(format!("{amount} is more than there is").into()),
        _ => unit.plain(amount).map(|plain| plain * times).map_err(Fault::from),
    };
    let level =
        |field: &str, amount: &Option<Amount>, default: f64| below(&[field], amount.as_ref().map_or(Ok(default), of));
    let reserve = level("reserve", &levels.reserve, 0.0)?;
    let start = level("start", &levels.start, (total * 0.1).max(reserve))?;
    let place = level("place", &levels.place, (total * 0.2).max(start))?;
    if !(reserve <= start && start <= place) {
        let all = [("place", &levels.place), ("start", &levels.start), ("reserve", &levels.reserve)];
        let written = all.into_iter().find(|(_, amount)| amount.is_some()).map(|(field, _)| field);
        let what = "levels have to be in order: reserve <= start <= place".to_owned();
        return Err(Fault::from(what).below(written.as_slice()));
    }
    Ok([reserve, start, place])
}
