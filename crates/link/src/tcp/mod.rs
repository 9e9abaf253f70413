//! Is the link over TCP, on one NIC at each end, with TLS and without.

mod dial;
mod halves;
mod listeners;
mod passage;
mod pending_connection;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

pub use self::dial::PACKET_BYTES_MIN;
pub use self::listeners::TcpListeners;
use self::pending_connection::{PLAIN_CAPS, PendingConnection, TLS_CAPS};
use crate::link::{Caps, Dial, Link, LinkError, PacketProbe, Pending};

/// TCP without TLS.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpLink;

/// TCP under TLS.
#[derive(Clone, Debug)]
pub struct TlsLink {
    config: Arc<ClientConfig>,
    /// The number of records after which a connection's key is used up, for tests.
    retired_after: Option<u64>,
}

impl TlsLink {
    /// Makes a link that shows the other end `config`.
    pub fn new(config: Arc<ClientConfig>) -> TlsLink {
        TlsLink { config, retired_after: None }
    }

    /// Makes the keys of the link's connections used up after `records` records. This is for tests, as a cipher's own
    /// limit is 2^23.
    #[doc(hidden)]
    pub fn retiring_after(self, records: u64) -> TlsLink {
        TlsLink { retired_after: Some(records), ..self }
    }
}

impl Link for TcpLink {
    fn caps(&self) -> Caps {
        PLAIN_CAPS
    }

    fn source_of(&self, to: SocketAddr) -> Option<IpAddr> {
        source_of(to)
    }

    fn dial(&self, to: &Dial) -> Result<Box<dyn Pending>, LinkError> {
        Ok(Box::new(PendingConnection::plain(Arc::new(dial::dial(to)?.into()), to.handshake_time)))
    }

    fn probe(
        &self,
        to: &Dial,
        probe: &dyn Fn(usize) -> Vec<u8>,
        answer_time: Duration,
    ) -> Result<PacketProbe, LinkError> {
        passage::try_segment(to, probe, answer_time)
    }
}

impl Link for TlsLink {
    fn caps(&self) -> Caps {
        TLS_CAPS
    }

    fn source_of(&self, to: SocketAddr) -> Option<IpAddr> {
        source_of(to)
    }

    fn dial(&self, to: &Dial) -> Result<Box<dyn Pending>, LinkError> {
        let shared = Arc::new(dial::dial(to)?.into());
        let mut pending = PendingConnection::client(shared, &self.config, to.handshake_time)?;
        if let Some(records) = self.retired_after {
            pending.retire_after(records);
        }
        Ok(Box::new(pending))
    }

    fn probe(
        &self,
        to: &Dial,
        probe: &dyn Fn(usize) -> Vec<u8>,
        answer_time: Duration,
    ) -> Result<PacketProbe, LinkError> {
        passage::try_segment(to, probe, answer_time)
    }
}

/// Returns the address from which the routes reach `to`. The address comes from a UDP socket that sends nothing.
fn source_of(to: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
