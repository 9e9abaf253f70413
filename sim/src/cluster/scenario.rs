//! A cluster's run from a seed: what there is, what is wanted, what goes wrong, and what must come of it.

use std::time::Duration;

use skein_handover::{MigrationLimits, Outcome, WaitTimes};

use super::fault::{Fault, Faults};
use super::index::VmIx;
use super::plant::Plant;
use super::qemu::{Qemu, State};
use super::schedule::Do;
use super::session::Wire;
use super::sim_agent::SimHost;
use super::state::Cluster;
use super::stats::Stats;
use super::vm::Vm;
use super::wish::Wish;
use crate::network::PathSpec;
use crate::rng::Rng;
use crate::world::{MS, S, Time};

/// The time after which everything is at rest when all is well.
const REST: Time = 120 * S;

/// The longest time that a NIC is dark when it flaps.
const FLAP: Time = 500 * MS;

/// What the network is like when no fault is at work.
#[derive(Clone, Copy)]
enum Weather {
    /// All paths are up from the start on.
    Calm,
    /// Some paths come up only later.
    Rough,
}

/// How many hosts there are, and how many NICs each has.
#[derive(Clone, Copy)]
struct Size {
    hosts: usize,
    nics: usize,
}

fn wire(rng: &mut Rng, size: Size, weather: Weather) -> Wire {
    let mut wire = Wire { thread_delay: rng.log_between(10e3, 2e6) as Time, ..Wire::default() };
    for a in 0..size.hosts {
        for b in a + 1..size.hosts {
            wire.paths.insert((a, b), (0..size.nics).map(|_| path(rng, weather)).collect());
        }
    }
    wire
}

fn path(rng: &mut Rng, weather: Weather) -> PathSpec {
    let rate = rng.log_between(5e6, 500e6);
    let back = if rng.percent(80) { rate } else { rng.log_between(5e6, 500e6) };
    let latency = rng.log_between(20e3, 10e6) as Time;
    PathSpec {
        rate: [rate, back],
        latency,
        jitter: if rng.percent(50) { latency / 2 } else { 0 },
        queue: rng.log_between(64e3, 1e6).min(rate.min(back) * 0.05) as u64,
        socket: rng.log_between(64e3, 2e6) as u64,
        data_connections: rng.between(1, 3) as usize,
        up_at: match weather {
            Weather::Rough if !rng.percent(90) => rng.below(2 * S),
            Weather::Calm | Weather::Rough => 0,
        },
    }
}

fn limits(rng: &mut Rng) -> MigrationLimits {
    let time = |rng: &mut Rng, low: f64, high: f64| Duration::from_nanos(rng.log_between(low, high) as u64);
    // With the default waits, nothing may have to wait that long to come to rest in time.
    let usual = rng.percent(20);
    MigrationLimits {
        outgoing: rng.between(1, 4) as usize,
        incoming: rng.between(1, 4) as usize,
        waits: if usual {
            WaitTimes { hold: Duration::from_secs(30), ..WaitTimes::default() }
        } else {
            WaitTimes {
                prepare: time(rng, 10e9, 60e9),
                precopy: time(rng, 20e9, 60e9),
                hold: time(rng, 10e9, 40e9),
                switchover: time(rng, 5e9, 20e9),
                abandoned: time(rng, 5e9, 60e9),
                ..WaitTimes::default()
            }
        },
    }
}

/// What people want within the time `span`.
fn wishes(rng: &mut Rng, cluster: &Cluster, span: Time) -> Vec<Wish> {
    let (vms, hosts) = (cluster.vms.len() as u64, cluster.hosts.len() as u64);
    let mut wishes = Vec::new();
    for _ in 0..rng.between(1, 2 + 2 * vms) {
        let mut wish = Wish::new(rng.below(span), rng.below(vms) as usize, rng.below(hosts) as usize);
        wish.priority = rng.below(3) as u8;
        wish.switch_after = rng.percent(30).then(|| {
            let switches = rng.between(u64::from(cluster.calm), 3);
            (0..switches).map(|_| rng.log_between(1e6, 8e9) as Time).collect()
        });
        wish.cancel_after = (!cluster.calm && rng.percent(15)).then(|| rng.log_between(1e6, 5e9) as Time);
        wishes.push(wish);
    }
    wishes
}

/// What goes wrong within the time `span`, and when.
fn faults(rng: &mut Rng, size: Size, kinds: Faults, span: Time) -> Vec<(Time, Fault)> {
    let mut faults = Vec::new();
    for _ in 0..if rng.percent(10) { rng.between(8, 24) } else { rng.between(1, 6) } {
        let longest = if rng.percent(15) { 20 * S } else { 6 * S };
        let fault = Fault::any(rng, size.hosts, size.nics, longest, kinds);
        faults.push((rng.below(span), fault));
    }
    if kinds == Faults::All && rng.percent(8) {
        faults.extend(flapping(rng, size, span));
    }
    faults
}

/// A NIC that flaps, for all the time `span`.
fn flapping(rng: &mut Rng, size: Size, span: Time) -> Vec<(Time, Fault)> {
    let (host, nic, mut at) = (rng.below(size.hosts as u64) as usize, rng.below(size.nics as u64) as usize, 0);
    let mut faults = Vec::new();
    while at < span {
        let lasts = rng.log_between(20e6, FLAP as f64) as Time;
        let after = [rng.below(100 * MS), rng.below(100 * MS)];
        let flap = [
            Fault::Dark { host, nic, lasts },
            Fault::Carrier { host, nic, lasts },
            Fault::Cut { host, nic, after, lasts },
        ];
        faults.push((at, rng.pick(&flap).clone()));
        at += lasts + rng.log_between(20e6, 1e9) as Time;
    }
    faults
}

impl Cluster {
    /// Draws a run. The draws come in one order for ever, or a seed would mean another run.
    pub fn from_seed(seed: u64, plant: Option<Plant>) -> Cluster {
        let mut rng = Rng::new(seed);
        let (calm, kills_only) = match rng.below(100) {
            0..15 => (true, false),
            15..40 => (false, true),
            _ => (false, false),
        };
        let size = Size { hosts: rng.between(2, 6) as usize, nics: rng.between(1, 3) as usize };
        let weather = if calm || kills_only { Weather::Calm } else { Weather::Rough };
        let wire = wire(&mut rng, size, weather);
        let vms = rng.between(1, 4) as usize;
        let hosts = (0..size.hosts).map(|_| SimHost::new(limits(&mut rng))).collect();
        let mut cluster = Cluster::new(Rng::new(seed ^ 0xc1), hosts, wire);
        (cluster.plant, cluster.calm, cluster.kills_only) = (plant, calm, kills_only);
        (0..vms).for_each(|vm| cluster.add_vm(&mut rng, vm));
        // Wishes and faults begin within this time.
        let span = rng.log_between(1e9, 8e9) as Time;
        cluster.wishes = wishes(&mut rng, &cluster, span);
        if !calm {
            let kinds = if kills_only { Faults::KillsOnly } else { Faults::All };
            cluster.faults = faults(&mut rng, size, kinds, span);
        }
        cluster
    }

    /// Adds a VM, which runs in a QEMU of its own number.
    fn add_vm(&mut self, rng: &mut Rng, vm: VmIx) {
        let pages = rng.log_between(4.0, 128.0) as usize;
        let mut qemu = Qemu::new(rng.below(self.hosts.len() as u64) as usize, vm, None, vec![0; pages]);
        qemu.state = State::Running;
        qemu.ran = true;
        self.vms.push(Vm {
            image: qemu.image.clone(),
            version: 0,
            holder: vm,
            lost: false,
            vouched: false,
            stopped_at: None,
            rounds: if !self.calm && rng.percent(4) { u32::MAX } else { rng.between(1, 5) as u32 },
            dirty: rng.below(pages as u64 / 2 + 2),
        });
        self.qemus.push(qemu);
    }

    /// Runs the cluster to the end. The error says what was wrong.
    pub fn play(mut self) -> Result<Stats, String> {
        for host in 0..self.hosts.len() {
            let early = self.rng.below(50 * MS);
            self.after(early, Do::Restart(host));
        }
        for wish in 0..self.wishes.len() {
            self.at(50 * MS + self.wishes[wish].at, Do::Wish(wish));
        }
        for fault in 0..self.faults.len() {
            self.at(50 * MS + self.faults[fault].0, Do::Fault(fault));
        }
        self.after(500 * MS, Do::Operator);
        let last = self.faults.iter().map(|(at, fault)| at + fault.lasts()).max().unwrap_or(0);
        let wanted = self.wishes.iter().map(|wish| wish.at).max().unwrap_or(0);
        let healed_at = last.max(wanted) + 100 * MS;
        self.run(healed_at, |_| false);
        self.healed = true;
        self.come_to_rest();
        if self.failure.is_none() && self.rng.percent(60) {
            self.move_all_once_more();
        }
        self.stats.virtual_ns = self.now;
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(self.stats),
        }
    }

    /// Checks that each guest can be moved as if nothing had been, whatever happened before.
    fn move_all_once_more(&mut self) {
        self.calm = true;
        let first = self.wishes.len();
        for vm in 0..self.vms.len() {
            if !self.vms[vm].lost {
                let from = self.qemus[self.vms[vm].holder].host;
                let hosts = self.hosts.len();
                let to = (from + self.rng.between(1, hosts as u64 - 1) as usize) % hosts;
                self.vms[vm].rounds = self.vms[vm].rounds.min(3);
                self.wishes.push(Wish::new(self.now, vm, to));
                self.after(0, Do::Wish(self.wishes.len() - 1));
            }
        }
        self.come_to_rest();
        for wish in self.wishes.split_off(first) {
            let outcome = wish.id.and_then(|id| self.outcomes.get(&id));
            if self.failure.is_none() && outcome != Some(&Outcome::Moved) {
                self.fail(format!("when all was well again VM {} was not moved: {outcome:?}", wish.vm));
            }
        }
    }

    /// Lets time pass until all is at rest, and checks what must hold then.
    fn come_to_rest(&mut self) {
        let patience = self.now + REST;
        self.run(patience, Cluster::rests);
        if self.failure.is_none() && !self.rests() {
            let unrest = self.unrest();
            self.fail(format!("all was well for {} s and it did not come to rest:\n{unrest}", REST / S));
        }
        if self.failure.is_none() {
            self.check_rest();
        }
    }
}

/// Runs a seed, with panics as failures.
pub fn run(seed: u64, plant: Option<Plant>) -> Result<Stats, String> {
    let run = || {
        let mut cluster = Cluster::from_seed(seed, plant);
        cluster.trace = std::env::var("SKEIN_TRACE").ok();
        cluster.play()
    };
    crate::caught(run)
}

/// Returns how a seed that failed is run again.
pub fn replay(seed: u64) -> String {
    format!("replay: SKEIN_SEED={seed} SKEIN_TRACE=1 cargo test -p skein-sim --test cluster every -- --nocapture")
}
