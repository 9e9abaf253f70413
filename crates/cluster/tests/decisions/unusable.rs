//! Rules and settings that placement cannot use.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use skein_api::cluster::{HostSettings, OperationState, VmSettings};
use skein_cluster::{Answer, Ask, RefusedKind, complaints};

use crate::bench::{Bench, RUNS_MS, is_off};

fn rules() -> Vec<(&'static str, Value)> {
    let pair = json!({"guests": ["v1", "v2"]});
    vec![
        ("below", json!({"apart": {"of": pair, "force": "soft", "weight": -1}})),
        ("huge", json!({"apart": {"of": pair, "weight": 1e308}})),
        ("hard", json!({"apart": {"of": pair, "force": "hard", "weight": 5}})),
        ("vague", json!({"spread": {"of": pair, "level": "host"}})),
        ("much", json!({"spread": {"of": pair, "level": "rack", "areas_min": 4_000_000_000u32}})),
        ("zero", json!({"spread": {"of": pair, "level": "host", "areas_min": 0}})),
        ("match", json!({"match": {"property": "disk", "relation": "should", "weight": 1e10}})),
        ("nobody", json!({"apart": {"of": {"tag": "later"}, "weight": -1}})),
        ("none", json!({"among": {"of": {"tag": "later"}, "within": []}})),
        ("both", json!({"apart": {"of": {"guests": ["v1"]}, "from": {"guests": ["v1"]}}})),
    ]
}

fn set_rule(name: &str, rule: &Value) -> Ask {
    Ask::SetRule { name: name.into(), rule: rule.clone(), version: None }
}

fn area_host() -> HostSettings {
    HostSettings { areas: BTreeMap::from([("host".to_owned(), "x".to_owned())]), ..HostSettings::default() }
}

#[test]
fn what_placement_cannot_use_is_refused_and_not_kept() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.run_vm("a", "v1");
    bench.run_vm("a", "v2");
    let pair = json!({"guests": ["v1", "v2"]});
    let nameless = [
        ("level", json!({"spread": {"of": pair, "level": "", "areas_min": 2}})),
        ("away", json!({"apart": {"of": {"guests": ["v1"]}, "from": {"guests": ["v2"]}, "level": ""}})),
        ("near", json!({"needs": {"of": {"guests": ["v1"]}, "near": {"guests": ["v2"]}, "level": ""}})),
        ("label", json!({"apart": {"of": {"tag": ""}}})),
        ("group", json!({"owners": {"of": pair, "within": {"group": ""}}})),
        ("kind", json!({"match": {"property": "", "relation": "should"}})),
        ("who", json!({"together": {"of": {"guests": ["v1", ""]}}})),
    ];
    for (name, rule) in rules().into_iter().chain(nameless) {
        let refused = bench.refused(set_rule(name, &rule));
        assert_eq!(refused.kind, RefusedKind::Invalid, "{refused:?}");
        assert!(refused.message.starts_with(&format!("rule '{name}'")), "{refused:?}");
    }
    assert!(bench.controller.rules("", 10).is_empty());
    let refused = bench.refused(Ask::SetHost { host: "b".into(), settings: area_host(), version: None });
    assert!(refused.kind == RefusedKind::Invalid && refused.message.starts_with("host 'b': the level"), "{refused:?}");
    assert!(bench.host("b").settings.areas.is_empty());
    // A label may bring a guest into both sides of a rule.
    let sides = json!({"apart": {"of": {"tag": "one"}, "from": {"tag": "two"}}});
    assert_eq!(bench.ask(set_rule("sides", &sides)), Answer::Done);
    let tagged = |tags: &[&str]| {
        let settings = VmSettings { tags: tags.iter().map(|tag| (*tag).into()).collect(), ..VmSettings::default() };
        Ask::SetVm { vm: "v1".into(), settings, version: None }
    };
    assert_eq!(bench.ask(tagged(&["one"])), Answer::Done);
    let refused = bench.refused(tagged(&["one", "two"]));
    assert!(refused.message.contains("'v1' is in 'of' and in 'from'"), "{refused:?}");
    assert_eq!(complaints(&bench.controller.placement()).unwrap(), []);
    assert_eq!(bench.controller.attention(), Vec::<String>::new());
}

#[test]
fn what_is_in_the_store_all_the_same_is_told_and_keeps_no_failover_from_being_planned() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    ["v1", "v2", "v3"].iter().for_each(|vm| bench.run_vm("a", vm));
    let areas = BTreeMap::from([("rack".to_owned(), "r1".to_owned())]);
    bench.set_host("b", HostSettings { areas: areas.clone(), ..HostSettings::default() });
    bench.change_leader_after(RUNS_MS, |bench| {
        for (name, rule) in rules() {
            bench.keep(&format!("rule/{name}"), json!({"rule": rule}));
        }
        bench.keep("rule/unread", json!({"rule": {"beside": {"of": {"tag": "x"}}}}));
        bench.change_kept("host/c", |host| host["settings"]["areas"] = json!({"host": "x"}));
    });
    ["a", "b", "c"].iter().for_each(|host| bench.connect(host));
    bench.wait_s(1);
    // A change of something else is not refused for it.
    bench.set_host("b", HostSettings { group: Some("db".into()), areas, ..HostSettings::default() });
    let told = bench.controller.attention().join("\n");
    let complained = complaints(&bench.controller.placement()).unwrap();
    for (name, _) in rules() {
        assert!(told.contains(&format!("rule '{name}'")), "{name}: {told}");
        // What is about no guest yet breaks nothing yet.
        if !["nobody", "none"].contains(&name) {
            let is_it = |of: &&skein_api::cluster::Complaint| of.rule == Some(format!("rule '{name}'")) && of.hard;
            let found = complained.iter().find(is_it);
            let found = found.unwrap_or_else(|| panic!("{name}: {complained:?}"));
            assert!(found.clashes[0].contains(&format!("skein rule remove {name}")), "{found:?}");
        }
    }
    assert!(told.contains("rule 'unread'") && told.contains("host 'c': the level 'host'"), "{told}");
    bench.disconnect("a");
    bench.wait_s(12);
    let failover = bench.begin(is_off("a"));
    bench.obey_all();
    bench.wait_s(2);
    let over = bench.now(&failover);
    assert!(over.state == OperationState::Done && over.moves.len() == 3, "{over:?}");
}
