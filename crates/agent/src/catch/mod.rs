//! Carries what programs of this host connect to in the migration network.
//!
//! The kernel leads such connections to a port of the loopback interface (`redirect`), where a listener asks it whom
//! they were meant for. A host that something is meant for has a thread, which opens a stream for each connection, in
//! their order; the agent there connects to its own address, if it allows that. What the migration network is stands in
//! a file ([`MigrationNetwork`]), which is read again whenever it changed.

mod redirect;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{Ip6tOriginalDst, OriginalDst};
use parking_lot::Mutex;
use skein_dataplane::source::PackerPool;
use skein_dataplane::{LocalEnd, StreamContent};
use skein_inventory::{HostsFile, MigrationNetwork, WithoutAgent};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tracing::{debug, info, warn};

use crate::error_chain;
use crate::own_socket::ACCEPT_WAIT;
use crate::peers::{SessionHold, SessionHolder};
use crate::permit::Permit;
use crate::stream_destination::StreamDestination;
use crate::transport::pages_of_others;
use crate::watched_file::WatchedFile;
pub use redirect::{RedirectError, RedirectStatus, install_redirect, redirect_status, remove_redirect};

use redirect::HeldRedirect;

/// Bounds the connections that are open at once, to all hosts: each takes two threads.
const CONNECTIONS_MAX: usize = 8192;
/// Bounds the connections to one host that wait for its thread.
const WAITING_MAX: usize = 4096;
/// Bounds the connections that the kernel has made and the listener has not taken. More than net.core.somaxconn it does
/// not hold.
const BACKLOG: i32 = 4096;
/// Says how long a connection waits for a session with a host that was not known to be out of reach.
const SESSION_TIME: Duration = Duration::from_secs(5);
/// Says how long a host that nothing was meant for of late is kept reached.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Says how often the file is looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// What catches connections to the migration network. Dropping it ends that; what is carried goes on.
pub(crate) struct Catcher {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    network: WatchedFile<MigrationNetwork>,
    sessions: SessionHolder,
    packers: Option<Arc<PackerPool>>,
    open: Arc<AtomicUsize>,
    /// The queues of the threads of hosts.
    hosts: Mutex<HashMap<String, SyncSender<Caught>>>,
    stopping: AtomicBool,
}

/// A connection that was meant for an address of another host.
struct Caught {
    connection: TcpStream,
    to: SocketAddr,
    permit: Permit,
    since: Instant,
}

impl Catcher {
    /// Starts to catch what the file `network` says, as soon as it says something.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(
        network: &Path,
        sessions: SessionHolder,
        packers: Option<Arc<PackerPool>>,
    ) -> io::Result<Catcher> {
        let shared = Arc::new(Shared {
            network: WatchedFile::new(network, MigrationNetwork::parse),
            sessions,
            packers,
            open: Arc::default(),
            hosts: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let mut catcher = Catcher { shared: shared.clone(), threads: Vec::new() };
        for loopback in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let shared = shared.clone();
            let listen = move || shared.listen(loopback);
            catcher.threads.push(thread::Builder::new().name("catch".into()).spawn(listen)?);
        }
        let hold = move || shared.hold_redirect();
        catcher.threads.push(thread::Builder::new().name("catch-rules".into()).spawn(hold)?);
        Ok(catcher)
    }
}

impl Drop for Catcher {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.hosts.lock().clear();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Returns the migration network by the file's last sound version.
    fn network(&self) -> MigrationNetwork {
        self.network.refreshed().latest.clone()
    }

    /// Takes connections of a family of addresses, where the file says so.
    fn listen(self: &Arc<Self>, loopback: IpAddr) {
        let mut listener: Option<(SocketAddr, Socket)> = None;
        let (mut next_look, mut complaint) = (Instant::now(), None);
        while !self.is_stopping() {
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK_PERIOD;
                let network = self.network();
                let is_wanted = network.networks.iter().any(|network| network.is_ipv6() == loopback.is_ipv6());
                let wanted = is_wanted.then(|| SocketAddr::new(loopback, network.listen));
                if listener.as_ref().map(|(address, _)| *address) != wanted {
                    listener = None;
                    match wanted.map(listen).transpose() {
                        Ok(new) => {
                            if let Some(address) = wanted {
                                info!("connections to the migration network are taken on {address}");
                            }
                            listener = wanted.zip(new);
                            complaint = None;
                        }
                        Err(error) if complaint.as_ref() != Some(&error.to_string()) => {
                            warn!("the migration network fails, as nothing can listen on {wanted:?}: {error}");
                            complaint = Some(error.to_string());
                        }
                        Err(_) => {}
                    }
                }
            }
            match &listener {
                None => thread::sleep(ACCEPT_WAIT),
                Some((address, socket)) => self.accept(*address, socket),
            }
        }
    }

    /// Takes the next connection, if one comes within [`ACCEPT_WAIT`].
    fn accept(self: &Arc<Self>, own: SocketAddr, socket: &Socket) {
        match socket.accept() {
            Ok((connection, _)) => {
                let connection = TcpStream::from(connection);
                // Until the connection has a stream, its end is a reset.
                let _ = socket2::SockRef::from(&connection).set_linger(Some(Duration::ZERO));
                let _ = connection.set_read_timeout(None);
                match original_destination(&connection) {
                    Ok(to) if to == own => debug!("a connection was meant for {own} itself"),
                    Ok(to) => {
                        if let Err(reason) = self.take(connection, to) {
                            info!("connection to {to} not carried: {reason}");
                        }
                    }
                    Err(error) => debug!("a connection to {own} was not led there by the kernel: {error}"),
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                _ => {
                    warn!("cannot take connections to the migration network: {error}");
                    thread::sleep(ACCEPT_WAIT);
                }
            },
        }
    }

    /// Hands a connection to the thread of the host that it is meant for.
    fn take(self: &Arc<Self>, connection: TcpStream, to: SocketAddr) -> Result<(), String> {
        let network = self.network();
        if !network.has(to.ip()) {
            return Err("it is in no migration network: skein net catch install, after the file changed".into());
        }
        let hosts = self.hosts_file();
        let host = network.host_of(to.ip(), &hosts).ok_or_else(|| {
            let file = self.network.path().display();
            format!("no host is known to have {}: add it to hosts.toml, or as a [[host]] to {file}", to.ip())
        })?;
        if host == self.sessions.host() {
            return Err("that is this host".into());
        }
        let permit = Permit::take(&self.open, CONNECTIONS_MAX);
        let permit = permit.ok_or_else(|| format!("{CONNECTIONS_MAX} connections are open already"))?;
        self.queue(&host, Caught { connection, to, permit, since: Instant::now() })
    }

    fn hosts_file(&self) -> HostsFile {
        self.sessions.hosts().unwrap_or_default()
    }

    fn queue(self: &Arc<Self>, host: &str, caught: Caught) -> Result<(), String> {
        let mut hosts = self.hosts.lock();
        let mut caught = caught;
        if let Some(queue) = hosts.get(host) {
            caught = match queue.try_send(caught) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(_)) => return Err(format!("{WAITING_MAX} connections wait for {host}")),
                Err(TrySendError::Disconnected(caught)) => caught,
            };
        }
        let (queue, caught_of_host) = sync_channel(WAITING_MAX);
        let (shared, name) = (self.clone(), host.to_owned());
        let carry = move || shared.carry(&name, &caught_of_host);
        thread::Builder::new().name("catch-host".into()).spawn(carry).map_err(|error| error.to_string())?;
        let _ = queue.try_send(caught);
        hosts.insert(host.to_owned(), queue);
        Ok(())
    }

    /// Opens streams for what is meant for a host, until nothing was for a while.
    fn carry(&self, host: &str, queue: &Receiver<Caught>) {
        let hold = Arc::new(self.sessions.hold(host));
        loop {
            match queue.recv_timeout(IDLE_TIME) {
                Ok(caught) => self.open(&hold, caught),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let mut hosts = self.hosts.lock();
                    match queue.try_recv() {
                        Ok(caught) => {
                            drop(hosts);
                            self.open(&hold, caught);
                        }
                        Err(_) => {
                            hosts.remove(host);
                            return;
                        }
                    }
                }
            }
        }
    }

    fn open(&self, hold: &Arc<SessionHold>, Caught { connection, to, permit, since }: Caught) {
        let host = hold.host();
        let carried = hold.session_or_reason(since + SESSION_TIME).map_err(|error| error_chain(&error));
        let carried = carried.and_then(|live| {
            let pages = pages_of_others(self.packers.clone(), self.hosts_file().transport_from(self.sessions.host()));
            let local_end = LocalEnd::tcp(connection, (permit, hold.clone())).map_err(|error| error.to_string())?;
            let name = StreamDestination::Network(to).to_string();
            live.open(&name, local_end, StreamContent::Source(pages)).map_err(|error| error_chain(&error))
        });
        match carried {
            Ok(stream) => info!(peer = host, stream = stream.0, "connection to {to}"),
            Err(reason) => info!(peer = host, "connection to {to} not carried: {reason}"),
        }
    }

    /// Has the kernel lead connections here as long as the agent runs, where the file says that they pass without it.
    fn hold_redirect(&self) {
        let mut held: Option<(MigrationNetwork, HeldRedirect)> = None;
        let (mut next_look, mut complaint) = (Instant::now(), None);
        while !self.is_stopping() {
            thread::sleep(ACCEPT_WAIT);
            if Instant::now() < next_look {
                continue;
            }
            next_look = Instant::now() + LOOK_PERIOD;
            let network = self.network();
            let is_wanted = network.without_agent == WithoutAgent::Pass && !network.networks.is_empty();
            let stands = held.as_mut().is_some_and(|(of, redirect)| *of == network && redirect.stands());
            if stands && is_wanted {
                continue;
            }
            held = None;
            if is_wanted {
                match HeldRedirect::install(&network, &self.hosts_file()) {
                    Ok(redirect) => {
                        info!("connections to the migration network are caught as long as this agent runs");
                        (held, complaint) = (Some((network, redirect)), None);
                    }
                    Err(error) => {
                        let words = error_chain(&error);
                        if complaint.as_ref() != Some(&words) {
                            warn!("connections to the migration network are not caught: {words}");
                        }
                        complaint = Some(words);
                    }
                }
            }
        }
    }
}

/// Returns the listening socket of a family of addresses.
fn listen(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // The connections of the agent before may still be there.
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    socket.set_read_timeout(Some(ACCEPT_WAIT))?;
    Ok(socket)
}

/// Returns where a connection was meant to go before the kernel led it here.
fn original_destination(connection: &TcpStream) -> io::Result<SocketAddr> {
    if connection.local_addr()?.is_ipv4() {
        let to = getsockopt(connection, OriginalDst)?;
        let address = Ipv4Addr::from(u32::from_be(to.sin_addr.s_addr));
        return Ok(SocketAddrV4::new(address, u16::from_be(to.sin_port)).into());
    }
    let to = getsockopt(connection, Ip6tOriginalDst)?;
    let address = Ipv6Addr::from(to.sin6_addr.s6_addr);
    Ok(SocketAddrV6::new(address, u16::from_be(to.sin6_port), 0, 0).into())
}
