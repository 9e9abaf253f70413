//! Is paths whose rails are fabrics in memory, for tests of one end of a migration.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use skein_fabric::fake::{FakeAbilities, FakeFabric};
use skein_fabric::{Arena, FabricError, SharedEndpoint};

use super::RailPaths;
use crate::pool::Pool;

/// Paths of which each has a fabric of its own.
pub(crate) struct FakePaths {
    /// The fabrics, by the paths' numbers.
    pub(crate) fabrics: Vec<FakeFabric>,
    pub(crate) may_write: bool,
    /// Where batches come.
    pub(crate) pool: Pool,
    opened: AtomicUsize,
    written: AtomicU64,
}

impl FakePaths {
    /// Makes so many paths.
    pub(crate) fn new(paths: u64) -> FakePaths {
        let abilities = FakeAbilities { immediates: true, ordered: true };
        let fabrics = (0..paths).map(|path| FakeFabric::new(abilities, path)).collect();
        let (opened, written) = (AtomicUsize::new(0), AtomicU64::new(0));
        FakePaths { fabrics, may_write: true, pool: Pool::default(), opened, written }
    }

    /// Returns how many endpoints were opened.
    pub(crate) fn opened(&self) -> usize {
        self.opened.load(SeqCst)
    }

    /// Returns how many bytes were counted as written.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written.load(SeqCst)
    }
}

impl RailPaths for FakePaths {
    fn may_write(&self) -> bool {
        self.may_write
    }

    fn writable(&self) -> Vec<u32> {
        (0..self.fabrics.len() as u32).collect()
    }

    fn data_paths(&self) -> usize {
        self.fabrics.len()
    }

    fn arena(&self) -> io::Result<Arc<Arena>> {
        self.pool.arena().cloned()
    }

    fn open(&self, path: u32) -> Result<SharedEndpoint, FabricError> {
        let fabric = self.fabrics.get(path as usize);
        let fabric = fabric.ok_or_else(|| FabricError::Refused("there is no such path".into()))?;
        self.opened.fetch_add(1, SeqCst);
        Ok(fabric.endpoint())
    }

    fn written(&self, _: u32, bytes: u64) {
        self.written.fetch_add(bytes, SeqCst);
    }
}
