//! Tests a cluster as people run it: a real controller, agents on four hosts, guests, and the commands.
// Timeout: 400 s
// Cores: 0.7
// Program: skein-controller

mod controlled;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use serde_json::Value;
use skein_api::{Request, StartOptions, VmOrigin, VmState};
use skein_lab_cluster::{Controlled, GUEST_TIME, Settings, Start, done, echoing, filled, noise, until};

use controlled::{DEADLINE, FENCE_AGENT};

/// The host where the controller runs, beside an agent.
const CONTROLLER_HOST: &str = "a";

/// Makes a cluster by `skein-controller init`, starts the controller and agents on four hosts, and logs in.
fn up() -> Controlled {
    let settings = Settings { hosts: 4, ..Settings::new(env!("CARGO_BIN_EXE_skein").into()) };
    let mut world = controlled::hosts(settings, CONTROLLER_HOST);
    world.add_controller(CONTROLLER_HOST, None, &[]);
    world.start_agents(CONTROLLER_HOST);
    world.start_controller(CONTROLLER_HOST);
    world.log_in(CONTROLLER_HOST);
    world
}

#[test]
fn a_host_is_drained_and_its_guests_come_home() {
    let mut world = up();
    let vms: Vec<String> = (1..=5).map(|n| format!("v{n}")).collect();
    // The copy of the last takes a while: its memory does not compress.
    let noise = noise(world.cluster.dir(), 6);
    for vm in &vms {
        let bare = world.cluster.bare(vm);
        let definition = if vm == "v5" { filled(&bare, &noise) } else { bare };
        world.cluster.start_vm("b", &definition);
    }
    world.sees(&vms, "b");
    let status = world.json(&["cluster", "status", "--json"]);
    assert_eq!((&status["hosts"]["online"], &status["vms"]["running"]), (&4.into(), &5.into()), "{status}");

    // What would be done is said, and nothing is.
    let plan = world.json(&["host", "drain", "b", "--dry-run", "--json"]);
    assert_eq!(plan["moves"].as_array().unwrap().len(), 5, "{plan}");
    assert_eq!((world.host("b")["mode"].as_str(), world.places(&vms)), (Some("active"), vec!["b".to_owned(); 5]));

    // The controller picks the target of a single guest, and says why and how far the copy is.
    let moved = world.skein(&["migrate", "v5", "--rate", "8Mb/s", "--json"]);
    done(&moved, "skein migrate v5");
    let said = String::from_utf8_lossy(&moved.stdout);
    assert!(said.contains("can take it"), "{said}");
    let mut told = said.lines().map(|line| serde_json::from_str::<Value>(line).expect("each line is JSON"));
    let is_copying = |told: &Value| told["moves"][0]["copy"]["remaining_bytes"].as_u64().is_some();
    assert!(told.any(|told| is_copying(&told) && told["progress"]["left_ms"].as_u64().is_some()), "{said}");
    world.waits("v5 is elsewhere", || matches!(&world.cluster.where_runs("v5")[..], [host] if host != "b"));

    // The controller is killed in the middle, and the drain goes on.
    done(&world.skein(&["host", "drain", "b", "--detach"]), "skein host drain");
    world.kill_controller(CONTROLLER_HOST);
    world.start_controller(CONTROLLER_HOST);
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

/// Collects what comes by a pipe, from now on.
fn collected(mut pipe: impl Read + Send + 'static) -> Arc<Mutex<Vec<u8>>> {
    let all = Arc::new(Mutex::new(Vec::new()));
    let collected = all.clone();
    thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = pipe.read(&mut chunk) {
            collected.lock().unwrap().extend(&chunk[..length]);
        }
    });
    all
}

#[test]
fn a_console_is_had_from_any_host_and_goes_on_where_its_guest_moves() {
    let world = up();
    let definition = echoing(&world.cluster.bare("v1"), world.cluster.dir());
    world.cluster.start_vm("b", &definition);
    world.sees(&["v1".to_owned()], "b");
    let mut console = world.command(&["vm", "console", "v1"]);
    console.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut console = console.spawn().expect("skein can be run");
    let mut typed = console.stdin.take().unwrap();
    let (output, notes) = (collected(console.stdout.take().unwrap()), collected(console.stderr.take().unwrap()));
    let has =
        |collected: &Mutex<Vec<u8>>, words: &str| String::from_utf8_lossy(&collected.lock().unwrap()).contains(words);
    // What is typed before the guest has booted, nobody reads.
    world.waits("the guest writes back", || {
        typed.write_all(b"?").expect("the console is there");
        has(&output, "?")
    });
    let second = world.skein(&["vm", "console", "v1"]);
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && said.contains("has the console") && said.contains("--take-over"), "{said}");
    done(&world.skein(&["migrate", "v1", "--to", "c"]), "skein migrate v1");
    world.waits("the console is there again", || has(&notes, "the VM runs on c now"));
    typed.write_all(b"on c").unwrap();
    world.waits("the guest writes back where it is now", || has(&output, "on c"));
    // The end of the input is that of the command, which lets the console go.
    drop(typed);
    let mut status = None;
    world.waits("the command ends", || {
        status = console.try_wait().expect("it can be waited for");
        status.is_some()
    });
    assert!(status.unwrap().success(), "{}", String::from_utf8_lossy(&notes.lock().unwrap()));
    done(&world.skein(&["vm", "console", "v1"]), "skein vm console");
    world.cluster.check();
}

/// Waits until an operation is over, and returns it.
fn ended(world: &Controlled, id: &str) -> Value {
    let show = || world.json(&["operation", "show", id, "--json"]);
    world.waits("the operation is over", || !show()["ended"].is_null());
    show()
}

#[test]
fn hosts_are_updated_one_by_one_with_guests_that_leave_and_come_home() {
    let mut world = up();
    // Each host's own command says when it ran, and how many QEMUs there were in its name space.
    let log = world.cluster.dir().join("updates");
    let agents = ["b", "c", "d"];
    for host in agents {
        world.cluster.stop(host);
        let run = world.cluster.run_dir(host);
        let command = format!("echo {host} $(ls {}/vms | wc -l) >>{}; sleep 1", run.display(), log.display());
        let args = vec!["--update".into(), command];
        world.cluster.start_as(host, &Start { args, ..Start::default() });
    }
    let vms: Vec<String> = vec!["v1".into(), "v2".into()];
    for vm in &vms {
        let definition = world.cluster.bare(vm);
        world.cluster.start_vm("b", &definition);
    }
    world.sees(&vms, "b");
    let shown = world.json(&["cluster", "update", "--no-reboot", "--host", "b", "--host", "c", "--dry-run", "--json"]);
    assert_eq!(shown["update"]["hosts"][0]["detail"], "2 VMs leave", "{shown}");
    assert!(!log.exists());

    let begun = world.json(&["cluster", "update", "--no-reboot", "--host", "b", "--host", "c", "--detach", "--json"]);
    let id = begun["id"].as_str().unwrap().to_owned();
    // The controller is killed in the middle, and the update goes on.
    world.waits("b is updated", || log.exists());
    world.kill_controller(CONTROLLER_HOST);
    world.start_controller(CONTROLLER_HOST);
    let over = ended(&world, &id);
    assert_eq!(over["state"], "done", "{over}");
    assert_eq!(fs::read_to_string(&log).unwrap(), "b 0\nc 0\n", "each once, and with no guest");
    world.sees(&vms, "b");

    // A host whose agent has no such command ends it, and takes guests again when somebody says so.
    let failed = world.skein(&["cluster", "update", "--host", "a", "--no-reboot"]);
    assert!(!failed.status.success(), "{failed:?}");
    assert!(String::from_utf8_lossy(&failed.stdout).contains("no command that updates the host"), "{failed:?}");
    assert_eq!(world.host("a")["mode"], "maintenance");
    done(&world.skein(&["host", "resume", "a"]), "skein host resume");
    world.cluster.wait_clean(DEADLINE);
    world.cluster.check();
}

#[test]
fn vms_that_are_off_leave_a_host_that_is_drained_start_there_and_come_home() {
    let world = up();
    let vms = ["v1", "v2"].map(str::to_owned);
    for vm in &vms {
        let definition = world.cluster.bare(vm);
        world.cluster.start_vm("b", &definition);
    }
    world.sees(&vms, "b");
    let stop = |vm: &str| {
        let stopped = world.skein(&["vm", "stop", vm, "--cluster", "--timeout", "1", "--force"]);
        done(&stopped, "skein vm stop");
    };
    vms.iter().for_each(|vm| stop(vm));
    let would = world.skein(&["host", "drain", "b", "--dry-run"]);
    done(&would, "skein host drain --dry-run");
    let said = String::from_utf8_lossy(&would.stdout);
    assert!(said.contains("2 VMs that are off move, too"), "{said}");

    done(&world.skein(&["host", "drain", "b"]), "skein host drain");
    assert!(world.cluster.vms("b").is_empty(), "{:?}", world.cluster.vms("b"));
    let list = world.json(&["vm", "list", "--cluster", "--json"]);
    let host = |vm: &str| {
        let found = list.as_array().unwrap().iter().find(|of| of["name"] == vm).cloned().unwrap_or_default();
        found["host"].as_str().unwrap_or_default().to_owned()
    };
    let (first, second) = (host("v1"), host("v2"));
    assert!(![&first, &second].iter().any(|host| host.is_empty() || *host == "b"), "{list}");
    assert_eq!(world.cluster.vm(&first, "v1").reserved, None, "nothing holds it there any more");
    // One is started where it came to, by its host alone, and goes home as a guest; the other as it came.
    world.cluster.asked(&first, &Request::VmStart { from: VmOrigin::Name("v1".into()), options: Default::default() });
    world.sees(&vms[..1], &first);
    done(&world.skein(&["host", "resume", "b", "--bring-home"]), "skein host resume");
    world.sees(&vms[..1], "b");
    assert_eq!(world.cluster.vm("b", "v2").state, VmState::Stopped);
    assert!(world.cluster.vms(&second).iter().all(|vm| vm.name != "v2"));
    // By hand, too.
    done(&world.skein(&["migrate", "v2", "--to", "c"]), "skein migrate v2 --to c");
    assert_eq!(world.cluster.vm("c", "v2").state, VmState::Stopped);
    world.cluster.check();
}

#[test]
fn guests_of_a_host_that_is_off_start_elsewhere_once_it_is_proven() {
    let mut world = up();
    let vms: Vec<String> = (1..=2).map(|n| format!("v{n}")).collect();
    for vm in &vms {
        let definition = world.cluster.bare(vm);
        world.cluster.start_vm("d", &definition);
    }
    world.sees(&vms, "d");
    // A host that reports is not taken for off.
    let refused = world.skein(&["host", "fence", "d", "--is-off", "--yes"]);
    assert!(!refused.status.success(), "{refused:?}");

    world.cluster.kill("d");
    vms.iter().for_each(|vm| assert!(world.cluster.kill_qemu(vm, "d")));
    world.waits("d is lost", || world.host("d")["contact"] == "lost");
    // Without proof nothing starts.
    assert!(world.places(&vms).is_empty());
    // A controller that has just begun takes nobody's word: agents may be about to find it.
    world.waits("the word is taken", || world.skein(&["host", "fence", "d", "--is-off", "--yes"]).status.success());
    world.waits("they run elsewhere", || {
        let places = world.places(&vms);
        places.len() == 2 && !places.contains(&"d".to_owned())
    });
    // The host is back, and forgets them. Somebody is faster, and wants one started there.
    world.cluster.start("d");
    let [v1, v3] = ["v1", "v3"].map(|vm| world.cluster.bare(vm));
    let by_hand = |text: &str, without_controller: bool| Request::VmStart {
        from: VmOrigin::Definition { file: "vm.toml".into(), text: text.to_owned() },
        options: StartOptions { without_controller, ..StartOptions::default() },
    };
    let place = world.places(&vms)[0].clone();
    let runs_elsewhere = || world.cluster.refused("d", &by_hand(&v1, true)).contains("'v1' runs on");
    assert!(until(GUEST_TIME, runs_elsewhere), "{}", world.cluster.refused("d", &by_hand(&v1, true)));
    assert_eq!(world.cluster.where_runs("v1"), [place]);
    world.waits("d is back", || world.host("d")["contact"] == "online");
    assert!(until(GUEST_TIME, || world.cluster.vms("d").is_empty()), "{:?}", world.cluster.vms("d"));
    assert_eq!(world.places(&vms).len(), 2);
    // Without a controller a person has to say that the VM runs nowhere else.
    world.kill_controller(CONTROLLER_HOST);
    let refused = world.cluster.refused("d", &by_hand(&v3, false));
    assert!(refused.contains("no controller") && refused.contains("--without-controller"), "{refused}");
    assert!(world.cluster.where_runs("v3").is_empty());
    world.cluster.asked("d", &by_hand(&v3, true));
    assert_eq!(world.cluster.where_runs("v3"), ["d"]);
    world.cluster.check();
}

#[test]
fn a_lost_host_is_switched_off_and_its_guests_start_elsewhere() {
    let mut world = up();
    let agents = world.files_of(CONTROLLER_HOST).join("fence-agents");
    fs::create_dir(&agents).unwrap();
    let program = agents.join("fence_lab");
    fs::write(&program, FENCE_AGENT).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let section = format!("\n[fencing]\nagents = \"{0}\"\nsecrets = \"{0}\"\n", agents.display());
    world.configure(CONTROLLER_HOST, &section);
    world.kill_controller(CONTROLLER_HOST);
    world.start_controller(CONTROLLER_HOST);
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
    world.waits("its power is to be switched off", || agents.join("orders").exists());
    assert_eq!(world.host("d")["contact"], "lost");
    assert_eq!(world.places(&vms), ["d", "d"], "they run on the host that is lost, and nowhere else");
    // The controller dies in the middle: what it had begun is done by the next.
    world.kill_controller(CONTROLLER_HOST);
    world.start_controller(CONTROLLER_HOST);
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

/// Starts a program that sees another id of the kernel's boot.
const OTHER_BOOT: &str = r#"#!/bin/sh
exec unshare --mount --propagation private sh -c '
    mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"
' "$(dirname "$0")/boot-id" PROGRAM "$@"
"#;

/// Returns the CPU that a VM's QEMU was told to give its guest.
fn cpu_of(world: &Controlled, vm: &str, host: &str) -> String {
    let qemus = world.cluster.qemus(host);
    let qemu = qemus.iter().find(|qemu| qemu.vm.as_deref() == Some(vm)).expect("it has a QEMU");
    let line = fs::read_to_string(format!("/proc/{}/cmdline", qemu.pid)).unwrap();
    line.split('\0').skip_while(|word| *word != "-cpu").nth(1).expect("-cpu").to_owned()
}

#[test]
fn a_vm_is_created_stopped_started_and_deleted_and_starts_again_after_its_hosts_boot() {
    let mut world = up();
    let dir = world.files_of(CONTROLLER_HOST).to_owned();
    let file = dir.join("v1.toml");
    fs::write(&file, format!("cpu = 'baseline'\n{}", world.cluster.bare("v1"))).unwrap();
    let file = file.to_str().unwrap().to_owned();
    // Each agent has to have told its CPU models.
    let all = "the best that all 4 hosts without a group have";
    world.waits("a plan with a CPU model of all hosts", || {
        let would = world.skein(&["vm", "start", &file, "--cluster", "--check"]);
        // Before hosts have told what they have, none takes it: 3.
        assert!([Some(0), Some(3)].contains(&would.status.code()), "{would:?}");
        let said = String::from_utf8_lossy(&would.stdout);
        said.contains("of 4 hosts that can take it") && said.contains(all) && !said.contains("not counted")
    });
    assert!(world.cluster.where_runs("v1").is_empty());

    let started = world.skein(&["vm", "start", &file, "--cluster"]);
    done(&started, "skein vm start FILE");
    let said = String::from_utf8_lossy(&started.stdout);
    let model = said.split("its CPU model is ").nth(1).and_then(|rest| rest.split(',').next()).expect("it is told");
    let places = world.cluster.where_runs("v1");
    let [host] = &places[..] else { panic!("{places:?}") };
    assert_eq!(cpu_of(&world, "v1", host), model);
    world.sees(&["v1".to_owned()], host);
    let stop = ["vm", "stop", "v1", "--cluster", "--timeout", "1", "--force"];
    done(&world.skein(&stop), "skein vm stop");
    assert!(world.cluster.where_runs("v1").is_empty());
    done(&world.skein(&["vm", "start", "v1", "--cluster"]), "skein vm start NAME");
    assert_eq!(world.cluster.where_runs("v1"), std::slice::from_ref(host), "on the host that has it");
    // It takes its CPU model along.
    done(&world.skein(&["migrate", "v1"]), "skein migrate v1");
    let places = world.cluster.where_runs("v1");
    let [host] = &places[..] else { panic!("{places:?}") };
    assert_eq!(cpu_of(&world, "v1", host), model);
    world.sees(&["v1".to_owned()], host);

    // Its host is booted: the guest is gone, and so is another that is not to start by itself.
    let definition = world.cluster.bare("v2");
    world.cluster.start_vm(host, &definition);
    world.sees(&["v1".to_owned(), "v2".to_owned()], host);
    done(&world.skein(&["property", "set", "vm", "v1", "autostart=yes"]), "skein property set");
    world.cluster.kill(host);
    ["v1", "v2"].iter().for_each(|vm| assert!(world.cluster.kill_qemu(vm, host)));
    let program = dir.join("other-boot");
    fs::write(dir.join("boot-id"), "11111111-2222-4333-8444-555555555555\n").unwrap();
    fs::write(&program, OTHER_BOOT.replace("PROGRAM", env!("CARGO_BIN_EXE_skein"))).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    world.cluster.start_as(host, &Start { program: Some(program), ..Start::default() });
    world.waits("v1 runs again", || world.cluster.where_runs("v1") == std::slice::from_ref(host));
    world.sees(&["v1".to_owned()], host);
    let operations = world.json(&["operation", "list", "--json"]);
    let starts = operations.as_array().unwrap().iter().filter(|of| of["kind"]["kind"] == "autostart");
    let starts: Vec<&Value> = starts.collect();
    let [start] = &starts[..] else { panic!("{operations}") };
    assert_eq!((&start["state"], &start["kind"]["vms"]), (&"done".into(), &serde_json::json!(["v1"])), "{start}");
    assert!(world.cluster.where_runs("v2").is_empty());

    done(&world.skein(&stop), "skein vm stop");
    done(&world.skein(&["vm", "delete", "v1", "--yes"]), "skein vm delete");
    let all = world.json(&["vm", "list", "--cluster", "--json"]);
    assert!(all.as_array().unwrap().iter().all(|vm| vm["name"] != "v1"), "{all}");
    assert!(world.cluster.vms(host).iter().all(|vm| vm.name != "v1"));
    world.cluster.check();
}
