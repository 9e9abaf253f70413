//! Joins unix sockets here to unix sockets of another host.

use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use skein_dataplane::source::PackerPool;
use skein_dataplane::{Dialer, DialerSettings, RunningSession, SessionSnapshot, StartError, StreamContent};
use skein_identity::Identity;
use skein_inventory::Route;
use thiserror::Error;
use tracing::{info, warn};

use crate::error_chain;
use crate::own_socket::{ACCEPT_WAIT, OwnSocket, PATH_BYTES_MAX, SocketError};
use crate::socket_buffers::widen_peer;
use crate::stream_destination::StreamDestination;
use crate::transport::{packers, pages_of_others};

/// Says for how long connections are turned away at once after a session could not be begun.
const BEGIN_PAUSE: Duration = Duration::from_secs(1);

/// A socket to listen on here, and the socket that it leads to there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The path of the socket to make on this host.
    pub listen: PathBuf,
    /// The path of the socket to connect to on the other host.
    pub destination: String,
}

/// The reason why words are no [`Forward`].
#[derive(Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ForwardError {
    #[error("'{0}' is not LISTEN=TARGET, two absolute paths of unix sockets")]
    Syntax(String),
    #[error("{path} has {} bytes; a unix socket's path may have {PATH_BYTES_MAX}", .path.len())]
    TooLong { path: String },
}

impl FromStr for Forward {
    type Err = ForwardError;

    /// Reads `LISTEN=TARGET`, or `LISTEN:TARGET` as ssh has it.
    fn from_str(text: &str) -> Result<Forward, ForwardError> {
        let syntax = || ForwardError::Syntax(text.to_owned());
        let (listen, target) = text.split_once('=').or_else(|| text.split_once(':')).ok_or_else(syntax)?;
        for path in [listen, target] {
            if !path.starts_with('/') || path.ends_with('/') {
                return Err(syntax());
            }
            if path.len() > PATH_BYTES_MAX {
                return Err(ForwardError::TooLong { path: path.to_owned() });
            }
        }
        Ok(Forward { listen: listen.into(), destination: target.to_owned() })
    }
}

/// The settings of a tunnel.
#[derive(Clone, Debug)]
pub struct TunnelSettings {
    /// Whom the tunnel reaches, and how.
    pub dialer: DialerSettings,
    /// The sockets that the tunnel joins.
    pub forwards: Vec<Forward>,
    /// The permissions of the sockets that are made here.
    pub socket_mode: u32,
    /// The transport of what goes through the tunnel. Only the memory of guests is compressed.
    pub transport: Route,
    /// A program that calls [`crate::pack_pages`], and its arguments. The tunnel starts the program when there are
    /// pages to compress; without a program pages go uncompressed.
    pub packer: Vec<OsString>,
}

/// The reason why a tunnel did not come up.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum TunnelError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("the tunnel cannot be set up")]
    Start(#[from] StartError),
}

struct Shared {
    settings: TunnelSettings,
    identity: Identity,
    /// The session at hand; a new session is begun when a connection finds it over.
    dialer: Mutex<Arc<Dialer>>,
    /// Held while a session is begun, so that only one is; and the time of the last failure.
    beginning: Mutex<Option<Instant>>,
    sockets: Vec<OwnSocket>,
    packers: Option<Arc<PackerPool>>,
    stopping: AtomicBool,
}

/// A running tunnel. Dropping it closes the session and removes the sockets.
pub struct Tunnel {
    shared: Arc<Shared>,
}

impl Tunnel {
    /// Makes the sockets and begins a session. Connections are taken from then on.
    pub fn start(settings: TunnelSettings, identity: Identity) -> Result<Tunnel, TunnelError> {
        let mut sockets = Vec::new();
        for forward in &settings.forwards {
            sockets.push(OwnSocket::bind(&forward.listen, settings.socket_mode)?);
        }
        let (dialer, _) = Dialer::start(settings.dialer.clone(), &identity)?;
        let packers = settings.transport.compresses().then(|| packers(&settings.packer)).transpose();
        let shared = Arc::new(Shared {
            packers: packers.map_err(|error| TunnelError::Start(StartError::Threads(error)))?,
            settings,
            identity,
            dialer: Mutex::new(dialer),
            beginning: Mutex::new(None),
            sockets,
            stopping: AtomicBool::new(false),
        });
        let tunnel = Tunnel { shared: shared.clone() };
        for nth in 0..shared.sockets.len() {
            let shared = shared.clone();
            thread::Builder::new()
                .name("accept".into())
                .spawn(move || shared.accept(nth))
                .map_err(|error| TunnelError::Start(StartError::Threads(error)))?;
        }
        Ok(tunnel)
    }

    /// Returns the state of the session at this moment; `None` between two sessions.
    pub fn snapshot(&self) -> Option<SessionSnapshot> {
        let live = self.shared.current().live().clone();
        live.ended().is_none().then(|| live.snapshot())
    }

    /// Removes the sockets and closes the session.
    pub fn stop(&self) {
        if !self.shared.stopping.swap(true, Ordering::SeqCst) {
            self.shared.sockets.iter().for_each(OwnSocket::remove);
            self.shared.current().stop("the tunnel stops");
        }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn current(&self) -> Arc<Dialer> {
        self.dialer.lock().expect("no panic under this lock").clone()
    }

    fn accept(&self, nth: usize) {
        let (socket, target) = (&self.sockets[nth], &self.settings.forwards[nth].destination);
        while !self.stopping.load(Ordering::SeqCst) {
            match socket.accept() {
                Ok(Some(connection)) => self.forward(connection, target),
                Ok(None) => {}
                Err(error) => {
                    warn!("{}: cannot accept: {error}", socket.path().display());
                    thread::sleep(ACCEPT_WAIT);
                }
            }
        }
    }

    fn forward(&self, connection: UnixStream, target: &str) {
        widen_peer(&connection);
        let pages = pages_of_others(self.packers.clone(), self.settings.transport);
        let name = StreamDestination::Pages(target.to_owned()).to_string();
        let opened = self.session().map(|live| {
            let opened = live.open(&name, connection.into(), StreamContent::Source(pages));
            (live.peer().to_owned(), opened)
        });
        match opened {
            Ok((peer, Ok(stream))) => info!(peer, stream = stream.0, "connection to {target}"),
            Ok((_, Err(error))) => warn!("connection to {target} not carried: {error}"),
            Err(error) => warn!("connection to {target} not carried: {}", error_chain(&error)),
        }
    }

    /// Returns the session, or a new session if it is over.
    fn session(&self) -> Result<Arc<RunningSession>, StartError> {
        let mut failed = self.beginning.lock().expect("no panic under this lock");
        let current = self.current();
        if current.live().ended().is_none() {
            return Ok(current.live().clone());
        }
        if failed.is_some_and(|at| at.elapsed() < BEGIN_PAUSE) {
            return Err(StartError::FailedJustNow);
        }
        current.stop("it is over");
        let begun = Dialer::start(self.settings.dialer.clone(), &self.identity);
        *failed = begun.is_err().then(Instant::now);
        let (dialer, _) = begun?;
        if self.stopping.load(Ordering::SeqCst) {
            dialer.stop("the tunnel stops");
        }
        info!("a new session with {}", dialer.live().peer());
        let live = dialer.live().clone();
        *self.dialer.lock().expect("no panic under this lock") = dialer;
        Ok(live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_are_read_as_ssh_has_them_and_with_an_equals_sign() {
        let expected = Forward { listen: "/run/a.sock".into(), destination: "/run/b.sock".into() };
        assert_eq!("/run/a.sock=/run/b.sock".parse(), Ok(expected.clone()));
        assert_eq!("/run/a.sock:/run/b.sock".parse(), Ok(expected));
        for bad in ["", "/a", "a=/b", "/a=b", "/a/=/b", "=", ":"] {
            assert!(Forward::from_str(bad).is_err(), "{bad}");
        }
        let long = format!("/a=/{}", "x".repeat(107));
        assert!(matches!(Forward::from_str(&long), Err(ForwardError::TooLong { .. })));
    }
}
