//! TLS 1.3 records without a connection object around them.
//!
//! rustls keeps one state for both directions, so a reading and a writing thread would have to take
//! turns, and its reader takes 4 KiB from the socket at a time. After the handshake nothing of that state
//! is needed: no tickets, no renegotiation, no early data, and instead of a key update the connection is
//! retired ([`crate::Writer::is_worn`]). So each half takes its traffic secret and rustls' own record protection
//! (RFC 8446, section 5), and shares nothing. A record that is not application data ends the connection.

use std::io;
use std::ops::Range;

use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::{ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite};

/// Most plaintext in a record (RFC 8446, section 5.1).
pub const PLAINTEXT_MAX: usize = 1 << 14;
/// Content type, legacy version, length.
pub const HEADER_BYTES: usize = 5;
/// Most ciphertext in a record (RFC 8446, section 5.2).
const CIPHERTEXT_MAX: usize = PLAINTEXT_MAX + 256;

/// Both directions' protection, from what a finished handshake gives out.
pub(crate) fn protection(
    suite: SupportedCipherSuite,
    secrets: rustls::ExtractedSecrets,
) -> Result<(Seal, Open), rustls::Error> {
    let SupportedCipherSuite::Tls13(suite) = suite;
    let split = |secrets| {
        Ok(match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv }
            | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
            | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv),
            _ => return Err(rustls::Error::General("a cipher without record protection here".into())),
        })
    };
    let (sequence, secret) = secrets.tx;
    let (key, iv) = split(secret)?;
    let mut encrypter = suite.aead_alg.encrypter(key, iv);
    // AWS-LC's TLS 1.3 sealing key takes its first nonce for that of record 0 and wants later ones to grow
    // from there (crypto/fipsmodule/cipher/e_aes.c). So show it nonce 0; the record itself goes nowhere.
    let nothing = OutboundPlainMessage {
        typ: ContentType::ApplicationData,
        version: ProtocolVersion::TLSv1_3,
        payload: OutboundChunks::new_empty(),
    };
    if sequence > 0 {
        encrypter.encrypt(nothing, 0)?;
    }
    let seal =
        Seal { encrypter, sequence, sequence_max: sequence.saturating_add(suite.common.confidentiality_limit / 2) };
    let (sequence, secret) = secrets.rx;
    let (key, iv) = split(secret)?;
    let open = Open { decrypter: suite.aead_alg.decrypter(key, iv), sequence };
    Ok((seal, open))
}

/// Makes records.
pub(crate) struct Seal {
    encrypter: Box<dyn MessageEncrypter>,
    sequence: u64,
    sequence_max: u64,
}

impl Seal {
    /// The records of all of `parts`, each with its header.
    pub(crate) fn seal(&mut self, parts: &[&[u8]], records: &mut Vec<Vec<u8>>) -> io::Result<()> {
        let mut rest = OutboundChunks::new(parts);
        while !rest.is_empty() {
            let (payload, after) = rest.split_at(rest.len().min(PLAINTEXT_MAX));
            let message =
                OutboundPlainMessage { typ: ContentType::ApplicationData, version: ProtocolVersion::TLSv1_3, payload };
            let record = self.encrypter.encrypt(message, self.sequence).map_err(io::Error::other)?;
            self.sequence += 1;
            records.push(record.encode());
            rest = after;
        }
        Ok(())
    }

    /// Half of what the key may protect is used up: time for another connection.
    pub(crate) fn is_worn(&self) -> bool {
        self.sequence >= self.sequence_max
    }
}

/// Opens records.
pub(crate) struct Open {
    decrypter: Box<dyn MessageDecrypter>,
    sequence: u64,
}

impl Open {
    /// Opens the record at the beginning of `bytes` in place.
    ///
    /// Returns the record's length and where in `bytes` its plaintext lies; `None` if it is not whole yet;
    /// [`io::ErrorKind::UnexpectedEof`] if the peer says that it is done, other errors for all that is no
    /// application data of this connection.
    pub(crate) fn open(&mut self, bytes: &mut [u8]) -> io::Result<Option<(usize, Range<usize>)>> {
        let Some(length) = record_length(bytes)? else { return Ok(None) };
        if bytes.len() < length {
            return Ok(None);
        }
        let base = bytes.as_ptr() as usize;
        let body = &mut bytes[HEADER_BYTES..length];
        let message = InboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, body);
        let plain = self
            .decrypter
            .decrypt(message, self.sequence)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.sequence += 1;
        let start = plain.payload.as_ptr() as usize - base;
        let range = start..start + plain.payload.len();
        match plain.typ {
            ContentType::ApplicationData => Ok(Some((length, range))),
            ContentType::Alert => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "an unexpected TLS message")),
        }
    }
}

/// The length of the record that `bytes` begin with, header included, once its header is there.
pub(crate) fn record_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    // After the handshake everything travels as application data.
    if header[0] != 23 || length > CIPHERTEXT_MAX || length == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a TLS record"));
    }
    Ok(Some(HEADER_BYTES + length))
}
