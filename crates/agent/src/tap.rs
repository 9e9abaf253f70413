//! Where an agent joins the migration connections of a source QEMU.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use skein_handover::MigrationId;
use skein_transfer::pages::Source;
use skein_transfer::{Content, Live, ResetCode, StreamId};
use tracing::{info, warn};

use crate::keeper::Keeper;
use crate::peers::{Hold, Peers};
use crate::socket::{ACCEPT_WAIT, OwnSocket, SocketError};
use crate::target::Target;

/// A connection waits this long for a session with the other host.
const SESSION_TIME: Duration = Duration::from_secs(5);
/// Streams that are remembered, the latest: more than a session may have open.
const STREAMS_MAX: usize = 1024;

/// A listening unix socket whose connections lead to the QEMU that waits for a migration at another host, in the order
/// they were made. Dropping it removes the socket and tears down the connections at once: what the other end does not
/// have by then it will not get. Until then only the first of them ends when the other host breaks it off, or none leads
/// there.
pub struct Tap {
    shared: Arc<Shared>,
}

struct Shared {
    socket: OwnSocket,
    target: Target,
    pages: Arc<Source>,
    /// The other host is reached as long as this exists.
    hold: Hold,
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
    /// `keeper`: a program that calls [`crate::keep_channels`], and its arguments. Empty: all connections break when this
    /// program dies.
    ///
    /// Errors: the path is in use, or no socket can be made there.
    pub fn start(
        path: &Path,
        peers: &Peers,
        host: &str,
        id: MigrationId,
        pages: Arc<Source>,
        keeper: &[OsString],
    ) -> Result<Tap, SocketError> {
        let shared = Arc::new(Shared {
            socket: OwnSocket::bind(path, 0o600)?,
            target: Target::Migration(id),
            pages,
            hold: peers.hold(host),
            open: Mutex::default(),
        });
        let tap = Tap { shared: shared.clone() };
        let start = || -> io::Result<()> {
            let start = || Keeper::start(keeper, shared.socket.path(), shared.socket.as_fd());
            let keeper = (!keeper.is_empty()).then(start).transpose()?;
            thread::Builder::new().name("tap".into()).spawn(move || shared.accept(keeper))?;
            Ok(())
        };
        start().map_err(|source| SocketError::Listen { path: path.to_owned(), source })?;
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

    /// Takes no more connections, and leaves those it has to whoever keeps them.
    pub fn leave(self) {
        *self.shared.lock() = Open { stopped: true, ..Open::default() };
    }

    /// See [`Tap`].
    fn stop(&self) {
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

    fn accept(&self, mut keeper: Option<Keeper>) {
        let path = self.socket.path().display();
        while !self.lock().stopped {
            let next = match &keeper {
                Some(keeper) => keeper.accept(),
                None => self.socket.accept(),
            };
            let carried = match next {
                Ok(Some(connection)) => {
                    self.carry(connection).map_err(|error| format!("connection not carried: {error}"))
                }
                Ok(None) => Ok(()),
                Err(error) if keeper.take().is_some() => Err(format!(
                    "its channels would break if this agent died: the process that keeps them ended: {error}"
                )),
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

    /// QEMU connects its main channel first. When things break, that one has to be the first to close: a QEMU that loses a
    /// multifd channel before may wait for it for ever ([`skein_hypervisor::migration`]).
    fn carry(&self, connection: UnixStream) -> Result<(), String> {
        let is_main = !std::mem::replace(&mut self.lock().has_main, true);
        if !is_main {
            let own = connection.try_clone().map_err(|error| error.to_string())?;
            let mut open = self.lock();
            if open.stopped {
                return Ok(());
            }
            open.held.push(own);
        }
        let live = match self.session() {
            Ok(live) => live,
            Err(error) => {
                if !is_main {
                    drain(connection);
                }
                return Err(error);
            }
        };
        let mut open = self.lock();
        if open.stopped {
            return Ok(());
        }
        let target = self.target.to_string();
        let stream = live.open(&target, connection, Content::Source(self.pages.clone()), !is_main);
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

/// Reads a multifd channel that leads nowhere, so that QEMU does not wait, until QEMU closes its end.
pub(crate) fn drain(channel: UnixStream) {
    let drain = move || drop(io::copy(&mut { channel }, &mut io::sink()));
    if let Err(error) = thread::Builder::new().name("drain".into()).spawn(drain) {
        warn!("QEMU may have to wait: {error}");
    }
}
