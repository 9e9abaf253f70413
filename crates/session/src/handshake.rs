//! The handshake: what two ends tell each other before the first frame of a session.
//!
//! These messages are rare, so they are encoded with postcard. Every number and length in them is checked after
//! decoding.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::address::{NicAddress, are_sound};
use crate::frame::{FrameKind, Header, truncated};
use crate::limits::{HELLO_BYTES_MAX, PROTOCOL_VERSION};
use crate::{ConnectionId, ConnectionKind, PathId, SessionId};

/// The first message on each connection, sent by the end that dialled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`]. It is decoded first, so that other versions are recognised.
    pub version: u16,
    /// The session to join. `None`: begin a new one.
    pub session: Option<SessionId>,
    /// The connection's number.
    pub connection: ConnectionId,
    /// The path that the connection belongs to.
    pub path: PathId,
    /// What the connection carries.
    pub kind: ConnectionKind,
    /// Whether bulk data is to travel without encryption.
    pub plain_data: bool,
    /// Whether the connection is to go on over RDMA: the sender has a rail there.
    pub rail: bool,
    /// Proof of membership on a connection without TLS. Empty on connections with TLS.
    pub proof: Vec<u8>,
    /// Where the sender can be reached.
    pub addresses: Vec<NicAddress>,
}

/// The answer of the end that accepted the connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL_VERSION`].
    pub version: u16,
    /// The session that the connection now belongs to.
    pub session: SessionId,
    /// Key of the proofs on connections without TLS. Empty if this end does not allow such connections.
    pub plain_key: Vec<u8>,
    /// Whether the connection goes on over RDMA, as was asked: the sender has a rail there, too.
    pub rail: bool,
    /// Where the sender can be reached.
    pub addresses: Vec<NicAddress>,
}

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RefuseCode {
    /// The ends have different [`PROTOCOL_VERSION`]s.
    Version = 1,
    /// The session is not known, or no longer known.
    UnknownSession = 2,
    /// The limits on sessions or connections are reached.
    Busy = 3,
    /// The dialling end asked for something that the accepting end does not allow.
    NotAllowed = 4,
    /// Any other reason.
    Other = 5,
}

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// The other end speaks another version.
    #[error(
        "the other end speaks protocol version {theirs}, this end {}: run the same release of skein on both",
        PROTOCOL_VERSION
    )]
    Version {
        /// The other end's version.
        theirs: u16,
    },
    /// The other end refused, and said why.
    #[error("refused by the other end: {reason}")]
    Refused {
        /// The code of the refusal: see [`RefuseCode`].
        code: u16,
        /// The reason in words.
        reason: String,
    },
    /// The bytes are not a handshake.
    #[error("the other end's handshake does not decode")]
    Garbage,
}

impl HandshakeError {
    /// Returns whether the session that was to be joined is gone for good.
    pub fn is_unknown_session(&self) -> bool {
        matches!(self, HandshakeError::Refused { code, .. } if *code == RefuseCode::UnknownSession as u16)
    }
}

fn frame(kind: FrameKind, offset: u64, payload: &[u8]) -> Vec<u8> {
    let header = Header { kind, stream: 0, offset, len: payload.len() as u32 };
    [&header.encode()[..], payload].concat()
}

fn encode(kind: FrameKind, message: &impl Serialize) -> Vec<u8> {
    let payload = postcard::to_stdvec(message).expect("plain data always encodes");
    assert!(payload.len() <= HELLO_BYTES_MAX, "own addresses are capped before they get here");
    frame(kind, u64::from(PROTOCOL_VERSION), &payload)
}

/// Decodes a message. Checks first the version, which every handshake frame carries in its header.
fn decode<'a, T: Deserialize<'a>>(header: &Header, payload: &'a [u8]) -> Result<T, HandshakeError> {
    if header.offset != u64::from(PROTOCOL_VERSION) {
        let theirs = u16::try_from(header.offset).map_err(|_| HandshakeError::Garbage)?;
        return Err(HandshakeError::Version { theirs });
    }
    match postcard::take_from_bytes(payload) {
        Ok((message, [])) => Ok(message),
        _ => Err(HandshakeError::Garbage),
    }
}

impl Hello {
    /// Returns the frame that carries this message.
    pub fn encode(&self) -> Vec<u8> {
        encode(FrameKind::Hello, self)
    }

    /// Reads a `Hello` from its frame.
    ///
    /// # Errors
    /// [`HandshakeError::Version`] if the peer speaks another version; [`HandshakeError::Garbage`] if the frame is not
    /// a sound `Hello`.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Hello, HandshakeError> {
        if header.kind != FrameKind::Hello {
            return Err(HandshakeError::Garbage);
        }
        let hello: Hello = decode(header, payload)?;
        let sound = are_sound(&hello.addresses) && hello.proof.len() <= 64;
        if sound { Ok(hello) } else { Err(HandshakeError::Garbage) }
    }
}

impl Welcome {
    /// Returns the frame that carries this message.
    pub fn encode(&self) -> Vec<u8> {
        encode(FrameKind::Welcome, self)
    }

    /// Reads the answer to a [`Hello`].
    ///
    /// # Errors
    /// [`HandshakeError::Refused`] with the peer's reason if the answer is a refusal; otherwise as [`Hello::decode`].
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Welcome, HandshakeError> {
        match header.kind {
            FrameKind::Welcome => {
                let welcome: Welcome = decode(header, payload)?;
                let sound = are_sound(&welcome.addresses) && welcome.plain_key.len() <= 64;
                if sound { Ok(welcome) } else { Err(HandshakeError::Garbage) }
            }
            FrameKind::Refuse => Err(HandshakeError::Refused {
                code: u16::try_from(header.offset).unwrap_or(RefuseCode::Other as u16),
                reason: String::from_utf8_lossy(payload).chars().filter(|c| !c.is_control()).collect(),
            }),
            _ => Err(HandshakeError::Garbage),
        }
    }
}

/// Returns the frame that refuses a connection.
pub fn encode_refuse(code: RefuseCode, reason: &str) -> Vec<u8> {
    frame(FrameKind::Refuse, code as u64, truncated(reason).as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::HEADER_BYTES;

    fn split(frame: &[u8]) -> (Header, &[u8]) {
        let (header, payload) = frame.split_at(HEADER_BYTES);
        (Header::decode(header.try_into().unwrap()).unwrap(), payload)
    }

    fn hello() -> Hello {
        Hello {
            version: PROTOCOL_VERSION,
            session: Some(SessionId([7; 16])),
            connection: ConnectionId(3),
            path: PathId(1),
            kind: ConnectionKind::Data,
            plain_data: false,
            rail: true,
            proof: vec![],
            addresses: vec![NicAddress::new("10.77.0.1".parse().unwrap(), 24, "eth0")],
        }
    }

    #[test]
    fn hello_and_welcome_survive_the_wire() {
        let bytes = hello().encode();
        let (header, payload) = split(&bytes);
        assert_eq!(Hello::decode(&header, payload), Ok(hello()));

        let welcome = Welcome {
            version: PROTOCOL_VERSION,
            session: SessionId([1; 16]),
            plain_key: vec![9; 32],
            rail: true,
            addresses: hello().addresses,
        };
        let bytes = welcome.encode();
        let (header, payload) = split(&bytes);
        assert_eq!(Welcome::decode(&header, payload), Ok(welcome));
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = hello().encode();
        bytes[15] = 9;
        let (header, payload) = split(&bytes);
        assert_eq!(Hello::decode(&header, payload), Err(HandshakeError::Version { theirs: 9 }));
    }

    #[test]
    fn a_refusal_carries_its_reason_home() {
        let bytes = encode_refuse(RefuseCode::UnknownSession, "no such session");
        let (header, payload) = split(&bytes);
        let error = Welcome::decode(&header, payload).unwrap_err();
        assert!(error.is_unknown_session());
        assert_eq!(error.to_string(), "refused by the other end: no such session");
    }

    proptest! {
        #[test]
        fn garbage_does_not_panic(payload: Vec<u8>, kind in 1u8..4, version in 0u64..3) {
            let kind = [FrameKind::Hello, FrameKind::Welcome, FrameKind::Refuse][kind as usize - 1];
            let header = Header { kind, stream: 0, offset: version, len: payload.len() as u32 };
            let _ = Hello::decode(&header, &payload);
            let _ = Welcome::decode(&header, &payload);
        }
    }
}
