//! What a transport means for the data plane.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::thread;

use skein_dataplane::Width;
use skein_dataplane::source::PackerPool;
use skein_inventory::Route;

use crate::packer_process::PackerProcessStarter;

/// What it may use of a session.
pub(crate) fn width(transport: Route) -> Width {
    match transport {
        Route::Auto | Route::Multichannel => Width::All,
        Route::Compression => Width::Path,
        Route::Tcp => Width::Connection,
    }
}

/// Batches under way for each core: while one is handed over, another is compressed.
const PER_CORE: usize = 2;

/// Who compresses: threads for all cores, in a process of theirs. `words`: a program that calls [`crate::pack_pages`],
/// and its arguments.
///
/// # Errors
/// The system has no room for them.
pub(crate) fn packers(words: &[OsString]) -> io::Result<Arc<PackerPool>> {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let crew = PackerProcessStarter::new(words.to_vec());
    PackerPool::start(PER_CORE * cores, cores, Box::new(move |is_over| crew.hire(is_over))).map(Arc::new)
}
