//! Keeps the requests of the last day, and has the thread that begins their next attempts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use jiff::{SignedDuration, Timestamp};
use parking_lot::{Condvar, Mutex};
use skein_api::{CheckResult, Refusal};
use skein_handover::MigrationId;
use skein_hypervisor::ProcessId;
use tracing::warn;

use super::machine::{
    AskedMigration, AttemptCount, AttemptState, Attempts, AttemptsEnd, BegunAttempt, CancelStep, ChangedOptions,
    NotBegun, PlacementLoss, RestartStep,
};
use super::starter::{AttemptNumber, Placement, Starter};
use super::store::{RequestStore, SavedRequest};
use crate::events::AgentEvent;
use crate::permit::Permit;
use crate::random::random;

/// Says how long a request is remembered after it was made, once it is over.
const KEEP_TIME: SignedDuration = SignedDuration::from_hours(24);
/// Bounds the remembered requests: of those that are over the oldest is forgotten first.
const KEPT_MAX: usize = 1024;
/// Bounds the request ids that are remembered under which nothing is begun any more.
const WITHDRAWN_MAX: usize = 1024;
/// Bounds the attempts that are checked and begun at once, beside those that clients wait for.
const BEGINNING_MAX: usize = 8;
/// Bounds a check and a begin: another host is asked for 20 s at most, and may be slow to be found.
const BEGIN_TIME: Duration = Duration::from_secs(60);
/// Says how often migrations are checked for their ends though no end was told.
const LOOK_PERIOD: Duration = Duration::from_secs(60);
/// Says how long a due attempt waits for its turn until the next check.
const TURN_PERIOD: Duration = Duration::from_millis(500);

/// The key of a request in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey(u64);

/// A request whose first attempt has begun.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Begun {
    pub(crate) key: RequestKey,
    pub(crate) migration: MigrationId,
    /// The result of the check; `None`: the attempt was begun before.
    pub(crate) check: Option<CheckResult>,
}

/// The state of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Standing {
    /// This migration is under way.
    Running(MigrationId),
    /// This migration has ended, and another is to come.
    Between(MigrationId),
    /// This migration was the last.
    Over(MigrationId, AttemptsEnd),
}

impl Standing {
    /// Returns the newest migration.
    pub(crate) fn newest(&self) -> MigrationId {
        match self {
            Standing::Running(id) | Standing::Between(id) | Standing::Over(id, _) => *id,
        }
    }
}

struct Entry {
    key: RequestKey,
    request_id: Option<String>,
    asked_at: Timestamp,
    attempts: Attempts,
    /// The process of the guest that is to be moved; `None`: not known.
    guest: Option<ProcessId>,
    /// How the newest migration places pages; `None`: an earlier agent began it.
    placement: Option<Placement>,
    /// Whether the state of the attempts could not be written to disk.
    is_unsaved: bool,
}

impl Entry {
    fn saved(&self) -> SavedRequest {
        SavedRequest::of(self.request_id.clone(), self.asked_at, self.guest, &self.attempts)
    }

    fn standing(&self) -> Option<Standing> {
        let newest = self.attempts.newest()?;
        Some(match self.attempts.state() {
            AttemptState::Running => Standing::Running(newest),
            AttemptState::Beginning | AttemptState::Waiting { .. } => Standing::Between(newest),
            AttemptState::Over(end) => Standing::Over(newest, end.clone()),
        })
    }
}

#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    last_key: u64,
    /// The request ids under which nothing is begun any more, the newest last. What was asked for under an older one
    /// was asked of an earlier agent, or long ago.
    withdrawn: VecDeque<String>,
}

impl Table {
    fn insert(
        &mut self,
        request_id: Option<String>,
        asked_at: Timestamp,
        guest: Option<ProcessId>,
        attempts: Attempts,
    ) -> RequestKey {
        self.last_key += 1;
        let key = RequestKey(self.last_key);
        self.entries.push(Entry { key, request_id, asked_at, attempts, guest, placement: None, is_unsaved: false });
        key
    }

    fn withdraw(&mut self, request_id: &str) {
        if !self.is_withdrawn(request_id) {
            self.withdrawn.push_back(request_id.to_owned());
            let excess = self.withdrawn.len().saturating_sub(WITHDRAWN_MAX);
            self.withdrawn.drain(..excess);
        }
    }

    fn is_withdrawn(&self, request_id: &str) -> bool {
        self.withdrawn.iter().any(|of| of == request_id)
    }

    fn get(&self, key: RequestKey) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    fn get_mut(&mut self, key: RequestKey) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.key == key)
    }

    fn of_request(&self, request_id: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.request_id.as_deref() == Some(request_id))
    }

    /// Takes out the requests that are over and a day old, and the oldest of too many that are over.
    fn forget(&mut self, now: Timestamp) -> Vec<SavedRequest> {
        let mut forgotten = Vec::new();
        let mut excess = (self.entries.len() + 1).saturating_sub(KEPT_MAX);
        self.entries.retain(|entry| {
            let is_old = now.duration_since(entry.asked_at) >= KEEP_TIME;
            let goes = entry.attempts.end().is_some() && (is_old || excess > 0);
            if goes {
                excess = excess.saturating_sub(1);
                forgotten.push(entry.saved());
            }
            !goes
        });
        forgotten
    }
}

/// See the [module](super).
pub(crate) struct AttemptTable<S: Starter> {
    shared: Arc<Shared<S>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared<S: Starter> {
    starter: Arc<S>,
    store: RequestStore,
    table: Mutex<Table>,
    changed: Condvar,
    /// Wakes the thread for what is new.
    wake: SyncSender<()>,
    beginning: Arc<AtomicUsize>,
    is_stopping: AtomicBool,
}

impl<S: Starter> AttemptTable<S> {
    /// Takes up the requests that an earlier agent has left in `store`, and looks after them from now on.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn start(starter: Arc<S>, store: RequestStore) -> io::Result<AttemptTable<S>> {
        let (wake, woken) = sync_channel(1);
        let table = Mutex::new(recovered(&*starter, &store));
        let (changed, beginning, is_stopping) = (Condvar::new(), Arc::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { starter, store, table, changed, wake, beginning, is_stopping });
        let working = shared.clone();
        let thread = thread::Builder::new().name("attempts".into()).spawn(move || working.run(&woken))?;
        Ok(AttemptTable { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Returns the callback for the end of a migration. The callback does not wait.
    pub(crate) fn on_end(&self) -> impl Fn() + Send + Sync + use<S> {
        let wake = self.shared.wake.clone();
        // A full queue wakes the thread all the same.
        move || {
            let _ = wake.try_send(());
        }
    }

    /// Checks a migration and begins its first attempt. A request whose `request_id` is known is not begun again: the
    /// same attempts are returned, once the first has begun.
    ///
    /// # Errors
    ///
    /// A problem blocks the migration, or it is refused. Nothing is remembered then.
    pub(crate) fn begin(&self, asked: AskedMigration, request_id: Option<&str>) -> Result<Begun, NotBegun> {
        let shared = &self.shared;
        let guest = shared.starter.guest(&asked.vm);
        let key = {
            let mut table = shared.table.lock();
            if let Some(request_id) = request_id
                && let Some(begun) = shared.begun_before(&mut table, request_id, &asked)?
            {
                return Ok(begun);
            }
            if request_id.is_some_and(|request_id| table.is_withdrawn(request_id)) {
                return Err(withdrawn().into());
            }
            let now = Timestamp::now();
            table.forget(now).iter().for_each(|request| shared.store.remove(request));
            if table.entries.len() >= KEPT_MAX {
                return Err(too_many().into());
            }
            table.insert(request_id.map(str::to_owned), now, guest, Attempts::new(asked))
        };
        let (migration, check) = shared.attempt(key)?;
        Ok(Begun { key, migration, check: Some(check) })
    }

    /// Returns the state of a request at this moment.
    pub(crate) fn standing(&self, key: RequestKey) -> Option<Standing> {
        let mut table = self.shared.table.lock();
        self.shared.look_after(&mut table);
        table.get(key)?.standing()
    }

    /// Waits until a request's state changes, for `patience` at most. Returns whether it did.
    pub(crate) fn wait(&self, key: RequestKey, seen: &Standing, patience: Duration) -> bool {
        let mut table = self.shared.table.lock();
        let is_same = |table: &mut Table| table.get(key).and_then(Entry::standing).as_ref() == Some(seen);
        !self.shared.changed.wait_while_for(&mut table, is_same, patience).timed_out()
    }

    /// Returns the request whose newest migration this is.
    pub(crate) fn request_of(&self, newest: MigrationId) -> Option<RequestKey> {
        let table = self.shared.table.lock();
        table.entries.iter().find(|entry| entry.attempts.newest() == Some(newest)).map(|entry| entry.key)
    }

    /// Calls off the request whose newest migration this is: no further attempt is begun, and the migration is called
    /// off if it is under way. Returns whether there was a request, and it was not over.
    ///
    /// # Errors
    ///
    /// The cancellation could not be written to disk: the attempts are cancelled until this agent ends, and the next
    /// agent may go on.
    pub(crate) fn cancel(&self, newest: MigrationId) -> Result<bool, Refusal> {
        let mut table = self.shared.table.lock();
        self.shared.look_after(&mut table);
        let Some(entry) = table.entries.iter_mut().find(|entry| entry.attempts.newest() == Some(newest)) else {
            return Ok(false);
        };
        let step = entry.attempts.cancel();
        let saved = self.shared.save(entry);
        self.shared.changed.notify_all();
        drop(table);
        match step {
            CancelStep::CallOff(id) => self.shared.starter.call_off(id),
            CancelStep::Nothing => {}
            CancelStep::TooLate => return Ok(false),
        }
        saved.map(|()| true).map_err(|error| unsaved(&error))
    }

    /// Begins the newest migration of a request again with other options: it is called off if it is under way, and the
    /// next attempt follows. Returns whether there was a request, and it was not over.
    ///
    /// # Errors
    ///
    /// An attempt is just being begun, or the change cannot be written to disk. Nothing is changed then.
    pub(crate) fn restart(&self, newest: MigrationId, changed: &ChangedOptions) -> Result<bool, Refusal> {
        let mut table = self.shared.table.lock();
        self.shared.look_after(&mut table);
        let Some(entry) = table.entries.iter_mut().find(|entry| entry.attempts.newest() == Some(newest)) else {
            return Ok(false);
        };
        if entry.attempts.end().is_some() {
            return Ok(false);
        }
        let (before, now) = (entry.attempts.clone(), entry.attempts.asked_now());
        if changed.hold.is_some() && now.hold.is_some() {
            return Err(held_already());
        }
        if let Some(percent) = changed.allow_throttle
            && now.options.allow_throttle == Some(percent)
        {
            return Err(throttled_already(percent));
        }
        let step = entry.attempts.restart(changed);
        match step {
            RestartStep::CallOff(_) | RestartStep::Nothing => {}
            RestartStep::Beginning => return Err(beginning()),
            RestartStep::TooLate => return Ok(false),
        }
        if let Err(error) = self.shared.save(entry) {
            entry.attempts = before;
            return Err(unchanged(&error));
        }
        self.shared.starter.tell(newest, &before.asked().vm, &AgentEvent::Restarts { how: changed.words() });
        self.shared.changed.notify_all();
        drop(table);
        if let RestartStep::CallOff(id) = step {
            self.shared.starter.call_off(id);
        }
        Ok(true)
    }

    /// Calls off the request of this id, also one that comes later or is being checked: nothing is begun under the id
    /// any more. Returns the newest migration that was begun under the id. `None`: none was.
    ///
    /// # Errors
    ///
    /// The request is still being checked, and what comes of it is not known; or as [`AttemptTable::cancel`].
    pub(crate) fn withdraw(&self, request_id: &str) -> Result<Option<MigrationId>, Refusal> {
        let shared = &self.shared;
        let mut table = shared.table.lock();
        table.withdraw(request_id);
        shared.look_after(&mut table);
        let Some(entry) = table.entries.iter_mut().find(|entry| entry.request_id.as_deref() == Some(request_id)) else {
            return Ok(None);
        };
        let step = entry.attempts.cancel();
        let saved = shared.save(entry);
        shared.changed.notify_all();
        if let CancelStep::CallOff(id) = step {
            shared.starter.call_off(id);
        }
        saved.map_err(|error| unsaved(&error))?;
        shared.wait_until_checked(&mut table, request_id)?;
        Ok(table.of_request(request_id).and_then(|entry| entry.attempts.newest()))
    }

    /// Returns the newest migration of the request that once began this migration.
    pub(crate) fn newest_of(&self, migration: MigrationId) -> Option<MigrationId> {
        let table = self.shared.table.lock();
        let began = |entry: &&Entry| entry.attempts.begun().iter().any(|attempt| attempt.migration == migration);
        table.entries.iter().find(began)?.attempts.newest()
    }

    /// Returns which attempt a migration is; `None`: its request is not remembered.
    pub(crate) fn attempt(&self, migration: MigrationId) -> Option<skein_api::Attempt> {
        let mut table = self.shared.table.lock();
        table.entries.iter_mut().find_map(|entry| {
            let begun = *entry.attempts.begun().iter().find(|attempt| attempt.migration == migration)?;
            // Whoever hears of a migration's end hears whether another attempt follows.
            self.shared.look_after_entry(entry);
            let is_newest = entry.attempts.newest() == Some(migration);
            let next_in_ms = match entry.attempts.state() {
                AttemptState::Waiting { due } if is_newest => {
                    Some(due.saturating_duration_since(Instant::now()).as_millis() as u64)
                }
                AttemptState::Beginning if is_newest => Some(0),
                _ => None,
            };
            let AttemptCount { made, allowed, .. } = entry.attempts.count();
            // An attempt that is being begun is no attempt yet.
            let made = made - u32::from(next_in_ms == Some(0) && *entry.attempts.state() == AttemptState::Beginning);
            let not_begun = Some(made).filter(|made| is_newest && *made > begun.number);
            Some(skein_api::Attempt { number: begun.number, of: allowed, not_begun, next_in_ms })
        })
    }

    /// Begins no further attempt; the next agent goes on.
    pub(crate) fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        let _ = self.shared.wake.try_send(());
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl<S: Starter> Drop for AttemptTable<S> {
    fn drop(&mut self) {
        self.stop();
    }
}

fn unsaved(error: &io::Error) -> Refusal {
    Refusal {
        message: format!("the migration is called off, but that cannot be written down: {error}"),
        cure: "make room on the file system of the agent's state, before the agent is started again: it would go on \
               with what it was asked for"
            .into(),
    }
}

fn beginning() -> Refusal {
    let message = "its next attempt is just being begun".into();
    Refusal { message, cure: "ask again in a moment".into() }
}

fn held_already() -> Refusal {
    Refusal {
        message: "it is held already, or is to be".into(),
        cure: "have it switch with `skein migration switch`, or call it off".into(),
    }
}

fn throttled_already(percent: u8) -> Refusal {
    let cure = "follow it with `skein migration watch`, or name another per cent".into();
    Refusal { message: format!("it may be throttled by {percent} % already"), cure }
}

fn unchanged(error: &io::Error) -> Refusal {
    Refusal {
        message: format!("the change cannot be written down, so the migration goes on as it was: {error}"),
        cure: "make room on the file system of the agent's state, and ask again".into(),
    }
}

fn withdrawn() -> Refusal {
    Refusal { message: "this request was called off before it came".into(), cure: "ask under another id".into() }
}

fn too_many() -> Refusal {
    Refusal {
        message: "too many migrations are tried again and again on this host".into(),
        cure: "wait until some are over, or cancel some".into(),
    }
}

/// Returns what an earlier agent has left. Of a request whose first attempt was never begun nothing is left: a repeated
/// request begins it.
fn recovered<S: Starter>(starter: &S, store: &RequestStore) -> Table {
    let mut table = Table::default();
    for mut request in store.load() {
        let saved = request.clone();
        if request.end.is_none() {
            while request.begun.last().is_some_and(|attempt| !starter.knows(attempt.migration)) {
                request.begun.pop();
                // The attempt was about to be made, and was not.
                request.count.made = request.count.made.saturating_sub(1);
            }
        }
        if request.begun.is_empty() {
            store.remove(&saved);
            continue;
        }
        let SavedRequest { request_id, asked_at, asked, changed, guest, begun, count, end, .. } = request;
        table.insert(request_id, asked_at, guest, Attempts::recovered(asked, changed, begun, count, end));
    }
    table.forget(Timestamp::now()).iter().for_each(|request| store.remove(request));
    table
}

impl<S: Starter> Shared<S> {
    fn run(self: &Arc<Self>, woken: &Receiver<()>) {
        loop {
            if self.is_stopping.load(Ordering::SeqCst) {
                return;
            }
            let mut table = self.table.lock();
            self.look_after(&mut table);
            let now = Instant::now();
            self.begin_due(&mut table, now);
            let due = table.entries.iter().filter_map(|entry| entry.attempts.next_due()).min();
            drop(table);
            // An attempt that is due and has not begun waits for its turn.
            let wait = due.map_or(LOOK_PERIOD, |due| match due.saturating_duration_since(now) {
                Duration::ZERO => TURN_PERIOD,
                left => left.min(LOOK_PERIOD),
            });
            if woken.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    /// Notes the ends of migrations.
    fn look_after(&self, table: &mut Table) {
        table.entries.iter_mut().for_each(|entry| self.look_after_entry(entry));
    }

    /// Notes the end of a request's newest migration.
    fn look_after_entry(&self, entry: &mut Entry) {
        if entry.is_unsaved {
            self.save_or_warn(entry);
        }
        if *entry.attempts.state() != AttemptState::Running {
            return;
        }
        let Some((id, end)) = entry.attempts.newest().and_then(|id| Some((id, self.starter.end(id)?))) else {
            return;
        };
        let vm = &entry.attempts.asked().vm;
        let is_lost =
            entry.placement == Some(Placement::Direct) && self.starter.placement(vm) == Placement::ThroughQemu;
        let loss = if is_lost { PlacementLoss::Direct } else { PlacementLoss::None };
        entry.attempts.handle_ended(Instant::now(), end, loss);
        if entry.attempts.next_due().is_some() {
            let count = entry.attempts.count();
            let follows = AgentEvent::AttemptFollows { number: count.made + 1, of: count.allowed };
            self.starter.tell(id, &entry.attempts.asked().vm, &follows);
        }
        self.save_or_warn(entry);
        self.changed.notify_all();
    }

    fn begin_due(self: &Arc<Self>, table: &mut Table, now: Instant) {
        let due = |entry: &&mut Entry| entry.attempts.next_due().is_some_and(|due| due <= now);
        for entry in table.entries.iter_mut().filter(due) {
            let Some(permit) = Permit::take(&self.beginning, BEGINNING_MAX) else { return };
            let (own, key) = (self.clone(), entry.key);
            entry.attempts.begin_due(now);
            let work = move || {
                let _permit = permit;
                // The result is in the table.
                let _ = own.attempt(key);
            };
            if let Err(error) = thread::Builder::new().name("attempt".into()).spawn(work) {
                let cure = "see this host's limits and its memory".into();
                let refusal = Refusal { message: format!("the agent cannot start a thread: {error}"), cure };
                self.handle_not_begun(entry, now, refusal.into());
            }
        }
    }

    /// Waits until the first attempt of the request of this id has begun, or was refused.
    fn wait_until_checked(
        &self,
        table: &mut parking_lot::MutexGuard<'_, Table>,
        request_id: &str,
    ) -> Result<(), Refusal> {
        let is_beginning =
            |table: &mut Table| table.of_request(request_id).is_some_and(|entry| entry.attempts.newest().is_none());
        if self.changed.wait_while_for(table, is_beginning, BEGIN_TIME).timed_out() {
            let message = "the same request was made before, and is still being checked".into();
            return Err(Refusal { message, cure: "ask again".into() });
        }
        Ok(())
    }

    /// Returns the request of this id, once its first attempt has begun; `None`: there is none.
    fn begun_before(
        &self,
        table: &mut parking_lot::MutexGuard<'_, Table>,
        request_id: &str,
        asked: &AskedMigration,
    ) -> Result<Option<Begun>, NotBegun> {
        self.wait_until_checked(table, request_id)?;
        let Some(entry) = table.of_request(request_id) else { return Ok(None) };
        let before = entry.attempts.asked();
        if before != asked {
            let message =
                format!("the request id {request_id} was used for another migration: {} to {}", before.vm, before.to);
            return Err(Refusal { message, cure: "use a request id of its own".into() }.into());
        }
        Ok(entry.attempts.newest().map(|migration| Begun { key: entry.key, migration, check: None }))
    }

    /// Makes the attempt that is to be begun: checks, writes to disk what is about to be begun, and begins it.
    fn attempt(&self, key: RequestKey) -> Result<(MigrationId, CheckResult), NotBegun> {
        let begun = self.check_and_begin(key);
        let mut table = self.table.lock();
        let Some(entry) = table.get_mut(key) else { return begun.map(|(id, _, check)| (id, check)) };
        let mut call_off = None;
        let result = match begun {
            Ok((id, placement, check)) => {
                entry.placement = Some(placement);
                call_off = entry.attempts.handle_begun(id);
                self.save_or_warn(entry);
                Ok((id, check))
            }
            Err(why) => {
                let is_first = entry.attempts.begun().is_empty();
                // An agent that stops refuses everything; the next agent goes on from what was written to disk before.
                let is_next_agents = self.is_stopping.load(Ordering::SeqCst) && !is_first;
                if !is_next_agents {
                    self.handle_not_begun(entry, Instant::now(), why.clone());
                }
                if is_first {
                    table.entries.retain(|entry| entry.key != key);
                } else if !is_next_agents || entry.attempts.count().is_cancelled {
                    self.save_or_warn(entry);
                }
                Err(why)
            }
        };
        drop(table);
        self.changed.notify_all();
        // The migration may have ended before it was known here.
        let _ = self.wake.try_send(());
        if let Some(id) = call_off {
            self.starter.call_off(id);
        }
        result
    }

    fn check_and_begin(&self, key: RequestKey) -> Result<(MigrationId, Placement, CheckResult), NotBegun> {
        let gone = || Refusal { message: "the request is forgotten".into(), cure: "ask again".into() };
        let (asked, guest) = {
            let table = self.table.lock();
            let entry = table.get(key).ok_or_else(gone)?;
            (entry.attempts.asked_now(), entry.guest)
        };
        if guest.is_some() && self.starter.guest(&asked.vm) != guest {
            let message = format!("{} was stopped, moved or started anew since its migration was asked for", asked.vm);
            return Err(NotBegun::GuestGone(Refusal { message, cure: "ask for another migration".into() }));
        }
        let (check, checked) = self.starter.check(&asked)?;
        if check.blocks() {
            return Err(NotBegun::Blocked(Box::new(check)));
        }
        let id = MigrationId(u64::from_ne_bytes(random()));
        let (saved, attempt) = {
            let table = self.table.lock();
            let entry = table.get(key).ok_or_else(gone)?;
            let count = entry.attempts.count();
            let mut saved = entry.saved();
            saved.begun.push(BegunAttempt { number: count.made, migration: id });
            (saved, AttemptNumber { number: count.made, of: count.allowed, before: entry.attempts.newest() })
        };
        // After a death in between, the next agent knows what may have begun.
        self.store.write(&saved).map_err(|error| Refusal {
            message: format!("what is to be begun cannot be written down: {error}"),
            cure: "see that there is room on that file system".into(),
        })?;
        match self.starter.begin(&asked, checked, id, attempt) {
            Ok(placement) => Ok((id, placement, check)),
            Err(refusal) => {
                if attempt.before.is_none() {
                    self.store.remove(&saved);
                }
                Err(refusal.into())
            }
        }
    }

    /// Notes that an attempt was not begun. The newest migration's events say so.
    fn handle_not_begun(&self, entry: &mut Entry, now: Instant, why: NotBegun) {
        let words = why.words();
        entry.attempts.handle_not_begun(now, why);
        if let Some(newest) = entry.attempts.newest() {
            let count = entry.attempts.count();
            let follows = entry.attempts.next_due().is_some();
            let event = AgentEvent::AttemptNotBegun { number: count.made, of: count.allowed, why: words, follows };
            self.starter.tell(newest, &entry.attempts.asked().vm, &event);
        }
    }

    /// Writes the state of the attempts to disk. A failure is tried again at each check.
    fn save(&self, entry: &mut Entry) -> io::Result<()> {
        let written = self.store.write(&entry.saved());
        entry.is_unsaved = written.is_err();
        written
    }

    fn save_or_warn(&self, entry: &mut Entry) {
        let was_unsaved = entry.is_unsaved;
        if let Err(error) = self.save(entry)
            && !was_unsaved
        {
            warn!("what is tried again cannot be written down: {error}");
        }
    }
}

#[cfg(test)]
mod tests;
