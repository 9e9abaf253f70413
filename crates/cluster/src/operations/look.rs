//! What hosts have of a dead host's VMs, by what their agents answer: a report may have been on its way since before
//! the host died, when its guests could still leave it. So an agent is asked, once the host is off.

use std::collections::BTreeSet;

use skein_api::{Reply, Request, VmState};

use crate::looks::Look;
use crate::state::{CommandPurpose, Controller, Planted};
use crate::time::Now;

/// After how long a host is asked again, in milliseconds.
const AGAIN_MS: u64 = 1000;

impl Controller {
    /// Returns whether a host does not have a VM whose host is off, nor gets it any more: its agent was asked since.
    /// Where the VM's host is not off, a host's last report counts.
    pub(super) fn has_not_since(&self, host: &str, dead: &str, vm: &str) -> bool {
        if !self.is_off(dead) || self.has(Planted::StaleReportTrusted) {
            return self.reporting(host).is_some();
        }
        let proof = self.looks.off.get(dead).copied().unwrap_or(0);
        let look = self.looks.answered.get(host);
        look.is_some_and(|look| look.proofs >= proof && !look.vms.contains(vm))
    }

    /// Asks agents what their hosts have, if it hangs on that where VMs of hosts that are off are.
    pub(crate) fn look_where_needed(&mut self, now: Now) {
        // All VMs count: before a host that is off is removed it has to be known where they are.
        let off = self.tables.hosts.keys().filter(|host| self.is_off(host));
        let of_off = off.flat_map(|dead| self.tables.vms_of(dead).map(move |(vm, _)| (dead, vm)));
        let mut hosts: BTreeSet<String> = of_off.flat_map(|(dead, vm)| self.awaited(dead, vm)).collect();
        // The ends of moves hang on it, too.
        let moves = self.begun_moves().filter(|of| self.is_off(&of.from));
        let moves = moves.filter_map(|of| Some((of, of.to.as_deref()?)));
        let open = moves.filter(|(of, to)| !self.has_not_since(to, &of.from, &of.vm)).map(|(_, to)| to.to_owned());
        hosts.extend(open);
        for host in hosts {
            let proofs = self.looks.proofs;
            let last = self.looks.answered.get(&host);
            let is_recent = last.is_some_and(|look| look.proofs == proofs && now.ms_since(look.asked_ms) < AGAIN_MS);
            let asks = |purpose: &CommandPurpose| match purpose {
                CommandPurpose::Look { host: of, proofs: at, .. } => *of == host && *at == proofs,
                _ => false,
            };
            let is_asked = self.commands.values().any(|command| asks(&command.purpose));
            if let Some(session) = self.session_of(&host).filter(|_| !is_recent && !is_asked) {
                let purpose = CommandPurpose::Look { host, asked_ms: now.mono_ms, proofs };
                self.send(session, purpose, None, Request::VmList);
            }
        }
    }

    /// Takes an agent's answer over.
    pub(crate) fn looked(&mut self, host: String, asked_ms: u64, proofs: u64, reply: Reply) {
        let Reply::Vms { vms } = reply else { return };
        let there = vms.into_iter().filter(|vm| vm.state != VmState::Stopped || vm.reserved.is_some());
        let vms = there.map(|vm| vm.name).collect();
        self.looks.answered.insert(host, Look { asked_ms, proofs, vms });
    }
}
