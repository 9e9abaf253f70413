//! Connecting the streams of a session to unix sockets of this host.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use skein_transfer::{Incoming, Live, ResetCode};
use socket2::{Domain, SockAddr, Socket, Type};
use tracing::info;

use crate::{Allow, AllowError};

/// A stream waits this long for its first bytes before its target is connected.
///
/// QEMU from 8.0 peeks at each new connection and blocks until four bytes are there, so they should be
/// there; but a postcopy preempt channel stays empty, and other servers speak first.
const FIRST_BYTES_TIME: Duration = Duration::from_millis(50);
/// A socket that is not there yet, or does not accept, may come up until then.
const CONNECT_TIME: Duration = Duration::from_secs(3);
const CONNECT_PAUSE: Duration = Duration::from_millis(10);
/// Different targets of one session.
const TARGETS_MAX: usize = 256;
/// Streams that wait for one target.
const WAITING_MAX: usize = 512;

/// Connects streams as they come, each target's in the order they were opened in; returns when the session
/// ends.
pub(crate) fn serve(live: &Arc<Live>, streams: Receiver<Incoming>, allow: &Allow) {
    let mut queues: HashMap<String, SyncSender<Incoming>> = HashMap::new();
    for incoming in streams {
        if let Err(error) = allow.check(&incoming.target) {
            info!(peer = live.peer(), "refused: {error}");
            let code = match error {
                AllowError::NotAllowed { .. } => ResetCode::NotAllowed,
                _ => ResetCode::NoTarget,
            };
            live.reset(incoming.stream, code, &error.to_string());
            continue;
        }
        if queues.len() >= TARGETS_MAX && !queues.contains_key(&incoming.target) {
            live.reset(incoming.stream, ResetCode::Busy, "too many different targets in one session");
            continue;
        }
        let queue = queues.entry(incoming.target.clone()).or_insert_with(|| {
            let (queue, waiting) = sync_channel::<Incoming>(WAITING_MAX);
            let live = live.clone();
            let work = move || waiting.into_iter().for_each(|incoming| attach(&live, &incoming));
            // Without a thread the queue has no other end: what is sent to it fails, and the stream is reset.
            let _ = thread::Builder::new().name("target".into()).spawn(work);
            queue
        });
        let stream = incoming.stream;
        if queue.try_send(incoming).is_err() {
            live.reset(stream, ResetCode::Busy, "too many connections wait for that target");
        }
    }
}

fn attach(live: &Arc<Live>, incoming: &Incoming) {
    let waited = incoming.since.elapsed();
    live.wait_readable(incoming.stream, FIRST_BYTES_TIME.saturating_sub(waited));
    match connect(live, incoming) {
        Ok(socket) => {
            info!(peer = live.peer(), stream = incoming.stream.0, "connected to {}", incoming.target);
            live.join(incoming.stream, socket);
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
        Err(error) => {
            let hint = match error.kind() {
                io::ErrorKind::NotFound => " (is the target started, with -incoming unix:PATH?)",
                io::ErrorKind::ConnectionRefused => " (nobody listens on it)",
                io::ErrorKind::PermissionDenied => " (the agent's user may not connect to it)",
                io::ErrorKind::TimedOut => " (its program does not accept connections)",
                _ => "",
            };
            let reason = format!("cannot connect to {} on that host: {error}{hint}", incoming.target);
            info!(peer = live.peer(), "{reason}");
            live.reset(incoming.stream, ResetCode::NoTarget, &reason);
        }
    }
}

/// Connects without blocking for ever on a full backlog.
fn connect(live: &Live, incoming: &Incoming) -> io::Result<UnixStream> {
    let address = SockAddr::unix(&incoming.target)?;
    // Counted from when it was opened: those behind it do not wait once more for the same.
    let deadline = incoming.since + CONNECT_TIME;
    loop {
        // One stray connection makes an incoming QEMU exit: nobody connects for a stream that is dead, or whose
        // tunnel may be.
        if !live.wait_connected(incoming.stream) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        let error = match socket.connect(&address) {
            Ok(()) => {
                socket.set_nonblocking(false)?;
                return Ok(UnixStream::from(std::os::fd::OwnedFd::from(socket)));
            }
            Err(error) => error,
        };
        let may_come = matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock
        );
        if !may_come {
            return Err(error);
        }
        if Instant::now() >= deadline {
            let full = error.kind() == io::ErrorKind::WouldBlock;
            return Err(if full { io::ErrorKind::TimedOut.into() } else { error });
        }
        thread::sleep(CONNECT_PAUSE);
    }
}
