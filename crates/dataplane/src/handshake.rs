//! The first messages on a connection.

use aws_lc_rs::hmac;
use skein_link::{LinkError, Pending};
use skein_session::frame::{FrameKind, HEADER_BYTES, Header};
use skein_session::handshake::{HandshakeError, Hello, RefuseCode, Welcome, encode_refuse};
use skein_session::{ConnectionId, SessionId};
use thiserror::Error;

/// A connection that did not come about.
#[derive(Debug, Error)]
pub enum HandshakeFailed {
    /// It cannot be dialled, or broke, or TLS refused it.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The other end refused, or is no skein of this version.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// Someone of the cluster, but not whom we dialled.
    #[error(
        "{address} is {found}, not {expected}: if {found} is meant, give that name, as hosts go by their names; else \
         mend \
         the address, where it is given or in hosts.toml"
    )]
    OtherHost {
        /// The address where another host answered.
        address: std::net::SocketAddr,
        /// Who is there.
        found: String,
        /// Who should be.
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

/// The dialling end: says hello, hears the answer.
pub(crate) fn greet(pending: &mut dyn Pending, hello: &Hello) -> Result<Welcome, HandshakeFailed> {
    pending.send(&hello.encode())?;
    let (header, payload) = receive(pending)?;
    Ok(Welcome::decode(&header, &payload)?)
}

/// The accepting end: hears a hello.
pub(crate) fn listen(pending: &mut dyn Pending) -> Result<Hello, HandshakeFailed> {
    let (header, payload) = receive(pending)?;
    let hello = Hello::decode(&header, &payload);
    if let Err(error @ HandshakeError::Version { .. }) = &hello {
        // In the asker's words: its "other end" is this one.
        let reason = error.to_string();
        refuse(pending, RefuseCode::Version, &reason);
    }
    Ok(hello?)
}

/// The accepting end: says why not. Whether it is heard does not matter any more.
pub(crate) fn refuse(pending: &mut dyn Pending, code: RefuseCode, reason: &str) {
    let _ = pending.send(&encode_refuse(code, reason));
}

/// The accepting end: sends a probe of the path's packets back as it came; then the connection is over. Anybody may ask
/// for it, and gets no more than was sent.
pub(crate) fn return_probe(pending: &mut dyn Pending) -> Result<(), HandshakeFailed> {
    let (header, payload) = receive(pending)?;
    if header.kind != FrameKind::Probe {
        return Err(HandshakeError::Garbage.into());
    }
    // In one piece, so that it makes a packet of the largest size again.
    Ok(pending.send(&[&header.encode()[..], &payload].concat())?)
}

/// What a connection without TLS shows to belong to a session: a MAC over what it claims to be. A
/// connection's number is used once, so a recorded proof is of no use.
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
