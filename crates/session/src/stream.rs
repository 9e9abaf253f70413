//! The two halves of a stream.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::PathId;
use crate::limits::{CHUNK_PARTS_MAX, URGENT_BYTES, URGENT_DECAY_TIME, URGENT_RECENT_BYTES, WINDOW_INITIAL};
use crate::ranges::Ranges;
use crate::reassembly::Reassembly;

/// A piece of a stream, in the buffers in which the application handed it over.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The offset in the stream at which the chunk begins.
    pub offset: u64,
    /// The chunk's bytes, in order.
    pub parts: Vec<Bytes>,
}

impl Chunk {
    /// Returns how many bytes are in the chunk.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// Returns whether the chunk has no bytes. That never happens; the method is there because clippy asks for it
    /// beside `len`.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How far the end of a sending half has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fin {
    /// More bytes may follow.
    Open,
    /// The application is done; the `Fin` is not yet acknowledged.
    Sent,
    /// The peer has acknowledged the `Fin`.
    Acknowledged,
}

/// The sending half of a stream: which bytes are not yet sent, lost on the way, acknowledged.
#[derive(Debug)]
pub(crate) struct SendHalf {
    unsent: VecDeque<Bytes>,
    unsent_bytes: usize,
    /// Offset of the first unsent byte.
    next: u64,
    /// Chunks whose connection died or stalls. They go again before anything new.
    lost: BTreeMap<u64, Chunk>,
    /// The peer's credit: bytes from this offset on may not be sent.
    pub(crate) credit: u64,
    acknowledged: Ranges,
    pub(crate) fin: Fin,
    /// Bytes sent lately, as of `recent_at`; it tells bulk from urgent.
    recent: f64,
    recent_at: Duration,
    /// Whether the stream is in the session's round-robin.
    pub(crate) queued: bool,
    /// Whether the stream is in the session's queue for room.
    pub(crate) waits_for_capacity: bool,
    /// Whether the application was refused because too many bytes are unsent.
    pub(crate) was_refused: bool,
    /// Whether the application was told of room that it has not used yet.
    pub(crate) granted: bool,
    /// Bytes handed over since the stream last waited for room.
    pub(crate) burst: usize,
}

impl SendHalf {
    pub(crate) fn new() -> SendHalf {
        SendHalf {
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            next: 0,
            lost: BTreeMap::new(),
            credit: WINDOW_INITIAL,
            acknowledged: Ranges::default(),
            fin: Fin::Open,
            recent: 0.0,
            recent_at: Duration::ZERO,
            queued: false,
            waits_for_capacity: false,
            was_refused: false,
            granted: false,
            burst: 0,
        }
    }

    pub(crate) fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    /// Returns how many chunks have to go again, and their bytes.
    pub(crate) fn lost(&self) -> (usize, u64) {
        (self.lost.len(), self.lost.values().map(Chunk::len).sum())
    }

    /// Returns the offset after the last byte that the application handed over.
    pub(crate) fn end(&self) -> u64 {
        self.next + self.unsent_bytes as u64
    }

    pub(crate) fn push(&mut self, now: Duration, data: Bytes) {
        self.recent = self.recent_bytes(now) + data.len() as f64;
        self.recent_at = now;
        self.granted = false;
        self.burst += data.len();
        self.unsent_bytes += data.len();
        self.unsent.push_back(data);
    }

    /// Returns how many bytes count as handed over lately.
    fn recent_bytes(&self, now: Duration) -> f64 {
        let elapsed = now.saturating_sub(self.recent_at).as_secs_f64();
        self.recent * (1.0 - elapsed / URGENT_DECAY_TIME.as_secs_f64()).max(0.0)
    }

    /// Returns whether bytes that are handed over next may be urgent.
    pub(crate) fn is_quiet(&self, now: Duration) -> bool {
        self.unsent_bytes == 0 && self.recent_bytes(now) <= URGENT_RECENT_BYTES as f64
    }

    /// Returns whether the stream is small and rare enough to go ahead of bulk.
    pub(crate) fn is_urgent(&self) -> bool {
        self.unsent_bytes <= URGENT_BYTES && self.recent <= URGENT_RECENT_BYTES as f64
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.lost.is_empty() || (self.unsent_bytes > 0 && self.next < self.credit)
    }

    /// Takes the next chunk to send, of at most about `max` bytes. A lost chunk goes again as it was.
    pub(crate) fn take(&mut self, max: usize) -> Option<Chunk> {
        while let Some((_, chunk)) = self.lost.pop_first() {
            if !self.is_acknowledged(&chunk) {
                return Some(chunk);
            }
        }
        let mut room = self.credit.saturating_sub(self.next).min(max as u64) as usize;
        let offset = self.next;
        let mut parts = Vec::new();
        while room > 0 && parts.len() < CHUNK_PARTS_MAX {
            let Some(front) = self.unsent.front_mut() else { break };
            let part =
                if front.len() <= room { self.unsent.pop_front().expect("front exists") } else { front.split_to(room) };
            room -= part.len();
            self.unsent_bytes -= part.len();
            self.next += part.len() as u64;
            parts.push(part);
        }
        (!parts.is_empty()).then_some(Chunk { offset, parts })
    }

    pub(crate) fn is_acknowledged(&self, chunk: &Chunk) -> bool {
        self.acknowledged.contains(chunk.offset..chunk.offset + chunk.len())
    }

    pub(crate) fn acknowledge(&mut self, chunk: &Chunk) {
        self.acknowledged.insert(chunk.offset..chunk.offset + chunk.len());
    }

    /// Takes back a chunk that may not have arrived. Returns its bytes if it has to go again, otherwise 0.
    pub(crate) fn requeue(&mut self, chunk: &Chunk) -> u64 {
        // A chunk is cut once and sent again whole, so the same offset is the same chunk.
        if self.is_acknowledged(chunk) || self.lost.contains_key(&chunk.offset) {
            return 0;
        }
        self.lost.insert(chunk.offset, chunk.clone());
        chunk.len()
    }

    /// Returns whether everything handed over has arrived at the peer, and the peer knows that it is everything.
    pub(crate) fn is_done(&self) -> bool {
        self.fin == Fin::Acknowledged && self.is_delivered()
    }

    /// Returns whether everything handed over has arrived at the peer, the end too if there is one.
    pub(crate) fn is_delivered(&self) -> bool {
        self.fin != Fin::Sent && self.acknowledged.contains(0..self.end())
    }

    /// Drops the bytes that wait; after a reset nobody needs them.
    pub(crate) fn clear(&mut self) {
        self.unsent.clear();
        self.unsent_bytes = 0;
        self.lost.clear();
        self.granted = false;
    }
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(crate) struct ReceiveHalf {
    pub(crate) reassembly: Reassembly,
    /// Bytes with which the application is done.
    pub(crate) consumed: u64,
    /// The offset up to which the peer may send.
    pub(crate) granted: u64,
    /// The offset at which the stream ends. `None`: the peer has not said.
    pub(crate) end: Option<u64>,
    /// Whether the application has seen the end.
    pub(crate) finished: bool,
}

impl ReceiveHalf {
    pub(crate) fn new() -> ReceiveHalf {
        ReceiveHalf {
            reassembly: Reassembly::default(),
            consumed: 0,
            granted: WINDOW_INITIAL,
            end: None,
            finished: false,
        }
    }

    /// Returns whether the application would get something other than `Pending`.
    pub(crate) fn is_readable(&self) -> bool {
        self.reassembly.is_ready() || self.is_at_end()
    }

    /// Returns how many bytes the peer may have sent that the application has not consumed.
    pub(crate) fn open_window(&self) -> u64 {
        self.granted - self.consumed
    }

    pub(crate) fn is_at_end(&self) -> bool {
        !self.finished && self.end == Some(self.reassembly.delivered())
    }
}

/// A stream as its session keeps it.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) send: SendHalf,
    pub(crate) receive: ReceiveHalf,
    /// Code and reason of the reset, once the stream is torn down by either end.
    pub(crate) reset: Option<(u64, String)>,
    /// Whether the application knows the stream.
    pub(crate) opened: bool,
    /// The name to which the peer opened the stream, until the application knows it.
    pub(crate) destination: Option<String>,
    /// Whether the application was told of the reset, or caused it.
    pub(crate) reset_seen: bool,
    /// Which paths and connections the stream's bulk may use.
    pub(crate) width: Width,
}

/// Which paths and connections of a session a stream's bulk may use. The others stand by: if what the bulk uses is
/// lost, the bulk uses the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// All paths.
    #[default]
    All,
    /// One path.
    Path,
    /// One connection.
    Connection,
    /// This path, and no other, however slow the path is: without the path, the bulk waits.
    Only(PathId),
}

/// Which end opened a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opener {
    /// This end.
    Here,
    /// The other end.
    Peer,
}

impl Stream {
    pub(crate) fn new(opener: Opener) -> Stream {
        Stream {
            send: SendHalf::new(),
            receive: ReceiveHalf::new(),
            reset: None,
            // The application hears of a stream of the peer when the stream's `Open` has arrived.
            opened: opener == Opener::Here,
            destination: None,
            reset_seen: false,
            width: Width::All,
        }
    }

    /// Returns whether the application may have more to send.
    pub(crate) fn accepts_data(&self) -> bool {
        self.send.fin == Fin::Open && self.reset.is_none()
    }

    /// Returns whether nothing more is owed to the application or the peer.
    pub(crate) fn is_over(&self) -> bool {
        match self.reset {
            Some(_) => self.reset_seen,
            None => self.send.is_done() && self.receive.finished,
        }
    }
}
