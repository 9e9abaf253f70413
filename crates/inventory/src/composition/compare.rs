//! What two compositions do not have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::model::{Composition, Device, Drive, Medium, OpenFile, is_numbered};
use crate::file_facts::{FileFacts, FileSystem};
use crate::qemu_version::QemuVersion;

/// The properties that say nothing of what a device is. `drive` names a node, which each QEMU numbers anew if the node
/// has no name of its own. A disk's geometry follows from its size when QEMU opened it (hw/block/block.c), and the disk
/// may have grown since. The number of a device's bus is the firmware's choice.
const OF_A_PROCESS: [&str; 8] = ["busnr", "drive", "cyls", "heads", "secs", "lcyls", "lheads", "lsecs"];
/// The properties that a guest knows a device by. The defaults of other properties may differ between QEMUs of
/// different versions, which the machine type makes up for. Other properties of the chipset may be where the guest has
/// put something (`MCFG` of hw/pci-host/q35.c, `smb_io_base` of hw/acpi/piix4.c), which moves with its state.
const IDENTITY: [&str; 22] = [
    "addr",
    "acpi-index",
    "bootindex",
    "bus_nr",
    "channel",
    "chassis",
    "device_id",
    "guid",
    "hotplug",
    "lun",
    "mac",
    "model",
    "multifunction",
    "nr",
    "num-queues",
    "port",
    "romsize",
    "scsi-id",
    "serial",
    "slot",
    "unit",
    "wwn",
];

/// What a difference is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The machine type.
    Machine,
    /// A device, or a property of a device.
    Device,
    /// A vCPU.
    Vcpu,
    /// RAM, or a memory device.
    Memory,
    /// The medium in a drive.
    Drive,
    /// A drive's limits, cache mode or bitmaps. Only QEMU has them; the guest does not see them.
    Tuning,
    /// A network backend.
    Network,
    /// A TPM.
    Tpm,
    /// An object.
    Object,
    /// A block job, or an export.
    Activity,
}

/// Something that two compositions do not have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The kind of thing.
    pub part: Part,
    /// The thing, as the subject of a sentence: `the device virtio-blk-pci "late"`.
    pub subject: String,
    /// How the thing differs.
    pub change: Change,
}

/// How something differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Only the first composition has it.
    OnlyFirst,
    /// Only the second composition has it.
    OnlySecond,
    /// Both compositions have it, with another value of this.
    Differs {
        /// What has another value: `property serial`, `image`.
        what: String,
        /// The value in the first composition.
        first: String,
        /// The value in the second composition.
        second: String,
    },
}

impl Difference {
    /// Tells the difference as what happened to a guest between two looks.
    pub fn as_event(&self) -> String {
        let Difference { part, subject, change } = self;
        match (change, part) {
            (Change::OnlyFirst, Part::Activity) => format!("{subject} has ended"),
            (Change::OnlySecond, Part::Activity) => format!("{subject} was begun"),
            (Change::OnlyFirst, _) => format!("{subject} was removed"),
            (Change::OnlySecond, _) => format!("{subject} was added"),
            (Change::Differs { what, first, second }, _) => {
                format!("{what} of {subject} is now {second}, and was {first}")
            }
        }
    }

    /// Tells the difference as what a target's QEMU has and lacks.
    pub fn as_mismatch(&self, guest: &str, target: &str) -> String {
        let Difference { subject, change, .. } = self;
        match change {
            Change::OnlyFirst => format!("{guest} has {subject}, which its QEMU on {target} lacks"),
            Change::OnlySecond => format!("the QEMU on {target} has {subject}, which {guest} lacks"),
            Change::Differs { what, first, second } => {
                format!("{what} of {subject} is {first} in {guest}, and {second} in its QEMU on {target}")
            }
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.as_event())
    }
}

/// Whether a path means the same file on two hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SameFile {
    /// The files are the same.
    Yes,
    /// The files are not the same.
    No,
    /// The first host's file is on a file system that only that host sees.
    LocalToFirst,
    /// The second host's file is on a file system that only that host sees.
    LocalToSecond,
    /// Whether they are the same cannot be known, for this reason.
    Unknown(String),
}

/// Returns whether two files are the same. Device and inode identify a file within one kernel. Between two kernels a
/// network file system's inode does, and a block device's worldwide name. Hosts installed from one image have equal
/// inodes on their local file systems.
pub fn same_file(boots: (Option<&str>, Option<&str>), first: &FileFacts, second: &FileFacts) -> SameFile {
    if boots.0.is_some() && boots.0 == boots.1 {
        return if (first.device, first.inode) == (second.device, second.inode) { SameFile::Yes } else { SameFile::No };
    }
    if let (Some(first), Some(second)) = (&first.wwid, &second.wwid) {
        return if first == second { SameFile::Yes } else { SameFile::No };
    }
    match (first.file_system, second.file_system) {
        (FileSystem::Local, _) => SameFile::LocalToFirst,
        (_, FileSystem::Local) => SameFile::LocalToSecond,
        _ if first.inode != second.inode => SameFile::No,
        (FileSystem::Network, FileSystem::Network) => same_on_network(first, second),
        _ => SameFile::Unknown(format!(
            "{} and {} may be shared or not",
            first.file_system_name, second.file_system_name
        )),
    }
}

/// Returns whether two files with one number on network file systems are the same: two exports may number alike.
fn same_on_network(first: &FileFacts, second: &FileFacts) -> SameFile {
    let handles = first.handle.as_ref().zip(second.handle.as_ref());
    let is_same_handle = handles.map(|(one, other)| one == other);
    match (&first.mounted_from, &second.mounted_from) {
        _ if is_same_handle == Some(true) => SameFile::Yes,
        (Some(one), Some(other)) if one != other => match is_same_handle {
            Some(_) => SameFile::No,
            None => SameFile::Unknown(format!("{one} and {other} may be two names of the same or not")),
        },
        // A server may have another handle for each version of NFS.
        (Some(one), Some(_)) if is_same_handle == Some(false) => SameFile::Unknown(format!(
            "{one} calls it something else on each (is it mounted with the same version of NFS?)"
        )),
        (Some(_), Some(_)) => SameFile::Yes,
        _ => SameFile::Unknown("where it is mounted from is not told".into()),
    }
}

/// Where a device comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// It belongs to every machine of its type.
    Chipset,
    /// It, or the device whose bus it is on, was asked for.
    AskedFor,
}

/// The objects that give a guest its RAM. Each host may have other ones: the guest does not see what its RAM lies on.
/// The RAM's name and size are compared.
const RAM_BACKENDS: [&str; 4] =
    ["memory-backend-file", "memory-backend-memfd", "memory-backend-ram", "memory-backend-shm"];

/// Returns what `first` and `second` do not have in common: of one guest at two moments, or of a guest and the QEMU
/// that is to take it. Files are compared where both compositions have looked at them, else their names are.
pub fn differences(first: &Composition, second: &Composition) -> Vec<Difference> {
    let mut all = Differences { all: Vec::new(), first, second, same_release: release(first) == release(second) };
    if first.machine != second.machine {
        all.differs(Part::Machine, "the machine", "type", &first.machine, &second.machine);
    }
    all.devices(&first.devices, &second.devices, Origin::Chipset);
    // Devices without an id are compared on their buses.
    let peripheral = |(id, kind): (&String, &String)| (!is_numbered(id)).then(|| format!("the device {kind} \"{id}\""));
    let on_bus = ids(&first.devices).union(&ids(&second.devices)).cloned().collect::<BTreeSet<String>>();
    let busless = |peripherals: &BTreeMap<String, String>| -> BTreeSet<String> {
        peripherals.iter().filter(|(id, _)| !on_bus.contains(*id)).filter_map(peripheral).collect()
    };
    all.sets(Part::Device, &busless(&first.peripherals), &busless(&second.peripherals), |device| device.clone());
    all.sets(Part::Vcpu, &first.vcpus, &second.vcpus, |place| format!("the vCPU at {place}"));
    all.sets(Part::Memory, &first.memory_devices, &second.memory_devices, |device| {
        format!("the memory device {device}")
    });
    let ram = |composition: &Composition| -> BTreeSet<String> {
        composition.ram.iter().map(|ram| format!("RAM \"{}\" of {} bytes", ram.id, ram.bytes)).collect()
    };
    all.sets(Part::Memory, &ram(first), &ram(second), |ram| ram.clone());
    all.drives(&first.drives, &second.drives);
    all.maps(Part::Network, &first.network, &second.network, |name, kind| {
        format!("the network backend {name} ({kind})")
    });
    all.maps(Part::Tpm, &first.tpms, &second.tpms, |id, kind| format!("the TPM {id} ({kind})"));
    let objects = |composition: &Composition| -> BTreeMap<String, String> {
        let is_compared = |(_, kind): &(&String, &String)| !RAM_BACKENDS.contains(&kind.as_str());
        composition.objects.iter().filter(is_compared).map(|(id, kind)| (id.clone(), kind.clone())).collect()
    };
    all.maps(Part::Object, &objects(first), &objects(second), |id, kind| format!("the object {id} ({kind})"));
    all.sets(Part::Activity, &first.activities, &second.activities, |activity| format!("the {activity}"));
    all.all
}

fn release(composition: &Composition) -> Option<(u32, u32)> {
    composition.qemu.map(|QemuVersion { major, minor, .. }| (major, minor))
}

/// Returns the ids of devices on buses.
fn ids(devices: &[Device]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for device in devices {
        all.insert(device.id.clone());
        all.append(&mut ids(&device.children));
    }
    all
}

struct Differences<'a> {
    all: Vec<Difference>,
    first: &'a Composition,
    second: &'a Composition,
    /// Whether both QEMUs are of one release.
    same_release: bool,
}

impl Differences<'_> {
    fn add(&mut self, part: Part, subject: impl Into<String>, change: Change) {
        self.all.push(Difference { part, subject: subject.into(), change });
    }

    fn differs(&mut self, part: Part, subject: &str, what: &str, first: &str, second: &str) {
        let change = Change::Differs { what: what.into(), first: first.into(), second: second.into() };
        self.add(part, subject, change);
    }

    fn sets(
        &mut self,
        part: Part,
        first: &BTreeSet<String>,
        second: &BTreeSet<String>,
        say: impl Fn(&String) -> String,
    ) {
        first.difference(second).for_each(|gone| self.add(part, say(gone), Change::OnlyFirst));
        second.difference(first).for_each(|new| self.add(part, say(new), Change::OnlySecond));
    }

    fn maps(
        &mut self,
        part: Part,
        first: &BTreeMap<String, String>,
        second: &BTreeMap<String, String>,
        say: impl Fn(&String, &String) -> String,
    ) {
        let entries = |map: &BTreeMap<String, String>| -> BTreeSet<String> {
            map.iter().map(|(name, value)| say(name, value)).collect()
        };
        self.sets(part, &entries(first), &entries(second), |entry| entry.clone());
    }

    /// Returns whether a device was asked for, and is not the chipset's.
    fn was_asked_for(&self, device: &Device) -> bool {
        !device.id.is_empty() || self.first.peripherals.values().any(|kind| *kind == device.driver)
    }

    /// Compares devices on the same buses, by what the guest finds them by. `of`: the device that has these buses.
    fn devices(&mut self, first: &[Device], second: &[Device], of: Origin) {
        let mut rest: Vec<&Device> = second.iter().collect();
        for device in first {
            match rest.iter().position(|other| location(other) == location(device)) {
                Some(at) => {
                    let other = rest.remove(at);
                    let origin = if self.was_asked_for(device) { Origin::AskedFor } else { of };
                    self.properties(device, other, origin);
                    self.devices(&device.children, &other.children, origin);
                }
                None => self.add(Part::Device, name(device), Change::OnlyFirst),
            }
        }
        rest.into_iter().for_each(|device| self.add(Part::Device, name(device), Change::OnlySecond));
    }

    fn properties(&mut self, first: &Device, second: &Device, origin: Origin) {
        for (property, value) in &first.properties {
            let is_compared = match self.same_release && origin == Origin::AskedFor {
                true => !OF_A_PROCESS.contains(&property.as_str()),
                false => IDENTITY.contains(&property.as_str()),
            };
            match second.properties.get(property) {
                Some(other) if other != value && is_compared && !(is_of_chance(value) && is_of_chance(other)) => {
                    self.differs(Part::Device, &name(first), &format!("property {property}"), value, other);
                }
                _ => {}
            }
        }
    }

    fn drives(&mut self, first: &[Drive], second: &[Drive]) {
        for drive in first {
            let subject = drive_name(drive);
            let Some(other) = second.iter().find(|other| other.device == drive.device) else {
                self.add(Part::Drive, subject, Change::OnlyFirst);
                continue;
            };
            match (&drive.medium, &other.medium) {
                (None, None) => {}
                (Some(medium), Some(other)) => self.media(&subject, medium, other),
                (first, second) => {
                    let name = |medium: &Option<Medium>| {
                        medium.as_ref().map_or_else(|| "none".to_owned(), |medium| medium.filename().to_owned())
                    };
                    self.differs(Part::Drive, &subject, "the medium", &name(first), &name(second));
                }
            }
        }
        let is_new = |drive: &&Drive| !first.iter().any(|other| other.device == drive.device);
        second.iter().filter(is_new).for_each(|drive| self.add(Part::Drive, drive_name(drive), Change::OnlySecond));
    }

    fn media(&mut self, subject: &str, first: &Medium, second: &Medium) {
        let access = |medium: &Medium| if medium.read_only { "read-only" } else { "read and write" };
        if first.read_only != second.read_only {
            self.differs(Part::Drive, subject, "the access", access(first), access(second));
        }
        let names =
            |medium: &Medium| medium.chain.iter().map(|image| image.filename.as_str()).collect::<Vec<_>>().join(" on ");
        if first.chain.len() != second.chain.len() {
            return self.differs(Part::Drive, subject, "the image", &names(first), &names(second));
        }
        for (depth, (image, other)) in first.chain.iter().zip(&second.chain).enumerate() {
            // An image that is only read may be a copy.
            let may_be_copy = depth > 0 || first.read_only;
            if let Some((first, second)) = self.files(&image.filename, &other.filename, may_be_copy) {
                self.differs(Part::Drive, subject, "the image", &first, &second);
            }
            if image.format != other.format {
                self.differs(Part::Drive, subject, "the format", &image.format, &other.format);
            }
            if image.virtual_bytes != other.virtual_bytes {
                let (first, second) = (image.virtual_bytes.to_string(), other.virtual_bytes.to_string());
                self.differs(Part::Drive, subject, "the size in bytes", &first, &second);
            }
        }
        let ways: BTreeSet<&String> = first.beside.keys().chain(second.beside.keys()).collect();
        for way in ways {
            let [one, other] = [first, second].map(|medium| medium.beside.get(way).map_or("no file", String::as_str));
            let may_be_copy = Medium::is_backing(way) || first.read_only;
            if let Some((one, other)) = self.files(one, other, may_be_copy) {
                self.differs(Part::Drive, subject, &format!("the file at \"{way}\" below the image"), &one, &other);
            }
        }
        let settings: BTreeSet<&String> = first.tuning.keys().chain(second.tuning.keys()).collect();
        for setting in settings {
            let of = |medium: &Medium| medium.tuning.get(setting).map_or("unset", String::as_str).to_owned();
            if of(first) != of(second) {
                self.differs(Part::Tuning, subject, setting, &of(first), &of(second));
            }
        }
        self.sets(Part::Tuning, &first.bitmaps, &second.bitmaps, |bitmap| {
            format!("the dirty bitmap {bitmap} of {subject}")
        });
    }

    /// Returns how two images are told apart, if they are not the same.
    fn files(&self, first: &str, second: &str, may_be_copy: bool) -> Option<(String, String)> {
        let seen = (self.first.file(first), self.second.file(second));
        let (Some(here), Some(there)) = seen else {
            return (first != second).then(|| (first.to_owned(), second.to_owned()));
        };
        if here.moves && there.moves {
            return None;
        }
        // A path does not say everything: an offset, an option of a filter.
        if first != second && first.starts_with("json:") && second.starts_with("json:") {
            return Some((first.to_owned(), second.to_owned()));
        }
        let told = |file: &OpenFile| match (&file.facts, file.is_open) {
            (Some(_), true) => None,
            (Some(_), false) => Some(format!("{} as it was when QEMU opened it, now replaced", file.filename)),
            (None, _) => Some(format!("{}, which is not to be found any more", file.filename)),
        };
        let name = |file: &OpenFile| told(file).unwrap_or_else(|| file.filename.clone());
        let (Some(one), Some(other)) = (&here.facts, &there.facts) else { return Some((name(here), name(there))) };
        if !here.is_open || !there.is_open {
            return Some((name(here), name(there)));
        }
        let boots = (self.first.boot_id.as_deref(), self.second.boot_id.as_deref());
        let is_same = match same_file(boots, one, other) {
            SameFile::Yes | SameFile::Unknown(_) => true,
            SameFile::No | SameFile::LocalToFirst | SameFile::LocalToSecond => {
                may_be_copy && file_name(first) == file_name(second)
            }
        };
        let identity = |file: &OpenFile, facts: &FileFacts| format!("{} (inode {})", file.filename, facts.inode);
        (!is_same).then(|| (identity(here, one), identity(there, other)))
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns whether a property names something without a name of its own by a number of chance: `"#net016"` (id_generate
/// of QEMU's util/id.c).
fn is_of_chance(value: &str) -> bool {
    value.starts_with("\"#")
}

/// Returns what a guest finds a device by.
fn location(device: &Device) -> (&str, &str, &str, &str) {
    let address = device.properties.get("addr").map_or("", String::as_str);
    (&device.bus, &device.driver, &device.id, address)
}

fn name(device: &Device) -> String {
    let id = if device.id.is_empty() { String::new() } else { format!(" \"{}\"", device.id) };
    let address = device.properties.get("addr").map_or(String::new(), |address| format!(", address {address}"));
    format!("the device {}{id} (on {}{address})", device.driver, device.bus)
}

pub(super) fn drive_name(drive: &Drive) -> String {
    let device = drive.device.trim_start_matches("/machine/").trim_end_matches("/virtio-backend");
    match drive.name.is_empty() {
        true => format!("the drive of {device}"),
        false => format!("the drive \"{}\" of {device}", drive.name),
    }
}

#[cfg(test)]
mod tests {
    use super::super::read::tests::answers;
    use super::*;

    fn composition() -> Composition {
        answers().composition().unwrap()
    }

    fn differences_of(change: impl FnOnce(&mut Composition)) -> Vec<(Part, String)> {
        let first = composition();
        let mut second = first.clone();
        change(&mut second);
        let all = differences(&first, &second);
        all.iter().map(|difference| (difference.part, difference.as_event())).collect()
    }

    fn medium(composition: &mut Composition) -> &mut Medium {
        composition.drives[0].medium.as_mut().unwrap()
    }

    fn facts(filename: &str, inode: u64) -> OpenFile {
        let facts = FileFacts {
            path: filename.into(),
            readable: true,
            writable: true,
            file_system: FileSystem::Network,
            file_system_name: "nfs".into(),
            device: 1,
            inode,
            mounted_from: Some("nas:/vm".into()),
            handle: None,
            wwid: None,
        };
        OpenFile { filename: filename.into(), facts: Some(facts), is_open: true, moves: false }
    }

    #[test]
    fn what_is_the_same_does_not_differ() {
        assert_eq!(differences_of(|_| {}), []);
        let netdev = |value: &'static str| {
            let mut composition = composition();
            let device = &mut composition.devices[0].children[0];
            device.id = "net0".into();
            device.properties.insert("netdev".into(), value.into());
            composition
        };
        assert_eq!(differences(&netdev("\"#net016\""), &netdev("\"#net087\"")), []);
        // What the RAM lies on is each host's own.
        let ram = |kind: &str| {
            let mut composition = composition();
            composition.objects.insert("ram0".into(), kind.into());
            composition
        };
        assert_eq!(differences(&ram("memory-backend-memfd"), &ram("memory-backend-ram")), []);
        assert_eq!(differences(&netdev("\"#net016\""), &netdev("\"n0\"")).len(), 1);
        // Another process numbers its nodes in another way.
        assert_eq!(
            differences_of(|c| drop(c.devices[0].children[0].properties.insert("drive".into(), "\"#b1\"".into()))),
            []
        );
    }

    /// Checks that each part of a composition that is changed alone is reported, once, by its name.
    #[test]
    fn each_part_is_compared() {
        type Spoil = fn(&mut Composition);
        let cases: [(Part, &str, Spoil); 21] = [
            (Part::Machine, "pc-q35-7.2", |c| c.machine = "pc-q35-7.2".into()),
            (Part::Device, "virtio-blk-pci (on pcie.0, address 05.0) was removed", |c| c.devices[0].children.clear()),
            (Part::Device, "\"late\" (on pcie.0, address 06.0) was added", |c| {
                let mut late = c.devices[0].children[0].clone();
                (late.id, late.children) = ("late".into(), Vec::new());
                late.properties.insert("addr".into(), "06.0".into());
                c.devices[0].children.push(late);
            }),
            (Part::Device, "property serial", |c| {
                drop(c.devices[0].children[0].children[0].properties.insert("serial".into(), "\"x\"".into()));
            }),
            (Part::Device, "the device ide-cd \"cdrom\" was removed", |c| c.peripherals.clear()),
            (Part::Vcpu, "the vCPU at socket-id 1 was added", |c| {
                c.vcpus.insert("socket-id 1".into());
            }),
            (Part::Memory, "was removed", |c| c.memory_devices.clear()),
            (Part::Memory, "of 1 bytes was added", |c| {
                c.ram.push(super::super::RamBackend { id: "r".into(), bytes: 1 })
            }),
            (Part::Drive, "the medium of the drive \"cd0\" of cdrom is now", |c| {
                c.drives[1].medium = Some(Medium { bitmaps: BTreeSet::new(), ..c.drives[0].medium.clone().unwrap() });
            }),
            (Part::Drive, "the access of the drive", |c| medium(c).read_only = true),
            (Part::Drive, "the image of the drive", |c| medium(c).chain.truncate(1)),
            (Part::Drive, "is now /s/new.qcow2", |c| medium(c).chain[0].filename = "/s/new.qcow2".into()),
            (Part::Drive, "\"backing/data-file\" below the image of the drive \"d0\"", |c| {
                medium(c).beside.values_mut().for_each(|file| *file = "/s/other.raw".into());
            }),
            (Part::Drive, "the format of the drive", |c| medium(c).chain[1].format = "raw".into()),
            (Part::Drive, "the size in bytes", |c| medium(c).chain[0].virtual_bytes += 1),
            (Part::Drive, "was removed", |c| drop(c.drives.pop())),
            (Part::Tuning, "bps_rd of the drive", |c| drop(medium(c).tuning.remove("bps_rd"))),
            (Part::Network, "n0 (user) was removed", |c| drop(c.network.remove("n0"))),
            (Part::Tpm, "tpm0", |c| c.tpms.clear()),
            (Part::Object, "the object rng0 (rng-random) was removed", |c| drop(c.objects.remove("rng0"))),
            (Part::Activity, "the block job j (mirror) has ended", |c| c.activities.clear()),
        ];
        for (number, (part, words, spoil)) in cases.into_iter().enumerate() {
            let told = differences_of(spoil);
            let [(found, sentence)] = &told[..] else { panic!("case {number}: {told:#?}") };
            assert_eq!(*found, part, "case {number}: {sentence}");
            assert!(sentence.contains(words), "case {number}: {sentence}");
        }
    }

    #[test]
    fn between_releases_only_what_a_guest_knows_a_device_by_counts() {
        let spoil = |property: &'static str| {
            differences_of(move |c| {
                c.qemu = Some(QemuVersion { major: 7, minor: 2, micro: 0 });
                drop(c.devices[0].children[0].properties.insert(property.into(), "9".into()));
            })
        };
        let mut first = composition();
        first.peripherals.insert("device[3]".into(), "virtio-blk-pci".into());
        first.devices[0].children[0].properties.insert("x-new".into(), "1".into());
        // This is where the guest has put something of the chipset.
        first.devices[0].properties.insert("MCFG".into(), "1".into());
        let mut second = first.clone();
        second.qemu = Some(QemuVersion { major: 7, minor: 2, micro: 0 });
        second.devices[0].children[0].properties.insert("x-new".into(), "2".into());
        second.devices[0].properties.insert("MCFG".into(), "2".into());
        assert_eq!(differences(&first, &second), []);
        second.qemu = first.qemu;
        assert_eq!(differences(&first, &second).len(), 1);
        assert_eq!(spoil("addr").len(), 2, "another address is another device");
    }

    #[test]
    fn files_are_compared_by_what_they_are() {
        let mut first = composition();
        first.files = vec![facts("/s/ov.qcow2", 5), facts("/s/base.qcow2", 6)];
        first.boot_id = Some("a".into());
        let mut second = first.clone();
        second.boot_id = Some("b".into());
        let differs = |first: &Composition, second: &Composition| {
            differences(first, second)
                .into_iter()
                .map(|difference| difference.as_mismatch("web1", "hostb"))
                .collect::<Vec<_>>()
        };
        assert_eq!(differs(&first, &second), [""; 0]);
        // The mount point is another, the file is the same.
        second.files[0].filename = "/t/ov.qcow2".into();
        medium(&mut second).chain[0].filename = "/t/ov.qcow2".into();
        assert_eq!(differs(&first, &second), [""; 0]);
        second.files[0].facts.as_mut().unwrap().inode = 7;
        let told = differs(&first, &second);
        assert!(told.len() == 1 && told[0].contains("/s/ov.qcow2 (inode 5) in web1"), "{told:?}");
        let mut second = first.clone();
        second.files[0].is_open = false;
        assert!(differs(&first, &second)[0].contains("now replaced"));
        second.files[0].facts = None;
        assert!(differs(&first, &second)[0].contains("not to be found"));
        // What moves with the guest is each host's own.
        let (mut first, mut second) = (first, second);
        (first.files[0].moves, second.files[0].moves) = (true, true);
        assert_eq!(differs(&first, &second), [""; 0]);
        first.files[0].moves = false;
        // The file is the same, read from another place of it.
        let offset = |composition: &Composition, bytes: u64| {
            let mut composition = composition.clone();
            let name = format!("json:{{\"offset\": {bytes}, \"file\": \"/s/ov.qcow2\"}}");
            medium(&mut composition).chain[0].filename.clone_from(&name);
            composition.files[0] = OpenFile { filename: name, ..facts("", 5) };
            composition
        };
        assert_eq!(differs(&offset(&first, 512), &offset(&first, 512)), [""; 0]);
        assert_eq!(differs(&offset(&first, 512), &offset(&first, 1024)).len(), 1);
        // A base that is only read may be a copy.
        let mut second = first.clone();
        second.files[1].facts.as_mut().unwrap().inode = 7;
        assert_eq!(differs(&first, &second), [""; 0]);
    }
}
