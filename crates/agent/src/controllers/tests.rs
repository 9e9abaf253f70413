//! Tests whole connections: the agent's threads against controllers that do what a test says, over socket pairs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustls::{ServerConfig, ServerConnection};
use skein_api::{
    ConsoleRequest, ConsoleView, HeardEcho, HostFacts, MigrateOptions, Migration, Refusal, Reply, Request, RequestLine,
    Term, ToAgent, ToController, VmState, VmView, WatchdogState,
};
use skein_fake_controller::{AgentConnection, COMMAND_TIME, FakeController};
use skein_identity::{CONTROLLER_ALPN, ClusterCa, ControllerNames, Identity, Validity, server_config};
use skein_inventory::HostAddress;

use super::acknowledged::Acknowledged;
use super::commands::COMMANDS_MAX;
use super::dial::Dial;
use super::errors::LinkError;
use super::leader_questions::LeaderQuestions;
use super::learnt::LearntControllers;
use super::link::{LinkContext, LinkTimes};
use super::observe::{CHANGE_PERIOD, Observer};
use super::renewal::Renewal;
use super::terms::Terms;
use super::wire::Socket;
use super::{ControlledHost, Controllers, GuestProcess, test_parts as parts};
use crate::samples::Recorder;

/// Short waits, so that a test sees their ends.
pub(super) const TIMES: LinkTimes = LinkTimes {
    dial: Duration::from_secs(5),
    greeting: Duration::from_secs(30),
    stall: Duration::from_secs(30),
    redial_first: Duration::from_millis(5),
    redial_max: Duration::from_millis(40),
    refused: Duration::from_millis(40),
};

/// A host that has what a test says.
#[derive(Default)]
pub(super) struct FakeHost {
    vms: Mutex<BTreeMap<String, VmView>>,
    outline: AtomicU64,
    /// The requests that were carried out.
    run: Mutex<Vec<RequestLine>>,
    /// While this is true `VmStop` waits, and who asks what the host is.
    is_halted: Mutex<bool>,
    released: Condvar,
    learnt: Mutex<BTreeMap<String, Vec<String>>>,
}

impl FakeHost {
    fn set_vm(&self, vm: VmView) {
        self.vms.lock().insert(vm.name.clone(), vm);
        self.outline.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn halt(&self, is_halted: bool) {
        *self.is_halted.lock() = is_halted;
        self.released.notify_all();
    }

    fn wait_released(&self) {
        self.released.wait_while_for(&mut self.is_halted.lock(), |is_halted| *is_halted, COMMAND_TIME);
    }

    pub(super) fn has_run(&self, what: &str) -> usize {
        self.run.lock().iter().filter(|line| format!("{:?}", line.request).contains(what)).count()
    }
}

impl ControlledHost for FakeHost {
    fn name(&self) -> String {
        "hosta".into()
    }

    fn addresses(&self) -> Vec<String> {
        vec!["10.0.0.1:7070".into()]
    }

    fn facts(&self) -> HostFacts {
        self.wait_released();
        parts::facts()
    }

    fn vms(&self) -> Vec<VmView> {
        self.vms.lock().values().cloned().collect()
    }

    fn outline(&self) -> u64 {
        self.outline.load(Ordering::SeqCst)
    }

    fn guests(&self) -> Vec<GuestProcess> {
        Vec::new()
    }

    fn migrations(&self) -> Vec<Migration> {
        vec![parts::migration(1)]
    }

    fn contacts(&self) -> BTreeMap<String, bool> {
        [("hostb".to_owned(), true)].into()
    }

    fn run(&self, line: RequestLine) -> Reply {
        self.run.lock().push(line.clone());
        match line.request {
            Request::VmStop { .. } => {
                self.wait_released();
                Reply::Done
            }
            Request::VmConsole(asked) => {
                self.wait_released();
                let typed = asked.input_at;
                Reply::Console(Box::new(ConsoleView { typed, ..ConsoleView::default() }))
            }
            Request::VmList => Reply::Vms { vms: self.vms() },
            _ => Reply::Done,
        }
    }

    fn learn_hosts(&self, addresses: &BTreeMap<String, Vec<String>>) {
        *self.learnt.lock() = addresses.clone();
    }
}

/// Gives the other end of each connection to the test.
struct PairDial {
    dialled: SyncSender<(String, UnixStream)>,
}

impl Dial for PairDial {
    fn dial(&self, address: &HostAddress, _: Duration) -> Result<Box<dyn Socket>, LinkError> {
        let (near, far) = UnixStream::pair().map_err(LinkError::Dial)?;
        // A controller that is not served hangs up at once.
        match self.dialled.try_send((address.to_string(), far)) {
            Ok(()) => Ok(Box::new(near)),
            Err(error) => Err(LinkError::Dial(io::Error::other(error.to_string()))),
        }
    }
}

/// An agent's share, and the cluster around it.
pub(super) struct World {
    pub(super) ca: ClusterCa,
    pub(super) identity: Identity,
    pub(super) dir: tempfile::TempDir,
    pub(super) host: Arc<FakeHost>,
    dialled: Receiver<(String, UnixStream)>,
    dials: SyncSender<(String, UnixStream)>,
    controllers: Option<Controllers>,
    acknowledged: Arc<Acknowledged>,
    pub(super) questions: Arc<LeaderQuestions>,
}

impl World {
    /// Begins with two VMs, and controllers at these addresses.
    pub(super) fn new(addresses: &[&str]) -> World {
        World::with(addresses, TIMES)
    }

    fn with(addresses: &[&str], times: LinkTimes) -> World {
        let ca = ClusterCa::create("lab").unwrap();
        let identity = ca.issue("hosta", Validity::days(1)).unwrap();
        World::of(ca, identity, addresses, times)
    }

    /// Begins with a host's identity.
    pub(super) fn of(ca: ClusterCa, identity: Identity, addresses: &[&str], times: LinkTimes) -> World {
        let (dials, dialled) = sync_channel(64);
        let host = Arc::new(FakeHost::default());
        host.set_vm(parts::vm("web1", VmState::Running));
        host.set_vm(parts::vm("web2", VmState::Stopped));
        let dir = tempfile::tempdir().unwrap();
        let acknowledged = Arc::new(Acknowledged::new("hosta"));
        let questions = parts::questions(dir.path());
        let mut world = World { ca, identity, dir, host, dialled, dials, controllers: None, acknowledged, questions };
        world.write(addresses);
        world.start(times);
        world
    }

    fn write(&self, addresses: &[&str]) {
        self.write_text(&format!("controllers = {addresses:?}\n"));
    }

    /// Replaces the file at once: an empty file would name nobody.
    fn write_text(&self, text: &str) {
        fs::write(self.dir.path().join("new"), text).unwrap();
        fs::rename(self.dir.path().join("new"), self.dir.path().join("controllers.toml")).unwrap();
    }

    fn term_file(&self) -> PathBuf {
        self.dir.path().join("term")
    }

    fn start(&mut self, times: LinkTimes) {
        self.controllers = None;
        let host: Arc<dyn ControlledHost> = self.host.clone();
        let context = LinkContext {
            tls: skein_identity::controller_client_config(&self.identity).unwrap(),
            renewal: Renewal::new(self.identity.clone()),
            observer: Observer::new(host.clone()),
            host,
            terms: Arc::new(Terms::load(&self.term_file())),
            learnt: Arc::new(LearntControllers::load(&self.dir.path().join("controllers.json"))),
            dial: Arc::new(PairDial { dialled: self.dials.clone() }),
            times,
            acknowledged: self.acknowledged.clone(),
            questions: self.questions.clone(),
            samples: Recorder::new(self.dir.path().to_owned()),
            instance: 7,
        };
        self.controllers = Some(Controllers::with(&self.dir.path().join("controllers.toml"), context).unwrap());
    }

    pub(super) fn fake(&self, name: &str) -> FakeController {
        let names = ControllerNames::new(name, []).unwrap();
        FakeController::new(&self.ca.issue_controller(&names, Validity::days(1)).unwrap())
    }

    /// Takes the next connection, whatever its address.
    #[track_caller]
    pub(super) fn dialled(&self) -> (String, UnixStream) {
        self.dialled.recv_timeout(COMMAND_TIME).expect("the agent dials")
    }

    /// Takes the next connection to an address that is still there, and greets the agent.
    #[track_caller]
    pub(super) fn connect(&self, address: &str, fake: &FakeController) -> AgentConnection<UnixStream> {
        let end = Instant::now() + COMMAND_TIME;
        loop {
            let (to, socket) = self.dialled();
            assert!(Instant::now() < end, "nobody dials {address}");
            if to != address {
                // That controller is away.
                continue;
            }
            // What an agent dialled that was stopped meanwhile is passed over.
            let Ok(mut connection) = fake.accept(socket) else { continue };
            if connection.try_greet(&fake.welcome()).is_some() {
                return connection;
            }
        }
    }
}

pub(super) fn stop_request() -> Request {
    Request::VmStop { name: "web1".into(), timeout_s: 1, force: false }
}

#[test]
fn an_agent_says_who_it_is_and_all_that_it_has_and_then_what_is_new() {
    let world = World::new(&["ctl1"]);
    let mut fake = world.fake("ctl1");
    fake.report_period_ms = 100;
    let (address, socket) = world.dialled();
    assert_eq!(address, "ctl1");
    let mut agent = fake.accept(socket).unwrap();
    let hello = agent.greet(&fake.welcome());
    assert_eq!((&*hello.host, hello.instance, hello.highest_term), ("hosta", 7, Term(0)));
    assert_eq!((hello.addresses, hello.api), (vec!["10.0.0.1:7070".to_owned()], skein_api::API_VERSION));
    let Some(ToController::Report(first)) = agent.next(COMMAND_TIME) else { panic!("no report") };
    assert_eq!((first.sequence, first.vms.len(), first.migrations.len()), (1, 2, 1));
    assert!(first.facts.is_some() && first.load.is_some() && first.contacts.is_some());
    agent.seen.take(*first);
    // Reports come though nothing changes, and say nothing of VMs then.
    for _ in 0..5 {
        let Some(ToController::Report(report)) = agent.next(COMMAND_TIME) else { panic!("no report") };
        assert!(report.vms.is_empty() && report.migrations.is_empty() && report.facts.is_none(), "{report:?}");
        agent.seen.take(*report);
    }
    assert!(agent.seen.load.unwrap().ram_bytes > 0);
}

#[test]
fn an_agent_is_heard_of_before_it_knows_what_its_host_is() {
    let mut world = World::new(&["ctl1"]);
    world.host.halt(true);
    world.start(TIMES);
    let mut fake = world.fake("ctl1");
    fake.report_period_ms = 100;
    let mut agent = world.connect("ctl1", &fake);
    agent.until(COMMAND_TIME, |seen| seen.sequence >= 5 && seen.vms.len() == 2 && seen.load.is_some());
    assert!(agent.seen.facts.is_none());
    world.host.halt(false);
    agent.until(COMMAND_TIME, |seen| seen.facts.is_some());
}

#[test]
fn an_agent_says_which_acknowledgement_it_took_last_to_every_controller() {
    let world = World::new(&["ctl1"]);
    let mut fake = world.fake("ctl1");
    fake.report_period_ms = 100;
    let mut agent = world.connect("ctl1", &fake);
    let Some(ToController::Report(first)) = agent.next(COMMAND_TIME) else { panic!("no report") };
    assert_eq!((first.sequence, first.heard), (1, None));
    let hosts = ["hosta", "hostb"].map(str::to_owned).into();
    agent.send(&ToAgent::Heard { term: Term(4), number: 9, sequence: 1, voters: 2, hosts }).unwrap();
    let heard = |agent: &mut AgentConnection<UnixStream>| loop {
        let Some(ToController::Report(report)) = agent.next(COMMAND_TIME) else { panic!("no report") };
        if report.heard.is_some() {
            return report.heard;
        }
    };
    let expected = Some(HeardEcho { term: Term(4), number: 9, voters: 2 });
    assert_eq!(heard(&mut agent), expected);
    drop(agent);
    let mut agent = world.connect("ctl1", &fake);
    assert_eq!(heard(&mut agent), expected, "the next connection is told it, too");
}

#[test]
fn an_agent_tells_of_its_watchdog_when_that_changed_and_first_of_all_to_another_controller() {
    let world = World::new(&["ctl1"]);
    let mut fake = world.fake("ctl1");
    fake.report_period_ms = 100;
    let next = |agent: &mut AgentConnection<UnixStream>| loop {
        let Some(ToController::Report(report)) = agent.next(COMMAND_TIME) else { panic!("no report") };
        if report.sequence == 1 || report.watchdog.is_some() {
            return report.watchdog;
        }
    };
    let mut agent = world.connect("ctl1", &fake);
    assert_eq!(next(&mut agent), None, "the host is to have none");
    let state = |why_not: &str| WatchdogState { armed: None, why_not: why_not.into() };
    world.acknowledged.tell_watchdog(state("x"));
    assert_eq!(next(&mut agent), Some(state("x")));
    world.acknowledged.tell_watchdog(state("y"));
    assert_eq!(next(&mut agent), Some(state("y")), "and not x again");
    drop(agent);
    let mut agent = world.connect("ctl1", &fake);
    assert_eq!(next(&mut agent), Some(state("y")), "the first report has all");
}

#[test]
fn what_changed_is_told_at_once_and_a_burst_is_one_report() {
    let world = World::new(&["ctl1"]);
    let mut fake = world.fake("ctl1");
    fake.report_period_ms = 60_000;
    let mut agent = world.connect("ctl1", &fake);
    agent.until(COMMAND_TIME, |seen| seen.vms.len() == 2);
    let (begun, before) = (Instant::now(), agent.seen.sequence);
    let mut changes = 0;
    while begun.elapsed() < 5 * CHANGE_PERIOD {
        changes += 1;
        world.host.set_vm(parts::vm(&format!("new{changes}"), VmState::Running));
        std::thread::sleep(Duration::from_millis(2));
    }
    agent.until(COMMAND_TIME / 2, |seen| seen.vms.len() == 2 + changes);
    let reports = u128::from(agent.seen.sequence - before);
    let most = begun.elapsed().as_millis() / CHANGE_PERIOD.as_millis() + 2;
    assert!(begun.elapsed() < Duration::from_secs(60), "no period has passed");
    assert!(reports <= most, "{reports} reports for {changes} changes, and {most} are the most");
}

#[test]
fn a_lower_term_is_refused_also_after_a_restart() {
    let mut world = World::new(&["ctl1", "ctl2"]);
    let (one, two) = (world.fake("ctl1"), world.fake("ctl2"));
    let [mut first, mut second] = {
        let mut connections = BTreeMap::new();
        while connections.len() < 2 {
            let (address, socket) = world.dialled();
            let fake = if address == "ctl1" { &one } else { &two };
            let Ok(mut connection) = fake.accept(socket) else { continue };
            connection.greet(&fake.welcome());
            connections.insert(address, connection);
        }
        let mut connections = connections.into_values();
        [connections.next().unwrap(), connections.next().unwrap()]
    };
    let list = || Request::VmList;
    first.command(1, Term(3), None, list());
    assert!(matches!(first.reply(1), Ok(Reply::Vms { vms }) if vms.len() == 2));
    // The other controller leads by now, and says so before it commands anything.
    second.send(&ToAgent::Leads { term: Term(4) }).unwrap();
    second.command(7, Term(4), None, list());
    assert!(matches!(second.reply(7), Ok(Reply::Vms { .. })));
    assert_eq!(fs::read_to_string(world.term_file()).unwrap(), "4\n");
    first.command(2, Term(3), None, stop_request());
    assert_eq!(first.reply(2).unwrap_err(), Term(4));

    world.start(TIMES);
    let mut first = world.connect("ctl1", &one);
    first.command(3, Term(3), None, stop_request());
    assert_eq!(first.reply(3).unwrap_err(), Term(4));
    first.command(4, Term(4), None, list());
    assert!(first.reply(4).is_ok());
    assert_eq!(world.host.has_run("VmStop"), 0);
    // A term that no controller has had yet is the highest, whoever has it.
    first.command(5, Term(9), None, list());
    assert!(first.reply(5).is_ok());
    assert_eq!(fs::read_to_string(world.term_file()).unwrap(), "9\n");
}

#[test]
fn without_the_highest_term_nobody_is_obeyed_and_the_reports_go_on() {
    let mut world = World::new(&["ctl1"]);
    world.controllers = None;
    fs::write(world.term_file(), "garbage").unwrap();
    world.start(TIMES);
    let mut agent = world.connect("ctl1", &world.fake("ctl1"));
    agent.command(1, Term(99), None, stop_request());
    let Ok(Reply::Error(refusal)) = agent.reply(1) else { panic!("it was obeyed") };
    assert!(refusal.message.contains("cannot be read") && refusal.cure.contains("remove the file"), "{refusal:?}");
    agent.until(COMMAND_TIME, |seen| seen.vms.len() == 2);
    assert_eq!(world.host.has_run("VmStop"), 0);
}

#[test]
fn a_controller_that_reads_nothing_costs_nobody_else_anything() {
    // A busy machine may stand still for seconds, and the one that reads is not to be given up.
    let times = LinkTimes { stall: Duration::from_secs(10), ..TIMES };
    let world = World::with(&["ctl1", "ctl2"], times);
    let (mut deaf, mut good) = (world.fake("ctl1"), world.fake("ctl2"));
    (deaf.report_period_ms, good.report_period_ms) = (100, 100);
    let mut silent = world.connect("ctl1", &deaf);
    let mut listening = world.connect("ctl2", &good);
    // More than the socket holds, so that the agent has to wait for the one that does not read.
    let mut large = parts::vm("large", VmState::Stopped);
    large.definition = Some("#".repeat(2 << 20));
    world.host.set_vm(large);
    listening.until(COMMAND_TIME, |seen| seen.vms.contains_key("large"));
    for command in 0..2 * COMMANDS_MAX as u64 {
        // The agent may have given the silent one up by now.
        let request = Box::new(Request::VmList);
        let _ = silent.send(&ToAgent::Command { command, term: Term(1), request_id: None, request });
    }
    let before = listening.seen.sequence;
    listening.until(COMMAND_TIME, |seen| seen.sequence >= before + 10);
    listening.command(1, Term(1), None, Request::VmList);
    assert!(matches!(listening.reply(1), Ok(Reply::Vms { vms }) if vms.len() == 3));
    // The agent gives the silent one up, and dials it again; nothing is kept for it.
    let mut again = world.connect("ctl1", &deaf);
    again.until(COMMAND_TIME, |seen| seen.vms.contains_key("large"));
    drop(silent);
}

#[test]
fn what_no_controller_may_say_ends_the_connection_and_nothing_else() {
    let world = World::new(&["ctl1"]);
    let fake = world.fake("ctl1");
    let huge = vec![b'x'; skein_api::LINE_BYTES_MAX as usize + (1 << 20)];
    let cases: [&[u8]; 7] = [
        b"garbage\n",
        b"\xff\xfe\n",
        b"{}\n",
        b"{\"line\":\"leads\",\"term\":18446744073709551615}\n",
        b"{\"line\":\"hosts\",\"addresses\":{\"A B\":[]}}\n",
        b"{\"line\":\"welcome\",\"cluster\":\"x\",\"controller\":\"c\",\"release\":\"1\",\"report_period_ms\":0}\n",
        &huge,
    ];
    for odd in cases {
        let mut agent = world.connect("ctl1", &fake);
        agent.until(COMMAND_TIME, |seen| seen.vms.len() == 2);
        let _ = agent.send_bytes(odd);
        let end = Instant::now() + COMMAND_TIME;
        while agent.next(COMMAND_TIME).is_some() {
            assert!(Instant::now() < end, "the agent goes on after {:?}", &odd[..odd.len().min(40)]);
        }
    }
    // A line of a kind that is not known is passed over.
    let mut agent = world.connect("ctl1", &fake);
    agent.send_bytes(b"{\"line\":\"frobnicate\",\"how\":[1]}\n").unwrap();
    agent.command(1, Term(1), None, Request::VmList);
    assert!(agent.reply(1).is_ok());
    // So is a command that cannot be.
    agent.command(2, Term(1), Some("x"), Request::VmList);
    let Ok(Reply::Error(refusal)) = agent.reply(2) else { panic!("it was obeyed") };
    assert!(refusal.message.contains("only a migration, a start or a forgetting has a request id"), "{refusal:?}");
}

#[test]
fn a_controller_that_is_lost_or_refuses_is_dialled_again_and_told_everything() {
    let world = World::new(&["ctl1"]);
    let fake = world.fake("ctl1");
    for _ in 0..3 {
        let mut agent = world.connect("ctl1", &fake);
        agent.until(COMMAND_TIME, |seen| seen.sequence >= 2 || seen.vms.len() == 2);
        assert_eq!(agent.seen.vms.len(), 2);
    }
    // Hung up in the middle of the handshake; refused.
    drop(world.dialled());
    let mut refused = fake.accept(world.dialled().1).unwrap();
    refused.greet(&ToAgent::Refused(Refusal { message: "the host was removed".into(), cure: "join again".into() }));
    assert_eq!(refused.next(COMMAND_TIME), None);
    // Something else than a greeting.
    let mut odd = fake.accept(world.dialled().1).unwrap();
    odd.greet(&ToAgent::Leads { term: Term(1) });
    assert_eq!(odd.next(COMMAND_TIME), None);
    world.connect("ctl1", &fake).until(COMMAND_TIME, |seen| seen.vms.len() == 2);
}

#[test]
fn a_command_is_answered_by_its_number_and_goes_on_without_the_connection() {
    let world = World::new(&["ctl1"]);
    let fake = world.fake("ctl1");
    let mut agent = world.connect("ctl1", &fake);
    world.host.halt(true);
    agent.command(1, Term(1), None, stop_request());
    agent.command(2, Term(1), None, Request::VmList);
    assert!(matches!(agent.reply(2), Ok(Reply::Vms { .. })), "the slow one holds up nobody");
    for command in 3..=COMMANDS_MAX as u64 + 1 {
        agent.command(command, Term(1), None, stop_request());
    }
    agent.command(99, Term(1), None, Request::VmList);
    let Ok(Reply::Error(refusal)) = agent.reply(99) else { panic!("there is no bound") };
    assert!(refusal.message.contains("too many commands"), "{refusal:?}");
    drop(agent);
    let mut agent = world.connect("ctl1", &fake);
    // Each has its own thread, and all of them go on.
    let deadline = Instant::now() + COMMAND_TIME;
    while world.host.has_run("VmStop") < COMMANDS_MAX {
        assert!(Instant::now() < deadline, "{} run", world.host.has_run("VmStop"));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(world.host.has_run("VmStop"), COMMANDS_MAX);
    // A connection has its own bound.
    agent.command(1, Term(1), None, stop_request());
    agent.command(2, Term(1), None, Request::VmList);
    assert!(matches!(agent.reply(2), Ok(Reply::Vms { .. })));
    world.host.halt(false);
    assert_eq!(agent.reply(1), Ok(Reply::Done));
}

/// Consoles wait for what guests write: they hold up nobody, and have a bound of their own.
#[test]
fn consoles_that_wait_take_no_commands_place() {
    let world = World::new(&["ctl1"]);
    let fake = world.fake("ctl1");
    let mut agent = world.connect("ctl1", &fake);
    world.host.halt(true);
    let asked = |look: u64| {
        let (name, session, by) = ("web1".into(), "7f".into(), "ops".into());
        let request = ConsoleRequest { name, session, by, input_at: look, ..ConsoleRequest::default() };
        ToAgent::Console { look, request: Box::new(request) }
    };
    for look in 1..=64 {
        agent.send(&asked(look)).unwrap();
    }
    agent.send(&asked(65)).unwrap();
    let mut seen = |wanted: usize| {
        let mut seen = BTreeMap::new();
        while seen.len() < wanted {
            if let ToController::Seen { look, reply } = agent.next(COMMAND_TIME).expect("the agent answers") {
                seen.insert(look, *reply);
            }
        }
        seen
    };
    let refused = seen(1);
    assert!(matches!(&refused[&65], Reply::Error(refusal) if refusal.message.contains("too many")), "{refused:?}");
    world.host.halt(false);
    let answered = seen(64);
    assert!(answered.iter().all(|(look, reply)| matches!(reply, Reply::Console(view) if view.typed == *look)));
    // What cannot be ends the connection, as any line does.
    let mut odd = ConsoleRequest { session: "7f".into(), by: "ops".into(), ..ConsoleRequest::default() };
    odd.name = "../x".into();
    agent.send(&ToAgent::Console { look: 66, request: Box::new(odd) }).unwrap();
    while agent.next(COMMAND_TIME).is_some() {}
}

#[test]
fn a_migration_is_detached_and_keeps_its_request_id_and_is_not_watched() {
    let world = World::new(&["ctl1"]);
    let mut agent = world.connect("ctl1", &world.fake("ctl1"));
    let options = MigrateOptions { retries: 2, ..MigrateOptions::default() };
    let migrate = |detach| {
        let options = options.clone();
        Request::Migrate { vm: "web1".into(), to: "hostb".into(), options, detach }
    };
    for (number, detach) in [(1, false), (2, true)] {
        agent.command(number, Term(1), Some("drain-7:web1"), migrate(detach));
        assert_eq!(agent.reply(number), Ok(Reply::Done));
    }
    let expected = RequestLine { api: None, request_id: Some("drain-7:web1".into()), request: migrate(true) };
    assert_eq!(*world.host.run.lock(), [expected.clone(), expected]);
    agent.command(3, Term(1), None, Request::MigrationWatch { id: "web1".into() });
    assert!(matches!(agent.reply(3), Ok(Reply::Error(refusal)) if refusal.cure.contains("reports")));
}

#[test]
fn the_file_says_who_is_dialled_at_any_time() {
    let world = World::new(&[]);
    let (one, two) = (world.fake("ctl1"), world.fake("ctl2"));
    assert!(world.dialled.recv_timeout(Duration::from_millis(50)).is_err(), "nobody is in the file");
    world.write(&["ctl1:7"]);
    let mut first = world.connect("ctl1:7", &one);
    first.until(COMMAND_TIME, |seen| seen.vms.len() == 2);
    world.write(&["ctl2"]);
    while first.next(COMMAND_TIME).is_some() {}
    let mut second = world.connect("ctl2", &two);
    let hosts = BTreeMap::from([("hostb".to_owned(), vec!["10.0.0.2:7070".to_owned()])]);
    second.send(&ToAgent::Hosts { addresses: hosts.clone() }).unwrap();
    second.command(1, Term(1), None, Request::VmList);
    assert!(second.reply(1).is_ok());
    assert_eq!(*world.host.learnt.lock(), hosts);
    // A file that makes no sense changes nothing.
    world.write_text("controllers = [");
    let before = second.seen.sequence;
    second.until(COMMAND_TIME, |seen| seen.sequence > before + 2);
    fs::remove_file(world.dir.path().join("controllers.toml")).unwrap();
    while second.next(COMMAND_TIME).is_some() {}
}

#[test]
fn controllers_that_a_controller_names_are_dialled_too_also_after_a_restart() {
    let mut world = World::new(&["ctl1:7"]);
    let (one, two) = (world.fake("ctl1"), world.fake("ctl2"));
    let mut first = world.connect("ctl1:7", &one);
    let named = [("ctl1", "10.0.0.1:7"), ("ctl2", "10.0.0.2:7443")].map(|(name, at)| (name.to_owned(), at.to_owned()));
    first.send(&ToAgent::Controllers { addresses: BTreeMap::from(named) }).unwrap();
    let mut second = world.connect("10.0.0.2:7443", &two);
    second.until(COMMAND_TIME, |seen| seen.vms.len() == 2);
    // The agent has an address of ctl1, and needs no other.
    assert!(world.dialled.recv_timeout(Duration::from_millis(700)).is_err());
    world.start(TIMES);
    let mut second = world.connect("10.0.0.2:7443", &two);
    second.until(COMMAND_TIME, |seen| seen.vms.len() == 2);
    // Nobody is dialled where the file names nobody.
    world.write(&[]);
    while second.next(COMMAND_TIME).is_some() {}
}

/// A host of the cluster that serves at a controller's address learns nothing, and is not obeyed.
#[test]
fn a_host_is_not_taken_for_a_controller() {
    let world = World::new(&["ctl1"]);
    let hostb = world.ca.issue("hostb", Validity::days(1)).unwrap();
    let mut config = ServerConfig::clone(&server_config(&hostb));
    config.alpn_protocols = vec![CONTROLLER_ALPN.to_vec()];
    let (_, mut socket) = world.dialled();
    socket.set_read_timeout(Some(COMMAND_TIME)).unwrap();
    let mut tls = ServerConnection::new(Arc::new(config)).unwrap();
    let error = loop {
        match tls.complete_io(&mut socket) {
            Ok(_) if tls.is_handshaking() => {}
            Ok(done) => panic!("the agent shakes hands with a host: {done:?}"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("ertificate"), "{error}");
    world.connect("ctl1", &world.fake("ctl1")).until(COMMAND_TIME, |seen| seen.vms.len() == 2);
}
