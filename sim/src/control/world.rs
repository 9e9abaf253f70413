//! The heap of what happens, and who is there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use skein_api::cluster::{Operation, OperationKind};
use skein_api::{Refusal, ToAgent, ToController};
use skein_cluster::{Answer, Now, Planted, Refused, RefusedKind};
use skein_store::{Entry, MemoryStore, Outcome, Prepared, Range, Revision, StoreError, Transaction};

use super::check::Checker;
use super::event::{Event, Session};
use super::host::{Agent, Bmc, Flight, Ms, Node};
use super::timer;
use crate::rng::Rng;

/// The wall clock at the begin of a run: some day in 2026.
const EPOCH_MS: u64 = 1_770_000_000_000;

/// One run of so many has a backup restored.
const RESTORE_RUNS: u64 = 6;

/// One run of so many has certificates renewed.
const RENEWAL_RUNS: u64 = 5;

/// One run of so many has people who start VMs by hand; all those with a restored backup are among these.
const HAND_RUNS: u64 = 3;

/// All that there is.
pub struct World {
    pub now: Ms,
    pub rng: Rng,
    heap: BinaryHeap<Reverse<(Ms, u64, usize)>>,
    events: BTreeMap<usize, Event>,
    count: usize,
    pub store: MemoryStore,
    /// Until when the store answers nobody.
    pub store_silent_until: Ms,
    pub nodes: Vec<Node>,
    pub agents: Vec<Agent>,
    /// The hosts' fencing devices.
    pub bmcs: Vec<Bmc>,
    pub sessions: BTreeMap<u64, Session>,
    /// The pairs of host and controller between which nothing comes through.
    pub cut: BTreeSet<(usize, usize)>,
    pub migrations: BTreeMap<u64, Flight>,
    /// The memory of each guest, in MiB.
    pub guests: BTreeMap<String, u64>,
    pub check: Checker,
    /// What answers go to agents: a certificate's number, by request.
    pub renewals: BTreeMap<u64, (u64, u64)>,
    /// What answers go to agents: the number of a question about what a person wants, by request.
    pub hand_asks: BTreeMap<u64, (u64, u64)>,
    /// Chooses what people start by hand; `None`: only what other events have them start. All else goes as without it.
    pub hand_rng: Option<Rng>,
    /// Chooses when certificates are renewed; `None`: never in this run. All else goes as without it.
    pub renewal_rng: Option<Rng>,
    /// Chooses what watchdogs do; `None`: this run has none. All else goes as without them.
    pub watchdog_rng: Option<Rng>,
    /// Chooses when a backup is made and restored; `None`: never in this run. All else goes as without it.
    pub restore_rng: Option<Rng>,
    /// The backup.
    pub backup: Vec<Entry>,
    pub numbers: u64,
    pub trace: bool,
    /// Whether things still go wrong.
    pub is_calm: bool,
}

impl World {
    pub fn new(seed: u64) -> World {
        World {
            now: 0,
            rng: Rng::new(seed),
            heap: BinaryHeap::new(),
            events: BTreeMap::new(),
            count: 0,
            store: MemoryStore::new(),
            store_silent_until: 0,
            nodes: Vec::new(),
            agents: Vec::new(),
            bmcs: Vec::new(),
            sessions: BTreeMap::new(),
            cut: Default::default(),
            migrations: BTreeMap::new(),
            guests: BTreeMap::new(),
            check: Checker::default(),
            renewals: BTreeMap::new(),
            hand_asks: BTreeMap::new(),
            hand_rng: (seed % HAND_RUNS == 1).then(|| Rng::new(seed ^ EPOCH_MS ^ 3)),
            renewal_rng: (seed % RENEWAL_RUNS == RENEWAL_RUNS - 1).then(|| Rng::new(seed ^ EPOCH_MS)),
            watchdog_rng: (seed % timer::RUNS == timer::RUNS - 1).then(|| Rng::new(seed ^ EPOCH_MS ^ 1)),
            restore_rng: (seed % RESTORE_RUNS == RESTORE_RUNS - 2).then(|| Rng::new(seed ^ EPOCH_MS ^ 2)),
            backup: Vec::new(),
            numbers: 0,
            trace: crate::is_traced(),
            is_calm: false,
        }
    }

    /// Returns whether a mistake is made on purpose.
    pub fn has(&self, planted: Planted) -> bool {
        self.nodes.iter().any(|node| node.settings.planted == Some(planted))
    }

    pub fn clock(&self) -> Now {
        Now { wall: skein_api::cluster::UnixMs(EPOCH_MS + self.now), mono_ms: self.now, utc_offset_s: 0 }
    }

    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Has something happen in so many milliseconds.
    pub fn after(&mut self, ms: Ms, event: Event) {
        self.count += 1;
        self.heap.push(Reverse((self.now + ms, self.count as u64, self.count)));
        self.events.insert(self.count, event);
    }

    /// Returns what happens next.
    pub fn next(&mut self) -> Option<Event> {
        let Reverse((at, _, id)) = self.heap.pop()?;
        self.now = self.now.max(at);
        self.events.remove(&id)
    }

    pub fn say(&self, words: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>8} {}", self.now, words());
        }
    }

    /// Returns how long a line takes.
    fn latency(&mut self) -> Ms {
        if self.rng.percent(2) { self.rng.between(50, 800) } else { self.rng.between(1, 20) }
    }

    /// Sends a line in a session, after the lines before it.
    fn send_at(&mut self, session: u64, direction: usize) -> Option<Ms> {
        let latency = self.latency();
        let now = self.now;
        let of = self.sessions.get_mut(&session).filter(|of| of.open)?;
        let at = (now + latency).max(of.last_ms[direction]);
        of.last_ms[direction] = at;
        let (host, node) = (of.host, of.node);
        (!self.cut.contains(&(host, node))).then_some(at - now)
    }

    pub fn send_to_agent(&mut self, session: u64, line: ToAgent) {
        if let Some(delay) = self.send_at(session, 0) {
            let host = self.sessions[&session].host;
            self.after(delay, Event::ToAgent { host, session, line: Box::new(line) });
        }
    }

    pub fn send_to_controller(&mut self, session: u64, line: ToController) {
        if let Some(delay) = self.send_at(session, 1) {
            let node = self.sessions[&session].node;
            self.after(delay, Event::ToController { node, session, line: Box::new(line) });
        }
    }

    /// Cuts a host off from a controller.
    pub fn part(&mut self, node: usize, host: usize) {
        self.cut.insert((host, node));
        let is_between = |of: &Session| of.open && of.node == node && of.host == host;
        let sessions: Vec<u64> = self.sessions.iter().filter(|(_, of)| is_between(of)).map(|(id, _)| *id).collect();
        sessions.into_iter().for_each(|session| self.break_session(session));
    }

    /// Cuts a host off from all controllers. Those do not notice for seconds.
    pub fn part_unnoticed(&mut self, host: usize) {
        self.cut.extend((0..self.nodes.len()).map(|node| (host, node)));
        let open = self.sessions.iter_mut().filter(|(_, of)| of.open && of.host == host);
        let ended: Vec<u64> = open.map(|(id, of)| (*id, of.open = false).0).collect();
        for session in ended {
            for at_node in [false, true] {
                let delay = self.rng.between(1000, 6000);
                self.after(delay, Event::Broken { session, at_node });
            }
        }
    }

    /// Has what a controller says from now on arrive so much later.
    pub fn delay_lines_of(&mut self, node: usize, ms: Ms) {
        let at = self.now + ms;
        self.sessions.values_mut().filter(|of| of.node == node).for_each(|of| of.last_ms[0] = of.last_ms[0].max(at));
    }

    /// Ends a session; both ends notice, each in its time.
    pub fn break_session(&mut self, session: u64) {
        let Some(of) = self.sessions.get_mut(&session).filter(|of| of.open) else { return };
        of.open = false;
        for at_node in [false, true] {
            let delay = if self.rng.percent(20) { self.rng.between(500, 6000) } else { self.rng.between(1, 50) };
            self.after(delay, Event::Broken { session, at_node });
        }
    }

    // ---- the store ----

    /// Returns how long the store takes to answer, or `None` if it does not answer.
    pub fn store_latency(&mut self) -> Option<Ms> {
        let latency = if self.rng.percent(3) { self.rng.between(50, 1500) } else { self.rng.between(1, 15) };
        (self.now >= self.store_silent_until).then_some(latency)
    }

    pub fn commit(&mut self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        self.store.advance(Duration::from_millis(self.now));
        match self.store.prepare(transaction)? {
            Prepared::Conflict { failed } => Ok(Outcome::Conflict { failed }),
            Prepared::Changes(changes) => {
                let revision = changes.revision;
                self.check.written(self.now, transaction, &self.store, &self.migrations);
                self.store.apply(changes);
                Ok(Outcome::Committed { revision })
            }
        }
    }

    /// Writes what a backup has, or takes away what is not in it.
    pub fn put_back(&mut self, transaction: &Transaction) {
        self.store.advance(Duration::from_millis(self.now));
        match self.store.prepare(transaction) {
            Ok(Prepared::Changes(changes)) => self.store.apply(changes),
            other => panic!("a backup is not written: {other:?}"),
        }
    }

    /// Returns all that the store has.
    pub fn all(&mut self) -> (Revision, Vec<Entry>) {
        self.store.advance(Duration::from_millis(self.now));
        let mut entries = Vec::new();
        let mut range = Some(Range::below(skein_store::Prefix::all()));
        while let Some(of) = range.take() {
            let page = self.store.read(&of).expect("the newest revision can be read");
            range = of.next(&page);
            entries.extend(page.entries);
        }
        (self.store.revision(), entries)
    }

    /// Returns the value of a key, as the store has it now.
    pub fn value(&mut self, key: &str) -> Option<Vec<u8>> {
        let key = skein_store::Key::new(key).ok()?;
        let page = self.store.read(&Range::one(key)).ok()?;
        page.entries.first().map(|entry| entry.value.as_bytes().to_vec())
    }

    /// Returns how many attempts to switch a host off the store has.
    pub fn attempts_written(&mut self, host: &str) -> u32 {
        let (_, entries) = self.all();
        let all = entries.iter().filter(|entry| entry.key.as_str().starts_with("operation/"));
        let all = all.filter_map(|entry| serde_json::from_slice::<Operation>(entry.value.as_bytes()).ok());
        let of_host = all.filter(|found| matches!(&found.kind, OperationKind::Fence { host: of, .. } if of == host));
        of_host.filter_map(|found| found.fencing).map(|fencing| fencing.attempts).sum()
    }

    /// Returns how many attempts to have a host shut itself down the store has.
    pub fn shutdowns_written(&mut self, host: &str) -> u32 {
        let (_, entries) = self.all();
        let all = entries.iter().filter(|entry| entry.key.as_str().starts_with("operation/"));
        let all = all.filter_map(|entry| serde_json::from_slice::<Operation>(entry.value.as_bytes()).ok());
        let of_host = all.filter(|found| matches!(&found.kind, OperationKind::Sleep { host: of, .. } if of == host));
        of_host.filter_map(|found| found.power).map(|power| power.attempts).sum()
    }

    pub fn answered(&mut self, node: usize, asked: u64, answer: Answer) {
        self.say(|| format!("c{node} answers {asked}: {}", short(&answer)));
        if let Answer::Operation(operation) = &answer
            && self.value(&format!("operation/{}", operation.id)).is_none()
        {
            let id = operation.id.clone();
            self.check.broken(self.now, format!("operation {id} was answered, and is not in the store"));
        }
        if let Some((session, number)) = self.renewals.remove(&asked) {
            let refused = |message: &str| Refusal { message: message.to_owned(), cure: String::new() };
            let line = match &answer {
                Answer::Done => ToAgent::Renewed { certificate: number.to_string() },
                other => ToAgent::NotRenewed(refused(&short(other))),
            };
            self.send_to_agent(session, line);
        }
        if let Some((session, ask)) = self.hand_asks.remove(&asked)
            && let Some(line) = hand_line(ask, &answer)
        {
            self.send_to_agent(session, line);
        }
        self.check.answered(asked, answer);
    }
}

/// Returns a controller's answer to a question about what a person wants. `None`: the controller cannot answer.
fn hand_line(ask: u64, answer: &Answer) -> Option<ToAgent> {
    match answer {
        Answer::Done => Some(ToAgent::May { ask }),
        Answer::Refused(Refused { kind: RefusedKind::Unavailable, .. }) => None,
        Answer::Refused(Refused { kind, message, cure }) => {
            let refusal = Refusal { message: message.clone(), cure: cure.clone() };
            Some(ToAgent::MayNot { ask, again: *kind == RefusedKind::Changed, refusal })
        }
        _ => None,
    }
}

fn short(answer: &Answer) -> String {
    match answer {
        Answer::Operation(operation) => format!("operation {}", operation.id),
        Answer::Refused(refused) => format!("refused: {}", refused.message),
        other => format!("{other:?}"),
    }
}
