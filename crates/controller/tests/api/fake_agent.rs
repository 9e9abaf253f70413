//! Agents that speak the link over TLS, and hosts on which guests are nothing but names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use skein_api::{
    ConsoleBytes, ConsoleRequest, ConsoleState, ConsoleView, HostFacts, HostLoad, HostReport, HostSample,
    HostUpdateView, Migration, MigrationId, MigrationRecord, MigrationSample, NicRates, Outcome, Refusal, Reply,
    Request, Role, Term, ToAgent, ToController, UpdateRunState, VmOrigin, VmState, VmView,
};
use skein_identity::{ClusterCa, Identity, Validity, controller_client_config, controller_name};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The hosts, whoever controls them.
#[derive(Default)]
pub struct World {
    hosts: Mutex<BTreeMap<String, HostState>>,
    /// Whether no migration ends.
    pub holds: AtomicBool,
}

#[derive(Default)]
struct HostState {
    vms: BTreeMap<String, VmView>,
    migrations: BTreeMap<MigrationId, Migration>,
    asked: BTreeMap<String, MigrationId>,
    highest: Term,
    /// What the agent was told of where hosts are.
    told: BTreeMap<String, Vec<String>>,
    /// What the agent was told of where controllers are.
    controllers: BTreeMap<String, String>,
    refused: u32,
    /// What the agent was told by controllers that do not take its host.
    turned_away: Vec<Refusal>,
    /// Whether the agent is to ask for another certificate.
    asks_renewal: bool,
    /// What it was answered: a certificate in PEM.
    renewed: Option<Result<String, Refusal>>,
    /// What the agent is to ask of what a person wants, and what it was answered, by number.
    asks_by_hand: Vec<ToController>,
    by_hand: BTreeMap<u64, Result<(), (bool, Refusal)>>,
    /// The migrations that controllers watch.
    watched: BTreeSet<MigrationId>,
    /// What was asked of consoles.
    consoles: Vec<ConsoleRequest>,
}

/// How long a migration takes.
const MIGRATION: Duration = Duration::from_millis(300);
const GIB: u64 = 1 << 30;

impl World {
    pub fn add_vm(&self, host: &str, name: &str) {
        let vm = vm_view(name, VmState::Running);
        self.hosts.lock().entry(host.into()).or_default().vms.insert(name.into(), vm);
    }

    /// Ends all guests of a host, as its power does.
    pub fn end_vms(&self, host: &str) {
        let mut hosts = self.hosts.lock();
        hosts.entry(host.into()).or_default().vms.values_mut().for_each(|vm| vm.state = VmState::Stopped);
    }

    /// Returns the VMs that run on a host.
    pub fn running(&self, host: &str) -> BTreeSet<String> {
        let hosts = self.hosts.lock();
        let vms = hosts.get(host).into_iter().flat_map(|host| host.vms.values());
        vms.filter(|vm| vm.state == VmState::Running).map(|vm| vm.name.clone()).collect()
    }

    pub fn told(&self, host: &str) -> BTreeMap<String, Vec<String>> {
        self.hosts.lock().get(host).map(|host| host.told.clone()).unwrap_or_default()
    }

    pub fn controllers(&self, host: &str) -> BTreeMap<String, String> {
        self.hosts.lock().get(host).map(|host| host.controllers.clone()).unwrap_or_default()
    }

    pub fn turned_away(&self, host: &str) -> Vec<Refusal> {
        self.hosts.lock().get(host).map(|host| host.turned_away.clone()).unwrap_or_default()
    }

    /// Has a host's agent ask for another certificate. What it was answered before is forgotten.
    pub fn ask_renewal(&self, host: &str) {
        let mut hosts = self.hosts.lock();
        let state = hosts.entry(host.into()).or_default();
        (state.asks_renewal, state.renewed) = (true, None);
    }

    /// Returns whether a host's agent is to ask for another certificate, once.
    fn is_to_renew(&self, host: &str) -> bool {
        self.hosts.lock().get_mut(host).is_some_and(|host| std::mem::take(&mut host.asks_renewal))
    }

    /// Returns what a host's agent was answered, once.
    pub fn renewed(&self, host: &str) -> Option<Result<String, Refusal>> {
        self.hosts.lock().get_mut(host)?.renewed.take()
    }

    /// Has a host's agent ask whether something may be done by hand.
    pub fn ask_by_hand(&self, host: &str, question: ToController) {
        self.hosts.lock().entry(host.into()).or_default().asks_by_hand.push(question);
    }

    /// Returns what a host's agent was answered of that: if it may not, whether that may pass, and why.
    pub fn may(&self, host: &str, ask: u64) -> Option<Result<(), (bool, Refusal)>> {
        self.hosts.lock().get_mut(host)?.by_hand.remove(&ask)
    }

    /// Returns the migrations that controllers watch at a host.
    pub fn watched(&self, host: &str) -> BTreeSet<MigrationId> {
        self.hosts.lock().get(host).map(|host| host.watched.clone()).unwrap_or_default()
    }

    /// Returns a sample of each migration that is watched at a host.
    fn samples(&self, host: &str) -> Vec<MigrationSample> {
        let hosts = self.hosts.lock();
        let Some(state) = hosts.get(host) else { return Vec::new() };
        let watched = state.watched.iter().filter_map(|id| state.migrations.get(id));
        watched.map(|migration| sample(migration.clone())).collect()
    }

    /// Answers what somebody only wants to see of a host.
    fn look(&self, host: &str, request: &Request) -> Reply {
        let hosts = self.hosts.lock();
        let state = &hosts[host];
        let found = match request {
            Request::MigrationRecord { id } => state.migrations.values().find(|of| of.id.to_string() == *id),
            _ => None,
        };
        match found {
            Some(migration) => Reply::MigrationRecord(Box::new(MigrationRecord {
                migration: migration.clone(),
                samples: vec![sample(migration.clone())],
            })),
            None => Reply::Error(Refusal { message: "there is none here".into(), cure: String::new() }),
        }
    }

    /// Answers what is asked of a console: it says what was typed.
    fn console(&self, host: &str, asked: ConsoleRequest) -> Reply {
        let mut hosts = self.hosts.lock();
        let state = hosts.entry(host.into()).or_default();
        let runs = state.vms.get(&asked.name).is_some_and(|vm| vm.state == VmState::Running);
        let (output, at) = (ConsoleBytes(asked.input.0.clone()), asked.after);
        let typed = asked.input_at + output.0.len() as u64;
        let other = state.consoles.iter().rev().find(|of| of.name == asked.name && of.session != asked.session);
        let holder = other.map(|other| other.by.clone());
        state.consoles.push(asked);
        if !runs {
            return Reply::Error(Refusal { message: "it is not running".into(), cure: "start it".into() });
        }
        let state = if holder.is_some() { ConsoleState::Held } else { ConsoleState::Open };
        Reply::Console(Box::new(ConsoleView { state, output, at, typed, holder }))
    }

    /// Returns what was asked of consoles at a host.
    pub fn consoles(&self, host: &str) -> Vec<ConsoleRequest> {
        self.hosts.lock().get(host).map(|host| host.consoles.clone()).unwrap_or_default()
    }

    pub fn highest(&self, host: &str) -> Term {
        self.hosts.lock().get(host).map(|host| host.highest).unwrap_or_default()
    }

    /// Returns how many migrations were ever begun.
    pub fn migrations(&self) -> usize {
        let hosts = self.hosts.lock();
        let ids: BTreeSet<MigrationId> = hosts.values().flat_map(|host| host.migrations.keys().copied()).collect();
        ids.len()
    }

    fn report(&self, host: &str, sequence: u64, told: &mut BTreeSet<String>) -> HostReport {
        let mut hosts = self.hosts.lock();
        let state = hosts.entry(host.into()).or_default();
        let now: BTreeSet<String> = state.vms.keys().cloned().collect();
        let gone = told.difference(&now).cloned().collect();
        *told = now;
        HostReport {
            sequence,
            facts: (sequence == 1).then(|| Box::new(facts(host))),
            load: Some(HostLoad { cpu_millicores: 100, ram_bytes: 64 * GIB, ..HostLoad::default() }),
            nics: vec![NicRates { name: "eth0".into(), send_bits_per_s: 7, ..NicRates::default() }],
            vms: state.vms.values().cloned().collect(),
            vms_gone: gone,
            migrations: state.migrations.values().cloned().collect(),
            ..HostReport::default()
        }
    }

    /// Does what a command asks for, if its term is not below the highest.
    fn command(self: &Arc<World>, host: &str, term: Term, id: Option<String>, request: Request) -> Result<Reply, Term> {
        let mut hosts = self.hosts.lock();
        let state = hosts.entry(host.into()).or_default();
        if term < state.highest {
            state.refused += 1;
            return Err(state.highest);
        }
        state.highest = term;
        let refused = |message: &str| Ok(Reply::Error(Refusal { message: message.into(), cure: String::new() }));
        match &request {
            Request::VmStart { from, .. } => {
                let name = match from {
                    VmOrigin::Definition { file, .. } => file.trim_end_matches(".toml"),
                    VmOrigin::Name(name) => name,
                };
                let vm = vm_view(name, VmState::Running);
                state.vms.insert(vm.name.clone(), vm.clone());
                return Ok(if id.is_some() { Reply::Vm(Box::new(vm)) } else { Reply::Done });
            }
            Request::VmStop { name, .. } => {
                let Some(vm) = state.vms.get_mut(name) else { return refused("there is no such VM here") };
                vm.state = VmState::Stopped;
                return Ok(Reply::Vm(Box::new(vm.clone())));
            }
            Request::HostClose { .. } => return Ok(Reply::Done),
            Request::HostUpdate { .. } => {
                let is_empty = state.vms.values().all(|vm| vm.state == VmState::Stopped);
                let state = if is_empty { UpdateRunState::Done } else { UpdateRunState::Failed };
                return Ok(Reply::HostUpdate(HostUpdateView { state, message: String::new() }));
            }
            Request::VmForget { name } => {
                state.vms.remove(name);
                return Ok(Reply::Done);
            }
            _ => {}
        }
        if let Request::MigrationWithdraw { id } = &request {
            let before = state.asked.get(id).map(|id| Reply::Migration(Box::new(state.migrations[id].clone())));
            return Ok(before.unwrap_or(Reply::Done));
        }
        let Request::Migrate { vm, to, detach: true, .. } = request else { return refused("not here") };
        let Some(name) = id else { return refused("it has no name") };
        if let Some(before) = state.asked.get(&name) {
            return Ok(Reply::Migration(Box::new(state.migrations[before].clone())));
        }
        let Some(view) = state.vms.get_mut(&vm).filter(|vm| vm.state == VmState::Running && vm.migration.is_none())
        else {
            return refused("there is no such VM here, or it moves");
        };
        let id = MigrationId(rand_id());
        view.migration = Some(id);
        let mut leaving = view.clone();
        let migration = migration(id, &vm, host, &to, Role::Source);
        state.migrations.insert(id, migration.clone());
        state.asked.insert(name, id);
        leaving.state = VmState::Incoming;
        let target = hosts.entry(to.clone()).or_default();
        target.vms.insert(vm.clone(), leaving);
        target.migrations.insert(id, Migration { role: Role::Target, ..migration.clone() });
        drop(hosts);
        let (world, source) = (self.clone(), host.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(MIGRATION).await;
            while world.holds.load(Ordering::SeqCst) {
                tokio::time::sleep(MIGRATION / 10).await;
            }
            world.moved(id, &vm, &source, &to);
        });
        Ok(Reply::Migration(Box::new(migration)))
    }

    fn moved(&self, id: MigrationId, vm: &str, source: &str, target: &str) {
        let mut hosts = self.hosts.lock();
        hosts.get_mut(source).unwrap().vms.remove(vm).unwrap();
        hosts.get_mut(target).unwrap().vms.insert(vm.into(), vm_view(vm, VmState::Running));
        for host in [source, target] {
            let migration = hosts.get_mut(host).unwrap().migrations.get_mut(&id).unwrap();
            migration.outcome = Some(Outcome::Moved);
            migration.downtime_ms = Some(12);
        }
    }
}

/// An agent that runs until this is dropped.
pub struct FakeAgent {
    links: JoinSet<()>,
}

impl FakeAgent {
    /// Starts the agent of a host, which keeps contact with these controllers.
    pub fn start(ca: &ClusterCa, world: &Arc<World>, host: &str, controllers: Vec<SocketAddr>) -> FakeAgent {
        FakeAgent::start_as(&ca.issue(host, Validity::days(1)).unwrap(), world, controllers)
    }

    /// Starts the agent of a host with this identity.
    pub fn start_as(identity: &Identity, world: &Arc<World>, controllers: Vec<SocketAddr>) -> FakeAgent {
        let connector = TlsConnector::from(controller_client_config(identity).unwrap());
        let mut links = JoinSet::<()>::new();
        for address in controllers {
            let (world, host, connector) = (world.clone(), identity.host().to_owned(), connector.clone());
            links.spawn(async move {
                loop {
                    if let Ok(socket) = TcpStream::connect(address).await
                        && let Ok(stream) = connector.connect(controller_name(), socket).await
                    {
                        // Whatever ends a connection, the next begins soon.
                        let _ = link(&world, &host, stream).await;
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            });
        }
        FakeAgent { links }
    }

    /// Ends the agent, and waits for the end: after this the agent sends nothing. A drop only begins the end.
    pub async fn end(mut self) {
        self.links.shutdown().await;
    }
}

async fn link(world: &Arc<World>, host: &str, stream: TlsStream<TcpStream>) -> std::io::Result<()> {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut lines = BufReader::new(reader).lines();
    let hello = skein_api::Hello {
        host: host.into(),
        release: "0.1.0".into(),
        api: skein_api::API_VERSION,
        instance: 1,
        boot_id: Some(format!("boot-{host}")),
        addresses: vec![format!("192.0.2.{}:7070", host.as_bytes()[0])],
        highest_term: world.highest(host),
        moves_off: true,
    };
    send(&mut writer, &ToController::Hello(hello)).await?;
    let (mut sequence, mut told, mut is_taken) = (0, BTreeSet::new(), false);
    let mut reports = tokio::time::interval(Duration::from_millis(150));
    loop {
        let line = tokio::select! {
            _ = reports.tick() => {
                sequence += 1;
                let report = world.report(host, sequence, &mut told);
                send(&mut writer, &ToController::Report(Box::new(report))).await?;
                ask(&mut writer, world, host, is_taken).await?;
                continue;
            }
            line = lines.next_line() => line?,
        };
        let Some(line) = line else { return Ok(()) };
        let line: ToAgent = serde_json::from_str(&line)?;
        line.check().expect("a controller says nothing that cannot be");
        match line {
            ToAgent::Leads { term } => {
                let mut hosts = world.hosts.lock();
                let state = hosts.entry(host.into()).or_default();
                state.highest = state.highest.max(term);
            }
            ToAgent::Command { command, term, request_id, request } => {
                let line = match world.command(host, term, request_id, *request) {
                    Ok(reply) => ToController::Reply { command, reply: Box::new(reply) },
                    Err(highest) => ToController::Deposed { command, highest },
                };
                send(&mut writer, &line).await?;
            }
            ToAgent::Hosts { addresses } => world.hosts.lock().entry(host.into()).or_default().told = addresses,
            ToAgent::Refused(refusal) => {
                world.hosts.lock().entry(host.into()).or_default().turned_away.push(refusal);
            }
            ToAgent::Controllers { addresses } => {
                world.hosts.lock().entry(host.into()).or_default().controllers = addresses;
            }
            ToAgent::Renewed { certificate } => {
                world.hosts.lock().entry(host.into()).or_default().renewed = Some(Ok(certificate));
            }
            ToAgent::NotRenewed(refusal) => {
                world.hosts.lock().entry(host.into()).or_default().renewed = Some(Err(refusal));
            }
            ToAgent::May { ask } => {
                world.hosts.lock().entry(host.into()).or_default().by_hand.insert(ask, Ok(()));
            }
            ToAgent::MayNot { ask, again, refusal } => {
                world.hosts.lock().entry(host.into()).or_default().by_hand.insert(ask, Err((again, refusal)));
            }
            ToAgent::Watch { migrations } => {
                world.hosts.lock().entry(host.into()).or_default().watched = migrations;
            }
            ToAgent::Look { look, request } => {
                let reply = Box::new(world.look(host, &request));
                send(&mut writer, &ToController::Seen { look, reply }).await?;
            }
            ToAgent::Console { look, request } => {
                let reply = Box::new(world.console(host, *request));
                send(&mut writer, &ToController::Seen { look, reply }).await?;
            }
            ToAgent::Welcome(_) => is_taken = true,
            ToAgent::Heard { .. } | ToAgent::Other => {}
        }
    }
}

/// Sends what the agent is to ask, and a sample of each migration that is watched.
async fn ask(
    writer: &mut (impl AsyncWriteExt + Unpin),
    world: &World,
    host: &str,
    is_taken: bool,
) -> std::io::Result<()> {
    let asked = std::mem::take(&mut world.hosts.lock().entry(host.into()).or_default().asks_by_hand);
    for question in asked {
        send(writer, &question).await?;
    }
    // A connection that is being refused gets no answer.
    if is_taken && world.is_to_renew(host) {
        // Twice at once is answered as once. In one write both lines are there before the first is taken.
        writer.write_all(&bytes(&ToController::Renew)?.repeat(2)).await?;
        writer.flush().await?;
    }
    for sample in world.samples(host) {
        send(writer, &ToController::Sample(Box::new(sample))).await?;
    }
    Ok(())
}

async fn send(writer: &mut (impl AsyncWriteExt + Unpin), line: &ToController) -> std::io::Result<()> {
    writer.write_all(&bytes(line)?).await?;
    writer.flush().await
}

fn bytes(line: &ToController) -> std::io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn vm_view(name: &str, state: VmState) -> VmView {
    VmView { memory_bytes: GIB, pid: Some(1), definition: Some(name.into()), ..VmView::new(name, state) }
}

fn migration(id: MigrationId, vm: &str, source: &str, target: &str, role: Role) -> Migration {
    let begun = "2026-11-26T10:00:00Z".into();
    Migration { begun, ..Migration::new(id, vm, role, source, target) }
}

fn sample(migration: Migration) -> MigrationSample {
    MigrationSample { at: 1, migration, host: HostSample::default(), forecast: None }
}

fn facts(host: &str) -> HostFacts {
    let facts = json!({
        "name": host, "boot_id": null, "ram_bytes": 64 * GIB, "ram_available_bytes": 32 * GIB, "hugepages": [],
        "cpus": 16, "cpu_vendor": "AuthenticAMD", "cpu_flags": [], "kvm": {"Err": "no /dev/kvm"},
        "qemu": {"Err": "none is installed"}, "bridges": [], "taps_in_use": [], "vms": [],
        "incoming": {"limit": 4, "used": 0}, "outgoing": {"limit": 4, "used": 0}, "journal": {"Err": "no room"},
        "files": [], "nics": [],
    });
    serde_json::from_value(facts).unwrap()
}

fn rand_id() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
