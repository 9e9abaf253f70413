//! Is the end that dials: finds pairs of NICs, and keeps several connections alive on each.

mod rails;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use skein_fabric::{Rails, SharedEndpoint};
use skein_host::{WantedConnections, ports_of_member};
use skein_identity::Identity;
use skein_link::{Dial, Link, LinkError, LocalAddress, PACKET_BYTES_MIN, Pending, TcpLink, TlsLink};
use skein_session::address::NicAddress;
use skein_session::handshake::{Hello, Welcome};
use skein_session::limits::PROTOCOL_VERSION;
use skein_session::pairs::{Choice, Ends, PATHS_MAX, Pair, Preference, announced, choose, usable_beside};
use skein_session::path_use::{PathUse, path_uses};
use skein_session::{ConnectionId, ConnectionKind, PathId, Role, SessionId, Settings};
use thiserror::Error;
use tracing::{debug, info, warn};

use crate::addresses::Addresses;
use crate::handshake::{HandshakeFailed, greet, mark, proof, take_apart};
use crate::host_nics::{Carriers, HostNics, ThisHost};
use crate::network_problem::{NetworkProblem, of_unused};
use crate::packet_survey::{PathSurvey, survey};
use crate::path_connections::{RemoteQueues, decide};
use crate::path_mtu::{self, PathMtu};
use crate::path_state::{MissingConnections, PathState, RETRY_FIRST, mtu};
use crate::running_session::{IncomingStream, PathInfo, PathWords, RunningSession, spawn};

/// Bounds the time of making a connection …
const DIAL_TIME: Duration = Duration::from_secs(1);
/// … and of its handshake. In tests a busy machine may keep a thread waiting.
const HANDSHAKE_TIME: Duration = Duration::from_secs(if cfg!(test) { 30 } else { 5 });
/// Says how often NICs and paths are checked.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// Bounds the time after which a path that never worked is tried again. A path that did work is tried again at each
/// check.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Says after how many attempts a path that never worked makes room for others …
const ATTEMPTS_MAX: u32 = 2;
/// … as long as there are no more of such paths than this. Two hosts with a hundred bridges for guests each have 10,000
/// pairs that no route joins, and nobody wants to see all of them tried …
const FAILED_MAX: usize = 64;
/// … and after how long such a path gets another chance.
const FAILED_TIME: Duration = Duration::from_secs(300);
/// Says how many local ports are tried for a member, and how far apart those of two connections begin.
const PORTS_TRIED: usize = 16;
const PORTS_APART: u32 = 4099;
/// Holds the size of control connections' packets, which is so small that whatever carries anything carries them.
const CONTROL_PACKET_BYTES: Option<u32> = Some(PACKET_BYTES_MIN);

/// The settings of a dialer.
#[derive(Clone, Debug)]
pub struct DialerSettings {
    /// The addresses at which the other host's agent listens. The first that answers introduces the others.
    pub to: Vec<SocketAddr>,
    /// The other host's name, if it matters which member of the cluster answers.
    pub host: Option<String>,
    /// This host's addresses that are used.
    pub addresses: Addresses,
    /// How many data connections each path has.
    pub connections: WantedConnections,
    /// Whether the caller asks the other host for its NICs' queues where [`Dialer::needs_remote_queues`], and tells.
    pub tells_queues: bool,
    /// Whether bulk data goes unencrypted.
    pub plain_data: bool,
    /// See [`Settings`].
    pub outage: Duration,
}

/// The reason why a session did not begin.
#[derive(Debug, Error)]
pub enum StartError {
    /// No address of the other host is known.
    #[error("no address to dial")]
    NoAddress,
    /// The last attempt failed just now, and the next is not made so soon.
    #[error("the other host could not be reached a moment ago")]
    FailedJustNow,
    /// This host has no room for the session's threads.
    #[error("the session cannot be started")]
    Threads(#[source] io::Error),
    /// None of the addresses led to an agent. The error is the last address's.
    #[error("cannot reach an agent at {to}")]
    Unreachable {
        /// The last address that was tried.
        to: SocketAddr,
        /// The error at that address.
        #[source]
        source: Box<HandshakeFailed>,
    },
}

impl StartError {
    /// Returns whether the other host answered that nobody listens there.
    pub fn is_refused(&self) -> bool {
        let StartError::Unreachable { source, .. } = self else { return false };
        matches!(&**source, HandshakeFailed::Link(error) if error.is_refused())
    }
}

/// A path of a session, at the end that dials.
#[derive(Clone, Debug)]
pub struct DialedPath {
    /// The path's number, which both ends know.
    pub path: PathId,
    /// This end's NIC.
    pub local: NicAddress,
    /// The other end's NIC.
    pub remote: NicAddress,
    /// What the path carries.
    pub carries: PathUse,
    /// Whether the path is up.
    pub is_up: bool,
    /// Whether the path has all its connections, or did not come up when it was tried.
    pub is_settled: bool,
    /// Whether the path's data goes over RDMA.
    pub over_rdma: bool,
    /// Why the path's data does not go over RDMA; `None`: it does, or was not to.
    pub no_rdma: Option<String>,
}

/// The last choice of pairs, and what it was made from. Hosts with hundreds of NICs have many pairs to compare.
#[derive(Default)]
struct Chosen {
    local: Vec<NicAddress>,
    remote: Vec<NicAddress>,
    failed: BTreeSet<Ends>,
    choice: Choice,
}

/// The NICs that a dialer dials from, and the links that it dials with.
#[derive(Clone)]
pub(crate) struct DialingHost {
    pub(crate) nics: Arc<dyn HostNics>,
    pub(crate) rails: Option<Arc<dyn Rails>>,
    /// The link of control connections. Its ends show who they are.
    pub(crate) control: Arc<dyn Link>,
    /// The link of data connections.
    pub(crate) data: Arc<dyn Link>,
}

/// Keeps a session connected.
pub struct Dialer {
    live: Arc<RunningSession>,
    settings: DialerSettings,
    host: DialingHost,
    /// The address at which the session began.
    to: SocketAddr,
    plain_key: Vec<u8>,
    /// The pair that the session began on. It is kept whatever else is found.
    first: Pair,
    next_connection: AtomicU32,
    next_path: AtomicU32,
    paths: Mutex<BTreeMap<Ends, PathState>>,
    chosen: Mutex<Chosen>,
    /// The queues of the other end's NICs.
    remote_queues: Mutex<RemoteQueues>,
    /// The paths that were tried and never worked, and the time of each path's last attempt.
    failed: Mutex<BTreeMap<Ends, Instant>>,
    stopping: AtomicBool,
}

impl Dialer {
    /// Begins a session: makes one control connection now, and all others by and by.
    ///
    /// # Errors
    /// No suitable agent is found at any address, or there is no room for threads.
    pub fn start(
        settings: DialerSettings,
        identity: &Identity,
    ) -> Result<(Arc<Dialer>, Receiver<IncomingStream>), StartError> {
        let control = Arc::new(TlsLink::new(skein_identity::client_config(identity)));
        let data: Arc<dyn Link> = if settings.plain_data { Arc::new(TcpLink) } else { control.clone() };
        let (nics, rails) = (Arc::new(ThisHost), settings.addresses.rails.clone());
        Dialer::start_from(DialingHost { nics, rails, control, data }, settings)
    }

    /// Starts as [`Self::start`] does, from a given host over given links.
    pub(crate) fn start_from(
        host: DialingHost,
        settings: DialerSettings,
    ) -> Result<(Arc<Dialer>, Receiver<IncomingStream>), StartError> {
        let local = settings.addresses.now(&*host.nics);
        host.nics.keep_apart(&local);
        let mut last = StartError::NoAddress;
        for &to in &settings.to {
            match begin(&settings, &*host.control, &local, to) {
                Ok(begun) => return Dialer::run(settings, host, to, begun).map_err(StartError::Threads),
                Err(source) => last = StartError::Unreachable { to, source: Box::new(source) },
            }
        }
        Err(last)
    }

    fn run(
        settings: DialerSettings,
        host: DialingHost,
        to: SocketAddr,
        (pending, first, welcome): (Box<dyn Pending>, Pair, Welcome),
    ) -> io::Result<(Arc<Dialer>, Receiver<IncomingStream>)> {
        let peer = pending.peer().unwrap_or_default().to_owned();
        let core = Settings { outage: settings.outage };
        let (live, streams) =
            RunningSession::start(Role::Dialer, core, welcome.session, peer, welcome.addresses, host.rails.clone())?;
        let remote_queues = match settings.tells_queues {
            true => RemoteQueues::Awaited,
            false => RemoteQueues::Told(BTreeMap::new()),
        };
        let dialer = Arc::new(Dialer {
            live,
            settings,
            host,
            to,
            plain_key: welcome.plain_key,
            first: first.clone(),
            next_connection: AtomicU32::new(1),
            next_path: AtomicU32::new(1),
            paths: Mutex::default(),
            chosen: Mutex::default(),
            remote_queues: Mutex::new(remote_queues),
            failed: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let (id, path) = (ConnectionId(0), PathId(0));
        if let Err(error) = dialer.add(pending, None, (id, path, ConnectionKind::Control), &first) {
            debug!(session = %dialer.live.id, "connection not added: {error}");
        }
        info!(session = %dialer.live.id, peer = dialer.live.peer(), "path {} is up", shown(&first));
        let state = PathState { has_worked: true, ..PathState::new(first.clone(), path) };
        dialer.lock().insert(first.ends(), state);
        let keeping = dialer.clone();
        spawn("dialer", move || keeping.keep_connected())?;
        Ok((dialer, streams))
    }

    /// Returns the session.
    pub fn live(&self) -> &Arc<RunningSession> {
        &self.live
    }

    /// Returns the address that answered.
    pub fn to(&self) -> SocketAddr {
        self.to
    }

    /// Returns the session's paths as they are now, in their order.
    pub fn paths(&self) -> Vec<DialedPath> {
        let of = |state: &PathState| {
            let (is_up, data) = self.live.path_connections(state.path);
            let wanted = state.connections_now();
            let has_failed = !state.has_worked && state.attempts > 0;
            DialedPath {
                path: state.path,
                local: state.pair.local.clone(),
                remote: state.pair.remote.clone(),
                carries: state.carries,
                is_up,
                is_settled: has_failed || (is_up && data >= wanted && !state.is_worked_on()),
                over_rdma: self.live.rdma_connections(state.path) > 0,
                no_rdma: self.why_no_rdma(state),
            }
        };
        let mut paths: Vec<DialedPath> = self.lock().values().map(of).collect();
        paths.sort_by_key(|path| path.path);
        paths
    }

    /// Returns the pairs of NICs, this end's and the other's, that have no path though they could have one.
    pub fn left_out(&self) -> Vec<(NicAddress, NicAddress)> {
        let chosen = self.chosen.lock().expect("no panic under this lock");
        chosen.choice.left_out.iter().map(|pair| (pair.local.clone(), pair.remote.clone())).collect()
    }

    /// Returns whether the number of connections depends on the queues of the other host's NICs, which nobody has told
    /// yet.
    pub fn needs_remote_queues(&self) -> bool {
        let several = |state: &PathState| {
            state.carriers.as_ref().and_then(|carriers| carriers.queues).is_some_and(|queues| queues > 1)
        };
        let are_awaited = *self.remote_queues.lock().expect("no panic under this lock") == RemoteQueues::Awaited;
        are_awaited && self.settings.connections == WantedConnections::Auto && self.lock().values().any(several)
    }

    /// Tells how many queues each of the other host's NICs has, by name, as far as that is known.
    pub fn set_remote_queues(&self, queues: BTreeMap<String, u32>) {
        *self.remote_queues.lock().expect("no panic under this lock") = RemoteQueues::Told(queues);
    }

    /// Finds how long packets take on a path, and how large those are that pass, in some seconds at most. `found` is
    /// told at once when a packet is lost for its size: what passes, and what is lost.
    pub fn survey(&self, path: &DialedPath, found: &dyn Fn(u32, u32)) -> PathSurvey {
        let pair = Pair { local: path.local.clone(), remote: path.remote.clone() };
        survey(&*self.host.data, &self.dial(&pair, None), mtu(&pair), found)
    }

    /// Ends the session.
    pub fn stop(&self, reason: &str) {
        if !self.stopping.swap(true, Ordering::SeqCst) {
            self.live.close(reason);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Ends, PathState>> {
        self.paths.lock().expect("no panic under this lock")
    }

    fn keep_connected(self: &Arc<Self>) {
        while !self.stopping.load(Ordering::SeqCst) && self.live.ended().is_none() {
            self.check_paths();
            thread::sleep(LOOK_PERIOD);
        }
    }

    /// Returns the pairs that are to have a path now, best first.
    fn choose_paths(&self, local: Vec<NicAddress>) -> Choice {
        let first_is_there = local.iter().any(|address| address.ip == self.first.local.ip);
        let local = usable_beside(local, &self.first.local);
        let remote = usable_beside(self.live.peer_addresses(), &self.first.remote);
        let failed: BTreeSet<Ends> = {
            let mut failed = self.failed.lock().expect("no panic under this lock");
            failed.retain(|_, at| at.elapsed() < FAILED_TIME);
            failed.keys().cloned().collect()
        };
        let mut chosen = self.chosen.lock().expect("no panic under this lock");
        if (&chosen.local, &chosen.remote, &chosen.failed) != (&local, &remote, &failed) {
            let named = self.settings.to.iter().map(|to| to.ip()).collect();
            let preference = Preference { named, failed: failed.clone(), first: Some(self.first.ends()) };
            let mut choice = choose(&local, &remote, &preference);
            // The peer may not know the address by which it was reached, for instance behind address translation.
            if first_is_there && !choice.pairs.iter().any(|pair| pair.remote.ip == self.first.remote.ip) {
                choice.pairs.truncate(PATHS_MAX - 1);
                choice.pairs.push(self.first.clone());
            }
            *chosen = Chosen { local, remote, failed, choice };
        }
        chosen.choice.clone()
    }

    /// Compares the connections that are with those that could be, and dials the difference.
    fn check_paths(self: &Arc<Self>) {
        let local = self.settings.addresses.now(&*self.host.nics);
        self.host.nics.keep_apart(&local);
        self.live.announce(announced(local.clone(), &self.live.peer_addresses(), &[self.first.local.ip]));
        let Choice { pairs: wanted, left_out } = self.choose_paths(local);
        let ends: BTreeSet<Ends> = wanted.iter().map(Pair::ends).collect();
        let mut paths = self.lock();
        paths.retain(|ends_of, state| {
            let keep = ends.contains(ends_of) || state.is_worked_on();
            if !keep && state.has_worked {
                let shown = shown(&state.pair);
                let session = self.live.id;
                info!(%session, "path {shown} is lost: its NIC is gone or has no carrier, or others are better");
            }
            if !keep {
                self.live.path_down(state.path);
            }
            keep
        });
        let now = Instant::now();
        let is_there = |pair: &Pair| paths.get(&pair.ends()).is_none_or(|state| state.is_there(&self.live));
        let uses = path_uses(&wanted, is_there, &self.settings.addresses.preferred);
        for (pair, carries) in wanted.iter().zip(uses) {
            let next = || PathState::new(pair.clone(), PathId(self.next_path.fetch_add(1, Ordering::SeqCst)));
            let state = paths.entry(pair.ends()).or_insert_with(next);
            state.pair = pair.clone();
            if std::mem::replace(&mut state.carries, carries) != carries {
                info!(session = %self.live.id, "path {}: {carries}", shown(pair));
            }
        }
        self.decide_connections(&mut paths, &wanted);
        for pair in &wanted {
            if let Some(state) = paths.get_mut(&pair.ends()) {
                self.bring_to_number(pair, state, now);
            }
        }
        let words = |state: &PathState| PathWords {
            carries: Some(state.carries).filter(|carries| *carries != PathUse::Data).map(|carries| carries.to_string()),
            connections: (state.carries == PathUse::Data)
                .then(|| state.connection_words(self.live.rdma_connections(state.path))),
        };
        self.live.set_path_words(paths.values().map(|state| (state.path, words(state))).collect());
        drop(paths);
        self.set_problems(of_unused(&wanted, &left_out));
    }

    /// Decides how many connections each path that carries data is to have.
    fn decide_connections(&self, paths: &mut BTreeMap<Ends, PathState>, wanted: &[Pair]) {
        // What carries a NIC is read again when its path is dialled, as that takes some milliseconds.
        let lacks = |state: &PathState| {
            state.carriers.is_none() || self.live.path_connections(state.path).1 < state.connections_now()
        };
        let is_data = |state: &PathState| state.carries == PathUse::Data && state.is_there(&self.live);
        let data: Vec<Ends> = wanted.iter().map(Pair::ends).filter(|ends| is_data(&paths[ends])).collect();
        let dialled: Vec<&Ends> = data.iter().filter(|ends| !paths[ends].dialling && lacks(&paths[ends])).collect();
        if !dialled.is_empty() {
            let nics: Vec<String> = dialled.iter().map(|ends| paths[ends].pair.local.nic.clone()).collect();
            for (ends, carriers) in dialled.iter().zip(self.host.nics.carriers(&nics)) {
                paths.get_mut(ends).expect("it was just found").carriers = Some(carriers);
            }
        }
        let remote = self.remote_queues.lock().expect("no panic under this lock").clone();
        let none = Carriers::default();
        let ends = data.iter().map(|ends| (&paths[ends].pair, paths[ends].carriers.as_ref().unwrap_or(&none)));
        let decided = decide(self.settings.connections, &remote, ends);
        for (ends, connections) in data.iter().zip(decided) {
            let state = paths.get_mut(ends).expect("it was just found");
            if state.connections != connections {
                info!(session = %self.live.id, "path {}: connections: {connections}", shown(&state.pair));
                state.connections = connections;
            }
        }
    }

    /// Compares a path's connections with those that it is to have, and dials the difference.
    fn bring_to_number(self: &Arc<Self>, pair: &Pair, state: &mut PathState, now: Instant) {
        if let Some(why) = self.live.take_rail_failure(state.path) {
            warn!(session = %self.live.id, "path {}: RDMA failed, and TCP is used for a while: {why}", shown(pair));
            state.rail_pause.begin_after_failure(Instant::now());
            state.note_no_rail(&why);
        }
        let (control, data) = self.live.path_connections(state.path);
        let (rdma, is_held_off) = (self.live.rdma_connections(state.path), self.live.rail_use.is_held_off());
        let has_rail = rdma > 0;
        // One connection over RDMA does what several over TCP do.
        let connections = state.connections_now().min(if has_rail && !is_held_off { 1 } else { usize::MAX });
        let there = if is_held_off { data.saturating_sub(rdma) } else { data };
        let missing = MissingConnections { control: !control, data: connections.saturating_sub(there), there };
        if state.dialling || now < state.retry_at {
            return;
        }
        if connections == 0 && data > 0 {
            // The path comes up again without connections for data.
            self.live.path_down(state.path);
            state.path = PathId(self.next_path.fetch_add(1, Ordering::SeqCst));
            return;
        }
        if !missing.any() {
            if has_rail && is_held_off {
                return self.live.drop_rdma(state.path);
            }
            if state.is_opening_rail {
                return;
            }
            let (dialer, pair) = (self.clone(), pair.clone());
            if connections > 0 && !has_rail && self.may_have_rail(&pair, state) {
                let (path, packets) = (state.path, state.packets.and_then(|(packets, ..)| packets.limit()));
                state.is_opening_rail = spawn("rail", move || dialer.open_rail(&pair, path, packets)).is_ok();
                return;
            }
            self.live.drop_more_data_than(state.path, connections);
            if state.is_doubtful() {
                state.dialling = spawn("packets", move || dialer.try_large(pair)).is_ok();
            }
            return;
        }
        if missing.control && data > 0 {
            // These connections are on their way down, after their control connection.
            self.live.path_down(state.path);
            return;
        }
        if missing.control && state.has_worked {
            // What was measured on the path before may not hold any more.
            state.path = PathId(self.next_path.fetch_add(1, Ordering::SeqCst));
        }
        let (dialer, pair, path, members) = (self.clone(), pair.clone(), state.path, state.members());
        // Without a thread for the path, the next check tries again.
        let work = move || dialer.open_connections(pair, path, missing, members);
        state.dialling = spawn("dial", work).is_ok();
    }

    /// Tells the problems of the network. `unused` is what is known of NICs without a path.
    fn set_problems(&self, unused: Option<NetworkProblem>) {
        let faults = self.lock().values().filter_map(PathState::problem).chain(unused).collect();
        self.live.set_problems(faults);
    }

    /// Brings a path to its number of connections, the control connection first. Connections for data go over as many
    /// members of a bond in turn.
    fn open_connections(self: Arc<Self>, pair: Pair, path: PathId, missing: MissingConnections, members: u32) {
        let raised = (|| {
            if missing.control {
                self.connect(&pair, Vec::new(), path, ConnectionKind::Control, CONTROL_PACKET_BYTES)?;
            }
            if missing.data == 0 {
                return Ok(());
            }
            let packets = self.live.while_probing_mtu(|| {
                let found = path_mtu::discover_path_mtu(&*self.host.data, &self.dial(&pair, None), mtu(&pair));
                found.inspect(|packets| self.note_packets(&pair, *packets))
            })?;
            (0..missing.data).try_for_each(|nth| {
                let ports = self.ports(&pair, missing.there + nth, members);
                self.connect(&pair, ports, path, ConnectionKind::Data, packets.limit())
            })
        })();
        if let Err(HandshakeFailed::Handshake(error)) = &raised
            && error.is_unknown_session()
        {
            info!(session = %self.live.id, "the other end does not know the session any more: was it restarted?");
            return self.stop("the other end does not know the session any more");
        }
        let mut paths = self.lock();
        let Some(state) = paths.get_mut(&pair.ends()) else { return };
        state.dialling = false;
        match raised {
            Ok(()) => {
                if missing.control {
                    let what = if state.has_worked { "is back" } else { "is up" };
                    info!(session = %self.live.id, "path {} {what}", shown(&pair));
                }
                state.has_worked = true;
                state.retry_after = RETRY_FIRST;
                self.failed.lock().expect("no panic under this lock").remove(&pair.ends());
            }
            Err(error) => {
                debug!(session = %self.live.id, "path {} > {}: {error}", pair.local.nic, pair.remote.ip);
                if state.has_worked && matches!(&error, HandshakeFailed::Link(error) if error.is_refused()) {
                    self.live.connection_refused();
                }
                if !state.has_worked {
                    state.attempts += 1;
                    let mut failed = self.failed.lock().expect("no panic under this lock");
                    if state.attempts >= ATTEMPTS_MAX && failed.len() < FAILED_MAX {
                        failed.insert(pair.ends(), Instant::now());
                    }
                    drop(failed);
                    state.retry_at = Instant::now() + state.retry_after;
                    state.retry_after = (state.retry_after * 2).min(RETRY_MAX);
                }
            }
        }
    }

    /// Returns the local ports of a path's connection with this number, so that the bond's members take turns.
    fn ports(&self, pair: &Pair, nth: usize, members: u32) -> Vec<u16> {
        if members < 2 {
            return Vec::new();
        }
        let to = SocketAddr::new(pair.remote.ip, self.to.port());
        let (member, seed) = (nth as u32 % members, self.next_connection.load(Ordering::SeqCst));
        let seed = (std::process::id() ^ seed.wrapping_mul(PORTS_APART)) as u16;
        ports_of_member(pair.local.ip, to, member, members, seed, PORTS_TRIED)
    }

    /// Remembers which packets pass a path.
    fn note_packets(&self, pair: &Pair, packets: PathMtu) {
        if let Some(state) = self.lock().get_mut(&pair.ends()) {
            state.packets = Some((packets, mtu(pair), Instant::now()));
        }
        let Choice { pairs, left_out } = self.chosen.lock().expect("no panic under this lock").choice.clone();
        self.set_problems(of_unused(&pairs, &left_out));
    }

    /// Tries whether large packets pass a path that loses them. If they pass, the path's connections are dialled anew.
    fn try_large(self: Arc<Self>, pair: Pair) {
        let whole = path_mtu::passes_full_size(&*self.host.data, &self.dial(&pair, None));
        let mut paths = self.lock();
        let Some(state) = paths.get_mut(&pair.ends()) else { return };
        state.dialling = false;
        let small = state.packets.map_or(PathMtu::Whole, |(packets, ..)| packets);
        state.packets = Some((if whole { PathMtu::Whole } else { small }, mtu(&pair), Instant::now()));
        if whole {
            info!(session = %self.live.id, "path {} carries large packets now", shown(&pair));
            self.live.path_down(state.path);
        }
    }

    /// Returns where the remote end of a pair listens, and how it is dialled.
    fn dial(&self, pair: &Pair, packet_bytes: Option<u32>) -> Dial {
        Dial {
            from: Some(from(pair)),
            to: SocketAddr::new(pair.remote.ip, self.to.port()),
            packet_bytes,
            answer_time: DIAL_TIME,
            handshake_time: HANDSHAKE_TIME,
        }
    }

    fn connect(
        self: &Arc<Self>,
        pair: &Pair,
        ports: Vec<u16>,
        path: PathId,
        kind: ConnectionKind,
        packet_bytes: Option<u32>,
    ) -> Result<(), HandshakeFailed> {
        let link = match kind {
            ConnectionKind::Control => &self.host.control,
            ConnectionKind::Data => &self.host.data,
        };
        let mut dial = self.dial(pair, packet_bytes);
        dial.from = dial.from.map(|from| LocalAddress { ports, ..from });
        let mut pending = link.dial(&dial)?;
        let hello = self.hello_on(&*pending, path, kind);
        greet(&mut *pending, &hello)?;
        self.add(pending, None, (hello.connection, path, kind), pair).map_err(HandshakeFailed::Link)
    }

    /// Returns what this end says first on another connection of the session.
    fn hello_on(&self, pending: &dyn Pending, path: PathId, kind: ConnectionKind) -> Hello {
        let id = ConnectionId(self.next_connection.fetch_add(1, Ordering::SeqCst));
        // The peer keeps to the addresses that it was told at first, and by the control connection.
        let mut hello = hello(&self.settings, Some(self.live.id), (id, path, kind), Vec::new());
        if pending.peer().is_none() {
            hello.proof = proof(&self.plain_key, self.live.id, id);
        }
        hello
    }

    /// Adds a connection to the session, on a rail if both ends have one.
    fn add(
        &self,
        mut pending: Box<dyn Pending>,
        rail: Option<SharedEndpoint>,
        (id, path, kind): (ConnectionId, PathId, ConnectionKind),
        pair: &Pair,
    ) -> Result<(), LinkError> {
        let info = PathInfo {
            nic: pair.local.nic.clone(),
            local: SocketAddr::new(pair.local.ip, 0),
            remote: SocketAddr::new(pair.remote.ip, self.to.port()),
        };
        mark(&mut *pending, self.settings.addresses.class);
        let near = self.host.nics.near_cores(&pair.local.nic);
        let connection = take_apart(pending, rail)?;
        if let Err(error) = self.live.add_connection(id, path, kind, info, near, connection) {
            debug!(session = %self.live.id, "connection not added: {error}");
        }
        Ok(())
    }
}

/// Returns where the connections of a pair leave from.
fn from(pair: &Pair) -> LocalAddress {
    LocalAddress { ip: pair.local.ip, nic: pair.local.nic.clone(), ports: Vec::new() }
}

/// Returns a path as logs show it.
fn shown(pair: &Pair) -> String {
    let end = |address: &NicAddress| format!("{} {}", address.nic, address.ip).trim_start().to_owned();
    format!("{} > {}", end(&pair.local), end(&pair.remote))
}

fn hello(
    settings: &DialerSettings,
    session: Option<SessionId>,
    (connection, path, kind): (ConnectionId, PathId, ConnectionKind),
    addresses: Vec<NicAddress>,
) -> Hello {
    Hello {
        version: PROTOCOL_VERSION,
        session,
        connection,
        path,
        kind,
        plain_data: settings.plain_data,
        rail: false,
        proof: Vec::new(),
        addresses,
    }
}

/// Dials the first connection of a session. An address that does not answer holds up the other addresses only briefly.
fn begin(
    settings: &DialerSettings,
    link: &dyn Link,
    local: &[NicAddress],
    to: SocketAddr,
) -> Result<(Box<dyn Pending>, Pair, Welcome), HandshakeFailed> {
    // The connection leaves from where the routes say. If that is one of this host's NICs, the connection is bound like
    // all others.
    let source = link.source_of(to);
    let from = source.and_then(|ip| local.iter().find(|address| address.ip == ip)).cloned();
    let bound =
        from.as_ref().map(|address| LocalAddress { ip: address.ip, nic: address.nic.clone(), ports: Vec::new() });
    let mut pending = link.dial(&Dial {
        from: bound,
        to,
        packet_bytes: CONTROL_PACKET_BYTES,
        answer_time: if settings.to.len() > 1 { DIAL_TIME } else { HANDSHAKE_TIME },
        handshake_time: HANDSHAKE_TIME,
    })?;
    if let (Some(expected), Some(found)) = (&settings.host, pending.peer())
        && expected != found
    {
        return Err(HandshakeFailed::OtherHost { address: to, found: found.to_owned(), expected: expected.clone() });
    }
    let pinned: Vec<IpAddr> = from.iter().map(|address| address.ip).collect();
    let addresses = announced(local.to_vec(), &[], &pinned);
    let hello = hello(settings, None, (ConnectionId(0), PathId(0), ConnectionKind::Control), addresses);
    let welcome = greet(&mut *pending, &hello)?;
    let remote = welcome.addresses.iter().find(|address| address.ip == to.ip()).cloned();
    let anonymous = |ip: IpAddr| NicAddress::new(ip, if ip.is_ipv4() { 32 } else { 128 }, "");
    let pair = Pair {
        local: from.unwrap_or_else(|| anonymous(source.unwrap_or(to.ip()))),
        remote: remote.unwrap_or_else(|| anonymous(to.ip())),
    };
    Ok((pending, pair, welcome))
}
