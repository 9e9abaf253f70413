//! The session: which connection sends what next, what is lost, what is dead.
//!
//! Four kinds of methods, as in quinn: what the application wants (`open`, `send`, `consumed` …), what
//! happened (`connection_up`, `handle_*`), what to do (`poll_*`), and what is (`status` and other
//! getters). Time comes in as the time since any fixed moment and must not go back.
//!
//! How data stays safe: a sent frame is kept by its connection until the peer has acknowledged the
//! connection's bytes up to it (each connection is ordered, so one number acknowledges selectively).
//! A connection that ends or stalls gives its chunks back, and others take them; the receiver drops
//! what it has already. Nothing is freed on a promise.
//!
//! How data stays balanced: connections *pull*. Whichever can send takes the next chunk of the next
//! stream in turn, as long as its path has room ([`Path::inflight_limit`]).
//!
//! How small streams stay quick: each path has a control connection that never carries bulk. Frames
//! other than bulk, and the bytes of streams that send little, go over the control connections of two
//! paths at once, so that losing either costs nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::frame::{Frame, HEADER_BYTES, Header, Kind};
use crate::handshake::{self, Address};
use crate::limits::*;
use crate::path::{Path, SendStamp};
use crate::stream::{Chunk, Fin, Stream};
use crate::{ConnectionId, PathId, StreamId};

/// Which end of the session this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Dials connections; opens even streams.
    Dialer,
    /// Accepts them; opens odd streams.
    Acceptor,
}

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionKind {
    /// Everything small: acknowledgements, credit, openings, urgent streams. One on each path.
    Control,
    /// Bulk data. Several on each path.
    Data,
}

/// What may be set on a session.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long the session outlives the loss of all its paths. Default [`OUTAGE_TIME`].
    pub outage: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { outage: OUTAGE_TIME }
    }
}

/// A peer that broke the rules. The session is over: nothing it says can be trusted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum ProtocolError {
    #[error("the peer sent byte {end} of a stream whose credit ends at {granted}")]
    BeyondCredit { end: u64, granted: u64 },
    #[error("the peer changed where a stream ends")]
    EndMoved,
    #[error("the peer acknowledged bytes that were never sent")]
    AckBeyondSent,
    #[error("the peer sent a stream in too many small pieces that do not join")]
    Confetti,
    #[error("the peer used a stream that it may not open, or too many of them")]
    BadStream,
    #[error("the peer opened more connections than a session may have")]
    TooManyConnections,
    #[error("the peer used a connection's number or a path's control connection twice")]
    ConnectionReused,
}

/// Errors of what an application asks for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum OpenError {
    #[error("{STREAMS_MAX} streams are open already")]
    TooMany,
    #[error("the name of the target has more than {TARGET_BYTES_MAX} bytes")]
    NameTooLong,
    #[error("the session has ended")]
    Ended,
}

/// What the caller has to do, or wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The connection has something to send: poll it.
    Transmit(ConnectionId),
    /// Close this connection; report it with [`Session::connection_down`]. With TCP by a reset, which is not sent
    /// again: an orderly end would reach the peer when the path is back, and tell it that this process is gone.
    Close(ConnectionId),
    /// The peer opened a stream.
    Opened(StreamId, String),
    /// [`Session::receive`] has something other than `Pending`.
    Readable(StreamId),
    /// [`Session::send_capacity`] may have grown.
    Writable(StreamId),
    /// The peer's addresses changed.
    PeerAddresses(Vec<Address>),
    /// A path stalls (true) or moves again (false).
    Stalled(PathId, bool),
    /// The session is over, and why.
    Ended(Ended),
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum Ended {
    #[error("closed in order")]
    Closed,
    #[error("the other end ended it: {reason}")]
    ClosedByPeer { code: u64, reason: String },
    #[error("the other end closed all its connections and did not come back: it was stopped or died")]
    PeerGone,
    #[error("no path worked for {} s", .0.as_secs())]
    Outage(Duration),
    #[error(transparent)]
    Protocol(ProtocolError),
}

/// What [`Session::receive`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The next bytes. Report them with [`Session::consumed`] when they are dealt with.
    Data(Bytes),
    /// Nothing yet.
    Pending,
    /// The peer is done sending.
    Finished,
    /// The stream was torn down.
    Reset(u64, String),
}

/// A frame to put on a connection.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Its header.
    pub header: Header,
    /// Its payload, in the buffers it was handed over in.
    pub payload: Vec<Bytes>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// The peer's host ended it (TCP: FIN or reset), as a kernel does for a process that is no more. If it was so
    /// with the last connections and none failed, the accepting end waits [`GONE_TIME`] for new ones, not
    /// [`OUTAGE_TIME`]; the dialling end can ask, see [`Session::connection_refused`].
    ByPeer,
    /// This end closed it, or it failed (TCP: unreachable, timed out).
    Failed,
}

/// One frame, as long as it is not acknowledged.
#[derive(Clone, Debug)]
enum Item {
    Data(StreamId, Chunk),
    Open(StreamId, String),
    Fin(StreamId, u64),
    Reset(StreamId, u64, String),
    /// Not kept: it says what is granted when it goes out, and is said again when a connection is lost.
    Credit(StreamId),
    Addresses,
    Ping,
    Pong(u64),
}

impl Item {
    /// Only of items that are not data.
    fn says_the_same(&self, other: &Item) -> bool {
        match (self, other) {
            (Item::Open(a, _), Item::Open(b, _)) | (Item::Fin(a, _), Item::Fin(b, _)) => a == b,
            (Item::Reset(a, ..), Item::Reset(b, ..)) | (Item::Credit(a), Item::Credit(b)) => a == b,
            (Item::Addresses, Item::Addresses) => true,
            _ => false,
        }
    }

    /// Bytes that it adds to [`Connection::urgent_bytes`].
    fn urgent_bytes(&self) -> u64 {
        match self {
            Item::Data(_, chunk) => HEADER_BYTES as u64 + chunk.len(),
            _ => 0,
        }
    }
}

#[derive(Debug)]
struct SentItem {
    /// Position on the connection after the frame.
    end: u64,
    bytes: u64,
    /// On data connections; what is small says nothing about a path's rate.
    stamp: Option<SendStamp>,
    item: Item,
}

#[derive(Debug)]
struct Connection {
    path: PathId,
    kind: ConnectionKind,
    /// The caller waits for an [`Event::Transmit`].
    idle: bool,
    /// Small frames to send; only on control connections.
    outbox: VecDeque<Item>,
    /// Of urgent streams: bytes of frames in the outbox or not acknowledged.
    urgent_bytes: u64,
    sent: VecDeque<SentItem>,
    sent_position: u64,
    acknowledged_position: u64,
    /// When the peer last acknowledged something or, where nothing was on the way, a frame was sent.
    progress_at: Duration,
    received_position: u64,
    /// Received bytes that an acknowledgement is owed for.
    unacknowledged: u64,
    ping_at: Duration,
    /// Control connections: when a ping not yet answered went out.
    ping_open: Option<Duration>,
    /// The peer's ping to be answered.
    pong: Option<u64>,
    suspect_since: Option<Duration>,
    closing: bool,
}

impl Connection {
    fn new(now: Duration, path: PathId, kind: ConnectionKind) -> Connection {
        Connection {
            path,
            kind,
            idle: true,
            outbox: VecDeque::new(),
            urgent_bytes: 0,
            sent: VecDeque::new(),
            sent_position: 0,
            acknowledged_position: 0,
            progress_at: now,
            received_position: 0,
            unacknowledged: 0,
            ping_at: now,
            ping_open: None,
            pong: None,
            suspect_since: None,
            closing: false,
        }
    }

    /// How many it holds, to be sent or acknowledged.
    fn frames(&self) -> usize {
        self.outbox.len() + self.sent.len()
    }

    fn is_usable(&self) -> bool {
        self.suspect_since.is_none() && !self.closing
    }
}

#[derive(Debug)]
struct PathState {
    estimate: Path,
    up_at: Duration,
    control: Option<ConnectionId>,
    probed_at: Duration,
    /// Received bytes that acknowledgements are owed for, on all its connections, and when they are due.
    unacknowledged: u64,
    acknowledge_at: Option<Duration>,
    sent_bytes: u64,
    received_bytes: u64,
}

impl PathState {
    fn new(now: Duration) -> PathState {
        PathState {
            estimate: Path::new(now),
            up_at: now,
            control: None,
            probed_at: now,
            unacknowledged: 0,
            acknowledge_at: None,
            sent_bytes: 0,
            received_bytes: 0,
        }
    }
}

/// What one path does, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathStatus {
    /// Which path.
    pub path: PathId,
    /// Whether it has its control connection.
    pub control: bool,
    /// Its data connections.
    pub data_connections: usize,
    /// Whether it may carry bulk now.
    pub usable: bool,
    /// Bytes of frames sent on it.
    pub sent_bytes: u64,
    /// Bytes of frames received on it.
    pub received_bytes: u64,
    /// Measured bytes per second.
    pub rate: Option<f64>,
    /// Least round trip, in seconds.
    pub rtt_s: Option<f64>,
    /// Bytes on the way.
    pub inflight_bytes: u64,
}

/// What a session does, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// Streams that are open.
    pub streams: usize,
    /// Bytes that went out a second time.
    pub resent_bytes: u64,
    /// Bytes of streams that the peer sent and that wait for bytes before them or for their reader.
    pub held_bytes: u64,
    /// Each path with a connection.
    pub paths: Vec<PathStatus>,
}

/// What a session keeps in memory, for tests of its bounds.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Streams, connections and paths.
    pub streams: usize,
    pub connections: usize,
    pub paths: usize,
    /// Bytes that the peer was allowed to send and the application has not consumed: the bound of what is held.
    pub granted_bytes: u64,
    /// Bytes received and not handed out.
    pub held_bytes: u64,
    /// The pieces they lie in.
    pub held_pieces: usize,
    /// Bytes handed over and not sent.
    pub unsent_bytes: u64,
    /// Bytes sent that may have to go again, every copy counted.
    pub retained_bytes: u64,
    /// Frames and pieces of streams in every queue of the sending side.
    pub queued: usize,
    /// What counts against bounds of sending: bytes under way on paths, and of urgent streams.
    pub inflight_bytes: u64,
    pub urgent_bytes: u64,
    /// Events not yet polled.
    pub events: usize,
}

/// One end of a session. See the module.
#[derive(Debug)]
pub struct Session {
    role: Role,
    settings: Settings,
    /// The latest time that was handed in.
    now: Duration,
    streams: BTreeMap<StreamId, Stream>,
    next_own: u32,
    next_peer: u32,
    /// The peer's next stream to tell the application of.
    next_announced: u32,
    /// The peer's streams that were reset here and that it may not know of. They bound how fast it can open
    /// others.
    resets: BTreeSet<StreamId>,
    /// Streams with bulk to send, in turn.
    turn: VecDeque<StreamId>,
    /// Streams whose applications have bulk to hand over and wait for room, in turn.
    waiting: VecDeque<StreamId>,
    connections: BTreeMap<ConnectionId, Connection>,
    paths: BTreeMap<PathId, PathState>,
    /// Small frames that wait for any control connection.
    backlog: VecDeque<Item>,
    addresses: Vec<Address>,
    /// How often they changed; and the latest such count that the peer told of its own.
    addresses_changed: u64,
    peer_addresses_changed: u64,
    events: VecDeque<Event>,
    resent_bytes: u64,
    /// When the last connection went.
    alone_since: Option<Duration>,
    /// When the peer last ended a connection that worked; forgotten when a new one comes up.
    closed_by_peer_at: Option<Duration>,
    /// When a connection or path last failed.
    failed_at: Option<Duration>,
    /// See [`Session::connection_refused`].
    refused: bool,
    ended: Option<Ended>,
}

impl Session {
    /// A session without connections or streams. It ends by itself if none comes up in time.
    pub fn new(now: Duration, role: Role, settings: Settings) -> Session {
        let (next_own, next_peer) = match role {
            Role::Dialer => (0, 1),
            Role::Acceptor => (1, 0),
        };
        Session {
            role,
            settings,
            now,
            streams: BTreeMap::new(),
            next_own,
            next_peer,
            next_announced: next_peer,
            resets: BTreeSet::new(),
            turn: VecDeque::new(),
            waiting: VecDeque::new(),
            connections: BTreeMap::new(),
            paths: BTreeMap::new(),
            backlog: VecDeque::new(),
            addresses: Vec::new(),
            addresses_changed: 0,
            peer_addresses_changed: 0,
            events: VecDeque::new(),
            resent_bytes: 0,
            alone_since: Some(now),
            closed_by_peer_at: None,
            failed_at: None,
            refused: false,
            ended: None,
        }
    }

    // ---- what the application wants ----

    /// Opens a stream to what the peer knows by `target`.
    pub fn open(&mut self, target: &str) -> Result<StreamId, OpenError> {
        if self.ended.is_some() {
            return Err(OpenError::Ended);
        }
        if target.len() > TARGET_BYTES_MAX {
            return Err(OpenError::NameTooLong);
        }
        let own = self.next_own % 2;
        let open = self.streams.keys().filter(|id| id.0 % 2 == own).count();
        if open >= STREAMS_MAX as usize || self.next_own >= STREAM_NUMBER_MAX {
            return Err(OpenError::TooMany);
        }
        let id = StreamId(self.next_own);
        self.next_own += 2;
        self.streams.insert(id, Stream::new(true));
        self.post(Item::Open(id, target.to_owned()));
        Ok(id)
    }

    /// How many bytes the stream takes now; 0: [`Event::Writable`] says when to ask again. Ask when there are bytes
    /// to hand over, and then do: others wait meanwhile.
    ///
    /// It is little on purpose: nothing is taken that no path has room for, since it would only grow old and cold
    /// here and delay a guest's last pages. What is small and urgent is always taken.
    pub fn send_capacity(&mut self, now: Duration, id: StreamId) -> usize {
        self.now = now;
        let has_room = self.has_room();
        let others_wait = !self.waiting.is_empty();
        let Some(stream) = self.streams.get_mut(&id) else { return 0 };
        let half = &mut stream.send;
        if half.fin != Fin::Open || stream.reset.is_some() {
            return 0;
        }
        let limit = CHUNK_BYTES_MAX.saturating_sub(half.unsent_bytes());
        half.full = limit < CHUNK_BYTES_MAX / 8;
        if half.full {
            return 0;
        }
        // Whoever has begun a chunk may fill it.
        let begun = (1..CHUNK_BYTES_MAX).contains(&half.burst);
        if half.granted || begun || (has_room && (!others_wait || half.burst < BURST_BYTES)) {
            half.granted = true;
            return limit;
        }
        if half.is_quiet(now) {
            return URGENT_BYTES.min(limit);
        }
        if !half.waits {
            half.waits = true;
            self.waiting.push_back(id);
        }
        self.wake_data();
        0
    }

    /// Hands over bytes to send. Call it with no more than about [`Self::send_capacity`].
    pub fn send(&mut self, now: Duration, id: StreamId, data: Bytes) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if data.is_empty() || stream.reset.is_some() || self.ended.is_some() {
            return;
        }
        debug_assert_eq!(stream.send.fin, Fin::Open, "send after finish");
        self.now = now;
        stream.send.push(now, data);
        self.flush(id);
    }

    /// No more bytes follow on this stream from this end.
    pub fn finish(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.send.fin == Fin::Open && stream.reset.is_none() {
            stream.send.fin = Fin::Sent;
            stream.send.granted = false;
            let end = stream.send.end();
            self.post(Item::Fin(id, end));
            self.wake_data();
        }
    }

    /// Tears the stream down in both directions.
    pub fn reset(&mut self, id: StreamId, code: u64, reason: &str) {
        let Some(mut stream) = self.streams.remove(&id) else {
            return;
        };
        if stream.reset.is_none() {
            stream.send.clear();
            if id.0 % 2 == self.next_peer % 2 {
                self.resets.insert(id);
            }
            self.post(Item::Reset(id, code, handshake::truncated(reason).to_owned()));
        }
        // Whoever waits on it learns that there is nothing to wait for.
        self.events.extend([Event::Readable(id), Event::Writable(id)]);
        self.spread_windows();
        self.wake_data();
    }

    /// Whether the stream was torn down, or is over and forgotten.
    pub fn is_reset(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_none_or(|stream| stream.reset.is_some())
    }

    /// Whether the peer has all that was sent on a finished stream, or the stream is over.
    pub fn is_delivered(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_none_or(|stream| stream.reset.is_some() || stream.send.is_done())
    }

    /// Whether [`Self::receive`] would find something other than [`Received::Pending`].
    pub fn is_readable(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_none_or(|stream| stream.reset.is_some() || stream.receive.is_readable())
    }

    /// The next bytes of a stream, in order.
    pub fn receive(&mut self, id: StreamId) -> Received {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Received::Finished;
        };
        let received = if let Some((code, reason)) = stream.reset.clone() {
            stream.reset_seen = true;
            Received::Reset(code, reason)
        } else if let Some(data) = stream.receive.reassembly.pop() {
            Received::Data(data)
        } else if stream.receive.finished {
            Received::Finished
        } else if stream.receive.is_at_end() {
            stream.receive.finished = true;
            Received::Finished
        } else {
            Received::Pending
        };
        self.drop_if_over(id);
        received
    }

    /// The application is done with so many bytes of what [`Self::receive`] gave it.
    pub fn consumed(&mut self, id: StreamId, bytes: u64) {
        let window = self.window();
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.receive.consumed += bytes;
        debug_assert!(stream.receive.consumed <= stream.receive.reassembly.delivered());
        let half = &stream.receive;
        if half.end.is_none_or(|end| end > half.granted)
            && stream.receive.consumed + window >= stream.receive.granted + window / 4
        {
            self.grant(id);
        }
    }

    /// Tells the peer where this end can be reached from now on.
    pub fn announce(&mut self, addresses: Vec<Address>) {
        if self.addresses != addresses {
            self.addresses = addresses;
            self.addresses_changed += 1;
            self.post(Item::Addresses);
        }
    }

    /// The session ends, from this end. The caller sends [`Self::bye`] on what is left of it.
    pub fn close(&mut self) {
        self.end(Ended::Closed);
    }

    /// The frame that tells the peer of the end.
    pub fn bye(code: u64, reason: &str) -> Transmit {
        let payload = Bytes::copy_from_slice(handshake::truncated(reason).as_bytes());
        let header = Header { kind: Kind::Bye, stream: 0, offset: code, len: payload.len() as u32 };
        Transmit { header, payload: vec![payload] }
    }

    // ---- what happened ----

    /// A connection has shaken hands.
    pub fn connection_up(
        &mut self,
        now: Duration,
        id: ConnectionId,
        path: PathId,
        kind: ConnectionKind,
    ) -> Result<(), ProtocolError> {
        self.now = now;
        if self.connections.len() >= CONNECTIONS_MAX {
            return Err(ProtocolError::TooManyConnections);
        }
        let control = kind == ConnectionKind::Control;
        let has_control = self.paths.get(&path).is_some_and(|state| state.control.is_some());
        if self.connections.contains_key(&id) || (control && has_control) {
            return Err(ProtocolError::ConnectionReused);
        }
        let state = self.paths.entry(path).or_insert_with(|| PathState::new(now));
        if control {
            state.control = Some(id);
        }
        self.connections.insert(id, Connection::new(now, path, kind));
        self.alone_since = None;
        self.closed_by_peer_at = None;
        self.refused = false;
        if control {
            // Credit may have been lost with the connections before; repeating it costs nothing.
            let mut items = std::mem::take(&mut self.backlog);
            items.extend(self.streams.keys().map(|id| Item::Credit(*id)));
            items.push_front(Item::Ping);
            let connection = self.connections.get_mut(&id).expect("just inserted");
            connection.outbox = items;
            connection.ping_open = Some(now);
            self.wake(id);
        }
        self.wake_data();
        Ok(())
    }

    /// A connection is no more.
    pub fn connection_down(&mut self, now: Duration, id: ConnectionId, how: Down) {
        self.now = now;
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        match how {
            Down::ByPeer if connection.is_usable() => self.closed_by_peer_at = Some(now),
            // One that is closed because its path's control connection went says nothing of its own.
            _ if connection.closing && connection.suspect_since.is_none() => {}
            _ => self.failed_at = Some(now),
        }
        let path = connection.path;
        let was_control = connection.kind == ConnectionKind::Control;
        if let Some(state) = self.paths.get_mut(&path) {
            state.unacknowledged -= connection.unacknowledged;
            if !was_control {
                state.estimate.lost(connection.sent.iter().map(|s| s.bytes).sum());
            }
            if was_control {
                state.control = None;
            }
        }
        if was_control {
            // A path lives and dies with its control connection.
            self.close_path(path);
        }
        if !self.connections.values().any(|c| c.path == path) {
            self.paths.remove(&path);
        }
        if self.connections.is_empty() {
            // Which connection goes last is chance. But where some failed, the network is in trouble, and the others
            // may have been reset by a peer that is alive and had given them up.
            let within = |time: Duration| move |at: &Duration| now.saturating_sub(*at) < time;
            let trouble = self.failed_at.as_ref().is_some_and(within(DEAD_TIME * 2));
            self.closed_by_peer_at = self.closed_by_peer_at.filter(within(GONE_TIME)).filter(|_| !trouble);
            self.alone_since = Some(now);
        }
        self.give_back(connection.kind, connection.sent.into_iter().map(|s| s.item).chain(connection.outbox));
        self.wake_data();
    }

    /// The path cannot work at the moment (its NIC lost its carrier, say): its connections go.
    pub fn path_down(&mut self, path: PathId) {
        self.failed_at = Some(self.now);
        self.close_path(path);
    }

    /// A host that took connections refuses them now: nobody listens there any more. If no connection is left, that
    /// tells the end of the peer's process from that of the network.
    pub fn connection_refused(&mut self) {
        self.refused = self.alone_since.is_some();
    }

    /// A frame has arrived.
    ///
    /// Errors end the session: the peer is broken, or an enemy.
    pub fn handle_frame(
        &mut self,
        now: Duration,
        id: ConnectionId,
        header: &Header,
        frame: Frame,
    ) -> Result<(), ProtocolError> {
        if self.ended.is_some() {
            return Ok(());
        }
        self.now = now;
        self.account_received(now, id, header);
        let handled = match frame {
            Frame::Open { stream, target } => self.handle_open(stream, target),
            Frame::Data { stream, offset, data } => self.handle_data(stream, offset, data),
            Frame::Fin { stream, offset } => self.handle_fin(stream, offset),
            Frame::Reset { stream, code, reason } => self.handle_reset(stream, code, reason),
            Frame::Credit { stream, offset } => self.handle_credit(stream, offset),
            Frame::Ack { connection, offset } => self.handle_ack(now, connection, offset),
            Frame::Ping { token } => {
                // Only the latest is answered, so that a peer that asks and does not read costs nothing.
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.pong = Some(token);
                    self.wake(id);
                }
                Ok(())
            }
            Frame::Pong { token } => {
                self.handle_pong(now, id, token);
                Ok(())
            }
            Frame::Addresses { change, addresses } => {
                // An earlier change may arrive later, over another connection.
                if change > self.peer_addresses_changed {
                    self.peer_addresses_changed = change;
                    self.events.push_back(Event::PeerAddresses(addresses));
                }
                Ok(())
            }
            Frame::Bye { code, reason } => {
                self.end(Ended::ClosedByPeer { code, reason });
                Ok(())
            }
        };
        if let Err(error) = &handled {
            self.end(Ended::Protocol(error.clone()));
        }
        handled
    }

    /// Time has passed: call it every few tens of milliseconds.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = now;
        if self.ended.is_some() {
            return;
        }
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            self.check_connection(now, id);
        }
        // Nobody would notice the silence of data connections whose control connection never came.
        let orphans = |state: &PathState| state.control.is_none() && now.saturating_sub(state.up_at) >= DEAD_TIME;
        let orphans: Vec<PathId> = self.paths.iter().filter(|(_, state)| orphans(state)).map(|(id, _)| *id).collect();
        orphans.into_iter().for_each(|path| self.close_path(path));
        self.wake_data();
        if let Some(since) = self.alone_since {
            let alone = now.saturating_sub(since);
            if alone >= self.settings.outage {
                self.end(Ended::Outage(self.settings.outage));
            }
            // Who dials is told; who is dialled can only conclude.
            let gone = match self.role {
                Role::Dialer => self.refused,
                Role::Acceptor => self.closed_by_peer_at.is_some(),
            };
            if gone && alone >= GONE_TIME {
                self.end(Ended::PeerGone);
            }
        }
    }

    // ---- what to do ----

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What to send on a connection now. After `None`, wait for [`Event::Transmit`] or
    /// [`Self::transmit_at`].
    pub fn poll_transmit(&mut self, now: Duration, id: ConnectionId) -> Option<Transmit> {
        self.now = now;
        let connection = self.connections.get_mut(&id)?;
        let transmit = match connection.kind {
            _ if connection.closing || self.ended.is_some() => None,
            ConnectionKind::Control => self.poll_control(now, id),
            ConnectionKind::Data => self.poll_data(now, id),
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.idle = transmit.is_none();
        }
        transmit
    }

    /// When to poll a control connection again though no event says so.
    pub fn transmit_at(&self, id: ConnectionId) -> Option<Duration> {
        let path = self.connections.get(&id).filter(|c| c.kind == ConnectionKind::Control)?.path;
        self.paths.get(&path)?.acknowledge_at
    }

    // ---- what is ----

    /// Why the session is over, if it is.
    pub fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// What a peer may still send on a stream; for tests of memory.
    pub fn status(&self) -> Status {
        let paths = self.paths.iter().map(|(&id, state)| PathStatus {
            path: id,
            control: state.control.is_some(),
            data_connections: self.data_connections(id),
            usable: self.path_is_usable(id),
            sent_bytes: state.sent_bytes,
            received_bytes: state.received_bytes,
            rate: state.estimate.rate(),
            rtt_s: state.estimate.rtt().map(|rtt| rtt.as_secs_f64()),
            inflight_bytes: state.estimate.inflight(),
        });
        Status {
            streams: self.streams.len(),
            resent_bytes: self.resent_bytes,
            held_bytes: self.streams.values().map(|s| s.receive.reassembly.held_bytes()).sum(),
            paths: paths.collect(),
        }
    }

    /// What is kept in memory; walks all of it.
    #[doc(hidden)]
    pub fn footprint(&self) -> Footprint {
        let items = self.connections.values().flat_map(|c| c.sent.iter().map(|sent| &sent.item).chain(&c.outbox));
        let (mut queued, mut retained_bytes) = (self.turn.len() + self.waiting.len() + self.resets.len(), 0);
        for item in items.chain(&self.backlog) {
            queued += 1;
            if let Item::Data(_, chunk) = item {
                retained_bytes += chunk.len();
            }
        }
        let mut footprint = Footprint {
            streams: self.streams.len(),
            connections: self.connections.len(),
            paths: self.paths.len(),
            events: self.events.len(),
            inflight_bytes: self.paths.values().map(|path| path.estimate.inflight()).sum(),
            urgent_bytes: self.connections.values().map(|connection| connection.urgent_bytes).sum(),
            ..Footprint::default()
        };
        for stream in self.streams.values() {
            let (lost, lost_bytes) = stream.send.lost();
            queued += lost;
            retained_bytes += lost_bytes;
            footprint.unsent_bytes += stream.send.unsent_bytes() as u64;
            footprint.granted_bytes += stream.receive.open_window();
            footprint.held_bytes += stream.receive.reassembly.held_bytes();
            footprint.held_pieces += stream.receive.reassembly.pieces();
        }
        Footprint { queued, retained_bytes, ..footprint }
    }

    fn data_connections(&self, path: PathId) -> usize {
        self.connections.values().filter(|c| c.path == path && c.kind == ConnectionKind::Data).count()
    }

    // ---- streams ----

    /// Streams are announced in the order they were opened in, whatever order their `Open`s arrive in: QEMU
    /// before 8.0 takes its first connection for the main one (migration/migration.c).
    fn handle_open(&mut self, id: StreamId, target: String) -> Result<(), ProtocolError> {
        let Some(stream) = self.peer_stream(id)? else { return Ok(()) };
        if stream.opened {
            return Ok(());
        }
        stream.target.get_or_insert(target);
        while self.next_announced < self.next_peer {
            let id = StreamId(self.next_announced);
            if let Some(stream) = self.streams.get_mut(&id) {
                let Some(target) = stream.target.take() else { break };
                stream.opened = true;
                self.events.push_back(Event::Opened(id, target));
                if self.is_readable(id) {
                    self.events.push_back(Event::Readable(id));
                }
                self.grant(id);
            }
            self.next_announced += 2;
        }
        Ok(())
    }

    fn handle_data(&mut self, id: StreamId, offset: u64, data: Bytes) -> Result<(), ProtocolError> {
        let Some(stream) = self.any_stream(id)? else {
            return Ok(());
        };
        let half = &mut stream.receive;
        let end = offset + data.len() as u64;
        if end > half.granted {
            return Err(ProtocolError::BeyondCredit { end, granted: half.granted });
        }
        if half.end.is_some_and(|e| end > e) {
            return Err(ProtocolError::EndMoved);
        }
        let was_readable = half.is_readable();
        half.reassembly.insert(offset, data);
        let gaps = half.reassembly.gaps();
        let tell = !was_readable && half.is_readable() && stream.opened && stream.reset.is_none();
        if tell {
            self.events.push_back(Event::Readable(id));
        }
        // Summed up only where it could matter.
        if gaps > GAPS_MAX / 256 && self.streams.values().map(|s| s.receive.reassembly.gaps()).sum::<usize>() > GAPS_MAX
        {
            return Err(ProtocolError::Confetti);
        }
        Ok(())
    }

    fn handle_fin(&mut self, id: StreamId, end: u64) -> Result<(), ProtocolError> {
        let Some(stream) = self.any_stream(id)? else {
            return Ok(());
        };
        let half = &mut stream.receive;
        if half.end.is_some_and(|e| e != end) || end < half.reassembly.end() {
            return Err(ProtocolError::EndMoved);
        }
        half.end = Some(end);
        if half.is_readable() && stream.opened {
            self.events.push_back(Event::Readable(id));
        }
        Ok(())
    }

    fn handle_reset(&mut self, id: StreamId, code: u64, reason: String) -> Result<(), ProtocolError> {
        let Some(stream) = self.any_stream(id)? else {
            return Ok(());
        };
        if stream.reset.is_none() {
            stream.reset = Some((code, reason));
            stream.send.clear();
            if stream.opened {
                self.events.push_back(Event::Readable(id));
                self.events.push_back(Event::Writable(id));
            }
            self.wake_data();
        }
        Ok(())
    }

    fn handle_credit(&mut self, id: StreamId, offset: u64) -> Result<(), ProtocolError> {
        let Some(stream) = self.any_stream(id)? else {
            return Ok(());
        };
        if offset > stream.send.credit {
            stream.send.credit = offset;
            self.flush(id);
        }
        Ok(())
    }

    /// A stream of the peer's; `None` if it is over. Its number opens those before it, too: their
    /// `Open` is on its way.
    fn peer_stream(&mut self, id: StreamId) -> Result<Option<&mut Stream>, ProtocolError> {
        if id.0 % 2 != self.next_peer % 2 {
            return Err(ProtocolError::BadStream);
        }
        if id.0 >= self.next_peer {
            let own = self.next_own % 2;
            let mut open = self.streams.keys().filter(|id| id.0 % 2 != own).count();
            let more = (id.0 - self.next_peer) / 2 + 1;
            if more > STREAMS_MAX * 4 || self.resets.len() >= STREAMS_MAX as usize * 4 || id.0 >= STREAM_NUMBER_MAX {
                return Err(ProtocolError::BadStream);
            }
            for number in (self.next_peer..=id.0).step_by(2) {
                let id = StreamId(number);
                // An honest peer may have more than it thinks: what is over for it waits for a reader here.
                if open < STREAMS_MAX as usize {
                    self.streams.insert(id, Stream::new(false));
                    open += 1;
                } else {
                    self.resets.insert(id);
                    self.post(Item::Reset(id, 0, "too many streams are open".to_owned()));
                }
            }
            self.next_peer = id.0 + 2;
        }
        Ok(self.streams.get_mut(&id))
    }

    fn any_stream(&mut self, id: StreamId) -> Result<Option<&mut Stream>, ProtocolError> {
        if id.0 % 2 == self.next_own % 2 {
            if id.0 >= self.next_own {
                return Err(ProtocolError::BadStream);
            }
            return Ok(self.streams.get_mut(&id));
        }
        self.peer_stream(id)
    }

    fn drop_if_over(&mut self, id: StreamId) {
        if self.streams.get(&id).is_some_and(Stream::is_over) {
            self.streams.remove(&id);
            self.spread_windows();
        }
    }

    /// The window that each stream should have at this end.
    fn window(&self) -> u64 {
        (WINDOW_SESSION / self.streams.len().max(1) as u64).clamp(WINDOW_MIN, WINDOW_MAX)
    }

    fn grant(&mut self, id: StreamId) {
        let others = self.streams.iter().filter(|(other, _)| **other != id).map(|(_, s)| s.receive.open_window());
        let left = WINDOW_SESSION.saturating_sub(others.sum());
        let window = self.window().min(left).max(WINDOW_MIN);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let granted = stream.receive.consumed + window;
        if granted > stream.receive.granted {
            stream.receive.granted = granted;
            self.post(Item::Credit(id));
        }
    }

    /// Streams that remain may have more, now that one is gone.
    fn spread_windows(&mut self) {
        let window = self.window();
        let due: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, s)| s.opened && s.receive.consumed + window >= s.receive.granted + window / 4)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.grant(id);
        }
    }

    /// Gets a stream's unsent bytes on their way: urgent ones at once, bulk in its turn.
    fn flush(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id) else { return };
        if !stream.send.has_work() || stream.send.queued {
            return;
        }
        let urgent = stream.send.is_urgent();
        let controls = if urgent { self.controls(Session::has_room_for_urgent) } else { Vec::new() };
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if controls.is_empty() {
            stream.send.queued = true;
            self.turn.push_back(id);
            return self.wake_data();
        }
        let chunks: Vec<Chunk> = std::iter::from_fn(|| stream.send.take(URGENT_BYTES)).collect();
        if std::mem::take(&mut stream.send.full) {
            self.events.push_back(Event::Writable(id));
        }
        for chunk in chunks {
            for control in &controls {
                self.post_on(*control, Item::Data(id, chunk.clone()));
            }
        }
    }

    // ---- sending ----

    fn poll_data(&mut self, now: Duration, id: ConnectionId) -> Option<Transmit> {
        if !self.may_pull(&self.connections[&id]) {
            return None;
        }
        let path = self.connections[&id].path;
        let max = self.paths[&path].estimate.chunk_bytes();
        while let Some(stream_id) = self.turn.pop_front() {
            let Some(stream) = self.streams.get_mut(&stream_id) else {
                continue;
            };
            let Some(chunk) = stream.send.take(max) else {
                stream.send.queued = false;
                continue;
            };
            stream.send.queued = stream.send.has_work();
            if stream.send.queued {
                self.turn.push_back(stream_id);
            }
            if std::mem::take(&mut stream.send.full) {
                self.events.push_back(Event::Writable(stream_id));
            }
            if let Some(state) = self.paths.get_mut(&path) {
                state.probed_at = now;
            }
            // One event woke one connection; it wakes the next while there is more to do.
            self.wake_data();
            return Some(self.record(now, id, Item::Data(stream_id, chunk)));
        }
        if self.waiting.is_empty() && !self.streams.values().any(|stream| stream.send.granted) {
            self.paths.values_mut().for_each(|path| path.estimate.ran_dry());
        }
        None
    }

    fn poll_control(&mut self, now: Duration, id: ConnectionId) -> Option<Transmit> {
        // First what is small, and without which the peer takes this end for stalled.
        if let Some(token) = self.connections.get_mut(&id)?.pong.take() {
            return Some(self.record(now, id, Item::Pong(token)));
        }
        if let Some(acknowledgement) = self.poll_ack(now, id) {
            return Some(acknowledgement);
        }
        loop {
            let connection = self.connections.get_mut(&id)?;
            let item = connection.outbox.pop_front()?;
            let live = match &item {
                Item::Credit(stream) => self.streams.contains_key(stream),
                Item::Data(stream, chunk) => self.streams.get(stream).is_some_and(|s| !s.send.is_acknowledged(chunk)),
                _ => true,
            };
            if live {
                return Some(self.record(now, id, item));
            }
            connection.urgent_bytes -= item.urgent_bytes();
        }
    }

    /// The next acknowledgement that is due, of any connection on this control connection's path. When one is, all
    /// are: one waking here and at the peer serves them.
    fn poll_ack(&mut self, now: Duration, id: ConnectionId) -> Option<Transmit> {
        let path = self.connections.get(&id)?.path;
        let state = self.paths.get_mut(&path)?;
        if state.unacknowledged < ACK_BYTES && state.acknowledge_at.is_none_or(|at| at > now) {
            return None;
        }
        let owed = self.connections.iter_mut().find(|(_, c)| c.path == path && c.unacknowledged > 0);
        let Some((&owed, connection)) = owed else {
            state.acknowledge_at = None;
            return None;
        };
        state.unacknowledged -= std::mem::take(&mut connection.unacknowledged);
        // Armed on while bytes come, so that no event is needed to arm it again.
        state.acknowledge_at = Some(if state.unacknowledged > 0 { now } else { now + ACK_DELAY });
        let header = Header { kind: Kind::Ack, stream: owed.0, offset: connection.received_position, len: 0 };
        Some(self.count_sent(id, Transmit { header, payload: Vec::new() }))
    }

    /// Makes the frame of an item and remembers it until it is acknowledged.
    fn record(&mut self, now: Duration, id: ConnectionId, item: Item) -> Transmit {
        let header =
            |kind, stream: StreamId, offset, len: usize| Header { kind, stream: stream.0, offset, len: len as u32 };
        let nobody = StreamId(0);
        let text = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let (header, payload) = match &item {
            Item::Data(stream, chunk) => {
                (header(Kind::Data, *stream, chunk.offset, chunk.len() as usize), chunk.parts.clone())
            }
            Item::Open(stream, target) => (header(Kind::Open, *stream, 0, target.len()), vec![text(target)]),
            Item::Fin(stream, end) => (header(Kind::Fin, *stream, *end, 0), vec![]),
            Item::Reset(stream, code, reason) => {
                (header(Kind::Reset, *stream, *code, reason.len()), vec![text(reason)])
            }
            Item::Credit(stream) => {
                let granted = self.streams.get(stream).map_or(0, |s| s.receive.granted);
                (header(Kind::Credit, *stream, granted, 0), vec![])
            }
            Item::Addresses => {
                let payload = handshake::encode_addresses(&self.addresses);
                (header(Kind::Addresses, nobody, self.addresses_changed, payload.len()), vec![payload.into()])
            }
            Item::Ping => (header(Kind::Ping, nobody, now.as_micros() as u64, 0), vec![]),
            Item::Pong(token) => (header(Kind::Pong, nobody, *token, 0), vec![]),
        };
        let transmit = self.count_sent(id, Transmit { header, payload });
        let connection = self.connections.get_mut(&id).expect("polled connections exist");
        if header.kind.is_acknowledged() && !matches!(item, Item::Credit(_)) {
            let bytes = header.frame_bytes();
            if connection.sent.is_empty() {
                connection.progress_at = now;
            }
            let path = self.paths.get_mut(&connection.path).expect("connections have a path");
            let stamp = (connection.kind == ConnectionKind::Data).then(|| path.estimate.sent(now, bytes));
            connection.sent.push_back(SentItem { end: connection.sent_position, bytes, stamp, item });
            self.bound_frames(id);
        }
        transmit
    }

    fn count_sent(&mut self, id: ConnectionId, transmit: Transmit) -> Transmit {
        let connection = self.connections.get_mut(&id).expect("polled connections exist");
        let bytes = transmit.header.frame_bytes();
        connection.sent_position += bytes;
        if let Some(path) = self.paths.get_mut(&connection.path) {
            path.sent_bytes += bytes;
        }
        transmit
    }

    /// Whether a data connection may take bulk now.
    fn may_pull(&self, connection: &Connection) -> bool {
        let full = connection.frames() >= FRAMES_MAX / 2;
        if full || !connection.is_usable() || !self.path_is_usable(connection.path) {
            return false;
        }
        let state = &self.paths[&connection.path];
        let probe_due = self.now.saturating_sub(state.probed_at) >= PATH_PROBE;
        let inflight = state.estimate.inflight();
        inflight < state.estimate.inflight_limit() && (!self.is_spare(state) || (probe_due && inflight == 0))
    }

    /// A slow path that adds next to nothing to the others.
    fn is_spare(&self, state: &PathState) -> bool {
        // A long path of which little is known yet has a low rate, too, but nothing waits on it.
        let Some(rate) = state.estimate.rate().filter(|rate| *rate < SPARE_RATE_MAX && state.estimate.queues()) else {
            return false;
        };
        let usable = self.paths.iter().filter(|(id, _)| self.path_is_usable(**id));
        let total: f64 = usable.filter_map(|(_, path)| path.estimate.rate()).sum();
        rate < total * SPARE_SHARE_MAX
    }

    fn path_is_usable(&self, path: PathId) -> bool {
        let control = self.paths.get(&path).and_then(|state| state.control);
        control.and_then(|id| self.connections.get(&id)).is_some_and(Connection::is_usable)
    }

    /// Whether the paths have room for more than what was handed over and those hand over who were told that they may.
    fn has_room(&self) -> bool {
        let pulls = |path| {
            self.connections.values().any(|c| c.path == path && c.kind == ConnectionKind::Data && self.may_pull(c))
        };
        let estimates = self.paths.iter().filter(|(id, _)| pulls(**id)).map(|(_, path)| &path.estimate);
        let room: u64 = estimates.map(|path| path.inflight_limit().saturating_sub(path.inflight())).sum();
        let handed_over: usize =
            self.turn.iter().filter_map(|id| self.streams.get(id)).map(|stream| stream.send.unsent_bytes()).sum();
        let granted = self.streams.values().filter(|stream| stream.send.granted).count() * CHUNK_BYTES_MAX;
        room > (handed_over + granted) as u64
    }

    /// Wakes the idle data connection whose path is emptiest, if there is bulk to send, and those who wait for room,
    /// as far as there is some.
    fn wake_data(&mut self) {
        while !self.waiting.is_empty() && self.has_room() {
            let id = self.waiting.pop_front().expect("not empty");
            if let Some(stream) = self.streams.get_mut(&id)
                && std::mem::take(&mut stream.send.waits)
            {
                stream.send.granted = true;
                stream.send.burst = 0;
                self.events.push_back(Event::Writable(id));
            }
        }
        if self.turn.is_empty() {
            return;
        }
        let fullness = |path: &PathId| {
            let estimate = &self.paths[path].estimate;
            estimate.inflight() as f64 / estimate.inflight_limit() as f64
        };
        let best = self
            .connections
            .iter()
            .filter(|(_, c)| c.idle && c.kind == ConnectionKind::Data && self.may_pull(c))
            .min_by(|(_, a), (_, b)| fullness(&a.path).total_cmp(&fullness(&b.path)))
            .map(|(id, _)| *id);
        if let Some(id) = best {
            self.wake(id);
        }
    }

    fn wake(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.idle
        {
            connection.idle = false;
            self.events.push_back(Event::Transmit(id));
        }
    }

    /// Puts a small frame on its way over the best control connections, or keeps it until there is one.
    fn post(&mut self, item: Item) {
        let controls = self.controls(|_, connection| !connection.closing);
        if controls.is_empty() {
            self.backlog.push_back(item);
            return;
        }
        for id in controls {
            self.post_on(id, item.clone());
        }
    }

    /// As [`Self::post`], but not where it is already: every copy of it may come back, each time that a connection is
    /// lost.
    fn post_again(&mut self, item: Item) {
        let controls = self.controls(|_, connection| !connection.closing);
        if controls.is_empty() && !self.backlog.iter().any(|other| other.says_the_same(&item)) {
            self.backlog.push_back(item);
            return;
        }
        for id in controls {
            let Some(connection) = self.connections.get(&id) else { continue };
            let mut here = connection.sent.iter().map(|sent| &sent.item).chain(&connection.outbox);
            if !here.any(|other| other.says_the_same(&item)) {
                self.post_on(id, item.clone());
            }
        }
    }

    /// The best control connections among those that will do.
    fn controls(&self, will_do: impl Fn(&Session, &Connection) -> bool) -> Vec<ConnectionId> {
        let mut controls: Vec<(bool, Duration, ConnectionId)> = self
            .paths
            .values()
            .filter_map(|path| {
                let connection = self.connections.get(&path.control?)?;
                let rtt = path.estimate.rtt().unwrap_or(Duration::MAX);
                will_do(self, connection).then_some((connection.suspect_since.is_some(), rtt, path.control?))
            })
            .collect();
        controls.sort();
        controls.into_iter().map(|(_, _, id)| id).take(URGENT_COPIES).collect()
    }

    /// Urgent streams that together send more than a path takes are bulk: otherwise they would wait behind
    /// each other, without a bound, and so would pings. A quarter, since bulk's connections take the most of a path.
    fn has_room_for_urgent(&self, control: &Connection) -> bool {
        control.is_usable()
            && control.frames() < FRAMES_MAX / 2
            && control.urgent_bytes < self.paths[&control.path].estimate.inflight_limit() / 4
    }

    fn post_on(&mut self, id: ConnectionId, item: Item) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.urgent_bytes += item.urgent_bytes();
            connection.outbox.push_back(item);
            self.bound_frames(id);
            self.wake(id);
        }
    }

    /// A peer that takes frames and never acknowledges, or does not take them, loses the connection.
    fn bound_frames(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.frames() > FRAMES_MAX
            && !connection.closing
        {
            connection.closing = true;
            self.events.push_back(Event::Close(id));
        }
    }

    // ---- acknowledgement, loss, silence ----

    fn account_received(&mut self, now: Duration, id: ConnectionId, header: &Header) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let bytes = header.frame_bytes();
        connection.received_position += bytes;
        let Some(state) = self.paths.get_mut(&connection.path) else { return };
        state.received_bytes += bytes;
        if !header.kind.is_acknowledged() {
            return;
        }
        connection.unacknowledged += bytes;
        let before = state.unacknowledged;
        state.unacknowledged += bytes;
        // Wake for the first byte (to arm the timer) and when much has gathered.
        let wake = state.acknowledge_at.is_none() || (before < ACK_BYTES && state.unacknowledged >= ACK_BYTES);
        state.acknowledge_at.get_or_insert(now + ACK_DELAY);
        if wake && let Some(control) = state.control {
            self.wake(control);
        }
    }

    fn handle_ack(&mut self, now: Duration, id: ConnectionId, offset: u64) -> Result<(), ProtocolError> {
        // The connection may have ended while its acknowledgement was on the way.
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        if offset > connection.sent_position {
            return Err(ProtocolError::AckBeyondSent);
        }
        if offset <= connection.acknowledged_position {
            return Ok(());
        }
        connection.acknowledged_position = offset;
        connection.progress_at = now;
        let arrived = connection.sent.iter().take_while(|sent| sent.end <= offset).count();
        let arrived: Vec<SentItem> = connection.sent.drain(..arrived).collect();
        let path = connection.path;
        if connection.kind == ConnectionKind::Control {
            connection.urgent_bytes -= arrived.iter().map(|sent| sent.item.urgent_bytes()).sum::<u64>();
        }
        if connection.kind == ConnectionKind::Data && connection.suspect_since.take().is_some() {
            self.events.push_back(Event::Stalled(path, false));
        }
        let stamp = arrived.last().and_then(|last| last.stamp);
        if let (Some(stamp), Some(state)) = (stamp, self.paths.get_mut(&path)) {
            let bytes = arrived.iter().map(|sent| sent.bytes).sum();
            state.estimate.acknowledged(now, bytes, &stamp);
        }
        for sent in arrived {
            match sent.item {
                Item::Data(stream_id, chunk) => {
                    if let Some(stream) = self.streams.get_mut(&stream_id) {
                        stream.send.acknowledge(&chunk);
                        self.drop_if_over(stream_id);
                    }
                }
                Item::Fin(stream_id, _) => {
                    if let Some(stream) = self.streams.get_mut(&stream_id) {
                        stream.send.fin = Fin::Acknowledged;
                        self.drop_if_over(stream_id);
                    }
                }
                Item::Reset(stream_id, ..) => drop(self.resets.remove(&stream_id)),
                _ => {}
            }
        }
        self.wake_data();
        Ok(())
    }

    fn handle_pong(&mut self, now: Duration, id: ConnectionId, token: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.ping_open.take().is_none() {
            return; // nobody asked
        }
        let path = connection.path;
        let recovered = connection.suspect_since.take().is_some();
        if let Some(state) = self.paths.get_mut(&path) {
            let rtt = now.saturating_sub(Duration::from_micros(token));
            state.estimate.round_trip(now, rtt);
        }
        if recovered {
            self.events.push_back(Event::Stalled(path, false));
            self.wake_data();
        }
    }

    /// Pings, and notices silence.
    fn check_connection(&mut self, now: Duration, id: ConnectionId) {
        let connection = self.connections.get_mut(&id).expect("listed connections exist");
        if connection.closing {
            return;
        }
        let estimate = &self.paths[&connection.path].estimate;
        let rtt = estimate.rtt().unwrap_or_default();
        let patience = match connection.kind {
            ConnectionKind::Control => STALL_TIME.max(rtt * 4),
            // On a slow path even what is allowed on the way takes long.
            ConnectionKind::Data => {
                let drain = estimate.rate().map_or(0.5, |r| 3.0 * estimate.inflight() as f64 / r);
                STALL_TIME.max(rtt * 4).max(Duration::from_secs_f64(drain.min(5.0)))
            }
        };
        let silent_since = match connection.kind {
            ConnectionKind::Control => connection.ping_open,
            ConnectionKind::Data => (!connection.sent.is_empty()).then_some(connection.progress_at),
        };
        let path = connection.path;
        if connection.kind == ConnectionKind::Control
            && connection.ping_open.is_none()
            && now.saturating_sub(connection.ping_at) >= PING_PERIOD
        {
            connection.ping_at = now;
            connection.ping_open = Some(now);
            connection.outbox.push_front(Item::Ping);
            return self.wake(id);
        }
        match connection.suspect_since {
            Some(since) if now.saturating_sub(since) >= DEAD_TIME => {
                connection.closing = true;
                self.events.push_back(Event::Close(id));
            }
            Some(_) => {}
            None if silent_since.is_some_and(|since| now.saturating_sub(since) >= patience) => {
                connection.suspect_since = Some(now);
                let sent: Vec<Item> = connection.sent.iter().map(|sent| sent.item.clone()).collect();
                let kind = connection.kind;
                self.events.push_back(Event::Stalled(path, true));
                // It may have arrived; whoever has it twice drops it.
                self.give_back(kind, sent.into_iter());
            }
            None => {}
        }
    }

    /// What a connection had may not have arrived and goes again, over others.
    fn give_back(&mut self, kind: ConnectionKind, items: impl Iterator<Item = Item>) {
        if kind == ConnectionKind::Control {
            let credits: Vec<Item> = self.streams.keys().map(|id| Item::Credit(*id)).collect();
            credits.into_iter().for_each(|credit| self.post_again(credit));
        }
        for item in items {
            match item {
                Item::Data(id, chunk) => {
                    let Some(stream) = self.streams.get_mut(&id) else {
                        continue;
                    };
                    self.resent_bytes += stream.send.requeue(&chunk);
                    if stream.send.has_work() && !stream.send.queued {
                        stream.send.queued = true;
                        self.turn.push_front(id);
                    }
                }
                Item::Credit(_) | Item::Ping | Item::Pong(_) => {}
                Item::Fin(id, _) if self.streams.get(&id).is_none_or(|s| s.send.fin == Fin::Acknowledged) => {}
                other => self.post_again(other),
            }
        }
        self.wake_data();
    }

    fn close_path(&mut self, path: PathId) {
        for (&id, connection) in self.connections.iter_mut().filter(|(_, c)| c.path == path) {
            if !connection.closing {
                connection.closing = true;
                self.events.push_back(Event::Close(id));
            }
        }
    }

    fn end(&mut self, why: Ended) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(why.clone());
        let reason = why.to_string();
        for (id, stream) in &mut self.streams {
            stream.send.clear();
            stream.reset.get_or_insert_with(|| (0, reason.clone()));
            if stream.opened {
                self.events.push_back(Event::Readable(*id));
                self.events.push_back(Event::Writable(*id));
            }
        }
        self.turn.clear();
        self.waiting.clear();
        self.backlog.clear();
        self.events.push_back(Event::Ended(why));
    }
}
