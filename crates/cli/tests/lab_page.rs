//! Tests the controller's page in a real browser, against a real controller, agents of three hosts and guests; and that
//! the bundle in the tree is that of its sources.
// Timeout: 600 s
// Cores: 1.5
// Program: skein-controller

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use skein_lab_cluster::{Controlled, Settings, echoing, filled, noise};

/// The host where the controller runs, beside an agent, and the browser.
const CONTROLLER_HOST: &str = "a";
/// What the script ends with where node or a browser cannot be had.
const NONE_HERE: i32 = 3;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/page.sh")
}

fn succeeded(status: ExitStatus) {
    if status.code() == Some(NONE_HERE) {
        println!("skipped: no node or no browser, as said above");
        return;
    }
    assert!(status.success(), "the script ended with {status}");
}

#[test]
fn the_bundle_is_that_of_its_sources() {
    succeeded(Command::new(script()).arg("check").stdin(Stdio::null()).status().expect("the script can be run"));
}

#[test]
fn all_flows_work_in_a_browser() {
    let settings = Settings { hosts: 3, ..Settings::new(env!("CARGO_BIN_EXE_skein").into()) };
    let program = Path::new(env!("CARGO_BIN_EXE_skein")).with_file_name("skein-controller");
    let world = Controlled::up(settings, &program, CONTROLLER_HOST);
    world.waits("three hosts report", || ["a", "b", "c"].iter().all(|name| world.host(name)["contact"] == "online"));
    // The copy of the first takes a while: its memory does not compress.
    let noise = noise(world.cluster.dir(), 24);
    for vm in ["v1", "v2", "v3"] {
        let bare = world.cluster.bare(vm);
        let definition = if vm == "v1" { filled(&bare, &noise) } else { bare };
        world.cluster.start_vm("b", &definition);
    }
    // Its name is the last: flows take the first guest that they find.
    let echo = echoing(&world.cluster.bare("writes-back"), world.cluster.dir());
    world.cluster.start_vm("a", &echo);
    world.waits("the controller knows the guests", || {
        world.json(&["cluster", "status", "--json"])["vms"]["running"] == 4
    });
    let token = world.files_of(CONTROLLER_HOST).join("identity/admin.token");
    let url = format!("https://{}", world.address_of(CONTROLLER_HOST));
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    fs::create_dir_all(&out).expect("a directory can be made");
    let mut browser = world.cluster.lab().command(CONTROLLER_HOST, script()).expect("the host is there");
    browser.args(["browser", "--url", &url, "--token-file"]).arg(token).arg("--out").arg(&out).stdin(Stdio::null());
    // Some flows alone, as SKEIN_PAGE_FLOWS='console console-move'.
    browser.args(std::env::var("SKEIN_PAGE_FLOWS").unwrap_or_default().split_whitespace());
    let status = browser.status().expect("the script can be run");
    world.cluster.check();
    succeeded(status);
}
