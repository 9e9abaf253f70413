//! A cluster's run from a seed: what there is, what is wanted, what goes wrong, and what must come of it.

use std::time::Duration;

use skein_handover::{MigrationId, MigrationLimits, WaitTimes};

use super::fault::{FLAP, Fault};
use super::net::Wire;
use super::qemu::{Qemu, State};
use super::sim_agent::SimHost;
use super::*;
use crate::network::PathSpec;
use crate::world::{MS, S, Time};

/// Somebody wants a VM moved.
#[derive(Clone, Debug)]
pub struct Wish {
    pub at: Time,
    pub vm: VmIx,
    pub to: HostIx,
    pub priority: u8,
    pub cancel_after: Option<Time>,
    /// How often it is tried again when it is not possible.
    pub tries: u32,
    pub done: bool,
    /// What came of it, and where.
    pub id: Option<MigrationId>,
    pub from: Option<HostIx>,
}

impl Wish {
    fn new(at: Time, vm: VmIx, to: HostIx) -> Wish {
        Wish { at, vm, to, priority: 0, cancel_after: None, tries: 100, done: false, id: None, from: None }
    }
}

/// When all is well, everything is at rest after that long.
const REST: Time = 120 * S;

fn path(rng: &mut Rng, calm: bool) -> PathSpec {
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
        up_at: if calm || rng.percent(90) { 0 } else { rng.below(2 * S) },
    }
}

fn limits(rng: &mut Rng) -> MigrationLimits {
    let time = |rng: &mut Rng, low: f64, high: f64| Duration::from_nanos(rng.log_between(low, high) as u64);
    // With waits as they are by default nothing may need them to come to rest in time.
    let usual = rng.percent(20);
    MigrationLimits {
        outgoing: rng.between(1, 4) as usize,
        incoming: rng.between(1, 4) as usize,
        waits: if usual {
            WaitTimes::default()
        } else {
            WaitTimes {
                prepare: time(rng, 10e9, 60e9),
                precopy: time(rng, 20e9, 60e9),
                switchover: time(rng, 5e9, 20e9),
                abandoned: time(rng, 5e9, 60e9),
                ..WaitTimes::default()
            }
        },
    }
}

impl Cluster {
    pub fn from_seed(seed: u64, plant: Option<Plant>) -> Cluster {
        let mut rng = Rng::new(seed);
        let (calm, kills_only) = match rng.below(100) {
            0..15 => (true, false),
            15..40 => (false, true),
            _ => (false, false),
        };
        let hosts = rng.between(2, 6) as usize;
        let nics = rng.between(1, 3) as usize;
        let mut wire = Wire { thread_delay: rng.log_between(10e3, 2e6) as Time, ..Wire::default() };
        for a in 0..hosts {
            for b in a + 1..hosts {
                wire.paths.insert((a, b), (0..nics).map(|_| path(&mut rng, calm || kills_only)).collect());
            }
        }
        let vms = rng.between(1, 4) as usize;
        let mut cluster = Cluster {
            now: 0,
            rng: Rng::new(seed ^ 0xc1),
            failure: None,
            stats: Stats::default(),
            plant,
            hosts: (0..hosts)
                .map(|_| SimHost {
                    disk: Default::default(),
                    off: false,
                    sources: BTreeMap::new(),
                    limits: limits(&mut rng),
                })
                .collect(),
            agents: (0..hosts).map(|_| SimAgent::default()).collect(),
            qemus: Vec::new(),
            vms: Vec::new(),
            wire,
            links: BTreeMap::new(),
            faults: Vec::new(),
            wishes: Vec::new(),
            outcomes: BTreeMap::new(),
            stopped: BTreeMap::new(),
            calm,
            kills_only,
            last_kill: 0,
            healed: false,
            live: Arc::default(),
            leaked: Vec::new(),
            next_link: 0,
            seq: 0,
            heap: BinaryHeap::new(),
            trace: None,
        };
        for vm in 0..vms {
            let pages = rng.log_between(4.0, 128.0) as usize;
            let mut qemu = Qemu::new(rng.below(hosts as u64) as usize, vm, None, vec![0; pages]);
            qemu.state = State::Running;
            qemu.ran = true;
            cluster.vms.push(Vm {
                image: qemu.image.clone(),
                version: 0,
                holder: vm,
                lost: false,
                vouched: false,
                stopped_at: None,
                rounds: if !calm && rng.percent(4) { u32::MAX } else { rng.between(1, 5) as u32 },
                dirty: rng.below(pages as u64 / 2 + 2),
            });
            cluster.qemus.push(qemu);
        }
        // The longer part of a run is shorter than its faults.
        let span = rng.log_between(1e9, 8e9) as Time;
        for _ in 0..rng.between(1, 2 + 2 * vms as u64) {
            let mut wish = Wish::new(rng.below(span), rng.below(vms as u64) as usize, rng.below(hosts as u64) as usize);
            wish.priority = rng.below(3) as u8;
            wish.cancel_after = (!calm && rng.percent(15)).then(|| rng.log_between(1e6, 5e9) as Time);
            cluster.wishes.push(wish);
        }
        if !calm {
            for _ in 0..if rng.percent(10) { rng.between(8, 24) } else { rng.between(1, 6) } {
                let longest = if rng.percent(15) { 20 * S } else { 6 * S };
                let fault = Fault::any(&mut rng, hosts, nics, longest, kills_only);
                cluster.faults.push((rng.below(span), fault));
            }
            if !kills_only && rng.percent(8) {
                let (host, nic, mut at) = (rng.below(hosts as u64) as usize, rng.below(nics as u64) as usize, 0);
                while at < span {
                    let lasts = rng.log_between(20e6, FLAP as f64) as Time;
                    let after = [rng.below(100 * MS), rng.below(100 * MS)];
                    let flap = [
                        Fault::Dark { host, nic, lasts },
                        Fault::Carrier { host, nic, lasts },
                        Fault::Cut { host, nic, after, lasts },
                    ];
                    cluster.faults.push((at, rng.pick(&flap).clone()));
                    at += lasts + rng.log_between(20e6, 1e9) as Time;
                }
            }
        }
        cluster
    }

    /// Runs it to its end. The error says what was wrong.
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
        // Whatever happened: each guest can be moved as if nothing had been.
        if self.failure.is_none() && self.rng.percent(60) {
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
        self.stats.virtual_ns = self.now;
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(self.stats),
        }
    }

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

/// One run, with panics as failures.
pub fn run(seed: u64, plant: Option<Plant>) -> Result<Stats, String> {
    let run = || {
        let mut cluster = Cluster::from_seed(seed, plant);
        cluster.trace = std::env::var("SKEIN_TRACE").ok();
        cluster.play()
    };
    crate::caught(run)
}

/// How a seed that failed is run again.
pub fn replay(seed: u64) -> String {
    format!("replay: SKEIN_SEED={seed} SKEIN_TRACE=1 cargo test -p skein-sim --test cluster every -- --nocapture")
}
