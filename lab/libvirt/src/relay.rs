//! A relay between a tunnel and a libvirt daemon, which reads the headers of libvirt's RPC as they pass.

use crate::{Error, io};
use socket2::SockRef;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A point in the finish phase of a migration, when the guest is paused on the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The call of FINISH has arrived and is not yet passed on: the guest runs nowhere.
    Call,
    /// The answer to FINISH has arrived and is not yet passed on: the guest runs behind the relay, and the side before
    /// it does not know.
    Answer,
}

/// Relays every connection made to one unix socket to another, and calls an action, once, at one [`Moment`]. What it
/// relays waits while the action runs. Dropping it closes everything and removes its socket.
#[derive(Debug)]
pub struct Relay {
    socket: PathBuf,
    listener: UnixListener,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

type Action = Box<dyn FnOnce() + Send>;

struct Shared {
    moment: Moment,
    action: Mutex<Option<Action>>,
    open: Mutex<Vec<UnixStream>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("moment", &self.moment).finish_non_exhaustive()
    }
}

impl Relay {
    /// Listens on `listen`, which must not exist yet, and connects to `to` for each connection.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the socket cannot be made.
    pub fn start(
        listen: &Path,
        to: &Path,
        moment: Moment,
        action: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let listener = UnixListener::bind(listen).map_err(io(format!("listen on {}", listen.display())))?;
        let shared = Arc::new(Shared { moment, action: Mutex::new(Some(Box::new(action))), open: Mutex::default() });
        let accepting = std::thread::spawn({
            let listener = listener.try_clone().map_err(io("duplicate a socket"))?;
            let (shared, to) = (shared.clone(), to.to_owned());
            move || accept(&listener, &to, &shared)
        });
        Ok(Self { socket: listen.to_owned(), listener, shared, accepting: Some(accepting) })
    }

    /// Returns whether the action has been called.
    pub fn acted(&self) -> bool {
        lock(&self.shared.action).is_none()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &UnixListener, to: &Path, shared: &Arc<Shared>) {
    let mut pumps = Vec::new();
    while let Ok((caller, _)) = listener.accept() {
        match pair(caller, to, shared) {
            Ok(threads) => pumps.extend(threads),
            // The caller sees its connection closed, as by a daemon that does not run.
            Err(error) => eprintln!("relay: {}: {error}", to.display()),
        }
    }
    // The listener was shut down.
    for stream in lock(&shared.open).drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
    for pump in pumps {
        let _ = pump.join();
    }
}

/// Joins a caller with the daemon, with one thread for each direction.
fn pair(caller: UnixStream, to: &Path, shared: &Arc<Shared>) -> std::io::Result<[JoinHandle<()>; 2]> {
    let daemon = UnixStream::connect(to)?;
    lock(&shared.open).extend([caller.try_clone()?, daemon.try_clone()?]);
    let serial = Arc::new(Mutex::new(None));
    let up = (caller.try_clone()?, daemon.try_clone()?, shared.clone(), serial.clone());
    let down = (daemon, caller, shared.clone(), serial);
    Ok([(Moment::Call, up), (Moment::Answer, down)].map(|(moment, (from, to, shared, serial))| {
        std::thread::spawn(move || {
            pump(&from, &to, moment, &shared, &serial);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        })
    }))
}

/// Passes whole messages on until either end closes. `serial` is that of the call of FINISH, once it was seen.
fn pump(mut from: &UnixStream, mut to: &UnixStream, way: Moment, shared: &Shared, serial: &Mutex<Option<u32>>) {
    while let Ok(message) = read_message(&mut from) {
        let header = Header::of(&message);
        let is_finish = match way {
            Moment::Call if header.is_finish_call() => {
                *lock(serial) = Some(header.serial);
                true
            }
            Moment::Call => false,
            Moment::Answer => header.kind == Header::REPLY && *lock(serial) == Some(header.serial),
        };
        if is_finish && way == shared.moment {
            let action = lock(&shared.action).take();
            if let Some(action) = action {
                action();
            }
        }
        if to.write_all(&message).is_err() {
            return;
        }
    }
}

/// The header of libvirt's RPC (`src/rpc/virnetprotocol.x`), big-endian, after the length of the whole message.
struct Header {
    program: u32,
    procedure: u32,
    kind: u32,
    serial: u32,
}

impl Header {
    /// The fields are length, program, version, procedure, type, serial, status.
    const BYTES: usize = 28;
    /// The longest message: `VIR_NET_MESSAGE_MAX`, with its length word.
    const LONGEST: usize = 32 * 1024 * 1024 + 4;
    const REMOTE: u32 = 0x2000_8086;
    const CALL: u32 = 0;
    const REPLY: u32 = 1;
    /// The procedures `REMOTE_PROC_DOMAIN_MIGRATE_FINISH3` and `…_FINISH3_PARAMS`.
    const FINISH: [u32; 2] = [217, 306];

    fn of(message: &[u8]) -> Self {
        let word = |n: usize| u32::from_be_bytes(message[4 * n..4 * n + 4].try_into().unwrap_or_default());
        Self { program: word(1), procedure: word(3), kind: word(4), serial: word(5) }
    }

    fn is_finish_call(&self) -> bool {
        self.program == Self::REMOTE && self.kind == Self::CALL && Self::FINISH.contains(&self.procedure)
    }
}

/// Reads one message with its length word.
///
/// # Errors
///
/// The error of the socket, or that a length is impossible.
fn read_message(from: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let bytes = u32::from_be_bytes(length) as usize;
    if !(Header::BYTES..=Header::LONGEST).contains(&bytes) {
        return Err(std::io::Error::new(ErrorKind::InvalidData, "not libvirt's RPC"));
    }
    let mut message = vec![0; bytes];
    message[..4].copy_from_slice(&length);
    from.read_exact(&mut message[4..])?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, RecvTimeoutError};
    use std::time::Duration;

    fn message(program: u32, procedure: u32, kind: u32, serial: u32, body: &[u8]) -> Vec<u8> {
        let words = [(Header::BYTES + body.len()) as u32, program, 1, procedure, kind, serial, 0];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend_from_slice(body);
        bytes
    }

    /// Makes a caller and a daemon with a relay between them. Its action reports when it is called, and waits for
    /// permission to go on.
    fn joined(
        moment: Moment,
    ) -> (Relay, UnixStream, UnixStream, mpsc::Receiver<()>, mpsc::SyncSender<()>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let daemon = UnixListener::bind(dir.path().join("daemon")).unwrap();
        let (called, calls) = mpsc::sync_channel(1);
        let (leave, wait) = mpsc::sync_channel(1);
        let relay = Relay::start(&dir.path().join("relay"), &dir.path().join("daemon"), moment, move || {
            called.send(()).unwrap();
            wait.recv().unwrap();
        })
        .unwrap();
        let caller = UnixStream::connect(dir.path().join("relay")).unwrap();
        let (daemon, _) = daemon.accept().unwrap();
        (relay, caller, daemon, calls, leave, dir)
    }

    #[test]
    fn acts_between_the_answer_of_finish_and_its_delivery() {
        let (relay, mut caller, mut daemon, calls, leave, _dir) = joined(Moment::Answer);
        let finish = message(Header::REMOTE, 306, Header::CALL, 9, b"cookie");
        caller.write_all(&message(Header::REMOTE, 303, Header::CALL, 8, b"")).unwrap();
        caller.write_all(&finish).unwrap();
        assert_eq!(Header::of(&read_message(&mut daemon).unwrap()).procedure, 303);
        assert_eq!(read_message(&mut daemon).unwrap(), finish);
        daemon.write_all(&message(Header::REMOTE, 303, Header::REPLY, 8, b"")).unwrap();
        assert_eq!(Header::of(&read_message(&mut caller).unwrap()).serial, 8);
        assert_eq!(calls.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));

        let answer = message(Header::REMOTE, 306, Header::REPLY, 9, b"running");
        daemon.write_all(&answer).unwrap();
        calls.recv_timeout(Duration::from_secs(60)).unwrap();
        caller.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(read_message(&mut caller).unwrap_err().kind(), ErrorKind::WouldBlock);
        leave.send(()).unwrap();
        caller.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(read_message(&mut caller).unwrap(), answer);
        assert!(relay.acted());
    }

    #[test]
    fn acts_before_finish_is_handed_on() {
        let (_relay, mut caller, mut daemon, calls, leave, _dir) = joined(Moment::Call);
        // A procedure of the same number in another program (the keepalive's, QEMU's own) is not FINISH.
        caller.write_all(&message(0x6b65_6570, 217, Header::CALL, 0, b"")).unwrap();
        read_message(&mut daemon).unwrap();
        caller.write_all(&message(Header::REMOTE, 217, Header::CALL, 3, b"")).unwrap();
        calls.recv_timeout(Duration::from_secs(60)).unwrap();
        daemon.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(read_message(&mut daemon).unwrap_err().kind(), ErrorKind::WouldBlock);
        leave.send(()).unwrap();
        daemon.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(Header::of(&read_message(&mut daemon).unwrap()).serial, 3);
    }

    #[test]
    fn an_impossible_length_closes_both_ends() {
        let (_relay, mut caller, mut daemon, _calls, _leave, _dir) = joined(Moment::Call);
        caller.write_all(&[0xff; 28]).unwrap();
        assert_eq!(daemon.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(caller.read(&mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn dropping_it_closes_connections_and_removes_the_socket() {
        let (relay, mut caller, mut daemon, _calls, _leave, dir) = joined(Moment::Call);
        caller.write_all(&message(Header::REMOTE, 1, Header::CALL, 1, b"")).unwrap();
        read_message(&mut daemon).unwrap();
        drop(relay);
        assert_eq!(daemon.read(&mut [0; 1]).unwrap(), 0);
        assert!(!dir.path().join("relay").exists());
    }
}
