//! A controller that leads, with a store that writes at once, a planner that plans at once, and agents that do what
//! they are told when the test says so.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::cluster::{DrainRequest, FenceRequest, FencingDevice, Host, HostSettings, Operation, UnixMs};
use skein_api::{
    FailureReason, HeardEcho, Hello, HoldView, HostFacts, HostReport, Migration, MigrationId, MigrationSlots, Outcome,
    Refusal, Reply, Request, Role, Term, VmOrigin, VmState, VmView,
};
use skein_cluster::{
    Answer, Ask, Asked, CertificateValidity, Change, Controller, Input, Now, Output, PowerAction, PowerResult, Refused,
    RestoredRecord, SessionId, Settings, ShownCertificate, Tables, plan,
};

pub const GIB: u64 = 1 << 30;

/// A command that an agent was sent.
#[derive(Debug)]
pub struct Sent {
    pub host: String,
    pub command: u64,
    pub request_id: Option<String>,
    pub request: Request,
}

/// A migration that somebody begins on a host.
#[derive(Clone, Copy)]
pub struct Hand {
    pub vm: &'static str,
    pub from: &'static str,
    pub to: &'static str,
    pub id: u64,
    pub is_held: bool,
}

impl Hand {
    pub fn migration(&self) -> Migration {
        let since = self.is_held.then(|| "2026-11-25T12:00:00.000Z".to_owned());
        let hold = since.map(|since| HoldView { since: Some(since), ..HoldView::default() });
        Migration { hold, ..Migration::new(MigrationId(self.id), self.vm, Role::Source, self.from, self.to) }
    }
}

/// How long a controller has run when it is elected, in milliseconds.
pub const RUNS_MS: u64 = 20_000;

pub struct Bench {
    pub controller: Controller,
    pub now: Now,
    revision: u64,
    term: u64,
    store: BTreeMap<String, Vec<u8>>,
    number: u64,
    pub sessions: BTreeMap<SessionId, String>,
    /// What each agent has.
    vms: BTreeMap<String, BTreeMap<String, VmView>>,
    /// The commands that agents have not carried out yet.
    pub sent: Vec<Sent>,
    /// What fencing devices were told or asked, and have not answered.
    pub powers: Vec<(u64, String, PowerAction)>,
    answers: BTreeMap<u64, Answer>,
    /// The migrations that somebody began on a host, and those that were commanded and are under way.
    hands: Vec<Hand>,
    commanded: BTreeMap<u64, (String, String, String)>,
    /// The certificate that a host's agent shows: its first unless the test says otherwise.
    pub certificates: BTreeMap<String, String>,
    /// From when until when the certificates are valid that agents show.
    pub validity: Option<CertificateValidity>,
    /// The agents that were refused.
    pub refusals: Vec<(String, Refusal)>,
    /// How many plans were made.
    pub plans: u32,
    /// The release of a host's agent: none that is a number unless the test says otherwise.
    pub releases: BTreeMap<String, String>,
    /// Counts the boots of a host, from 1 on.
    boots: BTreeMap<String, u32>,
    /// The hosts whose agents do not know how a VM that is off is moved.
    pub older: BTreeSet<String>,
    /// The hosts whose agents do not answer what their hosts have.
    pub mute: BTreeSet<String>,
    /// What came of requests to forget that have an id.
    pub forgotten: BTreeMap<String, Reply>,
    /// What each agent was last acknowledged: what it says of that, which report, and the voters if they were named.
    pub acknowledged: BTreeMap<String, (HeardEcho, u64, BTreeSet<String>)>,
}

impl Bench {
    /// Returns a controller that leads, and these hosts, which report.
    pub fn new(hosts: &[&str]) -> Bench {
        let mut bench = Bench {
            controller: Controller::new(Settings::default()),
            now: Now { wall: UnixMs(1_770_000_000_000), mono_ms: 1_000, utc_offset_s: 0 },
            revision: 1,
            term: 1,
            store: BTreeMap::new(),
            number: 0,
            sessions: BTreeMap::new(),
            vms: BTreeMap::new(),
            sent: Vec::new(),
            powers: Vec::new(),
            answers: BTreeMap::new(),
            hands: Vec::new(),
            commanded: BTreeMap::new(),
            certificates: BTreeMap::new(),
            validity: None,
            refusals: Vec::new(),
            plans: 0,
            releases: BTreeMap::new(),
            boots: BTreeMap::new(),
            older: BTreeSet::new(),
            mute: BTreeSet::new(),
            forgotten: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
        };
        // A controller that has just begun takes nobody's word that a host is off.
        bench.input(Input::Following { tables: Box::new(Tables::default()) });
        bench.now.mono_ms += RUNS_MS;
        bench.input(Input::Elected { term: Term(1), tables: Box::new(Tables::default()) });
        bench.input(Input::NeededAt { addresses: Some(BTreeSet::new()) });
        hosts.iter().for_each(|host| bench.connect(host));
        bench
    }

    /// Returns the term of the controller that leads.
    pub fn term(&self) -> Term {
        Term(self.term)
    }

    fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Gives the controller something, and does what it wants done.
    pub fn input(&mut self, input: Input) {
        let mut inputs = vec![input];
        let mut steps = 0;
        while let Some(input) = inputs.pop() {
            steps += 1;
            assert!(steps < 1000, "the controller goes round in circles");
            self.controller.handle(self.now, input).unwrap();
            while let Some(output) = self.controller.output() {
                inputs.splice(0..0, self.perform(output));
            }
        }
    }

    fn perform(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Write { write, changes, .. } => {
                self.revision += 1;
                for change in changes {
                    match change {
                        Change::Put { key, value } => drop(self.store.insert(key, value)),
                        Change::Delete { key } => drop(self.store.remove(&key)),
                    }
                }
                return Some(Input::Written { write, revision: self.revision });
            }
            Output::Plan { plan: number } => {
                self.plans += 1;
                let request = self.controller.plan_request(number)?;
                return Some(Input::Planned { plan: number, result: plan(&request) });
            }
            Output::Command { session, command, request_id, request, .. } => {
                let host = self.sessions[&session].clone();
                if *request == Request::VmList {
                    if self.mute.contains(&host) {
                        return None;
                    }
                    let vms = self.vms.get(&host).into_iter().flat_map(BTreeMap::values).cloned().collect();
                    return Some(Input::AgentReply { session, command, reply: Box::new(Reply::Vms { vms }) });
                }
                self.sent.push(Sent { host, command, request_id, request: *request });
            }
            Output::Power { job, host, action, .. } => self.powers.push((job, host, action)),
            Output::HangUp { session, .. } => {
                self.sessions.remove(&session);
            }
            Output::Refuse { session, refusal } => {
                let host = self.sessions.remove(&session).expect("it is connected");
                self.refusals.push((host, refusal));
            }
            Output::Answer { asked, answer } => drop(self.answers.insert(asked, answer)),
            Output::Heard { session, term, number, sequence, voters, hosts } => {
                let host = self.sessions[&session].clone();
                self.acknowledged.insert(host, (HeardEcho { term, number, voters }, sequence, hosts));
            }
            Output::Lead { .. } | Output::Changed { .. } => {}
            Output::StepDown { why } => panic!("it steps down: {why}"),
        }
        None
    }

    /// Lets seconds go by. Hosts that are connected report meanwhile.
    pub fn wait_s(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now.mono_ms += 1000;
            self.now.wall.0 += 1000;
            let hosts: BTreeSet<String> = self.sessions.values().cloned().collect();
            hosts.iter().for_each(|host| self.report(host, &[], Vec::new()));
            self.input(Input::Tick);
        }
    }

    // ---- agents ----

    fn session(&self, host: &str) -> Option<SessionId> {
        self.sessions.iter().find(|(_, of)| *of == host).map(|(session, _)| *session)
    }

    /// Connects a host's agent, which reports all that it has.
    pub fn connect(&mut self, host: &str) {
        let session = self.greet(host);
        let vms: Vec<VmView> = self.vms.entry(host.to_owned()).or_default().values().cloned().collect();
        let migrations = self.hands.iter().filter(|hand| hand.from == host).map(Hand::migration).collect();
        let facts = Some(Box::new(facts(host)));
        let report = HostReport { sequence: 1, facts, vms, migrations, ..HostReport::default() };
        if self.sessions.contains_key(&session) {
            self.input(Input::AgentReport { session, report: Box::new(report) });
        }
    }

    /// Connects a host's agent, which reports all that it has, and these migrations.
    pub fn connect_with(&mut self, host: &str, migrations: Vec<Migration>) {
        self.connect(host);
        self.tell(host, HostReport { sequence: 2, migrations, ..HostReport::default() });
    }

    /// Has a host have a VM no more, without a report.
    pub fn lose_vm(&mut self, host: &str, vm: &str) -> VmView {
        self.vms.get_mut(host).and_then(|vms| vms.remove(vm)).expect("it is there")
    }

    /// Has hosts tell no more of migrations that somebody began.
    pub fn forget_hands(&mut self) {
        self.hands.clear();
    }

    /// Connects a host's agent, which reports nothing yet.
    fn greet(&mut self, host: &str) -> SessionId {
        let session = self.number();
        self.sessions.insert(session, host.to_owned());
        let hello = Hello {
            host: host.into(),
            release: self.releases.get(host).cloned().unwrap_or_else(|| "test".into()),
            api: 1,
            instance: 1,
            boot_id: Some(format!("boot {}", self.boots.get(host).copied().unwrap_or(1))),
            addresses: vec![address_of(host)],
            highest_term: Term(0),
            moves_off: !self.older.contains(host),
        };
        let certificate = self.certificates.get(host).cloned().unwrap_or_else(|| format!("{host} 1"));
        let certificate = ShownCertificate { sha256: certificate, validity: self.validity };
        self.input(Input::AgentUp { session, hello, certificate });
        session
    }

    /// Ends the connection of a host's agent.
    pub fn disconnect(&mut self, host: &str) {
        if let Some(session) = self.session(host) {
            self.sessions.remove(&session);
            self.input(Input::AgentDown { session });
        }
    }

    /// Reports VMs of a host by their names, those that are gone among them.
    pub fn report(&mut self, host: &str, vms: &[&str], migrations: Vec<Migration>) {
        let Some(session) = self.session(host) else { return };
        let here = &self.vms[host];
        let (there, gone): (Vec<&&str>, Vec<&&str>) = vms.iter().partition(|vm| here.contains_key(**vm));
        let vms = there.into_iter().map(|vm| here[*vm].clone()).collect();
        let vms_gone = gone.into_iter().map(|vm| (*vm).to_owned()).collect();
        let led = Some(self.term());
        let report = HostReport { sequence: 2, vms, vms_gone, migrations, led, ..HostReport::default() };
        self.input(Input::AgentReport { session, report: Box::new(report) });
    }

    /// Has a host's agent report this.
    pub fn tell(&mut self, host: &str, report: HostReport) {
        self.tell_as(host, HostReport { led: Some(self.term()), ..report });
    }

    /// Has a host's agent report this, made when the agent had heard that leader.
    pub fn tell_as(&mut self, host: &str, report: HostReport) {
        let session = self.session(host).expect("it is connected");
        self.input(Input::AgentReport { session, report: Box::new(report) });
    }

    /// Has a migration from one host to another be under way.
    pub fn migrates(&mut self, from: &str, to: &str, id: u64) {
        let migration = Migration::new(MigrationId(id), "web", Role::Source, from, to);
        self.report(from, &[], vec![migration]);
    }

    /// Has somebody begin a migration on its source.
    pub fn begin_by_hand(&mut self, hand: &Hand) {
        self.hands.push(*hand);
        let migration = hand.migration();
        let target = Migration { role: Role::Target, hold: None, ..migration.clone() };
        let view = self.vms.get_mut(hand.from).and_then(|vms| vms.get_mut(hand.vm)).expect("it is there");
        view.migration = Some(MigrationId(hand.id));
        self.report(hand.to, &[], vec![target]);
        self.report(hand.from, &[hand.vm], vec![migration]);
    }

    /// Has such a migration come to its end.
    pub fn end_by_hand(&mut self, hand: &Hand, outcome: Outcome) {
        self.hands.retain(|of| of.id != hand.id);
        let migration = Migration { outcome: Some(outcome), hold: None, ..hand.migration() };
        let target = Migration { role: Role::Target, ..migration.clone() };
        let from = self.vms.get_mut(hand.from).expect("it is a host");
        match outcome {
            Outcome::Moved => {
                let view = from.remove(hand.vm).expect("it is there");
                let view = VmView { migration: None, ..view };
                self.vms.entry(hand.to.to_owned()).or_default().insert(hand.vm.to_owned(), view);
            }
            _ => from.get_mut(hand.vm).expect("it is there").migration = None,
        }
        self.report(hand.from, &[hand.vm], vec![migration]);
        self.report(hand.to, &[hand.vm], vec![target]);
    }

    /// Begins the migration that was commanded first, under this id.
    pub fn begin_commanded(&mut self, id: u64) {
        let Sent { host, command, request, .. } = self.sent.remove(0);
        let (Request::Migrate { vm, to, .. } | Request::MigrateHeld { vm, to, .. }) = request else {
            panic!("{request:?} is no migration")
        };
        let migration = Migration::new(MigrationId(id), &vm, Role::Source, &host, &to);
        let view = self.vms.get_mut(&host).and_then(|vms| vms.get_mut(&vm)).expect("it is there");
        view.migration = Some(migration.id);
        let session = self.session(&host).expect("it is connected");
        let reply = Box::new(Reply::Migration(Box::new(migration.clone())));
        self.input(Input::AgentReply { session, command, reply });
        self.report(&host, &[&vm], vec![migration]);
        self.commanded.insert(id, (vm, host, to));
    }

    /// Calls off a migration that was commanded.
    pub fn end_commanded(&mut self, id: u64, why: FailureReason) {
        let (vm, host, to) = self.commanded.remove(&id).expect("it was begun");
        let migration = Migration::new(MigrationId(id), &vm, Role::Source, &host, &to);
        let migration = Migration { outcome: Some(Outcome::CalledOff), why: Some(why), ..migration };
        self.vms.get_mut(&host).and_then(|vms| vms.get_mut(&vm)).expect("it is there").migration = None;
        self.report(&host, &[&vm], vec![migration]);
    }

    /// Ends a migration that was commanded: its guest runs at the target, and the source has not forgotten it yet.
    pub fn arrive_commanded(&mut self, id: u64) {
        let (vm, host, to) = self.commanded.remove(&id).expect("it was begun");
        let ended = |role| Migration {
            outcome: Some(Outcome::Moved),
            ..Migration::new(MigrationId(id), &vm, role, &host, &to)
        };
        let view = self.vms.get_mut(&host).and_then(|vms| vms.get_mut(&vm)).expect("it is there");
        (view.migration, view.state) = (None, VmState::Moved);
        let there = VmView { state: VmState::Running, ..view.clone() };
        self.vms.entry(to.clone()).or_default().insert(vm.clone(), there);
        self.report(&to, &[&vm], vec![ended(Role::Target)]);
        self.report(&host, &[&vm], vec![Migration { downtime_ms: Some(21), ..ended(Role::Source) }]);
    }

    /// Has a host have a VM in a state, of 1 GiB.
    pub fn set_vm(&mut self, host: &str, vm: &str, state: VmState) {
        self.set_vm_file(host, vm, state, &format!("name = \"{vm}\"\n"));
    }

    /// Has a host have a VM in a state, of so much memory.
    pub fn set_sized(&mut self, host: &str, vm: &str, state: VmState, memory_bytes: u64) {
        let definition = Some(format!("name = \"{vm}\"\n"));
        let view = VmView { memory_bytes, definition, ..VmView::new(vm, state) };
        self.vms.entry(host.to_owned()).or_default().insert(vm.to_owned(), view);
        self.report(host, &[vm], Vec::new());
    }

    /// Has a host have a VM of a definition in a state, of 1 GiB.
    pub fn set_vm_file(&mut self, host: &str, vm: &str, state: VmState, definition: &str) {
        let definition = Some(definition.to_owned());
        self.set_view(host, VmView { memory_bytes: GIB, definition, ..VmView::new(vm, state) });
    }

    /// Has a host run a VM of so many GiB.
    pub fn run_vm_of(&mut self, host: &str, vm: &str, gib: u64) {
        let definition = Some(format!("name = \"{vm}\"\n"));
        let memory_bytes = gib * GIB;
        self.set_view(host, VmView { memory_bytes, definition, ..VmView::new(vm, VmState::Running) });
    }

    fn set_view(&mut self, host: &str, view: VmView) {
        let vm = view.name.clone();
        self.vms.entry(host.to_owned()).or_default().insert(vm.clone(), view);
        self.report(host, &[&vm], Vec::new());
    }

    pub fn run_vm(&mut self, host: &str, vm: &str) {
        self.set_vm(host, vm, VmState::Running);
    }

    /// Has a host have a VM no more.
    pub fn end_vm(&mut self, host: &str, vm: &str) {
        self.vms.entry(host.to_owned()).or_default().remove(vm);
        self.report(host, &[vm], Vec::new());
    }

    /// Returns the VMs that a host has.
    pub fn has(&self, host: &str) -> Vec<&str> {
        self.vms[host].keys().map(String::as_str).collect()
    }

    /// Returns what a host tells of a VM.
    pub fn vm_view(&self, host: &str, vm: &str) -> VmView {
        self.vms[host][vm].clone()
    }

    /// Carries out the oldest command. Returns whether there was one.
    pub fn obey(&mut self) -> bool {
        if self.sent.is_empty() {
            return false;
        }
        let Sent { host, command, request, request_id } = self.sent.remove(0);
        let Some(session) = self.session(&host) else { return true };
        let is_switch = matches!(request, Request::MigrationSwitch { .. });
        match request {
            Request::Migrate { vm, to, .. } => {
                let number = self.number();
                let migration =
                    |role, outcome| Migration { outcome, ..Migration::new(MigrationId(number), &vm, role, &host, &to) };
                let reply = Reply::Migration(Box::new(migration(Role::Source, None)));
                self.input(Input::AgentReply { session, command, reply: Box::new(reply) });
                let view = self.vms.get_mut(&host).unwrap().remove(&vm).expect("what is moved is there");
                self.vms.entry(to.clone()).or_default().insert(vm.clone(), view);
                self.report(&host, &[&vm], vec![migration(Role::Source, Some(Outcome::Moved))]);
                self.report(&to, &[&vm], vec![migration(Role::Target, Some(Outcome::Moved))]);
            }
            Request::MigrationSwitch { id, .. } | Request::MigrationCancel { id } => {
                let hand = self.hands.iter().find(|hand| MigrationId(hand.id).to_string() == id).copied();
                let refusal = || Refusal { message: format!("there is no migration {id}"), cure: String::new() };
                let reply =
                    hand.map_or_else(|| Reply::Error(refusal()), |of| Reply::Migration(Box::new(of.migration())));
                self.input(Input::AgentReply { session, command, reply: Box::new(reply) });
                if let Some(hand) = hand {
                    self.end_by_hand(&hand, if is_switch { Outcome::Moved } else { Outcome::CalledOff });
                }
            }
            // It was never asked for.
            Request::MigrationWithdraw { .. } => {
                self.input(Input::AgentReply { session, command, reply: Box::new(Reply::Done) });
            }
            Request::VmStart { from, .. } => {
                let vm = match from {
                    VmOrigin::Definition { file, .. } => file.trim_end_matches(".toml").to_owned(),
                    VmOrigin::Name(name) => name,
                };
                self.run_vm(&host, &vm);
                let reply = Reply::Vm(Box::new(self.vms[&host][&vm].clone()));
                self.input(Input::AgentReply { session, command, reply: Box::new(reply) });
            }
            Request::VmStop { name, .. } => {
                self.set_vm(&host, &name, VmState::Stopped);
                let reply = Reply::Vm(Box::new(self.vms[&host][&name].clone()));
                self.input(Input::AgentReply { session, command, reply: Box::new(reply) });
            }
            Request::HostClose { .. } => {
                self.input(Input::AgentReply { session, command, reply: Box::new(Reply::Done) });
            }
            Request::VmForget { name } if let Some(id) = request_id => {
                let is_off = self.vms[&host].get(&name).is_some_and(|vm| vm.state == VmState::Stopped);
                let why = || Refusal { message: format!("'{name}' is not off"), cure: String::new() };
                let done = || if is_off { Reply::Done } else { Reply::NotForgotten(why()) };
                let is_new = !self.forgotten.contains_key(&id);
                let reply = self.forgotten.entry(id).or_insert_with(done).clone();
                let is_done = is_new && reply == Reply::Done;
                self.input(Input::AgentReply { session, command, reply: Box::new(reply) });
                if is_done {
                    self.end_vm(&host, &name);
                }
            }
            Request::VmOffer { name } => {
                let view = self.vms[&host].get(&name).filter(|vm| vm.state == VmState::Stopped);
                let why = || Refusal { message: format!("'{name}' is not off"), cure: String::new() };
                let reply = view.map_or_else(|| Reply::Error(why()), |_| Reply::Offer { offer: name.clone() });
                self.input(Input::AgentReply { session, command, reply: Box::new(reply) });
            }
            Request::VmReserve { reservation, offer } => {
                let definition = Some(format!("name = \"{offer}\"\n"));
                let reserved = Some(reservation);
                let view = VmView { memory_bytes: GIB, definition, reserved, ..VmView::new(&offer, VmState::Stopped) };
                self.set_view(&host, view.clone());
                self.input(Input::AgentReply { session, command, reply: Box::new(Reply::Vm(Box::new(view))) });
            }
            Request::VmRelease { name, reservation, keep } => {
                let view = self.vms[&host].get(&name).cloned();
                match view.filter(|view| view.reserved.as_ref() == Some(&reservation)) {
                    Some(view) if keep => self.set_view(&host, VmView { reserved: None, ..view }),
                    Some(_) => self.end_vm(&host, &name),
                    None => {}
                }
                let view = self.vms[&host].get(&name).cloned();
                let reply = view.map_or(Reply::Done, |view| Reply::Vm(Box::new(view)));
                self.input(Input::AgentReply { session, command, reply: Box::new(reply) });
            }
            Request::VmForget { name } => {
                self.input(Input::AgentReply { session, command, reply: Box::new(Reply::Done) });
                self.end_vm(&host, &name);
            }
            other => {
                let refusal = Refusal { message: format!("not here: {other:?}"), cure: String::new() };
                self.input(Input::AgentReply { session, command, reply: Box::new(Reply::Error(refusal)) });
            }
        }
        true
    }

    /// Answers the oldest command, which is not carried out.
    pub fn reply(&mut self, reply: Reply) {
        let Sent { host, command, .. } = self.sent.remove(0);
        let session = self.session(&host).expect("it is connected");
        self.input(Input::AgentReply { session, command, reply: Box::new(reply) });
    }

    /// Says that the oldest start was not done and will not be.
    pub fn not_started(&mut self, why: &str) {
        self.reply(Reply::NotStarted(Refusal { message: why.into(), cure: String::new() }));
    }

    /// Boots a host whose agent is gone: its guests end, and its agent reports again.
    pub fn boot(&mut self, host: &str) {
        self.boot_and_greet(host);
        self.connect(host);
    }

    /// Boots a host whose agent is gone: its guests end, and its agent connects, and reports nothing yet.
    pub fn boot_and_greet(&mut self, host: &str) {
        *self.boots.entry(host.to_owned()).or_insert(1) += 1;
        self.vms.entry(host.to_owned()).or_default().values_mut().for_each(|vm| vm.state = VmState::Stopped);
        self.greet(host);
    }

    /// Carries out commands until there are none.
    pub fn obey_all(&mut self) {
        while self.obey() {}
    }

    // ---- fencing devices ----

    /// Gives a host a device, by its settings.
    pub fn set_device(&mut self, host: &str) {
        self.set_host(host, HostSettings { fencing: Some(device(host)), ..HostSettings::default() });
    }

    pub fn set_host(&mut self, host: &str, settings: HostSettings) {
        assert_eq!(self.ask(Ask::SetHost { host: host.into(), settings, version: None }), Answer::Done);
    }

    /// Answers what a device was told or asked, which is to be this.
    pub fn power(&mut self, host: &str, action: PowerAction, result: PowerResult) {
        assert!(!self.powers.is_empty(), "no device was told or asked anything: {action:?}");
        let (job, of, found) = self.powers.remove(0);
        assert_eq!((of.as_str(), found), (host, action));
        self.input(Input::Power { job, result });
    }

    /// Has another controller lead, which knows nothing but the store.
    pub fn change_leader(&mut self) {
        self.change_leader_after(RUNS_MS, |_| ());
    }

    /// Has another controller lead that has run for so long, and knows nothing but the store and what happens before.
    pub fn change_leader_after(&mut self, runs_ms: u64, before: impl FnOnce(&mut Bench)) {
        self.controller = Controller::new(Settings::default());
        self.powers.clear();
        self.sessions.clear();
        let (tables, now) = (self.stored(), self.now);
        self.now.mono_ms -= runs_ms;
        self.input(Input::Following { tables });
        self.now = now;
        before(self);
        self.term += 1;
        let (term, tables) = (Term(self.term), self.stored());
        self.input(Input::Elected { term, tables });
        self.input(Input::NeededAt { addresses: Some(BTreeSet::new()) });
    }

    /// Has the same controller lead once more, after another did.
    pub fn lead_again(&mut self) {
        let tables = self.stored();
        self.input(Input::Following { tables });
        self.term += 2;
        let (term, tables) = (Term(self.term), self.stored());
        self.input(Input::Elected { term, tables });
        self.input(Input::NeededAt { addresses: Some(BTreeSet::new()) });
    }

    /// Returns a backup of the store.
    pub fn backup(&self) -> BTreeMap<String, Vec<u8>> {
        self.store.clone()
    }

    /// Restores a backup, and has a controller lead that knows nothing else. No agent is there any more.
    pub fn restore(&mut self, backup: BTreeMap<String, Vec<u8>>) {
        self.store = backup;
        self.store.extend([RestoredRecord::entry(self.now.wall)]);
        self.change_leader();
    }

    /// Has something be in the store, whoever wrote it.
    pub fn keep(&mut self, key: &str, value: serde_json::Value) {
        self.store.insert(key.to_owned(), value.to_string().into_bytes());
    }

    /// Changes something in the store.
    pub fn change_kept(&mut self, key: &str, change: impl FnOnce(&mut serde_json::Value)) {
        let mut value = serde_json::from_slice(&self.store[key]).unwrap();
        change(&mut value);
        self.keep(key, value);
    }

    /// Returns all that is in the store.
    fn stored(&self) -> Box<Tables> {
        let stored = self.store.iter().map(|(key, value)| (key.as_str(), value.as_slice(), 1));
        Box::new(Tables::load(stored).unwrap())
    }

    // ---- people ----

    pub fn ask(&mut self, ask: Ask) -> Answer {
        let id = self.put(ask);
        self.answer(id).expect("it is answered")
    }

    /// Asks for something whose answer may take a while.
    pub fn put(&mut self, ask: Ask) -> u64 {
        let id = self.number();
        let what = format!("{ask:?}");
        let asked = Asked { id, by: "somebody".into(), from: "here".into(), what, repeat: None, ask };
        self.input(Input::Asked(Box::new(asked)));
        id
    }

    /// Returns the answer, if it has come.
    pub fn answer(&mut self, asked: u64) -> Option<Answer> {
        self.answers.remove(&asked)
    }

    pub fn refused(&mut self, ask: Ask) -> Refused {
        match self.ask(ask) {
            Answer::Refused(refused) => refused,
            answer => panic!("it is not refused: {answer:?}"),
        }
    }

    pub fn begin(&mut self, ask: Ask) -> Operation {
        match self.ask(ask) {
            Answer::Operation(operation) => *operation,
            answer => panic!("it begins nothing: {answer:?}"),
        }
    }

    /// Returns what would be begun. Nobody finds anything of that later.
    pub fn shown(&mut self, ask: Ask) -> Operation {
        let kept = |bench: &Bench| (bench.controller.tables().audit.len(), bench.controller.tables().operations.len());
        let before = kept(self);
        match self.ask(ask) {
            Answer::Preview(operation) => {
                assert_eq!((operation.is_only_shown(), kept(self)), (true, before));
                *operation
            }
            answer => panic!("it is not shown: {answer:?}"),
        }
    }

    pub fn drain(&mut self, host: &str) -> Operation {
        self.begin(drain(host))
    }

    /// Returns an operation as it is now.
    pub fn now(&self, operation: &Operation) -> Operation {
        self.controller.operation(&operation.id).expect("it is remembered")
    }

    pub fn host(&self, name: &str) -> Host {
        self.controller.host(name).expect("it is a host")
    }
}

/// A person says that a host is off.
pub fn is_off(host: &str) -> Ask {
    Ask::Fence { host: host.into(), request: FenceRequest { is_off: true } }
}

pub fn drain(host: &str) -> Ask {
    Ask::Drain { host: host.into(), request: DrainRequest::default() }
}

pub fn preview(host: &str) -> Ask {
    Ask::Drain { host: host.into(), request: DrainRequest { dry_run: true, ..DrainRequest::default() } }
}

fn device(host: &str) -> FencingDevice {
    FencingDevice::Redfish {
        url: format!("http://{host}"),
        system: None,
        user: None,
        secret: None,
        certificate_sha256: None,
        ca: None,
    }
}

/// Returns where a host's agent listens: no two hosts of a test begin with the same letter.
pub fn address_of(host: &str) -> String {
    format!("192.0.2.{}:7070", host.as_bytes()[0])
}

/// A host of 16 cores and 64 GiB.
pub fn facts(host: &str) -> HostFacts {
    let slots = MigrationSlots { limit: 2, used: 0 };
    HostFacts {
        name: host.to_owned(),
        boot_id: None,
        ram_bytes: 64 * GIB,
        ram_available_bytes: 60 * GIB,
        kept_ram_bytes: 0,
        room: None,
        hugepages: Vec::new(),
        cpus: 16,
        cpu_vendor: "AuthenticAMD".into(),
        cpu_flags: BTreeSet::new(),
        kvm: Ok(()),
        qemu: Err("none".into()),
        bridges: BTreeSet::new(),
        taps_in_use: BTreeSet::new(),
        vms: Vec::new(),
        incoming: slots,
        outgoing: slots,
        journal: Ok(()),
        files: Vec::new(),
        digests: BTreeMap::new(),
        nics: Vec::new(),
        swtpm: None,
        closed: None,
    }
}
