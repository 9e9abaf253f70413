//! What is needed to boot guests, and how long that may take.

use std::{path::PathBuf, sync::atomic::AtomicBool, time::Duration};

use skein_hypervisor::MemoryBackend;
use skein_lab_guest::Spec;

use crate::{busy::Busy, carry::Kit, case::Scene, mover::Mover, site::Site};

/// The time for a guest to boot, before it fills its memory.
pub(crate) const BOOT_DEADLINE: Duration = Duration::from_secs(90);

/// The time for a guest to unpack and build its software.
const BUILD_DEADLINE: Duration = Duration::from_secs(900);

/// The time for a guest to answer, besides the time that its work takes.
pub(crate) const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// What may differ from the definition of a case.
#[derive(Clone, Debug, Default)]
pub struct Adjust {
    /// The QEMU program. `None`: `$SKEIN_QEMU`, or `qemu-system-x86_64`.
    pub qemu: Option<PathBuf>,
    /// The firmware directory of that QEMU.
    pub firmware: Option<PathBuf>,
    /// The machine type. `None`: `q35`.
    pub machine: Option<String>,
    /// The MTU of all links.
    pub mtu: Option<u32>,
    /// The RAM of guests, in MiB. What they fill is changed in proportion.
    pub memory_mb: Option<u32>,
    /// The number of virtual CPUs.
    pub vcpus: Option<u32>,
    /// Where guests' RAM lies, which is the same for all movers.
    pub memory: MemoryBackend,
    /// The `downtime-limit` of all movers. `None`: that of the stage.
    pub downtime_limit_ms: Option<u64>,
}

/// What is needed to boot guests.
#[derive(Clone, Copy)]
pub struct Boot<'a> {
    /// The stage.
    pub stage: &'a Scene,
    /// The hosts of the stage.
    pub site: &'a Site,
    /// The bench's keys and programs.
    pub kit: &'a Kit,
    /// Changes to the stage.
    pub adjust: &'a Adjust,
    /// The movers that the guests are for.
    pub movers: &'a [Mover],
    /// The groups of a stage with guests at work.
    pub busy: Option<&'a Busy>,
    /// A flag that ends the boot early when it is set.
    pub interrupt: &'a AtomicBool,
}

/// Returns the time for a guest to boot and do what it does before it is ready.
pub(crate) fn boot_deadline(spec: &Spec) -> Duration {
    let building = if spec.params.build { BUILD_DEADLINE } else { Duration::ZERO };
    BOOT_DEADLINE + slowly(spec.params.fill_mb + spec.params.freed_mb) + building
}

/// Returns the time for an emulated guest to write or check this much.
pub(crate) fn slowly(mb: u32) -> Duration {
    Duration::from_secs(u64::from(mb) / 20)
}
