//! Small files for every rule, every contradiction and every mistake.

use proptest::prelude::*;

use super::*;
use skein_placement::problem::{HostId, NOWHERE};
use skein_placement::verdict::judge;

/// Four hosts in two racks, with 8 cores and 32 GiB each.
const HOSTS: &str = "
resources:
- {name: cpu, unit: cores}
- {name: memory, unit: bytes}
hosts:
- {name: h1, group: gold, capacity: {cpu: 8, memory: 32 GiB}, areas: {rack: r1}, properties: {os: a}}
- {name: h2, group: gold, capacity: {cpu: 8, memory: 32 GiB}, areas: {rack: r1}, properties: {os: b}}
- {name: h3, group: tin, capacity: {cpu: 8, memory: 32 GiB}, areas: {rack: r2}, properties: {os: a}}
- {name: h4, group: tin, capacity: {cpu: 8, memory: 32 GiB}, areas: {rack: r2}}
";

pub(crate) fn made(rest: &str) -> Compiled {
    read(&format!("{HOSTS}{rest}")).unwrap().compile().unwrap()
}

fn mistake(text: &str) -> String {
    match read(text).and_then(|file| file.compile()) {
        Ok(_) => panic!("it should be refused"),
        Err(error) => error.to_string(),
    }
}

/// Returns what is wrong with all guests where they are.
fn complaints_of(compiled: &Compiled) -> Vec<String> {
    let (check, _) = check(compiled, &compiled.problem.initial, &History::default(), 7);
    check.complaints.into_iter().map(|complaint| complaint.what).collect()
}

fn clashes(rest: &str) -> Vec<String> {
    made(rest).clashes.into_iter().map(|clash| format!("{}: {}", clash.rules.join(" + "), clash.what)).collect()
}

#[test]
fn a_file_without_guests_is_fine() {
    let compiled = made("");
    assert_eq!(compiled.problem.hosts[0].capacity, [8000, 32 * 1024]);
    assert_eq!(compiled.problem.hosts[0].safe, [7200, 29491]);
    assert_eq!(compiled.names.place_free[0], [1600, 6553]);
    assert!(compiled.clashes.is_empty());
    assert!(complaints_of(&compiled).is_empty());
}

#[test]
fn json_is_read_too() {
    let text = "{\"resources\": [{\"name\": \"memory\", \"unit\": \"bytes\"}],\n\t\
        \"hosts\": [{\"name\": \"h1\", \"capacity\": {\"memory\": \"1 GiB\"}}],
        \"rules\": [{\"apart\": {\"name\": \"x\", \"of\": {\"guests\": [\"a\"]}}}], \"guests\": \
        [{\"name\": \"a\", \"size\": {\"memory\": \"1 B\"}}]}";
    let compiled = read(text).unwrap().compile().unwrap();
    assert_eq!(compiled.problem.guests[0].demand, [1]);
}

#[test]
fn what_is_reserved_and_what_is_measured_are_rows_of_their_own() {
    let compiled = made(
        "guests:
- {name: a, host: h1, size: {cpu: 4, memory: 16 GiB}, load: {cpu: 0.5}}
- {name: b, host: h1, size: {cpu: 2, memory: 1 GiB}}",
    );
    let rows: Vec<String> = compiled.names.rows.iter().map(ToString::to_string).collect();
    assert_eq!(rows, ["cpu", "measured cpu", "memory"]);
    assert_eq!(compiled.problem.guests[0].demand, [4000, 500, 16384]);
    assert_eq!(compiled.problem.guests[1].demand, [2000, 2000, 1024], "who is not measured uses what it has reserved");
    let weights: Vec<bool> = compiled.problem.resources.iter().map(|row| row.load_weight > 0).collect();
    assert_eq!(weights, [false, true, true], "load costs by what is measured");
}

#[test]
fn a_template_gives_what_a_guest_lacks() {
    let compiled = made(
        "templates:
- {name: small, size: {cpu: 1, memory: 2 GiB}, tags: [web], tenant: x}
guests:
- {name: a, template: small, size: {cpu: 2}, tags: [big]}
rules:
- apart: {name: one, of: {tag: web}}
- apart: {name: two, of: {tag: big}}
- apart: {name: three, of: {tenant: x}}",
    );
    assert_eq!(compiled.problem.guests[0].demand, [2000, 2048]);
    assert_eq!(compiled.problem.guests[0].groups, [0, 1, 2]);
    assert_eq!(compiled.problem.initial, [NOWHERE]);
}

#[test]
fn levels_and_overcommit_make_the_capacity() {
    let compiled = read(
        "
resources:
- {name: cpu, unit: cores, overcommit: 2, levels: {reserve: 10 %, start: 20 %, place: 30 %}}
hosts:
- {name: h1, capacity: {cpu: 10}, guests_max: 1}
- {name: h2, capacity: {cpu: 10}, levels: {cpu: {reserve: 2 cores}}}
guests:
- {name: a, size: {cpu: 1}, load: {cpu: 1}, host: h1}
- {name: b, size: {cpu: 1}, load: {cpu: 1}, host: h1}",
    )
    .unwrap()
    .compile()
    .unwrap();
    assert_eq!(compiled.problem.hosts[0].capacity, [18_000, 9000, 1]);
    assert_eq!(compiled.problem.hosts[0].safe, [16_000, 8000, 1]);
    assert_eq!(compiled.names.place_free[0], [4000, 2000, 0]);
    assert_eq!(compiled.problem.hosts[1].capacity, [16_000, 8000, 2]);
    assert_eq!(complaints_of(&compiled), ["guests of 'h1': 2 used of 1, 1 too much"]);
}

#[test]
fn a_move_costs_by_what_is_sent() {
    let cost = |guest: &str| made(&format!("bandwidth: 1 GB/s\nguests:\n- {guest}")).problem.guests[0].move_cost;
    assert_eq!(cost("{name: a, memory: 10 GB}"), 15_000_000, "5 s and 10 s");
    assert_eq!(cost("{name: a, memory: 10 GB, dirty: 500 MB/s}"), 25_000_000, "twice its memory");
    assert_eq!(cost("{name: a, memory: 10 GB, dirty: 5 GB/s}"), 105_000_000, "ten times at most");
    assert_eq!(cost("{name: a}"), 5_000_000);
}

#[test]
fn who_writes_faster_than_it_can_be_sent_stays() {
    let compiled = made(
        "bandwidth: 1 Gbit/s
guests:
- {name: calm, host: h1, size: {memory: 8 GiB}, dirty: 60 MB/s}
- {name: hot, host: h1, size: {memory: 8 GiB}, dirty: 130 MB/s}
- {name: down, size: {memory: 8 GiB}, dirty: 130 MB/s}",
    );
    assert_eq!((compiled.bandwidth, compiled.traffic[1].dirty_rate), (125e6, 130e6));
    let may_be_on: Vec<Vec<bool>> =
        (0..3).map(|guest| (0..4).map(|host| compiled.problem.may_own(guest, host)).collect()).collect();
    assert_eq!(may_be_on, [[true; 4].to_vec(), [true, false, false, false].to_vec(), [true; 4].to_vec()]);
    assert_eq!(complaints_of(&compiled), ["'down' is on no host"], "where it may be started is open");
}

#[test]
fn a_balance_is_counted_in_grains() {
    let compiled = made("guests: [{name: a, size: {memory: 1 GiB}}]\nbalances:\n- {for: cpu, of: memory, free: 4 GiB}");
    let balance = compiled.problem.balances[0];
    assert_eq!((balance.first, balance.second, balance.ratio), (0, 1, 4), "4096 MiB for 1000 thousandths");
    let refused = mistake(&format!("{HOSTS}balances:\n- {{for: memory, each: 4 GiB, of: cpu, free: 1}}"));
    assert!(refused.contains("the other way round"), "{refused}");
}

#[test]
fn what_is_broken_is_told_in_the_words_of_the_file() {
    let guests = "guests:
- {name: a, host: h1, size: {memory: 20 GiB}, tags: [web], properties: {os: a}}
- {name: b, host: h1, size: {memory: 20 GiB}, tags: [web], properties: {os: b}, owners: [h2, h3]}
- {name: c, host: h3, tags: [db], properties: {os: a}, preferred: [h1, h3], near: [h4]}
";
    let of = |rule: &str| complaints_of(&made(&format!("{guests}rules:\n- {rule}")));
    let always = |what: &[&str]| {
        let mut all: Vec<String> = what.iter().map(|what| (*what).to_owned()).collect();
        all.extend(["'h1' is not among the possible owners of 'b'".into()]);
        all.extend(["memory of 'h1': 40 GiB used of 32 GiB, 8 GiB too much".into()]);
        all.extend([
            "'h3' is not near the data of 'c'".into(),
            "'h3' is not the first of the preferred owners of 'c'".into(),
        ]);
        all.sort();
        all
    };
    let sorted = |mut all: Vec<String>| {
        all.sort();
        all
    };
    for (rule, what) in [
        ("apart: {name: x, of: {tag: web}, force: hard}", "'a', 'b' share 'h1' and are to be apart"),
        ("apart: {name: x, of: {tag: web}}", "'a', 'b' share 'h1' and are to be apart"),
        ("together: {name: x, of: {guests: [a, c]}}", "'a', 'c' are on 2 hosts and are to be together"),
        (
            "spread: {name: x, of: {tag: web}, level: rack, areas_min: 2}",
            "'a', 'b' are in 1 of at least 2 areas of level 'rack'",
        ),
        (
            "spread: {name: x, of: {tag: web}, level: host, areas_min: 2}",
            "'a', 'b' are in 1 of at least 2 areas of level 'host'",
        ),
        (
            "needs: {name: x, of: {tag: web}, near: {tag: db}, level: rack}",
            "'a', 'b' need one of 'c' in rack 'r1', where none is",
        ),
        ("needs: {name: x, of: {tag: db}, near: {tag: web}}", "'c' needs one of 'a', 'b' in host 'h3', where none is"),
        ("owners: {name: x, of: {guests: [a]}, within: {group: tin}}", "rule 'x' does not let 'a' be on 'h1'"),
        (
            "among: {name: x, of: {guests: [a, c]}, within: [{group: gold}, {group: tin}]}",
            "'a', 'c' are not all within one of the sets of hosts",
        ),
        (
            "match: {name: x, property: os, relation: must, group: gold}",
            "the property 'os' of 'b' and of 'h1' breaks rule 'x'",
        ),
        (
            "match: {name: x, property: os, relation: should-not, group: tin}",
            "the property 'os' of 'c' and of 'h3' goes against rule 'x'",
        ),
        (
            "preferred: {name: x, of: {guests: [a]}, within: {hosts: [h2]}}",
            "rule 'x' would rather not have 'a' on 'h1'",
        ),
    ] {
        assert_eq!(sorted(of(rule)), always(&[what]), "{rule}");
    }
    // Rules that hold are not reported.
    for rule in [
        "apart: {name: x, of: {guests: [a, c]}}",
        "together: {name: x, of: {guests: [a, b]}, force: hard}",
        "spread: {name: x, of: {guests: [a, c]}, level: rack, areas_min: 2}",
        "needs: {name: x, of: {guests: [a]}, near: {guests: [b]}}",
        "owners: {name: x, of: {guests: [a]}, within: {hosts: [h1]}}",
        "among: {name: x, of: {guests: [a, b]}, within: [{group: gold}, {group: tin}]}",
        "match: {name: x, property: os, relation: must, group: tin}",
        "preferred: {name: x, of: {guests: [a]}, within: {hosts: [h1, h2]}}",
    ] {
        assert_eq!(sorted(of(rule)), always(&[]), "{rule}");
    }
}

#[test]
fn hosts_that_are_not_online_are_left() {
    let text = HOSTS
        .replace("{name: h1,", "{name: h1, state: offline,")
        .replace("{name: h2,", "{name: h2, state: maintenance,");
    let guests =
        "guests: [{name: a, host: h1}, {name: b, host: h2, optimize: false}, {name: c, host: h3, optimize: false}]";
    let compiled = read(&format!("{text}{guests}")).unwrap().compile().unwrap();
    assert_eq!(
        complaints_of(&compiled),
        ["'a' is on no host: 'h1' is offline", "'b' is on 'h2', which is in maintenance"]
    );
    let (check, _) = check(&compiled, &[0, 2, 2], &History::default(), 7);
    assert_eq!(check.complaints[0].what, "'a' is on 'h1', which is offline");
    let owners = |guest: usize| {
        let set = compiled.problem.guests[guest].owners.unwrap();
        compiled.problem.owners[set as usize].iter().collect::<Vec<HostId>>()
    };
    assert_eq!(
        (owners(0), owners(1), owners(2)),
        (vec![2, 3], vec![2, 3], vec![2]),
        "only who is on a host that is up stays"
    );
}

#[test]
fn an_availability_set_is_soft_unless_a_rule_says_otherwise() {
    let guests = "guests: [{name: a, host: h1, availability_set: s}, {name: b, host: h1, availability_set: s}]\n";
    let soft = made(guests);
    assert_eq!(judge(&soft.problem, &soft.problem.initial).hard.len(), 0);
    assert_eq!(complaints_of(&soft), ["'a', 'b' share 'h1' and are to be apart"]);
    let hard = made(&format!("{guests}rules:\n- apart: {{name: x, of: {{set: s}}, force: hard}}"));
    assert_eq!(judge(&hard.problem, &hard.problem.initial).hard.len(), 1);
    assert_eq!(hard.problem.groups.len(), 1);
}

#[test]
fn since_when_is_remembered_as_long_as_it_lasts() {
    let compiled = made(
        "guests: [{name: a, host: h1, tags: [w]}, {name: b, host: h1, tags: [w]}]
rules: [{apart: {name: x, of: {tag: w}, force: hard}}]",
    );
    let since = |history: &History, at: &[HostId], now: u64| {
        let (check, history) = check(&compiled, at, history, now);
        (check.complaints.first().map(|complaint| complaint.since), history)
    };
    let (first, history) = since(&History::default(), &[0, 0], 10);
    let stored: History = serde_json::from_str(&serde_json::to_string(&history).unwrap()).unwrap();
    let (second, history) = since(&stored, &[0, 0], 20);
    assert_eq!((first, second), (Some(10), Some(10)));
    let (gone, history) = since(&history, &[0, 1], 30);
    assert_eq!(gone, None);
    assert_eq!(since(&history, &[0, 0], 40).0, Some(40));
}

#[test]
fn the_worst_is_told_first() {
    let compiled = made(
        "guests: [{name: a, host: h1, size: {memory: 33 GiB}, tags: [w]}, {name: b, host: h1, tags: [w]}, {name: c}]
rules: [{apart: {name: x, of: {tag: w}}}]",
    );
    let all = complaints_of(&compiled);
    assert_eq!(all[0], "'c' is on no host");
    assert!(all[1].starts_with("memory of 'h1'"), "{all:?}");
    assert!(all[2].contains("to be apart"), "{all:?}");
}

#[test]
fn rules_that_cannot_hold_together_are_told() {
    let guests = "guests:
- {name: a, tags: [w]}
- {name: b, tags: [w]}
- {name: c, tags: [w], owners: [h1, h2]}
- {name: d, size: {memory: 20 GiB}}
- {name: e, size: {memory: 20 GiB}}
rules:
";
    for (rules, rule, what) in [
        (
            "- apart: {name: x, of: {tag: w}, force: hard}\n- together: {name: y, of: {guests: [a, b]}, force: hard}",
            "rule 'x' + rule 'y'",
            "'a', 'b' have to be on one host and apart",
        ),
        (
            "- owners: {name: x, of: {tag: w}, within: {group: tin}}",
            "the possible owners of 'c' + rule 'x'",
            "together they leave no host for 'c'",
        ),
        (
            "- match: {name: x, property: os, relation: must}",
            "rule 'x'",
            "the property 'os' is not set of hosts 'h4', so that it matches nothing there",
        ),
        (
            "- apart: {name: x, of: {guests: [a, b, c, d, e]}, force: hard}",
            "rule 'x'",
            "5 guests ('a', 'b', 'c', 'd' and 1 more) are apart and may only be on 4 hosts ('h1', 'h2', 'h3', 'h4')",
        ),
        (
            "- apart: {name: x, of: {tag: w}, force: hard}\n- owners: {name: y, of: {tag: w}, within: {group: gold}}",
            "rule 'y'",
            "3 guests ('a', 'b', 'c') are apart and may only be on 2 hosts ('h1', 'h2')",
        ),
        (
            "- spread: {name: x, of: {tag: w}, level: rack, areas_min: 3, force: hard}",
            "rule 'x'",
            "'a', 'b', 'c' are to be in 3 areas of level 'rack', and can be in 2 at most",
        ),
        (
            "- spread: {name: x, of: {tag: w}, level: rack, areas_min: 2, force: hard}\n- owners: \
             {name: y, of: {guests: [a, b]}, within: {group: gold}}",
            "rule 'y'",
            "'a', 'b', 'c' are to be in 2 areas of level 'rack', and can be in 1 at most",
        ),
        (
            "- spread: {name: x, of: {guests: [a, b]}, level: rack, areas_min: 2, force: hard}\n- together: \
             {name: y, of: {guests: [a, b]}, force: hard}",
            "rule 'y'",
            "'a', 'b' are to be in 2 areas of level 'rack', and can be in 1 at most",
        ),
        (
            "- together: {name: x, of: {guests: [d, e]}, force: hard}",
            "rule 'x'",
            "of memory 'd', 'e' need 40 GiB, and the largest host that they may be on has 32 GiB",
        ),
        (
            "- together: {name: x, of: {guests: [a, c]}, force: hard}\n- owners: \
             {name: y, of: {guests: [a]}, within: {group: tin}}",
            "rule 'y'",
            "'a', 'c' have to be on one host, and no host is allowed to all of them",
        ),
        (
            "- among: {name: x, of: {guests: [a, c]}, within: [{group: tin}, {hosts: [h3]}]}",
            "the possible owners of 'c' + rule 'x'",
            "together they leave no host for 'c'",
        ),
        (
            "- among: {name: x, of: {guests: [a]}, within: [{hosts: [h1]}]}\n- among: \
             {name: y, of: {guests: [a]}, within: [{group: tin}, {hosts: [h2]}]}",
            "rule 'x' + rule 'y'",
            "together they leave no host for 'a'",
        ),
        (
            "- among: {name: x, of: {guests: [a, b]}, within: [{hosts: [h1]}]}\n- apart: \
             {name: y, of: {guests: [a, b]}, force: hard}",
            "rule 'x' + rule 'y'",
            "2 guests ('a', 'b') are apart and may only be on 1 host ('h1')",
        ),
        (
            "- among: {name: x, of: {guests: [a, b]}, within: [{hosts: [h1]}, {hosts: [h1, h2]}]}\n- spread: \
             {name: y, of: {guests: [a, b]}, level: rack, areas_min: 2, force: hard}",
            "rule 'x' + rule 'y'",
            "'a', 'b' are to be in 2 areas of level 'rack', and can be in 1 at most",
        ),
        (
            "- needs: {name: x, of: {guests: [a]}, near: {guests: [b]}}\n- needs: \
             {name: y, of: {guests: [b]}, near: {guests: [d]}}\n- apart: {name: z, of: {guests: [a, d]}, force: hard}",
            "rule 'x' + rule 'y' + rule 'z'",
            "'a', 'd' have to be on one host and apart",
        ),
        (
            "- needs: {name: x, of: {guests: [a]}, near: {guests: [b, c]}}\n- apart: \
             {name: y, of: {tag: w}, force: hard}",
            "rule 'x' + rule 'y'",
            "'a' needs on its host whom it is apart from ('b', 'c')",
        ),
        (
            "- needs: {name: x, of: {guests: [a]}, near: {guests: [c]}, level: rack}\n- owners: \
             {name: y, of: {guests: [a]}, within: {group: tin}}",
            "rule 'y'",
            "'a' can never be in the same area of level 'rack' as whom it needs ('c')",
        ),
        (
            "- apart: {name: x, of: {tag: ww}}",
            "rule 'x'",
            "it is about no guest: there is no tag 'ww'; did you mean 'w'?",
        ),
    ] {
        let found = clashes(&format!("{guests}{rules}"));
        assert!(found.iter().any(|clash| clash.contains(rule) && clash.contains(what)), "{rules}\n{found:#?}");
    }
}

#[test]
fn only_rules_that_a_clash_needs_are_named() {
    let guests = "guests:
- {name: a, owners: [h1], properties: {os: a}}
- {name: b, owners: [h1], properties: {os: a}}
- {name: c, owners: [h1], properties: {os: a}}
- {name: d, properties: {os: a}}
- {name: e, owners: [h2], properties: {os: b}}
- {name: f, owners: [h2], properties: {os: b}}
- {name: big, size: {memory: 1600 GiB}, properties: {os: a}}
rules:
- match: {name: os-must, property: os, relation: must, group: tin}
";
    let owners = |name| format!("the possible owners of '{name}'");
    let without_h4 = |clash: &String| !clash.contains("'os' is not set");
    let of =
        |rules: &str| -> Vec<String> { clashes(&format!("{guests}{rules}")).into_iter().filter(without_h4).collect() };
    let big = ": of memory 'big' needs 1.56 TiB, and the largest host that it may be on has 32 GiB";
    assert_eq!(of(""), [big]);
    let [a, b, c, e, f] = ["a", "b", "c", "e", "f"].map(owners);
    for (rules, told) in [
        (
            "- spread: {name: x, of: {guests: [d, e]}, level: rack, areas_min: 5, force: hard}",
            "rule 'x': 'd', 'e' are to be in 5 areas of level 'rack', and can be in 2 at most".to_owned(),
        ),
        (
            "- apart: {name: x, of: {guests: [a, b, c, d]}, force: hard}",
            format!("{a} + {b} + {c} + rule 'x': 3 guests ('a', 'b', 'c') are apart and may only be on 1 host ('h1')"),
        ),
        (
            // The other crowd is reported as well.
            "- apart: {name: x, of: {guests: [a, b, e, f]}, force: hard}",
            format!("{e} + {f} + rule 'x': 2 guests ('e', 'f') are apart and may only be on 1 host ('h2')"),
        ),
        (
            "- apart: {name: x, of: {guests: [a, d]}, force: hard}\n- together: \
             {name: y, of: {guests: [a, d]}, force: hard}",
            "rule 'x' + rule 'y': 'a', 'd' have to be on one host and apart".to_owned(),
        ),
        (
            "- together: {name: x, of: {guests: [a, b, d, e]}, force: hard}",
            format!(
                "{a} + {e} + rule 'x': 'a', 'b', 'd', 'e' have to be on one host, and no host is allowed to all of them"
            ),
        ),
        (
            "- among: {name: x, of: {guests: [a, d, e]}, within: [{hosts: [h1]}, {hosts: [h2]}]}",
            format!("{a} + {e} + rule 'x': in none of its sets may all of its guests be: not 'a', 'e'"),
        ),
        (
            "- needs: {name: x, of: {guests: [a]}, near: {guests: [e]}}\n- owners: \
             {name: y, of: {guests: [a]}, within: {group: gold}}",
            format!("{a} + {e} + rule 'x': 'a' can never be in the same area of level 'host' as whom it needs ('e')"),
        ),
    ] {
        let found = of(rules);
        assert!(found.contains(&told), "{told}\n{found:#?}");
    }
}

#[test]
fn rules_that_can_hold_are_no_clash() {
    let guests = "guests: [{name: a}, {name: b}, {name: c, owners: [h1]}, {name: d, size: {memory: 32 GiB}}]\nrules:\n";
    for rules in [
        "- apart: {name: x, of: {guests: [a, b, c, d]}, force: hard}",
        "- apart: {name: x, of: {guests: [a, b]}}\n- together: {name: y, of: {guests: [a, b]}, force: hard}",
        "- together: {name: x, of: {guests: [a, b, c, d]}, force: hard}",
        "- spread: {name: x, of: {guests: [a, b, c]}, level: host, areas_min: 3, force: hard}",
        "- needs: {name: x, of: {guests: [a]}, near: {guests: [b]}}\n- needs: \
         {name: y, of: {guests: [b]}, near: {guests: [a]}}",
        "- among: {name: x, of: {guests: [a, c]}, within: [{group: tin}, {group: gold}]}",
        "- among: {name: x, of: {guests: [a, b]}, within: [{hosts: [h1, h2]}]}\n- apart: \
         {name: y, of: {guests: [a, b]}, force: hard}",
    ] {
        assert_eq!(clashes(&format!("{guests}{rules}")), Vec::<String>::new(), "{rules}");
    }
}

/// A soft rule that can never hold is reported, too: its author meant something else.
#[test]
fn what_a_soft_rule_lacks_is_told() {
    for relation in ["must", "must-not", "should", "should-not"] {
        assert_eq!(
            clashes(&format!("rules: [{{match: {{name: x, property: os, relation: {relation}}}}}]")),
            ["rule 'x': the property 'os' is not set of hosts 'h4', so that it matches nothing there"]
        );
    }
    assert_eq!(
        clashes("rules: [{apart: {name: x, of: {tag: w}}}]"),
        ["rule 'x': it is about no guest: there is no tag 'w', and no other either"]
    );
}

#[test]
fn mistakes_are_told_with_their_line() {
    let of =
        |from: &str, to: &str| mistake(&format!("{}\nguests:\n- {{name: a, host: h1}}\n", HOSTS.replacen(from, to, 1)));
    for (from, to, told) in [
        ("name: h1, group", "name: h1, gruop", "line 6: there is no field 'gruop'; did you mean 'group'?"),
        ("name: h2", "name: h1", "line 7: there are two hosts 'h1': rename one"),
        (
            "memory: 32 GiB",
            "memory: 32 Gib",
            "line 6: host 'h1': memory: '32 Gib' has no unit of it: write '16 GiB' or '500 MB' (B; kB,",
        ),
        (
            "memory: 32 GiB",
            "memroy: 32 GiB",
            "line 6: host 'h1': there is no resource 'memroy'; did you mean 'memory'?",
        ),
        (", areas: {rack: r1}", "", "line 6: host 'h1': its rack is missing in 'areas', which other hosts have"),
        (
            "unit: cores}",
            "unit: cores, levels: {reserve: 20 %, start: 10 %}}",
            "line 3: resource 'cpu', on 'h1': levels have to be in order: reserve <= start <= place",
        ),
        ("unit: cores}", "unit: cores, overcommit: .nan}", "line 3: "),
        (
            "unit: cores}",
            "unit: cores, overcommit: 0.1}",
            "line 3: resource 'cpu': overcommit is 0.1, not within 1 to 1000",
        ),
        ("{cpu: 8", "{cpu: -8", "line 6: "),
        ("{cpu: 8", "{cpu: lots", "line 6: "),
        ("name: h1", "name: h9", "line 12: guest 'a': there is no host 'h1'"),
        ("resources:", "resources", "line "),
    ] {
        let error = of(from, to);
        assert!(error.starts_with(told), "{from} -> {to}: {error}");
    }
    let rule = |rule: &str| mistake(&format!("{HOSTS}guests: [{{name: a}}]\nrules:\n- {rule}"));
    for (text, told) in [
        ("apart: {name: x, of: {guests: [b]}}", "line 12: rule 'x': there is no guest 'b'"),
        (
            "apart: {name: x, of: {guests: [a]}, force: hard, weight: 3}",
            "line 12: rule 'x': it is hard, so that it has no weight",
        ),
        ("apart: {name: x, of: {guests: [a]}, weight: -1}", "line 12: rule 'x': its weight is -1"),
        ("apart: {name: x, of: {guests: [a]}, weight: .nan}", "line 12: "),
        (
            "spread: {name: x, of: {guests: [a]}, level: room, areas_min: 2}",
            "line 12: rule 'x': there is no level 'room'",
        ),
        (
            "owners: {name: x, of: {guests: [a]}, within: {group: golf}}",
            "line 12: rule 'x': there is no host group 'golf'; did you mean 'gold'?",
        ),
        ("among: {name: x, of: {guests: [a]}, within: []}", "line 12: rule 'x': 'within' is empty"),
        (
            "owners: {name: x, of: {guests: [a]}, on: {group: tin}}",
            "line 12: there is no field 'on'; did you mean 'within'?",
        ),
        (
            "among: {name: x, of: {guests: [a]}, true: [{group: tin}]}",
            "line 12: there is no field 'true'; did you mean 'within'?",
        ),
        ("aparts: {name: x, of: {guests: [a]}}", "line 12: there is no kind 'aparts'; did you mean 'apart'?"),
    ] {
        let error = rule(text);
        assert!(error.starts_with(told), "{text}: {error}");
    }
}

#[test]
fn no_level_is_called_host() {
    let file = HOSTS.replace("areas: {rack: r1}", "areas: {host: x}").replace("areas: {rack: r2}", "areas: {host: y}");
    let rule = "rules:\n- spread: {name: s, of: {guests: []}, level: host, areas_min: 2}";
    assert!(mistake(&format!("{file}{rule}")).ends_with("the level 'host' is each host by itself: rename it"));
}

#[test]
fn what_is_wrong_is_told_where_it_stands() {
    let of = |rest: &str| mistake(&format!("{HOSTS}{rest}"));
    for (rest, told) in [
        ("\nguests: []\nbandwidth: 10 GiB", "line 12: bandwidth: '10 GiB' has no unit of it"),
        ("bandwidth: 10", "line 10: bandwidth: '10' has no unit: write '10 MB/s', or '10 B/s'"),
        ("bandwidth: 0", "line 10: bandwidth: it is 0"),
        ("weights:\n  rule: 1\n  load: -10", "line 12: weights.load is -10, which is not within 0"),
        ("weights:\n  each_move: 1\n  moves: -1", "line 12: weights.moves is -1, which is not within 0"),
        ("guests:\n- name: a\n  size:\n    memory: 64", "line 13: guest 'a': memory: '64' has no unit: write '64 GiB'"),
        ("guests:\n- name: a\n  dirty: 64", "line 12: guest 'a': dirty: '64' has no unit: write '64 MB/s'"),
        (
            "guests:\n- {name: a, memory: 900 GiB}\nbandwidth: 1 B/s",
            "line 11: guest 'a': its move costs 966367641605 seconds: correct 'bandwidth'",
        ),
        (
            "rules:\n- apart:\n    name: x\n    of: {guests: []}\n    weight: -1",
            "line 14: rule 'x': its weight is -1, which is not within 0",
        ),
        (
            "balances:\n- for: cpu\n  of: memory\n  free: 1 core",
            "line 13: balance for 'cpu': '1 core' has no unit of it",
        ),
    ] {
        let error = of(rest);
        assert!(error.starts_with(told), "{rest}: {error}");
    }
    let levels = "levels:\n    memory:\n      start: 5 %\n      place: 1 %";
    let own = HOSTS.replace(
        "{name: h4, group: tin, capacity: {cpu: 8, memory: 32 GiB}, areas: {rack: r2}}",
        &format!("name: h4\n  capacity: {{memory: 32 GiB}}\n  areas: {{rack: r2}}\n  {levels}"),
    );
    assert_eq!(mistake(&own), "line 15: host 'h4': memory: levels have to be in order: reserve <= start <= place");
}

/// Checks that the example in docs/cluster-file.md is a valid file.
#[test]
fn the_reference_is_right() {
    let text = include_str!("../../../../docs/cluster-file.md");
    let file = text.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(read(file).unwrap().compile().unwrap().clashes, []);
}

/// A file with most of what a file can have.
const ALL: &str = "
guests:
- {name: a, host: h1, size: {cpu: 2, memory: 8 GiB}, load: {cpu: 50}, tags: [w], tenant: t, owners: [h1, h2],
   preferred: [h2, h1]}
- {name: b, host: h2, size: {cpu: 2, memory: 8 GiB}, tags: [w], availability_set: s, near: [h3], dirty: 10 MB/s}
- {name: c, host: h4, size: {memory: 1 TiB}, properties: {os: a}, availability_set: s, optimize: false}
rules:
- apart: {name: r1, of: {tag: w}, force: hard}
- spread: {name: r2, of: {tag: w}, level: rack, areas_min: 2, weight: 30}
- needs: {name: r3, of: {guests: [a]}, near: {guests: [c]}, level: rack}
- match: {name: r4, property: os, relation: must, group: gold}
- among: {name: r5, of: {tenant: t}, within: [{group: gold}, {hosts: [h3]}]}
weights: {load: 3}
";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Checks that any changed file is read or refused.
    #[test]
    fn no_file_panics(edits in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..4, "[ -~\n\
        ]{0,3}"), 1..5)) {
        let mut text: Vec<char> = format!("{HOSTS}{ALL}").chars().collect();
        for (at, gone, put) in edits {
            let at = at.index(text.len());
            let end = (at + gone).min(text.len());
            text.splice(at..end, put.chars());
        }
        let text: String = text.into_iter().collect();
        if let Ok(compiled) = read(&text).and_then(|file| file.compile()) {
            let problem = &compiled.problem;
            check(&compiled, &problem.initial, &History::default(), 0);
            if !problem.guests.is_empty() {
                crate::explain::explain(&compiled, &problem.initial, 0);
            }
        }
    }
}

/// Guests of two kinds, without rules.
const TWO_KINDS: &str = "guests:
- {name: a1, host: h1, size: {cpu: 1}, tags: [a]}
- {name: a2, host: h2, size: {cpu: 1}, tags: [a]}
- {name: b1, host: h1, size: {cpu: 1}, tags: [b]}
- {name: b2, host: h3, size: {cpu: 1}, tags: [b]}
";

fn of_two_kinds(rest: &str) -> String {
    format!("{TWO_KINDS}{rest}")
}

#[test]
fn groups_are_apart_on_hosts_and_in_areas() {
    let rule = |rest: &str| {
        complaints_of(&made(&of_two_kinds(&format!(
            "rules:\n- apart: {{name: r, of: {{tag: a}}, from: {{tag: b}}{rest}}}\n"
        ))))
    };
    assert_eq!(rule(", force: hard"), ["'a1' shares 'h1' with 'b1' and is to be apart from it"]);
    assert_eq!(rule(", level: rack"), ["'a1', 'a2' share rack 'r1' with 'b1' and are to be apart from it"]);
    let compiled =
        made(&of_two_kinds("rules:\n- apart: {name: r, of: {tag: a}, from: {tag: b}, weight: 7, level: rack}\n"));
    // Two guests of one kind and one of the other: two are too many.
    assert_eq!(judge(&compiled.problem, &compiled.problem.initial).cost.rules, 14_000_000);
}

#[test]
fn a_soft_need_costs() {
    let compiled =
        made(&of_two_kinds("rules:\n- needs: {name: r, of: {tag: a}, near: {tag: b}, force: soft, weight: 3}\n"));
    let verdict = judge(&compiled.problem, &compiled.problem.initial);
    assert_eq!((verdict.hard.len(), verdict.cost.rules), (0, 3_000_000));
    let (check, _) = check(&compiled, &compiled.problem.initial, &History::default(), 0);
    assert_eq!((check.complaints[0].hard, check.complaints[0].gravity), (false, 3_000_000));
}

#[test]
fn guests_are_spread_evenly_where_they_may_be() {
    let rule = |guests: &str, skew: u32| {
        let rule =
            format!("rules:\n- spread: {{name: r, of: {{tag: a}}, level: rack, skew_max: {skew}, force: hard}}\n");
        complaints_of(&made(&format!("{}{rule}", TWO_KINDS.replace("tags: [a]", guests))))
    };
    let uneven = "of 'a1', 'a2' up to 2 are in one area of level 'rack' and 0 in another, which is more than 1 apart";
    assert_eq!(rule("tags: [a]", 1), [uneven]);
    assert_eq!(rule("tags: [a]", 2), [""; 0]);
    // An area where none of them may be does not count.
    assert_eq!(rule("tags: [a], owners: [h1, h2]", 0), [""; 0]);
}

#[test]
fn what_new_rules_cannot_mean_is_told() {
    let rule = |rule: &str| mistake(&format!("{HOSTS}{}", of_two_kinds(&format!("rules:\n- {rule}\n"))));
    for (text, what) in [
        (
            "apart: {name: r, of: {tag: a}, from: {guests: [a1, b1]}}",
            "'a1' is in 'of' and in 'from': take it out of one",
        ),
        ("apart: {name: r, of: {tag: a}, level: rack}", "there is a level without 'from'"),
        (
            "apart: {name: r, of: {tag: a}, from: {tag: b}, level: rock}",
            "there is no level 'rock'; did you mean 'rack'?",
        ),
        ("spread: {name: r, of: {tag: a}, level: rack}", "say over how many areas: areas_min, or how evenly: skew_max"),
        ("spread: {name: r, of: {tag: a}, level: rack, areas_min: 0}", "areas_min is 0, which nothing can break"),
        ("needs: {name: r, of: {tag: a}, near: {tag: b}, weight: 3}", "it is hard, so that it has no weight"),
    ] {
        let told = rule(text);
        assert!(told.contains(what), "{told}");
    }
    for failures in ["0", "4"] {
        let told = mistake(&format!("{HOSTS}survive: {{failures: {failures}}}\n"));
        assert!(told.contains(&format!("survive: failures is {failures}: write 1 or more")), "{told}");
    }
}

#[test]
fn groups_that_can_never_be_apart_or_even_clash() {
    let rules = |rules: &[&str]| {
        let lines: String = rules.iter().map(|rule| format!("- {rule}\n")).collect();
        clashes(&of_two_kinds(&format!("rules:\n{lines}")))
    };
    let apart = "apart: {name: r, of: {tag: a}, from: {tag: b}, force: hard}";
    assert_eq!(
        rules(&[apart, "together: {name: t, of: {guests: [a1, b2]}, force: hard}"]),
        ["rule 'r' + rule 't': 'a1', 'b2' have to be on one host and apart"]
    );
    let owners = "owners: {name: o, of: {guests: [a1, b1]}, within: {hosts: [h2]}}";
    assert_eq!(rules(&[apart, owners]), ["rule 'r' + rule 'o': 'a1', 'b1' may only be in 'h2', and are apart there"]);
    assert_eq!(rules(&["apart: {name: r, of: {tag: a}, from: {tag: b}}", owners]), [""; 0], "a soft one does not");
    let even = "spread: {name: e, of: {guests: [a1, a2, b1]}, level: rack, skew_max: 0, force: hard}";
    assert_eq!(
        rules(&[even]),
        ["rule 'e': 'a1', 'a2', 'b1' can never be spread over the areas of level 'rack' with less than a skew of 1"]
    );
    // If one member can be nowhere, one is left, and that is not what is wrong.
    let even = "spread: {name: e, of: {tag: a}, level: rack, skew_max: 0, force: hard}";
    let nowhere = ["h1", "h2"]
        .map(|host| format!("owners: {{name: o-{host}, of: {{guests: [a1]}}, within: {{hosts: [{host}]}}}}"));
    assert_eq!(
        rules(&[even, &nowhere[0], &nowhere[1]]),
        ["rule 'o-h1' + rule 'o-h2': together they leave no host for 'a1'"]
    );
}

#[test]
fn failures_are_told() {
    let guests = "guests:
- {name: large, host: h1, size: {cpu: 6}}
- {name: other, host: h2, size: {cpu: 4}}
- {name: third, host: h3, size: {cpu: 4}}
- {name: last, host: h4, size: {cpu: 4}}
";
    let compiled = made(&format!("{guests}survive: {{failures: 1}}\n"));
    let (found, _) = check(&compiled, &compiled.problem.initial, &History::default(), 0);
    let failures: Vec<(&str, &str)> = found.complaints.iter().map(|of| (of.key.as_str(), of.what.as_str())).collect();
    assert_eq!(
        failures,
        [("survive: h1", "if 'h1' fails, no other host has room for 'large', or its rules allow none")]
    );
    assert!(!found.is_valid());
    let survived = found.survived.unwrap();
    assert_eq!((survived.sets, survived.tried, survived.survived, survived.impossible), (4, 4, 3, None));
    let soft = made(&format!("{guests}survive: {{failures: 1, force: soft, weight: 9}}\n"));
    let (found, _) = check(&soft, &soft.problem.initial, &History::default(), 0);
    assert_eq!((found.is_valid(), found.complaints[0].gravity), (true, 9_000_000));
}
