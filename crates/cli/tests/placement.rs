//! Tests `skein placement`: the program itself on small files.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;

/// A cluster in which `web1` and `web2` share a host, and `db` and `batch` overload another.
const CLUSTER: &str = "\
resources:
- {name: memory, unit: bytes}
hosts:
- {name: h1, capacity: {memory: 64 GiB}, areas: {rack: r1}}
- {name: h2, capacity: {memory: 64 GiB}, areas: {rack: r2}}
- {name: h3, capacity: {memory: 64 GiB}, areas: {rack: r2}}
guests:
- {name: web1, host: h1, size: {memory: 16 GiB}, tags: [web], dirty: 50 MB/s}
- {name: web2, host: h1, size: {memory: 16 GiB}, tags: [web], dirty: 50 MB/s}
- {name: batch, host: h2, size: {memory: 20 GiB}}
- {name: big, host: h3, size: {memory: 40 GiB}, optimize: false}
- {name: db, host: h2, size: {memory: 48 GiB}, owners: [h2, h3]}
rules:
- apart: {name: web-apart, of: {tag: web}, force: hard}
";

struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    #[track_caller]
    fn exits(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "out: {}\nerr: {}", self.out, self.err);
        self
    }

    #[track_caller]
    fn says(self, part: &str) -> Ran {
        assert!(self.out.contains(part), "no {part:?} in\nout: {}\nerr: {}", self.out, self.err);
        self
    }

    #[track_caller]
    fn complains(self, part: &str) -> Ran {
        assert!(self.err.contains(part), "no {part:?} in\nerr: {}\nout: {}", self.err, self.out);
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

/// A directory with files.
struct Desk(TempDir);

impl Desk {
    fn new() -> Desk {
        let desk = Desk(tempfile::tempdir().unwrap());
        desk.write("cluster.yaml", CLUSTER);
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
        command.arg("placement").args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        let output = self.command(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        assert!(!err.contains("panicked"), "{args:?}: {err}");
        Ran { code: output.status.code().unwrap_or(-1), out, err }
    }
}

const SOLVE: [&str; 7] = ["solve", "--cluster", "cluster.yaml", "--steps", "20000", "--threads", "2"];

#[test]
fn a_cluster_is_checked_explained_solved_and_scheduled() {
    let desk = Desk::new();
    desk.run(&["check", "--cluster", "cluster.yaml"])
        .exits(3)
        .says("broken: memory of 'h2': 68 GiB used of 64 GiB, 4 GiB too much\n")
        .says("broken: 'web1', 'web2' share 'h1' and are to be apart [rule 'web-apart']\n");
    desk.run(&["explain", "--cluster", "cluster.yaml", "db"])
        .exits(0)
        .says("no: 'h1' is not among the possible owners of 'db'")
        .says("what helps: move 'batch' from 'h2' to ");
    let solved = desk.run(&[&SOLVE[..], &["--out", "placement.json"]].concat()).exits(0);
    let solved = solved.says("valid                       no       yes\n").says("\nthen: nothing is broken\n");
    assert!(solved.err.is_empty(), "{}", solved.err);
    let placement: Value = serde_json::from_str(&desk.read("placement.json")).unwrap();
    assert_eq!((&placement["placement"]["db"], &placement["placement"]["big"]), (&"h2".into(), &"h3".into()));
    let told = desk.run(&["schedule", "--cluster", "cluster.yaml", "--solution", "placement.json"]).exits(0);
    told.says("'batch' moves from 'h2' to ").says("\n2 steps: ").says(" simulated, ");
}

#[test]
fn who_is_nowhere_is_brought_back_by_few_moves() {
    let desk = Desk::new();
    desk.write("cluster.yaml", CLUSTER.replace("- {name: db, host: h2,", "- {name: db,"));
    let solved = desk.run(&[&SOLVE[..], &["--repair-only", "--out", "p.json"]].concat()).exits(0);
    solved
        .says("  guests on no host         1        0\n")
        .says("moves                       0        2\n")
        .says("\nplace 'db' on 'h2': it was on no host");
    let args = ["schedule", "--cluster", "cluster.yaml", "--solution", "p.json"];
    desk.run(&args).exits(0).says("  room        'db' starts on 'h2'\n");
}

#[test]
fn programs_get_json() {
    let desk = Desk::new();
    let check = desk.run(&["check", "--cluster", "cluster.yaml", "--json"]).exits(3).json();
    assert_eq!((&check["complaints"][0]["hosts"][0], &check["clashes"]), (&"h2".into(), &Value::Array(vec![])));
    let explained = desk.run(&["explain", "--cluster", "cluster.yaml", "db", "--json"]).exits(0).json();
    assert_eq!((&explained["guest"], &explained["hosts"][0]["accepts"]), (&"db".into(), &false.into()));
    let solved = desk.run(&[&SOLVE[..], &["--json", "--out", "p.json"]].concat()).exits(0).json();
    assert_eq!((&solved["initial"]["valid"], &solved["initial"]["breaches"]["overload"]), (&false.into(), &1.into()));
    assert_eq!((&solved["found"]["valid"], &solved["placement"]["db"]), (&true.into(), &"h2".into()));
    assert_eq!(solved["moves_min"], serde_json::json!({"moves": 2, "placements": 0}));
    let moved = solved["moved"].as_array().unwrap().len();
    let args = ["schedule", "--cluster", "cluster.yaml", "--solution", "p.json", "--json", "--out", "plan.json"];
    let plan = desk.run(&args).exits(0).json();
    assert_eq!(plan["steps"].as_array().unwrap().len(), moved);
    assert_eq!(plan, serde_json::from_str::<Value>(&desk.read("plan.json")).unwrap());
}

#[test]
fn steps_give_the_same_again() {
    let desk = Desk::new();
    let solve = |out: &str| desk.run(&[&SOLVE[..], &["--out", out]].concat()).exits(0).out;
    let text = |out: &str| -> String {
        solve(out).lines().filter(|line| !line.starts_with("searched")).map(|line| line.to_owned() + "\n").collect()
    };
    assert_eq!(text("a"), text("b"));
    assert_eq!(desk.read("a"), desk.read("b"));
}

#[test]
fn since_when_it_is_broken_is_kept() {
    let desk = Desk::new();
    let check = || desk.run(&["check", "--cluster", "cluster.yaml", "--history", "since.json"]);
    check().exits(3).says(" UTC (");
    let mut written: Value = serde_json::from_str(&desk.read("since.json")).unwrap();
    written["since"].as_object_mut().unwrap().values_mut().for_each(|since| *since = 1_700_000_000.into());
    desk.write("since.json", written.to_string());
    check().exits(3).says("broken since 2023-11-14 22:13:20 UTC (");
    desk.write("cluster.yaml", CLUSTER.replace("force: hard", "weight: 5"));
    // An empty file, as `mktemp` makes it.
    desk.write("since.json", "");
    check().exits(3).says("not as it should be since ").says("memory of 'h2': 68 GiB used of 64 GiB, 4 GiB too much");
    for other in ["[]", "{}", r#"{"stars": 5}"#] {
        desk.write("since.json", other);
        check().exits(1).complains("since.json is not what --history writes: remove it");
        assert_eq!(desk.read("since.json"), other);
    }
    desk.run(&["check", "--cluster", "cluster.yaml", "--history", "cluster.yaml"]).exits(1).complains("is read");
}

#[test]
fn rules_that_clash_are_told() {
    let desk = Desk::new();
    desk.write("cluster.yaml", format!("{CLUSTER}- together: {{name: web-together, of: {{tag: web}}, force: hard}}\n"));
    let told = desk.run(&["check", "--cluster", "cluster.yaml"]).exits(3);
    told.says("clash: ").says("rule 'web-together'");
    let clashes = desk.run(&["check", "--cluster", "cluster.yaml", "--json"]).json()["clashes"].clone();
    assert_eq!(clashes.as_array().map(Vec::len), Some(1));
    // A soft rule that has no effect is reported, too.
    let cluster = CLUSTER.replace("web2, host: h1", "web2, host: h2").replace("batch, host: h2", "batch, host: h1");
    let check = |rule: &str| {
        desk.write("cluster.yaml", format!("{cluster}{rule}"));
        desk.run(&["check", "--cluster", "cluster.yaml"])
    };
    check("").exits(0).says("nothing is broken\n");
    check("- match: {name: disks, property: disk, relation: should}\n").exits(3).says("the property 'disk' is not set");
}

#[test]
fn what_cannot_be_is_told_so() {
    let desk = Desk::new();
    let spread = "- spread: {name: racks, of: {tag: web}, level: rack, areas_min: 4294967295, force: hard}\n";
    desk.write("cluster.yaml", format!("{CLUSTER}{spread}"));
    desk.run(&SOLVE).exits(3).says("seed 1; something is always broken: a rule asks for more areas than there are");
    let solved = desk.run(&[&SOLVE[..], &["--json"]].concat()).exits(3).json();
    assert_eq!(solved["moves_min"], Value::Null);
}

#[test]
fn the_clock_is_kept_and_can_be_stopped() {
    let desk = Desk::new();
    let begin = Instant::now();
    let ran = desk.run(&["solve", "--cluster", "cluster.yaml", "--seconds", "1"]).exits(0);
    let took = ran.out.split("searched, ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    assert!(took.is_some_and(|seconds| seconds >= 1.0), "{}", ran.out);
    let args = ["solve", "--cluster", "cluster.yaml", "--seconds", "1000", "--out", "p.json"];
    let mut child = desk.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Waits for a line of the progress, which comes after ten seconds: the program catches signals by then, and has
    // found something valid. The lines stay open until the program has ended, which may write more.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("  valid  ")), "nothing valid is found");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("ended early, "), "{output:?}");
    assert_eq!(output.status.code(), Some(0));
    assert!(desk.read("p.json").contains("\"db\": \"h2\""));
    assert!(begin.elapsed() < Duration::from_secs(600));
}

#[test]
fn a_wrong_file_gets_its_place_and_reason() {
    let desk = Desk::new();
    let check = |text: &str| {
        desk.write("bad.yaml", text);
        desk.run(&["check", "--cluster", "bad.yaml"]).exits(1)
    };
    check(&CLUSTER.replace("owners: [h2, h3]", "owner: [h2]"))
        .complains("skein: bad.yaml: line 12: there is no field 'owner'; did you mean 'owners'?\n");
    check(&CLUSTER.replace("48 GiB", "48 lbs")).complains("bad.yaml: line 12: guest 'db': memory: ");
    check(&CLUSTER.replace("name: web1,", r#"name: "a\nnothing is broken\n","#))
        .complains(r"skein: bad.yaml: line 8: guest 'a\nnothing is broken\n': the name 'a\nn")
        .complains(" has a control character: remove it\n");
    check(&CLUSTER.replace("owners:", r#""\e[2J":"#)).complains("there is no field '\u{fffd}[2J'");
    desk.write("p.json", r#"{"placement": {"a\nb": null}}"#);
    let args = ["schedule", "--cluster", "cluster.yaml", "--solution", "p.json"];
    desk.run(&args).exits(1).complains("skein: p.json: there is no guest 'a; b' in cluster.yaml");
    check("").complains("bad.yaml: it is empty");
    check("hosts: [").complains("bad.yaml: line 1: ");
    desk.run(&["check", "--cluster", "none.yaml"]).exits(1).complains("cannot read none.yaml: No such file");
    desk.run(&["check", "--cluster", "."]).exits(1).complains("cannot read .: Is a directory");
    desk.run(&["explain", "--cluster", "cluster.yaml", "web"])
        .exits(1)
        .complains("skein: there is no guest 'web' in cluster.yaml; did you mean 'web1'?\n");
}

#[test]
fn placements_of_another_cluster_are_refused() {
    let desk = Desk::new();
    let schedule = |solution: &str| {
        desk.write("p.json", solution);
        desk.run(&["schedule", "--cluster", "cluster.yaml", "--solution", "p.json"]).exits(1)
    };
    schedule("{}").complains("p.json is not what `skein placement solve --cluster FILE --out` writes");
    schedule(r#"{"placement": {"web3": "h1"}}"#).complains("there is no guest 'web3' in cluster.yaml; did you mean");
    schedule(r#"{"placement": {"web1": "h11"}}"#).complains("p.json: there is no host 'h11' in cluster.yaml; did you");
    schedule(r#"{"placement": {"web1": "h1", "web1": "h2"}}"#)
        .complains(": 'web1' is there twice: remove one at line 1");
    schedule(r#"{"placement": {"web1": "h1"}}"#).complains("p.json: guest 'web2' of cluster.yaml is missing");
    desk.write("to.yaml", CLUSTER.replace("h3", "h4"));
    let to = ["schedule", "--cluster", "cluster.yaml", "--to", "to.yaml"];
    desk.run(&to).exits(1).complains("to.yaml: host 'h3' of cluster.yaml is missing");
    desk.write("to.yaml", CLUSTER.replace("batch, host: h2", "batch, host: h1"));
    desk.run(&to).exits(3).says("'batch' moves from 'h2' to 'h1'").says("broken in the end: 'web1', 'web2' share 'h1'");
    desk.write("to.yaml", CLUSTER.replace("batch, host: h2", "batch, host: h3"));
    desk.write("cluster.yaml", CLUSTER.replace("40 GiB", "50 GiB"));
    desk.run(&to).exits(3).says("left undone: 'batch' stays on 'h2' and is to be on 'h3': ");
}

#[test]
fn wrong_arguments_are_told() {
    let desk = Desk::new();
    desk.run(&["solve"]).exits(2).complains("--cluster <FILE>");
    desk.run(&["solve", "--cluster", "a", "b"]).exits(2);
    desk.run(&["solve", "--cluster", "a", "--seconds", "1", "--steps", "1"]).exits(2);
    desk.run(&["schedule", "--cluster", "cluster.yaml"]).exits(2).complains("--to <FILE>|--solution <FILE>");
    desk.run(&["schedule", "--to", "cluster.yaml"]).exits(2).complains("--cluster <FILE>");
}

#[test]
fn what_has_moved_to_the_lab_is_said_to_be_there() {
    let desk = Desk::new();
    for (args, what) in [
        (&["bench", "--list"][..], "bench"),
        (&["replay"], "replay"),
        (&["solve", "--format", "roadef", "model", "initial"], "solve --format"),
        (&["schedule", "--format=ucc15", "random.1.json"], "schedule --format"),
    ] {
        let says = format!("skein: `skein placement {what}` is `skein-lab placement {what}` now, a program of its own");
        assert_eq!(desk.run(args).exits(2).complains(&says).out, "");
    }
    desk.run(&["import", "--format", "hbal", "none"]).exits(1).complains("cannot read none");
}

#[test]
fn there_are_manual_pages_and_completions() {
    let desk = Desk::new();
    let skein =
        |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_skein")).args(args).current_dir(desk.0.path()).output();
    assert!(skein(&["man", "--out", "."]).unwrap().status.success());
    assert!(desk.read("skein-placement-solve.1").contains("skein placement solve"));
    let script = String::from_utf8(skein(&["completions", "bash"]).unwrap().stdout).unwrap();
    assert!(script.contains("skein__subcmd__placement") && script.contains("--history"));
}

#[test]
fn help_shows_how() {
    let desk = Desk::new();
    for command in ["solve", "check", "explain", "schedule", "import"] {
        desk.run(&[command, "--help"]).exits(0).says("Examples:\n  skein placement ");
        assert!(page("placement.md").contains(&format!("\n    skein placement {command} ")), "{command}");
    }
    desk.run(&["solve", "--help"]).exits(0).says("moves_min (null: something is").says("microseconds");
}

/// Returns a page of the documentation.
fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)).unwrap()
}

/// Returns what a page has between a line and the end of its block.
fn block<'a>(page: &'a str, begin: &str) -> &'a str {
    page.split(begin).nth(1).unwrap().split("```").next().unwrap().trim_start_matches('\n')
}

#[test]
fn the_documentations_walk_through_is_true() {
    let page = page("placement.md");
    let desk = Desk::new();
    desk.write("cluster.yaml", block(&page, "```yaml\n"));
    let check = desk.run(&["check", "--cluster", "cluster.yaml"]).exits(3).out;
    let told = block(&page, "$ skein placement check --cluster cluster.yaml --history since.json");
    let since = " since 2026-11-24 03:27:05 UTC (65 s)";
    assert_eq!(check, told.replace(since, ""));
    let explained = desk.run(&["explain", "--cluster", "cluster.yaml", "db"]).exits(0).out;
    assert_eq!(explained, block(&page, "$ skein placement explain --cluster cluster.yaml db"));
    let solved = desk.run(&[&SOLVE[..], &["--out", "placement.json"]].concat()).exits(0);
    let told = block(&page, "--seconds 2 --out placement.json");
    let row = told.lines().find(|line| line.starts_with("cost")).unwrap();
    solved.says(row).says("then: nothing is broken");
    let args = ["schedule", "--cluster", "cluster.yaml", "--solution", "placement.json"];
    desk.run(&args)
        .exits(0)
        .says("room        'db' moves from 'h3' to 'h2'\n3 steps: 58.4 s planned, 58.4 s simulated, ");
}

#[test]
fn the_references_example_is_told_solved_and_scheduled() {
    let page = page("cluster-file.md");
    let desk = Desk::new();
    desk.write("cluster.yaml", block(&page, "```yaml\n"));
    let check = desk.run(&["check", "--cluster", "cluster.yaml"]).exits(3).out;
    assert_eq!(check, block(&page, "$ skein placement check --cluster cluster.yaml"));
    let explained = desk.run(&["explain", "--cluster", "cluster.yaml", "db2"]).exits(0).out;
    assert_eq!(explained, block(&page, "$ skein placement explain --cluster cluster.yaml db2"));
    desk.run(&[&SOLVE[..], &["--out", "placement.json"]].concat()).exits(0).says("then: nothing is broken");
    let told = desk.run(&["schedule", "--cluster", "cluster.yaml", "--solution", "placement.json"]).exits(0);
    assert!(!told.out.contains("left undone"), "{}", told.out);
}

#[test]
fn the_references_groups_are_told_solved_and_scheduled() {
    let page = page("cluster-file.md");
    let desk = Desk::new();
    desk.write("groups.yaml", block(&page, "```yaml\n# groups.yaml\n"));
    let check = desk.run(&["check", "--cluster", "groups.yaml"]).exits(3).out;
    assert_eq!(check, block(&page, "$ skein placement check --cluster groups.yaml"));
    let solve = ["solve", "--cluster", "groups.yaml", "--steps", "20000", "--threads", "1", "--out", "placement.json"];
    desk.run(&solve).exits(0).says("then: any host may fail: guests find room in 4 of 4 cases\nnothing is broken\n");
    let told = desk.run(&["schedule", "--cluster", "groups.yaml", "--solution", "placement.json"]).exits(0);
    told.says("2 steps: ");
    let solved = desk.run(&[&solve[..7], &["--json"]].concat()).exits(0).json();
    assert_eq!((&solved["survived"]["survived"], &solved["survived"]["impossible"]), (&4.into(), &Value::Null));
    // 160 GiB are used, and 128 are left if two hosts fail.
    let more = desk.read("groups.yaml").replace("44 GiB", "60 GiB").replace("failures: 1", "failures: 2");
    desk.write("groups.yaml", more.replace("30 GiB", "52 GiB"));
    let told = desk.run(&["check", "--cluster", "groups.yaml"]).exits(3);
    told.says("; no placement survives all: 160 GiB of memory are used by all, and 128 GiB are left then at worst\n");
    desk.write("groups.yaml", more.replace("failures: 2", "failures: 4"));
    desk.run(&["check", "--cluster", "groups.yaml"]).exits(1).complains("survive: failures is 4: write 1 or more, and");
}

/// Checks that a missed `survive` is broken like any other hard rule: in words, JSON and the exit code.
#[test]
fn what_is_not_survived_is_not_valid() {
    let desk = Desk::new();
    let args = ["solve", "--cluster", "n1.yaml", "--steps", "2000", "--threads", "1"];
    let solve = |hosts: &[&str], force: &str| {
        let host = |name: &&str| format!("- {{name: {name}, capacity: {{memory: 64 GiB}}}}\n");
        let guest = |host: &&str| format!("- {{name: on-{host}, host: {host}, size: {{memory: 40 GiB}}}}\n");
        let (all, guests): (String, String) = (hosts.iter().map(host).collect(), hosts.iter().map(guest).collect());
        let survive = format!("survive: {{failures: 1, force: {force}}}\n");
        let resources = "resources: [{name: memory, unit: bytes}]\n";
        desk.write("n1.yaml", format!("{resources}hosts:\n{all}guests:\n{guests}{survive}"));
        let json = desk.run(&[&args[..], &["--json"]].concat());
        let told = desk.run(&args).exits(json.code);
        (json.json(), told)
    };
    // By the sum of free memory each of the three could fail, but no failure is survived: no other host has enough
    // free.
    let (json, told) = solve(&["a", "b", "c"], "hard");
    told.exits(3)
        .says("valid                    no       no\n  failures not survived  3        3\n")
        .says("; to break nothing would take, if it can be, 1 move and 0 placements at least\n")
        .says("\nbroken: if 'a' fails, no other host has room for 'on-a', or its rules allow none [survive]\n")
        .says("\nwhat is broken has no price; all else costs ");
    for which in ["initial", "found"] {
        assert_eq!((&json[which]["valid"], &json[which]["breaches"]["survive"]), (&false.into(), &3.into()));
    }
    assert_eq!(json["moves_min"], serde_json::json!({"moves": 1, "placements": 0}));
    let (json, told) = solve(&["a", "b"], "hard");
    let why =
        "no placement survives all failures: 80 GiB of memory are used by all, and 64 GiB are left then at worst\n";
    told.exits(3).says(&format!("; something is always broken: {why}"));
    assert_eq!(json["moves_min"], Value::Null);
    let (json, told) = solve(&["a", "b"], "soft");
    told.exits(0).says("valid  ").says("; to break nothing takes 0 moves").says("not as it should be: if 'a' fails, ");
    assert_eq!((&json["found"]["valid"], &json["found"]["breaches"]["survive"]), (&true.into(), &0.into()));
}

/// Makes guests of two kinds that are to be apart, with a rule for each pair. Both kinds are on both hosts.
#[test]
fn rules_are_exchanged_on_the_way_and_that_is_told() {
    let desk = Desk::new();
    let guest = |name: &str, host: &str| format!("- {{name: {name}, host: {host}, size: {{memory: 4 GiB}}}}\n");
    let guests = [("x1", "a"), ("y1", "a"), ("x2", "b"), ("y2", "b")].map(|(name, host)| guest(name, host)).concat();
    let pairs = [("x1", "y1"), ("x1", "y2"), ("x2", "y1"), ("x2", "y2")];
    let rule = |(x, y): (&str, &str)| format!("- apart: {{name: {x}-{y}, of: {{guests: [{x}, {y}]}}, force: hard}}\n");
    let hosts = "resources: [{name: memory, unit: bytes}]\nhosts:\n- {name: a, capacity: {memory: 64 GiB}}\n\
                 - {name: b, capacity: {memory: 64 GiB}}\n";
    desk.write("crossed.yaml", format!("{hosts}guests:\n{guests}rules:\n{}", pairs.map(rule).concat()));
    let placement = r#"{"placement": {"x1": "a", "x2": "a", "y1": "b", "y2": "b"}}"#;
    desk.write("placement.json", placement);
    let args = ["schedule", "--cluster", "crossed.yaml", "--solution", "placement.json"];
    let told = desk.run(&args).exits(0).out;
    let page = page("placement.md");
    assert_eq!(told, block(&page, "$ skein placement schedule --cluster crossed.yaml --solution placement.json"));
    let json = desk.run(&[&args[..], &["--json"]].concat()).exits(0).json();
    assert_eq!(json["broken_on_the_way"][0]["rule"], "rule 'x2-y1'");
    // If nothing is broken before, nothing may be broken on the way.
    desk.write("crossed.yaml", format!("{hosts}guests:\n{guests}rules:\n{}{}", rule(pairs[1]), rule(pairs[2])));
    let told = desk.run(&args).exits(3).says("left undone: ").says("would not hold on the way");
    told.says("what helps: make rule 'x2-y1' soft until all are where they are to be");
}

#[test]
fn what_others_have_is_imported() {
    let desk = Desk::new();
    let node = |name: &str| {
        format!(r#"{{"type": "node", "node": "{name}", "status": "online", "maxcpu": 8, "maxmem": 34359738368}}"#)
    };
    let vm = |vmid: u32, tags: &str| {
        format!(
            r#"{{"type": "qemu", "vmid": {vmid}, "name": "vm{vmid}", "node": "n1", "status": "running", "maxcpu": 4,
            "cpu": 0.5, "maxmem": 8589934592, "tags": "{tags}"}}"#
        )
    };
    let all = [node("n1"), node("n2"), vm(100, "plb_anti_affinity_a"), vm(101, "plb_anti_affinity_a;plb_other")];
    desk.write("resources.json", format!("[{}]", all.join(",")));
    desk.write("rules.cfg", "resource-affinity: apart\n\taffinity negative\n\tresources vm:100,vm:101\n");
    let import = ["import", "--format", "proxmox", "resources.json"];
    let told = desk.run(&[&import[..], &["--ha-rules", "rules.cfg", "--out", "imported.yaml"]].concat()).exits(0);
    assert_eq!(told.out, "");
    told.complains("skein: the tag 'plb_other' of 'vm101' has no counterpart\n");
    desk.run(&["check", "--cluster", "imported.yaml"]).exits(3).says("'vm100', 'vm101' share 'n1'");
    let solve = ["solve", "--cluster", "imported.yaml", "--steps", "2000", "--threads", "1"];
    desk.run(&solve).exits(0).says("then: nothing is broken");
    let json = desk.run(&[&import[..], &["--json"]].concat()).exits(0).json();
    assert!(json["cluster"].as_str().is_some_and(|text| text.starts_with("resources:\n")));
    assert!(json["without_counterpart"].as_array().is_some_and(|words| words.len() >= 2));
    assert_eq!(json["hard_left_out"], Value::Array(vec![]));
    let rules = |text: &str| {
        desk.write("rules.cfg", text);
        desk.run(&[&import[..], &["--ha-rules", "rules.cfg", "--out", "imported.yaml"]].concat())
    };
    // As `pvesh get /cluster/ha/rules --output-format json` prints it.
    let text = desk.read("imported.yaml");
    rules(
        r#"[{"affinity":"negative","order":1,"resources":"vm:100,vm:101","rule":"apart","type":"resource-affinity"}]"#,
    )
    .exits(0);
    assert_eq!(desk.read("imported.yaml"), text);
    rules("rule-to-come: apart\n\tresources vm:100,vm:101\n")
        .exits(3)
        .complains("skein: left out, and may be hard: HA rule 'apart' is of a kind that is not understood");
    assert!(desk.read("imported.yaml").contains("name: vm100"));
    desk.write("rules.cfg", "nothing\n");
    desk.run(&[&import[..], &["--ha-rules", "rules.cfg"]].concat()).exits(1).complains("skein: rules.cfg: line 1: ");
    desk.run(&["import", "--format", "hbal", "resources.json"]).exits(1).complains("resources.json: line ");
    desk.run(&[&import[..], &["--out", "resources.json"]].concat()).exits(1).complains("is read");
    // Two guests of the same name get different names here, and a line says which.
    let same = format!("[{}]", all.join(",")).replace("\"vm100\"", "\"web\"").replace("\"vm101\"", "\"web\"");
    desk.write("resources.json", same);
    desk.run(&[&import[..], &["--out", "imported.yaml"]].concat())
        .exits(0)
        .complains("skein: 2 guests are called 'web': they have their IDs as names, 'vm:100', 'vm:101'\n");
    desk.run(&["explain", "--cluster", "imported.yaml", "vm:100"]).exits(0).says("'vm:100' is on 'n1'");
    desk.run(&["explain", "--cluster", "imported.yaml", "web"]).exits(1).complains(
        "there is no guest 'web' in imported.yaml; it is the alias of 'vm:100', 'vm:101': give the name of one\n",
    );
}

/// Returns a text in which some bytes are changed or missing.
fn mutated(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec((0..text.len(), any::<u8>(), 0..4usize), 1..8).prop_map(move |changes| {
        let mut bytes = text.as_bytes().to_vec();
        for (at, byte, how) in changes {
            let at = at.min(bytes.len().saturating_sub(1));
            match how {
                0 => bytes.truncate(at + 1),
                1 if bytes.len() > 1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, byte),
                _ => bytes[at] = b'0' + byte % 75,
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that any file is solved, or that the program says what is wrong with it.
    #[test]
    fn no_file_makes_it_panic(cluster in mutated(CLUSTER)) {
        let desk = Desk::new();
        desk.write("cluster.yaml", cluster);
        for args in [
            &["check", "--cluster", "cluster.yaml"][..],
            &["solve", "--cluster", "cluster.yaml", "--steps", "100", "--threads", "1"],
        ] {
            let ran = desk.run(args);
            prop_assert!([0, 1, 3].contains(&ran.code), "{}: {}", ran.code, ran.err);
            prop_assert_eq!(ran.code == 1, ran.err.starts_with("skein: "), "{}", ran.err);
        }
    }
}
