//! Tests records against another implementation of the ciphers, and the end of a key.

use std::io;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305};
use rustls::ConnectionTrafficSecrets;

use super::{JOIN_BYTES, Key, RecordOpener, Seal, SequenceNumbers, Unseal, protection};

/// The ciphers of TLS 1.3 as RustCrypto has them. A test of both ends together cannot see an error that they share.
#[derive(Clone, Copy, Debug)]
enum Cipher {
    Aes128Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
}

const CIPHERS: [Cipher; 3] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

impl Cipher {
    fn key(self) -> Vec<u8> {
        let bytes = if matches!(self, Cipher::Aes128Gcm) { 16 } else { 32 };
        (0..bytes).map(|i| i * 7 + 3).collect()
    }

    fn ours(self) -> Key {
        let algorithm = match self {
            Cipher::Aes128Gcm => &AES_128_GCM,
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        Key::from_bytes(algorithm, &self.key(), &IV).unwrap()
    }

    fn seal(self, nonce: [u8; 12], aad: &[u8], msg: &[u8]) -> Vec<u8> {
        use aes_gcm::aead::{Aead, KeyInit, Payload};
        let (key, payload) = (self.key(), Payload { msg, aad });
        let sealed = match self {
            Cipher::Aes128Gcm => aes_gcm::Aes128Gcm::new_from_slice(&key).unwrap().encrypt(&nonce.into(), payload),
            Cipher::Aes256Gcm => aes_gcm::Aes256Gcm::new_from_slice(&key).unwrap().encrypt(&nonce.into(), payload),
            Cipher::ChaCha20Poly1305 => {
                let cipher = chacha20poly1305::ChaCha20Poly1305::new_from_slice(&key).unwrap();
                cipher.encrypt(&nonce.into(), payload)
            }
        };
        sealed.unwrap()
    }

    /// Returns a record as RFC 8446, sections 5.2 and 5.3, says.
    fn record(self, number: u64, content: &[u8]) -> Vec<u8> {
        let mut text = content.to_vec();
        text.push(23);
        let length = text.len() + 16;
        let mut record = vec![23, 3, 3, (length / 256) as u8, (length % 256) as u8];
        // The nonce is the number, padded on the left with zeros to the IV's length, exclusive-or the IV.
        let padded = u128::from(number).to_be_bytes();
        let nonce: [u8; 12] = std::array::from_fn(|i| padded[4 + i] ^ IV[i]);
        let sealed = self.seal(nonce, &record, &text);
        record.extend(sealed);
        record
    }
}

const IV: [u8; 12] = [0xa5, 1, 0x5a, 2, 0xff, 3, 0x80, 4, 0x7f, 5, 0, 6];

/// Holds numbers that differ in each of their bytes.
const NUMBERS: [u64; 9] =
    [0, 255, 1 << 16, (1 << 16) + 1, u32::MAX as u64, 1 << 32, 1 << 48, 0x0102_0304_0506_0708, u64::MAX];

fn unseal(cipher: Cipher, number: u64, wire: &[u8], bytes: usize) -> io::Result<Vec<u8>> {
    let numbers = SequenceNumbers { next: Some(number), last: u64::MAX };
    let (mut unseal, mut rest) = (Unseal::new(RecordOpener { key: cipher.ours(), numbers }), wire);
    let mut plain = vec![0; bytes];
    unseal.read_exact(&mut plain, |buffer, _| io::Read::read(&mut rest, buffer)).map(|()| plain)
}

#[test]
fn records_are_those_of_another_implementation() {
    // The first is copied into the record, the second is sealed from where it lies.
    for content in [b"short".repeat(3), b"long".repeat(JOIN_BYTES)] {
        for (cipher, number) in CIPHERS.into_iter().flat_map(|cipher| NUMBERS.map(|number| (cipher, number))) {
            let book = cipher.record(number, &content);
            let numbers = SequenceNumbers { next: Some(number), last: u64::MAX };
            let mut seal = Seal { key: cipher.ours(), numbers, worn_from: u64::MAX };
            assert!(seal.seal(&[&content], &mut Vec::new()).unwrap() == book, "{cipher:?}, {number:#x}");
            // The first goes into the reader's buffer, the second is opened in place, as the reader asks for a part
            // only.
            for bytes in [content.len(), 1] {
                let plain = unseal(cipher, number, &book, bytes).unwrap();
                assert!(plain == content[..bytes], "{cipher:?}, {number:#x}");
            }
            for other in NUMBERS.into_iter().filter(|other| *other != number) {
                assert!(unseal(cipher, other, &book, 1).is_err(), "{cipher:?}, {number:#x} as {other:#x}");
            }
        }
    }
}

#[test]
fn numbers_follow_each_other_and_none_comes_twice() {
    for cipher in CIPHERS {
        for first in [0, u64::from(u16::MAX) - 1, u64::from(u32::MAX) - 1] {
            let numbers = SequenceNumbers { next: Some(first), last: u64::MAX };
            let mut seal = Seal { key: cipher.ours(), numbers, worn_from: u64::MAX };
            let mut wire = Vec::new();
            for number in first..first + 4 {
                let record = seal.seal(&[b"part"], &mut Vec::new()).unwrap().to_vec();
                assert!(record == cipher.record(number, b"part"), "{cipher:?}, {number:#x}");
                wire.extend(record);
            }
            assert_eq!(unseal(cipher, first, &wire, 16).unwrap(), b"part".repeat(4));
        }
        // After 2^64-1 there is no number.
        let numbers = SequenceNumbers { next: Some(u64::MAX), last: u64::MAX };
        let mut seal = Seal { key: cipher.ours(), numbers, worn_from: u64::MAX };
        let mut wire = seal.seal(&[b"last"], &mut Vec::new()).unwrap().to_vec();
        assert!(seal.is_worn() && seal.seal(&[b"more"], &mut Vec::new()).is_err());
        wire.extend(cipher.record(0, b"more"));
        assert!(unseal(cipher, u64::MAX, &wire, 8).is_err());
    }
}

/// Returns the secrets that a handshake with this suite gives out, after so many records under its keys.
fn secrets(suite: rustls::CipherSuite, sent: u64) -> rustls::ExtractedSecrets {
    let (key, iv) = (|| [7; 32].into(), || rustls::crypto::cipher::Iv::from(IV));
    let secrets = || match suite {
        rustls::CipherSuite::TLS13_AES_256_GCM_SHA384 => ConnectionTrafficSecrets::Aes256Gcm { key: key(), iv: iv() },
        _ => ConnectionTrafficSecrets::Chacha20Poly1305 { key: key(), iv: iv() },
    };
    rustls::ExtractedSecrets { tx: (sent, secrets()), rx: (0, secrets()) }
}

#[test]
fn a_connection_is_retired_at_half_of_its_keys_limit() {
    use rustls::crypto::aws_lc_rs::cipher_suite::*;
    // draft-irtf-cfrg-aead-limits, section 5: for AES-GCM 2^24 records of 2^14 bytes; none for ChaCha20.
    let limits = [(TLS13_AES_256_GCM_SHA384, 1 << 24), (TLS13_CHACHA20_POLY1305_SHA256, u64::MAX)];
    for (suite, limit) in limits {
        // The handshake's own records count.
        for sent in [0, 3] {
            let (mut seal, _) = protection(suite, secrets(suite.suite(), sent)).unwrap();
            assert_eq!(seal.numbers.next, Some(sent));
            let mut seal_at = |number: u64| {
                seal.numbers.next = Some(number);
                let worn_before = seal.is_worn();
                (seal.seal(&[b"x"], &mut Vec::new()).is_ok(), worn_before, seal.is_worn())
            };
            let half = sent + limit / 2;
            assert_eq!(seal_at(sent), (true, false, false));
            assert_eq!(seal_at(half - 2), (true, false, false));
            assert_eq!(seal_at(half - 1), (true, false, true), "{suite:?}");
            // An end that goes on all the same is stopped.
            let last = sent.saturating_add(limit - 1);
            assert_eq!(seal_at(last), (true, true, true), "{suite:?}");
            if last < u64::MAX {
                assert_eq!(seal_at(last + 1), (false, true, true), "{suite:?}");
            }
        }
    }
}
