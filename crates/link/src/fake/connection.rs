//! Keeps one connection of the fake: what is on its way in both directions, and the connection's ends.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};

use crate::link::{BufferSource, Caps, Connection, LinkEnd, Message, Position, Reader, Shutdown, Writer};
use crate::pieces::Patience;

/// Bounds the bytes that are on their way in one direction. The last message may go beyond the bound.
const WAY_BYTES_MAX: usize = 256 << 10;
/// Bounds how many messages a message may overtake, without an order.
const OVERTAKEN_MAX: usize = 8;
/// Says how long a message that is alone waits for another to overtake it, without an order.
const OVERTAKE_TIME: Duration = Duration::from_millis(1);

/// Makes numbers that look random (Steele et al., "Fast splittable pseudorandom number generators", SplitMix64).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn is_one_of(&mut self, of: u64) -> bool {
        self.next().is_multiple_of(of)
    }
}

/// A connection between two ends.
#[derive(Debug)]
pub(super) struct Wire {
    /// The address that dialled, and the other address.
    ends: [IpAddr; 2],
    is_ordered: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The ways from the end that dialled, and from the other end.
    ways: [Way; 2],
    is_stalled: bool,
    random: Random,
}

/// What one end has sent, and how that end ended.
#[derive(Debug, Default)]
struct Way {
    /// The bytes that were sent before the split.
    greeting: VecDeque<u8>,
    messages: VecDeque<(u64, VecDeque<Bytes>)>,
    bytes: usize,
    /// How the end ended, as the other end sees it.
    ended: Option<Ended>,
    /// How the end itself let go of the connection.
    own: Option<Own>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Closed,
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    Closed,
    GivenUp,
}

impl Wire {
    pub(super) fn new(ends: [IpAddr; 2], is_ordered: bool, seed: u64) -> Wire {
        let state = State { ways: Default::default(), is_stalled: false, random: Random(seed) };
        Wire { ends, is_ordered, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Closes the ends at an address, as a kernel does for a process that has ended.
    pub(super) fn close_at(&self, ip: IpAddr) {
        (0..2).filter(|side| self.ends[*side] == ip).for_each(|side| self.let_go(side, Own::Closed));
    }

    fn let_go(&self, side: usize, own: Own) {
        let mut state = self.lock();
        let is_stalled = state.is_stalled;
        let has_unread = !state.ways[1 - side].messages.is_empty();
        let way = &mut state.ways[side];
        if way.own.is_none() {
            way.own = Some(own);
            match own {
                // Kernels do so, too: if something was not read, what was sent is thrown away.
                Own::Closed if has_unread => way.ended = Some(Ended::Reset),
                Own::Closed => way.ended = way.ended.or(Some(Ended::Closed)),
                // A reset is sent once. If nothing moves, the reset is lost.
                Own::GivenUp if !is_stalled => way.ended = Some(Ended::Reset),
                Own::GivenUp => {}
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn set_stalled(&self, is_stalled: bool) {
        self.lock().is_stalled = is_stalled;
        self.changed.notify_all();
    }

    pub(super) fn reset(&self) {
        self.lock().ways.iter_mut().for_each(|way| way.ended = Some(Ended::Reset));
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// One end of a connection. The end is closed when nobody holds it any more, as a process' sockets are.
#[derive(Debug)]
pub(super) struct End {
    wire: Arc<Wire>,
    /// The index of this end's own way.
    side: usize,
}

/// Returns the end that dialled, and the other end.
pub(super) fn ends(wire: &Arc<Wire>) -> [Arc<End>; 2] {
    [0, 1].map(|side| Arc::new(End { wire: wire.clone(), side }))
}

/// Returns the halves of an end.
pub(super) fn split(end: Arc<End>, caps: Caps) -> Connection {
    Connection {
        caps,
        cipher: None,
        reader: Box::new(FakeReader { end: end.clone(), message: VecDeque::new() }),
        writer: Box::new(FakeWriter { end: end.clone(), taken_on: 0, unsent: VecDeque::new() }),
        shutdown: Box::new(FakeShutdown(end)),
    }
}

impl End {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.wire.lock()
    }

    /// Sends bytes of a handshake.
    pub(super) fn greet(&self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        match state.write_end(self.side) {
            None => {}
            Some(LinkEnd::Reset) => return Err(io::ErrorKind::ConnectionReset.into()),
            Some(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
        }
        state.ways[self.side].greeting.extend(bytes);
        self.wire.changed.notify_all();
        Ok(())
    }

    /// Fills `out` with bytes of a handshake. Returns false if the bytes did not come by the deadline.
    pub(super) fn hear(&self, out: &mut [u8], deadline: Instant) -> io::Result<bool> {
        let state = self.wait_greeting(out.len(), deadline)?;
        let Some(mut state) = state else { return Ok(false) };
        let greeting = &mut state.ways[1 - self.side].greeting;
        for (to, from) in out.iter_mut().zip(std::iter::from_fn(|| greeting.pop_front())) {
            *to = from;
        }
        Ok(true)
    }

    /// Returns the first byte of a handshake without consuming it.
    pub(super) fn first_byte(&self, deadline: Instant) -> Option<u8> {
        let state = self.wait_greeting(1, deadline).ok()??;
        state.ways[1 - self.side].greeting.front().copied()
    }

    fn wait_greeting(&self, bytes: usize, deadline: Instant) -> io::Result<Option<MutexGuard<'_, State>>> {
        let mut state = self.lock();
        loop {
            let way = &state.ways[1 - self.side];
            if way.greeting.len() >= bytes && !state.is_stalled {
                return Ok(Some(state));
            }
            match state.read_end(self.side) {
                Some(LinkEnd::Reset) => return Err(io::ErrorKind::ConnectionReset.into()),
                Some(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.wire.wait_for(state, left);
        }
    }

    pub(super) fn shutdown(self: &Arc<Self>) -> Box<dyn Shutdown> {
        Box::new(FakeShutdown(self.clone()))
    }

    /// Ends sending. What was sent arrives.
    fn finish(&self) {
        let way = &mut self.lock().ways[self.side];
        way.ended = way.ended.or(Some(Ended::Closed));
        self.wire.changed.notify_all();
    }

    fn let_go(&self, own: Own) {
        self.wire.let_go(self.side, own);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.let_go(Own::Closed);
    }
}

impl State {
    /// Returns how the connection ended for the reader of an end, once the reader has read all that it may.
    fn read_end(&self, side: usize) -> Option<LinkEnd> {
        match (self.ways[side].own, self.ways[1 - side].ended) {
            (Some(Own::GivenUp), _) => Some(LinkEnd::GivenUp),
            (Some(Own::Closed), _) => Some(LinkEnd::Closed),
            _ if self.is_stalled => None,
            (None, Some(Ended::Reset)) => Some(LinkEnd::Reset),
            (None, Some(Ended::Closed)) => self.ways[1 - side].messages.is_empty().then_some(LinkEnd::Closed),
            (None, None) => None,
        }
    }

    /// Returns how the connection ended for the writer of an end.
    fn write_end(&self, side: usize) -> Option<LinkEnd> {
        let [own, other] = [&self.ways[side], &self.ways[1 - side]];
        match own.own {
            Some(Own::GivenUp) => Some(LinkEnd::GivenUp),
            Some(Own::Closed) => Some(LinkEnd::Closed),
            None if own.ended == Some(Ended::Closed) => Some(LinkEnd::Closed),
            None if self.is_stalled => None,
            None => (other.ended == Some(Ended::Reset) || other.own.is_some()).then_some(LinkEnd::Reset),
        }
    }
}

struct FakeReader {
    end: Arc<End>,
    /// The rest of the message whose reading was begun.
    message: VecDeque<Bytes>,
}

impl FakeReader {
    fn copy(message: &mut VecDeque<Bytes>, out: &mut [u8]) -> Result<(), LinkEnd> {
        let mut filled = 0;
        while filled < out.len() {
            let Some(part) = message.front_mut() else {
                let why = "a message is shorter than it says";
                return Err(LinkEnd::Failed(io::Error::new(io::ErrorKind::InvalidData, why)));
            };
            let bytes = part.len().min(out.len() - filled);
            part.copy_to_slice(&mut out[filled..filled + bytes]);
            filled += bytes;
            if part.is_empty() {
                message.pop_front();
            }
        }
        Ok(())
    }
}

impl Reader for FakeReader {
    fn read_head(&mut self, head: &mut [u8]) -> Result<Position, LinkEnd> {
        debug_assert!(self.message.is_empty(), "the message before was not read");
        let wire = &self.end.wire;
        let mut state = wire.lock();
        let mut has_waited = wire.is_ordered;
        let (position, message) = loop {
            if let Some(end) = state.read_end(self.end.side) {
                return Err(end);
            }
            let State { ways, is_stalled, random } = &mut *state;
            let way = &mut ways[1 - self.end.side];
            let choice = if wire.is_ordered { 1 } else { way.messages.len().min(OVERTAKEN_MAX) };
            if way.messages.is_empty() || *is_stalled {
                state = wire.wait(state);
            } else if way.messages.len() == 1 && !has_waited && random.is_one_of(2) {
                has_waited = true;
                state = wire.wait_for(state, OVERTAKE_TIME);
            } else {
                let at = (random.next() % choice as u64) as usize;
                let (position, message) = way.messages.remove(at).expect("just counted");
                way.bytes -= message.iter().map(Bytes::len).sum::<usize>();
                break (position, message);
            }
        };
        drop(state);
        wire.changed.notify_all();
        self.message = message;
        FakeReader::copy(&mut self.message, head)?;
        Ok(if wire.is_ordered { Position::Next } else { Position::At(position) })
    }

    /// Without an order the body lies in the link's own memory, in one piece. So tests try both ways to return a body.
    fn read_body(&mut self, bytes: usize, buffers: &dyn BufferSource) -> Result<Bytes, LinkEnd> {
        let message = &mut self.message;
        if !self.end.wire.is_ordered && message.len() == 1 && message[0].len() == bytes {
            return Ok(message.pop_front().unwrap_or_default());
        }
        buffers.filled(bytes, &mut |out| FakeReader::copy(message, out))
    }
}

struct FakeWriter {
    end: Arc<End>,
    /// The bytes of all earlier messages.
    taken_on: u64,
    unsent: VecDeque<(u64, VecDeque<Bytes>)>,
}

impl Writer for FakeWriter {
    fn push(&mut self, messages: &mut Vec<Message>) -> Result<(), LinkEnd> {
        debug_assert!(self.unsent.is_empty());
        for message in messages.drain(..) {
            let position = self.taken_on;
            self.taken_on += message.bytes() as u64;
            self.unsent.push_back((position, message.into_parts().collect()));
        }
        Ok(())
    }

    fn flush(&mut self, patience: Patience) -> Result<bool, LinkEnd> {
        let wire = &self.end.wire;
        let mut state = wire.lock();
        while !self.unsent.is_empty() {
            if let Some(end) = state.write_end(self.end.side) {
                return Err(end);
            }
            let State { ways, random, .. } = &mut *state;
            let way = &mut ways[self.end.side];
            if patience == Patience::Try && random.is_one_of(4) {
                // The connection is full, for no reason that the writer could know.
                return Ok(false);
            }
            if way.bytes >= WAY_BYTES_MAX {
                match patience {
                    Patience::Try => return Ok(false),
                    Patience::Wait => state = wire.wait(state),
                }
                continue;
            }
            if let Some((position, message)) = self.unsent.pop_front() {
                way.bytes += message.iter().map(Bytes::len).sum::<usize>();
                way.messages.push_back((position, message));
                wire.changed.notify_all();
            }
        }
        Ok(true)
    }
}

struct FakeShutdown(Arc<End>);

impl Shutdown for FakeShutdown {
    fn finish(&self) {
        self.0.finish();
    }

    fn close(&self) {
        self.0.let_go(Own::Closed);
    }

    fn abort(&self) {
        self.0.let_go(Own::GivenUp);
    }
}
