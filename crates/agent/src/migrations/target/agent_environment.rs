//! Connects a target's worker to its agent and its host.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_dataplane::target::TargetPages;
use skein_handover::{MigrationId, MigrationSummary};
use skein_hypervisor::{DeviceSnapshot, Guest};
use skein_inventory::composition::{Part, differences};
use skein_inventory::{Accel, RoomNeed, printable, shortened};

use super::environment::TargetEnvironment;
use crate::error_chain;
use crate::events::AgentEvent;
use crate::guest_ram;
use crate::migrations::context::Context;
use crate::migrations::guest_watch::DIFFERENCES_TOLD_MAX;
use crate::migrations::input::Input;
use crate::migrations::offer::Offer;
use crate::own_state::TpmFile;
use crate::room::{Reservation, asked};
use crate::vms::{Running, Vm};

/// Bounds the time that the source may take to say what its guest is composed of.
const ASK_TIME: Duration = Duration::from_secs(10);
/// Bounds a text about differences, part of which another host wrote.
const TOLD_BYTES_MAX: usize = 2000;

/// The agent and the host, for one migration.
pub(super) struct AgentEnvironment {
    context: Arc<Context>,
    id: MigrationId,
    name: String,
    peer: String,
    vm: Option<Arc<Vm>>,
    offer: Option<Offer>,
    /// The room that is reserved for the guest.
    reservation: Option<Reservation>,
    /// The RAM that this host kept when the guest left.
    kept: Option<skein_dataplane::KeptRam>,
    /// Whether the guest is known to give no RAM back while it runs.
    has_steady_ram: bool,
    /// The receiver of the guest's pages.
    pages: Option<Arc<TargetPages>>,
    /// The file of the TPM's state as it was before the guest's own state came.
    tpm_file: Option<TpmFile>,
}

impl AgentEnvironment {
    pub(super) fn new(context: Arc<Context>, summary: MigrationSummary, offer: Option<Offer>) -> AgentEnvironment {
        let vm = context.vms.of_migration(summary.id);
        AgentEnvironment {
            context,
            id: summary.id,
            name: summary.vm,
            peer: summary.peer,
            vm,
            offer,
            reservation: None,
            kept: None,
            has_steady_ram: false,
            pages: None,
            tpm_file: None,
        }
    }

    fn vm(&self) -> Result<Arc<Vm>, String> {
        self.vm.clone().ok_or_else(|| "its QEMU is gone".into())
    }
}

impl TargetEnvironment for AgentEnvironment {
    fn has_vm(&self) -> bool {
        self.vm.is_some()
    }

    fn guest(&self) -> Option<Arc<dyn Guest>> {
        Some(self.vm.as_ref()?.running()?.guest)
    }

    fn process(&self) -> Option<u32> {
        Some(self.vm.as_ref()?.process()?.id().pid)
    }

    fn last_words(&self) -> Option<String> {
        self.vm.as_ref()?.last_words()
    }

    fn start(&mut self, offer: &Offer) -> Result<Arc<dyn Guest>, String> {
        let need = offer.need.or_else(|| offer.launch.need());
        // A guest's room is reserved before the guest's hypervisor starts: two guests that were checked at once are let
        // in one after the other.
        let rooms = &self.context.rooms;
        self.reservation = None;
        self.reservation = need.map(|need| rooms.admit(self.id, &self.name, need)).transpose()?;
        // This comes before the guest has a process here, because the kept RAM would be let go of then.
        self.kept = self.context.kept.take_ram(&self.name, &self.peer);
        let vm = self.context.vms.receive(&self.name, offer.launch.clone(), self.id);
        let vm = vm.map_err(|error| format!("{}: {}", error_chain(&error), error.cure()))?;
        self.vm = Some(vm.clone());
        let Running { guest, .. } = vm.running().ok_or("its QEMU ended at once")?;
        let need = need.or_else(|| Some(RoomNeed::new(asked(&vm)?, None, 1, Accel::Auto)));
        let need = need.ok_or("its QEMU does not say how much RAM the guest has")?;
        match &self.reservation {
            Some(reservation) => reservation.confirm(&vm, need)?,
            None => self.reservation = Some(self.context.rooms.admit(self.id, &self.name, need)?),
        }
        Ok(guest)
    }

    fn compare(&mut self, guest: &dyn Guest) -> Result<DeviceSnapshot, String> {
        let vm = self.vm()?;
        let asked = self.context.peers.ask_composition(&self.peer, self.id, Instant::now() + ASK_TIME);
        let composition =
            asked.map_err(|error| format!("what the guest is composed of is not known: {}", error_chain(&error)))?;
        let own = vm.composition().map_err(|error| error_chain(&error))?;
        let host = self.context.peers.host();
        let differences = differences(&composition, &own);
        let (minor, grave): (Vec<_>, Vec<_>) =
            differences.iter().partition(|difference| difference.part == Part::Tuning);
        for difference in minor.into_iter().take(DIFFERENCES_TOLD_MAX) {
            let text = printable(format!("not moved: {}", difference.as_mismatch(&self.name, host)), TOLD_BYTES_MAX);
            self.context.view.emit(self.id, Some(&self.name), &AgentEvent::MinorDifference { text });
        }
        let mismatches: Vec<String> = grave.iter().map(|difference| difference.as_mismatch(&self.name, host)).collect();
        if !mismatches.is_empty() {
            let mismatches = shortened(&mismatches, DIFFERENCES_TOLD_MAX);
            // The source wrote a part of this text: what cannot be printed is taken out.
            return Err(printable(format!("its QEMU is not as the guest's: {mismatches}"), TOLD_BYTES_MAX));
        }
        vm.set_launched(&own);
        // Memory that a guest gives back must not be pinned by a NIC.
        self.has_steady_ram = !own.memory_devices.iter().any(|device| device.contains("virtio-mem"));
        guest.devices().map_err(|error| error.to_string())
    }

    fn set_aside(&mut self) -> Result<(), String> {
        let vm = self.vm()?;
        self.tpm_file = vm.own().tpm_file();
        let set_aside = self.context.vms.set_aside(&vm, self.id);
        set_aside.map_err(|error| format!("{}: {}", error_chain(&error), error.cure()))
    }

    fn incoming_socket(&self) -> PathBuf {
        let path = self.context.dirs.incoming_socket(self.id);
        let _ = std::fs::remove_file(&path);
        path
    }

    fn open_channels(&mut self, guest: &dyn Guest, offer: &Offer) {
        let process = self.vm.as_ref().and_then(|vm| vm.process()).filter(|_| offer.indirect.is_none());
        let ram = process.and_then(|process| guest_ram::find(guest, process.id()));
        let pages = TargetPages::new(ram, self.kept.take());
        if !self.has_steady_ram {
            pages.bar_rails();
        }
        self.pages = Some(pages.clone());
        let path = self.context.dirs.incoming_socket(self.id);
        self.context.peers.incoming_channels().open(self.id, &self.peer, &path, pages);
    }

    fn close_channels(&self) {
        self.context.peers.incoming_channels().close(self.id);
        let _ = std::fs::remove_file(self.context.dirs.incoming_socket(self.id));
    }

    fn lost_tpm_state(&self) -> Option<String> {
        let vm = self.vm.as_ref()?;
        let has_tpm = vm.launch().definition().is_some_and(|definition| definition.tpm.is_some());
        // swtpm goes on without a word if there is no room for its files. The source's files are about to be removed.
        let now = if has_tpm { vm.own().tpm_file() } else { None };
        let is_lost = has_tpm && (now.is_none() || now == self.tpm_file);
        is_lost.then(|| {
            let dir = vm.own().tpm();
            format!("swtpm could not write the TPM's state to {}: make room there, and repeat", dir.display())
        })
    }

    fn fence_rails(&self) -> Result<(), String> {
        let Some(pages) = &self.pages else { return Ok(()) };
        pages.fence_rails()
    }

    fn let_go_of_ram(&mut self) {
        self.pages.take().iter().for_each(|pages| pages.let_go());
    }

    fn drop_received(&mut self) {
        self.vm.iter().for_each(|vm| self.context.vms.drop_received(vm));
    }

    fn release_room(&mut self) {
        (self.reservation, self.kept) = (None, None);
    }

    fn keep_marks(&mut self) {
        let Some(keeping) = self.offer.as_ref().and_then(|offer| offer.keep) else { return };
        let marks = self.pages.as_ref().and_then(|pages| pages.take_marks(self.id.0));
        let process = self.vm.as_ref().and_then(|vm| vm.process());
        if let Some((marks, process)) = marks.zip(process) {
            self.context.kept.put_marks(&self.name, &self.peer, marks, process.id(), keeping);
        }
    }

    fn raise_priority(&self) {
        skein_host::raise_thread_priority();
    }

    fn tell(&self, inputs: Vec<Input>) {
        self.context.tell(inputs);
    }

    fn host(&self) -> &str {
        self.context.peers.host()
    }

    fn note_at_both_ends(&self, text: String) {
        self.context.peers.note(&self.peer, self.id, &text);
        self.context.view.emit(self.id, Some(&self.name), &AgentEvent::TargetNoted { text });
    }
}
