//! A problem that stands against a migration, with its cure.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::claim::{claim, printable};

/// The longest sentence of a problem.
pub(crate) const SENTENCE_BYTES_MAX: usize = 2048;

/// Whether a migration can be begun all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The migration cannot be begun.
    Blocks,
    /// The migration can be begun; the person who begins it should know.
    Warns,
}

/// The kind of a problem. Its code, in kebab case, stays: scripts may depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum ProblemKind {
    SameHost,
    MigrationUnderWay,
    NotRunning,
    NoPath,
    NicsUnused,
    LargePacketsLost,
    Journal,
    Places,
    NameTaken,
    Leftover,
    QemuMissing,
    QemuTooOld,
    QemuOlder,
    MachineType,
    Accel,
    CpuVendor,
    CpuModel,
    CpuFlags,
    CpuDiffers,
    CpuUnknown,
    CpusFew,
    Blocker,
    PassedThrough,
    FileMissing,
    FileDiffers,
    DiskMissing,
    DiskDiffers,
    DiskLocal,
    DiskUnknown,
    DiskAccess,
    Bridge,
    Tap,
    Ram,
    RamShared,
    Hugepages,
    Tasks,
    SourceRam,
    RoomUnknown,
    DefinitionDiffers,
    Composition,
    DiskChanged,
    Tuning,
    TpmMissing,
    NotAllowed,
    /// A kind of a newer version of Skein.
    #[serde(other)]
    Other,
}

/// A problem that stands against a migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The kind.
    pub kind: ProblemKind,
    /// Whether the problem forbids the migration.
    pub severity: Severity,
    /// What is the matter.
    #[serde(deserialize_with = "claim")]
    pub what: String,
    /// What to do.
    #[serde(deserialize_with = "claim")]
    pub cure: String,
}

impl Problem {
    /// Makes a problem whose words are short and printable, wherever they came from.
    pub(crate) fn new(kind: ProblemKind, severity: Severity, what: String, cure: impl Into<String>) -> Problem {
        let (what, cure) = (printable(what, SENTENCE_BYTES_MAX), printable(cure.into(), SENTENCE_BYTES_MAX));
        Problem { kind, severity, what, cure }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Blocks => "error",
            Severity::Warns => "warning",
        };
        write!(f, "{severity}: {}\n  help: {}", self.what, self.cure)
    }
}
