//! From what a VM is to the QEMU that runs it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use skein_hypervisor::{Config, Disk, DiskCache, DiskFormat, HugePages, Incoming, Nic, NicBackend, Serial};
use skein_machine::command_line;
use skein_machine::composition::{Composition, Drive};
use skein_machine::definition::{self, Accel, Attachment, Definition};

/// What a VM's QEMU is started from, the same at source and target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Launch {
    /// A definition.
    Definition(Box<Defined>),
    /// The command line of a QEMU that somebody else started.
    CommandLine(CommandLine),
}

/// A definition, and what was decided when it was started first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defined {
    /// With its machine type and accelerator resolved.
    pub definition: Definition,
    /// Whether its RAM is [`ODD_BYTES`] more.
    ///
    /// QEMU before 9.0 loses writes of an emulated CPU during a migration: it takes the dirty bits of 64 pages at a time and
    /// forgets to tell the CPU's TLB to notice the next write to them (mended by "physmem: Fix migration dirty bitmap
    /// coherency with TCG memory access"). RAM that is no multiple of 64 pages is taken page by page, by slower code that
    /// does not forget. Tried with 7.2: 3 of some 40 migrations of a rewriting guest broke it without this, none of 120
    /// with it.
    pub odd_ram: bool,
}

/// See [`Defined::odd_ram`].
pub(crate) const ODD_BYTES: u64 = 8 << 10;

/// A QEMU's command line, without what belongs to one process: its monitors, and where its guest came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLine {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

/// Options that belong to one process, and how many words follow them.
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
    /// Of a process, by `/proc/PID/cmdline` and `/proc/PID/exe`.
    pub fn of(pid: u32) -> io::Result<CommandLine> {
        let program = fs::read_link(format!("/proc/{pid}/exe"))?;
        let bytes = fs::read(format!("/proc/{pid}/cmdline"))?;
        let words = bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        let mut words: Vec<String> = words.collect();
        words.pop();
        Ok(CommandLine { program, args: CommandLine::without_own(words.into_iter().skip(1)) })
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
                    // -mon chardev=ID: that chardev is a monitor's.
                    let ids =
                        values.iter().flat_map(|value| value.split(',')).filter_map(|o| o.strip_prefix("chardev="));
                    own_chardevs.extend(ids.map(str::to_owned));
                }
                None => kept.push(word),
            }
        }
        // The chardevs of monitors, wherever they are.
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
    /// The same with the images that the guest has open now in place of those that it was started with, where that is exact; and the
    /// names of images that were put in so (`` for a drive that is empty now). `launched`: as [`Vm::launched`](crate::vms::Vm::launched).
    pub(crate) fn with_images_of(&self, now: &Composition, launched: Option<&Composition>) -> (Launch, Vec<String>) {
        let mut given = Vec::new();
        let launch = match self {
            Launch::Definition(defined) => {
                let mut defined = defined.clone();
                for drive in launched.map_or(&[][..], |launched| &launched.drives) {
                    let medium = |drive: &Drive| drive.medium.as_ref().map(|medium| medium.filename().to_owned());
                    let (Some(old), Some(now)) =
                        (medium(drive), now.drives.iter().find(|now| now.device == drive.device))
                    else {
                        continue;
                    };
                    let new = now.medium.as_ref().and_then(|medium| medium.chain.first());
                    let Some(new) = new.filter(|new| new.filename != old && new.filename.starts_with('/')) else {
                        continue;
                    };
                    let format = match new.format.as_str() {
                        "raw" => definition::DiskFormat::Raw,
                        "qcow2" => definition::DiskFormat::Qcow2,
                        _ => continue,
                    };
                    let disk = defined.definition.disks.iter_mut().find(|disk| disk.path == Path::new(&old));
                    if let Some(disk) = disk {
                        (disk.path, disk.format) = (new.filename.clone().into(), format);
                        given.push(new.filename.clone());
                    }
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

    /// The VM's definition, if it has one.
    pub fn definition(&self) -> Option<&Definition> {
        match self {
            Launch::Definition(defined) => Some(&defined.definition),
            Launch::CommandLine(_) => None,
        }
    }
}

/// The command line with what a drive has now, if it names another image for it and that can be told for certain.
fn with_image(args: &[String], drive: &Drive, now: &Composition) -> Option<(Vec<String>, String)> {
    let named = command_line::drive_files(args);
    let by_name = command_line::drive_file(args, &drive.name);
    let Some(medium) = &drive.medium else {
        // It was ejected.
        let old = by_name.filter(|old| drive.removable && !now.filenames().contains(old.as_str()))?;
        return Some((command_line::with_drive(args, &drive.name, &old, None)?, String::new()));
    };
    let new = medium.chain.first()?;
    let is_named = named.contains(&new.filename);
    if is_named || !new.filename.starts_with('/') || !matches!(new.format.as_str(), "raw" | "qcow2") {
        return None;
    }
    // After a snapshot what was named is below what is open.
    let below = || medium.chain.iter().map(|image| &image.filename).find(|filename| named.contains(*filename)).cloned();
    let old = by_name.or_else(below)?;
    let args = command_line::with_drive(args, &drive.name, &old, Some((&new.filename, &new.format)))?;
    Some((args, new.filename.clone()))
}

/// The tap of a NIC that is plugged into a bridge: at most 15 bytes, the same for one VM whenever it starts.
pub(crate) fn tap_name(nic: &definition::Nic) -> String {
    let [_, a, b, c, d, e] = nic.mac.0;
    format!("sk{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}")
}

/// QEMU's command line for a definition. `dir`: where its sockets are.
pub(crate) fn config(defined: &Defined, default: Option<&Path>, dir: &Path, incoming: bool) -> Config {
    let Defined { definition, odd_ram } = defined;
    let accel = definition.accel;
    let memory_bytes = definition.memory_bytes + if *odd_ram { ODD_BYTES } else { 0 };
    let mut config = Config::new(&definition.name, memory_bytes >> 10, dir.join("qmp"));
    config.binary = definition.qemu.binary.clone().or_else(|| default.map(Path::to_owned));
    config.machine.clone_from(&definition.machine);
    config.accel = if accel == Accel::Kvm { "kvm" } else { "tcg" }.into();
    config.cpu = definition.cpu_for(accel).to_owned();
    config.cpus = definition.cpus;
    config.hugepages = definition.hugepages.map(|bytes| match bytes {
        0x20_0000 => HugePages::Size2M,
        _ => HugePages::Size1G,
    });
    config.kernel.clone_from(&definition.kernel);
    config.initrd.clone_from(&definition.initrd);
    config.append = definition.append.clone().unwrap_or_default();
    config.disks = definition.disks.iter().map(disk).collect();
    config.nics = definition.nics.iter().map(nic).collect();
    config.serial = Serial::Socket(dir.join("console"));
    config.incoming = if incoming { Incoming::Defer } else { Incoming::No };
    config.paused = incoming;
    config.no_reboot = false;
    config.sandbox = true;
    config.extra = definition.qemu.args.iter().map(Into::into).collect();
    config
}

fn disk(disk: &definition::Disk) -> Disk {
    let is_block = fs::metadata(&disk.path).is_ok_and(|found| found.file_type().is_block_device());
    Disk {
        path: disk.path.clone(),
        block_device: is_block,
        format: match disk.format {
            definition::DiskFormat::Raw => DiskFormat::Raw,
            definition::DiskFormat::Qcow2 => DiskFormat::Qcow2,
        },
        cache: match disk.cache {
            definition::Cache::None => DiskCache::None,
            definition::Cache::Writeback => DiskCache::Writeback,
        },
        // Strangers are kept off; QEMU hands its lock over in a migration.
        locked: true,
        read_only: disk.readonly,
    }
}

fn nic(nic: &definition::Nic) -> Nic {
    let tap = match &nic.attachment {
        Attachment::Bridge(_) => tap_name(nic),
        Attachment::Tap(name) => name.clone(),
    };
    Nic::new(nic.mac.to_string(), NicBackend::Tap(tap))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_command_line_loses_what_is_its_own() {
        let words = "-name x -chardev socket,id=mon0,path=/q,server=on -mon chardev=mon0,mode=control -m 64 -S \
                     --qmp unix:/r,server -chardev socket,id=ser,path=/s -serial chardev:ser -incoming defer -pidfile /p";
        let kept = CommandLine::without_own(words.split_ascii_whitespace().map(str::to_owned));
        assert_eq!(kept.join(" "), "-name x -m 64 -chardev socket,id=ser,path=/s -serial chardev:ser");
    }

    #[test]
    fn a_definition_becomes_a_command_line() {
        let text = "name = \"a\"\nmemory = \"64 MiB\"\ncpus = 1\nmachine = \"q35\"\n[[nic]]\nbridge = \"br0\"\n";
        let definition = Definition::parse(text, "a.toml").unwrap();
        let defined = Defined { definition, odd_ram: true };
        let config = config(&defined, None, Path::new("/run/skein/vms/a"), true);
        let line: Vec<String> = config.arguments().iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let line = line.join(" ");
        for part in ["-sandbox on", "size=65544K", "-incoming defer", "-S", "/run/skein/vms/a/console", "ifname=sk"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}
