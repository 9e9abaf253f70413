//! Sessions between agents, and the contact that they give.
//!
//! The agent whose manager wants to reach another dials a session and opens `skein:control` in it. There is contact
//! while some session to that host has its control stream and a path that works.

use std::time::Duration;

use skein_session::Settings;

use super::index::{HostIx, LinkIx, host_name};
use super::offer::Input;
use super::plant::Plant;
use super::session::{AgentSession, CONTROL, ControlStream, Relay, kill};
use super::state::{Cluster, trace};
use crate::world::{ACCEPTOR, Config, DIALER, ENDS, End, S, Time, World};

/// The time in which a session has to have a path.
const BEGIN_TIME: Time = 5 * S;

impl Cluster {
    /// Returns a session, with its time set to the cluster's.
    pub(super) fn link(&mut self, ix: LinkIx) -> &mut AgentSession {
        let now = self.now;
        let link = self.links.get_mut(&ix).expect("it is there");
        link.world.now = now;
        link
    }

    /// Returns the sessions that an agent has, with the agent's end of each.
    pub(super) fn links_of(&self, host: HostIx) -> Vec<(LinkIx, End)> {
        let ends = |(ix, link): (&LinkIx, &AgentSession)| {
            let (ix, agents, gone) = (*ix, link.agents, link.gone);
            ENDS.into_iter().filter(move |end| agents[*end] == host && !gone[*end]).map(move |end| (ix, end))
        };
        self.links.iter().flat_map(ends).collect()
    }

    /// Returns the session over which an agent can send another a message. One that the agent dialled itself comes
    /// first.
    pub(super) fn best_link(&self, host: HostIx, peer: HostIx) -> Option<(LinkIx, End)> {
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
            sabotage: self.plant.and_then(Plant::in_sessions),
        };
        // Main and multifd channels of every migration that there may be.
        let apps = Relay { streams_max: 2 + 6 * self.wishes.len() as u64, ..Relay::default() };
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
        let control = [Some(ControlStream::new(stream)), None];
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

    /// Dials the hosts that an agent wants to reach, and tells its manager which hosts can be reached.
    pub(super) fn look(&mut self, host: HostIx) {
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
                self.input(host, Input::Contact(host_name(peer), true));
            } else if self.now > link.begun_at + BEGIN_TIME {
                self.leave(ix, DIALER);
            }
            if self.agents[host].manager.is_none() {
                return;
            }
        }
        self.see_contacts(host, None);
    }

    /// Tells the manager which hosts can be reached, where that changed. Messages to the host `anew` may have been
    /// lost, so the manager is told of contact to that host again.
    pub(super) fn see_contacts(&mut self, host: HostIx, anew: Option<HostIx>) {
        for peer in 0..self.hosts.len() {
            let contact = self.best_link(host, peer).is_some();
            let before = self.agents[host].contact.insert(peer, contact).unwrap_or(false);
            if before != contact || (contact && anew == Some(peer)) {
                trace!(self, "h{host} has contact to h{peer}: {contact}");
                self.input(host, Input::Contact(host_name(peer), contact));
            }
            if self.agents[host].manager.is_none() {
                return;
            }
        }
    }

    /// Ends the sessions that an agent dialled to another.
    pub(super) fn hang_up(&mut self, host: HostIx, peer: HostIx) {
        for (ix, end) in self.links_of(host) {
            if end == DIALER && self.links[&ix].agents[ACCEPTOR] == peer {
                self.leave(ix, DIALER);
            }
        }
    }

    /// Lets an end end a session.
    fn leave(&mut self, ix: LinkIx, end: End) {
        self.link(ix).world.say_goodbye(end);
        self.lose(ix, end);
    }

    /// Notes that an end has no session any more.
    pub(super) fn lose(&mut self, ix: LinkIx, end: End) {
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

    /// Removes a session that neither end has any more.
    fn bury(&mut self, ix: LinkIx) {
        if self.links.get(&ix).is_some_and(|link| link.gone == [true; 2]) {
            let link = self.links.remove(&ix);
            self.leaked.extend(link.into_iter().flat_map(|link| link.world.leaked));
        }
    }

    /// Ends the sessions of a host whose agent is no more.
    pub(super) fn drop_sessions(&mut self, host: HostIx) {
        for (ix, end) in self.links_of(host) {
            let link = self.link(ix);
            kill(&mut link.world, end);
            link.gone[end] = true;
            link.control[end] = None;
            self.cut_streams(ix, end);
            self.bury(ix);
        }
    }

    /// Lets a host's new agent answer for old sessions, of which the agent knows nothing.
    pub(super) fn listen_again(&mut self, host: HostIx) {
        for link in self.links.values_mut() {
            for end in ENDS {
                if link.agents[end] == host && link.world.ends[end].dead {
                    link.world.ends[end].dead = false;
                    link.world.ends[end].paused = 0;
                }
            }
        }
    }

    /// Stops the ends of a host's sessions, whose process is stopped.
    pub(super) fn pause_sessions(&mut self, host: HostIx) {
        for (ix, end) in self.links_of(host) {
            self.link(ix).world.ends[end].paused += 1;
        }
    }

    /// Takes back one [`Self::pause_sessions`].
    pub(super) fn resume_sessions(&mut self, host: HostIx) {
        for (ix, end) in self.links_of(host) {
            let world = &mut self.link(ix).world;
            world.ends[end].paused -= 1;
            world.resume(end);
        }
    }
}
