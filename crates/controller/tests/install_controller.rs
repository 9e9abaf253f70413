//! `make install-controller` installs the program with its unit, pages and completions, and takes them away again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn install(goal: &str, staging: &Path) {
    let mut script = Command::new(Path::new(REPOSITORY).join("scripts/install.sh"));
    script.args([goal, "controller"]).env("DESTDIR", staging).env_remove("PREFIX");
    let ran = script.env("BINARY", env!("CARGO_BIN_EXE_skein-controller")).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

fn files(below: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(below).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => drop(found.insert(entry.path())),
        }
    }
    found
}

#[test]
fn it_comes_and_goes_and_touches_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("usr/share/man/man1");
    std::fs::create_dir_all(&man).unwrap();
    // A page of skein's own.
    let other = man.join("skein-agent.1");
    std::fs::write(&other, "x").unwrap();
    install("install", dir.path());
    let there = files(dir.path());
    for file in [
        "usr/bin/skein-controller",
        "usr/lib/systemd/system/skein-controller.service",
        "usr/lib/sysusers.d/skein-controller.conf",
        "usr/share/man/man1/skein-controller-init.1",
        "usr/share/bash-completion/completions/skein-controller",
    ] {
        assert!(there.contains(&dir.path().join(file)), "{file} of {there:?}");
    }
    assert!(there.contains(&other));
    install("uninstall", dir.path());
    assert_eq!(files(dir.path()), BTreeSet::from([other]));
}
