//! Tests of the program that need neither root nor a guest.

use std::process::{Command, Output, Stdio};

fn skein_lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skein-lab")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn it_has_its_own_manual_pages_and_completions() {
    let directory = tempfile::tempdir().unwrap();
    let man = directory.path().join("man/man1");
    let output = skein_lab(&["man", "--out", man.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output));
    for name in
        ["skein-lab.1", "skein-lab-cut.1", "skein-lab-demo.1", "skein-lab-bench-run.1", "skein-lab-placement-solve.1"]
    {
        assert!(std::fs::read_to_string(man.join(name)).unwrap().contains(".SH NAME"), "{name}");
    }
    assert!(!man.join("skein.1").exists());
    for shell in ["bash", "zsh", "fish"] {
        let output = skein_lab(&["completions", shell]);
        assert!(output.status.success(), "{}", text(&output));
        for word in ["skein-lab", "black-hole", "guest-mb", "planetlab"] {
            assert!(text(&output).contains(word), "{shell}: {word}");
        }
    }
}

/// Checks that the missing program is reported before anything is built, measured or shown.
#[test]
fn without_a_skein_it_is_said_what_to_do() {
    let missing = ["--skein", "/no/such/skein"];
    for args in [&["demo"][..], &["bench", "run", "one-nic"]] {
        let output = skein_lab(&[args, &missing].concat());
        assert!(!output.status.success());
        let says = "skein-lab: there is no program /no/such/skein, which --skein names";
        assert!(text(&output).contains(says), "{}", text(&output));
    }
}
