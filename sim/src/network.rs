//! Paths and the connections on them.
//!
//! A path has a rate, a latency and a queue in each direction. A connection behaves as TCP does: its
//! bytes wait in a bounded socket buffer until the peer's process has read them, take turns with other
//! connections' for the path's queue, arrive whole and in order or not at all. In a black hole nothing
//! arrives; after it what was sent arrives in order, a retransmission timeout later, unless the
//! connection has died meanwhile.

use skein_session::ConnectionEnd;

pub use crate::parts::{Fault, Flow, Packet, PathSpec, PathState, SimConnection, What};
use crate::parts::{Segment, Side};
use crate::time::{ConnIx, ENDS, End, MS, PathIx, Time};
use crate::world::{Applications, Do, World, trace};

impl<A: Applications> World<A> {
    /// Puts a packet into a connection's socket.
    pub fn transmit(&mut self, conn: ConnIx, dir: End, packet: Packet) {
        let flow = &mut self.conns[conn].flows[dir];
        if flow.dead {
            return;
        }
        flow.buffered += packet.bytes;
        flow.waiting.push_back(packet);
        let path = self.conns[conn].path;
        if !std::mem::replace(&mut self.conns[conn].flows[dir].in_turn, true) {
            self.paths[path].links[dir].turn.push_back(conn);
        }
        self.serve(path, dir);
    }

    /// Moves bytes from sockets to the queue, and from the queue to the wire.
    fn serve(&mut self, path: PathIx, dir: End) {
        let spec = self.paths[path].spec;
        // So much goes in one piece (as NICs' segmentation offload does), a fifth of a millisecond at most.
        let segment_max = ((spec.rate[dir] * 0.0002) as u64).clamp(1500, 64 << 10);
        let link = &mut self.paths[path].links[dir];
        while link.queued < spec.queue {
            let Some(conn) = link.turn.pop_front() else { break };
            let flow = &mut self.conns[conn].flows[dir];
            let mut segment = Segment { conn, bytes: 0, packets: Vec::new() };
            while let Some(first) = flow.waiting.front()
                && segment.bytes < segment_max
            {
                let bytes = (first.bytes - flow.head).min(segment_max - segment.bytes);
                flow.head += bytes;
                segment.bytes += bytes;
                if flow.head == first.bytes {
                    flow.head = 0;
                    segment.packets.extend(flow.waiting.pop_front());
                }
            }
            flow.in_turn = !flow.waiting.is_empty();
            if flow.in_turn {
                link.turn.push_back(conn);
            }
            link.queued += segment.bytes;
            link.queue.push_back(segment);
        }
        if link.on_wire.is_none()
            && link.holes == 0
            && let Some(segment) = link.queue.pop_front()
        {
            let rate = link.slow.iter().product::<f64>() * spec.rate[dir];
            let time = (segment.bytes as f64 / rate * 1e9) as Time;
            link.on_wire = Some(segment);
            self.after(time, Do::Served(path, dir));
        }
    }

    pub(crate) fn served(&mut self, path: PathIx, dir: End) {
        let link = &mut self.paths[path].links[dir];
        let segment = link.on_wire.take().expect("one segment is served at a time");
        link.queued -= segment.bytes;
        let spec = self.paths[path].spec;
        let jitter = if spec.jitter > 0 { self.rng.below(spec.jitter) } else { 0 };
        let flow = &mut self.conns[segment.conn].flows[dir];
        if !flow.dead && !segment.packets.is_empty() {
            let at = flow.not_before.max(self.now + spec.latency + jitter);
            flow.not_before = at;
            flow.arrivals.extend(segment.packets.into_iter().map(|packet| (at, packet)));
            self.at(at, Do::Arrive(segment.conn, dir));
        }
        self.serve(path, dir);
    }

    pub(crate) fn arrive(&mut self, conn: ConnIx, dir: End) {
        let holed = self.paths[self.conns[conn].path].links[dir].holes > 0;
        let (now, to) = (self.now, 1 - dir);
        let SimConnection { flows, sides, .. } = &mut self.conns[conn];
        while !holed && flows[dir].arrivals.front().is_some_and(|(at, _)| *at <= now) {
            sides[to].inbox.push_back(flows[dir].arrivals.pop_front().expect("just looked").1);
        }
        self.read_socket(to, conn);
    }

    /// The peer's process has read so many bytes of what `dir` sent.
    pub fn free(&mut self, conn: ConnIx, dir: End, bytes: u64) {
        let holed = self.paths[self.conns[conn].path].links[1 - dir].holes > 0;
        let flow = &mut self.conns[conn].flows[dir];
        if holed {
            flow.unfreed += bytes;
        } else {
            flow.buffered -= bytes;
            self.socket_has_room(dir, conn);
        }
    }

    /// Nothing passes any more, either way.
    pub fn darken(&mut self, path: PathIx) {
        ENDS.into_iter().for_each(|dir| self.open_hole(path, dir));
    }

    pub fn open_hole(&mut self, path: PathIx, dir: End) {
        let link = &mut self.paths[path].links[dir];
        if link.holes == 0 {
            link.since = self.now;
        }
        link.holes += 1;
    }

    pub fn close_hole(&mut self, path: PathIx, dir: End) {
        let link = &mut self.paths[path].links[dir];
        link.holes -= 1;
        if link.holes > 0 {
            return;
        }
        let lasted = self.now - link.since;
        for conn in (0..self.conns.len()).filter(|conn| self.conns[*conn].path == path).collect::<Vec<_>>() {
            if self.conns[conn].sides.iter().all(Side::is_closed) {
                continue;
            }
            // Retransmission timeouts double: the next one is up to as long away as it was dark.
            let timeout = self.rng.below(lasted.clamp(1, 1000 * MS));
            let flow = &mut self.conns[conn].flows[dir];
            if flow.buffered > flow.unfreed {
                let at = self.now + timeout;
                flow.not_before = flow.not_before.max(at);
                let arrivals = flow.arrivals.len();
                flow.arrivals.iter_mut().for_each(|(due, _)| *due = at.max(*due));
                for _ in 0..arrivals.min(1) {
                    self.at(at, Do::Arrive(conn, dir));
                }
            }
            let back = &mut self.conns[conn].flows[1 - dir];
            back.buffered -= std::mem::take(&mut back.unfreed);
            self.socket_has_room(1 - dir, conn);
        }
        self.serve(path, dir);
    }

    /// A path has only a share of its rate, until [`Self::speed_up`] with the same share.
    pub fn slow_down(&mut self, path: PathIx, share: f64) {
        self.paths[path].links.iter_mut().for_each(|link| link.slow.push(share));
    }

    pub fn speed_up(&mut self, path: PathIx, share: f64) {
        for link in &mut self.paths[path].links {
            let at = link.slow.iter().position(|s| *s == share).expect("it was slowed");
            link.slow.remove(at);
        }
    }

    pub fn is_holed(&self, path: PathIx, dir: End) -> bool {
        self.paths[path].links[dir].holes > 0
    }

    fn fault_holes(&self, fault: Fault) -> Vec<(PathIx, End)> {
        match fault {
            Fault::Hole { path, dirs, .. } => {
                ENDS.into_iter().filter(|dir| dirs[*dir]).map(|dir| (path, dir)).collect()
            }
            Fault::Cut { path, .. } | Fault::Carrier { path, .. } => vec![(path, 0), (path, 1)],
            Fault::Dark { .. } => (0..self.paths.len()).flat_map(|path| [(path, 0), (path, 1)]).collect(),
            _ => vec![],
        }
    }

    pub(crate) fn fault(&mut self, number: usize) {
        let fault = self.config.faults[number].1;
        trace!(self, "{fault:?}");
        for (path, dir) in self.fault_holes(fault) {
            self.open_hole(path, dir);
        }
        match fault {
            Fault::Cut { path, dies_after, .. } => {
                for conn in 0..self.conns.len() {
                    if self.conns[conn].path == path {
                        ENDS.into_iter()
                            .for_each(|end| self.after(dies_after[end], Do::Broken(conn, end, ConnectionEnd::Failed)));
                    }
                }
            }
            Fault::Carrier { path, end, .. } => self.carrier_lost(path, end),
            Fault::Pause { end, .. } => self.ends[end].paused += 1,
            Fault::Slow { path, share, .. } => self.slow_down(path, share),
            Fault::Kill { pick, after } => {
                let up: Vec<ConnIx> =
                    (0..self.conns.len()).filter(|conn| !self.conns[*conn].sides.iter().any(Side::is_closed)).collect();
                if !up.is_empty() {
                    let conn = up[(pick % up.len() as u64) as usize];
                    ENDS.into_iter()
                        .for_each(|end| self.after(after[end], Do::Broken(conn, end, ConnectionEnd::Failed)));
                }
            }
            Fault::Announce { end, number } => self.announce(end, number),
            Fault::Hole { .. } | Fault::Dark { .. } => {}
        }
        self.after(fault.lasts(), Do::Heal(number));
    }

    pub(crate) fn heal(&mut self, number: usize) {
        let fault = self.config.faults[number].1;
        trace!(self, "healed: {fault:?}");
        for (path, dir) in self.fault_holes(fault) {
            self.close_hole(path, dir);
        }
        match fault {
            Fault::Pause { end, .. } => {
                self.ends[end].paused -= 1;
                self.resume(end);
            }
            Fault::Slow { path, share, .. } => self.speed_up(path, share),
            _ => {}
        }
    }
}
