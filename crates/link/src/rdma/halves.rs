//! Is the two halves of a connection over RDMA, each for a thread of its own, and the connection's end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use skein_fabric::{Begun, Slot};

use super::layout::{RingSlots, SLOT_BYTES};
use super::ring::{Over, Ring, failed};
use super::way::{Farewell, Way};
use crate::link::{BufferSource, Caps, Connection, LinkEnd, LinkError, Message, Position, Reader, Shutdown, Writer};
use crate::pieces::Patience;
use crate::tls_record::{MESSAGE_OVERHEAD_BYTES, MessageOpener, MessageProtection, MessageSeal};

/// What a slot begins with: the content's number and length. Both are protected, and the content under them.
const SLOT_HEADER_BYTES: usize = 12;
/// What a content begins with: the position of its first message.
const POSITION_BYTES: usize = 8;
/// Bounds the messages of a slot, in bytes.
const CONTENT_BYTES_MAX: usize = SLOT_BYTES - SLOT_HEADER_BYTES - POSITION_BYTES - MESSAGE_OVERHEAD_BYTES;
/// How long a writer waits for an endpoint that has no room for a write.
const BUSY_WAIT: Duration = Duration::from_micros(100);
/// How many buffers of contents are kept for use again.
const BUFFERS_MAX: usize = 64;

/// Makes the halves of a connection out of its ring, and of the connection over TCP that it began as.
pub(super) fn take_apart(
    began_as: Connection,
    caps: Caps,
    ring: Arc<Ring>,
    slots: RingSlots,
    protection: Option<MessageProtection>,
) -> Result<Connection, LinkError> {
    let Connection { cipher, reader, writer, shutdown, .. } = began_as;
    let held = Arc::new(Held { ring: ring.clone(), way: Arc::new(Way::new(writer, shutdown)) });
    let (running, way) = (ring.clone(), held.way.clone());
    thread::Builder::new().name("rail".into()).spawn(move || running.run(&way))?;
    thread::Builder::new().name("rail-end".into()).spawn(move || listen(&ring, reader))?;
    let (seal, open) = protection.map_or((None, None), |protection| (Some(protection.seal), Some(protection.open)));
    let reader = RingReader { held: held.clone(), slots: slots.incoming, open, now: None, buffers: Buffers::default() };
    let writer = RingWriter {
        held: held.clone(),
        slots: slots.outgoing,
        seal,
        pending: VecDeque::new(),
        packed: None,
        position: 0,
    };
    let shutdown = Box::new(RingShutdown(held));
    Ok(Connection { caps, cipher, reader: Box::new(reader), writer: Box::new(writer), shutdown })
}

/// A connection that somebody holds: its halves and its end.
struct Held {
    ring: Arc<Ring>,
    way: Arc<Way>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ring.let_go();
    }
}

/// Waits for the other end's last words, and for the end of the connection over TCP.
fn listen(ring: &Ring, mut reader: Box<dyn Reader>) {
    loop {
        let mut head = [0; 9];
        let end = match reader.read_head(&mut head) {
            Ok(_) => {
                let (farewell, total) = head.split_first().expect("nine bytes");
                ring.set_total(u64::from_be_bytes(total.try_into().expect("eight bytes")));
                if *farewell == Farewell::ReadsOn as u8 {
                    continue;
                }
                Over::Peer(Instant::now())
            }
            Err(LinkEnd::GivenUp) => Over::GivenUp,
            Err(_) => Over::Peer(Instant::now()),
        };
        return ring.end_by_peer(end);
    }
}

/// Ends a connection over RDMA. The rail's thread says so to the other end, once what was sent is there.
struct RingShutdown(Arc<Held>);

impl Shutdown for RingShutdown {
    fn finish(&self) {
        self.0.ring.part(Farewell::ReadsOn);
    }

    fn close(&self) {
        self.0.ring.end(Over::ClosedHere);
        self.0.ring.part(Farewell::Gone);
    }

    fn abort(&self) {
        self.0.ring.end(Over::GivenUp);
        self.0.way.abort();
    }
}

/// The sending half.
struct RingWriter {
    held: Arc<Held>,
    slots: Vec<Slot>,
    seal: Option<MessageSeal>,
    pending: VecDeque<Message>,
    /// A slot that is filled, with how much of it, and that the endpoint did not take yet.
    packed: Option<(u16, usize)>,
    /// How many bytes of messages were packed.
    position: u64,
}

impl RingWriter {
    /// Puts as many messages into a slot as it takes. Returns how long the slot's content is.
    fn pack(&mut self, slot: u16, number: u64) -> Result<usize, LinkEnd> {
        let bytes = self.slots[usize::from(slot)].bytes_mut();
        let (header, body) = bytes.split_at_mut(SLOT_HEADER_BYTES);
        body[..POSITION_BYTES].copy_from_slice(&self.position.to_be_bytes());
        let mut end = POSITION_BYTES;
        while let Some(message) = self.pending.front()
            && end - POSITION_BYTES + message.bytes() <= CONTENT_BYTES_MAX
        {
            self.position += message.bytes() as u64;
            for part in self.pending.pop_front().into_iter().flat_map(Message::into_parts) {
                body[end..end + part.len()].copy_from_slice(&part);
                end += part.len();
            }
        }
        let sealed = end + self.seal.as_ref().map_or(0, |_| MESSAGE_OVERHEAD_BYTES);
        header[..8].copy_from_slice(&number.to_be_bytes());
        header[8..].copy_from_slice(&(sealed as u32).to_be_bytes());
        if let Some(seal) = &mut self.seal {
            seal.seal_in_place(number, header, &mut body[..sealed]).map_err(LinkEnd::Failed)?;
        }
        Ok(SLOT_HEADER_BYTES + sealed)
    }

    /// Writes the slot that is filled. Returns whether the endpoint took it.
    fn write(&mut self) -> Result<bool, LinkEnd> {
        let Some((slot, bytes)) = self.packed else { return Ok(true) };
        let begun = self.held.ring.write(slot, &self.slots[usize::from(slot)].first(bytes))?;
        if begun == Begun::Yes {
            self.packed = None;
        }
        Ok(begun == Begun::Yes)
    }
}

impl Writer for RingWriter {
    fn push(&mut self, messages: &mut Vec<Message>) -> Result<(), LinkEnd> {
        if let Some(long) = messages.iter().find(|message| message.bytes() > CONTENT_BYTES_MAX) {
            return Err(failed(&format!("a message of {} bytes does not fit into a slot", long.bytes())));
        }
        self.pending.extend(messages.drain(..));
        Ok(())
    }

    fn flush(&mut self, patience: Patience) -> Result<bool, LinkEnd> {
        loop {
            while !self.write()? {
                if patience == Patience::Try {
                    return Ok(false);
                }
                thread::sleep(BUSY_WAIT);
            }
            if self.pending.is_empty() {
                return Ok(true);
            }
            match self.held.ring.free_slot()? {
                Some((slot, number)) => {
                    let bytes = self.pack(slot, number)?;
                    self.packed = Some((slot, bytes));
                }
                None if patience == Patience::Try => return Ok(false),
                None => self.held.ring.wait_for_room()?,
            }
        }
    }

    fn key_is_used_up(&self) -> bool {
        self.seal.as_ref().is_some_and(MessageSeal::is_worn)
    }
}

/// Buffers for contents, to be used again: fresh memory costs a page fault for every 4 KiB.
#[derive(Clone, Default)]
struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

/// A buffer that goes back when nothing holds a piece of it any more.
struct ContentBuffer {
    bytes: Vec<u8>,
    buffers: Buffers,
}

impl AsRef<[u8]> for ContentBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for ContentBuffer {
    fn drop(&mut self) {
        let mut free = self.buffers.0.lock();
        if free.len() < BUFFERS_MAX {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// The receiving half.
struct RingReader {
    held: Arc<Held>,
    slots: Vec<Slot>,
    open: Option<MessageOpener>,
    /// What is left of a slot's messages, and the position of the first of them.
    now: Option<(Bytes, u64)>,
    buffers: Buffers,
}

impl RingReader {
    /// Takes the content out of a slot.
    fn unpack(&mut self, slot: u16) -> Result<(Bytes, u64), LinkEnd> {
        let no_content = || failed("a slot holds no content");
        let memory = self.slots[usize::from(slot)].bytes();
        let (header, body) = memory.split_first_chunk::<SLOT_HEADER_BYTES>().expect("a slot is larger");
        // What the header says is read once: the other end could change it.
        let header = *header;
        let number = u64::from_be_bytes(header[..8].try_into().expect("eight bytes"));
        let length = u32::from_be_bytes(header[8..].try_into().expect("four bytes"));
        let body = body.get(..length as usize).ok_or_else(no_content)?;
        let mut buffer = ContentBuffer {
            bytes: self.buffers.0.lock().pop().unwrap_or_else(|| vec![0; SLOT_BYTES]),
            buffers: self.buffers.clone(),
        };
        // Whoever is on the fabric can write to the slot: nothing there is looked at twice.
        let copy = &mut buffer.bytes[..body.len()];
        copy.copy_from_slice(body);
        let bytes = match &self.open {
            Some(open) => open.open_in_place(number, &header, copy).map_err(LinkEnd::Failed)?,
            None => copy.len(),
        };
        self.held.ring.number(number)?;
        let content = Bytes::from_owner(buffer).slice(..bytes);
        let position = content.first_chunk().map(|position| u64::from_be_bytes(*position)).ok_or_else(no_content)?;
        Ok((content.slice(POSITION_BYTES..), position))
    }

    /// Takes the next bytes of the slot's messages.
    fn next(&mut self, bytes: usize) -> Result<Bytes, LinkEnd> {
        let (rest, position) = self.now.as_mut().ok_or_else(|| failed("nothing was announced"))?;
        if rest.len() < bytes {
            return Err(failed("a message is longer than its slot's content"));
        }
        *position = position.checked_add(bytes as u64).ok_or_else(|| failed("a position that no message has"))?;
        let next = rest.split_to(bytes);
        if rest.is_empty() {
            self.now = None;
        }
        Ok(next)
    }

    fn head(&mut self, head: &mut [u8]) -> Result<Position, LinkEnd> {
        while self.now.as_ref().is_none_or(|(rest, _)| rest.is_empty()) {
            let slot = self.held.ring.arrived()?;
            let content = self.unpack(slot);
            self.held.ring.read(slot);
            self.now = Some(content?);
        }
        let position = self.now.as_ref().map_or(0, |(_, position)| *position);
        head.copy_from_slice(&self.next(head.len())?);
        Ok(Position::At(position))
    }

    /// Ends the connection for the writer as well, if what was read makes no sense.
    fn ended<T>(&self, read: Result<T, LinkEnd>) -> Result<T, LinkEnd> {
        if let Err(LinkEnd::Failed(why)) = &read {
            self.held.ring.end(Over::Failed(why.to_string()));
        }
        read
    }
}

impl Reader for RingReader {
    fn read_head(&mut self, head: &mut [u8]) -> Result<Position, LinkEnd> {
        let read = self.head(head);
        self.ended(read)
    }

    fn read_body(&mut self, bytes: usize, _buffers: &dyn BufferSource) -> Result<Bytes, LinkEnd> {
        let read = if bytes == 0 { Ok(Bytes::new()) } else { self.next(bytes) };
        self.ended(read)
    }
}
