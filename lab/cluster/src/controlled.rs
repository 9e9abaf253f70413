//! A cluster with a controller, made and asked as people do it: `skein-controller init`, `skein login`, commands.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use skein_client::{ControllerClient, Credentials, Login};

use crate::{Cluster, Settings, until};

/// The time for anything that has to happen at all.
const DEADLINE: Duration = Duration::from_secs(90);

/// A cluster and its controller, with the store in SQLite. Somebody has logged in beside the controller.
pub struct Controlled {
    cluster: Cluster,
    /// The host that the controller is on, beside an agent.
    at: String,
    program: PathBuf,
    controller: Option<Child>,
    dir: PathBuf,
}

impl Controlled {
    /// Makes a cluster whose controller, of this program, is on a host; starts all agents, and logs in.
    pub fn up(settings: Settings, program: &Path, at: &str) -> Controlled {
        let mut cluster = Cluster::idle(settings);
        let dir = cluster.dir().join("controller");
        fs::create_dir(&dir).expect("a directory can be made");
        cluster.ca().save(&dir.join("ca")).expect("a CA can be saved");
        let address = cluster.lab().ip(at, 0).expect("the host has an address");
        let path = |name: &str| dir.join(name).display().to_string();
        let mut init = Command::new(program);
        init.args(["init", "--name", "lab", "--controller", "ctl1", "--address", &address.to_string()]);
        init.args(["--listen", &format!("{address}:7443"), "--store", &format!("sqlite:{}", path("store/c.db"))]);
        init.args(["--ca", &path("ca"), "--identity", &path("identity"), "--config", &path("controller.toml")]);
        done(&init.output().unwrap_or_else(|error| panic!("{}: {error}", program.display())), "init");
        let contact = format!("controllers = [\"{address}:7443\"]\n");
        fs::write(cluster.dir().join("controllers.toml"), contact).expect("a file can be written");
        for host in cluster.hosts() {
            cluster.start(&host);
        }
        let mut world = Controlled { cluster, at: at.to_owned(), program: program.to_owned(), controller: None, dir };
        world.start_controller();
        let (token, ca) = (path_of(&world.dir, "identity/admin.token"), path_of(&world.dir, "ca/ca.pem"));
        let login = ["login", &format!("https://{address}:7443"), "--token-file", &token, "--ca", &ca];
        assert!(until(DEADLINE, || world.skein(&login).status.success()), "{:?}", world.skein(&login));
        world
    }

    /// Returns the hosts, agents and guests.
    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Starts the controller.
    pub fn start_controller(&mut self) {
        let mut run = self.cluster.lab().command(&self.at, &self.program).expect("the host is there");
        run.args(["run", "--config"]).arg(self.dir.join("controller.toml"));
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log"));
        let log = log.expect("a log can be written");
        run.stdin(Stdio::null()).stdout(log.try_clone().expect("a descriptor can be had twice")).stderr(log);
        self.controller = Some(run.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.program.display())));
    }

    /// Returns a command of `skein` beside the controller, as somebody who has logged in.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.cluster.lab().command(&self.at, &self.cluster.settings.program).expect("it is there");
        command.args(args).env("SKEIN_LOGIN", self.dir.join("login.toml")).stdin(Stdio::null());
        command
    }

    /// Runs that command.
    pub fn skein(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("skein can be run")
    }

    /// Runs that command, which has to succeed.
    #[track_caller]
    pub fn did(&self, args: &[&str]) {
        done(&self.skein(args), &args.join(" "));
    }

    /// Runs that command and returns the JSON that it prints.
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
        self.cluster.lab().enter(&self.at, || ask(&client)).expect("the host is there")
    }

    /// Waits until the controller has these guests run on a host.
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

    /// Waits for what has to happen, and shows the controller's log if it does not.
    #[track_caller]
    pub fn waits(&self, what: &str, is: impl FnMut() -> bool) {
        if !until(DEADLINE, is) {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            panic!("not in time: {what}\n{log}");
        }
    }
}

impl Drop for Controlled {
    fn drop(&mut self) {
        if let Some(mut controller) = self.controller.take() {
            let _ = controller.kill();
            let _ = controller.wait();
        }
    }
}

fn path_of(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

#[track_caller]
fn done(output: &Output, what: &str) {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {text}");
}
