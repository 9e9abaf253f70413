//! How many moves begin, and how long they are said to take.

use skein_api::cluster::{Operation, OperationState, ResumeRequest};
use skein_api::{
    Convergence, CopyProgress, HostFacts, HostLoad, HostReport, Migration, MigrationId, NicFacts, Outcome, Role,
};
use skein_cluster::{Answer, Ask};

use crate::bench::{Bench, facts, preview};

const HOSTS: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

fn report(host: &str, speed_bits_per_s: Option<u64>, cpu_millicores: u64, limit: u32) -> HostReport {
    let mut facts: HostFacts = facts(host);
    (facts.outgoing.limit, facts.incoming.limit) = (limit, limit);
    facts.nics = vec![NicFacts { name: "eth0".into(), speed_bits_per_s }];
    let load = HostLoad { cpu_millicores, ..HostLoad::default() };
    HostReport { sequence: 2, facts: Some(Box::new(facts)), load: Some(load), ..HostReport::default() }
}

fn with_guests(guests: usize) -> Bench {
    let mut bench = Bench::new(&HOSTS);
    (0..guests).for_each(|n| bench.run_vm("alpha", &format!("v{n:02}")));
    bench
}

/// Has all hosts report the speed of their NICs and how many migrations they allow; the first how busy it is.
fn tell(bench: &mut Bench, speed: Option<u64>, cpu_millicores: u64, limit: u32) {
    HOSTS[1..].iter().for_each(|host| bench.tell(host, report(host, speed, 0, limit)));
    bench.tell("alpha", report("alpha", speed, cpu_millicores, limit));
}

/// Returns how long the drain says that it takes.
fn left_ms(bench: &Bench, drain: &Operation) -> Option<u64> {
    bench.now(drain).progress.left_ms
}

#[test]
fn idle_cores_limit_moves_where_links_carry_more_than_they_move() {
    // 16 cores, one of which is idle.
    for (speed, at_once) in [(None, 4), (Some(1_000_000_000), 4), (Some(100_000_000_000), 1)] {
        let mut bench = with_guests(6);
        tell(&mut bench, speed, 15_000, 4);
        bench.drain("alpha");
        assert_eq!(bench.sent.len(), at_once, "{speed:?}");
    }
    let mut bench = with_guests(6);
    tell(&mut bench, Some(100_000_000_000), 13_000, 4);
    bench.drain("alpha");
    assert_eq!(bench.sent.len(), 3, "three cores are idle");
}

#[test]
fn nobody_is_told_a_time_that_nobody_knows() {
    let mut bench = with_guests(6);
    assert_eq!(bench.shown(preview("alpha")).progress.forecast_ms, None);
    let drain = bench.drain("alpha");
    assert_eq!((left_ms(&bench, &drain), bench.sent.len()), (None, 2));
    // Two guests of 1 GiB leave at a time, in 10 s, of which 1.5 s are no copy.
    bench.wait_s(10);
    bench.obey();
    assert_eq!(left_ms(&bench, &drain), None, "one move may say anything");
    bench.obey();
    // Four are left: two begin now, and two wait.
    let left = left_ms(&bench, &drain).unwrap();
    assert!((18_000..=20_500).contains(&left), "{left}");
    while !bench.sent.is_empty() {
        bench.wait_s(10);
        for _ in 0..bench.sent.len() {
            bench.obey();
        }
    }
    assert_eq!(bench.now(&drain).state, OperationState::Done);
}

/// Tests that the copy of a guest is told with the operation, and is not kept.
#[test]
fn a_copy_tells_how_far_it_is() {
    let mut bench = with_guests(1);
    let begun = bench.drain("alpha");
    let to = bench.now(&begun).moves[0].to.clone().unwrap();
    bench.begin_commanded(8);
    let mut copy: CopyProgress = serde_json::from_value(serde_json::json!({
        "total_bytes": 1 << 30, "remaining_bytes": 1_000_000_000, "transferred_bytes": 1 << 20, "round": 1,
        "dirty_bytes_per_s": 0, "bits_per_s": 800_000_000,
    }))
    .unwrap();
    let mut tell = |copy: &CopyProgress, outcome| {
        let migration = Migration::new(MigrationId(8), "v00", Role::Source, "alpha", &to);
        let migration = Migration { copy: Some(copy.clone()), outcome, ..migration };
        let report = HostReport { sequence: 2, migrations: vec![migration], ..HostReport::default() };
        bench.tell("alpha", report);
        assert_eq!(bench.now(&begun).moves[0].copy, None, "this is not written to the store");
        bench.controller.operation_view(&begun.id).unwrap()
    };
    let seen = tell(&copy, None);
    assert_eq!((seen.progress.left_ms, seen.moves[0].copy.as_ref()), (Some(10_000), Some(&copy)));
    copy.converges = Some(Convergence::In { seconds: 12.5 });
    assert_eq!(tell(&copy, None).progress.left_ms, Some(12_500), "its own forecast tells better");
    assert_eq!(tell(&copy, Some(Outcome::CalledOff)).moves[0].copy, None);
}

#[test]
fn the_next_plan_goes_by_what_was_seen() {
    let mut bench = with_guests(6);
    tell(&mut bench, Some(100_000_000_000), 1_000, 2);
    let first = bench.drain("alpha");
    // Its links would carry all in half a second.
    assert!(bench.now(&first).progress.forecast_ms.unwrap() < 6_000);
    while !bench.sent.is_empty() {
        bench.wait_s(10);
        for _ in 0..bench.sent.len() {
            bench.obey();
        }
    }
    let home = Ask::Resume { host: "alpha".into(), request: ResumeRequest { bring_home: true } };
    bench.begin(home);
    bench.obey_all();
    let again = bench.shown(preview("alpha"));
    let forecast = again.progress.forecast_ms.unwrap();
    assert!((27_000..=32_000).contains(&forecast), "{forecast}");
}

#[test]
fn guests_that_have_to_be_together_come_home_together() {
    let mut bench = with_guests(3);
    let rule = serde_json::json!({"together": {"of": {"guests": ["v00", "v01"]}, "force": "hard"}});
    assert_eq!(bench.ask(Ask::SetRule { name: "pair".into(), rule, version: None }), Answer::Done);
    bench.drain("alpha");
    bench.obey_all();
    assert!(bench.has("alpha").is_empty());
    // The third may not come home any more.
    let settings = bench.controller.vm("v02").unwrap().settings;
    let settings = skein_api::cluster::VmSettings { owners: Some(vec!["beta".into(), "gamma".into()]), ..settings };
    assert_eq!(bench.ask(Ask::SetVm { vm: "v02".into(), settings, version: None }), Answer::Done);
    let home = bench.begin(Ask::Resume { host: "alpha".into(), request: ResumeRequest { bring_home: true } });
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["v00", "v01"], "{:?}", bench.now(&home));
}

#[test]
fn loads_alone_advance_nothing_until_time_goes_on() {
    let mut bench = with_guests(4);
    tell(&mut bench, Some(100_000_000_000), 15_000, 4);
    bench.drain("alpha");
    assert_eq!(bench.sent.len(), 1, "one core is idle");
    let load = HostLoad { cpu_millicores: 1_000, ..HostLoad::default() };
    bench.tell("alpha", HostReport { sequence: 3, load: Some(load), ..HostReport::default() });
    assert_eq!(bench.sent.len(), 1);
    bench.wait_s(1);
    assert_eq!(bench.sent.len(), 4, "by then the others are begun");
}

#[test]
fn of_a_host_that_is_lost_its_last_load_is_shown() {
    let mut bench = with_guests(1);
    tell(&mut bench, Some(100_000_000_000), 15_000, 4);
    let loads = |bench: &Bench| {
        let host = bench.host("alpha");
        [host.load, host.last_load].map(|load| load.map(|load| load.cpu_millicores))
    };
    assert_eq!(loads(&bench), [Some(15_000), None]);
    bench.disconnect("alpha");
    bench.wait_s(11);
    assert_eq!(loads(&bench), [None, Some(15_000)]);
}
