//! Hosts that are not needed sleep, and wake.

use std::collections::BTreeSet;

use skein_api::cluster::{
    ClusterSettings, Contact, HostMode, HostSettings, Operation, OperationKind, OperationState, PowerSettings,
    PowerState, SleepBy, StartVmRequest, VmSettings,
};
use skein_api::{Refusal, Reply, Request, VmState};
use skein_cluster::{Answer, Ask, Input, PowerAction, PowerResult};

use crate::bench::{Bench, GIB, drain};

const CHECK: PowerAction = PowerAction::Check { shutdown: true };

fn on() -> PowerResult {
    PowerResult::State(PowerState::On, String::new())
}

fn off() -> PowerResult {
    PowerResult::State(PowerState::Off, String::new())
}

fn sleep(host: &str) -> Ask {
    Ask::Sleep { host: host.into() }
}

fn wake(host: &str) -> Ask {
    Ask::Wake { host: host.into() }
}

/// Returns these hosts with devices.
fn hosts(names: &[&str]) -> Bench {
    let mut bench = Bench::new(names);
    names.iter().for_each(|host| bench.set_device(host));
    bench
}

fn set_power(bench: &mut Bench, power: PowerSettings) {
    let settings = Box::new(ClusterSettings { power, ..ClusterSettings::default() });
    assert_eq!(bench.ask(Ask::SetSettings { settings, version: None }), Answer::Done);
}

/// Switches power saving on: as soon as a host can sleep, it does.
fn save(bench: &mut Bench) {
    let eager = PowerSettings { saving: true, settle_s: 0, awake_min_s: 0, ..PowerSettings::default() };
    set_power(bench, eager);
}

/// Brings a host that is to sleep from the beginning of its shutdown to its sleep.
fn falls_asleep(bench: &mut Bench, host: &str) {
    bench.power(host, PowerAction::Shutdown, PowerResult::Accepted);
    bench.power(host, PowerAction::Read, on());
    bench.disconnect(host);
    bench.wait_s(4);
    bench.power(host, PowerAction::Read, off());
    assert_eq!(bench.host(host).contact, Contact::Asleep);
}

/// Puts a host to sleep.
fn put_to_sleep(bench: &mut Bench, host: &str) -> Operation {
    let operation = bench.begin(sleep(host));
    bench.power(host, CHECK, on());
    bench.obey_all();
    bench.wait_s(1);
    bench.obey_all();
    falls_asleep(bench, host);
    bench.now(&operation)
}

fn last(bench: &Bench, is: impl Fn(&OperationKind) -> bool) -> Option<Operation> {
    bench.controller.operations("", 50).into_iter().find(|of| is(&of.kind))
}

fn is_wake(kind: &OperationKind) -> bool {
    matches!(kind, OperationKind::Wake { .. })
}

fn is_sleep(kind: &OperationKind) -> bool {
    matches!(kind, OperationKind::Sleep { .. })
}

#[test]
fn a_host_is_emptied_closed_and_shut_down_in_order_and_is_then_asleep_and_not_lost() {
    let mut bench = hosts(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    let operation = bench.begin(sleep("alpha"));
    assert!(bench.sent.is_empty(), "first the device is tried: {:?}", bench.sent);
    bench.power("alpha", CHECK, on());
    assert!(bench.obey(), "the guest leaves");
    bench.wait_s(1);
    assert!(bench.powers.is_empty(), "the agent has not said yet that it takes no guest: {:?}", bench.powers);
    assert!(matches!(bench.sent[0].request, Request::HostClose { power_off: false, .. }), "{:?}", bench.sent);
    assert_eq!(bench.host("alpha").mode, HostMode::Maintenance);
    bench.obey_all();
    // It is silent for as long as it takes, and is neither lost nor fenced.
    bench.power("alpha", PowerAction::Shutdown, PowerResult::Accepted);
    bench.disconnect("alpha");
    for _ in 0..60 {
        bench.power("alpha", PowerAction::Read, on());
        bench.wait_s(2);
    }
    assert_eq!((bench.host("alpha").contact, bench.host("beta").contact), (Contact::Online, Contact::Online));
    bench.power("alpha", PowerAction::Read, off());
    let (host, ended) = (bench.host("alpha"), bench.now(&operation));
    assert_eq!((host.contact, host.mode, ended.state), (Contact::Asleep, HostMode::Active, OperationState::Done));
    bench.wait_s(120);
    assert!(bench.powers.is_empty(), "{:?}", bench.powers);
    assert_eq!(bench.host("alpha").power.unwrap().slept_ms, 120_000);
    assert_eq!(bench.controller.host_counts().asleep, 1);
    let told = bench.refused(drain("alpha"));
    assert!(told.message.contains("sleeps") && told.cure.contains("skein host wake alpha"), "{told:?}");
}

#[test]
fn whoever_asks_a_host_stays_awake_that_is_needed() {
    let mut bench = hosts(&["alpha", "beta", "gamma"]);
    let why = |bench: &mut Bench| bench.refused(sleep("alpha")).message;
    let set = |bench: &mut Bench, settings: HostSettings| {
        bench.ask(Ask::SetHost { host: "alpha".into(), settings, version: None });
    };
    let plain = bench.host("alpha").settings;
    set(&mut bench, HostSettings { storage: true, ..plain.clone() });
    assert!(why(&mut bench).contains("others need its disks"));
    set(&mut bench, HostSettings { sleep: SleepBy::Never, ..plain.clone() });
    assert!(why(&mut bench).contains("sleep=never"));
    set(&mut bench, HostSettings { fencing: None, ..plain.clone() });
    assert!(why(&mut bench).contains("no device to wake it"));
    set(&mut bench, plain);
    bench.input(Input::NeededAt { addresses: None });
    assert!(why(&mut bench).contains("not known where controllers"));
    let own = format!("192.0.2.{}", b'a').parse().unwrap();
    bench.input(Input::NeededAt { addresses: Some(BTreeSet::from([own])) });
    assert!(why(&mut bench).contains("a controller or a member of etcd runs on it"));
    bench.input(Input::NeededAt { addresses: Some(BTreeSet::new()) });
    bench.run_vm("alpha", "web");
    let pinned = VmSettings { pinned: true, ..VmSettings::default() };
    bench.ask(Ask::SetVm { vm: "web".into(), settings: pinned, version: None });
    assert!(why(&mut bench).contains("web is pinned to it"));
    bench.end_vm("alpha", "web");
    // Until it is sure that no host has it, it may be there.
    bench.wait_s(61);
    let own_state = "name = 'win'\nmemory = '1 GiB'\nmachine = 'q35'\n[firmware]\ntype = 'uefi'\n";
    bench.set_vm_file("alpha", "win", VmState::Stopped, own_state);
    let told = why(&mut bench);
    assert!(told.contains("win is off, and its UEFI variables or its TPM are on it"), "{told}");
    bench.end_vm("alpha", "win");
    bench.migrates("beta", "alpha", 7);
    assert!(why(&mut bench).contains("is in a migration"));
    let few = PowerSettings { hosts_min: 3, ..PowerSettings::default() };
    set_power(&mut bench, few);
    assert!(bench.refused(sleep("gamma")).message.contains("2 others are awake, and 3 have to be"));
    assert!(last(&bench, is_sleep).is_none() && bench.powers.is_empty());
}

#[test]
fn a_host_that_has_a_guest_again_is_not_shut_down_and_takes_guests_again() {
    let mut bench = hosts(&["alpha", "beta", "gamma"]);
    let operation = bench.begin(sleep("alpha"));
    bench.power("alpha", CHECK, on());
    // Somebody starts a guest there by hand before the agent is closed: the agent says so.
    let refusal = Refusal { message: "web runs here".into(), cure: String::new() };
    bench.reply(Reply::Error(refusal));
    let ended = bench.now(&operation);
    assert_eq!((ended.state, ended.message.as_str()), (OperationState::Failed, "its agent says: web runs here"));
    assert!(bench.powers.is_empty() && bench.host("alpha").mode == HostMode::Active);
    let reopened = &bench.sent.last().unwrap().request;
    assert!(matches!(reopened, Request::HostClose { for_s: 0, power_off: false, stays_on: false }), "{reopened:?}");
}

#[test]
fn a_device_that_is_another_hosts_puts_nobody_to_sleep() {
    let mut bench = hosts(&["alpha", "beta", "gamma"]);
    let operation = bench.begin(sleep("alpha"));
    bench.power("alpha", CHECK, off());
    let ended = bench.now(&operation);
    assert!(ended.message.contains("another host's"), "{}", ended.message);
    // Nobody tries it again before somebody has looked.
    assert!(bench.refused(sleep("alpha")).message.contains("skein host wake alpha"));
    assert!(bench.controller.attention()[0].contains("cannot do what is needed"));
    assert_eq!(bench.ask(wake("alpha")), Answer::Done);
    let operation = bench.begin(sleep("alpha"));
    bench.power("alpha", CHECK, on());
    bench.obey_all();
    bench.power("alpha", PowerAction::Shutdown, PowerResult::Accepted);
    // It reports on, and its device says that it is off.
    for _ in 0..20 {
        bench.power("alpha", PowerAction::Read, off());
        bench.wait_s(2);
    }
    assert_eq!(bench.host("alpha").contact, Contact::Online);
    while bench.now(&operation).state == OperationState::Running {
        bench.wait_s(2);
        bench.obey_all();
        if let Some((_, _, action)) = bench.powers.first() {
            let (action, said) = (*action, if *action == PowerAction::Read { off() } else { PowerResult::Accepted });
            bench.power("alpha", action, said);
        }
    }
    let ended = bench.now(&operation);
    assert_eq!(ended.state, OperationState::Failed);
    assert!(ended.message.contains("says that it is off, and its agent reports"), "{}", ended.message);
    // It was told to shut down, and may do so yet.
    assert!(ended.message.contains("skein host resume alpha"), "{}", ended.message);
    assert_eq!((bench.host("alpha").contact, bench.host("alpha").mode), (Contact::Online, HostMode::Maintenance));
}

#[test]
fn a_leader_that_takes_over_asks_the_agent_itself_before_it_shuts_its_host_down() {
    let mut bench = hosts(&["alpha", "beta", "gamma"]);
    let operation = bench.begin(sleep("alpha"));
    bench.power("alpha", CHECK, on());
    assert!(matches!(bench.sent[0].request, Request::HostClose { .. }));
    bench.sent.clear();
    bench.change_leader();
    ["alpha", "beta", "gamma"].iter().for_each(|host| bench.connect(host));
    bench.wait_s(1);
    assert!(bench.powers.is_empty());
    bench.obey_all();
    bench.power("alpha", PowerAction::Shutdown, PowerResult::Accepted);
    // The next leader finds it silent, and only reads.
    bench.disconnect("alpha");
    bench.change_leader();
    ["beta", "gamma"].iter().for_each(|host| bench.connect(host));
    bench.wait_s(2);
    assert!(bench.powers.is_empty());
    bench.wait_s(2);
    bench.power("alpha", PowerAction::Read, off());
    assert_eq!((bench.host("alpha").contact, bench.now(&operation).state), (Contact::Asleep, OperationState::Done));
    // And another knows how much room would be there.
    bench.change_leader();
    ["beta", "gamma"].iter().for_each(|host| bench.connect(host));
    assert_eq!(bench.host("alpha").contact, Contact::Asleep);
    let model = bench.controller.placement();
    assert!(model.hosts.iter().any(|host| host.name == "alpha"));
}

#[test]
fn a_host_wakes_when_it_reports_and_one_that_does_not_is_lost_and_sleeps_no_more() {
    let mut bench = hosts(&["alpha", "beta", "gamma"]);
    put_to_sleep(&mut bench, "alpha");
    bench.wait_s(60);
    let operation = bench.begin(wake("alpha"));
    assert!(bench.refused(wake("alpha")).message.contains("is being woken already"));
    bench.power("alpha", PowerAction::On, PowerResult::Refused("busy".into()));
    bench.wait_s(5);
    bench.power("alpha", PowerAction::On, PowerResult::Accepted);
    bench.boot("alpha");
    let host = bench.host("alpha");
    assert_eq!((host.contact, host.mode), (Contact::Online, HostMode::Active));
    assert_eq!(bench.now(&operation).state, OperationState::Done);
    assert!(host.power.unwrap().slept_ms >= 60_000);
    put_to_sleep(&mut bench, "alpha");
    let operation = bench.begin(wake("alpha"));
    bench.power("alpha", PowerAction::On, PowerResult::Accepted);
    while bench.now(&operation).state == OperationState::Running {
        bench.wait_s(5);
        if !bench.powers.is_empty() {
            bench.power("alpha", PowerAction::Read, on());
        }
    }
    assert_eq!(bench.now(&operation).state, OperationState::Failed);
    assert_eq!(bench.host("alpha").contact, Contact::Lost, "nobody knows whether it is off");
    let told = bench.controller.attention().join(" ");
    assert!(told.contains("it did not wake when it was to: its device says that it is on"), "{told}");
    // It comes late: it takes guests, and is not put to sleep again before somebody says so.
    bench.boot("alpha");
    assert_eq!(bench.host("alpha").contact, Contact::Online);
    assert!(bench.refused(sleep("alpha")).message.contains("did not wake"));
    assert_eq!(bench.ask(wake("alpha")), Answer::Done);
    bench.begin(sleep("alpha"));
}

#[test]
fn a_host_that_was_still_being_switched_off_is_switched_on_again() {
    let mut bench = hosts(&["alpha", "beta", "gamma"]);
    put_to_sleep(&mut bench, "alpha");
    let operation = bench.begin(wake("alpha"));
    bench.power("alpha", PowerAction::On, PowerResult::Accepted);
    for _ in 0..4 {
        bench.wait_s(5);
        bench.power("alpha", PowerAction::Read, off());
    }
    bench.power("alpha", PowerAction::On, PowerResult::Accepted);
    assert_eq!(bench.now(&operation).power.unwrap().attempts, 2);
    // The next leader does not forget it.
    bench.change_leader();
    ["beta", "gamma"].iter().for_each(|host| bench.connect(host));
    bench.power("alpha", PowerAction::On, PowerResult::Accepted);
    bench.boot("alpha");
    assert_eq!(bench.now(&operation).state, OperationState::Done);
}

#[test]
fn by_itself_a_host_sleeps_that_is_not_needed_and_wakes_when_load_comes() {
    let mut bench = hosts(&["alpha", "beta", "gamma"]);
    for (host, vm) in [("alpha", "a"), ("alpha", "b"), ("beta", "c"), ("gamma", "d")] {
        bench.run_vm(host, vm);
    }
    bench.wait_s(300);
    assert!(bench.powers.is_empty(), "it is off until it is switched on");
    save(&mut bench);
    bench.wait_s(62);
    let operation = last(&bench, is_sleep).expect("a host goes to sleep");
    let OperationKind::Sleep { host, automatic: true } = operation.kind.clone() else { panic!("{operation:?}") };
    assert_eq!((host.as_str(), operation.by.as_str()), ("beta", "the controller"), "it has the least to move");
    let reasons = operation.power.as_ref().unwrap().reasons.join("; ");
    assert!(reasons.contains("c has a place on alpha") && reasons.contains("gamma stays awake"), "{reasons}");
    bench.power("beta", CHECK, on());
    bench.obey_all();
    bench.wait_s(1);
    bench.obey_all();
    falls_asleep(&mut bench, "beta");
    bench.wait_s(120);
    let alpha = bench.host("alpha").power.and_then(|power| power.awake_because).unwrap_or_default();
    assert!(alpha.contains("power.hosts_min"), "{alpha}");
    assert!(bench.controller.power_status(bench.now.wall).saving);
    // Guests come that leave less than a tenth free of what is awake.
    for (host, vm) in [("alpha", "big"), ("gamma", "large")] {
        bench.set_sized(host, vm, VmState::Running, 57 * GIB);
    }
    bench.wait_s(120);
    let operation = last(&bench, is_wake).expect("a host wakes");
    let why = operation.power.unwrap().reasons.join("; ");
    assert!(why.contains("of memory free together, and should have"), "{why}");
    bench.power("beta", PowerAction::On, PowerResult::Accepted);
    bench.boot("beta");
    assert_eq!(bench.host("beta").contact, Contact::Online);
}

#[test]
fn a_start_and_a_drain_that_find_no_room_wait_until_a_host_is_awake() {
    let mut bench = hosts(&["alpha", "beta", "gamma"]);
    put_to_sleep(&mut bench, "gamma");
    bench.set_sized("alpha", "big", VmState::Running, 50 * GIB);
    bench.set_sized("beta", "large", VmState::Running, 50 * GIB);
    bench.set_sized("alpha", "new", VmState::Stopped, 20 * GIB);
    let start = bench.begin(Ask::StartVm { vm: "new".into(), request: StartVmRequest::default() });
    assert_eq!(bench.now(&start).state, OperationState::Planning);
    assert!(bench.now(&start).message.contains("gamma is awake"), "{}", bench.now(&start).message);
    bench.power("gamma", PowerAction::On, PowerResult::Accepted);
    bench.boot("gamma");
    bench.wait_s(1);
    bench.obey_all();
    assert_eq!(bench.now(&start).state, OperationState::Done);
    bench.set_sized("gamma", "new", VmState::Running, 20 * GIB);
    // What nobody has room for wakes nobody.
    put_to_sleep_again(&mut bench);
    let drained = bench.drain("alpha");
    assert!(bench.now(&drained).message.contains("delta is awake"), "{:?}", bench.now(&drained));
    bench.power("delta", PowerAction::On, PowerResult::Accepted);
    // It does not wake: the drain says what stays.
    while bench.now(&drained).state == OperationState::Planning {
        bench.wait_s(5);
        if !bench.powers.is_empty() {
            bench.power("delta", PowerAction::Read, on());
        }
    }
    bench.obey_all();
    bench.wait_s(1);
    assert_eq!(bench.now(&drained).state, OperationState::Failed);
    assert!(bench.now(&drained).message.contains("cannot be moved"), "{}", bench.now(&drained).message);
}

fn put_to_sleep_again(bench: &mut Bench) {
    bench.connect("delta");
    bench.set_device("delta");
    put_to_sleep(bench, "delta");
}

#[test]
fn what_the_controller_put_to_sleep_wakes_when_saving_ends_and_what_a_person_did_stays() {
    let mut bench = hosts(&["alpha", "beta", "gamma", "delta"]);
    put_to_sleep(&mut bench, "delta");
    save(&mut bench);
    bench.wait_s(62);
    let operation = last(&bench, is_sleep).unwrap();
    let OperationKind::Sleep { host, automatic: true } = operation.kind else { panic!("{operation:?}") };
    bench.power(&host, CHECK, on());
    bench.obey_all();
    falls_asleep(&mut bench, &host);
    set_power(
        &mut bench,
        PowerSettings { saving: true, hours: Some("mon-sun 00:00-00:01".into()), ..Default::default() },
    );
    bench.wait_s(61);
    bench.power(&host, PowerAction::On, PowerResult::Accepted);
    let woken = last(&bench, is_wake).unwrap();
    assert_eq!(woken.power.unwrap().reasons, ["by power.hours no host sleeps now"]);
    bench.boot(&host);
    bench.wait_s(200);
    assert!(bench.powers.is_empty());
    assert_eq!((bench.host(&host).contact, bench.host("delta").contact), (Contact::Online, Contact::Asleep));
    let bad = PowerSettings { hours: Some("sometimes".into()), ..PowerSettings::default() };
    let settings = Box::new(ClusterSettings { power: bad, ..ClusterSettings::default() });
    assert!(bench.refused(Ask::SetSettings { settings, version: None }).message.starts_with("power.hours: "));
}

#[test]
fn a_sleep_that_is_called_off_leaves_its_host_awake() {
    let mut bench = hosts(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    let operation = bench.begin(sleep("alpha"));
    bench.power("alpha", CHECK, on());
    bench.ask(Ask::Cancel { operation: operation.id.clone() });
    bench.obey_all();
    bench.wait_s(2);
    assert_eq!(bench.now(&operation).state, OperationState::Cancelled);
    assert_eq!(bench.host("alpha").mode, HostMode::Active);
    assert!(bench.powers.is_empty());
}

/// Somebody else has had it woken, or an earlier leader.
#[test]
fn a_start_waits_for_a_host_that_is_being_woken_already() {
    for changes_leader in [false, true] {
        let mut bench = hosts(&["alpha", "beta", "gamma"]);
        put_to_sleep(&mut bench, "gamma");
        bench.set_sized("alpha", "big", VmState::Running, 50 * GIB);
        bench.set_sized("beta", "large", VmState::Running, 50 * GIB);
        bench.set_sized("alpha", "new", VmState::Stopped, 20 * GIB);
        if !changes_leader {
            bench.begin(Ask::Wake { host: "gamma".into() });
        }
        let start = bench.begin(Ask::StartVm { vm: "new".into(), request: StartVmRequest::default() });
        if changes_leader {
            bench.change_leader();
            ["alpha", "beta"].iter().for_each(|host| bench.connect(host));
            bench.wait_s(3);
        }
        let now = bench.now(&start);
        assert!(!now.state.is_over() && now.message.contains("gamma is awake"), "{changes_leader} {now:?}");
        bench.power("gamma", PowerAction::On, PowerResult::Accepted);
        bench.boot("gamma");
        bench.wait_s(2);
        bench.obey_all();
        assert_eq!(bench.now(&start).state, OperationState::Done, "{changes_leader}");
    }
}
