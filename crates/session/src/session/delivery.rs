//! What has arrived, what is lost, what is dead.

use std::time::Duration;

use super::connection::{Connection, QueuedFrame, SentFrame};
use super::{Ended, Event, ProtocolError, Session};
use crate::frame::Header;
use crate::limits::*;
use crate::stream::Fin;
use crate::{ConnectionId, ConnectionKind, PathId};

impl Connection {
    /// Notes that a frame of `bytes` bytes has arrived. `position`: how many bytes come before the frame on its
    /// connection; `None`: the link keeps order, so all that have arrived. Returns by how much the connection's bytes
    /// without a gap grew.
    ///
    /// # Errors
    /// [`ProtocolError::BadPosition`] if the frame's place is taken or out of range; [`ProtocolError::Confetti`] if
    /// there are too many gaps.
    fn note_arrival(&mut self, bytes: u64, position: Option<u64>) -> Result<u64, ProtocolError> {
        let before = self.received_position;
        let start = position.unwrap_or(before);
        let end = start.checked_add(bytes).filter(|end| *end <= OFFSET_MAX).ok_or(ProtocolError::BadPosition)?;
        if start < before || self.received_ahead.overlaps(start..end) {
            return Err(ProtocolError::BadPosition);
        }
        if start > before {
            self.received_ahead.insert(start..end);
            return if self.received_ahead.count() > OVERTAKEN_MAX { Err(ProtocolError::Confetti) } else { Ok(0) };
        }
        self.received_position = self.received_ahead.take_from(end).unwrap_or(end);
        Ok(self.received_position - before)
    }
}

impl Session {
    /// Counts a frame. The frame is acknowledged once every frame before it on its connection has arrived, too.
    pub(super) fn account_received(
        &mut self,
        now: Duration,
        id: ConnectionId,
        position: Option<u64>,
        header: &Header,
    ) -> Result<(), ProtocolError> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let bytes = header.frame_bytes();
        let complete = connection.note_arrival(bytes, position)?;
        let Some(state) = self.paths.get_mut(&connection.path) else { return Ok(()) };
        state.received_bytes += bytes;
        // Frames that had overtaken this one are owed an acknowledgement, whatever it is.
        if complete == 0 || (complete == bytes && !header.kind.is_acknowledged()) {
            return Ok(());
        }
        connection.unacknowledged += complete;
        let before = state.unacknowledged;
        state.unacknowledged += complete;
        // Wake for the first byte (to arm the timer) and when much has gathered.
        let wake = state.acknowledge_at.is_none() || (before < ACK_BYTES && state.unacknowledged >= ACK_BYTES);
        state.acknowledge_at.get_or_insert(now + ACK_DELAY);
        if wake && let Some(control) = state.control {
            self.wake(control);
        }
        Ok(())
    }

    pub(super) fn handle_ack(&mut self, now: Duration, id: ConnectionId, offset: u64) -> Result<(), ProtocolError> {
        // The connection may have ended while its acknowledgement was on the way.
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        if offset > connection.sent_position {
            return Err(ProtocolError::AckBeyondSent);
        }
        if offset <= connection.acknowledged_position {
            return Ok(());
        }
        connection.acknowledged_position = offset;
        connection.progress_at = now;
        let arrived = connection.sent.iter().take_while(|sent| sent.end <= offset).count();
        let arrived: Vec<SentFrame> = connection.sent.drain(..arrived).collect();
        let path = connection.path;
        if connection.kind == ConnectionKind::Control {
            connection.urgent_bytes -= arrived.iter().map(|sent| sent.item.urgent_bytes()).sum::<u64>();
        }
        if connection.kind == ConnectionKind::Data && connection.suspect_since.take().is_some() {
            self.events.push_back(Event::Stalled(path, false));
        }
        let stamp = arrived.last().and_then(|last| last.stamp);
        if let (Some(stamp), Some(state)) = (stamp, self.paths.get_mut(&path)) {
            let bytes = arrived.iter().map(|sent| sent.bytes).sum();
            state.estimate.acknowledged(now, bytes, &stamp);
        }
        for sent in arrived {
            match sent.item {
                QueuedFrame::Data(stream_id, chunk) => {
                    if let Some(stream) = self.streams.get_mut(&stream_id) {
                        stream.send.acknowledge(&chunk);
                        self.drop_if_over(stream_id);
                    }
                }
                QueuedFrame::Fin(stream_id, _) => {
                    if let Some(stream) = self.streams.get_mut(&stream_id) {
                        stream.send.fin = Fin::Acknowledged;
                        self.drop_if_over(stream_id);
                    }
                }
                QueuedFrame::Reset(stream_id, ..) => drop(self.resets.remove(&stream_id)),
                _ => {}
            }
        }
        self.wake_data();
        Ok(())
    }

    pub(super) fn handle_pong(&mut self, now: Duration, id: ConnectionId, token: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.ping_open.take().is_none() {
            return; // nobody asked
        }
        let path = connection.path;
        let recovered = connection.suspect_since.take().is_some();
        if let Some(state) = self.paths.get_mut(&path) {
            let rtt = now.saturating_sub(Duration::from_micros(token));
            state.estimate.round_trip(now, rtt);
        }
        if recovered {
            self.events.push_back(Event::Stalled(path, false));
            self.wake_data();
        }
    }

    /// Pings, and notices silence.
    pub(super) fn check_connection(&mut self, now: Duration, id: ConnectionId) {
        let connection = self.connections.get_mut(&id).expect("listed connections exist");
        if connection.closing {
            return;
        }
        let estimate = &self.paths[&connection.path].estimate;
        let rtt = estimate.rtt().unwrap_or_default();
        let patience = match connection.kind {
            ConnectionKind::Control => STALL_TIME.max(rtt * 4),
            // On a slow path even what is allowed on the way takes long.
            ConnectionKind::Data => {
                let drain = estimate.rate().map_or(0.5, |r| 3.0 * estimate.inflight() as f64 / r);
                STALL_TIME.max(rtt * 4).max(Duration::from_secs_f64(drain.min(5.0)))
            }
        };
        let silent_since = match connection.kind {
            ConnectionKind::Control => connection.ping_open,
            ConnectionKind::Data => (!connection.sent.is_empty()).then_some(connection.progress_at),
        };
        let path = connection.path;
        if connection.kind == ConnectionKind::Control
            && connection.ping_open.is_none()
            && now.saturating_sub(connection.ping_at) >= PING_PERIOD
        {
            connection.ping_at = now;
            connection.ping_open = Some(now);
            connection.queued_frames.push_front(QueuedFrame::Ping);
            return self.wake(id);
        }
        match connection.suspect_since {
            Some(since) if now.saturating_sub(since) >= STALLED_CONNECTION_TIME_MAX => {
                connection.closing = true;
                self.events.push_back(Event::Close(id));
            }
            Some(_) => {}
            None if silent_since.is_some_and(|since| now.saturating_sub(since) >= patience) => {
                connection.suspect_since = Some(now);
                let sent: Vec<QueuedFrame> = connection.sent.iter().map(|sent| sent.item.clone()).collect();
                let kind = connection.kind;
                self.events.push_back(Event::Stalled(path, true));
                // It may have arrived; whoever has it twice drops it.
                self.requeue_unacknowledged(kind, sent.into_iter());
            }
            None => {}
        }
    }

    /// What a connection had may not have arrived and goes again, over others.
    pub(super) fn requeue_unacknowledged(&mut self, kind: ConnectionKind, items: impl Iterator<Item = QueuedFrame>) {
        if kind == ConnectionKind::Control {
            let credits: Vec<QueuedFrame> = self.streams.keys().map(|id| QueuedFrame::Credit(*id)).collect();
            credits.into_iter().for_each(|credit| self.queue_small_frame_once(credit));
        }
        for item in items {
            match item {
                QueuedFrame::Data(id, chunk) => {
                    let Some(stream) = self.streams.get_mut(&id) else {
                        continue;
                    };
                    self.resent_bytes += stream.send.requeue(&chunk);
                    if stream.send.has_work() && !stream.send.queued {
                        stream.send.queued = true;
                        self.turn.push_front(id);
                    }
                }
                QueuedFrame::Credit(_) | QueuedFrame::Ping | QueuedFrame::Pong(_) => {}
                QueuedFrame::Fin(id, _) if self.streams.get(&id).is_none_or(|s| s.send.fin == Fin::Acknowledged) => {}
                other => self.queue_small_frame_once(other),
            }
        }
        self.wake_data();
    }

    pub(super) fn close_path(&mut self, path: PathId) {
        for (&id, connection) in self.connections.iter_mut().filter(|(_, c)| c.path == path) {
            if !connection.closing {
                connection.closing = true;
                self.events.push_back(Event::Close(id));
            }
        }
    }

    /// Notes why none of the paths that are up may carry bulk data; empty: a path may.
    pub fn bar_paths(&mut self, why: &str) {
        self.barred.note(why);
    }

    /// Ends the session if bulk data has waited for the outage's time, and no path may carry such data.
    pub(super) fn check_barred(&mut self, now: Duration) {
        let carries = self.connections.values().any(|connection| connection.kind == ConnectionKind::Data);
        let waits = !self.waiting.is_empty() || !self.turn.is_empty();
        let outage = self.settings.outage;
        if let Some(why) = self.barred.is_out(now, carries, waits, outage).map(str::to_owned) {
            self.end(Ended::Barred { why, waited: outage });
        }
    }

    pub(super) fn end(&mut self, why: Ended) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(why.clone());
        let reason = why.to_string();
        for (id, stream) in &mut self.streams {
            stream.send.clear();
            stream.reset.get_or_insert_with(|| (0, reason.clone()));
            if stream.opened {
                self.events.push_back(Event::Readable(*id));
                self.events.push_back(Event::Writable(*id));
            }
        }
        self.turn.clear();
        self.waiting.clear();
        self.backlog.clear();
        self.events.push_back(Event::Ended(why));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::Settings;
    use super::*;
    use crate::{ConnectionId, PathId, Role};

    const OUTAGE: Duration = Duration::from_secs(60);
    const WHY: &str = "10.0.0.2 is excluded";

    /// Returns a session with a control connection, whose path is barred, and a stream.
    fn session() -> (Session, crate::StreamId) {
        let mut session = Session::new(Duration::ZERO, Role::Dialer, Settings { outage: OUTAGE });
        session.connection_up(Duration::ZERO, ConnectionId(0), PathId(0), ConnectionKind::Control).unwrap();
        session.bar_paths(WHY);
        let stream = session.open("there").unwrap();
        (session, stream)
    }

    /// Lets seconds pass, one after the other, in which the peer answers. Returns how the session ended.
    fn pass(session: &mut Session, seconds: std::ops::Range<u64>) -> Option<Ended> {
        for second in seconds {
            let now = Duration::from_secs(second);
            // The peer answers every ping.
            if let Some(connection) = session.connections.get_mut(&ConnectionId(0)) {
                connection.ping_open = None;
            }
            session.handle_timeout(now);
        }
        session.ended().cloned()
    }

    #[test]
    fn bulk_that_waits_ends_the_session_after_the_outage() {
        let (mut session, stream) = session();
        assert_eq!(pass(&mut session, 0..300), None, "nothing waits");
        let now = Duration::from_secs(300);
        assert_eq!(session.send_capacity(now, stream), crate::limits::URGENT_BYTES);
        session.send(now, stream, Bytes::from(vec![7; 1 << 20]));
        assert_eq!(session.send_capacity(now, stream), 0);
        assert_eq!(pass(&mut session, 300..360), None);
        let ended = pass(&mut session, 360..362).unwrap();
        assert_eq!(ended, Ended::Barred { why: WHY.into(), waited: OUTAGE });
        assert_eq!(ended.to_string(), "no path may carry data: 10.0.0.2 is excluded; waited for 60 s");
    }

    #[test]
    fn a_path_that_may_carry_bulk_begins_the_time_anew() {
        let (mut session, stream) = session();
        session.send(Duration::ZERO, stream, Bytes::from(vec![7; 1 << 20]));
        session.send_capacity(Duration::ZERO, stream);
        assert_eq!(pass(&mut session, 0..50), None);
        session.bar_paths("");
        assert_eq!(pass(&mut session, 50..200), None);
        session.bar_paths(WHY);
        assert_eq!(pass(&mut session, 200..260), None);
        // What is excluded may go on for a moment.
        let data = session.connection_up(Duration::from_secs(260), ConnectionId(1), PathId(0), ConnectionKind::Data);
        data.unwrap();
        assert_eq!(pass(&mut session, 260..265), None);
    }
}
