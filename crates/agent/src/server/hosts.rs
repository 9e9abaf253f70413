//! Answers questions about hosts.

use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skein_api::{HostView, Reply};
use skein_host::Kernel;
use skein_inventory::facts::GuestFiles;

use super::refusal::{Answered, refusal, unreached};
use super::request_server::RequestServer;
use super::starter::ASK_TIME;
use crate::error_chain;
use crate::to_api::ToApi;

/// Says how long a host may take to send its facts for a list of hosts, which is of hosts that answer at once.
const LIST_ASK_TIME: Duration = Duration::from_secs(3);
/// Says after how long no further host is asked for a list.
const LIST_TIME: Duration = Duration::from_secs(5);
/// Bounds the hosts that are asked at once for a list.
pub(super) const LIST_ASKED_MAX: usize = 32;

impl RequestServer {
    /// Returns every known host, each with its facts.
    pub(super) fn host_list(&self) -> Answered<Reply> {
        let hosts = self.known_hosts()?;
        let workers = hosts.len().min(LIST_ASKED_MAX);
        let end = Instant::now() + LIST_TIME;
        let (left, done) = (Mutex::new(hosts.into_iter()), Mutex::new(Vec::new()));
        let work = || {
            loop {
                let next = left.lock().next();
                let Some(mut host) = next else { return };
                if host.is_local || Instant::now() < end {
                    self.fill_in(&mut host, LIST_ASK_TIME);
                } else {
                    host.note = format!("too many hosts before it do not answer: see `skein host show {}`", host.name);
                }
                done.lock().push(host);
            }
        };
        thread::scope(|scope| {
            for _ in 1..workers {
                // If no further thread can be started, the others do it all.
                let _ = thread::Builder::new().name("hosts".into()).spawn_scoped(scope, work);
            }
            work();
        });
        let mut hosts = done.into_inner();
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Reply::Hosts { hosts })
    }

    pub(super) fn host_show(&self, name: Option<String>) -> Answered<Reply> {
        let name = name.unwrap_or_else(|| self.migrations.peers().host().to_owned());
        let known = self.known_hosts()?.into_iter().find(|host| host.name == name);
        let mut host = known.unwrap_or_else(|| HostView {
            name,
            addresses: Vec::new(),
            is_local: false,
            reachable: None,
            note: "not in the list of hosts: its name is looked up".into(),
            problems: Vec::new(),
            facts: None,
        });
        self.fill_in(&mut host, ASK_TIME);
        Ok(Reply::Host(Box::new(host)))
    }

    /// Shows the network interfaces of a host.
    pub(super) fn net_show(&self, name: &str) -> Answered<Reply> {
        let peers = self.migrations.peers();
        let interfaces = if name == peers.host() {
            let cure = "is this a container without a network?";
            skein_network::read(&Kernel::new()).map_err(|error| Box::new(refusal(error_chain(&error), cure)))?
        } else {
            let asked = peers.ask_network(name, Instant::now() + ASK_TIME);
            asked.map_err(|error| Box::new(refusal(error_chain(&error), unreached(name, &error))))?
        };
        Ok(Reply::Network { interfaces })
    }

    /// Returns this host and those of the file, without asking them.
    pub(super) fn known_hosts(&self) -> Answered<Vec<HostView>> {
        let peers = self.migrations.peers();
        let known = self.starter.hosts_file()?;
        let own = HostView {
            name: peers.host().to_owned(),
            addresses: self.addresses.clone(),
            is_local: true,
            reachable: Some(true),
            note: String::new(),
            problems: Vec::new(),
            facts: None,
        };
        let others = known.hosts.into_iter().filter(|host| host.name != own.name).map(|host| HostView {
            name: host.name,
            addresses: host.addresses.iter().map(ToString::to_string).collect(),
            is_local: false,
            reachable: None,
            note: String::new(),
            problems: Vec::new(),
            facts: None,
        });
        let others: Vec<HostView> = others.collect();
        Ok([own].into_iter().chain(others).collect())
    }

    /// Asks a host for its facts, for at most `time`.
    fn fill_in(&self, host: &mut HostView, time: Duration) {
        if host.is_local {
            host.facts = Some(self.starter.own_facts(None, &GuestFiles::default()).to_api());
            return;
        }
        let peers = self.migrations.peers();
        match peers.ask_facts(&host.name, None, GuestFiles::default(), Instant::now() + time) {
            Ok(facts) => (host.reachable, host.facts) = (Some(true), Some(facts.to_api())),
            // A host that is in contact may be slow.
            Err(error) => (host.reachable, host.note) = (Some(peers.contact(&host.name)), error_chain(&error)),
        }
        host.problems = self.starter.network_problems(&host.name).to_api();
    }
}
