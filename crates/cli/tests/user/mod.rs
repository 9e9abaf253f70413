//! A user who is logged in to a controller that answers as a test says, and what it answers.

// Each test program uses only a part of this module.
#![allow(dead_code)]

#[path = "../../../client/tests/fake_controller/mod.rs"]
pub mod fake_controller;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use fake_controller::{Answer, Asked, FakeController};
use serde_json::{Value, json};
use skein_api::cluster::{Host, Page, Vm};
use skein_identity::{ClusterCa, JoinToken};

use crate::fake::Ran;

/// A user with a login, in a directory of its own.
pub struct User {
    pub dir: tempfile::TempDir,
    pub ca: ClusterCa,
    pub controller: FakeController,
}

impl User {
    pub fn new(answer: impl Fn(&Asked, usize) -> Answer + Send + 'static) -> User {
        let (dir, ca) = (tempfile::tempdir().unwrap(), ClusterCa::create("rack7").unwrap());
        let controller = FakeController::start(&ca, answer);
        User { dir, ca, controller }
    }

    /// Returns a user who is logged in.
    pub fn logged_in(answer: impl Fn(&Asked, usize) -> Answer + Send + 'static) -> User {
        let user = User::new(answer);
        let (url, ca) = (user.controller.url(), user.ca.fingerprint().to_hex());
        let login = format!("controllers = [\"{url}\"]\nca_sha256 = \"{ca}\"\ntoken = \"s3cret\"\n");
        std::fs::write(user.path("login.toml"), login).unwrap();
        user
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env("SKEIN_LOGIN", self.path("login.toml")).env("SKEIN_CONFIG_DIR", self.path("etc"));
        command.env_remove("SKEIN_SOCKET").env_remove("SKEIN_CONTROLLER");
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::new(args, self.command(args).output().unwrap())
    }

    /// Runs a command that shows the cluster. Runs the command again where controllers took longer than some seconds,
    /// and the agent's view took the place of theirs.
    pub fn shown(&self, args: &[&str]) -> Ran {
        let is_late = |ran: &Ran| ran.err.contains("what follows is of this host's agent");
        (0..10).map(|_| self.run(args)).find(|ran| !is_late(ran)).expect("the controller answers in time once")
    }

    pub fn token(&self) -> String {
        JoinToken { ca: self.ca.fingerprint(), id: "1d".into(), secret: "5ec2e7".into() }.to_string()
    }
}

pub fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub fn host(name: &str, contact: &str, mode: &str, note: &str) -> Host {
    typed(json!({
        "name": name, "contact": contact, "contact_since": 1_795_684_482_120u64, "mode": mode, "drain": null,
        "settings": {"group": "web", "areas": {"rack": "r1"}}, "addresses": ["10.0.0.1:7070"], "release": "0.1.0",
        "cpus": 8, "ram_bytes": 64u64 << 30, "load": {"cpu_millicores": 2000, "ram_available_bytes": 48u64 << 30},
        "vms_running": 3, "incoming": 1, "outgoing": 0, "note": note, "version": 7,
    }))
}

pub fn vm(name: &str, state: &str) -> Vm {
    typed(json!({
        "name": name, "state": state, "host": "hosta", "since": 1, "ram_bytes": 4u64 << 30, "cpus": 2,
        "load": {"cpu_millicores": 450}, "operation": null, "settings": {}, "adopted": false, "note": "", "version": 3,
    }))
}

pub fn planned(vm: &str, to: Option<&str>, state: &str, reason: &str) -> Value {
    json!({"vm": vm, "from": "hosta", "to": to, "reason": reason, "state": state})
}

pub fn page<T: serde::Serialize>(items: Vec<T>) -> Answer {
    Answer::ok(&Page { items, next: None })
}
