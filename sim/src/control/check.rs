//! What must hold, at each step and in the end.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::Term;
use skein_api::cluster::{
    ClusterSettings, Contact, HostMode, MoveState, Operation, OperationKind, VmRunState, VmSettings,
};
use skein_cluster::{Answer, Ask, Asked, HostRecord, VmRecord};
use skein_store::{MemoryStore, Range, Transaction};

use super::host::{Flight, Ms, SLOTS};

/// The name of the rule that `v0` and `v1` are never on one host.
pub const APART: &str = "apart";

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub elections: u64,
    pub asked: u64,
    pub operations: u64,
    pub moved: u64,
    pub started: u64,
    pub stopped: u64,
    /// Guests that were started again, or were to be, after their host died or was booted.
    pub autostarted: u64,
    pub created: u64,
    pub deposed: u64,
    /// Certificates that hosts got in place of others.
    pub renewed: u64,
    /// Hosts that a fencing device has switched off, and those of them whose guests ran.
    pub switched_off: u64,
    pub switched_off_alive: u64,
    /// Hosts that were shut down to sleep.
    pub slept: u64,
    /// Hosts that were updated, and those that were booted for it.
    pub updated: u64,
    pub booted: u64,
    /// Hosts that were switched on again.
    pub woken: u64,
    /// VMs that were moved while they were off.
    pub moved_off: u64,
    /// Watchdogs that were armed, that have reset their host, and hosts with one that were proven to be off.
    pub armed: u64,
    pub reset: u64,
    pub proven_with_watchdog: u64,
    /// Backups that were restored.
    pub restored: u64,
    /// VMs that somebody wanted started by hand, those that were started, and those that a controller refused.
    pub by_hand: u64,
    pub by_hand_started: u64,
    pub by_hand_moved: u64,
    pub by_hand_refused: u64,
    pub events: u64,
}

impl Stats {
    pub fn add(&mut self, other: &Stats) {
        self.elections += other.elections;
        self.asked += other.asked;
        self.operations += other.operations;
        self.moved += other.moved;
        self.started += other.started;
        self.stopped += other.stopped;
        self.autostarted += other.autostarted;
        self.created += other.created;
        self.deposed += other.deposed;
        self.renewed += other.renewed;
        self.switched_off += other.switched_off;
        self.switched_off_alive += other.switched_off_alive;
        self.slept += other.slept;
        self.updated += other.updated;
        self.booted += other.booted;
        self.woken += other.woken;
        self.moved_off += other.moved_off;
        self.armed += other.armed;
        self.reset += other.reset;
        self.proven_with_watchdog += other.proven_with_watchdog;
        self.restored += other.restored;
        self.by_hand += other.by_hand;
        self.by_hand_started += other.by_hand_started;
        self.by_hand_moved += other.by_hand_moved;
        self.by_hand_refused += other.by_hand_refused;
        self.events += other.events;
    }
}

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Checker {
    pub stats: Stats,
    /// The first thing that did not hold.
    pub failure: Option<String>,
    executed: BTreeSet<String>,
    /// How often a host was ordered to be switched off.
    orders: BTreeMap<String, u32>,
    /// The operations, each with a host, whose update was begun.
    updates: BTreeSet<String>,
    /// How often a host was told to shut itself down.
    shutdowns: BTreeMap<String, u32>,
    terms: Vec<u64>,
    /// The greatest term that a host's agent has heard of.
    known: BTreeMap<usize, Term>,
    pub operations: BTreeSet<String>,
    /// When a controller last heard of a host.
    heard: BTreeMap<(usize, usize), Ms>,
    /// The settings of VMs that were asked for, by request, and those that were answered as done.
    pub settings: BTreeMap<u64, (String, VmSettings)>,
    pub set: BTreeMap<String, VmSettings>,
    /// The VMs whose creation was asked for, by request, and those that were answered.
    creations: BTreeMap<u64, String>,
    pub created: BTreeSet<String>,
    /// The VMs that somebody wanted deleted at any time.
    pub deleted: BTreeSet<String>,
    /// The guests that ended with their host and are to be started again, or be told of.
    pub autostarts: BTreeSet<String>,
    /// The operations that had a migration under way when a backup was restored.
    forgotten: BTreeSet<String>,
    /// The sessions that their controller knows to be over.
    ended: BTreeSet<u64>,
}

impl Checker {
    pub fn broken(&mut self, now: Ms, what: String) {
        self.failure.get_or_insert_with(|| format!("at {now} ms: {what}"));
    }

    /// Notes that a host's agent has heard of a leader.
    pub fn knows(&mut self, host: usize, term: Term) {
        let known = self.known.entry(host).or_default();
        *known = term.max(*known);
    }

    /// Checks that a host's agent obeys no leader of before one that it has heard of.
    pub fn obeyed(&mut self, now: Ms, host: usize, term: Term) {
        let known = self.known.get(&host).copied().unwrap_or_default();
        if term < known {
            self.broken(now, format!("host {host} obeys the leader of term {term}, and knows of term {known}"));
        }
        self.knows(host, term);
    }

    pub fn elected(&mut self, term: u64) {
        self.stats.elections += 1;
        self.terms.push(term);
    }

    pub fn asked(&mut self, asked: &Asked) {
        self.stats.asked += 1;
        match &asked.ask {
            Ask::CreateVm { request } if !request.dry_run => {
                let name = request.definition.split('\'').nth(1).unwrap_or_default().to_owned();
                self.autostarts.remove(&name);
                self.creations.insert(asked.id, name);
            }
            Ask::DeleteVm { vm } => drop(self.deleted.insert(vm.clone())),
            _ => {}
        }
        if let Ask::SetVm { vm, .. } | Ask::StartVm { vm, .. } | Ask::StopVm { vm, .. } | Ask::DeleteVm { vm } =
            &asked.ask
        {
            self.autostarts.remove(vm);
        }
        if let Ask::SetVm { vm, settings, .. } = &asked.ask {
            // Until it is answered, nobody knows which settings hold.
            self.set.remove(vm);
            self.settings.insert(asked.id, (vm.clone(), settings.clone()));
        }
    }

    pub fn answered(&mut self, asked: u64, answer: Answer) {
        if let Some((vm, settings)) = self.settings.remove(&asked)
            && answer == Answer::Done
        {
            self.set.insert(vm, settings);
        }
        if let (Some(vm), Answer::Done | Answer::Operation(_)) = (self.creations.remove(&asked), &answer) {
            self.stats.created += 1;
            self.created.insert(vm);
        }
        if let Answer::Operation(operation) = answer
            && self.operations.insert(operation.id)
        {
            self.stats.operations += 1;
        }
    }

    /// Takes note that a backup was restored that has these operations. What was asked for since is forgotten.
    pub fn restored(&mut self, operations: &BTreeSet<String>, flights: &BTreeMap<u64, Flight>) {
        let of = flights.values().filter_map(|flight| flight.name.split('.').next());
        self.forgotten.extend(of.map(str::to_owned));
        self.stats.restored += 1;
        self.operations.retain(|id| operations.contains(id));
        self.settings.clear();
        self.set.clear();
        self.creations.clear();
        self.created.clear();
        self.autostarts.clear();
        self.orders.clear();
        self.shutdowns.clear();
    }

    pub fn ended(&mut self, session: u64) {
        self.ended.insert(session);
    }

    pub fn is_ended(&self, session: u64) -> bool {
        self.ended.contains(&session)
    }

    pub fn heard(&mut self, now: Ms, node: usize, host: usize) {
        self.heard.insert((node, host), now);
    }

    /// Returns for how long a controller has not heard of a host.
    pub fn silent_ms(&self, now: Ms, node: usize, host: usize) -> Ms {
        now - self.heard.get(&(node, host)).copied().unwrap_or(0)
    }

    /// Checks what is about to be written, against what is there.
    pub fn written(
        &mut self,
        now: Ms,
        transaction: &Transaction,
        store: &MemoryStore,
        flights: &BTreeMap<u64, Flight>,
    ) {
        // What is decided in one go is written in one go: a move that begins, and then the drain of its target.
        let read = |key: &str| {
            let page = store.read(&Range::one(skein_store::Key::new(key).ok()?)).ok()?;
            page.entries.first().map(|entry| entry.value.as_bytes().to_vec())
        };
        let written = |key: &str| {
            transaction.operations.iter().find_map(|operation| match operation {
                skein_store::Operation::Put { key: put, value, .. } if put.as_str() == key => {
                    Some(value.as_bytes().to_vec())
                }
                _ => None,
            })
        };
        // Where guests are was known before the move was decided; and so was a host that has only just been heard of.
        let read_vm = |key: &str| written(key).or_else(|| read(key));
        let read_host = |key: &str| read(key).or_else(|| written(key));
        for operation in &transaction.operations {
            let skein_store::Operation::Put { key, value, .. } = operation else { continue };
            let Some(id) = key.as_str().strip_prefix("operation/") else { continue };
            let Ok(new) = serde_json::from_slice::<Operation>(value.as_bytes()) else { continue };
            let before = store.read(&Range::one(key.clone())).ok().and_then(|page| page.entries.first().cloned());
            let before = before.and_then(|entry| serde_json::from_slice::<Operation>(entry.value.as_bytes()).ok());
            let flight = flights.values().find(|flight| flight.name.split('.').next() == Some(id));
            // Of what was under way nothing is known after a restore.
            let is_forgotten = self.forgotten.contains(id);
            if let Some(flight) = flight.filter(|_| new.state.is_over() && !is_forgotten) {
                self.broken(now, format!("{id} is over, and {} is under way", flight.name));
            }
            for (index, of) in new.moves.iter().enumerate().filter(|(_, of)| of.state == MoveState::Begun) {
                let was = before.as_ref().and_then(|before| before.moves.get(index)).map(|of| of.state);
                if was == Some(MoveState::Begun) {
                    continue;
                }
                let to = of.to.clone().unwrap_or_default();
                let target =
                    read_host(&format!("host/{to}")).and_then(|v| serde_json::from_slice::<HostRecord>(&v).ok());
                let vm = read(&format!("vm/{}", of.vm)).and_then(|v| serde_json::from_slice::<VmRecord>(&v).ok());
                match &target {
                    None => self.broken(now, format!("{id} moves {} to {to}, which is no host", of.vm)),
                    Some(target) if target.mode != HostMode::Active => {
                        self.broken(now, format!("{id} moves {} to {to}, which takes no guests", of.vm));
                    }
                    Some(_) => {}
                }
                let other = match of.vm.as_str() {
                    "v0" => Some("v1"),
                    "v1" => Some("v0"),
                    _ => None,
                };
                // A guest that ended on the way, by the word of the host that it was to come to, is nowhere.
                let has_ended = |vm: &&str| {
                    let mut moves = new.moves.iter().filter(|of| of.vm == *vm && of.migration.is_some());
                    moves.any(|of| of.state == MoveState::Left)
                };
                let other = other.filter(|vm| !has_ended(vm)).and_then(|vm| read_vm(&format!("vm/{vm}")));
                let other = other.and_then(|v| serde_json::from_slice::<VmRecord>(&v).ok());
                let meets = other.is_some_and(|other| other.host.as_ref() == Some(&to) && is_running(&other));
                if meets && of.off.is_none() && is_picked(&new) && read(&format!("rule/{APART}")).is_some() {
                    self.broken(now, format!("{id} moves {} to {to}, where the other one is", of.vm));
                }
                let owners = vm.and_then(|vm| vm.settings.owners);
                if owners.is_some_and(|owners| !owners.contains(&to)) {
                    self.broken(now, format!("{id} moves {} to {to}, which is none of its possible owners", of.vm));
                }
            }
        }
        self.limits(now, transaction, store);
        self.awake(now, transaction, store);
    }

    /// Checks that no host has more moves than its agent takes.
    fn limits(&mut self, now: Ms, transaction: &Transaction, store: &MemoryStore) {
        let changes = |operation: &skein_store::Operation| match operation {
            skein_store::Operation::Put { key, value, .. } if key.as_str().starts_with("operation/") => {
                Some((key.as_str().to_owned(), value.as_bytes().to_vec()))
            }
            _ => None,
        };
        let mut all: BTreeMap<String, Vec<u8>> = transaction.operations.iter().filter_map(changes).collect();
        if all.is_empty() {
            return;
        }
        let prefix = skein_store::Prefix::new("operation/").expect("that is a prefix");
        for entry in store.read(&Range::below(prefix)).map(|page| page.entries).unwrap_or_default() {
            all.entry(entry.key.as_str().to_owned()).or_insert_with(|| entry.value.as_bytes().to_vec());
        }
        // What a failover starts waits for other starts only, and no start waits for a guest that is held.
        let mut used: BTreeMap<(String, &str), u32> = BTreeMap::new();
        for operation in all.values().filter_map(|value| serde_json::from_slice::<Operation>(value).ok()) {
            let is_failover = matches!(operation.kind, OperationKind::Failover { .. });
            let is_held = matches!(operation.kind, OperationKind::Migrate { hold: Some(_), .. });
            let is_start =
                is_failover || matches!(operation.kind, OperationKind::Start { .. } | OperationKind::Autostart { .. });
            for of in operation.moves.iter().filter(|of| of.state == MoveState::Begun && of.off.is_none()) {
                let to = of.to.clone().unwrap_or_default();
                let counts = match is_start {
                    true => [(to.clone(), "starts"), (to, if is_failover { "" } else { "together" })].to_vec(),
                    false => {
                        let together = (to.clone(), if is_held { "" } else { "together" });
                        [(of.from.clone(), "out"), (to, "in"), together].to_vec()
                    }
                };
                for count in counts.into_iter().filter(|(_, what)| !what.is_empty()) {
                    *used.entry(count).or_default() += 1;
                }
            }
        }
        if let Some(((host, _), count)) = used.into_iter().find(|(_, count)| *count > SLOTS) {
            self.broken(now, format!("{host} has {count} moves at once, and takes {SLOTS}"));
        }
    }

    /// Checks that a command is of a move that the store has as begun.
    pub fn commanded(&mut self, now: Ms, name: &str, value: Option<Vec<u8>>, _revision: u64) {
        let mut parts = name.split('.').skip(1).map(|part| part.parse::<usize>().ok());
        let (Some(Some(index)), Some(Some(attempt))) = (parts.next(), parts.next()) else { return };
        let operation = value.and_then(|value| serde_json::from_slice::<Operation>(&value).ok());
        let Some(of) = operation.and_then(|operation| operation.moves.get(index).cloned()) else {
            return self.broken(now, format!("{name} is commanded, and the store has no such move"));
        };
        // The leader may be deposed, and the move be further by now.
        let is_further = of.attempts as usize > attempt || of.state.is_over();
        if !is_further && (of.state != MoveState::Begun || of.attempts as usize != attempt) {
            self.broken(now, format!("{name} is commanded, and the store has the move as {:?}", of.state));
        }
    }

    /// Checks that a power-off that is ordered is in the store.
    pub fn ordered(&mut self, now: Ms, host: &str, written: u32) {
        let orders = self.orders.entry(host.to_owned()).or_default();
        *orders += 1;
        if *orders > written {
            let what =
                format!("{host} is to be switched off, for the {orders}th time; the store has {written} of them");
            self.broken(now, what);
        }
    }

    /// Checks that a shutdown that is ordered is in the store.
    pub fn told_to_sleep(&mut self, now: Ms, host: &str, written: u32) {
        let orders = self.shutdowns.entry(host.to_owned()).or_default();
        *orders += 1;
        if *orders > written {
            let what = format!("{host} is told to shut down for the {orders}th time; the store has {written} of them");
            self.broken(now, what);
        }
    }

    /// Notes that an order to shut down was refused: the leader need not remember the order.
    pub fn not_told_to_sleep(&mut self, host: &str) {
        self.shutdowns.entry(host.to_owned()).and_modify(|orders| *orders -= 1);
    }

    /// Checks that a host is updated once for an operation.
    pub fn updated(&mut self, now: Ms, id: &str) {
        self.stats.updated += 1;
        if !self.updates.insert(id.to_owned()) {
            self.broken(now, format!("{id} is updated a second time"));
        }
    }

    /// Checks that enough hosts stay awake when another is put to sleep, by what is there and what is written.
    fn awake(&mut self, now: Ms, transaction: &Transaction, store: &MemoryStore) {
        let puts = transaction.operations.iter().filter_map(|operation| match operation {
            skein_store::Operation::Put { key, value, .. } => Some((key.as_str(), value.as_bytes())),
            _ => None,
        });
        let puts: BTreeMap<&str, &[u8]> = puts.collect();
        let is_new = |key: &str| {
            let key = skein_store::Key::new(key).expect("it is a key");
            store.read(&Range::one(key)).is_ok_and(|page| page.entries.is_empty())
        };
        let sleeper = |value: &[u8]| match serde_json::from_slice::<Operation>(value).ok()? {
            Operation { kind: OperationKind::Sleep { host, .. }, state, .. } if !state.is_over() => Some(host),
            _ => None,
        };
        let begins = puts.iter().filter(|(key, _)| key.starts_with("operation/") && is_new(key));
        let begins: BTreeSet<String> = begins.filter_map(|(_, value)| sleeper(value)).collect();
        if begins.is_empty() {
            return;
        }
        let all = |prefix: &str| {
            let below = skein_store::Prefix::new(prefix).expect("that is a prefix");
            let page = store.read(&Range::below(below)).expect("it is small");
            let there = page.entries.into_iter().map(|of| (of.key.as_str().to_owned(), of.value.as_bytes().to_vec()));
            let mut all: BTreeMap<String, Vec<u8>> = there.collect();
            let put = puts.iter().filter(|(key, _)| key.starts_with(prefix));
            all.extend(put.map(|(key, value)| ((*key).to_owned(), value.to_vec())));
            all
        };
        let sleepers: BTreeSet<String> = all("operation/").values().filter_map(|value| sleeper(value)).collect();
        let takes = |(key, value): &(String, Vec<u8>)| {
            let host = serde_json::from_slice::<HostRecord>(value).expect("it is a host");
            let name = key.trim_start_matches("host/");
            host.contact == Contact::Online && host.mode == HostMode::Active && !sleepers.contains(name)
        };
        let awake = all("host/").into_iter().filter(takes).count();
        let settings = store.read(&Range::one(skein_store::Key::new("settings").expect("it is a key")));
        let settings = settings.ok().and_then(|page| page.entries.first().cloned());
        let settings =
            puts.get("settings").map(|value| value.to_vec()).or(settings.map(|of| of.value.as_bytes().to_vec()));
        let settings = settings.and_then(|value| serde_json::from_slice::<ClusterSettings>(&value).ok());
        let least = settings.unwrap_or_default().power.hosts_min as usize;
        if awake < least {
            self.broken(now, format!("{begins:?} are put to sleep: {awake} others are awake, and {least} have to be"));
        }
    }

    /// Checks that a migration is begun once.
    pub fn executed(&mut self, now: Ms, name: &str) {
        if !self.executed.insert(name.to_owned()) {
            self.broken(now, format!("{name} was carried out twice"));
        }
    }

    /// Checks the migrations that are under way.
    pub fn flights(&mut self, flights: &BTreeMap<u64, Flight>) {
        let mut vms = BTreeSet::new();
        for flight in flights.values() {
            if !vms.insert(&flight.vm) {
                self.broken(0, format!("{} is in two migrations", flight.vm));
            }
        }
    }
}

/// Returns whether the controller picks the targets of an operation.
fn is_picked(operation: &Operation) -> bool {
    !matches!(operation.kind, OperationKind::Migrate { to: Some(_), .. } | OperationKind::Start { on: Some(_), .. })
}

fn is_running(vm: &VmRecord) -> bool {
    vm.state == VmRunState::Running
}
