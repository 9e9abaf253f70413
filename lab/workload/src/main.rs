//! The guest workload: pid 1 of the lab's initramfs.
fn main() {}
