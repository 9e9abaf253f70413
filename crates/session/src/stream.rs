//! One stream's two halves.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::limits::{CHUNK_PARTS_MAX, URGENT_BYTES, URGENT_DECAY_TIME, URGENT_RECENT_BYTES, WINDOW_INITIAL};
use crate::ranges::Ranges;
use crate::reassembly::Reassembly;

/// A piece of a stream, in the buffers that it was handed over in.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Where in the stream it begins.
    pub offset: u64,
    /// Its bytes, in order.
    pub parts: Vec<Bytes>,
}

impl Chunk {
    /// Bytes in it.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// Never: chunks are made of bytes. For clippy's and a reader's peace.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How far the end of a sending half has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fin {
    /// More bytes may follow.
    Open,
    /// The application is done; `Fin` not yet acknowledged.
    Sent,
    /// The peer knows.
    Acknowledged,
}

/// What this end sends: bytes not yet sent, lost on the way, acknowledged.
#[derive(Debug)]
pub(crate) struct SendHalf {
    unsent: VecDeque<Bytes>,
    unsent_bytes: usize,
    /// Offset of the first unsent byte.
    next: u64,
    /// Chunks whose connection died or stalls, to go again before anything new.
    lost: BTreeMap<u64, Chunk>,
    /// The peer's credit: nothing from this offset on may be sent.
    pub(crate) credit: u64,
    acknowledged: Ranges,
    pub(crate) fin: Fin,
    /// Bytes sent lately, for telling bulk from urgent; and when it was brought up to date.
    recent: f64,
    recent_at: Duration,
    /// Whether the session's round-robin holds this stream.
    pub(crate) queued: bool,
    /// Whether the session's queue for room holds it.
    pub(crate) waits_for_capacity: bool,
    /// The application was refused because too much is unsent.
    pub(crate) was_refused: bool,
    /// The application was told of room that it has not used yet.
    pub(crate) granted: bool,
    /// Bytes handed over since it last waited for room.
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

    /// Chunks that have to go again, and their bytes.
    pub(crate) fn lost(&self) -> (usize, u64) {
        (self.lost.len(), self.lost.values().map(Chunk::len).sum())
    }

    /// Offset after the last byte that the application handed over.
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

    /// Bytes that count as handed over lately.
    fn recent_bytes(&self, now: Duration) -> f64 {
        let elapsed = now.saturating_sub(self.recent_at).as_secs_f64();
        self.recent * (1.0 - elapsed / URGENT_DECAY_TIME.as_secs_f64()).max(0.0)
    }

    /// What is handed over next may be urgent.
    pub(crate) fn is_quiet(&self, now: Duration) -> bool {
        self.unsent_bytes == 0 && self.recent_bytes(now) <= URGENT_RECENT_BYTES as f64
    }

    /// Small and rare enough to go ahead of bulk.
    pub(crate) fn is_urgent(&self) -> bool {
        self.unsent_bytes <= URGENT_BYTES && self.recent <= URGENT_RECENT_BYTES as f64
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.lost.is_empty() || (self.unsent_bytes > 0 && self.next < self.credit)
    }

    /// The next chunk to send, of at most about `max` bytes (a lost one goes again as it was).
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

    /// Takes back a chunk that may not have arrived. Returns its bytes if it has to go again.
    pub(crate) fn requeue(&mut self, chunk: &Chunk) -> u64 {
        // A chunk is cut once and resent whole, so the same offset is the same chunk.
        if self.is_acknowledged(chunk) || self.lost.contains_key(&chunk.offset) {
            return 0;
        }
        self.lost.insert(chunk.offset, chunk.clone());
        chunk.len()
    }

    /// Everything handed over has arrived at the peer, and the peer knows that it was everything.
    pub(crate) fn is_done(&self) -> bool {
        self.fin == Fin::Acknowledged && self.acknowledged.contains(0..self.end())
    }

    /// Forgets what waits; after a reset nobody wants it.
    pub(crate) fn clear(&mut self) {
        self.unsent.clear();
        self.unsent_bytes = 0;
        self.lost.clear();
        self.granted = false;
    }
}

/// What this end receives.
#[derive(Debug)]
pub(crate) struct ReceiveHalf {
    pub(crate) reassembly: Reassembly,
    /// Bytes that the application is done with.
    pub(crate) consumed: u64,
    /// What the peer was granted.
    pub(crate) granted: u64,
    /// Where the stream ends, once the peer said so.
    pub(crate) end: Option<u64>,
    /// The application has seen the end.
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

    /// Whether the application would get something other than `Pending`.
    pub(crate) fn is_readable(&self) -> bool {
        self.reassembly.is_ready() || self.is_at_end()
    }

    /// What the peer may have sent and the application has not consumed.
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
    /// Torn down: by whom does not matter any more, only why.
    pub(crate) reset: Option<(u64, String)>,
    /// The application knows it.
    pub(crate) opened: bool,
    /// What the peer opened it to, until the application knows.
    pub(crate) destination: Option<String>,
    /// The application was told of the reset, or caused it.
    pub(crate) reset_seen: bool,
    /// What its bulk may use.
    pub(crate) width: Width,
}

/// What a stream's bulk may use of a session. The rest stands by: where what it uses is lost, it uses the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// All paths.
    #[default]
    All,
    /// One path.
    Path,
    /// One connection.
    Connection,
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
            // What the peer opens, the application hears of when the opening is there.
            opened: opener == Opener::Here,
            destination: None,
            reset_seen: false,
            width: Width::All,
        }
    }

    /// Whether the application may have more to send.
    pub(crate) fn accepts_data(&self) -> bool {
        self.send.fin == Fin::Open && self.reset.is_none()
    }

    /// Nothing is owed to the application or the peer.
    pub(crate) fn is_over(&self) -> bool {
        match self.reset {
            Some(_) => self.reset_seen,
            None => self.send.is_done() && self.receive.finished,
        }
    }
}
