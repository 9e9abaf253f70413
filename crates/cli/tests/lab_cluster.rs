//! Tests a cluster as people run it: a real controller, agents on four hosts, guests, and the commands.
// Timeout: 400 s
// Cores: 0.7
// Program: skein-controller

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use skein_lab_cluster::{Cluster, GUEST_TIME, Settings, until};

/// The time for anything that has to happen at all.
const DEADLINE: Duration = Duration::from_secs(90);
/// The host where the controller runs, beside an agent.
const CONTROLLER_HOST: &str = "a";

/// A cluster with its controller.
struct World {
    cluster: Cluster,
    controller: Option<Child>,
    dir: PathBuf,
}

impl World {
    /// Makes a cluster by `skein-controller init`, starts the controller and agents on four hosts, and logs in.
    fn up() -> World {
        let settings = Settings { hosts: 4, ..Settings::new(env!("CARGO_BIN_EXE_skein").into()) };
        let mut cluster = Cluster::idle(settings);
        let dir = cluster.dir().join("controller");
        fs::create_dir(&dir).unwrap();
        cluster.ca().save(&dir.join("ca")).unwrap();
        let address = cluster.lab().ip(CONTROLLER_HOST, 0).unwrap();
        let path = |name: &str| dir.join(name).display().to_string();
        let mut init = Command::new(controller_program());
        init.args(["init", "--name", "lab", "--controller", "ctl1", "--address", &address.to_string()]);
        init.args(["--listen", &format!("{address}:7443"), "--store", &format!("sqlite:{}", path("store/c.db"))]);
        init.args(["--ca", &path("ca"), "--identity", &path("identity"), "--config", &path("controller.toml")]);
        done(&init.output().unwrap(), "skein-controller init");
        fs::write(cluster.dir().join("controllers.toml"), format!("controllers = [\"{address}:7443\"]\n")).unwrap();
        for host in cluster.hosts() {
            cluster.start(&host);
        }
        let mut world = World { cluster, controller: None, dir };
        world.start_controller();
        let (token, ca) = (world.file("identity/admin.token"), world.file("ca/ca.pem"));
        let url = format!("https://{address}:7443");
        let login = ["login", &url, "--token-file", token.to_str().unwrap(), "--ca", ca.to_str().unwrap()];
        let is_in = || world.skein(&login).status.success();
        assert!(until(DEADLINE, is_in), "{:?}", world.skein(&login));
        world
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn start_controller(&mut self) {
        let mut run = self.cluster.lab().command(CONTROLLER_HOST, controller_program()).unwrap();
        run.args(["run", "--config"]).arg(self.file("controller.toml"));
        let log = fs::OpenOptions::new().create(true).append(true).open(self.file("log")).unwrap();
        run.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.controller = Some(run.spawn().unwrap());
    }

    /// Kills the controller (SIGKILL).
    fn kill_controller(&mut self) {
        let mut controller = self.controller.take().expect("it runs");
        controller.kill().unwrap();
        controller.wait().unwrap();
    }

    /// Runs `skein` beside the controller, as somebody who has logged in.
    fn skein(&self, args: &[&str]) -> Output {
        let mut command = self.cluster.lab().command(CONTROLLER_HOST, env!("CARGO_BIN_EXE_skein")).unwrap();
        command.args(args).env("SKEIN_LOGIN", self.file("login.toml")).stdin(Stdio::null());
        command.output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.skein(args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {output:?}"))
    }

    /// Returns what the controller says of a host.
    fn host(&self, name: &str) -> Value {
        let hosts = self.json(&["host", "list", "--cluster", "--json"]);
        let found = hosts.as_array().unwrap().iter().find(|host| host["name"] == name);
        found.cloned().unwrap_or_default()
    }

    fn waits(&self, what: &str, is: impl FnMut() -> bool) {
        if !until(DEADLINE, is) {
            let log = fs::read_to_string(self.file("log")).unwrap_or_default();
            panic!("not in time: {what}\n{log}\n{}", self.cluster.report());
        }
    }

    /// Waits until the controller has these guests run on a host.
    fn sees(&self, vms: &[String], host: &str) {
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
    fn places(&self, vms: &[String]) -> Vec<String> {
        vms.iter().flat_map(|vm| self.cluster.where_runs(vm)).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut controller) = self.controller.take() {
            let _ = controller.kill();
            let _ = controller.wait();
        }
    }
}

/// Returns the controller's program, which is built beside `skein`.
fn controller_program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_skein")).with_file_name("skein-controller")
}

#[track_caller]
fn done(output: &Output, what: &str) {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {text}");
}

#[test]
fn a_host_is_drained_and_its_guests_come_home() {
    let mut world = World::up();
    let vms: Vec<String> = (1..=5).map(|n| format!("v{n}")).collect();
    for vm in &vms {
        let definition = world.cluster.bare(vm);
        world.cluster.start_vm("b", &definition);
    }
    world.sees(&vms, "b");
    let status = world.json(&["cluster", "status", "--json"]);
    assert_eq!((&status["hosts"]["online"], &status["vms"]["running"]), (&4.into(), &5.into()), "{status}");

    // What would be done is said, and nothing is.
    let plan = world.json(&["host", "drain", "b", "--dry-run", "--json"]);
    assert_eq!(plan["moves"].as_array().unwrap().len(), 5, "{plan}");
    assert_eq!((world.host("b")["mode"].as_str(), world.places(&vms)), (Some("active"), vec!["b".to_owned(); 5]));

    // The controller picks the target of a single guest, and says why.
    let moved = world.skein(&["migrate", "v5"]);
    done(&moved, "skein migrate v5");
    assert!(String::from_utf8_lossy(&moved.stdout).contains("can take it"), "{moved:?}");
    world.waits("v5 is elsewhere", || matches!(&world.cluster.where_runs("v5")[..], [host] if host != "b"));

    // The controller is killed in the middle, and the drain goes on.
    done(&world.skein(&["host", "drain", "b", "--detach"]), "skein host drain");
    world.kill_controller();
    world.start_controller();
    world.waits("b is empty", || world.host("b")["mode"] == "maintenance");
    let places = world.places(&vms);
    assert!(places.len() == 5 && !places.contains(&"b".to_owned()), "{places:?}");
    let moves = world.cluster.migrations("b").len();
    assert_eq!(moves, 5, "each guest was moved once");
    // Nothing is put on a host in maintenance.
    let refused = world.skein(&["migrate", "v1", "--to", "b"]);
    assert!(!refused.status.success(), "{refused:?}");

    done(&world.skein(&["host", "resume", "b", "--bring-home"]), "skein host resume");
    world.sees(&vms[..4], "b");
    world.cluster.wait_clean(DEADLINE);
    world.cluster.check();
}

#[test]
fn guests_of_a_host_that_is_off_start_elsewhere_once_it_is_proven() {
    let mut world = World::up();
    let vms: Vec<String> = (1..=2).map(|n| format!("v{n}")).collect();
    for vm in &vms {
        let definition = world.cluster.bare(vm);
        world.cluster.start_vm("d", &definition);
    }
    world.sees(&vms, "d");
    // A host that reports is not taken for off.
    let refused = world.skein(&["host", "fence", "d", "--is-off"]);
    assert!(!refused.status.success(), "{refused:?}");

    world.cluster.kill("d");
    vms.iter().for_each(|vm| assert!(world.cluster.kill_qemu(vm, "d")));
    world.waits("d is lost", || world.host("d")["contact"] == "lost");
    // Without proof nothing starts.
    assert!(world.places(&vms).is_empty());
    done(&world.skein(&["host", "fence", "d", "--is-off"]), "skein host fence");
    world.waits("they run elsewhere", || {
        let places = world.places(&vms);
        places.len() == 2 && !places.contains(&"d".to_owned())
    });
    // The host is back, and forgets them.
    world.cluster.start("d");
    world.waits("d is back", || world.host("d")["contact"] == "online");
    assert!(until(GUEST_TIME, || world.cluster.vms("d").is_empty()), "{:?}", world.cluster.vms("d"));
    assert_eq!(world.places(&vms).len(), 2);
    world.cluster.check();
}

/// A fence agent that leaves the switching to the test, by files in its directory.
const FENCE_AGENT: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 1
case "$(cat)" in
*action=off*)
    touch off-wanted
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

#[test]
fn a_lost_host_is_switched_off_and_its_guests_start_elsewhere() {
    let mut world = World::up();
    let agents = world.file("fence-agents");
    fs::create_dir(&agents).unwrap();
    let program = agents.join("fence_lab");
    fs::write(&program, FENCE_AGENT).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let section = format!("\n[fencing]\nagents = \"{0}\"\nsecrets = \"{0}\"\n", agents.display());
    let config = world.file("controller.toml");
    fs::write(&config, fs::read_to_string(&config).unwrap() + &section).unwrap();
    world.kill_controller();
    world.start_controller();
    let vms: Vec<String> = (1..=2).map(|n| format!("v{n}")).collect();
    for vm in &vms {
        let definition = world.cluster.bare(vm);
        world.cluster.start_vm("d", &definition);
    }
    world.sees(&vms, "d");
    done(&world.skein(&["host", "fencing", "set", "d", "--agent", "fence_lab"]), "skein host fencing set");
    let read = world.json(&["host", "fencing", "test", "d", "--json"]);
    assert_eq!(read["power"], "on", "{read}");

    // The agent is gone, and the guests run on: the host is lost, and not off.
    world.cluster.kill("d");
    world.waits("its power is to be switched off", || agents.join("off-wanted").exists());
    assert_eq!(world.host("d")["contact"], "lost");
    assert_eq!(world.places(&vms), ["d", "d"], "they run on the host that is lost, and nowhere else");
    // The controller dies in the middle: what it had begun is done by the next.
    world.kill_controller();
    world.start_controller();
    vms.iter().for_each(|vm| assert!(world.cluster.kill_qemu(vm, "d")));
    let off = Instant::now();
    fs::write(agents.join("is-off"), "").unwrap();
    world.waits("they run elsewhere", || {
        let places = world.places(&vms);
        places.len() == 2 && !places.contains(&"d".to_owned())
    });
    println!("elsewhere {:.1} s after the host was off, with a controller killed", off.elapsed().as_secs_f64());
    assert_eq!(world.host("d")["contact"], "off");
    let operations = world.json(&["operation", "list", "--json"]);
    let fencing = operations.as_array().unwrap().iter().find(|of| of["kind"]["kind"] == "fence").cloned().unwrap();
    assert_eq!((&fencing["state"], &fencing["fencing"]["attempts"]), (&"done".into(), &2.into()), "{fencing}");
    world.cluster.check();
}
