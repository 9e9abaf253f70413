//! Is the accepting end of links: what listens, and what arrives.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

use crate::link::{LinkError, Pending, Shutdown};

/// The reason why an address cannot be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {address}{}", .nic.as_ref().map(|nic| format!(" of {nic}")).unwrap_or_default())]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The NIC, if only one NIC was to listen.
    pub nic: Option<String>,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl ListenError {
    /// Returns whether another program has the port.
    pub fn is_in_use(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }
}

/// A NIC that is listened on. A NIC that comes back has another index, and is another NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListeningNic {
    /// The kernel's number of the NIC.
    pub index: u32,
    /// The NIC's name.
    pub name: String,
}

/// Takes the connections of all links of a host, at one port.
pub trait Listeners: Send + Sync {
    /// Listens on an address, on one NIC or on all. An unspecified address means both families. Returns the port.
    ///
    /// # Errors
    /// The address is in use, or is not this host's.
    fn listen(&self, address: SocketAddr, nic: Option<ListeningNic>) -> Result<u16, ListenError>;

    /// Stops listening on the NICs that `keep` does not want.
    fn retain(&self, keep: &dyn Fn(&ListeningNic) -> bool);

    /// Returns the indices of the NICs that are listened on.
    fn nics(&self) -> BTreeSet<u32>;

    /// Waits for connections, for at most `patience`, and takes them: one from each address that has some.
    ///
    /// # Errors
    /// The wait fails. The inner errors are of connections that cannot be taken.
    fn accept(&self, patience: Duration) -> io::Result<Vec<io::Result<Box<dyn Incoming>>>>;

    /// Stops listening.
    fn close(&self);
}

/// Whether a connection's link protects the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// The connection is not protected.
    Plain,
    /// The connection is encrypted, and its ends have shown who they are.
    Encrypted,
}

/// A connection that was taken, before anything was read from it.
pub trait Incoming: Send {
    /// Returns the NIC that the connection came by, if that NIC was listened on by itself.
    fn nic(&self) -> Option<&str>;

    /// Returns this end's address.
    ///
    /// # Errors
    /// The connection is over already.
    fn local(&self) -> io::Result<SocketAddr>;

    /// Returns the other end's address.
    fn remote(&self) -> SocketAddr;

    /// Returns the first byte that the peer sends, without consuming it; `None` if none came in time.
    fn first_byte(&self, patience: Duration) -> Option<u8>;

    /// Returns what ends the connection, whichever thread has the connection by then.
    fn shutdown(&self) -> Box<dyn Shutdown>;

    /// Makes the link's own handshake, if the link has one. If the connection is encrypted, the peer is a member of the
    /// cluster when this returns.
    ///
    /// # Errors
    /// The connection failed, its peer is no member, or the deadline passed.
    fn open(self: Box<Self>, security: Security, patience: Duration) -> Result<Box<dyn Pending>, LinkError>;
}
