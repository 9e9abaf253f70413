//! When an agent feeds its host's watchdog, and when no more, so that a host of which the leader has not heard for long
//! is known to have been reset. Pure.
//!
//! An agent feeds for a while after it *sent* the last report that a leader acknowledged. Without a leader it also
//! feeds for a while after it *asked* the other agents whether any has one, if it and those that have none are more
//! than half of the *voters*: the hosts that an acknowledgement named. `docs/failover.md` says why that is safe.
//!
//! All times are milliseconds of a clock that never jumps and goes on while the host is suspended (`CLOCK_BOOTTIME`).

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

/// For how long an agent says that it has a leader, from an acknowledgement on, in milliseconds.
pub const HAS_LEADER_MS: u64 = 5_000;

/// The shortest time from one round of questions to the next, in milliseconds.
const ROUND_MS: u64 = 1_000;

/// For how long a watchdog is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// After a report was sent that a leader acknowledged, in milliseconds.
    pub acknowledged_ms: u64,
    /// After other agents were asked, in milliseconds.
    pub asked_ms: u64,
    /// From one feed to the next, in milliseconds.
    pub period_ms: u64,
}

impl Times {
    /// Those of every agent. An agent that feeds for longer makes proofs of leaders wrong that do not know it.
    pub const ALL: Times = Times { acknowledged_ms: 15_000, asked_ms: 5_000, period_ms: 1_000 };

    /// Returns within which time a host is reset, from the last moment on at which a leader or agents could have had
    /// its agent feed: with a watchdog of this timeout, and with what clocks differ.
    ///
    /// The timeout counts three times. A thread that found that it may feed, and was halted before it did, feeds when
    /// it goes on: up to a timeout after the feed before. The kernel feeds once more when the device is closed and
    /// nothing stops it (`watchdog_release`), so when the agent ends: up to a timeout after that. Then a timeout
    /// passes.
    pub fn resets_within_ms(&self, timeout_ms: u64) -> u64 {
        with_drift(self.acknowledged_ms.max(self.asked_ms) + 3 * timeout_ms)
    }
}

/// Returns the longest that a time can be by another host's clock: clocks differ by less than a thousandth.
pub fn with_drift(ms: u64) -> u64 {
    ms + ms.div_ceil(1000)
}

/// A round of questions to all agents.
#[derive(Debug)]
struct Round {
    number: u64,
    asked_ms: u64,
    /// The voters that have answered that they have no leader.
    without: BTreeSet<String>,
}

/// Decides for one start of an agent. It feeds only once a leader has acknowledged a report, of this start or of the
/// one before.
#[derive(Debug)]
pub struct Feeder {
    host: String,
    times: Times,
    /// When the last acknowledgement came; before the first, when the agent started: an agent of before may have said
    /// that it has a leader.
    led_ms: u64,
    /// When the last report was sent that was acknowledged.
    sent_ms: Option<u64>,
    /// The voters that were named last, by their number.
    voters: Option<(u64, BTreeSet<String>)>,
    rounds: u64,
    round: Option<Round>,
    /// When the last round was asked that had a majority.
    majority_ms: Option<u64>,
}

impl Feeder {
    /// Returns the feeder of an agent that starts.
    pub fn new(host: &str, times: Times, now_ms: u64) -> Feeder {
        Feeder {
            host: host.to_owned(),
            times,
            led_ms: now_ms,
            sent_ms: None,
            voters: None,
            rounds: 0,
            round: None,
            majority_ms: None,
        }
    }

    /// Returns when the last report was sent that was acknowledged.
    pub fn sent_ms(&self) -> Option<u64> {
        self.sent_ms
    }

    /// Goes on, in an agent that starts, from when the agent before sent the last report that was acknowledged, in the
    /// same boot and with a watchdog of this timeout.
    ///
    /// The device of an agent that has ended may be closed, and thereby fed, up to a timeout later. So this counts only
    /// if that agent is known to have ended so much before the watchdog may be fed no more: then the sum is the same.
    pub fn go_on(&mut self, ended_ms: u64, sent_ms: u64, timeout_ms: u64) {
        if sent_ms <= ended_ms && ended_ms + timeout_ms <= sent_ms + self.times.acknowledged_ms {
            self.sent_ms = self.sent_ms.max(Some(sent_ms));
        }
    }

    /// Returns the number of the voters that were named last.
    pub fn voters(&self) -> Option<u64> {
        self.voters.as_ref().map(|(number, _)| *number)
    }

    /// Returns the names of the voters that were named last.
    pub fn voter_names(&self) -> impl Iterator<Item = &str> {
        self.voters.iter().flat_map(|(_, hosts)| hosts).map(String::as_str)
    }

    /// Takes a leader's acknowledgement of a report that was sent at this time. The voters are those of this number;
    /// they are named where the agent has not got them yet. Of a number that was named before, the greatest counts.
    pub fn acknowledged(&mut self, now_ms: u64, sent_ms: u64, number: u64, named: Option<BTreeSet<String>>) {
        self.led_ms = now_ms;
        self.sent_ms = self.sent_ms.max(Some(sent_ms));
        if let Some(named) = named.filter(|_| self.voters().is_none_or(|known| known < number)) {
            self.voters = Some((number, named));
            // What was answered was counted among others.
            self.round = None;
        }
    }

    /// Returns whether a leader has acknowledged a report lately, as other agents are told that ask.
    pub fn has_leader(&self, now_ms: u64) -> bool {
        now_ms < self.led_ms.saturating_add(HAS_LEADER_MS)
    }

    /// Returns the number of a round that begins now: all voters are to be asked. `None`: it is not time.
    pub fn ask(&mut self, now_ms: u64) -> Option<u64> {
        let is_under_way = self.round.as_ref().is_some_and(|round| now_ms < round.asked_ms + ROUND_MS);
        if self.voters.is_none() || self.has_leader(now_ms) || is_under_way {
            return None;
        }
        self.rounds += 1;
        self.round = Some(Round { number: self.rounds, asked_ms: now_ms, without: BTreeSet::new() });
        self.answered(self.rounds, &self.host.clone(), false);
        Some(self.rounds)
    }

    /// Takes an agent's answer, which it gave after it was asked in this round. Its certificate says who that agent is.
    pub fn answered(&mut self, number: u64, host: &str, has_leader: bool) {
        let Some((_, voters)) = &self.voters else { return };
        let Some(round) = self.round.as_mut().filter(|round| round.number == number) else { return };
        if has_leader || !voters.contains(host) {
            return;
        }
        round.without.insert(host.to_owned());
        if round.without.len() * 2 > voters.len() {
            self.majority_ms = self.majority_ms.max(Some(round.asked_ms));
        }
    }

    /// Returns whether the watchdog may be fed now. A device that is opened is fed by that, so that it is opened only
    /// if this says so.
    pub fn feeds(&self, now_ms: u64) -> bool {
        let is_within = |since: Option<u64>, ms: u64| since.is_some_and(|since| now_ms < since.saturating_add(ms));
        is_within(self.sent_ms, self.times.acknowledged_ms) || is_within(self.majority_ms, self.times.asked_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voters(names: &[&str]) -> Option<BTreeSet<String>> {
        Some(names.iter().map(|name| (*name).to_owned()).collect())
    }

    fn feeder(names: &[&str]) -> Feeder {
        let mut feeder = Feeder::new("a", Times::ALL, 1_000);
        feeder.acknowledged(2_500, 2_000, 1, voters(names));
        feeder
    }

    #[test]
    fn an_agent_that_starts_feeds_only_once_a_report_was_acknowledged() {
        let mut feeder = Feeder::new("a", Times::ALL, 1_000);
        assert!(!feeder.feeds(1_000));
        assert!(feeder.has_leader(5_999), "an agent of before may have said so");
        assert_eq!(feeder.ask(60_000), None, "it does not know whom to ask");
        feeder.acknowledged(2_500, 2_000, 1, voters(&["a"]));
        assert!(feeder.feeds(2_500));
    }

    #[test]
    fn it_feeds_for_a_while_after_a_report_was_sent_and_not_after_it_was_acknowledged() {
        let mut feeder = feeder(&["a", "b", "c"]);
        assert!(feeder.feeds(16_999));
        assert!(!feeder.feeds(17_000));
        // A late word of an earlier report takes nothing away, and adds nothing.
        feeder.acknowledged(16_000, 1_500, 1, None);
        assert!(feeder.feeds(16_999) && !feeder.feeds(17_000));
    }

    #[test]
    fn without_a_leader_it_feeds_on_with_more_than_half_that_have_none() {
        let mut feeder = feeder(&["a", "b", "c", "d"]);
        assert_eq!(feeder.ask(7_499), None, "it has a leader");
        let round = feeder.ask(16_000).unwrap();
        assert_eq!(feeder.ask(16_500), None, "a round is under way");
        feeder.answered(round, "b", false);
        feeder.answered(round, "b", false);
        assert!(!feeder.feeds(17_000), "that is half of them");
        feeder.answered(round, "x", false);
        assert!(!feeder.feeds(17_000), "that is no voter");
        feeder.answered(round, "c", true);
        assert!(!feeder.feeds(17_000), "that one has a leader");
        feeder.answered(round, "d", false);
        assert!(feeder.feeds(20_999));
        assert!(!feeder.feeds(21_000), "it counts from when it asked");
    }

    #[test]
    fn answers_of_an_earlier_round_do_not_count() {
        let mut feeder = feeder(&["a", "b", "c"]);
        let first = feeder.ask(16_000).unwrap();
        let second = feeder.ask(17_000).unwrap();
        feeder.answered(first, "b", false);
        assert!(!feeder.feeds(17_000));
        feeder.answered(second, "b", false);
        assert!(feeder.feeds(21_999));
    }

    #[test]
    fn voters_never_go_back_and_answers_among_others_do_not_count() {
        let mut feeder = feeder(&["a", "b", "c"]);
        let round = feeder.ask(16_000).unwrap();
        feeder.acknowledged(16_100, 1_900, 3, voters(&["a", "b", "c", "d", "e"]));
        feeder.answered(round, "b", false);
        assert!(!feeder.feeds(17_000));
        feeder.acknowledged(16_200, 1_950, 2, voters(&["a"]));
        assert_eq!(feeder.voters(), Some(3));
        let round = feeder.ask(30_000).unwrap();
        assert!(!feeder.feeds(30_000), "one of five");
        feeder.answered(round, "b", false);
        feeder.answered(round, "e", false);
        assert!(feeder.feeds(30_000));
    }

    #[test]
    fn an_agent_goes_on_from_the_one_before_if_that_ended_a_timeout_before_it_may_feed_no_more() {
        let went_on = |start_ms: u64, sent_ms: u64| {
            let mut feeder = Feeder::new("a", Times::ALL, start_ms);
            feeder.go_on(start_ms, sent_ms, 10_000);
            feeder
        };
        let feeder = went_on(25_000, 20_000);
        assert!(feeder.feeds(34_999) && !feeder.feeds(35_000));
        assert!(!went_on(25_001, 20_000).feeds(25_001), "its device may be closed too late");
        assert!(!went_on(25_000, 25_001).feeds(25_001), "that is of another boot");
    }

    #[test]
    fn the_sum_is_that_of_the_page() {
        assert_eq!(Times::ALL.resets_within_ms(10_000), 45_045);
    }
}
