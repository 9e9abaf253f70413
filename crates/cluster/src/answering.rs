//! Hosts that answer, though no connection with their agents comes about: a clock or a certificate is wrong.
//!
//! Anybody can begin a handshake, so nothing is decided by one. A host is told of as one that answers, and nobody is
//! advised to say that it is off, or taken at that word, while such handshakes come from there.

use std::net::IpAddr;

use skein_api::Refusal;

use crate::answer::Answer;
use crate::handshakes::{HandshakeFailure, Tried, words};
use crate::state::Controller;
use crate::time::Now;

/// How many leases a handshake counts for. An agent dials again within seconds.
const LEASES: u64 = 3;
/// For how long a handshake counts at least, in milliseconds: longer than an agent pauses, and a handshake takes.
const COUNTS_MS_MIN: u64 = 30_000;
/// The most refused hosts that are told of.
const REFUSED_MAX: usize = 100;
/// The most hosts whose handshakes are kept.
const HOSTS_MAX: usize = 4096;
/// The most hosts that are told by name in one sentence.
const NAMES_MAX: usize = 5;

impl Controller {
    /// Takes note of a handshake that came to nothing. `host` is whom a certificate of the cluster's CA names.
    pub(crate) fn handshake_failed(
        &mut self,
        now: Now,
        address: IpAddr,
        host: Option<String>,
        failure: HandshakeFailure,
    ) {
        if let Some(host) = host.or_else(|| self.host_at(address)) {
            self.note_tried(now, host, Some(address), failure);
        }
    }

    /// Takes note of a host whose agent is refused.
    pub(crate) fn note_refused(&mut self, now: Now, host: &str, refusal: &Refusal) {
        let failure = HandshakeFailure::NotTaken { why: refusal.message.clone() };
        self.note_tried(now, host.to_owned(), None, failure);
    }

    fn note_tried(&mut self, now: Now, host: String, address: Option<IpAddr>, failure: HandshakeFailure) {
        let (counts_ms, is_connected) = (self.handshakes_count_ms(), self.session_of(&host).is_some());
        let tried = &mut self.handshakes.0;
        if tried.len() >= HOSTS_MAX && !tried.contains_key(&host) {
            tried.retain(|_, of| now.ms_since(of.at_ms) < counts_ms);
            if tried.len() >= HOSTS_MAX {
                return;
            }
        }
        let was_other = tried.get(&host).is_some_and(|before| before.is_other);
        let is_other = matches!(failure, HandshakeFailure::NotTaken { .. }) && (was_other || is_connected);
        let new = Tried { address, failure, at_ms: now.mono_ms, wall: now.wall, is_other };
        match tried.get_mut(&host) {
            // A reason that is known says more.
            Some(before) if new.failure == HandshakeFailure::Broken && now.ms_since(before.at_ms) < counts_ms => {
                before.at_ms = now.mono_ms;
            }
            _ => drop(tried.insert(host, new)),
        }
    }

    /// Forgets the handshakes of a host whose agent is connected.
    pub(crate) fn forget_handshakes(&mut self, host: &str) {
        self.handshakes.0.remove(host);
    }

    /// Returns the only host that has an address.
    fn host_at(&self, address: IpAddr) -> Option<String> {
        let mut there = self.tables.hosts.iter().filter(|(_, host)| host.value.ips().contains(&address));
        let (host, _) = there.next()?;
        there.next().is_none().then(|| host.clone())
    }

    fn handshakes_count_ms(&self) -> u64 {
        (LEASES * self.host_lease_ms()).max(COUNTS_MS_MIN)
    }

    /// Returns the handshake by which a host answers whose agent is not connected.
    fn tried(&self, host: &str) -> Option<&Tried> {
        self.tried_lately(host).filter(|tried| !tried.is_other && self.session_of(host).is_none())
    }

    fn tried_lately(&self, host: &str) -> Option<&Tried> {
        let tried = self.handshakes.0.get(host)?;
        (self.mono_ms.saturating_sub(tried.at_ms) < self.handshakes_count_ms()).then_some(tried)
    }

    /// Returns what to do about a host of which nothing is heard: `cure`, unless the host answers, and is not off.
    pub(crate) fn unless_answering(&self, host: &str, cure: impl Into<String>) -> String {
        // Without times, as this may be kept.
        match self.tried(host) {
            Some(_) => format!(
                "'{host}' answers, so it is not off: no connection with its agent comes about, and skein host show \
                 {host} says why"
            ),
            None => cure.into(),
        }
    }

    /// Says what to do about a host of which nothing is heard.
    pub(crate) fn silent_cure(&self, host: &str) -> String {
        let cure = format!(
            "see that '{host}' is on and reaches the controllers, or say that it is off: skein host fence {host} \
             --is-off"
        );
        self.unless_answering(host, cure)
    }

    /// Refuses a person's word that a host is off that answers, or of which this controller cannot know yet whether it
    /// does.
    pub(crate) fn answers(&self, now: Now, host: &str) -> Option<Answer> {
        let Some(tried) = self.tried(host) else {
            let runs_ms = self.begun_ms.map_or(0, |begun| now.ms_since(begun));
            let left_s = self.settings.dialled_ms.checked_sub(runs_ms).filter(|left| *left > 0)?.div_ceil(1000);
            let message = format!(
                "this controller has run for {} s: the agent of '{host}' may be about to find it",
                runs_ms / 1000
            );
            return Some(Answer::conflict(message, format!("ask again in {left_s} s")));
        };
        let since_ms = now.ms_since(tried.at_ms);
        let left_s = self.handshakes_count_ms().saturating_sub(since_ms).div_ceil(1000);
        let from = tried.address.map(|address| format!(" from {address}")).unwrap_or_default();
        let message = format!("'{host}' is not off: {} s ago its agent tried to connect{from}", since_ms / 1000);
        let cure = format!(
            "see skein host show {host}; if it was switched off since, ask again once nothing has come from there for \
             {left_s} s more"
        );
        Some(Answer::conflict(message, cure))
    }

    /// Says why a host does not report that answers. `None`: it does not answer, or its agent is connected.
    pub(crate) fn answers_words(&self, host: &str) -> Option<String> {
        let tried = self.tried(host)?;
        let words = words(&tried.failure, "its", "it answers", Some(host), tried.wall);
        let from = tried.address.map(|address| format!(" (from {address})")).unwrap_or_default();
        Some(words + &from)
    }

    /// Returns whether a host answers, though its agent cannot report.
    pub(crate) fn is_answering(&self, host: &str) -> bool {
        self.tried(host).is_some()
    }

    /// Says which hosts answer whose agents cannot report, and what to do, one sentence for each reason.
    pub(crate) fn answering_attention(&self) -> Vec<String> {
        let all = self.handshakes.0.keys().filter_map(|host| Some((host.as_str(), self.tried(host)?)));
        let all: Vec<(&str, &Tried)> = all.collect();
        let (mut found, mut told) = (Vec::new(), Vec::new());
        for (_, first) in &all {
            let kind = first.failure.kind();
            if told.contains(&kind) || matches!(first.failure, HandshakeFailure::NotTaken { .. }) {
                continue;
            }
            told.push(kind);
            let of_kind = all.iter().filter(|(_, of)| of.failure.kind() == kind);
            let hosts: Vec<&str> = of_kind.map(|(host, _)| *host).collect();
            found.push(match hosts[..] {
                [host] => {
                    let who = format!("host '{host}' does not report, and is not off: it answers");
                    words(&first.failure, "its", &who, Some(host), first.wall)
                }
                _ => {
                    let mut names: Vec<String> = hosts.iter().take(NAMES_MAX).map(|host| format!("'{host}'")).collect();
                    if hosts.len() > names.len() {
                        names.push(format!("{} more", hosts.len() - names.len()));
                    }
                    let names = names.join(", ");
                    let who = format!("{} hosts do not report, and are not off: they answer ({names})", hosts.len());
                    words(&first.failure, "the first one's", &who, None, first.wall)
                }
            });
        }
        found
    }

    /// Returns what is told of hosts whose agents are refused, one sentence each. Some are none of the cluster's.
    pub(crate) fn refused_attention(&self) -> Vec<String> {
        let refused = self.handshakes.0.keys().filter_map(|host| match &self.tried_lately(host)?.failure {
            HandshakeFailure::NotTaken { why } => Some((host, why)),
            _ => None,
        });
        let words = |(host, why): (&String, &String)| {
            format!(
                "host '{host}' is refused, and nobody sees what it runs: {why}; join it anew (skein-controller ticket \
                 makes a token for skein join), or end its agent"
            )
        };
        refused.take(REFUSED_MAX).map(words).collect()
    }
}
