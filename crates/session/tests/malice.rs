//! A peer that is broken or an enemy sends any frames, well-formed or nearly so, in any order. The session never
//! panics, keeps no more than its bounds allow, and answers each frame with `Ok` or a [`ProtocolError`] that ends the
//! session.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use skein_session::address::{NicAddress, encode_addresses};
use skein_session::frame::{Frame, FrameKind, Header};
use skein_session::limits::*;
use skein_session::{
    ConnectionEnd, ConnectionId, ConnectionKind, Ended, Event, PathId, ProtocolError, Received, Role, Session,
    Settings, StreamId,
};

/// A session, an application that behaves well, and what an enemy can know of the session.
struct Victim {
    session: Session,
    now: Duration,
    connections: Vec<ConnectionId>,
    next_connection: u32,
    streams: Vec<StreamId>,
    /// What the session granted and sent: a clever enemy stays just within these, or goes just beyond.
    granted: BTreeMap<u32, u64>,
    sent: BTreeMap<u32, u64>,
    /// Whether the application takes streams that the peer opens.
    takes_streams: bool,
}

impl Victim {
    fn new(role: Role) -> Victim {
        let now = Duration::from_secs(100);
        let mut victim = Victim {
            session: Session::new(now, role, Settings::default()),
            now,
            connections: Vec::new(),
            next_connection: 0,
            streams: Vec::new(),
            granted: BTreeMap::new(),
            sent: BTreeMap::new(),
            takes_streams: true,
        };
        victim.up(0, ConnectionKind::Control);
        victim.up(0, ConnectionKind::Data);
        victim
    }

    fn up(&mut self, path: u32, kind: ConnectionKind) {
        let id = ConnectionId(self.next_connection);
        if self.session.connection_up(self.now, id, PathId(path), kind).is_ok() {
            self.connections.push(id);
        }
        self.next_connection += 1;
        self.settle();
    }

    fn down(&mut self, id: ConnectionId, how: ConnectionEnd) {
        self.connections.retain(|other| *other != id);
        self.session.connection_down(self.now, id, how);
        self.settle();
    }

    fn frame(&mut self, id: ConnectionId, header: Header, payload: Bytes) -> Result<(), ProtocolError> {
        // The reader of a connection checks the header first.
        let Ok(header) = Header::decode(&header.encode()) else { return Ok(()) };
        let Ok(frame) = Frame::parse(header, payload) else { return Ok(()) };
        let outcome = self.session.handle_frame(self.now, id, &header, frame);
        if let Err(error) = &outcome {
            assert_eq!(self.session.ended(), Some(&Ended::Protocol(error.clone())));
        }
        self.settle();
        outcome
    }

    /// Does what the session asks for, except sending.
    fn settle(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Close(id) => self.down(id, ConnectionEnd::Failed),
                Event::Opened(id, _) if self.takes_streams => self.streams.push(id),
                Event::Opened(id, _) => {
                    self.session.reset(id, 1, "this end takes no streams, and says so at some length")
                }
                _ => {}
            }
        }
        let print = self.session.footprint();
        let windows = WINDOW_SESSION + print.streams as u64 * WINDOW_MIN;
        assert!(print.held_bytes <= print.granted_bytes && print.granted_bytes <= windows, "{print:?}");
        assert!(print.streams <= 2 * STREAMS_MAX as usize, "{print:?}");
        assert!(print.connections <= CONNECTIONS_MAX && print.paths <= print.connections, "{print:?}");
        // Bytes in small pieces may not take much more memory than the bytes themselves.
        assert!(print.held_pieces <= PIECES, "{print:?}");
    }

    fn poll(&mut self, id: ConnectionId, frames: usize) {
        for _ in 0..frames {
            let Some(transmit) = self.session.poll_transmit(self.now, id) else { break };
            let Header { kind, stream, offset, .. } = transmit.header;
            *self.sent.entry(id.0).or_default() += transmit.header.frame_bytes();
            if kind == FrameKind::Credit {
                let granted = self.granted.entry(stream).or_default();
                *granted = offset.max(*granted);
            }
        }
        self.settle();
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.session.handle_timeout(self.now);
        self.settle();
    }

    fn read(&mut self, id: StreamId) {
        while let Received::Data(data) = self.session.receive(id) {
            self.session.consumed(id, data.len() as u64);
        }
        self.settle();
    }
}

/// Most pieces that one session may hold.
const PIECES: usize = 2 * GAPS_MAX + 4 * STREAMS_MAX as usize + (WINDOW_SESSION as usize * 4) / 2048;

fn header(kind: FrameKind, stream: u32, offset: u64, len: usize) -> Header {
    Header { kind, stream, offset, len: len as u32 }
}

// ---- anything, in any order ----

#[derive(Clone, Debug)]
enum Op {
    Frame { connection: usize, kind: FrameKind, stream: u32, offset: Where, len: usize },
    Up { path: u32, control: bool },
    Down { connection: usize, by_peer: bool },
    Pass { ms: u64 },
    Poll { connection: usize, frames: usize },
    Open,
    Send { stream: usize, len: usize },
    Finish { stream: usize },
    Reset { stream: usize },
    Read { stream: usize },
}

/// The offsets that a liar would choose.
#[derive(Clone, Copy, Debug)]
enum Where {
    Small(u64),
    /// Near what was granted or sent.
    Near(i64),
    Huge(u64),
}

fn place() -> impl Strategy<Value = Where> {
    prop_oneof![
        4 => (0u64..100_000).prop_map(Where::Small),
        4 => (-300_000i64..300_000).prop_map(Where::Near),
        1 => any::<u64>().prop_map(Where::Huge),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    use FrameKind::*;
    let kind =
        prop::sample::select(vec![Open, Data, Data, Data, Fin, Reset, Credit, Ack, Ack, Ping, Pong, Addresses, Bye]);
    let stream = prop_oneof![8 => 0u32..8, 1 => 0u32..3000, 1 => any::<u32>()];
    let len = prop_oneof![1usize..300, Just(CHUNK_BYTES_MAX), 1usize..CHUNK_BYTES_MAX];
    let frame = (0usize..6, kind, stream, place(), len)
        // A goodbye ends the session, so it comes rarely.
        .prop_filter("a goodbye now and then", |(_, kind, stream, ..)| *kind != Bye || *stream == 0)
        .prop_map(|(connection, kind, stream, offset, len)| Op::Frame { connection, kind, stream, offset, len });
    prop_oneof![
        20 => frame,
        1 => (0u32..3, any::<bool>()).prop_map(|(path, control)| Op::Up { path, control }),
        1 => (0usize..6, any::<bool>()).prop_map(|(connection, by_peer)| Op::Down { connection, by_peer }),
        2 => (0u64..3000).prop_map(|ms| Op::Pass { ms }),
        6 => (0usize..6, 1usize..8).prop_map(|(connection, frames)| Op::Poll { connection, frames }),
        1 => Just(Op::Open),
        2 => (0usize..6, 1usize..400_000).prop_map(|(stream, len)| Op::Send { stream, len }),
        1 => (0usize..6).prop_map(|stream| Op::Finish { stream }),
        1 => (0usize..6).prop_map(|stream| Op::Reset { stream }),
        4 => (0usize..6).prop_map(|stream| Op::Read { stream }),
    ]
}

fn payload(kind: FrameKind, len: usize) -> Bytes {
    match kind {
        FrameKind::Data => Bytes::from(vec![7; len]),
        FrameKind::Open | FrameKind::Reset | FrameKind::Bye => Bytes::from("x".repeat(len.min(1024))),
        FrameKind::Addresses => {
            let address = NicAddress::new([10, 0, 0, 1].into(), 24, "eth0");
            encode_addresses(&vec![address; len % 140]).into()
        }
        _ => Bytes::new(),
    }
}

fn play(victim: &mut Victim, op: Op) {
    let connections = victim.connections.clone();
    let connection = |n: usize| connections.get(n % connections.len().max(1)).copied();
    let streams = victim.streams.clone();
    let stream = |n: usize| streams.get(n % streams.len().max(1)).copied();
    match op {
        Op::Frame { connection: n, kind, stream, offset, len } => {
            let payload = payload(kind, len);
            let known = match kind {
                FrameKind::Ack => victim.sent.get(&stream).copied().unwrap_or(0),
                _ => victim.granted.get(&stream).copied().unwrap_or(WINDOW_INITIAL),
            };
            let offset = match offset {
                Where::Small(offset) | Where::Huge(offset) => offset,
                Where::Near(by) => (known - (payload.len() as u64).min(known)).saturating_add_signed(by),
            };
            // Frames of a connection may arrive when the session no longer has the connection.
            let id = connection(n).unwrap_or(ConnectionId(0));
            let _ = victim.frame(id, header(kind, stream, offset, payload.len()), payload);
        }
        Op::Up { path, control } => {
            victim.up(path, if control { ConnectionKind::Control } else { ConnectionKind::Data });
        }
        Op::Down { connection: n, by_peer } => {
            if let Some(id) = connection(n) {
                victim.down(id, if by_peer { ConnectionEnd::Closed } else { ConnectionEnd::Failed });
            }
        }
        Op::Pass { ms } => victim.pass(Duration::from_millis(ms)),
        Op::Poll { connection: n, frames } => {
            if let Some(id) = connection(n) {
                victim.poll(id, frames);
            }
        }
        Op::Open => victim.streams.extend(victim.session.open("target").ok()),
        Op::Send { stream: n, len } => {
            if let Some(id) = stream(n) {
                let len = len.min(victim.session.send_capacity(victim.now, id));
                victim.session.send(victim.now, id, Bytes::from(vec![1; len]));
            }
        }
        Op::Finish { stream: n } => {
            if let Some(id) = stream(n) {
                victim.session.finish(id);
            }
        }
        Op::Reset { stream: n } => {
            if let Some(id) = stream(n) {
                victim.session.reset(id, 3, "enough");
            }
        }
        Op::Read { stream: n } => {
            if let Some(id) = stream(n) {
                victim.read(id);
            }
        }
    }
    victim.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_frames_end_in_ok_or_a_protocol_error(
        accepts: bool,
        takes_streams: bool,
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut victim = Victim::new(if accepts { Role::Acceptor } else { Role::Dialer });
        victim.takes_streams = takes_streams;
        for op in ops {
            play(&mut victim, op);
        }
    }
}

// ---- floods ----

/// Sends `number` frames that the victim could answer, each one, and acknowledges nothing.
fn flood(number: u64, takes_streams: bool, frame: impl Fn(&Victim, u64) -> (usize, Header, Bytes)) -> Victim {
    let mut victim = Victim::new(Role::Acceptor);
    victim.takes_streams = takes_streams;
    for n in 0..number {
        let (connection, header, payload) = frame(&victim, n);
        let id = victim.connections[connection];
        if victim.frame(id, header, payload).is_err() {
            break;
        }
        for id in victim.streams.clone() {
            victim.read(id);
        }
        victim.poll(id, 4);
    }
    victim
}

fn check_small(victim: &Victim, what: &str) {
    let print = victim.session.footprint();
    assert!(print.queued <= 10 * STREAMS_MAX as usize, "a flood of {what} leaves {print:?}");
}

#[test]
fn floods_leave_little_behind() {
    const MANY: u64 = 30_000;
    for connection in [0, 1] {
        let pings = flood(MANY, true, |_, n| (connection, header(FrameKind::Ping, 0, n, 0), Bytes::new()));
        check_small(&pings, "pings");
        let pongs = flood(MANY, true, |_, n| (connection, header(FrameKind::Pong, 0, n, 0), Bytes::new()));
        check_small(&pongs, "pongs");
    }
    let open = |_: &Victim, n| (0, header(FrameKind::Open, n as u32 * 2, 0, 1), Bytes::from("x"));
    check_small(&flood(MANY, false, open), "openings");
    let resets = |_: &Victim, n| (0, header(FrameKind::Reset, n as u32 * 2, 0, 0), Bytes::new());
    check_small(&flood(MANY, true, resets), "resets");
    let gaps = |_: &Victim, n| (0, header(FrameKind::Fin, n as u32 * 1000, 0, 0), Bytes::new());
    check_small(&flood(MANY, false, gaps), "streams without an opening");
    let data = Bytes::from(vec![0; CHUNK_BYTES_MAX]);
    let data = |_: &Victim, n| match n {
        0 => (0, header(FrameKind::Open, 0, 0, 1), Bytes::from("x")),
        n => (1, header(FrameKind::Data, 0, (n - 1) * data.len() as u64, data.len()), data.clone()),
    };
    let bulk = flood(MANY, true, data);
    assert_eq!(bulk.session.ended(), None, "bulk within its credit is no crime");
    check_small(&bulk, "bulk that is read");
    let addresses = payload(FrameKind::Addresses, 100);
    let addresses = |_: &Victim, n| (0, header(FrameKind::Addresses, 0, n, addresses.len()), addresses.clone());
    check_small(&flood(MANY / 10, true, addresses), "addresses");
}

#[test]
fn confetti_is_refused() {
    // Every other byte of the window: no byte can be handed out, and each byte lies alone.
    let confetti = |_: &Victim, n| match n {
        0 => (0, header(FrameKind::Open, 0, 0, 1), Bytes::from("x")),
        n => (1, header(FrameKind::Data, 0, n * 2 - 1, 1), Bytes::from("x")),
    };
    let victim = flood(2 * GAPS_MAX as u64, true, confetti);
    assert!(matches!(victim.session.ended(), Some(Ended::Protocol(_))), "{:?}", victim.session.footprint());
}

#[test]
fn paths_that_were_refused_are_forgotten() {
    let mut victim = Victim::new(Role::Acceptor);
    for path in 1..1000 {
        let again = victim.session.connection_up(victim.now, ConnectionId(0), PathId(path), ConnectionKind::Control);
        assert_eq!(again, Err(ProtocolError::ConnectionReused));
    }
    assert_eq!(victim.session.footprint().paths, 1);
}

#[test]
fn a_path_without_a_control_connection_is_closed() {
    let mut victim = Victim::new(Role::Acceptor);
    victim.up(7, ConnectionKind::Data);
    for _ in 0..200 {
        victim.pass(Duration::from_millis(20));
    }
    assert!(!victim.session.status().paths.iter().any(|path| path.path == PathId(7)));
}

/// A stream may be over for the peer while its bytes still wait for their reader here. An honest peer may then open
/// more streams than this end has room for.
#[test]
fn streams_beyond_the_limit_are_refused() {
    let mut victim = Victim::new(Role::Acceptor);
    for n in 0..STREAMS_MAX + 10 {
        victim.frame(ConnectionId(0), header(FrameKind::Open, n * 2, 0, 1), Bytes::from("x")).unwrap();
        victim.frame(ConnectionId(0), header(FrameKind::Fin, n * 2, 0, 0), Bytes::new()).unwrap();
    }
    assert_eq!(victim.streams.len(), STREAMS_MAX as usize);
    let mut refused = Vec::new();
    while let Some(transmit) = victim.session.poll_transmit(victim.now, ConnectionId(0)) {
        if transmit.header.kind == FrameKind::Reset {
            refused.push(transmit.header.stream);
        }
    }
    assert_eq!(refused, (STREAMS_MAX..STREAMS_MAX + 10).map(|n| n * 2).collect::<Vec<_>>());
}

/// A stream whose end both sides know is forgotten, whenever its reset comes.
#[test]
fn a_reset_after_the_end_leaves_nothing() {
    let mut victim = Victim::new(Role::Acceptor);
    for n in 0..4 * STREAMS_MAX {
        victim.frame(ConnectionId(0), header(FrameKind::Open, n * 2, 0, 1), Bytes::from("x")).unwrap();
        victim.frame(ConnectionId(0), header(FrameKind::Fin, n * 2, 0, 0), Bytes::new()).unwrap();
        let id = StreamId(n * 2);
        assert_eq!(victim.session.receive(id), Received::Finished, "{n}");
        victim.session.finish(id);
        victim.frame(ConnectionId(0), header(FrameKind::Reset, n * 2, 0, 0), Bytes::new()).unwrap();
        assert_eq!(victim.session.footprint().streams, 0, "{n}");
    }
}

/// A stream that was granted room and is then torn down leaves the room to others, whether its application knows
/// already or not.
#[test]
fn a_reset_stream_takes_no_room() {
    for seen in [true, false] {
        let mut victim = Victim::new(Role::Dialer);
        let [torn, other] = [(); 2].map(|()| victim.session.open("target").unwrap());
        assert!(victim.session.send_capacity(victim.now, torn) > URGENT_BYTES);
        // A path about which nothing is known has room for one stream.
        assert_eq!(victim.session.send_capacity(victim.now, other), URGENT_BYTES);
        victim.frame(ConnectionId(0), header(FrameKind::Fin, torn.0, 0, 0), Bytes::new()).unwrap();
        if seen {
            assert_eq!(victim.session.receive(torn), Received::Finished);
        }
        victim.frame(ConnectionId(0), header(FrameKind::Reset, torn.0, 0, 0), Bytes::new()).unwrap();
        assert!(victim.session.send_capacity(victim.now, other) > URGENT_BYTES, "seen {seen}");
    }
}

/// Not malice, but two paths: the older of two announcements arrives later.
#[test]
fn an_older_announcement_of_addresses_is_ignored() {
    let now = Duration::ZERO;
    let mut session = Session::new(now, Role::Acceptor, Settings::default());
    session.connection_up(now, ConnectionId(0), PathId(0), ConnectionKind::Control).unwrap();
    let mut told = Vec::new();
    for (change, number) in [(2, 2), (1, 1), (2, 2), (3, 3)] {
        let addresses = vec![NicAddress::new([10, 0, 0, number].into(), 24, "eth0")];
        let payload = encode_addresses(&addresses);
        let header = header(FrameKind::Addresses, 0, change, payload.len());
        let frame = Frame::parse(header, payload.into()).unwrap();
        session.handle_frame(now, ConnectionId(0), &header, frame).unwrap();
        while let Some(event) = session.poll_event() {
            if let Event::PeerAddresses(addresses) = event {
                told.push(addresses[0].ip.to_string());
            }
        }
    }
    assert_eq!(told, ["10.0.0.2", "10.0.0.3"]);
}
