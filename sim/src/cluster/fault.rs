//! What may go wrong in a cluster.

use super::index::HostIx;
use crate::rng::Rng;
use crate::world::{S, Time};

/// How long a trap waits for its agent.
pub const STEP_TIME: Time = S;

/// Which faults may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    All,
    /// Kills of processes, and cancels. The network and disks are left alone.
    KillsOnly,
}

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing that one host sends to another over a NIC arrives.
    Hole { from: HostIx, to: HostIx, nic: usize, lasts: Time },
    /// A NIC is dark, for all hosts.
    Dark { host: HostIx, nic: usize, lasts: Time },
    /// A host is cut off, on all NICs.
    CutOff { host: HostIx, lasts: Time },
    /// A NIC is dark, and its host knows that.
    Carrier { host: HostIx, nic: usize, lasts: Time },
    /// Connections fail on a NIC that is dark.
    Cut { host: HostIx, nic: usize, after: [Time; 2], lasts: Time },
    /// Two hosts have only a share of the rate between them on a NIC.
    Slow { a: HostIx, b: HostIx, nic: usize, share: f64, lasts: Time },
    /// An agent is stopped (SIGSTOP).
    Pause { host: HostIx, lasts: Time },
    /// An agent is killed (SIGKILL).
    Crash { host: HostIx, restart: Time },
    /// The fault happens just before an agent does what its manager wants for the `actions`-th time from now on, if
    /// that is within [`STEP_TIME`].
    AtStep { host: HostIx, actions: u32, fault: Box<Fault> },
    /// A QEMU is killed.
    KillQemu { pick: u64 },
    /// The power of a host fails.
    HostOff { host: HostIx, lasts: Time },
    /// A disk has no space. That is seen before anything is written.
    DiskFull { host: HostIx, lasts: Time },
    /// Writes fail, and may have been done.
    DiskFlaky { host: HostIx, lasts: Time },
    /// Writes take up to 2 s.
    DiskSlow { host: HostIx, lasts: Time },
    /// A person cancels a migration.
    Cancel { pick: u64 },
}

impl Fault {
    /// Returns how long the fault lasts.
    pub fn lasts(&self) -> Time {
        match *self {
            Fault::Hole { lasts, .. }
            | Fault::Dark { lasts, .. }
            | Fault::CutOff { lasts, .. }
            | Fault::Carrier { lasts, .. }
            | Fault::Slow { lasts, .. }
            | Fault::Pause { lasts, .. }
            | Fault::HostOff { lasts, .. }
            | Fault::DiskFull { lasts, .. }
            | Fault::DiskFlaky { lasts, .. }
            | Fault::DiskSlow { lasts, .. } => lasts,
            Fault::Cut { lasts, after, .. } => lasts.max(after[0]).max(after[1]),
            Fault::Crash { restart, .. } => restart,
            Fault::AtStep { ref fault, .. } => STEP_TIME + fault.lasts(),
            Fault::KillQemu { .. } | Fault::Cancel { .. } => 0,
        }
    }

    /// Returns what kind of fault it is, for reports.
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Hole { .. } => "one-way hole",
            Fault::Dark { .. } => "dark NIC",
            Fault::CutOff { .. } => "host cut off",
            Fault::Carrier { .. } => "carrier lost",
            Fault::Cut { .. } => "connections cut",
            Fault::Slow { .. } => "slow path",
            Fault::Pause { .. } => "agent stopped",
            Fault::Crash { .. } => "agent killed",
            Fault::AtStep { .. } => "trap at a step",
            Fault::KillQemu { .. } => "QEMU killed",
            Fault::HostOff { .. } => "host off",
            Fault::DiskFull { .. } => "disk full",
            Fault::DiskFlaky { .. } => "disk fails",
            Fault::DiskSlow { .. } => "disk slow",
            Fault::Cancel { .. } => "cancel",
        }
    }

    /// Draws a fault, in a cluster of so many hosts with so many NICs each.
    pub fn any(rng: &mut Rng, hosts: usize, nics: usize, longest: Time, faults: Faults) -> Fault {
        let lasts = rng.log_between(5e6, longest as f64) as Time;
        let host = rng.below(hosts as u64) as usize;
        let other = (host + rng.between(1, hosts as u64 - 1) as usize) % hosts;
        let nic = rng.below(nics as u64) as usize;
        let restart = rng.log_between(10e6, 1.5e9) as Time;
        let (most, most_at_step) = match faults {
            Faults::All => (18, 9),
            Faults::KillsOnly => (5, 4),
        };
        match rng.below(most) {
            0 => Fault::Crash { host, restart },
            1 | 2 => {
                let fault = match rng.below(most_at_step) {
                    0..3 => Fault::Crash { host, restart },
                    3 => Fault::KillQemu { pick: rng.next() },
                    // Long enough for an alarm, and for somebody to look at it.
                    4 | 5 => Fault::HostOff { host: *rng.pick(&[host, other]), lasts: lasts.max(4 * S) },
                    6 => Fault::CutOff { host, lasts },
                    7 => Fault::DiskFlaky { host, lasts },
                    _ => Fault::Pause { host, lasts },
                };
                Fault::AtStep { host, actions: rng.between(1, 30) as u32, fault: Box::new(fault) }
            }
            3 => Fault::KillQemu { pick: rng.next() },
            4 => Fault::Cancel { pick: rng.next() },
            5 | 6 => Fault::Hole { from: host, to: other, nic, lasts },
            7 => Fault::Dark { host, nic, lasts },
            8 | 9 => Fault::CutOff { host, lasts },
            10 => Fault::Carrier { host, nic, lasts },
            11 => Fault::Cut { host, nic, after: [rng.below(2 * S), rng.below(2 * S)], lasts },
            12 => Fault::Slow { a: host, b: other, nic, share: *rng.pick(&[0.5, 0.1, 0.03]), lasts },
            13 => Fault::Pause { host, lasts },
            14 => Fault::HostOff { host, lasts },
            15 => Fault::DiskFull { host, lasts },
            16 => Fault::DiskFlaky { host, lasts },
            _ => Fault::DiskSlow { host, lasts },
        }
    }

    /// Returns from which host to which other, over which NIC, nothing arrives meanwhile.
    pub fn holes(&self, hosts: usize, nics: usize) -> Vec<(HostIx, HostIx, usize)> {
        let both = |host: HostIx, nics: std::ops::Range<usize>| {
            let others = (0..hosts).filter(|other| *other != host);
            let all = others.flat_map(|other| nics.clone().map(move |nic| (other, nic)));
            all.flat_map(|(other, nic)| [(host, other, nic), (other, host, nic)]).collect()
        };
        match *self {
            Fault::Hole { from, to, nic, .. } => vec![(from, to, nic)],
            Fault::Dark { host, nic, .. } | Fault::Carrier { host, nic, .. } | Fault::Cut { host, nic, .. } => {
                both(host, nic..nic + 1)
            }
            Fault::CutOff { host, .. } | Fault::HostOff { host, .. } => both(host, 0..nics),
            _ => Vec::new(),
        }
    }
}
