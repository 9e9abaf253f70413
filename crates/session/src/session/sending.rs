//! Who sends what next.

use std::time::Duration;

use bytes::Bytes;

use super::connection::{Connection, PathState, QueuedFrame, Sender, SentFrame};
use super::{Event, Session, Transmit};
use crate::address::encode_addresses;
use crate::frame::{FrameKind, Header};
use crate::limits::*;
use crate::stream::{Stream, Width};
use crate::{ConnectionId, ConnectionKind, PathId, StreamId};

impl Session {
    pub(super) fn poll_data(&mut self, now: Duration, id: ConnectionId) -> Option<Transmit> {
        if !self.may_pull(&self.connections[&id]) {
            return None;
        }
        if self.leaves_turn(id) {
            self.wake_data();
            return None;
        }
        let path = self.connections[&id].path;
        let max = self.paths[&path].estimate.chunk_bytes();
        let mut others = Vec::new();
        let mut taken = None;
        while let Some(stream_id) = self.turn.pop_front() {
            let Some(stream) = self.streams.get(&stream_id) else {
                continue;
            };
            if !self.is_for(id, stream.width) {
                others.push(stream_id);
                continue;
            }
            let Some(stream) = self.streams.get_mut(&stream_id) else { continue };
            // A little more rather than a chunk of its own for the rest.
            let all = stream.send.unsent_bytes().min(CHUNK_BYTES_MAX);
            let Some(chunk) = stream.send.take(if all <= max + max / 4 { all } else { max }) else {
                stream.send.queued = false;
                continue;
            };
            stream.send.queued = stream.send.has_work();
            if stream.send.queued {
                self.turn.push_back(stream_id);
            }
            if std::mem::take(&mut stream.send.was_refused) {
                self.events.push_back(Event::Writable(stream_id));
            }
            taken = Some((stream_id, chunk));
            break;
        }
        for other in others.into_iter().rev() {
            self.turn.push_front(other);
        }
        if let Some((stream_id, chunk)) = taken {
            if let Some(state) = self.paths.get_mut(&path) {
                state.probed_at = now;
            }
            // One event woke one connection; it wakes the next while there is more to do.
            self.wake_data();
            return Some(self.retain_until_acknowledged(now, id, QueuedFrame::Data(stream_id, chunk)));
        }
        if self.waiting.is_empty() && !self.streams.values().any(|s| s.send.granted && s.accepts_data()) {
            self.paths.values_mut().for_each(|path| path.estimate.ran_dry());
        }
        None
    }

    pub(super) fn poll_control(&mut self, now: Duration, id: ConnectionId) -> Option<Transmit> {
        // First what is small, and without which the peer takes this end for stalled.
        if let Some(token) = self.connections.get_mut(&id)?.pong.take() {
            return Some(self.retain_until_acknowledged(now, id, QueuedFrame::Pong(token)));
        }
        if let Some(acknowledgement) = self.poll_ack(now, id) {
            return Some(acknowledgement);
        }
        loop {
            let connection = self.connections.get_mut(&id)?;
            let item = connection.queued_frames.pop_front()?;
            let live = match &item {
                QueuedFrame::Credit(stream) => self.streams.contains_key(stream),
                QueuedFrame::Data(stream, chunk) => {
                    self.streams.get(stream).is_some_and(|s| !s.send.is_acknowledged(chunk))
                }
                _ => true,
            };
            if live {
                return Some(self.retain_until_acknowledged(now, id, item));
            }
            connection.urgent_bytes -= item.urgent_bytes();
        }
    }

    /// The next acknowledgement that is due, of any connection on this control connection's path. When one is, all
    /// are: one waking here and at the peer serves them.
    pub(super) fn poll_ack(&mut self, now: Duration, id: ConnectionId) -> Option<Transmit> {
        let path = self.connections.get(&id)?.path;
        let state = self.paths.get_mut(&path)?;
        if state.unacknowledged < ACK_BYTES && state.acknowledge_at.is_none_or(|at| at > now) {
            return None;
        }
        let owed = self.connections.iter_mut().find(|(_, c)| c.path == path && c.unacknowledged > 0);
        let Some((&owed, connection)) = owed else {
            state.acknowledge_at = None;
            return None;
        };
        state.unacknowledged -= std::mem::take(&mut connection.unacknowledged);
        // Armed on while bytes come, so that no event is needed to arm it again.
        state.acknowledge_at = Some(if state.unacknowledged > 0 { now } else { now + ACK_DELAY });
        let header = Header { kind: FrameKind::Ack, stream: owed.0, offset: connection.received_position, len: 0 };
        Some(self.count_sent(id, Transmit { header, payload: Vec::new() }))
    }

    /// Makes the frame of an item and remembers it until it is acknowledged.
    pub(super) fn retain_until_acknowledged(&mut self, now: Duration, id: ConnectionId, item: QueuedFrame) -> Transmit {
        let header =
            |kind, stream: StreamId, offset, len: usize| Header { kind, stream: stream.0, offset, len: len as u32 };
        let nobody = StreamId(0);
        let text = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let (header, payload) = match &item {
            QueuedFrame::Data(stream, chunk) => {
                (header(FrameKind::Data, *stream, chunk.offset, chunk.len() as usize), chunk.parts.clone())
            }
            QueuedFrame::Open(stream, target) => {
                (header(FrameKind::Open, *stream, 0, target.len()), vec![text(target)])
            }
            QueuedFrame::Fin(stream, end) => (header(FrameKind::Fin, *stream, *end, 0), vec![]),
            QueuedFrame::Reset(stream, code, reason) => {
                (header(FrameKind::Reset, *stream, *code, reason.len()), vec![text(reason)])
            }
            QueuedFrame::Credit(stream) => {
                let granted = self.streams.get(stream).map_or(0, |s| s.receive.granted);
                (header(FrameKind::Credit, *stream, granted, 0), vec![])
            }
            QueuedFrame::Addresses => {
                let payload = encode_addresses(&self.addresses);
                (header(FrameKind::Addresses, nobody, self.addresses_changed, payload.len()), vec![payload.into()])
            }
            QueuedFrame::Ping => (header(FrameKind::Ping, nobody, now.as_micros() as u64, 0), vec![]),
            QueuedFrame::Pong(token) => (header(FrameKind::Pong, nobody, *token, 0), vec![]),
        };
        let transmit = self.count_sent(id, Transmit { header, payload });
        let connection = self.connections.get_mut(&id).expect("polled connections exist");
        if header.kind.is_acknowledged() && !matches!(item, QueuedFrame::Credit(_)) {
            let bytes = header.frame_bytes();
            if connection.sent.is_empty() {
                connection.progress_at = now;
            }
            let path = self.paths.get_mut(&connection.path).expect("connections have a path");
            let stamp = (connection.kind == ConnectionKind::Data).then(|| path.estimate.sent(now, bytes));
            connection.sent.push_back(SentFrame { end: connection.sent_position, bytes, stamp, item });
            self.bound_frames(id);
        }
        transmit
    }

    pub(super) fn count_sent(&mut self, id: ConnectionId, transmit: Transmit) -> Transmit {
        let connection = self.connections.get_mut(&id).expect("polled connections exist");
        let bytes = transmit.header.frame_bytes();
        connection.sent_position += bytes;
        if let Some(path) = self.paths.get_mut(&connection.path) {
            path.sent_bytes += bytes;
        }
        transmit
    }

    /// Whether a data connection may take bulk now.
    pub(super) fn may_pull(&self, connection: &Connection) -> bool {
        let full = connection.frames() >= FRAMES_MAX / 2;
        if full || !connection.is_usable() || !self.path_is_usable(connection.path) {
            return false;
        }
        let state = &self.paths[&connection.path];
        let probe_due = self.now.saturating_sub(state.probed_at) >= PATH_REMEASURE_PERIOD;
        let inflight = state.estimate.inflight();
        let is_meant = || self.streams.values().any(|stream| stream.width == Width::Only(connection.path));
        inflight < state.estimate.inflight_limit()
            && (!self.is_spare(state) || (probe_due && inflight == 0) || is_meant())
    }

    /// A slow path that adds next to nothing to the others.
    pub(super) fn is_spare(&self, state: &PathState) -> bool {
        // A long path of which little is known yet has a low rate, too, but nothing waits on it.
        let Some(rate) = state.estimate.rate().filter(|rate| *rate < SPARE_RATE_MAX && state.estimate.queues()) else {
            return false;
        };
        let usable = self.paths.iter().filter(|(id, _)| self.path_is_usable(**id));
        let total: f64 = usable.filter_map(|(_, path)| path.estimate.rate()).sum();
        rate < total * SPARE_SHARE_MAX
    }

    pub(super) fn path_is_usable(&self, path: PathId) -> bool {
        let control = self.paths.get(&path).and_then(|state| state.control);
        control.and_then(|id| self.connections.get(&id)).is_some_and(Connection::is_usable)
    }

    /// Whether bulk of a stream of this width may go over a data connection.
    pub(super) fn is_for(&self, id: ConnectionId, width: Width) -> bool {
        match width {
            Width::All => return true,
            Width::Only(path) => return self.connections.get(&id).is_some_and(|connection| connection.path == path),
            Width::Path | Width::Connection => {}
        }
        // The first of the first path that is of use; one that is kept as a spare only if there is no other.
        let usable = |path: PathId| {
            let data = move |(_, c): &(&ConnectionId, &Connection)| {
                c.path == path && c.kind == ConnectionKind::Data && c.is_usable()
            };
            self.connections.iter().filter(data).map(|(id, _)| *id)
        };
        let paths =
            self.paths.iter().filter(|(path, _)| self.path_is_usable(**path) && usable(**path).next().is_some());
        let Some((path, _)) = paths.min_by_key(|(_, state)| self.is_spare(state)) else { return false };
        match width {
            Width::Connection => usable(*path).next() == Some(id),
            Width::All | Width::Only(_) | Width::Path => usable(*path).any(|other| other == id),
        }
    }

    /// Whether the paths have room for more than what was handed over and those hand over who were told that they may.
    /// What is granted next is at most a chunk more than that.
    pub(super) fn has_room(&self, width: Width) -> bool {
        let pulls = |path| {
            self.connections.iter().any(|(id, c)| {
                c.path == path && c.kind == ConnectionKind::Data && self.may_pull(c) && self.is_for(*id, width)
            })
        };
        let estimates = self.paths.iter().filter(|(id, _)| pulls(**id)).map(|(_, path)| &path.estimate);
        let room: u64 = estimates.map(|path| path.inflight_limit().saturating_sub(path.inflight())).sum();
        // What is for one path waits for that path, and takes nobody else's room.
        let competes = |stream: &&Stream| !matches!(stream.width, Width::Only(_)) || stream.width == width;
        let turn = self.turn.iter().filter_map(|id| self.streams.get(id)).filter(competes);
        let handed_over: usize = turn.map(|stream| stream.send.unsent_bytes()).sum();
        let grants = self.streams.values().filter(competes).filter(|s| s.send.granted && s.accepts_data());
        let granted = grants.count() * CHUNK_BYTES_MAX;
        room > (handed_over + granted) as u64
    }

    /// Bytes per second that all paths together are known to carry, for a stream of this width; 0: nothing is known
    /// yet.
    pub fn rate(&self, width: Width) -> f64 {
        let carries = |path: PathId| {
            let mut data = self.connections.iter().filter(|(_, c)| c.path == path && c.kind == ConnectionKind::Data);
            self.path_is_usable(path) && data.any(|(id, c)| c.is_usable() && self.is_for(*id, width))
        };
        let paths = self.paths.iter().filter(|(path, _)| carries(**path));
        paths.filter_map(|(_, state)| state.estimate.rate()).sum()
    }

    /// Whether a connection has its share of what may be on the way of its path, and another has not, and waits for
    /// bulk or is about to ask for some. Otherwise the first would take all of a slow path, though on a bond each has a
    /// member of its own.
    fn leaves_turn(&self, id: ConnectionId) -> bool {
        let own = &self.connections[&id];
        let of_path = || self.connections.iter().filter(|(_, c)| c.path == own.path && c.kind == ConnectionKind::Data);
        let share = self.paths[&own.path].estimate.inflight_limit() / of_path().count() as u64;
        own.inflight() >= share
            && of_path()
                .any(|(other, c)| c.sender != Sender::Busy && c.inflight() < share && self.has_bulk_for(*other, c))
    }

    /// Whether a data connection may send some of the bulk that there is.
    fn has_bulk_for(&self, id: ConnectionId, connection: &Connection) -> bool {
        let is_for_it = |of| self.streams.get(of).is_none_or(|stream| self.is_for(id, stream.width));
        connection.kind == ConnectionKind::Data && self.may_pull(connection) && self.turn.iter().any(is_for_it)
    }

    /// Wakes an idle data connection if there is bulk to send: of the emptiest path that with the least on the way.
    /// Wakes those who wait for room, too, as far as there is some.
    pub(super) fn wake_data(&mut self) {
        while let Some(next) =
            self.waiting.iter().position(|id| self.streams.get(id).is_none_or(|stream| self.has_room(stream.width)))
        {
            let id = self.waiting.remove(next).expect("just found");
            if let Some(stream) = self.streams.get_mut(&id)
                && std::mem::take(&mut stream.send.waits_for_capacity)
                && stream.accepts_data()
            {
                stream.send.granted = true;
                stream.send.burst = 0;
                self.events.push_back(Event::Writable(id));
            }
        }
        if self.turn.is_empty() {
            return;
        }
        let fullness = |path: &PathId| {
            let estimate = &self.paths[path].estimate;
            estimate.inflight() as f64 / estimate.inflight_limit() as f64
        };
        let best = self
            .connections
            .iter()
            .filter(|(id, c)| c.sender == Sender::Idle && self.has_bulk_for(**id, c))
            .min_by(|(_, a), (_, b)| {
                fullness(&a.path).total_cmp(&fullness(&b.path)).then_with(|| a.inflight().cmp(&b.inflight()))
            })
            .map(|(id, _)| *id);
        if let Some(id) = best {
            self.wake(id);
        }
    }

    pub(super) fn wake(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.sender == Sender::Idle
        {
            connection.sender = Sender::Woken;
            self.events.push_back(Event::Transmit(id));
        }
    }

    /// Puts a small frame on its way over the best control connections, or keeps it until there is one.
    pub(super) fn queue_small_frame(&mut self, item: QueuedFrame) {
        let controls = self.best_control_connections(|_, connection| !connection.closing);
        if controls.is_empty() {
            self.backlog.push_back(item);
            return;
        }
        for id in controls {
            self.queue_small_frame_on(id, item.clone());
        }
    }

    /// As [`Self::queue_small_frame`], but not on a connection that holds the same frame already: each copy may come
    /// back each time that a connection is lost.
    pub(super) fn queue_small_frame_once(&mut self, item: QueuedFrame) {
        let controls = self.best_control_connections(|_, connection| !connection.closing);
        if controls.is_empty() && !self.backlog.iter().any(|other| other.is_duplicate_of(&item)) {
            self.backlog.push_back(item);
            return;
        }
        for id in controls {
            let Some(connection) = self.connections.get(&id) else { continue };
            let mut here = connection.sent.iter().map(|sent| &sent.item).chain(&connection.queued_frames);
            if !here.any(|other| other.is_duplicate_of(&item)) {
                self.queue_small_frame_on(id, item.clone());
            }
        }
    }

    /// Returns the best control connections of those for which `will_do` is true.
    pub(super) fn best_control_connections(
        &self,
        will_do: impl Fn(&Session, &Connection) -> bool,
    ) -> Vec<ConnectionId> {
        let mut controls: Vec<(bool, bool, Duration, ConnectionId)> = self
            .paths
            .iter()
            .filter_map(|(id, path)| {
                let control = path.control?;
                let connection = self.connections.get(&control)?;
                let rtt = path.estimate.rtt().unwrap_or(Duration::MAX);
                let is_bare = self.data_connections(*id) == 0;
                will_do(self, connection).then_some((connection.suspect_since.is_some(), is_bare, rtt, control))
            })
            .collect();
        controls.sort();
        // Where a path carries data, those that are kept from data carry nothing of streams either.
        let is_bare = controls.first().is_none_or(|(_, is_bare, ..)| *is_bare);
        let of_use = controls.into_iter().filter(|(_, of_it, ..)| *of_it == is_bare);
        of_use.map(|(.., id)| id).take(URGENT_COPIES).collect()
    }

    /// Returns whether urgent bytes may go over a control connection. Urgent streams that together send more than a
    /// path takes count as bulk: otherwise they would wait behind each other without a bound, and so would pings. The
    /// bound is a quarter of what the path holds, since bulk's connections take most of the path.
    pub(super) fn has_room_for_urgent(&self, control: &Connection) -> bool {
        control.is_usable()
            && control.frames() < FRAMES_MAX / 2
            && control.urgent_bytes < self.paths[&control.path].estimate.inflight_limit() / 4
    }

    pub(super) fn queue_small_frame_on(&mut self, id: ConnectionId, item: QueuedFrame) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.urgent_bytes += item.urgent_bytes();
            connection.queued_frames.push_back(item);
            self.bound_frames(id);
            self.wake(id);
        }
    }

    /// Closes a connection that holds too many frames: its peer does not take frames, or never acknowledges them.
    pub(super) fn bound_frames(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.frames() > FRAMES_MAX
            && !connection.closing
        {
            connection.closing = true;
            self.events.push_back(Event::Close(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;
    use crate::{ConnectionEnd, Role, Settings};

    const CONTROL: ConnectionId = ConnectionId(0);
    const DATA: ConnectionId = ConnectionId(1);

    /// Sends everything there is to send, and has the peer acknowledge all of it.
    fn exchange(session: &mut Session, now: Duration) {
        let mut sent = [(CONTROL, 0), (DATA, 0)];
        for (id, _) in &sent {
            while session.poll_transmit(now, *id).is_some() {}
        }
        for (id, position) in &mut sent {
            *position = session.connections[id].sent_position;
            let header = Header { kind: FrameKind::Ack, stream: id.0, offset: *position, len: 0 };
            let ack = Frame::Ack { connection: *id, offset: *position };
            session.handle_frame(now, CONTROL, &header, ack).unwrap();
        }
    }

    /// A confined stream uses one path, or one connection, and the next when the first is lost.
    #[test]
    fn a_confined_stream_leaves_the_other_paths_alone() {
        for width in [Width::Path, Width::Connection] {
            let now = Duration::from_secs(1);
            let mut session = Session::new(now, Role::Dialer, Settings::default());
            let data = [1, 2, 4, 5].map(ConnectionId);
            for path in 0..2 {
                let up = [ConnectionKind::Control, ConnectionKind::Data, ConnectionKind::Data];
                for (nth, kind) in up.into_iter().enumerate() {
                    session.connection_up(now, ConnectionId(path * 3 + nth as u32), PathId(path), kind).unwrap();
                }
            }
            let id = session.open("confined").unwrap();
            session.confine(id, width);
            let credit = Frame::Credit { stream: id, offset: 8 << 20 };
            let header = Header { kind: FrameKind::Credit, stream: id.0, offset: 8 << 20, len: 0 };
            session.handle_frame(now, CONTROL, &header, credit).unwrap();
            let carries = |session: &mut Session| {
                while session.send_capacity(now, id) > 0 {
                    session.send(now, id, vec![0; 64 << 10].into());
                }
                data.map(|id| session.poll_transmit(now, id).is_some())
            };
            let both = width == Width::Path;
            assert_eq!(carries(&mut session)[2..], [false, false]);
            for lost in [0, 1, 2].map(ConnectionId) {
                session.connection_down(now, lost, ConnectionEnd::Failed);
            }
            let carried = carries(&mut session);
            assert!(carried[2] && (both || !carried[3]), "{carried:?}");
        }
    }

    /// What may be on the way of a slow path is less than a connection's socket takes.
    #[test]
    fn connections_of_a_path_have_about_as_much_on_the_way() {
        let now = Duration::from_secs(1);
        let mut session = Session::new(now, Role::Dialer, Settings::default());
        let data = [1, 2].map(ConnectionId);
        session.connection_up(now, CONTROL, PathId(0), ConnectionKind::Control).unwrap();
        data.iter().for_each(|id| session.connection_up(now, *id, PathId(0), ConnectionKind::Data).unwrap());
        let id = session.open("bulk").unwrap();
        let credit = Frame::Credit { stream: id, offset: 64 << 20 };
        let header = Header { kind: FrameKind::Credit, stream: id.0, offset: 64 << 20, len: 0 };
        session.handle_frame(now, CONTROL, &header, credit).unwrap();
        let mut now = now;
        for acknowledged in [0, 1, 0, 1, 1, 1, 1, 0].map(|nth| data[nth]) {
            while session.send_capacity(now, id) > 0 {
                session.send(now, id, vec![0; 64 << 10].into());
            }
            // Each sends on until there is nothing more for it, and again when it is woken.
            while let Some(event) = session.poll_event() {
                let Event::Transmit(awake) = event else { continue };
                while data.contains(&awake) && session.poll_transmit(now, awake).is_some() {}
            }
            let inflight = data.map(|id| session.connections[&id].inflight());
            let (least, most) = (inflight.iter().min().unwrap(), inflight.iter().max().unwrap());
            let share = session.paths[&PathId(0)].estimate.inflight_limit() / 2;
            let chunk = CHUNK_BYTES_MIN as u64 * 5 / 4;
            assert!(*least > 0 && *most < share + chunk, "{inflight:?}, a share: {share}");
            now += Duration::from_millis(8);
            let offset = session.connections[&acknowledged].sent_position;
            let header = Header { kind: FrameKind::Ack, stream: acknowledged.0, offset, len: 0 };
            session.handle_frame(now, CONTROL, &header, Frame::Ack { connection: acknowledged, offset }).unwrap();
        }
    }

    /// A stream that is for one path waits for that path, and leaves the others to other streams.
    #[test]
    fn a_stream_for_one_path_uses_no_other() {
        let now = Duration::from_secs(1);
        let mut session = Session::new(now, Role::Dialer, Settings::default());
        let data = [1, 3].map(ConnectionId);
        for path in 0..2 {
            for (nth, kind) in [ConnectionKind::Control, ConnectionKind::Data].into_iter().enumerate() {
                session.connection_up(now, ConnectionId(path * 2 + nth as u32), PathId(path), kind).unwrap();
            }
        }
        let [confined, free] = [Width::Only(PathId(1)), Width::All].map(|width| {
            let id = session.open("somewhere").unwrap();
            session.confine(id, width);
            let credit = Frame::Credit { stream: id, offset: 8 << 20 };
            let header = Header { kind: FrameKind::Credit, stream: id.0, offset: 8 << 20, len: 0 };
            session.handle_frame(now, CONTROL, &header, credit).unwrap();
            id
        });
        let fill = |session: &mut Session, id| {
            while session.takes(now, id, 64 << 10) {
                session.send(now, id, vec![0; 64 << 10].into());
            }
        };
        fill(&mut session, confined);
        assert!(session.poll_transmit(now, data[0]).is_none());
        assert!(session.poll_transmit(now, data[1]).is_some());
        fill(&mut session, free);
        assert!(session.poll_transmit(now, data[0]).is_some(), "the other stream is not held up");
        session.connection_down(now, data[1], ConnectionEnd::Failed);
        while let Some(sent) = session.poll_transmit(now, data[0]) {
            assert_ne!(sent.header.stream, confined.0);
        }
        assert!(!session.takes(now, confined, 64 << 10), "it waits");
    }

    /// A stream that was refused room, and sent a few bytes all the same, does not keep the turn that it was to have.
    #[test]
    fn a_turn_that_nobody_uses_holds_up_nobody() {
        let mut now = Duration::from_secs(1);
        let mut session = Session::new(now, Role::Dialer, Settings::default());
        session.connection_up(now, CONTROL, PathId(0), ConnectionKind::Control).unwrap();
        session.connection_up(now, DATA, PathId(0), ConnectionKind::Data).unwrap();
        let [bulk, little] = ["bulk", "little"].map(|name| session.open(name).unwrap());
        for id in [bulk, little] {
            let credit = Frame::Credit { stream: id, offset: 8 << 20 };
            let header = Header { kind: FrameKind::Credit, stream: id.0, offset: 8 << 20, len: 0 };
            session.handle_frame(now, CONTROL, &header, credit).unwrap();
        }
        // All the room is taken, and `little` has sent too much lately to count as small.
        for id in [little, bulk] {
            assert!(session.send_capacity(now, id) > 0);
            session.send(now, id, vec![0; 160 << 10].into());
        }
        while session.poll_transmit(now, DATA).is_some() {}
        assert_eq!(session.send_capacity(now, little), 0);
        // Later `little` counts as small, and has no unsent bytes of its own.
        let stream = session.streams.get_mut(&little).unwrap();
        let _ = stream.send.take(CHUNK_BYTES_MAX);
        now += URGENT_DECAY_TIME;
        let room = session.send_capacity(now, little);
        assert_eq!(room, URGENT_BYTES);
        session.send(now, little, vec![0; 9].into());
        assert!(!session.waiting.contains(&little), "it has no use for a turn");
        exchange(&mut session, now);
        let turns = std::iter::from_fn(|| session.poll_event()).filter(|event| *event == Event::Writable(little));
        assert_eq!(turns.count(), 0);
    }
}
