//! Turns the constraints on where VMs run into rules.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;

use super::constraint::Rule;
use super::error::FileError;
use super::file::{Constraint, parse_part};
use super::instance::Instance;
use super::sets::Sets;
use super::states::States;
use skein_placement::bits::Bits;
use skein_placement::problem::{Group, GuestId, HostId, NOWHERE, Resource, Strength};

/// The name of the resource of which each guest uses 1, if there is a `runningCapacity`.
const RUNNING: &str = "running VMs";

/// Adds rules to an instance.
pub(super) struct Rules<'a, 'i> {
    instance: &'i mut Instance,
    states: &'i States,
    sets: Sets<'a>,
    guests: BTreeMap<u32, GuestId>,
    quarantined: BTreeSet<HostId>,
    ratios: BTreeMap<(HostId, usize), f64>,
    limits: BTreeMap<(HostId, usize), i64>,
    running: BTreeMap<HostId, i64>,
    demands: BTreeMap<(GuestId, usize), i64>,
}

impl<'a, 'i> Rules<'a, 'i> {
    pub(super) fn new(instance: &'i mut Instance, states: &'i States, sets: Sets<'a>) -> Rules<'a, 'i> {
        Rules {
            states,
            sets,
            guests: instance.vms.iter().copied().zip(0..).collect(),
            instance,
            quarantined: BTreeSet::new(),
            ratios: BTreeMap::new(),
            limits: BTreeMap::new(),
            running: BTreeMap::new(),
            demands: BTreeMap::new(),
        }
    }

    pub(super) fn read(mut self, constraints: &[Constraint<'a>]) -> Result<(), FileError> {
        for (at, of) in constraints.iter().enumerate() {
            self.add(Rule { of, at })?;
        }
        self.close_nodes()?;
        self.set_amounts();
        self.instance.problem.owners = self.sets.into_sets();
        Ok(())
    }

    fn add(&mut self, rule: Rule<'_, 'a>) -> Result<(), FileError> {
        match &*rule.of.id {
            // These are part of the states.
            "online" | "offline" | "running" | "sleeping" | "ready" | "killed" => Ok(()),
            "spread" => self.spread(rule, rule.vms()?),
            "split" => self.split(rule),
            "gather" => self.gather(rule),
            "among" => self.among(rule),
            "splitAmong" => self.split_among(rule),
            "fence" => {
                let set = self.sets.listed(rule.nodes()?, &rule.path("nodes"))?;
                self.restrict_vm(rule, set)
            }
            "ban" => {
                let set = self.sets.unlisted(rule.nodes()?, &rule.path("nodes"))?;
                self.restrict_vm(rule, set)
            }
            "root" => self.root(rule),
            "quarantine" => {
                let host = self.sets.host(rule.node()?, &rule.path("node"))?;
                self.quarantined.extend(host);
                Ok(())
            }
            "preserve" => self.preserve(rule),
            "overbook" => self.overbook(rule),
            "resourceCapacity" => {
                let (resource, amount) = (self.resource(rule)?, rule.amount()?);
                if let Some(host) = self.only_host(rule)? {
                    lower(&mut self.limits, (host, resource), amount);
                }
                Ok(())
            }
            "runningCapacity" => {
                let amount = rule.amount()?;
                if let Some(host) = self.only_host(rule)? {
                    lower(&mut self.running, host, amount);
                }
                Ok(())
            }
            "maxOnline" => self.max_online(rule),
            "lonely" => Err(rule.error("that VMs share hosts with no others cannot be said here")),
            "Deadline" | "noDelay" | "Precedence" | "seq" | "Serialize" | "Sync" => {
                Err(rule.error("when VMs move cannot be said here: leave it out"))
            }
            _ => Err(rule.error("such constraints are not known")),
        }
    }

    /// Returns the guests of those of these VMs that run in the end, each once.
    fn members(&self, rule: Rule, vms: &[u32]) -> Result<Vec<GuestId>, FileError> {
        let each: BTreeSet<u32> = vms.iter().copied().collect();
        match each.iter().find(|vm| !self.states.vms.contains_key(vm)) {
            Some(vm) => Err(rule.error(format!("there is no VM {vm}"))),
            None => Ok(each.iter().filter_map(|vm| self.guests.get(vm).copied()).collect()),
        }
    }

    /// Returns the host where a guest runs already.
    fn runs_on(&self, guest: GuestId) -> Option<HostId> {
        Some(self.instance.problem.initial[guest as usize]).filter(|host| *host != NOWHERE)
    }

    fn restrict(&mut self, guest: GuestId, set: u32, path: &str) -> Result<(), FileError> {
        let owners = &mut self.instance.problem.guests[guest as usize].owners;
        *owners = Some(match *owners {
            None => set,
            Some(other) => self.sets.both(set, other, path)?,
        });
        Ok(())
    }

    fn restrict_vm(&mut self, rule: Rule, set: u32) -> Result<(), FileError> {
        for guest in self.members(rule, &[rule.vm()?])? {
            self.restrict(guest, set, &rule.path("nodes"))?;
        }
        Ok(())
    }

    fn spread(&mut self, rule: Rule, vms: &[u32]) -> Result<(), FileError> {
        let members = self.members(rule, vms)?;
        if members.len() > 1 {
            let group = Group { apart: Some(Strength::Hard), ..Group::default() };
            self.instance.add_group(group, &members, rule.of.continuous);
        }
        Ok(())
    }

    /// Reads a `split`: if each part is one VM, the VMs are apart.
    fn split(&mut self, rule: Rule) -> Result<(), FileError> {
        let mut vms = Vec::new();
        for (n, part) in rule.has(rule.of.parts.as_ref(), "parts")?.iter().enumerate() {
            let part: Vec<u32> = parse_part(part, &rule.path(&format!("parts[{n}]")))?;
            if part.len() > 1 {
                return Err(rule.error("that several VMs share no host with several others cannot be said here"));
            }
            vms.extend(part);
        }
        self.spread(rule, &vms)
    }

    fn gather(&mut self, rule: Rule) -> Result<(), FileError> {
        let members = self.members(rule, rule.vms()?)?;
        let on: BTreeSet<HostId> = members.iter().filter_map(|guest| self.runs_on(*guest)).collect();
        if rule.of.continuous
            && on.len() == 1
            && let Some(host) = on.first()
        {
            let set = self.sets.one(*host, &rule.path("vms"))?;
            return members.iter().try_for_each(|guest| self.restrict(*guest, set, &rule.path("vms")));
        }
        if members.len() > 1 {
            let group = Group { together: Some(Strength::Hard), ..Group::default() };
            self.instance.add_group(group, &members, rule.of.continuous);
        }
        Ok(())
    }

    fn among(&mut self, rule: Rule<'_, 'a>) -> Result<(), FileError> {
        let members = self.members(rule, rule.vms()?)?;
        let parts = self.parts(rule, rule.has(rule.of.parts.as_deref(), "parts")?, "parts")?;
        let decided = match *parts {
            [] => return Err(rule.error("there is no part where the VMs could be")),
            [only] => Some(only),
            _ if rule.of.continuous => self.part_of(&members, &parts),
            _ => None,
        };
        if let Some(part) = decided {
            return members.iter().try_for_each(|guest| self.restrict(*guest, part, &rule.path("parts")));
        }
        let path = rule.path("parts");
        let among = parts.iter().map(|part| self.sets.copy(*part, &path)).collect::<Result<_, _>>()?;
        self.instance.add_group(Group { among, ..Group::default() }, &members, rule.of.continuous);
        Ok(())
    }

    fn split_among(&mut self, rule: Rule<'_, 'a>) -> Result<(), FileError> {
        let parts = self.parts(rule, rule.has(rule.of.node_parts.as_deref(), "pParts")?, "pParts")?;
        let mut taken = BTreeSet::new();
        for vms in rule.has(rule.of.vm_parts.as_ref(), "vParts")? {
            let members = self.members(rule, vms)?;
            let part = self.part_of(&members, &parts).filter(|part| rule.of.continuous && taken.insert(*part));
            let part = part.ok_or_else(|| rule.error("only one that is continuous and holds already is understood"))?;
            members.iter().try_for_each(|guest| self.restrict(*guest, part, &rule.path("pParts")))?;
        }
        Ok(())
    }

    fn parts(&mut self, rule: Rule<'_, 'a>, parts: &[&'a RawValue], key: &str) -> Result<Vec<u32>, FileError> {
        let each = parts.iter().enumerate();
        each.map(|(n, part)| self.sets.listed(part, &rule.path(&format!("{key}[{n}]")))).collect()
    }

    /// Returns the part that contains all of these guests that run, if any runs.
    fn part_of(&self, members: &[GuestId], parts: &[u32]) -> Option<u32> {
        let on: Vec<HostId> = members.iter().filter_map(|guest| self.runs_on(*guest)).collect();
        let holds = |part: &&u32| on.iter().all(|host| self.sets.get(**part).contains(*host));
        parts.iter().find(holds).copied().filter(|_| !on.is_empty())
    }

    fn root(&mut self, rule: Rule) -> Result<(), FileError> {
        for guest in self.members(rule, &[rule.vm()?])? {
            if let Some(host) = self.runs_on(guest) {
                let set = self.sets.one(host, &rule.path("vm"))?;
                self.restrict(guest, set, &rule.path("vm"))?;
            }
        }
        Ok(())
    }

    fn resource(&self, rule: Rule) -> Result<usize, FileError> {
        let name = rule.has(rule.of.rc.as_ref(), "rc")?;
        let resource = self.instance.resources.iter().position(|other| other == name);
        resource.ok_or_else(|| rule.error(format!("there is no resource '{name}'")))
    }

    /// Reads the amount that a VM is to have. If several constraints give one, the largest counts.
    fn preserve(&mut self, rule: Rule) -> Result<(), FileError> {
        let (resource, amount) = (self.resource(rule)?, rule.amount()?);
        for guest in self.members(rule, &[rule.vm()?])? {
            let demand = self.demands.entry((guest, resource)).or_insert(amount);
            *demand = amount.max(*demand);
        }
        Ok(())
    }

    fn overbook(&mut self, rule: Rule) -> Result<(), FileError> {
        let (resource, ratio) = (self.resource(rule)?, rule.has(rule.of.ratio, "ratio")?);
        if !(ratio.is_finite() && ratio >= 1.0) {
            return Err(rule.error(format!("a ratio of {ratio} is below 1")));
        }
        if let Some(host) = self.sets.host(rule.node()?, &rule.path("node"))? {
            lower(&mut self.ratios, (host, resource), ratio);
        }
        Ok(())
    }

    /// Returns the host whose capacity a constraint is about, or `None` if its node is off.
    fn only_host(&self, rule: Rule) -> Result<Option<HostId>, FileError> {
        let hosts = self.sets.list(rule.nodes()?, &rule.path("nodes"))?;
        match hosts.len() {
            0 | 1 => Ok(hosts.iter().next()),
            _ => Err(rule.error("a capacity that several nodes share cannot be said here")),
        }
    }

    /// Checks a constraint on how many nodes are online. Which nodes are online in the end is settled, so the
    /// constraint holds or never can.
    fn max_online(&self, rule: Rule) -> Result<(), FileError> {
        let nodes: BTreeSet<u32> = parse_part(rule.nodes()?, &rule.path("nodes"))?;
        if let Some(node) = nodes.iter().find(|node| !self.states.nodes.contains_key(node)) {
            return Err(rule.error(format!("there is no node {node}")));
        }
        let online = nodes.iter().filter(|node| self.states.nodes[node].ends_online()).count();
        match rule.amount()? {
            most if online as i64 <= most => Ok(()),
            _ => Err(rule.error(format!("{online} of its nodes are online in the end: say which are to be offline"))),
        }
    }

    /// Keeps guests off nodes that are shut down, and lets none come to or leave a node in quarantine.
    fn close_nodes(&mut self) -> Result<(), FileError> {
        let path = "constraints";
        let ends_online = |host: &HostId| {
            let node = self.instance.nodes[*host as usize];
            self.states.nodes[&node].ends_online()
        };
        let hosts = 0..self.instance.nodes.len() as HostId;
        let staying: Bits = hosts.clone().filter(ends_online).collect();
        if staying.len() < hosts.len() {
            let staying = self.sets.add(staying, path)?;
            self.guests().try_for_each(|guest| self.restrict(guest, staying, path))?;
        }
        if self.quarantined.is_empty() {
            return Ok(());
        }
        let open = hosts.filter(|host| !self.quarantined.contains(host)).collect();
        let open = self.sets.add(open, path)?;
        for guest in self.guests() {
            let set = match self.runs_on(guest).filter(|host| self.quarantined.contains(host)) {
                Some(host) => self.sets.one(host, path)?,
                None => open,
            };
            self.restrict(guest, set, path)?;
        }
        Ok(())
    }

    fn guests(&self) -> std::ops::Range<GuestId> {
        0..self.instance.vms.len() as GuestId
    }

    fn set_amounts(&mut self) {
        let problem = &mut self.instance.problem;
        for (&(host, resource), ratio) in &self.ratios {
            let capacity = &mut problem.hosts[host as usize].capacity[resource];
            // The result is cut off, as BtrPlace does.
            *capacity = (*capacity as f64 * ratio) as i64;
        }
        for (&(host, resource), limit) in &self.limits {
            let capacity = &mut problem.hosts[host as usize].capacity[resource];
            *capacity = (*capacity).min(*limit);
        }
        for (&(guest, resource), amount) in &self.demands {
            let demand = &mut problem.guests[guest as usize].demand[resource];
            if std::mem::replace(demand, *amount) != *amount {
                self.instance.allocate.insert((guest, resource), *amount);
            }
        }
        if !self.running.is_empty() {
            let all = problem.guests.len() as i64;
            self.instance.resources.push(RUNNING.into());
            problem.resources.push(Resource { transient: false, load_weight: 0 });
            problem.guests.iter_mut().for_each(|guest| guest.demand.push(1));
            for (host, of) in (0..).zip(&mut problem.hosts) {
                of.capacity.push(self.running.get(&host).copied().unwrap_or(all));
            }
        }
        problem.hosts.iter_mut().for_each(|host| host.safe.clone_from(&host.capacity));
    }
}

/// Records a limit. Of several limits the lowest holds.
fn lower<K: Ord, V: PartialOrd + Copy>(limits: &mut BTreeMap<K, V>, of: K, limit: V) {
    let least = limits.entry(of).or_insert(limit);
    if limit < *least {
        *least = limit;
    }
}
