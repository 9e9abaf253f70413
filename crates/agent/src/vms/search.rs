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
