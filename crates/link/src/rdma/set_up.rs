//! Is what two ends tell each other before they write into each other's memory.

use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use skein_fabric::{Access, Begun, Completion, Endpoint, FabricError, RemoteMemory, SharedEndpoint, Slot};

use super::layout::{RingSlots, SLOT_BYTES, SLOTS};
use super::ring::Ring;
use crate::link::{LinkError, Pending};

/// Bounds an answer on the wire, in bytes.
const ANSWER_BYTES_MAX: usize = 2048;
/// Bounds the reason of a refusal, in characters.
const REASON_CHARS_MAX: usize = 400;

/// How long the first messages have, and how long a wait for them lasts: what the endpoint did not take is tried again.
/// In tests a busy machine may keep the processes of rails waiting.
const GREET_TIME: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 10 });
const GREET_CHECK: Duration = Duration::from_millis(1);
/// The token of the first message.
const GREETING: u64 = u64::MAX;

/// What an end tells.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    /// The end is ready to be written.
    Ready(Ready),
    /// The end has no ring, and why.
    Cannot(String),
}

/// An end that is ready to be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Ready {
    /// The provider of the end's rail, and its protocol: both ends must have the same.
    provider: String,
    protocol: (u32, u32),
    /// The name by which the endpoint is found.
    name: Vec<u8>,
    slots: u16,
    slot_bytes: u32,
    /// Where the first slot is; the others follow.
    address: u64,
    key: u64,
}

/// Makes this end's ring, and tells the other end of it. Returns the ring once the other end has done the same.
pub(super) fn exchange(pending: &mut dyn Pending, endpoint: SharedEndpoint) -> Result<(Ring, RingSlots), LinkError> {
    let made = make(&*endpoint);
    let answer = match &made {
        Ok((_, ready)) => Answer::Ready(ready.clone()),
        Err(error) => Answer::Cannot(error.to_string().chars().take(REASON_CHARS_MAX).collect()),
    };
    tell(pending, &answer)?;
    let (slots, ready) = made?;
    let theirs = match hear(pending)? {
        Answer::Ready(theirs) => theirs,
        Answer::Cannot(why) => return Err(LinkError::NoRail(format!("the other end has no ring: {why}"))),
    };
    if (&theirs.provider, theirs.protocol) != (&ready.provider, ready.protocol) {
        let (here, there) = (&ready.provider, &theirs.provider);
        let why = format!("the rails of both ends are of different kinds: {here} here, {there} there");
        return Err(LinkError::NoRail(why));
    }
    if (theirs.slots, theirs.slot_bytes) != (SLOTS, SLOT_BYTES as u32) {
        return Err(LinkError::NoRail("the rings of both ends are of different sizes".into()));
    }
    if theirs.address.checked_add(u64::from(SLOTS) * SLOT_BYTES as u64).is_none() {
        return Err(LinkError::NoRail("the other end's ring is nowhere".into()));
    }
    endpoint.connect(&theirs.name)?;
    let goes_first = endpoint.name() < &theirs.name[..];
    let early = greet(&*endpoint, &slots.messages, &slots.notices[0], goes_first)?;
    let there = RemoteMemory { address: theirs.address, key: theirs.key };
    Ok((Ring::new(endpoint, slots.messages, slots.notices, there, early), slots.rings))
}

/// Lets a message pass each way before anything else does, one end after the other: `ofi_rxm` connects with the first
/// message, and releases of libfabric that are in use crash where both ends connect at once. A fabric that nothing
/// passes is found here, too, and not by a guest's memory. Returns what else has completed meanwhile.
fn greet(
    endpoint: &dyn Endpoint,
    messages: &[Slot],
    notice: &Slot,
    goes_first: bool,
) -> Result<Vec<Completion>, LinkError> {
    let deadline = Instant::now() + GREET_TIME;
    let (mut early, mut has_sent, mut is_sent, mut has_heard) = (Vec::new(), false, false, false);
    while !(is_sent && has_heard) {
        if Instant::now() >= deadline {
            return Err(LinkError::NoRail(format!("nothing passes the rails within {} s", GREET_TIME.as_secs())));
        }
        if !has_sent && (goes_first || has_heard) {
            has_sent = endpoint.send(&notice.first(1), GREETING)? == Begun::Yes;
        }
        let mut completions = Vec::new();
        endpoint.poll(&mut completions)?;
        let is_idle = completions.is_empty();
        for completion in completions {
            match completion {
                Completion::Done { token: GREETING } => is_sent = true,
                Completion::Failed { why, .. } => return Err(why.into()),
                // Slots' messages are longer.
                Completion::Received { token, bytes: 1 } if !has_heard => {
                    has_heard = true;
                    Ring::receive_again(endpoint, messages, token)?;
                }
                other => early.push(other),
            }
        }
        if is_idle {
            endpoint.wait(GREET_CHECK);
        }
    }
    Ok(early)
}

/// The memory of a ring.
struct Made {
    rings: RingSlots,
    /// Where messages of the other end come.
    messages: Vec<Slot>,
    /// Where messages to the other end are put together.
    notices: Vec<Slot>,
}

fn make(endpoint: &dyn Endpoint) -> Result<(Made, Ready), LinkError> {
    let key = || random().map(u64::from_le_bytes);
    if endpoint.abilities().operation_bytes_max < SLOT_BYTES {
        let most = endpoint.abilities().operation_bytes_max;
        return Err(LinkError::NoRail(format!("the provider writes at most {most} bytes at once")));
    }
    let (incoming, here) = Slot::register(endpoint, SLOTS.into(), SLOT_BYTES, Access::RemoteWrite, key()?)?;
    let (outgoing, _) = Slot::register(endpoint, SLOTS.into(), SLOT_BYTES, Access::Local, key()?)?;
    let small = |count| -> Result<Vec<Slot>, LinkError> {
        Ok(Slot::register(endpoint, count, Ring::MESSAGE_SLOT_BYTES, Access::Local, key()?)?.0)
    };
    let (messages, notices) = (small(Ring::MESSAGES)?, small(Ring::NOTICES)?);
    // The other end may write as soon as it knows of this end.
    Ring::receive_all(endpoint, &messages)?;
    let abilities = endpoint.abilities();
    let ready = Ready {
        provider: abilities.provider.clone(),
        protocol: abilities.protocol,
        name: endpoint.name().to_vec(),
        slots: SLOTS,
        slot_bytes: SLOT_BYTES as u32,
        address: here.address,
        key: here.key,
    };
    Ok((Made { rings: RingSlots { outgoing, incoming }, messages, notices }, ready))
}

/// Draws a number that nobody can guess.
fn random() -> Result<[u8; 8], LinkError> {
    let mut drawn = [0; 8];
    aws_lc_rs::rand::fill(&mut drawn).map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(drawn)
}

fn tell(pending: &mut dyn Pending, answer: &Answer) -> Result<(), LinkError> {
    let encoded = postcard::to_stdvec(answer).expect("plain data always encodes");
    let length = u16::try_from(encoded.len()).ok().filter(|length| usize::from(*length) <= ANSWER_BYTES_MAX);
    let length = length.ok_or_else(|| FabricError::Misbehaves("a name that is too long".into()))?;
    pending.send(&[&length.to_be_bytes()[..], &encoded].concat())
}

fn hear(pending: &mut dyn Pending) -> Result<Answer, LinkError> {
    let garbage = || io::Error::new(io::ErrorKind::InvalidData, "no answer about a ring");
    let mut length = [0; 2];
    pending.receive(&mut length)?;
    let length = usize::from(u16::from_be_bytes(length));
    if length > ANSWER_BYTES_MAX {
        return Err(garbage().into());
    }
    let mut encoded = vec![0; length];
    pending.receive(&mut encoded)?;
    Ok(decode(&encoded).ok_or_else(garbage)?)
}

fn decode(encoded: &[u8]) -> Option<Answer> {
    match postcard::take_from_bytes(encoded) {
        Ok((Answer::Cannot(why), [])) => Some(Answer::Cannot(why.chars().filter(|c| !c.is_control()).collect())),
        Ok((answer, [])) => Some(answer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn answers_survive_the_wire(provider: String, name: Vec<u8>, numbers: (u32, u32, u16, u32, u64, u64)) {
            let (kind, version, slots, slot_bytes, address, key) = numbers;
            let ready = Ready { provider, protocol: (kind, version), name, slots, slot_bytes, address, key };
            let encoded = postcard::to_stdvec(&Answer::Ready(ready.clone())).unwrap();
            prop_assert_eq!(decode(&encoded), Some(Answer::Ready(ready)));
            prop_assert_eq!(decode(&encoded[1..]).filter(|answer| matches!(answer, Answer::Ready(_))), None);
        }

        #[test]
        fn garbage_does_not_panic(encoded: Vec<u8>) {
            if let Some(Answer::Cannot(why)) = decode(&encoded) {
                prop_assert!(!why.contains(|c: char| c.is_control()));
            }
        }
    }
}
