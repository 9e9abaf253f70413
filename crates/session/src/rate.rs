//! How fast the senders of a host may hand over bytes, each and all together.
//!
//! Each sender has a share of the rate of all: the shares are max-min fair (Bertsekas and Gallager, "Data Networks",
//! 6.5.2), so what a sender does not use is the others'. A share is held as by a token bucket whose tokens are given
//! out in advance: a sender [books](RateShares::book) bytes, and waits until the bytes before them have had their time.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

/// How long shares stay as they are. Shorter would follow the chance of single bookings, longer would leave unused what
/// a sender that pauses does not need.
const SHARE_PERIOD: Duration = Duration::from_millis(100);
/// How long a sender may have been idle, or late, and make up for the time.
const CATCH_UP_TIME: Duration = Duration::from_millis(50);
/// A sender that was not held back gets this many times what it used lately. Once it is held back, it gets what it can.
const GROWTH: f64 = 1.1;

/// One of the senders that share a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SenderId(pub u64);

/// Bytes that a sender is going to hand over, in their place after all that the sender booked before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Booking {
    /// How many bytes go before them.
    before: f64,
}

/// The rates of all senders. Time comes in as the time since any fixed moment.
#[derive(Debug, Default)]
pub struct RateShares {
    total: Option<NonZeroU64>,
    senders: BTreeMap<SenderId, Sender>,
    /// When it was last seen what senders use.
    looked_at: Duration,
}

#[derive(Debug)]
struct Sender {
    limit: Option<NonZeroU64>,
    /// Bytes per second. Infinite: nothing holds the sender back.
    share: f64,
    /// The bytes that were booked and not given back, since the sender is there.
    booked: f64,
    /// The bytes whose time had come at `as_of`.
    due: f64,
    as_of: Duration,
    /// The bytes per second that the sender can use, as was last seen.
    wants: f64,
    /// What was booked when that was seen.
    booked_before: f64,
    /// Whether the sender could have used more since then.
    was_held_back: bool,
}

impl Sender {
    /// Lets the time pass until `now`.
    fn advance(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.as_of).as_secs_f64();
        self.as_of = self.as_of.max(now);
        self.due = if self.share.is_infinite() {
            self.booked
        } else {
            (self.due + self.share * elapsed).min(self.booked + self.share * CATCH_UP_TIME.as_secs_f64())
        };
    }

    fn limit(&self) -> f64 {
        self.limit.map_or(f64::INFINITY, |limit| limit.get() as f64)
    }
}

impl RateShares {
    /// Limits all senders together to so many bytes per second. `None`: not at all.
    pub fn set_total(&mut self, now: Duration, bytes_per_s: Option<NonZeroU64>) {
        if self.total != bytes_per_s {
            self.total = bytes_per_s;
            self.share(now);
        }
    }

    /// Limits one sender to so many bytes per second, beside the limit of all. The sender is added if it is new.
    pub fn set_sender(&mut self, now: Duration, id: SenderId, bytes_per_s: Option<NonZeroU64>) {
        let new = !self.senders.contains_key(&id);
        let sender = self.senders.entry(id).or_insert_with(|| Sender {
            limit: None,
            share: 0.0,
            booked: 0.0,
            due: 0.0,
            as_of: now,
            // It is not known yet how much it can use.
            wants: f64::INFINITY,
            booked_before: 0.0,
            was_held_back: true,
        });
        if new || sender.limit != bytes_per_s {
            sender.limit = bytes_per_s;
            self.share(now);
        }
    }

    /// Removes a sender. Bytes that it booked have no time any more.
    pub fn remove(&mut self, now: Duration, id: SenderId) {
        if self.senders.remove(&id).is_some() {
            self.share(now);
        }
    }

    /// Returns the bytes per second that a sender may hand over now. `None`: any number.
    pub fn rate(&self, id: SenderId) -> Option<f64> {
        self.senders.get(&id).map(|sender| sender.share).filter(|share| share.is_finite())
    }

    /// Books bytes that a sender is going to hand over, after all that it booked before.
    pub fn book(&mut self, now: Duration, id: SenderId, bytes: u64) -> Booking {
        self.look(now);
        let Some(sender) = self.senders.get_mut(&id) else { return Booking { before: 0.0 } };
        sender.advance(now);
        let booking = Booking { before: sender.booked };
        sender.booked += bytes as f64;
        sender.was_held_back |= sender.due < booking.before;
        booking
    }

    /// Gives back bytes that were booked and are not handed over.
    pub fn give_back(&mut self, now: Duration, id: SenderId, bytes: u64) {
        if let Some(sender) = self.senders.get_mut(&id) {
            sender.advance(now);
            // What was booked after these moves up; the places in the bookings stay.
            sender.due += bytes as f64;
            sender.booked_before += bytes as f64;
        }
    }

    /// Returns how long booked bytes have to wait as things are. Zero: their time has come.
    pub fn wait(&mut self, now: Duration, id: SenderId, booking: Booking) -> Duration {
        self.look(now);
        let Some(sender) = self.senders.get_mut(&id) else { return Duration::ZERO };
        sender.advance(now);
        let ahead = booking.before - sender.due;
        if ahead <= 0.0 {
            return Duration::ZERO;
        }
        sender.was_held_back = true;
        // No less than a microsecond, so that rounding makes no caller ask for ever.
        Duration::try_from_secs_f64(ahead / sender.share).unwrap_or(Duration::MAX).max(Duration::from_micros(1))
    }

    /// Sees what each sender can use, and makes the shares anew, if that is due.
    fn look(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.looked_at);
        if elapsed < SHARE_PERIOD {
            return;
        }
        self.looked_at = now;
        for sender in self.senders.values_mut() {
            sender.advance(now);
            let used = (sender.booked - sender.booked_before) / elapsed.as_secs_f64();
            sender.wants = if sender.was_held_back { f64::INFINITY } else { used * GROWTH };
            sender.booked_before = sender.booked;
            // What was booked and is not due yet waits: the sender can use more.
            sender.was_held_back = sender.due < sender.booked;
        }
        self.share(now);
    }

    /// Makes the shares: each sender has what it can use, or what the others leave it, and at most its own limit.
    fn share(&mut self, now: Duration) {
        let mut wanted: Vec<(SenderId, f64)> = Vec::new();
        for (id, sender) in &mut self.senders {
            sender.advance(now);
            wanted.push((*id, sender.wants.min(sender.limit())));
        }
        let total = self.total.map_or(f64::INFINITY, |total| total.get() as f64);
        wanted.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let (mut left, mut others) = (total, wanted.len());
        for (_, share) in &mut wanted {
            *share = share.min(left / others as f64);
            left -= *share;
            others -= 1;
        }
        // What nobody has asked for is for whoever speeds up.
        let spare = if left.is_finite() { left / wanted.len().max(1) as f64 } else { f64::INFINITY };
        for (id, share) in wanted {
            let sender = self.senders.get_mut(&id).expect("it was among them");
            sender.share = (share + spare).min(sender.limit());
            sender.advance(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHUNK: u64 = 256 << 10;

    fn rate(bytes_per_s: u64) -> Option<NonZeroU64> {
        NonZeroU64::new(bytes_per_s)
    }

    /// A sender that hands over chunks, over so many streams at once.
    struct Busy {
        id: SenderId,
        /// Bytes per second that it has at most.
        has: f64,
        /// The time at which it has the next chunk, and the chunks that wait.
        next: Duration,
        streams: usize,
        waiting: Vec<Booking>,
        sent: u64,
    }

    impl Busy {
        fn new(id: u64, has: f64, streams: usize) -> Busy {
            Busy { id: SenderId(id), has, next: Duration::ZERO, streams, waiting: Vec::new(), sent: 0 }
        }
    }

    /// Lets senders go on from `from` to `to`, and returns each one's bytes per second.
    fn run(shares: &mut RateShares, senders: &mut [Busy], from: Duration, to: Duration) -> Vec<f64> {
        let mut now = from;
        senders.iter_mut().for_each(|sender| sender.sent = 0);
        while now < to {
            for sender in &mut *senders {
                sender.waiting.retain(|booking| !shares.wait(now, sender.id, *booking).is_zero());
                while sender.waiting.len() < sender.streams && sender.next <= now {
                    let booking = shares.book(now, sender.id, CHUNK);
                    sender.sent += CHUNK;
                    sender.next = sender.next.max(now) + Duration::from_secs_f64(CHUNK as f64 / sender.has);
                    if !shares.wait(now, sender.id, booking).is_zero() {
                        sender.waiting.push(booking);
                    }
                }
            }
            now += Duration::from_millis(1);
        }
        senders.iter().map(|sender| sender.sent as f64 / (to - from).as_secs_f64()).collect()
    }

    fn is_about(is: f64, expected: f64) -> bool {
        (is / expected - 1.0).abs() < 0.05
    }

    #[test]
    fn nobody_waits_without_a_limit() {
        let mut shares = RateShares::default();
        let id = SenderId(1);
        shares.set_sender(Duration::ZERO, id, None);
        for _ in 0..1000 {
            let booking = shares.book(Duration::ZERO, id, CHUNK);
            assert_eq!(shares.wait(Duration::ZERO, id, booking), Duration::ZERO);
        }
        assert_eq!(shares.rate(id), None);
    }

    #[test]
    fn a_senders_own_limit_holds_on_any_number_of_streams() {
        for streams in [1, 16] {
            let mut shares = RateShares::default();
            shares.set_sender(Duration::ZERO, SenderId(1), rate(50_000_000));
            let mut senders = [Busy::new(1, 1e9, streams)];
            let second = Duration::from_secs(1);
            run(&mut shares, &mut senders, Duration::ZERO, second);
            let is = run(&mut shares, &mut senders, second, second * 5);
            assert!(is_about(is[0], 5e7), "{is:?}");
        }
    }

    /// The one that has little keeps what it needs; the two others share the rest evenly, whatever their streams.
    #[test]
    fn what_a_sender_does_not_use_is_the_others() {
        let mut shares = RateShares::default();
        shares.set_total(Duration::ZERO, rate(100_000_000));
        let mut senders = [Busy::new(1, 2e7, 1), Busy::new(2, 1e9, 16), Busy::new(3, 1e9, 1)];
        for sender in &senders {
            shares.set_sender(Duration::ZERO, sender.id, None);
        }
        let second = Duration::from_secs(1);
        run(&mut shares, &mut senders, Duration::ZERO, second);
        let is = run(&mut shares, &mut senders, second, second * 11);
        assert!(is_about(is.iter().sum(), 1e8), "{is:?}");
        assert!(is[0] > 1.8e7 && is_about(is[1], is[2]), "{is:?}");
        // It leaves: the others have all.
        shares.remove(second * 11, SenderId(2));
        let is = run(&mut shares, &mut senders[2..], second * 11, second * 16);
        assert!(is[0] > 7.5e7, "{is:?}");
    }

    #[test]
    fn a_limit_that_is_raised_or_lifted_frees_what_waits() {
        let mut shares = RateShares::default();
        let id = SenderId(1);
        shares.set_sender(Duration::ZERO, id, rate(1_000_000));
        shares.book(Duration::ZERO, id, 2_000_000);
        let booking = shares.book(Duration::ZERO, id, CHUNK);
        assert_eq!(shares.wait(Duration::ZERO, id, booking), Duration::from_secs(2));
        shares.set_sender(Duration::ZERO, id, rate(4_000_000));
        assert_eq!(shares.wait(Duration::ZERO, id, booking), Duration::from_millis(500));
        shares.set_sender(Duration::ZERO, id, None);
        assert_eq!(shares.wait(Duration::ZERO, id, booking), Duration::ZERO);
    }

    #[test]
    fn bytes_that_shrink_give_their_time_back() {
        let mut shares = RateShares::default();
        let id = SenderId(1);
        shares.set_sender(Duration::ZERO, id, rate(1_000_000));
        shares.book(Duration::ZERO, id, 1_000_000);
        let booking = shares.book(Duration::ZERO, id, CHUNK);
        shares.give_back(Duration::ZERO, id, 750_000);
        assert_eq!(shares.wait(Duration::ZERO, id, booking), Duration::from_millis(250));
    }

    /// A sender that was idle has its share again soon, though nobody else books anything meanwhile.
    #[test]
    fn a_sender_that_was_idle_does_not_wait_for_the_others() {
        let mut shares = RateShares::default();
        let second = Duration::from_secs(1);
        shares.set_total(Duration::ZERO, rate(1_000_000));
        for id in [1, 2].map(SenderId) {
            shares.set_sender(Duration::ZERO, id, None);
        }
        let busy = shares.book(second * 2, SenderId(2), CHUNK);
        shares.wait(second * 3, SenderId(2), busy);
        shares.book(second * 3, SenderId(1), CHUNK);
        let booking = shares.book(second * 3, SenderId(1), CHUNK);
        let waits = |now, shares: &mut RateShares| shares.wait(now, SenderId(1), booking);
        assert!(!waits(second * 3, &mut shares).is_zero());
        assert!(waits(second * 3 + SHARE_PERIOD, &mut shares) <= second / 2);
    }

    proptest! {
        /// However senders come, go, pause and book: within any time all together have handed over no more than the
        /// limit allows, the time that may be made up, and a booking of each.
        #[test]
        fn no_more_than_the_limit_gets_through(
            steps in proptest::collection::vec((0_u64..4, 0_u8..8, 1_u64..400_000, 0_u64..80), 1..300),
        ) {
            const TOTAL: u64 = 10_000_000;
            let mut shares = RateShares::default();
            shares.set_total(Duration::ZERO, rate(TOTAL));
            let mut now = Duration::ZERO;
            let mut waiting: BTreeMap<SenderId, Vec<(Booking, u64)>> = BTreeMap::new();
            let (mut passed, mut joined, mut largest) = (0, 0, 0);
            for (sender, what, bytes, millis) in steps {
                let id = SenderId(sender);
                match what {
                    0 => {
                        shares.remove(now, id);
                        waiting.remove(&id);
                    }
                    1 => {
                        joined += u64::from(!waiting.contains_key(&id));
                        shares.set_sender(now, id, rate(bytes * 10));
                        waiting.entry(id).or_default();
                    }
                    2 => {
                        joined += u64::from(!waiting.contains_key(&id));
                        shares.set_sender(now, id, None);
                        waiting.entry(id).or_default();
                    }
                    _ => if let Some(waits) = waiting.get_mut(&id) {
                        waits.push((shares.book(now, id, bytes), bytes));
                        largest = largest.max(bytes);
                    },
                }
                for (id, waits) in &mut waiting {
                    waits.retain(|(booking, bytes)| {
                        let goes = shares.wait(now, *id, *booking).is_zero();
                        passed += if goes { *bytes } else { 0 };
                        !goes
                    });
                }
                let made_up = TOTAL as f64 * CATCH_UP_TIME.as_secs_f64() * 4.0;
                let allowed = TOTAL as f64 * now.as_secs_f64() + made_up + ((joined + 4) * largest) as f64;
                prop_assert!(passed as f64 <= allowed, "{passed} of {allowed} after {now:?}");
                now += Duration::from_millis(millis);
            }
        }
    }
}
