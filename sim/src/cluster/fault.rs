//! What goes wrong in a cluster.

use super::offer::Action;
use super::{Cluster, HostIx, QemuIx, VmIx, trace};
use super::{Do, qemu};
use crate::rng::Rng;
use crate::world::{MS, S, Time};

#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing that one host sends to another over a NIC arrives.
    Hole {
        from: HostIx,
        to: HostIx,
        nic: usize,
        lasts: Time,
    },
    /// A NIC is dark, for all hosts.
    Dark {
        host: HostIx,
        nic: usize,
        lasts: Time,
    },
    /// A host is cut off, on all NICs.
    CutOff {
        host: HostIx,
        lasts: Time,
    },
    /// A NIC is dark, and its host knows it.
    Carrier {
        host: HostIx,
        nic: usize,
        lasts: Time,
    },
    /// Connections fail on a NIC that is dark.
    Cut {
        host: HostIx,
        nic: usize,
        after: [Time; 2],
        lasts: Time,
    },
    Slow {
        a: HostIx,
        b: HostIx,
        nic: usize,
        share: f64,
        lasts: Time,
    },
    /// SIGSTOP.
    Pause {
        host: HostIx,
        lasts: Time,
    },
    /// SIGKILL of an agent.
    Crash {
        host: HostIx,
        restart: Time,
    },
    /// That happens just before an agent does its next but so many things, if it gets there within a second.
    AtStep {
        host: HostIx,
        actions: u32,
        fault: Box<Fault>,
    },
    KillQemu {
        pick: u64,
    },
    /// Power fails.
    HostOff {
        host: HostIx,
        lasts: Time,
    },
    DiskFull {
        host: HostIx,
        lasts: Time,
    },
    /// Writes fail, and may have been done.
    DiskFlaky {
        host: HostIx,
        lasts: Time,
    },
    DiskSlow {
        host: HostIx,
        lasts: Time,
    },
    Cancel {
        pick: u64,
    },
}

impl Fault {
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

    /// Any; with `kills_only` one that leaves the network and disks alone.
    pub fn any(rng: &mut Rng, hosts: usize, nics: usize, longest: Time, kills_only: bool) -> Fault {
        let lasts = rng.log_between(5e6, longest as f64) as Time;
        let host = rng.below(hosts as u64) as usize;
        let other = (host + rng.between(1, hosts as u64 - 1) as usize) % hosts;
        let nic = rng.below(nics as u64) as usize;
        let restart = rng.log_between(10e6, 1.5e9) as Time;
        let most = if kills_only { 5 } else { 18 };
        match rng.below(most) {
            0 => Fault::Crash { host, restart },
            1 | 2 => {
                let fault = match rng.below(if kills_only { 4 } else { 9 }) {
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

    /// What does not arrive meanwhile.
    fn holes(&self, hosts: usize, nics: usize) -> Vec<(HostIx, HostIx, usize)> {
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

impl Cluster {
    fn nics(&self) -> usize {
        self.wire.paths.values().next().map_or(0, Vec::len)
    }

    pub(crate) fn fault(&mut self, number: usize) {
        let fault = self.faults[number].1.clone();
        trace!(self, "{fault:?}");
        *self.stats.faults.entry(fault.kind()).or_default() += 1;
        for (from, to, nic) in fault.holes(self.hosts.len(), self.nics()) {
            self.open_hole(from, to, nic, true);
        }
        match fault.clone() {
            Fault::Cut { host, nic, after, .. } => self.break_connections(host, nic, after),
            Fault::Carrier { host, nic, .. } => self.carrier_lost(host, nic),
            Fault::Slow { a, b, nic, share, .. } => self.slow_down(a, b, nic, share, true),
            Fault::Pause { host, .. } if self.agents[host].manager.is_some() => {
                self.agents[host].paused_by.insert(number);
                self.pause(host);
            }
            Fault::Crash { host, restart } => self.crash(host, Some(restart)),
            Fault::AtStep { host, actions, fault } => self.agents[host].trap = Some((actions, *fault)),
            Fault::KillQemu { pick } => self.kill_qemu(pick),
            Fault::HostOff { host, .. } => self.host_off(host),
            Fault::DiskFull { host, .. } => self.hosts[host].disk.full += 1,
            Fault::DiskFlaky { host, .. } => self.hosts[host].disk.flaky += 1,
            Fault::DiskSlow { host, .. } => self.hosts[host].disk.slow += 1,
            Fault::Cancel { pick } => self.cancel_any(pick),
            Fault::Hole { .. } | Fault::Dark { .. } | Fault::CutOff { .. } | Fault::Pause { .. } => {}
        }
        match fault {
            Fault::AtStep { host, .. } => self.after(STEP_TIME, Do::Disarm(host)),
            _ => self.after(fault.lasts(), Do::Heal(number)),
        }
    }

    /// An agent is about to do something.
    pub(crate) fn step_on_trap(&mut self, host: HostIx, action: &Action) {
        let Some((left, _)) = &mut self.agents[host].trap else { return };
        *left = left.saturating_sub(1);
        if *left == 0
            && let Some((_, fault)) = self.agents[host].trap.take()
        {
            trace!(self, "h{host} is about to {action:?}");
            self.faults.push((self.now, fault));
            self.fault(self.faults.len() - 1);
        }
    }

    pub(crate) fn heal(&mut self, number: usize) {
        let fault = self.faults[number].1.clone();
        for (from, to, nic) in fault.holes(self.hosts.len(), self.nics()) {
            self.open_hole(from, to, nic, false);
        }
        match fault {
            Fault::Slow { a, b, nic, share, .. } => self.slow_down(a, b, nic, share, false),
            // It may have been killed meanwhile.
            Fault::Pause { host, .. } if self.agents[host].paused_by.remove(&number) => self.resume(host),
            Fault::HostOff { host, .. } => {
                self.hosts[host].off = false;
                self.restart(host);
            }
            Fault::DiskFull { host, .. } => self.hosts[host].disk.full -= 1,
            Fault::DiskFlaky { host, .. } => {
                self.hosts[host].disk.flaky -= 1;
                if self.hosts[host].disk.flaky == 0 && self.hosts[host].disk.poisoned {
                    // Somebody mended it, and restarts the agent as its error says.
                    self.crash(host, Some(100 * MS));
                }
            }
            Fault::DiskSlow { host, .. } => self.hosts[host].disk.slow -= 1,
            _ => {}
        }
    }

    fn host_off(&mut self, host: HostIx) {
        if std::mem::replace(&mut self.hosts[host].off, true) {
            return;
        }
        trace!(self, "h{host} is off");
        for qemu in 0..self.qemus.len() {
            if self.qemus[qemu].alive && self.qemus[qemu].host == host {
                self.killed(qemu);
            }
        }
        self.crash(host, None);
        // Nothing reads what its QEMUs wrote, and what was in `/run` is gone.
        self.hosts[host].sources.clear();
    }

    fn kill_qemu(&mut self, pick: u64) {
        let alive: Vec<QemuIx> = (0..self.qemus.len()).filter(|ix| self.qemus[*ix].alive).collect();
        // Rather one that takes part in a migration.
        let busy = |ix: &QemuIx| self.qemus[*ix].state != qemu::State::Running;
        let busy: Vec<QemuIx> = alive.iter().copied().filter(busy).collect();
        let of = if busy.is_empty() || pick.is_multiple_of(4) { alive } else { busy };
        if !of.is_empty() {
            let ix = of[(pick / 4 % of.len() as u64) as usize];
            self.last_kill = self.now;
            self.killed(ix);
        }
    }

    /// A QEMU is killed; the guest is lost if it was there.
    fn killed(&mut self, ix: QemuIx) {
        use skein_handover::{Record, TargetRecord};
        let (host, vm) = (self.qemus[ix].host, self.qemus[ix].vm);
        let decided = self.qemus[ix].incoming.is_some_and(|id| {
            let run = Record::Target(id, TargetRecord::Run);
            self.hosts[host].disk.records().contains(&run) || self.agents[host].is_writing(&run)
        });
        if self.vms[vm].holder == ix || (decided && self.is_of_last_move(ix, vm)) {
            self.vms[vm].lost = true;
        }
        trace!(self, "{} of vm{vm} on h{host} is killed, the guest with it: {}", qemu::shown(ix), self.vms[vm].lost);
        self.qemu_dies(ix);
    }

    /// It has, or is to have, the guest as it is now.
    fn is_of_last_move(&self, ix: QemuIx, vm: VmIx) -> bool {
        self.qemus[ix].image == self.vms[vm].image
    }

    fn cancel_any(&mut self, pick: u64) {
        let all: Vec<_> = (0..self.agents.len())
            .flat_map(|host| {
                let summaries = self.agents[host].manager.as_ref().map(|m| m.summaries()).unwrap_or_default();
                summaries.into_iter().map(move |summary| (host, summary.id))
            })
            .collect();
        if !all.is_empty() {
            let (host, id) = all[(pick % all.len() as u64) as usize];
            self.cancel(host, id);
        }
    }
}

/// How long a trap waits for its agent.
const STEP_TIME: Time = S;
/// The longest that a flap of a path is.
pub const FLAP: Time = 500 * MS;
