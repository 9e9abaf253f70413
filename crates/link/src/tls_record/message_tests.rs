//! Tests the protection of messages that arrive in any order: what lies in the slots of RDMA.

use std::collections::BTreeSet;
use std::io;

use aegis::aegis128x2::Aegis128X2;
use proptest::prelude::*;
use proptest::sample::Index;
use skein_identity::CipherPolicy;

use super::by_the_book::{CIPHERS, Cipher, NUMBERS, first_record, shaken};
use super::{
    AEGIS_RECORDS, HEADER_BYTES, MESSAGE_BYTES_MAX, MESSAGE_OVERHEAD_BYTES, MessageOpener, MessageProtection,
    MessageSeal, SUITE_MESSAGES, message_protection, protection,
};

/// A message as it lies in a slot.
#[derive(Clone, Debug)]
struct Sent {
    number: u64,
    header: Vec<u8>,
    body: Vec<u8>,
}

impl Sent {
    /// Seals a message.
    fn new(seal: &mut MessageSeal, number: u64, plain: &[u8]) -> io::Result<Sent> {
        let mut body = plain.to_vec();
        body.resize(plain.len() + MESSAGE_OVERHEAD_BYTES, 0);
        let header = slot_header(number, body.len());
        seal.seal_in_place(number, &header, &mut body)?;
        Ok(Sent { number, header, body })
    }

    /// Opens the message where it lies, as a copy.
    fn open(&self, open: &MessageOpener) -> io::Result<Vec<u8>> {
        let mut body = self.body.clone();
        let bytes = open.open_in_place(self.number, &self.header, &mut body)?;
        body.truncate(bytes);
        Ok(body)
    }

    /// Returns whether the message is refused as one that was changed, and nothing of its plain text is in its place.
    fn is_refused(&self, open: &MessageOpener, plain: &[u8]) -> bool {
        let mut body = self.body.clone();
        let opened = open.open_in_place(self.number, &self.header, &mut body);
        opened.is_err_and(|error| error.kind() == io::ErrorKind::InvalidData) && !is_readable(plain, &body)
    }
}

/// Returns a header like that of a slot.
fn slot_header(number: u64, bytes: usize) -> Vec<u8> {
    let mut header = number.to_be_bytes().to_vec();
    header.extend((bytes as u32).to_be_bytes());
    header
}

/// Returns whether eight bytes of a plain text are where they were.
fn is_readable(plain: &[u8], body: &[u8]) -> bool {
    plain.chunks_exact(8).zip(body.chunks_exact(8)).any(|(before, now)| before == now)
}

/// Returns bytes of which none is as the one before: a place that was wiped looks like none of them.
fn page(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|i| (i as u8).wrapping_mul(151) ^ seed).collect()
}

fn any_page(most: usize) -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop_oneof![0usize..40, 0..most];
    (bytes, any::<u8>()).prop_map(|(bytes, seed)| page(bytes, seed))
}

/// Returns both ends of one direction, with a key that everybody knows.
fn ends(cipher: Cipher) -> (MessageSeal, MessageOpener) {
    let seal = MessageSeal { key: cipher.ours(), next: 0, worn_from: u64::MAX, limit: u64::MAX };
    (seal, MessageOpener { key: cipher.ours() })
}

proptest! {
    /// A message opens to what it was, whichever of the others came before it. Nothing of it can be read on its way.
    #[test]
    fn messages_open_to_what_they_were_in_any_order(
        plains in prop::collection::vec(any_page(70_000), 1..6),
        steps in prop::collection::vec(1u64..1_000_000_000_000, 6),
        first in any::<Index>(),
    ) {
        for cipher in CIPHERS {
            let (mut seal, open) = ends(cipher);
            let mut number = 0_u64;
            let mut sent = Vec::new();
            for (plain, step) in plains.iter().zip(&steps) {
                number += *step;
                sent.push((Sent::new(&mut seal, number, plain).unwrap(), plain));
            }
            let first = first.index(sent.len());
            sent.rotate_left(first);
            for (sent, plain) in sent.iter().rev() {
                prop_assert_eq!(sent.body.len(), plain.len() + MESSAGE_OVERHEAD_BYTES);
                prop_assert!(!is_readable(plain, &sent.body), "{cipher:?}");
                prop_assert!(sent.open(&open).unwrap() == **plain, "{cipher:?}, number {}", sent.number);
            }
        }
    }

    /// Whatever is changed on the way, the message is refused, and nothing of it comes out.
    #[test]
    fn a_message_that_was_changed_is_refused(
        plain in any_page(5000),
        number in 0..u64::MAX,
        other in any::<u64>(),
        at in any::<Index>(),
        bit in 0u8..8,
        more in 1usize..40,
    ) {
        prop_assume!(other != number);
        let flipped = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= 1u8 << bit;
            bytes
        };
        for cipher in CIPHERS {
            let (mut seal, open) = ends(cipher);
            let sent = Sent::new(&mut seal, number, &plain).unwrap();
            let bytes = sent.body.len();
            let (text, tag) = sent.body.split_at(bytes - 16);
            let with_body = |body: Vec<u8>| Sent { body, ..sent.clone() };
            let with_header = |header: Vec<u8>| Sent { header, ..sent.clone() };
            let longer = |bytes: &[u8]| [bytes, &vec![0; more][..]].concat();
            let changes = [
                ("a bit", with_body(flipped(&sent.body))),
                ("a bit of the tag", with_body([text, &flipped(tag)[..]].concat())),
                ("an end that is cut off", with_body(sent.body[..at.index(bytes)].to_vec())),
                ("a beginning that is cut off", with_body(sent.body[1..].to_vec())),
                ("bytes behind the end", with_body(longer(&sent.body))),
                ("a bit of the header", with_header(flipped(&sent.header))),
                ("a longer header", with_header(longer(&sent.header))),
                ("no header", with_header(Vec::new())),
                ("another number", Sent { number: other, ..sent.clone() }),
                ("the number in both places", Sent { number: other, ..with_header(slot_header(other, bytes)) }),
            ];
            for (what, changed) in changes {
                prop_assert!(changed.is_refused(&open, &plain), "{cipher:?}: {what}");
            }
            prop_assert!(sent.open(&open).unwrap() == plain, "{cipher:?}");
        }
    }

    /// A sender uses no number twice, and none after a larger one, so that no nonce comes twice. The same message never
    /// looks the same.
    #[test]
    fn a_sender_uses_no_number_twice(
        numbers in prop::collection::vec(prop_oneof![0u64..24, 0..SUITE_MESSAGES + 24, any::<u64>()], 1..60),
    ) {
        for cipher in CIPHERS {
            let mut seal = MessageSeal { key: cipher.ours(), next: 0, worn_from: u64::MAX, limit: SUITE_MESSAGES };
            let (mut used, mut bodies) = (BTreeSet::<u64>::new(), BTreeSet::<Vec<u8>>::new());
            for number in &numbers {
                let may = *number < SUITE_MESSAGES && used.last().is_none_or(|last| number > last);
                let sent = Sent::new(&mut seal, *number, b"page");
                prop_assert!(sent.is_ok() == may, "{cipher:?}: {number} after {used:?}");
                if let Ok(sent) = sent {
                    prop_assert!(used.insert(sent.number), "{cipher:?}: {number}");
                    prop_assert!(bodies.insert(sent.body), "{cipher:?}: {number}");
                }
            }
        }
    }
}

#[test]
fn no_bit_and_no_byte_of_a_message_can_be_changed() {
    let plain = page(40, 5);
    for cipher in CIPHERS {
        let (mut seal, open) = ends(cipher);
        let sent = Sent::new(&mut seal, 0x0102_0304_0506_0708, &plain).unwrap();
        for bit in 0..sent.body.len() * 8 {
            let mut changed = sent.clone();
            changed.body[bit / 8] ^= 1u8 << (bit % 8);
            assert!(changed.is_refused(&open, &plain), "{cipher:?}, bit {bit} of the body");
        }
        for bit in 0..sent.header.len() * 8 {
            let mut changed = sent.clone();
            changed.header[bit / 8] ^= 1u8 << (bit % 8);
            assert!(changed.is_refused(&open, &plain), "{cipher:?}, bit {bit} of the header");
        }
        for bit in 0..64 {
            let changed = Sent { number: sent.number ^ (1u64 << bit), ..sent.clone() };
            assert!(changed.is_refused(&open, &plain), "{cipher:?}, bit {bit} of the number");
        }
        for bytes in 0..sent.body.len() {
            let changed = Sent { body: sent.body[..bytes].to_vec(), ..sent.clone() };
            assert!(changed.is_refused(&open, &plain), "{cipher:?}, the first {bytes} bytes");
        }
        assert!(sent.open(&open).unwrap() == plain, "{cipher:?}");
    }
}

#[test]
fn messages_are_those_of_another_implementation() {
    let plain = page(5000, 9);
    let text = [&plain[..], &[23]].concat();
    for cipher in CIPHERS {
        for number in NUMBERS.into_iter().filter(|number| *number < u64::MAX) {
            let (mut seal, _) = ends(cipher);
            let sent = Sent::new(&mut seal, number, &plain).unwrap();
            let book = cipher.seal(&cipher.nonce(number), &sent.header, &text);
            assert!(sent.body == book, "{cipher:?}, {number:#x}");
        }
    }
}

#[test]
fn a_message_is_at_most_as_long_as_its_bound() {
    for cipher in CIPHERS {
        let (mut seal, open) = ends(cipher);
        let longest = page(MESSAGE_BYTES_MAX, 3);
        let sent = Sent::new(&mut seal, 5, &longest).unwrap();
        assert!(sent.open(&open).unwrap() == longest, "{cipher:?}");
        assert!(Sent::new(&mut seal, 6, &page(MESSAGE_BYTES_MAX + 1, 3)).is_err(), "{cipher:?}");
        // What was refused has used up no number.
        let empty = Sent::new(&mut seal, 6, b"").unwrap();
        assert!(empty.open(&open).unwrap().is_empty(), "{cipher:?}");
    }
}

#[test]
fn a_key_of_messages_is_worn_at_half_of_its_limit_and_protects_none_beyond_it() {
    for (policy, limit) in [(CipherPolicy::AesGcm, SUITE_MESSAGES), (CipherPolicy::Aegis, AEGIS_RECORDS)] {
        let [client, server] = shaken(policy).map(|connection| message_protection(&connection).unwrap());
        for MessageProtection { mut seal, .. } in [client, server] {
            let half = limit / 2;
            for (number, expected) in [
                (0, (true, false)),
                (half - 2, (true, false)),
                (half - 1, (true, true)),
                // An end that goes on all the same is stopped.
                (limit - 1, (true, true)),
                (limit, (false, true)),
                (u64::MAX, (false, true)),
            ] {
                let is_sealed = Sent::new(&mut seal, number, b"page").is_ok();
                assert_eq!((is_sealed, seal.is_worn()), expected, "{policy}, number {number}");
            }
        }
    }
}

/// What one end seals the other end opens, and that end itself does not: the directions have different keys. The keys
/// of other connections are others still.
#[test]
fn each_direction_of_each_connection_has_a_key_of_its_own_for_messages() {
    for policy in [CipherPolicy::AesGcm, CipherPolicy::Aegis] {
        // Client and server of one connection, then those of another.
        let mut ends = Vec::new();
        for connection in [shaken(policy), shaken(policy)].into_iter().flatten() {
            ends.push(message_protection(&connection).unwrap());
        }
        let sent: Vec<Sent> = ends.iter_mut().map(|end| Sent::new(&mut end.seal, 7, b"page").unwrap()).collect();
        for (from, message) in sent.iter().enumerate() {
            let other_end = from ^ 1;
            for (at, end) in ends.iter().enumerate() {
                let opens = message.open(&end.open).is_ok_and(|plain| plain == b"page");
                assert_eq!(opens, at == other_end, "{policy}: from {from} at {at}");
            }
        }
        let bodies: BTreeSet<&[u8]> = sent.iter().map(|message| &message.body[..]).collect();
        assert_eq!(bodies.len(), 4, "{policy}");
    }
}

/// Records and messages are numbered from 0 each, and are of the same format, so their keys have to differ.
#[test]
fn a_record_is_no_message() {
    for policy in [CipherPolicy::AesGcm, CipherPolicy::Aegis] {
        let [client, server] = shaken(policy);
        let at_server = message_protection(&server).unwrap().open;
        let (mut seal, _) = protection(client).unwrap();
        let record = first_record(&mut seal);
        let (header, body) = record.split_at(HEADER_BYTES);
        let as_message = Sent { number: 0, header: header.to_vec(), body: body.to_vec() };
        assert!(as_message.is_refused(&at_server, b"page"), "{policy}");
    }
}

/// The format of what travels: which keys the exporter gives, and in which order.
#[test]
fn messages_have_the_keys_that_tls_exports() {
    let [client, server] = shaken(CipherPolicy::Aegis);
    let mut exported = [0; 128];
    client.export_keying_material(&mut exported, b"EXPERIMENTAL-skein-messages", Some(b"aegis-128x2")).unwrap();
    for (end, keys) in [client, server].into_iter().zip(exported.chunks(64)) {
        let mut seal = message_protection(&end).unwrap().seal;
        let sent = Sent::new(&mut seal, 7, b"page").unwrap();
        let mut nonce: [u8; 16] = keys[16..32].try_into().unwrap();
        nonce[15] ^= 7;
        let cipher = Aegis128X2::<16>::new(keys[..16].try_into().unwrap(), &nonce);
        let (text, tag) = cipher.encrypt(b"page\x17", &sent.header);
        assert_eq!(sent.body, [&text[..], &tag].concat());
    }
}
