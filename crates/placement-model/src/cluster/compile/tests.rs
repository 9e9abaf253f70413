//! Compiles a cluster that was never a file.

use super::super::model::{Cluster, Guest, Host, Levels, Resource, Template};
use super::super::read;
use super::super::rule::{Apart, Force, Guests, Hosts, Rule, Spread, Survive, Within};
use super::*;

fn amounts<const N: usize>(of: [(&str, &str); N]) -> Amounts {
    of.into_iter().map(|(name, amount)| (name.to_owned(), Amount::parse(amount).unwrap())).collect()
}

fn apart(name: &str, tag: &str) -> Apart {
    Apart {
        name: name.to_owned(),
        of: Guests::Tag(tag.to_owned()),
        from: None,
        level: None,
        force: Force::Hard,
        weight: None,
    }
}

/// Makes a cluster that agents could report.
fn live() -> Cluster {
    let host = |name: &str, rack: &str| Host {
        areas: [("rack".to_owned(), rack.to_owned())].into(),
        ..Host::new(name, amounts([("cpu", "8 cores"), ("memory", "32 GiB")]))
    };
    let guest = |name: &str, on: Option<&str>| Guest {
        host: on.map(str::to_owned),
        tags: vec!["web".to_owned()],
        ..Guest::new(name, amounts([("cpu", "2"), ("memory", "4 GiB")]))
    };
    let spread = Spread {
        name: "wide".to_owned(),
        of: Guests::Tag("web".to_owned()),
        level: "rack".to_owned(),
        areas_min: Some(2),
        skew_max: None,
        force: Force::Soft,
        weight: Some(30.0),
    };
    Cluster {
        hosts: vec![host("h1", "r1"), host("h2", "r1"), host("h3", "r2")],
        guests: vec![guest("a", Some("h1")), guest("b", Some("h1")), guest("c", None)],
        rules: vec![Rule::Apart(apart("one", "web")), Rule::Spread(spread)],
        survive: Some(Survive { failures: 1, force: Force::Hard, weight: None }),
        ..Cluster::new(vec![Resource::new("cpu", "cores"), Resource::new("memory", "bytes")])
    }
}

/// The same cluster as a file.
const FILE: &str = "
resources:
- {name: cpu, unit: cores}
- {name: memory, unit: bytes}
hosts:
- {name: h1, capacity: {cpu: 8 cores, memory: 32 GiB}, areas: {rack: r1}}
- {name: h2, capacity: {cpu: 8 cores, memory: 32 GiB}, areas: {rack: r1}}
- {name: h3, capacity: {cpu: 8 cores, memory: 32 GiB}, areas: {rack: r2}}
guests:
- {name: a, host: h1, size: {cpu: 2, memory: 4 GiB}, tags: [web]}
- {name: b, host: h1, size: {cpu: 2, memory: 4 GiB}, tags: [web]}
- {name: c, size: {cpu: 2, memory: 4 GiB}, tags: [web]}
rules:
- apart: {name: one, of: {tag: web}, force: hard}
- spread: {name: wide, of: {tag: web}, level: rack, areas_min: 2, weight: 30}
survive: {failures: 1}
";

fn mistake(change: impl FnOnce(&mut Cluster)) -> Mistake {
    let mut cluster = live();
    change(&mut cluster);
    match compile(&cluster) {
        Err(CompileError::Mistake(mistake)) => mistake,
        other => panic!("it should be refused: {other:?}"),
    }
}

#[test]
fn a_live_cluster_is_as_good_as_a_file() {
    let (live, file) = (compile(&live()).unwrap(), read(FILE).unwrap().compile().unwrap());
    assert_eq!(live.problem, file.problem);
    assert_eq!(live.names, file.names);
    assert_eq!((live.traffic, live.bandwidth), (file.traffic, file.bandwidth));
    assert_eq!((live.survive, live.clashes), (file.survive, file.clashes));
}

/// Checks that each mistake has its object, the part of the object, and words that name no line.
#[test]
fn mistakes_name_their_objects() {
    let of = |kind, index, name: &str| Object::new(kind, index, name);
    let parsed = |amount: &str| Amount::parse(amount).unwrap();
    type Change = Box<dyn FnOnce(&mut Cluster)>;
    let cases: Vec<(Change, Object, &[&str], &str)> = vec![
        (
            Box::new(|cluster| cluster.guests[1].host = Some("h9".to_owned())),
            of(ObjectKind::Guest, 1, "b"),
            &[],
            "guest 'b': there is no host 'h9'",
        ),
        (
            Box::new(move |cluster| _ = cluster.guests[2].size.insert("memory".to_owned(), parsed("64"))),
            of(ObjectKind::Guest, 2, "c"),
            &["size", "memory"],
            "guest 'c': memory: '64' has no unit: write '64 GiB'",
        ),
        (
            Box::new(move |cluster| {
                let text = "{name: small, size: {cpu: 1 GiB}}";
                cluster.templates = vec![serde_saphyr::from_str::<Template>(text).unwrap()];
                cluster.guests[0].template = Some("small".to_owned());
                cluster.guests[0].size.remove("cpu");
            }),
            of(ObjectKind::Template, 0, "small"),
            &["size", "cpu"],
            "guest 'a': cpu: '1 GiB' has no unit of it",
        ),
        (
            Box::new(|cluster| cluster.guests[2].name = "a".to_owned()),
            of(ObjectKind::Guest, 2, "a"),
            &[],
            "there are two guests 'a': rename one",
        ),
        (
            Box::new(|cluster| cluster.guests[2].name = "a\nb".to_owned()),
            of(ObjectKind::Guest, 2, "a\nb"),
            &[],
            r"guest 'a\nb': the name 'a\nb' has a control character: remove it",
        ),
        (
            Box::new(|cluster| cluster.hosts[1].areas.clear()),
            of(ObjectKind::Host, 1, "h2"),
            &[],
            "host 'h2': its rack is missing",
        ),
        (
            Box::new(move |cluster| _ = cluster.hosts[2].capacity.insert("cpu".to_owned(), parsed("8 GiB"))),
            of(ObjectKind::Host, 2, "h3"),
            &["capacity", "cpu"],
            "host 'h3': cpu: '8 GiB' has no unit of it",
        ),
        (
            Box::new(move |cluster| {
                cluster.resources[1].levels =
                    Levels { reserve: Some(parsed("20 %")), start: Some(parsed("10 %")), place: None }
            }),
            of(ObjectKind::Resource, 1, "memory"),
            &["levels", "start"],
            "resource 'memory', on 'h1': levels have to be in order",
        ),
        (
            Box::new(|cluster| cluster.resources[0].overcommit = f64::NAN),
            of(ObjectKind::Resource, 0, "cpu"),
            &[],
            "resource 'cpu': overcommit is NaN",
        ),
        (
            Box::new(|cluster| cluster.rules.push(Rule::Apart(Apart { weight: Some(3.0), ..apart("two", "web") }))),
            of(ObjectKind::Rule("apart"), 2, "two"),
            &[],
            "rule 'two': it is hard, so that it has no weight",
        ),
        (
            Box::new(|cluster| {
                let weight = Some(f64::NEG_INFINITY);
                cluster.rules.push(Rule::Apart(Apart { force: Force::Soft, weight, ..apart("two", "web") }))
            }),
            of(ObjectKind::Rule("apart"), 2, "two"),
            &["weight"],
            "rule 'two': its weight is -inf",
        ),
        (
            Box::new(|cluster| {
                let (of, within) = (Guests::Tag("web".to_owned()), Hosts::Group("gold".to_owned()));
                cluster.rules.insert(0, Rule::Owners(Within { name: "own".to_owned(), of, within }))
            }),
            of(ObjectKind::Rule("owners"), 0, "own"),
            &[],
            "rule 'own': there is no host group 'gold'",
        ),
        (
            Box::new(|cluster| cluster.weights.moves = -1.0),
            Object::only(ObjectKind::Weights),
            &["moves"],
            "weights.moves is -1",
        ),
        (
            Box::new(move |cluster| cluster.bandwidth = parsed("0")),
            Object::only(ObjectKind::Bandwidth),
            &[],
            "bandwidth: it is 0",
        ),
        (
            Box::new(|cluster| cluster.survive = Some(Survive { failures: 3, force: Force::Hard, weight: None })),
            Object::only(ObjectKind::Survive),
            &[],
            "survive: failures is 3: write 1 or more, and fewer than the 3 hosts",
        ),
    ];
    for (change, object, part, told) in cases {
        let found = mistake(change);
        assert_eq!(
            (&found.object, &found.part[..]),
            (&object, &part.iter().map(|of| (*of).to_owned()).collect::<Vec<_>>()[..])
        );
        assert!(found.to_string().starts_with(told), "{found}");
    }
}
