//! The source's end of one migration: obeys the machine's orders to QEMU, and tells how QEMU is.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use skein_api::{CopyProgress, LogEntry, PageFigures};
use skein_dataplane::source::{DirtyTracking, SourcePages, SourcePagesSettings};
use skein_forecast::{Convergence, ConvergenceStep, ConvergenceWatch, CopySample};
use skein_handover::{
    Input, MigrationId, MigrationPhase, MigrationSummary, Order, SourceGuest, SourceInput, SourceOrder, SourcePhase,
};
use skein_hypervisor::{
    CopyState, Guest, GuestError, GuestEvent, MigrationState, MigrationStatus, RunState, SAMPLE_PAGES, StopCause,
    Throttling,
};
use skein_units::{GIB, about_bytes, exact_time};
use tracing::{info, warn};

use super::context::Context;
use super::guest_watch::GuestWatch;
use super::input::WorkerInput;
use super::offer::Offer;
use crate::clock::wait_until;
use crate::guest_ram;
use crate::outgoing_channels::OutgoingChannels;
use crate::random::random;
use crate::room::{Reservation, agent_bytes, asked};
use crate::to_api::ToApi;
use crate::transport::width;
use crate::vms::{Involvement, Running, Vm};

/// How often progress is asked for.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);
/// A QEMU that does not answer by then is asked again later: there may be orders to obey.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Links that carry at least this part of what they can are full.
const FULL_LINK_SHARE: f64 = 0.6;
/// Of what they carried of late, a look is this part.
const CARRIED_DECAY_SHARE: f64 = 0.1;
/// A throttled guest waits so long for the network.
const THROTTLED_OUTAGE_TIME: Duration = Duration::from_secs(3);
/// One that may be deaf is not waited for.
const UNRESPONSIVE_QMP_WAIT: Duration = Duration::from_millis(200);
/// A QEMU that gave up resumes its guest within milliseconds.
const RESUME_TIME: Duration = Duration::from_secs(2);
/// A QEMU whose migration is over has let go of it within milliseconds. One that has not by then never will.
const LET_GO_TIME: Duration = Duration::from_secs(3);
/// … or waits for the network.
const LET_GO_NETWORK_WAIT: Duration = Duration::from_millis(300);
/// A process whose QMP connection ended is gone by then.
const END_TIME: Duration = Duration::from_secs(1);
/// An agent that is told to end waits so long for a QEMU that was told to.
const LEAVE_TIME: Duration = Duration::from_millis(800);
/// Of what the paths carry, what a guest's last bytes get.
const SWITCHOVER_SHARE: f64 = 0.9;
/// A guest's last pages may become less small than those before.
const PACKING_RATIO_DROP_MAX: f64 = 10.0;
/// What fewer bytes of pages became says nothing.
const PACKING_RATIO_BYTES_MIN: u64 = 1 << 20;
/// What the handover, and comparing what both ends hold, take of the downtime limit; half of it at most.
const HANDOVER_TIME_RESERVED: Duration = Duration::from_millis(25);
/// How long QEMU looks at what a guest writes, and how often: it hashes so many pages at most.
const SAMPLE_TIME: Duration = Duration::from_secs(1);
const SAMPLE_PERIOD: Duration = Duration::from_secs(2);
const SAMPLED_PAGES_MAX: u64 = 16 * SAMPLE_PAGES;
/// Looks of late: a second.
const RECENT_SAMPLES: usize = 10;
/// A guest that may be throttled always is by so many per cent: no less can be said.
const THROTTLE_LEAST_PERCENT: u8 = 1;
/// Memory to know in what the target holds, in per cent of the guest's RAM, unless told otherwise: what it takes for
/// all of it.
pub(crate) const DELTA_MEMORY_DEFAULT_PERCENT: f64 = 4.0;
/// Between two progress entries of the log.
const COPIED_PERIOD: Duration = Duration::from_secs(10);

pub(super) struct SourceWorker {
    context: Arc<Context>,
    id: MigrationId,
    peer: String,
    vm: Option<Arc<Vm>>,
    offer: Option<Offer>,
    jobs: SyncSender<WorkerInput>,
    outgoing: Option<OutgoingChannels>,
    /// Room for what the copy takes of this host.
    reservation: Option<Reservation>,
    /// What becomes of the guest's pages.
    pages: Option<Arc<SourcePages>>,
    /// `migrate` was said and its end not seen yet.
    migrating: bool,
    /// It was under way and has ended without the guest being moved; why was told.
    has_failed: bool,
    /// QEMU may have parameters of this migration, which are not for the next.
    tuned: bool,
    /// What had been read of QEMU's pages at the last look at which that was more than before, and when that was.
    last_progress: (u64, Instant),
    /// What had been received of the other agent at the last look at which that was more than before, and when that
    /// was.
    last_contact: (u64, Instant),
    /// Since when QEMU has held a migration that is over.
    held_since: Option<Instant>,
    /// The connection whose events are heard.
    listened_to: Option<Arc<dyn Guest>>,
    /// An event found no room, or came while no connection was there.
    missed_events: Arc<AtomicBool>,
    reported_guest: Option<SourceGuest>,
    last_rate_sample: Option<(Instant, u64)>,
    counted_last: skein_pages::PageCounts,
    placement_noted: bool,
    /// Bytes of pages that a byte on the wire was, and Mb/s that QEMU's sockets took: at the last looks.
    packing_ratios: VecDeque<f64>,
    socket_mbit_per_s: VecDeque<f64>,
    /// What may be left at the switchover and what the sockets took, as QEMU was steered by last.
    steered: Option<(u64, f64)>,
    /// It was seen not to converge: pages that it writes in every round may wait.
    holds_pages_back: bool,
    held_back_last: u64,
    begun: Instant,
    watch: ConvergenceWatch,
    sampler: Sampler,
    /// The most that the guest was throttled by so far, and since when.
    throttled: Option<(u8, Instant)>,
    /// What happens to the guest meanwhile.
    guest: Option<GuestWatch>,
    /// The guest changed, and that was told.
    has_changed: bool,
    /// Why it will not converge.
    not_converging_why: Option<String>,
    /// Why it would not, at some time.
    did_not_converge_why: Option<String>,
    /// It is called off: the reason is known, and what follows from it is none.
    is_called_off: bool,
    /// What was last seen of whether it converges.
    converges: Option<Convergence>,
    /// Bits a second that the paths carried of late.
    carried_bits_per_s: f64,
    /// The NICs that carry it, and bits a second that they say they can; none: not all say.
    nics: BTreeSet<String>,
    nics_bits_per_s: Option<f64>,
    progress_logged_at: Instant,
}

/// Where a hypervisor may miss what its guest writes, as the data plane has it.
fn dirty_tracking(qemu: &dyn Guest) -> DirtyTracking {
    match qemu.dirty_tracking() {
        skein_hypervisor::DirtyTracking::Exact => DirtyTracking::Exact,
        skein_hypervisor::DirtyTracking::MissesUnalignedBlocks => DirtyTracking::MissesUnalignedBlocks,
        skein_hypervisor::DirtyTracking::MissesAllBlocks => DirtyTracking::MissesAllBlocks,
    }
}

/// What the guest writes, by samples of its pages.
#[derive(Default)]
struct Sampler {
    /// When QEMU began to measure last; none: it may at once.
    since: Option<Instant>,
    is_measuring: bool,
    /// What is measured is of the guest as it was throttled before.
    is_stale: bool,
    throttle: u8,
    last: Option<u64>,
}

impl Sampler {
    /// What came of the last measure of the guest throttled as it is. Begins another now and then.
    fn look(&mut self, qemu: &dyn Guest, ram_bytes: u64, throttle: u8) -> Option<u64> {
        if self.throttle != throttle {
            (self.throttle, self.last, self.is_stale) = (throttle, None, self.is_measuring);
            self.since = self.since.filter(|_| self.is_measuring);
        }
        let lasts = |since: Option<Instant>, time| since.is_none_or(|since| since.elapsed() >= time);
        if self.is_measuring && lasts(self.since, SAMPLE_TIME) {
            let measured = qemu.dirty_rate();
            if let Ok(Some(rate)) = measured {
                self.last = Some(rate).filter(|_| !self.is_stale);
                self.since = self.since.filter(|_| !self.is_stale);
            }
            // One that does not tell is asked to measure again.
            self.is_measuring = matches!(measured, Ok(None)) && !lasts(self.since, SAMPLE_PERIOD);
        }
        if !self.is_measuring && lasts(self.since, SAMPLE_PERIOD) {
            let pages_per_gib = SAMPLE_PAGES.min(SAMPLED_PAGES_MAX * GIB / ram_bytes.max(1));
            self.is_measuring = qemu.measure_dirty_rate(SAMPLE_TIME, pages_per_gib).is_ok();
            (self.since, self.is_stale) = (Some(Instant::now()), false);
        }
        self.last
    }
}

impl SourceWorker {
    pub(super) fn new(
        context: Arc<Context>,
        summary: MigrationSummary,
        offer: Option<Offer>,
        jobs: SyncSender<WorkerInput>,
    ) -> SourceWorker {
        let vm = context.vms.get(&summary.vm).ok();
        // What was granted is that guest alone whose QEMU is marked so.
        let is_granted = matches!(summary.stage, MigrationPhase::Source(SourcePhase::Grant | SourcePhase::Release));
        let vm = vm.filter(|vm| !is_granted || vm.migration() == Some(summary.id));
        if let Some(vm) = &vm {
            vm.set_involvement(Involvement::of(&summary));
        }
        let watch = ConvergenceWatch::new(offer.as_ref().and_then(|offer| offer.allow_throttle).unwrap_or(0));
        SourceWorker {
            context,
            id: summary.id,
            peer: summary.peer,
            vm,
            offer,
            jobs,
            outgoing: None,
            reservation: None,
            pages: None,
            migrating: false,
            has_failed: false,
            // By the agent before this one.
            tuned: !matches!(summary.stage, MigrationPhase::Source(SourcePhase::Begin | SourcePhase::Prepare)),
            last_progress: (0, Instant::now()),
            last_contact: (0, Instant::now()),
            held_since: None,
            listened_to: None,
            missed_events: Arc::default(),
            reported_guest: None,
            last_rate_sample: None,
            counted_last: skein_pages::PageCounts::default(),
            placement_noted: false,
            packing_ratios: VecDeque::new(),
            socket_mbit_per_s: VecDeque::new(),
            steered: None,
            holds_pages_back: false,
            held_back_last: 0,
            begun: Instant::now(),
            watch,
            sampler: Sampler::default(),
            throttled: None,
            guest: None,
            has_changed: false,
            not_converging_why: None,
            did_not_converge_why: None,
            is_called_off: false,
            converges: None,
            carried_bits_per_s: 0.0,
            nics: BTreeSet::new(),
            nics_bits_per_s: None,
            progress_logged_at: Instant::now(),
        }
    }

    pub(super) fn run(mut self, jobs: Receiver<WorkerInput>) {
        loop {
            match jobs.recv_timeout(PROGRESS_PERIOD) {
                Ok(job) => {
                    if let Some(last) = self.work(job, &jobs) {
                        return last(&mut self);
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => return self.leave(),
            }
        }
    }

    /// Does this job and those that wait. Of orders only the last stands: while a QEMU was deaf, others were repeated.
    /// Gives what comes last of all, if this is over.
    fn work(&mut self, job: WorkerInput, jobs: &Receiver<WorkerInput>) -> Option<fn(&mut SourceWorker)> {
        let mut order = None;
        let mut over: Option<fn(&mut SourceWorker)> = None;
        let mut next = Some(job);
        while let Some(job) = next.take() {
            match job {
                WorkerInput::Order(Order::Source(newer)) => order = Some(newer),
                WorkerInput::Order(Order::Target(_)) => {}
                WorkerInput::Look => self.look(),
                WorkerInput::Guest(event) => self.heed(&event),
                WorkerInput::Forget => return Some(|_| ()),
                WorkerInput::Leave => over = Some(SourceWorker::leave),
            }
            next = jobs.try_recv().ok().filter(|_| over.is_none());
        }
        if let Some(order) = order {
            self.obey(order);
        }
        over
    }

    /// The next agent goes on. QEMU gets done with what it was told last while somebody reads what it writes.
    fn leave(&mut self) {
        wait_until(LEAVE_TIME, || {
            self.look();
            !self.migrating || matches!(self.reported_guest, Some(SourceGuest::Completed | SourceGuest::Gone))
        });
        if let Some(tap) = self.outgoing.take() {
            tap.leave();
        }
    }

    fn running(&self) -> Option<Running> {
        self.vm.as_ref()?.running()
    }

    /// Does what is ordered, and says how QEMU is then, whatever came of it.
    fn obey(&mut self, order: SourceOrder) {
        self.reported_guest = None;
        if order == SourceOrder::Quit {
            return self.quit();
        }
        if order == SourceOrder::CancelMigration {
            self.explain();
        }
        let Some(running) = self.running() else {
            if order == SourceOrder::CancelMigration {
                self.give_up();
            }
            return self.look();
        };
        if order == SourceOrder::Migrate
            && !self.migrating
            && let Err(why) = self.reserve()
        {
            warn!(id = %self.id, "{why}");
            self.context.tell(vec![Input::Detail(self.id, why)]);
            self.context.source(self.id, [SourceInput::MigrationFailed]);
            return self.look();
        }
        let done = match order {
            SourceOrder::Migrate if self.migrating => Ok(()),
            SourceOrder::Migrate => self.migrate(&running.guest),
            SourceOrder::Continue => self.go_on(&*running.guest),
            SourceOrder::CancelMigration => self.cancel(&*running.guest),
            SourceOrder::Resume => running.guest.resume().map_err(|error| error.to_string()),
            SourceOrder::Quit => Ok(()),
        };
        if let Err(error) = done {
            warn!(id = %self.id, "{order:?}: {error}");
            // An order may be obeyed after the failure that makes it obsolete: the reason for that stands.
            if refusal_is_reason(self.is_called_off, self.has_failed) {
                self.context.tell(vec![Input::Detail(self.id, format!("QEMU: {error}"))]);
            }
            if order == SourceOrder::Migrate {
                self.context.source(self.id, [SourceInput::MigrationFailed]);
            }
        }
        self.look();
    }

    /// It is called off: because it takes too long perhaps, then says whether it converged; or because its pages were
    /// found not to be right here, which the target may have been the first to act on.
    fn explain(&mut self) {
        if std::mem::replace(&mut self.is_called_off, true) || self.not_converging_why.is_some() || self.has_changed {
            return;
        }
        let never = match self.converges {
            Some(never @ Convergence::Never(_)) => {
                self.did_not_converge_why.clone().or_else(|| Some(never.to_string()))
            }
            _ => None,
        };
        // Once QEMU has let go of it, the reason is told.
        let found = self.pages.as_ref().filter(|_| self.migrating).and_then(|pages| pages.failed_here());
        if let Some(why) = found.map(|why| self.advised(why)).or(never) {
            self.context.tell(vec![Input::Detail(self.id, why)]);
        }
    }

    /// What was wrong with the pages, and what follows.
    fn advised(&self, why: String) -> String {
        match self.pages.as_ref().and_then(|pages| pages.direct_placement_failure()) {
            Some(_) => why + "; without direct placement it can be moved, and is when it is tried again",
            None => why,
        }
    }

    /// Has room on this host for what the copy takes. Another one that was begun since the check may have taken what
    /// there was.
    fn reserve(&mut self) -> Result<(), String> {
        let (Some(vm), Some(offer)) = (&self.vm, &self.offer) else { return Ok(()) };
        let delta_memory = offer.delta_memory.unwrap_or(DELTA_MEMORY_DEFAULT_PERCENT);
        let ram_bytes = offer.need.map(|need| need.ram_bytes).or_else(|| asked(vm)).unwrap_or(0);
        // Who asks again gives back first what was had.
        self.reservation = None;
        self.reservation = Some(self.context.rooms.admit_copy(self.id, vm, agent_bytes(ram_bytes, delta_memory))?);
        Ok(())
    }

    fn migrate(&mut self, qemu: &Arc<dyn Guest>) -> Result<(), String> {
        let offer = self.offer.clone().ok_or("it was begun by an agent that is gone")?;
        self.tuned = true;
        self.listen(qemu);
        let qemu = &**qemu;
        let vm = self.vm.as_ref().ok_or("it is gone")?;
        self.guest = Some(GuestWatch::begin(qemu, vm.promised_composition())?);
        self.context.vms.leaves(vm, self.id).map_err(|error| crate::error_chain(&error))?;
        let path = self.context.dirs.outgoing_socket(self.id);
        let packers = self.context.packers.clone().filter(|_| offer.transport.compresses());
        packers.iter().for_each(|packers| packers.begin());
        let pages = SourcePages::new(SourcePagesSettings {
            packers,
            width: width(offer.transport),
            direct: offer.indirect.is_none(),
            channels: u16::from(offer.channels),
            key: random(),
            ram: vm.process().and_then(|process| guest_ram::find(qemu, process.id().pid)),
            delta_memory: offer.delta_memory.unwrap_or(DELTA_MEMORY_DEFAULT_PERCENT) / 100.0,
            kept_marks: vm.process().and_then(|qemu| self.context.kept.take_marks(&vm.name, &self.peer, qemu.id())),
            dirty_tracking: dirty_tracking(qemu),
        });
        self.pages = Some(pages.clone());
        let Context { peers, keeper_command: keeper, .. } = &*self.context;
        let tap = OutgoingChannels::start(&path, peers, &self.peer, self.id, pages, keeper);
        self.outgoing = Some(tap.map_err(|error| crate::error_chain(&error))?);
        let throttling = if offer.allow_throttle.is_some() { Throttling::Allowed } else { Throttling::Forbidden };
        qemu.begin_outgoing(&offer.migration_settings(), throttling, &path).map_err(|error| error.to_string())?;
        self.migrating = true;
        Ok(())
    }

    /// From here on QEMU may be deaf, before it has answered: nobody waits for that.
    fn go_on(&mut self, qemu: &dyn Guest) -> Result<(), String> {
        // The guest stands still.
        skein_host::raise_thread_priority();
        match qemu.with_patience(UNRESPONSIVE_QMP_WAIT).continue_migration() {
            Err(GuestError::Silent(_)) => Ok(()),
            other => other.map_err(|error| error.to_string()),
        }
    }

    /// In the switchover QEMU may be deaf as long as its target does not read; a main connection that closes wakes it,
    /// and the guest stands still until then.
    fn cancel(&mut self, qemu: &dyn Guest) -> Result<(), String> {
        let cancelled = qemu.with_patience(UNRESPONSIVE_QMP_WAIT).cancel_migration();
        if cancelled.is_err() {
            self.give_up();
        }
        cancelled.map_err(|error| error.to_string())
    }

    /// Frees a QEMU that does not hear.
    fn give_up(&self) {
        self.outgoing.iter().for_each(OutgoingChannels::give_up);
    }

    /// Calls the migration off if not all of QEMU's connections are carried.
    fn check_outgoing(&self) {
        if let Some(why) =
            self.outgoing.as_ref().and_then(OutgoingChannels::failed).filter(|_| self.migrating && !self.has_changed)
        {
            let failed = Input::Source(self.id, SourceInput::MigrationFailed);
            self.context.tell(vec![Input::Detail(self.id, why), failed]);
        }
    }

    /// Has events come in, of the connection that is there now.
    fn listen(&mut self, qemu: &Arc<dyn Guest>) {
        if self.listened_to.as_ref().is_some_and(|heard| !heard.is_closed()) {
            return;
        }
        let (jobs, missed) = (self.jobs.clone(), self.missed_events.clone());
        missed.fetch_or(self.listened_to.is_some(), Ordering::SeqCst);
        qemu.forward(Box::new(move |event| {
            if jobs.try_send(WorkerInput::Guest(event)).is_err() {
                missed.store(true, Ordering::SeqCst);
            }
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
            // The two that a guest waits for are believed at once.
            GuestEvent::Migration(MigrationStatus::PreSwitchover) => {
                self.context.view.stopped(self.id);
                self.note_not_converging(None);
                self.tell_stopped();
            }
            GuestEvent::Migration(MigrationStatus::Device) => self.report_guest(SourceGuest::Device),
            GuestEvent::Migration(_) => self.look(),
            event => self.heed_guest(event),
        }
    }

    /// An event of the guest, not of its migration.
    fn heed_guest(&mut self, event: &GuestEvent) {
        if *event == GuestEvent::Stopped {
            self.context.view.stopped(self.id);
        }
        let note = self.guest.as_mut().and_then(|guest| guest.hear(event));
        note.into_iter().for_each(|note| self.note(note.to_owned()));
        let is_urgent = matches!(
            event,
            GuestEvent::Stopped
                | GuestEvent::Asleep
                | GuestEvent::Stopping(StopCause::Panicked)
                | GuestEvent::Recomposed
        );
        if is_urgent {
            let state = self.running().and_then(|running| running.guest.with_patience(ANSWER_TIME).run_state().ok());
            state.into_iter().for_each(|state| self.look_at_guest(&state, true));
        }
    }

    /// Calls the migration off if the guest, which QEMU says is in this state, was stopped, or is another than the
    /// target was told.
    fn look_at_guest(&mut self, state: &RunState, now: bool) {
        let Some(running) = self.running().filter(|_| self.migrating && !self.has_changed && !self.is_called_off)
        else {
            return;
        };
        let Some(guest) = &mut self.guest else { return };
        let qemu = running.guest.with_patience(ANSWER_TIME);
        if matches!(state, RunState::FinishMigrate | RunState::PostMigrate) {
            return;
        }
        let stopped = guest.stopped(state, &qemu.program(), qemu.quirks());
        if let Some(why) = stopped.or_else(|| guest.check_composition(&*qemu, now)) {
            self.changed(&why);
        }
    }

    /// The guest stands still for the switchover: one that changed does not go on.
    fn tell_stopped(&mut self) {
        if !self.has_changed {
            self.report_guest(SourceGuest::PreSwitchover);
        }
    }

    /// QEMU let go of the guest, whose state is on its way: what it is now, the target must have. Before, somebody
    /// could still have changed that; until the target has loaded the state, the guest can be kept.
    fn tell_completed(&mut self) {
        let is_new = self.reported_guest != Some(SourceGuest::Completed) && !self.has_changed;
        if let Some((running, guest)) = self.running().zip(self.guest.as_ref()).filter(|_| is_new) {
            let qemu = running.guest.with_patience(ANSWER_TIME);
            let since = Instant::now();
            let compared = guest.compare_at_standstill(&*qemu, self.missed_events.load(Ordering::SeqCst));
            let took = since.elapsed();
            match compared {
                Ok(()) => info!(id = %self.id, "the guest is as the target was told: compared in {took:?}"),
                Err(why) => self.changed(&why),
            }
        }
        self.report_guest(SourceGuest::Completed);
    }

    fn changed(&mut self, why: &str) {
        self.has_changed = true;
        warn!(id = %self.id, "called off: {why}");
        let changed = Input::Source(self.id, SourceInput::GuestChanged);
        self.context.tell(vec![Input::Detail(self.id, why.to_owned()), changed]);
    }

    /// Its QEMU ended: what is known of why.
    fn tell_gone(&mut self) {
        // One that was told to end, as its guest runs elsewhere, is not asked why.
        if self.guest.is_some() && self.reported_guest != Some(SourceGuest::Gone) && self.migrating {
            let words = self.vm.as_ref().and_then(|vm| vm.last_words());
            let words = words.map(|words| format!("its QEMU said: {words}"));
            let reason = self.guest.as_ref().and_then(GuestWatch::ended);
            self.vm.iter().zip(&reason).for_each(|(vm, reason)| vm.explain_end(reason));
            let why: Vec<String> = reason.into_iter().chain(words).collect();
            if !why.is_empty() && !self.is_called_off {
                self.note(why.join("; "));
                self.context.tell(vec![Input::Detail(self.id, why.join("; "))]);
            }
        }
        self.report_guest(SourceGuest::Gone);
    }

    fn report_guest(&mut self, guest: SourceGuest) {
        if self.reported_guest != Some(guest) {
            self.reported_guest = Some(guest);
            self.context.source(self.id, [SourceInput::Guest(guest)]);
        }
    }

    /// Asks QEMU how it is, and says so.
    fn look(&mut self) {
        self.check_outgoing();
        let Some(running) = self.running() else {
            if self.vm.as_ref().is_none_or(|vm| vm.process().is_none()) {
                self.tell_gone();
            }
            return;
        };
        let qemu = running.guest.with_patience(ANSWER_TIME);
        self.listen(&running.guest);
        self.heed_outage(&*qemu);
        let asked = || -> Result<_, GuestError> { Ok((qemu.run_state()?, qemu.migration()?, qemu.run_state()?)) };
        let (before, info, after) = match asked() {
            Ok(answers) => answers,
            Err(error) => {
                // An event or the next look says more.
                info!(id = %self.id, "QEMU: {error}");
                return;
            }
        };
        // In the middle of a change there is nothing to say.
        if before != after {
            return;
        }
        self.look_at_guest(&after, false);
        if info.status == MigrationStatus::Cancelling {
            // It may wait for this.
            let _ = qemu.continue_cancelling();
        }
        self.progress(&*qemu, &info);
        let status = self.let_go(&*qemu, info.status);
        let has_failed = matches!(status, MigrationStatus::Failed | MigrationStatus::Cancelled);
        if self.migrating && has_failed {
            return self.failed(&*qemu, &info);
        }
        let is_over = matches!(status, MigrationStatus::None) || has_failed;
        if self.tuned && !self.migrating && is_over && after == RunState::Running {
            self.forget_tuning(&*qemu);
        }
        match guest(&after, status) {
            Some(SourceGuest::PreSwitchover) => self.tell_stopped(),
            Some(SourceGuest::Completed) => self.tell_completed(),
            Some(guest) => self.report_guest(guest),
            None => {}
        }
    }

    /// A migration is over when QEMU has let go of it: before, the next one would be refused.
    fn let_go(&mut self, qemu: &dyn Guest, status: MigrationStatus) -> MigrationStatus {
        if !matches!(status, MigrationStatus::Cancelling | MigrationStatus::Cancelled | MigrationStatus::Failed) {
            return status;
        }
        if qemu.holds_migration().is_ok_and(|holds| !holds) {
            self.held_since = None;
            return status;
        }
        let since = *self.held_since.get_or_insert_with(Instant::now);
        // With the other host out of reach its channels may wait for somebody to read what they still write.
        if since.elapsed() >= LET_GO_NETWORK_WAIT {
            self.give_up();
        }
        if since.elapsed() < LET_GO_TIME {
            return MigrationStatus::Cancelling;
        }
        let text = "QEMU never ends this migration: its guest cannot be moved until it is shut down and started again";
        if self.migrating {
            warn!(id = %self.id, "{text}");
            self.note(text.into());
            self.context.tell(vec![Input::Detail(self.id, text.into())]);
        }
        MigrationStatus::Cancelled
    }

    /// The guest goes on here: another migration is to find its QEMU as it was.
    fn forget_tuning(&mut self, qemu: &dyn Guest) {
        match qemu.forget_migration_settings() {
            Ok(()) => self.tuned = false,
            // The next look tries again.
            Err(error) => info!(id = %self.id, "QEMU: {error}"),
        }
    }

    /// Calls the migration off if the network is out while the guest is throttled. QEMU would go on with that; from 9.2
    /// on it waits in its main loop for the migration's thread, which waits for the network, so that the guest stands
    /// still (the timer of its migration/cpu-throttle.c).
    fn heed_outage(&mut self, qemu: &dyn Guest) {
        let Some(pages) = self.pages.as_ref().filter(|_| self.migrating && !self.is_called_off) else { return };
        let counts = pages.counts();
        let read = counts.guest_bytes().saturating_add(counts.other_bytes);
        if read != self.last_progress.0 || counts.pages == 0 {
            self.last_progress = (read, Instant::now());
        }
        let received =
            self.context.paths(&self.peer, |paths, _| paths.iter().map(|path| path.status.received_bytes).sum());
        if received != self.last_contact.0 {
            self.last_contact = (received, Instant::now());
        }
        let may_freeze = qemu.quirks().freezes_throttled_without_network
            && self.offer.as_ref().is_some_and(|o| o.allow_throttle.is_some());
        if self.last_progress.1.elapsed() < THROTTLED_OUTAGE_TIME || !may_freeze && self.throttled.is_none() {
            return;
        }
        // Where nothing is on the way, QEMU has nothing to send. What is may be of another migration, which goes on.
        let is_others =
            self.context.view.copying_to(&self.peer) > 1 && self.last_contact.1.elapsed() < THROTTLED_OUTAGE_TIME;
        let is_out = self.context.paths(&self.peer, |paths, _| {
            let is_under_way = paths.iter().any(|path| path.status.inflight_bytes > 0);
            paths.iter().all(|path| !path.status.usable) || is_under_way && !is_others
        });
        if is_out {
            let seconds = THROTTLED_OUTAGE_TIME.as_secs();
            let why = format!(
                "nothing got through to {} for {seconds} s, and a throttled guest does not wait for it",
                self.peer
            );
            self.is_called_off = true;
            self.context.tell(vec![Input::Detail(self.id, why)]);
            self.context.source(self.id, [SourceInput::MigrationFailed]);
        }
    }

    /// The migration is over, and the guest here is about to go on.
    fn failed(&mut self, qemu: &dyn Guest, info: &MigrationState) {
        let is_settled = || qemu.run_state().map_or(true, |state| state != RunState::FinishMigrate);
        wait_until(RESUME_TIME, is_settled);
        let Ok(state) = qemu.run_state() else { return };
        (self.migrating, self.has_failed) = (false, true);
        self.forget_tuning(qemu);
        // It ended with the migration.
        self.note_throttle(0);
        let guest = without_migration(&state);
        self.reported_guest = Some(guest);
        let mut inputs = Vec::new();
        if let (Some(vm), Some(why)) =
            (&self.vm, self.pages.as_ref().and_then(|pages| pages.direct_placement_failure()))
        {
            vm.set_indirect(why);
        }
        // The other end may hear of that before QEMU does, and end the copy.
        if self.is_called_off || self.has_changed {
            info!(id = %self.id, "QEMU has let go of it");
        } else if let Some(why) =
            self.not_converging_why.clone().or_else(|| self.outgoing.as_ref().and_then(OutgoingChannels::failed))
        {
            inputs.push(Input::Detail(self.id, why));
        } else if let Some(why) = self.pages.as_ref().and_then(|pages| pages.failed()) {
            inputs.push(Input::Detail(self.id, self.advised(why)));
        } else if let Some(error) = &info.error {
            inputs.push(Input::LastWords(self.id, format!("QEMU: {error}")));
        }
        inputs.push(Input::Source(self.id, SourceInput::MigrationFailed));
        inputs.push(Input::Source(self.id, SourceInput::Guest(guest)));
        self.context.tell(inputs);
    }

    fn progress(&mut self, qemu: &dyn Guest, info: &MigrationState) {
        let Some(ram) = info.copy.filter(|_| self.migrating) else { return };
        let now = Instant::now();
        let bits_per_s = match self.last_rate_sample {
            Some((at, bytes)) if ram.transferred_bytes >= bytes => {
                ((ram.transferred_bytes - bytes) as f64 * 8.0 / (now - at).as_secs_f64().max(0.001)) as u64
            }
            _ => 0,
        };
        self.last_rate_sample = Some((now, ram.transferred_bytes));
        let throttle_percent = info.throttle_percent.filter(|percent| *percent > THROTTLE_LEAST_PERCENT).unwrap_or(0);
        self.note_throttle(throttle_percent);
        let converges = match info.status {
            MigrationStatus::Active => {
                let fits = self.steer(qemu, &ram);
                self.help(qemu, &ram, fits, info.throttle_percent.unwrap_or(0))
            }
            _ => None,
        };
        self.converges = converges.or(self.converges);
        let copy = CopyProgress {
            total_bytes: ram.total_bytes,
            remaining_bytes: ram.remaining_bytes,
            transferred_bytes: ram.transferred_bytes,
            round: ram.round,
            dirty_bytes_per_s: ram.dirty_bytes_per_s,
            bits_per_s,
            converges: converges.to_api(),
            throttle_percent,
            pages: self.pages.as_ref().map(|pages| self.counted(pages, ram.total_bytes)),
        };
        let log = self.progress_logged_at.elapsed() >= COPIED_PERIOD || info.status.is_over();
        if log {
            self.progress_logged_at = now;
        }
        if let Some(pages) = &copy.pages {
            self.note_placement(pages);
        }
        self.context.view.copied(self.id, copy, log);
    }

    /// Where the bytes went so far, of a guest with so much RAM.
    fn counted(&self, pages: &SourcePages, ram_bytes: u64) -> PageFigures {
        let counts = pages.counts();
        let offer = self.offer.as_ref();
        let sent_bytes = counts.guest_bytes().saturating_sub(counts.repaired_bytes());
        PageFigures {
            transport: offer.map_or_else(skein_inventory::Route::default, |offer| offer.transport).to_api(),
            direct: pages.is_direct(),
            why_not_direct: offer.and_then(|offer| offer.indirect.clone()).unwrap_or_else(|| pages.why_not_direct()),
            again_bytes: sent_bytes.saturating_sub(ram_bytes),
            counts: counts.to_api(),
        }
    }

    /// Notes once how the pages get to the target's RAM.
    fn note_placement(&mut self, pages: &PageFigures) {
        let Some(direct) = pages.direct.filter(|_| !self.placement_noted) else { return };
        self.placement_noted = true;
        let text = match (direct, &pages.why_not_direct[..]) {
            (true, "") => "direct placement: yes".into(),
            (true, why) => format!("direct placement: of smaller blocks only: {why}"),
            (false, why) => format!("direct placement: no: {why}"),
        };
        self.note(text);
        if self.pages.as_ref().is_some_and(|pages| pages.builds_on_kept()) {
            self.note(format!("built on what {} kept of the guest's RAM", self.peer));
        }
    }

    /// How many bytes of pages a byte on the wire was, of late at least: the last pages are like those before.
    fn packing_ratio(&mut self) -> f64 {
        let Some(pages) = &self.pages else { return 1.0 };
        let (now, before) = (pages.counts(), self.counted_last);
        // What is held says nothing of what pages become.
        let spared = pages.held_back_bytes();
        let spared = spared - std::mem::replace(&mut self.held_back_last, spared);
        let guest = now.guest_bytes().saturating_sub(before.guest_bytes()).saturating_sub(spared);
        if guest >= PACKING_RATIO_BYTES_MIN {
            let wire = now.wire_bytes().saturating_sub(before.wire_bytes());
            self.counted_last = now;
            recall(&mut self.packing_ratios, (guest as f64 / wire.max(1) as f64).clamp(1.0, PACKING_RATIO_DROP_MAX));
        }
        self.packing_ratios.iter().copied().reduce(f64::min).unwrap_or(1.0)
    }

    /// Tells QEMU what may be left at the switchover, for what it takes to be within the limit: what fits through this
    /// guest's share of what the paths were seen to carry, less what framing and other traffic take, in the time that
    /// the handover leaves. Its own measure takes what buffers swallow for what arrives. Until there is one, its own
    /// has to do: what NICs say of themselves may be ten times what the network gives. Gives the bytes that would fit.
    fn steer(&mut self, qemu: &dyn Guest, ram: &CopyState) -> u64 {
        let limit_ms = self.offer.as_ref().map_or(0, |offer| offer.downtime_limit_ms);
        let limit = Duration::from_millis(limit_ms);
        let rate = self.context.paths(&self.peer, |_, meter| meter.sum_of_full()) as f64 / 8.0;
        let sharing = self.context.view.copying_to(&self.peer).max(1);
        let time = (limit - HANDOVER_TIME_RESERVED.min(limit / 2)).as_secs_f64();
        let gain = self.packing_ratio();
        let wire = rate * SWITCHOVER_SHARE / f64::from(sharing) * time;
        // Where pages become small, somebody else than the paths is the slowest.
        let fits = self.watch.moves().map_or(wire * gain, |moves| (wire * gain).min(moves * time)) as u64;
        self.holds_pages_back |= self.watch.is_hopeless();
        let held = self.pages.as_ref().map_or(0, |pages| {
            // Half of it may be pages that wait until then, where there is no other way. They go whole.
            pages.set_held_bytes_max(if self.holds_pages_back { (wire / 2.0) as u64 } else { 0 });
            (pages.held_bytes() as f64 * gain) as u64
        });
        recall(&mut self.socket_mbit_per_s, ram.socket_mbit_per_s);
        // The next moment may be as fast as any of late.
        let mbps = self.socket_mbit_per_s.iter().copied().fold(0.0, f64::max);
        if fits == 0 {
            return (ram.socket_mbit_per_s * 1e6 / 8.0 * limit.as_secs_f64()) as u64;
        }
        let bytes = if held == 0 { self.watch.aim(fits) } else { fits.saturating_sub(held).max(fits / 8) };
        // Small changes are not worth a command.
        let is_near =
            |(before, took): (u64, f64)| bytes.abs_diff(before) <= before / 10 && (mbps - took).abs() <= took / 10.0;
        if !self.steered.is_some_and(is_near) {
            match qemu.set_switchover(bytes, limit_ms, mbps) {
                Ok(()) => self.steered = Some((bytes, mbps)),
                Err(error) => info!(id = %self.id, "QEMU: {error}"),
            }
        }
        fits
    }

    /// Looks whether the copy converges with so much left at the switchover, and does what is allowed for it.
    fn help(&mut self, qemu: &dyn Guest, ram: &CopyState, fits: u64, throttle: u8) -> Option<Convergence> {
        let (transport, has_deadline) = self.offer.as_ref().map(|offer| (offer.transport, offer.has_deadline))?;
        if self.not_converging_why.is_some() && !has_deadline {
            return None;
        }
        let (nics, carried) = self.context.paths(&self.peer, |mut paths, meter| {
            paths.retain(|path| path.status.usable);
            let carried: u64 = paths.iter().filter_map(|path| meter.rate(path)).sum();
            let nics: BTreeSet<String> = paths.into_iter().map(|path| path.info.nic).collect();
            (nics, carried as f64)
        });
        self.carried_bits_per_s += (carried - self.carried_bits_per_s) * CARRIED_DECAY_SHARE;
        if nics != self.nics {
            self.nics_bits_per_s = speed(&nics);
            self.nics.clone_from(&nics);
        }
        // Nobody knows of virtual ones.
        let is_full = self.nics_bits_per_s.is_none_or(|speed| self.carried_bits_per_s >= FULL_LINK_SHARE * speed);
        let look = CopySample {
            at: self.begun.elapsed(),
            round: ram.round,
            sent: ram.sent_page_bytes,
            remaining: ram.remaining_bytes,
            fits,
            throttle,
            sampled: self.sampled(qemu, ram, throttle),
            nics: if transport.uses_all_nics() && is_full { nics.len() as u32 } else { 0 },
        };
        let (converges, help) = self.watch.sample(&look);
        match help {
            ConvergenceStep::None => self.note_not_converging(None),
            ConvergenceStep::Throttle(percent, pace) => {
                self.note(format!("throttles the guest's CPUs by {percent} %: {pace}"));
                if let Err(error) = qemu.set_throttle(percent) {
                    self.note(format!("QEMU does not throttle it: {error}"));
                }
            }
            ConvergenceStep::GiveUp(pace, lack) => {
                // It may have got there meanwhile.
                if qemu.migration().is_ok_and(|now| now.status != MigrationStatus::Active) {
                    return converges;
                }
                let is_new = self.not_converging_why.is_none();
                let short =
                    if is_full { "" } else { "; the links are not full: this host or the other is short of CPU" };
                self.note_not_converging(Some(format!("will not converge: {pace}: {lack}{short}")));
                // Who said until when to try wants it tried until then.
                if is_new && !has_deadline {
                    self.context.source(self.id, [SourceInput::MigrationFailed]);
                }
            }
        }
        converges
    }

    /// Bytes of different pages that the guest was last seen to write within a second. From the second round on, of one
    /// that may be throttled or will not converge: nobody else asks.
    fn sampled(&mut self, qemu: &dyn Guest, ram: &CopyState, throttle: u8) -> Option<u64> {
        let may_throttle = self.offer.as_ref().is_some_and(|offer| offer.allow_throttle.is_some());
        if ram.round < 2 || !may_throttle && !self.watch.is_hopeless() {
            return None;
        }
        self.sampler.look(qemu, ram.total_bytes, throttle)
    }

    /// Says why it will not converge, once; none: it may.
    fn note_not_converging(&mut self, why: Option<String>) {
        if self.not_converging_why.is_some() == why.is_some() {
            return;
        }
        if let Some(why) = &why {
            self.note(why.clone());
            self.did_not_converge_why = Some(why.clone());
        }
        self.context.tell(vec![Input::Detail(self.id, why.clone().unwrap_or_default())]);
        self.not_converging_why = why;
    }

    /// Notes what throttling cost the guest, once it is over.
    fn note_throttle(&mut self, percent: u8) {
        match (percent, self.throttled) {
            (0, Some((most, since))) => {
                self.throttled = None;
                self.note(format!(
                    "the guest was throttled by up to {most} % for {:.1} s",
                    since.elapsed().as_secs_f64()
                ));
            }
            (0, None) => {}
            (_, before) => {
                let (most, since) = before.unwrap_or((0, Instant::now()));
                self.throttled = Some((most.max(percent), since));
            }
        }
    }

    fn note(&self, text: String) {
        info!(id = %self.id, "{text}");
        self.context.view.log(self.id, LogEntry::Note { text });
    }

    /// The guest runs elsewhere. The owner does not ask QEMU to end but kills it, as what it holds of disks is
    /// another's by now; here is what comes after that.
    fn quit(&mut self) {
        self.guest = None;
        let Some(vm) = self.vm.clone() else { return self.look() };
        if wait_until(END_TIME, || vm.process().is_none()) {
            self.context.vms.released(&vm);
            self.keep_ram(&vm.name);
        }
        self.look();
    }

    /// Keeps the RAM of the guest that is the other host's, for its way back.
    fn keep_ram(&mut self, vm: &str) {
        let Some(keeping) = self.offer.as_ref().and_then(|offer| offer.keep) else {
            return self.context.kept.let_go_of_rams();
        };
        let Some(ram) = self.pages.take().and_then(|pages| pages.ram_to_keep(self.id.0)) else { return };
        let host = self.context.peers.host();
        let bytes = about_bytes(ram.bytes());
        let text = match self.context.kept.put_ram(vm, &self.peer, ram, keeping) {
            true => format!("{host} keeps {bytes} of the guest's RAM for {}", exact_time(keeping.time_s)),
            false => {
                format!(
                    "{host} does not keep {bytes} of the guest's RAM: {} are allowed",
                    about_bytes(keeping.ram_bytes)
                )
            }
        };
        self.note(text);
    }
}

/// Whether a refused order is the reason why a migration does not go on: not if there was one before.
fn refusal_is_reason(is_called_off: bool, has_failed: bool) -> bool {
    !is_called_off && !has_failed
}

/// Keeps it with those of late.
fn recall(recent: &mut VecDeque<f64>, value: f64) {
    recent.push_back(value);
    if recent.len() > RECENT_SAMPLES {
        recent.pop_front();
    }
}

/// Bits a second that these NICs say they can carry together; none: not all say.
fn speed(names: &BTreeSet<String>) -> Option<f64> {
    let nics = skein_host::nics().ok()?;
    let of = |name: &String| nics.iter().find(|nic| nic.name == *name)?.speed_mbit;
    names.iter().map(|name| of(name).map(|mbit| f64::from(mbit) * 1e6)).sum()
}

/// What QEMU's two states say together; none where they change just now.
fn guest(state: &RunState, status: MigrationStatus) -> Option<SourceGuest> {
    use MigrationStatus as Status;
    let is_under_way = matches!(status, Status::Setup | Status::Active | Status::WaitUnplug | Status::Cancelling);
    match (state, status) {
        (RunState::FinishMigrate, Status::PreSwitchover) => Some(SourceGuest::PreSwitchover),
        (RunState::FinishMigrate, Status::Device) => Some(SourceGuest::Device),
        (RunState::FinishMigrate, _) => None,
        (RunState::PostMigrate, Status::Completed) => Some(SourceGuest::Completed),
        (RunState::PostMigrate, _) => Some(SourceGuest::Stopped),
        _ if is_under_way => Some(SourceGuest::Migrating),
        _ => Some(without_migration(state)),
    }
}

/// What QEMU's run state says of a guest that is in no migration, or whose migration has failed.
fn without_migration(state: &RunState) -> SourceGuest {
    match state {
        // One that sleeps is as good as one that runs: its QEMU wakes it.
        RunState::Running | RunState::Suspended => SourceGuest::Running,
        RunState::FinishMigrate | RunState::PostMigrate => SourceGuest::Stopped,
        _ => SourceGuest::Halted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_order_is_no_reason_once_there_is_one() {
        assert!(refusal_is_reason(false, false), "nothing else says why");
        assert!(!refusal_is_reason(true, false), "it was called off");
        assert!(!refusal_is_reason(false, true), "it failed, and an order that was drained with that is refused");
    }

    #[test]
    fn only_what_a_migration_stopped_counts_as_stopped() {
        use MigrationStatus as Status;
        let halted =
            [RunState::Paused, RunState::IoError, RunState::GuestPanicked, RunState::Shutdown, RunState::Watchdog];
        for state in halted {
            // Nobody but who stopped it may resume it.
            assert_eq!(guest(&state, Status::Cancelled), Some(SourceGuest::Halted), "{state:?}");
            assert_eq!(guest(&state, Status::None), Some(SourceGuest::Halted), "{state:?}");
            assert_eq!(guest(&state, Status::Active), Some(SourceGuest::Migrating), "{state:?}");
        }
        assert_eq!(guest(&RunState::PostMigrate, Status::Cancelled), Some(SourceGuest::Stopped));
        assert_eq!(guest(&RunState::PostMigrate, Status::Completed), Some(SourceGuest::Completed));
        assert_eq!(guest(&RunState::FinishMigrate, Status::PreSwitchover), Some(SourceGuest::PreSwitchover));
        assert_eq!(guest(&RunState::FinishMigrate, Status::Cancelling), None);
        for state in [RunState::Running, RunState::Suspended] {
            assert_eq!(guest(&state, Status::Failed), Some(SourceGuest::Running), "{state:?}");
        }
    }
}
