//! Rules that can never hold together.

use serde_json::json;
use skein_api::cluster::Complaint;
use skein_cluster::{Answer, Ask, complaints};

use crate::bench::Bench;

fn set(bench: &mut Bench, name: &str, rule: serde_json::Value) {
    assert_eq!(bench.ask(Ask::SetRule { name: name.into(), rule, version: None }), Answer::Done);
}

fn found(bench: &Bench) -> Vec<Complaint> {
    complaints(&bench.controller.placement()).unwrap()
}

#[test]
fn complaints_name_the_rules_that_clash_and_what_to_do() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.run_vm("a", "web");
    bench.run_vm("a", "db");
    let guests = json!({"guests": ["web", "db"]});
    set(&mut bench, "away", json!({"apart": {"of": guests, "force": "hard"}}));
    let alone = found(&bench);
    assert!(alone.iter().any(|of| of.hard) && alone.iter().all(|of| of.clashes.is_empty()), "{alone:?}");
    set(&mut bench, "pair", json!({"together": {"of": guests, "force": "hard"}}));
    let both = found(&bench);
    let words: Vec<&String> = both.iter().filter(|of| of.hard).flat_map(|of| &of.clashes).collect();
    assert!(!words.is_empty(), "{both:?}");
    assert!(words.iter().all(|of| of.contains("rule 'away'") && of.contains("rule 'pair'")), "{words:?}");
    let broken = both.iter().find(|of| of.rule.as_deref() == Some("rule 'away'")).expect("it is broken");
    assert_eq!(broken.clashes.len(), 1, "the complaint that is there says so: {both:?}");
}
