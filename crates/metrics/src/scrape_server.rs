//! The listener: a thread that accepts, and one for each of a few connections.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{debug, info};

use crate::exchange::exchange;
use crate::scraping::{COLLECT_SECONDS, LEFT_OUT, SCRAPES};
use crate::socket::{Listener, Socket};
use crate::{Samples, ScrapeAddress};

/// Bounds the connections at once. Where one more comes the oldest goes: a scraper that asks is served in
/// milliseconds, so the oldest is one that does not.
const CONNECTIONS_MAX: usize = 16;
/// Bounds the threads of connections, with those whose connection was cut and that have not noticed yet.
const THREADS_MAX: usize = 2 * CONNECTIONS_MAX;
/// The pause after each connection: at most 200 are accepted a second, of some 100 µs each.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);
/// How long after an error of accept(2) it is tried again: too many open files, mostly.
const ERROR_PAUSE: Duration = Duration::from_millis(200);
/// How old values may be: ten scrapers, each of which asks once a second, have them computed twice a second.
const FRESH: Duration = Duration::from_millis(500);

/// Computes the values of this moment.
type Collect = dyn Fn(&mut Samples) + Send + Sync;

/// Serves metrics at an address, until it is dropped.
pub struct ScrapeServer {
    shared: Arc<Shared>,
    address: ScrapeAddress,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Why metrics are not served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for scrapers of metrics at {address}: free that address, or name another")]
pub struct ScrapeError {
    /// The address.
    pub address: ScrapeAddress,
    /// The system's error.
    pub source: io::Error,
}

struct Shared {
    listener: Listener,
    collect: Box<Collect>,
    text: Mutex<Option<Text>>,
    open: Mutex<Open>,
    answers: Mutex<BTreeMap<&'static str, u64>>,
    stopping: AtomicBool,
}

struct Text {
    computed: Instant,
    took: Duration,
    text: Arc<str>,
}

#[derive(Default)]
struct Open {
    last: u64,
    threads: usize,
    /// The connections, the oldest first.
    sockets: VecDeque<(u64, Socket)>,
}

impl ScrapeServer {
    /// Listens at `address` and serves what `collect` computes, which may take some milliseconds, and is called at most
    /// twice a second.
    ///
    /// # Errors
    /// The address cannot be listened at, or there is no thread.
    pub fn start(
        address: &ScrapeAddress,
        collect: impl Fn(&mut Samples) + Send + Sync + 'static,
    ) -> Result<ScrapeServer, ScrapeError> {
        let error = |source| ScrapeError { address: address.clone(), source };
        let listener = Listener::bind(address).map_err(error)?;
        let bound = listener.address().map_err(error)?;
        let shared = Arc::new(Shared {
            listener,
            collect: Box::new(collect),
            text: Mutex::default(),
            open: Mutex::default(),
            answers: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        let thread = thread::Builder::new().name("scrapers".into()).spawn(move || accept(&accepting));
        let thread = Mutex::new(Some(thread.map_err(error)?));
        info!("metrics are served at {bound}");
        Ok(ScrapeServer { shared, address: bound, thread })
    }

    /// Returns where it listens, with the port that the system chose for port 0.
    pub fn address(&self) -> &ScrapeAddress {
        &self.address
    }

    /// Stops listening, and cuts the connections.
    pub fn stop(&self) {
        if !self.shared.stopping.swap(true, Ordering::SeqCst) {
            self.shared.listener.stop();
        }
        if let Some(thread) = self.thread.lock().take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
        self.shared.open.lock().sockets.drain(..).for_each(|(_, socket)| socket.cut());
    }
}

impl Drop for ScrapeServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept(shared: &Arc<Shared>) {
    while !shared.stopping.load(Ordering::SeqCst) {
        match shared.listener.accept() {
            Ok(socket) => {
                if let Err(error) = admit(shared, socket) {
                    debug!("a scraper is not served: {error}");
                    shared.note("none");
                }
                thread::sleep(ACCEPT_PAUSE);
            }
            Err(error) if !shared.stopping.load(Ordering::SeqCst) => {
                debug!("no scraper can be accepted: {error}");
                thread::sleep(ERROR_PAUSE);
            }
            Err(_) => {}
        }
    }
}

/// Gives a connection a thread, if there is room for one more.
fn admit(shared: &Arc<Shared>, mut socket: Socket) -> io::Result<()> {
    let mut open = shared.open.lock();
    if open.threads >= THREADS_MAX {
        return Err(io::Error::other("too many threads wait"));
    }
    if open.sockets.len() >= CONNECTIONS_MAX
        && let Some((_, oldest)) = open.sockets.pop_front()
    {
        oldest.cut();
    }
    open.last += 1;
    let id = open.last;
    open.sockets.push_back((id, socket.try_clone()?));
    open.threads += 1;
    // Its drop gives the place back, also where there is no thread.
    let place = Place { shared: shared.clone(), id };
    drop(open);
    let serve = move || {
        let answer = exchange(&mut socket, || place.shared.text());
        place.shared.note(answer);
    };
    thread::Builder::new().name("scraper".into()).spawn(serve).map(drop)
}

/// A connection's place among those that are open.
struct Place {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.shared.open.lock();
        open.threads -= 1;
        open.sockets.retain(|(id, _)| *id != self.id);
    }
}

impl Shared {
    fn note(&self, answer: &'static str) {
        *self.answers.lock().entry(answer).or_default() += 1;
    }

    /// Returns the values of late as a text. Whoever comes while they are computed waits for them.
    fn text(&self) -> Arc<str> {
        let mut last = self.text.lock();
        if let Some(text) = last.as_ref().filter(|text| text.computed.elapsed() < FRESH) {
            return text.text.clone();
        }
        let begun = Instant::now();
        let mut samples = Samples::default();
        (self.collect)(&mut samples);
        samples.begin(&SCRAPES);
        for (answer, count) in &*self.answers.lock() {
            samples.set(&SCRAPES, &[answer], *count);
        }
        samples.set(&COLLECT_SECONDS, &[], last.as_ref().map_or(0.0, |text| text.took.as_secs_f64()));
        let left_out = samples.left_out();
        samples.set(&LEFT_OUT, &[], left_out);
        let text: Arc<str> = samples.into_text().into();
        *last = Some(Text { computed: begun, took: begun.elapsed(), text: text.clone() });
        text
    }
}
