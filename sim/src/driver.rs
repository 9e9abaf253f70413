//! What stands around a session: threads that poll it, sockets, the dialler.

use std::time::Duration;

use bytes::Bytes;
use skein_session::address::NicAddress;
use skein_session::frame::{Frame, FrameError, FrameKind, HEADER_BYTES, Header};
use skein_session::limits::*;
use skein_session::{ConnectionEnd, ConnectionId, ConnectionKind, Ended, Event, Footprint, PathId, Session, Transmit};

use crate::parts::{Packet, Side, SimConnection, State, What};
use crate::time::{ACCEPTOR, ConnIx, DIALER, ENDS, End, MS, PathIx, S, US};
use crate::world::{Applications, Do, Sabotage, World, trace};

/// Bytes of a handshake message, about.
const HELLO_BYTES: u64 = 200;
/// How long the dialler waits for an answer.
const DIAL_TIMEOUT: u64 = S;

fn id(conn: ConnIx) -> ConnectionId {
    ConnectionId(conn as u32)
}

impl<A: Applications> World<A> {
    // ---- time ----

    pub(crate) fn tick(&mut self, end: End) {
        let late = self.rng.below(2 * MS);
        self.after(20 * MS + late, Do::Tick(end));
        if self.ends[end].paused > 0 {
            return;
        }
        self.ends[end].session.handle_timeout(self.clock());
        self.drain(end);
        // Where nothing happens nothing grows.
        if self.actions - self.ends[end].checked_at > 100 {
            self.ends[end].checked_at = self.actions;
            self.check_memory(end);
        }
    }

    /// A process runs again: sockets first or timers first, as it happens.
    pub(crate) fn resume(&mut self, end: End) {
        if self.ends[end].paused > 0 {
            return;
        }
        let timers_first = self.rng.percent(50);
        if timers_first {
            self.tick_now(end);
        }
        let first = self.rng.below(self.conns.len().max(1) as u64) as usize;
        for conn in (first..self.conns.len()).chain(0..first) {
            self.read_socket(end, conn);
            self.socket_has_room(end, conn);
        }
        if !timers_first {
            self.tick_now(end);
        }
        if end == DIALER {
            (0..self.paths.len()).for_each(|path| self.after(0, Do::Dial(path)));
        }
        let overdue: Vec<_> =
            self.conns.iter().enumerate().filter_map(|(i, c)| Some((i, c.sides[end].armed?))).collect();
        for (conn, at) in overdue {
            if at <= self.clock() {
                self.after(0, Do::PollAt(end, conn, at));
            }
        }
        A::resumed(self, end);
    }

    fn tick_now(&mut self, end: End) {
        self.ends[end].session.handle_timeout(self.clock());
        self.drain(end);
    }

    // ---- sending ----

    fn schedule_poll(&mut self, end: End, conn: ConnIx) {
        if !std::mem::replace(&mut self.conns[conn].sides[end].scheduled, true) {
            // Threads mostly run at once, and sometimes do not.
            let most = if self.rng.percent(90) { 20 * US } else { self.config.thread_delay };
            let delay = self.rng.below(most.max(1));
            self.after(delay, Do::Poll(end, conn));
        }
    }

    pub(crate) fn socket_has_room(&mut self, end: End, conn: ConnIx) {
        if self.conns[conn].sides[end].wants {
            self.schedule_poll(end, conn);
        }
    }

    pub(crate) fn poll_at(&mut self, end: End, conn: ConnIx, at: Duration) {
        let side = &mut self.conns[conn].sides[end];
        if side.armed == Some(at) && self.ends[end].paused == 0 {
            side.armed = None;
            side.wants = true;
            self.poll(end, conn);
        }
    }

    pub(crate) fn poll(&mut self, end: End, conn: ConnIx) {
        self.conns[conn].sides[end].scheduled = false;
        if self.ends[end].paused > 0 || self.conns[conn].sides[end].state != State::Up {
            return;
        }
        let room = self.paths[self.conns[conn].path].spec.socket;
        for _ in 0..1 + self.rng.below(3) {
            if self.conns[conn].flows[end].buffered >= room {
                break; // goes on when there is room
            }
            let clock = self.clock();
            let Some(transmit) = self.ends[end].session.poll_transmit(clock, id(conn)) else {
                let next = self.ends[end].session.transmit_at(id(conn));
                let side = &mut self.conns[conn].sides[end];
                side.wants = false;
                side.armed = next;
                if let Some(at) = next {
                    // A time that has passed would have a real driver spin: at least it shows here.
                    let wait = at.saturating_sub(clock).as_nanos() as u64;
                    self.after(wait.max(1), Do::PollAt(end, conn, at));
                }
                self.drain(end);
                return;
            };
            self.send_frame(end, conn, transmit);
            // In its own words: a frame that is out changes what others may send.
            self.drain(end);
        }
        self.socket_has_room(end, conn);
    }

    fn send_frame(&mut self, end: End, conn: ConnIx, transmit: Transmit) {
        let Transmit { mut header, payload } = transmit;
        trace!(self, "{} sends on {conn} {header:?}", ["dialler", "acceptor"][end]);
        debug_assert_eq!(payload.iter().map(Bytes::len).sum::<usize>(), header.len as usize);
        let payload = self.sabotage(end, &mut header, payload);
        let packet = Packet { bytes: header.frame_bytes(), what: What::Frame(header.encode(), payload) };
        self.transmit(conn, end, packet);
    }

    /// Tells lies on behalf of [`Sabotage`].
    fn sabotage(&mut self, end: End, header: &mut Header, payload: Vec<Bytes>) -> Vec<Bytes> {
        let Some(lie) = self.config.sabotage else { return payload };
        let late = self.now > 200 * MS;
        let late_first = if header.kind == FrameKind::Credit && late { WINDOW_INITIAL } else { header.offset };
        let first = *self.said_first.entry((end, header.kind as u8, header.stream)).or_insert(late_first);
        match (lie, header.kind) {
            (Sabotage::LostAcks, FrameKind::Ack) | (Sabotage::LostCredits, FrameKind::Credit) if late => {
                header.offset = first
            }
            (Sabotage::EarlyFin, FrameKind::Fin) => header.offset = header.offset.saturating_sub(1),
            (Sabotage::StaleRange, FrameKind::Data) if header.offset > 0 && header.len > 1000 && !self.lied => {
                // As if a buffer had been used again: right length, right place, other bytes.
                self.lied = true;
                return vec![payload.concat().into_iter().map(|byte| byte ^ 1).collect()];
            }
            (Sabotage::LeakedFrame, FrameKind::Data) if self.rng.percent(5) => {
                self.leaked.extend(payload.iter().cloned())
            }
            _ => {}
        }
        payload
    }

    // ---- events ----

    pub(crate) fn drain(&mut self, end: End) {
        while let Some(event) = self.ends[end].session.poll_event() {
            match event {
                Event::Transmit(connection) => {
                    let lost = self.config.sabotage == Some(Sabotage::LostWakeups) && self.rng.percent(5);
                    let conn = connection.0 as usize;
                    if !lost && self.conns[conn].sides[end].state == State::Up {
                        self.conns[conn].sides[end].wants = true;
                        self.schedule_poll(end, conn);
                    }
                }
                Event::Close(connection) => {
                    trace!(self, "{} closes {}", ["dialler", "acceptor"][end], connection.0);
                    self.ends[end].closes += 1;
                    self.close(end, connection.0 as usize);
                }
                Event::Opened(stream, target) => A::opened(self, end, stream, &target),
                Event::Readable(stream) => {
                    let lost = self.config.sabotage == Some(Sabotage::LostReadable) && self.rng.percent(5);
                    if !lost {
                        A::readable(self, end, stream);
                    }
                }
                Event::Writable(stream) => A::writable(self, end, stream),
                Event::PeerAddresses(addresses) => self.ends[end].peer_addresses = addresses,
                Event::Stalled(path, stalled) => {
                    trace!(self, "{} {path:?} stalled: {stalled}", ["dialler", "acceptor"][end]);
                    self.ends[end].stalls += u32::from(stalled);
                    if self.config.calm && stalled {
                        self.fail(format!("a calm path was taken for stalled by end {end}"));
                    }
                }
                Event::Ended(why) => {
                    trace!(self, "{} ended: {why}", ["dialler", "acceptor"][end]);
                    self.ends[end].ended_at = self.now;
                    if self.ends[end].ended.replace(why).is_some() {
                        self.fail("a session ended twice");
                    }
                    A::ended(self, end);
                }
            }
        }
    }

    pub(crate) fn announce(&mut self, end: End, number: u8) {
        let addresses: Vec<NicAddress> = (0..number % 4)
            .map(|i| NicAddress::new([10, end as u8, number, i].into(), 24, &format!("eth{i}")))
            .collect();
        self.ends[end].announced.clone_from(&addresses);
        self.ends[end].session.announce(addresses);
        self.drain(end);
    }

    // ---- receiving ----

    pub(crate) fn read_socket(&mut self, end: End, conn: ConnIx) {
        if self.ends[end].dead && self.conns[conn].sides[end].inbox.iter().any(|p| matches!(p.what, What::Hello)) {
            let latency = self.paths[self.conns[conn].path].spec.latency;
            self.conns[conn].sides[end].inbox.clear();
            return self.after(latency, Do::Refused(conn));
        }
        if self.ends[end].paused > 0 {
            return;
        }
        while let Some(packet) = self.conns[conn].sides[end].inbox.pop_front() {
            if self.conns[conn].sides[end].is_closed() {
                self.conns[conn].sides[end].inbox.clear();
                // As the kernel answers who writes to a socket that is closed; it does not overtake what was sent.
                let latency = self.paths[self.conns[conn].path].spec.latency;
                let at = self.conns[conn].flows[end].not_before.max(self.now + latency);
                self.at(at, Do::PeerReset(conn, 1 - end));
                return;
            }
            self.free(conn, 1 - end, packet.bytes);
            match packet.what {
                What::Hello => self.hello(conn),
                What::Welcome => self.welcome(conn),
                What::Refuse => {
                    if self.ends[ACCEPTOR].ended.is_some() {
                        self.ends[DIALER].session.close(); // no such session any more
                    }
                    self.close(DIALER, conn);
                }
                What::Fin => self.lost(end, conn, ConnectionEnd::Closed),
                What::Frame(header, payload) => {
                    if let Err(why) = self.receive_frame(end, conn, header, payload) {
                        self.fail(format!("end {end} received a frame that does not decode: {why}"));
                    }
                }
            }
            self.drain(end);
        }
    }

    fn receive_frame(
        &mut self,
        end: End,
        conn: ConnIx,
        header: [u8; HEADER_BYTES],
        payload: Vec<Bytes>,
    ) -> Result<(), FrameError> {
        let header = Header::decode(&header)?;
        let payload = match payload.len() {
            0 => Bytes::new(),
            1 => payload.into_iter().next().expect("one part"),
            _ => payload.concat().into(),
        };
        let frame = Frame::parse(header, payload)?;
        let clock = self.clock();
        if let Err(error) = self.ends[end].session.handle_frame(clock, id(conn), &header, frame) {
            self.fail(format!("end {end}: an honest peer was accused: {error}"));
        }
        Ok(())
    }

    // ---- connections ----

    pub(crate) fn dial(&mut self, path: PathIx) {
        let end = &self.ends[DIALER];
        if end.ended.is_some() || end.paused > 0 {
            return;
        }
        match self.paths[path].control {
            None => {
                if self.config.new_path_ids || self.paths[path].id == PathId(u32::MAX) {
                    let number = if self.config.new_path_ids { self.conns.len() } else { path };
                    self.paths[path].id = PathId(number as u32);
                }
                let conn = self.dial_one(path, ConnectionKind::Control);
                self.paths[path].control = Some(conn);
            }
            Some(control) if self.conns[control].sides[DIALER].state == State::Up => {
                while self.paths[path].data.len() < self.paths[path].spec.data_connections {
                    let conn = self.dial_one(path, ConnectionKind::Data);
                    self.paths[path].data.push(conn);
                }
            }
            Some(_) => {} // when it is up
        }
    }

    fn dial_one(&mut self, path: PathIx, kind: ConnectionKind) -> ConnIx {
        let conn = self.conns.len();
        let path_id = self.paths[path].id;
        self.conns.push(SimConnection { path, path_id, kind, sides: Default::default(), flows: Default::default() });
        trace!(self, "dials {conn}: {kind:?} on {path_id:?}");
        self.transmit(conn, DIALER, Packet { bytes: HELLO_BYTES, what: What::Hello });
        self.after(DIAL_TIMEOUT, Do::DialTimeout(conn));
        conn
    }

    pub(crate) fn dial_timeout(&mut self, conn: ConnIx) {
        if self.conns[conn].sides[DIALER].state == State::New {
            self.close(DIALER, conn);
        }
    }

    /// Nobody listens where the dialling end dials.
    pub(crate) fn refused(&mut self, conn: ConnIx) {
        if self.conns[conn].sides[DIALER].state == State::New {
            self.ends[DIALER].session.connection_refused();
            self.close(DIALER, conn);
        }
    }

    fn hello(&mut self, conn: ConnIx) {
        let clock = self.clock();
        let SimConnection { path_id, kind, .. } = self.conns[conn];
        let gone = self.ends[ACCEPTOR].ended.is_some();
        let joined = !gone && self.ends[ACCEPTOR].session.connection_up(clock, id(conn), path_id, kind).is_ok();
        if joined {
            self.conns[conn].sides[ACCEPTOR].state = State::Up;
            self.transmit(conn, ACCEPTOR, Packet { bytes: HELLO_BYTES, what: What::Welcome });
        } else {
            trace!(self, "refuses {conn}");
            self.transmit(conn, ACCEPTOR, Packet { bytes: HELLO_BYTES, what: What::Refuse });
            self.transmit(conn, ACCEPTOR, Packet { bytes: 1, what: What::Fin });
            self.lost(ACCEPTOR, conn, ConnectionEnd::Failed);
        }
    }

    fn welcome(&mut self, conn: ConnIx) {
        let clock = self.clock();
        let SimConnection { path, path_id, kind, .. } = self.conns[conn];
        match self.ends[DIALER].session.connection_up(clock, id(conn), path_id, kind) {
            Ok(()) => {
                trace!(self, "{conn} is up");
                self.conns[conn].sides[DIALER].state = State::Up;
                if kind == ConnectionKind::Control {
                    self.dial(path);
                }
            }
            Err(error) => self.fail(format!("the dialling end refuses its own connection: {error}")),
        }
    }

    /// This end closes a connection, or gives up making it.
    pub fn close(&mut self, end: End, conn: ConnIx) {
        if self.conns[conn].sides[end].is_closed() {
            return;
        }
        // A reset, so that the peer does not take it for the end of this process; what was under way is gone.
        self.conns[conn].flows[end].kill();
        let latency = self.paths[self.conns[conn].path].spec.latency;
        self.after(latency, Do::PeerReset(conn, 1 - end));
        // Whoever reads from a socket that is shut down finds its end, as if the peer had closed it.
        let how = if self.rng.percent(50) { ConnectionEnd::Failed } else { ConnectionEnd::Closed };
        self.lost(end, conn, how);
    }

    /// A connection is no more at this end.
    fn lost(&mut self, end: End, conn: ConnIx, how: ConnectionEnd) {
        let side = &mut self.conns[conn].sides[end];
        let was = std::mem::replace(&mut side.state, State::Closed);
        side.inbox.clear();
        side.armed = None;
        side.wants = false;
        if was == State::Closed {
            return;
        }
        if how != ConnectionEnd::Failed {
            // Nobody reads what this end still sends.
            self.conns[conn].flows[end].kill();
        }
        trace!(self, "{} lost {conn}: {how:?}", ["dialler", "acceptor"][end]);
        if was == State::Up {
            let clock = self.clock();
            self.ends[end].session.connection_down(clock, id(conn), how);
        }
        if end == DIALER {
            let SimConnection { path, kind, .. } = self.conns[conn];
            self.paths[path].data.retain(|other| *other != conn);
            if kind == ConnectionKind::Control {
                self.paths[path].control = None;
                // Those that still shake hands; the session closes those that are up.
                for data in self.paths[path].data.clone() {
                    if self.conns[data].sides[DIALER].state == State::New {
                        self.close(DIALER, data);
                    }
                }
            }
            let pause = 50 * MS + self.rng.below(400 * MS);
            self.after(pause, Do::Dial(path));
        }
        self.drain(end);
    }

    /// The kernel gives a connection up.
    pub(crate) fn broken(&mut self, conn: ConnIx, end: End, how: ConnectionEnd) {
        if self.conns[conn].sides[end].is_closed() {
            return;
        }
        self.conns[conn].flows[end].kill();
        self.conns[conn].flows[1 - end].kill();
        if self.ends[end].paused > 0 {
            // Its process learns of it when it runs again.
            return self.after(10 * MS, Do::Broken(conn, end, how));
        }
        self.lost(end, conn, how);
    }

    /// The peer's kernel resets a connection.
    pub(crate) fn peer_reset(&mut self, conn: ConnIx, end: End) {
        if self.conns[conn].sides[end].is_closed() {
            return;
        }
        // A reset is sent once; where it is lost, the peer finds out when it sends something.
        if !self.is_holed(self.conns[conn].path, 1 - end) {
            self.broken(conn, end, ConnectionEnd::Reset);
        }
    }

    pub(crate) fn carrier_lost(&mut self, path: PathIx, end: End) {
        let mut ids: Vec<PathId> = self
            .conns
            .iter()
            .filter(|c| c.path == path && c.sides[end].state == State::Up)
            .map(|c| c.path_id)
            .collect();
        ids.dedup();
        if self.ends[end].paused == 0 {
            ids.into_iter().for_each(|id| self.ends[end].session.path_down(id));
            self.drain(end);
        }
    }

    // ---- endings ----

    /// An end says goodbye and closes everything.
    pub fn say_goodbye(&mut self, end: End) {
        self.ends[end].session.close();
        self.drain(end);
        for conn in 0..self.conns.len() {
            let SimConnection { kind, .. } = self.conns[conn];
            if self.conns[conn].sides[end].state == State::Up {
                if kind == ConnectionKind::Control {
                    self.send_frame(end, conn, Session::bye(7, "all done"));
                }
                self.transmit(conn, end, Packet { bytes: 1, what: What::Fin });
                self.lost(end, conn, ConnectionEnd::Failed);
            }
        }
    }

    /// An end's process is killed: its kernel closes its sockets.
    pub fn die(&mut self, end: End) {
        self.ends[end].ended = Some(Ended::Closed);
        self.ends[end].dead = true;
        self.ends[end].paused += 1 << 16;
        for conn in 0..self.conns.len() {
            if !self.conns[conn].sides[end].is_closed() {
                self.transmit(conn, end, Packet { bytes: 1, what: What::Fin });
                self.conns[conn].sides[end] = Side { state: State::Closed, ..Side::default() };
            }
        }
    }

    // ---- memory ----

    fn check_memory(&mut self, end: End) {
        let print = self.ends[end].session.footprint();
        let worst = &mut self.ends[end].worst;
        *worst = Footprint {
            streams: worst.streams.max(print.streams),
            connections: worst.connections.max(print.connections),
            paths: worst.paths.max(print.paths),
            granted_bytes: worst.granted_bytes.max(print.granted_bytes),
            held_bytes: worst.held_bytes.max(print.held_bytes),
            held_pieces: worst.held_pieces.max(print.held_pieces),
            unsent_bytes: worst.unsent_bytes.max(print.unsent_bytes),
            retained_bytes: worst.retained_bytes.max(print.retained_bytes),
            queued: worst.queued.max(print.queued),
            events: worst.events.max(print.events),
            ..print
        };
        // What was sent of a stream may outlive it for a moment, in a copy that is not acknowledged.
        let streams = self.apps.streams_max();
        for (what, is, most) in bounds(&print, streams) {
            if is > most {
                trace!(self, "{:#?}", self.ends[end].session);
                self.fail(format!("end {end} keeps {is} {what}, more than {most}: {print:?}"));
            }
        }
    }

    /// Nothing is kept of streams that are over, but perhaps a ping.
    pub fn check_empty(&mut self) {
        let empty = |print: Footprint| Footprint { connections: 0, paths: 0, ..print } == Footprint::default();
        let patience = self.now + S;
        self.run(patience, |world| world.ends.iter().all(|end| empty(end.session.footprint())));
        for end in ENDS {
            let print = self.ends[end].session.footprint();
            if !empty(print) {
                trace!(self, "{:#?}", self.ends[end].session);
                self.fail(format!("end {end} keeps something though nothing is open: {print:?}"));
            }
        }
    }
}

/// What a session may keep, by how many streams and connections it has.
fn bounds(print: &Footprint, streams: u64) -> [(&'static str, u64, u64); 6] {
    let windows = WINDOW_SESSION + streams * WINDOW_MIN;
    // Every connection may have a copy of what is under way, and what is lost one more.
    let copies = print.connections as u64 + 2;
    [
        ("granted bytes", print.granted_bytes, windows),
        ("held bytes", print.held_bytes, print.granted_bytes),
        ("unsent bytes", print.unsent_bytes, streams * 5 * CHUNK_BYTES_MAX as u64),
        ("sent bytes", print.retained_bytes, windows * copies),
        // An opening, an end or a reset, and a credit of each stream; and data.
        ("queued frames", print.queued as u64, copies * (8 + 4 * streams) + print.retained_bytes),
        ("events", print.events as u64, 0),
    ]
}
