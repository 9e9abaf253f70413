//! The thread that reads the store, follows what others write, and leads when nobody does.
//!
//! ```text
//!        ┌──────────────── stepped down, or the watch ended ────────────────┐
//!        ▼                                                                  │
//!  read everything ─▶ watch ─▶ nobody leads: campaign ─▶ read everything ─▶ lead, keep the lease alive
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use skein_cluster::{BadRecord, Input, Tables, error_chain};
use skein_store::election::{HeldLease, Leadership, Term, campaign, leader_key, leadership};
use skein_store::schema::OpenedSchema;
use skein_store::{
    Change, Entry, KeyError, LeaseId, Operation, Outcome, Pages, Prefix, Range, Revision, Store, StoreError,
    Transaction, Value, ValueTooLarge, WatchBatch, WatchError, read_one,
};
use tracing::{info, warn};

use super::clock;
use super::core::Shared;
use super::history::History;
use super::members::{Member, member_key};

/// How a candidate behaves.
#[derive(Clone, Debug)]
pub struct ElectionTimes {
    /// How long a leader's lease lasts unless it is kept alive. Kept alive it is at a third.
    pub lease: Duration,
    /// How long history is kept at most, so that followers that were away a moment need not read everything.
    pub history: Duration,
}

impl Default for ElectionTimes {
    fn default() -> ElectionTimes {
        ElectionTimes { lease: Duration::from_secs(5), history: Duration::from_secs(600) }
    }
}

/// How long the store may take to read a page.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// The longest wait for changes, so that a stop and a step down are seen.
const WATCH_WAIT: Duration = Duration::from_millis(200);
/// How often a candidate asks the store who leads.
const LEADER_LOOK_PERIOD: Duration = Duration::from_secs(1);
/// How long a candidate that failed or stepped down waits before it begins anew.
const BACKOFF: Duration = Duration::from_millis(500);
/// How often old history is forgotten.
const COMPACT_PERIOD: Duration = Duration::from_secs(60);
/// How long the entry of a controller that is gone stays.
const MEMBER_LEASE: Duration = Duration::from_secs(15);

/// Why a candidate begins anew.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error("the store failed")]
    Store(#[from] StoreError),
    #[error("the store's changes cannot be followed")]
    Watch(#[from] WatchError),
    #[error("the controller's name cannot be stored")]
    Key(#[from] KeyError),
    #[error("the controller's name cannot be stored")]
    Value(#[from] ValueTooLarge),
    #[error("the store cannot be read")]
    Bad(#[from] BadRecord),
    #[error("the store's values were changed by a later version of skein-controller: use that version here, too")]
    Migrated,
}

/// A candidate.
pub(crate) struct Candidate {
    pub shared: Arc<Shared>,
    pub store: Arc<dyn Store>,
    pub opened: OpenedSchema,
    pub member: Member,
    pub times: ElectionTimes,
    /// Whether nobody else can lead, since this process alone has the store.
    pub is_alone: bool,
    pub leads: Option<Leads>,
    pub registered: Option<HeldLease>,
    /// When the store was last asked who leads.
    pub looked: Duration,
}

/// What a leader keeps alive.
pub(crate) struct Leads {
    lease: LeaseId,
    /// The revision that made this controller the leader.
    created: Revision,
    term: Term,
    kept_alive: Duration,
    compacted: Duration,
    history: History,
}

impl Candidate {
    /// Follows and leads until the controller ends.
    pub fn run(mut self) {
        while !self.shared.is_stopping() {
            match self.follow() {
                Ok(()) => {}
                Err(error @ (FollowError::Bad(_) | FollowError::Migrated)) => {
                    self.shared.fail(&error);
                    break;
                }
                Err(error) => warn!("{}: begins anew", error_chain(&error)),
            }
            if !self.shared.is_stopping() {
                self.resign("the store is read again");
            }
            self.shared.wait_for_stop(BACKOFF);
        }
        self.resign("the controller ends");
        if let Some(registered) = self.registered.take() {
            // The entry ends by itself, too.
            let _ = self.store.revoke(registered.id, self.within());
        }
    }

    /// Reads everything, and follows what changes from there on.
    fn follow(&mut self) -> Result<(), FollowError> {
        self.shared.stepped_down.store(false, Ordering::SeqCst);
        self.register()?;
        let (revision, entries) = self.read_all()?;
        self.shared.members.lock().reload(&entries, self.opened.schema.term_base, clock::wall());
        self.shared.input(Input::Following { tables: Box::new(tables(&entries)?) });
        self.shared.events.restart(revision.0, clock::wall());
        self.end_own_past(&entries);
        let mut watch = self.store.watch(&Prefix::all(), revision, READ_WITHIN)?;
        loop {
            if self.shared.is_stopping() || self.shared.stepped_down.load(Ordering::SeqCst) {
                return Ok(());
            }
            if self.leads.is_none() && self.is_leaderless() {
                self.campaign()?;
            }
            self.keep_alive();
            if let Some(batch) = watch.next(WATCH_WAIT)? {
                self.apply(batch);
            }
        }
    }

    /// Returns whether nobody leads. What is watched may come late, when the watch is at a member of etcd that has died
    /// without a word: so the store is asked, too, once in a while.
    fn is_leaderless(&mut self) -> bool {
        if self.shared.members.lock().leader.is_none() {
            return true;
        }
        let now = (self.shared.boot)();
        if self.is_alone || now.saturating_sub(self.looked) < LEADER_LOOK_PERIOD {
            return false;
        }
        self.looked = now;
        matches!(read_one(&*self.store, &leader_key(), self.within()), Ok((_, None)))
    }

    fn apply(&mut self, batch: WatchBatch) {
        self.shared.members.lock().apply(&batch.events, self.opened.schema.term_base, clock::wall());
        if let Some(leads) = &mut self.leads {
            leads.history.push((self.shared.boot)(), &batch);
            let is_own = |change: &Change| matches!(change, Change::Put(entry) if entry.lease == Some(leads.lease));
            let key = batch.events.iter().find(|event| event.key == leader_key());
            if batch.revision > leads.created && key.is_some_and(|event| !is_own(&event.change)) {
                let why = "the leader's key was taken away in the store".into();
                self.shared.input(Input::LeadLost { why });
            }
            return;
        }
        let changes = batch.events.into_iter().map(|event| {
            let value = match event.change {
                Change::Put(entry) => Some(entry.value.as_bytes().to_vec()),
                Change::Deleted => None,
            };
            (event.key.as_str().to_owned(), value)
        });
        self.shared.input(Input::Watched { changes: changes.collect(), revision: batch.revision.0 });
    }

    /// Ends the lease of this controller's earlier life where nobody else can have it.
    fn end_own_past(&self, entries: &[Entry]) {
        let past = entries.iter().find(|entry| entry.key == leader_key()).and_then(|entry| entry.lease);
        if let Some(lease) = past.filter(|_| self.is_alone) {
            // It ends by itself, too.
            let _ = self.store.revoke(lease, self.within());
        }
    }

    /// Says that this controller is there.
    fn register(&mut self) -> Result<(), FollowError> {
        if let Some(registered) = self.registered.take() {
            // What is over need not be ended.
            let _ = self.store.revoke(registered.id, self.within());
        }
        let asked = (self.shared.boot)();
        let lease = self.store.grant(MEMBER_LEASE, self.within())?;
        let put = Operation::put_leased(member_key(&self.member.name)?, self.value()?, lease.id);
        self.store.commit(&Transaction::new().then(put), self.within())?;
        self.registered = Some(HeldLease::granted(lease, asked));
        Ok(())
    }

    fn value(&self) -> Result<Value, FollowError> {
        // Plain data always serialises.
        Ok(Value::new(serde_json::to_vec(&self.member).unwrap_or_default())?)
    }

    /// Tries to lead.
    fn campaign(&mut self) -> Result<(), FollowError> {
        let asked = (self.shared.boot)();
        let lease = self.store.grant(self.times.lease, self.within())?;
        let held = HeldLease::granted(lease, asked);
        let transaction = campaign(self.value()?, lease.id).when(self.opened.unchanged());
        match self.store.commit(&transaction, self.within()) {
            // The campaign's own compare is the first, the schema's the second.
            Ok(Outcome::Conflict { failed }) if failed.contains(&1) => return Err(FollowError::Migrated),
            Ok(_) | Err(StoreError::Unknown(_)) => {}
            Err(error) => return Err(error.into()),
        }
        // Whoever leads is seen in the store, also where the outcome is not known.
        let leader = self.leadership()?.filter(|leader| leader.lease == Some(lease.id));
        let Some(leader) = leader else {
            let _ = self.store.revoke(lease.id, self.within());
            return Ok(());
        };
        self.lead(held, leader.term, asked)
    }

    fn lead(&mut self, held: HeldLease, term: Term, asked: Duration) -> Result<(), FollowError> {
        self.leads = Some(Leads {
            lease: held.id,
            created: term.created,
            term,
            kept_alive: asked,
            compacted: asked,
            history: History::default(),
        });
        *self.shared.lease.lock() = Some(held);
        let (revision, entries) = self.read_all()?;
        self.shared.members.lock().reload(&entries, self.opened.schema.term_base, clock::wall());
        let tables = Box::new(tables(&entries)?);
        // Reading may have taken long.
        self.keep_alive();
        info!("this controller leads, in term {}", term.number());
        self.shared.events.restart(revision.0, clock::wall());
        self.shared.input(Input::Elected { term: skein_api::Term(term.number()), tables });
        Ok(())
    }

    fn leadership(&self) -> Result<Option<Leadership>, FollowError> {
        let (_, entry) = read_one(&*self.store, &leader_key(), READ_WITHIN)?;
        Ok(entry.map(|entry| leadership(&entry, self.opened.schema.term_base)))
    }

    fn read_all(&self) -> Result<(Revision, Vec<Entry>), FollowError> {
        let (mut revision, mut entries) = (Revision(0), Vec::new());
        for page in Pages::new(&*self.store, Range::below(Prefix::all()), READ_WITHIN) {
            let page = page?;
            revision = page.revision;
            entries.extend(page.entries);
        }
        Ok((revision, entries))
    }

    /// Keeps the leases alive, if it is time.
    fn keep_alive(&mut self) {
        let within = self.within();
        if let Some(held) = &mut self.registered {
            let asked = (self.shared.boot)();
            if held.left(asked) < MEMBER_LEASE * 2 / 3
                && let Ok(ttl) = self.store.keep_alive(held.id, within)
            {
                held.kept_alive(asked, ttl);
            }
        }
        let Some(leads) = &mut self.leads else { return };
        let asked = (self.shared.boot)();
        if asked.saturating_sub(leads.kept_alive) < self.times.lease / 3 {
            return;
        }
        match self.store.keep_alive(leads.lease, within) {
            Ok(ttl) => {
                leads.kept_alive = asked;
                if let Some(held) = &mut *self.shared.lease.lock() {
                    held.kept_alive(asked, ttl);
                }
                let term = skein_api::Term(leads.term.number());
                let begun_ms = u64::try_from(asked.as_millis()).unwrap_or(u64::MAX);
                // The leader's key has this lease, and goes with it.
                self.shared.input(Input::LeadConfirmed { term, begun_ms });
                self.compact(asked);
            }
            Err(error @ StoreError::LeaseOver { .. }) => {
                self.shared.input(Input::LeadLost { why: error_chain(&error) });
            }
            // By its own clock the lease goes on for a while: the next try may be in time.
            Err(error) => warn!("the leader's lease is not kept alive: {}", error_chain(&error)),
        }
    }

    /// Forgets history that nobody needs any more.
    fn compact(&mut self, now: Duration) {
        let Some(leads) = &mut self.leads else { return };
        if now.saturating_sub(leads.compacted) < COMPACT_PERIOD && !leads.history.is_full() {
            return;
        }
        leads.compacted = now;
        if let Some(through) = leads.history.forget(now, self.times.history)
            && let Err(error) = self.store.compact(through, READ_WITHIN)
        {
            warn!("the store's history is not shortened: {}", error_chain(&error));
        }
    }

    /// Leads no more, and lets others lead at once.
    fn resign(&mut self, why: &str) {
        self.shared.input(Input::LeadLost { why: why.to_owned() });
        *self.shared.lease.lock() = None;
        if let Some(leads) = self.leads.take() {
            // A lease that is not kept alive ends by itself.
            let _ = self.store.revoke(leads.lease, self.within());
        }
    }

    /// Returns how long a call of the store may take: so long that a second try comes before the lease is over.
    fn within(&self) -> Duration {
        self.times.lease / 4
    }
}

fn tables(entries: &[Entry]) -> Result<Tables, BadRecord> {
    let all = entries.iter();
    Tables::load(all.map(|entry| (entry.key.as_str(), entry.value.as_bytes(), entry.modified.0)))
}
