//! A host is switched on, and its agent is waited for.
//!
//! Each attempt is written before the device is told. From then on the host is not known to be off: if its agent does
//! not report in time, the host is lost, and is not put to sleep again before somebody has looked.

use skein_api::cluster::{Contact, Operation, OperationKind, OperationState, PowerChange, PowerStage, PowerState};

use super::fence::{LATE_MS, READ_WITHIN_MS, off_within_ms};
use crate::answer::Answer;
use crate::ask::no_host;
use crate::records::HostRecord;
use crate::state::{Controller, PowerAction, PowerPurpose, PowerResult, PowerRun};
use crate::time::Now;
use crate::words::{NOBODY, open_words};

/// How often it is read whether a host has power that does not report, in milliseconds.
const READ_PERIOD_MS: u64 = 5_000;
/// After how long a host that is still off is switched on again, in milliseconds: devices take as long as that.
const AGAIN_MS: u64 = 20_000;
/// The longest wait between two attempts that were refused, in milliseconds.
const RETRY_MAX_MS: u64 = 60_000;

/// The longest that a host may have to wake, in milliseconds: what `power.wake_within_s` is at most.
const WITHIN_MS_MAX: u64 = 3_600_000;

impl Controller {
    /// Begins to wake a host, as somebody asks for; or takes it that what went wrong with its power is mended.
    pub(crate) fn wake_host(&mut self, now: Now, host: &str, by: &str) -> Answer {
        let Some(found) = self.tables.hosts.get(host).map(|found| found.value.clone()) else { return no_host(host) };
        if found.contact == Contact::Online {
            if found.power.trouble.is_none() {
                if let Some(why) = self.closed(host) {
                    let message = format!("'{host}' is awake, and takes no guest: {why}");
                    return Answer::conflict(message, open_words(host));
                }
                return Answer::conflict(format!("'{host}' is awake"), format!("see skein host show {host}"));
            }
            self.clear_trouble(host);
            return Answer::Done;
        }
        if found.settings.fencing.is_none() {
            let cure = format!("switch it on yourself; or name its device: skein host fencing set {host} --help");
            return Answer::conflict(format!("'{host}' has no device that could switch it on"), cure);
        }
        if let Some(open) = self.waking(host) {
            let message = format!("'{host}' is being woken already, by operation {}", open.id);
            return Answer::conflict(message, format!("follow it: skein operation watch {}", open.id));
        }
        if let Some(open) = self.fencing_of(host) {
            let message = format!("'{host}' is being switched off, by operation {}", open.id);
            return Answer::conflict(message, format!("call that off first: skein operation cancel {}", open.id));
        }
        Answer::Operation(Box::new(self.begin_wake(now, host, by, Vec::new())))
    }

    pub(crate) fn begin_wake(&mut self, now: Now, host: &str, by: &str, reasons: Vec<String>) -> Operation {
        let kind = OperationKind::Wake { host: host.to_owned(), automatic: by == NOBODY };
        let mut operation = self.unsaved_operation(now, kind, OperationState::Running, by);
        let within_ms = u64::from(self.tables.settings.value.power.wake_within_s) * 1000;
        let until = Some(now.in_ms(within_ms));
        operation.power = Some(PowerChange { stage: PowerStage::Waking, until, reasons, ..PowerChange::default() });
        self.keep_operation(now, operation)
    }

    /// Wakes hosts that would have a place for guests of an operation that find none, and has the operation wait.
    pub(crate) fn wake_for(&mut self, now: Now, mut operation: Operation, hosts: &[String]) {
        let reason = format!("operation {} finds no place for all guests", operation.id);
        for host in hosts {
            let known = self.waking(host).map(|of| of.id.clone());
            let can = self.can_wake().contains(host);
            let id = known.or_else(|| can.then(|| self.begin_wake(now, host, NOBODY, vec![reason.clone()]).id));
            if let (Some(id), Some(run)) = (id, self.runs.get_mut(&operation.id)) {
                run.wakes.insert(id);
            }
        }
        operation.message = format!("it waits until {} is awake, where there is room", hosts.join(" and "));
        self.save_operation(now, operation);
    }

    /// Advances the operation that wakes a host.
    pub(super) fn advance_wake(&mut self, now: Now, mut operation: Operation) {
        let OperationKind::Wake { host, .. } = operation.kind.clone() else { return };
        let Some(found) = self.tables.hosts.get(&host).map(|found| found.value.clone()) else {
            return self.end_change(now, operation, OperationState::Failed, "it is no host any more".into());
        };
        let change = operation.power.clone().unwrap_or_default();
        if found.contact == Contact::Online {
            if self.reporting(&host).is_some() {
                self.clear_trouble(&host);
                self.end_change(now, operation, OperationState::Done, "it is awake".into());
            }
            return;
        }
        if operation.state == OperationState::Cancelling {
            let ordered = if change.attempts > 0 { "it was told to switch on, and may do so" } else { "" };
            self.not_off_any_more(now, &host, change.attempts);
            return self.end_change(now, operation, OperationState::Cancelled, ordered.into());
        }
        let Some(run) = self.power_run(&operation.id) else { return };
        if change.until.is_some_and(|until| now.is_over(until, WITHIN_MS_MAX)) {
            let last = match run {
                PowerRun::Reading { last, .. } if !last.is_empty() => last.clone(),
                _ => operation.message.clone(),
            };
            self.in_trouble(&host, &format!("it did not wake when it was to: {last}"));
            self.not_off_any_more(now, &host, change.attempts);
            return self.end_change(now, operation, OperationState::Failed, format!("it does not report: {last}"));
        }
        match run {
            PowerRun::Ordering { until_ms, .. } if now.mono_ms > *until_ms => {
                self.wait_for_agent(now, &operation.id, "its device did not answer".into());
            }
            PowerRun::Ordering { .. } => {}
            PowerRun::Reading { job: Some(_), read_ms, .. } if now.mono_ms >= *read_ms => {
                if let Some(PowerRun::Reading { job, .. }) = self.power_run_mut(&operation.id) {
                    *job = None;
                }
            }
            PowerRun::Reading { job: None, read_ms, .. } if now.mono_ms >= *read_ms => {
                self.read_power_of(now, &operation.id, &host);
            }
            PowerRun::Reading { .. } => {}
            _ if change.not_before.is_some_and(|time| now.is_before(time)) => {}
            _ => {
                let power = operation.power.get_or_insert_default();
                (power.attempts, power.not_before) = (power.attempts + 1, None);
                operation.message = format!("it is switched on, attempt {}", power.attempts);
                self.save_operation(now, operation.clone());
                let purpose = PowerPurpose::Change { operation: operation.id.clone() };
                let job = self.send_power(&host, PowerAction::On, purpose);
                let until_ms = now.mono_ms + off_within_ms(found.settings.fencing.as_ref()) + LATE_MS;
                self.set_power_run(&operation.id, PowerRun::Ordering { job, until_ms });
            }
        }
    }

    fn wait_for_agent(&mut self, now: Now, id: &str, last: String) {
        let read_ms = now.mono_ms + READ_PERIOD_MS;
        self.set_power_run(id, PowerRun::Reading { job: None, read_ms, ordered_ms: Some(now.mono_ms), last });
        if let Some(mut operation) = self.operation(id) {
            operation.message = "it was switched on, and its agent is waited for".into();
            self.save_operation(now, operation);
        }
    }

    /// Takes what the device of a host says that is to wake.
    fn wake_answered(&mut self, now: Now, mut operation: Operation, answered: u64, result: PowerResult) {
        let Some(run) = self.power_run_mut(&operation.id) else { return };
        match (run, result) {
            (PowerRun::Ordering { job, .. }, result) if *job == Some(answered) => match result {
                PowerResult::Refused(why) => {
                    let power = operation.power.get_or_insert_default();
                    let wait_ms = (self.settings.retry_ms << (power.attempts.clamp(1, 16) - 1)).min(RETRY_MAX_MS);
                    power.not_before = Some(now.in_ms(wait_ms));
                    operation.message = format!("{why}; it is tried again in {} s", wait_ms.div_ceil(1000));
                    self.set_power_run(&operation.id, PowerRun::Idle);
                    self.save_operation(now, operation);
                }
                PowerResult::Unknown(why) => self.wait_for_agent(now, &operation.id, why),
                PowerResult::Accepted | PowerResult::State(..) => {
                    self.wait_for_agent(now, &operation.id, "its agent says nothing".into());
                }
            },
            (PowerRun::Reading { job, read_ms, ordered_ms, last }, result) if *job == Some(answered) => {
                (*job, *read_ms) = (None, now.mono_ms + READ_PERIOD_MS);
                match result {
                    PowerResult::State(PowerState::Off, _) => {
                        *last = "its device says that it is off".into();
                        // A device that was still switching it off has ignored the word.
                        if ordered_ms.is_none_or(|ordered| now.ms_since(ordered) >= AGAIN_MS) {
                            self.set_power_run(&operation.id, PowerRun::Idle);
                        }
                    }
                    PowerResult::State(..) => *last = "its device says that it is on, its agent says nothing".into(),
                    PowerResult::Refused(why) | PowerResult::Unknown(why) => *last = why,
                    PowerResult::Accepted => {}
                }
            }
            _ => {}
        }
    }

    /// Takes what a device says of a host that goes to sleep or wakes.
    pub(super) fn change_answered(&mut self, now: Now, id: &str, answered: u64, result: PowerResult) {
        let Some(operation) = self.operation(id).filter(|found| !found.state.is_over()) else { return };
        match operation.kind {
            OperationKind::Wake { .. } => self.wake_answered(now, operation, answered, result),
            _ => self.sleep_answered(now, operation, answered, result),
        }
    }

    // ---- what both directions share ----

    /// Notes that a host that was told to switch on is not proven to be off.
    fn not_off_any_more(&mut self, now: Now, host: &str, attempts: u32) {
        let contact = self.tables.hosts.get(host).map(|found| found.value.contact);
        if attempts > 0 && contact.is_some_and(Contact::is_off) {
            // Its guests had ended, and are started again once it is there.
            self.note_ended(&self.lost_guests(host));
            self.set_contact(now, host, Contact::Lost);
        }
    }

    /// Remembers what went wrong with a host's power.
    pub(super) fn in_trouble(&mut self, host: &str, what: &str) {
        if let Some(found) = self.tables.hosts.get(host).map(|found| found.value.clone()) {
            let mut power = found.power.clone();
            power.trouble = Some(what.to_owned());
            self.tables.put(host, HostRecord { power, ..found });
        }
    }

    fn clear_trouble(&mut self, host: &str) {
        let found = self.tables.hosts.get(host).map(|found| found.value.clone());
        if let Some(mut found) = found.filter(|found| found.power.trouble.is_some()) {
            found.power.trouble = None;
            self.tables.put(host, found);
        }
    }

    pub(super) fn read_power_of(&mut self, now: Now, operation: &str, host: &str) {
        let purpose = PowerPurpose::Change { operation: operation.to_owned() };
        let sent = self.send_power(host, PowerAction::Read, purpose);
        if let Some(PowerRun::Reading { job, read_ms, .. }) = self.power_run_mut(operation) {
            // An answer that never comes is waited for no longer than this.
            (*job, *read_ms) = (sent, now.mono_ms + READ_WITHIN_MS + LATE_MS);
        }
    }

    pub(super) fn power_run(&self, operation: &str) -> Option<&PowerRun> {
        self.runs.get(operation).map(|run| &run.power)
    }

    pub(super) fn power_run_mut(&mut self, operation: &str) -> Option<&mut PowerRun> {
        self.runs.get_mut(operation).map(|run| &mut run.power)
    }

    pub(super) fn set_power_run(&mut self, operation: &str, new: PowerRun) {
        if let Some(run) = self.power_run_mut(operation) {
            *run = new;
        }
    }

    /// Ends an operation that changes a host's power.
    pub(super) fn end_change(&mut self, now: Now, mut operation: Operation, state: OperationState, message: String) {
        self.withdraw_power(&operation.id);
        (operation.state, operation.message) = (state, message);
        if let Some(power) = &mut operation.power {
            power.not_before = None;
        }
        self.save_operation(now, operation);
    }
}
