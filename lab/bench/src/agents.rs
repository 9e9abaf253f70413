//! The guests of a stage that agents own: `skein agent` on both hosts, guests that it started from definitions, and
//! their moves by the requests that `skein migrate` makes.
//!
//! They stay for the stage. The bench watches each guest through a QMP socket of its own in each QEMU.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use skein_api::{
    LogEntry, MigrateOptions, Migration, MigrationEvent as Handover, MigrationPhase, Outcome, Reply, Request, Severity,
    Transport, VmOrigin,
};
use skein_client::{CallError, Client};
use skein_hypervisor::{Events, MigrationInfo, MigrationStatus, Monitor, MonitorEvent, Process as QemuProcess};
use skein_lab_cluster::{Seen, Witness, arguments, console, workload_sockets};
use skein_lab_guest::{Error, Gaps, Spec};
use tempfile::TempDir;

use crate::{
    boot::{ANSWER_DEADLINE, Boot, boot_deadline, slowly},
    busy::{Busy, Members},
    carry::{CarryError, Kit},
    error::BenchError,
    migration::{
        ASK_EVERY, CANCEL_DEADLINE, Clock, MigrationError, Moved, RESUME_DEADLINE, ReachedState, SETTLE, note,
    },
    mover::{AgentData, MULTIFD_CHANNELS},
    process::Process,
    results::{GuestCheck, Phases, Step},
    rewriting::Count,
    site::{HOSTS, Site},
    usage,
    watch::Arriving,
};

/// The port of the agents. It is not the port of the agents of tunnels, which may run beside them.
const PORT: u16 = 7071;

/// How much RAM agents may keep of guests that left, if they do: all of it.
const KEPT_RAM: &str = "64 GiB";

/// The time for an agent to be ready: it asks its QEMU what that can do.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// The longest silence of an agent. One that works reports every few seconds at least. One that does not in this time
/// has failed.
pub(crate) const AGENT_SILENCE_MAX: Duration = Duration::from_secs(60);

/// The time between two checks of something that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How many events of a QEMU may wait to be read.
const EVENTS: usize = 256;

/// The time in which a QEMU that has completed reports how, or is killed because the guest runs elsewhere.
const KILLED_DEADLINE: Duration = Duration::from_secs(10);

/// The agents of both hosts, and their guests. Dropping this ends them all.
pub struct Agents {
    processes: Vec<Process>,
    /// What their data goes over.
    data: AgentData,
    /// The control group of the agents and the guests that they start, if they have one.
    group: Option<Members>,
    /// The witness, which sees where the guests run.
    pub(crate) witness: Witness,
    /// The guests.
    pub guests: Vec<Owned>,
    directory: TempDir,
}

/// A guest, and where it is.
pub struct Owned {
    /// The specification of the guest.
    pub spec: Spec,
    /// The number of the guest's host.
    pub host: usize,
    /// The guest's QEMU now.
    pub seen: Arc<Seen>,
}

/// How a guest is to be moved.
#[derive(Clone, Copy)]
pub struct AgentCommand<'a> {
    /// The transport that the agents are to use; see [`crate::mover::Carrier::Agents`].
    pub transport: Transport,
    /// QEMU's `downtime-limit`.
    pub downtime_limit_ms: u64,
    /// See [`crate::case::Scene::allow_throttle`].
    pub allow_throttle: Option<u8>,
    /// See [`crate::case::Scene::delta_memory`].
    pub delta_memory: Option<f64>,
    /// The moment that times count from.
    pub start: Instant,
    /// The time after which the migration is called off.
    pub deadline: Duration,
    /// A flag that ends the migration early when it is set.
    pub interrupt: &'a AtomicBool,
}

impl Agents {
    /// Starts the agents, and a guest for each spec on the host of that number. Waits until the guests have filled
    /// their memory.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if an agent or a guest does not start.
    pub fn boot(boot: Boot<'_>, specs: Vec<(Spec, usize)>) -> Result<Self, BenchError> {
        let Boot { stage, site, kit, busy, interrupt, .. } = boot;
        // The path is short, as a unix socket's path has 107 bytes at most.
        let directory = tempfile::Builder::new().prefix("skb").tempdir().map_err(BenchError::Directory)?;
        let mut list = if stage.keep_ram { format!("keep_ram = '{KEPT_RAM}'\n") } else { String::new() };
        for host in HOSTS {
            let address = |link| Ok(format!("'{}:{PORT}'", site.ip(host, link)?));
            let addresses = (0..site.links()).map(address).collect::<Result<Vec<_>, BenchError>>()?;
            list += &format!("[[host]]\nname = '{host}'\naddress = [{}]\n", addresses.join(", "));
        }
        fs::write(directory.path().join("hosts.toml"), list).map_err(BenchError::Directory)?;
        fs::create_dir(directory.path().join("s")).map_err(BenchError::Directory)?;
        let namespaces = HOSTS.into_iter().map(|host| Ok((site.netns(host)?, host.to_owned())));
        let namespaces = namespaces.collect::<Result<Vec<_>, BenchError>>()?;
        let witness = Witness::new(namespaces);
        let group = busy.map(Busy::host);
        let mut agents =
            Self { processes: Vec::new(), data: AgentData::Tls, group, witness, guests: Vec::new(), directory };
        for host in HOSTS {
            let process = agents.start(site, kit, host)?;
            agents.processes.push(process);
        }
        for (spec, host) in &specs {
            agents.start_guest(spec, *host)?;
        }
        for (spec, host) in specs {
            let seen = agents.wait_ready(&spec, interrupt)?;
            agents.guests.push(Owned { spec, host, seen });
        }
        Ok(agents)
    }

    fn start(&self, site: &Site, kit: &Kit, host: &str) -> Result<Process, BenchError> {
        let own = self.directory.path().join(host);
        fs::create_dir_all(&own).map_err(BenchError::Directory)?;
        let mut command = site.command(host, kit.skein())?;
        command.arg("agent").arg("--identity").arg(kit.identity(host));
        command.arg("--listen").arg(format!("[::]:{PORT}"));
        command.arg("--state").arg(own.join("state")).arg("--run").arg(own.join("run"));
        command.arg("--hosts").arg(self.directory.path().join("hosts.toml"));
        // As many migrations at once as a stage may have guests.
        command.args(["--incoming", "16", "--outgoing", "16"]);
        command.args(self.data.arguments());
        let mut process = Process::start(command, &own.join("agent.log")).map_err(CarryError::from)?;
        self.group.as_ref().map_or(Ok(()), |group| group.add(process.pid()))?;
        process.wait_ready(READY_DEADLINE).map_err(CarryError::from)?;
        Ok(process)
    }

    fn start_guest(&self, spec: &Spec, host: usize) -> Result<(), BenchError> {
        let sockets = self.sockets();
        self.witness.watch(&sockets, &spec.name);
        let ports = workload_sockets(&sockets, &spec.name);
        let text = spec.definition(
            ports.each_ref().map(PathBuf::as_path),
            &console(&sockets, &spec.name),
            &arguments(&sockets, &spec.name),
        );
        let from = VmOrigin::Definition { file: format!("{}.toml", spec.name), text };
        self.client(host)
            .call(&Request::VmStart { from, options: Default::default() }, AGENT_SILENCE_MAX)
            .map(drop)
            .map_err(BenchError::Agent)
    }

    fn wait_ready(&self, spec: &Spec, interrupt: &AtomicBool) -> Result<Arc<Seen>, BenchError> {
        let deadline = boot_deadline(spec);
        let end = Instant::now() + deadline;
        while Instant::now() < end {
            if interrupt.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            if let Some(seen) = self.witness.seen(&spec.name).into_iter().find(|seen| seen.runs()) {
                let status = seen.workload().lock().as_mut().map(|agent| agent.status());
                if status.is_some_and(|status| status.is_ok_and(|status| status.ready)) {
                    return Ok(seen);
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(Error::NotReady { after: deadline, console: "an agent has it".into() }.into())
    }

    fn sockets(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    pub(crate) fn client(&self, host: usize) -> Client {
        Client::new(&self.directory.path().join(HOSTS[host]).join("run/agent.sock"))
    }

    /// Returns the agent of a host.
    pub fn process(&self, host: usize) -> &Process {
        &self.processes[host]
    }

    /// Kills the agent of a host (SIGKILL). Returns its process id.
    pub(crate) fn kill(&mut self, host: usize) -> Result<u32, BenchError> {
        let pid = self.processes[host].pid();
        self.processes[host].kill().map_err(CarryError::from)?;
        Ok(pid)
    }

    /// Starts the agent of a host again, after it has ended.
    pub(crate) fn restart(&mut self, site: &Site, kit: &Kit, host: usize) -> Result<(), BenchError> {
        self.processes[host] = self.start(site, kit, HOSTS[host])?;
        Ok(())
    }

    /// Sets what data goes over. That is an agent's setting from its start on, so both agents are started again
    /// if it changes. Guests go on meanwhile.
    pub(crate) fn set_data(&mut self, data: AgentData, site: &Site, kit: &Kit) -> Result<(), BenchError> {
        if data == self.data {
            return Ok(());
        }
        self.data = data;
        for process in &mut self.processes {
            process.end().map_err(CarryError::from)?;
        }
        (0..HOSTS.len()).try_for_each(|host| self.restart(site, kit, host))
    }

    /// Stops all guests.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if a QEMU does not obey.
    pub fn stop(&self) -> Result<(), BenchError> {
        self.guests.iter().try_for_each(|guest| Ok(guest.seen.monitor().stop().map_err(Error::from)?))
    }

    /// Lets all guests run again.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if a QEMU does not obey.
    pub fn resume(&self) -> Result<(), BenchError> {
        self.guests.iter().try_for_each(|guest| Ok(guest.seen.monitor().cont().map_err(Error::from)?))
    }

    /// Returns the QEMU of guest `n` on a host that it has not left yet or has come to. If there are several, it is the
    /// last.
    pub fn seen_on(&self, n: usize, host: usize) -> Option<Arc<Seen>> {
        let all = self.witness.seen(&self.guests[n].spec.name);
        all.into_iter().rev().find(|seen| seen.host() == HOSTS[host] && !seen.is_over())
    }

    /// Records where a guest is after its move. Returns `false` if it runs on neither host.
    pub fn settle(&mut self, n: usize) -> bool {
        let found = (0..HOSTS.len()).find_map(|host| Some((host, self.seen_on(n, host).filter(|seen| seen.runs())?)));
        let Some((host, seen)) = found else { return false };
        let guest = &mut self.guests[n];
        (guest.host, guest.seen) = (host, seen);
        true
    }

    /// Moves guest `n` to the other host. Begins with the order, and ends when it is known how the move ended. The
    /// guest's new QEMU is added to those that arrive.
    ///
    /// # Errors
    ///
    /// [`MigrationError`] if the guest was not moved.
    pub fn migrate(
        &self,
        n: usize,
        order: AgentCommand<'_>,
        standing: &ReachedState,
        arriving: &Arriving,
    ) -> Result<Moved, MigrationError> {
        let AgentCommand { start, .. } = order;
        let Owned { spec, host, seen } = &self.guests[n];
        let clock = Clock::now(start);
        let events = seen.monitor().subscribe(EVENTS);
        let since = Instant::now().checked_sub(SETTLE).unwrap_or(start);
        let over = AtomicBool::new(false);
        let (migration, heard) = std::thread::scope(|scope| {
            let heard = scope.spawn(|| listen(seen.monitor(), *host, &events, &clock, &over, standing));
            scope.spawn(|| self.look_out(n, 1 - host, &over, arriving));
            let migration = self.order(&spec.name, *host, order);
            over.store(true, Ordering::Relaxed);
            (migration, heard.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let migration = migration?;
        if migration.outcome != Some(Outcome::Moved) {
            let why = migration.why.map_or_else(|| "no reason given".into(), |why| format!("{why:?}"));
            let reason = format!("{why} {}", migration.detail);
            return Err(MigrationError::Failed { status: "was called off".into(), reason });
        }
        let QemuReport { mut phases, migrate_s, info, mut steps } = heard;
        phases.order_s = Some(0.0);
        let arrived = self.arrived(n, 1 - host).ok_or(MigrationError::NotResumed)?;
        let rewritten = arrived.workload().lock().as_mut().and_then(Count::ask);
        phases.resume_s = arrived.first_ran().map(|at| clock.seconds(at));
        steps.extend(phases.resume_s.map(|at_s| step(at_s, 1 - host, "QEMU: RESUME")));
        steps.extend(self.logged(*host, &migration, &clock));
        steps.extend(self.logged(1 - host, &migration, &clock));
        steps.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        phases.completed_s.get_or_insert_with(|| start.elapsed().as_secs_f64());
        std::thread::sleep(SETTLE);
        let beats = |seen: &Seen| seen.beats().map(|beats| beats.since(since)).unwrap_or_default();
        let gaps = Gaps::between(&beats(seen), &beats(&arrived));
        let pages = migration.copy.and_then(|copy| copy.pages);
        Ok(Moved { info, phases, gaps, migrate_s: migrate_s.unwrap_or(0.0), steps, pages, rewritten })
    }

    /// Does what `skein migrate` does.
    pub(crate) fn order(&self, vm: &str, host: usize, order: AgentCommand<'_>) -> Result<Migration, MigrationError> {
        let AgentCommand { transport, downtime_limit_ms, allow_throttle, delta_memory, start, deadline, interrupt } =
            order;
        let options = MigrateOptions {
            channels: Some(MULTIFD_CHANNELS),
            downtime_limit_ms: Some(downtime_limit_ms),
            transport: Some(transport),
            allow_throttle,
            delta_memory,
            ..MigrateOptions::default()
        };
        let request = Request::Migrate { vm: vm.into(), to: HOSTS[1 - host].into(), options, detach: false };
        let mut conversation = self.client(host).ask(&request)?;
        let mut cancelled: Option<Instant> = None;
        let mut lacks_rdma = self.data.is_rdma();
        loop {
            let reply = conversation.next(Duration::from_millis(100))?;
            if let Some(Reply::Progress(progress)) = &reply {
                lacks_rdma &= progress.paths.iter().all(|path| path.rdma_connections == 0);
            }
            match reply {
                Some(Reply::Check(check)) if check.blocks() => {
                    let blocking = check.problems.iter().filter(|problem| problem.severity == Severity::Blocks);
                    let words: Vec<String> = blocking.map(ToString::to_string).collect();
                    return Err(MigrationError::Failed { status: "was refused".into(), reason: words.join("; ") });
                }
                Some(Reply::Migration(migration)) if lacks_rdma && migration.outcome == Some(Outcome::Moved) => {
                    return Err(MigrationError::WithoutRdma);
                }
                Some(Reply::Migration(migration)) if cancelled.is_none() => return Ok(*migration),
                Some(Reply::Migration(migration)) if migration.outcome == Some(Outcome::Moved) => {
                    return Ok(*migration);
                }
                Some(Reply::Migration(_)) if interrupt.load(Ordering::Relaxed) => {
                    return Err(MigrationError::Interrupted);
                }
                Some(Reply::Migration(_)) => return Err(MigrationError::Late(deadline)),
                Some(_) | None => {}
            }
            match cancelled {
                Some(at) if at.elapsed() > CANCEL_DEADLINE => return Err(MigrationError::Late(deadline)),
                None if interrupt.load(Ordering::Relaxed) || start.elapsed() > deadline => {
                    cancelled = Some(Instant::now());
                    // A migration that is just over cannot be called off; how it ended is reported all the same.
                    let _ = self.client(host).call(&Request::MigrationCancel { id: vm.into() }, AGENT_SILENCE_MAX);
                }
                _ => {}
            }
        }
    }

    /// Waits for the QEMU that is started for guest `n` on `host`.
    fn look_out(&self, n: usize, host: usize, over: &AtomicBool, arriving: &Arriving) {
        while !over.load(Ordering::Relaxed) {
            if let Some(seen) = self.seen_on(n, host) {
                let cpus = seen.monitor().query("query-cpus-fast").unwrap_or_default();
                let found = (seen.process().pid, usage::vcpu_threads(&cpus));
                return arriving.lock().unwrap_or_else(PoisonError::into_inner).push(found);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Returns the guest's QEMU on `host`, once the guest runs there.
    pub(crate) fn arrived(&self, n: usize, host: usize) -> Option<Arc<Seen>> {
        let end = Instant::now() + RESUME_DEADLINE;
        loop {
            let found = self.seen_on(n, host).filter(|seen| seen.runs());
            if found.is_some() || Instant::now() > end {
                return found;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Returns what an agent logged of a migration.
    fn logged(&self, host: usize, migration: &Migration, clock: &Clock) -> Vec<Step> {
        let request = Request::MigrationShow { id: migration.id.to_string() };
        let Ok(Reply::Migration(shown)) = self.client(host).call(&request, AGENT_SILENCE_MAX) else {
            return Vec::new();
        };
        let logged = shown.events.iter().filter_map(|logged| {
            let what = match &logged.event {
                LogEntry::Handover { event: Handover::Phase { stage: MigrationPhase::Source(phase) } } => {
                    format!("{phase:?}")
                }
                LogEntry::Handover { event: Handover::Phase { stage: MigrationPhase::Target(phase) } } => {
                    format!("{phase:?}")
                }
                LogEntry::Handover { event: Handover::Reported { report, .. } } => format!("heard: {report:?}"),
                LogEntry::Handover { event } => format!("{event:?}"),
                LogEntry::Begun { .. } => "begun".into(),
                LogEntry::Note { text } => text.clone(),
                LogEntry::Copied { .. } | LogEntry::Downtime { .. } => return None,
            };
            Some(step(clock.seconds_of(&logged.time)?, host, &what))
        });
        logged.collect()
    }

    /// Lets the guest check all its memory.
    ///
    /// # Errors
    ///
    /// The error of the workload's channel, or of the check.
    pub fn verify(&self, n: usize) -> Result<GuestCheck, Error> {
        let Owned { spec, seen, .. } = &self.guests[n];
        let deadline = ANSWER_DEADLINE + slowly(spec.params.fill_mb);
        let mut control = seen.workload().lock();
        let agent = control.as_mut().ok_or_else(|| Error::Agent("the guest's channel cannot be had".into()))?;
        agent.verify(deadline).map(GuestCheck::from)
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.processes.clear();
        // The guests' QEMUs outlive their agents.
        for seen in self.guests.iter().flat_map(|guest| self.witness.seen(&guest.spec.name)) {
            if let Ok(Some(process)) = QemuProcess::attach(seen.process()) {
                let _ = process.kill(KILLED_DEADLINE);
            }
        }
    }
}

/// A call to an agent that failed.
impl From<CallError> for MigrationError {
    fn from(source: CallError) -> Self {
        MigrationError::Agent(source)
    }
}

/// What a source's QEMU reports while it is migrated.
#[derive(Default)]
struct QemuReport {
    phases: Phases,
    migrate_s: Option<f64>,
    info: MigrationInfo,
    steps: Vec<Step>,
}

/// Listens to a source's QEMU until its migration is over, or `over` is set.
fn listen(
    monitor: &Monitor,
    host: usize,
    events: &Events,
    clock: &Clock,
    over: &AtomicBool,
    standing: &ReachedState,
) -> QemuReport {
    let mut heard = QemuReport::default();
    let mut asked = Instant::now();
    loop {
        match events.next(Duration::from_millis(20)) {
            Some(MonitorEvent::Event(event)) => {
                note(&mut heard.phases, &event, clock);
                let status = MigrationStatus::of_event(&event);
                let at_s = clock.seconds(event.time);
                if status == Some(MigrationStatus::Setup) {
                    heard.migrate_s.get_or_insert(at_s);
                }
                // This is done at once: the QEMU is killed as soon as the guest runs elsewhere.
                if status == Some(MigrationStatus::Completed)
                    && let Ok(info) = monitor.migration()
                {
                    heard.info = info;
                }
                let word = event.data["status"].as_str().unwrap_or_default();
                heard.steps.push(step(at_s, host, format!("QEMU: {} {word}", event.name).trim_end()));
            }
            Some(MonitorEvent::Closed) => return heard,
            None if over.load(Ordering::Relaxed) => return heard,
            None => {}
        }
        // As often as the QEMUs of other movers are asked.
        if asked.elapsed() >= ASK_EVERY && heard.phases.completed_s.is_none() {
            asked = Instant::now();
            if let Ok(info) = monitor.migration() {
                if let Some(ram) = info.ram {
                    standing.sent_bytes.store(ram.transferred, Ordering::Relaxed);
                    standing.left_bytes.store(ram.remaining, Ordering::Relaxed);
                }
                heard.info = info;
            }
        }
    }
}

fn step(at_s: f64, host: usize, what: &str) -> Step {
    Step { at_s, host: HOSTS[host].into(), what: what.into() }
}
