//! The guest as libvirt defines it.

use crate::world::EMULATOR;
use std::fmt::Write as _;

/// Returns the definition of a small Linux guest under TCG. It boots `/var/lib/libvirt/boot/vmlinuz` and `initrd` of
/// the host that it is on, writes its console to `/var/log/libvirt/qemu/NAME-serial.log`, and has a virtio-serial port
/// for each of `channels`: (port, unix socket of QEMU's end). `disk` is the file of its disk.
pub fn domain_xml(name: &str, memory_mib: u32, cmdline: &str, channels: &[(&str, &str)], disk: Option<&str>) -> String {
    let disk = disk.map_or_else(String::new, |path| {
        format!(
            "    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/>
      <source file='{path}'/>
      <target dev='vda' bus='virtio'/>
    </disk>
"
        )
    });
    let mut ports = String::new();
    for (port, socket) in channels {
        let _ = write!(
            ports,
            "    <channel type='unix'>
      <source mode='bind' path='{socket}'/>
      <target type='virtio' name='{port}'/>
    </channel>
"
        );
    }
    format!(
        "<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>{memory_mib}</memory>
  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/var/lib/libvirt/boot/vmlinuz</kernel>
    <initrd>/var/lib/libvirt/boot/initrd</initrd>
    <cmdline>{cmdline}</cmdline>
  </os>
  <features><acpi/><apic/></features>
  <cpu mode='custom' match='exact'><model fallback='allow'>qemu64</model></cpu>
  <clock offset='utc'/>
  <on_reboot>destroy</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>{EMULATOR}</emulator>
    <controller type='usb' model='none'/>
    <serial type='file'>
      <source path='/var/log/libvirt/qemu/{name}-serial.log' append='on'/>
      <target port='0'/>
    </serial>
{disk}{ports}    <memballoon model='none'/>
  </devices>
</domain>
"
    )
}
