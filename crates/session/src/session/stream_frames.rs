//! Streams: opening, receiving, granting credit, handing bytes to the sending side.

use bytes::Bytes;

use super::connection::QueuedFrame;
use super::{Event, ProtocolError, Session};
use crate::StreamId;
use crate::limits::*;
use crate::stream::{Chunk, Fin, Opener, Stream};

impl Session {
    /// Announces streams in the order in which they were opened, whatever order their `Open` frames arrive in: QEMU
    /// before 8.0 takes its first connection for the main one (migration/migration.c).
    pub(super) fn handle_open(&mut self, id: StreamId, target: String) -> Result<(), ProtocolError> {
        let Some(stream) = self.peer_stream(id)? else { return Ok(()) };
        if stream.opened {
            return Ok(());
        }
        stream.destination.get_or_insert(target);
        while self.next_announced < self.next_peer {
            let id = StreamId(self.next_announced);
            if let Some(stream) = self.streams.get_mut(&id) {
                let Some(target) = stream.destination.take() else { break };
                stream.opened = true;
                self.events.push_back(Event::Opened(id, target));
                if self.is_readable(id) {
                    self.events.push_back(Event::Readable(id));
                }
                self.grant(id);
            }
            self.next_announced += 2;
        }
        Ok(())
    }

    pub(super) fn handle_data(&mut self, id: StreamId, offset: u64, data: Bytes) -> Result<(), ProtocolError> {
        let Some(stream) = self.any_stream(id)? else {
            return Ok(());
        };
        let half = &mut stream.receive;
        let end = offset + data.len() as u64;
        if end > half.granted {
            return Err(ProtocolError::BeyondCredit { end, granted: half.granted });
        }
        if half.end.is_some_and(|e| end > e) {
            return Err(ProtocolError::EndMoved);
        }
        let was_readable = half.is_readable();
        half.reassembly.insert(offset, data);
        let gaps = half.reassembly.gaps();
        let tell = !was_readable && half.is_readable() && stream.opened && stream.reset.is_none();
        if tell {
            self.events.push_back(Event::Readable(id));
        }
        // The sum is computed only where it could matter.
        if gaps > GAPS_MAX / 256 && self.streams.values().map(|s| s.receive.reassembly.gaps()).sum::<usize>() > GAPS_MAX
        {
            return Err(ProtocolError::Confetti);
        }
        Ok(())
    }

    pub(super) fn handle_fin(&mut self, id: StreamId, end: u64) -> Result<(), ProtocolError> {
        let Some(stream) = self.any_stream(id)? else {
            return Ok(());
        };
        let half = &mut stream.receive;
        if half.end.is_some_and(|e| e != end) || end < half.reassembly.end() {
            return Err(ProtocolError::EndMoved);
        }
        half.end = Some(end);
        if half.is_readable() && stream.opened {
            self.events.push_back(Event::Readable(id));
        }
        Ok(())
    }

    pub(super) fn handle_reset(&mut self, id: StreamId, code: u64, reason: String) -> Result<(), ProtocolError> {
        let Some(stream) = self.any_stream(id)? else {
            return Ok(());
        };
        if stream.reset.is_none() {
            stream.reset = Some((code, reason));
            stream.send.clear();
            // An application that has heard the end and said its own does not ask again.
            stream.reset_seen = stream.receive.finished && stream.send.fin != Fin::Open;
            if stream.opened {
                self.events.push_back(Event::Readable(id));
                self.events.push_back(Event::Writable(id));
            }
            self.drop_if_over(id);
            self.wake_data();
        }
        Ok(())
    }

    pub(super) fn handle_credit(&mut self, id: StreamId, offset: u64) -> Result<(), ProtocolError> {
        let Some(stream) = self.any_stream(id)? else {
            return Ok(());
        };
        if offset > stream.send.credit {
            stream.send.credit = offset;
            self.flush(id);
        }
        Ok(())
    }

    /// A stream of the peer's; `None` if it is over. Its number opens those before it, too: their
    /// `Open` is on its way.
    pub(super) fn peer_stream(&mut self, id: StreamId) -> Result<Option<&mut Stream>, ProtocolError> {
        if id.0 % 2 != self.next_peer % 2 {
            return Err(ProtocolError::BadStream);
        }
        if id.0 >= self.next_peer {
            let own = self.next_own % 2;
            let mut open = self.streams.keys().filter(|id| id.0 % 2 != own).count();
            let more = (id.0 - self.next_peer) / 2 + 1;
            if more > STREAMS_MAX * 4 || self.resets.len() >= STREAMS_MAX as usize * 4 || id.0 >= STREAM_NUMBER_MAX {
                return Err(ProtocolError::BadStream);
            }
            for number in (self.next_peer..=id.0).step_by(2) {
                let id = StreamId(number);
                // An honest peer may have more than it thinks: what is over for it waits for a reader here.
                if open < STREAMS_MAX as usize {
                    self.streams.insert(id, Stream::new(Opener::Peer));
                    open += 1;
                } else {
                    self.resets.insert(id);
                    self.queue_small_frame(QueuedFrame::Reset(id, 0, "too many streams are open".to_owned()));
                }
            }
            self.next_peer = id.0 + 2;
        }
        Ok(self.streams.get_mut(&id))
    }

    pub(super) fn any_stream(&mut self, id: StreamId) -> Result<Option<&mut Stream>, ProtocolError> {
        if id.0 % 2 == self.next_own % 2 {
            if id.0 >= self.next_own {
                return Err(ProtocolError::BadStream);
            }
            return Ok(self.streams.get_mut(&id));
        }
        self.peer_stream(id)
    }

    pub(super) fn drop_if_over(&mut self, id: StreamId) {
        if self.streams.get(&id).is_some_and(Stream::is_over) {
            self.streams.remove(&id);
            self.spread_windows();
        }
    }

    /// The window that each stream should have at this end.
    pub(super) fn window(&self) -> u64 {
        (WINDOW_SESSION / self.streams.len().max(1) as u64).clamp(WINDOW_MIN, WINDOW_MAX)
    }

    pub(super) fn grant(&mut self, id: StreamId) {
        let others = self.streams.iter().filter(|(other, _)| **other != id).map(|(_, s)| s.receive.open_window());
        let left = WINDOW_SESSION.saturating_sub(others.sum());
        let window = self.window().min(left).max(WINDOW_MIN);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let granted = stream.receive.consumed + window;
        if granted > stream.receive.granted {
            stream.receive.granted = granted;
            self.queue_small_frame(QueuedFrame::Credit(id));
        }
    }

    /// Streams that remain may have more, now that one is gone.
    pub(super) fn spread_windows(&mut self) {
        let window = self.window();
        let due: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, s)| s.opened && s.receive.consumed + window >= s.receive.granted + window / 4)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.grant(id);
        }
    }

    /// Gets a stream's unsent bytes on their way: urgent ones at once, bulk in its turn.
    pub(super) fn flush(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id) else { return };
        if !stream.send.has_work() || stream.send.queued {
            return;
        }
        let urgent = stream.send.is_urgent();
        let controls = if urgent { self.best_control_connections(Session::has_room_for_urgent) } else { Vec::new() };
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if controls.is_empty() {
            stream.send.queued = true;
            self.turn.push_back(id);
            return self.wake_data();
        }
        let chunks: Vec<Chunk> = std::iter::from_fn(|| stream.send.take(URGENT_BYTES)).collect();
        if std::mem::take(&mut stream.send.was_refused) {
            self.events.push_back(Event::Writable(id));
        }
        for chunk in chunks {
            for control in &controls {
                self.queue_small_frame_on(*control, QueuedFrame::Data(id, chunk.clone()));
            }
        }
    }
}
