//! The job: what a plan is to do.

use thiserror::Error;

use super::{Action, Network};
use crate::problem::{Flaw, GuestId, HostId, NOWHERE, Problem};

/// After this many rounds a guest is stopped, however much is dirty, as Xen does (`max_iters` of xc_domain_save). A
/// plan lets that happen to no guest.
pub const ROUNDS_MAX: u32 = 30;
/// Amounts, rates and times are at most this, so that no sum or quotient of them leaves the range that is counted.
const MOST: f64 = 1e18;
/// The seconds within which two things count as simultaneous.
pub(super) const INSTANT: f64 = 1e-9;
/// In bytes per second: a lower rate counts as none.
pub(super) const RATE_LEAST: f64 = 1.0;

/// How much memory of a guest there is to send, and how fast the guest writes.
///
/// A migration sends all of its memory, and then again and again what the guest has written meanwhile, until that takes
/// no longer than its allowed downtime. Then the guest stands still while the rest is sent. From the start of a round
/// the guest writes its hot set, evenly for [`hot_seconds`](Traffic::hot_seconds), and from then on
/// [`dirty_rate`](Traffic::dirty_rate) of the rest, up to all of its memory (the model of Kherbache et al., "Scheduling
/// live-migrations for fast, adaptable and energy-efficient relocation operations", UCC 2015, section III, where it is
/// summed up to no downtime).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// The memory in use, in bytes.
    pub memory_bytes: f64,
    /// The hot set: the bytes that the guest writes over and over.
    pub hot_bytes: f64,
    /// How long the guest takes to write the whole hot set, in seconds.
    pub hot_seconds: f64,
    /// How much of the rest the guest writes, in bytes per second.
    pub dirty_rate: f64,
    /// How long the guest may stand still, in seconds.
    pub downtime_seconds: f64,
}

/// The most migrations at once on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimits {
    /// The most migrations to the host.
    pub incoming: u32,
    /// The most migrations from the host.
    pub outgoing: u32,
    /// The most migrations in both directions together.
    pub total: u32,
}

impl Default for ConcurrencyLimits {
    /// Returns limits of two migrations each way, as in oVirt (`max_outgoing_migrations`).
    fn default() -> ConcurrencyLimits {
        ConcurrencyLimits { incoming: 2, outgoing: 2, total: 4 }
    }
}

impl ConcurrencyLimits {
    /// No limits: as many migrations as the links carry.
    pub const NONE: ConcurrencyLimits = ConcurrencyLimits { incoming: u32::MAX, outgoing: u32::MAX, total: u32::MAX };
}

/// Whether a host is on, and how long switching it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// Whether the host is on now.
    pub on: bool,
    /// Whether the host is to be on in the end.
    pub on_at_end: bool,
    /// How long the host takes to boot, in seconds.
    pub boot_seconds: f64,
    /// How long the host takes to shut down, in seconds.
    pub shutdown_seconds: f64,
}

impl Power {
    /// A host that is on, now and in the end.
    pub const ALWAYS: Power = Power { on: true, on_at_end: true, boot_seconds: 0.0, shutdown_seconds: 0.0 };
}

/// An action that is under way and is not stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Running {
    /// The action.
    pub action: Action,
    /// The rate of a migration, in bytes per second.
    pub rate: f64,
    /// How many seconds the action will still take at that rate.
    pub seconds_left: f64,
}

/// What a plan is to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The hosts, guests and rules. [`Problem::initial`] is where the guests are now: for a guest on its way, the host
    /// that it leaves.
    pub problem: Problem,
    /// The host where each guest is to be, or [`NOWHERE`].
    pub goal: Vec<HostId>,
    /// The traffic of each guest's migration.
    pub traffic: Vec<Traffic>,
    /// How long each guest takes to start, in seconds.
    pub start_seconds: Vec<f64>,
    /// How long each guest takes to stop, in seconds.
    pub stop_seconds: Vec<f64>,
    /// The network between the hosts.
    pub network: Network,
    /// The limits of each host.
    pub limits: Vec<ConcurrencyLimits>,
    /// The power of each host.
    pub power: Vec<Power>,
    /// The actions that are under way.
    pub running: Vec<Running>,
}

/// Why a job is not valid. Indices are counted from 0.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum JobFlaw {
    /// The placement problem is not valid.
    #[error("the problem is wrong")]
    Problem(#[from] Flaw),
    /// A list does not have the length that it must have.
    #[error("{what} has {has} entries instead of {wants}")]
    Length {
        /// The list, in words.
        what: &'static str,
        /// How many entries the list has.
        has: usize,
        /// How many entries the list should have.
        wants: usize,
    },
    /// A number is not within 0 to 10^18.
    #[error("{what} of {of} is {amount}, which is not within 0 to 10^18")]
    Amount {
        /// The number, in words.
        what: &'static str,
        /// The guest, host or switch that has the number.
        of: String,
        /// The value.
        amount: f64,
    },
    /// A guest is to be on a host that does not exist.
    #[error("guest {guest} is to be on host {host}, of which there are {hosts}")]
    NoHost {
        /// The guest's index.
        guest: usize,
        /// The host that does not exist.
        host: HostId,
        /// How many hosts there are.
        hosts: usize,
    },
    /// A guest is on a host that is off, or is to be on a host that will be off.
    #[error("guest {guest} cannot be on host {host}, which is off then")]
    Off {
        /// The guest's index.
        guest: usize,
        /// The host that is off then.
        host: HostId,
    },
    /// A switch's parent does not come before it.
    #[error("switch {switch} is linked to switch {parent}: its parent has to be one of a lower number")]
    Parent {
        /// The switch's index.
        switch: usize,
        /// The parent's index.
        parent: usize,
    },
    /// A host is linked to a switch that does not exist.
    #[error("host {host} is linked to switch {switch}, of which there are {switches}")]
    NoSwitch {
        /// The host's index.
        host: usize,
        /// The switch that does not exist.
        switch: usize,
        /// How many switches there are.
        switches: usize,
    },
    /// An action cannot be under way.
    #[error("what is under way as number {number} cannot be: {why}")]
    Running {
        /// Its index in the list of what is under way.
        number: usize,
        /// Why it cannot be under way.
        why: &'static str,
    },
}

fn amount(what: &'static str, of: impl FnOnce() -> String, amount: f64) -> Result<(), JobFlaw> {
    if (0.0..=MOST).contains(&amount) { Ok(()) } else { Err(JobFlaw::Amount { what, of: of(), amount }) }
}

impl Job {
    /// Checks that the job is valid.
    ///
    /// # Errors
    ///
    /// The first [`JobFlaw`] that is found.
    pub fn check(&self) -> Result<(), JobFlaw> {
        self.problem.check()?;
        let (hosts, guests) = (self.problem.hosts.len(), self.problem.guests.len());
        let lengths = [
            ("the goal", self.goal.len(), guests),
            ("the traffic", self.traffic.len(), guests),
            ("the times to start", self.start_seconds.len(), guests),
            ("the times to stop", self.stop_seconds.len(), guests),
            ("the ports", self.network.ports.len(), hosts),
            ("the limits", self.limits.len(), hosts),
            ("the power", self.power.len(), hosts),
        ];
        for (what, has, wants) in lengths {
            if has != wants {
                return Err(JobFlaw::Length { what, has, wants });
            }
        }
        self.check_guests()?;
        self.check_network()?;
        for (host, power) in self.power.iter().enumerate() {
            amount("the time to boot", || format!("host {host}"), power.boot_seconds)?;
            amount("the time to shut down", || format!("host {host}"), power.shutdown_seconds)?;
        }
        self.check_running()
    }

    /// Returns where each guest is once what is under way has ended.
    pub(super) fn begin(&self) -> Vec<HostId> {
        let mut begin = self.problem.initial.clone();
        for action in self.running.iter().map(|running| running.action) {
            if let Some(guest) = action.guest() {
                begin[guest as usize] = action.ends().1;
            }
        }
        begin
    }

    fn check_guests(&self) -> Result<(), JobFlaw> {
        let hosts = self.problem.hosts.len();
        for (guest, (&from, &to)) in self.problem.initial.iter().zip(&self.goal).enumerate() {
            if to != NOWHERE && to as usize >= hosts {
                return Err(JobFlaw::NoHost { guest, host: to, hosts });
            }
            let is_off = |host: HostId, on: fn(&Power) -> bool| host != NOWHERE && !on(&self.power[host as usize]);
            let off = [(from, is_off(from, |power| power.on)), (to, is_off(to, |power| power.on_at_end))];
            if let Some((host, _)) = off.into_iter().find(|(_, off)| *off) {
                return Err(JobFlaw::Off { guest, host });
            }
            let traffic = &self.traffic[guest];
            let amounts = [
                ("the memory", traffic.memory_bytes),
                ("the hot set", traffic.hot_bytes),
                ("the time to rewrite the hot set", traffic.hot_seconds),
                ("the dirty rate", traffic.dirty_rate),
                ("the downtime", traffic.downtime_seconds),
                ("the time to start", self.start_seconds[guest]),
                ("the time to stop", self.stop_seconds[guest]),
            ];
            amounts.into_iter().try_for_each(|(what, of)| amount(what, || format!("guest {guest}"), of))?;
        }
        Ok(())
    }

    fn check_network(&self) -> Result<(), JobFlaw> {
        let switches = self.network.switches.len();
        for (host, port) in self.network.ports.iter().enumerate() {
            amount("the bandwidth", || format!("host {host}"), port.inward)?;
            amount("the bandwidth", || format!("host {host}"), port.outward)?;
            if let Some(switch) = port.switch.filter(|switch| *switch >= switches) {
                return Err(JobFlaw::NoSwitch { host, switch, switches });
            }
        }
        for (n, switch) in self.network.switches.iter().enumerate() {
            for of in [switch.upward, switch.downward, switch.through].into_iter().flatten() {
                amount("the bandwidth", || format!("switch {n}"), of)?;
            }
            if let Some(parent) = switch.parent.filter(|parent| *parent >= n) {
                return Err(JobFlaw::Parent { switch: n, parent });
            }
        }
        Ok(())
    }

    fn check_running(&self) -> Result<(), JobFlaw> {
        let (mut guests, mut hosts) = (Vec::new(), Vec::new());
        for (number, running) in self.running.iter().enumerate() {
            amount("the rate", || format!("number {number} under way"), running.rate)?;
            amount("the time left", || format!("number {number} under way"), running.seconds_left)?;
            let why = match running.action.guest() {
                Some(guest) if guests.contains(&guest) => Some("its guest is in another"),
                _ => self.why_not(running.action),
            };
            if let Some(why) = why {
                return Err(JobFlaw::Running { number, why });
            }
            match running.action {
                Action::Boot { host } | Action::Shutdown { host } if hosts.contains(&host) => {
                    return Err(JobFlaw::Running { number, why: "its host is in another" });
                }
                Action::Boot { host } | Action::Shutdown { host } => hosts.push(host),
                _ => guests.extend(running.action.guest()),
            }
        }
        Ok(())
    }

    /// Returns why an action cannot be under way, if it cannot.
    fn why_not(&self, action: Action) -> Option<&'static str> {
        let power = |host: HostId| self.power.get(host as usize);
        let is_on = |host: HostId| power(host).is_some_and(|power| power.on);
        let at = |guest: GuestId| self.problem.initial.get(guest as usize).copied();
        match action {
            Action::Boot { host } if power(host).is_none_or(|power| power.on || !power.on_at_end) => {
                Some("its host is none that is off and is to be on")
            }
            Action::Shutdown { host } if power(host).is_none_or(|power| !power.on || power.on_at_end) => {
                Some("its host is none that is on and is to be off")
            }
            Action::Shutdown { host } if self.problem.initial.contains(&host) => Some("there are guests on its host"),
            Action::Migrate { guest, from, .. } | Action::Stop { guest, on: from }
                if at(guest) != Some(from) || from == NOWHERE =>
            {
                Some("its guest is not there")
            }
            Action::Start { guest, .. } if at(guest) != Some(NOWHERE) => Some("its guest is somewhere"),
            Action::Migrate { to, .. } | Action::Start { on: to, .. } if !is_on(to) => Some("its target is not on"),
            Action::Migrate { from, to, .. } if from == to => Some("it goes nowhere"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;

    fn flaw(spoil: impl FnOnce(&mut Job)) -> String {
        let mut job = cases::swap();
        assert_eq!(job.check(), Ok(()));
        spoil(&mut job);
        job.check().expect_err("it is spoilt").to_string()
    }

    #[test]
    fn what_is_wrong_is_told() {
        assert_eq!(flaw(|job| job.goal[1] = 9), "guest 1 is to be on host 9, of which there are 3");
        assert_eq!(flaw(|job| job.limits.truncate(1)), "the limits has 1 entries instead of 3");
        let nan = flaw(|job| job.traffic[0].dirty_rate = f64::NAN);
        assert_eq!(nan, "the dirty rate of guest 0 is NaN, which is not within 0 to 10^18");
        assert!(flaw(|job| job.network.ports[2].inward = f64::INFINITY).starts_with("the bandwidth of host 2 is inf"));
        assert!(flaw(|job| job.network.ports[2].switch = Some(0)).starts_with("host 2 is linked to switch 0"));
        assert!(flaw(|job| job.power[0].on = false).starts_with("guest 0 cannot be on host 0"));
        let running = Running { action: Action::Migrate { guest: 0, from: 1, to: 2 }, rate: 1.0, seconds_left: 1.0 };
        assert!(flaw(|job| job.running.push(running)).ends_with("its guest is not there"));
    }
}
