//! Random small clusters, whose rules are checked by a second, naive reading, and named cases.

use std::collections::BTreeSet;
use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::cluster::tests::made;
use crate::cluster::{self, History, RuleKind};
use skein_placement::bits::Bits;
use skein_placement::dice::Dice;
use skein_placement::problem::{Group, Strength};
use skein_placement::state::State;
use skein_placement::verdict::judge;

/// A rule, as the test knows it.
enum Rule {
    Apart(Vec<usize>),
    Together(Vec<usize>),
    Spread(Vec<usize>, usize),
    Needs(Vec<usize>, Vec<usize>, bool),
    Owners(Vec<usize>, Vec<usize>),
    Among(Vec<usize>, Vec<Vec<usize>>),
    /// The guests, those they are apart from, and whether that is by rack.
    From(Vec<usize>, Vec<usize>, bool),
    Even(Vec<usize>, usize),
    /// Whether labels have to match. `false`: they must not.
    Match(bool),
}

/// A cluster, as the test knows it.
struct Case {
    text: String,
    racks: Vec<usize>,
    host_os: Vec<usize>,
    guest_os: Vec<usize>,
    cpu: Vec<usize>,
    capacity: Vec<usize>,
    rules: Vec<Rule>,
}

fn case(dice: &mut Dice) -> Case {
    let (hosts, guests) = (1 + dice.below(5), 1 + dice.below(8));
    let numbers = |dice: &mut Dice, count: usize, from: usize, below: usize| -> Vec<usize> {
        (0..count).map(|_| from + dice.below(below)).collect()
    };
    let mut case = Case {
        text: "resources: [{name: cpu}]\nhosts:\n".into(),
        racks: numbers(dice, hosts, 0, 3),
        host_os: numbers(dice, hosts, 0, 2),
        guest_os: numbers(dice, guests, 0, 2),
        cpu: numbers(dice, guests, 0, 5),
        capacity: numbers(dice, hosts, 2, 9),
        rules: Vec::new(),
    };
    for host in 0..hosts {
        let (capacity, rack, os) = (case.capacity[host], case.racks[host], case.host_os[host]);
        let line = format!(
            "- {{name: h{host}, capacity: {{cpu: {capacity}}}, areas: {{rack: r{rack}}}, properties: {{os: o{os}}}}}"
        );
        writeln!(case.text, "{line}").unwrap();
    }
    case.text += "guests:\n";
    for guest in 0..guests {
        let (cpu, os) = (case.cpu[guest], case.guest_os[guest]);
        let on = if dice.chance(0.8) { format!(", host: h{}", dice.below(hosts)) } else { String::new() };
        let line =
            format!("- {{name: g{guest}, size: {{cpu: {cpu}}}, properties: {{os: o{os}}}, memory: {guest} GiB{on}}}");
        writeln!(case.text, "{line}").unwrap();
    }
    case.text += "rules:\n";
    for n in 0..dice.below(5) {
        let some = |dice: &mut Dice, count: usize, chance: f64| -> Vec<usize> {
            let some: Vec<usize> = (0..count).filter(|_| dice.chance(chance)).collect();
            if some.is_empty() { vec![0] } else { some }
        };
        let who = some(dice, guests, 0.4);
        let of = |kind: &str, list: &[usize]| -> String {
            list.iter().map(|n| format!("{kind}{n}")).collect::<Vec<_>>().join(", ")
        };
        let (rule, text) = match dice.below(9) {
            0 => (Rule::Apart(who.clone()), "apart: {force: hard, ".to_owned()),
            1 => (Rule::Together(who.clone()), "together: {force: hard, ".to_owned()),
            2 => {
                let min = 1 + dice.below(3);
                (Rule::Spread(who.clone(), min), format!("spread: {{force: hard, level: rack, areas_min: {min}, "))
            }
            3 => {
                let (near, is_rack) = (some(dice, guests, 0.3), dice.chance(0.5));
                let text = format!(
                    "needs: {{near: {{guests: [{}]}}, level: {}, ",
                    of("g", &near),
                    if is_rack { "rack" } else { "host" }
                );
                (Rule::Needs(who.clone(), near, is_rack), text)
            }
            4 => {
                let on = some(dice, hosts, 0.6);
                let text = format!("owners: {{within: {{hosts: [{}]}}, ", of("h", &on));
                (Rule::Owners(who.clone(), on), text)
            }
            5 => {
                let sets: Vec<Vec<usize>> = (0..1 + dice.below(2)).map(|_| some(dice, hosts, 0.5)).collect();
                let within: Vec<String> = sets.iter().map(|set| format!("{{hosts: [{}]}}", of("h", set))).collect();
                let text = format!("among: {{within: [{}], ", within.join(", "));
                (Rule::Among(who.clone(), sets), text)
            }
            6 => {
                let (mut from, is_rack) = (some(dice, guests, 0.3), dice.chance(0.5));
                from.retain(|guest| !who.contains(guest));
                let text = format!(
                    "apart: {{force: hard, from: {{guests: [{}]}}, level: {}, ",
                    of("g", &from),
                    if is_rack { "rack" } else { "host" }
                );
                (Rule::From(who.clone(), from, is_rack), text)
            }
            7 => {
                let skew = dice.below(3);
                let text = format!("spread: {{force: hard, level: rack, skew_max: {skew}, ");
                (Rule::Even(who.clone(), skew), text)
            }
            _ => {
                let must = dice.chance(0.5);
                let relation = if must { "must" } else { "must-not" };
                writeln!(case.text, "- match: {{name: r{n}, property: os, relation: {relation}}}").unwrap();
                case.rules.push(Rule::Match(must));
                continue;
            }
        };
        writeln!(case.text, "- {text}name: r{n}, of: {{guests: [{}]}}}}", of("g", &who)).unwrap();
        case.rules.push(rule);
    }
    if case.rules.is_empty() {
        case.text = case.text.replace("rules:\n", "");
    }
    case
}

impl Case {
    /// Returns the names of the broken rules, read from the rules as a user would read them.
    fn broken(&self, at: &[HostId]) -> BTreeSet<String> {
        let on = |guest: &usize| (at[*guest] != NOWHERE).then_some(at[*guest] as usize);
        let rack = |guest: &usize| on(guest).map(|host| self.racks[host]);
        let mut broken = BTreeSet::new();
        for (n, rule) in self.rules.iter().enumerate() {
            let holds = match rule {
                Rule::Apart(who) => who.iter().all(|a| who.iter().all(|b| a == b || on(a).is_none() || on(a) != on(b))),
                Rule::Together(who) => who.iter().filter_map(on).collect::<BTreeSet<_>>().len() <= 1,
                Rule::Spread(who, min) => who.iter().filter_map(rack).collect::<BTreeSet<_>>().len() >= *min,
                Rule::Needs(who, near, is_rack) => who.iter().all(|a| match is_rack {
                    true => rack(a).is_none() || near.iter().any(|b| rack(a) == rack(b)),
                    false => on(a).is_none() || near.iter().any(|b| on(a) == on(b)),
                }),
                Rule::Owners(who, hosts) => who.iter().filter_map(on).all(|host| hosts.contains(&host)),
                Rule::Among(who, sets) => {
                    sets.iter().any(|set| who.iter().filter_map(on).all(|host| set.contains(&host)))
                }
                Rule::From(who, others, is_rack) => who.iter().all(|a| match is_rack {
                    true => rack(a).is_none() || others.iter().all(|b| rack(a) != rack(b)),
                    false => on(a).is_none() || others.iter().all(|b| on(a) != on(b)),
                }),
                Rule::Even(who, skew) => {
                    let open = |host: &usize| who.iter().any(|guest| self.may_be(*guest, *host));
                    let racks: BTreeSet<usize> =
                        (0..self.racks.len()).filter(open).map(|host| self.racks[host]).collect();
                    let there = |of: &usize| who.iter().filter(|guest| rack(guest) == Some(*of)).count();
                    let (most, least) = (racks.iter().map(there).max(), racks.iter().map(there).min());
                    most.unwrap_or(0) - least.unwrap_or(0) <= *skew
                }
                Rule::Match(must) => (0..at.len())
                    .all(|guest| on(&guest).is_none_or(|host| (self.guest_os[guest] == self.host_os[host]) == *must)),
            };
            if !holds {
                broken.insert(format!("rule 'r{n}'"));
            }
        }
        for (host, capacity) in self.capacity.iter().enumerate() {
            let used: usize = (0..at.len()).filter(|guest| on(guest) == Some(host)).map(|guest| self.cpu[guest]).sum();
            if used > *capacity {
                broken.insert(format!("h{host}"));
            }
        }
        broken.extend((0..at.len()).filter(|guest| on(guest).is_none()).map(|guest| format!("g{guest}")));
        broken
    }

    /// Returns whether the rules about guests and hosts allow a guest on a host.
    fn may_be(&self, guest: usize, host: usize) -> bool {
        self.rules.iter().all(|rule| match rule {
            Rule::Owners(who, hosts) => !who.contains(&guest) || hosts.contains(&host),
            Rule::Match(must) => (self.guest_os[guest] == self.host_os[host]) == *must,
            _ => true,
        })
    }
}

/// Returns the same problem without a cause on a host.
fn without(compiled: &Compiled, host: HostId, cause: Cause) -> Compiled {
    let mut without = compiled.clone();
    let (problem, names) = (&mut without.problem, &mut without.names);
    match cause {
        Cause::Capacity(row) => problem.hosts[host as usize].capacity[row] += 1_000_000,
        Cause::Rule(rule) => {
            let all: Bits = (0..problem.hosts.len() as HostId).collect();
            names.fences.iter_mut().filter(|fence| fence.rule == rule).for_each(|fence| fence.hosts = all.clone());
            let of = problem.groups.iter_mut().zip(&names.groups).filter(|(_, of)| **of == rule);
            of.for_each(|(group, _)| *group = Group::default());
        }
    }
    without
}

/// Does what a relaxation says.
fn relaxed(compiled: &Compiled, at: &mut [HostId], relaxation: &Relaxation, guest: GuestId) -> Compiled {
    let mut relaxed = compiled.clone();
    for step in &relaxation.steps {
        match *step {
            Step::Add(host, row, amount) => relaxed.problem.hosts[host as usize].capacity[row] += amount,
            Step::Move { guest, from, to } => {
                assert_eq!(at[guest as usize], from);
                at[guest as usize] = to;
            }
            Step::Widen(rule, host) => {
                let fences = relaxed.names.fences.iter_mut().zip(0..);
                fences
                    .filter(|(fence, n)| fence.rule == rule && compiled.names.fences_of[guest as usize].contains(n))
                    .for_each(|(fence, _)| fence.hosts.insert(host));
            }
            Step::Lift(rule) => {
                for (group, of) in relaxed.problem.groups.iter_mut().zip(&compiled.names.groups) {
                    if *of == rule {
                        let soft = |strength: &mut Strength| *strength = Strength::Soft(1);
                        group.apart.iter_mut().for_each(soft);
                        group.together.iter_mut().for_each(soft);
                        group.spread.iter_mut().for_each(|spread| soft(&mut spread.strength));
                        group.even.iter_mut().for_each(|even| soft(&mut even.strength));
                        group.needs.iter_mut().for_each(|need| soft(&mut need.strength));
                        group.avoids.iter_mut().for_each(|avoid| soft(&mut avoid.strength));
                        group.among.clear();
                    }
                }
            }
            Step::Open { host, .. } => {
                let names = &mut relaxed.names;
                let state = names.rules.iter().position(|rule| rule.kind == RuleKind::HostState).unwrap() as RuleId;
                names.fences.iter_mut().filter(|fence| fence.rule == state).for_each(|fence| fence.hosts.insert(host));
            }
        }
    }
    relaxed
}

fn hard(reasons: &[Reason]) -> BTreeSet<Cause> {
    reasons.iter().filter(|reason| reason.is_hard).map(|reason| reason.cause).collect()
}

fn compiled(case: &Case) -> Compiled {
    let cluster = cluster::read(&case.text).unwrap_or_else(|error| panic!("{error}\n{}", case.text));
    cluster.compile().unwrap_or_else(|error| panic!("{error}\n{}", case.text))
}

proptest! {
    /// Checks that the file's rules, as read by the test, are broken where the verdict says so, wherever guests are.
    #[test]
    fn the_verdict_is_what_a_user_would_say(seed: u64) {
        let dice = &mut Dice::new(seed);
        let case = case(dice);
        let compiled = compiled(&case);
        let hosts = case.capacity.len();
        for _ in 0..10 {
            let mut anywhere = || if dice.chance(0.1) { NOWHERE } else { dice.below(hosts) as HostId };
            let at: Vec<HostId> = case.cpu.iter().map(|_| anywhere()).collect();
            let (check, _) = cluster::check(&compiled, &at, &History::default(), 0);
            let hard = check.complaints.iter().filter(|complaint| complaint.hard);
            let told: BTreeSet<String> = hard.map(|complaint| match &complaint.rule {
                Some(rule) => rule.clone(),
                None => complaint.hosts.first().unwrap_or_else(|| &complaint.guests[0]).clone(),
            }).collect();
            prop_assert_eq!(told, case.broken(&at), "{}", case.text);
        }
    }

    /// Checks that if a clash is reported, something is broken wherever guests are.
    #[test]
    fn no_assignment_solves_a_clash(seed: u64) {
        let case = case(&mut Dice::new(seed));
        let (hosts, guests) = (case.capacity.len(), case.cpu.len());
        let count = hosts.pow(guests as u32);
        if count > 3000 || compiled(&case).clashes.is_empty() {
            return Ok(());
        }
        for n in 0..count {
            let at: Vec<HostId> = (0..guests as u32).map(|guest| (n / hosts.pow(guest) % hosts) as HostId).collect();
            prop_assert!(!case.broken(&at).is_empty(), "{:?}\n{}", at, case.text);
        }
    }

    /// Checks that the rules of a clash also clash without all other rules.
    #[test]
    fn a_clash_needs_no_other_rules(seed: u64) {
        let case = case(&mut Dice::new(seed));
        for clash in compiled(&case).clashes {
            let is_named = |line: &&str| clash.rules.iter().any(|rule| line.contains(&rule.replace("rule \
                '", "name: ").replace('\'', "")));
            let (rest, rules) = case.text.split_once("rules:\n").unwrap_or((&case.text, ""));
            let kept: Vec<&str> = rules.lines().filter(is_named).collect();
            let rules = if kept.is_empty() { String::new() } else { format!("rules:\n{}", kept.join("\n")) };
            let alone = cluster::read(&format!("{rest}{rules}")).unwrap().compile().unwrap().clashes;
            prop_assert!(alone.iter().any(|other| other.todo == clash.todo), "{:?} {:?}\n{}", clash, alone, case.text);
        }
    }

    /// Checks that without its cause a reason is gone and no other is, and that without all causes the host accepts.
    #[test]
    fn reasons_are_true_and_complete(seed: u64) {
        let dice = &mut Dice::new(seed);
        let case = case(dice);
        let compiled = compiled(&case);
        let at = compiled.problem.initial.clone();
        let guest = dice.below(at.len()) as GuestId;
        let mut gone = at.clone();
        gone[guest as usize] = NOWHERE;
        let state = State::new(&compiled.problem, &gone);
        for host in 0..case.capacity.len() as HostId {
            let reasons = hard(&Placing::new(&compiled, &at, guest).against(host));
            let more = state.shift_score(guest, host).broken + Score::UNPLACED;
            prop_assert!(more <= 0 || !reasons.is_empty(), "{} more is broken on h{}\n{}", more, host, case.text);
            for cause in &reasons {
                let rest = hard(&Placing::new(&without(&compiled, host, *cause), &at, guest).against(host));
                let expected: BTreeSet<Cause> = reasons.iter().filter(|other| *other != cause).copied().collect();
                prop_assert_eq!(rest, expected, "{}", case.text);
            }
        }
    }

    /// Checks that the conflict rules out every host, and that no smaller set of causes does.
    #[test]
    fn the_conflict_is_the_smallest(seed: u64) {
        let dice = &mut Dice::new(seed);
        let case = case(dice);
        let compiled = compiled(&case);
        let at = compiled.problem.initial.clone();
        for guest in 0..at.len() as GuestId {
            let mut placing = Placing::new(&compiled, &at, guest);
            let hosts = 0..case.capacity.len() as HostId;
            let hosts: Vec<BTreeSet<Cause>> = hosts.map(|host| hard(&placing.against(host))).collect();
            let rules_out = |causes: &BTreeSet<Cause>| hosts.iter().all(|host| !host.is_disjoint(causes));
            let told = explain(&compiled, &at, guest);
            let Some(found) = conflict(&hosts) else {
                prop_assert!(told.conflict.is_none() && told.relaxations.is_empty() && told.fragmented.is_empty());
                continue;
            };
            prop_assert_eq!(told.conflict.unwrap().causes.len(), found.causes.len());
            prop_assert!(rules_out(&found.causes.iter().copied().collect()));
            let all: Vec<Cause> = hosts.iter().flatten().copied().collect::<BTreeSet<_>>().into_iter().collect();
            for some in 0u32..1 << all.len().min(12) {
                let some = (0..all.len().min(12)).filter(|n| some >> n & 1 == 1);
                let some: BTreeSet<Cause> = some.map(|n| all[n]).collect();
                prop_assert!(some.len() >= found.causes.len() || !rules_out(&some));
            }
        }
    }

    /// Checks that doing what a relaxation says leads to a host that accepts the guest, and that moves break no more.
    #[test]
    fn what_helps_helps(seed: u64) {
        let dice = &mut Dice::new(seed);
        let case = case(dice);
        let compiled = compiled(&case);
        let at = compiled.problem.initial.clone();
        for guest in 0..at.len() as GuestId {
            let told = relax(&compiled, &at, guest);
            prop_assert!(!told.is_cut_short);
            prop_assert!(told.all.windows(2).all(|two| two[0].cost <= two[1].cost));
            for relaxation in told.all {
                let mut then = at.clone();
                let relaxed = relaxed(&compiled, &mut then, &relaxation, guest);
                prop_assert!(Placing::new(&relaxed, &then, guest).accepts(relaxation.host), "{:?}\n\
                    {}", relaxation, case.text);
                if relaxation.steps.iter().all(|step| matches!(step, Step::Move { .. })) {
                    let (mut before, mut after) = (at.clone(), then);
                    before[guest as usize] = NOWHERE;
                    after[guest as usize] = relaxation.host;
                    let broken = |at: &[HostId]| judge(&compiled.problem, at).score().broken;
                    prop_assert!(broken(&after) <= broken(&before) - Score::UNPLACED, "{:?}\n\
                        {}", relaxation, case.text);
                }
            }
        }
    }
}

/// Checks that the random clusters are neither so easy nor so hopeless that the properties above say nothing.
#[test]
fn random_clusters_have_something_to_tell() {
    let (mut accepted, mut conflicts, mut large, mut moves, mut clashes) = (0, 0, 0, 0, 0);
    for seed in 0..300 {
        let compiled = compiled(&case(&mut Dice::new(seed)));
        clashes += usize::from(!compiled.clashes.is_empty());
        for guest in 0..compiled.problem.guests.len() as GuestId {
            let told = explain(&compiled, &compiled.problem.initial, guest);
            let size = told.conflict.map_or(0, |conflict| conflict.causes.len());
            accepted += usize::from(size == 0);
            conflicts += usize::from(size == 1);
            large += usize::from(size > 1);
            moves += told.relaxations.iter().filter(|told| told.steps[0].starts_with("move ")).count();
        }
    }
    let counts = [accepted, conflicts, large, moves, clashes];
    assert!(counts.iter().all(|count| *count >= 20), "{counts:?}");
}

fn explained(rest: &str, guest: &str) -> String {
    let compiled = made(rest);
    let guest = compiled.names.guest_named(guest).unwrap();
    let explanation = explain(&compiled, &compiled.problem.initial, guest);
    assert!(serde_json::to_string(&explanation).unwrap().contains("\"hosts\""));
    explanation.to_string()
}

#[test]
fn each_host_tells_all_that_speaks_against_it() {
    let text = explained(
        "guests:
- {name: db, host: h1, size: {memory: 20 GiB}, tags: [w]}
- {name: web, size: {memory: 16 GiB, cpu: 9}, tags: [w], owners: [h2, h3, h4], properties: {os: a}, preferred: [h3]}
- {name: app, host: h3}
rules:
- apart: {name: two, of: {tag: w}, force: hard}
- spread: {name: racks, of: {tag: w}, level: rack, areas_min: 2, force: hard}
- match: {name: system, property: os, relation: must-not, group: tin}
- together: {name: near, of: {guests: [web, app]}}",
        "web",
    );
    assert_eq!(
        text,
        "'web' is on no host
h1: no
  no: 'h1' is not among the possible owners of 'web'
  no: cpu: needs 9 cores, 8 cores free on 'h1', 1 core short
  no: memory: needs 16 GiB, 12 GiB free on 'h1', 4 GiB short
  no: 'db' is on 'h1': rule 'two' keeps them apart
  no: 'db' is in rack 'r1': rule 'racks' asks for 2 areas
  rather not: 'app' elsewhere: rule 'near' keeps them together
  rather not: 'h1' is not the first of the preferred owners of 'web'
h2: no
  no: cpu: needs 9 cores, 8 cores free on 'h2', 1 core short
  no: 'db' is in rack 'r1': rule 'racks' asks for 2 areas
  rather not: 'app' elsewhere: rule 'near' keeps them together
  rather not: 'h2' is not the first of the preferred owners of 'web'
h3: no
  no: the property 'os' of 'web' and of 'h3' breaks rule 'system'
  no: cpu: needs 9 cores, 8 cores free on 'h3', 1 core short
h4: no
  no: cpu: needs 9 cores, 8 cores free on 'h4', 1 core short
  rather not: 'app' elsewhere: rule 'near' keeps them together
  rather not: 'h4' is not the first of the preferred owners of 'web'
the fewest that rule out every host: cpu
what helps: add 1 core of cpu to 'h4'; it fits on 'h4' then
        or: add 1 core of cpu to 'h2', make rule 'racks' soft; it fits on 'h2' then
        or: set the property 'os' so that rule 'system' allows 'h3', add 1 core of cpu to 'h3'; it fits on 'h3' then
        or: let the possible owners of 'web' allow 'h1', add 1 core of cpu to 'h1', add 4 GiB of memory to 'h1', make \
        rule 'two' soft, make rule 'racks' soft; it fits on 'h1' then
"
    );
}

#[test]
fn small_pieces_are_told_with_what_makes_room() {
    let guest =
        |name: &str, host: &str, size: u32| format!("- {{name: {name}, host: {host}, size: {{memory: {size} GiB}}}}\n");
    let mut guests = "guests:\n- {name: new, size: {memory: 20 GiB}}\n".to_owned();
    for host in 1..=4 {
        guests += &guest(&format!("a{host}"), &format!("h{host}"), 12);
        guests += &guest(&format!("b{host}"), &format!("h{host}"), 10);
    }
    let text = explained(&guests, "new");
    assert!(
        text.contains(
            "memory: fits nowhere, though 40 GiB are free in total; it needs 20 GiB, and the largest piece is 10 GiB \
             on 'h1'; \
             to make room, move 'b1' from 'h1' to 'h"
        ),
        "{text}"
    );
}

#[test]
fn two_go_where_one_is_not_enough() {
    let compiled = made(
        "guests:
- {name: new, size: {memory: 20 GiB}, owners: [h1]}
- {name: a, host: h1, size: {memory: 8 GiB}}
- {name: b, host: h1, size: {memory: 8 GiB}}
- {name: c, host: h1, size: {memory: 8 GiB}}
- {name: d, host: h2, size: {memory: 24 GiB}}
- {name: e, host: h3, size: {memory: 24 GiB}}
- {name: f, host: h4, size: {memory: 32 GiB}}",
    );
    let found = relax(&compiled, &compiled.problem.initial, 0);
    let moves = found.all.iter().find(|found| matches!(found.steps[0], Step::Move { .. })).unwrap();
    let to: BTreeSet<HostId> = moves
        .steps
        .iter()
        .map(|step| match step {
            Step::Move { to, .. } => *to,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(to, BTreeSet::from([1, 2]));
    assert_eq!(moves, &found.all[0]);
    assert_eq!(moves.cost, 2 * compiled.problem.guests[1].move_cost);
}

#[test]
fn a_move_is_told_with_what_it_ends() {
    let compiled = made(
        "guests:
- {name: a, host: h1, size: {memory: 20 GiB}, tags: [w]}
- {name: b, host: h1, size: {memory: 10 GiB}, tags: [w]}
- {name: c, host: h2, size: {memory: 20 GiB}}
- {name: d, size: {memory: 1 GiB}}
rules:
- apart: {name: two, of: {tag: w}, force: hard}",
    );
    let why =
        |after: &[HostId], guest: GuestId| why_moved(&compiled, &compiled.problem.initial, after, guest).to_string();
    let after = [0, 2, 1, 3];
    assert_eq!(
        why(&after, 1),
        "move 'b' from 'h1' to 'h3': 'a' is on 'h1': rule 'two' keeps them apart; \
         memory: 'h1' would be 1.2 GiB beyond its start level (saves 23.9 s)"
    );
    assert_eq!(why(&after, 3), "place 'd' on 'h4': it was on no host");
    // The guest goes where the other guest was, which goes where this one was.
    let after = [0, 1, 2, 3];
    assert!(
        why(&after, 2).starts_with("move 'c' from 'h2' to 'h3': makes room for others (memory: 'h2' would be"),
        "{}",
        why(&after, 2)
    );
}

#[test]
fn who_was_lost_or_goes_along_is_told_so() {
    let text = "resources: [{name: memory, unit: bytes}]
hosts:
- {name: h1, capacity: {memory: 32 GiB}, state: offline}
- {name: h2, capacity: {memory: 32 GiB}}
- {name: h3, capacity: {memory: 32 GiB}}
guests:
- {name: mon, host: h1, size: {memory: 1 GiB}}
- {name: a, host: h2, size: {memory: 1 GiB}}
- {name: b, host: h2, size: {memory: 1 GiB}, owners: [h3]}
rules:
- together: {name: both, of: {guests: [a, b]}, force: hard}";
    let compiled = cluster::read(text).unwrap().compile().unwrap();
    let before = &compiled.problem.initial;
    let why = |guest: GuestId| why_moved(&compiled, before, &[1, 2, 2], guest);
    assert_eq!(why(0).to_string(), "place 'mon' on 'h2': its host 'h1' is offline");
    assert_eq!(
        why(1).to_string(),
        "move 'a' from 'h2' to 'h3': goes along ('b' elsewhere: rule 'both' keeps them together)"
    );
    assert!(why(1).makes_room.is_empty());
    assert!(explain(&compiled, before, 0).to_string().starts_with("'mon' is on no host: 'h1' is offline\n"));
    assert!(explain(&compiled, before, 1).to_string().starts_with("'a' is on 'h2'\n"));
}

#[test]
fn beyond_the_start_level_is_what_is_added_and_in_all() {
    // Of 100 MiB, 10 are to stay free. Other guests use 95, and this one needs 4 more.
    let text = |used: u32| {
        format!(
            "resources: [{{name: memory, unit: bytes}}]
hosts: [{{name: h1, capacity: {{memory: 100 MiB}}}}]
guests:
- {{name: a, host: h1, size: {{memory: {used} MiB}}}}
- {{name: b, size: {{memory: 4 MiB}}}}"
        )
    };
    let told = |used: u32| {
        let compiled = cluster::read(&text(used)).unwrap().compile().unwrap();
        explain(&compiled, &compiled.problem.initial, 1).hosts[0].objections.first().map(|told| told.what.clone())
    };
    assert_eq!(told(95).unwrap(), "memory: 'h1' would be 4 MiB more beyond its start level, 9 MiB in all");
    assert_eq!(told(88).unwrap(), "memory: 'h1' would be 2 MiB beyond its start level");
    assert_eq!(told(90).unwrap(), "memory: 'h1' would be 4 MiB beyond its start level");
    assert_eq!(told(86), None);
}

#[test]
fn a_guest_that_stays_may_be_let_go() {
    let told = explained(
        "guests:
- {name: ml, host: h1, size: {memory: 20 GiB}, optimize: false}
- {name: db, host: h1, size: {memory: 20 GiB}, optimize: false}",
        "ml",
    );
    assert!(told.contains("set 'optimize: true' of 'ml'; it fits on 'h2' then"), "{told}");
}

#[test]
fn who_comes_back_with_a_host_takes_room() {
    let cluster = |memory: u32, state: &str| {
        let text = format!(
            "resources: [{{name: memory, unit: bytes}}]
hosts: [{{name: h1, capacity: {{memory: {memory} GiB}}, state: {state}}}]
guests:
- {{name: a, host: h1, size: {{memory: 8 GiB}}}}
- {{name: b, size: {{memory: 6 GiB}}}}"
        );
        cluster::read(&text).unwrap().compile().unwrap()
    };
    let told = |memory: u32, state: &str| {
        let compiled = cluster(memory, state);
        explain(&compiled, &compiled.problem.initial, 1)
    };
    let helps = |memory: u32| told(memory, "offline").relaxations[0].to_string();
    let back = "bring 'h1' online ('a' comes back with it)";
    assert_eq!(helps(10), format!("{back}, add 4 GiB of memory to 'h1'; it fits on 'h1' then"));
    assert_eq!(helps(14), format!("{back}; it fits on 'h1' then"));
    // After those steps a host accepts the guest.
    assert!(told(14, "online").hosts[0].accepts && !told(13, "online").hosts[0].accepts);
    let compiled = cluster(10, "offline");
    let a = explain(&compiled, &compiled.problem.initial, 0);
    assert_eq!(a.relaxations[0].to_string(), "bring 'h1' online; it fits on 'h1' then");
}
