//! Tests VMs of an agent that is delayed, killed, refused, or loses its files. Needs root.
// Timeout: 300 s
// QEMU: 7.2 10
// Cores: 0.4

use std::cell::Cell;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use skein_api::{MigrateOptions, Outcome, Reply, Request, VmOrigin, VmState, VmView};
use skein_client::CallError;
use skein_lab_cluster::{Cluster, Settings, Start, configuration, until};

/// The time within which everything is tidied up.
const SOON: Duration = Duration::from_secs(60);
/// The time for anything that has to happen at all.
const DEADLINE: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings::new(env!("CARGO_BIN_EXE_skein").into())
}

fn start(definition: &str) -> Request {
    Request::VmStart {
        from: VmOrigin::Definition { file: "test.toml".into(), text: definition.into() },
        options: Default::default(),
    }
}

fn start_again(vm: &str) -> Request {
    Request::VmStart { from: VmOrigin::Name(vm.into()), options: Default::default() }
}

fn stop(vm: &str, timeout_s: u64) -> Request {
    Request::VmStop { name: vm.into(), timeout_s, force: true }
}

fn adopt(qmp: &Path, name: &str) -> Request {
    Request::VmAdopt { qmp: qmp.into(), name: Some(name.into()) }
}

/// Returns a VM of a host. `None`: it is unknown there.
fn found(cluster: &Cluster, host: &str, vm: &str) -> Option<VmView> {
    cluster.vms(host).into_iter().find(|found| found.name == vm)
}

fn state(cluster: &Cluster, host: &str, vm: &str) -> Option<VmState> {
    found(cluster, host, vm).map(|found| found.state)
}

/// Returns the QEMUs of a VM on a host.
fn pids(cluster: &Cluster, host: &str, vm: &str) -> Vec<u32> {
    cluster.qemus(host).into_iter().filter(|qemu| qemu.vm.as_deref() == Some(vm)).map(|qemu| qemu.pid).collect()
}

fn state_file(cluster: &Cluster, host: &str, vm: &str) -> PathBuf {
    cluster.state_dir(host).join("vms").join(format!("{vm}.json"))
}

fn run_dir(cluster: &Cluster, host: &str, vm: &str) -> PathBuf {
    cluster.run_dir(host).join("vms").join(vm)
}

#[track_caller]
fn runs_on(cluster: &Cluster, vm: &str, host: &str) {
    let mut where_runs = Vec::new();
    let runs = until(SOON, || {
        where_runs = cluster.where_runs(vm);
        where_runs == [host] && cluster.hosts().iter().map(|host| pids(cluster, host, vm).len()).sum::<usize>() == 1
    });
    assert!(runs, "{vm} runs on {where_runs:?}: {:?} {:?}", cluster.qemus("a"), cluster.qemus("b"));
    assert_eq!(state(cluster, host, vm), Some(VmState::Running));
}

/// Checks that nothing is left over, and that no guest ever ran twice.
#[track_caller]
fn end(cluster: &Cluster) {
    cluster.wait_clean(SOON);
    cluster.check();
}

/// Makes a program that becomes QEMU after these commands.
fn qemu_after(cluster: &mut Cluster, commands: &str) -> PathBuf {
    let path = cluster.dir().join("slow-qemu");
    let script = format!("#!/bin/sh\n{commands}\nexec '{}' \"$@\"\n", cluster.settings().qemu.display());
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Makes a QEMU that takes a second to start.
fn slow_qemu(cluster: &mut Cluster) -> PathBuf {
    qemu_after(cluster, "sleep 1")
}

/// Returns a definition with another QEMU program.
fn with_binary(definition: &str, binary: &Path) -> String {
    definition.replace("[qemu]\n", &format!("[qemu]\nbinary = '{}'\n", binary.display()))
}

/// Returns a definition with more arguments for QEMU.
fn with_args(definition: &str, args: &str) -> String {
    definition.replace("args = [", &format!("args = [{args}, "))
}

/// Writes what a guest's witness needs to a file for `-readconfig`. A `-qmp` would be taken for that of whoever started
/// the QEMU.
fn witness_file(cluster: &Cluster, vm: &str) -> PathBuf {
    let path = cluster.dir().join(format!("{vm}.cfg"));
    fs::write(&path, configuration(&cluster.sockets(), vm)).unwrap();
    cluster.witness().watch(&cluster.sockets(), vm);
    path
}

/// Returns the definition of a bare guest that the witness also sees when it is started from its command line.
fn with_configuration(cluster: &Cluster, vm: &str) -> String {
    let definition = cluster.bare(vm);
    let begin = definition.find("args = [").unwrap();
    format!("{}args = ['-readconfig', '{}']\n", &definition[..begin], witness_file(cluster, vm).display())
}

fn has_taps() -> bool {
    Path::new("/dev/net/tun").exists()
}

/// Returns a definition with a NIC in a bridge, where bridges are available.
fn plugged(definition: &str, bridge: &str) -> String {
    let nic = if has_taps() { format!("[[nic]]\nbridge = '{bridge}'\n") } else { String::new() };
    definition.to_owned() + &nic
}

/// Returns the output of `ip` on a host.
#[track_caller]
fn ip(cluster: &Cluster, host: &str, args: &str) -> String {
    let said = cluster.lab().command(host, "ip").unwrap().args(args.split(' ')).output().unwrap();
    assert!(said.status.success(), "ip {args}: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).unwrap()
}

/// Returns the taps that agents made.
fn taps(cluster: &Cluster, host: &str) -> Vec<String> {
    let links = ip(cluster, host, "-o link");
    let names = links.lines().filter_map(|line| line.split(": ").nth(1));
    names.filter(|name| name.starts_with("sk")).map(str::to_owned).collect()
}

/// A process that is not the cluster's: a QEMU that no agent started, or an agent.
struct Foreign(Child);

impl Foreign {
    fn start(cluster: &mut Cluster, vm: &str, more: &str) -> Foreign {
        let program = cluster.settings().qemu.clone();
        let line = format!("-name {vm} -nodefaults -no-user-config -display none -accel tcg -machine q35 -m 32 {more}");
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Foreign(cluster.spawn("a", &program, &words))
    }

    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_name_has_one_process() {
    let mut cluster = Cluster::idle(settings());
    let slow = slow_qemu(&mut cluster);
    cluster.start("a");
    let usual = cluster.settings().qemu.clone();
    cluster.settings().qemu = slow.clone();
    cluster.start("b");
    cluster.settings().qemu = usual;

    // Three requests at once.
    let definition = with_binary(&cluster.bare("v1"), &slow);
    let told: Vec<_> = thread::scope(|scope| {
        let one = || cluster.ask("a", &start(&definition));
        let three = [(); 3].map(|()| scope.spawn(one));
        cluster.wait(SOON, "it is started", || state(&cluster, "a", "v1") == Some(VmState::Starting));
        assert!(cluster.refused("a", &start_again("v1")).contains("'v1' is being started"));
        let button = Request::VmStop { name: "v1".into(), timeout_s: 0, force: false };
        assert!(cluster.refused("a", &button).contains("'v1' is being started"));
        assert!(cluster.refused("a", &Request::VmForget { name: "v1".into() }).contains("'v1' is being started"));
        three.map(|one| one.join().unwrap()).into()
    });
    let started: Vec<_> = told.iter().filter_map(|told| told.as_ref().ok()).collect();
    assert!(matches!(started[..], [Reply::Vm(vm)] if vm.state == VmState::Running), "{told:?}");
    for error in told.iter().filter_map(|told| told.as_ref().err()) {
        assert!(
            matches!(error, CallError::Refused(_)) && error.to_string().contains("'v1' is being started"),
            "{error}"
        );
    }
    runs_on(&cluster, "v1", "a");
    cluster.asked("a", &stop("v1", 0));
    assert!(pids(&cluster, "a", "v1").is_empty());

    // A VM that is being received.
    let definition = cluster.bare("v2");
    cluster.start_vm("a", &definition);
    let moved = thread::scope(|scope| {
        let moving = scope.spawn(|| cluster.moved("v2", "a", "b"));
        cluster.wait(DEADLINE, "it is received", || state(&cluster, "b", "v2").is_some());
        let refused = cluster.refused("b", &start(&definition));
        assert!(refused.contains("'v2' is being started"), "{refused}");
        cluster.wait(SOON, "it waits for its guest", || state(&cluster, "b", "v2") != Some(VmState::Starting));
        assert!(cluster.refused("b", &start(&definition)).contains("'v2' is running"));
        moving.join().unwrap()
    });
    assert_eq!(moved.outcome, Some(Outcome::Moved));
    runs_on(&cluster, "v2", "b");
    cluster.wait(SOON, "it is the target's alone", || found(&cluster, "a", "v2").is_none());
    end(&cluster);
}

#[test]
fn a_running_vm_outlives_its_files() {
    let mut cluster = Cluster::up(settings());
    cluster.start_vm("a", &with_configuration(&cluster, "v1"));
    let pid = found(&cluster, "a", "v1").unwrap().pid.unwrap();
    // A script around QEMU set this so that QEMU finds its libraries. A launch from a command line starts the program
    // with it.
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let variables = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let env = variables.filter_map(|variable| {
        let (name, value) = variable.split_once('=')?;
        ["LD_LIBRARY_PATH", "QEMU_MODULE_DIR"].contains(&name).then(|| (name.to_owned(), value.to_owned()))
    });
    let with_env = Start { env: env.collect(), ..Start::default() };
    let restart = |cluster: &mut Cluster, damage: &dyn Fn(&Cluster)| {
        cluster.stop("a");
        damage(cluster);
        cluster.start_as("a", &with_env);
    };

    // The file about its process.
    restart(&mut cluster, &|cluster| fs::write(run_dir(cluster, "a", "v1").join("process.json"), "{\"pro").unwrap());
    let vm = found(&cluster, "a", "v1").unwrap();
    assert_eq!((vm.state, vm.pid), (VmState::Running, Some(pid)));
    assert!(vm.definition.is_some());
    assert!(cluster.refused("a", &start_again("v1")).contains("'v1' is running"));

    // The file about the VM itself. The VM is known by the command line of its QEMU, and can be started from that.
    restart(&mut cluster, &|cluster| {
        fs::write(run_dir(cluster, "a", "v1").join("vm.json"), "{\"launch\":").unwrap();
        fs::write(state_file(cluster, "a", "v1"), "").unwrap();
    });
    let vm = found(&cluster, "a", "v1").unwrap();
    assert_eq!((vm.state, vm.pid, vm.definition), (VmState::Running, Some(pid), None));
    runs_on(&cluster, "v1", "a");
    for _ in 0..2 {
        cluster.asked("a", &stop("v1", 0));
        assert!(pids(&cluster, "a", "v1").is_empty());
        cluster.wait_clean(SOON);
        // An agent that finds the VM off knows it and can start it, too.
        restart(&mut cluster, &|_| {});
        assert_eq!(state(&cluster, "a", "v1"), Some(VmState::Stopped));
        cluster.asked("a", &start_again("v1"));
        runs_on(&cluster, "v1", "a");
    }
    cluster.asked("a", &stop("v1", 0));
    cluster.asked("a", &Request::VmForget { name: "v1".into() });

    // All files that lead to the VM.
    let definition = cluster.bare("v2");
    let pid = cluster.start_vm("a", &definition).pid;
    restart(&mut cluster, &|cluster| fs::remove_dir_all(cluster.run_dir("a").join("vms")).unwrap());
    let vm = found(&cluster, "a", "v2").unwrap();
    assert_eq!((vm.state, vm.pid), (VmState::Unresponsive, pid));
    assert!(cluster.refused("a", &start(&definition)).contains("'v2' is running"));
    assert!(cluster.refused("a", &start_again("v2")).contains("'v2' is running"));
    assert_eq!(cluster.where_runs("v2"), ["a"]);
    cluster.asked("a", &stop("v2", 0));
    assert!(pids(&cluster, "a", "v2").is_empty());
    cluster.wait_clean(SOON);
    cluster.asked("a", &start_again("v2"));
    runs_on(&cluster, "v2", "a");
    cluster.moved("v2", "a", "b");
    end(&cluster);
}

#[test]
fn an_agent_killed_in_a_start_leaves_one_qemu_or_none() {
    let mut cluster = Cluster::up(settings());
    let slow = slow_qemu(&mut cluster);
    // The agent is killed while QEMU is asked for its version, starts, and answers, and before it is even QEMU.
    let moments = [0, 4, 8, 12, 16, 24, 32, 48, 64, 80, 100, 120, 150].map(|ms| (ms, false));
    let moments = moments.into_iter().chain([(1400, true)]);
    for (n, (ms, is_slow)) in moments.enumerate() {
        let vm = format!("v{n}");
        let definition = cluster.bare(&vm);
        let definition = if is_slow { with_binary(&definition, &slow) } else { definition };
        let (client, request) = (cluster.client("a"), start(&definition));
        let asking = thread::spawn(move || drop(client.call(&request, DEADLINE)));
        thread::sleep(Duration::from_millis(ms));
        cluster.kill("a");
        asking.join().unwrap();
        cluster.start("a");

        let mut now = None;
        let settles = |cluster: &Cluster, now: &mut Option<VmState>| {
            *now = state(cluster, "a", &vm);
            let qemus = pids(cluster, "a", &vm).len();
            match now {
                None | Some(VmState::Stopped) => qemus == 0,
                Some(VmState::Running) => qemus == 1 && state_file(cluster, "a", &vm).exists(),
                _ => false,
            }
        };
        cluster.wait(SOON, &format!("killed after {ms} ms, {vm} runs or is not there"), || settles(&cluster, &mut now));
        // And none comes later.
        thread::sleep(Duration::from_millis(100));
        assert!(settles(&cluster, &mut now), "{vm}: {now:?}");
        println!("killed after {ms} ms{}: {now:?}", if is_slow { " of a slow start" } else { "" });
        cluster.wait_clean(SOON);
        match now {
            Some(VmState::Running) => {
                let machine = found(&cluster, "a", &vm).unwrap().machine.unwrap();
                assert!(machine.contains("q35-"), "it keeps its machine: {machine}");
                let check = cluster.check_move(&vm, "a", "b");
                assert!(!check.blocks(), "{check:?}");
                assert!(cluster.refused("a", &start(&definition)).contains("is running"));
            }
            _ => drop(cluster.start_vm("a", &definition)),
        }
        runs_on(&cluster, &vm, "a");
        cluster.asked("a", &stop(&vm, 0));
        cluster.asked("a", &Request::VmForget { name: vm.clone() });
        assert_eq!((found(&cluster, "a", &vm), cluster.qemus("a").len()), (None, 0));
    }
    end(&cluster);
}

/// Tests a QEMU of which nothing says that it waits for a migration, and which cannot be asked yet.
#[test]
fn a_qemu_that_waits_for_nobody_is_ended() {
    let mut cluster = Cluster::idle(settings());
    let slow = slow_qemu(&mut cluster);
    for host in ["a", "b"] {
        cluster.start(host);
    }
    cluster.start_vm("a", &with_binary(&cluster.bare("v1"), &slow));
    let migration = cluster.begin("v1", "a", "b", MigrateOptions::default());
    let process = run_dir(&cluster, "b", "v1").join("process.json");
    cluster.wait(DEADLINE, "its QEMU is started there", || process.exists());
    cluster.kill("b");
    fs::remove_file(&process).unwrap();
    cluster.start("b");
    assert_eq!(state(&cluster, "b", "v1"), Some(VmState::Unresponsive));
    let over = cluster.watched("a", migration.id);
    assert_eq!(over.outcome, Some(Outcome::CalledOff), "{over:?}");
    cluster.wait(SOON, "it is gone", || found(&cluster, "b", "v1").is_none() && cluster.qemus("b").is_empty());
    runs_on(&cluster, "v1", "a");
    cluster.wait_clean(SOON);
    cluster.moved("v1", "a", "b");
    runs_on(&cluster, "v1", "b");
    end(&cluster);
}

#[test]
fn a_qemu_is_one_vm() {
    let mut cluster = Cluster::up(settings());
    let sockets: Vec<PathBuf> = ["one", "two", "three", "four"].map(|name| cluster.dir().join(name)).into();
    let qmp = |n: usize| format!("-qmp unix:{},server=on,wait=off", sockets[n].display());
    let config = witness_file(&cluster, "old1");
    let mut old =
        Foreign::start(&mut cluster, "old1", &format!("{} {} -readconfig {}", qmp(0), qmp(1), config.display()));
    cluster.wait(DEADLINE, "it runs", || cluster.where_runs("old1") == ["a"]);
    cluster.asked("a", &adopt(&sockets[0], "old1"));
    let refused = cluster.refused("a", &adopt(&sockets[1], "other"));
    assert!(refused.contains("is the VM 'old1' already"), "{refused}");
    assert!(cluster.refused("a", &adopt(&sockets[1], "old1")).contains("'old1' is on this host already"));

    // A QEMU that the agent started, also while it is being started.
    let own = with_args(&cluster.bare("v1"), &format!("'-qmp', 'unix:{},server=on,wait=off'", sockets[2].display()));
    thread::scope(|scope| {
        let starting = scope.spawn(|| cluster.start_vm("a", &own));
        let mut said = Vec::new();
        while !starting.is_finished() {
            if sockets[2].exists() {
                said.push(cluster.refused("a", &adopt(&sockets[2], "other")));
            }
            thread::sleep(Duration::from_millis(2));
        }
        println!("{} times refused while it is started", said.len());
        assert!(said.iter().all(|said| said.contains("three") || said.contains("is the VM 'v1' already")), "{said:#?}");
    });
    let refused = cluster.refused("a", &adopt(&sockets[2], "other"));
    assert!(refused.contains("is the VM 'v1' already"), "{refused}");

    // A QEMU without a guest.
    let mut waits = Foreign::start(&mut cluster, "in1", &format!("{} -incoming defer", qmp(3)));
    cluster.wait(DEADLINE, "it listens", || sockets[3].exists());
    let refused = cluster.refused("a", &adopt(&sockets[3], "in1"));
    assert!(refused.contains("waits for a migration"), "{refused}");
    assert!(waits.runs() && old.runs());
    drop(waits);

    let known: Vec<String> = cluster.vms("a").into_iter().map(|vm| vm.name).collect();
    assert_eq!(known, ["old1", "v1"]);
    for name in ["other", "in1"] {
        assert!(!run_dir(&cluster, "a", name).exists() && !state_file(&cluster, "a", name).exists(), "{name}");
    }
    // Once it is forgotten, it can be adopted again, under any name.
    cluster.asked("a", &Request::VmForget { name: "old1".into() });
    cluster.asked("a", &adopt(&sockets[1], "other"));
    assert!(old.runs());
    end(&cluster);
}

/// Starts another agent for a host, with another run directory and port.
fn other_agent(cluster: &mut Cluster, host: &str, run: &Path) -> Foreign {
    let (program, qemu) = (cluster.settings().program.clone(), cluster.settings().qemu.clone());
    let mut command = cluster.lab().command(host, program).unwrap();
    command.arg("agent").arg("--identity").arg(cluster.dir().join(host).join("identity"));
    command.arg("--state").arg(cluster.state_dir(host)).arg("--run").arg(run);
    command.arg("--hosts").arg(cluster.dir().join("hosts.toml")).arg("--qemu").arg(qemu);
    command.args(["--listen", "[::]:7171"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Foreign(command.spawn().unwrap())
}

/// Returns what the agent prints; it has to end by itself.
#[track_caller]
fn refuses(mut agent: Foreign) -> String {
    assert!(until(SOON, || !agent.runs()), "it runs");
    assert!(!agent.0.wait().unwrap().success());
    let mut said = String::new();
    agent.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

#[test]
fn a_second_agent_harms_nothing() {
    let mut cluster = Cluster::up(settings());
    if !has_taps() {
        println!("skipped: taps, for want of /dev/net/tun");
    }
    ip(&cluster, "a", "link add br0 type bridge");
    let definition = plugged(&cluster.bare("v1"), "br0");
    let pid = cluster.start_vm("a", &definition).pid;
    let other = cluster.dir().join("other-run");
    let is_whole = |cluster: &Cluster| {
        let taps = taps(cluster, "a");
        assert_eq!(taps.len(), usize::from(has_taps()), "{taps:?}");
        for tap in taps {
            let shown = ip(cluster, "a", &format!("-o link show dev {tap}"));
            assert!(shown.contains("master br0") && shown.contains("UP"), "{shown}");
        }
        runs_on(cluster, "v1", "a");
    };
    is_whole(&cluster);

    let said = refuses(other_agent(&mut cluster, "a", &other));
    let journal = cluster.state_dir("a").join("journal");
    assert!(said.contains("journal") && said.contains(journal.to_str().unwrap()), "{said}");
    is_whole(&cluster);

    cluster.stop("a");
    let said = refuses(other_agent(&mut cluster, "a", &other));
    let run = cluster.run_dir("a");
    assert!(said.contains("v1") && said.contains(run.to_str().unwrap()), "{said}");
    assert!(!state_file(&cluster, "a", "v1").with_extension("new").exists());
    cluster.start("a");
    is_whole(&cluster);
    assert_eq!(found(&cluster, "a", "v1").unwrap().pid, pid);
    cluster.asked("a", &stop("v1", 0));
    assert_eq!(taps(&cluster, "a"), [""; 0]);
    end(&cluster);

    // Nothing runs, so the directory may be another one now.
    cluster.stop("a");
    let agent = other_agent(&mut cluster, "a", &other);
    cluster.wait(SOON, "it starts", || other.join("agent.sock").exists());
    drop(agent);
    cluster.start("a");
    cluster.asked("a", &start_again("v1"));
    is_whole(&cluster);
}

/// Returns all files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_start_that_fails_leaves_nothing() {
    let mut cluster = Cluster::idle(settings());
    cluster.mount_state("a", 3 << 20);
    cluster.start("a");
    cluster.start("b");
    if !has_taps() {
        println!("skipped: taps, for want of /dev/net/tun");
    }
    ip(&cluster, "a", "link add br0 type bridge");
    let filler = cluster.state_dir("a").join("filler");
    let leaves_nothing = |cluster: &Cluster, vm: &str| {
        assert!(cluster.refused("a", &Request::VmShow { name: vm.into() }).contains(&format!("no VM '{vm}'")));
        assert_eq!((cluster.vms("a"), cluster.qemus("a").len(), taps(cluster, "a")), (vec![], 0, vec![]));
        assert!(!run_dir(cluster, "a", vm).exists() && !state_file(cluster, "a", vm).exists(), "{vm}");
        let mut all = files(&cluster.state_dir("a"));
        all.extend(files(&cluster.run_dir("a")));
        all.retain(|path| path.extension().is_some_and(|end| end == "new"));
        assert!(all.is_empty(), "{all:?}");
    };
    let bare = cluster.bare("v1");
    let good = plugged(&bare, "br0");
    let mut bad = vec![
        (good.replace("[qemu]", "kernel = '/nonexistent/vmlinuz'\n[qemu]"), "/nonexistent/vmlinuz"),
        (with_args(&good, "'-no-such-option'"), "no-such-option"),
        (with_binary(&good, "/nonexistent/qemu".as_ref()), "/nonexistent/qemu"),
    ];
    if has_taps() {
        bad.push((plugged(&bare, "br9"), "br9"));
        // The first NIC can be made, the second cannot.
        bad.push((plugged(&good, "br9"), "br9"));
    }
    for (definition, word) in &bad {
        let refused = cluster.refused("a", &start(definition));
        assert!(refused.contains(word), "{refused}");
        leaves_nothing(&cluster, "v1");
    }
    // The same, with several requests at once.
    thread::scope(|scope| {
        let (cluster, definition) = (&cluster, &bad[1].0);
        for _ in 0..4 {
            scope.spawn(move || (0..3).for_each(|_| drop(cluster.refused("a", &start(definition)))));
        }
    });
    leaves_nothing(&cluster, "v1");

    let full = fs::write(&filler, vec![0; 4 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let refused = cluster.refused("a", &start(&good));
    assert!(refused.contains("v1") && refused.contains("space"), "{refused}");
    leaves_nothing(&cluster, "v1");
    fs::remove_file(&filler).unwrap();

    cluster.start_vm("a", &good);
    runs_on(&cluster, "v1", "a");
    assert_eq!(taps(&cluster, "a").len(), usize::from(has_taps()));
    cluster.asked("a", &stop("v1", 0));

    // A VM that is known stays as it was.
    let before = found(&cluster, "a", "v1").unwrap();
    assert!(before.state == VmState::Stopped && before.definition.is_some());
    let stays = |cluster: &Cluster| {
        let now = found(cluster, "a", "v1").unwrap();
        assert_eq!((now.state, &now.definition), (VmState::Stopped, &before.definition));
        assert_eq!((cluster.qemus("a").len(), taps(cluster, "a")), (0, vec![]));
        cluster.wait_clean(SOON);
    };
    for (definition, _) in &bad {
        cluster.refused("a", &start(definition));
        stays(&cluster);
    }
    fs::write(&filler, vec![0; 4 << 20]).unwrap_err();
    cluster.refused("a", &start(&good));
    stays(&cluster);
    fs::remove_file(&filler).unwrap();
    cluster.kill("a");
    cluster.start("a");
    stays(&cluster);
    cluster.asked("a", &start_again("v1"));
    runs_on(&cluster, "v1", "a");
    end(&cluster);
}

#[test]
fn a_guest_that_left_was_not_stopped() {
    let mut cluster = Cluster::idle(settings());
    cluster.start("b");
    let held = cluster.dir().join("held");
    let wait = format!("case \"$*\" in *-incoming*) while [ -e '{}' ]; do sleep 0.1; done;; esac", held.display());
    cluster.settings().qemu = qemu_after(&mut cluster, &wait);
    cluster.start("a");
    cluster.start_vm("a", &cluster.bare("v1"));
    let stopping = |host: &'static str, timeout_s, meanwhile: &dyn Fn()| {
        thread::scope(|scope| {
            let stopping = scope.spawn(|| cluster.refused(host, &stop("v1", timeout_s)));
            thread::sleep(Duration::from_millis(200));
            meanwhile();
            stopping.join().unwrap()
        })
    };
    // The guest is gone before it would be killed.
    let said = stopping("a", 60, &|| drop(cluster.moved("v1", "a", "b")));
    assert!(said.contains("'v1' left for another host"), "{said}");
    runs_on(&cluster, "v1", "b");

    // The guest is on its way then, to a QEMU that does not exist yet.
    fs::write(&held, "").unwrap();
    let begun = Cell::new(None);
    let said = stopping("b", 20, &|| {
        begun.set(Some(cluster.begin("v1", "b", "a", MigrateOptions::default()).id));
    });
    let id = begun.get().unwrap();
    assert!(said.contains(&format!("'v1' is in migration {id}")), "{said}");
    assert_eq!(cluster.where_runs("v1"), ["b"]);
    fs::remove_file(&held).unwrap();
    let over = cluster.watched("b", id);
    assert_eq!(over.outcome, Some(Outcome::Moved), "{over:?}");
    runs_on(&cluster, "v1", "a");
    end(&cluster);
}

#[test]
fn a_tap_in_use_is_left_alone() {
    if !has_taps() {
        println!("skipped: for want of /dev/net/tun");
        return;
    }
    let cluster = Cluster::up(settings());
    ip(&cluster, "a", "link add br0 type bridge");
    let with_mac = |vm: &str| plugged(&cluster.bare(vm), "br0") + "mac = '52:54:00:00:00:07'\n";
    cluster.start_vm("a", &with_mac("v1"));
    let before = taps(&cluster, "a");
    let from = VmOrigin::Definition { file: "v2.toml".into(), text: with_mac("v2") };
    let refused = cluster.refused("a", &Request::VmStart { from, options: Default::default() });
    assert!(refused.contains("same MAC address"), "{refused}");
    assert_eq!(taps(&cluster, "a"), before);
    let shown = ip(&cluster, "a", &format!("-o link show dev {}", before[0]));
    assert!(shown.contains("master br0") && shown.contains("LOWER_UP"), "{shown}");
    runs_on(&cluster, "v1", "a");
    assert_eq!(cluster.vms("a").len(), 1);
}
