//! Numbers of what a cluster has, and the names made of them.

/// The number of a host, and of its agent.
pub type HostIx = usize;
/// The number of a QEMU. Numbers are not used again.
pub type QemuIx = usize;
/// The number of a VM.
pub type VmIx = usize;
/// The number of a session. Numbers are not used again.
pub type LinkIx = usize;

/// Returns the name by which managers know a host.
pub fn host_name(host: HostIx) -> String {
    format!("h{host}")
}

/// Returns the name by which managers know a VM.
pub fn vm_name(vm: VmIx) -> String {
    format!("v{vm}")
}

/// Returns the number in a name of [`host_name`] or [`vm_name`].
pub fn number(name: &str) -> usize {
    name[1..].parse().expect("a letter and a number")
}

/// Returns the name of a QEMU in traces and failures.
pub fn qemu_name(qemu: QemuIx) -> String {
    format!("qemu{qemu}")
}
