//! Encodes and decodes the bytes of a journal's file, without the file.
//!
//! The file is an array of slots of 4 KiB: a header, then a slot for each record, zeros where no record is yet. So no
//! write touches a block that holds an acknowledged record. At any time only one slot, the first free slot, can be half
//! written. All integers are little-endian.
//!
//! | header | bytes | | record | bytes |
//! |---|---|---|---|---|
//! | `SKEINJNL` | 0..8 | | CRC-32 of all that follows in the slot | 0..4 |
//! | CRC-32 of all that follows in the slot | 8..12 | | payload's length | 4..8 |
//! | version | 12..16 | | sequence number | 8..16 |
//! | slots for records | 16..20 | | payload | 16.. |
//! | first record's sequence number | 20..28 | | zeros | |
//!
//! Sequence numbers go up by one, and go on from file to file. So a slot of an older file is never taken for a slot of
//! this file.

/// Holds the size of a slot: a page, and at least a sector of any disk.
pub(crate) const SLOT_BYTES: usize = 4096;

/// Says how many bytes come before a payload in its slot.
const RECORD_HEADER_BYTES: usize = 16;

/// Bounds a payload, in bytes.
pub const RECORD_BYTES_MAX: usize = SLOT_BYTES - RECORD_HEADER_BYTES;

/// Bounds the records that a file can be made for: 16 MiB.
pub const RECORDS_MAX: usize = 4095;

const MAGIC: &[u8; 8] = b"SKEINJNL";
const VERSION: u32 = 1;

/// A slot, aligned as direct I/O wants it.
#[derive(Debug, Clone)]
#[repr(C, align(4096))]
pub(crate) struct JournalSlot(pub [u8; SLOT_BYTES]);

impl JournalSlot {
    pub const ZERO: JournalSlot = JournalSlot([0; SLOT_BYTES]);

    fn header(first: u64, slots: usize) -> JournalSlot {
        let mut slot = JournalSlot::ZERO;
        slot.0[..8].copy_from_slice(MAGIC);
        slot.0[12..16].copy_from_slice(&VERSION.to_le_bytes());
        slot.0[16..20].copy_from_slice(&(slots as u32).to_le_bytes());
        slot.0[20..28].copy_from_slice(&first.to_le_bytes());
        let crc = crc32fast::hash(&slot.0[12..]);
        slot.0[8..12].copy_from_slice(&crc.to_le_bytes());
        slot
    }

    /// Makes the slot hold the payload that `fill` writes; `fill` returns how many bytes the payload has.
    pub fn fill<E>(
        &mut self,
        sequence: u64,
        fill: impl FnOnce(&mut [u8; RECORD_BYTES_MAX]) -> Result<usize, E>,
    ) -> Result<(), E> {
        *self = JournalSlot::ZERO;
        let (header, payload) = self.0.split_first_chunk_mut::<RECORD_HEADER_BYTES>().expect("a slot is larger");
        let payload: &mut [u8; RECORD_BYTES_MAX] = payload.try_into().expect("this is the rest of a slot");
        let length = fill(payload)?;
        payload[length..].fill(0);
        header[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        header[8..].copy_from_slice(&sequence.to_le_bytes());
        let crc = crc32fast::hash(&self.0[4..]);
        self.0[..4].copy_from_slice(&crc.to_le_bytes());
        Ok(())
    }
}

/// Returns the payload of the record `sequence`, if the slot holds that record whole.
fn payload(slot: &[u8], sequence: u64) -> Option<&[u8]> {
    let (header, payload) = slot.split_first_chunk::<RECORD_HEADER_BYTES>()?;
    if u32_at(header, 0) != crc32fast::hash(&slot[4..]) || u64_at(header, 8) != sequence {
        return None;
    }
    payload.get(..u32_at(header, 4) as usize)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The reason why a file cannot be trusted to hold every record that was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The file does not begin like a journal.
    #[error("it is not a journal")]
    NotAJournal,
    /// The file has another program's format.
    #[error("its format is version {found}, and this program reads version {VERSION}: start the version that wrote it")]
    Version {
        /// The version in the header.
        found: u32,
    },
    /// The header's CRC or content is wrong.
    #[error("its header is damaged")]
    Header,
    /// The file is shorter or longer than its header says. A crash does not do that, because the length is on the disk
    /// before the file gets its name.
    #[error("it has {found} bytes and was made with {expected}")]
    Length {
        /// The length by the header.
        expected: usize,
        /// The length of the file.
        found: usize,
    },
    /// A record is not whole, and something follows. The record was acknowledged before that was written.
    #[error("record {number} is damaged, and others follow it")]
    Record {
        /// The record's number, counted from 1.
        number: usize,
    },
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image<'a> {
    /// The payloads in the order in which they were appended.
    pub payloads: Vec<&'a [u8]>,
    /// How many records the file has room for, these included.
    pub slots: usize,
    /// The first record's sequence number. The next record's number is this and the number of payloads.
    pub first: u64,
    /// Whether the slot after the last record holds something else than zeros: a record that was never acknowledged.
    pub torn: bool,
}

/// Reads a file's bytes.
///
/// After the last whole record one slot may hold anything, a record half written; behind it there must be zeros only.
/// Damage to the very last acknowledged record looks the same as that, and acknowledged records at the end of which a
/// disk made zeros look like none: no code in the file can tell.
pub fn decode(bytes: &[u8]) -> Result<Image<'_>, Damage> {
    let Some((header, slots)) = bytes.split_first_chunk::<SLOT_BYTES>() else {
        return Err(Damage::NotAJournal);
    };
    if !header.starts_with(MAGIC) {
        return Err(Damage::NotAJournal);
    }
    // The CRC comes first: a version that a flipped bit made is no reason to look for another program.
    if u32_at(header, 8) != crc32fast::hash(&header[12..]) {
        return Err(Damage::Header);
    }
    let found = u32_at(header, 12);
    if found != VERSION {
        return Err(Damage::Version { found });
    }
    let (count, first) = (u32_at(header, 16) as usize, u64_at(header, 20));
    if count == 0 || count > RECORDS_MAX || first.checked_add(count as u64).is_none() {
        return Err(Damage::Header);
    }
    if slots.len() != count * SLOT_BYTES {
        return Err(Damage::Length { expected: (1 + count) * SLOT_BYTES, found: bytes.len() });
    }
    let mut slots = slots.chunks_exact(SLOT_BYTES);
    let mut payloads = Vec::new();
    let mut torn = false;
    for slot in &mut slots {
        match payload(slot, first + payloads.len() as u64) {
            Some(payload) => payloads.push(payload),
            None => {
                torn = !is_zero(slot);
                break;
            }
        }
    }
    if !slots.all(is_zero) {
        return Err(Damage::Record { number: payloads.len() + 1 });
    }
    Ok(Image { payloads, slots: count, first, torn })
}

fn is_zero(slot: &[u8]) -> bool {
    slot.iter().all(|byte| *byte == 0)
}

/// Returns the bytes of a new file with room for `slots` records, of which `payloads` are there.
///
/// # Panics
///
/// `slots` is not within 1..=[`RECORDS_MAX`], the payloads are more than `slots`, or a payload is longer than
/// [`RECORD_BYTES_MAX`].
pub fn encode(first: u64, slots: usize, payloads: &[impl AsRef<[u8]>]) -> Vec<u8> {
    assert!((payloads.len().max(1)..=RECORDS_MAX).contains(&slots), "{} records in {slots} slots", payloads.len());
    let mut bytes = vec![0; (1 + slots) * SLOT_BYTES];
    let mut slot = JournalSlot::header(first, slots);
    bytes[..SLOT_BYTES].copy_from_slice(&slot.0);
    for (index, payload) in payloads.iter().map(AsRef::as_ref).enumerate() {
        let filled = slot.fill(first + index as u64, |room| {
            room[..payload.len()].copy_from_slice(payload);
            Ok::<_, std::convert::Infallible>(payload.len())
        });
        let Ok(()) = filled;
        bytes[(1 + index) * SLOT_BYTES..][..SLOT_BYTES].copy_from_slice(&slot.0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A change to a file that holds records.
    #[derive(Debug, Clone)]
    enum Change {
        Truncate(usize),
        Lengthen(usize),
        Zero(usize, usize),
        Write(usize, Vec<u8>),
        Flip(usize, u8),
        /// Puts a block of the file where another should be.
        Copy(usize, usize),
    }

    fn change() -> impl Strategy<Value = Change> {
        let at = 0..10 * SLOT_BYTES;
        prop_oneof![
            at.clone().prop_map(Change::Truncate),
            (1..2 * SLOT_BYTES).prop_map(Change::Lengthen),
            (at.clone(), 1..3 * SLOT_BYTES).prop_map(|(at, n)| Change::Zero(at, n)),
            (at.clone(), vec(any::<u8>(), 1..600)).prop_map(|(at, bytes)| Change::Write(at, bytes)),
            (at, 0..8u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
            (0..10usize, 0..10usize).prop_map(|(from, to)| Change::Copy(from, to)),
        ]
    }

    fn apply(change: Change, bytes: &mut Vec<u8>) {
        let length = bytes.len();
        match change {
            Change::Truncate(at) => bytes.truncate(at),
            Change::Lengthen(by) => bytes.resize(length + by, 0),
            Change::Zero(at, n) => bytes[at.min(length)..(at + n).min(length)].fill(0),
            Change::Write(at, new) => {
                for (byte, new) in bytes.iter_mut().skip(at).zip(new) {
                    *byte = new;
                }
            }
            Change::Flip(at, bit) if at < length => bytes[at] ^= 1 << bit,
            Change::Copy(from, to) if from.max(to) < length / SLOT_BYTES => {
                bytes.copy_within(from * SLOT_BYTES..(from + 1) * SLOT_BYTES, to * SLOT_BYTES);
            }
            Change::Flip(..) | Change::Copy(..) => {}
        }
    }

    fn payloads() -> impl Strategy<Value = Vec<Vec<u8>>> {
        vec(prop_oneof![vec(any::<u8>(), 0..40), vec(any::<u8>(), RECORD_BYTES_MAX - 3..=RECORD_BYTES_MAX)], 0..9)
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(first in 0..u64::MAX - 100, payloads in payloads(), more in 1..4usize) {
            let slots = payloads.len() + more;
            let bytes = encode(first, slots, &payloads);
            let image = decode(&bytes).unwrap();
            prop_assert_eq!(&image.payloads, &payloads.iter().map(Vec::as_slice).collect::<Vec<_>>());
            prop_assert_eq!((image.first, image.slots, image.torn), (first, slots, false));
        }

        /// Anything may stand where the next record was being written.
        #[test]
        fn a_record_half_written_costs_no_other(
            payloads in payloads(), next in vec(any::<u8>(), 0..RECORD_BYTES_MAX),
            sectors in any::<u8>(), noise in proptest::option::of((0..SLOT_BYTES, vec(any::<u8>(), 1..300))),
        ) {
            let slots = payloads.len() + 2;
            let mut bytes = encode(7, slots, &payloads);
            let with_next: Vec<_> = payloads.iter().chain([&next]).cloned().collect();
            let whole = encode(7, slots, &with_next);
            let at = (1 + payloads.len()) * SLOT_BYTES;
            // Each sector is the old or the new sector.
            for sector in (0..8).filter(|sector| sectors & 1 << sector != 0) {
                let sector = at + sector * 512..at + (sector + 1) * 512;
                bytes[sector.clone()].copy_from_slice(&whole[sector]);
            }
            // Some disk may do worse.
            if let Some((offset, noise)) = noise {
                for (byte, new) in bytes[at..at + SLOT_BYTES].iter_mut().skip(offset).zip(noise) {
                    *byte = new;
                }
            }
            let image = decode(&bytes).unwrap();
            if image.payloads.len() > payloads.len() {
                prop_assert_eq!(&bytes, &whole);
            } else {
                prop_assert_eq!(&image.payloads, &payloads.iter().map(Vec::as_slice).collect::<Vec<_>>());
                prop_assert_eq!(image.torn, !is_zero(&bytes[at..at + SLOT_BYTES]));
            }
        }

        /// Whatever happens to the file, a reader gets the records from the first on, or an error. What is missing
        /// looks as if it had never been written, or like a last record half written. At most one record is missing.
        #[test]
        fn damage_never_goes_unnoticed(payloads in payloads(), changes in vec(change(), 1..4)) {
            let slots = payloads.len() + 1;
            let mut bytes = encode(7, slots, &payloads);
            for change in changes {
                apply(change, &mut bytes);
            }
            if let Ok(image) = decode(&bytes) {
                let (kept, missing) = payloads.split_at(image.payloads.len());
                prop_assert_eq!(&image.payloads, &kept.iter().map(Vec::as_slice).collect::<Vec<_>>());
                let damaged = bytes.chunks(SLOT_BYTES).skip(1 + kept.len()).filter(|slot| !is_zero(slot)).count();
                prop_assert!(damaged <= 1, "{damaged} of {} missing records were not zeros", missing.len());
            }
        }

        #[test]
        fn any_bytes_are_survived(
            valid_header in any::<bool>(), slots in 1..4usize, bytes in vec(any::<u8>(), 0..4 * SLOT_BYTES),
        ) {
            let mut file = if valid_header { JournalSlot::header(1, slots).0.to_vec() } else { MAGIC.to_vec() };
            file.extend(&bytes);
            for file in [&file, &bytes] {
                if let Err(damage) = decode(file) {
                    prop_assert!(!damage.to_string().is_empty());
                }
            }
        }
    }

    #[test]
    fn each_kind_of_damage_is_named() {
        let good = encode(1, 4, &["one", "two", "three"]);
        let damaged = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            decode(&bytes).map(|image| image.payloads.len())
        };
        assert_eq!(damaged(0), Err(Damage::NotAJournal));
        assert_eq!(damaged(12), Err(Damage::Header));
        assert_eq!(damaged(4000), Err(Damage::Header));
        assert_eq!(damaged(SLOT_BYTES + 20), Err(Damage::Record { number: 1 }));
        assert_eq!(damaged(3 * SLOT_BYTES - 1), Err(Damage::Record { number: 2 }));
        // The last record looks as if it had never been finished.
        assert_eq!(damaged(3 * SLOT_BYTES + 20), Ok(2));
        // One slot may be half written, but never two.
        assert_eq!(damaged(4 * SLOT_BYTES), Ok(3));
        assert_eq!(
            decode(&good[..4 * SLOT_BYTES]),
            Err(Damage::Length { expected: 5 * SLOT_BYTES, found: 4 * SLOT_BYTES })
        );
        assert_eq!(decode(b"").unwrap_err(), Damage::NotAJournal);

        let mut newer = good.clone();
        newer[12] = 2;
        let crc = crc32fast::hash(&newer[12..SLOT_BYTES]);
        newer[8..12].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode(&newer), Err(Damage::Version { found: 2 }));
    }

    #[test]
    fn an_older_files_record_is_none_of_this() {
        let old = encode(1, 4, &["one", "two"]);
        let mut new = encode(3, 4, &["three"]);
        new[2 * SLOT_BYTES..3 * SLOT_BYTES].copy_from_slice(&old[2 * SLOT_BYTES..3 * SLOT_BYTES]);
        let image = decode(&new).unwrap();
        assert_eq!((image.payloads, image.torn), (vec![&b"three"[..]], true));
    }
}
