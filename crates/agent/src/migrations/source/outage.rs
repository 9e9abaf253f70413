//! Decides whether the network is out while a guest is throttled. Pure.
//!
//! QEMU would go on throttling the guest. From QEMU 9.2 on, the throttling waits in QEMU's main loop for the
//! migration's thread, which waits for the network: the guest stands still (the timer of migration/cpu-throttle.c).

use std::time::Duration;

use super::links::PathSample;

/// Bounds the time that a throttled guest waits for the network.
pub(super) const THROTTLED_OUTAGE_TIME: Duration = Duration::from_secs(3);

/// What is known of a copy at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutageSample<'a> {
    /// The bytes that the agent has read of the hypervisor's channels; `None`: the hypervisor has sent no page yet.
    pub(super) read_bytes: Option<u64>,
    /// The paths to the target.
    pub(super) paths: &'a [PathSample],
    /// Whether the guest is throttled, or its hypervisor may have it stand still because it could be.
    pub(super) may_freeze: bool,
    /// The guests that are copied to the target now, this guest included.
    pub(super) copies: u32,
}

/// Watches, from sample to sample, whether anything gets through.
#[derive(Debug)]
pub(super) struct OutageWatch {
    /// The bytes read of the hypervisor's channels when they last became more, and when that was.
    last_progress: (u64, Duration),
    /// The bytes received from the other agent when they last became more, and when that was.
    last_contact: (u64, Duration),
}

impl OutageWatch {
    pub(super) fn new(now: Duration) -> OutageWatch {
        OutageWatch { last_progress: (0, now), last_contact: (0, now) }
    }

    /// Returns whether the copy is to be called off, because nothing gets through and the guest must not wait for that.
    pub(super) fn is_out(&mut self, now: Duration, sample: &OutageSample<'_>) -> bool {
        if sample.read_bytes.is_none_or(|read| read != self.last_progress.0) {
            self.last_progress = (sample.read_bytes.unwrap_or(0), now);
        }
        let received = sample.paths.iter().map(|path| path.received_bytes).sum();
        if received != self.last_contact.0 {
            self.last_contact = (received, now);
        }
        let is_long = |since: Duration| now.saturating_sub(since) >= THROTTLED_OUTAGE_TIME;
        if !is_long(self.last_progress.1) || !sample.may_freeze {
            return false;
        }
        // If nothing is on the way, the hypervisor has nothing to send. What is on the way may be another migration's,
        // which goes on.
        let is_others = sample.copies > 1 && !is_long(self.last_contact.1);
        let is_under_way = sample.paths.iter().any(|path| path.inflight_bytes > 0);
        sample.paths.iter().all(|path| !path.is_usable) || is_under_way && !is_others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns when the network is found to be out, in tenths of a second. Nothing more is read of the hypervisor, and
    /// the path receives `receives` bytes each tenth.
    fn out_at(path: &PathSample, sample: OutageSample<'_>, receives: u64) -> Option<u64> {
        let mut watch = OutageWatch::new(Duration::ZERO);
        (0..100).find(|tenths| {
            let paths = [PathSample { received_bytes: tenths * receives, ..path.clone() }];
            watch.is_out(Duration::from_millis(tenths * 100), &OutageSample { paths: &paths, ..sample })
        })
    }

    #[test]
    fn a_throttled_guest_waits_three_seconds_for_the_network() {
        let stuck = PathSample { is_usable: true, inflight_bytes: 9, ..PathSample::default() };
        let sample = OutageSample { read_bytes: Some(1), paths: &[], may_freeze: true, copies: 1 };
        assert_eq!(out_at(&stuck, sample, 0), Some(30));
        assert_eq!(out_at(&stuck, OutageSample { may_freeze: false, ..sample }, 0), None, "it goes on running");
        assert_eq!(out_at(&stuck, OutageSample { read_bytes: None, ..sample }, 0), None, "nothing was sent yet");
        let idle = PathSample { inflight_bytes: 0, ..stuck.clone() };
        assert_eq!(out_at(&idle, sample, 0), None, "there is nothing to send");
        let down = PathSample { is_usable: false, ..idle };
        assert_eq!(out_at(&down, sample, 0), Some(30));
        let of_two = OutageSample { copies: 2, ..sample };
        assert_eq!(out_at(&stuck, of_two, 1), None, "what is on the way is another's, which goes on");
        assert_eq!(out_at(&stuck, of_two, 0), Some(30));
        assert_eq!(out_at(&stuck, sample, 1), Some(30), "what comes of it is no contact about this one");
    }

    #[test]
    fn what_is_read_is_progress() {
        let mut watch = OutageWatch::new(Duration::ZERO);
        let paths = [PathSample { is_usable: true, inflight_bytes: 9, ..PathSample::default() }];
        let mut look = |tenths: u64, read| {
            let sample = OutageSample { read_bytes: Some(read), paths: &paths, may_freeze: true, copies: 1 };
            watch.is_out(Duration::from_millis(tenths * 100), &sample)
        };
        assert!((0..29).all(|tenths| !look(tenths, 1)));
        assert!(!look(30, 2) && !look(59, 2) && look(60, 2));
    }
}
