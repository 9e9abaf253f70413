//! Whole clusters: agents with real [`Manager`]s and real [`Session`](skein_session::Session)s, fake disks and QEMUs.
//!
//! An agent's process is its manager, its sessions' ends and what its edges remember; all of it is gone when it is
//! killed. Its host is its disk, its QEMUs and which QEMU is the source of which migration (a file in `/run`): they
//! outlive it. What is true of a guest is kept beside all that, in [`Vm`], and checked whenever one starts to run.
//!
//! | module | what it is |
//! |---|---|
//! | [`sim_agent`] | turns a manager's actions into what is done, and back |
//! | [`net`] | sessions between agents; control messages and migrations' connections in them |
//! | [`qemu`], [`disk`] | the fakes |
//! | [`offer`] | the handover's types with what a source offers here |
//! | [`fault`] | what goes wrong |
//! | [`scenario`] | a run, from a seed, and what must come of it |

pub mod disk;
pub mod fault;
pub mod net;
pub mod offer;
pub mod qemu;
pub mod scenario;
pub mod sim_agent;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use skein_handover::{MigrationId, Order, Outcome, needed};

use self::fault::Fault;
use self::net::{AgentSession, Wire};
use self::offer::{Input, Manager};
use self::qemu::{Qemu, State};
use self::scenario::Wish;
use self::sim_agent::{SimAgent, SimHost};
use crate::rng::Rng;
use crate::world::{MS, S, Sabotage, Time};

pub type HostIx = usize;
pub type QemuIx = usize;
pub type VmIx = usize;
pub type LinkIx = usize;

/// Bugs that are planted at the edges, to show that each is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Acknowledgements stop to count ([`Sabotage::LostAcks`]).
    LostAck,
    /// Bytes of another place win ([`Sabotage::StaleRange`]).
    StaleRange,
    /// An agent in doubt resumes the guest at the source.
    DoubleResume,
    /// A disk forgets what it acknowledged last.
    ForgottenJournal,
    /// A sent frame is kept for ever ([`Sabotage::LeakedFrame`]).
    LeakedBuffer,
    /// Credit is given once and never again ([`Sabotage::LostCredits`]).
    CreditDeadlock,
}

impl Plant {
    fn in_sessions(self) -> Option<Sabotage> {
        match self {
            Plant::LostAck => Some(Sabotage::LostAcks),
            Plant::StaleRange => Some(Sabotage::StaleRange),
            Plant::LeakedBuffer => Some(Sabotage::LeakedFrame),
            Plant::CreditDeadlock => Some(Sabotage::LostCredits),
            Plant::DoubleResume | Plant::ForgottenJournal => None,
        }
    }
}

/// A guest, as it truly is.
pub struct Vm {
    /// Version of each page, as of the moment that it last ran.
    pub image: Vec<u32>,
    version: u32,
    /// Where it runs or ran last.
    pub holder: QemuIx,
    /// What held it was killed.
    pub lost: bool,
    /// Somebody vouched for a host that is off: the guest may go on from where the other end has it.
    pub vouched: bool,
    pub stopped_at: Option<Time>,
    /// Rounds until it is stopped, and pages that it changes in each.
    pub rounds: u32,
    pub dirty: u64,
}

/// What happens at a time.
#[derive(Debug)]
pub(crate) enum Do {
    /// To an agent, if it is still that process.
    Agent(HostIx, u32, ForAgent),
    Restart(HostIx),
    QemuStep(QemuIx),
    QemuLoaded(QemuIx),
    QemuFails(QemuIx, u32),
    Fault(usize),
    Heal(usize),
    Disarm(HostIx),
    Wish(usize),
    Operator,
}

#[derive(Debug)]
pub enum ForAgent {
    Timeout,
    Look,
    Written,
    Order(MigrationId, Order),
    /// What a QEMU said, unless a later order makes it old: so many orders of the migration had been given then.
    Tell(Input, MigrationId, u32),
    /// Ask the migration's QEMU how it is.
    Query(MigrationId),
    CloseStreams(QemuIx, u32),
}

struct Scheduled(Time, u64, Do);

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// What a run came to, for reports.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub actions: u64,
    pub virtual_ns: u64,
    pub faults: BTreeMap<&'static str, u64>,
    pub outcomes: BTreeMap<&'static str, u64>,
    pub bytes: u64,
    pub in_doubt: u64,
    /// Longest that a guest was stopped though its QEMUs lived.
    pub stopped_max_ns: u64,
}

impl Stats {
    pub fn add(&mut self, other: &Stats) {
        self.actions += other.actions;
        self.virtual_ns += other.virtual_ns;
        self.bytes += other.bytes;
        self.in_doubt += other.in_doubt;
        self.stopped_max_ns = self.stopped_max_ns.max(other.stopped_max_ns);
        for (sum, of) in [(&mut self.faults, &other.faults), (&mut self.outcomes, &other.outcomes)] {
            of.iter().for_each(|(what, count)| *sum.entry(what).or_default() += count);
        }
    }
}

pub struct Cluster {
    pub now: Time,
    pub rng: Rng,
    pub failure: Option<String>,
    pub stats: Stats,
    pub plant: Option<Plant>,
    pub hosts: Vec<SimHost>,
    pub agents: Vec<SimAgent>,
    pub qemus: Vec<Qemu>,
    pub vms: Vec<Vm>,
    pub wire: Wire,
    pub links: BTreeMap<LinkIx, AgentSession>,
    pub faults: Vec<(Time, Fault)>,
    pub wishes: Vec<Wish>,
    /// How each migration ended, by its source's word.
    pub outcomes: BTreeMap<MigrationId, Outcome>,
    /// A guest's memory when it was stopped, by migration.
    pub stopped: BTreeMap<MigrationId, Vec<u32>>,
    /// Nothing goes wrong in this run.
    pub calm: bool,
    /// Only processes are killed: guests may not be stopped for longer than this after the last of it.
    pub kills_only: bool,
    pub last_kill: Time,
    /// No faults any more: guests stop changing without end.
    pub healed: bool,
    /// Buffers with a guest's pages that anybody holds.
    pub live: Arc<AtomicI64>,
    /// What is kept in memory of sessions that are no more; for [`Plant::LeakedBuffer`].
    leaked: Vec<bytes::Bytes>,
    next_link: LinkIx,
    seq: u64,
    heap: BinaryHeap<Reverse<Scheduled>>,
    pub trace: Option<String>,
}

macro_rules! trace {
    ($cluster:expr, $($arg:tt)*) => {
        if $cluster.trace.is_some() {
            eprintln!("{:>12.6} {}", $cluster.now as f64 / 1e9, format_args!($($arg)*));
        }
    };
}
pub(crate) use trace;

impl Cluster {
    pub(crate) fn at(&mut self, at: Time, action: Do) {
        self.seq += 1;
        self.heap.push(Reverse(Scheduled(at.max(self.now), self.seq, action)));
    }

    pub(crate) fn after(&mut self, delay: Time, action: Do) {
        self.at(self.now + delay, action);
    }

    pub fn fail(&mut self, why: impl Into<String>) {
        if self.failure.is_none() {
            let why = why.into();
            trace!(self, "FAILURE {why}");
            self.failure = Some(format!("at {:.6} s: {why}", self.now as f64 / 1e9));
        }
    }

    /// Lets time pass until `until`, until `stop`, or until something is wrong.
    pub fn run(&mut self, until: Time, stop: impl Fn(&Cluster) -> bool) {
        while self.failure.is_none() && !stop(self) {
            let link = self.links.iter().filter_map(|(ix, link)| Some((link.world.next_at()?, *ix))).min();
            let own = self.heap.peek().map(|Reverse(next)| next.0);
            match (own, link) {
                (own, Some((at, ix))) if at <= until && own.is_none_or(|own| at < own) => {
                    self.now = at;
                    self.stats.actions += 1;
                    let link = self.links.get_mut(&ix).expect("just found");
                    link.world.step();
                    if let Some(why) = link.world.failure.take() {
                        self.fail(format!("session {ix}: {why}"));
                    }
                }
                (Some(at), _) if at <= until => {
                    let Some(Reverse(Scheduled(_, _, action))) = self.heap.pop() else { return };
                    self.now = at;
                    self.stats.actions += 1;
                    self.act(action);
                }
                _ => {
                    self.now = until;
                    break;
                }
            }
            self.settle_links();
        }
        self.stats.virtual_ns = self.now;
    }

    fn act(&mut self, action: Do) {
        match action {
            Do::Agent(host, incarnation, what) => self.agent_acts(host, incarnation, what),
            Do::Restart(host) => self.restart(host),
            Do::QemuStep(qemu) => self.qemu_step(qemu),
            Do::QemuLoaded(qemu) => self.qemu_loaded(qemu),
            Do::QemuFails(qemu, epoch) => self.qemu_fails(qemu, epoch),
            Do::Fault(fault) => self.fault(fault),
            Do::Heal(fault) => self.heal(fault),
            Do::Disarm(host) => self.agents[host].trap = None,
            Do::Wish(wish) => self.wish(wish),
            Do::Operator => self.operator(),
        }
    }

    // ---- guests ----

    /// A QEMU begins to run its guest: the moment of truth.
    pub(crate) fn guest_runs(&mut self, qemu: QemuIx) {
        let vm = self.qemus[qemu].vm;
        if let Some(other) = (0..self.qemus.len())
            .find(|other| *other != qemu && self.qemus[*other].vm == vm && self.qemus[*other].runs())
        {
            let why = format!("VM {vm} runs twice: in {} and in {}", qemu::shown(other), qemu::shown(qemu));
            return self.fail(why);
        }
        let vouched = std::mem::take(&mut self.vms[vm].vouched);
        if self.qemus[qemu].image != self.vms[vm].image && !vouched {
            let (qemu, holder) = (qemu::shown(qemu), qemu::shown(self.vms[vm].holder));
            return self.fail(format!("VM {vm} goes on in {qemu} from another state than {holder} left it in"));
        }
        self.qemus[qemu].state = State::Running;
        self.qemus[qemu].ran = true;
        trace!(self, "vm{vm} runs in {} on h{}", qemu::shown(qemu), self.qemus[qemu].host);
        let truth = &mut self.vms[vm];
        if let Some(since) = truth.stopped_at.take() {
            self.stats.stopped_max_ns = self.stats.stopped_max_ns.max(self.now - since);
        }
        truth.image.clone_from(&self.qemus[qemu].image);
        truth.holder = qemu;
        self.guest_changes(qemu, 2);
    }

    /// The guest writes to so many pages.
    pub(crate) fn guest_changes(&mut self, qemu: QemuIx, pages: u64) -> BTreeSet<u32> {
        let vm = &mut self.vms[self.qemus[qemu].vm];
        let mut changed = BTreeSet::new();
        for _ in 0..pages {
            let page = self.rng.below(vm.image.len() as u64) as usize;
            vm.version += 1;
            vm.image[page] = vm.version;
            self.qemus[qemu].image[page] = vm.version;
            changed.insert(page as u32);
        }
        changed
    }

    // ---- QEMU ----

    pub(crate) fn schedule_step(&mut self, qemu: QemuIx, delay: Time) {
        if self.qemus[qemu].alive && !std::mem::replace(&mut self.qemus[qemu].scheduled, true) {
            self.after(delay, Do::QemuStep(qemu));
        }
    }

    fn qemu_step(&mut self, ix: QemuIx) {
        let qemu = &mut self.qemus[ix];
        qemu.scheduled = false;
        if !qemu.alive {
            return;
        }
        match qemu.state {
            State::Starting => {
                qemu.state = State::Incoming;
                self.qemu_says(ix);
            }
            State::Incoming => self.qemu_loads(ix),
            State::Migrating | State::Device if qemu.broken => {
                let (epoch, device) = (qemu.epoch, qemu.state == State::Device);
                let delay = if device { 2 * MS + self.rng.below(3 * MS) } else { self.rng.below(100 * MS) };
                self.after(delay, Do::QemuFails(ix, epoch));
            }
            State::Device if qemu.ended && qemu.shut => {
                qemu.state = State::Completed;
                qemu.channels.iter_mut().for_each(|channel| channel.out_closed = true);
                self.pump_out(ix);
                self.qemu_says(ix);
            }
            State::Migrating | State::Device => self.qemu_produces(ix),
            _ => {}
        }
    }

    fn qemu_produces(&mut self, ix: QemuIx) {
        let vm = self.qemus[ix].vm;
        match self.qemus[ix].produce(&self.live) {
            qemu::Produced::Blocked | qemu::Produced::End => {}
            qemu::Produced::Round => {
                let endless = self.vms[vm].rounds == u32::MAX;
                let changed = self.guest_changes(ix, self.vms[vm].dirty);
                let last = self.qemus[ix].round >= self.vms[vm].rounds || (self.healed && endless);
                self.qemus[ix].next_round(changed);
                if last {
                    self.qemus[ix].state = State::PreSwitchover;
                    self.vms[vm].stopped_at = Some(self.now);
                    let id = self.qemus[ix].outgoing.expect("it migrates");
                    self.stopped.insert(id, self.qemus[ix].image.clone());
                    self.qemu_says(ix);
                } else {
                    let pause = if endless { 300 * MS } else { self.rng.below(5 * MS) };
                    self.schedule_step(ix, pause);
                }
            }
        }
        self.pump_out(ix);
    }

    fn qemu_loads(&mut self, ix: QemuIx) {
        match self.qemus[ix].load() {
            qemu::Loaded::NotYet => {}
            qemu::Loaded::Lost => return self.qemu_ends(ix, "lost its connection"),
            qemu::Loaded::Corrupt(why) => return self.fail(why),
            qemu::Loaded::All => {
                let id = self.qemus[ix].incoming.expect("only such receive");
                if self.stopped.get(&id) != Some(&self.qemus[ix].image) {
                    return self.fail(format!("{} has another memory than the guest of {id} had", qemu::shown(ix)));
                }
                self.stats.bytes += (self.qemus[ix].image.len() * qemu::PAGE_BYTES) as u64;
                // The last word and its own event come in either order.
                self.qemus[ix].channels[0].push([qemu::SHUT].to_vec().into());
                self.qemus[ix].channels.iter_mut().for_each(|channel| channel.out_closed = true);
                let delay = self.rng.below(300_000);
                self.after(delay, Do::QemuLoaded(ix));
                self.pump_out(ix);
            }
        }
        self.pump_in(ix);
    }

    fn qemu_loaded(&mut self, ix: QemuIx) {
        if self.qemus[ix].alive && self.qemus[ix].state == State::Incoming {
            self.qemus[ix].state = State::Loaded;
            self.qemu_says(ix);
        }
    }

    /// The source's migration fails, and QEMU resumes the guest by itself.
    pub(crate) fn qemu_fails(&mut self, ix: QemuIx, epoch: u32) {
        let qemu = &mut self.qemus[ix];
        if qemu.alive
            && qemu.epoch == epoch
            && matches!(qemu.state, State::Migrating | State::PreSwitchover | State::Device)
        {
            trace!(self, "{} gives the migration up and goes on", qemu::shown(ix));
            self.qemu_gives_up(ix);
        }
    }

    pub(crate) fn qemu_gives_up(&mut self, ix: QemuIx) {
        if self.qemus[ix].state == State::Migrating {
            self.qemus[ix].state = State::Running;
        } else {
            self.guest_runs(ix);
        }
        self.qemus[ix].epoch += 1;
        self.migration_failed(ix);
        let (host, epoch) = (self.qemus[ix].host, self.qemus[ix].epoch);
        self.for_agent(host, MS, ForAgent::CloseStreams(ix, epoch));
    }

    /// The process ends by itself.
    fn qemu_ends(&mut self, ix: QemuIx, why: &str) {
        trace!(self, "{} on h{} {why} and ends", qemu::shown(ix), self.qemus[ix].host);
        self.qemu_dies(ix);
    }

    /// The process is no more.
    pub(crate) fn qemu_dies(&mut self, ix: QemuIx) {
        self.qemus[ix].alive = false;
        // What is in its sockets is still there for their readers.
        self.qemus[ix].channels.iter_mut().for_each(|channel| channel.out_closed = true);
        self.pump_out(ix);
        self.qemu_says(ix);
    }

    // ---- rest ----

    /// Nothing is left to do anywhere.
    pub fn rests(&self) -> bool {
        self.hosts.iter().zip(&self.agents).all(|(host, agent)| {
            !host.off && agent.is_idle() && agent.manager.as_ref().is_some_and(|m| m.summaries().is_empty())
        }) && self.links.is_empty()
            && self.wishes.iter().all(|wish| wish.done)
    }

    pub fn check_rest(&mut self) {
        for vm in 0..self.vms.len() {
            let alive: Vec<QemuIx> =
                (0..self.qemus.len()).filter(|ix| self.qemus[*ix].vm == vm && self.qemus[*ix].alive).collect();
            let running = alive.iter().filter(|ix| self.qemus[**ix].state == State::Running).count();
            let expected = usize::from(!self.vms[vm].lost);
            if alive.len() > 1 || (running != expected && !(self.vms[vm].lost && running == 1)) {
                let list: Vec<_> = alive.iter().map(|ix| (*ix, self.qemus[*ix].host, self.qemus[*ix].state)).collect();
                return self.fail(format!("at rest VM {vm} (lost: {}) has {list:?}", self.vms[vm].lost));
            }
        }
        for host in 0..self.hosts.len() {
            let kept = needed(self.hosts[host].disk.records());
            if !kept.is_empty() {
                return self.fail(format!("at rest the journal of h{host} still needs {kept:?}"));
            }
            if let Some(what) = self.agents[host].leftover() {
                return self.fail(format!("at rest the agent of h{host} keeps {what}"));
            }
        }
        self.qemus.iter_mut().for_each(|qemu| qemu.channels.clear());
        let live = self.live.load(Ordering::Relaxed);
        if live != 0 {
            self.fail(format!("at rest {live} buffers are still held"));
        }
    }

    /// For a report of what does not come to rest.
    pub fn unrest(&self) -> String {
        let mut lines = Vec::new();
        for (ix, (host, agent)) in self.hosts.iter().zip(&self.agents).enumerate() {
            let summaries = agent.manager.as_ref().map(Manager::summaries).unwrap_or_default();
            lines.push(format!("h{ix}: off {}, up {}, {}", host.off, agent.manager.is_some(), agent.shown()));
            lines.extend(summaries.iter().map(|summary| format!("  {summary:?}")));
        }
        for (ix, link) in &self.links {
            lines.push(format!("session {ix}: h{} > h{}, gone {:?}", link.agents[0], link.agents[1], link.gone));
        }
        for (ix, qemu) in self.qemus.iter().enumerate().filter(|(_, qemu)| qemu.alive) {
            lines.push(format!("{} of vm{} on h{}: {}", qemu::shown(ix), qemu.vm, qemu.host, qemu.shown()));
        }
        lines.extend(self.wishes.iter().filter(|wish| !wish.done).map(|wish| format!("{wish:?}")));
        lines.join("\n")
    }

    /// No guest is stopped for long where only processes are killed.
    pub(crate) fn check_stopped(&mut self) {
        if !self.kills_only {
            return;
        }
        for vm in 0..self.vms.len() {
            let Vm { stopped_at: Some(since), lost: false, .. } = self.vms[vm] else { continue };
            let since = since.max(self.last_kill);
            if self.now > since + 5 * S && self.agents.iter().all(|agent| agent.manager.is_some()) {
                let unrest = self.unrest();
                return self.fail(format!("VM {vm} is stopped for 5 s though the network is up\n{unrest}"));
            }
        }
    }
}

impl std::fmt::Display for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |of: &BTreeMap<&'static str, u64>| {
            of.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
        };
        let hours = self.virtual_ns as f64 / 3.6e12;
        writeln!(
            f,
            "{hours:.2} virtual hours, {} actions, {} MB of guests moved",
            self.actions,
            self.bytes / 1_000_000
        )?;
        writeln!(f, "migrations: {}; alarms {}", list(&self.outcomes), self.in_doubt)?;
        writeln!(f, "longest stop of a guest: {:.3} s", self.stopped_max_ns as f64 / 1e9)?;
        write!(f, "faults: {}", list(&self.faults))
    }
}
