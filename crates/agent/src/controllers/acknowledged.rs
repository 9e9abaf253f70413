//! Keeps which reports a leader has acknowledged, and what leaders are told of the host's watchdog. Leaders are told of
//! both, and count for how long this agent tells others that it has a leader (docs/failover.md).

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use skein_api::{HeardEcho, Term, WatchdogState};
use skein_watchdog::{Feeder, Times};

/// Bounds for how many reports of a connection it is remembered when they were sent. Older ones are acknowledged in
/// vain.
const SENT_MAX: usize = 64;

/// Returns the time by the clock that never jumps and goes on while the host is suspended, in milliseconds.
pub(crate) fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// An acknowledgement: [`skein_api::ToAgent::Heard`].
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) term: Term,
    pub(super) number: u64,
    pub(super) sequence: u64,
    pub(super) voters: u64,
    pub(super) hosts: BTreeSet<String>,
}

/// When the reports of one connection were sent.
#[derive(Debug, Default)]
pub(super) struct SentReports(VecDeque<(u64, u64)>);

impl SentReports {
    /// Notes that a report is sent now. Sequences only grow.
    pub(super) fn note(&mut self, sequence: u64, now_ms: u64) {
        if self.0.len() >= SENT_MAX {
            self.0.pop_front();
        }
        self.0.push_back((sequence, now_ms));
    }

    /// Returns when a report was sent, and forgets it and those before. `None`: it is not known.
    fn take(&mut self, sequence: u64) -> Option<u64> {
        let at = self.0.iter().position(|(of, _)| *of == sequence)?;
        self.0.drain(..=at).next_back().map(|(_, sent_ms)| sent_ms)
    }
}

/// What was acknowledged to this start of the agent, over all its connections.
pub(crate) struct Acknowledged(Mutex<State>);

struct State {
    feeder: Feeder,
    last: Option<HeardEcho>,
    watchdog: Option<WatchdogState>,
}

impl Acknowledged {
    /// Returns that of an agent that starts: nothing is acknowledged yet.
    pub(crate) fn new(host: &str) -> Acknowledged {
        Acknowledged(Mutex::new(State { feeder: Feeder::new(host, Times::ALL, now_ms()), last: None, watchdog: None }))
    }

    /// Takes an acknowledgement of a report of this connection. One of a report that was not sent says nothing.
    pub(super) fn take(&self, now_ms: u64, sent: &mut SentReports, word: Word) {
        let Some(sent_ms) = sent.take(word.sequence) else { return };
        let mut state = self.0.lock();
        let named = Some(word.hosts).filter(|hosts| !hosts.is_empty());
        state.feeder.acknowledged(now_ms, sent_ms, word.voters, named);
        let voters = state.feeder.voters().unwrap_or(0);
        state.last = Some(HeardEcho { term: word.term, number: word.number, voters });
    }

    /// Returns the last acknowledgement, as leaders are told it.
    pub(super) fn last(&self) -> Option<HeardEcho> {
        self.0.lock().last
    }

    /// Returns whether a leader has acknowledged a report lately, as other agents are told that ask.
    pub(crate) fn has_leader(&self) -> bool {
        self.0.lock().feeder.has_leader(now_ms())
    }

    /// Calls this with what decides whether the host's watchdog is fed.
    pub(crate) fn with_feeder<T>(&self, of: impl FnOnce(&mut Feeder) -> T) -> T {
        of(&mut self.0.lock().feeder)
    }

    /// Sets what leaders are told of the host's watchdog from now on.
    pub(crate) fn tell_watchdog(&self, state: WatchdogState) {
        self.0.lock().watchdog = Some(state);
    }

    /// Returns what leaders are told of the host's watchdog. `None`: the host is to have none.
    pub(crate) fn watchdog(&self) -> Option<WatchdogState> {
        self.0.lock().watchdog.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(number: u64, sequence: u64, voters: u64, hosts: &[&str]) -> Word {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Word { term: Term(3), number, sequence, voters, hosts }
    }

    #[test]
    fn only_what_was_sent_is_acknowledged_and_each_report_once() {
        let (of, mut sent) = (Acknowledged::new("hosta"), SentReports::default());
        let now = now_ms();
        (1..=3).for_each(|sequence| sent.note(sequence, now + sequence));
        of.take(now + 10, &mut sent, word(1, 4, 2, &["hosta"]));
        assert_eq!(of.last(), None, "report 4 was not sent");
        of.take(now + 10, &mut sent, word(2, 2, 2, &["hosta", "hostb"]));
        assert_eq!(of.last(), Some(HeardEcho { term: Term(3), number: 2, voters: 2 }));
        of.take(now + 11, &mut sent, word(3, 2, 2, &[]));
        of.take(now + 11, &mut sent, word(4, 1, 2, &[]));
        assert_eq!(of.last().unwrap().number, 2, "they are forgotten");
        of.take(now + 12, &mut sent, word(5, 3, 2, &[]));
        assert_eq!(of.last().unwrap().number, 5);
    }

    #[test]
    fn voters_that_were_not_named_are_not_said_to_be_known() {
        let (of, mut sent) = (Acknowledged::new("hosta"), SentReports::default());
        (1..=2).for_each(|sequence| sent.note(sequence, now_ms()));
        of.take(now_ms(), &mut sent, word(1, 1, 7, &[]));
        assert_eq!(of.last().unwrap().voters, 0);
        of.take(now_ms(), &mut sent, word(2, 2, 8, &["hosta"]));
        assert_eq!(of.last().unwrap().voters, 8);
    }

    #[test]
    fn what_is_remembered_of_a_connection_is_bounded() {
        let mut sent = SentReports::default();
        (1..=1000).for_each(|sequence| sent.note(sequence, sequence));
        assert_eq!(sent.0.len(), SENT_MAX);
        assert_eq!((sent.take(1000 - SENT_MAX as u64), sent.take(1000)), (None, Some(1000)));
    }
}
