//! The whole, step by step.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skein_api::cluster::{DrainRequest, Host, MoveState, Operation, OptimizeRequest, Vm};
use skein_client::{ControllerClient, ControllerError};
use skein_placement::dice::Dice;
use skein_units::measured;

use crate::activity::{Activity, Done};
use crate::compare::{oddities, run_twice};
use crate::controller::ControllerProcess;
use crate::error::FleetError;
use crate::latencies::{Gathered, Latencies};
use crate::processes::Processes;
use crate::reads::read_for;
use crate::seen::{Drained, FleetSeen, Recovery, Window};
use crate::settings::FleetSettings;
use crate::subscriber::Subscriber;
use crate::words::host_name;

/// How long a cluster may take until all of its hosts are shown.
const JOINED_WITHIN: Duration = Duration::from_secs(180);
/// How long drains may take, and what else is waited for at the end.
const OVER_WITHIN: Duration = Duration::from_secs(300);
/// How long a controller that was killed is waited for.
const CONSISTENT_WITHIN: Duration = Duration::from_secs(60);
/// How long the system waits before it starts a service that died (`RestartSec` of the controller's unit).
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// How long drains go on before the controller is killed.
const KILL_AFTER: Duration = Duration::from_secs(3);
/// How many subscribers there are.
const SUBSCRIBERS: usize = 5;
/// How long events may be late at the end of a window.
const LATE: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Runs a fleet, and tells what happens. `is_interrupted` is asked between steps.
///
/// # Errors
///
/// The fleet cannot be run, or the controller does not do what it has to before anything can be measured.
pub fn run(
    settings: &FleetSettings,
    tell: &dyn Fn(String),
    is_interrupted: &dyn Fn() -> bool,
) -> Result<FleetSeen, FleetError> {
    let dir = tempfile::tempdir().map_err(FleetError::io("cannot make a directory"))?;
    let mut controller = ControllerProcess::init(&settings.controller, dir.path())?;
    let begun = Instant::now();
    controller.start()?;
    controller.wait_ready()?;
    let processes = Processes::begin(settings, &controller.ca(), controller.address)?;
    let mut course = Course { settings, tell, is_interrupted, seen: FleetSeen::default(), twice: BTreeSet::new() };
    let guests = settings.hosts * settings.guests_per_host;
    (course.seen.hosts, course.seen.guests) = (settings.hosts, guests);
    course.seen.loads = match &settings.planetlab {
        Some(dir) => {
            let days = dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy();
            format!("PlanetLab's traces ({days}), {} times as fast", FleetSettings::SPEED)
        }
        None => format!("drawn from seed {}, as no traces were named", settings.seed),
    };
    let ended = course.go(begun, &mut controller, &processes);
    let mut seen = course.seen;
    seen.ram_max_bytes = controller.ram_max_bytes();
    match ended {
        Ok(()) => Ok(seen),
        Err(error) => {
            tell(format!("the controller's log ends so:\n{}", controller.log_end()));
            Err(error)
        }
    }
}

struct Course<'a> {
    settings: &'a FleetSettings,
    tell: &'a dyn Fn(String),
    is_interrupted: &'a dyn Fn() -> bool,
    seen: FleetSeen,
    /// The guests that ran twice when agents were asked last.
    twice: BTreeSet<String>,
}

impl Course<'_> {
    fn go(
        &mut self,
        begun: Instant,
        controller: &mut ControllerProcess,
        processes: &Processes,
    ) -> Result<(), FleetError> {
        let client = controller.client()?;
        self.join(begun, &client, controller, processes)?;
        self.windows(controller, processes)?;
        self.settle(&client, processes, "after usual life")?;
        self.optimize(&client)?;
        let hosts = self.drained_hosts(0);
        self.drain(&client, &hosts)?;
        self.survive(controller, processes)?;
        self.seen.odd_at_end = self.settle(&client, processes, "at the end")?;
        Ok(())
    }

    fn check_interrupt(&self) -> Result<(), FleetError> {
        if (self.is_interrupted)() { Err(FleetError::Interrupted) } else { Ok(()) }
    }

    /// Waits until the controller shows all hosts and guests.
    fn join(
        &mut self,
        begun: Instant,
        client: &ControllerClient,
        controller: &ControllerProcess,
        processes: &Processes,
    ) -> Result<(), FleetError> {
        loop {
            self.check_interrupt()?;
            let status = client.cluster()?;
            if status.hosts.online == self.seen.hosts && status.vms.running == self.seen.guests {
                break;
            }
            if begun.elapsed() > JOINED_WITHIN {
                let (hosts, vms) = (status.hosts, status.vms);
                return Err(FleetError::Late(format!("not all hosts are shown in time: {hosts:?} {vms:?}")));
            }
            thread::sleep(LOOK_EVERY);
        }
        self.seen.joined_s = begun.elapsed().as_secs_f64();
        let look = processes.look()?;
        let (hosts, vms) = shown(client)?;
        let odd = oddities(&hosts, &vms, &look, &processes.look()?);
        (self.tell)(format!(
            "{} hosts with {} guests are shown after {}; {} of CPU so far, {}; {} odd",
            hosts.len(),
            vms.len(),
            measured::seconds(self.seen.joined_s),
            measured::seconds(controller.cpu_s()?),
            measured::bytes(controller.ram_max_bytes() as f64),
            odd.len()
        ));
        Ok(())
    }

    /// Measures usual life, window by window.
    fn windows(&mut self, controller: &ControllerProcess, processes: &Processes) -> Result<(), FleetError> {
        let subscribers = (0..SUBSCRIBERS).map(|_| Ok(Subscriber::begin(controller.client()?)));
        let subscribers: Vec<Subscriber> = subscribers.collect::<Result<_, FleetError>>()?;
        let dice = Mutex::new(Dice::new(self.settings.seed));
        let (hosts, marks, done) = (self.settings.hosts, 1.into(), Done::default());
        let activity = Activity { processes, controller, hosts, dice, marks, done };
        // What begins is not what is measured.
        thread::sleep(LATE);
        for number in 1..=self.settings.windows {
            self.check_interrupt()?;
            let window = self.window(&activity, &subscribers, u64::from(number))?;
            (self.tell)(words(number, &window));
            self.seen.windows.push(window);
        }
        let count = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
        (self.tell)(format!(
            "meanwhile: {} faults, {} migrations, {} starts and stops were asked for, of which {} were refused",
            count(&activity.done.faults),
            count(&activity.done.migrations),
            count(&activity.done.starts_and_stops),
            count(&activity.done.refused)
        ));
        Ok(())
    }

    fn window(
        &mut self,
        activity: &Activity<'_>,
        subscribers: &[Subscriber],
        number: u64,
    ) -> Result<Window, FleetError> {
        let (lasts, seed) = (self.settings.window, self.settings.seed ^ number << 32);
        let sizes = (self.seen.hosts, self.seen.guests);
        // What was heard before is not this window's.
        subscribers.iter().for_each(|of| drop(of.take(0..0)));
        let first = activity.marks.load(Ordering::Relaxed);
        let (controller, processes) = (activity.controller, activity.processes);
        let before = (Instant::now(), controller.cpu_s()?, processes.look()?);
        let took = thread::scope(|scope| {
            let reading = scope.spawn(|| read_for(lasts, controller, seed, sizes));
            activity.go_on(lasts)?;
            reading.join().unwrap_or_else(|_| Err(FleetError::Late("a caller failed".into())))
        })?;
        let after = (before.0.elapsed().as_secs_f64(), controller.cpu_s()?, processes.look()?);
        thread::sleep(LATE);
        let (mut events, mut events_missed, mut reads) = (Gathered::default(), 0, Gathered::default());
        let last = activity.marks.load(Ordering::Relaxed);
        for subscriber in subscribers {
            let (took, missed) = subscriber.take(first..last);
            events.add_all(&took);
            events_missed += missed;
        }
        took.values().for_each(|took| reads.add_all(took));
        let slowest = took.iter().map(|(kind, took)| (kind.words(), took.latencies().p99_ms));
        let slowest = slowest.max_by(|a, b| a.1.total_cmp(&b.1));
        Ok(Window {
            cores: (after.1 - before.1) / after.0,
            reports_per_s: (after.2.reports - before.2.reports) as f64 / after.0,
            reads: reads.latencies(),
            events: events.latencies(),
            events_missed,
            load_average: load_average(),
            slowest: slowest.map_or_else(String::new, |(words, ms)| format!("{words} {}", measured::millis(ms))),
        })
    }

    /// Waits until nothing is under way and the controller shows what agents know. Returns what is odd then.
    fn settle(
        &mut self,
        client: &ControllerClient,
        processes: &Processes,
        when: &str,
    ) -> Result<Vec<String>, FleetError> {
        let end = Instant::now() + OVER_WITHIN;
        loop {
            self.check_interrupt()?;
            let (before, status) = (processes.look()?, client.cluster()?);
            let (hosts, vms) = shown(client)?;
            let after = processes.look()?;
            let twice = run_twice(&before);
            let lasting = twice.intersection(&self.twice).filter(|vm| !self.seen.ran_twice.contains(vm));
            let lasting: Vec<String> = lasting.cloned().collect();
            self.seen.ran_twice.extend(lasting);
            self.twice = twice;
            let all_there = after.hosts.values().all(|known| known.is_there);
            let odd = oddities(&hosts, &vms, &before, &after);
            let is_over = status.operations_running == 0 && all_there && odd.is_empty();
            if is_over || Instant::now() > end {
                let running = status.operations_running;
                (self.tell)(format!("{when}: {running} operations are under way, {} odd", odd.len()));
                return Ok(odd);
            }
            thread::sleep(LOOK_EVERY * 5);
        }
    }

    /// Asks what a round of optimisation would do.
    fn optimize(&mut self, client: &ControllerClient) -> Result<(), FleetError> {
        let begun = Instant::now();
        match client.optimize(&OptimizeRequest { apply: false, aggressiveness: None }) {
            Ok(operation) => {
                let (took_s, moves) = (begun.elapsed().as_secs_f64(), operation.moves.len());
                (self.tell)(format!("a round of optimisation with {moves} moves is said after {took_s:.1} s"));
                self.seen.optimized = Some((took_s, moves));
            }
            Err(ControllerError::Refused(problem)) => {
                let took = measured::seconds(begun.elapsed().as_secs_f64());
                (self.tell)(format!("optimisation is refused after {took}: {}", problem.detail));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Returns the hosts that are drained in a round.
    fn drained_hosts(&self, round: u32) -> Vec<String> {
        let each = self.settings.hosts / (2 * self.settings.drains).max(1);
        let number = |n: u32| (round * self.settings.drains + n) * each.max(1) % self.settings.hosts + 1;
        (0..self.settings.drains).map(|n| host_name(number(n))).collect()
    }

    /// Empties hosts, all at a time.
    fn drain(&mut self, client: &ControllerClient, hosts: &[String]) -> Result<(), FleetError> {
        let begun = Instant::now();
        let ids = begin_drains(client, hosts)?;
        let mut drained: Vec<Drained> =
            ids.iter().map(|(_, answered_s)| Drained { answered_s: *answered_s, ..Drained::default() }).collect();
        while drained.iter().any(|of| of.over_s.is_none()) && begun.elapsed() < OVER_WITHIN {
            self.check_interrupt()?;
            for ((id, _), of) in ids.iter().zip(&mut drained).filter(|(_, of)| of.over_s.is_none()) {
                let operation = client.operation(id)?;
                let at_s = begun.elapsed().as_secs_f64();
                if of.planned_s.is_none() && has_begun(&operation) {
                    of.planned_s = Some(at_s);
                }
                if operation.state.is_over() {
                    of.over_s = Some(at_s);
                }
            }
            thread::sleep(LOOK_EVERY);
        }
        for (host, of) in hosts.iter().zip(&mut drained) {
            of.is_empty = client.host(host)?.vms_running == 0;
        }
        let most = |of: &dyn Fn(&Drained) -> Option<f64>| {
            let all: Option<Vec<f64>> = drained.iter().map(of).collect();
            let most = all.map(|all| all.into_iter().fold(0.0, f64::max));
            most.map_or_else(|| "never".to_owned(), measured::seconds)
        };
        (self.tell)(format!(
            "{} drains at once: answered after {} at most, the last planned after {}, over after {}; {} hosts empty",
            hosts.len(),
            most(&|of| Some(of.answered_s)),
            most(&|of| of.planned_s),
            most(&|of| of.over_s),
            drained.iter().filter(|of| of.is_empty).count()
        ));
        self.seen.drains = drained;
        Ok(())
    }

    /// Kills the controller amid drains, has it started again as systemd does, and sees what it knows.
    fn survive(&mut self, controller: &mut ControllerProcess, processes: &Processes) -> Result<(), FleetError> {
        let hosts = self.drained_hosts(1);
        let client = controller.client()?;
        let ids = begin_drains(&client, &hosts)?;
        let begun = Instant::now();
        let is_amid = || -> Result<bool, FleetError> {
            let all = ids.iter().map(|(id, _)| client.operation(id)).collect::<Result<Vec<_>, _>>()?;
            Ok(all.iter().any(|of| of.moves.iter().any(|of| of.state == MoveState::Begun)))
        };
        while begun.elapsed() < KILL_AFTER || (!is_amid()? && begun.elapsed() < OVER_WITHIN) {
            thread::sleep(LOOK_EVERY);
        }
        let before = open_operations(&client)?;
        controller.kill()?;
        let killed = Instant::now();
        thread::sleep(RESTART_AFTER);
        controller.start()?;
        let mut recovery = Recovery { under_way: before.len(), ..Recovery::default() };
        while killed.elapsed() < CONSISTENT_WITHIN {
            self.check_interrupt()?;
            match self.odd_now(&client, processes) {
                Ok(odd) if odd.is_empty() => {
                    recovery.consistent_s = Some(killed.elapsed().as_secs_f64());
                    break;
                }
                Ok(odd) => recovery.last_odd = format!("{} odd, as: {}", odd.len(), odd[0]),
                Err(FleetError::Asked(error)) => recovery.last_odd = error.to_string(),
                Err(error) => return Err(error),
            }
            thread::sleep(LOOK_EVERY / 2);
        }
        self.follow(&client, &before, &mut recovery)?;
        let consistent = recovery.consistent_s.map_or_else(|| "never".to_owned(), measured::seconds);
        (self.tell)(format!(
            "killed amid {} operations: consistent after {consistent} (before: {}); {} of them came to an end, {} \
             forgotten",
            recovery.under_way,
            recovery.last_odd,
            recovery.ended,
            recovery.forgotten.len()
        ));
        self.seen.recovery = Some(recovery);
        Ok(())
    }

    fn odd_now(&self, client: &ControllerClient, processes: &Processes) -> Result<Vec<String>, FleetError> {
        let before = processes.look()?;
        let (hosts, vms) = shown(client)?;
        Ok(oddities(&hosts, &vms, &before, &processes.look()?))
    }

    /// Sees that the operations of before go on, and come to an end.
    fn follow(
        &self,
        client: &ControllerClient,
        before: &[Operation],
        recovery: &mut Recovery,
    ) -> Result<(), FleetError> {
        let end = Instant::now() + OVER_WITHIN;
        for operation in before {
            loop {
                self.check_interrupt()?;
                match client.operation(&operation.id) {
                    Ok(now) => {
                        recovery.forgotten.extend(forgotten(operation, &now));
                        if now.state.is_over() {
                            recovery.ended += 1;
                            break;
                        }
                    }
                    Err(error) if error.status() == Some(404) => {
                        recovery.forgotten.push(format!("operation {}", operation.id));
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
                if Instant::now() > end {
                    break;
                }
                thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }
}

/// Returns what an operation has forgotten that it had: moves that were made or begun. What was only planned may be
/// planned otherwise.
fn forgotten(before: &Operation, now: &Operation) -> Option<String> {
    let mut begun = before.moves.iter().enumerate().filter(|(_, of)| of.attempts > 0);
    let kept = begun.all(|(index, of)| {
        let now = now.moves.get(index);
        now.is_some_and(|now| now.vm == of.vm && (of.state != MoveState::Done || now.state == MoveState::Done))
    });
    (!kept || now.kind != before.kind).then(|| format!("moves of operation {}", before.id))
}

fn has_begun(operation: &Operation) -> bool {
    operation.state.is_over() || operation.moves.iter().any(|of| of.begun.is_some())
}

/// Has hosts emptied. Returns the operations, and how long each took to be answered.
fn begin_drains(client: &ControllerClient, hosts: &[String]) -> Result<Vec<(String, f64)>, FleetError> {
    let each = hosts.iter().map(|host| {
        let begun = Instant::now();
        let operation = client.drain(host, &DrainRequest::default())?;
        Ok((operation.id, begun.elapsed().as_secs_f64()))
    });
    each.collect()
}

fn open_operations(client: &ControllerClient) -> Result<Vec<Operation>, FleetError> {
    let all = client.operations(500).take(500).collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().filter(|of| !of.state.is_over()).collect())
}

fn shown(client: &ControllerClient) -> Result<(Vec<Host>, Vec<Vm>), FleetError> {
    Ok((client.hosts().collect::<Result<_, _>>()?, client.vms(None).collect::<Result<_, _>>()?))
}

/// Returns how many processes have wanted to run over the last minute.
fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

fn words(number: u32, window: &Window) -> String {
    let of = |of: &Latencies| {
        let [p50, p99, max] = [of.p50_ms, of.p99_ms, of.max_ms].map(measured::millis);
        format!("{} p50 {p50} p99 {p99} longest {max}", of.count)
    };
    format!(
        "window {number}: {:.2} cores, {:.0} reports/s; reads {} (slowest: {}); events {}, {} missed; load average \
         {:.1}",
        window.cores,
        window.reports_per_s,
        of(&window.reads),
        window.slowest,
        of(&window.events),
        window.events_missed,
        window.load_average
    )
}

#[cfg(test)]
mod tests {
    use skein_api::cluster::{Move, OperationKind, OperationState, Progress, UnixMs};

    use super::*;

    fn operation(moves: Vec<Move>) -> Operation {
        Operation {
            id: "1".into(),
            kind: OperationKind::Drain { host: "h".into(), deadline: None, evacuate: false, follows: None },
            state: OperationState::Running,
            by: "admin".into(),
            created: UnixMs(0),
            ended: None,
            cancelled: false,
            message: String::new(),
            moves,
            fencing: None,
            power: None,
            update: None,
            progress: Progress::default(),
            version: 1,
        }
    }

    #[test]
    fn what_an_operation_forgets_is_seen() {
        let of = |vm: &str, state| Move { state, attempts: 1, ..Move::new(vm, "h", Some("i"), "") };
        let planned = Move::new("c", "h", Some("i"), "");
        let before = operation(vec![of("a", MoveState::Done), of("b", MoveState::Begun), planned]);
        let more = vec![of("a", MoveState::Done), of("b", MoveState::Left), of("b", MoveState::Waiting)];
        assert_eq!(forgotten(&before, &operation(more)), None);
        assert!(forgotten(&before, &operation(vec![of("a", MoveState::Done)])).is_some());
        let undone = vec![of("a", MoveState::Waiting), of("b", MoveState::Begun)];
        assert!(forgotten(&before, &operation(undone)).is_some());
    }

    #[test]
    fn each_round_drains_other_hosts() {
        let settings = FleetSettings::new("c".into(), vec!["a".into()]);
        for settings in [settings.clone(), settings.quick()] {
            let course = Course {
                settings: &settings,
                tell: &|_| {},
                is_interrupted: &|| false,
                seen: FleetSeen::default(),
                twice: BTreeSet::new(),
            };
            let all: BTreeSet<String> = [0, 1].into_iter().flat_map(|round| course.drained_hosts(round)).collect();
            assert_eq!(all.len(), 2 * settings.drains as usize);
        }
    }
}
