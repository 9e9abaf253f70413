//! Finds QEMUs in `/proc`, by the QMP sockets that an agent gives them, also those of which nothing is written down.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use skein_hypervisor::{Process, ProcessId};
use skein_inventory::definition::is_name;

/// Holds what follows the socket's path in both forms of a command line (`crate::launch`, [`super::Vms`]).
const OPTIONS: &str = ",server=on,wait=off";

/// Returns the processes that were started with `DIR/NAME/qmp` as their QMP socket, by that name. If there are several,
/// one is a script that has not become QEMU yet, or has QEMU as its child.
pub(super) fn qemus(dir: &Path) -> BTreeMap<String, Vec<Process>> {
    let mut found = BTreeMap::<String, Vec<Process>>::new();
    for process in all() {
        if let Some(name) = name_of(process.id().pid, dir) {
            found.entry(name).or_default().push(process);
        }
    }
    found
}

/// Returns which of the processes that were started as a VM's QEMU is that, or becomes it: the newest that lives, as a
/// script is older than the QEMU that it started. What a script has started of its own program, as a shell does for
/// `$(…)`, is only a part of the script: it ends before QEMU begins.
pub(super) fn qemu_of(mut processes: Vec<Process>) -> Option<Process> {
    processes.retain(|process| process.is_alive().unwrap_or(true));
    processes.sort_by_key(|process| (process.id().started, process.id().pid));
    let (mut programs, mut newest) = (Vec::new(), None);
    for process in processes {
        let program = fs::read_link(format!("/proc/{}/exe", process.id().pid)).ok();
        if program.is_none() || !programs.contains(&program) {
            newest = Some(process);
        }
        programs.push(program);
    }
    newest
}

/// Returns the processes with this among their arguments.
pub(super) fn with_argument(argument: &[u8]) -> Vec<Process> {
    let has = |process: &Process| {
        let line = fs::read(format!("/proc/{}/cmdline", process.id().pid)).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument)
    };
    all().filter(has).collect()
}

/// Returns all processes. Each is first held, and its words are read then: they are those of the held process.
fn all() -> impl Iterator<Item = Process> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| ProcessId::of(pid).and_then(|id| id.map_or(Ok(None), Process::attach)).ok().flatten())
}

/// Returns the NAME of [`qemus`] that a process has.
pub(super) fn name_of(pid: u32, dir: &Path) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    line.split('\0').find_map(|word| name_in(word, dir)).map(str::to_owned)
}

fn name_in<'a>(word: &'a str, dir: &Path) -> Option<&'a str> {
    let path = word.strip_prefix("socket,id=qmp0,path=").or_else(|| word.strip_prefix("unix:"))?;
    // QEMU writes a comma so.
    let dir = dir.to_string_lossy().replace(',', ",,");
    let name = path.strip_prefix(dir.as_str())?.strip_prefix('/')?.strip_suffix(OPTIONS)?.strip_suffix("/qmp")?;
    is_name(name).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_found_by_its_socket() {
        let dir = tempfile::Builder::new().prefix("a,b").tempdir().unwrap();
        let path = dir.path().to_str().unwrap().replace(',', ",,");
        for (name, word) in [
            ("web-1", format!("socket,id=qmp0,path={path}/web-1/qmp{OPTIONS}")),
            ("w2", format!("unix:{path}/w2/qmp{OPTIONS}")),
        ] {
            let mut child = waiting_with(&word);
            let found = qemus(dir.path());
            assert_eq!(found.keys().collect::<Vec<_>>(), [name]);
            assert_eq!(found[name][0].id().pid, child.id());
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for word in ["unix:/elsewhere/w/qmp,server=on,wait=off", "unix:", "socket,id=qmp0,path=/x"] {
            assert_eq!(name_in(word, dir.path()), None, "{word}");
        }
        let inside = format!("unix:{path}/a/b/qmp{OPTIONS}");
        assert_eq!(name_in(&inside, dir.path()), None);
    }

    #[test]
    fn a_scripts_own_parts_are_no_qemu() {
        // A part of the script waits as long as there is input. `cat` stands for a QEMU that is the script's child.
        let mut script = Command::new("sh");
        script.args(["-c", "exec 3<&0; (read line <&3; cat <&3; read end <&3); :"]).stdin(Stdio::piped());
        let mut script = script.spawn().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let child_of = |parent: u32| loop {
            assert!(std::time::Instant::now() < end);
            let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
            if let Some(child) = children.split_whitespace().next() {
                break child.parse::<u32>().unwrap();
            }
        };
        let pid = |processes: &[u32]| {
            let attach = |pid: &u32| Process::attach(ProcessId::of(*pid).unwrap().unwrap()).unwrap().unwrap();
            qemu_of(processes.iter().map(attach).collect()).map(|process| process.id().pid)
        };
        let (whole, part) = (script.id(), child_of(script.id()));
        assert_eq!(pid(&[part, whole]), Some(whole));
        std::io::Write::write_all(script.stdin.as_mut().unwrap(), b"go on\n").unwrap();
        let qemu = child_of(part);
        while fs::read_link(format!("/proc/{qemu}/exe")).unwrap() == fs::read_link(format!("/proc/{part}/exe")).unwrap()
        {
            assert!(std::time::Instant::now() < end);
        }
        assert_eq!(pid(&[qemu, part, whole]), Some(qemu));
        drop(script.stdin.take());
        script.wait().unwrap();
        assert_eq!(pid(&[]), None);
    }

    /// Starts a shell with a word that means nothing to it. The shell waits for its input, and has no child: one would
    /// have the same words until it becomes another program, and may outlive the shell.
    fn waiting_with(word: &str) -> Child {
        let mut command = Command::new("sh");
        let child = command.args(["-c", "read line", "sh", word]).stdin(Stdio::piped()).spawn().unwrap();
        // The loop ends when the child has become that program.
        while !fs::read(format!("/proc/{}/cmdline", child.id())).unwrap().starts_with(b"sh\0") {}
        child
    }
}
