//! The sending half against a peer that acknowledges and grants exactly what it says. No byte is given up that did not
//! arrive, no byte goes again that was acknowledged, and no byte goes beyond the peer's credit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use skein_session::frame::{Frame, FrameKind, Header};
use skein_session::limits::{INFLIGHT_INITIAL, STALL_TIME, WINDOW_INITIAL};
use skein_session::{
    ConnectionEnd, ConnectionId, ConnectionKind, Event, PathId, Role, Session, Settings, StreamId, Transmit,
};

/// A frame as it was sent.
#[derive(Clone, Debug)]
struct Sent {
    header: Header,
    /// Position on the connection after the frame.
    end: u64,
}

/// What the network and the peer know about a connection.
#[derive(Debug, Default)]
struct Wire {
    path: u32,
    data: bool,
    sent: Vec<Sent>,
    /// How many frames arrived; they arrive in order.
    arrived: usize,
}

/// A session that sends one stream, and its peer.
struct Bench {
    session: Session,
    now: Duration,
    stream: StreamId,
    wires: BTreeMap<ConnectionId, Wire>,
    next: u32,
    handed_over: u64,
    /// The peer's credit.
    credit: u64,
    /// The lengths of the chunks that the peer has, by offset.
    has: BTreeMap<u64, u64>,
    has_opening: bool,
    has_end: bool,
    /// Offsets of the chunks whose acknowledgement the session has.
    told: BTreeSet<u64>,
}

fn pattern(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect()
}

impl Bench {
    /// One path with its control connection and `data` data connections.
    fn new(data: u32) -> Bench {
        let now = Duration::from_secs(100);
        let mut session = Session::new(now, Role::Dialer, Settings::default());
        let stream = session.open("there").unwrap();
        let mut bench = Bench {
            session,
            now,
            stream,
            wires: BTreeMap::new(),
            next: 0,
            handed_over: 0,
            credit: WINDOW_INITIAL,
            has: BTreeMap::new(),
            has_opening: false,
            has_end: false,
            told: BTreeSet::new(),
        };
        bench.up(0, false);
        for _ in 0..data {
            bench.up(0, true);
        }
        bench
    }

    fn up(&mut self, path: u32, data: bool) -> ConnectionId {
        let id = ConnectionId(self.next);
        self.next += 1;
        let kind = if data { ConnectionKind::Data } else { ConnectionKind::Control };
        self.session.connection_up(self.now, id, PathId(path), kind).unwrap();
        self.wires.insert(id, Wire { path, data, ..Wire::default() });
        id
    }

    fn down(&mut self, id: ConnectionId) {
        if self.wires.remove(&id).is_some() {
            self.session.connection_down(self.now, id, ConnectionEnd::Failed);
        }
    }

    /// Delivers a frame from the peer, if the peer has a connection for it.
    fn frame(&mut self, kind: FrameKind, number: u32, offset: u64, frame: Frame) -> bool {
        let Some((&control, _)) = self.wires.iter().find(|(_, wire)| !wire.data) else { return false };
        let header = Header { kind, stream: number, offset, len: 0 };
        self.session.handle_frame(self.now, control, &header, frame).unwrap();
        true
    }

    fn grant(&mut self, bytes: u64) {
        self.credit += bytes;
        let (stream, offset) = (self.stream, self.credit);
        self.frame(FrameKind::Credit, stream.0, offset, Frame::Credit { stream, offset });
    }

    fn send(&mut self, bytes: u64) {
        let end = self.handed_over + bytes;
        self.session.send(self.now, self.stream, pattern(self.handed_over..end).into());
        self.handed_over = end;
    }

    /// Polls one frame, and checks that it is within the credit and has the right bytes.
    fn poll(&mut self, id: ConnectionId) -> Option<Header> {
        let Transmit { header, payload } = self.session.poll_transmit(self.now, id)?;
        if header.kind == FrameKind::Data {
            let end = header.offset + u64::from(header.len);
            assert!(end <= self.credit, "byte {end} goes out, and the peer's credit ends at {}", self.credit);
            assert!(payload.concat() == pattern(header.offset..end), "wrong bytes at {}", header.offset);
            assert!(!self.told.contains(&header.offset), "{} goes again and was acknowledged", header.offset);
        }
        let wire = self.wires.get_mut(&id).unwrap();
        let end = wire.sent.last().map_or(0, |sent| sent.end) + header.frame_bytes();
        wire.sent.push(Sent { header, end });
        Some(header)
    }

    /// Polls everything that the connection takes. Returns the offsets of the chunks.
    fn poll_all(&mut self, id: ConnectionId) -> Vec<u64> {
        let frames = std::iter::from_fn(|| self.poll(id));
        frames.filter(|header| header.kind == FrameKind::Data).map(|header| header.offset).collect()
    }

    /// Lets `frames` more frames arrive. Pings are answered.
    fn arrive(&mut self, id: ConnectionId, frames: usize) {
        let Some(wire) = self.wires.get_mut(&id) else { return };
        let end = (wire.arrived + frames).min(wire.sent.len());
        let arrived: Vec<Header> = wire.sent[wire.arrived..end].iter().map(|sent| sent.header).collect();
        wire.arrived = end;
        for header in arrived {
            match header.kind {
                FrameKind::Data => drop(self.has.insert(header.offset, u64::from(header.len))),
                FrameKind::Open => self.has_opening = true,
                FrameKind::Fin => self.has_end = true,
                FrameKind::Ping => {
                    let header = Header { kind: FrameKind::Pong, ..header };
                    let pong = Frame::Pong { token: header.offset };
                    self.session.handle_frame(self.now, id, &header, pong).unwrap();
                }
                _ => {}
            }
        }
    }

    /// Acknowledges what has arrived on a connection.
    fn acknowledge(&mut self, id: ConnectionId) {
        let Some(wire) = self.wires.get(&id) else { return };
        let arrived = &wire.sent[..wire.arrived];
        let offset = arrived.last().map_or(0, |sent| sent.end);
        let chunks = arrived.iter().filter(|sent| sent.header.kind == FrameKind::Data).map(|sent| sent.header.offset);
        let chunks: Vec<u64> = chunks.collect();
        if self.frame(FrameKind::Ack, id.0, offset, Frame::Ack { connection: id, offset }) {
            self.told.extend(chunks);
        }
    }

    /// Lets time pass, in which control connections work and nothing else arrives.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(50).min(until - self.now);
            self.session.handle_timeout(self.now);
            let controls: Vec<_> = self.wires.iter().filter(|(_, wire)| !wire.data).map(|(id, _)| *id).collect();
            for id in controls {
                self.poll_all(id);
                self.arrive(id, usize::MAX / 2);
                self.acknowledge(id);
            }
            self.settle();
        }
    }

    fn settle(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Close(id) => self.down(id),
                Event::Ended(why) => panic!("{why}"),
                _ => {}
            }
        }
    }

    /// Returns how many bytes of the stream the peer has without a gap.
    fn has_up_to(&self) -> u64 {
        self.has.iter().fold(0, |end, (offset, len)| if *offset <= end { end.max(offset + len) } else { end })
    }

    /// Checks that, once the network works, the peer gets everything and the session learns that.
    fn must_arrive(&mut self) {
        self.credit += 64 << 20;
        self.session.finish(self.stream);
        for _ in 0..2000 {
            if self.session.is_delivered(self.stream) {
                break;
            }
            for data in [false, true] {
                if !self.wires.values().any(|wire| wire.path == 0 && wire.data == data) {
                    self.up(0, data);
                }
            }
            // The peer repeats its credit on each new control connection.
            self.grant(0);
            self.pass(Duration::from_millis(50));
            for id in self.wires.keys().copied().collect::<Vec<_>>() {
                self.poll_all(id);
                self.arrive(id, usize::MAX / 2);
                self.acknowledge(id);
            }
            self.settle();
        }
        let (has, all) = (self.has_up_to(), self.handed_over);
        assert!(has == all && self.has_end, "the peer has {has} of {all} bytes, for good");
        assert!(self.has_opening, "the peer was never told what the stream is for");
        assert!(self.session.is_delivered(self.stream), "the session does not know that it is over");
    }
}

/// The states of a data connection in which an acknowledgement may find it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Found {
    /// It works.
    Working,
    /// Nothing was acknowledged for long: the connection's chunks wait to go again.
    Suspect,
    /// As [`Self::Suspect`], and the chunks have gone again over the other connection.
    SentAgain,
}

/// An acknowledgement frees the chunks up to its position, and no more.
#[test]
fn an_acknowledgement_frees_what_it_says() {
    for found in [Found::Working, Found::Suspect, Found::SentAgain] {
        for arrived in 0..=4 {
            let mut bench = Bench::new(1);
            let first = ConnectionId(1);
            bench.grant(1 << 20);
            bench.send(INFLIGHT_INITIAL);
            let chunks = bench.poll_all(first);
            assert_eq!(chunks.len(), 4, "{chunks:?}");
            bench.up(1, false);
            let second = bench.up(1, true);
            if found != Found::Working {
                bench.pass(STALL_TIME * 2);
            }
            if found == Found::SentAgain {
                assert_eq!(bench.poll_all(second), chunks);
            }
            bench.arrive(first, arrived);
            bench.acknowledge(first);
            bench.down(first);
            match found {
                Found::Working | Found::Suspect => assert_eq!(bench.poll_all(second), chunks[arrived..], "{found:?}"),
                Found::SentAgain => bench.down(second),
            }
            bench.must_arrive();
        }
    }
}

/// Bytes that go again have used their credit already: they give no credit for more.
#[test]
fn what_goes_again_gives_no_credit() {
    for lost in 0..4 {
        let mut bench = Bench::new(1);
        bench.grant(INFLIGHT_INITIAL - WINDOW_INITIAL);
        bench.send(4 * INFLIGHT_INITIAL);
        let mut data = ConnectionId(1);
        // The chunks go out a second time, a third time …
        for _ in 0..=lost {
            assert_eq!(bench.poll_all(data).len(), 4);
            bench.down(data);
            data = bench.up(0, true);
        }
        bench.poll_all(data);
        bench.arrive(data, 4);
        bench.acknowledge(data);
        assert_eq!(bench.poll_all(data), [], "there is no credit left");
        bench.grant(1);
        assert_eq!(bench.poll_all(data), [INFLIGHT_INITIAL], "a byte of credit is a byte");
        bench.must_arrive();
    }
}

/// Credit may come over two paths, and in any order.
#[test]
fn credit_that_comes_late_takes_nothing_back() {
    let mut bench = Bench::new(1);
    bench.grant(INFLIGHT_INITIAL - WINDOW_INITIAL);
    let (stream, older) = (bench.stream, WINDOW_INITIAL + 1);
    assert!(bench.frame(FrameKind::Credit, stream.0, older, Frame::Credit { stream, offset: older }));
    bench.send(INFLIGHT_INITIAL);
    assert_eq!(bench.poll_all(ConnectionId(1)).len(), 4);
    bench.must_arrive();
}

/// Frames that wait for a control connection that is lost go over the next.
#[test]
fn what_was_not_sent_on_a_control_connection_goes_over_the_next() {
    let mut bench = Bench::new(1);
    // A few bytes go over the control connection, as the stream's opening does.
    bench.send(100);
    bench.session.finish(bench.stream);
    bench.down(ConnectionId(0));
    bench.settle();
    bench.must_arrive();
}

#[derive(Clone, Debug)]
enum Op {
    Send(u64),
    Grant(u64),
    Poll(usize, usize),
    Arrive(usize, usize),
    Acknowledge(usize),
    Pass(u64),
    Down(usize),
    Up(u32, bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (1u64..100_000).prop_map(Op::Send),
        2 => (1u64..200_000).prop_map(Op::Grant),
        5 => (0..6usize, 1..6usize).prop_map(|(of, frames)| Op::Poll(of, frames)),
        4 => (0..6usize, 1..6usize).prop_map(|(of, frames)| Op::Arrive(of, frames)),
        4 => (0..6usize).prop_map(Op::Acknowledge),
        2 => (1u64..700).prop_map(Op::Pass),
        1 => (0..6usize).prop_map(Op::Down),
        1 => (0..2u32, any::<bool>()).prop_map(|(path, data)| Op::Up(path, data)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Holds whatever is lost, late, acknowledged and granted, in whatever order.
    #[test]
    fn what_is_sent_arrives(ops in proptest::collection::vec(op(), 1..80)) {
        let mut bench = Bench::new(2);
        for op in ops {
            let nth = |bench: &Bench, n: usize| bench.wires.keys().nth(n).copied();
            match op {
                Op::Send(bytes) => bench.send(bytes),
                Op::Grant(bytes) => bench.grant(bytes),
                Op::Poll(of, frames) => if let Some(id) = nth(&bench, of) {
                    let _ = (0..frames).map_while(|_| bench.poll(id)).count();
                },
                Op::Arrive(of, frames) => if let Some(id) = nth(&bench, of) { bench.arrive(id, frames) },
                Op::Acknowledge(of) => if let Some(id) = nth(&bench, of) { bench.acknowledge(id) },
                Op::Pass(ms) => bench.pass(Duration::from_millis(ms)),
                Op::Down(of) => if let Some(id) = nth(&bench, of) { bench.down(id) },
                Op::Up(path, data) => {
                    let has_control = bench.wires.values().any(|wire| wire.path == path && !wire.data);
                    if (data || !has_control) && bench.wires.len() < 12 {
                        bench.up(path, data);
                    }
                }
            }
            bench.settle();
        }
        bench.must_arrive();
    }
}
