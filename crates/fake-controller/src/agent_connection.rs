//! Is a connection with an agent.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::{ServerConnection, StreamOwned};
use skein_api::{Hello, LINE_BYTES_MAX, Reply, Request, Term, ToAgent, ToController, parse_line, write_line};

use crate::seen_host::SeenHost;
use crate::socket::Socket;

/// Bounds the time until an agent says what it has to, on a busy machine, too.
pub const COMMAND_TIME: Duration = Duration::from_secs(60);

/// Says how often it is looked whether a wait is over.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// A connection with an agent.
pub struct AgentConnection<S: Socket> {
    stream: StreamOwned<ServerConnection, S>,
    host: String,
    input: Vec<u8>,
    /// The lines that were read while another was waited for: replies.
    passed: VecDeque<ToController>,
    /// The host, as the reports so far say.
    pub seen: SeenHost,
}

impl<S: Socket> AgentConnection<S> {
    pub(crate) fn new(socket: S, tls: ServerConnection, host: String) -> io::Result<AgentConnection<S>> {
        socket.set_patience(LOOK_PERIOD)?;
        let (stream, seen) = (StreamOwned::new(tls, socket), SeenHost::default());
        Ok(AgentConnection { stream, host, input: Vec::new(), passed: VecDeque::new(), seen })
    }

    /// Returns the certificate that the agent showed.
    ///
    /// # Panics
    ///
    /// There is none, which no such connection has.
    pub fn certificate(&self) -> CertificateDer<'static> {
        let shown = self.stream.conn.peer_certificates().and_then(<[_]>::first);
        shown.expect("the handshake is over").clone().into_owned()
    }

    /// Returns the host's name, by its certificate.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Takes the agent's first line, and says `first`.
    ///
    /// # Panics
    ///
    /// The agent says something else, or nothing.
    pub fn greet(&mut self, first: &ToAgent) -> Hello {
        self.try_greet(first).expect("the agent says hello")
    }

    /// Does the same; `None`: the agent hung up before it said anything, as one does that is being stopped.
    ///
    /// # Panics
    ///
    /// The agent says something else.
    pub fn try_greet(&mut self, first: &ToAgent) -> Option<Hello> {
        let hello = match self.next(COMMAND_TIME)? {
            ToController::Hello(hello) => hello,
            other => panic!("the first line is {other:?}"),
        };
        assert_eq!(hello.host, self.host, "the host has another name than its certificate");
        self.send(first).ok().map(|()| hello)
    }

    /// Returns the next line; `None`: the agent hung up, or says nothing for that long.
    ///
    /// # Panics
    ///
    /// The line is none that an agent may say.
    pub fn next(&mut self, patience: Duration) -> Option<ToController> {
        if let Some(line) = self.passed.pop_front() {
            return Some(line);
        }
        self.read(Instant::now() + patience)
    }

    fn read(&mut self, end: Instant) -> Option<ToController> {
        let mut bytes = vec![0; 16 << 10];
        let mut scanned = 0;
        loop {
            if let Some(at) = self.input[scanned..].iter().position(|byte| *byte == b'\n') {
                let rest = self.input.split_off(scanned + at + 1);
                let line = std::mem::replace(&mut self.input, rest);
                let line: ToController = parse_line(&line).unwrap_or_else(|error| panic!("{}: {error}", self.host));
                line.check().unwrap_or_else(|refusal| panic!("{}: {refusal:?}", self.host));
                return Some(line);
            }
            scanned = self.input.len();
            assert!(scanned as u64 <= LINE_BYTES_MAX, "a line is too long");
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(read) => self.input.extend(&bytes[..read]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if Instant::now() >= end {
                        return None;
                    }
                }
                Err(_) => return None,
            }
        }
    }

    /// Says a line.
    ///
    /// # Errors
    ///
    /// The agent hung up, or reads nothing for a while.
    pub fn send(&mut self, line: &ToAgent) -> io::Result<()> {
        let mut bytes = Vec::new();
        write_line(&mut bytes, line)?;
        self.send_bytes(&bytes)
    }

    /// Says anything.
    ///
    /// # Errors
    ///
    /// As [`AgentConnection::send`].
    pub fn send_bytes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let end = Instant::now() + COMMAND_TIME;
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            match self.stream.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {}
                flushed => return flushed,
            }
        }
    }

    /// Takes reports until `is` holds of what they say.
    ///
    /// # Panics
    ///
    /// The agent hung up, or it does not hold within `patience`.
    #[track_caller]
    pub fn until(&mut self, patience: Duration, mut is: impl FnMut(&SeenHost) -> bool) {
        let end = Instant::now() + patience;
        while !is(&self.seen) {
            match self.read(end) {
                Some(ToController::Report(report)) => self.seen.take(*report),
                Some(line) => self.passed.push_back(line),
                None => panic!("{}: it does not come to that: {:#?}", self.host, self.seen),
            }
        }
    }

    /// Commands something.
    ///
    /// # Panics
    ///
    /// The agent does not listen.
    pub fn command(&mut self, command: u64, term: Term, request_id: Option<&str>, request: Request) {
        let request_id = request_id.map(str::to_owned);
        let line = ToAgent::Command { command, term, request_id, request: Box::new(request) };
        self.send(&line).expect("the agent listens");
    }

    /// Returns the reply to a command, and takes the reports before it. An error: the highest term, which is above the
    /// command's.
    ///
    /// # Panics
    ///
    /// The agent does not answer.
    #[track_caller]
    pub fn reply(&mut self, number: u64) -> Result<Reply, Term> {
        let end = Instant::now() + COMMAND_TIME;
        loop {
            let of_number = |line: &ToController| match line {
                ToController::Reply { command, .. } | ToController::Deposed { command, .. } => *command == number,
                _ => false,
            };
            if let Some(at) = self.passed.iter().position(of_number) {
                match self.passed.remove(at) {
                    Some(ToController::Reply { reply, .. }) => return Ok(*reply),
                    Some(ToController::Deposed { highest, .. }) => return Err(highest),
                    other => panic!("{other:?} is no reply"),
                }
            }
            match self.read(end) {
                Some(ToController::Report(report)) => self.seen.take(*report),
                Some(line) => self.passed.push_back(line),
                None => panic!("{}: command {number} is not answered", self.host),
            }
        }
    }
}
