//! Says what a transport means for the data plane.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::thread;

use skein_dataplane::Width;
use skein_dataplane::source::{DirtyTracking, PackerPool, RateShare, SourcePages, SourcePagesSettings};
use skein_inventory::{Packing, Route};

use crate::packer_process::PackerProcessStarter;

/// Returns how much of a session a guest's streams may use. What goes over one NIC uncompressed has one connection, as
/// it would without Skein.
pub(crate) fn width(transport: Route) -> Width {
    match (transport.width(), transport.packing()) {
        (skein_inventory::Width::All, _) => Width::All,
        (skein_inventory::Width::One, Packing::On | Packing::Auto) => Width::Path,
        (skein_inventory::Width::One, Packing::Off) => Width::Connection,
    }
}

/// Returns what takes the migration of another's guest apart: one connection by itself, between two QEMUs that are
/// others' to command.
pub(crate) fn pages_of_others(packers: Option<Arc<PackerPool>>, transport: Route) -> Arc<SourcePages> {
    SourcePages::new(SourcePagesSettings {
        packers: packers.filter(|_| transport.compresses()),
        width: width(transport),
        rate: RateShare::unlimited(),
        direct: false,
        may_use_rdma: true,
        channels: 0,
        key: Default::default(),
        ram: None,
        delta_memory: 0.0,
        kept_marks: None,
        dirty_tracking: DirtyTracking::Exact,
    })
}

/// Says how many batches are under way for each core: while one is handed over, another is compressed.
const PER_CORE: usize = 2;

/// Starts the packers: threads for all cores, in a process of theirs. `words` are a program that calls
/// [`crate::pack_pages`], and its arguments.
///
/// # Errors
/// The system has no room for the threads.
pub(crate) fn packers(words: &[OsString]) -> io::Result<Arc<PackerPool>> {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let crew = PackerProcessStarter::new(words.to_vec());
    PackerPool::start(PER_CORE * cores, cores, Box::new(move |is_over| crew.hire(is_over))).map(Arc::new)
}
