//! What takes longer to find than a scrape may take in a large cluster: found now and then, whether anybody scrapes or
//! not, and told as it was found last.

use std::sync::Weak;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skein_cluster::{complaints, left_out_complaint};
use skein_identity::ControllerIdentity;
use skein_metrics::{Samples, controller};

use crate::attention::attention;
use crate::driver::{Driver, wall};
use crate::signer::Signer;

/// How often all guests are looked at …
const LOOK_PERIOD: Duration = Duration::from_secs(5);
/// … and all rules: a large cluster's take a second of a core.
const RULES_PERIOD: Duration = Duration::from_secs(60);

/// What was found last.
#[derive(Default)]
pub(super) struct Seldom {
    found: Mutex<Found>,
}

#[derive(Clone, Copy, Default)]
struct Found {
    attention: Option<usize>,
    of_leader: Option<OfLeader>,
    rules: Option<Rules>,
}

/// What only the leader knows, whom all hosts report to.
#[derive(Clone, Copy)]
struct OfLeader {
    run_twice: usize,
    migrations: usize,
}

#[derive(Clone, Copy)]
struct Rules {
    hard: usize,
    soft: usize,
    /// In seconds since 1970.
    found_s: f64,
}

impl Seldom {
    /// Looks until the controller ends.
    pub(super) fn run(&self, driver: &Weak<Driver>, signer: &Signer, identity: &ControllerIdentity) {
        let mut looked_at_rules: Option<Instant> = None;
        loop {
            let shared = {
                let Some(driver) = driver.upgrade() else { return };
                let leads = driver.leads();
                let attention = attention(&driver, signer, identity).len();
                let of_leader = leads.then(|| {
                    let migrations = driver.read(|core| core.migrations(None, None, usize::MAX));
                    let under_way = migrations.iter().filter(|migration| migration.outcome.is_none()).count();
                    OfLeader { run_twice: driver.read(|core| core.run_twice().len()), migrations: under_way }
                });
                let is_due = looked_at_rules.is_none_or(|looked| looked.elapsed() >= RULES_PERIOD);
                let rules = (leads && is_due).then(|| {
                    looked_at_rules = Some(Instant::now());
                    broken(&driver)
                });
                let mut found = self.found.lock();
                (found.attention, found.of_leader) = (Some(attention), of_leader);
                found.rules = match rules {
                    Some(rules) => rules,
                    None => found.rules.filter(|_| leads),
                };
                driver.shared().clone()
            };
            if shared.wait_for_stop(LOOK_PERIOD) {
                return;
            }
        }
    }

    /// Tells what was found last. One that leads no more tells nothing of what only a leader knows.
    pub(super) fn collect(&self, samples: &mut Samples, leads: bool) {
        let found = *self.found.lock();
        if let Some(attention) = found.attention {
            samples.set(&controller::ATTENTION, &[], attention);
        }
        if let Some(of) = found.of_leader.filter(|_| leads) {
            samples.set(&controller::RUN_TWICE, &[], of.run_twice);
            samples.set(&controller::MIGRATIONS, &[], of.migrations);
        }
        if let Some(rules) = found.rules.filter(|_| leads) {
            samples.set(&controller::RULES_BROKEN, &["hard"], rules.hard);
            samples.set(&controller::RULES_BROKEN, &["soft"], rules.soft);
            samples.set(&controller::RULES_CHECKED, &[], rules.found_s);
        }
    }
}

/// Counts what is broken. `None`: placement cannot say.
fn broken(driver: &Driver) -> Option<Rules> {
    let (cluster, unreadable) = driver.read(|core| (core.placement(), core.unreadable_rules()));
    let found = complaints(&cluster).ok()?;
    let all = || unreadable.iter().cloned().map(left_out_complaint).chain(found.iter().cloned());
    let hard = all().filter(|complaint| complaint.hard).count();
    Some(Rules { hard, soft: all().count() - hard, found_s: wall().0 as f64 / 1e3 })
}
