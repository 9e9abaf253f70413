//! The agents that are connected: a bounded queue of lines for each, and what all of them are told.

use std::collections::BTreeMap;
use std::sync::Arc;

use skein_api::cluster::ChangedObject;
use skein_api::{Refusal, Term, ToAgent};
use skein_cluster::{Controller, SessionId};
use tokio::sync::{mpsc, oneshot};

/// How many lines wait for an agent at most. An agent has as many commands under way as it has migrations, and is told
/// once in a while who leads and where hosts are; whoever is so far behind does not read.
const LINES_MAX: usize = 64;

/// A line of JSON, with its end.
pub(crate) type Line = Arc<[u8]>;

/// The connection's side of an agent's connection.
pub(crate) struct AgentLink {
    pub session: SessionId,
    pub lines: mpsc::Receiver<Line>,
    /// Says why the connection is to end at once.
    pub hang_up: oneshot::Receiver<HangUp>,
}

/// The reason why a connection is to end.
pub(crate) struct HangUp {
    pub why: String,
    /// What the agent is told before.
    pub last: Option<Refusal>,
}

struct Connected {
    lines: mpsc::Sender<Line>,
    hang_up: oneshot::Sender<HangUp>,
    /// Whether the agent was told that this controller leads.
    is_led: bool,
}

/// The agents that are connected.
#[derive(Default)]
pub(crate) struct Agents {
    connected: BTreeMap<SessionId, Connected>,
    last: SessionId,
    /// Where hosts are.
    hosts: BTreeMap<String, Vec<String>>,
    /// Whether that has changed since agents were told.
    hosts_changed: bool,
    /// Where controllers are, by name.
    controllers: BTreeMap<String, String>,
}

impl Agents {
    pub fn add(&mut self) -> AgentLink {
        self.last += 1;
        let session = self.last;
        let (lines, receiver) = mpsc::channel(LINES_MAX);
        let (hang_up, hung_up) = oneshot::channel();
        self.connected.insert(session, Connected { lines, hang_up, is_led: false });
        if !self.controllers.is_empty() {
            self.send_line(session, self.controllers_line());
        }
        AgentLink { session, lines: receiver, hang_up: hung_up }
    }

    pub fn remove(&mut self, session: SessionId) {
        self.connected.remove(&session);
    }

    pub fn hang_up(&mut self, session: SessionId, why: String) {
        if let Some(connected) = self.connected.remove(&session) {
            // The connection may have ended by itself.
            let _ = connected.hang_up.send(HangUp { why, last: None });
        }
    }

    /// Tells an agent that its host is not taken, and ends the connection.
    pub fn refuse(&mut self, session: SessionId, refusal: Refusal) {
        if let Some(connected) = self.connected.remove(&session) {
            // The connection may have ended by itself.
            let _ = connected.hang_up.send(HangUp { why: refusal.message.clone(), last: Some(refusal) });
        }
    }

    pub fn send(&mut self, session: SessionId, line: &ToAgent) {
        self.send_line(session, bytes(line));
    }

    /// Sends a line, or ends the connection if the agent does not read.
    fn send_line(&mut self, session: SessionId, line: Line) {
        let Some(connected) = self.connected.get(&session) else { return };
        if connected.lines.try_send(line).is_err() {
            self.hang_up(session, "it does not read what it is told".into());
        }
    }

    /// Tells an agent that this controller leads, and where hosts are.
    pub fn lead(&mut self, session: SessionId, term: Term, controller: &Controller) {
        let hosts = controller.tables().hosts.iter();
        self.hosts = hosts.map(|(name, host)| (name.clone(), host.value.addresses.clone())).collect();
        self.send(session, &ToAgent::Leads { term });
        self.send_line(session, self.hosts_line());
        if let Some(connected) = self.connected.get_mut(&session) {
            connected.is_led = true;
        }
    }

    /// Notes where a host is.
    pub fn note(&mut self, changed: &ChangedObject) {
        match changed {
            ChangedObject::Host { host } if self.hosts.get(&host.name) != Some(&host.addresses) => {
                self.hosts.insert(host.name.clone(), host.addresses.clone());
                self.hosts_changed = true;
            }
            ChangedObject::Gone { kind, name } if kind == "host" => {
                self.hosts_changed |= self.hosts.remove(name).is_some();
            }
            _ => {}
        }
    }

    /// Tells all agents that this controller leads where hosts are, if that has changed.
    pub fn send_hosts(&mut self) {
        if !std::mem::take(&mut self.hosts_changed) {
            return;
        }
        let line = self.hosts_line();
        let led: Vec<SessionId> = self.connected.iter().filter(|(_, of)| of.is_led).map(|(id, _)| *id).collect();
        for session in led {
            self.send_line(session, line.clone());
        }
    }

    /// Tells all agents where controllers are, if that has changed. Each controller says so, whether or not it leads.
    pub fn send_controllers(&mut self, controllers: BTreeMap<String, String>) {
        if controllers == self.controllers {
            return;
        }
        self.controllers = controllers;
        let line = self.controllers_line();
        let all: Vec<SessionId> = self.connected.keys().copied().collect();
        for session in all {
            self.send_line(session, line.clone());
        }
    }

    fn controllers_line(&self) -> Line {
        bytes(&ToAgent::Controllers { addresses: self.controllers.clone() })
    }

    fn hosts_line(&self) -> Line {
        let known = self.hosts.iter().filter(|(_, addresses)| !addresses.is_empty());
        let addresses = known.map(|(name, addresses)| (name.clone(), addresses.clone())).collect();
        bytes(&ToAgent::Hosts { addresses })
    }
}

/// Returns a line's bytes.
pub(crate) fn bytes(line: &ToAgent) -> Line {
    // Plain data always serialises; an agent would hang up on an empty line.
    let mut bytes = serde_json::to_vec(line).unwrap_or_default();
    bytes.push(b'\n');
    bytes.into()
}
