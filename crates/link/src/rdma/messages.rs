//! Is the small messages between two rings: which slots are given back, and which were written.
//!
//! A message is a byte that says which of both, and the slots' numbers, two bytes each, least significant first.

use super::layout::SLOTS;

/// The size of the longest message, in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 + 2 * SLOTS as usize;

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// The receiver of the message may write these slots again.
    GivenBack = 1,
    /// The sender of the message has written these slots. Only where writes carry no immediate data.
    Written = 2,
}

/// Writes a message about the slots, as far as there is room. Returns the message's length.
pub(super) fn encode(topic: Topic, slots: &[u16], message: &mut [u8]) -> usize {
    message[0] = topic as u8;
    let places = message[1..].chunks_exact_mut(2).zip(slots);
    let written = places.map(|(place, slot)| place.copy_from_slice(&slot.to_le_bytes())).count();
    1 + 2 * written
}

/// Reads a message. `None`: it is none.
pub(super) fn decode(message: &[u8]) -> Option<(Topic, impl Iterator<Item = u16>)> {
    let (topic, slots) = message.split_first()?;
    let topic = [Topic::GivenBack, Topic::Written].into_iter().find(|known| *known as u8 == *topic)?;
    let whole = !slots.is_empty() && slots.len().is_multiple_of(2);
    whole.then(|| (topic, slots.chunks_exact(2).map(|slot| u16::from_le_bytes([slot[0], slot[1]]))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_survive_the_wire(slots in prop::collection::vec(any::<u16>(), 1..=64), written: bool) {
            let topic = if written { Topic::Written } else { Topic::GivenBack };
            let mut message = [0; MESSAGE_BYTES_MAX];
            let bytes = encode(topic, &slots, &mut message);
            let (found, read) = decode(&message[..bytes]).unwrap();
            prop_assert_eq!((found, read.collect::<Vec<_>>()), (topic, slots));
        }

        #[test]
        fn garbage_does_not_panic(message: Vec<u8>) {
            if let Some((_, slots)) = decode(&message) {
                prop_assert_eq!(slots.count(), message.len() / 2);
            }
        }
    }
}
