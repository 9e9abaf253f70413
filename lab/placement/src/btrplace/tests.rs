//! Small instances. There are four nodes, of which 3 is off. VMs 0 to 3 run, two each on nodes 0 and 1; VM 4 is ready,
//! and VM 5 sleeps.

use proptest::prelude::*;

use super::*;
use skein_placement::bits::Bits;
use skein_placement::dice::Dice;
use skein_placement::problem::{GuestId, NOWHERE, Strength};

const MODEL: &str = r#"{
  "mapping": {
    "readyVMs": [4],
    "onlineNodes": {
      "0": {"runningVMs": [0, 1], "sleepingVMs": []},
      "1": {"runningVMs": [2, 3], "sleepingVMs": [5]},
      "2": {"runningVMs": [], "sleepingVMs": []}
    },
    "offlineNodes": [3]
  },
  "attributes": {"nodes": {"3": {"boot": 120}, "2": {"shutdown": 30, "name": "n2"}}, "vms": {"0": {"migrate": 7},
  "4": {"boot": 4}}},
  "views": [
    {"id": "shareableResource", "rcId": "memory", "nodes": {"0": 10},
     "vms": {"0": 3, "1": 2}, "defCapacity": 8, "defConsumption": 1},
    {"id": "ns", "type": "vm", "map": {"a": 0}}
  ]
}"#;

fn instance_of(constraints: &str) -> String {
    format!("{{\"constraints\": [{constraints}],\n\"model\": {MODEL}, \"objective\": {{\"id\": \"minimizeMTTR\"}}}}")
}

fn with(constraints: &str) -> Instance {
    read(&instance_of(constraints)).unwrap_or_else(|error| panic!("{constraints}: {error}"))
}

fn wrong(constraints: &str) -> String {
    read(&instance_of(constraints)).expect_err(constraints).to_string()
}

/// Returns where a guest may be.
fn owners(instance: &Instance, guest: usize) -> Option<Vec<HostId>> {
    let owners = instance.problem.guests[guest].owners;
    owners.map(|owners| instance.problem.owners[owners as usize].iter().collect())
}

fn members(instance: &Instance, group: u32) -> Vec<usize> {
    let guests = instance.problem.guests.iter().enumerate();
    guests.filter(|(_, guest)| guest.groups.contains(&group)).map(|(n, _)| n).collect()
}

fn set(hosts: &[HostId]) -> Bits {
    hosts.iter().copied().collect()
}

#[test]
fn what_there_is_is_read() {
    let instance = with("");
    assert_eq!((&*instance.nodes, &*instance.vms), (&[0, 1, 2][..], &[0, 1, 2, 3][..]));
    assert_eq!((&*instance.resources, &*instance.seconds), (&["memory".to_owned()][..], &[7, 1, 1, 1][..]));
    let problem = &instance.problem;
    assert_eq!(problem.initial, [0, 0, 1, 1]);
    assert_eq!(problem.hosts.iter().map(|host| host.capacity[0]).collect::<Vec<_>>(), [10, 8, 8]);
    assert_eq!(problem.guests.iter().map(|guest| guest.demand[0]).collect::<Vec<_>>(), [3, 2, 1, 1]);
    assert!(problem.groups.is_empty() && problem.guests.iter().all(|guest| guest.owners.is_none()));
}

#[test]
fn states_say_which_hosts_and_guests_there_are() {
    let instance = with(
        r#"{"id":"online","node":3},{"id":"online","node":3},{"id":"online","node":0},{"id":"offline","node":2},
        {"id":"running","vm":4},{"id":"running","vm":5},{"id":"killed","vm":1},{"id":"ready","vm":2},
        {"id":"sleeping","vm":3}"#,
    );
    assert_eq!((&*instance.nodes, &*instance.vms), (&[0, 1, 2, 3][..], &[0, 4, 5][..]));
    assert_eq!(instance.problem.initial, [0, NOWHERE, NOWHERE]);
    assert_eq!(instance.seconds, [7, 4, 1]);
    for guest in 0..3 {
        assert_eq!(owners(&instance, guest), Some(vec![0, 1, 3]), "nobody is left on a node that is shut down");
    }
    assert_eq!(instance.problem.owners.len(), 1, "they share the set");
    assert_eq!(
        wrong(r#"{"id":"online","node":1},{"id":"offline","node":1}"#),
        "constraints[1]: offline: another constraint wants node 1 the other way"
    );
    assert_eq!(
        wrong(r#"{"id":"killed","vm":1},{"id":"running","vm":1}"#),
        "constraints[1]: running: another constraint wants VM 1 to be otherwise"
    );
    assert_eq!(
        wrong(r#"{"id":"sleeping","vm":4}"#),
        "constraints: VM 4 cannot become what it has to without running first"
    );
    assert_eq!(wrong(r#"{"id":"offline","node":1}"#), "constraints: node 1 has to be offline, but VM 5 sleeps there");
}

#[test]
fn groups_are_read() {
    let instance = with(
        r#"{"id":"spread","vms":[2,0,4,0],"continuous":true},{"id":"split","parts":[[1],[3]],"continuous":false},
        {"id":"gather","vms":[0,2],"continuous":true},
        {"id":"among","vms":[0,2],"parts":[[0,3],[1,2]],"continuous":true},
        {"id":"spread","vms":[1],"continuous":true}"#,
    );
    let groups = &instance.problem.groups;
    assert_eq!(groups.len(), 4, "one VM is apart from nobody");
    assert_eq!((groups[0].apart, members(&instance, 0)), (Some(Strength::Hard), vec![0, 2]));
    assert_eq!((groups[1].apart, members(&instance, 1)), (Some(Strength::Hard), vec![1, 3]));
    assert_eq!((groups[2].together, members(&instance, 2)), (Some(Strength::Hard), vec![0, 2]));
    assert_eq!((&groups[3].among, members(&instance, 3)), (&vec![set(&[0]), set(&[1, 2])], vec![0, 2]));
    assert_eq!(instance.continuous, [true, false, true, true]);
    assert!(wrong(r#"{"id":"among","vms":[0],"parts":[]}"#).ends_with("there is no part where the VMs could be"));
    assert!(wrong(r#"{"id":"split","parts":[[0,1],[2]]}"#).starts_with("constraints[0]: split: that several VMs"));
}

#[test]
fn what_is_decided_says_where_guests_may_be() {
    // VM 4, which is to run, goes where the others are.
    let instance = with(
        r#"{"id":"running","vm":4},{"id":"among","vms":[0,1,4],"parts":[[0,2],[1]],"continuous":true},
        {"id":"gather","vms":[2,3],"continuous":true}"#,
    );
    assert!(instance.problem.groups.is_empty());
    assert_eq!([0, 1, 4].map(|guest: usize| owners(&instance, guest)), [0; 3].map(|_| Some(vec![0, 2])));
    assert_eq!([2, 3].map(|guest: usize| owners(&instance, guest)), [0; 2].map(|_| Some(vec![1])));
    // A discrete constraint is about the end only.
    let among = r#"{"id":"among","vms":[0,1],"parts":[[0,2],[1]],"continuous":false}"#;
    assert_eq!(with(among).problem.groups.len(), 1);
    let split = r#"{"id":"splitAmong","vParts":[[0],[2,3]],"pParts":[[0,2],[1,3]],"continuous":true}"#;
    let instance = with(split);
    assert_eq!((owners(&instance, 0), owners(&instance, 3)), (Some(vec![0, 2]), Some(vec![1])));
    assert!(wrong(&split.replace("true", "false")).contains("splitAmong: only one that is continuous"));
    assert!(wrong(&split.replace("[[0],[2,3]]", "[[0],[1]]")).contains("splitAmong: only one that is continuous"));
}

#[test]
fn each_vm_may_be_where_all_constraints_let_it() {
    let instance = with(
        r#"{"id":"fence","vm":0,"nodes":[0,1,3],"continuous":true},{"id":"ban","vm":0,"nodes":[0],"continuous":true},
        {"id":"fence","vm":2,"nodes":[0,1,3],"continuous":true},{"id":"root","vm":3},{"id":"root","vm":4}"#,
    );
    assert_eq!(
        [0, 1, 2, 3].map(|guest| owners(&instance, guest)),
        [Some(vec![1]), None, Some(vec![0, 1]), Some(vec![1])]
    );
    assert_eq!(instance.problem.guests[2].owners, Some(0), "a list that is written twice is kept once");
    let instance = with(r#"{"id":"quarantine","node":0}"#);
    assert_eq!([0, 2].map(|guest| owners(&instance, guest)), [Some(vec![0]), Some(vec![1, 2])]);
}

#[test]
fn amounts_are_read() {
    let instance = with(
        r#"{"id":"preserve","vm":0,"rc":"memory","amount":4},{"id":"preserve","vm":0,"rc":"memory","amount":5},
        {"id":"preserve","vm":4,"rc":"memory","amount":5},
        {"id":"overbook","node":1,"rc":"memory","ratio":1.3,"continuous":true},
        {"id":"resourceCapacity","nodes":[2],"rc":"memory","amount":6},{"id":"runningCapacity","nodes":[0],"amount":1},
        {"id":"resourceCapacity","nodes":[3],"rc":"memory","amount":1},{"id":"maxOnline","nodes":[0,3],"amount":1}"#,
    );
    let problem = &instance.problem;
    assert_eq!(problem.guests[0].demand, [5, 1]);
    assert_eq!(problem.hosts.iter().map(|host| host.capacity.clone()).collect::<Vec<_>>(), [[10, 1], [10, 4], [6, 4]]);
    assert!(problem.hosts.iter().all(|host| host.safe == host.capacity));
    for (constraint, what) in [
        (r#"{"id":"preserve","vm":0,"rc":"cpu","amount":4}"#, "preserve: there is no resource 'cpu'"),
        (r#"{"id":"overbook","node":1,"rc":"memory","ratio":0.5}"#, "overbook: a ratio of 0.5 is below 1"),
        (r#"{"id":"overbook","node":1,"rc":"memory"}"#, "overbook: `ratio` is missing"),
        (
            r#"{"id":"runningCapacity","nodes":[0,1],"amount":1}"#,
            "runningCapacity: a capacity that several nodes share",
        ),
        (r#"{"id":"maxOnline","nodes":[0,1],"amount":1}"#, "maxOnline: 2 of its nodes are online in the end"),
    ] {
        assert!(wrong(constraint).starts_with(&format!("constraints[0]: {what}")), "{}", wrong(constraint));
    }
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (constraint, what) in [
        (r#"{"id":"lonely","vms":[0]}"#, "constraints[0]: lonely: that VMs share hosts with no others"),
        (r#"{"id":"seq","vms":[0]}"#, "constraints[0]: seq: when VMs move cannot be said here"),
        (r#"{"id":"wish","vms":[0]}"#, "constraints[0]: wish: such constraints are not known"),
        (r#"{"id":"spread"}"#, "constraints[0]: spread: `vms` is missing"),
        (r#"{"id":"spread","vms":[0,99]}"#, "constraints[0]: spread: there is no VM 99"),
        (r#"{"id":"fence","vm":0,"nodes":[0,9]}"#, "constraints[0].nodes: there is no node 9"),
        (r#"{"id":"fence","vm":0,"nodes":[0,-1]}"#, "constraints[0].nodes: invalid value: integer `-1`, expected u32"),
        (r#"{"id":"among","vms":[0],"parts":[[1],2]}"#, "constraints[0].parts[1]: invalid type: integer `2`"),
        (r#"{"id":"spread","vms":[0,"x"]}"#, "line 1: constraints[0].vms[1]: invalid type: string \"x\", expected u32"),
    ] {
        assert!(wrong(constraint).starts_with(what), "{}", wrong(constraint));
    }
    let broken = |from: &str, to: &str| read(&instance_of("").replace(from, to)).expect_err(to).to_string();
    assert!(broken("\"offlineNodes\"", "\"off\"").starts_with("line 11: model.mapping: missing field `offlineNodes`"));
    assert_eq!(broken("[3]", "[3, 2]"), "model.mapping: node 2 is there twice");
    assert_eq!(broken("[4]", "[4, 0]"), "model.mapping: VM 0 is there twice");
    assert_eq!(broken("\"ns\"", "\"xy\""), "model.views[1]: views of the kind 'xy' are not known");
    assert_eq!(broken("\"rcId\"", "\"rc\""), "model.views[0]: `rcId` is missing");
    assert_eq!(broken("{\"0\": 10}", "{\"7\": 10}"), "model.views[0].nodes: there is no node 7");
    assert_eq!(broken(", \"defCapacity\": 8", ""), "model.views[0]: `defCapacity` is missing");
    assert!(broken("{\"0\": 10}", "{\"0\": 1e9}").starts_with("model.views[0].nodes: invalid type: floating point"));
    assert!(read("").unwrap_err().to_string().starts_with("line 1: .: EOF"));
}

#[test]
fn there_can_be_too_many_resources() {
    let view = |n| format!(r#"{{"id":"shareableResource","rcId":"{n}","nodes":{{}},"vms":{{}}}}"#);
    let views: Vec<String> = (0..65).map(view).collect();
    let mapping = r#"{"readyVMs":[],"offlineNodes":[],"onlineNodes":{}}"#;
    let file = format!(r#"{{"model":{{"mapping":{mapping},"views":[{}]}},"constraints":[]}}"#, views.join(","));
    assert_eq!(read(&file).unwrap_err().to_string(), "model.views[64]: there are more than 64 resources");
}

const STATES: &str = r#"{"id":"online","node":3},{"id":"offline","node":2},{"id":"running","vm":4},
    {"id":"running","vm":5},
    {"id":"killed","vm":1},{"id":"preserve","vm":0,"rc":"memory","amount":4},
    {"id":"preserve","vm":2,"rc":"memory","amount":2},
    {"id":"preserve","vm":4,"rc":"memory","amount":3}"#;

#[test]
fn a_plan_does_all_that_the_constraints_want() {
    let instance = with(STATES);
    assert_eq!((&*instance.nodes, &*instance.vms), (&[0, 1, 2, 3][..], &[0, 2, 3, 4, 5][..]));
    let step = |guest, to, start, end| Move { guest, to, start, end };
    let plan = write_plan(&instance, &[step(3, 3, 0, 4), step(0, 2, 0, 7), step(4, 0, 2, 3), step(0, 1, 7, 14)]);
    let written: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let expected = serde_json::json!({"actions": [
        {"id": "bootNode", "node": 3, "start": 0, "end": 120},
        {"id": "killVM", "vm": 1, "on": 0, "start": 0, "end": 1},
        {"id": "bootVM", "vm": 4, "on": 3, "start": 120, "end": 124,
            "hooks": {"pre": [{"id": "allocate", "vm": 4, "rc": "memory", "amount": 3}], "post": []}},
        {"id": "migrateVM", "vm": 0, "from": 0, "to": 2, "start": 120, "end": 127},
        {"id": "resumeVM", "vm": 5, "from": 1, "to": 0, "start": 122, "end": 123},
        {"id": "migrateVM", "vm": 0, "from": 2, "to": 1, "start": 127, "end": 134,
            "hooks": {"pre": [], "post": [{"id": "allocate", "vm": 0, "rc": "memory", "amount": 4}]}},
        {"id": "allocate", "vm": 2, "on": 1, "rc": "memory", "amount": 2, "start": 134, "end": 134},
        {"id": "shutdownNode", "node": 2, "start": 134, "end": 164},
    ]});
    assert_eq!(written, expected);
    assert_eq!(read_plan(&plan, &instance).unwrap(), [1, 1, 1, 3, 0]);
}

#[test]
fn moves_are_planned_in_time() {
    use skein_placement::schedule::simulate::{Start, simulate};
    // VM 0 fits on node 1 once VM 2 has left it.
    let constraints = r#"{"id":"resourceCapacity","nodes":[1],"rc":"memory","amount":4},{"id":"running","vm":4}"#;
    let instance = with(constraints);
    let job = instance.job(&[1, 0, 2, 1, 2]);
    let plan = skein_placement::schedule::plan(&job, 1, 10).unwrap();
    assert_eq!(simulate(&job, &plan, Start::Free).violations, []);
    let step = |guest, to, start, end| Move { guest, to, start, end };
    assert_eq!(moves(&plan), [step(4, 2, 0, 4), step(2, 2, 0, 1), step(0, 1, 1, 8)]);
}

#[test]
fn a_plan_of_something_else_is_told() {
    let instance = with(STATES);
    let wrong = |plan: &str| read_plan(plan, &instance).unwrap_err().to_string();
    let plan = r#"{"origin": {}, "actions": [{"id":"migrateVM","vm":1,"from":0,"to":1,"start":0,"end":1,"bw":9}]}"#;
    assert_eq!(wrong(plan), "actions[0]: VM 1 is none that runs in the end");
    let plan = plan.replace("\"vm\":1", "\"vm\":0").replace("\"to\":1", "\"to\":8");
    assert_eq!(wrong(&plan), "actions[0]: node 8 is none that can host VMs");
    assert!(wrong(r#"{"actions": [{"id":"dance","start":0,"end":1}]}"#).contains("unknown variant `dance`"));
}

/// Returns one constraint of each kind that is understood.
fn all_constraints() -> String {
    instance_of(
        r#"{"id":"online","node":3},{"id":"offline","node":2},{"id":"running","vm":4},{"id":"running","vm":5},
        {"id":"ready","vm":3},
        {"id":"spread","vms":[0,2],"continuous":true},{"id":"split","parts":[[1],[4]]},
        {"id":"gather","vms":[0,4],"continuous":false},
        {"id":"among","vms":[0,2],"parts":[[0,3],[1,2]],"continuous":true},
        {"id":"among","vms":[1],"parts":[[0,3],[1,2]],"continuous":true},
        {"id":"splitAmong","vParts":[[0],[2]],"pParts":[[0,2],[1,3]],"continuous":true},
        {"id":"fence","vm":0,"nodes":[0,1,3]},
        {"id":"ban","vm":0,"nodes":[1]},{"id":"root","vm":1},{"id":"quarantine","node":1},
        {"id":"maxOnline","nodes":[0,3],"amount":2},
        {"id":"preserve","vm":0,"rc":"memory","amount":4},{"id":"overbook","node":1,"rc":"memory","ratio":1.3},
        {"id":"resourceCapacity","nodes":[0],"rc":"memory","amount":6},
        {"id":"runningCapacity","nodes":[0],"amount":1}"#,
    )
}

/// Changes a text as a faulty writer could: wrong numbers and names, and pieces that are missing or doubled.
fn spoil(text: &mut Vec<u8>, dice: &mut Dice) {
    const NUMBERS: [&str; 9] = ["-1", "0", "3", "4", "99", "1.5", "4294967295", "18446744073709551616", "1e308"];
    const WORDS: [&str; 9] = ["\"x\"", "null", "[]", "{}", "[0]", "\"vm\"", "\"spread\"", "true", "[[0]]"];
    let at = dice.below(text.len());
    let is_of = |byte: &u8| byte.is_ascii_digit();
    match dice.below(5) {
        0 => text[at] = dice.below(256) as u8,
        1 => drop(text.drain(at..(at + dice.below(20)).min(text.len()))),
        2 => {
            let piece = text[at..(at + dice.below(60)).min(text.len())].to_vec();
            let to = dice.below(text.len());
            drop(text.splice(to..to, piece));
        }
        kind => {
            let Some(from) = text[at..].iter().position(is_of).map(|from| at + from) else { return };
            let digits = text[from..].iter().take_while(|byte| is_of(byte)).count();
            let other = if kind == 3 { dice.pick(&NUMBERS) } else { dice.pick(&WORDS) };
            drop(text.splice(from..from + digits, other.bytes()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Checks that any file is refused or makes a problem.
    #[test]
    fn spoilt_files_are_refused_or_make_sense(seed: u64) {
        let dice = &mut Dice::new(seed);
        let mut text = all_constraints().into_bytes();
        prop_assert!(read(&String::from_utf8_lossy(&text)).is_ok());
        for _ in 0..1 + dice.below(3) {
            spoil(&mut text, dice);
        }
        if let Ok(instance) = read(&String::from_utf8_lossy(&text)) {
            prop_assert_eq!(instance.problem.check(), Ok(()));
            prop_assert_eq!(instance.continuous.len(), instance.problem.groups.len());
            write_plan(&instance, &[]);
        }
    }

    #[test]
    fn spoilt_plans_are_refused_or_make_sense(seed: u64) {
        let dice = &mut Dice::new(seed);
        let instance = with(STATES);
        let mut plan = write_plan(&instance, &[Move { guest: 0, to: 1, start: 0, end: 7 }]).into_bytes();
        spoil(&mut plan, dice);
        if let Ok(assignment) = read_plan(&String::from_utf8_lossy(&plan), &instance) {
            prop_assert!(assignment.iter().all(|host| *host == NOWHERE || *host < 4));
        }
    }

    /// Checks that a written plan leads where it should, whichever way the moves go.
    #[test]
    fn plans_lead_where_they_should(seed: u64) {
        let dice = &mut Dice::new(seed);
        let instance = with(STATES);
        let mut at = instance.problem.initial.clone();
        let mut now = 0;
        let moves: Vec<Move> = (0..dice.below(12)).map(|_| {
            let (guest, to, start) = (dice.below(at.len()) as GuestId, dice.below(4) as HostId, now);
            now += 1 + dice.below(5) as u32;
            at[guest as usize] = to;
            Move { guest, to, start, end: now }
        }).collect();
        prop_assert_eq!(read_plan(&write_plan(&instance, &moves), &instance), Ok(at));
    }
}
