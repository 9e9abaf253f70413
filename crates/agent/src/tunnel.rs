//! Unix sockets here, joined to unix sockets of another host.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use skein_identity::Identity;
use skein_transfer::{Dialer, DialerSettings, Live, Snapshot, StartError};
use socket2::{Domain, SockAddr, Socket, Type};
use thiserror::Error;
use tracing::{info, warn};

/// How long a listener waits before it looks whether it should stop.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);
/// After a session could not be begun, connections are turned away at once for this long.
const BEGIN_PAUSE: Duration = Duration::from_secs(1);
/// Waiting connections of a listener: QEMU opens up to 255 multifd channels at once.
const BACKLOG: i32 = 256;
/// Longest path of a unix socket (`sockaddr_un`, without the closing zero).
const PATH_BYTES_MAX: usize = 107;

/// A socket to listen on here, and the one that it leads to there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Path of the socket to make on this host.
    pub listen: PathBuf,
    /// Path of the socket to connect to on the other host.
    pub target: String,
}

/// Words that are no [`Forward`].
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

    /// `LISTEN=TARGET`, or `LISTEN:TARGET` as ssh has it.
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
        Ok(Forward { listen: listen.into(), target: target.to_owned() })
    }
}

/// What may be set on a tunnel.
#[derive(Clone, Debug)]
pub struct TunnelSettings {
    /// Whom to reach, and how.
    pub dialer: DialerSettings,
    /// What to join.
    pub forwards: Vec<Forward>,
    /// Permissions of the sockets that are made here.
    pub socket_mode: u32,
}

/// A tunnel that did not come up.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum TunnelError {
    #[error("{} is in use by a running program: stop it, or choose another path", .0.display())]
    SocketInUse(PathBuf),
    #[error("{} exists and is not a socket: remove it, or choose another path", .0.display())]
    NotASocket(PathBuf),
    #[error("cannot listen on {}", .path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the tunnel cannot be set up")]
    Start(#[from] StartError),
}

struct Shared {
    settings: TunnelSettings,
    identity: Identity,
    /// The session at hand; a new one is begun when a connection finds it over.
    dialer: Mutex<Arc<Dialer>>,
    /// Held while one is begun, so that only one is; and when that last failed.
    beginning: Mutex<Option<Instant>>,
    sockets: Vec<OwnSocket>,
    stopping: AtomicBool,
}

/// A running tunnel. Dropping it closes the session and removes the sockets.
pub struct Tunnel {
    shared: Arc<Shared>,
}

impl Tunnel {
    /// Makes the sockets and begins a session; connections are taken from then on.
    pub fn start(settings: TunnelSettings, identity: Identity) -> Result<Tunnel, TunnelError> {
        let mut sockets = Vec::new();
        for forward in &settings.forwards {
            sockets.push(OwnSocket::bind(&forward.listen, settings.socket_mode)?);
        }
        let (dialer, _) = Dialer::start(settings.dialer.clone(), &identity)?;
        let shared = Arc::new(Shared {
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

    /// The session at this moment; `None` between two sessions.
    pub fn snapshot(&self) -> Option<Snapshot> {
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
        let (socket, target) = (&self.sockets[nth], &self.settings.forwards[nth].target);
        while !self.stopping.load(Ordering::SeqCst) {
            match socket.accept() {
                Ok(Some(connection)) => self.forward(connection, target),
                Ok(None) => {}
                Err(error) => {
                    warn!("{}: cannot accept: {error}", socket.path.display());
                    thread::sleep(ACCEPT_WAIT);
                }
            }
        }
    }

    fn forward(&self, connection: UnixStream, target: &str) {
        let opened = self.session().map(|live| (live.peer().to_owned(), live.open(target, connection)));
        match opened {
            Ok((peer, Ok(stream))) => info!(peer, stream = stream.0, "connection to {target}"),
            Ok((_, Err(error))) => warn!("connection to {target} not carried: {error}"),
            Err(error) => {
                let mut text = error.to_string();
                let mut source = std::error::Error::source(&error);
                while let Some(cause) = source {
                    text += &format!(": {cause}");
                    source = cause.source();
                }
                warn!("connection to {target} not carried: {text}");
            }
        }
    }

    /// The session, or a new one if it is over.
    fn session(&self) -> Result<Arc<Live>, StartError> {
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

/// A listening unix socket whose file goes with it.
struct OwnSocket {
    socket: Socket,
    path: PathBuf,
    /// Device and inode of the file, to tell it from another's under the same name.
    file: Option<(u64, u64)>,
}

impl OwnSocket {
    fn bind(path: &Path, mode: u32) -> Result<OwnSocket, TunnelError> {
        clear_way(path)?;
        let listen = |source| TunnelError::Listen { path: path.to_owned(), source };
        let bind = || -> io::Result<Socket> {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&SockAddr::unix(path)?)?;
            // Nobody can connect before `listen`, so nobody gets in before this.
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            socket.listen(BACKLOG)?;
            socket.set_read_timeout(Some(ACCEPT_WAIT))?;
            Ok(socket)
        };
        let socket = bind().map_err(listen)?;
        Ok(OwnSocket { socket, path: path.to_owned(), file: file_id(path) })
    }

    /// Removes the file, unless it is another's by now.
    fn remove(&self) {
        if self.file.is_some() && file_id(&self.path) == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }

    fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.socket.accept() {
            Ok((socket, _)) => {
                socket.set_read_timeout(None)?;
                Ok(Some(UnixStream::from(OwnedFd::from(socket))))
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        self.remove();
    }
}

fn file_id(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Removes what an earlier run left, and nothing else.
///
/// Whether someone has the socket is asked with a datagram socket: the kernel finds the other end by the file's
/// inode, whatever its name and network namespace, and refuses for the wrong type (`EPROTOTYPE`) before the other end
/// hears of it (`unix_find_bsd` in net/unix/af_unix.c). A real connection would make an incoming QEMU exit.
fn clear_way(path: &Path) -> Result<(), TunnelError> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(TunnelError::NotASocket(path.to_owned()));
    }
    let asked = Socket::new(Domain::UNIX, Type::DGRAM, None)
        .and_then(|socket| socket.connect(&SockAddr::unix(path)?))
        .map_err(|error| error.kind());
    if asked != Err(io::ErrorKind::ConnectionRefused) {
        return Err(TunnelError::SocketInUse(path.to_owned()));
    }
    info!("{}: left by an earlier run, removed", path.display());
    fs::remove_file(path).map_err(|source| TunnelError::Listen { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_are_read_as_ssh_has_them_and_with_an_equals_sign() {
        let expected = Forward { listen: "/run/a.sock".into(), target: "/run/b.sock".into() };
        assert_eq!("/run/a.sock=/run/b.sock".parse(), Ok(expected.clone()));
        assert_eq!("/run/a.sock:/run/b.sock".parse(), Ok(expected));
        for bad in ["", "/a", "a=/b", "/a=b", "/a/=/b", "=", ":"] {
            assert!(Forward::from_str(bad).is_err(), "{bad}");
        }
        let long = format!("/a=/{}", "x".repeat(107));
        assert!(matches!(Forward::from_str(&long), Err(ForwardError::TooLong { .. })));
    }

    #[test]
    fn a_left_socket_goes_and_a_used_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let first = OwnSocket::bind(&path, 0o600).unwrap();
        assert!(matches!(OwnSocket::bind(&path, 0o600), Err(TunnelError::SocketInUse(_))));
        let by_another_name = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &by_another_name).unwrap();
        let by_another_name = by_another_name.join("a.sock");
        assert!(matches!(OwnSocket::bind(&by_another_name, 0o600), Err(TunnelError::SocketInUse(_))));
        // As a kill would leave it.
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("b.sock")).unwrap());
        OwnSocket::bind(&dir.path().join("b.sock"), 0o600).unwrap();
        fs::write(dir.path().join("c"), "data").unwrap();
        assert!(matches!(OwnSocket::bind(&dir.path().join("c"), 0o600), Err(TunnelError::NotASocket(_))));
        // Another's file under the same name stays.
        fs::remove_file(&path).unwrap();
        let second = OwnSocket::bind(&path, 0o600).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
