//! The heartbeat.
//!
//! The guest's own clock may stand still while the guest is stopped (it does under TCG, and with kvm-clock), so the
//! guest can see only a part of a downtime. Every beat therefore leaves at once on a port, with its number and the
//! guest's time, for an observer with a clock of its own.

use std::io::Write;
use std::sync::Mutex;

use skein_workload::{BEAT_PORT, Gaps};

use crate::sys;

/// Beats and remembers the longest gaps between beats.
#[derive(Default)]
pub struct Beat {
    /// The gaps between beats, by this guest's clock.
    pub gaps: Mutex<Gaps>,
}

impl Beat {
    /// Beats every `period_ms`, for ever.
    pub fn run(&self, period_ms: u32) {
        // The thread has priority over all writers, so that the load inside the guest does not look like a pause.
        sys::realtime_priority();
        let mut port = sys::open_port(BEAT_PORT);
        let mut last = sys::now_ns();
        for number in 0u64.. {
            sys::sleep_ns(u64::from(period_ms) * 1_000_000);
            let now = sys::now_ns();
            self.gaps.lock().unwrap().add(now - last);
            last = now;
            match &mut port {
                // If no host listens, or not fast enough, this beat is lost, which the next number shows.
                Some(port) => drop(port.write(format!("{number} {now}\n").as_bytes())),
                None => port = sys::open_port(BEAT_PORT),
            }
        }
    }
}
