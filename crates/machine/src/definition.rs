//! A VM as a TOML file.
//!
//! ```toml
//! name = "web1"
//! memory = "4 GiB"            # MiB, GiB or TiB
//! cpus = 2
//! cpu = "EPYC-v4"             # QEMU's model and flags; without it: host under KVM, max under TCG
//! machine = "q35"             # QEMU's machine type, with options if need be; versioned when first started
//! accel = "auto"              # kvm where it works, else tcg
//! hugepages = "2 MiB"         # none without it
//! kernel = "/boot/vmlinuz"    # with initrd and append: a direct boot
//!
//! [[disk]]
//! path = "/srv/images/web1.qcow2"
//! format = "qcow2"            # or raw; never guessed, since a guest can write a header
//! readonly = false
//! cache = "none"              # or writeback
//!
//! [[nic]]
//! bridge = "br0"              # or tap = "tap7"
//! mac = "52:54:00:12:34:56"   # without it: derived from the name and the NIC's place
//!
//! [qemu]
//! binary = "/usr/bin/qemu-system-x86_64"
//! args = ["-device", "virtio-rng-pci"]
//!
//! [migration]
//! downtime_limit_ms = 300
//! multifd_channels = 4        # without it: what fits
//! priority = 10               # higher goes first
//! ```
//!
//! A [`Definition`] that exists is valid: [`Definition::parse`] and serde both see to that, by the same rules.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Value as Toml;

use crate::reader::{ParseError, Reader, Table, Value, quote, read};
use crate::units::{GIB, MIB, TIB, exact_bytes, parse_bytes};

/// Longest name.
pub const NAME_BYTES_MAX: usize = 63;
/// Guests' RAM.
pub const MEMORY_BYTES: RangeInclusive<u64> = 16 * MIB..=64 * TIB;
/// Virtual CPUs.
pub const CPUS: RangeInclusive<u64> = 1..=1024;
/// Most disks.
pub const DISKS_MAX: usize = 64;
/// Most NICs.
pub const NICS_MAX: usize = 32;
/// Most extra arguments.
pub const ARGS_MAX: usize = 256;
/// Longest extra argument, path, CPU model or kernel command line.
pub const VALUE_BYTES_MAX: usize = 4096;
/// `downtime-limit`, with QEMU's own upper bound (MAX_MIGRATE_DOWNTIME of its migration/options.c).
pub const DOWNTIME_LIMIT_MS: RangeInclusive<u64> = 1..=2_000_000;
/// multifd channels: QEMU takes 1 to 255, a stream each is kept free for the others.
pub const MULTIFD_CHANNELS: RangeInclusive<u64> = 1..=64;
/// Priorities.
pub const PRIORITY: RangeInclusive<u64> = 0..=100;
/// Longest name of a network interface: IFNAMSIZ of linux/if.h, without its end.
const INTERFACE_BYTES_MAX: usize = 15;
/// The sizes of huge pages on x86-64.
const HUGEPAGES: [u64; 2] = [2 * MIB, GIB];

/// A VM. Serialises as it is; deserialising applies the rules of [`Definition::parse`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Definition {
    /// `[a-z0-9][a-z0-9._-]{0,62}`.
    pub name: String,
    /// RAM, whole MiB.
    pub memory_bytes: u64,
    /// Virtual CPUs.
    pub cpus: u32,
    /// QEMU's `-cpu`: model and flags. None: see [`Definition::cpu_for`].
    pub cpu: Option<String>,
    /// QEMU's `-machine`: type, perhaps with options.
    pub machine: String,
    /// Who runs the guest's instructions.
    pub accel: Accel,
    /// Size of the huge pages below its RAM.
    pub hugepages: Option<u64>,
    /// A kernel to boot directly.
    pub kernel: Option<PathBuf>,
    /// Its initramfs.
    pub initrd: Option<PathBuf>,
    /// Its command line.
    pub append: Option<String>,
    /// In the guest's order.
    pub disks: Vec<Disk>,
    /// In the guest's order.
    pub nics: Vec<Nic>,
    /// Which QEMU, and what else it is told.
    pub qemu: Qemu,
    /// How it is moved.
    pub migration: Migration,
}

/// Who runs a guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// KVM where it works, else TCG. Only in a definition: what runs is one of the others.
    #[default]
    Auto,
    /// The CPU.
    Kvm,
    /// QEMU.
    Tcg,
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word(&ACCELS, *self))
    }
}

/// An image's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// As it is.
    Raw,
    /// QEMU's.
    Qcow2,
}

/// How QEMU uses the host's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Past it (O_DIRECT): two hosts see the same bytes.
    #[default]
    None,
    /// Through it, for file systems without O_DIRECT.
    Writeback,
}

const ACCELS: [(&str, Accel); 3] = [("auto", Accel::Auto), ("kvm", Accel::Kvm), ("tcg", Accel::Tcg)];
const FORMATS: [(&str, DiskFormat); 2] = [("raw", DiskFormat::Raw), ("qcow2", DiskFormat::Qcow2)];
const CACHES: [(&str, Cache); 2] = [("none", Cache::None), ("writeback", Cache::Writeback)];

/// The word of a value: each value is in its table.
fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, other)| *other == value).map_or("", |(word, _)| word)
}

/// A disk on storage that source and target share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The image or the block device, absolute.
    pub path: PathBuf,
    /// What is in it.
    pub format: DiskFormat,
    /// Whether the guest may only read.
    pub readonly: bool,
    /// How it is cached.
    pub cache: Cache,
}

/// A network card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// What it is plugged into.
    #[serde(flatten)]
    pub attachment: Attachment,
    /// Its address.
    pub mac: MacAddress,
}

/// What a NIC is plugged into.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attachment {
    /// A bridge of the host: the tap between them is made and named by the agent.
    Bridge(String),
    /// A tap device of this name.
    Tap(String),
}

/// Which QEMU, and what else it is told.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Qemu {
    /// The program; none: the agent's.
    pub binary: Option<PathBuf>,
    /// More arguments, verbatim.
    pub args: Vec<String>,
}

/// How a VM is moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    /// QEMU's `downtime-limit`.
    pub downtime_limit_ms: u64,
    /// multifd channels; none: as many as fit.
    pub multifd_channels: Option<u8>,
    /// Of several that wait, the highest goes first.
    pub priority: u8,
}

impl Default for Migration {
    fn default() -> Self {
        // 300 ms is QEMU's own default.
        Self { downtime_limit_ms: 300, multifd_channels: None, priority: 0 }
    }
}

/// The address of a network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The address of a VM's NIC by their names, the same on every host and in every version. 40 bits differ (under
    /// QEMU's 52:54:00 it would be 24, and of a thousand NICs two would meet with a probability of 3 %); the first
    /// byte, 52, says "locally administered, one card" (IEEE 802, 8.2).
    pub fn derived(vm: &str, nic: usize) -> MacAddress {
        // FNV-1a, and the finaliser of splitmix64, so that names that differ in the last letter differ in all bytes.
        let bytes = vm.bytes().chain([0]).chain((nic as u64).to_le_bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let [a, b, c, d, e, ..] = (hash ^ hash >> 31).to_le_bytes();
        MacAddress([0x52, a, b, c, d, e])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl std::str::FromStr for MacAddress {
    type Err = String;

    /// Six bytes in hexadecimal with colons, of one card. The error says what to write.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let byte = |part: &&str| {
            let hexadecimal = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            hexadecimal.then(|| u8::from_str_radix(part, 16).ok()).flatten()
        };
        let bytes: Option<Vec<u8>> = parts.iter().map(byte).collect();
        let bytes: Option<[u8; 6]> = bytes.and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or("write six bytes, such as \"52:54:00:12:34:56\", or leave the line out")?;
        if bytes[0] & 1 == 1 || bytes == [0; 6] {
            return Err("that is no address of one card: begin with 52:54:00, or leave the line out".into());
        }
        Ok(MacAddress(bytes))
    }
}

impl Serialize for MacAddress {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MacAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Definition {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Definition::serialize(self, to)
    }
}

impl<'de> Deserialize<'de> for Definition {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let claimed = Definition::deserialize(from)?;
        Definition::parse(&claimed.to_toml(), "definition").map_err(serde::de::Error::custom)
    }
}

/// What is wrong with a name of a VM or host: what to do about it.
pub(crate) fn check_name(name: &str) -> Result<String, String> {
    let first = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let rest = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b));
    if first && rest && name.len() <= NAME_BYTES_MAX {
        return Ok(name.to_owned());
    }
    Err(format!("names have 1 to {NAME_BYTES_MAX} of a-z 0-9 . _ - and begin with a letter or digit"))
}

/// Whether `name` can be a VM's: for names from a command line or a peer.
pub fn is_name(name: &str) -> bool {
    check_name(name).is_ok()
}

/// An absolute path without `..`, which a symbolic link would make mean something else on another host.
fn check_path(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if !path.is_absolute() {
        return Err(format!("give it from the root, such as \"/srv/{}\"", text.trim_start_matches("./")));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err("give it without \"..\"".into());
    }
    Ok(path.to_owned())
}

/// The name of a network interface, by the kernel's rules (dev_valid_name of net/core/dev.c) and without QEMU's comma.
fn check_interface(text: &str) -> Result<String, String> {
    let unfit = |c: char| c == '/' || c == ':' || c == ',' || c.is_whitespace();
    if text.len() > INTERFACE_BYTES_MAX || text == "." || text == ".." || text.contains(unfit) {
        return Err(format!("interfaces' names have at most {INTERFACE_BYTES_MAX} letters and no / : , or blanks"));
    }
    Ok(text.to_owned())
}

/// A model or type, and options after commas.
fn check_model(text: &str) -> Result<String, String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-+=,".contains(&b);
    if !text.bytes().all(fits) || !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err("give a name, and options after commas without blanks, such as \"EPYC-v4,+avx2\"".into());
    }
    Ok(text.to_owned())
}

/// Arguments that would be at odds with what the agent says, and what to do instead.
const RESERVED: [(&str, &str); 11] = [
    ("incoming", "the agent says when a QEMU waits for a migration: leave it out"),
    ("S", "the agent says when a guest runs: leave it out"),
    ("daemonize", "the agent keeps QEMU running by itself: leave it out"),
    ("loadvm", "a migration would start from a snapshot: leave it out"),
    ("snapshot", "what the guest writes would stay on the source: leave it out"),
    ("name", "use name = ..."),
    ("m", "use memory = ..."),
    ("smp", "use cpus = ..."),
    ("cpu", "use cpu = ..."),
    ("accel", "use accel = ..."),
    ("enable-kvm", "use accel = \"kvm\""),
];

impl Definition {
    /// Reads a VM's file; `file_name` is for messages. Errors tell everything that is wrong at once.
    pub fn parse(text: &str, file_name: &str) -> Result<Definition, ParseError> {
        read(text, file_name, Definition::read)
    }

    fn read(reader: &mut Reader, mut root: Table) -> Definition {
        let name = root.require(reader, "name", "name = \"web1\"");
        let name = name.and_then(|value| value.parsed(reader, VALUE_BYTES_MAX, check_name)).unwrap_or_default();
        let memory = root.require(reader, "memory", "memory = \"4 GiB\"");
        let memory_bytes = memory.as_ref().and_then(|value| {
            value.parsed(reader, 64, |text| {
                let bytes = parse_bytes(text)?;
                let (least, most) = (exact_bytes(*MEMORY_BYTES.start()), exact_bytes(*MEMORY_BYTES.end()));
                MEMORY_BYTES.contains(&bytes).then_some(bytes).ok_or_else(|| format!("it may be {least} to {most}"))
            })
        });
        let cpus = root.get("cpus").map_or(Some(1), |value| value.integer(reader, CPUS)).unwrap_or(1);
        let cpu = root.get("cpu").and_then(|value| value.parsed(reader, VALUE_BYTES_MAX, check_model));
        let machine = root.get("machine").and_then(|value| value.parsed(reader, VALUE_BYTES_MAX, check_model));
        let accel = root.get("accel").and_then(|value| value.word(reader, &ACCELS)).unwrap_or_default();
        let hugepages = root.get("hugepages").and_then(|value| {
            let bytes = value.parsed(reader, 64, |text| {
                let bytes = parse_bytes(text)?;
                HUGEPAGES.contains(&bytes).then_some(bytes).ok_or("x86-64 has pages of \"2 MiB\" and \"1 GiB\"".into())
            })?;
            if let Some(memory) = memory_bytes.filter(|memory| !memory.is_multiple_of(bytes)) {
                let (pages, memory) = (exact_bytes(bytes), exact_bytes(memory));
                let reason = format!("memory of {memory} is no whole number of pages of {pages}");
                value.fault(reader, reason, format!("make memory a multiple of {pages}, or use smaller pages"));
            }
            Some(bytes)
        });

        let (kernel, initrd, append) = (root.get("kernel"), root.get("initrd"), root.get("append"));
        for value in [&initrd, &append].into_iter().flatten().filter(|_| kernel.is_none()) {
            let cure = "add kernel = \"/boot/vmlinuz\", or remove this line";
            value.fault(reader, format!("{} without a kernel", value.key), cure);
        }
        let kernel = read_path(reader, kernel);
        let initrd = read_path(reader, initrd);
        let append = append.and_then(|value| value.string(reader, VALUE_BYTES_MAX)).map(str::to_owned);

        let disks = root.get("disk").map_or(Vec::new(), |value| value.tables(reader, "[[disk]]", DISKS_MAX));
        let nics = root.get("nic").map_or(Vec::new(), |value| value.tables(reader, "[[nic]]", NICS_MAX));
        let qemu = root.get("qemu").and_then(|value| value.table(reader, "[qemu]"));
        let migration = root.get("migration").and_then(|value| value.table(reader, "[migration]"));
        root.finish(reader, &[]);
        Definition {
            memory_bytes: memory_bytes.unwrap_or_default(),
            cpus: cpus as u32,
            cpu,
            machine: machine.unwrap_or_else(|| "q35".into()),
            accel,
            hugepages,
            kernel,
            initrd,
            append,
            disks: read_disks(reader, disks),
            nics: read_nics(reader, nics, &name),
            qemu: qemu.map_or_else(Qemu::default, |table| read_qemu(reader, table)),
            migration: migration.map_or_else(Migration::default, |table| read_migration(reader, table)),
            name,
        }
    }

    /// The file again, complete: [`Definition::parse`] makes the same of it.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: Toml| text.push_str(&format!("{key} = {value}\n"));
        let path = |path: &PathBuf| Toml::from(path.to_string_lossy().into_owned());
        let integer = |number: u64| Toml::from(i64::try_from(number).unwrap_or(i64::MAX));
        line("name", self.name.as_str().into());
        line("memory", exact_bytes(self.memory_bytes).into());
        line("cpus", i64::from(self.cpus).into());
        self.cpu.iter().for_each(|cpu| line("cpu", cpu.as_str().into()));
        line("machine", self.machine.as_str().into());
        line("accel", word(&ACCELS, self.accel).into());
        self.hugepages.iter().for_each(|bytes| line("hugepages", exact_bytes(*bytes).into()));
        self.kernel.iter().for_each(|kernel| line("kernel", path(kernel)));
        self.initrd.iter().for_each(|initrd| line("initrd", path(initrd)));
        self.append.iter().for_each(|append| line("append", append.as_str().into()));
        for disk in &self.disks {
            line("\n[[disk]]\npath", path(&disk.path));
            line("format", word(&FORMATS, disk.format).into());
            line("readonly", disk.readonly.into());
            line("cache", word(&CACHES, disk.cache).into());
        }
        for nic in &self.nics {
            match &nic.attachment {
                Attachment::Bridge(name) => line("\n[[nic]]\nbridge", name.as_str().into()),
                Attachment::Tap(name) => line("\n[[nic]]\ntap", name.as_str().into()),
            }
            line("mac", nic.mac.to_string().into());
        }
        if self.qemu != Qemu::default() {
            // An empty list says nothing, but gives the section a line to begin with.
            let args: Vec<Toml> = self.qemu.args.iter().map(|arg| arg.as_str().into()).collect();
            line("\n[qemu]\nargs", args.into());
            self.qemu.binary.iter().for_each(|binary| line("binary", path(binary)));
        }
        line("\n[migration]\ndowntime_limit_ms", integer(self.migration.downtime_limit_ms));
        self.migration
            .multifd_channels
            .iter()
            .for_each(|channels| line("multifd_channels", i64::from(*channels).into()));
        line("priority", i64::from(self.migration.priority).into());
        text
    }

    /// QEMU's `-cpu` under `accel`: `host` is what KVM is fastest with and TCG lacks.
    pub fn cpu_for(&self, accel: Accel) -> &str {
        let default = if accel == Accel::Tcg { "max" } else { "host" };
        self.cpu.as_deref().unwrap_or(default)
    }

    /// The machine type without its options.
    pub fn machine_type(&self) -> &str {
        self.machine.split(',').next().unwrap_or_default()
    }

    /// Puts what an alias stood for (`pc-q35-10.0`) in its place and keeps the options: from its first start on, a
    /// guest's machine must not change with QEMU's version. False, and nothing changes, if that is no machine type.
    pub fn resolve_machine_type(&mut self, versioned: &str) -> bool {
        let machine = format!("{versioned}{}", &self.machine[self.machine_type().len()..]);
        let fits = !versioned.is_empty() && !versioned.contains(',') && machine.len() <= VALUE_BYTES_MAX;
        let fits = fits && check_model(&machine).is_ok();
        if fits {
            self.machine = machine;
        }
        fits
    }
}

/// The keys of the root table, which end up in a section when written below its header.
const ROOT_KEYS: [&str; 10] =
    ["name", "memory", "cpus", "cpu", "machine", "accel", "hugepages", "kernel", "initrd", "append"];

fn read_path(reader: &mut Reader, value: Option<Value>) -> Option<PathBuf> {
    value?.parsed(reader, VALUE_BYTES_MAX, check_path)
}

fn read_disks(reader: &mut Reader, tables: Vec<Table>) -> Vec<Disk> {
    let (mut disks, mut seen) = (Vec::new(), BTreeSet::new());
    for mut table in tables {
        let value = table.require(reader, "path", "path = \"/srv/images/web1.qcow2\"");
        let path = value.as_ref().and_then(|value| value.parsed(reader, VALUE_BYTES_MAX, check_path));
        // As components, so that a doubled slash hides nothing.
        let again = path.as_ref().is_some_and(|path| !seen.insert(path.components().collect::<PathBuf>()));
        if let Some(value) = value.filter(|_| again) {
            value.fault(reader, "this disk is there already", "remove one: two disks on one file destroy it");
        }
        let format = table.require(reader, "format", "format = \"qcow2\" or format = \"raw\"");
        let format = format.and_then(|value| value.word(reader, &FORMATS));
        let readonly = table.get("readonly").and_then(|value| value.boolean(reader)).unwrap_or_default();
        let cache = table.get("cache").and_then(|value| value.word(reader, &CACHES)).unwrap_or_default();
        table.finish(reader, &ROOT_KEYS);
        if let (Some(path), Some(format)) = (path, format) {
            disks.push(Disk { path, format, readonly, cache });
        }
    }
    disks
}

fn read_nics(reader: &mut Reader, tables: Vec<Table>, vm: &str) -> Vec<Nic> {
    let (mut nics, mut macs, mut taps) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (number, mut table) in tables.into_iter().enumerate() {
        let (bridge, tap) = (table.get("bridge"), table.get("tap"));
        let mut interface = |value: &Value| value.parsed(reader, VALUE_BYTES_MAX, check_interface);
        let attachment = match (&bridge, &tap) {
            (Some(value), None) => interface(value).map(Attachment::Bridge),
            (None, Some(value)) => interface(value).map(|name| {
                if !taps.insert(name.clone()) {
                    value.fault(reader, format!("tap {} is there already", quote(&name)), "give each NIC its own");
                }
                Attachment::Tap(name)
            }),
            (None, None) => {
                let cure = "add bridge = \"br0\" or tap = \"tap7\"";
                reader.fault(table.span.clone(), "this [[nic]] is plugged into nothing", cure);
                None
            }
            (Some(_), Some(value)) => {
                value.fault(reader, "this [[nic]] has both a bridge and a tap", "remove one");
                None
            }
        };
        let value = table.get("mac");
        let mac = match &value {
            Some(value) => value.parsed(reader, 64, |text| text.parse::<MacAddress>()),
            None => Some(MacAddress::derived(vm, number)),
        };
        if mac.is_some_and(|mac| !macs.insert(mac)) {
            let span = value.map_or(table.span.clone(), |value| value.span);
            reader.fault(span, "another NIC has this mac already", "give each NIC its own, or leave the line out");
        }
        table.finish(reader, &ROOT_KEYS);
        if let (Some(attachment), Some(mac)) = (attachment, mac) {
            nics.push(Nic { attachment, mac });
        }
    }
    nics
}

fn read_qemu(reader: &mut Reader, mut table: Table) -> Qemu {
    let binary = read_path(reader, table.get("binary"));
    let args = table.get("args").map_or(Vec::new(), |value| value.strings(reader, ARGS_MAX, VALUE_BYTES_MAX));
    for (value, text) in &args {
        let option = text.strip_prefix('-').map(|text| text.strip_prefix('-').unwrap_or(text));
        if let Some((_, cure)) = RESERVED.iter().find(|(name, _)| option == Some(name)) {
            value.fault(reader, format!("args cannot have {}", quote(text)), *cure);
        }
    }
    table.finish(reader, &ROOT_KEYS);
    Qemu { binary, args: args.into_iter().map(|(_, text)| text.to_owned()).collect() }
}

fn read_migration(reader: &mut Reader, mut table: Table) -> Migration {
    let mut integer = |key, range| table.get(key).and_then(|value| value.integer(reader, range));
    let default = Migration::default();
    let migration = Migration {
        downtime_limit_ms: integer("downtime_limit_ms", DOWNTIME_LIMIT_MS).unwrap_or(default.downtime_limit_ms),
        multifd_channels: integer("multifd_channels", MULTIFD_CHANNELS).map(|channels| channels as u8),
        priority: integer("priority", PRIORITY).map_or(default.priority, |priority| priority as u8),
    };
    table.finish(reader, &ROOT_KEYS);
    migration
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    const EXAMPLE: &str = r#"
name = "web1"
memory = "4 GiB"            # MiB, GiB or TiB
cpus = 2
cpu = "EPYC-v4,+avx2"
machine = "q35,smm=off"
accel = "kvm"
hugepages = "2 MiB"
kernel = "/boot/vmlinuz"
initrd = '/boot/initrd "1".img'
append = "console=ttyS0 root=/dev/vda"

[[disk]]
path = "/srv/images/web1.qcow2"
format = "qcow2"
readonly = false
cache = "writeback"

[[disk]]
path = "/dev/vg/data"
format = "raw"
readonly = true

[[nic]]
bridge = "br0"
mac = "52:54:00:12:34:Ef"

[[nic]]
tap = "tap7"

[qemu]
binary = "/usr/bin/qemu-system-x86_64"
args = ["-device", "virtio-rng-pci"]

[migration]
downtime_limit_ms = 500
multifd_channels = 4
priority = 10
"#;

    fn example() -> Definition {
        let disk = |path: &str, format, readonly, cache| Disk { path: path.into(), format, readonly, cache };
        Definition {
            name: "web1".into(),
            memory_bytes: 4 * GIB,
            cpus: 2,
            cpu: Some("EPYC-v4,+avx2".into()),
            machine: "q35,smm=off".into(),
            accel: Accel::Kvm,
            hugepages: Some(2 * MIB),
            kernel: Some("/boot/vmlinuz".into()),
            initrd: Some("/boot/initrd \"1\".img".into()),
            append: Some("console=ttyS0 root=/dev/vda".into()),
            disks: vec![
                disk("/srv/images/web1.qcow2", DiskFormat::Qcow2, false, Cache::Writeback),
                disk("/dev/vg/data", DiskFormat::Raw, true, Cache::None),
            ],
            nics: vec![
                Nic {
                    attachment: Attachment::Bridge("br0".into()),
                    mac: MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0xef]),
                },
                Nic { attachment: Attachment::Tap("tap7".into()), mac: MacAddress::derived("web1", 1) },
            ],
            qemu: Qemu {
                binary: Some("/usr/bin/qemu-system-x86_64".into()),
                args: vec!["-device".into(), "virtio-rng-pci".into()],
            },
            migration: Migration { downtime_limit_ms: 500, multifd_channels: Some(4), priority: 10 },
        }
    }

    const LEAST: &str = "name = \"web1\"\nmemory = \"4 GiB\"\n";

    #[test]
    fn all_that_can_be_said_is_read() {
        assert_eq!(Definition::parse(EXAMPLE, "web1.toml"), Ok(example()));
        assert_eq!(Definition::parse(&EXAMPLE.replace('\n', "\r\n"), "web1.toml"), Ok(example()));
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let least = Definition::parse(LEAST, "web1.toml").unwrap();
        assert_eq!((least.cpus, least.machine.as_str(), least.accel), (1, "q35", Accel::Auto));
        assert_eq!((least.cpu_for(Accel::Kvm), least.cpu_for(Accel::Tcg)), ("host", "max"));
        assert_eq!((least.hugepages, least.kernel, least.disks, least.nics), (None, None, vec![], vec![]));
        assert_eq!((least.qemu, least.migration), (Qemu::default(), Migration::default()));
        let disk = Definition::parse(&format!("{LEAST}[[disk]]\npath='/a'\nformat='raw'"), "web1.toml").unwrap();
        let Disk { readonly, cache, .. } = disk.disks[0];
        assert_eq!((readonly, cache), (false, Cache::None));
        assert_eq!(example().cpu_for(Accel::Tcg), "EPYC-v4,+avx2");
    }

    /// Line, column and parts of the message of everything that is wrong.
    fn check(text: &str, expect: &[(usize, usize, &[&str])]) {
        let error = Definition::parse(text, "web1.toml").expect_err(text);
        let message = error.to_string();
        let places: Vec<_> = error.faults.iter().map(|fault| (fault.line, fault.column)).collect();
        assert_eq!(places, expect.iter().map(|(line, column, _)| (*line, *column)).collect::<Vec<_>>(), "{message}");
        for (fault, (line, column, parts)) in error.faults.iter().zip(expect) {
            let told = format!("{} {}", fault.reason, fault.cure);
            assert!(parts.iter().all(|part| told.contains(part)), "{parts:?} in {told}");
            assert!(message.contains(&format!("web1.toml:{line}:{column}: {}", fault.reason)), "{message}");
            assert!(message.contains(text.lines().nth(line - 1).unwrap_or_default().trim()), "{message}");
        }
    }

    #[test]
    fn each_fault_is_told_with_its_place_and_cure() {
        type Case<'a> = (&'a str, usize, usize, &'a [&'a str]);
        // What follows LEAST, from line 3; LEAST itself is right.
        let cases: &[Case] = &[
            ("cpuz = 2", 3, 1, &["no key \"cpuz\"", "did you mean cpu"]),
            ("xyzzy = 2", 3, 1, &["no key \"xyzzy\"", "known here: name, memory"]),
            ("cpus = \"2\"", 3, 8, &["cpus is a string and must be an integer", "without quotes"]),
            ("cpus = 0", 3, 8, &["cpus is 0", "1 to 1024"]),
            ("cpus = 1025", 3, 8, &["1 to 1024"]),
            ("cpus = -1", 3, 8, &["cpus is -1"]),
            ("cpus = 99999999999999999999999", 3, 8, &["cpus is 9999"]),
            ("cpu = 7", 3, 7, &["cpu is an integer", "cpu = \"7\""]),
            ("cpu = \"host, +avx\"", 3, 7, &["without blanks"]),
            ("cpu = \"\"", 3, 7, &["cpu is empty"]),
            ("machine = \"-q35\"", 3, 11, &["machine cannot be"]),
            ("accel = \"hvf\"", 3, 9, &["\"auto\" or \"kvm\" or \"tcg\""]),
            ("hugepages = \"4 MiB\"", 3, 13, &["\"2 MiB\" and \"1 GiB\""]),
            ("initrd = \"/i\"", 3, 10, &["initrd without a kernel", "add kernel"]),
            ("append = \"quiet\"", 3, 10, &["append without a kernel"]),
            ("kernel = \"vmlinuz\"", 3, 10, &["from the root", "\"/srv/vmlinuz\""]),
            ("kernel = \"/boot/../x\"", 3, 10, &["without \"..\""]),
            ("kernel = \"/boot/\\u0007\"", 3, 10, &["control character"]),
            ("name = \"again\"", 3, 1, &["not TOML", "duplicate key", "keep one"]),
            ("cpu = host", 3, 7, &["not TOML", "double quotes"]),
            ("cpu = \"host", 3, 12, &["not TOML", "double quotes"]),
            ("[[disk]", 3, 8, &["not TOML"]),
            ("disk = \"/a\"", 3, 8, &["array of tables", "[[disk]], with two brackets"]),
            ("[disk]\npath = '/a'", 3, 1, &["array of tables", "[[disk]]"]),
            ("[[qemu]]\nargs = []", 3, 1, &["qemu is an array and must be a table", "[qemu] on a line"]),
            ("[[disk]]\nformat = 'raw'", 3, 1, &["path is missing in this [[disk]]"]),
            ("[[disk]]\npath = '/a'", 3, 1, &["format is missing", "qcow2"]),
            ("[[disk]]\npath = 'a'\nformat = 'raw'", 4, 8, &["from the root"]),
            ("[[disk]]\npath = '/a'\nformat = 'vmdk'", 5, 10, &["\"raw\" or \"qcow2\""]),
            ("[[disk]]\npath = '/a'\nformat = 'raw'\nreadonly = 1", 6, 12, &["must be a boolean"]),
            ("[[disk]]\npath = '/a'\nformat = 'raw'\ncache = 'unsafe'", 6, 9, &["\"none\" or \"writeback\""]),
            (
                "[[disk]]\npath = '/a/b'\nformat = 'raw'\n[[disk]]\npath = '/a//./b'\nformat = 'raw'",
                7,
                8,
                &["there already"],
            ),
            ("[[nic]]", 3, 1, &["plugged into nothing", "bridge = \"br0\""]),
            ("[[nic]]\nbridge = 'b'\ntap = 't'", 5, 7, &["both a bridge and a tap"]),
            ("[[nic]]\nbridge = 'a-bridge-too-long'", 4, 10, &["at most 15"]),
            ("[[nic]]\nbridge = 'br0,up'", 4, 10, &["no / : , or blanks"]),
            ("[[nic]]\nbridge = 'b'\nmac = '52:54:00:12:34'", 5, 7, &["six bytes"]),
            ("[[nic]]\nbridge = 'b'\nmac = '53:54:00:12:34:56'", 5, 7, &["no address of one card"]),
            ("[[nic]]\ntap = 't'\n[[nic]]\ntap = 't'", 6, 7, &["tap \"t\" is there already"]),
            (
                "[[nic]]\ntap = 't'\nmac = '52:54:00:00:00:01'\n[[nic]]\ntap = 'u'\nmac = '52:54:00:00:00:01'",
                8,
                7,
                &["this mac already"],
            ),
            ("[[nic]]\nbridge = 'b'\ncpus = 4", 5, 1, &["belongs to the VM", "above the first section"]),
            ("[qemu]\nbinary = 'qemu'", 4, 10, &["from the root"]),
            ("[qemu]\nargs = '-S'", 4, 8, &["must be an array"]),
            ("[qemu]\nargs = ['-a', 1]", 4, 15, &["args is an integer"]),
            ("[qemu]\nargs = ['-S']", 4, 9, &["cannot have \"-S\"", "leave it out"]),
            ("[qemu]\nargs = ['--smp', '4']", 4, 9, &["use cpus"]),
            ("[migration]\ndowntime_limit = 3", 4, 1, &["no key", "did you mean downtime_limit_ms?"]),
            ("[migration]\ndowntime_limit_ms = 0", 4, 21, &["1 to 2000000"]),
            ("[migration]\nmultifd_channels = 65", 4, 20, &["1 to 64"]),
            ("[migration]\npriority = 1.5", 4, 12, &["priority is a float"]),
        ];
        for (text, line, column, parts) in cases {
            check(&format!("{LEAST}{text}\n"), &[(*line, *column, *parts)]);
        }
        // The root's own: name and memory.
        for (text, line, column, parts) in [
            ("memory = '1 GiB'", 1, 1, &["name is missing", "name = \"web1\""][..]),
            ("name = 'a'", 1, 1, &["memory is missing"]),
            ("name = 'Web'\nmemory = '1 GiB'", 1, 8, &["name cannot be \"Web\"", "a-z 0-9"]),
            ("name = '.web'\nmemory = '1 GiB'", 1, 8, &["begin with a letter"]),
            ("name = 'a'\nmemory = 4096", 2, 10, &["memory is an integer", "\"4096 MiB\""]),
            ("name = 'a'\nmemory = '4096'", 2, 10, &["\"4096 MiB\" or \"4096 GiB\""]),
            ("name = 'a'\nmemory = '15 MiB'", 2, 10, &["16 MiB to 64 TiB"]),
            ("name = 'a'\nmemory = '65 TiB'", 2, 10, &["16 MiB to 64 TiB"]),
            ("name = 'a'\nmemory = '33 MiB'\nhugepages = '2 MiB'", 3, 13, &["33 MiB is no whole", "multiple of 2 MiB"]),
        ] {
            check(text, &[(line, column, parts)]);
        }
        check(&format!("name = '{}'\nmemory = '1 GiB'", "a".repeat(64)), &[(1, 8, &["1 to 63"])]);
        assert!(Definition::parse(&LEAST.replace("web1", &"a".repeat(63)), "").is_ok());
    }

    #[test]
    fn all_faults_are_told_at_once() {
        check(
            "nane = 'a'\nmemory = '4 GB'\ncpus = 0\n\n[[disk]]\npath = 'x'\n\t[[nic]]\n\tbridge = 'ß/'\n[foo]\n",
            &[
                (1, 1, &["name is missing"][..]),
                (1, 1, &["no key \"nane\"", "did you mean name?"]),
                (2, 10, &["write \"4 GiB\""]),
                (3, 8, &["1 to 1024"]),
                (5, 1, &["format is missing"]),
                (6, 8, &["from the root"]),
                (8, 11, &["bridge cannot be \"ß/\""]),
                (9, 2, &["no key \"foo\""]),
            ],
        );
    }

    #[test]
    fn there_is_an_upper_bound_to_everything() {
        let many = |section: &str, count: usize| format!("{LEAST}{}", section.repeat(count));
        let disks = |count| {
            let disk = |n| format!("[[disk]]\npath = '/{n}'\nformat = 'raw'\n");
            format!("{LEAST}{}", (0..count).map(disk).collect::<String>())
        };
        assert_eq!(Definition::parse(&disks(DISKS_MAX), "").unwrap().disks.len(), DISKS_MAX);
        check(&disks(DISKS_MAX + 1), &[(2 + 3 * DISKS_MAX + 1, 1, &["65 entries, 64 are the most"])]);
        assert_eq!(Definition::parse(&many("[[nic]]\nbridge = 'b'\n", NICS_MAX), "").unwrap().nics.len(), NICS_MAX);
        check(&many("[[nic]]\nbridge = 'b'\n", NICS_MAX + 1), &[(2 + 2 * NICS_MAX + 1, 1, &["33 entries"])]);
        let args =
            |count, bytes| format!("{LEAST}[qemu]\nargs = [{}]\n", format!("'{}',", "x".repeat(bytes)).repeat(count));
        assert_eq!(Definition::parse(&args(ARGS_MAX, VALUE_BYTES_MAX), "").unwrap().qemu.args.len(), ARGS_MAX);
        let beyond = Definition::parse(&args(ARGS_MAX + 1, 1), "").unwrap_err();
        assert!(beyond.faults.len() == 1 && beyond.faults[0].reason.contains("257 entries"), "{beyond}");
        let beyond = Definition::parse(&args(1, VALUE_BYTES_MAX + 1), "").unwrap_err();
        assert!(beyond.faults[0].reason.contains("4097 bytes"), "{beyond}");
        assert!(beyond.to_string().len() < 1000, "a long line is shown in part: {beyond}");
        let beyond = Definition::parse(&"#".repeat(crate::TEXT_BYTES_MAX + 1), "").unwrap_err();
        assert!(beyond.to_string().contains("are read at most"), "{beyond}");
        // So are faults.
        let beyond = Definition::parse(&many("[[nic]]\nx = 1\ny = 2\nz = 3\n", NICS_MAX), "").unwrap_err();
        assert_eq!((beyond.faults.len(), beyond.more), (100, 28));
        assert!(beyond.to_string().ends_with("and 28 more"));
        assert!(Definition::parse(&format!("a = {}", "[".repeat(100_000)), "").is_err(), "no stack overflows");
    }

    #[test]
    fn the_place_in_a_long_line_is_shown() {
        let text = format!("{LEAST}kernel = \"{}\"; foo\u{1b}[2J", "é/".repeat(100));
        let error = Definition::parse(&text, "a\u{1b}.toml").unwrap_err();
        assert!(!error.to_string().contains('\u{1b}'), "nothing drives a terminal");
        let fault = &error.faults[0];
        assert_eq!((fault.column, fault.before), (212, 50), "{error}");
        assert_eq!(fault.excerpt.chars().nth(fault.before), Some(';'), "{error}");
    }

    #[test]
    fn a_derived_mac_stays() {
        // Written down: another version must derive the same, or guests would find a new card after a move.
        assert_eq!(MacAddress::derived("web1", 0).to_string(), "52:c1:b5:11:b6:ea");
        let macs = |vm| (0..32).map(move |nic| MacAddress::derived(vm, nic));
        let all: BTreeSet<_> = ["web1", "web2", "web11", "a", "b"].into_iter().flat_map(macs).collect();
        assert_eq!(all.len(), 5 * 32);
    }

    #[test]
    fn an_alias_is_resolved_and_options_are_kept() {
        let mut definition = example();
        assert_eq!(definition.machine_type(), "q35");
        assert!(definition.resolve_machine_type("pc-q35-10.0"));
        assert_eq!((definition.machine.as_str(), definition.machine_type()), ("pc-q35-10.0,smm=off", "pc-q35-10.0"));
        for bad in ["", "pc,foo=1", "pc q35", "-pc", &"x".repeat(VALUE_BYTES_MAX)] {
            assert!(!definition.resolve_machine_type(bad), "{bad}");
        }
        assert_eq!(Definition::parse(&definition.to_toml(), ""), Ok(definition));
    }

    #[test]
    fn what_comes_over_a_wire_keeps_to_the_rules() {
        let json = serde_json::to_value(example()).unwrap();
        assert_eq!(json["nics"][0], serde_json::json!({ "bridge": "br0", "mac": "52:54:00:12:34:ef" }));
        assert_eq!(serde_json::from_value::<Definition>(json.clone()).unwrap(), example());
        for (key, value) in [
            ("name", serde_json::json!("../../etc/passwd")),
            ("memory_bytes", 0.into()),
            ("memory_bytes", (4 * GIB + 1).into()),
            ("memory_bytes", u64::MAX.into()),
            ("cpu", "a b".into()),
            ("kernel", "vmlinuz".into()),
            ("kernel", serde_json::Value::Null),
            ("append", "a\nname = \"b\"".into()),
            ("machine", "".into()),
            ("hugepages", 3.into()),
            ("migration", serde_json::json!({ "downtime_limit_ms": u64::MAX, "multifd_channels": 1, "priority": 0 })),
        ] {
            let mut bad = json.clone();
            bad[key] = value;
            assert!(serde_json::from_value::<Definition>(bad.clone()).is_err(), "{bad}");
        }
    }

    fn definitions() -> impl Strategy<Value = Definition> {
        let text = || "[ -~äß漢]{1,40}";
        let path = || "(/[a-zA-Z0-9 ,'\"\\\\ü_-]{1,9}){1,4}".prop_map(PathBuf::from);
        let disks = vec((path(), any::<bool>(), any::<bool>(), any::<bool>()), 0..6).prop_map(|disks| {
            let mut seen = BTreeSet::new();
            let disk = |(path, raw, readonly, cached): (PathBuf, bool, bool, bool)| {
                let format = if raw { DiskFormat::Raw } else { DiskFormat::Qcow2 };
                let cache = if cached { Cache::Writeback } else { Cache::None };
                seen.insert(path.clone()).then_some(Disk { path, format, readonly, cache })
            };
            disks.into_iter().filter_map(disk).collect::<Vec<_>>()
        });
        let nics = vec(("[a-zA-Z0-9]{1,15}", any::<bool>(), any::<[u8; 5]>()), 0..6).prop_map(|nics| {
            let (mut names, mut macs) = (BTreeSet::new(), BTreeSet::new());
            let nic = |(name, bridge, [a, b, c, d, e]): (String, bool, [u8; 5])| {
                let mac = MacAddress([0x52, a, b, c, d, e]);
                let attachment = if bridge { Attachment::Bridge(name) } else { Attachment::Tap(name) };
                (names.insert(attachment.clone()) && macs.insert(mac)).then_some(Nic { attachment, mac })
            };
            nics.into_iter().filter_map(nic).collect::<Vec<_>>()
        });
        let accel = prop_oneof![Just(Accel::Auto), Just(Accel::Kvm), Just(Accel::Tcg)];
        let guest =
            ("[a-z0-9][a-z0-9._-]{0,62}", 8u64..1 << 20, 1u32..=1024, option::of("[a-zA-Z0-9][a-zA-Z0-9,+=._-]{0,20}"));
        let boot = option::of((path(), option::of(path()), option::of(text())));
        let qemu = (option::of(path()), vec(text(), 0..5));
        let migration = (1u64..=2_000_000, option::of(1u8..=64), 0u8..=100);
        let huge = option::of(Just(2 * MIB));
        (guest, "[a-z][a-z0-9=,]{0,20}", accel, huge, boot, disks, nics, qemu, migration).prop_map(
            |((name, memory, cpus, cpu), machine, accel, hugepages, boot, disks, nics, qemu, migration)| {
                let (kernel, rest) =
                    boot.map_or((None, (None, None)), |(kernel, initrd, append)| (Some(kernel), (initrd, append)));
                Definition {
                    name,
                    memory_bytes: memory * 2 * MIB,
                    cpus,
                    cpu,
                    machine,
                    accel,
                    hugepages,
                    kernel,
                    initrd: rest.0,
                    append: rest.1,
                    disks,
                    nics,
                    qemu: Qemu { binary: qemu.0, args: qemu.1 },
                    migration: Migration {
                        downtime_limit_ms: migration.0,
                        multifd_channels: migration.1,
                        priority: migration.2,
                    },
                }
            },
        )
    }

    #[test]
    fn a_fault_in_a_line_end_points_behind_the_line() {
        let error = Definition::parse("name = \"a\r\n", "x.toml").unwrap_err();
        let fault = &error.faults[0];
        assert_eq!((fault.excerpt.as_str(), fault.column, fault.before), ("name = \"a", 11, 9));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(definition in definitions()) {
            let text = definition.to_toml();
            prop_assert_eq!(Definition::parse(&text, "x.toml").map_err(|e| e.to_string()), Ok(definition.clone()));
            let json = serde_json::to_string(&definition).unwrap();
            prop_assert_eq!(serde_json::from_str::<Definition>(&json).unwrap(), definition);
        }

        /// The example with a piece replaced: read or refused, and what is read is written and read again.
        #[test]
        fn no_text_is_too_odd(at in 0..EXAMPLE.len(), cut in 0usize..40, piece in "[\\x00-\\x7fé\"\\[\\]=]{0,8}") {
            let end = (at + cut).min(EXAMPLE.len());
            let text = format!("{}{piece}{}", &EXAMPLE[..at], &EXAMPLE[end..]);
            match Definition::parse(&text, "x.toml") {
                Ok(read) => prop_assert_eq!(Definition::parse(&read.to_toml(), "x.toml"), Ok(read)),
                Err(error) => {
                    prop_assert!(!error.faults.is_empty());
                    for fault in &error.faults {
                        prop_assert!(fault.line >= 1 && fault.line <= text.matches('\n').count() + 1, "{}", error);
                        prop_assert!(!fault.cure.is_empty() && fault.before <= fault.excerpt.chars().count(), "{}", error);
                    }
                }
            }
        }
    }
}
