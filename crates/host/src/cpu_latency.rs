//! Keeps CPUs from sleeping so deeply that they take long to wake.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// The kernel's device for this (`Documentation/power/pm_qos_interface.rst`).
const DEVICE: &str = "/dev/cpu_dma_latency";
/// How long a CPU may take to wake, in microseconds: what tuned's profile `latency-performance` asks for, which allows
/// the first sleep state and none below.
const WAKE_US: i32 = 3;

/// A request to the kernel that all CPUs wake within 3 µs. The request ends when this is dropped, and with the process,
/// however the process ends.
#[derive(Debug)]
pub struct CpuLatency {
    /// The request stands while this is open.
    _held: File,
}

impl CpuLatency {
    /// Makes the request.
    ///
    /// # Errors
    ///
    /// The kernel has no such device, or the process may not write to it.
    pub fn hold() -> io::Result<CpuLatency> {
        CpuLatency::hold_at(Path::new(DEVICE))
    }

    fn hold_at(device: &Path) -> io::Result<CpuLatency> {
        let mut file = OpenOptions::new().write(true).open(device)?;
        file.write_all(&WAKE_US.to_ne_bytes())?;
        Ok(CpuLatency { _held: file })
    }
}

/// Returns within how many microseconds CPUs have to wake by all that asks for that; `None`: the kernel does not say.
/// The kernel's own default is 2,000 seconds.
pub fn cpu_latency_us() -> Option<u32> {
    let bytes: [u8; 4] = std::fs::read(DEVICE).ok()?.get(..4)?.try_into().ok()?;
    u32::try_from(i32::from_ne_bytes(bytes)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_told_a_number_of_four_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("device");
        assert!(CpuLatency::hold_at(&device).is_err(), "there is none, and none is made");
        std::fs::write(&device, "").unwrap();
        let _held = CpuLatency::hold_at(&device).unwrap();
        assert_eq!(std::fs::read(&device).unwrap(), 3i32.to_ne_bytes());
    }
}
