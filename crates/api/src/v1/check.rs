//! Holds what a check of a migration finds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CheckResult {
    /// The VM.
    pub vm: String,
    /// The target host.
    pub to: String,
    /// All problems at once. If none blocks, the VM can go.
    pub problems: Vec<Problem>,
    /// The forecast of the migration's time; `None` if the time cannot be told.
    pub forecast: Option<Forecast>,
}

impl CheckResult {
    /// Returns whether a problem blocks the migration.
    pub fn blocks(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Blocks)
    }
}

/// Whether a migration can be begun in spite of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The migration cannot be begun.
    Blocks,
    /// The migration can be begun; a person should know the problem before.
    Warns,
}

/// The kind of a problem. Its code, in kebab case, stays: scripts may depend on it.
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
    Cluster,
    /// A kind of a newer version of Skein.
    #[serde(other)]
    Other,
}

/// One thing that stands against a migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Problem {
    /// The kind of the problem.
    pub kind: ProblemKind,
    /// Whether the problem blocks the migration.
    pub severity: Severity,
    /// What is the matter.
    pub what: String,
    /// What to do about the problem.
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

/// Whether the rounds of the copy get shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ForecastConvergence {
    /// The rounds get shorter.
    Yes,
    /// The rounds do not get shorter, so the guest would never be switched over.
    No,
    /// Whether the rounds get shorter is not known: the guest's dirty rate is unknown, or faster than the memory is
    /// sure to move.
    Unknown,
}

/// The forecast of how long a migration takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Forecast {
    /// The seconds from the command to the guest running at the target, at most: see the module. If convergence is
    /// unknown, the seconds are what sending each page once takes, without further rounds. `None`: the migration never
    /// ends, or may not.
    pub seconds: Option<f64>,
    /// How long the guest stands still; `None` if that is not known.
    pub downtime_ms_estimate: Option<f64>,
    /// Whether the copy converges.
    pub converges: ForecastConvergence,
    /// The reason, in words: `at most about 12 s at 1.9 Gb/s on the wire over 2 paths (transport multichannel); less
    /// where its memory is zeros`.
    pub why: String,
}
