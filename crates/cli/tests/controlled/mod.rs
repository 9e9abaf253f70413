//! The lab's hosts with agents and controllers, as people set them up and use them: by `skein-controller init` and
//! `skein`.

// Each test program uses only a part of this module.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use skein_lab_cluster::{Cluster, Settings, until};

/// The time for anything that has to happen at all.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// A fence agent that leaves the switching to the test, by files in its directory. Each power-off that is ordered is a
/// line of `orders`.
pub const FENCE_AGENT: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 1
case "$(cat)" in
*action=off*)
    echo $$ >>orders
    while [ ! -e is-off ]; do sleep 0.1; done
    ;;
*action=status*)
    if [ -e is-off ]; then exit 2; fi
    ;;
*)
    exit 1
    ;;
esac
"#;

/// A controller of a host, which may run.
struct Controller {
    /// The files of the controller.
    dir: PathBuf,
    address: String,
    process: Option<Child>,
}

/// A cluster with its controllers.
pub struct World {
    pub cluster: Cluster,
    controllers: BTreeMap<String, Controller>,
    dir: PathBuf,
    /// The host on which commands are given.
    seat: String,
}

impl World {
    /// Makes hosts, of which none has an agent or a controller. Commands are given on the host `seat`.
    pub fn new(settings: Settings, seat: &str) -> World {
        let cluster = Cluster::idle(settings);
        let dir = cluster.dir().join("controllers");
        fs::create_dir(&dir).unwrap();
        World { cluster, controllers: BTreeMap::new(), dir, seat: seat.to_owned() }
    }

    /// Makes a controller on a host by `skein-controller init`, with the cluster's CA and a store, and further options.
    pub fn add_controller(&mut self, host: &str, store: Option<&str>, options: &[&str]) {
        let dir = self.dir.join(host);
        fs::create_dir(&dir).unwrap();
        self.cluster.ca().save(&dir.join("ca")).unwrap();
        let ip = self.cluster.lab().ip(host, 0).unwrap().to_string();
        let address = format!("{ip}:7443");
        let path = |name: &str| dir.join(name).display().to_string();
        let own = format!("sqlite:{}", path("store/c.db"));
        let mut init = self.cluster.lab().command(host, controller_program()).unwrap();
        init.args(["init", "--name", "lab", "--controller", &format!("ctl-{host}"), "--address", &ip]);
        init.args(["--listen", &address, "--store", store.unwrap_or(&own), "--ca", &path("ca")]).args(options);
        init.args(["--identity", &path("identity"), "--config", &path("controller.toml")]);
        done(&init.output().unwrap(), "skein-controller init");
        self.controllers.insert(host.to_owned(), Controller { dir, address, process: None });
    }

    /// Has agents on all hosts, which know this host's controller only, as those of hosts that joined by it.
    pub fn start_agents(&mut self, controller: &str) {
        let text = format!("controllers = [\"{}\"]\n", self.controllers[controller].address);
        fs::write(self.cluster.dir().join("controllers.toml"), text).unwrap();
        for host in self.cluster.hosts() {
            self.cluster.start(&host);
        }
    }

    /// Logs in to the controllers that run, by this host's.
    pub fn log_in(&self, controller: &str) {
        let of = &self.controllers[controller];
        let (token, ca) = (of.dir.join("identity/admin.token"), of.dir.join("ca/ca.pem"));
        let url = format!("https://{}", of.address);
        let login = ["login", &url, "--token-file", token.to_str().unwrap(), "--ca", ca.to_str().unwrap()];
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
        fs::write(&config, fs::read_to_string(&config).unwrap() + section).unwrap();
    }

    pub fn start_controller(&mut self, host: &str) {
        let controller = self.controllers.get_mut(host).unwrap();
        let mut run = self.cluster.lab().command(host, controller_program()).unwrap();
        run.args(["run", "--config"]).arg(controller.dir.join("controller.toml"));
        let log = fs::OpenOptions::new().create(true).append(true).open(controller.dir.join("log")).unwrap();
        run.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        controller.process = Some(run.spawn().unwrap());
    }

    /// Kills a controller (SIGKILL).
    pub fn kill_controller(&mut self, host: &str) {
        let controller = self.controllers.get_mut(host).unwrap();
        let mut process = controller.process.take().expect("it runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Sends a controller a signal, such as SIGSTOP.
    pub fn signal_controller(&self, host: &str, signal: Signal) {
        let process = self.controllers[host].process.as_ref().expect("it runs");
        kill(Pid::from_raw(i32::try_from(process.id()).unwrap()), signal).unwrap();
    }

    /// Returns what a controller has logged.
    pub fn log(&self, host: &str) -> String {
        fs::read_to_string(self.controllers[host].dir.join("log")).unwrap_or_default()
    }

    /// Returns `skein` on the seat's host, for somebody who has logged in.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.cluster.lab().command(&self.seat, env!("CARGO_BIN_EXE_skein")).unwrap();
        command.args(args).env("SKEIN_LOGIN", self.dir.join("login.toml")).stdin(Stdio::null());
        command
    }

    /// Runs `skein`.
    pub fn skein(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs `skein`, which has to succeed.
    #[track_caller]
    pub fn does(&self, args: &[&str]) -> String {
        let output = self.skein(args);
        done(&output, &args.join(" "));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.skein(args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {output:?}"))
    }

    /// Returns what the controllers say of a host.
    pub fn host(&self, name: &str) -> Value {
        let hosts = self.json(&["host", "list", "--cluster", "--json"]);
        let found = hosts.as_array().unwrap().iter().find(|host| host["name"] == name);
        found.cloned().unwrap_or_default()
    }

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
                let found = all.as_array().unwrap().iter().find(|of| of["name"] == vm.as_str());
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

impl Drop for World {
    fn drop(&mut self) {
        for process in self.controllers.values_mut().filter_map(|controller| controller.process.as_mut()) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Returns the controller's program, which is built beside `skein`.
pub fn controller_program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_skein")).with_file_name("skein-controller")
}

#[track_caller]
pub fn done(output: &Output, what: &str) {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {text}");
}
