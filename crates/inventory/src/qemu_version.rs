//! QEMU's versions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// QEMU's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QemuVersion {
    /// 10 of 10.0.2.
    pub major: u32,
    /// 0 of 10.0.2.
    pub minor: u32,
    /// 2 of 10.0.2.
    pub micro: u32,
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}
