//! A lost host is switched off by its fencing device, and so proven to be off.
//!
//! ```text
//!  lost for the grace ─▶ the attempt is written ─▶ power-off ─▶ the power state is read until it is off ─▶ proof
//!                            ▲                         │                │
//!                            └── later, an attempt more ◀───────────────┘ refused, or not off in time
//! ```
//!
//! Whether a power-off was accepted says nothing. A leader that takes over knows only that a power-off may have been
//! ordered, and orders it itself. While the host's agent reports, no reading is a proof: the device may be another
//! host's.

use skein_api::cluster::{
    Contact, Fencing, FencingDevice, Operation, OperationKind, OperationState, PowerReading, PowerState, UnixMs,
};

use crate::answer::{Answer, Asked};
use crate::ask::no_host;
use crate::state::{Controller, FenceRun, Output, Planted, PowerAction, PowerPurpose, PowerResult, Role};
use crate::time::Now;
use crate::words::NOBODY;

/// How long a leader leads before it orders a power-off: agents that reach it have reported by then, in milliseconds.
const SETTLE_MS: u64 = 3_000;
/// How long a controller runs before it orders a power-off: agents that are there have found it by then, which they do
/// within 7 s (`controllers/link.rs` of the agent), in milliseconds.
const BEGIN_MS: u64 = 10_000;
/// How often a power-off is ordered before the fencing counts as failed.
const ATTEMPTS_MAX: u32 = 5;
/// The longest wait between two attempts, in milliseconds.
const RETRY_MAX_MS: u64 = 60_000;
/// How long after a fencing that failed another one begins by itself, in milliseconds.
const AGAIN_MS: u64 = 600_000;
/// How long a Redfish device has to answer a power-off, in milliseconds.
const REDFISH_WITHIN_MS: u64 = 10_000;
/// How long a fence agent has for a power-off unless something else is set, in seconds.
const AGENT_S: u32 = 60;
/// How long a device has to say whether a host has power, in milliseconds.
pub(crate) const READ_WITHIN_MS: u64 = 10_000;
/// How long a host may take to be off once that was ordered, in milliseconds.
const OFF_WITHIN_MS: u64 = 30_000;
/// How often it is read whether the host is off, in milliseconds.
const READ_PERIOD_MS: u64 = 1_000;
/// How much longer than allowed an answer of the device is waited for, in milliseconds.
pub(crate) const LATE_MS: u64 = 5_000;

impl Controller {
    /// Begins to switch a lost host off, as somebody asks for.
    pub(crate) fn switch_off(&mut self, now: Now, host: &str, by: &str) -> Answer {
        let Some(found) = self.tables.hosts.get(host) else { return no_host(host) };
        let say_so = format!("make sure that it is off, and say so: skein host fence {host} --is-off");
        if found.value.settings.fencing.is_none() {
            let say_so = self.unless_answering(host, say_so);
            let cure = format!("{say_so}; or name its device: skein host fencing set {host} --help");
            return Answer::conflict(format!("'{host}' has no fencing device that the controller knows"), cure);
        }
        match found.value.contact {
            Contact::Lost | Contact::Joined => {}
            Contact::Online => return self.still_reports(now, host),
            Contact::Off | Contact::Asleep => {
                return Answer::conflict(format!("'{host}' is known to be off already"), say_so);
            }
        }
        if let Some(open) = self.fencing_of(host) {
            let message = format!("'{host}' is being switched off already, by operation {}", open.id);
            return Answer::conflict(message, format!("follow it: skein operation watch {}", open.id));
        }
        Answer::Operation(Box::new(self.begin_fencing(now, host, by)))
    }

    fn begin_fencing(&mut self, now: Now, host: &str, by: &str) -> Operation {
        let kind = OperationKind::Fence { host: host.to_owned(), automatic: by == NOBODY };
        let mut operation = self.unsaved_operation(now, kind, OperationState::Running, by);
        operation.fencing = Some(Fencing::default());
        // The clock may have been set back since the host was lost: then it is known all the same that this came later.
        let lost_since = self.tables.hosts.get(host).map_or(UnixMs(0), |found| found.value.contact_since);
        operation.created = operation.created.max(lost_since);
        self.keep_operation(now, operation)
    }

    /// Asks a host's fencing device whether the host has power. The answer comes later.
    pub(crate) fn read_power(&mut self, host: &str, asked: Asked) -> Option<Answer> {
        let Some(found) = self.tables.hosts.get(host) else { return Some(no_host(host)) };
        if found.value.settings.fencing.is_none() {
            let cure = format!("skein host fencing set {host} --help");
            return Some(Answer::conflict(format!("'{host}' has no fencing device that the controller knows"), cure));
        }
        let purpose = PowerPurpose::Show { host: host.to_owned(), asked: Box::new(asked) };
        self.send_power(host, PowerAction::Read, purpose);
        None
    }

    /// Returns the fencing of a host that is under way.
    pub(crate) fn fencing_of(&self, host: &str) -> Option<&Operation> {
        self.open_operations().find(|found| is_fencing_of(found, host))
    }

    /// Returns why no host is switched off by itself at the moment.
    pub(crate) fn fencing_held(&self) -> Option<String> {
        let counts = self.host_counts();
        let known = counts.online + counts.lost;
        (counts.lost * 2 > known).then(|| {
            format!(
                "{} of {known} hosts do not report: perhaps the controller is cut off, so none of them is switched \
                 off by itself",
                counts.lost
            )
        })
    }

    /// Begins to switch hosts off that have been lost for long enough.
    pub(crate) fn tick_fencing(&mut self, now: Now) {
        let set = &self.tables.settings.value.failover;
        let (is_wanted, silent_ms) =
            (set.restart && set.power_off, self.host_lease_ms() + u64::from(set.grace_s) * 1000);
        let most = set.power_offs_max as usize;
        if !is_wanted || self.fencing_held().is_some() {
            return;
        }
        let lost = self.tables.hosts.iter().filter(|(_, host)| host.value.contact == Contact::Lost);
        let lost: Vec<String> = lost.map(|(name, _)| name.clone()).collect();
        for host in lost {
            let automatic = |found: &&Operation| matches!(found.kind, OperationKind::Fence { automatic: true, .. });
            if self.open_operations().filter(automatic).count() >= most {
                break;
            }
            let is_long = self.silent_ms(now, &host) >= silent_ms;
            if is_long && self.fencing_of(&host).is_none() && self.fences_by_itself(&host).is_ok() {
                let is_due = self.last_fencing(&host).is_none_or(|last| is_due_again(now, last));
                if is_due {
                    self.begin_fencing(now, &host, NOBODY);
                }
            }
        }
    }

    /// Returns the last fencing of a host since it was lost.
    fn last_fencing(&self, host: &str) -> Option<&Operation> {
        let since = self.tables.hosts.get(host)?.value.contact_since;
        let mut all = self.tables.operations.values().rev().map(|found| &found.value);
        all.find(|found| is_fencing_of(found, host) && found.created >= since)
    }

    /// Returns whether a lost host is switched off by itself once it is time, or why not.
    fn fences_by_itself(&self, host: &str) -> Result<(), String> {
        let Some(found) = self.tables.hosts.get(host) else { return Err("it is no host".into()) };
        let settings = &found.value.settings;
        if settings.fencing.is_none() {
            return Err("it has no fencing device".into());
        }
        if settings.storage {
            return Err("others need its disks, so it is not switched off by itself".into());
        }
        let definition = |vm: &String| self.tables.vms.get(vm).is_some_and(|vm| vm.value.definition.is_some());
        if !self.lost_guests(host).iter().any(definition) && !self.is_doubted(host) {
            return Err("it had no guests that can be started elsewhere".into());
        }
        Ok(())
    }

    /// Returns what is to be said of a lost host's fencing.
    pub(crate) fn fencing_told(&self, host: &str) -> Option<String> {
        let set = &self.tables.settings.value.failover;
        self.tables.hosts.get(host)?.value.settings.fencing.as_ref()?;
        if let Some(open) = self.fencing_of(host) {
            return Some(format!("it is being switched off, by operation {}: {}", open.id, open.message));
        }
        if let Some(last) = self.last_fencing(host) {
            return Some(format!("it was not switched off: {} (operation {})", last.message, last.id));
        }
        if !set.restart || !set.power_off {
            return Some("by the cluster's settings it is not switched off by itself".into());
        }
        self.fences_by_itself(host).err().or_else(|| self.fencing_held())
    }

    // ---- an attempt ----

    /// Advances a fencing that is not over.
    pub(super) fn advance_fence(&mut self, now: Now, mut operation: Operation) {
        let OperationKind::Fence { host, automatic } = operation.kind.clone() else { return };
        let (contact, has_device) = match self.tables.hosts.get(&host) {
            Some(found) => (found.value.contact, found.value.settings.fencing.is_some()),
            None => return self.end_fencing(now, operation, OperationState::Failed, "it is no host any more".into()),
        };
        let attempts = operation.fencing.as_ref().map_or(0, |fencing| fencing.attempts);
        let ordered = if attempts == 0 { "" } else { "; a power-off was ordered before, and may still take effect" };
        if operation.state == OperationState::Cancelling {
            return self.end_fencing(now, operation, OperationState::Cancelled, format!("it was called off{ordered}"));
        }
        if contact.is_off() {
            return self.end_fencing(now, operation, OperationState::Done, "it is proven to be off otherwise".into());
        }
        if contact == Contact::Online && !self.has(Planted::ReturnForgotten) {
            let why = format!("its agent reports again{ordered}");
            return self.end_fencing(now, operation, OperationState::Cancelled, why);
        }
        if !has_device {
            let why = format!("it has no fencing device any more{ordered}");
            return self.end_fencing(now, operation, OperationState::Failed, why);
        }
        let Some(run) = self.runs.get(&operation.id) else { return };
        match &run.fence {
            FenceRun::Idle => {
                let waits = operation.fencing.as_ref().and_then(|fencing| fencing.not_before);
                let leads_for_ms =
                    if let Role::Leader { since_ms, .. } = self.role { now.ms_since(since_ms) } else { 0 };
                let is_settled =
                    leads_for_ms >= SETTLE_MS && self.begun_ms.is_some_and(|begun| now.ms_since(begun) >= BEGIN_MS);
                if !is_settled || waits.is_some_and(|time| now.is_before(time)) {
                    return;
                }
                if let Some(why) = self.fencing_held().filter(|_| automatic) {
                    return self.end_fencing(now, operation, OperationState::Failed, why);
                }
                self.order_off(now, operation, &host);
            }
            FenceRun::Ordering { until_ms, .. } if now.mono_ms > *until_ms => {
                self.read_until_off(now, &operation.id, "the device did not answer the power-off".into());
            }
            FenceRun::Ordering { .. } => {}
            FenceRun::Reading { until_ms, last, .. } if now.mono_ms > *until_ms => {
                let why = format!("it is not seen to be off {} s after the power-off: {last}", OFF_WITHIN_MS / 1000);
                operation.message.clear();
                self.retry_fencing(now, operation, why);
            }
            FenceRun::Reading { job: None, read_ms, .. } if now.mono_ms >= *read_ms => {
                let purpose = PowerPurpose::Fence { operation: operation.id.clone() };
                let sent = self.send_power(&host, PowerAction::Read, purpose);
                if let Some(FenceRun::Reading { job, read_ms, .. }) = self.fence_run(&operation.id) {
                    // An answer that never comes is waited for no longer than this.
                    (*job, *read_ms) = (sent, now.mono_ms + READ_WITHIN_MS + LATE_MS);
                }
            }
            FenceRun::Reading { job: Some(_), read_ms, .. } if now.mono_ms >= *read_ms => {
                if let Some(FenceRun::Reading { job, .. }) = self.fence_run(&operation.id) {
                    *job = None;
                }
            }
            FenceRun::Reading { .. } => {}
        }
    }

    fn fence_run(&mut self, operation: &str) -> Option<&mut FenceRun> {
        self.runs.get_mut(operation).map(|run| &mut run.fence)
    }

    /// Writes that an attempt begins, and then orders the power-off.
    fn order_off(&mut self, now: Now, mut operation: Operation, host: &str) {
        let fencing = operation.fencing.get_or_insert_default();
        fencing.attempts += 1;
        fencing.not_before = None;
        operation.message = format!("attempt {} of {ATTEMPTS_MAX}: the power-off is ordered", fencing.attempts);
        self.save_operation(now, operation.clone());
        let purpose = PowerPurpose::Fence { operation: operation.id.clone() };
        if self.has(Planted::EarlyReadingTrusted) {
            self.send_power(host, PowerAction::Read, purpose);
            return self.read_until_off(now, &operation.id, String::new());
        }
        let Some(job) = self.send_power(host, PowerAction::Off, purpose) else { return };
        let within_ms =
            self.tables.hosts.get(host).map_or(0, |found| off_within_ms(found.value.settings.fencing.as_ref()));
        if let Some(run) = self.fence_run(&operation.id) {
            *run = FenceRun::Ordering { job, until_ms: now.mono_ms + within_ms + LATE_MS };
        }
    }

    /// Goes over to reading the power state until it is off.
    fn read_until_off(&mut self, now: Now, operation: &str, last: String) {
        if let Some(run) = self.fence_run(operation) {
            *run = FenceRun::Reading { job: None, read_ms: now.mono_ms, until_ms: now.mono_ms + OFF_WITHIN_MS, last };
        }
        if let Some(mut operation) = self.operation(operation) {
            let attempts = operation.fencing.as_ref().map_or(0, |fencing| fencing.attempts);
            operation.message = format!("attempt {attempts} of {ATTEMPTS_MAX}: waits until the power is off");
            self.save_operation(now, operation);
        }
    }

    /// Tells or asks a host's device something, once all that was decided is written.
    pub(crate) fn send_power(&mut self, host: &str, action: PowerAction, purpose: PowerPurpose) -> Option<u64> {
        let term = self.term()?;
        let device = self.tables.hosts.get(host)?.value.settings.fencing.clone()?;
        let within_ms = match action {
            PowerAction::Off | PowerAction::Shutdown | PowerAction::On => off_within_ms(Some(&device)),
            PowerAction::Read | PowerAction::Check { .. } => READ_WITHIN_MS,
        };
        let job = self.number();
        self.powers.insert(job, purpose);
        let output = Output::Power { job, term, host: host.to_owned(), device: Box::new(device), action, within_ms };
        let is_early = match action {
            PowerAction::Shutdown => self.has(Planted::SleepIntentForgotten),
            _ => self.has(Planted::IntentForgotten),
        };
        match is_early {
            true => self.out.push_back(output),
            false => self.effect(output),
        }
        Some(job)
    }

    /// Takes what a fencing device answers.
    pub(crate) fn powered(&mut self, now: Now, job: u64, result: PowerResult) {
        match self.powers.remove(&job) {
            Some(PowerPurpose::Fence { operation }) => self.fence_answered(now, &operation, job, result),
            Some(PowerPurpose::Change { operation }) => self.change_answered(now, &operation, job, result),
            Some(PowerPurpose::Show { host, asked }) => {
                let answer = match result {
                    PowerResult::State(power, detail) => Answer::Power(PowerReading { host, power, detail }),
                    PowerResult::Refused(why) | PowerResult::Unknown(why) => {
                        let message =
                            format!("the fencing device of '{host}' does not say whether it has power: {why}");
                        Answer::conflict(message, format!("see what is set: skein host fencing show {host}"))
                    }
                    PowerResult::Accepted => {
                        Answer::conflict("the device answered something else", "see skein host fencing test --help")
                    }
                };
                let Asked { id, by, from, what, .. } = *asked;
                self.answer_audited(now, id, (by, from, what), answer);
            }
            None => {}
        }
    }

    fn fence_answered(&mut self, now: Now, id: &str, answered: u64, result: PowerResult) {
        let Some(operation) = self.operation(id).filter(|found| found.state == OperationState::Running) else { return };
        let is_early = self.has(Planted::EarlyReadingTrusted);
        let Some(run) = self.fence_run(id) else { return };
        match (run, result) {
            (FenceRun::Ordering { job, .. }, result) if *job == answered => match result {
                PowerResult::Accepted if self.has(Planted::OffAssumed) => self.proven_by_device(now, operation),
                PowerResult::Accepted | PowerResult::State(..) => self.read_until_off(now, id, String::new()),
                PowerResult::Unknown(why) => self.read_until_off(now, id, why),
                PowerResult::Refused(why) => self.retry_fencing(now, operation, why),
            },
            (FenceRun::Reading { job, read_ms, last, .. }, result) if *job == Some(answered) || is_early => {
                (*job, *read_ms) = (None, now.mono_ms + READ_PERIOD_MS);
                match result {
                    PowerResult::State(PowerState::Off, _) => self.proven_by_device(now, operation),
                    PowerResult::State(PowerState::On, _) => *last = "the device says that it is on".into(),
                    PowerResult::State(PowerState::Changing, _) => *last = "the device says that it changes".into(),
                    PowerResult::Refused(why) | PowerResult::Unknown(why) => *last = why,
                    PowerResult::Accepted => {}
                }
            }
            _ => {}
        }
    }

    /// Notes that a host is off, as its device says since this leader's power-off. An agent that reports contradicts
    /// that, and ends the fencing.
    fn proven_by_device(&mut self, now: Now, mut operation: Operation) {
        let OperationKind::Fence { host, .. } = operation.kind.clone() else { return };
        let contact = self.tables.hosts.get(&host).map(|found| found.value.contact);
        if !matches!(contact, Some(Contact::Lost | Contact::Joined)) && !self.has(Planted::ReturnForgotten) {
            return;
        }
        let by = operation.by.clone();
        let failover = self.proven_off(now, &host, &by);
        operation.fencing.get_or_insert_default().failover = failover.as_ref().map(|of| of.id.clone());
        let message = match failover {
            Some(failover) => format!("it is off; its guests are started elsewhere by operation {}", failover.id),
            None => "it is off".to_owned(),
        };
        self.end_fencing(now, operation, OperationState::Done, message);
    }

    fn retry_fencing(&mut self, now: Now, mut operation: Operation, why: String) {
        let fencing = operation.fencing.get_or_insert_default();
        if fencing.attempts >= ATTEMPTS_MAX {
            return self.end_fencing(now, operation, OperationState::Failed, why);
        }
        let wait_ms = (self.settings.retry_ms << (fencing.attempts.clamp(1, 16) - 1)).min(RETRY_MAX_MS);
        fencing.not_before = Some(now.in_ms(wait_ms));
        let next = fencing.attempts + 1;
        operation.message = format!("{why}; attempt {next} of {ATTEMPTS_MAX} comes in {} s", wait_ms.div_ceil(1000));
        if let Some(run) = self.fence_run(&operation.id) {
            *run = FenceRun::Idle;
        }
        self.save_operation(now, operation);
    }

    fn end_fencing(&mut self, now: Now, mut operation: Operation, state: OperationState, message: String) {
        self.withdraw_power(&operation.id);
        (operation.state, operation.message) = (state, message);
        if let Some(fencing) = &mut operation.fencing {
            fencing.not_before = None;
        }
        self.save_operation(now, operation);
    }
}

impl Controller {
    /// Takes back what was to be told to a device for an operation, as far as it has not gone out.
    pub(crate) fn withdraw_power(&mut self, operation: &str) {
        let is_of = |purpose: &PowerPurpose| match purpose {
            PowerPurpose::Fence { operation: of } | PowerPurpose::Change { operation: of } => of == operation,
            PowerPurpose::Show { .. } => false,
        };
        let jobs: Vec<u64> = self.powers.iter().filter(|(_, of)| is_of(of)).map(|(job, _)| *job).collect();
        let stays = |output: &Output| !matches!(output, Output::Power { job, .. } if jobs.contains(job));
        self.held.retain(stays);
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.effects.retain(stays);
        }
        self.powers.retain(|job, _| !jobs.contains(job));
    }
}

fn is_fencing_of(operation: &Operation, host: &str) -> bool {
    matches!(&operation.kind, OperationKind::Fence { host: of, .. } if of == host)
}

/// Returns whether a host is switched off by itself after it was tried and came to nothing: not if somebody has called
/// that off, and not at once if it was tried often enough.
fn is_due_again(now: Now, last: &Operation) -> bool {
    let is_spent = last.fencing.as_ref().is_some_and(|fencing| fencing.attempts >= ATTEMPTS_MAX);
    let ended = last.ended.unwrap_or(last.created);
    let again = UnixMs(ended.0.saturating_add(AGAIN_MS));
    !last.cancelled && (!is_spent || now.is_over(again, AGAIN_MS))
}

/// Returns how long a device has for a power-off.
pub(crate) fn off_within_ms(device: Option<&FencingDevice>) -> u64 {
    match device {
        Some(FencingDevice::Agent { timeout_s, .. }) => u64::from(timeout_s.unwrap_or(AGENT_S)) * 1000,
        Some(FencingDevice::Redfish { .. }) | None => REDFISH_WITHIN_MS,
    }
}
