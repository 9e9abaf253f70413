//! Makes a machine's command line.

use std::ffi::OsString;

use crate::config::arguments::{Arguments, escape};
use crate::config::devices::Serial;
use crate::config::storage::Storage;
use crate::config::{Config, Incoming, MemoryBackend};

impl Config {
    /// Returns the arguments, without the program.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut args = Arguments(Vec::new());
        self.process(&mut args);
        self.memory(&mut args);
        args.option("-cpu", &self.cpu);
        args.option("-smp", self.cpus.to_string());
        self.boot(&mut args);
        self.platform(&mut args);
        self.storage(&mut args);
        for (number, nic) in self.nics.iter().enumerate() {
            args.option("-netdev", nic.netdev(number));
            args.option("-device", nic.device(number));
        }
        self.ports(&mut args);
        args.chardev("socket", "qmp0", &self.qmp, ",server=on,wait=off");
        args.option("-mon", "chardev=qmp0,mode=control");
        match &self.incoming {
            Incoming::No => {}
            Incoming::Defer => args.option("-incoming", "defer"),
            Incoming::Uri(uri) => args.option("-incoming", uri),
        }
        if self.paused {
            args.flags(["-S"]);
        }
        args.0.extend(self.extra.iter().cloned());
        args.0
    }

    /// Adds what the process is, and may do.
    fn process(&self, args: &mut Arguments) {
        args.option("-name", &self.name);
        args.flags(["-nodefaults", "-no-user-config"]);
        if self.no_reboot {
            args.flags(["-no-reboot"]);
        }
        args.option("-display", "none");
        if self.sandbox {
            args.option("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
        }
        if let Some(directory) = &self.firmware {
            args.option("-L", directory);
        }
        args.option("-accel", &self.accel);
    }

    /// Adds the machine type, and the machine's RAM.
    fn memory(&self, args: &mut Arguments) {
        let machine = &format!("{}{}", self.machine, self.boot.machine_options());
        match self.memory {
            MemoryBackend::Anonymous => args.option("-machine", machine),
            MemoryBackend::Memfd => {
                let huge = self.hugepages.map(|size| format!(",hugetlb=on,hugetlbsize={}", size.as_str()));
                let huge = huge.unwrap_or_default();
                args.option(
                    "-object",
                    format!("memory-backend-memfd,id=ram0,share=on{huge},size={}K", self.memory_kib),
                );
                args.option("-machine", format!("{machine},memory-backend=ram0"));
            }
            MemoryBackend::Private => {
                args.option("-object", format!("memory-backend-ram,id=ram0,size={}K", self.memory_kib));
                args.option("-machine", format!("{machine},memory-backend=ram0"));
            }
        }
        args.option("-m", format!("{}K", self.memory_kib));
    }

    /// Adds what runs first.
    fn boot(&self, args: &mut Arguments) {
        if let Some(kernel) = &self.kernel {
            args.option("-kernel", kernel);
            args.option("-append", &self.append);
        }
        if let Some(initrd) = &self.initrd {
            args.option("-initrd", initrd);
        }
        for (name, value) in self.boot.arguments() {
            args.option(name, value);
        }
    }

    /// Adds disks and CD drives, with their controllers.
    fn storage(&self, args: &mut Arguments) {
        let mut storage = Storage::new(&self.machine, &self.disks);
        for (number, disk) in self.disks.iter().enumerate() {
            args.option("-blockdev", disk.blockdev(number));
            storage.disk(number, disk).into_iter().for_each(|(name, value)| args.option(name, value));
        }
        for (number, cdrom) in self.cdroms.iter().enumerate() {
            storage.cdrom(number, cdrom).into_iter().for_each(|(name, value)| args.option(name, value));
        }
    }

    /// Adds the first serial port, and the ports of virtio.
    fn ports(&self, args: &mut Arguments) {
        match &self.serial {
            Serial::None => {}
            Serial::File(path) => {
                args.chardev("file", "serial0", path, ",append=on");
                args.option("-serial", "chardev:serial0");
            }
            Serial::Socket(path) => {
                args.chardev("socket", "serial0", path, ",server=on,wait=off");
                args.option("-serial", "chardev:serial0");
            }
        }
        if !self.ports.is_empty() {
            args.option("-device", "virtio-serial-pci");
        }
        for (number, port) in self.ports.iter().enumerate() {
            args.chardev("socket", &format!("port{number}"), &port.socket, ",server=on,wait=off");
            args.option("-device", format!("virtserialport,chardev=port{number},name={}", port.name));
        }
    }

    /// Adds TPM, SMBIOS, clock and display.
    fn platform(&self, args: &mut Arguments) {
        if let Some(tpm) = &self.tpm {
            args.chardev("socket", "tpm0", &tpm.socket, "");
            args.option("-tpmdev", "emulator,id=tpmdev0,chardev=tpm0");
            args.option("-device", format!("{},tpmdev=tpmdev0", tpm.model));
        }
        let texts = self.system.iter().filter(|(key, _)| key != "uuid");
        let texts: String = texts.map(|(key, text)| format!(",{key}={}", text.replace(',', ",,"))).collect();
        if let Some((_, uuid)) = self.system.iter().find(|(key, _)| key == "uuid") {
            args.option("-uuid", uuid);
        }
        if !texts.is_empty() {
            args.option("-smbios", format!("type=1{texts}"));
        }
        if !self.rtc.is_empty() {
            args.option("-rtc", &self.rtc);
        }
        if let Some(display) = &self.display {
            let mut vnc = OsString::from("unix:");
            vnc.push(escape(&display.vnc));
            args.option("-vnc", vnc);
            args.option("-device", &display.card);
            args.option("-device", "qemu-xhci,id=usb0");
            args.option("-device", "usb-tablet,bus=usb0.0");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HugePages;
    use crate::config::devices::{Disk, DiskCache, DiskFormat, Nic, NicBackend, Port};

    fn line(config: &Config) -> String {
        config.arguments().iter().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_whole_command_line() {
        let mut config = Config::new("vm", 262_144, "/run/a,b/qmp");
        config.firmware = Some("/opt/share".into());
        config.kernel = Some("/k".into());
        config.initrd = Some("/i".into());
        config.append = "quiet".into();
        config.disks = vec![Disk::new("/d")];
        config.nics = vec![
            Nic::new("52:54:00:00:00:01", NicBackend::Tap("tap0".into())),
            Nic::new("52:54:00:00:00:02", NicBackend::Other("user,restrict=on".into())),
        ];
        config.serial = Serial::File("/log".into());
        config.ports = vec![Port { name: "p".into(), socket: "/p".into() }];
        config.incoming = Incoming::Defer;
        config.paused = true;
        config.extra = vec!["-d".into(), "int".into()];
        assert_eq!(
            line(&config),
            "-name vm -nodefaults -no-user-config -no-reboot -display none -L /opt/share -accel tcg \
             -object memory-backend-memfd,id=ram0,share=on,size=262144K -machine q35,memory-backend=ram0 -m 262144K \
             -cpu max -smp 1 \
             -kernel /k -append quiet -initrd /i \
             -blockdev driver=raw,node-name=disk0,cache.direct=on,file.driver=file,file.locking=off,file.filename=/d \
             -device virtio-blk-pci,drive=disk0 \
             -netdev tap,id=net0,ifname=tap0,script=no,downscript=no \
             -device virtio-net-pci,netdev=net0,mac=52:54:00:00:00:01,romfile= \
             -netdev user,id=net1,restrict=on -device virtio-net-pci,netdev=net1,mac=52:54:00:00:00:02,romfile= \
             -chardev file,id=serial0,path=/log,append=on -serial chardev:serial0 \
             -device virtio-serial-pci -chardev socket,id=port0,path=/p,server=on,wait=off \
             -device virtserialport,chardev=port0,name=p \
             -chardev socket,id=qmp0,path=/run/a,,b/qmp,server=on,wait=off -mon chardev=qmp0,mode=control \
             -incoming defer -S -d int"
        );
    }

    #[test]
    fn a_managed_machine_and_its_target() {
        let mut config = Config::new("vm", 2_097_152, "/q");
        config.no_reboot = false;
        config.sandbox = true;
        config.hugepages = Some(HugePages::Size2M);
        config.disks = vec![
            Disk { format: DiskFormat::Qcow2, locked: true, cache: DiskCache::Writeback, ..Disk::new("/s/a") },
            Disk { block_device: true, read_only: true, ..Disk::new("/dev/b") },
        ];
        let tap = NicBackend::Tap("t0".into());
        config.nics = vec![Nic { vhost: true, model: "e1000e".into(), ..Nic::new("52:54:00:00:00:01", tap) }];
        let source = line(&config);
        assert_eq!(
            source,
            "-name vm -nodefaults -no-user-config -display none \
             -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny -accel tcg \
             -object memory-backend-memfd,id=ram0,share=on,hugetlb=on,hugetlbsize=2M,size=2097152K \
             -machine q35,memory-backend=ram0 -m 2097152K -cpu max -smp 1 \
             -blockdev \
             driver=qcow2,node-name=disk0,cache.direct=off,file.driver=file,file.locking=auto,file.filename=/s/a \
             -device virtio-blk-pci,drive=disk0 \
             -blockdev driver=raw,node-name=disk1,cache.direct=on,read-only=on,file.driver=host_device,\
             file.locking=off,file.filename=/dev/b -device virtio-blk-pci,drive=disk1 \
             -netdev tap,id=net0,ifname=t0,script=no,downscript=no,vhost=on \
             -device e1000e,netdev=net0,mac=52:54:00:00:00:01,romfile= \
             -chardev socket,id=qmp0,path=/q,server=on,wait=off -mon chardev=qmp0,mode=control"
        );
        assert_eq!(line(&config.as_incoming()), format!("{source} -incoming defer -S"));
    }

    #[test]
    fn anonymous_memory_has_no_backend() {
        let mut config = Config::new("vm", 65_536, "/q");
        config.memory = MemoryBackend::Anonymous;
        config.machine = "pc-i440fx-7.2".into();
        assert!(line(&config).contains("-machine pc-i440fx-7.2 -m 65536K"));
        assert!(!line(&config).contains("-object"));
    }
}
