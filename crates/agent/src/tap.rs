//! Where an agent joins the migration connections of a source QEMU.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use skein_handover::MigrationId;
use skein_transfer::{Live, ResetCode, StreamId};
use tracing::{info, warn};

use crate::peers::{Hold, Peers};
use crate::socket::{ACCEPT_WAIT, OwnSocket, SocketError};
use crate::target::Target;

/// A connection waits this long for a session with the other host.
const SESSION_TIME: Duration = Duration::from_secs(5);
/// Streams that are remembered, the latest: more than a session may have open.
const STREAMS_MAX: usize = 1024;

/// A listening unix socket whose connections lead to the QEMU that waits for a migration at another host, in the order
/// they were made. Dropping it removes the socket and tears down the connections at once: what the other end does not
/// have by then it will not get. Until then only the first of them ends when the other host breaks it off.
pub struct Tap {
    shared: Arc<Shared>,
}

/// Is shown a connection, with its number among those after the first.
type Keep = dyn Fn(usize, &UnixStream) + Send + Sync;

struct Shared {
    socket: OwnSocket,
    target: Target,
    /// The other host is reached as long as this exists.
    hold: Hold,
    keep: Box<Keep>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// The session that the streams are in. All of them are in one, as long as it lives: order holds within one.
    live: Option<Arc<Live>>,
    streams: Vec<StreamId>,
    /// The connections after the first: multifd's channels.
    held: Vec<UnixStream>,
    has_main: bool,
    stopped: bool,
}

impl Tap {
    /// Listens at `path`, for this user only, and takes connections from then on.
    ///
    /// Errors: the path is in use, or no socket can be made there.
    ///
    /// `keep`: is shown each connection but the first, with its number, and may see to it that it stays open when this
    /// program dies.
    pub fn start(
        path: &Path,
        peers: &Peers,
        host: &str,
        id: MigrationId,
        keep: impl Fn(usize, &UnixStream) + Send + Sync + 'static,
    ) -> Result<Tap, SocketError> {
        let shared = Arc::new(Shared {
            socket: OwnSocket::bind(path, 0o600)?,
            target: Target::Migration(id),
            hold: peers.hold(host),
            keep: Box::new(keep),
            open: Mutex::default(),
        });
        let tap = Tap { shared: shared.clone() };
        let thread = thread::Builder::new().name("tap".into()).spawn(move || shared.accept());
        thread.map_err(|source| SocketError::Listen { path: path.to_owned(), source })?;
        Ok(tap)
    }

    /// Closes the main connection, so that a QEMU that does not hear gives up, and takes what it still writes to the
    /// others: it may wait for that, with the other host out of reach.
    pub fn give_up(&self) {
        let open = self.shared.lock();
        if let Some(live) = &open.live {
            for stream in &open.streams {
                live.reset(*stream, ResetCode::SocketClosed, "the source calls this migration off");
            }
        }
    }

    /// See [`Tap`].
    pub fn stop(&self) {
        self.shared.socket.remove();
        let open = std::mem::replace(&mut *self.shared.lock(), Open { stopped: true, ..Open::default() });
        if let Some(live) = open.live {
            for stream in open.streams {
                live.reset(stream, ResetCode::SocketClosed, "the source is done with this migration");
            }
        }
        for channel in open.held {
            let _ = channel.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no panic under this lock")
    }

    fn accept(&self) {
        let path = self.socket.path().display();
        while !self.lock().stopped {
            let carried = match self.socket.accept() {
                Ok(Some(connection)) => {
                    self.carry(connection).map_err(|error| format!("connection not carried: {error}"))
                }
                Ok(None) => Ok(()),
                Err(error) => {
                    thread::sleep(ACCEPT_WAIT);
                    Err(format!("cannot accept: {error}"))
                }
            };
            if let Err(error) = carried {
                warn!("{path}: {error}");
            }
        }
    }

    fn carry(&self, connection: UnixStream) -> Result<(), String> {
        let live = self.session()?;
        let mut open = self.lock();
        if open.stopped {
            return Ok(());
        }
        // QEMU connects its main channel first. When things break, that one has to be the first to close: a QEMU that
        // loses a multifd channel in the middle of its switchover may wait for it for ever, deaf to QMP (7.2, 10.0:
        // multifd_send_sync_main waits for a thread that has ended, holding the big lock).
        let is_main = !std::mem::replace(&mut open.has_main, true);
        let stream = if is_main {
            live.open(&self.target.to_string(), connection)
        } else {
            (self.keep)(open.held.len(), &connection);
            open.held.extend(connection.try_clone());
            live.open_held(&self.target.to_string(), connection)
        };
        let stream = stream.map_err(|error| error.to_string())?;
        info!(peer = live.peer(), stream = stream.0, "connection to {}", self.target);
        if !open.live.as_ref().is_some_and(|known| Arc::ptr_eq(known, &live)) {
            open.live = Some(live);
            open.streams.clear();
        }
        if open.streams.len() >= STREAMS_MAX {
            open.streams.remove(0);
        }
        open.streams.push(stream);
        Ok(())
    }

    /// The session, or a new one if it is over.
    fn session(&self) -> Result<Arc<Live>, String> {
        if let Some(live) = self.lock().live.clone().filter(|live| live.ended().is_none()) {
            return Ok(live);
        }
        let live = self.hold.session(Instant::now() + SESSION_TIME, &|| self.lock().stopped);
        live.ok_or_else(|| format!("no session with {} within {} s", self.hold.host(), SESSION_TIME.as_secs()))
    }
}
