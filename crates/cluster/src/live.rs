//! The live cluster as placement sees it.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::cluster::{Contact, HostMode, Move, Operation};
use skein_api::{HostFacts, Resource as Bound};
use skein_placement_model::cluster::amount::Amount;
use skein_placement_model::cluster::model::{Amounts, Cluster, Guest, Host, HostState};

use crate::leaving::Leaving;
use crate::observed::Observed;
use crate::operations::{Pending, is_held};
use crate::planner::Excluded;
use crate::records::VmRecord;
use crate::rules::{self, Known, among_known};
use crate::seen::{CPU, MEMORY};
use crate::skeleton::{complete_areas, empty_cluster, label};
use crate::state::Controller;
use crate::view::is_guest;

impl Controller {
    /// Returns the cluster as it is now, for questions about rules.
    pub fn placement(&self) -> Cluster {
        self.model(&Excluded::new(), Pending::All)
    }

    /// Returns the cluster as it is now: hosts that have reported, and the guests on them.
    pub(crate) fn model(&self, excluded: &Excluded, pending: Pending) -> Cluster {
        let mut cluster = empty_cluster();
        let pending_moves = self.pending_moves(pending);
        // Each guest's host is looked up once: a cluster may have tens of thousands.
        let index: BTreeMap<&str, usize> = self.tables.hosts.keys().map(String::as_str).zip(0..).collect();
        let moved_by_hand = self.moved_by_hand();
        // A guest that its host has no more, and that does not go anywhere, takes no room.
        let is_gone = |name: &str| {
            self.is_long_missing(name) && !pending_moves.contains_key(name) && !moved_by_hand.contains(name)
        };
        let guests = self.tables.vms.iter().filter(|(name, vm)| is_guest(vm.value.state) && !is_gone(name));
        let placed =
            guests.filter_map(|(name, vm)| Some((name.as_str(), &vm.value, *index.get(vm.value.host.as_deref()?)?)));
        let placed: Vec<(&str, &VmRecord, usize)> = placed.collect();
        let mut reserved = vec![0; index.len()];
        placed.iter().for_each(|(_, vm, host)| reserved[*host] += vm.ram_bytes);
        let not_reserved = self.not_reserved();
        // A guest that is held has its room here, too: nobody knows when it leaves.
        let mut held = vec![0; index.len()];
        for (name, vm, host) in &placed {
            let leaves = pending_moves.get(name).is_some_and(|(operation, of)| {
                is_held(operation, of) && of.to.as_deref().is_some_and(|to| self.reporting(to).is_some())
            });
            held[*host] += if leaves { vm.ram_bytes } else { 0 };
        }
        let mut online: Vec<Option<&Observed>> = vec![None; index.len()];
        for ((name, stored), number) in self.tables.hosts.iter().zip(0..) {
            let observed = self.observed.get(name);
            let facts = observed.and_then(|observed| observed.facts.as_ref());
            let here = reserved[number];
            let comes = not_reserved.get(name.as_str()).copied().unwrap_or(0);
            let (ram_bytes, cpus) = match (&stored.value.power.asleep, facts) {
                (Some(asleep), _) => (asleep.ram_bytes, asleep.cpus),
                (None, Some(facts)) => {
                    let ram_bytes = ram_for_guests(facts, here).saturating_sub(comes).max(here);
                    (ram_bytes.saturating_sub(held[number]), facts.cpus)
                }
                (None, None) => continue,
            };
            let capacity = [(MEMORY, bytes(ram_bytes)), (CPU, cores(f64::from(cpus)))];
            let mut host = Host::new(name, amounts(capacity));
            host.state = match (stored.value.contact, stored.value.mode) {
                (Contact::Lost | Contact::Off | Contact::Joined | Contact::Asleep, _) => HostState::Offline,
                (Contact::Online, HostMode::Active) if self.closed(name).is_none() => HostState::Online,
                (Contact::Online, _) => HostState::Maintenance,
            };
            online[number] = observed.filter(|_| host.state != HostState::Offline);
            label(&mut host, &stored.value.settings);
            cluster.hosts.push(host);
        }
        complete_areas(&mut cluster);
        let known: BTreeSet<String> = cluster.hosts.iter().map(|host| host.name.clone()).collect();
        let is_online = |host: &str| index.get(host).is_some_and(|host| online[*host].is_some());
        for (name, vm, host) in placed {
            // Guests of hosts that do not report are not to be placed: nobody knows whether they run.
            let Some(observed) = online[host] else { continue };
            let on = vm.host.as_deref().unwrap_or_default();
            let mut guest = self.guest(name, vm, &known, excluded.get(name), Some((on, observed)));
            // A guest that is to be moved counts as where it goes, so that plans fit together.
            let to = pending_moves.get(name).map(|(_, of)| of.to.as_deref().unwrap_or_default());
            let to = to.filter(|to| is_online(to));
            guest.host = Some(to.unwrap_or(on).to_owned());
            // Somebody else moves it: it counts as where it is until it has gone, and nothing else is done with it.
            guest.optimize &= !moved_by_hand.contains(name);
            cluster.guests.push(guest);
        }
        // A VM that is to be started counts as where it will be.
        for (name, to) in self.pending_starts(pending).filter(|(_, to)| is_online(to)) {
            let is_new = !cluster.guests.iter().any(|of| of.name == name);
            let Some(stored) = self.tables.vms.get(name).filter(|_| is_new) else { continue };
            let mut guest = self.guest(name, &stored.value, &known, excluded.get(name), None);
            (guest.host, guest.optimize) = (Some(to.to_owned()), false);
            cluster.guests.push(guest);
        }
        self.add_rules(&mut cluster);
        cluster
    }
}

impl Controller {
    /// Returns a guest as placement sees it. `on`: the host where it is, and what that tells.
    fn guest(
        &self,
        name: &str,
        vm: &VmRecord,
        known: &BTreeSet<String>,
        excluded: Option<&BTreeSet<String>>,
        on: Option<(&str, &Observed)>,
    ) -> Guest {
        let settings = &vm.settings;
        let load = on.and_then(|(_, observed)| observed.vm_loads.get(name).copied());
        let mut guest = Guest::new(name, amounts([(MEMORY, bytes(vm.ram_bytes))]));
        if let Some(load) = load {
            guest.load = amounts([(CPU, cores(load.cpu_millicores as f64 / 1000.0))]);
            guest.memory = Some(bytes(load.ram_bytes.min(vm.ram_bytes)));
        }
        guest.properties.clone_from(&settings.properties);
        guest.tags.clone_from(&settings.tags);
        guest.tenant.clone_from(&settings.tenant);
        guest.availability_set.clone_from(&settings.availability_set);
        let is_known = |host: &&String| known.contains(*host);
        guest.preferred = settings.preferred.iter().filter(is_known).cloned().collect();
        guest.owners = owners(settings.owners.as_deref(), excluded, known, on.map_or("", |(on, _)| on));
        guest.optimize = !settings.pinned;
        guest
    }

    /// Adds guests that run nowhere.
    pub(crate) fn add_unplaced<'a>(
        &self,
        cluster: &mut Cluster,
        vms: impl IntoIterator<Item = (&'a str, &'a VmRecord)>,
        excluded: &Excluded,
    ) {
        let known: BTreeSet<String> = cluster.hosts.iter().map(|host| host.name.clone()).collect();
        for (name, vm) in vms {
            if !cluster.guests.iter().any(|of| of.name == *name) {
                let mut guest = self.guest(name, vm, &known, excluded.get(name), None);
                guest.optimize = true;
                // The host that has it knows it, and needs not forget it.
                if let Some(home) = vm.host.as_ref().filter(|home| known.contains(*home)) {
                    guest.preferred.retain(|host| host != home);
                    guest.preferred.insert(0, home.clone());
                }
                cluster.guests.push(guest);
            }
        }
        self.add_rules(cluster);
    }

    /// Adds a VM, as it is set.
    pub(crate) fn add_vm(&self, cluster: &mut Cluster, name: &str, vm: &VmRecord) {
        let known = cluster.hosts.iter().map(|host| host.name.clone()).collect();
        cluster.guests.push(self.guest(name, vm, &known, None, None));
    }

    /// Gives the cluster the rules that are about its guests and hosts.
    fn add_rules(&self, cluster: &mut Cluster) {
        let rules = self.tables.rules.iter().filter_map(|(name, of)| rules::read(name, &of.value.rule).ok());
        // It is looked at once: a cluster may have many rules and tens of thousands of guests.
        let known = Known::of(cluster);
        let rules = rules.filter_map(|rule| among_known(rule, &known, cluster)).collect();
        cluster.rules = rules;
    }

    /// Returns the moves of guests that are to be moved.
    fn pending_moves(&self, pending: Pending) -> BTreeMap<&str, (&Operation, &Move)> {
        let moves = self.pending(pending).filter(|(_, of)| of.to.is_some());
        moves.map(|(operation, of)| (of.vm.as_str(), (operation, of))).collect()
    }

    /// Returns the guests that a cluster has where they go, and that are still elsewhere.
    pub(crate) fn leaving(&self, cluster: &Cluster, pending: Pending) -> Vec<Leaving> {
        let moves = self.pending_moves(pending);
        let leaving = cluster.guests.iter().filter_map(|guest| {
            let (operation, of) = moves.get(guest.name.as_str())?;
            let leaves = of.off.is_none() && of.to == guest.host && of.to.as_ref() != Some(&of.from);
            let is_held = is_held(operation, of);
            leaves.then(|| Leaving { vm: guest.name.clone(), from: of.from.clone(), is_held })
        });
        leaving.collect()
    }
}

/// Returns the hosts where a guest may be. Where it is now is among them if only agents' refusals speak for others.
fn owners(
    own: Option<&[String]>,
    excluded: Option<&BTreeSet<String>>,
    known: &BTreeSet<String>,
    now: &str,
) -> Option<Vec<String>> {
    if own.is_none() && excluded.is_none_or(BTreeSet::is_empty) {
        return None;
    }
    let may = |host: &&String| {
        own.is_none_or(|own| own.contains(host))
            && (host.as_str() == now || !excluded.is_some_and(|excluded| excluded.contains(*host)))
    };
    Some(known.iter().filter(may).cloned().collect())
}

/// Returns how much memory a host has for guests: what its limits leave, and what its guests have reserved. A limit
/// that counts a guest as used what it has not touched yet leaves too little, never too much.
pub(crate) fn ram_for_guests(facts: &HostFacts, reserved: u64) -> u64 {
    let limits = facts.room.iter().flat_map(|room| &room.limits);
    let left = limits.filter(|limit| matches!(limit.resource, Bound::Ram | Bound::Commit)).map(|limit| limit.left());
    let left = left.min().unwrap_or(facts.ram_available_bytes);
    left.saturating_add(reserved).min(facts.ram_bytes.max(reserved))
}

fn amounts<const N: usize>(of: [(&str, Amount); N]) -> Amounts {
    of.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect()
}

/// Returns bytes as an amount. What no machine has counts as the most that one may have.
fn bytes(bytes: u64) -> Amount {
    amount(bytes as f64, "B")
}

fn cores(cores: f64) -> Amount {
    amount(cores, "cores")
}

fn amount(number: f64, unit: &str) -> Amount {
    Amount::new(number, unit).unwrap_or_else(|_| Amount::new(1e15, unit).expect("that is an amount"))
}
