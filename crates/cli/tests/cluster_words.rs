//! Runs what commands of a cluster ask, complete and say of themselves, with a controller that answers as a test says.

mod fake;
mod user;

use std::path::Path;
use std::process::{Command, Stdio};

use user::fake_controller::Answer;
use user::{User, host, page};

/// Asks until names come. A completion that took too long has none, and a person presses the key again.
fn patiently(ask: impl Fn() -> String) -> String {
    (0..20).map(|_| ask()).find(|names| !names.is_empty()).unwrap_or_default()
}

#[test]
fn names_are_completed_by_asking_a_controller_for_a_moment() {
    let user = User::logged_in(|asked, _| match asked.what.split('?').next().unwrap() {
        "GET /api/v1/hosts" => page(vec![host("hosta", "online", "active", ""), host("hostb", "lost", "active", "")]),
        _ => Answer::HangUp,
    });
    assert_eq!(patiently(|| user.run(&["names", "hosts"]).exits(0).out), "hosta\nhostb\n");
    let ran = user.run(&["names", "operations"]).exits(0);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));
    // The script itself, with this program as the one that it asks.
    std::fs::write(user.path("skein.bash"), user.run(&["completions", "bash"]).exits(0).out).unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_skein")).parent().unwrap();
    let asks_once = |line: &str, word: &str| {
        let script = format!(
            "PATH={}:$PATH; . ./skein.bash; COMP_WORDS=({line} '{word}'); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _skein_names skein '{word}' \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[*]}}\"",
            programs.display()
        );
        let mut command = user.command(&[]);
        let mut bash = Command::new("bash");
        for (name, value) in command.get_envs() {
            value.map(|value| bash.env(name, value));
        }
        let _ = command.stdin(Stdio::null());
        let output = bash.args(["-c", &script]).current_dir(user.dir.path()).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let asks = |line: &str, word: &str| patiently(|| asks_once(line, word));
    assert_eq!(asks("skein host drain", ""), "hosta hostb");
    assert_eq!(asks("skein migrate web1 --to", "hostb"), "hostb");
    assert_eq!(asks("skein cluster update --host", ""), "hosta hostb");
    assert_eq!(asks("skein net probe --to", "hosta"), "hosta");
    assert_eq!(asks("skein cluster update --group", ""), "web");
    assert_eq!(asks("skein host", "dra"), "drain");
}

#[test]
fn a_host_is_removed_once_somebody_is_sure() {
    let user = User::logged_in(|asked, _| match asked.what.as_str() {
        "DELETE /api/v1/hosts/hosta" | "DELETE /api/v1/hosts/hosta?force=false" => Answer::Json(204, String::new()),
        other => panic!("{other}"),
    });
    user.run(&["host", "remove", "hosta"]).exits(1).complains("nobody can be asked here").complains("--yes");
    assert_eq!(user.controller.asked().len(), 0);
    user.run(&["host", "remove", "hosta", "--yes"]).exits(0).says("hosta is no host of the cluster any more");
}

#[test]
fn each_command_says_what_exit_code_3_means_of_it() {
    let user = User::logged_in(|_, _| Answer::HangUp);
    let help = |args: &[&str]| user.run(&[args, &["--help"]].concat()).exits(0).out;
    let threes = |text: &str| text.lines().filter(|line| line.trim_start().starts_with("3  ")).count();
    for moveless in [["host", "fence"], ["host", "sleep"], ["host", "wake"], ["host", "resume"]] {
        let text = help(&moveless);
        assert!(threes(&text) == 0 && text.contains("130  interrupted"), "{moveless:?}: {text}");
    }
    let (drain, update) = (help(&["host", "drain"]), help(&["cluster", "update"]));
    assert_eq!((threes(&drain), threes(&update)), (1, 1));
    assert!(drain.contains("3  with --dry-run: a guest would stay") && update.contains("3  something is in the way"));
}
