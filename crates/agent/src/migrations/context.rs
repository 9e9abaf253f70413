//! What the owner of the migrations and its workers share.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use skein_dataplane::PathSnapshot;
use skein_dataplane::source::PackerPool;
use skein_handover::{MigrationId, SourceInput, TargetInput};

use super::input::{Input, OwnerInput};
use super::view::MigrationViews;
use crate::dirs::Dirs;
use crate::kept_ram::KeptRamStore;
use crate::path_meter::PathMeter;
use crate::peers::Peers;
use crate::room::HostRoom;
use crate::vms::Vms;

/// What owner and workers share.
pub(crate) struct Context {
    pub(crate) dirs: Dirs,
    pub(crate) vms: Arc<Vms>,
    pub(crate) peers: Peers,
    pub(crate) view: MigrationViews,
    /// See [`OutgoingChannels::start`](crate::outgoing_channels::OutgoingChannels::start).
    pub(super) keeper_command: Vec<OsString>,
    /// Who compresses pages; none: nobody could be had.
    pub(super) packers: Option<Arc<PackerPool>>,
    /// Of guests that left or came, for their way back.
    pub(crate) kept: Arc<KeptRamStore>,
    /// What this host has room for.
    pub(crate) rooms: Arc<HostRoom>,
    /// Of the paths to each host.
    pub(super) meters: parking_lot::Mutex<BTreeMap<String, PathMeter>>,
    pub(super) queue: SyncSender<OwnerInput>,
    /// See [`Migrations::on_end`](super::Migrations::on_end).
    pub(super) on_end: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Context {
    /// The paths to a host, and what they carry, as it is now.
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
