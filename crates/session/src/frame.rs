//! Frames: all bytes on a connection, from the handshake on.
//!
//! Every frame is a header of 20 bytes, big-endian, and a payload:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | kind |
//! | 1..4 | zero |
//! | 4..8 | stream, or connection in an [`FrameKind::Ack`] |
//! | 8..16 | offset: see the kind |
//! | 16..20 | bytes of payload |
//!
//! Credit and acknowledgement are totals, not increments: to repeat, lose or reorder them across connections does no
//! harm.

use bytes::Bytes;
use thiserror::Error;

use crate::address::{NicAddress, decode_addresses};
use crate::limits::{
    CHUNK_BYTES_MAX, DESTINATION_BYTES_MAX, HELLO_BYTES_MAX, OFFSET_MAX, PROBE_BYTES_MAX, REASON_BYTES_MAX,
};
use crate::{ConnectionId, StreamId};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 20;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The first frame on a connection, sent by the end that dialled. Payload: [`crate::handshake::Hello`].
    Hello = 1,
    /// Accepts a [`Hello`](FrameKind::Hello). Payload: [`crate::handshake::Welcome`].
    Welcome = 2,
    /// Refuses a [`Hello`](FrameKind::Hello); the connection ends after this frame. Offset: code. Payload: reason.
    Refuse = 3,
    /// Shows whether packets of its size pass the path; the peer answers with a frame of the same size. It is the first
    /// and last frame on its connection. Payload: zeros.
    Probe = 4,
    /// Opens a stream; payload: the target's name (UTF-8).
    Open = 8,
    /// Bytes of a stream from `offset` on.
    Data = 9,
    /// No bytes of the stream follow from `offset` on.
    Fin = 10,
    /// Tears the stream down in both directions. Offset: code. Payload: reason.
    Reset = 11,
    /// Allows the peer to send the stream up to `offset`.
    Credit = 12,
    /// Acknowledges all frames of the connection in `stream` that end at or before byte `offset`.
    Ack = 13,
    /// Asks for a [`Pong`](FrameKind::Pong) at once. Offset: any number.
    Ping = 14,
    /// Answers a [`Ping`](FrameKind::Ping). Offset: the ping's number.
    Pong = 15,
    /// Announces the sender's addresses after a change. Offset: how many changes there were so far. Payload:
    /// [`crate::address::NicAddress`]es.
    Addresses = 16,
    /// Ends the session. Offset: code. Payload: reason.
    Bye = 17,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<FrameKind> {
        use FrameKind::*;
        [Hello, Welcome, Refuse, Probe, Open, Data, Fin, Reset, Credit, Ack, Ping, Pong, Addresses, Bye]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }

    /// Returns the most payload bytes that a frame of this kind may have.
    fn payload_max(self) -> usize {
        match self {
            FrameKind::Hello | FrameKind::Welcome | FrameKind::Addresses => HELLO_BYTES_MAX,
            FrameKind::Refuse | FrameKind::Reset | FrameKind::Bye => REASON_BYTES_MAX,
            FrameKind::Open => DESTINATION_BYTES_MAX,
            FrameKind::Data => CHUNK_BYTES_MAX,
            FrameKind::Probe => PROBE_BYTES_MAX,
            FrameKind::Fin | FrameKind::Credit | FrameKind::Ack | FrameKind::Ping | FrameKind::Pong => 0,
        }
    }

    /// Returns whether the peer acknowledges frames of this kind. The others concern the connection itself.
    pub fn is_acknowledged(self) -> bool {
        !matches!(self, FrameKind::Ack | FrameKind::Ping | FrameKind::Pong)
    }
}

/// Why bytes are not a frame.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The kind is unknown, or reserved bytes are not zero.
    #[error("not a frame: kind {0:#04x} (the other end speaks another protocol, or the stream is damaged)")]
    NotAFrame(u8),
    /// The payload is larger than the kind allows, or a data frame is empty.
    #[error("a {kind:?} frame claims {len} bytes of payload")]
    BadLength {
        /// The frame's kind.
        kind: FrameKind,
        /// The payload's length that the header claims, in bytes.
        len: u32,
    },
    /// The offset is beyond what any stream can reach.
    #[error("a {kind:?} frame claims offset {offset}")]
    BadOffset {
        /// The frame's kind.
        kind: FrameKind,
        /// The offset that the header claims.
        offset: u64,
    },
    /// The payload does not decode.
    #[error("the payload of a {0:?} frame does not decode")]
    BadPayload(FrameKind),
}

/// A frame's header, after its checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The frame's kind.
    pub kind: FrameKind,
    /// The stream or the connection: see [`FrameKind`].
    pub stream: u32,
    /// What the offset means depends on the kind: see [`FrameKind`].
    pub offset: u64,
    /// Bytes of payload that follow.
    pub len: u32,
}

impl Header {
    /// Returns the header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.stream.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Reads and checks a header. After that it is safe to allocate `len` bytes.
    ///
    /// # Errors
    /// Any [`FrameError`] but [`FrameError::BadPayload`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let kind =
            FrameKind::from_byte(bytes[0]).filter(|_| bytes[1..4] == [0; 3]).ok_or(FrameError::NotAFrame(bytes[0]))?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (stream, len) = (word(4), word(16));
        let offset = u64::from(word(8)) << 32 | u64::from(word(12));
        if len as usize > kind.payload_max() || (kind == FrameKind::Data && len == 0) {
            return Err(FrameError::BadLength { kind, len });
        }
        if !matches!(kind, FrameKind::Ping | FrameKind::Pong) && offset > OFFSET_MAX {
            return Err(FrameError::BadOffset { kind, offset });
        }
        Ok(Header { kind, stream, offset, len })
    }

    /// Returns the bytes of the whole frame: header and payload.
    pub fn frame_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.len)
    }
}

/// Returns the longest beginning of a reason that fits a frame.
pub fn truncated(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]
}

/// A received frame of an established session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the kinds say it
pub enum Frame {
    Open { stream: StreamId, destination: String },
    Data { stream: StreamId, offset: u64, data: Bytes },
    Fin { stream: StreamId, offset: u64 },
    Reset { stream: StreamId, code: u64, reason: String },
    Credit { stream: StreamId, offset: u64 },
    Ack { connection: ConnectionId, offset: u64 },
    Ping { token: u64 },
    Pong { token: u64 },
    Addresses { change: u64, addresses: Vec<NicAddress> },
    Bye { code: u64, reason: String },
}

impl Frame {
    /// Makes a frame of a header and its payload (exactly `header.len` bytes).
    ///
    /// # Errors
    /// [`FrameError::BadPayload`] if the payload does not decode, and for the handshake's kinds, which are not part of
    /// a session.
    pub fn parse(header: Header, payload: Bytes) -> Result<Frame, FrameError> {
        debug_assert_eq!(payload.len(), header.len as usize);
        let Header { kind, stream, offset, .. } = header;
        let bad = FrameError::BadPayload(kind);
        let text = || match std::str::from_utf8(&payload) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(FrameError::BadPayload(kind)),
        };
        let stream = StreamId(stream);
        Ok(match kind {
            FrameKind::Open => Frame::Open { stream, destination: text()? },
            FrameKind::Data => Frame::Data { stream, offset, data: payload },
            FrameKind::Fin => Frame::Fin { stream, offset },
            FrameKind::Reset => Frame::Reset { stream, code: offset, reason: text()? },
            FrameKind::Credit => Frame::Credit { stream, offset },
            FrameKind::Ack => Frame::Ack { connection: ConnectionId(stream.0), offset },
            FrameKind::Ping => Frame::Ping { token: offset },
            FrameKind::Pong => Frame::Pong { token: offset },
            FrameKind::Addresses => {
                Frame::Addresses { change: offset, addresses: decode_addresses(&payload).ok_or(bad)? }
            }
            FrameKind::Bye => Frame::Bye { code: offset, reason: text()? },
            FrameKind::Hello | FrameKind::Welcome | FrameKind::Refuse | FrameKind::Probe => return Err(bad),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_header_is_refused_or_encodes_to_itself(bytes: [u8; HEADER_BYTES]) {
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
                prop_assert!(header.len as usize <= CHUNK_BYTES_MAX);
            }
        }

        #[test]
        fn likely_headers_do_not_panic(kind in 0u8..20, stream: u32, offset: u64, len in 0u32..300_000) {
            let mut bytes = [0; HEADER_BYTES];
            bytes[0] = kind;
            bytes[4..8].copy_from_slice(&stream.to_be_bytes());
            bytes[8..16].copy_from_slice(&offset.to_be_bytes());
            bytes[16..20].copy_from_slice(&len.to_be_bytes());
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
                let _ = Frame::parse(header, Bytes::from(vec![0xff; len as usize]));
            }
        }
    }

    #[test]
    fn lies_about_lengths_are_refused() {
        let lie = |kind, len| Header::decode(&Header { kind, stream: 0, offset: 0, len }.encode());
        assert!(matches!(lie(FrameKind::Data, u32::MAX), Err(FrameError::BadLength { .. })));
        assert!(matches!(lie(FrameKind::Data, 0), Err(FrameError::BadLength { .. })));
        assert!(matches!(lie(FrameKind::Credit, 1), Err(FrameError::BadLength { .. })));
        assert!(matches!(lie(FrameKind::Open, 1 << 20), Err(FrameError::BadLength { .. })));
        assert!(lie(FrameKind::Data, CHUNK_BYTES_MAX as u32).is_ok());
    }

    #[test]
    fn other_protocols_are_told_from_frames() {
        let http = *b"GET / HTTP/1.1\r\nHost";
        assert_eq!(Header::decode(&http), Err(FrameError::NotAFrame(b'G')));
    }
}
