//! Asks a QEMU what its guest is composed of, and looks at the files that its process has open.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use skein_hypervisor::{Monitor, QmpError};
use skein_inventory::QemuVersion;
use skein_inventory::composition::{Answers, BlockAnswers, Composition, Drive, Malformed, OpenFile, is_numbered};
use thiserror::Error;

use crate::read_facts;

/// Most files that are looked at: a guest's disks with their backing files. More make the comparison fail, as they must
/// not be taken for the same.
const FILES_MAX: usize = 256;

/// Where QOM has the devices that were asked for: by their ids, and without.
const PERIPHERALS: [&str; 2] = ["/machine/peripheral", "/machine/peripheral-anon"];

/// Why it is not known what a guest is composed of.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum CompositionError {
    #[error("QMP")]
    Qmp(#[from] QmpError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("it has {0} files open, and {FILES_MAX} can be compared")]
    TooManyFiles(usize),
}

fn list(path: &str) -> (&'static str, Value) {
    ("qom-list", json!({ "path": path }))
}

/// What drives are read from.
fn block_commands() -> [(&'static str, Value); 3] {
    [
        ("query-block", Value::Null),
        ("x-debug-query-block-graph", Value::Null),
        ("query-named-block-nodes", json!({ "flat": true })),
    ]
}

/// What the guest of this QEMU is composed of, its files aside. Takes some milliseconds; the guest runs on.
pub(crate) fn of(monitor: &Monitor) -> Result<Composition, CompositionError> {
    let show = |command: &str| ("human-monitor-command", json!({ "command-line": command }));
    let ask = |command| (command, Value::Null);
    let skein_hypervisor::QemuVersion { major, minor, micro, .. } = *monitor.version();
    let [drives, edges, nodes] = block_commands();
    let commands = [
        ("qom-get", json!({ "path": "/machine", "property": "type" })),
        show("info qtree"),
        show("info network"),
        drives,
        edges,
        nodes,
        ask("query-jobs"),
        ask("query-block-exports"),
        ask("query-memdev"),
        ask("query-memory-devices"),
        list(PERIPHERALS[0]),
        list(PERIPHERALS[1]),
        list("/objects"),
        ask("query-hotpluggable-cpus"),
        ask("query-tpm"),
    ];
    let mut answers = monitor.execute_all(commands)?.into_iter();
    let mut next = || answers.next().expect("each command has an answer");
    let answers = Answers {
        version: Some(QemuVersion { major, minor, micro }),
        machine: next()?,
        qtree: next()?,
        network: next()?,
        block: block(&mut next)?,
        jobs: next()?,
        exports: next()?,
        memdev: next()?,
        memory_devices: next()?,
        peripherals: [next()?, next()?],
        objects: next()?,
        vcpus: optional(next())?,
        tpms: optional(next())?,
    };
    Ok(answers.composition()?)
}

/// Machine types without pluggable CPUs and QEMUs built without TPM refuse the question: there is nothing of the kind.
fn optional(answer: Result<Value, QmpError>) -> Result<Value, QmpError> {
    match answer {
        Err(QmpError::Refused { .. }) => Ok(json!([])),
        other => other,
    }
}

/// The same with its files, as the process `pid` has them open.
/// `own`: where the agent keeps what moves with the guest.
pub(crate) fn with_files(monitor: &Monitor, pid: u32, own: &Path) -> Result<Composition, CompositionError> {
    let mut composition = of(monitor)?;
    composition.boot_id = read_facts::boot_id();
    composition.files = files(&composition, pid, own)?;
    Ok(composition)
}

/// What the guest's drives lie on: what a guest that stands still is compared by, as these questions take a
/// millisecond.
pub(crate) fn drives(monitor: &Monitor) -> Result<Vec<Drive>, CompositionError> {
    let mut answers = monitor.execute_all(block_commands())?.into_iter();
    Ok(block(&mut || answers.next().expect("each command has an answer"))?.drives()?)
}

/// Which images its drives have, and which devices it has: what somebody could change of a QEMU that waits for its
/// guest. Short, as the guest stands still meanwhile.
pub(crate) fn images_and_devices(monitor: &Monitor) -> Result<Vec<Value>, QmpError> {
    let commands = [("query-block", Value::Null)].into_iter().chain(PERIPHERALS.map(list));
    let mut seen = monitor.execute_all(commands)?.into_iter().collect::<Result<Vec<Value>, QmpError>>()?;
    seen[0] = images_of(&seen[0]);
    Ok(seen)
}

/// Which images its drives have: one question, to tell whether more have to be asked.
pub(crate) fn images(monitor: &Monitor) -> Result<Value, QmpError> {
    Ok(images_of(&monitor.query("query-block")?))
}

/// Of drives not what is counted.
fn images_of(drives: &Value) -> Value {
    let drive = |drive: &Value| {
        let inserted = &drive["inserted"];
        json!([drive["qdev"], inserted["node-name"], inserted["file"], inserted["drv"], inserted["ro"]])
    };
    drives.as_array().into_iter().flatten().map(drive).collect()
}

/// From the answers to [`block_commands`].
fn block(next: &mut dyn FnMut() -> Result<Value, QmpError>) -> Result<BlockAnswers, QmpError> {
    Ok(BlockAnswers { drives: next()?, edges: next()?, nodes: next()? })
}

/// Those of the guest's devices that were plugged in while it ran: `virtio-blk-pci "late"`.
pub(crate) fn hot_plugged(monitor: &Monitor, composition: &Composition) -> Result<Vec<String>, QmpError> {
    let [named, unnamed] = PERIPHERALS;
    let ask = |id: &String| {
        let parent = if is_numbered(id) { unnamed } else { named };
        ("qom-get", json!({ "path": format!("{parent}/{id}"), "property": "hotplugged" }))
    };
    let answers = monitor.execute_all(composition.peripherals.keys().map(ask))?;
    let mut plugged = Vec::new();
    for ((id, kind), is_late) in composition.peripherals.iter().zip(answers) {
        if is_late? == true {
            plugged.push(format!("{kind} \"{id}\""));
        }
    }
    Ok(plugged)
}

fn files(composition: &Composition, pid: u32, own: &Path) -> Result<Vec<OpenFile>, CompositionError> {
    let named = composition.filenames().into_iter().filter_map(|name| Some((name, path_of(name, pid)?)));
    let (names, paths): (Vec<&str>, Vec<PathBuf>) = named.unzip();
    if names.len() > FILES_MAX {
        return Err(CompositionError::TooManyFiles(names.len()));
    }
    let open = open_files(pid);
    let looked = read_facts::looked_at(&paths);
    let file = |(name, path): (&str, &PathBuf)| {
        let facts = looked.iter().find(|facts| facts.path == *path).cloned();
        let is_open = facts.as_ref().is_some_and(|facts| open.contains(&(facts.device, facts.inode)));
        let facts = facts.map(|facts| skein_inventory::FileFacts { path: name.into(), ..facts });
        OpenFile { filename: name.to_owned(), facts, is_open, moves: Path::new(name).starts_with(own) }
    };
    Ok(names.into_iter().zip(&paths).map(file).collect())
}

/// Where a file of QEMU is as this process sees it: QEMU's may have another root, and another directory to begin from.
fn path_of(filename: &str, pid: u32) -> Option<PathBuf> {
    let path = read_facts::image(filename)?;
    Some(match path.strip_prefix("/") {
        Ok(from_root) if from_root.starts_with("dev/fdset") => return None,
        Ok(from_root) => Path::new(&format!("/proc/{pid}/root")).join(from_root),
        Err(_) => Path::new(&format!("/proc/{pid}/cwd")).join(path),
    })
}

/// Device and inode of each regular file that a process has open, or device number and 0 of a block device, as
/// [`FileFacts`](skein_inventory::FileFacts) have them.
fn open_files(pid: u32) -> BTreeSet<(u64, u64)> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let identity = |fd: fs::DirEntry| {
        // The link leads to the open file itself, whatever has its name by now. No server is asked for sockets and
        // pipes.
        let name = fs::read_link(fd.path()).ok()?;
        let found = name.is_absolute().then(|| fs::metadata(fd.path()).ok())??;
        let kind = found.file_type();
        match (kind.is_file(), kind.is_block_device()) {
            (true, _) => Some((found.dev(), found.ino())),
            (_, true) => Some((found.rdev(), 0)),
            _ => None,
        }
    };
    fds.filter_map(identity).collect()
}
