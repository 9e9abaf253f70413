//! Asks programs of this host that configure its network, by their UNIX sockets: Open vSwitch's database, and teamd.

use std::env;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use serde::Deserialize;
use serde_json::{Value, json};
use skein_network::{Answer, ovs_questions};

/// Bounds an answer: a host with 2,000 guests' ports has about 1 MB in the columns that are asked for.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How long an answer may take.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// How long an answer of Open vSwitch holds: NICs are listed several times a second.
const OVS_HOLDS: Duration = Duration::from_secs(5);
/// How long Open vSwitch is left alone after it did not answer in time.
const OVS_REST: Duration = Duration::from_secs(30);
/// Bounds an answer of teamd: its configuration.
const TEAMD_BYTES_MAX: usize = 256 << 10;

static OVS: Mutex<Option<(Instant, Answer)>> = Mutex::new(None);

/// Asks Open vSwitch's database, or returns what it said some seconds ago.
pub fn ovs() -> Answer {
    let mut last = OVS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some((until, answer)) = &*last
        && Instant::now() < *until
    {
        return answer.clone();
    }
    let answer = match ask_ovs(&ovs_socket(), ANSWER_TIME) {
        Ok(text) => Answer::Text(text),
        Err(error) => Answer::Refused(errno(&error)),
    };
    let holds = if answer == Answer::Refused(libc::ETIMEDOUT) { OVS_REST } else { OVS_HOLDS };
    *last = Some((Instant::now() + holds, answer.clone()));
    answer
}

/// As Open vSwitch's programs find it (ovs-vsctl(8)).
fn ovs_socket() -> PathBuf {
    let directory = env::var_os("OVS_RUNDIR").unwrap_or_else(|| "/run/openvswitch".into());
    Path::new(&directory).join("db.sock")
}

/// Calls `transact` (RFC 7047, 4.1.3), and returns the results as text.
fn ask_ovs(path: &Path, time: Duration) -> io::Result<String> {
    let stream = Limited { stream: UnixStream::connect(path)?, end: Instant::now() + time, left: ANSWER_BYTES_MAX };
    stream.stream.set_write_timeout(Some(time))?;
    let question = json!({"method": "transact", "params": ovs_questions(), "id": 0});
    (&stream.stream).write_all(question.to_string().as_bytes())?;
    let mut messages = serde_json::Deserializer::from_reader(BufReader::new(stream)).into_iter::<Message>();
    loop {
        let message = messages.next().ok_or(io::ErrorKind::UnexpectedEof)?;
        match message.map_err(io::Error::from)? {
            // The server may ask whether somebody is still there (`echo`): the answer comes sooner than it matters.
            Message { method: Some(_), .. } => {}
            Message { result: Some(Value::Array(results)), error: None, .. } => {
                return Ok(Value::Array(results).to_string());
            }
            _ => return Err(io::Error::from_raw_os_error(libc::EPROTO)),
        }
    }
}

/// A message of JSON-RPC 1.0.
#[derive(Deserialize)]
struct Message {
    method: Option<String>,
    result: Option<Value>,
    error: Option<Value>,
}

/// A stream that ends at a time, and after so many bytes.
struct Limited {
    stream: UnixStream,
    end: Instant,
    left: usize,
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = self.end.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        if self.left == 0 {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        self.stream.set_read_timeout(Some(rest))?;
        let length = buffer.len().min(self.left);
        let read = self.stream.read(&mut buffer[..length])?;
        self.left -= read;
        Ok(read)
    }
}

/// Asks the teamd of a team for its configuration (libteam's teamd/teamd_usock.c).
pub fn teamd(team: &str) -> Answer {
    // The kernel gives interfaces no such names.
    if team.contains('/') || team.starts_with('.') {
        return Answer::Refused(libc::EINVAL);
    }
    match ask_teamd(&Path::new("/run/teamd").join(format!("{team}.sock")), ANSWER_TIME) {
        Ok(text) => Answer::Text(text),
        Err(error) => Answer::Refused(errno(&error)),
    }
}

fn ask_teamd(path: &Path, time: Duration) -> io::Result<String> {
    let socket: OwnedFd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    let limit = TimeVal::milliseconds(time.as_millis() as i64);
    setsockopt(&socket, sockopt::ReceiveTimeout, &limit)?;
    setsockopt(&socket, sockopt::SendTimeout, &limit)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    send(socket.as_raw_fd(), b"REQUEST\nConfigDumpActual\n", MsgFlags::MSG_NOSIGNAL)?;
    let mut buffer = vec![0; TEAMD_BYTES_MAX];
    // MSG_TRUNC: a packet's whole length is returned, so that one that does not fit is known.
    let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_TRUNC)?;
    let packet = buffer.get(..length).ok_or_else(|| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
    let config = packet.strip_prefix(b"REPLY_SUCCESS\n").ok_or_else(|| io::Error::from_raw_os_error(libc::EPROTO))?;
    String::from_utf8(config.to_vec()).map_err(|_| io::Error::from_raw_os_error(libc::EPROTO))
}

/// Returns the number of an error; a timeout, which a socket tells as `EAGAIN`, is `ETIMEDOUT`.
fn errno(error: &io::Error) -> i32 {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut, _) => libc::ETIMEDOUT,
        (_, Some(number)) => number,
        (io::ErrorKind::UnexpectedEof, None) => libc::ECONNRESET,
        _ => libc::EPROTO,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;
    use std::thread;

    use nix::sys::socket::{Backlog, accept, bind, listen};

    use super::*;
    use crate::tool::{Tool, run_tool};

    /// Answers once as the database would, and returns what was asked.
    fn database(path: &Path, answer: Vec<u8>) -> thread::JoinHandle<Value> {
        let listener = UnixListener::bind(path).unwrap();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut questions = serde_json::Deserializer::from_reader(&stream).into_iter::<Value>();
            let question = questions.next().unwrap().unwrap();
            // Whoever asks may hang up before all is read.
            let _ = (&stream).write_all(&answer);
            question
        })
    }

    fn asked(answer: &[u8]) -> (Result<String, i32>, Value) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db.sock");
        let server = database(&path, answer.to_vec());
        let said = ask_ovs(&path, Duration::from_secs(30)).map_err(|error| errno(&error));
        (said, server.join().unwrap())
    }

    #[test]
    fn the_database_is_asked_by_json_rpc() {
        let answer = br#"{"id":"echo","method":"echo","params":[]}{"id":0,"result":[{"rows":[]}],"error":null}"#;
        let (said, question) = asked(answer);
        assert_eq!(said, Ok(r#"[{"rows":[]}]"#.into()));
        assert_eq!((&question["method"], &question["params"][0]), (&json!("transact"), &json!("Open_vSwitch")));
        assert!(
            question["params"].as_array().unwrap()[1..].iter().all(|op| op["op"] == "select"),
            "nothing is changed"
        );
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        assert_eq!(asked(br#"{"id":0,"result":null,"error":"unknown database"}"#).0, Err(libc::EPROTO));
        assert_eq!(asked(b"HTTP/1.1 400 Bad Request\r\n").0, Err(libc::EPROTO));
        assert_eq!(asked(br#"{"id":0,"result":[{"ro"#).0, Err(libc::ECONNRESET));
        assert_eq!(asked(b"").0, Err(libc::ECONNRESET));
        // An answer without an end.
        let long = [br#"{"id":0,"result":[""#.as_slice(), &vec![b'x'; ANSWER_BYTES_MAX + 1]].concat();
        assert_eq!(asked(&long).0, Err(libc::EMSGSIZE));
        let nobody = Path::new("/no-such-directory/db.sock");
        assert_eq!(errno(&ask_ovs(nobody, Duration::from_secs(30)).unwrap_err()), libc::ENOENT);
    }

    #[test]
    fn a_database_that_says_nothing_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db.sock");
        let _silent = UnixListener::bind(&path).unwrap();
        let error = ask_ovs(&path, Duration::from_millis(50)).unwrap_err();
        assert_eq!(errno(&error), libc::ETIMEDOUT);
    }

    /// Without ovs-vswitchd a bridge is a row of the database and nothing else.
    #[test]
    fn a_real_database_answers() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        if !run_tool("ovsdb-tool", &["create", &at("conf.db"), schema], "").is_ok_and(|made| made.status.success()) {
            println!("skipped: no ovsdb-tool here, or no schema (openvswitch-switch)");
            return;
        }
        let mut server = Command::new("ovsdb-server");
        server.args([at("conf.db"), "-vconsole:off".into(), format!("--remote=punix:{}", at("db.sock"))]);
        let _server = Tool::start(server.arg(format!("--unixctl={}", at("control")))).unwrap();
        let database = format!("--db=unix:{}", at("db.sock"));
        let bridge = ["--", "add-br", "br0", "--", "add-bond", "br0", "bond0", "eth7", "eth8", "lacp=active"];
        let words = [&[&*database, "--retry", "--timeout=60", "--no-wait", "init"], &bridge[..]].concat();
        // The server may have no socket yet.
        let made = run_tool("ovs-vsctl", &words, "").unwrap();
        assert!(made.status.success(), "{}", made.errors);
        let said: Value =
            serde_json::from_str(&ask_ovs(Path::new(&at("db.sock")), Duration::from_secs(60)).unwrap()).unwrap();
        let rows = |nth: usize| said[nth]["rows"].as_array().unwrap_or_else(|| panic!("{said}"));
        assert_eq!(rows(0)[0]["name"], "br0");
        assert!(rows(1).iter().any(|row| row["name"] == "bond0" && row["lacp"] == "active"), "{said}");
        assert_eq!((rows(2).len(), rows(3).len(), rows(4).len()), (3, 0, 1), "{said}");
    }

    #[test]
    fn teamd_is_asked_for_its_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("team0.sock");
        let said = |reply: &'static [u8]| {
            let _ = std::fs::remove_file(&path);
            let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
            bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
            listen(&listener, Backlog::new(1).unwrap()).unwrap();
            let server = thread::spawn(move || {
                let peer = accept(listener.as_raw_fd()).unwrap();
                let mut buffer = [0; 100];
                let length = recv(peer, &mut buffer, MsgFlags::empty()).unwrap();
                send(peer, reply, MsgFlags::empty()).unwrap();
                buffer[..length].to_vec()
            });
            let said = ask_teamd(&path, Duration::from_secs(30)).map_err(|error| errno(&error));
            assert_eq!(server.join().unwrap(), b"REQUEST\nConfigDumpActual\n");
            said
        };
        assert_eq!(said(b"REPLY_SUCCESS\n{\"runner\":{}}"), Ok("{\"runner\":{}}".into()));
        assert_eq!(said(b"REPLY_ERROR\nNoSuchMethod\n\n"), Err(libc::EPROTO));
    }
}
