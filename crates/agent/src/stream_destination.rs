//! Connects the streams of a session to sockets of this host.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use skein_dataplane::target::TargetPages;
use skein_dataplane::{IncomingStream, LocalEnd, ResetCode, RunningSession, StreamContent};
use skein_handover::MigrationId;
use skein_inventory::MigrationNetwork;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tracing::info;

use crate::probe::ProbeOrder;
use crate::socket_buffers::widen;
use crate::{Allow, AllowError};

/// Holds the beginning of what is not a path.
const SCHEME: &str = "skein:";
/// Says how long a stream waits for its first bytes before its destination is connected.
///
/// QEMU from 8.0 peeks at each new connection and blocks until four bytes are there, so they should be there; but a
/// postcopy preempt channel stays empty, and other servers speak first.
const FIRST_BYTES_TIME: Duration = Duration::from_millis(50);
/// Says until when a socket that is not there yet, or does not accept, may come up.
const CONNECT_TIME: Duration = Duration::from_secs(3);
const CONNECT_PAUSE: Duration = Duration::from_millis(10);
/// Says until when a program that listens on an address has to have accepted. TCP itself would try for two minutes.
const ACCEPT_TIME: Duration = Duration::from_secs(30);
/// Bounds the destinations of one session that streams wait for.
const DESTINATIONS_MAX: usize = 256;
/// Bounds the streams that wait for one destination.
const WAITING_MAX: usize = 4096;

/// The destination that a stream is to reach, by the name that it is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamDestination {
    /// The destination is the other agent itself.
    Control,
    /// The destination is the QEMU that waits for a migration.
    Migration(MigrationId),
    /// The destination is a unix socket.
    Socket(String),
    /// The destination is a unix socket; QEMU's bytes on the way there are taken apart.
    Pages(String),
    /// The destination is an address and port of that host, which a program here connected to in the migration network;
    /// QEMU's bytes on the way there are taken apart.
    Network(SocketAddr),
    /// The destination is the other agent, which takes part in measuring what paths carry.
    Probe(ProbeOrder),
}

impl fmt::Display for StreamDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamDestination::Control => write!(f, "{SCHEME}control"),
            StreamDestination::Migration(id) => write!(f, "{SCHEME}migration/{id}"),
            StreamDestination::Socket(path) => f.write_str(path),
            StreamDestination::Pages(path) => write!(f, "{SCHEME}pages{path}"),
            StreamDestination::Network(address) => write!(f, "{SCHEME}network/{address}"),
            StreamDestination::Probe(order) => write!(f, "{SCHEME}probe/{order}"),
        }
    }
}

impl FromStr for StreamDestination {
    type Err = String;

    fn from_str(text: &str) -> Result<StreamDestination, String> {
        let Some(name) = text.strip_prefix(SCHEME) else { return Ok(StreamDestination::Socket(text.to_owned())) };
        if let Some(path) = name.strip_prefix("pages").filter(|path| path.starts_with('/')) {
            return Ok(StreamDestination::Pages(path.to_owned()));
        }
        if let Some(address) = name.strip_prefix("network/").and_then(|address| address.parse().ok()) {
            return Ok(StreamDestination::Network(address));
        }
        if let Some(order) = name.strip_prefix("probe/").and_then(|order| order.parse().ok()) {
            return Ok(StreamDestination::Probe(order));
        }
        match name.strip_prefix("migration/") {
            Some(id) => id.parse().map(StreamDestination::Migration),
            None if name == "control" => Ok(StreamDestination::Control),
            None => Err(format!("that host knows no '{text}': is its skein older than this one?")),
        }
    }
}

/// The reason why a stream is torn down.
pub(crate) type Refusal = (ResetCode, String);

/// The socket that a stream leads to.
pub(crate) struct LocalSocket {
    /// Where the socket is.
    pub(crate) place: LocalPlace,
    /// What the stream carries.
    pub(crate) content: StreamContent,
}

/// Where a socket of this host is.
pub(crate) enum LocalPlace {
    /// The path of a unix socket.
    Unix(PathBuf),
    /// An address and port.
    Tcp(SocketAddr),
}

/// Says where a stream leads; `None`: the stream is dealt with.
pub(crate) type RouteStream<'a> =
    dyn Fn(&Arc<RunningSession>, &IncomingStream) -> Result<Option<LocalSocket>, Refusal> + 'a;

/// Returns the route to a socket.
pub(crate) fn allowed(allow: &Allow, path: &str, content: StreamContent) -> Result<Option<LocalSocket>, Refusal> {
    match allow.check(path) {
        Ok(()) => Ok(Some(LocalSocket { place: LocalPlace::Unix(path.into()), content })),
        Err(error @ AllowError::NotAllowed { .. }) => Err((ResetCode::NotAllowed, error.to_string())),
        Err(error) => Err((ResetCode::NoDestination, error.to_string())),
    }
}

/// Returns the route to an address of this host in the migration network.
pub(crate) fn allowed_address(
    network: &MigrationNetwork,
    peer: &str,
    to: SocketAddr,
) -> Result<Option<LocalSocket>, Refusal> {
    if !network.may_connect(peer, to) {
        let reason =
            format!("{peer} may not connect to {to} on that host: add it to allow in its migration-network.toml");
        return Err((ResetCode::NotAllowed, reason));
    }
    let content = StreamContent::Target(TargetPages::new(None, None));
    Ok(Some(LocalSocket { place: LocalPlace::Tcp(to), content }))
}

/// Connects streams as they come, each destination's in the order they were opened in. Returns when the session ends.
pub(crate) fn serve(live: &Arc<RunningSession>, streams: Receiver<IncomingStream>, route: &RouteStream) {
    let waiting = Arc::new(Waiting::default());
    for incoming in streams {
        let stream = incoming.stream;
        let refused = match route(live, &incoming) {
            Ok(Some(lead)) => waiting.add(live, incoming, lead),
            Ok(None) => Ok(()),
            Err(refusal) => Err(refusal),
        };
        if let Err((code, reason)) = refused {
            info!(peer = live.peer(), "refused: {reason}");
            live.reset(stream, code, &reason);
        }
    }
}

/// The streams of a session that wait for their destinations. A destination that streams wait for has a thread.
#[derive(Default)]
struct Waiting {
    targets: Mutex<HashMap<String, VecDeque<(IncomingStream, LocalSocket)>>>,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<(IncomingStream, LocalSocket)>>> {
        self.targets.lock().expect("no panic under this lock")
    }

    fn add(
        self: &Arc<Self>,
        live: &Arc<RunningSession>,
        incoming: IncomingStream,
        lead: LocalSocket,
    ) -> Result<(), Refusal> {
        let mut targets = self.lock();
        if let Some(queue) = targets.get_mut(&incoming.destination) {
            if queue.len() >= WAITING_MAX {
                return Err((ResetCode::Busy, "too many connections wait for that target".into()));
            }
            queue.push_back((incoming, lead));
            return Ok(());
        }
        if targets.len() >= DESTINATIONS_MAX {
            return Err((ResetCode::Busy, "connections wait for too many different targets".into()));
        }
        let (waiting, live, target) = (self.clone(), live.clone(), incoming.destination.clone());
        let work = move || {
            while let Some((incoming, lead)) = waiting.next(&target) {
                attach(&live, &incoming, lead);
            }
        };
        let started = thread::Builder::new().name("target".into()).spawn(work);
        started.map_err(|error| (ResetCode::Busy, format!("that host cannot start another thread: {error}")))?;
        targets.insert(incoming.destination.clone(), [(incoming, lead)].into());
        Ok(())
    }

    /// Returns the next stream for a destination; if there is none, the destination is forgotten.
    fn next(&self, target: &str) -> Option<(IncomingStream, LocalSocket)> {
        let mut targets = self.lock();
        let next = targets.get_mut(target)?.pop_front();
        if next.is_none() {
            targets.remove(target);
        }
        next
    }
}

fn attach(live: &Arc<RunningSession>, incoming: &IncomingStream, LocalSocket { place, content }: LocalSocket) {
    match place {
        LocalPlace::Unix(path) => attach_unix(live, incoming, &path, content),
        LocalPlace::Tcp(to) => attach_tcp(live, incoming, to, content),
    }
}

/// Connects to an address of this host at once, as it would be on a wire: who listens there may speak first, and a
/// refusal does not wait.
fn attach_tcp(live: &Arc<RunningSession>, incoming: &IncomingStream, to: SocketAddr, content: StreamContent) {
    if !live.wait_connected(incoming.stream) {
        return;
    }
    match connect_own(to, incoming.since + ACCEPT_TIME).and_then(|socket| LocalEnd::tcp(socket, ())) {
        Ok(local_end) => {
            info!(peer = live.peer(), stream = incoming.stream.0, "connected to {to}");
            live.join_socket(incoming.stream, local_end, content);
        }
        Err(error) => {
            let hint = match error.kind() {
                io::ErrorKind::ConnectionRefused => " (nobody listens on it)",
                io::ErrorKind::AddrNotAvailable => " (that host does not have the address)",
                io::ErrorKind::TimedOut => " (its program does not accept connections)",
                _ => "",
            };
            let reason = format!("cannot connect to {to} on that host: {error}{hint}");
            info!(peer = live.peer(), "{reason}");
            live.reset(incoming.stream, ResetCode::NoDestination, &reason);
        }
    }
}

/// Connects to an address of this host, from that address: another host's is never connected to.
fn connect_own(to: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    // Which port is free depends on where the connection leads, which is not known before `connect`.
    setsockopt(&socket, IpBindAddressNoPort, &true)?;
    socket.bind(&SocketAddr::new(to.ip(), 0).into())?;
    let left = deadline.saturating_duration_since(Instant::now());
    socket.connect_timeout(&to.into(), left.max(CONNECT_PAUSE))?;
    Ok(socket.into())
}

fn attach_unix(live: &Arc<RunningSession>, incoming: &IncomingStream, path: &Path, content: StreamContent) {
    let waited = incoming.since.elapsed();
    live.wait_readable(incoming.stream, FIRST_BYTES_TIME.saturating_sub(waited));
    match connect(live, incoming, path) {
        Ok(socket) => {
            info!(peer = live.peer(), stream = incoming.stream.0, "connected to {}", path.display());
            live.join_socket(incoming.stream, socket, content);
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
        Err(error) => {
            let hint = match error.kind() {
                io::ErrorKind::NotFound => " (is the target started, with -incoming unix:PATH?)",
                io::ErrorKind::ConnectionRefused => " (nobody listens on it)",
                io::ErrorKind::PermissionDenied => " (the agent's user may not connect to it)",
                io::ErrorKind::TimedOut => " (its program does not accept connections)",
                _ => "",
            };
            let reason = format!("cannot connect to {} on that host: {error}{hint}", path.display());
            info!(peer = live.peer(), "{reason}");
            live.reset(incoming.stream, ResetCode::NoDestination, &reason);
        }
    }
}

/// Connects without blocking for ever on a full backlog.
fn connect(live: &RunningSession, incoming: &IncomingStream, path: &Path) -> io::Result<UnixStream> {
    let address = SockAddr::unix(path)?;
    // The time counts from the stream's opening: the streams behind it do not wait once more for the same.
    let deadline = incoming.since + CONNECT_TIME;
    loop {
        // One stray connection makes an incoming QEMU exit. So nothing connects for a stream that is dead, or whose
        // tunnel may be.
        if !live.wait_connected(incoming.stream) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        let error = match socket.connect(&address) {
            Ok(()) => {
                socket.set_nonblocking(false)?;
                widen(&socket);
                return Ok(UnixStream::from(std::os::fd::OwnedFd::from(socket)));
            }
            Err(error) => error,
        };
        let may_come = matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock
        );
        if !may_come {
            return Err(error);
        }
        if Instant::now() >= deadline {
            let full = error.kind() == io::ErrorKind::WouldBlock;
            return Err(if full { io::ErrorKind::TimedOut.into() } else { error });
        }
        thread::sleep(CONNECT_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_they_are_written() {
        for target in [
            StreamDestination::Control,
            StreamDestination::Migration(MigrationId(7)),
            StreamDestination::Socket("/run/a".into()),
            StreamDestination::Pages("/b".into()),
            StreamDestination::Network("10.9.9.2:60000".parse().unwrap()),
            StreamDestination::Network("[fd09::2]:60000".parse().unwrap()),
            StreamDestination::Probe(ProbeOrder::Sink),
        ] {
            assert_eq!(target.to_string().parse(), Ok(target));
        }
        for bad in [
            "skein:",
            "skein:contro",
            "skein:migration/",
            "skein:migration/7",
            "skein:pages",
            "skein:network/10.9.9.2",
            "skein:network/hostb:60000",
            "skein:pagesa",
            "skein:/etc/shadow",
            "skein:probe/all",
        ] {
            assert!(bad.parse::<StreamDestination>().is_err(), "{bad}");
        }
    }
}
