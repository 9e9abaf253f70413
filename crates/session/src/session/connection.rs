//! What a session keeps of each connection and path.

use std::collections::VecDeque;
use std::time::Duration;

use crate::frame::HEADER_BYTES;
use crate::path::{PathEstimate, SendStamp};
use crate::ranges::Ranges;
use crate::stream::Chunk;
use crate::{ConnectionId, ConnectionKind, PathId, StreamId};

/// One frame, as long as it is not acknowledged.
#[derive(Clone, Debug)]
pub(super) enum QueuedFrame {
    Data(StreamId, Chunk),
    Open(StreamId, String),
    Fin(StreamId, u64),
    Reset(StreamId, u64, String),
    /// Not kept: it says what is granted when it goes out, and is said again when a connection is lost.
    Credit(StreamId),
    Addresses,
    Ping,
    Pong(u64),
}

impl QueuedFrame {
    /// Only of items that are not data.
    pub(super) fn is_duplicate_of(&self, other: &QueuedFrame) -> bool {
        match (self, other) {
            (QueuedFrame::Open(a, _), QueuedFrame::Open(b, _)) | (QueuedFrame::Fin(a, _), QueuedFrame::Fin(b, _)) => {
                a == b
            }
            (QueuedFrame::Reset(a, ..), QueuedFrame::Reset(b, ..))
            | (QueuedFrame::Credit(a), QueuedFrame::Credit(b)) => a == b,
            (QueuedFrame::Addresses, QueuedFrame::Addresses) => true,
            _ => false,
        }
    }

    /// Bytes that it adds to [`Connection::urgent_bytes`].
    pub(super) fn urgent_bytes(&self) -> u64 {
        match self {
            QueuedFrame::Data(_, chunk) => HEADER_BYTES as u64 + chunk.len(),
            _ => 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct SentFrame {
    /// Position on the connection after the frame.
    pub(super) end: u64,
    pub(super) bytes: u64,
    /// On data connections; what is small says nothing about a path's rate.
    pub(super) stamp: Option<SendStamp>,
    pub(super) item: QueuedFrame,
}

/// What the caller does who sends on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// Waits for an [`super::Event::Transmit`].
    Idle,
    /// Has that event, and has not asked yet what to send.
    Woken,
    /// Sends what it was given last.
    Busy,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) path: PathId,
    pub(super) kind: ConnectionKind,
    pub(super) sender: Sender,
    /// Small frames to send; only on control connections.
    pub(super) queued_frames: VecDeque<QueuedFrame>,
    /// Of urgent streams: bytes of frames that are queued or not acknowledged.
    pub(super) urgent_bytes: u64,
    pub(super) sent: VecDeque<SentFrame>,
    pub(super) sent_position: u64,
    pub(super) acknowledged_position: u64,
    /// When the peer last acknowledged something or, where nothing was on the way, a frame was sent.
    pub(super) progress_at: Duration,
    /// Up to this byte every frame has arrived.
    pub(super) received_position: u64,
    /// Frames beyond that, on links that keep no order.
    pub(super) received_ahead: Ranges,
    /// Received bytes that an acknowledgement is owed for.
    pub(super) unacknowledged: u64,
    pub(super) ping_at: Duration,
    /// Control connections: when a ping not yet answered went out.
    pub(super) ping_open: Option<Duration>,
    /// The peer's ping to be answered.
    pub(super) pong: Option<u64>,
    pub(super) suspect_since: Option<Duration>,
    pub(super) closing: bool,
}

impl Connection {
    pub(super) fn new(now: Duration, path: PathId, kind: ConnectionKind) -> Connection {
        Connection {
            path,
            kind,
            sender: Sender::Idle,
            queued_frames: VecDeque::new(),
            urgent_bytes: 0,
            sent: VecDeque::new(),
            sent_position: 0,
            acknowledged_position: 0,
            progress_at: now,
            received_position: 0,
            received_ahead: Ranges::default(),
            unacknowledged: 0,
            ping_at: now,
            ping_open: None,
            pong: None,
            suspect_since: None,
            closing: false,
        }
    }

    /// How many it holds, to be sent or acknowledged.
    pub(super) fn frames(&self) -> usize {
        self.queued_frames.len() + self.sent.len()
    }

    /// Bytes that were sent and are not yet acknowledged.
    pub(super) fn inflight(&self) -> u64 {
        self.sent_position - self.acknowledged_position
    }

    pub(super) fn is_usable(&self) -> bool {
        self.suspect_since.is_none() && !self.closing
    }
}

#[derive(Debug)]
pub(super) struct PathState {
    pub(super) estimate: PathEstimate,
    pub(super) up_at: Duration,
    pub(super) control: Option<ConnectionId>,
    pub(super) probed_at: Duration,
    /// Received bytes for which acknowledgements are owed, on all connections of the path, and when these are due.
    pub(super) unacknowledged: u64,
    pub(super) acknowledge_at: Option<Duration>,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
}

impl PathState {
    pub(super) fn new(now: Duration) -> PathState {
        PathState {
            estimate: PathEstimate::new(now),
            up_at: now,
            control: None,
            probed_at: now,
            unacknowledged: 0,
            acknowledge_at: None,
            sent_bytes: 0,
            received_bytes: 0,
        }
    }
}
