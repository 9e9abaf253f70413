//! VMs are created, started, stopped and deleted.

use skein_api::cluster::{
    CreateVmRequest, DrainRequest, MoveState, OperationState, StartVmRequest, StopVmRequest, VmRunState, VmSettings,
};
use skein_api::{MigrationId, Refusal, Reply, Request, VmOrigin, VmState};
use skein_cluster::{Answer, Ask};

use crate::bench::{Bench, Sent, is_off};

const FILE: &str = "name = 'web'\nmemory = '1 GiB'\ncpus = 2\n";

fn request() -> CreateVmRequest {
    CreateVmRequest { definition: FILE.into(), start: true, on: None, dry_run: false }
}

fn create(request: CreateVmRequest) -> Ask {
    Ask::CreateVm { request: Box::new(request) }
}

fn start(on: Option<&str>) -> Ask {
    let on = on.map(str::to_owned);
    Ask::StartVm { vm: "web".into(), request: StartVmRequest { on, dry_run: false } }
}

fn stop() -> Ask {
    Ask::StopVm { vm: "web".into(), request: StopVmRequest { timeout_s: 30, force: true } }
}

fn delete() -> Ask {
    Ask::DeleteVm { vm: "web".into() }
}

/// Returns two hosts; the VM is off on alpha.
fn off() -> Bench {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.set_vm("alpha", "web", VmState::Stopped);
    bench
}

/// Has the VM stay where it is off: its host's agent is too old to move it so.
fn stay(bench: &mut Bench) {
    bench.older.insert("alpha".into());
    bench.disconnect("alpha");
    bench.connect("alpha");
}

fn state(bench: &Bench) -> (VmRunState, Option<String>) {
    let vm = bench.controller.vm("web").expect("the cluster knows it");
    (vm.state, vm.host)
}

#[test]
fn a_vm_is_created_where_the_controller_picks_and_it_is_said_why() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    let would = bench.shown(create(CreateVmRequest { dry_run: true, ..request() }));
    assert!(would.moves[0].reason.contains("of 2 hosts that can take it"), "{would:?}");
    assert_eq!((bench.controller.vm("web"), bench.sent.len()), (None, 0), "nothing is done");

    let begun = bench.begin(create(request()));
    let vm = bench.controller.vm("web").unwrap();
    assert_eq!((vm.state, vm.ram_bytes, vm.cpus), (VmRunState::Starting, 1 << 30, 2), "it is written down first");
    let Request::VmStart { from: VmOrigin::Definition { text, .. }, .. } = &bench.sent[0].request else { panic!() };
    assert!(text.contains("web"), "{text}");
    bench.obey_all();
    bench.wait_s(1);
    let over = bench.now(&begun);
    assert_eq!((over.state, over.moves[0].state), (OperationState::Done, MoveState::Done));
    assert_eq!(state(&bench), (VmRunState::Running, over.moves[0].to.clone()));
    assert!(bench.refused(create(request())).message.contains("is not off"));
}

#[test]
fn a_host_that_refuses_is_told_and_another_is_taken_and_then_none() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    let begun = bench.begin(create(request()));
    bench.not_started("no such file: /srv/web.qcow2");
    bench.wait_s(1);
    bench.not_started("no room");
    bench.wait_s(1);
    let over = bench.now(&begun);
    assert_eq!(over.state, OperationState::Failed);
    for word in ["alpha refused: ", "beta refused: ", "no room", "/srv/web.qcow2"] {
        assert!(over.message.contains(word), "{word}: {}", over.message);
    }
    assert_eq!(state(&bench), (VmRunState::Stopped, None), "the cluster still knows it");
    bench.begin(start(None));
    bench.obey_all();
    assert_eq!(state(&bench).0, VmRunState::Running);
}

#[test]
fn hosts_that_lack_what_a_definition_needs_are_not_tried() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    let definition = format!("{FILE}accel = 'kvm'\n[[nic]]\nbridge = 'br7'\n");
    let would = bench.shown(create(CreateVmRequest { definition: definition.clone(), dry_run: true, ..request() }));
    assert_eq!(would.moves[0].to, None);
    assert!(would.moves[0].reason.contains("alpha: it has no bridge br7"), "{would:?}");
    let on = CreateVmRequest { definition, on: Some("beta".into()), ..request() };
    assert!(bench.refused(create(on)).message.contains("it has no bridge br7"));
}

#[test]
fn a_vm_with_a_tpm_starts_where_that_is_kept() {
    let mut bench = off();
    stay(&mut bench);
    bench.drain("alpha");
    let definition = format!("{FILE}[firmware]\ntype = 'uefi'\n");
    let begun = bench.begin(create(CreateVmRequest { definition: definition.clone(), ..request() }));
    let over = bench.now(&begun);
    assert_eq!((over.state, bench.sent.len()), (OperationState::Failed, 0), "alpha takes no guests");
    assert!(over.message.contains("beta: its UEFI variables or its TPM are on alpha"), "{over:?}");
    let on = CreateVmRequest { definition, on: Some("beta".into()), ..request() };
    assert!(bench.refused(create(on)).message.contains("are on alpha"));
}

#[test]
fn a_vm_that_its_own_host_could_not_start_stays_there_until_it_starts_elsewhere() {
    let mut bench = off();
    bench.begin(start(None));
    assert_eq!(bench.sent[0].host, "alpha");
    bench.set_vm("alpha", "web", VmState::Starting);
    bench.not_started("no room");
    assert_eq!(state(&bench), (VmRunState::Stopped, Some("alpha".into())), "it has what belongs to the VM");
    bench.wait_s(6);
    assert!(bench.sent.is_empty(), "alpha has not said yet that its start is over: {:?}", bench.sent);
    bench.set_vm("alpha", "web", VmState::Stopped);
    bench.wait_s(1);
    assert!(matches!(&bench.sent[0], Sent { host, request: Request::VmForget { .. }, .. } if host == "alpha"));
}

/// Agents report a VM while they start it, and have it no more when that fails.
#[test]
fn a_vm_whose_start_failed_everywhere_stays_with_the_cluster() {
    for late in [false, true] {
        let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
        let begun = bench.begin(create(CreateVmRequest { start: true, ..request() }));
        let mut asked = Vec::new();
        while let Some(sent) = bench.sent.first() {
            let host = sent.host.clone();
            asked.push(host.clone());
            bench.set_vm(&host, "web", VmState::Starting);
            bench.not_started("/srv/web.qcow2 is not there");
            if late {
                // This report was made before the answer.
                bench.set_vm(&host, "web", VmState::Starting);
            }
            bench.end_vm(&host, "web");
            bench.wait_s(6);
        }
        assert_eq!(asked.len(), 3, "each host was asked once: {asked:?}");
        assert_eq!(bench.now(&begun).state, OperationState::Failed);
        bench.wait_s(200);
        let vm = bench.controller.vm("web").expect("the cluster knows it, whoever could not start it");
        assert_eq!((vm.host, vm.state), (None, VmRunState::Stopped));
        let again = bench.begin(start(None));
        bench.obey_all();
        bench.wait_s(1);
        assert_eq!(bench.now(&again).state, OperationState::Done, "{:?}", bench.now(&again));
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    let odd = CreateVmRequest { definition: "name = 'web'\nmemory = 7\n".into(), ..request() };
    assert!(bench.refused(create(odd)).message.contains("memory"));
    let nowhere = CreateVmRequest { on: Some("omega".into()), ..request() };
    assert!(bench.refused(create(nowhere)).message.contains("no host 'omega'"));
    for ask in [start(None), stop(), delete()] {
        assert!(bench.refused(ask).message.contains("no VM 'web'"));
    }
    bench.ask(Ask::Drain { host: "beta".into(), request: DrainRequest::default() });
    let drained = CreateVmRequest { on: Some("beta".into()), ..request() };
    assert!(bench.refused(create(drained)).message.contains("takes no guests"));
    bench.run_vm("alpha", "web");
    for ask in [start(None), delete()] {
        assert!(bench.refused(ask).message.contains("is not off"));
    }
}

#[test]
fn a_vm_may_be_known_to_the_cluster_alone() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    assert_eq!(bench.ask(create(CreateVmRequest { start: false, ..request() })), Answer::Done);
    assert_eq!((state(&bench), bench.sent.len()), ((VmRunState::Stopped, None), 0));
    bench.wait_s(120);
    assert_eq!(state(&bench).0, VmRunState::Stopped, "it is not forgotten");
    let begun = bench.begin(start(Some("beta")));
    assert_eq!(bench.sent[0].host, "beta");
    bench.obey_all();
    bench.wait_s(1);
    assert_eq!(bench.now(&begun).state, OperationState::Done);
    assert_eq!(state(&bench), (VmRunState::Running, Some("beta".into())));
}

#[test]
fn a_vm_that_is_off_starts_on_its_host_and_elsewhere_if_that_takes_none() {
    let mut bench = off();
    let would = Ask::StartVm { vm: "web".into(), request: StartVmRequest { on: None, dry_run: true } };
    let would = bench.shown(would);
    assert_eq!((would.moves[0].from.as_str(), would.moves[0].to.as_deref()), ("alpha", Some("alpha")));
    bench.begin(start(None));
    let by_name = VmOrigin::Name("web".into());
    let is_name = |sent: &Sent| matches!(&sent.request, Request::VmStart { from, .. } if *from == by_name);
    assert!(bench.sent[0].host == "alpha" && is_name(&bench.sent[0]), "{:?}", bench.sent);
    bench.obey_all();
    bench.set_vm("alpha", "web", VmState::Stopped);
    stay(&mut bench);
    bench.drain("alpha");
    let begun = bench.begin(start(None));
    for _ in 0..3 {
        bench.wait_s(1);
        bench.obey_all();
    }
    assert_eq!(bench.now(&begun).state, OperationState::Done);
    assert_eq!((bench.has("alpha"), bench.has("beta")), (vec![], vec!["web"]));
}

#[test]
fn a_vm_of_a_host_that_is_lost_is_not_started_and_of_one_that_is_off_it_is() {
    let mut bench = off();
    bench.disconnect("alpha");
    bench.wait_s(12);
    let refused = bench.refused(start(None));
    assert!(refused.message.contains("may have been started there"), "{refused:?}");
    bench.ask(is_off("alpha"));
    bench.begin(start(None));
    bench.obey_all();
    assert_eq!(state(&bench), (VmRunState::Running, Some("beta".into())));
    bench.boot("alpha");
    bench.wait_s(1);
    bench.obey_all();
    assert_eq!(bench.has("alpha"), Vec::<&str>::new(), "it forgets what runs elsewhere");
}

#[test]
fn a_vm_is_started_from_another_definition_than_its_host_has() {
    let mut bench = off();
    let known = bench.refused(create(CreateVmRequest { start: false, ..request() }));
    assert!(known.message.contains("off on 'alpha'"), "{known:?}");
    bench.begin(create(request()));
    let Request::VmStart { from: VmOrigin::Definition { text, .. }, .. } = &bench.sent[0].request else { panic!() };
    assert!(text.contains("cpus = 2"), "{text}");
}

#[test]
fn a_vm_is_stopped_once_and_a_lost_answer_is_asked_for_again() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let begun = bench.begin(stop());
    let request = Request::VmStop { name: "web".into(), timeout_s: 30, force: true };
    assert_eq!(bench.sent[0].request, request);
    assert!(bench.refused(stop()).message.contains("is in an operation already"));
    bench.sent.clear();
    bench.disconnect("alpha");
    bench.connect("alpha");
    assert_eq!(bench.sent[0].request, request);
    bench.obey_all();
    assert_eq!(bench.now(&begun).state, OperationState::Done);
    assert_eq!(state(&bench), (VmRunState::Stopped, Some("alpha".into())));
    let refused = bench.refused(stop());
    assert!(refused.message.contains("is off already") && refused.cure.contains("skein vm delete"), "{refused:?}");
    bench.begin(start(None));
    bench.obey_all();
    let begun = bench.begin(stop());
    bench.reply(Reply::Error(Refusal { message: "it did not shut down".into(), cure: "--force".into() }));
    let over = bench.now(&begun);
    assert_eq!((over.state, over.message.as_str()), (OperationState::Failed, "it did not shut down: --force"));
}

#[test]
fn a_guest_that_was_to_be_stopped_is_not_started_elsewhere() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let begun = bench.begin(stop());
    bench.sent.clear();
    bench.disconnect("alpha");
    bench.wait_s(12);
    bench.ask(is_off("alpha"));
    bench.wait_s(5);
    assert_eq!((bench.now(&begun).state, bench.sent.len()), (OperationState::Done, 0));
    assert_eq!(state(&bench).0, VmRunState::Stopped);
}

#[test]
fn a_vm_is_forgotten_by_its_host_and_the_cluster() {
    let mut bench = off();
    let settings = VmSettings { priority: Some(7), ..VmSettings::default() };
    bench.ask(Ask::SetVm { vm: "web".into(), settings, version: None });
    let begun = bench.begin(delete());
    assert_eq!(bench.sent[0].request, Request::VmForget { name: "web".into() });
    assert!(bench.controller.vm("web").is_some(), "its host may still have it");
    // The answer is lost, and another leader goes on.
    bench.sent.clear();
    bench.change_leader();
    ["alpha", "beta"].iter().for_each(|host| bench.connect(host));
    bench.obey_all();
    assert_eq!((bench.now(&begun).state, bench.controller.vm("web")), (OperationState::Done, None));
    bench.ask(create(CreateVmRequest { start: false, ..request() }));
    assert_eq!(bench.controller.vm("web").unwrap().settings, VmSettings::default(), "it is another VM");
    let begun = bench.begin(delete());
    assert_eq!((bench.now(&begun).state, bench.controller.vm("web")), (OperationState::Done, None));
}

#[test]
fn a_vm_whose_host_is_off_is_not_deleted_behind_its_back() {
    let mut bench = off();
    bench.disconnect("alpha");
    bench.wait_s(12);
    bench.ask(is_off("alpha"));
    assert!(bench.refused(delete()).message.contains("would still know 'web'"));
}

#[test]
fn a_vm_of_a_lost_host_is_not_stopped_and_blocks_nothing() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let begun = bench.begin(stop());
    bench.disconnect("alpha");
    bench.wait_s(12);
    let waits = bench.now(&begun);
    assert!(!waits.state.is_over() && waits.message.contains("waits for alpha"), "{waits:?}");
    assert!(waits.message.contains("skein host fence alpha --is-off"), "{waits:?}");
    bench.wait_s(100);
    let over = bench.now(&begun);
    assert_eq!(over.state, OperationState::Failed, "{over:?}");
    assert!(over.message.contains("alpha does not report any more"), "{over:?}");
    let refused = bench.refused(stop());
    assert!(refused.message.contains("'web' cannot be stopped: its host 'alpha' does not report"), "{refused:?}");
    assert!(refused.cure.contains("skein host fence alpha --is-off"), "{refused:?}");
    assert_eq!(bench.controller.vm("web").unwrap().operation, None);
}

#[test]
fn a_guest_that_finds_no_place_is_told_with_the_reason() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm_of("alpha", "web", 1000);
    bench.disconnect("alpha");
    bench.wait_s(12);
    let begun = bench.begin(is_off("alpha"));
    bench.wait_s(1);
    let over = bench.now(&begun);
    assert_eq!(over.state, OperationState::Failed, "{over:?}");
    let attention = bench.controller.attention().join("\n");
    for says in ["1 VM ended with it and runs nowhere: web", "beta: ", "skein host fence alpha --is-off"] {
        assert!(attention.contains(says), "{says}: {attention}");
    }
    assert!(!attention.contains("make room"), "{attention}");
}

#[test]
fn a_vm_that_was_not_started_says_why() {
    let mut bench = Bench::new(&["alpha"]);
    bench.begin(create(request()));
    bench.not_started("no such file: /srv/web.qcow2");
    bench.wait_s(1);
    let vm = bench.controller.vm("web").unwrap();
    assert_eq!(vm.host, None);
    assert!(vm.note.contains("it was not started") && vm.note.contains("/srv/web.qcow2"), "{vm:?}");
}

#[test]
fn a_guest_that_was_not_stopped_after_all_is_started_elsewhere_when_its_host_dies() {
    for is_restored in [false, true] {
        let mut bench = Bench::new(&["alpha", "beta"]);
        bench.run_vm("alpha", "web");
        let stopping = bench.begin(stop());
        if is_restored {
            let backup = bench.backup();
            bench.restore(backup);
            ["alpha", "beta"].iter().for_each(|host| bench.connect(host));
        } else {
            bench.begin(Ask::Cancel { operation: stopping.id.clone() });
        }
        bench.wait_s(2);
        assert!(bench.now(&stopping).state.is_over());
        bench.sent.clear();
        bench.disconnect("alpha");
        bench.wait_s(30);
        bench.begin(is_off("alpha"));
        bench.wait_s(2);
        bench.obey_all();
        assert_eq!(bench.has("beta"), ["web"], "{is_restored}");
    }
}

#[test]
fn a_stop_follows_the_guest_to_the_host_that_has_it_by_now() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let stopping = bench.begin(stop());
    bench.sent.clear();
    bench.disconnect("alpha");
    bench.lose_vm("alpha", "web");
    bench.connect("alpha");
    let now = bench.now(&stopping);
    assert!(!now.state.is_over() && now.message.contains("waits for the host that has it"), "{now:?}");
    bench.run_vm("beta", "web");
    bench.wait_s(1);
    bench.obey_all();
    assert_eq!(bench.now(&stopping).state, OperationState::Done);
    assert_eq!(bench.vm_view("beta", "web").state, VmState::Stopped);
}

#[test]
fn a_stop_gives_up_on_a_guest_that_no_host_has_whatever_becomes_of_the_clock() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let stopping = bench.begin(stop());
    bench.sent.clear();
    bench.disconnect("alpha");
    bench.wait_s(12);
    bench.now.wall.0 -= 5 * 3_600_000;
    bench.wait_s(1);
    assert_eq!(bench.now(&stopping).state, OperationState::Failed, "{:?}", bench.now(&stopping));
}

#[test]
fn a_guest_of_a_lost_host_is_not_to_be_stopped_first() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.disconnect("alpha");
    bench.wait_s(12);
    for ask in [start(None), delete()] {
        let refused = bench.refused(ask);
        assert!(refused.message.contains("'web' is on 'alpha', which does not report"), "{refused:?}");
        assert!(refused.cure.contains("skein host fence alpha --is-off"), "{refused:?}");
    }
}

#[test]
fn a_vm_that_somebody_has_started_again_since_it_was_stopped_starts_elsewhere_when_its_host_dies() {
    for is_seen_starting in [false, true] {
        let mut bench = Bench::new(&["alpha", "beta"]);
        bench.run_vm("alpha", "web");
        bench.begin(stop());
        bench.obey_all();
        if is_seen_starting {
            bench.set_vm("alpha", "web", VmState::Starting);
        }
        bench.set_vm("alpha", "web", VmState::Running);
        bench.disconnect("alpha");
        bench.wait_s(12);
        bench.begin(is_off("alpha"));
        bench.wait_s(2);
        bench.obey_all();
        assert_eq!(bench.has("beta"), ["web"], "{is_seen_starting}");
    }
}

/// The guest may have gone to another host, whose word is waited for.
#[test]
fn a_guest_whose_stop_is_called_off_after_its_host_died_starts_elsewhere() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    let migration = Some(MigrationId(7));
    bench.ask(Ask::MoveByHand { host: "alpha".into(), vm: "web".into(), to: "gamma".into(), migration });
    let stopping = bench.begin(stop());
    ["alpha", "gamma"].iter().for_each(|host| bench.disconnect(host));
    bench.wait_s(12);
    bench.ask(is_off("alpha"));
    bench.wait_s(2);
    bench.begin(Ask::Cancel { operation: stopping.id.clone() });
    bench.wait_s(1);
    bench.sent.clear();
    bench.ask(is_off("gamma"));
    bench.wait_s(2);
    bench.obey_all();
    assert_eq!(bench.has("beta"), ["web"]);
}
