//! Limits: how many migrations at once, and how long each wait is.

use std::time::Duration;

use crate::words::Wait;

/// How many migrations run at once, and how long they wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationLimits {
    /// Most migrations away from this host at once.
    pub outgoing: usize,
    /// Most migrations to this host at once.
    pub incoming: usize,
    /// How long each wait is.
    pub waits: WaitTimes,
}

impl Default for MigrationLimits {
    fn default() -> MigrationLimits {
        MigrationLimits { outgoing: 4, incoming: 4, waits: WaitTimes::default() }
    }
}

/// How long each [`Wait`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // they are those of `Wait`
pub struct WaitTimes {
    pub prepare: Duration,
    pub precopy: Duration,
    pub hold: Duration,
    pub switchover: Duration,
    pub abort: Duration,
    pub doubt: Duration,
    pub abandoned: Duration,
}

impl Default for WaitTimes {
    fn default() -> WaitTimes {
        WaitTimes {
            // Preallocating a terabyte of huge pages takes a minute.
            prepare: Duration::from_secs(120),
            precopy: Duration::from_secs(12 * 3600),
            hold: Duration::from_secs(24 * 3600),
            // The guest is stopped meanwhile: it is better that the guest goes on here.
            switchover: Duration::from_secs(20),
            abort: Duration::from_secs(1),
            doubt: Duration::from_secs(1),
            abandoned: Duration::from_secs(60),
        }
    }
}

impl WaitTimes {
    /// Returns how long a wait is.
    pub(super) fn of(&self, wait: Wait) -> Duration {
        match wait {
            Wait::Prepare => self.prepare,
            Wait::Precopy => self.precopy,
            Wait::Hold => self.hold,
            Wait::Switchover => self.switchover,
            Wait::Abort => self.abort,
            Wait::Doubt => self.doubt,
            Wait::Abandoned => self.abandoned,
        }
    }
}
