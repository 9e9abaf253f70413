//! Is the commands' end of a connection to an agent.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use skein_api::{API_VERSION, LINE_BYTES_MAX, LineError, Refusal, Reply, Request, RequestLine, parse_line, write_line};
use socket2::{Domain, SockAddr, Socket, Type};

/// Bounds how long an agent that lives takes for a connection and a request.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Says how many bytes are read at once.
const READ_BYTES: usize = 64 << 10;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CallError {
    #[error(
        "no agent listens on {}: start it (systemctl start skein-agent, or `skein agent`), or ask the \
         cluster, where the command can (--cluster)",
        path.display()
    )]
    NoAgent {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the agent's socket {} is not open to this user: be root (sudo)", path.display())]
    Forbidden {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the agent does not answer")]
    Broken(#[source] LineError),
    #[error("the agent has not said a word for {} s: look at its log (journalctl -u skein-agent)", .0.as_secs())]
    Silent(Duration),
    #[error("the agent (process {0}) is stopped and answers nothing: kill -CONT {0}, or systemctl restart skein-agent")]
    Stopped(i32),
    #[error("{}{}{}", .0.message, if .0.cure.is_empty() { "" } else { ": " }, .0.cure)]
    Refused(Refusal),
    #[error("the agent answered something else than was asked ({0}): is it of another version?")]
    Unexpected(&'static str),
}

impl CallError {
    /// Returns whether the next call may succeed soon, because the agent is just being started again.
    pub fn may_pass(&self) -> bool {
        match self {
            CallError::NoAgent { .. } | CallError::Silent(_) | CallError::Stopped(_) => true,
            CallError::Broken(error) => matches!(error, LineError::Io(_) | LineError::Closed),
            CallError::Forbidden { .. } | CallError::Refused(_) | CallError::Unexpected(_) => false,
        }
    }
}

/// Calls an agent.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// Makes a client of the agent that listens on `socket`.
    pub fn new(socket: &Path) -> Client {
        Client { socket: socket.to_owned() }
    }

    /// Sends a request. The conversation returns the agent's replies.
    ///
    /// # Errors
    ///
    /// There is no agent, or the request does not get through to it.
    pub fn ask(&self, request: &Request) -> Result<Conversation, CallError> {
        self.send(&RequestLine { api: Some(API_VERSION), request_id: None, request: request.clone() })
    }

    /// Asks for a migration that is begun once, however often it is asked for under this id: see
    /// [`RequestLine::request_id`].
    ///
    /// # Errors
    ///
    /// As [`Client::ask`].
    pub fn ask_once(&self, request: &Request, request_id: &str) -> Result<Conversation, CallError> {
        let request_id = Some(request_id.to_owned());
        self.send(&RequestLine { api: Some(API_VERSION), request_id, request: request.clone() })
    }

    fn send(&self, line: &RequestLine) -> Result<Conversation, CallError> {
        let mut stream = self.connect()?;
        let unsent = match write_line(&mut stream, line) {
            Ok(()) => None,
            // An agent that has too much to do says so, and hangs up before it has read anything.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Some(error)
            }
            Err(error) => return Err(CallError::Broken(LineError::Io(error))),
        };
        Ok(Conversation { stream, pending: Vec::new(), searched: 0, unsent })
    }

    /// Sends a request, and returns the last reply. Progress before the last reply is passed over.
    ///
    /// `patience` bounds how long the agent may be silent: see [`Conversation::reply`].
    pub fn call(&self, request: &Request, patience: Duration) -> Result<Reply, CallError> {
        let mut conversation = self.ask(request)?;
        loop {
            match conversation.reply(patience)? {
                Reply::Progress(_) | Reply::ProbeStep { .. } => {}
                reply => return Ok(reply),
            }
        }
    }

    /// Connects to the agent, without sending anything.
    pub fn connect(&self) -> Result<UnixStream, CallError> {
        let connect = || -> io::Result<UnixStream> {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            // For a unix socket the time bounds connect(2), too, which waits while the listener's queue is full.
            socket.set_write_timeout(Some(CONNECT_TIME))?;
            socket.connect(&SockAddr::unix(&self.socket)?)?;
            Ok(socket.into())
        };
        connect().map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => CallError::Forbidden { path: self.socket.clone(), source },
            io::ErrorKind::WouldBlock => CallError::Silent(CONNECT_TIME),
            _ => CallError::NoAgent { path: self.socket.clone(), source },
        })
    }
}

/// Returns whether a process is stopped, by its line of `/proc/PID/stat` (proc(5)). Its name may have brackets.
fn is_stopped(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// What follows a request. Dropping the conversation hangs up; what was begun goes on.
#[derive(Debug)]
pub struct Conversation {
    stream: UnixStream,
    /// The bytes that were read and are not a whole line yet.
    pending: Vec<u8>,
    /// How many of the pending bytes were searched and have no end of a line.
    searched: usize,
    /// The error by which the request did not get through. What the agent said all the same comes first.
    unsent: Option<io::Error>,
}

impl Conversation {
    /// Returns the next reply.
    ///
    /// # Errors
    ///
    /// As [`Conversation::next`]; there is none within `patience`, or, of an agent whose process is stopped, within the
    /// time that a connection may take.
    pub fn reply(&mut self, patience: Duration) -> Result<Reply, CallError> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if let Some(reply) = self.next(left.min(CONNECT_TIME))? {
                return Ok(reply);
            }
            if let Some(process) = self.stopped_process() {
                return Err(CallError::Stopped(process));
            }
            if left <= CONNECT_TIME {
                return Err(CallError::Silent(patience));
            }
        }
    }

    /// Returns the number of the process that listens, if it is stopped.
    fn stopped_process(&self) -> Option<i32> {
        let process = getsockopt(&self.stream, PeerCredentials).ok()?.pid();
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        is_stopped(&stat).then_some(process)
    }

    /// Returns the next reply, or `None` if no reply comes within `wait`, which loses nothing. [`Reply::Error`] becomes
    /// an error.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Reply>, CallError> {
        let broken = |source| CallError::Broken(LineError::Io(source));
        let end = Instant::now() + wait;
        let mut chunk = vec![0; READ_BYTES];
        loop {
            if let Some(length) = self.pending[self.searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(self.searched + length + 1);
                let line = std::mem::replace(&mut self.pending, rest);
                self.searched = 0;
                return match parse_line(&line).map_err(CallError::Broken)? {
                    Reply::Error(refusal) => Err(CallError::Refused(refusal)),
                    reply => Ok(Some(reply)),
                };
            }
            self.searched = self.pending.len();
            if self.pending.len() as u64 >= LINE_BYTES_MAX {
                return Err(CallError::Broken(LineError::TooLong));
            }
            // Zero would mean for ever.
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left)).map_err(broken)?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(CallError::Broken(self.unsent.take().map_or(LineError::Closed, LineError::Io))),
                Ok(length) => self.pending.extend_from_slice(&chunk[..length]),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                    _ => return Err(broken(error)),
                },
            }
            let whole = self.pending[self.searched..].contains(&b'\n');
            if !whole && Instant::now() >= end {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn conversation() -> (Conversation, UnixStream) {
        let (stream, agent) = UnixStream::pair().unwrap();
        (Conversation { stream, pending: Vec::new(), searched: 0, unsent: None }, agent)
    }

    const SOON: Duration = Duration::from_millis(5);

    #[test]
    fn replies_come_in_pieces_and_together() {
        let (mut conversation, mut agent) = conversation();
        agent.write_all(b"{\"reply\":\"do").unwrap();
        assert_eq!(conversation.next(SOON).unwrap(), None);
        agent.write_all(b"ne\"}\n{\"reply\":\"vms\",\"vms\":[]}\n").unwrap();
        assert_eq!(conversation.next(SOON).unwrap(), Some(Reply::Done));
        assert_eq!(conversation.next(SOON).unwrap(), Some(Reply::Vms { vms: vec![] }));
        assert_eq!(conversation.next(SOON).unwrap(), None);
        agent.write_all(b"{\"reply\":\"error\",\"message\":\"no\",\"cure\":\"do\"}\n{\"re").unwrap();
        assert_eq!(conversation.next(SOON).unwrap_err().to_string(), "no: do");
        drop(agent);
        let error = conversation.next(SOON).unwrap_err();
        assert!(matches!(error, CallError::Broken(LineError::Closed)) && error.may_pass());
    }

    #[test]
    fn garbage_is_an_error() {
        for garbage in [&b"\n"[..], b"{}\n", b"[[[\n", b"\xff\xfe\n", b"{\"reply\":\"vm\"}\n", b"null\n"] {
            let (mut conversation, mut agent) = conversation();
            agent.write_all(garbage).unwrap();
            let error = conversation.next(SOON).unwrap_err();
            assert!(matches!(error, CallError::Broken(LineError::Malformed { .. })) && !error.may_pass(), "{error:?}");
        }
    }

    #[test]
    fn an_endless_line_is_an_error() {
        let (mut conversation, mut agent) = conversation();
        let writer = std::thread::spawn(move || while agent.write_all(&[b'x'; 1 << 16]).is_ok() {});
        let error = conversation.next(Duration::from_secs(60)).unwrap_err();
        assert!(matches!(error, CallError::Broken(LineError::TooLong)), "{error:?}");
        drop(conversation);
        writer.join().unwrap();
    }

    #[test]
    fn a_refusal_comes_before_the_error_of_a_request_that_did_not_get_through() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let client = Client::new(&path);
        let busy = b"{\"reply\":\"error\",\"message\":\"too many\",\"cure\":\"wait\"}\n";
        // The agent says so before it reads the request, or after it, or says nothing at all.
        for (says, early) in [(&busy[..], true), (busy, false), (b"", true)] {
            let mut stream = client.connect().unwrap();
            let mut agent = listener.accept().unwrap().0;
            agent.write_all(says).unwrap();
            let unsent = if early {
                drop(agent);
                Some(write_line(&mut stream, &Request::VmList).unwrap_err())
            } else {
                write_line(&mut stream, &Request::VmList).unwrap();
                drop(agent);
                None
            };
            let mut conversation = Conversation { stream, pending: Vec::new(), searched: 0, unsent };
            let error = conversation.next(SOON).unwrap_err();
            match says {
                b"" => assert!(matches!(&error, CallError::Broken(LineError::Io(_))) && error.may_pass(), "{error:?}"),
                _ => assert_eq!(error.to_string(), "too many: wait"),
            }
        }
        // Commands do it so, whichever of the two is first.
        let agent = std::thread::spawn(move || {
            for _ in 0..50 {
                listener.accept().unwrap().0.write_all(busy).unwrap();
            }
        });
        let patience = Duration::from_secs(60);
        for _ in 0..50 {
            assert_eq!(client.call(&Request::VmList, patience).unwrap_err().to_string(), "too many: wait");
        }
        agent.join().unwrap();
    }

    #[test]
    fn what_does_not_listen_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let client = Client::new(&path);
        assert!(matches!(client.call(&Request::VmList, SOON), Err(CallError::NoAgent { .. })));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(client.call(&Request::VmList, SOON), Err(CallError::Silent(_))));
        let conversation = client.ask(&Request::VmList).unwrap();
        assert_eq!(conversation.stopped_process(), None, "this process runs");
        for (stat, expected) in [("7 (skein) S 1", false), ("7 (a) T b) T 1", true), ("7 (T) R", false), ("", false)] {
            assert_eq!(is_stopped(stat), expected, "{stat}");
        }
        drop(listener);
        assert!(matches!(client.call(&Request::VmList, SOON), Err(CallError::NoAgent { .. })));
    }
}
