//! Guests run, and write to their memory.

use std::collections::BTreeSet;

use super::index::{QemuIx, qemu_name};
use super::qemu::State;
use super::state::{Cluster, trace};

impl Cluster {
    /// Lets a QEMU begin to run its guest: the moment of truth.
    pub(super) fn guest_runs(&mut self, qemu: QemuIx) {
        let vm = self.qemus[qemu].vm;
        if let Some(other) = (0..self.qemus.len())
            .find(|other| *other != qemu && self.qemus[*other].vm == vm && self.qemus[*other].runs())
        {
            let why = format!("VM {vm} runs twice: in {} and in {}", qemu_name(other), qemu_name(qemu));
            return self.fail(why);
        }
        let vouched = std::mem::take(&mut self.vms[vm].vouched);
        if self.qemus[qemu].image != self.vms[vm].image && !vouched {
            let (qemu, holder) = (qemu_name(qemu), qemu_name(self.vms[vm].holder));
            return self.fail(format!("VM {vm} goes on in {qemu} from another state than {holder} left it in"));
        }
        self.qemus[qemu].state = State::Running;
        self.qemus[qemu].ran = true;
        trace!(self, "vm{vm} runs in {} on h{}", qemu_name(qemu), self.qemus[qemu].host);
        let truth = &mut self.vms[vm];
        if let Some(since) = truth.stopped_at.take() {
            self.stats.stopped_max_ns = self.stats.stopped_max_ns.max(self.now - since);
        }
        truth.image.clone_from(&self.qemus[qemu].image);
        truth.holder = qemu;
        self.guest_changes(qemu, 2);
    }

    /// Lets the guest of a QEMU write to so many pages. Returns the pages that changed.
    pub(super) fn guest_changes(&mut self, qemu: QemuIx, pages: u64) -> BTreeSet<u32> {
        let vm = &mut self.vms[self.qemus[qemu].vm];
        let mut changed = BTreeSet::new();
        for _ in 0..pages {
            let page = self.rng.below(vm.image.len() as u64) as usize;
            vm.version += 1;
            vm.image[page] = vm.version;
            self.qemus[qemu].image[page] = vm.version;
            changed.insert(page as u32);
        }
        changed
    }
}
