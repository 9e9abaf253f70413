//! Makes faults happen, and ends them.

use skein_handover::{Record, TargetRecord};

use super::fault::{Fault, STEP_TIME};
use super::index::{HostIx, QemuIx, VmIx, qemu_name};
use super::offer::Action;
use super::qemu::State;
use super::schedule::Do;
use super::state::{Cluster, trace};
use crate::world::MS;

impl Cluster {
    /// Makes a fault happen.
    pub(super) fn fault(&mut self, number: usize) {
        let fault = self.faults[number].1.clone();
        trace!(self, "{fault:?}");
        *self.stats.faults.entry(fault.kind()).or_default() += 1;
        for (from, to, nic) in fault.holes(self.hosts.len(), self.wire.nics()) {
            self.open_hole(from, to, nic);
        }
        match fault.clone() {
            Fault::Cut { host, nic, after, .. } => self.break_connections(host, nic, after),
            Fault::Carrier { host, nic, .. } => self.carrier_lost(host, nic),
            Fault::Slow { a, b, nic, share, .. } => self.slow_down(a, b, nic, share),
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

    /// Lets the fault happen that waits for this action of an agent, if there is one.
    pub(super) fn step_on_trap(&mut self, host: HostIx, action: &Action) {
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

    /// Ends a fault.
    pub(super) fn heal(&mut self, number: usize) {
        let fault = self.faults[number].1.clone();
        for (from, to, nic) in fault.holes(self.hosts.len(), self.wire.nics()) {
            self.close_hole(from, to, nic);
        }
        match fault {
            Fault::Slow { a, b, nic, share, .. } => self.speed_up(a, b, nic, share),
            // The process may have been killed meanwhile.
            Fault::Pause { host, .. } if self.agents[host].paused_by.remove(&number) => self.resume(host),
            Fault::HostOff { host, .. } => {
                self.hosts[host].off = false;
                self.restart(host);
            }
            Fault::DiskFull { host, .. } => self.hosts[host].disk.full -= 1,
            Fault::DiskFlaky { host, .. } => {
                self.hosts[host].disk.flaky -= 1;
                if self.hosts[host].disk.flaky == 0 && self.hosts[host].disk.poisoned {
                    // A person mended the disk, and restarts the agent as its error says.
                    self.crash(host, Some(100 * MS));
                }
            }
            Fault::DiskSlow { host, .. } => self.hosts[host].disk.slow -= 1,
            _ => {}
        }
    }

    /// Turns a host off.
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

    /// Kills any QEMU.
    fn kill_qemu(&mut self, pick: u64) {
        let alive: Vec<QemuIx> = (0..self.qemus.len()).filter(|ix| self.qemus[*ix].alive).collect();
        // A QEMU that takes part in a migration is rather killed.
        let busy = |ix: &QemuIx| self.qemus[*ix].state != State::Running;
        let busy: Vec<QemuIx> = alive.iter().copied().filter(busy).collect();
        let of = if busy.is_empty() || pick.is_multiple_of(4) { alive } else { busy };
        if !of.is_empty() {
            let ix = of[(pick / 4 % of.len() as u64) as usize];
            self.last_kill = self.now;
            self.killed(ix);
        }
    }

    /// Kills a QEMU. The guest is lost if the QEMU held it.
    fn killed(&mut self, ix: QemuIx) {
        let (host, vm) = (self.qemus[ix].host, self.qemus[ix].vm);
        let decided = self.qemus[ix].incoming.is_some_and(|id| {
            let run = Record::Target(id, TargetRecord::Run);
            self.hosts[host].disk.records().contains(&run) || self.agents[host].is_writing(&run)
        });
        if self.vms[vm].holder == ix || (decided && self.is_of_last_move(ix, vm)) {
            self.vms[vm].lost = true;
        }
        trace!(self, "{} of vm{vm} on h{host} is killed, the guest with it: {}", qemu_name(ix), self.vms[vm].lost);
        self.qemu_dies(ix);
    }

    /// Returns whether a QEMU has, or is to have, the guest as the guest is now.
    fn is_of_last_move(&self, ix: QemuIx, vm: VmIx) -> bool {
        self.qemus[ix].image == self.vms[vm].image
    }

    /// Cancels any migration.
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
