//! Runs the migrations of this host. One thread, the owner, has the [`Manager`](skein_handover::Manager) and the
//! journal. Each migration has a worker: a thread that obeys the owner's orders to QEMU.
//!
//! ```text
//!  peers ─▶ ┌───────────────┐ ─▶ journal            (fsync, before anything is sent)
//!  commands▶│ owner: Manager│ ─▶ peers              intents, reports
//!  workers ▶└───────────────┘ ─▶ worker of each     orders to QEMU ─▶ QEMU's state, back to the owner
//! ```

mod context;
mod guest_watch;
mod hold_terms;
mod input;
mod journal_meter;
mod offer;
mod owner;
mod rates;
mod source;
mod target;
#[cfg(test)]
mod test_parts;
mod totals;
mod view;

use std::ffi::OsString;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use skein_api::{HoldOptions, MigrateOptions};
use skein_dataplane::PathSnapshot;
use skein_dataplane::source::PackerPool;
use skein_handover::{
    HoldLimits, MigrationId, MigrationLimits, Record, RefusedSwitch, Role, SourceInput, TargetInput, last_records,
    needed,
};
use skein_journal::{Journal, JournalLimits, OpenError};
use skein_units::Rate;

use self::context::Context;
use self::hold_terms::HoldTerms;
use self::input::{NewMigration, OwnerInput};
pub(crate) use self::journal_meter::JournalMeter;
use self::owner::Owner;
pub(crate) use self::rates::MigrationRates;
use self::rates::keep_host_limit;
use crate::dirs::Dirs;
use crate::events::AgentEvent;
use crate::path_meter::PathMeter;
use crate::peers::{PeerEvent, Peers};
use crate::room::HostRoom;

pub use self::input::StartRefused;
pub(crate) use self::input::{Capacity, Inquiry};
pub(crate) use self::offer::DELTA_MEMORY_DEFAULT_PERCENT;
pub use self::offer::{Offer, OfferError};

pub(crate) use self::totals::role_word;
pub(crate) use self::view::MigrationViews;

/// Bounds the inputs that wait for the owner: some of each migration.
const OWNER_INPUTS_MAX: usize = 1024;
/// Bounds the time that an agent waits for its predecessor's end.
const JOURNAL_TIME: Duration = Duration::from_secs(3);

/// The migrations of this host.
pub(crate) struct Migrations {
    context: Arc<Context>,
    owner: parking_lot::Mutex<Option<thread::JoinHandle<()>>>,
}

impl Migrations {
    /// Takes up the migrations in the journal. `peers` gets the queue for the events of its agents, and what answers
    /// how much this host can take on.
    ///
    /// # Errors
    /// A thread cannot be started, or `peers` fails.
    pub(crate) fn start<E: From<io::Error>>(
        dirs: Dirs,
        (journal, records): (Journal<Record>, Vec<Record>),
        rooms: Arc<HostRoom>,
        limits: MigrationLimits,
        keeper: Vec<OsString>,
        packers: Option<Arc<PackerPool>>,
        peers: impl FnOnce(SyncSender<PeerEvent>, Inquiry) -> Result<Peers, E>,
    ) -> Result<Migrations, E> {
        let (vms, kept) = (rooms.vms.clone(), rooms.kept.clone());
        let open = last_records(&needed(&records));
        dirs.tidy_migrations(|id| open.contains_key(&id));
        vms.tidy_aside(|id| open.contains_key(&id));
        // These VMs' migrations are settled: the agent was killed before it saved that with the VM.
        for vm in vms.all().iter().filter(|vm| vm.migration().is_some_and(|id| !open.contains_key(&id))) {
            vms.settled(vm);
        }
        let (queue, items) = sync_channel(OWNER_INPUTS_MAX);
        let (events, from_peers) = sync_channel(OWNER_INPUTS_MAX);
        let peers = peers(events, Inquiry(queue.clone()))?;
        let view = MigrationViews::new(dirs.migrations(), peers.host().to_owned());
        let meters = Default::default();
        let rates = Arc::new(MigrationRates::new());
        let queued = queue.clone();
        let context = Arc::new(Context {
            dirs,
            vms,
            peers,
            view,
            keeper_command: keeper,
            packers,
            kept,
            rates: rates.clone(),
            rooms,
            meters,
            queue: queued,
            journal: JournalMeter::new(),
            on_end: OnceLock::new(),
        });
        let of_plan = Arc::downgrade(&context);
        let plan = move || {
            let peers = &of_plan.upgrade()?.peers;
            Some(peers.hosts().map(|hosts| hosts.rate_plan_of(peers.host()).cloned()))
        };
        keep_host_limit(rates, plan)?;
        thread::Builder::new().name("from peers".into()).spawn(move || {
            skein_host::raise_thread_priority();
            for event in from_peers {
                if queue.send(OwnerInput::Peer(event)).is_err() {
                    return;
                }
            }
        })?;
        let killed = context.queue.clone();
        context.vms.on_killed(move |vm, by| {
            let _ = killed.send(OwnerInput::Killed(vm.to_owned(), by));
        });
        let owner = Owner::new(context.clone(), limits, journal, records);
        let owner = thread::Builder::new().name("migrations".into()).spawn(move || owner.run(items))?;
        Ok(Migrations { context, owner: parking_lot::Mutex::new(Some(owner)) })
    }

    /// Returns what commands see of the migrations.
    pub(crate) fn view(&self) -> &MigrationViews {
        &self.context.view
    }

    /// Returns what was measured of the journal.
    pub(crate) fn journal(&self) -> &JournalMeter {
        &self.context.journal
    }

    /// See [`Context::paths`].
    pub(crate) fn paths<T>(&self, host: &str, look: impl FnOnce(Vec<PathSnapshot>, &mut PathMeter) -> T) -> T {
        self.context.paths(host, look)
    }

    /// Returns how fast the migrations may send.
    pub(crate) fn rates(&self) -> &MigrationRates {
        &self.context.rates
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.context.peers
    }

    pub(crate) fn inquiry(&self) -> Inquiry {
        Inquiry(self.context.queue.clone())
    }

    /// Begins a migration, or queues it. `id` is random.
    ///
    /// # Errors
    /// The migration is not begun: a migration of the VM is under way, too many migrations are under way or queued, the
    /// journal takes nothing, or the agent ends.
    pub(crate) fn begin(
        &self,
        id: MigrationId,
        vm: &str,
        to: &str,
        offer: Offer,
        options: &MigrateOptions,
        hold: Option<&HoldOptions>,
    ) -> Result<(), StartRefused> {
        let hold = hold.map(|hold| HoldTerms::new(hold, jiff::Timestamp::now())).transpose()?;
        let new = NewMigration {
            id,
            vm: vm.to_owned(),
            peer: to.to_owned(),
            priority: options.priority.unwrap_or(offer.priority),
            offer: Arc::new(offer),
            deadline: options.deadline_s.map(Duration::from_secs),
            hold: hold.as_ref().map(|terms| HoldLimits { longest: Some(terms.longest) }),
        };
        self.context.rates.set_migration(id, options.rate_bits_per_s.and_then(Rate::of_bits_per_s));
        let (reply, answer) = sync_channel(1);
        let _ = self.context.queue.send(OwnerInput::Start(Box::new(new), hold, reply));
        let begun = answer.recv().unwrap_or(Err(StartRefused::Stopping));
        if begun.is_err() {
            self.context.rates.forget(id);
        }
        begun
    }

    /// Has `tell` called whenever a migration has ended. The owner calls `tell`, and waits until the call is over.
    pub(crate) fn on_end(&self, tell: impl Fn() + Send + Sync + 'static) {
        let _ = self.context.on_end.set(Box::new(tell));
    }

    /// Calls a migration off, as far as this host may. Returns false if this host has no such migration under way.
    pub(crate) fn cancel(&self, id: MigrationId) -> bool {
        let (reply, answer) = sync_channel(1);
        let _ = self.context.queue.send(OwnerInput::Cancel(id, reply));
        answer.recv().unwrap_or(false)
    }

    /// Has a held guest switch, within `deadline` if there is one.
    ///
    /// # Errors
    /// The migration is not held here, is over, or the agent ends.
    pub(crate) fn switch(&self, id: MigrationId, deadline: Option<Duration>) -> Result<(), RefusedSwitch> {
        let (reply, answer) = sync_channel(1);
        let _ = self.context.queue.send(OwnerInput::Switch(id, deadline, reply));
        answer.recv().unwrap_or(Err(RefusedSwitch::Unknown))
    }

    /// Notes that a person vouches that the other host is off.
    pub(crate) fn prove(&self, id: MigrationId, role: Role) {
        self.context.view.emit(id, None, &AgentEvent::OtherHostProvenOff);
        match role {
            Role::Source => self.context.source(id, [SourceInput::Proof]),
            Role::Target => self.context.target(id, [TargetInput::Proof]),
        }
    }

    /// Ends the threads. The next agent takes up the migrations under way.
    pub(crate) fn stop(&self) {
        let _ = self.context.queue.send(OwnerInput::Stop);
        if let Some(owner) = self.owner.lock().take() {
            let _ = owner.join();
        }
        self.context.peers.stop();
    }
}

/// Opens the journal. An agent that has just been replaced may still hold the journal for a moment.
///
/// # Errors
/// The journal cannot be read, or another agent holds the journal for longer than [`JOURNAL_TIME`].
pub(crate) fn open_journal(path: &std::path::Path) -> Result<(Journal<Record>, Vec<Record>), OpenError> {
    let end = Instant::now() + JOURNAL_TIME;
    loop {
        match Journal::open(path, JournalLimits::default()) {
            Err(OpenError::Busy { .. }) if Instant::now() < end => thread::sleep(Duration::from_millis(20)),
            other => return other,
        }
    }
}
