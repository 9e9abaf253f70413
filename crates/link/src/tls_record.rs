//! Protects TLS 1.3 records without a connection object around them.
//!
//! rustls keeps one state for both directions, so a reading and a writing thread would have to take turns. It also
//! reads 4 KiB at a time, and copies every byte once in each direction beside the cipher. After the handshake nothing
//! of that state is needed: there are no tickets, no renegotiation, no early data, and instead of a key update the
//! connection is retired ([`Seal::is_worn`]). So each half takes its traffic secret and protects records itself (RFC
//! 8446, section 5) from where the plaintext lies to where the ciphertext goes, or back. A record that is not
//! application data ends the connection.
//!
//! Where both ends agreed on AEGIS-128X2, its keys come from the exporter of the handshake (RFC 8446, section 7.5), and
//! the numbers of records begin at 0 when the handshake is over. The records' format is the same.

mod key;

use std::io;
use std::ops::Range;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305};
use rustls::{CipherSuite, SupportedCipherSuite};
use skein_identity::RecordCipher;

use self::key::{APPLICATION_DATA, DoesNotOpen, Key, TAG_BYTES};

/// Bounds the plaintext of a record (RFC 8446, section 5.1).
pub const PLAINTEXT_MAX: usize = 1 << 14;
/// Holds the bytes of a header: content type, legacy version, length.
pub const HEADER_BYTES: usize = 5;
/// Bounds the ciphertext of a record (RFC 8446, section 5.2).
const CIPHERTEXT_MAX: usize = PLAINTEXT_MAX + 256;
/// Says what a record adds to its plaintext: header, inner content type, tag.
const TLS_RECORD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;
/// The content type of an alert (RFC 8446, section 5.1).
const ALERT: u8 = 21;
/// Bounds the parts that share records with their neighbours. A longer part begins a record of its own, so that the
/// receiver can open the part to where it belongs.
const JOIN_BYTES: usize = 4 << 10;
/// Says how much ciphertext a receiver takes from its socket at once, and with it the records that fit.
const READ_BYTES: usize = 256 << 10;

/// Bounds the records of a key of AEGIS-128X2, to 2^62 bytes. The cipher has no limit of its own where each nonce comes
/// once; so many messages are safe even with nonces drawn at random (RFC 10032, "Key and Nonce Selection").
const AEGIS_RECORDS: u64 = 1 << 48;
/// Names what keys are exported for. Labels that begin so need no registration (RFC 5705, section 4).
const AEGIS_LABEL: &[u8] = b"EXPERIMENTAL-skein-records";
/// Names the cipher of the keys.
const AEGIS_CONTEXT: &[u8] = b"aegis-128x2";

/// Returns both directions' protection, with the cipher that the ends of a finished handshake agreed on.
pub(crate) fn protection(connection: rustls::Connection) -> Result<(Seal, RecordOpener), rustls::Error> {
    let unfinished = rustls::Error::HandshakeNotComplete;
    let (suite, cipher) =
        connection.negotiated_cipher_suite().zip(skein_identity::record_cipher(&connection)).ok_or(unfinished)?;
    let exported = match cipher {
        RecordCipher::Aegis128X2 => Some(aegis_protection(&connection)?),
        RecordCipher::OfSuite(_) => None,
    };
    // This also fails where the handshake has left something unsent.
    let secrets = connection.dangerous_extract_secrets()?;
    exported.map_or_else(|| suite_protection(suite, secrets), Ok)
}

/// Returns both directions' protection with the cipher of a suite.
fn suite_protection(
    suite: SupportedCipherSuite,
    secrets: rustls::ExtractedSecrets,
) -> Result<(Seal, RecordOpener), rustls::Error> {
    // A program that is built with rustls' TLS 1.2 for another end's sake has suites of it, too, and none is agreed on.
    let suite = suite.tls13().ok_or_else(|| rustls::Error::General("a suite that is not of TLS 1.3".to_owned()))?;
    let ((sequence, sealing), (read_sequence, opening)) = (secrets.tx, secrets.rx);
    let limit = suite.common.confidentiality_limit;
    Ok((Seal::new(Key::new(sealing)?, sequence, limit), RecordOpener::new(Key::new(opening)?, read_sequence)))
}

/// Returns both directions' protection with AEGIS-128X2. Exported are 64 bytes: key and nonce mask of what the client
/// sends, then those of what the server sends.
fn aegis_protection(connection: &rustls::Connection) -> Result<(Seal, RecordOpener), rustls::Error> {
    let exported = connection.export_keying_material([0; 64], AEGIS_LABEL, Some(AEGIS_CONTEXT))?;
    let part = |at: usize| std::array::from_fn(|i| exported[at + i]);
    let (client, server) =
        (Key::Aegis128X2 { key: part(0), iv: part(16) }, Key::Aegis128X2 { key: part(32), iv: part(48) });
    let (sealing, opening) = match connection {
        rustls::Connection::Client(_) => (client, server),
        rustls::Connection::Server(_) => (server, client),
    };
    Ok((Seal::new(sealing, 0, AEGIS_RECORDS), RecordOpener::new(opening, 0)))
}

/// Bounds the messages of a key of a suite: of 17 * 2^10 blocks of AES each at most, so that there are fewer blocks
/// than in as many records of TLS as AES-GCM may protect, 2^24.5 of 2^10 blocks (RFC 8446, section 5.5).
const SUITE_MESSAGES: u64 = 1 << 20;
/// Bounds a message, in bytes.
const MESSAGE_BYTES_MAX: usize = 17 << 14;
/// Names what keys of messages are exported for.
const MESSAGE_LABEL: &[u8] = b"EXPERIMENTAL-skein-messages";
/// Says what protection adds to a message.
pub(crate) const MESSAGE_OVERHEAD_BYTES: usize = 1 + TAG_BYTES;

/// Both directions' protection of messages that arrive in any order.
pub struct MessageProtection {
    pub(crate) seal: MessageSeal,
    pub(crate) open: MessageOpener,
}

/// Returns both directions' protection of messages, with the cipher that the ends of a finished handshake agreed on.
/// Exported are key and nonce mask of what the client sends, then those of what the server sends.
pub(crate) fn message_protection(connection: &rustls::Connection) -> Result<MessageProtection, rustls::Error> {
    let unfinished = rustls::Error::HandshakeNotComplete;
    let (suite, cipher) =
        connection.negotiated_cipher_suite().zip(skein_identity::record_cipher(connection)).ok_or(unfinished)?;
    let exported = connection.export_keying_material([0; 128], MESSAGE_LABEL, Some(AEGIS_CONTEXT))?;
    let [client, server] = [&exported[..64], &exported[64..]].map(|own| match cipher {
        RecordCipher::Aegis128X2 => {
            let part = |at: usize| std::array::from_fn(|i| own[at + i]);
            Some((Key::Aegis128X2 { key: part(0), iv: part(16) }, AEGIS_RECORDS))
        }
        RecordCipher::OfSuite(_) => {
            let algorithm = match suite.suite() {
                CipherSuite::TLS13_AES_128_GCM_SHA256 => &AES_128_GCM,
                CipherSuite::TLS13_AES_256_GCM_SHA384 => &AES_256_GCM,
                CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => &CHACHA20_POLY1305,
                _ => return None,
            };
            Key::of_suite(algorithm, &own[..algorithm.key_len()], &own[32..44]).map(|key| (key, SUITE_MESSAGES))
        }
    });
    let unknown = || rustls::Error::General("a cipher without protection of messages here".into());
    let (client, server) = (client.ok_or_else(unknown)?, server.ok_or_else(unknown)?);
    let (own, peers) = match connection {
        rustls::Connection::Client(_) => (client, server),
        rustls::Connection::Server(_) => (server, client),
    };
    let seal = MessageSeal { key: own.0, next: 0, worn_from: own.1 / 2, limit: own.1 };
    Ok(MessageProtection { seal, open: MessageOpener { key: peers.0 } })
}

/// Seals messages.
pub(crate) struct MessageSeal {
    key: Key,
    /// The least number that was not used.
    next: u64,
    worn_from: u64,
    limit: u64,
}

impl MessageSeal {
    /// Seals the message at the beginning of `body`, which has [`MESSAGE_OVERHEAD_BYTES`] more, under a number that is
    /// larger than those before.
    ///
    /// # Errors
    /// The number was used, or the key has protected as many messages as it may.
    pub(crate) fn seal_in_place(&mut self, number: u64, header: &[u8], body: &mut [u8]) -> io::Result<()> {
        if number < self.next || number >= self.limit || body.len() > MESSAGE_BYTES_MAX + MESSAGE_OVERHEAD_BYTES {
            return Err(io::Error::other("the key of a connection protects no such message"));
        }
        self.next = number + 1;
        self.key.seal_in_place(number, header, body).map_err(io::Error::other)
    }

    /// Returns whether half of what the key may protect is used up.
    pub(crate) fn is_worn(&self) -> bool {
        self.next >= self.worn_from
    }
}

/// Opens messages. Whether a number has come before is their reader's to know.
pub(crate) struct MessageOpener {
    key: Key,
}

impl MessageOpener {
    /// Opens a message where it lies. Returns how long it is. Nobody else may write there: ciphers read it twice.
    ///
    /// # Errors
    /// The message is none of the peer's, or something changed it.
    pub(crate) fn open_in_place(&self, number: u64, header: &[u8], body: &mut [u8]) -> io::Result<usize> {
        let changed = || io::Error::new(io::ErrorKind::InvalidData, "a message was damaged or changed on its way");
        let bytes = body.len().checked_sub(MESSAGE_OVERHEAD_BYTES).ok_or_else(changed)?;
        let plain = self.key.open_in_place(number, header, body).map_err(|_| changed())?;
        if plain.get(bytes) == Some(&APPLICATION_DATA) { Ok(bytes) } else { Err(changed()) }
    }
}

/// The numbers of a key's records. Each number is given once (RFC 8446, section 5.3: they must not wrap).
struct SequenceNumbers {
    /// The next record's number; `None` after 2^64-1.
    next: Option<u64>,
    /// The last number that the key may protect.
    last: u64,
}

impl SequenceNumbers {
    fn take(&mut self) -> io::Result<u64> {
        let used_up = || io::Error::other("the key of a connection has protected as many records as it may");
        let number = self.next.filter(|next| *next <= self.last).ok_or_else(used_up)?;
        self.next = number.checked_add(1);
        Ok(number)
    }
}

/// Returns the header of a record of `length` bytes of ciphertext.
fn header(length: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = (length as u16).to_be_bytes();
    [APPLICATION_DATA, 3, 3, high, low]
}

/// Makes records.
pub struct Seal {
    key: Key,
    numbers: SequenceNumbers,
    /// The number from which on it is time for another connection.
    worn_from: u64,
}

impl Seal {
    /// Makes a half whose key may protect `limit` records, from the number `first` on.
    fn new(key: Key, first: u64, limit: u64) -> Seal {
        let numbers = SequenceNumbers { next: Some(first), last: first.saturating_add(limit - 1) };
        Seal { key, numbers, worn_from: first.saturating_add(limit / 2) }
    }

    /// Returns the records of all of `parts`, in `buffer`, which grows as needed.
    pub fn seal<'b>(&mut self, parts: &[&[u8]], buffer: &'b mut Vec<u8>) -> io::Result<&'b [u8]> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        // A long part ends with at most one short record, and a short part may end a record.
        let records_max = bytes / PLAINTEXT_MAX + parts.len();
        let most = bytes + records_max * TLS_RECORD_BYTES;
        if buffer.len() < most {
            buffer.resize(most, 0);
        }
        let (mut end, mut gathered) = (0, 0);
        for part in parts {
            let long = part.len() >= JOIN_BYTES;
            if gathered > 0 && (long || gathered + part.len() > PLAINTEXT_MAX) {
                end += self.record(None, gathered, &mut buffer[end..])?;
                gathered = 0;
            }
            if long {
                for piece in part.chunks(PLAINTEXT_MAX) {
                    end += self.record(Some(piece), piece.len(), &mut buffer[end..])?;
                }
            } else {
                let at = end + HEADER_BYTES + gathered;
                buffer[at..at + part.len()].copy_from_slice(part);
                gathered += part.len();
            }
        }
        if gathered > 0 {
            end += self.record(None, gathered, &mut buffer[end..])?;
        }
        Ok(&buffer[..end])
    }

    /// Makes one record at the beginning of `buffer`, of `plain` or of what lies there behind the header's place.
    /// Returns the record's length.
    fn record(&mut self, plain: Option<&[u8]>, bytes: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let (head, body) = buffer[..bytes + TLS_RECORD_BYTES].split_at_mut(HEADER_BYTES);
        head.copy_from_slice(&header(bytes + 1 + TAG_BYTES));
        let number = self.numbers.take()?;
        let sealed = match plain {
            Some(plain) => self.key.seal(number, head, plain, body),
            None => self.key.seal_in_place(number, head, body),
        };
        sealed.map_err(io::Error::other)?;
        Ok(bytes + TLS_RECORD_BYTES)
    }

    /// Returns whether half of what the key may protect is used up. Then it is time for another connection.
    pub fn is_worn(&self) -> bool {
        self.numbers.next.is_none_or(|next| next >= self.worn_from)
    }

    /// Makes the key worn after `records` more records, not only at half of what the cipher may protect. This is for
    /// tests.
    pub(crate) fn retire_after(&mut self, records: u64) {
        self.worn_from = self.numbers.next.unwrap_or(u64::MAX).saturating_add(records);
    }
}

/// Opens records.
pub struct RecordOpener {
    key: Key,
    numbers: SequenceNumbers,
}

impl RecordOpener {
    /// Makes a half that reads from the number `first` on. How many records the key protects is the other end's duty.
    fn new(key: Key, first: u64) -> RecordOpener {
        RecordOpener { key, numbers: SequenceNumbers { next: Some(first), last: u64::MAX } }
    }

    /// Opens a whole record into `out`, which has room for all but its header and tag. Returns how much of it is
    /// plaintext. All that is no application data of this connection is an error, see [`content`].
    fn open_to(&mut self, record: &[u8], out: &mut [u8]) -> io::Result<usize> {
        let (header, body) = record.split_at(HEADER_BYTES);
        let out = &mut out[..body.len() - TAG_BYTES];
        self.key.open(self.numbers.take()?, header, body, out).map_err(changed)?;
        content(out)
    }

    /// Opens a record as [`Self::open_to`] does, but in place. Returns where in `record` the plaintext is.
    fn open_in_place(&mut self, record: &mut [u8]) -> io::Result<Range<usize>> {
        let (header, body) = record.split_at_mut(HEADER_BYTES);
        let plain = self.key.open_in_place(self.numbers.take()?, header, body).map_err(changed)?;
        Ok(HEADER_BYTES..HEADER_BYTES + content(plain)?)
    }
}

/// Returns what an end within a record or a message is: a cut, and no end in order. TCP alone does not tell.
pub(crate) fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was cut off within a message")
}

fn changed(_: DoesNotOpen) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a TLS record was damaged or changed on its way")
}

/// Returns how much of an opened record is content. Behind the content are its type and a padding of zeros (RFC 8446,
/// section 5.2).
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] for an alert: the peer is done.
fn content(plain: &[u8]) -> io::Result<usize> {
    let end = plain.iter().rposition(|byte| *byte != 0);
    match end.map(|end| (end, plain[end])) {
        Some((end, APPLICATION_DATA)) if end <= PLAINTEXT_MAX => Ok(end),
        Some((_, ALERT)) => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "an unexpected TLS message")),
    }
}

/// Returns the length of the record at the beginning of `bytes`, header included, once its header is there.
fn record_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    // After the handshake everything travels as application data.
    if header[0] != APPLICATION_DATA || !(1 + TAG_BYTES..=CIPHERTEXT_MAX).contains(&length) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a TLS record"));
    }
    Ok(Some(HEADER_BYTES + length))
}

/// Reads plaintext out of a stream of records.
pub struct Unseal {
    open: RecordOpener,
    bytes: Vec<u8>,
    /// The end of the records that are opened.
    parsed: usize,
    /// The end of the bytes from the stream.
    filled: usize,
    /// The plaintext of the last record that was not asked for yet.
    plain: Range<usize>,
}

impl Unseal {
    pub(crate) fn new(open: RecordOpener) -> Unseal {
        Unseal { open, bytes: vec![0; READ_BYTES], parsed: 0, filled: 0, plain: 0..0 }
    }

    /// Fills `out`. `read` has to fill a part of the buffer that it is given with the bytes that follow. Its second
    /// argument says how many bytes are sure to follow.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] at the stream's end, [`io::ErrorKind::ConnectionAborted`] at an end within a
    /// record or within `out`.
    pub fn read_exact(
        &mut self,
        out: &mut [u8],
        mut read: impl FnMut(&mut [u8], usize) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            let out = &mut out[done..];
            if !self.plain.is_empty() {
                let n = self.plain.len().min(out.len());
                out[..n].copy_from_slice(&self.bytes[self.plain.start..self.plain.start + n]);
                self.plain.start += n;
                done += n;
            } else if let Some(length) = record_length(&self.bytes[self.parsed..self.filled])?
                && length <= self.filled - self.parsed
            {
                let record = &mut self.bytes[self.parsed..self.parsed + length];
                if length - HEADER_BYTES - TAG_BYTES <= out.len() {
                    done += self.open.open_to(record, out)?;
                } else {
                    let plain = self.open.open_in_place(record)?;
                    self.plain = self.parsed + plain.start..self.parsed + plain.end;
                }
                self.parsed += length;
            } else {
                self.bytes.copy_within(self.parsed..self.filled, 0);
                self.filled -= self.parsed;
                self.parsed = 0;
                let room = &mut self.bytes[self.filled..];
                // Records are longer than their plaintext.
                let sure = out.len().saturating_sub(self.filled).clamp(1, room.len());
                match read(room, sure)? {
                    0 if done > 0 || self.filled > 0 => return Err(cut_off()),
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    n => self.filled += n,
                }
            }
        }
        Ok(())
    }
}

const _: () = assert!(READ_BYTES > 2 * (HEADER_BYTES + CIPHERTEXT_MAX), "whole records fit");

/// Returns both ends of one direction, with a key that everybody knows: of AES-GCM, and of AEGIS-128X2. This is for
/// tests and fuzzers.
#[doc(hidden)]
pub fn pairs() -> [(Seal, Unseal); 2] {
    let aes = || Key::of_suite(&AES_128_GCM, &[7; 16], &[9; 12]).expect("lengths fit");
    let aegis = || Key::Aegis128X2 { key: [7; 16], iv: [9; 16] };
    [[aes(), aes()], [aegis(), aegis()]]
        .map(|[sealing, opening]| (Seal::new(sealing, 0, u64::MAX), Unseal::new(RecordOpener::new(opening, 0))))
}

#[cfg(test)]
mod by_the_book;
#[cfg(test)]
mod message_tests;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns `wire` in pieces of lengths from `cuts`, and checks the number of bytes that are sure to follow.
    fn wire_in_pieces<'a>(wire: &'a [u8], cuts: &'a [usize]) -> impl FnMut(&mut [u8], usize) -> io::Result<usize> + 'a {
        let (mut at, mut cuts) = (0, cuts.iter().cycle());
        move |buffer, sure| {
            assert!(sure <= wire.len() - at, "waits for {sure} bytes where {} follow", wire.len() - at);
            let n = (*cuts.next().unwrap()).clamp(1, buffer.len()).min(wire.len() - at);
            buffer[..n].copy_from_slice(&wire[at..at + n]);
            at += n;
            Ok(n)
        }
    }

    fn any_parts() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let length = prop_oneof![0usize..40, 4000usize..4200, 0usize..70_000];
        let part = (length, any::<u8>()).prop_map(|(n, seed)| (0..n).map(|i| (i >> 6) as u8 ^ seed).collect());
        proptest::collection::vec(part, 1..8)
    }

    proptest! {
        /// Whatever the parts and the reads below and above, the same bytes come out. Nothing waits for more than there
        /// is.
        #[test]
        fn what_is_sealed_opens(
            writes in proptest::collection::vec(any_parts(), 1..4),
            cuts in proptest::collection::vec(1usize..100_000, 1..8),
            asks in proptest::collection::vec(1usize..60_000, 1..8),
        ) {
            for (mut seal, mut unseal) in pairs() {
                let (mut wire, mut buffer) = (Vec::new(), Vec::new());
                for parts in &writes {
                    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                    wire.extend_from_slice(seal.seal(&parts, &mut buffer).unwrap());
                }
                let plain = writes.concat().concat();
                let mut source = wire_in_pieces(&wire, &cuts);
                let (mut got, mut asks) = (Vec::new(), asks.iter().cycle());
                while got.len() < plain.len() {
                    let ask = (*asks.next().unwrap()).min(plain.len() - got.len());
                    let mut out = vec![0; ask];
                    unseal.read_exact(&mut out, &mut source).unwrap();
                    got.extend(out);
                }
                prop_assert!(got == plain);
            }
        }

        /// Every changed bit is noticed, and nothing after it comes out.
        #[test]
        fn what_is_changed_does_not_open(parts in any_parts(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let length: usize = parts.iter().map(|part| part.len()).sum();
            prop_assume!(length > 0);
            for (mut seal, mut unseal) in pairs() {
                let mut wire = seal.seal(&parts, &mut Vec::new()).unwrap().to_vec();
                let at = at.index(wire.len());
                wire[at] ^= 1 << bit;
                let mut rest = &wire[..];
                let read = unseal.read_exact(&mut vec![0; length], |buffer, _| io::Read::read(&mut rest, buffer));
                // The legacy version in a header says nothing, but is authenticated like the rest.
                prop_assert!(read.is_err());
            }
        }
    }

    #[test]
    fn an_alert_is_an_end_and_padding_is_none() {
        assert_eq!(content(b"\x01\0\x15").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(content(b"ab\x17\0\0").unwrap(), 2);
        assert_eq!(content(b"ab\x16").unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(content(&[0; 20]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_header_is_no_promise() {
        let claims = |kind: u8, length: u16| record_length(&[[kind, 3, 3].as_slice(), &length.to_be_bytes()].concat());
        assert_eq!(claims(23, 17).unwrap(), Some(22));
        for (kind, length) in [(22, 100), (23, 0), (23, 16), (23, 0x4101)] {
            assert_eq!(claims(kind, length).unwrap_err().kind(), io::ErrorKind::InvalidData, "{kind} {length}");
        }
    }
}
