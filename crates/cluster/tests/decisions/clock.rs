//! A leader whose clock on the wall is set forward or back by hours: nothing is decided by that.

use skein_api::cluster::{Contact, FenceRequest, Operation, OperationKind, OperationState, PowerState};
use skein_cluster::{Answer, Ask, PowerAction, PowerResult};

use crate::bench::Bench;

const HOURS_MS: u64 = 5 * 3_600_000;

/// Sets the clock on the wall, and only that.
fn set_clock(bench: &mut Bench, forward: bool) {
    let wall = &mut bench.now.wall.0;
    *wall = if forward { *wall + HOURS_MS } else { *wall - HOURS_MS };
}

fn fencings(bench: &Bench) -> Vec<Operation> {
    let all = bench.controller.operations("", 50).into_iter();
    all.filter(|of| matches!(of.kind, OperationKind::Fence { .. })).collect()
}

#[test]
fn no_host_is_lost_or_found_by_a_clock_that_is_set() {
    for forward in [true, false] {
        let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
        bench.run_vm("alpha", "web");
        bench.wait_s(2);
        set_clock(&mut bench, forward);
        bench.wait_s(20);
        for host in ["alpha", "beta", "gamma"] {
            assert_eq!(bench.host(host).contact, Contact::Online, "{host}");
        }
        assert!(bench.sent.is_empty() && bench.powers.is_empty() && bench.controller.attention().is_empty());
        // It leads as before, and a host that is silent is lost after its lease, and not sooner.
        assert_eq!(bench.controller.term(), Some(bench.term()));
        bench.disconnect("alpha");
        bench.wait_s(5);
        set_clock(&mut bench, !forward);
        bench.wait_s(4);
        assert_eq!(bench.host("alpha").contact, Contact::Online, "nothing was heard for 9 s");
        bench.wait_s(2);
        assert_eq!(bench.host("alpha").contact, Contact::Lost);
        // And it stays so: no time proves that it is off.
        set_clock(&mut bench, forward);
        bench.wait_s(60);
        assert_eq!(bench.host("alpha").contact, Contact::Lost);
        assert_eq!(bench.controller.vm("web").unwrap().host.as_deref(), Some("alpha"));
        assert!(bench.sent.is_empty());
    }
}

#[test]
fn a_host_is_not_switched_off_once_more_because_the_clock_was_set_back() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma", "delta"]);
    bench.set_device("alpha");
    bench.run_vm("alpha", "web");
    bench.disconnect("alpha");
    bench.wait_s(11);
    assert_eq!(bench.host("alpha").contact, Contact::Lost);
    set_clock(&mut bench, false);
    bench.wait_s(10);
    bench.power("alpha", PowerAction::Off, PowerResult::Refused("nobody answers".into()));
    let operation = fencings(&bench)[0].id.clone();
    bench.ask(Ask::Cancel { operation });
    bench.wait_s(60);
    assert_eq!(fencings(&bench)[0].state, OperationState::Cancelled);
    // A person has called it off.
    bench.wait_s(1200);
    assert_eq!((fencings(&bench).len(), bench.powers.len()), (1, 0));
    // What a person asks for is done.
    let asked = bench.ask(Ask::Fence { host: "alpha".into(), request: FenceRequest { is_off: false } });
    assert!(matches!(asked, Answer::Operation(_)), "{asked:?}");
    bench.wait_s(1);
    bench.power("alpha", PowerAction::Off, PowerResult::Accepted);
    bench.power("alpha", PowerAction::Read, PowerResult::State(PowerState::Off, String::new()));
    assert_eq!(bench.host("alpha").contact, Contact::Off);
}

#[test]
fn a_host_that_dies_while_it_is_shut_down_to_sleep_is_lost_though_the_clock_was_set_back() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    ["alpha", "beta", "gamma"].iter().for_each(|host| bench.set_device(host));
    let asleep = bench.begin(Ask::Sleep { host: "alpha".into() });
    let on = PowerResult::State(PowerState::On, String::new());
    bench.power("alpha", PowerAction::Check { shutdown: true }, on);
    bench.obey_all();
    bench.wait_s(1);
    bench.obey_all();
    bench.power("alpha", PowerAction::Shutdown, PowerResult::Accepted);
    bench.disconnect("alpha");
    set_clock(&mut bench, false);
    // By its deadline it is seen that it did not go to sleep.
    bench.wait_s(301 + 11);
    assert_eq!(bench.now(&asleep).state, OperationState::Failed);
    assert_eq!(bench.host("alpha").contact, Contact::Lost);
}
