//! The heartbeat.
//!
//! The guest's own clock may stand still while the guest is stopped (it does under TCG, and with
//! kvm-clock), so what the guest can see of a downtime is only part of it. Every beat therefore leaves at
//! once on a port, with its number and the guest's time, for an observer with a clock of his own.

use std::io::Write;
use std::sync::Mutex;

use skein_workload::{BEAT_PORT, Gaps};

use crate::sys;

/// Beats and remembers the longest gaps between beats.
#[derive(Default)]
pub struct Beat {
    /// By this guest's clock.
    pub gaps: Mutex<Gaps>,
}

impl Beat {
    /// Beats each `period_ms`, for ever.
    pub fn run(&self, period_ms: u32) {
        // Before all writers, so that the load inside the guest does not look like a pause.
        sys::realtime_priority();
        let mut port = sys::open_port(BEAT_PORT);
        let mut last = sys::now_ns();
        for number in 0u64.. {
            sys::sleep_ns(u64::from(period_ms) * 1_000_000);
            let now = sys::now_ns();
            self.gaps.lock().unwrap().add(now - last);
            last = now;
            match &mut port {
                // Nobody listening, or not fast enough: this beat is lost, which its number shows.
                Some(port) => drop(port.write(format!("{number} {now}\n").as_bytes())),
                None => port = sys::open_port(BEAT_PORT),
            }
        }
    }
}
