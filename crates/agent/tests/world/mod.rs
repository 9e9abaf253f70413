//! Is two agents' shares in talking to each other, on the loopback interface.

#![allow(dead_code)] // each test takes of it what it needs

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use skein_agent::{
    AcceptorSettings, Addresses, Allow, Answer, CONTROL_VERSIONS, ControlVersions, DialerSettings, Offer, PeerEvent,
    Peers, PeersSettings, Question, Rails, WantedConnections,
};
use skein_dataplane::source::{DirtyTracking, RateShare, SourcePages, SourcePagesSettings};
use skein_dataplane::{Dialer, RunningSession, StreamContent, Width};
use skein_handover::{Intent, Message, MigrationId};
use skein_identity::{ClusterCa, Identity, Validity};
use skein_inventory::facts::{GuestFiles, HostFacts};

pub const SECOND: Duration = Duration::from_secs(1);
/// The time within which anything happens, on a busy machine, too.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An agent's share, and what its peers do.
pub struct Node {
    pub peers: Peers,
    pub events: Receiver<PeerEvent>,
}

/// Returns an error with its causes, in a line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Opens a stream to a destination of the other end.
pub fn open(session: &Arc<RunningSession>, destination: &str) -> UnixStream {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_read_timeout(Some(PATIENCE)).unwrap();
    near.set_write_timeout(Some(PATIENCE)).unwrap();
    session.open(destination, far.into(), StreamContent::Bytes).unwrap();
    near
}

pub fn loopback() -> Addresses {
    Addresses { nics: vec!["lo".into()], ..Addresses::default() }
}

pub fn start(dir: &Path, identity: &Identity, port: u16) -> Node {
    start_as(dir, identity, port, CONTROL_VERSIONS)
}

/// Starts an agent that speaks other versions of the protocol.
pub fn start_as(dir: &Path, identity: &Identity, port: u16, versions: ControlVersions) -> Node {
    start_at(dir, identity, port, versions, loopback())
}

fn start_at(dir: &Path, identity: &Identity, port: u16, versions: ControlVersions, addresses: Addresses) -> Node {
    let settings = PeersSettings {
        acceptor: AcceptorSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], port)),
            addresses,
            allow_plain_data: false,
            outage: Duration::from_secs(60),
        },
        allow: Allow::new(&["/nowhere/*"]).unwrap(),
        hosts_file: dir.join("hosts.toml"),
        migration_network: "/nowhere/migration-network.toml".into(),
        hosts_cache: None,
        connections: WantedConnections::Fixed(1),
        plain_data: false,
        versions,
    };
    let name = identity.host().to_owned();
    let answer = move |peer: &str, question: Question| match question {
        Question::HostFacts { files, .. } if files.opened == [Path::new("panic")] => panic!("as it was asked to"),
        Question::HostFacts { files, .. } if files.opened == [Path::new("no")] => Err(format!("not to {peer}")),
        Question::HostFacts { files, .. } => Ok(Answer::HostFacts(Box::new(facts(&name, files.opened)))),
        Question::Composition { .. } => Ok(Answer::Composition(Box::default())),
        Question::Leader => Ok(Answer::Leader { acknowledged: true }),
        Question::Network => Ok(Answer::Network(Vec::new())),
    };
    let (sender, events) = sync_channel(64);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Peers::start(settings.clone(), identity, Arc::new(answer.clone()), sender.clone()) {
            Ok(peers) => return Node { peers, events },
            // The agent before has not closed its socket yet.
            Err(error) => assert!(error.is_in_use() && Instant::now() < deadline, "{error}: {}", error.source),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

pub fn facts(name: &str, bridges: Vec<PathBuf>) -> HostFacts {
    let facts = serde_json::json!({
        "name": name, "boot_id": null, "ram_bytes": 1, "ram_available_bytes": 1, "hugepages": [], "cpus": 1,
        "cpu_vendor": "", "cpu_flags": [], "kvm": {"Ok": null}, "qemu": {"Err": "none"}, "bridges": bridges,
        "taps_in_use": [], "vms": [], "incoming": {"limit": 1, "used": 0}, "outgoing": {"limit": 1, "used": 0},
        "journal": {"Ok": null}, "files": [], "nics": [],
    });
    serde_json::from_value(facts).unwrap()
}

pub fn question(file: &str) -> Question {
    Question::HostFacts { qemu: None, files: GuestFiles { opened: vec![file.into()], ..GuestFiles::default() } }
}

/// Returns an offer, with a mark to know it by.
pub fn offer(mark: &str) -> Arc<Offer> {
    let offer = serde_json::json!({
        "launch": {"command-line": {"program": "/usr/bin/qemu", "args": []}},
        "channels": 0, "downtime_limit_ms": 300, "transport": "auto", "indirect": mark, "priority": 50,
    });
    Arc::new(Offer::from_json(&offer).unwrap())
}

pub fn message(id: u64, mark: &str) -> Message<Arc<Offer>> {
    Message::Intent {
        id: MigrationId(id),
        intent: Intent::Prepare,
        vm: "web".into(),
        priority: 1,
        offer: Some(offer(mark)),
        detail: String::new(),
    }
}

impl Node {
    /// Waits for an event, past others.
    pub fn wait(&self, wanted: &PeerEvent, patience: Duration) -> Duration {
        let begin = Instant::now();
        loop {
            match self.events.recv_timeout(patience.saturating_sub(begin.elapsed())) {
                Ok(event) if event == *wanted => return begin.elapsed(),
                Ok(_) => {}
                Err(error) => panic!("no {wanted:?} within {patience:?}: {error}"),
            }
        }
    }

    /// Returns the next event that is no news of contact.
    pub fn next(&self, patience: Duration) -> PeerEvent {
        let end = Instant::now() + patience;
        loop {
            match self.events.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(PeerEvent::Contact(..)) => {}
                Ok(event) => return event,
                Err(error) => panic!("nothing within {patience:?}: {error}"),
            }
        }
    }

    pub fn contact(&self, host: &str, contact: bool, patience: Duration) -> Duration {
        self.wait(&PeerEvent::Contact(host.into(), contact), patience)
    }

    pub fn message(&self, host: &str, message: Message<Arc<Offer>>) {
        self.wait(&PeerEvent::Message(host.into(), message), PATIENCE);
    }

    pub fn is_quiet(&self, time: Duration) -> bool {
        self.events.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }
}

pub struct World {
    pub dir: tempfile::TempDir,
    pub ca: ClusterCa,
    /// The rails of all agents.
    pub rails: Option<Arc<dyn Rails>>,
    /// Whether migrations may go over them.
    pub may_use_rdma: bool,
}

impl World {
    pub fn new() -> World {
        World {
            dir: tempfile::tempdir().unwrap(),
            ca: ClusterCa::create("test").unwrap(),
            rails: None,
            may_use_rdma: true,
        }
    }

    pub fn identity(&self, name: &str) -> Identity {
        self.ca.issue(name, Validity::days(1)).unwrap()
    }

    pub fn start(&self, name: &str) -> Node {
        let addresses = Addresses { rails: self.rails.clone(), ..loopback() };
        start_at(self.dir.path(), &self.identity(name), 0, CONTROL_VERSIONS, addresses)
    }

    /// Starts two agents that know where each other is.
    pub fn pair(&self) -> (Node, Node) {
        let (a, b) = (self.start("a"), self.start("b"));
        self.list(&[("a", a.peers.port()), ("b", b.peers.port())]);
        (a, b)
    }

    pub fn list(&self, hosts: &[(&str, u16)]) {
        let host = |(name, port): &(&str, u16)| format!("[[host]]\nname = '{name}'\naddress = ['127.0.0.1:{port}']\n");
        let text: String = hosts.iter().map(host).collect();
        let new = self.path("hosts.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path("hosts.toml")).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Dials a session with an agent, for a test that may say anything.
    pub fn session(&self, name: &str, to: &Node) -> Arc<Dialer> {
        self.session_at(name, to.peers.port())
    }

    /// Dials a session with the agent at a port, again and again while a busy machine does not shake hands in time.
    pub fn session_at(&self, name: &str, port: u16) -> Arc<Dialer> {
        let settings = DialerSettings {
            to: vec![SocketAddr::from(([127, 0, 0, 1], port))],
            host: None,
            addresses: loopback(),
            connections: WantedConnections::Fixed(1),
            tells_queues: false,
            plain_data: false,
            outage: Duration::from_secs(60),
        };
        let (identity, end) = (self.identity(name), Instant::now() + PATIENCE);
        loop {
            match Dialer::start(settings.clone(), &identity) {
                Ok((dialer, _)) => return dialer,
                Err(error) => assert!(Instant::now() < end, "{}", chain(&error)),
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Returns pages of which none are looked for.
pub fn pages() -> Arc<SourcePages> {
    SourcePages::new(SourcePagesSettings {
        packers: None,
        width: Width::All,
        rate: RateShare::unlimited(),
        direct: false,
        may_use_rdma: true,
        channels: 0,
        key: [0; 16],
        ram: None,
        delta_memory: 0.0,
        kept_marks: None,
        dirty_tracking: DirtyTracking::Exact,
    })
}
