//! Connects a source's worker to its agent and its host.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use skein_api::CopyProgress;
use skein_dataplane::RamIsPrivate;
use skein_dataplane::source::{DirtyTracking, SourcePages, SourcePagesSettings};
use skein_handover::{MigrationId, MigrationPhase, MigrationSummary, SourcePhase};
use skein_hypervisor::Guest;
use skein_inventory::Composition;
use skein_units::{about_bytes, exact_time};

use super::environment::{CopiedPages, OpenChannelsError, SourceEnvironment};
use super::hold::Freshness;
use super::links::PathSample;
use crate::events::AgentEvent;
use crate::guest_ram;
use crate::migrations::context::Context;
use crate::migrations::input::Input;
use crate::migrations::offer::{DELTA_MEMORY_DEFAULT_PERCENT, Offer};
use crate::outgoing_channels::OutgoingChannels;
use crate::random::random;
use crate::room::{Reservation, agent_bytes, asked};
use crate::transport::width;
use crate::vms::{Involvement, Vm};

/// The agent and the host, for one migration.
pub(super) struct AgentEnvironment {
    context: Arc<Context>,
    id: MigrationId,
    peer: String,
    vm: Option<Arc<Vm>>,
    offer: Option<Offer>,
    outgoing: Option<OutgoingChannels>,
    /// The room that is reserved for what the copy takes of this host.
    reservation: Option<Reservation>,
    pages: Option<Arc<SourcePages>>,
}

impl AgentEnvironment {
    pub(super) fn new(context: Arc<Context>, summary: &MigrationSummary, offer: Option<Offer>) -> AgentEnvironment {
        let vm = context.vms.get(&summary.vm).ok();
        // A grant is for one guest alone: the guest whose QEMU is marked with this migration.
        let is_granted = matches!(summary.stage, MigrationPhase::Source(SourcePhase::Grant | SourcePhase::Release));
        let vm = vm.filter(|vm| !is_granted || vm.migration() == Some(summary.id));
        if let Some(vm) = &vm {
            vm.set_involvement(Involvement::of(summary));
        }
        let (id, peer) = (summary.id, summary.peer.clone());
        AgentEnvironment { context, id, peer, vm, offer, outgoing: None, reservation: None, pages: None }
    }

    fn pages_settings(&self, vm: &Vm, offer: &Offer, guest: &dyn Guest) -> SourcePagesSettings {
        let packers = self.context.packers.clone().filter(|_| offer.transport.compresses());
        packers.iter().for_each(|packers| packers.begin());
        let process = vm.process();
        SourcePagesSettings {
            packers,
            width: width(offer.transport),
            rate: self.context.rates.join(self.id),
            direct: offer.indirect.is_none(),
            may_use_rdma: offer.may_use_rdma(),
            channels: u16::from(offer.channels),
            key: random(),
            ram: process.as_ref().and_then(|process| guest_ram::find(guest, process.id())),
            delta_memory: offer.delta_memory.unwrap_or(DELTA_MEMORY_DEFAULT_PERCENT) / 100.0,
            kept_marks: process.and_then(|qemu| self.context.kept.take_marks(&vm.name, &self.peer, qemu.id())),
            dirty_tracking: dirty_tracking(guest),
        }
    }

    /// Keeps the RAM of a guest that is the other host's now, for its way back. Returns a line for the event log.
    fn keep_ram(&mut self, vm: &str) -> Option<String> {
        let Some(keeping) = self.offer.as_ref().and_then(|offer| offer.keep) else {
            self.context.kept.let_go_of_rams();
            return None;
        };
        let pages = self.pages.take()?;
        let host = self.context.peers.host();
        let ram = match pages.ram_to_keep(self.id.0) {
            Ok(ram) => ram?,
            Err(RamIsPrivate) => {
                return Some(format!(
                    "{host} keeps nothing of the guest's RAM, which was its QEMU's own: guests that are started or \
                     come here from now on have shared memory"
                ));
            }
        };
        let bytes = about_bytes(ram.bytes());
        Some(match self.context.kept.put_ram(vm, &self.peer, ram, keeping) {
            true => format!("{host} keeps {bytes} of the guest's RAM for {}", exact_time(keeping.time_s)),
            false => {
                let allowed = about_bytes(keeping.ram_bytes);
                format!("{host} does not keep {bytes} of the guest's RAM: {allowed} are allowed")
            }
        })
    }
}

impl SourceEnvironment for AgentEnvironment {
    fn guest(&self) -> Option<Arc<dyn Guest>> {
        Some(self.vm.as_ref()?.running()?.guest)
    }

    fn has_process(&self) -> bool {
        self.vm.as_ref().is_some_and(|vm| vm.process().is_some())
    }

    fn promised_composition(&self) -> Option<Composition> {
        self.vm.as_ref()?.promised_composition()
    }

    fn last_words(&self) -> Option<String> {
        self.vm.as_ref()?.last_words()
    }

    fn explain_end(&self, why: &str) {
        self.vm.iter().for_each(|vm| vm.explain_end(why));
    }

    fn set_indirect(&self, why: String) {
        if let Some(vm) = &self.vm {
            vm.set_indirect(why);
        }
    }

    /// A copy that was begun since the check may have taken the room: so the room is checked again.
    fn reserve(&mut self) -> Result<(), String> {
        let (Some(vm), Some(offer)) = (&self.vm, &self.offer) else { return Ok(()) };
        let delta_memory = offer.delta_memory.unwrap_or(DELTA_MEMORY_DEFAULT_PERCENT);
        let ram_bytes = offer.need.map(|need| need.ram_bytes).or_else(|| asked(vm)).unwrap_or(0);
        // A worker that asks again gives back first what it had.
        self.reservation = None;
        self.reservation = Some(self.context.rooms.admit_copy(self.id, vm, agent_bytes(ram_bytes, delta_memory))?);
        Ok(())
    }

    fn open_channels(&mut self, guest: &dyn Guest) -> Result<PathBuf, OpenChannelsError> {
        let vm = self.vm.clone().ok_or(OpenChannelsError::NoVm)?;
        let offer = self.offer.clone().ok_or(OpenChannelsError::NoOffer)?;
        self.context.vms.leaves(&vm, self.id)?;
        let path = self.context.dirs.outgoing_socket(self.id);
        let pages = SourcePages::new(self.pages_settings(&vm, &offer, guest));
        self.pages = Some(pages.clone());
        let Context { peers, keeper_command: keeper, .. } = &*self.context;
        self.outgoing = Some(OutgoingChannels::start(&path, peers, &self.peer, self.id, pages, keeper)?);
        Ok(path)
    }

    fn give_up_channels(&self) {
        self.outgoing.iter().for_each(OutgoingChannels::give_up);
    }

    fn leave_channels(&mut self) {
        if let Some(outgoing) = self.outgoing.take() {
            outgoing.leave();
        }
    }

    fn channels_failure(&self) -> Option<String> {
        self.outgoing.as_ref().and_then(OutgoingChannels::failed)
    }

    fn pages(&self) -> Option<Arc<dyn CopiedPages>> {
        self.pages.clone().map(|pages| pages as Arc<dyn CopiedPages>)
    }

    fn release(&mut self) -> Option<String> {
        let vm = self.vm.clone()?;
        self.context.vms.released(&vm);
        self.keep_ram(&vm.name)
    }

    fn raise_priority(&self) {
        skein_host::raise_thread_priority();
    }

    fn give_word(&self, word: &[u8]) -> io::Result<()> {
        match &self.outgoing {
            Some(outgoing) => outgoing.give_word(word),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn paths(&self) -> Vec<PathSample> {
        self.context.paths(&self.peer, |paths, meter| {
            let sample = |path: &skein_dataplane::PathSnapshot| PathSample {
                nic: path.info.nic.clone(),
                remote: path.info.remote.ip().to_string(),
                remote_port: path.info.remote.port(),
                number: path.status.path.0,
                connections: path.connections.clone(),
                is_usable: path.status.usable,
                carried_bits_per_s: meter.rate(path),
                sent_bytes: path.status.sent_bytes,
                is_over_rdma: path.rdma_connections > 0,
                rdma: meter.rdma(path),
                received_bytes: path.status.received_bytes,
                inflight_bytes: path.status.inflight_bytes,
            };
            paths.iter().map(sample).collect()
        })
    }

    fn carried_bits_per_s(&self) -> u64 {
        self.context.paths(&self.peer, |_, meter| meter.sum_of_full())
    }

    fn copies_to_target(&self) -> u32 {
        self.context.view.copying_to(&self.peer)
    }

    fn nics_bits_per_s(&self, names: &BTreeSet<String>) -> Option<f64> {
        let nics = skein_host::nics().ok()?;
        let speed = |name: &String| nics.iter().find(|nic| nic.name == *name)?.speed_mbit;
        names.iter().map(|name| speed(name).map(|mbit| f64::from(mbit) * 1e6)).sum()
    }

    fn tell(&self, inputs: Vec<Input>) {
        self.context.tell(inputs);
    }

    fn note(&self, text: String) {
        let vm = self.vm.as_ref().map(|vm| vm.name.as_str());
        self.context.view.emit(self.id, vm, &AgentEvent::CopyNoted { text });
    }

    fn note_standstill(&self) {
        self.context.view.stopped(self.id);
    }

    fn show_progress(&self, copy: CopyProgress) {
        self.context.view.set_progress(self.id, copy);
    }

    fn show_freshness(&self, freshness: Option<Freshness>) {
        self.context.view.set_freshness(self.id, freshness);
    }

    fn log_progress(&self, copy: CopyProgress) {
        self.context.view.log_progress(self.id, copy);
    }
}

/// Returns where a hypervisor may miss what its guest writes, in the data plane's terms.
fn dirty_tracking(guest: &dyn Guest) -> DirtyTracking {
    match guest.dirty_tracking() {
        skein_hypervisor::DirtyTracking::Exact => DirtyTracking::Exact,
        skein_hypervisor::DirtyTracking::MissesUnalignedBlocks => DirtyTracking::MissesUnalignedBlocks,
        skein_hypervisor::DirtyTracking::MissesAllBlocks => DirtyTracking::MissesAllBlocks,
    }
}
