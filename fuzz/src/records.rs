//! The framing of TLS records.

use std::io;

use skein_link::tls_record::{Seal, Unseal, pairs};

use crate::input::Input;

/// Records that anybody may have made, or ours on their way over any network.
pub fn records(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (which, [aes, aegis]) = (input.byte(), pairs());
    let (seal, unseal) = if which & 2 == 0 { aes } else { aegis };
    if which % 2 == 0 { foreign(unseal, &mut input) } else { ours(seal, unseal, &mut input) }
}

/// Nobody without the key makes anything that opens.
fn foreign(mut unseal: Unseal, input: &mut Input) {
    let mut out = vec![0; usize::from(input.word())];
    let (cut, mut room_first) = (usize::from(input.byte()) + 1, 0);
    let read = unseal.read_exact(&mut out, |room, _| {
        assert!(room_first == 0 || room.len() <= room_first, "memory is taken for what a header claims");
        room_first = room_first.max(room.len());
        let taken = input.bytes(cut.min(room.len()));
        room[..taken.len()].copy_from_slice(taken);
        Ok(taken.len())
    });
    assert!(read.is_err() || out.is_empty());
}

/// What was sealed comes out as it went in, however it is cut and asked for; nothing does from where it was changed.
fn ours(mut seal: Seal, mut unseal: Unseal, input: &mut Input) {
    let (mut plain, mut wire, mut buffer) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..input.byte() % 4 + 1 {
        let parts: Vec<Vec<u8>> = (0..input.byte() % 8).map(|_| part(input)).collect();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        wire.extend_from_slice(seal.seal(&parts, &mut buffer).expect("the key is new"));
        plain.extend(parts.concat());
    }
    let changed = input.byte() % 2 == 1 && !wire.is_empty();
    if changed {
        let (at, bit) = (usize::from(input.word()) * 16 + usize::from(input.byte() % 16), input.byte() % 8);
        let at = at % wire.len();
        wire[at] ^= 1 << bit;
    }
    // The rest of the input says how it travels and how much is asked for, over and over.
    let sizes: Vec<usize> =
        input.0.chunks(2).map(|size| size.iter().fold(0, |n, b| n << 8 | usize::from(*b))).collect();
    let mut sizes = sizes.into_iter().map(|size| size.max(wire.len() / 1024 + 1)).cycle();
    let mut size = || sizes.next().unwrap_or(1 << 14);
    let (mut asks, mut got, mut rest) = (Vec::new(), 0, &wire[..]);
    while asks.iter().sum::<usize>() < plain.len() {
        asks.push(size().min(plain.len() - asks.iter().sum::<usize>()));
    }
    for ask in asks {
        let mut out = vec![0; ask];
        let read = unseal.read_exact(&mut out, |room, sure| {
            assert!(changed || sure <= rest.len(), "waits for {sure} bytes where {} follow", rest.len());
            let (taken, after) = rest.split_at(size().min(room.len()).min(rest.len()));
            room[..taken.len()].copy_from_slice(taken);
            rest = after;
            io::Result::Ok(taken.len())
        });
        match read {
            Ok(()) => assert!(out == plain[got..got + ask], "other bytes than were sealed"),
            Err(error) => return assert!(changed, "{error}"),
        }
        got += ask;
    }
    assert!(!changed, "a bit changed and nobody noticed");
}

/// Bytes that repeat nowhere near, of a length around what records hold, or any.
fn part(input: &mut Input) -> Vec<u8> {
    let (which, by) = (input.byte(), usize::from(input.byte()));
    let length = match which % 4 {
        0 => by,
        1 => (4 << 10) - 128 + by,
        2 => (16 << 10) - 128 + by,
        _ => by << 8 | usize::from(which),
    };
    (0..length).map(|i| (i >> 8) as u8 ^ (i as u8).wrapping_mul(31) ^ which).collect()
}
