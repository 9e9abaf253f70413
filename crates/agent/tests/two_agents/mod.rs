//! Two of the lab's hosts, a and b, with an agent each, which may have VMs.
#![allow(dead_code)] // each test takes of it what it needs

use std::fs;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use skein_agent::{AcceptorSettings, Addresses, Agent, AgentSettings, Allow, Dirs, VmSettings, WantedConnections};
use skein_api::{Reply, Request, VmView};
use skein_client::Client;
use skein_handover::MigrationLimits;
use skein_identity::{ClusterCa, Identity, Validity};
use skein_lab_hosts::{Lab, Spec};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a lock, so that there is one lab at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub struct TwoAgents {
    // These are dropped in this order: VMs (they outlive agents), agents, the hosts that they run in.
    vms: Vms,
    _agents: [Agent; 2],
    pub lab: Lab,
    pub identities: [Identity; 2],
    pub dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// Stops the VMs that are left running.
struct Vms([Client; 2]);

impl Drop for Vms {
    fn drop(&mut self) {
        for client in &self.0 {
            let Ok(Reply::Vms { vms }) = client.call(&Request::VmList, PATIENCE) else { continue };
            for VmView { name, .. } in vms {
                let _ = client.call(&Request::VmStop { name, timeout_s: 0, force: true }, PATIENCE);
            }
        }
    }
}

impl TwoAgents {
    /// Makes the hosts and starts the agents, which listen at `listen`. Tunnels may lead to sockets in `dir`.
    pub fn new(spec: &Spec, prepare: impl FnOnce(&Lab), listen: &str) -> TwoAgents {
        let turn = turn();
        let lab = Lab::up(spec.clone()).unwrap();
        prepare(&lab);
        let dir = tempfile::tempdir().unwrap();
        let ca = ClusterCa::create("test").unwrap();
        let identities = ["a", "b"].map(|host| ca.issue(host, Validity::days(1)).unwrap());
        let hosts_file = dir.path().join("hosts.toml");
        let host = |name| format!("[[host]]\nname = '{name}'\naddress = ['{}']\n", lab.ip(name, 0).unwrap());
        fs::write(&hosts_file, host("a") + &host("b")).unwrap();
        let dirs = ["a", "b"].map(|name| Dirs { state: dir.path().join(name).join("s"), run: dir.path().join(name) });
        let agents = [0, 1].map(|at| {
            let name = ["a", "b"][at];
            let acceptor = AcceptorSettings {
                listen: listen.parse().unwrap(),
                addresses: Addresses::default(),
                allow_plain_data: false,
                outage: Duration::from_secs(60),
            };
            let vms = VmSettings {
                dirs: dirs[at].clone(),
                controllers_file: hosts_file.with_file_name("controllers.toml"),
                qemu: None,
                limits: MigrationLimits::default(),
                keeper_command: Vec::new(),
                power_off: Vec::new(),
                update: Default::default(),
                watchdog: None,
            };
            let settings = AgentSettings {
                hosts_file: hosts_file.clone(),
                connections: WantedConnections::Fixed(2),
                vms: Some(vms),
                ..AgentSettings::tunnels(acceptor, Allow::new(&[format!("{}/*", dir.path().display())]).unwrap())
            };
            lab.enter(name, || Agent::start(settings, &identities[at])).unwrap().unwrap()
        });
        let vms = Vms(dirs.map(|dirs| Client::new(&dirs.socket())));
        TwoAgents { vms, _agents: agents, lab, identities, dir, _turn: turn }
    }

    pub fn client(&self, host: &str) -> &Client {
        &self.vms.0[usize::from(host == "b")]
    }
}
