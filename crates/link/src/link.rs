//! What a link is: how two hosts are joined, and what a connection between them promises.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use crate::pieces::Patience;

/// What a link gives to whoever uses it. A session asks for these, and never which link it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// A message that was taken on arrives whole, once, unless its connection ends.
    pub reliable: bool,
    /// Messages arrive in the order in which they were taken on. Those of other links come with their [`Position`].
    pub ordered: bool,
    /// A writer is told when the other end has no room for more, and a reader that does not read loses nothing.
    pub flow_controlled: bool,
    /// Either end may write to memory that the other end has registered, without the other end's CPU.
    pub one_sided: bool,
    /// Nobody between the two hosts can read what travels, or change it unnoticed.
    pub encrypted: bool,
    /// Where what is sent has to lie.
    pub memory: Memory,
}

impl Caps {
    /// Whether a session can do with such a link: what it hands over must arrive or fail, and must not pile up.
    pub fn suit_sessions(&self) -> bool {
        self.reliable && self.flow_controlled
    }
}

/// Where what is sent has to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Anywhere.
    Any,
    /// In registered buffers: memory that stays where it is and whose place the NIC knows. What lies elsewhere is
    /// copied.
    Registered {
        /// Bytes of each.
        buffer_bytes: usize,
    },
}

/// Where a connection is to leave from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The local address.
    pub ip: IpAddr,
    /// The NIC that has it.
    pub nic: String,
}

/// Whom to connect to, from where, and how long that may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// Where the connection leaves from. None: from wherever the routes say.
    pub from: Option<LocalAddress>,
    /// The other end.
    pub to: SocketAddr,
    /// Neither end sends larger packets. None: they are as large as the NICs take.
    pub packet_bytes: Option<u32>,
    /// The other end has to answer by then.
    pub answer_time: Duration,
    /// What the link does before the first byte of its user has to be over by then, and the user's handshake, too.
    pub handshake_time: Duration,
}

/// A connection that could not be made.
#[derive(Debug, Error)]
pub enum DialError {
    /// The local end cannot be had: the address or NIC is gone.
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
        /// The other end.
        to: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl DialError {
    /// Whether the other host answered that nobody listens there.
    pub fn is_refused(&self) -> bool {
        matches!(self, DialError::Remote { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// A connection that cannot be used.
#[derive(Debug, Error)]
pub enum LinkError {
    /// It cannot be made.
    #[error(transparent)]
    Dial(#[from] DialError),
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

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> LinkError {
        LinkError::Io(error)
    }
}

impl LinkError {
    /// Whether the other host answered that nobody listens there.
    pub fn is_refused(&self) -> bool {
        matches!(self, LinkError::Dial(error) if error.is_refused())
    }
}

/// How a connection ended, as either half finds it.
#[derive(Debug, Error)]
pub enum LinkEnd {
    /// The peer ended it in order. A reader has read all that the peer sent.
    #[error("the other end closed it")]
    Closed,
    /// The peer's host ended it without a word, as a kernel does for a process that is no more. What the peer sent last
    /// may be lost.
    #[error("the other host reset it")]
    Reset,
    /// This end gave it up.
    #[error("this end gave it up")]
    GivenUp,
    /// It broke, or what arrived makes no sense.
    #[error("it broke")]
    Failed(#[source] io::Error),
}

impl LinkEnd {
    /// Whether the peer's host ended the connection.
    pub fn is_by_peer(&self) -> bool {
        matches!(self, LinkEnd::Closed | LinkEnd::Reset)
    }
}

/// What became of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketProbe {
    /// It went there and came back.
    Whole,
    /// The other kernel does not acknowledge it.
    Lost,
    /// It arrived, and nothing came back in time.
    Unanswered,
}

/// A way to join two hosts: it makes connections.
pub trait Link: fmt::Debug + Send + Sync {
    /// What its connections promise.
    fn caps(&self) -> Caps;

    /// From which of this host's addresses the routes reach `to`, as far as that can be known.
    fn source_of(&self, to: SocketAddr) -> Option<IpAddr>;

    /// Connects to the other end, which has shown who it is when this returns if the link is encrypted.
    ///
    /// # Errors
    /// Nobody answers, or not by the deadline, or not as a member of the cluster.
    fn dial(&self, dial: &Dial) -> Result<Box<dyn Pending>, LinkError>;

    /// Sends a packet as large as connections send, which is to come back with the same length by `answer_time`.
    /// `probe` makes what is sent, of no more bytes than it is told.
    ///
    /// # Errors
    /// Nobody answers, or the connection ended early: that tells nothing of packets' sizes.
    fn probe(
        &self,
        dial: &Dial,
        probe: &dyn Fn(usize) -> Vec<u8>,
        answer_time: Duration,
    ) -> Result<PacketProbe, LinkError>;
}

/// A connection during its handshake. Every call ends by the deadline.
pub trait Pending: Send {
    /// What the connection promises once it is [split](Pending::split).
    fn caps(&self) -> Caps;

    /// The peer's host name, if the peer has proven it.
    fn peer(&self) -> Option<&str>;

    /// Sends bytes, which arrive in their order.
    ///
    /// # Errors
    /// The connection failed, or the deadline passed.
    fn send(&mut self, bytes: &[u8]) -> Result<(), LinkError>;

    /// Receives exactly as many bytes as `buffer` holds.
    ///
    /// # Errors
    /// The connection failed or ended, or the deadline passed.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), LinkError>;

    /// Takes the connection apart for two threads and whoever has to end it. There is no deadline any more.
    ///
    /// # Errors
    /// The connection failed.
    fn split(self: Box<Self>) -> Result<Connection, LinkError>;
}

/// A connection after its handshake.
pub struct Connection {
    /// What it promises.
    pub caps: Caps,
    /// The receiving half.
    pub reader: Box<dyn Reader>,
    /// The sending half.
    pub writer: Box<dyn Writer>,
    /// Its end.
    pub shutdown: Box<dyn Shutdown>,
}

/// What travels on a connection: a head, which tells its reader how long the body is, and the body.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its first bytes.
    pub head: Bytes,
    /// The bytes after them, in the buffers that they lie in.
    pub body: Vec<Bytes>,
}

impl Message {
    /// Bytes of head and body.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.body.iter().map(Bytes::len).sum::<usize>()
    }

    /// All its buffers that hold something, in order.
    pub(crate) fn into_parts(self) -> impl Iterator<Item = Bytes> {
        std::iter::once(self.head).chain(self.body).filter(|part| !part.is_empty())
    }
}

/// Where a message lies among all that were taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Behind all that have arrived.
    Next,
    /// Behind so many bytes of messages, which may not have arrived yet. On links that keep no order.
    At(u64),
}

/// The receiving half of a connection, for a thread of its own.
pub trait Reader: Send {
    /// Waits for a message, and fills `head` with its first bytes, which it has.
    ///
    /// # Errors
    /// The end of the connection. On [`LinkEnd::Closed`] every message was read.
    fn read_head(&mut self, head: &mut [u8]) -> Result<Position, LinkEnd>;

    /// Reads the rest of the message, of so many bytes, into memory out of `buffers` or of the link's own.
    ///
    /// # Errors
    /// As [`Self::read_head`]; the end came within the message.
    fn read_body(&mut self, bytes: usize, buffers: &dyn BufferSource) -> Result<Bytes, LinkEnd>;
}

/// Where a reader gets memory for what arrives.
pub trait BufferSource {
    /// A buffer of so many bytes that `fill` has filled.
    ///
    /// # Errors
    /// Those of `fill`.
    fn filled(&self, bytes: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<(), LinkEnd>) -> Result<Bytes, LinkEnd>;
}

/// The sending half of a connection, for one thread at a time.
pub trait Writer: Send {
    /// Takes messages on, one after the other, to be sent by [`Self::flush`]. What was taken on before is sent. The
    /// buffers are let go of once they are sent.
    ///
    /// # Errors
    /// They cannot be protected.
    fn push(&mut self, messages: &mut Vec<Message>) -> Result<(), LinkEnd>;

    /// Sends what was taken on: all of it, or with [`Patience::Try`] as much as the connection takes at once. Returns
    /// whether that was all.
    ///
    /// # Errors
    /// The connection is over. With [`Patience::Wait`] also once it was given up. If the peer ended it, the reader
    /// finds the end, too, at once, and before that what arrived of the peer's last words.
    fn flush(&mut self, patience: Patience) -> Result<bool, LinkEnd>;

    /// The connection's key has protected enough: close it and dial another.
    fn key_is_used_up(&self) -> bool {
        false
    }
}

/// Ends a connection from any thread.
pub trait Shutdown: Send + Sync {
    /// Ends sending: what was sent is still delivered, then the peer's reader finds [`LinkEnd::Closed`]. This end's
    /// reader goes on. Whoever wants the last words to arrive does this and reads until the peer ends the connection,
    /// too. Not after [`Self::abort`].
    fn finish(&self);

    /// Ends the connection in order: both halves return with an error, and the peer finds [`LinkEnd::Closed`]. If the
    /// peer has sent what this end did not read, or still sends, the peer may find [`LinkEnd::Reset`] instead, and what
    /// was sent may be lost: so do kernels with TCP (RFC 1122, section 4.2.2.13). Not after [`Self::abort`].
    fn close(&self);

    /// Gives it up: both halves return with an error. The peer sees [`LinkEnd::Reset`], if anything, and can tell that
    /// from the end of this process.
    fn abort(&self);
}
