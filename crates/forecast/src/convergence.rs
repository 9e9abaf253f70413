//! Whether the copy of a guest that is under way ends, when, and what would make it end.
//!
//! # The model
//!
//! A guest that writes `w` bytes of pages a second into a hot set of `N` bytes, each page as likely as any other, has
//! dirtied `d(t) = N·(1 - e^(-w·t/N))` different ones after `t`: `w·t` as long as it has not come around, `N` in the
//! end. A round that has `V` left at the rate `R` is followed by one of `d(V/R)`, until what is left fits into the
//! switchover. With `N` without end that is the geometric series of [`forecast`](mod@crate::forecast), `V·λ^n` with
//! `λ = w/R`; with one, rounds stop shrinking at the `V` for which `V = d(V/R)`: above zero if `w > R`. A guest
//! converges all the same if that fits.
//!
//! `N` and `w` are those with which the first round, which is long, and one of late, which is short, dirtied what they
//! did: what QEMU measures of either (`dirty-pages-rate`) is `d(t)/t`, which comes near `R` in *any* guest that does
//! not converge, and says nothing of by how much. A guest that is throttled by `p` lives `1 - p` of the time.
//!
//! What it dirties can be sampled, too: a guest that dirtied more within a second than is moved in
//! one, `d(1 s) > R·1 s`, does not converge, unless so much fits. It is the only figure that tells a guest that writes
//! six times as much as is moved from one that writes a little more: of both, whatever is sent is soon dirty again.
//! Samples count from the second round on: how fast pages are moved that are sent again, as changes most of them, does
//! not show in the first.
//!
//! # Help
//!
//! A guest that writes at most `DIRTY_SHARE_CONVERGING` of what is moved converges within some rounds: that is what is
//! said to be enough. One that is throttled is throttled to `DIRTY_SHARE_THROTTLED` of it, if that is allowed: with `λ
//! = w/R` what is left takes `1/(1 - λ)` of the time for which it would have to stand still, and what it does not do
//! meanwhile, `(1 - λ·R/w)/(1 - λ)` of what it would have, only grows with `λ`. Near 1 it would be throttled for long,
//! near 0 as good as stopped.
//!
//! That is done as soon as it is known not to converge: without a sample first for the least `w` that would do what was
//! seen, then for more, as far as that was not enough, by half of what is left to the guest at most. (One that is
//! seldom busy hardly notices being throttled, and one that sweeps over its hot set instead of writing here and there
//! seems to write more than it does.) With one at once for that, and again if the next one, of the guest as it is
//! throttled then, is more than `DIRTY_SHARE_CONVERGING`: one that had less CPU than it wanted slows down by less than
//! it is throttled by. When all that is allowed was, and some more rounds (`NO_PROGRESS_GIVE_UP_ROUNDS`) left no less
//! than those before, it is given up: if its figures say so, too, or many more rounds (`NO_PROGRESS_ROUNDS_MAX`) do.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use skein_units::{about_seconds, decimal};

/// The most that QEMU throttles a guest by, in per cent (`CPU_THROTTLE_PCT_MAX` of its sysemu/cpu-throttle.h).
pub const THROTTLE_MAX: u8 = 99;
/// A guest that dirties this part of what is moved converges soon.
const DIRTY_SHARE_CONVERGING: f64 = 0.8;
/// One that is throttled is to dirty this part.
const DIRTY_SHARE_THROTTLED: f64 = 0.5;
/// A guest that writes this part of what it wrote, throttled by so many per cent, is not throttled.
const WRITE_SHARE_UNTHROTTLED: f64 = 0.5;
const WITHOUT_EFFECT_PERCENT: u8 = 98;
/// More than this part of what is moved, as sampled, is more, whatever the chance in a sample. (Of 512 pages in each
/// GiB those that changed; a tenth more or less where a fifth did.)
const SAMPLE_ERROR_FACTOR: f64 = 1.25;
/// Throttling begins with so many per cent at least, and is raised by as many where it was not enough.
const THROTTLE_STEP_PERCENT: u8 = 5;
/// So long and so many rounds left no less than those before when a guest that will not converge is throttled …
const NO_PROGRESS_THROTTLE_TIME: Duration = Duration::from_secs(1);
const NO_PROGRESS_THROTTLE_ROUNDS: u64 = 1;
/// … and when it is given up.
const NO_PROGRESS_GIVE_UP_TIME: Duration = Duration::from_secs(5);
const NO_PROGRESS_GIVE_UP_ROUNDS: u64 = 3;
/// … whatever its figures say: that it converges is not true then.
const NO_PROGRESS_TIME_MAX: Duration = Duration::from_secs(15);
const NO_PROGRESS_ROUNDS_MAX: u64 = 10;
/// Who looks so late was kept waiting: by QEMU, which answers nobody while it gathers what the guest has written, or
/// for CPU.
const LATE_SAMPLE_TIME: Duration = Duration::from_secs(1);
/// More times as many NICs as there are is no advice.
const ADVISED_NICS_FACTOR_MAX: u32 = 4;
/// Less than this part of the least so far is less.
const PROGRESS_SHARE: f64 = 0.95;
/// Nothing moves where it is less than this part of what was moved of late.
const STALLED_RATE_SHARE: f64 = 0.1;
/// Rounds that shrink by less than a hundredth do not.
const SHRINKING_SHARE: f64 = 0.99;
/// What is moved is measured over so long …
const MOVE_RATE_WINDOW: Duration = Duration::from_secs(2);
/// … or at first over this.
const MOVE_RATE_WINDOW_MIN: Duration = Duration::from_millis(500);
/// What is dirtied is measured over rounds that take so long together: when one ends is seen up to a look later.
const DIRTY_RATE_WINDOW: Duration = Duration::from_secs(1);
/// Two rounds of nearly one length do not tell how large the hot set is.
const ROUND_LENGTH_RATIO_MIN: f64 = 1.08;
/// How often a round may have come around the hot set. After more, few pages are left to tell by, or, of a guest that
/// sweeps, none.
const HOT_SET_TURNS_MAX: f64 = 1.0;
/// Of what may be left at the switchover a part is enough: one in so many …
const SWITCHOVER_FRACTION: f64 = 16.0;
/// … and what is dirtied in so many of the shortest rounds that there are, which take so many seconds.
const SHORTEST_ROUNDS_LEFT: f64 = 1.5;
const SHORTEST_ROUND_S: f64 = 0.02;
/// What would take longer, nearly a fortnight, does not end: no figure is that exact.
const FORECAST_MAX_S: f64 = 1e6;

/// How fast a guest writes and is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRates {
    /// Bytes of pages that the guest writes a second, throttled as it is.
    pub dirties_bytes_per_s: u64,
    /// Bytes of the guest that are moved a second, whatever they are on the wire.
    pub moves_bytes_per_s: u64,
}

impl fmt::Display for CopyRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |bytes: u64| decimal(bytes as f64, "B");
        write!(f, "dirties {}/s, moves {}/s", rate(self.dirties_bytes_per_s), rate(self.moves_bytes_per_s))
    }
}

/// Whether the copy of a guest ends. In words: `converges in about 12 s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Convergence {
    /// What the guest writes shows when the first round is over.
    FirstRound {
        /// Until then.
        seconds: f64,
    },
    /// It does.
    In {
        /// Until the guest is moved.
        seconds: f64,
    },
    /// It does not.
    Never(CopyRates),
}

impl fmt::Display for Convergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstRound { seconds } => write!(f, "first round over in about {}", about_seconds(*seconds)),
            Self::In { seconds } => write!(f, "converges in about {}", about_seconds(*seconds)),
            Self::Never(pace) => write!(f, "will not converge: {pace}"),
        }
    }
}

/// How a guest writes: see the [module](self).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriteModel {
    /// Bytes of pages a second, `w`.
    pub rate: f64,
    /// How often it comes around its hot set a second, `w/N`; 0: that is without end.
    pub turns: f64,
}

impl WriteModel {
    /// Bytes dirtied in so many seconds.
    pub fn dirtied(&self, seconds: f64) -> f64 {
        match self.turns * seconds {
            turned if turned < 1e-9 => self.rate * seconds,
            turned => self.rate * -(-turned).exp_m1() / self.turns,
        }
    }

    /// The same guest, throttled.
    pub fn throttled(&self, percent: u8) -> WriteModel {
        let lives = running_share(percent);
        WriteModel { rate: self.rate * lives, turns: self.turns * lives }
    }

    /// What would have dirtied what these two rounds did.
    fn seen(first: Round, last: Round) -> WriteModel {
        let linear = WriteModel { rate: last.dirtied / last.seconds, turns: 0.0 };
        let (long, short) = if first.seconds > last.seconds { (first, last) } else { (last, first) };
        let (longer, more) = (long.seconds / short.seconds, long.dirtied / short.dirtied);
        // Less in more time is another guest by now.
        if longer < ROUND_LENGTH_RATIO_MIN || !(1.0..longer).contains(&more) {
            return linear;
        }
        // (1 - e^(-u·T)) / (1 - e^(-u·t)) falls from T/t to 1.
        let (mut low, mut high) = (0.0, HOT_SET_TURNS_MAX / short.seconds);
        for _ in 0..40 {
            let turns = (low + high) / 2.0;
            let is_low = (-turns * long.seconds).exp_m1() / (-turns * short.seconds).exp_m1() > more;
            *(if is_low { &mut low } else { &mut high }) = turns;
        }
        let turned = high * last.seconds;
        WriteModel { rate: linear.rate * turned / -(-turned).exp_m1(), turns: high }
    }
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copying {
    /// Bytes left to send in this round.
    pub remaining: u64,
    /// Seconds since it began.
    pub since: f64,
    /// How the guest writes, throttled as it is; none in the first round.
    pub writes: Option<WriteModel>,
    /// Bytes of the guest moved a second.
    pub moves: f64,
    /// Bytes that may be left at the switchover.
    pub fits: u64,
}

impl Copying {
    /// Whether it ends: see the [module](self). None: nothing moves.
    pub fn convergence(&self) -> Option<Convergence> {
        if self.moves <= 0.0 {
            return None;
        }
        let mut seconds = self.remaining as f64 / self.moves;
        let Some(writes) = self.writes else {
            return Some(Convergence::FirstRound { seconds: seconds.min(FORECAST_MAX_S) });
        };
        let never = Convergence::Never(CopyRates {
            dirties_bytes_per_s: writes.rate as u64,
            moves_bytes_per_s: self.moves as u64,
        });
        let mut left = writes.dirtied(self.since + seconds);
        while left > self.fits as f64 {
            seconds += left / self.moves;
            let next = writes.dirtied(left / self.moves);
            if next > left * SHRINKING_SHARE || seconds > FORECAST_MAX_S {
                return Some(never);
            }
            left = next;
        }
        seconds += left / self.moves;
        Some(if seconds > FORECAST_MAX_S { never } else { Convergence::In { seconds } })
    }
}

/// The part of the time in which a guest lives that is throttled by so many per cent.
fn running_share(percent: u8) -> f64 {
    1.0 - f64::from(percent.min(THROTTLE_MAX)) / 100.0
}

/// Per cent by which a guest that writes so fast has to be throttled to converge soon; none: no throttling is enough.
pub fn needed(rate: f64, moves: f64) -> Option<u8> {
    throttle_to(DIRTY_SHARE_CONVERGING * moves, rate)
}

/// Per cent by which a guest that writes so fast is throttled, where so many are allowed; none: that is not enough.
pub fn throttle(rate: f64, moves: f64, allowed: u8) -> Option<u8> {
    needed(rate, moves).filter(|percent| *percent <= allowed).map(|_| hurried(rate, moves).min(allowed))
}

/// Per cent to allow for a guest that writes so fast, to the next ten; none: no throttling is enough.
pub fn advised(rate: f64, moves: f64) -> Option<u8> {
    needed(rate, moves).map(|_| hurried(rate, moves).next_multiple_of(10).min(THROTTLE_MAX))
}

/// Per cent by which it is throttled if nothing forbids it.
fn hurried(rate: f64, moves: f64) -> u8 {
    throttle_to(DIRTY_SHARE_THROTTLED * moves, rate).unwrap_or(THROTTLE_MAX)
}

fn throttle_to(aim: f64, rate: f64) -> Option<u8> {
    let percent = ((1.0 - aim / rate.max(1.0)) * 100.0).ceil().max(1.0);
    (percent <= f64::from(THROTTLE_MAX)).then_some(percent as u8)
}

/// What to do for a guest to converge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvergenceStep {
    /// Nothing is to be done.
    None,
    /// Throttle it to so many per cent.
    Throttle(u8, CopyRates),
    /// Call the migration off: with what is allowed it does not end.
    GiveUp(CopyRates, ConvergenceNeeds),
}

/// What would be enough. In words: `needs 2 more NICs, or --allow-throttle 80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvergenceNeeds {
    /// NICs like those that carry it, more of them; none: that would not help, or be too many.
    pub nics: Option<u32>,
    /// Per cent to allow; none: no throttling is enough, or it has no effect.
    pub throttle: Option<u8>,
    /// Per cent by which it is throttled and writes as before.
    pub throttle_without_effect: Option<u8>,
}

impl ConvergenceNeeds {
    /// For a guest that writes `rate` where it is not throttled, which it may be, over `nics` that move so much; 0:
    /// another would not carry it.
    fn of(rate: f64, moves: f64, nics: u32, allowed: u8) -> ConvergenceNeeds {
        let times = rate * running_share(allowed) / (DIRTY_SHARE_CONVERGING * moves);
        let more = (times * f64::from(nics)).ceil() as u32;
        ConvergenceNeeds {
            nics: (nics > 0)
                .then(|| more.saturating_sub(nics).max(1))
                .filter(|_| more <= nics.saturating_mul(ADVISED_NICS_FACTOR_MAX)),
            throttle: advised(rate, moves).filter(|percent| *percent > allowed),
            throttle_without_effect: None,
        }
    }
}

impl fmt::Display for ConvergenceNeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nics = self.nics.map(|nics| format!("{nics} more NIC{}", if nics == 1 { "" } else { "s" }));
        let throttle = self.throttle.map(|percent| format!("--allow-throttle {percent}"));
        match (nics, throttle) {
            (Some(nics), Some(throttle)) => write!(f, "needs {nics}, or {throttle}"),
            (Some(one), None) | (None, Some(one)) => write!(f, "needs {one}"),
            (None, None) => f.write_str("neither another NIC nor more throttling would be enough"),
        }?;
        match self.throttle_without_effect {
            Some(percent) => write!(
                f,
                "; its QEMU says that it throttles it by {percent} %, and does not: one that has ended throttling \
                 once may not be \
                 able to any more until it is started anew"
            ),
            None => Ok(()),
        }
    }
}

/// What was seen of a copy at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySample {
    /// Since any one moment.
    pub at: Duration,
    /// Pass over the RAM, from 1.
    pub round: u64,
    /// Bytes of pages sent so far over all rounds, as they are in the guest.
    pub sent: u64,
    /// Bytes left to send in this round.
    pub remaining: u64,
    /// Bytes that may be left at the switchover.
    pub fits: u64,
    /// Per cent that the guest is throttled by.
    pub throttle: u8,
    /// Bytes of different pages that it was seen to write within a second, throttled as it is; none: not known.
    pub sampled: Option<u64>,
    /// NICs that carry it, if another would carry more; else 0.
    pub nics: u32,
}

impl CopySample {
    /// All that there is to send so far: grows by what the guest dirtied when a round ends, and then only.
    fn total(&self) -> u64 {
        self.sent.saturating_add(self.remaining)
    }
}

/// A round, or the mean of some.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// Seconds that the guest lived in it.
    seconds: f64,
    /// Bytes that it dirtied.
    dirtied: f64,
}

/// Where rounds begin that are measured together.
#[derive(Clone, Copy, Debug)]
struct Begin {
    at: Duration,
    lived: f64,
    round: u64,
    total: u64,
}

/// Since when something has been so: how long something had moved by then, and which round it was.
#[derive(Clone, Copy, Debug)]
struct Since {
    at: Duration,
    round: u64,
}

impl Since {
    fn lasts(&self, now: Since, time: Duration, rounds: u64) -> bool {
        now.at.saturating_sub(self.at) >= time && now.round.saturating_sub(self.round) >= rounds
    }
}

/// Watches a copy from look to look.
#[derive(Debug)]
pub struct ConvergenceWatch {
    /// Per cent that the guest may be throttled by.
    allowed: u8,
    wanted: u8,
    /// When that was asked for.
    asked: Option<Since>,
    /// Of late: when, but for the time in which nobody could look, and what had been sent.
    sent: VecDeque<(Duration, u64)>,
    /// The last look.
    looked: Option<Duration>,
    /// How long nobody could look.
    deaf: Duration,
    /// How long nothing has moved, though it was looked at.
    stalled: Duration,
    /// How long something has moved, or would have but for the throttle.
    moving: Duration,
    /// Seconds that the guest lived: none of those in which it was throttled.
    lived: f64,
    /// The last look's round.
    round: u64,
    /// When it began.
    round_at: Duration,
    begin: Option<Begin>,
    first: Option<Round>,
    /// When the first one was over.
    first_over: Option<Duration>,
    last: Option<Round>,
    /// How the guest writes, throttled as it is, once that is known.
    writes: Option<WriteModel>,
    /// What was sampled last while it was not throttled.
    free: Option<u64>,
    /// It does not converge, as it is.
    is_never: bool,
    /// The least that was left when a round of late began.
    least: Option<(f64, Since)>,
}

impl ConvergenceWatch {
    /// Of a guest that may be throttled by so many per cent; 0: not at all.
    pub fn new(allowed: u8) -> ConvergenceWatch {
        ConvergenceWatch {
            allowed: allowed.min(THROTTLE_MAX),
            wanted: 0,
            asked: None,
            sent: VecDeque::new(),
            looked: None,
            deaf: Duration::ZERO,
            stalled: Duration::ZERO,
            moving: Duration::ZERO,
            lived: 0.0,
            round: 0,
            round_at: Duration::ZERO,
            begin: None,
            first: None,
            first_over: None,
            last: None,
            writes: None,
            free: None,
            is_never: false,
            least: None,
        }
    }

    /// What there is to say of the copy, and to do.
    pub fn sample(&mut self, look: &CopySample) -> (Option<Convergence>, ConvergenceStep) {
        let since = self.looked.replace(look.at).map_or(Duration::ZERO, |at| look.at.saturating_sub(at));
        self.lived += since.as_secs_f64() * running_share(look.throttle);
        // A link that is lost for a while says nothing of the guest.
        let sent = self.sent.back().map_or(0, |(_, sent)| look.sent.saturating_sub(*sent)) as f64;
        let is_moving = match self.moves() {
            Some(moves) => sent > moves * STALLED_RATE_SHARE * since.as_secs_f64(),
            None => sent > 0.0 && since <= LATE_SAMPLE_TIME,
        };
        if is_moving {
            self.moving += since;
            // What was seen before, and what was written meanwhile, says nothing of the copy now.
            if self.stalled > LATE_SAMPLE_TIME {
                (self.begin, self.least) = (None, None);
                self.sent.clear();
            }
            self.stalled = Duration::ZERO;
        } else if since > LATE_SAMPLE_TIME {
            // More NICs would not make that shorter.
            self.deaf += since;
        } else {
            self.stalled += since;
            // Between rounds QEMU waits for every virtual CPU, and one that is throttled may sleep for up to a second
            // then.
            if look.throttle > 0 && self.stalled <= LATE_SAMPLE_TIME {
                self.deaf += since;
                self.moving += since;
            }
        }
        let at = look.at.saturating_sub(self.deaf);
        self.sent.push_back((at, look.sent));
        while self.sent.get(1).is_some_and(|(before, _)| at.saturating_sub(*before) >= MOVE_RATE_WINDOW) {
            self.sent.pop_front();
        }
        if look.round > self.round {
            self.began(look);
        }
        if look.throttle == 0 {
            self.free = look.sampled.or(self.free);
        }
        let Some(moves) = self.moves() else { return (None, ConvergenceStep::None) };
        let unthrottled = self.first.zip(self.last).map(|(first, last)| WriteModel::seen(first, last));
        self.writes = unthrottled.map(|writes| writes.throttled(look.throttle));
        let copying = Copying {
            remaining: look.remaining,
            since: look.at.saturating_sub(self.round_at).as_secs_f64(),
            writes: self.writes,
            moves,
            fits: look.fits,
        };
        let convergence = copying.convergence();
        self.is_never = matches!(convergence, Some(Convergence::Never(_)));
        (convergence, unthrottled.map_or(ConvergenceStep::None, |writes| self.help(look, writes, moves)))
    }

    /// Bytes that are to be left at the switchover where so many may be: less, if rounds shrink to that by half and
    /// more each time, so that it takes no longer than to move what may be left, and the guest stands still for a part
    /// of the time that it may.
    pub fn aim(&self, fits: u64) -> u64 {
        let less = fits as f64 / SWITCHOVER_FRACTION;
        let Some((moves, writes)) = self.moves().zip(self.writes) else { return less as u64 };
        let less = less.max(SHORTEST_ROUNDS_LEFT * writes.dirtied(SHORTEST_ROUND_S));
        let shrinks = writes.dirtied(less / moves) <= less / 2.0;
        if shrinks { fits.min(less as u64) } else { fits }
    }

    /// Whether it is known not to converge, as it is.
    pub fn is_hopeless(&self) -> bool {
        self.is_never
    }

    fn now(&self, look: &CopySample) -> Since {
        Since { at: self.moving, round: look.round }
    }

    /// A round began.
    fn began(&mut self, look: &CopySample) {
        (self.round, self.round_at) = (look.round, look.at);
        let now = Begin { at: look.at, lived: self.lived, round: look.round, total: look.total() };
        let Some(begin) = self.begin else { return self.begin = Some(now) };
        let (lived, rounds) = (now.lived - begin.lived, (now.round - begin.round) as f64);
        if self.first.is_some() && look.at.saturating_sub(begin.at) < DIRTY_RATE_WINDOW || lived <= 0.0 {
            return;
        }
        let dirtied = now.total.saturating_sub(begin.total) as f64 / rounds;
        let round = Round { seconds: lived / rounds, dirtied };
        self.first.get_or_insert(round);
        self.first_over.get_or_insert(look.at);
        (self.last, self.begin) = (Some(round), Some(now));
        // Not what was dirtied: while it may throttle, QEMU from 9.2 on looks for that in the middle of a round, too.
        let left = look.remaining as f64;
        if self.least.is_none_or(|(least, _)| left < least * PROGRESS_SHARE) {
            self.least = Some((left, self.now(look)));
        }
    }

    /// Bytes of the guest moved a second, of late; none: not known.
    pub fn moves(&self) -> Option<f64> {
        let ((begin, before), (end, after)) = (self.sent.front()?, self.sent.back()?);
        let time = end.saturating_sub(*begin);
        (time >= MOVE_RATE_WINDOW_MIN)
            .then(|| after.saturating_sub(*before) as f64 / time.as_secs_f64())
            .filter(|rate| *rate > 0.0)
    }

    /// What it was seen to write in a second, if by that it does not converge, or as throttled as it is not soon.
    fn sampled(&self, look: &CopySample, moves: f64) -> Option<f64> {
        let more = if self.wanted == 0 { SAMPLE_ERROR_FACTOR } else { DIRTY_SHARE_CONVERGING };
        let is_told = self.first_over.is_some_and(|over| look.at.saturating_sub(over) >= MOVE_RATE_WINDOW);
        let sampled = look.sampled.filter(|sampled| is_told && *sampled > look.fits)? as f64;
        (sampled > more * moves).then_some(sampled)
    }

    /// Per cent by which it is throttled, if that has no effect: QEMU's `cpu_throttle_thread`
    /// (migration/cpu-throttle.c) returns without resetting `throttle_thread_scheduled` when throttling ended just
    /// before, and is not scheduled for that virtual CPU any more.
    fn throttle_without_effect(&self, look: &CopySample) -> Option<u8> {
        let (free, now) = self.free.zip(look.sampled)?;
        (look.throttle >= WITHOUT_EFFECT_PERCENT && now as f64 > WRITE_SHARE_UNTHROTTLED * free as f64)
            .then_some(look.throttle)
    }

    fn help(&mut self, look: &CopySample, writes: WriteModel, moves: f64) -> ConvergenceStep {
        // QEMU throttles at the end of a later round; one that does not then never will.
        if look.throttle < self.wanted {
            if !self
                .asked
                .is_some_and(|since| since.lasts(self.now(look), NO_PROGRESS_GIVE_UP_TIME, NO_PROGRESS_GIVE_UP_ROUNDS))
            {
                self.least = None;
                return ConvergenceStep::None;
            }
            (self.wanted, self.allowed) = (look.throttle, look.throttle);
        }
        let sampled = self.sampled(look, moves);
        let throttled = sampled.unwrap_or(writes.throttled(look.throttle).rate);
        let pace = CopyRates { dirties_bytes_per_s: throttled as u64, moves_bytes_per_s: moves as u64 };
        let lasts = |time, rounds| self.least.is_some_and(|(_, since)| since.lasts(self.now(look), time, rounds));
        let (is_known, is_sure) = (
            self.is_never && lasts(NO_PROGRESS_THROTTLE_TIME, NO_PROGRESS_THROTTLE_ROUNDS),
            lasts(NO_PROGRESS_GIVE_UP_TIME, NO_PROGRESS_GIVE_UP_ROUNDS),
        );
        if self.wanted < self.allowed && (sampled.is_some() || is_known || is_sure) {
            // What is sure is tried first.
            let sure = self.last.map_or(0.0, |last| last.dirtied / last.seconds);
            let seen = if self.wanted == 0 { sure } else { writes.rate };
            let (rate, most) = match sampled {
                Some(sampled) => (sampled / running_share(look.throttle), THROTTLE_MAX),
                None => (seen, self.wanted + (100 - self.wanted) / 2),
            };
            let next = hurried(rate, moves).min(most);
            self.wanted = next.max(self.wanted.saturating_add(THROTTLE_STEP_PERCENT)).min(self.allowed);
            self.asked = Some(self.now(look));
            return ConvergenceStep::Throttle(self.wanted, pace);
        }
        // Rounds that are short show no more than there is to write to: samples may show more.
        let rate = sampled.map_or(writes.rate, |sampled| sampled / running_share(look.throttle));
        let lack = || ConvergenceNeeds {
            throttle_without_effect: self.throttle_without_effect(look),
            ..ConvergenceNeeds::of(rate, moves, look.nics, self.allowed)
        };
        match self.is_never {
            true if is_sure => ConvergenceStep::GiveUp(pace, lack()),
            // One that writes no more than what should do is held up by something else.
            false if lasts(NO_PROGRESS_TIME_MAX, NO_PROGRESS_ROUNDS_MAX) => {
                match writes.throttled(look.throttle).rate > DIRTY_SHARE_CONVERGING * moves {
                    true => ConvergenceStep::GiveUp(pace, lack()),
                    false => ConvergenceStep::GiveUp(
                        pace,
                        ConvergenceNeeds {
                            nics: None,
                            throttle: None,
                            throttle_without_effect: self.throttle_without_effect(look),
                        },
                    ),
                }
            }
            _ => ConvergenceStep::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use skein_units::GIB;

    const MB: f64 = 1e6;

    #[test]
    fn convergence_is_in_words() {
        let pace = CopyRates { dirties_bytes_per_s: 310_000_000, moves_bytes_per_s: 230_000_000 };
        for (convergence, words) in [
            (Convergence::FirstRound { seconds: 3.5 }, "first round over in about 3.5 s"),
            (Convergence::In { seconds: 12.2 }, "converges in about 12 s"),
            (Convergence::Never(pace), "will not converge: dirties 310 MB/s, moves 230 MB/s"),
        ] {
            assert_eq!(convergence.to_string(), words);
        }
        for (nics, throttle, words) in [
            (Some(2), Some(80), "needs 2 more NICs, or --allow-throttle 80"),
            (Some(1), None, "needs 1 more NIC"),
            (None, Some(99), "needs --allow-throttle 99"),
            (None, None, "neither another NIC nor more throttling would be enough"),
        ] {
            assert_eq!(ConvergenceNeeds { nics, throttle, throttle_without_effect: None }.to_string(), words);
        }
        let numb = ConvergenceNeeds { nics: Some(1), throttle: None, throttle_without_effect: Some(99) }.to_string();
        assert!(
            numb.starts_with("needs 1 more NIC; its QEMU says that it throttles it by 99 %, and does not"),
            "{numb}"
        );
    }

    #[test]
    fn what_is_lacking_is_what_would_be_enough() {
        for (moves, nics, allowed, more, throttle) in [
            (230.0, 2, 0, Some(1), Some(60)),
            (100.0, 2, 0, Some(5), Some(80)),
            (100.0, 0, 0, None, Some(80)),
            (100.0, 1, 50, Some(1), Some(80)),
            (100.0, 1, 80, Some(1), None),
            (80.0, 2, 0, Some(6), Some(90)),
            (70.0, 2, 0, None, Some(90)),
            (2.0, 1, 0, None, None),
        ] {
            let lack = ConvergenceNeeds::of(245.0 * MB, moves * MB, nics, allowed);
            assert_eq!(
                lack,
                ConvergenceNeeds { nics: more, throttle, throttle_without_effect: None },
                "{moves} {nics} {allowed}"
            );
        }
        assert_eq!((needed(100.0, 200.0), needed(100.0, 100.0), needed(1e9, 1.0)), (Some(1), Some(20), None));
    }

    #[test]
    fn a_small_hot_set_converges_however_fast_it_is_written() {
        let writes = WriteModel { rate: 10_000.0 * MB, turns: 200.0 };
        let copying = |fits| Copying { remaining: 1 << 30, since: 0.0, writes: Some(writes), moves: 200.0 * MB, fits };
        assert!(matches!(copying(51_000_000).convergence(), Some(Convergence::In { .. })));
        assert!(matches!(copying(49_000_000).convergence(), Some(Convergence::Never(_))));
        assert_eq!(Copying { moves: 0.0, ..copying(0) }.convergence(), None);
        let first = Copying { writes: None, ..copying(0) }.convergence();
        assert!(matches!(first, Some(Convergence::FirstRound { seconds }) if (5.3..5.4).contains(&seconds)));
    }

    #[test]
    fn the_downtime_is_short_where_that_costs_next_to_nothing() {
        let mut watch = ConvergenceWatch::new(0);
        let mut look = CopySample {
            at: Duration::ZERO,
            round: 1,
            sent: 0,
            remaining: GIB,
            fits: 80 << 20,
            throttle: 0,
            sampled: None,
            nics: 1,
        };
        assert_eq!(watch.aim(look.fits), look.fits / 16, "as long as nothing is known");
        for (rate, aims) in [(20.0, look.fits / 16), (190.0, look.fits)] {
            // A first round of 5 s, and some of a second, at 200 MB/s.
            let dirtied = |seconds: f64| (rate * MB * seconds) as u64;
            watch = ConvergenceWatch::new(0);
            for tenth in 0..80 {
                look.at = Duration::from_millis(tenth * 100);
                look.round = 1 + tenth / 50;
                look.sent = (200.0 * MB * look.at.as_secs_f64()) as u64;
                look.remaining = GIB + dirtied((tenth / 50 * 5) as f64) - look.sent.min(GIB);
                watch.sample(&look);
            }
            assert_eq!((watch.aim(look.fits), watch.is_hopeless()), (aims, false), "{rate}");
        }
    }

    #[test]
    fn a_guest_that_is_not_throttled_though_it_may_be_is_given_up() {
        let mut watch = ConvergenceWatch::new(90);
        let mut said = Vec::new();
        for tenth in 0..400u64 {
            let at = Duration::from_millis(tenth * 100);
            let sent = (200.0 * MB * at.as_secs_f64()) as u64;
            let round = 1 + tenth / 20;
            // As much again in each round of two seconds.
            let remaining = round * (400.0 * MB) as u64 - sent;
            let look = CopySample { at, round, sent, remaining, fits: 50 << 20, throttle: 0, sampled: None, nics: 2 };
            said.extend(Some(watch.sample(&look).1).filter(|help| *help != ConvergenceStep::None));
        }
        assert!(matches!(said[..], [ConvergenceStep::Throttle(..), ConvergenceStep::GiveUp(..), ..]), "{said:?}");
    }

    #[test]
    fn a_link_that_is_lost_is_no_reason_to_give_up() {
        let mut watch = ConvergenceWatch::new(0);
        for tenth in 0..200u64 {
            let at = Duration::from_millis(tenth * 100);
            // Four rounds of a second that leave the same, and then nothing.
            let moved = at.as_secs_f64().min(4.5);
            let (round, sent) = (1 + moved as u64, (200.0 * MB * moved) as u64);
            let remaining = round * (200.0 * MB) as u64 - sent;
            let look = CopySample { at, round, sent, remaining, fits: 50 << 20, throttle: 0, sampled: None, nics: 2 };
            assert_eq!(watch.sample(&look).1, ConvergenceStep::None, "{at:?}");
        }
    }

    #[test]
    fn an_outage_is_not_in_the_figures_after_it() {
        let mut watch = ConvergenceWatch::new(99);
        let mut said = Vec::new();
        for tenth in 0..300u64 {
            let at = Duration::from_millis(tenth * 100);
            // Rounds of a second at 200 MB/s that leave 150 MB each; from 10 s on nothing moves for ten.
            let moved = if tenth < 100 { tenth } else { tenth.saturating_sub(200) + 100 } as f64 / 10.0;
            let (round, sent) = (1 + (moved / 0.75) as u64, (200.0 * MB * moved) as u64);
            let remaining = round * (150.0 * MB) as u64 - sent.min(round * (150.0 * MB) as u64);
            let look = CopySample { at, round, sent, remaining, fits: 5 << 20, throttle: 0, sampled: None, nics: 2 };
            let (convergence, _) = watch.sample(&look);
            if tenth > 220 {
                said.extend(convergence);
            }
        }
        assert!(!said.is_empty());
        for convergence in said {
            let Convergence::Never(pace) = convergence else { continue };
            assert!((150_000_000..300_000_000).contains(&pace.dirties_bytes_per_s), "{pace}");
            assert!((150_000_000..300_000_000).contains(&pace.moves_bytes_per_s), "{pace}");
        }
    }

    #[test]
    fn a_pause_of_qemu_is_no_slow_link() {
        let mut watch = ConvergenceWatch::new(0);
        let mut look = CopySample {
            at: Duration::ZERO,
            round: 1,
            sent: 0,
            remaining: GIB,
            fits: 0,
            throttle: 0,
            sampled: None,
            nics: 2,
        };
        for tenth in 0..100u64 {
            // Seven seconds after each second at 200 MB/s.
            look.at = Duration::from_millis(tenth * 100 + tenth / 10 * 7000);
            look.sent = tenth * 20_000_000;
            watch.sample(&look);
            let moves = watch.moves().unwrap_or(200.0 * MB);
            assert!((150.0..=250.0).contains(&(moves / MB)), "{moves}");
        }
    }

    #[test]
    fn a_guest_that_should_converge_and_does_not_is_given_up_late() {
        let mut watch = ConvergenceWatch::new(0);
        let given_up = (0..1000u64).find_map(|tenth| {
            // Rounds of half a second at 50 MB/s, and two seconds after each in which QEMU answers nobody.
            let (round, part) = (tenth / 5, tenth % 5);
            let at = Duration::from_millis(tenth * 100 + round * 2000);
            let sent = round * 25_000_000 + part * 5_000_000;
            let remaining = (round + 1) * 25_000_000 - sent;
            match watch.sample(&CopySample {
                at,
                round: 1 + round,
                sent,
                remaining,
                fits: 1 << 20,
                throttle: 0,
                sampled: None,
                nics: 2,
            }) {
                (_, ConvergenceStep::GiveUp(_, lack)) => Some((tenth / 10, lack)),
                (convergence, _) => {
                    assert!(!matches!(convergence, Some(Convergence::Never(_))), "{convergence:?}");
                    None
                }
            }
        });
        let (after, lack) = given_up.expect("is given up");
        assert!((15..30).contains(&after), "{after}");
        assert_eq!(lack, ConvergenceNeeds { nics: None, throttle: None, throttle_without_effect: None });
    }

    /// A guest and its QEMU: rounds, and the throttle as `migration_trigger_throttle` sets it, at the end of every
    /// other round that is a second after the last.
    #[derive(Debug, Clone)]
    struct Guest {
        ram: f64,
        writes: WriteModel,
        moves: f64,
        fits: f64,
        /// What it dirties in a second is looked at.
        is_sampled: bool,
        /// Its QEMU says that it throttles it, and does not.
        is_numb: bool,
    }

    /// How its copy ended.
    struct End {
        seconds: f64,
        given_up: Option<ConvergenceNeeds>,
        throttle: u8,
        /// What was said, and when.
        said: Vec<(f64, u64, Convergence)>,
    }

    impl Guest {
        /// None: it went on for ever.
        fn copied(&self, allowed: u8) -> Option<End> {
            const STEP_S: f64 = 0.01;
            let mut watch = ConvergenceWatch::new(allowed);
            let (mut at, mut sent, mut remaining, mut round, mut lived) = (0.0, 0.0, self.ram, 1, 0.0);
            let (mut throttle, mut wanted, mut synced, mut high, mut throttled_at) = (0, 0, 0.0, false, 0.0);
            let mut waited = 0.0;
            let mut said = Vec::new();
            for step in 0..400_000 {
                let bytes = (self.moves * STEP_S).min(remaining);
                (at, sent, remaining) = (at + STEP_S, sent + bytes, remaining - bytes);
                let slowed = if self.is_numb { 0 } else { throttle };
                lived += STEP_S * running_share(slowed);
                // QEMU waits for a virtual CPU that sleeps (`CPU_THROTTLE_TIMESLICE_NS`).
                let sleeps = 0.01 * f64::from(slowed) / 100.0 / running_share(slowed);
                if remaining <= 0.0 && waited + STEP_S <= sleeps {
                    waited += STEP_S;
                } else if remaining <= 0.0 {
                    waited = 0.0;
                    (remaining, round, lived) = (self.writes.dirtied(lived), round + 1, 0.0);
                    if remaining <= self.fits {
                        return Some(End { seconds: at + remaining / self.moves, given_up: None, throttle, said });
                    }
                    if at - synced >= 1.0 {
                        (synced, high) = (at, !high);
                        if !high && throttle != wanted {
                            (throttle, throttled_at) = (wanted, at);
                        }
                    }
                }
                if step % 10 == 0 {
                    // A tenth more or less.
                    let seen = self.writes.throttled(slowed).dirtied(1.0) * (1.0 + 0.1 * at.sin());
                    let sampled = (self.is_sampled && at - throttled_at >= 1.0).then_some(seen as u64);
                    let look = CopySample {
                        at: Duration::from_secs_f64(at),
                        round,
                        sent: sent as u64,
                        remaining: remaining as u64,
                        fits: self.fits as u64,
                        throttle,
                        sampled,
                        nics: 2,
                    };
                    let (convergence, help) = watch.sample(&look);
                    said.extend(convergence.map(|convergence| (at, round, convergence)));
                    match help {
                        ConvergenceStep::None => {}
                        ConvergenceStep::Throttle(percent, _) => {
                            assert!(percent > wanted && percent <= allowed, "{percent} {wanted}");
                            wanted = percent;
                        }
                        ConvergenceStep::GiveUp(_, lack) => {
                            assert_eq!(throttle, allowed, "not all was tried");
                            return Some(End { seconds: at, given_up: Some(lack), throttle, said });
                        }
                    }
                }
            }
            None
        }
    }

    /// `hot`: part of the RAM; `writes`: of what is moved.
    fn guest(ram: u64, hot: f64, moves: f64, writes: f64) -> Guest {
        let ram = ram as f64;
        let rate = writes * moves;
        let writes = WriteModel { rate, turns: rate / (ram * hot) };
        Guest { ram, writes, moves, fits: moves * 0.25, is_sampled: false, is_numb: false }
    }

    fn guests(writes: std::ops::Range<f64>) -> impl Strategy<Value = Guest> {
        (GIB..16 * GIB, 0.1f64..0.7, 100.0f64..1200.0, writes, any::<bool>()).prop_map(
            |(ram, hot, moves, writes, is_sampled)| Guest { is_sampled, ..guest(ram, hot, moves * MB, writes) },
        )
    }

    /// 60,000 pages a second, over two links of 1 Gb/s.
    #[test]
    fn a_guest_that_is_a_little_too_hot() {
        let guest = Guest { fits: 50.0 * MB, ..guest(2_000_000_000, 0.3, 230.0 * MB, 1.07) };
        let end = guest.copied(0).unwrap();
        let lack = end.given_up.expect("is given up");
        assert!(lack.nics == Some(1) && matches!(lack.throttle, Some(60)), "{lack}");
        assert!((10.0..35.0).contains(&end.seconds), "{}", end.seconds);
        let end = guest.copied(99).unwrap();
        assert!(end.given_up.is_none() && end.throttle <= 60 && end.seconds < 25.0, "{} {}", end.throttle, end.seconds);
    }

    /// However much it is throttled: its life is slower, the user's is not.
    #[test]
    fn what_does_not_help_is_given_up_in_time() {
        for allowed in [50, 95, 99] {
            let mut watch = ConvergenceWatch::new(allowed);
            let (mut throttle, mut asked, mut wanted) = (0, 0, 0);
            let given_up = (0..2000u64).find(|tenth| {
                // Rounds of a second, of which a tenth is sent in.
                let (round, part) = (tenth / 10, tenth % 10);
                if wanted > throttle && tenth - asked > 20 {
                    throttle = wanted;
                }
                let sent = round * 3_000_000 + if part > 0 { 3_000_000 } else { 0 };
                let look = CopySample {
                    at: Duration::from_millis(tenth * 100),
                    round: 1 + round,
                    sent,
                    remaining: (round + 1) * 3_000_000 - sent,
                    fits: 700_000,
                    throttle,
                    sampled: None,
                    nics: 2,
                };
                match watch.sample(&look).1 {
                    ConvergenceStep::None => false,
                    ConvergenceStep::Throttle(percent, _) => {
                        (wanted, asked) = (percent, *tenth);
                        false
                    }
                    ConvergenceStep::GiveUp(..) => true,
                }
            });
            // Since all that is allowed was asked for.
            let seconds = (given_up.expect("is given up") - asked) / 10;
            assert!(throttle == allowed && (10..30).contains(&seconds), "{allowed}: {seconds} s, {throttle} %");
        }
    }

    #[test]
    fn a_throttle_without_effect_is_told() {
        let guest = Guest { is_sampled: true, is_numb: true, ..guest(2_000_000_000, 0.3, 100.0 * MB, 2.0) };
        let numb = |allowed| guest.copied(allowed).unwrap().given_up.expect("is given up").throttle_without_effect;
        assert_eq!((numb(0), numb(60), numb(99)), (None, None, Some(99)));
        assert!(Guest { is_numb: false, ..guest }.copied(99).unwrap().given_up.is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_converges_is_let_alone_and_foretold(guest in guests(0.0..0.9)) {
            let end = guest.copied(99).unwrap();
            prop_assert!(end.given_up.is_none() && end.throttle == 0, "{:?}", end.throttle);
            // One round tells less of how it writes than two, and there is one more or less where the last just fits.
            let told = end.said.iter().filter_map(|(at, round, said)| match said {
                // Near to what is moved, a little more or less makes many rounds.
                Convergence::In { seconds }
                    if *round > 3 && guest.writes.rate < DIRTY_SHARE_CONVERGING * guest.moves =>
                {
                    Some((end.seconds - at, *seconds))
                }
                _ => None,
            });
            for (is, said) in told {
                prop_assert!((is - said).abs() < 0.5 * is + 1.5, "{} {}", is, said);
            }
        }

        #[test]
        fn a_guest_that_may_be_throttled_is_moved(guest in guests(1.2..3.5)) {
            let end = guest.copied(99).unwrap();
            prop_assert!(end.given_up.is_none());
            let hurried = throttle(guest.writes.rate, guest.moves, 99).unwrap();
            prop_assert!(end.throttle <= hurried + 20, "{} of {}", end.throttle, hurried);
        }

        #[test]
        fn what_is_said_to_be_enough_is(guest in guests(1.2..1.5), allowed in 0u8..20) {
            let is_small = guest.copied(0).is_some_and(|end| end.given_up.is_none());
            prop_assume!(!is_small);
            let Some(lack) = guest.copied(allowed).expect("is not copied for ever").given_up else { return Ok(()) };
            prop_assert!(guest.copied(lack.throttle.unwrap()).unwrap().given_up.is_none(), "{}", lack);
            let moves = guest.moves * f64::from(2 + lack.nics.unwrap()) / 2.0;
            let end = Guest { moves, fits: moves * 0.25, ..guest }.copied(allowed).unwrap();
            prop_assert!(end.given_up.is_none(), "{}", lack);
        }

        #[test]
        fn two_rounds_tell_how_a_guest_writes(rate in 1.0f64..1e10, turns in 0.0f64..0.95, long in 1.5f64..60.0) {
            let writes = WriteModel { rate, turns };
            let round = |seconds| Round { seconds, dirtied: writes.dirtied(seconds) };
            let seen = WriteModel::seen(round(long), round(1.0));
            prop_assert!((seen.rate / rate - 1.0).abs() < 0.01, "{:?}", seen);
            prop_assert!((seen.turns - turns).abs() < 0.01, "{:?}", seen);
        }

        #[test]
        fn no_number_is_too_odd(
            looks in prop::collection::vec((0u64..1 << 40, any::<[u64; 4]>(), any::<(u8, u32, Option<u64>)>()), 1..40),
            allowed: u8,
        ) {
            let mut watch = ConvergenceWatch::new(allowed);
            for (at, [round, sent, remaining, fits], (throttle, nics, sampled)) in looks {
                let at = Duration::from_millis(at);
                let sample = CopySample { at, round, sent, remaining, fits, throttle, sampled, nics };
                let (convergence, _) = watch.sample(&sample);
                if let Some(Convergence::FirstRound { seconds } | Convergence::In { seconds }) = convergence {
                    prop_assert!(seconds.is_finite() && seconds >= 0.0);
                }
            }
        }
    }
}
