//! Plans what a round does. All of it is drawn from the seed, but the outcome depends on the machine, too.

use std::fmt;
use std::time::Duration;

use skein_api::{MigrationPhase, SourcePhase, TargetPhase};
use skein_lab_hosts::Cut;

/// The generator SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
pub struct Rng(pub u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number less than `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Draws a time on a logarithmic scale: as often between 1 and 10 ms as between 10 and 100.
    fn log_ms(&mut self, low: f64, high: f64) -> Duration {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        Duration::from_secs_f64(low * (high / low).powf(unit) / 1e3)
    }
}

/// At which end of the round's first migration a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Source,
    Target,
    Both,
}

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nothing,
    /// Cuts one link, or all links of a host.
    Link(Cut, bool),
    AgentKilled(Side),
    AgentStopped(Side),
    AgentReplaced(Side),
    QemuKilled(Side),
    QemuStopped(Side),
    Cancelled,
}

use Kind::{AgentKilled, AgentReplaced, AgentStopped, Cancelled, Link, Nothing, QemuKilled, QemuStopped};
use Side::{Both, Source, Target};

pub const KINDS: [Kind; 20] = [
    Nothing,
    Link(Cut::Carrier, false),
    Link(Cut::Carrier, true),
    Link(Cut::BlackHole, false),
    Link(Cut::BlackHole, true),
    Link(Cut::BlackHoleToHost, true),
    Link(Cut::BlackHoleFromHost, true),
    AgentKilled(Source),
    AgentKilled(Target),
    AgentKilled(Both),
    AgentStopped(Source),
    AgentStopped(Target),
    AgentStopped(Both),
    AgentReplaced(Source),
    AgentReplaced(Target),
    QemuKilled(Source),
    QemuKilled(Target),
    QemuStopped(Source),
    QemuStopped(Target),
    Cancelled,
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let side = |side: &Side| match side {
            Source => "source",
            Target => "target",
            Both => "both",
        };
        match self {
            Nothing => write!(f, "no fault"),
            Link(cut, all) => {
                let how = match cut {
                    Cut::Carrier => "cut",
                    Cut::BlackHole => "black hole",
                    Cut::BlackHoleToHost => "hears nothing",
                    Cut::BlackHoleFromHost => "is not heard",
                };
                write!(f, "{how}, {}", if *all { "all NICs" } else { "one NIC" })
            }
            AgentKilled(of) => write!(f, "agent killed, {}", side(of)),
            AgentStopped(of) => write!(f, "agent SIGSTOP, {}", side(of)),
            AgentReplaced(of) => write!(f, "agent replaced, {}", side(of)),
            QemuKilled(of) => write!(f, "QEMU killed, {}", side(of)),
            QemuStopped(of) => write!(f, "QEMU SIGSTOP, {}", side(of)),
            Cancelled => write!(f, "cancel"),
        }
    }
}

/// The steps of the first migration at which a fault can be, as the log of one of its ends has them.
pub const STEPS: [MigrationPhase; 8] = [
    MigrationPhase::Source(SourcePhase::Prepare),
    MigrationPhase::Source(SourcePhase::Precopy),
    MigrationPhase::Source(SourcePhase::Switchover),
    MigrationPhase::Target(TargetPhase::Completed),
    MigrationPhase::Source(SourcePhase::Grant),
    MigrationPhase::Target(TargetPhase::Run),
    MigrationPhase::Target(TargetPhase::Running),
    MigrationPhase::Source(SourcePhase::Release),
];
/// The steps at which the guest is stopped.
const SWITCHOVER: std::ops::Range<usize> = 2..6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The fault comes so long after the migration is asked for. The migration may still be checked then.
    Asked(Duration),
    /// The fault comes so long after a step.
    Step(MigrationPhase, Duration),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Moment::Asked(after) => write!(f, "{:.1} ms after it is asked for", after.as_secs_f64() * 1e3),
            Moment::Step(MigrationPhase::Source(step), after) => {
                write!(f, "{:.1} ms after the source's {step:?}", after.as_secs_f64() * 1e3)
            }
            Moment::Step(MigrationPhase::Target(step), after) => {
                write!(f, "{:.1} ms after the target's {step:?}", after.as_secs_f64() * 1e3)
            }
            Moment::Step(MigrationPhase::Queued, _) => write!(f, "queued"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub kind: Kind,
    pub moment: Moment,
    /// How long it takes until the fault is healed, goes on, or the process is started again.
    pub lasts: Duration,
    /// The NIC, if the fault is at a NIC. It is a NIC of the target's host or of the source's.
    pub nic: usize,
    pub of_target: bool,
}

/// A migration.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// Which guest, counted among those that are not in a migration yet.
    pub guest: usize,
    /// Which host, counted among the others.
    pub to: usize,
    /// How many channels there are. `None`: what the definition says.
    pub channels: Option<u8>,
}

#[derive(Clone, Debug)]
pub struct Round {
    pub moves: Vec<Move>,
    pub faults: Vec<Fault>,
    /// The rate of all NICs, in Mb/s.
    pub rate: u32,
}

/// Draws rounds, with each kind of fault once before any kind comes again.
pub struct Planner {
    rng: Rng,
    kinds: Vec<Kind>,
    deck: Vec<Kind>,
}

impl Planner {
    pub fn new(seed: u64, kinds: Vec<Kind>) -> Planner {
        Planner { rng: Rng(seed), kinds, deck: Vec::new() }
    }

    pub fn round(&mut self, guests: usize, nics: usize) -> Round {
        let rng = &mut self.rng;
        let rate = rng.pick(&[200, 300, 500, 1000]);
        let together = if rng.percent(80) { 1 } else { 2 + rng.below(guests - 1) };
        let mut choose = |_| Move {
            guest: rng.below(guests),
            to: rng.below(usize::MAX),
            channels: rng.pick(&[None, None, None, Some(0), Some(2), Some(8)]),
        };
        let moves = (0..together.min(guests)).map(&mut choose).collect();
        let mut faults = vec![self.fault(nics)];
        if self.rng.percent(20) {
            faults.push(self.fault(nics));
        }
        faults.retain(|fault| fault.kind != Nothing);
        Round { moves, faults, rate }
    }

    fn fault(&mut self, nics: usize) -> Fault {
        if self.deck.is_empty() {
            self.deck.clone_from(&self.kinds);
        }
        let kind = self.deck.swap_remove(self.rng.below(self.deck.len()));
        let rng = &mut self.rng;
        let moment = match rng.below(10) {
            0 => Moment::Asked(rng.log_ms(5.0, 3000.0)),
            1 => Moment::Step(rng.pick(&STEPS), rng.log_ms(0.1, 2000.0)),
            // While the guest is copied, which takes some time.
            2 | 3 => Moment::Step(STEPS[1], rng.log_ms(1.0, 2000.0)),
            // It takes some milliseconds to cut a link.
            _ if matches!(kind, Link(..)) => Moment::Step(STEPS[SWITCHOVER.start], rng.log_ms(0.1, 400.0)),
            _ => Moment::Step(STEPS[SWITCHOVER.start + rng.below(SWITCHOVER.len())], rng.log_ms(0.1, 50.0)),
        };
        let lasts = match kind {
            Link(..) => rng.log_ms(100.0, 8000.0),
            AgentKilled(_) => rng.log_ms(20.0, 2000.0),
            AgentStopped(_) => rng.log_ms(500.0, 6000.0),
            QemuStopped(_) => rng.log_ms(500.0, 5000.0),
            Nothing | AgentReplaced(_) | QemuKilled(_) | Cancelled => Duration::ZERO,
        };
        Fault { kind, moment, lasts, nic: rng.below(nics), of_target: rng.percent(50) }
    }
}
