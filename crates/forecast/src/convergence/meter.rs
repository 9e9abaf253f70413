//! What samples of a copy tell: how fast the guest is moved, how it writes, and since when no progress is made.

use std::collections::VecDeque;
use std::time::Duration;

use super::sample::CopySample;
use super::throttling::running_share;
use super::write_model::{Round, WriteModel};

/// A sample that comes so late was kept waiting: by QEMU, which answers nobody while it gathers what the guest has
/// written, or for CPU.
const LATE_SAMPLE_TIME: Duration = Duration::from_secs(1);
/// Less than this part of the least so far is less.
const PROGRESS_SHARE: f64 = 0.95;
/// Nothing moves where less moves than this part of what was moved of late.
const STALLED_RATE_SHARE: f64 = 0.1;
/// The time over which it is measured how fast the guest is moved …
pub(super) const MOVE_RATE_WINDOW: Duration = Duration::from_secs(2);
/// … and the least such time, at first.
const MOVE_RATE_WINDOW_MIN: Duration = Duration::from_millis(500);
/// A hypervisor hands pages over in bursts of so many bytes, at low rates seconds apart. The time over which it is
/// measured how fast the guest is moved covers a few of them …
const BURST_BYTES: u64 = 4 << 20;
const BURSTS_MEASURED: u64 = 4;
/// … and takes no longer than this.
const MOVE_RATE_WINDOW_MAX: Duration = Duration::from_secs(15);
/// The share of a limit that the guest is moved by at least, where the limit alone holds the copy up. The rest is what
/// the wire needs.
const LIMIT_MOVED_SHARE: f64 = 0.8;
/// What is dirtied is measured over rounds that take so long together, since the end of a round is seen up to a sample
/// later.
const DIRTY_RATE_WINDOW: Duration = Duration::from_secs(1);

/// Where rounds begin that are measured together.
#[derive(Clone, Copy, Debug)]
struct Begin {
    at: Duration,
    lived: f64,
    round: u64,
    total: u64,
}

/// A moment of a copy: how long something had moved by then, and which round it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    at: Duration,
    round: u64,
}

impl Moment {
    /// Returns whether both so much time and so many rounds have passed since then.
    pub(super) fn lasts(&self, now: Moment, time: Duration, rounds: u64) -> bool {
        now.at.saturating_sub(self.at) >= time && now.round.saturating_sub(self.round) >= rounds
    }
}

/// Measures a copy from sample to sample.
#[derive(Debug, Default)]
pub(super) struct CopyMeter {
    /// What had been sent by each of the latest samples, and when, without the time in which nobody could look.
    sent: VecDeque<(Duration, u64)>,
    /// When the last sample was.
    sampled_at: Option<Duration>,
    /// How long nobody could look.
    unseen: Duration,
    /// How long nothing has moved, though it was looked at.
    stalled: Duration,
    /// How long something has moved, or would have moved but for the throttle.
    moving: Duration,
    /// Seconds that the guest lived, without the time in which it was throttled.
    lived: f64,
    /// The last sample's round.
    round: u64,
    /// When that round began.
    round_at: Duration,
    begin: Option<Begin>,
    first: Option<Round>,
    /// When the first round was over.
    first_over: Option<Duration>,
    last: Option<Round>,
    /// The last sample of what the guest writes that was taken while it was not throttled.
    unthrottled_sample: Option<u64>,
    /// The least that was left when a late round began.
    least: Option<(f64, Moment)>,
    /// The limit of the last sample.
    limit: Option<u64>,
}

impl CopyMeter {
    /// Takes a sample.
    pub(super) fn add(&mut self, sample: &CopySample) {
        let since = self.sampled_at.replace(sample.at).map_or(Duration::ZERO, |at| sample.at.saturating_sub(at));
        self.lived += since.as_secs_f64() * running_share(sample.throttle);
        self.limit = sample.limit;
        self.take_time(sample, since);
        let at = sample.at.saturating_sub(self.unseen);
        self.sent.push_back((at, sample.sent));
        let is_enough = |(before, sent): &(Duration, u64)| {
            let (time, bytes) = (at.saturating_sub(*before), sample.sent.saturating_sub(*sent));
            time >= MOVE_RATE_WINDOW_MAX || (time >= MOVE_RATE_WINDOW && bytes >= BURSTS_MEASURED * BURST_BYTES)
        };
        while self.sent.get(1).is_some_and(is_enough) {
            self.sent.pop_front();
        }
        if sample.round > self.round {
            self.begin_round(sample);
        }
        if sample.throttle == 0 {
            self.unthrottled_sample = sample.sampled.or(self.unthrottled_sample);
        }
    }

    /// Counts the time since the last sample as one in which the guest moved, nothing moved, or nobody could look.
    fn take_time(&mut self, sample: &CopySample, since: Duration) {
        // A link that is lost for a while says nothing of the guest.
        let sent = self.sent.back().map_or(0, |(_, sent)| sample.sent.saturating_sub(*sent)) as f64;
        let is_moving = match self.moves() {
            Some(moves) => sent > moves * STALLED_RATE_SHARE * since.as_secs_f64(),
            None => sent > 0.0 && since <= LATE_SAMPLE_TIME,
        };
        if is_moving {
            self.moving += since;
            // What was seen before, and what was written meanwhile, says nothing of the copy now.
            if self.stalled > self.pause_max() {
                (self.begin, self.least) = (None, None);
                self.sent.clear();
            }
            self.stalled = Duration::ZERO;
        } else if since > LATE_SAMPLE_TIME {
            // More NICs would not make that shorter.
            self.unseen += since;
        } else {
            self.stalled += since;
            // Between rounds QEMU waits for every virtual CPU. A virtual CPU that is throttled may sleep for up to a
            // second then.
            if sample.throttle > 0 && self.stalled <= LATE_SAMPLE_TIME {
                self.unseen += since;
                self.moving += since;
            }
        }
    }

    /// Returns how long nothing may move between two bursts.
    fn pause_max(&self) -> Duration {
        let between = self.moves().map_or(0.0, |moves| BURST_BYTES as f64 / moves);
        LATE_SAMPLE_TIME.max(Duration::from_secs_f64(between.min(MOVE_RATE_WINDOW_MAX.as_secs_f64())))
    }

    fn begin_round(&mut self, sample: &CopySample) {
        (self.round, self.round_at) = (sample.round, sample.at);
        let now = Begin { at: sample.at, lived: self.lived, round: sample.round, total: sample.total() };
        let Some(begin) = self.begin else { return self.begin = Some(now) };
        let (lived, rounds) = (now.lived - begin.lived, (now.round - begin.round) as f64);
        if self.first.is_some() && sample.at.saturating_sub(begin.at) < DIRTY_RATE_WINDOW || lived <= 0.0 {
            return;
        }
        let dirtied = now.total.saturating_sub(begin.total) as f64 / rounds;
        let round = Round { seconds: lived / rounds, dirtied };
        self.first.get_or_insert(round);
        self.first_over.get_or_insert(sample.at);
        (self.last, self.begin) = (Some(round), Some(now));
        // What was dirtied is not taken for this: while it may throttle, QEMU from 9.2 on looks for that in the middle
        // of a round, too.
        let left = sample.remaining as f64;
        if self.least.is_none_or(|(least, _)| left < least * PROGRESS_SHARE) {
            self.least = Some((left, self.moment(sample)));
        }
    }

    /// Returns the moment of a sample.
    pub(super) fn moment(&self, sample: &CopySample) -> Moment {
        Moment { at: self.moving, round: sample.round }
    }

    /// Returns the bytes of the guest that were moved a second of late. `None`: not known.
    pub(super) fn moves(&self) -> Option<f64> {
        let ((begin, before), (end, after)) = (self.sent.front()?, self.sent.back()?);
        let time = end.saturating_sub(*begin);
        let least = self.limit.map_or(0.0, |limit| limit as f64 * LIMIT_MOVED_SHARE);
        (time >= MOVE_RATE_WINDOW_MIN)
            .then(|| (after.saturating_sub(*before) as f64 / time.as_secs_f64()).max(least))
            .filter(|rate| *rate > 0.0)
    }

    /// Returns how the guest writes where it is not throttled. `None` as long as that is not known.
    pub(super) fn writes(&self) -> Option<WriteModel> {
        self.first.zip(self.last).map(|(first, last)| WriteModel::of_rounds(first, last))
    }

    /// Returns the bytes a second that the last round dirtied, or 0.
    pub(super) fn last_rate(&self) -> f64 {
        self.last.map_or(0.0, |last| last.dirtied / last.seconds)
    }

    /// Returns the seconds since this round began.
    pub(super) fn seconds_of_round(&self, sample: &CopySample) -> f64 {
        sample.at.saturating_sub(self.round_at).as_secs_f64()
    }

    /// Returns how long the first round has been over. `None`: it is not.
    pub(super) fn since_first_round(&self, sample: &CopySample) -> Option<Duration> {
        self.first_over.map(|over| sample.at.saturating_sub(over))
    }

    /// Returns the last sample of what the guest writes that was taken while it was not throttled.
    pub(super) fn unthrottled_sample(&self) -> Option<u64> {
        self.unthrottled_sample
    }

    /// Returns whether no round has left less than those before, for so much time and so many rounds.
    pub(super) fn lacks_progress(&self, sample: &CopySample, time: Duration, rounds: u64) -> bool {
        self.least.is_some_and(|(_, since)| since.lasts(self.moment(sample), time, rounds))
    }

    /// Forgets what the rounds so far have left.
    pub(super) fn forget_progress(&mut self) {
        self.least = None;
    }
}
