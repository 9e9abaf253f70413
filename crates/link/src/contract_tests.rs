//! Tests what every link promises, with each link: TCP without TLS and with TLS, there with each cipher of records;
//! RDMA over a fake, with and without immediate data, with and without an order, and over libfabric's provider for TCP;
//! and the fake of TCP with an order and without.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use skein_fabric::fake::{FakeAbilities, FakeFabric};
use skein_fabric::{HostRails, Rails, SharedEndpoint, test_process};
use skein_identity::{CipherPolicy, ClusterCa, Validity};

use crate::fake::{FAKE_CAPS, FakeNetwork};
use crate::link::{
    BufferSource, Caps, Connection, Dial, Link, LinkEnd, LinkError, Message, PacketProbe, Pending, Position, Reader,
    Shutdown,
};
use crate::listen::{Listeners, Security};
use crate::pieces::Patience;
use crate::rdma;
use crate::tcp::{TcpLink, TcpListeners, TlsLink};

const PATIENCE: Duration = Duration::from_secs(60);
const HEAD_BYTES: usize = 8;

/// A link, what accepts its connections, and the address.
struct Bench {
    name: &'static str,
    link: Box<dyn Link>,
    listeners: Arc<dyn Listeners>,
    security: Security,
    at: SocketAddr,
    /// The rail that connections move to after their handshake.
    rail: Option<Rail>,
}

#[derive(Clone)]
enum Rail {
    Fake(FakeFabric),
    /// libfabric's over TCP.
    Real,
}

impl Rail {
    fn endpoint(&self) -> SharedEndpoint {
        match self {
            Rail::Fake(fabric) => fabric.endpoint(),
            Rail::Real => {
                let rails =
                    HostRails::of_providers(test_process::words(module_path!(), ""), vec!["tcp;ofi_rxm".into()]);
                rails.endpoint([127, 0, 0, 1].into()).unwrap().unwrap()
            }
        }
    }
}

/// Is no test, but what the processes of rails are.
#[test]
fn a_role() {
    test_process::serve_if_asked();
}

fn benches() -> Vec<Bench> {
    let ca = ClusterCa::create("test").unwrap();
    let identities = ["a", "b"].map(|host| ca.issue(host, Validity::days(1)).unwrap());
    let tcp = |policy, name, security| {
        let [dials, accepts] = identities.clone().map(|identity| identity.with_ciphers(policy).unwrap());
        let link: Box<dyn Link> = match security {
            Security::Plain => Box::new(TcpLink),
            Security::Encrypted => Box::new(TlsLink::new(skein_identity::client_config(&dials))),
        };
        let listeners = TcpListeners::new(skein_identity::server_config(&accepts));
        let port = listeners.listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let at = ([127, 0, 0, 1], port).into();
        Bench { name, link, listeners: Arc::new(listeners), security, at, rail: None }
    };
    let fake = |name, ordered| {
        let network = FakeNetwork::new(Caps { ordered, ..FAKE_CAPS }, 7);
        let [a, b] = [("a", 1), ("b", 2)].map(|(host, last)| network.host(host, &[("eth0", [10, 0, 0, last].into())]));
        let listeners = b.listeners();
        let port = listeners.listen("0.0.0.0:0".parse().unwrap(), None).unwrap();
        let (link, security) = (Box::new(a.link(Security::Encrypted)), Security::Encrypted);
        Bench { name, link, listeners: Arc::new(listeners), security, at: ([10, 0, 0, 2], port).into(), rail: None }
    };
    vec![
        tcp(CipherPolicy::Auto, "TCP", Security::Plain),
        tcp(CipherPolicy::AesGcm, "TLS with AES-128-GCM", Security::Encrypted),
        tcp(CipherPolicy::Aegis, "TLS with AEGIS-128X2", Security::Encrypted),
        fake("fake", true),
        fake("fake without order", false),
        Bench { rail: faked(true, false), ..tcp(CipherPolicy::Auto, "RDMA", Security::Plain) },
        Bench { rail: faked(true, true), ..tcp(CipherPolicy::AesGcm, "RDMA with AES-128-GCM", Security::Encrypted) },
        Bench { rail: faked(false, false), ..tcp(CipherPolicy::Aegis, "RDMA with AEGIS-128X2", Security::Encrypted) },
        Bench {
            rail: Some(Rail::Real),
            ..tcp(CipherPolicy::AesGcm, "RDMA over libfabric with AES-128-GCM", Security::Encrypted)
        },
    ]
}

/// Returns a fabric whose writes carry immediate data or not, and whose operations end in order or not.
fn faked(immediates: bool, ordered: bool) -> Option<Rail> {
    Some(Rail::Fake(FakeFabric::new(FakeAbilities { immediates, ordered }, 7)))
}

impl Bench {
    fn to(&self, patience: Duration) -> Dial {
        Dial { from: None, to: self.at, packet_bytes: None, answer_time: patience, handshake_time: patience }
    }

    /// Returns both ends of a connection during its handshake.
    fn dial(&self) -> (Box<dyn Pending>, Box<dyn Pending>) {
        let (listeners, security) = (self.listeners.clone(), self.security);
        let accepting = thread::spawn(move || {
            let mut incoming = listeners.accept(PATIENCE).unwrap();
            incoming.remove(0).unwrap().open(security, PATIENCE).unwrap()
        });
        let dialled = self.link.dial(&self.to(PATIENCE)).unwrap();
        (dialled, accepting.join().unwrap())
    }

    fn connect(&self) -> (Connection, Connection) {
        let (a, b) = self.dial();
        thread::scope(|scope| {
            let other = scope.spawn(|| split(b, self.rail.as_ref()));
            (split(a, self.rail.as_ref()), other.join().unwrap())
        })
    }

    /// Returns what the link's connections promise.
    fn caps(&self) -> Caps {
        let caps = self.link.caps();
        self.rail.as_ref().map_or(caps, |_| rdma::caps(caps))
    }
}

/// Takes a connection apart, on a rail if it moves to one.
fn split(pending: Box<dyn Pending>, rail: Option<&Rail>) -> Connection {
    match rail {
        Some(rail) => rdma::split(pending, rail.endpoint()).unwrap(),
        None => pending.split().unwrap(),
    }
}

/// Memory from the allocator.
struct Heap;

impl BufferSource for Heap {
    fn filled(&self, bytes: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<(), LinkEnd>) -> Result<Bytes, LinkEnd> {
        let mut buffer = vec![0; bytes];
        fill(&mut buffer)?;
        Ok(buffer.into())
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect()
}

/// Returns a message whose head holds the number of bytes of its body. The body is in two buffers and an empty one.
fn message(body: &[u8]) -> Message {
    let (x, y) = body.split_at(body.len() / 3);
    let head = Bytes::copy_from_slice(&(body.len() as u64).to_be_bytes());
    Message { head, body: [x, &[], y].map(Bytes::copy_from_slice).into() }
}

fn receive(reader: &mut dyn Reader) -> Result<(Position, Bytes), LinkEnd> {
    let mut head = [0; HEAD_BYTES];
    let position = reader.read_head(&mut head)?;
    let body = reader.read_body(u64::from_be_bytes(head) as usize, &Heap)?;
    Ok((position, body))
}

/// The handshake's messages and what follows them arrive whole and in their places, however the reads fall.
#[test]
fn messages_arrive_before_and_after_the_split() {
    for bench in benches() {
        let (mut a, mut b) = bench.dial();
        assert_eq!(b.peer(), bench.link.caps().encrypted.then_some("a"));
        assert_eq!((a.caps(), b.caps()), (bench.link.caps(), bench.link.caps()));
        a.send(b"hello").unwrap();
        let mut hello = [0; 5];
        b.receive(&mut hello).unwrap();
        assert_eq!(&hello, b"hello");
        b.send(b"welcome").unwrap();
        let rail = bench.rail.clone();
        let to_a = thread::spawn(move || split(b, rail.as_ref()));
        let data = pattern(1_000_003);
        let sent = data.clone();
        let ciphers = ["TLS with ", "RDMA with ", "RDMA over libfabric with "]
            .iter()
            .find_map(|kind| bench.name.strip_prefix(kind));
        // The message goes right behind the welcome, before the other end has read the welcome.
        let sending = thread::spawn(move || {
            // The reader reads everything, up to the end of the connection.
            let mut to_a = to_a.join().unwrap();
            assert_eq!(to_a.cipher, ciphers);
            for pieces in sent.chunks(100_000) {
                let mut messages = pieces.chunks(33_000).map(message).collect();
                to_a.writer.push(&mut messages).unwrap();
                assert!(messages.is_empty());
                while !to_a.writer.flush(Patience::Try).unwrap() {
                    to_a.writer.flush(Patience::Wait).unwrap();
                }
            }
        });
        thread::sleep(Duration::from_millis(20));
        let mut welcome = [0; 7];
        a.receive(&mut welcome).unwrap();
        assert_eq!(&welcome, b"welcome");
        let mut from_b = split(a, bench.rail.as_ref());
        let lengths = || data.chunks(100_000).flat_map(|pieces| pieces.chunks(33_000));
        let (mut received, mut next, mut late) = (vec![0; data.len()], 0, 0);
        for _ in lengths() {
            let (position, body) = receive(&mut *from_b.reader).unwrap_or_else(|end| panic!("{}: {end:?}", bench.name));
            let position = match position {
                Position::Next => next,
                Position::At(position) => position as usize,
            };
            late += usize::from(position < next);
            next = next.max(position + HEAD_BYTES + body.len());
            // The position is behind so many messages, each with its head.
            let before = lengths().scan(0, |end, piece| {
                *end += HEAD_BYTES + piece.len();
                Some(*end)
            });
            let at = position - HEAD_BYTES * before.take_while(|end| *end <= position).count();
            received[at..at + body.len()].copy_from_slice(&body);
        }
        assert!(received == data, "{}", bench.name);
        // A rail promises no order, and has one where nothing takes it away.
        assert!(late == 0 || !bench.caps().ordered, "{}: {late} messages were overtaken", bench.name);
        assert!(late > 0 || bench.name != "fake without order");
        sending.join().unwrap();
        assert!(matches!(receive(&mut *from_b.reader), Err(LinkEnd::Closed)), "{}", bench.name);
    }
}

/// Returns how a waiting reader ends: at the end that ends the connection, and at the other.
fn ends(bench: &Bench, end: fn(&dyn Shutdown)) -> (LinkEnd, LinkEnd) {
    let (a, mut b) = bench.connect();
    let Connection { mut reader, writer, shutdown, .. } = a;
    let waiting = thread::spawn(move || receive(&mut *reader).unwrap_err());
    thread::sleep(Duration::from_millis(20));
    end(&*shutdown);
    let here = waiting.join().unwrap();
    drop((writer, shutdown));
    (here, receive(&mut *b.reader).unwrap_err())
}

#[test]
fn an_end_in_order_differs_from_giving_up() {
    for bench in benches() {
        let closed = ends(&bench, |end| end.close());
        assert!(matches!(closed, (LinkEnd::Closed, LinkEnd::Closed)), "{}: {closed:?}", bench.name);
        let given_up = ends(&bench, |end| end.abort());
        assert!(matches!(given_up, (LinkEnd::GivenUp, LinkEnd::Reset)), "{}: {given_up:?}", bench.name);
    }
}

/// The last words of an end arrive though the other end still sends. An end that says goodbye needs that.
#[test]
fn last_words_arrive_if_the_end_that_says_them_reads_on() {
    for bench in benches() {
        let (mut a, mut b) = bench.connect();
        b.writer.push(&mut vec![message(b"still sent")]).unwrap();
        assert!(b.writer.flush(Patience::Wait).unwrap());
        a.writer.push(&mut vec![message(b"goodbye")]).unwrap();
        assert!(a.writer.flush(Patience::Wait).unwrap());
        a.shutdown.finish();
        b.writer.push(&mut vec![message(b"sent after the end")]).unwrap();
        assert!(b.writer.flush(Patience::Wait).unwrap(), "{}", bench.name);
        assert_eq!(&receive(&mut *b.reader).unwrap().1[..], b"goodbye", "{}", bench.name);
        let end = receive(&mut *b.reader).unwrap_err();
        assert!(matches!(end, LinkEnd::Closed), "{}: {end:?}", bench.name);
        let mut heard = [0; 2].map(|_| receive(&mut *a.reader).unwrap().1);
        heard.sort_unstable();
        assert_eq!(heard, [&b"sent after the end"[..], b"still sent"], "{}", bench.name);
        b.shutdown.close();
        let end = receive(&mut *a.reader).unwrap_err();
        assert!(matches!(end, LinkEnd::Closed), "{}: {end:?}", bench.name);
    }
}

/// Both halves find the same end, whichever finds it first. The reader finds the last words before.
#[test]
fn a_writer_finds_that_the_peer_ended_the_connection_and_the_reader_reads_what_is_there() {
    for bench in benches() {
        let (mut a, mut b) = bench.connect();
        a.writer.push(&mut vec![message(b"goodbye")]).unwrap();
        assert!(a.writer.flush(Patience::Wait).unwrap());
        drop(a);
        // The loop ends when the other end's kernel has answered what nobody reads.
        let end = loop {
            b.writer.push(&mut vec![message(b"unread")]).unwrap();
            if let Err(end) = b.writer.flush(Patience::Wait) {
                break end;
            }
            thread::sleep(Duration::from_millis(1));
        };
        assert!(end.is_by_peer(), "{}: {end:?}", bench.name);
        assert_eq!(&receive(&mut *b.reader).unwrap().1[..], b"goodbye", "{}", bench.name);
        let end = receive(&mut *b.reader).unwrap_err();
        assert!(end.is_by_peer(), "{}: {end:?}", bench.name);
    }
}

#[test]
fn giving_up_frees_a_writer_that_waits_for_room() {
    for bench in benches() {
        let (a, _silent) = bench.connect();
        let Connection { mut writer, shutdown, reader: _reader, .. } = a;
        let waiting = thread::spawn(move || {
            loop {
                writer.push(&mut vec![message(&[0; 100_000])]).unwrap();
                if let Err(error) = writer.flush(Patience::Wait) {
                    return error;
                }
            }
        });
        thread::sleep(Duration::from_millis(100));
        shutdown.abort();
        waiting.join().unwrap();
    }
}

#[test]
fn a_writer_is_told_that_there_is_no_room() {
    for bench in benches() {
        let (mut a, mut b) = bench.connect();
        let mut sent = 0;
        let mut full = 0;
        // A link may be full for a moment. A link that is full whenever it is asked has no room.
        while full < 100 {
            if a.writer.flush(Patience::Try).unwrap() {
                a.writer.push(&mut vec![message(&[7; 100_000])]).unwrap();
                (sent, full) = (sent + 1, 0);
            } else {
                full += 1;
            }
        }
        let reading = thread::spawn(move || (0..sent).for_each(|_| drop(receive(&mut *b.reader).unwrap())));
        assert!(a.writer.flush(Patience::Wait).unwrap(), "{}", bench.name);
        reading.join().unwrap();
    }
}

#[test]
fn a_silent_end_costs_only_the_patience() {
    for bench in benches() {
        let (mut a, _silent) = match bench.link.dial(&bench.to(Duration::from_millis(50))) {
            Ok(pending) => (pending, bench.listeners.accept(PATIENCE).unwrap()),
            // Under TLS the other end would have to speak first.
            Err(error) => {
                assert!(matches!(error, LinkError::Late(_)), "{}: {error}", bench.name);
                continue;
            }
        };
        let error = a.receive(&mut [0]).unwrap_err();
        assert!(matches!(error, LinkError::Late(_)), "{}: {error}", bench.name);
    }
}

#[test]
fn where_nobody_listens_a_dial_is_refused() {
    for bench in benches() {
        bench.listeners.close();
        // A port over TCP is held, so that no other program listens there.
        let held = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        if bench.at.ip().is_loopback() {
            let _ = held.bind(&bench.at.into());
        }
        let error = bench.link.dial(&bench.to(PATIENCE)).err().unwrap();
        assert!(error.is_refused(), "{}: {error}", bench.name);
        assert_eq!(error.to_string(), format!("cannot connect to {}", bench.at));
    }
}

#[test]
fn a_probe_comes_back_as_it_went() {
    for bench in benches() {
        let listeners = bench.listeners.clone();
        let answering = thread::spawn(move || {
            let incoming = listeners.accept(PATIENCE).unwrap().remove(0).unwrap();
            assert_eq!(incoming.first_byte(PATIENCE), Some(4));
            let mut pending = incoming.open(Security::Plain, PATIENCE).unwrap();
            let mut probe = [0; 500];
            pending.receive(&mut probe).unwrap();
            pending.send(&probe).unwrap();
        });
        let probe = |most: usize| [4].into_iter().chain([0; 499]).take(most).collect();
        let found = bench.link.probe(&bench.to(PATIENCE), &probe, PATIENCE).unwrap();
        assert!(matches!(found, PacketProbe::Whole { .. }), "{}: {found:?}", bench.name);
        answering.join().unwrap();
    }
}

/// Tests of the fake alone: what a test can make it do.
mod of_the_fake {
    use std::net::IpAddr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn what_is_stalled_moves_when_it_is_resumed_and_loses_resets() {
        let network = FakeNetwork::new(FAKE_CAPS, 1);
        let (mut a, b) = network.connect(HERE, THERE);
        let (mut c, d) = network.connect(HERE, THERE);
        network.stall(THERE, HERE);
        a.writer.push(&mut vec![message(b"later")]).unwrap();
        a.writer.flush(Patience::Wait).unwrap();
        c.shutdown.abort();
        assert!(matches!(receive(&mut *c.reader), Err(LinkEnd::GivenUp)));
        a.shutdown.close();
        let reading = thread::spawn(move || {
            let mut b = b;
            (receive(&mut *b.reader), receive(&mut *b.reader))
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!reading.is_finished());
        network.resume(HERE, THERE);
        let (first, then) = reading.join().unwrap();
        assert_eq!(&first.unwrap().1[..], b"later");
        assert!(matches!(then, Err(LinkEnd::Closed)));
        // The reset was lost. Another end is still there.
        let silent = thread::spawn(move || {
            let mut d = d;
            receive(&mut *d.reader).unwrap_err()
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!silent.is_finished());
        network.reset(HERE, THERE);
        assert!(matches!(silent.join().unwrap(), LinkEnd::Reset));
        drop((a, c));
        assert_eq!(network.connections(HERE, THERE), 0);
    }

    #[test]
    fn a_cable_that_is_out_and_packets_that_are_lost_are_found() {
        let network = FakeNetwork::new(FAKE_CAPS, 1);
        let a = network.host("a", &[("eth0", HERE)]);
        let b = network.host("b", &[("eth0", THERE)]).listeners();
        let at = SocketAddr::new(THERE, b.listen("0.0.0.0:0".parse().unwrap(), None).unwrap());
        let to = Dial { from: None, to: at, packet_bytes: None, answer_time: PATIENCE, handshake_time: PATIENCE };
        let link = a.link(Security::Plain);
        network.cut(THERE);
        let error = link.dial(&to).err().unwrap();
        assert!(matches!(&error, LinkError::Dial(_)) && !error.is_refused(), "{error}");
        network.mend(THERE);
        link.dial(&to).unwrap();
        network.lose_packets_above(HERE, THERE, Some(1400));
        let probe = |most| vec![4; most];
        assert_eq!(link.probe(&to, &probe, PATIENCE).unwrap(), PacketProbe::Lost);
        let small = Dial { packet_bytes: Some(1400), ..to };
        let unanswered = link.probe(&small, &probe, Duration::from_millis(10)).unwrap();
        assert_eq!(unanswered, PacketProbe::Unanswered);
    }
}

/// Tests of RDMA alone: what a rail or a peer does that breaks a connection.
mod of_rails {
    use skein_fabric::{Completion, FabricError};

    use super::*;

    fn bench(fabric: &FakeFabric) -> Bench {
        let found = benches().into_iter().find(|bench| bench.name == "RDMA").unwrap();
        Bench { rail: Some(Rail::Fake(fabric.clone())), ..found }
    }

    fn fabric() -> FakeFabric {
        FakeFabric::new(FakeAbilities { immediates: true, ordered: false }, 3)
    }

    /// Returns how the reader and the writer of an end find the connection's end.
    fn found(end: Connection) -> [LinkEnd; 2] {
        let Connection { mut reader, mut writer, shutdown: _shutdown, .. } = end;
        let read = receive(&mut *reader).unwrap_err();
        let written = loop {
            if let Err(end) = writer.push(&mut vec![message(b"late")]).and_then(|()| writer.flush(Patience::Wait)) {
                break end;
            }
        };
        [read, written]
    }

    #[test]
    fn a_rail_that_is_cut_fails_at_the_end_that_uses_it() {
        let fabric = fabric();
        let (mut a, _b) = bench(&fabric).connect();
        fabric.cut();
        a.writer.push(&mut vec![message(b"lost")]).unwrap();
        let _ = a.writer.flush(Patience::Try);
        let ends = found(a);
        assert!(matches!(ends, [LinkEnd::Failed(_), LinkEnd::Failed(_)]), "{ends:?}");
    }

    #[test]
    fn what_no_provider_and_no_peer_may_say_ends_the_connection() {
        let why = FabricError::Misbehaves("a completion that failed".into());
        for lie in [
            // No slot has the number, and nothing was written into the slot that has.
            Completion::Written { token: None, immediate: 64 },
            Completion::Written { token: None, immediate: u32::MAX },
            Completion::Written { token: None, immediate: 3 },
            // Nothing of these was begun.
            Completion::Done { token: 5 },
            Completion::Done { token: u64::MAX },
            Completion::Received { token: 1 << 16, bytes: 1 << 40 },
            Completion::Received { token: 2 << 16, bytes: 3 },
            Completion::Failed { token: None, why },
        ] {
            let fabric = fabric();
            let (a, b) = bench(&fabric).connect();
            fabric.lie(&lie);
            for end in [a, b] {
                let ends = found(end);
                // One of both ends may find the other gone.
                let is_over = |end: &LinkEnd| matches!(end, LinkEnd::Failed(_)) || end.is_by_peer();
                assert!(ends.iter().all(is_over), "{lie:?}: {ends:?}");
            }
        }
    }

    #[test]
    fn a_writer_whose_rail_is_stuck_waits_until_it_is_given_up() {
        let fabric = fabric();
        let (a, _b) = bench(&fabric).connect();
        fabric.get_stuck();
        let Connection { mut writer, shutdown, reader: _reader, .. } = a;
        let writing = thread::spawn(move || {
            loop {
                writer.push(&mut vec![message(&[0; 100_000])]).unwrap();
                if let Err(end) = writer.flush(Patience::Wait) {
                    return end;
                }
            }
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!writing.is_finished());
        shutdown.abort();
        assert!(matches!(writing.join().unwrap(), LinkEnd::GivenUp));
    }

    #[test]
    fn rails_that_do_not_join_are_told() {
        let other_kind = faked(false, false).unwrap();
        let bench = bench(&fabric());
        let (a, b) = bench.dial();
        let other = thread::spawn(move || rdma::split(b, other_kind.endpoint()).err().unwrap().to_string());
        let here = rdma::split(a, bench.rail.as_ref().unwrap().endpoint()).err().unwrap().to_string();
        let there = other.join().unwrap();
        assert_eq!(here, "the rails of both ends are of different kinds: fake here, fake without immediates there");
        assert_eq!(there, "the rails of both ends are of different kinds: fake without immediates here, fake there");
    }
}
