//! Tests agents with a controller, which does what the test says: real hosts, agents and QEMUs. Needs root.
// Timeout: 300 s
// Cores: 0.5

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use skein_api::{Hello, MigrateOptions, MigrationId, Outcome, Reply, Request, Term, ToAgent, VmState};
use skein_fake_controller::{AgentConnection, FakeController, SeenHost};
use skein_identity::{ControllerNames, Validity};
use skein_lab_cluster::{Cluster, Settings, until};

/// The time for anything that has to happen at all.
const DEADLINE: Duration = Duration::from_secs(60);

/// The controller's host.
const CONTROLLER_HOST: &str = "a";

struct World {
    cluster: Cluster,
    controller: FakeController,
    listener: TcpListener,
}

type Agent = AgentConnection<TcpStream>;

impl World {
    /// Builds hosts `a` and `b` with agents, and a controller beside that of `a`.
    fn up() -> World {
        let mut cluster = Cluster::idle(Settings::new(env!("CARGO_BIN_EXE_skein").into()));
        let netns = cluster.lab().netns(CONTROLLER_HOST).unwrap();
        let address = SocketAddr::from((cluster.lab().ip(CONTROLLER_HOST, 0).unwrap(), 0));
        let listener = skein_host::enter(&netns, || TcpListener::bind(address)).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let text = format!("controllers = [\"{}\"]\n", listener.local_addr().unwrap());
        fs::write(cluster.dir().join("controllers.toml"), text).unwrap();
        let names = ControllerNames::new("ctl1", []).unwrap();
        let identity = cluster.ca().issue_controller(&names, Validity::days(1)).unwrap();
        for host in ["a", "b"] {
            cluster.start(host);
        }
        World { cluster, controller: FakeController::new(&identity), listener }
    }

    /// Waits for the agents of these hosts.
    fn agents<const HOSTS: usize>(&self, hosts: [&str; HOSTS]) -> [(Agent, Hello); HOSTS] {
        let mut agents = BTreeMap::new();
        let end = Instant::now() + DEADLINE;
        while agents.len() < HOSTS {
            assert!(Instant::now() < end, "of {hosts:?} only {:?} are there", agents.keys());
            let Ok((socket, _)) = self.listener.accept() else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            socket.set_nonblocking(false).unwrap();
            let mut agent = self.controller.accept(socket).unwrap();
            let hello = agent.greet(&self.controller.welcome());
            agents.insert(agent.host().to_owned(), (agent, hello));
        }
        hosts.map(|host| agents.remove(host).unwrap())
    }
}

fn migrate(to: &str) -> Request {
    Request::Migrate { vm: "v1".into(), to: to.into(), options: MigrateOptions::default(), detach: true }
}

#[track_caller]
fn migration_of(reply: Result<Reply, Term>) -> MigrationId {
    match reply {
        Ok(Reply::Migration(migration)) => migration.id,
        other => panic!("no migration: {other:?}"),
    }
}

fn runs(seen: &SeenHost) -> bool {
    seen.vms.get("v1").is_some_and(|vm| vm.state == VmState::Running)
}

#[test]
fn a_controller_moves_a_guest_once_and_none_when_it_is_deposed() {
    let mut world = World::up();
    let [(mut a, hello_a), (mut b, hello_b)] = world.agents(["a", "b"]);
    assert_eq!((hello_a.highest_term, hello_b.highest_term), (Term(0), Term(0)));

    // The controller starts a guest, and sees it and its load.
    let text = world.cluster.bare("v1");
    let from = skein_api::VmOrigin::Definition { file: "v1.toml".into(), text };
    a.command(1, Term(3), None, Request::VmStart { from, options: Default::default() });
    assert!(matches!(a.reply(1), Ok(Reply::Vm(vm)) if vm.state == VmState::Running));
    a.until(DEADLINE, |seen| runs(seen) && seen.vm_loads.get("v1").is_some_and(|load| load.ram_bytes > 1 << 20));
    assert!(a.seen.load.is_some_and(|load| load.cpu_millicores > 0 && load.ram_bytes > load.ram_available_bytes));
    a.until(DEADLINE, |seen| seen.facts.as_ref().is_some_and(|facts| facts.name == "a" && facts.qemu.is_ok()));
    b.until(DEADLINE, |seen| seen.sequence > 0);
    assert!(b.seen.vms.is_empty());

    // Where the other host is only the controller knows.
    fs::remove_file(world.cluster.dir().join("hosts.toml")).unwrap();
    let addresses = BTreeMap::from([("a".to_owned(), hello_a.addresses), ("b".to_owned(), hello_b.addresses)]);
    for agent in [&mut a, &mut b] {
        agent.send(&ToAgent::Leads { term: Term(3) }).unwrap();
        agent.send(&ToAgent::Hosts { addresses: addresses.clone() }).unwrap();
    }

    // Asked for twice, and once more when it is over, it is one migration.
    a.command(2, Term(3), Some("drain-1:v1"), migrate("b"));
    a.command(3, Term(3), Some("drain-1:v1"), migrate("b"));
    let id = migration_of(a.reply(2));
    assert_eq!(migration_of(a.reply(3)), id);
    a.until(DEADLINE, |seen| seen.migrations.get(&id).is_some_and(|migration| migration.outcome.is_some()));
    assert_eq!(a.seen.migrations[&id].outcome, Some(Outcome::Moved));
    b.until(DEADLINE, runs);
    a.until(DEADLINE, |seen| !seen.vms.contains_key("v1"));
    b.until(DEADLINE, |seen| seen.migrations.get(&id).is_some_and(|migration| migration.outcome.is_some()));
    a.command(4, Term(3), Some("drain-1:v1"), migrate("b"));
    assert_eq!(migration_of(a.reply(4)), id);
    assert_eq!(world.cluster.migrations("a").len(), 1);
    assert!(until(DEADLINE, || world.cluster.where_runs("v1") == ["b"]));

    // A controller of an earlier term is deposed, also for an agent that was killed and started again.
    b.command(5, Term(2), Some("drain-2:v1"), migrate("a"));
    assert_eq!(b.reply(5).unwrap_err(), Term(3));
    world.cluster.kill("b");
    while b.next(DEADLINE).is_some() {}
    world.cluster.start("b");
    let [(mut b, hello)] = world.agents(["b"]);
    assert_eq!(hello.highest_term, Term(3));
    b.command(6, Term(2), Some("drain-2:v1"), migrate("a"));
    assert_eq!(b.reply(6).unwrap_err(), Term(3));
    // The end of a migration that was over before is told again; the guest runs where it ran.
    b.until(DEADLINE, |seen| runs(seen) && seen.migrations.get(&id).is_some_and(|was| was.outcome.is_some()));
    assert_eq!((world.cluster.where_runs("v1"), world.cluster.migrations("b").len()), (vec!["b".to_owned()], 1));

    // The one that leads moves the guest back, by the address that the agent has kept.
    b.command(7, Term(3), Some("drain-2:v1"), migrate("a"));
    let back = migration_of(b.reply(7));
    b.until(DEADLINE, |seen| seen.migrations.get(&back).is_some_and(|migration| migration.outcome.is_some()));
    assert_eq!(b.seen.migrations[&back].outcome, Some(Outcome::Moved));
    a.until(DEADLINE, runs);
    world.cluster.wait_clean(DEADLINE);
    world.cluster.check();
}
