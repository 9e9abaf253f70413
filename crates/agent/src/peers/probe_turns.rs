//! Says whose turn it is to probe to or from this host.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Says how long a host that probes may be silent until it is another's turn.
const TURN_TIME: Duration = Duration::from_secs(4);
/// Whose turn it is to probe to or from this host.
#[derive(Default)]
pub(super) struct ProbeTurns {
    /// The host that probes, and when it last did something.
    last: Mutex<Option<(String, Instant)>>,
    /// When this host's last probe ended.
    pub(super) ended: Mutex<Option<Instant>>,
    /// The probes from this host.
    pub(super) own: Arc<AtomicUsize>,
    /// The streams of other hosts' probes.
    pub(super) streams: Arc<AtomicUsize>,
}

impl ProbeTurns {
    /// Takes the turn, or keeps it.
    ///
    /// # Errors
    /// It is another host's turn: its name.
    pub(super) fn take(&self, by: &str) -> Result<(), String> {
        let mut last = self.last.lock();
        match &*last {
            Some((other, at)) if other != by && at.elapsed() < TURN_TIME => Err(other.clone()),
            _ => {
                *last = Some((by.to_owned(), Instant::now()));
                Ok(())
            }
        }
    }

    /// Gives the turn back, if it is that host's.
    pub(super) fn give_back(&self, by: &str) {
        let mut last = self.last.lock();
        if last.as_ref().is_some_and(|(has, _)| has == by) {
            *last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_probes_at_a_time() {
        let turns = ProbeTurns::default();
        turns.take("a").unwrap();
        turns.take("a").unwrap();
        assert!(turns.take("b").is_err_and(|by| by == "a"));
        *turns.last.lock() = Some(("a".into(), Instant::now().checked_sub(TURN_TIME).unwrap()));
        turns.take("b").unwrap();
        assert!(turns.take("a").is_err());
        turns.give_back("a");
        assert!(turns.take("a").is_err(), "it is not a's to give");
        turns.give_back("b");
        turns.take("a").unwrap();
    }
}
