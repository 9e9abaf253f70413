//! A connection during its handshake.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use thiserror::Error;

use crate::halves::{Reader, Shutdown, WRITE_WAIT, Writer};
use crate::tls_record::{self, HEADER_BYTES, Unseal};

/// A connection that cannot be used.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The socket, or the peer at its other end.
    #[error("the connection failed: {}", skein_identity::explain_io(.0))]
    Io(io::Error),
    /// The TLS handshake.
    #[error("{}", skein_identity::explain(.0))]
    Tls(rustls::Error),
    /// A member of the cluster whose certificate says too little.
    #[error("the peer's identity is of no use")]
    Peer(#[source] skein_identity::PeerError),
    /// The deadline passed.
    #[error("the other end did not finish the handshake within {} s", .0.as_secs_f64())]
    Late(Duration),
}

impl std::convert::From<io::Error> for LinkError {
    fn from(error: io::Error) -> LinkError {
        LinkError::Io(error)
    }
}

/// Reads from a socket no further than the end of the current TLS record, so that none of what follows
/// the handshake is swallowed by the handshake's buffers.
struct OneTlsRecord<'a> {
    socket: &'a TcpStream,
    state: &'a mut TlsRecordState,
}

#[derive(Default)]
struct TlsRecordState {
    header: [u8; HEADER_BYTES],
    have: usize,
    left: usize,
}

impl Read for OneTlsRecord<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let state = &mut *self.state;
        if state.have < HEADER_BYTES {
            let room = (HEADER_BYTES - state.have).min(buffer.len());
            let n = self.socket.read(&mut buffer[..room])?;
            state.header[state.have..state.have + n].copy_from_slice(&buffer[..n]);
            state.have += n;
            if state.have == HEADER_BYTES {
                state.left = usize::from(u16::from_be_bytes([state.header[3], state.header[4]]));
            }
            return Ok(n);
        }
        let room = state.left.min(buffer.len());
        let n = if room == 0 { 0 } else { self.socket.read(&mut buffer[..room])? };
        state.left -= n;
        if state.left == 0 {
            state.have = 0;
        }
        Ok(n)
    }
}

enum Security {
    Plain,
    Tls { connection: Box<rustls::Connection>, record: TlsRecordState },
}

/// A connection during its handshake. Every read and write ends by the deadline.
pub struct PendingConnection {
    socket: Arc<TcpStream>,
    security: Security,
    peer: Option<String>,
    patience: Duration,
    deadline: Instant,
}

impl PendingConnection {
    /// A connection without TLS.
    pub fn plain(socket: TcpStream, patience: Duration) -> PendingConnection {
        let deadline = Instant::now() + patience;
        PendingConnection { socket: Arc::new(socket), security: Security::Plain, peer: None, patience, deadline }
    }

    /// Shakes hands as the end that dialled. The peer is a member of the cluster when this returns, but has
    /// not yet said whether it takes us for one.
    pub fn client(
        socket: TcpStream,
        config: &Arc<ClientConfig>,
        patience: Duration,
    ) -> Result<PendingConnection, LinkError> {
        let mut config = ClientConfig::clone(config);
        config.enable_secret_extraction = true;
        let connection =
            ClientConnection::new(Arc::new(config), skein_identity::member_name()).map_err(LinkError::Tls)?;
        PendingConnection::shake_hands(socket, connection.into(), patience)
    }

    /// Shakes hands as the end that accepted. The peer is a member of the cluster when this returns.
    pub fn server(
        socket: TcpStream,
        config: &Arc<ServerConfig>,
        patience: Duration,
    ) -> Result<PendingConnection, LinkError> {
        let mut config = ServerConfig::clone(config);
        config.enable_secret_extraction = true;
        let connection = ServerConnection::new(Arc::new(config)).map_err(LinkError::Tls)?;
        PendingConnection::shake_hands(socket, connection.into(), patience)
    }

    fn shake_hands(
        socket: TcpStream,
        connection: rustls::Connection,
        patience: Duration,
    ) -> Result<PendingConnection, LinkError> {
        let mut channel = PendingConnection::plain(socket, patience);
        channel.security = Security::Tls { connection: Box::new(connection), record: TlsRecordState::default() };
        channel.pump(|connection| !connection.is_handshaking() && !connection.wants_write())?;
        let Security::Tls { connection, .. } = &channel.security else { unreachable!("just set") };
        channel.peer = Some(skein_identity::check_peer(connection).map_err(LinkError::Peer)?);
        Ok(channel)
    }

    /// The peer's host name, from its certificate; none without TLS.
    pub fn peer(&self) -> Option<&str> {
        self.peer.as_deref()
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        self.arm()?;
        match &mut self.security {
            Security::Plain => self.socket.as_ref().write_all(bytes).map_err(|e| self.io(e)),
            Security::Tls { connection, .. } => {
                connection.writer().write_all(bytes)?;
                self.pump(|connection| !connection.wants_write())
            }
        }
    }

    /// Receives exactly as many bytes as `buffer` holds.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<(), LinkError> {
        let mut filled = 0;
        while filled < buffer.len() {
            self.arm()?;
            let read = match &mut self.security {
                Security::Plain => self.socket.as_ref().read(&mut buffer[filled..]),
                Security::Tls { connection, .. } => connection.reader().read(&mut buffer[filled..]),
            };
            match read {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match &self.security {
                    // rustls: no plaintext yet. A socket: the deadline.
                    Security::Tls { .. } => self.read_record()?,
                    Security::Plain => return Err(self.io(error)),
                },
                Err(error) => return Err(self.io(error)),
            }
        }
        Ok(())
    }

    /// Takes the connection apart for two threads and whoever has to end it. No deadline any more.
    pub fn split(self) -> Result<(Reader, Writer, Shutdown), LinkError> {
        self.socket.set_read_timeout(None)?;
        self.socket.set_write_timeout(Some(WRITE_WAIT))?;
        let aborted = Arc::new(AtomicBool::new(false));
        let (seal, open) = match self.security {
            Security::Plain => (None, None),
            Security::Tls { connection, .. } => {
                let suite =
                    connection.negotiated_cipher_suite().ok_or(LinkError::Tls(rustls::Error::HandshakeNotComplete))?;
                let secrets = match *connection {
                    rustls::Connection::Client(client) => client.dangerous_extract_secrets(),
                    rustls::Connection::Server(server) => server.dangerous_extract_secrets(),
                };
                let protection = secrets.and_then(|secrets| tls_record::protection(suite, secrets));
                let (seal, open) = protection.map_err(LinkError::Tls)?;
                (Some(seal), Some(open))
            }
        };
        let reader = Reader::new(self.socket.clone(), aborted.clone(), open.map(Unseal::new));
        let writer = Writer::new(self.socket.clone(), aborted.clone(), seal);
        Ok((reader, writer, Shutdown::new(self.socket, aborted)))
    }

    /// Runs rustls until `done`.
    fn pump(&mut self, done: impl Fn(&rustls::Connection) -> bool) -> Result<(), LinkError> {
        loop {
            self.arm()?;
            let Security::Tls { connection, .. } = &mut self.security else { return Ok(()) };
            if connection.wants_write() {
                let written = connection.write_tls(&mut self.socket.as_ref());
                written.map_err(|e| self.io(e))?;
            } else if done(connection) {
                return Ok(());
            } else {
                self.read_record()?;
            }
        }
    }

    fn read_record(&mut self) -> Result<(), LinkError> {
        let Security::Tls { connection, record } = &mut self.security else { return Ok(()) };
        let read = connection.read_tls(&mut OneTlsRecord { socket: &self.socket, state: record });
        match read {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(_) => {}
            Err(error) => return Err(self.io(error)),
        }
        if let Err(error) = connection.process_new_packets() {
            // The alert that says why, to whoever can still hear it.
            let _ = connection.write_tls(&mut self.socket.as_ref());
            return Err(LinkError::Tls(error));
        }
        Ok(())
    }

    fn arm(&self) -> Result<(), LinkError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LinkError::Late(self.patience));
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket.set_write_timeout(Some(left))?;
        Ok(())
    }

    fn io(&self, error: io::Error) -> LinkError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => LinkError::Late(self.patience),
            _ => LinkError::Io(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use bytes::Bytes;
    use skein_identity::{ClusterCa, Identity, Validity};

    use super::*;
    use crate::{Listener, Patience};

    const PATIENCE: Duration = Duration::from_secs(5);

    fn sockets() -> (TcpStream, TcpStream) {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let to = ([127, 0, 0, 1], listener.port().unwrap()).into();
        let dialled = crate::dial(None, to, None, PATIENCE).unwrap();
        Listener::wait(&[&listener], PATIENCE).unwrap();
        (dialled, listener.accept().unwrap().unwrap().0)
    }

    fn identity(ca: &ClusterCa, host: &str) -> Identity {
        ca.issue(host, Validity::days(1)).unwrap()
    }

    fn channels(tls: bool) -> (PendingConnection, PendingConnection) {
        let (a, b) = sockets();
        if !tls {
            return (PendingConnection::plain(a, PATIENCE), PendingConnection::plain(b, PATIENCE));
        }
        let ca = ClusterCa::create("test").unwrap();
        let server = skein_identity::server_config(&identity(&ca, "b"));
        let accepted = thread::spawn(move || PendingConnection::server(b, &server, PATIENCE).unwrap());
        let client = skein_identity::client_config(&identity(&ca, "a"));
        let dialled = PendingConnection::client(a, &client, PATIENCE).unwrap();
        (dialled, accepted.join().unwrap())
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect()
    }

    /// The handshake's messages and what follows them arrive whole, however the reads fall.
    #[test]
    fn bytes_arrive_before_and_after_the_split() {
        for tls in [false, true] {
            let (mut a, mut b) = channels(tls);
            assert_eq!(b.peer(), tls.then_some("a"));
            a.send(b"hello").unwrap();
            let mut hello = [0; 5];
            b.receive(&mut hello).unwrap();
            assert_eq!(&hello, b"hello");
            b.send(b"welcome").unwrap();
            let (_, mut to_a, _) = b.split().unwrap();
            let data = pattern(1_000_003);
            let sent = data.clone();
            // Sent at once behind the welcome, before the other end has read it.
            let sending = thread::spawn(move || {
                for piece in sent.chunks(100_000) {
                    let (x, y) = piece.split_at(piece.len() / 3);
                    to_a.push([x, &[], y].map(Bytes::copy_from_slice)).unwrap();
                    while !to_a.flush(Patience::Try).unwrap() {
                        to_a.flush(Patience::Wait).unwrap();
                    }
                }
            });
            thread::sleep(Duration::from_millis(20));
            let mut welcome = [0; 7];
            a.receive(&mut welcome).unwrap();
            assert_eq!(&welcome, b"welcome");
            let (mut from_b, _, _) = a.split().unwrap();
            let mut received = vec![0; data.len()];
            for piece in received.chunks_mut(77_777) {
                from_b.read_exact(piece).unwrap();
            }
            assert!(received == data);
            sending.join().unwrap();
            let end = from_b.read_exact(&mut [0]).unwrap_err();
            assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    /// A socket that takes little at once is given the rest from where it stopped, however often.
    #[test]
    fn what_a_socket_takes_in_parts_arrives_whole() {
        for tls in [false, true] {
            let (a, b) = channels(tls);
            socket2::SockRef::from(&*a.socket).set_send_buffer_size(4 << 10).unwrap();
            let (_, mut writer, _shutdown) = a.split().unwrap();
            let (mut reader, _, _) = b.split().unwrap();
            let data = pattern(1_000_003);
            let mut received = vec![0; data.len()];
            let (x, y) = data.split_at(data.len() / 3);
            writer.push([x, y].map(Bytes::copy_from_slice)).unwrap();
            // Read one piece for each time that the socket was full, so that it is full again and again.
            let (full, was_full) = mpsc::sync_channel(1);
            let receiving = thread::spawn(move || {
                for piece in received.chunks_mut(20_000) {
                    // An error says that all was written.
                    let _ = was_full.recv();
                    reader.read_exact(piece).unwrap();
                }
                received
            });
            let mut parts = 1;
            while !writer.flush(Patience::Try).unwrap() {
                parts += 1;
                let _ = full.try_send(());
                thread::yield_now();
            }
            drop(full);
            let received = receiving.join().unwrap();
            assert!(received == data);
            assert!(parts > 2, "the socket took it in {parts} parts");
        }
    }

    /// How a waiting reader ends, at the end that ends the connection and at the other.
    fn ends(end: fn(&Shutdown)) -> (io::ErrorKind, io::ErrorKind) {
        let (a, b) = channels(true);
        let (mut here, writer, shutdown) = a.split().unwrap();
        let (mut there, _, _) = b.split().unwrap();
        let waiting = thread::spawn(move || here.read_exact(&mut [0; 1]).unwrap_err().kind());
        thread::sleep(Duration::from_millis(20));
        end(&shutdown);
        let here = waiting.join().unwrap();
        drop((writer, shutdown));
        (here, there.read_exact(&mut [0; 1]).unwrap_err().kind())
    }

    #[test]
    fn an_end_in_order_differs_from_giving_up() {
        assert_eq!(ends(Shutdown::close), (io::ErrorKind::UnexpectedEof, io::ErrorKind::UnexpectedEof));
        assert_eq!(ends(Shutdown::abort), (io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionReset));
    }

    #[test]
    fn giving_up_frees_a_writer_that_waits_for_room() {
        let (a, _silent) = channels(true);
        let (_, mut writer, shutdown) = a.split().unwrap();
        let waiting = thread::spawn(move || {
            loop {
                writer.push([Bytes::from_static(&[0; 100_000])]).unwrap();
                if let Err(error) = writer.flush(Patience::Wait) {
                    return error;
                }
            }
        });
        thread::sleep(Duration::from_millis(100));
        shutdown.abort();
        waiting.join().unwrap();
    }

    #[test]
    fn a_silent_peer_costs_only_the_patience() {
        let (a, _silent) = sockets();
        let ca = ClusterCa::create("test").unwrap();
        let config = skein_identity::client_config(&identity(&ca, "a"));
        let error = PendingConnection::client(a, &config, Duration::from_millis(50)).err().unwrap();
        assert!(matches!(error, LinkError::Late(_)), "{error}");
    }

    #[test]
    fn another_protocol_is_named() {
        let (a, b) = sockets();
        { &b }.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        let ca = ClusterCa::create("test").unwrap();
        let config = skein_identity::client_config(&identity(&ca, "a"));
        let error = PendingConnection::client(a, &config, PATIENCE).err().unwrap();
        assert!(error.to_string().contains("does not speak TLS"), "{error}");
    }
}
