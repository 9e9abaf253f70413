//! Asks QEMU what it can do, and what a guest is made of. A check before a migration compares that.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use skein_inventory::QemuVersion;

use crate::guest::facts::{Accel, BlockNode, Device, InspectedGuest, MemoryDevice, MemoryPages};
use crate::process::child::{Killed, collect, end_with_thread, text};
use crate::process::error::Error;
use crate::qmp::error::QmpError;
use crate::qmp::monitor::Monitor;

/// Says how long a QEMU that is about to end is waited for.
const LAST_WORDS_TIME: Duration = Duration::from_millis(200);

/// A machine type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MachineType {
    /// The name, as `pc-q35-7.2`: means the same to every QEMU that has the type.
    pub name: String,
    /// The alias, as `q35`: means another machine in each version.
    pub alias: Option<String>,
    /// Whether a command line without `-machine` gets this type.
    #[serde(default)]
    pub is_default: bool,
    /// Whether the type goes away in a later QEMU.
    #[serde(default)]
    pub deprecated: bool,
    /// The most virtual CPUs.
    #[serde(rename = "cpu-max")]
    pub cpus_max: u32,
}

/// A CPU model, as far as this QEMU on this host can have the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CpuModel {
    /// The name, as `Haswell`.
    pub name: String,
    /// The model that the name is an alias of, as `Haswell-v1`, which means the same everywhere.
    pub alias_of: Option<String>,
    /// The features that the host, or the accelerator, lacks. If there are none, the model is whole. `kvm`: the model
    /// needs KVM.
    #[serde(default)]
    pub unavailable_features: Vec<String>,
    /// Whether QEMU promises that the model stays the same from version to version: not `max`, not `host`.
    #[serde(default)]
    pub migration_safe: bool,
    /// Whether the model goes away in a later QEMU.
    #[serde(default)]
    pub deprecated: bool,
    /// How many features the model has. Known only of models that are whole here, and the same in every version of
    /// QEMU.
    #[serde(default)]
    pub feature_count: Option<u32>,
}

impl CpuModel {
    /// Returns whether the model is whole here, and what its name means is the same everywhere: no alias, not `max`.
    fn is_whole_and_fixed(&self) -> bool {
        self.unavailable_features.is_empty() && self.migration_safe && self.alias_of.is_none()
    }
}

/// What one QEMU program can do on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QemuProgram {
    /// The program's version.
    pub version: QemuVersion,
    /// The accelerator with which the rest was asked.
    pub accel: Accel,
    /// The machine types.
    pub machines: Vec<MachineType>,
    /// The CPU models.
    pub cpu_models: Vec<CpuModel>,
    /// All CPU features that a guest can have here: those of the model `max`.
    pub cpu_features: BTreeSet<String>,
    /// The capabilities of migrations that the program knows.
    pub migration_capabilities: BTreeSet<String>,
    /// The parameters of migrations that the program knows.
    pub migration_parameters: BTreeSet<String>,
}

impl QemuProgram {
    /// Asks a running QEMU.
    pub fn of(monitor: &Monitor) -> Result<Self, QmpError> {
        #[derive(Deserialize)]
        struct Capability {
            capability: String,
        }
        let capabilities: Vec<Capability> = ask(monitor, "query-migrate-capabilities", Value::Null)?;
        let parameters: serde_json::Map<String, Value> = ask(monitor, "query-migrate-parameters", Value::Null)?;
        let mut cpu_models: Vec<CpuModel> = ask(monitor, "query-cpu-definitions", Value::Null)?;
        for model in cpu_models.iter_mut().filter(|model| model.is_whole_and_fixed()) {
            let features = features_of(monitor, &model.name)?;
            model.feature_count = features.iter().filter(|(_, has)| *has).count().try_into().ok();
        }
        let all = features_of(monitor, "max")?;
        Ok(Self {
            version: *monitor.version(),
            accel: accel(monitor)?,
            machines: ask(monitor, "query-machines", Value::Null)?,
            cpu_models,
            cpu_features: all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect(),
            migration_capabilities: capabilities.into_iter().map(|c| c.capability).collect(),
            migration_parameters: parameters.into_iter().map(|(name, _)| name).collect(),
        })
    }

    /// Starts a QEMU without a machine, asks it, and ends it, all within `deadline`. `firmware` is the QEMU's `-L`.
    pub fn probe(program: &Path, firmware: Option<&Path>, accel: Accel, deadline: Duration) -> Result<Self, Error> {
        let end = Instant::now() + deadline;
        let (ours, theirs) = UnixStream::pair().map_err(Error::Process)?;
        let mut arguments: Vec<OsString> =
            ["-nodefaults", "-no-user-config", "-S", "-display", "none"].map(Into::into).into();
        arguments.extend(["-machine".into(), format!("none,accel={}", accel.as_str()).into()]);
        // The control socket is QEMU's standard input: there is no file to clean up, and no stranger connects.
        arguments.extend(["-chardev", "socket,id=qmp0,fd=0", "-mon", "chardev=qmp0,mode=control"].map(Into::into));
        if let Some(directory) = firmware {
            arguments.extend(["-L".into(), directory.into()]);
        }
        let mut command = Command::new(program);
        command.args(arguments).stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
        end_with_thread(&mut command);
        let mut child = Killed(command.spawn().map_err(|source| Error::Start { program: program.into(), source })?);
        // Otherwise the socket would not end with QEMU.
        drop(command);
        let stderr = std::sync::Arc::default();
        let reader = collect(child.0.stderr.take().expect("is piped"), std::sync::Arc::clone(&stderr));
        let result = Monitor::negotiate(ours, end.saturating_duration_since(Instant::now()))
            .and_then(|monitor| Self::of(&monitor));
        result.map_err(|source| {
            // The socket ends before QEMU does, and another thread reads QEMU's last words.
            let end = Instant::now() + LAST_WORDS_TIME;
            while !(reader.is_finished() && matches!(child.0.try_wait(), Ok(Some(_)))) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            match child.0.try_wait() {
                Ok(Some(status)) => Error::Ended { status: status.to_string(), stderr: text(&stderr) },
                _ => Error::Qmp { stderr: text(&stderr), source },
            }
        })
    }
}

impl InspectedGuest {
    /// Asks a QEMU that has a guest. Takes some hundred questions, tens of milliseconds; the guest runs on.
    pub fn of(monitor: &Monitor) -> Result<Self, QmpError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case")]
        struct Cpu {
            qom_path: String,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case")]
        struct Memory {
            base_memory: u64,
            #[serde(default)]
            plugged_memory: u64,
        }
        let cpus: Vec<Cpu> = ask(monitor, "query-cpus-fast", Value::Null)?;
        let first = cpus.first().map(|cpu| cpu.qom_path.as_str());
        let first = first.ok_or_else(|| malformed("query-cpus-fast: no CPU; is there a guest?", &Value::Null))?;
        let mut cpu_features = BTreeSet::new();
        for (name, _) in features_of(monitor, "max")? {
            if name != HYPERTHREADING_FLAG && property::<bool>(monitor, first, &name)? {
                cpu_features.insert(name);
            }
        }
        let cpu: String = property(monitor, first, "type")?;
        let machine: String = property(monitor, "/machine", "type")?;
        let memory: Memory = ask(monitor, "query-memory-size-summary", Value::Null)?;
        let mut devices = children(monitor, "/machine/peripheral")?;
        devices.extend(children(monitor, "/machine/peripheral-anon")?);
        Ok(Self {
            version: *monitor.version(),
            accel: accel(monitor)?,
            machine: machine.strip_suffix("-machine").unwrap_or(&machine).into(),
            // The names are `Haswell-x86_64-cpu`, `cortex-a57-arm-cpu`.
            cpu_model: cpu.rsplitn(3, '-').nth(2).unwrap_or(&cpu).into(),
            cpus: cpus.len().try_into().unwrap_or(u32::MAX),
            cpu_features,
            memory_bytes: memory.base_memory.saturating_add(memory.plugged_memory),
            memory: memory_devices(monitor)?,
            devices,
            blocked_reasons: monitor.blocked_reasons()?,
        })
    }
}

/// Returns the parts of the guest's RAM, with what each lies on.
fn memory_devices(monitor: &Monitor) -> Result<Vec<MemoryDevice>, QmpError> {
    let mut devices: Vec<MemoryDevice> = ask(monitor, "query-memdev", Value::Null)?;
    for device in &mut devices {
        let Some(id) = &device.id else { continue };
        let path = format!("/objects/{id}");
        let get = |name: &str| property::<Value>(monitor, &path, name).ok();
        device.file = get("mem-path").and_then(|file| file.as_str().map(str::to_owned)).filter(|file| !file.is_empty());
        device.pages = match get("hugetlb") {
            // The backend is a memfd.
            Some(Value::Bool(true)) => {
                let bytes = get("hugetlbsize").and_then(|size| size.as_u64()).filter(|bytes| *bytes > 0);
                MemoryPages::Huge(bytes)
            }
            Some(_) => MemoryPages::Usual,
            // The backend is a file, perhaps on hugetlbfs, whose blocks are its pages.
            None => MemoryPages::OfFile,
        };
    }
    Ok(devices)
}

/// Returns a QEMU's images and what is below them, also those that no device has.
pub fn block_nodes(monitor: &Monitor) -> Result<Vec<BlockNode>, QmpError> {
    ask(monitor, "query-named-block-nodes", json!({ "flat": true }))
}

/// Names a flag that is no feature of the host: QEMU sets it if there are several CPUs.
const HYPERTHREADING_FLAG: &str = "ht";

fn malformed(reason: impl std::fmt::Display, value: &Value) -> QmpError {
    let excerpt = value.to_string().chars().take(80).collect();
    QmpError::Malformed { reason: reason.to_string(), excerpt }
}

fn ask<T: for<'de> Deserialize<'de>>(monitor: &Monitor, command: &str, arguments: Value) -> Result<T, QmpError> {
    let answer = monitor.execute(command, arguments)?;
    T::deserialize(&answer).map_err(|e| malformed(format_args!("{command}: {e}"), &answer))
}

fn property<T: for<'de> Deserialize<'de>>(monitor: &Monitor, path: &str, name: &str) -> Result<T, QmpError> {
    ask(monitor, "qom-get", json!({ "path": path, "property": name }))
}

/// Returns the accelerator.
pub fn accel(monitor: &Monitor) -> Result<Accel, QmpError> {
    #[derive(Deserialize)]
    struct Kvm {
        enabled: bool,
    }
    Ok(if ask::<Kvm>(monitor, "query-kvm", Value::Null)?.enabled { Accel::Kvm } else { Accel::Tcg })
}

/// Returns all features of CPUs by name, and whether a CPU model has each feature. What `max` has a guest can have. The
/// static expansion names features only; the full expansion has other properties, too.
fn features_of(monitor: &Monitor, model: &str) -> Result<Vec<(String, bool)>, QmpError> {
    #[derive(Deserialize)]
    struct Expansion {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        #[serde(default)]
        props: serde_json::Map<String, Value>,
    }
    let arguments = json!({ "type": "static", "model": { "name": model } });
    let expansion: Expansion = ask(monitor, "query-cpu-model-expansion", arguments)?;
    Ok(expansion.model.props.into_iter().filter_map(|(name, value)| Some((name, value.as_bool()?))).collect())
}

fn children(monitor: &Monitor, path: &str) -> Result<Vec<Device>, QmpError> {
    #[derive(Deserialize)]
    struct Property {
        name: String,
        #[serde(rename = "type")]
        kind: String,
    }
    let properties: Vec<Property> = ask(monitor, "qom-list", json!({ "path": path }))?;
    let device = |property: Property| {
        let kind = property.kind.strip_prefix("child<")?.strip_suffix('>')?;
        Some(Device { id: property.name, kind: kind.into() })
    };
    Ok(properties.into_iter().filter_map(device).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_qemu_says() {
        // The answer is QEMU 7.2's, shortened.
        let node: BlockNode = serde_json::from_value(json!({
            "ro": false, "node-name": "disk0", "backing_file_depth": 1, "drv": "qcow2", "backing_file": "/s/base.raw",
            "file": "/s/a.qcow2", "image": {"filename": "/s/a.qcow2", "format": "qcow2"}
        }))
        .unwrap();
        assert_eq!((node.name.as_str(), node.driver.as_str(), node.read_only), ("disk0", "qcow2", false));
        assert_eq!((node.filename.as_str(), node.backing_file.as_deref()), ("/s/a.qcow2", Some("/s/base.raw")));
        let machine: MachineType = serde_json::from_value(json!({
            "name": "pc-q35-7.2", "alias": "q35", "cpu-max": 288, "deprecated": false, "hotpluggable-cpus": true
        }))
        .unwrap();
        assert_eq!((machine.alias.as_deref(), machine.cpus_max, machine.is_default), (Some("q35"), 288, false));
        let device = |kind: &str| Device { id: "d".into(), kind: kind.into() };
        assert!(device("vfio-pci").is_passed_through() && !device("virtio-net-pci").is_passed_through());
    }
}
