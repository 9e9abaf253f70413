//! Tests a watchdog that resets its machine: three agents and a controller, of which one agent has the device. Each
//! test runs alone in an emulated machine with a watchdog, and some end with its reset: scripts/watchdog.sh starts them
//! and judges. Elsewhere they do nothing.
// Timeout: 60 s
// Program: skein-controller

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skein_lab_cluster::{Controlled, Settings, Start, until};
use skein_lab_hosts::Cut;

/// The host where the controller runs, beside an agent without a device.
const CONTROLLER_HOST: &str = "a";
/// The host whose agent has the device.
const HOST: &str = "b";
const DEVICE: &str = "/dev/watchdog0";
/// The time for anything that has to happen at all.
const PATIENCE: Duration = Duration::from_secs(300);
/// Longer than a watchdog's timeout: a host that lives on was fed meanwhile.
const OUTLIVES: Duration = Duration::from_secs(12);

struct World {
    cluster: Controlled,
    began: Instant,
    /// How many bytes of the agent's log were shown.
    shown: Cell<usize>,
}

impl World {
    /// Starts the cluster, and waits until the watchdog is armed. `None`: this machine may not be reset.
    fn up() -> Option<World> {
        let identity = fs::read_to_string("/sys/class/watchdog/watchdog0/identity").unwrap_or_default();
        let identity = identity.trim();
        if std::env::var_os("SKEIN_OWN_KERNEL").is_none() || !["i6300ESB timer", "iTCO_wdt"].contains(&identity) {
            println!("skipped: this resets the machine: see scripts/watchdog.sh");
            return None;
        }
        let settings = Settings { hosts: 3, ..Settings::new(env!("CARGO_BIN_EXE_skein").into()) };
        let controller = Path::new(env!("CARGO_BIN_EXE_skein")).with_file_name("skein-controller");
        let mut cluster = Controlled::new(settings, &controller, CONTROLLER_HOST);
        cluster.add_controller(CONTROLLER_HOST, None, &[]);
        cluster.start_agents(CONTROLLER_HOST);
        cluster.cluster.stop(HOST);
        cluster.start_controller(CONTROLLER_HOST);
        cluster.log_in(CONTROLLER_HOST);
        let mut world = World { cluster, began: Instant::now(), shown: Cell::new(0) };
        world.begin_agent();
        world.says("waits until the watchdog is armed");
        world.waits("it is armed", |world| world.armed() == 1);
        world.waits("three hosts report", |world| {
            ["a", "b", "c"].iter().all(|name| world.cluster.host(name)["contact"] == "online")
        });
        let told = world.cluster.host(HOST)["watchdog"].clone();
        world.says(&format!("is armed: {told}"));
        assert_eq!((&told["identity"], &told["resets_within_ms"]), (&identity.into(), &45_346.into()));
        Some(world)
    }

    fn says(&self, what: &str) {
        println!("watchdog: {:.1} s: {what}", self.began.elapsed().as_secs_f64());
    }

    /// Waits for what has to happen. The agent's log is shown meanwhile: after a reset nobody could.
    fn waits(&self, what: &str, is: impl Fn(&World) -> bool) {
        let log = self.cluster.cluster.dir().join(HOST).join("agent.log");
        let show = || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            print!("{}", &text[self.shown.replace(text.len())..]);
        };
        let is = until(PATIENCE, || {
            show();
            is(self)
        });
        assert!(is, "{what}\n{}", self.cluster.cluster.report());
    }

    fn begin_agent(&mut self) {
        let start = Start { args: vec!["--watchdog".into(), DEVICE.into()], ..Start::default() };
        self.cluster.cluster.begin_start(HOST, &start);
    }

    /// Returns how many agents have opened the device.
    fn armed(&self) -> usize {
        let log = fs::read_to_string(self.cluster.cluster.dir().join(HOST).join("agent.log"));
        log.unwrap_or_default().matches(") is armed").count()
    }

    /// Returns how long ago the last report was sent that a leader acknowledged.
    fn last_sent(&self) -> Duration {
        let written = fs::read_to_string(self.cluster.cluster.run_dir(HOST).join("watchdog")).unwrap();
        let sent_ms: u64 = written.split_whitespace().last().unwrap().parse().unwrap();
        boot_time().saturating_sub(Duration::from_millis(sent_ms))
    }

    /// Ends the agent, has the next start so much later, and waits until that has gone on and was acknowledged.
    fn restart(&mut self, kills: bool, pause: Duration) {
        let before = self.armed();
        let asked = Instant::now();
        if kills {
            self.cluster.cluster.kill(HOST);
        } else {
            self.cluster.cluster.stop(HOST);
        }
        let (ended, ended_at) = (Instant::now(), boot_time());
        let sent = self.last_sent();
        let how = if kills { "killed" } else { "stopped" };
        self.says(&format!(
            "{how} in {} ms, {} ms after a report was sent that was acknowledged; the next starts after {} ms",
            (ended - asked).as_millis(),
            sent.as_millis(),
            pause.as_millis(),
        ));
        thread::sleep(pause);
        self.begin_agent();
        self.waits("the next agent has the device", |world| world.armed() > before);
        let opened = ended.elapsed();
        self.waits("the next agent is acknowledged", |world| world.last_sent() + ended_at < boot_time());
        self.says(&format!(
            "{how}: the next agent has the device after {} ms, and is acknowledged after {} ms",
            opened.as_millis(),
            ended.elapsed().as_millis(),
        ));
        thread::sleep(OUTLIVES);
    }
}

/// Returns the time since the machine's start.
fn boot_time() -> Duration {
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    Duration::from_secs_f64(uptime.split_whitespace().next().unwrap().parse().unwrap())
}

/// Says every moment for how long the machine has lived on.
fn lives_on(since: impl Fn() -> Duration) {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        println!("watchdog: lives {} ms", since().as_millis());
        thread::sleep(Duration::from_millis(20));
    }
    panic!("the machine was not reset");
}

#[test]
fn an_agent_that_is_started_again_goes_on_with_the_watchdog() {
    let Some(mut world) = World::up() else { return };
    thread::sleep(OUTLIVES * 2);
    assert!(world.armed() == 1 && world.cluster.cluster.is_up(HOST));
    let definition = world.cluster.cluster.bare("v1");
    world.cluster.cluster.start_vm(HOST, &definition);
    let pauses = [0, 0, 1000, 2000];
    for (kills, pause) in [false, true].iter().flat_map(|kills| pauses.map(|ms| (*kills, Duration::from_millis(ms)))) {
        world.restart(kills, pause);
    }
    assert_eq!(world.cluster.cluster.where_runs("v1"), [HOST]);
    // QEMUs that do not answer hold the next agent up.
    for qemu in world.cluster.cluster.qemus(HOST) {
        kill(Pid::from_raw(qemu.pid as i32), Signal::SIGSTOP).unwrap();
    }
    for kills in [false, true] {
        world.restart(kills, Duration::ZERO);
    }
    world.says("passed");
}

#[test]
fn a_cluster_without_a_controller_resets_no_host() {
    let Some(mut world) = World::up() else { return };
    world.cluster.kill_controller(CONTROLLER_HOST);
    thread::sleep(OUTLIVES * 5);
    world.says("has lived without a controller");
    let without = world.last_sent();
    world.cluster.start_controller(CONTROLLER_HOST);
    world.waits("it is acknowledged again", |world| world.last_sent() < without);
    thread::sleep(OUTLIVES);
    world.says("passed");
}

#[test]
fn a_host_whose_agent_is_killed_is_reset() {
    let Some(mut world) = World::up() else { return };
    world.cluster.cluster.kill(HOST);
    let killed = Instant::now();
    lives_on(|| killed.elapsed());
}

#[test]
fn a_host_that_is_cut_off_is_reset() {
    let Some(world) = World::up() else { return };
    world.cluster.cluster.lab().cut(HOST, 0, Cut::BlackHole).unwrap();
    lives_on(|| world.last_sent());
}
