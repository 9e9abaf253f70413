//! Joins the migration connections of a source QEMU to streams.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use skein_dataplane::source::SourcePages;
use skein_dataplane::{Ended, LocalEnd, OnReset, RailsHeldOff, ResetCode, RunningSession, StreamContent, StreamId};
use skein_handover::MigrationId;
use tracing::{info, warn};

use crate::channel_keeper::{self, ChannelKeeper};
use crate::error_chain;
use crate::own_socket::{ACCEPT_WAIT, OwnSocket, SocketError};
use crate::peers::{Peers, SessionHold};
use crate::socket_buffers::widen_peer;
use crate::stream_destination::StreamDestination;

/// Says how long a connection waits for a session with the other host.
const SESSION_TIME: Duration = Duration::from_secs(5);
/// Says how often is looked whether data still goes over RDMA.
const RAILS_CHECK: Duration = Duration::from_millis(20);
/// Bounds the streams that are remembered, the latest: more than a session may have open.
const STREAMS_MAX: usize = 1024;

/// A listening unix socket whose connections lead to the QEMU that waits for a migration at another host, in the order
/// they were made. Dropping this removes the socket and tears down the connections at once: what the other end does not
/// have by then it will not get. Until then only the first connection ends if the other host breaks it off, or if none
/// leads there.
pub struct OutgoingChannels {
    shared: Arc<Shared>,
}

struct Shared {
    socket: OwnSocket,
    destination: StreamDestination,
    pages: Arc<SourcePages>,
    /// Keeps the other host reached as long as this exists.
    hold: SessionHold,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// The session that the streams are in. All streams are in one session, as long as it lives: order holds within
    /// one.
    live: Option<Arc<RunningSession>>,
    streams: Vec<StreamId>,
    /// The first connection, as long as its stream has it.
    main: Weak<UnixStream>,
    /// The connections after the first: multifd's channels.
    held: Vec<Arc<UnixStream>>,
    has_main: bool,
    /// Whether nothing more gets to the other host, and what QEMU writes is dropped.
    given_up: bool,
    /// The reason, if this end gave up by itself.
    failed: Option<String>,
    stopped: bool,
    /// Keeps the session off RDMA, if this migration is not to go over that.
    without_rails: Option<RailsHeldOff>,
}

impl Open {
    fn is_over(&self) -> bool {
        self.stopped || self.given_up
    }

    /// Gives up. The streams end first, so that nothing gets to the other host that comes after what others may read of
    /// the channels from now on.
    fn give_up(&mut self, why: &str) {
        self.reset(why);
        if let Some(main) = self.main.upgrade() {
            let _ = main.shutdown(Shutdown::Both);
        }
        self.given_up = true;
    }

    fn reset(&self, why: &str) {
        if let Some(live) = &self.live {
            for stream in &self.streams {
                live.reset(*stream, ResetCode::SocketClosed, why);
            }
        }
    }
}

impl OutgoingChannels {
    /// Listens at `path`, for this user only, and takes connections from then on.
    ///
    /// `keeper` is a program that calls [`crate::keep_channels`], and its arguments. If it is empty, all connections
    /// break when this program dies.
    ///
    /// # Errors
    /// The path is in use, or no socket can be made there.
    pub fn start(
        path: &Path,
        peers: &Peers,
        host: &str,
        id: MigrationId,
        pages: Arc<SourcePages>,
        keeper: &[OsString],
    ) -> Result<OutgoingChannels, SocketError> {
        let shared = Arc::new(Shared {
            socket: OwnSocket::bind(path, 0o600)?,
            destination: StreamDestination::Migration(id),
            pages,
            hold: peers.hold(host),
            open: Mutex::default(),
        });
        let tap = OutgoingChannels { shared: shared.clone() };
        let start = || -> io::Result<()> {
            let start = || ChannelKeeper::start(keeper, shared.socket.path(), shared.socket.as_fd());
            let keeper = (!keeper.is_empty()).then(start).transpose()?;
            thread::Builder::new().name("tap".into()).spawn(move || shared.accept(keeper))?;
            Ok(())
        };
        start().map_err(|source| SocketError::Listen { path: path.to_owned(), source })?;
        Ok(tap)
    }

    /// Closes the main connection, so that a QEMU that does not answer gives up. All that QEMU still writes to the
    /// other channels is read and dropped: it may wait for that, with the other host out of reach.
    pub fn give_up(&self) {
        self.shared.lock().give_up("the source calls this migration off");
    }

    /// Writes a word to the first connection, on which QEMU reads what its target says. The target says whole words at
    /// once, and says nothing between its first word and the end of the copy.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn give_word(&self, word: &[u8]) -> io::Result<()> {
        let main = self.shared.lock().main.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        (&*main).write_all(word)
    }

    /// Returns why a connection was not carried, if one was not. The migration is given up then, as by
    /// [`OutgoingChannels::give_up`].
    pub fn failed(&self) -> Option<String> {
        let open = self.shared.lock();
        let ended = open.live.as_ref().and_then(|live| live.ended());
        // The session of a network that is away for long ends, too: that is told by what broke.
        let barred = ended.filter(|why| matches!(why, Ended::Barred { .. })).map(|why| why.to_string());
        open.failed.clone().or(barred)
    }

    /// Takes no more connections, and leaves the connections to the process that keeps them.
    pub fn leave(self) {
        *self.shared.lock() = Open { stopped: true, ..Open::default() };
    }

    /// See [`OutgoingChannels`].
    fn stop(&self) {
        self.shared.socket.remove();
        let open = std::mem::replace(&mut *self.shared.lock(), Open { stopped: true, ..Open::default() });
        open.reset("the source is done with this migration");
        for channel in open.held {
            let _ = channel.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for OutgoingChannels {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no panic under this lock")
    }

    fn accept(&self, mut keeper: Option<ChannelKeeper>) {
        let path = self.socket.path().display();
        while !self.lock().is_over() {
            let next = match &keeper {
                Some(keeper) => keeper.accept(),
                None => self.socket.accept(),
            };
            match next {
                Ok(Some(connection)) => self.carry(connection).unwrap_or_else(|why| self.fail(&why)),
                Ok(None) => {}
                Err(error) if is_end(&error) && keeper.take().is_some() => {
                    warn!(
                        "{path}: its channels would break if this agent died: the process that keeps them ended: \
                         {error}"
                    );
                }
                Err(error) => {
                    self.lock().has_main |= keeper.is_some();
                    self.fail(&in_words(&error));
                }
            }
        }
        // Without its agent the keeper reads the channels, as this thread does: either may lack files for some of them.
        drop(keeper);
        if let Err(error) = self.drain() {
            warn!("{path}: QEMU may have to wait: {error}");
        }
    }

    /// Reads what nobody carries, so that QEMU does not wait, until this is over.
    fn drain(&self) -> io::Result<()> {
        let (held, has_main) = {
            let open = self.lock();
            (open.held.clone(), open.has_main)
        };
        let accept = || {
            self.socket.accept().or_else(|_| {
                thread::sleep(ACCEPT_WAIT);
                Ok(None)
            })
        };
        channel_keeper::drain(self.socket.as_fd(), accept, held, has_main, |_| self.lock().stopped)
    }

    /// Fails the migration: a channel that nobody reads would stop QEMU in the switchover, and the guest with it.
    fn fail(&self, why: &str) {
        let mut open = self.lock();
        if !open.is_over() {
            let why = format!("the agent cannot carry a connection of QEMU: {why}");
            warn!("{}: {why}", self.socket.path().display());
            open.give_up(&why);
            open.failed = Some(why);
        }
    }

    /// Carries a connection. QEMU connects its main channel first. When things break, the main channel has to be the
    /// first to close: a QEMU that loses a multifd channel before may wait for it for ever
    /// ([`skein_hypervisor::migration`]).
    fn carry(&self, connection: UnixStream) -> Result<(), String> {
        widen_peer(&connection);
        let connection = Arc::new(connection);
        let is_main = {
            let mut open = self.lock();
            let is_main = !std::mem::replace(&mut open.has_main, true);
            match is_main {
                true => open.main = Arc::downgrade(&connection),
                false => open.held.push(connection.clone()),
            }
            is_main
        };
        let live = self.session()?;
        let mut open = self.lock();
        if open.is_over() {
            return Ok(());
        }
        let target = self.destination.to_string();
        let on_reset = if is_main { OnReset::ShutDown } else { OnReset::KeepOpen };
        let local_end = LocalEnd::unix(connection, on_reset);
        let stream = live.open(&target, local_end, StreamContent::Source(self.pages.clone()));
        let stream = stream.map_err(|error| error_chain(&error))?;
        info!(peer = live.peer(), stream = stream.0, "connection to {}", self.destination);
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

    /// Returns the session, or a new session if it is over.
    fn session(&self) -> Result<Arc<RunningSession>, String> {
        if let Some(live) = self.lock().live.clone().filter(|live| live.ended().is_none()) {
            return Ok(live);
        }
        let deadline = Instant::now() + SESSION_TIME;
        let live = self.hold.session(deadline, &|| self.lock().is_over());
        let live =
            live.ok_or_else(|| format!("no session with {} within {} s", self.hold.host(), SESSION_TIME.as_secs()))?;
        if !self.pages.may_use_rdma() {
            self.leave_rails(&live, deadline)?;
        }
        Ok(live)
    }

    /// Keeps the session off RDMA from now on, and waits until nothing goes over that.
    fn leave_rails(&self, live: &RunningSession, deadline: Instant) -> Result<(), String> {
        self.lock().without_rails = Some(live.hold_rails_off());
        while live.has_rails() {
            if Instant::now() >= deadline || self.lock().is_over() {
                return Err(format!("data to {} still goes over RDMA", self.hold.host()));
            }
            thread::sleep(RAILS_CHECK);
        }
        Ok(())
    }
}

/// Returns whether the process that keeps the channels has ended.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

/// Returns the error in words, and what to do about it.
fn in_words(error: &io::Error) -> String {
    let cure = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => "raise the limit of open files (ulimit -n) of the agent",
        Some(Errno::ENFILE) => "raise the limit of open files (fs.file-max) of this host",
        _ => return error.to_string(),
    };
    format!("{error}: {cure}")
}
