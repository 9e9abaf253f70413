//! A composition from QEMU's answers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::answer::{Malformed, Read, list, malformed, text, words};
use super::graph::Graph;
use super::model::{Composition, Drive, Image, Medium, RamBackend};
use super::qtree;
use crate::qemu_version::QemuVersion;

const BLOCK: &str = "query-block";
/// The longest backing chain that is read. QEMU has a file open for each image of a chain.
const CHAIN_MAX: usize = 256;
/// The settings of a drive that QEMU keeps for itself.
const TUNING: [&str; 20] = [
    "bps",
    "bps_rd",
    "bps_wr",
    "iops",
    "iops_rd",
    "iops_wr",
    "bps_max",
    "bps_rd_max",
    "bps_wr_max",
    "iops_max",
    "iops_rd_max",
    "iops_wr_max",
    "bps_max_length",
    "bps_rd_max_length",
    "bps_wr_max_length",
    "iops_max_length",
    "iops_rd_max_length",
    "iops_wr_max_length",
    "iops_size",
    "detect_zeroes",
];

/// What QEMU answered, as far as a composition is read from it.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// QEMU's version.
    pub version: Option<QemuVersion>,
    /// The answer to `qom-get` of `/machine`, `type`.
    pub machine: Value,
    /// The answer to HMP's `info qtree`.
    pub qtree: Value,
    /// The answer to HMP's `info network`.
    pub network: Value,
    /// The answers on drives.
    pub block: BlockAnswers,
    /// The answer to `query-jobs`.
    pub jobs: Value,
    /// The answer to `query-block-exports`.
    pub exports: Value,
    /// The answer to `query-memdev`.
    pub memdev: Value,
    /// The answer to `query-memory-devices`.
    pub memory_devices: Value,
    /// The answer to `query-hotpluggable-cpus`.
    pub vcpus: Value,
    /// The answer to `query-tpm`.
    pub tpms: Value,
    /// The answers to `qom-list` of `/machine/peripheral` and `/machine/peripheral-anon`.
    pub peripherals: [Value; 2],
    /// The answer to `qom-list` of `/objects`.
    pub objects: Value,
}

/// What QEMU answered, as far as drives are read from it.
#[derive(Debug, Clone, Default)]
pub struct BlockAnswers {
    /// The answer to `query-block`.
    pub drives: Value,
    /// The answer to `x-debug-query-block-graph`.
    pub edges: Value,
    /// The answer to `query-named-block-nodes`.
    pub nodes: Value,
}

impl Answers {
    /// Returns the composition without its files.
    ///
    /// # Errors
    ///
    /// If an answer is not understood: what cannot be compared must not be moved.
    pub fn composition(&self) -> Read<Composition> {
        let machine = words("qom-get", &self.machine)?;
        let tree = words("info qtree", &self.qtree)?;
        let mut peripherals = BTreeMap::new();
        for answer in &self.peripherals {
            peripherals.extend(children(answer)?);
        }
        Ok(Composition {
            qemu: self.version,
            machine: machine.strip_suffix("-machine").unwrap_or(machine).to_owned(),
            devices: qtree::parse(tree).map_err(|error| malformed("info qtree", error.to_string()))?,
            peripherals,
            vcpus: vcpus(&self.vcpus)?,
            ram: ram(&self.memdev)?,
            memory_devices: memory_devices(&self.memory_devices)?,
            drives: self.block.drives()?,
            network: network(words("info network", &self.network)?),
            tpms: tpms(&self.tpms)?,
            objects: children(&self.objects)?,
            activities: activities(&self.jobs, &self.exports)?,
            files: Vec::new(),
            boot_id: None,
        })
    }
}

/// Returns name and type of each child in a `qom-list`.
fn children(answer: &Value) -> Read<BTreeMap<String, String>> {
    let mut children = BTreeMap::new();
    for property in list("qom-list", answer)? {
        let kind = text("qom-list", property, "type")?;
        if let Some(kind) = kind.strip_prefix("child<").and_then(|kind| kind.strip_suffix('>')) {
            children.insert(text("qom-list", property, "name")?.to_owned(), kind.to_owned());
        }
    }
    Ok(children)
}

/// Writes an object's fields, in their order by name, as `key value, key value`.
fn fields(value: &Value, without: &[&str]) -> String {
    let Some(object) = value.as_object() else { return value.to_string() };
    let object: BTreeMap<_, _> = object.iter().filter(|(key, _)| !without.contains(&key.as_str())).collect();
    let field = |(key, value): (&String, &Value)| match value {
        Value::String(text) => format!("{key} {text}"),
        other => format!("{key} {other}"),
    };
    object.into_iter().map(field).collect::<Vec<_>>().join(", ")
}

fn vcpus(answer: &Value) -> Read<BTreeSet<String>> {
    let plugged = list("query-hotpluggable-cpus", answer)?.iter().filter(|cpu| cpu["qom-path"].is_string());
    Ok(plugged.map(|cpu| fields(&cpu["props"], &[])).collect())
}

fn ram(answer: &Value) -> Read<Vec<RamBackend>> {
    let backends = list("query-memdev", answer)?.iter().map(|backend| {
        let bytes = backend["size"].as_u64().ok_or_else(|| malformed("query-memdev", "a backend without size"))?;
        Ok(RamBackend { id: backend["id"].as_str().unwrap_or_default().to_owned(), bytes })
    });
    let mut backends = backends.collect::<Read<Vec<_>>>()?;
    backends.sort_by(|a, b| (&a.id, a.bytes).cmp(&(&b.id, b.bytes)));
    Ok(backends)
}

fn memory_devices(answer: &Value) -> Read<BTreeSet<String>> {
    let device = |device: &Value| {
        let kind = text("query-memory-devices", device, "type")?;
        // How much of a virtio-mem is plugged moves with its state. Whether a device was plugged late does not make it
        // another device.
        let without: &[&str] =
            if kind == "virtio-mem" { &["size", "hotplugged"] } else { &["hotplugged", "hotpluggable"] };
        Ok(format!("{kind}: {}", fields(&device["data"], without)))
    };
    list("query-memory-devices", answer)?.iter().map(device).collect()
}

impl BlockAnswers {
    /// Returns the drives that devices of the guest have, in the order of the devices.
    ///
    /// # Errors
    ///
    /// If an answer is not understood.
    pub fn drives(&self) -> Result<Vec<Drive>, Malformed> {
        let graph = Graph::read(&self.edges, &self.nodes)?;
        let mut drives = Vec::new();
        for info in list(BLOCK, &self.drives)? {
            // A drive that no device has is not seen by the guest.
            let Some(device) = info["qdev"].as_str().filter(|device| !device.is_empty()) else { continue };
            let medium = match &info["inserted"] {
                Value::Null => None,
                inserted => Some(medium(inserted, &graph)?),
            };
            drives.push(Drive {
                device: device.to_owned(),
                name: info["device"].as_str().unwrap_or_default().to_owned(),
                removable: info["removable"].as_bool().ok_or_else(|| malformed(BLOCK, "removable or not?"))?,
                medium,
            });
        }
        drives.sort_by(|a, b| a.device.cmp(&b.device));
        Ok(drives)
    }
}

fn medium<'a>(inserted: &'a Value, graph: &Graph<'a>) -> Read<Medium> {
    let mut chain = Vec::new();
    let mut next = Some(&inserted["image"]);
    while let Some(image) = next {
        if chain.len() >= CHAIN_MAX {
            return Err(malformed(BLOCK, format!("a chain of more than {CHAIN_MAX} images")));
        }
        chain.push(Image {
            format: text(BLOCK, image, "format")?.to_owned(),
            filename: text(BLOCK, image, "filename")?.to_owned(),
            virtual_bytes: image["virtual-size"].as_u64().ok_or_else(|| malformed(BLOCK, "an image without size"))?,
        });
        next = image.get("backing-image");
    }
    let mut beside = graph.files_below(text(BLOCK, inserted, "node-name")?)?;
    beside.retain(|_, file| chain.iter().all(|image| image.filename != *file));
    // The driver of the node may be that of a filter above the image.
    let driver = text(BLOCK, inserted, "drv")?;
    if let Some(first) = chain.first_mut()
        && first.format != driver
    {
        first.format = format!("{driver} on {}", first.format);
    }
    let mut tuning: BTreeMap<String, String> = TUNING
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), setting(&inserted[*key])?)))
        .filter(|(_, value)| value != "0" && value != "off")
        .collect();
    // Whether writes are cached the guest may say itself.
    tuning.insert("cache".into(), fields(&inserted["cache"], &["writeback"]));
    if let Some(group) = inserted["group"].as_str() {
        tuning.insert("throttle group".into(), group.to_owned());
    }
    let bitmaps = inserted["dirty-bitmaps"].as_array().into_iter().flatten();
    let bitmaps = bitmaps.filter(|bitmap| bitmap["persistent"] != true).filter_map(|bitmap| bitmap["name"].as_str());
    Ok(Medium {
        chain,
        beside,
        read_only: inserted["ro"].as_bool().ok_or_else(|| malformed(BLOCK, "read-only or not?"))?,
        tuning,
        bitmaps: bitmaps.map(str::to_owned).collect(),
    })
}

fn setting(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Reads lines as `net0: index=0,type=tap,ifname=tap7`, with backends indented by ` \ `.
fn network(answer: &str) -> BTreeMap<String, String> {
    let mut unnamed = 0;
    let entry = |line: &str| {
        let (name, rest) = line.trim_start_matches([' ', '\\']).split_once(": ")?;
        let kind = rest.split(',').find_map(|option| option.strip_prefix("type="))?;
        // QEMU names what it was given no name for by numbers of chance (id_generate of its util/id.c).
        let name = match name.starts_with('#') {
            true => {
                unnamed += 1;
                format!("#{unnamed}")
            }
            false => name.to_owned(),
        };
        Some((name, kind.trim_end().to_owned()))
    };
    answer.lines().filter_map(entry).collect()
}

fn tpms(answer: &Value) -> Read<BTreeMap<String, String>> {
    let tpm = |tpm: &Value| {
        let id = text("query-tpm", tpm, "id")?.to_owned();
        Ok((id, format!("{} as {}", text("query-tpm", &tpm["options"], "type")?, text("query-tpm", tpm, "model")?)))
    };
    list("query-tpm", answer)?.iter().map(tpm).collect()
}

fn activities(jobs: &Value, exports: &Value) -> Read<BTreeSet<String>> {
    let mut activities = BTreeSet::new();
    for job in list("query-jobs", jobs)? {
        let status = text("query-jobs", job, "status")?;
        // A job in these states is over, and waits to be dismissed.
        if !matches!(status, "concluded" | "null") {
            let (kind, id) = (text("query-jobs", job, "type")?, text("query-jobs", job, "id")?);
            activities.insert(format!("block job {id} ({kind})"));
        }
    }
    for export in list("query-block-exports", exports)? {
        let (kind, id) = (text("query-block-exports", export, "type")?, text("query-block-exports", export, "id")?);
        activities.insert(format!("export {id} of a drive ({kind})"));
    }
    Ok(activities)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::graph;
    use super::*;

    pub(in super::super) fn answers() -> Answers {
        // The answers are from QEMU 7.2 and 10.0, shortened.
        let (edges, nodes) = graph::tests::answers();
        let image = json!({"virtual-size": 67108864, "filename": "/s/ov.qcow2", "format": "qcow2",
            "backing-image": {"virtual-size": 67108864, "filename": "/s/base.qcow2", "format": "qcow2"}});
        Answers {
            version: Some(QemuVersion { major: 10, minor: 0, micro: 2 }),
            machine: json!("pc-q35-10.0-machine"),
            qtree: json!(
                "bus: main-system-bus\n  type System\n  dev: q35-pcihost, id \"\"\n    bus: pcie.0\n      dev: \
                 virtio-blk-pci, id \"\"\n        addr = 05.0\n        bus: virtio-bus\n          dev: \
                 virtio-blk-device, id \"\"\n            serial = \"\"\n"
            ),
            network: json!(
                "virtio-net-pci.0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:00:00:01\r\n \\ n0: \
                 index=0,type=user,net=10.0.2.0,restrict=off\r\n"
            ),
            block: BlockAnswers {
                edges,
                nodes,
                drives: json!([
                    {"device": "d0", "locked": false, "removable": false,
                     "qdev": "/machine/peripheral-anon/device[3]/virtio-backend",
                     "inserted": {"ro": false, "drv": "qcow2", "node-name": "top", "file": "/s/ov.qcow2",
                        "image": image, "iops": 0, "bps_rd": 7,
                        "detect_zeroes": "off", "cache": {"no-flush": false, "direct": true, "writeback": true},
                        "dirty-bitmaps": [{"name": "b", "persistent": false}, {"name": "p", "persistent": true}]}},
                    {"device": "cd0", "locked": false, "removable": true, "tray_open": true, "qdev": "cdrom"},
                    {"device": "unused", "locked": false, "removable": true},
                ]),
            },
            jobs: json!([{"id": "j", "type": "mirror", "status": "ready"},
                {"id": "k", "type": "backup", "status": "concluded"}]),
            exports: json!([]),
            memdev: json!([{"id": "ram0", "size": 134217728, "share": true}]),
            memory_devices: json!([{"type": "dimm", "data": {"id": "d1", "size": 1, "addr": 2, "slot": 0,
                "hotplugged": true, "hotpluggable": true, "memdev": "/objects/m1", "node": 0}}]),
            vcpus: json!([{"props": {"core-id": 0, "thread-id": 0, "socket-id": 0}, "vcpus-count": 1,
                    "qom-path": "/machine/unattached/device[0]"},
                {"props": {"core-id": 1, "thread-id": 0, "socket-id": 0}, "vcpus-count": 1}]),
            tpms: json!([{"id": "tpm0", "model": "tpm-crb",
                "options": {"type": "emulator", "data": {"chardev": "c"}}}]),
            peripherals: [
                json!([{"name": "type", "type": "string"}, {"name": "cdrom", "type": "child<ide-cd>"}]),
                json!([]),
            ],
            objects: json!([{"name": "rng0", "type": "child<rng-random>"}]),
        }
    }

    #[test]
    fn answers_are_read() {
        let composition = answers().composition().unwrap();
        assert_eq!(composition.machine, "pc-q35-10.0");
        assert_eq!(composition.vcpus.iter().collect::<Vec<_>>(), ["core-id 0, socket-id 0, thread-id 0"]);
        assert_eq!(composition.activities.iter().collect::<Vec<_>>(), ["block job j (mirror)"]);
        assert_eq!(
            composition.memory_devices.iter().collect::<Vec<_>>(),
            ["dimm: addr 2, id d1, memdev /objects/m1, node 0, size 1, slot 0"]
        );
        assert_eq!(composition.network["n0"], "user");
        assert_eq!(composition.tpms["tpm0"], "emulator as tpm-crb");
        let [disk, cd] = &composition.drives[..] else { panic!("{:#?}", composition.drives) };
        let medium = disk.medium.as_ref().unwrap();
        assert_eq!((medium.filename(), medium.chain.len(), medium.read_only), ("/s/ov.qcow2", 2, false));
        assert_eq!(medium.bitmaps.iter().collect::<Vec<_>>(), ["b"]);
        assert_eq!(medium.tuning["bps_rd"], "7");
        assert_eq!((cd.device.as_str(), cd.removable, cd.medium.is_none()), ("cdrom", true, true));
        assert_eq!(
            composition.filenames().into_iter().collect::<Vec<_>>(),
            ["/s/base.qcow2", "/s/data.raw", "/s/ov.qcow2"]
        );
        assert_eq!(medium.beside, [("backing/data-file".to_owned(), "/s/data.raw".to_owned())].into());
        let again: Composition = serde_json::from_str(&serde_json::to_string(&composition).unwrap()).unwrap();
        assert_eq!(again, composition);
    }

    #[test]
    fn what_is_not_understood_is_no_composition() {
        type Spoil = fn(&mut Answers);
        let spoils: [Spoil; 10] = [
            |answers| answers.block.edges = Value::Null,
            |answers| answers.block.nodes = json!([]),
            |answers| answers.qtree = json!("unknown command"),
            |answers| answers.machine = Value::Null,
            |answers| answers.block.drives[0]["inserted"]["image"]["format"] = Value::Null,
            |answers| answers.block.drives[0]["inserted"]["ro"] = Value::Null,
            |answers| answers.block.drives = json!({"error": 1}),
            |answers| answers.jobs = Value::Null,
            |answers| answers.vcpus = json!("x"),
            |answers| answers.memdev[0]["size"] = json!(-1),
        ];
        for (number, spoil) in spoils.into_iter().enumerate() {
            let mut answers = answers();
            spoil(&mut answers);
            assert!(answers.composition().is_err(), "{number}");
        }
    }

    #[test]
    fn unnamed_backends_are_known_by_their_order() {
        let of = |number: &str| {
            network(&format!("virtio-net-pci.0: index=0,type=nic\r\n \\ #net{number}: index=0,type=user\r\n"))
        };
        assert_eq!(of("016"), of("987"));
        assert_eq!(of("016")["#1"], "user");
    }

    proptest! {
        #[test]
        fn no_network_is_too_odd(text in "[ \\\\:=,a-z\\n]{0,80}") {
            network(&text);
        }
    }
}
