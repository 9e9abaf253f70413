//! Compiles guests: what they use, where they may be by themselves, and what it costs to move them.

use super::super::amount::Unit;
use super::super::mistake::{Mistake, Object, ObjectKind};
use super::super::model::HostState;
use super::super::names::{Leaning, Measure, Row, RuleKind};
use super::fault::{Fault, at};
use super::{Compiler, SECOND, SECONDS_MAX, Written, ranked, sorted};
use skein_placement::problem::{Guest, GuestId, NOWHERE};
use skein_placement::schedule::{Traffic, forecast};

/// How long guests may stand still: the default aim of `skein migrate`.
const DOWNTIME_S: f64 = 0.3;

/// A guest that writes its memory nearly as fast as it is sent is throttled in the end, so no guest is sent more than
/// ten times.
const DIRTY_SHARE_MAX: f64 = 0.9;

impl<'a> Compiler<'a> {
    pub(super) fn guests(&mut self) -> Result<(), Mistake> {
        let cluster = self.cluster;
        for (n, template) in cluster.templates.iter().enumerate() {
            let amounts = [&template.size, &template.load];
            self.known_resources(ObjectKind::Template, (n, &template.name), amounts)?;
        }
        let bandwidth = Unit::Rate.plain(&cluster.bandwidth).map_err(Fault::from).and_then(|plain| match plain {
            0.0 => Err("it is 0".to_owned().into()),
            other => Ok(other),
        });
        self.bandwidth = at(|| Object::only(ObjectKind::Bandwidth), bandwidth.map_err(|fault| fault.of("bandwidth")))?;
        self.names.fences_of = vec![Vec::new(); cluster.guests.len()];
        self.names.leanings_of = vec![Vec::new(); cluster.guests.len()];
        for (n, guest) in cluster.guests.iter().enumerate() {
            self.known_resources(ObjectKind::Guest, (n, &guest.name), [&guest.size, &guest.load])?;
            let object = || Object::new(ObjectKind::Guest, n, &guest.name);
            at(object, self.guest(n as GuestId).map_err(|fault| fault.of(&object().to_string())))?;
        }
        Ok(())
    }

    fn guest(&mut self, n: GuestId) -> Result<(), Fault> {
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
        let name = &guest.name;
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

    /// Returns what a guest uses of each row. A guest without a measured load is taken to use all that it has reserved.
    fn demand(&self, n: GuestId) -> Result<Vec<i64>, Fault> {
        let merged = &self.merged[n as usize];
        let used = |row: &Row, field: &str, written: Option<Written<'_>>| {
            let used = written.map_or(Ok(0), |of| of.checked(&[field, &row.name], row.unit.used(of.amount)));
            used.map_err(|fault| fault.of(&row.name))
        };
        let of = |row: &Row| match row.measure {
            Measure::Count => Ok(1),
            Measure::Reserved => used(row, "size", merged.size(&row.name)),
            Measure::Measured => match merged.load(&row.name) {
                Some(load) => used(row, "load", Some(load)),
                None => used(row, "size", merged.size(&row.name)),
            },
        };
        self.names.rows.iter().map(of).collect()
    }

    /// Returns the traffic of a guest's migration.
    fn traffic(&self, n: GuestId) -> Result<Traffic, Fault> {
        let merged = &self.merged[n as usize];
        let plain = |fields: &[&str], unit: Unit, written: Option<Written<'_>>| {
            let plain = written.map_or(Ok(0.0), |of| of.checked(fields, unit.plain(of.amount)));
            plain.map_err(|fault| fault.of(fields[fields.len() - 1]))
        };
        let memory = match merged.memory() {
            Some(memory) => plain(&["memory"], Unit::Bytes, Some(memory)),
            None => plain(&["size", "memory"], Unit::Bytes, merged.size("memory")),
        }?;
        let dirty_rate = plain(&["dirty"], Unit::Rate, merged.dirty())?;
        Ok(Traffic { memory_bytes: memory, dirty_rate, downtime_seconds: DOWNTIME_S, ..Traffic::default() })
    }

    /// Returns the time of a move: the memory is sent once, and then again and again what is written meanwhile (a
    /// geometric series).
    fn move_cost(&self, traffic: &Traffic) -> Result<i64, Fault> {
        let (memory, bandwidth) = (traffic.memory_bytes, self.bandwidth);
        let share = (traffic.dirty_rate / bandwidth).min(DIRTY_SHARE_MAX);
        let weights = &self.cluster.weights;
        let cost = weights.each_move + weights.moves * memory / bandwidth / (1.0 - share);
        if cost >= SECONDS_MAX {
            let what = format!("its move costs {cost:.0} seconds: correct 'bandwidth', its memory, or 'weights.moves'");
            return Err(what.into());
        }
        Ok((cost * SECOND).round() as i64)
    }
}
