//! Asks a QEMU what its guest is composed of.

use serde_json::{Value, json};
use skein_inventory::composition::{Answers, BlockAnswers, Composition, Drive, is_numbered};

use crate::guest::facts::{DeviceSnapshot, ImageSnapshot};
use crate::guest::inspect::CompositionError;
use crate::qmp::error::QmpError;
use crate::qmp::monitor::Monitor;

/// Names where QOM has the devices that were asked for: by their ids, and without.
const PERIPHERALS: [&str; 2] = ["/machine/peripheral", "/machine/peripheral-anon"];

fn list(path: &str) -> (&'static str, Value) {
    ("qom-list", json!({ "path": path }))
}

/// Returns the commands that drives are read by.
fn block_commands() -> [(&'static str, Value); 3] {
    [
        ("query-block", Value::Null),
        ("x-debug-query-block-graph", Value::Null),
        ("query-named-block-nodes", json!({ "flat": true })),
    ]
}

/// Returns what the guest of this QEMU is composed of, without its files. Takes some milliseconds; the guest runs on.
pub(super) fn of(monitor: &Monitor) -> Result<Composition, CompositionError> {
    let show = |command: &str| ("human-monitor-command", json!({ "command-line": command }));
    let ask = |command| (command, Value::Null);
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
        version: Some(*monitor.version()),
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

/// Returns null for a refusal. Machine types without pluggable CPUs and QEMUs built without TPM refuse the question:
/// there is nothing of the kind.
fn optional(answer: Result<Value, QmpError>) -> Result<Value, QmpError> {
    match answer {
        Err(QmpError::Refused { .. }) => Ok(json!([])),
        other => other,
    }
}

/// Returns what the guest's drives lie on. A guest that stands still is compared by that, as these questions take a
/// millisecond.
pub(super) fn drives(monitor: &Monitor) -> Result<Vec<Drive>, CompositionError> {
    let mut answers = monitor.execute_all(block_commands())?.into_iter();
    Ok(block(&mut || answers.next().expect("each command has an answer"))?.drives()?)
}

/// Returns which images the guest's drives have, and which devices the guest has: what could be changed of a QEMU that
/// waits for its guest. The call is short, because the guest stands still meanwhile.
pub(super) fn devices(monitor: &Monitor) -> Result<DeviceSnapshot, QmpError> {
    let commands = [("query-block", Value::Null)].into_iter().chain(PERIPHERALS.map(list));
    let mut seen = monitor.execute_all(commands)?.into_iter().collect::<Result<Vec<Value>, QmpError>>()?;
    seen[0] = images_of(&seen[0]);
    Ok(DeviceSnapshot(seen))
}

/// Returns which images the drives have: one question, which tells whether more have to be asked.
pub(super) fn images(monitor: &Monitor) -> Result<ImageSnapshot, QmpError> {
    Ok(ImageSnapshot(images_of(&monitor.query("query-block")?)))
}

/// Returns the drives without what is counted of them.
fn images_of(drives: &Value) -> Value {
    let drive = |drive: &Value| {
        let inserted = &drive["inserted"];
        json!([drive["qdev"], inserted["node-name"], inserted["file"], inserted["drv"], inserted["ro"]])
    };
    drives.as_array().into_iter().flatten().map(drive).collect()
}

/// Reads the answers to [`block_commands`].
fn block(next: &mut dyn FnMut() -> Result<Value, QmpError>) -> Result<BlockAnswers, QmpError> {
    Ok(BlockAnswers { drives: next()?, edges: next()?, nodes: next()? })
}

/// Returns the guest's devices that were plugged in while it ran: `virtio-blk-pci "late"`.
pub(super) fn hot_plugged(monitor: &Monitor, composition: &Composition) -> Result<Vec<String>, QmpError> {
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
