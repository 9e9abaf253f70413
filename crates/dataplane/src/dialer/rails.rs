//! Moves a path's data from TCP to RDMA, where both ends have a rail there.
//!
//! To open a rail takes both ends some time: each loads a library, opens a device and registers memory. Meanwhile data
//! goes over TCP, whose connections are dropped once those over RDMA are there.

use std::fmt::Display;

use super::*;
use crate::handshake::rail;

impl Dialer {
    /// Returns whether the rails of a pair are to be tried: not for a while after that came to nothing.
    pub(super) fn may_have_rails(&self, pair: &Pair, state: &PathState) -> bool {
        let nic = &pair.local.nic;
        let rails = self.host.rails.as_ref();
        rails.is_some_and(|rails| !rails.bars(nic, &|| self.host.nics.has_rdma(nic)))
            && state.no_rail_at.is_none_or(|at| at.elapsed() >= FAILED_TIME)
    }

    /// Opens connections for data over RDMA, beside those that the path has.
    pub(super) fn open_rails(self: Arc<Self>, pair: &Pair, path: PathId, number: usize, packet_bytes: Option<u32>) {
        let opened = (0..number).try_for_each(|_| self.connect_by_rail(pair, path, packet_bytes));
        let mut paths = self.lock();
        let Some(state) = paths.get_mut(&pair.ends()) else { return };
        state.dialling = false;
        if let Err(why) = opened {
            state.no_rail_at = Some(Instant::now());
            drop(paths);
            why.tell(&format!("path {}", shown(pair)));
        }
    }

    fn connect_by_rail(&self, pair: &Pair, path: PathId, packet_bytes: Option<u32>) -> Result<(), NoRail> {
        let rails = self.host.rails.as_deref();
        let rail = rail(rails, &*self.host.nics, &pair.local.nic, pair.local.ip).ok_or(NoRail::Here)?;
        let failed = |error: &dyn Display| NoRail::Failed(error.to_string());
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
    fn tell(&self, path: &str) {
        match self {
            NoRail::Here => debug!("{path}: this end has no rail there"),
            NoRail::There => info!("{path}: the other end has no rail there, and TCP is used"),
            NoRail::Failed(why) => warn!("{path}: RDMA is not used, but TCP: {why}"),
        }
    }
}
