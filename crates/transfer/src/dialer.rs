//! The end that dials: finds pairs of NICs, keeps several connections alive on each.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use skein_core::handshake::{Address, Hello, Welcome};
use skein_core::limits::PROTOCOL_VERSION;
use skein_core::pairs::{Pair, pairs};
use skein_core::{ConnectionId, ConnectionKind, PathId, Role, SessionId, Settings};
use skein_identity::Identity;
use skein_link::{Channel, From};
use thiserror::Error;
use tracing::{debug, info};

use crate::addresses::{Addresses, keep_arp_apart};
use crate::handshake::{MeetError, greet, proof};
use crate::live::{Incoming, Live, PathInfo, spawn};

/// A connection has to be made by then …
const DIAL_TIME: Duration = Duration::from_secs(1);
/// … and its handshake over by then.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// How often NICs and paths are looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// A path that never worked is tried again after this, doubled each time …
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// … up to this. A path that did work is tried again at each look.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What may be set on a dialer.
#[derive(Clone, Debug)]
pub struct DialerSettings {
    /// Where the other host's agent listens; the first that answers introduces the others.
    pub to: Vec<SocketAddr>,
    /// The other host's name, if it matters which member of the cluster answers.
    pub host: Option<String>,
    /// Which of this host's NICs to use.
    pub addresses: Addresses,
    /// Data connections on each path.
    pub connections: usize,
    /// Send bulk data without encryption.
    pub plain_data: bool,
    /// See [`Settings`].
    pub outage: Duration,
}

/// A session that did not begin.
#[derive(Debug, Error)]
pub enum StartError {
    /// No address is known.
    #[error("no address to dial")]
    NoAddress,
    /// Not tried again so soon.
    #[error("the other host could not be reached a moment ago")]
    FailedJustNow,
    /// This host has no room for the session's threads.
    #[error("the session cannot be started")]
    Threads(#[source] io::Error),
    /// None of the addresses led to an agent; the last one's error.
    #[error("cannot reach an agent at {to}")]
    Unreachable {
        /// Where.
        to: SocketAddr,
        /// Why.
        #[source]
        source: Box<MeetError>,
    },
}

#[derive(Debug)]
struct PathState {
    path: PathId,
    has_worked: bool,
    retry_at: Instant,
    retry_after: Duration,
    dialling: bool,
}

/// Keeps a session connected.
pub struct Dialer {
    live: Arc<Live>,
    settings: DialerSettings,
    tls: Arc<ClientConfig>,
    /// Where the session began.
    to: SocketAddr,
    plain_key: Vec<u8>,
    /// The pair that the session began on, kept whatever else is found.
    first: Pair,
    next_connection: AtomicU32,
    next_path: AtomicU32,
    paths: Mutex<HashMap<Pair, PathState>>,
    stopping: AtomicBool,
}

impl Dialer {
    /// Begins a session: one control connection now, all others by and by.
    pub fn start(
        settings: DialerSettings,
        identity: &Identity,
    ) -> Result<(Arc<Dialer>, Receiver<Incoming>), StartError> {
        let tls = skein_identity::client_config(identity);
        let local = settings.addresses.now();
        keep_arp_apart(&local);
        let mut last = StartError::NoAddress;
        for &to in &settings.to {
            match begin(&settings, &tls, &local, to) {
                Ok(begun) => return Dialer::run(settings, tls, to, begun).map_err(StartError::Threads),
                Err(source) => last = StartError::Unreachable { to, source: Box::new(source) },
            }
        }
        Err(last)
    }

    fn run(
        settings: DialerSettings,
        tls: Arc<ClientConfig>,
        to: SocketAddr,
        (channel, first, welcome): (Channel, Pair, Welcome),
    ) -> io::Result<(Arc<Dialer>, Receiver<Incoming>)> {
        let peer = channel.peer().unwrap_or_default().to_owned();
        let core = Settings { outage: settings.outage };
        let (live, streams) = Live::start(Role::Dialer, core, welcome.session, peer, welcome.addresses)?;
        let dialer = Arc::new(Dialer {
            live,
            settings,
            tls,
            to,
            plain_key: welcome.plain_key,
            first: first.clone(),
            next_connection: AtomicU32::new(1),
            next_path: AtomicU32::new(1),
            paths: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let (id, path) = (ConnectionId(0), PathId(0));
        dialer.add(channel, id, path, ConnectionKind::Control, &first);
        let now = Instant::now();
        let state = PathState { path, has_worked: true, retry_at: now, retry_after: RETRY_FIRST, dialling: false };
        info!(session = %dialer.live.id, peer = dialer.live.peer(), "path {} is up", shown(&first));
        dialer.lock().insert(first, state);
        let keeping = dialer.clone();
        spawn("dialer", move || keeping.keep_connected())?;
        Ok((dialer, streams))
    }

    /// The session.
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Which of the addresses answered.
    pub fn to(&self) -> SocketAddr {
        self.to
    }

    /// Ends the session.
    pub fn stop(&self, reason: &str) {
        if !self.stopping.swap(true, Ordering::SeqCst) {
            self.live.close(reason);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Pair, PathState>> {
        self.paths.lock().expect("no panic under this lock")
    }

    fn keep_connected(self: &Arc<Self>) {
        while !self.stopping.load(Ordering::SeqCst) && self.live.ended().is_none() {
            self.look();
            thread::sleep(LOOK_PERIOD);
        }
    }

    /// Compares what is with what could be, and dials the difference.
    fn look(self: &Arc<Self>) {
        let local = self.settings.addresses.now();
        keep_arp_apart(&local);
        self.live.announce(local.clone());
        let loopback = self.first.local.ip.is_loopback();
        let matching = |list: Vec<Address>| -> Vec<Address> {
            list.into_iter().filter(|address| address.ip.is_loopback() == loopback).collect()
        };
        let remote = self.live.peer_addresses();
        let first_is_there = local.iter().any(|address| address.ip == self.first.local.ip);
        let mut wanted = pairs(&matching(local), &matching(remote));
        // The peer may not know the address by which it was reached (behind address translation, say).
        if first_is_there && !wanted.iter().any(|pair| pair.remote.ip == self.first.remote.ip) {
            wanted.push(self.first.clone());
        }
        let mut paths = self.lock();
        paths.retain(|pair, state| {
            let keep = wanted.contains(pair) || state.dialling;
            if !keep {
                info!(session = %self.live.id, "path {} is lost: a NIC is gone or has no carrier", shown(pair));
                self.live.path_down(state.path);
            }
            keep
        });
        let now = Instant::now();
        for pair in wanted {
            let state = paths.entry(pair.clone()).or_insert_with(|| PathState {
                path: PathId(self.next_path.fetch_add(1, Ordering::SeqCst)),
                has_worked: false,
                retry_at: now,
                retry_after: RETRY_FIRST,
                dialling: false,
            });
            let (control, data) = self.live.path_connections(state.path);
            let complete = control && data >= self.settings.connections;
            if state.dialling || complete || now < state.retry_at {
                continue;
            }
            if !control && data > 0 {
                // On their way down, after their control connection.
                self.live.path_down(state.path);
                continue;
            }
            if !control && state.has_worked {
                // What was measured on the path before may not hold any more.
                state.path = PathId(self.next_path.fetch_add(1, Ordering::SeqCst));
            }
            let (dialer, path) = (self.clone(), state.path);
            // Without a thread for it the next look tries again.
            state.dialling = spawn("dial", move || dialer.raise(pair, path, control, data)).is_ok();
        }
    }

    /// Brings a path to its number of connections: the control connection first.
    fn raise(self: Arc<Self>, pair: Pair, path: PathId, control: bool, data: usize) {
        let missing = self.settings.connections.saturating_sub(data);
        let raised = std::iter::repeat_n(ConnectionKind::Control, usize::from(!control))
            .chain(std::iter::repeat_n(ConnectionKind::Data, missing))
            .try_for_each(|kind| self.connect(&pair, path, kind));
        if let Err(MeetError::Handshake(error)) = &raised
            && error.is_unknown_session()
        {
            info!(session = %self.live.id, "the other end does not know the session any more: was it restarted?");
            return self.stop("the other end does not know the session any more");
        }
        let mut paths = self.lock();
        let Some(state) = paths.get_mut(&pair) else { return };
        state.dialling = false;
        match raised {
            Ok(()) => {
                if !control {
                    let what = if state.has_worked { "is back" } else { "is up" };
                    info!(session = %self.live.id, "path {} {what}", shown(&pair));
                }
                state.has_worked = true;
                state.retry_after = RETRY_FIRST;
            }
            Err(error) => {
                debug!(session = %self.live.id, "path {} > {}: {error}", pair.local.nic, pair.remote.ip);
                if state.has_worked && matches!(&error, MeetError::Dial(error) if error.is_refused()) {
                    self.live.connection_refused();
                }
                if !state.has_worked {
                    state.retry_at = Instant::now() + state.retry_after;
                    state.retry_after = (state.retry_after * 2).min(RETRY_MAX);
                }
            }
        }
    }

    fn connect(self: &Arc<Self>, pair: &Pair, path: PathId, kind: ConnectionKind) -> Result<(), MeetError> {
        let from = From { ip: pair.local.ip, nic: pair.local.nic.clone() };
        let to = SocketAddr::new(pair.remote.ip, self.to.port());
        let socket = skein_link::dial(Some(&from), to, DIAL_TIME)?;
        let plain = self.settings.plain_data && kind == ConnectionKind::Data;
        let mut channel = if plain {
            Channel::plain(socket, HANDSHAKE_TIME)
        } else {
            Channel::client(socket, &self.tls, HANDSHAKE_TIME)?
        };
        let id = ConnectionId(self.next_connection.fetch_add(1, Ordering::SeqCst));
        let mut hello = hello(&self.settings, Some(self.live.id), (id, path, kind));
        if plain {
            hello.proof = proof(&self.plain_key, self.live.id, id);
        }
        greet(&mut channel, &hello)?;
        self.add(channel, id, path, kind, pair);
        Ok(())
    }

    fn add(self: &Arc<Self>, channel: Channel, id: ConnectionId, path: PathId, kind: ConnectionKind, pair: &Pair) {
        let info = PathInfo {
            nic: pair.local.nic.clone(),
            local: SocketAddr::new(pair.local.ip, 0),
            remote: SocketAddr::new(pair.remote.ip, self.to.port()),
        };
        let added = channel
            .split()
            .map_err(MeetError::from)
            .map(|halves| self.live.add_connection(id, path, kind, info, halves));
        match added {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(session = %self.live.id, "connection not added: {error}"),
            Err(error) => debug!(session = %self.live.id, "connection not added: {error}"),
        }
    }
}

/// A path as logs show it.
fn shown(pair: &Pair) -> String {
    let end = |address: &Address| format!("{} {}", address.nic, address.ip).trim_start().to_owned();
    format!("{} > {}", end(&pair.local), end(&pair.remote))
}

fn hello(
    settings: &DialerSettings,
    session: Option<SessionId>,
    (connection, path, kind): (ConnectionId, PathId, ConnectionKind),
) -> Hello {
    Hello {
        version: PROTOCOL_VERSION,
        session,
        connection,
        path,
        kind,
        plain_data: settings.plain_data,
        proof: Vec::new(),
        addresses: settings.addresses.now(),
    }
}

/// Dials the first connection of a session. One address of several that does not answer holds up the others only
/// briefly.
fn begin(
    settings: &DialerSettings,
    tls: &Arc<ClientConfig>,
    local: &[Address],
    to: SocketAddr,
) -> Result<(Channel, Pair, Welcome), MeetError> {
    // From where the routes say, but bound like all others if that is one of our NICs.
    let source = route_source(to);
    let from = source.and_then(|ip| local.iter().find(|address| address.ip == ip)).cloned();
    let bound = from.as_ref().map(|address| From { ip: address.ip, nic: address.nic.clone() });
    let patience = if settings.to.len() > 1 { DIAL_TIME } else { HANDSHAKE_TIME };
    let socket = skein_link::dial(bound.as_ref(), to, patience)?;
    let mut channel = Channel::client(socket, tls, HANDSHAKE_TIME)?;
    if let (Some(expected), Some(found)) = (&settings.host, channel.peer())
        && expected != found
    {
        return Err(MeetError::OtherHost { address: to, found: found.to_owned(), expected: expected.clone() });
    }
    let hello = hello(settings, None, (ConnectionId(0), PathId(0), ConnectionKind::Control));
    let welcome = greet(&mut channel, &hello)?;
    let remote = welcome.addresses.iter().find(|address| address.ip == to.ip()).cloned();
    let anonymous = |ip: IpAddr| Address { ip, prefix: if ip.is_ipv4() { 32 } else { 128 }, nic: String::new() };
    let pair = Pair {
        local: from.unwrap_or_else(|| anonymous(source.unwrap_or(to.ip()))),
        remote: remote.unwrap_or_else(|| anonymous(to.ip())),
    };
    Ok((channel, pair, welcome))
}

/// The address from which the routes reach `to`; asked by a UDP socket that sends nothing.
fn route_source(to: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
