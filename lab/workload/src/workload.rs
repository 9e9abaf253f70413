//! What the threads share.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use crate::beat::Beat;
use crate::disk::Disk;
use crate::memory::Memory;
use crate::software::Software;

/// What the threads share.
pub struct Workload {
    pub beat: Beat,
    pub memory: Memory,
    pub disk: Option<Disk>,
    pub build: bool,
    /// Set once it is built.
    pub software: OnceLock<Software>,
    pub ready: AtomicBool,
}
