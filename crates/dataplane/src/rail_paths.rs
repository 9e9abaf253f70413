//! Opens rails beside a session's connections, for one-sided writes into guests' RAM.

#[cfg(test)]
pub(crate) mod fake;

use std::io;
use std::sync::Arc;

use skein_fabric::{Arena, FabricError, SharedEndpoint};

use crate::running_session::RunningSession;

/// Why a rail of iWARP writes no guest's RAM: the NIC says that a write is done when the bytes are in its own
/// connection to the other NIC (the kernel's drivers/infiniband/sw/siw/siw_qp_tx.c says so of completions). The record
/// of the pages may overtake them.
const WRITES_UNCONFIRMED: &str =
    "its writes are said to be done before they are there, as with iWARP: pages go over connections";

/// The rails of a session's paths, as a migration sees them.
pub(crate) trait RailPaths: Send + Sync {
    /// Returns whether this end has rails, and allows RDMA without protection.
    fn may_write(&self) -> bool;

    /// Returns the paths over whose rails RAM may be written: the connections of each go over RDMA, and this end allows
    /// RDMA without protection.
    fn writable(&self) -> Vec<u32>;

    /// Returns how many paths carry data, over RDMA or not.
    fn data_paths(&self) -> usize;

    /// Returns the memory in which batches come that rails may write.
    ///
    /// # Errors
    /// There is none.
    fn arena(&self) -> io::Result<Arc<Arena>>;

    /// Opens an endpoint of the rail of a path.
    ///
    /// # Errors
    /// There is none, it cannot be used, or nobody would know when its writes are there.
    fn open(&self, path: u32) -> Result<SharedEndpoint, FabricError>;

    /// Counts bytes that were written by the rail of a path.
    fn written(&self, path: u32, bytes: u64);
}

impl RailPaths for Arc<RunningSession> {
    fn may_write(&self) -> bool {
        self.rails().is_some_and(|rails| rails.allows_plaintext())
    }

    fn writable(&self) -> Vec<u32> {
        if self.may_write() { self.rdma_paths() } else { Vec::new() }
    }

    fn data_paths(&self) -> usize {
        self.data_path_count()
    }

    fn arena(&self) -> io::Result<Arc<Arena>> {
        self.pool.arena().cloned()
    }

    fn open(&self, path: u32) -> Result<SharedEndpoint, FabricError> {
        let refused = |why: &str| FabricError::Refused(why.to_owned());
        let rails = self.rails().filter(|rails| rails.allows_plaintext());
        let rails = rails.ok_or_else(|| refused("RDMA without protection is not allowed here"))?;
        let at = self.path_address(path).ok_or_else(|| refused("there is no such path"))?;
        let endpoint = rails.endpoint(at)?.ok_or_else(|| refused("there is no rail"))?;
        if endpoint.abilities().has_immediates() { Ok(endpoint) } else { Err(refused(WRITES_UNCONFIRMED)) }
    }

    fn written(&self, path: u32, bytes: u64) {
        self.count_written(path, bytes);
    }
}
