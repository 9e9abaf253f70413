//! The accepting end of links: what listens, and what arrives.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

use crate::link::{LinkError, Pending, Shutdown};

/// An address that cannot be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {address}{}", .nic.as_ref().map(|nic| format!(" of {nic}")).unwrap_or_default())]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The NIC, if only one.
    pub nic: Option<String>,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl ListenError {
    /// Whether another program has the port.
    pub fn is_in_use(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }
}

/// A NIC that is listened on. One that comes back is another one, with another index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListeningNic {
    /// The kernel's number for it.
    pub index: u32,
    /// Its name.
    pub name: String,
}

/// Takes connections of all links of a host, at one port.
pub trait Listeners: Send + Sync {
    /// Listens on an address, on one NIC or on all. An unspecified address means both families. Returns the port.
    ///
    /// # Errors
    /// The address is in use, or not this host's.
    fn listen(&self, address: SocketAddr, nic: Option<ListeningNic>) -> Result<u16, ListenError>;

    /// Stops listening on the NICs that `keep` does not want.
    fn retain(&self, keep: &dyn Fn(&ListeningNic) -> bool);

    /// The indices of the NICs that are listened on.
    fn nics(&self) -> BTreeSet<u32>;

    /// Waits until there are connections, or for so long, and takes them: one of each address that has some.
    ///
    /// # Errors
    /// It cannot be waited; within, connections that cannot be taken.
    fn accept(&self, patience: Duration) -> io::Result<Vec<io::Result<Box<dyn Incoming>>>>;

    /// Stops listening.
    fn close(&self);
}

/// Whether a connection is protected by its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// It is not.
    Plain,
    /// It is encrypted, and its ends have shown who they are.
    Encrypted,
}

/// A connection that was taken, before anything of it was read.
pub trait Incoming: Send {
    /// The NIC that it came by, if that was listened on by itself.
    fn nic(&self) -> Option<&str>;

    /// This end's address.
    ///
    /// # Errors
    /// It is over already.
    fn local(&self) -> io::Result<SocketAddr>;

    /// The other end's address.
    fn remote(&self) -> SocketAddr;

    /// The first byte that the peer sends, which stays to be read. None: none came in time.
    fn first_byte(&self, patience: Duration) -> Option<u8>;

    /// Ends it, whoever has it by then.
    fn shutdown(&self) -> Box<dyn Shutdown>;

    /// Shakes the link's own hands, if it has some. The peer is a member of the cluster when this returns, if the
    /// connection is encrypted.
    ///
    /// # Errors
    /// The connection failed, or is none of a member, or the deadline passed.
    fn open(self: Box<Self>, security: Security, patience: Duration) -> Result<Box<dyn Pending>, LinkError>;
}
