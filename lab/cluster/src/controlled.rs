//! Hosts with agents and controllers, set up and asked as people do it: `skein-controller init`, `skein login`,
//! commands.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use skein_client::{ControllerClient, Credentials, Login};

use crate::{Cluster, Settings, until};

/// The time for anything that has to happen at all.
const DEADLINE: Duration = Duration::from_secs(90);

/// A controller of a host, which may run.
struct Controller {
    /// The files of the controller.
    dir: PathBuf,
    address: String,
    process: Option<Child>,
}

/// A cluster with its controllers.
pub struct Controlled {
    /// The hosts, agents and guests.
    pub cluster: Cluster,
    controllers: BTreeMap<String, Controller>,
    dir: PathBuf,
    /// The host on which commands are given.
    seat: String,
    /// `skein-controller`.
    program: PathBuf,
}

impl Controlled {
    /// Makes hosts, of which none has an agent or a controller. `program` is `skein-controller`. Commands are given on
    /// the host `seat`.
    pub fn new(settings: Settings, program: &Path, seat: &str) -> Controlled {
        let cluster = Cluster::idle(settings);
        let dir = cluster.dir().join("controllers");
        fs::create_dir(&dir).expect("a directory can be made");
        Controlled { cluster, controllers: BTreeMap::new(), dir, seat: seat.to_owned(), program: program.to_owned() }
    }

    /// Makes hosts with agents, and one controller on the host `seat`, with the store in SQLite. Somebody has logged in
    /// there.
    pub fn up(settings: Settings, program: &Path, seat: &str) -> Controlled {
        let mut controlled = Controlled::new(settings, program, seat);
        controlled.add_controller(seat, None, &[]);
        controlled.start_agents(seat);
        controlled.start_controller(seat);
        controlled.log_in(seat);
        controlled
    }

    /// Makes a controller on a host by `skein-controller init`, with the cluster's CA and a store, and further options.
    pub fn add_controller(&mut self, host: &str, store: Option<&str>, options: &[&str]) {
        let dir = self.dir.join(host);
        fs::create_dir(&dir).expect("a directory can be made");
        self.cluster.ca().save(&dir.join("ca")).expect("a CA can be saved");
        let ip = self.cluster.lab().ip(host, 0).expect("the host has an address").to_string();
        let address = format!("{ip}:7443");
        let path = |name: &str| dir.join(name).display().to_string();
        let own = format!("sqlite:{}", path("store/c.db"));
        let mut init = self.cluster.lab().command(host, &self.program).expect("the host is there");
        init.args(["init", "--name", "lab", "--controller", &format!("ctl-{host}"), "--address", &ip]);
        init.args(["--listen", &address, "--store", store.unwrap_or(&own), "--ca", &path("ca")]).args(options);
        init.args(["--identity", &path("identity"), "--config", &path("controller.toml")]);
        done(&init.output().expect("skein-controller can be run"), "skein-controller init");
        self.controllers.insert(host.to_owned(), Controller { dir, address, process: None });
    }

    /// Has agents on all hosts, which know this host's controller only, as those of hosts that joined by it.
    pub fn start_agents(&mut self, controller: &str) {
        let text = format!("controllers = [\"{}\"]\n", self.controllers[controller].address);
        fs::write(self.cluster.dir().join("controllers.toml"), text).expect("a file can be written");
        for host in self.cluster.hosts() {
            self.cluster.start(&host);
        }
    }

    /// Logs in to the controllers that run, by this host's.
    pub fn log_in(&self, controller: &str) {
        let of = &self.controllers[controller];
        let (token, ca) = (of.dir.join("identity/admin.token"), of.dir.join("ca/ca.pem"));
        let url = format!("https://{}", of.address);
        let login = [
            "login",
            &url,
            "--token-file",
            token.to_str().expect("the path is text"),
            "--ca",
            ca.to_str().expect("the path is text"),
        ];
        let is_in = || self.skein(&login).status.success();
        assert!(until(DEADLINE, is_in), "{:?}", self.skein(&login));
    }

    /// Returns the directory of a controller's files.
    pub fn files_of(&self, host: &str) -> &Path {
        &self.controllers[host].dir
    }

    /// Returns where a controller listens.
    pub fn address_of(&self, host: &str) -> &str {
        &self.controllers[host].address
    }

    /// Adds a section to a controller's configuration, which counts from its next start on.
    pub fn configure(&self, host: &str, section: &str) {
        let config = self.controllers[host].dir.join("controller.toml");
        let text = fs::read_to_string(&config).expect("it was written");
        fs::write(&config, text + section).expect("a file can be written");
    }

    /// Starts a host's controller.
    pub fn start_controller(&mut self, host: &str) {
        let mut run = self.cluster.lab().command(host, &self.program).expect("the host is there");
        let controller = self.controllers.get_mut(host).expect("the host has a controller");
        run.args(["run", "--config"]).arg(controller.dir.join("controller.toml"));
        let log = fs::OpenOptions::new().create(true).append(true).open(controller.dir.join("log"));
        let log = log.expect("a log can be written");
        run.stdin(Stdio::null()).stdout(log.try_clone().expect("a descriptor can be had twice")).stderr(log);
        controller.process = Some(run.spawn().expect("skein-controller can be run"));
    }

    /// Kills a controller (SIGKILL).
    pub fn kill_controller(&mut self, host: &str) {
        let controller = self.controllers.get_mut(host).expect("the host has a controller");
        let mut process = controller.process.take().expect("it runs");
        process.kill().expect("it can be killed");
        process.wait().expect("it can be waited for");
    }

    /// Returns the process of a controller.
    pub fn controller_pid(&self, host: &str) -> u32 {
        self.controllers[host].process.as_ref().expect("it runs").id()
    }

    /// Sends a controller a signal, such as SIGSTOP.
    pub fn signal_controller(&self, host: &str, signal: Signal) {
        let pid = i32::try_from(self.controller_pid(host)).expect("it is a pid");
        kill(Pid::from_raw(pid), signal).expect("it can be sent signals");
    }

    /// Returns what a controller has logged.
    pub fn log(&self, host: &str) -> String {
        fs::read_to_string(self.controllers[host].dir.join("log")).unwrap_or_default()
    }

    /// Returns `skein` on the seat's host, for somebody who has logged in.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.cluster.lab().command(&self.seat, &self.cluster.settings.program).expect("it is there");
        command.args(args).env("SKEIN_LOGIN", self.dir.join("login.toml")).stdin(Stdio::null());
        command
    }

    /// Runs `skein`.
    pub fn skein(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("skein can be run")
    }

    /// Runs `skein`, which has to succeed.
    #[track_caller]
    pub fn does(&self, args: &[&str]) -> String {
        let output = self.skein(args);
        done(&output, &args.join(" "));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `skein` and returns the JSON that it prints.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.skein(args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {output:?}"))
    }

    /// Asks the controller, as somebody who has logged in.
    pub fn ask<T: Send>(&self, ask: impl FnOnce(&ControllerClient) -> T + Send) -> T {
        let login = Login::load(&self.dir.join("login.toml")).expect("it can be read").expect("somebody has logged in");
        let credentials = Credentials::Token { ca: login.ca, secret: login.token };
        let client = ControllerClient::new(login.controllers, &credentials).expect("they are the cluster's");
        self.cluster.lab().enter(&self.seat, || ask(&client)).expect("the host is there")
    }

    /// Returns what the controllers say of a host.
    pub fn host(&self, name: &str) -> Value {
        let hosts = self.json(&["host", "list", "--cluster", "--json"]);
        let found = hosts.as_array().and_then(|all| all.iter().find(|host| host["name"] == name));
        found.cloned().unwrap_or_default()
    }

    /// Waits for what has to happen. If it does not, shows what controllers and agents have logged.
    #[track_caller]
    pub fn waits(&self, what: &str, is: impl FnMut() -> bool) {
        if !until(DEADLINE, is) {
            let logs = self.controllers.keys().map(|host| format!("---- controller of {host}\n{}\n", self.log(host)));
            let (logs, operations) = (logs.collect::<String>(), self.skein(&["operation", "list", "--json"]));
            let operations = String::from_utf8_lossy(&operations.stdout).into_owned();
            panic!("not in time: {what}\n{operations}\n{logs}\n{}", self.cluster.report());
        }
    }

    /// Waits until the controllers have these guests run on a host.
    #[track_caller]
    pub fn sees(&self, vms: &[String], host: &str) {
        self.waits(&format!("{vms:?} run on {host}"), || {
            let all = self.json(&["vm", "list", "--cluster", "--json"]);
            let runs = |vm: &String| {
                let found = all.as_array().and_then(|all| all.iter().find(|of| of["name"] == vm.as_str()));
                found.is_some_and(|of| of["host"] == host && of["state"] == "running")
            };
            vms.iter().all(runs)
        });
    }

    /// Returns the host where each guest runs, by its QEMUs' word.
    pub fn places(&self, vms: &[String]) -> Vec<String> {
        vms.iter().flat_map(|vm| self.cluster.where_runs(vm)).collect()
    }
}

impl Drop for Controlled {
    fn drop(&mut self) {
        for process in self.controllers.values_mut().filter_map(|controller| controller.process.as_mut()) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Fails with what a program said, unless it succeeded.
#[track_caller]
pub fn done(output: &Output, what: &str) {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {text}");
}
