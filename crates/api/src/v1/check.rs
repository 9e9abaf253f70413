//! What a check of a migration finds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a check found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CheckResult {
    /// The VM.
    pub vm: String,
    /// The target host.
    pub to: String,
    /// All at once; none that blocks: it can go.
    pub problems: Vec<Problem>,
    /// How long it would take, in words; none if that cannot be said.
    pub forecast: Option<Forecast>,
}

impl CheckResult {
    /// Whether something speaks against it for good.
    pub fn blocks(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Blocks)
    }
}

/// Whether a migration can be begun all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// No.
    Blocks,
    /// Yes; whoever begins it should know.
    Warns,
}

/// What kind of problem. Its code, in kebab case, stays: scripts may depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Of a newer version of Skein.
    #[serde(other)]
    Other,
}

/// One thing that stands against a migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Problem {
    /// What kind.
    pub kind: ProblemKind,
    /// Whether it forbids.
    pub severity: Severity,
    /// What is the matter.
    pub what: String,
    /// What to do.
    pub cure: String,
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

/// Whether rounds get shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ForecastConvergence {
    /// They do.
    Yes,
    /// They do not, and the guest would never be switched over.
    No,
    /// How fast the guest dirties its memory is not known, or it is faster than this can be sure to move it.
    Unknown,
}

/// How long a migration takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Forecast {
    /// From the command to the guest running at the target, at most: see the module. If convergence is unknown, what
    /// each page takes once, and rounds to come are not in it. None if it never ends, or may not.
    pub seconds: Option<f64>,
    /// How long the guest stands still; none if that is not known.
    pub downtime_ms_estimate: Option<f64>,
    /// Whether it ends.
    pub converges: ForecastConvergence,
    /// In words: `at most about 12 s at 1.9 Gb/s over 2 paths (transport multichannel); less where its memory is
    /// zeros`.
    pub why: String,
}
