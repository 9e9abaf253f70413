//! Links that keep no order. Whatever overtakes what on a connection, and whenever the connection is lost: every byte
//! comes out once and in its place, and nothing is acknowledged behind a gap.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use skein_session::frame::{Frame, FrameKind, Header};
use skein_session::limits::{CHUNK_BYTES_MAX, OFFSET_MAX, OVERTAKEN_MAX};
use skein_session::{
    ConnectionEnd, ConnectionId, ConnectionKind, Ended, Event, PathId, ProtocolError, Received, Role, Session,
    Settings, StreamId, Transmit,
};

/// The frames on their way from one end, and those that have arrived.
#[derive(Debug, Default)]
struct Way {
    /// Frames, each with its position.
    frames: Vec<(u64, Transmit)>,
    sent: u64,
    /// Beginnings and ends of the frames that have arrived.
    arrived: BTreeSet<(u64, u64)>,
}

impl Way {
    /// Returns up to which byte everything has arrived.
    fn complete(&self) -> u64 {
        self.arrived.iter().fold(0, |end, (from, to)| if *from == end { *to } else { end })
    }
}

#[derive(Debug)]
struct Wire {
    path: u32,
    kind: ConnectionKind,
    ways: [Way; 2],
}

/// Two sessions with a stream between them.
struct Pair {
    now: Duration,
    ends: [Session; 2],
    wires: BTreeMap<ConnectionId, Wire>,
    next: u32,
    stream: StreamId,
    sent: [u64; 2],
    received: [u64; 2],
    /// Which pick comes next, where the test does not choose.
    picks: usize,
}

fn byte(at: u64) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

impl Pair {
    fn new() -> Pair {
        let now = Duration::from_secs(100);
        let mut ends = [Role::Dialer, Role::Acceptor].map(|role| Session::new(now, role, Settings::default()));
        let stream = ends[0].open("there").unwrap();
        let (sent, received) = ([0; 2], [0; 2]);
        let mut pair = Pair { now, ends, wires: BTreeMap::new(), next: 0, stream, sent, received, picks: 0 };
        pair.complete_paths();
        pair
    }

    fn up(&mut self, path: u32, kind: ConnectionKind) {
        let id = ConnectionId(self.next);
        self.next += 1;
        for end in &mut self.ends {
            end.connection_up(self.now, id, PathId(path), kind).unwrap();
        }
        self.wires.insert(id, Wire { path, kind, ways: Default::default() });
    }

    /// Sets up two paths, each with a control connection and a data connection.
    fn complete_paths(&mut self) {
        for path in 0..2 {
            for kind in [ConnectionKind::Control, ConnectionKind::Data] {
                if !self.wires.values().any(|wire| wire.path == path && wire.kind == kind) {
                    self.up(path, kind);
                }
            }
        }
    }

    /// Loses the connection, with all frames that are on its way.
    fn down(&mut self, id: ConnectionId) {
        if self.wires.remove(&id).is_some() {
            for end in &mut self.ends {
                end.connection_down(self.now, id, ConnectionEnd::Failed);
            }
        }
    }

    fn send(&mut self, end: usize, bytes: u64) {
        let room = self.ends[end].send_capacity(self.now, self.stream) as u64;
        let bytes = bytes.min(room);
        if bytes > 0 && self.ends[end].may_send(self.stream) {
            let data: Vec<u8> = (self.sent[end]..self.sent[end] + bytes).map(byte).collect();
            self.ends[end].send(self.now, self.stream, data.into());
            self.sent[end] += bytes;
        }
    }

    fn poll(&mut self, id: ConnectionId) {
        let Some(wire) = self.wires.get_mut(&id) else { return };
        for (end, way) in self.ends.iter_mut().zip(&mut wire.ways) {
            while let Some(transmit) = end.poll_transmit(self.now, id) {
                let position = way.sent;
                way.sent += transmit.header.frame_bytes();
                way.frames.push((position, transmit));
            }
        }
    }

    /// Lets one of the frames arrive that an end has on its way.
    fn arrive(&mut self, id: ConnectionId, from: usize, pick: usize) -> bool {
        let Some(wire) = self.wires.get_mut(&id) else { return false };
        let way = &mut wire.ways[from];
        if way.frames.is_empty() {
            return false;
        }
        let (position, Transmit { header, payload }) = way.frames.swap_remove(pick % way.frames.len());
        way.arrived.insert((position, position + header.frame_bytes()));
        if header.kind == FrameKind::Ack {
            // How far the end that acknowledges has received.
            let complete = self.wires.get(&ConnectionId(header.stream)).map(|wire| wire.ways[1 - from].complete());
            assert!(complete.is_none_or(|complete| header.offset <= complete), "acknowledged behind a gap");
        }
        let frame = Frame::parse(header, payload.concat().into()).unwrap();
        self.ends[1 - from].handle_frame_at(self.now, id, position, &header, frame).unwrap();
        true
    }

    fn settle(&mut self) {
        let mut closed = Vec::new();
        for (nth, end) in self.ends.iter_mut().enumerate() {
            while let Some(event) = end.poll_event() {
                match event {
                    Event::Close(id) => closed.push(id),
                    Event::Ended(why) => panic!("{why}"),
                    _ => {}
                }
            }
            while let Received::Data(data) = end.receive(self.stream) {
                let from = self.received[nth];
                assert!(data.iter().zip(from..).all(|(is, at)| *is == byte(at)), "wrong bytes after {from}");
                self.received[nth] += data.len() as u64;
                end.consumed(self.stream, data.len() as u64);
            }
        }
        closed.into_iter().for_each(|id| self.down(id));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.ends.iter_mut().for_each(|end| end.handle_timeout(self.now));
        self.settle();
    }

    /// Checks that, once nothing is lost any more, everything arrives and both ends learn that.
    fn must_arrive(&mut self) {
        for _ in 0..2000 {
            // More than once: an end may not know the stream yet.
            self.ends.iter_mut().for_each(|end| end.finish(self.stream));
            if self.received[1] == self.sent[0] && self.ends.iter().all(|end| end.is_delivered(self.stream)) {
                break;
            }
            self.complete_paths();
            self.pass(Duration::from_millis(5));
            for id in self.wires.keys().copied().collect::<Vec<_>>() {
                self.poll(id);
                for from in 0..2 {
                    while self.arrive(id, from, self.picks) {
                        self.picks = self.picks.wrapping_mul(31).wrapping_add(7);
                    }
                }
                self.settle();
            }
        }
        assert_eq!([self.received[1], self.received[0]], self.sent, "for good");
        assert!(self.ends.iter().all(|end| end.is_delivered(self.stream)), "an end does not know that it is over");
    }
}

/// Without a gap, acknowledgements say as much as on a link that keeps order. The frame that closes a gap has all
/// frames behind it acknowledged.
#[test]
fn the_slowest_frame_holds_back_the_acknowledgement_and_nothing_else() {
    let mut pair = Pair::new();
    let data = ConnectionId(1);
    for _ in 0..200 {
        pair.pass(Duration::from_millis(5));
        for id in pair.wires.keys().copied().collect::<Vec<_>>() {
            pair.poll(id);
            for from in 0..2 {
                while pair.arrive(id, from, 0) {}
            }
        }
        pair.settle();
    }
    for _ in 0..8 {
        pair.send(0, CHUNK_BYTES_MAX as u64);
        pair.poll(data);
    }
    let frames = pair.wires[&data].ways[0].frames.len();
    assert!(frames > 1, "{frames} frames");
    // All but the first frame; the reader gets no byte yet.
    for _ in 1..frames {
        assert!(pair.arrive(data, 0, usize::MAX - usize::MAX % frames + 1));
    }
    let before = pair.received[1];
    pair.settle();
    assert_eq!(pair.received[1], before);
    let held = pair.ends[0].footprint().retained_bytes;
    pair.now += Duration::from_millis(50);
    pair.poll(ConnectionId(0));
    while pair.arrive(ConnectionId(0), 1, 0) {}
    assert_eq!(pair.ends[0].footprint().retained_bytes, held, "given up behind a gap");
    assert!(pair.arrive(data, 0, 0));
    pair.settle();
    assert!(pair.received[1] > before);
    pair.now += Duration::from_millis(50);
    pair.poll(ConnectionId(0));
    while pair.arrive(ConnectionId(0), 1, 0) {}
    assert_eq!(pair.ends[0].footprint().retained_bytes, 0);
    pair.must_arrive();
}

/// A peer may lie about where a frame lies.
#[test]
fn frames_in_places_where_none_can_be_end_the_session() {
    let header = Header { kind: FrameKind::Ping, stream: 0, offset: 1, len: 0 };
    let bytes = header.frame_bytes();
    let says = |positions: &[u64]| {
        let mut session = Session::new(Duration::ZERO, Role::Acceptor, Settings::default());
        session.connection_up(Duration::ZERO, ConnectionId(0), PathId(0), ConnectionKind::Control).unwrap();
        let mut last = Ok(());
        for position in positions {
            let ping = Frame::Ping { token: 1 };
            last = session.handle_frame_at(Duration::ZERO, ConnectionId(0), *position, &header, ping);
        }
        assert_eq!(session.ended().cloned(), last.clone().err().map(Ended::Protocol));
        last
    };
    assert_eq!(says(&[bytes, 0, 2 * bytes]), Ok(()));
    for twice in [&[0, 0][..], &[bytes, bytes], &[bytes, bytes + 1], &[bytes, 1], &[0, bytes, 1]] {
        assert_eq!(says(twice), Err(ProtocolError::BadPosition), "{twice:?}");
    }
    assert_eq!(says(&[OFFSET_MAX - 1]), Err(ProtocolError::BadPosition));
    assert_eq!(says(&[u64::MAX]), Err(ProtocolError::BadPosition));
    let gaps: Vec<u64> = (1..=OVERTAKEN_MAX as u64 + 1).map(|nth| 2 * nth * bytes).collect();
    assert_eq!(says(&gaps[..OVERTAKEN_MAX]), Ok(()));
    assert_eq!(says(&gaps), Err(ProtocolError::Confetti));
}

#[derive(Clone, Debug)]
enum Op {
    Send(usize, u64),
    Poll(usize),
    Arrive(usize, usize, usize),
    Pass(u64),
    Down(usize),
    Up,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..2usize, 1u64..300_000).prop_map(|(end, bytes)| Op::Send(end, bytes)),
        4 => (0..4usize).prop_map(Op::Poll),
        8 => (0..4usize, 0..2usize, any::<usize>()).prop_map(|(of, from, pick)| Op::Arrive(of, from, pick)),
        2 => (1u64..100).prop_map(Op::Pass),
        1 => (0..4usize).prop_map(Op::Down),
        1 => Just(Op::Up),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_is_sent_arrives_in_whatever_order(ops in proptest::collection::vec(op(), 1..120), picks: usize) {
        let mut pair = Pair::new();
        pair.picks = picks;
        for op in ops {
            let nth = |pair: &Pair, n: usize| pair.wires.keys().nth(n).copied();
            match op {
                Op::Send(end, bytes) => pair.send(end, bytes),
                Op::Poll(of) => if let Some(id) = nth(&pair, of) { pair.poll(id) },
                Op::Arrive(of, from, pick) => if let Some(id) = nth(&pair, of) {
                    pair.arrive(id, from, pick);
                },
                Op::Pass(ms) => pair.pass(Duration::from_millis(ms)),
                Op::Down(of) => if let Some(id) = nth(&pair, of) { pair.down(id) },
                Op::Up => pair.complete_paths(),
            }
            pair.settle();
        }
        pair.must_arrive();
    }
}
