//! Tests `skein-lab placement`: the program itself on small files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;

/// Two machines, each with room for both processes. The first is above its safety capacity.
const MODEL: &str = "1\n0 1\n2\n0 0 10 1 0 1\n0 0 10 10 1 0\n2\n0 0\n0 0\n2\n0 4 1\n1 4 1\n0\n1 1 1\n";
const ASSIGNMENT: &str = "0 0\n";

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
        desk.write("model", MODEL);
        desk.write("initial", ASSIGNMENT);
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
        let mut command = Command::new(env!("CARGO_BIN_EXE_skein-lab"));
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

#[test]
fn the_challenges_own_files_are_solved() {
    let desk = Desk::new();
    let args =
        ["solve", "--format", "roadef", "model", "initial", "--steps", "5000", "--seed", "3", "--out", "solution"];
    // 8 - 1 units are above what is safe. Both processes move: 2 for themselves, 1 for their service, 2 for where they
    // go.
    desk.run(&args).exits(0).says("cost                 7        5\n").says("moves                0        2\n");
    assert_eq!(desk.read("solution"), "1 1\n");
    desk.run(&["solve", "--format", "roadef", "model", "solution", "--out", "model"])
        .exits(1)
        .complains("model is read");
}

#[test]
fn a_wrong_file_gets_its_place_and_reason() {
    let desk = Desk::new();
    desk.write("model.bad", MODEL.replace("10 10", "10 x"));
    let roadef = |model: &str, initial: &str| desk.run(&["solve", "--format", "roadef", model, initial]).exits(1);
    roadef("model.bad", "initial").complains("model.bad: line 5: a safety capacity is 'x', which is no whole number");
    desk.write("initial.bad", "0 2\n");
    roadef("model", "initial.bad").complains("initial.bad: line 1: ");
    desk.write("packed", b"\x1f\x8b\x08");
    roadef("packed", "initial").complains("cannot read packed: ");
    desk.write("case.json", "{\"origin\": 1}");
    desk.run(&["schedule", "--format", "ucc15", "case.json"]).exits(1).complains("case.json: line 1 column ");
    desk.run(&["solve", "--format", "btrplace", "case.json"]).exits(1).complains("case.json: line 1: ");
}

#[test]
fn wrong_arguments_are_told() {
    let desk = Desk::new();
    desk.run(&["solve"]).exits(2).complains("--format <FORMAT>");
    desk.run(&["solve", "--format", "roadef"]).exits(2);
    desk.run(&["solve", "--format", "roadef", "model"]).exits(1).complains("two files: MODEL INITIAL");
    desk.run(&["solve", "--format", "btrplace", "model", "initial"]).exits(1).complains("btrplace needs one file");
    desk.run(&["schedule", "--format", "ucc15"]).exits(2).complains("<FILE>");
    desk.run(&["bench"]).exits(2).complains("--data");
    desk.run(&["bench", "--data", "none"]).exits(1).complains("there is no directory none");
    desk.run(&["bench", "--list", "none"]).exits(1).complains("there is no case 'none'");
    desk.run(&["bench", "--list"]).exits(0).says("roadef-a");
}

#[test]
fn data_that_is_missing_is_skipped() {
    let desk = Desk::new();
    let args = ["bench", "--data", ".", "roadef-a", "roadef-b", "btrplace", "ucc15", "--json", "rows.json"];
    desk.run(&args).exits(0).says("skipped: there is no ./roadef2012");
    assert_eq!(serde_json::from_str::<Value>(&desk.read("rows.json")).unwrap().as_array().map(Vec::len), Some(4));
}

/// Plays a day in which one of two hosts is overloaded, to the policy that moves nobody and to Skein's.
#[test]
fn a_day_is_played() {
    let desk = Desk::new();
    std::fs::create_dir(desk.path("day")).unwrap();
    for (machine, used) in ["90\n", "90\n", "10\n", "10\n"].iter().enumerate() {
        desk.write(&format!("day/{machine}"), used.repeat(288));
    }
    let args = ["replay", "--planetlab", "day", "--hosts", "2", "--policy", "still", "--policy", "ours"];
    desk.run(&args).exits(0).says("DAY  POLICY  OVERLOADED").says("day  still   ");
    let rows = desk.run(&[&args[..], &["--json"]].concat()).exits(0).json();
    let of = |n: usize, name: &str| rows[n][name].clone();
    assert_eq!((of(0, "policy"), of(0, "moves"), of(0, "hosts")), ("still".into(), 0.into(), 2.into()));
    assert_eq!((of(1, "policy"), of(1, "guests"), of(1, "day")), ("ours".into(), 4.into(), "day".into()));
    desk.run(&["replay", "--planetlab", "none"]).exits(1).complains("cannot read the directory none");
}

#[test]
fn help_shows_how() {
    let desk = Desk::new();
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/placement.md")).unwrap();
    for command in ["solve", "schedule", "replay", "bench"] {
        desk.run(&[command, "--help"]).exits(0).says("Examples:\n  skein-lab placement ");
        assert!(page.contains(&format!("\n    skein-lab placement {command} ")), "{command}");
    }
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
    fn no_file_makes_it_panic(model in mutated(MODEL)) {
        let desk = Desk::new();
        desk.write("model", model);
        let ran = desk.run(&["solve", "--format", "roadef", "model", "initial", "--steps", "100", "--threads", "1"]);
        prop_assert!([0, 1, 3].contains(&ran.code), "{}: {}", ran.code, ran.err);
        prop_assert_eq!(ran.code == 1, ran.err.starts_with("skein-lab: "), "{}", ran.err);
    }
}
