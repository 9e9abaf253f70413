//! Lets test programs be the processes of rails: a module of tests has a test `a_role` that calls [`serve_if_asked`].

use std::ffi::OsString;

use crate::serve_rail;

/// Names the variable that says that a test program is to be the process of a rail.
const ROLE: &str = "SKEIN_TEST_RAIL";

/// Is the process of a rail, if the test program was started to be that.
pub fn serve_if_asked() {
    if std::env::var_os(ROLE).is_some() {
        serve_rail().unwrap();
    }
}

/// Returns the command of this very test program, as the process of a rail. `module` is the `module_path!()` of the
/// test `a_role`; `mark` finds the process ([`rails`]).
pub fn words(module: &str, mark: &str) -> Vec<OsString> {
    let program = format!("/proc/{}/exe", std::process::id());
    // Names of tests are told without their crate.
    let (_, module) = module.split_once("::").unwrap();
    ["env", &role(mark), &program, "--exact", &format!("{module}::a_role"), "--nocapture"].map(Into::into).into()
}

/// Returns the numbers of the processes of this program's rails that have a mark.
pub fn rails(mark: &str) -> Vec<i32> {
    let children = std::fs::read_dir("/proc/self/task").unwrap().flat_map(|task| {
        let children = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
        children.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>()
    });
    let role = role(mark);
    let is_marked = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == role.as_bytes())
    };
    children.filter(is_marked).collect()
}

fn role(mark: &str) -> String {
    format!("{ROLE}={mark}")
}
