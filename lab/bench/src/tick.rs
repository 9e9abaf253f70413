//! A moment of a migration, for whoever watches a bench.

use std::time::Duration;

/// A moment of a migration.
#[derive(Clone, Debug)]
pub struct Tick<'a> {
    /// The time since `migrate`.
    pub elapsed: Duration,
    /// The bytes that QEMU has sent, of all guests.
    pub sent_bytes: u64,
    /// The bytes that QEMU believes are left.
    pub left_bytes: u64,
    /// What the source's NICs send, in bits a second, over the last half second.
    pub nic_bps: &'a [f64],
}
