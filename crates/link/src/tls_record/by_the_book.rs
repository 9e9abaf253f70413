//! Tests records against another implementation of the ciphers, and the end of a key.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use aegis::aegis128x2::Aegis128X2;
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305};
use rustls::{ClientConfig, ClientConnection, ConnectionTrafficSecrets, ServerConfig, ServerConnection};
use skein_identity::{CipherPolicy, ClusterCa, Validity};

use super::{
    AEGIS_RECORDS, JOIN_BYTES, Key, RecordOpener, Seal, SequenceNumbers, Unseal, protection, suite_protection,
};

/// The ciphers of TLS 1.3 as RustCrypto has them, and AEGIS-128X2 in one piece, where records are made piece by piece.
/// A test of both ends together cannot see an error that they share.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cipher {
    Aes128Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
    Aegis128X2,
}

pub(super) const CIPHERS: [Cipher; 4] =
    [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305, Cipher::Aegis128X2];

impl Cipher {
    fn key(self) -> Vec<u8> {
        let bytes = if matches!(self, Cipher::Aes128Gcm | Cipher::Aegis128X2) { 16 } else { 32 };
        (0..bytes).map(|i| i * 7 + 3).collect()
    }

    /// Returns the nonce mask: the last bytes of [`IV`].
    fn iv(self) -> &'static [u8] {
        if matches!(self, Cipher::Aegis128X2) { &IV } else { &IV[4..] }
    }

    pub(super) fn ours(self) -> Key {
        let algorithm = match self {
            Cipher::Aes128Gcm => &AES_128_GCM,
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            Cipher::Aegis128X2 => return Key::Aegis128X2 { key: self.key().try_into().unwrap(), iv: IV },
        };
        Key::of_suite(algorithm, &self.key(), self.iv()).unwrap()
    }

    pub(super) fn seal(self, nonce: &[u8], aad: &[u8], msg: &[u8]) -> Vec<u8> {
        use aes_gcm::aead::{Aead, KeyInit, Payload};
        let (key, payload) = (self.key(), Payload { msg, aad });
        if matches!(self, Cipher::Aegis128X2) {
            let cipher = Aegis128X2::<16>::new(&key.try_into().unwrap(), nonce.try_into().unwrap());
            let (text, tag) = cipher.encrypt(msg, aad);
            return [text, tag.to_vec()].concat();
        }
        let nonce: [u8; 12] = nonce.try_into().unwrap();
        let sealed = match self {
            Cipher::Aes128Gcm => aes_gcm::Aes128Gcm::new_from_slice(&key).unwrap().encrypt(&nonce.into(), payload),
            Cipher::Aes256Gcm => aes_gcm::Aes256Gcm::new_from_slice(&key).unwrap().encrypt(&nonce.into(), payload),
            _ => {
                let cipher = chacha20poly1305::ChaCha20Poly1305::new_from_slice(&key).unwrap();
                cipher.encrypt(&nonce.into(), payload)
            }
        };
        sealed.unwrap()
    }

    /// Returns a nonce: the number, padded on the left with zeros to the length of the mask, exclusive-or the mask.
    pub(super) fn nonce(self, number: u64) -> Vec<u8> {
        let padded = &u128::from(number).to_be_bytes()[16 - self.iv().len()..];
        padded.iter().zip(self.iv()).map(|(number, mask)| number ^ mask).collect()
    }

    /// Returns a record as RFC 8446, sections 5.2 and 5.3, says.
    fn record(self, number: u64, content: &[u8]) -> Vec<u8> {
        let mut text = content.to_vec();
        text.push(23);
        let length = text.len() + 16;
        let mut record = vec![23, 3, 3, (length / 256) as u8, (length % 256) as u8];
        let sealed = self.seal(&self.nonce(number), &record, &text);
        record.extend(sealed);
        record
    }
}

const IV: [u8; 16] = [7, 0xc3, 8, 0x99, 0xa5, 1, 0x5a, 2, 0xff, 3, 0x80, 4, 0x7f, 5, 0, 6];

/// Holds numbers that differ in each of their bytes.
pub(super) const NUMBERS: [u64; 9] =
    [0, 255, 1 << 16, (1 << 16) + 1, u32::MAX as u64, 1 << 32, 1 << 48, 0x0102_0304_0506_0708, u64::MAX];

fn unseal(cipher: Cipher, number: u64, wire: &[u8], bytes: usize) -> io::Result<Vec<u8>> {
    let (mut unseal, mut rest) = (Unseal::new(RecordOpener::new(cipher.ours(), number)), wire);
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
    let (key, iv) = (|| [7; 32].into(), || rustls::crypto::cipher::Iv::from([9; 12]));
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
            let (seal, _) = suite_protection(suite, secrets(suite.suite(), sent)).unwrap();
            is_retired_at_half_of(limit, sent, seal);
        }
    }
    let aegis = Seal::new(Cipher::Aegis128X2.ours(), 0, AEGIS_RECORDS);
    is_retired_at_half_of(1 << 48, 0, aegis);
}

fn is_retired_at_half_of(limit: u64, sent: u64, mut seal: Seal) {
    assert_eq!(seal.numbers.next, Some(sent));
    let mut seal_at = |number: u64| {
        seal.numbers.next = Some(number);
        let worn_before = seal.is_worn();
        (seal.seal(&[b"x"], &mut Vec::new()).is_ok(), worn_before, seal.is_worn())
    };
    let half = sent + limit / 2;
    assert_eq!(seal_at(sent), (true, false, false));
    assert_eq!(seal_at(half - 2), (true, false, false));
    assert_eq!(seal_at(half - 1), (true, false, true), "{limit}");
    // An end that goes on all the same is stopped.
    let last = sent.saturating_add(limit - 1);
    assert_eq!(seal_at(last), (true, true, true), "{limit}");
    if last < u64::MAX {
        assert_eq!(seal_at(last + 1), (false, true, true), "{limit}");
    }
}

/// Test vectors 1 and 2 of AEGIS-128X2 in RFC 10032 (draft-irtf-cfrg-aegis-aead, "AEGIS-128X2 Test Vectors"), with tags
/// of 128 bits.
#[test]
fn aegis_is_that_of_its_specification() {
    let key = std::array::from_fn(|i| i as u8);
    let nonce = std::array::from_fn(|i| 0x10 + i as u8);
    let ad = [1, 2, 3, 4, 1, 2, 3, 4];
    let message = [4, 5, 6, 7].repeat(30);
    let sealed = "5795544301997f93621b278809d6331b3bfa6f18e90db12c4aa35965b5e98c5f\
                  c6fb4e54bcb6111842c20637252eff747cb3a8f85b37de80919a589fe0f24872\
                  bc926360696739e05520647e390989e1eb5fd42f99678a0276a498f8c454761c\
                  9d6aacb647ad56be62b29c22cd4b5761b38f43d5a5ee062f";
    for (ad, message, sealed, tag) in [
        (&[][..], &[][..], "", "63117dc57756e402819a82e13eca8379"),
        (&ad, &message, sealed, "1aebc200804f405cab637f2adebb6d77"),
    ] {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let cipher = Aegis128X2::<16>::new(&key, &nonce);
        let (text, its_tag) = cipher.encrypt(message, ad);
        assert_eq!((hex(&text).as_str(), hex(&its_tag).as_str()), (sealed, tag));
        // In pieces, as records are made.
        let (mut encryptor, mut pieces) = (cipher.encryptor(ad), vec![0; message.len()]);
        for (plain, sealed) in message.chunks(7).zip(pieces.chunks_mut(7)) {
            encryptor.update(plain, sealed);
        }
        assert_eq!((hex(&pieces).as_str(), hex(&encryptor.finalize()).as_str()), (sealed, tag));
    }
}

/// Returns both ends of a finished handshake, in memory.
pub(super) fn shaken(policy: CipherPolicy) -> [rustls::Connection; 2] {
    let ca = ClusterCa::create("test").unwrap();
    let identity = |host| ca.issue(host, Validity::days(1)).unwrap().with_ciphers(policy).unwrap();
    let mut client = ClientConfig::clone(&skein_identity::client_config(&identity("a")));
    let mut server = ServerConfig::clone(&skein_identity::server_config(&identity("b")));
    (client.enable_secret_extraction, server.enable_secret_extraction) = (true, true);
    let mut client = ClientConnection::new(Arc::new(client), skein_identity::member_name()).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    while client.wants_write() || server.wants_write() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut &wire[..]).unwrap();
        server.process_new_packets().unwrap();
        wire.clear();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut &wire[..]).unwrap();
        client.process_new_packets().unwrap();
    }
    [client.into(), server.into()]
}

pub(super) fn first_record(seal: &mut Seal) -> Vec<u8> {
    seal.seal(&[b"page"], &mut Vec::new()).unwrap().to_vec()
}

fn opens(opener: RecordOpener, mut wire: &[u8]) -> bool {
    let mut plain = [0; 4];
    let read = Unseal::new(opener).read_exact(&mut plain, |buffer, _| io::Read::read(&mut wire, buffer));
    read.is_ok_and(|()| &plain == b"page")
}

/// What one end seals the other end opens, and that end itself does not: the directions have different keys. The keys
/// of other connections are others still.
#[test]
fn each_direction_of_each_connection_has_a_key_of_its_own() {
    for policy in [CipherPolicy::AesGcm, CipherPolicy::Aegis] {
        let mut seen = BTreeSet::new();
        for comes_back in [false, true] {
            let [client, server] = shaken(policy).map(|connection| protection(connection).unwrap());
            let ((mut client, at_client), (mut server, at_server)) = (client, server);
            let (from_client, from_server) = (first_record(&mut client), first_record(&mut server));
            if comes_back {
                assert!(!opens(at_client, &from_client) && !opens(at_server, &from_server), "{policy}");
            } else {
                assert!(opens(at_client, &from_server) && opens(at_server, &from_client), "{policy}");
            }
            seen.extend([from_client, from_server]);
        }
        assert_eq!(seen.len(), 4, "{policy}");
    }
}

/// The format of what travels: which keys the exporter gives, in which order, and that numbers begin at 0 whatever was
/// sent before.
#[test]
fn aegis_has_the_keys_that_tls_exports() {
    let [mut client, server] = shaken(CipherPolicy::Aegis);
    io::Write::write_all(&mut client.writer(), b"hello").unwrap();
    client.write_tls(&mut Vec::new()).unwrap();
    let mut exported = [0; 64];
    client.export_keying_material(&mut exported, b"EXPERIMENTAL-skein-records", Some(b"aegis-128x2")).unwrap();
    for (end, keys) in [client, server].into_iter().zip(exported.chunks(32)) {
        let (mut seal, _) = protection(end).unwrap();
        let cipher = Aegis128X2::<16>::new(keys[..16].try_into().unwrap(), keys[16..].try_into().unwrap());
        let header = [23, 3, 3, 0, 21];
        let (text, tag) = cipher.encrypt(b"page\x17", &header);
        assert_eq!(first_record(&mut seal), [&header[..], &text, &tag].concat());
    }
}
