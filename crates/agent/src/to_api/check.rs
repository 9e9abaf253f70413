//! Converts what a check finds.

use skein_api as api;
use skein_api::{Forecast, Problem};
use skein_forecast::ForecastConvergence;
use skein_inventory::check::{ProblemKind, Severity};

use super::{same_fields, same_variants};

same_variants!(Severity => api::Severity { Blocks, Warns });
same_variants!(ProblemKind => api::ProblemKind {
    SameHost, MigrationUnderWay, NotRunning, NoPath, NicsUnused, LargePacketsLost, Journal, Places, NameTaken,
    Leftover, QemuMissing, QemuTooOld, QemuOlder, MachineType, Accel, CpuVendor, CpuModel, CpuFlags, CpuDiffers,
    CpuUnknown, CpusFew, Blocker, PassedThrough, FileMissing, FileDiffers, DiskMissing, DiskDiffers, DiskLocal,
    DiskUnknown, DiskAccess, Bridge, Tap, Ram, RamShared, Hugepages, Tasks, SourceRam, RoomUnknown, DefinitionDiffers,
    Composition, DiskChanged, Tuning, TpmMissing, NotAllowed, Other,
});
same_fields!(skein_inventory::check::Problem => Problem { what, cure | kind, severity });
same_variants!(ForecastConvergence => api::ForecastConvergence { Yes, No, Unknown });
same_fields!(skein_forecast::Forecast => Forecast {
    seconds, downtime_ms_estimate, why | converges
});
