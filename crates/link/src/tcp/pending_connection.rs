//! Is a connection over a socket during its handshake.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use skein_identity::RecordCipher;

use super::halves::{
    PlainReader, PlainWriter, SharedSocket, SocketBuffer, SocketShutdown, TlsReader, TlsWriter, WRITE_WAIT,
};
use crate::link::{Caps, Connection, LinkError, Memory, Pending, TrafficClass};
use crate::tls_record::{self, HEADER_BYTES, MessageProtection, Unseal};

/// Holds what TCP promises.
pub(super) const PLAIN_CAPS: Caps = Caps {
    reliable: true,
    ordered: true,
    flow_controlled: true,
    one_sided: false,
    encrypted: false,
    memory: Memory::Any,
};

/// Holds what TCP promises under TLS.
pub(super) const TLS_CAPS: Caps = Caps { encrypted: true, ..PLAIN_CAPS };

/// Reads from a socket no further than the end of the current TLS record. So the handshake's buffers swallow nothing of
/// what follows the handshake.
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

/// A connection over a socket during its handshake. Every read and write ends by the deadline.
pub(super) struct PendingConnection {
    shared: Arc<SharedSocket>,
    security: Security,
    peer: Option<String>,
    patience: Duration,
    deadline: Instant,
    /// The number of records after which the key is used up, for tests.
    retired_after: Option<u64>,
}

impl PendingConnection {
    /// Makes a connection without TLS.
    pub(super) fn plain(shared: Arc<SharedSocket>, patience: Duration) -> PendingConnection {
        let deadline = Instant::now() + patience;
        PendingConnection { shared, security: Security::Plain, peer: None, patience, deadline, retired_after: None }
    }

    /// Shakes hands as the end that dialled. The peer is a member of the cluster when this returns, but has not yet
    /// said whether it takes this end for a member.
    ///
    /// # Errors
    /// The peer is no member, or speaks no TLS, or does not answer in time.
    pub(super) fn client(
        shared: Arc<SharedSocket>,
        config: &Arc<ClientConfig>,
        patience: Duration,
    ) -> Result<PendingConnection, LinkError> {
        let mut config = ClientConfig::clone(config);
        config.enable_secret_extraction = true;
        let connection =
            ClientConnection::new(Arc::new(config), skein_identity::member_name()).map_err(LinkError::Tls)?;
        PendingConnection::shake_hands(shared, connection.into(), patience)
    }

    /// Shakes hands as the end that accepted. The peer is a member of the cluster when this returns.
    ///
    /// # Errors
    /// As [`Self::client`].
    pub(super) fn server(
        shared: Arc<SharedSocket>,
        config: &Arc<ServerConfig>,
        patience: Duration,
    ) -> Result<PendingConnection, LinkError> {
        let mut config = ServerConfig::clone(config);
        config.enable_secret_extraction = true;
        let connection = ServerConnection::new(Arc::new(config)).map_err(LinkError::Tls)?;
        PendingConnection::shake_hands(shared, connection.into(), patience)
    }

    fn shake_hands(
        shared: Arc<SharedSocket>,
        connection: rustls::Connection,
        patience: Duration,
    ) -> Result<PendingConnection, LinkError> {
        let mut pending = PendingConnection::plain(shared, patience);
        pending.security = Security::Tls { connection: Box::new(connection), record: TlsRecordState::default() };
        pending.pump(|connection| !connection.is_handshaking() && !connection.wants_write())?;
        let Security::Tls { connection, .. } = &pending.security else { unreachable!("just set") };
        pending.peer = Some(skein_identity::check_peer(connection).map_err(LinkError::Peer)?);
        Ok(pending)
    }

    /// Makes the key used up after `records` more records, under TLS. This is for tests, as a cipher's own limit is
    /// 2^23 records.
    pub(super) fn retire_after(&mut self, records: u64) {
        self.retired_after = Some(records);
    }

    /// Runs rustls until `done`.
    fn pump(&mut self, done: impl Fn(&rustls::Connection) -> bool) -> Result<(), LinkError> {
        loop {
            self.arm()?;
            let Security::Tls { connection, .. } = &mut self.security else { return Ok(()) };
            if connection.wants_write() {
                let written = connection.write_tls(&mut &self.shared.socket);
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
        let read = connection.read_tls(&mut OneTlsRecord { socket: &self.shared.socket, state: record });
        match read {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(_) => {}
            Err(error) => return Err(self.io(error)),
        }
        if let Err(error) = connection.process_new_packets() {
            // The alert says why, if the peer can still read it.
            let _ = connection.write_tls(&mut &self.shared.socket);
            return Err(LinkError::Tls(error));
        }
        Ok(())
    }

    fn arm(&self) -> Result<(), LinkError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LinkError::Late(self.patience));
        }
        self.shared.socket.set_read_timeout(Some(left))?;
        self.shared.socket.set_write_timeout(Some(left))?;
        Ok(())
    }

    fn io(&self, error: io::Error) -> LinkError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => LinkError::Late(self.patience),
            _ => LinkError::Io(error),
        }
    }
}

impl Pending for PendingConnection {
    fn caps(&self) -> Caps {
        match self.security {
            Security::Plain => PLAIN_CAPS,
            Security::Tls { .. } => TLS_CAPS,
        }
    }

    fn peer(&self) -> Option<&str> {
        self.peer.as_deref()
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        self.arm()?;
        match &mut self.security {
            Security::Plain => (&self.shared.socket).write_all(bytes).map_err(|e| self.io(e)),
            Security::Tls { connection, .. } => {
                connection.writer().write_all(bytes)?;
                self.pump(|connection| !connection.wants_write())
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), LinkError> {
        let mut filled = 0;
        while filled < buffer.len() {
            self.arm()?;
            let read = match &mut self.security {
                Security::Plain => (&self.shared.socket).read(&mut buffer[filled..]),
                Security::Tls { connection, .. } => connection.reader().read(&mut buffer[filled..]),
            };
            match read {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match &self.security {
                    // rustls has no plaintext yet, or the socket's deadline passed.
                    Security::Tls { .. } => self.read_record()?,
                    Security::Plain => return Err(self.io(error)),
                },
                Err(error) => return Err(self.io(error)),
            }
        }
        Ok(())
    }

    fn give_time(&mut self, patience: Duration) {
        (self.patience, self.deadline) = (patience, Instant::now() + patience);
    }

    fn mark(&mut self, class: TrafficClass) -> io::Result<()> {
        let socket = &self.shared.socket;
        // The two lowest bits are for congestion (RFC 3168).
        let byte = i32::from(class.dscp) << 2;
        match socket.local_addr()?.ip().to_canonical() {
            IpAddr::V4(_) => setsockopt(socket, sockopt::Ipv4Tos, &byte)?,
            IpAddr::V6(_) => setsockopt(socket, sockopt::Ipv6TClass, &byte)?,
        }
        // By the code point the kernel has set another priority (ip(7)).
        Ok(setsockopt(socket, sockopt::Priority, &i32::from(class.priority))?)
    }

    fn message_protection(&self) -> Result<Option<MessageProtection>, LinkError> {
        match &self.security {
            Security::Plain => Ok(None),
            Security::Tls { connection, .. } => {
                Ok(Some(tls_record::message_protection(connection).map_err(LinkError::Tls)?))
            }
        }
    }

    fn split(self: Box<Self>) -> Result<Connection, LinkError> {
        let caps = self.caps();
        let PendingConnection { shared, security, retired_after, .. } = *self;
        shared.socket.set_read_timeout(None)?;
        shared.socket.set_write_timeout(Some(WRITE_WAIT))?;
        let shutdown = Box::new(SocketShutdown(shared.clone()));
        let incoming = SocketBuffer::new(shared.clone());
        match security {
            Security::Plain => Ok(Connection {
                caps,
                cipher: None,
                reader: Box::new(PlainReader(incoming)),
                writer: Box::new(PlainWriter::new(shared)),
                shutdown,
            }),
            Security::Tls { connection, .. } => {
                let cipher = skein_identity::record_cipher(&connection).map(RecordCipher::name);
                let (mut seal, open) = tls_record::protection(*connection).map_err(LinkError::Tls)?;
                if let Some(records) = retired_after {
                    seal.retire_after(records);
                }
                Ok(Connection {
                    caps,
                    cipher,
                    reader: Box::new(TlsReader { incoming, unseal: Unseal::new(open) }),
                    writer: Box::new(TlsWriter::new(shared, seal)),
                    shutdown,
                })
            }
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
    use crate::link::{Dial, Message};
    use crate::pieces::Patience;
    use crate::tcp::dial::dial;
    use crate::tcp::listeners::Listener;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn sockets() -> (Arc<SharedSocket>, Arc<SharedSocket>) {
        sockets_at("127.0.0.1".parse().unwrap())
    }

    fn sockets_at(ip: IpAddr) -> (Arc<SharedSocket>, Arc<SharedSocket>) {
        let listener = Listener::bind((ip, 0).into(), None).unwrap();
        let to = (ip, listener.port().unwrap()).into();
        let to = Dial { from: None, to, packet_bytes: None, answer_time: PATIENCE, handshake_time: PATIENCE };
        let dialled = dial(&to).unwrap();
        Listener::wait(&[&listener], PATIENCE).unwrap();
        (Arc::new(dialled.into()), Arc::new(listener.accept().unwrap().unwrap().0.into()))
    }

    #[test]
    fn marks_are_those_that_were_asked_for() {
        use nix::sys::socket::getsockopt;
        for ip in ["127.0.0.1", "::1"] {
            let (a, b) = sockets_at(ip.parse().unwrap());
            for shared in [a, b] {
                let mut pending = PendingConnection::plain(shared.clone(), PATIENCE);
                for class in [TrafficClass::BULK, TrafficClass { priority: 6, dscp: 63 }] {
                    pending.mark(class).unwrap();
                    let byte = match shared.socket.local_addr().unwrap().is_ipv4() {
                        true => getsockopt(&shared.socket, sockopt::Ipv4Tos),
                        false => getsockopt(&shared.socket, sockopt::Ipv6TClass),
                    };
                    let marked = (getsockopt(&shared.socket, sockopt::Priority), byte.map(|byte| byte >> 2));
                    assert_eq!(marked, (Ok(i32::from(class.priority)), Ok(i32::from(class.dscp))), "{ip}");
                }
            }
        }
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

    /// A socket that takes little at once is given the rest from where it stopped, however often.
    #[test]
    fn what_a_socket_takes_in_parts_arrives_whole() {
        for tls in [false, true] {
            let (a, b) = channels(tls);
            socket2::SockRef::from(&a.shared.socket).set_send_buffer_size(4 << 10).unwrap();
            let mut writing = Box::new(a).split().unwrap();
            let mut reading = Box::new(b).split().unwrap();
            let data = pattern(1_000_003);
            let mut received = vec![0; data.len()];
            let (x, y) = data.split_at(data.len() / 3);
            let message = Message { head: Bytes::copy_from_slice(x), body: vec![Bytes::copy_from_slice(y)] };
            writing.writer.push(&mut vec![message]).unwrap();
            // The reader reads one piece each time that the socket was full, so the socket is full again and again.
            let (full, was_full) = mpsc::sync_channel(1);
            let receiving = thread::spawn(move || {
                for piece in received.chunks_mut(20_000) {
                    // An error means that everything was written.
                    let _ = was_full.recv();
                    reading.reader.read_head(piece).unwrap();
                }
                received
            });
            let mut parts = 1;
            while !writing.writer.flush(Patience::Try).unwrap() {
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
        (&b.socket).write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        let ca = ClusterCa::create("test").unwrap();
        let config = skein_identity::client_config(&identity(&ca, "a"));
        let error = PendingConnection::client(a, &config, PATIENCE).err().unwrap();
        assert!(error.to_string().contains("does not speak TLS"), "{error}");
    }
}
