//! Measures how fast a guest rewrites its memory, before a migration and during it: what throttling costs the guest.

use std::time::{Duration, Instant};

use skein_lab_guest::WorkloadClient;

use crate::results::Rewriting;

/// How long rewrites are counted before a migration.
const COUNT_ALONE: Duration = Duration::from_secs(1);

/// The pages that a guest has rewritten since it booted, and when it reported that.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    at: Instant,
    pages: u64,
}

/// How fast a guest rewrites while nothing migrates.
#[derive(Clone, Copy, Debug)]
pub struct Usual {
    last: Count,
    pages_per_s: f64,
}

impl Count {
    /// Asks a guest. Returns `None` if it does not answer.
    pub fn ask(agent: &mut WorkloadClient) -> Option<Self> {
        let status = agent.status().ok()?;
        Some(Self { at: Instant::now(), pages: status.written })
    }
}

impl Usual {
    /// Counts for a second. `ask` asks guest `n` of `guests`.
    pub fn of(guests: usize, mut ask: impl FnMut(usize) -> Option<Count>) -> Vec<Option<Self>> {
        let first: Vec<_> = (0..guests).map(&mut ask).collect();
        std::thread::sleep(COUNT_ALONE);
        let usual = |(n, first): (usize, Option<Count>)| {
            let (first, last) = (first?, ask(n)?);
            let pages_per_s = (last.pages - first.pages) as f64 / (last.at - first.at).as_secs_f64();
            (pages_per_s > 0.0).then_some(Self { last, pages_per_s })
        };
        first.into_iter().enumerate().map(usual).collect()
    }

    /// Returns how fast the guest rewrote from the moment `from`, when a migration began, until the target's guest
    /// reported `after`.
    pub fn until(self, from: Instant, after: Count) -> Rewriting {
        let Self { last, pages_per_s } = self;
        // Until the migration began the guest went on as before.
        let alone = from.saturating_duration_since(last.at).as_secs_f64() * pages_per_s;
        Rewriting {
            before_pages_per_s: pages_per_s,
            window_s: after.at.saturating_duration_since(from).as_secs_f64(),
            pages: (after.pages.saturating_sub(last.pages) as f64 - alone).max(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_migration_took() {
        let start = Instant::now();
        let at = |s: f64, pages| Count { at: start + Duration::from_secs_f64(s), pages };
        let usual = Usual { last: at(1.0, 5000), pages_per_s: 1000.0 };
        // From 2 s on the guest is migrated, for 4 s, and rewrites at half its rate.
        let seen = usual.until(start + Duration::from_secs(2), at(6.0, 8000));
        assert_eq!(seen, Rewriting { before_pages_per_s: 1000.0, window_s: 4.0, pages: 2000.0 });
        assert!((seen.slowed() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_guest_that_does_not_answer_or_not_rewrite() {
        let mut pages = 0;
        let usual = Usual::of(3, |n| {
            pages += 1;
            (n != 1).then(|| Count { at: Instant::now(), pages: if n == 0 { pages } else { 7 } })
        });
        assert!(usual[0].is_some_and(|usual| usual.pages_per_s > 0.0) && usual[1].is_none() && usual[2].is_none());
    }
}
