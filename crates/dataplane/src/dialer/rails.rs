//! Moves a path's data from TCP to RDMA, where both ends have a rail there.
//!
//! To open a rail takes both ends some time and memory: each loads a library, opens a device and registers memory. So a
//! path has one once its session carries more than a little, and until that is open data goes over TCP.

use std::fmt::Display;

use super::*;
use crate::handshake::rail;

/// How often is looked whether paths have come to RDMA.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

impl Dialer {
    /// Returns whether a path is to get a connection over RDMA: not for a while after that came to nothing.
    pub(super) fn may_have_rail(&self, pair: &Pair, state: &PathState) -> bool {
        self.host.rails.is_some()
            && !state.rail_pause.lasts(Instant::now())
            && self.live.rail_use.is_due(self.live.carried_bytes())
            && !self.is_barred(&pair.local.nic)
    }

    /// Returns whether RDMA is asked for, and a NIC of this host has none, or is to carry none.
    fn is_barred(&self, nic: &str) -> bool {
        self.host.rails.as_ref().is_some_and(|rails| rails.bars(nic, &|| self.host.nics.has_rdma(nic)))
    }

    /// Returns why a path's data does not go over RDMA, though RDMA is asked for; `None`: it does, or may still.
    pub(super) fn why_no_rdma(&self, state: &PathState) -> Option<String> {
        match self.is_barred(&state.pair.local.nic) {
            true => Some("this host's NIC has no RDMA device, or is to carry none".into()),
            false => state.no_rail.clone(),
        }
    }

    /// Has paths come to RDMA though the session has carried little, and waits until each has or cannot.
    pub fn come_to_rails(&self, until: Instant) {
        if self.host.rails.is_none() {
            return;
        }
        self.live.rail_use.want();
        let is_to_come = |state: &PathState| {
            let may_come = state.connections_now() > 0 && self.may_have_rail(&state.pair, state);
            may_come && self.live.path_connections(state.path).0 && self.live.rdma_connections(state.path) == 0
        };
        while Instant::now() < until && self.lock().values().any(is_to_come) {
            thread::sleep(LOOK_PERIOD);
        }
    }

    /// Opens a connection for data over RDMA, beside those that the path has.
    pub(super) fn open_rail(self: Arc<Self>, pair: &Pair, path: PathId, packet_bytes: Option<u32>) {
        let opened = self.connect_by_rail(pair, path, packet_bytes);
        let mut paths = self.lock();
        let Some(state) = paths.get_mut(&pair.ends()) else { return };
        state.is_opening_rail = false;
        let Err(why) = opened else {
            state.rail_pause.note_begun(Instant::now());
            state.no_rail = None;
            return;
        };
        match why {
            NoRail::Here | NoRail::There => state.rail_pause.begin_without_rail(Instant::now()),
            NoRail::Failed(_) => state.rail_pause.begin_after_failure(Instant::now()),
        }
        let words = why.words(&self.live.peer);
        state.note_no_rail(&words);
        drop(paths);
        match why {
            NoRail::Here => debug!("path {}: no RDMA: {words}", shown(pair)),
            NoRail::There => info!("path {}: no RDMA: {words}", shown(pair)),
            NoRail::Failed(_) => warn!("path {}: no RDMA: {words}", shown(pair)),
        }
    }

    fn connect_by_rail(&self, pair: &Pair, path: PathId, packet_bytes: Option<u32>) -> Result<(), NoRail> {
        let failed = |error: &dyn Display| NoRail::Failed(error.to_string());
        let rail = rail(self.host.rails.as_deref(), &*self.host.nics, &pair.local.nic, pair.local.ip);
        let rail = rail.map_err(|error| failed(&error))?.ok_or(NoRail::Here)?;
        let mut pending = self.host.data.dial(&self.dial(pair, packet_bytes)).map_err(|error| failed(&error))?;
        let hello = Hello { rail: true, ..self.hello_on(&*pending, path, ConnectionKind::Data) };
        let welcome = greet(&mut *pending, &hello).map_err(|error| failed(&error))?;
        if !welcome.rail {
            return Err(NoRail::There);
        }
        self.add(pending, Some(rail), (hello.connection, path, hello.kind), pair).map_err(|error| failed(&error))
    }
}

/// Why a path's data stays on TCP for a while.
enum NoRail {
    Here,
    There,
    Failed(String),
}

impl NoRail {
    fn words(&self, peer: &str) -> String {
        match self {
            NoRail::Here => "this host's NIC has none that can be used".into(),
            NoRail::There => format!("{peer} has none there, or none that can be used: its agent's log says more"),
            NoRail::Failed(why) => why.clone(),
        }
    }
}
