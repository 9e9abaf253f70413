//! What sessions carry: control messages, and the channels of migrations.

use skein_handover::MigrationId;
use skein_session::{Received, StreamId};

use super::index::{HostIx, LinkIx, QemuIx, host_name};
use super::offer::{Input, Message};
use super::qemu::{SHUT, SOCKET_BYTES, SimChannel, State};
use super::session::{CONTROL, ControlStream, SessionEvent};
use super::state::{Cluster, trace};
use crate::world::End;

/// The longest message. A message that claims to be longer is damage.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

impl Cluster {
    /// Does what sessions ask for, until nothing is left to do.
    pub(super) fn settle_links(&mut self) {
        while self.failure.is_none()
            && let Some((ix, end, event)) = self.links.iter_mut().find_map(|(ix, link)| {
                let (end, event) = link.world.apps.events.pop_front()?;
                Some((*ix, end, event))
            })
        {
            if self.links[&ix].gone[end] {
                continue;
            }
            match event {
                SessionEvent::Opened(stream, target) => self.stream_opened(ix, end, stream, &target),
                SessionEvent::Readable(stream) => self.stream_readable(ix, end, stream),
                SessionEvent::Writable(stream) => {
                    if let Some((qemu, _)) = self.links[&ix].streams[end].get(&stream).copied() {
                        self.pump_out(qemu);
                    }
                }
                SessionEvent::Ended => self.lose(ix, end),
                SessionEvent::Resumed => {
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
            link.control[end] = Some(ControlStream::new(stream));
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
            // An agent that is heard can be sent messages.
            self.see_contacts(host, None);
            for message in messages {
                if self.agents[host].manager.is_none() {
                    return;
                }
                trace!(self, "h{host} hears from h{peer}: {message:?}");
                self.input(host, Input::Message(host_name(peer), message));
            }
        }
    }

    /// Sends a message to a host, if there is contact.
    pub(super) fn send(&mut self, host: HostIx, peer: HostIx, message: &Message) {
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

    /// Opens a stream for each channel of a source. Returns `false` if there is no contact, or no room for a stream.
    pub(super) fn open_streams(&mut self, host: HostIx, peer: HostIx, id: MigrationId, qemu: QemuIx) -> bool {
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

    /// Carries bytes from a QEMU's sockets into the session.
    pub(super) fn pump_out(&mut self, qemu: QemuIx) {
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

    /// Carries bytes from the session into a QEMU's sockets.
    pub(super) fn pump_in(&mut self, qemu: QemuIx) {
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

    /// Lets the agent end a QEMU's connections.
    pub(super) fn close_streams(&mut self, qemu: QemuIx) {
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

    /// Ends the QEMUs' connections that came over a session.
    pub(super) fn cut_streams(&mut self, ix: LinkIx, end: End) {
        let streams = std::mem::take(&mut self.link(ix).streams[end]);
        for (stream, (qemu, channel)) in streams {
            self.cut(qemu, channel, (ix, end, stream));
        }
    }

    /// Ends one connection of a QEMU, if the connection is still carried by that stream.
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
}
