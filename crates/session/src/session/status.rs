//! What a session is at a moment.

use serde::Serialize;

use super::connection::QueuedFrame;
use super::{Ended, Session};
use crate::{ConnectionKind, PathId};

/// What one path does, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathStatus {
    /// Which path.
    pub path: PathId,
    /// Whether it has its control connection.
    #[serde(rename = "control")]
    pub has_control_connection: bool,
    /// Its data connections.
    pub data_connections: usize,
    /// Whether it may carry bulk now.
    pub usable: bool,
    /// Bytes of frames sent on it.
    pub sent_bytes: u64,
    /// Bytes of frames received on it.
    pub received_bytes: u64,
    /// Measured bytes per second.
    pub rate: Option<f64>,
    /// Least round trip, in seconds.
    pub rtt_s: Option<f64>,
    /// Bytes on the way.
    pub inflight_bytes: u64,
}

/// What a session does, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// Streams that are open.
    pub streams: usize,
    /// Bytes that went out a second time.
    pub resent_bytes: u64,
    /// Bytes of streams that the peer sent and that wait for bytes before them or for their reader.
    pub held_bytes: u64,
    /// Each path with a connection.
    pub paths: Vec<PathStatus>,
}

/// What a session keeps in memory, for tests of its bounds.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Streams, connections and paths.
    pub streams: usize,
    pub connections: usize,
    pub paths: usize,
    /// Bytes that the peer was allowed to send and the application has not consumed: the bound of what is held.
    pub granted_bytes: u64,
    /// Bytes received and not handed out.
    pub held_bytes: u64,
    /// The pieces they lie in.
    pub held_pieces: usize,
    /// Bytes handed over and not sent.
    pub unsent_bytes: u64,
    /// Bytes sent that may have to go again, every copy counted.
    pub retained_bytes: u64,
    /// Frames and pieces of streams in every queue of the sending side.
    pub queued: usize,
    /// What counts against bounds of sending: bytes under way on paths, and of urgent streams.
    pub inflight_bytes: u64,
    pub urgent_bytes: u64,
    /// Events not yet polled.
    pub events: usize,
}

impl Session {
    /// Why the session is over, if it is.
    pub fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// The session at this moment.
    pub fn status(&self) -> Status {
        let paths = self.paths.iter().map(|(&id, state)| PathStatus {
            path: id,
            has_control_connection: state.control.is_some(),
            data_connections: self.data_connections(id),
            usable: self.path_is_usable(id),
            sent_bytes: state.sent_bytes,
            received_bytes: state.received_bytes,
            rate: state.estimate.rate(),
            rtt_s: state.estimate.rtt().map(|rtt| rtt.as_secs_f64()),
            inflight_bytes: state.estimate.inflight(),
        });
        Status {
            streams: self.streams.len(),
            resent_bytes: self.resent_bytes,
            held_bytes: self.streams.values().map(|s| s.receive.reassembly.held_bytes()).sum(),
            paths: paths.collect(),
        }
    }

    /// What is kept in memory; walks all of it.
    #[doc(hidden)]
    pub fn footprint(&self) -> Footprint {
        let items =
            self.connections.values().flat_map(|c| c.sent.iter().map(|sent| &sent.item).chain(&c.queued_frames));
        let (mut queued, mut retained_bytes) = (self.turn.len() + self.waiting.len() + self.resets.len(), 0);
        for item in items.chain(&self.backlog) {
            queued += 1;
            if let QueuedFrame::Data(_, chunk) = item {
                retained_bytes += chunk.len();
            }
        }
        let mut footprint = Footprint {
            streams: self.streams.len(),
            connections: self.connections.len(),
            paths: self.paths.len(),
            events: self.events.len(),
            inflight_bytes: self.paths.values().map(|path| path.estimate.inflight()).sum(),
            urgent_bytes: self.connections.values().map(|connection| connection.urgent_bytes).sum(),
            ..Footprint::default()
        };
        for stream in self.streams.values() {
            let (lost, lost_bytes) = stream.send.lost();
            queued += lost;
            retained_bytes += lost_bytes;
            footprint.unsent_bytes += stream.send.unsent_bytes() as u64;
            footprint.granted_bytes += stream.receive.open_window();
            footprint.held_bytes += stream.receive.reassembly.held_bytes();
            footprint.held_pieces += stream.receive.reassembly.pieces();
        }
        Footprint { queued, retained_bytes, ..footprint }
    }

    pub(super) fn data_connections(&self, path: PathId) -> usize {
        self.connections.values().filter(|c| c.path == path && c.kind == ConnectionKind::Data).count()
    }
}
