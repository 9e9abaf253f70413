//! The kill matrix: at every step of a migration, the agent of the source, of the target, both, or a QEMU is killed.
//! Two guests never run, and within five seconds the agents agree where the guest runs, by themselves. Needs root.
//!
//! `SKEIN_KILL=WORDS` runs only the cases whose name (`source-before-write-grant target-agent`) has all the words.
// Timeout: 1200 s
#![cfg(feature = "fault-points")]

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use skein_api::{MigrateOptions, MigrationId, MigrationPhase, Outcome, Reply, Request, SourcePhase, VmState};
use skein_lab_cluster::{Cluster, Settings, Start, until};
use skein_lab_guest::Params;

const VM: &str = "v";
/// The time within which a case has to be resolved …
const RESOLVED_WITHIN: Duration = Duration::from_secs(5);
/// … where no more processes than this wait for each core. Where more do, the time is [`PATIENCE`].
const LOAD_MAX: f64 = 4.0;
/// How long a case is observed, to tell how late it is.
const PATIENCE: Duration = Duration::from_secs(15);
/// How many times a step that may not come is waited for.
const TRIES: u32 = 6;
/// A step that has not come by then is not taken.
const STEP_TIME: Duration = Duration::from_secs(20);
/// The same for a step that may come only after the outcome is certain.
const SOON: Duration = Duration::from_secs(1);
/// How many migrations run at once, each with hosts of its own. Most of a case is waiting.
const WORKERS: usize = 2;
/// The time for an action's message, and its order to QEMU, to get on their way.
const AFTER: Duration = Duration::from_millis(20);
/// The time until an agent that was killed is started again.
const RESTART: Duration = Duration::from_millis(200);
/// In Mbit/s. A guest whose migration is called off writes 250 Mb/s, and would be copied for ever at this rate.
const SLOW_MBIT: u32 = 50;

/// The steps of a migration that succeeds.
const STEPS: [&str; 21] = [
    "source write-begin",
    "source send-prepare",
    "target write-begin",
    "target send-preparing",
    "target order-start",
    "target send-ready",
    "source order-migrate",
    "source order-continue",
    "target send-completed",
    "source write-grant",
    "source send-grant",
    "target write-run",
    "target send-run",
    "target order-continue",
    "target send-running",
    "source write-release",
    "source order-quit",
    "source send-settle",
    "target write-settled",
    "target send-settled",
    "source write-settled",
];
/// The steps of a migration that is called off.
const ABORT_STEPS: [&str; 10] = [
    "source order-cancel",
    "source send-abort",
    "target order-kill",
    "target send-refusing",
    "target write-refused",
    "target send-refused",
    "source write-keep",
    "source send-settle",
    "target write-settled",
    "source write-settled",
];
/// The steps at which the target has all of the guest: if the source's QEMU is killed, the guest goes on there.
const TARGET_HAS_IT: [&str; 12] = [
    "source write-grant",
    "source send-grant",
    "target write-run",
    "target send-run",
    "target order-continue",
    "target send-running",
    "source write-release",
    "source order-quit",
    "source send-settle",
    "target write-settled",
    "target send-settled",
    "source write-settled",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    SourceAgent,
    TargetAgent,
    BothAgents,
    SourceQemu,
    TargetQemu,
}

use Victim::{BothAgents, SourceAgent, SourceQemu, TargetAgent, TargetQemu};

const VICTIMS: [(Victim, &str); 5] = [
    (SourceAgent, "source-agent"),
    (TargetAgent, "target-agent"),
    (BothAgents, "both-agents"),
    (SourceQemu, "source-qemu"),
    (TargetQemu, "target-qemu"),
];

/// The outcome of a case.
#[derive(Clone, Debug)]
enum Became {
    /// The migration was over without this step: a target's QEMU that ends by itself, as its source is gone, needs no
    /// kill.
    Passed,
    /// There was no process to kill.
    Nobody,
    Resolved {
        guest: Outcome,
        after: Duration,
        clean_after: Duration,
    },
    Failed(String),
}

fn busy() -> Params {
    Params { fill_mb: 16, rewrite_mb: 16, rate: 8000, ..Params::default() }
}

struct World {
    cluster: Cluster,
    /// The host where the guest is.
    at: String,
    /// Whether the guest writes.
    is_busy: bool,
}

impl World {
    fn new(program: &Path, is_busy: bool) -> World {
        let cluster = Cluster::up(Settings::new(program.to_owned()));
        let mut world = World { cluster, at: "a".into(), is_busy };
        world.boot();
        world
    }

    fn boot(&mut self) {
        let definition = if self.is_busy { self.cluster.working(VM, &busy()) } else { self.cluster.bare(VM) };
        self.cluster.start_vm("a", &definition);
        if self.is_busy {
            self.cluster.wait_working(VM);
        }
        self.at = "a".into();
    }

    fn other(&self) -> String {
        if self.at == "a" { "b".into() } else { "a".into() }
    }

    fn fault_file(&self) -> PathBuf {
        self.cluster.dir().join("fault")
    }

    fn case(&mut self, step: &str, moment: &str, victim: Victim, call_off: bool) -> Became {
        let (source, target) = (self.at.clone(), self.other());
        let (side, action) = step.split_once(' ').unwrap();
        let label = format!("{side}-{moment}-{action}");
        let halted = if side == "source" { &source } else { &target };
        let file = self.fault_file();
        let env = [("SKEIN_FAULT_POINT", label.clone()), ("SKEIN_FAULT_FILE", file.display().to_string())];
        let env = env.map(|(name, value)| (name.to_owned(), value)).to_vec();
        self.cluster.stop(halted);
        self.cluster.start_as(halted, &Start { env, ..Start::default() });
        let cluster = &mut self.cluster;

        let slow = |cluster: &Cluster, rate| cluster.lab().rate("a", 0, rate).unwrap();
        let client = cluster.client(&source);
        let id = if call_off {
            slow(cluster, Some(SLOW_MBIT));
            // Without a deadline the migration would be called off by itself.
            let options = MigrateOptions { deadline_s: Some(600), ..MigrateOptions::default() };
            let id = cluster.begin(VM, &source, &target, options).id;
            let copies = || {
                let now = cluster.migration(&source, id);
                now.stage == Some(MigrationPhase::Source(SourcePhase::Precopy)) && now.copy.is_some()
            };
            cluster.wait(STEP_TIME, "it copies", copies);
            // The answer waits for the owner, which may be halted.
            thread::spawn(move || {
                let _ = client.call(&Request::MigrationCancel { id: id.to_string() }, STEP_TIME);
            });
            id
        } else {
            cluster.begin(VM, &source, &target, MigrateOptions::default()).id
        };
        let is_over = || {
            let now = cluster.migration(&source, id);
            now.outcome.is_some() && (!call_off || now.stage.is_none())
        };
        if !until(STEP_TIME, || file.exists() || is_over()) || !until(SOON, || file.exists()) {
            let how = cluster.migration(&source, id).outcome;
            if !call_off || how != Some(Outcome::CalledOff) {
                return Became::Failed(format!("the step was never taken, and it is {how:?}"));
            }
            slow(cluster, None);
            self.settle_down();
            return Became::Passed;
        }
        if moment == "after" {
            thread::sleep(AFTER);
        }
        if call_off {
            slow(cluster, None);
        }

        let begin = Instant::now();
        let mut killed = Vec::new();
        match victim {
            SourceAgent => killed.push(source.clone()),
            TargetAgent => killed.push(target.clone()),
            BothAgents => killed.extend([source.clone(), target.clone()]),
            SourceQemu | TargetQemu => {
                let host = if victim == SourceQemu { &source } else { &target };
                if !cluster.kill_qemu(VM, host) {
                    fs::remove_file(&file).unwrap();
                    self.settle_down();
                    return Became::Nobody;
                }
            }
        }
        for host in &killed {
            cluster.kill(host);
        }
        let _ = fs::remove_file(&file);
        if !killed.is_empty() {
            thread::sleep((begin + RESTART).saturating_duration_since(Instant::now()));
        }
        for host in &killed {
            cluster.begin_start(host, &Start::default());
        }
        for host in &killed {
            cluster.wait_ready(host);
        }

        let mut state = String::new();
        let is_resolved = || {
            let found = resolved(cluster, id, &source, &target);
            state = found.clone().err().unwrap_or_default();
            found.is_ok()
        };
        if !until(PATIENCE, is_resolved) {
            return Became::Failed(format!("not resolved: {state}"));
        }
        let after = begin.elapsed();
        let mut left = Vec::new();
        let is_clean = || {
            left = cluster.leftovers();
            left.is_empty()
        };
        if !until(PATIENCE, is_clean) {
            return Became::Failed(format!("left over: {left:#?}"));
        }
        let clean_after = begin.elapsed();
        cluster.check();
        if clean_after > if is_busy() { PATIENCE } else { RESOLVED_WITHIN } {
            return Became::Failed(format!(
                "resolved after {} ms, clean after {}",
                after.as_millis(),
                clean_after.as_millis()
            ));
        }
        let guest = match resolved(cluster, id, &source, &target) {
            Ok(Some(host)) if host == source => Outcome::CalledOff,
            Ok(Some(_)) => Outcome::Moved,
            Ok(None) => Outcome::Ended,
            Err(state) => return Became::Failed(format!("resolved, and then not any more: {state}")),
        };
        let runs = cluster.witness().runs(VM);
        let ran_last = runs.last().expect("it ran").host.clone();
        let had_it = match victim {
            SourceQemu => ran_last == source && (call_off || !TARGET_HAS_IT.contains(&step)),
            TargetQemu => ran_last == target,
            _ => false,
        };
        match guest {
            Outcome::Ended if !had_it => {
                return Became::Failed(format!("it runs nowhere, and the QEMU that had it was not killed: {runs:?}"));
            }
            Outcome::Moved if call_off => return Became::Failed("called off, and moved".into()),
            _ => {}
        }
        self.settle_down();
        Became::Resolved { guest, after, clean_after }
    }

    /// Moves the guest once more, or starts it if it runs nowhere.
    fn settle_down(&mut self) {
        let cluster = &self.cluster;
        cluster.wait_clean(PATIENCE);
        match &cluster.where_runs(VM)[..] {
            [] => {
                for host in cluster.hosts() {
                    if cluster.vms(&host).iter().any(|vm| vm.name == VM) {
                        cluster.asked(&host, &Request::VmForget { name: VM.into() });
                    }
                }
                self.boot();
            }
            [host] => {
                let to = if host == "a" { "b" } else { "a" };
                cluster.moved(VM, host, to);
                self.at = to.into();
            }
            more => panic!("it runs on {more:?}"),
        }
        let cluster = &self.cluster;
        cluster.wait(STEP_TIME, "it runs where it is", || cluster.where_runs(VM) == [self.at.as_str()]);
        cluster.wait_clean(PATIENCE);
        if self.is_busy {
            cluster.verify(VM);
        }
    }
}

/// Returns the host where the guest runs, or `None`, if both agents say so.
///
/// # Errors
///
/// Why that is not certain yet.
fn resolved(cluster: &Cluster, id: MigrationId, source: &str, target: &str) -> Result<Option<String>, String> {
    // On a busy machine an agent that has resolved all may still take a while to say so.
    let soon = Duration::from_secs(10);
    let mut known = BTreeMap::new();
    let mut outcomes = Vec::new();
    for host in [source, target] {
        let client = cluster.client(host);
        let migrations = match client.call(&Request::MigrationList, soon) {
            Ok(Reply::Migrations { migrations }) => migrations,
            other => return Err(format!("{host}: {other:?}")),
        };
        for one in &migrations {
            if one.outcome.is_none() || one.in_doubt {
                return Err(format!("{host}: {} is {:?}, in doubt {}", one.id, one.stage, one.in_doubt));
            }
        }
        outcomes.extend(migrations.iter().find(|one| one.id == id).and_then(|one| one.outcome));
        match client.call(&Request::VmList, soon) {
            Ok(Reply::Vms { vms }) => known.extend(vms.into_iter().map(|vm| (host.to_owned(), vm))),
            other => return Err(format!("{host}: {other:?}")),
        }
    }
    // Only the source knows that a guest ended; for the target the guest did not come. So other outcomes may differ.
    if let [one, other] = outcomes[..]
        && (one == Outcome::Moved) != (other == Outcome::Moved)
    {
        return Err(format!("the source says {one:?}, the target {other:?}"));
    }
    let running: Vec<&String> =
        known.iter().filter(|(_, vm)| vm.state == VmState::Running).map(|(host, _)| host).collect();
    let by_qemu = cluster.where_runs(VM);
    match (&running[..], &by_qemu[..]) {
        ([], []) if known.values().all(|vm| vm.state == VmState::Stopped) => Ok(None),
        ([agent], [qemu]) if *agent == qemu && known.len() == 1 => Ok(Some(qemu.clone())),
        _ => {
            let known: Vec<_> = known.iter().map(|(host, vm)| (host, vm.state, &vm.note, vm.migration)).collect();
            Err(format!("the agents have {known:?}, it runs on {by_qemu:?}"))
        }
    }
}

/// A row of the table: a step, before or after which there is a kill.
#[derive(Clone, Copy)]
struct Row {
    step: &'static str,
    moment: &'static str,
    call_off: bool,
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let (side, action) = self.step.split_once(' ').expect("a side and an action");
        write!(f, "{side}-{}-{action}{}", self.moment, if self.call_off { " (called off)" } else { "" })
    }
}

/// The outcomes, by row and victim.
type Found = BTreeMap<(usize, Victim), Became>;

/// Works on row after row, until there are none left.
fn work(program: &Path, rows: &[Row], next: &AtomicUsize, words: &[String], found: &Mutex<Found>) {
    let mut world: Option<World> = None;
    loop {
        let number = next.fetch_add(1, Ordering::SeqCst);
        let Some(row) = rows.get(number) else { return };
        for (victim, name) in VICTIMS {
            let case = format!("{row} {name}");
            if !words.iter().all(|word| case.contains(word.as_str())) {
                continue;
            }
            let as_before = world.take().filter(|world| world.is_busy == row.call_off);
            let mut own = as_before.unwrap_or_else(|| World::new(program, row.call_off));
            let tries = || {
                let mut tries = (0..TRIES).map(|_| own.case(row.step, row.moment, victim, row.call_off));
                let taken = tries.find(|became| !matches!(became, Became::Passed));
                taken.unwrap_or_else(|| Became::Failed(format!("the step was not taken in {TRIES} tries")))
            };
            let became = catch_unwind(AssertUnwindSafe(tries));
            let became = became.unwrap_or_else(|panic| {
                let said = panic.downcast_ref::<String>().cloned();
                let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
                Became::Failed(said.unwrap_or_default())
            });
            if let Became::Failed(why) = &became {
                eprintln!("FAILED {case}: {why}\n{}", own.cluster.report());
            } else {
                world = Some(own);
            }
            found.lock().unwrap().insert((number, victim), became);
        }
    }
}

/// Returns whether this machine has so much to run that what takes a second elsewhere may take several.
fn is_busy() -> bool {
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    let load: f64 = load.split(' ').next().and_then(|load| load.parse().ok()).expect("a load average");
    load > LOAD_MAX * thread::available_parallelism().map_or(1, NonZero::get) as f64
}

#[test]
fn whoever_is_killed_wherever_one_guest_runs() {
    let words = std::env::var("SKEIN_KILL").unwrap_or_default();
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let steps = STEPS.iter().map(|step| (*step, false)).chain(ABORT_STEPS.iter().map(|step| (*step, true)));
    let rows: Vec<Row> =
        steps.flat_map(|(step, call_off)| ["before", "after"].map(|moment| Row { step, moment, call_off })).collect();
    // A program that is built meanwhile may lack the feature, so a copy is used.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("skein");
    fs::copy(env!("CARGO_BIN_EXE_skein"), &program).unwrap();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Found::new()));
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| work(&program, &rows, &next, &words, &found));
        }
    });
    let found = found.into_inner().unwrap();

    println!("ms until it was resolved; m: moved, k: kept, e: ended with its QEMU, -: there was no such QEMU");
    println!("{:44}{}", "", VICTIMS.map(|(_, name)| format!("{name:>14}")).concat());
    for (number, row) in rows.iter().enumerate() {
        let cells = VICTIMS.map(|(victim, _)| match found.get(&(number, victim)) {
            None | Some(Became::Passed) => String::new(),
            Some(Became::Nobody) => "-".into(),
            Some(Became::Failed(_)) => "FAILED".into(),
            Some(Became::Resolved { guest, after, .. }) => {
                let letter = match guest {
                    Outcome::Moved => "m",
                    Outcome::CalledOff => "k",
                    Outcome::Ended => "e",
                };
                format!("{letter} {}", after.as_millis())
            }
        });
        if cells.iter().any(|cell| !cell.is_empty()) {
            println!("{:44}{}", row.to_string(), cells.map(|cell| format!("{cell:>14}")).concat());
        }
    }
    let times = found.values().filter_map(|became| match became {
        Became::Resolved { after, clean_after, .. } => Some((*after, *clean_after)),
        _ => None,
    });
    let (mut resolved, mut clean): (Vec<_>, Vec<_>) = times.unzip();
    println!(
        "{} cases of {} resolved",
        resolved.len(),
        found.values().filter(|b| !matches!(b, Became::Nobody)).count()
    );
    println!("resolved: {}", distribution(&mut resolved));
    println!("and nothing left over: {}", distribution(&mut clean));
    let failures = found.iter().filter_map(|((number, victim), became)| match became {
        Became::Failed(why) => Some(format!("{} {victim:?}: {why:.600}", rows[*number])),
        _ => None,
    });
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
    assert!(!resolved.is_empty(), "no case has these words");
}

fn distribution(times: &mut [Duration]) -> String {
    times.sort();
    let Some(last) = times.len().checked_sub(1) else { return "-".into() };
    let at = |share: f64| times[(last as f64 * share) as usize].as_millis();
    format!("median {} ms, 90 % {} ms, 99 % {} ms, longest {} ms", at(0.5), at(0.9), at(0.99), at(1.0))
}
