//! Obeys the owner's orders to a source's hypervisor, heeds its events, and tells how the guest is.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use skein_handover::{
    MigrationId, MigrationPhase, MigrationSummary, Order, SourceGuest, SourceInput, SourceOrder, SourcePhase,
};
use skein_hypervisor::{
    Guest, GuestError, GuestEvent, MigrationState, MigrationStatus, RunState, StopCause, Throttling,
};
use tracing::{info, warn};

use super::copy::{CopyLook, GuestCopy};
use super::environment::{OpenChannelsError, SourceEnvironment};
use super::guest_state::{guest, without_migration};
use super::hypervisor_watch::{HypervisorWatch, LetGo};
use super::outage::THROTTLED_OUTAGE_TIME;
use super::standing::Standing;
use crate::clock::Clock;
use crate::migrations::guest_watch::GuestWatch;
use crate::migrations::input::{Input, WorkerInput};
use crate::migrations::offer::Offer;

/// How often progress is asked for.
pub(super) const PROGRESS_PERIOD: Duration = Duration::from_millis(100);
/// A hypervisor that does not answer by then is asked again later: there may be orders to obey.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// One that may be deaf is not waited for.
const UNRESPONSIVE_WAIT: Duration = Duration::from_millis(200);
/// A QEMU that gave up resumes its guest within milliseconds.
const RESUME_TIME: Duration = Duration::from_secs(2);
/// A process whose connection ended is gone by then.
const END_TIME: Duration = Duration::from_secs(1);
/// An agent that is told to end waits so long for a hypervisor that was told to.
const LEAVE_TIME: Duration = Duration::from_millis(800);
const NEVER_ENDS: &str =
    "QEMU never ends this migration: its guest cannot be moved until it is shut down and started again";

/// See the [module](super).
pub(in crate::migrations) struct SourceWorker {
    id: MigrationId,
    /// The target's host.
    peer: String,
    offer: Option<Offer>,
    clock: Arc<dyn Clock>,
    environment: Box<dyn SourceEnvironment>,
    hypervisor: HypervisorWatch,
    /// The copy that is under way: the hypervisor was told to migrate, and its end was not seen yet.
    copy: Option<GuestCopy>,
    standing: Standing,
    /// The hypervisor may have parameters of this migration, which are not for the next.
    is_tuned: bool,
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

/// When the guest's composition is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    Now,
    IfDue,
}

/// Why an order was not obeyed.
#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error("it was begun by an agent that is gone")]
    NoOffer,
    /// The guest is not as the target was told.
    #[error("{0}")]
    Changed(String),
    #[error(transparent)]
    Channels(#[from] OpenChannelsError),
    #[error(transparent)]
    Guest(#[from] GuestError),
}

impl SourceWorker {
    /// A worker for the migration of this summary. It hears the hypervisor's events by `jobs`.
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
            clock,
            environment,
            hypervisor: HypervisorWatch::new(jobs),
            copy: None,
            standing: Standing::default(),
            // By the agent before this one.
            is_tuned: !matches!(summary.stage, MigrationPhase::Source(SourcePhase::Begin | SourcePhase::Prepare)),
            reported_guest: None,
        }
    }

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

    /// Does this job and those that wait. Of orders only the last stands: while a hypervisor was deaf, others were
    /// repeated.
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

    /// The next agent goes on. The hypervisor gets done with what it was told last while somebody reads what it writes.
    pub(super) fn leave(&mut self) {
        let clock = self.clock.clone();
        clock.wait_until(LEAVE_TIME, &mut || {
            self.look();
            self.copy.is_none() || matches!(self.reported_guest, Some(SourceGuest::Completed | SourceGuest::Gone))
        });
        self.environment.leave_channels();
    }

    // Orders.

    /// Does what is ordered, and says how the guest is then, whatever came of it.
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
            // Begun already, or over: a migration is begun once.
            SourceOrder::Migrate if self.copy.is_some() || !self.standing.is_open() => Ok(()),
            SourceOrder::Migrate => match self.environment.reserve() {
                Ok(()) => self.migrate(&guest),
                Err(why) => return self.refuse_copy(why),
            },
            SourceOrder::Continue => self.go_on(&*guest),
            SourceOrder::CancelMigration => self.cancel(&*guest),
            SourceOrder::Resume => guest.resume().map_err(OrderError::from),
            SourceOrder::Quit => Ok(()),
        };
        if let Err(error) = done {
            let error = crate::error_chain(&error);
            warn!(id = %self.id, "{order:?}: {error}");
            // An order may be obeyed after the failure that makes it obsolete: the reason for that stands.
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

    /// There is no room for the copy.
    fn refuse_copy(&mut self, why: String) {
        warn!(id = %self.id, "{why}");
        self.standing.become_first(Standing::Failed);
        self.environment.tell(vec![Input::Detail(self.id, why)]);
        self.tell([SourceInput::MigrationFailed]);
        self.look();
    }

    /// It is called off: because it takes too long perhaps, then says whether it converged; or because its pages were
    /// found not to be right here, which the target may have been the first to act on.
    fn explain(&mut self) {
        if !self.standing.become_first(Standing::CalledOff) {
            return;
        }
        let Some(copy) = self.copy.as_ref().filter(|copy| copy.not_converging_why().is_none()) else { return };
        // Once the hypervisor has let go of it, the reason is told.
        let found = self.environment.pages().and_then(|pages| pages.failed_here());
        if let Some(why) = found.map(|why| self.advised(why)).or_else(|| copy.why_unfinished()) {
            self.environment.tell(vec![Input::Detail(self.id, why)]);
        }
    }

    /// What was wrong with the pages, and what follows.
    fn advised(&self, why: String) -> String {
        match self.environment.pages().and_then(|pages| pages.direct_placement_failure()) {
            Some(_) => why + "; without direct placement it can be moved, and is when it is tried again",
            None => why,
        }
    }

    fn migrate(&mut self, guest: &Arc<dyn Guest>) -> Result<(), OrderError> {
        let offer = self.offer.clone().ok_or(OrderError::NoOffer)?;
        self.is_tuned = true;
        self.hypervisor.listen(guest);
        let now = self.clock.now();
        let promised = self.environment.promised_composition();
        let watch = GuestWatch::begin(now, &**guest, promised).map_err(OrderError::Changed)?;
        let path = self.environment.open_channels(&**guest)?;
        let throttling = if offer.allow_throttle.is_some() { Throttling::Allowed } else { Throttling::Forbidden };
        guest.begin_outgoing(&offer.migration_settings(), throttling, &path)?;
        self.copy = Some(GuestCopy::new(self.id, offer, watch, now));
        Ok(())
    }

    /// From here on a QEMU may be deaf, before it has answered: nobody waits for that.
    fn go_on(&mut self, guest: &dyn Guest) -> Result<(), OrderError> {
        // The guest stands still.
        self.environment.raise_priority();
        match guest.with_patience(UNRESPONSIVE_WAIT).continue_migration() {
            Err(GuestError::Silent(_)) => Ok(()),
            other => Ok(other?),
        }
    }

    /// In the switchover a QEMU may be deaf as long as its target does not read; a main connection that closes wakes
    /// it, and the guest stands still until then.
    fn cancel(&mut self, guest: &dyn Guest) -> Result<(), OrderError> {
        let cancelled = guest.with_patience(UNRESPONSIVE_WAIT).cancel_migration();
        if cancelled.is_err() {
            self.environment.give_up_channels();
        }
        Ok(cancelled?)
    }

    /// The guest runs elsewhere. The owner does not ask the hypervisor to end but kills it, as what it holds of disks
    /// is another's by now; here is what comes after that.
    fn quit(&mut self) {
        self.copy = None;
        if self.wait_for_end() {
            self.environment.release().into_iter().for_each(|text| self.environment.note(text));
        }
        self.look();
    }

    /// Returns whether there is no process any more.
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
            // The two that a guest waits for are believed at once.
            GuestEvent::Migration(MigrationStatus::PreSwitchover) => {
                self.environment.note_standstill();
                self.copy.iter_mut().for_each(|copy| copy.note_standstill(&*self.environment));
                // A look may have seen what came after the event.
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

    /// An event of the guest, not of its migration.
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

    // Looks.

    /// Asks the hypervisor how the guest is, and says so.
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
            // In the middle of a change there is nothing to say.
            Ok((before, _, after)) if before != after => {}
            Ok((_, state, after)) => self.take_answers(&*guest, &state, &after),
            // An event or the next look says more.
            Err(error) => info!(id = %self.id, "QEMU: {error}"),
        }
    }

    /// Says how the guest is by its hypervisor's answers.
    fn take_answers(&mut self, hypervisor: &dyn Guest, state: &MigrationState, run_state: &RunState) {
        self.check_guest(run_state, Urgency::IfDue);
        if state.status == MigrationStatus::Cancelling {
            // It may wait for this.
            let _ = hypervisor.continue_cancelling();
        }
        if let Some(copy) = &mut self.copy {
            let (now, environment) = (self.clock.now(), &*self.environment);
            copy.look(&CopyLook { now, environment, guest: hypervisor, peer: &self.peer }, state);
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
        if copy.is_out(&CopyLook { now, environment, guest, peer: &self.peer }) {
            self.standing.become_first(Standing::CalledOff);
            let (peer, seconds) = (&self.peer, THROTTLED_OUTAGE_TIME.as_secs());
            let why =
                format!("nothing got through to {peer} for {seconds} s, and a throttled guest does not wait for it");
            self.environment.tell(vec![Input::Detail(self.id, why)]);
            self.tell([SourceInput::MigrationFailed]);
        }
    }

    /// Calls the migration off if the guest, which its hypervisor says is in this state, was stopped, or is another
    /// than the target was told.
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

    /// A migration is over when the hypervisor has let go of it: before, the next one would be refused.
    fn let_go(&mut self, guest: &dyn Guest, status: MigrationStatus) -> MigrationStatus {
        let let_go = self.hypervisor.let_go(self.clock.now(), status, || guest.holds_migration().ok());
        // With the other host out of reach its channels may wait for somebody to read what they still write.
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

    /// The guest goes on here: another migration is to find its hypervisor as it was.
    fn forget_tuning(&mut self, guest: &dyn Guest) {
        match guest.forget_migration_settings() {
            Ok(()) => self.is_tuned = false,
            // The next look tries again.
            Err(error) => info!(id = %self.id, "QEMU: {error}"),
        }
    }

    /// The migration is over, and the guest here is about to go on.
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
        // The other end may hear of that before the hypervisor does, and end the copy.
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

    // What is told.

    /// The guest stands still for the switchover: one that changed does not go on.
    fn report_stopped(&mut self) {
        if !self.standing.has_changed() {
            self.report_guest(SourceGuest::PreSwitchover);
        }
    }

    /// The hypervisor let go of the guest, whose state is on its way: what it is now, the target must have. Before,
    /// somebody could still have changed that; until the target has loaded the state, the guest can be kept.
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
        self.report_guest(SourceGuest::Completed);
    }

    fn report_changed(&mut self, why: String) {
        warn!(id = %self.id, "called off: {why}");
        let reason = self.standing.become_first(Standing::Changed).then_some(Input::Detail(self.id, why));
        let changed = Input::Source(self.id, SourceInput::GuestChanged);
        self.environment.tell(reason.into_iter().chain([changed]).collect());
    }

    /// What ran the guest has ended: what is known of why.
    fn report_gone(&mut self) {
        // One that was told to end, as its guest runs elsewhere, is not asked why.
        if let Some(copy) = self.copy.as_ref().filter(|_| self.reported_guest != Some(SourceGuest::Gone)) {
            let words = self.environment.last_words().map(|words| format!("its QEMU said: {words}"));
            let reason = copy.guest.ended();
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
