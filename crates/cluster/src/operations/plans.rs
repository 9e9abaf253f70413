//! Plans: which are asked for, and what is done with them.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::cluster::{Move, MoveState, Operation, OperationKind, OperationState};
use skein_placement::policy::dynamic::Config;
use skein_placement::schedule::ConcurrencyLimits;
use skein_placement_model::cluster::model::{Cluster, HostState};

use super::by_hand::MOVED_BY_HAND;
use super::record::{Pending, is_failover, refusals, starts};
use crate::answer::{Answer, NOTHING_BEGUN};
use crate::error_chain;
use crate::planner::{Better, Excluded, PastRound, PlanError, PlanRequest, Planned, Want};
use crate::records::VmRecord;
use crate::state::{AskedPlan, Controller, Output, PlanBasis, PlanPurpose, Planted};
use crate::time::Now;
use crate::view::above;
use crate::words::double_words;

impl Controller {
    /// Asks for a plan.
    pub(crate) fn ask_plan(&mut self, purpose: PlanPurpose, want: Want, excluded: Excluded) -> u64 {
        self.ask_plan_for(purpose, PlanBasis::Guests { want, excluded, unknown: None })
    }

    /// Asks for a plan of something.
    pub(crate) fn ask_plan_for(&mut self, purpose: PlanPurpose, basis: PlanBasis) -> u64 {
        let plan = self.number();
        self.plans.insert(plan, AskedPlan { purpose, basis });
        self.effect(Output::Plan { plan });
        plan
    }

    /// Returns what a plan goes by that was asked for: the cluster as it is now, which takes a while to tell of a large
    /// one. `None`: nobody waits for the plan any more.
    pub fn plan_request(&self, plan: u64) -> Option<PlanRequest> {
        let AskedPlan { purpose, basis } = self.plans.get(&plan)?;
        let is_urgent = match purpose {
            PlanPurpose::Operation { id, .. } => self.operation(id).is_some_and(|found| is_failover(&found.kind)),
            _ => false,
        };
        let pending = if is_urgent { Pending::Urgent } else { Pending::All };
        let (want, cluster) = match basis {
            PlanBasis::Guests { want, excluded, unknown } => {
                let cluster = self.cluster_for(want, excluded, unknown.as_deref(), pending);
                (want.clone(), cluster)
            }
            PlanBasis::Power { now_ms } => self.power_wanted(*now_ms),
        };
        let limits = cluster.hosts.iter().map(|host| {
            let (incoming, outgoing) = self.slots(&host.name);
            (host.name.clone(), ConcurrencyLimits { incoming, outgoing, total: incoming.saturating_add(outgoing) })
        });
        let limits = limits.collect();
        let rates = cluster.hosts.iter().filter_map(|host| Some((host.name.clone(), self.rate(&host.name)?))).collect();
        let asleep = self.can_wake().into_iter().chain(self.are_woken()).collect();
        let leaving = self.leaving(&cluster, pending);
        Some(PlanRequest { cluster, want, limits, rates, asleep, leaving })
    }

    fn cluster_for(
        &self,
        want: &Want,
        excluded: &Excluded,
        unknown: Option<&(String, VmRecord)>,
        pending: Pending,
    ) -> Cluster {
        let mut cluster = self.model(excluded, pending);
        if let Want::Empty { host } = want
            && let Some(found) = cluster.hosts.iter_mut().find(|found| found.name == *host)
        {
            // A preview asks what would be.
            found.state = HostState::Maintenance;
        }
        if let Want::Start { vms } = want {
            let new = unknown.map(|(name, record)| (name.as_str(), record));
            let known = vms.iter().filter_map(|vm| Some((vm.as_str(), &self.tables.vms.get(vm)?.value)));
            self.add_unplaced(&mut cluster, new.into_iter().chain(known), excluded);
        }
        cluster
    }

    /// Returns what leaves a host in a second of guests' memory, in bytes: by the moves that were made, or as much as
    /// the NICs carry together, as far as their drivers tell.
    pub(crate) fn rate(&self, host: &str) -> Option<f64> {
        self.pace(host).or_else(|| self.nics_rate(host))
    }

    fn nics_rate(&self, host: &str) -> Option<f64> {
        let facts = self.observed.get(host)?.facts.as_ref()?;
        let bits: u64 = facts.nics.iter().filter_map(|nic| nic.speed_bits_per_s).sum();
        (bits > 0).then_some(bits as f64 / 8.0)
    }

    pub(crate) fn planned(&mut self, now: Now, plan: u64, result: Result<Planned, PlanError>) {
        if let Ok(planned) = &result {
            self.left_out.clone_from(&planned.left_out);
        }
        match self.plans.remove(&plan).map(|asked| asked.purpose) {
            Some(PlanPurpose::Preview { asked, mut operation }) => {
                let answer = match result {
                    Ok(planned) => {
                        let (wake, why_none) = (planned.wake.join(", "), planned.why_none.clone());
                        take_over(&mut operation, planned);
                        self.tell_by_hand(&mut operation, 0, false);
                        self.tell_doubles(&mut operation);
                        self.tell_exclusions(&mut operation, 0);
                        self.add_off_moves(&mut operation);
                        operation.message = match why_none.is_empty() {
                            true => NOTHING_BEGUN.into(),
                            false => why_none,
                        };
                        if !wake.is_empty() {
                            operation.message += &format!("; {wake} would be woken first, and has a place");
                        }
                        let stay = match &operation.kind {
                            OperationKind::Drain { host, .. } => self.off_stay_words(&operation, host),
                            _ => None,
                        };
                        for words in Controller::off_plan_words(&operation).into_iter().chain(stay) {
                            operation.message += &format!("; {words}");
                        }
                        Answer::preview(*operation)
                    }
                    Err(error) => Answer::conflict(error_chain(&error), "skein rule check"),
                };
                self.effect(Output::Answer { asked, answer });
            }
            Some(PlanPurpose::UpdateCheck { asked, operation, index }) => {
                self.update_checked(now, asked, *operation, index, result);
            }
            Some(PlanPurpose::Power) => self.power_planned(now, result),
            Some(PlanPurpose::Operation { id, epoch }) => {
                let result = (epoch == self.epoch).then_some(result);
                self.operation_planned(now, &id, result);
            }
            None => {}
        }
    }

    fn operation_planned(&mut self, now: Now, id: &str, result: Option<Result<Planned, PlanError>>) {
        let Some(mut operation) = self.operation(id).filter(|found| found.state == OperationState::Planning) else {
            return;
        };
        let Some(run) = self.runs.get_mut(id) else { return };
        run.plan = None;
        // What the plan goes by has changed meanwhile: it is made again.
        let Some(result) = result else { return };
        let finds_place = |planned: &Planned| planned.moves.iter().any(|of| of.to.is_some());
        if is_failover(&operation.kind) && result.as_ref().is_ok_and(finds_place) {
            // It goes ahead of what waits, which is planned again around it.
            self.epoch += 1;
        }
        run.epoch = Some(self.epoch);
        match result {
            Ok(planned) if !planned.wake.is_empty() => return self.wake_for(now, operation, &planned.wake),
            Ok(planned) => {
                if let OperationKind::Optimize { automatic, .. } = operation.kind {
                    let vms = planned.moves.iter().filter(|of| of.to.is_some()).map(|of| of.vm.clone()).collect();
                    let is_relief = planned.is_relief;
                    self.optimizer.remember(PastRound { at_ms: now.mono_ms, vms, is_relief });
                    if automatic && planned.moves.is_empty() {
                        // There is nothing to do, and nothing to tell.
                        self.runs.remove(id);
                        return self.tables.delete::<Operation>(id);
                    }
                }
                let first = operation.moves.len();
                take_over(&mut operation, planned);
                self.tell_by_hand(&mut operation, first, true);
                self.tell_doubles(&mut operation);
                self.tell_exclusions(&mut operation, first);
                self.add_off_moves(&mut operation);
                (operation.state, operation.message) = (OperationState::Running, String::new());
            }
            Err(error) => {
                run.plan_failed_ms = Some(now.mono_ms);
                operation.message = error_chain(&error);
                let goes_on = matches!(
                    operation.kind,
                    OperationKind::Drain { .. } | OperationKind::Failover { .. } | OperationKind::Autostart { .. }
                );
                if !goes_on {
                    operation.state = OperationState::Failed;
                }
            }
        }
        self.save_operation(now, operation);
    }

    /// Adds the guests to a drain that run on its host and elsewhere, too: nobody knows which of the two is to stay.
    fn tell_doubles(&self, operation: &mut Operation) {
        let OperationKind::Drain { host, .. } = &operation.kind else { return };
        for (vm, others) in self.doubles(host) {
            let reason = double_words(&vm, host, &others);
            let of_double = |of: &&mut Move| of.vm == vm && of.from == *host;
            for of in operation.moves.iter_mut().filter(of_double).filter(|of| of.state == MoveState::Waiting) {
                (of.to, of.state, of.reason) = (None, MoveState::Left, reason.clone());
            }
            if !operation.moves.iter_mut().filter(of_double).any(|of| of.to.is_none()) {
                operation.moves.push(Move::new(&vm, host, None, &reason));
            }
        }
    }

    /// Returns what a round of optimisation goes by.
    pub(crate) fn better(&self, now: Now, aggressiveness: u8) -> Want {
        let set = &self.tables.settings.value.optimize;
        let config = Config {
            aggressiveness,
            interval_s: set.interval_s,
            cooldown_s: set.cooldown_s,
            guest_moves_max: set.vm_moves_max as usize,
            round_moves_max: set.round_moves_max as usize,
            ..Config::default()
        };
        let rounds = self.optimizer.rounds.iter().cloned().collect();
        Want::Better(Box::new(Better { config, outlooks: self.optimizer.outlooks(), rounds, now_ms: now.mono_ms }))
    }

    /// Returns the VMs that a drain of a host, and those that it follows, moved away, and that are away. What somebody
    /// else moved, or brought home to another host since, is not among them.
    pub(crate) fn away(&self, host: &str, drain: &str) -> BTreeSet<&str> {
        let at = |vm: &str| self.tables.vms.get(vm).and_then(|vm| vm.value.host.as_deref());
        // A drain that was called off may have moved a guest all the same.
        let is_moved = |of: &Move| of.state == MoveState::Done || of.to.is_some() && of.to.as_deref() == at(&of.vm);
        let mut left: BTreeMap<&str, &str> = BTreeMap::new();
        for id in self.drains(drain) {
            let Some(found) = self.tables.operations.get(id) else { continue };
            let moves = found.value.moves.iter().filter(|of| of.from == host && of.detail != MOVED_BY_HAND);
            for of in moves.filter(|of| is_moved(of)) {
                let last = left.entry(&of.vm).or_insert(id);
                *last = id.max(*last);
            }
        }
        let Some(first) = left.values().min().copied() else { return BTreeSet::new() };
        let since = self.tables.operations.range(above(first));
        let is_choice = |kind: &OperationKind| match kind {
            OperationKind::Migrate { .. } => true,
            OperationKind::Resume { host: home, .. } => home != host,
            _ => false,
        };
        for (id, found) in since.filter(|(_, found)| is_choice(&found.value.kind)) {
            for of in found.value.moves.iter().filter(|of| of.state == MoveState::Done) {
                if left.get(of.vm.as_str()).is_some_and(|drained| *drained < id.as_str()) {
                    left.remove(of.vm.as_str());
                }
            }
        }
        left.into_keys().filter(|vm| at(vm).is_some_and(|at| at != host)).collect()
    }

    /// Returns ` --bring-home` if a host has guests that its last drain moved away, for the words that say how the host
    /// takes guests again.
    pub(crate) fn home_option(&self, host: &str) -> &'static str {
        let drain = self.tables.hosts.get(host).and_then(|found| found.value.drain.as_deref());
        if drain.is_some_and(|drain| !self.away(host, drain).is_empty()) { " --bring-home" } else { "" }
    }

    /// Returns what an operation wants planned now.
    pub(crate) fn want(&self, now: Now, operation: &Operation) -> (Want, Excluded) {
        let want = match &operation.kind {
            OperationKind::Migrate { vm, .. } => Want::Elsewhere { vm: vm.clone() },
            OperationKind::Drain { host, .. } => Want::Empty { host: host.clone() },
            kind if starts(kind) => return (self.want_starts(now, operation), self.excluded_of(operation)),
            OperationKind::Optimize { aggressiveness, .. } => self.better(now, *aggressiveness),
            OperationKind::Resume { host, drain } => Want::At {
                places: self.away(host, drain).into_iter().map(|vm| (vm.to_owned(), host.clone())).collect(),
            },
            // They are never planned.
            _ => Want::Start { vms: Vec::new() },
        };
        let is_forgotten = self.has(Planted::RefusalForgotten);
        (want, if is_forgotten { Excluded::new() } else { refusals(operation) })
    }
}

/// Adds a plan's moves to an operation.
fn take_over(operation: &mut Operation, planned: Planned) {
    let first = operation.moves.len() as u32;
    for of in planned.moves {
        let mut new = Move::new(&of.vm, &of.from, of.to.as_deref(), &of.reason);
        new.waits = of.waits.iter().map(|before| first + before).collect();
        (new.after, new.forecast_ms) = (of.after, of.forecast_ms);
        operation.moves.push(new);
    }
    operation.progress.forecast_ms = operation.progress.forecast_ms.max(planned.forecast_ms);
}
