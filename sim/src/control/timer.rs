//! A host's watchdog, and what its agent knows of the leader.

use skein_api::{ArmedWatchdog, HeardEcho, WatchdogState};
use skein_watchdog::{Feeder, Times};

/// One run of so many has watchdogs.
pub const RUNS: u64 = 4;
/// Shorter than real ones, so that more happens in a run.
pub const TIMES: Times = Times { acknowledged_ms: 8_000, asked_ms: 3_000, period_ms: 500 };
/// How long after the last feed a host is reset.
pub const TIMEOUT_MS: u64 = 4_000;

/// A host's watchdog, and what its agent knows of the leader.
#[derive(Debug)]
pub struct Watchdog {
    pub feeder: Feeder,
    /// Whether the host has a device.
    pub has_device: bool,
    /// In which boot it is armed, and when it was last fed.
    pub armed: Option<(u64, u64)>,
    /// Whether the agent has it open.
    pub is_open: bool,
    /// Whether the agent's thread that feeds is halted.
    pub is_halted: bool,
    /// The last acknowledgement.
    pub heard: Option<HeardEcho>,
    /// Whether the host is cut off from other hosts, too, when it is cut off from controllers.
    pub is_lonely: bool,
}

impl Watchdog {
    pub fn new(host: &str, now: u64) -> Watchdog {
        Watchdog {
            feeder: Feeder::new(host, TIMES, now),
            has_device: false,
            armed: None,
            is_open: false,
            is_halted: false,
            heard: None,
            is_lonely: false,
        }
    }

    /// Returns what the agent reports of it.
    pub fn state(&self, boot: u64) -> WatchdogState {
        let is_armed = self.is_open && self.armed.is_some_and(|(of, _)| of == boot);
        let armed = is_armed.then(|| ArmedWatchdog {
            identity: "a simulated watchdog".into(),
            acknowledged_ms: TIMES.acknowledged_ms,
            asked_ms: TIMES.asked_ms,
            period_ms: TIMES.period_ms,
            timeout_ms: TIMEOUT_MS,
        });
        WatchdogState { armed, why_not: String::new() }
    }
}
