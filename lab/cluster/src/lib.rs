//! The lab's hosts with a real agent in each, and guests that show where they run.
//!
//! ```no_run
//! use skein_lab_cluster::{Cluster, Settings};
//!
//! let mut cluster = Cluster::up(Settings::new("/path/to/skein".into()));
//! cluster.start_vm("a", &cluster.bare("v1"));
//! cluster.moved("v1", "a", "b");
//! assert_eq!(cluster.where_runs("v1"), ["b"]);
//! cluster.check();
//! ```
//!
//! - [`Cluster`]: hosts, agents, guests. It is for tests: what goes wrong panics with what is known of it, and with the
//!   agents' logs. Dropping it ends every process and removes every file of it, also in a panic.
//! - [`Controlled`]: the same with a controller, made and asked as people do it.
//! - [`Witness`]: sees when and where each guest ran, and two that ran at once.
//!
//! Needs root, and what the lab's hosts need.

mod agent_process;
mod controlled;
mod definitions;
mod witness;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use skein_api::{
    CheckResult, HoldOptions, MigrateOptions, Migration, MigrationId, Outcome, Reply, Request, VmOrigin, VmView,
};
use skein_client::{CallError, Client};
use skein_handover::{Record, needed};
use skein_identity::{ClusterCa, Validity};
use skein_journal::{Journal, JournalLimits};
use skein_lab_guest::{Image, Params, Spec as GuestSpec, WorkloadCheck, WorkloadClient, default_cache};
use skein_lab_hosts::{Lab, Layout, Spec};
use tempfile::TempDir;

use agent_process::AgentProcess;
pub use agent_process::Start;
pub use controlled::{Controlled, done};
pub use definitions::{echoing, filled, noise};
pub use witness::{Double, Run, Seen, Witness, arguments, configuration, console, workload_sockets};

/// An agent answers a request within this time. It may have to start a QEMU, and another host's agent may have to, too.
const AGENT_ANSWER_TIME: Duration = Duration::from_secs(60);
/// The time in which a guest does anything, on a busy machine, too.
pub const GUEST_TIME: Duration = Duration::from_secs(120);
/// How many lines of a log are shown.
const LOG_LINES: usize = 200;
/// Of how many migrations logs are shown: the last ones.
const EVENT_LOGS: usize = 3;

/// The settings of a cluster.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `skein` program.
    pub program: PathBuf,
    /// How many hosts there are. They are called a, b, c...
    pub hosts: usize,
    /// How many NICs each host has. NIC n of all hosts is in one segment.
    pub nics: usize,
    /// The rates of the NICs in Mb/s. `None`: as fast as the machine. The last rate is also that of all further NICs.
    pub rates: Vec<Option<u32>>,
    /// The QEMU program of the agents.
    pub qemu: PathBuf,
    /// The most migrations to a host at once.
    pub incoming: u16,
    /// The most migrations from a host at once.
    pub outgoing: u16,
}

impl Settings {
    /// Returns the settings of two hosts with a NIC that is as fast as the machine. QEMU is `$SKEIN_QEMU`, or
    /// `qemu-system-x86_64`.
    pub fn new(program: PathBuf) -> Settings {
        let qemu = std::env::var_os("SKEIN_QEMU").filter(|name| !name.is_empty());
        let qemu = qemu.map_or_else(|| "qemu-system-x86_64".into(), PathBuf::from);
        Settings { program, hosts: 2, nics: 1, rates: vec![None], qemu, incoming: 4, outgoing: 4 }
    }
}

/// The argument with which the agent starts those of its own processes that keep channels.
const KEEP_CHANNELS_COMMAND: &str = "keep-channels";

struct Process {
    pid: u32,
    /// The kernel's name of the process.
    name: String,
    words: Vec<String>,
}

/// Hosts, their agents, and their guests.
pub struct Cluster {
    settings: Settings,
    /// The agents, which are dropped before the lab, as dropping the lab ends the QEMUs.
    agents: BTreeMap<String, AgentProcess>,
    witness: Witness,
    ca: ClusterCa,
    lab: Lab,
    mounts: Vec<PathBuf>,
    image: Option<Image>,
    dir: TempDir,
}

impl Cluster {
    /// Builds the hosts and starts the agents.
    pub fn up(settings: Settings) -> Cluster {
        let mut cluster = Cluster::idle(settings);
        for host in cluster.hosts() {
            cluster.start(&host);
        }
        cluster
    }

    /// Builds the hosts, and starts no agent.
    pub fn idle(settings: Settings) -> Cluster {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("c{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let spec = Spec::new(&name, settings.hosts, settings.nics, Layout::Pairs).rates(&settings.rates);
        let lab = Lab::up(spec).expect("the lab can be built");
        // The name is short, as a unix socket's path has 107 bytes at most.
        let dir = tempfile::Builder::new().prefix("skc").tempdir().expect("a directory can be made");
        let netns = |host: &String| (lab.netns(host).expect("it is there"), host.clone());
        let hosts: Vec<String> = lab.spec().hosts.iter().map(|host| host.name.clone()).collect();
        let witness = Witness::new(hosts.iter().map(netns));
        let ca = ClusterCa::create("lab").expect("a CA can be made");
        let mut list = String::new();
        for host in &hosts {
            let address = |nic| format!("'{}'", lab.ip(host, nic).expect("each NIC has an address"));
            let addresses: Vec<String> = (0..settings.nics).map(address).collect();
            list += &format!("[[host]]\nname = '{host}'\naddress = [{}]\n", addresses.join(", "));
            let identity = ca.issue(host, Validity::days(2)).expect("the CA issues identities");
            identity.save(&dir.path().join(host).join("identity")).expect("an identity can be saved");
        }
        fs::write(dir.path().join("hosts.toml"), list).expect("a file can be written");
        fs::create_dir(dir.path().join("sockets")).expect("a directory can be made");
        // A hard link, so that agents that are started later are of the same build, whatever is built meanwhile.
        let own = dir.path().join("skein");
        fs::hard_link(&settings.program, &own)
            .or_else(|_| fs::copy(&settings.program, &own).map(drop))
            .unwrap_or_else(|error| panic!("{}: {error}", settings.program.display()));
        let settings = Settings { program: own, ..settings };
        Cluster { settings, agents: BTreeMap::new(), witness, ca, lab, mounts: Vec::new(), image: None, dir }
    }

    // ---- hosts and agents ----

    /// Returns the hosts' names.
    pub fn hosts(&self) -> Vec<String> {
        self.lab.spec().hosts.iter().map(|host| host.name.clone()).collect()
    }

    /// Returns the settings with which agents are started from now on.
    pub fn settings(&mut self) -> &mut Settings {
        &mut self.settings
    }

    /// Returns the cluster's CA, which issued the hosts' identities.
    pub fn ca(&self) -> &ClusterCa {
        &self.ca
    }

    /// Returns the network, to cut, heal and slow links.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Returns the directory in which a host's agent keeps what outlives a boot.
    pub fn state_dir(&self, host: &str) -> PathBuf {
        self.dir.path().join(host).join("state")
    }

    /// Returns the directory in which a host's agent has its sockets.
    pub fn run_dir(&self, host: &str) -> PathBuf {
        self.dir.path().join(host).join("run")
    }

    /// Returns a directory for files of a test. It is removed with the cluster.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Keeps the files when the cluster is dropped. Returns their directory.
    pub fn keep_files(&mut self) -> PathBuf {
        self.dir.disable_cleanup(true);
        self.dir.path().to_owned()
    }

    /// Starts a host's agent and waits until it answers.
    pub fn start(&mut self, host: &str) {
        self.start_as(host, &Start::default());
    }

    /// Does the same as [`Cluster::start`], with another program or an environment.
    pub fn start_as(&mut self, host: &str, start: &Start) {
        self.begin_start(host, start);
        self.wait_ready(host);
    }

    /// Starts a host's agent.
    pub fn begin_start(&mut self, host: &str, start: &Start) {
        assert!(!self.agents.contains_key(host), "the agent of {host} runs already");
        let own = self.dir.path().join(host);
        let program = start.program.as_ref().unwrap_or(&self.settings.program);
        let mut command = self.lab.command(host, program).expect("the host is there");
        command.arg("agent").arg("--identity").arg(own.join("identity"));
        command.arg("--state").arg(self.state_dir(host)).arg("--run").arg(self.run_dir(host));
        command.arg("--hosts").arg(self.dir.path().join("hosts.toml")).arg("--qemu").arg(&self.settings.qemu);
        command.args(["--incoming", &self.settings.incoming.to_string()]);
        command.args(["--outgoing", &self.settings.outgoing.to_string()]);
        command.args(&start.args).envs(start.env.iter().map(|(name, value)| (name, value)));
        self.agents.insert(host.to_owned(), AgentProcess::start(command, &own.join("agent.log")));
    }

    /// Waits until a host's agent answers.
    pub fn wait_ready(&mut self, host: &str) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            match self.client(host).call(&Request::MigrationList, Duration::from_secs(5)) {
                Ok(_) => return,
                Err(error) if !error.may_pass() || Instant::now() > end => {
                    panic!("the agent of {host} does not answer: {error}");
                }
                Err(_) => {}
            }
            let agent = self.agents.get_mut(host).expect("it was started");
            if let Some(status) = agent.ended() {
                panic!("the agent of {host} ended: {status}");
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks a host's agent to end, and waits until it has.
    pub fn stop(&mut self, host: &str) {
        if let Some(agent) = self.agents.remove(host) {
            agent.stop();
        }
    }

    /// Kills a host's agent (SIGKILL), if it runs.
    pub fn kill(&mut self, host: &str) {
        if let Some(agent) = self.agents.remove(host) {
            agent.kill();
        }
    }

    /// Sends a signal to a host's agent, such as SIGSTOP or SIGCONT.
    pub fn signal(&self, host: &str, signal: Signal) {
        self.agents[host].signal(signal);
    }

    /// Returns whether a host's agent was started and did not end by itself.
    pub fn is_up(&mut self, host: &str) -> bool {
        self.agents.get_mut(host).is_some_and(|agent| agent.ended().is_none())
    }

    /// Gives an agent that does not run yet a state directory of its own, on a tmpfs of this many bytes.
    pub fn mount_state(&mut self, host: &str, bytes: u64) {
        let path = self.state_dir(host);
        fs::create_dir_all(&path).expect("a directory can be made");
        let options = format!("size={bytes},mode=700");
        mount(Some("skein-lab"), &path, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .expect("a tmpfs can be mounted");
        self.mounts.push(path);
    }

    /// Makes that state directory read-only.
    pub fn make_state_read_only(&self, host: &str) {
        self.remount_state(host, MsFlags::MS_RDONLY);
    }

    /// Makes that state directory writable again.
    pub fn make_state_writable(&self, host: &str) {
        self.remount_state(host, MsFlags::empty());
    }

    fn remount_state(&self, host: &str, flag: MsFlags) {
        let path = self.state_dir(host);
        mount(None::<&str>, &path, None::<&str>, MsFlags::MS_REMOUNT | flag, None::<&str>)
            .expect("a tmpfs can be remounted");
    }

    // ---- requests ----

    /// Returns a client for requests to a host's agent.
    pub fn client(&self, host: &str) -> Client {
        Client::new(&self.run_dir(host).join("agent.sock"))
    }

    /// Makes a request to a host's agent.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the agent refuses, or does not answer in time.
    pub fn ask(&self, host: &str, request: &Request) -> Result<Reply, CallError> {
        self.client(host).call(request, AGENT_ANSWER_TIME)
    }

    /// Makes a request that the agent has to fulfil.
    #[track_caller]
    pub fn asked(&self, host: &str, request: &Request) -> Reply {
        self.ask(host, request).unwrap_or_else(|error| panic!("{host}: {request:?}: {}", chain(&error)))
    }

    /// Makes a request that the agent has to refuse. Returns the words of the refusal and its cure.
    #[track_caller]
    pub fn refused(&self, host: &str, request: &Request) -> String {
        match self.ask(host, request) {
            Err(error @ CallError::Refused(_)) => error.to_string(),
            other => panic!("{host}: {request:?} should be refused, and is {other:?}"),
        }
    }

    /// Returns a host's VMs.
    #[track_caller]
    pub fn vms(&self, host: &str) -> Vec<VmView> {
        match self.asked(host, &Request::VmList) {
            Reply::Vms { vms } => vms,
            other => panic!("{other:?}"),
        }
    }

    /// Returns one VM of a host.
    #[track_caller]
    pub fn vm(&self, host: &str, name: &str) -> VmView {
        match self.asked(host, &Request::VmShow { name: name.to_owned() }) {
            Reply::Vm(vm) => *vm,
            other => panic!("{other:?}"),
        }
    }

    /// Returns a host's migrations, the newest first.
    #[track_caller]
    pub fn migrations(&self, host: &str) -> Vec<Migration> {
        match self.asked(host, &Request::MigrationList) {
            Reply::Migrations { migrations } => migrations,
            other => panic!("{other:?}"),
        }
    }

    /// Returns one migration, with its events.
    #[track_caller]
    pub fn migration(&self, host: &str, id: MigrationId) -> Migration {
        migration(self.asked(host, &Request::MigrationShow { id: id.to_string() }))
    }

    /// Starts a VM from its definition.
    #[track_caller]
    pub fn start_vm(&self, host: &str, definition: &str) -> VmView {
        let file = "test.toml".to_owned();
        let from = VmOrigin::Definition { file, text: definition.to_owned() };
        match self.asked(host, &Request::VmStart { from, options: Default::default() }) {
            Reply::Vm(vm) => *vm,
            other => panic!("{other:?}"),
        }
    }

    /// Returns what stands against a migration.
    #[track_caller]
    pub fn check_move(&self, vm: &str, from: &str, to: &str) -> CheckResult {
        let options = MigrateOptions::default();
        match self.asked(from, &Request::Check { vm: vm.into(), to: to.into(), options }) {
            Reply::Check(check) => check,
            other => panic!("{other:?}"),
        }
    }

    /// Begins a migration, or queues it.
    #[track_caller]
    pub fn begin(&self, vm: &str, from: &str, to: &str, options: MigrateOptions) -> Migration {
        migration(self.wanted(from, &Request::Migrate { vm: vm.into(), to: to.into(), options, detach: true }))
    }

    /// Begins a migration that is held.
    #[track_caller]
    pub fn begin_held(&self, vm: &str, from: &str, to: &str, options: MigrateOptions, hold: HoldOptions) -> Migration {
        let (vm, to) = (vm.into(), to.into());
        migration(self.wanted(from, &Request::MigrateHeld { vm, to, options, hold, detach: true }))
    }

    /// Makes a request for a migration, and returns the last reply. Warnings on the way are ignored.
    #[track_caller]
    fn wanted(&self, from: &str, request: &Request) -> Reply {
        let told = |error| panic!("{from}: {request:?}: {}", chain(&error));
        let mut conversation = self.client(from).ask(request).unwrap_or_else(told);
        loop {
            match conversation
                .next(AGENT_ANSWER_TIME)
                .unwrap_or_else(|error| panic!("{from}: {request:?}: {}", chain(&error)))
            {
                Some(Reply::Progress(_)) => {}
                Some(Reply::Check(check)) if !check.blocks() => {}
                Some(reply) => return reply,
                None => panic!("{from}: {request:?}: nothing for {} s", AGENT_ANSWER_TIME.as_secs()),
            }
        }
    }

    /// Moves a VM, and returns the migration when it is over.
    #[track_caller]
    pub fn migrate(&self, vm: &str, from: &str, to: &str) -> Migration {
        self.migrate_as(vm, from, to, MigrateOptions::default())
    }

    #[track_caller]
    fn migrate_as(&self, vm: &str, from: &str, to: &str, options: MigrateOptions) -> Migration {
        migration(self.wanted(from, &Request::Migrate { vm: vm.into(), to: to.into(), options, detach: false }))
    }

    /// Moves a VM, which has to succeed, however long it takes on a busy machine. Waits until both hosts have tidied
    /// up, as the VM cannot move again before that.
    #[track_caller]
    pub fn moved(&self, vm: &str, from: &str, to: &str) -> Migration {
        let options = MigrateOptions { deadline_s: Some(AGENT_ANSWER_TIME.as_secs()), ..MigrateOptions::default() };
        let migration = self.migrate_as(vm, from, to, options);
        assert_eq!(migration.outcome, Some(Outcome::Moved), "{migration:?}");
        let is_over = |host| self.migrations(host).iter().all(|one| one.id != migration.id || !is_open(one));
        self.wait(AGENT_ANSWER_TIME, "both hosts have cleared up", || is_over(from) && is_over(to));
        migration
    }

    /// Follows a migration to its end.
    #[track_caller]
    pub fn watched(&self, host: &str, id: MigrationId) -> Migration {
        migration(self.asked(host, &Request::MigrationWatch { id: id.to_string() }))
    }

    // ---- guests ----

    /// Returns the definition of a guest of 64 MiB that boots nothing: it runs in half a second.
    pub fn bare(&self, name: &str) -> String {
        self.witness.watch(&self.sockets(), name);
        let args: Vec<String> = arguments(&self.sockets(), name).iter().map(|arg| format!("'{arg}'")).collect();
        format!("name = '{name}'\nmemory = '64 MiB'\naccel = 'tcg'\n[qemu]\nargs = [{}]\n", args.join(", "))
    }

    /// Returns the definition of a guest with the lab's kernel and workload, which knows what its memory holds.
    pub fn working(&mut self, name: &str, params: &Params) -> String {
        let image =
            self.image.get_or_insert_with(|| Image::prepare(&default_cache()).expect("there is an image")).clone();
        self.witness.watch(&self.sockets(), name);
        let memory_mb = GuestSpec::memory_mb_for(params.fill_mb);
        let sockets = workload_sockets(&self.sockets(), name);
        GuestSpec::new(name, image, memory_mb, params.clone()).definition(
            sockets.each_ref().map(PathBuf::as_path),
            &console(&self.sockets(), name),
            &arguments(&self.sockets(), name),
        )
    }

    /// Returns the directory with the guests' sockets for the witness and the lab's workload.
    pub fn sockets(&self) -> PathBuf {
        self.dir.path().join("sockets")
    }

    /// Returns the witness, which sees where guests run.
    pub fn witness(&self) -> &Witness {
        &self.witness
    }

    /// Returns the hosts where a guest runs now, as its QEMUs say.
    pub fn where_runs(&self, vm: &str) -> Vec<String> {
        self.witness.seen(vm).iter().filter(|seen| seen.runs()).map(|seen| seen.host.clone()).collect()
    }

    /// Kills the QEMU that a VM has on a host (SIGKILL). Returns `false` if it has none there.
    pub fn kill_qemu(&self, vm: &str, host: &str) -> bool {
        let mut any = false;
        for seen in self.witness.seen(vm).iter().filter(|seen| seen.host == host && !seen.is_over()) {
            seen.kill();
            any = true;
        }
        // A QEMU that has only just been started is not known to the witness yet.
        for qemu in self.qemus(host).iter().filter(|qemu| qemu.vm.as_deref() == Some(vm)) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(qemu.pid as i32), Signal::SIGKILL);
            any = true;
        }
        any
    }

    /// Talks to the workload of a working guest, in the QEMU where it runs.
    #[track_caller]
    pub fn talk<T>(&self, vm: &str, talk: impl FnOnce(&mut WorkloadClient) -> Result<T, skein_lab_guest::Error>) -> T {
        self.try_talk(vm, talk).unwrap_or_else(|error| panic!("{vm}: {error}"))
    }

    fn try_talk<T>(
        &self,
        vm: &str,
        talk: impl FnOnce(&mut WorkloadClient) -> Result<T, skein_lab_guest::Error>,
    ) -> Result<T, String> {
        let seen = self.witness.seen(vm).into_iter().rfind(|seen| seen.runs()).ok_or("it does not run")?;
        let mut control = seen.control.lock();
        let agent = control.as_mut().ok_or("it has no workload")?;
        talk(agent).map_err(|error| format!("on {}: {error}", seen.host))
    }

    /// Waits until a working guest works.
    #[track_caller]
    pub fn wait_working(&self, vm: &str) {
        self.wait(GUEST_TIME, &format!("{vm} runs"), || !self.where_runs(vm).is_empty());
        // A QEMU that was just killed may still seem to run.
        let is_ready = || self.try_talk(vm, |agent| agent.status().map(|status| status.ready)) == Ok(true);
        self.wait(GUEST_TIME, &format!("{vm} comes to work"), is_ready);
    }

    /// Makes a working guest compare all its memory with what it should be.
    #[track_caller]
    pub fn verify(&self, vm: &str) -> WorkloadCheck {
        let verdict = self.talk(vm, |agent| agent.verify(GUEST_TIME));
        assert!(verdict.is_good(), "{vm}: {verdict:?}");
        verdict
    }

    /// Returns whether a working guest's heart beats on a host, within this time from now.
    pub fn beats_on(&self, vm: &str, host: &str, within: Duration) -> bool {
        let since = Instant::now();
        let mut all = self.witness.seen(vm).into_iter().filter(|seen| seen.host == host && seen.runs());
        let Some(seen) = all.next() else { return false };
        until(within, || seen.beats.as_ref().and_then(|beats| beats.last()).is_some_and(|beat| beat.seen > since))
    }

    // ---- what is left ----

    /// Returns the QEMU processes of a host that run a guest or wait for one.
    pub fn qemus(&self, host: &str) -> Vec<QemuProcess> {
        let qemus = self.processes(host).into_iter().filter(|process| process.name.starts_with("qemu-system"));
        let found = qemus.map(|Process { pid, words, .. }| {
            let vm = words.iter().position(|word| word == "-name").and_then(|at| words.get(at + 1)).cloned();
            QemuProcess { pid, vm, words }
        });
        // Agents at times start QEMUs without a name, to ask them what they can do. These have no guest, and end by
        // themselves.
        found.filter(|qemu| qemu.vm.is_some()).collect()
    }

    /// Returns the processes of a host.
    fn processes(&self, host: &str) -> Vec<Process> {
        let inode = |path: &Path| fs::metadata(path).map(|found| found.ino()).ok();
        let netns = inode(&self.lab.netns(host).expect("the host is there"));
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter_map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            if inode(format!("/proc/{pid}/ns/net").as_ref()) != netns {
                return None;
            }
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|line| !line.is_empty())?;
            let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            Some(Process { pid, name, words })
        })
        .collect()
    }

    /// Returns what is there and should not be when no migration is under way. An agent that does not answer is an
    /// entry, too.
    pub fn leftovers(&self) -> Vec<String> {
        let mut found = Vec::new();
        for host in self.hosts() {
            found.extend(self.leftovers_of(&host).into_iter().map(|what| format!("{host}: {what}")));
        }
        found
    }

    fn leftovers_of(&self, host: &str) -> Vec<String> {
        let mut found = Vec::new();
        let client = self.client(host);
        let soon = Duration::from_secs(2);
        let vms = match client.call(&Request::VmList, soon) {
            Ok(Reply::Vms { vms }) => vms,
            other => return vec![format!("{other:?}")],
        };
        match client.call(&Request::MigrationList, soon) {
            Ok(Reply::Migrations { migrations }) => {
                let open = migrations.iter().filter(|one| is_open(one));
                found.extend(
                    open.map(|one| format!("migration {} as {:?} is not over: {:?}", one.id, one.role, one.stage)),
                );
            }
            other => found.push(format!("{other:?}")),
        }
        found.extend(vms.iter().filter_map(|vm| vm.migration.map(|id| format!("{} is in migration {id}", vm.name))));
        for qemu in self.qemus(host) {
            if !vms.iter().any(|vm| vm.pid == Some(qemu.pid)) {
                found.push(format!("a QEMU that no VM has: {} {}", qemu.pid, qemu.words.join(" ")));
            }
        }
        let keepers = self
            .processes(host)
            .into_iter()
            .filter(|process| process.words.iter().any(|word| word == KEEP_CHANNELS_COMMAND));
        found.extend(keepers.map(|process| format!("a keeper: {} {}", process.pid, process.words.join(" "))));
        let names = |path: PathBuf| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        found.extend(names(self.run_dir(host).join("migrations")).iter().map(|name| format!("run/migrations/{name}")));
        for name in names(self.run_dir(host).join("vms")) {
            let vm = vms.iter().find(|vm| vm.name == name);
            if vm.is_none() {
                found.push(format!("run/vms/{name} of a VM that is not here"));
            } else if vm.is_some_and(|vm| vm.pid.is_none()) {
                let stale = names(self.run_dir(host).join("vms").join(&name));
                let stale = stale.iter().filter(|file| *file != "qemu.log");
                found.extend(stale.map(|file| format!("run/vms/{name}/{file} of a VM that is off")));
            }
        }
        found.extend(names(self.state_dir(host)).iter().filter(|name| name.ends_with(".new")).cloned());
        match self.unsettled(host) {
            Ok(records) => found.extend(records.iter().map(|record| format!("the journal still needs {record:?}"))),
            Err(error) => found.push(format!("the journal: {error}")),
        }
        found
    }

    /// Returns the records that a host's journal still needs: those of migrations that are not settled.
    ///
    /// # Errors
    ///
    /// Why the journal cannot be read.
    pub fn unsettled(&self, host: &str) -> Result<Vec<Record>, String> {
        // A copy, as the agent holds the journal.
        let copy = self.dir.path().join(host).join("journal-copy");
        let _ = fs::remove_file(&copy);
        fs::copy(self.state_dir(host).join("journal"), &copy).map_err(|error| error.to_string())?;
        let opened = Journal::<Record>::open(&copy, JournalLimits::default());
        opened.map(|(_, records)| needed(&records)).map_err(|error| chain(&error))
    }

    /// Waits until [`Cluster::leftovers`] finds nothing.
    #[track_caller]
    pub fn wait_clean(&self, time: Duration) {
        let mut left = Vec::new();
        let is_clean = || {
            left = self.leftovers();
            left.is_empty()
        };
        if !until(time, is_clean) {
            panic!("left over after {} ms:\n  {}", time.as_millis(), left.join("\n  "));
        }
    }

    /// Checks what always has to hold: no guest ran twice at a time, and the witness saw every QEMU.
    #[track_caller]
    pub fn check(&self) {
        let doubles = self.witness.doubles();
        assert!(doubles.is_empty(), "TWO GUESTS RAN: {doubles:#?}");
        let contradictions = self.witness.contradictions();
        assert!(contradictions.is_empty(), "{contradictions:?}");
        for host in self.hosts() {
            for qemu in self.qemus(&host) {
                let vm = qemu.vm.as_deref().unwrap_or("");
                // The witness finds a QEMU that was only just started within moments.
                let is_met = || self.witness.knows(vm, qemu.pid) || !Path::new(&format!("/proc/{}", qemu.pid)).exists();
                assert!(until(Duration::from_secs(10), is_met), "not seen by the witness: {qemu:?}");
            }
        }
    }

    /// Waits until a condition holds, and panics with [`Cluster::report`] if it does not in time.
    #[track_caller]
    pub fn wait(&self, time: Duration, what: &str, is: impl FnMut() -> bool) {
        assert!(until(time, is), "not within {} ms: {what}", time.as_millis());
    }

    /// Returns all that is known of what happened, to find out the cause of a failure.
    pub fn report(&self) -> String {
        let mut report = String::new();
        for host in self.hosts() {
            report += &format!("---- agent of {host}\n{}\n", tail(&self.dir.path().join(&host).join("agent.log")));
            let logs = fs::read_dir(self.state_dir(&host).join("migrations")).into_iter().flatten().flatten();
            let mut logs: Vec<_> =
                logs.map(|log| (log.metadata().and_then(|m| m.modified()).ok(), log.path())).collect();
            logs.sort();
            for (_, log) in logs.into_iter().rev().take(EVENT_LOGS) {
                report += &format!("---- {host}: {}\n{}\n", log.display(), tail(&log));
            }
            let vms = fs::read_dir(self.run_dir(&host).join("vms")).into_iter().flatten().flatten();
            for log in vms.map(|vm| vm.path().join("qemu.log")) {
                report += &format!("---- {host}: {}\n{}\n", log.display(), tail(&log));
            }
            report += &format!("---- {host}: journal: {:?}\n", self.unsettled(&host));
            for qemu in self.qemus(&host) {
                report += &format!("---- {host}: QEMU {} {}\n", qemu.pid, qemu.vm.unwrap_or_default());
            }
        }
        let sockets = fs::read_dir(self.sockets()).into_iter().flatten().flatten().map(|entry| entry.path());
        for console in sockets.filter(|path| path.extension().is_some_and(|kind| kind == "console")) {
            report += &format!("---- {}\n{}\n", console.display(), tail(&console));
        }
        report
    }
}

/// Returns the last lines of a file, or why there are none.
fn tail(path: &Path) -> String {
    let text = fs::read(path).map_or_else(|e| e.to_string(), |text| String::from_utf8_lossy(&text).into_owned());
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.report());
        }
        for (_, agent) in std::mem::take(&mut self.agents) {
            agent.kill();
        }
        for path in &self.mounts {
            if let Err(errno) = umount2(path, MntFlags::MNT_DETACH) {
                eprintln!("{} stays mounted: {errno}", path.display());
            }
        }
    }
}

/// A QEMU process.
#[derive(Clone, Debug)]
pub struct QemuProcess {
    /// The process number.
    pub pid: u32,
    /// The name of the VM, from `-name`.
    pub vm: Option<String>,
    /// The words of its command line.
    pub words: Vec<String>,
}

impl Cluster {
    /// Starts a program in a host. The program ends with the cluster.
    pub fn spawn(&self, host: &str, program: &Path, args: &[String]) -> std::process::Child {
        let mut command: Command = self.lab.command(host, program).expect("the host is there");
        command.args(args).stdin(std::process::Stdio::null());
        command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
    }
}

#[track_caller]
fn migration(reply: Reply) -> Migration {
    match reply {
        Reply::Migration(migration) => *migration,
        other => panic!("{other:?}"),
    }
}

/// Returns whether an agent still has something to do for a migration.
fn is_open(migration: &Migration) -> bool {
    migration.outcome.is_none() || migration.stage.is_some() || migration.in_doubt
}

/// Waits until a condition holds. Returns `false` if the time is over before.
pub fn until(time: Duration, mut is: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    loop {
        if is() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
