//! Obeys the owner's orders to a source's hypervisor, takes its events, and reports the guest's state.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use skein_handover::{
    MigrationId, MigrationPhase, MigrationSummary, Order, SourceGuest, SourceInput, SourceOrder, SourcePhase,
};
use skein_hypervisor::{
    Guest, GuestError, GuestEvent, Hold, MigrationSettings, MigrationState, MigrationStatus, RunState, StopCause,
    Throttling,
};
use tracing::{info, warn};

use super::copy::{CopyLook, GuestCopy, LetGoError};
use super::environment::{OpenChannelsError, SourceEnvironment};
use super::guest_state::{guest, without_migration};
use super::hold::HoldDriver;
use super::hypervisor_watch::{HypervisorWatch, LetGo};
use super::outage::THROTTLED_OUTAGE_TIME;
use super::standing::Standing;
use crate::clock::Clock;
use crate::migrations::guest_watch::GuestWatch;
use crate::migrations::input::{Input, WorkerInput};
use crate::migrations::offer::Offer;

/// How often the hypervisor is asked for its progress.
pub(super) const PROGRESS_PERIOD: Duration = Duration::from_millis(100);
/// A hypervisor that does not answer within this time is asked again later, because orders may wait.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Bounds the wait for a hypervisor that may be deaf.
const UNRESPONSIVE_WAIT: Duration = Duration::from_millis(200);
/// A QEMU that gave a migration up resumes its guest within milliseconds. This is ample.
const RESUME_TIME: Duration = Duration::from_secs(2);
/// A process whose connection ended is gone within this time.
const END_TIME: Duration = Duration::from_secs(1);
/// Bounds the time that an agent that ends waits for a hypervisor to carry out its last order.
const LEAVE_TIME: Duration = Duration::from_millis(800);
const NEVER_ENDS: &str =
    "QEMU never ends this migration: its guest cannot be moved until it is shut down and started again";

/// See the [module](super).
pub(in crate::migrations) struct SourceWorker {
    id: MigrationId,
    /// The name of the target's host.
    peer: String,
    offer: Option<Offer>,
    /// Whether the migration was begun as a hold: only an order has the guest switch.
    is_hold: bool,
    clock: Arc<dyn Clock>,
    environment: Box<dyn SourceEnvironment>,
    hypervisor: HypervisorWatch,
    /// The copy that is under way: the hypervisor was told to migrate, and the end of that was not seen yet.
    copy: Option<GuestCopy>,
    standing: Standing,
    /// Whether the hypervisor may have settings of this migration, which are not meant for the next migration.
    is_tuned: bool,
    /// The state that the owner was told last; `None`: the next state is told whatever it is.
    reported_guest: Option<SourceGuest>,
}

/// Whether a worker goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    GoesOn,
    /// The migration is forgotten.
    IsOver,
    /// The agent ends.
    IsLeft,
}

/// When the guest's composition is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    Now,
    IfDue,
}

/// The reason why an order was not obeyed.
#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error("it was begun by an agent that is gone")]
    NoOffer,
    /// The guest is not as the target was told, for this reason.
    #[error("{0}")]
    Changed(String),
    #[error(transparent)]
    NotLetGo(#[from] LetGoError),
    #[error(transparent)]
    Channels(#[from] OpenChannelsError),
    #[error(transparent)]
    Guest(#[from] GuestError),
}

impl SourceWorker {
    /// Returns a worker for the migration of `summary`. The hypervisor's events come to it by `jobs`.
    pub(super) fn new(
        summary: MigrationSummary,
        offer: Option<Offer>,
        environment: Box<dyn SourceEnvironment>,
        clock: Arc<dyn Clock>,
        jobs: SyncSender<WorkerInput>,
    ) -> SourceWorker {
        SourceWorker {
            id: summary.id,
            peer: summary.peer,
            offer,
            is_hold: summary.is_hold,
            clock,
            environment,
            hypervisor: HypervisorWatch::new(jobs),
            copy: None,
            standing: Standing::default(),
            // An earlier agent may have set them.
            is_tuned: !matches!(summary.stage, MigrationPhase::Source(SourcePhase::Begin | SourcePhase::Prepare)),
            reported_guest: None,
        }
    }

    /// Does the jobs that come, and asks the hypervisor every [`PROGRESS_PERIOD`] without a job, until the migration is
    /// forgotten or the agent ends.
    pub(in crate::migrations) fn run(mut self, jobs: Receiver<WorkerInput>) {
        loop {
            let work = match jobs.recv_timeout(PROGRESS_PERIOD) {
                Ok(job) => self.work(job, &jobs),
                Err(RecvTimeoutError::Timeout) => {
                    self.look();
                    Work::GoesOn
                }
                Err(RecvTimeoutError::Disconnected) => Work::IsLeft,
            };
            match work {
                Work::GoesOn => {}
                Work::IsOver => return,
                Work::IsLeft => return self.leave(),
            }
        }
    }

    /// Does `job` and all jobs that wait in `jobs`. Only the last order is obeyed: orders may have been repeated while
    /// a hypervisor was deaf.
    pub(super) fn work(&mut self, job: WorkerInput, jobs: &Receiver<WorkerInput>) -> Work {
        let mut order = None;
        let mut work = Work::GoesOn;
        let mut next = Some(job);
        while let Some(job) = next.take() {
            match job {
                WorkerInput::Order(Order::Source(newer)) => order = Some(newer),
                WorkerInput::Order(Order::Target(_)) => {}
                WorkerInput::Look => self.look(),
                WorkerInput::Guest(event) => self.heed(&event),
                WorkerInput::Forget => return Work::IsOver,
                WorkerInput::Leave => work = Work::IsLeft,
            }
            next = jobs.try_recv().ok().filter(|_| work == Work::GoesOn);
        }
        if let Some(order) = order {
            self.obey(order);
        }
        work
    }

    /// Leaves the migration to the next agent. The hypervisor can carry out its last order only while this agent reads
    /// what it writes: so this waits for a while.
    pub(super) fn leave(&mut self) {
        let clock = self.clock.clone();
        clock.wait_until(LEAVE_TIME, &mut || {
            self.look();
            self.copy.is_none() || matches!(self.reported_guest, Some(SourceGuest::Completed | SourceGuest::Gone))
        });
        self.environment.leave_channels();
    }

    // Orders.

    /// Obeys an order, and reports the guest's state afterwards, whatever came of the order.
    fn obey(&mut self, order: SourceOrder) {
        self.reported_guest = None;
        if order == SourceOrder::Quit {
            return self.quit();
        }
        if order == SourceOrder::CancelMigration {
            self.explain();
        }
        let Some(guest) = self.environment.guest() else {
            if order == SourceOrder::CancelMigration {
                self.environment.give_up_channels();
            }
            return self.look();
        };
        let done = match order {
            // A migration is begun once: this one has begun, or is over.
            SourceOrder::Migrate if self.copy.is_some() || !self.standing.is_open() => Ok(()),
            SourceOrder::Migrate => match self.environment.reserve() {
                Ok(()) => self.migrate(&guest),
                Err(why) => return self.refuse_copy(why),
            },
            SourceOrder::Switch => self.let_go_of_hold(&*guest),
            SourceOrder::Continue => self.go_on(&*guest),
            SourceOrder::CancelMigration => self.cancel(&*guest),
            SourceOrder::Resume => guest.resume().map_err(OrderError::from),
            SourceOrder::Quit => Ok(()),
        };
        if let Err(error) = done {
            let error = crate::error_chain(&error);
            warn!(id = %self.id, "{order:?}: {error}");
            // A late order may be refused because the migration has failed. The reason for the failure stands.
            if self.standing.is_open() {
                self.environment.tell(vec![Input::Detail(self.id, format!("QEMU: {error}"))]);
            }
            if order == SourceOrder::Migrate {
                self.standing.become_first(Standing::Failed);
                self.tell([SourceInput::MigrationFailed]);
            }
        }
        self.look();
    }

    /// Fails the migration, because there is no room for the copy.
    fn refuse_copy(&mut self, why: String) {
        warn!(id = %self.id, "{why}");
        self.standing.become_first(Standing::Failed);
        self.environment.tell(vec![Input::Detail(self.id, why)]);
        self.tell([SourceInput::MigrationFailed]);
        self.look();
    }

    /// Tells why the migration is called off, as far as this worker knows. The copy may take too long: the reason is
    /// whether it converges. Or this host found the pages not to be right, on which the target may have acted first.
    fn explain(&mut self) {
        if !self.standing.become_first(Standing::CalledOff) {
            return;
        }
        // If there is no copy, the hypervisor has let go of the migration, and the reason was told.
        let Some(copy) = self.copy.as_ref().filter(|copy| copy.not_converging_why().is_none()) else { return };
        let found = self.environment.pages().and_then(|pages| pages.failed_here());
        if let Some(why) = found.map(|why| self.advised(why)).or_else(|| copy.why_unfinished()) {
            self.environment.tell(vec![Input::Detail(self.id, why)]);
        }
    }

    /// Returns what was wrong with the pages, and what follows from that.
    fn advised(&self, why: String) -> String {
        match self.environment.pages().and_then(|pages| pages.direct_placement_failure()) {
            Some(_) => why + "; without direct placement it can be moved, and is when it is tried again",
            None => why,
        }
    }

    /// Begins the copy.
    ///
    /// # Errors
    /// The offer is gone, the guest changed, or a channel or the hypervisor does not do its part.
    fn migrate(&mut self, guest: &Arc<dyn Guest>) -> Result<(), OrderError> {
        let offer = self.offer.clone().ok_or(OrderError::NoOffer)?;
        self.is_tuned = true;
        self.hypervisor.listen(guest);
        let now = self.clock.now();
        let promised = self.environment.promised_composition();
        let watch = GuestWatch::begin(now, &**guest, promised).map_err(OrderError::Changed)?;
        let path = self.environment.open_channels(&**guest)?;
        let throttling = if offer.allow_throttle.is_some() { Throttling::Allowed } else { Throttling::Forbidden };
        let slips = guest.switchover_word().is_none();
        let hold = self.is_hold.then(|| HoldDriver::new(offer.downtime_limit_ms, slips));
        let settings = match (self.is_hold, offer.migration_settings()) {
            // Such a hypervisor may get to the switchover before it can be told what may be left.
            (true, settings) if slips => MigrationSettings { downtime_limit_ms: 1, ..settings },
            (_, settings) => settings,
        };
        let held = if self.is_hold { Hold::Held } else { Hold::NotHeld };
        guest.begin_outgoing(&settings, throttling, held, &path)?;
        self.copy = Some(GuestCopy::new(self.id, offer, watch, hold, now));
        Ok(())
    }

    /// Lets go of a guest that is held.
    ///
    /// # Errors
    /// The hypervisor does not do its part. The order is repeated.
    fn let_go_of_hold(&mut self, guest: &dyn Guest) -> Result<(), OrderError> {
        let guest = guest.with_patience(ANSWER_TIME);
        let Some(copy) = &mut self.copy else { return Ok(()) };
        let (now, environment) = (self.clock.now(), &*self.environment);
        Ok(copy.let_go(&CopyLook::new(now, environment, &*guest, &self.peer))?)
    }

    /// Has the hypervisor continue a migration that is at its switchover. Does not wait long for the answer: a QEMU may
    /// be deaf from here on, before it has answered.
    ///
    /// # Errors
    /// The hypervisor refuses, or its connection is gone.
    fn go_on(&mut self, guest: &dyn Guest) -> Result<(), OrderError> {
        // The guest stands still, and waits for this thread.
        self.environment.raise_priority();
        match guest.with_patience(UNRESPONSIVE_WAIT).continue_migration() {
            Err(GuestError::Silent(_)) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Cancels the migration. In the switchover, a QEMU may be deaf as long as its target does not read, while the
    /// guest stands still. Closing the main channel wakes such a QEMU.
    ///
    /// # Errors
    /// The hypervisor refuses or does not answer, or its connection is gone.
    fn cancel(&mut self, guest: &dyn Guest) -> Result<(), OrderError> {
        let cancelled = guest.with_patience(UNRESPONSIVE_WAIT).cancel_migration();
        if cancelled.is_err() {
            self.environment.give_up_channels();
        }
        Ok(cancelled?)
    }

    /// Releases what this host has of a guest that runs at the target. The owner kills the hypervisor, and does not ask
    /// it to end: the disks that it holds open are the other host's by now.
    fn quit(&mut self) {
        self.copy = None;
        if self.wait_for_end() {
            self.environment.release().into_iter().for_each(|text| self.environment.note(text));
        }
        self.look();
    }

    /// Waits until the process has ended. Returns whether it has.
    fn wait_for_end(&self) -> bool {
        self.clock.wait_until(END_TIME, &mut || !self.environment.has_process())
    }

    // Events.

    fn heed(&mut self, event: &GuestEvent) {
        match event {
            GuestEvent::Closed => {
                self.wait_for_end();
                self.look();
            }
            // A guest waits for these two. They are believed at once, without a question to the hypervisor.
            GuestEvent::Migration(MigrationStatus::PreSwitchover) => {
                self.environment.note_standstill();
                self.copy.iter_mut().for_each(|copy| copy.note_standstill(&*self.environment));
                // An answer that was read before this event may be of a later state.
                if !matches!(self.reported_guest, Some(SourceGuest::Device | SourceGuest::Completed)) {
                    self.report_stopped();
                }
            }
            GuestEvent::Migration(MigrationStatus::Device) => {
                if self.reported_guest != Some(SourceGuest::Completed) {
                    self.report_guest(SourceGuest::Device);
                }
            }
            GuestEvent::Migration(_) => self.look(),
            event => self.heed_guest(event),
        }
    }

    /// Takes in an event of the guest, as opposed to its migration.
    fn heed_guest(&mut self, event: &GuestEvent) {
        if *event == GuestEvent::Stopped {
            self.environment.note_standstill();
        }
        let note = self.copy.as_mut().and_then(|copy| copy.guest.hear(event));
        note.into_iter().for_each(|note| self.environment.note(note.to_owned()));
        let is_urgent = matches!(
            event,
            GuestEvent::Stopped
                | GuestEvent::Asleep
                | GuestEvent::Stopping(StopCause::Panicked)
                | GuestEvent::Recomposed
        );
        if is_urgent {
            let guest = self.environment.guest().map(|guest| guest.with_patience(ANSWER_TIME));
            let state = guest.and_then(|guest| guest.run_state().ok());
            state.into_iter().for_each(|state| self.check_guest(&state, Urgency::Now));
        }
    }

    // Questions.

    /// Asks the hypervisor for the guest's state, and reports it.
    pub(super) fn look(&mut self) {
        self.check_channels();
        let Some(guest) = self.environment.guest() else {
            if !self.environment.has_process() {
                self.report_gone();
            }
            return;
        };
        self.hypervisor.listen(&guest);
        let guest = guest.with_patience(ANSWER_TIME);
        self.check_network(&*guest);
        let asked = || -> Result<_, GuestError> { Ok((guest.run_state()?, guest.migration()?, guest.run_state()?)) };
        match asked() {
            // The state changes just now: there is nothing to report.
            Ok((before, _, after)) if before != after => {}
            Ok((_, state, after)) => self.take_answers(&*guest, &state, &after),
            // An event or the next question tells more.
            Err(error) => info!(id = %self.id, "QEMU: {error}"),
        }
    }

    /// Reports the guest's state by its hypervisor's answers.
    fn take_answers(&mut self, hypervisor: &dyn Guest, state: &MigrationState, run_state: &RunState) {
        self.check_guest(run_state, Urgency::IfDue);
        if state.status == MigrationStatus::Cancelling {
            // A hypervisor that is cancelling may wait for this.
            let _ = hypervisor.continue_cancelling();
        }
        if let Some(copy) = &mut self.copy {
            let (now, environment) = (self.clock.now(), &*self.environment);
            copy.look(&CopyLook::new(now, environment, hypervisor, &self.peer), state);
        }
        let status = self.let_go(hypervisor, state.status);
        let has_failed = matches!(status, MigrationStatus::Failed | MigrationStatus::Cancelled);
        if self.copy.is_some() && has_failed {
            return self.fail(hypervisor, state);
        }
        let is_over = matches!(status, MigrationStatus::None) || has_failed;
        if self.is_tuned && self.copy.is_none() && is_over && *run_state == RunState::Running {
            self.forget_tuning(hypervisor);
        }
        match guest(run_state, status) {
            Some(SourceGuest::PreSwitchover) => self.report_stopped(),
            Some(SourceGuest::Completed) => self.report_completed(),
            Some(guest) => self.report_guest(guest),
            None => {}
        }
    }

    /// Calls the migration off if not all of the hypervisor's channels are carried.
    fn check_channels(&mut self) {
        if self.copy.is_none() {
            return;
        }
        if let Some(why) = self.environment.channels_failure()
            && self.standing.become_first(Standing::CalledOff)
        {
            let failed = Input::Source(self.id, SourceInput::MigrationFailed);
            self.environment.tell(vec![Input::Detail(self.id, why), failed]);
        }
    }

    /// Calls the migration off if the network is out while the guest is throttled.
    fn check_network(&mut self, guest: &dyn Guest) {
        let Some(copy) = self.copy.as_mut().filter(|_| self.standing.is_open()) else { return };
        let (now, environment) = (self.clock.now(), &*self.environment);
        if copy.is_out(&CopyLook::new(now, environment, guest, &self.peer)) {
            self.standing.become_first(Standing::CalledOff);
            let (peer, seconds) = (&self.peer, THROTTLED_OUTAGE_TIME.as_secs());
            let why =
                format!("nothing got through to {peer} for {seconds} s, and a throttled guest does not wait for it");
            self.environment.tell(vec![Input::Detail(self.id, why)]);
            self.tell([SourceInput::MigrationFailed]);
        }
    }

    /// Calls the migration off if the guest was stopped, by this run state, or is not as the target was told.
    fn check_guest(&mut self, state: &RunState, urgency: Urgency) {
        if !self.standing.is_open() || matches!(state, RunState::FinishMigrate | RunState::PostMigrate) {
            return;
        }
        let Some((copy, guest)) = self.copy.as_mut().zip(self.environment.guest()) else { return };
        let guest = guest.with_patience(ANSWER_TIME);
        let now = self.clock.now();
        let stopped = copy.guest.stopped(state, &guest.program(), guest.quirks());
        let changed = stopped.or_else(|| match urgency {
            Urgency::Now => copy.guest.check_now(now, &*guest),
            Urgency::IfDue => copy.guest.check_if_due(now, &*guest),
        });
        changed.into_iter().for_each(|why| self.report_changed(why));
    }

    /// Returns the migration's status. It is over only when the hypervisor has let go of it: before, the hypervisor
    /// would refuse the next migration.
    fn let_go(&mut self, guest: &dyn Guest, status: MigrationStatus) -> MigrationStatus {
        let let_go = self.hypervisor.let_go(self.clock.now(), status, || guest.holds_migration().ok());
        // If the other host is out of reach, the hypervisor may wait until its channels are read to their end.
        if matches!(let_go, LetGo::WaitsForNetwork | LetGo::Never) {
            self.environment.give_up_channels();
        }
        match let_go {
            LetGo::Done => status,
            LetGo::Soon | LetGo::WaitsForNetwork => MigrationStatus::Cancelling,
            LetGo::Never => {
                if self.copy.is_some() {
                    warn!(id = %self.id, "{NEVER_ENDS}");
                    self.environment.note(NEVER_ENDS.into());
                    self.environment.tell(vec![Input::Detail(self.id, NEVER_ENDS.into())]);
                }
                MigrationStatus::Cancelled
            }
        }
    }

    /// Resets the hypervisor's settings, because the guest goes on here and may be migrated again.
    fn forget_tuning(&mut self, guest: &dyn Guest) {
        match guest.forget_migration_settings() {
            Ok(()) => self.is_tuned = false,
            // This is tried again after the hypervisor's next answers.
            Err(error) => info!(id = %self.id, "QEMU: {error}"),
        }
    }

    /// Reports that the migration has failed, once the guest here is about to go on.
    fn fail(&mut self, hypervisor: &dyn Guest, state: &MigrationState) {
        let mut is_settled = || hypervisor.run_state().map_or(true, |state| state != RunState::FinishMigrate);
        self.clock.wait_until(RESUME_TIME, &mut is_settled);
        let Ok(run_state) = hypervisor.run_state() else { return };
        let Some(copy) = self.copy.take() else { return };
        self.forget_tuning(hypervisor);
        let guest = without_migration(&run_state);
        self.reported_guest = Some(guest);
        let pages = self.environment.pages();
        if let Some(why) = pages.as_ref().and_then(|pages| pages.direct_placement_failure()) {
            self.environment.set_indirect(why);
        }
        let mut inputs = Vec::new();
        // The target may hear of the reason before this host's hypervisor does, and end the copy.
        if !self.standing.become_first(Standing::Failed) {
            info!(id = %self.id, "QEMU has let go of it");
        } else if let Some(why) =
            copy.not_converging_why().map(str::to_owned).or_else(|| self.environment.channels_failure())
        {
            inputs.push(Input::Detail(self.id, why));
        } else if let Some(why) = pages.and_then(|pages| pages.failed()) {
            inputs.push(Input::Detail(self.id, self.advised(why)));
        } else if let Some(error) = &state.error {
            inputs.push(Input::LastWords(self.id, format!("QEMU: {error}")));
        }
        copy.end(self.clock.now(), &*self.environment);
        inputs.push(Input::Source(self.id, SourceInput::MigrationFailed));
        inputs.push(Input::Source(self.id, SourceInput::Guest(guest)));
        self.environment.tell(inputs);
    }

    // Reports.

    /// Reports that the guest stands still for the switchover. A guest that changed does not go on.
    fn report_stopped(&mut self) {
        if self.copy.as_ref().is_some_and(GuestCopy::is_to_be_held) && self.standing.become_first(Standing::CalledOff) {
            let program = self.environment.guest().map_or_else(|| "its hypervisor".into(), |guest| guest.program());
            let why = format!(
                "{program} stops a guest of which nothing is left to copy, whatever it is told; QEMU from 8.1 on waits \
                 for a word"
            );
            self.environment.tell(vec![Input::Detail(self.id, why)]);
        }
        if !self.standing.has_changed() {
            self.report_guest(SourceGuest::PreSwitchover);
        }
    }

    /// Reports that the hypervisor let go of the guest, whose state is on its way. The guest is compared now: before,
    /// it could still have been changed, and until the target has loaded the state, the guest can be kept here.
    fn report_completed(&mut self) {
        let is_new = self.reported_guest != Some(SourceGuest::Completed) && !self.standing.has_changed();
        if let Some((guest, copy)) = self.environment.guest().zip(self.copy.as_ref()).filter(|_| is_new) {
            let guest = guest.with_patience(ANSWER_TIME);
            let since = self.clock.now();
            let compared = copy.guest.compare_at_standstill(&*guest, self.hypervisor.has_missed_events());
            let took = self.clock.now().saturating_sub(since);
            match compared {
                Ok(()) => info!(id = %self.id, "the guest is as the target was told: compared in {took:?}"),
                Err(why) => self.report_changed(why),
            }
        }
        if let Some(copy) = self.copy.as_mut().filter(|_| is_new) {
            copy.note_paths(&*self.environment);
        }
        self.report_guest(SourceGuest::Completed);
    }

    fn report_changed(&mut self, why: String) {
        warn!(id = %self.id, "called off: {why}");
        let reason = self.standing.become_first(Standing::Changed).then_some(Input::Detail(self.id, why));
        let changed = Input::Source(self.id, SourceInput::GuestChanged);
        self.environment.tell(reason.into_iter().chain([changed]).collect());
    }

    /// Reports that the guest's process has ended, with what is known of the reason.
    fn report_gone(&mut self) {
        // A hypervisor that was killed because its guest runs at the target has no reason to tell.
        if let Some(copy) = self.copy.as_ref().filter(|_| self.reported_guest != Some(SourceGuest::Gone)) {
            let reason = copy.guest.ended();
            // One that let go of its guest has done its work: it may be killed before the order to end it is seen here,
            // and what it said last may be of an earlier migration.
            let has_let_go = self.reported_guest == Some(SourceGuest::Completed) && reason.is_none();
            let words = self.environment.last_words().filter(|_| !has_let_go);
            let words = words.map(|words| format!("its QEMU said: {words}"));
            reason.iter().for_each(|reason| self.environment.explain_end(reason));
            let why: Vec<String> = reason.into_iter().chain(words).collect();
            if !why.is_empty() && self.standing.is_open() {
                self.environment.note(why.join("; "));
                self.environment.tell(vec![Input::Detail(self.id, why.join("; "))]);
            }
        }
        self.report_guest(SourceGuest::Gone);
    }

    fn report_guest(&mut self, guest: SourceGuest) {
        if self.reported_guest != Some(guest) {
            self.reported_guest = Some(guest);
            self.tell([SourceInput::Guest(guest)]);
        }
    }

    fn tell(&self, inputs: impl IntoIterator<Item = SourceInput>) {
        self.environment.tell(inputs.into_iter().map(|input| Input::Source(self.id, input)).collect());
    }
}
