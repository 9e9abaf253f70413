//! Shows hosts and VMs as the API has them, from what is stored and what is observed.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::cluster::{
    Contact, Host, HostCounts, HostMode, Operation, OperationKind, OperationState, Rule, Vm, VmCounts, VmRunState,
};
use skein_api::{HostLoad, VmLoad, VmState, VmView};

use crate::answer::Answer;
use crate::records::{HostRecord, RuleRecord, VmRecord};
use crate::rules::{self, Known};
use crate::state::Controller;
use crate::tables::Stored;
use crate::words::{double_words, open_words, vms_words};

/// Returns a VM's state in the cluster, or `None` if the host that says so is not where the VM is.
pub(crate) fn run_state(state: VmState) -> Option<VmRunState> {
    Some(match state {
        VmState::Running => VmRunState::Running,
        VmState::Paused => VmRunState::Paused,
        VmState::Starting => VmRunState::Starting,
        VmState::Handover => VmRunState::Handover,
        VmState::InDoubt => VmRunState::InDoubt,
        VmState::Stopped => VmRunState::Stopped,
        VmState::Unresponsive => VmRunState::Unresponsive,
        VmState::Incoming | VmState::Moved => return None,
    })
}

impl Controller {
    /// Returns a host.
    pub fn host(&self, name: &str) -> Option<Host> {
        self.tables.hosts.get(name).map(|stored| self.host_view(name, stored))
    }

    /// Returns the hosts after a name, by name, `most` at most.
    pub fn hosts(&self, after: &str, most: usize) -> Vec<Host> {
        let found = self.tables.hosts.range(above(after)).take(most);
        found.map(|(name, stored)| self.host_view(name, stored)).collect()
    }

    /// Returns a VM.
    pub fn vm(&self, name: &str) -> Option<Vm> {
        self.tables.vms.get(name).map(|stored| self.vm_view(name, stored))
    }

    /// Returns the VMs after a name, by name, `most` at most; with a host only those on the host.
    pub fn vms(&self, after: &str, host: Option<&str>, most: usize) -> Vec<Vm> {
        let Some(host) = host else {
            let found = self.tables.vms.range(above(after)).take(most);
            return found.map(|(name, stored)| self.vm_view(name, stored)).collect();
        };
        let found = self.tables.vms_of(host).map(|(name, _)| name).skip_while(|name| *name <= after).take(most);
        found.filter_map(|name| self.vm(name)).collect()
    }

    /// Returns why the agent of a host that reports takes no guest. `None`: it takes guests, as far as it tells.
    pub(crate) fn closed(&self, host: &str) -> Option<&str> {
        self.reporting(host)?.closed()
    }

    /// Refuses a host that somebody chose for a VM and whose agent takes none.
    pub(crate) fn closed_refusal(&self, host: &str) -> Option<Answer> {
        let why = self.closed(host)?;
        Some(Answer::conflict(format!("'{host}' takes no guest: {why}"), open_words(host)))
    }

    /// Returns how busy the hosts are that report.
    pub fn host_loads(&self) -> Vec<(String, HostLoad)> {
        let online = self.tables.hosts.iter().filter(|(_, stored)| stored.value.contact == Contact::Online);
        online.filter_map(|(name, _)| Some((name.clone(), self.observed.get(name)?.load?))).collect()
    }

    /// Returns how busy the guests are of the hosts that report.
    pub fn vm_loads(&self) -> Vec<(String, VmLoad)> {
        let online = self.tables.hosts.iter().filter(|(_, stored)| stored.value.contact == Contact::Online);
        let observed = online.filter_map(|(name, _)| self.observed.get(name));
        observed.flat_map(|of| of.vm_loads.iter().map(|(name, load)| (name.clone(), *load))).collect()
    }

    /// Counts the guests that a host had when it last reported.
    fn count_guests(&self, host: &str) -> u32 {
        self.tables.vms_of(host).filter(|(name, vm)| is_guest(vm.state) && !self.is_long_missing(name)).count() as u32
    }

    fn host_view(&self, name: &str, stored: &Stored<HostRecord>) -> Host {
        let HostRecord { contact, contact_since, mode, drain, settings, addresses, .. } = &stored.value;
        let observed = self.observed.get(name);
        let is_online = *contact == Contact::Online;
        let facts = observed.and_then(|observed| observed.facts.as_ref());
        let (incoming, outgoing) = self.slots_used(name);
        Host {
            name: name.to_owned(),
            contact: *contact,
            contact_since: *contact_since,
            mode: *mode,
            drain: drain.clone(),
            settings: settings.clone(),
            addresses: addresses.clone(),
            release: observed.and_then(|observed| observed.hello.as_ref()).map(|hello| hello.release.clone()),
            certificate_ends: stored.value.validity.map(|validity| validity.ends),
            cpus: facts.map(|facts| facts.cpus),
            ram_bytes: facts.map(|facts| facts.ram_bytes),
            load: observed.filter(|_| is_online).and_then(|observed| observed.load),
            nics: observed.filter(|_| is_online).map(|observed| observed.nics.clone()).unwrap_or_default(),
            last_load: observed.filter(|_| *contact == Contact::Lost).and_then(|observed| observed.load),
            vms_running: if contact.is_off() { 0 } else { self.count_guests(name) },
            incoming,
            outgoing,
            migrations: self.host_migrations(name),
            note: match contact {
                _ if let Some(words) = self.answers_words(name) => words,
                Contact::Joined => "its agent has not reported yet".into(),
                Contact::Lost => "its agent does not report: whether its guests run is not known".into(),
                Contact::Off => "it is off: that was proven, or somebody said so".into(),
                Contact::Asleep => "it sleeps, and wakes when it is needed".into(),
                Contact::Online => {
                    let closed = self.closed(name).map(|why| format!("it takes no guest: {why}"));
                    closed.unwrap_or_default()
                }
            },
            power: self.power_view(name, &stored.value),
            watchdog: self.watchdog_view(name, &stored.value),
            version: stored.revision,
        }
    }

    fn vm_view(&self, name: &str, stored: &Stored<VmRecord>) -> Vm {
        let VmRecord { host, state, since, ram_bytes, cpus, adopted, note, settings, .. } = &stored.value;
        let on = host.as_deref().and_then(|host| self.tables.hosts.get(host));
        let state = match on.map(|host| host.value.contact) {
            Some(Contact::Lost) if is_guest(*state) => VmRunState::Lost,
            Some(contact) if contact.is_off() && is_guest(*state) => VmRunState::Failed,
            Some(_) if is_guest(*state) && self.is_long_missing(name) => VmRunState::Lost,
            _ => *state,
        };
        let since = match (state, on) {
            (VmRunState::Lost | VmRunState::Failed, Some(host)) if !self.missing.contains_key(name) => {
                host.value.contact_since
            }
            _ => *since,
        };
        let observed = host.as_deref().and_then(|host| self.observed.get(host));
        Vm {
            name: name.to_owned(),
            state,
            host: host.clone(),
            since,
            ram_bytes: *ram_bytes,
            cpus: *cpus,
            load: observed.and_then(|observed| observed.vm_loads.get(name).copied()).filter(|_| is_told_of(state)),
            operation: self.operation_of(name).map(str::to_owned),
            migration: self.vm_migration(name),
            settings: settings.clone(),
            adopted: *adopted,
            note: match host {
                None if note.is_empty() => self.last_start(name).unwrap_or_default(),
                Some(host) if self.missing.contains_key(name) => {
                    format!("'{host}' has it no more, and no host reports it: where it is is not known")
                }
                Some(host) if let Some(others) = self.also_runs_on(name, host) => double_words(name, host, &others),
                _ => note.clone(),
            },
            version: stored.revision,
        }
    }

    /// Returns the rules after a name, by name, `most` at most.
    pub fn rules(&self, after: &str, most: usize) -> Vec<Rule> {
        let rule = |(name, stored): (&String, &Stored<RuleRecord>)| Rule {
            name: name.clone(),
            rule: stored.value.rule.clone(),
            warnings: Vec::new(),
            version: stored.revision,
        };
        self.tables.rules.range(above(after)).take(most).map(rule).collect()
    }

    /// Says what a rule names that the cluster does not have.
    pub fn unknown_in(&self, rule: &serde_json::Value) -> Vec<String> {
        let hosts = self.tables.hosts.iter().map(|(name, host)| (name.as_str(), &host.value.settings));
        let vms = self.tables.vms.iter().map(|(name, vm)| (name.as_str(), &vm.value.settings));
        let known = Known {
            vms: vms.clone().map(|(name, _)| name).collect(),
            hosts: hosts.clone().map(|(name, _)| name).collect(),
            groups: hosts.filter_map(|(_, set)| set.group.as_deref()).collect(),
            tags: vms.clone().flat_map(|(_, set)| set.tags.iter().map(String::as_str)).collect(),
            sets: vms.clone().filter_map(|(_, set)| set.availability_set.as_deref()).collect(),
            tenants: vms.filter_map(|(_, set)| set.tenant.as_deref()).collect(),
        };
        rules::unknown(rule, &known)
    }

    /// Counts the hosts.
    pub fn host_counts(&self) -> HostCounts {
        let mut counts = HostCounts::default();
        for host in self.tables.hosts.values() {
            counts.all += 1;
            counts.online += u32::from(host.value.contact == Contact::Online);
            counts.lost += u32::from(host.value.contact == Contact::Lost);
            counts.off += u32::from(host.value.contact == Contact::Off);
            counts.asleep += u32::from(host.value.contact == Contact::Asleep);
            counts.in_maintenance += u32::from(host.value.mode != HostMode::Active);
        }
        counts
    }

    /// Counts the VMs.
    pub fn vm_counts(&self) -> VmCounts {
        let mut counts = VmCounts::default();
        let is_lost = |contact: Contact| contact == Contact::Lost || contact.is_off();
        let lost = self.tables.hosts.iter().filter(|(_, host)| is_lost(host.value.contact));
        let lost: BTreeSet<&str> = lost.map(|(name, _)| name.as_str()).collect();
        for (name, vm) in &self.tables.vms {
            let is_lost = vm.value.host.as_deref().is_some_and(|host| lost.contains(host));
            let is_lost = is_lost || self.is_long_missing(name);
            counts.all += 1;
            match vm.value.state {
                state if is_guest(state) && is_lost => counts.lost += 1,
                VmRunState::Running => counts.running += 1,
                VmRunState::Stopped => counts.stopped += 1,
                _ => {}
            }
        }
        counts
    }

    /// Returns the guests that run on several hosts, by what these report.
    pub fn run_twice(&self) -> BTreeMap<&str, Vec<&str>> {
        let reporting = self.observed.iter().filter(|(_, observed)| observed.session.is_some());
        let reporting = reporting.map(|(host, observed)| {
            let running = observed.vms.values().filter(|vm| runs_here(vm));
            (host.as_str(), running.map(|vm| vm.name.as_str()))
        });
        // The records tell one host of each guest: only of a guest that runs elsewhere, too, more has to be found.
        let mut runs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (host, running) in reporting.clone() {
            // Both are in the order of names.
            let mut there = self.tables.names_on(host).into_iter().flatten().map(String::as_str).peekable();
            let mut is_there = |vm: &str| {
                while there.next_if(|name| *name < vm).is_some() {}
                there.peek() == Some(&vm)
            };
            runs.extend(running.filter(|vm| !is_there(vm)).map(|vm| (vm, Vec::new())));
        }
        if !runs.is_empty() {
            for (host, running) in reporting {
                for vm in running {
                    runs.entry(vm).and_modify(|hosts| hosts.push(host));
                }
            }
        }
        runs.retain(|_, hosts| hosts.len() > 1);
        runs
    }

    /// Returns the hosts beside its own that report that a guest runs there. `None`: there is none.
    fn also_runs_on(&self, vm: &str, own: &str) -> Option<Vec<String>> {
        let runs_on =
            |host: &str| self.reporting(host).and_then(|observed| observed.vms.get(vm)).is_some_and(runs_here);
        let others = self.untold.iter().filter(|(host, of)| of == vm && host != own && runs_on(host));
        let others: Vec<String> = others.map(|(host, _)| host.clone()).collect();
        (!others.is_empty() && runs_on(own)).then_some(others)
    }

    /// Says what came of the last time that the guests of a host were to be started elsewhere.
    fn last_failover(&self, host: &str) -> Option<&str> {
        let of_host = |found: &&Operation| matches!(&found.kind, OperationKind::Failover { host: of } if of == host);
        let last = self.tables.operations.values().rev().map(|found| &found.value).find(of_host)?;
        Some(last.message.as_str()).filter(|message| !message.is_empty())
    }

    /// Says why a VM that no host has was not started when that was last asked for.
    fn last_start(&self, vm: &str) -> Option<String> {
        let of_vm = |found: &&Operation| matches!(&found.kind, OperationKind::Start { vm: of, .. } if of == vm);
        let last = self.tables.operations.values().rev().map(|found| &found.value).find(of_vm)?;
        (last.state == OperationState::Failed).then(|| format!("it was not started: {}", last.message))
    }

    /// Returns what needs a person, one sentence each.
    pub fn attention(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, host) in &self.tables.hosts {
            match host.value.contact {
                // Why so is told below.
                Contact::Joined if self.is_answering(name) => {}
                Contact::Lost if self.is_answering(name) => {
                    found.extend(self.fencing_told(name).map(|told| format!("host '{name}' does not report: {told}")));
                }
                Contact::Lost => {
                    let fencing = self.fencing_told(name).map(|told| format!("; {told}")).unwrap_or_default();
                    found.push(format!(
                        "host '{name}' does not report: see that it is on and reaches the controllers, or say that it \
                         is off (skein host fence {name} --is-off){fencing}"
                    ));
                }
                Contact::Joined => found.push(format!("host '{name}' has joined and its agent was never seen")),
                Contact::Off => {
                    let left = self.lost_guests(name);
                    if !left.is_empty() && !self.fails_over(name) {
                        let how_many = vms_words(left.len(), "ended with it and runs", "ended with it and run");
                        let why = self.last_failover(name).map(|why| format!("; {why}")).unwrap_or_default();
                        let names = left.join(", ");
                        let again = format!("see to that, and ask again (skein host fence {name} --is-off)");
                        let again = self.unless_answering(name, again);
                        found.push(format!("'{name}' is off: {how_many} nowhere: {names}{why}; {again}"));
                    }
                }
                // One that is not active takes none, and whoever has it so knows.
                Contact::Online if host.value.mode == HostMode::Active => {
                    let closed = self.closed(name).filter(|_| self.updating(name).is_none());
                    let cure = open_words(name);
                    found.extend(closed.map(|why| format!("host '{name}' takes no guest: {why}: {cure}")));
                }
                Contact::Online | Contact::Asleep => {}
            }
            if let Some(trouble) = &host.value.power.trouble {
                found.push(format!(
                    "host '{name}': {trouble}; it is not put to sleep again before skein host wake {name}"
                ));
            }
        }
        for (vm, hosts) in self.run_twice() {
            let hosts = hosts.join(" and ");
            found.push(format!("'{vm}' RUNS TWICE, on {hosts}: stop all but one at once (skein vm stop)"));
        }
        for (vm, host, other) in self.namesakes() {
            found.push(format!(
                "'{vm}' is the name of two VMs: one is off on {host}, and the cluster knows that of {other} only: give \
                 one another name, or have {host} forget it (there: skein vm forget {vm})"
            ));
        }
        let doubt = self.tables.vms.iter().filter(|(_, vm)| vm.value.state == VmRunState::InDoubt);
        found.extend(doubt.map(|(name, _)| format!("'{name}' is in doubt: see skein migration resolve --help")));
        found.extend(self.update_attention());
        found.extend(self.answering_attention());
        found.extend(self.certificate_attention());
        found.extend(self.refused_attention());
        found.extend(self.later.attention(|host| self.session_of(host).is_some(), self.wall));
        found.extend(self.restore_words().map(|words| format!("no VM is started yet: {words}")));
        found.extend(self.left_out_attention());
        found
    }
}

/// Returns whether there is a guest in this state, running or not.
pub(crate) fn is_guest(state: VmRunState) -> bool {
    !matches!(state, VmRunState::Stopped | VmRunState::Failed)
}

/// Returns whether what was last told of a VM's load counts: not if nobody knows whether it runs, or it does not.
fn is_told_of(state: VmRunState) -> bool {
    is_guest(state) && state != VmRunState::Lost
}

/// Returns the range of names above one; all names above the empty one.
pub(crate) fn above(after: &str) -> (std::ops::Bound<String>, std::ops::Bound<String>) {
    (std::ops::Bound::Excluded(after.to_owned()), std::ops::Bound::Unbounded)
}

/// Returns whether a guest is there for sure, where a host says so that reports.
pub(crate) fn is_live(state: VmRunState) -> bool {
    matches!(state, VmRunState::Running | VmRunState::Paused)
}

/// Returns whether a guest runs for sure on the host that says so. In a migration the source may not have told yet that
/// its guest is gone.
fn runs_here(vm: &VmView) -> bool {
    run_state(vm.state).is_some_and(is_live) && vm.migration.is_none()
}

/// Returns whether a guest is not a host's yet that says so of it, or not any more.
pub(crate) fn is_on_its_way(state: VmState) -> bool {
    matches!(state, VmState::Incoming | VmState::Handover | VmState::InDoubt | VmState::Moved)
}
