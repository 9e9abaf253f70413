//! Is the agent itself: the daemon of a host.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use skein_dataplane::source::PackerPool;
use skein_dataplane::{AcceptorSettings, Addresses, SessionSnapshot};
use skein_handover::MigrationLimits;
use skein_host::Kernel;
use skein_hypervisor::QemuHypervisor;
use skein_hypervisor::kvm::KvmError;
use skein_identity::Identity;
use skein_inventory::HostsFile;
use skein_journal::OpenError;
use skein_link::ListenError;
use skein_metrics::{ScrapeAddress, ScrapeServer, ScrapeService};
use skein_network::WantedConnections;
use thiserror::Error;
use tracing::{info, warn};

use crate::Allow;
use crate::attempts::{AttemptTable, RequestStore};
use crate::catch::Catcher;
use crate::consoles::{Consoles, IDLE_TIME};
use crate::controllers::{
    Acknowledged, ControllerFiles, Controllers, ControllersError, LeaderQuestions, QuestionTimes, now_ms,
};
use crate::dirs::Dirs;
use crate::host_update::{HostUpdates, UpdateCommands};
use crate::metrics::{AgentCollector, Measured};
use crate::migrations::{Inquiry, Migrations, open_journal};
use crate::named_starts::NamedStarts;
use crate::own_socket::{OwnSocket, SocketError};
use crate::peers::{Answer, CONTROL_VERSIONS, Peers, PeersSettings, Question};
use crate::probe::ProbeStore;
use crate::room::HostRoom;
use crate::samples::Recorder;
use crate::server::{MigrationStarter, RequestServer, ServedHost, host_facts, serve};
use crate::transport::packers;
use crate::vms::Vms;
use crate::watchdog::WatchdogKeeper;
use crate::watched_file::WatchedFile;

/// The settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// How the agent takes connections, and the NICs and outage of the sessions that it begins.
    pub acceptor: AcceptorSettings,
    /// The sockets that tunnels may connect to.
    pub allow: Allow,
    /// The file of the other hosts; need not exist.
    pub hosts_file: PathBuf,
    /// The file of the migration network ([`skein_inventory::MigrationNetwork`]); need not exist.
    pub migration_network: PathBuf,
    /// The data connections on each path of the sessions that the agent begins.
    pub connections: WantedConnections,
    /// Whether the agent sends bulk data unencrypted.
    pub plain_data: bool,
    /// A program that calls [`crate::pack_pages`], and its arguments. The agent starts the program when there are pages
    /// to compress; without a program pages go uncompressed.
    pub packer_command: Vec<OsString>,
    /// Where metrics are served; `None`: nowhere.
    pub metrics: Option<ScrapeAddress>,
    /// The settings of VMs and their migrations; `None`: an agent for tunnels and the migration network only.
    pub vms: Option<VmSettings>,
}

impl AgentSettings {
    /// Returns the settings of an agent that is the end of tunnels and nothing else.
    pub fn tunnels(acceptor: AcceptorSettings, allow: Allow) -> AgentSettings {
        AgentSettings {
            acceptor,
            allow,
            hosts_file: PathBuf::new(),
            migration_network: PathBuf::new(),
            connections: WantedConnections::Auto,
            plain_data: false,
            packer_command: Vec::new(),
            metrics: None,
            vms: None,
        }
    }

    fn of_peers(self, hosts_cache: Option<PathBuf>) -> PeersSettings {
        PeersSettings {
            acceptor: self.acceptor,
            allow: self.allow,
            hosts_file: self.hosts_file,
            migration_network: self.migration_network,
            hosts_cache,
            connections: self.connections,
            plain_data: self.plain_data,
            versions: CONTROL_VERSIONS,
        }
    }
}

/// The settings of an agent that has VMs.
#[derive(Clone, Debug)]
pub struct VmSettings {
    /// The agent's directories.
    pub dirs: Dirs,
    /// The file of the cluster's controllers; need not exist.
    pub controllers_file: PathBuf,
    /// The QEMU program for definitions that name none; `None`: `$SKEIN_QEMU`, or `qemu-system-x86_64`.
    pub qemu: Option<PathBuf>,
    /// The bounds of what is done at once.
    pub limits: MigrationLimits,
    /// A program that calls [`crate::keep_channels`], and its arguments. Migrations away from this host start the
    /// program.
    pub keeper_command: Vec<OsString>,
    /// The command with which a controller may have this host shut down once it has no guests, and its arguments;
    /// empty: none.
    pub power_off: Vec<OsString>,
    /// The commands with which a controller may have this host updated and booted once it has no guests.
    pub update: UpdateCommands,
    /// The watchdog's device that is to reset the host once the agent has no leader; `None`: none.
    pub watchdog: Option<PathBuf>,
}

/// The reason why an agent did not start.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum AgentError {
    #[error("cannot listen for other hosts")]
    Listen(#[from] ListenError),
    #[error("its journal cannot be opened")]
    Journal(#[from] OpenError),
    #[error("its directories")]
    Directories(#[from] io::Error),
    #[error("its socket for commands")]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Controllers(#[from] ControllersError),
}

/// A running agent. Dropping it closes every session; VMs go on.
pub struct Agent {
    /// Dropped first: nothing more is caught once sessions close.
    catcher: Mutex<Option<Catcher>>,
    scrapers: Option<ScrapeService>,
    inner: Inner,
}

enum Inner {
    Tunnels(Arc<Peers>),
    Vms {
        server: Arc<RequestServer>,
        controllers: Controllers,
        serving: Mutex<Option<JoinHandle<()>>>,
        /// Dropped last: what stops feeding it is the end of the agent.
        watchdog: Mutex<Option<WatchdogKeeper>>,
    },
}

impl Agent {
    /// Starts to listen and serve, and takes up VMs and migrations of the agent that was here before.
    pub fn start(settings: AgentSettings, identity: &Identity) -> Result<Agent, AgentError> {
        let allowed = settings.allow.to_string();
        let network = settings.migration_network.clone();
        let packers = packers(&settings.packer_command);
        let packers = packers.inspect_err(|error| warn!("pages are not compressed: {error}")).ok();
        let metrics = settings.metrics.clone();
        let inner = match settings.vms.clone() {
            None => Inner::Tunnels(Arc::new(tunnels(settings, identity)?)),
            Some(vms) => with_vms(settings, vms, packers.clone(), identity)?,
        };
        let mut agent = Agent { catcher: Mutex::default(), scrapers: None, inner };
        if let Some(address) = metrics {
            let collector = Arc::new(AgentCollector::new(agent.measured(), packers.as_ref()));
            // Guests matter more than who looks at them: a wrong address does not keep the agent from running.
            agent.scrapers = Some(ScrapeService::start(move || {
                let collector = collector.clone();
                ScrapeServer::start(&address, move |samples| collector.collect(samples))
            }));
        }
        let catcher = Catcher::start(&network, agent.peers().holder(), packers);
        *agent.catcher.lock() = catcher.inspect_err(|error| warn!("the migration network fails: {error}")).ok();
        info!("agent of {} listens on port {}; tunnels may lead to {allowed}", identity.host(), agent.port());
        Ok(agent)
    }

    fn peers(&self) -> &Peers {
        match &self.inner {
            Inner::Tunnels(peers) => peers,
            Inner::Vms { server, .. } => server.migrations.peers(),
        }
    }

    fn measured(&self) -> Measured {
        match &self.inner {
            Inner::Tunnels(peers) => Measured::Tunnels(Arc::downgrade(peers)),
            Inner::Vms { server, .. } => Measured::Vms(Arc::downgrade(server)),
        }
    }

    /// Returns where metrics are served, with the port that was chosen for port 0. `None`: nowhere, or not yet.
    pub fn metrics_address(&self) -> Option<&ScrapeAddress> {
        self.scrapers.as_ref().and_then(ScrapeService::address)
    }

    /// Returns the port that the agent listens on.
    pub fn port(&self) -> u16 {
        self.peers().port()
    }

    /// Returns the state of each session at this moment.
    pub fn snapshots(&self) -> Vec<SessionSnapshot> {
        self.peers().snapshots()
    }

    /// Closes every session and stops listening. VMs go on; the next agent takes up their migrations.
    pub fn stop(&self) {
        self.catcher.lock().take();
        if let Some(scrapers) = &self.scrapers {
            scrapers.stop();
        }
        match &self.inner {
            Inner::Tunnels(peers) => peers.stop(),
            Inner::Vms { server, controllers, serving, watchdog } => {
                controllers.stop();
                if !server.stopping.swap(true, Ordering::SeqCst) {
                    server.attempts.stop();
                    server.samples.stop();
                    server.migrations.stop();
                }
                if let Some(serving) = serving.lock().take() {
                    let _ = serving.join();
                }
                watchdog.lock().take();
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
    }
}

fn tunnels(settings: AgentSettings, identity: &Identity) -> Result<Peers, AgentError> {
    let peers = settings.of_peers(None);
    let (events, _) = sync_channel(1);
    Ok(Peers::start(peers, identity, Arc::new(|_, _| Err("that agent is for tunnels only".into())), events)?)
}

/// Returns whether this host keeps the RAM of guests that leave.
fn keeps_ram(hosts: &WatchedFile<HostsFile>, host: &str) -> bool {
    match hosts.content() {
        Ok(hosts) => hosts.kept_ram_policy_of(host).is_some(),
        Err(error) => {
            warn!("a VM gets RAM that cannot be kept: {}", crate::error_chain(&error));
            false
        }
    }
}

/// Has guests get shared RAM if NICs may write that, or if the file of hosts says that this host keeps RAM.
fn share_ram_by(vms: &Vms, settings: &AgentSettings, host: String) {
    let hosts = WatchedFile::new(&settings.hosts_file, HostsFile::parse);
    let is_written = settings.acceptor.addresses.rails.as_ref().is_some_and(|rails| rails.allows_plaintext());
    vms.shares_ram_if(move || is_written || keeps_ram(&hosts, &host));
}

/// What answers the questions of other hosts' agents.
struct OwnHost {
    name: String,
    vms: Arc<Vms>,
    rooms: Arc<HostRoom>,
    /// The QEMU program for definitions that name none.
    qemu: Option<PathBuf>,
    acknowledged: Arc<Acknowledged>,
    probes: Arc<ProbeStore>,
}

impl OwnHost {
    fn answer(&self, question: Question, inquiry: &Inquiry) -> Result<Answer, String> {
        match question {
            Question::HostFacts { qemu, files } => {
                let qemu = qemu.or_else(|| self.qemu.clone());
                let facts = host_facts(&self.name, &self.vms, &self.rooms, inquiry, qemu, &files, &self.probes);
                Ok(Answer::HostFacts(Box::new(facts)))
            }
            Question::Composition { migration } => {
                let vm = self.vms.of_migration(migration).ok_or("that migration takes no guest of this host away")?;
                vm.promise_composition()
                    .map(|told| Answer::Composition(Box::new(told)))
                    .map_err(|error| crate::error_chain(&error))
            }
            Question::Leader => Ok(Answer::Leader { acknowledged: self.acknowledged.has_leader() }),
            Question::Network => {
                skein_network::read(&Kernel::new()).map(Answer::Network).map_err(|error| crate::error_chain(&error))
            }
        }
    }
}

/// Finds whether KVM and rails work, so that the first caller does not wait for that. Without a thread the first call
/// does.
fn try_devices(vms: Arc<Vms>, addresses: Addresses) {
    let _ = std::thread::Builder::new().name("try-rails".into()).spawn(move || addresses.try_rails());
    let _ = std::thread::Builder::new().name("kvm".into()).spawn(move || match vms.kvm_works() {
        Ok(()) => {}
        Err(error @ KvmError::Device(std::io::ErrorKind::NotFound)) => info!("guests run under TCG: {error}"),
        Err(error) => warn!("guests run under TCG: {error}; {}", error.cure()),
    });
}

fn serve_commands(server: Arc<RequestServer>, socket: OwnSocket) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("commands".into()).spawn(move || serve(&server, &socket))
}

/// Has a host take no guest while it may be booted.
fn close_while_booting(rooms: &HostRoom, updates: Arc<HostUpdates>) {
    rooms.closed_while(move || updates.boots());
}

fn with_vms(
    settings: AgentSettings,
    vms: VmSettings,
    packers: Option<Arc<PackerPool>>,
    identity: &Identity,
) -> Result<Inner, AgentError> {
    vms.dirs.create()?;
    // The agent that has the journal has the directories. So the journal is opened before anything there is touched.
    let journal = open_journal(&vms.dirs.journal())?;
    // No other agent has the journal any more.
    let ended_ms = now_ms();
    let acknowledged = Arc::new(Acknowledged::new(identity.host()));
    let keep = |device: PathBuf| {
        WatchdogKeeper::start(&device, identity.host(), acknowledged.clone(), (vms.dirs.watchdog(), ended_ms))
    };
    let watchdog = vms.watchdog.map(keep).transpose()?;
    let socket = OwnSocket::bind(&vms.dirs.socket(), 0o600)?;
    // The rest of the time for preparing a migration is for what comes after QEMU's first answer.
    let known = Vms::open(vms.dirs.clone(), Arc::new(QemuHypervisor), vms.qemu.clone(), vms.limits.waits.prepare / 2)?;
    share_ram_by(&known, &settings, identity.host().to_owned());
    try_devices(known.clone(), settings.acceptor.addresses.clone());
    let (listen, nics) = (settings.acceptor.listen, settings.acceptor.addresses.nics.clone());
    let (controllers_file, term_file) = (vms.controllers_file, vms.dirs.term());
    let (name, controllers_cache) = (identity.host().to_owned(), vms.dirs.controllers_cache());
    let (peers, rooms) = (settings.of_peers(Some(vms.dirs.hosts_cache())), HostRoom::new(name.clone(), known.clone()));
    let (samples, updates) = (vms.dirs.migrations(), Arc::new(HostUpdates::new(&vms.dirs.state, vms.update)));
    close_while_booting(&rooms, updates.clone());
    let (qemu, word, kept) = (vms.qemu.clone(), acknowledged.clone(), Arc::new(ProbeStore::new(vms.dirs.probes())));
    let (room, probes) = (rooms.clone(), kept.clone());
    let own = OwnHost { name, vms: known.clone(), rooms: room, qemu, acknowledged: word, probes };
    let (store, named_starts) = (RequestStore::new(vms.dirs.attempts()), NamedStarts::new(vms.dirs.starts()));
    let questions = LeaderQuestions::new(&controllers_file, QuestionTimes::default());
    let migrations = Arc::new(Migrations::start(
        vms.dirs,
        journal,
        rooms.clone(),
        vms.limits,
        vms.keeper_command,
        packers,
        |events, inquiry| {
            let answer = move |_: &str, question| own.answer(question, &inquiry);
            Ok::<_, AgentError>(Peers::start(peers, identity, Arc::new(answer), events)?)
        },
    )?);
    watchdog.iter().for_each(|watchdog| watchdog.ask_by(&migrations));
    let starter = Arc::new(MigrationStarter {
        vms: known.clone(),
        migrations: migrations.clone(),
        rooms: rooms.clone(),
        qemu: vms.qemu,
        probes: kept,
        leader_questions: questions.clone(),
    });
    let attempts = AttemptTable::start(starter.clone(), store)?;
    migrations.on_end(attempts.on_end());
    let server = Arc::new(RequestServer {
        vms: known,
        migrations,
        rooms,
        starter,
        addresses: vec![listen.to_string()],
        power_off: vms.power_off,
        updates,
        stopping: AtomicBool::new(false),
        clients: Arc::default(),
        followers: Arc::default(),
        attempts,
        named_starts,
        leader_questions: questions,
        acknowledged: acknowledged.clone(),
        samples: Recorder::new(samples),
        forgotten: Mutex::default(),
        consoles: Consoles::new(IDLE_TIME),
    });
    server.samples.start(server.clone())?;
    let serving = serve_commands(server.clone(), socket)?;
    let files = ControllerFiles { list: &controllers_file, learnt: &controllers_cache, term: &term_file };
    let controllers = dial_controllers(&server, (listen, nics), files, identity, acknowledged)?;
    Ok(Inner::Vms { server, controllers, serving: Mutex::new(Some(serving)), watchdog: Mutex::new(watchdog) })
}

/// Keeps contact with controllers. Other hosts' agents dial this one at the address and the NICs.
fn dial_controllers(
    server: &Arc<RequestServer>,
    (mut listen, nics): (SocketAddr, Vec<String>),
    files: ControllerFiles<'_>,
    identity: &Identity,
    acknowledged: Arc<Acknowledged>,
) -> Result<Controllers, ControllersError> {
    listen.set_port(server.migrations.peers().port());
    let host = Arc::new(ServedHost::new(server.clone(), listen, nics));
    let (questions, samples) = (server.leader_questions.clone(), server.samples.clone());
    Controllers::start(files, identity, host, acknowledged, questions, samples)
}
