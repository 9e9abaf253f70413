//! Runs cases: builds each scene's hosts and guests, moves the guests back and forth with the movers taking turns, and
//! records what was seen.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

pub use skein_hypervisor::MemoryBackend;
use skein_lab_guest::Image;
use tempfile::TempDir;

pub use crate::{boot::Adjust, error::BenchError, tick::Tick};
use crate::{
    boot::Boot,
    busy::Busy,
    carry::{self, Kit},
    case::{self, Case, ClusterCase, Scene},
    chain,
    cluster::{self, ClusterOptions},
    figure::{self, Data},
    free_memory::{self, KeptFreeMemory},
    huge_shared_memory::HugeSharedMemory,
    iperf, machine,
    memory_reads::{self, Filling, Model},
    mover::{AgentData, Carrier, Mover, order},
    residents::Household,
    results::{About, CaseResult, Results, Run, SCHEMA, Skipped, Yardstick},
    run::{Outcome, Setting},
    site::Site,
};

/// The rounds of a full bench.
pub const RUNS: u32 = 10;

/// The rounds of a quick bench.
pub const RUNS_QUICK: u32 = 3;

/// The most time that a quick case may take. No round is begun that would probably not fit.
pub const QUICK_BUDGET: Duration = Duration::from_secs(240);

/// How many times a peer may not come to an end in a scene before it is left out. Each time takes a minute and more.
const ENDLESS: usize = 2;

/// The device by which taps are made. Some containers do not have it.
const TUN: &str = "/dev/net/tun";

/// The options of a bench.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `skein` program whose tunnel is measured.
    pub skein: PathBuf,
    /// The number of rounds. `None`: [`RUNS`], or [`RUNS_QUICK`].
    pub runs: Option<u32>,
    /// Whether only the strongest peer is measured, and within [`QUICK_BUDGET`].
    pub quick: bool,
    /// The movers to measure. `None`: those of the case.
    pub movers: Option<Vec<Mover>>,
    /// Whether the last scene's hosts are kept.
    pub keep: bool,
    /// A day of PlanetLab's traces or a directory of such days, as loads of simulated guests. `None`: loads are drawn.
    pub planetlab: Option<PathBuf>,
    /// Changes to every scene.
    pub adjust: Adjust,
    /// The command line that is recorded.
    pub command: Vec<String>,
    /// A flag that ends the bench early when it is set.
    pub interrupt: Arc<AtomicBool>,
}

/// The progress of a bench.
#[derive(Debug)]
pub enum Progress<'a> {
    /// A case begins: the case, its number from 1, and how many there are.
    Case(&'a Case, usize, usize),
    /// The hosts are built, and the guests boot.
    Stage(&'a Scene),
    /// The guests have booted and filled their memory in this time.
    Ready(Duration),
    /// What the links carry was measured.
    Yardstick(&'a Yardstick),
    /// A mover is left out.
    Skipped(&'a Skipped),
    /// A migration begins: the mover, the round from 1, and how many rounds there are.
    Moving(Mover, u32, u32),
    /// A migration goes on.
    Tick(Tick<'a>),
    /// A migration is over.
    Moved(&'a Run),
    /// A case is over; its result is the last of the results.
    Judged,
    /// A note for the reader.
    Note(&'a str),
}

/// Reports the progress, with the results so far.
pub type Tell<'a> = dyn FnMut(&Progress<'_>, &Results) + 'a;

/// Runs `cases` one after the other. A scene that cannot be run is noted in its case's result, and the others go on.
///
/// # Errors
///
/// [`BenchError`] if the bench cannot go on.
pub fn run(cases: Vec<Case>, options: &Options, tell: &mut Tell<'_>) -> Result<Results, BenchError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(BenchError::NotRoot);
    }
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
    directory: TempDir,
    /// The number of the next site or run.
    count: u32,
    /// Held while migrations are measured.
    _free_memory: KeptFreeMemory,
}

/// What a case gathers besides runs.
#[derive(Default)]
struct Gathered {
    yardsticks: Vec<Yardstick>,
    skipped: Vec<Skipped>,
    notes: Vec<String>,
}

/// A scene whose hosts are built.
struct BuiltScene<'a> {
    case: &'a Case,
    scene: &'a Scene,
    /// The groups of guests at work and of the host's programs, if there are any. They end before the hosts do.
    busy: Option<Busy>,
    site: Site,
    /// The movers that take turns.
    movers: Vec<Mover>,
    /// What the links carry, if that was measured.
    yardstick: Option<Yardstick>,
    _huge: Option<HugeSharedMemory>,
}

/// The time that a scene may take.
#[derive(Clone, Copy)]
struct Budget {
    begun: Instant,
    lasts: Duration,
}

impl Budget {
    /// Returns whether that much time is left.
    fn has(self, time: Duration) -> bool {
        self.begun.elapsed() + time <= self.lasts
    }
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
            results: Results { schema: SCHEMA, about, cases: vec![], runs: vec![] },
            options,
            tell,
            directory,
            count: 0,
            _free_memory: KeptFreeMemory::keep(),
        })
    }

    fn tell(&mut self, progress: &Progress<'_>) {
        (self.tell)(progress, &self.results);
    }

    fn interrupted(&self) -> bool {
        self.options.interrupt.load(Ordering::Relaxed)
    }

    fn round_count(&self) -> u32 {
        self.options.runs.unwrap_or(if self.options.quick { RUNS_QUICK } else { RUNS })
    }

    fn downtime_limit_ms(&self, scene: &Scene) -> u64 {
        self.options.adjust.downtime_limit_ms.unwrap_or(scene.downtime_limit_ms)
    }

    /// Returns the case with the changes that the options ask for.
    fn adjusted(&self, case: Case) -> Case {
        let mut case = if self.options.quick { case.quick() } else { case };
        let adjust = &self.options.adjust;
        for scene in &mut case.stages {
            let guest = &mut scene.guest;
            if let Some(memory_mb) = adjust.memory_mb {
                let scale = |mb: u32| (u64::from(mb) * u64::from(memory_mb) / u64::from(guest.memory_mb)) as u32;
                let most = memory_mb.saturating_sub(case::KERNEL_MB);
                let fill_mb = scale(guest.fill_mb).min(most);
                guest.freed_mb = scale(guest.freed_mb).min(most - fill_mb);
                guest.rewrite_mb = scale(guest.rewrite_mb).min(fill_mb);
                (guest.memory_mb, guest.fill_mb) = (memory_mb, fill_mb);
            }
            guest.vcpus = adjust.vcpus.unwrap_or(guest.vcpus);
            scene.links.mtu = adjust.mtu.unwrap_or(scene.links.mtu);
            if let Some(only) = &self.options.movers {
                scene.movers.retain(|mover| only.contains(mover));
                scene.movers.extend(only.iter().filter(|m| !scene.movers.contains(m)).collect::<Vec<_>>());
            }
        }
        case
    }

    /// Runs a case, and judges it.
    fn case(&mut self, case: &Case) -> Result<(), BenchError> {
        if let Some(cluster) = case.cluster {
            return self.cluster_case(case, cluster);
        }
        let mut gathered = Gathered::default();
        let mut complete = true;
        let begun = Instant::now();
        for (n, scene) in case.stages.iter().enumerate() {
            // The rest of the budget is divided among the remaining scenes.
            let left = QUICK_BUDGET.saturating_sub(begun.elapsed()) / (case.stages.len() - n) as u32;
            let lasts = if self.options.quick { left } else { Duration::MAX };
            match self.scene(case, scene, Budget { begun: Instant::now(), lasts }, &mut gathered) {
                Ok(()) => {}
                Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                Err(_) if self.interrupted() => return Err(BenchError::Interrupted),
                Err(error) => {
                    self.note(scene, &format!("ended early: {}", chain(&error)), &mut gathered);
                    complete = false;
                }
            }
        }
        let runs: Vec<Run> = self.results.runs.iter().filter(|r| r.case == case.name).cloned().collect();
        let data = Data { subject: case.subject, runs: &runs, yardsticks: &gathered.yardsticks };
        let mut result = figure::judge(case.name, case.shows, &case.checks, data, gathered.skipped);
        (result.complete, result.notes) = (complete, gathered.notes);
        self.results.cases.push(result);
        self.tell(&Progress::Judged);
        Ok(())
    }

    /// Runs a case of a cluster as a whole, and judges it.
    fn cluster_case(&mut self, case: &Case, of: ClusterCase) -> Result<(), BenchError> {
        let options = ClusterOptions {
            skein: self.options.skein.clone(),
            qemu: self.options.adjust.qemu.clone(),
            planetlab: self.options.planetlab.clone(),
            runs: self.options.runs,
            quick: self.options.quick,
            interrupt: self.options.interrupt.clone(),
        };
        let mut notes = Vec::new();
        let ran = cluster::run(of, &options, &mut |note| {
            (self.tell)(&Progress::Note(&note), &self.results);
            notes.push(note);
        });
        if matches!(ran, Err(BenchError::Interrupted)) || self.interrupted() {
            return Err(BenchError::Interrupted);
        }
        let complete = ran.is_ok();
        let parts = ran.unwrap_or_else(|error| {
            let note = format!("ended early: {}", chain(&error));
            self.tell(&Progress::Note(&note));
            notes.push(note);
            of.parts()
        });
        let result = figure::of_parts(case.name, case.shows, parts);
        self.results.cases.push(CaseResult { complete, notes, ..result });
        self.tell(&Progress::Judged);
        Ok(())
    }

    /// Runs one scene of a case, within the budget.
    fn scene(&mut self, case: &Case, scene: &Scene, budget: Budget, gathered: &mut Gathered) -> Result<(), BenchError> {
        self.tell(&Progress::Stage(scene));
        let Some(mut built) = self.build(case, scene, gathered)? else { return Ok(()) };
        let booting = Instant::now();
        let mut household = self.boot(&built)?;
        self.tell(&Progress::Ready(booting.elapsed()));
        self.rounds(&mut built, &mut household, budget, gathered)?;
        if scene.kill_agent && built.movers.contains(&Mover::SkeinAgents) {
            self.kill_agent(&built, &mut household, gathered)?;
        }
        if self.options.keep {
            built.site.keep();
        }
        Ok(())
    }

    /// Builds the hosts of a scene, and measures their links. Returns `None` if none of the movers can run here.
    fn build<'s>(
        &mut self,
        case: &'s Case,
        scene: &'s Scene,
        gathered: &mut Gathered,
    ) -> Result<Option<BuiltScene<'s>>, BenchError> {
        self.count += 1;
        let name = machine::lab_name(self.count);
        let taps = self.taps(scene, gathered);
        let site = Site::build(&name, &scene.links, taps)?;
        let huge = self.huge_shared_memory(scene, gathered);
        let busy = scene.busy_host.then(|| Busy::new(&name));
        let lacks = match &busy {
            Some(Err(error)) => Some(chain(error)),
            _ => lacks_software(scene),
        };
        let busy = busy.and_then(Result::ok);
        let movers = self.movers_that_run(scene, &site, lacks, gathered);
        if movers.is_empty() {
            return Ok(None);
        }
        let yardstick = if scene.iperf3 { self.measure_links(scene, &site, gathered) } else { None };
        Ok(Some(BuiltScene { case, scene, busy, site, movers, yardstick, _huge: huge }))
    }

    /// Has shared memory get huge pages where NICs are to write guests' RAM.
    fn huge_shared_memory(&mut self, scene: &Scene, gathered: &mut Gathered) -> Option<HugeSharedMemory> {
        let writes = |mover: &Mover| matches!(mover.carrier(), Carrier::Agents { data: AgentData::Rdma(_), .. });
        if !scene.movers.iter().any(writes) {
            return None;
        }
        HugeSharedMemory::ask().unwrap_or_else(|error| {
            self.note(scene, &format!("guests' shared memory has small pages: {error}"), gathered);
            None
        })
    }

    /// Returns how many taps the scene's guests need for pings. None if there are no taps here.
    fn taps(&mut self, scene: &Scene, gathered: &mut Gathered) -> u32 {
        if !scene.ping {
            return 0;
        }
        if let Err(error) = std::fs::File::open(TUN) {
            self.note(scene, &format!("guests are not pinged: {TUN}: {error}"), gathered);
            return 0;
        }
        // The agents' guests have taps of their own.
        let sets = if scene.movers.iter().any(|mover| mover.is_of_agents()) { 2 } else { 1 };
        scene.moves.guests() * sets
    }

    /// Returns the movers of the scene that can run here. `lacks` is why none can, if that is so.
    fn movers_that_run(
        &mut self,
        scene: &Scene,
        site: &Site,
        lacks: Option<String>,
        gathered: &mut Gathered,
    ) -> Vec<Mover> {
        let adjust = &self.options.adjust;
        let qemu = machine::qemu_program(adjust.qemu.as_deref());
        let mut movers = Vec::new();
        for &mover in &scene.movers {
            match lacks.clone().or_else(|| carry::lacks(mover, site, &qemu)) {
                None => movers.push(mover),
                Some(why) => {
                    let skipped = Skipped { stage: scene.name.into(), mover, why };
                    self.tell(&Progress::Skipped(&skipped));
                    gathered.skipped.push(skipped);
                }
            }
        }
        movers
    }

    /// Measures what the links carry. Guests can be moved without that measure, too.
    fn measure_links(&mut self, scene: &Scene, site: &Site, gathered: &mut Gathered) -> Option<Yardstick> {
        let measured = site.with_arp_apart(|| iperf::measure(site, scene.name, self.directory.path()));
        match measured.map_err(iperf::IperfError::from).flatten() {
            Ok(yardstick) => {
                self.tell(&Progress::Yardstick(&yardstick));
                gathered.yardsticks.push(yardstick.clone());
                Some(yardstick)
            }
            Err(error) => {
                self.note(scene, &chain(&error), gathered);
                None
            }
        }
    }

    /// Lets the movers take turns, as many rounds as there are or as fit into the budget.
    fn rounds(
        &mut self,
        built: &mut BuiltScene<'_>,
        household: &mut Household,
        budget: Budget,
        gathered: &mut Gathered,
    ) -> Result<(), BenchError> {
        let rounds = self.round_count();
        let mut longest = Duration::ZERO;
        for round in 1..=rounds {
            if round > 1 && !budget.has(longest) {
                let seconds = QUICK_BUDGET.as_secs();
                let fitted = format!("{} of {rounds} rounds fitted into the {seconds} s of a quick case", round - 1);
                self.note(built.scene, &fitted, gathered);
                break;
            }
            let begun = Instant::now();
            for mover in order(&built.movers, round as usize - 1) {
                self.tell(&Progress::Moving(mover, round, rounds));
                if self.one_run(built, household, mover, round)? {
                    drop(std::mem::take(household));
                    *household = self.boot(built)?;
                }
            }
            for mover in self.leave_out_endless(built) {
                if round < rounds {
                    let words = format!("{mover} did not come to an end {ENDLESS} times: left out");
                    self.note(built.scene, &words, gathered);
                }
            }
            longest = longest.max(begun.elapsed());
        }
        Ok(())
    }

    /// Takes out the movers that never come to an end, except the subject. Returns those.
    fn leave_out_endless(&self, built: &mut BuiltScene<'_>) -> Vec<Mover> {
        let (case, scene) = (built.case, built.scene);
        let endless =
            |mover: Mover| mover != case.subject && is_endless(&self.results.runs, case.name, scene.name, mover);
        built.movers.extract_if(.., |mover| endless(*mover)).collect()
    }

    /// Runs one mover once. Returns `true` if guests were lost and have to be booted again.
    fn one_run(
        &mut self,
        built: &BuiltScene<'_>,
        household: &mut Household,
        mover: Mover,
        round: u32,
    ) -> Result<bool, BenchError> {
        if self.interrupted() {
            return Err(BenchError::Interrupted);
        }
        self.count += 1;
        if built.scene.watch_pages {
            free_memory::gather();
        }
        let setting = Setting {
            case: built.case.name,
            scene: built.scene,
            site: &built.site,
            busy: built.busy.as_ref(),
            yardstick: built.yardstick.as_ref(),
            kit: &self.kit,
            mover,
            round,
            downtime_limit_ms: self.downtime_limit_ms(built.scene),
            commit: &self.results.about.commit,
            directory: &self.directory.path().join(self.count.to_string()),
            interrupt: &self.options.interrupt,
        };
        let tick = &mut |tick: Tick<'_>| (self.tell)(&Progress::Tick(tick), &self.results);
        household.make_way_for(mover, &built.site, &self.kit)?;
        let Outcome { mut runs, mut lost } = setting.run(household, tick)?;
        for (verdict, run) in household.verify(mover).into_iter().zip(&mut runs) {
            match verdict {
                // A corrupt guest would count against every mover that follows.
                Ok(verdict) => lost |= !run.guest_verdict.insert(verdict).ok,
                Err(error) => {
                    lost = true;
                    run.error.get_or_insert_with(|| chain(&error));
                }
            }
        }
        if self.interrupted() {
            return Err(BenchError::Interrupted);
        }
        for mut run in runs {
            self.read_memory_like(&mut run);
            self.results.runs.push(run);
            let run = self.results.runs.last().expect("was pushed");
            (self.tell)(&Progress::Moved(run), &self.results);
        }
        Ok(lost)
    }

    /// Measures how fast memory is that is like the RAM of the run's guest, if it is known what that is like.
    fn read_memory_like(&self, run: &mut Run) {
        let Some(pages) = run.guest_pages else { return };
        let is_same = |r: &&Run| (&r.case, &r.stage, r.mover, r.guest) == (&run.case, &run.stage, run.mover, run.guest);
        let first = self.results.runs.iter().filter(is_same).find_map(|r| r.guest_pages);
        let model = Model {
            started: first.unwrap_or(pages).source,
            moved: pages.target,
            filling: if run.mover.is_of_agents() { Filling::ByAgent } else { Filling::ByOwner },
        };
        match memory_reads::measure(&model) {
            Ok(reads) => run.memory_reads = Some(reads),
            Err(error) => tracing::warn!("reads of memory are not measured: {}", chain(&error)),
        }
    }

    /// Moves the agents' first guest once more, and kills its agent meanwhile.
    fn kill_agent(
        &mut self,
        built: &BuiltScene<'_>,
        household: &mut Household,
        gathered: &mut Gathered,
    ) -> Result<(), BenchError> {
        let BuiltScene { scene, site, .. } = built;
        household.make_way_for(Mover::SkeinAgents, site, &self.kit)?;
        let Some(agents) = &mut household.agents else { return Ok(()) };
        let downtime_limit_ms = self.downtime_limit_ms(scene);
        let mut tell = |note: String| {
            (self.tell)(&Progress::Note(&note), &self.results);
            gathered.notes.push(note);
        };
        tell("An agent is killed while it moves its guest:".into());
        agents.survive_kill(0, (site, &self.kit), downtime_limit_ms, &self.options.interrupt, &mut tell)
    }

    /// Boots the guests of a scene.
    fn boot(&self, built: &BuiltScene<'_>) -> Result<Household, BenchError> {
        let BuiltScene { scene, site, movers, busy, .. } = built;
        if scene.watch_pages {
            free_memory::gather();
        }
        // The image is prepared each time. This is quick if it exists, and it may have been removed since.
        let cache = skein_lab_guest::default_cache();
        let image = Image::prepare(&cache)?;
        let image = if scene.guest.software { image.with_software(&cache)? } else { image };
        let (kit, adjust, interrupt) = (&self.kit, &self.options.adjust, &self.options.interrupt);
        Household::boot(Boot { stage: scene, site, kit, adjust, movers, busy: busy.as_ref(), interrupt }, &image)
    }

    /// Tells a note about a scene, and keeps it for the case's result.
    fn note(&mut self, scene: &Scene, words: &str, gathered: &mut Gathered) {
        let note = in_scene(scene, words);
        self.tell(&Progress::Note(&note));
        gathered.notes.push(note);
    }
}

/// Returns whether a mover has never come to an end in a scene, often enough not to be tried again.
fn is_endless(runs: &[Run], case: &str, stage: &str, mover: Mover) -> bool {
    let mut of = runs.iter().filter(|r| r.case == case && r.stage == stage && r.mover == mover && r.guest == 0);
    of.clone().count() >= ENDLESS && of.all(|r| r.called_off_s.is_some())
}

/// Returns why a scene whose guest has software cannot be run here, or `None` if it can.
fn lacks_software(scene: &Scene) -> Option<String> {
    scene.guest.software.then(|| skein_lab_guest::find_software().err().map(|error| chain(&error)))?
}

/// Returns a note about a scene, with the scene's name if it has one.
fn in_scene(scene: &Scene, words: &str) -> String {
    if scene.name.is_empty() { words.into() } else { format!("stage '{}': {words}", scene.name) }
}

/// Returns the cases of these names, in the order given.
///
/// # Errors
///
/// [`UnknownCase`] for the first name that no case has.
pub fn select(names: &[String]) -> Result<Vec<Case>, UnknownCase> {
    names.iter().map(|name| case::named(name).ok_or_else(|| UnknownCase(name.clone()))).collect()
}

/// A name that no case has.
#[derive(Debug, thiserror::Error)]
#[error("no case is called '{0}'; `skein-lab bench list` tells them")]
pub struct UnknownCase(String);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::run;

    #[test]
    fn a_mover_that_never_ends_is_known_for_it() {
        let ended = run("hot", "", Mover::QemuTcp);
        let endless = Run { error: Some("not done".into()), called_off_s: Some(60.0), ..ended.clone() };
        let failed = Run { error: Some("refused".into()), ..ended.clone() };
        let is =
            |runs: &[&Run]| is_endless(&runs.iter().copied().cloned().collect::<Vec<_>>(), "hot", "", Mover::QemuTcp);
        assert!(is(&[&endless, &endless]));
        assert!(!is(&[&endless]) && !is(&[&endless, &ended, &endless]) && !is(&[&endless, &failed]));
        assert!(!is_endless(&[endless.clone(), endless], "hot", "", Mover::Mptcp));
    }
}
