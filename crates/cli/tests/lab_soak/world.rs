//! Hosts, agents and guests, and how a round is run with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skein_api::{Client, LogEntry, MigrateOptions, Migration, Reply, Request, VmState};
use skein_api::{MigrationEvent, MigrationId, MigrationPhase, Outcome};
use skein_hypervisor::MigrationStatus;
use skein_journal::EventLog;
use skein_lab_cluster::{Cluster, GUEST_TIME, Settings, Start, until};
use skein_lab_guest::{Params, Rewrite};

use crate::plan::{Fault, Kind, Moment, Round, Side};

const HOSTS: usize = 3;
pub const NICS: usize = 2;
/// The most migrations at once to and from a host; more are queued.
const AT_ONCE: u16 = 2;
/// The MiB of the working guests' memory that are verified.
const FILL_MB: [u32; 2] = [64, 128];
const BARE: usize = 2;
/// How often booting a guest is tried.
const BOOTS: usize = 3;
/// The time until all is resolved. Without contact an agent waits a minute for a session before it calls a migration
/// off.
const RESOLVED: Duration = Duration::from_secs(100);
/// The time after that until nothing is left over.
const CLEAN: Duration = Duration::from_secs(20);
/// If a migration has not reached a step by then, it never will.
const STEP_TIME: Duration = Duration::from_secs(30);
/// How long a request to migrate that is refused before anything was done is repeated: an agent of the round before may
/// not have found all the others yet.
const AGAIN: Duration = Duration::from_secs(20);
/// The time within which an agent answers.
const SOON: Duration = Duration::from_secs(2);
/// The time within which a request to migrate is answered: two agents and their QEMUs are asked.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two checks of what the agents say.
const LOOK: Duration = Duration::from_millis(20);
/// The time between two checks of the logs for the moment of a fault.
const TICK: Duration = Duration::from_millis(1);

/// What went wrong for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    Lost,
    Doubled,
    Corrupted,
    Other,
}

pub struct Failure {
    pub harm: Harm,
    pub why: String,
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure { harm: Harm::Other, why }
    }
}

/// The result of a round.
pub struct Done {
    /// The outcome of each migration that was asked for. `None`: it was refused because of a fault.
    pub outcomes: Vec<Option<Outcome>>,
    /// The faults that were injected: those for which there was a moment and a victim.
    pub done: Vec<Kind>,
    /// The time from the end of the last fault until all agents agree where each guest runs, and it runs there.
    pub resolved: Duration,
    /// The time until nothing was left over.
    pub clean: Duration,
    /// The longest time that a guest ran nowhere, of the guests that were moved or kept.
    pub stopped: Duration,
    /// The number of guests that ended with the QEMU that ran them.
    pub ended: usize,
    /// The outcomes of the migrations that were in doubt.
    pub doubts: Vec<Option<Outcome>>,
}

struct Guest {
    name: String,
    definition: String,
    working: bool,
    at: String,
}

pub struct World {
    pub cluster: Cluster,
    guests: Vec<Guest>,
    known: BTreeSet<MigrationId>,
    /// The QEMUs that the soak killed.
    killed: BTreeSet<u32>,
    round_began: Instant,
    /// What was done, and when in the round.
    pub timeline: Vec<(Duration, String)>,
    /// The boots that failed.
    pub boots: Vec<String>,
}

/// A migration that was asked for.
struct Ask {
    vm: String,
    from: String,
    to: String,
    request: Request,
    answer: Option<Receiver<Result<MigrationId, String>>>,
    id: Option<MigrationId>,
    refused: Option<String>,
}

enum Undo {
    Heal(Vec<(String, usize)>),
    Start(Vec<String>),
    Continue(Vec<String>),
    ContinueQemus(Vec<u32>),
    /// The agents were asked to end.
    Replace(Vec<String>),
    Nothing,
}

enum Doing {
    Waiting(Fault),
    /// The moment has come, and the time after it passes now.
    Due(Fault, Instant),
    Active(Instant, Undo),
    Over,
}

impl World {
    pub fn new(program: &Path, seed: u64) -> World {
        let settings = Settings {
            hosts: HOSTS,
            nics: NICS,
            rates: vec![Some(500)],
            incoming: AT_ONCE,
            outgoing: AT_ONCE,
            ..Settings::new(program.to_owned())
        };
        let mut cluster = Cluster::up(settings);
        let hosts = cluster.hosts();
        let mut guests = Vec::new();
        for (n, fill_mb) in FILL_MB.iter().enumerate() {
            let params = Params {
                fill_mb: *fill_mb,
                compressible: 0,
                rewrite_mb: fill_mb / 3,
                rewrite: Rewrite::Quarter,
                rate: 1000,
                beat_ms: 20,
                seed: seed + n as u64,
                ..Params::default()
            };
            let name = format!("work{n}");
            let definition = cluster.working(&name, &params);
            guests.push(Guest { name, definition, working: true, at: hosts[n % HOSTS].clone() });
        }
        for n in 0..BARE {
            let name = format!("bare{n}");
            let definition = cluster.bare(&name);
            guests.push(Guest { name, definition, working: false, at: hosts[(n + 1) % HOSTS].clone() });
        }
        let mut world = World {
            cluster,
            guests,
            known: BTreeSet::new(),
            killed: BTreeSet::new(),
            round_began: Instant::now(),
            timeline: Vec::new(),
            boots: Vec::new(),
        };
        (0..world.guests.len()).for_each(|at| world.boot(at));
        world
    }

    pub fn guests(&self) -> usize {
        self.guests.len()
    }

    /// Starts a guest and waits until it works. A guest that gives up while it boots, as an emulated one on a busy
    /// machine may, was not in a migration, so it is started again.
    fn boot(&mut self, at: usize) {
        for n in 1.. {
            let Guest { name, definition, working, at: host } = &self.guests[at];
            let console = self.cluster.dir().join(format!("{name}.console"));
            self.cluster.start_vm(host, definition);
            listen(&self.cluster.run_dir(host).join("vms").join(name).join("console"), &console);
            let has_ended = || self.qemus(name, host).is_empty();
            let runs = || self.cluster.where_runs(name) == [host.as_str()];
            let works = || self.cluster.talk(name, |agent| agent.status()).ready;
            let is_up = catch_unwind(AssertUnwindSafe(|| {
                let up = until(GUEST_TIME, || has_ended() || (runs() && (!working || works())));
                up && !has_ended()
            }));
            if is_up.unwrap_or(false) {
                return;
            }
            let said = std::fs::read_to_string(&console).unwrap_or_default();
            let words = said.trim_end().get(said.trim_end().len().saturating_sub(1000)..).unwrap_or_default();
            let what = format!("{name} did not boot: QEMU ended: {}; it said: {words}", has_ended());
            assert!(n < BOOTS, "{what}");
            println!("{what}");
            self.boots.push(what);
            // The guest may have ended by itself.
            let _ = self.cluster.ask(host, &Request::VmStop { name: name.clone(), timeout_s: 0, force: true });
            self.cluster.asked(host, &Request::VmForget { name: name.clone() });
        }
    }

    fn note(&mut self, what: String) {
        self.timeline.push((self.round_began.elapsed(), what));
    }

    /// Runs a whole round. A panic of the cluster counts as a failure.
    pub fn round(&mut self, plan: &Round) -> Result<Done, Failure> {
        self.timeline.clear();
        self.round_began = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| self.try_round(plan)));
        done.unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
            Err(said.unwrap_or_default().into())
        })
    }

    fn try_round(&mut self, plan: &Round) -> Result<Done, Failure> {
        for host in self.cluster.hosts() {
            (0..NICS).for_each(|nic| self.cluster.lab().rate(&host, nic, Some(plan.rate)).expect("a rate can be set"));
        }
        let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970");
        let mut asks = self.asks(plan);
        let mut faults: Vec<Doing> = plan.faults.iter().map(|fault| Doing::Waiting(*fault)).collect();
        let mut done = Vec::new();
        let begin = Instant::now();
        for ask in &mut asks {
            self.ask(ask);
        }
        loop {
            let busy = self.take_answers(&mut asks, !done.is_empty(), begin)?;
            for doing in &mut faults {
                self.step(doing, &asks, begin, &mut done);
            }
            for host in self.cluster.hosts() {
                let is_ours = |doing: &Doing| match doing {
                    Doing::Active(_, Undo::Start(hosts) | Undo::Replace(hosts)) => hosts.contains(&host),
                    _ => false,
                };
                if !faults.iter().any(is_ours) && !self.cluster.is_up(&host) {
                    return Err(format!("the agent of {host} ended by itself").into());
                }
            }
            if !busy && faults.iter().all(|doing| matches!(doing, Doing::Over)) {
                break;
            }
            thread::sleep(TICK);
        }
        let ended = Instant::now();
        self.note("the last fault is over".into());

        let mut state = String::new();
        let mut places = BTreeMap::new();
        loop {
            match self.places() {
                Ok(found) => {
                    places = found;
                    break;
                }
                Err(why) if ended.elapsed() > RESOLVED => state = why,
                Err(_) => {
                    thread::sleep(LOOK);
                    continue;
                }
            }
            break;
        }
        if !state.is_empty() {
            let harm = if self.cluster.witness().doubles().is_empty() { Harm::Other } else { Harm::Doubled };
            return Err(Failure { harm, why: format!("not resolved after {} s: {state}", RESOLVED.as_secs()) });
        }
        let resolved = ended.elapsed();
        self.note("resolved".into());
        let clean = self.wait_clean(ended)?;
        self.note("clean".into());
        if let Some(double) = self.cluster.witness().doubles().first() {
            return Err(Failure { harm: Harm::Doubled, why: format!("TWO GUESTS RAN: {double:#?}") });
        }
        self.cluster.check();

        let mut result =
            Done { outcomes: Vec::new(), done, resolved, clean, stopped: Duration::ZERO, ended: 0, doubts: Vec::new() };
        self.judge(&asks, &places, &mut result)?;
        for at in 0..self.guests.len() {
            self.look_after(at, &places, began, &mut result)?;
        }
        Ok(result)
    }

    fn asks(&self, plan: &Round) -> Vec<Ask> {
        let mut free: Vec<usize> = (0..self.guests.len()).collect();
        let ask = |one: &crate::plan::Move| {
            let guest = free.remove(one.guest % free.len());
            let Guest { name: vm, at: from, .. } = &self.guests[guest];
            let others: Vec<String> = self.cluster.hosts().into_iter().filter(|host| host != from).collect();
            let to = others[one.to % others.len()].clone();
            let options = MigrateOptions { channels: one.channels, ..MigrateOptions::default() };
            let request = Request::Migrate { vm: vm.clone(), to: to.clone(), options, detach: true };
            let (vm, from) = (vm.clone(), from.clone());
            Ask { vm, from, to, request, answer: None, id: None, refused: None }
        };
        plan.moves.iter().map(ask).collect()
    }

    fn ask(&mut self, ask: &mut Ask) {
        self.note(format!("asked: {} from {} to {}", ask.vm, ask.from, ask.to));
        let (reply, answer) = sync_channel(1);
        let (client, request) = (self.cluster.client(&ask.from), ask.request.clone());
        thread::spawn(move || {
            let _ = reply.send(begin(&client, &request));
        });
        ask.answer = Some(answer);
    }

    /// Takes the answers that have come. Returns whether some are still to come.
    fn take_answers(&mut self, asks: &mut [Ask], has_faults: bool, begin: Instant) -> Result<bool, Failure> {
        let mut busy = false;
        for ask in asks {
            let Some(answer) = &ask.answer else { continue };
            match answer.try_recv() {
                Err(TryRecvError::Empty) => busy = true,
                Err(TryRecvError::Disconnected) => unreachable!("who asks always answers"),
                Ok(Ok(id)) => {
                    ask.answer = None;
                    ask.id = Some(id);
                    self.note(format!("begun: {} is {id}", ask.vm));
                }
                Ok(Err(why)) => {
                    ask.answer = None;
                    self.note(format!("refused: {}: {why}", ask.vm));
                    if has_faults {
                        ask.refused = Some(why);
                    } else if begin.elapsed() < AGAIN {
                        thread::sleep(Duration::from_millis(200));
                        self.ask(ask);
                        busy = true;
                    } else {
                        return Err(format!("{} cannot be moved, and nothing was done to it: {why}", ask.vm).into());
                    }
                }
            }
        }
        Ok(busy)
    }

    // ---- faults ----

    fn step(&mut self, doing: &mut Doing, asks: &[Ask], begin: Instant, done: &mut Vec<Kind>) {
        let now = Instant::now();
        match doing {
            Doing::Waiting(fault) => match fault.moment {
                Moment::Asked(after) => *doing = Doing::Due(*fault, begin + after),
                Moment::Step(stage, after) => {
                    let first = &asks[0];
                    if self.has_come(first, stage) {
                        *doing = Doing::Due(*fault, now + after);
                    } else if first.refused.is_some() || self.is_over(first) || begin.elapsed() > STEP_TIME {
                        let what = format!("never came: {}", fault.moment);
                        *doing = Doing::Over;
                        self.note(what);
                    }
                }
            },
            Doing::Due(fault, at) if *at <= now => {
                let fault = *fault;
                match self.begin_fault(&fault, &asks[0]) {
                    Some(undo) => {
                        self.note(format!("fault: {}, {}", fault.kind, fault.moment));
                        done.push(fault.kind);
                        *doing = Doing::Active(Instant::now() + fault.lasts, undo);
                    }
                    None => {
                        self.note(format!("nobody there: {}, {}", fault.kind, fault.moment));
                        *doing = Doing::Over;
                    }
                }
            }
            Doing::Active(at, undo) if *at <= now => {
                if self.end_fault(undo) {
                    *doing = Doing::Over;
                }
            }
            Doing::Due(..) | Doing::Active(..) | Doing::Over => {}
        }
    }

    /// Injects a fault, and returns what ends it. `None`: there is no victim.
    fn begin_fault(&mut self, fault: &Fault, first: &Ask) -> Option<Undo> {
        let hosts = |side| match side {
            Side::Source => vec![first.from.clone()],
            Side::Target => vec![first.to.clone()],
            Side::Both => vec![first.from.clone(), first.to.clone()],
        };
        let mut agents = |side| {
            let up: Vec<String> = hosts(side).into_iter().filter(|host| self.cluster.is_up(host)).collect();
            Some(up).filter(|up| !up.is_empty())
        };
        Some(match fault.kind {
            Kind::Nothing => Undo::Nothing,
            Kind::Link(cut, all) => {
                let host = if fault.of_target { &first.to } else { &first.from };
                let nics = if all { (0..NICS).collect() } else { vec![fault.nic] };
                let links: Vec<(String, usize)> = nics.into_iter().map(|nic| (host.clone(), nic)).collect();
                links.iter().for_each(|(host, nic)| self.cluster.lab().cut(host, *nic, cut).expect("it can be cut"));
                Undo::Heal(links)
            }
            Kind::AgentKilled(side) => {
                let up = agents(side)?;
                up.iter().for_each(|host| self.cluster.kill(host));
                Undo::Start(up)
            }
            Kind::AgentStopped(side) => {
                let up = agents(side)?;
                up.iter().for_each(|host| self.cluster.signal(host, Signal::SIGSTOP));
                Undo::Continue(up)
            }
            Kind::AgentReplaced(side) => {
                let up = agents(side)?;
                up.iter().for_each(|host| self.cluster.signal(host, Signal::SIGTERM));
                Undo::Replace(up)
            }
            Kind::QemuKilled(side) | Kind::QemuStopped(side) => {
                let pids: Vec<u32> = hosts(side).iter().flat_map(|host| self.qemus(&first.vm, host)).collect();
                let killed = matches!(fault.kind, Kind::QemuKilled(_));
                let signal = if killed { Signal::SIGKILL } else { Signal::SIGSTOP };
                let hit: Vec<u32> = pids.into_iter().filter(|pid| send(*pid, signal)).collect();
                if hit.is_empty() {
                    return None;
                }
                if killed {
                    self.killed.extend(hit);
                    Undo::Nothing
                } else {
                    Undo::ContinueQemus(hit)
                }
            }
            Kind::Cancelled => {
                let (id, client) = (first.id?, self.cluster.client(&first.from));
                thread::spawn(move || client.call(&Request::MigrationCancel { id: id.to_string() }, STEP_TIME));
                Undo::Nothing
            }
        })
    }

    fn qemus(&self, vm: &str, host: &str) -> Vec<u32> {
        let qemus = self.cluster.qemus(host).into_iter();
        qemus.filter(|qemu| qemu.vm.as_deref() == Some(vm)).map(|qemu| qemu.pid).collect()
    }

    /// Ends a fault. Returns `false` if that takes longer.
    fn end_fault(&mut self, undo: &Undo) -> bool {
        match undo {
            Undo::Nothing => {}
            Undo::Heal(links) => {
                links.iter().for_each(|(host, nic)| self.cluster.lab().heal(host, *nic).expect("it can be healed"));
                self.note(format!("healed: {links:?}"));
            }
            Undo::Start(hosts) => {
                hosts.iter().for_each(|host| self.cluster.begin_start(host, &Start::default()));
                self.note(format!("agents started: {hosts:?}"));
            }
            Undo::Continue(hosts) => {
                for host in hosts {
                    // The agent may have been killed meanwhile.
                    if self.cluster.is_up(host) {
                        self.cluster.signal(host, Signal::SIGCONT);
                    }
                }
                self.note(format!("agents go on: {hosts:?}"));
            }
            Undo::ContinueQemus(pids) => {
                for pid in pids {
                    // The QEMU may have been killed meanwhile.
                    let _ = send(*pid, Signal::SIGCONT);
                }
                self.note(format!("QEMUs go on: {pids:?}"));
            }
            Undo::Replace(hosts) => {
                if hosts.iter().any(|host| self.cluster.is_up(host)) {
                    return false;
                }
                for host in hosts {
                    self.cluster.kill(host);
                    self.cluster.begin_start(host, &Start::default());
                }
                self.note(format!("agents replaced: {hosts:?}"));
            }
        }
        true
    }

    /// Returns what the log of one end has so far. It is read from the disk, as an agent may be unable to answer.
    fn log(&self, host: &str, id: MigrationId) -> Vec<LogEntry> {
        let dir = self.cluster.state_dir(host).join("migrations");
        let read = EventLog::read::<LogEntry>(&dir, &id.to_string());
        read.map(|events| events.entries.into_iter().map(|entry| entry.event).collect()).unwrap_or_default()
    }

    fn has_come(&self, ask: &Ask, stage: MigrationPhase) -> bool {
        let Some(id) = ask.id else { return false };
        let host = if matches!(stage, MigrationPhase::Target(_)) { &ask.to } else { &ask.from };
        self.log(host, id).contains(&LogEntry::Handover { event: MigrationEvent::Phase { stage } })
    }

    fn is_over(&self, ask: &Ask) -> bool {
        let over = |event: &LogEntry| matches!(event, LogEntry::Handover { event: MigrationEvent::Over { .. } });
        ask.id.is_some_and(|id| self.log(&ask.from, id).iter().any(over))
    }

    // ---- what came of it ----

    /// Returns where each guest runs, if all agents agree and QEMU says the same. A guest that is off runs nowhere.
    fn places(&self) -> Result<BTreeMap<String, Option<String>>, String> {
        let mut running: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let hosts = self.cluster.hosts();
        for host in &hosts {
            let vms = match self.cluster.client(host).call(&Request::VmList, SOON) {
                Ok(Reply::Vms { vms }) => vms,
                other => return Err(format!("{host}: {other:?}")),
            };
            for vm in vms {
                match (vm.state, vm.migration) {
                    (VmState::Running, None) => running.entry(vm.name).or_default().push(host.clone()),
                    (VmState::Stopped, None) => {}
                    (state, migration) => return Err(format!("{host}: {} is {state:?} in {migration:?}", vm.name)),
                }
            }
        }
        let mut places = BTreeMap::new();
        for Guest { name, .. } in &self.guests {
            let by_agents = running.remove(name).unwrap_or_default();
            let by_qemu = self.cluster.where_runs(name);
            if by_agents != by_qemu || by_agents.len() > 1 {
                return Err(format!("{name}: the agents have it run on {by_agents:?}, QEMU on {by_qemu:?}"));
            }
            places.insert(name.clone(), by_agents.into_iter().next());
        }
        // This check costs more, so it comes last.
        for host in &hosts {
            let migrations = match self.cluster.client(host).call(&Request::MigrationList, SOON) {
                Ok(Reply::Migrations { migrations }) => migrations,
                other => return Err(format!("{host}: {other:?}")),
            };
            if let Some(one) = migrations.iter().find(|one| one.outcome.is_none() || one.in_doubt) {
                return Err(format!("{host}: {} is {:?}, in doubt {}", one.id, one.stage, one.in_doubt));
            }
        }
        Ok(places)
    }

    fn wait_clean(&self, since: Instant) -> Result<Duration, Failure> {
        use MigrationStatus::{Active, Cancelling, Device, PreSwitchover, Setup, WaitUnplug};
        let mut left = Vec::new();
        let is_clean = || {
            left = self.cluster.leftovers();
            for Guest { name, .. } in &self.guests {
                for (qemu, status) in self.cluster.witness().migrations(name) {
                    match status {
                        Err(error) => left.push(format!("{qemu} is deaf: {error}")),
                        Ok(status @ (Active | Cancelling | Device | PreSwitchover | Setup | WaitUnplug)) => {
                            left.push(format!("{qemu} migrates: {status:?}"));
                        }
                        Ok(_) => {}
                    }
                }
            }
            left.is_empty()
        };
        match until(CLEAN, is_clean) {
            true => Ok(since.elapsed()),
            false => Err(format!("left over: {left:#?}").into()),
        }
    }

    /// Judges the outcome of each migration: both ends have to report the same, and the guest has to be where they say.
    fn judge(
        &mut self,
        asks: &[Ask],
        places: &BTreeMap<String, Option<String>>,
        result: &mut Done,
    ) -> Result<(), Failure> {
        let mut found: BTreeMap<MigrationId, Vec<(String, Migration)>> = BTreeMap::new();
        for host in self.cluster.hosts() {
            for one in self.cluster.migrations(&host).into_iter().filter(|one| !self.known.contains(&one.id)) {
                let whole = self.cluster.migration(&host, one.id);
                found.entry(one.id).or_default().push((host.clone(), whole));
            }
        }
        self.known.extend(found.keys());
        for ask in asks {
            let of_vm = found.iter().find(|(_, ends)| ends.iter().any(|(_, end)| end.vm == ask.vm));
            let Some((id, ends)) = of_vm else {
                result.outcomes.push(None);
                continue;
            };
            let of = |host: &String| ends.iter().find(|(at, _)| at == host).and_then(|(_, end)| end.outcome);
            let (source, target) = (of(&ask.from), of(&ask.to));
            if let (Some(source), Some(target)) = (source, target)
                && (source == Outcome::Moved) != (target == Outcome::Moved)
            {
                return Err(format!("{id}: the source says {source:?}, the target {target:?}").into());
            }
            let expected = match source {
                Some(Outcome::Moved) => Some(&ask.to),
                Some(Outcome::CalledOff) => Some(&ask.from),
                _ => None,
            };
            if let Some(place) = &places[&ask.vm]
                && expected != Some(place)
            {
                return Err(format!("{id}: the source says {source:?}, and it runs on {place}").into());
            }
            result.outcomes.push(source);
            let doubtful = |(_, end): &&(String, Migration)| {
                end.events
                    .iter()
                    .any(|logged| matches!(logged.event, LogEntry::Handover { event: MigrationEvent::InDoubt }))
            };
            result.doubts.extend(ends.iter().find(doubtful).map(|_| source));
        }
        Ok(())
    }

    /// Checks that a guest is whole where it runs. A guest that ended with its QEMU is started again.
    fn look_after(
        &mut self,
        at: usize,
        places: &BTreeMap<String, Option<String>>,
        began: Duration,
        result: &mut Done,
    ) -> Result<(), Failure> {
        let name = self.guests[at].name.clone();
        let runs = self.cluster.witness().runs(&name);
        let Some(place) = &places[&name] else {
            let last = runs.last().ok_or_else(|| format!("{name} never ran"))?;
            if !self.killed.contains(&last.pid) {
                let why =
                    format!("LOST: {name} runs nowhere, and QEMU {} that had it was not killed: {runs:?}", last.pid);
                return Err(Failure { harm: Harm::Lost, why });
            }
            result.ended += 1;
            for host in self.cluster.hosts() {
                if self.cluster.vms(&host).iter().any(|vm| vm.name == name) {
                    self.cluster.asked(&host, &Request::VmForget { name: name.clone() });
                }
            }
            self.boot(at);
            return Ok(());
        };
        let gap = |pair: &[skein_lab_cluster::Run]| match pair[0].until {
            Some(until) if until > began => pair[1].from.saturating_sub(until),
            _ => Duration::ZERO,
        };
        let longest = runs.windows(2).map(gap).max().unwrap_or_default();
        result.stopped = result.stopped.max(longest);
        self.guests[at].at = place.clone();
        let guest = &self.guests[at];
        if guest.working {
            if !self.cluster.beats_on(&name, place, GUEST_TIME) {
                let why = format!("{name} has no heartbeat on {place}");
                return Err(Failure { harm: Harm::Lost, why });
            }
            let verdict = self.cluster.talk(&name, |agent| agent.verify(GUEST_TIME));
            if !verdict.is_good() {
                return Err(Failure { harm: Harm::Corrupted, why: format!("CORRUPTED: {name}: {verdict:?}") });
            }
        }
        Ok(())
    }

    /// Returns everything that is known, to find out the cause, and where the files stay.
    pub fn keep(&mut self) -> (String, PathBuf) {
        let mut text = self.cluster.report();
        for Guest { name, .. } in &self.guests {
            for (qemu, status) in self.cluster.witness().migrations(name) {
                text += &format!("---- {name}: {qemu}: {status:?}\n");
            }
            text += &format!("---- {name} ran: {:#?}\n", self.cluster.witness().runs(name));
        }
        (text, self.cluster.keep_files())
    }
}

/// Writes a guest's serial output to a file until its QEMU ends.
fn listen(socket: &Path, file: &Path) {
    let (Ok(mut from), Ok(mut to)) = (UnixStream::connect(socket), File::create(file)) else { return };
    thread::spawn(move || io::copy(&mut from, &mut to));
}

/// Asks for a migration. Warnings on the way are ignored.
fn begin(client: &Client, request: &Request) -> Result<MigrationId, String> {
    let mut conversation = client.ask(request).map_err(|error| error.to_string())?;
    loop {
        match conversation.next(PATIENCE) {
            Ok(Some(Reply::Progress(_))) => {}
            Ok(Some(Reply::Check(check))) if !check.blocks() => {}
            Ok(Some(Reply::Migration(migration))) => return Ok(migration.id),
            Ok(other) => return Err(format!("{other:?}")),
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn send(pid: u32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid as i32), signal).is_ok()
}
