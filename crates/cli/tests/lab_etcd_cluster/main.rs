//! Tests a cluster with three controllers that share a store in etcd: whichever controller, member of etcd, agent or
//! host is killed, stopped or cut off in the middle of whatever is done, that goes on, and no guest runs twice.
//!
//! `$SKEIN_NO_PROOF_S` says for how many seconds it is watched that nothing starts without proof.
// Timeout: 600 s
// Cores: 0.8
// Program: skein-controller

#[path = "../controlled/mod.rs"]
mod controlled;
mod etcd;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use serde_json::Value;
use skein_api::{Request, Term};
use skein_fake_controller::FakeController;
use skein_identity::ControllerIdentity;
use skein_lab_cluster::{Controlled, Settings};
use skein_lab_hosts::Cut;
use skein_store::election::{TermBase, guarded, is_deposed, leader_key, leadership};
use skein_store::{Entry, Key, Operation, Outcome, Revision, Store, Transaction, Value as Stored, read_one};

use controlled::{DEADLINE, FENCE_AGENT};
use etcd::Etcd;

/// The hosts with a controller, a member of etcd and an agent.
const CONTROLLERS: [&str; 3] = ["a", "b", "c"];
/// The host with an agent only, where guests are at home, and where people give commands.
const HOME: &str = "d";
const GUESTS: usize = 6;
/// Until a host that is silent is lost, and until a lost one is switched off: short, so that the test is.
const SHORT_TIMES: [&str; 2] = ["host_lease_s=5", "failover.grace_s=3"];

/// A cluster with three controllers, and what the test knows of it.
struct Trio {
    world: Controlled,
    etcd: Etcd,
    etcd_program: PathBuf,
    vms: Vec<String>,
}

impl Trio {
    /// Sets a cluster up as docs/cluster.md says. `None`: there is no etcd here.
    fn up() -> Option<Trio> {
        let etcd_program = etcd::program()?;
        // One migration from a host at a time, so that a drain has a middle.
        let settings = Settings { hosts: 4, outgoing: 1, ..Settings::new(env!("CARGO_BIN_EXE_skein").into()) };
        let world = controlled::hosts(settings, HOME);
        let etcd = Etcd::start(&etcd_program, &world.cluster, &CONTROLLERS);
        let mut trio = Trio { world, etcd, etcd_program, vms: Vec::new() };
        trio.init("a");
        trio.world.start_controller("a");
        // The others are added while the first one runs, and hosts know the first one only.
        trio.world.start_agents("a");
        trio.world.waits("the first leads", || trio.world.log("a").contains("this controller leads"));
        for host in ["b", "c"] {
            trio.init(host);
            trio.world.start_controller(host);
        }
        let trio = trio.with_guests();
        Some(trio)
    }

    fn init(&mut self, host: &str) {
        let store = format!("etcd:{}", self.etcd.endpoints().join(","));
        let [ca, certificate, key] =
            ["ca.pem", "controller.pem", "controller.key"].map(|name| self.etcd.client_file(name));
        let options = ["--etcd-ca", &ca, "--etcd-certificate", &certificate, "--etcd-key", &key];
        self.world.add_controller(host, Some(&store), &options);
        let agents = self.fence_agents();
        fs::create_dir_all(&agents).unwrap();
        let program = agents.join("fence_lab");
        fs::write(&program, FENCE_AGENT).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let section = format!("\n[fencing]\nagents = \"{0}\"\nsecrets = \"{0}\"\n", agents.display());
        self.world.configure(host, &section);
    }

    fn fence_agents(&self) -> PathBuf {
        self.world.cluster.dir().join("fence-agents")
    }

    fn with_guests(mut self) -> Trio {
        let world = &self.world;
        // With the token that the leader made for a controller that was added.
        world.log_in("b");
        world.waits("all controllers are there", || self.status()["controllers"].as_array().unwrap().len() == 3);
        self.world.log_in("c");
        self.vms = (1..=GUESTS).map(|n| format!("v{n}")).collect();
        for vm in self.vms.clone() {
            let definition = self.world.cluster.bare(&vm);
            self.world.cluster.start_vm(HOME, &definition);
        }
        self.world.sees(&self.vms, HOME);
        // Each controller answers what it is asked, since all agents have heard of all controllers.
        for host in CONTROLLERS {
            let url = format!("https://{}", self.world.address_of(host));
            self.world.waits(&format!("the controller of {host} knows all hosts"), || {
                let status = self.world.json(&["cluster", "status", "--json", "--controller", &url]);
                status["hosts"]["online"] == 4 && status["vms"]["running"] == GUESTS
            });
        }
        self
    }

    fn status(&self) -> Value {
        self.world.json(&["cluster", "status", "--json"])
    }

    /// Returns the host of the controller that leads, and its term.
    fn leader(&self) -> (String, u64) {
        let mut found = None;
        self.world.waits("a controller leads", || {
            let status = self.status();
            let leads = status["controllers"].as_array().unwrap().iter().find(|of| of["leads"] == true);
            let name = leads.and_then(|of| of["name"].as_str()).map(|name| name.replace("ctl-", ""));
            found = name.zip(status["term"].as_u64());
            found.is_some()
        });
        found.unwrap()
    }

    fn waits_for_successor(&self, term: u64) -> String {
        let (mut leader, begun) = (None, Instant::now());
        self.world.waits("another controller leads", || {
            let status = self.world.skein(&["cluster", "status", "--json"]);
            let Ok(status) = serde_json::from_slice::<Value>(&status.stdout) else { return false };
            let leads = status["controllers"].as_array().unwrap().iter().find(|of| of["leads"] == true);
            let name = leads.and_then(|of| of["name"].as_str()).map(|name| name.replace("ctl-", ""));
            leader = name.filter(|_| status["term"].as_u64() > Some(term));
            leader.is_some()
        });
        println!("another controller was seen to lead {:.1} s later", begun.elapsed().as_secs_f64());
        leader.unwrap()
    }

    /// Returns the newest operation of a kind.
    fn newest(&self, kind: &str) -> Value {
        let all = self.world.json(&["operation", "list", "--json"]);
        all.as_array().unwrap().iter().find(|of| of["kind"]["kind"] == kind).cloned().unwrap_or_default()
    }

    /// Returns an operation, once a controller answers.
    fn operation(&self, id: &str) -> Value {
        let mut found = Value::Null;
        self.world.waits("an operation is shown", || {
            let shown = self.world.skein(&["operation", "show", id, "--json"]);
            found = serde_json::from_slice(&shown.stdout).unwrap_or_default();
            shown.status.success()
        });
        found
    }

    /// Moves guests by a command that begins an operation, lets something happen when the first guest has left, and
    /// follows the operation to its end, by a command that was given before. Each guest of the operation is moved once.
    fn in_the_middle(&mut self, what: &str, command: &[&str], kind: &str, fault: impl FnOnce(&mut Trio)) -> Value {
        self.world.does(command);
        let id = self.newest(kind)["id"].as_str().expect("it has begun").to_owned();
        let watch = Watch::begin(&self.world, &id);
        let is_under_way = |trio: &Trio| {
            let operation = trio.operation(&id);
            let moves = operation["moves"].as_array().unwrap();
            assert!(moves.iter().any(|of| of["state"] == "waiting") || moves.is_empty(), "too late: {operation}");
            moves.iter().any(|of| of["state"] == "done")
        };
        self.world.waits("a guest is elsewhere", || is_under_way(self));
        let at = unix_ms();
        fault(self);
        watch.ends(&self.world);
        let operation = self.operation(&id);
        assert_eq!(operation["state"], "done", "{operation}");
        let begun = operation["moves"].as_array().unwrap().iter().filter_map(|of| of["begun"].as_u64());
        let next = begun.filter(|begun| *begun > at).min().unwrap_or_else(|| panic!("nothing was left: {operation}"));
        println!("{what}: the next move began {:.1} s after that", (next - at) as f64 / 1000.0);
        assert!(next - at < 60_000, "{operation}");
        self.world.cluster.check();
        operation
    }

    /// Drains [`HOME`], with something in the middle of it.
    fn drained(&mut self, what: &str, fault: impl FnOnce(&mut Trio)) {
        let before = self.world.cluster.migrations(HOME).len();
        let operation = self.in_the_middle(what, &["host", "drain", HOME, "--detach"], "drain", fault);
        let places = self.world.places(&self.vms);
        assert!(places.len() == GUESTS && !places.contains(&HOME.to_owned()), "{places:?}");
        let moves = self.world.cluster.migrations(HOME).len() - before;
        let attempts: u64 =
            operation["moves"].as_array().unwrap().iter().filter_map(|of| of["attempts"].as_u64()).sum();
        assert!(moves as u64 <= attempts, "{moves} migrations, and {attempts} were asked for: {operation}");
        if attempts == GUESTS as u64 {
            assert_eq!(moves, GUESTS);
        }
    }

    /// Brings all guests back to [`HOME`].
    fn come_home(&self) {
        self.world.does(&["host", "resume", HOME, "--bring-home"]);
        self.world.sees(&self.vms, HOME);
    }

    /// Says by a rule on which hosts the guests may be. An optimisation moves them there.
    fn rule(&self, hosts: &str) {
        let rule = format!("owners: {{of: {{guests: [{}]}}, within: {{hosts: [{hosts}]}}}}", self.vms.join(", "));
        self.world.does(&["rule", "add", "home", &rule]);
    }

    /// Brings all guests back to [`HOME`], wherever they are, and leaves no rule.
    fn come_home_by_rule(&self) {
        self.rule(HOME);
        self.world.does(&["optimize", "--apply"]);
        self.world.sees(&self.vms, HOME);
        self.world.does(&["rule", "remove", "home"]);
    }

    /// Asserts that agents and the store refuse a controller that led in an earlier term, and does not run: with its
    /// own identity, at its own address.
    fn refuses(&self, deposed: &str, term: u64) {
        let (leader, now) = self.leader();
        assert!(now > term && leader != deposed);
        let identity = ControllerIdentity::load(&self.world.files_of(deposed).join("identity")).unwrap();
        let fake = FakeController::new(&identity);
        let address = self.world.address_of(deposed).to_owned();
        let listener = self.world.cluster.lab().enter(deposed, || TcpListener::bind(&address).unwrap()).unwrap();
        let mut refused = Vec::new();
        while refused.len() < self.world.cluster.hosts().len() {
            let (socket, _) = listener.accept().unwrap();
            let mut agent = fake.accept(socket).unwrap();
            let Some(hello) = agent.try_greet(&fake.welcome()) else { continue };
            agent.command(1, Term(term), None, Request::VmList);
            assert_eq!(agent.reply(1).unwrap_err(), Term(now), "{hello:?}");
            if !refused.contains(&hello.host) {
                refused.push(hello.host);
            }
        }
        let store = self.etcd.store(&self.world.cluster, &leader);
        let key = read_one(&store, &leader_key(), DEADLINE).unwrap().1.expect("a controller leads");
        let base = TermBase(now - key.created.0);
        let of = |number: u64| leadership(&Entry { created: Revision(number - base.0), ..key.clone() }, base).term;
        let write = || {
            let value = Stored::new(*b"1").unwrap();
            Transaction::new().then(Operation::put(Key::new("lab/forged").unwrap(), value))
        };
        match store.commit(&guarded(write(), of(term)), DEADLINE).unwrap() {
            Outcome::Conflict { failed } => assert!(is_deposed(&failed)),
            committed => panic!("a deposed leader wrote: {committed:?}"),
        }
        // It is the term alone that makes the difference.
        assert!(matches!(store.commit(&guarded(write(), of(now)), DEADLINE), Ok(Outcome::Committed { .. })));
    }

    /// Asserts that any controller answers what it is asked, and that what is to change comes to the one that leads.
    fn followers_serve(&self) {
        let (leader, _) = self.leader();
        for (number, host) in CONTROLLERS.iter().filter(|host| **host != leader).enumerate() {
            let url = format!("https://{}", self.world.address_of(host));
            let priority = format!("priority={}", number + 3);
            self.world.does(&["property", "set", "vm", "v1", &priority, "--controller", &url]);
            self.world.waits("the follower shows what was set", || {
                let shown = self.world.json(&["property", "show", "vm", "v1", "--json", "--controller", &url]);
                shown["priority"] == number + 3
            });
        }
    }

    /// Returns how many power-offs were ordered, of which each has to be written down before.
    fn orders(&self) -> u64 {
        let orders = fs::read_to_string(self.fence_agents().join("orders")).unwrap_or_default().lines().count() as u64;
        let all = self.world.skein(&["operation", "list", "--json"]);
        if let Ok(all) = serde_json::from_slice::<Value>(&all.stdout) {
            let attempts = all.as_array().unwrap().iter().filter_map(|of| of["fencing"]["attempts"].as_u64());
            let attempts: u64 = attempts.sum();
            assert!(orders <= attempts, "{orders} power-offs were ordered, and {attempts} are written down: {all:?}");
        }
        orders
    }

    /// Says by the fencing device that the host is off, and waits until these guests run on other hosts.
    fn is_off(&self, vms: &[String], host: &str) {
        let at = Instant::now();
        fs::write(self.fence_agents().join("is-off"), "").unwrap();
        self.world.waits("they run elsewhere", || {
            let places = self.world.places(vms);
            places.len() == vms.len() && !places.contains(&host.to_owned())
        });
        let took = at.elapsed().as_secs_f64();
        println!("{} guests of '{host}' ran elsewhere {took:.1} s after the proof", vms.len());
        assert!(took < 60.0);
    }

    /// Ends all processes of a host, without a word to anybody.
    fn kill_host(&mut self, host: &str) {
        self.world.cluster.kill(host);
        for vm in &self.vms {
            self.world.cluster.kill_qemu(vm, host);
        }
        if CONTROLLERS.contains(&host) {
            self.world.kill_controller(host);
            self.etcd.kill(host);
        }
    }
}

/// A command that follows an operation.
struct Watch(Child);

impl Watch {
    fn begin(world: &Controlled, id: &str) -> Watch {
        let mut command = world.command(&["operation", "watch", id]);
        Watch(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Waits until the command has ended, with the code for an operation that is done.
    #[track_caller]
    fn ends(mut self, world: &Controlled) {
        let mut status = None;
        world.waits("the command that follows ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(0));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

#[test]
fn whatever_fails_in_the_middle_the_rest_goes_on_and_no_guest_runs_twice() {
    let Some(mut trio) = Trio::up() else { return };
    let begun = Instant::now();
    let told = |what: &str| println!("-- {what}: {:.0} s", begun.elapsed().as_secs_f64());
    trio.followers_serve();
    leaders_fail_in_a_drain(&mut trio);
    told("leaders");
    others_fail_in_a_drain(&mut trio);
    told("others");
    a_leader_is_killed_in_an_optimisation(&mut trio);
    told("optimisation");
    a_leader_stops_while_a_host_is_switched_off(&mut trio);
    told("fencing");
    hosts_die(&mut trio);
    told("hosts");
    trio.world.cluster.check();
}

fn leaders_fail_in_a_drain(trio: &mut Trio) {
    trio.drained("the leader killed in mid-drain", |trio| {
        let (leader, _) = trio.leader();
        trio.world.kill_controller(&leader);
        // What is started again finds another leader, or none yet.
        trio.world.start_controller(&leader);
    });
    trio.come_home();

    let mut deposed = String::new();
    trio.drained("the leader stopped in mid-drain, and let go on", |trio| {
        let (leader, term) = trio.leader();
        trio.world.signal_controller(&leader, Signal::SIGSTOP);
        trio.waits_for_successor(term);
        trio.world.signal_controller(&leader, Signal::SIGCONT);
        deposed = leader;
    });
    let steps_down = "this controller leads no more";
    trio.world.waits("the one that was stopped leads no more", || trio.world.log(&deposed).contains(steps_down));
    trio.come_home();

    trio.drained("the leader's host cut off in mid-drain, and healed", |trio| {
        let (leader, term) = trio.leader();
        trio.world.cluster.lab().cut(&leader, 0, Cut::BlackHole).unwrap();
        trio.waits_for_successor(term);
        trio.world.cluster.lab().heal(&leader, 0).unwrap();
        deposed = leader;
    });
    trio.world.waits("the one that was cut off leads no more", || trio.world.log(&deposed).contains(steps_down));
    trio.come_home();
}

fn others_fail_in_a_drain(trio: &mut Trio) {
    let mut member = String::new();
    trio.drained("the member that leads etcd killed in mid-drain", |trio| {
        member = trio.etcd.leader(&trio.world.cluster);
        trio.etcd.kill(&member);
    });
    let address = trio.etcd.endpoint_of(&member);
    trio.world.waits("the member that is gone is told", || {
        let status = trio.status();
        let told = status["attention"].as_array().unwrap().iter().filter_map(Value::as_str);
        told.clone().any(|told| told.contains(&address) && told.contains("2 of 3 are well"))
    });
    trio.etcd.start_member(&trio.etcd_program, &trio.world.cluster, &member);
    trio.come_home();

    trio.drained("the agent killed in mid-drain, and started again", |trio| {
        trio.world.cluster.kill(HOME);
        trio.world.cluster.start(HOME);
    });
    trio.come_home();
}

fn a_leader_is_killed_in_an_optimisation(trio: &mut Trio) {
    trio.rule("a, b, c");
    let (leader, term) = trio.leader();
    let killed = leader.clone();
    trio.in_the_middle(
        "the leader killed in mid-optimisation",
        &["optimize", "--apply", "--detach"],
        "optimize",
        |trio| {
            trio.world.kill_controller(&killed);
        },
    );
    let places = trio.world.places(&trio.vms);
    assert!(places.len() == GUESTS && !places.contains(&HOME.to_owned()), "{places:?}");
    trio.world.waits("the controller that is gone is told", || {
        let status = trio.status();
        let all = status["controllers"].as_array().unwrap();
        all.iter().any(|of| of["name"] == format!("ctl-{leader}") && of["gone_since"].is_u64())
    });
    trio.refuses(&leader, term);
    trio.world.start_controller(&leader);
    trio.come_home_by_rule();
}

fn a_leader_stops_while_a_host_is_switched_off(trio: &mut Trio) {
    let vms = trio.vms.clone();
    trio.world.does(&[&["cluster", "settings"], &SHORT_TIMES[..]].concat());
    trio.world.does(&["host", "fencing", "set", HOME, "--agent", "fence_lab"]);
    // Only the agent is gone, and the guests run on.
    trio.world.cluster.kill(HOME);
    trio.world.waits("the host is to be switched off", || trio.orders() == 1);
    let (leader, term) = trio.leader();
    trio.world.signal_controller(&leader, Signal::SIGSTOP);
    let stopped = Instant::now();
    trio.waits_for_successor(term);
    trio.world.waits("the next leader orders its own power-off", || trio.orders() == 2);
    println!("the next leader's power-off came {:.1} s after the leader stopped", stopped.elapsed().as_secs_f64());
    assert_eq!(trio.world.places(&vms), [HOME; GUESTS], "they run on the host that is lost, and nowhere else");
    trio.world.signal_controller(&leader, Signal::SIGCONT);
    vms.iter().for_each(|vm| assert!(trio.world.cluster.kill_qemu(vm, HOME)));
    trio.is_off(&vms, HOME);
    assert_eq!(trio.orders(), 2);
    assert_eq!(trio.newest("fence")["fencing"]["attempts"], 2);
    trio.world.cluster.check();

    // The host is back, and has no guests.
    trio.world.does(&["host", "fencing", "remove", HOME]);
    fs::remove_file(trio.fence_agents().join("is-off")).unwrap();
    trio.world.cluster.start(HOME);
    trio.world.waits("the host is back", || trio.world.host(HOME)["contact"] == "online");
    trio.world.waits("it has forgotten them", || trio.world.cluster.vms(HOME).is_empty());
    trio.come_home_by_rule();
}

fn hosts_die(trio: &mut Trio) {
    let vms = trio.vms.clone();
    let (leader, _) = trio.leader();
    let others: Vec<&str> = CONTROLLERS.into_iter().filter(|host| *host != leader).collect();
    for host in &others {
        trio.world.does(&["host", "fencing", "set", host, "--agent", "fence_lab"]);
    }
    let (before, mut dies) = (trio.orders(), "");
    trio.in_the_middle("a host killed in mid-drain", &["host", "drain", HOME, "--detach"], "drain", |trio| {
        let mut lost = Vec::new();
        trio.world.waits("a guest is on a host that may die", || {
            let has = |host: &&&str| vms.iter().any(|vm| trio.world.cluster.where_runs(vm) == [**host]);
            dies = others.iter().find(has).copied().unwrap_or_default();
            !dies.is_empty()
        });
        lost.extend(vms.iter().filter(|vm| trio.world.cluster.where_runs(vm) == [dies]).cloned());
        trio.kill_host(dies);
        trio.world.waits("the host is to be switched off", || trio.orders() > before);
        trio.is_off(&lost, dies);
    });
    trio.world.waits("all guests run on hosts that are left", || {
        let places = trio.world.places(&vms);
        places.len() == GUESTS && !places.iter().any(|place| place == dies || place == HOME)
    });
    trio.world.cluster.check();

    // A host without a fencing device, of which nobody says that it is off.
    trio.world.does(&["host", "resume", HOME]);
    trio.world.does(&["migrate", "v1", "--to", HOME]);
    trio.world.sees(&vms[..1], HOME);
    let before = trio.orders();
    trio.kill_host(HOME);
    trio.world.waits("the host is lost", || trio.world.host(HOME)["contact"] == "lost");
    let seconds = std::env::var("SKEIN_NO_PROOF_S").ok().and_then(|text| text.parse().ok()).unwrap_or(30);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        assert!(trio.world.places(&vms[..1]).is_empty());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(trio.orders(), before, "nobody was switched off");
    let vm = trio.world.json(&["vm", "show", "v1", "--cluster", "--json"]);
    assert_eq!((&vm["host"], &vm["state"]), (&HOME.into(), &"lost".into()), "{vm}");
    println!("nothing started without proof in {seconds} s after the host was lost");
}
