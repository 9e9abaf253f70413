//! How fast a path is, and how much may be on the way on it.
//!
//! The rate is measured as BBR does (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14/5, and
//! draft-cheng-iccrg-delivery-rate-estimation): bytes acknowledged between sending a frame and its acknowledgement,
//! over the longer of the time it took to send and to acknowledge them. The bound on what is on the way follows from
//! the rate: enough to keep the path busy, little enough that neither a control message nor the guest's last pages wait
//! long. The link below does congestion control, if any is needed; this bound only keeps the link's buffers short.
//! Where acknowledgements come in bursts, the path would run dry between two of them: the bound grows with what a burst
//! acknowledges beyond the rate (as BBR's `extra_acked`: `net/ipv4/tcp_bbr.c`, "bbr_update_ack_aggregation").

use std::time::Duration;

use crate::limits::{
    ACK_DELAY, BURST_TIME_MAX, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, INFLIGHT_INITIAL, INFLIGHT_MAX, INFLIGHT_MIN,
    QUEUE_BYTES_MAX, QUEUE_TIME_MAX,
};

/// A rate is believed for one to two of these windows.
const RATE_WINDOW_HALF: Duration = Duration::from_millis(750);
/// A least round trip is believed for one to two of these windows.
const RTT_WINDOW_HALF: Duration = Duration::from_secs(5);
/// A burst of acknowledgements is believed for one to two of these windows.
const BURST_WINDOW_HALF: Duration = Duration::from_secs(1);
/// Shortest interval of a sample. A shorter sample says more about how threads were scheduled than about the path, so
/// it counts as this long.
const SAMPLE_MIN: Duration = Duration::from_millis(1);
/// How long a chunk should take on a path, in seconds.
const CHUNK_TIME: f64 = 0.002;

/// The best sample of the last one to two windows, without keeping the samples.
#[derive(Clone, Debug)]
struct WindowedBest<T> {
    half: Duration,
    since: Duration,
    current: Option<T>,
    before: Option<T>,
    better: fn(&T, &T) -> bool,
}

impl<T: Copy> WindowedBest<T> {
    fn new(half: Duration, better: fn(&T, &T) -> bool) -> Self {
        WindowedBest { half, since: Duration::ZERO, current: None, before: None, better }
    }

    fn age(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.since);
        if elapsed >= self.half {
            self.before = if elapsed < self.half * 2 { self.current } else { None };
            self.current = None;
            self.since = now;
        }
    }

    fn add(&mut self, now: Duration, sample: T) {
        self.age(now);
        match &self.current {
            Some(current) if !(self.better)(&sample, current) => {}
            _ => self.current = Some(sample),
        }
    }

    fn get(&self) -> Option<T> {
        match (self.current, self.before) {
            (Some(a), Some(b)) => Some(if (self.better)(&a, &b) { a } else { b }),
            (a, b) => a.or(b),
        }
    }
}

/// The state when a frame was sent, from which the rate is measured when the frame is acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct SendStamp {
    sent_at: Duration,
    delivered: u64,
    delivered_at: Duration,
    first_sent_at: Duration,
    app_limited: bool,
}

/// What was acknowledged beyond what the rate accounts for.
#[derive(Clone, Debug)]
struct Bursts {
    /// Since when `bytes` were acknowledged. Acknowledgements before are not more than the rate accounts for.
    since: Duration,
    bytes: u64,
    largest: WindowedBest<f64>,
}

impl Bursts {
    fn new(now: Duration) -> Bursts {
        Bursts { since: now, bytes: 0, largest: WindowedBest::new(BURST_WINDOW_HALF, |a, b| a > b) }
    }

    fn acknowledged(&mut self, now: Duration, bytes: u64, rate: f64) {
        let accounted = |since: Duration| rate * now.saturating_sub(since).as_secs_f64();
        if self.bytes as f64 <= accounted(self.since) {
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes += bytes;
        self.largest.add(now, self.bytes as f64 - accounted(self.since));
    }

    fn largest(&self) -> f64 {
        self.largest.get().unwrap_or_default()
    }
}

/// Estimates of one path, fed by what was sent on it and acknowledged.
#[derive(Clone, Debug)]
pub struct PathEstimate {
    inflight: u64,
    delivered: u64,
    delivered_at: Duration,
    first_sent_at: Duration,
    /// While less than this many bytes are delivered, measurements are limited by the sender's lack of data.
    app_limited_until: Option<u64>,
    /// Whether the bytes acknowledged last had queued on their way.
    queues: bool,
    rate: WindowedBest<f64>,
    rtt: WindowedBest<Duration>,
    bursts: Bursts,
}

impl PathEstimate {
    /// Returns the estimate of a path about which nothing is known.
    pub fn new(now: Duration) -> PathEstimate {
        PathEstimate {
            inflight: 0,
            delivered: 0,
            delivered_at: now,
            first_sent_at: now,
            app_limited_until: None,
            queues: false,
            rate: WindowedBest::new(RATE_WINDOW_HALF, |a, b| a > b),
            rtt: WindowedBest::new(RTT_WINDOW_HALF, |a, b| a < b),
            bursts: Bursts::new(now),
        }
    }

    /// Returns how many bytes were sent and are not yet acknowledged.
    pub fn inflight(&self) -> u64 {
        self.inflight
    }

    /// Returns the measured bytes per second. `None`: there was too little to measure lately.
    pub fn rate(&self) -> Option<f64> {
        self.rate.get()
    }

    /// Returns whether bytes queue on the path. Only then is the rate all that the path has.
    pub fn queues(&self) -> bool {
        self.queues
    }

    /// Returns the least round trip lately. `None`: there was none.
    pub fn rtt(&self) -> Option<Duration> {
        self.rtt.get()
    }

    /// Returns how many bytes may be on the way: what the path holds over two round trips and [`QUEUE_TIME_MAX`], with
    /// at most [`QUEUE_BYTES_MAX`] for the queueing; more where acknowledgements come in bursts, by at most
    /// [`BURST_TIME_MAX`].
    pub fn inflight_limit(&self) -> u64 {
        let Some(rate) = self.rate() else {
            return INFLIGHT_INITIAL;
        };
        let travelling = rate * 2.0 * self.rtt().unwrap_or_default().as_secs_f64();
        let queued = (rate * QUEUE_TIME_MAX.as_secs_f64()).min(QUEUE_BYTES_MAX as f64);
        let burst = self.bursts.largest() + rate * ACK_DELAY.as_secs_f64();
        let burst = burst.min(rate * BURST_TIME_MAX.as_secs_f64()).min(QUEUE_BYTES_MAX as f64);
        ((travelling + queued.max(burst)) as u64).clamp(INFLIGHT_MIN, INFLIGHT_MAX)
    }

    /// Returns the size of chunk that suits the path: small on slow paths, so that no stream waits long for a chunk.
    pub fn chunk_bytes(&self) -> usize {
        let rate = self.rate().unwrap_or(0.0);
        ((rate * CHUNK_TIME) as usize).next_multiple_of(CHUNK_BYTES_MIN).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
    }

    /// Notes that bytes are sent. Returns the stamp to keep until they are acknowledged.
    pub fn sent(&mut self, now: Duration, bytes: u64) -> SendStamp {
        if self.inflight == 0 {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        self.inflight += bytes;
        SendStamp {
            sent_at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            app_limited: self.app_limited_until.is_some(),
        }
    }

    /// Notes that there was nothing more to send: what is on the way now says little about the path.
    pub fn ran_dry(&mut self) {
        self.app_limited_until = Some(self.delivered + self.inflight);
    }

    /// Notes that bytes were acknowledged. `stamp` is that of the last frame among them.
    pub fn acknowledged(&mut self, now: Duration, bytes: u64, stamp: &SendStamp) {
        self.inflight = self.inflight.saturating_sub(bytes);
        self.delivered += bytes;
        self.delivered_at = now;
        self.first_sent_at = stamp.sent_at;
        self.app_limited_until = self.app_limited_until.filter(|until| self.delivered <= *until);
        let alone = self.rtt().map(|rtt| rtt + ACK_DELAY + QUEUE_TIME_MAX / 2);
        self.queues = alone.is_some_and(|alone| now.saturating_sub(stamp.sent_at) > alone);
        let to_send = stamp.sent_at.saturating_sub(stamp.first_sent_at);
        let to_acknowledge = now.saturating_sub(stamp.delivered_at);
        let interval = to_send.max(to_acknowledge).max(SAMPLE_MIN);
        let rate = (self.delivered - stamp.delivered) as f64 / interval.as_secs_f64();
        // While there is too little to send to learn more, the known rate stays.
        if !stamp.app_limited || self.rate().is_none_or(|known| rate > known) {
            self.rate.add(now, rate);
        }
        self.bursts.acknowledged(now, bytes, self.rate().unwrap_or(rate));
    }

    /// Notes that bytes will never be acknowledged on this path, because their connection is gone.
    pub fn lost(&mut self, bytes: u64) {
        self.inflight = self.inflight.saturating_sub(bytes);
    }

    /// Notes a ping's round trip.
    pub fn round_trip(&mut self, now: Duration, rtt: Duration) {
        self.rtt.add(now, rtt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a path of `rate` bytes/s and `rtt` for `time`, with data all the time, and returns its estimate.
    fn run(rate: f64, rtt: Duration, time: Duration) -> PathEstimate {
        run_in_bursts(rate, rtt, time, Duration::ZERO).0
    }

    /// As [`run`], with acknowledgements that come only every so often. Returns the share of the rate that was used,
    /// too.
    fn run_in_bursts(rate: f64, rtt: Duration, time: Duration, period: Duration) -> (PathEstimate, f64) {
        let mut path = PathEstimate::new(Duration::ZERO);
        path.round_trip(Duration::ZERO, rtt);
        let mut now = Duration::ZERO;
        let mut wire_free = Duration::ZERO;
        let mut queue = std::collections::VecDeque::new();
        let gathering = ACK_DELAY.min(Duration::from_secs_f64(crate::limits::ACK_BYTES as f64 / rate));
        while now < time {
            while path.inflight() < path.inflight_limit() {
                let bytes = path.chunk_bytes() as u64;
                let stamp = path.sent(now, bytes);
                wire_free = wire_free.max(now) + Duration::from_secs_f64(bytes as f64 / rate);
                queue.push_back((wire_free + rtt + gathering, bytes, stamp));
            }
            let (at, bytes, stamp) = queue.pop_front().unwrap();
            let burst = at.as_nanos().checked_rem(period.as_nanos()).map_or(0, |since| period.as_nanos() - since);
            now = now.max(at + Duration::from_nanos(burst as u64));
            path.acknowledged(now, bytes, &stamp);
        }
        let used = path.delivered as f64 / (rate * time.as_secs_f64());
        (path, used)
    }

    #[test]
    fn a_path_is_kept_busy_between_bursts_of_acknowledgements() {
        for (rate, period_ms) in [(25e6, 12), (25e6, 20), (60e6, 24)] {
            let (rtt, period) = (Duration::from_micros(300), Duration::from_millis(period_ms));
            let (path, used) = run_in_bursts(rate, rtt, Duration::from_secs(3), period);
            assert!(used > 0.9, "{used} of {rate} with bursts every {period_ms} ms");
            let queued = path.inflight_limit() as f64 / rate;
            assert!(queued <= 0.032 * 1.1, "{queued} s on the way");
        }
    }

    #[test]
    fn queues_are_short_again_after_bursts() {
        let (mut path, _) = run_in_bursts(25e6, Duration::ZERO, Duration::from_secs(1), Duration::from_millis(20));
        let bursts = path.inflight_limit();
        let mut now = Duration::from_secs(1);
        while now < Duration::from_secs(4) {
            let stamp = path.sent(now, 25_000);
            now += Duration::from_millis(1);
            path.acknowledged(now, 25_000, &stamp);
        }
        assert!(path.inflight_limit() < bursts / 2, "{} after {bursts}", path.inflight_limit());
    }

    #[test]
    fn finds_the_rate_of_slow_and_fast_paths() {
        for (rate, rtt_us) in [(1.25e6, 200), (125e6, 100), (125e6, 20_000), (2e9, 50)] {
            let path = run(rate, Duration::from_micros(rtt_us), Duration::from_secs(2));
            let measured = path.rate().unwrap();
            assert!((measured / rate - 1.0).abs() < 0.15, "{rate} measured as {measured}");
        }
    }

    #[test]
    fn queues_stay_short() {
        let path = run(125e6, Duration::from_micros(100), Duration::from_secs(2));
        let queued = path.inflight_limit() as f64 / 125e6;
        assert!(queued < 0.012, "{queued} s on the way");
    }

    #[test]
    fn a_path_without_data_is_not_taken_for_slow() {
        let mut path = run(125e6, Duration::from_micros(100), Duration::from_secs(2));
        let now = Duration::from_millis(2100);
        path.ran_dry();
        let stamp = path.sent(now, 100);
        path.acknowledged(now + Duration::from_millis(5), 100, &stamp);
        assert!(path.rate().unwrap() > 100e6);
    }
}
