//! QEMUs work on their migrations, fail and end.

use super::index::{QemuIx, qemu_name};
use super::qemu::{Loaded, PAGE_BYTES, Produced, SHUT, State};
use super::schedule::{Do, ForAgent};
use super::state::{Cluster, trace};
use crate::world::{MS, Time};

impl Cluster {
    /// Lets a QEMU take its next step after a while, unless one is scheduled.
    pub(super) fn schedule_step(&mut self, qemu: QemuIx, delay: Time) {
        if self.qemus[qemu].alive && !std::mem::replace(&mut self.qemus[qemu].scheduled, true) {
            self.after(delay, Do::QemuStep(qemu));
        }
    }

    pub(super) fn qemu_step(&mut self, ix: QemuIx) {
        let qemu = &mut self.qemus[ix];
        qemu.scheduled = false;
        if !qemu.alive {
            return;
        }
        match qemu.state {
            State::Starting => {
                qemu.state = State::Incoming;
                self.qemu_says(ix);
            }
            State::Incoming => self.qemu_loads(ix),
            State::Migrating | State::Device if qemu.broken => {
                let (epoch, device) = (qemu.epoch, qemu.state == State::Device);
                let delay = if device { 2 * MS + self.rng.below(3 * MS) } else { self.rng.below(100 * MS) };
                self.after(delay, Do::QemuFails(ix, epoch));
            }
            State::Device if qemu.ended && qemu.shut => {
                qemu.state = State::Completed;
                qemu.channels.iter_mut().for_each(|channel| channel.out_closed = true);
                self.pump_out(ix);
                self.qemu_says(ix);
            }
            State::Migrating | State::Device => self.qemu_produces(ix),
            _ => {}
        }
    }

    fn qemu_produces(&mut self, ix: QemuIx) {
        let vm = self.qemus[ix].vm;
        match self.qemus[ix].produce(&self.live) {
            Produced::Blocked | Produced::End => {}
            Produced::Round => {
                let endless = self.vms[vm].rounds == u32::MAX;
                let changed = self.guest_changes(ix, self.vms[vm].dirty);
                let last = self.qemus[ix].round >= self.vms[vm].rounds || (self.healed && endless);
                self.qemus[ix].next_round(changed);
                let is_held = self.qemus[ix].holds;
                if last && is_held {
                    self.copy_converged(ix);
                }
                // A QEMU seldom stops a guest that it is to hold.
                if last && (!is_held || (!self.calm && self.rng.below(100) == 0)) {
                    self.qemus[ix].state = State::PreSwitchover;
                    self.vms[vm].stopped_at = Some(self.now);
                    let id = self.qemus[ix].outgoing.expect("it migrates");
                    self.stopped.insert(id, self.qemus[ix].image.clone());
                    self.qemu_says(ix);
                } else {
                    let pause = if endless || is_held { 300 * MS } else { self.rng.below(5 * MS) };
                    self.schedule_step(ix, pause);
                }
            }
        }
        self.pump_out(ix);
    }

    fn qemu_loads(&mut self, ix: QemuIx) {
        match self.qemus[ix].load() {
            Loaded::NotYet => {}
            Loaded::Lost => return self.qemu_ends(ix, "lost its connection"),
            Loaded::Corrupt(why) => return self.fail(why),
            Loaded::All => {
                let id = self.qemus[ix].incoming.expect("only such receive");
                if self.stopped.get(&id) != Some(&self.qemus[ix].image) {
                    return self.fail(format!("{} has another memory than the guest of {id} had", qemu_name(ix)));
                }
                self.stats.bytes += (self.qemus[ix].image.len() * PAGE_BYTES) as u64;
                // The last word and its own event come in either order.
                self.qemus[ix].channels[0].push([SHUT].to_vec().into());
                self.qemus[ix].channels.iter_mut().for_each(|channel| channel.out_closed = true);
                let delay = self.rng.below(300_000);
                self.after(delay, Do::QemuLoaded(ix));
                self.pump_out(ix);
            }
        }
        self.pump_in(ix);
    }

    pub(super) fn qemu_loaded(&mut self, ix: QemuIx) {
        if self.qemus[ix].alive && self.qemus[ix].state == State::Incoming {
            self.qemus[ix].state = State::Loaded;
            self.qemu_says(ix);
        }
    }

    /// Lets the migration of a source fail, if the QEMU is still in that one. QEMU then resumes the guest by itself.
    pub(super) fn qemu_fails(&mut self, ix: QemuIx, epoch: u32) {
        let qemu = &mut self.qemus[ix];
        if qemu.alive
            && qemu.epoch == epoch
            && matches!(qemu.state, State::Migrating | State::PreSwitchover | State::Device)
        {
            trace!(self, "{} gives the migration up and goes on", qemu_name(ix));
            self.qemu_gives_up(ix);
        }
    }

    fn qemu_gives_up(&mut self, ix: QemuIx) {
        if self.qemus[ix].state == State::Migrating {
            self.qemus[ix].state = State::Running;
        } else {
            self.guest_runs(ix);
        }
        self.qemus[ix].epoch += 1;
        self.migration_failed(ix);
        let (host, epoch) = (self.qemus[ix].host, self.qemus[ix].epoch);
        self.for_agent(host, MS, ForAgent::CloseStreams(ix, epoch));
    }

    /// Ends a QEMU that ends by itself.
    fn qemu_ends(&mut self, ix: QemuIx, why: &str) {
        trace!(self, "{} on h{} {why} and ends", qemu_name(ix), self.qemus[ix].host);
        self.qemu_dies(ix);
    }

    /// Ends the process of a QEMU.
    pub(super) fn qemu_dies(&mut self, ix: QemuIx) {
        self.qemus[ix].alive = false;
        // What is in its sockets is still there for their readers.
        self.qemus[ix].channels.iter_mut().for_each(|channel| channel.out_closed = true);
        self.pump_out(ix);
        self.qemu_says(ix);
    }
}
