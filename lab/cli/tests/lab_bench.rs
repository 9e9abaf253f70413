//! Tests `skein-lab bench` and `skein-lab demo` as people run them: real guests, real hosts, a small case.
// QEMU: 7.2 10
// Program: skein
// Cores: 0.9

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

fn skein_lab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skein-lab"));
    command.args(args).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Returns the namespaces and processes that a bench of this process id left behind.
fn left_behind(pid: u32) -> Vec<String> {
    let lab = format!("bench-{pid}-");
    let namespaces = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let namespaces = namespaces.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut left: Vec<String> = namespaces.filter(|name| name.contains(&lab)).collect();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let ours = format!("SKEIN_LAB_BENCH_TEST={pid}").into_bytes();
        if environment.windows(ours.len()).any(|window| window == ours) {
            left.push(String::from_utf8_lossy(&line).replace('\0', " "));
        }
    }
    left
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn run_case(directory: &Path, args: &[&str]) -> (Value, String, String) {
    let (json, html) = (directory.join("bench.json"), directory.join("bench.html"));
    let mut command = skein_lab(&["bench", "run"]);
    command.args(args).args(["--runs", "1", "--guest-mb", "256"]);
    command.arg("--json").arg(&json).arg("--html").arg(&html);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let results = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    (results, fs::read_to_string(html).unwrap(), text(&output))
}

/// Checks that every kind of mover carries a guest, and that its results are consistent.
#[test]
fn movers_side_by_side() {
    let directory = tempfile::tempdir().unwrap();
    let movers = "skein-tls,skein-plain,skein-agents,qemu-multifd,qemu-multifd-tls,qemu-xbzrle,mptcp-multifd,ssh,socat";
    let (results, page, said) = run_case(directory.path(), &["two-nics", "--movers", movers]);
    println!("{said}");

    let case = &results["cases"][0];
    assert_eq!(case["case"], "two-nics");
    assert!(number(&case["parts"][0]["value"]) > 0.1, "{case}");
    let skipped: Vec<&str> = case["skipped"].as_array().unwrap().iter().map(|s| s["mover"].as_str().unwrap()).collect();
    for mover in &skipped {
        println!("skipped: {mover}");
    }
    for mover in movers.split(',').filter(|mover| !skipped.contains(mover)) {
        let runs: Vec<&Value> = results["runs"].as_array().unwrap().iter().filter(|r| r["mover"] == mover).collect();
        assert_eq!(runs.len(), 1, "{mover}");
        let run = runs[0];
        assert_eq!(run["error"], Value::Null, "{mover}");
        assert_eq!(run["guest_verdict"]["ok"], true, "{mover}");
        assert_eq!(number(&run["guest_verdict"]["pages"]), 156.0 * 256.0, "{mover}");

        // 156 MiB that do not compress, and the guest's kernel.
        let bytes = number(&run["guest_bytes"]);
        assert!((164e6..270e6).contains(&bytes), "{mover}: {bytes}");
        let sent: f64 = nics(run, &run["source"], "tx_bytes").iter().sum();
        let received: f64 = nics(run, &run["target"], "rx_bytes").iter().sum();
        // Skein compresses the kernel's memory. What was sent before the first sample is estimated.
        let least = if mover.starts_with("skein") { 0.85 } else { 0.97 };
        assert!(sent > bytes * least && sent < bytes * 1.25, "{mover}: {sent} sent for {bytes}");
        assert!((received / sent - 1.0).abs() < 0.05, "{mover}: {received} of {sent} received");

        let (total, first, last) = (number(&run["total_s"]), number(&run["first_byte_s"]), number(&run["last_byte_s"]));
        assert!(0.0 <= first && first < last && last <= total + 0.1, "{mover}: {first} {last} {total}");
        let phases = ["active_s", "stop_s", "completed_s"].map(|name| number(&run["phases"][name]));
        assert!(phases.is_sorted(), "{mover}: {phases:?}");
        assert!(number(&run["phases"]["resume_s"]) >= phases[1], "{mover}");
        // Agents first check and start the target's QEMU, and hand over at the end. Other movers begin with `migrate`.
        let handover = run["handover"].as_array().unwrap();
        if mover == "skein-agents" {
            assert!(number(&run["phases"]["order_s"]) < 0.0, "{}", run["phases"]);
            let at = |host: &str, what: &str| {
                let found = handover.iter().find(|step| step["what"] == what && step["host"] == run[host]);
                number(&found.unwrap_or_else(|| panic!("no {what} in {handover:?}"))["at_s"])
            };
            let steps = [at("source", "QEMU: STOP"), at("source", "Grant"), at("target", "QEMU: RESUME")];
            assert!(steps.is_sorted(), "{handover:?}");
        } else {
            assert_eq!((&run["phases"]["order_s"], handover.len()), (&Value::Null, 0), "{mover}");
        }
        let gap = number(&run["guest_switchover_ms"]);
        assert!(gap > 1.0 && gap <= number(&run["guest_gap_ms"]), "{mover}: {gap}");
        assert!(number(&run["cpu_source_s"]["qemu"]) > 0.0, "{mover}");
        let carried = number(&run["cpu_source_s"]["mover"]) > 0.0 && number(&run["cpu_target_s"]["mover"]) > 0.0;
        assert_eq!(carried, !mover.contains("qemu") && !mover.contains("mptcp"), "{mover}");

        let memory = [&run["memory_backend_source"], &run["memory_backend_target"]];
        assert_eq!(memory[0], memory[1], "{mover}: peers get the same memory");
        let line = |name: &str| run[name].as_array().unwrap().iter().any(|word| word == "-incoming");
        assert!(line("qemu_target_cmdline"), "{mover}");
        let capabilities = run["parameters"]["capabilities"].as_array().unwrap();
        assert_eq!(capabilities.iter().any(|c| c == "multifd"), mover != "qemu-xbzrle", "{mover}");
        let samples = &run["samples"];
        let length = samples["t_s"].as_array().unwrap().len();
        assert!(length > 5 && samples["nics"].as_array().unwrap().len() == 4, "{mover}");
        assert_eq!(samples["cores"][0]["busy"].as_array().unwrap().len(), length, "{mover}");
    }
    // Skein uses both NICs, and QEMU alone uses one. How evenly depends on what else the machine does.
    let both = |mover: &str| {
        let run = results["runs"].as_array().unwrap().iter().find(|r| r["mover"] == mover).unwrap();
        nics(run, &run["source"], "tx_bytes").iter().filter(|bytes| **bytes > 10e6).count()
    };
    assert_eq!((both("skein-tls"), both("skein-agents"), both("qemu-multifd")), (2, 2, 1));

    assert!(page.contains("<svg") && page.contains("Skein, TLS") && page.ends_with("</html>\n"));
    assert!(!page.contains("<script") && !page.contains("http"));
}

fn nics(run: &Value, host: &Value, counter: &str) -> Vec<f64> {
    let nics = run["wire_bytes"].as_array().unwrap().iter();
    nics.filter(|nic| nic["host"] == *host).map(|nic| number(&nic[counter])).collect()
}

/// Checks that a newcomer sees a move, a killed agent whose guest runs exactly once, and commands that work as they are
/// printed.
#[test]
fn demo() {
    let directory = tempfile::tempdir().unwrap();
    let output = skein_lab(&["demo", "--guest-mb", "384"]).current_dir(directory.path()).output().unwrap();
    let said = text(&output);
    println!("{said}");
    assert!(output.status.success());
    for words in
        [": kill -9 ", "the agent is started again", "runs on a and nowhere else, and finds all its 72704 pages"]
    {
        assert!(said.contains(words), "{words}");
    }
    let page = fs::read_to_string(directory.path().join("skein-demo.html")).unwrap();
    assert!(page.contains("An agent is killed") && page.contains("Skein&#39;s agents"));

    let (_, by_hand) = said.split_once("By hand").unwrap();
    let lines: Vec<&str> = by_hand.lines().filter(|line| line.starts_with("  ")).collect();
    // This runs in a lab of its own, which is removed in any case.
    let name = format!("demo{}", std::process::id());
    let mut script = format!("set -e\ntrap 'skein-lab down' EXIT\n{}\n", lines.join("\n"));
    for command in ["up", "exec", "down"] {
        script = script.replace(&format!("skein-lab {command}"), &format!("skein-lab {command} --name {name}"));
    }
    let path = Path::new(env!("CARGO_BIN_EXE_skein-lab")).parent().unwrap();
    let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
    let output =
        Command::new("sh").args(["-c", &script]).env("PATH", path).current_dir(directory.path()).output().unwrap();
    let said = text(&output);
    println!("{said}");
    assert!(output.status.success() && said.contains("web1 runs on b: moved in"));
}

/// Checks that for an unknown name the existing ones are printed.
#[test]
fn wrong_words() {
    let output = skein_lab(&["bench", "run", "three-nics"]).output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output).contains("no case is called 'three-nics'; `skein-lab bench list`"), "{}", text(&output));
    let output = skein_lab(&["bench", "run", "--movers", "scp"]).output().unwrap();
    assert!(text(&output).contains("no mover is called 'scp'; there are: skein-tls"), "{}", text(&output));
    let output = skein_lab(&["bench", "list"]).output().unwrap();
    assert!(text(&output).contains("both-ways\n"), "{}", text(&output));
}

/// Checks that Ctrl-C ends the program at once, whatever it is doing, and leaves nothing behind.
#[test]
fn interrupted() {
    // While the guest boots, and while it moves.
    for (wait, args) in [(3, &["demo"][..]), (14, &["bench", "run", "one-nic", "--runs", "9"])] {
        let directory = tempfile::tempdir().unwrap();
        let mut command = skein_lab(args);
        let mark = std::process::id();
        command.env("SKEIN_LAB_BENCH_TEST", mark.to_string()).current_dir(directory.path());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        std::thread::sleep(Duration::from_secs(wait));
        kill(Pid::from_raw(pid as i32), Signal::SIGINT).unwrap();
        let pressed = Instant::now();
        let output = child.wait_with_output().unwrap();
        let took = pressed.elapsed();
        assert!(!output.status.success() && text(&output).contains("skein-lab: interrupted"), "{}", text(&output));
        assert!(took < Duration::from_secs(30), "{took:?}");
        assert_eq!(left_behind(pid), Vec::<String>::new());
        let marked = left_behind(mark);
        assert_eq!(marked, Vec::<String>::new());
    }
}
