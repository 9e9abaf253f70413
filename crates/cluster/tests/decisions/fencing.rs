//! Lost hosts are switched off by their fencing devices.

use skein_api::cluster::{
    ClusterSettings, Contact, FailoverSettings, FenceRequest, HostSettings, Operation, OperationKind, OperationState,
    PowerState,
};
use skein_cluster::{Answer, Ask, PowerAction, PowerResult};

use crate::bench::{Bench, is_off};

/// When a host is switched off that says nothing: its lease and the grace.
const LOST_S: u64 = 10 + 10;

/// Returns four hosts with devices; alpha has a guest.
fn four() -> Bench {
    let mut bench = Bench::new(&["alpha", "beta", "gamma", "delta"]);
    ["alpha", "beta", "gamma", "delta"].iter().for_each(|host| bench.set_device(host));
    bench.run_vm("alpha", "web");
    bench
}

fn fence(host: &str) -> Ask {
    Ask::Fence { host: host.into(), request: FenceRequest { is_off: false } }
}

fn fencing(bench: &Bench) -> Operation {
    let found = bench.controller.operations("", 10).into_iter();
    let mut found = found.filter(|of| matches!(of.kind, OperationKind::Fence { .. }));
    found.next().expect("there is a fencing")
}

fn state(power: PowerState) -> PowerResult {
    PowerResult::State(power, String::new())
}

fn started(bench: &Bench) -> usize {
    let starts = bench.sent.iter().filter(|sent| matches!(sent.request, skein_api::Request::VmStart { .. }));
    starts.count()
}

#[test]
fn only_a_power_state_that_is_read_as_off_is_a_proof() {
    let mut bench = four();
    bench.disconnect("alpha");
    bench.wait_s(LOST_S - 1);
    assert_eq!((bench.host("alpha").contact, bench.powers.len()), (Contact::Lost, 0), "within the grace");
    bench.wait_s(1);
    bench.power("alpha", PowerAction::Off, PowerResult::Accepted);
    bench.power("alpha", PowerAction::Read, state(PowerState::On));
    bench.wait_s(1);
    bench.power("alpha", PowerAction::Read, PowerResult::Unknown("it is busy".into()));
    bench.wait_s(1);
    assert_eq!((bench.host("alpha").contact, started(&bench)), (Contact::Lost, 0));
    bench.power("alpha", PowerAction::Read, state(PowerState::Off));
    assert_eq!((bench.host("alpha").contact, started(&bench)), (Contact::Off, 1));
    let fencing = fencing(&bench);
    assert_eq!((fencing.state, fencing.by.as_str()), (OperationState::Done, "the controller"));
    let failover = fencing.fencing.unwrap().failover.unwrap();
    bench.obey_all();
    bench.wait_s(1);
    assert_eq!(bench.controller.operation(&failover).unwrap().state, OperationState::Done);
}

#[test]
fn a_host_that_reports_again_is_not_switched_off_and_no_reading_counts_against_it() {
    let mut bench = four();
    bench.disconnect("alpha");
    bench.wait_s(LOST_S - 2);
    bench.connect("alpha");
    bench.wait_s(60);
    assert!(bench.powers.is_empty());
    // The order is out: what the device says is not believed while the agent speaks.
    bench.disconnect("alpha");
    bench.wait_s(LOST_S);
    bench.power("alpha", PowerAction::Off, PowerResult::Accepted);
    bench.connect("alpha");
    bench.power("alpha", PowerAction::Read, state(PowerState::Off));
    assert_eq!((bench.host("alpha").contact, started(&bench)), (Contact::Online, 0));
    let fencing = fencing(&bench);
    assert_eq!(fencing.state, OperationState::Cancelled);
    assert!(fencing.message.contains("reports again; a power-off was ordered before"), "{}", fencing.message);
}

#[test]
fn a_power_off_that_fails_is_tried_again_later_and_then_told() {
    let mut bench = four();
    bench.disconnect("alpha");
    bench.wait_s(LOST_S);
    let broken = PowerResult::Refused("nobody answers".into());
    for wait_s in [5, 10, 20, 40] {
        bench.power("alpha", PowerAction::Off, broken.clone());
        bench.wait_s(wait_s - 1);
        assert!(bench.powers.is_empty(), "it waits for {wait_s} s");
        bench.wait_s(1);
    }
    bench.power("alpha", PowerAction::Off, broken.clone());
    let failed = fencing(&bench);
    assert_eq!((failed.state, failed.message.as_str()), (OperationState::Failed, "nobody answers"));
    let told = bench.controller.attention();
    assert!(told[0].contains("it was not switched off: nobody answers"), "{told:?}");
    // Later it is tried anew: one whose host stays on is ordered again after half a minute.
    bench.wait_s(601);
    bench.power("alpha", PowerAction::Off, PowerResult::Unknown("no answer".into()));
    for _ in 0..30 {
        bench.power("alpha", PowerAction::Read, state(PowerState::On));
        bench.wait_s(1);
    }
    bench.power("alpha", PowerAction::Read, state(PowerState::On));
    bench.wait_s(10);
    bench.power("alpha", PowerAction::Off, PowerResult::Accepted);
    // A person's word ends it, whatever the device says.
    bench.ask(is_off("alpha"));
    assert_eq!(fencing(&bench).message, "it is proven to be off otherwise");
}

#[test]
fn a_leader_that_takes_over_orders_the_power_off_itself_and_believes_nothing_else() {
    let mut bench = four();
    bench.disconnect("alpha");
    bench.wait_s(LOST_S);
    bench.power("alpha", PowerAction::Off, PowerResult::Accepted);
    let late = bench.powers[0].0;
    bench.change_leader_after(0, |_| ());
    ["beta", "gamma", "delta"].iter().for_each(|host| bench.connect(host));
    bench.input(skein_cluster::Input::Power { job: late, result: state(PowerState::Off) });
    assert_eq!(bench.host("alpha").contact, Contact::Lost, "the answer was another leader's");
    bench.wait_s(9);
    assert!(bench.powers.is_empty(), "agents are waited for");
    bench.wait_s(1);
    bench.power("alpha", PowerAction::Off, PowerResult::Accepted);
    assert_eq!(fencing(&bench).fencing.unwrap().attempts, 2);
    bench.power("alpha", PowerAction::Read, state(PowerState::Off));
    assert_eq!((bench.host("alpha").contact, started(&bench)), (Contact::Off, 1));
}

#[test]
fn a_controller_that_is_cut_off_switches_nobody_off() {
    let mut bench = four();
    ["alpha", "beta", "gamma"].iter().for_each(|host| bench.disconnect(host));
    bench.wait_s(120);
    assert!(bench.powers.is_empty());
    let told = bench.controller.attention();
    assert!(told[0].contains("3 of 4 hosts do not report: perhaps the controller is cut off"), "{told:?}");
    // Whoever knows better says so.
    bench.begin(fence("alpha"));
    bench.power("alpha", PowerAction::Off, PowerResult::Accepted);
}

#[test]
fn only_so_many_hosts_are_switched_off_at_once() {
    let mut bench = Bench::new(&["a", "b", "c", "d", "e", "f", "g"]);
    for host in ["a", "b", "c"] {
        bench.set_device(host);
        bench.run_vm(host, &format!("vm-{host}"));
        bench.disconnect(host);
    }
    bench.wait_s(LOST_S);
    let orders: Vec<&str> = bench.powers.iter().map(|(_, host, _)| host.as_str()).collect();
    assert_eq!(orders, ["a", "b"]);
    bench.power("a", PowerAction::Off, PowerResult::Accepted);
    bench.power("b", PowerAction::Off, PowerResult::Accepted);
    bench.power("a", PowerAction::Read, state(PowerState::Off));
    bench.wait_s(1);
    assert!(
        bench.powers.contains(&(bench.powers.last().unwrap().0, "c".into(), PowerAction::Off)),
        "{:?}",
        bench.powers
    );
}

#[test]
fn who_is_not_to_be_switched_off_is_not() {
    // Without guests, with disks that others need, without a device, and if nobody wants it.
    let mut bench = Bench::new(&["empty", "disks", "bare", "d", "e", "f", "g"]);
    bench.set_device("empty");
    let device = bench.host("empty").settings.fencing;
    let settings = HostSettings { fencing: device, storage: true, ..HostSettings::default() };
    assert_eq!(bench.ask(Ask::SetHost { host: "disks".into(), settings, version: None }), Answer::Done);
    bench.run_vm("disks", "web");
    bench.run_vm("bare", "db");
    ["empty", "disks", "bare"].iter().for_each(|host| bench.disconnect(host));
    bench.wait_s(60);
    assert!(bench.powers.is_empty());
    let refused = bench.refused(fence("bare"));
    assert!(refused.message.contains("no fencing device") && refused.cure.contains("--is-off"), "{refused:?}");

    let mut bench = four();
    let failover = FailoverSettings { power_off: false, ..FailoverSettings::default() };
    let settings = Box::new(ClusterSettings { failover, ..ClusterSettings::default() });
    assert_eq!(bench.ask(Ask::SetSettings { settings, version: None }), Answer::Done);
    bench.disconnect("alpha");
    bench.wait_s(60);
    assert!(bench.powers.is_empty());
    // One that was called off does not begin by itself again.
    let mut bench = four();
    bench.disconnect("alpha");
    bench.wait_s(LOST_S);
    let cancel = Ask::Cancel { operation: fencing(&bench).id };
    bench.ask(cancel);
    bench.powers.clear();
    bench.wait_s(700);
    assert_eq!((fencing(&bench).state, bench.powers.len()), (OperationState::Cancelled, 0));
}
