//! Runs cases: builds each stage's hosts and guests, moves the guests back and forth with the movers taking turns, and
//! writes down what was seen.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
pub use skein_hypervisor::MemoryBackend;
use skein_lab_guest::{Address, Guest, Image, Params, Spec};
use tempfile::TempDir;

use crate::{
    carry::{self, Carried, CarryError, Kit, Route},
    case::{self, Case, Fault, Moves, Stage},
    chain,
    control::{Asker, Echo},
    figure::{self, Data},
    goodput, iperf, machine,
    migration::{self, MigrationError, Moved, Standing},
    mover::{Mover, order},
    ping::{self, Pinger},
    record::{About, CpuSeconds, FaultSeen, MoverMemory, Phases, Results, Run, SCHEMA, Skipped, Verdict, Yardstick},
    site::{HOSTS, Site, SiteError},
    usage::{End, cpu_between},
    watch::{Party, Place, Watch, Watched},
};

/// Rounds of a full bench.
pub const RUNS: u32 = 10;

/// Rounds of a quick one.
pub const RUNS_QUICK: u32 = 3;

/// What a quick case may take at most: no round is begun that would probably not fit.
pub const QUICK_BUDGET: Duration = Duration::from_secs(240);

/// For a guest to boot, before it fills its memory.
const BOOT_DEADLINE: Duration = Duration::from_secs(90);

/// Silence before a migration: counters and heartbeat have a before.
const SETTLE: Duration = Duration::from_millis(600);

/// How long the control stream's idle round trip is measured.
const IDLE: Duration = Duration::from_secs(3);

/// How a bench is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `skein` program whose tunnel is measured.
    pub skein: PathBuf,
    /// Rounds; none: [`RUNS`], or [`RUNS_QUICK`].
    pub runs: Option<u32>,
    /// Only the strongest peer, and within [`QUICK_BUDGET`].
    pub quick: bool,
    /// Only these movers; none: the case's.
    pub movers: Option<Vec<Mover>>,
    /// Leave the last stage's hosts standing.
    pub keep: bool,
    /// Changes to every stage.
    pub adjust: Adjust,
    /// The command line, for the record.
    pub command: Vec<String>,
    /// Set by someone else to end the bench early.
    pub interrupt: Arc<AtomicBool>,
}

/// What may differ from a case as it is written.
#[derive(Clone, Debug, Default)]
pub struct Adjust {
    /// The QEMU program; none: `$SKEIN_QEMU`, or `qemu-system-x86_64`.
    pub qemu: Option<PathBuf>,
    /// Its firmware directory.
    pub firmware: Option<PathBuf>,
    /// Machine type; none: `q35`.
    pub machine: Option<String>,
    /// MTU of all links.
    pub mtu: Option<u32>,
    /// RAM of guests; what they fill is changed in proportion.
    pub memory_mb: Option<u32>,
    /// Virtual CPUs.
    pub vcpus: Option<u32>,
    /// Where guests' RAM lives; the same for all movers.
    pub memory: MemoryBackend,
    /// `downtime-limit` of all movers; none: QEMU's default of 300 ms.
    pub downtime_limit_ms: Option<u64>,
}

/// What happens, for those who wait.
#[derive(Debug)]
pub enum Progress<'a> {
    /// A case begins: its number from 1, and of how many.
    Case(&'a Case, usize, usize),
    /// Hosts stand, guests boot.
    Stage(&'a Stage),
    /// Guests are ready after this time.
    Ready(Duration),
    /// What the links carry.
    Yardstick(&'a Yardstick),
    /// A mover is left out.
    Skipped(&'a Skipped),
    /// A migration begins: mover, round from 1, of how many.
    Moving(Mover, u32, u32),
    /// It goes on.
    Tick(Tick<'a>),
    /// A migration is over.
    Moved(&'a Run),
    /// A case is over; its result is the last of the results.
    Judged,
    /// Something to know.
    Note(&'a str),
}

/// A moment of a migration.
#[derive(Clone, Debug)]
pub struct Tick<'a> {
    /// Since `migrate`.
    pub elapsed: Duration,
    /// Bytes that QEMU has sent, of all guests.
    pub sent_bytes: u64,
    /// Bytes that QEMU believes are left.
    pub left_bytes: u64,
    /// What the source's NICs send, in bits a second, over the last half second.
    pub nic_bps: &'a [f64],
}

/// A bench that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The hosts.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// The guests.
    #[error(transparent)]
    Guest(#[from] skein_lab_guest::Error),
    /// Keys and programs.
    #[error(transparent)]
    Carry(#[from] CarryError),
    /// The yardstick.
    #[error(transparent)]
    Iperf(#[from] iperf::IperfError),
    /// Watching it.
    #[error("watching a run")]
    Watch(#[source] io::Error),
    /// A directory.
    #[error("a directory for the bench's files")]
    Directory(#[source] io::Error),
    /// Someone pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Tells what happens, and the results so far.
pub type Tell<'a> = dyn FnMut(&Progress<'_>, &Results) + 'a;

/// Runs `cases` one after the other. A stage that cannot be run is noted in its case's result; the others go on.
pub fn run(cases: Vec<Case>, options: &Options, tell: &mut Tell<'_>) -> Result<Results, BenchError> {
    let mut bench = Bench::new(options, tell)?;
    let count = cases.len();
    for (n, case) in cases.into_iter().enumerate() {
        let case = bench.adjusted(case);
        bench.tell(&Progress::Case(&case, n + 1, count));
        bench.case(&case)?;
    }
    Ok(bench.results)
}

struct Bench<'a, 'b> {
    options: &'a Options,
    tell: &'a mut Tell<'b>,
    results: Results,
    kit: Kit,
    image: Image,
    directory: TempDir,
    /// Numbers sites and runs.
    count: u32,
}

/// What a case gathers besides runs.
#[derive(Default)]
struct Gathered {
    yardsticks: Vec<Yardstick>,
    skipped: Vec<Skipped>,
    notes: Vec<String>,
}

/// A guest, and the number of the host that it is on.
struct Resident {
    spec: Spec,
    guest: Guest,
    host: usize,
}

/// The guests that move in one direction.
struct Way {
    source: usize,
    guests: Vec<usize>,
    carried: Carried,
}

impl<'a, 'b> Bench<'a, 'b> {
    fn new(options: &'a Options, tell: &'a mut Tell<'b>) -> Result<Self, BenchError> {
        let directory = tempfile::Builder::new().prefix("skein-bench-").tempdir().map_err(BenchError::Directory)?;
        let about = About {
            commit: machine::commit(),
            started_at: machine::now(),
            command: options.command.clone(),
            quick: options.quick,
            machine: machine::describe(options.adjust.qemu.as_deref()),
        };
        Ok(Self {
            kit: Kit::new(&options.skein)?,
            image: Image::prepare(&skein_lab_guest::default_cache())?,
            results: Results { schema: SCHEMA, about, cases: vec![], runs: vec![] },
            options,
            tell,
            directory,
            count: 0,
        })
    }

    fn tell(&mut self, progress: &Progress<'_>) {
        (self.tell)(progress, &self.results);
    }

    fn interrupted(&self) -> bool {
        self.options.interrupt.load(Ordering::Relaxed)
    }

    fn rounds(&self) -> u32 {
        self.options.runs.unwrap_or(if self.options.quick { RUNS_QUICK } else { RUNS })
    }

    fn adjusted(&self, case: Case) -> Case {
        let mut case = if self.options.quick { case.quick() } else { case };
        let adjust = &self.options.adjust;
        for stage in &mut case.stages {
            let guest = &mut stage.guest;
            if let Some(memory_mb) = adjust.memory_mb {
                let scale = |mb: u32| (u64::from(mb) * u64::from(memory_mb) / u64::from(guest.memory_mb)) as u32;
                let fill_mb = scale(guest.fill_mb).min(memory_mb.saturating_sub(case::KERNEL_MB));
                let rewrite_mb = scale(guest.rewrite_mb).min(fill_mb);
                (guest.memory_mb, guest.fill_mb, guest.rewrite_mb) = (memory_mb, fill_mb, rewrite_mb);
            }
            guest.vcpus = adjust.vcpus.unwrap_or(guest.vcpus);
            stage.links.mtu = adjust.mtu.unwrap_or(stage.links.mtu);
            if let Some(only) = &self.options.movers {
                stage.movers.retain(|mover| only.contains(mover));
                stage.movers.extend(only.iter().filter(|m| !stage.movers.contains(m)).collect::<Vec<_>>());
            }
        }
        case
    }

    fn case(&mut self, case: &Case) -> Result<(), BenchError> {
        let mut gathered = Gathered::default();
        let begun = Instant::now();
        for (n, stage) in case.stages.iter().enumerate() {
            // What is left of the budget is shared by the stages that are left.
            let left = QUICK_BUDGET.saturating_sub(begun.elapsed()) / (case.stages.len() - n) as u32;
            let budget = if self.options.quick { left } else { Duration::MAX };
            match self.stage(case, stage, budget, &mut gathered) {
                Ok(()) => {}
                Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                Err(_) if self.interrupted() => return Err(BenchError::Interrupted),
                Err(error) => {
                    let name = if stage.name.is_empty() { String::new() } else { format!("stage '{}': ", stage.name) };
                    let note = format!("{name}ended early: {}", chain(&error));
                    self.tell(&Progress::Note(&note));
                    gathered.notes.push(note);
                }
            }
        }
        let runs: Vec<Run> = self.results.runs.iter().filter(|r| r.case == case.name).cloned().collect();
        let data = Data { subject: case.subject, runs: &runs, yardsticks: &gathered.yardsticks };
        let mut result = figure::judge(case.name, case.shows, &case.checks, data, gathered.skipped);
        result.notes = gathered.notes;
        self.results.cases.push(result);
        self.tell(&Progress::Judged);
        Ok(())
    }

    fn stage(
        &mut self,
        case: &Case,
        stage: &Stage,
        budget: Duration,
        gathered: &mut Gathered,
    ) -> Result<(), BenchError> {
        let begun = Instant::now();
        self.tell(&Progress::Stage(stage));
        self.count += 1;
        let taps = if stage.ping { stage.moves.guests() } else { 0 };
        let mut site = Site::build(&machine::lab_name(self.count), &stage.links, taps)?;
        let mut movers = Vec::new();
        for &mover in &stage.movers {
            match carry::lacks(mover, &site) {
                None => movers.push(mover),
                Some(why) => {
                    let skipped = Skipped { stage: stage.name.into(), mover, why };
                    self.tell(&Progress::Skipped(&skipped));
                    gathered.skipped.push(skipped);
                }
            }
        }
        if stage.iperf3 {
            let yardstick = iperf::measure(&site, stage.name, self.directory.path())?;
            self.tell(&Progress::Yardstick(&yardstick));
            gathered.yardsticks.push(yardstick);
        }
        let reference = gathered.yardsticks.iter().find(|y| y.stage == stage.name).cloned();
        let mut residents = self.boot_all(stage, &site)?;
        self.tell(&Progress::Ready(begun.elapsed()));

        let rounds = self.rounds();
        let mut longest_round = Duration::ZERO;
        for round in 1..=rounds {
            let round_begun = Instant::now();
            if round > 1 && begun.elapsed() + longest_round > budget {
                let note = format!(
                    "{}{} of {rounds} rounds fitted into the {} s of a quick case",
                    if stage.name.is_empty() { String::new() } else { format!("stage '{}': ", stage.name) },
                    round - 1,
                    QUICK_BUDGET.as_secs(),
                );
                self.tell(&Progress::Note(&note));
                gathered.notes.push(note);
                break;
            }
            for mover in order(&movers, round as usize - 1) {
                if self.interrupted() {
                    return Err(BenchError::Interrupted);
                }
                self.tell(&Progress::Moving(mover, round, rounds));
                let before = self.results.runs.len();
                let done = self.together(case, stage, &site, reference.as_ref(), &mut residents, mover, round);
                for n in before..self.results.runs.len() {
                    (self.tell)(&Progress::Moved(&self.results.runs[n]), &self.results);
                }
                done?;
            }
            longest_round = longest_round.max(round_begun.elapsed());
        }
        if self.options.keep {
            site.keep();
        }
        Ok(())
    }

    fn boot_all(&self, stage: &Stage, site: &Site) -> Result<Vec<Resident>, BenchError> {
        let mut residents = Vec::new();
        for n in 0..stage.moves.guests() {
            let spec = self.spec(stage, site, n);
            let host = match stage.moves {
                Moves::Together(_) => 0,
                Moves::BothWays => n as usize % 2,
            };
            let command = site.command(HOSTS[host], program(&spec))?;
            residents.push(Resident { guest: Guest::boot(&spec, |_| command)?, spec, host });
        }
        // They boot and fill their memory side by side.
        for resident in &mut residents {
            self.wait_ready(resident)?;
        }
        Ok(residents)
    }

    fn wait_ready(&self, resident: &mut Resident) -> Result<(), BenchError> {
        let end = Instant::now() + BOOT_DEADLINE + slowly(resident.spec.params.fill_mb);
        loop {
            // In short steps, so that Ctrl-C is heard.
            match resident.guest.wait_ready(Duration::from_secs(1)) {
                Ok(_) => return Ok(()),
                Err(_) if self.interrupted() => return Err(BenchError::Interrupted),
                Err(skein_lab_guest::Error::NotReady { .. }) if Instant::now() < end => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn spec(&self, stage: &Stage, site: &Site, n: u32) -> Spec {
        let (guest, adjust) = (&stage.guest, &self.options.adjust);
        let nic = site.guest_nic(n);
        let params = Params {
            fill_mb: guest.fill_mb,
            compressible: guest.compressible,
            rewrite_mb: guest.rewrite_mb,
            rate: guest.rewrite_pages_per_s,
            threads: guest.vcpus,
            seed: u64::from(n) + 1,
            // All is verified after each migration; before, it would only take CPU.
            verify_rate: 0,
            ip: nic.as_ref().map(|(_, _, ip)| Address { ip: *ip, prefix: 24 }),
            ..Params::default()
        };
        let mut spec = Spec::new(format!("bench{n}"), self.image.clone(), guest.memory_mb, params);
        spec.cpus = guest.vcpus;
        spec.machine = adjust.machine.clone().unwrap_or(spec.machine);
        spec.memory = adjust.memory;
        spec.nic = nic.map(|(mac, tap, _)| (mac, tap));
        spec.qemu = adjust.qemu.clone();
        spec.firmware = adjust.firmware.clone();
        spec
    }

    /// Moves all guests once with one mover. What goes wrong with the mover is in the runs; an error is the bench's own.
    #[expect(clippy::too_many_arguments, reason = "one run's whole context")]
    fn together(
        &mut self,
        case: &Case,
        stage: &Stage,
        site: &Site,
        reference: Option<&Yardstick>,
        residents: &mut Vec<Resident>,
        mover: Mover,
        round: u32,
    ) -> Result<(), BenchError> {
        self.count += 1;
        let directory = self.directory.path().join(self.count.to_string());
        let mut runs: Vec<Run> =
            (0..residents.len()).map(|n| self.blank_run(case, stage, mover, round, n, &residents[n])).collect();

        let mut ways = Vec::new();
        for source in 0..HOSTS.len() {
            let guests: Vec<usize> = (0..residents.len()).filter(|&n| residents[n].host == source).collect();
            if guests.is_empty() {
                continue;
            }
            let directory = directory.join(HOSTS[source]);
            std::fs::create_dir_all(&directory).map_err(BenchError::Directory)?;
            let route = Route {
                site,
                source: HOSTS[source],
                target: HOSTS[1 - source],
                guests: guests.len() as u32,
                control: stage.control_stream && ways.is_empty(),
                directory: &directory,
            };
            match carry::start(mover, &route, &self.kit) {
                Ok(carried) => ways.push(Way { source, guests, carried }),
                Err(error) => {
                    for run in &mut runs {
                        run.error = Some(chain(&error));
                    }
                    self.results.runs.extend(runs);
                    return Ok(());
                }
            }
        }

        let mut targets: Vec<Guest> = Vec::new();
        for resident in residents.iter() {
            let command = site.command(HOSTS[1 - resident.host], program(&resident.spec))?;
            targets.push(Guest::incoming(&resident.spec, |_| command)?);
        }
        for (n, run) in runs.iter_mut().enumerate() {
            run.qemu_target_cmdline = command_line(&targets[n]);
            run.memory_backend_target = memory_backend(&run.qemu_target_cmdline);
        }
        let outcome = self.watch_and_move(stage, site, &ways, residents, &mut targets, mover, &mut runs)?;
        let (results, watched, seen) = outcome;

        for (way_number, way) in ways.iter().enumerate() {
            for (slot, &n) in way.guests.iter().enumerate() {
                let (source, target) = (HOSTS[way.source], HOSTS[1 - way.source]);
                let run = &mut runs[n];
                run.parameters.extend(way.carried.parameters.clone());
                let (listen, connect) = &way.carried.uris[slot];
                run.parameters.insert("target listens on".into(), json!(listen));
                run.parameters.insert("source connects to".into(), json!(connect));
                match &results[n] {
                    Ok(moved) => fill_in(run, moved),
                    Err(error) => run.error = Some(chain(error)),
                }
                // What a failed one did until it failed is worth seeing too.
                let end_s = run.total_s.unwrap_or(seen.ended_s);
                let all_done = seen.way_ended_s(&results, way).unwrap_or(end_s);
                if let Some((first, last)) = goodput::window(&watched.sent(source), 0.0, all_done) {
                    (run.first_byte_s, run.last_byte_s) = (Some(first), Some(last));
                }
                run.wire_bytes = watched.bytes(0.0, all_done);
                let share = way.guests.len() as f64;
                let cpu = |host: &str| watched.cpu_used(way_number, host, all_done, share);
                (run.cpu_source_s, run.cpu_target_s) = (cpu(source), cpu(target));
                let memory = |host: &str| watched.memory.get(&(way_number, host.to_string())).copied();
                run.memory = memory(source).zip(memory(target)).map(|(source, target)| MoverMemory { source, target });
                let judged = |fault: &FaultTimes| fault.judge(&watched, target, run.last_byte_s, stage, reference);
                run.faults = seen.faults.iter().map(judged).collect();
                run.control = seen.control.clone().filter(|_| n == 0);
                run.ping_gap_ms = seen.ping_gaps_ms[n];
            }
        }
        runs[0].samples = Some(watched.samples());
        // Tunnels end before their QEMUs are looked at again: nothing of a run reaches into the next.
        drop(ways);
        for link in 0..site.links() {
            site.heal(link)?;
        }
        if self.interrupted() {
            return Err(BenchError::Interrupted);
        }
        let settled = self.settle(stage, site, residents, targets, &results, &mut runs);
        self.results.runs.extend(runs);
        settled
    }

    /// After a run, guests are where they are: verifies each, and boots anew what was lost.
    fn settle(
        &self,
        stage: &Stage,
        site: &Site,
        residents: &mut Vec<Resident>,
        targets: Vec<Guest>,
        results: &[Result<Moved, MigrationError>],
        runs: &mut [Run],
    ) -> Result<(), BenchError> {
        let mut lost = false;
        for (n, target) in targets.into_iter().enumerate() {
            let resident = &mut residents[n];
            if results[n].is_ok() {
                resident.guest = target;
                resident.host = 1 - resident.host;
            } else {
                lost |= !migration::back_at_source(&mut resident.guest, target);
            }
        }
        // Guests that were to move together have to start together.
        lost |= residents.len() > 1 && results.iter().any(Result::is_err);
        for (resident, run) in residents.iter_mut().zip(runs) {
            let deadline = Duration::from_secs(30) + slowly(resident.spec.params.fill_mb);
            match resident.guest.agent().verify(deadline) {
                Ok(verdict) => {
                    run.guest_verdict = Some(Verdict {
                        ok: verdict.is_good(),
                        pages: verdict.pages,
                        bad_pages: verdict.bad,
                        bad_blocks: verdict.bad_blocks,
                    });
                    // A guest that is corrupt would count against every mover that follows.
                    lost |= !verdict.is_good();
                }
                Err(error) => {
                    lost = true;
                    run.error.get_or_insert_with(|| chain(&error));
                }
            }
        }
        if lost {
            residents.clear();
            *residents = self.boot_all(stage, site)?;
        }
        Ok(())
    }

    /// The run itself: everything that happens while it is watched.
    #[expect(clippy::too_many_arguments, reason = "one run's whole context")]
    fn watch_and_move(
        &mut self,
        stage: &Stage,
        site: &Site,
        ways: &[Way],
        residents: &mut [Resident],
        targets: &mut [Guest],
        mover: Mover,
        runs: &mut [Run],
    ) -> Result<(Vec<Result<Moved, MigrationError>>, Watched, Seen), BenchError> {
        let mut uris: Vec<&(String, String)> = Vec::new();
        let mut prepared = Vec::new();
        for n in 0..residents.len() {
            let way = ways.iter().find(|way| way.guests.contains(&n)).expect("every guest has a way");
            let slot = way.guests.iter().position(|&g| g == n).expect("it is in there");
            uris.push(&way.carried.uris[slot]);
            let tls = way.carried.tls.as_ref().map(|(source, target)| (source.as_path(), target.as_path()));
            let tuning = mover.tuning(self.options.adjust.downtime_limit_ms.unwrap_or(300));
            prepared.push(migration::prepare(&mut residents[n].guest, &mut targets[n], &tuning, tls, &uris[n].0).map(
                |tuning| {
                    runs[n].parameters.insert("capabilities".into(), capabilities(&tuning.capabilities()));
                    runs[n].parameters.insert("parameters".into(), tuning.parameters());
                },
            ));
        }

        let echo_and_asker = match ways.iter().find_map(|way| way.carried.control.as_ref()) {
            Some(forward) => {
                let echo = Echo::start(&forward.connect).map_err(BenchError::Watch)?;
                // A tunnel that does not carry it is the mover's fault, and shows as no measurement.
                let asker = Asker::start(&forward.listen).ok();
                std::thread::sleep(IDLE);
                Some((echo, asker))
            }
            None => None,
        };
        let mut pingers = Vec::new();
        for n in 0..residents.len() as u32 {
            let pinger = match site.guest_nic(n) {
                None => None,
                Some((_, _, ip)) => {
                    let socket = site.outside(ping::socket)?.map_err(BenchError::Watch)?;
                    Some(Pinger::start(socket, ip).map_err(BenchError::Watch)?)
                }
            };
            pingers.push(pinger);
        }
        let places = places(site)?;
        let parties = parties(ways, residents, targets, &places);
        let watch = Watch::start(&places, parties, site.links(), stage.watch_memory).map_err(BenchError::Watch)?;
        std::thread::sleep(SETTLE);

        let deadline = deadline(stage);
        let interrupt = &*self.options.interrupt;
        let over = AtomicBool::new(false);
        let standings: Vec<Standing> = residents.iter().map(|_| Standing::default()).collect();
        let fill_bytes = residents.iter().map(|r| u64::from(r.spec.params.fill_mb) << 20).sum::<u64>();
        let faults: Mutex<Vec<FaultTimes>> = Mutex::default();
        let source_host = HOSTS[ways[0].source];
        let start = Instant::now();
        let (results, ended_s) = std::thread::scope(|scope| {
            let movers: Vec<_> = residents
                .iter_mut()
                .zip(targets.iter_mut())
                .zip(&standings)
                .zip(prepared)
                .zip(&uris)
                .map(|((((resident, target), standing), prepared), (_, connect))| {
                    scope.spawn(move || {
                        prepared?;
                        let source = &mut resident.guest;
                        migration::migrate(source, target, connect, start, deadline, standing, interrupt)
                    })
                })
                .collect();
            let faulty = stage.fault.map(|fault| {
                let (standings, over, faults) = (&standings, &over, &faults);
                scope.spawn(move || inflict(site, fault, start, fill_bytes, standings, over, faults))
            });
            while !movers.iter().all(|m| m.is_finished()) {
                std::thread::sleep(Duration::from_millis(200));
                let sum = |of: fn(&Standing) -> &std::sync::atomic::AtomicU64| {
                    standings.iter().map(|s| of(s).load(Ordering::Relaxed)).sum()
                };
                let tick = Tick {
                    elapsed: start.elapsed(),
                    sent_bytes: sum(|s| &s.sent_bytes),
                    left_bytes: sum(|s| &s.left_bytes),
                    nic_bps: &watch.sending(source_host),
                };
                (self.tell)(&Progress::Tick(tick), &self.results);
            }
            let ended_s = start.elapsed().as_secs_f64();
            over.store(true, Ordering::Relaxed);
            let _ = faulty.map(|thread| thread.join());
            let results = movers
                .into_iter()
                .map(|m| m.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect::<Vec<_>>();
            (results, ended_s)
        });
        let ping_gaps_ms =
            pingers.into_iter().map(|pinger| pinger?.longest_gap(start).map(|gap| gap.as_secs_f64() * 1e3)).collect();
        let watched = watch.stop(start);
        let control = echo_and_asker.and_then(|(_echo, asker)| {
            let (first, last) = goodput::window(&watched.sent(source_host), 0.0, ended_s)?;
            let at = |s: f64| start + Duration::from_secs_f64(s.max(0.0));
            Some(asker?.stop(start, (at(first), at(last))))
        });
        let faults = faults.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        Ok((results, watched, Seen { ended_s, faults, control, ping_gaps_ms }))
    }

    fn blank_run(&self, case: &Case, stage: &Stage, mover: Mover, round: u32, n: usize, resident: &Resident) -> Run {
        let qemu_source_cmdline = command_line(&resident.guest);
        let guest = &stage.guest;
        let set = [
            ("mtu", json!(stage.links.mtu)),
            ("one subnet", json!(stage.links.same_subnet)),
            (
                "guest",
                json!(format!(
                    "{} MiB, {} filled, {} % compressible, {} MiB rewritten at {} pages/s, {} vCPU",
                    guest.memory_mb,
                    guest.fill_mb,
                    guest.compressible,
                    guest.rewrite_mb,
                    guest.rewrite_pages_per_s,
                    guest.vcpus
                )),
            ),
        ];
        Run {
            case: case.name.into(),
            stage: stage.name.into(),
            mover,
            round,
            guest: n as u32,
            source: HOSTS[resident.host].into(),
            target: HOSTS[1 - resident.host].into(),
            started_at: machine::now(),
            commit: self.results.about.commit.clone(),
            error: None,
            memory_backend_source: memory_backend(&qemu_source_cmdline),
            qemu_source_cmdline,
            qemu_target_cmdline: vec![],
            memory_backend_target: String::new(),
            parameters: set.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
            link_bps: stage.links.rates_mbit.iter().map(|r| r.map(|mbit| u64::from(mbit) * 1_000_000)).collect(),
            total_s: None,
            downtime_ms: None,
            guest_gap_ms: None,
            guest_switchover_ms: None,
            ping_gap_ms: None,
            guest_verdict: None,
            guest_bytes: 0,
            transferred_bytes: 0,
            rounds: 0,
            first_byte_s: None,
            last_byte_s: None,
            wire_bytes: vec![],
            cpu_source_s: CpuSeconds::default(),
            cpu_target_s: CpuSeconds::default(),
            phases: Phases::default(),
            faults: vec![],
            memory: None,
            control: None,
            samples: None,
        }
    }
}

/// What was seen of a run by others than the QEMUs.
struct Seen {
    ended_s: f64,
    faults: Vec<FaultTimes>,
    control: Option<crate::record::ControlLatency>,
    ping_gaps_ms: Vec<Option<f64>>,
}

impl Seen {
    /// When the last guest of a way had completed; None unless all did.
    fn way_ended_s(&self, results: &[Result<Moved, MigrationError>], way: &Way) -> Option<f64> {
        let ends = way.guests.iter().map(|&n| results[n].as_ref().ok().and_then(|moved| moved.phases.completed_s));
        ends.collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::max)
    }
}

/// A fault as it was inflicted.
#[derive(Clone, Debug)]
struct FaultTimes {
    kind: &'static str,
    links: Vec<usize>,
    at_s: f64,
    healed_s: Option<f64>,
}

impl FaultTimes {
    fn judge(
        &self,
        watched: &Watched,
        target: &str,
        last_byte_s: Option<f64>,
        stage: &Stage,
        reference: Option<&Yardstick>,
    ) -> FaultSeen {
        let lost = |link: usize| self.links.contains(&link);
        // What a link can carry: as iperf3 showed, else what it is called.
        let can_carry = |link: usize| {
            let shown = reference.and_then(|y| y.wire_bps.get(link)).copied();
            shown.or(stage.links.rates_mbit[link].map(|mbit| f64::from(mbit) * 1e6))
        };
        let links = stage.links.rates_mbit.len();
        let rest: Option<f64> = (0..links).filter(|&l| !lost(l)).map(can_carry).sum();
        let end_s = last_byte_s.unwrap_or(self.at_s);
        let below = rest.filter(|bps| *bps > 0.0).map(|bps| {
            let others = watched.received(target, |link| !lost(link));
            goodput::time_below(&others, 0.9 * bps, self.at_s, self.healed_s.unwrap_or(end_s).min(end_s))
        });
        let again = self.healed_s.and_then(|healed| {
            let each = self.links.iter().map(|&link| {
                let counter = watched.received(target, |l| l == link);
                goodput::time_until(&counter, 0.5 * can_carry(link)?, healed, end_s)
            });
            each.collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::max)
        });
        FaultSeen {
            kind: self.kind.into(),
            links: self.links.clone(),
            at_s: self.at_s,
            healed_s: self.healed_s,
            below_90_s: below,
            used_again_s: again,
        }
    }
}

/// Loses links once enough was sent, and heals them in time, or at the end.
fn inflict(
    site: &Site,
    fault: Fault,
    start: Instant,
    fill_bytes: u64,
    standings: &[Standing],
    over: &AtomicBool,
    seen: &Mutex<Vec<FaultTimes>>,
) {
    const STEP: Duration = Duration::from_millis(10);
    let threshold = fill_bytes / 100 * u64::from(fault.after_percent);
    let ended = || over.load(Ordering::Relaxed);
    while standings.iter().map(|s| s.sent_bytes.load(Ordering::Relaxed)).sum::<u64>() < threshold {
        if ended() {
            return;
        }
        std::thread::sleep(STEP);
    }
    let links: Vec<usize> = if fault.all_links { (0..site.links()).collect() } else { vec![site.links() - 1] };
    let at_s = start.elapsed().as_secs_f64();
    for &link in &links {
        if let Err(error) = site.lose(link, fault.kind) {
            tracing::error!("{}", chain(&error));
            return;
        }
    }
    let lost = Instant::now();
    while lost.elapsed() < fault.lasts && !ended() {
        std::thread::sleep(STEP);
    }
    let healed = !ended();
    for &link in &links {
        if let Err(error) = site.heal(link) {
            tracing::error!("{}", chain(&error));
        }
    }
    let healed_s = healed.then(|| start.elapsed().as_secs_f64());
    let times = FaultTimes { kind: fault.kind.name(), links, at_s, healed_s };
    seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(times);
}

fn fill_in(run: &mut Run, moved: &Moved) {
    let ram = moved.info.ram.unwrap_or_default();
    run.total_s = moved.phases.completed_s;
    run.downtime_ms = moved.info.downtime.map(|ms| ms as f64);
    run.guest_gap_ms = moved.gaps.map(|gaps| gaps.switchover_ms.max(gaps.longest_other_ms));
    run.guest_switchover_ms = moved.gaps.map(|gaps| gaps.switchover_ms);
    run.guest_bytes = ram.normal_bytes;
    run.transferred_bytes = ram.transferred;
    run.rounds = ram.dirty_sync_count;
    run.phases = moved.phases;
}

impl Watched {
    /// CPU used on `host` for one direction from the start until `end_s`; a guest's share of it.
    fn cpu_used(&self, way: usize, host: &str, end_s: f64, guests: f64) -> CpuSeconds {
        let Some(cpu) = self.cpu.get(&(way, host.to_string())) else { return CpuSeconds::default() };
        let at = |t: f64| CpuSeconds {
            qemu: cpu.qemu.at(t).unwrap_or(0.0) / guests,
            vcpu: cpu.vcpu.at(t).unwrap_or(0.0) / guests,
            mover: cpu.mover.at(t).unwrap_or(0.0) / guests,
        };
        cpu_between(at(0.0), at(end_s))
    }
}

fn places(site: &Site) -> Result<Vec<Place>, BenchError> {
    let place = |host: &str| Ok(Place { host: host.into(), netns: site.netns(host)? });
    HOSTS.into_iter().map(place).collect()
}

fn parties(ways: &[Way], residents: &mut [Resident], targets: &mut [Guest], places: &[Place]) -> Vec<Party> {
    let mut parties = Vec::new();
    for (number, way) in ways.iter().enumerate() {
        let qemus = |guests: &mut dyn Iterator<Item = &mut Guest>| {
            guests.map(|guest| (guest.qemu.pid(), vcpu_threads(guest))).collect::<Vec<_>>()
        };
        let here = |n: usize| way.guests.contains(&n);
        let sources = qemus(&mut residents.iter_mut().enumerate().filter(|(n, _)| here(*n)).map(|(_, r)| &mut r.guest));
        let arrivals = qemus(&mut targets.iter_mut().enumerate().filter(|(n, _)| here(*n)).map(|(_, guest)| guest));
        for (host, qemus, movers) in
            [(way.source, sources, way.carried.source_pids()), (1 - way.source, arrivals, way.carried.target_pids())]
        {
            parties.push(Party { way: number, place: places[host].clone(), end: End { qemus, movers } });
        }
    }
    parties
}

/// The host's ids of the threads that run the guest.
fn vcpu_threads(guest: &mut Guest) -> Vec<u32> {
    let cpus = guest.qemu.qmp.query("query-cpus-fast").unwrap_or_default();
    let ids = cpus.as_array().into_iter().flatten().filter_map(|cpu| cpu["thread-id"].as_u64());
    let mut ids: Vec<u32> = ids.filter_map(|id| id.try_into().ok()).collect();
    ids.sort_unstable();
    // With one thread for all of them it is named once each.
    ids.dedup();
    ids
}

/// What a migration may take: several times what it should, and what is done to it.
fn deadline(stage: &Stage) -> Duration {
    let fastest = stage.links.rates_mbit.iter().map(|r| r.unwrap_or(1000)).max().unwrap_or(1000);
    let bits = (u64::from(stage.guest.fill_mb) << 23) * u64::from(stage.moves.guests());
    let ideal = Duration::from_secs_f64(bits as f64 / (f64::from(fastest) * 1e6));
    let fault = stage.fault.map_or(Duration::ZERO, |f| f.lasts * 3);
    Duration::from_secs(40) + ideal * 4 + fault
}

/// Time for an emulated guest to write or check this much.
fn slowly(mb: u32) -> Duration {
    Duration::from_secs(u64::from(mb) / 20)
}

fn program(spec: &Spec) -> PathBuf {
    let mut config = skein_hypervisor::Config::new("", 1, "");
    config.binary = spec.qemu.clone();
    config.program()
}

fn command_line(guest: &Guest) -> Vec<String> {
    guest.qemu.command_line().iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// `memory-backend-…` of a command line; without one, QEMU's default.
fn memory_backend(command_line: &[String]) -> String {
    let backend = command_line.iter().find(|word| word.starts_with("memory-backend-"));
    backend.cloned().unwrap_or_else(|| "anonymous memory, QEMU's default".into())
}

/// The names of those that are on.
fn capabilities(argument: &Value) -> Value {
    let all = argument["capabilities"].as_array().cloned().unwrap_or_default();
    let on = all.into_iter().filter(|c| c["state"] == json!(true)).map(|c| c["capability"].clone());
    on.collect::<Vec<_>>().into()
}

/// Cases by name, in the order given.
pub fn select(names: &[String]) -> Result<Vec<Case>, UnknownCase> {
    names.iter().map(|name| case::named(name).ok_or_else(|| UnknownCase(name.clone()))).collect()
}

/// A name that is no case's.
#[derive(Debug, thiserror::Error)]
#[error("no case is called '{0}'; `skein bench list` tells them")]
pub struct UnknownCase(String);
