//! Exchanges the first messages on a connection.

use std::net::IpAddr;
use std::time::Duration;

use aws_lc_rs::hmac;
use skein_fabric::{FabricError, Rails, SharedEndpoint};
use skein_link::{Connection, LinkError, Pending, TrafficClass, rdma};
use skein_session::frame::{FrameKind, HEADER_BYTES, Header};
use skein_session::handshake::{HandshakeError, Hello, RefuseCode, Welcome, encode_refuse};
use skein_session::{ConnectionId, SessionId};
use thiserror::Error;
use tracing::{debug, warn};

use crate::host_nics::HostNics;

/// The reason why a connection did not come about.
#[derive(Debug, Error)]
pub enum HandshakeFailed {
    /// The connection cannot be dialled, or broke, or TLS refused it.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The other end refused, or is no Skein of this version.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// Another host of the cluster is there than was dialled.
    #[error(
        "{address} is {found}, not {expected}: if {found} is meant, give that name, as hosts go by their names; else \
         mend \
         the address, where it is given or in hosts.toml"
    )]
    OtherHost {
        /// The address where another host answered.
        address: std::net::SocketAddr,
        /// The host that is there.
        found: String,
        /// The host that should be there.
        expected: String,
    },
}

fn receive(pending: &mut dyn Pending) -> Result<(Header, Vec<u8>), HandshakeFailed> {
    let mut header = [0; HEADER_BYTES];
    pending.receive(&mut header)?;
    // The header bounds the length before anything is allocated.
    let header = Header::decode(&header).map_err(|_| HandshakeError::Garbage)?;
    let mut payload = vec![0; header.len as usize];
    pending.receive(&mut payload)?;
    Ok((header, payload))
}

/// Marks what this end sends over a connection. Control, too: acknowledgements and credits that wait behind others'
/// traffic on a full link hold up the bulk data. Without marks the connection is as good, and its share of a full link
/// may be another.
pub(crate) fn mark(pending: &mut dyn Pending, class: TrafficClass) {
    if let Err(error) = pending.mark(class) {
        debug!("a connection cannot be marked: {error}");
    }
}

/// How long both ends have, from the moment that a rail is asked for, to open that: each loads a library, opens a
/// device and registers memory.
pub(crate) const RAIL_TIME: Duration = Duration::from_secs(20);

/// Opens an endpoint of the rail of a NIC of this host at one of its addresses, if there is one.
///
/// # Errors
/// There is one, and it cannot be used. The log says so, too.
pub(crate) fn rail(
    rails: Option<&dyn Rails>,
    nics: &dyn HostNics,
    nic: &str,
    at: IpAddr,
) -> Result<Option<SharedEndpoint>, FabricError> {
    let Some(rails) = rails.filter(|rails| !rails.bars(nic, &|| nics.has_rdma(nic))) else { return Ok(None) };
    rails.endpoint(at).inspect_err(|error| warn!("RDMA at {at} is not used: {error}"))
}

/// Takes a connection apart that has shaken hands, on the rail if both ends have one.
pub(crate) fn take_apart(pending: Box<dyn Pending>, rail: Option<SharedEndpoint>) -> Result<Connection, LinkError> {
    match rail {
        Some(rail) => rdma::split(pending, rail),
        None => pending.split(),
    }
}

/// Sends a hello, and returns the answer. This is the dialling end.
pub(crate) fn greet(pending: &mut dyn Pending, hello: &Hello) -> Result<Welcome, HandshakeFailed> {
    if hello.rail {
        pending.give_time(RAIL_TIME);
    }
    pending.send(&hello.encode())?;
    let (header, payload) = receive(pending)?;
    Ok(Welcome::decode(&header, &payload)?)
}

/// Receives a hello. This is the accepting end.
pub(crate) fn listen(pending: &mut dyn Pending) -> Result<Hello, HandshakeFailed> {
    let (header, payload) = receive(pending)?;
    let hello = Hello::decode(&header, &payload);
    if let Err(error @ HandshakeError::Version { .. }) = &hello {
        // The words are the asker's: its "other end" is this end.
        let reason = error.to_string();
        refuse(pending, RefuseCode::Version, &reason);
    }
    Ok(hello?)
}

/// Sends why the hello is refused. This is the accepting end. Whether the answer arrives does not matter any more.
pub(crate) fn refuse(pending: &mut dyn Pending, code: RefuseCode, reason: &str) {
    let _ = pending.send(&encode_refuse(code, reason));
}

/// Sends a probe of the path's packets back as it came; then the connection is over. This is the accepting end. Anybody
/// may ask for a probe, and gets no more than was sent.
pub(crate) fn return_probe(pending: &mut dyn Pending) -> Result<(), HandshakeFailed> {
    let (header, payload) = receive(pending)?;
    if header.kind != FrameKind::Probe {
        return Err(HandshakeError::Garbage.into());
    }
    // The frame goes in one piece, so that it makes a packet of the largest size again.
    Ok(pending.send(&[&header.encode()[..], &payload].concat())?)
}

/// Returns the proof by which a connection without TLS shows that it belongs to a session: a MAC over what the
/// connection claims to be. A connection's number is used once, so a recorded proof is of no use.
pub(crate) fn proof(key: &[u8], session: SessionId, connection: ConnectionId) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, &proven(session, connection)).as_ref().to_vec()
}

/// Checks a [`proof`] in constant time.
pub(crate) fn is_proof(key: &[u8], hello: &Hello) -> bool {
    let Some(session) = hello.session else { return false };
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::verify(&key, &proven(session, hello.connection), &hello.proof).is_ok()
}

fn proven(session: SessionId, connection: ConnectionId) -> Vec<u8> {
    [b"skein plain data 1".as_slice(), &session.0, &connection.0.to_be_bytes()].concat()
}
