//! Two of the lab's hosts with addresses in a migration network, and their agents.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use skein_agent::{AcceptorSettings, Addresses, Agent, AgentSettings, Allow, install_redirect};
use skein_identity::{ClusterCa, Identity, Validity};
use skein_inventory::{HostsFile, MigrationNetwork};
use skein_lab_hosts::{Lab, Spec};
use socket2::SockRef;

/// Bounds every wait: the machine may be busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The networks, and hosts that only this file knows.
pub const NETWORK: &str = "network = ['10.9.9.0/24', 'fd09::/64']\n\
                           [[host]]\nname = 'a'\naddress = ['10.9.9.1', 'fd09::1']\n\
                           [[host]]\nname = 'b'\naddress = ['10.9.9.2', 'fd09::2']\n\
                           [[host]]\nname = 'c'\naddress = ['10.9.9.3']\n";

/// Returns a lock, so that there is one lab at a time: files are counted.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub struct World {
    // These are dropped in this order: ends, then the hosts that they run in.
    pub agents: [Option<Agent>; 2],
    pub lab: Lab,
    identities: [Identity; 2],
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    /// Makes two hosts with addresses in the migration network, whose connections are caught at a, and their agents.
    pub fn new(name: &str) -> World {
        World::with(name, "allow = ['a']")
    }

    /// `first` are lines of the file of both hosts.
    pub fn with(name: &str, first: &str) -> World {
        let turn = turn();
        let lab = Lab::up(Spec::pairs(&format!("{name}{}", std::process::id()), 2, None)).unwrap();
        for (host, number) in [("a", 1), ("b", 2)] {
            for address in [format!("10.9.9.{number}/24"), format!("fd09::{number}/64")] {
                let family: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
                let mut ip = lab.command(host, "ip").unwrap();
                assert!(ip.args(["addr", "add", &address, "dev", "nic0"]).args(family).status().unwrap().success());
            }
        }
        let ca = ClusterCa::create("test").unwrap();
        let identities = ["a", "b"].map(|host| ca.issue(host, Validity::days(1)).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let mut world = World { agents: [None, None], lab, identities, dir, _turn: turn };
        for host in ["a", "b"] {
            world.write_network(host, &format!("{first}\n{NETWORK}"));
        }
        let listed =
            |host: &str| format!("[[host]]\nname = '{host}'\naddress = ['{}']\n", world.lab.ip(host, 0).unwrap());
        let of_c = "[[host]]\nname = 'c'\naddress = ['127.0.0.1:9']\n";
        fs::write(world.path("hosts.toml"), listed("a") + &listed("b") + of_c).unwrap();
        (0..2).for_each(|at| world.start_agent(at));
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write_network(&self, host: &str, text: &str) {
        fs::write(self.path(&format!("{host}.toml")), text).unwrap();
    }

    pub fn network(&self) -> MigrationNetwork {
        MigrationNetwork::parse(&fs::read_to_string(self.path("a.toml")).unwrap(), "a.toml").unwrap()
    }

    pub fn start_agent(&mut self, at: usize) {
        let host = ["a", "b"][at];
        let acceptor = AcceptorSettings {
            listen: "[::]:7070".parse().unwrap(),
            addresses: Addresses::default(),
            allow_plain_data: false,
            outage: Duration::from_secs(60),
        };
        let settings = AgentSettings {
            hosts_file: self.path("hosts.toml"),
            migration_network: self.path(&format!("{host}.toml")),
            ..AgentSettings::tunnels(acceptor, Allow::new(&["/nowhere/*"]).unwrap())
        };
        let start = || Agent::start(settings, &self.identities[at]).unwrap();
        self.agents[at] = Some(self.lab.enter(host, start).unwrap());
        if at == 0 {
            self.wait_for("an agent that listens", || self.connect("127.0.0.1:7071").is_ok());
        }
    }

    pub fn wait_for(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn install(&self) {
        self.install_at("a");
    }

    pub fn install_at(&self, host: &str) {
        let (network, hosts) = (self.network(), HostsFile::default());
        self.lab.enter(host, || install_redirect(&network, &hosts)).unwrap().unwrap();
    }

    /// Connects at a.
    pub fn connect(&self, to: &str) -> io::Result<TcpStream> {
        let to: SocketAddr = to.parse().unwrap();
        self.lab.enter("a", || patient(TcpStream::connect_timeout(&to, PATIENCE)?)).unwrap()
    }

    /// Listens at b.
    pub fn listen(&self, at: &str) -> TcpListener {
        let at: SocketAddr = at.parse().unwrap();
        let listener = self.lab.enter("b", || TcpListener::bind(at)).unwrap().unwrap();
        SockRef::from(&listener).set_read_timeout(Some(PATIENCE)).unwrap();
        listener
    }

    /// Returns a connection's two ends: the program's at a, and that at b.
    pub fn joined(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let near = self.connect(&listener.local_addr().unwrap().to_string()).unwrap();
        (near, patient(listener.accept().unwrap().0).unwrap())
    }

    /// Returns how many streams each agent has.
    pub fn streams(&self) -> Vec<usize> {
        let of = |agent: &Agent| agent.snapshots().iter().map(|session| session.streams).sum();
        self.agents.iter().flatten().map(of).collect()
    }

    pub fn rules(&self) -> String {
        let listed = self.lab.command("a", "nft").unwrap().args(["list", "ruleset"]).output().unwrap();
        assert!(listed.status.success());
        String::from_utf8(listed.stdout).unwrap()
    }
}

/// Returns the socket with a bound for its waits.
pub fn patient(socket: TcpStream) -> io::Result<TcpStream> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}
