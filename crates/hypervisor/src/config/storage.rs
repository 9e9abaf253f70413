//! Plugs disks in: makes controllers, and gives disks their places there.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::arguments::Argument;
use crate::config::devices::{Bus, Cdrom, Disk, boot_option, image};

/// Gives disks their places at controllers, and makes controllers when they are first needed. The same disks in the
/// same order have the same places, which a guest's machine depends on.
pub(crate) struct Storage {
    has_ahci: bool,
    /// The controllers that a thread of their own serves.
    threaded: BTreeSet<u8>,
    taken: BTreeMap<(Bus, u8), u32>,
}

impl Storage {
    /// Makes the places of `disks`, which are all of the machine's.
    pub(crate) fn new(machine: &str, disks: &[Disk]) -> Storage {
        let kind = machine.split(',').next().unwrap_or_default();
        let on_scsi = disks.iter().map(|disk| &disk.options).filter(|options| options.bus == Bus::VirtioScsi);
        Storage {
            has_ahci: kind == "q35" || kind.starts_with("pc-q35-"),
            threaded: on_scsi.filter(|options| options.iothread).map(|options| options.controller).collect(),
            taken: BTreeMap::new(),
        }
    }

    /// Takes the next place at a controller. Returns what makes the controller, if this is its first place, and the
    /// device's options.
    fn attach(&mut self, bus: Bus, controller: u8) -> (Vec<Argument>, String) {
        let taken = self.taken.entry((bus, controller)).or_default();
        let number = *taken;
        *taken += 1;
        let mut arguments = Vec::new();
        let place = match bus {
            Bus::VirtioBlk | Bus::Nvme => String::new(),
            Bus::VirtioScsi => {
                if number == 0 {
                    let thread = if self.threaded.contains(&controller) {
                        arguments.push(("-object", format!("iothread,id=scsi{controller}-thread").into()));
                        format!(",iothread=scsi{controller}-thread")
                    } else {
                        String::new()
                    };
                    arguments.push(("-device", format!("virtio-scsi-pci,id=scsi{controller}{thread}").into()));
                }
                format!(",bus=scsi{controller}.0,channel=0,scsi-id={number},lun=0")
            }
            // The six ports of the machine's own controller are buses with these names.
            Bus::Sata if self.has_ahci && controller == 0 => format!(",bus=ide.{number}"),
            Bus::Sata => {
                if number == 0 {
                    arguments.push(("-device", format!("ich9-ahci,id=sata{controller}").into()));
                }
                format!(",bus=sata{controller}.{number}")
            }
            Bus::Ide => format!(",bus=ide.{},unit={}", number / 2, number % 2),
        };
        (arguments, place)
    }

    /// Returns what follows a disk's `-blockdev`.
    pub(crate) fn disk(&mut self, number: usize, disk: &Disk) -> Vec<Argument> {
        let options = &disk.options;
        let (mut arguments, place) = self.attach(options.bus, options.controller);
        let more = options.device_options();
        let device = match options.bus {
            Bus::VirtioBlk => {
                let mut thread = String::new();
                if options.iothread {
                    arguments.push(("-object", format!("iothread,id=disk{number}-thread").into()));
                    thread = format!(",iothread=disk{number}-thread");
                }
                format!("virtio-blk-pci,drive=disk{number}{thread}{more}")
            }
            Bus::VirtioScsi => format!("scsi-hd,drive=disk{number}{place}{more}"),
            Bus::Sata | Bus::Ide => format!("ide-hd,drive=disk{number}{place}{more}"),
            // An NVMe device has to have a serial number.
            Bus::Nvme if options.serial.is_none() => format!("nvme,drive=disk{number},serial=disk{number}{more}"),
            Bus::Nvme => format!("nvme,drive=disk{number}{more}"),
        };
        arguments.push(("-device", device.into()));
        arguments
    }

    /// Returns a CD drive, with its medium.
    pub(crate) fn cdrom(&mut self, number: usize, cdrom: &Cdrom) -> Vec<Argument> {
        let mut arguments = Vec::new();
        let mut drive = String::new();
        if let Some((path, block_device)) = &cdrom.medium {
            let driver = if *block_device { "host_device" } else { "file" };
            arguments.push(("-blockdev", image(&format!("cd{number}"), ",read-only=on", driver, path)));
            drive = format!(",drive=cd{number}");
        }
        let (controller, place) = self.attach(cdrom.bus, cdrom.controller);
        arguments.extend(controller);
        let device = if cdrom.bus == Bus::VirtioScsi { "scsi-cd" } else { "ide-cd" };
        let boot = boot_option(cdrom.boot_index);
        arguments.push(("-device", format!("{device},id=cdrom{number}{drive}{place}{boot}").into()));
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::devices::{Boot, DiskOptions, Display, Tpm};

    /// Returns what follows the CPUs of a machine, up to its monitor.
    fn devices(config: &Config) -> Vec<String> {
        let words: Vec<String> = config.arguments().iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let begin = words.iter().position(|word| word == "-smp").unwrap() + 2;
        let end = words.iter().position(|word| word.starts_with("socket,id=qmp0")).unwrap() - 1;
        words[begin..end].chunks(2).map(|pair| pair.join(" ")).collect()
    }

    fn config(machine: &str) -> Config {
        Config { machine: machine.into(), ..Config::new("vm", 65_536, "/q") }
    }

    fn disk(path: &str, options: DiskOptions) -> Disk {
        Disk { options, ..Disk::new(path) }
    }

    #[test]
    fn uefi_is_two_flash_devices() {
        let mut config = config("q35");
        config.boot = Boot::Uefi { code: "/code".into(), vars: "/a,b".into(), secure: true };
        let line =
            config.arguments().iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
        let machine = "-machine q35,smm=on,pflash0=firmware-code,pflash1=firmware-vars,memory-backend=ram0";
        assert!(line.contains(machine), "{line}");
        assert_eq!(
            devices(&config),
            [
                "-blockdev driver=raw,node-name=firmware-code,read-only=on,\
                 file.driver=file,file.locking=auto,file.filename=/code",
                "-blockdev driver=raw,node-name=firmware-vars,file.driver=file,file.locking=auto,file.filename=/a,,b",
                "-global driver=cfi.pflash01,property=secure,value=on",
            ]
        );
        config.boot = Boot::Bios("/bios".into());
        assert_eq!(devices(&config), ["-bios /bios"]);
    }

    #[test]
    fn platform_devices() {
        let mut config = config("q35");
        config.tpm = Some(Tpm { model: "tpm-crb".into(), socket: "/run/tpm".into() });
        config.system = [("uuid", "u"), ("serial", "a,b"), ("sku", "c")].map(|(k, v)| (k.into(), v.into())).into();
        config.rtc = "base=localtime".into();
        config.display = Some(Display { card: "VGA".into(), vnc: "/run/vnc".into() });
        assert_eq!(
            devices(&config),
            [
                "-chardev socket,id=tpm0,path=/run/tpm",
                "-tpmdev emulator,id=tpmdev0,chardev=tpm0",
                "-device tpm-crb,tpmdev=tpmdev0",
                "-uuid u",
                "-smbios type=1,serial=a,,b,sku=c",
                "-rtc base=localtime",
                "-vnc unix:/run/vnc",
                "-device VGA",
                "-device qemu-xhci,id=usb0",
                "-device usb-tablet,bus=usb0.0",
            ]
        );
    }

    #[test]
    fn disks_have_their_places_at_controllers() {
        let mut config = config("pc-q35-7.2");
        let scsi = |controller| DiskOptions { bus: Bus::VirtioScsi, controller, ..DiskOptions::default() };
        let sata = |controller| DiskOptions { bus: Bus::Sata, controller, ..DiskOptions::default() };
        config.disks = vec![
            disk(
                "/0",
                DiskOptions { boot_index: Some(1), iothread: true, aio: Some("native"), ..DiskOptions::default() },
            ),
            disk(
                "/1",
                DiskOptions { serial: Some("S".into()), wwn: Some(0x5000), ssd: true, discard: true, ..scsi(0) },
            ),
            disk("/2", DiskOptions { iothread: true, ..scsi(1) }),
            disk("/3", scsi(0)),
            disk("/4", sata(0)),
            disk("/5", sata(1)),
            disk("/6", DiskOptions { bus: Bus::Nvme, ..DiskOptions::default() }),
        ];
        let cdrom = |medium: Option<&str>, bus| Cdrom {
            medium: medium.map(|path| (path.into(), false)),
            bus,
            controller: 0,
            boot_index: None,
        };
        config.cdroms = vec![cdrom(None, Bus::Sata), cdrom(Some("/i"), Bus::VirtioScsi)];
        let node = "cache.direct=on,file.driver=file,file.locking=off,file.filename=";
        let expect = [
            "-blockdev driver=raw,node-name=disk0,cache.direct=on,\
             file.driver=file,file.locking=off,file.aio=native,file.filename=/0"
                .into(),
            "-object iothread,id=disk0-thread".into(),
            "-device virtio-blk-pci,drive=disk0,iothread=disk0-thread,bootindex=1".into(),
            "-blockdev driver=raw,node-name=disk1,cache.direct=on,discard=unmap,file.driver=file,file.locking=off,\
             file.discard=unmap,file.filename=/1"
                .into(),
            "-device virtio-scsi-pci,id=scsi0".into(),
            "-device scsi-hd,drive=disk1,bus=scsi0.0,channel=0,scsi-id=0,lun=0,\
             serial=S,wwn=0x0000000000005000,rotation_rate=1"
                .into(),
            format!("-blockdev driver=raw,node-name=disk2,{node}/2"),
            "-object iothread,id=scsi1-thread".into(),
            "-device virtio-scsi-pci,id=scsi1,iothread=scsi1-thread".into(),
            "-device scsi-hd,drive=disk2,bus=scsi1.0,channel=0,scsi-id=0,lun=0".into(),
            format!("-blockdev driver=raw,node-name=disk3,{node}/3"),
            "-device scsi-hd,drive=disk3,bus=scsi0.0,channel=0,scsi-id=1,lun=0".into(),
            format!("-blockdev driver=raw,node-name=disk4,{node}/4"),
            "-device ide-hd,drive=disk4,bus=ide.0".into(),
            format!("-blockdev driver=raw,node-name=disk5,{node}/5"),
            "-device ich9-ahci,id=sata1".into(),
            "-device ide-hd,drive=disk5,bus=sata1.0".into(),
            format!("-blockdev driver=raw,node-name=disk6,{node}/6"),
            "-device nvme,drive=disk6,serial=disk6".into(),
            "-device ide-cd,id=cdrom0,bus=ide.1".into(),
            "-blockdev \
             driver=raw,node-name=cd1,read-only=on,file.driver=file,file.locking=auto,file.filename=/i"
                .into(),
            "-device scsi-cd,id=cdrom1,drive=cd1,bus=scsi0.0,channel=0,scsi-id=2,lun=0".to_owned(),
        ];
        assert_eq!(devices(&config), expect);
    }

    #[test]
    fn an_i440fx_machine_has_ide_and_no_ahci() {
        let mut config = config("pc");
        let of = |bus| DiskOptions { bus, ..DiskOptions::default() };
        config.disks = vec![
            disk("/0", of(Bus::Ide)),
            disk("/1", of(Bus::Ide)),
            disk("/2", of(Bus::Ide)),
            disk("/3", of(Bus::Sata)),
        ];
        let devices: Vec<String> = devices(&config).into_iter().filter(|word| word.starts_with("-device")).collect();
        assert_eq!(
            devices,
            [
                "-device ide-hd,drive=disk0,bus=ide.0,unit=0",
                "-device ide-hd,drive=disk1,bus=ide.0,unit=1",
                "-device ide-hd,drive=disk2,bus=ide.1,unit=0",
                "-device ich9-ahci,id=sata0",
                "-device ide-hd,drive=disk3,bus=sata0.0",
            ]
        );
    }
}
