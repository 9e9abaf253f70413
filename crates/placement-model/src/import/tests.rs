//! Small files of other programs, as these write them.

use proptest::prelude::*;

use super::*;
use skein_placement::problem::{HostId, NOWHERE};
use skein_placement::verdict::judge;

const RESOURCES: &str = r#"[
{"id":"node/pve1","type":"node","node":"pve1","status":"online","maxcpu":16,"cpu":0.1,"maxmem":68719476736,"mem":1},
{"id":"node/pve2","type":"node","node":"pve2","status":"online","maxcpu":16,"maxmem":68719476736},
{"id":"node/pve3","type":"node","node":"pve3","status":"offline"},
{"id":"qemu/100","type":"qemu","vmid":100,"name":"web1","node":"pve1","status":"running","maxcpu":4,"cpu":0.5,
 "maxmem":8589934592,"mem":2147483648,"template":0,"tags":"plb_anti_affinity_web;prod","pool":"shop"},
{"id":"qemu/101","type":"qemu","vmid":101,"name":"web2","node":"pve1","status":"running","maxcpu":4,"cpu":0.25,
 "maxmem":8589934592,"template":0,"tags":"plb_anti_affinity_web"},
{"id":"lxc/102","type":"lxc","vmid":102,"name":"dns","node":"pve2","status":"running","maxcpu":1,"cpu":0,
 "maxmem":536870912,"template":0,"tags":"plb_pin_pve2;plb_pin_old;plb_ignore;plb_manual"},
{"id":"qemu/103","type":"qemu","vmid":103,"name":"dns","node":"pve2","status":"running","maxcpu":2,"maxmem":1073741824},
{"id":"qemu/900","type":"qemu","vmid":900,"name":"base","node":"pve1","status":"stopped","maxmem":1,"template":1},
{"id":"storage/pve1/local","type":"storage","node":"pve1","status":"available"}]"#;

const RULES: &str = "\
node-affinity: pinned
\tnodes pve1:2,pve2:1
\tresources vm:100,vm:103
\tstrict 1

node-affinity: liked
\tcomment rather there
\tnodes pve2
\tresources ct:102,vm:900

resource-affinity: apart
\taffinity negative
\tresources vm:100,vm:101

resource-affinity: near
\taffinity positive
\tdisable
\tresources vm:100,vm:103

resource-affinity: alone
\taffinity positive
\tresources vm:100
";

const HBAL: &str = "\
one|uuid-1|preferred|
two|uuid-2|last_resort|

n1|65536|1024|40000|409600|300000|16|N|uuid-1|1
n2|65536|1024|40000|409600|300000|16|M|uuid-1
n3|65536|0|65536|409600|409600|8|N|uuid-2|1|power:a
n4|?|?|?|?|?|?|Y|uuid-2|1

dns1|4096|51200|2|running|Y|n1||rbd|service:dns,foo|1
dns2|4096|51200|2|ERROR_down|N|n1||rbd|service:dns|1
db|8192|51200|4|running|Y|n1|n2|drbd||1
log|1024|51200|1|running|Y|n3||plain||1
old|1024|51200|1|ADMIN_down|Y|n3||plain||1

htools:iextags:service
htools:nlocation:power

|128,1,1024,1,1,1|128,1,1024,1,1,1;32768,8,1048576,16,8,12|drbd,plain|8.0|32.0
one|128,1,1024,1,1,1|128,1,1024,1,1,1;32768,8,1048576,16,8,12|drbd,plain|8.0|32.0
two|128,1,1024,1,1,1|128,1,1024,1,1,1;32768,8,1048576,16,8,12|drbd,plain|8.0|32.0
";

fn proxmox(files: proxmox::Files) -> Imported {
    proxmox::read(proxmox::Files { resources: RESOURCES, ..files }).unwrap()
}

fn has_word(imported: &Imported, part: &str) -> bool {
    imported.words.iter().any(|word| word.contains(part))
}

#[track_caller]
fn says(imported: &Imported, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(has_word(imported, part), "{part}\n{:#?}", imported.words));
}

#[test]
fn proxmox_with_proxlbs_tags() {
    let imported = proxmox(proxmox::Files::default());
    let compiled = cluster::read(&imported.cluster).unwrap().compile().unwrap();
    let names = &compiled.names;
    assert_eq!(
        (&names.hosts[..], &names.guests[..]),
        (&["pve1", "pve2", "pve3"].map(String::from)[..], &["web1", "web2", "ct:102", "vm:103"].map(String::from)[..])
    );
    // Cores are counted as they are used, in thousandths; memory is in MiB.
    assert_eq!(compiled.problem.guests[0].demand, [2000, 8192]);
    assert_eq!(compiled.problem.hosts[0].capacity, [16_000, 65_536]);
    let owners = |guest: u32| (0..3).filter(|host| compiled.problem.may_own(guest, *host)).collect::<Vec<HostId>>();
    assert_eq!([owners(0), owners(2)], [vec![0, 1], vec![1]], "one is pinned, and the third host is off");
    let verdict = judge(&compiled.problem, &compiled.problem.initial);
    assert!(verdict.is_valid() && verdict.soft.len() == 1, "{verdict:?}");
    says(
        &imported,
        &[
            "guests that do not run, and templates, are left out: 'base'",
            "containers are stopped to be moved, and count as if they were not: 'ct:102'",
            "pools have no counterpart: 'shop'",
            "resources of type 'storage' have no counterpart: 1 of them",
            "'ct:102' is pinned to 'old', which is no node",
            "the tag 'plb_manual' of 'ct:102' has no counterpart",
            "2 guests are called 'dns': they have their IDs as names, 'ct:102', 'vm:103'",
        ],
    );
    let answer = format!("{{\"data\": {RESOURCES}}}");
    assert_eq!(proxmox::read(proxmox::Files { resources: &answer, ..Default::default() }).unwrap(), imported);
}

#[test]
fn proxmox_with_rules() {
    let imported = proxmox(proxmox::Files { ha_rules: Some(RULES), ..Default::default() });
    let rules: Vec<&str> = imported.cluster.lines().skip_while(|line| *line != "rules:").skip(1).collect();
    assert_eq!(
        rules,
        [
            "- apart: {name: plb_anti_affinity_web, of: {guests: [web1, web2]}, force: soft}",
            "- owners: {name: pinned, of: {guests: [\"vm:103\", web1]}, within: {hosts: [pve1, pve2]}}",
            "- preferred: {name: pinned-preferred, of: {guests: [\"vm:103\", web1]}, within: {hosts: [pve1, pve2]}}",
            "- preferred: {name: liked, of: {guests: [\"ct:102\"]}, within: {hosts: [pve2]}}",
            "- apart: {name: apart, of: {guests: [web1, web2]}, force: hard}",
        ]
    );
    says(
        &imported,
        &[
            "HA rule 'liked' is about guests that are left out: 'vm:900'",
            "HA rule 'near' is disabled",
            "HA rule 'alone' is about fewer than two guests",
        ],
    );
    assert!(imported.hard_left_out.is_empty(), "{:?}", imported.hard_left_out);
}

/// The same rules as [`RULES`], as `PVE::API2::HA::Rules` returns them.
const RULES_JSON: &str = r#" [
{"digest":"6fb8","nodes":"pve1:2,pve2:1","order":1,"resources":"vm:100,vm:103","rule":"pinned","strict":1,
 "type":"node-affinity"},
{"comment":"rather there","digest":"6fb8","nodes":"pve2","order":2,"resources":"ct:102,vm:900","rule":"liked",
 "type":"node-affinity"},
{"affinity":"negative","digest":"6fb8","order":3,"resources":"vm:100,vm:101","rule":"apart",
 "type":"resource-affinity"},
{"affinity":"positive","digest":"6fb8","disable":1,"order":4,"resources":"vm:100,vm:103","rule":"near",
 "type":"resource-affinity"},
{"affinity":"positive","digest":"6fb8","order":5,"resources":"vm:100","rule":"alone","type":"resource-affinity"}]
"#;

#[test]
fn proxmox_with_rules_as_its_api_answers() {
    let read = |rules: &str| proxmox(proxmox::Files { ha_rules: Some(rules), ..Default::default() });
    let imported = read(RULES);
    assert_eq!(read(RULES_JSON), imported);
    assert_eq!(read(&format!("{{\"data\":{RULES_JSON}}}")), imported);
    for (from, to) in [(r#""strict":1"#, r#""strict":true"#), (r#""disable":1"#, r#""disable":"1""#)] {
        assert_eq!(read(&RULES_JSON.replace(from, to)), imported);
    }
    // Both values are as if the key were missing.
    let soft = read(&RULES_JSON.replace(r#""strict":1"#, r#""strict":0"#));
    assert!(
        soft.cluster.contains("- preferred: {name: pinned, of:") && !soft.cluster.contains("owners: {name: pinned")
    );
    assert!(read(&RULES_JSON.replace(r#""disable":1"#, r#""disable":0"#)).cluster.contains("- together: {name: near,"));
    let errors = r#""errors":{"resources":["rule is ineffective"]}"#;
    let told = read(&RULES_JSON.replace(r#""disable":1"#, errors));
    says(&told, &["Proxmox VE says that HA rule 'near' is wrong", "rule is ineffective"]);
    let groups =
        r#"[{"digest":"1","group":"front","nodes":"pve2:1,pve1:2","nofailback":1,"restricted":1,"type":"group"}]"#;
    let resources = r#"[{"digest":"1","group":"front","max_restart":2,"sid":"vm:100","state":"started","type":"vm"}]"#;
    let files = |groups, resources| proxmox::Files { ha_groups: groups, ha_resources: resources, ..Default::default() };
    assert_eq!(
        proxmox(files(Some(groups), Some(resources))),
        proxmox(files(
            Some("group: front\n\tnodes pve2:1,pve1:2\n\trestricted 1\n\tnofailback 1\n"),
            Some("vm: 100\n\tgroup front\n\tmax_restart 2\n")
        ))
    );
}

#[test]
fn what_may_be_hard_and_is_not_taken_over_is_told_apart() {
    let left_out = |files: proxmox::Files| proxmox(files).hard_left_out;
    let rules = |rules: &str| left_out(proxmox::Files { ha_rules: Some(rules), ..Default::default() });
    assert_eq!(rules(RULES), [""; 0]);
    assert_eq!(
        rules("time-affinity: night\n\tresources vm:100\n"),
        ["HA rule 'night' is of a kind that is not understood ('time-affinity')"]
    );
    assert_eq!(
        rules(&RULES.replace("negative", "sideways")),
        ["HA rule 'apart' has neither affinity 'positive' nor 'negative'"]
    );
    assert_eq!(
        rules(&RULES.replace("nodes pve1:2,pve2:1", "nodes pve8")),
        ["HA rule 'pinned' is strict and about no node"]
    );
    assert_eq!(rules("group: front\n\tnodes pve1\n").len(), 1);
    let groups = |groups: Option<&str>| {
        left_out(proxmox::Files {
            ha_groups: groups,
            ha_resources: Some("vm: 100\n\tgroup front\n"),
            ..Default::default()
        })
    };
    assert_eq!(groups(None), ["HA group 'front' of 'vm:100': give --ha-groups"]);
    assert_eq!(groups(Some("")), [""; 0]);
    assert_eq!(groups(Some(RULES)).len(), 5);
    // hbal obeys the tags only if nodes have such tags.
    let hbal = |from: &str, to: &str| hbal::read(&HBAL.replace(from, to)).unwrap().hard_left_out;
    assert_eq!(hbal("", ""), [""; 0]);
    assert_eq!(hbal("htools:nlocation:power", "htools:migration:hv"), [""; 0]);
    assert!(
        hbal("htools:nlocation:power", "htools:migration:power")[0].starts_with("the cluster's tag 'htools:migration:")
    );
}

#[test]
fn proxmox_with_groups() {
    let groups =
        "group: front\n\tnodes pve2:1,pve1:2\n\trestricted 1\n\tnofailback 1\n\ngroup: any\n\tnodes pve1,pve2,pve9\n";
    let resources =
        "vm: 100\n\tgroup front\n\tstate started\n\tmax_restart 2\n\nct: 102\n\tgroup any\n\nvm: 103\n\tgroup gone\n";
    let files = proxmox::Files { ha_groups: Some(groups), ha_resources: Some(resources), ..Default::default() };
    let imported = proxmox(files);
    for rule in [
        "- owners: {name: ha-group-front, of: {guests: [web1]}, within: {hosts: [pve1, pve2]}}\n",
        "- preferred: {name: ha-group-front-preferred, of: {guests: [web1]}, within: {hosts: [pve1, pve2]}}\n",
        "- preferred: {name: ha-group-any, of: {guests: [\"ct:102\"]}, within: {hosts: [pve1, pve2]}}\n",
    ] {
        assert!(imported.cluster.contains(rule), "{rule}{}", imported.cluster);
    }
    says(
        &imported,
        &[
            "'nofailback' of HA group 'front'",
            "'max_restart' of HA resource 'vm:100'",
            "names 'pve9', which is no node",
            "nodes of the same priority",
            "HA resources are in group 'gone', of which there is none: 'vm:103'",
        ],
    );
}

#[test]
fn hbals_text() {
    let imported = hbal::read(HBAL).unwrap();
    let compiled = cluster::read(&imported.cluster).unwrap().compile().unwrap();
    assert_eq!(compiled.names.guests, ["dns1", "dns2", "db", "log"]);
    // 16 cores, of which each carries 8 vCPUs, and 1 GiB that the node uses itself.
    assert_eq!(compiled.problem.hosts[0].capacity, [128_000, 64_512]);
    let owners = |guest: u32| (0..4).filter(|host| compiled.problem.may_own(guest, *host)).collect::<Vec<HostId>>();
    assert_eq!([owners(0), owners(2), owners(3)], [vec![0, 1], vec![0, 1], vec![2]]);
    assert_eq!(compiled.problem.hosts[2].capacity, [64_000, 65_536]);
    let verdict = judge(&compiled.problem, &compiled.problem.initial);
    assert_eq!(verdict.hard.len(), 1, "dns1 and dns2 have a tag that keeps them apart: {verdict:?}");
    assert!(!compiled.problem.initial.contains(&NOWHERE));
    says(
        &imported,
        &[
            "group 'two' is 'last_resort'",
            "instances that do not run are left out: 'old'",
            "instances on drbd stay on their two nodes",
            "instances with local disks stay where they are: 'log'",
            "'auto_balance: N' has no counterpart: 'dns2'",
            "the cluster's tag 'htools:nlocation:power' has no counterpart",
            "tags of nodes have no counterpart: those of 'n3'",
        ],
    );
}

/// Checks that each node carries as much as the policy of its group says.
#[test]
fn hbals_ratios_are_of_groups() {
    let cores = |from: &str, to: &str| {
        let imported = hbal::read(&HBAL.replace(from, to)).unwrap();
        let compiled = cluster::read(&imported.cluster).unwrap().compile().unwrap();
        let cores = [0, 2].map(|host: usize| compiled.problem.hosts[host].capacity[0]);
        (cores, has_word(&imported, "the vCPU ratio of group 'one' is 8, and 'overcommit' is"))
    };
    let of_two = "two|128,1,1024,1,1,1|128,1,1024,1,1,1;32768,8,1048576,16,8,12|drbd,plain|";
    assert_eq!(cores("", ""), ([128_000, 64_000], false));
    assert_eq!(cores(&format!("{of_two}8.0"), &format!("{of_two}2.5")), ([128_000, 20_000], true));
    assert_eq!(cores(&format!("{of_two}8.0"), &format!("{of_two}0.5")), ([128_000, 4_000], true));
    // A group without a line of its own has the cluster's ratio, and a cluster without one has Ganeti's default.
    assert_eq!(cores(&format!("{of_two}8.0|32.0\n"), ""), ([128_000, 64_000], false));
    let all = &HBAL[HBAL.find("\n|128").unwrap() + 1..];
    assert_eq!(cores(all, ""), ([64_000, 32_000], false));
}

#[test]
fn what_is_wrong_has_its_line() {
    let hbal = |from: &str, to: &str| hbal::read(&HBAL.replace(from, to)).unwrap_err().to_string();
    assert_eq!(hbal("n1|65536", "n1|x"), "line 4: a node's memory is 'x', which is no whole number");
    assert_eq!(
        hbal("|2|running|Y|n1||rbd|service:dns,foo", "|2|running|Y|n9||rbd|service:dns,foo"),
        "line 9: instance 'dns1' is on node 'n9', of which there is no line"
    );
    assert_eq!(hbal("ERROR_down", "asleep"), "line 10: the status of instance 'dns2' is 'asleep', which there is not");
    assert_eq!(hbal("two|128", "three|128"), "line 20: a policy is of group 'three', of which there is no line");
    assert!(hbal("|drbd,plain|8.0|", "|8.0|").starts_with("line 18: it is no policy that Ganeti writes"));
    assert!(hbal("\n\n", "\n").ends_with("it has 1 sections, which empty lines divide, instead of 4 or 5"));
    let rules = |text: &str| {
        let files = proxmox::Files { resources: RESOURCES, ha_rules: Some(text), ..Default::default() };
        let (file, error) = proxmox::read(files).unwrap_err();
        format!("{file}: {error}")
    };
    let end = "give /etc/pve/ha/rules.cfg, or what `pvesh get /cluster/ha/rules --output-format json` prints";
    for (text, what) in [
        ("\n\tnodes a\n", "line 2: a value stands before the first 'TYPE: ID'"),
        ("nodes\n", "line 1: it is no 'TYPE: ID', nor a value below one"),
        // The output of `pvesh` for people, and YAML.
        ("┌─────────┬──────┐\n│ rule    │ type │\n", "line 1: it is no 'TYPE: ID', nor a value below one"),
        ("- affinity: negative\n  rule: apart\n", "line 1: it is no 'TYPE: ID' with one word for each"),
        ("\"rule\":\"apart\",\n", "line 1: it is no 'TYPE: ID' with one word for each"),
        ("{}", "it is a JSON object and no list"),
        ("[1]", "entry 1 is no object"),
        (r#"[{"type":"node-affinity"}]"#, "entry 1 has no text 'rule'"),
        (r#"[{"rule":"a"}]"#, "entry 1 has no text 'type'"),
        (r#"[{"rule":"a b","type":"node-affinity"}]"#, "entry 1 has a 'type' or 'rule' that is no word"),
        (r#"[{"rule":"a","type":"x","nodes":["b"]}]"#, "entry 1 has 'nodes', which is neither text nor a number"),
    ] {
        assert_eq!(rules(text), format!("HA rules: {what}: {end}"), "{text}");
    }
    assert!(rules(&RULES_JSON[..100]).starts_with("HA rules: it is no JSON (EOF while parsing"));
    let resources =
        |text: &str| proxmox::read(proxmox::Files { resources: text, ..Default::default() }).unwrap_err().1.to_string();
    assert!(resources("{}").starts_with("it is not what `pvesh get /cluster/resources"));
    assert!(resources("[]").starts_with("there is no resource of type 'node'"));
}

/// Returns a text in which some bytes are changed or missing.
fn mutated(text: &'static str) -> impl Strategy<Value = String> {
    prop::collection::vec((0..text.len(), any::<u8>(), 0..4usize), 1..8).prop_map(move |changes| {
        let mut bytes = text.as_bytes().to_vec();
        for (at, byte, how) in changes {
            let at = at.min(bytes.len().saturating_sub(1));
            match how {
                0 => bytes.truncate(at + 1),
                1 if bytes.len() > 1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, byte),
                _ => bytes[at] = byte,
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn check(result: Result<Imported, ImportError>) {
    match result {
        Ok(imported) => drop(cluster::read(&imported.cluster).unwrap().compile().unwrap()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

proptest! {
    /// Checks that any text is imported as a cluster that can be read, or is refused with a reason.
    #[test]
    fn nothing_makes_it_panic(
        text in any::<String>(),
        hbal in mutated(HBAL),
        resources in mutated(RESOURCES),
        rules in mutated(RULES),
        json in mutated(RULES_JSON),
    ) {
        check(hbal::read(&text));
        check(hbal::read(&hbal));
        let read = |files| check(proxmox::read(files).map_err(|(_, error)| error));
        read(proxmox::Files { resources: &text, ..Default::default() });
        read(proxmox::Files { resources: &resources, ..Default::default() });
        let all = Some(&rules[..]);
        read(proxmox::Files { resources: RESOURCES, ha_rules: all, ha_groups: all, ha_resources: all });
        read(proxmox::Files { resources: RESOURCES, ha_rules: Some(&text), ..Default::default() });
        let all = Some(&json[..]);
        read(proxmox::Files { resources: RESOURCES, ha_rules: all, ha_groups: all, ha_resources: all });
    }
}
