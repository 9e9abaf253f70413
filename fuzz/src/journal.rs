//! A journal's file.

use skein_journal::image::{decode, encode};
use skein_journal::{RECORD_BYTES_MAX, RECORDS_MAX};

use crate::input::Input;

const SLOT_BYTES: usize = RECORD_BYTES_MAX + 16;

/// Any bytes as a file, or a file of ours that something happened to.
pub fn journal(bytes: &[u8]) {
    let mut input = Input(bytes);
    if input.byte() % 2 == 0 { foreign(input.0) } else { ours(&mut input) }
}

/// What decodes is decoded the same once it is encoded again.
fn foreign(bytes: &[u8]) {
    match decode(bytes) {
        Ok(image) => {
            assert!(image.payloads.len() <= image.slots && image.slots <= RECORDS_MAX);
            let again = encode(image.first, image.slots, &image.payloads);
            assert_eq!(decode(&again).expect("just encoded").payloads, image.payloads);
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
}

/// The first records come back, or none; of those missing at most one was not zeros; and what happens where the next
/// record is being written costs nothing at all.
fn ours(input: &mut Input) {
    let slots = usize::from(input.byte() % 8) + 1;
    let count = usize::from(input.byte()) % (slots + 1);
    let payloads: Vec<Vec<u8>> = (0..count)
        .map(|_| match input.byte() {
            length @ 0..=200 => input.bytes(length.into()).to_vec(),
            length => vec![length; RECORD_BYTES_MAX - usize::from(length - 201)],
        })
        .collect();
    let mut file = encode(u64::from(input.word()), slots, &payloads);
    let next = (1 + count) * SLOT_BYTES;
    let mut harmless = true;
    while !input.0.is_empty() {
        let (what, slot, offset) =
            (input.byte(), usize::from(input.byte() % 9), usize::from(input.word()) % SLOT_BYTES);
        let at = (slot * SLOT_BYTES + offset).min(file.len());
        let length = match what % 8 {
            0..=4 => usize::from(what >> 3),
            _ => (usize::from(what >> 3) + 1) * 512,
        };
        let range = at..(at + length).min(file.len());
        harmless &=
            range.is_empty() || (next..=next + SLOT_BYTES).contains(&range.start) && range.end <= next + SLOT_BYTES;
        match what % 8 {
            // One byte again and again: with more freedom a fuzzer makes a CRC that is right, and then a record is a
            // record.
            0..=3 => file[range].fill(input.byte()),
            4 => file[range].iter_mut().for_each(|byte| *byte ^= 1 << (what >> 5)),
            5 => file[range].fill(0),
            6 => {
                let to = (usize::from(input.byte() % 9) * SLOT_BYTES).min(file.len() - range.len());
                file.copy_within(range, to);
            }
            _ => file.truncate(at),
        }
        // What copies and cuts touch is not worth following.
        harmless &= what % 8 < 6;
        if file.is_empty() {
            break;
        }
    }
    match decode(&file) {
        Ok(image) => {
            let kept = image.payloads.len();
            assert!(kept <= count && image.payloads.iter().eq(&payloads[..kept]), "other records than were appended");
            let damaged =
                file.chunks(SLOT_BYTES).skip(1 + kept).filter(|slot| slot.iter().any(|byte| *byte != 0)).count();
            assert!(damaged <= 1 && image.torn == (damaged == 1), "{damaged} records lost that were not zeros");
            assert!(!harmless || kept == count, "{kept} of {count} records are left");
        }
        Err(damage) => assert!(!harmless, "{damage}"),
    }
}
