//! Before hosts are updated it is seen of each whether it can be emptied, and who comes last.

use std::collections::BTreeSet;

use skein_api::cluster::{
    Contact, HostUpdate, HostUpdateState, HostsUpdate, Operation, OperationKind, OperationState, UpdateRequest,
};

use super::by_hand::MOVED_BY_HAND;
use crate::answer::{Answer, NOTHING_BEGUN, RefusedKind};
use crate::ask::no_host;
use crate::error_chain;
use crate::planner::{Excluded, PlanError, Planned, Want};
use crate::records::HostRecord;
use crate::state::{Controller, Output, PlanPurpose};
use crate::time::Now;
use crate::words::vms_words;

/// Within which seconds a host has to be updated and back.
const WAIT_RANGE_S: std::ops::RangeInclusive<u64> = 60..=86_400;
/// What to do about hosts that keep an update from being begun.
const BLOCKED_CURE: &str = "see to that, or leave such hosts out: --skip-blocked";
/// How many guests are named that keep a host from being emptied.
const BLOCKERS_TOLD_MAX: usize = 5;

impl Controller {
    /// Begins to update hosts, or says what would be done. `None`: the answer takes plans.
    pub(crate) fn update_hosts(&mut self, now: Now, request: &UpdateRequest, asked: u64, by: &str) -> Option<Answer> {
        if !WAIT_RANGE_S.contains(&request.wait_s) {
            let message = "a host has 1m to 1d to be updated and back (--wait), which is wait_s of 60 to 86400";
            return Some(Answer::refused(RefusedKind::Invalid, message, "choose another time"));
        }
        if let Some(unknown) = request.hosts.iter().find(|host| !self.tables.hosts.contains_key(*host)) {
            return Some(no_host(unknown));
        }
        if let Some(open) = self.open_operations().find(|of| of.update.is_some()).filter(|_| !request.dry_run) {
            let cure =
                format!("follow it: skein operation watch {0}; or call it off: skein operation cancel {0}", open.id);
            return Some(Answer::conflict(format!("hosts are being updated already, by operation {}", open.id), cure));
        }
        let chosen = self.in_turn(&request.hosts);
        if chosen.is_empty() {
            return Some(Answer::conflict("there are no hosts", "see skein host list"));
        }
        let hosts: Vec<HostUpdate> =
            chosen.into_iter().map(|host| self.begun_with(host, request.skip_blocked)).collect();
        if let Some(of) = hosts.iter().find(|of| of.blocks && !request.dry_run) {
            return Some(Answer::conflict(format!("'{}' cannot be updated: {}", of.host, of.detail), BLOCKED_CURE));
        }
        let UpdateRequest { how, bring_home, wait_s, skip_blocked, .. } = *request;
        let kind = OperationKind::Update { how, bring_home, wait_s, skip_blocked };
        let mut operation = self.unsaved_operation(now, kind, OperationState::Planning, by);
        operation.update = Some(HostsUpdate { hosts, waits_until: None });
        operation.message = "it is seen whether each host can be emptied".into();
        if request.dry_run {
            self.check_preview(operation, asked);
            return None;
        }
        Some(Answer::Operation(Box::new(self.keep_operation(now, operation))))
    }

    /// Returns the hosts in their turn: those on which a controller or a member of the store runs come last.
    fn in_turn(&self, named: &[String]) -> Vec<String> {
        let all = || self.tables.hosts.keys().cloned().collect();
        let mut seen = BTreeSet::new();
        let mut hosts: Vec<String> = if named.is_empty() { all() } else { named.to_vec() };
        hosts.retain(|host| seen.insert(host.clone()));
        hosts.sort_by_key(|host| self.tables.hosts.get(host).is_some_and(|found| self.is_needed(&found.value)));
        hosts
    }

    /// Returns whether a controller or a member of the store runs on a host, as far as that is known.
    fn is_needed(&self, found: &HostRecord) -> bool {
        self.needed_at.as_ref().is_some_and(|needed| found.ips().iter().any(|ip| needed.contains(ip)))
    }

    /// Returns why a host cannot be updated now, and whether it is left out without being asked.
    fn cannot_begin(&self, host: &str) -> Option<(String, bool)> {
        let found = self.tables.hosts.get(host).map(|found| &found.value)?;
        match found.contact {
            Contact::Online if self.reporting(host).is_some() => None,
            Contact::Asleep => Some(("it sleeps".into(), true)),
            Contact::Off => Some(("it is off".into(), false)),
            Contact::Online | Contact::Lost | Contact::Joined => Some(("its agent does not report".into(), false)),
        }
    }

    /// Returns what an update begins with: a host that is to be checked, or that is left out, or in the way.
    fn begun_with(&self, host: String, skip_blocked: bool) -> HostUpdate {
        let of = HostUpdate { host, ..HostUpdate::default() };
        match self.cannot_begin(&of.host) {
            Some((detail, is_allowed)) => {
                let blocks = !is_allowed && !skip_blocked;
                HostUpdate { state: HostUpdateState::Skipped, detail, blocks, ..of }
            }
            None => of,
        }
    }

    // ---- plans ----

    /// Asks whether the next host can be emptied; once all were asked for, the operation begins, or fails.
    pub(super) fn check_next(&mut self, now: Now, mut operation: Operation) {
        let Some(update) = operation.update.clone() else { return };
        let Some(index) = update.hosts.iter().position(|of| of.state == HostUpdateState::Unchecked) else {
            return self.checked(now, operation);
        };
        let is_planning = self.runs.get(&operation.id).is_none_or(|run| run.plan.is_some());
        if is_planning || !self.may_plan(now, &operation) {
            return;
        }
        let host = &update.hosts[index].host;
        if !self.tables.hosts.contains_key(host) {
            let of = &mut operation.update.get_or_insert_default().hosts[index];
            (of.state, of.detail) = (HostUpdateState::Skipped, "it is no host any more".into());
            return self.save_operation(now, operation);
        }
        let want = Want::Empty { host: host.clone() };
        let purpose = PlanPurpose::UpdateCheck { asked: None, operation: Box::new(operation.clone()), index };
        let plan = self.ask_plan(purpose, want, Excluded::new());
        if let Some(run) = self.runs.get_mut(&operation.id) {
            run.plan = Some(plan);
        }
    }

    /// Ends an operation that would be blocked before anything is done, or has it begin.
    fn checked(&mut self, now: Now, mut operation: Operation) {
        let OperationKind::Update { skip_blocked, .. } = operation.kind else { return };
        let hosts = &mut operation.update.get_or_insert_default().hosts;
        let blocked = |of: &&mut HostUpdate| of.state == HostUpdateState::Waiting && !of.detail.is_empty();
        let mut words = Vec::new();
        for of in hosts.iter_mut().filter(blocked) {
            words.push(format!("{} cannot be emptied: {}", of.host, of.detail));
            (of.state, of.blocks) = (HostUpdateState::Skipped, !skip_blocked);
        }
        operation.state = match words.is_empty() || skip_blocked {
            true => OperationState::Running,
            false => OperationState::Failed,
        };
        operation.message.clear();
        if operation.state == OperationState::Failed {
            let why = words.join("; ");
            operation.message = format!("nothing was begun: {why}; {BLOCKED_CURE}");
        }
        self.save_operation(now, operation);
    }

    fn check_preview(&mut self, mut operation: Operation, asked: u64) {
        let hosts = operation.update.iter().flat_map(|of| &of.hosts);
        let next = hosts.enumerate().find(|(_, of)| of.state == HostUpdateState::Unchecked);
        if let Some((index, host)) = next.map(|(index, of)| (index, of.host.clone())) {
            let purpose = PlanPurpose::UpdateCheck { asked: Some(asked), operation: Box::new(operation), index };
            self.ask_plan(purpose, Want::Empty { host }, Excluded::new());
            return;
        }
        let blocks = operation.update.iter().flat_map(|of| &of.hosts).filter(|of| of.blocks);
        let words: Vec<String> = blocks.map(|of| format!("{}: {}", of.host, of.detail)).collect();
        let open = self.open_operations().find(|of| of.update.is_some());
        operation.message = match (words.is_empty(), open) {
            (_, Some(open)) => {
                format!("nothing would be begun now: hosts are being updated already, by operation {}", open.id)
            }
            (false, None) => format!("nothing would be begun: {}; {BLOCKED_CURE}", words.join("; ")),
            (true, None) => NOTHING_BEGUN.into(),
        };
        operation.progress.left_ms = None;
        self.effect(Output::Answer { asked, answer: Answer::preview(operation) });
    }

    /// Takes a plan over that says whether a host can be emptied.
    pub(super) fn update_checked(
        &mut self,
        now: Now,
        asked: Option<u64>,
        mut operation: Operation,
        index: usize,
        result: Result<Planned, PlanError>,
    ) {
        if asked.is_none() {
            let id = operation.id.clone();
            if let Some(run) = self.runs.get_mut(&id) {
                run.plan = None;
            }
            let Some(known) = self.operation(&id).filter(|of| of.state == OperationState::Planning) else { return };
            operation = known;
        }
        let Some(host) = operation.update.as_ref().and_then(|of| of.hosts.get(index)).map(|of| of.host.clone()) else {
            return;
        };
        let (detail, moves) = match result {
            Ok(planned) => (self.blockers(&host, &planned), planned.moves.len()),
            Err(error) => (error_chain(&error), 0),
        };
        let skip_blocked = matches!(operation.kind, OperationKind::Update { skip_blocked: true, .. });
        let of = &mut operation.update.get_or_insert_default().hosts[index];
        (of.state, of.detail) = (HostUpdateState::Waiting, detail);
        match asked {
            Some(asked) => {
                if of.detail.is_empty() {
                    of.detail = vms_words(moves, "leaves", "leave");
                } else {
                    (of.state, of.blocks) = (HostUpdateState::Skipped, !skip_blocked);
                    of.detail = format!("it cannot be emptied: {}", of.detail);
                }
                self.check_preview(operation, asked);
            }
            None => self.save_operation(now, operation),
        }
    }

    /// Says which guests stay on a host that is emptied, and why. Empty: none.
    fn blockers(&self, host: &str, planned: &Planned) -> String {
        // A host that sleeps is woken for them.
        if !planned.wake.is_empty() {
            return String::new();
        }
        let stay = planned.moves.iter().filter(|of| of.from == host && of.to.is_none());
        // What somebody moves by hand is waited for.
        let stay: Vec<_> = stay.filter(|of| self.by_hand(&of.vm).is_none() && of.reason != MOVED_BY_HAND).collect();
        let words: Vec<String> =
            stay.iter().take(BLOCKERS_TOLD_MAX).map(|of| format!("{} stays: {}", of.vm, of.reason)).collect();
        let more = stay.len().saturating_sub(BLOCKERS_TOLD_MAX);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        words.join("; ") + &more
    }
}

/// Returns `hosta (2 of 5): STEP`.
pub(super) fn numbered(operation: &Operation, index: usize, step: &str) -> String {
    let hosts = operation.update.as_ref().map(|of| of.hosts.as_slice()).unwrap_or_default();
    let host = hosts.get(index).map(|of| of.host.as_str()).unwrap_or_default();
    format!("{host} ({} of {}): {step}", index + 1, hosts.len())
}
