//! Is a connection's two threads, and sending on the connection from other threads.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use skein_host::{CoreList, stay_on};
use skein_link::{Caps, Connection, LinkEnd, Message, Patience, Position, Reader, Writer};
use skein_session::frame::{Frame, HEADER_BYTES, Header};
use skein_session::{
    ConnectionEnd, ConnectionId, ConnectionKind, Ended, PathId, ProtocolError, Session, StreamId, Transmit,
};
use thiserror::Error;
use tracing::{debug, warn};

use crate::egress::deliver_now;
use crate::running_session::{ConnectionHandle, ConnectionSender, PathInfo, RunningSession, spawn};

/// Says how many bytes of frames go out together, if there are so many. They share a record, a write and a wake-up of
/// the peer.
const BATCH_BYTES: u64 = 16 << 10;
/// Bounds the batches that a thread sends for others before it leaves the rest to the connection's own thread.
const BATCHES_MAX: usize = 4;

/// The reason why a session does not take a connection.
#[derive(Debug, Error)]
pub(crate) enum AddError {
    /// The peer has too many connections, or used a number twice.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The session has ended meanwhile.
    #[error("the session is over: {0}")]
    Ended(Ended),
    /// The link promises too little.
    #[error("its link is not reliable or has no flow control: {0:?}")]
    Unsuitable(Caps),
}

/// How far sending has come.
enum SendProgress {
    /// The session has nothing more to send.
    All,
    /// The socket takes no more, or it is another thread's turn.
    Some,
    /// The connection's key has protected enough.
    KeyUsedUp,
    /// The peer was told that the session is over.
    Goodbye,
}

impl RunningSession {
    /// Adds a connection that has shaken hands, and starts the connection's threads, which stay on the cores `near`.
    pub(crate) fn add_connection(
        self: &Arc<Self>,
        id: ConnectionId,
        path: PathId,
        kind: ConnectionKind,
        info: PathInfo,
        near: Option<CoreList>,
        connection: Connection,
    ) -> Result<(), AddError> {
        let Connection { caps, cipher, reader, writer, shutdown } = connection;
        if !caps.suit_sessions() {
            return Err(AddError::Unsuitable(caps));
        }
        let sender = ConnectionSender { writer: Mutex::new(writer), wake: Condvar::new() };
        let outlet = Arc::new(sender);
        let from_to = format!("{} > {}", info.nic, info.remote);
        self.with(|state, now| {
            if let Some(why) = state.core.ended() {
                return Err(AddError::Ended(why.clone()));
            }
            state.core.connection_up(now, id, path, kind)?;
            state.paths.insert(path, info);
            state.connections.insert(
                id,
                ConnectionHandle {
                    sender: outlet.clone(),
                    has_work: true,
                    shutdown,
                    path,
                    over_rdma: caps.one_sided,
                    since: Instant::now(),
                    failure: None,
                },
            );
            Ok(())
        })?;
        debug!(session = %self.id, connection = id.0, "{from_to} is protected by {}", cipher.unwrap_or("no cipher"));
        let live = self.clone();
        let near_receiver = near.clone();
        let work = move || {
            near.iter().for_each(stay_on);
            send(&live, id, &outlet);
        };
        let threads = spawn("sender", work).and_then(|sender| {
            let live = self.clone();
            spawn("receiver", move || {
                near_receiver.iter().for_each(stay_on);
                let down = receive(&live, id, reader);
                live.drop_connection(id, down);
                let _ = sender.join();
            })
        });
        if let Err(error) = threads {
            warn!(session = %self.id, "connection given up: {error}");
            self.drop_connection(id, ConnectionEnd::Failed);
        }
        Ok(())
    }
}

/// Submits bytes of a stream to the session, all at once, and sends them if a connection waits for some.
pub(crate) fn submit(live: &RunningSession, id: StreamId, parts: impl IntoIterator<Item = Bytes>) {
    let free = {
        let mut state = live.lock();
        state.core.send_parts(live.now(), id, parts);
        live.dispatch_but_send(&mut state)
    };
    if let Some((connection, sender)) = free {
        send_now(live, connection, &sender);
    }
}

/// Sends what the session has for a connection without waiting for anything, while the bytes are in the core's cache.
/// The connection's own thread sends what the socket does not take at once.
fn send_now(live: &RunningSession, id: ConnectionId, sender: &ConnectionSender) {
    let sent = match sender.writer.try_lock() {
        Some(mut writer) => pump(live, id, &mut **writer, Patience::Try),
        None => Ok(SendProgress::Some),
    };
    match sent {
        Ok(SendProgress::All) => {}
        Ok(SendProgress::Some | SendProgress::KeyUsedUp | SendProgress::Goodbye) => live.lock().wake_connection(id),
        Err(end) => cannot_send(live, id, &end),
    }
}

/// Sends what the session has for the connection, until the connection is gone.
fn send(live: &RunningSession, id: ConnectionId, outlet: &ConnectionSender) {
    while wait_for_work(live, id, outlet) {
        let sent = pump(live, id, &mut **outlet.writer.lock(), Patience::Wait);
        match sent {
            Ok(SendProgress::All | SendProgress::Some) => {}
            Ok(SendProgress::KeyUsedUp) => return live.retire_connection(id),
            // The receiver goes on: closing a socket on which the peer still sends may lose the goodbye.
            Ok(SendProgress::Goodbye) => return live.finish_sending(id),
            Err(end) => return cannot_send(live, id, &end),
        }
    }
}

/// Drops a connection that takes nothing more, unless the peer ended it. The receiver finds that end, too, but first
/// what the peer said last: its goodbye, perhaps.
fn cannot_send(live: &RunningSession, id: ConnectionId, end: &LinkEnd) {
    live.log_failure(id, "send", end);
    if !end.is_by_peer() {
        live.drop_connection(id, ConnectionEnd::Failed);
    }
}

/// Waits until there may be something to send. Returns false if the connection is gone.
fn wait_for_work(live: &RunningSession, id: ConnectionId, outlet: &ConnectionSender) -> bool {
    let mut state = live.lock();
    loop {
        let over = state.core.ended().is_some();
        let Some(handle) = state.connections.get_mut(&id) else { return false };
        if std::mem::take(&mut handle.has_work) || over {
            return true;
        }
        let now = live.now();
        match state.core.transmit_at(id) {
            Some(at) if at <= now => return true,
            Some(at) => drop(outlet.wake.wait_for(&mut state, at - now)),
            None => outlet.wake.wait(&mut state),
        }
    }
}

/// Sends what the session has for the connection. Frames have to go out in the order in which they are polled, so the
/// caller has the writer all the while.
fn pump(
    live: &RunningSession,
    id: ConnectionId,
    writer: &mut dyn Writer,
    patience: Patience,
) -> Result<SendProgress, LinkEnd> {
    let mut batch = Vec::new();
    if !writer.flush(patience)? {
        return Ok(SendProgress::Some);
    }
    let batches = match patience {
        Patience::Try => BATCHES_MAX,
        Patience::Wait => usize::MAX,
    };
    for _ in 0..batches {
        let over = {
            let mut state = live.lock();
            let over = state.core.ended().map(ToString::to_string);
            match &over {
                Some(_) if patience == Patience::Try => return Ok(SendProgress::Some),
                Some(why) => batch.push(message(Session::bye(0, why))),
                // This comes before the check for something to send: other threads may find that first each time.
                None if writer.key_is_used_up() => return Ok(SendProgress::KeyUsedUp),
                None => poll(live, &mut state.core, id, &mut batch),
            }
            live.dispatch(&mut state);
            over.is_some()
        };
        if batch.is_empty() {
            return Ok(SendProgress::All);
        }
        writer.push(&mut batch)?;
        if !writer.flush(patience)? {
            return Ok(SendProgress::Some);
        }
        if over {
            return Ok(SendProgress::Goodbye);
        }
    }
    Ok(SendProgress::Some)
}

fn poll(live: &RunningSession, core: &mut Session, id: ConnectionId, batch: &mut Vec<Message>) {
    let now = live.now();
    let mut bytes = 0;
    while bytes < BATCH_BYTES
        && let Some(transmit) = core.poll_transmit(now, id)
    {
        bytes += transmit.header.frame_bytes();
        batch.push(message(transmit));
    }
}

/// Returns a frame as links carry it.
fn message(Transmit { header, payload }: Transmit) -> Message {
    Message { head: Bytes::copy_from_slice(&header.encode()), body: payload }
}

/// Gives the session every frame that arrives, and the stream's socket what a frame completes. Returns how the
/// connection ended.
fn receive(live: &Arc<RunningSession>, id: ConnectionId, mut reader: Box<dyn Reader>) -> ConnectionEnd {
    loop {
        match receive_one(live, id, &mut *reader) {
            Ok(true) => {}
            Ok(false) => return ConnectionEnd::Failed,
            Err(end) => {
                live.log_failure(id, "receive", &end);
                return match end {
                    LinkEnd::Closed => ConnectionEnd::Closed,
                    LinkEnd::Reset => ConnectionEnd::Reset,
                    LinkEnd::GivenUp | LinkEnd::Failed(_) => ConnectionEnd::Failed,
                };
            }
        }
    }
}

/// Receives one frame. Returns false if the connection is to end.
fn receive_one(live: &Arc<RunningSession>, id: ConnectionId, reader: &mut dyn Reader) -> Result<bool, LinkEnd> {
    let mut header = [0; HEADER_BYTES];
    let position = reader.read_head(&mut header)?;
    let header = Header::decode(&header).map_err(invalid)?;
    // The header's own check bounds the payload to a chunk.
    let payload = reader.read_body(header.len as usize, &live.pool)?;
    let frame = Frame::parse(header, payload).map_err(invalid)?;
    let readable = {
        let mut state = live.lock();
        if !state.connections.contains_key(&id) {
            return Ok(false);
        }
        let handled = match position {
            Position::Next => state.core.handle_frame(live.now(), id, &header, frame),
            Position::At(position) => state.core.handle_frame_at(live.now(), id, position, &header, frame),
        };
        if let Err(error) = handled {
            warn!(session = %live.id, peer = live.peer, "the peer broke the protocol: {error}");
        }
        let readable = live.dispatch_but_delivery(&mut state);
        if matches!(state.core.ended(), Some(Ended::ClosedByPeer { .. })) {
            return Ok(false);
        }
        // An end that has ended the session reads on, to the peer's end: see `Shutdown::finish` of links.
        readable
    };
    if let Some((stream, egress)) = readable {
        deliver_now(live, stream, &egress);
    }
    Ok(true)
}

fn invalid(error: skein_session::frame::FrameError) -> LinkEnd {
    LinkEnd::Failed(io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use skein_identity::{CipherPolicy, ClusterCa, Identity, Validity};
    use skein_link::{Dial, Link, Listeners, Security, TcpListeners, TlsLink};
    use skein_session::{Role, SessionId, Settings};

    use super::*;
    use crate::stream::StreamContent;

    const PATIENCE: Duration = Duration::from_secs(20);
    const PATH: PathId = PathId(0);

    /// Two sessions' ends in one process, and the identities for connections between them.
    struct Ends {
        dialling: Arc<RunningSession>,
        accepting: Arc<RunningSession>,
        identities: [Identity; 2],
    }

    impl Ends {
        /// Adds a connection under TLS whose keys at the dialling end are worn after so many records. One connection
        /// has AES-GCM, the next has AEGIS.
        fn connect(&self, id: ConnectionId, kind: ConnectionKind, worn_after: Option<u64>) {
            self.connect_near(id, kind, worn_after, None);
        }

        /// Connects as [`Self::connect`] does; the threads of both ends stay on the cores `near`.
        fn connect_near(
            &self,
            id: ConnectionId,
            kind: ConnectionKind,
            worn_after: Option<u64>,
            near: Option<CoreList>,
        ) {
            let policy = if id.0.is_multiple_of(2) { CipherPolicy::AesGcm } else { CipherPolicy::Aegis };
            let [dialling, accepting] = self.identities.clone().map(|identity| identity.with_ciphers(policy).unwrap());
            let listeners = TcpListeners::new(skein_identity::server_config(&accepting));
            let port = listeners.listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
            let to = ([127, 0, 0, 1], port).into();
            let accepting = thread::spawn(move || {
                let incoming = listeners.accept(PATIENCE).unwrap().remove(0).unwrap();
                (incoming.remote(), incoming.open(Security::Encrypted, PATIENCE).unwrap())
            });
            let link = TlsLink::new(skein_identity::client_config(&dialling));
            let link = worn_after.map_or(link.clone(), |records| link.retiring_after(records));
            let dial = Dial { from: None, to, packet_bytes: None, answer_time: PATIENCE, handshake_time: PATIENCE };
            let dialled = link.dial(&dial).unwrap();
            let (from, accepted) = accepting.join().unwrap();
            let info = PathInfo { nic: "lo".into(), local: from, remote: to };
            self.accepting
                .add_connection(id, PATH, kind, info.clone(), near.clone(), accepted.split().unwrap())
                .unwrap();
            self.dialling.add_connection(id, PATH, kind, info, near, dialled.split().unwrap()).unwrap();
        }
    }

    fn ends() -> (Ends, [std::sync::mpsc::Receiver<crate::IncomingStream>; 2]) {
        let ca = ClusterCa::create("test").unwrap();
        let identities = ["a", "b"].map(|host| ca.issue(host, Validity::days(1)).unwrap());
        let start = |role, peer: &str| {
            RunningSession::start(role, Settings::default(), SessionId([7; 16]), peer.into(), Vec::new(), None).unwrap()
        };
        let ((dialling, none), (accepting, streams)) = (start(Role::Dialer, "b"), start(Role::Acceptor, "a"));
        (Ends { dialling, accepting, identities }, [none, streams])
    }

    /// Returns how many threads of connections may run on these cores alone.
    fn threads_on(cores: &str) -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let is_on = |status: &String| {
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            ["sender", "receiver"].map(Some).contains(&field("Name:")) && field("Cpus_allowed_list:") == Some(cores)
        };
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok()).filter(is_on).count()
    }

    #[test]
    fn the_threads_of_a_connection_stay_near_its_nic() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
        let last = *allowed.parse::<CoreList>().unwrap().0.last().unwrap();
        if allowed == last.to_string() {
            // With one core there is nothing to tell apart.
            return;
        }
        let (ends, _streams) = ends();
        ends.connect_near(ConnectionId(0), ConnectionKind::Control, None, Some(CoreList([last].into())));
        let wait_for = |wanted: usize| {
            let begun = Instant::now();
            while threads_on(&last.to_string()) != wanted {
                assert!(begun.elapsed() < PATIENCE, "{} threads are on core {last}", threads_on(&last.to_string()));
                thread::sleep(Duration::from_millis(5));
            }
        };
        wait_for(4);
        ends.connect(ConnectionId(1), ConnectionKind::Data, None);
        wait_for(4);
        ends.dialling.close("done");
        ends.accepting.close("done");
        wait_for(0);
    }

    /// A key that has protected enough ends its connection, and no byte is lost by that.
    #[test]
    fn worn_connections_are_replaced() {
        const WORN_AFTER: u64 = 256;
        let (ends, [_none, streams]) = ends();
        ends.connect(ConnectionId(0), ConnectionKind::Control, None);
        let (mut here, joined) = UnixStream::pair().unwrap();
        ends.dialling.open("there", joined.into(), StreamContent::Bytes).unwrap();
        let incoming = streams.recv_timeout(PATIENCE).unwrap();
        let (mut there, joined) = UnixStream::pair().unwrap();
        ends.accepting.join_socket(incoming.stream, joined, StreamContent::Bytes);
        there.set_read_timeout(Some(PATIENCE)).unwrap();

        let data: Vec<u8> = (0..24_000_000u32).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect();
        let sent = data.clone();
        let sending = thread::spawn(move || {
            here.write_all(&sent).unwrap();
            here.shutdown(std::net::Shutdown::Write).unwrap();
            here
        });
        let receiving = thread::spawn(move || {
            let mut received = Vec::new();
            there.read_to_end(&mut received).map(|_| received)
        });
        // The dialer does so, too, whenever a connection is missing.
        let (mut made, begun) = (BTreeSet::new(), Instant::now());
        while !receiving.is_finished() {
            assert!(begun.elapsed() < 3 * PATIENCE, "{} connections, and no end", made.len());
            if ends.dialling.path_connections(PATH).1 == 0 {
                let id = ConnectionId(1 + made.len() as u32);
                ends.connect(id, ConnectionKind::Data, Some(WORN_AFTER));
                made.insert(id);
            }
            thread::sleep(Duration::from_millis(1));
        }
        assert!(receiving.join().unwrap().unwrap() == data);
        drop(sending.join().unwrap());
        // Until that is noticed, a batch more has records: of less than a batch, and of a chunk.
        let records = |bytes: u64| bytes.div_ceil(1 << 14);
        let most = WORN_AFTER + records(BATCH_BYTES) + records(skein_session::limits::CHUNK_BYTES_MAX as u64) + 2;
        let least = records(data.len() as u64) / most;
        assert!(made.len() as u64 >= least && least > 3, "{} connections, not {least} or more", made.len());
        ends.dialling.close("done");
        ends.accepting.close("done");
    }
}
