//! Tests what people, scripts and worse ask of an agent over its socket: real requests, a real agent on the loopback
//! interface, no privileges.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use skein_agent::{AcceptorSettings, Addresses, Agent, AgentSettings, Allow, Dirs, VmSettings};
use skein_api::{HostView, MigrateOptions, Reply, Request, Transport};
use skein_client::{CallError, Client};
use skein_handover::MigrationLimits;
use skein_identity::{ClusterCa, Validity};

const SECOND: Duration = Duration::from_secs(1);
/// The time within which anything happens, on a busy machine, too.
const PATIENCE: Duration = Duration::from_secs(60);
/// Says how many connect: more than an agent serves at once.
const MANY: usize = 140;

struct World {
    client: Client,
    _agent: Agent,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let identity = ClusterCa::create("test").unwrap().issue("a", Validity::days(1)).unwrap();
        let dirs = Dirs { state: dir.path().join("state"), run: dir.path().join("run") };
        let client = Client::new(&dirs.run.join("agent.sock"));
        let vms = VmSettings {
            dirs,
            controllers_file: dir.path().join("controllers.toml"),
            qemu: None,
            limits: MigrationLimits::default(),
            keeper_command: vec!["/nonexistent".into()],
            power_off: Vec::new(),
            update: Default::default(),
            watchdog: None,
        };
        let acceptor = AcceptorSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            addresses: Addresses { nics: vec!["lo".into()], ..Addresses::default() },
            allow_plain_data: false,
            outage: Duration::from_secs(60),
        };
        let settings = AgentSettings {
            hosts_file: dir.path().join("hosts.toml"),
            vms: Some(vms),
            ..AgentSettings::tunnels(acceptor, Allow::new(&["/nowhere/*"]).unwrap())
        };
        World { client, _agent: Agent::start(settings, &identity).unwrap(), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    #[track_caller]
    fn refused(&self, request: &Request) -> String {
        match self.client.call(request, PATIENCE) {
            Err(error @ CallError::Refused(_)) => error.to_string(),
            other => panic!("{request:?} should be refused, and is {other:?}"),
        }
    }

    /// Waits until the clients that hung up are gone.
    #[track_caller]
    fn serves(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.client.call(&Request::VmList, PATIENCE) {
                Ok(answer) => return assert_eq!(answer, Reply::Vms { vms: vec![] }),
                Err(error) => assert!(matches!(error, CallError::Refused(_)) && Instant::now() < deadline, "{error:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the answer to a line, whatever is in the line.
    fn say(&self, line: &[u8]) -> String {
        let mut stream = self.client.connect().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(line).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer
    }
}

#[test]
fn no_request_takes_a_place_for_good() {
    let world = World::new();
    let endless = br#"{"request":"vm-stop","name":"t1","timeout_s":18446744073709551615,"force":true}"#;
    for _ in 0..MANY {
        let answer = world.say(&[&endless[..], b"\n"].concat());
        assert!(answer.contains("timeout_s cannot be 18446744073709551615"), "{answer}");
    }
    let long = format!("{{\"request\":\"{}\"}}\n", "\u{202e}x".repeat(5000));
    for odd in ["\n", "{}\n", "[]\n", "{\"request\":\"vm-stop\",\"name\":1}\n", &long] {
        let answer = world.say(odd.as_bytes());
        assert!(answer.contains("\"reply\":\"error\"") && answer.len() < 700, "{answer}");
        assert!(!answer.contains('\u{202e}'));
    }
    for _ in 0..MANY {
        drop(world.client.connect().unwrap());
    }
    world.serves();
}

#[test]
fn who_is_one_too_many_is_told() {
    let world = World::new();
    world.serves();
    // The agent drops clients that say nothing for five seconds: a round that took about as long shows nothing.
    let is_told = (0..10).any(|_| {
        let begin = Instant::now();
        let idle: Vec<UnixStream> = (0..128).map(|_| world.client.connect().unwrap()).collect();
        let told: Vec<_> = (0..20).map(|_| world.client.call(&Request::VmList, PATIENCE)).collect();
        let is_in_time = begin.elapsed() < 4 * SECOND;
        drop(idle);
        world.serves();
        let is_refused = |told: &Result<Reply, CallError>| match told {
            Err(CallError::Refused(why)) => why.message.contains("too many commands at once"),
            _ => false,
        };
        assert!(!is_in_time || told.iter().all(is_refused), "{told:?}");
        is_in_time
    });
    assert!(is_told, "all rounds took too long");
}

#[test]
fn names_that_are_none_go_no_further() {
    let world = World::new();
    for odd in ["", "b\n2026-01-01 INFO all is well", "b\0", &"b".repeat(5000)] {
        let told = world.refused(&Request::HostShow { name: Some(odd.into()) });
        assert!(told.contains("no name of a host") && told.len() < 400, "{told}");
        let told = world.refused(&Request::MigrationCancel { id: odd.into() });
        assert!(told.contains("id") && told.len() < 400 && !told.contains('\n'), "{told}");
    }
    assert!(world.refused(&Request::MigrationCancel { id: String::new() }).contains("an empty id"));
    assert!(world.refused(&Request::MigrationShow { id: "4f".into() }).contains("no migration '4f'"));
}

#[test]
fn a_list_of_hosts_that_is_a_pipe_is_told_at_once() {
    let world = World::new();
    nix::unistd::mkfifo(&world.path("hosts.toml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let begin = Instant::now();
    for _ in 0..3 {
        let told = world.refused(&Request::HostList);
        assert!(told.contains("hosts.toml cannot be read: it is a pipe (FIFO)"), "{told}");
    }
    assert!(begin.elapsed() < PATIENCE);
    fs::remove_file(world.path("hosts.toml")).unwrap();
    assert!(matches!(world.client.call(&Request::HostList, PATIENCE), Ok(Reply::Hosts { .. })));
}

#[test]
fn nothing_is_moved_by_a_list_of_hosts_that_makes_no_sense() {
    let world = World::new();
    let (vm, to) = ("web1".to_owned(), "b".to_owned());
    // A request that says how may fail, too: the file says where the other host is.
    let given = MigrateOptions { transport: Some(Transport::Multichannel), ..MigrateOptions::default() };
    let requests = [MigrateOptions::default(), given].map(|options| {
        let (vm, to) = (vm.clone(), to.clone());
        let check = Request::Check { vm: vm.clone(), to: to.clone(), options: options.clone() };
        [check, Request::Migrate { vm, to, options, detach: false }]
    });
    for (file, says) in [
        ("transport = 'nonsense'\n", "hosts.toml:1:13: transport cannot be \"nonsense\""),
        ("\ntransprot = 'auto'\n", "hosts.toml:2:1"),
    ] {
        fs::write(world.path("hosts.toml"), file).unwrap();
        for request in requests.iter().flatten() {
            let told = world.refused(request);
            assert!(told.contains(says) && told.contains("mend the file"), "{told}");
        }
    }
    fs::remove_file(world.path("hosts.toml")).unwrap();
    for request in requests.iter().flatten() {
        let told = world.refused(request);
        assert!(told.contains("web1") && !told.contains("hosts.toml"), "{told}");
    }
}

#[test]
fn hosts_are_listed_soon_and_those_that_do_not_answer_with_the_reason() {
    let world = World::new();
    // One host takes connections and says nothing, on the other nobody listens.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let host = |name: String, address| format!("[[host]]\nname = '{name}'\naddress = ['{address}']\n");
    let file: String =
        (1..41).map(|n| host(format!("closed{n:02}"), SocketAddr::from(([127, 0, 1, n], closed)))).collect();
    fs::write(world.path("hosts.toml"), file + &host("silent".into(), silent.local_addr().unwrap())).unwrap();

    let is_told = |host: &HostView| {
        host.reachable == Some(false) && (host.name == "silent" || host.note.contains("Connection refused"))
    };
    let end = Instant::now() + PATIENCE;
    let hosts = loop {
        let begin = Instant::now();
        let hosts = match world.client.call(&Request::HostList, PATIENCE) {
            Ok(Reply::Hosts { hosts }) => hosts,
            other => panic!("{other:?}"),
        };
        assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
        // A machine that stands still for seconds does not ask all of them in time.
        if hosts[1..].iter().all(is_told) || Instant::now() > end {
            break hosts;
        }
    };
    assert_eq!(hosts.len(), 42);
    assert!(hosts.is_sorted_by_key(|host| &host.name));
    let own = &hosts[0];
    assert_eq!((own.name.as_str(), own.is_local, own.reachable), ("a", true, Some(true)));
    assert!(own.facts.as_ref().is_some_and(|facts| facts.cpus > 0 && facts.name == "a"), "{own:?}");
    for other in &hosts[1..] {
        assert_eq!((other.reachable, &other.facts), (Some(false), &None), "{other:?}");
        assert!(other.note.contains(&format!("the agent of {} cannot be reached", other.name)), "{other:?}");
        assert!(other.name == "silent" || other.note.contains("Connection refused"), "{other:?}");
    }
}

#[test]
fn what_is_no_qmp_socket_is_named_when_it_is_to_be_adopted() {
    let world = World::new();
    fs::create_dir(world.path("dir")).unwrap();
    fs::write(world.path("file"), "").unwrap();
    nix::unistd::mkfifo(&world.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    drop(UnixListener::bind(world.path("left")).unwrap());
    for (name, says, cure) in [
        ("none", "there is no ", "-qmp unix:PATH"),
        ("dir", "is a directory, and no socket", "-qmp unix:PATH"),
        ("file", "is a regular file, and no socket", "-qmp unix:PATH"),
        ("pipe", "is no socket", "-qmp unix:PATH"),
        ("left", "nobody listens on ", "still running"),
    ] {
        let told = world.refused(&Request::VmAdopt { qmp: world.path(name), name: None });
        assert!(told.contains(says) && told.contains(cure) && told.contains(name), "{told}");
        assert!(!told.contains("another program"), "{told}");
    }
    assert!(world.refused(&Request::VmAdopt { qmp: "vm7.qmp".into(), name: None }).contains("from the root"));
}
