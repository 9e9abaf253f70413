//! A VM as a TOML file.
//!
//! ```toml
//! name = "web1"
//! memory = "4 GiB"            # MiB, GiB or TiB
//! cpus = 2
//! cpu = "EPYC-v4"             # QEMU's model and flags; without it: host under KVM, max under TCG; "baseline":
//!                             # the best model that all hosts of a group have, which a controller finds
//! machine = "q35"             # QEMU's machine type, with options if need be; versioned when first started
//! accel = "auto"              # kvm where it works, else tcg
//! hugepages = "2 MiB"         # none without it
//! shared_memory = true        # other processes can map the RAM: for vhost-user devices
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
//! [firmware]                  # without it: QEMU's BIOS
//! type = "uefi"
//!
//! [tpm]
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
//! Each section has a module, with all that it may say; `docs/migrate.md` has the list.
//!
//! What a section got later than version 0.1 is left out of JSON where it is the default. Older versions keep and send
//! definitions without it, and those definitions have to mean the same machine for good.
//!
//! A [`Definition`] that exists is valid: [`Definition::parse`] and serde both see to that, by the same rules.

mod disk;
mod firmware;
mod migration;
mod names;
mod nic;
mod qemu;
mod system;
#[cfg(test)]
mod tests;
mod tpm;
mod values;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use skein_units::{GIB, MIB, TIB, exact_bytes, parse_bytes};
use toml::Value as Toml;

pub use self::disk::{Bus, CDROMS_MAX, Cache, Cdrom, DISKS_MAX, Disk, DiskFormat, DiskOptions, Io};
pub use self::firmware::{Firmware, FirmwareKind};
pub use self::migration::{DOWNTIME_LIMIT_MS, MULTIFD_CHANNELS, Migration, PRIORITY};
pub(crate) use self::names::check_name;
pub use self::names::{NAME_BYTES_MAX, is_name};
pub use self::nic::{Attachment, MacAddress, NICS_MAX, Nic, NicModel, NicOptions};
pub use self::qemu::{ARGS_MAX, Qemu};
pub use self::system::{Display, Rtc, RtcBase, System, Video};
pub use self::tpm::{Tpm, TpmModel, TpmVersion};
pub use self::values::VALUE_BYTES_MAX;

use self::disk::Storage;
use self::names::check_model;
use self::values::{is_default, is_q35, path, read_path, word};
use crate::toml_reader::{ParseError, Reader, Table, read};

/// Stands for a CPU model that a cluster's controller finds at each start: the best that all hosts of the group have.
pub const CPU_BASELINE: &str = "baseline";
/// The sizes of guests' RAM.
pub const MEMORY_BYTES: RangeInclusive<u64> = 16 * MIB..=64 * TIB;
/// The numbers of virtual CPUs.
pub const CPUS: RangeInclusive<u64> = 1..=1024;
/// The sizes of huge pages on x86-64.
const HUGEPAGES: [u64; 2] = [2 * MIB, GIB];

/// A VM. It serialises as it is. Deserialising applies the rules of [`Definition::parse`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Definition {
    /// The name: `[a-z0-9][a-z0-9._-]{0,62}`.
    pub name: String,
    /// The RAM in bytes, whole MiB.
    pub memory_bytes: u64,
    /// The number of virtual CPUs.
    pub cpus: u32,
    /// QEMU's `-cpu`: model and flags, the model perhaps [`CPU_BASELINE`]. `None`: see [`Definition::cpu_for`].
    pub cpu: Option<String>,
    /// QEMU's `-machine`: type, perhaps with options.
    pub machine: String,
    /// What runs the guest's instructions.
    pub accel: Accel,
    /// The size of the huge pages below the RAM.
    pub hugepages: Option<u64>,
    /// Whether other processes can map the RAM. RAM in huge pages always can be mapped.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shared_memory: bool,
    /// The kernel of a direct boot.
    pub kernel: Option<PathBuf>,
    /// The kernel's initramfs.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line.
    pub append: Option<String>,
    /// What runs before the guest's software. `None`: QEMU's BIOS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// The TPM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<Tpm>,
    /// What the firmware says of the machine.
    #[serde(default, skip_serializing_if = "is_default")]
    pub system: System,
    /// The clock.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rtc: Rtc,
    /// The graphical console.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<Display>,
    /// The disks, in the guest's order.
    pub disks: Vec<Disk>,
    /// The CD drives, after the disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cdroms: Vec<Cdrom>,
    /// The NICs, in the guest's order.
    pub nics: Vec<Nic>,
    /// Which QEMU runs the VM, and what else it is told.
    pub qemu: Qemu,
    /// How the VM is moved.
    pub migration: Migration,
}

/// What runs a guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// KVM where it works, else TCG. Only a definition says so: what runs is one of the others.
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

const ACCELS: [(&str, Accel); 3] = [("auto", Accel::Auto), ("kvm", Accel::Kvm), ("tcg", Accel::Tcg)];

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

impl Definition {
    /// Reads a VM's file. `file_name` is for messages.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the file, at once.
    pub fn parse(text: &str, file_name: &str) -> Result<Definition, ParseError> {
        read(text, file_name, Definition::read)
    }

    fn read(reader: &mut Reader, mut root: Table) -> Definition {
        let name = root.require(reader, "name", "name = \"web1\"");
        let name = name.and_then(|value| value.parsed(reader, VALUE_BYTES_MAX, check_name)).unwrap_or_default();
        let memory = root.require(reader, "memory", "memory = \"4 GiB\"");
        let memory_bytes = memory.as_ref().and_then(|value| {
            value.parsed(reader, 64, |text| {
                let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
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
                let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
                HUGEPAGES.contains(&bytes).then_some(bytes).ok_or("x86-64 has pages of \"2 MiB\" and \"1 GiB\"".into())
            })?;
            if let Some(memory) = memory_bytes.filter(|memory| !memory.is_multiple_of(bytes)) {
                let (pages, memory) = (exact_bytes(bytes), exact_bytes(memory));
                let reason = format!("memory of {memory} is no whole number of pages of {pages}");
                value.report_at(reader, reason, format!("make memory a multiple of {pages}, or use smaller pages"));
            }
            Some(bytes)
        });

        let shared_memory = root.get("shared_memory").and_then(|value| value.boolean(reader)).unwrap_or(false);
        let (kernel, initrd, append) = (root.get("kernel"), root.get("initrd"), root.get("append"));
        for value in [&initrd, &append].into_iter().flatten().filter(|_| kernel.is_none()) {
            let cure = "add kernel = \"/boot/vmlinuz\", or remove this line";
            value.report_at(reader, format!("{} without a kernel", value.key), cure);
        }
        let kernel = read_path(reader, kernel);
        let initrd = read_path(reader, initrd);
        let append = append.and_then(|value| value.string(reader, VALUE_BYTES_MAX)).map(str::to_owned);

        let mut section = |key, name| root.get(key).and_then(|value| value.table(reader, name));
        let (firmware, tpm) = (section("firmware", "[firmware]"), section("tpm", "[tpm]"));
        let (system, rtc) = (section("system", "[system]"), section("rtc", "[rtc]"));
        let display = section("display", "[display]");
        let disks = root.get("disk").map_or(Vec::new(), |value| value.tables(reader, "[[disk]]", DISKS_MAX));
        let cdroms = root.get("cdrom").map_or(Vec::new(), |value| value.tables(reader, "[[cdrom]]", CDROMS_MAX));
        let nics = root.get("nic").map_or(Vec::new(), |value| value.tables(reader, "[[nic]]", NICS_MAX));
        let qemu = root.get("qemu").and_then(|value| value.table(reader, "[qemu]"));
        let migration = root.get("migration").and_then(|value| value.table(reader, "[migration]"));
        root.finish(reader, &[]);
        let machine = machine.unwrap_or_else(|| "q35".into());
        let migration = migration.map_or_else(Migration::default, |table| migration::read(reader, table));
        let mut storage = Storage::new(&machine, !migration.allowed);
        Definition {
            memory_bytes: memory_bytes.unwrap_or_default(),
            cpus: cpus as u32,
            cpu,
            accel,
            hugepages,
            shared_memory,
            kernel,
            initrd,
            append,
            firmware: firmware.map(|table| firmware::read(reader, table, &machine)),
            tpm: tpm.map(|table| tpm::read(reader, table)),
            system: system.map_or_else(System::default, |table| system::read_system(reader, table)),
            rtc: rtc.map_or_else(Rtc::default, |table| system::read_rtc(reader, table)),
            display: display.map(|table| system::read_display(reader, table)),
            disks: disk::read(reader, disks, &mut storage),
            cdroms: disk::read_cdroms(reader, cdroms, &mut storage),
            nics: nic::read(reader, nics, &name),
            qemu: qemu.map_or_else(Qemu::default, |table| qemu::read(reader, table)),
            migration,
            machine,
            name,
        }
    }

    /// Writes the complete file. [`Definition::parse`] reads the same definition from it.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: Toml| text.push_str(&format!("{key} = {value}\n"));
        line("name", self.name.as_str().into());
        line("memory", exact_bytes(self.memory_bytes).into());
        line("cpus", i64::from(self.cpus).into());
        self.cpu.iter().for_each(|cpu| line("cpu", cpu.as_str().into()));
        line("machine", self.machine.as_str().into());
        line("accel", word(&ACCELS, self.accel).into());
        self.hugepages.iter().for_each(|bytes| line("hugepages", exact_bytes(*bytes).into()));
        self.shared_memory.then(|| line("shared_memory", true.into()));
        self.kernel.iter().for_each(|kernel| line("kernel", path(kernel)));
        self.initrd.iter().for_each(|initrd| line("initrd", path(initrd)));
        self.append.iter().for_each(|append| line("append", append.as_str().into()));
        self.firmware.iter().for_each(|firmware| firmware.write(&mut line));
        self.tpm.iter().for_each(|tpm| tpm.write(&mut line));
        self.system.write(&mut line);
        self.rtc.write(&mut line);
        self.display.iter().for_each(|display| display.write(&mut line));
        self.disks.iter().for_each(|disk| disk.write(&mut line));
        self.cdroms.iter().for_each(|cdrom| cdrom.write(&mut line));
        self.nics.iter().for_each(|nic| nic.write(&mut line));
        self.qemu.write(&mut line);
        self.migration.write(&mut line);
        text
    }

    /// Returns the flags behind [`CPU_BASELINE`] (`,-svm`), if that is the VM's CPU model.
    pub fn baseline_flags(&self) -> Option<&str> {
        let flags = self.cpu.as_deref()?.strip_prefix(CPU_BASELINE)?;
        (flags.is_empty() || flags.starts_with(',')).then_some(flags)
    }

    /// Returns QEMU's `-cpu` under `accel`. KVM is fastest with `host`, which TCG lacks.
    pub fn cpu_for(&self, accel: Accel) -> &str {
        let default = if accel == Accel::Tcg { "max" } else { "host" };
        self.cpu.as_deref().unwrap_or(default)
    }

    /// Returns the files that a host has to have besides disks and CDs for the VM to start there, and what they are.
    /// QEMU only reads them.
    pub fn opened(&self) -> Vec<(&'static str, &PathBuf)> {
        let firmware = self.firmware.as_ref();
        let template =
            firmware.filter(|firmware| firmware.vars.is_none()).and_then(|firmware| firmware.template.as_ref());
        let image = firmware.and_then(|firmware| firmware.image.as_ref());
        let files = [
            ("kernel", self.kernel.as_ref()),
            ("initrd", self.initrd.as_ref()),
            ("firmware", image),
            ("template of the variable store", template),
        ];
        files.into_iter().filter_map(|(what, path)| Some((what, path?))).collect()
    }

    /// Returns whether `model` can stand for [`CPU_BASELINE`]: it is QEMU's name of a CPU model, without flags.
    pub fn is_cpu_model(model: &str) -> bool {
        let fits = (1..=VALUE_BYTES_MAX).contains(&model.len()) && !model.contains(',') && model != CPU_BASELINE;
        fits && check_model(model).is_ok()
    }

    /// Returns whether the machine is of the q35 family, which has AHCI and no IDE.
    pub fn is_q35(&self) -> bool {
        is_q35(&self.machine)
    }

    /// Returns the machine type without its options.
    pub fn machine_type(&self) -> &str {
        self.machine.split(',').next().unwrap_or_default()
    }

    /// Puts what an alias stood for (`pc-q35-10.0`) in the alias's place and keeps the options: from its first start
    /// on, a guest's machine must not change with QEMU's version. Returns `false`, and changes nothing, if that is no
    /// machine type.
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
