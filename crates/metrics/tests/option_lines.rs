//! Tests what documents have people do with an agent's options: of several lines `SKEIN_AGENT_OPTIONS=` systemd takes
//! the last, so an appended one takes the others' options away, `--watchdog` among them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE: &str = "/etc/default/skein-agent";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns what systemd makes of a variable in an environment file.
fn value(text: &str, name: &str) -> Option<String> {
    let of = |line: &str| Some(line.strip_prefix(name)?.strip_prefix('=')?.trim().trim_matches(['"', '\'']).to_owned());
    text.lines().filter_map(of).next_back()
}

#[test]
fn no_document_appends_options() {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    for path in docs.filter(|path| path.extension().is_some_and(|end| end == "md")).chain([root().join("README.md")]) {
        let text = fs::read_to_string(&path).unwrap();
        for (before, line) in text.lines().zip(text.lines().skip(1)) {
            let appends = line.contains("SKEIN_AGENT_OPTIONS=-") && line.contains(">>");
            assert!(!appends || before.contains("grep -s ^SKEIN_AGENT_OPTIONS="), "{}: {line}", path.display());
        }
    }
}

#[test]
fn the_commands_of_documents_add_to_the_options_that_are_there() {
    for (document, added) in [("failover.md", "--watchdog /dev/watchdog0"), ("operate.md", "--incoming 2")] {
        let text = fs::read_to_string(root().join("docs").join(document)).unwrap();
        let script: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("grep -qs")).take(2).collect();
        assert!(script.len() == 2 && script[1].starts_with("sed -Ei"), "{document}: {script:?}");
        for (before, options) in [
            (None, ""),
            (Some(""), ""),
            (Some("SKEIN_AGENT_OPTIONS=\n"), ""),
            (Some("SKEIN_AGENT_OPTIONS=--outgoing 3\n"), "--outgoing 3"),
            (Some("SKEIN_AGENT_OPTIONS='--outgoing 3 --nic eth1'\n"), "--outgoing 3 --nic eth1"),
            (Some("# SKEIN_AGENT_OPTIONS=-x\nSKEIN_AGENT_OPTIONS=\"--nic eth1\"\nOTHER=1\n"), "--nic eth1"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("skein-agent");
            before.iter().for_each(|before| fs::write(&file, before).unwrap());
            let script = script.join("\n").replace(FILE, file.to_str().unwrap());
            assert!(Command::new("sh").args(["-ec", &script]).status().unwrap().success(), "{script}");
            let after = fs::read_to_string(&file).unwrap();
            let found = value(&after, "SKEIN_AGENT_OPTIONS");
            assert_eq!(found.as_deref().map(str::trim), Some(format!("{added} {options}").trim()), "{before:?}");
        }
    }
}
