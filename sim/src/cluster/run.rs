//! Lets time pass.

use super::schedule::Do;
use super::state::Cluster;
use crate::world::Time;

impl Cluster {
    /// Lets time pass until `until`, until `stop`, or until something is wrong.
    pub(super) fn run(&mut self, until: Time, stop: impl Fn(&Cluster) -> bool) {
        while self.failure.is_none() && !stop(self) {
            let link = self.links.iter().filter_map(|(ix, link)| Some((link.world.next_at()?, *ix))).min();
            let own = self.schedule.next_at();
            match (own, link) {
                (own, Some((at, ix))) if at <= until && own.is_none_or(|own| at < own) => {
                    self.now = at;
                    self.stats.actions += 1;
                    let link = self.links.get_mut(&ix).expect("just found");
                    link.world.step();
                    if let Some(why) = link.world.failure.take() {
                        self.fail(format!("session {ix}: {why}"));
                    }
                }
                (Some(at), _) if at <= until => {
                    let Some(action) = self.schedule.pop() else { return };
                    self.now = at;
                    self.stats.actions += 1;
                    self.act(action);
                }
                _ => {
                    self.now = until;
                    break;
                }
            }
            self.settle_links();
        }
        self.stats.virtual_ns = self.now;
    }

    fn act(&mut self, action: Do) {
        match action {
            Do::Agent(host, incarnation, what) => self.agent_acts(host, incarnation, what),
            Do::Restart(host) => self.restart(host),
            Do::QemuStep(qemu) => self.qemu_step(qemu),
            Do::QemuLoaded(qemu) => self.qemu_loaded(qemu),
            Do::QemuFails(qemu, epoch) => self.qemu_fails(qemu, epoch),
            Do::Fault(fault) => self.fault(fault),
            Do::Heal(fault) => self.heal(fault),
            Do::Disarm(host) => self.agents[host].trap = None,
            Do::Wish(wish) => self.wish(wish),
            Do::Switch(wish) => self.switch(wish),
            Do::Operator => self.operator(),
        }
    }
}
