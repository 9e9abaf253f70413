//! What has to hold after a round: all agents agree, nothing is left over, and each guest is whole.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use skein_api::{LogEntry, Migration, MigrationEvent, MigrationId, Outcome, Reply, Request, VmState};
use skein_hypervisor::MigrationStatus;
use skein_lab_cluster::{GUEST_TIME, Run, until};

use super::asks::Ask;
use super::outcome::{Failure, Harm};
use super::state::{Guest, World};

/// The longest time from the resolution until nothing is left over.
const CLEAN: Duration = Duration::from_secs(20);
/// The time within which an agent answers.
const SOON: Duration = Duration::from_secs(2);

/// How the migrations of a round ended.
#[derive(Default)]
pub(super) struct Ends {
    /// The outcome of each migration that was asked for. `None`: it was refused because of a fault.
    pub(super) outcomes: Vec<Option<Outcome>>,
    /// The outcomes of the migrations that were in doubt.
    pub(super) doubts: Vec<Option<Outcome>>,
}

/// How a guest is after a round.
pub(super) enum Health {
    /// The guest ended with its QEMU, and was started again.
    Ended,
    /// The guest is whole. `stopped` is the longest time that it ran nowhere.
    Whole { stopped: Duration },
}

impl World {
    /// Returns where each guest runs, if all agents agree and QEMU says the same. A guest that is off runs nowhere.
    pub(super) fn places(&self) -> Result<BTreeMap<String, Option<String>>, String> {
        let mut running: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let hosts = self.cluster.hosts();
        for host in &hosts {
            let vms = match self.cluster.client(host).call(&Request::VmList, SOON) {
                Ok(Reply::Vms { vms }) => vms,
                other => return Err(format!("{host}: {other:?}")),
            };
            for vm in vms {
                match (vm.state, vm.migration) {
                    (VmState::Running, None) => running.entry(vm.name).or_default().push(host.clone()),
                    (VmState::Stopped, None) => {}
                    (state, migration) => return Err(format!("{host}: {} is {state:?} in {migration:?}", vm.name)),
                }
            }
        }
        let mut places = BTreeMap::new();
        for Guest { name, .. } in &self.guests {
            let by_agents = running.remove(name).unwrap_or_default();
            let by_qemu = self.cluster.where_runs(name);
            if by_agents != by_qemu || by_agents.len() > 1 {
                return Err(format!("{name}: the agents have it run on {by_agents:?}, QEMU on {by_qemu:?}"));
            }
            places.insert(name.clone(), by_agents.into_iter().next());
        }
        // This check costs more, so it comes last.
        for host in &hosts {
            let migrations = match self.cluster.client(host).call(&Request::MigrationList, SOON) {
                Ok(Reply::Migrations { migrations }) => migrations,
                other => return Err(format!("{host}: {other:?}")),
            };
            if let Some(one) = migrations.iter().find(|one| one.outcome.is_none() || one.in_doubt) {
                return Err(format!("{host}: {} is {:?}, in doubt {}", one.id, one.stage, one.in_doubt));
            }
        }
        Ok(places)
    }

    pub(super) fn wait_clean(&self, since: Instant) -> Result<Duration, Failure> {
        use MigrationStatus::{Active, Cancelling, Device, PreSwitchover, Setup, WaitUnplug};
        let mut left = Vec::new();
        let is_clean = || {
            left = self.cluster.leftovers();
            for Guest { name, .. } in &self.guests {
                for (qemu, status) in self.cluster.witness().migrations(name) {
                    match status {
                        Err(error) => left.push(format!("{qemu} is deaf: {error}")),
                        Ok(status @ (Active | Cancelling | Device | PreSwitchover | Setup | WaitUnplug)) => {
                            left.push(format!("{qemu} migrates: {status:?}"));
                        }
                        Ok(_) => {}
                    }
                }
            }
            left.is_empty()
        };
        match until(CLEAN, is_clean) {
            true => Ok(since.elapsed()),
            false => Err(format!("left over: {left:#?}").into()),
        }
    }

    /// Judges the outcome of each migration: both ends have to report the same, and the guest has to be where they say.
    pub(super) fn judge(&mut self, asks: &[Ask], places: &BTreeMap<String, Option<String>>) -> Result<Ends, Failure> {
        let mut ends_of_all = Ends::default();
        let mut found: BTreeMap<MigrationId, Vec<(String, Migration)>> = BTreeMap::new();
        for host in self.cluster.hosts() {
            for one in self.cluster.migrations(&host).into_iter().filter(|one| !self.known.contains(&one.id)) {
                let whole = self.cluster.migration(&host, one.id);
                found.entry(one.id).or_default().push((host.clone(), whole));
            }
        }
        self.known.extend(found.keys());
        for ask in asks {
            let of_vm = found.iter().find(|(_, ends)| ends.iter().any(|(_, end)| end.vm == ask.vm));
            let Some((id, ends)) = of_vm else {
                ends_of_all.outcomes.push(None);
                continue;
            };
            let of = |host: &String| ends.iter().find(|(at, _)| at == host).and_then(|(_, end)| end.outcome);
            let (source, target) = (of(&ask.from), of(&ask.to));
            if let (Some(source), Some(target)) = (source, target)
                && (source == Outcome::Moved) != (target == Outcome::Moved)
            {
                return Err(format!("{id}: the source says {source:?}, the target {target:?}").into());
            }
            let expected = match source {
                Some(Outcome::Moved) => Some(&ask.to),
                Some(Outcome::CalledOff) => Some(&ask.from),
                _ => None,
            };
            if let Some(place) = &places[&ask.vm]
                && expected != Some(place)
            {
                return Err(format!("{id}: the source says {source:?}, and it runs on {place}").into());
            }
            ends_of_all.outcomes.push(source);
            let doubtful = |(_, end): &&(String, Migration)| {
                end.events
                    .iter()
                    .any(|logged| matches!(logged.event, LogEntry::Handover { event: MigrationEvent::InDoubt }))
            };
            ends_of_all.doubts.extend(ends.iter().find(doubtful).map(|_| source));
        }
        Ok(ends_of_all)
    }

    /// Checks that a guest is whole where it runs. A guest that ended with its QEMU is started again.
    pub(super) fn look_after(
        &mut self,
        at: usize,
        places: &BTreeMap<String, Option<String>>,
        began: Duration,
    ) -> Result<Health, Failure> {
        let name = self.guests[at].name.clone();
        let runs = self.cluster.witness().runs(&name);
        let Some(place) = &places[&name] else {
            let last = runs.last().ok_or_else(|| format!("{name} never ran"))?;
            if !self.killed.contains(&last.pid) {
                let why =
                    format!("LOST: {name} runs nowhere, and QEMU {} that had it was not killed: {runs:?}", last.pid);
                return Err(Failure { harm: Harm::Lost, why });
            }
            for host in self.cluster.hosts() {
                if self.cluster.vms(&host).iter().any(|vm| vm.name == name) {
                    self.cluster.asked(&host, &Request::VmForget { name: name.clone() });
                }
            }
            self.boot(at);
            return Ok(Health::Ended);
        };
        let gap = |pair: &[Run]| match pair[0].until {
            Some(until) if until > began => pair[1].from.saturating_sub(until),
            _ => Duration::ZERO,
        };
        let longest = runs.windows(2).map(gap).max().unwrap_or_default();
        self.guests[at].at = place.clone();
        let guest = &self.guests[at];
        if guest.working {
            if !self.cluster.beats_on(&name, place, GUEST_TIME) {
                let why = format!("{name} has no heartbeat on {place}");
                return Err(Failure { harm: Harm::Lost, why });
            }
            let verdict = self.cluster.talk(&name, |agent| agent.verify(GUEST_TIME));
            if !verdict.is_good() {
                return Err(Failure { harm: Harm::Corrupted, why: format!("CORRUPTED: {name}: {verdict:?}") });
            }
        }
        Ok(Health::Whole { stopped: longest })
    }
}
