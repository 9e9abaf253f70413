//! Sessions between agents, and what they carry: control messages and migrations' connections.
//!
//! The agent whose manager wants to reach another dials a session and opens `skein:control` in it. There is contact
//! while some session to that host has its control stream and a path that works.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use skein_handover::MigrationId;
use skein_session::{ConnectionEnd, Received, Role, Session, Settings, StreamId};

use super::offer::{Input, Message};
use super::qemu::{SHUT, SOCKET_BYTES, SimChannel, State};
use super::{Cluster, HostIx, LinkIx, QemuIx, sim_agent, trace};
use crate::network::PathSpec;
use crate::world::{ACCEPTOR, Applications, Config, DIALER, Do as Act, ENDS, End, S, Time, World};

const CONTROL: &str = "skein:control";
/// No message is longer; one that says it is, is damage.
const MESSAGE_BYTES_MAX: usize = 16 << 10;
/// A session has to have a path by then.
const BEGIN_TIME: Time = 5 * S;

/// The network, which outlives sessions.
#[derive(Default)]
pub struct Wire {
    /// For each pair of hosts, the lesser first, the path on each NIC; the first end is the lesser's.
    pub paths: BTreeMap<(HostIx, HostIx), Vec<PathSpec>>,
    /// How many faults swallow what goes from one host to another over a NIC.
    pub holes: BTreeMap<(HostIx, HostIx, usize), u32>,
    /// Faults that slow a pair's NIC.
    pub slow: Vec<(HostIx, HostIx, usize, f64)>,
    pub thread_delay: Time,
}

/// A session between two agents.
pub struct AgentSession {
    pub world: World<Relay>,
    /// The dialling and the accepting one.
    pub agents: [HostIx; 2],
    /// This end's agent is done with it, or is no more.
    pub gone: [bool; 2],
    control: [Option<Control>; 2],
    streams: [BTreeMap<StreamId, (QemuIx, usize)>; 2],
    established: bool,
    begun_at: Time,
}

struct Control {
    stream: StreamId,
    inbox: Vec<u8>,
}

/// Hands what a session says to the cluster.
#[derive(Default)]
pub struct Relay {
    sent: VecDeque<(End, SentMessage)>,
    streams_max: u64,
}

enum SentMessage {
    Opened(StreamId, String),
    Readable(StreamId),
    Writable(StreamId),
    Ended,
    Resumed,
}

impl Applications for Relay {
    type Do = ();

    fn act(_world: &mut World<Relay>, _action: ()) {}

    fn opened(world: &mut World<Relay>, end: End, id: StreamId, target: &str) {
        world.apps.sent.push_back((end, SentMessage::Opened(id, target.to_owned())));
    }

    fn readable(world: &mut World<Relay>, end: End, id: StreamId) {
        world.apps.sent.push_back((end, SentMessage::Readable(id)));
    }

    fn writable(world: &mut World<Relay>, end: End, id: StreamId) {
        world.apps.sent.push_back((end, SentMessage::Writable(id)));
    }

    fn ended(world: &mut World<Relay>, end: End) {
        world.apps.sent.push_back((end, SentMessage::Ended));
    }

    fn resumed(world: &mut World<Relay>, end: End) {
        world.apps.sent.push_back((end, SentMessage::Resumed));
    }

    fn streams_max(&self) -> u64 {
        self.streams_max
    }
}

impl AgentSession {
    /// Whether that end can say something.
    fn works(&self, end: End) -> bool {
        !self.gone[end]
            && self.control[end].is_some()
            && self.world.ends[end].session.status().paths.iter().any(|path| path.usable)
    }
}

impl Cluster {
    /// A session with the cluster's time.
    fn link(&mut self, ix: LinkIx) -> &mut AgentSession {
        let now = self.now;
        let link = self.links.get_mut(&ix).expect("it is there");
        link.world.now = now;
        link
    }

    fn links_of(&self, host: HostIx) -> Vec<(LinkIx, End)> {
        let ends = |(ix, link): (&LinkIx, &AgentSession)| {
            let (ix, agents, gone) = (*ix, link.agents, link.gone);
            ENDS.into_iter().filter(move |end| agents[*end] == host && !gone[*end]).map(move |end| (ix, end))
        };
        self.links.iter().flat_map(ends).collect()
    }

    /// The session over which an agent can tell another something; one that it dialled itself first.
    fn best_link(&self, host: HostIx, peer: HostIx) -> Option<(LinkIx, End)> {
        let works = |(ix, end): &(LinkIx, End)| {
            let link = &self.links[ix];
            link.agents[1 - end] == peer && link.works(*end)
        };
        let all = self.links_of(host);
        all.into_iter().filter(works).min_by_key(|(ix, end)| (*end, *ix))
    }

    fn dial(&mut self, host: HostIx, peer: HostIx) {
        let ix = self.next_link;
        self.next_link += 1;
        let turned = host > peer;
        let mut paths = self.wire.paths[&(host.min(peer), host.max(peer))].clone();
        if turned {
            paths.iter_mut().for_each(|path| path.rate.reverse());
        }
        let config = Config {
            seed: self.rng.next(),
            settings: Settings::default(),
            epoch: Duration::from_secs(1),
            paths,
            faults: Vec::new(),
            thread_delay: self.wire.thread_delay,
            new_path_ids: self.rng.percent(50),
            calm: false,
            sabotage: self.plant.and_then(super::Plant::in_sessions),
        };
        // Main and multifd channels of every migration that there may be.
        let apps = Relay { sent: VecDeque::new(), streams_max: 2 + 6 * self.wishes.len() as u64 };
        let mut world = World::starting_at(self.now, config, apps);
        if self.trace.as_deref() == Some("2") {
            world.trace = Some(format!("  session {ix}: "));
        }
        let agents = [host, peer];
        for (path, dir) in (0..world.paths.len()).flat_map(|path| ENDS.map(|dir| (path, dir))) {
            let holes = self.wire.holes.get(&(agents[dir], agents[1 - dir], path)).copied().unwrap_or(0);
            (0..holes).for_each(|_| world.open_hole(path, dir));
        }
        for (a, b, nic, share) in &self.wire.slow {
            if [*a, *b] == agents || [*b, *a] == agents {
                world.slow_down(*nic, *share);
            }
        }
        let stream = world.ends[DIALER].session.open(CONTROL).expect("a new session");
        world.drain(DIALER);
        let control = [Some(Control { stream, inbox: Vec::new() }), None];
        agents.iter().enumerate().for_each(|(end, agent)| world.ends[end].paused = self.agents[*agent].paused);
        let mut gone = [false; 2];
        if self.agents[peer].manager.is_none() {
            kill(&mut world, ACCEPTOR);
            gone[ACCEPTOR] = true;
        }
        trace!(self, "h{host} dials h{peer}: session {ix}");
        let begun_at = self.now;
        let streams = Default::default();
        self.links.insert(ix, AgentSession { world, agents, gone, control, streams, established: false, begun_at });
    }

    /// What an agent does every now and then: dials, and sees whom it can reach.
    pub(crate) fn look(&mut self, host: HostIx) {
        for peer in self.agents[host].wanted.clone() {
            let dialled = |(ix, end): &(LinkIx, End)| *end == DIALER && self.links[ix].agents[ACCEPTOR] == peer;
            if !self.links_of(host).iter().any(dialled) {
                self.dial(host, peer);
            }
        }
        for (ix, end) in self.links_of(host) {
            let link = &self.links[&ix];
            if end == ACCEPTOR || link.established {
                continue;
            }
            if link.works(DIALER) {
                let peer = link.agents[ACCEPTOR];
                self.link(ix).established = true;
                self.agents[host].contact.insert(peer, true);
                self.input(host, Input::Contact(sim_agent::name(peer), true));
            } else if self.now > link.begun_at + BEGIN_TIME {
                self.leave(ix, DIALER);
            }
            if self.agents[host].manager.is_none() {
                return;
            }
        }
        self.see_contacts(host, None);
    }

    /// Tells the manager whom it can reach, where that changed; `anew`: what was said to that one may be lost.
    fn see_contacts(&mut self, host: HostIx, anew: Option<HostIx>) {
        for peer in 0..self.hosts.len() {
            let contact = self.best_link(host, peer).is_some();
            let before = self.agents[host].contact.insert(peer, contact).unwrap_or(false);
            if before != contact || (contact && anew == Some(peer)) {
                trace!(self, "h{host} has contact to h{peer}: {contact}");
                self.input(host, Input::Contact(sim_agent::name(peer), contact));
            }
            if self.agents[host].manager.is_none() {
                return;
            }
        }
    }

    pub(crate) fn hang_up(&mut self, host: HostIx, peer: HostIx) {
        for (ix, end) in self.links_of(host) {
            if end == DIALER && self.links[&ix].agents[ACCEPTOR] == peer {
                self.leave(ix, DIALER);
            }
        }
    }

    /// An end ends a session.
    fn leave(&mut self, ix: LinkIx, end: End) {
        self.link(ix).world.say_goodbye(end);
        self.lose(ix, end);
    }

    /// An end has no session any more.
    fn lose(&mut self, ix: LinkIx, end: End) {
        let link = self.link(ix);
        if std::mem::replace(&mut link.gone[end], true) {
            return;
        }
        let (host, peer) = (link.agents[end], link.agents[1 - end]);
        trace!(self, "h{host} has no session {ix} to h{peer} any more");
        self.cut_streams(ix, end);
        self.see_contacts(host, Some(peer));
        self.bury(ix);
    }

    fn bury(&mut self, ix: LinkIx) {
        if self.links.get(&ix).is_some_and(|link| link.gone == [true; 2]) {
            let link = self.links.remove(&ix);
            self.leaked.extend(link.into_iter().flat_map(|link| link.world.leaked));
        }
    }

    /// The QEMUs' connections that came over this session end.
    fn cut_streams(&mut self, ix: LinkIx, end: End) {
        let streams = std::mem::take(&mut self.link(ix).streams[end]);
        for (stream, (qemu, channel)) in streams {
            self.cut(qemu, channel, (ix, end, stream));
        }
    }

    fn cut(&mut self, qemu: QemuIx, channel: usize, stream: (LinkIx, End, StreamId)) {
        let Some(SimChannel { stream: attached, input_closed, .. }) = self.qemus[qemu].channels.get_mut(channel) else {
            return;
        };
        if *attached != Some(stream) {
            return;
        }
        *attached = None;
        *input_closed = true;
        if self.qemus[qemu].state == State::Incoming {
            self.schedule_step(qemu, 50_000);
        } else {
            self.qemu_broke(qemu);
        }
    }

    // ---- processes ----

    /// A host's agent is no more.
    pub(crate) fn drop_sessions(&mut self, host: HostIx) {
        for (ix, end) in self.links_of(host) {
            let link = self.link(ix);
            kill(&mut link.world, end);
            link.gone[end] = true;
            link.control[end] = None;
            self.cut_streams(ix, end);
            self.bury(ix);
        }
    }

    /// A host's agent is there again: it knows nothing of old sessions, and says so.
    pub(crate) fn listen_again(&mut self, host: HostIx) {
        for link in self.links.values_mut() {
            for end in ENDS {
                if link.agents[end] == host && link.world.ends[end].dead {
                    link.world.ends[end].dead = false;
                    link.world.ends[end].paused = 0;
                }
            }
        }
    }

    pub(crate) fn pause_sessions(&mut self, host: HostIx, pause: bool) {
        for (ix, end) in self.links_of(host) {
            let link = self.link(ix);
            if pause {
                link.world.ends[end].paused += 1;
            } else {
                link.world.ends[end].paused -= 1;
                link.world.resume(end);
            }
        }
    }

    // ---- paths ----

    pub(crate) fn open_hole(&mut self, from: HostIx, to: HostIx, nic: usize, open: bool) {
        let holes = self.wire.holes.entry((from, to, nic)).or_default();
        *holes = if open { *holes + 1 } else { *holes - 1 };
        for ix in self.links.keys().copied().collect::<Vec<_>>() {
            let link = self.link(ix);
            for end in ENDS {
                if link.agents[end] == from && link.agents[1 - end] == to && nic < link.world.paths.len() {
                    if open {
                        link.world.open_hole(nic, end);
                    } else {
                        link.world.close_hole(nic, end);
                    }
                }
            }
        }
    }

    pub(crate) fn slow_down(&mut self, a: HostIx, b: HostIx, nic: usize, share: f64, slow: bool) {
        if slow {
            self.wire.slow.push((a, b, nic, share));
        } else if let Some(at) = self.wire.slow.iter().position(|other| *other == (a, b, nic, share)) {
            self.wire.slow.remove(at);
        }
        for link in self.links.values_mut() {
            if (link.agents == [a, b] || link.agents == [b, a]) && nic < link.world.paths.len() {
                if slow {
                    link.world.slow_down(nic, share);
                } else {
                    link.world.speed_up(nic, share);
                }
            }
        }
    }

    /// A host's NIC loses its carrier: its sessions hear of it.
    pub(crate) fn carrier_lost(&mut self, host: HostIx, nic: usize) {
        for (ix, end) in self.links_of(host) {
            let link = self.link(ix);
            if nic < link.world.paths.len() {
                link.world.carrier_lost(nic, end);
            }
        }
    }

    /// The kernels give connections on a path up, after these times.
    pub(crate) fn break_connections(&mut self, host: HostIx, nic: usize, after: [Time; 2]) {
        for ix in self.links.keys().copied().collect::<Vec<_>>() {
            let link = self.link(ix);
            if !link.agents.contains(&host) {
                continue;
            }
            for conn in 0..link.world.conns.len() {
                if link.world.conns[conn].path == nic {
                    ENDS.into_iter()
                        .for_each(|end| link.world.after(after[end], Act::Broken(conn, end, ConnectionEnd::Failed)));
                }
            }
        }
    }

    // ---- what sessions say ----

    pub(crate) fn settle_links(&mut self) {
        while self.failure.is_none()
            && let Some((ix, end, told)) = self.links.iter_mut().find_map(|(ix, link)| {
                let (end, told) = link.world.apps.sent.pop_front()?;
                Some((*ix, end, told))
            })
        {
            if self.links[&ix].gone[end] {
                continue;
            }
            match told {
                SentMessage::Opened(stream, target) => self.stream_opened(ix, end, stream, &target),
                SentMessage::Readable(stream) => self.stream_readable(ix, end, stream),
                SentMessage::Writable(stream) => {
                    if let Some((qemu, _)) = self.links[&ix].streams[end].get(&stream).copied() {
                        self.pump_out(qemu);
                    }
                }
                SentMessage::Ended => self.lose(ix, end),
                SentMessage::Resumed => {
                    let link = &self.links[&ix];
                    let control = link.control[end].as_ref().map(|control| control.stream);
                    let streams: Vec<StreamId> = control.into_iter().chain(link.streams[end].keys().copied()).collect();
                    for stream in streams {
                        if self.links.contains_key(&ix) {
                            self.stream_readable(ix, end, stream);
                        }
                    }
                    for qemu in 0..self.qemus.len() {
                        self.pump_out(qemu);
                    }
                }
            }
        }
    }

    fn stream_opened(&mut self, ix: LinkIx, end: End, stream: StreamId, target: &str) {
        let link = self.link(ix);
        let (host, peer) = (link.agents[end], link.agents[1 - end]);
        if target == CONTROL {
            link.control[end] = Some(Control { stream, inbox: Vec::new() });
            self.see_contacts(host, Some(peer));
            return;
        }
        let parts: Vec<&str> = target.split(':').collect();
        let [_, id, channel, channels] = parts[..] else {
            return self.fail(format!("h{host} is told of a stream to {target:?}"));
        };
        let id: MigrationId = id.parse().expect("written by `open_streams`");
        let channel: usize = channel.parse().expect("the same");
        let channels: usize = channels.parse().expect("the same");
        let waiting = self.target_qemu(host, id).filter(|qemu| {
            let qemu = &self.qemus[*qemu];
            let free = |channel: &SimChannel| channel.stream.is_none() && !channel.input_closed;
            qemu.alive && qemu.state == State::Incoming && qemu.channels.get(channel).is_none_or(free)
        });
        let Some(qemu) = waiting else {
            let link = self.link(ix);
            link.world.ends[end].session.reset(stream, 1, "nobody waits for it");
            return link.world.drain(end);
        };
        if self.qemus[qemu].channels.is_empty() {
            self.qemus[qemu].channels.resize_with(channels, SimChannel::default);
        }
        self.qemus[qemu].channels[channel].stream = Some((ix, end, stream));
        self.link(ix).streams[end].insert(stream, (qemu, channel));
        self.pump_in(qemu);
    }

    fn stream_readable(&mut self, ix: LinkIx, end: End, stream: StreamId) {
        if let Some((qemu, _)) = self.links[&ix].streams[end].get(&stream).copied() {
            return self.pump_in(qemu);
        }
        if self.links[&ix].control[end].as_ref().is_some_and(|control| control.stream == stream) {
            self.control_readable(ix, end);
        }
    }

    fn control_readable(&mut self, ix: LinkIx, end: End) {
        loop {
            // A message may have ended the session, or the agent.
            let Some(link) = self.links.get_mut(&ix).filter(|link| !link.gone[end]) else { return };
            let (host, peer) = (link.agents[end], link.agents[1 - end]);
            let Some(control) = &mut link.control[end] else { return };
            match link.world.ends[end].session.receive(control.stream) {
                Received::Data(data) => {
                    control.inbox.extend(&data);
                    link.world.ends[end].session.consumed(control.stream, data.len() as u64);
                }
                Received::Pending => return,
                Received::Finished | Received::Reset(..) => {
                    link.control[end] = None;
                    return;
                }
            }
            let mut messages = Vec::new();
            while let Some((head, rest)) = control.inbox.split_first_chunk::<4>() {
                let len = u32::from_be_bytes(*head) as usize;
                if len > MESSAGE_BYTES_MAX {
                    return self.fail(format!("h{host} is told a message of {len} bytes"));
                }
                let Some(body) = rest.get(..len) else { break };
                let message: Message = match postcard::from_bytes(body) {
                    Ok(message) => message,
                    Err(error) => return self.fail(format!("h{host} is told what does not decode: {error}")),
                };
                messages.push(message);
                control.inbox.drain(..4 + len);
            }
            self.link(ix).world.drain(end);
            // Whoever is heard can be told something.
            self.see_contacts(host, None);
            for message in messages {
                if self.agents[host].manager.is_none() {
                    return;
                }
                trace!(self, "h{host} hears from h{peer}: {message:?}");
                self.input(host, Input::Message(sim_agent::name(peer), message));
            }
        }
    }

    /// Tells a host something, if it can be told.
    pub(crate) fn send(&mut self, host: HostIx, peer: HostIx, message: &Message) {
        let body = postcard::to_stdvec(message).expect("plain data always encodes");
        let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
        bytes.extend(body);
        let Some((ix, end)) = self.best_link(host, peer) else { return };
        let link = self.link(ix);
        let clock = link.world.clock();
        let stream = link.control[end].as_ref().expect("it works").stream;
        if link.world.ends[end].session.send_capacity(clock, stream) >= bytes.len() {
            link.world.ends[end].session.send(clock, stream, bytes.into());
        } else {
            trace!(self, "h{host} has no room to tell h{peer} anything");
        }
        self.link(ix).world.drain(end);
    }

    // ---- migrations' connections ----

    pub(crate) fn open_streams(&mut self, host: HostIx, peer: HostIx, id: MigrationId, qemu: QemuIx) -> bool {
        let Some((ix, end)) = self.best_link(host, peer) else { return false };
        let channels = self.qemus[qemu].channels.len();
        for channel in 0..channels {
            let link = self.link(ix);
            let Ok(stream) = link.world.ends[end].session.open(&format!("migration:{id}:{channel}:{channels}")) else {
                return false;
            };
            link.streams[end].insert(stream, (qemu, channel));
            self.qemus[qemu].channels[channel].stream = Some((ix, end, stream));
        }
        self.link(ix).world.drain(end);
        true
    }

    /// From QEMU's sockets into the session.
    pub(crate) fn pump_out(&mut self, qemu: QemuIx) {
        let host = self.qemus[qemu].host;
        if self.agents[host].paused > 0 || self.agents[host].manager.is_none() {
            return;
        }
        let mut taken = false;
        for number in 0..self.qemus[qemu].channels.len() {
            let Some((ix, end, stream)) = self.qemus[qemu].channels[number].stream else { continue };
            let now = self.now;
            let link = self.links.get_mut(&ix).expect("streams are cut with their session");
            link.world.now = now;
            let clock = link.world.clock();
            let channel = &mut self.qemus[qemu].channels[number];
            let session = &mut link.world.ends[end].session;
            while !channel.out.is_empty() {
                let room = session.send_capacity(clock, stream);
                let Some(bytes) = channel.take(room).filter(|_| room > 0) else { break };
                session.send(clock, stream, bytes);
                taken = true;
            }
            if channel.out.is_empty() && channel.out_closed {
                session.finish(stream);
            }
            link.world.drain(end);
        }
        if taken && matches!(self.qemus[qemu].state, State::Migrating | State::Device) {
            let delay = 20_000 + self.rng.below(200_000);
            self.schedule_step(qemu, delay);
        }
    }

    /// From the session into QEMU's sockets.
    pub(crate) fn pump_in(&mut self, qemu: QemuIx) {
        let host = self.qemus[qemu].host;
        if self.agents[host].paused > 0 || self.agents[host].manager.is_none() {
            return;
        }
        let mut step = false;
        for number in 0..self.qemus[qemu].channels.len() {
            let Some((ix, end, stream)) = self.qemus[qemu].channels[number].stream else { continue };
            loop {
                let reads = self.qemus[qemu].alive && self.qemus[qemu].state == State::Incoming;
                let channel = &mut self.qemus[qemu].channels[number];
                if reads && channel.input.len() >= SOCKET_BYTES {
                    break; // goes on when QEMU has read
                }
                let now = self.now;
                let link = self.links.get_mut(&ix).expect("streams are cut with their session");
                link.world.now = now;
                match link.world.ends[end].session.receive(stream) {
                    Received::Data(data) => {
                        if reads {
                            channel.input.extend(&data);
                        } else if number == 0 && data[..] == [SHUT] {
                            self.qemus[qemu].shut = true;
                        }
                        link.world.ends[end].session.consumed(stream, data.len() as u64);
                        step = true;
                    }
                    Received::Pending => break,
                    Received::Finished => {
                        let first = !std::mem::replace(&mut channel.input_closed, true);
                        step |= first;
                        let source = self.qemus[qemu].outgoing.is_some();
                        if first && source && number == 0 && !self.qemus[qemu].shut {
                            self.qemu_broke(qemu);
                        }
                        break;
                    }
                    Received::Reset(..) => {
                        link.streams[end].remove(&stream);
                        self.cut(qemu, number, (ix, end, stream));
                        break;
                    }
                }
            }
            if let Some(link) = self.links.get_mut(&ix) {
                link.world.drain(end);
            }
        }
        if step {
            let delay = 10_000 + self.rng.below(100_000);
            self.schedule_step(qemu, delay);
        }
    }

    /// The agent ends a QEMU's connections.
    pub(crate) fn close_streams(&mut self, qemu: QemuIx) {
        for number in 0..self.qemus[qemu].channels.len() {
            let channel = &mut self.qemus[qemu].channels[number];
            channel.out.clear();
            channel.out_bytes = 0;
            if let Some((ix, end, stream)) = channel.stream.take() {
                let link = self.link(ix);
                link.streams[end].remove(&stream);
                link.world.ends[end].session.reset(stream, 2, "the migration is over");
                link.world.drain(end);
            }
        }
    }
}

/// An end's process is killed, and its memory goes.
fn kill(world: &mut World<Relay>, end: End) {
    world.die(end);
    let role = [Role::Dialer, Role::Acceptor][end];
    let mut session = Session::new(world.clock(), role, Settings::default());
    session.close();
    while session.poll_event().is_some() {}
    world.ends[end].session = session;
}
