//! Hosts are updated one after the other: each is emptied, updated and booted, and takes guests again.
//!
//! ```text
//!  of each host a plan says whether it can be emptied ─▶ the next host is drained ─▶ "updating" is written
//!        ┌───────────────────────────────────────────────────────────────────────────────┘
//!        └▶ its agent takes the order: no guest, and takes none ─▶ it is asked until it is done, and is booted anew
//!             ─▶ the host takes guests again ─▶ its guests come home ─▶ the next host
//! ```
//!
//! The order has an id that is made of the operation and the host. The agent does once what comes under an id, and
//! remembers that over a boot, so any leader may say it again. The commands are the host's own. The first host that
//! fails ends the operation, and stays in maintenance.

use skein_api::cluster::{Contact, HostMode, HostUpdate, HostUpdateState, Operation, OperationKind, OperationState};
use skein_api::{HostUpdateView, Reply, Request, UpdateHow, UpdateRunState};

use super::update_check::numbered;
use crate::records::HostRecord;
use crate::state::{CommandPurpose, Controller, Planted, UpdateRun};
use crate::time::Now;
use crate::words::refusal_words;

/// How often a host's agent is asked how far it is, in milliseconds.
const ASK_PERIOD_MS: u64 = 2_000;
/// How much longer a host takes no guests than it may take, in seconds: its agent says so itself when it is done.
const CLOSED_MORE_S: u64 = 900;
/// How long an agent may have said nothing and still counts as there, in milliseconds.
const SILENT_MS: u64 = 3_000;

/// What is asked for of each host.
struct Terms {
    how: UpdateHow,
    bring_home: bool,
    wait_s: u64,
}

impl Terms {
    fn of(operation: &Operation) -> Option<Terms> {
        match operation.kind {
            OperationKind::Update { how, bring_home, wait_s, .. } => Some(Terms { how, bring_home, wait_s }),
            _ => None,
        }
    }
}

impl Controller {
    /// Advances the operation that updates hosts.
    pub(super) fn advance_update(&mut self, now: Now, mut operation: Operation) {
        let hosts = operation.update.get_or_insert_default().hosts.clone();
        if let Some(index) = hosts.iter().position(|of| of.state.is_under_way()) {
            return match hosts[index].state {
                HostUpdateState::Emptying => self.advance_update_drain(now, operation, index),
                HostUpdateState::Updating => self.advance_updating(now, operation, index),
                _ => self.advance_return(now, operation, index),
            };
        }
        if operation.state == OperationState::Cancelling {
            let message = updated_words(&hosts);
            return self.end_update(now, operation, OperationState::Cancelled, message);
        }
        if operation.state == OperationState::Planning {
            return self.check_next(now, operation);
        }
        match hosts.iter().position(|of| of.state == HostUpdateState::Waiting) {
            Some(index) => self.begin_next(now, operation, index),
            None => self.end_update(now, operation, OperationState::Done, updated_words(&hosts)),
        }
    }

    // ---- the next host ----

    fn begin_next(&mut self, now: Now, mut operation: Operation, index: usize) {
        let (Some(terms), Some(update)) = (Terms::of(&operation), operation.update.clone()) else { return };
        let host = update.hosts[index].host.clone();
        let found = self.tables.hosts.get(&host).map(|found| found.value.clone());
        let left_out = match found.as_ref().map(|found| found.contact) {
            None => Some("it is no host any more"),
            Some(Contact::Asleep) => Some("it sleeps"),
            Some(Contact::Off) => Some("it is off"),
            Some(_) => None,
        };
        if let Some(why) = left_out {
            let of = &mut operation.update.get_or_insert_default().hosts[index];
            (of.state, of.detail, of.ended) = (HostUpdateState::Skipped, why.to_owned(), Some(now.wall));
            return self.save_operation(now, operation);
        }
        let Some(found) = found else { return };
        // A leader before may have begun the drain, and not come to write so.
        let begun = found.drain.as_deref().and_then(|id| self.operation(id));
        let begun = begun.filter(|of| !of.state.is_over() && of.id > operation.id && of.by == operation.by);
        if begun.is_none()
            && let Some(why) = self.update_waits(now, &host, &operation.id)
        {
            return self.wait_for_turn(now, operation, &host, &why, terms.wait_s);
        }
        let release = self.observed.get(&host).and_then(|of| of.hello.as_ref()).map(|hello| hello.release.clone());
        let was_in_maintenance = begun.is_none() && found.mode != HostMode::Active;
        let is_empty = was_in_maintenance && !self.has_guests_now(&host);
        let drain = match begun {
            Some(begun) => Some(begun.id),
            None if is_empty => None,
            None => {
                let follows = found.drain_before();
                let kind = OperationKind::Drain { host: host.clone(), deadline: None, evacuate: false, follows };
                let drain = self.begin_operation(now, kind, OperationState::Planning, &operation.by.clone());
                self.set_mode(&host, found.drained_by(drain.id.clone()));
                Some(drain.id)
            }
        };
        let update = operation.update.get_or_insert_default();
        update.waits_until = None;
        let of = &mut update.hosts[index];
        of.state = HostUpdateState::Emptying;
        (of.was_in_maintenance, of.drain, of.begun) = (was_in_maintenance, drain.clone(), Some(now.wall));
        of.release_before = release;
        let step = drain.map_or("it is empty already".into(), |id| format!("its guests leave, by operation {id}"));
        operation.message = numbered(&operation, index, &step);
        self.save_operation(now, operation);
    }

    /// Says why a host's turn is put off, for as long as a host may take.
    fn wait_for_turn(&mut self, now: Now, mut operation: Operation, host: &str, why: &str, wait_s: u64) {
        let update = operation.update.get_or_insert_default();
        let until = *update.waits_until.get_or_insert(now.in_ms(wait_s * 1000));
        if now.is_over(until, wait_s * 1000) {
            let message =
                format!("{host} was not begun: {why}; once that is over, ask again for the hosts that are left");
            return self.end_update(now, operation, OperationState::Failed, message);
        }
        let message = format!("waits with {host}: {why}");
        if operation.message != message {
            operation.message = message;
            self.save_operation(now, operation);
        }
    }

    // ---- the host is emptied ----

    fn advance_update_drain(&mut self, now: Now, operation: Operation, index: usize) {
        let Some(of) = host_of(&operation, index) else { return };
        let is_cancelling = operation.state == OperationState::Cancelling;
        if !self.tables.hosts.contains_key(&of.host) {
            return self.fail_host(now, operation, index, "it is no host any more");
        }
        let Some(id) = of.drain.clone() else {
            return match is_cancelling {
                true => self.give_host_back(now, operation, index),
                false => self.begin_updating(now, operation, index),
            };
        };
        let drain = self.operation(&id);
        match drain.as_ref().map(|drain| drain.state) {
            _ if self.has(Planted::UpdateDrainForgotten) && !is_cancelling => {
                self.begin_updating(now, operation, index);
            }
            Some(OperationState::Done) if !is_cancelling => {
                if !drain.is_some_and(|drain| self.tells_of_leavers(now, &of.host, &drain)) {
                    self.begin_updating(now, operation, index);
                }
            }
            Some(OperationState::Failed) if !is_cancelling => {
                let why = drain.map(|drain| drain.message).unwrap_or_default();
                self.fail_host(now, operation, index, &format!("it was not emptied: {why}"));
            }
            Some(state) if !state.is_over() => {
                if is_cancelling && state != OperationState::Cancelling {
                    self.cancel(now, &id);
                }
                let waits = drain.map(|drain| drain.message).filter(|message| !message.is_empty());
                let waits = waits.map(|message| format!(": {message}")).unwrap_or_default();
                let message = numbered(&operation, index, &format!("its guests leave, by operation {id}{waits}"));
                if message != operation.message {
                    self.save_operation(now, Operation { message, ..operation });
                }
            }
            _ if is_cancelling => self.give_host_back(now, operation, index),
            _ => self.fail_host(now, operation, index, "its drain was called off"),
        }
    }

    /// Has a host take guests again of which the operation was called off before it was updated.
    fn give_host_back(&mut self, now: Now, mut operation: Operation, index: usize) {
        let Some(of) = host_of(&operation, index) else { return };
        let found = self.tables.hosts.get(&of.host).map(|found| found.value.clone());
        let own = found.filter(|found| of.drain.is_some() && found.drain == of.drain && !of.was_in_maintenance);
        if let Some(found) = own.filter(|found| found.mode != HostMode::Active) {
            self.set_mode(&of.host, HostRecord { mode: HostMode::Active, ..found });
        }
        let of = &mut operation.update.get_or_insert_default().hosts[index];
        (of.state, of.ended) = (HostUpdateState::Skipped, Some(now.wall));
        of.detail = "the update was called off before".into();
        self.save_operation(now, operation);
    }

    // ---- the host is updated ----

    /// Writes that a host is updated. Its agent is told once that is written.
    fn begin_updating(&mut self, now: Now, mut operation: Operation, index: usize) {
        let (Some(terms), Some(of)) = (Terms::of(&operation), host_of(&operation, index)) else { return };
        if self.has_guests_now(&of.host) && !self.has(Planted::UpdateDrainForgotten) {
            return self.fail_host(now, operation, index, "it has a guest again");
        }
        let boot = self.tables.hosts.get(&of.host).and_then(|found| found.value.boot_id.clone());
        let of = &mut operation.update.get_or_insert_default().hosts[index];
        of.boot_before = boot;
        (of.state, of.until) = (HostUpdateState::Updating, Some(now.in_ms(terms.wait_s * 1000)));
        operation.message = numbered(&operation, index, "it has no guest, and its agent is asked to take none");
        self.set_update_run(&operation.id, UpdateRun::default());
        self.save_operation(now, operation);
    }

    fn advance_updating(&mut self, now: Now, operation: Operation, index: usize) {
        let (Some(terms), Some(of)) = (Terms::of(&operation), host_of(&operation, index)) else { return };
        let host = of.host.clone();
        let Some(found) = self.tables.hosts.get(&host).map(|found| found.value.clone()) else {
            return self.fail_host(now, operation, index, "it is no host any more");
        };
        if found.contact.is_off() {
            return self.fail_host(now, operation, index, "somebody said that it is off");
        }
        let is_manual = terms.how == UpdateHow::Manual;
        if is_manual && found.mode == HostMode::Active {
            // The person who updates it has said that it is done.
            return self.end_host(now, operation, index, "somebody has it take guests again");
        }
        let silent_ms = self.silent_ms(now, &host);
        if operation.state == OperationState::Cancelling && (is_manual || silent_ms > self.host_lease_ms()) {
            return self.fail_host(now, operation, index, "the update was called off");
        }
        if of.until.is_some_and(|until| now.is_over(until, terms.wait_s * 1000)) {
            let why = match silent_ms < SILENT_MS {
                true => format!("it was not done in {} s: {}", terms.wait_s, of.detail),
                false => format!("it did not report again in {} s: see its console", terms.wait_s),
            };
            return self.fail_host(now, operation, index, &why);
        }
        if self.reporting(&host).is_none() || silent_ms >= SILENT_MS {
            if of.taken {
                self.tell_step(now, operation, index, "its agent is waited for");
            }
            return;
        }
        let purpose = CommandPurpose::Operate { operation: operation.id.clone() };
        let Some(run) = self.runs.get(&operation.id).map(|run| run.update) else { return };
        let is_soon = run.asked_ms.is_some_and(|asked| now.ms_since(asked) < ASK_PERIOD_MS);
        if self.is_asked(&purpose) || (is_soon && !run.opens) {
            return;
        }
        if !of.taken && self.has_guests_now(&host) && !self.has(Planted::UpdateDrainForgotten) {
            return self.fail_host(now, operation, index, "it has a guest again");
        }
        let Some(session) = self.session_of(&host) else { return };
        self.set_update_run(&operation.id, UpdateRun { asked_ms: Some(now.mono_ms), opens: run.opens });
        let id = match self.has(Planted::UpdateRepeated) {
            true => format!("{}.{host}.{}", operation.id, self.term().unwrap_or_default()),
            false => format!("{}.{host}", operation.id),
        };
        // A host that was booted since has done what was asked, or never will.
        let order = !is_booted(&found, of);
        let for_s = terms.wait_s + CLOSED_MORE_S;
        let request = match run.opens {
            true => Request::HostClose { for_s: 0, power_off: false, stays_on: false },
            false => Request::HostUpdate { id, how: terms.how, order, for_s },
        };
        self.send(session, purpose, None, request);
    }

    /// Takes what a host's agent says of the update.
    pub(super) fn update_answered(&mut self, now: Now, operation: Operation, reply: Reply) {
        let (Some(terms), Some(update)) = (Terms::of(&operation), &operation.update) else { return };
        let Some(index) = update.hosts.iter().position(|of| of.state == HostUpdateState::Updating) else { return };
        let of = &update.hosts[index];
        let opens = self.runs.get(&operation.id).is_some_and(|run| run.update.opens);
        match reply {
            Reply::Done if opens => {
                let host = of.host.clone();
                self.opened(&host, &Reply::Done);
                self.begin_return(now, operation, index);
            }
            Reply::HostUpdate(HostUpdateView { state, message }) if !opens => match state {
                UpdateRunState::Running => {
                    let host = of.host.clone();
                    let step = match terms.how {
                        UpdateHow::Manual => format!(
                            "it has no guest and takes none: update it now, and boot it; if it need not be booted: \
                             skein host resume {host}{}",
                            self.home_option(&host)
                        ),
                        _ => message,
                    };
                    let mut operation = operation;
                    operation.update.get_or_insert_default().hosts[index].taken = true;
                    self.tell_step(now, operation, index, &step);
                }
                UpdateRunState::Done => {
                    let found = self.tables.hosts.get(&of.host).map(|found| &found.value);
                    let is_there = !terms.how.boots() || found.is_some_and(|found| is_booted(found, of));
                    if is_there {
                        self.set_update_run(&operation.id, UpdateRun { asked_ms: None, opens: true });
                    }
                }
                UpdateRunState::Failed => self.fail_host(now, operation, index, &message),
                UpdateRunState::Unknown => {
                    let why = "its agent knows nothing of the order, and the host was booted since";
                    self.fail_host(now, operation, index, why);
                }
            },
            // What goes on goes on: the agent is asked again, after a while.
            Reply::Error(_) if of.taken || opens => {
                self.set_update_run(&operation.id, UpdateRun { asked_ms: Some(now.mono_ms), opens: false });
            }
            Reply::Error(refusal) => {
                let why = format!("its agent says: {}", refusal_words(refusal));
                self.fail_host(now, operation, index, &why);
            }
            _ => {}
        }
    }

    // ---- the host takes guests again ----

    fn begin_return(&mut self, now: Now, mut operation: Operation, index: usize) {
        let (Some(terms), Some(of)) = (Terms::of(&operation), host_of(&operation, index).cloned()) else { return };
        let release = self.observed.get(&of.host).and_then(|of| of.hello.as_ref()).map(|hello| hello.release.clone());
        let entry = &mut operation.update.get_or_insert_default().hosts[index];
        (entry.taken, entry.release_after) = (true, release);
        if of.was_in_maintenance {
            return self.end_host(now, operation, index, "it stays in maintenance, as it was before");
        }
        let Some(found) = self.tables.hosts.get(&of.host).map(|found| found.value.clone()) else { return };
        let drain = found.drain.clone().filter(|_| terms.bring_home);
        // A drain whose guests do not come home is remembered, so that somebody may ask for that.
        let kept = if terms.bring_home { None } else { found.drain.clone() };
        self.set_mode(&of.host, HostRecord { mode: HostMode::Active, drain: kept, ..found });
        let Some(drain) = drain else { return self.end_host(now, operation, index, "") };
        let kind = OperationKind::Resume { host: of.host.clone(), drain };
        let resume = self.begin_operation(now, kind, OperationState::Planning, &operation.by.clone());
        let entry = &mut operation.update.get_or_insert_default().hosts[index];
        (entry.state, entry.resume) = (HostUpdateState::Returning, Some(resume.id.clone()));
        operation.message = numbered(&operation, index, &format!("its guests come home, by operation {}", resume.id));
        self.save_operation(now, operation);
    }

    fn advance_return(&mut self, now: Now, operation: Operation, index: usize) {
        let Some(of) = host_of(&operation, index) else { return };
        let resume = of.resume.as_deref().and_then(|id| self.operation(id));
        if operation.state == OperationState::Cancelling {
            let id = of.resume.clone().unwrap_or_default();
            return self.end_host(now, operation, index, &format!("its guests come home by operation {id}"));
        }
        match resume {
            Some(resume) if !resume.state.is_over() => {}
            Some(resume) if resume.state != OperationState::Done => {
                let why = format!("not all of its guests came home: {}", resume.message);
                self.end_host(now, operation, index, &why);
            }
            _ => self.end_host(now, operation, index, ""),
        }
    }

    // ---- ends ----

    fn end_host(&mut self, now: Now, mut operation: Operation, index: usize, detail: &str) {
        let of = &mut operation.update.get_or_insert_default().hosts[index];
        (of.state, of.detail, of.ended) = (HostUpdateState::Done, detail.to_owned(), Some(now.wall));
        self.set_update_run(&operation.id, UpdateRun::default());
        self.save_operation(now, operation);
    }

    /// Ends the operation with a host that is not updated, or not back. It takes no guests until a person says so.
    fn fail_host(&mut self, now: Now, mut operation: Operation, index: usize, why: &str) {
        let is_called_off = operation.state == OperationState::Cancelling;
        let of = &mut operation.update.get_or_insert_default().hosts[index];
        (of.state, of.detail, of.ended) = (HostUpdateState::Failed, why.to_owned(), Some(now.wall));
        let host = of.host.clone();
        let state = if is_called_off { OperationState::Cancelled } else { OperationState::Failed };
        let message = format!(
            "{host}: {why}; it stays in maintenance, and no further host was begun: once it is well, skein host resume \
             {host} --bring-home"
        );
        self.end_update(now, operation, state, message);
    }

    fn end_update(&mut self, now: Now, mut operation: Operation, state: OperationState, message: String) {
        (operation.state, operation.message) = (state, message);
        operation.update.get_or_insert_default().waits_until = None;
        self.save_operation(now, operation);
    }

    /// Says what is done with a host.
    fn tell_step(&mut self, now: Now, mut operation: Operation, index: usize, step: &str) {
        operation.update.get_or_insert_default().hosts[index].detail = step.to_owned();
        operation.message = numbered(&operation, index, step);
        // What is written again and again is read again and again.
        if self.operation(&operation.id).as_ref() != Some(&operation) {
            self.save_operation(now, operation);
        }
    }

    fn set_update_run(&mut self, id: &str, new: UpdateRun) {
        if let Some(run) = self.runs.get_mut(id) {
            run.update = new;
        }
    }

    /// Returns the operation that updates a host now, whose agent has been told, or is about to be: then the host may
    /// be booted at any time, and is not lost when it says nothing.
    pub(crate) fn updating(&self, host: &str) -> Option<&Operation> {
        let is_it = |of: &HostUpdate| of.host == host && of.state == HostUpdateState::Updating;
        self.open_operations().find(|found| found.update.iter().flat_map(|of| &of.hosts).any(is_it))
    }

    /// Says which host waits for a person who updates it.
    pub(crate) fn update_attention(&self) -> Option<String> {
        let is_manual = |of: &&Operation| matches!(of.kind, OperationKind::Update { how: UpdateHow::Manual, .. });
        let mut open = self.open_operations().filter(is_manual).filter_map(|of| Some((of, of.update.as_ref()?)));
        open.find_map(|(operation, update)| {
            let waits = |of: &HostUpdate| of.state == HostUpdateState::Updating && of.taken;
            update.hosts.iter().any(waits).then(|| operation.message.clone())
        })
    }

    /// Returns whether a host was left in maintenance by an update.
    pub(crate) fn was_left_by_update(&self, host: &str) -> bool {
        let is_it = |of: &HostUpdate| of.host == host && of.state == HostUpdateState::Failed;
        self.tables.operations.values().any(|found| found.value.update.iter().flat_map(|of| &of.hosts).any(is_it))
    }

    /// Returns why the next host has to wait. `None`: nothing is in the way.
    fn update_waits(&self, now: Now, host: &str, own: &str) -> Option<String> {
        let is_lost = |(_, of): &(&String, &crate::tables::Stored<HostRecord>)| of.value.contact == Contact::Lost;
        if let Some((lost, _)) = self.tables.hosts.iter().find(is_lost) {
            return Some(format!("{lost} does not report"));
        }
        let is_other = |of: &&Operation| {
            matches!(
                of.kind,
                OperationKind::Failover { .. }
                    | OperationKind::Fence { .. }
                    | OperationKind::Drain { .. }
                    | OperationKind::Sleep { .. }
                    | OperationKind::Wake { .. }
                    | OperationKind::Autostart { .. }
            )
        };
        if let Some(open) = self.open_operations().find(is_other) {
            return Some(format!("operation {} is under way", open.id));
        }
        if self.reporting(host).is_none() || self.silent_ms(now, host) >= SILENT_MS {
            return Some("its agent does not report".into());
        }
        self.is_busy(host, Some(own))
    }
}

fn host_of(operation: &Operation, index: usize) -> Option<&HostUpdate> {
    operation.update.as_ref()?.hosts.get(index)
}

/// Returns whether a host was booted since its turn came.
fn is_booted(found: &HostRecord, of: &HostUpdate) -> bool {
    found.boot_id.is_some() && found.boot_id != of.boot_before
}

/// Says how many hosts are updated, and which were left out.
fn updated_words(hosts: &[HostUpdate]) -> String {
    let done = hosts.iter().filter(|of| of.state == HostUpdateState::Done).count();
    let mut words = vec![format!("{done} of {} hosts are updated", hosts.len())];
    let told = hosts.iter().filter(|of| !of.detail.is_empty() && of.state.is_over());
    words.extend(told.map(|of| match of.state {
        HostUpdateState::Skipped => format!("{} was left out: {}", of.host, of.detail),
        _ => format!("{}: {}", of.host, of.detail),
    }));
    words.join("; ")
}
