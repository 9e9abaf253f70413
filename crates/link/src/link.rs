//! Says what a link is: how two hosts are joined, and what a connection between them promises.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use skein_fabric::FabricError;
use thiserror::Error;

use crate::pieces::Patience;
use crate::tls_record::MessageProtection;

/// The capabilities of a link. A session asks for capabilities, and never which link it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// A message that was taken on arrives whole and once, unless its connection ends.
    pub reliable: bool,
    /// Messages arrive in the order in which they were taken on. Messages of other links come with their [`Position`].
    pub ordered: bool,
    /// A writer learns when the other end has no room for more. A reader that does not read loses nothing.
    pub flow_controlled: bool,
    /// Either end may write to memory that the other end has registered, without the other end's CPU.
    pub one_sided: bool,
    /// Nobody between the two hosts can read what travels, or change it unnoticed.
    pub encrypted: bool,
    /// Where a message has to lie for sending.
    pub memory: Memory,
}

impl Caps {
    /// Returns whether a session can use such a link: what the session sends must arrive or fail, and must not pile up.
    pub fn suit_sessions(&self) -> bool {
        self.reliable && self.flow_controlled
    }
}

/// The place where a message has to lie for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Anywhere in memory.
    Any,
    /// In registered buffers: memory that does not move and whose place the NIC knows. A message that lies elsewhere is
    /// copied.
    Registered {
        /// The bytes of each buffer.
        buffer_bytes: usize,
    },
}

/// The local address and NIC that a connection leaves from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The local address.
    pub ip: IpAddr,
    /// The NIC that has the address.
    pub nic: String,
    /// The local ports to try, the first that is free; else any.
    pub ports: Vec<u16>,
}

/// The two ends of a connection that is to be made, and how long that may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// Where the connection leaves from; `None`: from where the routes say.
    pub from: Option<LocalAddress>,
    /// The other end's address.
    pub to: SocketAddr,
    /// The largest packet that either end sends; `None`: as large as the NICs take.
    pub packet_bytes: Option<u32>,
    /// How long the other end may take to answer.
    pub answer_time: Duration,
    /// How long the link may take for what it does before its user's first byte, and how long the user's handshake may
    /// take.
    pub handshake_time: Duration,
}

/// The marks of packets, for the queues of this host and of switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrafficClass {
    /// The priority in this host's queues, 0 to 6 (`SO_PRIORITY` of socket(7)). A VLAN's egress map tells switches.
    pub priority: u8,
    /// The differentiated services code point, 0 to 63 (RFC 2474). 0: none.
    pub dscp: u8,
}

impl TrafficClass {
    /// Holds the class of bulk data: the priority that Hyper-V's examples give live migration, and AF11, for
    /// high-throughput data (RFC 4594, 4.8).
    pub const BULK: TrafficClass = TrafficClass { priority: 5, dscp: 10 };
}

impl Default for TrafficClass {
    fn default() -> TrafficClass {
        TrafficClass::BULK
    }
}

/// The reason why a connection could not be made.
#[derive(Debug, Error)]
pub enum DialError {
    /// The local end cannot be used: the address or NIC is gone.
    #[error("cannot use {ip} on {nic}")]
    Local {
        /// The address.
        ip: IpAddr,
        /// The NIC.
        nic: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The other end does not answer, or refuses.
    #[error("cannot connect to {to}")]
    Remote {
        /// The other end's address.
        to: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl DialError {
    /// Returns whether the other host answered that nobody listens there.
    pub fn is_refused(&self) -> bool {
        matches!(self, DialError::Remote { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// The reason why a connection cannot be used.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The connection cannot be made.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The socket failed, or the peer at its other end.
    #[error("the connection failed: {}", skein_identity::explain_io(.0))]
    Io(io::Error),
    /// The TLS handshake failed.
    #[error("{}", skein_identity::explain(.0))]
    Tls(rustls::Error),
    /// The peer is a member of the cluster, but its certificate says too little.
    #[error("the peer's identity is of no use")]
    Peer(#[source] skein_identity::PeerError),
    /// The rails of both ends do not join.
    #[error("{0}")]
    NoRail(String),
    /// The rail cannot be used.
    #[error("the rail cannot be used: {0}")]
    Rail(#[from] FabricError),
    /// The deadline passed.
    #[error("the other end did not finish the handshake within {} s", .0.as_secs_f64())]
    Late(Duration),
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> LinkError {
        LinkError::Io(error)
    }
}

impl LinkError {
    /// Returns whether the other host answered that nobody listens there.
    pub fn is_refused(&self) -> bool {
        matches!(self, LinkError::Dial(error) if error.is_refused())
    }
}

/// The way in which a connection ended, as either half finds it.
#[derive(Debug, Error)]
pub enum LinkEnd {
    /// The peer ended the connection in order. A reader has read all that the peer sent.
    #[error("the other end closed it")]
    Closed,
    /// The peer's host ended the connection without a word, or within a message, as a kernel does for a process that
    /// has ended. What the peer sent last may be lost.
    #[error("the other host reset it")]
    Reset,
    /// This end gave the connection up.
    #[error("this end gave it up")]
    GivenUp,
    /// The connection broke, or what arrived makes no sense.
    #[error("it broke")]
    Failed(#[source] io::Error),
}

impl LinkEnd {
    /// Returns whether the peer's host ended the connection.
    pub fn is_by_peer(&self) -> bool {
        matches!(self, LinkEnd::Closed | LinkEnd::Reset)
    }
}

/// What became of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketProbe {
    /// The probe went there and came back.
    Whole {
        /// How long a packet takes there and back at best, as the link measured it on the probe's connection.
        round_trip: Duration,
    },
    /// The other kernel does not acknowledge the probe.
    Lost,
    /// The probe arrived, and nothing came back in time.
    Unanswered,
}

/// A way to join two hosts: it makes connections.
pub trait Link: fmt::Debug + Send + Sync {
    /// Returns what the link's connections promise.
    fn caps(&self) -> Caps;

    /// Returns the address of this host from which the routes reach `to`, as far as that can be known.
    fn source_of(&self, to: SocketAddr) -> Option<IpAddr>;

    /// Connects to the other end. If the link is encrypted, the other end has shown who it is when this returns.
    ///
    /// # Errors
    /// Nobody answers, or not by the deadline, or not as a member of the cluster.
    fn dial(&self, dial: &Dial) -> Result<Box<dyn Pending>, LinkError>;

    /// Sends a packet as large as connections send. The packet has to come back with the same length within
    /// `answer_time`. `probe` makes the packet's content, of no more bytes than the link asks for.
    ///
    /// # Errors
    /// Nobody answers, or the connection ended early. Neither says anything about packets' sizes.
    fn probe(
        &self,
        dial: &Dial,
        probe: &dyn Fn(usize) -> Vec<u8>,
        answer_time: Duration,
    ) -> Result<PacketProbe, LinkError>;
}

/// A connection during its handshake. Every call ends by the deadline.
pub trait Pending: Send {
    /// Returns what the connection promises once it is [split](Pending::split).
    fn caps(&self) -> Caps;

    /// Returns the peer's host name, if the peer has proven it.
    fn peer(&self) -> Option<&str>;

    /// Sends bytes. They arrive in their order.
    ///
    /// # Errors
    /// The connection failed, or the deadline passed.
    fn send(&mut self, bytes: &[u8]) -> Result<(), LinkError>;

    /// Receives exactly as many bytes as `buffer` holds.
    ///
    /// # Errors
    /// The connection failed or ended, or the deadline passed.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), LinkError>;

    /// Gives what is left of the handshake so much time from now on. A link without deadlines does nothing.
    fn give_time(&mut self, _patience: Duration) {}

    /// Marks what this end sends from now on. A link without marks does nothing.
    ///
    /// # Errors
    /// The system refuses the marks. The connection goes on without them.
    fn mark(&mut self, class: TrafficClass) -> io::Result<()>;

    /// Returns the protection of messages that do not travel over this connection. `None`: the connection is not
    /// encrypted.
    ///
    /// # Errors
    /// The handshake is not over, or the cipher has no such protection.
    #[doc(hidden)]
    fn message_protection(&self) -> Result<Option<MessageProtection>, LinkError> {
        Ok(None)
    }

    /// Takes the connection apart, for two threads and for what has to end it. From now on there is no deadline.
    ///
    /// # Errors
    /// The connection failed.
    fn split(self: Box<Self>) -> Result<Connection, LinkError>;
}

/// A connection after its handshake.
pub struct Connection {
    /// The capabilities that the connection promises.
    pub caps: Caps,
    /// The name of the cipher that protects what travels; `None` if none does.
    pub cipher: Option<&'static str>,
    /// The receiving half.
    pub reader: Box<dyn Reader>,
    /// The sending half.
    pub writer: Box<dyn Writer>,
    /// Ends the connection.
    pub shutdown: Box<dyn Shutdown>,
}

/// What travels on a connection: a head, which tells its reader how long the body is, and the body.
#[derive(Clone, Debug)]
pub struct Message {
    /// The message's first bytes.
    pub head: Bytes,
    /// The bytes after the head, in the buffers that they lie in.
    pub body: Vec<Bytes>,
}

impl Message {
    /// Returns how many bytes head and body have.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.body.iter().map(Bytes::len).sum::<usize>()
    }

    /// Returns all buffers of the message that hold something, in order.
    pub(crate) fn into_parts(self) -> impl Iterator<Item = Bytes> {
        std::iter::once(self.head).chain(self.body).filter(|part| !part.is_empty())
    }
}

/// The place of a message among all that were taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The message comes behind all that have arrived.
    Next,
    /// The message comes behind so many bytes of messages, which may not have arrived yet. Only links that keep no
    /// order use this.
    At(u64),
}

/// The receiving half of a connection, for a thread of its own.
pub trait Reader: Send {
    /// Waits for a message, and fills `head` with the message's first bytes.
    ///
    /// # Errors
    /// The end of the connection. On [`LinkEnd::Closed`] every message was read.
    fn read_head(&mut self, head: &mut [u8]) -> Result<Position, LinkEnd>;

    /// Reads the rest of the message, of `bytes` bytes, into memory out of `buffers` or of the link's own.
    ///
    /// # Errors
    /// As [`Self::read_head`]; the end came within the message.
    fn read_body(&mut self, bytes: usize, buffers: &dyn BufferSource) -> Result<Bytes, LinkEnd>;
}

/// Gives a reader memory for what arrives.
pub trait BufferSource {
    /// Returns a buffer of `bytes` bytes that `fill` has filled.
    ///
    /// # Errors
    /// Those of `fill`.
    fn filled(&self, bytes: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<(), LinkEnd>) -> Result<Bytes, LinkEnd>;
}

/// The sending half of a connection, for one thread at a time.
pub trait Writer: Send {
    /// Takes messages on, one after the other; [`Self::flush`] sends them, behind what was taken on before. The buffers
    /// are let go of once they are sent.
    ///
    /// # Errors
    /// The messages cannot be protected.
    fn push(&mut self, messages: &mut Vec<Message>) -> Result<(), LinkEnd>;

    /// Sends what was taken on: all of it, or with [`Patience::Try`] as much as the connection takes at once. Returns
    /// whether that was all.
    ///
    /// # Errors
    /// The connection is over. With [`Patience::Wait`] the call also fails once the connection was given up. If the
    /// peer ended the connection, the reader finds the end at once, too, and before that what arrived of the peer's
    /// last words.
    fn flush(&mut self, patience: Patience) -> Result<bool, LinkEnd>;

    /// Returns whether the connection's key has protected enough. Then close the connection and dial another.
    fn key_is_used_up(&self) -> bool {
        false
    }
}

/// Ends a connection from any thread.
pub trait Shutdown: Send + Sync {
    /// Ends sending. What was sent is still delivered, then the peer's reader finds [`LinkEnd::Closed`]. This end's
    /// reader goes on. An end whose last words must arrive calls this, and reads until the peer ends the connection,
    /// too. Must not follow [`Self::abort`].
    fn finish(&self);

    /// Ends the connection in order: both halves return with an error, and the peer finds [`LinkEnd::Closed`]. If the
    /// peer has sent what this end did not read, or still sends, the peer may find [`LinkEnd::Reset`] instead, and what
    /// was sent may be lost. Kernels do that with TCP (RFC 1122, section 4.2.2.13). Must not follow [`Self::abort`].
    fn close(&self);

    /// Gives the connection up: both halves return with an error. The peer sees [`LinkEnd::Reset`], if anything, and
    /// can tell that from the end of this process.
    fn abort(&self);
}
