//! A real cluster of etcd on this machine, whose members are killed, paused, and started again.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skein_store::{Store, Transaction};
use skein_store_etcd::{EtcdOptions, EtcdStore};

/// How long a cluster may take to begin, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A cluster, which ends with this value.
pub struct Cluster {
    pub members: Vec<Member>,
    folder: tempfile::TempDir,
    /// What the members agree on, in etcd's words.
    token: String,
    urls: String,
    more: Vec<String>,
    scheme: &'static str,
}

pub struct Member {
    name: String,
    client: u16,
    peer: u16,
    process: Option<Child>,
}

/// etcd's program, or `None` and why there is none.
pub fn program() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/etcd/etcd");
    if path.exists() {
        return Some(path);
    }
    println!("skipped: there is no etcd here (scripts/etcd.sh)");
    None
}

/// Ports that nobody uses now.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("there is a free port"));
    listeners.map(|listener| listener.local_addr().expect("it is bound").port())
}

impl Cluster {
    /// Starts a cluster of three, or `None` if there is no etcd.
    pub fn start() -> Option<Cluster> {
        Cluster::start_with(3, "http", |_| Vec::new())
    }

    /// Starts a cluster of some members, with more of etcd's options, which may name files in the cluster's folder.
    pub fn start_with(count: usize, scheme: &'static str, more: impl Fn(&Path) -> Vec<String>) -> Option<Cluster> {
        let program = program()?;
        // Another test may take a port between its choice and its use.
        for _ in 0..3 {
            let mut cluster = Cluster::new(count, scheme, &more);
            (0..count).for_each(|member| cluster.start_member(&program, member));
            if cluster.is_ready(count) {
                return Some(cluster);
            }
            println!("a cluster did not begin: {}", cluster.log(0));
        }
        panic!("no cluster of etcd begins here");
    }

    fn new(count: usize, scheme: &'static str, more: &impl Fn(&Path) -> Vec<String>) -> Cluster {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().expect("there is a temporary folder");
        let members: Vec<Member> = (0..count)
            .map(|n| {
                let [client, peer] = free_ports();
                Member { name: format!("n{n}"), client, peer, process: None }
            })
            .collect();
        let urls = members.iter().map(|member| format!("{}=http://127.0.0.1:{}", member.name, member.peer));
        let urls = urls.collect::<Vec<_>>().join(",");
        let token = format!("skein-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let more = more(folder.path());
        Cluster { members, token, urls, more, scheme, folder }
    }

    fn start_member(&mut self, program: &Path, member: usize) {
        let folder = self.folder.path().to_path_buf();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_path(member));
        let Member { name, client, peer, process } = &mut self.members[member];
        let (client, peer) = (format!("{}://127.0.0.1:{client}", self.scheme), format!("http://127.0.0.1:{peer}"));
        let started = Command::new(program)
            .args(["--name", name, "--data-dir"])
            .arg(folder.join(&*name))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &self.urls, "--initial-cluster-token", &self.token])
            .args(["--initial-cluster-state", "new", "--pre-vote"])
            .args(&self.more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("the log can be made"))
            .spawn();
        *process = Some(started.expect("etcd starts"));
    }

    /// Waits until the cluster answers. `false`: it does not, or a member has ended.
    fn is_ready(&mut self, count: usize) -> bool {
        let deadline = Instant::now() + START_TIMEOUT;
        if self.scheme != "http" {
            // A test with certificates waits by itself.
            return true;
        }
        while Instant::now() < deadline {
            let ended = |member: &mut Member| {
                member.process.as_mut().is_some_and(|process| !matches!(process.try_wait(), Ok(None)))
            };
            if self.members.iter_mut().any(ended) {
                return false;
            }
            let healthy = self.members.iter().filter(|member| member.metric("etcd_server_has_leader") == Some(1));
            if healthy.count() == count {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }

    fn log_path(&self, member: usize) -> PathBuf {
        self.folder.path().join(format!("{}.log", self.members[member].name))
    }

    /// The end of a member's log.
    pub fn log(&self, member: usize) -> String {
        let log = std::fs::read_to_string(self.log_path(member)).unwrap_or_default();
        log.lines().rev().take(5).collect::<Vec<_>>().join("\n")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("{}://127.0.0.1:{}", self.scheme, member.client)).collect()
    }

    /// A store in this cluster, below a namespace.
    pub fn store(&self, namespace: &str) -> EtcdStore {
        let options = EtcdOptions { namespace: namespace.into(), ..EtcdOptions::new(self.endpoints()) };
        EtcdStore::open(&options).unwrap_or_else(|error| panic!("{error}: {error:?}"))
    }

    /// Which member leads.
    pub fn leader(&self) -> usize {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            let leads = |member: &Member| member.process.is_some() && member.metric("etcd_server_is_leader") == Some(1);
            if let Some(leader) = self.members.iter().position(leads) {
                return leader;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("no member leads: {}", self.log(0));
    }

    /// Kills a member as the loss of its host does: nothing is said to anybody.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut process) = self.members[member].process.take() {
            process.kill().expect("it is this test's own");
            process.wait().expect("it is this test's own");
        }
    }

    /// Starts a member again that was killed.
    pub fn revive(&mut self, member: usize) {
        self.start_member(&program().expect("it was there before"), member);
    }

    /// Stops a member's process, or lets it go on.
    pub fn pause(&self, member: usize, signal: Signal) {
        let process = self.members[member].process.as_ref().expect("it runs");
        kill(Pid::from_raw(i32::try_from(process.id()).expect("it is a process id")), signal).expect("it runs");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.members.iter_mut().filter_map(|member| member.process.as_mut()) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Member {
    /// What a member says of itself. `None`: it does not answer.
    fn metric(&self, name: &str) -> Option<u64> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.client));
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }
}

/// Waits until a store answers.
pub fn wait_for(store: &dyn Store) {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        match store.commit(&Transaction::new(), Duration::from_secs(2)) {
            Ok(_) => return,
            Err(error) => assert!(Instant::now() < deadline, "{error}: {error:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
