//! Drives the pure controller ([`skein_cluster::Controller`]): the store, the election, plans, agents, answers.
//!
//! | file | what |
//! |---|---|
//! | `core` | the one owner of the controller's state: inputs in, outputs handed on |
//! | `candidate`, `members`, `history` | the store is read and followed; the election; who is there; what is forgotten |
//! | `writer` | what is written, guarded by the leader's key |
//! | `planners` | plans |
//! | `needed` | where controllers and the store's members are, so that no such host sleeps |
//! | `fencers` | fencing devices |
//! | `agents`, `host_list`, `line` | lines for agents |
//! | `events` | what subscribers are sent |
//! | `load_history` | how busy hosts and VMs were |
//! | `watched` | migrations that somebody watches, and what agents only show |
//! | `clock` | the clocks |
//! | `patient_lock` | the lock of the core: reads do not wait for one another |

mod agents;
mod candidate;
mod clock;
mod core;
mod events;
mod fencers;
mod history;
mod host_list;
mod line;
mod load_history;
mod members;
mod needed;
mod patient_lock;
mod planners;
mod watched;
mod writer;

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use skein_api::cluster::{StoreKind, UnixMs};
use skein_cluster::{Answer, Asked, Controller, Settings};
use skein_store::election::TermBase;
use skein_store::schema::{Migration, SchemaError, open_schema};
use skein_store::{Store, StoreMember};
use tokio::sync::watch;

pub use candidate::ElectionTimes;
pub use clock::{BootClock, boot_clock, wall};
pub use events::{EventId, NoEventId, Published, Subscription};
pub use members::{Leader, Member, Members};

pub(crate) use self::agents::{AgentLink, HangUp};
pub(crate) use self::core::Shared;
use self::core::{Queues, Waiting, too_slow};
pub(crate) use self::line::bytes;
pub(crate) use self::watched::{MigrationWatch, NotShown, WatchedAnswers};
use crate::fencing::FencingDevices;
use candidate::Candidate;

/// The steps from one form of the store's values to the next. There is one form so far.
pub const MIGRATIONS: &[Migration] = &[];

/// How often time goes on for the core.
const TICK: Duration = Duration::from_millis(500);
/// How often the store's members are looked at, and how long each may take to answer.
const STORE_LOOK_PERIOD: Duration = Duration::from_secs(3);
const STORE_LOOK_WITHIN: Duration = Duration::from_secs(2);
/// How long somebody who asks waits for an answer: a write of the store, or a plan.
const ANSWER_WITHIN: Duration = Duration::from_secs(25);
/// How long opening a store may take at each step.
const OPEN_WITHIN: Duration = Duration::from_secs(10);

/// What a driver is made of.
#[derive(Clone)]
pub struct DriverSettings {
    /// This controller, as others see it.
    pub member: Member,
    /// The store.
    pub store: Arc<dyn Store>,
    /// What the store is.
    pub store_kind: StoreKind,
    /// What reaches fencing devices.
    pub fencing: Arc<dyn FencingDevices>,
    /// How the core behaves.
    pub core: Settings,
    /// The election's times.
    pub times: ElectionTimes,
    /// The clock of leases and of all that is waited for.
    pub boot: BootClock,
}

/// Why a driver does not start.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The store cannot be used.
    #[error("the store cannot be used")]
    Schema(#[from] SchemaError),
    /// There is no thread.
    #[error("a thread cannot be started")]
    Thread(#[source] std::io::Error),
}

/// A controller that runs.
pub struct Driver {
    shared: Arc<Shared>,
    member: Member,
    store: Arc<dyn Store>,
    store_kind: StoreKind,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Driver {
    /// Opens the store and starts the threads.
    ///
    /// # Errors
    ///
    /// The store cannot be used, or no thread can be started.
    pub fn start(settings: DriverSettings) -> Result<Arc<Driver>, DriverError> {
        let DriverSettings { member, store, store_kind, fencing, core, times, boot } = settings;
        let opened = open_schema(&*store, MIGRATIONS, TermBase(wall().0), OPEN_WITHIN)?;
        let base = opened.schema.term_base;
        let (writes, write_jobs) = sync_channel(writer::WRITES_MAX);
        let (plans, plan_jobs) = sync_channel(planners::PLANS_MAX);
        let (powers, power_jobs) = sync_channel(fencers::JOBS_MAX);
        let queues = Queues { writes, plans, powers };
        let shared = Arc::new(Shared::new(Controller::new(core), boot, queues));
        let driver = Arc::new(Driver {
            shared: shared.clone(),
            member: member.clone(),
            store: store.clone(),
            store_kind,
            threads: Mutex::default(),
        });
        let (written, to) = (shared.clone(), store.clone());
        driver.spawn("writer", move || writer::run(&written, &*to, base, &write_jobs))?;
        let plan_jobs = Arc::new(Mutex::new(plan_jobs));
        for _ in 0..planners::THREADS {
            let (planned, jobs) = (shared.clone(), plan_jobs.clone());
            driver.spawn("planner", move || planners::run(&planned, &jobs))?;
        }
        let power_jobs = Arc::new(Mutex::new(power_jobs));
        for _ in 0..fencers::THREADS {
            let (told, devices, jobs) = (shared.clone(), fencing.clone(), power_jobs.clone());
            driver.spawn("fencer", move || fencers::run(&told, &*devices, &jobs))?;
        }
        let ticked = shared.clone();
        driver.spawn("ticks", move || {
            while !ticked.wait_for_stop(TICK) {
                ticked.tick();
                ticked.note_loads(wall());
            }
        })?;
        let (looking, at, own) = (shared.clone(), store.clone(), member.clone());
        driver.spawn("store-members", move || {
            while !looking.wait_for_stop(STORE_LOOK_PERIOD) {
                looking.see_store_members(at.members(STORE_LOOK_WITHIN));
                needed::look(&looking, &own, store_kind);
            }
        })?;
        let is_alone = store_kind == StoreKind::Sqlite;
        let candidate = Candidate {
            shared,
            store,
            opened,
            member,
            times,
            is_alone,
            leads: None,
            registered: None,
            looked: Duration::ZERO,
        };
        driver.spawn("candidate", move || candidate.run())?;
        Ok(driver)
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), DriverError> {
        let thread = thread::Builder::new().name(name.into()).spawn(run);
        let thread = thread.inspect_err(|_| self.shared.stop()).map_err(DriverError::Thread)?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Gives up the lead and ends the threads, which takes some seconds at most.
    pub fn stop(&self) {
        self.shared.stop();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }

    /// Looks at the controller. Nothing changes meanwhile, so this must be short.
    pub fn read<T>(&self, look: impl FnOnce(&Controller) -> T) -> T {
        self.shared.read(look)
    }

    /// Asks for something, and waits for the answer.
    pub async fn ask(&self, asked: impl FnOnce(u64) -> Asked) -> Answer {
        let (id, receiver) = self.shared.ask(asked);
        let waiting = Waiting { shared: self.shared.clone(), id };
        let answer = tokio::time::timeout(ANSWER_WITHIN, receiver).await;
        drop(waiting);
        answer.ok().and_then(Result::ok).unwrap_or_else(too_slow)
    }

    /// Notes something for the audit log.
    pub fn note(&self, asked: Asked) {
        self.shared.note(asked);
    }

    /// Subscribes to what changes: from now on, or from an event on.
    pub fn subscribe(&self, after: Option<EventId>) -> Subscription {
        self.shared.events.subscribe(after, wall())
    }

    /// Returns this controller, as others see it.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Returns what the store is.
    pub fn store_kind(&self) -> StoreKind {
        self.store_kind
    }

    /// Returns the store.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Returns whether this controller leads.
    pub fn leads(&self) -> bool {
        self.shared.read(|controller| controller.term().is_some())
    }

    /// Returns the controller that leads, if any.
    pub fn leader(&self) -> Option<Leader> {
        self.shared.members.lock().leader.clone()
    }

    /// Returns the controllers that are there, by name.
    pub fn members(&self) -> Vec<Member> {
        self.shared.members.lock().all.values().cloned().collect()
    }

    /// Returns the controllers that were there and are not any more, and since when.
    pub fn gone_members(&self) -> Vec<(Member, UnixMs)> {
        self.shared.members.lock().gone.values().cloned().collect()
    }

    /// Returns how the store's parts are that may fail by themselves, as seen some seconds ago at most.
    pub fn store_members(&self) -> Vec<StoreMember> {
        self.shared.store_members.lock().clone()
    }

    /// Tells when the controller cannot go on, and why.
    pub fn failed(&self) -> watch::Receiver<Option<String>> {
        self.shared.failed.subscribe()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
    }
}
