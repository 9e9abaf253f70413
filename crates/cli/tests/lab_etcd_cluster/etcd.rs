//! A cluster of etcd on hosts of the lab, as docs/cluster.md says: with certificates of a CA of its own.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use skein_identity::{ClusterCa, ControllerNames, Validity};
use skein_lab_cluster::{Cluster, until};
use skein_store_etcd::{EtcdOptions, EtcdStore, EtcdTls};

use super::controlled::DEADLINE;

/// A cluster of etcd, which ends with this value.
pub struct Etcd {
    dir: PathBuf,
    members: Vec<Member>,
}

struct Member {
    host: String,
    ip: IpAddr,
    process: Option<Child>,
}

/// Returns etcd's program, or `None` and why there is none.
pub fn program() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/etcd/etcd");
    if path.exists() {
        return Some(path);
    }
    println!("skipped: there is no etcd here (scripts/etcd.sh)");
    None
}

impl Etcd {
    /// Starts a member on each of these hosts.
    pub fn start(program: &Path, cluster: &Cluster, hosts: &[&str]) -> Etcd {
        let dir = cluster.dir().join("etcd");
        std::fs::create_dir(&dir).unwrap();
        let ca = ClusterCa::create("etcd").unwrap();
        let issue = |name: &str, ip: Option<IpAddr>| {
            let names = ControllerNames::new(name, ip.map(|ip| ip.to_string()).iter().map(String::as_str)).unwrap();
            ca.issue_controller(&names, Validity::days(1)).unwrap().save(&dir.join(name)).unwrap();
        };
        issue("client", None);
        let mut members = Vec::new();
        for host in hosts {
            let ip = cluster.lab().ip(host, 0).unwrap();
            issue(&format!("member-{host}"), Some(ip));
            members.push(Member { host: (*host).to_owned(), ip, process: None });
        }
        let mut etcd = Etcd { dir, members };
        for host in hosts {
            etcd.start_member(program, cluster, host);
        }
        let all_follow = || etcd.members.iter().all(|member| member.metric("etcd_server_has_leader") == Some(1));
        let ns = |etcd: &Etcd| etcd.members.iter().map(|member| member.host.clone()).collect::<Vec<_>>();
        let is_there = until(DEADLINE, || cluster.lab().enter(hosts[0], all_follow).unwrap());
        assert!(is_there, "no cluster of etcd begins on {:?}: {}", ns(&etcd), etcd.log(hosts[0]));
        etcd
    }

    /// Returns a file of the client's: `ca.pem`, `controller.pem`, `controller.key`.
    pub fn client_file(&self, name: &str) -> String {
        self.dir.join("client").join(name).display().to_string()
    }

    /// Returns the members' addresses for clients.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("https://{}:2379", member.ip)).collect()
    }

    /// Returns the address of one member.
    pub fn endpoint_of(&self, host: &str) -> String {
        format!("https://{}:2379", self.member(host).ip)
    }

    /// Opens the store of the controllers, in the network of one of the hosts.
    pub fn store(&self, cluster: &Cluster, host: &str) -> EtcdStore {
        let [ca, certificate, key] = ["ca.pem", "controller.pem", "controller.key"].map(|name| self.client_file(name));
        let tls = Some(EtcdTls { ca: ca.into(), identity: Some((certificate.into(), key.into())) });
        let options = EtcdOptions { tls, ..EtcdOptions::new(self.endpoints()) };
        // The store's threads are in the network in which they are begun.
        cluster.lab().enter(host, || EtcdStore::open(&options).unwrap()).unwrap()
    }

    fn member(&self, host: &str) -> &Member {
        self.members.iter().find(|member| member.host == host).expect("a member is there")
    }

    /// Starts a member, for the first time or again.
    pub fn start_member(&mut self, program: &Path, cluster: &Cluster, host: &str) {
        let url = |member: &Member, port: u16| format!("https://{}:{port}", member.ip);
        let peers: Vec<String> =
            self.members.iter().map(|member| format!("{}={}", member.host, url(member, 2380))).collect();
        let member = self.members.iter_mut().find(|member| member.host == host).expect("a member is there");
        let files = self.dir.join(format!("member-{host}"));
        let file = |name: &str| files.join(name).display().to_string();
        let log = OpenOptions::new().create(true).append(true).open(files.join("log")).unwrap();
        let mut command = cluster.lab().command(host, program).unwrap();
        command.args(["--name", host, "--data-dir", &file("data"), "--pre-vote"]);
        command.args(["--listen-client-urls", &url(member, 2379), "--advertise-client-urls", &url(member, 2379)]);
        command.args(["--listen-peer-urls", &url(member, 2380), "--initial-advertise-peer-urls", &url(member, 2380)]);
        command.args(["--initial-cluster", &peers.join(","), "--initial-cluster-token", "lab"]);
        command.args(["--listen-metrics-urls", &format!("http://{}:2381", member.ip)]);
        for of in ["", "peer-"] {
            command.arg(format!("--{of}client-cert-auth"));
            command.arg(format!("--{of}trusted-ca-file={}", file("ca.pem")));
            command.arg(format!("--{of}cert-file={}", file("controller.pem")));
            command.arg(format!("--{of}key-file={}", file("controller.key")));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        member.process = Some(command.spawn().unwrap());
    }

    /// Kills a member (SIGKILL).
    pub fn kill(&mut self, host: &str) {
        let member = self.members.iter_mut().find(|member| member.host == host).expect("a member is there");
        if let Some(mut process) = member.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Returns the host of the member that leads etcd.
    pub fn leader(&self, cluster: &Cluster) -> String {
        let mut found = None;
        let leads = |member: &&Member| member.process.is_some() && member.metric("etcd_server_is_leader") == Some(1);
        let look = || self.members.iter().find(leads).map(|member| member.host.clone());
        let hosts: Vec<&Member> = self.members.iter().filter(|member| member.process.is_some()).collect();
        let is_found = until(DEADLINE, || {
            found = cluster.lab().enter(&hosts[0].host, look).unwrap();
            found.is_some()
        });
        assert!(is_found, "no member of etcd leads");
        found.unwrap()
    }

    fn log(&self, host: &str) -> String {
        let log = std::fs::read_to_string(self.dir.join(format!("member-{host}/log"))).unwrap_or_default();
        log.lines().rev().take(20).collect::<Vec<_>>().join("\n")
    }
}

impl Member {
    /// Returns what a member says of itself. `None`: it does not answer.
    fn metric(&self, name: &str) -> Option<u64> {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(self.ip, 2381), Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for process in self.members.iter_mut().filter_map(|member| member.process.as_mut()) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
