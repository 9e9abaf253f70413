//! The target's end of one migration: obeys the machine's orders to QEMU, and tells how QEMU is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use skein_api::LogEntry;
use skein_dataplane::target::TargetPages;
use skein_handover::{Input, MigrationId, MigrationSummary, Order, TargetGuest, TargetInput, TargetOrder};
use skein_hypervisor::{DeviceSnapshot, Guest, GuestError, GuestEvent, MigrationStatus, RunState};
use skein_inventory::composition::{Part, differences};
use skein_inventory::{Accel, RoomNeed, printable, shortened};
use tracing::{info, warn};

use super::context::Context;
use super::guest_watch::DIFFERENCES_TOLD_MAX;
use super::input::WorkerInput;
use super::offer::Offer;
use crate::clock::wait_until;
use crate::guest_ram;
use crate::own_state::TpmFile;
use crate::room::{Reservation, asked};
use crate::vms::{Running, Vm};

const PROGRESS_PERIOD: Duration = Duration::from_millis(200);
/// How long the source may take to say what its guest is composed of.
const ASK_TIME: Duration = Duration::from_secs(10);
/// A QEMU that could not take a guest says why, and ends, by then.
const WORDS_TIME: Duration = Duration::from_millis(500);
/// Longest sentence on what its QEMU has and lacks.
const TOLD_BYTES_MAX: usize = 2000;
/// A QEMU that does not answer by then is asked again later: there may be orders to obey.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// A process whose QMP connection ended is gone by then.
const END_TIME: Duration = Duration::from_secs(1);

pub(super) struct TargetWorker {
    context: Arc<Context>,
    id: MigrationId,
    name: String,
    peer: String,
    vm: Option<Arc<Vm>>,
    offer: Option<Offer>,
    /// Room for the guest.
    reservation: Option<Reservation>,
    jobs: SyncSender<WorkerInput>,
    /// What takes the guest's pages.
    pages: Option<Arc<TargetPages>>,
    listened_to: Option<Arc<dyn Guest>>,
    /// All that this QEMU ever said was heard, and it never said that the guest runs.
    unrun: Arc<AtomicBool>,
    reported_guest: Option<TargetGuest>,
    /// Its QEMU, which an earlier agent started, has not answered this one, and that was told.
    has_no_monitor: bool,
    /// Its QEMU was told to end.
    is_killed: bool,
    /// What its QEMU had when it was compared with the guest.
    compared: Option<DeviceSnapshot>,
    /// The file of the TPM's state before the guest's came.
    tpm_file: Option<TpmFile>,
    /// QEMU would not run the guest, and that was told: it must not run it on a second thought.
    cannot_run: bool,
}

impl TargetWorker {
    pub(super) fn new(
        context: Arc<Context>,
        summary: MigrationSummary,
        offer: Option<Offer>,
        jobs: SyncSender<WorkerInput>,
    ) -> TargetWorker {
        let vm = context.vms.of_migration(summary.id);
        TargetWorker {
            context,
            id: summary.id,
            name: summary.vm,
            peer: summary.peer,
            vm,
            offer,
            reservation: None,
            jobs,
            pages: None,
            listened_to: None,
            unrun: Arc::new(AtomicBool::new(false)),
            reported_guest: None,
            has_no_monitor: false,
            is_killed: false,
            compared: None,
            tpm_file: None,
            cannot_run: false,
        }
    }

    pub(super) fn run(mut self, jobs: Receiver<WorkerInput>) {
        loop {
            match jobs.recv_timeout(PROGRESS_PERIOD) {
                Ok(WorkerInput::Order(Order::Target(order))) => self.obey(order),
                Ok(WorkerInput::Order(Order::Source(_))) => {}
                Ok(WorkerInput::Guest(event)) => self.heed(&event),
                Ok(WorkerInput::Look) | Err(RecvTimeoutError::Timeout) => self.look(),
                Ok(WorkerInput::Forget | WorkerInput::Leave) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn running(&self) -> Option<Running> {
        self.vm.as_ref()?.running()
    }

    /// Does what is ordered, and says how QEMU is then, whatever came of it.
    fn obey(&mut self, order: TargetOrder) {
        self.reported_guest = None;
        match order {
            TargetOrder::Start => self.start(),
            TargetOrder::Continue => self.cont(),
            TargetOrder::Kill => self.kill(),
        }
    }

    fn start(&mut self) {
        if self.vm.is_some() {
            return self.look();
        }
        if let Err(why) = self.receive() {
            warn!(id = %self.id, "{why}");
            self.reported_guest = Some(TargetGuest::Failed);
            let failed = Input::Target(self.id, TargetInput::Guest(TargetGuest::Failed));
            self.context.tell(vec![Input::Detail(self.id, why), failed]);
        }
    }

    fn receive(&mut self) -> Result<(), String> {
        let offer =
            self.offer.clone().ok_or("what the source offers makes no sense: is its agent of another version?")?;
        let need = offer.need.or_else(|| offer.launch.need());
        // What it needs is not taken from another guest: two that were checked at once are let in one after the other.
        let rooms = &self.context.rooms;
        self.reservation = None;
        self.reservation = need.map(|need| rooms.admit(self.id, &self.name, need)).transpose()?;
        // Before the guest has a process here: it would be let go then.
        let kept = self.context.kept.take_ram(&self.name, &self.peer);
        let vm = self.context.vms.receive(&self.name, offer.launch.clone(), self.id);
        let vm = vm.map_err(|error| format!("{}: {}", crate::error_chain(&error), error.cure()))?;
        self.vm = Some(vm.clone());
        let Running { guest: qemu, .. } = vm.running().ok_or("its QEMU ended at once")?;
        let need = need.or_else(|| Some(RoomNeed::new(asked(&vm)?, None, 1, Accel::Auto)));
        let need = need.ok_or("its QEMU does not say how much RAM the guest has")?;
        match &self.reservation {
            Some(reservation) => reservation.confirm(&vm, need)?,
            None => self.reservation = Some(self.context.rooms.admit(self.id, &self.name, need)?),
        }
        self.unrun.store(true, Ordering::SeqCst);
        self.listen(&qemu);
        self.compare(&vm, &*qemu)?;
        self.tpm_file = vm.own().tpm_file();
        let set_aside = self.context.vms.set_aside(&vm, self.id);
        set_aside.map_err(|error| format!("{}: {}", crate::error_chain(&error), error.cure()))?;
        let path = self.context.dirs.incoming_socket(self.id);
        let _ = std::fs::remove_file(&path);
        qemu.begin_incoming(&offer.migration_settings(), &path).map_err(|error| format!("QEMU: {error}"))?;
        let process = vm.process().filter(|_| offer.indirect.is_none());
        let pages = TargetPages::new(process.and_then(|process| guest_ram::find(&*qemu, process.id().pid)), kept);
        self.pages = Some(pages.clone());
        self.context.peers.incoming_channels().open(self.id, &self.peer, &path, pages);
        // QEMU is started: what is left to do here, a guest waits for.
        skein_host::raise_thread_priority();
        self.look();
        Ok(())
    }

    /// Compares what its QEMU is composed of with the guest, as its source sees it now: the guest must not run in
    /// another.
    fn compare(&mut self, vm: &Vm, qemu: &dyn Guest) -> Result<(), String> {
        let asked = self.context.peers.ask_composition(&self.peer, self.id, Instant::now() + ASK_TIME);
        let guest = asked
            .map_err(|error| format!("what the guest is composed of is not known: {}", crate::error_chain(&error)))?;
        let own = vm.composition().map_err(|error| crate::error_chain(&error))?;
        let host = self.context.peers.host();
        let differences = differences(&guest, &own);
        let (minor, grave): (Vec<_>, Vec<_>) =
            differences.iter().partition(|difference| difference.part == Part::Tuning);
        for difference in minor.into_iter().take(DIFFERENCES_TOLD_MAX) {
            let text = printable(format!("not moved: {}", difference.as_mismatch(&self.name, host)), TOLD_BYTES_MAX);
            self.context.view.log(self.id, LogEntry::Note { text });
        }
        let told: Vec<String> = grave.iter().map(|difference| difference.as_mismatch(&self.name, host)).collect();
        if !told.is_empty() {
            let told = shortened(&told, DIFFERENCES_TOLD_MAX);
            // Part of it is another host's words.
            return Err(printable(format!("its QEMU is not as the guest's: {told}"), TOLD_BYTES_MAX));
        }
        vm.set_launched(&own);
        self.compared = Some(qemu.devices().map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Whether its QEMU still has what was compared. One of which that is not known was compared by an agent before
    /// this one.
    fn is_as_compared(&self, qemu: &dyn Guest) -> bool {
        let Some(compared) = &self.compared else { return true };
        let since = Instant::now();
        let is_same = qemu.devices().is_ok_and(|now| now == *compared);
        info!(id = %self.id, "its QEMU was compared once more in {:?}", since.elapsed());
        is_same
    }

    /// Why a guest that came whole must not run here.
    fn lacks(&self, qemu: &dyn Guest) -> Option<String> {
        if !self.is_as_compared(qemu) {
            return Some("its QEMU has other drives or devices than when the guest was compared with it".into());
        }
        let vm = self.vm.as_ref()?;
        let has_tpm = vm.launch().definition().is_some_and(|definition| definition.tpm.is_some());
        // swtpm goes on without a word where its files find no room, and the source's are about to be removed.
        let now = if has_tpm { vm.own().tpm_file() } else { None };
        let is_lost = has_tpm && (now.is_none() || now == self.tpm_file);
        is_lost.then(|| {
            let dir = vm.own().tpm();
            format!("swtpm could not write the TPM's state to {}: make room there, and repeat", dir.display())
        })
    }

    fn cont(&mut self) {
        let Some(Running { guest: qemu, .. }) = self.running().filter(|_| !self.cannot_run) else { return self.look() };
        self.context.target(self.id, [TargetInput::Continuing]);
        match qemu.resume() {
            Ok(()) => {
                self.report_guest(TargetGuest::Running);
                if let Err(error) = qemu.announce() {
                    warn!(id = %self.id, "the guest's NICs are not announced: {error}");
                }
            }
            Err(error @ GuestError::Refused(_)) => {
                warn!(id = %self.id, "{error}");
                // It answered: so it is known to be paused.
                if qemu.run_state().is_ok_and(|state| state == RunState::Paused) {
                    self.cannot_run = true;
                    let cannot = Input::Target(self.id, TargetInput::CannotRun);
                    self.context.tell(vec![Input::Detail(self.id, format!("QEMU: {error}")), cannot]);
                }
            }
            Err(error) => {
                warn!(id = %self.id, "{error}");
                self.look();
            }
        }
    }

    /// The owner kills the process; here is what comes after that.
    fn kill(&mut self) {
        self.is_killed = true;
        self.context.peers.incoming_channels().close(self.id);
        let _ = std::fs::remove_file(self.context.dirs.incoming_socket(self.id));
        if let Some(vm) = self.vm.clone() {
            if !wait_until(END_TIME, || vm.process().is_none()) {
                return;
            }
            self.context.vms.drop_received(&vm);
        }
        self.reservation = None;
        self.report_guest(self.gone());
    }

    fn gone(&self) -> TargetGuest {
        match self.unrun.load(Ordering::SeqCst) {
            true => TargetGuest::GoneUnrun,
            false => TargetGuest::Gone,
        }
    }

    fn listen(&mut self, qemu: &Arc<dyn Guest>) {
        if self.listened_to.as_ref().is_some_and(|heard| !heard.is_closed()) {
            return;
        }
        let (jobs, unrun) = (self.jobs.clone(), self.unrun.clone());
        qemu.forward(Box::new(move |event| {
            // That is said before a vCPU runs, and what was said is read to its end also after it was killed.
            if event == GuestEvent::Resumed {
                unrun.store(false, Ordering::SeqCst);
            }
            let _ = jobs.try_send(WorkerInput::Guest(event));
            true
        }));
        self.listened_to = Some(qemu.clone());
    }

    fn heed(&mut self, event: &GuestEvent) {
        match event {
            GuestEvent::Closed => {
                if let Some(vm) = self.vm.clone() {
                    wait_until(END_TIME, || vm.process().is_none());
                }
                self.look();
            }
            GuestEvent::Migration(MigrationStatus::Completed | MigrationStatus::Failed) => self.look(),
            GuestEvent::Resumed => self.report_guest(TargetGuest::Running),
            _ => {}
        }
    }

    fn report_guest(&mut self, guest: TargetGuest) {
        if self.reported_guest != Some(guest) {
            self.reported_guest = Some(guest);
            if guest == TargetGuest::Running {
                self.keep_marks();
            }
            self.context.target(self.id, [TargetInput::Guest(guest)]);
        }
    }

    /// Keeps the marks of the guest that is this host's now, if the other one keeps its RAM.
    fn keep_marks(&mut self) {
        let Some(keeping) = self.offer.as_ref().and_then(|offer| offer.keep) else { return };
        let marks = self.pages.take().and_then(|pages| pages.take_marks(self.id.0));
        let process = self.vm.as_ref().and_then(|vm| vm.process());
        if let Some((marks, process)) = marks.zip(process) {
            self.context.kept.put_marks(&self.name, &self.peer, marks, process.id(), keeping);
        }
    }

    /// QEMU could not take the guest. It ends then, and its last words say why.
    fn failed(&mut self) {
        let Some(vm) = self.vm.clone() else { return self.report_guest(TargetGuest::Failed) };
        wait_until(WORDS_TIME, || vm.process().is_none());
        self.tell_words();
        self.report_guest(TargetGuest::Failed);
    }

    /// Keeps and tells what QEMU said as it ended, of a guest that has not come to run here.
    fn tell_words(&mut self) {
        let is_known = matches!(
            self.reported_guest,
            Some(TargetGuest::Running | TargetGuest::Failed | TargetGuest::Gone | TargetGuest::GoneUnrun)
        );
        let words = self.vm.as_ref().filter(|_| !is_known && !self.is_killed).and_then(|vm| vm.last_words());
        if let Some(words) = words {
            let text = format!("QEMU of {} said as it ended: {words}", self.context.peers.host());
            self.context.view.log(self.id, LogEntry::Note { text: text.clone() });
            self.context.peers.note(&self.peer, self.id, &text);
            self.context.tell(vec![Input::LastWords(self.id, text)]);
        }
    }

    /// Asks QEMU how it is, and says so.
    fn look(&mut self) {
        let Some(running) = self.running() else {
            if self.vm.as_ref().is_some_and(|vm| vm.process().is_none()) || self.is_left_over() {
                self.tell_words();
                self.report_guest(self.gone());
            } else if let Some(process) = self.vm.as_ref().and_then(|vm| vm.process()).filter(|_| !self.has_no_monitor)
            {
                self.has_no_monitor = true;
                let pid = process.id().pid;
                let why = format!("its QEMU (pid {pid}), started by the agent before this one, does not answer");
                self.context.tell(vec![Input::Detail(self.id, why)]);
            }
            return;
        };
        if std::mem::take(&mut self.has_no_monitor) {
            self.context.tell(vec![Input::Detail(self.id, String::new())]);
        }
        self.listen(&running.guest);
        let qemu = running.guest.with_patience(ANSWER_TIME);
        let asked = || -> Result<_, GuestError> { Ok((qemu.run_state()?, qemu.migration()?.status)) };
        match asked() {
            Ok((RunState::Running, _)) => self.report_guest(TargetGuest::Running),
            Ok((_, MigrationStatus::Failed | MigrationStatus::Cancelled)) => self.failed(),
            Ok((RunState::Paused, MigrationStatus::Completed)) if self.reported_guest == Some(TargetGuest::Loaded) => {}
            Ok((RunState::Paused, MigrationStatus::Completed)) => match self.lacks(&*qemu) {
                None => self.report_guest(TargetGuest::Loaded),
                Some(why) => {
                    self.context.tell(vec![Input::Detail(self.id, why)]);
                    self.report_guest(TargetGuest::Failed);
                }
            },
            // It was told to run, and sleeps.
            Ok((RunState::Suspended, _)) if !self.unrun.load(Ordering::SeqCst) => {
                self.report_guest(TargetGuest::Running)
            }
            // A QEMU before 9.0 could wake a guest that sleeps before it may run here.
            Ok((RunState::Suspended, MigrationStatus::Completed)) => {
                let why = format!("the guest sleeps, and {} could wake it at both ends", qemu.program());
                self.context.tell(vec![Input::Detail(self.id, why)]);
                self.report_guest(TargetGuest::Failed);
            }
            Ok((RunState::InMigrate, _)) => self.report_guest(TargetGuest::Waiting),
            // On the way from one to the other.
            Ok(_) => {}
            Err(error) => info!(id = %self.id, "QEMU: {error}"),
        }
    }

    /// It was begun by an earlier agent, and nothing is there.
    fn is_left_over(&self) -> bool {
        self.vm.is_none() && self.offer.is_none()
    }
}
