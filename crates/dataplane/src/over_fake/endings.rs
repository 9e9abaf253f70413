//! Tests how sessions end, and that the other end learns of it.

use std::sync::Condvar;

use bytes::Bytes;
use skein_link::{
    BufferSource, Connection, LinkEnd, Message, Patience, Position, Reader, Shutdown as LinkShutdown, Writer,
};
use skein_session::limits::{OUTAGE_TIME_DEFAULT, PEER_CLOSED_WAIT};
use skein_session::{ConnectionId, ConnectionKind, PathId, Role, Session, SessionId, Settings};

use super::*;
use crate::running_session::PathInfo;

/// Says after how long a peer that is not found to be gone counts as out of reach.
const GONE_TIME: Duration = Duration::from_secs(3);

/// Either end says goodbye, with however much on its way in both directions.
#[test]
fn a_goodbye_from_either_end_ends_the_other_at_once() {
    for (caps, closing) in links().into_iter().flat_map(|caps| [(caps, 0), (caps, 1)]) {
        for paths in [1, 2] {
            let joined = Joined::new(paths, caps);
            let [here, there] = joined.connect(0);
            let writers = [write_on(&here), write_on(&there)];
            let readers = [&here, &there].map(|socket| {
                let mut socket = socket.try_clone().unwrap();
                thread::spawn(move || while socket.read(&mut [0; 65536]).is_ok_and(|n| n > 0) {})
            });
            wait_until("data flows", || joined.sent_bytes().values().sum::<u64>() > 300_000);
            joined.ends()[closing].close("done");
            let (why, took) = ended(joined.ends()[1 - closing]);
            assert!(matches!(&why, Ended::ClosedByPeer { code: 0, .. }), "{why:?} {took:?}");
            assert!(took < AT_ONCE, "{took:?}");
            assert_eq!(joined.ends()[closing].ended(), Some(Ended::Closed));
            // What the session carried ends, too.
            writers.into_iter().chain(readers).for_each(|thread| thread.join().unwrap());
            let connections = |path| joined.hosts.network.connections(ip(path, 1), ip(path, 2));
            wait_until("no connection is left", || (0..paths).all(|path| connections(path) == 0));
        }
    }
}

#[test]
fn both_ends_may_say_goodbye() {
    let joined = Joined::new(2, FAKE_CAPS);
    thread::scope(|scope| {
        for live in joined.ends() {
            scope.spawn(|| live.close("done"));
        }
    });
    for live in joined.ends() {
        let (why, took) = ended(live);
        assert!(matches!(why, Ended::Closed | Ended::ClosedByPeer { .. }) && took < AT_ONCE, "{why:?} {took:?}");
    }
}

/// A killed process says nothing; its kernel closes what the process had.
#[test]
fn a_killed_end_ends_what_it_carried() {
    for (killed, caps) in links().into_iter().flat_map(|caps| [(0, caps), (1, caps)]) {
        // A connection that stalls on a busy machine when its end is killed looks like trouble of the network.
        let tries = (0..5).map(|_| kill_end(killed, caps));
        let others: Vec<Ended> = tries.take_while(|why| *why != Ended::PeerGone).collect();
        assert!(others.len() < 5, "{others:?}");
    }
}

/// Kills one end. Returns why the session ends at the other.
fn kill_end(killed: usize, caps: Caps) -> Ended {
    let joined = Joined::new(2, caps);
    let [here, there] = joined.connect(0);
    let left = joined.ends()[1 - killed];
    let writers = [write_on(&here), write_on(&there)];
    wait_until("data flows", || joined.sent_bytes().values().sum::<u64>() > 300_000);
    // A killed process neither dials nor listens any more.
    [&joined.hosts.a, &joined.hosts.b][killed].set_nics(Vec::new());
    (0..2).for_each(|path| joined.hosts.network.kill(ip(path, 1 + killed as u8)));
    wait_until("all connections are gone", || left.snapshot().paths.is_empty());
    left.skip(PEER_CLOSED_WAIT);
    let begun = Instant::now();
    wait_until("the session ends", || {
        if begun.elapsed() > GONE_TIME {
            left.skip(OUTAGE_TIME_DEFAULT);
        }
        left.ended().is_some()
    });
    let why = left.ended().unwrap();
    joined.ends()[killed].close("the test is over");
    writers.into_iter().for_each(|thread| thread.join().unwrap());
    why
}

#[test]
fn a_peer_out_of_reach_ends_the_session_after_the_outage() {
    let joined = Joined::new(2, FAKE_CAPS);
    let [here, there] = joined.connect(0);
    (0..2).for_each(|path| joined.hosts.cut(path));
    wait_for_loss(&joined);
    for live in joined.ends() {
        assert_eq!(live.ended(), None);
        live.skip(OUTAGE_TIME_DEFAULT);
        assert_eq!(ended(live).0, Ended::Outage(OUTAGE_TIME_DEFAULT));
    }
    assert_eq!((read(&here), read(&there)), (vec![], vec![]));
}

/// What the link does in [`a_goodbye_that_waits_behind_a_write_that_fails`].
#[derive(Default)]
struct Script {
    state: Mutex<ScriptState>,
    changed: Condvar,
}

#[derive(Default)]
struct ScriptState {
    has_failed: bool,
    was_read: bool,
    /// Whether this end has ended the connection.
    is_shut: bool,
}

struct Scripted(Arc<Script>);

impl Reader for Scripted {
    /// Returns the peer's goodbye, once a write has failed and the session has had the time to learn of the failure.
    fn read_head(&mut self, head: &mut [u8]) -> Result<Position, LinkEnd> {
        let state = self.0.state.lock().unwrap();
        let state = self.0.changed.wait_while(state, |state| !state.has_failed).unwrap();
        let waited = self.0.changed.wait_timeout_while(state, Duration::from_millis(50), |state| !state.is_shut);
        let mut state = waited.unwrap().0;
        if std::mem::replace(&mut state.was_read, true) {
            return Err(LinkEnd::Closed);
        }
        head.copy_from_slice(&Session::bye(3, "bye").header.encode());
        Ok(Position::Next)
    }

    fn read_body(&mut self, bytes: usize, buffers: &dyn BufferSource) -> Result<Bytes, LinkEnd> {
        buffers.filled(bytes, &mut |out| {
            out.copy_from_slice(b"bye");
            Ok(())
        })
    }
}

impl Writer for Scripted {
    fn push(&mut self, _: &mut Vec<Message>) -> Result<(), LinkEnd> {
        Ok(())
    }

    fn flush(&mut self, _: Patience) -> Result<bool, LinkEnd> {
        self.0.state.lock().unwrap().has_failed = true;
        self.0.changed.notify_all();
        Err(LinkEnd::Reset)
    }
}

impl LinkShutdown for Scripted {
    fn finish(&self) {}

    fn close(&self) {
        self.0.state.lock().unwrap().is_shut = true;
        self.0.changed.notify_all();
    }

    fn abort(&self) {
        self.close();
    }
}

/// The peer said goodbye and its kernel reset the connection, because this end still sent. The writer learns of the
/// reset before the reader has come to the goodbye.
#[test]
fn a_goodbye_that_waits_behind_a_write_that_fails() {
    let (live, _streams) =
        RunningSession::start(Role::Acceptor, Settings::default(), SessionId([7; 16]), "b".into(), Vec::new(), None)
            .unwrap();
    let script = Arc::new(Script::default());
    let connection = Connection {
        caps: FAKE_CAPS,
        cipher: None,
        reader: Box::new(Scripted(script.clone())),
        writer: Box::new(Scripted(script.clone())),
        shutdown: Box::new(Scripted(script)),
    };
    let (local, remote) = (SocketAddr::new(ip(0, 1), 0), SocketAddr::new(ip(0, 2), 0));
    let info = PathInfo { nic: "eth0".into(), local, remote };
    live.add_connection(ConnectionId(0), PathId(0), ConnectionKind::Control, info, None, connection).unwrap();
    let (why, took) = ended(&live);
    assert_eq!(why, Ended::ClosedByPeer { code: 3, reason: "bye".into() });
    assert!(took < AT_ONCE, "{took:?}");
}
