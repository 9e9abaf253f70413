//! Decides about the migrations: one thread has the state of all migrations of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use skein_handover::{
    MigrationEvent, MigrationId, MigrationLimits, MigrationPhase, MigrationSummary, Order, Outcome, Record,
    RefusedStart, Report, Role, SourceOrder, SourcePhase, TargetOrder, WriteResult, last_records, needed,
};
use skein_host::CpuLatency;
use skein_inventory::facts::MigrationSlots;
use skein_journal::{Journal, JournalLimits};
use tracing::{error, warn};

use super::context::Context;
use super::hold_terms::{HoldTerms, WindowState};
use super::input::{Action, Capacity, Input, Manager, NewMigration, OwnerInput, StartRefused, WorkerInput};
use super::offer::Offer;
use super::source;
use super::target;
use crate::clock::wait_until;
use crate::error_chain;
use crate::events::AgentEvent;
use crate::peers::PeerEvent;
use crate::to_api::ToApi;
use crate::vms::{Involvement, Killed, Vm};

/// Bounds the orders that wait for a worker. An order that finds no room is given again.
const WORKER_INPUTS_MAX: usize = 64;
/// Reserves records of the journal for what the migrations under way may still need.
const JOURNAL_RECORDS_RESERVED: usize = 64;
/// Bounds the wait for a killed process. The process is gone by then, unless the kernel holds it.
const KILL_TIME: Duration = Duration::from_secs(10);
/// Bounds the time that an agent that ends waits for its workers.
const STOP_TIME: Duration = Duration::from_millis(1200);

/// How often it is checked whether a window has opened.
const WINDOW_CHECK_PERIOD: Duration = Duration::from_secs(1);

/// The thread that obeys a migration's orders.
struct WorkerHandle {
    jobs: SyncSender<WorkerInput>,
    thread: thread::JoinHandle<()>,
}

/// See the [module](self).
pub(super) struct Owner {
    context: Arc<Context>,
    manager: Manager,
    /// The journal; `None` while it cannot be opened again.
    journal: Option<Journal<Record>>,
    /// The records in the journal.
    records: Vec<Record>,
    workers: BTreeMap<MigrationId, WorkerHandle>,
    limits: MigrationLimits,
    /// The windows in which held guests switch by themselves.
    windows: BTreeMap<MigrationId, HoldTerms>,
    /// The guests that run here now, and are not saved yet as VMs of this host.
    arrived: Vec<Arc<Vm>>,
    /// The kills on this host, in words, that the peer of a migration is told.
    kills: BTreeMap<MigrationId, BTreeSet<String>>,
    /// Keeps CPUs from deep sleep while guests move: each wait of a copy's threads would be longer by that.
    cpu_latency: Option<CpuLatency>,
    epoch: Instant,
}

impl Owner {
    /// Takes up the migrations in `records`, which the journal holds.
    pub(super) fn new(
        context: Arc<Context>,
        limits: MigrationLimits,
        journal: Journal<Record>,
        records: Vec<Record>,
    ) -> Owner {
        let manager = Manager::new(Duration::ZERO, limits, &records);
        context.journal.holds(&journal);
        let journal = Some(journal);
        let mut owner = Owner {
            context,
            manager,
            journal,
            records,
            workers: BTreeMap::new(),
            limits,
            windows: BTreeMap::new(),
            arrived: Vec::new(),
            kills: BTreeMap::new(),
            cpu_latency: None,
            epoch: Instant::now(),
        };
        // A new agent does not know QEMU's states: the workers report them.
        for (id, begun) in last_records(&owner.records) {
            if !begun.is_settled() {
                owner.context.view.begin(id, &begun.vm, role_of(&begun), &begun.peer);
                owner.employ(id, WorkerInput::Look);
            }
        }
        let last_records = last_records(&owner.records);
        owner.context.view.end_unbegun(|id| last_records.get(&id).is_some_and(|begun| !begun.is_settled()));
        owner
    }

    /// Works until [`OwnerInput::Stop`] comes.
    pub(super) fn run(mut self, items: Receiver<OwnerInput>) {
        skein_host::raise_thread_priority();
        self.perform();
        loop {
            let now = self.epoch.elapsed();
            let mut wait = self.manager.next_timeout().map_or(Duration::from_secs(60), |at| at.saturating_sub(now));
            if !self.windows.is_empty() {
                // The host's clock may be set meanwhile.
                wait = wait.min(WINDOW_CHECK_PERIOD);
            }
            match items.recv_timeout(wait) {
                Ok(OwnerInput::Stop) | Err(RecvTimeoutError::Disconnected) => return self.stop_workers(),
                Ok(item) => self.take(item),
                Err(RecvTimeoutError::Timeout) => self.manager.handle_timeout(self.epoch.elapsed()),
            }
            self.check_windows(jiff::Timestamp::now());
            self.perform();
            self.keep_cpus_awake();
        }
    }

    /// Keeps CPUs from deep sleep while a guest is copied. A guest that is held is kept fresh for hours, maybe.
    fn keep_cpus_awake(&mut self) {
        let is_copied = |of: &MigrationSummary| of.outcome.is_none() && !of.is_to_be_held;
        match (self.manager.summaries().iter().any(is_copied), &self.cpu_latency) {
            (false, Some(_)) => self.cpu_latency = None,
            // Without the device, or the right to it, migrations are a little slower.
            (true, None) => self.cpu_latency = CpuLatency::hold().ok(),
            _ => {}
        }
    }

    fn take(&mut self, item: OwnerInput) {
        let now = self.epoch.elapsed();
        match item {
            OwnerInput::Peer(PeerEvent::Contact(host, contact)) => {
                if contact {
                    self.repeat_kills(&host);
                }
                self.manager.handle(now, Input::Contact(host, contact))
            }
            OwnerInput::Peer(PeerEvent::Message(host, message)) => {
                self.manager.handle(now, Input::Message(host, message))
            }
            OwnerInput::Peer(PeerEvent::NotUnderstood(host, words)) => {
                self.manager.handle(now, Input::NotUnderstood(host, words));
            }
            OwnerInput::Peer(PeerEvent::UnreadableOffer { host: peer, id, vm, reason }) => {
                self.manager.handle(now, Input::UnreadableOffer { peer, id, vm, reason });
            }
            OwnerInput::Inputs(inputs) => inputs.into_iter().for_each(|input| self.manager.handle(now, input)),
            OwnerInput::Start(new, hold, reply) => {
                let _ = reply.send(self.start(now, *new, hold));
            }
            OwnerInput::Cancel(id, reply) => {
                let _ = reply.send(self.manager.cancel(now, id));
            }
            OwnerInput::Switch(id, deadline, reply) => {
                let switches = self.manager.switch(now, id, deadline);
                if switches.is_ok() {
                    // Who says so need not wait for the window, nor end with it.
                    self.windows.remove(&id);
                    self.context.view.emit(id, None, &AgentEvent::HoldEnds { why: "somebody says so".into() });
                }
                let _ = reply.send(switches);
            }
            OwnerInput::Capacity(reply) => {
                let _ = reply.send(self.capacity());
            }
            OwnerInput::Killed(vm, killed) => self.killed(now, &vm, &killed),
            OwnerInput::Peer(PeerEvent::Note(host, id, text)) => {
                // A host may only speak of migrations with itself. What may have been lost is told again.
                let is_its_own = self.manager.summary(id).is_some_and(|summary| summary.peer == host);
                if is_its_own && !self.context.view.has_note(id, &text) {
                    self.context.view.emit(id, None, &AgentEvent::Told { text });
                }
            }
            OwnerInput::Stop => {}
        }
    }

    /// Tells of a kill in all migrations to and from this host, at both ends: the kill may have to do with any of them.
    fn killed(&mut self, now: Duration, vm: &str, killed: &Killed) {
        let text = killed.text(vm, self.context.peers.host());
        for summary in self.manager.summaries() {
            self.context.view.emit(summary.id, None, &AgentEvent::Told { text: text.clone() });
            self.context.peers.note(&summary.peer, summary.id, &text);
            self.kills.entry(summary.id).or_default().insert(text.clone());
            if summary.vm == vm && summary.outcome.is_none() {
                self.manager.handle(now, Input::Detail(summary.id, text.clone()));
            }
        }
    }

    /// Tells a host again what it may not have heard while it was out of contact.
    fn repeat_kills(&self, host: &str) {
        for (id, texts) in &self.kills {
            if self.manager.summary(*id).is_some_and(|summary| summary.peer == host) {
                texts.iter().for_each(|text| self.context.peers.note(host, *id, text));
            }
        }
    }

    /// Returns what this host could still take on.
    fn capacity(&mut self) -> Capacity {
        let used = |role| {
            let of_role = |summary: &&MigrationSummary| summary.role == role && summary.outcome.is_none();
            self.manager.summaries().iter().filter(of_role).count() as u32
        };
        let (incoming, outgoing) = (used(Role::Target), used(Role::Source));
        Capacity {
            incoming: MigrationSlots { limit: self.limits.incoming as u32, used: incoming },
            outgoing: MigrationSlots { limit: self.limits.outgoing as u32, used: outgoing },
            kept_ram_bytes: self.context.kept.ram_bytes(),
            journal: self.journal_ready(),
        }
    }

    /// Begins a migration.
    ///
    /// # Errors
    /// The journal takes nothing, or the manager refuses the migration.
    fn start(&mut self, now: Duration, new: NewMigration, hold: Option<HoldTerms>) -> Result<(), StartRefused> {
        // A migration that is begun must be able to end.
        self.journal_ready().map_err(StartRefused::Journal)?;
        let (id, vm, peer) = (new.id, new.vm.clone(), new.peer.clone());
        self.context.view.begin(id, &vm, Role::Source, &peer);
        self.manager.start(now, new).map_err(|refused| {
            self.context.view.drop(id);
            match refused {
                RefusedStart::UnderWay(id) => StartRefused::UnderWay(id),
                RefusedStart::TooMany => StartRefused::TooMany,
            }
        })?;
        if let Ok(vm) = self.context.vms.get(&vm) {
            vm.set_involvement(Involvement::Moving(id));
        }
        if let Some(terms) = hold {
            self.context.view.set_hold(id, terms.clone());
            self.windows.insert(id, terms);
        }
        Ok(())
    }

    /// Has held guests switch whose window has opened, and calls off those whose window is over.
    fn check_windows(&mut self, clock: jiff::Timestamp) {
        let now = self.epoch.elapsed();
        for (id, terms) in std::mem::take(&mut self.windows) {
            let Some(summary) = self.manager.summary(id).filter(|summary| summary.outcome.is_none()) else { continue };
            match terms.window(clock) {
                None => {}
                Some(WindowState::Ahead) => drop(self.windows.insert(id, terms)),
                Some(WindowState::Open) => {
                    // The end of the window is waited for.
                    self.windows.insert(id, terms);
                    if summary.is_to_be_held && self.manager.switch(now, id, None).is_ok() {
                        let why = "its window has opened".into();
                        self.context.view.emit(id, None, &AgentEvent::HoldEnds { why });
                    }
                }
                Some(WindowState::Over) => {
                    self.manager.handle(now, Input::Detail(id, "its window to switch in is over".into()));
                    self.manager.end_hold(now, id);
                }
            }
        }
    }

    /// Checks that the journal and the state directory take what a few more migrations write.
    ///
    /// # Errors
    /// The reason why not, in words.
    fn journal_ready(&mut self) -> Result<(), String> {
        let Some(journal) = self.journal() else { return Err("it cannot be opened".into()) };
        journal.ready(JOURNAL_RECORDS_RESERVED / 2).map_err(|error| error_chain(&error))?;
        // The journal's room is reserved on the disk. The room of a VM's other files is not.
        let dirs = &self.context.dirs;
        dirs.ready().map_err(|error| format!("{} takes nothing: {error}", dirs.state.display()))
    }

    /// Returns the journal, and opens the journal again if a write failed before. Returns `None` if that fails.
    fn journal(&mut self) -> Option<&mut Journal<Record>> {
        if self.journal.is_none() {
            match Journal::open(&self.context.dirs.journal(), JournalLimits::default()) {
                Ok((journal, records)) => (self.journal, self.records) = (Some(journal), records),
                Err(error) => warn!("{}", error_chain(&error)),
            }
        }
        self.journal.as_mut()
    }

    /// Carries out what the manager wants, until the manager wants nothing more.
    fn perform(&mut self) {
        while let Some(action) = self.manager.poll_action() {
            #[cfg(feature = "fault-points")]
            let point = action.clone();
            #[cfg(feature = "fault-points")]
            crate::fault_points::point(crate::fault_points::Moment::Before, &point);
            match action {
                Action::Write(records) => self.write(records),
                Action::Send(host, message) => {
                    self.context.peers.send(&host, &message);
                }
                Action::Reach(host, true) => self.context.peers.reach(&host),
                Action::Reach(host, false) => self.context.peers.leave(&host),
                Action::Order(id, order) => {
                    if matches!(order, Order::Target(TargetOrder::Kill) | Order::Source(SourceOrder::Quit)) {
                        self.kill(id);
                    }
                    self.employ(id, WorkerInput::Order(order));
                }
                Action::Event(id, event) => self.event(id, event),
                Action::Forget(id) => {
                    if let Some(worker) = self.workers.remove(&id) {
                        let _ = worker.jobs.try_send(WorkerInput::Forget);
                    }
                    self.context.peers.incoming_channels().close(id);
                    for socket in [self.context.dirs.outgoing_socket(id), self.context.dirs.incoming_socket(id)] {
                        let _ = std::fs::remove_file(socket);
                    }
                    if let Some(vm) = self.context.vms.of_migration(id) {
                        self.context.vms.settled(&vm);
                    }
                    self.context.rates.forget(id);
                    self.kills.remove(&id);
                    self.context.view.forget(id);
                }
            }
            #[cfg(feature = "fault-points")]
            crate::fault_points::point(crate::fault_points::Moment::After, &point);
        }
        // The source waits for the report, and this call syncs files: so the call comes after the report.
        self.arrived.drain(..).for_each(|vm| self.context.vms.arrived(&vm));
        for summary in self.manager.summaries() {
            if let Some(vm) = self.context.vms.of_migration(summary.id) {
                vm.set_involvement(Involvement::of(&summary));
                // A QEMU may have ended before the order to end came.
                if (summary.role, summary.outcome) == (Role::Source, Some(Outcome::Moved)) && vm.process().is_none() {
                    self.context.vms.released(&vm);
                }
            }
            self.context.view.update(summary);
        }
        let vms = &self.context.vms;
        self.context.kept.tidy(|vm| vms.get(vm).is_ok_and(|vm| vm.process().is_some()));
    }

    /// Kills the QEMU of a migration in a thread of its own. The worker may wait for that very QEMU's answer, even for
    /// the first one: the worker learns of the end then.
    fn kill(&self, id: MigrationId) {
        let process = self.context.vms.of_migration(id).and_then(|vm| vm.any_process());
        let Some(process) = process else { return };
        let context = self.context.clone();
        let kill = move || {
            if let Err(error) = process.kill(KILL_TIME) {
                context.view.emit(id, None, &AgentEvent::QemuNotKilled { error: error.to_string() });
            }
        };
        if let Err(error) = thread::Builder::new().name("kill".into()).spawn(kill) {
            self.context.view.emit(id, None, &AgentEvent::QemuNotKilled { error: error.to_string() });
        }
    }

    fn write(&mut self, records: Vec<Record>) {
        let begun = Instant::now();
        let on_disk = self.append(&records);
        self.context.journal.wrote(begun.elapsed(), on_disk.is_ok(), self.journal.as_ref());
        if let Err(error) = &on_disk {
            error!("the journal cannot be written: {error}");
            // A failed write leaves open what the journal holds. The journal is read again once the disk allows that.
            self.journal = None;
        }
        let result = if on_disk.is_ok() { WriteResult::OnDisk } else { WriteResult::Unknown };
        if let Some(input) = Input::written(&records, result) {
            self.manager.handle(self.epoch.elapsed(), input);
        }
    }

    /// Appends records, and makes the journal shorter if that is due.
    ///
    /// # Errors
    /// The reason why it is not known that the records are on the disk, in words.
    fn append(&mut self, records: &[Record]) -> Result<(), String> {
        let known = needed(&self.records);
        let Some(journal) = self.journal() else { return Err("it cannot be opened".into()) };
        for record in records {
            journal.append(record).map_err(|error| error_chain(&error))?;
        }
        let is_tight = journal.free_slots() < JOURNAL_RECORDS_RESERVED;
        self.records.extend_from_slice(records);
        let needed = needed(&self.records);
        // A rewrite takes time. It is kept out of the middle of a handover, unless the journal is nearly full.
        if is_tight || (needed.is_empty() && !known.is_empty() && self.records.len() > JOURNAL_RECORDS_RESERVED) {
            match self.journal.as_mut().map(|journal| journal.rewrite(&needed)) {
                Some(Ok(())) => self.records = needed,
                Some(Err(error)) => warn!("the journal cannot be made shorter: {}", error_chain(&error)),
                None => {}
            }
        }
        Ok(())
    }

    fn event(&mut self, id: MigrationId, event: MigrationEvent) {
        let summary = self.manager.summary(id);
        if let Some(summary) = &summary
            && !self.context.view.knows(id)
        {
            self.context.view.begin(id, &summary.vm, summary.role, &summary.peer);
        }
        // The migration's last event comes when the manager has forgotten the migration.
        let logged = || self.context.view.get(id).map(|migration| migration.vm);
        let vm = summary.as_ref().map(|summary| summary.vm.clone()).or_else(logged).unwrap_or_default();
        self.context.view.emit_with(id, Some(&vm), &AgentEvent::Handover(event.to_api()), summary.clone());
        match &event {
            MigrationEvent::Reported { report: Report::Running, .. } => self.context.view.runs_there(id),
            MigrationEvent::Over { outcome } => {
                if let Some(tell) = self.context.on_end.get() {
                    tell();
                }
                let role = summary.map(|summary| summary.role);
                let known = self.context.vms.get(&vm).ok();
                match (role.filter(|_| *outcome == Outcome::Moved), known) {
                    (Some(Role::Target), Some(vm)) if vm.migration() == Some(id) => self.arrived.push(vm),
                    (Some(Role::Target), _) => self.context.vms.arrived_before(&vm, id),
                    // After a crash of the host only the definition of the VM is left.
                    (Some(Role::Source), Some(vm))
                        if vm.process().is_none() && vm.migration().is_none_or(|own| own == id) =>
                    {
                        self.context.vms.released(&vm);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// Gives the job to this migration's worker. If there is no worker, a worker is started with this job as its first:
    /// a report of QEMU's state from before an order would be taken for the order's result.
    fn employ(&mut self, id: MigrationId, job: WorkerInput) {
        if let Some(worker) = self.workers.get(&id) {
            // A worker whose queue is full gets the order again.
            let _ = worker.jobs.try_send(job);
        } else if let Some(summary) = self.manager.summary(id) {
            let (jobs, queue) = sync_channel(WORKER_INPUTS_MAX);
            let _ = jobs.try_send(job);
            let (context, own_jobs) = (self.context.clone(), jobs.clone());
            let offer = self.manager.offer(id).map(|offer| Offer::clone(offer));
            let work = move || match summary.role {
                Role::Source => source::new_worker(context, summary, offer, own_jobs).run(queue),
                Role::Target => target::new_worker(context, summary, offer, own_jobs).run(queue),
            };
            match thread::Builder::new().name("migration".into()).spawn(work) {
                Ok(thread) => drop(self.workers.insert(id, WorkerHandle { jobs, thread })),
                Err(error) => {
                    self.context.view.emit(id, None, &AgentEvent::NotWorkedOn { error: error.to_string() });
                }
            }
        }
    }

    /// Stops the workers. A migration that is not granted is called off: the next agent would call the migration off,
    /// too, and the guest would wait until then.
    fn stop_workers(&mut self) {
        for (id, worker) in &self.workers {
            let stage = self.manager.summary(*id).map(|summary| summary.stage);
            if matches!(
                stage,
                Some(MigrationPhase::Source(SourcePhase::Precopy | SourcePhase::Held | SourcePhase::Switchover))
            ) {
                self.context.view.emit(*id, None, &AgentEvent::AgentStops);
                let _ = worker.jobs.try_send(WorkerInput::Order(Order::Source(SourceOrder::CancelMigration)));
            }
            let _ = worker.jobs.try_send(WorkerInput::Leave);
        }
        wait_until(STOP_TIME, || self.workers.values().all(|worker| worker.thread.is_finished()));
    }
}

fn role_of(begun: &skein_handover::JournalledMigration) -> Role {
    match begun.last_record {
        skein_handover::LastRecord::Source(_) => Role::Source,
        skein_handover::LastRecord::Target(_) => Role::Target,
    }
}
