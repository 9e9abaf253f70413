//! The state that the threads share.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use crate::beat::Beat;
use crate::disk::Disk;
use crate::memory::Memory;
use crate::software::Software;

/// The state that the threads share.
pub struct Workload {
    pub beat: Beat,
    pub memory: Memory,
    pub disk: Option<Disk>,
    pub build: bool,
    /// The MiB to use and give back before.
    pub freed_mb: u32,
    /// The software, which is set once it is built.
    pub software: OnceLock<Software>,
    pub ready: AtomicBool,
}
