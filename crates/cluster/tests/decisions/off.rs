//! VMs that are off are moved.

use skein_api::cluster::{DrainRequest, MigrateRequest, MoveState, OffStage, Operation, OperationState, ResumeRequest};
use skein_api::{HostReport, Refusal, Reply, Request, VmState, VmView};
use skein_cluster::Ask;

use crate::bench::{Bench, preview};

fn migrate(to: Option<&str>) -> Ask {
    let request = MigrateRequest { to: to.map(str::to_owned), ..MigrateRequest::default() };
    Ask::Migrate { vm: "old".into(), request, breaks: Vec::new() }
}

/// Returns two hosts, and a VM that is off on the first.
fn off() -> Bench {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.set_vm("alpha", "old", VmState::Stopped);
    bench
}

fn host_of(bench: &Bench) -> String {
    bench.controller.vm("old").and_then(|vm| vm.host).unwrap_or_default()
}

fn stage(bench: &Bench, operation: &Operation) -> Option<OffStage> {
    // Moves that wait may be planned again before they begin.
    bench.now(operation).moves.last().and_then(|of| of.off)
}

fn error(words: &str) -> Reply {
    Reply::Error(Refusal { message: words.into(), cure: String::new() })
}

#[test]
fn the_target_keeps_it_before_the_source_forgets_it_and_has_it_after_that() {
    let mut bench = off();
    let begun = bench.begin(migrate(None));
    assert_eq!((begun.moves[0].from.as_str(), begun.moves[0].to.as_deref()), ("alpha", Some("beta")));
    let next = |bench: &Bench| {
        assert_eq!(bench.sent.len(), 1, "one step at a time: {:?}", bench.sent.len());
        (bench.sent[0].host.clone(), bench.sent[0].request.clone())
    };
    assert_eq!(next(&bench), ("alpha".into(), Request::VmOffer { name: "old".into() }));
    bench.obey();
    let (host, request) = next(&bench);
    assert!(host == "beta" && matches!(request, Request::VmReserve { .. }), "{request:?}");
    assert_eq!(stage(&bench, &begun), Some(OffStage::Reserve));
    bench.obey();
    assert_eq!(stage(&bench, &begun), Some(OffStage::Leave));
    assert_eq!((host_of(&bench), bench.has("alpha")), ("alpha".into(), vec!["old"]));
    assert_eq!(next(&bench), ("alpha".into(), Request::VmForget { name: "old".into() }));
    let refused = bench.refused(Ask::StartVm { vm: "old".into(), request: Default::default() });
    assert!(refused.message.contains("is in an operation already"), "{refused:?}");
    bench.obey();
    assert_eq!((stage(&bench, &begun), host_of(&bench)), (Some(OffStage::Keep), "beta".into()));
    let (host, request) = next(&bench);
    assert!(host == "beta" && matches!(request, Request::VmRelease { keep: true, .. }), "{request:?}");
    bench.obey_all();
    let over = bench.now(&begun);
    assert_eq!((over.state, over.moves.last().unwrap().state), (OperationState::Done, MoveState::Done), "{over:?}");
    assert_eq!((bench.has("alpha").len(), bench.has("beta")), (0, vec!["old"]));
}

#[test]
fn a_drain_takes_along_what_is_off_and_brings_it_home() {
    let mut bench = off();
    bench.run_vm("alpha", "web");
    let would = bench.shown(preview("alpha"));
    assert!(would.message.contains("1 VM that is off moves, too"), "{would:?}");
    assert_eq!(would.moves.iter().filter(|of| of.off.is_some()).count(), 1);
    let begun = bench.drain("alpha");
    bench.obey_all();
    let over = bench.now(&begun);
    assert_eq!((over.state, over.message.as_str()), (OperationState::Done, ""), "{over:?}");
    assert_eq!(bench.has("beta"), ["old", "web"]);
    let home = bench.begin(Ask::Resume { host: "alpha".into(), request: ResumeRequest { bring_home: true } });
    bench.obey_all();
    assert_eq!(bench.now(&home).state, OperationState::Done);
    assert_eq!((bench.has("alpha"), host_of(&bench)), (vec!["old", "web"], "alpha".into()));
}

#[test]
fn a_vm_that_no_host_can_keep_stays_and_does_not_hold_up_the_drain() {
    let mut bench = off();
    let begun = bench.drain("alpha");
    bench.obey();
    bench.reply(error("its disk is on a local file system"));
    bench.obey_all();
    let over = bench.now(&begun);
    assert_eq!(over.state, OperationState::Done, "{over:?}");
    assert!(over.message.contains("1 VM that is off stays defined on alpha: old"), "{over:?}");
    assert!(over.message.contains("its disk is on a local file system"), "{over:?}");
    assert_eq!((bench.has("alpha"), bench.has("beta").len()), (vec!["old"], 0));
    assert_eq!(format!("{:?}", bench.host("alpha").mode), "Maintenance");
}

/// Starts the VM by hand on its host, and returns what becomes of the operation.
fn started_meanwhile(bench: &mut Bench, begun: &Operation) -> Operation {
    bench.run_vm("alpha", "old");
    bench.obey_all();
    bench.wait_s(1);
    bench.obey_all();
    bench.now(begun)
}

#[test]
fn a_vm_that_is_started_meanwhile_stays_where_it_runs_and_a_drain_moves_it_as_a_guest() {
    let mut bench = off();
    let begun = bench.begin(migrate(Some("beta")));
    bench.obey();
    bench.obey();
    // The source is asked to forget it, and somebody was faster.
    let over = started_meanwhile(&mut bench, &begun);
    assert_eq!(over.state, OperationState::Failed, "{over:?}");
    assert!(over.message.contains("is not off"), "{over:?}");
    assert_eq!((bench.has("alpha"), bench.has("beta").len()), (vec!["old"], 0), "the reservation is released");

    bench.set_vm("alpha", "old", VmState::Stopped);
    let begun = bench.drain("alpha");
    bench.obey();
    let over = started_meanwhile(&mut bench, &begun);
    assert_eq!(over.state, OperationState::Done, "{over:?}");
    assert_eq!((bench.has("alpha").len(), bench.has("beta")), (0, vec!["old"]));
    assert!(over.moves.iter().any(|of| of.off.is_none() && of.state == MoveState::Done), "{over:?}");
}

#[test]
fn the_next_leader_goes_on_from_each_step() {
    for steps in 0..5 {
        for is_obeyed in [false, true] {
            let mut bench = off();
            let begun = bench.begin(migrate(Some("beta")));
            for _ in 0..steps {
                bench.obey();
            }
            bench.change_leader();
            if !is_obeyed {
                // What was commanded last never came.
                bench.sent.clear();
            }
            ["alpha", "beta"].iter().for_each(|host| bench.connect(host));
            for _ in 0..20 {
                bench.obey_all();
                bench.wait_s(1);
            }
            let over = bench.now(&begun);
            assert_eq!(over.state, OperationState::Done, "after {steps} steps: {over:?}");
            assert_eq!((bench.has("alpha").len(), bench.has("beta")), (0, vec!["old"]), "after {steps} steps");
            assert_eq!(host_of(&bench), "beta");
        }
    }
}

#[test]
fn a_move_is_called_off_until_the_source_is_asked_to_forget_the_vm() {
    for steps in 0..4 {
        let mut bench = off();
        let begun = bench.begin(migrate(Some("beta")));
        for _ in 0..steps {
            bench.obey();
        }
        bench.ask(Ask::Cancel { operation: begun.id.clone() });
        for _ in 0..3 {
            bench.obey_all();
            bench.wait_s(1);
        }
        let over = bench.now(&begun);
        assert!(over.state.is_over(), "{over:?}");
        let at = if steps < 2 { "alpha" } else { "beta" };
        let other = if steps < 2 { "beta" } else { "alpha" };
        assert_eq!((bench.has(at), bench.has(other).len()), (vec!["old"], 0), "after {steps} steps: {over:?}");
    }
}

#[test]
fn what_cannot_be_moved_while_it_is_off_is_told_before_anything_is_asked() {
    let mut bench = off();
    bench.older.insert("beta".into());
    bench.disconnect("beta");
    bench.connect("beta");
    let request = MigrateRequest { dry_run: true, ..MigrateRequest::default() };
    let would = bench.shown(Ask::Migrate { vm: "old".into(), request, breaks: Vec::new() });
    assert_eq!(would.moves[0].to, None);
    assert!(would.moves[0].reason.contains("beta: its agent is older"), "{would:?}");
    let begun = bench.begin(migrate(Some("beta")));
    bench.wait_s(1);
    assert!(bench.now(&begun).message.contains("its agent is older"), "{begun:?}");
    // Its own host keeps what a TPM has written.
    let file = "name = 'old'\nmemory = '64 MiB'\n[tpm]\n";
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.set_vm_file("alpha", "old", VmState::Stopped, file);
    let would = bench
        .shown(Ask::Drain { host: "alpha".into(), request: DrainRequest { dry_run: true, ..DrainRequest::default() } });
    assert!(would.message.contains("its UEFI variables or its TPM are on alpha"), "{would:?}");
    assert!(bench.sent.is_empty());
}

#[test]
fn a_vm_whose_move_only_waits_can_be_started_meanwhile() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    let vms = ["a", "b", "c", "d", "e"];
    vms.iter().for_each(|vm| bench.set_vm("alpha", vm, VmState::Stopped));
    let drain = bench.drain("alpha");
    let waits = bench.now(&drain).moves.iter().find(|of| of.state == MoveState::Waiting).unwrap().vm.clone();
    let begun = bench.now(&drain).moves.iter().find(|of| of.state == MoveState::Begun).unwrap().vm.clone();
    let start = |vm: &str| Ask::StartVm { vm: vm.into(), request: Default::default() };
    assert!(bench.refused(start(&begun)).message.contains("is in an operation already"));
    let start = bench.begin(start(&waits));
    for _ in 0..10 {
        bench.obey_all();
        bench.wait_s(1);
    }
    assert_eq!(bench.now(&start).state, OperationState::Done);
    assert_eq!(bench.now(&drain).state, OperationState::Done, "{:?}", bench.now(&drain));
    assert_eq!((bench.has("alpha").len(), bench.has("beta").len()), (0, vms.len()));
}

#[test]
fn a_reservation_that_is_all_that_is_left_of_a_vm_is_kept() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.set_vm("alpha", "old", VmState::Stopped);
    let reserved =
        VmView { reserved: Some("of a move that nobody knows".into()), ..VmView::new("old", VmState::Stopped) };
    let report = || HostReport { sequence: 2, vms: vec![reserved.clone()], ..HostReport::default() };
    bench.tell("beta", report());
    assert!(matches!(bench.sent[0].request, Request::VmRelease { keep: false, .. }), "{:?}", bench.sent);
    bench.reply(Reply::Error(Refusal { message: "too many commands".into(), cure: String::new() }));
    bench.sent.clear();
    // The source has left, which this controller's store does not know; gamma may have it.
    bench.disconnect("gamma");
    bench.end_vm("alpha", "old");
    bench.sent.clear();
    bench.wait_s(20);
    bench.tell("beta", report());
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    bench.connect("gamma");
    bench.tell("beta", report());
    assert!(matches!(bench.sent[0].request, Request::VmRelease { keep: true, .. }), "{:?}", bench.sent);
}
