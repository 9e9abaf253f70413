//! Starts: each is done once or never, and guests are started again after their host's boot.

use skein_api::cluster::{
    Contact, CreateVmRequest, MoveState, Operation, OperationKind, OperationState, ResumeRequest, StopVmRequest,
    VmRunState, VmSettings,
};
use skein_api::{Refusal, Reply, Request, VmOrigin, VmState, VmView};
use skein_cluster::{Answer, Ask};

use crate::bench::{Bench, is_off};

/// Returns three hosts, of which alpha has died with a guest, and the failover.
fn dead() -> (Bench, Operation) {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    bench.disconnect("alpha");
    bench.wait_s(12);
    let failover = bench.begin(is_off("alpha"));
    (bench, failover)
}

fn newest(bench: &Bench, is: impl Fn(&OperationKind) -> bool) -> Option<Operation> {
    bench.controller.operations("", 20).into_iter().find(|found| is(&found.kind))
}

fn autostart(bench: &Bench) -> Option<Operation> {
    newest(bench, |kind| matches!(kind, OperationKind::Autostart { .. }))
}

/// Has a VM started again after its host's boot.
fn set_autostart(bench: &mut Bench, vm: &str) {
    let settings = VmSettings { autostart: true, ..VmSettings::default() };
    assert_eq!(bench.ask(Ask::SetVm { vm: vm.into(), settings, version: None }), Answer::Done);
}

#[test]
fn a_start_without_an_answer_is_asked_for_under_the_same_name() {
    let (mut bench, failover) = dead();
    let (host, name) = (bench.sent[0].host.clone(), bench.sent[0].request_id.clone().unwrap());
    assert_eq!(name, format!("{}.0.1", failover.id));
    // The answer is lost with the connection.
    bench.sent.clear();
    bench.disconnect(&host);
    bench.connect(&host);
    bench.wait_s(6);
    assert_eq!(bench.sent.len(), 1);
    assert_eq!((bench.sent[0].host.as_str(), bench.sent[0].request_id.as_ref()), (host.as_str(), Some(&name)));
    // And another leader asks in the same way.
    bench.sent.clear();
    bench.change_leader();
    ["beta", "gamma"].iter().for_each(|host| bench.connect(host));
    bench.wait_s(6);
    assert_eq!((bench.sent.len(), bench.sent[0].request_id.as_ref()), (1, Some(&name)));
    // That it was not done and will not be sends it elsewhere, however often it was asked for.
    bench.not_started("no such disk");
    bench.wait_s(1);
    assert_ne!(bench.sent[0].host, host);
    assert_ne!(bench.sent[0].request_id, Some(name));
    bench.obey_all();
    bench.wait_s(1);
    let over = bench.now(&failover);
    assert_eq!(over.state, OperationState::Done, "{over:?}");
    assert_eq!(over.moves[0].detail, "no such disk");
}

#[test]
fn an_error_says_nothing_of_a_start() {
    let (mut bench, failover) = dead();
    let host = bench.sent[0].host.clone();
    let busy = Refusal { message: "too many commands are under way".into(), cure: String::new() };
    for _ in 0..3 {
        bench.reply(Reply::Error(busy.clone()));
        assert_eq!(bench.now(&failover).moves[0].state, MoveState::Begun);
        bench.wait_s(6);
        assert_eq!((bench.sent.len(), &bench.sent[0].host), (1, &host), "the same host is asked again");
    }
}

#[test]
fn a_guest_that_ended_with_its_hosts_boot_is_started_there_again_once() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    ["web", "db"].iter().for_each(|vm| bench.run_vm("alpha", vm));
    set_autostart(&mut bench, "web");
    bench.disconnect("alpha");
    bench.boot("alpha");
    assert_eq!(bench.sent.len(), 1, "db is not to be started again");
    let Request::VmStart { from: VmOrigin::Name(name), .. } = &bench.sent[0].request else {
        panic!("{:?}: its host knows what it last had open", bench.sent);
    };
    assert_eq!((bench.sent[0].host.as_str(), name.as_str()), ("alpha", "web"));
    bench.obey_all();
    bench.wait_s(1);
    let begun = autostart(&bench).unwrap();
    assert_eq!((begun.state, begun.by.as_str()), (OperationState::Done, "the controller"), "{begun:?}");
    // It ends by itself: that is no boot.
    bench.set_vm("alpha", "web", VmState::Stopped);
    bench.disconnect("alpha");
    bench.connect("alpha");
    bench.wait_s(20);
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    assert_eq!(autostart(&bench).unwrap().id, begun.id);
}

#[test]
fn what_was_shut_down_with_its_host_counts_and_what_was_stopped_before_does_not() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    for vm in ["early", "asked", "late"] {
        bench.run_vm("alpha", vm);
        set_autostart(&mut bench, vm);
    }
    bench.set_vm("alpha", "early", VmState::Stopped);
    bench.wait_s(70);
    bench.begin(Ask::StopVm { vm: "asked".into(), request: StopVmRequest::default() });
    bench.obey_all();
    bench.set_vm("alpha", "late", VmState::Stopped);
    bench.disconnect("alpha");
    // It takes a while to boot, and is lost meanwhile.
    bench.wait_s(40);
    assert_eq!(bench.host("alpha").contact, Contact::Lost);
    bench.boot("alpha");
    bench.obey_all();
    let begun = autostart(&bench).unwrap();
    let OperationKind::Autostart { vms, .. } = &begun.kind else { panic!() };
    assert_eq!(vms, &["late"]);
    assert_eq!(bench.controller.vm("late").unwrap().state, VmRunState::Running);
    assert_eq!(bench.controller.vm("asked").unwrap().state, VmRunState::Stopped);
}

#[test]
fn a_guest_that_does_not_fit_on_its_host_any_more_is_started_elsewhere_and_forgotten_there_first() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    set_autostart(&mut bench, "web");
    bench.disconnect("alpha");
    bench.boot("alpha");
    bench.not_started("no room");
    bench.wait_s(1);
    let forget = Request::VmForget { name: "web".into() };
    let asked: Vec<_> = bench.sent.iter().map(|sent| (sent.host.as_str(), &sent.request)).collect();
    assert_eq!(asked, [("alpha", &forget)], "it is started on beta once alpha cannot start it");
    bench.obey_all();
    bench.wait_s(1);
    bench.obey_all();
    assert_eq!((bench.has("alpha"), bench.has("beta")), (vec![], vec!["web"]));
    bench.wait_s(1);
    assert_eq!(autostart(&bench).unwrap().state, OperationState::Done);
}

#[test]
fn guests_that_a_failover_has_started_elsewhere_are_not_started_at_home() {
    let (mut bench, _) = dead();
    set_autostart(&mut bench, "web");
    let to = bench.sent[0].host.clone();
    // The start is under way when the host is back.
    bench.boot("alpha");
    bench.wait_s(1);
    assert!(bench.sent.iter().all(|sent| sent.host == to), "{:?}", bench.sent);
    bench.obey_all();
    bench.wait_s(1);
    assert_eq!((bench.has(&to), autostart(&bench)), (vec!["web"], None));
    bench.obey_all();
    assert_eq!(bench.has("alpha"), Vec::<&str>::new(), "it has forgotten it");
}

#[test]
fn guests_of_a_dead_host_that_found_no_place_are_started_when_it_is_back() {
    let mut bench = Bench::new(&["alpha"]);
    bench.run_vm("alpha", "web");
    bench.disconnect("alpha");
    bench.wait_s(12);
    let failover = bench.begin(is_off("alpha"));
    bench.wait_s(12);
    assert_eq!(bench.now(&failover).state, OperationState::Failed);
    bench.boot("alpha");
    bench.obey_all();
    bench.wait_s(1);
    assert_eq!(bench.controller.vm("web").unwrap().state, VmRunState::Running);
    assert_eq!(autostart(&bench).unwrap().state, OperationState::Done);
}

#[test]
fn a_boot_that_a_leader_did_not_see_is_seen_by_the_next() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    set_autostart(&mut bench, "web");
    bench.change_leader();
    bench.connect("beta");
    bench.boot("alpha");
    assert_eq!(bench.sent.len(), 1);
    // The leader dies before the answer, and the next goes on: once.
    let name = bench.sent[0].request_id.clone();
    bench.sent.clear();
    bench.change_leader();
    ["alpha", "beta"].iter().for_each(|host| bench.connect(host));
    bench.wait_s(6);
    assert_eq!((bench.sent.len(), &bench.sent[0].request_id), (1, &name));
}

#[test]
fn guests_that_did_not_come_home_may_be_asked_for_again() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.drain("alpha");
    bench.obey_all();
    let home = Ask::Resume { host: "alpha".into(), request: ResumeRequest { bring_home: true } };
    let begun = bench.begin(home.clone());
    for _ in 0..20 {
        if !bench.sent.is_empty() {
            bench.reply(Reply::Error(Refusal { message: "not now".into(), cure: String::new() }));
        }
        bench.wait_s(10);
    }
    assert_eq!(bench.now(&begun).state, OperationState::Failed);
    let again = bench.begin(home);
    bench.obey_all();
    assert_eq!((bench.now(&again).state, bench.has("alpha")), (OperationState::Done, vec!["web"]));
}

#[test]
fn a_guest_that_found_no_place_elsewhere_before_its_host_was_back_starts_there() {
    let (mut bench, failover) = dead();
    bench.boot("alpha");
    bench.not_started("no room");
    bench.wait_s(1);
    bench.obey_all();
    bench.wait_s(1);
    assert_eq!(bench.now(&failover).state, OperationState::Done);
    let vm = bench.controller.vm("web").unwrap();
    assert_eq!((vm.state, vm.host.as_deref()), (VmRunState::Running, Some("alpha")));
    assert_eq!(bench.has("alpha"), ["web"]);
}

#[test]
fn guests_that_are_started_go_where_fewest_are() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma", "delta"]);
    for vm in ["db1", "db2", "db3"] {
        bench.run_vm("gamma", vm);
    }
    bench.run_vm("alpha", "web1");
    bench.run_vm("alpha", "web2");
    bench.run_vm("beta", "web3");
    bench.disconnect("gamma");
    bench.wait_s(12);
    let begun = bench.begin(is_off("gamma"));
    let failover = bench.now(&begun);
    let mut to: Vec<&str> = failover.moves.iter().filter_map(|of| of.to.as_deref()).collect();
    to.sort_unstable();
    // Delta has none, beta one, alpha two.
    assert_eq!(to, ["beta", "delta", "delta"], "{failover:?}");
}

/// Returns three hosts of which a controller that has just begun has heard of gamma only, and the failover of alpha,
/// which had a guest.
fn unheard() -> (Bench, Operation) {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    ["alpha", "beta"].iter().for_each(|host| bench.disconnect(host));
    bench.change_leader();
    bench.connect("gamma");
    bench.wait_s(20);
    let failover = bench.begin(is_off("alpha"));
    (bench, failover)
}

#[test]
fn guests_wait_for_hosts_that_may_have_got_them_while_no_controller_looked() {
    // Somebody moves it to beta, and alpha dies: of that no controller hears.
    let (mut bench, failover) = unheard();
    bench.wait_s(60);
    let waits = bench.now(&failover);
    assert_eq!((waits.state, bench.sent.len()), (OperationState::Planning, 0), "{waits:?}");
    assert!(waits.message.contains("moved them to beta") && waits.message.contains("fence beta --is-off"), "{waits:?}");
    let start = Ask::StartVm { vm: "web".into(), request: Default::default() };
    bench.ask(start);
    bench.wait_s(10);
    assert!(bench.sent.is_empty(), "nobody else starts it either");
    // It is there.
    bench.set_vm("beta", "web", VmState::Running);
    bench.connect("beta");
    bench.wait_s(10);
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    assert!(bench.now(&failover).state.is_over());
}

#[test]
fn guests_start_once_hosts_have_said_that_they_have_not_got_them() {
    for says_off in [false, true] {
        let (mut bench, failover) = unheard();
        assert!(bench.sent.is_empty());
        match says_off {
            true => drop(bench.ask(is_off("beta"))),
            false => bench.connect("beta"),
        }
        bench.wait_s(12);
        bench.obey_all();
        bench.wait_s(2);
        let over = bench.now(&failover);
        assert_eq!((over.state, over.moves.len()), (OperationState::Done, 1), "{over:?}");
    }
}

#[test]
fn a_vm_that_is_off_is_not_forgotten_for_another_of_its_name() {
    let file = |disk: &str| format!("name = 'web'\nmemory = '1 GiB'\n[[disk]]\npath = '/{disk}'\nformat = 'raw'\n");
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.set_vm_file("alpha", "web", VmState::Stopped, &file("one"));
    bench.set_vm_file("beta", "web", VmState::Running, &file("other"));
    bench.wait_s(5);
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    let told = bench.controller.attention();
    assert!(told.iter().any(|words| words.contains("'web' is the name of two VMs")), "{told:?}");
    // The same VM is forgotten where it was.
    bench.set_vm_file("alpha", "web", VmState::Stopped, &file("other"));
    bench.wait_s(1);
    assert!(
        matches!(bench.sent[..], [ref sent] if matches!(sent.request, Request::VmForget { .. })),
        "{:?}",
        bench.sent
    );
}

/// Returns a host that was just asked to start a VM of the cluster, and what its agent would say once the guest runs.
fn starting() -> (Bench, Operation, Reply) {
    let mut bench = Bench::new(&["alpha"]);
    let definition = "name = \"web\"\nmemory = \"1 GiB\"\n".to_owned();
    let request = CreateVmRequest { definition, start: true, on: None, dry_run: false };
    let begun = bench.begin(Ask::CreateVm { request: Box::new(request) });
    (bench, begun, Reply::Vm(Box::new(VmView::new("web", VmState::Running))))
}

/// Returns where the VM is and how, and checks that this stays so, also once the host has died.
fn settled(bench: &mut Bench, begun: &Operation) -> (VmRunState, Option<String>) {
    assert_eq!(bench.now(begun).state, OperationState::Done);
    let vm = bench.controller.vm("web").unwrap();
    bench.disconnect("alpha");
    bench.wait_s(12);
    let lost = bench.controller.vm("web").unwrap();
    assert_eq!((lost.state, &lost.host), (vm.state, &vm.host), "the host's end is none of a guest that had ended");
    (vm.state, vm.host)
}

#[test]
fn a_guest_that_ended_at_once_is_off() {
    // Its host has reported that before the answer came, which is of the moment before.
    let (mut bench, begun, runs) = starting();
    bench.set_vm("alpha", "web", VmState::Stopped);
    bench.reply(runs.clone());
    assert_eq!(settled(&mut bench, &begun), (VmRunState::Stopped, Some("alpha".into())));
    // It reports that afterwards.
    let (mut bench, begun, runs) = starting();
    bench.reply(runs);
    bench.set_vm("alpha", "web", VmState::Stopped);
    assert_eq!(settled(&mut bench, &begun), (VmRunState::Stopped, Some("alpha".into())));
    // The VM was forgotten by then.
    let (mut bench, begun, _) = starting();
    bench.reply(Reply::Done);
    assert_eq!(settled(&mut bench, &begun), (VmRunState::Stopped, None));
}

#[test]
fn a_vm_that_its_dead_host_never_had_and_another_refused_stays_with_the_cluster() {
    let (mut bench, ..) = starting();
    bench.sent.clear();
    bench.disconnect("alpha");
    bench.wait_s(12);
    bench.connect("beta");
    bench.begin(is_off("alpha"));
    bench.not_started("no such disk");
    bench.connect("alpha");
    // Once its host is back the VM is started from what the cluster knows.
    bench.wait_s(120);
    bench.obey_all();
    assert_eq!(bench.controller.vm("web").expect("it is known").state, VmRunState::Running);
    assert_eq!(bench.has("alpha").len() + bench.has("beta").len(), 1);
}

/// One of them may be on a host that is silent.
#[test]
fn guests_start_after_a_boot_though_one_of_them_waits() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    for vm in ["web", "db", "mail"] {
        bench.run_vm("beta", vm);
        set_autostart(&mut bench, vm);
    }
    ["beta", "gamma"].iter().for_each(|host| bench.disconnect(host));
    bench.wait_s(30);
    bench.lose_vm("beta", "web");
    bench.boot("beta");
    for _ in 0..60 {
        bench.wait_s(1);
        bench.obey_all();
    }
    let running = |vm: &str| bench.vm_view("beta", vm).state == VmState::Running;
    assert!(running("db") && running("mail"));
    let waits = autostart(&bench).unwrap();
    assert!(!waits.state.is_over() && waits.message.contains("skein host fence gamma --is-off"), "{waits:?}");
}
