//! What a transport means for the data plane.

use std::io;
use std::sync::{Arc, Once};
use std::thread;

use skein_host::idle::settle_down;
use skein_machine::Transport;
use skein_transfer::Width;
use skein_transfer::pages::Packers;
use tracing::info;

/// What it may use of a session.
pub(crate) fn width(transport: Transport) -> Width {
    match transport {
        Transport::Auto | Transport::Multichannel => Width::All,
        Transport::Compression => Width::Path,
        Transport::Tcp => Width::Connection,
    }
}

/// Who compresses: a thread for each core, with CPU that nobody else wants.
///
/// # Errors
/// The system has no room for them.
pub(crate) fn packers() -> io::Result<Arc<Packers>> {
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
    let settle_down = || {
        static TOLD: Once = Once::new();
        if let Err(why) = settle_down() {
            TOLD.call_once(|| info!("guests in other control groups may lose some CPU to compression: {why}"));
        }
    };
    Packers::start(threads, settle_down).map(Arc::new)
}
