//! Serves metrics at an address that may come after the program: of a VPN, a bridge, a router's announcement.

use std::error;
use std::iter::successors;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::warn;

use crate::{ScrapeAddress, ScrapeServer};

/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(3);

/// A server of metrics that is started until that works, and serves until it is dropped.
pub struct ScrapeService {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    server: OnceLock<ScrapeServer>,
    is_stopping: Mutex<bool>,
    stopped: Condvar,
}

impl ScrapeService {
    /// Calls `start` at once, and in the background again and again while it fails, which is logged once.
    pub fn start<E: error::Error>(start: impl Fn() -> Result<ScrapeServer, E> + Send + 'static) -> ScrapeService {
        let shared = Arc::new(Shared::default());
        let thread = match start() {
            Ok(server) => {
                let _ = shared.server.set(server);
                None
            }
            Err(error) => {
                warn!("no metrics yet: {}; it is tried again every {} s", in_words(&error), RETRY.as_secs());
                let own = shared.clone();
                let thread = thread::Builder::new().name("scrapers".into()).spawn(move || own.retry(start));
                thread.inspect_err(|error| warn!("no metrics: no thread can be started: {error}")).ok()
            }
        };
        ScrapeService { shared, thread: Mutex::new(thread) }
    }

    /// Returns where scrapers come in, with the port that the system chose for port 0. `None`: nowhere yet.
    pub fn address(&self) -> Option<&ScrapeAddress> {
        self.shared.server.get().map(ScrapeServer::address)
    }

    /// Stops listening, or trying to, and cuts the connections.
    pub fn stop(&self) {
        *self.shared.is_stopping.lock() = true;
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
        if let Some(server) = self.shared.server.get() {
            server.stop();
        }
    }
}

impl Drop for ScrapeService {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn retry<E>(&self, start: impl Fn() -> Result<ScrapeServer, E>) {
        loop {
            let mut is_stopping = self.is_stopping.lock();
            self.stopped.wait_while_for(&mut is_stopping, |is_stopping| !*is_stopping, RETRY);
            if *is_stopping {
                return;
            }
            drop(is_stopping);
            if let Ok(server) = start() {
                let _ = self.server.set(server);
                return;
            }
        }
    }
}

fn in_words(error: &dyn error::Error) -> String {
    let causes = successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
