//! The agents that are connected: a bounded queue of lines for each, and what all of them are told.

use std::collections::BTreeMap;
use std::time::Instant;

use skein_api::cluster::ChangedObject;
use skein_api::{Refusal, Term, ToAgent};
use skein_cluster::{Controller, SessionId};
use tokio::sync::{mpsc, oneshot};

use super::host_list::{HostList, ListNumber};
use super::line::{Line, bytes};

/// How many lines wait for an agent at most. An agent has as many commands under way as it has migrations, and is told
/// once in a while who leads and where hosts are; whoever is so far behind does not read.
const LINES_MAX: usize = 64;

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
    /// The list of hosts that the agent was told, once it was told that this controller leads.
    told: Option<ListNumber>,
}

/// The agents that are connected.
#[derive(Default)]
pub(crate) struct Agents {
    connected: BTreeMap<SessionId, Connected>,
    last: SessionId,
    hosts: HostList,
    /// The term whose tables the list of hosts was taken from.
    hosts_of: Option<Term>,
    /// Where controllers are, by name.
    controllers: BTreeMap<String, String>,
}

impl Agents {
    pub fn add(&mut self) -> AgentLink {
        self.last += 1;
        let session = self.last;
        let (lines, receiver) = mpsc::channel(LINES_MAX);
        let (hang_up, hung_up) = oneshot::channel();
        self.connected.insert(session, Connected { lines, hang_up, told: None });
        if !self.controllers.is_empty() {
            self.send_line(session, self.controllers_line());
        }
        AgentLink { session, lines: receiver, hang_up: hung_up }
    }

    pub fn count(&self) -> usize {
        self.connected.len()
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

    /// Sends a line to an agent. Before a command the agent is told where hosts are, if that has changed: the command
    /// may be about one that is new.
    pub fn send(&mut self, session: SessionId, line: &ToAgent) {
        if matches!(line, ToAgent::Command { .. }) {
            self.send_hosts_to(session);
        }
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
        if self.hosts_of != Some(term) {
            self.hosts_of = Some(term);
            let hosts = controller.tables().hosts.iter();
            self.hosts.set(hosts.map(|(name, host)| (name.clone(), host.value.addresses.clone())).collect());
        }
        self.send(session, &ToAgent::Leads { term });
        if let Some(connected) = self.connected.get_mut(&session) {
            connected.told = Some(0);
        }
        self.send_hosts_to(session);
    }

    /// Notes where a host is.
    pub fn note(&mut self, changed: &ChangedObject) {
        self.hosts.note(changed);
    }

    /// Tells an agent that this controller leads where hosts are, unless it knows.
    fn send_hosts_to(&mut self, session: SessionId) {
        let number = self.hosts.number();
        let Some(connected) = self.connected.get_mut(&session) else { return };
        if connected.told.is_some_and(|told| told != number) {
            connected.told = Some(number);
            let line = self.hosts.line();
            self.send_line(session, line);
        }
    }

    /// Tells all agents that this controller leads where hosts are, if that has changed and it is time for it.
    pub fn send_hosts(&mut self, now: Instant) {
        let number = self.hosts.number();
        let behind = |of: &Connected| of.told.is_some_and(|told| told != number);
        let behind: Vec<SessionId> = self.connected.iter().filter(|(_, of)| behind(of)).map(|(id, _)| *id).collect();
        if behind.is_empty() || !self.hosts.is_time(now) {
            return;
        }
        for session in behind {
            self.send_hosts_to(session);
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
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skein_api::Request;

    use super::*;

    fn hosts(names: &[&str]) -> BTreeMap<String, Vec<String>> {
        names.iter().map(|name| ((*name).to_owned(), vec![format!("{name}.example:7443")])).collect()
    }

    /// Returns how many hosts each list names that an agent was sent, and 0 for every other line.
    fn sent(link: &mut AgentLink) -> Vec<usize> {
        let mut lines = Vec::new();
        while let Ok(line) = link.lines.try_recv() {
            lines.push(match serde_json::from_slice(&line).unwrap() {
                ToAgent::Hosts { addresses } => addresses.len(),
                _ => 0,
            });
        }
        lines
    }

    fn gone(agents: &mut Agents, name: &str) {
        agents.note(&ChangedObject::Gone { kind: "host".into(), name: name.into() });
    }

    #[test]
    fn a_list_of_hosts_stands_a_while_but_is_told_before_a_command() {
        let mut agents = Agents::default();
        let (mut first, mut second) = (agents.add(), agents.add());
        agents.hosts.set(hosts(&["a", "b", "c", "d"]));
        for session in [first.session, second.session] {
            agents.connected.get_mut(&session).unwrap().told = Some(0);
        }
        let begin = Instant::now();
        agents.send_hosts(begin);
        assert_eq!((sent(&mut first), sent(&mut second)), (vec![4], vec![4]));
        // Nothing has changed.
        agents.send_hosts(begin + Duration::from_secs(60));
        assert_eq!(sent(&mut first), Vec::<usize>::new());

        gone(&mut agents, "a");
        agents.send_hosts(begin + Duration::from_secs(60));
        assert_eq!((sent(&mut first), sent(&mut second)), (vec![3], vec![3]));
        gone(&mut agents, "b");
        // The list of before was sent just now.
        agents.send_hosts(begin + Duration::from_secs(60) + Duration::from_millis(10));
        assert_eq!((sent(&mut first), sent(&mut second)), (vec![], vec![]));
        let (term, request) = (Term(1), Box::new(Request::Version));
        agents.send(first.session, &ToAgent::Command { command: 1, term, request_id: None, request });
        assert_eq!((sent(&mut first), sent(&mut second)), (vec![2, 0], vec![]));
        agents.send_hosts(begin + Duration::from_secs(61));
        assert_eq!((sent(&mut first), sent(&mut second)), (vec![], vec![2]));
    }

    #[test]
    fn an_agent_that_nobody_leads_is_told_no_hosts() {
        let mut agents = Agents::default();
        let mut link = agents.add();
        agents.hosts.set(hosts(&["a"]));
        agents.send_hosts(Instant::now());
        assert_eq!(sent(&mut link), Vec::<usize>::new());
    }
}
