//! What must hold when all is over.

use std::sync::atomic::Ordering;

use skein_handover::needed;

use super::index::{QemuIx, qemu_name};
use super::offer::Manager;
use super::qemu::State;
use super::state::Cluster;
use super::vm::Vm;
use crate::world::S;

impl Cluster {
    /// Returns whether nothing is left to do anywhere.
    pub(super) fn rests(&self) -> bool {
        self.hosts.iter().zip(&self.agents).all(|(host, agent)| {
            !host.off && agent.is_idle() && agent.manager.as_ref().is_some_and(|m| m.summaries().is_empty())
        }) && self.links.is_empty()
            && self.wishes.iter().all(|wish| wish.done)
    }

    /// Checks that each guest runs once, and that nothing is left over.
    pub(super) fn check_rest(&mut self) {
        for vm in 0..self.vms.len() {
            let alive: Vec<QemuIx> =
                (0..self.qemus.len()).filter(|ix| self.qemus[*ix].vm == vm && self.qemus[*ix].alive).collect();
            let running = alive.iter().filter(|ix| self.qemus[**ix].state == State::Running).count();
            let expected = usize::from(!self.vms[vm].lost);
            if alive.len() > 1 || (running != expected && !(self.vms[vm].lost && running == 1)) {
                let list: Vec<_> = alive.iter().map(|ix| (*ix, self.qemus[*ix].host, self.qemus[*ix].state)).collect();
                return self.fail(format!("at rest VM {vm} (lost: {}) has {list:?}", self.vms[vm].lost));
            }
        }
        for host in 0..self.hosts.len() {
            let kept = needed(self.hosts[host].disk.records());
            if !kept.is_empty() {
                return self.fail(format!("at rest the journal of h{host} still needs {kept:?}"));
            }
            if let Some(what) = self.agents[host].leftover() {
                return self.fail(format!("at rest the agent of h{host} keeps {what}"));
            }
        }
        self.qemus.iter_mut().for_each(|qemu| qemu.channels.clear());
        let live = self.live.load(Ordering::Relaxed);
        if live != 0 {
            self.fail(format!("at rest {live} buffers are still held"));
        }
    }

    /// Returns what is not at rest, for a report.
    pub(super) fn unrest(&self) -> String {
        let mut lines = Vec::new();
        for (ix, (host, agent)) in self.hosts.iter().zip(&self.agents).enumerate() {
            let summaries = agent.manager.as_ref().map(Manager::summaries).unwrap_or_default();
            lines.push(format!("h{ix}: off {}, up {}, {}", host.off, agent.manager.is_some(), agent.shown()));
            lines.extend(summaries.iter().map(|summary| format!("  {summary:?}")));
        }
        for (ix, link) in &self.links {
            lines.push(format!("session {ix}: h{} > h{}, gone {:?}", link.agents[0], link.agents[1], link.gone));
        }
        for (ix, qemu) in self.qemus.iter().enumerate().filter(|(_, qemu)| qemu.alive) {
            lines.push(format!("{} of vm{} on h{}: {}", qemu_name(ix), qemu.vm, qemu.host, qemu.shown()));
        }
        lines.extend(self.wishes.iter().filter(|wish| !wish.done).map(|wish| format!("{wish:?}")));
        lines.join("\n")
    }

    /// Checks that no guest is stopped for long where only processes are killed.
    pub(super) fn check_stopped(&mut self) {
        if !self.kills_only {
            return;
        }
        for vm in 0..self.vms.len() {
            let Vm { stopped_at: Some(since), lost: false, .. } = self.vms[vm] else { continue };
            let since = since.max(self.last_kill);
            if self.now > since + 5 * S && self.agents.iter().all(|agent| agent.manager.is_some()) {
                let unrest = self.unrest();
                return self.fail(format!("VM {vm} is stopped for 5 s though the network is up\n{unrest}"));
            }
        }
    }
}
