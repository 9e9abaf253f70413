//! Migrations that were begun with a request id: the same id again means the same migration.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skein_handover::MigrationId;

/// How long an id is remembered.
const KEEP_TIME: Duration = Duration::from_secs(24 * 3600);
/// How many are: the oldest is forgotten first.
const KEPT_MAX: usize = 1024;

/// What request ids have begun.
#[derive(Default)]
pub(crate) struct BegunRequests {
    begun: Mutex<VecDeque<Begun>>,
}

struct Begun {
    request_id: String,
    migration: MigrationId,
    since: Instant,
}

impl BegunRequests {
    /// Returns the migration that this id has begun, if it is remembered.
    pub(crate) fn get(&self, request_id: &str, now: Instant) -> Option<MigrationId> {
        find(&self.begun.lock(), request_id, now)
    }

    /// Returns the migration that this id has begun, else what `begin` begins. Two requests with one id at the same
    /// time begin one migration: the second waits for the first.
    ///
    /// # Errors
    /// What `begin` says. Nothing is remembered then.
    pub(crate) fn get_or_begin<E>(
        &self,
        request_id: &str,
        now: Instant,
        begin: impl FnOnce() -> Result<MigrationId, E>,
    ) -> Result<MigrationId, E> {
        let mut begun = self.begun.lock();
        if let Some(known) = find(&begun, request_id, now) {
            return Ok(known);
        }
        let migration = begin()?;
        remember(&mut begun, request_id, migration, now);
        Ok(migration)
    }

    /// Has the id mean this migration from now on: a retry of the one before.
    pub(crate) fn replace(&self, request_id: &str, migration: MigrationId, now: Instant) {
        remember(&mut self.begun.lock(), request_id, migration, now);
    }
}

fn find(begun: &VecDeque<Begun>, request_id: &str, now: Instant) -> Option<MigrationId> {
    let known = begun.iter().find(|begun| begun.request_id == request_id)?;
    (now.saturating_duration_since(known.since) < KEEP_TIME).then_some(known.migration)
}

fn remember(begun: &mut VecDeque<Begun>, request_id: &str, migration: MigrationId, now: Instant) {
    begun.retain(|begun| begun.request_id != request_id && now.saturating_duration_since(begun.since) < KEEP_TIME);
    if begun.len() >= KEPT_MAX {
        begun.pop_front();
    }
    begun.push_back(Begun { request_id: request_id.to_owned(), migration, since: now });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(requests: &BegunRequests, request_id: &str, now: Instant, new: u64) -> MigrationId {
        requests.get_or_begin(request_id, now, || Ok::<_, ()>(MigrationId(new))).unwrap()
    }

    #[test]
    fn the_same_id_again_is_the_same_migration() {
        let (requests, now) = (BegunRequests::default(), Instant::now());
        assert_eq!(requests.get("a", now), None);
        assert_eq!(begin(&requests, "a", now, 1), MigrationId(1));
        assert_eq!(begin(&requests, "a", now, 2), MigrationId(1), "it is not begun anew");
        assert_eq!(begin(&requests, "b", now, 3), MigrationId(3));
        requests.replace("a", MigrationId(4), now);
        assert_eq!(requests.get("a", now), Some(MigrationId(4)), "a retry takes its place");
    }

    #[test]
    fn what_was_not_begun_is_not_remembered() {
        let (requests, now) = (BegunRequests::default(), Instant::now());
        assert_eq!(requests.get_or_begin("a", now, || Err("no")), Err("no"));
        assert_eq!(begin(&requests, "a", now, 1), MigrationId(1));
    }

    #[test]
    fn ids_are_forgotten_after_a_day_and_the_oldest_of_too_many() {
        let (requests, now) = (BegunRequests::default(), Instant::now());
        begin(&requests, "old", now, 1);
        assert_eq!(requests.get("old", now + KEEP_TIME - Duration::from_secs(1)), Some(MigrationId(1)));
        assert_eq!(requests.get("old", now + KEEP_TIME), None);
        for number in 0..KEPT_MAX {
            begin(&requests, &number.to_string(), now, number as u64 + 2);
        }
        assert_eq!(requests.get("old", now), None);
        assert_eq!(requests.get("0", now), Some(MigrationId(2)));
        assert_eq!(requests.begun.lock().len(), KEPT_MAX);
    }
}
