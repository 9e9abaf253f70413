//! A host that is not needed is emptied, and shut down in order.
//!
//! ```text
//!  the device is tried ─▶ the host is drained ─▶ "stopping" is written ─▶ its agent says: no guest, and takes none
//!        ┌────────────────────────────────────────────────────────────────────────┘
//!        └▶ the attempt is written ─▶ shut down ─▶ the power is read until it is off, and the agent silent
//! ```
//!
//! A host is told to shut down only right after its agent has said, to this leader, that it has no guest and takes
//! none: what a leader before had heard does not count. A host that is being shut down is not lost, however silent.

use skein_api::cluster::{
    Contact, HostMode, Operation, OperationKind, OperationState, PowerChange, PowerStage, PowerState, SleepBy,
};
use skein_api::{Reply, Request};

use super::fence::{LATE_MS, READ_WITHIN_MS, off_within_ms};
use crate::answer::Answer;
use crate::ask::no_host;
use crate::live::ram_for_guests;
use crate::records::{AsleepRecord, HostRecord, PowerRecord};
use crate::state::{CommandPurpose, Controller, Planted, PowerAction, PowerPurpose, PowerResult, PowerRun};
use crate::time::Now;
use crate::words::refusal_words;

/// The seconds for which a host takes no guests that is about to be shut down: longer than it may take.
const CLOSED_S: u64 = 900;
/// How long an agent has to have said nothing so that its host counts as off, in milliseconds: some report periods.
const SILENT_MS: u64 = 3_000;
/// How often it is read whether the host is off, in milliseconds.
const READ_PERIOD_MS: u64 = 2_000;
/// After how long a host that still reports is told again to shut down, in milliseconds.
const AGAIN_MS: u64 = 60_000;

impl Controller {
    /// Begins to put a host to sleep, as somebody asks for.
    pub(crate) fn sleep_host(&mut self, now: Now, host: &str, by: &str) -> Answer {
        if !self.tables.hosts.contains_key(host) {
            return no_host(host);
        }
        if let Some(why) = self.sleep_bar(host, None) {
            let cure = format!("see what keeps hosts awake in docs/power.md, and skein host show {host}");
            return Answer::conflict(format!("'{host}' does not go to sleep: {why}"), cure);
        }
        Answer::Operation(Box::new(self.begin_sleep(now, host, false, by, Vec::new())))
    }

    pub(crate) fn begin_sleep(
        &mut self,
        now: Now,
        host: &str,
        automatic: bool,
        by: &str,
        reasons: Vec<String>,
    ) -> Operation {
        let kind = OperationKind::Sleep { host: host.to_owned(), automatic };
        let mut operation = self.unsaved_operation(now, kind, OperationState::Running, by);
        let was_in_maintenance = self.tables.hosts.get(host).is_some_and(|found| found.value.mode != HostMode::Active);
        operation.power = Some(PowerChange { was_in_maintenance, reasons, ..PowerChange::default() });
        self.keep_operation(now, operation)
    }

    /// Advances the operation that puts a host to sleep.
    pub(super) fn advance_sleep(&mut self, now: Now, operation: Operation) {
        let OperationKind::Sleep { host, .. } = operation.kind.clone() else { return };
        let Some(contact) = self.tables.hosts.get(&host).map(|found| found.value.contact) else {
            return self.end_change(now, operation, OperationState::Failed, "it is no host any more".into());
        };
        match operation.power.as_ref().map(|power| power.stage) {
            Some(PowerStage::Stopping) if contact.is_off() => {
                self.end_change(now, operation, OperationState::Failed, "somebody said that it is off".into());
            }
            Some(PowerStage::Stopping) => self.advance_stop(now, operation, &host),
            _ => self.advance_emptying(now, operation, &host),
        }
    }

    // ---- the host is emptied ----

    fn advance_emptying(&mut self, now: Now, mut operation: Operation, host: &str) {
        let is_cancelling = operation.state == OperationState::Cancelling;
        let Some(id) = operation.power.as_ref().and_then(|power| power.drain.clone()) else {
            if is_cancelling {
                return self.end_change(now, operation, OperationState::Cancelled, String::new());
            }
            return self.begin_emptying(now, operation, host);
        };
        let drain = self.operation(&id);
        match drain.as_ref().map(|drain| drain.state) {
            Some(OperationState::Done) if !is_cancelling => {
                if drain.is_some_and(|drain| self.tells_of_leavers(now, host, &drain)) {
                    return;
                }
                if let Some(why) = self.bar_of_stop(&operation, host) {
                    self.give_back(&operation, host);
                    return self.end_change(now, operation, OperationState::Failed, why);
                }
                let until = now.in_ms(self.settings.stop_within_ms);
                // A later leader may never hear of it, and is to know what room there would be.
                let facts = self.observed.get(host).and_then(|observed| observed.facts.as_ref());
                let power = operation.power.get_or_insert_default();
                (power.stage, power.until) = (PowerStage::Stopping, Some(until));
                (power.cpus, power.ram_bytes) = facts.map_or((0, 0), |facts| (facts.cpus, ram_for_guests(facts, 0)));
                operation.message = "it is empty, and its agent is asked to take no guest".into();
                self.set_power_run(&operation.id, PowerRun::Idle);
                self.save_operation(now, operation);
            }
            Some(OperationState::Failed) if !is_cancelling => {
                let why = drain.map(|drain| drain.message).unwrap_or_default();
                self.give_back(&operation, host);
                self.end_change(now, operation, OperationState::Failed, format!("it was not emptied: {why}"));
            }
            Some(state) if !state.is_over() => {
                if is_cancelling && state != OperationState::Cancelling {
                    self.cancel(now, &id);
                }
            }
            _ => {
                self.give_back(&operation, host);
                self.end_change(now, operation, OperationState::Cancelled, "its drain was called off".into());
            }
        }
    }

    /// Returns why a host that was emptied is not shut down.
    fn bar_of_stop(&self, operation: &Operation, host: &str) -> Option<String> {
        self.sleep_bar(host, Some(&operation.id))
            .or_else(|| self.has_guests_now(host).then(|| "it has a guest again".into()))
    }

    /// Tries the device, and begins the drain.
    fn begin_emptying(&mut self, now: Now, mut operation: Operation, host: &str) {
        let Some(found) = self.tables.hosts.get(host).map(|found| found.value.clone()) else { return };
        // A leader before may have begun the drain, and not come to write so.
        let begun = found.drain.as_deref().and_then(|id| self.operation(id));
        if let Some(begun) = begun.filter(|of| !of.state.is_over() && of.id > operation.id && of.by == operation.by) {
            operation.power.get_or_insert_default().drain = Some(begun.id);
            return self.save_operation(now, operation);
        }
        if let Some(why) = self.sleep_bar(host, Some(&operation.id)) {
            return self.end_change(now, operation, OperationState::Failed, why);
        }
        match self.power_run(&operation.id) {
            Some(PowerRun::Checking { until_ms, .. }) if now.mono_ms > *until_ms => {
                self.in_trouble(host, "its device did not answer when it was to go to sleep");
                let why = "its device does not answer".into();
                self.end_change(now, operation, OperationState::Failed, why);
            }
            Some(PowerRun::Checking { .. }) | None => {}
            Some(PowerRun::Checked) => {
                let kind = OperationKind::Drain {
                    host: host.to_owned(),
                    deadline: None,
                    evacuate: false,
                    follows: found.drain_before(),
                };
                let drain = self.begin_operation(now, kind, OperationState::Planning, &operation.by.clone());
                let id = drain.id;
                self.set_mode(host, found.drained_by(id.clone()));
                operation.message = format!("its guests leave, by operation {id}");
                operation.power.get_or_insert_default().drain = Some(id);
                self.save_operation(now, operation);
            }
            Some(_) => {
                let shutdown = found.settings.sleep == SleepBy::Device;
                let purpose = PowerPurpose::Change { operation: operation.id.clone() };
                if let Some(job) = self.send_power(host, PowerAction::Check { shutdown }, purpose) {
                    let until_ms = now.mono_ms + READ_WITHIN_MS + LATE_MS;
                    self.set_power_run(&operation.id, PowerRun::Checking { job, until_ms });
                }
            }
        }
    }

    // ---- the host is shut down ----

    fn advance_stop(&mut self, now: Now, operation: Operation, host: &str) {
        let reports = self.reporting(host).is_some() && self.silent_ms(now, host) < SILENT_MS;
        let until = operation.power.as_ref().and_then(|power| power.until);
        // While a host is being shut down it is never lost: a clock that is set back must not make that longer.
        let is_late = until.is_some_and(|until| now.is_over(until, self.settings.stop_within_ms));
        let purpose = CommandPurpose::Operate { operation: operation.id.clone() };
        let Some(run) = self.power_run(&operation.id) else { return };
        if is_late {
            let last = match run {
                PowerRun::Reading { last, .. } => last.clone(),
                _ => "its agent did not say that it takes no guest".into(),
            };
            return self.not_asleep(now, operation, host, &last);
        }
        match run {
            PowerRun::Ordering { until_ms, .. } if now.mono_ms > *until_ms => {
                self.read_until_asleep(now, &operation.id, "no answer came when it was to be shut down".into());
            }
            PowerRun::Ordering { .. } => {}
            PowerRun::Closing if self.is_asked(&purpose) => {}
            // Its reply is lost.
            PowerRun::Closing => self.set_power_run(&operation.id, PowerRun::Idle),
            PowerRun::Reading { ordered_ms, .. }
                if reports && ordered_ms.is_none_or(|ordered| now.ms_since(ordered) >= AGAIN_MS) =>
            {
                self.set_power_run(&operation.id, PowerRun::Idle);
            }
            PowerRun::Reading { job: Some(_), read_ms, .. } if now.mono_ms >= *read_ms => {
                if let Some(PowerRun::Reading { job, .. }) = self.power_run_mut(&operation.id) {
                    *job = None;
                }
            }
            PowerRun::Reading { job: None, read_ms, .. } if now.mono_ms >= *read_ms => {
                self.read_power_of(now, &operation.id, host);
            }
            PowerRun::Reading { .. } => {}
            _ if reports => self.close(now, operation, host),
            // It may be off by the word of a leader before.
            _ if self.silent_ms(now, host) >= SILENT_MS => {
                self.read_until_asleep(now, &operation.id, "its agent says nothing".into());
                if let Some(PowerRun::Reading { ordered_ms, .. }) = self.power_run_mut(&operation.id) {
                    *ordered_ms = None;
                }
            }
            _ => {}
        }
    }

    /// Asks a host's agent to take no guests.
    fn close(&mut self, now: Now, operation: Operation, host: &str) {
        let is_cancelling = operation.state == OperationState::Cancelling;
        if is_cancelling && !was_told(&operation, 1) {
            self.give_back(&operation, host);
            return self.end_change(now, operation, OperationState::Cancelled, String::new());
        }
        if self.has_guests_now(host) {
            self.give_back(&operation, host);
            let why = "it has a guest again".into();
            return self.end_change(now, operation, OperationState::Failed, why);
        }
        if self.has(Planted::ClosingForgotten) {
            return self.order_stop(now, operation, host);
        }
        let Some(session) = self.session_of(host) else { return };
        let purpose = CommandPurpose::Operate { operation: operation.id.clone() };
        self.set_power_run(&operation.id, PowerRun::Closing);
        self.send(session, purpose, None, Request::HostClose { for_s: CLOSED_S, power_off: false, stays_on: false });
    }

    /// Takes an agent's answer: that its host takes no guests, or is being shut down.
    pub(super) fn told_to_stop(&mut self, now: Now, operation: Operation, reply: Reply) {
        let OperationKind::Sleep { host, .. } = operation.kind.clone() else { return };
        let is_done = reply == Reply::Done;
        let why = match reply {
            Reply::Error(refusal) => refusal_words(refusal),
            _ => "its agent answered something else than was asked".into(),
        };
        match self.power_run(&operation.id) {
            Some(PowerRun::Closing) if is_done => self.order_stop(now, operation, &host),
            Some(PowerRun::Ordering { job: None, .. }) if is_done => {
                self.read_until_asleep(now, &operation.id, String::new());
            }
            Some(PowerRun::Closing) => {
                self.give_back(&operation, &host);
                self.end_change(now, operation, OperationState::Failed, format!("its agent says: {why}"));
            }
            Some(PowerRun::Ordering { job: None, .. }) => self.stop_refused(now, operation, &host, why),
            _ => {}
        }
    }

    /// Writes that the host is told to shut down, and then tells it.
    fn order_stop(&mut self, now: Now, mut operation: Operation, host: &str) {
        let Some(settings) = self.tables.hosts.get(host).map(|found| found.value.settings.clone()) else { return };
        operation.power.get_or_insert_default().attempts += 1;
        operation.message = "it has no guest, takes none, and is shut down".into();
        self.save_operation(now, operation.clone());
        let mut run = PowerRun::Ordering { job: None, until_ms: now.mono_ms + READ_WITHIN_MS + LATE_MS };
        if settings.sleep == SleepBy::Agent {
            let Some(session) = self.session_of(host) else { return };
            let purpose = CommandPurpose::Operate { operation: operation.id.clone() };
            self.send(session, purpose, None, Request::HostClose { for_s: CLOSED_S, power_off: true, stays_on: false });
        } else {
            let purpose = PowerPurpose::Change { operation: operation.id.clone() };
            let job = self.send_power(host, PowerAction::Shutdown, purpose);
            run =
                PowerRun::Ordering { job, until_ms: now.mono_ms + off_within_ms(settings.fencing.as_ref()) + LATE_MS };
        }
        self.set_power_run(&operation.id, run);
    }

    /// Takes a refusal of the order to shut down. It says nothing of an order before, which may be carried out yet.
    fn stop_refused(&mut self, now: Now, mut operation: Operation, host: &str, why: String) {
        if was_told(&operation, 2) {
            return self.read_until_asleep(now, &operation.id, why);
        }
        operation.power.get_or_insert_default().attempts = 0;
        self.not_asleep(now, operation, host, &why);
    }

    fn read_until_asleep(&mut self, now: Now, operation: &str, last: String) {
        let run = PowerRun::Reading { job: None, read_ms: now.mono_ms, ordered_ms: Some(now.mono_ms), last };
        self.set_power_run(operation, run);
    }

    /// Takes what the device of a host says that goes to sleep.
    pub(super) fn sleep_answered(&mut self, now: Now, operation: Operation, answered: u64, result: PowerResult) {
        let OperationKind::Sleep { host, .. } = operation.kind.clone() else { return };
        let is_silent = self.silent_ms(now, &host) >= SILENT_MS || self.has(Planted::SleeperTrusted);
        let Some(run) = self.power_run_mut(&operation.id) else { return };
        match (run, result) {
            (PowerRun::Checking { job, .. }, result) if *job == answered => {
                let why = match result {
                    PowerResult::State(PowerState::On, _) => {
                        return self.set_power_run(&operation.id, PowerRun::Checked);
                    }
                    PowerResult::State(..) => "its device does not say that it is on: is it another host's?".into(),
                    PowerResult::Refused(why) | PowerResult::Unknown(why) => why,
                    PowerResult::Accepted => "its device answered something else".into(),
                };
                self.in_trouble(&host, &format!("its device cannot do what is needed to put it to sleep: {why}"));
                self.end_change(now, operation, OperationState::Failed, why);
            }
            (PowerRun::Ordering { job: Some(job), .. }, result) if *job == answered => match result {
                PowerResult::Refused(why) => self.stop_refused(now, operation, &host, why),
                PowerResult::Unknown(why) => self.read_until_asleep(now, &operation.id, why),
                PowerResult::Accepted | PowerResult::State(..) => {
                    self.read_until_asleep(now, &operation.id, String::new());
                }
            },
            (PowerRun::Reading { job, read_ms, last, .. }, result) if *job == Some(answered) => {
                (*job, *read_ms) = (None, now.mono_ms + READ_PERIOD_MS);
                match result {
                    PowerResult::State(PowerState::Off, _) if is_silent => self.fell_asleep(now, operation, &host),
                    PowerResult::State(PowerState::Off, _) => {
                        *last = "its device says that it is off, and its agent reports".into();
                    }
                    PowerResult::State(..) => *last = "its device says that it is on".into(),
                    PowerResult::Refused(why) | PowerResult::Unknown(why) => *last = why,
                    PowerResult::Accepted => {}
                }
            }
            _ => {}
        }
    }

    /// Notes that a host sleeps: its device says that it is off, and its agent says nothing.
    fn fell_asleep(&mut self, now: Now, operation: Operation, host: &str) {
        let Some(found) = self.tables.hosts.get(host).map(|found| found.value.clone()) else { return };
        let change = operation.power.clone().unwrap_or_default();
        let asleep = AsleepRecord {
            since: now.wall,
            by: operation.by.clone(),
            automatic: matches!(operation.kind, OperationKind::Sleep { automatic: true, .. }),
            cpus: change.cpus,
            ram_bytes: change.ram_bytes,
        };
        let mode = mode_before(&operation);
        let power = PowerRecord { asleep: Some(asleep), ..found.power.clone() };
        // Its guests come home once it is awake, if somebody asks for that.
        let drain = found.drain.clone().filter(|drain| !self.away(host, drain).is_empty());
        let (contact, contact_since, guests_stay_away) = (Contact::Asleep, now.wall, drain.is_some());
        let record = HostRecord { contact, contact_since, mode, drain, guests_stay_away, power, ..found };
        self.set_mode(host, record);
        self.looks.note_off(host);
        self.forget_said(host, "the host sleeps");
        self.end_change(now, operation, OperationState::Done, "it sleeps".into());
    }

    /// Notes that a host did not go to sleep: it takes guests again, and is not put to sleep by anybody until somebody
    /// has looked.
    fn not_asleep(&mut self, now: Now, operation: Operation, host: &str, why: &str) {
        self.in_trouble(host, &format!("it did not go to sleep: {why}"));
        self.give_back(&operation, host);
        let stays = match was_told(&operation, 1) {
            true => format!(
                "; it stays in maintenance, as it may shut down yet: once it will not, skein host resume {host}{}",
                self.home_option(host)
            ),
            false => String::new(),
        };
        self.end_change(now, operation, OperationState::Failed, format!("{why}{stays}"));
    }

    /// Has a host take guests again that does not go to sleep. A host that was told to shut down may do so late: it
    /// takes none until a person says so.
    fn give_back(&mut self, operation: &Operation, host: &str) {
        if was_told(operation, 1) {
            return;
        }
        let own = operation.power.as_ref().and_then(|power| power.drain.as_ref());
        let found = self.tables.hosts.get(host).map(|found| found.value.clone());
        if let Some(found) = found.filter(|found| own.is_some() && found.drain.as_ref() == own) {
            let mode = mode_before(operation);
            if found.mode != mode {
                self.set_mode(host, HostRecord { mode, ..found });
            }
        }
        let is_closed = operation.power.as_ref().is_some_and(|power| power.stage == PowerStage::Stopping);
        if let Some(session) = self.session_of(host).filter(|_| is_closed) {
            self.send(
                session,
                CommandPurpose::Reopen,
                None,
                Request::HostClose { for_s: 0, power_off: false, stays_on: false },
            );
        }
    }
}

/// Returns whether a host was told to shut down, or was about to be, so many times.
fn was_told(operation: &Operation, times: u32) -> bool {
    operation.power.as_ref().is_some_and(|power| power.attempts >= times)
}

fn mode_before(operation: &Operation) -> HostMode {
    let was_in_maintenance = operation.power.as_ref().is_some_and(|power| power.was_in_maintenance);
    if was_in_maintenance { HostMode::Maintenance } else { HostMode::Active }
}
