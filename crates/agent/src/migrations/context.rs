//! Holds what the owner of the migrations and its workers share.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use skein_dataplane::PathSnapshot;
use skein_dataplane::source::PackerPool;
use skein_handover::{MigrationId, SourceInput, TargetInput};

use super::input::{Input, OwnerInput};
use super::journal_meter::JournalMeter;
use super::rates::MigrationRates;
use super::view::MigrationViews;
use crate::dirs::Dirs;
use crate::kept_ram::KeptRamStore;
use crate::path_meter::PathMeter;
use crate::peers::Peers;
use crate::room::HostRoom;
use crate::vms::Vms;

/// The state that owner and workers share.
pub(crate) struct Context {
    pub(crate) dirs: Dirs,
    pub(crate) vms: Arc<Vms>,
    pub(crate) peers: Peers,
    pub(crate) view: MigrationViews,
    /// The command of the keeper: see [`OutgoingChannels::start`](crate::outgoing_channels::OutgoingChannels::start).
    pub(super) keeper_command: Vec<OsString>,
    /// The packers; `None`: there are none.
    pub(super) packers: Option<Arc<PackerPool>>,
    /// The RAM and marks of guests that left or came, for their way back.
    pub(crate) kept: Arc<KeptRamStore>,
    /// How fast the migrations may send.
    pub(crate) rates: Arc<MigrationRates>,
    /// The room that this host has.
    pub(crate) rooms: Arc<HostRoom>,
    /// The meters of the paths to each host.
    pub(super) meters: parking_lot::Mutex<BTreeMap<String, PathMeter>>,
    pub(super) queue: SyncSender<OwnerInput>,
    pub(super) journal: JournalMeter,
    /// The callback for ends: see [`Migrations::on_end`](super::Migrations::on_end).
    pub(super) on_end: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Context {
    /// Calls `look` with the paths to a host, as they are now, and with the meter of what they carry.
    pub(crate) fn paths<T>(&self, host: &str, look: impl FnOnce(Vec<PathSnapshot>, &mut PathMeter) -> T) -> T {
        let sessions = self.peers.snapshots();
        let paths = sessions.into_iter().filter(|session| session.peer == host).flat_map(|session| session.paths);
        let paths: Vec<_> = paths.collect();
        let mut meters = self.meters.lock();
        let meter = meters.entry(host.to_owned()).or_default();
        meter.read(Instant::now(), &paths);
        look(paths, meter)
    }

    /// Tells the owner what happened to a source.
    pub(super) fn source(&self, id: MigrationId, inputs: impl IntoIterator<Item = SourceInput>) {
        self.tell(inputs.into_iter().map(|input| Input::Source(id, input)).collect());
    }

    /// Tells the owner what happened to a target.
    pub(super) fn target(&self, id: MigrationId, inputs: impl IntoIterator<Item = TargetInput>) {
        self.tell(inputs.into_iter().map(|input| Input::Target(id, input)).collect());
    }

    pub(super) fn tell(&self, inputs: Vec<Input>) {
        if !inputs.is_empty() {
            let _ = self.queue.send(OwnerInput::Inputs(inputs));
        }
    }
}
