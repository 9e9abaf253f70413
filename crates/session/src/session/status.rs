//! Snapshots of a session.

use serde::Serialize;

use super::connection::QueuedFrame;
use super::{Ended, Session};
use crate::{ConnectionId, ConnectionKind, PathId};

/// A path's state, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathStatus {
    /// The path.
    pub path: PathId,
    /// Whether the path has its control connection.
    #[serde(rename = "control")]
    pub has_control_connection: bool,
    /// How many data connections the path has.
    pub data_connections: usize,
    /// Whether the path may carry bulk now.
    pub usable: bool,
    /// Bytes of frames sent on the path.
    pub sent_bytes: u64,
    /// Bytes of frames received on the path.
    pub received_bytes: u64,
    /// Measured bytes per second. `None`: not measured.
    pub rate: Option<f64>,
    /// Least round trip, in seconds. `None`: not measured.
    pub rtt_s: Option<f64>,
    /// Bytes sent and not yet acknowledged.
    pub inflight_bytes: u64,
}

/// A session's state, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// How many streams are open.
    pub streams: usize,
    /// Bytes that were sent a second time.
    pub resent_bytes: u64,
    /// Bytes of streams that have arrived and wait for bytes before them or for their reader.
    pub held_bytes: u64,
    /// Each path that has a connection.
    pub paths: Vec<PathStatus>,
}

/// What a session keeps in memory, for tests of its bounds.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// How many streams, connections and paths there are.
    pub streams: usize,
    pub connections: usize,
    pub paths: usize,
    /// Bytes that the peer was allowed to send and the application has not consumed: the bound of what is held.
    pub granted_bytes: u64,
    /// Bytes received and not handed out.
    pub held_bytes: u64,
    /// In how many pieces the held bytes lie.
    pub held_pieces: usize,
    /// Bytes handed over and not sent.
    pub unsent_bytes: u64,
    /// Bytes sent that may have to go again; every copy counts.
    pub retained_bytes: u64,
    /// How many frames and pieces of streams are in all queues of the sending side.
    pub queued: usize,
    /// What counts against the bounds of sending: bytes on the way on paths, and bytes of urgent streams.
    pub inflight_bytes: u64,
    pub urgent_bytes: u64,
    /// How many events are not yet polled.
    pub events: usize,
}

impl Session {
    /// Returns why the session is over. `None`: it is not.
    pub fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// Returns the session's state at this moment.
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

    /// Returns how much is kept in memory. Walks all of it.
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

    /// Returns a path's data connections, the oldest first.
    pub fn data_connections_of(&self, path: PathId) -> Vec<ConnectionId> {
        let data = self.connections.iter().filter(|(_, c)| c.path == path && c.kind == ConnectionKind::Data);
        data.map(|(id, _)| *id).collect()
    }

    pub(super) fn data_connections(&self, path: PathId) -> usize {
        self.connections.values().filter(|c| c.path == path && c.kind == ConnectionKind::Data).count()
    }
}
