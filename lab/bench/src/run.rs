//! One run: all guests of a stage move once, by one mover, while everything is watched.

use std::{
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use skein_lab_guest::{Guest, Rewrite, Spec};

use crate::{
    agents::{AgentCommand, Agents},
    busy::{self, Busy},
    carry::{self, Carried, CarryError, CarryRoute, Kit},
    case::Scene,
    chain,
    control_latency::{Asker, Echo},
    error::BenchError,
    goodput,
    inflicted_fault::{self, Inflicted},
    machine,
    migration::{self, MigrationError, Moved, ReachedState},
    mover::{Carrier, Mover},
    ping::{self, Pinger},
    residents::{Household, Resident},
    results::{ControlLatency, CpuSeconds, GuestsWork, MoverMemory, MoverPrivateMemory, Phases, Run, Yardstick},
    rewriting::{Count, Usual},
    site::{HOSTS, Site},
    tick::Tick,
    usage::{self, End, cpu_between, threads},
    watch::{Arriving, Party, RunWatch, Watched, WatchedHost, Work},
};

/// The page size of x86, and of QEMU's `duplicate`.
const PAGE_BYTES: u64 = 4096;

/// The pause before a migration, so that counters and heartbeat have values before it.
const SETTLE: Duration = Duration::from_millis(600);

/// How long guests at work are watched before a migration, for what they get then.
const WORK_ALONE: Duration = Duration::from_secs(4);

/// How long the control stream's idle round trip is measured.
const IDLE: Duration = Duration::from_secs(3);

/// How often the caller is told of the progress.
const TICK: Duration = Duration::from_millis(200);

/// How much longer a move by agents may take: they check, and start the target's QEMU.
const AGENTS_MORE: Duration = Duration::from_secs(60);

/// What the runs of a stage have in common.
pub struct Setting<'a> {
    /// The name of the case.
    pub case: &'a str,
    /// The stage.
    pub stage: &'a Scene,
    /// The hosts of the stage.
    pub site: &'a Site,
    /// The groups of guests at work and of the host's programs, if there are any.
    pub busy: Option<&'a Busy>,
    /// What the links carry, if that was measured.
    pub yardstick: Option<&'a Yardstick>,
    /// Keys and programs.
    pub kit: &'a Kit,
    /// The `downtime-limit` of all movers.
    pub downtime_limit_ms: u64,
    /// The commit that is recorded.
    pub commit: &'a str,
    /// A flag that ends the run early when it is set.
    pub interrupt: &'a AtomicBool,
}

/// The outcome of a run.
pub struct Outcome {
    /// The results of each guest, without its check.
    pub runs: Vec<Run>,
    /// Whether guests were lost, or are not together any more.
    pub lost: bool,
}

/// The guests that move in one direction, and what carries them.
struct Way {
    source: usize,
    guests: Vec<usize>,
    carried: Carried,
}

/// What was seen in a run.
struct Seen {
    /// The moment that times count from.
    start: Instant,
    results: Vec<Result<Moved, MigrationError>>,
    watched: Watched,
    ended_s: f64,
    faults: Vec<Inflicted>,
    control: Option<ControlLatency>,
    ping_gaps_ms: Vec<Option<f64>>,
}

/// Moves one guest, and returns how that ended. Times count from the moment given.
type Journey<'a> = Box<dyn FnOnce(Instant, &ReachedState) -> Result<Moved, MigrationError> + Send + 'a>;

impl Setting<'_> {
    /// Moves all guests of `mover` once. What goes wrong with the mover is in the results. `directory` is for the
    /// sockets and logs of this run.
    ///
    /// # Errors
    ///
    /// [`BenchError`] for what goes wrong with the bench itself.
    pub fn run(
        &self,
        household: &mut Household,
        mover: Mover,
        round: u32,
        directory: &Path,
        tick: &mut dyn FnMut(Tick<'_>),
    ) -> Result<Outcome, BenchError> {
        match &mut household.agents {
            Some(agents) if mover.is_of_agents() => self.run_by_agents(agents, mover, round, tick),
            _ => self.run_by_bench(household.residents(mover), mover, round, directory, tick),
        }
    }

    /// Runs a mover for which the bench starts the targets and tells the QEMUs what to do.
    fn run_by_bench(
        &self,
        residents: &mut [Resident],
        mover: Mover,
        round: u32,
        directory: &Path,
        tick: &mut dyn FnMut(Tick<'_>),
    ) -> Result<Outcome, BenchError> {
        let blank = |(n, r): (usize, &Resident)| self.blank(mover, round, n, r.host, command_line(&r.guest));
        let mut runs: Vec<Run> = residents.iter().enumerate().map(blank).collect();
        let ways = match self.set_up(residents, mover, directory)? {
            Ok(ways) => ways,
            Err(error) => {
                runs.iter_mut().for_each(|run| run.error = Some(chain(&error)));
                return Ok(Outcome { runs, lost: false });
            }
        };
        let mut targets = residents.iter().map(|r| r.start_incoming(self.site)).collect::<Result<Vec<_>, _>>()?;
        for (run, target) in runs.iter_mut().zip(&targets) {
            run.qemu_target_cmdline = command_line(target);
            run.memory_backend_target = memory_backend(&run.qemu_target_cmdline);
        }
        let mut prepared = Vec::new();
        for n in 0..residents.len() {
            let (way, slot) = way_of(&ways, n);
            let tls = way.carried.tls.as_deref();
            let (listen, connect) = &way.carried.uris[slot];
            let tuning = mover.tuning(self.downtime_limit_ms, self.stage.allow_throttle);
            let done = migration::prepare(&mut residents[n].guest, &mut targets[n], &tuning, tls, listen);
            prepared.push(done.map(|tuning| {
                runs[n].parameters.insert("capabilities".into(), names_of_those_on(&tuning.capabilities()));
                runs[n].parameters.insert("parameters".into(), tuning.parameters());
                runs[n].parameters.insert("target listens on".into(), json!(listen));
                runs[n].parameters.insert("source connects to".into(), json!(connect));
                connect
            }));
        }
        let control = self.ask_all_the_time(&ways)?;
        let parties = self.parties(&ways, residents, &mut targets)?;
        let specs: Vec<Spec> = residents.iter().map(|resident| resident.spec.clone()).collect();
        let usual = self.usual(residents.len(), |n| Count::ask(residents[n].guest.agent()));
        let deadline = deadline(self.stage);
        let journeys =
            residents.iter_mut().zip(targets.iter_mut()).zip(prepared).map(|((resident, target), connect)| {
                let source = &mut resident.guest;
                let interrupt = self.interrupt;
                let journey = move |start, standing: &ReachedState| {
                    migration::migrate(source, target, connect?, start, deadline, standing, interrupt)
                };
                Box::new(journey) as Journey<'_>
            });
        let seen = self.watch(&ways, parties, journeys.collect(), control, &specs, tick)?;
        self.fill_in_all(&mut runs, &ways, &usual, &seen);
        // What carried ends before the guests are looked at again, so that nothing of a run affects the next.
        drop(ways);
        self.heal()?;
        let mut lost = false;
        for ((resident, target), result) in residents.iter_mut().zip(targets).zip(&seen.results) {
            if result.is_ok() {
                resident.guest = target;
                resident.host = 1 - resident.host;
            } else {
                lost |= !migration::back_at_source(&mut resident.guest, target);
            }
        }
        // Guests that are to move together have to start together.
        lost |= runs.len() > 1 && seen.results.iter().any(Result::is_err);
        Ok(Outcome { runs, lost })
    }

    /// Runs a mover whose agents do everything.
    fn run_by_agents(
        &self,
        agents: &mut Agents,
        mover: Mover,
        round: u32,
        tick: &mut dyn FnMut(Tick<'_>),
    ) -> Result<Outcome, BenchError> {
        let count = agents.guests.len();
        let Carrier::Agents { transport, .. } = mover.carrier() else {
            unreachable!("only movers of agents come here");
        };
        let mut runs = Vec::new();
        for (n, guest) in agents.guests.iter().enumerate() {
            runs.push(self.blank(mover, round, n, guest.host, usage::words(guest.seen.process().pid)));
        }
        let mut ways = Vec::new();
        let mut parties = Vec::new();
        // The QEMUs that arrive, by the host that they come to.
        let arriving: [Arriving; 2] = Default::default();
        for source in 0..HOSTS.len() {
            let guests: Vec<usize> = (0..count).filter(|&n| agents.guests[n].host == source).collect();
            if guests.is_empty() {
                continue;
            }
            let mut carried = Carried::default();
            carried.parameters.insert("transport".into(), json!(transport));
            carried.parameters.insert("allow_throttle".into(), json!(self.stage.allow_throttle));
            carried.parameters.insert("delta_memory".into(), json!(self.stage.delta_memory));
            for (name, host) in [("agent on the source", source), ("agent on the target", 1 - source)] {
                carried.parameters.insert(name.into(), carry::command_lines([agents.process(host)]));
            }
            for host in [source, 1 - source] {
                let qemu = |n: &usize| {
                    let pid = agents.guests[*n].seen.process().pid;
                    (pid, threads(pid))
                };
                // Those at the target do not exist yet.
                let qemus = if host == source { guests.iter().map(qemu).collect() } else { Vec::new() };
                let end = End { qemus, agents: vec![agents.process(host).pid()], ..End::default() };
                let arriving = if host == source { Arriving::default() } else { arriving[host].clone() };
                parties.push(Party { way: ways.len(), watched_host: self.watched_host(host)?, end, arriving });
            }
            ways.push(Way { source, guests, carried });
        }
        let specs: Vec<Spec> = agents.guests.iter().map(|guest| guest.spec.clone()).collect();
        let usual = self.usual(count, |n| agents.guests[n].seen.workload().lock().as_mut().and_then(Count::ask));
        let deadline = deadline(self.stage) + AGENTS_MORE;
        let journeys = (0..count).map(|n| {
            let agents = &*agents;
            let arriving = arriving[1 - agents.guests[n].host].clone();
            let journey = move |start, standing: &ReachedState| {
                let Setting { downtime_limit_ms, interrupt, .. } = *self;
                let Scene { allow_throttle, delta_memory, .. } = *self.stage;
                let order = AgentCommand {
                    transport,
                    downtime_limit_ms,
                    allow_throttle,
                    delta_memory,
                    start,
                    deadline,
                    interrupt,
                };
                agents.migrate(n, order, standing, &arriving)
            };
            Box::new(journey) as Journey<'_>
        });
        let seen = self.watch(&ways, parties, journeys.collect(), None, &specs, tick)?;
        self.fill_in_all(&mut runs, &ways, &usual, &seen);
        self.heal()?;
        let mut lost = false;
        for (n, run) in runs.iter_mut().enumerate() {
            lost |= !agents.settle(n);
            if run.error.is_none() {
                let guest = &agents.guests[n];
                run.qemu_target_cmdline = usage::words(guest.seen.process().pid);
                run.memory_backend_target = memory_backend(&run.qemu_target_cmdline);
                // These are a migration's until the next begins.
                for (name, command) in
                    [("capabilities", "query-migrate-capabilities"), ("parameters", "query-migrate-parameters")]
                {
                    let set = guest.seen.monitor().query(command).unwrap_or_default();
                    let set =
                        if name == "capabilities" { names_of_those_on(&json!({ "capabilities": set })) } else { set };
                    run.parameters.insert(name.into(), set);
                }
            }
        }
        lost |= runs.len() > 1 && seen.results.iter().any(Result::is_err);
        Ok(Outcome { runs, lost })
    }

    /// Returns how fast guests rewrite their memory, by number. `None` for those that do not.
    fn usual(&self, guests: usize, ask: impl FnMut(usize) -> Option<Count>) -> Vec<Option<Usual>> {
        let rewrites = self.stage.guest.rewrite_mb > 0 && self.stage.guest.rewrite_pages_per_s > 0;
        if rewrites { Usual::of(guests, ask) } else { vec![None; guests] }
    }

    fn fill_in_all(&self, runs: &mut [Run], ways: &[Way], usual: &[Option<Usual>], seen: &Seen) {
        for (number, way) in ways.iter().enumerate() {
            for &n in &way.guests {
                self.fill_in(&mut runs[n], n, (number, way), usual[n], seen);
            }
        }
        runs[0].samples = Some(seen.watched.samples());
    }

    fn heal(&self) -> Result<(), BenchError> {
        (0..self.site.links()).try_for_each(|link| Ok(self.site.heal(link)?))
    }

    fn watched_host(&self, host: usize) -> Result<WatchedHost, BenchError> {
        Ok(WatchedHost { host: HOSTS[host].into(), netns: self.site.netns(HOSTS[host])? })
    }

    /// Starts what carries, for each direction in which guests move.
    fn set_up(
        &self,
        residents: &[Resident],
        mover: Mover,
        directory: &Path,
    ) -> Result<Result<Vec<Way>, CarryError>, BenchError> {
        let mut ways: Vec<Way> = Vec::new();
        for source in 0..HOSTS.len() {
            let guests: Vec<usize> = (0..residents.len()).filter(|&n| residents[n].host == source).collect();
            if guests.is_empty() {
                continue;
            }
            let directory = directory.join(HOSTS[source]);
            std::fs::create_dir_all(&directory).map_err(BenchError::Directory)?;
            let route = CarryRoute {
                site: self.site,
                source: HOSTS[source],
                target: HOSTS[1 - source],
                guests: guests.len() as u32,
                control: self.stage.control_stream && ways.is_empty(),
                directory: &directory,
            };
            match carry::start(mover, &route, self.kit) {
                Ok(carried) => ways.push(Way { source, guests, carried }),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(ways))
    }

    /// Runs the migrations themselves, and everything that watches or disturbs them.
    fn watch(
        &self,
        ways: &[Way],
        parties: Vec<Party>,
        journeys: Vec<Journey<'_>>,
        control: Option<(Echo, Option<Asker>)>,
        specs: &[Spec],
        tick: &mut dyn FnMut(Tick<'_>),
    ) -> Result<Seen, BenchError> {
        let (stage, site) = (self.stage, self.site);
        let mut pingers = Vec::new();
        for spec in specs {
            let pinger = match spec.params.ip {
                None => None,
                Some(address) => {
                    let socket = site.outside(ping::socket)?.map_err(BenchError::Watch)?;
                    Some(Pinger::start(socket, address.ip).map_err(BenchError::Watch)?)
                }
            };
            pingers.push(pinger);
        }
        // The memory of the guests that arrive, and of what is in flight.
        machine::reclaim_memory(specs.iter().map(|spec| u64::from(spec.memory_mb) << 20).sum::<u64>() * 2);
        let places = [self.watched_host(0)?, self.watched_host(1)?];
        let at_work = self.busy.map(Busy::work).transpose()?;
        let work = self.busy.map(|busy| Box::new(busy.account()) as Work);
        let watch =
            RunWatch::start(&places, parties, site.links(), stage.watch_memory, work).map_err(BenchError::Watch)?;
        std::thread::sleep(if at_work.is_some() { WORK_ALONE } else { SETTLE });

        let over = AtomicBool::new(false);
        let standings: Vec<ReachedState> = specs.iter().map(|_| ReachedState::default()).collect();
        let sum =
            |of: fn(&ReachedState) -> &AtomicU64| standings.iter().map(|s| of(s).load(Ordering::Relaxed)).sum::<u64>();
        let fill_bytes = specs.iter().map(|spec| u64::from(spec.params.fill_mb) << 20).sum::<u64>();
        let inflicted: Mutex<Vec<Inflicted>> = Mutex::default();
        let source_host = HOSTS[ways[0].source];
        let start = Instant::now();
        let (mut results, mut ended_s) = std::thread::scope(|scope| {
            let migrations: Vec<_> = journeys
                .into_iter()
                .zip(&standings)
                .map(|(journey, standing)| scope.spawn(move || journey(start, standing)))
                .collect();
            let disturber = stage.fault.map(|fault| {
                let (inflicted, over, sent) = (&inflicted, &over, || sum(|s| &s.sent_bytes));
                scope.spawn(move || inflicted_fault::inflict(site, fault, start, fill_bytes, sent, over, inflicted))
            });
            while !migrations.iter().all(|m| m.is_finished()) {
                std::thread::sleep(TICK);
                tick(Tick {
                    elapsed: start.elapsed(),
                    sent_bytes: sum(|s| &s.sent_bytes),
                    left_bytes: sum(|s| &s.left_bytes),
                    nic_bps: &watch.sending(source_host),
                });
            }
            let ended_s = start.elapsed().as_secs_f64();
            over.store(true, Ordering::Relaxed);
            let _ = disturber.map(|thread| thread.join());
            let join =
                |m: std::thread::ScopedJoinHandle<'_, _>| m.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            (migrations.into_iter().map(join).collect::<Vec<_>>(), ended_s)
        });
        // Times count from QEMU's `migrate`. What agents do before that is before zero.
        let migrates = results.iter().flatten().map(|moved| moved.migrate_s);
        let zero_s = migrates.reduce(f64::min).unwrap_or(0.0);
        let start = start + Duration::from_secs_f64(zero_s.max(0.0));
        results.iter_mut().flatten().for_each(|moved| moved.shift(zero_s));
        ended_s -= zero_s;
        // Only gaps around the switchover count: what happens before is no downtime.
        let gap = |(pinger, result): (Option<Pinger>, &Result<Moved, MigrationError>)| {
            let stop_s = result.as_ref().ok()?.phases.stop_s?;
            let gap = pinger?.longest_gap(start + Duration::from_secs_f64(stop_s.max(0.0)))?;
            Some(gap.as_secs_f64() * 1e3)
        };
        let ping_gaps_ms = pingers.into_iter().zip(&results).map(gap).collect();
        let watched = watch.stop(start);
        drop(at_work);
        let control = control.and_then(|(_echo, asker)| {
            let (first, last) = goodput::window(&watched.sent(source_host), 0.0, ended_s)?;
            let at = |s: f64| start + Duration::from_secs_f64(s.max(0.0));
            Some(asker?.stop(start, (at(first), at(last))))
        });
        let mut faults = inflicted.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        for fault in &mut faults {
            fault.at_s -= zero_s;
            fault.healed_s = fault.healed_s.map(|at_s| at_s - zero_s);
        }
        Ok(Seen { start, results, watched, ended_s, faults, control, ping_gaps_ms })
    }

    /// Starts the small stream, if there is a pipe for it, and lets it run idle for a while.
    fn ask_all_the_time(&self, ways: &[Way]) -> Result<Option<(Echo, Option<Asker>)>, BenchError> {
        let Some(forward) = ways.iter().find_map(|way| way.carried.control.as_ref()) else { return Ok(None) };
        let echo = Echo::start(&forward.connect).map_err(BenchError::Watch)?;
        // A tunnel that does not carry the stream shows as no measurement, as that is the mover's fault.
        let asker = Asker::start(&forward.listen).ok();
        std::thread::sleep(IDLE);
        Ok(Some((echo, asker)))
    }

    fn blank(&self, mover: Mover, round: u32, n: usize, host: usize, qemu_source_cmdline: Vec<String>) -> Run {
        let (guest, links) = (&self.stage.guest, &self.stage.links);
        let about_guest = format!(
            "{} MiB, {} filled, {} % compressible, {} MiB rewritten at {} pages/s ({} of each), {} vCPU{}",
            guest.memory_mb,
            guest.fill_mb,
            guest.compressible,
            guest.rewrite_mb,
            guest.rewrite_pages_per_s,
            rewritten(guest.rewrite),
            guest.vcpus,
            if guest.software { ", software that it unpacked and built" } else { "" }
        );
        let set = [("guest", json!(about_guest)), ("mtu", json!(links.mtu)), ("one subnet", json!(links.same_subnet))];
        Run {
            case: self.case.into(),
            stage: self.stage.name.into(),
            mover,
            round,
            guest: n as u32,
            source: HOSTS[host].into(),
            target: HOSTS[1 - host].into(),
            started_at: machine::now(),
            commit: self.commit.into(),
            error: None,
            called_off_s: None,
            memory_backend_source: memory_backend(&qemu_source_cmdline),
            qemu_source_cmdline,
            qemu_target_cmdline: vec![],
            memory_backend_target: String::new(),
            guest_memory_bytes: u64::from(guest.memory_mb) << 20,
            parameters: set.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
            downtime_limit_ms: self.downtime_limit_ms,
            link_bps: links.rates_mbit.iter().map(|r| r.map(|mbit| u64::from(mbit) * 1_000_000)).collect(),
            total_s: None,
            downtime_ms: None,
            guest_gap_ms: None,
            guest_switchover_ms: None,
            ping_gap_ms: None,
            guest_verdict: None,
            guest_bytes: 0,
            zero_bytes: 0,
            pages: None,
            transferred_bytes: 0,
            rounds: 0,
            first_byte_s: None,
            last_byte_s: None,
            wire_bytes: vec![],
            cpu_source_s: CpuSeconds::default(),
            cpu_target_s: CpuSeconds::default(),
            phases: Phases::default(),
            handover: vec![],
            faults: vec![],
            memory: None,
            private_memory: None,
            guests_work: None,
            rewriting: None,
            control: None,
            samples: None,
        }
    }

    /// Adds what was seen of guest `n`.
    fn fill_in(&self, run: &mut Run, n: usize, (number, way): (usize, &Way), usual: Option<Usual>, seen: &Seen) {
        let (source, target) = (HOSTS[way.source], HOSTS[1 - way.source]);
        let watched = &seen.watched;
        run.parameters.extend(way.carried.parameters.clone());
        match &seen.results[n] {
            Err(error) => {
                run.error = Some(chain(error));
                run.called_off_s = match error {
                    MigrationError::Late(after) => Some(after.as_secs_f64()),
                    _ => None,
                };
            }
            Ok(moved) => {
                let ram = moved.info.ram.unwrap_or_default();
                run.handover.clone_from(&moved.steps);
                run.total_s = moved.phases.completed_s;
                run.downtime_ms = moved.info.downtime.map(|ms| ms as f64);
                run.guest_gap_ms = moved.gaps.map(|gaps| gaps.switchover_ms.max(gaps.longest_other_ms));
                run.guest_switchover_ms = moved.gaps.map(|gaps| gaps.switchover_ms);
                run.guest_bytes = ram.normal_bytes;
                run.zero_bytes = ram.duplicate * PAGE_BYTES;
                run.pages.clone_from(&moved.pages);
                run.transferred_bytes = ram.transferred;
                run.rounds = ram.dirty_sync_count;
                run.phases = moved.phases;
                run.rewriting = usual.zip(moved.rewritten).map(|(usual, rewritten)| {
                    let order_s = moved.phases.order_s.unwrap_or(0.0);
                    usual.until(seen.start - Duration::from_secs_f64((-order_s).max(0.0)), rewritten)
                });
            }
        }
        // Links and tunnel are shared, so they are watched until the last guest of this direction is done. What a
        // migration did until it failed is recorded, too.
        let ends = way.guests.iter().map(|&n| seen.results[n].as_ref().ok().and_then(|m| m.phases.completed_s));
        let end_s = ends.collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().reduce(f64::max));
        let end_s = end_s.unwrap_or(seen.ended_s);
        let window = goodput::window(&watched.sent(source), 0.0, end_s);
        (run.first_byte_s, run.last_byte_s) = (window.map(|w| w.0), window.map(|w| w.1));
        // NICs are read only every 20 ms, so bytes count from a moment when nothing was sent yet.
        run.wire_bytes = watched.bytes(run.phases.order_s.unwrap_or(0.0), end_s);
        let cpu = |host| cpu_used(watched, number, host, end_s, way.guests.len() as f64);
        (run.cpu_source_s, run.cpu_target_s) = (cpu(source), cpu(target));
        let memory = |host: &str| watched.memory.get(&(number, host.to_string())).copied();
        if let Some((source, target)) = memory(source).zip(memory(target)) {
            run.memory = Some(MoverMemory { source: source.most, target: target.most });
            run.private_memory = Some(MoverPrivateMemory { source: source.private, target: target.private });
        }
        run.guests_work = guests_work(watched, run.phases.order_s.unwrap_or(0.0), end_s);
        let can_carry = self.can_carry();
        run.faults = seen.faults.iter().map(|f| f.judge(watched, target, run.last_byte_s, &can_carry)).collect();
        run.control = seen.control.clone().filter(|_| n == 0);
        run.ping_gap_ms = seen.ping_gaps_ms[n];
    }

    fn parties(
        &self,
        ways: &[Way],
        residents: &mut [Resident],
        targets: &mut [Guest],
    ) -> Result<Vec<Party>, BenchError> {
        let mut parties = Vec::new();
        for (number, way) in ways.iter().enumerate() {
            let leaving = |n: usize| {
                let pid = residents[n].guest.qemu.pid();
                // All threads that exist before the migration starts threads of its own.
                (pid, threads(pid))
            };
            let sources = way.guests.iter().map(|&n| leaving(n)).collect();
            let arrivals = way.guests.iter().map(|&n| (targets[n].qemu.pid(), vcpu_threads(&mut targets[n]))).collect();
            let (here, there) = (way.source, 1 - way.source);
            let mut party = |host: usize, qemus, movers| {
                let (place, end) = (self.watched_host(host)?, End { qemus, movers, ..End::default() });
                parties.push(Party { way: number, watched_host: place, end, arriving: Arriving::default() });
                Ok::<_, BenchError>(())
            };
            party(here, sources, way.carried.source_pids())?;
            party(there, arrivals, way.carried.target_pids())?;
        }
        Ok(parties)
    }

    /// Returns what each link's NIC counts when it is full: as iperf3 showed, or else the nominal rate.
    fn can_carry(&self) -> Vec<Option<f64>> {
        let nominal = |rate: &Option<u32>| rate.map(|mbit| f64::from(mbit) * 1e6);
        let shown = |link: usize| self.yardstick.and_then(|y| y.wire_bps.get(link)).copied();
        self.stage.links.rates_mbit.iter().enumerate().map(|(link, rate)| shown(link).or(nominal(rate))).collect()
    }
}

fn rewritten(rewrite: Rewrite) -> &'static str {
    match rewrite {
        Rewrite::Word => "a word",
        Rewrite::Quarter => "a quarter",
        Rewrite::Page => "all",
    }
}

fn way_of(ways: &[Way], guest: usize) -> (&Way, usize) {
    let found = ways.iter().find_map(|way| Some((way, way.guests.iter().position(|&n| n == guest)?)));
    found.expect("every guest has a way")
}

/// Returns the host's ids of the threads that run the guest.
fn vcpu_threads(guest: &mut Guest) -> Vec<u32> {
    usage::vcpu_threads(&guest.qemu.qmp.query("query-cpus-fast").unwrap_or_default())
}

/// Returns the CPU used on `host` for one direction from the start until `end_s`, as each guest's share.
fn cpu_used(watched: &Watched, way: usize, host: &str, end_s: f64, guests: f64) -> CpuSeconds {
    let Some(cpu) = watched.cpu.get(&(way, host.to_string())) else { return CpuSeconds::default() };
    let at = |t: f64| CpuSeconds {
        qemu: cpu.qemu.at(t).unwrap_or(0.0) / guests,
        guest: cpu.guest.at(t).unwrap_or(0.0) / guests,
        mover: cpu.mover.at(t).unwrap_or(0.0) / guests,
    };
    cpu_between(at(0.0), at(end_s))
}

/// Returns what guests at work got before a migration and during it, or `None` if there are none. They have just begun
/// when the watch does, so its first second does not count.
fn guests_work(watched: &Watched, from_s: f64, end_s: f64) -> Option<GuestsWork> {
    let work = &watched.work;
    let begin_s = work.t_s.first()? + 1.0;
    let used = |from, to| Some(work.at(to)? - work.at(from)?);
    (begin_s < from_s).then(|| {
        Some(GuestsWork {
            cores: busy::cores(),
            cores_before: used(begin_s, from_s)? / (from_s - begin_s),
            window_s: end_s - from_s,
            used_s: used(from_s, end_s)?,
        })
    })?
}

/// Returns how long a migration may take: several times what it should, and what is done to it.
fn deadline(stage: &Scene) -> Duration {
    let fastest = stage.links.rates_mbit.iter().map(|r| r.unwrap_or(1000)).max().unwrap_or(1000);
    // It is unknown how much memory software takes.
    let mb = if stage.guest.software { stage.guest.memory_mb } else { stage.guest.fill_mb };
    let bits = (u64::from(mb) << 23) * u64::from(stage.moves.guests());
    let ideal = Duration::from_secs_f64(bits as f64 / (f64::from(fastest) * 1e6));
    let fault = stage.fault.map_or(Duration::ZERO, |f| f.lasts * 3);
    // A guest is slowed step by step, with a pass over its memory for each step.
    let ideal = if stage.allow_throttle.is_some() { ideal * 3 / 2 } else { ideal };
    // A host with other guests at work leaves a migration half of its cores, or less.
    let ideal = if stage.busy_host { ideal * 3 } else { ideal };
    Duration::from_secs(40) + ideal * 4 + fault
}

fn command_line(guest: &Guest) -> Vec<String> {
    guest.qemu.command_line().iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Returns the `memory-backend-…` of a command line, or QEMU's default if it has none.
fn memory_backend(command_line: &[String]) -> String {
    let backend = command_line.iter().find(|word| word.starts_with("memory-backend-"));
    backend.cloned().unwrap_or_else(|| "anonymous memory, QEMU's default".into())
}

fn names_of_those_on(capabilities: &Value) -> Value {
    let all = capabilities["capabilities"].as_array().cloned().unwrap_or_default();
    let on = all.into_iter().filter(|c| c["state"] == json!(true)).map(|c| c["capability"].clone());
    on.collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goodput::Counter;

    #[test]
    fn the_memory_backend_of_a_command_line() {
        let line = |words: &[&str]| words.iter().map(|w| w.to_string()).collect::<Vec<_>>();
        let memfd = "memory-backend-memfd,id=ram0,share=on,size=256M";
        assert_eq!(memory_backend(&line(&["qemu", "-object", memfd, "-m", "256M"])), memfd);
        assert!(memory_backend(&line(&["qemu", "-m", "256M"])).starts_with("anonymous"));
    }

    #[test]
    fn work_before_and_during_a_migration() {
        // Two cores' worth until 0, and one from there on.
        let t_s: Vec<f64> = (-40..=60).map(|n| f64::from(n) / 10.0).collect();
        let bytes = t_s.iter().map(|t| if *t < 0.0 { 8.0 + 2.0 * t } else { 8.0 + t }).collect();
        let watched = Watched { work: Counter { t_s, bytes }, ..Watched::default() };
        let work = guests_work(&watched, 0.0, 5.0).unwrap();
        assert!((work.cores_before - 2.0).abs() < 1e-6 && (work.used_s - 5.0).abs() < 1e-6, "{work:?}");
        assert!((work.lost_s() - 5.0).abs() < 1e-6);
        assert_eq!(guests_work(&Watched::default(), 0.0, 5.0), None);
    }

    #[test]
    fn capabilities_that_are_on() {
        let tuning = Mover::QemuMultifd.tuning(300, None);
        assert_eq!(names_of_those_on(&tuning.capabilities()), json!(["return-path", "multifd", "events"]));
    }

    #[test]
    fn every_case_has_time_enough() {
        for case in crate::case::all() {
            for stage in case.stages {
                let took = deadline(&stage);
                assert!((50..400).contains(&took.as_secs()), "{} {}: {took:?}", case.name, stage.name);
            }
        }
    }
}
