//! Moves, stops and starts whose hosts do not come back as they were.

use skein_api::cluster::{
    ClusterSettings, FailoverSettings, MigrateRequest, MoveState, OperationState, PowerState, ResumeRequest,
    StopVmRequest, UpdateRequest, VmRunState, VmSettings,
};
use skein_api::{
    HostReport, HostUpdateView, Migration, MigrationId, Outcome, Refusal, Reply, Request, Role, UpdateRunState,
    VmState, VmView,
};
use skein_cluster::{Answer, Ask, Input, PowerAction, PowerResult};

use crate::bench::{Bench, Hand, drain, is_off};

const BY_HAND: Hand = Hand { vm: "web", from: "beta", to: "delta", id: 7, is_held: false };

fn place(bench: &Bench) -> (Option<String>, VmRunState) {
    let vm = bench.controller.vm("web").expect("it is known");
    (vm.host, vm.state)
}

fn at(host: &str) -> (Option<String>, VmRunState) {
    (Some(host.to_owned()), VmRunState::Running)
}

/// Lets time go on. Agents refuse to call anything off. Returns how often they were asked.
fn wait_refusing(bench: &mut Bench, seconds: u64) -> usize {
    let mut asked = 0;
    for _ in 0..seconds {
        bench.wait_s(1);
        for _ in 0..20 {
            match bench.sent.first().map(|sent| &sent.request) {
                Some(Request::MigrationCancel { .. }) => {
                    asked += 1;
                    let refusal = Refusal { message: "there is no such migration".into(), cure: String::new() };
                    bench.reply(Reply::Error(refusal));
                }
                Some(_) => drop(bench.obey()),
                None => break,
            }
        }
    }
    asked
}

#[test]
fn a_stop_follows_a_guest_that_left_before_it_ended() {
    let hand = Hand { from: "alpha", to: "beta", ..BY_HAND };
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    bench.begin_by_hand(&hand);
    let request = StopVmRequest { timeout_s: 30, force: false };
    let stop = bench.begin(Ask::StopVm { vm: "web".into(), request });
    let view = VmView { state: VmState::Moved, migration: Some(MigrationId(7)), ..bench.vm_view("alpha", "web") };
    bench.end_by_hand(&hand, Outcome::Moved);
    bench.reply(Reply::Vm(Box::new(view)));
    bench.wait_s(1);
    assert_eq!(place(&bench), at("beta"));
    assert!(!bench.now(&stop).state.is_over());
    assert!(bench.sent.iter().any(|sent| sent.host == "beta" && matches!(sent.request, Request::VmStop { .. })));
}

#[test]
fn a_host_that_is_silent_in_its_update_may_be_said_to_be_off() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    let request = UpdateRequest { hosts: vec!["alpha".into()], ..UpdateRequest::default() };
    let update = bench.begin(Ask::Update { request });
    for _ in 0..5 {
        bench.wait_s(1);
        while bench.sent.first().is_some_and(|sent| !matches!(sent.request, Request::HostUpdate { .. })) {
            bench.obey();
        }
    }
    bench.reply(Reply::HostUpdate(HostUpdateView { state: UpdateRunState::Running, message: String::new() }));
    bench.disconnect("alpha");
    bench.wait_s(300);
    assert!(!bench.now(&update).state.is_over());
    assert_eq!(bench.ask(is_off("alpha")), Answer::Done);
    bench.wait_s(1);
    assert_eq!(bench.now(&update).state, OperationState::Failed);
}

#[test]
fn the_guest_of_a_dead_host_that_woke_late_is_started_there() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    ["alpha", "beta"].iter().for_each(|host| bench.set_device(host));
    let failover = FailoverSettings { power_off: false, ..FailoverSettings::default() };
    let settings = Box::new(ClusterSettings { failover, ..ClusterSettings::default() });
    assert_eq!(bench.ask(Ask::SetSettings { settings, version: None }), Answer::Done);
    bench.run_vm_of("alpha", "web", 60);
    bench.run_vm_of("beta", "big", 60);
    bench.disconnect("alpha");
    bench.wait_s(15);
    bench.begin(is_off("alpha"));
    bench.wait_s(15);
    let wake = bench.begin(Ask::Wake { host: "alpha".into() });
    for _ in 0..1000 {
        bench.wait_s(1);
        while !bench.powers.is_empty() {
            let (job, _, action) = bench.powers.remove(0);
            let result = match action {
                PowerAction::Read => PowerResult::State(PowerState::On, String::new()),
                _ => PowerResult::Accepted,
            };
            bench.input(Input::Power { job, result });
        }
        if bench.now(&wake).state.is_over() {
            break;
        }
    }
    assert_eq!(bench.now(&wake).state, OperationState::Failed);
    bench.wait_s(60);
    bench.boot("alpha");
    bench.wait_s(60);
    let is_start = |host: &str, request: &Request| host == "alpha" && matches!(request, Request::VmStart { .. });
    assert!(bench.sent.iter().any(|sent| is_start(&sent.host, &sent.request)), "{:?}", bench.sent);
}

#[test]
fn an_old_copy_that_is_off_hides_no_guest_that_went_to_a_silent_host() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma", "delta"]);
    bench.run_vm("beta", "web");
    bench.set_vm("gamma", "web", VmState::Stopped);
    bench.begin_by_hand(&BY_HAND);
    bench.disconnect("delta");
    bench.wait_s(12);
    let migration = Migration { outcome: Some(Outcome::Moved), ..BY_HAND.migration() };
    bench.lose_vm("beta", "web");
    let (vms_gone, migrations) = (vec!["web".into()], vec![migration]);
    bench.tell("beta", HostReport { sequence: 3, vms_gone, migrations, ..HostReport::default() });
    bench.wait_s(5);
    assert_eq!(place(&bench), (Some("delta".into()), VmRunState::Lost));
}

/// A rack fails while a guest moves. Its target is off, and its source does not remember the migration.
#[test]
fn a_move_that_its_source_does_not_remember_ends_with_its_target() {
    for (is_drain, is_cancelled) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut bench = Bench::new(&["alpha", "gamma"]);
        bench.run_vm("alpha", "web");
        let request = MigrateRequest { to: Some("gamma".into()), ..MigrateRequest::default() };
        let begun = match is_drain {
            true => bench.begin(drain("alpha")),
            false => bench.begin(Ask::Migrate { vm: "web".into(), request, breaks: Vec::new() }),
        };
        bench.wait_s(1);
        bench.begin_commanded(7);
        bench.connect("beta");
        ["alpha", "gamma"].iter().for_each(|host| bench.disconnect(host));
        bench.wait_s(700);
        bench.ask(is_off("gamma"));
        bench.run_vm("alpha", "web");
        bench.connect("alpha");
        bench.wait_s(10);
        if is_cancelled {
            bench.ask(Ask::Cancel { operation: begun.id.clone() });
        }
        wait_refusing(&mut bench, 60);
        let over = bench.now(&begun);
        assert!(over.state.is_over(), "{over:?}");
        assert_eq!((over.moves[0].state, &*over.moves[0].detail), (MoveState::Failed, "gamma is off"));
        assert_eq!(place(&bench), at(if is_drain { "beta" } else { "alpha" }));
    }
}

#[test]
fn a_guest_that_its_source_has_no_more_starts_elsewhere_once_its_target_is_off() {
    for is_booted in [false, true] {
        let mut bench = Bench::new(&["alpha", "gamma"]);
        bench.run_vm("alpha", "web");
        let settings = VmSettings { autostart: true, ..VmSettings::default() };
        bench.ask(Ask::SetVm { vm: "web".into(), settings, version: None });
        let begun = bench.begin(drain("alpha"));
        bench.wait_s(1);
        bench.begin_commanded(7);
        bench.connect("beta");
        ["alpha", "gamma"].iter().for_each(|host| bench.disconnect(host));
        bench.wait_s(700);
        bench.lose_vm("alpha", "web");
        if is_booted {
            bench.boot("alpha")
        } else {
            bench.connect("alpha")
        };
        bench.ask(is_off("gamma"));
        wait_refusing(&mut bench, 60);
        assert_eq!(bench.now(&begun).state, OperationState::Done);
        assert_eq!(place(&bench), at("beta"));
    }
}

#[test]
fn an_agent_that_refuses_to_call_off_is_not_asked_at_once_again() {
    let mut bench = Bench::new(&["alpha", "gamma"]);
    bench.run_vm("alpha", "web");
    let begun = bench.begin(drain("alpha"));
    bench.wait_s(1);
    bench.begin_commanded(7);
    let doubt = Migration::new(MigrationId(7), "web", Role::Source, "alpha", "gamma");
    let migrations = vec![Migration { in_doubt: true, ..doubt }];
    bench.tell("alpha", HostReport { sequence: 3, migrations, ..HostReport::default() });
    bench.ask(Ask::Cancel { operation: begun.id });
    let asked = wait_refusing(&mut bench, 10);
    assert!((1..=11).contains(&asked), "{asked} times in 10 s");
}

/// Guests that one drain moved away and that are home again are not another host's to bring home.
#[test]
fn a_homecoming_leaves_guests_that_came_home_from_there() {
    let mut bench = Bench::new(&["beta", "gamma"]);
    bench.run_vm("beta", "web");
    let resume = |host: &str| Ask::Resume { host: host.into(), request: ResumeRequest { bring_home: true } };
    let settle = |bench: &mut Bench| {
        for _ in 0..3 {
            bench.wait_s(1);
            bench.obey_all();
        }
    };
    bench.drain("beta");
    settle(&mut bench);
    assert_eq!(place(&bench), at("gamma"));
    bench.connect("delta");
    bench.drain("gamma");
    settle(&mut bench);
    assert_eq!(place(&bench), at("delta"));
    bench.ask(resume("beta"));
    settle(&mut bench);
    assert_eq!(place(&bench), at("beta"));
    bench.ask(resume("gamma"));
    settle(&mut bench);
    assert_eq!(place(&bench), at("beta"));
}

#[test]
fn a_guest_that_runs_twice_is_shown_so() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.run_vm("beta", "web");
    let shown = bench.controller.vm("web").expect("it is known");
    assert!(shown.note.starts_with("'web' RUNS TWICE, on alpha and beta: stop one"), "{shown:?}");
    bench.end_vm("beta", "web");
    bench.wait_s(1);
    assert_eq!(bench.controller.vm("web").expect("it is known").note, "");
}
