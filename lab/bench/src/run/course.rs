//! The migrations of a run, side by side, and what is done to them.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::ScopedJoinHandle,
    time::{Duration, Instant},
};

use crate::{
    inflicted_fault::{self, Inflicted},
    migration::{MigrationError, Moved, ReachedState},
    run::setting::Setting,
    tick::Tick,
};

/// How often the caller is told of the progress.
const TICK: Duration = Duration::from_millis(200);

/// Moves one guest, and returns how that ended. Times count from the moment given.
pub(super) type Journey<'a> = Box<dyn FnOnce(Instant, &ReachedState) -> Result<Moved, MigrationError> + Send + 'a>;

/// What became of the migrations of a run.
pub(super) struct Course {
    /// The moment that times count from.
    pub start: Instant,
    /// How each guest's migration ended, by the guest's number.
    pub results: Vec<Result<Moved, MigrationError>>,
    /// When the last migration was over.
    pub ended_s: f64,
    /// The faults of links that were inflicted.
    pub faults: Vec<Inflicted>,
}

impl Setting<'_> {
    /// Lets all guests move at once, and inflicts the scene's fault meanwhile. `fill_bytes` is what all guests have
    /// filled together, and `sending` returns what the source's NICs send.
    pub(super) fn migrate_all(
        &self,
        journeys: Vec<Journey<'_>>,
        fill_bytes: u64,
        sending: impl Fn() -> Vec<f64>,
        tick: &mut dyn FnMut(Tick<'_>),
    ) -> Course {
        let reached: Vec<ReachedState> = journeys.iter().map(|_| ReachedState::default()).collect();
        let sum =
            |of: fn(&ReachedState) -> &AtomicU64| reached.iter().map(|s| of(s).load(Ordering::Relaxed)).sum::<u64>();
        let over = AtomicBool::new(false);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let migrations: Vec<_> = journeys
                .into_iter()
                .zip(&reached)
                .map(|(journey, reached)| scope.spawn(move || journey(start, reached)))
                .collect();
            let disturber = self.scene.fault.map(|fault| {
                let (site, over, sent) = (self.site, &over, || sum(|s| &s.sent_bytes));
                scope.spawn(move || inflicted_fault::inflict(site, fault, start, fill_bytes, sent, over))
            });
            while !migrations.iter().all(ScopedJoinHandle::is_finished) {
                std::thread::sleep(TICK);
                tick(Tick {
                    elapsed: start.elapsed(),
                    sent_bytes: sum(|s| &s.sent_bytes),
                    left_bytes: sum(|s| &s.left_bytes),
                    nic_bps: &sending(),
                });
            }
            let ended_s = start.elapsed().as_secs_f64();
            over.store(true, Ordering::Relaxed);
            let faults = disturber.and_then(|thread| thread.join().ok().flatten()).into_iter().collect();
            let join = |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            Course { start, results: migrations.into_iter().map(join).collect(), ended_s, faults }
        })
    }
}

impl Course {
    /// Makes times count from QEMU's first `migrate`. What agents do before that is before zero.
    pub(super) fn count_from_migrate(&mut self) {
        let migrates = self.results.iter().flatten().map(|moved| moved.migrate_s);
        let zero_s = migrates.reduce(f64::min).unwrap_or(0.0);
        self.start += Duration::from_secs_f64(zero_s.max(0.0));
        self.ended_s -= zero_s;
        self.results.iter_mut().flatten().for_each(|moved| moved.shift(zero_s));
        for fault in &mut self.faults {
            fault.at_s -= zero_s;
            fault.healed_s = fault.healed_s.map(|at_s| at_s - zero_s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        case::{Fault, FaultKind},
        results::Phases,
    };

    fn moved(migrate_s: f64, completed_s: f64) -> Moved {
        Moved {
            info: Default::default(),
            phases: Phases { completed_s: Some(completed_s), ..Phases::default() },
            gaps: None,
            migrate_s,
            steps: vec![],
            pages: None,
            rewritten: None,
        }
    }

    #[test]
    fn times_count_from_the_first_migrate() {
        let start = Instant::now();
        let fault =
            Fault { kind: FaultKind::Carrier, all_links: false, after_percent: 20, lasts: Duration::from_secs(1) };
        let mut course = Course {
            start,
            results: vec![Ok(moved(2.0, 6.0)), Err(MigrationError::NotResumed), Ok(moved(1.5, 7.0))],
            ended_s: 8.0,
            faults: vec![Inflicted { fault, links: vec![1], at_s: 3.0, healed_s: Some(4.0) }],
        };
        course.count_from_migrate();
        assert_eq!(course.start - start, Duration::from_millis(1500));
        assert_eq!((course.ended_s, course.faults[0].at_s, course.faults[0].healed_s), (6.5, 1.5, Some(2.5)));
        let completed: Vec<_> = course.results.iter().flatten().map(|moved| moved.phases.completed_s).collect();
        assert_eq!(completed, [Some(4.5), Some(5.5)]);
    }

    #[test]
    fn times_stay_if_nothing_was_migrated() {
        let start = Instant::now();
        let results = vec![Err(MigrationError::NotResumed)];
        let mut course = Course { start, results, ended_s: 8.0, faults: vec![] };
        course.count_from_migrate();
        assert_eq!((course.start, course.ended_s), (start, 8.0));
    }
}
