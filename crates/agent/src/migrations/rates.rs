//! Holds how fast the migrations from this host may send: each by its own limit, and all together by the host's and
//! the cluster's.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Zoned;
use parking_lot::Mutex;
use skein_api::{RateLimit, RateLimitedBy};
use skein_dataplane::source::{RateLimiter, RateShare};
use skein_handover::MigrationId;
use skein_units::{ClockTime, Rate, RatePlan};
use tracing::{info, warn};

use crate::error_chain;
use crate::watched_file::WatchedFileError;

/// How often the host's limit is looked up, which changes with the time of day and with its file.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// The limits of the migrations from this host.
pub(crate) struct MigrationRates {
    limiter: Arc<RateLimiter>,
    limits: Mutex<Limits>,
}

#[derive(Default)]
struct Limits {
    host: Option<Rate>,
    cluster: Option<Rate>,
    /// When the cluster's limit is forgotten.
    cluster_until: Option<Instant>,
    migrations: BTreeMap<MigrationId, Limited>,
}

/// A migration that has a limit of its own, or copies.
#[derive(Default)]
struct Limited {
    limit: Option<Rate>,
    share: Weak<RateShare>,
}

impl MigrationRates {
    pub(super) fn new() -> MigrationRates {
        MigrationRates { limiter: RateLimiter::new(), limits: Mutex::default() }
    }

    /// Limits a migration, whether its copy has begun or not. `None`: it has no limit of its own.
    pub(crate) fn set_migration(&self, id: MigrationId, limit: Option<Rate>) {
        let mut limits = self.limits.lock();
        let migration = limits.migrations.entry(id).or_default();
        migration.limit = limit;
        if let Some(share) = migration.share.upgrade() {
            share.set_limit(limit.map(Rate::bytes_per_s));
        }
    }

    /// Limits all migrations from this host together, by what is set for the host.
    pub(crate) fn set_host(&self, limit: Option<Rate>) {
        self.set_total(|limits| limits.host = limit);
    }

    /// Limits all migrations from this host together, by what the controllers leave this host of the cluster's limit.
    /// The limit is forgotten after a while, as controllers may be gone.
    pub(crate) fn set_cluster(&self, limit: Option<Rate>, until: Instant) {
        self.set_total(|limits| (limits.cluster, limits.cluster_until) = (limit, Some(until)));
    }

    /// Forgets the cluster's limit, if that is due.
    fn tidy(&self, now: Instant) {
        if self.limits.lock().cluster_until.is_some_and(|until| until <= now) {
            self.set_total(|limits| (limits.cluster, limits.cluster_until) = (None, None));
        }
    }

    fn set_total(&self, set: impl FnOnce(&mut Limits)) {
        let mut limits = self.limits.lock();
        let before = limits.total();
        set(&mut limits);
        let total = limits.total();
        if total != before {
            self.limiter
                .set_total(total.and_then(|limit| Rate::of_bits_per_s(limit.bits_per_s)).map(Rate::bytes_per_s));
            match total {
                Some(RateLimit { bits_per_s, .. }) => {
                    let rate = skein_units::decimal(bits_per_s as f64, "bit");
                    info!("all migrations from this host together are limited to {rate}/s");
                }
                None => info!("migrations from this host together have no limit any more"),
            }
        }
    }

    /// Returns the share of a migration whose copy begins.
    pub(super) fn join(&self, id: MigrationId) -> Arc<RateShare> {
        let mut limits = self.limits.lock();
        let migration = limits.migrations.entry(id).or_default();
        let share = Arc::new(self.limiter.join());
        share.set_limit(migration.limit.map(Rate::bytes_per_s));
        migration.share = Arc::downgrade(&share);
        share
    }

    /// Forgets a migration that is over.
    pub(super) fn forget(&self, id: MigrationId) {
        self.limits.lock().migrations.remove(&id);
    }

    /// Returns the bits a second that a migration may send which is to have this limit. `None`: nothing limits it.
    pub(crate) fn limit_of_new(&self, bits_per_s: Option<u64>) -> Option<u64> {
        bits_per_s.into_iter().chain(self.limits.lock().total().map(|limit| limit.bits_per_s)).min()
    }

    /// Returns what limits a migration most. `None`: nothing.
    pub(crate) fn limit_of(&self, id: MigrationId) -> Option<RateLimit> {
        let limits = self.limits.lock();
        let own = limits.migrations.get(&id).and_then(|migration| migration.limit);
        let own = own.map(|rate| RateLimit { bits_per_s: rate.bits_per_s(), by: RateLimitedBy::Migration });
        own.into_iter().chain(limits.total()).min_by_key(|limit| limit.bits_per_s)
    }
}

impl Limits {
    /// Returns what limits all migrations together.
    fn total(&self) -> Option<RateLimit> {
        let limit = |rate: Option<Rate>, by| rate.map(|rate| RateLimit { bits_per_s: rate.bits_per_s(), by });
        let both = [limit(self.host, RateLimitedBy::Host), limit(self.cluster, RateLimitedBy::Cluster)];
        both.into_iter().flatten().min_by_key(|limit| limit.bits_per_s)
    }
}

/// Keeps the host's limit as `plan` has it for the time of day, until `plan` returns `None`.
///
/// # Errors
/// The system has no room for a thread.
pub(super) fn keep_host_limit(
    rates: Arc<MigrationRates>,
    plan: impl Fn() -> Option<Result<Option<RatePlan>, WatchedFileError>> + Send + 'static,
) -> io::Result<()> {
    let keep = move || {
        let mut told = None;
        while let Some(plan) = plan() {
            match plan {
                Ok(plan) => {
                    rates.set_host(plan.and_then(|plan| plan.at(clock_time(&Zoned::now()))));
                    told = None;
                }
                // The limit stays: to lift it could cost others their network.
                Err(error) if told.as_ref() == Some(&error) => {}
                Err(error) => {
                    warn!("the limit of migrations stays as it is: {}", error_chain(&error));
                    told = Some(error);
                }
            }
            rates.tidy(Instant::now());
            thread::sleep(LOOK_PERIOD);
        }
    };
    thread::Builder::new().name("rates".into()).spawn(keep).map(drop)
}

/// Returns the minute of the week, by the host's clock and time zone.
fn clock_time(now: &Zoned) -> ClockTime {
    ClockTime::of_unix(now.timestamp().as_second(), now.offset().seconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: MigrationId = MigrationId(1);

    fn rate(text: &str) -> Option<Rate> {
        Some(text.parse().unwrap())
    }

    fn limit(bits_per_s: u64, by: RateLimitedBy) -> Option<RateLimit> {
        Some(RateLimit { bits_per_s, by })
    }

    #[test]
    fn the_least_limit_counts_and_is_told_with_its_reason() {
        let rates = MigrationRates::new();
        assert_eq!(rates.limit_of(ID), None);
        rates.set_host(rate("1 Gbit/s"));
        assert_eq!(rates.limit_of(ID), limit(1_000_000_000, RateLimitedBy::Host));
        rates.set_migration(ID, rate("400 Mbit/s"));
        assert_eq!(rates.limit_of(ID), limit(400_000_000, RateLimitedBy::Migration));
        let soon = Instant::now() + Duration::from_secs(60);
        rates.set_cluster(rate("80 Mbit/s"), soon);
        rates.tidy(soon - Duration::from_secs(1));
        assert_eq!(rates.limit_of(ID), limit(80_000_000, RateLimitedBy::Cluster));
        let share = rates.join(ID);
        assert_eq!(share.bytes_per_s(), Some(1e7));
        rates.tidy(soon);
        assert_eq!(share.bytes_per_s(), Some(5e7));
        rates.set_migration(ID, None);
        assert_eq!(share.bytes_per_s(), Some(1.25e8));
        rates.set_host(None);
        assert_eq!((share.bytes_per_s(), rates.limit_of(ID)), (None, None));
    }

    #[test]
    fn a_limit_that_is_set_before_the_copy_holds_from_its_beginning() {
        let rates = MigrationRates::new();
        rates.set_migration(ID, rate("8 Mbit/s"));
        assert_eq!(rates.join(ID).bytes_per_s(), Some(1e6));
        rates.forget(ID);
        assert_eq!(rates.join(ID).bytes_per_s(), None);
    }

    #[test]
    fn the_time_of_day_is_that_of_the_hosts_time_zone() {
        let time: Zoned = "2026-11-29T23:59:30+01:00[Europe/Berlin]".parse().unwrap();
        assert_eq!(Some(clock_time(&time)), ClockTime::new(6, 23 * 60 + 59));
    }
}
