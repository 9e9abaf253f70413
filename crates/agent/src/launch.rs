//! Makes the command line of the QEMU that runs a VM, from what the VM is.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};
use skein_hypervisor::{
    Boot, Bus, Cdrom, Config, Disk, DiskCache, DiskFormat, DiskOptions, Display, HugePages, Incoming, MemoryBackend,
    Nic, NicBackend, Serial, Tpm,
};
use skein_inventory::RoomNeed;
use skein_inventory::command_line::{self, CommandOption};
use skein_inventory::composition::{Composition, Drive};
use skein_inventory::definition::{
    self, Accel, Attachment, Definition, FirmwareKind, Io, NicModel, Rtc, RtcBase, TpmModel, Video,
};

use crate::own_state::OwnState;

/// What a VM's QEMU is started from, the same at source and target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Launch {
    /// The QEMU is started from a definition.
    Definition(Box<Defined>),
    /// The QEMU is started from the command line of a QEMU that another program started.
    CommandLine(CommandLine),
}

/// A definition, and what was decided when the VM was started first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defined {
    /// The definition, with its machine type and accelerator resolved.
    pub definition: Definition,
    /// Whether the VM's RAM has [`ODD_BYTES`] more.
    ///
    /// QEMU before 9.0 loses writes of an emulated CPU during a migration: it takes the dirty bits of 64 pages at a
    /// time and forgets to tell the CPU's TLB to notice the next write to them (mended by "physmem: Fix migration dirty
    /// bitmap coherency with TCG memory access"). RAM that is no multiple of 64 pages is taken page by page, by slower
    /// code that does not forget. Tried with 7.2: 3 of some 40 migrations of a rewriting guest broke it without this,
    /// none of 120 with it.
    pub odd_ram: bool,
    /// The CPU model that stands for [`CPU_BASELINE`](definition::CPU_BASELINE) in the definition, if that is there.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "read_cpu_model")]
    pub cpu_model: Option<String>,
}

/// Reads a CPU model, which another host may have said.
fn read_cpu_model<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let model = Option::<String>::deserialize(from)?;
    match model.as_ref().is_none_or(|model| Definition::is_cpu_model(model)) {
        true => Ok(model),
        false => Err(serde::de::Error::custom("no CPU model")),
    }
}

impl Defined {
    /// Returns QEMU's `-cpu`.
    pub(crate) fn cpu(&self) -> String {
        let cpu = self.definition.cpu_for(self.definition.accel);
        match (&self.cpu_model, self.definition.baseline_flags()) {
            (Some(model), Some(flags)) => format!("{model}{flags}"),
            _ => cpu.to_owned(),
        }
    }
}

/// Holds the additional bytes: see [`Defined::odd_ram`].
pub(crate) const ODD_BYTES: u64 = 8 << 10;

/// The command line of a QEMU, without what belongs to one process: its monitors, and where its guest came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLine {
    /// The path of the program.
    pub program: PathBuf,
    /// The arguments.
    pub args: Vec<String>,
}

/// Names the options that belong to one process, and how many words follow them.
const OWN_OPTIONS: [(&str, usize); 10] = [
    ("-qmp", 1),
    ("-qmp-pretty", 1),
    ("-monitor", 1),
    ("-mon", 1),
    ("-pidfile", 1),
    ("-incoming", 1),
    ("-D", 1),
    ("-S", 0),
    ("-daemonize", 0),
    ("-loadvm", 1),
];

impl CommandLine {
    /// Returns the command line of a process, by `/proc/PID/cmdline` and `/proc/PID/exe`.
    pub fn of(pid: u32) -> io::Result<CommandLine> {
        let program = fs::read_link(format!("/proc/{pid}/exe"))?;
        let bytes = fs::read(format!("/proc/{pid}/cmdline"))?;
        let words = bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        let mut words: Vec<String> = words.collect();
        words.pop();
        Ok(CommandLine { program, args: CommandLine::without_own(words.into_iter().skip(1)) })
    }

    /// Returns the monitors and files of a process that other programs may use, and that no QEMU made from
    /// [`CommandLine::of`] has. The monitor with the socket `own` is left out.
    pub(crate) fn left_behind(pid: u32, own: &Path) -> Vec<String> {
        let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<String> =
            bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let own = own.to_string_lossy();
        let is_used = |option: &CommandOption| {
            ["qmp", "qmp-pretty", "monitor", "mon", "pidfile"].contains(&option.name) && !option.value.contains(&*own)
        };
        let options = command_line::options(&words);
        options
            .iter()
            .filter(|option| is_used(option))
            .map(|option| format!("-{} {}", option.name, option.value))
            .collect()
    }

    fn without_own(words: impl Iterator<Item = String>) -> Vec<String> {
        let mut kept = Vec::new();
        let mut words = words;
        let mut own_chardevs = BTreeSet::new();
        while let Some(word) = words.next() {
            // QEMU takes both -x and --x.
            let plain = word.strip_prefix('-').filter(|rest| rest.starts_with('-')).unwrap_or(&word).to_owned();
            match OWN_OPTIONS.iter().find(|(name, _)| *name == plain) {
                Some((_, following)) => {
                    let values: Vec<String> = words.by_ref().take(*following).collect();
                    // In `-mon chardev=ID` the chardev is a monitor's.
                    let ids =
                        values.iter().flat_map(|value| value.split(',')).filter_map(|o| o.strip_prefix("chardev="));
                    own_chardevs.extend(ids.map(str::to_owned));
                }
                None => kept.push(word),
            }
        }
        // These are the chardevs of monitors, wherever they are.
        let is_own = |value: &str| {
            let mut options = value.split(',');
            options.any(|option| option.strip_prefix("id=").is_some_and(|id| own_chardevs.contains(id)))
        };
        let mut args: Vec<String> = Vec::new();
        for word in kept {
            if args.last().is_some_and(|last| last == "-chardev") && is_own(&word) {
                args.pop();
                continue;
            }
            args.push(word);
        }
        args
    }
}

impl Launch {
    /// Returns the same with the images that the guest has open now in place of those that it was started with, where
    /// that is exact. Also returns the names of images that were put in so (`` for a drive that is empty now).
    /// `launched` is as [`Vm::launched`](crate::vms::Vm::launched).
    pub(crate) fn with_images_of(&self, now: &Composition, launched: Option<&Composition>) -> (Launch, Vec<String>) {
        let mut given = Vec::new();
        let launch = match self {
            Launch::Definition(defined) => {
                let mut defined = defined.clone();
                for drive in launched.map_or(&[][..], |launched| &launched.drives) {
                    let now = now.drives.iter().find(|now| now.device == drive.device);
                    given.extend(now.and_then(|now| give_image(&mut defined.definition, drive, now)));
                }
                Launch::Definition(defined)
            }
            Launch::CommandLine(line) => {
                let mut line = line.clone();
                for drive in &now.drives {
                    if let Some((args, image)) = with_image(&line.args, drive, now) {
                        line.args = args;
                        given.push(image);
                    }
                }
                Launch::CommandLine(line)
            }
        };
        (launch, given)
    }

    /// Returns what the VM's QEMU needs, by the definition; `None`: there is no definition.
    pub(crate) fn need(&self) -> Option<RoomNeed> {
        let definition = self.definition()?;
        Some(RoomNeed::new(definition.memory_bytes, definition.hugepages, definition.cpus, definition.accel))
    }

    /// Returns the VM's definition, if the VM has one.
    pub fn definition(&self) -> Option<&Definition> {
        match self {
            Launch::Definition(defined) => Some(&defined.definition),
            Launch::CommandLine(_) => None,
        }
    }
}

/// Puts what a drive has `now` into a definition, if the drive had what the definition says when its QEMU had just been
/// started, which is `then`. `None`: the drive has the same, or a definition cannot say what it has.
fn give_image(definition: &mut Definition, then: &Drive, now: &Drive) -> Option<String> {
    let old = then.medium.as_ref().map(|medium| Path::new(medium.filename()));
    let new = now.medium.as_ref().map(|medium| medium.filename());
    let format = now.medium.as_ref().and_then(|medium| medium.chain.first()).map(|image| image.format.as_str());
    if old == new.map(Path::new) || new.is_some_and(|new| !new.starts_with('/')) {
        return None;
    }
    // The agent names the drives of its definitions so.
    let number = then.device.strip_prefix("cdrom").and_then(|number| number.parse::<usize>().ok());
    if let Some(cdrom) = number.and_then(|number| definition.cdroms.get_mut(number))
        && cdrom.path.as_deref() == old
        && matches!(format, None | Some("raw"))
    {
        cdrom.path = new.map(PathBuf::from);
        return Some(new.unwrap_or_default().to_owned());
    }
    let disk = definition.disks.iter_mut().find(|disk| Some(disk.path.as_path()) == old)?;
    disk.format = match format? {
        "raw" => definition::DiskFormat::Raw,
        "qcow2" => definition::DiskFormat::Qcow2,
        _ => return None,
    };
    disk.path = new?.into();
    new.map(str::to_owned)
}

/// Returns the command line with what a drive has now, if it names another image for the drive and that can be told for
/// certain.
fn with_image(args: &[String], drive: &Drive, now: &Composition) -> Option<(Vec<String>, String)> {
    let named = command_line::drive_files(args);
    let by_name = command_line::drive_file(args, &drive.name);
    let Some(medium) = &drive.medium else {
        // The medium was ejected.
        let old = by_name.filter(|old| drive.removable && !now.filenames().contains(old.as_str()))?;
        return Some((command_line::with_drive(args, &drive.name, &old, None)?, String::new()));
    };
    let new = medium.chain.first()?;
    let is_named = named.contains(&new.filename);
    if is_named || !new.filename.starts_with('/') || !matches!(new.format.as_str(), "raw" | "qcow2") {
        return None;
    }
    // After a snapshot the named image is below the open image.
    let below = || medium.chain.iter().map(|image| &image.filename).find(|filename| named.contains(*filename)).cloned();
    let old = by_name.or_else(below)?;
    let args = command_line::with_drive(args, &drive.name, &old, Some((&new.filename, &new.format)))?;
    Some((args, new.filename.clone()))
}

/// Returns the tap of a NIC that is plugged into a bridge: at most 15 bytes, the same for one VM whenever it starts.
pub(crate) fn tap_name(nic: &definition::Nic) -> String {
    let [_, a, b, c, d, e] = nic.mac.0;
    format!("sk{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}")
}

/// What of QEMU's arguments needs the guest's RAM in shared memory: a device that is another process maps the RAM,
/// and a GPU's blobs are made of its memfd (QEMU's hw/display/virtio-gpu-udmabuf.c).
const NEEDS_SHARED_MEMORY: [&str; 5] = ["vhost-user", "vfio-user", "x-pci-proxy-dev", "blob=on", "blob=true"];

/// Returns what holds a guest's RAM: memory of QEMU's own, which is as fast as the host allows and takes nothing for
/// what nobody touched; or shared memory, where somebody else needs that. `shares_ram`: this host gives all
/// guests such.
pub(crate) fn memory_backend(definition: &Definition, shares_ram: bool) -> MemoryBackend {
    let is_needed = |arg: &String| NEEDS_SHARED_MEMORY.iter().any(|word| arg.contains(word));
    let is_shared = definition.shared_memory || definition.hugepages.is_some() || shares_ram;
    match is_shared || definition.qemu.args.iter().any(is_needed) {
        true => MemoryBackend::Memfd,
        false => MemoryBackend::Private,
    }
}

/// Returns QEMU's command line for a definition. `dir` is where its sockets are; `own` is what the agent keeps for the
/// guest.
pub(crate) fn config(
    defined: &Defined,
    default: Option<&Path>,
    dir: &Path,
    own: &OwnState,
    memory: MemoryBackend,
    incoming: Incoming,
) -> Config {
    let Defined { definition, odd_ram, .. } = defined;
    let accel = definition.accel;
    let memory_bytes = definition.memory_bytes + if *odd_ram { ODD_BYTES } else { 0 };
    let mut config = Config::new(&definition.name, memory_bytes >> 10, dir.join("qmp"));
    config.memory = memory;
    config.binary = definition.qemu.binary.clone().or_else(|| default.map(Path::to_owned));
    config.machine.clone_from(&definition.machine);
    config.accel = if accel == Accel::Kvm { "kvm" } else { "tcg" }.into();
    config.cpu = defined.cpu();
    config.cpus = definition.cpus;
    config.hugepages = definition.hugepages.map(|bytes| match bytes {
        0x20_0000 => HugePages::Size2M,
        _ => HugePages::Size1G,
    });
    config.kernel.clone_from(&definition.kernel);
    config.initrd.clone_from(&definition.initrd);
    config.append = definition.append.clone().unwrap_or_default();
    config.boot = boot(definition, own);
    config.tpm = definition.tpm.map(|tpm| Tpm {
        model: if tpm.model == TpmModel::Crb { "tpm-crb" } else { "tpm-tis" }.into(),
        socket: dir.join("tpm"),
    });
    let system = &definition.system;
    let texts = [("uuid", system.uuid.as_ref())].into_iter().chain(system.texts());
    config.system = texts.filter_map(|(key, text)| Some((key.to_owned(), text?.clone()))).collect();
    config.rtc = rtc(definition.rtc);
    config.display = definition.display.map(|display| Display {
        card: if display.video == Video::Vga { "VGA" } else { "virtio-vga" }.into(),
        vnc: dir.join("vnc"),
    });
    config.disks = definition.disks.iter().map(disk).collect();
    config.cdroms = definition.cdroms.iter().map(cdrom).collect();
    config.nics = definition.nics.iter().map(nic).collect();
    config.serial = Serial::Socket(dir.join("console"));
    config.paused = incoming == Incoming::Defer;
    config.incoming = incoming;
    config.no_reboot = false;
    config.sandbox = true;
    config.extra = definition.qemu.args.iter().map(Into::into).collect();
    config
}

fn boot(definition: &Definition, own: &OwnState) -> Boot {
    let Some(firmware) = &definition.firmware else { return Boot::Default };
    // The image was found when the VM was first started.
    let image = firmware.image.clone().unwrap_or_default();
    match firmware.kind {
        FirmwareKind::Bios => Boot::Bios(image),
        FirmwareKind::Uefi => Boot::Uefi {
            code: image,
            vars: firmware.vars.clone().unwrap_or_else(|| own.vars()),
            secure: firmware.secure_boot,
        },
    }
}

fn rtc(rtc: Rtc) -> String {
    if rtc == Rtc::default() {
        return String::new();
    }
    let base = if rtc.base == RtcBase::Utc { "utc" } else { "localtime" };
    format!("base={base}{}", if rtc.slew { ",driftfix=slew" } else { "" })
}

fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

fn bus(bus: definition::Bus) -> Bus {
    match bus {
        definition::Bus::VirtioBlk => Bus::VirtioBlk,
        definition::Bus::VirtioScsi => Bus::VirtioScsi,
        definition::Bus::Sata => Bus::Sata,
        definition::Bus::Ide => Bus::Ide,
        definition::Bus::Nvme => Bus::Nvme,
    }
}

fn cdrom(cdrom: &definition::Cdrom) -> Cdrom {
    Cdrom {
        medium: cdrom.path.clone().map(|path| (path.clone(), is_block_device(&path))),
        bus: bus(cdrom.bus),
        controller: cdrom.controller,
        boot_index: cdrom.boot_index,
    }
}

fn disk(disk: &definition::Disk) -> Disk {
    let options = &disk.options;
    Disk {
        path: disk.path.clone(),
        block_device: is_block_device(&disk.path),
        format: match disk.format {
            definition::DiskFormat::Raw => DiskFormat::Raw,
            definition::DiskFormat::Qcow2 => DiskFormat::Qcow2,
        },
        cache: match disk.cache {
            definition::Cache::None => DiskCache::None,
            definition::Cache::Writeback => DiskCache::Writeback,
        },
        // The lock keeps other programs off; QEMU hands its lock over in a migration.
        locked: true,
        read_only: disk.readonly,
        options: DiskOptions {
            bus: bus(options.bus),
            controller: options.controller,
            serial: options.serial.clone(),
            wwn: options.wwn,
            ssd: options.ssd,
            boot_index: options.boot_index,
            discard: options.discard,
            aio: options.io.map(|io| match io {
                Io::Threads => "threads",
                Io::Native => "native",
                Io::IoUring => "io_uring",
            }),
            iothread: options.iothread,
        },
    }
}

fn nic(nic: &definition::Nic) -> Nic {
    let tap = match &nic.attachment {
        Attachment::Bridge(_) => tap_name(nic),
        Attachment::Tap(name) => name.clone(),
    };
    let model = match nic.options.model {
        NicModel::Virtio => "virtio-net-pci",
        NicModel::E1000e => "e1000e",
        NicModel::E1000 => "e1000",
        NicModel::Rtl8139 => "rtl8139",
        NicModel::Vmxnet3 => "vmxnet3",
    };
    Nic {
        model: model.into(),
        vhost: nic.options.vhost,
        queues: nic.options.queues.filter(|queues| *queues > 1),
        ..Nic::new(nic.mac.to_string(), NicBackend::Tap(tap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_command_line_loses_what_is_its_own() {
        let words = "-name x -chardev socket,id=mon0,path=/q,server=on -mon chardev=mon0,mode=control -m 64 -S \
                     --qmp unix:/r,server -chardev socket,id=ser,path=/s -serial chardev:ser -incoming defer -pidfile \
                     /p";
        let kept = CommandLine::without_own(words.split_ascii_whitespace().map(str::to_owned));
        assert_eq!(kept.join(" "), "-name x -m 64 -chardev socket,id=ser,path=/s -serial chardev:ser");
    }

    #[test]
    fn a_definition_becomes_a_command_line() {
        let text = "name = \"a\"\nmemory = \"64 MiB\"\ncpus = 1\nmachine = \"q35\"\n[[nic]]\nbridge = \"br0\"\n";
        let definition = Definition::parse(text, "a.toml").unwrap();
        let defined = Defined { definition, odd_ram: true, cpu_model: None };
        let own = OwnState::new(Path::new("/var/lib/skein"), "a");
        let config =
            config(&defined, None, Path::new("/run/skein/vms/a"), &own, MemoryBackend::Private, Incoming::Defer);
        let line: Vec<String> = config.arguments().iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let line = line.join(" ");
        for part in ["-sandbox on", "size=65544K", "-incoming defer", "-S", "/run/skein/vms/a/console", "ifname=sk"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn ram_is_shared_with_who_needs_that() {
        let backend = |more: &str, keeps_ram| {
            let text = format!("name = 'a'\nmemory = '64 MiB'\n{more}");
            memory_backend(&Definition::parse(&text, "a.toml").unwrap(), keeps_ram)
        };
        let device = |device: &str| format!("[qemu]\nargs = ['-device', '{device}']\n");
        for private in ["", "shared_memory = false", &device("virtio-rng-pci"), &device("virtio-gpu-pci,blob=off")] {
            assert_eq!(backend(private, false), MemoryBackend::Private, "{private}");
        }
        let (fs, gpu) = (device("vhost-user-fs-pci,chardev=c,tag=t"), device("virtio-gpu-pci,blob=on"));
        for shared in ["shared_memory = true", "hugepages = '2 MiB'", &fs, &gpu] {
            assert_eq!(backend(shared, false), MemoryBackend::Memfd, "{shared}");
        }
        assert_eq!(backend("", true), MemoryBackend::Memfd);
    }

    #[test]
    fn what_older_versions_started_has_the_same_command_line() {
        // An older agent started this guest's machine, and a newer agent moves it, byte for byte.
        let text = "name = 'a'\nmemory = '64 MiB'\nmachine = 'pc-q35-7.2'\naccel = 'tcg'\n\
                    [[disk]]\npath = '/d'\nformat = 'qcow2'\n[[nic]]\ntap = 't0'\nmac = '52:54:00:00:00:01'\n\
                    [qemu]\nargs = ['-device', 'virtio-rng-pci']\n";
        let definition = Definition::parse(text, "a.toml").unwrap();
        let defined = Defined { definition, odd_ram: true, cpu_model: None };
        let own = OwnState::new(Path::new("/s"), "a");
        let config = config(&defined, None, Path::new("/r"), &own, MemoryBackend::Memfd, Incoming::No);
        let line: Vec<String> = config.arguments().iter().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(
            line.join(" "),
            "-name a -nodefaults -no-user-config -display none \
             -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny -accel tcg \
             -object memory-backend-memfd,id=ram0,share=on,size=65544K -machine pc-q35-7.2,memory-backend=ram0 -m \
             65544K \
             -cpu max -smp 1 \
             -blockdev \
             driver=qcow2,node-name=disk0,cache.direct=on,file.driver=file,file.locking=auto,file.filename=/d \
             -device virtio-blk-pci,drive=disk0 -netdev tap,id=net0,ifname=t0,script=no,downscript=no \
             -device virtio-net-pci,netdev=net0,mac=52:54:00:00:00:01,romfile= \
             -chardev socket,id=serial0,path=/r/console,server=on,wait=off -serial chardev:serial0 \
             -chardev socket,id=qmp0,path=/r/qmp,server=on,wait=off -mon chardev=qmp0,mode=control \
             -device virtio-rng-pci"
        );
    }

    #[test]
    fn what_a_file_says_of_devices_reaches_the_command_line() {
        let text = "name = 'a'\nmemory = '64 MiB'\n[firmware]\nimage = '/code'\n[tpm]\nmodel = 'tis'\n[rtc]\nslew = \
                    true\n\
                    [system]\nserial = 'S'\n[display]\nvideo = 'virtio'\n[[cdrom]]\npath = '/i'\n\
                    [[disk]]\npath = '/d'\nformat = 'raw'\nbus = 'sata'\nio = 'io_uring'\n\
                    [[nic]]\nbridge = 'b'\nqueues = 2\nvhost = true\n[[nic]]\nbridge = 'b'\nmodel = 'rtl8139'\n";
        let definition = Definition::parse(text, "a.toml").unwrap();
        let own = OwnState::new(Path::new("/s"), "a");
        let config = config(
            &Defined { definition, odd_ram: false, cpu_model: None },
            None,
            Path::new("/r"),
            &own,
            MemoryBackend::Memfd,
            Incoming::No,
        );
        let line: Vec<String> = config.arguments().iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let line = line.join(" ");
        for part in [
            "q35,pflash0=firmware-code,pflash1=firmware-vars",
            "file.filename=/code",
            "file.filename=/s/own/a/vars.fd",
            "-chardev socket,id=tpm0,path=/r/tpm",
            "-device tpm-tis,",
            "-rtc base=utc,driftfix=slew",
            "-smbios type=1,serial=S",
            "-device virtio-vga",
            "-vnc unix:/r/vnc",
            "file.aio=io_uring",
            "-device ide-hd,drive=disk0,bus=ide.0",
            "-device ide-cd,id=cdrom0,drive=cd0,bus=ide.1",
            "script=no,downscript=no,queues=2,vhost=on",
            "romfile=,mq=on,vectors=6",
            "-device rtl8139,netdev=net1",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}
