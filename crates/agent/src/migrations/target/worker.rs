//! Obeys the owner's orders to a target's hypervisor, takes its events, and reports the guest's state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use skein_handover::{MigrationId, Order, TargetGuest, TargetInput, TargetOrder};
use skein_hypervisor::{DeviceSnapshot, Guest, GuestError, GuestEvent, MigrationStatus, RunState};
use tracing::{info, warn};

use super::environment::TargetEnvironment;
use crate::clock::Clock;
use crate::migrations::input::{Input, WorkerInput};
use crate::migrations::offer::Offer;

/// How often the hypervisor is asked for the guest's state.
pub(super) const PROGRESS_PERIOD: Duration = Duration::from_millis(200);
/// A QEMU that could not take a guest says why and ends within this time.
const WORDS_TIME: Duration = Duration::from_millis(500);
/// A QEMU that does not answer within this time is asked again later, because orders may wait.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// A process whose connection ended is gone within this time.
const END_TIME: Duration = Duration::from_secs(1);

/// See the [module](super).
pub(in crate::migrations) struct TargetWorker {
    id: MigrationId,
    offer: Option<Offer>,
    environment: Box<dyn TargetEnvironment>,
    clock: Arc<dyn Clock>,
    jobs: SyncSender<WorkerInput>,
    /// The connection whose events are heard.
    listened_to: Option<Arc<dyn Guest>>,
    /// Whether it is sure that QEMU never ran the guest: all that QEMU said was heard, and QEMU never said so.
    unrun: Arc<AtomicBool>,
    /// The state that the owner was told last; `None`: the next state is told whatever it is.
    reported_guest: Option<TargetGuest>,
    /// Whether the owner was told that a QEMU of an earlier agent does not answer this agent.
    has_no_monitor: bool,
    /// Whether the owner ordered to kill QEMU.
    is_killed: bool,
    /// The devices of QEMU when this agent compared QEMU with the guest; `None`: this agent has not.
    compared: Option<DeviceSnapshot>,
    /// Whether QEMU could not take the guest, or would not run it, and the owner was told. Such a QEMU must not run the
    /// guest later.
    cannot_run: bool,
    /// Whether the last words of QEMU were told.
    has_told_words: bool,
}

/// Whether a worker goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    GoesOn,
    IsOver,
}

impl TargetWorker {
    /// Returns a worker. The hypervisor's events come to it by `jobs`.
    pub(super) fn new(
        id: MigrationId,
        offer: Option<Offer>,
        environment: Box<dyn TargetEnvironment>,
        clock: Arc<dyn Clock>,
        jobs: SyncSender<WorkerInput>,
    ) -> TargetWorker {
        TargetWorker {
            id,
            offer,
            environment,
            clock,
            jobs,
            listened_to: None,
            unrun: Arc::new(AtomicBool::new(false)),
            reported_guest: None,
            has_no_monitor: false,
            is_killed: false,
            compared: None,
            cannot_run: false,
            has_told_words: false,
        }
    }

    /// Does the jobs that come, and asks QEMU every [`PROGRESS_PERIOD`] without a job, until the migration is forgotten
    /// or the agent ends.
    pub(in crate::migrations) fn run(mut self, jobs: Receiver<WorkerInput>) {
        loop {
            let work = match jobs.recv_timeout(PROGRESS_PERIOD) {
                Ok(job) => self.work(job),
                Err(RecvTimeoutError::Timeout) => self.work(WorkerInput::Look),
                Err(RecvTimeoutError::Disconnected) => Work::IsOver,
            };
            if work == Work::IsOver {
                return;
            }
        }
    }

    /// Does one job.
    pub(super) fn work(&mut self, job: WorkerInput) -> Work {
        match job {
            WorkerInput::Order(Order::Target(order)) => self.obey(order),
            WorkerInput::Order(Order::Source(_)) => {}
            WorkerInput::Guest(event) => self.heed(&event),
            WorkerInput::Look => self.look(),
            WorkerInput::Forget | WorkerInput::Leave => return Work::IsOver,
        }
        Work::GoesOn
    }

    /// Obeys an order, and reports the guest's state afterwards, whatever came of the order.
    fn obey(&mut self, order: TargetOrder) {
        self.reported_guest = None;
        match order {
            TargetOrder::Start => self.start(),
            TargetOrder::Continue => self.cont(),
            TargetOrder::Kill => self.kill(),
        }
    }

    fn start(&mut self) {
        if self.environment.has_vm() {
            return self.look();
        }
        if let Err(why) = self.receive() {
            warn!(id = %self.id, "{why}");
            (self.reported_guest, self.cannot_run) = (Some(TargetGuest::Failed), true);
            let failed = Input::Target(self.id, TargetInput::Guest(TargetGuest::Failed));
            self.environment.tell(vec![Input::Detail(self.id, why), failed]);
        }
    }

    /// Starts a hypervisor for the guest, and has it listen.
    ///
    /// # Errors
    /// The guest is not let in. The error is the reason, in words.
    fn receive(&mut self) -> Result<(), String> {
        let offer =
            self.offer.clone().ok_or("what the source offers makes no sense: is its agent of another version?")?;
        let guest = self.environment.start(&offer)?;
        self.unrun.store(true, Ordering::SeqCst);
        self.listen(&guest);
        self.compared = Some(self.environment.compare(&*guest)?);
        self.environment.set_aside()?;
        let path = self.environment.incoming_socket();
        guest.begin_incoming(&offer.migration_settings(), &path).map_err(|error| format!("QEMU: {error}"))?;
        self.environment.open_channels(&*guest, &offer);
        // From here on a guest waits for this thread.
        self.environment.raise_priority();
        self.look();
        Ok(())
    }

    /// Returns whether QEMU still has the devices that it had when it was compared with the guest. If they are not
    /// known, an earlier agent has compared them, and the answer is true.
    fn is_as_compared(&self, guest: &dyn Guest) -> bool {
        let Some(compared) = &self.compared else { return true };
        let since = self.clock.now();
        let is_same = guest.devices().is_ok_and(|now| now == *compared);
        info!(id = %self.id, "its QEMU was compared once more in {:?}", self.clock.now().saturating_sub(since));
        is_same
    }

    /// Returns why a guest that came whole must not run here; `None`: it may.
    fn lacks(&self, guest: &dyn Guest) -> Option<String> {
        if !self.is_as_compared(guest) {
            return Some("its QEMU has other drives or devices than when the guest was compared with it".into());
        }
        // The source has both ends compared before its QEMU sends the last, and rails are closed for that. What another
        // source does is not relied upon.
        self.environment.lost_tpm_state().or_else(|| self.environment.fence_rails().err())
    }

    fn cont(&mut self) {
        let Some(guest) = self.environment.guest().filter(|_| !self.cannot_run) else { return self.look() };
        self.tell(TargetInput::Continuing);
        match guest.resume() {
            Ok(()) => {
                self.report_guest(TargetGuest::Running);
                if let Err(error) = guest.announce() {
                    warn!(id = %self.id, "the guest's NICs are not announced: {error}");
                }
            }
            Err(error @ GuestError::Refused(_)) => {
                warn!(id = %self.id, "{error}");
                // QEMU answered the order, so the answer to this question is of the time after: the guest is known to
                // be paused.
                if guest.run_state().is_ok_and(|state| state == RunState::Paused) {
                    self.cannot_run = true;
                    let cannot = Input::Target(self.id, TargetInput::CannotRun);
                    self.environment.tell(vec![Input::Detail(self.id, format!("QEMU: {error}")), cannot]);
                }
            }
            Err(error) => {
                warn!(id = %self.id, "{error}");
                self.look();
            }
        }
    }

    /// Reports the end of a process that the owner kills, and removes what the process leaves.
    fn kill(&mut self) {
        self.is_killed = true;
        self.environment.close_channels();
        if self.environment.has_vm() {
            if !self.wait_for_end(END_TIME) {
                return;
            }
            self.environment.drop_received();
        }
        self.environment.release_room();
        self.report_guest(self.gone());
    }

    /// Waits until the process has ended. Returns whether it has.
    fn wait_for_end(&self, time: Duration) -> bool {
        self.clock.wait_until(time, &mut || self.environment.process().is_none())
    }

    fn gone(&self) -> TargetGuest {
        match self.unrun.load(Ordering::SeqCst) {
            true => TargetGuest::GoneUnrun,
            false => TargetGuest::Gone,
        }
    }

    fn listen(&mut self, guest: &Arc<dyn Guest>) {
        if self.listened_to.as_ref().is_some_and(|heard| !heard.is_closed()) {
            return;
        }
        let (jobs, unrun) = (self.jobs.clone(), self.unrun.clone());
        guest.forward(Box::new(move |event| {
            // QEMU says so before a vCPU runs. What QEMU said is read to its end even if QEMU is killed.
            if event == GuestEvent::Resumed {
                unrun.store(false, Ordering::SeqCst);
            }
            let _ = jobs.try_send(WorkerInput::Guest(event));
            true
        }));
        self.listened_to = Some(guest.clone());
    }

    fn heed(&mut self, event: &GuestEvent) {
        match event {
            GuestEvent::Closed => {
                self.wait_for_end(END_TIME);
                self.look();
            }
            GuestEvent::Migration(MigrationStatus::Completed | MigrationStatus::Failed) => self.look(),
            GuestEvent::Resumed => self.report_guest(TargetGuest::Running),
            _ => {}
        }
    }

    fn tell(&self, input: TargetInput) {
        self.environment.tell(vec![Input::Target(self.id, input)]);
    }

    fn report_guest(&mut self, guest: TargetGuest) {
        if self.reported_guest != Some(guest) {
            self.reported_guest = Some(guest);
            match guest {
                TargetGuest::Running => {
                    self.environment.keep_marks();
                    self.environment.let_go_of_ram();
                }
                TargetGuest::Gone | TargetGuest::GoneUnrun => self.environment.let_go_of_ram(),
                TargetGuest::Failed => self.cannot_run = true,
                _ => {}
            }
            self.tell(TargetInput::Guest(guest));
        }
    }

    /// Reports that the guest must not run here. The reason is told once: what follows from it is no other reason.
    fn refuse(&mut self, why: String) {
        if self.reported_guest != Some(TargetGuest::Failed) {
            self.environment.tell(vec![Input::Detail(self.id, why)]);
        }
        self.report_guest(TargetGuest::Failed);
    }

    /// Reports that QEMU could not take the guest. QEMU ends then, and its last words say why.
    fn fail(&mut self) {
        if self.environment.has_vm() {
            self.wait_for_end(WORDS_TIME);
            self.tell_words();
        }
        self.report_guest(TargetGuest::Failed);
    }

    /// Tells and logs the last words of a QEMU whose guest has not come to run here.
    fn tell_words(&mut self) {
        let is_known = matches!(
            self.reported_guest,
            Some(TargetGuest::Running | TargetGuest::Failed | TargetGuest::Gone | TargetGuest::GoneUnrun)
        );
        if is_known || self.is_killed || self.has_told_words {
            return;
        }
        if let Some(words) = self.environment.last_words() {
            self.has_told_words = true;
            let text = format!("QEMU of {} said as it ended: {words}", self.environment.host());
            self.environment.note_at_both_ends(text.clone());
            self.environment.tell(vec![Input::LastWords(self.id, text)]);
        }
    }

    /// Asks QEMU for the guest's state, and reports it.
    pub(super) fn look(&mut self) {
        let Some(guest) = self.environment.guest() else { return self.look_for_process() };
        if std::mem::take(&mut self.has_no_monitor) {
            self.environment.tell(vec![Input::Detail(self.id, String::new())]);
        }
        self.listen(&guest);
        let guest = guest.with_patience(ANSWER_TIME);
        let asked = || -> Result<_, GuestError> { Ok((guest.run_state()?, guest.migration()?.status)) };
        match asked() {
            Ok((RunState::Running, _)) => self.report_guest(TargetGuest::Running),
            Ok((_, MigrationStatus::Failed | MigrationStatus::Cancelled)) => self.fail(),
            Ok((RunState::Paused, MigrationStatus::Completed)) if self.reported_guest == Some(TargetGuest::Loaded) => {}
            Ok((RunState::Paused, MigrationStatus::Completed)) => match self.lacks(&*guest) {
                None => self.report_guest(TargetGuest::Loaded),
                Some(why) => self.refuse(why),
            },
            // The guest was told to run, and sleeps.
            Ok((RunState::Suspended, _)) if !self.unrun.load(Ordering::SeqCst) => {
                self.report_guest(TargetGuest::Running)
            }
            // A QEMU before 9.0 could wake a sleeping guest before the guest may run here.
            Ok((RunState::Suspended, MigrationStatus::Completed)) => {
                self.refuse(format!("the guest sleeps, and {} could wake it at both ends", guest.program()));
            }
            Ok((RunState::InMigrate, _)) => self.report_guest(TargetGuest::Waiting),
            // QEMU is on the way from one state to another.
            Ok(_) => {}
            Err(error) => info!(id = %self.id, "QEMU: {error}"),
        }
    }

    /// Reports what is known of a QEMU that cannot be asked.
    fn look_for_process(&mut self) {
        match self.environment.process() {
            None if self.environment.has_vm() || self.is_left_over() => {
                self.tell_words();
                self.report_guest(self.gone());
            }
            // A QEMU that is to end owes no answer. Nor does a QEMU of which it is known that it cannot run the guest.
            Some(pid) if !self.has_no_monitor && !self.is_killed && !self.cannot_run => {
                self.has_no_monitor = true;
                let why = format!("its QEMU (pid {pid}), started by the agent before this one, does not answer");
                self.environment.tell(vec![Input::Detail(self.id, why)]);
            }
            _ => {}
        }
    }

    /// Returns whether an earlier agent began the migration and nothing of it is left here.
    fn is_left_over(&self) -> bool {
        !self.environment.has_vm() && self.offer.is_none()
    }
}
